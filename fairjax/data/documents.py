"""Reads documents from files: WikiText articles, lines, TSV columns, news crawls, rows of records.

Files are UTF-8, plain or compressed (see `fairjax.inputs`). What is normalised is counted, and a
file that cannot be read to its end is an error with file and line (docs/corpora.md has the list).
White space at both ends of a document (of a line in `wikitext` and `newscrawl_sentences`) is
removed without a count, as no word depends on it; all other characters stay as they are.
"""

import base64
import collections
import dataclasses
import functools
import glob
import importlib.resources
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from fairjax.config import SHIPPED
from fairjax.errors import UserError
from fairjax.inputs import is_pipe, not_utf8, open_input
from fairjax.tables import parquet_texts, read_header, read_rows

# ` = Title = `; ` = = Section = = ` begins with a second sign.
_TITLE = re.compile(r' ?= (?!=)(?:.*[^= ])? ?= ?')
_REPLACEMENT, _BOM = '\ufffd', '\ufeff'
_TEXT_FIELD = 'data.text_field'  # names the column of the texts
MAX_LINE_BYTES = 1 << 24
_LOOKED_AT = 5  # first lines, which say whether a file is text
# Names of columns of text, the likeliest first.
_TEXT_NAMES = (
  'text', 'content', 'sentence', 'document', 'body', 'article', 'review', 'comment', 'tweet',
  'abstract', 'story', 'message', 'post', 'continuation', 'prompt', 'title')


def list_files(patterns: Iterable[str | os.PathLike]) -> list[str]:
  """Files that paths and patterns name, in that order; the matches of a pattern are sorted."""
  files = []
  for pattern in (os.path.expanduser(os.fspath(pattern)) for pattern in patterns):
    if pattern.startswith(SHIPPED):
      assets = importlib.resources.files('fairjax.data') / 'assets'
      pattern = str(assets / pattern.removeprefix(SHIPPED))
    if os.path.isfile(pattern) or is_pipe(pattern):
      found = [pattern]
    elif os.path.isdir(pattern):
      raise UserError(f'{pattern} is a folder: name its files, e.g. {pattern.rstrip("/")}/*.txt')
    elif glob.has_magic(pattern):
      found = sorted(f for f in glob.glob(pattern, recursive=True) if not os.path.isdir(f))
      if not found:
        raise UserError(f'no file matches {pattern}')
      if (lost := next((f for f in found if not os.path.exists(f)), None)) is not None:
        raise UserError(f'{lost} is a link to a file that is not there: restore it or remove the '
                        'link')
    else:
      raise UserError(f'file not found: {pattern}')
    files += found
  if not files:
    raise UserError('no file named: give at least one path or pattern')
  for file, count in collections.Counter(os.path.realpath(f) for f in files).items():
    if count > 1:
      raise UserError(f'{file} is named {count} times: its documents would count {count} times')
  return files


@dataclasses.dataclass(frozen=True)
class _Options:
  text_column: int
  text_field: str
  plain: bool  # a line is text
  lines_per_document: int
  broken: str
  max_line_bytes: int
  report: Callable[[str], None] | None
  blank_lines: bool

  def broken_line(self, counts: collections.Counter, message: str, hint: str) -> None:
    """Counts and leaves out a line, or raises."""
    if self.report:
      self.report(message)
    elif self.broken != 'skip':
      skipping = ', or leave such lines out, counted: data.broken=skip' * (self.broken == 'error')
      raise UserError(f'{message}: {hint}{skipping}')
    counts['broken_lines'] += 1


def read_documents(
  paths: Iterable[str | os.PathLike], *, layout: str, text_column: int = -1,
  text_field: str = 'text', lines_per_document: int = 1, broken: str = '',
  max_line_bytes: int = MAX_LINE_BYTES,
  report: Callable[[str], None] | None = None, counts: collections.Counter | None = None,
  blank_lines: bool = False,
) -> Iterator[str]:
  """Yields the documents of files, in order, as they are read: texts that are not blank.

  `_LAYOUTS` describes the layouts. A line that is not UTF-8, too long, has too few columns or whose
  base64 or JSON is wrong is an error, or left out and counted with `broken='skip'` (not in
  `wikitext`), which the error names with `broken='error'`; `report` gets the message about each
  such line instead. `counts` is added to: files, lines, documents, blank_lines, blank_documents,
  carriage_returns, nul_characters, byte_order_marks, replacement_characters, untitled,
  broken_lines.
  """
  options = _Options(
    text_column, text_field, layout in ('lines', 'newscrawl_sentences'), lines_per_document,
    '' if layout == 'wikitext' else broken, max_line_bytes, report, blank_lines)
  counts = collections.Counter() if counts is None else counts
  for path in list_files(paths):
    before, broken_before = counts['documents'], counts['broken_lines']
    for document in _LAYOUTS[layout](path, options, counts):
      counts['documents'] += 1
      if _REPLACEMENT in document:
        counts['replacement_characters'] += document.count(_REPLACEMENT)
      yield document
    counts['files'] += 1
    if counts['documents'] == before:
      raise UserError(f'{path} holds no document: all of its lines are blank'
                      + (' or broken' if counts['broken_lines'] > broken_before else ''))


