"""YAML files that people write: every error names file, line and field."""

from collections.abc import Sequence
from typing import Any, NoReturn

import yaml

from fairjax.errors import UserError, unknown_name


class YamlDocument:
  """The content of a YAML file with checked access; a place is a path of keys and indices.

  Raises:
    UserError: the text is not YAML, is no mapping, or gives a field twice.
  """

  def __init__(self, path: str, text: str):
    self.path = path
    try:
      self.root = yaml.compose(text, Loader=yaml.SafeLoader)
      self.content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as e:
      mark = getattr(e, 'problem_mark', None)
      line = f':{mark.line + 1}' if mark else ''
      problem = getattr(e, 'problem', None) or str(e).splitlines()[0]
      raise UserError(f'{path}{line}: not valid YAML: {problem}') from None
    if not isinstance(self.content, dict):
      raise UserError(f'{path}: the file must hold fields, one "name: value" a line')
    self._check_repeated_keys(self.root)

  def get(self, where: Sequence[str | int]) -> Any:
    """The content at a path of keys and indices."""
    node = self.content
    for key in where:
      node = node[key]
    return node

  def text(self, where: Sequence[str | int]) -> str:
    """A string."""
    value = self.get(where)
    if not isinstance(value, str):
      self.fail(where, f'{value!r} is not text: put it in quotes')
    return value

  def phrase(self, where: Sequence[str | int]) -> str:
    """A string of words with single spaces between them."""
    value = self.text(where)
    if not value or value != ' '.join(value.split()):
      self.fail(where, f'{value!r} must be words with single spaces between them, none at the ends')
    return value

  def sequence(self, where: Sequence[str | int]) -> list:
    """A list that is not empty."""
    value = self.get(where)
    if not isinstance(value, list) or not value:
      self.fail(where, 'must be a list with at least one entry')
    return value

  def mapping(self, where: Sequence[str | int]) -> dict:
    """A mapping that is not empty."""
    value = self.get(where)
    if not isinstance(value, dict) or not value:
      self.fail(where, 'must hold fields')
    return value

  def keys(self, mapping: dict, where: Sequence[str | int], known: Sequence[str]) -> None:
    """Refuses fields that nobody reads."""
    for key in mapping:
      if key not in known:
        raise unknown_name('field', str(key), known, where=self.place((*where, key)))

  def fail(self, where: Sequence[str | int], message: str) -> NoReturn:
    """Raises the error of one field."""
    raise UserError(f'{self.place(where)}: {message}')

  def place(self, where: Sequence[str | int]) -> str:
    """`file:line: field` of a path, e.g. `my.yaml:12: values[3].text`."""
    node, field = self.root, ''
    for key in where:
      field += f'[{key}]' if isinstance(key, int) else f'.{key}' if field else str(key)
      if isinstance(node, yaml.SequenceNode):
        node = node.value[key]
      elif isinstance(node, yaml.MappingNode):
        pairs = [(k, v) for k, v in node.value if k.value == str(key)]
        node = pairs[0][1] if pairs else node
    return f'{self.path}:{node.start_mark.line + 1}: {field}'

  def _check_repeated_keys(self, node) -> None:
    """YAML takes the last of two equal keys without a word."""
    if isinstance(node, yaml.MappingNode):
      seen = set()
      for key, value in node.value:
        if key.value in seen:
          line = key.start_mark.line + 1
          raise UserError(f'{self.path}:{line}: field {key.value} is given twice')
        seen.add(key.value)
        self._check_repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
      for item in node.value:
        self._check_repeated_keys(item)
