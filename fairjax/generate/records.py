"""Generation records: one JSON object a line, plain (`.jsonl`) or compressed (`.jsonl.gz`).

So they are written. They are read from a JSON array, from CSV and TSV with a header, from Parquet
and data frames (see `fairjax.generate.parquet`) and from mappings too.

A record is `{"attribute", "value", "subgroup", "template", "sample", "prefix", "continuation",
"model", "scores"}`. Only `attribute`, `value`, `template`, `prefix` and `continuation` are required
of records that come from elsewhere, and where the attribute is known only `value`, `prefix` and
`continuation`; other fields are kept as they are.

Files only ever grow. A compressed file is a chain of gzip members, one for each append: what an
interruption leaves unfinished is at the end and is cut off before more is written.
"""

import collections
import functools
import gzip
import io
import json
import numbers
import os
import pathlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from fairjax.counterfactual.attributes import AND, Attribute
from fairjax.counterfactual.word_forms import WordFinder, normal_form
from fairjax.errors import UserError, unknown_name
from fairjax.files import AppendOnly, file_sha256, read_sealed_json
from fairjax.generate.parquet import WHOLE_FIELDS, read_arrow, read_parquet
from fairjax.inputs import open_input
from fairjax.tables import Rename, arrow_table, parse_json, read_rows, whole_row

# `x.manifest.json` beside `x.jsonl.gz` holds the identity of the work, `complete`, and once it is
# complete the number of records and their file's SHA-256.

def manifest_of(path: str | os.PathLike) -> pathlib.Path:
  """Path of the manifest beside a records file.

  >>> manifest_of('a/country.jsonl.gz').as_posix()
  'a/country.manifest.json'
  """
  path = pathlib.Path(path)
  return path.parent / (re.sub(r'(\.jsonl)?(\.gz)?$', '', path.name) + '.manifest.json')


def check_complete(path: str | os.PathLike) -> int | None:
  """Compares a records file with its manifest: its number of records, None without a manifest.

  Raises:
    UserError: the sampling has not ended, or the file is not the one that it wrote.
  """
  path, manifest_path = pathlib.Path(path), manifest_of(path)
  if not manifest_path.is_file():
    return None
  manifest = read_manifest(path)
  if not manifest['complete']:
    raise UserError(f'{path} is not complete: repeat the command that samples it, it continues')
  if file_sha256(path) != manifest['records_sha256']:
    raise UserError(f'{path} is damaged, or is not what {manifest_path.name} belongs to: its '
                    'SHA-256 is not that of this manifest: restore it, rename it if it is a copy '
                    'in another form, or remove both and sample again')
  return manifest['records']


def read_manifest(path: str | os.PathLike) -> dict[str, Any]:
  """Reads the manifest of a records file."""
  return read_sealed_json(
    manifest_of(path), again=f'remove it and {pathlib.Path(path).name} and sample again')


_TEXT_FIELDS = ('attribute', 'value', 'prefix', 'continuation')
REQUIRED_FIELDS = (*_TEXT_FIELDS, 'template')
_OPTIONAL_TEXT = ('subgroup', 'model')
_OPTIONAL = (*_OPTIONAL_TEXT, 'sample', 'scores', 'arm', 'rewording')
_ABSENT_IF_EMPTY = (*_OPTIONAL, 'attribute', 'template', 'value')  # cells of a table
WHOLE = re.compile('-?(0|[1-9][0-9]{0,18})')
_MOST_SHAPES = 1000
_CHECKED = (*REQUIRED_FIELDS, *_OPTIONAL_TEXT, 'sample', 'scores')
_accepted: set[tuple] = set()  # their types in records that were checked