def _read_lines(
  path: str, options: _Options, counts: collections.Counter) -> Iterator[tuple[int, str]]:
  """Numbered lines without their ends."""
  number, inside = 0, False
  with open_input(path, counts=counts) as file:
    if structured := options.plain and _structure(file.peek()):
      raise UserError(f'{path} {structured}')
    try:
      for number, line in enumerate(_bounded_lines(file, options.max_line_bytes), 1):
        if line is None:
          options.broken_line(
            counts, f'{path}:{number}: a line of more than {options.max_line_bytes:,} bytes',
            'is this a text file? If so, raise data.max_line_bytes')
          continue
        line = line.removesuffix(b'\n')
        if line.endswith(b'\r'):
          line = line[:-1]
          counts['carriage_returns'] += 1
        if number == 1:
          inside = b'\r' in line
        if b'\0' in line:
          counts['nul_characters'] += line.count(b'\0')
          line = line.replace(b'\0', b'')
        try:
          text = line.decode('utf-8')
        except UnicodeDecodeError as e:
          options.broken_line(counts, f'{path}:{number}: {not_utf8(e)}',
                              'convert the file, e.g. with iconv')
          continue
        if text.startswith(_BOM):  # of a file that was appended to another
          counts['byte_order_marks'] += 1
          text = text[1:]
        yield number, text
    except OSError as e:
      raise UserError(f'{path}: cannot be read ({e.strerror or e})') from None
  if not number:
    raise UserError(f'{path} is empty')
  if number == 1 and inside:
    raise UserError(f"{path} is one line with carriage returns in it: end its lines with a line "
                    "feed, e.g. with tr '\\r' '\\n'")
  counts['lines'] += number


def _structure(begin: bytes) -> str | None:
  """Format of the first lines, and the layout that reads it; None for plain text."""
  lines = [line.strip() for line in begin.split(b'\n')[:-1] or [begin] if line.strip()][:_LOOKED_AT]
  if lines and all(line.startswith(b'{') and line.endswith(b'}') for line in lines):
    try:
      rows = [json.loads(line) for line in lines]
    except ValueError:
      return None
    return _use('JSON lines', 'jsonl', list(rows[0]))
  if re.match(rb'\s*\[\s*\{\s*"', begin):
    first = begin.partition(b'}')[0].decode('utf-8', 'replace')
    return _use('a JSON array', 'jsonl', re.findall(r'"([^"]*)"\s*:', first))
  header = read_header(begin, rows=_LOOKED_AT)
  if {'label', 'id', *_TEXT_NAMES} & {name.lower() for name in header}:
    return _use('a table with a header', 'csv', header)
  return None


def _use(what: str, layout: str, fields: list[str]) -> str:
  known = {name.lower(): name for name in fields}
  field = next((known[name] for name in _TEXT_NAMES if name in known), 'NAME')
  return (f'is {what} (fields {", ".join(fields[:10])}), not lines of text: use layout={layout} '
          f'(data.source={layout}) and data.text_field={field}')


def _bounded_lines(file: BinaryIO, most: int) -> Iterator[bytes | None]:
  """Lines with their ends; None for one that is longer than `most` bytes without its end."""
  for line in iter(functools.partial(file.readline, most + 2), b''):
    if len(line) > most and len(line.rstrip(b'\r\n')) > most:
      while line and not line.endswith(b'\n'):  # to its end, a piece at a time
        line = file.readline(1 << 20)
      yield None
    else:
      yield line


def _filled_lines(
  path: str, options: _Options, counts: collections.Counter) -> Iterator[tuple[int, str]]:
  """Numbered lines that are not blank."""
  for number, line in _read_lines(path, options, counts):
    if line.strip():
      yield number, line
    else:
      counts['blank_lines'] += 1


def _lines(path: str, options: _Options, counts: collections.Counter) -> Iterator[str]:
  """One document per line."""
  return (line.strip() for _, line in _filled_lines(path, options, counts))


def _sentences(path: str, options: _Options, counts: collections.Counter) -> Iterator[str]:
  """So many lines per document; what the file ends with may be less."""
  lines = _lines(path, options, counts)
  while document := list(itertools.islice(lines, options.lines_per_document)):
    yield '\n'.join(document)


