"""YAML as people write it: text of several lines as a block, numbers in one line."""

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
  """Refuses everything that is not plain data."""

  def ignore_aliases(self, data: Any) -> bool:
    return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
  style = '|' if '\n' in value else None
  return dumper.represent_scalar('tag:yaml.org,2002:str', value, style=style)


def _list(dumper: yaml.SafeDumper, value: list) -> yaml.Node:
  numbers = bool(value) and all(isinstance(v, int) for v in value)
  return dumper.represent_sequence('tag:yaml.org,2002:seq', value, flow_style=numbers)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(list, _list)


def to_yaml(value: Any) -> str:
  r"""The value as YAML, in the order of its keys; `yaml.safe_load` gives it back.

  >>> print(to_yaml({'b': [1, 2], 'a': 'x\ny\n'}), end='')
  b: [1, 2]
  a: |
    x
    y
  """
  return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=96)
