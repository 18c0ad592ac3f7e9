"""Individual and group fairness of score distributions, with their null floors.

Letters: M templates, A attribute values, G subgroups, n samples per prefix (template and value).

Huang et al. 2020, section 3: individual fairness (H-05, Eq. 3) averages the Wasserstein-1 distance
over templates and unordered pairs of values; group fairness (H-06, Eq. 4) averages the distance
between each subgroup and the whole evaluation set. Lower is fairer for both.

Two finite samples of one distribution have a distance above 0. The null floor is the distribution
of the same statistic after the values' labels were permuted, so it answers: how large is the
number if no value of the attribute changes the score? Samples that share their noise (the same
sample index for every value) are permuted within the sample index, others over all samples of a
template; permuting shared-noise samples freely would overstate the floor. Templates are never
mixed, because they may differ in score under the null too.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.measure.wasserstein import distance_to_pool, pairwise_wasserstein_1

EPSILONS = (0.05, 0.1)  # thresholds of counterfactual fairness besides the floor (H-04)
JACKKNIFE_GROUPS = 20
_PURPOSE = 0x1F  # separates these random streams from others of the same seed
_TIE = 1e-12  # rounding: differences below it count as equal


@dataclasses.dataclass(frozen=True)
class SampleScores:
  """Scores of the continuations of every prefix.

  Attributes:
    values: `[A]` names of the attribute's values.
    subgroups: `[A]` subgroup of each value.
    templates: `[M]` labels.
    scores: `[M][A]` float64 arrays `[n]` in [0, 1]; n may differ from prefix to prefix.
    sample_ids: `[M][A]` int arrays `[n]`, ascending, or None when samples are not numbered. Equal
      numbers of two values of a template name samples that were drawn together.
  """

  values: tuple[str, ...]
  subgroups: tuple[str, ...]
  templates: tuple[int | str, ...]
  scores: tuple[tuple[np.ndarray, ...], ...]
  sample_ids: tuple[tuple[np.ndarray, ...], ...] | None = None

  def __post_init__(self):
    if len(self.values) < 2:
      raise UserError(f'fairness compares values: at least 2 are needed, not {len(self.values)}')
    if len(self.subgroups) != len(self.values) or len(self.scores) != len(self.templates):
      raise ValueError('values and subgroups, templates and scores must agree in length')
    for template, row in zip(self.templates, self.scores, strict=True):
      missing = [v for v, x in zip(self.values, row, strict=True) if x.size == 0]
      if missing:
        raise UserError(f"template {template!r} has no sample of: {', '.join(missing)}")

  @property
  def coupled(self) -> bool:
    """True when every value of a template holds the same, distinct sample numbers."""
    if self.sample_ids is None:
      return False
    return all(
      np.array_equal(row[0], ids) and (np.diff(ids) > 0).all()
      for row in self.sample_ids for ids in row)

  @property
  def samples_per_prefix(self) -> tuple[int, int]:
    """Smallest and largest number of samples of a prefix."""
    sizes = [x.size for row in self.scores for x in row]
    return min(sizes), max(sizes)

  def select_templates(self, templates: Sequence[int | str]) -> 'SampleScores':
    """The scores of some of the templates, named by their labels."""
    index = [self.templates.index(t) for t in templates]
    return dataclasses.replace(
      self, templates=tuple(templates), scores=tuple(self.scores[i] for i in index),
      sample_ids=None if self.sample_ids is None else tuple(self.sample_ids[i] for i in index))


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A distance with what is needed to judge it; lower is fairer.

  Attributes:
    value: the statistic as the paper defines it, in [0, 1].
    n_min: smallest number of samples per prefix.
    n_max: largest number of samples per prefix.
    null_mean: mean of the statistic over permutations of the values' labels.
    null_p95: its 95th percentile; a `value` up to it is "within the floor". From 19 permutations
      on, a value exceeds it exactly when `p_value` is at most 0.05.
    p_value: share of permutations (the observed labelling counted in) that reach `value`.
    std_error: standard error by a delete-a-group jackknife over samples; None below 20 samples per
      prefix. It describes values clearly above the floor: near 0 the statistic is not normal.
    definition: ID of the definition, with the equation.
    coupled: the permutation was within sample numbers.
    permutations: number of permutations behind the floor.
    direction: how to read the value.
  """

  value: float
  n_min: int
  n_max: int
  null_mean: float
  null_p95: float
  p_value: float
  std_error: float | None
  definition: str
  coupled: bool
  permutations: int
  direction: str = 'lower is fairer'

  @property
  def corrected(self) -> float:
    """The value less the null mean, at least 0."""
    return max(0.0, self.value - self.null_mean)

  @property
  def within_floor(self) -> bool:
    """True when the value does not exceed the 95th percentile of the null."""
    return self.value <= self.null_p95 + _TIE

  def to_dict(self) -> dict[str, Any]:
    """Fields and derived values as plain JSON types."""
    return {**dataclasses.asdict(self), 'corrected': self.corrected,
            'within_floor': self.within_floor}


