"""Wasserstein-1 against SciPy and closed forms."""

import numpy as np
import pytest
import scipy.stats

from fairjax.measure.wasserstein import pairwise_wasserstein_1, wasserstein_1


@pytest.mark.parametrize('sizes', [(1, 1), (1, 7), (50, 50), (37, 101), (200, 3)])
@pytest.mark.parametrize('distinct', [2, 5, None])
def test_equals_scipy_for_unequal_sizes_and_ties(sizes, distinct):
  rng = np.random.default_rng(sum(sizes) + (distinct or 0))
  for _ in range(20):
    x, y = (rng.random(n) if distinct is None else rng.integers(0, distinct, n) / 3 for n in sizes)
    expected = scipy.stats.wasserstein_distance(x, y)
    assert wasserstein_1(x, y) == pytest.approx(expected, abs=1e-12)
    assert wasserstein_1(y, x) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize('sizes', [(20, 20, 20, 20), (5, 20, 11, 1)])
@pytest.mark.parametrize('distinct', [1, 4, 1000])
def test_pairwise_distances_equal_scipy(sizes, distinct):
  rng = np.random.default_rng(distinct)
  samples = [rng.integers(0, distinct, n) / 7 for n in sizes]
  grid, codes = np.unique(np.concatenate(samples), return_inverse=True)
  got = pairwise_wasserstein_1(codes, np.array(sizes), grid)
  pairs = zip(*np.triu_indices(len(sizes), 1), strict=True)
  expected = [scipy.stats.wasserstein_distance(samples[a], samples[b]) for a, b in pairs]
  np.testing.assert_allclose(got, expected, atol=1e-12)
