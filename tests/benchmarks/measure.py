"""Time and peak memory of the verb `measure` on recorded scores, at the size of the papers.

  python -m tests.benchmarks.measure
  python -m tests.benchmarks.measure --samples=100 --attributes=country

Writes a JSONL file with `--samples` scored continuations for every prefix of the three built-in
attributes (10 + 29 + 34 values in 10 templates: 730 prefixes, 10,120 pairs), then runs `fairjax
measure` on it in a process of its own. The continuations are random words, the scores random
numbers of six decimals with hardly a tie, the slowest case; samples are coupled or, with `--free`,
independent. Floor: reading the file and parsing its lines with Python's `json`, nothing else. Last:
`scipy.stats.permutation_test` of `wasserstein_distance` on a few pairs; all pairs take 10,120 times
the seconds of one.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

from fairjax.counterfactual import load_attribute
from tests.benchmarks import harness

_WORDS = ('the of and a in to was it his on for with as he at by from that which were had but not '
          'be her their who one first two year city time people film season game war series good '
          'bad great poor best worst').split()


def write_records(path: pathlib.Path, attributes: list[str], samples: int, *, free: bool) -> int:
  rng = np.random.default_rng(0)
  count = 0
  with open(path, 'w', encoding='utf-8') as file:
    for name in attributes:
      attribute = load_attribute(name)
      values = attribute.values
      for t in range(len(attribute.templates)):
        noise = rng.beta(0.5, 0.5, (1, samples))
        own = rng.beta(0.5, 0.5, (len(values), samples))
        scores = own if free else 0.7 * noise + 0.3 * own
        words = rng.integers(len(_WORDS), size=(samples, 40))
        texts = [' '.join(_WORDS[w] for w in row) for row in words]
        for a, value in enumerate(values):
          head = {'attribute': attribute.name, 'value': value.text, 'subgroup': value.subgroup,
                  'template': t, 'prefix': attribute.prefix(t, a), 'model': 'random'}
          for i, (text, score) in enumerate(zip(texts, scores[a].round(6).tolist(), strict=True)):
            file.write(json.dumps(head | {'sample': i, 'continuation': text,
                                          'scores': {'random': score}}) + '\n')
            count += 1
  return count


def scipy_seconds(options: argparse.Namespace, pairs: int = 4) -> float:
  """Seconds of SciPy's permutation test of one pair of values."""
  from scipy.stats import permutation_test, wasserstein_distance
  rng = np.random.default_rng(0)
  noise, own = rng.beta(0.5, 0.5, options.samples), rng.beta(0.5, 0.5, (2, options.samples))
  x, y = own if options.free else 0.7 * noise + 0.3 * own
  begin = time.perf_counter()
  for _ in range(pairs):
    # In its words, samples that share their noise are paired: values change places within a pair.
    permutation_test(
      (x, y), wasserstein_distance, n_resamples=options.permutations, alternative='greater',
      permutation_type='independent' if options.free else 'samples', rng=rng)
  return (time.perf_counter() - begin) / pairs


def measure(options: argparse.Namespace) -> dict:
  with tempfile.TemporaryDirectory(dir=options.folder) as folder:
    path = pathlib.Path(folder) / 'records.jsonl'
    count = write_records(path, options.attributes, options.samples, free=options.free)
    begin = time.perf_counter()
    with open(path, 'rb') as file:
      for line in file:
        json.loads(line)
    parsing = time.perf_counter() - begin
    command = [sys.executable, '-m', 'fairjax', 'measure', f'--records={path}', '--json',
               '--scorer=recorded:random', f'--permutations={options.permutations}']
    command += [f'--attribute={name}' for name in options.attributes]
    command += ['--independent'] if options.free else []
    begin = time.perf_counter()
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if run.returncode:
      raise SystemExit(run.stderr)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    size = path.stat().st_size
  found = json.loads(run.stdout)
  found = found if len(options.attributes) > 1 else {options.attributes[0]: found}
  cells = sum(np.size(m['scorers']['recorded:random']['cells']['distance'])
              for m in found.values())
  return harness.provenance('measure', options) | {
    'records': count, 'file_bytes': size, 'pairs_in_templates': int(cells),
    'seconds': seconds, 'processor_seconds': used.ru_utime + used.ru_stime,
    'peak_bytes': used.ru_maxrss * 1024, 'floor_seconds': parsing,
    'scipy_seconds_of_a_pair': scipy_seconds(options),
    'individual_fairness': {
      name: {k: m['scorers']['recorded:random']['individual_fairness'][k]
             for k in ('value', 'null_mean', 'null_p95', 'p_value', 'coupled')}
      for name, m in found.items()}}


def main() -> None:
  parser = harness.parser(__doc__, samples=1000, permutations=1000)
  parser.add_argument('--attributes', nargs='+', default=['country', 'occupation', 'name'])
  parser.add_argument('--free', action='store_true', help='independent samples')
  parser.add_argument('--folder', default=os.environ.get('TMPDIR'), help='for the file')
  harness.show(measure(parser.parse_args()))


if __name__ == '__main__':
  main()
