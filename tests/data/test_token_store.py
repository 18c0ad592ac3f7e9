"""Token stores and rows against slow readings of the same documents."""

import collections
import copy
import dataclasses
import functools
import hashlib
import json
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
from split_files import line_data, prepare
from tiny_runs import contents

from fairjax.counterfactual import TokenMatcher, load_attribute
from fairjax.data import token_store
from fairjax.data.batches import _eval_batches, eval_batches
from fairjax.data.documents import read_documents, sample_lines
from fairjax.data.token_store import (
  TokenRows,
  encode_documents,
  open_token_store,
  write_sensitive_store,
  write_token_store,
)
from fairjax.errors import UserError
from fairjax.files import read_sealed_json, write_sealed_json
from fairjax.vocabulary import build_word_vocabulary, train_sentencepiece

COUNTRY = load_attribute('country')
FILLER = ['the', 'people', 'of', 'went', 'to', 'a', 'town', 'Italyan', '.', 'naïve', '日本']


def make_texts(number, seed=0):
  """Documents of random words, two in three with countries."""
  rng, texts = np.random.default_rng(seed), []
  for i in range(number):
    words = rng.choice(FILLER, size=rng.integers(1, 30)).tolist()
    if i % 3:
      for _ in range(rng.integers(1, 4)):
        words.insert(rng.integers(len(words) + 1), str(rng.choice(COUNTRY.value_texts)))
    texts.append(' '.join(words))
  return texts


TEXTS = make_texts(300)


@pytest.fixture(scope='module')
def matcher(tmp_path_factory):
  return TokenMatcher(COUNTRY, build_word_vocabulary(
    [*TEXTS, ' '.join(COUNTRY.value_texts)], size=100,
    directory=tmp_path_factory.mktemp('vocabulary')))


def write(path, matcher, texts=TEXTS, **options):
  chunks = encode_documents(texts, path.parent / 'chunks', vocabulary=matcher.vocabulary,
                            log=lambda line: None)
  return write_token_store(path, chunks, vocabulary=matcher.vocabulary, matcher=matcher,
                           **options)


@pytest.fixture
def store(matcher, tmp_path):
  return write(tmp_path / 'train', matcher, order_seed=5)


def documents_of(store):
  """Ids of each document, from the file alone."""
  tokens = np.fromfile(store.path / 'tokens.bin', store.dtype).tolist()
  assert tokens[-1] == 1
  documents, current = [], []
  for token in tokens:
    if token == 1:
      documents.append(current)
      current = []
    else:
      current.append(token)
  return documents


@pytest.mark.parametrize('seed', [None, 0, 1])
def test_store_holds_every_document_once(matcher, tmp_path, seed):
  texts, vocabulary = TEXTS, matcher.vocabulary
  store = write(tmp_path / 's', matcher, order_seed=seed)
  table, found = store.open_documents(), documents_of(store)
  assert sorted(table[:, 3]) == list(range(len(texts)))
  assert (table[:, 3].tolist() == list(range(len(texts)))) == (seed is None)
  assert len(set(table[:, 4])) == len({tuple(d) for d in found}) == store.documents - store.repeated
  for ids, (_, words, num_bytes, number, _) in zip(found, table, strict=True):
    assert ids == vocabulary.encode(texts[number])
    assert (words, num_bytes) == (len(texts[number].split()), len(texts[number].encode()))
  assert table[:, 0].tolist() == np.cumsum([len(d) + 1 for d in found]).tolist()
  assert store.words == sum(len(t.split()) for t in texts)
  assert (store.tokens, store.documents) == (table[-1, 0], len(texts))
  assert store.dtype == 'uint16' and store.order_seed == seed
  assert open_token_store(store.path) == store
  store.verify()


def test_spans_are_those_of_each_document(matcher, store, monkeypatch, tmp_path):
  expected, start = [], 0
  for ids in documents_of(store):
    spans, _ = matcher.find(ids)
    expected += [[start + a, start + b, v] for a, b, v in spans.tolist()]
    start += len(ids) + 1
  assert store.open_spans().tolist() == expected
  assert store.matches == len(expected) > 300
  assert store.value_counts == tuple(np.bincount([v for *_, v in expected], minlength=10))
  # In small blocks of documents, too.
  monkeypatch.setattr(token_store, '_MATCH_BLOCK', 17)
  again = write(tmp_path / 'again', matcher, order_seed=5)
  assert again.open_spans().tolist() == expected


