"""Counts multiplications, memory traffic and collectives of optimized HLO, loops included.

XLA's own `cost_analysis` counts the body of a loop once, whatever its length. Here every body
counts as often as it runs:

- FLOPs: two for each multiply-add of matrix products and convolutions (XLA's TPU compiler writes
  products as convolutions). Elementwise work is left out: other units do it.
- Bytes: operands and results of every instruction outside fusions that lie in main memory, as each
  fusion reads its operands and writes its results once. Slices and in-place updates count what they
  touch, not the array they are cut from. The padding of tiles is not counted.
- Collectives: number and bytes by kind; the bytes of the larger side on one device.

A loop whose condition also depends on data counts as often as it can run at most. Of a conditional,
the branch with more FLOPs (then bytes) counts. A custom call counts by the cost estimate that it
carries, otherwise by its operands and results and without FLOPs. `Cost.notes` names these cases.
"""

import collections
import dataclasses
import functools
import math
import re

import numpy as np

from fairjax.compile.hlo import ArrayShape, Computation, Instruction, Module, parse_module
from fairjax.compile.loops import Loops

COLLECTIVES = ('all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all', 'collective-permute',
               'collective-broadcast', 'ragged-all-to-all')
_FREE = {
  'parameter', 'constant', 'get-tuple-element', 'tuple', 'bitcast', 'after-all', 'opt-barrier',
  'partition-id', 'replica-id', 'add-dependency', 'domain', 'async-update', 'get-dimension-size'}
_START = 'AsyncCollectiveStart'
_FREE_CALLS = {'AllocateBuffer', 'ConcatBitcast', 'AssumeGatherIndicesInBound', 'Sharding', _START,
               'AsyncCollectiveDone'}
_COPIES = ('copy-start', 'slice-start', 'dynamic-slice-start')
_ESTIMATE = re.compile(
  r'"cost_estimate":\{[^}]*?"flops":"?(\d+)"?[^}]*?"bytes_accessed":"?(\d+)"?')
# A fusion computes element by element, so what is read of these is read of their operand.
_THROUGH = {'bitcast', 'convert', 'copy', 'reshape', 'transpose', 'negate'}


@dataclasses.dataclass
class Cost:
  """What one execution takes on one device.

  Attributes:
    flops: of matrix products and convolutions.
    nbytes: moved between main memory and the device.
    collectives: kind -> [number, bytes].
    notes: what was counted by a rule of thumb -> how often it stands in the program.
  """

  flops: float = 0.0
  nbytes: float = 0.0
  collectives: dict[str, list[float]] = dataclasses.field(default_factory=dict)
  notes: collections.Counter = dataclasses.field(default_factory=collections.Counter)

  def add(self, other: 'Cost', times: float = 1) -> None:
    """Adds another cost, so many times."""
    self.flops += times * other.flops
    self.nbytes += times * other.nbytes
    for kind, values in other.collectives.items():
      mine = self.collectives.setdefault(kind, [0, 0])
      self.collectives[kind] = [m + times * v for m, v in zip(mine, values, strict=True)]
    self.notes.update(other.notes)


def count(text: str) -> Cost:
  """Counts a program.

  Args:
    text: of `jax.stages.Compiled.as_text()`.
  """
  return _Counter(parse_module(text)).entry()


