"""The half-life of a reduction: closed forms, intervals that cover, and what is not reached."""

import math

import numpy as np
import pytest

from fairjax.errors import UserError
from fairjax.report.figures import plot_relearning
from fairjax.run.relearning import _keep_looks, half_life

STEPS = [0, 10, 20, 40, 80]


def decayed(life, *, reduction=0.2, baseline=0.3, steps=STEPS):
  return [baseline - reduction * 2 ** (-s / life) for s in steps]


def found_of(values, error=0.0, *, baseline=0.3, steps=STEPS, **more):
  return half_life(steps, values, [error] * len(values), baseline=baseline, baseline_error=error,
                   **more)


@pytest.mark.parametrize('life', [10, 20, 40])
def test_a_point_on_the_half_life_is_found(life):
  found = found_of(decayed(life))
  assert found['value'] == pytest.approx(life) and found['reached']
  assert found['low'] == pytest.approx(life) and found['high'] == pytest.approx(life)
  assert found['retained'][0]['value'] == 1 and found['reached_share'] == 1
  assert found['reduction']['value'] == pytest.approx(0.2)


def test_a_curve_has_one_kind_of_look_and_an_old_one_says_less(tmp_path):
  _keep_looks(tmp_path / 'a', {'samples': 20})
  _keep_looks(tmp_path / 'a', {'samples': 20, 'similarity_threshold': '0.5'})
  _keep_looks(tmp_path / 'b', {'samples': 20, 'similarity_threshold': '0.4'})
  with pytest.raises(UserError, match='measured with other similarity_threshold'):
    _keep_looks(tmp_path / 'b', {'samples': 20, 'similarity_threshold': '0.5'})


def test_between_two_points_a_line_is_drawn():
  # Left: 1, 0.8, 0.4 -> a half at 10 + 10 * 0.3 / 0.4.
  found = half_life([0, 10, 20], [0.1, 0.14, 0.22], [0] * 3, baseline=0.3, baseline_error=0)
  assert found['value'] == pytest.approx(17.5)


def test_what_is_not_reached_says_so():
  found = found_of(decayed(1000))
  assert not found['reached'] and found['value'] is None and found['high'] is None
  assert found['words'].startswith('not reached: after 80 steps 95 % of the reduction is left')
  # A single dip is noise, for it comes back.
  assert not found_of([0.3 - 0.2 * x for x in (1, 0.45, 0.95, 0.9, 0.85)])['reached']


def test_without_a_reduction_there_is_nothing_to_lose():
  for values, error in (([0.3] * 5, 0.01), ([0.4] * 5, 0.0), (decayed(20), 0.1)):
    found = found_of(values, error)
    assert found['value'] is None and 'no clear reduction' in found['words']
    assert found['reached_share'] is None


def test_the_interval_covers():
  """Of many noisy curves of a known half-life, about 95 % of the intervals hold it."""
  rng = np.random.default_rng(0)
  steps = [0, 15, 30, 45, 60, 75]
  truth = np.array(decayed(30, steps=steps))
  hits = 0
  for _ in range(200):
    values = truth + 0.01 * rng.standard_normal(len(steps))
    found = half_life(steps, values, [0.01] * len(steps), draws=300,
                      baseline=0.3 + 0.01 * rng.standard_normal(), baseline_error=0.01)
    high = math.inf if found['high'] is None else found['high']
    hits += found['low'] <= 30 <= high
  assert 176 <= hits <= 200  # 88 % at least: 4 deviations of a binomial below 95 %


def test_draws_beyond_the_end_open_the_interval(tmp_path):
  found = found_of(decayed(70), 0.015, steps=STEPS)
  assert found['reached'] and found['high'] is None and found['low'] < 70
  assert 'to beyond 80' in found['words'] and 0 < found['reached_share'] < 1
  assert found == found_of(decayed(70), 0.015, steps=STEPS)
  curve = [{'step': step, 'individual_fairness': value, 'std_error': 0.015, 'null_p95': 0.05}
           for step, value in zip(STEPS, decayed(70), strict=True)]
  plot_relearning(tmp_path / 'x', result={
    'model': 'm', 'scorer': 's', 'baseline': {'individual_fairness': 0.3}, 'curve': curve,
    'half_life': found})
  assert 'half-life' in (tmp_path / 'x.svg').read_text()
