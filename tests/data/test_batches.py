"""Training batches with branches, and the same batches through seqio."""

import collections
import dataclasses
import itertools
import shutil
import types

import numpy as np
import pytest

from fairjax.counterfactual import BranchBuilder, TokenMatcher, load_attribute
from fairjax.data.batches import eval_batches, train_batches
from fairjax.data.planted import make_planted_documents
from fairjax.data.token_store import (
  encode_documents,
  token_rows,
  write_sensitive_store,
  write_token_store,
)
from fairjax.errors import UserError
from fairjax.vocabulary import train_sentencepiece

B, T, K, P = 8, 16, 2, 4
BRANCHES = {'num_branches': K, 'num_pieces': P}


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
  """Stores of a small planted corpus, without seqio."""
  folder, attribute = tmp_path_factory.mktemp('data'), load_attribute('occupation')
  texts = make_planted_documents(
    attribute, num_documents=400, seed=0, strength=0.8, sensitive_share=0.6)
  # A small vocabulary, so that values have several pieces.
  vocabulary = train_sentencepiece(texts, size=480, directory=folder / 'vocabulary')
  chunks = encode_documents(texts, folder / 'chunks', vocabulary=vocabulary)
  store = write_token_store(folder / 'train', chunks, order_seed=0, vocabulary=vocabulary,
                            matcher=TokenMatcher(attribute, vocabulary))
  stores = {'train': store,
            'train_sensitive': write_sensitive_store(folder / 'train_sensitive', store)}
  return types.SimpleNamespace(
    attribute=attribute, vocabulary=vocabulary, store=stores.__getitem__)


def batches(prepared, number, split='train_sensitive', **kwargs):
  options = {'batch_size': B, 'segment_len': T, 'branches': BRANCHES} | kwargs
  return list(itertools.islice(train_batches(prepared, split, **options), number))


def assert_equal(actual, expected):
  assert len(actual) == len(expected)
  for a, b in zip(actual, expected, strict=True):
    assert a.keys() == b.keys()
    for name in a:
      assert a[name].dtype == b[name].dtype, name
      np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_branches_are_drawn_by_seed_and_step(prepared):
  whole, other = batches(prepared, 20), batches(prepared, 20, seed=1)
  assert_equal([{'inputs': b['inputs']} for b in other],
               [{'inputs': b['inputs']} for b in whole])
  # The second epoch reads the same text, but draws other values.
  steps = token_rows(prepared.store('train_sensitive'), batch_size=B, segment_len=T).steps_per_epoch
  again = batches(prepared, 20, start_step=steps)
  for found in (other, again):
    assert any((a['branch_tokens'] != b['branch_tokens']).any()
               for a, b in zip(whole, found, strict=True))


def test_branches_are_those_of_the_matches_in_the_row(prepared):
  matcher = TokenMatcher(prepared.attribute, prepared.vocabulary)
  builder = BranchBuilder(prepared.attribute, prepared.vocabulary, segment_len=T, num_branches=K,
                          num_pieces=P, seed=3)
  tokens = prepared.store('train').open_tokens()[:].astype(np.int64)
  steps = (len(tokens) - 1) // (B * T)
  everything, _ = matcher.find(tokens)
  for step, batch in enumerate(batches(prepared, 8, split='train', seed=3)):
    for row in range(B):
      start = row * steps * T + step * T
      np.testing.assert_array_equal(batch['inputs'][row], tokens[start:start + T])
      spans = [[a - start, b - start, v] for a, b, v in everything if a < start + T and b > start]
      expected = builder.build(
        tokens[start:start + T], np.array(spans).reshape(-1, 3), step=step, row=row)
      assert_equal([{n: batch[n][row] for n in expected}], [expected])


def read_documents(prepared, split='train_sensitive'):
  """Documents of a store as lists of (token, place in the store), their ends left out."""
  tokens, eos = prepared.store(split).open_tokens()[:].tolist(), prepared.vocabulary.eos_id
  documents = [[]]
  for place, token in enumerate(tokens):
    if token == eos:
      documents.append([])
    else:
      documents[-1].append((token, place))
  return documents[:-1], eos


