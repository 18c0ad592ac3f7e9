"""Wasserstein-1 distance between empirical distributions of scores on the line.

Letters: A attribute values (groups of samples), n samples of one group, U distinct scores.

Huang et al. 2020, section 3 and Eq. 1 (H-03): W1 is the average over thresholds of the difference
of the shares of samples above the threshold, which equals the area between the two distribution
functions and, for samples of equal size, the mean difference of the sorted samples.
"""

import numpy as np


def wasserstein_1(x: np.ndarray, y: np.ndarray) -> float:
  """Wasserstein-1 distance of two samples, exact for unequal sizes and ties (H-03).

  Args:
    x: `[n]` finite floats, in any order.
    y: `[m]` finite floats.

  Returns:
    The distance in the units of the samples: in [0, 1] for scores in [0, 1]. Two finite samples of
    one distribution have a distance above 0: compare with the null floor of `fairness`.

  Raises:
    ValueError: an empty, non-finite or not one-dimensional sample.

  >>> wasserstein_1(np.array([0.0, 1.0]), np.array([0.5]))
  0.5
  """
  x, y = _sorted_sample(x), _sorted_sample(y)
  if x.size == y.size:
    return float(np.abs(x - y).mean())
  grid = np.sort(np.concatenate([x, y]))
  below_x = np.searchsorted(x, grid[:-1], side='right')
  below_y = np.searchsorted(y, grid[:-1], side='right')
  # Integers until the division: equal distribution functions then differ by exactly 0.
  area = np.abs(below_x * y.size - below_y * x.size) @ np.diff(grid)
  return float(area / (x.size * y.size))


def wasserstein_1_equal(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Wasserstein-1 distance along the last axis, for batches of samples of equal size.

  Args:
    x: `[..., n]` finite floats.
    y: `[..., n]` finite floats; the leading axes broadcast against those of `x`.

  Returns:
    `[...]` float64, the distances.

  Raises:
    ValueError: the last axes differ in length or are empty.

  >>> wasserstein_1_equal(np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([1.0, 0.5])).tolist()
  [0.25, 0.75]
  """
  x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
  if x.shape[-1:] != y.shape[-1:] or not x.shape or x.shape[-1] == 0:
    raise ValueError(f'samples of equal size are needed along the last axis: {x.shape}, {y.shape}')
  return np.abs(np.sort(x, axis=-1) - np.sort(y, axis=-1)).mean(axis=-1)


def pairwise_wasserstein_1(codes: np.ndarray, sizes: np.ndarray, grid: np.ndarray) -> np.ndarray:
  """All pairwise distances of several samples given as codes into sorted distinct scores.

  Each sample is written as a vector such that the city-block distance of two vectors is W1: its
  sorted scores divided by n where sizes are equal and distinct scores are many, otherwise its
  distribution function times the gaps between the distinct scores. Exact either way.

  Args:
    codes: `[sum(sizes)]` int, index into `grid` of every score, sample after sample.
    sizes: `[A]` int > 0.
    grid: `[U]` float64, ascending distinct scores.

  Returns:
    `[A (A - 1) / 2]` float64, in the order of `np.triu_indices(A, 1)`.

  >>> pairwise_wasserstein_1(np.array([0, 1, 1]), np.array([1, 1, 1]), np.array([0, 0.5])).tolist()
  [0.5, 0.5, 0.0]
  """
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


def distance_to_pool(codes: np.ndarray, pool_counts: np.ndarray, grid: np.ndarray) -> float:
  """Wasserstein-1 distance between one sample and a pool, both over the same distinct scores.

  Args:
    codes: `[n]` int, index into `grid` of every score of the sample.
    pool_counts: `[U]` int, how often each distinct score occurs in the pool.
    grid: `[U]` float64, ascending distinct scores.

  Returns:
    The distance; exactly 0.0 where the shares of every score agree.
  """
  total = int(pool_counts.sum())
  counts = np.bincount(codes, minlength=grid.size)
  difference = np.cumsum(counts * total - pool_counts * codes.size)[:-1]
  return float(np.abs(difference) @ np.diff(grid) / (total * codes.size))


def _sorted_sample(values: np.ndarray) -> np.ndarray:
  """Sorted float64 copy of one sample, checked."""
  values = np.sort(np.asarray(values, np.float64))
  if values.ndim != 1 or values.size == 0:
    raise ValueError(f'a sample is a non-empty vector, not an array of shape {values.shape}')
  if not np.isfinite(values).all():
    raise ValueError('a sample holds a value that is not finite')
  return values
