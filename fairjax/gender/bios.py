"""Bias-in-Bios (De-Arteaga et al. 2019) as Webster et al. 2020 report it (W-09, W-10).

For every profession the gap is the difference of the true positive rates, women less men; the
measure is the slope of the gaps over the share of women in the training split. The measure knows
two genders only, and labels them as the data set does.

Letters: R biographies, C professions.
"""

import hashlib
import json
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.counterfactual.word_forms import normal_form
from fairjax.errors import UserError
from fairjax.gender.scored_models import Scorable, open_learner
from fairjax.gender.trends import correlation, fit_slope, over_restarts
from fairjax.inputs import PICKLE, open_input
from fairjax.measure.estimates import wilson
from fairjax.pretrained.fit import Recipe
from fairjax.pretrained.heads import Inputs, Labelled, Predict, run_restarts
from fairjax.tables import parquet_rows, read_rows

# Of a file without splits, within each profession and gender (De-Arteaga et al. 2019)
SPLIT_SHARES = {'train': 0.65, 'dev': 0.1, 'test': 0.25}

_PROFESSION = ('profession', 'title')
_TEXT = ('text', 'hard_text', 'raw', 'bio')  # bio: the authors' text without names and pronouns
_GENDERS = {'f': 1, 'female': 1, '1': 1, 'm': 0, 'male': 0, '0': 0}
_SPLIT_NAMES = {'train': 'train', 'dev': 'dev', 'valid': 'dev', 'validation': 'dev', 'val': 'dev',
                'test': 'test'}
_SUFFIXES = tuple(f'{kind}{packed}' for kind in ('.jsonl', '.json', '.tsv', '.csv', '.parquet')
                  for packed in ('', '.gz', '.bz2', '.xz', '.zst', '.zip'))
_FORM = 'one JSON object a line, or a table with a header: profession, gender, text'


class Bios(NamedTuple):
  """Biographies of one split."""

  texts: list[str]
  professions: np.ndarray  # `[R]` int32, numbers of `BiosData.names`
  female: np.ndarray  # `[R]` bool


class BiosData(NamedTuple):
  """All splits."""

  names: tuple[str, ...]  # C professions, sorted
  splits: dict[str, Bios]  # 'train' and 'test', and 'dev' if there is one
  given: bool  # the file names the split of each biography; otherwise a seed drew it
  digest: str  # SHA-256 (hex) of all of it


def read_bios(path: str | os.PathLike, *, seed: int = 0) -> BiosData:
  """Reads a file, or a folder of `train`, `dev` (or `valid`) and `test` files, also in parts.

  Fields: `profession` (or `title`), `gender` (F, female, 1; M, male, 0), the text, and, in a single
  file, `split`. A file without splits is split by the seed, within each profession and gender. The
  text is the first of `text`, `hard_text`, `raw` without its first `start_pos` characters, which
  name the profession, and `bio`, the authors' text without names and pronouns; the paper reads the
  text as it was (W-09).
  """
  path = pathlib.Path(path)
  if path.is_dir():
    rows, read = [], dict[str, str]()
    for file in sorted(p for p in path.iterdir() if p.name.endswith(_SUFFIXES)):
      split = _SPLIT_NAMES.get(re.split('[.-]', file.name)[0].lower())
      if split is not None:
        plain = file.name.removesuffix(next(s for s in _SUFFIXES if file.name.endswith(s)))
        if read.setdefault(plain, file.name) != file.name:
          raise UserError(f'{path} holds {read[plain]} and {file.name}: keep one')
        rows += [row | {'split': split} for row in _read(file)]
    if not rows:
      raise UserError(f'{path} holds no train and test file ({", ".join(_SUFFIXES)})')
  else:
    rows = list(_read(path))
  given = all(row['split'] is not None for row in rows)
  if not given and any(row['split'] is not None for row in rows):
    raise UserError(f"{path}: some biographies name a 'split' and some do not")
  names = tuple(sorted({row['profession'] for row in rows}))
  spelled: dict[str, str] = {}
  for name in names:
    if (other := spelled.setdefault(normal_form(name).lower(), name)) != name:
      raise UserError(f'{path} holds the professions {other!r} and {name!r}: write one')
  if len(names) < 2:
    raise UserError(f'{path}: {len(names)} profession: a classifier needs two at least')
  if not given:
    _draw_splits(rows, seed)
  splits = {split: _bios([r for r in rows if r['split'] == split], names) for split in SPLIT_SHARES}
  for split in ('train', 'test'):
    if not splits[split].texts:
      raise UserError(f'{path}: no biography in the {split} split')
  unknown = set(splits['test'].professions.tolist()) - set(splits['train'].professions.tolist())
  if unknown:
    raise UserError(f"{path}: the test split holds '{names[min(unknown)]}', which the training "
                    'split does not: no classifier can learn it')
  content = json.dumps([[r['text'], r['profession'], r['female'], r['split']] for r in rows])
  digest = hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()
  return BiosData(names, {s: b for s, b in splits.items() if b.texts}, given, digest)


