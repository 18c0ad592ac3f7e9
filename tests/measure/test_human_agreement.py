"""Kappa and rank correlation against hand tables, definitions, SciPy and known coverage."""

import itertools

import numpy as np
import pytest
import scipy.stats
from human_oracle import kappa_by_definition

from fairjax.measure.human.ratings import (
  LEAST_CLUSTERS,
  agreement,
  cohen_kappa,
  correlate,
  pearson,
  rater_tables,
  spearman,
)


@pytest.mark.parametrize(('table', 'plain', 'linear'), [
  # observed (20 + 15) / 50 = 0.7; by chance 0.5 * 0.6 + 0.5 * 0.4 = 0.5
  ([[20, 5], [10, 15]], 0.4, 0.4),
  ([[10, 0, 0], [0, 10, 0], [0, 0, 10]], 1.0, 1.0),
  ([[1, 1, 1], [1, 1, 1], [1, 1, 1]], 0.0, 0.0),
  # rows 2, 2, 2 and columns 2, 0, 4: disagreements 2 of expected 4, their cost 2 of expected 6
  ([[2, 0, 0], [0, 0, 2], [0, 0, 2]], 1 / 2, 2 / 3),
  ([[0, 0, 3], [0, 3, 0], [3, 0, 0]], 0.0, -0.5),
])
def test_kappa_of_tables_done_by_hand(table, plain, linear):
  assert cohen_kappa(np.array(table)) == pytest.approx(plain, abs=1e-12)
  assert cohen_kappa(np.array(table), linear=True) == pytest.approx(linear, abs=1e-12)


@pytest.mark.parametrize('seed', range(20))
def test_kappa_is_its_definition_over_pairs(seed):
  rng = np.random.default_rng(seed)
  size, n = int(rng.integers(2, 5)), int(rng.integers(5, 40))
  ratings = [tuple(map(int, pair)) for pair in rng.integers(0, size, (n, 2))]
  ratings[:2] = [(0, 1), (1, 1)]  # something to disagree about
  table = np.zeros((size, size))
  for a, b in ratings:
    table[a, b] += 1
  assert cohen_kappa(table) == pytest.approx(
    kappa_by_definition(ratings, lambda a, b: float(a != b)), abs=1e-12)
  assert cohen_kappa(table, linear=True) == pytest.approx(
    kappa_by_definition(ratings, lambda a, b: abs(a - b)), abs=1e-12)
  assert cohen_kappa(table.T) == pytest.approx(cohen_kappa(table), abs=1e-12)


def test_kappa_without_possible_disagreement_is_undefined():
  assert cohen_kappa(np.array([[7, 0], [0, 0]])) is None
  assert cohen_kappa(np.zeros((3, 3))) is None


@pytest.mark.parametrize('table', [np.ones((2, 3)), np.ones(4), np.array([[1, -1], [1, 1]])])
def test_kappa_refuses_what_is_no_table(table):
  with pytest.raises(ValueError, match='table of counts'):
    cohen_kappa(table)


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
  assert correlate(spearman, x, np.arange(3), 'abc', resamples=10, seed=0).value is None


def test_the_interval_holds_the_true_correlation_as_often_as_it_says():
  # Normal pairs of correlation r have Spearman's 6/pi asin(r/2). 200 trials of n = 60: the share
  # of a 95 % interval has a standard error of 1.5 points; percentile intervals cover a little less.
  rng, r, hits = np.random.default_rng(1), 0.6, 0
  truth = 6 / np.pi * np.arcsin(r / 2)
  for trial in range(200):
    x = rng.normal(size=60)
    y = r * x + np.sqrt(1 - r * r) * rng.normal(size=60)
    found = correlate(spearman, x, y, range(60), resamples=150, seed=trial)
    hits += found.low <= truth <= found.high
  assert 0.90 <= hits / 200 <= 0.99


