"""What the devices cannot divide, told before anything is prepared or written."""

import dataclasses
import pathlib

from fairjax.config import Config
from fairjax.errors import UserError
from fairjax.job.run_models import run_models, trains_sentiment
from fairjax.job.workdir import locate, vocabulary_folder


def check_devices(
  config: Config, workdir: pathlib.Path, *, until: str | None = None, vocab_size: int | None = None,
) -> None:
  """Compares the mesh with the batches of the stages that are left to train, and with the model.

  It reads the workdir and writes nothing: a run that is refused may begin in it with other sizes.

  Args:
    config: of the run.
    workdir: of the run; need not exist.
    until: how far it trains (`lm`, `sentiment`, `debias`; None: the config's).
    vocab_size: of the model; None: see `vocabulary_size`.

  Raises:
    UserError: the mesh does not fit the devices, or it does not divide something: all of it in one
      line, by the fields of the config.
  """
  from fairjax.train import check_batch_size, make_mesh, model_problems
  config, workdir = locate(config, workdir)
  left = stages_left(config, workdir, until or config.until)
  if not left:
    return
  mesh, problems = make_mesh(config.mesh), []
  for name in left:
    stage = getattr(config, name)
    try:
      check_batch_size(stage.batch_size, mesh, field=f'{name}.batch_size', parts=stage.parts)
    except UserError as e:
      problems.append(str(e))
  size = vocab_size or vocabulary_size(config, workdir) or 0
  problems += model_problems(dataclasses.replace(config.model, vocab_size=size), mesh)
  if problems:
    begun = (workdir / 'config.json').exists()
    raise UserError('; '.join(problems) + (
      f'. {workdir} belongs to a run, whose sizes stay: choose another mesh, or another --workdir'
      if begun else ''))


def stages_left(config: Config, workdir: pathlib.Path, until: str) -> list[str]:
  """The stages up to one that have not ended in the workdir, by their sections of the config."""
  from fairjax.train import stage_folder
  models = run_models(dataclasses.replace(config, until=until), workdir)
  folders = {'lm': [models[0].directory], 'debias': [m.directory for m in models[1:]]}
  if trains_sentiment(config, until):
    folders['sentiment'] = [stage_folder(config, workdir, 'sentiment')]
  return [name for name in ('lm', 'sentiment', 'debias')
          if any(not (folder / 'DONE').exists() for folder in folders.get(name, ()))]


def vocabulary_size(config: Config, workdir: pathlib.Path) -> int | None:
  """Ids of the run's vocabulary; None where only its data will tell."""
  from fairjax.vocabulary import load_vocabulary
  prepared = vocabulary_folder(config, workdir)
  if (prepared / 'vocabulary.json').exists():
    return load_vocabulary(prepared).size
  if config.data.vocabulary not in ('sentencepiece', 'word'):
    return load_vocabulary(config.data.vocabulary).size
  return config.model.vocab_size or None
