"""Wasserstein-1 against SciPy; tables of distances with floors and p-values."""

import numpy as np
import pytest
import scipy.stats

from fairjax.measure.estimates import Table, percentile_95, wasserstein_1


@pytest.mark.parametrize('sizes', [(1, 1), (1, 7), (50, 50), (37, 101), (200, 3)])
@pytest.mark.parametrize('distinct', [2, 5, None])
def test_equals_scipy_for_unequal_sizes_and_ties(sizes, distinct):
  rng = np.random.default_rng(sum(sizes) + (distinct or 0))
  for _ in range(20):
    x, y = (rng.random(n) if distinct is None else rng.integers(0, distinct, n) / 3 for n in sizes)
    expected = scipy.stats.wasserstein_distance(x, y)
    assert wasserstein_1(x, y) == pytest.approx(expected, abs=1e-12)
    assert wasserstein_1(y, x) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize('permutations', [19, 30, 99])
def test_exceeding_the_floor_is_a_p_value_of_at_most_five_percent(permutations):
  rng = np.random.default_rng(permutations)
  null = rng.integers(0, 40, (500, permutations)) / 40  # many ties
  table = Table.of(rng.integers(30, 42, 500) / 40, null)
  assert (table.within_floor == (table.p_value > 0.05 + 1e-12)).all()
  assert 0.1 < table.within_floor.mean() < 0.9  # both occur


def test_table_columns_and_percentile():
  rng = np.random.default_rng(7)
  null = rng.random((2, 3, 199))
  table = Table.of(np.array([[0.2, 0.5, 1.5], [0.9, 0.96, 0.1]]), null)
  assert table.p_value[0, 2] == 1 / 200 and table.p_holm[0, 2] == pytest.approx(6 / 200)
  assert table.corrected[1, 2] == 0.0
  assert percentile_95(null)[1, 1] == np.sort(null[1, 1])[189]
  assert set(table.to_dict()) == {'distance', 'null_mean', 'null_p95', 'p_value', 'mid_p_value',
                                  'p_holm', 'corrected', 'within_floor'}
  np.testing.assert_allclose(table.p_value - table.mid_p_value, 0.5 / 200, rtol=1e-12)  # no ties


def test_the_mid_p_value_is_half_of_the_ties_less():
  null = np.array([[0.1] * 5 + [0.2] * 10 + [0.3] * 4])
  table = Table.of(np.array([0.2]), null)
  assert table.p_value[0] == 15 / 20
  assert table.mid_p_value[0] == pytest.approx((4 + (10 + 1) / 2) / 20)