def test_items_of_one_cluster_are_drawn_together():
  # Each item four times: the interval must be that of a quarter of the items, not narrower.
  rng = np.random.default_rng(2)
  x, y = rng.normal(size=(2, 40))
  once = correlate(spearman, x, y, range(40), resamples=2000, seed=0)
  copies = np.repeat(np.arange(40), 4)
  together = correlate(spearman, x[copies], y[copies], copies, resamples=2000, seed=0)
  apart = correlate(spearman, x[copies], y[copies], range(160), resamples=2000, seed=0)
  width = once.high - once.low
  assert together.high - together.low == pytest.approx(width, rel=0.02)
  assert apart.high - apart.low == pytest.approx(width / 2, rel=0.15)


def test_few_clusters_give_no_interval():
  x = np.arange(40.0)
  few = correlate(spearman, x, x**2, x % (LEAST_CLUSTERS - 1), resamples=50, seed=0)
  assert (few.value, few.low, few.high, few.resamples) == (1.0, None, None, 0)
  enough = correlate(spearman, x, x**2, x % LEAST_CLUSTERS, resamples=50, seed=0)
  assert (enough.low, enough.high, enough.resamples) == (1.0, 1.0, 50)


LABELS = {
  'i1': {'a01': 'no', 'a02': 'no'}, 'i2': {'a01': 'no', 'a02': 'yes'},
  'i3': {'a02': 'yes', 'a03': 'yes'}, 'i4': {'a01': 'yes', 'a02': 'yes', 'a03': 'no'},
  'i5': {'a03': 'yes'}, 'i6': {'a01': 'mixed', 'a02': 'yes'}}


def test_every_two_annotators_of_an_item_are_compared():
  tables = rater_tables(LABELS, ('no', 'yes'))
  assert tables == {
    ('a01', 'a02'): {'i1': (0, 0), 'i2': (0, 1), 'i4': (1, 1)},
    ('a01', 'a03'): {'i4': (1, 0)},
    ('a02', 'a03'): {'i3': (1, 1), 'i4': (1, 0)}}
  assert rater_tables(LABELS, ('no', 'yes', 'mixed'))['a01', 'a02']['i6'] == (2, 1)


def test_pooled_agreement_counts_both_directions_and_all_pairs():
  found = agreement(LABELS, ('no', 'yes'), linear=False, clusters={i: i for i in LABELS},
                    resamples=5, seed=0)
  # six pairs: no-no 1, yes-yes 2, different 3; both say no with 5/12
  chance = (5 / 12)**2 + (7 / 12)**2
  assert found['pooled']['value'] == pytest.approx((0.5 - chance) / (1 - chance), abs=1e-12)
  assert found['pooled']['n'] == 6 and found['observed'] == pytest.approx(0.5)
  assert [(p['annotators'], p['n']) for p in found['pairs']] == [
    (['a01', 'a02'], 3), (['a01', 'a03'], 1), (['a02', 'a03'], 2)]
  # a01, a02: observed 2/3, chance 2/3 * 1/3 + 1/3 * 2/3 = 4/9: kappa 2/5; the others: see below
  kappas = [p['kappa'] for p in found['pairs']]
  assert kappas == pytest.approx([0.4, 0.0, 0.0], abs=1e-12)
  assert found['mean_of_pairs'] == pytest.approx(0.4 / 3) and found['pairs_defined'] == 3


@pytest.mark.parametrize('order', list(itertools.permutations(('a01', 'a02', 'a03'))))
def test_pooled_agreement_does_not_depend_on_the_names_of_annotators(order):
  names = dict(zip(('a01', 'a02', 'a03'), order, strict=True))
  renamed = {item: {names[who]: label for who, label in by.items()} for item, by in LABELS.items()}
  found, other = (agreement(labels, ('no', 'yes'), linear=True, clusters={i: i for i in LABELS},
                            resamples=5, seed=0) for labels in (LABELS, renamed))
  assert found['pooled'] == other['pooled']


def test_agreement_without_any_overlap_is_undefined():
  found = agreement({'i1': {'a01': 'no'}}, ('no', 'yes'), linear=False, clusters={'i1': 0},
                    resamples=5, seed=0)
  assert found['pooled']['value'] is None and found['pooled']['n'] == 0
  assert found['observed'] is None and found['mean_of_pairs'] is None and found['pairs'] == []