def _rows(path: str, options: _Options, counts: collections.Counter) -> Iterator[str]:
  """The texts of rows with fields."""
  field, marks = options.text_field, collections.Counter[str]()
  with open_input(path, parquet=True, counts=marks) as file:
    begin = file.peek()
    by_line = begin.lstrip().startswith(b'{')  # these lines are counted where they are read
    rows: Iterator[tuple[Any, str]]
    if begin.startswith(b'PAR1'):
      rows = (({field: text}, where) for text, where in parquet_texts(
        file, path, field, option=_TEXT_FIELD))
    elif by_line:
      rows = _json_lines(path, options, counts)
    else:
      rows = read_rows(file, path, (field,), check=False, counts=marks, blank='blank_lines',
                       option=_TEXT_FIELD)
    for row, where in rows:
      counts['lines'] += not by_line
      try:
        text = _normalised(_text_of(row, field), counts).strip()
        text.encode('utf-8')
      except UnicodeDecodeError as e:
        options.broken_line(counts, f'{where}: {not_utf8(e, "text")}', 'repair the row')
      except UnicodeEncodeError:
        options.broken_line(counts, f'{where}: the text holds half a character (a lone surrogate)',
                            'repair the row')
      except ValueError as e:
        options.broken_line(counts, f'{where}: {e}', 'set data.text_field')
      else:
        if text:
          yield text
        else:
          counts['blank_documents'] += 1
  if not by_line:
    counts.update(marks)
    counts['lines'] += marks['blank_lines']


def _text_of(row: Any, field: str) -> str:
  """The text of a row, '' for null; `ValueError` if it has none."""
  if not isinstance(row, dict) or field not in row:
    names = f' (it has {", ".join(row)})' if isinstance(row, dict) else ''
    raise ValueError(f"the row has no field '{field}'{names}")
  text = row[field]
  if isinstance(text, bytes):
    return text.decode('utf-8')
  if not isinstance(text, str | None):
    raise ValueError(f"'{field}' is no text but {type(text).__name__}")
  return text or ''


def _normalised(text: str, counts: collections.Counter) -> str:
  """A text without NUL and carriage returns before line ends, which are counted."""
  for name, characters, meant in (('nul_characters', '\0', ''),
                                  ('carriage_returns', '\r\n', '\n')):
    if characters in text:
      counts[name] += text.count(characters)
      text = text.replace(characters, meant)
  return text


def _json_lines(path: str, options: _Options, counts: collections.Counter
                ) -> Iterator[tuple[Any, str]]:
  """Values of lines; those that are not JSON are counted and left out, or an error."""
  for number, line in _filled_lines(path, options, counts):
    try:
      yield json.loads(line), f'{path}:{number}'
    except (ValueError, RecursionError) as e:
      options.broken_line(counts, f'{path}:{number}: not JSON ({e})', 'fix the line')


def _newscrawl(path: str, options: _Options, counts: collections.Counter) -> Iterator[str]:
  """One document per line, in base64 in one of its columns."""
  def decode(column):
    return _normalised(base64.b64decode(column, validate=True).decode('utf-8'), counts)

  return _columns(path, options, counts, decode)


def _columns(
  path: str, options: _Options, counts: collections.Counter, decode: Callable[[str], str] = str,
) -> Iterator[str]:
  """Decoded texts of the chosen column."""
  for number, line in _filled_lines(path, options, counts):
    columns, hint = line.split('\t'), 'repair the line'
    try:
      text = decode(columns[options.text_column]).strip()
    except IndexError:
      problem = f'{len(columns)} column(s), so none has the number {options.text_column}'
      hint = 'set data.text_column'
    except UnicodeDecodeError as e:
      problem = not_utf8(e, 'decoded text')
    except ValueError as e:
      problem = f'column {options.text_column} is not base64 ({e})'
    else:
      if text:
        yield text
      else:
        counts['blank_documents'] += 1
      continue
    options.broken_line(counts, f'{path}:{number}: {problem}', hint)


def _wikitext(path: str, options: _Options, counts: collections.Counter) -> Iterator[str]:
  """Articles, each from one title to the next."""
  article, titled, any_title = [], False, False
  previous, pending = '', None  # pending: a possible title, waiting for the next line

  def finish():
    if any(article):
      counts['untitled'] += not titled
      yield '\n'.join(article)

  def begin():  # with the blank line before the title; blank lines at the start are no article
    before = [article.pop()] if article and not article[-1] else []
    return [*([] if any(article) else article), *before, pending]

  lines = (line.rstrip() for _, line in _read_lines(path, options, counts))
  for line in itertools.chain(lines, [None]):  # None: the end
    if pending is not None:
      if not line:
        new = begin()
        yield from finish()
        article, titled, any_title = new, True, True
      else:
        article.append(pending)
      pending = None
    if line is None:
      break
    if not line and options.blank_lines:
      article.append('')
    elif not line:
      counts['blank_lines'] += 1
    elif not previous and _TITLE.fullmatch(line):
      pending = line.strip()
    else:
      article.append(line.strip())
    previous = line
  if any(article) and not any_title:
    raise UserError(f"{path}: no article begins in it (a line ' = Title = ' between blank lines): "
                    "is data.source 'lines' meant?")
  yield from finish()