class _Counter:
  def __init__(self, module: Module):
    self.module, self.loops = module, Loops(module)
    self.computation = functools.cache(self._computation)
    self.inside = functools.cache(self._inside)
    # A collective that runs beside products stands in several fusions: where it starts, where it
    # goes on and where it ends. It counts where it starts.
    self.starts = {c.name: _channels(c) for c in module.computations.values()
                   if any(f'"{_START}"' in i.attributes for i in c.instructions.values())}
    self.started = set().union(*self.starts.values())

  def entry(self) -> Cost:
    return self.computation(self.module.entry.name)

  def _computation(self, name: str) -> Cost:
    computation, cost = self.module.computations[name], Cost()
    for instruction in computation.instructions.values():
      cost.add(self._instruction(instruction, computation))
    return cost

  def _instruction(self, instruction: Instruction, computation: Computation) -> Cost:
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith('-done'):
      return Cost()
    if opcode == 'while':
      return self._while(instruction, computation)
    if opcode == 'conditional':
      return self._conditional(instruction)
    if opcode in ('call', 'async-start'):
      return self.computation(instruction.called('to_apply') or instruction.called('calls'))
    if opcode == 'custom-call':
      return self._custom_call(instruction, computation)
    cost = Cost(nbytes=self._bytes(instruction, computation))
    if opcode == 'fusion':
      cost.add(self.inside(instruction.called('calls')))
    else:
      cost.add(self._arithmetic(instruction, computation))
    return cost

  def _inside(self, name: str) -> Cost:
    """FLOPs and collectives of a fused computation; its traffic is the fusion's."""
    computation, cost = self.module.computations[name], Cost()
    for instruction in computation.instructions.values():
      if instruction.opcode == 'fusion':
        cost.add(self.inside(instruction.called('calls')))
      elif instruction.opcode == 'custom-call':
        cost.add(dataclasses.replace(self._custom_call(instruction, computation), nbytes=0.0))
      elif name in self.starts or not self.started & _channel(instruction):
        cost.add(self._arithmetic(instruction, computation))
    return cost

  def _arithmetic(self, instruction: Instruction, computation: Computation) -> Cost:
    if instruction.opcode == 'dot':
      return Cost(flops=dot_flops(instruction, _operand_shapes(instruction, computation)))
    if instruction.opcode == 'convolution':
      return Cost(flops=convolution_flops(instruction, _operand_shapes(instruction, computation)))
    kind = instruction.opcode.removesuffix('-start')
    if kind in COLLECTIVES:
      operands = sum(s.nbytes for s in _operand_shapes(instruction, computation))
      results = sum(s.nbytes for s in instruction.shapes)
      if instruction.opcode.endswith('-start') and kind != 'all-reduce':
        results -= operands  # the result of a start holds the operands too
      return Cost(collectives={kind: [1, max(operands, results)]})
    return Cost()

  def _while(self, instruction: Instruction, computation: Computation) -> Cost:
    trips, note = self.loops.trip_count(instruction, computation)
    cost = Cost()
    cost.add(self.computation(instruction.called('body')), trips)
    cost.add(self.computation(instruction.called('condition')), trips)
    if note:
      cost.notes[note] += 1
    return cost

  def _conditional(self, instruction: Instruction) -> Cost:
    found = re.search(r'branch_computations=\{([^}]*)\}', instruction.attributes)
    names = (re.findall(r'[\w.\-]+', found[1]) if found else
             [instruction.called('true_computation'), instruction.called('false_computation')])
    costs = [self.computation(name) for name in names]
    cost = Cost()
    cost.add(max(costs, key=lambda c: (c.flops, c.nbytes)))
    if len({(c.flops, c.nbytes) for c in costs}) > 1:
      cost.notes['conditional counted by its largest branch'] += 1
    return cost

  def _custom_call(self, instruction: Instruction, computation: Computation) -> Cost:
    found = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    target = found[1] if found else ''
    if target in _FREE_CALLS:
      return Cost()
    estimate = _ESTIMATE.search(instruction.attributes)
    if estimate:
      return Cost(float(estimate[1]), float(estimate[2]), notes=collections.Counter(
        {f'custom call {target} counted by its own estimate': 1}))
    return Cost(nbytes=self._bytes(instruction, computation), notes=collections.Counter(
      {f'custom call {target} counted by its operands and results, without FLOPs': 1}))

  def _bytes(self, instruction: Instruction, computation: Computation) -> float:
    """Main-memory traffic of one instruction outside fusions."""
    operands = [computation.instructions[name] for name in instruction.operands]
    if instruction.opcode in _COPIES:
      return _copy_bytes(instruction, operands)
    read = [self._elements_read(computation, instruction, number)
            for number in range(len(operands))]
    total = sum(elements * s.itemsize for elements, operand in zip(read, operands, strict=True)
                for s in operand.shapes if s.space == 0 and len(operand.shapes) == 1)
    total += sum(s.nbytes for o in operands if len(o.shapes) > 1 for s in o.shapes if s.space == 0)
    written = self._elements_written(computation, instruction)
    return total + sum(elements * s.itemsize for elements, s in
                       zip(written, instruction.shapes, strict=True) if s.space == 0)

  def _elements_read(self, computation: Computation, user: Instruction, number: int) -> int:
    """How many elements of operand `number` an instruction reads."""
    full = _elements(computation.instructions[user.operands[number]])
    if user.opcode == 'fusion':
      inner = self.module.computations[user.called('calls')]
      return min(full, self._read_by_users(inner, inner.parameter(number).name, full))
    if user.opcode in ('dynamic-slice', 'slice', 'gather') and number == 0:
      return min(full, _elements(user))
    if user.opcode == 'dynamic-update-slice' and number == 0:
      return 0
    if user.opcode == 'scatter' and number == 0:
      return min(full, _elements(computation.instructions[user.operands[-1]]))
    return full

  def _read_by_users(self, computation: Computation, name: str, full: int) -> int:
    total = 0
    for user, number in computation.users(name):
      through = user.opcode in _THROUGH and _elements(user) == full and not user.is_root
      total += (self._read_by_users(computation, user.name, full) if through
                else self._elements_read(computation, user, number))
      if total >= full:
        return full
    return total

  def _elements_written(
    self, computation: Computation, instruction: Instruction, *, fused: bool = False
  ) -> list[int]:
    """How many elements of each array of the result an instruction writes."""
    if instruction.opcode == 'fusion':
      inner = self.module.computations[instruction.called('calls')]
      roots = ([inner.instructions[name] for name in inner.root.operands]
               if inner.root.opcode == 'tuple' else [inner.root])
      found = [e for root in roots for e in self._elements_written(inner, root, fused=True)]
      if len(found) == len(instruction.shapes):
        return [min(f, s.elements) for f, s in zip(found, instruction.shapes, strict=True)]
    elif len(instruction.shapes) == 1 and instruction.operands:
      source = computation.instructions[instruction.operands[0]]
      if instruction.opcode in ('dynamic-update-slice', 'scatter'):
        update = instruction.operands[1 if instruction.opcode.startswith('dynamic') else -1]
        updated = _elements(computation.instructions[update])
        below = self._elements_below(computation, source) if fused else 0
        return [min(instruction.shapes[0].elements, updated + below)]
      if fused and instruction.opcode in _THROUGH and source.opcode != 'parameter':
        return self._elements_written(computation, source, fused=True)
    return [s.elements for s in instruction.shapes]

  def _elements_below(self, computation: Computation, source: Instruction) -> int:
    """Elements that an in-place update inside a fusion writes besides its own."""
    while source.opcode in _THROUGH:
      source = computation.instructions[source.operands[0]]
    if source.opcode == 'parameter':
      return 0
    return sum(self._elements_written(computation, source, fused=True))


