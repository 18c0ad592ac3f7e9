"""Null distributions against slow ones: labels, pairs, tails; simulated nulls."""

import itertools
import math
import os
import subprocess
import sys

import numba
import numpy as np
import pytest
import scipy.stats
from score_arrays import from_arrays

from fairjax.measure import nulls
from fairjax.measure.nulls import LabelStatistics, measure_pairs, stable_order, tail_bound
from tests.benchmarks.nulls import KINDS, TESTS, rejections


def w1(x, y):
  return scipy.stats.wasserstein_distance(x, y)


# The four kinds of scores: without ties, as of VADER, three classes, two classes.
SCORES = {
  'continuous': lambda rng, n: rng.random(n), 'tied': lambda rng, n: rng.integers(0, 25, n) / 24,
  'three': lambda rng, n: rng.integers(0, 3, n) / 2, 'binary': lambda rng, n: rng.integers(0, 2, n)}


@pytest.mark.parametrize('kind', SCORES)
def test_equal_numbers_keep_their_order(kind):
  for size in (0, 1, 2, 100, 3000):
    x = SCORES[kind](np.random.default_rng(size), size)
    assert np.array_equal(stable_order(x), np.argsort(x, kind='stable'))


def random_words(shape, *stream):
  """The words that decide on a permutation; ties have no chance in 64 bits."""
  rng = np.random.default_rng(np.random.SeedSequence(stream))
  return rng.integers(0, 1 << 64, shape, dtype=np.uint64)


@pytest.mark.parametrize('kind', SCORES)
@pytest.mark.parametrize(('sizes', 'coupled'), [
  ((9, 9, 9, 9), True), ((150, 150, 150, 150), True), ((9, 9, 9, 9), False),
  ((9, 4, 6, 9), False), ((4, 8, 8, 2), False),
  ((1031, 1033, 1039, 1049), False)])  # whose least common multiple is above 2 ** 40
def test_statistics_of_random_labels_equal_scipy(kind, sizes, coupled):
  # Sorting the words of a sample number, or of a template, gives the new places of its scores.
  rng = np.random.default_rng(20)
  scores = [[SCORES[kind](rng, n) for n in sizes] for _ in range(2)]
  groups, count = np.array([0, 1, 0, 1]), 3
  found = LabelStatistics(scores, groups, [[0, 1]]).permuted(count, coupled=coupled, seed=5)
  moved = []
  for m, row in enumerate(scores):
    flat = np.concatenate(row)
    words = random_words((count, flat.size), 5, 0x1F, m, 0)
    if coupled:
      words = words.reshape(count, sizes[0], 4)
      moved.append([np.take_along_axis(np.stack(row, axis=1), w.argsort(axis=1), axis=1).T
                    for w in words])
    else:
      moved.append([np.split(flat[w.argsort()], np.cumsum(sizes)[:-1]) for w in words])
  for r in range(count):
    for m in range(2):
      d = {(a, b): w1(moved[m][r][a], moved[m][r][b])
           for a, b in itertools.combinations(range(4), 2)}
      assert found.all_pairs[m, r] == pytest.approx(np.mean(list(d.values())), abs=1e-12)
      assert found.within[m, r] == pytest.approx((d[0, 2] + d[1, 3]) / 2, abs=1e-12)
    everything = np.concatenate([x for m in range(2) for x in moved[m][r]])
    for g in range(2):
      own = np.concatenate([moved[m][r][a] for m in range(2) for a in (g, g + 2)])
      assert found.subgroups[0, g, r] == pytest.approx(w1(own, everything), abs=1e-12)


@pytest.mark.parametrize('values', [2, 3, 10, 33, 130])
def test_values_change_places_by_the_words_of_a_plain_generator(values):
  scores = [np.random.default_rng(i).random(37) for i in range(values)]
  template = nulls._Template.of(scores)
  rng, plain = np.random.default_rng(3), np.random.default_rng(3)
  for count in (5, 1):  # 185 rows of words, then 37 that go on where those ended
    drawn = plain.bit_generator.random_raw((count, 37, values)).argsort(axis=2)
    for labels, new in zip(template.permute(rng, count, coupled=True), drawn, strict=True):
      moved = np.empty((values, 37), int)  # the value that each score is given
      moved[new.T, np.arange(37)] = np.arange(values)[:, None]
      assert np.array_equal(labels, moved.reshape(-1)[template.order])


