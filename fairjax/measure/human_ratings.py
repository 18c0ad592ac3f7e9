"""Reads the sheets that came back, and says of every row what became of it."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.errors import UserError
from fairjax.measure.human_export import sheet_name
from fairjax.measure.human_sheets import LABEL, Row, read_sheet, same_text
from fairjax.measure.human_tasks import TASKS, Task

_SHEET = re.compile(rf"([0-9a-f]+)-({'|'.join(TASKS)})-(a\d+)")
_IDENTIFIERS = ('sheet', 'item', LABEL)


@dataclasses.dataclass(frozen=True)
class Ratings:
  """Labels of one task.

  Attributes:
    task: the task.
    labels: item -> annotator -> label; items without any label are absent, annotators in order.
    rows: rows that name an item of the task.
    empty: rows without a label.
    missing: items of the sheets that came back, of which there is no row, as annotator/item.
    absent: annotators of whom no row came back.
  """

  task: Task
  labels: Mapping[str, Mapping[str, str]]
  rows: int
  empty: int
  missing: tuple[str, ...]
  absent: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Returned:
  """All that came back.

  Attributes:
    ratings: task name -> ratings, for every task of the key.
    unknown_items: places of rows whose item is not in the key; they are left out.
    empty_rows: rows without any text.
    other_columns: columns that people added, as file: name; they are not read.
  """

  ratings: Mapping[str, Ratings]
  unknown_items: tuple[str, ...]
  empty_rows: int
  other_columns: tuple[str, ...]


def read_ratings(key: Mapping[str, Any], paths: Sequence[str | os.PathLike]) -> Returned:
  """Reads returned sheets.

  Args:
    key: of the export (`human_export.load_key`).
    paths: the sheets, in any order; several in one file will do.

  Raises:
    UserError: an unreadable file, a row of another export or of somebody else's sheet, an edited
      text, an unknown label (with the allowed ones) or a rating twice; with file and line.
  """
  found: dict[tuple[str, str, str], tuple[str, str]] = {}  # task, item, annotator: label, place
  unknown, others, empty_rows = [], [], 0
  for path in paths:
    rows, columns, empty = read_sheet(path, _IDENTIFIERS)
    shown = {c for row in rows for c in _task_of(key, row)[0].columns}
    others += [f'{path}: {name}' for name in columns if name not in shown]
    empty_rows += empty
    for row in rows:
      task, annotator = _task_of(key, row)
      part, item = key['tasks'][task.name], row.cells['item'].strip()
      if item not in part['items']:
        unknown.append(f'{row.where}: {item!r}')
        continue
      _check_row(row, task, part, item, annotator)
      place = (task.name, item, annotator)
      if place in found:
        raise UserError(f'{row.where}: item {item} was rated by {annotator} already in '
                        f'{found[place][1]}: remove one of the rows')
      found[place] = (_label(row, task, item), row.where)
  ratings = {name: _ratings(key, TASKS[name], found) for name in key['tasks']}
  return Returned(ratings, tuple(unknown), empty_rows, tuple(others))


def _task_of(key: Mapping[str, Any], row: Row) -> tuple[Task, str]:
  """Task and annotator of a row of this export."""
  name = row.cells['sheet'].strip()
  match = _SHEET.fullmatch(name)
  if not match:
    raise UserError(f"{row.where}: sheet is {name!r}: restore the cell from another row of the "
                    'sheet, or remove the row')
  _, task, annotator = match.groups()
  if name != sheet_name(key['export'], task, annotator) or task not in key['tasks']:
    raise UserError(f'{row.where}: sheet {name} is of another export, not of this key '
                    f"({sheet_name(key['export'], '...', '...')})")
  if annotator not in key['annotators']:
    raise UserError(f"{row.where}: the export had no annotator {annotator}, only "
                    f"{key['annotators'][0]} to {key['annotators'][-1]}")
  return TASKS[task], annotator


def _check_row(row: Row, task: Task, part: Mapping[str, Any], item: str, annotator: str) -> None:
  """The item belongs to the annotator, and its texts are as they were."""
  if item not in part['sheets'][annotator]:
    raise UserError(f'{row.where}: item {item} was not given to {annotator}: restore the cells '
                    '"sheet" and "item" of this row')
  for column in task.columns:
    if column not in row.cells:
      raise UserError(f'{row.where}: the column {column} is missing: texts are compared, put it '
                      'back')
    if not same_text(row.cells[column], part['items'][item]['shown'][column]):
      raise UserError(
        f'{row.where}: the {column} of item {item} was edited: it was exported as '
        f"{part['items'][item]['shown'][column][:60]!r} and is {row.cells[column][:60]!r}: restore "
        'it, if what was rated is the exported text')


def _label(row: Row, task: Task, item: str) -> str:
  """The label, '' where the cell is empty; case and white space do not matter."""
  label = row.cells[LABEL].strip().lower()
  if label and label not in task.labels:
    raise UserError(f"{row.where}: label {row.cells[LABEL].strip()!r} of item {item} is not one of "
                    f"{', '.join(task.labels)}: correct it or leave the cell empty")
  return label


def _ratings(
  key: Mapping[str, Any], task: Task, found: Mapping[tuple[str, str, str], tuple[str, str]]
) -> Ratings:
  """Ratings of one task."""
  rows = {(item, who): label for (name, item, who), (label, _) in found.items()
          if name == task.name}
  labels: dict[str, dict[str, str]] = {}
  for (item, who), label in sorted(rows.items()):
    if label:
      labels.setdefault(item, {})[who] = label
  here = {who for _, who in rows}
  return Ratings(
    task=task, labels=labels, rows=len(rows), empty=sum(not label for label in rows.values()),
    missing=tuple(f'{who}/{item}' for who, items in key['tasks'][task.name]['sheets'].items()
                  if who in here for item in items if (item, who) not in rows),
    absent=tuple(who for who, items in key['tasks'][task.name]['sheets'].items()
                 if items and who not in here))
