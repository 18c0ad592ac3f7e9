"""A linear head on frozen features of any model: texts u, or u, v, |u - v| and u v of pairs.

The model is only read, so that causal models (and workdirs) have the task metrics too. Inputs of
the head are standardised by the training rows.

Letters: R rows, D width of a feature, F inputs of the head, C scores.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fairjax.config import MeshConfig
from fairjax.errors import UserError
from fairjax.files import FolderLock, read_sealed_json, write_sealed_json
from fairjax.pretrained.batch_runner import BatchRunner, class_runner
from fairjax.pretrained.checkpoint import folder_name
from fairjax.pretrained.classifier import class_losses, from_checkpoint
from fairjax.pretrained.fit import FineTuning, Recipe, TokenRows, label_losses
from fairjax.pretrained.models import ALL, NONE, format_frozen, parse_freeze, trainable_mask
from fairjax.pretrained.start import check_plan
from fairjax.pretrained.tokens import Encoded, encode_pairs, encode_texts, separator_id
from fairjax.train import make_mesh


class Inputs(NamedTuple):
  """R texts, or R pairs of texts."""

  first: list[str]
  second: list[str] | None = None


class Labelled(NamedTuple):
  """R inputs with their labels."""

  inputs: Inputs
  labels: np.ndarray  # [R]: float32 numbers of a regression, or int32 numbers of classes

  @property
  def digest(self) -> str:
    """SHA-256 (hex) of all of it."""
    content = json.dumps([self.inputs, self.labels.tolist()])
    return hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()


_ROWS_AT_A_TIME = 4096
_STD_FLOOR = 1e-6  # of inputs that never change


class FeatureModel(Protocol):
  """What is asked of a model."""

  name: str
  fingerprint: str  # of all that decides a feature
  truncated: int  # texts so far that were longer than it reads

  def features(self, texts: Sequence[str], *, max_length: int | None = None) -> np.ndarray:
    """`[R, D]` float32 of the first `max_length` tokens (None: all that it reads) of R texts."""


class FeatureRows:
  """Training rows of features; all have one size."""

  def __init__(self, features: np.ndarray, places: np.ndarray, labels: np.ndarray):
    # features [X, D]; places [R, 1 or 2]: which of them a row is made of; labels [R]
    self.sizes = np.zeros(len(labels), int)
    self._features, self._places, self._labels = features, places, labels

  def batch(self, numbers: np.ndarray, rows: int) -> dict[str, np.ndarray]:
    """`inputs` `[B, F]` and `labels` `[B]`; see `fit.Rows`."""
    found = combine(self._features, self._places[numbers])
    inputs = np.zeros((rows, found.shape[1]), np.float32)
    inputs[:len(numbers)] = found
    labels = np.zeros(rows, self._labels.dtype)
    labels[:len(numbers)] = self._labels[numbers]
    return {'inputs': inputs, 'labels': labels}


class FeatureLearner:
  """A linear head on a frozen model, to be trained several times."""

  freeze, can_thaw = 'all', False

  def __init__(
    self, model: FeatureModel, *, labels: Sequence[str], max_length: int | None = None):
    self._max_length = max_length
    self.name, self.fingerprint = model.name, model.fingerprint
    self._model, self._labels = model, tuple(labels)
    self._mesh = make_mesh(MeshConfig())
    self._known: dict[str, int] = {}
    self._features = np.zeros((0, 0), np.float32)

  @property
  def identity(self) -> dict[str, Any]:
    """What decides what it learns, besides the data."""
    return {'kind': 'features', 'fingerprint': self.fingerprint, 'labels': list(self._labels),
            'max_length': self._max_length}

  def fresh(self, seed: int, train: Labelled) -> Any:
    """A new head of a seed, with the mean and deviation of its inputs in the training rows."""
    places = self._places(train.inputs)
    count, total, squares = len(places), np.zeros(()), np.zeros(())
    for begin in range(0, count, _ROWS_AT_A_TIME):
      part = combine(self._features, places[begin:begin + _ROWS_AT_A_TIME]).astype(np.float64)
      total, squares = total + part.sum(0), squares + np.square(part).sum(0)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean ** 2, 0))
    width, scores = len(mean), len(self._labels)
    kernel = np.random.default_rng([seed, 3]).standard_normal((width, scores)) * 0.01
    bias = np.full(1, train.labels.mean()) if scores == 1 else np.zeros(scores)
    params = {'inputs': {'mean': mean, 'std': np.maximum(std, _STD_FLOOR)},
              'head': {'kernel': kernel, 'bias': bias}}
    return jax.tree.map(lambda a: a.astype(np.float32), params)

  def tuning(self, train: Labelled, recipe: Recipe, *, freeze: str | None = None
             ) -> FineTuning:
    """The training on some data, compiled once for all restarts; `freeze` replaces the own."""
    places = self._places(train.inputs)  # this asks for the features of new texts
    rows = FeatureRows(self._features, places, train.labels)
    trainable = {'inputs': {'mean': np.zeros(1, np.float32), 'std': np.zeros(1, np.float32)},
                 'head': {'kernel': np.ones((1, 1), np.float32), 'bias': np.ones(1, np.float32)}}
    return FineTuning(rows, _losses, recipe, mesh=self._mesh, trainable=trainable)

  def predict(self, params: Any, inputs: Inputs) -> np.ndarray:
    """Scores `[R, C]` float32: similarities, or logits of the classes."""
    head = jax.tree.map(np.asarray, jax.device_get(params))
    places = self._places(inputs)
    return np.concatenate([
      _scores(head, combine(self._features, places[begin:begin + _ROWS_AT_A_TIME]))
      for begin in range(0, len(places), _ROWS_AT_A_TIME)])

  def count_truncated(self, *inputs: Inputs) -> int:
    """How many different texts, of all it has read, are longer than the model reads."""
    for part in inputs:
      self._places(part)
    return self._model.truncated

  def _places(self, inputs: Inputs) -> np.ndarray:
    """`[R, 1 or 2]` rows of the features; those of new texts are asked for, once."""
    columns = [inputs.first] if inputs.second is None else [inputs.first, inputs.second]
    new = [t for t in dict.fromkeys(t for c in columns for t in c) if t not in self._known]
    if new:
      found = np.asarray(self._model.features(new, max_length=self._max_length), np.float32)
      self._features = (np.concatenate([self._features, found]) if len(self._features) else found)
      self._known |= {t: len(self._known) + i for i, t in enumerate(new)}
    return np.array([[self._known[t] for t in row] for row in zip(*columns, strict=True)])


def combine(features: np.ndarray, places: np.ndarray) -> np.ndarray:
  """Inputs of the head: u of texts, or u, v, |u - v|, u v side by side of pairs."""
  u = features[places[:, 0]]
  if places.shape[1] == 1:
    return u
  v = features[places[:, 1]]
  return np.concatenate([u, v, np.abs(u - v), u * v], axis=1)


def _losses(params, batch, key):
  """Loss of every row; the head has no dropout."""
  return label_losses(_scores(params, batch['inputs'], jnp), batch['labels'])


def _scores(params, inputs, xp=np):
  given = params['inputs']
  x = (inputs - given['mean'][None]) / given['std'][None]
  return xp.matmul(x, params['head']['kernel']) + params['head']['bias'][None]


# BERT and ALBERT with a head on their first token, whole or partly frozen (the usual recipe).


class TokenLearner:
  """A model directory with a new head, to be trained several times; `freeze`: `parse_freeze`."""

  def __init__(
    self, directory: str | os.PathLike, *, labels: Sequence[str], pairs: bool = False,
    freeze: str = NONE, max_length: int | None = None,
    log: Callable[[str], None] | None = None,
  ):
    self._directory, self._labels = pathlib.Path(directory), tuple(labels)
    self.name, self.freeze = folder_name(directory), freeze
    start = from_checkpoint(directory, labels=labels, seed=0, log=log or (lambda line: None))
    parse_freeze(freeze, start.arch)
    self._arch, self._tokenizer = start.arch, start.tokenizer
    self.fingerprint = start.fingerprint
    self.max_length = min(start.max_length, max_length or start.max_length)
    self._mesh = make_mesh(MeshConfig())
    if pairs and start.arch.token_types < 2:
      raise UserError(f'{directory} has one token type (type_vocab_size): pairs need two')
    self._sep = separator_id(self._tokenizer) if pairs else None
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

  def tuning(self, train: Labelled, recipe: Recipe, *, freeze: str | None = None
             ) -> FineTuning:
    """The training on some data, compiled once for all restarts; `freeze` replaces the own."""
    freeze = self.freeze if freeze is None else freeze
    encoded = self._encode(train.inputs)
    rows = TokenRows(encoded.ids, train.labels, max_length=self.max_length,
                     pad_id=self._arch.pad_id)
    trainable = None
    if freeze != NONE:
      trainable = trainable_mask(self.fresh(0, train), self._arch, freeze)
    loss = functools.partial(class_losses, arch=self._arch, sep=self._sep, frozen=freeze == ALL)
    return FineTuning(rows, loss, recipe, mesh=self._mesh, trainable=trainable)

  def predict(self, params: Any, inputs: Inputs) -> np.ndarray:
    """Scores `[R, C]` float32: similarities, or logits of the classes."""
    if self._runner is None:
      self._runner = class_runner(params, self._arch, max_length=self.max_length, mesh=self._mesh,
                                  sep=self._sep)
    self._runner.load(params)
    return self._runner(self._encode(inputs).ids).astype(np.float32)

  def count_truncated(self, *inputs: Inputs) -> int:
    """How many texts or pairs are longer than the model reads; a pair loses of its longer text."""
    return sum(self._encode(part).truncated for part in inputs)

  def _encode(self, inputs: Inputs) -> Encoded:
    if inputs.second is None:
      return encode_texts(self._tokenizer, inputs.first, max_length=self.max_length)
    return encode_pairs(self._tokenizer, inputs.first, inputs.second, max_length=self.max_length)


# Several restarts of one fine-tuning (W-11), each with curves (W-18); what is finished is kept.

Predict = Callable[[Inputs], np.ndarray]  # scores [R, C]


Learner = TokenLearner | FeatureLearner


def run_restarts(
  learner: Learner, train: Labelled, measure: Callable[[Predict], dict[str, Any]], *,
  recipe: Recipe, restarts: int = 5, probe: str = '', curve: Sequence[int] = (),
  curve_measure: Callable[[Predict], dict[str, Any]] | None = None,
  frozen_first: Recipe | None = None, folder: str | os.PathLike | None = None,
  log: Callable[[str], None],
) -> list[dict[str, Any]]:
  """Fine-tunes a head again and again; of each: `seed`, `train_loss`, `steps`, `result`, `curve`.

  `measure` gets a function that scores inputs and returns plain JSON values. Restart i has the seed
  `recipe.seed + i`. The curve holds what `curve_measure` (default: `measure`) returns after the
  steps of `curve`. A first phase `frozen_first` trains the head alone; its end is step 0 of the
  curve, and the training of everything starts there. A folder gets `restart-<i>.json`; the same
  call goes on after those that are there, and refuses another `probe` (digest of what `measure`
  reads).
  """
  identity = {'learner': learner.identity, 'train': train.digest, 'probe': probe,
              'recipe': dataclasses.asdict(recipe), 'curve': list(curve),
              'frozen_first': None if frozen_first is None else dataclasses.asdict(frozen_first)}

  @functools.cache  # all share the compiled steps, which the first one makes
  def tunings() -> tuple[FineTuning | None, FineTuning]:
    whole = learner.tuning(train, recipe)
    first = None
    if frozen_first is not None and learner.can_thaw:
      first = learner.tuning(train, frozen_first, freeze=ALL)
    return first, whole

  def restart(number: int) -> dict[str, Any]:
    first, whole = tunings()
    seed, name = recipe.seed + number, f'restart {number + 1}/{restarts}'
    params, points = learner.fresh(seed, train), []

    def look(step, params):
      if step in curve:
        points.append({'step': step, 'result': (curve_measure or measure)(
          lambda inputs: learner.predict(params, inputs))})

    if first is not None:
      params, _ = first.run(params, name=f'{name}, head', seed=seed, log=log)
      look(0, params)
    params, loss = whole.run(params, name=name, seed=seed, after_step=look, log=log)
    result = measure(lambda inputs: learner.predict(params, inputs))
    log(f'[{name}] {learner.name}, {format_frozen(learner.freeze)}: training loss {loss:.4f}')
    return {'seed': seed, 'train_loss': loss, 'result': result, 'curve': points,
            'steps': whole.config.steps}

  if folder is None:
    return [restart(i) for i in range(restarts)]
  found = []
  with FolderLock(folder, log):
    for i in range(restarts):
      path = pathlib.Path(folder) / f'restart-{i}.json'
      if path.exists():
        saved = read_sealed_json(path, again='delete it, and its restart is run again')
        check_plan(saved['identity'], identity, path, option='--output')
        log(f'[restart {i + 1}/{restarts}] finished earlier: {path}')
      else:
        saved = {'identity': identity, 'restart': restart(i)}
        write_sealed_json(path, saved)
      found.append(saved['restart'])
  return found