def test_sensitive_store_holds_the_documents_with_a_match(matcher, store, tmp_path):
  sensitive = write_sensitive_store(tmp_path / 'train_sensitive', store)
  wanted = [d for d in documents_of(store) if len(matcher.find(d)[0])]
  assert documents_of(sensitive) == wanted and len(wanted) == 200
  spans, _ = matcher.find(sensitive.open_tokens()[:])
  assert sensitive.open_spans().tolist() == spans.tolist()
  assert sensitive.matches == store.matches and sensitive.words < store.words
  assert open_token_store(sensitive.path).split == 'train_sensitive'


def test_a_store_without_matches_is_empty(matcher, tmp_path):
  store = write(tmp_path / 'valid', matcher, ['a town'])
  empty = write_sensitive_store(tmp_path / 'valid_sensitive', store)
  assert (empty.tokens, empty.documents, empty.words) == (0, 0, 0)
  assert open_token_store(empty.path) == empty and len(empty.open_tokens()) == 0
  with pytest.raises(UserError, match="'valid_sensitive' holds no document"):
    eval_batches(empty, batch_size=2, segment_len=4)
  with pytest.raises(UserError, match='holds 0 tokens'):
    token_store.token_rows(empty, batch_size=1, segment_len=1)


def test_foreign_stores_are_refused(store):
  for kind in ('vocabulary', 'attribute'):
    with pytest.raises(UserError, match=f'another {kind}'):
      open_token_store(store.path, **{kind: '0' * 64})
  path = store.path / 'manifest.json'
  write_sealed_json(path, read_sealed_json(path, again='') | {'format': 99})
  with pytest.raises(UserError, match='has format 99, and this fairjax reads 2: '):
    open_token_store(store.path)


def use(path):
  """Everything that is read of a store."""
  store = open_token_store(path)
  return store.open_tokens()[:], store.open_spans(), store.open_documents()


@pytest.mark.parametrize('name', ['tokens.bin', 'tokens.sha256', 'documents.npy', 'spans.npy',
                                  'manifest.json'])
