"""Null distributions: of the distance of every pair of values, and of I.F. and G.F. (below).

Letters: M templates, A values, P = A (A - 1) / 2 pairs, n samples of a prefix, R permutations.

The null hypothesis of a pair is that its two values have the same distribution of scores, whatever
the others have. So only these two change places: within each sample number where samples share
their noise (an independent coin for every number), otherwise over all their samples. Permuting all
values together, as for I.F. and G.F., would put the scores of the other values into the floor of a
pair, which can make it too small as well as too large.

The distance is the area between two distribution functions, so 1,000 permutations of the 10,120
pairs of Huang et al. 2020 need 2e10 differences. One walk over the scores of a pair in ascending
order follows its difference under all permutations at once (`_pair_areas`):

- Coupled: with signs s_i = +-1, n times the difference at t is
  sum_i s_i [x_i <= t] - sum_i s_i [y_i <= t]. The pairs of a template share the signs.
- Free: the labels of the sorted scores are a random sequence of two letters, whatever the scores
  are. All pairs of a template with equal sizes share it.

Tails: with R permutations no p-value is below 1 / (R + 1), and Holm's correction over 5,610 pairs
would turn even that into 1. Where no permutation reaches a distance, `p_value` is therefore the
smaller of 1 / (R + 1) and a bound that holds for any scores: a coin of sample i moves the distance
by at most 2 |x_i - y_i| / n, so by McDiarmid's inequality the distance exceeds its null mean by t
with probability at most exp(-t^2 / (2 v)), v = sum_i (x_i - y_i)^2 / n^2. For free samples the
same inequality for random partitions (El-Yaniv and Pechyony 2009, lemma 2) gives
v = range^2 N^2 / (4 n m (N - 1/2) (1 - 1 / (2 max(n, m)))), N = n + m. The null mean itself is
known from R permutations: t is reduced by k sqrt(v / R), and exp(-k^2 / 2), the chance that this is
too little, is added. A p-value above 1 / (R + 1) never comes from the bound, so tests at such
levels are exact permutation tests.
"""

import concurrent.futures
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from fairjax.measure.estimates import TIE, SampleScores, Table, summarise
from fairjax.progress import Progress

_Item = TypeVar('_Item')
_Result = TypeVar('_Result')


def compiled(function: Callable[..., None]) -> Callable[..., None]:
  """The function as machine code; numba makes it once and keeps it on the disk."""
  @functools.cache
  def made():
    import numba  # here: the import takes a third of a second
    try:
      return numba.njit(function, cache=True, nogil=True)
    except RuntimeError:  # no folder for it can be written
      return numba.njit(function, nogil=True)

  @functools.wraps(function)
  def call(*arguments):
    try:
      made()(*arguments)
    except OSError:  # numba cannot keep it on a full disk, but has it now; nothing was computed
      made()(*arguments)

  return call


def in_threads(
  work: Callable[[_Item], _Result], items: Iterable[_Item], *, what: str = '',
  unit: str = 'items', log: Callable[[str], None] | None = None,
) -> list[_Result]:
  """Results of `work` for every item, in their order; the first error ends it."""
  # NumPy and compiled functions run without the interpreter's lock, so threads use all cores.
  items = list(items)
  results = []
  with (Progress(what, len(items), unit=unit, log=log) as progress,
        concurrent.futures.ThreadPoolExecutor(cores()) as pool):
    try:
      for result in pool.map(work, items) if len(items) > 1 else map(work, items):
        results.append(result)
        progress.add()
    except BaseException:
      pool.shutdown(wait=False, cancel_futures=True)
      raise
  return results


