"""One command for a borrowed accelerator: the benchmarks worth its minutes, most valuable first.

  python -m tests.benchmarks.accelerator --minutes=9 --output=FOLDER
  python -m tests.benchmarks.accelerator --minutes=3 --output=FOLDER --only=step,sampler

Runs from the checkout with the JAX, Flax and Optax that are there, and needs neither TensorFlow nor
a network. What else the benchmarks import is small; where there is no network, carry the folder:

  pip install --no-deps --target=SITE msgspec ml-collections jaxtyping wadler-lindig safetensors

`measure`, which uses the CPU alone, needs numba and llvmlite (200 MB) too.

Each benchmark is a process of its own, which prints its seconds as it goes and leaves
FOLDER/NAME.json. It has at most half of the time that is left (the last one all), so that one that
hangs leaves time for the others. Exit code 1: a benchmark failed or had no time; its name is
printed.
"""

import argparse
import contextlib
import importlib.util
import pathlib
import subprocess
import sys
import time

_LLAMA = '--decoder=configs/decoders/llama-3.2-1b'
_SMALL = '--config=tests/benchmarks/small.py:'
# Benchmark and arguments of each.
TASKS = {
  'attention': 'attention --check --lengths=512 --heads=8 --width=128 --rows=32 --dtype=bfloat16',
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
  'attention': 'attention --check --lengths=16 --heads=1 --width=8 --rows=1 --rounds=1',
  'step': f'debias_step {_SIZES} --rounds=1 --steps=plain,fused',
  'decoder_step': f'debias_step {_TINY_LLAMA} {_SIZES} --rounds=1 --steps=plain,fused',
  'sampler': f'sampler {_SIZES} --rounds=1',
  'decoder_sampler': f'sampler {_TINY_LLAMA} {_SIZES} --rounds=1',
  'scoring': 'pretrained --texts=8 --dim=16 --layers=1 --heads=2 --vocab_size=64 --rounds=1',
  'measure': 'measure --samples=2 --permutations=10 --attributes country'}
_MODULES = 'flax', 'optax', 'msgspec', 'ml_collections', 'jaxtyping', 'safetensors'
_LEAST = 5  # seconds, below which nothing is begun


def found_device() -> str:
  """Kind of the first device, asked in a process of its own: this one must not hold it."""
  code = 'import jax; d = jax.devices()[0]; print(d.platform, d.device_kind, sep=": ")'
  try:
    found = subprocess.run([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True,
                           timeout=120, check=False)
  except subprocess.TimeoutExpired:
    return ''
  return found.stdout.strip()


def run(words: list[str], path: pathlib.Path, seconds: float) -> str:
  """Runs one benchmark, which leaves its JSON; returns what went wrong, or ''."""
  if seconds < _LEAST:
    return 'no time left'
  module, *arguments = words
  part = path.with_suffix('.part')
  # A file, not a pipe: a compiler's child that lives on would hold the pipe open.
  with part.open('w', encoding='utf-8') as file:
    process = subprocess.Popen(
      [sys.executable, '-m', f'tests.benchmarks.{module}', *arguments], stdout=file)
    try:
      code = process.wait(seconds)
    except subprocess.TimeoutExpired:
      code = None
    finally:
      process.kill()
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)  # then its memory of the device is free
  if code != 0:
    part.unlink()
    return f'not done in {seconds:.0f} s' if code is None else f'ended with {code}'
  part.rename(path)
  print(path.read_text(encoding='utf-8'), flush=True)
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
  if lacking := [name for name in _MODULES if importlib.util.find_spec(name) is None]:
    parser.error(f"not installed: {', '.join(lacking)}: the first lines of this file say how")
  end = time.monotonic() + 60 * options.minutes
  options.output.mkdir(parents=True, exist_ok=True)
  device, failed = found_device(), []
  if not device or device.startswith('cpu') and not options.tiny:
    parser.error(f"JAX found {device or 'no device'}; with --tiny a CPU does")
  print(device, flush=True)
  for name in names:
    words, begin = tasks[name].split(), time.monotonic()
    print(f'{name}: {" ".join(words)}', flush=True)
    left = end - begin
    if problem := run(words, options.output / f'{name}.json',
                      left if name == names[-1] else left / 2):
      failed.append(name)
      print(f'{name}: {problem}', flush=True)
    print(f'{name}: {time.monotonic() - begin:.0f} s', flush=True)
  if failed:
    print(f'without a result: {", ".join(failed)}')
  return int(bool(failed))


if __name__ == '__main__':
  sys.exit(main())
