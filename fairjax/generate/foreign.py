"""Generations as other tools write them, as records: fields found by paths into each item.

A path is names and numbers with dots: `doc.query`, `messages.-1.content`. A number takes an entry
of a list, or of a text the part between vertical bars (`custom_id.0` of "France|3").

What the tools write:

- lm-eval: the samples file of `--log_samples` (LM Evaluation Harness), with `doc`, `arguments` and
  `resps`, which holds a text for each repeat. It lists all again for each further `filter`.
- inspect: a log of Inspect, `.eval` (a zip archive) or `.json`, with `samples`.
- langfair: a response table, as the result of its generators in JSON (`data`, columns) or as a
  table; columns `NAME_prompt` and `NAME_response` are the value NAME of counterfactual prompts.
  A text of its own stands for what failed.
- csv: CSV, TSV or Parquet; the columns are named by rules.
- openai-batch: results of a batch of chat completions or responses, joined with the requests by
  `custom_id` where their file is given (`request` of an item).

An answer that is null (a refusal) is an empty continuation. None of the tools couples the samples
of different values: records get sample numbers by a rule only.
"""

import collections
import functools
import itertools
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fairjax.counterfactual.attributes import Attribute
from fairjax.errors import UserError, unknown_name
from fairjax.generate.records import WHOLE, TemplateFinder
from fairjax.inputs import open_input, read_text
from fairjax.tables import parquet_rows, parse_json, read_header, read_rows

_ABSENT = object()
_FAILED = 'Unable to get response'  # of langfair
_ERROR = 'that ended with an error'
_BEGIN, _HEAD_ROWS = 1 << 16, 5  # bytes and rows that show the columns of a table
_Items = Iterator[tuple[dict[str, Any], str]]


def foreign_records(
  path: str | os.PathLike, form: str, *, rules: Mapping[str, str] | None = None,
  attribute: Attribute | None = None, requests: str | os.PathLike | None = None,
  left_out: collections.Counter,
) -> Iterator[dict[str, Any]]:
  """Yields what another tool wrote in one of `FORMS` as records for `read_records`."""
  # `rules` (field of records -> path into an item) go before those of the form. Where none gives
  # `value`, `attribute` finds it in the prefix; left out is what holds none of its values, or
  # several. `left_out` gets in words what was left out, and how often.
  if form not in FORMS:
    raise unknown_name('form', form, FORMS)
  if requests is not None and form != 'openai-batch':
    raise UserError('--requests belongs to --from=openai-batch')
  rules, followed = dict(rules or {}), set()
  read = FORMS[form]
  if requests is not None:
    read = functools.partial(read, requests=requests)
  elif form == 'csv':
    read = functools.partial(read, columns=tuple(rules.values()))
  find = (TemplateFinder(attribute).find_value
          if attribute is not None and 'value' not in rules else None)
  for item, where in _in_form(read(path, left_out), path, form):
    record = {k: v for k, v in item.pop('_fields', {}).items()
              if v is not None or k == 'continuation'}
    for field, way in rules.items():
      value = _follow(item, way)
      if value is not _ABSENT:
        followed.add(field)
        record[field] = (int(value) if field in ('sample', 'template') and isinstance(value, str)
                         and WHOLE.fullmatch(value) else value)
    missing = [f for f in ('prefix', 'continuation', *['value'] * (find is None))
               if record.get(f) is None and (f != 'continuation' or f not in record)]
    if missing:
      left_out[f"without {' and '.join(missing)}"] += 1
      continue
    if find is not None and 'value' not in record:
      prefix = record['prefix']
      record['value'] = find(prefix) if isinstance(prefix, str) else None
      if record['value'] is None:
        left_out[f'whose prefix does not hold one value of {attribute.name}'] += 1
        continue
    yield record | {'_where': where}
  if unused := [f'{field}={way}' for field, way in rules.items() if field not in followed]:
    raise UserError(f"{path}: no item has {', '.join(unused)}: look at the names in the file")


def _in_form(items: _Items, path: str | os.PathLike, form: str) -> _Items:
  """The items; `UserError` where a reader meets what the form does not have."""
  try:
    yield from items
  except (AttributeError, KeyError, TypeError) as e:
    raise UserError(f'{path}: not of the form {form} ({e}): name its columns with --from=csv and '
                    '--map, or fix the file') from None