class Record(msgspec.Struct, gc=False):  # values of JSON form no cycle that must be collected
  """The fields of a record that measures need; a reader of these alone takes half the time."""

  attribute: str
  value: str
  prefix: str
  continuation: str
  template: int | Annotated[str, msgspec.Meta(min_length=1)]
  subgroup: str | None = None
  model: str | None = None
  sample: Annotated[int, msgspec.Meta(ge=-1 << 63, le=(1 << 63) - 1)] | None = None
  scores: dict[str, Any] | None = None
  arm: Any = None
  rewording: Any = None
  where: Any = msgspec.field(default='', name='_where')

  @classmethod
  def of(cls, record: Mapping[str, Any]) -> 'Record':
    """The fields of a record that was checked and has its `_where`."""
    return cls(*map(record.get, cls.__struct_encode_fields__))


_record_decoder = msgspec.json.Decoder(Record)
_BLOCK_BYTES = 1 << 20


def read_records(
  data: Any, *, attributes: Sequence[Attribute] = (), columns: Mapping[str, str] | None = None,
  repair: bool = False, counts: collections.Counter | None = None, whole: bool = True,
) -> Iterator[Any]:
  """Reads and checks records one by one.

  Args:
    data: path of JSON lines, a JSON array, CSV or TSV with a header, or Parquet, compressed or not
      (`-`: the standard input); a data frame of pandas or Polars, or an Arrow table; or mappings.
    attributes: what the records are about. With one, they need no `attribute`. With any, they need
      no `value` where the prefix holds one alone, and no `template`: it is the number of the
      attribute's template that the prefix fills, else the prefix without the value.
    columns: their name of a field -> ours, where they differ.
    repair: replace halves of characters and NUL by U+FFFD instead of refusing their record.
    counts: gets in words what was changed in reading, and how often.
    whole: yield mappings of all fields; False yields `Record`s, in half the time.

  Yields:
    The records, each with `_where` ("file:line", "file, row N", "file, entry N" or "record N").
    Empty lines are passed, and rows of blank cells, counted. A continuation that is null (or NaN)
    is an empty text.

  Raises:
    UserError: missing or damaged file, no record, a line that is not UTF-8 or not JSON, a field
      missing or of the wrong type, half a character or NUL in a text, a prefix without its value
      and no template; with file and line.
  """
  counts = collections.Counter() if counts is None else counts
  if not isinstance(columns or {}, Mapping) or not all(
      isinstance(name, str) for pair in (columns or {}).items() for name in pair):
    raise UserError(f"columns={columns!r:.60} is no mapping of their names to ours, as "
                    "{'prompt': 'prefix'}")
  rename = Rename(columns or {})
  for ours in (columns or {}).values():
    if ours not in (*REQUIRED_FIELDS, *_OPTIONAL) and not ours.startswith('scores.'):
      raise unknown_name('field of records', ours, (*REQUIRED_FIELDS, *_OPTIONAL))
  known = ['value', 'template'] * bool(attributes) + ['attribute'] * (len(attributes) == 1)
  complete = _Completion(attributes) if attributes else None
  found = False
  for record, where in _rows(data, [f for f in REQUIRED_FIELDS if f not in known], rename,
                             repair=repair, counts=counts, whole=whole):
    found = True
    if type(record) is Record:
      if complete is None or complete.labelled.get(record.attribute):
        record.where = where
        yield record
        continue
      record = msgspec.structs.asdict(record)
    if isinstance(record, dict):
      record = _of_frame(record, counts)
      if complete is not None:
        record = complete(record, where)
    record = check_record(record, where, counts=counts)
    record['_where'] = where
    yield record if whole else Record.of(record)
  name = os.fspath(data) if isinstance(data, str | os.PathLike) else 'the data'
  if not found:
    raise UserError(f'{name}: holds no record: expected one JSON object a line, or rows of a table')
  if rename.missing:
    theirs, ours = next(iter(rename.missing.items()))
    raise UserError(f"{name}: no record has a column '{theirs}', which was to be {ours}")
  for ours, number in rename.replaced.items():
    counts[f"values of column '{ours}' replaced by those of '{rename.theirs(ours)}'"] += number
  if complete is not None:
    counts += collections.Counter({
      'records whose value is the one that their prefix holds': complete.found,
      "records whose template is the attribute's that their prefix fills": complete.numbered,
      'records whose template is the prefix without its value': complete.derived,
      'records whose template is that of others in another Unicode form': complete.joined})


