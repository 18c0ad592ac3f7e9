"""Compiles one program for one slice and says what it needs there."""

import dataclasses
import hashlib
import importlib.metadata
import pathlib
import time
from collections.abc import Callable
from typing import Any

from fairjax.chips import Slice
from fairjax.compile import hlo, hlo_cost, loops
from fairjax.compile.devices import slice_devices
from fairjax.config import Config
from fairjax.train.memory import out_of_memory, program_bytes, required_bytes, state_splits


@dataclasses.dataclass(frozen=True)
class Analysis:
  """What one program needs on each device of a slice.

  Attributes:
    program: `lm`, `debias` or `sample`.
    part: what of it was compiled.
    topology: name of the slice.
    mesh: sizes of the mesh axes that are not 1.
    batch_size: rows of a step, or samples of each value.
    memory: bytes of `arguments`, `temporaries`, `outputs`, `aliased` (outputs that reuse an
      argument) and `code`; empty if the program was refused.
    required: bytes in use at once: the sum of these, aliased ones once. Of a refused program what
      the compiler says it needs or, if more, its arguments; it may be more than that.
    available: bytes of a device that programs may use.
    hbm: bytes of a device.
    cost: of `hlo_cost.count`; None if refused, or if this jaxlib cannot read what libtpu wrote.
    floors: seconds that `flops` at peak rate and `bytes` at full bandwidth take.
    seconds: of compiling.
    argument_bytes: of the arguments on one device, from their shapes and shardings.
  """

  program: str
  part: str
  topology: str
  mesh: dict[str, int]
  batch_size: int
  memory: dict[str, int]
  required: int
  available: int
  hbm: int
  cost: dict[str, Any] | None
  floors: dict[str, float]
  seconds: float
  argument_bytes: int

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
  """Compiles a program for a slice.

  Args:
    config: of the run.
    program: `lm`, `debias` or `sample`.
    where: the slice.
    log: gets one line before the compiler starts.
    cached: returns an earlier result (of `to_dict`) for a key, or None.

  Returns:
    The analysis and its key: equal keys mean the same program, slice, compiler and counter.

  Raises:
    UserError: no libtpu, or the slice does not divide a batch.
  """
  from fairjax.compile.programs import lower_program, part_of

  found = lower_program(
    config, program, slice_devices(where, num_slices=config.mesh.slices))
  lowered, arguments = found.lowered, found.argument_bytes
  key = _key(lowered, where)
  earlier = cached(key)
  if earlier is not None:
    fields = {f.name for f in dataclasses.fields(Analysis)}
    return Analysis(**{k: v for k, v in earlier.items() if k in fields}), key
  start, chip = time.monotonic(), where.chip
  memory, cost, floors, required = {}, None, {}, arguments
  if arguments <= chip.available_hbm:
    fsdp = f", fsdp={found.mesh.shape['fsdp']}" if found.mesh.shape['fsdp'] > 1 else ''
    log(f'{program} for {where.name} ({found.mesh.size} devices{fsdp}): compiling')
    compiled, needed = _compile(lowered)
    required = max(required, needed)
    if compiled is not None:
      memory = program_bytes(compiled)
      required = required_bytes(memory)
      cost = _count(compiled)
    if cost is not None:
      floors = {'flops': cost['flops'] / chip.peak_flops, 'bytes': cost['bytes'] / chip.bandwidth}
  return Analysis(
    program=program, part=part_of(config, program), topology=where.name,
    mesh={axis: size for axis, size in found.mesh.shape.items() if size > 1},
    batch_size=_batch_size(config, program), memory=memory, required=required,
    available=chip.available_hbm, hbm=chip.hbm, cost=cost, floors=floors,
    seconds=time.monotonic() - start, argument_bytes=arguments), key


def splits(config: Config, program: str, where: Slice) -> dict[int, int]:
  """What a program needs at least on each device of a slice, by `mesh.fsdp`; compiles nothing.

  Args:
    config: of the run.
    program: `lm`, `debias` or `sample`.
    where: the slice.

  Returns:
    As `state_splits`; for `sample`, whose devices gather all parameters, 0 for the `fsdp` it has.

  Raises:
    UserError: no libtpu, or the slice does not divide a batch.
  """
  from fairjax.compile.programs import state_of
  from fairjax.train import make_mesh

  if program == 'sample':
    return {config.mesh.fsdp: 0}
  devices = slice_devices(where, num_slices=config.mesh.slices)
  return state_splits(state_of(config, program, make_mesh(config.mesh, devices=devices)))


def _compile(lowered: Any) -> tuple[Any, int]:
  """The compiled program and 0, or None and the bytes that the compiler says it needs."""
  try:
    return lowered.compile(), 0
  except Exception as e:  # JaxRuntimeError: its type does not tell out of memory from the rest
    needed = out_of_memory(str(e))
    if needed is None:
      raise
    return None, needed


def _count(compiled: Any) -> dict[str, Any] | None:
  """What the optimized program does; None if jaxlib cannot read the one of this libtpu."""
  try:
    text = compiled.as_text()
  except Exception as e:  # JaxRuntimeError: a libtpu newer than the jaxlib writes other protos
    if 'RET_CHECK' not in str(e):
      raise
    return None
  counted = hlo_cost.count(text)
  return {'flops': counted.flops, 'bytes': counted.nbytes, 'collectives': counted.collectives,
          'notes': dict(sorted(counted.notes.items()))}


def _batch_size(config: Config, program: str) -> int:
  return {'lm': config.lm.batch_size, 'debias': config.debias.batch_size,
          'sample': min(config.sample.batch_size, config.sample.samples)}[program]


def _key(lowered: Any, where: Slice) -> str:
  """Fingerprint of the program, the slice, the compiler and the counter."""
  digest = hashlib.sha256(f"{importlib.metadata.version('libtpu')}\n{where}\n".encode())
  for module in (hlo, hlo_cost, loops):
    digest.update(pathlib.Path(module.__file__).read_bytes())
  digest.update(lowered.as_text().encode())
  return digest.hexdigest()
