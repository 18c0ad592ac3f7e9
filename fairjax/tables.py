"""Rows of structured text: JSON lines, a JSON array, CSV or TSV with a header, by content; lists.

CSV is that of RFC 4180, in the ways in which programs write it: comma, semicolon or tab between the
cells, LF, CRLF or CR at the ends, a line `sep=;` on top. pandas would read all of it, but costs a
second to import and guesses types, so that a value `NA` or `007` is lost.
"""

import collections
import contextlib
import csv
import functools
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from fairjax.errors import UserError, first_line, unknown_name
from fairjax.inputs import (
  decode,
  is_whole,
  not_utf8,
  open_input,
  read_text,
  replace_broken,
  seekable,
)

SEPARATORS = {'comma': ',', 'semicolon': ';', 'tab': '\t'}
_SEP_LINE = re.compile(r'"?sep=([,;\t])"?[\r\n]*', re.IGNORECASE)
_ARRAY = re.compile(rb'\s*\[\s*[{\]]')
_BEGIN = 1 << 17  # bytes that show the form
_LONGEST_CELL = 1 << 27
_BLOCK = 1 << 16  # bytes whose lines are read together
_BROKEN = re.compile(rb'\\u(0000|[dD][89a-fA-F])')  # escapes of NUL and of halves of characters
_decoder = msgspec.json.Decoder()


def read_rows(
  file: io.BufferedReader, path: str | os.PathLike, columns: Sequence[str], *,
  unquoted_tabs: bool = False, convert: Callable[[dict[str, str], str], Any] | None = None,
  rename: 'Rename | None' = None, repair: bool | None = None,
  counts: collections.Counter | None = None, check: bool = True,
  blank: str = 'rows of blank cells, left out', decoder: msgspec.json.Decoder | None = None,
  option: str = '',
) -> Iterator[tuple[Any, str]]:
  """Yields (row, place) of JSON lines, of a JSON array or of a table with a header."""
  # A table must hold `columns` once `rename` has renamed its own; its cells are texts, `convert`
  # makes a row of them and their place. JSON gives what it holds. `repair`: see `whole_row`, which
  # is left to the caller without `check`. `counts` gets what was changed, and as `blank` the rows
  # of a table without a text. `decoder` makes rows of JSON lines; a line that it refuses becomes
  # the value that it holds. `option` is what names another column.
  begin = file.peek(_BEGIN)
  whole = (functools.partial(whole_row, repair=repair, counts=counts) if check
           else lambda row, where: row)
  hint = ' (or each line is a JSON object' + '; --columns takes other names' * (
    rename is not None) + f'; {option}=NAME takes another column' * bool(option) + ')'
  rename = Rename({}) if rename is None else rename
  if not _ARRAY.match(begin) and (not begin.strip() or begin.lstrip()[:1] in b'{['):
    rows = _lines(file, path, whole, decoder or _decoder)
    return ((rename(row), where) for row, where in rows) if rename else rows
  if _ARRAY.match(begin):
    rows = ((rename(row), where) for row, where in _entries(decode(file.read(), path), path))
  else:
    rows = ((rename(cells), where) for cells, where in Table(
      file, path, [rename.theirs(name) for name in columns], unquoted_tabs=unquoted_tabs,
      hint=hint, counts=counts, blank=blank))
    if convert is not None:
      rows = ((convert(cells, where), where) for cells, where in rows)
  return ((whole(row, where), where) for row, where in rows)


class Rename:
  """Gives columns of other people's rows our names; remembers what it met."""

  def __init__(self, columns: Mapping[str, str]):
    """`columns`: their name -> ours. `UserError` where two of theirs get one name."""
    self._columns, self._ours = dict(columns), {ours: theirs for theirs, ours in columns.items()}
    if len(self._ours) < len(columns):
      raise UserError(f'two columns get one name: {", ".join(map("=".join, columns.items()))}')
    self.missing = dict(columns)  # those that no row had so far
    self.replaced: collections.Counter[str] = collections.Counter()  # rows by our names

  def __bool__(self) -> bool:
    return bool(self._columns)

  def theirs(self, name: str) -> str:
    """Their name of a column of ours."""
    return self._ours.get(name, name)

  def __call__(self, row: Any) -> Any:
    """The row with our names; a column that has such a name already gives way, counted."""
    if not self._columns or not isinstance(row, dict):
      return row
    found = {ours: row[theirs] for theirs, ours in self._columns.items() if theirs in row}
    if self.missing:
      self.missing = {t: o for t, o in self.missing.items() if t not in row}
    rest = {name: value for name, value in row.items() if name not in self._columns}
    self.replaced.update(name for name in rest if name in found)
    return rest | found


