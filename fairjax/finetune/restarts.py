"""Several restarts of one fine-tuning, each with curves; what is finished is kept.

Webster et al. 2020 report mean and standard deviation over five random restarts (W-11), and
training curves whose step 0 is a head on the frozen model (W-18).
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from fairjax.classifier.trainer import Recipe, Trainer
from fairjax.classifier.training import check_identity
from fairjax.errors import UserError
from fairjax.files import FolderLock, read_sealed_json, write_sealed_json
from fairjax.finetune.inputs import Inputs, Labelled
from fairjax.pretrained.freezing import ALL, frozen_words

Predict = Callable[[Inputs], np.ndarray]
"""Scores `[R, C]` of inputs."""


class Learner(Protocol):
  """A model with a head; see `TokenLearner` and `FeatureLearner`."""

  name: str
  freeze: str
  can_thaw: bool

  @property
  def identity(self) -> dict[str, Any]:
    """What decides what it learns, besides the data."""

  def fresh(self, seed: int, train: Labelled) -> Any:
    """Parameters with a new head."""

  def trainer(self, train: Labelled, recipe: Recipe, *, freeze: str | None = None) -> Trainer:
    """The compiled training on some data."""

  def predict(self, params: Any, inputs: Inputs) -> np.ndarray:
    """Scores `[R, C]`."""

  def count_truncated(self, *inputs: Inputs) -> int:
    """How many inputs lose their end."""


def run_restarts(
  learner: Learner, train: Labelled, measure: Callable[[Predict], dict[str, Any]], *,
  recipe: Recipe, restarts: int = 5, probe: str = '', curve: Sequence[int] = (),
  curve_measure: Callable[[Predict], dict[str, Any]] | None = None,
  frozen_first: Recipe | None = None, folder: str | pathlib.Path | None = None,
  log: Callable[[str], None],
) -> list[dict[str, Any]]:
  """Fine-tunes a head again and again and measures each result.

  Args:
    learner: the model.
    train: what to learn.
    measure: called with a function that scores inputs; returns plain JSON values.
    recipe: of the training; restart i has the seed `recipe.seed + i`.
    restarts: how many.
    probe: digest of what `measure` reads, compared when a folder is gone on with.
    curve: steps after which `curve_measure` is called; the last step need not be among them.
    curve_measure: for curves (default: `measure`).
    frozen_first: a first phase that trains the head alone; where it ends is step 0 of the curve,
      and the training of everything starts there. None: the training starts with a new head.
    folder: gets `restart-<i>.json`; the same call goes on after those that are there.
    log: called with lines of progress.

  Returns:
    A dictionary for every restart: `seed`, `train_loss`, `steps`, `result`, `curve` (a list of
    `step` and `result`).

  Raises:
    UserError: the folder belongs to something else, or the loss is not finite.
    ValueError: no restart.
  """
  if restarts < 1:
    raise ValueError(f'{restarts} restarts')
  identity = {'learner': learner.identity, 'train': train.digest, 'probe': probe,
              'recipe': dataclasses.asdict(recipe), 'curve': list(curve),
              'frozen_first': None if frozen_first is None else dataclasses.asdict(frozen_first)}
  work = _Restarts(learner, train, measure, curve_measure or measure, recipe, tuple(curve),
                   frozen_first, log)
  if folder is None:
    return [work.run(i, restarts) for i in range(restarts)]
  found = []
  with FolderLock(folder, log):
    for i in range(restarts):
      path = pathlib.Path(folder) / f'restart-{i}.json'
      if path.exists():
        saved = read_sealed_json(path, again='delete it, and its restart is run again')
        check_identity(saved['identity'], identity, path)
        log(f'[restart {i + 1}/{restarts}] finished earlier: {path}')
      else:
        saved = {'identity': identity, 'restart': work.run(i, restarts)}
        write_sealed_json(path, saved)
      found.append(saved['restart'])
  return found


class _Restarts:
  """What the restarts share: above all what is compiled."""

  def __init__(self, learner, train, measure, curve_measure, recipe, curve, frozen_first, log):
    self._learner, self._train, self._recipe, self._log = learner, train, recipe, log
    self._measure, self._curve_measure, self._curve = measure, curve_measure, curve
    self._frozen_first = frozen_first
    self._trainer: Trainer | None = None
    self._first: Trainer | None = None

  def run(self, number: int, restarts: int) -> dict[str, Any]:
    """One restart."""
    learner, seed = self._learner, self._recipe.seed + number
    if self._trainer is None:
      self._trainer = learner.trainer(self._train, self._recipe)
      if self._frozen_first is not None and learner.can_thaw:
        self._first = learner.trainer(self._train, self._frozen_first, freeze=ALL)
      self._check_curve(self._trainer.steps * self._recipe.epochs)
    params, curve = learner.fresh(seed, self._train), []

    def look(step, params):
      if step in self._curve:
        found = self._curve_measure(lambda inputs: learner.predict(params, inputs))
        curve.append({'step': step, 'result': found})

    if self._first is not None:
      params, _ = self._fit(self._first, params, seed, None)
      look(0, params)
    params, loss = self._fit(self._trainer, params, seed, look)
    result = self._measure(lambda inputs: learner.predict(params, inputs))
    self._log(f'[restart {number + 1}/{restarts}] {learner.name}, {frozen_words(learner.freeze)}: '
              f'training loss {loss:.4f}')
    return {'seed': seed, 'train_loss': loss, 'result': result, 'curve': curve,
            'steps': self._trainer.steps * self._recipe.epochs}

  def _check_curve(self, steps: int) -> None:
    """Every point of the curve must be reached."""
    if 0 in self._curve and self._first is None:
      raise UserError('step 0 of a curve is a head on the frozen model, so the rest of the model '
                      'must be trained then: freeze less, or leave step 0 out')
    if self._curve and max(self._curve) > steps:
      raise UserError(f'a point of the curve at step {max(self._curve)}, but the training has '
                      f'{steps} steps: name earlier points, or more epochs')

  def _fit(self, trainer: Trainer, params: Any, seed: int, after_step) -> tuple[Any, float]:
    """All epochs: parameters and the mean loss of the last one."""
    params = trainer.place(params)
    opt_state = trainer.place(trainer.fresh(params))
    loss = float('nan')
    for epoch in range(trainer.recipe.epochs):
      params, opt_state, loss = trainer.epoch(params, opt_state, epoch, seed=seed,
                                              after_step=after_step)
    return params, loss