@pytest.mark.parametrize('sizes', [(8, 5, 8), (4,) * 300])  # 300 labels need two bytes
def test_a_value_may_be_a_subgroup_of_its_own(sizes):
  rng = np.random.default_rng(23)
  groups = rng.permutation(len(sizes))
  scores = [[rng.random(n) for n in sizes] for _ in range(2)]
  found = LabelStatistics(scores, groups, [[0, 1], [1]]).observed().subgroups
  for k, chosen in enumerate(([0, 1], [1])):
    everything = np.concatenate([x for m in chosen for x in scores[m]])
    for value, group in enumerate(groups):
      own = np.concatenate([scores[m][value] for m in chosen])
      assert found[k, group, 0] == pytest.approx(w1(own, everything), abs=1e-12)


def test_subgroups_of_equal_scores_are_at_distance_zero():
  scores = np.random.default_rng(26).random(30)
  for rows in ([[scores] * 3], [[np.full(30, 0.3)] * 3]):
    found = LabelStatistics(rows, np.arange(3), [[0]])
    assert not found.observed().subgroups.any()
  assert not found.permuted(5, coupled=False, seed=0).subgroups.any()


@pytest.mark.parametrize('kind', SCORES)
def test_random_exchanges_of_coupled_pairs_equal_scipy(kind):
  rng, count, n = np.random.default_rng(21), 8, 30
  scores = np.array([[SCORES[kind](rng, n) for _ in range(3)] for _ in range(2)])
  found = measure_pairs(
    from_arrays(scores, coupled=True), permutations=count, seed=6).cells
  for m, row in enumerate(scores):
    signs = np.random.default_rng(np.random.SeedSequence([6, 0x2F, m])).integers(
      0, 2, (n, count), dtype=np.int8)
    for p, (a, b) in enumerate(itertools.combinations(range(3), 2)):
      null = np.array([w1(np.where(s, row[a], row[b]), np.where(s, row[b], row[a]))
                       for s in signs.T])
      distance = w1(row[a], row[b])
      assert found.distance[m, p] == pytest.approx(distance, abs=1e-12)
      assert found.null_mean[m, p] == pytest.approx(null.mean(), abs=1e-12)
      assert found.null_p95[m, p] == pytest.approx(null.max(), abs=1e-12)  # of 8
      reached = np.count_nonzero(null >= distance - 1e-11) + 1
      if reached == 1:  # then a bound of the tail may be smaller
        assert 0 < found.p_value[m, p] <= 1 / 9 + 1e-12
      else:
        assert found.p_value[m, p] == pytest.approx(reached / 9, rel=1e-12)


@pytest.mark.parametrize('kind', SCORES)
def test_random_partitions_of_free_pairs_equal_scipy(kind):
  # The pairs of equal sizes share their partitions; the smaller size comes first.
  rng, count = np.random.default_rng(22), 8
  row = [SCORES[kind](rng, n) for n in (12, 20, 12)]
  found = measure_pairs(from_arrays([row]), permutations=count, seed=6).cells
  stream = np.random.default_rng(np.random.SeedSequence([6, 0x2F, 0]))
  for n, m, pairs in ((12, 12, {1: (0, 2)}), (12, 20, {0: (0, 1), 2: (1, 2)})):
    words = stream.integers(0, 1 << 64, (count, n + m), dtype=np.uint64)
    first = words.argsort(axis=1) < n  # whether a place in the ascending scores goes to the first
    for p, (a, b) in pairs.items():
      both = np.sort(np.concatenate([row[a], row[b]]))
      null = [w1(both[mask], both[~mask]) for mask in first]
      assert found.null_mean[0, p] == pytest.approx(np.mean(null), abs=1e-12)
      assert found.null_p95[0, p] == pytest.approx(max(null), abs=1e-12)


