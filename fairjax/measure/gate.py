"""Whether a new model is less fair than an old one by more than a margin: a gate for builds.

The difference is that of the two I.F. (H-05), of as many samples of each prefix as both files have.
Chance adds something to each: all of the null mean to a fair model's, next to nothing to one whose
distributions lie far apart. Where a fair model becomes biased, the difference therefore shows less
than the rise. What chance may hide is added to the interval before a verdict is reached. Chance
adds at most the null mean, because E|X + m| <= |m| + E|X|, and at least what it adds to a model
with the same I.F. whose distributions all lie equally far apart: E|X + m| is convex (Jensen), and X
normal. The rates of errors are in docs/measures.md (`tests.benchmarks.gate`).

The standard error is a delete-a-group jackknife over 20 groups of samples. Where both files hold
the same coupled sample numbers, a group leaves both at once, so that shared noise cancels. Two
one-sided tests (Schuirmann 1987) against the margin, each at 5 %, are an interval of 90 %, with
Student's t of 19 degrees of freedom.
"""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np

from fairjax.errors import UserError
from fairjax.measure.columns import Generations
from fairjax.measure.estimates import LEVEL, SampleScores
from fairjax.measure.fairness import JACKKNIFE_GROUPS, PERMUTATIONS, jackknife
from fairjax.measure.nulls import LabelStatistics

CODES = {'no worse': 0, 'worse': 3, 'cannot tell': 4}
"""Verdicts with the exit code of `fairjax compare gate`."""
_POWER = 0.8
_MOST_SAMPLES = 10 ** 9


@dataclasses.dataclass(frozen=True)
class GateResult:
  """What a gate finds for one attribute and scorer."""

  new: float  # I.F. of the new records
  old: float  # of the old ones
  new_null_mean: float  # expected by chance
  old_null_mean: float
  difference: float  # `new - old`
  std_error: float  # of the difference
  low: float  # ends of its 90 % interval
  high: float
  least: float  # ends of the interval of the rise without what chance adds
  most: float
  margin: float  # the largest difference that passes
  verdict: str  # 'no worse' (`most` below the margin), 'worse' (`least` above it) or 'cannot tell'
  equivalent: bool  # `least` and `most` are between `-margin` and `margin`
  paired: bool  # both files hold the same coupled samples
  samples: int  # smallest number of a prefix
  left_out: int  # samples that only one file has
  # with which a difference of this size is decided in 80 %; None where it is decided already, or
  # too near to the margin for any number
  samples_needed: int | None

  def sentence(self) -> str:
    """One line for people."""
    text = (f'{self.verdict}: I.F. {self.new:.4f} (by chance {self.new_null_mean:.4f}), before '
            f'{self.old:.4f} ({self.old_null_mean:.4f}); difference '
            f'{self.difference:+.4f} [{self.low:+.4f}, {self.high:+.4f}], without chance '
            f'[{self.least:+.4f}, {self.most:+.4f}], margin {self.margin:g}, '
            f"n = {self.samples}{', paired' if self.paired else ''}"
            + f'; {self.left_out:,} samples that only one file has are left out' * (
              self.left_out > 0))
    if self.verdict == 'cannot tell':
      text += (f'; about {self.samples_needed:,} samples per prefix would tell'
               if self.samples_needed else '; the difference is too near to the margin to tell')
    return text


def prompts_of(generations: Generations) -> set[tuple[Any, str, str]]:
  """Template, value and prefix of every prompt; white space at the end of a prefix tells none."""
  g = generations
  return {(g.templates[t], g.attribute.value_texts[v], prefix.rstrip())
          for t, v, prefix in zip(g.template_index, g.value_index, g.prefixes, strict=True)}


def check_prompts(new: set[tuple[Any, str, str]], old: set[tuple[Any, str, str]], *,
                  attribute: str, files: Sequence[str | os.PathLike]) -> None:
  """Refuses records of other values, templates or prefixes (`prompts_of`)."""
  if differ := new ^ old:
    template, value, prefix = min(differ, key=repr)
    raise UserError(
      f"{' and '.join(map(str, files))}: {len(differ)} prompts of {attribute} are in one of them "
      f"only, such as {prefix!r} (template {template!r}, value '{value}'): models are compared by "
      'answers to the same prompts: sample both with the same ones, or leave out what only one has')


