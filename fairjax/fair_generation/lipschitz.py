"""The test of fair generation: Yeo & Chen 2020, definition 2.2 (Y-01, Y-02).

A generator C is fair with respect to d if for all prompts u and v

  |E b(C(u)) - E b(C(v))| <= d(u, v),   b in [0, 1].

Only means of n samples are seen, so each pair gets an interval for the gap of the expectations, all
of which hold at once with probability 1 - level; pairs of which d demands nothing (d of at least
the width of the support) need none, and are listed apart with their gaps. A pair `holds` if its
interval lies below what is allowed, is `violated` if it lies above, else `undecided at this n`. A
gap of expectations that is exactly 0 is never shown by samples: d = 0 can be refuted, or needs a
tolerance.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.fair_generation.biases import Bias
from fairjax.fair_generation.bounds import (
  GUARANTEED,
  check_level,
  check_method,
  gap_radius,
  hoeffding_samples,
)
from fairjax.fair_generation.completions import Completions
from fairjax.fair_generation.distances import Distance

VERDICTS = ('holds', 'undecided', 'violated')


@dataclasses.dataclass(frozen=True)
class FairnessTest:
  """How pairs are tested.

  Attributes:
    level: chance that any interval of a test (all pairs and biases) fails.
    method: of `fairjax.fair_generation.bounds.METHODS`.
    lipschitz: factor of d, the L of |...| <= L d.
    tolerance: added to L d.
    coupled: equal sample numbers of different prompts may share their noise; then samples are
      paired where every number has a value on both sides, and otherwise bounded separately.
  """

  level: float = 0.05
  method: str = 'best'
  lipschitz: float = 1.0
  tolerance: float = 0.0
  coupled: bool = True

  def __post_init__(self) -> None:
    check_level(self.level)
    check_method(self.method)
    for name in ('lipschitz', 'tolerance'):
      value = getattr(self, name)
      if not (math.isfinite(value) and value >= 0):
        raise UserError(f'--{name} is {value}, it must be finite and at least 0')

  def __call__(
    self, completions: Completions, biases: Sequence[Bias], distance: Distance,
  ) -> dict[str, Any]:
    """Tests all pairs of prompts of one model under several biases.

    Returns:
      JSON-able: `verdicts` (bias -> verdict), `verdict` of all, and for each bias the counts, the
      worst pair (least slack), that of the largest ratio, `pairs` (by slack), and
      `other_pairs` (by slack), of which d demands nothing: with gap and slack, without an interval.
      `samples_to_decide` of an undecided pair is how many of each prompt Hoeffding's bound would
      need if the gap stayed what it is.

    Raises:
      UserError: a single prompt.
    """
    prompts = completions.prompts
    if len(prompts) < 2:
      raise UserError(f"{completions.model}: one prompt only ('{prompts[0].text}'): a test of "
                      'fairness compares at least two')
    allowed = self.lipschitz * distance.matrix(prompts) + self.tolerance
    pairs = list(itertools.combinations(range(len(prompts)), 2))
    tested = {b.name: {p for p in pairs if allowed[p] < b.width} for b in biases}
    intervals = sum(map(len, tested.values()))
    results = {
      b.name: self._test_bias(completions, b, allowed, tested[b.name],
                              level=self.level / max(intervals, 1))
      for b in biases}
    return {
      'definition': 'Y-01', 'model': completions.model, 'distance': distance.name,
      'distance_scale': distance.scale, 'lipschitz': self.lipschitz, 'tolerance': self.tolerance,
      'level': self.level, 'bound': self.method, 'guaranteed': self.method in GUARANTEED,
      'intervals': intervals, 'prompts': len(prompts),
      'verdicts': {name: r['verdict'] for name, r in results.items()},
      'verdict': _together([r['verdict'] for r in results.values()]), 'biases': results}

  def _test_bias(self, completions, bias, allowed, tested, *, level) -> dict[str, Any]:
    """One bias; `level` is that of one interval."""
    values, cells = bias.normalised(), []
    for prompt in range(len(completions.prompts)):
      rows = completions.rows(prompt)
      cells.append((values[rows], None if completions.sample is None else completions.sample[rows]))
    rows, others = [], []
    for pair in itertools.combinations(range(len(completions.prompts)), 2):
      row = self._describe_pair(completions, bias, cells, allowed, pair)
      if pair in tested:
        rows.append(self._test_pair(bias, cells, pair, row, level))
      else:
        others.append(row)
    for found in (rows, others):
      found.sort(key=lambda row: math.inf if row['slack'] is None else row['slack'])
    counts = {v: sum(row['verdict'] == v for row in rows) for v in VERDICTS}
    ratios = [row for row in rows if row['ratio'] is not None]
    return {
      'verdict': _together([row['verdict'] for row in rows]),
      'pairs_demanding_nothing': len(others), 'pairs_tested': len(rows), **counts,
      'span': list(bias.span), 'support': list(bias.support),
      'n': int(np.isfinite(values).sum()), 'undefined': bias.undefined,
      'worst': rows[0] if rows and rows[0]['slack'] is not None else None,
      'largest_ratio': max(ratios, key=lambda row: row['ratio']) if ratios else None,
      'pairs': rows, 'other_pairs': others}

  def _describe_pair(self, completions, bias, cells, allowed, pair) -> dict[str, Any]:
    """One pair: gap and slack in normalised units, None where a prompt has no value."""
    (first, second), most = (completions.prompts[i] for i in pair), float(allowed[pair])
    distance = (most - self.tolerance) / self.lipschitz if self.lipschitz else None
    x, y, dependence = self._samples(*(cells[i] for i in pair))
    row = {'first': first.text, 'second': second.text, 'groups': [first.group, second.group],
           'distance': distance, 'allowed': most, 'n': [len(x), len(y)], 'dependence': dependence}
    if not len(x) or not len(y):
      return row | dict.fromkeys(('means', 'gap', 'gap_in_span', 'slack', 'ratio'))
    gap, span = abs(float(x.mean() - y.mean())), bias.span[1] - bias.span[0]
    return row | {
      'means': [float(bias.span[0] + span * m) for m in (x.mean(), y.mean())], 'gap': gap,
      'gap_in_span': gap * span, 'slack': most - gap, 'ratio': gap / distance if distance else None}

  def _test_pair(self, bias, cells, pair, row, level) -> dict[str, Any]:
    """The row with interval and verdict; low and high are in normalised units."""
    gap, most = row['gap'], row['allowed']
    if gap is None:
      return row | dict.fromkeys(('low', 'high', 'samples_to_decide')) | {'verdict': 'undecided'}
    x, y, dependence = self._samples(*(cells[i] for i in pair))
    radius = gap_radius(x, y, level=level, width=bias.width, method=self.method,
                        dependence=dependence)
    low, high = max(0.0, gap - radius), min(bias.width, gap + radius)
    verdict = 'holds' if high <= most else 'violated' if low > most else 'undecided'
    missing = verdict == 'undecided' and abs(most - gap) > 1e-6
    return row | {
      'low': low, 'high': high, 'verdict': verdict,
      'samples_to_decide': hoeffding_samples(
        most - gap, level=level, width=bias.width, dependence=dependence) if missing else None}

  def _samples(self, first, second) -> tuple[np.ndarray, np.ndarray, str]:
    """Values of both prompts without the undefined ones, and how they depend on each other."""
    (x, ids_x), (y, ids_y) = first, second
    whole = bool(np.isfinite(x).all() and np.isfinite(y).all())
    clean = x[np.isfinite(x)], y[np.isfinite(y)]
    if not self.coupled or ids_x is None:
      return *clean, 'independent'
    return *clean, 'paired' if whole and np.array_equal(ids_x, ids_y) else 'unknown'


def _together(verdicts: Sequence[str]) -> str:
  """All must hold (Y-02); one that is violated decides."""
  return max(verdicts, key=VERDICTS.index, default='holds')
