"""Records and their scores from one form into another: JSONL, compressed JSONL, Parquet."""

import itertools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fairjax.errors import UserError
from fairjax.files import atomic_write, refuse_existing
from fairjax.job.next_token_file import carry_next_token, saved_next_token

_CHUNK = 2_000  # records written at a time
_FORMS = ('.jsonl', '.jsonl.gz', '.parquet')


def convert_records(
  source: str | os.PathLike, output: str | os.PathLike, *,
  scores: Sequence[str | os.PathLike] = (), scored: str = 'continuation',
  read: Callable[[Any], Iterable[dict[str, Any]]] | None = None, log: Callable[[str], None],
) -> int:
  """Writes records in another form, with the scores of score files if wanted.

  The divergence of the next token that lies beside them is written beside the new file.

  Records are read one after the other, twice where columns need types; of the scores each distinct
  text's is in memory, some 100 bytes.

  Args:
    source: records in any form.
    output: the form is that of its name; must not exist.
    scores: score files of `fairjax measure --keep` or of a workdir; each becomes an entry of the
      records' `scores`, under the scorer's name.
    scored: the text that was scored, 'continuation' or 'prefix+continuation'.
    read: reads the records; None: `read_records`.
    log: gets one line.

  Returns:
    The number of records.

  Raises:
    UserError: records or score files that cannot be used, a text without a score, a record that
      has another score of that name, a value that the form cannot hold; an output that exists; a
      divergence of the next token beside the records that is not theirs.
  """
  from fairjax.generate import check_complete, read_records
  read = read or read_records
  output = refuse_existing(output)
  if not output.name.endswith(_FORMS):
    raise UserError(f'--output={output} must end in one of {", ".join(_FORMS)}')
  check_complete(source)
  next_token = saved_next_token(source)
  tables = dict(_read_scores(path) for path in scores)
  if len(tables) < len(scores):
    raise UserError(f'two of the score files are of one scorer: {", ".join(map(str, scores))}')

  def records() -> Iterator[Mapping[str, Any]]:
    return map(lambda record: _scored(record, tables, scored), read(source))

  with atomic_write(output) as file:
    if output.suffix == '.parquet':
      count = _write_parquet(file, records, source, tables)
    else:
      count = _write_lines(file, records(), compressed=output.suffix == '.gz')
  carry_next_token(next_token, output)
  log(f'{output}: {count:,} records'
      + (f', with the scores of {", ".join(tables)}' if tables else ''))
  return count


def _write_parquet(file, records, source, tables) -> int:
  from fairjax.generate.parquet import RecordTypes, write_rows
  types = RecordTypes()
  for record in records():
    types.add(record)
  schema = types.schema({
    'source': pathlib.Path(source).name,
    'scorers': {name: fingerprint for name, (fingerprint, _) in tables.items()}})
  return write_rows(file, records(), schema)


def _write_lines(file, records: Iterable[Mapping[str, Any]], *, compressed: bool) -> int:
  from fairjax.generate.records import encode_records
  count = 0
  records = iter(records)
  while chunk := list(itertools.islice(records, _CHUNK)):
    try:
      file.write(encode_records([{k: v for k, v in r.items() if k != '_where'} for r in chunk],
                                compressed=compressed))
    except (ValueError, TypeError) as e:  # NaN, half a character, what only Parquet knows
      raise UserError(f'{chunk[0]["_where"]} or one of the {len(chunk) - 1} records behind it '
                      f'cannot be written as JSON ({e}): mend it') from None
    count += len(chunk)
  return count


def _read_scores(path: str | os.PathLike) -> tuple[str, tuple[str, dict[bytes, float]]]:
  """(scorer, (fingerprint, text digest -> score)) of a score file."""
  from fairjax.measure.score_cache import read_score_file
  from fairjax.measure.score_log import holds_paid_scores
  from fairjax.measure.similarity import holds_cosines
  if not pathlib.Path(path).is_file():
    raise UserError(f'score file not found: {path}')
  if holds_paid_scores(path):
    raise UserError(f'{path} holds scores as they were paid for: keep it; fairjax measure '
                    '--keep=DIR with the same scorer pays for none of them again and writes '
                    'DIR/ATTRIBUTE.SCORER.jsonl, which --scores takes')
  header, known = read_score_file(path)
  if not header:
    raise UserError(f'{path} holds no scores: make it with fairjax measure --keep')
  if holds_cosines(header['scorer']):
    raise UserError(f"{path} holds cosines of continuations and prefixes ({header['scorer']}), not "
                    'scores of texts: --scores takes the files of scorers beside it')
  return header['scorer'], (header['fingerprint'], known)


def _scored(
  record: dict[str, Any], tables: Mapping[str, tuple[str, dict[bytes, float]]], scored: str
) -> dict[str, Any]:
  """A record with its scores."""
  from fairjax.measure.generations import join_text
  from fairjax.measure.score_cache import text_digest
  if not tables:
    return record
  text = record['continuation']
  if scored != 'continuation':
    text = join_text(record['prefix'], text)
  digest, found = text_digest(text), dict(record.get('scores') or {})
  for name, (_, known) in tables.items():
    if digest not in known:
      raise UserError(f'{record["_where"]}: no score of {name} for this text: score these records '
                      'first (fairjax measure --keep), with the same --scored')
    if found.get(name, known[digest]) != known[digest]:
      raise UserError(f'{record["_where"]}: has another score of {name} already, {found[name]!r}')
    found[name] = known[digest]
  return record | {'scores': found}