def test_every_damage_of_every_file_is_found(store, name):
  path = store.path / name
  content = path.read_bytes()
  rng = np.random.default_rng(0)
  flips = []
  for place in rng.integers(len(content), size=12).tolist():
    flips.append(bytearray(content))
    flips[-1][place] ^= 1 << int(rng.integers(8))
  for damaged in (*flips, b'', content[:len(content) // 2], content + b'x', None):
    if damaged is None:
      path.unlink()
    else:
      path.write_bytes(damaged)
    with pytest.raises(UserError, match='run fairjax step data again'):
      use(store.path)
    with pytest.raises(UserError, match='run fairjax step data again'):
      open_token_store(store.path).verify()
    path.write_bytes(content)
  use(store.path)
  store.verify()


def test_tokens_are_verified_when_they_are_read(store, monkeypatch):
  monkeypatch.setattr(token_store, 'BLOCK_BYTES', 256)
  path = store.path / 'tokens.bin'
  content = bytearray(path.read_bytes())
  digests = token_store.block_digests(path)
  blocks = [content[i:i + 256] for i in range(0, len(content), 256)]
  assert digests == b''.join(hashlib.sha256(b).digest() for b in blocks)
  content[700] ^= 1
  path.write_bytes(content)
  tokens = token_store.VerifiedTokens(path, store.dtype, digests)
  expected = np.frombuffer(bytes(content), np.uint16)
  for part in (slice(0, 256), slice(384, None), 255, -1):
    np.testing.assert_array_equal(tokens[part], expected[part])
  for part in (slice(255, 257), slice(300, 301), slice(0, None)):
    with pytest.raises(UserError, match=r'tokens\.bin is damaged between bytes 512 and 768'):
      tokens[part]


@pytest.mark.parametrize('number, batch, segment', [(1000, 4, 8), (97, 3, 7), (33, 4, 8)])
def test_rows_are_contiguous_and_cover_the_stream_once(number, batch, segment):
  tokens = np.arange(number, dtype=np.uint16) + 10
  rows = TokenRows(tokens, np.zeros((0, 3), int), batch_size=batch, segment_len=segment)
  steps = rows.steps_per_epoch
  assert steps == (number - 1) // (batch * segment)
  batches = [rows.read(t) for t in range(2 * steps)]
  for t, b in enumerate(batches):
    assert b['inputs'].dtype == b['targets'].dtype == np.int32
    np.testing.assert_array_equal(b['inputs'][:, 1:], b['targets'][:, :-1])
    assert b['reset'].tolist() == [t % steps == 0] * batch
  for now, then in zip(batches[:steps - 1], batches[1:], strict=False):
    np.testing.assert_array_equal(now['targets'][:, -1], then['inputs'][:, 0])
  for t in range(steps):  # epochs repeat
    np.testing.assert_array_equal(batches[t]['inputs'], batches[t + steps]['inputs'])
  targets = np.concatenate([b['targets'] for b in batches[:steps]], 1).ravel()
  np.testing.assert_array_equal(targets, tokens[1:1 + len(targets)])
  assert rows.dropped_tokens == number - 1 - len(targets) < batch * segment
  assert rows.describe(steps) == f'epoch 1, segment 0 of {steps}'


def test_spans_of_a_row_are_those_that_touch_its_inputs():
  rng = np.random.default_rng(1)
  starts = np.sort(rng.choice(np.arange(0, 400, 3), size=70, replace=False))
  spans = np.stack([starts, starts + rng.integers(1, 4, 70), rng.integers(10, size=70)], 1)
  rows = TokenRows(np.arange(400), spans, batch_size=4, segment_len=7)
  cut = 0
  for step in range(2 * rows.steps_per_epoch):
    inputs = rows.read(step)['inputs']
    for row, found in enumerate(rows.spans(step)):
      first = int(inputs[row, 0])  # tokens are their positions
      expected = [[a - first, b - first, v] for a, b, v in spans.tolist()
                  if any(first <= p < first + 7 for p in range(a, b))]
      assert found.tolist() == expected and found.dtype == np.int32
      cut += sum(a < 0 or b > 7 for a, b, _ in expected)
  assert cut > 10


@pytest.mark.parametrize('number', [1, 5, 16, 17, 100])
@pytest.mark.parametrize('batch, segment', [(1, 4), (4, 4), (3, 5), (8, 16)])
def test_every_token_is_an_evaluation_target_once(number, batch, segment):
  tokens = np.arange(number) + 10
  seen, last = [], None
  for i, b in enumerate(_eval_batches(tokens, batch, segment, 1)):
    assert b['inputs'].shape == b['targets'].shape == b['weights'].shape == (batch, segment)
    assert b['reset'].tolist() == [i == 0] * batch
    assert set(np.unique(b['weights'])) <= {0.0, 1.0}
    used = b['weights'] > 0
    # The context is the token before; eos before the first.
    np.testing.assert_array_equal(
      b['inputs'][used], np.where(b['targets'][used] == 10, 1, b['targets'][used] - 1))
    if last is not None:  # rows go on where they ended
      both = used[:, 0]
      np.testing.assert_array_equal(b['inputs'][both, 0], last[both, -1])
    last = b['targets']
    seen += b['targets'][used].tolist()
  assert sorted(seen) == tokens.tolist()
  row_len = -(-number // batch)
  assert i + 1 == -(-row_len // segment)


@pytest.fixture
def small_chunks(monkeypatch):
  monkeypatch.setattr(token_store, 'CHUNK_BYTES', 2000)


def encode_texts(matcher, folder, texts=TEXTS, **kwargs):
  lines = []
  encoded = encode_documents(
    iter(texts), folder, vocabulary=matcher.vocabulary, log=lines.append, **kwargs)
  return encoded, lines


def test_chunks_hold_every_document(matcher, small_chunks, tmp_path):
  (encoded, _), vocabulary = encode_texts(matcher, tmp_path), matcher.vocabulary
  starts = [0, *encoded.documents[:-1, 0].tolist()]
  for text, start, row in zip(TEXTS, starts, encoded.documents.tolist(), strict=True):
    assert encoded[start:row[0]].tolist() == [*vocabulary.encode(text), vocabulary.eos_id]
    assert row[1:] == [len(text.split()), len(text.encode()), TEXTS.index(text, row[3])]
  assert len(list(tmp_path.glob('*.npz'))) > 5


def test_what_is_there_is_kept_and_what_is_damaged_made_anew(matcher, small_chunks, tmp_path):
  encode_texts(matcher, tmp_path)
  whole = contents(tmp_path)
  (tmp_path / '00001.npz').unlink()
  for name, damaged in (('00003.tokens', whole['00003.tokens'][:-2]),
                        ('00002.tokens', whole['00002.tokens'][:-2] + b'xx')):
    (tmp_path / name).write_bytes(damaged)
  times = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
  _, lines = encode_texts(matcher, tmp_path)
  assert contents(tmp_path) == whole
  changed = {p.name for p in tmp_path.iterdir() if p.stat().st_mtime_ns != times.get(p.name)}
  assert changed == {f'0000{i}.{kind}' for i in (1, 2, 3) for kind in ('tokens', 'npz')}
  assert any('encoded earlier' in line for line in lines)
  # Other documents: what does not fit is made anew.
  other = [*TEXTS[:150], 'one more', *TEXTS[150:]]
  encoded, _ = encode_texts(matcher, tmp_path, other)
  again, _ = encode_texts(matcher, tmp_path / 'fresh', other)
  assert np.array_equal(encoded.documents, again.documents)
  # Another vocabulary or size of chunks: everything is.
  manifest = tmp_path / 'chunks.json'
  manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {'vocabulary': 'x'}))
  _, lines = encode_texts(matcher, tmp_path)
  assert not any('earlier' in line for line in lines)


def test_a_full_disk_is_reported(matcher, small_chunks, tmp_path):
  (tmp_path / '00002.npz').mkdir()  # in the way of the chunk's name
  (tmp_path / 'chunks.json').write_text(json.dumps({
    'vocabulary': matcher.vocabulary.fingerprint, 'bytes': token_store.CHUNK_BYTES,
    'documents': token_store.CHUNK_DOCUMENTS}))
  with pytest.raises(UserError, match='chunk 2 cannot be written .*the same command continues'):
    encode_texts(matcher, tmp_path)


def text_files(tmp_path, **kwargs):
  return line_data(tmp_path, {
    split: make_texts(number, number)
    for split, number in (('train', 400), ('valid', 20), ('test', 21))}, vocab_size=330, **kwargs)


def stores(directory):
  """Every file of the prepared data; the chunks are gone."""
  assert not (directory / 'progress').exists()
  found = contents(directory)
  assert 'train/tokens.bin' in found
  return found


SCRIPT = '''
import sys
from fairjax.config import Config, DataConfig
from fairjax.counterfactual import load_attribute
from fairjax import progress
from fairjax.data import prepare, token_store
import json, time
token_store.CHUNK_BYTES = 2000
progress.INTERVAL_SEC = 0
slow = token_store.write_chunk
def write_chunk(*args):
  time.sleep(0.02)
  return slow(*args)
token_store.write_chunk = write_chunk
values = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(sys.argv[1]).items()}
prepare.prepare_data(Config(data=DataConfig(**values)), sys.argv[2],
                     attribute=load_attribute('country'), log=lambda s: print(s, flush=True))
'''


def test_killed_at_any_time_the_result_is_the_same(tmp_path, small_chunks):
  data = text_files(tmp_path)
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
  found, lines = prepare(data, directory)
  assert any('encoded earlier' in line for line in lines)
  assert stores(directory) == whole
  assert found.fingerprint == prepare(data, tmp_path / 'whole')[0].fingerprint


@pytest.mark.tf
@pytest.mark.parametrize('kind', ['sentencepiece', 'word'])
def test_through_the_seqio_task_the_stores_are_the_same(tmp_path, kind, small_chunks):
  data = text_files(tmp_path, vocabulary=kind)
  prepare(data, tmp_path / 'numpy')
  prepare(dataclasses.replace(data, reader='seqio'), tmp_path / 'seqio')
  one, other = stores(tmp_path / 'numpy'), stores(tmp_path / 'seqio')
  assert one == other


@pytest.mark.tf
def test_an_interrupted_seqio_task_goes_on_at_the_next_chunk(matcher, small_chunks, tmp_path):
  from fairjax.data.seqio_tasks import tokenize_chunks
  tokenize = functools.partial(tokenize_chunks, matcher.vocabulary)
  encode_texts(matcher, tmp_path / 'whole')

  def broken():
    yield from TEXTS[:200]
    raise UserError('line 7 is broken')

  with pytest.raises(UserError, match='line 7'):
    encode_texts(matcher, tmp_path / 'cut', broken(), tokenize=tokenize)
  kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / 'cut').glob('*.npz')}
  assert kept
  _, lines = encode_texts(matcher, tmp_path / 'cut', tokenize=tokenize)
  assert contents(tmp_path / 'cut') == contents(tmp_path / 'whole')
  assert any('encoded earlier' in line for line in lines)
  assert kept.items() <= {p.name: p.stat().st_mtime_ns
                          for p in (tmp_path / 'cut').glob('*.npz')}.items()


