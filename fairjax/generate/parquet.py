"""Generation records as Parquet or as an Arrow table: one row a record.

Columns: `attribute`, `value`, `subgroup`, `prefix`, `continuation`, `model` (string), `template`
(int64, or string where the first record's is one), `sample` (int64), `scores` (map<string, double>)
and `other`: a JSON object of the fields that no column holds. A field that a record lacks is null.
So a file gives back the records that it was made of, apart from the order of their fields and whole
numbers among the scores, which come back as 0.0 and 1.0.

Files of other programs may have other columns and types, and `scores` as a struct.
"""

import collections
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fairjax.errors import UserError, first_line
from fairjax.tables import arrow, check_distinct, open_parquet

ROW_GROUP = 20_000  # records that are in memory at a time
_BATCH = 2_000  # rows that become Python objects at a time
_KEY = b'fairjax.records'  # of the file's metadata
WHOLE_FIELDS = ('template', 'sample', 'rewording')  # that may be whole numbers
_TEXTS = ('attribute', 'value', 'subgroup', 'prefix', 'continuation', 'model')
_INT64 = range(-(1 << 63), 1 << 63)
_EXACT = 1 << 53  # whole numbers below it are exact as float64


def write_parquet(file: Any, records: Iterable[Mapping[str, Any]], metadata: Mapping[str, Any]
                  ) -> int:
  """Writes records, and `metadata` (JSON) of the file; returns the number of records."""
  pa, count = arrow(), 0
  records = iter(records)
  rows = list(itertools.islice(records, ROW_GROUP))
  template = str if rows and isinstance(rows[0]['template'], str) else int
  schema = pa.schema(
    [(name, pa.string()) for name in _TEXTS]
    + [('template', pa.string() if template is str else pa.int64()), ('sample', pa.int64()),
       ('scores', pa.map_(pa.string(), pa.float64())), ('other', pa.string())],
    metadata={_KEY: json.dumps(metadata, sort_keys=True)})
  with pa.parquet.ParquetWriter(file, schema, compression='zstd', write_page_checksum=True
                                ) as writer:
    while rows:
      writer.write_table(pa.Table.from_pylist([_row(r, template) for r in rows], schema=schema))
      count += len(rows)
      rows = list(itertools.islice(records, ROW_GROUP))
  return count


def _row(record: Mapping[str, Any], template: type) -> dict[str, Any]:
  """The columns of a record."""
  row, other = {}, {}
  for name, value in record.items():
    if name in _TEXTS or name == 'template' and template is str:
      fits = isinstance(value, str)
    elif name in ('template', 'sample'):
      fits = isinstance(value, int) and not isinstance(value, bool) and value in _INT64
    else:
      fits = name == 'scores' and isinstance(value, Mapping) and all(
        isinstance(v, float) or type(v) is int and abs(v) < _EXACT for v in value.values())
    if fits:
      row[name] = list(value.items()) if name == 'scores' else value
    elif name != '_where':
      other[name] = value
  return row | ({'other': json.dumps(other)} if other else {})


def read_parquet(
  file: io.BufferedReader, path: str | os.PathLike, counts: collections.Counter,
) -> Iterator[tuple[dict[str, Any], str]]:
  """Yields every row as (its fields, "file, row N" from 1), unchecked."""
  with open_parquet(file, path) as opened:
    yield from _read(opened.iter_batches(batch_size=_BATCH), opened.schema_arrow, f'{path}, ',
                     counts)


def read_arrow(table: Any, counts: collections.Counter) -> Iterator[tuple[dict[str, Any], str]]:
  """Yields every row of an Arrow table as (its fields, "row N" from 1), unchecked."""
  check_distinct(table.schema.names, 'the data')
  yield from _read(table.to_batches(max_chunksize=_BATCH), table.schema, '', counts)


def _read(batches: Iterable[Any], schema: Any, where: str, counts: collections.Counter
          ) -> Iterator[tuple[dict[str, Any], str]]:
  """Rows of record batches; `where` is the beginning of their places."""
  pa, number = arrow(), 0
  ours = _KEY in (schema.metadata or {})
  try:
    for batch in batches:
      columns = {name: _plain(name, column, counts)
                 for name, column in zip(schema.names, batch.columns, strict=True)}
      table = pa.table({n: c for n, c in columns.items() if c is not None})
      for row in table.to_pylist() or [{} for _ in range(batch.num_rows)]:
        other = json.loads(row.pop('other', None) or '{}') if ours else {}
        yield _record(row) | other, f'{where}row {number + 1}'
        number += 1
  except (ValueError, RecursionError) as e:  # of JSON, dates
    if isinstance(e, UserError | pa.ArrowException):
      raise
    raise UserError(f'{where}row {number + 1} or later: cannot be read ({first_line(e)}): copy '
                    'the data again, or make them anew') from None


def _record(row: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of a row: nulls are absent, but for the continuation, which is then empty."""
  record = {name: value for name, value in row.items()
            if value is not None or name == 'continuation'}
  scores = record.get('scores')
  if isinstance(scores, list) and all(isinstance(pair, tuple) for pair in scores):  # of a map
    scores = record['scores'] = dict(scores)
  if isinstance(scores, dict):
    record['scores'] = {name: value for name, value in scores.items() if value is not None}
  return record


def _plain(name: str, column: Any, counts: collections.Counter) -> Any:
  """A column with values of JSON's types, or None where that is impossible."""
  pa = arrow()
  if isinstance(column.type, pa.BaseExtensionType):
    column = column.storage
  kind, types = column.type, pa.types
  if types.is_dictionary(kind):
    if types.is_string_view(kind.value_type):  # of Polars, which Arrow cannot decode
      column = column.cast(pa.dictionary(kind.index_type, pa.large_string()))
    return _plain(name, column.dictionary_decode(), counts)
  wanted = pa.string()
  if name in WHOLE_FIELDS and (types.is_floating(kind) or types.is_decimal(kind)):
    wanted = pa.int64()  # of a data frame in which one was missing
  elif _is_plain(kind):
    return column
  try:
    converted = column.cast(wanted)
  except pa.ArrowException:
    if name in WHOLE_FIELDS:
      return column  # a wrong value, whose row is named when the records are checked
    counts[f"columns '{name}' ({kind}) that were not read"] = 1
    return None
  counts[f"values of column '{name}' ({kind}) read as {wanted}"] += len(column) - column.null_count
  return converted


def _is_plain(kind: Any) -> bool:
  """Whether the values of a type become those of JSON."""
  types = arrow().types
  if types.is_nested(kind):
    return all(_is_plain(kind.field(i).type) for i in range(kind.num_fields))
  return any(test(kind) for test in (
    types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_string,
    types.is_large_string, types.is_string_view))

