"""What a program needs on each device of a slice: memory, FLOPs and bytes, by the compiler.

The memory is that of the program that a run compiles. XLA's `cost_analysis` counts the body of a
loop once, whatever its length, so work is counted in models of two and three unrolled layers: every
further layer costs as much as the third. Loops that remain (blocks of the loss, microbatches,
tokens of a sample) are counted once, which makes the FLOPs a lower bound.
"""

import dataclasses
import hashlib
import importlib.metadata
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax

from fairjax.config import Config
from fairjax.tpu.chips import Slice
from fairjax.tpu.programs import lower_program, part_of, slice_devices, state_of
from fairjax.train import make_mesh
from fairjax.train.memory import program_bytes, required_bytes, state_splits, try_compile


@dataclasses.dataclass(frozen=True)
class Analysis:
  """What one program needs on each device of a slice."""

  program: str  # `lm`, `debias` or `sample`
  part: str  # what of it was compiled
  topology: str  # name of the slice
  mesh: dict[str, int]  # sizes of the axes that are not 1
  batch_size: int  # rows of a step, or samples of each value
  # bytes of `arguments`, `temporaries`, `outputs`, `aliased` (outputs that reuse an argument) and
  # `code`; empty if the program was refused
  memory: dict[str, int]
  # bytes in use at once: the sum of these, aliased ones once. Of a refused program what the
  # compiler says it needs or, if more, its arguments; it may be more than that
  required: int
  available: int  # bytes of a device that programs may use
  hbm: int  # bytes of a device
  cost: dict[str, float] | None  # of `work`; None if the program does not fit
  peak_seconds: float | None  # that these FLOPs take at the peak rate
  seconds: float  # of compiling

  @property
  def fits(self) -> bool:
    """Whether a device holds the program."""
    return bool(self.memory) and self.required <= self.available

  @property
  def bytes_over(self) -> int:
    """How many bytes are missing; negative: left."""
    return self.required - self.available

  def to_dict(self) -> dict[str, Any]:
    """For JSON."""
    return dataclasses.asdict(self) | {'fits': self.fits, 'bytes_over': self.bytes_over}


def analyse(
  config: Config, program: str, where: Slice, *, log: Callable[[str], None] = lambda line: None,
  cached: Callable[[str], dict | None] = lambda key: None,
) -> tuple[Analysis, str]:
  """Compiles a program, unless `cached` has the result (of `to_dict`) of its key."""
  devices, chip = slice_devices(where, num_slices=config.mesh.slices), where.chip
  found = lower_program(config, program, devices)
  key = _key(found.lowered, where)
  earlier = cached(key)
  if earlier is not None:
    fields = {f.name for f in dataclasses.fields(Analysis)}
    return Analysis(**{k: v for k, v in earlier.items() if k in fields}), key
  start, memory, required, cost = time.monotonic(), {}, found.argument_bytes, None
  if required <= chip.available_hbm:
    fsdp = f", fsdp={found.mesh.shape['fsdp']}" if found.mesh.shape['fsdp'] > 1 else ''
    log(f'{program} for {where.name} ({found.mesh.size} devices{fsdp}): compiling')
    compiled, needed = try_compile(found.lowered)
    required = max(required, needed)
    if compiled is not None:
      memory = program_bytes(compiled)
      required = required_bytes(memory)
      if required <= chip.available_hbm:
        cost = work(config, program, devices, compiled)
  return Analysis(
    program=program, part=part_of(config, program), topology=where.name,
    mesh={axis: size for axis, size in found.mesh.shape.items() if size > 1},
    batch_size=_batch_size(config, program), memory=memory, required=required,
    available=chip.available_hbm, hbm=chip.hbm, cost=cost,
    peak_seconds=cost['flops'] / chip.peak_flops if cost else None,
    seconds=time.monotonic() - start), key


def work(
  config: Config, program: str, devices: list, compiled: jax.stages.Compiled
) -> dict[str, float]:
  """FLOPs and bytes of one execution on one device; every layer counts, other loops once."""
  if program == 'sample':  # unrolls its layers
    return counts(compiled)

  def unrolled(num_layers: int) -> dict[str, float]:
    model = dataclasses.replace(config.model, num_layers=num_layers, scan_unroll=num_layers)
    lowered = lower_program(dataclasses.replace(config, model=model), program, devices).lowered
    return counts(lowered.compile())

  first, further = unrolled(2), config.model.num_layers - 2
  if not further:
    return first
  more = unrolled(3)
  return {name: first[name] + further * (more[name] - first[name]) for name in first}


def counts(compiled: jax.stages.Compiled) -> dict[str, float]:
  """XLA's own count: `flops`, and `bytes` that instructions read and write, on the chip or not."""
  found = compiled.cost_analysis()
  return {'flops': found['flops'], 'bytes': found['bytes accessed']}


def splits(config: Config, program: str, where: Slice) -> dict[int, int]:
  """What a program needs at least on each device of a slice, by `mesh.fsdp`; compiles nothing."""
  if program == 'sample':  # its devices gather all parameters
    return {config.mesh.fsdp: 0}
  devices = slice_devices(where, num_slices=config.mesh.slices)
  return state_splits(state_of(config, program, make_mesh(config.mesh, devices=devices)))


def _batch_size(config: Config, program: str) -> int:
  return {'lm': config.lm.batch_size, 'debias': config.debias.batch_size,
          'sample': min(config.sample.batch_size, config.sample.samples)}[program]


def _key(lowered: jax.stages.Lowered, where: Slice) -> str:
  """Fingerprint of the program, the slice, the compiler and this module."""
  digest = hashlib.sha256(f"{importlib.metadata.version('libtpu')}\n{where}\n".encode())
  digest.update(pathlib.Path(__file__).read_bytes())
  digest.update(lowered.as_text().encode())
  return digest.hexdigest()
