"""Encoding in chunks: the same bytes for any interruptions, and the ids of seqio's task."""

import collections
import copy
import dataclasses
import functools
import json
import random
import signal
import subprocess
import sys

import numpy as np
import pytest

from fairjax import progress
from fairjax.config import Config, DataConfig
from fairjax.counterfactual import load_attribute
from fairjax.data import token_store as encode
from fairjax.data.documents import read_documents, sample_lines
from fairjax.data.prepare import prepare_data
from fairjax.data.token_store import (
  EncodedChunks,
  encode_documents,
  read_chunk_table,
  write_chunk,
)
from fairjax.errors import UserError
from fairjax.vocabulary import build_word_vocabulary, train_sentencepiece

COUNTRY = load_attribute('country')


def make_texts(number, seed=0):
  rng = np.random.default_rng(seed)
  words = ['Iran', 'Chile', 'naïve', '日本', 'the', 'river', 'of', 'tower', '\n', 'won.', '(7)']
  return [' '.join(rng.choice(words, rng.integers(1, 60))).strip() or 'x' for _ in range(number)]


TEXTS = make_texts(300)


@pytest.fixture(scope='module')
def pieces(tmp_path_factory):
  return train_sentencepiece(TEXTS, size=330, directory=tmp_path_factory.mktemp('vocabulary'))


@pytest.fixture
def small_chunks(monkeypatch):
  monkeypatch.setattr(encode, 'CHUNK_BYTES', 3000)


def run(vocabulary, folder, texts=TEXTS, **kwargs):
  lines = []
  encoded = encode_documents(
    iter(texts), folder, vocabulary=vocabulary, log=lines.append, **kwargs)
  return encoded, lines


def contents(folder):
  return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_chunks_hold_every_document(pieces, small_chunks, tmp_path):
  encoded, _ = run(pieces, tmp_path)
  starts = [0, *encoded.documents[:-1, 0].tolist()]
  for text, start, row in zip(TEXTS, starts, encoded.documents.tolist(), strict=True):
    assert encoded[start:row[0]].tolist() == [*pieces.encode(text), pieces.eos_id]
    assert row[1:] == [len(text.split()), len(text.encode()), TEXTS.index(text, row[3])]
  assert len(encoded) == encoded.documents[-1, 0]
  assert len(list(tmp_path.glob('*.npz'))) > 5


def test_what_is_there_is_kept_and_what_is_damaged_made_anew(pieces, small_chunks, tmp_path):
  run(pieces, tmp_path)
  whole = contents(tmp_path)
  (tmp_path / '00001.npz').unlink()
  tokens = tmp_path / '00003.tokens'
  tokens.write_bytes(tokens.read_bytes()[:-2])
  times = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
  _, lines = run(pieces, tmp_path)
  assert contents(tmp_path) == whole
  changed = {p.name for p in tmp_path.iterdir() if p.stat().st_mtime_ns != times.get(p.name)}
  assert changed == {'00001.tokens', '00001.npz', '00003.tokens', '00003.npz'}
  assert any('encoded earlier' in line for line in lines)
  # Other documents: what does not fit is made anew.
  other = [*TEXTS[:150], 'one more', *TEXTS[150:]]
  encoded, _ = run(pieces, tmp_path, other)
  again, _ = run(pieces, tmp_path / 'fresh', other)
  assert np.array_equal(encoded.documents, again.documents)
  # Another vocabulary or size of chunks: everything is.
  manifest = tmp_path / 'chunks.json'
  manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {'vocabulary': 'x'}))
  _, lines = run(pieces, tmp_path)
  assert not any('earlier' in line for line in lines)


def test_one_chunk_takes_no_time_worth_a_line(pieces, tmp_path):
  encoded, lines = run(pieces, tmp_path)
  assert len(encoded.documents) == len(TEXTS) and lines == []
  assert len(run(pieces, tmp_path / 'none', [])[0]) == 0


def test_a_flipped_bit_in_a_chunk_is_found_when_it_is_taken_over(pieces, small_chunks, tmp_path):
  run(pieces, tmp_path)
  whole = contents(tmp_path)
  for name in ('00002.tokens', '00004.npz'):
    content = bytearray(whole[name])
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
  run(pieces, tmp_path)
  assert contents(tmp_path) == whole


