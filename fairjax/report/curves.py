"""Training curves of a run for the page: the loss by step, and where it ended."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.report.markdown import Table, number

MOST_POINTS = 240  # of one line
_KINDS = ('train', 'valid')


def curve_parts(
  curves: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
) -> list[dict[str, Any]]:
  """One entry a stage that has losses, for the page.

  Args:
    curves: stage -> run -> lines of its `metrics.jsonl`.

  Returns:
    `stage`, `note`, `table` (`Table.to_dict`) and `runs`: `name`, `train` and `valid`, lists of
    (step, loss) by rising step. Values that are not finite are left out and counted in the note.
  """
  parts = []
  for stage, runs in curves.items():
    found, rows, lost, thinned = [], [], 0, False
    for name, lines in runs.items():
      points = {kind: _points(lines, kind) for kind in _KINDS}
      lost += sum('loss' in line for line in lines) - sum(map(len, points.values()))
      if not any(points.values()):
        continue
      thinned |= any(len(p) > MOST_POINTS for p in points.values())
      found.append({'name': name, **{kind: _thin(p) for kind, p in points.items()}})
      rows.append(_row(name, lines, points))
    if found:
      note = f' At most {MOST_POINTS} points of a line are drawn.' * thinned
      note += f' {lost} values are not finite and are left out.' * bool(lost)
      parts.append({'stage': stage, 'note': note.strip(), 'runs': found, 'table': Table(
        ['run', 'steps', 'training loss', 'validation loss', 'validation perplexity'], rows
      ).to_dict(f'Where {stage} ended')})
  return parts


def _points(lines: Sequence[Mapping[str, Any]], kind: str) -> list[tuple[int, float]]:
  return [(line['step'], line['loss']) for line in lines
          if line.get('kind', 'train') == kind and _finite(line.get('loss'))]


def _row(name: str, lines: Sequence[Mapping[str, Any]], points: Mapping[str, list]) -> list[str]:
  """The last numbers of a run."""
  perplexity = [line['perplexity'] for line in lines if _finite(line.get('perplexity'))]
  last = [points[kind][-1][1] if points[kind] else None for kind in _KINDS]
  return [name, f"{max(p[-1][0] for p in points.values() if p):,}", *(number(x, 4) for x in last),
          number(perplexity[-1] if perplexity else None, 2)]


def _thin(points: list[tuple[int, float]]) -> list[list[float]]:
  """At most `MOST_POINTS`, evenly chosen, the first and the last among them."""
  if len(points) > MOST_POINTS:
    points = [points[round(i * (len(points) - 1) / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]
  return [[step, float(f'{loss:.5g}')] for step, loss in points]


def _finite(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
