"""Annotation sheets as CSV files that spreadsheet programs can open and return.

A cell that begins with = + - @, a tab or a line break would be run or mangled by a spreadsheet
program: it gets an apostrophe in front, as does a cell that begins with an apostrophe, so that
taking one away restores every text (`neutralise`, `restore`). Every cell is quoted.

What comes back may have another separator (comma, semicolon or tab), a byte order mark, LF or CRLF
and another order of rows or columns: the header tells them apart.
"""

import csv
import dataclasses
import io
import os
from collections.abc import Iterable, Mapping, Sequence

from fairjax.errors import UserError
from fairjax.inputs import open_input
from fairjax.tables import SEPARATORS, Table

LABEL = 'label'
LONGEST_CELL = 32767  # characters that a cell of a spreadsheet holds
_ACTIVE = ('=', '+', '-', '@', '\t', '\r', '\n', "'")
_BOM = b'\xef\xbb\xbf'


@dataclasses.dataclass(frozen=True)
class Row:
  """One row of a returned sheet: its cells by column name, and its place ("file:line")."""

  cells: Mapping[str, str]
  where: str


def neutralise(cell: str) -> str:
  """A cell that no spreadsheet program takes for a formula.

  >>> neutralise('=1+1'), neutralise("'tis"), neutralise('fine')
  ("'=1+1", "''tis", 'fine')
  """
  return f"'{cell}" if cell.startswith(_ACTIVE) else cell


def restore(cell: str) -> str:
  """The text that `neutralise` made the cell of.

  >>> restore("'=1+1"), restore("''tis"), restore('fine')
  ('=1+1', "'tis", 'fine')
  """
  return cell[1:] if cell[:1] == "'" and cell[1:].startswith(_ACTIVE) else cell


def same_text(cell: str, text: str) -> bool:
  """Whether a returned cell still holds a text.

  Line breaks of any kind are equal, as programs change them in saving; the apostrophe of
  `neutralise` may be missing, as some programs take it for a mark of their own.
  """
  cell, expected = _line_feeds(cell), _line_feeds(text)
  return cell in (expected, _line_feeds(neutralise(text)))


def write_sheet(
  columns: Sequence[str], rows: Iterable[Sequence[str]], *, separator: str = 'comma',
  bom: bool = False,
) -> bytes:
  """A sheet as bytes: UTF-8, CRLF, every cell quoted and neutralised.

  Args:
    columns: names, for the first row.
    rows: as many cells each; line breaks stay inside their quotes.
    separator: 'comma', 'semicolon' (for programs set to a language that writes 1,5) or 'tab'.
    bom: begin with a byte order mark; some programs take the file for Latin-1 without it.

  Raises:
    UserError: a cell is too long for a spreadsheet, holds a NUL or cannot be written in UTF-8.
  """
  text = io.StringIO(newline='')
  writer = csv.writer(text, delimiter=SEPARATORS[separator], quoting=csv.QUOTE_ALL,
                      lineterminator='\r\n')
  writer.writerow(columns)
  for row in rows:
    cells = [neutralise(cell) for cell in row]
    for cell in cells:
      if len(cell) > LONGEST_CELL or '\0' in cell:
        raise UserError(f'a text of {len(cell)} characters, {cell[:40]!r}..., does not fit into a '
                        f'cell of a spreadsheet ({LONGEST_CELL} characters, no NUL): leave its '
                        'record out')
    writer.writerow(cells)
  try:
    return _BOM * bom + text.getvalue().encode('utf-8')
  except UnicodeEncodeError as e:
    raise UserError(f'a text holds {e.object[e.start]!r}, half of a character: mend its record') \
      from None


def read_sheet(path: str | os.PathLike, columns: Sequence[str]) -> tuple[list[Row], list[str], int]:
  """Reads a returned sheet.

  Args:
    path: CSV file in UTF-8, see `fairjax.tables`.
    columns: names that the header must hold, in any order.

  Returns:
    Its rows, the names of further columns (which are not read), and the number of empty rows.

  Raises:
    UserError: no such file, not UTF-8, no or an ambiguous header, a row of another length, or a
      quote that does not close; with file and line.
  """
  with open_input(path, what='annotation sheet') as file:
    table = Table(file, path, columns)
    rows = [Row(cells, where) for cells, where in table]
  return rows, [name for name in table.header if name and name not in columns], table.empty


def _line_feeds(text: str) -> str:
  return text.replace('\r\n', '\n').replace('\r', '\n')
