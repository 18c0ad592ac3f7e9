"""Distances with what is needed to judge them: floors, p-values, Holm's correction, tables."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

LEVEL = 0.05  # of every test
Z = 1.959963984540054  # quantile of the normal distribution for a two-sided 95 % interval
TIE = 1e-11  # rounding: distances that differ by less count as equal
WITHIN, ABOVE = 'within noise', 'above noise'  # the two verdicts


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A distance with what is needed to judge it."""

  value: float  # the statistic as the paper defines it, in [0, 1]
  # what it averages over: 'all pairs', 'across subgroups', 'within subgroups', 'subgroups against
  # all', or of crossed attributes 'pairs of ATTRIBUTE' or 'combinations'
  group: str
  count: int  # pairs of values, or subgroups, that is (of one template)
  n_min: int  # smallest and largest number of samples per prefix
  n_max: int
  null_mean: float  # expected by chance: the mean over permutations of the values' labels
  # The floor, the 95th percentile over permutations; a `value` up to it is "within noise". From 19
  # permutations on, a value exceeds it exactly when `p_value` is at most 0.05.
  null_p95: float
  # Share of permutations (the observed labelling counted in) that reach `value`. Never too small:
  # where nothing differs, at most 5 % of such tests have 0.05 or less.
  p_value: float
  # The same where permutations that give just `value` count by half (Lancaster 1961). The two agree
  # on continuous scores. On few distinct scores, where many permutations give the very value,
  # `p_value` rejects in less than 5 % and this one in about 5 %, without a guarantee.
  mid_p_value: float
  # By a delete-a-group jackknife over samples; None below 20 samples per prefix. It describes
  # values clearly above the floor: near 0 the statistic is not normal, and a percentile bootstrap
  # would never contain 0.
  std_error: float | None
  definition: str  # ID of the definition, with the equation
  coupled: bool  # the permutation was within sample numbers
  permutations: int  # of the floor
  # Of I.F., the share of (template, pair) with a distance of at most its own `floor` and below
  # `0.05` and `0.1` (H-04, Eq. 2), and how many have a Holm p of at most 0.05; None for others.
  pairs_below: dict[str, float] | None = None
  significant_pairs: int | None = None
  direction: str = 'lower is fairer'

  @property
  def corrected(self) -> float:
    """The value less what is expected by chance, at least 0.

    Chance adds to a distance most where there is no bias and least where there is much, so this
    takes off too much from large values: a lower estimate, never one that invents bias.
    """
    return max(0.0, self.value - self.null_mean)

  @property
  def within_floor(self) -> bool:
    """True when the value does not exceed its floor."""
    return bool(is_within(self.value, self.null_p95))

  def to_dict(self) -> dict[str, Any]:
    """Fields and derived values as plain JSON types."""
    return {**dataclasses.asdict(self), 'corrected': self.corrected,
            'within_floor': self.within_floor}


@dataclasses.dataclass(frozen=True)
class Table:
  """Many distances with their floors and p-values, as float64 arrays of equal shape."""

  distance: np.ndarray  # W1 in [0, 1]
  null_mean: np.ndarray  # expected by chance: the mean over permutations
  null_p95: np.ndarray  # the floor: the 95th percentile over permutations
  p_value: np.ndarray  # in (0, 1]
  mid_p_value: np.ndarray  # in (0, 1), see `Estimate`
  p_holm: np.ndarray  # in (0, 1], corrected over all entries of the table (Holm 1979)

  @classmethod
  def of(cls, distance: np.ndarray, null: np.ndarray) -> 'Table':
    """A table from distances `[...]` and their null distributions `[..., R]`."""
    return cls.summarised(distance, *summarise(distance, null))

  @classmethod
  def summarised(cls, distance: np.ndarray, null_mean: np.ndarray, null_p95: np.ndarray,
                 p_value: np.ndarray, mid_p_value: np.ndarray) -> 'Table':
    """A table from columns; Holm's correction of `p_value` is added."""
    return cls(distance, null_mean, null_p95, p_value, mid_p_value,
               holm(p_value.reshape(-1)).reshape(p_value.shape))

  @property
  def corrected(self) -> np.ndarray:
    """Distances less what is expected by chance, at least 0."""
    return np.maximum(0.0, self.distance - self.null_mean)

  @property
  def within_floor(self) -> np.ndarray:
    """Bool: which distances do not exceed their floor."""
    return is_within(self.distance, self.null_p95)

  def to_dict(self) -> dict[str, Any]:
    """Columns as (nested) lists of JSON types."""
    columns = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    columns |= {'corrected': self.corrected, 'within_floor': self.within_floor}
    return {name: column.tolist() for name, column in columns.items()}


