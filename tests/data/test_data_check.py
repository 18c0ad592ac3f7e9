"""`fairjax step check-data`: every damage is found, all of it at once, and nothing is changed."""

import collections
import dataclasses
import gzip
import json
import shutil

import pytest
from split_files import peak_of, prepare

from fairjax.cli.main import main
from fairjax.config import Config, DataConfig
from fairjax.data import data_check
from fairjax.data.data_check import check_prepared, check_sources
from fairjax.data.documents import read_documents
from fairjax.errors import UserError

GOOD = b'Iran won .\nShe sang .\nIn Chile , then .\n'


def data_of(folder, **changes):
  return DataConfig(
    source='lines', vocabulary='word', vocab_size=100, reader='numpy',
    **{s: (str(folder / f'{s}.txt'),) for s in ('train', 'valid', 'test')}, **changes)


@pytest.fixture
def folder(tmp_path):
  for split in ('train', 'valid', 'test'):
    (tmp_path / f'{split}.txt').write_bytes(split.encode() + b' ' + GOOD)
  return tmp_path


def sources(folder, **changes):
  return check_sources(Config(data=data_of(folder, **changes)))


def test_every_irregularity_is_counted_and_every_broken_line_named(folder):
  lines = [b'\xef\xbb\xbfone', b'two\r', b'', b'th\0ree\0', b'f\xffour',
           'fi\ufffdve\ufffd'.encode(), b'one', b'x' * 300, b'one', b'y' * 300 + b'\r', b'z' * 200]
  (folder / 'train.txt').write_bytes(b'\n'.join(lines))
  found = sources(folder, max_line_bytes=299)
  assert found.problems == [
    f'{folder}/train.txt:5: not UTF-8 (byte 2 of the line is 0xff)',
    f'{folder}/train.txt:8: a line of more than 299 bytes',
    f'{folder}/train.txt:10: a line of more than 299 bytes']
  assert found.counts['train'] == {
    'byte_order_marks': 1, 'carriage_returns': 1, 'blank_lines': 1, 'nul_characters': 2,
    'replacement_characters': 2, 'broken_lines': 3, 'documents': 7, 'lines': 11, 'files': 1,
    'words': 7, 'repeated': 2}
  assert sources(folder, max_line_bytes=300).problems == found.problems[:1]
  # The same lines when the data are prepared: an error, or left out and counted.
  with pytest.raises(UserError, match=r'train\.txt:5: not UTF-8 .*: convert the file'):
    list(read_documents([folder / 'train.txt'], layout='lines', max_line_bytes=299))
  counts = collections.Counter()
  kept = list(read_documents([folder / 'train.txt'], layout='lines', max_line_bytes=299,
                             broken='skip', counts=counts))
  assert len(kept) == 7 and counts['broken_lines'] == 3
  skipped = sources(folder, max_line_bytes=299, broken='skip')
  assert skipped.problems == []
  assert sum('left out (data.broken=skip)' in note for note in skipped.notes) == 3


