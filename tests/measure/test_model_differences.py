"""The test of two models' human I.F.: all exchanges one by one, its level and its power."""

import itertools

import numpy as np
import pytest

from fairjax.measure.estimates import wasserstein_1
from fairjax.measure.human.ratings import model_differences

VALUES = ('designer', 'accountant')
LEVELS = np.array([0, 0.25, 0.5, 0.75, 1])


def comparison(ratings, template=0, values=VALUES):
  """Of `[model][value][n]` ratings, numbered from 0."""
  return {(template, values): {name: tuple(dict(enumerate(side)) for side in sides)
                               for name, sides in zip('ab', ratings, strict=True)}}


def distance_difference(ratings):
  (a, b) = (wasserstein_1(np.array(x), np.array(y)) for x, y in ratings)
  return b - a


def only(comparisons, **options):
  (found,) = model_differences(comparisons, permutations=20000, seed=0, **options)
  return found


def test_exchanges_of_coupled_samples_are_those_of_brute_force():
  rng = np.random.default_rng(5)
  first, second = rng.choice(LEVELS, (2, 2, 2, 6))
  # One noise for both comparisons of a template, so a number changes place in both of them.
  for templates in ((0, 0), (0, 1)):
    found = only(comparison(first, templates[0]) | comparison(second, templates[1], ('x', 'y')),
                 coupled=True)
    each, both = [], []
    for swaps in itertools.product(range(2), repeat=6 if templates == (0, 0) else 12):
      draws = []
      for ratings, swap in ((first, swaps[:6]), (second, swaps[-6:])):
        draws.append(distance_difference([
          [[ratings[m ^ s][v][k] for k, s in enumerate(swap)] for v in range(2)]
          for m in range(2)]))
      each.append(draws)
      both.append(np.mean(draws))
    for i, part in enumerate(found['comparisons']):
      column = np.array(each)[:, i]
      assert part['difference'] == pytest.approx(column[0], abs=1e-12)
      assert part['p_value'] == pytest.approx(
        np.mean(np.abs(column) >= abs(column[0]) - 1e-9), abs=0.012)
      assert part['n'] == [[6, 6], [6, 6]] and part['lost'] == [[0, 0], [0, 0]]
    assert found['difference'] == pytest.approx(both[0], abs=1e-12)
    assert found['p_value'] == pytest.approx(
      np.mean(np.abs(both) >= abs(both[0]) - 1e-9), abs=0.012)


def test_deals_of_independent_samples_are_those_of_brute_force():
  rng = np.random.default_rng(8)
  sizes = ((3, 2), (2, 3))  # [model][value]
  ratings = [[rng.choice(LEVELS, n) for n in row] for row in sizes]
  part, = only(comparison(ratings), coupled=False)['comparisons']
  pools = [np.concatenate([ratings[0][v], ratings[1][v]]) for v in range(2)]
  null = []
  for chosen in itertools.product(*(itertools.combinations(range(5), sizes[0][v])
                                    for v in range(2))):
    sides = [(pools[v][list(c)], np.delete(pools[v], c)) for v, c in enumerate(chosen)]
    null.append(distance_difference([[sides[v][m] for v in range(2)] for m in range(2)]))
  expected = distance_difference(ratings)
  assert len(null) == 100 and part['difference'] == pytest.approx(expected, abs=1e-12)
  assert part['p_value'] == pytest.approx(
    np.mean(np.abs(null) >= abs(expected) - 1e-9), abs=0.015)
  assert part['null_p95'] in np.abs(null).round(12).tolist() or part['null_p95'] == pytest.approx(
    np.quantile(np.abs(null), 0.95), abs=0.05)
  assert part['n'] == [[3, 2], [2, 3]]


def test_numbers_without_all_four_ratings_are_counted():
  ratings = {'a': ({1: 0.0, 2: 1.0, 3: 0.5}, {1: 0.5, 2: 0.5, 3: 0.0}),
             'b': ({2: 0.5, 3: 1.0}, {2: 0.0, 3: 0.0, 7: 1.0}), 'c': ({}, {1: 0.5})}
  found = model_differences({(0, VALUES): ratings, (1, VALUES): {'a': ({1: 1.0}, {1: 0.0})}},
                            coupled=True, permutations=50, seed=0)
  assert [f['models'] for f in found] == [['a', 'b'], ['a', 'c'], ['b', 'c']]
  part, = found[0]['comparisons']  # template 1 has one model only
  assert part['n'] == [[2, 2], [2, 2]] and part['lost'] == [[1, 1], [0, 1]]
  assert part['individual_fairness'] == [
    wasserstein_1(np.array([1, 0.5]), np.array([0.5, 0])),
    wasserstein_1(np.array([0.5, 1]), np.array([0.0, 0]))]
  for other in found[1:]:
    part, = other['comparisons']
    assert part['difference'] is None and other['difference'] is None and other['p_value'] is None
  deal = model_differences({(0, VALUES): ratings}, coupled=False, permutations=9, seed=0)
  assert [f['difference'] is None for f in deal] == [False, True, True]
