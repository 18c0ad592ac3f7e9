"""Reads the text of optimized HLO, as far as counting needs it.

Works on `jax.stages.Compiled.as_text()` of CPU and TPU programs. A layout such as
`{1,0:T(8,128)S(1)}` names the memory space of an array: S(1) and above are on-chip or host memories
on TPU; none, or S(0), is the device's main memory.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

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