def test_progress_names_documents_speed_and_time(pieces, small_chunks, tmp_path, monkeypatch):
  monkeypatch.setattr(progress, 'INTERVAL_SEC', 0)
  _, lines = run(pieces, tmp_path, size=len(TEXTS), name='train')
  assert len(lines) > 5 and lines[-1].startswith('[data] train: 300 documents encoded, ')
  assert 'tokens/s' in lines[0] and ' of 300 documents, ' in lines[0]
  assert 'documents/s' in lines[0] and 'ETA 0:' in lines[0]


def test_an_error_of_the_reader_passes_and_whole_chunks_stay(pieces, small_chunks, tmp_path):
  def texts():
    yield from TEXTS[:200]
    raise UserError('line 7 is broken')

  with pytest.raises(UserError, match='line 7'):
    run(pieces, tmp_path, texts())
  assert list(tmp_path.glob('*.npz'))


def test_a_full_disk_is_reported(pieces, small_chunks, tmp_path):
  (tmp_path / '00002.npz').mkdir()  # in the way of the chunk's name
  (tmp_path / 'chunks.json').write_text(json.dumps({
    'vocabulary': pieces.fingerprint, 'bytes': encode.CHUNK_BYTES,
    'documents': encode.CHUNK_DOCUMENTS}))
  with pytest.raises(UserError, match='chunk 2 cannot be written .*the same command continues'):
    run(pieces, tmp_path)


def test_tables_that_do_not_fit_are_not_complete(pieces, tmp_path):
  dtype = np.dtype(np.uint16)
  write_chunk(tmp_path, 0, TEXTS[:3], pieces.encode_batch(TEXTS[:3]), dtype, pieces.eos_id)
  assert len(read_chunk_table(tmp_path, 0, dtype)) == 3
  assert read_chunk_table(tmp_path, 1, dtype) is None
  (tmp_path / '00000.npz').write_bytes(b'x')
  assert read_chunk_table(tmp_path, 0, dtype) is None
  assert len(EncodedChunks(tmp_path, 0, dtype)) == 0


def corpus(tmp_path, **kwargs):
  paths = {}
  for split, number in (('train', 400), ('valid', 20), ('test', 20)):
    path = tmp_path / f'{split}.txt'
    path.write_text('\n'.join(t.replace('\n', ' ') for t in make_texts(number, number)) + '\n')
    paths[split] = (str(path),)
  return DataConfig(source='lines', vocab_size=330, **{'reader': 'numpy'} | paths | kwargs)


def prepare(data, directory, lines=None):
  lines = [] if lines is None else lines
  return prepare_data(Config(data=data), directory, attribute=COUNTRY, log=lines.append)


def stores(directory):
  """Every file of the prepared data; the chunks are gone."""
  assert not (directory / 'progress').exists()
  found = {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob('*')
           if p.is_file()}
  assert 'train/tokens.bin' in found
  return found


SCRIPT = '''
import sys
from fairjax import progress
from fairjax.config import Config, DataConfig
from fairjax.counterfactual import load_attribute
from fairjax import progress
from fairjax.data import prepare, token_store as encode
import json, time
encode.CHUNK_BYTES = 3000
progress.INTERVAL_SEC = 0
slow = encode.write_chunk
def write_chunk(*args):
  time.sleep(0.02)
  return slow(*args)
encode.write_chunk = write_chunk
values = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(sys.argv[1]).items()}
prepare.prepare_data(Config(data=DataConfig(**values)), sys.argv[2],
                     attribute=load_attribute('country'), log=lambda s: print(s, flush=True))
'''


