"""What all benchmarks share: options, time in turns, the limits of the machine, provenance."""

import argparse
import functools
import importlib.metadata
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fairjax.train.goodput import peak_flops
from fairjax.train.memory import program_bytes

_ENVIRONMENT = ('JAX_NUM_CPU_DEVICES', 'XLA_FLAGS', 'LIBTPU_INIT_ARGS')
_PACKAGES = (
  'jax', 'jaxlib', 'flax', 'numpy', 'numba', 'sentencepiece', 'tensorflow', 'tensorflow-text',
  'torch', 'transformers', 'libtpu')


def size(text: str) -> int:
  """A whole number of at least 1, as an option."""
  if int(text) < 1:
    raise argparse.ArgumentTypeError(f'{text} is too small: at least 1')
  return int(text)


def parser(doc: str, **sizes: int) -> argparse.ArgumentParser:
  """A parser with an option for each size and its default; the docstring's first line says what."""
  found = argparse.ArgumentParser(description=doc.splitlines()[0])
  for name, default in sizes.items():
    found.add_argument(f'--{name}', type=size, default=default, help='default: %(default)s')
  return found


def in_turns(runs: Mapping[str, Callable[[], Any]], *, rounds: int, warm: int = 2
             ) -> dict[str, list[float]]:
  """Seconds of every run in every round; each round runs all of them, one after the other.

  Whatever else the machine does hits all of them, so compare the runs of one round.
  """
  seconds = {name: [] for name in runs}
  for round_ in range(warm + rounds):
    for name, run in runs.items():
      begin = time.perf_counter()
      jax.block_until_ready(run())
      took = time.perf_counter() - begin
      # At once: what comes after may fail, or have no time.
      print(f"{name}: {took:.4g} s{'' if round_ >= warm else ', not counted'}", file=sys.stderr,
            flush=True)
      if round_ >= warm:
        seconds[name].append(took)
  return seconds


def ratios(seconds: Mapping[str, Sequence[float]], base: str) -> dict[str, float]:
  """Median over the rounds of each run's time over that of `base`."""
  return {name: float(np.median(np.array(values) / np.array(seconds[base])))
          for name, values in seconds.items() if name != base}


SIZES = (8192, 2 ** 28), (2048, 2 ** 24)
"""Rows of a product and numbers of a copy: of a chip, of a CPU."""


def limits(dtype: str, devices: Sequence[Any] | None = None) -> dict[str, float]:
  """Operations per second of a matrix product and bytes per second of a copy, measured now.

  Speeds of devices that work at once are added; None: the first one.
  """
  devices = list(jax.devices()[:1] if devices is None else devices)
  cpu = devices[0].platform == 'cpu'
  # Large enough that the start of a program and the caches of a chip do not matter.
  size, numbers = SIZES[cpu]
  mesh = Mesh(np.array(devices), ('device',), axis_types=(AxisType.Auto,))
  split = PartitionSpec('device')
  # Random numbers: chips multiply arrays of one value faster than any data.
  a, x = (jax.jit(functools.partial(jax.random.normal, jax.random.key(0), shape, kind),
                  out_shardings=NamedSharding(mesh, split))()
          for shape, kind in (((size * len(devices), size), dtype),
                              ((numbers * len(devices),), jnp.float32)))
  # On CPU XLA's product of bfloat16 uses the units for it with sums of float32 only.
  sums = 'float32' if cpu else None
  product, copy = (
    jax.jit(jax.shard_map(function, mesh=mesh, in_specs=split, out_specs=split))
    for function in (lambda a: jnp.matmul(a, a, preferred_element_type=sums), lambda x: x + 1))
  seconds = in_turns({'product': lambda: product(a), 'copy': lambda: copy(x)}, rounds=7)
  return {'operations_per_s': 2 * size ** 3 * len(devices) / min(seconds['product']),
          'bytes_per_s': 8 * x.size / min(seconds['copy'])}


def share_of_peak(
  operations: float, seconds: float, *, devices: Sequence[Any], dtype: str
) -> float | None:
  """Of the bfloat16 operations that the data sheet promises; None for others, or an unknown device.
  """
  peak = peak_flops(devices[0].device_kind) if dtype == 'bfloat16' else 0
  return operations / seconds / (peak * len(devices)) if peak else None


def program_mib(compiled: Any) -> dict[str, float]:
  """MiB of one device, without the code; {} where the compiler does not tell."""
  return {name: size / 2 ** 20 for name, size in program_bytes(compiled).items() if name != 'code'}


def text_tokens(
  rng: np.random.Generator, vocab_size: int, shape: int | tuple[int, ...]
) -> np.ndarray:
  """Ids with frequencies as in text: that of rank r in proportion to 1 / (r + 10)."""
  shares = 1 / (np.arange(vocab_size) + 10)
  return rng.choice(vocab_size, shape, p=shares / shares.sum()).astype(np.int32)


def provenance(name: str, options: Any, *, device: str | None = None) -> dict[str, Any]:
  """Command (with what the environment says of devices and compilers), machine, versions, date.

  `device` is what was compiled for, where nothing ran; None: those that are here.
  """
  versions = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      continue
  plain = {key: str(value) if isinstance(value, os.PathLike) else value
           for key, value in vars(options).items()}
  return {
    'benchmark': name, 'options': plain,
    'command': shlex.join([
      *(f'{key}={os.environ[key]}' for key in _ENVIRONMENT if os.environ.get(key)),
      'python', '-m', f'tests.benchmarks.{name}', *sys.argv[1:]]),
    'device': device or f'{jax.device_count()}x {jax.devices()[0].device_kind}',
    'cores': os.cpu_count(),
    'load_average': os.getloadavg(),  # others may have used the cores
    'platform': platform.platform(), 'versions': versions, 'date': time.strftime('%Y-%m-%d')}


def percent(share: float, interval: Sequence[float]) -> str:
  """A share with its interval, for a table: '5.0 % [4.1, 6.2]'."""
  low, high = interval
  return f'{100 * share:.1f} % [{100 * low:.1f}, {100 * high:.1f}]'


def show(result: Mapping[str, Any], table: Sequence[str] = ()) -> None:
  """Prints JSON; a table for a page beside it, on the other stream."""
  for line in table:
    print(line, file=sys.stderr)
  print(json.dumps(result, indent=2))