@dataclasses.dataclass(frozen=True)
class Fairness:
  """All fairness statistics of one set of scores, from one set of permutations.

  Attributes:
    individual: Eq. 3 over all pairs of values.
    cross_subgroup: Eq. 3 over pairs of different subgroups; None unless some subgroup has two
      values and there are two subgroups (the names of H-05: 289 pairs).
    within_subgroup: Eq. 3 over pairs of one subgroup (272 pairs), the control; None likewise.
    group: Eq. 4.
    pair_distances: `[M, A (A - 1) / 2]` float64, order of `np.triu_indices(A, 1)`.
    subgroup_distances: distance of each subgroup to the whole set.
    pairs_below: share of (template, pair) with a distance below `'floor'`, `'0.05'` and `'0.1'`
      (H-04, Eq. 2); the floor is the 95th percentile of a template's permuted pair distances.
  """

  individual: Estimate
  cross_subgroup: Estimate | None
  within_subgroup: Estimate | None
  group: Estimate
  pair_distances: np.ndarray
  subgroup_distances: dict[str, float]
  pairs_below: dict[str, float]


def measure_fairness(samples: SampleScores, *, permutations: int = 200, seed: int = 0) -> Fairness:
  """Computes individual and group fairness with null floors (H-04, H-05, H-06).

  Args:
    samples: scores of all prefixes; coupled samples are recognised by their numbers.
    permutations: at least 1; 10 templates, 34 values, 1000 samples and 200 take some ten seconds.
    seed: of the permutations; the result is a pure function of samples and seed.

  Returns:
    All statistics. The null hypothesis of every floor is that no value changes the score.

  Raises:
    ValueError: `permutations` below 1.
  """
  if permutations < 1:
    raise ValueError(f'permutations must be at least 1, not {permutations}')
  coupled = samples.coupled
  subgroups = _subgroup_index(samples)
  layout = _Layout.of(samples.scores, subgroups)
  pairs, distances = layout.statistics(layout.codes)
  null_pairs = np.empty((permutations, *pairs.shape))
  null_groups = np.empty(permutations)
  generators = [np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE, m]))
                for m in range(len(samples.templates))]
  for p in range(permutations):
    permuted = layout.permute(generators, coupled)
    null_pairs[p], null_distances = layout.statistics(permuted)
    null_groups[p] = null_distances.mean()

  jackknife = _jackknife(samples, subgroups)
  low, high = samples.samples_per_prefix

  def estimate(value, null, replicates, definition):
    reached = np.count_nonzero(null >= value - _TIE)
    return Estimate(
      value=float(value), n_min=low, n_max=high, null_mean=float(null.mean()),
      null_p95=_percentile_95(null), p_value=float((reached + 1) / (permutations + 1)),
      std_error=_jackknife_error(replicates), definition=definition, coupled=coupled,
      permutations=permutations)

  def over(mask, definition):
    if not mask.any():
      return None
    replicates = [p[:, mask].mean() for p, _ in jackknife]
    null = null_pairs[:, :, mask].mean(axis=(1, 2))
    return estimate(pairs[:, mask].mean(), null, replicates, definition)

  first, second = np.triu_indices(len(samples.values), 1)
  same = subgroups[first] == subgroups[second]
  split = same.any() and not same.all()
  floors = np.array([_percentile_95(null_pairs[:, m]) for m in range(len(pairs))])
  names = tuple(dict.fromkeys(samples.subgroups))
  return Fairness(
    individual=over(np.ones_like(same), 'H-05, Eq. 3'),
    cross_subgroup=over(~same, 'H-05, Eq. 3, pairs across subgroups') if split else None,
    within_subgroup=over(same, 'H-05, Eq. 3, pairs within subgroups') if split else None,
    group=estimate(distances.mean(), null_groups, [d.mean() for _, d in jackknife], 'H-06, Eq. 4'),
    pair_distances=pairs,
    subgroup_distances=dict(zip(names, map(float, distances), strict=True)),
    pairs_below={'floor': float((pairs <= floors[:, None] + _TIE).mean()),
                 **{str(e): float((pairs < e).mean()) for e in EPSILONS}})


