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
import hashlib
import importlib.metadata
import math
import pathlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fairjax.config import Config
from fairjax.tpu.chips import Slice
from fairjax.tpu.programs import slice_devices
from fairjax.train.memory import out_of_memory, program_bytes, required_bytes, state_splits

# Reads the text of optimized HLO, as far as counting needs it.
#
# Works on `jax.stages.Compiled.as_text()` of CPU and TPU programs. A layout such as
# `{1,0:T(8,128)S(1)}` names the memory space of an array: S(1) and above are on-chip or host
# memories
# on TPU; none, or S(0), is the device's main memory.

_HEADER = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$')
_INSTRUCTION = re.compile(r'^\s+(ROOT )?%?([\w.\-]+) = ')
_ARRAY = re.compile(r'(\w+)\[([\d,<=]*)\](?:\{([^}]*)\})?')
_SPACE = re.compile(r'S\((\d+)\)')
_NAME = re.compile(r'%([\w.\-]+)')
_BITS = {'pred': 8, 'token': 0, 'opaque': 0, 'bf16': 16, 'tf32': 32}


@dataclasses.dataclass(frozen=True)
class ArrayShape:
  """One array: element type, sizes, memory space."""

  dtype: str
  dims: tuple[int, ...]
  space: int = 0

  @property
  def elements(self) -> int:
    """Number of elements."""
    return math.prod(self.dims)

  @property
  def itemsize(self) -> float:
    """Bytes of an element."""
    return element_bits(self.dtype) / 8

  @property
  def nbytes(self) -> float:
    """Bytes without the padding of tiles."""
    return self.elements * self.itemsize


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    name: without the percent sign.
    opcode: e.g. `fusion`.
    shapes: of the result; several for a tuple, nested tuples flattened.
    operands: names of instructions of the same computation.
    argument: text between the operand parentheses (the value of a constant or parameter).
    attributes: text behind them.
    is_root: whether it is the result of the computation.
  """

  name: str
  opcode: str
  shapes: tuple[ArrayShape, ...]
  operands: tuple[str, ...]
  argument: str
  attributes: str
  is_root: bool

  def called(self, attribute: str) -> str | None:
    """Name of the computation in `attribute=%name`."""
    found = re.search(rf'\b{attribute}=%?([\w.\-]+)', self.attributes)
    return found[1] if found else None

  def numbers(self, attribute: str) -> tuple[int, ...]:
    """The integers of `attribute={1,2}`."""
    found = re.search(rf'\b{attribute}=\{{([\d,]*)\}}', self.attributes)
    return tuple(map(int, filter(None, found[1].split(',')))) if found else ()


@dataclasses.dataclass
class Computation:
  """A named list of instructions, in the order of the text."""

  name: str
  instructions: dict[str, Instruction]

  @property
  def root(self) -> Instruction:
    """The result."""
    return next(i for i in self.instructions.values() if i.is_root)

  def parameter(self, index: int) -> Instruction:
    """The parameter of that number."""
    return next(i for i in self.instructions.values()
                if i.opcode == 'parameter' and int(i.argument) == index)

  def users(self, name: str) -> Iterator[tuple[Instruction, int]]:
    """Yields (user, operand number)."""
    for instruction in self.instructions.values():
      for number, operand in enumerate(instruction.operands):
        if operand == name:
          yield instruction, number


@dataclasses.dataclass
class Module:
  """A program."""

  computations: dict[str, Computation]
  entry: Computation

  @property
  def num_instructions(self) -> int:
    """Instructions of all computations."""
    return sum(len(c.instructions) for c in self.computations.values())


def element_bits(dtype: str) -> int:
  """Bits of an element type.

  >>> [element_bits(t) for t in ('pred', 'bf16', 's4', 'f8e4m3fn', 'c64')]
  [8, 16, 4, 8, 64]
  """
  if dtype in _BITS:
    return _BITS[dtype]
  found = re.match(r'[a-z]+(\d+)', dtype)
  return int(found[1]) if found else 0


def parse_shapes(text: str) -> tuple[ArrayShape, ...]:
  """Arrays of a shape, in order.

  >>> parse_shapes('(f32[2,3]{1,0:T(8,128)S(1)}, s32[])')[0].space
  1
  """
  shapes = []
  for dtype, dims, layout in _ARRAY.findall(text):
    space = _SPACE.search(layout or '')
    shapes.append(ArrayShape(
      dtype, tuple(int(d.lstrip('<=')) for d in dims.split(',') if d),
      int(space[1]) if space else 0))
  return tuple(shapes)


def parse_module(text: str) -> Module:
  """Parses the text of a program.

  Raises:
    ValueError: it holds no entry computation, or a line of another form.
  """
  computations, entry, current = {}, None, None
  for line in text.splitlines():
    header = _HEADER.match(line)
    if header:
      current = Computation(header[2], {})
      computations[current.name] = current
      entry = current if header[1] else entry
    elif current is not None and _INSTRUCTION.match(line):
      instruction = _parse_instruction(line)
      current.instructions[instruction.name] = instruction
  if entry is None:
    raise ValueError('the HLO text has no entry computation')
  return Module(computations, entry)


def _parse_instruction(line: str) -> Instruction:
  head = _INSTRUCTION.match(line)
  end = _end_of_shape(line, head.end())
  opcode = re.compile(r' ([\w\-]+)\(').match(line, end)
  if opcode is None:
    raise ValueError(f'not an HLO instruction: {line[:200]}')
  close = _closing(line, opcode.end() - 1)
  argument = line[opcode.end():close]
  return Instruction(
    name=head[2], opcode=opcode[1], shapes=parse_shapes(line[head.end():end]),
    operands=tuple(_NAME.findall(argument)), argument=argument, attributes=line[close + 1:],
    is_root=bool(head[1]))


def _end_of_shape(line: str, start: int) -> int:
  if line[start] == '(':
    return _closing(line, start) + 1
  return line.index(' ', start)


def _closing(line: str, start: int) -> int:
  """Place of the parenthesis that closes the one at `start`."""
  depth = 0
  for i in range(start, len(line)):
    if line[i] == '(':
      depth += 1
    elif line[i] == ')':
      depth -= 1
      if depth == 0:
        return i
  raise ValueError(f'unbalanced parentheses: {line[:200]}')


# How often the loops of an HLO program run.

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_THROUGH = {'copy', 'bitcast', 'convert', 'reshape', 'copy-done', 'copy-start', 'opt-barrier'}


class Loops:
  """Finds trip counts.

  The compiler states them in `backend_config` on CPU. TPU programs do not: there the condition
  `element i < constant` is read, with the value at which i starts and by how much it grows.
  """

  def __init__(self, module: Module):
    self.module = module

  def trip_count(self, loop: Instruction, computation: Computation) -> tuple[int, str]:
    """Returns (how often the body runs, what is uncertain about it or '')."""
    known = _KNOWN.search(loop.attributes)
    if known:
      return int(known[1]), ''
    found = self._bound(loop)
    if found is None:
      return 1, 'loop of unknown length counted once'
    index, limit, only_bound = found
    start = self._start(loop, computation, index)
    step = self._step(loop, index)
    if start is None:
      start = 0
    trips = max(0, -(-(limit - start) // step))
    return trips, 'loop counted by its greatest length' if only_bound else ''

  def _bound(self, loop: Instruction) -> tuple[int, int, bool] | None:
    """(element of the state, value it stays below, whether the loop may end earlier)."""
    condition = self.module.computations[loop.called('condition')]
    return self._compare(condition, condition.root, {}, loop)

  def _compare(self, computation, instruction, given, loop):
    if instruction.opcode == 'fusion':
      inner = self.module.computations[instruction.called('calls')]
      values = {number: self._trace(computation, name, given)
                for number, name in enumerate(instruction.operands)}
      return self._compare(inner, inner.root, values, loop)
    if instruction.opcode == 'and':
      for name in instruction.operands:
        found = self._compare(computation, computation.instructions[name], given, loop)
        if found:
          return *found[:2], True
      return None
    if instruction.opcode in _THROUGH:
      inner = computation.instructions[instruction.operands[0]]
      return self._compare(computation, inner, given, loop)
    if instruction.opcode != 'compare':
      return None
    left, right = (self._trace(computation, name, given) for name in instruction.operands)
    direction = re.search(r'direction=(\w+)', instruction.attributes)[1]
    if direction in ('GT', 'GE'):
      left, right, direction = right, left, {'GT': 'LT', 'GE': 'LE'}[direction]
    if left is None or left[0] != 'element' or direction not in ('LT', 'LE'):
      return None
    limit = self._constant(loop, right)
    return None if limit is None else (left[1], limit + (direction == 'LE'), False)

  def _constant(self, loop: Instruction, value) -> int | None:
    """The number behind a constant, or behind an element that enters the loop as one."""
    if value is None or value[0] == 'constant':
      return value and value[1]
    return self._start(loop, self._owner(loop), value[1])

  def _owner(self, loop: Instruction) -> Computation:
    return next(c for c in self.module.computations.values()
                if c.instructions.get(loop.name) is loop)

  def _start(self, loop: Instruction, computation: Computation, index: int) -> int | None:
    """Value of an element of the state before the first iteration."""
    state = computation.instructions[loop.operands[0]]
    if state.opcode != 'tuple':
      return None
    value = self._trace(computation, state.operands[index], {})
    if value is None:
      return None
    if value[0] == 'constant':
      return value[1]
    if value[0] == 'result':  # of an earlier loop, which leaves its counter at the limit
      found = self._bound(value[1])
      return found[1] if found and found[0] == value[2] else None
    return None

  def _step(self, loop: Instruction, index: int) -> int:
    """By how much an iteration raises an element of the state; 1 where that cannot be seen."""
    body = self.module.computations[loop.called('body')]
    if body.root.opcode != 'tuple':
      return 1
    return self._increment(body, body.instructions[body.root.operands[index]], {}, index) or 1

  def _increment(self, computation, instruction, given, index):
    if instruction.opcode == 'fusion' and len(instruction.shapes) == 1:
      inner = self.module.computations[instruction.called('calls')]
      values = {number: self._trace(computation, name, given)
                for number, name in enumerate(instruction.operands)}
      return self._increment(inner, inner.root, values, index)
    if instruction.opcode in _THROUGH:
      inner = computation.instructions[instruction.operands[0]]
      return self._increment(computation, inner, given, index)
    if instruction.opcode != 'add':
      return None
    values = [self._trace(computation, name, given) for name in instruction.operands]
    constants = [v[1] for v in values if v and v[0] == 'constant']
    if len(constants) == 1 and ('element', index) in values:
      return constants[0]
    return None

  def _trace(self, computation: Computation, name: str, given: dict):
    """Where a scalar comes from: ('constant', n), ('element', i), ('result', loop, i) or None."""
    instruction = computation.instructions[name]
    if instruction.opcode == 'constant':
      return ('constant', int(instruction.argument)) if re.fullmatch(
        r'-?\d+', instruction.argument) else None
    if instruction.opcode == 'parameter':
      return given.get(int(instruction.argument))
    if instruction.opcode == 'get-tuple-element':
      index = int(re.search(r'index=(\d+)', instruction.attributes)[1])
      source = computation.instructions[instruction.operands[0]]
      if source.opcode == 'parameter':
        return 'element', index
      if source.opcode == 'while':
        return 'result', source, index
      return None
    if instruction.opcode in _THROUGH:
      return self._trace(computation, instruction.operands[0], given)
    return None


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
_COST_THROUGH = {'bitcast', 'convert', 'copy', 'reshape', 'transpose', 'negate'}


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
      through = user.opcode in _COST_THROUGH and _elements(user) == full and not user.is_root
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
      if fused and instruction.opcode in _COST_THROUGH and source.opcode != 'parameter':
        return self._elements_written(computation, source, fused=True)
    return [s.elements for s in instruction.shapes]

  def _elements_below(self, computation: Computation, source: Instruction) -> int:
    """Elements that an in-place update inside a fusion writes besides its own."""
    while source.opcode in _COST_THROUGH:
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


# Compiles one program for one slice and says what it needs there.

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
  from fairjax.tpu.programs import lower_program, part_of

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
  from fairjax.tpu.programs import state_of
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
  counted = count(text)
  return {'flops': counted.flops, 'bytes': counted.nbytes, 'collectives': counted.collectives,
          'notes': dict(sorted(counted.notes.items()))}


def _batch_size(config: Config, program: str) -> int:
  return {'lm': config.lm.batch_size, 'debias': config.debias.batch_size,
          'sample': min(config.sample.batch_size, config.sample.samples)}[program]


def _key(lowered: Any, where: Slice) -> str:
  """Fingerprint of the program, the slice, the compiler and the counter."""
  digest = hashlib.sha256(f"{importlib.metadata.version('libtpu')}\n{where}\n".encode())
  digest.update(pathlib.Path(__file__).read_bytes())
  digest.update(lowered.as_text().encode())
  return digest.hexdigest()
