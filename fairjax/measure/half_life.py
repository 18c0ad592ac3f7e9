"""How soon a model that is trained on loses a reduction of bias: the half-life, with an interval.

The reduction is the bias of the baseline less that of the model. Its half-life is the step at which
half of what was there at step 0 is left. Webster et al. 2020, section 6, ask how well mitigations
resist re-learning; this is the same question of a language model on biased text.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

_Z = 1.959963984540054  # 97.5 % point of the normal distribution
_DRAWS = 2000


def half_life(
  steps: Sequence[int], values: Sequence[float], errors: Sequence[float], *, baseline: float,
  baseline_error: float, draws: int = _DRAWS, seed: int = 0,
) -> dict[str, Any]:
  """The step at which half of the reduction is lost.

  The share that is left is made monotone first (isotonic regression: what is lost does not come
  back, so that noise cannot end it early) and read off by straight lines between the points. The
  interval is that of draws of all values from normal distributions with the given errors.

  Args:
    steps: `[K]` rising, the first 0.
    values: `[K]` bias at each of them.
    errors: `[K]` standard errors of them.
    baseline: bias of the model without mitigation.
    baseline_error: its standard error.
    draws: for the interval.
    seed: of the draws.

  Returns:
    `reduction` at step 0 with `low`, `high`; `reached`, and `value` (steps; None: not reached, or
    no reduction), `low`, `high` (None: beyond the last step); `reached_share` of the draws;
    `undefined_share` of the draws without a reduction, which are left out; `last_step`; `retained`:
    per step the share that is left, as measured (`value`, `low`, `high`); `words`.

  Raises:
    ValueError: other lengths, steps that do not rise from 0, or a negative error.

  >>> found = half_life([0, 10, 20], [0.1, 0.2, 0.3], [0, 0, 0], baseline=0.3, baseline_error=0)
  >>> found['value'], found['words']
  (10.0, 'half of the reduction is lost after 10 steps (95 %: 10 to 10)')
  """
  steps_, values_, errors_ = (np.asarray(x, np.float64) for x in (steps, values, errors))
  if not len(steps_) == len(values_) == len(errors_) or steps_[0] != 0 or (
      np.diff(steps_) <= 0).any() or (errors_ < 0).any() or baseline_error < 0:
    raise ValueError('steps rise from 0, each with a value and an error that is not negative')
  half = _Z * math.hypot(errors_[0], baseline_error)
  reduction = float(baseline - values_[0])
  rng = np.random.default_rng([seed, 0x4A1F])
  drawn = values_ + errors_ * rng.standard_normal((draws, len(values_)))
  base = baseline + baseline_error * rng.standard_normal(draws)
  kept = base - drawn[:, 0] > 0
  left = (base[kept, None] - drawn[kept]) / (base[kept] - drawn[kept, 0])[:, None]
  found: dict[str, Any] = {
    'reduction': {'value': reduction, 'low': reduction - half, 'high': reduction + half},
    'last_step': int(steps_[-1]), 'undefined_share': float(1 - kept.mean()),
    'value': None, 'low': None, 'high': None, 'reached': False, 'reached_share': None,
    'retained': []}
  if reduction - half <= 0:
    return found | {'words': 'no clear reduction at step 0, so none can be lost: '
                    f'{reduction:.4f} ({reduction - half:.4f} to {reduction + half:.4f})'}
  measured = (baseline - values_) / reduction
  low, high = np.percentile(left, [2.5, 97.5], axis=0)
  found['retained'] = [
    {'step': int(s), 'value': float(v), 'low': float(a), 'high': float(b)}
    for s, v, a, b in zip(steps_, measured, low, high, strict=True)]
  value = _crossing(steps_, measured)
  crossings = np.sort([_crossing(steps_, row) for row in left])
  ends = [crossings[min(len(crossings) - 1, int(q * len(crossings)))] for q in (0.025, 0.975)]
  found |= {'value': _finite(value), 'low': _finite(ends[0]), 'high': _finite(ends[1]),
            'reached': math.isfinite(value),
            'reached_share': float(np.isfinite(crossings).mean())}
  return found | {'words': _words(found)}


def _crossing(steps: np.ndarray, left: np.ndarray) -> float:
  """First step at which a half is left; infinite if it is never so little."""
  from scipy.optimize import isotonic_regression
  smooth = isotonic_regression(left, increasing=False).x
  below = np.flatnonzero(smooth <= 0.5)
  if not below.size:
    return math.inf
  k = int(below[0])
  if k == 0:
    return 0.0
  share = (smooth[k - 1] - 0.5) / (smooth[k - 1] - smooth[k])
  return float(steps[k - 1] + share * (steps[k] - steps[k - 1]))


def _finite(value: float) -> float | None:
  return float(value) if math.isfinite(value) else None


def _words(found: dict[str, Any]) -> str:
  high = f"beyond {found['last_step']}" if found['high'] is None else f"{found['high']:.0f}"
  low = f"beyond {found['last_step']}" if found['low'] is None else f"{found['low']:.0f}"
  if found['reached']:
    return (f"half of the reduction is lost after {found['value']:.0f} steps (95 %: {low} to "
            f'{high})')
  left = found['retained'][-1]
  return (f"not reached: after {found['last_step']} steps {100 * left['value']:.0f} % of the "
          f"reduction is left ({100 * left['low']:.0f} to {100 * left['high']:.0f} %)")