def compare_fairness(
  new: SampleScores, old: SampleScores, *, margin: float, permutations: int = PERMUTATIONS,
  seed: int = 0,
) -> GateResult:
  """Tests whether the I.F. has risen by more than a margin, in units of W1."""
  if new.coupled != old.coupled:
    raise UserError('the samples of one file are coupled, those of the other are not, so that '
                    'chance adds more to its I.F., and nothing tells how much: sample both alike, '
                    'or give --independent if none share their noise')
  numbers = int(new.sizes.sum() + old.sizes.sum())
  new, old = _as_many(new, old)
  samples = new.samples_per_prefix[0]
  if samples < JACKKNIFE_GROUPS:
    raise UserError(f'a prefix has {samples} samples: a gate needs {JACKKNIFE_GROUPS} or more')
  statistics = [LabelStatistics(x.scores, x.subgroup_index) for x in (new, old)]
  values = [float(s.observed().all_pairs.mean()) for s in statistics]
  chance = [float(s.permuted(permutations, coupled=x.coupled, seed=seed).all_pairs.mean())
            for x, s in zip((new, old), statistics, strict=True)]
  difference = values[0] - values[1]
  left = [jackknife(x).all_pairs.mean(axis=0) for x in (new, old)]
  paired = new.coupled and old.coupled and all(
    np.array_equal(a[0], b[0]) for a, b in zip(new.sample_ids, old.sample_ids, strict=True))
  parts = [left[0] - left[1]] if paired else left
  error = math.sqrt(sum((JACKKNIFE_GROUPS - 1) * float(np.var(part)) for part in parts))
  from scipy.stats import t
  quantile = float(t.ppf(1 - LEVEL, JACKKNIFE_GROUPS - 1))
  low, high = difference - quantile * error, difference + quantile * error
  hidden = [max(0.0, chance[k] - _least_chance(values[1 - k], chance[1 - k])) for k in (0, 1)]
  least, most = low - hidden[0], high + hidden[1]
  verdict = 'no worse' if most < margin else 'worse' if least > margin else 'cannot tell'
  needed = None
  if verdict == 'cannot tell' and difference != margin:
    reach = (quantile + float(t.ppf(_POWER, JACKKNIFE_GROUPS - 1))) * error
    reach += hidden[difference < margin]
    found = samples * (reach / (margin - difference)) ** 2
    needed = math.ceil(found) if found < _MOST_SAMPLES else None
  return GateResult(
    values[0], values[1], chance[0], chance[1], difference, error, low, high, least, most, margin,
    verdict, -margin < least and most < margin, paired, samples,
    numbers - 2 * int(new.sizes.sum()), needed)


def _least_chance(value: float, chance: float) -> float:
  """The least that chance adds to an I.F.; `chance` is the null mean."""
  from scipy.stats import norm
  shift = np.linspace(0, 8, 801)  # of a standard normal variable
  seen = 2 * norm.pdf(shift) + shift * (2 * norm.cdf(shift) - 1)  # E|X + shift|
  added = (seen - shift) / seen[0]
  return chance * float(np.interp(value / chance, seen / seen[0], added)) if chance else 0.0


def _as_many(new: SampleScores, old: SampleScores) -> tuple[SampleScores, SampleScores]:
  """Both with as many samples of each prefix."""
  numbers = [s.sample_ids if s.coupled else [[np.arange(x.size) for x in row] for row in s.scores]
             for s in (new, old)]
  kept = [[_common(x, y) for x, y in zip(*rows, strict=True)]
          for rows in zip(*numbers, strict=True)]

  def side(samples: SampleScores, k: int) -> SampleScores:
    def taken(columns):
      return tuple(tuple(x[pair[k]] for x, pair in zip(row, pairs, strict=True))
                   for row, pairs in zip(columns, kept, strict=True))

    return dataclasses.replace(
      samples, scores=taken(samples.scores),
      sample_ids=taken(samples.sample_ids) if samples.coupled else None)

  return side(new, 0), side(old, 1)


def _common(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
  """Which of two prefixes' sample numbers count: the equal ones if most are, else the first."""
  common, least = np.intersect1d(x, y), min(x.size, y.size)
  equal = common.size >= max(least / 2, JACKKNIFE_GROUPS)
  return [np.isin(z, common) if equal else np.arange(z.size) < least for z in (x, y)]


def junit_xml(results: dict[tuple[str, str], GateResult]) -> bytes:
  """JUnit's XML, as build servers read it, of results by attribute and scorer."""
  verdicts = [r.verdict for r in results.values()]
  suite = ElementTree.Element('testsuite', {
    'name': 'fairjax compare gate', 'tests': str(len(results)),
    'failures': str(verdicts.count('worse')), 'errors': str(verdicts.count('cannot tell'))})
  for (attribute, scorer), result in results.items():
    case = ElementTree.SubElement(
      suite, 'testcase', {'classname': f'fairjax.{attribute}', 'name': scorer})
    if result.verdict != 'no worse':
      tag = 'failure' if result.verdict == 'worse' else 'error'
      ElementTree.SubElement(case, tag, {'message': result.sentence(), 'type': result.verdict})
    else:
      ElementTree.SubElement(case, 'system-out').text = result.sentence()
  ElementTree.indent(suite)
  return ElementTree.tostring(suite, encoding='utf-8', xml_declaration=True) + b'\n'


def to_dict(results: dict[tuple[str, str], GateResult]) -> list[dict[str, Any]]:
  """JSON-able rows."""
  return [{'attribute': a, 'scorer': s, **dataclasses.asdict(r)}
          for (a, s), r in results.items()]
