"""Wasserstein-1 distance between empirical distributions of scores on the line.

Letters: A attribute values (groups of samples), n samples of one group, U distinct scores.

Huang et al. 2020, section 3 and Eq. 1 (H-03): W1 is the average over thresholds of the difference
of the shares of samples above the threshold, which equals the area between the two distribution
functions and, for samples of equal size, the mean difference of the sorted samples.
"""

import dataclasses

import numpy as np


def wasserstein_1(x: np.ndarray, y: np.ndarray) -> float:
  """Wasserstein-1 distance of two samples, exact for unequal sizes and ties (H-03).

  Args:
    x: `[n]` finite floats, in any order, at least one.
    y: `[m]` finite floats.

  Returns:
    The distance in the units of the samples: in [0, 1] for scores in [0, 1]. Two finite samples of
    one distribution have a distance above 0: compare with the floor of `fairness`.

  >>> wasserstein_1(np.array([0.0, 1.0]), np.array([0.5]))
  0.5
  """
  x, y = (np.sort(np.asarray(z, np.float64)) for z in (x, y))
  if x.size == y.size:
    return float(np.abs(x - y).mean())
  grid = np.sort(np.concatenate([x, y]))
  below_x = np.searchsorted(x, grid[:-1], side='right')
  below_y = np.searchsorted(y, grid[:-1], side='right')
  # Integers until the division: equal distribution functions then differ by exactly 0.
  area = np.abs(below_x * y.size - below_y * x.size) @ np.diff(grid)
  return float(area / (x.size * y.size))


def pairwise_wasserstein_1(codes: np.ndarray, sizes: np.ndarray, grid: np.ndarray) -> np.ndarray:
  """`[A (A - 1) / 2]` distances of all pairs of A samples, in the order of `np.triu_indices(A, 1)`.

  `codes` `[sum(sizes)]` are places of the scores in `grid` `[U]`, ascending, sample after sample.
  """
  # Each sample is written as a vector such that the city-block distance of two vectors is W1: its
  # sorted scores divided by n where sizes are equal and distinct scores are many, otherwise its
  # distribution function times the gaps between the distinct scores. Exact either way.
  from scipy.spatial.distance import pdist

  groups, distinct = sizes.size, grid.size
  if (sizes == sizes[0]).all() and distinct > sizes[0]:
    vectors = grid[np.sort(codes.reshape(groups, -1), axis=1)]
    return pdist(vectors, 'cityblock') / sizes[0]
  offsets = np.repeat(np.arange(groups) * distinct, sizes)
  counts = np.bincount(codes + offsets, minlength=groups * distinct).reshape(groups, distinct)
  shares = counts.cumsum(axis=1)[:, :-1] / sizes[:, None]
  if distinct == 1:
    return np.zeros(groups * (groups - 1) // 2)
  return pdist(shares * np.diff(grid), 'cityblock')


_TOGETHER = 1 << 15  # numbers


class PoolDistance:
  """Exact distances of samples of any sizes to one pool, in time linear in the sample."""

  # With few distinct scores, the area between the distribution functions. With many, that between
  # the quantile functions: the k-th smallest of S samples faces the S-th part of the N sorted
  # scores of the pool from lo = k N / S to hi = (k + 1) N / S. With P(t), the sum of the pool's
  # first t scores (linear between whole numbers), the absolute differences from a sample x sum to
  # |x (hi - lo) - P(hi) + P(lo)| where the part is on one side of x, otherwise to
  # x (2 r - lo - hi) + P(lo) + P(hi) - 2 P(r), where r is the rank of x in the pool, at most hi.

  def __init__(self, grid: np.ndarray, counts: np.ndarray):
    """Prepares ascending distinct scores `[U]` and how often the pool holds each `[U]`."""
    # Sums about the mean are smaller, so they lose fewer digits.
    # Not `@`: the last digits of long products depend on the number of cores.
    self._grid = grid - (grid * counts).sum() / counts.sum()
    self._counts = counts
    self._rank = np.concatenate([[0], np.cumsum(counts)]).astype(np.float64)
    self._sum = np.concatenate([[0], np.cumsum(self._grid * counts)])
    self._parts: dict[int, _Parts] = {}

  def distances(self, codes: np.ndarray) -> np.ndarray:
    """`[B]` distances of samples `[B, S]`, ascending places of scores in the grid."""
    rows, size = codes.shape
    points = self._grid.size
    if points <= size:
      at = codes + np.arange(rows)[:, None] * points
      counts = np.bincount(at.reshape(-1), minlength=rows * points).reshape(rows, points)
      total = int(self._counts.sum())
      # Integers until the end: equal distribution functions then differ by exactly 0.
      differences = np.cumsum(counts * total - self._counts * size, axis=1)[:, :-1]
      return (np.abs(differences) * np.diff(self._grid)).sum(axis=1) / (total * size)
    if size not in self._parts:
      self._parts[size] = _Parts.of(size, self._rank, self._sum)
    p = self._parts[size]
    result = np.empty(rows)
    together = max(1, _TOGETHER // size)
    for start in range(0, rows, together):  # so many stay in the processor's cache
      part = codes[start:start + together]
      areas = self._grid.take(part, mode='clip')  # clips nothing; it spares NumPy a check
      areas *= p.width
      areas -= p.total
      np.abs(areas, out=areas)
      # Parts that reach around x.
      around = np.flatnonzero((part >= p.first) & (part <= p.last))
      k = around % size
      code, low, high = part.reshape(-1)[around], p.low[k], p.high[k]
      rank = self._rank[code + 1]
      beyond = rank > high
      areas.reshape(-1)[around] = (
        self._grid[code] * (2 * np.where(beyond, high, rank) - low - high) + p.low_sum[k]
        + p.high_sum[k] - 2 * np.where(beyond, p.high_sum[k], self._sum[code + 1]))
      result[start:start + together] = areas.sum(axis=1)
    return result / self._rank[-1]


@dataclasses.dataclass(frozen=True)
class _Parts:
  """The parts of a pool that the samples of one size face, `[S]` each."""

  low: np.ndarray
  high: np.ndarray
  low_sum: np.ndarray
  high_sum: np.ndarray
  width: np.ndarray
  total: np.ndarray
  first: np.ndarray  # first and last code of the pool in the part
  last: np.ndarray

  @classmethod
  def of(cls, size: int, rank: np.ndarray, sums: np.ndarray) -> '_Parts':
    """Parts of a pool with its ranks and sums at the ends of its codes `[U + 1]`."""
    bounds = np.arange(size + 1) * rank[-1] / size  # in this order whole numbers stay whole
    at = np.interp(bounds, rank, sums)
    low, high = bounds[:-1], bounds[1:]
    return cls(
      low, high, at[:-1], at[1:], np.diff(bounds), np.diff(at),
      np.searchsorted(rank[1:], low, side='right').astype(np.int32),
      (np.searchsorted(rank[:-1], high, side='left') - 1).astype(np.int32))


def quantile_grid(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Ranks `[K, W]` of samples of K sizes between points of one grid, and the widths `[W]`."""
  # Division rounds equal fractions of different sizes to the same number.
  ends = np.unique(np.concatenate([np.arange(1, n + 1) / n for n in sizes]))
  ranks = np.stack([np.searchsorted(np.arange(1, n + 1) / n, ends) for n in sizes])
  return ranks, np.diff(ends, prepend=0.0)
