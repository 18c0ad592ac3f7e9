"""How far the mean of bounded samples may be from its expectation, at a finite number of them.

Hoeffding's and the empirical Bernstein bound hold for every distribution on the support and every
n; Student's interval is approximate. Letters: n and m sample sizes, w the width of the support.
"""

import math
from typing import NamedTuple

import numpy as np

from fairjax.errors import UserError, unknown_name

METHODS = ('best', 'bernstein', 'hoeffding', 'student')
GUARANTEED = ('best', 'bernstein', 'hoeffding')


class Interval(NamedTuple):
  """A mean with an interval for its expectation, and the number of samples."""

  mean: float
  low: float
  high: float
  n: int


def check_method(method: str) -> str:
  """The name of a bound.

  Raises:
    UserError: it is none of `METHODS`.
  """
  if method not in METHODS:
    raise unknown_name('bound', method, METHODS)
  return method


def check_level(level: float) -> float:
  """A chance of error.

  Raises:
    UserError: not in (0, 1).
  """
  if not 0 < level < 1:
    raise UserError(f'the level (chance that a bound fails) is {level}, it must be in (0, 1)')
  return level


def hoeffding_radius(n: int, *, level: float, width: float) -> float:
  """Hoeffding 1963, theorem 2, two-sided: w sqrt(ln(2/level) / 2n); infinite without samples.

  >>> round(hoeffding_radius(100, level=0.05, width=1.0), 4)
  0.1358
  """
  return math.inf if n < 1 else width * math.sqrt(math.log(2 / level) / (2 * n))


def bernstein_radius(samples: np.ndarray, *, level: float, width: float) -> float:
  """Empirical Bernstein, two-sided (Maurer and Pontil 2009, theorem 4, with level/2 a side).

  sqrt(2 V ln(4/level) / n) + 7 w ln(4/level) / 3(n - 1), V the sample variance: smaller than
  Hoeffding's where samples vary little. Infinite below 2 samples.

  Args:
    samples: `[n]` float64, independent and of one distribution on a support of this width.
    level: chance that the expectation lies further away, at most.
    width: of the support.
  """
  n = len(samples)
  if n < 2:
    return math.inf
  log = math.log(4 / level)
  return math.sqrt(2 * float(np.var(samples, ddof=1)) * log / n) + 7 * width * log / (3 * (n - 1))


def student_radius(samples: np.ndarray, *, level: float) -> float:
  """Student's interval: approximate; infinite below 2 different values, which show no spread."""
  n = len(samples)
  if n < 2 or not np.ptp(samples):
    return math.inf
  return _student_quantile(level, n - 1) * math.sqrt(float(np.var(samples, ddof=1)) / n)


def mean_interval(
  samples: np.ndarray, *, level: float, support: tuple[float, float], method: str = 'best',
) -> Interval | None:
  """Mean of samples with an interval for the expectation, cut to the support.

  Args:
    samples: `[n]` float64 within the support.
    level: chance of error, e.g. 0.05.
    support: smallest and largest value that could have come out, known before sampling.
    method: of `METHODS`; 'best' is the smaller of both guaranteed bounds at half the level each.

  Returns:
    None without samples.
  """
  if not len(samples):
    return None
  low, high = support
  width, mean = high - low, float(np.mean(samples))
  if method == 'student':
    radius = student_radius(samples, level=level)
  else:
    part = level / 2 if method == 'best' else level
    found = {'hoeffding': hoeffding_radius(len(samples), level=part, width=width),
             'bernstein': bernstein_radius(samples, level=part, width=width)}
    radius = min(found.values()) if method == 'best' else found[method]
  return Interval(mean, max(low, mean - radius), min(high, mean + radius), len(samples))


def gap_radius(
  first: np.ndarray, second: np.ndarray, *, level: float, width: float, method: str = 'best',
  dependence: str = 'independent',
) -> float:
  """How far the difference of two means may be from that of the expectations.

  Args:
    first: `[n]` float64, independent of each other.
    second: `[m]` float64, independent of each other.
    level: chance that it is further, at most (approximately, for 'student').
    width: of the common support.
    method: see `mean_interval`.
    dependence: between the two: 'independent'; 'paired' (n = m, the same place shares its noise:
      the bound is that of the differences, whose support has width 2w); or 'unknown', which adds
      the radii of both at half the level and holds however they depend on each other.
  """
  if dependence == 'paired' and len(first) != len(second):
    raise ValueError(f'{len(first)} and {len(second)} samples cannot be paired')
  if method == 'best':
    return min(gap_radius(first, second, level=level / 2, width=width, method=m,
                          dependence=dependence) for m in ('hoeffding', 'bernstein'))
  if min(len(first), len(second)) < 1:
    return math.inf
  if method == 'student':
    return (student_radius(first - second, level=level) if dependence == 'paired'
            else _welch_radius(first, second, level))
  if dependence == 'paired':
    if method == 'hoeffding':
      return hoeffding_radius(len(first), level=level, width=2 * width)
    return bernstein_radius(first - second, level=level, width=2 * width)
  if method == 'hoeffding':
    if dependence == 'independent':
      inverse = 1 / len(first) + 1 / len(second)
      return width * math.sqrt(inverse * math.log(2 / level) / 2)
    return sum(hoeffding_radius(len(x), level=level / 2, width=width) for x in (first, second))
  return sum(bernstein_radius(x, level=level / 2, width=width) for x in (first, second))


def hoeffding_samples(gap: float, *, level: float, width: float, dependence: str) -> int:
  """Samples of each of two prompts at which Hoeffding's radius of their gap is `gap`.

  >>> hoeffding_samples(0.1, level=0.05, width=1.0, dependence='independent')
  369
  """
  log = {'independent': math.log(2 / level), 'paired': 2 * math.log(2 / level),
         'unknown': 2 * math.log(4 / level)}[dependence]
  return math.ceil(width**2 * log / gap**2)


def _welch_radius(first: np.ndarray, second: np.ndarray, level: float) -> float:
  """Welch's interval of a difference: approximate."""
  parts = [(float(np.var(x, ddof=1)) / len(x), len(x) - 1) if len(x) > 1 else (math.inf, 1)
           for x in (first, second)]
  return satterthwaite_radius(parts, level=level)


def satterthwaite_radius(parts: list[tuple[float, int]], *, level: float) -> float:
  """Radius of a sum of independent means: (variance of the mean, degrees of freedom) of each.

  Approximate; infinite where none varies.
  """
  total = sum(v for v, _ in parts)
  if not math.isfinite(total) or total < 1e-30:
    return math.inf
  freedom = total**2 / sum(v**2 / k for v, k in parts)
  return _student_quantile(level, freedom) * math.sqrt(total)


def _student_quantile(level: float, freedom: float) -> float:
  """What |t| exceeds with probability `level`."""
  from scipy.special import stdtrit
  return -float(stdtrit(freedom, level / 2))
