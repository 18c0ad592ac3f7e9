"""Pieces of Markdown whose contents cannot change the page around them."""

import csv
import dataclasses
import html
import io
import re
from collections.abc import Sequence

from fairjax.measure.human.sheets import neutralise

# Written as character references: Markdown, HTML and automatic links are never built from those.
_SPECIAL = re.compile(
  r'[^\w\s.,:;!?\'"%()+=\u2013\u00b1\u2264-]|_|(?<=www)\.|^\s*(?:[-+=]|\d+(?=[.)](?:\s|$)))',
  re.IGNORECASE)
_CONTROL = re.compile(r'[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]')


def escape(text: str) -> str:
  """Text as one line that Markdown and HTML show as it is.

  Marks, brackets, pipes and link characters become character references, white space one space
  (line breaks are shown as a sign), control and direction characters the replacement character.

  >>> escape('<b>a|b</b>')
  '&#60;b&#62;a&#124;b&#60;&#47;b&#62;'
  """
  text = re.sub(r'\s*\n\s*', ' \u21b5 ', text.replace('\r\n', '\n').replace('\r', '\n'))
  text = _CONTROL.sub('\ufffd', text.replace('\t', ' '))
  text = _SPECIAL.sub(lambda m: ''.join(
    c if c.isspace() or c == '\u21b5' or c == '\ufffd' else f'&#{ord(c)};' for c in m[0]), text)
  return re.sub(r'\s+', ' ', text).strip()


# What our own numbers are made of: no part of Markdown within a cell.
_NUMBERS = re.compile(r'(?:[^\W_]|[\s.,:;%()+=/\u2013\u00b1\u2264-])*')


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of plain texts, for every form of the report.

  Attributes:
    header: `[C]` names of the columns.
    rows: `[R][C]` cells.
    text_columns: how many of the first columns are words; the others align right.
  """

  header: Sequence[str]
  rows: Sequence[Sequence[str]]
  text_columns: int = 1

  def markdown(self) -> str:
    """The table as Markdown; words are escaped, numbers stay readable."""
    def cell(i, text):
      return text if i >= self.text_columns and _NUMBERS.fullmatch(text) else escape(text)

    return table(list(map(escape, self.header)),
                 [[cell(i, text) for i, text in enumerate(row)] for row in self.rows],
                 text_columns=self.text_columns)

  def text(self) -> str:
    """The table in columns of equal width, as it is on a terminal."""
    lines = [[' '.join(cell.split()) for cell in row] for row in (self.header, *self.rows)]
    width = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return '\n'.join('  '.join(
      cell.ljust(w) if i < self.text_columns else cell.rjust(w)
      for i, (cell, w) in enumerate(zip(row, width, strict=True))).rstrip() for row in lines)

  def csv(self) -> str:
    """The table as CSV (RFC 4180, with line feeds); no cell is a formula of a spreadsheet."""
    file = io.StringIO()
    csv.writer(file, lineterminator='\n').writerows(
      map(neutralise, row) for row in (self.header, *self.rows))
    return file.getvalue().removesuffix('\n')

  def _repr_markdown_(self) -> str:
    """What a notebook shows."""
    return self.markdown()

  def to_dict(self, title: str) -> dict[str, object]:
    """JSON types, with a title."""
    return dataclasses.asdict(self) | {'title': title}


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> str:
  """A table; cells are Markdown already. Columns after the first `text_columns` align right."""
  rule = [':--' if i < text_columns else '--:' for i in range(len(header))]
  return '\n'.join('| ' + ' | '.join(row) + ' |' for row in (header, rule, *rows))


def code_block(text: str, language: str = '') -> str:
  """A fenced block, with a fence longer than any in the text."""
  longest = max((len(run) for run in re.findall('`+', text)), default=0)
  fence = '`' * max(3, longest + 1)
  return f'{fence}{language}\n{text}\n{fence}'


def details(summary: str, body: str) -> str:
  """A collapsed part; `summary` is plain text, `body` Markdown."""
  return f'<details>\n<summary>{html.escape(summary)}</summary>\n\n{body}\n\n</details>'


def number(value: float | None, digits: int) -> str:
  """A number with fixed digits; a dash for None."""
  return '\u2013' if value is None else f'{value:.{digits}f}'


def percent_change(value: float | None) -> str:
  """A signed change in percent; a dash for None."""
  return '\u2013' if value is None else f'{value:+.1f}%'
