"""Objects that a notebook shows as what they are: a figure, Markdown, one line of progress."""

import html
import os
import pathlib
import struct
import time
from collections.abc import Sequence
from typing import Any

_DPI = 150  # of the figures' PNG files
_SCREEN = 96  # CSS pixels an inch


class Figure:
  """A figure that was written to a file, shown at the size it was drawn for."""

  def __init__(self, files: Sequence[str | os.PathLike]):
    """Takes what a function of `fairjax.report` returns: the PNG and the SVG file."""
    self.path = next(p for p in map(pathlib.Path, files) if p.suffix == '.png')

  def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
    """The PNG file, and its width in CSS pixels."""
    data = self.path.read_bytes()
    (width,) = struct.unpack('>I', data[16:20])  # of the IHDR chunk, the first one
    return data, {'width': round(width * _SCREEN / _DPI)}

  def __repr__(self) -> str:
    return f'Figure({str(self.path)!r})'


class Words:
  """Paragraphs of Markdown."""

  def __init__(self, *paragraphs: str):
    """Takes Markdown; texts of others must be escaped already."""
    self.text = '\n\n'.join(paragraphs)

  def _repr_markdown_(self) -> str:
    return self.text

  def __repr__(self) -> str:
    return self.text


class Progress:
  """Takes the lines of a long job; shows the newest one, and all of them when it is unfolded.

  Args:
    title: what is being done.
  """

  def __init__(self, title: str):
    self._title, self._start = title, time.monotonic()
    self._lines: list[str] = []
    self._handle: Any = None

  def __call__(self, line: str) -> None:
    """Adds a line, with the seconds since the beginning."""
    from IPython.display import display
    self._lines.append(f'{time.monotonic() - self._start:6.1f} s  {line}')
    if self._handle is None:
      self._handle = display(self, display_id=True)
    else:
      self._handle.update(self)

  def _repr_html_(self) -> str:
    newest = html.escape(self._lines[-1][:110].strip()) if self._lines else ''
    lines = html.escape('\n'.join(self._lines))
    return (f'<details><summary><b>{html.escape(self._title)}</b> <small>{newest}</small></summary>'
            f'<pre style="white-space: pre-wrap; font-size: 85%">{lines}</pre></details>')

  def __repr__(self) -> str:
    return '\n'.join([self._title, *self._lines])
