"""One command for a borrowed accelerator: the benchmarks worth its minutes, most valuable first.

  python -m tests.benchmarks.accelerator --minutes=9 --output=FOLDER
  python -m tests.benchmarks.accelerator --minutes=3 --output=FOLDER --only=step,sampler

Runs from the checkout with the JAX that is there, and needs neither TensorFlow nor a network. Each
benchmark is a process of its own, ends at the time that is left, prints what it found, and leaves
FOLDER/NAME.json. Exit code 1: a benchmark failed or had no time; its name is printed.
"""

import argparse
import pathlib
import subprocess
import sys
import time

_LLAMA = '--decoder=configs/decoders/llama-3.2-1b'
_SMALL = '--config=tests/benchmarks/small.py:'
# Benchmark and arguments of each; PATHS are the ways to compute attention that the device has.
TASKS = {
  'attention': 'attention --check --lengths=512 --heads=8 --width=128 --rows=32 --dtype=bfloat16 '
  '--paths=PATHS',
  'step': 'debias_step --config=configs/wikitext103.py --rounds=5',
  'decoder_step': f'debias_step {_LLAMA} {_SMALL}segment_len=512,batch_size=8,pieces=4,'
  'dtype=bfloat16 --steps=plain,fused --rounds=5',
  'sampler': 'sampler --config=configs/wikitext103.py --rounds=2',
  'decoder_sampler': f'sampler {_LLAMA} {_SMALL}dtype=bfloat16 --config.sample.batch_size=200 '
  '--rounds=2',
  'scoring': 'pretrained --texts=8192 --dtype=bfloat16 --rounds=3',
  'measure': 'measure'}
# The same programs in seconds on a CPU (`--tiny`).
_SIZES = f'{_SMALL}layers=2,dim=16,heads=2,vocab_size=64,segment_len=8,samples=8,new_tokens=3'
_TINY_LLAMA = '--decoder=tests/golden/decoders/llama3'
TINY = {
  'attention': 'attention --check --lengths=16 --heads=1 --width=8 --rows=1 --rounds=1 '
  '--paths=PATHS',
  'step': f'debias_step {_SIZES} --rounds=1 --steps=plain,fused',
  'decoder_step': f'debias_step {_TINY_LLAMA} {_SIZES} --rounds=1 --steps=plain,fused',
  'decoder_sampler': f'sampler {_TINY_LLAMA} {_SIZES} --rounds=1',
  'scoring': 'pretrained --texts=8 --dim=16 --layers=1 --heads=2 --vocab_size=64 --rounds=1'}
_LEAST = 5  # seconds, below which nothing is begun


def paths() -> str:
  """Asked in a process of its own: this one must not hold the device."""
  platform = subprocess.run(
    [sys.executable, '-c', 'import jax; print(jax.default_backend())'], check=True,
    capture_output=True, text=True).stdout.strip()
  return 'shift,blocks,kernel' if platform == 'tpu' else 'shift,blocks'


def run(words: list[str], path: pathlib.Path, seconds: float) -> str:
  """Runs one benchmark, which leaves its JSON; returns what went wrong, or ''."""
  if seconds < _LEAST:
    return 'no time left'
  module, *arguments = words
  try:
    found = subprocess.run([sys.executable, '-m', f'tests.benchmarks.{module}', *arguments],
                           stdout=subprocess.PIPE, text=True, timeout=seconds, check=False)
  except subprocess.TimeoutExpired:
    return 'time is up'
  if found.returncode:
    return f'ended with {found.returncode}'
  print(found.stdout, flush=True)
  path.write_text(found.stdout, encoding='utf-8')
  return ''


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--minutes', type=float, default=9.0)
  parser.add_argument('--output', type=pathlib.Path, required=True, help='folder for the JSON')
  parser.add_argument('--only', help=f'of {", ".join(TASKS)}; comma between')
  parser.add_argument('--tiny', action='store_true', help='sizes that a CPU runs in seconds')
  options = parser.parse_args()
  tasks = TINY if options.tiny else TASKS
  names = options.only.split(',') if options.only else list(tasks)
  if unknown := [name for name in names if name not in tasks]:
    parser.error(f"--only: '{unknown[0]}' is none of {', '.join(tasks)}")
  end = time.monotonic() + 60 * options.minutes
  options.output.mkdir(parents=True, exist_ok=True)
  ways, failed = paths(), []
  for name in names:
    words, begin = tasks[name].replace('PATHS', ways).split(), time.monotonic()
    print(f'{name}: {" ".join(words)}', flush=True)
    if problem := run(words, options.output / f'{name}.json', end - begin):
      failed.append(name)
      print(f'{name}: {problem}', flush=True)
    print(f'{name}: {time.monotonic() - begin:.0f} s', flush=True)
  if failed:
    print(f'without a result: {", ".join(failed)}')
  return int(bool(failed))


if __name__ == '__main__':
  sys.exit(main())
