"""Forward and backward of every way to compute a segment's attention, T = M.

  python -m tests.benchmarks.attention
  python -m tests.benchmarks.attention --topology=v5e:2x2 --lengths=512,1024,2048,4096,8192 \
    --heads=8 --width=128 --rows=1 --dtype=bfloat16 --paths=shift,blocks,kernel

On the devices that are here, seconds are measured, the paths in turns, and beside them stands the
floor: the larger of the products' operations over the speed of a matrix product, and of the bytes
of operands and gradients over the speed of a copy, both measured in the same run. `--check` adds
how far outputs and gradients are from those of `shift` in float32, of which they are a share. With
`--topology` (needs libtpu) nothing runs: the TPU compiler says what its program would take. It
counts the body of a loop once, so operations and bytes of `blocks` and `heads` are too small there.
"""

import functools
import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fairjax.config import ModelConfig
from fairjax.model.attention_paths import main_attention
from tests.benchmarks import floors, harness


def make_program(config):
  """Forward and backward as one compiled function of abstract arrays."""
  def gradients(arrays, length):
    out, vjp = jax.vjp(lambda *a: main_attention(
      config, *a, length, segment_len=config.segment_len), *arrays)
    return out, vjp(out)

  return jax.jit(gradients).lower


def abstract_arrays(options, length, sharding):
  """Shapes of q, (k, v), the relative keys, u and v, and of the memory's lengths."""
  n, b, t, h = options.heads, options.rows, length, options.width
  shapes = ((n, b, t, h), (2, n, b, 2 * t, h), (n, 2 * t, h), (n, h), (n, h))
  arrays = tuple(jax.ShapeDtypeStruct(s, options.dtype, sharding=sharding) for s in shapes)
  return arrays, jax.ShapeDtypeStruct((b,), jnp.int32, sharding=sharding)


def work(options, length):
  """Operations and bytes that no way to compute it can avoid.

  A query sees 1.5 T keys on average; the forward pass has three products (content, distance,
  values), the backward pass twice as many. Operands are read and gradients written once.
  """
  operations = 9 * 2 * options.heads * options.rows * length * 1.5 * length * options.width
  arrays, _ = abstract_arrays(options, length, None)
  size = sum(a.size for a in arrays) + arrays[0].size
  return floors.Work(operations, 2 * size * jnp.dtype(options.dtype).itemsize)


def compile_paths(options, mesh):
  sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec())
  for length in options.lengths:
    for path in options.paths:
      config = ModelConfig(segment_len=length, memory_len=length, head_dim=options.width,
                           attention=path, attention_block=options.block, dtype=options.dtype)
      begin = time.perf_counter()
      try:
        compiled = make_program(config)(*abstract_arrays(options, length, sharding)).compile()
      except Exception as e:  # of a compiler: any class; the other paths go on
        print(f'{path}, {length}: {e}', file=sys.stderr, flush=True)
        yield {'path': path, 'length': length, 'error': str(e)}, None
        continue
      cost = compiled.cost_analysis()
      yield {
        'path': path, 'length': length,
        'temporary_mib': compiled.memory_analysis().temp_size_in_bytes / 2 ** 20,
        'compiler_gigabytes': cost['bytes accessed'] / 1e9,
        'compiler_gigaflops': cost['flops'] / 1e9,
        'compile_s': time.perf_counter() - begin}, compiled


def measure(options) -> dict:
  rows, runs = [], {}
  if options.topology:
    os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
    os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
    os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')  # nothing runs, so none is in the way
    device = topologies.get_topology_desc(
      platform='tpu', topology_name=options.topology).devices[0]
    mesh = Mesh(np.array([device]), ('device',), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):
      rows = [row for row, _ in compile_paths(options, mesh)]
  else:
    device = jax.devices()[0]
    speeds = harness.limits(options.dtype)
    for row, compiled in compile_paths(options, None):
      rows.append(row)
      if compiled:
        runs.setdefault(row['length'], []).append((row, compiled))
    for length, same_length in runs.items():
      time_in_turns(options, length, same_length, speeds)
  return harness.provenance(
    'attention', options, device=device.device_kind if options.topology else None) | {
      'rows': rows, 'speeds': None if options.topology else speeds}


def time_in_turns(options, length, compiled, speeds):
  """Adds the shortest seconds and the floor to the rows of one length."""
  rng = np.random.default_rng(0)
  shapes, lengths = abstract_arrays(options, length, None)
  arrays = tuple(jnp.asarray(rng.normal(size=s.shape), s.dtype) for s in shapes)
  full = jnp.full(lengths.shape, length, jnp.int32)
  seconds = harness.in_turns(
    {row['path']: functools.partial(run, arrays, full) for row, run in compiled},
    rounds=options.rounds, warm=1)
  floor = floors.floor(work(options, length), speeds)
  if options.check:
    add_differences(arrays, full, length, compiled)
  for row, _ in compiled:
    row |= {'seconds': float(np.median(seconds[row['path']])),
            'floor': floor}


def add_differences(arrays, full, length, compiled):
  """Adds the largest difference from `shift` in float32, over the largest number of its array."""
  wide = tuple(x.astype(jnp.float32) for x in arrays)
  config = ModelConfig(segment_len=length, memory_len=length, head_dim=arrays[0].shape[-1],
                       attention='shift', dtype='float32')
  with jax.default_matmul_precision('highest'):
    exact = jax.tree.leaves(make_program(config)(wide, full).compile()(wide, full))
  for row, run in compiled:
    row['difference'] = max(
      float(jnp.abs(a.astype(jnp.float32) - b).max() / jnp.abs(b).max())
      for a, b in zip(jax.tree.leaves(run(arrays, full)), exact, strict=True))


def main() -> None:
  parser = harness.parser(__doc__, heads=4, rows=2, width=64, block=512, rounds=5)
  parser.add_argument('--lengths', default='128,256,512,1024', help='T = M, separated by commas')
  parser.add_argument('--paths', help='of model.attention; default: all that the device may have')
  parser.add_argument('--dtype', default='float32', choices=('float32', 'bfloat16'))
  parser.add_argument('--topology', default='', help="of the TPU compiler, e.g. 'v5e:2x2'")
  parser.add_argument('--check', action='store_true', help='compare with shift in float32')
  options = parser.parse_args()
  options.lengths = [int(x) for x in options.lengths.split(',')]
  if options.paths is None:
    on_tpu = options.topology or jax.default_backend() == 'tpu'
    options.paths = 'shift,heads,blocks,kernel' if on_tpu else 'shift,heads,blocks'
  options.paths = options.paths.split(',')
  harness.show(measure(options))


if __name__ == '__main__':
  main()
