"""Rows and masks of masked language models: nothing lost, right shares, a function of the row."""

import collections
import itertools

import numpy as np
import pytest
from masked_cases import rows_by_hand, rows_of

from fairjax.pretrained import masked_rows as rows_module
from fairjax.pretrained.masked_rows import MaskedRows, Masking, special_tokens, tells_words_apart
from fairjax.pretrained.start import new_tokenizer

TEXTS = ['The woman reads a book.', 'It rains in the garden!', 'He said that she was tired, too.',
         'A very unbelievably long word stands here.', 'ok']


@pytest.fixture(scope='module')
def tokenizer():
  return new_tokenizer(TEXTS * 3, vocab_size=90, max_length=16)[0]


@pytest.fixture(scope='module')
def special(tokenizer):
  return special_tokens(tokenizer, pad_id=0, where='here', vocab_size=0)


@pytest.fixture(scope='module')
def unigram():
  """ALBERT's kind of tokenizer: a word is what stands between white space."""
  import tokenizers
  letters = {c: -9.0 for c in '▁thewomanrdsbk.,'}
  model = tokenizers.models.Unigram(
    [('<unk>', -20.0), *letters.items(), ('▁the', -1.0), ('▁wo', -1.0), ('man', -1.0)], unk_id=0)
  found = tokenizers.Tokenizer(model)
  found.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
  return found


def all_ids(rows):
  return np.concatenate([rows.row(r)[0] for r in range(len(rows))])


def pieces(tokenizer, text):
  return tokenizer.encode(text, add_special_tokens=False).ids


def test_packed_rows_hold_whole_sentences_and_mark_the_borders_of_documents(tokenizer, special):
  a, b, c = (pieces(tokenizer, t) for t in TEXTS[:3])
  room = len(a) + len(b) + 1 + len(c)
  (one,) = (rows_of([TEXTS[:2], TEXTS[2:3]], tokenizer, special, form='packed',
                    max_length=room + 2),)
  assert all_ids(one).tolist() == [special.begin, *a, *b, special.end, *c, special.end]
  two = rows_of([TEXTS[:2], TEXTS[2:3]], tokenizer, special, form='packed', max_length=room + 1)
  assert [two.row(i)[0].tolist() for i in range(2)] == [
    [special.begin, *a, *b, special.end], [special.begin, *c, special.end]]


def test_some_tokenizers_take_a_text_as_one_word(tokenizer, unigram):
  import tokenizers
  assert tells_words_apart(tokenizer) and tells_words_apart(unigram)
  assert not tells_words_apart(tokenizers.Tokenizer(tokenizers.models.Unigram(
    [('<unk>', -20.0), ('a', -1.0), ('b', -1.0), (' ', -1.0)], unk_id=0)))


def random_documents(rng, number):
  """Of no, few and many sentences; some without a piece, some longer than rows, strange ones."""
  words = ['the', 'woman', 'garden', 'unbelievably', 'tired', 'rains', '.', 'be', '漢', 'be漢',
           '[CLS]', '[SEP]', '[MASK]', '##s', 'beeeeeeeeeeeeeeeee', 'x' * 120]
  for _ in range(number):
    yield [' '.join(rng.choice(words, size=rng.integers(1, 30 if rng.random() < 0.1 else 6)))
           if rng.random() < 0.9 else '\u200b' for _ in range(rng.integers(0, 5))]


@pytest.mark.parametrize('seed', range(12))
@pytest.mark.parametrize('kind', ['tokenizer', 'unigram'])
def test_the_layout_is_that_of_plain_lists(request, special, monkeypatch, kind, seed):
  """Against another program: ids, words, counts, for any borders of blocks."""
  rng, tokenizer = np.random.default_rng(seed), request.getfixturevalue(kind)
  special = special._replace(unknown=tokenizer.encode('漢').ids[-2 if kind == 'tokenizer' else -1])
  documents = list(random_documents(rng, int(rng.integers(1, 40)))) + [['the woman']]
  options = {'form': ('sentence', 'packed')[seed % 2], 'max_length': int(rng.integers(8, 40)),
             'apart': int(rng.integers(0, len(documents))) if seed % 4 else None}
  monkeypatch.setattr(rows_module, '_BLOCK', int(rng.integers(1, 300)))
  found = rows_of(documents, tokenizer, special, **options)
  wanted, counts = rows_by_hand(documents, tokenizer, special, **options)
  assert [tuple(x.tolist() for x in found.row(r)) for r in range(len(found))] == wanted
  assert found.counts == counts
  assert found.size == sum(len(ids) for ids, _ in wanted)
  assert found.longest == max(len(ids) for ids, _ in wanted)
  ids, starts = found.row(0)
  assert ids.dtype == np.int32 and starts.dtype == bool


def test_the_digest_tells_text_and_rows_apart(tokenizer, special):
  def digest(documents=(TEXTS[:2], TEXTS[2:]), **changes):
    return rows_of(list(documents), tokenizer, special, **{'form': 'packed', **changes}).digest

  assert digest() == digest()
  assert len({digest(), digest(digest='x'), digest(max_length=64), digest(form='sentence')}) == 4


