"""How often `fairjax compare gate` errs: a table.

  python -m tests.benchmarks.gate --runs=1000

Every data set has 3 values in 2 templates of an old and a new model, coupled and paired, or
independent. In the new model each score of the first value becomes 1 with some probability. The
margin is the true rise of the I.F. (`at`: each verdict, and equivalence, is then an error, in at
most about 5 %), twice that (`below`: the share that passes is the power), or a fifth (`above`: so
is the share that is worse), or the same rise while both models are alike (`same`: worse is an
error, equivalent the power of the two one-sided tests). `fair` and `mended` are `at` where the old
model, or the new one, has no bias; mended, the margin is the fall.
"""

import numpy as np

from fairjax.measure.estimates import wilson
from fairjax.measure.gate import GateResult, compare_fairness
from fairjax.measure.nulls import LabelStatistics
from tests.benchmarks import harness
from tests.benchmarks.nulls import KINDS, null_scores
from tests.measure.score_arrays import from_arrays

BIAS, RISE = 0.15, 0.25  # share of scores of the first value that are 1, old and new
_MANY = 200_000


def pair_of_models(kind: str, rng: np.random.Generator, *, samples: int, coupled: bool,
                   old: float = BIAS, new: float = RISE) -> tuple[np.ndarray, np.ndarray]:
  """Scores `[2, 3, n]` of the old and the new model, which share noise where coupled."""
  base = null_scores(kind, rng, samples=samples, coupled=coupled)
  other = base.copy() if coupled else null_scores(kind, rng, samples=samples, coupled=False)
  if coupled:  # the new model writes another text at three of ten sample numbers
    changed = rng.random((2, 1, samples)) < 0.3
    other = np.where(changed, null_scores(kind, rng, samples=samples, coupled=True), other)
  coin = rng.random((2, samples))
  for scores, share, own in ((base, old, coin), (
      other, new, coin if coupled else rng.random((2, samples)))):
    scores[:, 0] = np.where(own < share, 1.0, scores[:, 0])
  return base, other


def true_rise(kind: str, *, coupled: bool, old: float = BIAS, new: float = RISE) -> float:
  found = [LabelStatistics(scores, np.arange(3)).observed().all_pairs.mean() for scores in
           pair_of_models(kind, np.random.default_rng(1), samples=_MANY, coupled=coupled,
                          old=old, new=new)]
  return float(found[1] - found[0])


def gates(kind: str, *, coupled: bool, runs: int, samples: int, margin: float, old: float = BIAS,
          new: float = RISE) -> list[GateResult]:
  found = []
  for run in range(runs):
    rng = np.random.default_rng([run, KINDS.index(kind), coupled, 7])
    models = [from_arrays(x, coupled=coupled) for x in pair_of_models(
      kind, rng, samples=samples, coupled=coupled, old=old, new=new)]
    found.append(compare_fairness(models[1], models[0], margin=margin, permutations=20, seed=run))
  return found


def error_rates(kind: str, *, coupled: bool, runs: int, samples: int) -> dict[str, float]:
  rise = true_rise(kind, coupled=coupled)
  at, same = (gates(kind, coupled=coupled, runs=runs, samples=samples, margin=rise, new=new)
              for new in (RISE, BIAS))
  fair, mended = (gates(
    kind, coupled=coupled, runs=runs, samples=samples, old=old, new=new,
    margin=true_rise(kind, coupled=coupled, old=old, new=new))
    for old, new in ((0.0, RISE), (RISE, 0.0)))
  return {name: sum(found) / runs for name, found in {
    'at: no worse': [g.verdict == 'no worse' for g in at],
    'at: worse': [g.verdict == 'worse' for g in at],
    'at: equivalent': [g.equivalent for g in at],
    'fair: no worse': [g.verdict == 'no worse' for g in fair],
    'mended: worse': [g.verdict == 'worse' for g in mended],
    'below: no worse': [g.most < 2 * rise for g in at],
    'above: worse': [g.least > rise / 5 for g in at],
    'same: worse': [g.verdict == 'worse' for g in same],
    'same: equivalent': [g.equivalent for g in same]}.items()}


def main() -> None:
  parser = harness.parser(__doc__, runs=1000)
  parser.add_argument('--samples', type=harness.size, nargs='+', default=[25, 100, 1000])
  options = parser.parse_args()
  rows, lines = [], []
  for coupled in (False, True):
    for kind in KINDS:
      for samples in options.samples:
        found = error_rates(kind, coupled=coupled, runs=options.runs, samples=samples)
        if not lines:
          lines += [f"| scores | samples | n | {' | '.join(found)} |",
                    '|---|---|--:' + '|--:' * len(found) + '|']
        rows.append({'scores': kind, 'coupled': coupled, 'samples': samples, 'shares': found})
        cells = [harness.percent(share, wilson(share, options.runs)) for share in found.values()]
        lines.append(f"| {kind} | {'paired' if coupled else 'independent'} | {samples} "
                     f"| {' | '.join(cells)} |")
  harness.show(harness.provenance('gate', options) | {'rows': rows}, lines)


if __name__ == '__main__':
  main()
