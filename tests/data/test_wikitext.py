"""The official WikiText files: found, unpacked, fetched, made into TFDS datasets, read by seqio."""

import dataclasses
import functools
import gzip
import hashlib
import http.server

import pytest
from local_server import served
from split_files import COUNTRY, prepare
from test_inputs import zipped

from fairjax.config import Config, DataConfig
from fairjax.data import wikitext as wikitext_files
from fairjax.data.corpus import Corpus
from fairjax.data.data_check import check_sources
from fairjax.data.documents import read_documents
from fairjax.data.wikitext import count_wikitext, fetch_wikitext, find_wikitext
from fairjax.errors import UserError
from fairjax.vocabulary import WordVocabulary

TEXTS = {
  split: ''.join(f' \n = {split} {i} = \n \n Iran has {i} towns . \n = = Past = = \n Old . \n'
                 for i in range(number))
  for split, number in {'train': 40, 'valid': 3, 'test': 2}.items()}


def write_files(folder, suffix=''):
  folder.mkdir(parents=True, exist_ok=True)
  for split, text in TEXTS.items():
    content = text.encode()
    (folder / f'wiki.{split}.tokens{suffix}').write_bytes(
      gzip.compress(content) if suffix else content)
  return folder


def write_zip(path, names=('train', 'valid', 'test')):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(zipped({
    f'wikitext-2/wiki.{name}.tokens': TEXTS[name] for name in names} | {
      '../outside.txt': 'not unpacked'}))
  return path


def sha256(path):
  return hashlib.sha256(path.read_bytes()).hexdigest()


def test_files_are_found_in_every_form(tmp_path):
  unpack = tmp_path / 'u'
  for i, (suffix, inner) in enumerate((('', ''), ('.gz', ''), ('', 'wikitext-2'))):
    folder = write_files(tmp_path / str(i) / inner, suffix)
    found = find_wikitext('wikitext2', tmp_path / str(i), unpack_to=unpack)
    assert found == {s: folder / f'wiki.{s}.tokens{suffix}' for s in TEXTS}
  archive = write_zip(tmp_path / 'z' / 'wikitext-2-v1.zip')
  found = find_wikitext('wikitext2', archive.parent, unpack_to=unpack, sha256=sha256(archive))
  assert {s: p.read_text() for s, p in found.items()} == TEXTS
  assert sorted(p.name for p in unpack.iterdir()) == [f'wiki.{s}.tokens' for s in sorted(TEXTS)]
  assert not (tmp_path / 'outside.txt').exists()


def test_what_is_missing_or_damaged_is_named(tmp_path):
  find = functools.partial(find_wikitext, unpack_to=tmp_path / 'u')
  with pytest.raises(UserError, match='no files of wikitext103 in .*wikitext-103-v1.zip.*download'):
    find('wikitext103', tmp_path)
  folder = write_files(tmp_path / 'a')
  (folder / 'wiki.valid.tokens').unlink()
  with pytest.raises(UserError, match='lacks wiki.valid.tokens'):
    find('wikitext2', folder)
  path = write_zip(tmp_path / 'b' / 'wikitext-2-v1.zip', names=('train', 'test'))
  with pytest.raises(UserError, match='holds no wiki.valid.tokens'):
    find('wikitext2', path.parent)
  write_zip(path)
  with pytest.raises(UserError, match='has SHA-256 .*, not 0000'):
    find('wikitext2', path.parent, sha256='0' * 64)
  path.write_bytes(path.read_bytes()[:-60])
  with pytest.raises(UserError, match='is damaged .*fetch it again'):
    find('wikitext2', path.parent)


def serve(monkeypatch, address, digest):
  """Sets where WikiText-2 is fetched and what it should be."""
  monkeypatch.setitem(wikitext_files.CORPORA, 'wikitext2', dataclasses.replace(
    wikitext_files.CORPORA['wikitext2'], address=address, sha256=digest))