def wasserstein_1(x: np.ndarray, y: np.ndarray) -> float:
  """Wasserstein-1 distance of two samples, exact for unequal sizes and ties (H-03).

  It averages over thresholds the difference of the shares of samples above the threshold (Huang et
  al. 2020, section 3 and Eq. 1), which equals the area between the two distribution functions and,
  for samples of equal size, the mean difference of the sorted samples.

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


def is_within(value: Any, floor: Any) -> Any:
  """Whether values (numbers or arrays) are within noise: at most their floor, ties included."""
  return value <= floor + TIE


def verdict(found: Mapping[str, Any]) -> str:
  """'within noise' or 'above noise', by the unrounded `value` and its floor `null_p95`."""
  return WITHIN if is_within(found['value'], found['null_p95']) else ABOVE


def format_estimate(
  found: Mapping[str, Any], *, digits: int = 4, unit: str = '', error: bool = False,
  named: bool = True,
) -> str:
  """A value with its floor and the verdict, as every output of fairjax shows it.

  Args:
    found: `Estimate.to_dict()`, or another mapping with `value` and `null_p95` (and `std_error`).
    digits: of the numbers.
    unit: after the value.
    error: with the standard error, where there is one.
    named: with the word "floor"; False where a heading has it.

  >>> format_estimate({'value': 0.02261, 'null_p95': 0.02318})
  '0.0226 (floor 0.0232), within noise'
  >>> format_estimate({'value': 0.02262, 'null_p95': 0.02261}, named=False)
  '0.0226 (0.0226), above noise before rounding'
  """
  value, floor = (f'{found[key]:.{digits}f}' for key in ('value', 'null_p95'))
  spread = ''
  if error and found['std_error'] is not None:
    spread = f" \u00b1 {found['std_error']:.{digits}f}"
  words = f"{value}{spread}{unit and f' {unit}'} ({'floor ' if named else ''}{floor})"
  hidden = value == floor and abs(found['value'] - found['null_p95']) > TIE
  return f"{words}, {verdict(found)}{' before rounding' if hidden else ''}"


def summarise(
  distance: np.ndarray, null: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Null mean, 95th percentile, p- and mid-p-value of distances `[...]` with nulls `[..., R]`."""
  distance, labellings = np.asarray(distance)[..., None], null.shape[-1] + 1
  reached = np.count_nonzero(null >= distance - TIE, axis=-1) + 1  # with the observed labelling
  exceeded = np.count_nonzero(null > distance + TIE, axis=-1)
  return (null.mean(axis=-1), percentile_95(null), reached / labellings,
          (reached + exceeded) / (2 * labellings))


def percentile_95(null: np.ndarray) -> np.ndarray:
  """Along the last axis, what a value exceeds exactly when its p-value is at most 0.05."""
  count = null.shape[-1]
  rank = min(count, math.ceil((1 - LEVEL) * (count + 1) - 1e-9))
  return np.partition(null, rank - 1, axis=-1)[..., rank - 1]


def holm(p_values: np.ndarray) -> np.ndarray:
  """Holm's correction for many tests (Holm 1979): valid however the tests depend on each other."""
  p_values = np.asarray(p_values, np.float64)
  order = np.argsort(p_values, kind='stable')
  factors = np.arange(len(p_values), 0, -1)
  corrected = np.minimum(1, np.maximum.accumulate(p_values[order] * factors))
  result = np.empty_like(corrected)
  result[order] = corrected
  return result


def wilson(share: float, count: float) -> tuple[float, float]:
  """95 % Wilson interval of a share of `count` trials."""
  centre = (share + Z ** 2 / (2 * count)) / (1 + Z ** 2 / count)
  half = Z * math.sqrt(share * (1 - share) / count + Z ** 2 / (4 * count ** 2)) / (
    1 + Z ** 2 / count)
  return max(0.0, float(centre - half)), min(1.0, float(centre + half))


@dataclasses.dataclass(frozen=True)
class SampleScores:
  """Scores of the continuations of every prefix: M templates, A values, n samples of a prefix."""

  values: tuple[str, ...]  # [A] names of the attribute's values
  subgroups: tuple[str, ...]  # [A] subgroup of each value
  templates: tuple[int | str, ...]  # [M] labels
  # [M][A] float64 arrays [n] in [0, 1]; n may differ from prefix to prefix
  scores: tuple[tuple[np.ndarray, ...], ...]
  # [M][A] int arrays [n], distinct, ascending; None: not numbered. Equal numbers of two values of a
  # template name samples that were drawn together.
  sample_ids: tuple[tuple[np.ndarray, ...], ...] | None = None

  @property
  def coupled(self) -> bool:
    """True when every value of a template holds the same sample numbers."""
    return self.sample_ids is not None and all(
      np.array_equal(row[0], ids) for row in self.sample_ids for ids in row)

  @property
  def sizes(self) -> np.ndarray:
    """`[M, A]` int, samples of every prefix."""
    return np.array([[x.size for x in row] for row in self.scores])

  @property
  def samples_per_prefix(self) -> tuple[int, int]:
    """Smallest and largest number of samples of a prefix."""
    sizes = self.sizes
    return int(sizes.min()), int(sizes.max())

  @property
  def subgroup_names(self) -> tuple[str, ...]:
    """`[G]` names of the subgroups, in the order of appearance."""
    return tuple(dict.fromkeys(self.subgroups))

  @property
  def subgroup_index(self) -> np.ndarray:
    """`[A]` int, index of each value's subgroup in `subgroup_names`."""
    order = {name: i for i, name in enumerate(self.subgroup_names)}
    return np.array([order[s] for s in self.subgroups])
