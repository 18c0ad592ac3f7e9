"""Reads documents from text files: WikiText articles, one document per line, or a TSV column.

Files are UTF-8, plain or gzip (told by their first bytes, not by their name). Nothing is repaired
silently: what is normalised is counted in `counts`, and a file that cannot be read to its end is
an error that names file and line.

Normalised: a carriage return before a line end, NUL characters and a byte order mark are removed;
blank lines are no documents. Kept as they are: all other characters, also those that some
programs take for line ends.
"""

import collections
import glob
import gzip
import io
import os
import pathlib
import re
import zlib
from collections.abc import Iterable, Iterator

from fairjax.errors import UserError, unknown_name

# ` = Title = `; ` = = Section = = ` begins with a second sign.
_TITLE = re.compile(r' ?= (?!=)(?:.*[^= ])? ?= ?')
_BOM = b'\xef\xbb\xbf'


def list_files(patterns: Iterable[str | os.PathLike]) -> list[str]:
  """Files that paths and glob patterns (`*`, `?`, `[...]`, `**`) name, in that order.

  Args:
    patterns: paths, or patterns whose matches are sorted.

  Raises:
    UserError: no pattern, a file that does not exist, a pattern without a match, or a file that is
      named twice.
  """
  files = []
  for pattern in map(os.fspath, patterns):
    if os.path.isfile(pattern):
      found = [pattern]
    elif os.path.isdir(pattern):
      raise UserError(f'{pattern} is a folder: name its files, e.g. {pattern.rstrip("/")}/*.txt')
    elif glob.has_magic(pattern):
      found = sorted(f for f in glob.glob(pattern, recursive=True) if os.path.isfile(f))
      if not found:
        raise UserError(f'no file matches {pattern}')
    else:
      raise UserError(f'file not found: {pattern}')
    files += found
  if not files:
    raise UserError('no file named: give at least one path or pattern')
  for file, count in collections.Counter(os.path.realpath(f) for f in files).items():
    if count > 1:
      raise UserError(f'{file} is named {count} times: its documents would count {count} times')
  return files


def read_documents(
  paths: Iterable[str | os.PathLike], *, layout: str, text_column: int = -1,
  counts: collections.Counter | None = None,
) -> Iterator[str]:
  """Yields the documents of files, in order, as they are read.

  Args:
    paths: files or patterns, see `list_files`.
    layout: what a document is.
      `lines`: a line.
      `tsv`: the column `text_column` of a line; columns are separated by tabs, without quoting.
      `wikitext`: an article of the WikiText files. It begins at a line ` = Title = ` between two
      blank lines (or the borders of the file); its lines are joined by line ends, without blank
      ones and without the spaces around them. Text before the first title is an article too,
      counted as `untitled`.
    text_column: of `tsv`, from 0; negative numbers count from the last column.
    counts: is added to: files, lines, documents, blank_lines, blank_documents,
      carriage_returns, nul_characters, byte_order_marks, untitled.

  Yields:
    Text that is not blank.

  Raises:
    UserError: an unknown layout, or a file that is missing, empty, without a document, not UTF-8,
      cut off (gzip), or has a line with too few columns; with file and line.
  """
  if layout not in _LAYOUTS:
    raise unknown_name('layout', layout, _LAYOUTS)
  counts = collections.Counter() if counts is None else counts
  for path in list_files(paths):
    before = counts['documents']
    for document in _LAYOUTS[layout](path, text_column, counts):
      counts['documents'] += 1
      yield document
    counts['files'] += 1
    if counts['documents'] == before:
      raise UserError(f'{path} holds no document: all of its lines are blank')


def _read_lines(path: str, counts: collections.Counter) -> Iterator[tuple[int, str]]:
  """Numbered lines without their ends."""
  number = 0
  try:
    with _open(path) as file:
      for number, line in enumerate(file, 1):
        if number == 1 and line.startswith(_BOM):
          line = line[len(_BOM):]
          counts['byte_order_marks'] += 1
        line = line.removesuffix(b'\n')
        if line.endswith(b'\r'):
          line = line[:-1]
          counts['carriage_returns'] += 1
        if b'\0' in line:
          counts['nul_characters'] += line.count(b'\0')
          line = line.replace(b'\0', b'')
        yield number, line.decode('utf-8')
  except UnicodeDecodeError as e:
    raise UserError(f'{path}:{number}: not UTF-8 (byte {e.start + 1} of the line is '
                    f'0x{e.object[e.start]:02x}): convert the file, e.g. with iconv') from None
  except EOFError:
    raise UserError(f'{path}:{number + 1}: the gzip file ends here without its end mark: it is '
                    'cut off; fetch it again') from None
  except (zlib.error, gzip.BadGzipFile) as e:
    raise UserError(f'{path}:{number + 1}: the gzip file is damaged ({e}): fetch it again'
                    ) from None
  except OSError as e:
    raise UserError(f'{path}: cannot be read ({e.strerror or e})') from None
  if not number:
    raise UserError(f'{path} is empty')
  counts['lines'] += number


def _open(path: str) -> io.BufferedIOBase:
  """Binary file, decompressed if it is gzip."""
  path = pathlib.Path(path)
  with path.open('rb') as file:
    is_gzip = file.read(2) == b'\x1f\x8b'
  if is_gzip:
    return gzip.open(path, 'rb')
  if path.suffix == '.gz' and path.stat().st_size:
    raise UserError(f'{path}: the name ends in .gz, but the content is not gzip')
  return path.open('rb')


def _lines(path: str, text_column: int, counts: collections.Counter) -> Iterator[str]:
  """One document per line."""
  del text_column
  for _, line in _read_lines(path, counts):
    if line.strip():
      yield line.strip()
    else:
      counts['blank_lines'] += 1


def _tsv(path: str, text_column: int, counts: collections.Counter) -> Iterator[str]:
  """One document per line, in one of its columns."""
  for number, line in _read_lines(path, counts):
    if not line.strip():
      counts['blank_lines'] += 1
      continue
    columns = line.split('\t')
    if not -len(columns) <= text_column < len(columns):
      raise UserError(f'{path}:{number}: {len(columns)} column(s), so none has the number '
                      f'{text_column}: set data.text_column')
    text = columns[text_column].strip()
    if text:
      yield text
    else:
      counts['blank_documents'] += 1


def _wikitext(path: str, text_column: int, counts: collections.Counter) -> Iterator[str]:
  """Articles, each from one title to the next."""
  del text_column
  article, titled, any_title = [], False, False
  previous, pending = '', None  # pending: a possible title, waiting for the line behind it

  def finish():
    if article:
      counts['untitled'] += not titled
      yield '\n'.join(article)

  for _, line in _read_lines(path, counts):
    line = line.rstrip()
    if pending is not None:
      if not line:
        yield from finish()
        article, titled, any_title = [pending], True, True
      else:
        article.append(pending)
      pending = None
    if not line:
      counts['blank_lines'] += 1
    elif not previous and _TITLE.fullmatch(line):
      pending = line.strip()
    else:
      article.append(line.strip())
    previous = line
  if pending is not None:
    yield from finish()
    article, titled, any_title = [pending], True, True
  if article and not any_title:
    raise UserError(f"{path}: no article begins in it (a line ' = Title = ' between blank lines): "
                    "is data.source 'lines' meant?")
  yield from finish()


_LAYOUTS = {'wikitext': _wikitext, 'lines': _lines, 'tsv': _tsv}