def _rows(data: Any, required: Sequence[str], rename: Rename, *, repair: bool,
          counts: collections.Counter, whole: bool) -> Iterator[tuple[Any, str]]:
  """Rows with our names and their places, of whatever `read_records` takes."""
  if isinstance(data, str | os.PathLike):
    with open_input(data, what='records file', parquet=True) as file:
      if file.peek(4).startswith(b'PAR1'):
        for row, where in read_parquet(file, data, counts):
          yield _with_scores(
            rename(whole_row(row, where, repair=repair, counts=counts)), where), where
      else:
        spread = b'"scores.' in file.peek(4)  # which the decoder of a record would not see
        rows = read_rows(file, data, required, convert=from_cells, rename=rename, repair=repair,
                         counts=counts, decoder=None if whole or rename or spread else
                         _record_decoder)
        yield from (((_with_scores(row, where), where) for row, where in rows)
                    if rename or spread else rows)
    return
  table = arrow_table(data)
  if table is not None:
    rows = read_arrow(table, counts)
  elif isinstance(data, Iterable) and not isinstance(data, bytes | Mapping):
    rows = ((_plain(row), row.get('_where') or f'record {number}') if isinstance(row, Mapping)
            else (row, f'record {number}') for number, row in enumerate(data, 1))
  else:
    raise UserError(f'{type(data).__name__} holds no records: give a path, a data frame (pandas, '
                    'Polars, Arrow) or mappings')
  for row, where in rows:
    yield _with_scores(rename(whole_row(row, where, repair=repair, counts=counts)), where), where


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
  """A mapping as a dict of its own; whole numbers of NumPy become those of Python."""
  return {name: int(value) if name in WHOLE_FIELDS and hasattr(value, '__index__')
          and not isinstance(value, bool) else value for name, value in row.items()
          if name != '_where'}


class TemplateFinder:
  """Finds the template of a prefix: the attribute's own, or the prefix without the value.

  Words are those of the attribute: `{value}` stands for each form of the value, `{a}` for an
  article before it, and a name of pronouns for theirs. Names that share a word in some value
  (them and their of "her") become one, since the prefix does not tell them apart.
  """

  def __init__(self, attribute: Attribute):
    self._own = {(i, normal_form(template.fill(value).rstrip())): template.text
                 for i, value in enumerate(attribute.values) for template in attribute.templates}
    parts = ([[('value', value)] for value in attribute.values] if not attribute.crossed else
             [[(factor.name, factor.values[i])
               for factor, i in zip(attribute.crossed, levels, strict=True)]
              for levels in attribute.levels])
    self._values = [[(f'{{{name}}}', (value.text, *value.tokens)) for name, value in of_value]
                    for of_value in parts]
    pronouns = [{word if name == 'value' else f'{word}_{name}': text for name, value in of_value
                 for word, text in value.pronouns.items()} for of_value in parts]
    groups: list[set[str]] = []
    for own in pronouns:
      names_of = collections.defaultdict(set)
      for name, word in own.items():
        names_of[word.lower()].add(name)
      for names in names_of.values():
        joined = names.union(*(group for group in groups if group & names))
        groups = [group for group in groups if not group & names] + [joined]
    places = {name: f"{{{'/'.join(sorted(group))}}}" for group in groups for name in group}
    self._pronouns = [{word.lower(): places[name] for name, word in own.items()}
                      for own in pronouns]
    self.find = functools.lru_cache(maxsize=1 << 16)(self._find)
    self.find_value = functools.lru_cache(maxsize=1 << 16)(self._find_value)
    self._texts, self._crossed = attribute.value_texts, [*map(TemplateFinder, attribute.crossed)]

  def _find_value(self, prefix: str) -> str | None:
    """The only value that a prefix holds; one that is part of another's word counts as that."""
    if self._crossed:  # each of the two has one value there
      value = AND.join(finder.find_value(prefix) or '' for finder in self._crossed)
      return value if value in self._texts else None
    for exact in (True, False):  # "Jake will": not the name Will
      rest = {i: template for i in range(len(self._texts))
              if (template := self._find_as(i, prefix, exact)) is not None}
      found = [i for i in rest if not any(
        len(self._texts[j]) > len(self._texts[i]) and self._find_as(i, template, exact) is None
        for j, template in rest.items())]
      if found:
        return self._texts[found[0]] if len(found) == 1 else None
    return None

  def _find(self, value: int, prefix: str) -> str | None:
    """The template of a prefix that holds a value; None where it does not hold it."""
    found = self._find_as(value, prefix, exact=True)
    return self._find_as(value, prefix, exact=False) if found is None else found

  def _find_as(self, value: int, prefix: str, exact: bool) -> str | None:
    if (own := self._own.get((value, normal_form(prefix.rstrip())))) is not None:
      return own
    text = prefix.rstrip()
    for place, words in self._values[value]:
      text, count = _word_finder(words, exact).replace(text, place)
      if not count:
        return None
      text = re.sub(rf'\b([Aa])[nN]?(?= {re.escape(place)})', r'{\1}', text)
    pronouns, parts, end = self._pronouns[value], [], 0
    for match in _word_finder(tuple(pronouns), exact=False).find(text) if pronouns else ():
      parts += [text[end:match.start()], pronouns[match[0].lower()]]
      end = match.end()
    return ''.join([*parts, text[end:]])