def whole_row(row: Any, where: str, *, repair: bool | None = None,
              counts: collections.Counter | None = None) -> Any:
  """A row without halves of characters and NUL; `repair` replaces them (None: no option does)."""
  if is_whole(row):
    return row
  fields = row if isinstance(row, dict) else {}
  broken = [name for name, value in fields.items() if not is_whole(name) or not is_whole(value)]
  if not repair:
    what = f'field {ascii(broken[0])}' if broken else 'the row'
    hint = '' if repair is None else ', or replace such characters with --repair'
    raise UserError(
      f'{where}: {what} holds half a character (a lone surrogate) or NUL: fix it{hint}')
  if counts is not None:
    counts['fields with half a character or NUL, replaced by U+FFFD'] += len(broken) or 1
  return replace_broken(row)


def check_distinct(columns: Sequence[str], where: str | os.PathLike) -> None:
  """Raises `UserError` where two columns have one name: the second would replace the first."""
  twice = [n for n in dict.fromkeys(columns) if n and columns.count(n) > 1]
  if twice:
    raise UserError(f"{where}: two columns {', '.join(twice)}: keep one")


def read_header(begin: bytes, *, rows: int, pattern: str = r'[\w.]*') -> list[str]:
  """Names of the columns if the first lines look like a table: as many cells in each row."""
  text = begin.decode('utf-8', 'ignore')
  for separator in SEPARATORS.values():
    reader = csv.reader(io.StringIO(text, newline=''), delimiter=separator, strict=True)
    try:
      found = [cells for cells in itertools.islice(reader, rows) if cells]
    except csv.Error:
      continue
    names = [name.strip() for name in found[0]] if found else []
    if len(found) > 1 and len(names) > 1 and all(re.fullmatch(pattern, n) for n in names) and all(
        len(cells) == len(names) for cells in found[:-1]):
      return names
  return []


def arrow() -> Any:
  """The modules `pyarrow` and `pyarrow.parquet`."""
  try:
    import pyarrow
    import pyarrow.parquet
  except ImportError:
    raise UserError('Parquet and data frames need pyarrow, which is not installed: pip install '
                    "-e '.[parquet]' in fairjax's folder, or use .jsonl") from None
  return pyarrow


def arrow_table(data: Any) -> Any | None:
  """The Arrow table of a data frame (pandas, Polars) or of Arrow data; None of other things."""
  try:
    if hasattr(data, '__arrow_c_stream__'):
      return arrow().table(data)
    if hasattr(data, '__dataframe__'):
      arrow()
      from pyarrow.interchange import from_dataframe
      return from_dataframe(data)
  except (ImportError, OverflowError, TypeError, ValueError, arrow().ArrowException) as e:
    raise UserError(f'the data frame cannot become an Arrow table ({e}): give each column a name '
                    'of its own and values of one type, or the rows as mappings (pandas: '
                    ".to_dict('records'))") from None
  return None


@contextlib.contextmanager
def open_parquet(file: io.BufferedReader, path: str | os.PathLike) -> Iterator[Any]:
  """The `ParquetFile` in a file of `open_input`, which may be compressed."""
  pa = arrow()
  try:
    with seekable(file) as whole, pa.parquet.ParquetFile(
        whole, page_checksum_verification=True) as opened:
      check_distinct(opened.schema_arrow.names, path)
      yield opened
  except (pa.ArrowException, OSError) as e:
    raise UserError(f'{path}: cannot be read as Parquet ({first_line(e)}): copy the file '
                    'again, or make it anew') from None


def parquet_texts(
  file: io.BufferedReader, path: str | os.PathLike, column: str, *, option: str,
) -> Iterator[tuple[Any, str]]:
  """Yields (value, "file, row N") of one column; texts may be bytes, perhaps not in UTF-8."""
  with open_parquet(file, path) as opened:
    if column not in opened.schema_arrow.names:
      raise unknown_name('column', column, opened.schema_arrow.names,
                         where=f'{os.fspath(path)} ({option})')
    number = 0
    for batch in opened.iter_batches(columns=[column]):
      values = batch.column(0)
      try:
        values = values.to_pylist()
      except UnicodeDecodeError:
        values = values.cast(arrow().large_string()).cast(arrow().large_binary()).to_pylist()
      for value in values:
        number += 1
        yield value, f'{path}, row {number}'


