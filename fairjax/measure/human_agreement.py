"""Agreement between annotators, and of annotators with scores.

Letters: L labels, I items, n pairs of numbers.

Spearman's correlation and Cohen's kappa get percentile intervals of a bootstrap over clusters of
items (items that share their noise are drawn together). That is right here: both are smooth
functions of means over items and away from their bounds, ties are resampled as they are, and no
distribution of the scores is assumed, where the usual formula for Spearman supposes continuous
ones. It is wrong for Wasserstein distances, whose least value is "no difference", so human I.F. has
a permutation test instead. With fewer than 10 clusters there is no interval.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LEAST_CLUSTERS = 10


@dataclasses.dataclass(frozen=True)
class Interval:
  """A statistic with its interval.

  Attributes:
    value: None where it is not defined (something is constant, or nothing was rated).
    n: items, or pairs of ratings, behind it.
    low: 2.5th percentile of the bootstrap; None without an interval.
    high: 97.5th.
    resamples: bootstrap resamples on which the statistic was defined.
  """

  value: float | None
  n: int
  low: float | None = None
  high: float | None = None
  resamples: int = 0

  def to_dict(self) -> dict[str, Any]:
    """Fields as plain JSON types."""
    return dataclasses.asdict(self)


def cohen_kappa(table: np.ndarray, *, linear: bool = False) -> float | None:
  """Cohen's kappa of two raters: 1 - observed disagreement / disagreement expected by chance.

  Args:
    table: `[L, L]` counts, first rater by second.
    linear: weigh a disagreement by the distance of the labels, which must then be in order;
      otherwise every disagreement counts 1.

  Returns:
    At most 1; 0 at chance; None where chance leaves no disagreement (both always say the same one
    label) or nothing was rated.

  Raises:
    ValueError: the table is not square or holds a negative number.

  >>> cohen_kappa(np.array([[20, 5], [10, 15]]))
  0.4
  """
  table = np.asarray(table, np.float64)
  if table.ndim != 2 or table.shape[0] != table.shape[1] or (table < 0).any():
    raise ValueError(f'a table of counts of L by L labels is needed, not {table.shape}')
  place = np.arange(table.shape[0])
  cost = np.abs(place[:, None] - place).astype(np.float64)
  if not linear:
    cost = (cost > 0).astype(np.float64)
  total = table.sum()
  expected = (cost * np.outer(table.sum(axis=1), table.sum(axis=0))).sum()
  if expected == 0:
    return None
  return float(1 - (cost * table).sum() * total / expected)


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:
  """Spearman's rank correlation, equal values at their mean rank; None if one is constant.

  >>> spearman(np.array([1, 2, 3, 4]), np.array([10, 20, 40, 30]))
  0.8
  """
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
  statistic, x: np.ndarray, y: np.ndarray, clusters: Sequence[Any], *, resamples: int, seed: int,
) -> Interval:
  """A correlation with its cluster bootstrap interval.

  Args:
    statistic: `spearman` or `pearson`.
    x: `[n]` floats.
    y: `[n]` floats.
    clusters: `[n]` names; items of one name are drawn together.
    resamples: bootstrap resamples.
    seed: of the bootstrap.
  """
  groups = _Clusters(clusters)

  def draw(rng):
    index = groups.draw(rng)
    return statistic(x[index], y[index])

  return _interval(statistic(x, y), len(x), groups.count, draw, resamples=resamples, seed=seed)


def rater_tables(
  labels: Mapping[str, Mapping[str, str]], names: Sequence[str]
) -> dict[tuple[str, str], dict[str, tuple[int, int]]]:
  """Items that two annotators rated both: (first, second) -> item -> numbers of their labels.

  Args:
    labels: item -> annotator -> label.
    names: labels to count; an item of which one of the two said another label is left out.
  """
  index = {name: i for i, name in enumerate(names)}
  tables: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
  for item, by_annotator in labels.items():
    for first, second in itertools.combinations(sorted(by_annotator), 2):
      a, b = index.get(by_annotator[first]), index.get(by_annotator[second])
      if a is not None and b is not None:
        tables.setdefault((first, second), {})[item] = (a, b)
  return tables


def agreement(
  labels: Mapping[str, Mapping[str, str]], names: Sequence[str], *, linear: bool,
  clusters: Mapping[str, Any], resamples: int, seed: int,
) -> dict[str, Any]:
  """Cohen's kappa over all annotators and of each two.

  `pooled` is kappa of the sum of all pairs' tables, each counted in both directions, since who is
  first is arbitrary: chance is then that of the annotators together. `mean_of_pairs` averages the
  kappas of pairs, as the paper seems to; with few common items a pair its terms are very noisy.

  Args:
    labels: item -> annotator -> label.
    names: the labels, in order if `linear`.
    linear: see `cohen_kappa`.
    clusters: item -> name of its cluster.
    resamples: bootstrap resamples of `pooled`.
    seed: of the bootstrap.

  Returns:
    JSON-able: `pooled` (an `Interval`), `observed` (share of equal labels), `mean_of_pairs` with
    `pairs_defined`, and `pairs`: annotators, n and kappa of each two.
  """
  tables = rater_tables(labels, names)
  size = len(names)
  items = list(dict.fromkeys(item for table in tables.values() for item in table))
  row = {item: i for i, item in enumerate(items)}
  counts = np.zeros((len(items), size, size))
  pairs = []
  for (first, second), table in sorted(tables.items()):
    own = np.zeros((size, size))
    for item, (a, b) in table.items():
      own[a, b] += 1
      counts[row[item], a, b] += 0.5
      counts[row[item], b, a] += 0.5
    pairs.append({'annotators': [first, second], 'n': len(table),
                  'kappa': cohen_kappa(own, linear=linear)})
  groups = _Clusters([clusters[item] for item in items])

  def draw(rng):
    return cohen_kappa(counts[groups.draw(rng)].sum(axis=0), linear=linear)

  whole = counts.sum(axis=0)
  pooled = _interval(cohen_kappa(whole, linear=linear), int(round(whole.sum())), groups.count, draw,
                     resamples=resamples, seed=seed)
  defined = [p['kappa'] for p in pairs if p['kappa'] is not None]
  return {
    'pooled': pooled.to_dict(),
    'observed': float(np.trace(whole) / whole.sum()) if items else None,
    'mean_of_pairs': float(np.mean(defined)) if defined else None,
    'pairs_defined': len(defined), 'pairs': pairs}


class _Clusters:
  """Positions by cluster, to draw whole clusters with replacement."""

  def __init__(self, names: Sequence[Any]):
    numbers: dict[Any, int] = {}
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


def _interval(
  value: float | None, n: int, clusters: int, draw, *, resamples: int, seed: int
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
