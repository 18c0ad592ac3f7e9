"""What a finished workdir holds: damage to it is noticed, and what came later is not damage."""

import json
from hashlib import sha256
from types import SimpleNamespace

import pytest

from fairjax.errors import UserError
from fairjax.files import write_sealed_json
from fairjax.run.workdir import (
  check_sources,
  file_digests,
  is_finished,
  refresh,
  write_inventory,
)

FILES = (
  'config.json', 'lm/DONE', 'lm/metrics.jsonl', 'lm/checkpoints/4/state/d/a',
  'lm/checkpoints/6/state/d/a', 'lm/checkpoints/10/state/d/a', 'lm/checkpoints/4.corrupt/x',
  'lm/tensorboard/events', 'data/train/tokens.bin', 'scores/baseline/country.vader.jsonl',
  'measures/baseline/country.json', 'report/report.md', 'report/figures/a.svg', '.lock')
NOT_LOOKED_AT = (
  'config.json', 'lm/checkpoints/4/state/d/a', 'lm/checkpoints/6/state/d/a',
  'lm/checkpoints/4.corrupt/x', 'lm/tensorboard/events', '.lock')


@pytest.fixture
def finished(tmp_path):
  for name in FILES:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'content of {name}')
  write_sealed_json(tmp_path / 'lm' / 'DONE', {
    'metrics': sha256(b'content of lm/metrics.jsonl').hexdigest()})
  write(tmp_path)
  return tmp_path


def write(workdir, *, tokens='content of data/train/tokens.bin', sources=None):
  """Writes DONE for a run whose store of `train` has these tokens."""
  store = SimpleNamespace(files={'tokens.bin': {'sha256': sha256(tokens.encode()).hexdigest()}})
  prepared = SimpleNamespace(directory=workdir / 'data', manifest={'splits': {'train': {}}},
                             store={'train': store}.__getitem__)
  write_inventory(workdir, '1.2.3', prepared, [{'sources': sources or {}}])


def test_damage_that_no_stage_has_read_is_noticed_at_the_end(finished):
  before = (finished / 'DONE').read_bytes()
  with pytest.raises(UserError, match='data/train/tokens.bin has changed'):
    write(finished, tokens='other')
  name = 'scores/baseline/country.vader.jsonl'
  good = file_digests(finished, [name])
  write(finished, sources=good)
  change(finished / name, 'flip')
  with pytest.raises(UserError, match='country.vader.jsonl has changed'):
    write(finished, sources=good)
  with pytest.raises(UserError, match='metrics.jsonl has changed.*delete .*lm/DONE, which keeps'):
    change(finished / 'lm' / 'metrics.jsonl', 'flip')
    write(finished)
  assert (finished / 'DONE').read_bytes() == before


def test_an_untouched_workdir_is_finished_and_left_alone(finished):
  lines, before = [], (finished / 'DONE').read_bytes()
  assert is_finished(finished, lines.append)
  assert lines == [f'{finished} is finished, its {len(FILES) - len(NOT_LOOKED_AT)} files are as '
                   f'the run left them: nothing to do. Report: {finished}/report/report.md']
  assert (finished / 'DONE').read_bytes() == before


def test_a_workdir_without_done_is_not_finished(tmp_path):
  assert not is_finished(tmp_path, print)


def change(path, how):
  if how == 'delete':
    path.unlink()
  else:
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize('how', ['delete', 'flip'])
@pytest.mark.parametrize('name', [
  n for n in FILES if n not in NOT_LOOKED_AT and not n.startswith('report/')])
def test_every_other_file_that_changed_is_named(finished, name, how):
  change(finished / name, how)
  with pytest.raises(UserError, match='1 of its files') as error:
    is_finished(finished, print)
  assert str(finished / name) in str(error.value)
  assert (finished / 'DONE').exists()


@pytest.mark.parametrize('name', NOT_LOOKED_AT)
def test_files_that_may_change(finished, name):
  change(finished / name, 'delete')
  assert is_finished(finished, lambda line: None)


def test_files_that_came_later_do_not_count(finished):
  (finished / 'measures' / 'human.json').write_text('{}')
  assert is_finished(finished, lambda line: None)


@pytest.mark.parametrize('how', ['delete', 'flip'])
def test_a_changed_report_is_written_again(finished, how):
  lines = []
  change(finished / 'report/figures/a.svg', how)
  assert not is_finished(finished, lines.append)
  assert lines == [f'WARNING: {finished}/report/figures/a.svg is not what the run left']
  assert not (finished / 'DONE').exists()


def test_a_changed_report_does_not_hide_another_change(finished):
  change(finished / 'report/report.md', 'flip')
  change(finished / 'scores/baseline/country.vader.jsonl', 'flip')
  with pytest.raises(UserError, match='2 of its files.*country.vader.jsonl'):
    is_finished(finished, print)


@pytest.mark.parametrize('content', ['', '{}', '[]', '{"fairjax": "0.1"}'])
def test_a_damaged_done_makes_the_run_look_at_every_part(finished, content):
  lines = []
  (finished / 'DONE').write_text(content)
  assert not is_finished(finished, lines.append)
  assert len(lines) == 1 and 'DONE is damaged' in lines[0] and 'every part' in lines[0]
  assert not (finished / 'DONE').exists()


def test_a_flipped_digest_in_done_is_damage_of_done(finished):
  text = (finished / 'DONE').read_text()
  digest = json.loads(text)['files']['lm/DONE']
  other = ('0' if digest[0] != '0' else '1') + digest[1:]
  (finished / 'DONE').write_text(text.replace(digest, other))
  lines = []
  assert not is_finished(finished, lines.append)
  assert 'DONE is damaged' in lines[0]


def test_a_new_report_is_taken_over_and_nothing_else(finished):
  (finished / 'report/report.md').write_text('new')
  (finished / 'report/figures/b.svg').write_text('new')
  (finished / 'report/figures/a.svg').unlink()
  refresh(finished, 'report/')
  assert is_finished(finished, lambda line: None)
  change(finished / 'lm/metrics.jsonl', 'flip')
  refresh(finished, 'report/')
  with pytest.raises(UserError, match='lm/metrics.jsonl'):
    is_finished(finished, print)


def test_refresh_without_or_with_a_damaged_done(finished):
  (finished / 'DONE').write_text('{}')
  refresh(finished, 'report/')
  assert not (finished / 'DONE').exists()
  refresh(finished, 'report/')
  assert not (finished / 'DONE').exists()


def test_sources(finished):
  names = ['scores/baseline/country.vader.jsonl', 'lm/metrics.jsonl']
  sources = file_digests(finished, names)
  check_sources(finished, sources, 'measures/x.json')
  change(finished / names[0], 'flip')
  with pytest.raises(UserError, match=r'country.vader.jsonl has changed since.*measures/x.json'):
    check_sources(finished, sources, 'measures/x.json')
  (finished / names[0]).unlink()
  with pytest.raises(UserError, match=r'country.vader.jsonl is gone'):
    check_sources(finished, sources, 'measures/x.json')
