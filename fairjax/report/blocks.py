"""A part of the report that Markdown and the page show alike: a heading, lines and tables."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from fairjax.report.markdown import Table, details, escape


@dataclasses.dataclass(frozen=True)
class Block:
  """One part; all texts are plain.

  Attributes:
    heading: of the part.
    tables: titles and tables; an empty title stands for the heading.
    note: a paragraph before the tables.
    lines: a list after the tables.
    collapsed: summary under which Markdown hides the tables; empty: they are shown.
  """

  heading: str
  tables: Sequence[tuple[str, Table]]
  note: str = ''
  lines: Sequence[str] = ()
  collapsed: str = ''

  def markdown(self) -> list[str]:
    """Parts of the Markdown report, the heading first."""
    found = []
    for title, table in self.tables:
      found += [f'{escape(title)}:'] * bool(title) + [table.markdown()]
    if self.collapsed:
      found = [details(self.collapsed, '\n\n'.join(found))]
    lines = '\n'.join(f'- {escape(line)}' for line in self.lines)
    return [part for part in (f'## {escape(self.heading)}', escape(self.note), *found, lines)
            if part]

  def to_page(self) -> dict[str, Any]:
    """JSON types for the page."""
    return {'heading': self.heading, 'note': self.note, 'lines': list(self.lines),
            'tables': [table.to_dict(title or self.heading) for title, table in self.tables]}
