"""Generation records: one JSON object a line, plain (`.jsonl`) or compressed (`.jsonl.gz`).

Records are also read from Parquet, see `fairjax.generate.parquet`.

A record is `{"attribute", "value", "subgroup", "template", "sample", "prefix", "continuation",
"model", "scores"}`. Only `attribute`, `value`, `template`, `prefix` and `continuation` are required
of files that come from elsewhere; other fields are kept as they are.

Files only ever grow. A compressed file is a chain of gzip members, one for each append: what an
interruption leaves unfinished is at the end and is cut off before more is written.
"""

import gzip
import io
import json
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fairjax.errors import UserError

_TEXT_FIELDS = ('attribute', 'value', 'prefix', 'continuation')
REQUIRED_FIELDS = (*_TEXT_FIELDS, 'template')
_OPTIONAL_TEXT = ('subgroup', 'model')
_MOST_SHAPES = 1000
_accepted: set[tuple] = set()  # names and types of fields of records that were checked
_BLOCK_BYTES = 1 << 20


def read_records(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
  """Reads and checks records one by one.

  Args:
    path: `.jsonl`, `.jsonl.gz` (any name ending in `.gz`) or `.parquet`.

  Yields:
    The records, each with `_where` ("file:line", or "file, row N") for messages about it. Empty
    lines are passed.

  Raises:
    UserError: missing file, no record, a truncated or damaged file, a line that is not UTF-8 or not
      JSON, a required field missing, a field of the wrong type; with file and line.
  """
  path, found = pathlib.Path(path), False
  if not path.is_file():
    raise UserError(f'records file not found: {path}')
  if is_parquet(path):
    from fairjax.generate.parquet import read_rows
    rows, words = read_rows(path), 'one a row'
  else:
    rows, words = _read_lines(path), 'one JSON object a line'
  for record, where in rows:
    found = True
    check_record(record, where)['_where'] = where
    yield record
  if not found:
    raise UserError(f'{path}: holds no record: expected {words}')


def is_parquet(path: str | os.PathLike) -> bool:
  """Whether the name is that of a Parquet file."""
  return pathlib.Path(path).suffix == '.parquet'


def records_stem(path: str | os.PathLike) -> str:
  """Name of a records file without what says its format.

  >>> records_stem('runs/gpt2.jsonl.gz'), records_stem('gpt2.parquet')
  ('gpt2', 'gpt2')
  """
  name = pathlib.Path(path).name
  for suffix in ('.gz', '.jsonl', '.json', '.parquet'):
    name = name.removesuffix(suffix)
  return name


def _read_lines(path: pathlib.Path) -> Iterator[tuple[Any, str]]:
  """Yields (JSON value, "file:line") of every line that is not empty."""
  number = 0
  try:
    with (gzip.open(path) if path.suffix == '.gz' else open(path, 'rb')) as file:
      for number, line in enumerate(file, 1):
        if line.strip():
          where = f'{path}:{number}'
          yield _parse_line(line, where), where
  except (EOFError, zlib.error, gzip.BadGzipFile) as e:
    raise UserError(f'{path}:{number + 1}: the gzip file is truncated or damaged here ({e}): copy '
                    'it again, or resume the sampling that wrote it') from None


def parse_record(line: bytes | str, where: str) -> dict[str, Any]:
  """Reads and checks one line.

  Args:
    line: JSON text, UTF-8 if bytes.
    where: "file:line" for the message.

  Raises:
    UserError: see `read_records`.

  >>> parse_record('{"attribute": "country", "value": "France"}', 'a.jsonl:3')
  Traceback (most recent call last):
  ...
  fairjax.errors.UserError: a.jsonl:3: fields missing: prefix, continuation, template
  """
  return check_record(_parse_line(line, where), where)


def _parse_line(line: bytes | str, where: str) -> Any:
  try:
    return json.loads(line if isinstance(line, str) else line.decode('utf-8'))
  except UnicodeDecodeError as e:
    raise UserError(f'{where}: not UTF-8 (byte {e.start} of the line): convert the file') from None
  except (ValueError, RecursionError) as e:
    raise UserError(f'{where}: not JSON ({e}): mend or remove the line') from None


def check_record(record: Any, where: str) -> dict[str, Any]:
  """Checks the fields of one record and returns it.

  Args:
    record: what was read.
    where: its place, for the message.

  Raises:
    UserError: see `read_records`.
  """
  if not isinstance(record, dict):
    raise UserError(f'{where}: expected a JSON object, not {type(record).__name__}')
  # Records of one file have the same fields of the same types: that is looked at once.
  shape = (*record, *map(type, record.values()))
  if shape not in _accepted:
    _check_types(record, where)
    if len(_accepted) < _MOST_SHAPES:
      _accepted.add(shape)
  sample = record.get('sample')
  if sample is not None and not -(1 << 63) <= sample < 1 << 63:
    raise UserError(f"{where}: field 'sample' has more than 64 bits: number the samples from 0")
  return record


def _check_types(record: dict[str, Any], where: str) -> None:
  """All of `check_record` that depends on names and types of the fields alone."""
  missing = [name for name in REQUIRED_FIELDS if name not in record]
  if missing:
    raise UserError(f"{where}: fields missing: {', '.join(missing)}")

  def check(name, kinds, words):
    value = record[name]
    if not isinstance(value, kinds) or isinstance(value, bool):
      raise UserError(f"{where}: field '{name}' must be {words}, not {type(value).__name__}")

  for name in (*_TEXT_FIELDS, *_OPTIONAL_TEXT):
    if name in _TEXT_FIELDS or record.get(name) is not None:
      check(name, str, 'a text')
  check('template', (int, str), 'an integer or a text')
  if record.get('sample') is not None:
    check('sample', int, 'an integer')
  if record.get('scores') is not None:
    check('scores', dict, 'an object of scores by scorer name')


class RecordWriter:
  """Appends records to a file; what was appended before an interruption stays.

  Args:
    path: `.jsonl` or `.jsonl.gz`; folders are made. Run `repair` first on a file that exists.
  """

  def __init__(self, path: str | os.PathLike):
    self.path = pathlib.Path(path)
    self.path.parent.mkdir(parents=True, exist_ok=True)
    self._file = open(self.path, 'ab')

  def append(self, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes records in one piece and hands them to the disk."""
    self._file.write(encode_records(records, compressed=self.path.suffix == '.gz'))
    self._file.flush()
    os.fsync(self._file.fileno())

  def close(self) -> None:
    """Closes the file."""
    self._file.close()

  def __enter__(self) -> 'RecordWriter':
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()


def encode_records(records: Iterable[Mapping[str, Any]], *, compressed: bool) -> bytes:
  """Records as lines; compressed, as one gzip member. NaN is refused (`ValueError`)."""
  data = ''.join(
    json.dumps(r, ensure_ascii=False, allow_nan=False) + '\n' for r in records).encode('utf-8')
  # No time stamp: the same records make the same bytes.
  return gzip.compress(data, compresslevel=6, mtime=0) if compressed else data


def repair(path: str | os.PathLike) -> int:
  """Cuts off what an interrupted append left at the end of a file of ours.

  A plain file ends after its last complete line, a compressed one after its last complete member
  (all members of a file that `RecordWriter` wrote hold whole lines).

  Args:
    path: the file; one that does not exist needs no repair.

  Returns:
    Number of bytes removed.

  Raises:
    UserError: a compressed file is damaged before its end, which no interruption explains.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    return 0
  size = path.stat().st_size
  with open(path, 'rb') as file:
    good = _last_member_end(file, path) if path.suffix == '.gz' else _last_line_end(file, size)
  if good < size:
    with open(path, 'r+b') as file:
      file.truncate(good)
      os.fsync(file.fileno())
  return size - good


def _last_line_end(file: io.BufferedReader, size: int) -> int:
  """Offset behind the last line feed."""
  end = size
  while end > 0:
    start = max(0, end - _BLOCK_BYTES)
    file.seek(start)
    found = file.read(end - start).rfind(b'\n')
    if found >= 0:
      return start + found + 1
    end = start
  return 0


def _last_member_end(file: io.BufferedReader, path: pathlib.Path) -> int:
  """Offset behind the last complete gzip member."""
  good, position, member, data = 0, 0, zlib.decompressobj(31), b''
  while True:
    if not data:
      data = file.read(_BLOCK_BYTES)
      if not data:
        return good
    try:
      member.decompress(data)
    except zlib.error as e:
      raise UserError(f'{path}: damaged after byte {good} ({e}): remove the file and its manifest '
                      'and sample again') from None
    position += len(data) - len(member.unused_data)
    data = member.unused_data
    if member.eof:
      good, member = position, zlib.decompressobj(31)
