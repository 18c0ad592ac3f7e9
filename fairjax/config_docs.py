"""The resolved configuration in words: every field with its value, type and documentation.

The documentation of a field is its comment in `fairjax/config.py`: behind it, or on the lines right
above it.
"""

import ast
import dataclasses
import functools
import inspect
import io
import tokenize
from collections.abc import Iterator
from typing import Any


def describe(config: Any, prefix: str = '') -> list[str]:
  """One line a field: `name = value  (type)  # documentation`."""
  return [f'{name} = {value!r}  ({kind})' + (f'  # {words}' if words else '')
          for name, value, kind, words in described_fields(config, prefix)]


def described_fields(config: Any, prefix: str = '') -> Iterator[tuple[str, Any, str, str]]:
  """Yields (dotted name, value, type, documentation) of every field of a config dataclass."""
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if dataclasses.is_dataclass(value):
      yield from described_fields(value, f'{prefix}{field.name}.')
    else:
      kind = getattr(field.type, '__name__', str(field.type))
      if '[' in str(field.type):  # the name of tuple[int, ...] is only 'tuple'
        kind = str(field.type)
      yield f'{prefix}{field.name}', value, kind, field_docs(type(config)).get(field.name, '')


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
  """Documentation of the fields of a config dataclass and of those that it inherits, by name."""
  found: dict[str, str] = {}
  for base in reversed(cls.__mro__):
    if dataclasses.is_dataclass(base):
      found |= _own_docs(inspect.getsource(base))
  return found


def _own_docs(source: str) -> dict[str, str]:
  """Comments of the annotated names in the source of one class."""
  comments, alone = {}, set()
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type == tokenize.COMMENT:
      line = token.start[0]
      comments[line] = token.string.lstrip('#').strip()
      if not token.line[:token.start[1]].strip():
        alone.add(line)
  found = {}
  for node in ast.parse(source).body[0].body:
    if isinstance(node, ast.AnnAssign):
      first = node.lineno
      while first - 1 in alone:
        first -= 1
      lines = [*range(first, node.lineno), node.end_lineno]
      found[node.target.id] = ' '.join(comments[n] for n in lines if n in comments)
  return found
