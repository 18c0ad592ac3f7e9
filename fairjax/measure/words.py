"""Words that differ between the continuations of values (Huang et al. 2020, app. C.8, H-37).

`distinct_words` lists them, as Table 10. `word_divergence` says in one number how far the words of
different values are apart at all: a model that writes the same for every value is fair by any
measure of sentiment, and this number falls to its floor (H-35).

A word is text between white space: "Chelsea." and "Chelsea" differ, as in the paper's table.
Two ways of writing the same characters (`word_forms`) are one word, shown as it came first.

Letters: R records, A values, W different words.
"""

import collections
import dataclasses
from typing import Any

import numpy as np

from fairjax.counterfactual.word_forms import normal_form
from fairjax.measure.columns import Generations
from fairjax.measure.estimates import is_within, summarise
from fairjax.measure.nulls import compiled, stable_order

LARGEST_PAIRS = 5  # pairs of values that are named
TOP_WORDS = 10  # H-37
_LEAST_COUNT = 5  # of a word that is listed
_PURPOSE = 0x3D  # separates these random streams from others of the same seed
MOST_RECORDS = 25_000  # about so many are read: the floor reads them once for each permutation
_BLOCK = 1 << 22  # numbers of a block of pairs


@dataclasses.dataclass(frozen=True)
class WordCounts:
  """Words of the continuations."""

  generations: Generations  # R records
  words: list[str]  # [W] different words, in order
  row: np.ndarray  # [N] int, record of each of the N words that were written
  word: np.ndarray  # [N] int, into `words`
  left_out: int = 0  # records that were not read

  def by_value(self, value_index: np.ndarray | None = None) -> np.ndarray:
    """Counts `[A, W]`; `value_index` `[R]` replaces that of the records."""
    index = self.generations.value_index if value_index is None else value_index
    table = np.zeros((len(self.generations.attribute.values), len(self.words)), np.int64)
    _count(index, self.row, self.word, table)
    return table


@compiled
def _count(values, row, word, table):
  """Adds the words of all records to `[A, W]`, by the records' `values` `[R]`."""
  for k in range(row.size):
    table[values[row[k]], word[k]] += 1


