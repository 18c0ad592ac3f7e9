"""Resilience to fine-tuning (Webster et al. 2020, section 6; W-18, W-19).

A model is fine-tuned on STS-B with nothing, the embedding, or the first k layers frozen; accuracy
and correlation are followed over the steps (figure 1) and compared over what is frozen (figure 2).
Step 0 is a head on the frozen model.
"""

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.files import write_json
from fairjax.gender.persons import COLUMN, read_professions
from fairjax.gender.stsb import SPLITS, default_recipe, find_split, measure_stsb, read_pairs

_CURVE_TEMPLATES = 40


def curve_steps(total: int, points: int) -> tuple[int, ...]:
  """Steps at which a curve looks: 0, then denser at the beginning, where most is learned."""
  if points < 1:
    return ()
  steps = np.round(total * (np.arange(points) / points) ** 2).astype(int)
  return tuple(sorted({0, *steps.tolist()} - {total}))


def measure_resilience(
  model: str | os.PathLike, data: str | os.PathLike, output: str | os.PathLike, *,
  professions: str | os.PathLike, column: str = COLUMN, freezes: Sequence[str] = ('none',),
  points: int = 6, recipe: Any = None, restarts: int = 5, seed: int = 0,
  curve_templates: int = _CURVE_TEMPLATES, log: Callable[[str], None],
) -> dict[str, Any]:
  """Fine-tunes with several parts frozen and follows accuracy and correlation."""
  from fairjax.gender.probe_tasks import open_learner
  freezes = list(freezes)
  if not freezes or len(set(freezes)) != len(freezes):
    raise UserError(f"--freeze={','.join(freezes)}: name what is frozen, each once, e.g. "
                    'none,embedding,2')
  output = pathlib.Path(output)
  recipe = recipe or default_recipe('full', seed=seed)
  # What is wrong with the files, or a word, must not wait for the trainings before it.
  read_professions(professions, column=column)
  rows = [len(read_pairs(find_split(data, split)).first) for split in SPLITS][0]
  steps = curve_steps(-(-rows // recipe.batch_size) * recipe.epochs, points)
  for freeze in freezes:
    open_learner(model, labels=['similarity'], mode='full', freeze=freeze, log=lambda line: None)
  runs = []
  for freeze in freezes:
    log(f'[resilience] freeze {freeze}')
    curve = tuple(s for s in steps if s) if freeze == 'all' else steps
    runs.append(measure_stsb(
      model, data, professions=professions, column=column, mode='full', freeze=freeze,
      recipe=recipe, restarts=restarts, seed=seed, folder=output / f'freeze-{freeze}', curve=curve,
      curve_templates=curve_templates, log=log))
  result = {'task': 'resilience', 'model': runs[0]['model'], 'runs': runs}
  write_json(output / 'resilience.json', result)
  return result
