"""Sweeps: the points of a config's `sweep(add)` become commands."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.errors import UserError


def point_label(point: Mapping[str, Any]) -> str:
  """A name of a point for folders and resources, from its values.

  >>> point_label({'attribute': 'country', 'debias.variants': ('embedding:10',)})
  'country-embedding-10'
  """
  words = [str(v) for value in point.values()
           for v in (value if isinstance(value, tuple | list) else (value,))]
  return re.sub(r'[^a-z0-9]+', '-', '-'.join(words).lower()).strip('-')


def override_text(value: Any) -> str:
  """A value as `--config.a.b=TEXT` takes it.

  >>> [override_text(v) for v in (True, 1e-3, 'x', ('a', 'b'))]
  ['true', '0.001', 'x', "('a', 'b')"]
  """
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, tuple | list):
    return repr(tuple(value))
  return str(value)


def expand_sweep(command: Sequence[str], points: Sequence[Mapping[str, Any]]
                 ) -> list[tuple[str, tuple[str, ...]]]:
  """The command of every point: its overrides added, a workdir of its own below the given one.

  Args:
    command: words, with one `--workdir=DIR`.
    points: field -> value, in the order of `add`.

  Returns:
    (label, words) of every point.

  Raises:
    UserError: no points, no workdir, or two points with one label.

  >>> expand_sweep(('run', '--workdir=gs://b/x'), [{'seed': 1}, {'seed': 2}])[1]
  ('2', ('run', '--workdir=gs://b/x/2', '--config.seed=2'))
  """
  if not points:
    raise UserError('the sweep has no points: its sweep(add) never calls add(...)')
  if sum(word.startswith('--workdir=') for word in command) != 1:
    raise UserError('a sweep needs one --workdir=DIR in its command: every point gets a folder '
                    'in it')
  labels = [point_label(point) for point in points]
  twice = sorted({label for label in labels if labels.count(label) > 1})
  if twice or '' in labels:
    raise UserError(f'points of the sweep need names of their own, from their values: {twice}')
  expanded = []
  for label, point in zip(labels, points, strict=True):
    words = [f'{word.rstrip("/")}/{label}' if word.startswith('--workdir=') else word
             for word in command]
    words += [f'--config.{name}={override_text(value)}' for name, value in point.items()]
    expanded.append((label, tuple(words)))
  return expanded