def _read(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Rows of one file: text, profession, female, split (None: it says none)."""
  if path.suffix in ('.pkl', '.pickle'):  # older pickles begin with any byte
    raise UserError(f'{path} is {PICKLE} with profession, gender and text')
  with open_input(path, what='biographies', parquet=True) as file:
    count = 0
    for row, where in (parquet_rows(file, path) if file.peek(4)[:4] == b'PAR1' else
                       read_rows(file, path, ('gender',), unquoted_tabs=True)):
      if not isinstance(row, dict):
        raise UserError(f'{where} is no JSON object')
      count += 1
      yield _row(row, where)
  if not count:
    raise UserError(f'{path} holds no biography: {_FORM}')


def _row(row: Mapping[str, Any], where: str) -> dict[str, Any]:
  _, profession = _field(row, _PROFESSION, where)
  gender = _GENDERS.get(str(row.get('gender', '')).strip().lower())
  if gender is None:
    raise UserError(f"{where}: gender {row.get('gender')!r} is not one of F, M, female, male, 1 "
                    '(female), 0 (male), which is what the measure knows')
  name, text = _field(row, _TEXT, where)
  if not isinstance(text, str) or not isinstance(profession, str | int):
    raise UserError(f'{where}: profession and text are no texts ({_FORM})')
  if name == 'raw':
    start = str(row.get('start_pos', 0))
    if not start.isdecimal() or not int(start) < len(text):
      raise UserError(f'{where}: start_pos {start} is outside the text')
    text = text[int(start):]
  if not text.strip():
    raise UserError(f'{where}: the text is empty')
  split = row.get('split')
  if split is not None and str(split).lower() not in _SPLIT_NAMES:
    raise UserError(f'{where}: split {split!r} is not one of {", ".join(_SPLIT_NAMES)}')
  return {'text': text.strip(), 'profession': str(profession).strip(), 'female': bool(gender),
          'split': None if split is None else _SPLIT_NAMES[str(split).lower()]}


def _field(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> tuple[str, Any]:
  """The first of the names that is not empty in a row, and its value."""
  for name in names:
    if row.get(name) is not None and str(row[name]).strip():
      return name, row[name]
  raise UserError(f"{where}: no {' or '.join(repr(n) for n in names)} ({_FORM})")


def _draw_splits(rows: list[dict[str, Any]], seed: int) -> None:
  """Gives every row a split: the shares hold within each profession and gender, rounded."""
  rng = np.random.default_rng([seed, 0xB105])
  cells: dict[tuple[str, bool], list[dict[str, Any]]] = {}
  for row in rows:
    cells.setdefault((row['profession'], row['female']), []).append(row)
  names, ends = list(SPLIT_SHARES), np.cumsum(list(SPLIT_SHARES.values()))
  for key in sorted(cells):
    members = cells[key]
    order = rng.permutation(len(members))
    for place, i in enumerate(order.tolist()):
      members[i]['split'] = names[np.searchsorted(ends, (place + 0.5) / len(members))]


def _bios(rows: list[dict[str, Any]], names: tuple[str, ...]) -> Bios:
  number = {name: i for i, name in enumerate(names)}
  return Bios([r['text'] for r in rows],
              np.array([number[r['profession']] for r in rows], np.int32),
              np.array([r['female'] for r in rows], bool))


LEAST_COUNT = 10  # test biographies that each gender of a profession on the line needs
_MAX_LENGTH = 128  # tokens of a biography that are read


def female_shares(professions: np.ndarray, female: np.ndarray, classes: int) -> np.ndarray:
  """Share of women in each profession: `[C]` float64; NaN where there is nobody."""
  everybody = np.bincount(professions, minlength=classes)
  women = np.bincount(professions, weights=female, minlength=classes)
  return np.divide(women, everybody, out=np.full(classes, np.nan), where=everybody > 0)


def gaps(labels: np.ndarray, predictions: np.ndarray, female: np.ndarray, classes: int
         ) -> list[dict[str, Any]]:
  """Counts, true positive rates, `gap` (female - male) and its error; None without a biography."""
  found = []
  for profession in range(classes):
    cell: dict[str, Any] = {}
    for gender, chosen in (('female', female), ('male', ~female)):
      members = (labels == profession) & chosen
      n = int(members.sum())
      cell[f'n_{gender}'] = n
      cell[f'tpr_{gender}'] = float((predictions[members] == profession).mean()) if n else None
    rates = (cell['tpr_female'], cell['tpr_male'])
    whole = None not in rates
    cell['gap'] = rates[0] - rates[1] if whole else None
    cell['std_error'] = math.sqrt(sum(
      p * (1 - p) / n for p, n in zip(rates, (cell['n_female'], cell['n_male']), strict=True))
    ) if whole else None
    found.append(cell)
  return found


def gap_line(cells: Sequence[dict[str, Any]], shares: np.ndarray) -> dict[str, Any]:
  """Slope and r of the gaps over the shares, of professions that have enough of both genders."""
  used = [i for i, cell in enumerate(cells)
          if min(cell['n_female'], cell['n_male']) >= LEAST_COUNT and np.isfinite(shares[i])]
  x, y = shares[used], np.array([cells[i]['gap'] for i in used], np.float64)
  return {'slope': fit_slope(x, y), 'r': correlation(x, y),
          'mean_absolute_gap': float(np.abs(y).mean()) if len(y) else None,
          'left_out': sorted(set(range(len(cells))) - set(used))}


def measure_bios(
  model: str | os.PathLike | Scorable, data: str | os.PathLike, *, mode: str = 'full',
  name: str = 'baseline', recipe: Recipe, restarts: int = 5,
  folder: str | os.PathLike | None = None, log: Callable[[str], None],
) -> dict[str, Any]:
  """Trains classifiers of biographies and measures accuracy and gaps (W-09, W-10)."""
  bios = read_bios(data, seed=recipe.seed)
  train, test = bios.splits['train'], bios.splits['test']
  counts = [np.bincount(test.professions[chosen], minlength=len(bios.names))
            for chosen in (test.female, ~test.female)]
  if (enough := int((np.minimum(*counts) >= LEAST_COUNT).sum())) < 2:
    raise UserError(f'{data}: {enough} professions have {LEAST_COUNT} biographies of each gender '
                    'in the test split: a line needs two')
  learner = open_learner(model, labels=bios.names, mode=mode, name=name,
                         max_length=_MAX_LENGTH, log=log)
  log(f'[bios] {len(bios.names)} professions, {len(train.texts):,} training and '
      f"{len(test.texts):,} test biographies, splits {'given' if bios.given else 'drawn'}")
  shares = female_shares(train.professions, train.female, len(bios.names))

  def measure(predict: Predict) -> dict[str, Any]:
    predictions = predict(Inputs(test.texts)).argmax(-1)
    cells = gaps(test.professions, predictions, test.female, len(bios.names))
    share, n = float((predictions == test.professions).mean()), len(test.texts)
    low, high = wilson(share, n)
    return {'cells': cells, **gap_line(cells, shares),
            'accuracy': {'value': share, 'low': low, 'high': high, 'n': n},
            'truncated': learner.count_truncated(Inputs(train.texts), Inputs(test.texts))}

  probe = hashlib.sha256(repr([bios.digest, LEAST_COUNT]).encode()).hexdigest()
  found = run_restarts(
    learner, Labelled(Inputs(train.texts), train.professions), measure, recipe=recipe,
    restarts=restarts, probe=probe, folder=folder, log=log)
  return {'task': 'bios', 'model': learner.name, 'mode': mode, 'freeze': learner.freeze,
          'learner': learner.identity, 'recipe': vars(recipe), 'least': LEAST_COUNT,
          'splits_given': bios.given, 'truncated': found[0]['result']['truncated'],
          **_summary([f['result'] for f in found], bios, shares),
          'seeds': [f['seed'] for f in found], 'steps': found[0]['steps'],
          'train_loss': [f['train_loss'] for f in found]}


def _summary(ends: Sequence[dict[str, Any]], bios: BiosData, shares: np.ndarray) -> dict[str, Any]:
  """Numbers over restarts."""
  train, test = bios.splits['train'], bios.splits['test']
  counts = np.bincount(train.professions, minlength=len(bios.names))
  rows = []
  for i, name in enumerate(bios.names):
    cells = [end['cells'][i] for end in ends]
    mean = {key: None if cells[0][key] is None else float(np.mean([c[key] for c in cells]))
            for key in ('tpr_female', 'tpr_male', 'gap', 'std_error')}
    rows.append({'profession': name, 'share': None if counts[i] == 0 else float(shares[i]),
                 'n_train': int(counts[i]), 'n_female': cells[0]['n_female'],
                 'n_male': cells[0]['n_male'], **mean, 'gaps': [c['gap'] for c in cells]})
  gap = [{'value': end['mean_absolute_gap'], 'low': None, 'high': None,
          'n': len(bios.names) - len(end['left_out'])} for end in ends]
  return {**{key: over_restarts([end[key] for end in ends])
             for key in ('slope', 'r', 'accuracy')},
          'mean_absolute_gap': over_restarts(gap),
          'left_out': [bios.names[i] for i in ends[0]['left_out']], 'by_profession': rows,
          'train_texts': len(train.texts), 'test_texts': len(test.texts)}
