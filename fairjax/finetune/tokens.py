"""BERT and ALBERT with a head on their first token, whole or partly frozen (the usual recipe)."""

import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fairjax.classifier.start import from_checkpoint
from fairjax.classifier.trainer import Recipe, TokenRows, Trainer
from fairjax.finetune.inputs import Inputs, Labelled, label_losses
from fairjax.pretrained import (
  BatchRunner,
  Encoded,
  class_logits,
  encode,
  encode_texts,
  folder_name,
)
from fairjax.pretrained.batches import default_mesh
from fairjax.pretrained.freezing import ALL, NONE, parse_freeze, trainable_mask
from fairjax.pretrained.pairs import encode_pairs, pair_types, separator_id

_NO_ID = -1  # of a separator: all tokens are of the first type


class TokenLearner:
  """A model directory with a new head, to be trained several times.

  Attributes:
    name: of the directory.
    fingerprint: of the checkpoint.
    freeze: what does not move (`pretrained.freezing`).
  """

  def __init__(
    self, directory: str | os.PathLike, *, labels: Sequence[str], pairs: bool = False,
    freeze: str = NONE, max_length: int | None = None, mesh: Mesh | None = None,
    log: Callable[[str], None] | None = None,
  ):
    """Reads the directory.

    Args:
      directory: BERT or ALBERT in the published form.
      labels: names of the classes; one name: a regression.
      pairs: inputs are pairs of texts.
      freeze: 'none', 'embedding', a number of layers, or 'all'.
      max_length: reads fewer tokens than the model could.
      mesh: default: all devices.
      log: called with lines.

    Raises:
      UserError: the directory cannot be read, such layers cannot be frozen, or its tokenizer joins
        no pairs.
    """
    self._directory, self._labels = pathlib.Path(directory), tuple(labels)
    self.name, self.freeze = folder_name(directory), freeze
    self._log = log or (lambda line: None)
    start = from_checkpoint(directory, labels=labels, seed=0, log=self._log)
    parse_freeze(freeze, start.arch)
    self._arch, self._tokenizer = start.arch, start.tokenizer
    self.fingerprint = start.fingerprint
    self.max_length = min(start.max_length, max_length or start.max_length)
    self._mesh = mesh or default_mesh()
    self._sep = separator_id(self._tokenizer) if pairs else _NO_ID
    self._runner: BatchRunner | None = None

  @property
  def identity(self) -> dict[str, Any]:
    """What decides what it learns, besides the data."""
    return {'kind': 'tokens', 'fingerprint': self.fingerprint, 'freeze': self.freeze,
            'labels': list(self._labels), 'max_length': self.max_length}

  @property
  def can_thaw(self) -> bool:
    """Whether a head on the frozen model is something else than what is trained."""
    return self.freeze != ALL

  def fresh(self, seed: int, train: Labelled) -> Any:
    """The checkpoint with a new head of a seed; that of a regression starts at the mean label."""
    params = from_checkpoint(
      self._directory, labels=self._labels, seed=seed, log=lambda line: None).params
    if len(self._labels) == 1:
      params['classifier']['bias'] = np.full(1, train.labels.mean(), np.float32)
    return params

  def trainer(self, train: Labelled, recipe: Recipe, *, freeze: str | None = None) -> Trainer:
    """The compiled training on some data; one does for all restarts.

    Args:
      train: what to learn.
      recipe: how.
      freeze: instead of the learner's.
    """
    freeze = self.freeze if freeze is None else freeze
    encoded = self._encode(train.inputs)
    rows = TokenRows(encoded.ids, train.labels, max_length=self.max_length,
                     pad_id=self._arch.pad_id)
    mask = None
    if freeze != NONE:
      mask = trainable_mask(self.fresh(0, train), self._arch, freeze)
    return Trainer(rows, functools.partial(self._losses, features=freeze == ALL), recipe,
                   mesh=self._mesh, log=self._log, mask=mask)

  def predict(self, params: Any, inputs: Inputs) -> np.ndarray:
    """Scores `[R, C]` float32: similarities, or logits of the classes."""
    if self._runner is None:
      self._runner = BatchRunner(self._scores, params, max_length=self.max_length,
                                 pad_id=self._arch.pad_id, mesh=self._mesh)
    self._runner.load(params)
    return self._runner(self._encode(inputs).ids).astype(np.float32)

  def count_truncated(self, *inputs: Inputs) -> int:
    """How many texts or pairs are longer than the model reads; a pair loses of its longer text."""
    return sum(self._encode(part).truncated for part in inputs)

  def _encode(self, inputs: Inputs) -> Encoded:
    if inputs.second is None:
      return encode_texts(self._tokenizer, inputs.first, max_length=self.max_length)
    return encode_pairs(self._tokenizer, inputs.first, inputs.second, max_length=self.max_length)

  def _scores(self, params, ids, mask, packing):
    """Scores without dropout, as `BatchRunner` wants them."""
    hidden = encode(params, self._arch, ids, mask, pair_types(ids, self._sep), packing=packing,
                    first_only=True)
    return class_logits(params, self._arch, hidden)

  def _losses(self, params, batch, key, *, features):
    """Loss of every row, with dropout; a model that only gives features drops nothing."""
    keys = jax.random.split(key)
    hidden = encode(params, self._arch, batch['ids'], batch['mask'],
                    pair_types(batch['ids'], self._sep), key=None if features else keys[0],
                    first_only=True)
    if features:
      hidden = jax.lax.stop_gradient(hidden)
    return label_losses(class_logits(params, self._arch, hidden, key=keys[1]), batch['labels'])
