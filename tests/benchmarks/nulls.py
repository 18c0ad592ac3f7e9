"""How often the tests of `measure` reject where no value matters: a table.

  python -m tests.benchmarks.nulls --runs=2000

Every data set has 3 values (two subgroups) in 2 templates, `--samples` a prefix, and no effect. A
right test rejects 5 % of them. Scores are binary, continuous, tied (six levels) or like those of
opinion words (0.5 in three of five texts, p / (p + n) of a few words in the others); independent,
or coupled (at seven of ten sample numbers all values have the same score). `one pair` is the first
pair in the first template, `any pair` whether Holm's correction rejects any of the six. Scores that
are few and tied reject a little less than 5 %, because equal distances count against a rejection;
`mid` is by the mid-p-value, for which they count by half.
"""

import concurrent.futures
import multiprocessing

import numpy as np

from fairjax.measure import measure_fairness
from fairjax.measure.estimates import wilson
from tests.benchmarks import harness
from tests.measure.score_arrays import from_arrays

KINDS = ('binary', 'continuous', 'tied', 'opinion words')
SINGLE = ('I.F.', 'I.F. across', 'G.F.', 'one pair')
TESTS = (*SINGLE, 'any pair', *(f'{t}, mid' for t in SINGLE))
SHARED = 0.7


def null_scores(kind: str, rng: np.random.Generator, *, samples: int, coupled: bool) -> np.ndarray:
  """`[2, 3, n]` scores that do not depend on the value; the templates differ."""
  shape, lean = (2, 3, samples), np.array([0.4, 0.6])[:, None, None]
  if kind == 'binary':
    scores = (rng.random(shape) < lean).astype(np.float64)
  elif kind == 'continuous':
    scores = rng.beta(4 * lean, 4 * (1 - lean), shape)
  elif kind == 'tied':
    scores = rng.binomial(5, lean, shape) / 5
  else:
    words = np.where(rng.random(shape) < 0.4, rng.integers(1, 5, shape), 0)
    positive = rng.binomial(words, lean)
    scores = np.where(words > 0, positive / np.maximum(words, 1), 0.5)
  if coupled:
    same = np.broadcast_to(rng.random((2, 1, samples)) < SHARED, shape)
    scores = np.where(same, scores[:, :1], scores)
  return scores


def rejections(
  kind: str, *, coupled: bool, runs: int, samples: int, permutations: int, start: int = 0
) -> dict[str, float]:
  """Share of `runs` data sets in which each of `TESTS` rejects at 5 %."""
  counts = np.zeros(len(TESTS))
  for run in range(start, start + runs):
    rng = np.random.default_rng([run, KINDS.index(kind), coupled])
    data = from_arrays(
      null_scores(kind, rng, samples=samples, coupled=coupled), coupled=coupled, subgroups='xxy')
    found = measure_fairness(data, permutations=permutations, seed=run)
    single = (found.individual, found.cross_subgroup, found.group)
    counts += np.array([
      *(e.p_value for e in single), found.cells.p_value[0, 0], found.cells.p_holm.min(),
      *(e.mid_p_value for e in single), found.cells.mid_p_value[0, 0]]) <= 0.05
  return dict(zip(TESTS, (counts / runs).tolist(), strict=True))


def main() -> None:
  parser = harness.parser(__doc__, runs=1000, samples=100, permutations=199, processes=1)
  parser.add_argument('--kinds', nargs='+', choices=KINDS, default=KINDS)
  options = parser.parse_args()
  rows = [{'scores': kind, 'coupled': coupled}
          for coupled in (False, True) for kind in options.kinds]
  with concurrent.futures.ProcessPoolExecutor(
      options.processes, mp_context=multiprocessing.get_context('spawn')) as pool:
    futures = [pool.submit(
      rejections, row['scores'], coupled=row['coupled'], runs=options.runs,
      samples=options.samples, permutations=options.permutations) for row in rows]
    for row, future in zip(rows, futures, strict=True):
      row['rejected'] = future.result()
      row['interval'] = {t: wilson(x, options.runs) for t, x in row['rejected'].items()}
  lines = [f"| scores | samples | {' | '.join(TESTS)} |", '|---|---|' + '--:|' * len(TESTS)]
  for row in rows:
    cells = [harness.percent(row['rejected'][t], ends) for t, ends in row['interval'].items()]
    lines.append(f"| {row['scores']} | {'coupled' if row['coupled'] else 'independent'} | "
                 f"{' | '.join(cells)} |")
  harness.show(harness.provenance('nulls', options) | {'rows': rows}, lines)


if __name__ == '__main__':
  main()
