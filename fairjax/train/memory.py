"""The memory that a stage needs on each device, logged before its first step.

Shapes and shardings give the size of the train state, the compiler the rest. JAX caches the step
that is compiled for this, so that nothing is compiled twice.
"""

import dataclasses
import math
import re
from typing import Any

import jax

from fairjax.errors import UserError
from fairjax.model import Memory
from fairjax.train.steps import TrainState

_OUT_OF_MEMORY = re.compile(
  r'Ran out of memory.*?(?:\((?P<required>[\d.]+[KMGT]?)\) exceeds available HBM|'
  r'Used (?P<used>[\d.]+[KMGT]?) of )', re.S)
_UNITS = {'': 1, 'K': 2**10, 'M': 2**20, 'G': 2**30, 'T': 2**40}


@dataclasses.dataclass(frozen=True)
class StateBytes:
  """Bytes of a train state on one device."""

  parameters: int  # of the model
  optimizer: int  # its moments
  hidden: int  # the memory, hidden states of earlier segments
  # see `abstract_gradients`. They are no part of the state, but the step needs them beside it
  gradients: int

  @classmethod
  def of(cls, state: TrainState) -> 'StateBytes':
    """Counts a state of arrays, or of `jax.ShapeDtypeStruct` with shardings."""
    parts = (state.params, state.opt_state, state.memory, abstract_gradients(state))
    return cls(*(device_bytes(part) for part in parts))

  @property
  def least(self) -> int:
    """Bytes that a step needs at least."""
    return self.parameters + self.optimizer + self.hidden + self.gradients

  def format(self) -> str:
    """Formats the sizes for a line."""
    return (f'parameters {format_size(self.parameters)}, optimizer {format_size(self.optimizer)}, '
            f'memory {format_size(self.hidden)}')


def abstract_gradients(state: TrainState) -> Any:
  """Gradients that a step holds at once, because they are clipped before the first update."""
  # Those of the layers may have the dtype of the memory, in which the model computes. A model
  # without memory does not say it: they then count as the least, bfloat16.
  if state.memory is None:
    return state.params
  memory = state.memory
  dtype = memory.hidden.dtype if isinstance(memory, Memory) else jax.numpy.bfloat16.dtype
  layers = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype, sharding=x.sharding),
                        state.params['layers'])
  return {**state.params, 'layers': layers}


def device_bytes(tree: Any) -> int:
  """Bytes of the leaves of a tree on one device, by their shardings."""
  return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
             for leaf in jax.tree.leaves(tree))


def program_bytes(compiled: jax.stages.Compiled) -> dict[str, int]:
  """Bytes that a compiled program needs on one device by kind; {} where none are reported."""
  # `aliased` are outputs that reuse an argument.
  stats = compiled.memory_analysis()
  if stats is None:
    return {}
  return {'arguments': stats.argument_size_in_bytes, 'temporaries': stats.temp_size_in_bytes,
          'outputs': stats.output_size_in_bytes, 'aliased': stats.alias_size_in_bytes,
          'code': stats.generated_code_size_in_bytes}


def required_bytes(program: dict[str, int]) -> int:
  """Bytes in use at once: the sum of `program_bytes`, aliased ones once."""
  return sum(program.values()) - 2 * program['aliased']


def device_limit() -> int | None:
  """Bytes of one of this process's devices that programs may use; None if unknown (CPU)."""
  return (jax.local_devices()[0].memory_stats() or {}).get('bytes_limit')


def check_state(name: str, state: TrainState) -> None:
  """Raises `UserError` if the devices cannot hold a state and its gradients; makes no array."""
  found, limit = StateBytes.of(state), device_limit()
  if limit is not None and found.least > limit:
    raise _too_large(
      name, state, found.least, limit, f'at least {format_size(found.least)} of each device '
      f'({found.format()}, gradients {format_size(found.gradients)})')


def compile_step(name: str, lowered: jax.stages.Lowered, state: TrainState) -> str:
  """Compiles a step and returns a line on its memory; `UserError` if it does not fit."""
  found, limit = StateBytes.of(state), device_limit()
  compiled, needed = try_compile(lowered)
  if compiled is None:
    raise _too_large(
      name, state, needed, limit, f'{format_size(needed)} of each device, as the compiler reports '
      f'({found.format()})')
  program = program_bytes(compiled)
  if not program:
    return (f'[{name}] device memory: at least {format_size(found.least)} '
            f'({found.format()}); the compiler reports no more')
  needed = required_bytes(program)
  if limit is not None and needed > limit:
    raise _too_large(
      name, state, needed, limit,
      f'{format_size(needed)} of each device ({found.format()}, activations, gradients and '
      f'workspace {format_size(program["temporaries"])})')
  of = '' if limit is None else f' of {format_size(limit)}'
  return f'[{name}] device memory: {format_size(needed)}{of} ({found.format()})'