def test_only_a_file_with_the_right_digest_is_kept(tmp_path, monkeypatch):
  archive = write_zip(tmp_path / 'served' / 'wikitext-2-v1.zip')
  folder, lines = tmp_path / 'downloads', []
  with served(http.server.SimpleHTTPRequestHandler, directory=archive.parent) as address:
    def record(digest, name='wikitext-2-v1.zip'):
      serve(monkeypatch, f'{address}/{name}', digest)

    record('0' * 64)
    with pytest.raises(UserError, match=f'SHA-256 {sha256(archive)} .*not 0000.*data.sha256'):
      fetch_wikitext('wikitext2', folder, log=lines.append)
    assert not list(folder.iterdir())
    path = fetch_wikitext('wikitext2', folder, sha256=sha256(archive), log=lines.append)
    assert path.read_bytes() == archive.read_bytes()
    assert f'"bytes": {archive.stat().st_size}' in (folder / 'wikitext-2-v1.json').read_text()
    record(sha256(archive), 'none.zip')
    assert fetch_wikitext('wikitext2', folder) == path  # is there already
    path.unlink()
    with pytest.raises(UserError, match='cannot be fetched .*set data.manual_dir'):
      fetch_wikitext('wikitext2', folder, log=lines.append)


def test_counts_are_compared_with_the_published(tmp_path):
  folder = write_files(tmp_path)
  found, line = count_wikitext('wikitext2', 'valid', folder / 'wiki.valid.tokens')
  assert found == {'articles': 3, 'lines': 18, 'words': 48, 'tokens': 66}
  assert line == ('wikitext2 valid: 3 articles, 18 lines, 48 words (66 tokens with <eos>): NOT the '
                  'official file, which has 60 articles and 217,646 tokens')
  # The check of data reads the files, in the zip too, and makes no dataset of them.
  write_zip(tmp_path / 'z' / 'wikitext-2-v1.zip')
  before = sorted(tmp_path.rglob('*'))
  for manual in (folder, tmp_path / 'z'):
    checked = check_sources(Config(data=DataConfig(source='wikitext2', manual_dir=str(manual))))
    assert checked.problems == [] and line in checked.notes
    assert checked.counts['valid']['documents'] == 3
  assert sorted(tmp_path.rglob('*')) == before
  (folder / 'wiki.test.tokens').write_bytes(b' \n = A = \n \n \xff \n')
  checked = check_sources(Config(data=DataConfig(source='wikitext2', manual_dir=str(folder))))
  (problem,) = checked.problems
  assert 'test.tokens:4: not UTF-8' in problem
  nothing = check_sources(Config(data=DataConfig(source='wikitext2')))
  assert 'nothing to check' in nothing.notes[0] and not nothing.problems


WORDS = DataConfig(source='wikitext2', vocabulary='word', vocab_size=200)


def test_the_words_of_a_checkpoint_read_the_published_stream(tmp_path):
  """As `models import --words` leaves them: documents are split, and each line ends with eos."""
  manual = write_files(tmp_path / 'manual')
  given = WordVocabulary(b'<pad>\n<eos>\n<unk>\n=\nIran\nhas\n0\n.\n', {'words_of': 'words.txt'})
  given.save(tmp_path / 'out' / 'vocabulary')
  prepared, _ = prepare(dataclasses.replace(
    WORDS, source='wikitext', reader='numpy',
    **{s: (str(manual / f'wiki.{s}.tokens'),) for s in TEXTS}), tmp_path / 'out')
  assert prepared.vocabulary == given and prepared.vocabulary.documents == 'wikitext'
  with open(manual / 'wiki.valid.tokens', encoding='utf-8') as file:
    stream = [word if word in given.words else '<unk>'
              for line in file for word in (*line.split(), '<eos>')]
  store = prepared.store('valid')
  assert [given.words[i] for i in store.open_tokens()[:].tolist()] == stream
  # A document ends where the table says: eos is there, and elsewhere too.
  ends = store.open_documents()[:, 0]
  assert len(ends) == 3 and stream.count('<eos>') > 3
  assert all(stream[end - 1] == '<eos>' for end in ends)