def many(tokenizer, special, number=4000, **changes):
  """Rows of random known pieces, and masks over them."""
  rng = np.random.default_rng(0)
  words = ['the', 'woman', 'garden', 'unbelievably', 'tired', 'rains', '.']
  texts = [[' '.join(rng.choice(words, size=rng.integers(3, 9)))] for _ in range(number)]
  rows = rows_of(texts, tokenizer, special, max_length=64)
  options = {'share': 0.15, 'whole_words': False, 'seed': 5} | changes
  vocab = tokenizer.get_vocab_size()
  return rows, MaskedRows(rows, Masking(**options), vocab_size=vocab, length=64)


@pytest.mark.parametrize('whole_words', [False, True])
def test_shares_of_masks(tokenizer, special, whole_words):
  """15 % of the pieces; 80, 10, 10 % of these; within five standard deviations."""
  rows, masked = many(tokenizer, special, whole_words=whole_words)
  chosen, as_mask, kept, total = 0, 0, 0, 0
  drawn = collections.Counter()
  for row in range(len(rows)):
    ids, places, found = masked.masked(row, 0)
    original, starts = rows.row(row)
    assert (original[places] == found).all() and len(set(places.tolist())) == len(places)
    assert (np.delete(ids, places) == np.delete(original, places)).all()
    assert not set(found.tolist()) & special.all
    new = ids[places]
    chosen, total = chosen + len(places), total + len(original) - 2
    as_mask += (new == special.mask).sum()
    kept += (new == found).sum()
    drawn.update(new[(new != special.mask) & (new != found)].tolist())
    if whole_words:
      words = np.cumsum(starts)
      picked = set(words[places].tolist())
      assert set(np.flatnonzero(np.isin(words, list(picked)))) == set(places.tolist())
  share = 0.15 if not whole_words else chosen / total  # long words may be passed over
  assert abs(chosen / total - share) < 5 * np.sqrt(0.15 * 0.85 / total)
  assert not whole_words or 0.1 < share <= 0.155
  own = 1 / (tokenizer.get_vocab_size() - 5)  # a random piece may be the one that stood there
  for count, p in ((as_mask, 0.8), (kept, 0.1 + 0.1 * own)):
    assert abs(count / chosen - p) < 5 * np.sqrt(p * (1 - p) / chosen)
  assert not set(drawn) & special.all
  assert len(drawn) > 0.9 * (tokenizer.get_vocab_size() - 5)


def test_masks_are_a_function_of_seed_epoch_and_row(tokenizer, special):
  rows, masked = many(tokenizer, special, number=40)
  _, again = many(tokenizer, special, number=40)
  _, other = many(tokenizer, special, number=40, seed=6)

  def all_of(one, epoch):
    return [[x.tolist() for x in one.masked(r, epoch)] for r in range(len(rows))]

  # In any order, and whatever was asked for before.
  backwards = [[x.tolist() for x in again.masked(r, 1)] for r in reversed(range(len(rows)))][::-1]
  assert all_of(masked, 1) == backwards
  for different in (all_of(masked, 2), all_of(masked, None), all_of(other, 1)):
    assert different != backwards


def test_batches_hold_each_row_once_a_pass_and_go_on_from_any_step(tokenizer, special):
  rows, masked = many(tokenizer, special, number=37)
  batches = list(itertools.islice(masked.training(0, 8), 14))
  for start in (3, 9):
    later = list(itertools.islice(masked.training(start, 8), 2))
    for one, two in zip(batches[start:], later, strict=False):
      for name in one:
        np.testing.assert_array_equal(one[name], two[name])

  def originals(batch):
    ids = batch['ids'].copy()
    for r, (places, targets, weights) in enumerate(
        zip(batch['places'], batch['targets'], batch['weights'], strict=True)):
      real = weights > 0
      ids[r, places[real]] = targets[real]
      yield tuple(ids[r, batch['mask'][r]].tolist())

  read = [row for batch in batches for row in originals(batch)]
  every = collections.Counter(tuple(rows.row(r)[0].tolist()) for r in range(37))
  for epoch in range(3):
    assert collections.Counter(read[37 * epoch:37 * (epoch + 1)]) == every
  assert read[:37] != read[37:74]  # another order
  # The masks of a row do not depend on the size of the batch it comes in.
  wide = next(iter(masked.training(0, 32)))
  np.testing.assert_array_equal(wide['ids'], np.concatenate([b['ids'] for b in batches[:4]]))


def test_validation_reads_every_row_once_with_the_same_masks(tokenizer, special):
  rows, masked = many(tokenizer, special, number=21)
  batches = list(masked.validation(8))
  assert [int(b['mask'].any(1).sum()) for b in batches] == [8, 8, 5]
  assert all(len(b['ids']) == 8 and not b['weights'][~b['mask'].any(1)].any() for b in batches)
  again = list(masked.validation(8))
  for one, two in zip(batches, again, strict=True):
    np.testing.assert_array_equal(one['ids'], two['ids'])
