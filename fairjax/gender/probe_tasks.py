"""A model with a new head for a task: fine-tuned whole, in part, or read for frozen features."""

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from fairjax.errors import UserError

MODES = ('full', 'frozen')


def open_learner(
  model: Any, *, labels: Sequence[str], mode: str, pairs: bool = False, freeze: str = 'none',
  name: str = 'baseline', max_length: int | None = None, log: Callable[[str], None],
) -> Any:
  """A learner of `fairjax.finetune` for a model."""
  from fairjax.pretrained.heads import FeatureLearner, TokenLearner
  if mode not in MODES:
    raise ValueError(f'mode {mode}')
  if not isinstance(model, str | os.PathLike):
    if mode == 'full':
      raise UserError(f'{model.name} is open already: give the directory of a BERT or ALBERT to '
                      'fine-tune it, or use frozen features')
    return FeatureLearner(model, labels=labels, log=log)
  encoder = is_encoder(pathlib.Path(model))
  if mode == 'full':
    if not encoder:
      raise UserError(f'{model} is no BERT or ALBERT: only these are fine-tuned as a whole, of '
                      'other models the features are read: --mode=frozen')
    return TokenLearner(model, labels=labels, pairs=pairs, freeze=freeze, max_length=max_length,
                        log=log)
  if freeze not in ('none', 'all'):
    raise UserError(f'--freeze={freeze}: frozen features move nothing: leave it out, or give '
                    '--mode=full')
  from fairjax.gender.scored_models import open_language_model
  return FeatureLearner(open_language_model(model, model=name, features_only=True), labels=labels,
                        log=log)


def is_encoder(folder: pathlib.Path) -> bool:
  """Whether a folder is a published BERT or ALBERT."""
  from fairjax.gender.scored_models import is_published
  from fairjax.pretrained import read_folder
  return is_published(folder) and read_folder(folder)[1]['model_type'] in ('bert', 'albert')
