"""What the processes of one job exchange through the workdir."""

import dataclasses
import os
import pathlib

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
