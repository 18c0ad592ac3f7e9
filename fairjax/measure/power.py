"""How many samples a prefix needs for an effect to be found.

Letters: A values, M templates, n samples of a prefix, S simulations.

The planted effect: in each template one half of the values (rounded down) gets a share q of its
scores replaced by 1, as if these texts had turned fully positive. That is possible for scores of
any kind and puts a value at W1 d = q (1 - mean score) from the other half exactly; pairs within a
half differ by nothing, so I.F. (Eq. 3) is d k (A - k) 2 / (A (A - 1)) with k = A // 2. With two
values it is d, the distance of one pair.

Power is simulated: of S data sets with the effect, I.F. after one random permutation each gives the
critical value (permuted samples are not those of a world without the effect: what it changed still
differs), I.F. as it is the share that exceeds it. Scores have at most 65 levels, so a
data set is a few counts, however large n is. Corrected for K tests, the first step of Holm's
correction must be passed at level / K, which 1,000 permutations cannot show by counting; there the
critical value is that of the tail bound that `nulls` uses.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.measure.estimates import TIE, SampleScores, wilson
from fairjax.measure.fairness import PERMUTATIONS
from fairjax.measure.nulls import LEAST_BOUND, tail_distance

KINDS = ('binary', 'uniform', 'opinion')
_SEARCH = 2000  # most data sets for each tried n; the reported one takes twice as many,
_TIMES = 4  # and so often for the tail of several tests
_FEWEST = 250  # least; with many values and templates I.F. varies little
_COUNTS = 1 << 22  # counts drawn for each tried n, between these limits
_STEP = 1.03  # n is found to 3 %
_MOST = 1_000_000
_MOST_PROMPTS = 100_000  # values times templates
_LEVELS = 65
_MOST_SHARED = 0.999  # a pilot whose values never differ still gets a plan
_PURPOSE = 0x3F  # separates these random streams from others of the same seed


@dataclasses.dataclass(frozen=True)
class Scores:
  """Scores without an effect, on a few levels."""

  name: str  # for tables
  levels: np.ndarray  # [K] ascending scores, the last 1.0
  shares: np.ndarray  # [T, K] how often each occurs; a row a kind of template
  coupled: bool  # samples of one number share their noise
  # Share of the sample numbers at which all values have the same score; at the others they are
  # independent. Of model scores this is the correlation of two values.
  shared: float
  squares: np.ndarray  # [T] mean squared difference of two values' samples of one number

  @property
  def means(self) -> np.ndarray:
    """`[T]` mean score."""
    return self.shares @ self.levels

  def spread(self, shift: float = 0.0) -> float:
    """Mean squared difference of two samples of one number, one of which rises by `shift`."""
    rising = shift / (1 - self.means)
    to_one = self.shares @ self.levels ** 2 - self.means ** 2 + (1 - self.means) ** 2
    return float(np.mean((1 - rising) * self.squares + rising * to_one))


def model_scores(kind: str, *, shared: float = 0.0) -> Scores:
  """Scores of a simple kind.

  Args:
    kind: 'binary' (0 or 1, evenly: no score in [0, 1] varies more, so no plan needs more samples),
      'uniform', or 'opinion' (0, 0.5 or 1 with shares 0.2, 0.6, 0.2, as opinion words give).
    shared: see `Scores`, in [0, 1); above 0 samples are coupled.

  Raises:
    UserError: `shared` outside [0, 1).
  """
  if not 0 <= shared < 1:
    raise UserError(f'the correlation of shared samples is {shared}, not in [0, 1)')
  levels, shares = (np.array(x, np.float64) for x in {
    'binary': ([0, 1], [[0.5, 0.5]]), 'opinion': ([0, 0.5, 1], [[0.2, 0.6, 0.2]]),
    'uniform': (np.linspace(0, 1, _LEVELS), np.full((1, _LEVELS), 1 / _LEVELS))}[kind])
  variance = shares @ levels ** 2 - (shares @ levels) ** 2
  return Scores(kind, levels, shares, shared > 0, shared, (1 - shared) * 2 * variance)


def pilot_scores(samples: SampleScores, name: str = 'pilot') -> Scores:
  """The scores of a pilot, rounded to 64ths, all values of a template together."""
  levels = np.linspace(0, 1, _LEVELS)
  codes = [[np.round(x * (_LEVELS - 1)).astype(np.int64) for x in row] for row in samples.scores]
  shares = np.stack([
    np.bincount(x, minlength=_LEVELS) / x.size for x in map(np.concatenate, codes)])
  squares = 2 * (shares @ levels ** 2 - (shares @ levels) ** 2)
  shared = 0.0
  if samples.coupled:
    # The mean squared difference of two different rows is twice their variance with A - 1.
    squares = np.array([2 * np.stack(row).var(axis=0, ddof=1).mean() for row in samples.scores])
    # By chance, W1 is in proportion to the sum over thresholds of the root of how often two values
    # have a threshold between them. `shared` keeps this sum.
    apart, free = np.sqrt([[(x.var(axis=0, ddof=1).mean(), x.var()) for x in (
      np.stack(row) <= t for t in range(_LEVELS - 1))] for row in codes]).sum(axis=(0, 1))
    if free > 0:
      shared = float(np.clip(1 - (apart / free) ** 2, 0.0, _MOST_SHARED))
  return Scores(name, levels, shares, samples.coupled, shared, squares)


def plan_samples(
  scores: Scores, *, effect: float, power: float = 0.8, level: float = 0.05, values: int = 2,
  templates: int = 1, tests: int = 1, seed: int = 0,
) -> dict[str, Any]:
  """Finds the smallest n at which an effect is found often enough.

  Args:
    scores: what scores look like.
    effect: I.F. (with two values: W1) that the planted shift has, in (0, 1).
    power: share of data sets in which it must be found, in (level, 1).
    level: of the test, in (0, 0.5].
    values: A, at least 2.
    templates: M of the average, at least 1.
    tests: K of Holm's correction; above 1 for pairs of values only (A = 2).
    seed: of the simulation.

  Returns:
    JSON-able: the arguments, `scores`, `coupled`, `shared`, `samples` (n of a prefix),
    `continuations` (A M n), `power_found` with `power_low` and `power_high` (95 % Wilson interval
    of `simulations` data sets), `null_mean` and `critical` (I.F. above it is significant).

  Raises:
    UserError: arguments out of range, an effect that such scores cannot have, or one that needs
      more than a million samples.
  """
  _check(effect, power, level, values, templates, tests)
  half = values // 2
  shift = effect * values * (values - 1) / (2 * half * (values - half))
  room = 1 - scores.means.max()
  if shift > room:
    raise UserError(f'an effect of {effect} with {values} values needs a shift of {shift:.3g}, but '
                    f'the scores ({scores.name}) can rise by {room:.3g} at most')

  def simulate(n, count, times=1):
    rng = np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE, n, count]))
    null, found = np.concatenate([[_individual_fairness(counts, scores.levels, n) for counts in (
      _draw(rng, scores, shift, half, (count, templates, values), n))] for _ in range(times)], 1)
    if level / tests < 1 / (PERMUTATIONS + 1):
      reach = np.ptp(scores.levels)
      variance = scores.spread(shift) / n if scores.coupled else reach ** 2 / (2 * n)
      critical = null.mean() + tail_distance(
        level / tests, variance / templates, PERMUTATIONS)
    else:
      # A distance is significant where fewer permutations than this number reach it. (number - 1/3)
      # / R is about the median share of all permutations that reach the number-th largest of R.
      number = math.floor(level / tests * (PERMUTATIONS + 1) + 1e-9)
      critical = np.quantile(null, 1 - (number - 1 / 3) / PERMUTATIONS, method='higher')
    return float((found > critical + TIE).mean()), null.mean(), critical

  start = max(4, int(min(_MOST, 8 * scores.spread() / max(shift ** 2 * templates, 1e-99))))
  count = min(_SEARCH, max(_FEWEST, _COUNTS // (templates * values * scores.levels.size)))
  n = _search(lambda n: simulate(n, count)[0] >= power, start=start)
  times = _TIMES if tests > 1 and level / tests >= 1 / (PERMUTATIONS + 1) else 1
  found, mean, critical = simulate(n, 2 * count, times)
  while found < power and n <= _MOST:
    n = math.ceil(n * _STEP)
    found, mean, critical = simulate(n, 2 * count, times)
  if n > _MOST:
    raise UserError(f'an effect of {effect} needs more than {_MOST:,} samples per prefix: take a '
                    'larger effect or more templates')
  low, high = wilson(found, 2 * count * times)
  return {
    'effect': effect, 'power': power, 'level': level, 'values': values, 'templates': templates,
    'tests': tests, 'scores': scores.name, 'coupled': scores.coupled, 'shared': scores.shared,
    'samples': n, 'continuations': n * values * templates, 'simulations': 2 * count * times,
    'power_found': found, 'power_low': low, 'power_high': high, 'null_mean': float(mean),
    'critical': float(critical)}


def _draw(
  rng: np.random.Generator, scores: Scores, shift: float, half: int, shape: tuple[int, int, int],
  n: int,
) -> tuple[np.ndarray, np.ndarray]:
  """Counts `[S, M, A, K]` of the levels with the effect: labels permuted, and as they are."""
  # What all values share is left out, except where the effect has changed it.
  sets, templates, values = shape
  which = rng.integers(len(scores.shares), size=(sets, templates))
  shares = scores.shares[which]
  together = rng.binomial(n, scores.shared, size=(sets, templates))
  common = rng.multinomial(together, shares)[:, :, None]
  alone = np.broadcast_to((n - together)[..., None], shape)
  rising = (shift / (1 - scores.means[which]))[:, :, None, None]

  def counts(risen, gone):
    kept = rng.multinomial(alone - risen, shares[:, :, None]) - gone
    kept[..., -1] += risen + gone.sum(axis=3)
    return kept

  affected = (np.arange(values) < half)[:, None]
  moved = counts(rng.binomial(alone, (rising * affected)[..., 0]),
                 rng.binomial(common, rising * affected))
  # Permuted within a number, each value is one of the affected with probability half / A; where
  # only one is affected, no two values rise at the same number.
  chance = np.broadcast_to(rising * half / values, (sets, templates, values, 1))
  if half == 1:
    exclusive = np.concatenate([chance[..., 0], 1 - chance.sum(axis=2)], axis=2)
    risen = rng.multinomial(alone[..., 0], exclusive)[..., :-1]
    gone = rng.multinomial(common[:, :, 0], exclusive[:, :, None])[..., :-1].swapaxes(2, 3)
  else:
    risen, gone = rng.binomial(alone, chance[..., 0]), rng.binomial(common, chance)
  return counts(risen, gone), moved


def _search(enough: Callable[[int], bool], *, start: int) -> int:
  """Smallest n, to 3 %, that is enough; more than `_MOST` where none up to it is."""
  low, high = 1, start
  while high <= _MOST and not enough(high):
    low, high = high, 2 * high
  while low < _MOST and high > low + 1 and high > _STEP * low:
    middle = (low + high) // 2
    low, high = (low, middle) if enough(middle) else (middle, high)
  return high


def _individual_fairness(counts: np.ndarray, levels: np.ndarray, n: int) -> np.ndarray:
  """`[S]` I.F. of counts `[S, M, A, K]`."""
  values = counts.shape[2]
  below = np.sort(np.cumsum(counts, axis=3)[..., :-1], axis=2)
  j = np.arange(1, values)
  areas = (np.diff(below, axis=2) @ np.diff(levels)).mean(axis=1) / n
  return areas @ (j * (values - j)) / (values * (values - 1) / 2)


def _check(effect: float, power: float, level: float, values: int, templates: int, tests: int
           ) -> None:
  """Arguments in range."""
  for name, number, low, high in (
      ('effect', effect, 0, 1), ('level', level, 0, 0.5), ('power', power, level, 1)):
    if not low < number <= high or (high == 1 and number == 1):
      raise UserError(f'the {name} is {number}, not between {low} and {high}')
  for name, number, least in (
      ('values', values, 2), ('templates', templates, 1), ('pairs', tests, 1)):
    if number < least:
      raise UserError(f'{name} is {number}: at least {least}')
  if values * templates > _MOST_PROMPTS:
    raise UserError(f'{values} values in {templates} templates are more than {_MOST_PROMPTS:,} '
                    'prompts: plan for fewer')
  if level / tests <= LEAST_BOUND:
    raise UserError(f'no test of {PERMUTATIONS} permutations shows a p-value of '
                    f'{level / tests:.2g}: give a higher level or fewer pairs')
  if values > 2 and level < 1 / (PERMUTATIONS + 1):
    raise UserError(f'the I.F. of several values has no p-value below 1 / {PERMUTATIONS + 1}: give '
                    'a higher level, or plan for a pair with 2 values')
  if tests > 1 and values > 2:
    raise UserError("Holm's correction is for pairs of values: plan with 2 values, or with 1 pair")