@functools.lru_cache(maxsize=1 << 12)
def _word_finder(words: tuple[str, ...], exact: bool) -> WordFinder:
  """Finds words in any case; `exact`: as they are written, or begun with or all in capitals."""
  if not exact:
    return WordFinder(words, ignore_case=True, any_space=True)
  return WordFinder({form for word in words for form in (
    word, word[:1].upper() + word[1:], word.upper())}, any_space=True)


class _Completion:
  """Adds the attribute, the value and the template that records lack."""

  def __init__(self, attributes: Sequence[Attribute]):
    self._attributes = {a.name: a for a in attributes}
    # Made for the first record that lacks something: its patterns take a second to compile.
    self._finder = functools.cache(lambda name: TemplateFinder(self._attributes[name]))
    self.labelled: dict[str, bool] = {}  # whether the records of an attribute have templates
    self._labels: dict[tuple[str, str], str] = {}  # (attribute, normal form) -> template
    # Numbers, as in sampled records: prompts of both kinds of files are then the same.
    self._numbers = {(a.name, normal_form(template.text)): i for a in attributes
                     for i, template in enumerate(a.templates)}
    self.derived, self.found, self.joined, self.numbered = 0, 0, 0, 0

  def __call__(self, record: dict[str, Any], where: str) -> dict[str, Any]:
    if record.get('attribute') is None and len(self._attributes) == 1:
      record['attribute'] = next(iter(self._attributes))
    name, value, prefix = record.get('attribute'), record.get('value'), record.get('prefix')
    attribute = self._attributes.get(name) if isinstance(name, str) else None
    if attribute is None:
      if isinstance(name, str) and (value is None or record.get('template') is None):
        raise UserError(f"{where}: attribute is '{name}', not {' or '.join(self._attributes)}: "
                        'name all attributes of the records')
      return record  # what is wrong is said when the record is checked
    if value is None and isinstance(prefix, str):
      value = record['value'] = self._finder(attribute.name).find_value(prefix)
      if value is None:
        raise UserError(f"{where}: field 'value' is missing, and the prefix does not hold exactly "
                        f'one value of {attribute.name}: give all records that field')
      self.found += 1
    labelled = record.get('template') not in (None, '')
    if self.labelled.setdefault(attribute.name, labelled) != labelled:
      raise UserError(f"{where}: field 'template' is {'there' if labelled else 'missing'}, unlike "
                      'in earlier records: give it in all records of an attribute or in none')
    if labelled or not (isinstance(value, str) and isinstance(prefix, str)):
      return record
    index = attribute.value_index(value, where)
    template = self._finder(attribute.name).find(index, prefix)
    if template is None:
      raise UserError(f"{where}: the prefix does not hold '{value}', so its template is not known: "
                      "give the records a column 'template', equal for prefixes that differ in "
                      'the value alone')
    key = attribute.name, normal_form(template)
    label = self._labels.setdefault(key, template)
    record['template'] = self._numbers.get(key, label)
    self.joined += label != template
    self.numbered += key in self._numbers
    self.derived += key not in self._numbers
    return record


