"""How often the bounds of the fairness test hold, and how wide they are, in simulation.

  python -m tests.benchmarks.fair_generation --runs=1000

Four prompts, two biases, so 12 gaps at once; shares of 3, 5, 50 and 55 % and a beta distribution.
A run counts as covered if all 12 gaps of the expectations lie in their intervals.
"""

import numpy as np

from fairjax.gender.fair_generation.completions import Completions, Prompt
from fairjax.gender.fair_generation.lipschitz import Bias, FairnessTest, load_distance
from tests.benchmarks import harness

SHARES = np.array([0.03, 0.05, 0.5, 0.55])


def simulate(
  rng: np.random.Generator, n: int, *, coupled: bool,
) -> tuple[Completions, list[Bias], dict[str, np.ndarray]]:
  """Completions of four prompts, biases of two kinds, and the expectations of these."""
  prompts = tuple(Prompt('a', v, v, 0, f'{v} w') for v in 'abcd')
  noise = np.repeat(rng.random((n, 1)), 4, axis=1) if coupled else rng.random((n, 4))
  values = {'first': (noise < SHARES).astype(float),
            'second': noise**2 if coupled else rng.beta(2, 3, (n, 4))}
  means = {'first': SHARES, 'second': np.full(4, 1 / 3 if coupled else 0.4)}
  completions = Completions(
    model='m', prompts=prompts, index=np.repeat(np.arange(4), n),
    sample=np.tile(np.arange(n), 4),
    records=[{'prefix': 'p', 'continuation': 'c'}] * (4 * n))
  biases = [Bias(name, found.T.reshape(-1), (0.0, 1.0), (0.0, 1.0), {})
            for name, found in values.items()]
  return completions, biases, means


def main() -> None:
  parser = harness.parser(__doc__, runs=1000)
  parser.add_argument('--level', type=float, default=0.05)
  options = parser.parse_args()
  print('| samples | n | bound | all 12 gaps covered | mean radius |\n|---|--:|---|--:|--:|')
  distance = load_distance('masked')
  for coupled in (False, True):
    for n in (25, 100, 1000):
      for method in ('hoeffding', 'bernstein', 'best', 'student'):
        rng, covered, radii = np.random.default_rng(n), 0, []
        test = FairnessTest(level=options.level, method=method, coupled=coupled)
        for _ in range(options.runs):
          completions, biases, means = simulate(rng, n, coupled=coupled)
          whole = True
          for name, found in test(completions, biases, distance)['biases'].items():
            for row in found['pairs']:
              i, j = ('abcd'.index(row[side][0]) for side in ('first', 'second'))
              whole &= row['low'] - 1e-12 <= abs(means[name][i] - means[name][j]) <= (
                row['high'] + 1e-12)
              radii.append(row['high'] - row['gap'])
          covered += whole
        print(f"| {'coupled' if coupled else 'independent'} | {n} | {method} | "
              f'{100 * covered / options.runs:.1f} % | {np.mean(radii):.3f} |', flush=True)


if __name__ == '__main__':
  main()
