"""A trained model of a workdir by itself: sampled and measured elsewhere, the workdir only read.

Evaluation has its own sizes and devices, so it does not go on with the run's configuration, as a
`Job` does, and it writes nothing into the workdir, which may lie in a bucket or on a drive.
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any

from fairjax.config import BASELINE, Config, MeshConfig, ModelConfig, SampleConfig
from fairjax.config_io import load_config
from fairjax.counterfactual import Attribute, load_attribute
from fairjax.errors import UserError, unknown_name
from fairjax.run.results import model_perplexity
from fairjax.run.workdir import data_folder, run_models, vocabulary_folder
from fairjax.vocabulary import Vocabulary, load_vocabulary


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A trained model with what it needs to write."""

  workdir: pathlib.Path  # of its run
  name: str  # `baseline`, or that of a debiased model, e.g. `country-embedding-10`
  config: Config  # of its run
  vocabulary: Vocabulary  # of its run
  card: dict[str, Any]  # identity and digest of the parameters
  log: Callable[[str], None]  # gets one line at a time

  @functools.cached_property
  def attribute(self) -> Attribute:
    """The attribute of its run."""
    return load_attribute(self.config.attribute)

  @property
  def model_config(self) -> ModelConfig:
    """Its sizes; these devices choose their attention where its run named the kernel of TPUs."""
    attention = self.config.model.attention
    return dataclasses.replace(self.config.model, vocab_size=self.vocabulary.size,
                               attention='auto' if attention == 'kernel' else attention)

  @functools.cached_property
  def mesh(self) -> Any:
    """All devices of this machine, for rows of the batch."""
    from fairjax.train import make_mesh
    return make_mesh(MeshConfig())

  @functools.cached_property
  def params(self) -> Any:
    """Parameters on the devices, after their digest was compared."""
    from fairjax.train import load_params, params_template
    return load_params(_trained(self.workdir, self.config)[self.name],
                       params_template(self.model_config, self.mesh))

  @functools.cached_property
  def prepared(self) -> Any:
    """The run's token stores."""
    from fairjax.data.prepare import open_prepared
    return open_prepared(data_folder(self.config, self.workdir))

  def sample(
    self, path: str | os.PathLike, sample: SampleConfig, *, attribute: Attribute | None = None
  ) -> pathlib.Path:
    """Writes continuations, coupled over the values; the same call continues an interrupted one."""
    from fairjax.generate import generate
    from fairjax.model import language_model
    from fairjax.run.next_token import write_next_token
    parts = (self.params, language_model(self.model_config).decoder(), self.vocabulary,
             attribute or self.attribute)
    mesh = self.mesh if self.mesh.size > 1 else None
    found = generate(*parts, path=path, model=self.name, sample=sample, card=self.card, mesh=mesh,
                     log=self.log).path
    write_next_token(found, *parts, mesh=mesh, log=self.log)
    return found

  @property
  def has_corpus(self) -> bool:
    """Whether the workdir holds the token stores, which perplexities need."""
    from fairjax.files import is_complete
    return is_complete(data_folder(self.config, self.workdir))

  def perplexity(self, split: str) -> dict[str, Any] | None:
    """Perplexity of a split (H-25), e.g. `test` or `test_sensitive`; None if it is empty."""
    return model_perplexity(self.params, self.model_config, self.prepared.store(split),
                            self.config.measure, self.mesh)


def open_checkpoint(
  workdir: str | os.PathLike, name: str = BASELINE, *, log: Callable[[str], None] = print
) -> Checkpoint:
  """Opens a trained model by the workdir of its run."""
  from fairjax.train import done_card
  workdir = pathlib.Path(workdir)
  needed, config = 'config.json', None
  if (workdir / needed).exists():
    config, needed = load_config(str(workdir / 'config.json')), 'data/vocabulary'
  if config is None or not vocabulary_folder(config, workdir).exists():
    raise UserError(f'{workdir} has no {needed}: name the workdir of a run (what fairjax run '
                    'was given as --workdir), or copy it with this file')
  trained = _trained(workdir, config)
  if not trained:
    raise UserError(f'{workdir} holds no model whose training ended (lm/DONE): run fairjax train '
                    'to its end')
  if name not in trained:
    raise unknown_name('model', name, trained, where=str(workdir))
  card = done_card(trained[name]) or {}  # DONE is there
  vocabulary = load_vocabulary(vocabulary_folder(config, workdir))
  if card['identity']['vocabulary'] != vocabulary.fingerprint:
    raise UserError(f'{workdir}: model {name} was trained with another vocabulary than the one in '
                    'data/vocabulary: copy the one of its run')
  return Checkpoint(
    workdir, name, config, vocabulary,
    card['identity'] | {'digest': card['digest'], 'model': name}, log)


def _trained(workdir: pathlib.Path, config: Config) -> dict[str, pathlib.Path]:
  """The models whose training has ended, baseline first, and their folders."""
  folders = {m.name: m.directory for m in run_models(config, workdir)}
  folders |= {p.name: p for p in sorted(workdir.glob('debias/*'))}
  return {name: folder for name, folder in folders.items() if (folder / 'DONE').exists()}
