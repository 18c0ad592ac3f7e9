"""Generation records as Parquet: one row a record, one column a field, with types.

| field | column |
|---|---|
| texts | string (UTF-8) |
| `sample`, `template`, other whole numbers | int64 |
| other numbers, truth values | double, bool |
| `scores` | map<string, double> |
| what has no one type (lists, objects, mixed) | string with JSON, marked `fairjax: json` |

A field that a record lacks is null. Where nulls are what the records said (`"subgroup": null`) the
column is marked `fairjax: null`; where some said null and others nothing it holds JSON. So a file
gives back exactly the records that it was made of. Whole numbers among the scores come back as
0.0 and 1.0. Files of other programs may hold other types of numbers and texts, and `scores` as a
struct, whose nulls are scores that are absent.

Rows are read and written in row groups, so that memory does not grow with the file.
"""

import collections
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fairjax.errors import UserError
from fairjax.tables import arrow, open_parquet

ROW_GROUP = 20_000  # records
_BATCH = 2_000  # rows that are turned into Python objects at a time
_MARK = b'fairjax'
_FILE_KEY = b'fairjax.records'
_WHOLE = 1 << 53  # below it every whole number is a double


def read_parquet(
  file: io.BufferedReader, path: str | os.PathLike, counts: collections.Counter,
) -> Iterator[tuple[dict[str, Any], str]]:
  """Yields every row as (fields that are there, "file, row N" from 1); nothing is checked yet.

  Columns of types that JSON has not are read as text, and not at all where that is impossible.

  Args:
    file: of `open_input`.
    path: for messages.
    counts: gets in words the values that were converted, and the columns that were not read.

  Raises:
    UserError: no pyarrow; no Parquet file, or a damaged one.
  """
  pa, number = arrow(), 0
  try:
    with open_parquet(file, path) as opened:
      marks = {field.name: (field.metadata or {}).get(_MARK) for field in opened.schema_arrow}
      maps = {field.name for field in opened.schema_arrow if pa.types.is_map(field.type)}
      for batch in opened.iter_batches(batch_size=_BATCH):
        columns = {name: _plain(name, column, counts) for name, column in zip(
          batch.schema.names, batch.columns, strict=True)}
        rows = pa.table({n: c for n, c in columns.items() if c is not None}).to_pylist()
        for row in rows or [{} for _ in range(batch.num_rows)]:
          yield _record(row, marks, maps), f'{path}, row {number + 1}'
          number += 1
  except UserError:
    raise
  except (ValueError, RecursionError) as e:  # JSON, dates
    words = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
    raise UserError(f'{path}, row {number + 1} or behind: cannot be read as Parquet ({words}): '
                    'copy the file again, or make it anew') from None


def _plain(name: str, column: Any, counts: collections.Counter) -> Any:
  """A column in a type that becomes JSON, or None where there is none."""
  pa = arrow()
  if isinstance(column.type, pa.BaseExtensionType):
    column = column.storage
  kind = column.type
  wanted = _json_type(pa, name, kind)
  if wanted == kind:
    return column
  try:
    converted = column.cast(wanted)
  except pa.ArrowException:
    if name in ('template', 'sample', 'scores'):
      return column  # it is a wrong value, which has its row
    counts[f"columns '{name}' ({kind}) that were not read"] = 1
    return None
  if not pa.types.is_dictionary(kind):  # a category is its text
    values = len(column) - column.null_count
    counts[f"values of column '{name}' ({kind}) read as {wanted}"] += values
  return converted


def _json_type(pa: Any, name: str, kind: Any) -> Any:
  """The type in which the values of a type become JSON; the same one where they do already."""
  types = pa.types
  number = pa.int64() if name in ('template', 'sample') else pa.float64()
  if types.is_dictionary(kind):
    return _json_type(pa, name, kind.value_type)
  if types.is_struct(kind):
    return pa.struct([field.with_type(_json_type(pa, name, field.type)) for field in kind])
  if types.is_map(kind):
    return pa.map_(_json_type(pa, name, kind.key_type), _json_type(pa, name, kind.item_type))
  if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
    inner = _json_type(pa, name, kind.value_type)
    return kind if inner == kind.value_type else pa.list_(inner)
  if types.is_floating(kind) and name in ('template', 'sample'):
    return number
  if types.is_decimal(kind) and name in ('template', 'sample', 'scores'):
    return number
  as_they_are = (types.is_null, types.is_boolean, types.is_integer, types.is_floating,
                 types.is_string, types.is_large_string, types.is_string_view)
  return kind if any(test(kind) for test in as_they_are) else pa.string()