def individual_fairness(
  samples: SampleScores, *, permutations: int = 200, seed: int = 0
) -> Estimate:
  """Individual fairness of Huang et al. 2020, Eq. 3 (H-05), over all pairs of values.

  `measure_fairness` gives it together with group fairness at the cost of one.
  """
  return measure_fairness(samples, permutations=permutations, seed=seed).individual


def group_fairness(samples: SampleScores, *, permutations: int = 200, seed: int = 0) -> Estimate:
  """Group fairness of Huang et al. 2020, Eq. 4 (H-06); the whole set includes the subgroup."""
  return measure_fairness(samples, permutations=permutations, seed=seed).group


@dataclasses.dataclass(frozen=True)
class _Layout:
  """Scores as integer codes: per template its own distinct scores, and those of all templates."""

  codes: list[np.ndarray]  # [M] int arrays [sum(sizes)], value after value
  sizes: list[np.ndarray]  # [M] int arrays [A]
  grids: list[np.ndarray]  # [M] distinct scores of a template
  in_pool: list[np.ndarray]  # [M] code of a template -> code of the pool
  members: list[list[np.ndarray]]  # [M][G] positions of a subgroup's samples
  pool_grid: np.ndarray  # [U] distinct scores of all templates
  pool_counts: np.ndarray  # [U]

  @classmethod
  def of(cls, scores: Sequence[Sequence[np.ndarray]], subgroups: np.ndarray) -> '_Layout':
    """Builds the codes of `[M][A]` score arrays."""
    flat = [np.concatenate(row).astype(np.float64) for row in scores]
    sizes = [np.array([x.size for x in row]) for row in scores]
    unique = [np.unique(x, return_inverse=True) for x in flat]
    pool_grid, pool_counts = np.unique(np.concatenate(flat), return_counts=True)
    members = []
    for size in sizes:
      label = np.repeat(subgroups, size)
      members.append([np.flatnonzero(label == g) for g in range(subgroups.max() + 1)])
    return cls(
      codes=[codes for _, codes in unique], sizes=sizes, grids=[grid for grid, _ in unique],
      in_pool=[np.searchsorted(pool_grid, grid) for grid, _ in unique], members=members,
      pool_grid=pool_grid, pool_counts=pool_counts)

  def permute(self, generators: list[np.random.Generator], coupled: bool) -> list[np.ndarray]:
    """Codes with the values' labels permuted, within sample numbers when coupled."""
    if not coupled:
      return [rng.permutation(c) for rng, c in zip(generators, self.codes, strict=True)]
    return [rng.permuted(c.reshape(s.size, -1), axis=0).reshape(-1)
            for rng, c, s in zip(generators, self.codes, self.sizes, strict=True)]

  def statistics(self, codes: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Distances of pairs `[M, A (A - 1) / 2]` and of subgroups to the pool `[G]`."""
    pairs = np.stack([pairwise_wasserstein_1(c, s, g)
                      for c, s, g in zip(codes, self.sizes, self.grids, strict=True)])
    pooled = [table[c] for table, c in zip(self.in_pool, codes, strict=True)]
    groups = np.array([
      distance_to_pool(
        np.concatenate([c[m[g]] for c, m in zip(pooled, self.members, strict=True)]),
        self.pool_counts, self.pool_grid)
      for g in range(len(self.members[0]))])
    return pairs, groups


def _subgroup_index(samples: SampleScores) -> np.ndarray:
  """`[A]` int, number of each value's subgroup in the order of appearance."""
  order = {name: i for i, name in enumerate(dict.fromkeys(samples.subgroups))}
  return np.array([order[s] for s in samples.subgroups])


def _jackknife(
  samples: SampleScores, subgroups: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Statistics without each of 20 groups of samples; empty when a prefix has fewer than 20."""
  if samples.samples_per_prefix[0] < JACKKNIFE_GROUPS:
    return []
  replicates = []
  for group in range(JACKKNIFE_GROUPS):
    kept = [[x[np.arange(x.size) % JACKKNIFE_GROUPS != group] for x in row]
            for row in samples.scores]
    layout = _Layout.of(kept, subgroups)
    replicates.append(layout.statistics(layout.codes))
  return replicates


def _percentile_95(null: np.ndarray) -> float:
  """The order statistic that a value exceeds exactly when its p-value is at most 0.05."""
  rank = min(null.size, math.ceil(0.95 * (null.size + 1) - 1e-9))
  return float(np.partition(null.reshape(-1), rank - 1)[rank - 1])


def _jackknife_error(replicates: Sequence[float]) -> float | None:
  """Standard error from delete-a-group replicates; coupled values leave together."""
  if not replicates:
    return None
  count = len(replicates)
  return float(np.sqrt((count - 1) * np.var(replicates)))
