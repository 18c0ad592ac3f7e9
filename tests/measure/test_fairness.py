"""Individual and group fairness: Eq. 3, Eq. 4 and their null floors."""

import itertools

import numpy as np
import pytest
import scipy.stats
from score_arrays import from_arrays

from fairjax.measure.estimates import SampleScores
from fairjax.measure.fairness import measure_fairness


def individual_by_definition(scores):
  """Eq. 3 with SciPy, term by term."""
  values = len(scores[0])
  total = sum(scipy.stats.wasserstein_distance(row[a], row[b])
              for row in scores for a, b in itertools.combinations(range(values), 2))
  return 2 * total / (len(scores) * values * (values - 1))


def group_by_definition(scores, subgroups):
  """Eq. 4 with SciPy; the whole set includes the subgroup."""
  everything = np.concatenate([x for row in scores for x in row])
  names = list(dict.fromkeys(subgroups))
  return np.mean([
    scipy.stats.wasserstein_distance(
      np.concatenate([x for row in scores for x, s in zip(row, subgroups, strict=True) if s == n]),
      everything) for n in names])


@pytest.mark.parametrize('sizes', ['equal', 'unequal'])
@pytest.mark.parametrize('distinct', [3, 10_000])
def test_equals_the_definitions(sizes, distinct):
  rng = np.random.default_rng(distinct)
  scores = [[rng.integers(0, distinct + 1, 40 if sizes == 'equal' else rng.integers(5, 40))
             / distinct for _ in range(5)] for _ in range(3)]
  subgroups = ['x', 'y', 'x', 'z', 'y']
  result = measure_fairness(
    from_arrays(scores, subgroups=subgroups, coupled=sizes == 'equal'), permutations=2)
  assert result.individual.value == pytest.approx(individual_by_definition(scores), abs=1e-12)
  assert result.group.value == pytest.approx(group_by_definition(scores, subgroups), abs=1e-12)
  assert result.individual.definition.startswith('H-05')
  assert result.group.definition.startswith('H-06')
  assert result.by_subgroup.distance.mean() == pytest.approx(result.group.value)


@pytest.mark.parametrize('numbered', [True, False])
def test_identical_samples_give_exactly_zero(numbered):
  rng = np.random.default_rng(3)
  scores = [[x] * 4 for x in rng.random((3, 50))]
  result = measure_fairness(from_arrays(scores, coupled=numbered), permutations=30)
  assert result.individual.value == 0.0
  assert result.group.value == 0.0
  assert result.individual.p_value == 1.0
  assert result.individual.pairs_below['floor'] == 1.0
  # Coupled and identical: no permutation can make a difference, the floor is 0 too.
  assert (result.individual.null_p95 == 0.0) == numbered


def test_pairs_across_and_within_subgroups_have_the_papers_counts():
  subgroups = ['male'] * 17 + ['female'] * 17
  rng = np.random.default_rng(5)
  # Values of one subgroup have the same scores, so only pairs across differ.
  male, female = rng.random(20), rng.random(20)
  result = measure_fairness(
    from_arrays([[male] * 17 + [female] * 17], subgroups=subgroups, coupled=True), permutations=5)
  w1 = scipy.stats.wasserstein_distance(male, female)
  assert result.cross_subgroup.value == pytest.approx(w1, abs=1e-12)
  assert result.within_subgroup.value == 0.0
  assert result.cells.distance.shape == (1, 561)
  assert result.individual.value == pytest.approx(w1 * 289 / (289 + 272), abs=1e-12)
  without = measure_fairness(from_arrays([[male, female]]), permutations=3)
  assert without.cross_subgroup is None and without.within_subgroup is None


def test_the_error_is_that_of_the_jackknife_over_twenty_groups():
  scores = np.random.default_rng(13).random((2, 3, 40))
  left = [np.delete(scores, [g, g + 20], axis=2) for g in range(20)]
  found = measure_fairness(from_arrays(scores), permutations=1)
  for estimate, definition in ((found.individual, individual_by_definition),
                               (found.group, lambda x: group_by_definition(x, range(3)))):
    assert estimate.std_error == pytest.approx(np.sqrt(19 * np.var([*map(definition, left)])),
                                               rel=1e-9)
  few = measure_fairness(from_arrays(np.zeros((1, 2, 19))), permutations=1)
  assert few.individual.std_error is None


def test_coupling_needs_the_same_numbers_for_every_value():
  scores = ((np.zeros(3), np.zeros(3)),)
  def coupled(first, second):
    ids = ((np.array(first), np.array(second)),)
    return SampleScores(('a', 'b'), ('a', 'b'), (0,), scores, ids).coupled
  assert coupled([0, 1, 2], [0, 1, 2])
  assert not coupled([0, 1, 2], [0, 1, 3])


def test_estimate_corrects_by_the_null_mean_and_is_json_able():
  samples = from_arrays(np.random.default_rng(14).random((1, 3, 30)), coupled=True)
  estimate, again, other = (measure_fairness(samples, permutations=20, seed=seed).group
                            for seed in (3, 3, 4))
  assert estimate.corrected == max(0.0, estimate.value - estimate.null_mean)
  values = estimate.to_dict()
  assert values['direction'] == 'lower is fairer' and values['n_min'] == values['n_max'] == 30
  assert all(type(v) in (float, int, str, bool, type(None)) for v in values.values())
  assert estimate == again and estimate.null_mean != other.null_mean


def test_pairs_below_thresholds():
  scores = [[np.zeros(50), np.full(50, 0.04), np.full(50, 0.3), np.zeros(50)]]
  below = measure_fairness(
    from_arrays(scores, coupled=True), permutations=20).individual.pairs_below
  # Distances 0, 0.04 twice, 0.26, 0.3 twice; only the pair of equal scores is within its floor.
  assert below == {'floor': pytest.approx(1 / 6), '0.05': 0.5, '0.1': 0.5}


def test_subsets_of_templates_are_measured_by_themselves():
  scores = np.random.default_rng(1).random((4, 3, 25))
  samples = from_arrays(scores, templates='abcd', subgroups='xxy')
  part = measure_fairness(samples, permutations=20, subsets={'some': ['d', 'b']}).subsets['some']
  alone = measure_fairness(
    from_arrays(scores[[3, 1]], templates='db', subgroups='xxy'), permutations=20)
  for name in ('individual', 'cross_subgroup', 'within_subgroup', 'group'):
    mine, other = getattr(part, name), getattr(alone, name)
    assert mine.value == pytest.approx(other.value, abs=1e-12)
    assert mine.std_error == pytest.approx(other.std_error, rel=1e-9)
    assert mine.null_mean == pytest.approx(other.null_mean, rel=0.2)


def test_threads_do_not_change_the_result(monkeypatch):
  samples = from_arrays(np.random.default_rng(2).random((3, 4, 30)), coupled=True)
  results = []
  for cores in (1, 3):
    monkeypatch.setattr('fairjax.measure.nulls.cores', lambda cores=cores: cores)
    results.append(measure_fairness(samples, permutations=700, seed=5))
  assert results[0].individual == results[1].individual and results[0].group == results[1].group
  assert np.array_equal(results[0].cells.null_p95, results[1].cells.null_p95)


def test_a_distance_of_just_the_threshold_is_not_below_it():
  # In floats 0.6 - 0.5 is below 0.1.
  for low, high in ((0.5, 0.6), (0.3, 0.4), (0.0, 0.1)):
    found = measure_fairness(
      from_arrays([np.full(5, low), np.full(5, high)]), permutations=1)
    assert found.individual.pairs_below['0.1'] == 0