def _record(row: dict[str, Any], marks: Mapping[str, bytes | None], maps: set[str]
            ) -> dict[str, Any]:
  """The fields of a row; absent ones are left out."""
  record: dict[str, Any] = {}
  for name, value in row.items():
    if value is None:
      if marks[name] == b'null' or name == 'continuation':
        record[name] = None
    elif marks[name] == b'json':
      record[name] = json.loads(value)
    elif name in maps:
      record[name] = dict(value)
    elif name == 'scores' and isinstance(value, dict):
      record[name] = {key: score for key, score in value.items() if score is not None}
    else:
      record[name] = value
  return record


class RecordTypes:
  """Finds the types of columns: call `add` with every record, then `schema`."""

  def __init__(self) -> None:
    self._rows = 0
    self._kinds: dict[str, dict[str, int]] = {}

  def add(self, record: Mapping[str, Any]) -> None:
    """Takes note of the fields of a record.

    Raises:
      UserError: a text that is no text.
    """
    self._rows += 1
    for name, value in record.items():
      if name != '_where':
        kind = _kind(name, value, str(record.get('_where', f'record {self._rows}')))
        counts = self._kinds.setdefault(name, {})
        counts[kind] = counts.get(kind, 0) + 1

  def schema(self, metadata: Mapping[str, Any]) -> Any:
    """The `pyarrow.Schema`, with `metadata` (JSON types) of the file."""
    pa = arrow()
    types = {'text': pa.string(), 'int': pa.int64(), 'float': pa.float64(), 'bool': pa.bool_(),
             'scores': pa.map_(pa.string(), pa.float64()), 'json': pa.string()}
    fields = []
    for name, counts in self._kinds.items():
      nulls = counts.get('null', 0)
      kinds = [kind for kind in counts if kind != 'null'] or ['text']
      kind = kinds[0] if len(kinds) == 1 else 'json'
      if nulls and sum(counts.values()) < self._rows:
        kind = 'json'
      mark = 'json' if kind == 'json' else 'null' if nulls else None
      fields.append(pa.field(name, types[kind], metadata=mark and {_MARK: mark}))
    return pa.schema(fields, metadata={_FILE_KEY: json.dumps(metadata, sort_keys=True)})


def write_rows(file: Any, records: Iterable[Mapping[str, Any]], schema: Any) -> int:
  """Writes records in row groups; returns how many.

  Args:
    file: open for bytes.
    records: those that `schema` was made of, again.
    schema: of `RecordTypes`.
  """
  pa, count = arrow(), 0
  marks = {field.name: (field.metadata or {}).get(_MARK) for field in schema}
  rows: dict[str, list[Any]] = {name: [] for name in marks}

  def flush():
    columns = [pa.array(rows[field.name], type=field.type) for field in schema]
    writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    for column in rows.values():
      column.clear()

  with pa.parquet.ParquetWriter(file, schema, compression='zstd', write_page_checksum=True
                                ) as writer:
    for record in records:
      count += 1
      for name, column in rows.items():
        column.append(_cell(name, record, marks[name]))
      if count % ROW_GROUP == 0:
        flush()
    if count % ROW_GROUP:
      flush()
  return count


def file_metadata(path: str | os.PathLike) -> dict[str, Any]:
  """What `RecordTypes.schema` was given for a file; {} for files of other programs."""
  found = arrow().parquet.read_schema(path).metadata or {}
  return json.loads(found.get(_FILE_KEY, b'{}'))


def _cell(name: str, record: Mapping[str, Any], mark: bytes | None) -> Any:
  if name not in record:
    return None
  value = record[name]
  if mark == b'json':
    return json.dumps(value)
  return list(value.items()) if name == 'scores' and isinstance(value, Mapping) else value


def _kind(name: str, value: Any, where: str) -> str:
  """The kind of a value; `json` for what no column type holds."""
  if value is None:
    return 'null'
  if isinstance(value, bool):
    return 'bool'
  if isinstance(value, int):
    return 'int' if -(1 << 63) <= value < 1 << 63 else 'json'
  if isinstance(value, float):
    return 'float'
  if isinstance(value, str):
    _check_text(name, value, where)
    return 'text'
  if name == 'scores' and isinstance(value, Mapping) and all(map(_is_score, value.values())):
    for key in value:
      _check_text(name, key, where)
    return 'scores'
  return 'json'


def _is_score(value: Any) -> bool:
  if isinstance(value, bool) or not isinstance(value, int | float):
    return False
  return isinstance(value, float) or abs(value) < _WHOLE


def _check_text(name: str, text: str, where: str) -> None:
  try:
    text.encode('utf-8')
  except UnicodeEncodeError:
    raise UserError(f"{where}: field '{name}' holds half a character (a lone surrogate), which "
                    'UTF-8 and so Parquet cannot hold: replace it, or keep .jsonl') from None
