"""A BERT scores 300,000 short texts through the verb `measure`: time, memory, compilations, a kill.

  python -m tests.benchmarks.scoring --json                     # 6 layers x 256
  python -m tests.benchmarks.scoring --layers=12 --dim=768 --heads=12 --json   # hours on CPU

Writes a classifier with random weights and a file of `--texts` different continuations, 28 tokens
in the mean as sampled ones have, and runs `fairjax measure` on them in a process of its own. The
same is done again in another folder, killed (SIGKILL) when `--kill_at` of the scores are on disk,
and started again: scores and measures must be those of the run that nobody killed.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

from fairjax.counterfactual import load_attribute
from fairjax.measure.scorers.cache import read_score_file
from fairjax.pretrained.classifier import from_scratch
from fairjax.pretrained.start import write_model
from tests.benchmarks import harness

_SYLLABLES = ('ba', 'co', 'du', 'fe', 'gi', 'ha', 'jo', 'ku', 'le', 'mi', 'na', 'po')
WORDS = [a + b + c for a in _SYLLABLES for b in _SYLLABLES for c in _SYLLABLES]


def write_inputs(folder: pathlib.Path, options: argparse.Namespace) -> None:
  """The classifier, and the records of `country`: as many for each of its 100 prefixes."""
  start = from_scratch(
    [' '.join(WORDS)] * 2, classes=2, seed=0, log=lambda line: None,
    sizes={'vocab_size': options.vocab_size, 'max_length': 128, 'dim': options.dim,
           'layers': options.layers, 'heads': options.heads})
  model = folder / 'model'
  model.mkdir()
  write_model(model, start, start.params, 'classifier')
  rng, attribute = np.random.default_rng(0), load_attribute('country')
  samples = options.texts // (len(attribute.values) * len(attribute.templates))
  with open(folder / 'records.jsonl', 'w', encoding='utf-8') as file:
    for t in range(len(attribute.templates)):
      for a, value in enumerate(attribute.values):
        lengths = np.minimum(50, 4 + rng.gamma(2.2, 11.0, samples).astype(int))
        for i, n in enumerate(lengths):
          text = ' '.join(WORDS[w] for w in rng.integers(len(WORDS), size=n))
          file.write(json.dumps({
            'attribute': 'country', 'value': value.text, 'template': t, 'sample': i,
            'prefix': attribute.prefix(t, a), 'model': 'random', 'continuation': text}) + '\n')


def command(folder: pathlib.Path, model: pathlib.Path, dtype: str) -> list[str]:
  """The verb on the records of a folder."""
  return [sys.executable, '-m', 'fairjax', 'measure', f'--records={folder / "records.jsonl"}',
          '--attribute=country', f'--scorer=bert:{model}#dtype={dtype}', '--json', '--independent']


def score_file(folder: pathlib.Path) -> pathlib.Path | None:
  """Where the verb keeps the scores; None before it has any."""
  return next(iter(folder.glob('records.bert-*-scores.jsonl')), None)


def measure(options: argparse.Namespace) -> dict:
  """Both runs, and what they have to do with each other."""
  with tempfile.TemporaryDirectory(dir=options.folder) as name:
    folder = pathlib.Path(name)
    write_inputs(folder, options)
    begin = time.perf_counter()
    whole = subprocess.run(
      command(folder, folder / 'model', options.dtype), capture_output=True, text=True,
      check=False, env=os.environ | {'JAX_LOG_COMPILES': '1'})
    seconds = time.perf_counter() - begin
    if whole.returncode:
      raise SystemExit(whole.stderr[-2000:])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    expected = score_file(folder)
    other = folder / 'killed'
    other.mkdir()
    (other / 'records.jsonl').hardlink_to(folder / 'records.jsonl')
    kept = _kill(command(other, folder / 'model', options.dtype), other,
                 options.kill_at * expected.stat().st_size)
    begin = time.perf_counter()
    again = subprocess.run(command(other, folder / 'model', options.dtype), capture_output=True,
                           text=True, check=False)
    rest = time.perf_counter() - begin
    if again.returncode:
      raise SystemExit(again.stderr[-2000:])
    scores = [read_score_file(path)[1] for path in (expected, score_file(other))]
    size = expected.stat().st_size
  if scores[0] != scores[1] or whole.stdout != again.stdout:
    raise SystemExit('the run that was killed ended with other scores or measures')
  compiled = re.findall(r'Finished XLA compilation of jit\(traced\)', whole.stderr)
  (scorer,) = json.loads(whole.stdout)['scorers'].values()
  return harness.provenance('scoring', options) | {
    'texts': len(scores[0]), 'seconds': seconds, 'texts_per_s': len(scores[0]) / seconds,
    'peak_bytes': used.ru_maxrss * 1024, 'compilations': len(compiled), 'score_file_bytes': size,
    'killed_after': kept, 'seconds_to_go_on': rest,
    'individual_fairness': scorer['individual_fairness']['value'],
    'digest_of_measures': hashlib.sha256(whole.stdout.encode()).hexdigest()[:16]}


def _kill(words: list[str], folder: pathlib.Path, size: float) -> int:
  """Runs it until the scores have a size, kills it; returns how many scores are kept."""
  process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  while (path := score_file(folder)) is None or path.stat().st_size < size:
    if process.poll() is not None:
      raise SystemExit('the run ended before it could be killed')
    time.sleep(0.05)
  process.send_signal(signal.SIGKILL)
  process.wait()
  return len(read_score_file(path)[1])


def main() -> None:
  """Parses the sizes, prints lines or JSON."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--texts', type=int, default=300_000)
  parser.add_argument('--layers', type=int, default=6)
  parser.add_argument('--dim', type=int, default=256)
  parser.add_argument('--heads', type=int, default=4)
  parser.add_argument('--vocab_size', type=int, default=2000)
  parser.add_argument('--dtype', default='float32')
  parser.add_argument('--kill_at', type=float, default=0.5)
  parser.add_argument('--folder', default=os.environ.get('TMPDIR'), help='for the files')
  parser.add_argument('--json', action='store_true')
  options = parser.parse_args()
  result = measure(options)
  harness.show(result, [
    f"{result['texts']:,} texts in {result['seconds']:.1f} s, {result['texts_per_s']:.0f} texts/s, "
    f"peak {result['peak_bytes'] / 2 ** 20:.0f} MiB, {result['compilations']} compilations",
    f"killed after {result['killed_after']:,}, went on for {result['seconds_to_go_on']:.1f} s to "
    'the same scores and measures'], as_json=options.json)


if __name__ == '__main__':
  main()