def lay_out(parts, eos, start_ids):
  """A row of (document, first token, tokens, predicts the first) as lists, a place at a time."""
  row = {name: [] for name in ('inputs', 'targets', 'segment_ids', 'positions', 'weights')}
  stored = []  # place in the store of each input, None of start ids
  for number, (document, first, size, opens) in enumerate(parts):
    text = [*((i, None) for i in start_ids), *document[first:first + size]]
    after = [*text, *document[first + size:], (eos, 'end')]
    for i, (token, place) in enumerate(text):
      target, where = after[i + 1]
      row['inputs'].append(token)
      row['targets'].append(target)
      row['segment_ids'].append(number)
      row['positions'].append(i)
      known = where is None or (i == len(start_ids) - 1 and not opens)
      row['weights'].append(0 if known else 1)
      stored.append(place)
  padding = T - len(stored)
  for name in row:
    row[name] += [-1 if name == 'segment_ids' else 0] * padding
  return row, stored + [None] * padding


def slow_rows(documents, eos, start_ids):
  """The training rows of an epoch: the stream is cut after every T - s places."""
  places = [(d, i) for d, text in enumerate(documents)
            for i in range(-len(start_ids), len(text))]
  width, rows = T - len(start_ids), []
  for begin in range(0, len(places), width):
    parts = []
    for d, group in itertools.groupby(places[begin:begin + width], lambda place: place[0]):
      taken = [i for _, i in group]
      opens = taken[0] < 0  # of start ids that are cut, all come again
      if taken[-1] >= -1:  # else not even the last start id is there, which predicts
        parts.append((documents[d], max(taken[0], 0), taken[-1] + 1 - max(taken[0], 0), opens))
    rows.append(lay_out(parts, eos, start_ids))
  return rows


STARTS = [(), (2,), (2, 7, 5)]