def try_compile(lowered: jax.stages.Lowered) -> tuple[jax.stages.Compiled | None, int]:
  """The compiled program and 0, or None and the bytes that the compiler says it needs."""
  try:
    return lowered.compile(), 0
  except Exception as e:  # JaxRuntimeError: its type does not tell out of memory from the rest
    needed = out_of_memory(str(e))
    if needed is None:
      raise
    return None, needed


def out_of_memory(message: str) -> int | None:
  """Bytes that the compiler says a program needs; None if the message is about something else.

  >>> out_of_memory('Ran out of memory in memory space hbm. Used 20.5K of 15.75G hbm.')
  20992
  """
  found = _OUT_OF_MEMORY.search(message)
  if found is None:
    return None
  text = found['required'] or found['used']
  number, unit = (text[:-1], text[-1]) if text[-1] in _UNITS else (text, '')
  return int(float(number) * _UNITS[unit])


def format_size(size: int) -> str:
  """Formats a number of bytes.

  >>> format_size(3 * 2**30 // 2), format_size(2**20), format_size(700)
  ('1.50 GiB', '1.0 MiB', '0.7 KiB')
  """
  if size >= 2**30:
    return f'{size / 2**30:,.2f} GiB'
  return f'{size / 2**20:.1f} MiB' if size >= 2**20 else f'{size / 2**10:.1f} KiB'


def least_with_fsdp(state: TrainState, fsdp: int) -> int | None:
  """`StateBytes.least` if `fsdp` took devices from `data`; None if it cannot be split so."""
  def size(leaf):
    sharding, parts = leaf.sharding, []
    axes = dict(sharding.mesh.shape)
    if axes['data'] * axes['fsdp'] % fsdp:
      return None
    axes |= {'data': axes['data'] * axes['fsdp'] // fsdp, 'fsdp': fsdp}
    for split in sharding.spec:
      names = split if isinstance(split, tuple) else (split,) if split else ()
      parts.append(math.prod(axes[name] for name in names))
    parts += [1] * (len(leaf.shape) - len(parts))
    if any(n % p for n, p in zip(leaf.shape, parts, strict=True)):
      return None
    return math.prod(leaf.shape) // math.prod(parts) * leaf.dtype.itemsize

  sizes = [size(leaf) for leaf in jax.tree.leaves(
    (state.params, abstract_gradients(state), state.opt_state, state.memory))]
  return None if None in sizes else sum(sizes)


def state_splits(state: TrainState) -> dict[int, int]:
  """`StateBytes.least` by `mesh.fsdp`: as it is first, then larger ones that take from `data`."""
  mesh = jax.tree.leaves(state.params)[0].sharding.mesh
  sizes = {fsdp: least_with_fsdp(state, fsdp) for fsdp in range(mesh.shape['fsdp'], mesh.size + 1)}
  return {fsdp: size for fsdp, size in sizes.items() if size is not None}


def _too_large(
  name: str, state: TrainState, needed: int, limit: int | None, words: str
) -> UserError:
  over = '' if limit is None else (
    f', which has {format_size(limit)}: {format_size(needed - limit)} too much')
  return UserError(
    f'[{name}] does not fit: it needs {words}{over}. {_fsdp_advice(state, needed, limit)}'
    'Parameters and optimizer shrink with --config.mesh.fsdp and --config.mesh.model, activations '
    'with a larger grad_accum_steps, more devices or --config.model.remat=full; fairjax tpu '
    'compile finds the smallest slice')


def _fsdp_advice(state: TrainState, needed: int, limit: int | None) -> str:
  """The least `fsdp` of these devices with which the state would fit, the rest as it is."""
  least = StateBytes.of(state).least
  tried = {fsdp: needed - least + size for fsdp, size in state_splits(state).items()
           if size < least}
  if limit is None or not tried:
    return ''
  for fsdp, size in tried.items():
    if size <= limit:
      return f'--config.mesh.fsdp={fsdp} would need about {format_size(size)}. '
  return (f'Even --config.mesh.fsdp={max(tried)} would need about '
          f'{format_size(min(tried.values()))}. ')