def records_stem(path: str | os.PathLike) -> str:
  """Name of a records file without the suffixes of its format.

  >>> records_stem('runs/gpt2.jsonl.gz'), records_stem('gpt2.parquet')
  ('gpt2', 'gpt2')
  """
  name = pathlib.Path(path).name
  for suffix in ('.gz', '.zst', '.xz', '.bz2', '.zip', '.jsonl', '.json', '.csv', '.tsv',
                 '.parquet'):
    name = name.removesuffix(suffix)
  return 'stdin' if name == '-' else name


def _is_null(value: Any) -> bool:
  """Whether a value is null, or what data frames write for it (NaN, pd.NA, pd.NaT)."""
  return (value is None or type(value).__name__ in ('NAType', 'NaTType')
          or isinstance(value, numbers.Real) and value != value)


def check_record(
  record: Any, where: str, *, counts: collections.Counter | None = None) -> dict[str, Any]:
  """Checks the fields of one record and returns it."""
  if not isinstance(record, dict):
    raise UserError(f'{where}: expected a JSON object, not {type(record).__name__}')
  # Records of one file have the same fields of the same types: that is looked at once.
  shape = tuple(map(type, map(record.get, _CHECKED)))
  if shape not in _accepted:
    if null := _is_null(record.get('continuation', '')):
      record = record | {'continuation': ''}
      if counts is not None:
        counts['continuations that are null, read as empty texts'] += 1
    _check_types(record, where)
    if not null and len(_accepted) < _MOST_SHAPES:
      _accepted.add(shape)
  sample = record.get('sample')
  if sample is not None and not -(1 << 63) <= sample < 1 << 63:
    raise UserError(f"{where}: field 'sample' has more than 64 bits: number the samples from 0")
  return record


def _of_frame(record: dict[str, Any], counts: collections.Counter) -> dict[str, Any]:
  """The record with a text for a value's number, and without the nulls and floats of frames."""
  for name in _ABSENT_IF_EMPTY:
    if name in record and _is_null(record[name]):
      record[name] = None
  number = record.get('value')  # an age, a year
  if isinstance(number, numbers.Real) and not isinstance(number, bool) and number % 1 == 0:
    record['value'] = str(int(record['value']))
    counts["values of field 'value' that are numbers, read as texts"] += 1
  for name in WHOLE_FIELDS:
    value = record.get(name)
    if isinstance(value, numbers.Real) and type(value) not in (int, bool) and value % 1 == 0:
      record[name] = int(float(value))
      counts[f"values of field '{name}' (float) read as whole numbers"] += 1
  return record


def _whole(text: str) -> int | None:
  """The whole number of a text, or None; `.0` comes from a data frame that lacked some."""
  found = re.fullmatch(r'\s*(-?[0-9]{1,19})(\.0)?\s*', text)
  return int(found[1]) if found else None


