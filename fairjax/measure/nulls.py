"""Null distributions: of the distance of every pair of values, and of I.F. and G.F. (below).

Letters: M templates, A values, P = A (A - 1) / 2 pairs, n samples of a prefix, R permutations.

The null hypothesis of a pair is that its two values have the same distribution of scores, whatever
the others have. So only these two change places: within each sample number where samples share
their noise (an independent coin for every number), otherwise over all their samples. Permuting all
values together, as for I.F. and G.F., would put the scores of the other values into the floor of a
pair, which can make it too small as well as too large.

The distance is the area between two distribution functions, so 1,000 permutations of the 10,120
pairs of Huang et al. 2020 need 2e10 differences. What belongs to many pairs is computed once:

- Coupled: with signs s_i = +-1, n times the difference at t is
  sum_i s_i [x_i <= t] - sum_i s_i [y_i <= t]. Each sum belongs to one value, not to a pair: with
  the signs of all permutations in one matrix, the running sums of its rows in the order of a
  value's scores (int16, R wide) serve every pair of the value. A pair then takes two rows at each
  score, subtracts, and weighs the absolute differences by the gaps between scores. Values of one
  template share the signs, templates do not.
- Free: the labels of the sorted scores are a random sequence of two letters, whatever the scores
  are. Its running sums are drawn once for a template and all pairs of equal sizes; the nulls of
  these pairs are one matrix product, gaps times absolute sums.

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
from typing import TypeVar

import numpy as np

from fairjax.measure.estimates import TIE, SampleScores, Table, summarise
from fairjax.measure.wasserstein import PoolDistance, pairwise_wasserstein_1, quantile_grid
from fairjax.progress import Progress

_Item = TypeVar('_Item')
_Result = TypeVar('_Result')


def in_threads(
  work: Callable[[_Item], _Result], items: Iterable[_Item], *, what: str = '',
  unit: str = 'items', log: Callable[[str], None] | None = None,
) -> list[_Result]:
  """Results of `work` for every item, in their order; the first error ends it."""
  # NumPy sorts and adds without the interpreter's lock, so threads use the cores of this process.
  items = list(items)
  results = []
  # glibc keeps freed memory up to twice the largest block that it saw freed. After this one it
  # keeps the arrays of an item for the next instead of fetching them from the system page by page.
  np.empty(31 << 20, np.uint8)
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
# R permutations, B permutations of one block, U distinct scores of a template, W points of a grid.
#
# The null hypothesis is that no value changes the score. Samples that share their noise (the same
# sample number for every value) are permuted within the number, others over all samples of a
# template; permuting shared-noise samples freely would overstate the floor. Templates are never
# mixed, because they may differ in score under the null too. All statistics of one permutation come
# from the same labels.
#
# Nothing is computed pair by pair (docs/performance.md has the time).
#
# - The scores of a template are sorted once. From then on they are ranks, and a labelling is the
#   value of each rank. A random one takes one sort, of random 64-bit words that carry the rank in
#   their low bits. A stable sort by value, which counts, leaves each value's samples ascending.
# - With the samples of each value sorted, W1 of a pair is the mean over ranks of the absolute
#   difference, and the sum of absolute differences over all pairs of A numbers is, once these are
#   sorted, sum_j j (A - j) (v_(j+1) - v_(j)). So I.F. over A (A - 1) / 2 pairs costs one more sort
#   of N numbers, not A^2 n. Where sizes differ, ranks become the merged grid of k / n of all sizes,
#   or the distinct scores if these are fewer; both are exact.
# - A subgroup against the whole set is the area between two quantile functions. The k-th smallest
#   of S samples faces N_all / S consecutive samples of the whole, whose absolute differences from
#   it come from prefix sums of the whole set and the place of the sample in it (`PoolDistance`).
#
# Blocks of permutations are drawn from random streams of their own, so the result depends neither
# on the number of threads nor on their order.

# Changing these changes the random draws.
_BATCH_SCORES = 1 << 18
_BATCH = 64
_BLOCK = 4  # batches of one random stream
_PURPOSE = 0x1F  # separates these random streams from others of the same seed

# Changing this changes no number. So many scores stay in a processor's cache, and an operation on
# them lasts long enough for threads to seldom wait for the interpreter's lock.
_CHUNK_SCORES = 1 << 15


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
    self._members = [np.flatnonzero(subgroups == g) for g in range(subgroups.max() + 1)]
    self._pools = [_Pool.of(self._templates, chosen, subgroups)
                   for chosen in template_sets]

  def without(self, group: int, groups: int) -> 'LabelStatistics':
    """The statistics of each prefix without every `groups`-th sample from number `group` on."""
    found = object.__new__(LabelStatistics)
    found._members = self._members
    kept = [(np.concatenate([np.arange(n) % groups for n in t.sizes]) != group)[t.order]
            for t in self._templates]
    found._templates = [t.keep(k) for t, k in zip(self._templates, kept, strict=True)]
    found._pools = [pool.keep(found._templates, kept) for pool in self._pools]
    return found

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
    means = [t.pair_means(own, self._members)
             for t, own in zip(self._templates, labels, strict=True)]
    every, within, across = (np.stack([m[i] for m in means]) for i in range(3))
    return LabelNull(
      every, within, across, np.array([pool.distances(labels) for pool in self._pools]))


@dataclasses.dataclass(frozen=True)
class _Pool:
  """The whole set over some templates."""

  chosen: Sequence[int]  # templates
  group: np.ndarray  # [A] unsigned, subgroup of a value
  sizes: np.ndarray  # [G] number of samples
  order: np.ndarray  # [N] int, places among the ranks of these templates, by score
  codes: np.ndarray  # [N] int32, places in the grid, ascending
  grid: np.ndarray  # [U] ascending distinct scores
  distance: PoolDistance

  @classmethod
  def of(cls, templates: Sequence['_Template'], chosen: Sequence[int], subgroups: np.ndarray
         ) -> '_Pool':
    """The pool of the chosen templates, with the subgroup of each value `[A]`."""
    scores = np.concatenate([templates[m].grid[templates[m].codes] for m in chosen])
    order = scores.argsort(kind='stable')
    grid, codes, counts = np.unique(scores[order], return_inverse=True, return_counts=True)
    return cls._of(templates, chosen, subgroups.astype(templates[0].labels.dtype), order,
                   codes.astype(np.int32), grid, counts)

  def keep(self, templates: Sequence['_Template'], kept: Sequence[np.ndarray]) -> '_Pool':
    """The pool of some of the ranks, `[M][N]` bool, of which the templates are made."""
    every = np.concatenate([kept[m] for m in self.chosen])
    mine = every[self.order]
    return self._of(templates, self.chosen, self.group, (np.cumsum(every) - 1)[self.order[mine]],
                    *_recode(self.codes[mine], self.grid))

  @classmethod
  def _of(cls, templates: Sequence['_Template'], chosen: Sequence[int], group: np.ndarray,
          order: np.ndarray, codes: np.ndarray, grid: np.ndarray, counts: np.ndarray) -> '_Pool':
    """The pool of ascending codes, each of which is there `counts` `[U]` times."""
    sizes = np.bincount(group, np.sum([templates[m].sizes for m in chosen], axis=0)).astype(int)
    return cls(chosen, group, sizes, order, codes, grid, PoolDistance(grid, counts))

  def distances(self, labels: Sequence[np.ndarray]) -> np.ndarray:
    """`[G, B]` distances of each subgroup's values to the whole, from labels `[M]`, `[B, N]`."""
    own = (self.group == np.arange(self.group.size)).all()  # each value is its own subgroup
    found = []
    for part in _chunks(len(labels[0]), self.order.size):
      # Clipping changes no index; it spares NumPy a check.
      groups = np.concatenate([labels[m][part] for m in self.chosen], axis=1).take(
        self.order, axis=1, mode='clip')
      if not own:
        groups = self.group.take(groups, mode='clip')
      codes = self.codes.take(groups.argsort(axis=1, kind='stable'), mode='clip')
      if self.sizes.min() == self.sizes.max():
        found.append(self.distance.distances(
          codes.reshape(-1, self.sizes[0])).reshape(-1, self.sizes.size))
      else:
        parts = np.split(codes, self.sizes.cumsum()[:-1], axis=1)
        found.append(np.stack([self.distance.distances(x) for x in parts], axis=1))
    return np.ascontiguousarray(np.concatenate(found).T)