@pytest.mark.parametrize('start_ids', STARTS)
def test_rows_of_a_decoder_are_those_of_a_slow_construction(prepared, start_ids):
  documents, eos = read_documents(prepared)
  expected = slow_rows(documents, eos, start_ids)
  steps = -(-len(expected) // B)
  expected += [lay_out([], eos, start_ids)] * (steps * B - len(expected))
  spans = prepared.store('train_sensitive').open_spans().tolist()
  builder = BranchBuilder(prepared.attribute, prepared.vocabulary, segment_len=T, num_branches=K,
                          num_pieces=P, seed=3)
  seen, cut = [], 0
  found = batches(prepared, steps, start_ids=start_ids, seed=3)
  for step, batch in enumerate(found):
    assert batch['reset'].all()
    for row in range(B):
      wanted, stored = expected[row * steps + step]
      assert {name: batch[name][row].tolist() for name in wanted} == wanted
      seen += [i for i, w in zip(stored, wanted['weights'], strict=True) if w and i is not None]
      touched = []
      for a, b, value in spans:
        at = [stored.index(i) for i in range(a, b) if i in stored]
        if at:
          whole = len(at) == b - a
          touched.append([at[0], at[-1] + 1, value] if whole else [-1, T + 1, value])
          cut += not whole
      branches = builder.build(np.array(wanted['inputs']), np.array(touched).reshape(-1, 3),
                               step=step, row=row)
      assert_equal([{n: batch[n][row] for n in branches}], [branches])
  # Every token was read by what predicts the next one; start ids predict the first one.
  assert sorted(seen) == [place for text in documents for _, place in text]
  predicted = sum(int(b['weights'].sum()) for b in found)
  assert predicted == sum(len(text) + bool(start_ids) for text in documents) and cut > 5


@pytest.mark.parametrize('start_ids', [None, *STARTS])
def test_long_branches_go_on_to_the_end_of_the_row_or_the_document(prepared, start_ids):
  tail, lengths = 3, collections.Counter()
  short = batches(prepared, 40, start_ids=start_ids)
  long = batches(prepared, 40, start_ids=start_ids, branches=BRANCHES | {'tail': tail})
  same = ('inputs', 'branch_start', 'original_end', 'branch_weight', 'branch_counts')
  assert_equal([{n: b[n] for n in same} for b in long], [{n: b[n] for n in same} for b in short])
  for a, b in zip(short, long, strict=True):
    for row, k in np.ndindex(B, K):
      after, place = [], b['original_end'][row, k] + 1
      while b['branch_weight'][row, k] and place < T and len(after) < tail:
        if start_ids is None and b['inputs'][row, place] == prepared.vocabulary.eos_id:
          break
        if start_ids is not None and (
            b['segment_ids'][row, place] != b['segment_ids'][row, place - 1]):
          break
        after.append(int(b['inputs'][row, place]))
        place += 1
      pieces = a['branch_tokens'][row, k, :a['branch_len'][row, k]].tolist() + after
      assert b['branch_len'][row, k] == len(pieces)
      assert b['branch_tokens'][row, k].tolist() == pieces + [0] * (P + tail - len(pieces))
      assert b['branch_tail'][row, k].tolist() == [i < len(after) for i in range(tail)]
      lengths[len(after)] += bool(b['branch_weight'][row, k])
  assert min(lengths[n] for n in range(tail + 1)) > 5, lengths


@pytest.mark.parametrize('start_ids', [None, *STARTS])
def test_batches_are_a_function_of_the_step_on_any_host(prepared, start_ids):
  options = {'start_ids': start_ids, 'start_step': 5}
  steps = token_rows(prepared.store('train_sensitive'), batch_size=B, segment_len=T,
                     start_ids=start_ids).steps_per_epoch
  whole = batches(prepared, 12, **options)
  assert_equal(whole[4:], batches(prepared, 8, start_ids=start_ids, start_step=9))
  later = batches(prepared, 12, start_ids=start_ids, start_step=5 + steps)
  for a, b in zip(whole, later, strict=True):
    np.testing.assert_array_equal(a['inputs'], b['inputs'])
  parts = [batches(prepared, 12, shard=(i, 4), **options) for i in range(4)]
  assert_equal([{n: np.concatenate([p[n] for p in rows]) for n in rows[0]}
                for rows in zip(*parts, strict=True)], whole)


@pytest.mark.parametrize('start_ids', STARTS)
@pytest.mark.parametrize('size', [1, 8])
def test_evaluation_of_a_decoder_keeps_documents_whole(prepared, start_ids, size):
  documents, eos = read_documents(prepared)
  width, rows, used = T - len(start_ids), [[]], 0
  for text in documents:
    for first in range(0, len(text), width):
      part = text[first:first + width]
      if used + len(start_ids) + len(part) > T:
        rows.append([])
        used = 0
      rows[-1].append((text, first, len(part), first == 0))
      used += len(start_ids) + len(part)
  rows += [[]] * (-len(rows) % size)
  found = list(eval_batches(prepared.store('train_sensitive'), batch_size=size, segment_len=T,
                            start_ids=start_ids))
  assert len(found) * size == len(rows)
  for i, parts in enumerate(rows):
    wanted, _ = lay_out(parts, eos, start_ids)
    assert {name: found[i // size][name][i % size].tolist() for name in wanted} == wanted
  predicted = sum(int(b['weights'].sum()) for b in found)
  assert predicted == sum(len(text) + bool(start_ids) for text in documents)


def test_evaluation_reads_the_store(prepared):
  store = prepared.store('train')
  seen = [b['targets'][b['weights'] > 0] for b in eval_batches(store, batch_size=1, segment_len=50)]
  np.testing.assert_array_equal(np.concatenate(seen), store.open_tokens()[:])


@pytest.mark.tf
def test_seqio_names_damaged_tokens_too(prepared, tmp_path):
  store = dataclasses.replace(prepared.store('train'), path=tmp_path)
  shutil.copytree(prepared.store('train').path, tmp_path, dirs_exist_ok=True)
  content = bytearray((tmp_path / 'tokens.bin').read_bytes())
  content[0] ^= 1
  (tmp_path / 'tokens.bin').write_bytes(content)
  damaged = types.SimpleNamespace(store=lambda split: store)
  for reader in ('numpy', 'seqio'):
    with pytest.raises(UserError, match=r'tokens\.bin is damaged between bytes 0 and'):
      batches(damaged, 1, branches=None, reader=reader)


def test_bad_arguments_are_refused(prepared):
  with pytest.raises(UserError, match=r"split 'train' holds \d+ tokens, too few"):
    batches(prepared, 1, split='train', segment_len=100000)
  with pytest.raises(UserError, match='model.segment_len=2 leaves no place for a token'):
    batches(prepared, 1, segment_len=2, start_ids=(2, 7))


@pytest.mark.tf
@pytest.mark.parametrize('branches', [None, BRANCHES | {'tail': 2}])
@pytest.mark.parametrize('shard', [(0, 1), (1, 2)])
@pytest.mark.parametrize('start_ids', [None, (2,)])
def test_seqio_gives_the_same_batches(prepared, branches, shard, start_ids):
  options = {'branches': branches, 'shard': shard, 'start_step': 43, 'seed': 2,
             'start_ids': start_ids}
  assert_equal(batches(prepared, 12, reader='seqio', **options), batches(prepared, 12, **options))