def _follow(item: Any, way: str) -> Any:
  """What is at the end of a path."""
  if isinstance(item, dict) and way in item:
    return item[way]
  for step in way.split('.'):
    if isinstance(item, str) and '|' in item:
      item = item.split('|')
    try:
      item = item[step] if isinstance(item, dict) else item[int(step)]
    except (KeyError, IndexError, ValueError, TypeError):
      return _ABSENT
  return item


def _rows(path: str | os.PathLike, columns: Sequence[str] = ()) -> _Items:
  """JSON lines, a JSON array, or a table, which must have `columns`."""
  with open_input(path, parquet=True) as file:
    if file.peek(4).startswith(b'PAR1'):
      yield from parquet_rows(file, path)
      return
    columns = columns or read_header(file.peek(_BEGIN), rows=_HEAD_ROWS, pattern='.*')
    for row, where in read_rows(file, path, columns):
      if not isinstance(row, dict):
        raise UserError(f'{where}: expected a JSON object, not {type(row).__name__}')
      yield row, where


def _answers(prefix: Any, answers: Any, text: Callable[[Any], Any] = lambda answer: answer
             ) -> list[dict[str, Any]]:
  """The fields of each answer in a list to a prompt; where there is none, those of the prompt."""
  return [{'prefix': prefix, 'continuation': text(answer)} for answer in (
    answers if isinstance(answers, list) else ())] or [{'prefix': prefix}]


def _lm_eval(path: str | os.PathLike, left_out: collections.Counter) -> _Items:
  first = _ABSENT
  for item, where in _rows(path):
    first = item.get('filter') if first is _ABSENT else first
    if item.get('filter') != first:
      left_out[f'that repeat others for another filter than {first}'] += 1
      continue
    prefix = next((p for way in ('arguments.gen_args_0.arg_0', 'arguments.0.0')
                   if (p := _follow(item, way)) is not _ABSENT), None)
    if isinstance(prefix, list) and isinstance((prefix or [None])[0], str):
      prefix = parse_json(prefix[0], where)  # of a chat
    for fields in _answers(_prompt(prefix), _follow(item, 'resps.0')):
      if isinstance(fields.get('continuation'), str | None):
        yield item | {'_fields': fields}, where
      else:
        left_out['with log-likelihoods instead of texts'] += 1


def _message(content: Any) -> str | None:
  """The text of a message, which is a text or parts of it."""
  if isinstance(content, list):
    content = ''.join(part.get('text', '') for part in content if isinstance(part, dict))
  return content if isinstance(content, str) else None


def _prompt(messages: Any) -> str | None:
  """A prompt: a text, or the last message of the user."""
  if isinstance(messages, list):
    users = [m for m in messages if isinstance(m, dict) and m.get('role') == 'user']
    return _message(users[-1].get('content')) if users else None
  return messages if isinstance(messages, str) else None


def _inspect(path: str | os.PathLike, left_out: collections.Counter) -> _Items:
  for item, where in _inspect_samples(path):
    if item.get('error'):
      left_out[_ERROR] += 1
      continue
    for fields in _answers(_prompt(item.get('input')), _follow(item, 'output.choices'),
                           lambda choice: _message(_follow(choice, 'message.content'))):
      yield item | {'_fields': fields}, where


def _inspect_samples(path: str | os.PathLike) -> _Items:
  if zipfile.is_zipfile(path):
    try:
      with zipfile.ZipFile(path) as archive:
        names = [n for n in archive.namelist() if n.startswith('samples/') and n.endswith('.json')]
        for name in sorted(names):
          yield json.loads(archive.read(name)), f'{path}, {name}'
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as e:
      raise UserError(f'{path}: cannot be read ({e}): write it as JSON with '
                      'inspect log convert --to json') from None
    return
  samples = _json(path).get('samples')
  if not isinstance(samples, list):
    raise UserError(f"{path}: no list 'samples': not a log of Inspect with its samples")
  for number, sample in enumerate(samples, 1):
    yield sample, f'{path}, sample {number}'