def parquet_rows(
  file: io.BufferedReader, path: str | os.PathLike) -> Iterator[tuple[dict[str, Any], str]]:
  """Yields (row, "file, row N") of all columns."""
  with open_parquet(file, path) as opened:
    number = 0
    for batch in opened.iter_batches():
      for row in batch.to_pylist():
        number += 1
        yield row, f'{path}, row {number}'


def parse_json(line: bytes | str, where: str, decoder: msgspec.json.Decoder = _decoder) -> Any:
  """The value of a line of JSON."""
  try:
    return decoder.decode(line)
  except (msgspec.MsgspecError, ValueError, RecursionError):
    pass  # Python's reader says what is wrong, and takes NaN and halves of characters
  try:
    return json.loads(line if isinstance(line, str) else line.decode('utf-8'))
  except UnicodeDecodeError as e:
    raise UserError(f'{where}: {not_utf8(e)}: convert the file') from None
  except (ValueError, RecursionError) as e:
    raise UserError(f'{where}: not JSON ({e}): fix or remove the line') from None


def _lines(file: io.BufferedReader, path: str | os.PathLike, whole: Callable[[Any, str], Any],
           decoder: msgspec.json.Decoder) -> Iterator[tuple[Any, str]]:
  """Values of the lines that are not empty."""
  read = 0
  for lines in _blocks(file):
    places = [f'{path}:{number}' for number in range(read + 1, read + 1 + len(lines))]
    read += len(lines)
    rows = None
    if not _may_be_broken(b''.join(lines)):
      with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
        rows = [*map(decoder.decode, lines)]  # several lines at once take half the time
    if rows is not None:
      yield from zip(rows, places, strict=True)
      continue
    for line, where in zip(lines, places, strict=True):
      if line.strip():
        broken = _may_be_broken(line)
        value = parse_json(line, where, _decoder if broken else decoder)
        yield (whole(value, where) if broken else value), where


def _blocks(file: io.BufferedReader) -> Iterator[list[bytes]]:
  """Lists of lines, of `_BLOCK` bytes or little more; an error comes after the lines before it."""
  lines: list[bytes] = []
  size = 0
  try:
    for line in file:
      lines.append(line)
      size += len(line)
      if size >= _BLOCK:
        yield lines
        lines, size = [], 0
  except (OSError, UserError):
    yield lines
    raise
  yield lines


def _may_be_broken(lines: bytes) -> bool:
  """Whether lines of JSON may hold half a character or NUL, or are not UTF-8."""
  # A decoder of some fields does not check the bytes of the others. JSON in UTF-8 holds a half or
  # NUL only as an escape; a search for one byte spares most lines the slower pattern.
  if not lines.isascii():
    try:
      lines.decode('utf-8')
    except UnicodeDecodeError:
      return True
  return b'\\' in lines and _BROKEN.search(lines) is not None


def _entries(text: str, path: str | os.PathLike) -> list[tuple[Any, str]]:
  """Entries of a JSON array, with their places."""
  try:
    return [(entry, f'{path}, entry {i}') for i, entry in enumerate(json.loads(text), 1)]
  except json.JSONDecodeError as e:
    raise UserError(f'{path}:{e.lineno}: not a JSON array ({e.msg}): fix the file') from None
  except (ValueError, RecursionError) as e:  # a number of too many digits, too deep
    raise UserError(f'{path}: not a JSON array ({e}): fix the file') from None


def read_table(
  path: str | os.PathLike, columns: Sequence[str], *, what: str = 'table',
  names: Sequence[str] = (), unquoted_tabs: bool = False,
) -> Iterator[tuple[dict[str, str], str]]:
  """Yields (column -> cell, "file:line") of the rows of a CSV or TSV file; see `Table`."""
  with open_input(path, what=what) as file:
    rows = ((whole_row(row, where), where) for row, where in Table(
      file, path, columns, names=names, unquoted_tabs=unquoted_tabs))
    first = next(rows, None)
    if first is None:
      raise UserError(f'{path} holds no row' + ('' if names else ' below its header'))
    yield first
    yield from rows


def read_list(path: str | os.PathLike, what: str) -> list[tuple[Any, str]]:
  """Entries of a JSON list, or the lines of a text file without comments (#), with their places."""
  text = read_text(path, what=what)
  if text.lstrip().startswith('['):
    entries = _entries(text, path)
  else:
    entries = [(line.strip(), f'{path}:{i}') for i, line in enumerate(text.split('\n'), 1)
               if line.strip() and not line.lstrip().startswith('#')]
  if not entries:
    raise UserError(f'{path}: {what}: the list is empty')
  return [(whole_row(entry, where), where) for entry, where in entries]


