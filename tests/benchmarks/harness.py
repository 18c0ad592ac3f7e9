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
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fairjax.tpu.chips import CHIPS
from fairjax.train.memory import program_bytes

_COMPILER_OPTIONS = ('XLA_FLAGS', 'LIBTPU_INIT_ARGS')
_PACKAGES = (
  'jax', 'jaxlib', 'flax', 'numpy', 'sentencepiece', 'tensorflow', 'tensorflow-text',
  'torch', 'transformers', 'libtpu')
# Names that JAX gives TPUs -> generation in `fairjax.tpu.chips`.
_TPUS = {'TPU v3': 'v3', 'TPU v4': 'v4', 'TPU v5 lite': 'v5e', 'TPU v5': 'v5p', 'TPU v5p': 'v5p',
         'TPU v6 lite': 'v6e'}
# Names that JAX gives NVIDIA's GPUs -> bfloat16 FLOP/s without sparsity, bytes/s, source. Other
# forms of these cards (PCIe, NVL) have other names and other numbers: they are not known here.
_GPUS = {
  'NVIDIA H100 80GB HBM3': (989e12, 3.35e12, 'data sheet of the NVIDIA H100, SXM5'),
  'NVIDIA H200': (989e12, 4.8e12, 'data sheet of the NVIDIA H200, SXM')}


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


SIZES = (8192, 2 ** 28), (2048, 2 ** 24)
"""Rows of a product and numbers of a copy: of a chip, of a CPU."""


def limits(dtype: str, devices: Sequence[Any] | None = None) -> dict[str, float]:
  """Operations per second of a matrix product and bytes per second of a copy, measured now.

  Args:
    dtype: of the product.
    devices: that work at once, whose speeds are added; None: the first one.
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


def data_sheet(device_kind: str) -> dict[str, Any] | None:
  """What its maker says of one device; None where it is not known here.

  >>> data_sheet('NVIDIA H200')['bytes_per_s']
  4800000000000.0
  """
  if device_kind in _GPUS:
    operations, nbytes, source = _GPUS[device_kind]
  elif device_kind in _TPUS:
    chip = CHIPS[_TPUS[device_kind]]
    operations, nbytes, source = chip.peak_flops, chip.bandwidth, chip.source
  else:
    return None
  return {'bfloat16_operations_per_s': operations, 'bytes_per_s': nbytes, 'source': source}


def share_of_peak(
  operations: float, seconds: float, *, devices: Sequence[Any], dtype: str
) -> float | None:
  """Of the operations that the data sheet of the devices promises; None where it does not say.

  Data sheets give bfloat16; products of other dtypes have other peaks.
  """
  sheet = data_sheet(devices[0].device_kind)
  if sheet is None or dtype != 'bfloat16':
    return None
  return operations / seconds / (sheet['bfloat16_operations_per_s'] * len(devices))


def program_mib(compiled: Any) -> dict[str, float]:
  """MiB of one device; {} where the compiler does not tell.

  Returns:
    `arguments`, `temporaries`, `outputs`, `aliased` (outputs that lie where arguments did).
  """
  return {name: size / 2 ** 20 for name, size in program_bytes(compiled).items() if name != 'code'}


def format_memory(mib: Mapping[str, float]) -> str:
  """Of `program_mib`, for people."""
  return ', '.join(f'{name} {size:,.0f}' for name, size in mib.items()) + ' MiB' if mib else ''


def text_tokens(
  rng: np.random.Generator, vocab_size: int, shape: int | tuple[int, ...]
) -> np.ndarray:
  """Ids with frequencies as in text: that of rank r in proportion to 1 / (r + 10)."""
  shares = 1 / (np.arange(vocab_size) + 10)
  return rng.choice(vocab_size, shape, p=shares / shares.sum()).astype(np.int32)


def provenance(name: str, options: Any, *, device: str | None = None) -> dict[str, Any]:
  """Command (with the options of compilers that stand in the environment), machine, versions, date.

  Args:
    name: of the module.
    options: parsed; all of them are kept.
    device: that was compiled for, where nothing ran; None: those that are here.
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
      *(f'{key}={os.environ[key]}' for key in _COMPILER_OPTIONS if os.environ.get(key)),
      'python', '-m', f'tests.benchmarks.{name}', *sys.argv[1:]]),
    'device': device or f'{jax.device_count()}x {jax.devices()[0].device_kind}',
    'cores': os.cpu_count(),
    'load_average': os.getloadavg(),  # others may have used the cores
    'platform': platform.platform(), 'versions': versions, 'date': time.strftime('%Y-%m-%d')}


def show(result: Mapping[str, Any], lines: Sequence[str], *, as_json: bool) -> None:
  """Prints lines for people; with `as_json` to standard error, and the JSON."""
  print('\n'.join(lines), file=sys.stderr if as_json else sys.stdout)
  if as_json:
    print(json.dumps(result, indent=2))
