"""Correlations, with percentile intervals of a bootstrap over clusters of items.

Items that share their noise are drawn together. A percentile interval is right for correlations and
Cohen's kappa: both are smooth functions of means over items and away from their bounds, ties are
resampled as they are, and no distribution is assumed, where the usual formula for Spearman supposes
continuous scores. It is wrong for Wasserstein distances, whose least value is "no difference": they
have permutation tests. `scipy.stats.bootstrap` draws single items only, never clusters.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

LEAST_CLUSTERS = 10


@dataclasses.dataclass(frozen=True)
class Interval:
  """A statistic with its interval; `low` is None with fewer than `LEAST_CLUSTERS` clusters."""

  value: float | None  # None where something is constant, or nothing was rated
  n: int  # items, or pairs of ratings
  low: float | None = None  # 2.5th percentile of the bootstrap
  high: float | None = None  # 97.5th
  resamples: int = 0  # on which the statistic was defined

  def to_dict(self) -> dict[str, Any]:
    """Fields as plain JSON types."""
    return dataclasses.asdict(self)


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:
  """Spearman's rank correlation, equal values at their mean rank; None if one is constant."""
  from scipy.stats import rankdata
  return pearson(rankdata(x), rankdata(y))


def pearson(x: np.ndarray, y: np.ndarray) -> float | None:
  """Pearson's correlation of `[n]` floats; None if one is constant or n is below 2."""
  x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
  if x.size < 2 or (x == x[0]).all() or (y == y[0]).all():
    return None
  x, y = x - x.mean(), y - y.mean()
  return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def correlate(
  statistic: Callable[[np.ndarray, np.ndarray], float | None], x: np.ndarray, y: np.ndarray,
  clusters: Sequence[Hashable], *, resamples: int, seed: int,
) -> Interval:
  """A correlation with its cluster bootstrap interval."""
  groups = Clusters(clusters)

  def draw(rng):
    index = groups.draw(rng)
    return statistic(x[index], y[index])

  return bootstrap_interval(statistic(x, y), len(x), groups.count, draw, resamples=resamples,
                            seed=seed)


class Clusters:
  """Positions by cluster, to draw whole clusters with replacement."""

  def __init__(self, names: Sequence[Hashable]):
    numbers: dict[Hashable, int] = {}
    own = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
    self.count = len(numbers)
    self._order = np.argsort(own, kind='stable')
    self._sizes = np.bincount(own, minlength=self.count)
    self._starts = np.cumsum(self._sizes) - self._sizes

  def draw(self, rng: np.random.Generator) -> np.ndarray:
    """Positions of `count` clusters drawn with replacement."""
    chosen = rng.integers(self.count, size=self.count)
    sizes = self._sizes[chosen]
    inside = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return self._order[np.repeat(self._starts[chosen], sizes) + inside]


def bootstrap_interval(
  value: float | None, n: int, clusters: int,
  draw: Callable[[np.random.Generator], float | None], *, resamples: int, seed: int,
) -> Interval:
  """Adds the percentile interval of `resamples` draws."""
  if value is None or clusters < LEAST_CLUSTERS:
    return Interval(value, n)
  rng = np.random.default_rng(np.random.SeedSequence((seed, 0x34)))
  values = [v for v in (draw(rng) for _ in range(resamples)) if v is not None]
  if not values:
    return Interval(value, n)
  low, high = np.quantile(values, (0.025, 0.975))
  return Interval(value, n, float(low), float(high), len(values))
