"""Biographies with profession and gender, in the forms in which Bias-in-Bios is passed around.

De-Arteaga et al. 2019: biographies from the web, labelled with one of 28 professions and, by their
pronouns, one of two genders. The published list of dictionaries is a pickle, which is never read.
"""

import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fairjax.errors import UserError
from fairjax.inputs import PICKLE, open_input
from fairjax.tables import read_rows

SPLITS = ('train', 'dev', 'test')
SPLIT_SHARES = {'train': 0.65, 'dev': 0.1, 'test': 0.25}
"""Shares of a file without splits, within each profession and gender (De-Arteaga et al. 2019)."""

_PROFESSION = ('profession', 'title')
_TEXT = ('text', 'hard_text', 'raw', 'bio')  # bio: the authors' text without names and pronouns
_GENDERS = {'f': 1, 'female': 1, '1': 1, 'm': 0, 'male': 0, '0': 0}
_SPLIT_NAMES = {'train': 'train', 'dev': 'dev', 'valid': 'dev', 'validation': 'dev', 'val': 'dev',
                'test': 'test'}
_SUFFIXES = tuple(f'{kind}{packed}' for kind in ('.jsonl', '.json', '.tsv', '.csv')
                  for packed in ('', '.gz', '.bz2', '.xz', '.zst', '.zip'))
_FORM = 'one JSON object a line, or a table with a header: profession, gender, text'


class Bios(NamedTuple):
  """Biographies of one split.

  Attributes:
    texts: R texts.
    professions: `[R]` int32, numbers of `names`.
    female: `[R]` bool.
  """

  texts: list[str]
  professions: np.ndarray
  female: np.ndarray


class BiosData(NamedTuple):
  """All splits.

  Attributes:
    names: C professions, sorted.
    splits: 'train' and 'test', and 'dev' if there is one.
    given: the file says which split a biography is in; otherwise a seed did.
    digest: SHA-256 (hex) of all of it.
  """

  names: tuple[str, ...]
  splits: dict[str, Bios]
  given: bool
  digest: str


def read_bios(path: str | os.PathLike, *, seed: int = 0) -> BiosData:
  """Reads a file, or a folder of `train`, `dev` (or `valid`) and `test` files.

  Fields: `profession` (or `title`), `gender` (F, female, 1; M, male, 0), the text, and, in a single
  file, `split`. A file without splits is split by the seed, within each profession and gender.

  The text is the first there is of `text`, `hard_text`, `raw`, whose first `start_pos` characters,
  which name the profession, are cut off as its authors do, and `bio`, in which the authors have
  replaced names and pronouns by `_`; the paper reads the text as it was (W-09).

  Raises:
    UserError: unreadable, a pickle, or a line with its number that lacks something; a split without
      biographies; a profession of the test split that the training split does not know.
  """
  path = pathlib.Path(path)
  if path.is_dir():
    rows = []
    for file in sorted(p for p in path.iterdir() if p.name.endswith(_SUFFIXES)):
      split = _SPLIT_NAMES.get(file.name.partition('.')[0].lower())
      if split is not None:
        rows += [row | {'split': split} for row in _read(file)]
    if not rows:
      raise UserError(f'{path} holds no train and test file ({", ".join(_SUFFIXES)})')
  else:
    rows = list(_read(path))
  given = {row['split'] is not None for row in rows}
  if len(given) > 1:
    raise UserError(f"{path}: some biographies name a 'split' and some do not")
  names = tuple(sorted({row['profession'] for row in rows}))
  if len(names) < 2:
    raise UserError(f'{path}: {len(names)} profession: a classifier needs two at least')
  if not given.pop():
    _draw_splits(rows, seed)
    given = {False}
  else:
    given = {True}
  splits = {split: _bios([r for r in rows if r['split'] == split], names) for split in SPLITS}
  _check_splits(splits, names, path)
  content = json.dumps([[r['text'], r['profession'], r['female'], r['split']] for r in rows])
  digest = hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()
  return BiosData(names, {s: b for s, b in splits.items() if b.texts}, given.pop(), digest)


def _read(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Rows of one file: text, profession, female, split (None: it says none)."""
  if path.suffix in ('.pkl', '.pickle'):  # whose first bytes may be any
    raise UserError(f'{path} is {PICKLE} with profession, gender and text')
  with open_input(path, what='biographies') as file:
    count = 0
    for row, where in read_rows(file, path, ('gender',), unquoted_tabs=True):
      if not isinstance(row, dict):
        raise UserError(f'{where} is no JSON object')
      count += 1
      yield _row(row, where)
  if not count:
    raise UserError(f'{path} holds no biography: {_FORM}')


def _row(row: Mapping[str, Any], where: str) -> dict[str, Any]:
  profession = _field(row, _PROFESSION, where)
  gender = _GENDERS.get(str(row.get('gender', '')).strip().lower())
  if gender is None:
    raise UserError(f"{where}: gender {row.get('gender')!r} is not one of F, M, female, male, 1 "
                    '(female), 0 (male), which is what the measure knows')
  text = str(_field(row, _TEXT, where))
  if _first(row, _TEXT) == 'raw':
    start = str(row.get('start_pos', 0))
    if not start.isdecimal() or not int(start) < len(text):
      raise UserError(f'{where}: start_pos {start} lies outside the text')
    text = text[int(start):]
  if not text.strip():
    raise UserError(f'{where}: the text is empty')
  split = row.get('split')
  if split is not None and str(split).lower() not in _SPLIT_NAMES:
    raise UserError(f'{where}: split {split!r} is not one of {", ".join(_SPLIT_NAMES)}')
  return {'text': text.strip(), 'profession': str(profession).strip(), 'female': bool(gender),
          'split': None if split is None else _SPLIT_NAMES[str(split).lower()]}


def _field(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> Any:
  name = _first(row, names)
  if name is None:
    raise UserError(f"{where}: no {' or '.join(repr(n) for n in names)} ({_FORM})")
  return row[name]


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
  """The first of the names that is not empty in a row."""
  return next((n for n in names if row.get(n) is not None and str(row[n]).strip()), None)


def _draw_splits(rows: list[dict[str, Any]], seed: int) -> None:
  """Gives every row a split: the shares hold within each profession and gender, rounded."""
  rng = np.random.default_rng([seed, 0xB105])
  cells: dict[tuple[str, bool], list[dict[str, Any]]] = {}
  for row in rows:
    cells.setdefault((row['profession'], row['female']), []).append(row)
  ends = np.cumsum(list(SPLIT_SHARES.values()))
  for key in sorted(cells):
    members = cells[key]
    order = rng.permutation(len(members))
    for place, i in enumerate(order.tolist()):
      part = int(np.searchsorted(ends, (place + 0.5) / len(members)))
      members[i]['split'] = SPLITS[min(part, len(SPLITS) - 1)]


def _bios(rows: list[dict[str, Any]], names: tuple[str, ...]) -> Bios:
  number = {name: i for i, name in enumerate(names)}
  return Bios([r['text'] for r in rows],
              np.array([number[r['profession']] for r in rows], np.int32),
              np.array([r['female'] for r in rows], bool))


def _check_splits(splits: Mapping[str, Bios], names: tuple[str, ...], path: pathlib.Path) -> None:
  for split in ('train', 'test'):
    if not splits[split].texts:
      raise UserError(f'{path}: no biography in the {split} split')
  unknown = sorted(set(splits['test'].professions.tolist())
                   - set(splits['train'].professions.tolist()))
  if unknown:
    raise UserError(f"{path}: the test split holds '{names[unknown[0]]}', which the training split "
                    'does not: no classifier can learn it')