@pytest.mark.tf
def test_a_tfds_dataset_is_made_once_and_keeps_the_order(tmp_path):
  import seqio

  from fairjax.data import seqio_tasks as tasks
  from fairjax.data.tfds_wikitext import build_wikitext

  manual, tfds_dir, lines = write_files(tmp_path / 'manual'), tmp_path / 'tfds', []
  builder = build_wikitext('wikitext2', tfds_dir, manual_dir=manual, num_shards=2,
                           log=lines.append)
  assert builder.info.splits['train'].num_examples == 40
  assert builder.info.splits['train'].num_shards == 2
  assert sum('NOT the official file' in line for line in lines) == 3
  expected = {s: list(read_documents([manual / f'wiki.{s}.tokens'], layout='wikitext',
                                     blank_lines=True)) for s in TEXTS}
  packed, other = write_files(tmp_path / 'packed', '.gz'), write_files(tmp_path / 'other')
  (other / 'wiki.valid.tokens').write_text(TEXTS['test'])
  data = dataclasses.replace(WORDS, tfds_dir=str(tfds_dir), manual_dir=str(packed))
  prepared, lines = prepare(data, tmp_path / 'out')
  assert not any('official' in line for line in lines)
  with pytest.raises(UserError, match='was made of other files than those in .*other: delete'):
    prepare(dataclasses.replace(data, manual_dir=str(other)), tmp_path / 'out')
  (other / 'wiki.valid.tokens').unlink()  # not all there any more: nothing to compare with
  prepare(dataclasses.replace(data, manual_dir=str(other)), tmp_path / 'out')
  for split in TEXTS:
    assert list(prepared.documents(split)) == expected[split]
    assert prepared.store(split).documents == len(expected[split])
    assert prepared.corpus.size(split) == len(expected[split])
  task = tasks.register_corpus_task(prepared.corpus, prepared.vocabulary)
  try:
    ids = [ids.tolist() for ids in tasks.tokenized_documents(task, 'train')]
    assert ids == prepared.vocabulary.encode_batch(expected['train'])
    assert sum(map(len, ids)) + len(ids) == sum(  # every line is a token
      len(line.split()) + 1 for line in (manual / 'wiki.train.tokens').open(encoding='utf-8'))
    without = Corpus(prepared.config, COUNTRY, tmp_path / 'out')  # for pieces
    assert list(without.texts('train')) == list(
      read_documents([manual / 'wiki.train.tokens'], layout='wikitext'))
  finally:
    seqio.TaskRegistry.remove(task.name)
  # The tokens are those of the same files without tfds.
  plain, _ = prepare(dataclasses.replace(
    WORDS, source='wikitext', **{s: (str(manual / f'wiki.{s}.tokens'),) for s in TEXTS}),
    tmp_path / 'plain')
  assert plain.fingerprint == prepared.fingerprint
  # A cut file is found, also where nobody compares digests.
  part = sorted(tfds_dir.glob('fairjax_wikitext2/*/*train.tfrecord-*'))[0]
  assert check_sources(Config(data=prepared.config)).problems == []
  part.write_bytes(b'')
  (problem,) = check_sources(Config(data=prepared.config)).problems
  assert 'train holds 20 examples instead of 40' in problem
  with pytest.raises(UserError, match='train: .*tfrecord.* has changed'):
    prepare(dataclasses.replace(data, manual_dir=''), tmp_path / 'out')
  with pytest.raises(UserError, match='expected to contain 40 elements but .* only 20'):
    list(prepared.documents('train'))


@pytest.mark.tf
def test_without_files_the_error_says_what_to_set(tmp_path):
  with pytest.raises(UserError, match='no dataset fairjax_wikitext2:2.0.0 in .*data.manual_dir'):
    prepare(WORDS, tmp_path / 'out')


@pytest.mark.tf
def test_a_zip_is_fetched_on_request_only(tmp_path, monkeypatch, capsys):
  archive = write_zip(tmp_path / 'served' / 'wikitext-2-v1.zip')
  with served(http.server.SimpleHTTPRequestHandler, directory=archive.parent) as address:
    serve(monkeypatch, f'{address}/{archive.name}', sha256(archive))
    prepared, lines = prepare(dataclasses.replace(WORDS, download=True), tmp_path / 'out')
  assert any('SHA-256 as expected' in line for line in lines)
  assert prepared.store('train').documents == 40
  assert 'Downloading' not in capsys.readouterr().out  # of TFDS, which downloads nothing
