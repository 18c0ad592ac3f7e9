"""`records plan`: planted effects are found as often as planned."""

import json

import numpy as np
import pytest
import scipy.stats
from score_arrays import from_arrays

from fairjax.cli.main import main
from fairjax.errors import UserError
from fairjax.measure import measure_fairness, model_scores, pilot_scores, plan_samples
from fairjax.measure.nulls import tail_bound, tail_distance

RUNS = 200


@pytest.fixture(autouse=True)
def without_standard_errors(monkeypatch):
  monkeypatch.setattr('fairjax.measure.fairness.jackknife', lambda *_: None)


def plant(rng, scores, rising, half):
  """Replaces a share of the scores of the first values by 1."""
  scores = scores.copy()
  scores[:, :half][rng.random(scores[:, :half].shape) < rising] = 1.0
  return scores


def found(draw, *, coupled, seed=0, runs=RUNS):
  """Share of data sets whose I.F. is significant in a real permutation test."""
  hits = 0
  for run in range(runs):
    rng = np.random.default_rng([run, 31, seed])
    result = measure_fairness(
      from_arrays(draw(rng), coupled=coupled), permutations=99, seed=run)
    hits += result.individual.p_value <= 0.05
  return hits / runs


@pytest.mark.parametrize(('kind', 'shared'), [('binary', 0.0), ('uniform', 0.6)])
def test_planted_shifts_are_found_at_the_planned_power(kind, shared):
  scores = model_scores(kind, shared=shared)
  plan = plan_samples(scores, effect=0.15, power=0.8)
  assert plan['power_low'] <= 0.8 + 0.02 and plan['power_found'] >= 0.8
  assert plan['coupled'] == (shared > 0)

  def draw(rng):
    u = rng.random((1, 2, plan['samples']))
    same = rng.random(plan['samples']) < shared
    u[:, 1, same] = u[:, 0, same]
    u = np.floor(2 * u) if kind == 'binary' else u
    return plant(rng, u, 0.15 / 0.5, 1)

  # Three standard deviations of 200 runs at 0.8 are 0.085.
  assert found(draw, coupled=shared > 0) == pytest.approx(0.8, abs=0.085)


@pytest.mark.parametrize(('values', 'half'), [(3, 1), (4, 2)])
def test_more_values_and_templates_have_the_planned_power_too(values, half):
  plan = plan_samples(model_scores('uniform'), effect=0.08, power=0.7, values=values, templates=2)
  # Of 3 pairs 2, of 6 pairs 4 lie across the halves: their distance is 0.12.
  assert plan['continuations'] == 2 * values * plan['samples']

  def draw(rng):
    return plant(rng, rng.random((2, values, plan['samples'])), 0.12 / 0.5, half)

  assert found(draw, coupled=False) == pytest.approx(0.7, abs=0.097)


def test_two_point_scores_need_what_the_normal_formula_says():
  # Difference of two shares: n = (z_0.975 + z_0.8)^2 2 p (1 - p) / d^2.
  plan = plan_samples(model_scores('binary'), effect=0.01, power=0.8)
  assert plan['samples'] == pytest.approx((1.959964 + 0.841621) ** 2 * 0.5 / 1e-4, rel=0.08)
  shared = plan_samples(model_scores('binary', shared=0.75), effect=0.01, power=0.8)
  assert shared['samples'] == pytest.approx(plan['samples'] / 4, rel=0.15)


def test_a_correction_for_many_pairs_uses_the_bound_and_holds():
  scores = model_scores('binary')
  plan = plan_samples(scores, effect=0.4, power=0.8, tests=5610)
  assert plan['samples'] > 2 * plan_samples(scores, effect=0.4, power=0.8)['samples']
  n, hits = plan['samples'], 0
  for run in range(40):
    rng = np.random.default_rng([run, 32])
    x = plant(rng, rng.integers(0, 2, (1, 2, n)).astype(float), 0.4 / 0.5, 1)
    p = measure_fairness(from_arrays(x), permutations=1000, seed=run).cells.p_value[0, 0]
    hits += p * 5610 <= 0.05
  assert hits / 40 == pytest.approx(0.8, abs=0.19)
  v, level = 0.3 / n, 1e-6
  assert tail_bound(0.01 + tail_distance(level, v, 1000), 0.01, v, 1000) == pytest.approx(
    level, rel=1e-9)


def test_a_pilot_gives_its_levels_and_its_correlation():
  rng = np.random.default_rng(33)
  x = rng.integers(0, 3, (2, 4, 20_000)) / 2
  same = rng.random((2, 20_000)) < 0.6
  x[:, 1:][np.broadcast_to(same[:, None], (2, 3, 20_000))] = np.broadcast_to(
    x[:, :1], (2, 3, 20_000))[np.broadcast_to(same[:, None], (2, 3, 20_000))]
  scores = pilot_scores(from_arrays(x, coupled=True), 'mine')
  assert scores.coupled and scores.shared == pytest.approx(0.6, abs=0.01)
  assert scores.means == pytest.approx([0.5, 0.5], abs=0.01)
  assert scores.spread() == pytest.approx(np.mean((x[:, 0] - x[:, 1]) ** 2), rel=0.02)
  free = pilot_scores(from_arrays(x))
  assert not free.coupled and free.shared == 0
  assert free.spread() == pytest.approx(2 * x.var(), rel=0.01)