@pytest.mark.tf
@pytest.mark.parametrize('kind', ['sentencepiece', 'wikitext'])
def test_seqio_vocabularies_have_the_same_ids_in_tensorflows_graph_too(tmp_path, kind):
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
  texts += ['', ' ', '  a  b ', 'x\x00y', '\u2003ab\x1caa\x85b\u3000', '日本 £500,000 \u2581',
            'Überraschung: The «ça va» — emoji 🙂 and rare ꙮ', '<eos> <pad> word']
  encode = tf.function(copy.deepcopy(SeqioVocabulary(own)).encode_tf)  # as Beam takes tasks along
  graph = encode.get_concrete_function(tf.TensorSpec([None], tf.string)).graph
  operations = {operation.type for operation in graph.get_operations()}
  assert ('SentencepieceTokenizeOp' in operations) == (kind == 'sentencepiece')
  assert any('PyFunc' in name for name in operations) == (kind == 'wikitext')
  expected = own.encode_batch(texts)
  assert encode(tf.constant(texts)).to_list() == expected
  assert encode(tf.constant(texts[0])).numpy().tolist() == expected[0]
  other = SeqioVocabulary(own)
  assert (other.vocab_size, other.pad_id, other.eos_id, other.unk_id) == (own.size, 0, 1, 2)
  assert other == SeqioVocabulary(own)
  for text, ids in zip(texts[40:], expected[40:], strict=True):
    line = own.decode(ids[:[*ids, 1].index(1)])  # seqio ends a text at eos, which ends lines
    assert list(other.encode(text)) == ids and other.decode(ids) == line
    if ids:
      assert other.decode_tf(tf.constant(ids)).numpy().decode() == line
  rows = other.decode_tf(tf.constant([[5, 6, 1, 7], [5, 1, 0, 0]])).numpy().tolist()
  assert rows == [own.decode(ids).encode() for ids in ([5, 6], [5])]


