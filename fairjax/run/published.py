"""The published model of a run, in the place of step 1.

`WORKDIR/pretrained.json` keeps what its files say, so that they are read once.
"""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

from fairjax import processes
from fairjax.config import Config
from fairjax.data.corpus import describe_file, known_digests
from fairjax.errors import UserError
from fairjax.files import read_sealed_json, write_sealed_json
from fairjax.run.workdir import (
  began_with,
  files_digest,
  is_begun,
  open_published,
  published_file,
)
from fairjax.vocabulary import Vocabulary

if TYPE_CHECKING:
  from fairjax.model import Params
  from fairjax.model.decoder import DecoderConfig


@dataclasses.dataclass(frozen=True)
class PublishedModel:
  """A published decoder: `fairjax.train.curriculum.Published`."""

  source: str  # `pretrained.model`
  config: 'DecoderConfig'  # with what the run chooses
  digest: str  # SHA-256 (hex) of its configuration and weights

  def load(self, template: 'Params') -> 'Params':
    """Parameters in float32, each process its own parts."""
    import jax

    from fairjax.pretrained import load_pretrained
    return load_pretrained(
      self.source, 'lm', shardings=jax.tree.map(lambda leaf: leaf.sharding, template)).params


def published_model(config: Config, workdir: pathlib.Path) -> PublishedModel:
  """The published model of a run; its files are read the first time."""
  from fairjax.model.decoder import DecoderConfig
  path = published_file(config, workdir)
  if processes.is_first() and not (path.exists() and is_begun(path.parent)):
    files = open_published(config.pretrained.model)
    run_decoder(config, files.decoder)  # what it refuses is not kept
    described = [describe_file(weights, {}) for weights in files.weights]
    write_sealed_json(path, {
      'source': config.pretrained.model, 'config': dataclasses.asdict(files.decoder),
      'digest': files_digest(files, known_digests(described)), 'files': described})
  processes.share()
  saved = read_sealed_json(path, again='delete it and run again')
  sizes: dict[str, Any] = {
    k: tuple(v) if isinstance(v, list) else v for k, v in saved['config'].items()}
  return PublishedModel(config.pretrained.model, run_decoder(config, DecoderConfig(**sizes)),
                        saved['digest'])


def run_decoder(config: Config, sizes: 'DecoderConfig') -> 'DecoderConfig':
  """The switches of a published model with those that a run chooses."""
  # UserError: rows, sentences or branches reach positions, or h-bar a layer, that the model lacks.
  model, most, longest = config.model, sizes.max_positions, config.debias.pieces_per_branch
  # Learned positions end there; a value at a row's end may be longer than the one it replaces.
  beyond = longest - 1 if config.until == 'debias' and not sizes.rope_theta else 0
  for field, size, spare in (
      ('model.segment_len', model.segment_len, beyond),
      ('sentiment.sentence_tokens', config.sentiment.sentence_tokens, 0)):
    if size + spare > most:
      why = f', and debias.pieces_per_branch={longest} needs {spare} after a row' if spare else ''
      raise UserError(f'{field}={size} is too much: {config.pretrained.model} has {most} positions'
                      f'{why}; set it to at most {most - spare}')
  sizes = dataclasses.replace(sizes, dtype=model.dtype, remat=model.remat,
                              scan_unroll=model.scan_unroll, h_bar=config.pretrained.h_bar)
  if sizes.h_bar_layer > sizes.num_layers:
    raise UserError(f'pretrained.h_bar={sizes.h_bar}: {config.pretrained.model} has '
                    f'{sizes.num_layers} layers')
  return sizes


def published_vocabulary(config: Config, workdir: pathlib.Path) -> Vocabulary:
  """The tokenizer of the published model of a run, whose files must be those that it began with."""
  source, path = config.pretrained.model, published_file(config, workdir)
  files = open_published(source)
  if processes.is_first() and path.exists() and not began_with(path, files):
    raise UserError(f'{source} has changed since {path.parent} began with it (its config.json or '
                    'weights): restore it, or use another --workdir')
  return files.vocabulary(chat=config.pretrained.chat)