def test_killed_at_any_time_the_result_is_the_same(tmp_path, small_chunks):
  data = corpus(tmp_path)
  prepare(data, tmp_path / 'whole')
  whole, killed = stores(tmp_path / 'whole'), 0
  directory = tmp_path / 'cut'
  values = json.dumps(dataclasses.asdict(data))
  for lines in (2, 4, 6):  # of progress, then SIGKILL
    process = subprocess.Popen(
      [sys.executable, '-c', SCRIPT, values, str(directory)], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
      lines -= 'documents/s' in line
      if not lines:
        process.send_signal(signal.SIGKILL)
        killed += 1
        break
    process.wait()
    process.stdout.close()
    assert len(list(directory.glob('progress/train/*.npz'))) > 1
  assert killed == 3 and not (directory / 'manifest.json').exists()
  found = prepare(data, directory, lines := [])
  assert any('encoded earlier' in line for line in lines)
  assert stores(directory) == whole
  assert found.fingerprint == prepare(data, tmp_path / 'whole').fingerprint


def test_finished_splits_are_not_made_again(tmp_path, monkeypatch, small_chunks):
  data, directory = corpus(tmp_path), tmp_path / 'out'
  from fairjax.data import prepare as module
  texts, seen = module.Corpus.texts, []

  def read(self, split, counts=None):
    seen.append((split, counts is not None))
    if split == 'valid' and not (tmp_path / 'again').exists():
      raise KeyboardInterrupt
    return texts(self, split, counts)

  monkeypatch.setattr(module.Corpus, 'texts', read)
  with pytest.raises(KeyboardInterrupt):
    prepare(data, directory)
  (tmp_path / 'again').touch()
  seen.clear()
  prepare(data, directory)
  assert [split for split, encoding in seen if encoding] == ['valid', 'test']
  prepare(data, tmp_path / 'whole')
  assert stores(directory) == stores(tmp_path / 'whole')


def test_two_processes_do_not_share_a_folder(tmp_path, monkeypatch):
  from fairjax.data import prepare as module
  data, texts, errors = corpus(tmp_path), module.Corpus.texts, []

  def read(self, split, counts=None):
    if not errors:
      errors.append(None)
      with pytest.raises(UserError, match='out is in use by another run') as error:
        prepare(data, tmp_path / 'out')
      errors[0] = error
    return texts(self, split, counts)

  monkeypatch.setattr(module.Corpus, 'texts', read)
  prepare(data, tmp_path / 'out')
  assert errors[0] is not None


@pytest.mark.tf
@pytest.mark.parametrize('kind', ['sentencepiece', 'word'])
def test_through_the_seqio_task_the_stores_are_the_same(tmp_path, kind, small_chunks):
  data = corpus(tmp_path, vocabulary=kind)
  prepare(data, tmp_path / 'numpy')
  prepare(dataclasses.replace(data, reader='seqio'), tmp_path / 'seqio')
  one, other = stores(tmp_path / 'numpy'), stores(tmp_path / 'seqio')
  assert one == other


@pytest.mark.tf
def test_an_interrupted_seqio_task_goes_on_at_the_next_chunk(pieces, small_chunks, tmp_path):
  from fairjax.data.seqio_tasks import tokenize_chunks
  tokenize = functools.partial(tokenize_chunks, pieces)
  run(pieces, tmp_path / 'whole')

  def broken():
    yield from TEXTS[:200]
    raise UserError('line 7 is broken')

  with pytest.raises(UserError, match='line 7'):
    run(pieces, tmp_path / 'cut', broken(), tokenize=tokenize)
  kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / 'cut').glob('*.npz')}
  assert kept
  _, lines = run(pieces, tmp_path / 'cut', tokenize=tokenize)
  assert contents(tmp_path / 'cut') == contents(tmp_path / 'whole')
  assert any('encoded earlier' in line for line in lines)
  assert kept.items() <= {p.name: p.stat().st_mtime_ns
                          for p in (tmp_path / 'cut').glob('*.npz')}.items()


