"""Blinded annotation sheets and the key that undoes the blinding.

Sheets show texts and nothing about where they come from: no model, method, score, attribute,
template or sample number; the sensitive value only where it is part of the text. Items are numbered
after they were shuffled, and each annotator gets them in an order of their own. Everything is a
function of the records, the options and the seed.

The key is JSON: the options, a digest of every record file, and for each item its record and what
is shown of it. `export` is a digest of all that; sheets carry its beginning, so that a returned
sheet is known to belong to the key, and a changed key is refused.
"""

import collections
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import fairjax
from fairjax.counterfactual.attributes import Attribute
from fairjax.counterfactual.word_forms import WordFinder
from fairjax.errors import UserError
from fairjax.files import atomic_write, make_folder, write_json
from fairjax.inputs import input_sha256, read_text
from fairjax.measure.generations import SCORED_TEXTS, join_text
from fairjax.measure.human_selection import (
  NO_MODEL,
  Pair,
  Record,
  count_records,
  draw_pairs,
  draw_stratified,
)
from fairjax.measure.human_sheets import LABEL, write_sheet
from fairjax.measure.human_tasks import Task, find_task, instructions
from fairjax.measure.relevance import mention_pattern

KIND, SCHEMA = 'fairjax human annotation key', 1
MASK = '[hidden]'
_PURPOSE = {'draw': 0x30, 'number': 0x31, 'assign': 0x32, 'order': 0x33}
_KEPT = ('attribute', 'value', 'template', 'sample', 'prefix', 'continuation', 'scores')
_EXPORT_DIGITS = 12


@dataclasses.dataclass(frozen=True)
class ExportOptions:
  """How to export.

  Attributes:
    tasks: names of annotation tasks.
    annotators: number of people.
    overlap: people who rate each item (the paper: 2).
    seed: of the draw, the numbering, the assignment and the orders.
    items: items of each task (the paper: 100); not used with `pairs`.
    pairs: pairs of values for human I.F. (H-40); empty: a stratified draw.
    per_prefix: continuations of each prefix with `pairs` (the paper: 50).
    coupled: samples of equal number share their noise; with `pairs`, equal numbers are drawn.
    text: what sentiment annotators read, 'continuation' or 'prefix+continuation'. Give automatic
      scorers the same.
    mask: show `[hidden]` for each sensitive token of any value of the attribute (whole words, any
      case, the rule of S.S.c). Articles, pronouns, plurals and derived words stay as they are and
      may give the value away.
  """

  tasks: tuple[str, ...]
  annotators: int
  overlap: int = 2
  seed: int = 0
  items: int = 100
  pairs: tuple[Pair, ...] = ()
  per_prefix: int = 50
  coupled: bool = True
  text: str = 'continuation'
  mask: bool = False

  def __post_init__(self):
    for name, least in (('annotators', 1), ('overlap', 1), ('items', 1), ('per_prefix', 1),
                        ('seed', 0)):
      if getattr(self, name) < least:
        raise UserError(f'--{name} must be at least {least}, not {getattr(self, name)}')
    if self.overlap > self.annotators:
      raise UserError(f'--overlap={self.overlap} needs as many annotators, not '
                      f'--annotators={self.annotators}')
    if self.text not in SCORED_TEXTS:
      raise UserError(f"--text must be {' or '.join(SCORED_TEXTS)}, not '{self.text}'")
    if self.mask and 'relevance' in self.tasks:
      raise UserError('relevance asks about the word that --mask hides: export with '
                      '--task=sentiment, or without --mask')