@pytest.mark.tf
def test_ten_megabytes_of_real_text_have_the_same_ids_in_tensorflows_graph(tmp_path, test_data):
  import tensorflow as tf

  from fairjax.data.seqio_tasks import SeqioVocabulary

  texts = list(read_documents(
    [str(test_data / 'wikitext2' / 'wiki.train.tokens.gz')], layout='wikitext'))
  assert sum(len(text.encode()) for text in texts) >= 10_000_000
  own = train_sentencepiece(texts[::9], size=8000, directory=tmp_path)
  other = SeqioVocabulary(own)
  for i in range(0, len(texts), 64):
    assert other.encode_tf(tf.constant(texts[i:i + 64])).to_list() == own.encode_batch(
      texts[i:i + 64])


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
  prepared, lines = prepare(text_files(tmp_path, vocab_sentences=120), tmp_path / 'out')
  info = prepared.vocabulary.info
  assert (info['lines'], info['lines_used'], info['texts']) == (400, 120, 400)
  assert 0 < info['characters_used'] < info['characters'] / 2
  assert any(f'({info["characters_used"]:,} of their {info["characters"]:,} characters)' in line
             for line in lines)
  with pytest.raises(UserError, match=r'vocabulary.sentences: 120 -> \(missing\)'):
    prepare(text_files(tmp_path), tmp_path / 'out')
