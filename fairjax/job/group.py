"""What the processes of one job do together: folders that all see, models that the first leads."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairjax import processes
from fairjax.errors import UserError
from fairjax.files import atomic_write


def check_shared(workdir: pathlib.Path) -> None:
  """Looks that all processes see the folder which the first one writes to.

  Raises:
    UserError: one of them sees another folder.
  """
  if processes.count() == 1:
    return
  path = workdir / f'.shared-{processes.share(os.urandom(8).hex())}'
  if processes.is_first():
    path.touch()
  processes.share()
  seen = processes.agree(path.exists())
  if processes.is_first():
    path.unlink()
  if not seen:
    raise UserError(f'--workdir={workdir} is not the same folder for all processes: name one on a '
                    'file system that they share')


class LedModels:
  """Scorers and encoders that run on the devices of all processes, led by the first one.

  What is scored, kept and measured is the first process's to decide (`lead`). Wherever it calls one
  of these models, it hands the texts to the others, and all run their part of the batches. Every
  process adds the same models in the same order.
  """

  def __init__(self):
    self._methods: list[Callable[[Sequence[str]], Any]] = []
    self._leading = False

  def add(self, model: Any, method: str) -> Any:
    """The model, whose method (texts to an array) then runs in all processes.

    Args:
      model: on the devices of all processes (`load_scorer(..., together=True)`). What else it
        offers must not need the others.
      method: its name.
    """
    if processes.count() == 1:
      return model
    self._methods.append(getattr(model, method))
    return _Led(model, method, functools.partial(self._run, len(self._methods) - 1))

  def lead(self, work: Callable[[], Any]) -> Any:
    """Does `work` in the first process; the others run its texts. All return when it is done.

    Returns:
      What `work` returns, None in the others.
    """
    found = None
    if processes.is_first():
      self._leading = True
      try:
        found = work()
      finally:  # whatever happened, nobody waits for more texts
        self._leading = False
        processes.hand_out(None)
    else:
      while (piece := processes.take()) is not None:
        self._methods[piece['model']](piece['texts'])
    processes.share()
    return found

  def _run(self, number: int, texts: Sequence[str]) -> Any:
    if not self._leading:
      raise RuntimeError('a model of all processes was called outside of lead(): the others would '
                         'never take part')
    processes.hand_out({'model': number, 'texts': list(texts)})
    return self._methods[number](texts)


class _Led:
  """A model with one method replaced."""

  def __init__(self, model: Any, method: str, replacement: Callable[[Sequence[str]], Any]):
    self._model = model
    # In sight of `isinstance(..., Scorer)` too, which from Python 3.12 on asks no `__getattr__`.
    self.name, self.fingerprint = model.name, model.fingerprint
    setattr(self, method, replacement)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._model, name)


def share_sentences(found, path: pathlib.Path):
  """The first process's `LabelledSentences` in all, through a file that is removed afterwards."""
  from fairjax.train import LabelledSentences
  if processes.count() == 1:
    return found
  if processes.is_first():
    with atomic_write(path) as file:
      np.savez(file, **dataclasses.asdict(found))
  processes.share()
  with np.load(path, allow_pickle=False) as saved:
    read = LabelledSentences(**saved)
  processes.agree(True)
  if processes.is_first():
    path.unlink()
  return read