# What a document is in a layout.
_LAYOUTS = {
  # An article. It begins at a line ` = Title = ` between two blank lines (or the file's borders).
  # Its lines are joined by line ends, without the spaces around them and, unless `blank_lines`,
  # without blank ones. Text before the first title is an article too, counted as `untitled`.
  'wikitext': _wikitext,
  'lines': _lines,  # a line
  'tsv': _columns,  # the column `text_column` of a line, without quoting
  # A line of a news crawl with documents (statmt.org, news-docs.YEAR.en.filtered): date, text split
  # into sentences, text as it was, the latter two in base64. `text_column` 1 gives a sentence a
  # line, 2 (or -1) the text as it was.
  'newscrawl': _newscrawl,
  'newscrawl_sentences': _sentences,  # `lines_per_document` lines of shuffled sentences
  'jsonl': _rows, 'csv': _rows, 'parquet': _rows}  # the field `text_field`, by the file's content


# A random sample of the lines of a corpus that is too large to keep.

def sample_lines(texts: Iterable[str], limit: int, seed: int) -> tuple[list[str], dict[str, int]]:
  """Draws lines uniformly, without replacement, in one pass (Li 1994, "Algorithm L")."""
  rng = np.random.default_rng(seed)
  kept, places = [], []
  characters = read = number = 0
  weight, following = 1.0, 0  # following: index of the next line that enters a full reservoir
  for text in texts:
    number += 1
    characters += len(text)
    for line in text.splitlines(keepends=True):
      if line.isspace():
        continue
      if read < limit:
        kept.append(line)
        places.append(read)
      elif read == following:
        place = int(rng.integers(limit))
        kept[place], places[place] = line, read
      read += 1
      if read >= limit and following < read:
        weight *= float(np.exp(np.log(1.0 - rng.random()) / limit))
        following = read + int(np.log(1.0 - rng.random()) / np.log1p(-weight))
  if not kept:
    raise UserError('no text to train a vocabulary from: the training texts are empty')
  kept = [kept[i] for i in np.argsort(places)]
  return kept, {'texts': number, 'characters': characters, 'lines': read, 'lines_used': len(kept),
                'characters_used': sum(map(len, kept))}


# Splits documents into sentences.

# A sentence ends after its mark and the quotes or brackets that close it, before a space and a
# capital, digit or opening sign. There may be a space before the mark, as in WikiText
# ("the end . The").
_BORDER = re.compile(
  r'(?:[.!?…]["\'”’)\]]*(?: ["”’)](?= ))?)(\s+)(?=["\'“‘(\[]?\s?[^\W_a-zß-öø-ÿ])')
_ABBREVIATION = re.compile(
  r'(?:^|[\s("“\'])(?:Mr|Mrs|Ms|Dr|Prof|Rev|Hon|Gen|Col|Lt|Sgt|Capt|Maj|Gov|Sen|Rep|St|Mt|Ft|No|Nos|'
  r'vs|etc|e\.g|i\.e|cf|al|ca|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|Inc|Ltd|Co|Corp|'
  r'[A-Z](?:\.[A-Z])*) ?\.$')
_REACH = 40
_HEADING = re.compile(r'(=(?: =){0,9}) .* \1')


def split_sentences(document: str) -> list[str]:
  """Sentences of a document, in order; WikiText's headings are left out.

  >>> split_sentences('I met Dr. Hill. "It was fine!" he said. They paid 3.50 to J. Ray.')
  ['I met Dr. Hill.', '"It was fine!" he said.', 'They paid 3.50 to J. Ray.']
  """
  sentences = []
  for line in document.split('\n'):
    line = line.strip()
    if not line or _HEADING.fullmatch(line):
      continue
    start = 0
    for border in _BORDER.finditer(line):
      # No more than what may hold an abbreviation: a line may be a document with thousands of them.
      if not _ABBREVIATION.search(line[max(start, border.start() - _REACH):border.start() + 1]):
        sentences.append(line[start:border.start(1)].strip())
        start = border.end()
    sentences.append(line[start:].strip())
  return [s for s in sentences if s]
