"""Bias-in-Bios (De-Arteaga et al. 2019) as Webster et al. 2020 report it (W-09, W-10).

A classifier reads biographies and names their profession. For every profession the gap is the
difference of the true positive rates, women less men; the measure is the slope of the line of the
gaps over the share of women in the profession, which is counted in the training split. The measure
knows two genders only, and labels them as the data set does.

Letters: R biographies, C professions.
"""

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairjax.correlations.bios_data import BiosData, read_bios
from fairjax.correlations.trends import correlation, line, over_restarts
from fairjax.measure.power import wilson

LEAST_COUNT = 10
"""Test biographies that each gender of a profession needs to have a say in the line."""

_MAX_LENGTH = 128  # tokens of a biography that are read


def female_shares(professions: np.ndarray, female: np.ndarray, classes: int) -> np.ndarray:
  """Share of women in each profession: `[C]` float64; NaN where there is nobody.

  >>> female_shares(np.array([0, 0, 1]), np.array([True, False, True]), 2).tolist()
  [0.5, 1.0]
  """
  everybody = np.bincount(professions, minlength=classes)
  women = np.bincount(professions, weights=female, minlength=classes)
  return np.divide(women, everybody, out=np.full(classes, np.nan), where=everybody > 0)


def gaps(labels: np.ndarray, predictions: np.ndarray, female: np.ndarray, classes: int
         ) -> list[dict[str, Any]]:
  """True positive rates and their gap for every profession.

  Args:
    labels: `[R]` int, the professions.
    predictions: `[R]` int.
    female: `[R]` bool.
    classes: C.

  Returns:
    C dictionaries: `n_female`, `n_male`, `tpr_female`, `tpr_male`, `gap` (female - male), and
    `std_error` of it; None where a gender has no biography.
  """
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


def gap_line(cells: Sequence[dict[str, Any]], shares: np.ndarray, *, least: int = LEAST_COUNT
             ) -> dict[str, Any]:
  """Slope and r of the gaps over the shares, of professions that have enough of both genders.

  Args:
    cells: of `gaps`.
    shares: `[C]` in [0, 1], NaN where nobody is known.
    least: test biographies that each gender needs.

  Returns:
    `slope` and `intercept` (see `trends.line`), `r`, `mean_absolute_gap` (over the same
    professions; None without any) and `left_out`, the numbers of the others.
  """
  used = [i for i, cell in enumerate(cells)
          if min(cell['n_female'], cell['n_male']) >= max(1, least) and np.isfinite(shares[i])]
  x, y = shares[used], np.array([cells[i]['gap'] for i in used], np.float64)
  return {**line(x, y), 'r': correlation(x, y),
          'mean_absolute_gap': float(np.abs(y).mean()) if len(y) else None,
          'left_out': sorted(set(range(len(cells))) - set(used))}


def measure_bios(
  model: Any, data: str | os.PathLike, *, mode: str = 'full', freeze: str = 'none',
  name: str = 'baseline', recipe: Any = None, restarts: int = 5, seed: int = 0,
  least: int = LEAST_COUNT, max_length: int = _MAX_LENGTH, folder: str | os.PathLike | None = None,
  log: Callable[[str], None],
) -> dict[str, Any]:
  """Trains classifiers of biographies and measures accuracy and gaps (W-09, W-10).

  Args:
    model: a directory or an open `LanguageModel`; see `tasks.open_learner`.
    data: file or folder of `read_bios`.
    mode: 'full' or 'frozen'.
    freeze: of 'full', what does not move.
    name: of a workdir, which of its models.
    recipe: `finetune.Recipe`; None: that of `stsb.default_recipe`.
    restarts: how many; restart i has the seed `seed + i`.
    seed: see there; also of the splits where the data has none.
    least: test biographies that each gender of a profession needs for the line.
    max_length: tokens of a biography that are read.
    folder: keeps what is finished; the same call goes on.
    log: called with lines of progress.

  Returns:
    JSON values: `slope`, `r`, `accuracy`, `mean_absolute_gap` (`over_restarts` of each),
    `by_profession` with n of every cell, `left_out`, and how it was made.

  Raises:
    UserError: data or model cannot be used.
  """
  from fairjax.correlations.stsb import default_recipe
  from fairjax.correlations.tasks import open_learner
  from fairjax.finetune import Inputs, Labelled, run_restarts
  bios = read_bios(data, seed=seed)
  train, test = bios.splits['train'], bios.splits['test']
  learner = open_learner(model, labels=bios.names, mode=mode, freeze=freeze, name=name,
                         max_length=max_length, log=log)
  recipe = recipe or default_recipe(mode, seed=seed)
  log(f'[bios] {len(bios.names)} professions, {len(train.texts):,} training and '
      f"{len(test.texts):,} test biographies, splits {'given' if bios.given else 'drawn'}")
  shares = female_shares(train.professions, train.female, len(bios.names))

  def measure(predict):
    predictions = predict(Inputs(test.texts)).argmax(-1)
    cells = gaps(test.professions, predictions, test.female, len(bios.names))
    share, n = float((predictions == test.professions).mean()), len(test.texts)
    low, high = wilson(share, n)
    return {'cells': cells, **gap_line(cells, shares, least=least),
            'accuracy': {'value': share, 'low': low, 'high': high, 'n': n},
            'truncated': learner.count_truncated(Inputs(train.texts), Inputs(test.texts))}

  probe = hashlib.sha256(repr([bios.digest, least]).encode()).hexdigest()
  found = run_restarts(
    learner, Labelled(Inputs(train.texts), train.professions), measure, recipe=recipe,
    restarts=restarts, probe=probe, folder=folder, log=log)
  return {'task': 'bios', 'model': learner.name, 'mode': mode, 'freeze': learner.freeze,
          'learner': learner.identity, 'recipe': vars(recipe), 'least': least,
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
             for key in ('slope', 'intercept', 'r', 'accuracy')},
          'mean_absolute_gap': over_restarts(gap),
          'left_out': [bios.names[i] for i in ends[0]['left_out']], 'by_profession': rows,
          'train_texts': len(train.texts), 'test_texts': len(test.texts)}
