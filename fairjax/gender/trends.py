"""Correlations and straight lines with intervals, and their mean and deviation over restarts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from fairjax.measure.correlation import pearson, spearman
from fairjax.measure.estimates import Z


def correlation(x: np.ndarray, y: np.ndarray, *, ranks: bool = False) -> dict[str, Any]:
  """Pearson's r, or Spearman's rho, of n pairs with a 95 % interval by Fisher's z.

  The z of ranks has a variance of (1 + rho^2 / 2) / (n - 3) (Bonett and Wright 2000). `value` is
  None where one side never changes, `low` and `high` are None below 4 pairs.

  >>> found = correlation(np.arange(5.0), np.array([1.0, 2.0, 2.0, 4.0, 3.0]))
  >>> [round(found[k], 3) for k in ('value', 'low', 'high')]
  [0.832, -0.189, 0.989]
  """
  value = (spearman if ranks else pearson)(x, y)
  low = high = None
  if value is not None and len(x) > 3:
    low = high = value
    if abs(value) < 1:
      half = Z * math.sqrt((1 + value**2 / 2 if ranks else 1) / (len(x) - 3))
      low, high = math.tanh(math.atanh(value) - half), math.tanh(math.atanh(value) + half)
  return {'value': value, 'low': low, 'high': high, 'n': len(x)}


def fit_slope(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
  """Slope of the least-squares line of n points, with a 95 % interval (Student's t)."""
  x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
  found = {'value': None, 'std_error': None, 'low': None, 'high': None, 'n': len(x)}
  # The mean of equal numbers may differ from them in the last place: their spread is not 0.
  if len(x) < 2 or np.ptp(x) <= 1e-12 * max(1.0, np.abs(x).max()):
    return found
  spread = float(np.square(x - x.mean()).sum())
  slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
  if len(x) < 3:
    return found | {'value': slope}
  intercept = float(y.mean() - slope * x.mean())
  variance = float(np.square(y - intercept - slope * x).sum()) / (len(x) - 2)
  error = math.sqrt(variance / spread)
  half = float(stdtrit(len(x) - 2, 0.975)) * error
  return found | {'value': slope, 'std_error': error, 'low': slope - half, 'high': slope + half}


def over_restarts(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Mean and deviation (n - 1) of an estimate over the restarts in which it is defined.

  `low` and `high` are means of the intervals of single restarts: they show what the sample of
  professions or pairs leaves open, `sd` what the seed does.

  >>> found = over_restarts([{'value': v, 'low': 0, 'high': 1, 'n': 60} for v in (0.25, 0.75)])
  >>> found['mean'], round(found['sd'], 3), found['restarts'], found['undefined']
  (0.5, 0.354, [0.25, 0.75], 0)
  """
  values = [f['value'] for f in found]
  defined = [f for f in found if f['value'] is not None]
  numbers = np.array([f['value'] for f in defined], np.float64)
  mean = float(numbers.mean()) if len(numbers) else None
  sides = {side: [f[side] for f in defined] for side in ('low', 'high')}
  means = {side: float(np.mean(each)) if each and None not in each else None
           for side, each in sides.items()}
  return {'value': mean, 'mean': mean, 'sd': float(numbers.std(ddof=1)) if len(numbers) > 1
          else None, **means, 'n': found[0]['n'], 'restarts': values,
          'undefined': len(values) - len(defined)}


def format_mean_sd(found: Mapping[str, Any]) -> str:
  """A cell of the paper's tables: mean ± standard deviation over restarts."""
  if found['mean'] is None:
    return 'undefined'
  return f"{found['mean']:z.2f}" + ('' if found['sd'] is None else f"±{found['sd']:.2f}")