class Table:
  """A table as text: iterating yields (column -> cell, "file:line") of the rows that are not empty.

  Args:
    file: of `open_input`.
    path: for messages.
    columns: that the header must hold, in any order. Columns without a name are not read.
    names: of the columns by tabs of a file without a header; more cells are not read.
    unquoted_tabs: in a file with tabs a quote is a character like others, as GLUE, STS-B and
      Bias-in-Bios write theirs.
    fill: cells that a row lacks at its end are empty.
    hint: what else is read, for the message about the header.
    counts: gets as `blank` the rows that are empty.
  """

  def __init__(self, file: io.BufferedReader, path: str | os.PathLike, columns: Sequence[str], *,
               names: Sequence[str] = (), unquoted_tabs: bool = False, fill: bool = False,
               hint: str = '', counts: collections.Counter | None = None, blank: str = ''):
    self._path, self._file, self._number = path, file, 0
    self._fill, self._blank = fill, blank
    self._counts = collections.Counter[str]() if counts is None else counts
    csv.field_size_limit(_LONGEST_CELL)
    lines = self._lines()
    first = next(lines, '')
    named = _SEP_LINE.fullmatch(first)
    if named:
      first = next(lines, '')
    self._start = self._number
    found = {}
    for separator in (named[1],) if named else SEPARATORS.values():
      try:
        cells = next(csv.reader([first], delimiter=separator, quoting=_quoting(
          separator, unquoted_tabs)), [])
      except csv.Error:
        continue
      found[separator] = [name.strip() for name in cells]
    missing = {s: [name for name in columns if name not in found[s]] for s in found}
    separator = min(found, key=lambda s: (len(missing[s]), -len(found[s])))
    self.header = found[separator]
    self._headerless = bool(names) and bool(missing[separator])
    if self._headerless:
      separator, self.header, lines = '\t', list(names), itertools.chain([first], lines)
      self._start -= 1
    elif missing[separator] or sum(not missing[s] and len(found[s]) > 1 for s in found) > 1:
      why = f"no column {', '.join(map(repr, missing[separator]))}" if missing[
        separator] else 'two separators are possible'
      raise UserError(
        f'{path}:{max(self._start, 1)}: {why}: the header must name the columns '
        f"{', '.join(columns)}, separated by one of comma, semicolon and tab{hint}; this line is "
        f'{_shown(first)}')
    check_distinct(self.header, f'{path}:{self._start}')
    self._reader = csv.reader(lines, delimiter=separator, strict=True,
                              quoting=_quoting(separator, unquoted_tabs))

  def __iter__(self) -> Iterator[tuple[dict[str, str], str]]:
    start = self._start + 1
    try:
      for cells in self._reader:
        where, start = f'{self._path}:{start}', self._number + 1
        if not any(cell.strip() for cell in cells):
          self._counts[self._blank] += 1
          continue
        if self._headerless:
          if len(cells) < len(self.header):
            raise UserError(f'{where}: {len(cells)} columns, not {", ".join(self.header)} '
                            'with tabs between')
          del cells[len(self.header):]
        if self._fill:
          cells += [''] * (len(self.header) - len(cells))
        if len(cells) != len(self.header):
          raise UserError(f'{where}: {len(cells)} cells where the header has {len(self.header)}: '
                          'write the table again, with quotes around texts')
        row = dict(zip(self.header, cells, strict=True))
        row.pop('', None)
        yield row, where
    except csv.Error as e:
      raise UserError(f'{self._path}:{start}: not CSV ({e}): write the table again, with quotes '
                      'around texts and each quote in them doubled') from None

  def _lines(self) -> Iterator[str]:
    """Lines with their ends; a CR alone is one too."""
    for line in self._file:
      self._number += 1
      text = decode(line, self._path, self._number)
      if '\r' in text[:-1]:
        yield from io.StringIO(text, newline='')
      else:
        yield text


def _quoting(separator: str, unquoted_tabs: bool) -> Literal[0, 3]:
  return csv.QUOTE_NONE if separator == '\t' and unquoted_tabs else csv.QUOTE_MINIMAL


def _shown(line: str) -> str:
  line = line.rstrip('\r\n')
  return repr(line if len(line) <= 60 else f'{line[:60]}...')
