"""Sweeps: the points of a config's `sweep(add)` become commands."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.config import STEP1_FIELDS
from fairjax.errors import UserError

_STEP1_FROM = '--config.step1_from='


def point_label(point: Mapping[str, Any]) -> str:
  """The name of a point's folder, made of its values.

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


def expand_sweep(command: Sequence[str], points: Sequence[Mapping[str, Any]], *,
                 planted: bool = False) -> list[tuple[str, tuple[str, ...]]]:
  """(label, words) of every point: the command with its overrides and a workdir of its own.

  Points that agree in all that step 1 depends on train it once: the first of them does, and the
  others take it from there (`step1_from`), unless the command names a workdir for all. Step 1 of
  planted text depends on the attribute.

  >>> expand_sweep(('run', '--workdir=gs://b/x'), [{'seed': 1}, {'seed': 2}])[1]
  ('2', ('run', '--workdir=gs://b/x/2', '--config.seed=2'))
  >>> expand_sweep(('run', '--workdir=x'), [{'attribute': 'country'}, {'attribute': 'name'}])[1]
  ('name', ('run', '--workdir=x/name', '--config.attribute=name', '--config.step1_from=../country'))
  """
  if not points:
    raise UserError('the sweep has no points: its sweep(add) never calls add(...)')
  if sum(word.startswith('--workdir=') for word in command) != 1:
    raise UserError('a sweep needs one --workdir=DIR in its command: every point gets a folder '
                    'in it')
  labels = [point_label(point) for point in points]
  twice = sorted({label for label in labels if labels.count(label) > 1})
  if twice or '' in labels:
    raise UserError(f'every point of the sweep needs a name of its own, from its values: {twice}')
  shares = command[0] in ('run', 'train', 'mitigations') and not any(
    word.startswith(_STEP1_FROM) for word in command)
  expanded, firsts = [], {}
  for label, point in zip(labels, points, strict=True):
    words = [f'{word.rstrip("/")}/{label}' if word.startswith('--workdir=') else word
             for word in command]
    words += [f'--config.{name}={override_text(value)}' for name, value in point.items()]
    step1 = repr(sorted((name, value) for name, value in point.items() if (
      name.partition('.')[0] in STEP1_FIELDS or (planted and name == 'attribute'))))
    if shares and firsts.setdefault(step1, label) != label:
      words.append(f'{_STEP1_FROM}../{firsts[step1]}')
    own = next(word for word in words if word.startswith('--workdir=')).partition('=')[2]
    expanded.append((label, tuple(w for w in words if w.rstrip('/') != f'{_STEP1_FROM}{own}')))
  return expanded