@pytest.mark.parametrize('coupled', [True, False])
def test_pairs_that_memory_does_not_hold_at_once_are_taken_in_parts(coupled, monkeypatch):
  rng = np.random.default_rng(24)
  sizes = [7] * 5 if coupled else [7, 4, 9, 4, 7]
  samples = from_arrays([[rng.random(n) for n in sizes] for _ in range(2)], coupled=coupled)
  whole = measure_pairs(samples, permutations=30)
  drawn, labels = [], nulls._labels
  monkeypatch.setattr(nulls, '_labels', lambda *a: drawn.append(a[:2]) or labels(*a))
  monkeypatch.setattr(nulls, '_TOGETHER', 3 * 30)  # three of ten pairs
  parts = measure_pairs(samples, permutations=30)
  for name in ('cells', 'pairs'):
    for column, expected in vars(getattr(whole, name)).items():
      np.testing.assert_array_equal(getattr(getattr(parts, name), column), expected)
  assert len(drawn) == (0 if coupled else 2 * 8)  # 5 kinds, 3 of them in two parts


def test_a_full_disk_is_no_stack_trace(monkeypatch):
  full, found = [OSError(28, 'No space left on device')], []

  def njit(function, **_):
    def call(*arguments):
      if full:
        raise full.pop()
      function(*arguments)
    return call

  monkeypatch.setattr(numba, 'njit', njit)
  nulls.compiled(found.append)(1)
  assert found == [1]


@pytest.mark.parametrize(('sizes', 'coupled'), [((1031, 1033, 1039, 1049), False),
                                                ((70, 70, 70, 70), True)])
def test_labels_are_right_where_nothing_is_compiled(sizes, coupled, monkeypatch):
  rng = np.random.default_rng(25)
  scores = [[rng.random(n) for n in sizes]]
  statistics = LabelStatistics(scores, np.array([0, 1, 1, 2]), [[0]])
  expected = statistics.permuted(1, coupled=coupled, seed=0)
  monkeypatch.setattr(numba, 'njit', lambda function, **_: function)  # as NUMBA_DISABLE_JIT=1
  for name in ('_label_areas', '_subgroup_areas', '_sort_long', '_place', '_permute_within'):
    monkeypatch.setattr(nulls, name, nulls.compiled(getattr(nulls, name).__wrapped__))
  with np.errstate(over='ignore'):
    found = statistics.permuted(1, coupled=coupled, seed=0)
  np.testing.assert_allclose(found.all_pairs, expected.all_pairs, rtol=1e-12)
  np.testing.assert_allclose(found.subgroups, expected.subgroups, rtol=1e-12)


@pytest.mark.parametrize('coupled', [True, False])
def test_the_tail_bound_is_above_the_exact_p_value(coupled):
  # Binary scores: the distance is |difference of shares|, whose tail is binomial or hypergeometric.
  n, found = 200, []
  for moved in (30, 60, 120):
    x, y = np.repeat([0.0, 1.0], [n - 30, 30]), np.repeat([0.0, 1.0], [n - 30 - moved, 30 + moved])
    tests = measure_pairs(from_arrays([x, y], coupled=coupled), permutations=1000)
    if coupled:  # `moved` numbers differ; each swap is a coin
      exact = 2 * scipy.stats.binom.sf(moved - 1, moved, 0.5)
    else:
      exact = 2 * scipy.stats.hypergeom.sf(30 + moved - 1, 2 * n, 60 + moved, n)
    found.append(tests.cells.p_value[0, 0])
    assert tests.cells.mid_p_value[0, 0] <= found[-1]
    assert exact <= found[-1] <= 1 / 1001
  assert found[2] < 1e-8 < found[0]