def cores() -> int:
  """How many cores this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


# Individual and group fairness after the values' labels were permuted.
#
# Letters: M templates, A values, G subgroups, n samples of a prefix, N = A n samples of a template,
# R permutations, B permutations of one batch.
#
# The null hypothesis is that no value changes the score. Samples that share their noise (the same
# sample number for every value) are permuted within the number, others over all samples of a
# template; permuting shared-noise samples freely would overstate the floor. Templates are never
# mixed, because they may differ in score under the null too. All statistics of one permutation come
# from the same labels.
#
# Nothing is computed pair by pair (docs/performance.md has the time).
#
# - The scores of a template are sorted once. From then on a labelling is the value of each rank. A
#   random one takes one sort, of random 64-bit words that carry the rank in their low bits.
# - Each score, in ascending order, raises the distribution function of one value by a step. The sum
#   of the absolute differences of all pairs grows by the step for each other value that is not
#   above this one, and falls by it for each that is. Where all sizes are equal, values are above
#   the c-th level from their (c + 1)-th score on: these are counted as they come, so a score costs
#   the same for any number of values.
# - A subgroup and the whole set (H-06, Eq. 4) differ by the area between their quantile functions:
#   the sum over c of the distances of the c-th of n scores from the c-th of n equal parts of all N.
#   Unless it lies inside that part, all scores there are on one side of it, so their distances are
#   known from their sum: a score costs the same for any number of subgroups.
#
# Blocks of permutations are drawn from random streams of their own, so the result depends neither
# on the number of threads nor on their order.
#
# Where a loop has many indices they are unsigned: numba tests every one that can be negative, which
# takes a tenth of the time.

# Changing these changes the random draws.
_BATCH_SCORES = 1 << 18
_BATCH = 64
_BLOCK = 4  # batches of one random stream
_PURPOSE = 0x1F  # separates these random streams from others of the same seed
_SHORT = 256  # so few words NumPy sorts faster
_FINEST = 1 << 40  # parts in which distribution functions of unequal sizes are compared


@dataclasses.dataclass(frozen=True)
class LabelNull:
  """Statistics after permutations of the labels, or of the observed labels (R = 1)."""

  all_pairs: np.ndarray  # [M, R] mean distance of all pairs of values, by template
  within: np.ndarray  # [M, R] of the pairs within one subgroup; NaN where there are none
  across: np.ndarray  # [M, R] of the pairs of two subgroups; NaN where there are none
  subgroups: np.ndarray  # [K, G, R] of each subgroup to the whole, over K sets of templates

  @classmethod
  def joined(cls, parts: Sequence['LabelNull']) -> 'LabelNull':
    """The labellings of all parts, one after the other."""
    return cls(*(np.concatenate([getattr(p, f.name) for p in parts], axis=-1)
                 for f in dataclasses.fields(cls)))


class LabelStatistics:
  """The statistics of one set of scores under any labels."""

  def __init__(
    self, scores: Sequence[Sequence[np.ndarray]], subgroups: np.ndarray,
    template_sets: Sequence[Sequence[int]] = (),
  ):
    """Sorts the scores; subgroups are compared with the whole over each set of templates."""
    self._templates = [_Template.of(row) for row in scores]
    self._groups = subgroups.astype(np.min_scalar_type(subgroups.max()))
    self._pools = [_Pool.of(self._templates, chosen, subgroups) for chosen in template_sets]

  def observed(self) -> LabelNull:
    """The statistics of the labels as they are (R = 1)."""
    return self._statistics([t.labels[None] for t in self._templates])

  def permuted(
    self, permutations: int, *, coupled: bool, seed: int, log: Callable[[str], None] | None = None
  ) -> LabelNull:
    """The statistics of R random labellings; `coupled` permutes within sample numbers."""
    largest = max(t.labels.size for t in self._templates)
    batch = max(1, min(_BATCH, _BATCH_SCORES // largest))

    def block(start):
      generators = [
        np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE, m, start]))
        for m in range(len(self._templates))]
      stop = min(start + _BLOCK * batch, permutations)
      return LabelNull.joined([
        self._statistics([t.permute(rng, min(batch, stop - begin), coupled=coupled)
                          for t, rng in zip(self._templates, generators, strict=True)])
        for begin in range(start, stop, batch)])

    starts = range(0, permutations, _BLOCK * batch)
    return LabelNull.joined(in_threads(
      block, starts, what='label permutations', unit=f'blocks of {_BLOCK * batch}', log=log))

  def _statistics(self, labels: list[np.ndarray]) -> LabelNull:
    """Statistics of labels `[M]` of shape `[B, N]`, the value of each rank."""
    inside = np.bincount(self._groups)
    means = [t.pair_means(own, self._groups, inside)
             for t, own in zip(self._templates, labels, strict=True)]
    every, within, across = (np.stack([m[i] for m in means]) for i in range(3))
    return LabelNull(
      every, within, across, np.array([pool.distances(labels) for pool in self._pools]))


@dataclasses.dataclass(frozen=True)
class _Pool:
  """The whole set over some templates."""

  chosen: Sequence[int]  # templates
  groups: np.ndarray  # [A] unsigned, subgroup of a value
  sizes: np.ndarray  # [G] number of samples
  order: np.ndarray  # [N] uint32, places among the ranks of these templates, by score
  scores: np.ndarray  # [N] ascending
  least: np.ndarray  # [N] of `_parts`, subgroup after subgroup
  above: np.ndarray  # [N] likewise

  @classmethod
  def of(cls, templates: Sequence['_Template'], chosen: Sequence[int], groups: np.ndarray
         ) -> '_Pool':
    """The pool of the chosen templates, with the subgroup of each value `[A]`."""
    scores = np.concatenate([templates[m].scores for m in chosen])
    order = scores.argsort(kind='stable').astype(np.uint32)  # merges what is sorted already
    scores = scores[order]
    sizes = np.bincount(groups, np.sum([templates[m].sizes for m in chosen], axis=0)).astype(int)
    parts = {n: _parts(scores, n) for n in set(sizes.tolist())}
    columns = (np.concatenate(x) for x in zip(*(parts[n] for n in sizes.tolist()), strict=True))
    return cls(chosen, groups, sizes, order, scores, *columns)

  def distances(self, labels: Sequence[np.ndarray]) -> np.ndarray:
    """`[G, B]` distances of each subgroup's values to the whole, from labels `[M]`, `[B, N]`."""
    areas = np.zeros((len(labels[0]), self.sizes.size))
    _subgroup_areas(np.concatenate([labels[m] for m in self.chosen], axis=1), self.order,
                    self.scores, self.groups, self.sizes, self.least, self.above, areas)
    return (areas / (self.sizes * self.order.size)).T