@pytest.mark.tf
@pytest.mark.parametrize('kind', ['sentencepiece', 'wikitext', 'text'])
def test_tensorflow_encodes_in_its_graph(tmp_path, kind):
  """But for natural text by words: its rules look back, which TensorFlow's expressions cannot."""
  import tensorflow as tf

  from fairjax.data.seqio_tasks import SeqioVocabulary

  rng = random.Random(0)
  # Words that can be cut in many ways; the rest is what libraries treat differently.
  words = [''.join(rng.choices('ab0', k=rng.randint(1, 12))) for _ in range(3000)]
  texts = [' '.join(rng.choices(words, k=rng.randint(1, 2000))) for _ in range(40)]
  train = train_sentencepiece if kind == 'sentencepiece' else functools.partial(
    build_word_vocabulary, documents=kind)
  own = train(texts, size=400, directory=tmp_path)
  texts += ['\na  b\n\n= a =\n', '\n', 'a (b), "ab"\nba-ab 1,000.']
  texts += ['', ' ', '  a  b ', 'x\x00y', '\u2003ab\x1caa\x85b\u3000', '日本 £500,000 \u2581']
  encode = tf.function(copy.deepcopy(SeqioVocabulary(own)).encode_tf)  # as Beam takes tasks along
  graph = encode.get_concrete_function(tf.TensorSpec([None], tf.string)).graph
  operations = {operation.type for operation in graph.get_operations()}
  assert ('SentencepieceTokenizeOp' in operations) == (kind == 'sentencepiece')
  assert any('PyFunc' in name for name in operations) == (kind == 'text')
  expected = own.encode_batch(texts)
  assert encode(tf.constant(texts)).to_list() == expected
  assert encode(tf.constant(texts[0])).numpy().tolist() == expected[0]


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize(('name', 'layout'), [
  ('wikitext2/wiki.train.tokens.gz', 'wikitext'), ('wikipedia/wiki.train.txt.gz', 'lines')])
def test_ten_megabytes_of_real_text_have_the_same_ids(tmp_path, test_data, name, layout):
  import tensorflow as tf

  from fairjax.data.seqio_tasks import SeqioVocabulary

  texts = list(read_documents([str(test_data / name)], layout=layout))
  ends = np.cumsum([len(text.encode()) for text in texts])
  texts = texts[:np.searchsorted(ends, 10_000_000) + 1]
  assert sum(len(text.encode()) for text in texts) >= 10_000_000
  own = train_sentencepiece(texts[::9], size=8000, directory=tmp_path)
  other, tokens = SeqioVocabulary(own), 0
  for i in range(0, len(texts), 64):
    ids = other.encode_tf(tf.constant(texts[i:i + 64])).to_list()
    assert ids == own.encode_batch(texts[i:i + 64])
    tokens += sum(map(len, ids))
  assert tokens > 2_000_000


def test_sampled_lines_are_uniform_seeded_and_counted():
  texts = [f'a{i}\n\nb{i}\nc{i}' for i in range(40)]
  kept, counts = sample_lines(iter(texts), 30, seed=3)
  lines = [line for t in texts for line in t.splitlines(keepends=True) if line.strip()]
  places = [lines.index(line) for line in kept]
  assert places == sorted(set(places)) and len(places) == 30
  assert counts == {'texts': 40, 'characters': sum(map(len, texts)), 'lines': 120,
                    'lines_used': 30, 'characters_used': sum(map(len, kept))}
  assert sample_lines(iter(texts), 30, seed=3)[0] == kept != sample_lines(texts, 30, seed=4)[0]
  assert sample_lines(texts, 500, seed=3)[0] == lines
  with pytest.raises(UserError, match='no text'):
    sample_lines([' \n'], 5, seed=0)
  # Each line is drawn with probability 1/4: 5 standard deviations of 2,000 draws are 97.
  drawn = collections.Counter(
    line for seed in range(2000) for line in sample_lines(lines, 30, seed=seed)[0])
  assert all(abs(drawn[line] - 500) < 97 for line in lines)


def test_the_vocabulary_is_trained_on_a_sample(tmp_path):
  lines = []
  prepared = prepare(corpus(tmp_path, vocab_sentences=120), tmp_path / 'out', lines)
  info = prepared.vocabulary.info
  assert (info['lines'], info['lines_used'], info['texts']) == (400, 120, 400)
  assert 0 < info['characters_used'] < info['characters'] / 2
  assert any(f'({info["characters_used"]:,} of their {info["characters"]:,} characters)' in line
             for line in lines)
  with pytest.raises(UserError, match=r'vocabulary.sentences: 120 -> \(missing\)'):
    prepare(corpus(tmp_path), tmp_path / 'out')