def _chunks(rows: int, size: int) -> list[slice]:
  """So many of the rows at once as stay in the processor's cache."""
  together = max(1, _CHUNK_SCORES // size)
  return [slice(i, min(i + together, rows)) for i in range(0, rows, together)]


def _recode(codes: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Codes `[N]` and grid `[U]` without the scores that are not there; how often the others are."""
  counts = np.bincount(codes, minlength=grid.size)
  found = counts > 0
  return (np.cumsum(found, dtype=codes.dtype) - 1)[codes], grid[found], counts[found]


@dataclasses.dataclass(frozen=True)
class _Template:
  """The scores of one template, by rank."""

  order: np.ndarray  # [N] int, which sample, value after value, has a rank
  labels: np.ndarray  # [N] unsigned, the value of a rank
  codes: np.ndarray  # [N] uint16 or int32, places in `grid`, ascending
  sizes: np.ndarray  # [A]
  grid: np.ndarray  # [U] ascending distinct scores
  ranks: np.ndarray | None  # [A, W] or [1, W] int, rank of the sample at a point; None: by scores
  weights: np.ndarray  # [W] width of the points

  @classmethod
  def of(cls, row: Sequence[np.ndarray]) -> '_Template':
    """The template of `[A]` arrays `[n]`."""
    scores = np.concatenate(row)
    order = scores.argsort(kind='stable')
    grid, codes = np.unique(scores[order], return_inverse=True)
    return cls._of(order, np.array([x.size for x in row]), codes, grid)

  def keep(self, kept: np.ndarray) -> '_Template':
    """The template of some of its ranks, `[N]` bool."""
    samples = np.zeros(kept.size, bool)
    samples[self.order] = kept
    codes, grid, _ = _recode(self.codes[kept], self.grid)
    return self._of((np.cumsum(samples) - 1)[self.order[kept]],
                    np.bincount(self.labels[kept], minlength=self.sizes.size), codes, grid)

  @classmethod
  def _of(cls, order: np.ndarray, sizes: np.ndarray, codes: np.ndarray, grid: np.ndarray
          ) -> '_Template':
    """The template with `[A]` samples of each value and the codes `[N]` of their ranks."""
    distinct, which = np.unique(sizes, return_inverse=True)
    ranks, weights = quantile_grid(distinct)
    if distinct.size > 1:
      ranks = ranks[which]
      if grid.size - 1 < weights.size:
        ranks, weights = None, np.diff(grid)
    # Labels of few bits sort by counting.
    values = np.arange(sizes.size, dtype=np.min_scalar_type(sizes.size - 1))
    kind = np.uint16 if grid.size <= 1 << 16 else np.int32
    return cls(order, values.repeat(sizes)[order], codes.astype(kind), sizes, grid, ranks, weights)

  def permute(self, rng: np.random.Generator, count: int, *, coupled: bool) -> np.ndarray:
    """`[count, N]` random labels."""
    low = np.uint64((1 << int(self.labels.size - 1).bit_length()) - 1)
    ranks, values = np.empty(self.order.size, np.uint64), np.empty_like(self.labels)
    ranks[self.order], values[self.order] = np.arange(ranks.size), self.labels
    # [n, A] when coupled: the values of one sample number are side by side and change places.
    shape = (self.sizes.size if coupled else ranks.size, -1)
    ranks, values = (np.ascontiguousarray(x.reshape(shape).T) for x in (ranks, values))
    found = np.empty((count, self.labels.size), self.labels.dtype)
    chunks = _chunks(count, self.labels.size)
    values = np.tile(values, (chunks[0].stop, 1, 1))
    for rows in (found[part] for part in chunks):
      words = rng.integers(0, 1 << 64, (len(rows), *ranks.shape), dtype=np.uint64)
      words &= ~low
      words |= ranks
      words.sort(axis=-1)
      words &= low
      words += (np.arange(len(rows), dtype=np.uint64) * ranks.size)[:, None, None]
      rows.reshape(-1)[words.view(np.int64)] = values[:len(rows)]
    return found

  @functools.cached_property
  def slices(self) -> list[slice]:
    """`[A]` places of the samples of each value."""
    ends = np.cumsum(self.sizes).tolist()
    return [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]

  def pair_means(self, labels: np.ndarray, members: list[np.ndarray]
                 ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean distance `[B]` of all pairs, pairs within a subgroup and pairs across; NaN if none."""
    inner = [m for m in members if m.size > 1]
    sums = np.empty((1 + len(inner), len(labels), self.weights.size))
    for part in _chunks(len(labels), self.labels.size):
      # Ascending within each value. Clipping changes no index; it spares NumPy a check.
      order = labels[part].argsort(axis=1, kind='stable')
      values = self._values(self.codes.take(order, mode='clip'))
      for k, m in enumerate([np.arange(self.sizes.size), *inner]):
        sums[k, part] = self._pair_sums(np.ascontiguousarray(values[:, m].swapaxes(1, 2)))
    every, *parts = (part @ self.weights for part in sums)
    within = sum(parts, np.zeros(len(labels)))
    pairs = self.sizes.size * (self.sizes.size - 1) // 2
    inside = sum(m.size * (m.size - 1) // 2 for m in inner)
    nothing = np.full(len(labels), np.nan)
    return (every / pairs, within / inside if inside else nothing,
            (every - within) / (pairs - inside) if pairs > inside else nothing)

  def _values(self, codes: np.ndarray) -> np.ndarray:
    """`[B, A, W]` the codes, or the shares below each score but the last, that face each other."""
    if self.ranks is not None and len(self.ranks) == 1:
      return codes.reshape(len(codes), self.sizes.size, -1)
    values = [codes[:, part] for part in self.slices]
    if self.ranks is not None:
      return np.stack([v[:, k] for v, k in zip(values, self.ranks, strict=True)], axis=1)
    scores = self.grid.size
    place = np.arange(len(codes))[:, None] * scores
    counts = [np.bincount((v + place).reshape(-1), minlength=scores * len(codes)) for v in values]
    return np.stack([c.reshape(-1, scores).cumsum(axis=1)[:, :-1] / v.shape[1]
                     for c, v in zip(counts, values, strict=True)], axis=1)

  def _pair_sums(self, points: np.ndarray) -> np.ndarray:
    """`[B, W]` sums over pairs of values of the differences of points `[B, W, A]`; sorts them."""
    points.sort(axis=-1)
    values = points
    if self.ranks is not None:
      values = self.grid.take(points, mode='clip')
    j = np.arange(1, values.shape[-1])
    gaps = np.empty_like(values, np.float64)  # of all in one row, which is faster than row by row
    np.subtract(values.reshape(-1)[1:], values.reshape(-1)[:-1], out=gaps.reshape(-1)[:-1])
    return gaps[..., :-1] @ (j * (values.shape[-1] - j)).astype(np.float64)


_PAIR_PURPOSE = 0x2F  # separates these random streams from others of the same seed
_BYTES = 128 << 20  # of running sums at once
_ROWS = 128  # scores whose differences stay in the processor's cache
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
  total, columns, distances, variances = np.zeros(()), [], [], []
  with Progress('pairs of values', templates, unit='templates', log=log) as progress:
    for m, row in enumerate(samples.scores):
      rng = np.random.default_rng(np.random.SeedSequence([seed, _PAIR_PURPOSE, m]))
      null = (_coupled_null if coupled else _free_null)(row, permutations, rng)
      variances.append((_coupled_variance if coupled else _free_variance)(row))
      distances.append(_distances(row))
      columns.append(_summary(distances[m], null, variances[m]))
      total = total + null
      progress.add()
  mean = np.mean(distances, axis=0)
  return PairTests(
    cells=Table.summarised(np.stack(distances), *(np.stack(c) for c in zip(*columns, strict=True))),
    pairs=Table.summarised(
      mean, *_summary(mean, total / templates, np.sum(variances, axis=0) / templates ** 2)))


def _distances(row: tuple[np.ndarray, ...]) -> np.ndarray:
  """`[P]` distances of one template."""
  grid, codes = np.unique(np.concatenate(row), return_inverse=True)
  return pairwise_wasserstein_1(codes, np.array([x.size for x in row]), grid)


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
  from scipy.spatial.distance import pdist
  return pdist(np.stack(row), 'sqeuclidean') / row[0].size ** 2


def _free_variance(row: tuple[np.ndarray, ...]) -> np.ndarray:
  """`[P]` v of free samples."""
  first, second = np.triu_indices(len(row), 1)
  size = np.array([x.size for x in row], np.float64)
  low, high = (np.array([f(x) for x in row]) for f in (np.min, np.max))
  reach = np.maximum(high[first], high[second]) - np.minimum(low[first], low[second])
  n, m = size[first], size[second]
  return (reach * (n + m)) ** 2 / (
    4 * n * m * (n + m - 0.5) * (1 - 0.5 / np.maximum(n, m)))


def _coupled_null(
  row: tuple[np.ndarray, ...], permutations: int, rng: np.random.Generator
) -> np.ndarray:
  """`[P, R]` distances of one template after exchanges within sample numbers."""
  values, n = len(row), row[0].size
  grid, codes = np.unique(np.stack(row), return_inverse=True)
  # Codes of 16 bits sort by counting.
  codes = codes.reshape(values, n).astype(np.uint16 if grid.size <= 1 << 16 else np.int32)
  order = np.argsort(codes, axis=1, kind='stable')
  ascending = np.take_along_axis(codes, order, axis=1)
  # With few distinct scores all pairs share them as points, otherwise each has its own.
  shared = grid.size - 1 <= 2 * n
  signs = rng.integers(0, 2, (n, permutations), dtype=np.int8) * 2 - 1
  kind = np.int16 if n < 1 << 15 else np.int32
  null = np.empty((values * (values - 1) // 2, permutations))
  width = max(1, min(permutations, _BYTES // (values * (n + 1) * np.dtype(kind).itemsize)))
  for start in range(0, permutations, width):
    part = np.ascontiguousarray(signs[:, start:start + width], kind)

    def running_sums(a, part=part):
      sums = np.zeros((n + 1, part.shape[1]), kind)
      for k, i in enumerate(order[a]):
        np.add(sums[k], part[i], out=sums[k + 1])
      below = np.searchsorted(ascending[a], np.arange(grid.size - 1), side='right')
      return sums[below] if shared else sums

    sums = [running_sums(a) for a in range(values)]  # too small for threads

    def pairs_of(a, start=start, sums=sums):
      first = a * values - a * (a + 1) // 2 - a - 1
      area = _Area(sums[a].shape[1], kind)
      for b in range(a + 1, values):
        at, points = (None, None), grid
        if not shared:
          both = np.concatenate([ascending[a], ascending[b]])
          merged = both.argsort(kind='stable')
          both = both[merged]
          last = np.flatnonzero(both[1:] != both[:-1])  # of each score but the largest
          first_below = np.cumsum(merged < n)[last]
          at, points = (first_below, last + 1 - first_below), grid[both[np.append(last, 2 * n - 1)]]
        null[first + b, start:start + width] = area.between(
          sums[a], sums[b], *at, np.diff(points) / n)

    if n * permutations >= 500_000:
      in_threads(pairs_of, range(values - 1))
    else:  # threads would wait for the interpreter's lock
      for a in range(values - 1):
        pairs_of(a)
  return null


class _Area:
  """Areas between running sums; keeps its arrays, since fresh memory costs more than the sums."""

  def __init__(self, permutations: int, kind: type):
    """Makes the arrays for sums `[n + 1, R]` of some integer kind."""
    self._own, self._other = np.empty((2, _ROWS, permutations), kind)
    self._float = np.empty((_ROWS, permutations))

  def between(
    self, sums: np.ndarray, other: np.ndarray, at: np.ndarray | None, other_at: np.ndarray | None,
    gaps: np.ndarray,
  ) -> np.ndarray:
    """`[R]` areas, from the rows of each gap; all rows in turn where `at` is None."""
    result = np.zeros(sums.shape[1])
    for start in range(0, gaps.size, _ROWS):
      part = gaps[start:start + _ROWS]
      own, others, floats = (x[:part.size] for x in (self._own, self._other, self._float))
      if at is None:
        np.subtract(sums[start:start + part.size], other[start:start + part.size], out=own)
      else:
        # Clipping changes no index; it spares NumPy a copy of the result.
        sums.take(at[start:start + _ROWS], axis=0, out=own, mode='clip')
        other.take(other_at[start:start + _ROWS], axis=0, out=others, mode='clip')
        np.subtract(own, others, out=own)
      np.abs(own, out=own)
      floats[...] = own
      result += part @ floats
    return result


def _free_null(
  row: tuple[np.ndarray, ...], permutations: int, rng: np.random.Generator
) -> np.ndarray:
  """`[P, R]` distances of one template after exchanges over all samples of a pair."""
  first, second = np.triu_indices(len(row), 1)
  sizes = np.array([x.size for x in row])
  null = np.empty((first.size, permutations))
  combinations, which = np.unique(
    np.sort(np.stack([sizes[first], sizes[second]], axis=1)), axis=0, return_inverse=True)
  for c, (n, m) in enumerate(combinations):
    members = np.flatnonzero(which.reshape(-1) == c)
    width = max(1, min(permutations, _BYTES // (24 * (n + m))))
    for start in range(0, permutations, width):
      walks = _walks(int(n), int(m), min(width, permutations - start), rng)
      chunk = max(1, _BYTES // (24 * (n + m)))
      for begin in range(0, members.size, chunk):
        part = members[begin:begin + chunk]
        gaps = np.stack([np.diff(np.sort(np.concatenate([row[first[p]], row[second[p]]])))
                         for p in part])
        # The last digits of a product of floats may depend on the number of cores. The sums of the
        # high digits are exact, and the rest is too small to change what is rounded.
        unit = math.ldexp(1.0, math.frexp(n * m * gaps.sum(axis=1).max())[1] - 52)
        high = np.round(gaps / unit) * unit
        null[part, start:start + width] = (
          high @ walks.T + (gaps - high) @ walks.T) / (n * m)
  return null


def _walks(n: int, m: int, count: int, rng: np.random.Generator) -> np.ndarray:
  """`[count, n + m - 1]` differences of distribution functions under random labels, times n m."""
  words = rng.integers(0, 1 << 64, (count, n + m), dtype=np.uint64)
  words &= ~np.uint64(1)
  words[:, :n] |= np.uint64(1)  # the label
  words.sort(axis=1)
  below = np.cumsum((words & np.uint64(1)).astype(np.int64), axis=1)[:, :-1]
  return np.abs(below * (n + m) - np.arange(1, n + m) * n).astype(np.float64)