def count_words(generations: Generations) -> WordCounts:
  """Splits continuations at white space."""
  # Of more than `MOST_RECORDS` the first samples of every prefix are read. How many depends on the
  # number of prefixes alone, so that it is the same for all models.
  prefixes = len(generations.templates) * len(generations.attribute.values)
  chosen = generations.first_samples(max(1, MOST_RECORDS // prefixes))
  index: dict[str, int] = collections.defaultdict(lambda: len(index))
  words: list[str] = []
  lengths = np.empty(len(chosen), np.int64)
  ids: list[int] = []
  known: dict[str, list[int]] = {}  # coupled samples are often equal
  for i, text in enumerate(chosen.continuations):
    if (own := known.get(text)) is None:
      own = known[text] = [*map(index.__getitem__, normal_form(text).split())]
      if len(index) > len(words):
        for word, number in zip(text.split(), own, strict=True):
          if number == len(words):
            words.append(word)
    lengths[i] = len(own)
    ids += own
  return WordCounts(chosen, words, np.repeat(np.arange(len(chosen)), lengths),
                    np.array(ids, np.int64), len(generations) - len(chosen))


def distinct_words(counts: WordCounts, value: str, other: str) -> list[dict[str, Any]]:
  """The words with the largest p(w | value) / p(w | other) above 1, the more frequent first."""
  # The paper divides plain shares, which is infinite for a word that `other` never has. Here every
  # word of either value is counted once more, and rare words are left out.
  index_of = counts.generations.attribute.value_index
  a, b = counts.by_value()[[index_of(value), index_of(other)]].astype(np.float64)
  known = np.count_nonzero(a + b > 0)
  p, q = ((x + 1) / (x.sum() + known) for x in (a, b))
  ratio = p / q
  chosen = np.flatnonzero((a >= _LEAST_COUNT) & (ratio > 1)).tolist()
  chosen.sort(key=lambda i: (-ratio[i], -a[i], counts.words[i]))
  return [{'word': counts.words[i], 'ratio': float(ratio[i]), 'count': int(a[i]),
           'count_other': int(b[i])} for i in chosen[:TOP_WORDS]]


def word_divergence(
  counts: WordCounts, *, permutations: int = 100, seed: int = 0, coupled: bool = True,
) -> dict[str, Any]:
  """How many bits of information on the value a word of a continuation holds, with its floor."""
  # The Jensen-Shannon divergence of the values' word distributions (Lin 1991) is the mutual
  # information of a word and a value that is drawn evenly. Values are permuted for the floor within
  # sample numbers where samples are coupled, within templates otherwise. All is None where the
  # continuations of some value hold no word.
  generations = counts.generations
  groups, within = _exchangeable(generations, coupled)
  result = {
    'value': None, 'n': len(generations), 'left_out': counts.left_out,
    'words': int(counts.word.size), 'different_words': len(counts.words), 'null_mean': None,
    'null_p95': None, 'p_value': None, 'corrected': None, 'within_floor': None, 'coupled': within,
    'permutations': permutations, 'unit': 'bits', 'largest_pairs': [],
    'definition': 'H-37, Jensen-Shannon divergence of the words of all values',
    'direction': 'lower is less to tell values apart by'}
  table = counts.by_value()
  if not table.sum(axis=1).all():
    return result
  value = joint_js(table)
  rng = np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE]))
  order = _canonical_order(generations, groups)
  null = np.empty(permutations)
  ordered_groups = groups[order].astype(np.min_scalar_type(groups.max()))  # fewer bytes to sort
  for i in range(permutations):
    # Sorting by (group, random key) permutes the values within each group.
    drawn = stable_order(rng.random(groups.size))
    shuffled = order[drawn[ordered_groups[drawn].argsort(kind='stable')]]
    permuted = np.empty_like(generations.value_index)
    permuted[order] = generations.value_index[shuffled]
    null[i] = joint_js(counts.by_value(permuted))
  mean, p95, p_value = map(float, summarise(np.array(value), null)[:3])
  names = generations.attribute.value_texts
  first, second = np.triu_indices(len(names), 1)
  pairs = pairwise_js(table)
  return result | {
    'value': value, 'null_mean': mean, 'null_p95': p95, 'p_value': p_value,
    'corrected': max(0.0, value - mean), 'within_floor': is_within(value, p95),
    'largest_pairs': [
      {'values': [names[first[i]], names[second[i]]], 'divergence': float(pairs[i])}
      for i in np.argsort(-pairs, kind='stable')[:LARGEST_PAIRS]]}


def joint_js(table: np.ndarray) -> float:
  """Jensen-Shannon divergence of all rows of counts `[A, W]` together, bits."""
  shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
  mixed = _entropy_terms(shares.mean(axis=0)).sum()
  return max(0.0, float(mixed - _entropy_terms(shares).sum(axis=1).mean()))


def pairwise_js(table: np.ndarray) -> np.ndarray:
  """Jensen-Shannon divergences of all pairs of rows of counts, in [0, 1] bits."""
  shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
  own = _entropy_terms(shares).sum(axis=1)
  first, second = np.triu_indices(len(table), 1)
  step = max(1, _BLOCK // table.shape[1])
  found = []
  for start in range(0, first.size, step):
    a, b = first[start:start + step], second[start:start + step]
    found.append(_entropy_terms((shares[a] + shares[b]) / 2).sum(axis=1) - (own[a] + own[b]) / 2)
  return np.clip(np.concatenate(found), 0, 1)


def _entropy_terms(p: np.ndarray) -> np.ndarray:
  """-p log2 p, 0 for p = 0."""
  return -p * np.log2(np.where(p > 0, p, 1))


def _exchangeable(generations: Generations, coupled: bool) -> tuple[np.ndarray, bool]:
  """Group of each record within which the values may be permuted, and whether it is the number."""
  if coupled and generations.sample is not None:
    keys = np.stack([generations.template_index, generations.sample], axis=1)
    _, groups, sizes = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    if (sizes == len(generations.attribute.values)).all():
      return groups.reshape(-1), True
  return generations.template_index, False


def _canonical_order(generations: Generations, groups: np.ndarray) -> np.ndarray:
  """`[R]` records by group, whatever their order in the file: the floor must not depend on it."""
  number = np.zeros_like(groups) if generations.sample is None else generations.sample
  text = np.unique(np.array(generations.continuations, object), return_inverse=True)[1]
  return np.lexsort((text, number, generations.value_index, groups))