def export_sheets(
  read: Callable[[], Iterable[Record]], files: Sequence[str | os.PathLike],
  attributes: Callable[[str], Attribute], options: ExportOptions, *, output: str | os.PathLike,
  key: str | os.PathLike, separator: str = 'comma', bom: bool = False,
) -> dict[str, Any]:
  """Writes one sheet per task and annotator, the instructions and, elsewhere, the key.

  Args:
    read: starts reading all records from the beginning (`human_selection`).
    files: the record files, for their digests.
    attributes: gives an attribute by its name in the records; called for relevance (S.S.c is
      recorded in the key) and for the mask.
    options: see there.
    output: folder for the annotators' files; must be absent or empty.
    key: file of the key; must not exist, and not lie in `output`, which is handed out.
    separator: see `human_sheets.write_sheet`.
    bom: see there.

  Returns:
    The key.

  Raises:
    UserError: something exists already, or the records do not allow it (`human_selection`).
  """
  folder, key_path = pathlib.Path(output), pathlib.Path(key)
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise UserError(f'{folder} is not empty: annotations are never overwritten, name a new folder')
  if key_path.exists():
    raise UserError(f'{key_path} exists: keys are never overwritten, name another with --key')
  if folder.resolve() in key_path.resolve().parents:
    raise UserError(f'{key_path} lies in the folder that annotators get: it tells them the models; '
                    'name another place with --key')
  content = _make_key(read, files, attributes, options)
  sheets = _sheets(content, options, separator=separator, bom=bom)
  make_folder(folder)
  # The key comes first: sheets without one would be worthless.
  write_json(key_path, content)
  for name, data in sheets.items():
    with atomic_write(folder / name) as file:
      file.write(data)
  return content


def load_key(path: str | os.PathLike) -> dict[str, Any]:
  """Reads a key.

  Raises:
    UserError: no such file, not a key, of another schema, or changed since it was written.
  """
  text = read_text(path, what='key of the export')
  try:
    key = json.loads(text)
  except ValueError as e:
    raise UserError(f'{path}: not JSON ({e}): give the key that the export wrote') from None
  if not isinstance(key, dict) or key.get('kind') != KIND:
    raise UserError(f'{path}: not a key of fairjax human export')
  if key.get('schema') != SCHEMA:
    raise UserError(f"{path}: schema {key.get('schema')!r} is not {SCHEMA}: import with the "
                    f"version of fairjax that wrote it ({key.get('fairjax')})")
  if key.get('export') != _digest(key):
    raise UserError(f'{path}: the key was changed after the export: use an unchanged copy')
  return key


def sheet_name(export: str, task: str, annotator: str) -> str:
  """The cell that ties each row to export, task and annotator."""
  return f'{export[:_EXPORT_DIGITS]}-{task}-{annotator}'


def _make_key(read, files, attributes, options: ExportOptions) -> dict[str, Any]:
  """Draws, numbers and assigns."""
  tasks, attributes = [find_task(name) for name in options.tasks], functools.cache(attributes)
  counts = count_records(read)
  coupled = None
  if options.pairs:
    records, coupled, empty = draw_pairs(
      read, options.pairs, options.per_prefix, coupled=options.coupled,
      entropy=(options.seed, _PURPOSE['draw']))
    drawn = [records for _ in tasks]
  else:
    empty = counts.empty
    drawn = draw_stratified(read, counts, [
      (options.items, (options.seed, _PURPOSE['draw'], _number(task))) for task in tasks])
  annotators = [f'a{i:02d}' for i in range(1, options.annotators + 1)]
  key = {
    'kind': KIND, 'schema': SCHEMA, 'fairjax': fairjax.__version__,
    'options': dataclasses.asdict(options),
    'mask': MASK if options.mask else None,
    'coupled': coupled,
    'annotators': annotators,
    'strata': len(counts.strata),
    'records': sum(counts.strata.values()) + counts.empty,
    'left_out': {'empty_continuations': empty},
    'files': [{'path': str(path), 'sha256': input_sha256(path)} for path in files],
    'tasks': {task.name: _task_key(task, records, annotators, attributes, options)
              for task, records in zip(tasks, drawn, strict=True)},
  }
  key = json.loads(json.dumps(key))  # as it will be read: tuples are lists
  return key | {'export': _digest(key)}


