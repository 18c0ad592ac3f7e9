"""Correlations, with percentile intervals of a bootstrap over clusters of items.

Items that share their noise are drawn together. A percentile interval is right for correlations and
Cohen's kappa: both are smooth functions of means over items and away from their bounds, ties are
resampled as they are, and no distribution is assumed, where the usual formula for Spearman supposes
continuous scores. It is wrong for Wasserstein distances, whose least value is "no difference": they
have permutation tests. `scipy.stats.bootstrap` draws single items only, never clusters.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

LEAST_CLUSTERS = 10


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:
  """Spearman's rank correlation, equal values at their mean rank; None if one is constant."""
  from scipy.stats import rankdata
  return pearson(rankdata(x), rankdata(y))


def pearson(x: np.ndarray, y: np.ndarray) -> float | None:
  """Pearson's correlation of `[n]` floats; None if one is constant, or its squares are 0 or inf."""
  x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
  if x.size < 2 or (x == x[0]).all() or (y == y[0]).all():
    return None
  with np.errstate(over='ignore', invalid='ignore'):
    x, y = x - x.mean(), y - y.mean()
    squares = (x @ x) * (y @ y)
  return float(np.clip(x @ y / np.sqrt(squares), -1.0, 1.0)) if 0 < squares < np.inf else None


def correlate(
  statistic: Callable[[np.ndarray, np.ndarray], float | None], x: np.ndarray, y: np.ndarray,
  clusters: Sequence[Hashable], *, resamples: int, seed: int,
) -> dict[str, Any]:
  """A correlation with its cluster bootstrap interval, see `bootstrap_interval`."""
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
) -> dict[str, Any]:
  """A `value` with the percentile interval of `resamples` draws, JSON types."""
  # `value` is None where something is constant, or nothing was rated; `n`: items, or pairs of
  # ratings; `low` and `high` (2.5th and 97.5th percentile) are None with fewer than
  # `LEAST_CLUSTERS` clusters; `resamples`: those on which the statistic was defined.
  found: dict[str, Any] = {'value': value, 'n': n, 'low': None, 'high': None, 'resamples': 0}
  if value is None or clusters < LEAST_CLUSTERS:
    return found
  rng = np.random.default_rng(np.random.SeedSequence((seed, 0x34)))
  values = [v for v in (draw(rng) for _ in range(resamples)) if v is not None]
  if not values:
    return found
  low, high = np.quantile(values, (0.025, 0.975))
  return found | {'low': float(low), 'high': float(high), 'resamples': len(values)}
