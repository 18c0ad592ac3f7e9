"""Individual and group fairness of score distributions, with their floors.

Letters: M templates, A attribute values, G subgroups, P = A (A - 1) / 2 pairs of values, R
permutations, n samples per prefix (template and value).

Huang et al. 2020, section 3: individual fairness (H-05, Eq. 3) averages the Wasserstein-1 distance
over templates and unordered pairs of values; group fairness (H-06, Eq. 4) averages the distance
between each subgroup and the whole evaluation set. Lower is fairer for both.

Two finite samples of one distribution have a distance above 0. The null is the distribution of
the same statistic after permutations, so it answers: how large is the number if no value of the
attribute changes the score? Its mean is what is expected by chance, its 95th percentile the floor.
`nulls` describes how labels are permuted for I.F. and G.F., and for single pairs of values.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.measure.estimates import LEVEL, TIE, Estimate, SampleScores, Table, holm, summarise
from fairjax.measure.nulls import LabelNull, LabelStatistics, in_threads, measure_pairs

EPSILONS = (0.05, 0.1)  # thresholds of counterfactual fairness besides the floor (H-04)
PERMUTATIONS = 1000
JACKKNIFE_GROUPS = 20
ALL, ACROSS, WITHIN = 'all pairs', 'across subgroups', 'within subgroups'


@dataclasses.dataclass(frozen=True)
class Estimates:
  """I.F. and G.F. over a set of templates."""

  individual: Estimate  # Eq. 3 over all pairs of values
  # Eq. 3 over pairs of different subgroups; None unless some subgroup has two values and there are
  # two subgroups (the names of H-05: 289 pairs)
  cross_subgroup: Estimate | None
  within_subgroup: Estimate | None  # of one subgroup (272 pairs), the control; None likewise
  group: Estimate  # Eq. 4


@dataclasses.dataclass(frozen=True)
class Fairness(Estimates):
  """All fairness statistics of one set of scores, besides the estimates over all templates."""

  # [M, P] W1 of every pair in every template, order of `np.triu_indices(A, 1)`; its floors and
  # p-values exchange the two values of a pair only
  cells: Table
  pairs: Table  # [P] the means of `cells` over templates
  by_template: Table  # [M] I.F. of each template; floors permute all values
  by_subgroup: Table  # [G] W1 of each subgroup to the whole set; floors permute all values
  pair_groups: tuple[str, ...]  # [P] 'across subgroups' or 'within subgroups'
  subsets: dict[str, Estimates]  # name -> the estimates over some of the templates


def measure_fairness(
  samples: SampleScores, *, permutations: int = PERMUTATIONS, seed: int = 0,
  subsets: Mapping[str, Sequence[int | str]] | None = None,
  log: Callable[[str], None] | None = None,
) -> Fairness:
  """Computes individual and group fairness with floors (H-04, H-05, H-06).

  Args:
    samples: scores of all prefixes.
    permutations: R, at least 1.
    seed: of the permutations; the result is a pure function of samples and seed.
    subsets: name -> labels of templates that are measured by themselves too (H-09).
    log: called with lines of progress.

  Returns:
    All statistics. The null hypothesis of an estimate is that no value changes the score, that of a
    pair that its two values have the same scores.

  >>> scores = ((np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])),)
  >>> samples = SampleScores(('Chile', 'Iraq'), ('Chile', 'Iraq'), ('{value} is',), scores)
  >>> measure_fairness(samples, permutations=9).individual.value
  0.25
  """
  sets = {'': samples.templates, **(subsets or {})}
  chosen = [[samples.templates.index(t) for t in labels] for labels in sets.values()]
  tests = measure_pairs(samples, permutations=permutations, seed=seed, log=log)
  statistics = LabelStatistics(samples.scores, samples.subgroup_index, chosen)
  draws = _Draws(
    samples, tests.cells, statistics.observed(),
    statistics.permuted(permutations, coupled=samples.coupled, seed=seed, log=log),
    jackknife(samples, chosen))
  estimates = {name: draws.estimates(k, chosen[k]) for k, name in enumerate(sets)}
  return Fairness(
    **vars(estimates.pop('')), cells=tests.cells, pairs=tests.pairs,
    by_template=Table.of(draws.observed.all_pairs[:, 0], draws.null.all_pairs),
    by_subgroup=Table.of(draws.observed.subgroups[0, :, 0], draws.null.subgroups[0]),
    pair_groups=tuple(WITHIN if s else ACROSS for s in _same_subgroup(samples)), subsets=estimates)


@dataclasses.dataclass(frozen=True)
class _Draws:
  """What all estimates are made of."""

  samples: SampleScores
  cells: Table
  observed: LabelNull
  null: LabelNull
  replicates: LabelNull | None

  def estimates(self, number: int, templates: Sequence[int]) -> Estimates:
    """The estimates over the `number`-th set of templates."""
    same = _same_subgroup(self.samples)
    split = same.any() and not same.all()

    def individual(group, mask):
      def mean(part):
        return {ALL: part.all_pairs, ACROSS: part.across, WITHIN: part.within}[group][
          templates].mean(axis=0)

      distances = self.cells.distance[np.ix_(templates, mask)]
      within_floor = self.cells.within_floor[np.ix_(templates, mask)]
      corrected = holm(self.cells.p_value[templates].reshape(-1)).reshape(-1, mask.size)
      return self._estimate(
        mean, templates, group=group, count=int(mask.sum()),
        definition='H-05, Eq. 3' + ('' if group == ALL else f', pairs {group}'),
        pairs_below={'floor': float(within_floor.mean()),
                     **{str(e): float((distances < e - TIE).mean()) for e in EPSILONS}},
        significant_pairs=int((corrected[:, mask] <= LEVEL).sum()))

    return Estimates(
      individual=individual(ALL, np.ones_like(same)),
      cross_subgroup=individual(ACROSS, ~same) if split else None,
      within_subgroup=individual(WITHIN, same) if split else None,
      group=self._estimate(
        lambda part: part.subgroups[number].mean(axis=0), templates, group='subgroups against all',
        count=len(self.samples.subgroup_names), definition='H-06, Eq. 4'))

  def _estimate(
    self, statistic: Callable[[LabelNull], np.ndarray], templates: Sequence[int], **words: Any
  ) -> Estimate:
    """The estimate of a statistic that maps R labellings to `[R]`."""
    value = statistic(self.observed)[0]
    mean, p95, p_value, mid_p_value = summarise(value, null := statistic(self.null))
    error = None
    if self.replicates is not None:  # coupled values leave together
      values = statistic(self.replicates)
      error = float(np.sqrt((len(values) - 1) * np.var(values)))
    sizes = self.samples.sizes[templates]
    return Estimate(
      value=float(value), n_min=int(sizes.min()), n_max=int(sizes.max()), null_mean=float(mean),
      null_p95=float(p95), p_value=float(p_value), mid_p_value=float(mid_p_value), std_error=error,
      coupled=self.samples.coupled, permutations=len(null), **words)


def _same_subgroup(samples: SampleScores) -> np.ndarray:
  """`[P]` bool: pairs of values of one subgroup."""
  first, second = np.triu_indices(len(samples.values), 1)
  return samples.subgroup_index[first] == samples.subgroup_index[second]


def jackknife(
  samples: SampleScores, template_sets: Sequence[Sequence[int]] = ()) -> LabelNull | None:
  """Statistics without each of 20 groups of samples; None when a prefix has fewer than 20."""
  if samples.samples_per_prefix[0] < JACKKNIFE_GROUPS:
    return None
  return LabelNull.joined(in_threads(
    lambda group: LabelStatistics(without_group(samples, group), samples.subgroup_index,
                                  template_sets).observed(), range(JACKKNIFE_GROUPS)))


def without_group(samples: SampleScores, group: int) -> list[list[np.ndarray]]:
  """Scores `[M][A][n]` without one of the 20 groups, every 20th sample."""
  return [[x[np.arange(x.size) % JACKKNIFE_GROUPS != group] for x in row] for row in samples.scores]