def _task_key(
  task: Task, records: Sequence[Record], annotators: Sequence[str],
  attributes: Callable[[str], Attribute], options: ExportOptions,
) -> dict[str, Any]:
  """Items of one task, and the items of each annotator in their order."""
  def rng(purpose, *more):
    return np.random.default_rng(
      np.random.SeedSequence((options.seed, _PURPOSE[purpose], _number(task), *more)))

  digits = max(4, len(str(len(records))))
  items, hidden = {}, 0
  for number, index in enumerate(rng('number').permutation(len(records)), 1):
    record = records[index]
    kept = {name: record[name] for name in _KEPT if record.get(name) is not None}
    kept |= {'model': record.get('model') or NO_MODEL, 'where': record['_where']}
    shown = {'prefix': record['prefix'], 'continuation': record['continuation']}
    if task.columns == ('text',):
      text = record['continuation']
      if options.text != 'continuation':
        text = join_text(record['prefix'], text)
      shown = {'text': text}
    if options.mask:
      pattern = _value_pattern(attributes, record)
      for name, text in shown.items():
        shown[name], found = pattern.replace(text, MASK)
        hidden += found
    if task.name == 'relevance':
      attribute = attributes(record['attribute'])
      value = attribute.values[attribute.value_index(record['value'])]
      kept['mentions'] = mention_pattern([value]).search(record['continuation']) is not None
    items[f'{task.letter}{number:0{digits}d}'] = {'record': kept, 'shown': shown}
  sheets = _assign(list(items), annotators, options.overlap, rng('assign'))
  for i, name in enumerate(annotators):
    sheets[name] = [sheets[name][j] for j in rng('order', i).permutation(len(sheets[name]))]
  texts = collections.Counter(tuple(item['shown'].values()) for item in items.values())
  return {'items': items, 'sheets': sheets, 'hidden_tokens': hidden,
          'items_with_equal_texts': sum(n for n in texts.values() if n > 1)}


def _assign(
  items: Sequence[str], annotators: Sequence[str], overlap: int, rng: np.random.Generator
) -> dict[str, list[str]]:
  """Gives each item to `overlap` annotators, those with the fewest so far; ties by chance."""
  sheets: dict[str, list[str]] = {name: [] for name in annotators}
  for item in items:
    order = rng.permutation(len(annotators))
    chosen = sorted(order, key=lambda i: len(sheets[annotators[i]]))[:overlap]
    for i in chosen:
      sheets[annotators[i]].append(item)
  return sheets


def _sheets(
  key: Mapping[str, Any], options: ExportOptions, *, separator: str, bom: bool
) -> dict[str, bytes]:
  """File name -> content of everything that annotators get."""
  tasks = [find_task(name) for name in options.tasks]
  files = {'instructions.txt': instructions(tasks, mask=key['mask']).encode('utf-8')}
  for task in tasks:
    part = key['tasks'][task.name]
    for annotator, items in part['sheets'].items():
      name = sheet_name(key['export'], task.name, annotator)
      rows = [[name, item, *(part['items'][item]['shown'][c] for c in task.columns), '']
              for item in items]
      files[f'{task.name}-{annotator}.csv'] = write_sheet(
        ('sheet', 'item', *task.columns, LABEL), rows, separator=separator, bom=bom)
  return files


def _value_pattern(attributes: Callable[[str], Attribute], record: Record) -> WordFinder:
  """What the mask hides in a record's texts."""
  attribute = attributes(record['attribute'])
  attribute.value_index(record['value'])  # refuses the values of another list
  return mention_pattern(attribute.values)


def _digest(key: Mapping[str, Any]) -> str:
  """Digest of a key without its field `export`, hexadecimal."""
  text = json.dumps({k: v for k, v in key.items() if k != 'export'}, sort_keys=True)
  return hashlib.sha256(text.encode('utf-8')).hexdigest()


def _number(task: Task) -> int:
  """Number of a task among the random streams."""
  return ord(task.letter)
