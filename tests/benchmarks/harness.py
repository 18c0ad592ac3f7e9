"""What all benchmarks share: time in turns, the limits of the machine, where a result is from."""

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

_PACKAGES = ('jax', 'jaxlib', 'flax', 'numpy', 'torch', 'transformers', 'libtpu')


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
      if round_ >= warm:
        seconds[name].append(time.perf_counter() - begin)
  return seconds


def ratios(seconds: Mapping[str, Sequence[float]], base: str) -> dict[str, float]:
  """Median over the rounds of each run's time over that of `base`."""
  return {name: float(np.median(np.array(values) / np.array(seconds[base])))
          for name, values in seconds.items() if name != base}


def limits(dtype: str) -> dict[str, float]:
  """Operations per second of a matrix product and bytes per second of a copy, measured now."""
  cpu = jax.default_backend() == 'cpu'
  size = 2048 if cpu else 8192
  a, x = jnp.ones((size, size), dtype), jnp.ones((2 ** 24,), jnp.float32)
  # On CPU XLA's product of bfloat16 uses the units for it with sums of float32 only.
  product = jax.jit(
    functools.partial(jnp.matmul, preferred_element_type='float32' if cpu else None))
  copy = jax.jit(lambda x: x + 1)
  seconds = in_turns({'product': lambda: product(a, a), 'copy': lambda: copy(x)}, rounds=7)
  return {'operations_per_s': 2 * size ** 3 / min(seconds['product']),
          'bytes_per_s': 8 * x.size / min(seconds['copy'])}


def provenance(name: str, options: Any) -> dict[str, Any]:
  """Command, machine, versions and date."""
  versions = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      continue
  return {
    'benchmark': name, 'options': vars(options),
    'command': shlex.join(['python', '-m', f'tests.benchmarks.{name}', *sys.argv[1:]]),
    'device': f'{jax.device_count()}x {jax.devices()[0].device_kind}', 'cores': os.cpu_count(),
    'load_average': os.getloadavg(),  # others may have used the cores
    'platform': platform.platform(), 'versions': versions, 'date': time.strftime('%Y-%m-%d')}


def show(result: Mapping[str, Any], lines: Sequence[str], *, as_json: bool) -> None:
  """Prints the JSON, or lines for people."""
  print(json.dumps(result, indent=2) if as_json else '\n'.join(lines))