def dot_flops(instruction: Instruction, operands: list[ArrayShape]) -> float:
  """Two for each multiply-add of a `dot`."""
  contracted = math.prod(operands[0].dims[d] for d in instruction.numbers('lhs_contracting_dims'))
  return 2.0 * instruction.shapes[0].elements * contracted


def convolution_flops(instruction: Instruction, operands: list[ArrayShape]) -> float:
  """Two for each multiply-add of a `convolution` that meets no padding and no hole.

  TPU programs write batched products as convolutions with holes, of which most positions are empty.
  """
  labels = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', instruction.attributes)
  base, kernel, out = labels[1], labels[2], labels[3]
  dims = [o.dims for o in operands[:2]] + [instruction.shapes[0].dims]
  spatial = sorted(c for c in out if c.isdigit())
  window = _window(instruction.attributes, len(spatial))
  positions = 1
  for i, label in enumerate(spatial):
    positions *= _valid_positions(
      dims[0][base.index(label)], dims[1][kernel.index(label)], dims[2][out.index(label)],
      *(window[field][i] for field in ('stride', 'pad', 'lhs_dilate', 'rhs_dilate')))
  multiply_adds = (dims[1][kernel.index('i')] * dims[2][out.index('f')] * dims[2][out.index('b')]
                   * positions)
  return 2.0 * multiply_adds


def _window(attributes: str, rank: int) -> dict[str, list[int]]:
  """Fields of `window={size=1x4 stride=... pad=0_0x3_3 lhs_dilate=...}`; pad: the low side."""
  found = re.search(r'window=\{([^}]*)\}', attributes)
  fields = dict(item.split('=') for item in found[1].split()) if found else {}
  window = {name: list(map(int, fields[name].split('x'))) if name in fields else [1] * rank
            for name in ('stride', 'lhs_dilate', 'rhs_dilate')}
  window['pad'] = ([int(p.split('_')[0]) for p in fields['pad'].split('x')]
                   if 'pad' in fields else [0] * rank)
  return window


@functools.cache
def _valid_positions(
  size: int, kernel: int, out: int, stride: int, pad: int, dilate: int, kernel_dilate: int,
) -> int:
  """(output, kernel) pairs of one axis that fall on an element of the input."""
  place = (np.arange(out)[:, None] * stride + np.arange(kernel)[None, :] * kernel_dilate - pad)
  return int(((place % dilate == 0) & (place >= 0) & (place // dilate < size)).sum())


def _copy_bytes(instruction: Instruction, operands: list[Instruction]) -> float:
  """A copy or slice between memories: `(result, source, context)`, or `((source), result, ...)`."""
  source = operands[0].shapes[0]
  first = 0 if instruction.opcode == 'copy-start' else 1
  result = instruction.shapes[first]
  read = result.elements * source.itemsize if source.space == 0 else 0.0
  return read + (result.nbytes if result.space == 0 else 0.0)


def _channel(instruction: Instruction) -> set[str]:
  """The channel of a collective; nothing for other instructions."""
  if instruction.opcode.removesuffix('-start') not in COLLECTIVES:
    return set()
  return set(re.findall(r'channel_id=(\d+)', instruction.attributes))


def _channels(computation: Computation) -> set[str]:
  return set().union(*map(_channel, computation.instructions.values()))


def _operand_shapes(instruction: Instruction, computation: Computation) -> list[ArrayShape]:
  return [s for name in instruction.operands for s in computation.instructions[name].shapes]


def _elements(instruction: Instruction) -> int:
  return sum(s.elements for s in instruction.shapes)
