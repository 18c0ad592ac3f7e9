"""The public interface is that of `tests/golden/interface.txt`: it changes on purpose only.

`FAIRJAX_UPDATE_GOLDEN=1 python -m pytest tests/test_interface.py` writes the file.
"""

import argparse
import inspect
import os
import pathlib

import fairjax
from fairjax.cli.main import make_parser
from fairjax.config import Config
from fairjax.config_io import described_fields

FILE = pathlib.Path(__file__).parent / 'golden' / 'interface.txt'


def verbs(parser, name):
  """A line for every verb: its arguments and options, with what they may be."""
  words = []
  for action in parser._actions:
    if isinstance(action, argparse._SubParsersAction):
      for verb, inner in action.choices.items():
        yield from verbs(inner, f'{name} {verb}')
    elif action.dest not in ('help', 'debug') or name == 'fairjax':
      word = '|'.join(action.option_strings) or action.dest.upper()
      words.append(word + (f"={'|'.join(map(str, action.choices))}" if action.choices else ''))
  yield ' '.join([name, *words])


def test_the_interface_is_that_of_the_file():
  lines = [*sorted(verbs(make_parser(), 'fairjax')), '']
  lines += [f'config.{name}: {kind} = {value!r}' for name, value, kind, _ in
            described_fields(Config())]
  lines.append('')
  for name in fairjax.__all__:
    parameters = inspect.signature(getattr(fairjax, name)).parameters
    lines.append(f"fairjax.{name}({', '.join(parameters)})")
  text = '\n'.join(lines) + '\n'
  if 'FAIRJAX_UPDATE_GOLDEN' in os.environ:
    FILE.write_text(text, encoding='utf-8')
  assert FILE.read_text(encoding='utf-8') == text