def _parts(scores: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
  """Cuts ascending scores `[N]` into n equal parts, and a score where a border falls into it.

  Returns the least score of each part `[n]`, and n times the sum of its scores less that `[n]`.
  """
  ends = np.arange(n + 1) * scores.size  # borders, in n-ths of a score
  first = -(-ends // n)  # the first score that begins in a part
  least = scores[ends[:-1] // n]
  above = scores - least.repeat(np.diff(first))
  beyond = (first * n - ends)[1:] * above[first[1:] - 1]  # of the last score, in the next part
  return least, n * np.add.reduceat(above, first[:-1]) - beyond


@compiled
def _subgroup_areas(labels, order, scores, groups, sizes, least, above, areas):
  """Adds to `[B, G]` the areas between each subgroup and all N scores, times n N.

  `order` `[N]` are the places in `labels` `[B, N]` of the ascending `scores`. The c-th score of n
  is compared with the c-th of n parts of all; `least` and `above` `[N]` are those of `_parts`, with
  which equal distributions have an area of exactly 0.
  """
  every, starts = scores.size, np.cumsum(sizes) - sizes
  group = np.empty(every, labels.dtype)
  for b in range(len(labels)):
    own, area = labels[b], areas[b]
    reached = np.zeros(sizes.size, np.int64)
    for k in range(every):  # a loop of its own: in one, both take twice the time
      group[k] = groups[own[order[k]]]
    for k in range(every):
      g = group[k]
      n, c = sizes[g], reached[g]
      reached[g] = c + 1
      part, place = np.uint64(starts[g] + c), k * n - c * every
      apart = abs(above[part] + every * (least[part] - scores[k]))
      if 0 < place < every - n:  # scores of its part are on both sides, which is rare
        low, high, apart = c * every, (c + 1) * every, 0.0
        for i in range(low // n, (high - 1) // n + 1):
          apart += (min(high, (i + 1) * n) - max(low, i * n)) * abs(scores[i] - scores[k])
      area[g] += apart


@dataclasses.dataclass(frozen=True)
class _Template:
  """The scores of one template, by rank."""

  order: np.ndarray  # [N] int, which sample, value after value, has a rank
  labels: np.ndarray  # [N] unsigned, the value of a rank
  scores: np.ndarray  # [N] ascending
  sizes: np.ndarray  # [A]

  @classmethod
  def of(cls, row: Sequence[np.ndarray]) -> '_Template':
    """The template of `[A]` arrays `[n]`."""
    scores, sizes = np.concatenate(row), np.array([x.size for x in row])
    order = stable_order(scores)
    values = np.arange(sizes.size, dtype=np.min_scalar_type(sizes.size - 1))
    return cls(order, values.repeat(sizes)[order], scores[order], sizes)

  def permute(self, rng: np.random.Generator, count: int, *, coupled: bool) -> np.ndarray:
    """`[count, N]` random labels."""
    low = np.uint64((1 << int(self.labels.size - 1).bit_length()) - 1)
    found = np.empty((count, self.labels.size), self.labels.dtype)
    if coupled:
      size = self.sizes.size
      state, inc = (rng.bit_generator.state['state'][k] for k in ('state', 'inc'))
      width = max(8, min(_LANES, _LANE_WORDS // size))
      step, row, rows = (_steps(k, inc) for k in (1, size, (width - 1) * size))
      lanes = [state]
      while len(lanes) < width:
        lanes.append(lanes[-1] * row[0] + row[1] & _STATES - 1)
      _permute_within(_halves(lanes), _halves([step, rows]), _sorting_network(size),
                      self._ranks_by_number, low, found)
      rng.bit_generator.advance(found.size)  # type: ignore[attr-defined]
      return found
    values = np.arange(self.sizes.size).repeat(self.sizes)
    for labels in found:
      words = rng.bit_generator.random_raw(self._ranks.shape)
      words &= ~low
      words |= self._ranks
      _sort(words[None])
      _place(words, low, values, labels)
    return found

  @functools.cached_property
  def _ranks(self) -> np.ndarray:
    """`[N]` uint64, the rank of each sample, value after value."""
    ranks = np.empty(self.order.size, np.uint64)
    ranks[self.order] = np.arange(ranks.size)
    return ranks

  @functools.cached_property
  def _ranks_by_number(self) -> np.ndarray:
    """`[A, n + lanes]` the ranks of coupled samples; those of the first numbers follow the last."""
    ranks = self._ranks.reshape(self.sizes.size, -1)
    return ranks.take(range(ranks.shape[1] + _LANES), axis=1, mode='wrap')

  def pair_means(self, labels: np.ndarray, groups: np.ndarray, inside: np.ndarray
                 ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean distance `[B]` of all pairs, pairs within a subgroup and pairs across; NaN if none.

    `groups` `[A]` is the subgroup of each value, `inside` `[G]` how many values each has.
    """
    sums = np.empty((len(labels), 2))
    unit = min(_FINEST, math.lcm(*self.sizes.tolist()))
    _label_areas(labels, self.scores, self.sizes, unit, groups, inside, sums)
    every, within = sums.T / unit
    pairs = self.sizes.size * (self.sizes.size - 1) // 2
    near = int((inside * (inside - 1)).sum() // 2)
    nothing = np.full(len(labels), np.nan)
    return (every / pairs, within / near if near else nothing,
            (every - within) / (pairs - near) if pairs > near else nothing)


def stable_order(numbers: np.ndarray) -> np.ndarray:
  """`numbers.argsort(kind='stable')` of `[n]` floats without NaN, in a sixth of its time."""
  order = numbers.argsort()
  ranked = numbers[order]
  equal = ranked[1:] == ranked[:-1]
  tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
  order[tied] = order[tied][np.lexsort((order[tied], ranked[tied]))]
  return order


def _sort(words: np.ndarray) -> None:
  """Sorts each row of random 64-bit words; NumPy is slow with long rows where it lacks AVX-512."""
  if words.shape[1] <= _SHORT:
    words.sort(axis=-1)
  else:
    _sort_long(words, int(words.shape[1] - 1).bit_length())


@compiled
def _sort_long(words, bits):
  """Puts each word where its first bits say, then moves the few that are out of order."""
  shift, ends = np.uint64(64 - bits), np.empty((1 << bits) + 1, np.int32)
  for row in words:
    ends[:] = 0
    for word in row:
      ends[(word >> shift) + np.uint64(1)] += 1
    for bucket in range(1, ends.size):
      ends[bucket] += ends[bucket - 1]
    for word in row.copy():
      bucket = word >> shift
      row[ends[bucket]] = word
      ends[bucket] += 1
    for k in range(1, row.size):
      word = row[k]
      while k > 0 and row[k - 1] > word:
        row[k] = row[k - 1]
        k -= 1
      row[k] = word


@compiled
def _place(words, low, values, row):
  """Puts the values of words at the ranks in their low bits."""
  for i in range(words.size):
    row[words[i] & low] = values[i]


# Labels of coupled samples. A row of A words, one for each value, is drawn for every sample number
# of every permutation, one row after the other, as `random_raw` would. PCG64 (O'Neill 2014) steps
# from x to x * factor + inc modulo 2^128, so that k steps are one such step with another factor and
# increment (`_steps`). Each of 64 lanes therefore begins at a row of its own, and 64 rows are drawn
# and sorted side by side.

_LANES, _LANE_WORDS = 64, 1 << 14  # words of all lanes, for the cache's sake
_FACTOR = 0x2360ED051FC65DA44385DF649FCCF645  # of PCG64
_STATES = 1 << 128


def _steps(count: int, inc: int) -> tuple[int, int]:
  """Factor and increment of some steps together."""
  factor = pow(_FACTOR, count, _STATES * (_FACTOR - 1))  # as the sum below is divided
  return factor % _STATES, (factor - 1) // (_FACTOR - 1) * inc % _STATES


def _halves(numbers: Sequence[Any]) -> np.ndarray:
  """`[..., 2]` uint64: high and low halves of 128-bit integers."""
  wide = np.array(numbers, object)
  return np.stack([wide >> 64, wide & (1 << 64) - 1], axis=-1).astype(np.uint64)


@functools.cache
def _sorting_network(size: int) -> np.ndarray:
  """`[C, 2]` places to compare and exchange (Batcher 1968; Knuth 5.2.2, algorithm M)."""
  found = []
  for bit in (1 << k for k in reversed(range((size - 1).bit_length()))):
    top, rest, apart = 1 << (size - 1).bit_length() - 1, 0, bit
    while True:
      found += [(i, i + apart) for i in range(size - apart) if i & bit == rest]
      if top == bit:
        break
      apart, top, rest = top - bit, top >> 1, bit
  return np.array(found, np.int64).reshape(-1, 2)


@compiled
def _permute_within(lanes, steps, network, ranks, low, found):
  """Sets `[B, N]` random labels of samples whose values change places within each number.

  `lanes` `[lanes, 2]` are the states of the generator and `steps` `[2, 2, 2]` factor and increment
  of one step, and of the steps from the end of a lane's row to its next row. `ranks` are
  `_ranks_by_number`, kept in the bits `low`.
  """
  values, width, numbers = len(ranks), len(lanes), found.shape[1] // len(ranks)
  high_state, low_state = lanes[:, 0].copy(), lanes[:, 1].copy()
  words = np.empty((values, width), np.uint64)
  c32, c58, c63, c64 = np.uint64(32), np.uint64(58), np.uint64(63), np.uint64(64)
  half = np.uint64((1 << 32) - 1)
  for start in range(0, len(found) * numbers, width):
    for a in range(values + 1):
      step = steps[a // values]
      factor_high, factor, add_high, add = step[0, 0], step[0, 1], step[1, 0], step[1, 1]
      factor_0, factor_1 = factor & half, factor >> c32
      row = words[a % values]
      rank = ranks[a % values, start % numbers:]
      for i in range(width):  # products of 64 bits, put together from those of 32 bits
        x, y = high_state[i], low_state[i]
        y_0, y_1 = y & half, y >> c32
        cross = y_0 * factor_1
        middle = (y_0 * factor_0 >> c32) + (cross & half) + y_1 * factor_0
        carried = y_1 * factor_1 + (cross >> c32) + (middle >> c32)
        low_state[i] = y * factor + add
        high_state[i] = (x * factor + y * factor_high + carried + add_high
                         + np.uint64(low_state[i] < add))
        if a < values:
          mixed, turn = high_state[i] ^ low_state[i], high_state[i] >> c58
          row[i] = (mixed >> turn | mixed << (c64 - turn & c63)) & ~low | rank[i]
    for k in range(len(network)):
      first, second = words[network[k, 0]], words[network[k, 1]]
      for i in range(width):
        x, y = first[i], second[i]
        first[i], second[i] = min(x, y), max(x, y)
    for i in range(min(width, len(found) * numbers - start)):
      own = found[(start + i) // numbers]
      for a in range(values):
        own[words[a, i] & low] = a


@compiled
def _label_areas(labels, scores, sizes, unit, groups, inside, areas):
  """Sets `[B, 2]` sums of areas between all pairs of values, and between those of a subgroup."""
  longest, others, near = max(sizes), sizes.size - 1, inside[groups] - 1
  equal = longest == min(sizes)
  gaps = scores[1:] - scores[:-1]
  for b in range(len(labels)):
    own, every, within, area, area_inside = labels[b], 0, 0, 0.0, 0.0
    count = np.zeros(sizes.size, np.uint32)
    above = np.zeros(longest, np.int32)  # values with more than so many scores
    above_inside = np.zeros((inside.size, longest), np.int32)
    reached = np.zeros(sizes.size, np.int64)  # parts of the unit
    for k in range(gaps.size):
      a = own[k]
      c = count[a]
      count[a] = c + 1
      if equal:
        every += others - 2 * above[c]
        above[c] += 1
        if near[a]:
          g = groups[a]
          within += near[a] - 2 * above_inside[g, c]
          above_inside[g, c] += 1
      else:
        before, after = reached[a], np.int64(c + 1) * unit // sizes[a]
        for other in range(sizes.size):
          more = abs(after - reached[other]) - abs(before - reached[other])
          every += more
          within += more * (groups[other] == groups[a])
        every -= after - before
        within -= after - before
        reached[a] = after
      area += gaps[k] * every
      area_inside += gaps[k] * within
    areas[b, 0], areas[b, 1] = area, area_inside


_PAIR_PURPOSE = 0x2F  # separates these random streams from others of the same seed
_TOGETHER = 1 << 22  # distances of permuted pairs, or random words, at once
_MARGIN = 7.0  # k above
LEAST_BOUND = math.exp(-_MARGIN ** 2 / 2)  # 2.3e-11, what the bound is above


@dataclasses.dataclass(frozen=True)
class PairTests:
  """Distances of pairs in the order of `np.triu_indices(A, 1)`."""

  cells: Table  # [M, P], every pair in every template
  pairs: Table  # [P], the mean over templates of every pair


def measure_pairs(
  samples: SampleScores, *, permutations: int, seed: int = 0,
  log: Callable[[str], None] | None = None,
) -> PairTests:
  """Distances, floors and p-values of all pairs of values."""
  coupled, templates = samples.coupled, len(samples.templates)
  variances = np.stack([(_coupled_variance if coupled else _free_variance)(row)
                        for row in samples.scores])
  count = variances.shape[1]
  together = max(1, _TOGETHER // permutations)
  order = _kinds(samples.scores[0])[1].argsort(kind='stable')  # a kind is in few parts
  parts = [order[i:i + together] for i in range(0, count, together)]
  cells, pairs = [], []  # columns of each part
  with Progress('pairs of values', len(parts) * templates, unit='templates', log=log) as progress:
    for part in parts:
      total, found = np.zeros((part.size, permutations)), []
      for m, row in enumerate(samples.scores):
        rng = np.random.default_rng(np.random.SeedSequence([seed, _PAIR_PURPOSE, m]))
        null, columns = _pair_nulls(
          row, part, variances[m, part], permutations, rng, coupled=coupled)
        found.append(columns)
        total += null
        progress.add()
      cells.append([np.stack(column) for column in zip(*found, strict=True)])
      mean = cells[-1][0].mean(axis=0)
      pairs.append((mean, *_summary(
        mean, total / templates, variances[:, part].sum(axis=0) / templates ** 2)))
  return PairTests(*(
    Table.summarised(*(np.concatenate(column, axis=-1)[..., order.argsort()]
                       for column in zip(*columns, strict=True)))
    for columns in (cells, pairs)))


def _summary(
  distance: np.ndarray, null: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Null mean, 95th percentile, p and mid-p `[P]`; the tail bound where no permutation reached."""
  mean, p95, p_value, mid_p_value = summarise(distance, null)
  count = null.shape[1]
  bound = np.where(
    p_value * (count + 1) < 1.5, tail_bound(distance, mean, variance, count), np.inf)
  return mean, p95, np.minimum(p_value, bound), np.minimum(mid_p_value, bound)


def tail_bound(
  distance: np.ndarray, null_mean: np.ndarray, variance: np.ndarray, permutations: int
) -> np.ndarray:
  """Upper bound of the permutation p-value of a distance; see the module's docstring."""
  excess = distance - null_mean - _MARGIN * np.sqrt(variance / permutations)
  with np.errstate(divide='ignore', invalid='ignore'):
    exponent = np.where((excess > TIE) & (variance > 0), excess ** 2 / (2 * variance), 0.0)
  return np.exp(-exponent) + LEAST_BOUND


def tail_distance(level: float, variance: float, permutations: int) -> float:
  """How far above the null mean a distance must be for `tail_bound` to reach a level."""
  deviation = math.sqrt(-2 * math.log(level - LEAST_BOUND))
  return math.sqrt(variance) * (deviation + _MARGIN / math.sqrt(permutations))


def _coupled_variance(row: tuple[np.ndarray, ...]) -> np.ndarray:
  """`[P]` v of coupled samples."""
  x = np.stack(row)
  return np.concatenate([np.square(x[a + 1:] - x[a]).sum(axis=1) for a in range(len(x))]
                        ) / x.shape[1] ** 2


def _free_variance(row: tuple[np.ndarray, ...]) -> np.ndarray:
  """`[P]` v of free samples."""
  first, second = np.triu_indices(len(row), 1)
  size = np.array([x.size for x in row], np.float64)
  low, high = (np.array([f(x) for x in row]) for f in (np.min, np.max))
  reach = np.maximum(high[first], high[second]) - np.minimum(low[first], low[second])
  n, m = size[first], size[second]
  return (reach * (n + m)) ** 2 / (
    4 * n * m * (n + m - 0.5) * (1 - 0.5 / np.maximum(n, m)))


def _kinds(row: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
  """`[K, 2]` pairs of sizes, the smaller first, and which one each pair of values `[P]` has."""
  sizes = np.array([x.size for x in row])[np.stack(np.triu_indices(len(row), 1), axis=1)]
  low, high = np.sort(sizes).T
  base = high.max() + 1
  codes, which = np.unique(low * base + high, return_inverse=True)
  return np.stack(np.divmod(codes, base), axis=1), which


def _pair_nulls(
  row: tuple[np.ndarray, ...], pairs: np.ndarray, variance: np.ndarray, permutations: int,
  rng: np.random.Generator, *, coupled: bool,
) -> tuple[np.ndarray, np.ndarray]:
  """Some pairs of one template after exchanges between the two, and as observed.

  Returns distances `[p, R]` after R exchanges, and `[5, p]` the observed distances and the columns
  of `_summary`. `variance` is v `[p]`.
  """
  sizes = np.array([x.size for x in row])
  ends = np.concatenate([[0], sizes.cumsum()])
  order = np.concatenate([x.argsort(kind='stable') for x in row])
  scores = np.concatenate(row)[order + ends[:-1].repeat(sizes)]
  first, second = (x[pairs] for x in np.triu_indices(len(row), 1))
  null, columns = np.zeros((pairs.size, permutations)), np.empty((5, pairs.size))
  kinds, which = _kinds(row)
  for k, (n, m) in enumerate(kinds.tolist()):
    mine = np.flatnonzero(which[pairs] == k)
    if not mine.size:  # of other parts: skips what `_labels` draws
      rng.bit_generator.advance((n + m) * permutations)  # type: ignore[attr-defined]
      continue
    draws = (rng.integers(0, 2, (n, permutations), dtype=np.int8) * 2 - 1 if coupled else
             _labels(n, m, permutations, rng))

    def work(some, draws=draws):
      _pair_areas(first, second, ends, order, scores, draws, coupled, columns[0], null, some)
      columns[1:, some] = _summary(columns[0, some], null[some], variance[some])

    in_threads(work, [part for part in np.array_split(mine, 8 * cores()) if part.size])
  return null, columns


def _labels(n: int, m: int, permutations: int, rng: np.random.Generator) -> np.ndarray:
  """`[n + m, R]` which of the scores of two samples, ascending, go to the first one (of n): 1."""
  labels = np.empty((n + m, permutations), np.int8)
  width = max(1, _TOGETHER // (n + m))
  for start in range(0, permutations, width):
    part = labels[:, start:start + width]
    words = rng.bit_generator.random_raw(part.T.shape)
    words &= ~np.uint64(1)
    words[:, :n] |= np.uint64(1)
    _sort(words)
    part[...] = (words & np.uint64(1)).T
  return labels


@compiled
def _pair_areas(first, second, ends, order, scores, draws, coupled, distance, null, pairs):
  """Sets the distances of some pairs, and adds those after exchanges to the zeros of `null`.

  `draws` are signs `[n, R]` of the samples where they are coupled, otherwise labels `[n + m, R]`.
  """
  for pair in pairs:
    i, last_i = ends[first[pair]], ends[first[pair] + 1]
    j, last_j = ends[second[pair]], ends[second[pair] + 1]
    n, m = last_i - i, last_j - j
    rank, at, observed, area, areas = 0, min(scores[i], scores[j]), 0, 0.0, null[pair]
    count = np.zeros(areas.size, np.int32)
    while rank < n + m:
      is_first = j == last_j or (i < last_i and scores[i] <= scores[j])
      place = i if is_first else j
      gap = scores[place] - at
      at = scores[place]
      area += gap * abs(observed)
      if coupled:
        draw, sign = draws[order[place]], 1 if is_first else -1
        for r in range(count.size):
          areas[r] += gap * abs(count[r])
          count[r] += sign * draw[r]
      else:
        draw, expected = draws[rank], rank * (min(n, m) / (n + m))
        for r in range(count.size):
          areas[r] += gap * abs(count[r] - expected)
          count[r] += draw[r]
      if is_first:
        i, observed = i + 1, observed + m
      else:
        j, observed = j + 1, observed - n
      rank += 1
    distance[pair] = area / (n * m)
    for r in range(count.size):
      areas[r] *= (1.0 if coupled else (n + m) / m) / n