def test_a_partly_coupled_pilot_tells_what_chance_gives():
  def draw(rng, n):  # samples of one number are alike, not equal
    noise = rng.normal(size=(1, 2, n)) + 1.2 * rng.normal(size=(1, 1, n))
    return 0.35 + 0.35 * np.tanh(noise)

  rng = np.random.default_rng(34)
  plan = plan_samples(pilot_scores(from_arrays(draw(rng, 4000), coupled=True)), effect=0.06)
  null = [measure_fairness(
    from_arrays(plant(rng, draw(rng, plan['samples']), 0.06 / 0.65, 1), coupled=True),
    permutations=99).individual.null_mean for _ in range(40)]
  assert plan['null_mean'] == pytest.approx(np.mean(null), rel=0.04)


def test_none_of_the_permutations_may_reach_what_is_significant_of_many_tests():
  plan = plan_samples(model_scores('binary'), effect=0.15, tests=28)
  n = plan['samples']
  ones = round(2 * n * 0.575)  # of both samples, as one of them rises from 0.5 to 0.65
  first = np.arange(n + 1)
  chance = scipy.stats.hypergeom(2 * n, ones, n).pmf(first)
  reached = chance[np.abs(2 * first - ones) / n > plan['critical']].sum()
  assert 0.3 < 1000 * reached < 1  # 2 / 1001 would be more than 0.05 / 28


@pytest.mark.parametrize(('arguments', 'message'), [
  ({'effect': 0.0}, 'effect is 0.0'), ({'effect': 0.6}, 'can rise by 0.5'),
  ({'effect': 0.1, 'power': 1.0}, 'power is 1.0'), ({'effect': 0.1, 'level': 0.7}, 'level is 0.7'),
  ({'effect': 0.1, 'values': 1}, 'values is 1'),
  ({'effect': 0.1, 'values': 3, 'level': 0.0005}, 'no p-value below 1 / 1001'),
  ({'effect': 0.1, 'tests': 3, 'values': 4}, 'pairs'),
  ({'effect': 1e-3}, 'more than 1,000,000'), ({'effect': 1e-200}, 'more than 1,000,000'),
  ({'effect': 0.1, 'tests': 10 ** 12}, 'no test of 1000 .* fewer pairs'),
])
def test_plans_that_cannot_be_made_are_refused(arguments, message):
  with pytest.raises(UserError, match=message):
    plan_samples(model_scores('binary'), **arguments)


def test_the_verb_plans_for_kinds_and_for_a_pilot(tmp_path, capsys, refused, found):
  rows = found('records', 'plan', '--effect', '0.05', '--power', '0.8')
  assert [(r['scores'], r['shared']) for r in rows] == [
    (k, s) for s in (0.0, 0.8) for k in ('binary', 'uniform', 'opinion')]
  assert max(r['samples'] for r in rows) == rows[0]['samples']
  path = tmp_path / 'pilot.jsonl'
  attribute = tmp_path / 'a.yaml'
  attribute.write_text("name: a\nvalues: [X, Y]\ntemplates: ['{value} is']\n")
  rng = np.random.default_rng(0)
  path.write_text(''.join(json.dumps({
    'attribute': 'a', 'value': v, 'template': 0, 'prefix': f'{v} is', 'continuation': 'it',
    'scores': {'s': float(rng.integers(0, 2))}}) + '\n' for v in 'XY' for _ in range(400)))
  arguments = ['records', 'plan', '--effect=0.05', f'--records={path}', f'--attribute={attribute}',
               '--scorer=recorded:s']
  (row,) = found(*arguments)
  assert row['scores'] == 'a, recorded:s' and not row['coupled']
  assert row['samples'] == pytest.approx(rows[0]['samples'], rel=0.15)
  assert main(arguments) == 0 and 'a, recorded:s' in capsys.readouterr().out
  for score, number, said in (
      (0.5, 9, "a, recorded:s: the pilot's scores never vary"), (None, 1, 'has 1 sample a prefix')):
    path.write_text(''.join(json.dumps({
      'attribute': 'a', 'value': v, 'template': 0, 'prefix': f'{v} is', 'continuation': 'it',
      'scores': {'s': i / 4 if score is None else score}}) + '\n'
      for i, v in enumerate('XY') for _ in range(number)))
    assert main(arguments) == 0 and said in capsys.readouterr().err
  refused(['records', 'plan'], '--effect')
  refused([*arguments, '--shared=0.5'], '--shared')
