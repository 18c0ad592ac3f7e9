"""How often the loops of an HLO program run."""

import re

from fairjax.compile.hlo import Computation, Instruction, Module

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