def from_cells(cells: Mapping[str, str], where: str) -> dict[str, Any]:
  """The record that a row of a table holds."""
  record: dict[str, Any] = {}
  for name, text in cells.items():
    if text or not (name in _ABSENT_IF_EMPTY or name.startswith('scores.')):
      record[name] = text
  if WHOLE.fullmatch(record.get('template', '')):
    record['template'] = int(record['template'])
  for name in ('sample', 'rewording'):
    if name in record and (whole := _whole(record[name])) is not None:
      record[name] = whole
  if 'scores' in record:
    record['scores'] = parse_json(record['scores'], f"{where}: field 'scores'")
  return _with_scores(record, where)


def _with_scores(record: Any, where: str) -> Any:
  """The record with the columns `scores.NAME` among its scores."""
  if not isinstance(record, dict):
    return record
  for name in [n for n in record if str(n).startswith('scores.')]:
    if (value := record.pop(name)) is not None:
      scores, own = record.get('scores') or {}, name.removeprefix('scores.')
      try:
        value = float(value)
      except (TypeError, ValueError):
        raise UserError(f'{where}: {value!r} in column {name} is no number') from None
      if not isinstance(scores, dict):
        return record  # what is wrong is said when the record is checked
      if scores.get(own, value) != value:
        raise UserError(f'{where}: scores has {scores[own]!r} for {own}, column {name} has '
                        f'{value!r}: leave one of them out')
      record['scores'] = {**scores, own: value}
  return record


def _check_types(record: dict[str, Any], where: str) -> None:
  """All of `check_record` that depends on names and types of the fields alone."""
  missing = [name for name in REQUIRED_FIELDS if name not in record]
  if missing:
    stands = '; one --attribute=A stands for attribute, and finds value and template in the prefix'
    raise UserError(f"{where}: fields missing: {', '.join(missing)} (--columns takes other names"
                    f"{stands * ('attribute' in missing)})")

  def check(name, kinds, words):
    value = record[name]
    if not isinstance(value, kinds) or isinstance(value, bool):
      raise UserError(f"{where}: field '{name}' must be {words}, not {type(value).__name__}")

  for name in (*_TEXT_FIELDS, *_OPTIONAL_TEXT):
    if name in _TEXT_FIELDS or record.get(name) is not None:
      check(name, str, 'a text')
  check('template', (int, str), 'an integer or a text')
  sample = record.get('sample')
  if sample is not None and type(sample) is not int:
    raise UserError(f"{where}: field 'sample' is {sample!r:.40}, not a whole number")
  if record.get('scores') is not None:
    check('scores', dict, 'an object of scores by scorer name')


class RecordWriter(AppendOnly):
  """Appends records to a file, one process at a time; what was appended survives a kill.

  Run `repair` first on a file that exists. `UserError` where it cannot be written, or where another
  process is writing into it.
  """

  def append(self, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes records in one piece and hands them to the disk."""
    self.append_bytes(encode_records(records, compressed=self.path.suffix == '.gz'))


def encode_records(records: Iterable[Mapping[str, Any]], *, compressed: bool) -> bytes:
  """Records as lines; compressed, as one gzip member. NaN is refused (`ValueError`)."""
  data = ''.join(
    json.dumps(r, ensure_ascii=False, allow_nan=False) + '\n' for r in records).encode('utf-8')
  # No time stamp: the same records make the same bytes.
  return gzip.compress(data, compresslevel=6, mtime=0) if compressed else data


def repair(path: str | os.PathLike) -> int:
  """Cuts off what an interrupted append left at the end of a file of ours.

  A plain file ends after its last complete line, a compressed one after its last complete member.
  Returns the number of bytes removed; 0 for a file that does not exist.

  Raises:
    UserError: a compressed file is damaged before its end, which no interruption explains.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    return 0
  size = path.stat().st_size
  with open(path, 'rb') as file:
    good = (_last_member_end(file, path) if path.suffix == '.gz'
            else sum(len(line) for line in file if line.endswith(b'\n')))
  if good < size:
    with open(path, 'r+b') as file:
      file.truncate(good)
      os.fsync(file.fileno())
  return size - good


def _last_member_end(file: io.BufferedReader, path: pathlib.Path) -> int:
  """Offset after the last complete gzip member."""
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