def _json(path: str | os.PathLike) -> dict[str, Any]:
  """The object of a JSON file."""
  text = read_text(path)
  try:
    value = json.loads(text)
  except (ValueError, RecursionError) as e:
    raise UserError(f'{path}: not JSON ({e}): fix the file') from None
  if not isinstance(value, dict):
    raise UserError(f'{path}: expected a JSON object, not {type(value).__name__}')
  return value


def _langfair(path: str | os.PathLike, left_out: collections.Counter) -> _Items:
  groups: list[str] | None = None
  templates: dict[tuple, int] = {}
  for row, where in _langfair_rows(path):
    if groups is None:
      groups = [name.removesuffix('_response') for name in row if name.endswith('_response')]
    prompts = tuple(row.get(f'{g}_prompt') for g in groups)
    for group in groups or ['']:
      name = f'{group}_' if group else ''
      fields = {'prefix': row.get(f'{name}prompt')}
      if group:
        fields |= {'value': group, 'template': templates.setdefault(prompts, len(templates))}
      if f'{name}response' in row:
        fields['continuation'] = row[f'{name}response']
      if fields.get('continuation') == _FAILED:
        left_out[_ERROR] += 1
      else:
        yield row | {'_fields': fields}, where


def _langfair_rows(path: str | os.PathLike) -> _Items:
  with open_input(path, parquet=True) as file:
    columns_of_json = file.peek(64).lstrip()[:1] == b'{'
  value = None
  if columns_of_json:
    try:
      value = _json(path).get('data')
    except UserError:  # JSON lines
      pass
  if not isinstance(value, dict):
    yield from _rows(path)
    return
  if len({len(column) for column in value.values()}) > 1:
    raise UserError(f"{path}: the columns of 'data' differ in length")
  for number, cells in enumerate(zip(*value.values(), strict=True), 1):
    yield dict(zip(value, cells, strict=True)), f'{path}, row {number}'


def _openai_batch(path: str | os.PathLike, left_out: collections.Counter, *,
                  requests: str | os.PathLike | None = None) -> _Items:
  sent = {} if requests is None else {item.get('custom_id'): item for item, _ in _rows(requests)}
  for item, where in _rows(path):
    body = _follow(item, 'response.body')
    if item.get('error') or _follow(item, 'response.status_code') != 200 or not isinstance(
        body, dict):
      left_out[_ERROR] += 1
      continue
    request = sent.get(item.get('custom_id'), {})
    prefix = next((p for key in ('messages', 'input', 'prompt') if (
      p := _prompt(_follow(request, f'body.{key}'))) is not None), None)
    choices = body.get('choices')
    if not isinstance(choices, list):
      texts = [_message(list(itertools.chain.from_iterable(
        part.get('content') or [] for part in body.get('output') or []
        if part.get('type') == 'message')))]
    else:
      texts = [choice.get('text') if isinstance(choice, dict) and 'message' not in choice
               else _message(_follow(choice, 'message.content')) for choice in choices]
    for fields in _answers(prefix, texts):
      yield item | {'request': request, '_fields': fields}, where


FORMS: dict[str, Callable[..., _Items]] = {
  'lm-eval': _lm_eval, 'inspect': _inspect, 'langfair': _langfair,
  'csv': lambda path, left_out, columns=(): _rows(path, columns), 'openai-batch': _openai_batch}
"""Readers of (item, place) by the name of the form; `_fields` of an item are what it knows."""


def parse_rules(texts: Sequence[str]) -> dict[str, str]:
  """The rules of `--map`: FIELD=PATH, several with commas.

  >>> parse_rules(['prefix=doc.query,value=doc.country'])
  {'prefix': 'doc.query', 'value': 'doc.country'}
  """
  pairs = [part.partition('=') for text in texts for part in text.split(',')]
  found = {ours.strip(): theirs.strip() for ours, _, theirs in pairs}
  if len(found) < len(pairs) or not all(found) or not all(found.values()):
    raise UserError(f"--map={','.join(texts)} must be pairs of a field of records and a path, each "
                    'field once, e.g. prefix=doc.query,value=doc.country')
  return found
