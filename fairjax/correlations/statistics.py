"""Correlations, contingency tables and restarts, each with its n and its uncertainty."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def correlation(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> dict[str, Any]:
  """Pearson's r with a 95 % interval by Fisher's z and a two-sided p-value.

  Args:
    x: `[n]` finite.
    y: `[n]` finite.

  Returns:
    JSON-able: `r` in [-1, 1], `n`, `low` and `high` (None below 4 points), `p` (Student, n - 2
    degrees of freedom; None below 3); `r` is None where one side does not vary.

  Raises:
    ValueError: other shapes, or a value that is not finite.
  """
  from scipy import special, stats
  x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
  if x.ndim != 1 or x.shape != y.shape or not (np.isfinite(x).all() and np.isfinite(y).all()):
    raise ValueError(f'two rows of finite numbers are needed, not {x.shape} and {y.shape}')
  n = len(x)
  found: dict[str, Any] = {'r': None, 'n': n, 'low': None, 'high': None, 'p': None}
  if n < 2 or _constant(x) or _constant(y):
    return found
  dx, dy = x - x.mean(), y - y.mean()
  r = float(np.clip((dx @ dy) / math.sqrt((dx @ dx) * (dy @ dy)), -1, 1))
  found['r'] = r
  if n > 2:
    t = r * math.sqrt((n - 2) / max(1 - r * r, 1e-300))
    found['p'] = float(2 * stats.t.sf(abs(t), n - 2))
  if n > 3:
    z = math.atanh(min(max(r, -1 + 1e-15), 1 - 1e-15))
    half = special.ndtri(0.975) / math.sqrt(n - 3)
    found['low'], found['high'] = math.tanh(z - half), math.tanh(z + half)
  return found


def chi_square(supplied: np.ndarray, sizes: np.ndarray) -> np.ndarray:
  """Pearson's chi-square of "supplied or not" by group, without Yates's correction (W-03).

  Args:
    supplied: `[..., G]` how many persons of each group a fill was supplied for.
    sizes: `[G]` persons of each group, positive.

  Returns:
    `[...]` float64; 0 where all or none of the persons were supplied, as no rates can differ.
  """
  supplied, sizes = np.asarray(supplied, np.float64), np.asarray(sizes, np.float64)
  rate = supplied.sum(axis=-1, keepdims=True) / sizes.sum()
  expected = rate * sizes
  with np.errstate(divide='ignore', invalid='ignore'):
    terms = np.square(supplied - expected) * (1 / expected + 1 / (sizes - expected))
  varies = (rate > 0) & (rate < 1)
  return np.where(varies, terms, 0).sum(axis=-1)


def chi_square_p(statistic: np.ndarray, groups: int) -> np.ndarray:
  """Upper tail of the chi-square distribution with `groups` - 1 degrees of freedom."""
  from scipy import special
  return special.chdtrc(groups - 1, statistic)


def restarts(values: Sequence[float | None]) -> dict[str, Any]:
  """Mean and standard deviation over random restarts (W-11).

  Args:
    values: one a restart; None where it gave none.

  Returns:
    JSON-able: `mean`, `sd` (n - 1 in the divisor; None below two), `n`, `values`.

  >>> restarts([0.25, 0.75])['mean']
  0.5
  """
  given = np.array([v for v in values if v is not None], np.float64)
  return {'mean': float(given.mean()) if len(given) else None,
          'sd': float(given.std(ddof=1)) if len(given) > 1 else None,
          'n': len(given), 'values': list(values)}


def _constant(x: np.ndarray) -> bool:
  """Whether the numbers differ by rounding only."""
  return bool(np.ptp(x) <= 1e-12 * max(1.0, np.abs(x).max()))
