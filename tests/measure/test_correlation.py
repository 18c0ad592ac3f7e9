"""Rank correlation and its cluster bootstrap against SciPy and known coverage."""

import numpy as np
import pytest
import scipy.stats

from fairjax.measure.correlation import LEAST_CLUSTERS, correlate, pearson, spearman


@pytest.mark.parametrize('seed', range(10))
def test_correlations_are_those_of_scipy_with_many_ties(seed):
  rng = np.random.default_rng(seed)
  x, y = rng.integers(0, 5, 60) / 4, np.round(rng.normal(size=60), 1)
  assert spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)
  assert pearson(x, y) == pytest.approx(scipy.stats.pearsonr(x, y).statistic, abs=1e-12)


def test_correlations_of_constants_are_undefined():
  x = np.array([0.1, 0.1, 0.1])
  assert spearman(x, np.arange(3)) is None and spearman(np.arange(3), x) is None
  assert pearson(np.array([1.0]), np.array([2.0])) is None
  for scale in (1e-200, 1e308):  # of which double precision holds no squares
    assert pearson(scale * np.arange(-1, 1), np.arange(2)) is None
  assert correlate(spearman, x, np.arange(3), 'abc', resamples=10, seed=0)['value'] is None


def test_the_interval_holds_the_true_correlation_as_often_as_it_says():
  # The share of 200 trials has a standard error of 1.5 points; percentile intervals cover a little
  # less than 95 %.
  rng, r, hits = np.random.default_rng(1), 0.6, 0
  for trial in range(200):
    x = rng.normal(size=60)
    y = r * x + np.sqrt(1 - r * r) * rng.normal(size=60)
    found = correlate(pearson, x, y, range(60), resamples=150, seed=trial)
    hits += found['low'] <= r <= found['high']
  assert 0.90 <= hits / 200 <= 0.99


def test_items_of_one_cluster_are_drawn_together():
  # Each item four times: the interval must be that of a quarter of the items, not narrower.
  rng = np.random.default_rng(2)
  x, y = rng.normal(size=(2, 40))
  once = correlate(pearson, x, y, range(40), resamples=2000, seed=0)
  copies = np.repeat(np.arange(40), 4)
  together = correlate(pearson, x[copies], y[copies], copies, resamples=2000, seed=0)
  apart = correlate(pearson, x[copies], y[copies], range(160), resamples=2000, seed=0)
  width = once['high'] - once['low']
  assert together['high'] - together['low'] == pytest.approx(width, rel=0.02)
  assert apart['high'] - apart['low'] == pytest.approx(width / 2, rel=0.15)


def test_few_clusters_give_no_interval():
  x = np.arange(40.0)
  few = correlate(spearman, x, x**2, x % (LEAST_CLUSTERS - 1), resamples=50, seed=0)
  assert (few['value'], few['low'], few['high'], few['resamples']) == (1.0, None, None, 0)
  enough = correlate(spearman, x, x**2, x % LEAST_CLUSTERS, resamples=50, seed=0)
  assert (enough['low'], enough['high'], enough['resamples']) == (1.0, 1.0, 50)