def test_files_that_end_early_or_hold_nothing_do_not_stop_the_check(folder):
  whole = gzip.compress(b'\n'.join(b'%d %d' % (i, i * i) for i in range(3000)))
  (folder / 'train.txt').write_bytes(whole[:len(whole) // 2])
  (folder / 'valid.txt').write_bytes(b'')
  (folder / 'test.txt').write_bytes(b'\n \n')
  found = sources(folder)
  assert len(found.problems) == 3
  assert f'it is cut off at byte {len(whole) // 2}' in found.problems[0]
  assert 'valid.txt is empty' in found.problems[1]
  assert 'test.txt holds no document' in found.problems[2]
  (folder / 'valid.txt').unlink()
  assert 'file not found' in sources(folder).problems[1]


def test_a_long_line_is_never_in_memory_whole(folder):
  with open(folder / 'train.txt', 'wb') as file:
    file.write(GOOD)
    for _ in range(50):
      file.write(b'x' * (1 << 20))
    file.write(b'\nlast\n')
  found, peak = peak_of(lambda: sources(folder))
  assert found.problems == [f'{folder}/train.txt:4: a line of more than 16,777,216 bytes']
  assert found.counts['train']['documents'] == 4  # the last one too
  assert peak < 40 << 20, peak


@pytest.fixture
def prepared(folder):
  return prepare(data_of(folder), folder / 'run' / 'data')[0]


def test_every_file_of_prepared_data_is_checked(prepared):
  files = [p for p in sorted(prepared.directory.rglob('*')) if p.is_file()]
  assert len(files) > 30
  for path in files:
    content = path.read_bytes()
    middle = len(content) // 3
    for damaged in (content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1:]
                    if content else b'x', None):
      if damaged is None:
        path.unlink()
      else:
        path.write_bytes(damaged)
      # inputs.json serves to continue a preparation; the manifest has a copy of it.
      if path.name != '.lock' and (damaged, path.name) != (None, 'inputs.json'):
        assert check_prepared(prepared.directory).problems, (path, damaged)
    path.write_bytes(content)
  assert check_prepared(prepared.directory).problems == []


def test_all_damaged_stores_are_named_at_once(prepared):
  for split in ('train', 'valid_sensitive'):
    path = prepared.directory / split / 'tokens.bin'
    path.write_bytes(path.read_bytes()[:-2])
  (prepared.directory.parent.parent / 'test.txt').write_bytes(b'other')
  found = check_prepared(prepared.directory).problems
  assert len(found) == 3
  assert 'train/tokens.bin has 28 bytes instead of 30' in found[0]
  assert 'valid_sensitive/tokens.bin' in found[1] and 'test.txt (test) is not the file' in found[2]
  (prepared.directory / 'manifest.json').write_text('{')
  found = check_prepared(prepared.directory).problems
  assert len(found) == 3 and 'manifest.json is damaged' in found[0]


def test_a_missing_holdout_is_a_problem_and_not_made(folder):
  data = dataclasses.replace(data_of(folder), valid=(), test=(), holdout=(1, 1))
  prepared = prepare(data, folder / 'run' / 'data')[0]
  assert check_prepared(prepared.directory).problems == []
  shutil.rmtree(prepared.directory / 'holdout')
  (found,) = check_prepared(prepared.directory).problems
  assert 'holdout.json is missing: run fairjax step data again' in found
  assert not (prepared.directory / 'holdout').exists()
  prepare(data, prepared.directory)
  assert check_prepared(prepared.directory).problems == []


def test_an_original_file_that_cannot_be_read_is_one_problem_of_several(
    folder, prepared, monkeypatch):
  def unreadable(path):
    raise UserError(f'{path}: cannot be read')

  monkeypatch.setattr(data_check, 'file_sha256', unreadable)
  assert check_prepared(prepared.directory).problems == [
    f'{folder}/{split}.txt: cannot be read' for split in ('test', 'train', 'valid')]


def test_the_verb(folder, prepared, capsys, printed, refused):
  options = ['step', 'check-data', '--config=configs/text.py:train=' + str(folder / 'train.txt')
             + f',valid={folder / "valid.txt"},test={folder / "test.txt"}']
  assert printed(*options, f'--workdir={folder / "run"}').endswith('no problem found\n')
  (folder / 'train.txt').write_bytes(GOOD + b'\xff\n')
  assert main([*options, '--json']) == 2
  found = json.loads(capsys.readouterr().out)['documents']
  assert len(found['problems']) == 1 and found['counts']['train']['broken_lines'] == 1
  assert found['counts']['test'] == {'documents': 3, 'files': 1, 'lines': 3, 'words': 12,
                                     'repeated': 0, 'in_train': 2}
  assert main(['step', 'check-data', f'--workdir={folder / "run"}']) == 2
  shown = capsys.readouterr().out
  assert '[prepared] PROBLEM ' in shown and shown.endswith('1 problem(s)\n')
  before = {p: p.stat().st_mtime_ns for p in folder.rglob('*')}
  refused(['step', 'check-data'], 'step check-data needs --config')
  assert before == {p: p.stat().st_mtime_ns for p in folder.rglob('*')}
  shutil.rmtree(folder / 'run' / 'data')
  assert main(['step', 'check-data', f'--workdir={folder / "run"}']) == 2
  assert 'no finished data' in capsys.readouterr().out