def test_each_pair_has_the_bound_of_its_own_scores():
  rng = np.random.default_rng(6)
  widths = np.linspace(0.02, 0.5, 20)[:, None]
  scores = np.sort(0.3 * rng.random((20, 1)) + widths * rng.random((20, 60)))
  found = measure_pairs(from_arrays(scores, coupled=True), permutations=99).cells
  first, second = np.triu_indices(20, 1)
  variance = np.square(scores[first] - scores[second]).sum(axis=1) / 60 ** 2
  bound = tail_bound(found.distance[0], found.null_mean[0], variance, 99)
  reached = found.p_value[0] < 1.5 / 100
  assert (bound < 1 / 100).sum() > 30
  assert np.array_equal(found.p_value[0][reached], np.minimum(bound, 1 / 100)[reached])


def test_the_bound_never_replaces_a_counted_p_value(monkeypatch):
  p = tail_bound(np.array([0.3, 0.02, 0.01]), np.array([0.02] * 3), np.array([1e-4] * 3), 1000)
  t = 0.28 - 7 * math.sqrt(1e-4 / 1000)
  assert p[0] == pytest.approx(math.exp(-t ** 2 / 2e-4) + math.exp(-24.5), rel=1e-12)
  assert p[1] >= 1 and p[2] >= 1
  monkeypatch.setattr(nulls, 'tail_bound', lambda distance, *_: 0 * distance)
  rng = np.random.default_rng(5)
  counted = measure_pairs(from_arrays(rng.random((6, 40))), permutations=19).cells.p_value * 20
  assert counted.min() > 1 and np.abs(counted - counted.round()).max() < 1e-9


@pytest.mark.parametrize(('kind', 'coupled'), [
  pytest.param(kind, coupled, marks=() if (kind, coupled) in (
    ('continuous', False), ('tied', True)) else pytest.mark.weekly)
  for kind in KINDS for coupled in (False, True)])
def test_simulated_nulls_reject_five_percent(kind, coupled, monkeypatch):
  monkeypatch.setattr('fairjax.measure.fairness.jackknife', lambda *_: None)  # standard errors
  # The table of docs/measures.md, smaller. 72 rates are compared: each may err once in 10,000.
  runs = 250
  found = rejections(kind, coupled=coupled, runs=runs, samples=40, permutations=19, start=10_000)
  assert set(found) == set(TESTS)
  assert max(found.values()) <= scipy.stats.binom.ppf(1 - 1e-4, runs, 0.05) / runs, found
  # Ties make the tests careful, but not dead; by the mid-p-value they are as eager as others.
  three = ('I.F.', 'I.F. across', 'G.F.')
  least = 0.02 if kind == 'continuous' else 0.008
  assert np.mean([found[t] for t in three]) >= least, found
  assert np.mean([found[f'{t}, mid'] for t in three]) >= 0.02, found


def test_compiled_functions_need_no_folder_to_be_kept_in(monkeypatch):
  kept = []

  def njit(function, *, cache=False, nogil):
    kept.append(cache)
    if cache:
      raise RuntimeError('cannot cache function: no locator available')
    return function

  monkeypatch.setattr(numba, 'njit', njit)
  found = []
  add = nulls.compiled(lambda x, y: found.append(x + y))
  add(1, 2)
  add(3, 4)
  assert found == [3, 7] and kept == [True, False]


_DIGITS = '''
import hashlib, json
import numpy as np
from fairjax.measure import measure_fairness
from tests.measure.score_arrays import from_arrays
rng = np.random.default_rng(0)
scores = (0.7 * rng.random((3, 1, 1000)) + 0.3 * rng.random((3, 5, 1000))).round(6)
found = [measure_fairness(from_arrays(scores, coupled=coupled), permutations=40)
         for coupled in (True, False)]
print(json.dumps([[f.group.to_dict(), f.individual.to_dict(), f.cells.to_dict()] for f in found]))
'''


def test_last_digits_do_not_depend_on_the_number_of_threads():
  # Products of matrices do: BLAS divides their sums among threads.
  found = [subprocess.run([sys.executable, '-c', _DIGITS], capture_output=True, check=True,
                          env=os.environ | {'OPENBLAS_NUM_THREADS': threads}).stdout
           for threads in '12']
  assert found[0] == found[1] != b''
