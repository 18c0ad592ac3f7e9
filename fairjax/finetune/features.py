"""A linear head on frozen features of any model: texts u, or u, v, |u - v| and u v of pairs.

The model is only read, so that causal models (and workdirs) have the task metrics too. Inputs of
the head are standardised by the training rows.

Letters: R rows, D width of a feature, F inputs of the head, C scores.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fairjax.classifier.trainer import Recipe, Trainer
from fairjax.finetune.inputs import Inputs, Labelled, label_losses
from fairjax.pretrained.batches import default_mesh

_ROWS_AT_A_TIME = 4096
_STD_FLOOR = 1e-6  # of inputs that never change


class FeatureModel(Protocol):
  """What is asked of a model.

  Attributes:
    name: in results.
    fingerprint: of all that decides a feature.
    truncated: texts so far that were longer than it reads.
  """

  name: str
  fingerprint: str
  truncated: int

  def features(self, texts: Sequence[str]) -> np.ndarray:
    """`[R, D]` float32 of R texts."""


class FeatureRows:
  """Training rows of features; all have one size."""

  def __init__(self, features: np.ndarray, places: np.ndarray, labels: np.ndarray):
    """Keeps `[X, D]` features, `[R, 1 or 2]` which of them each row is made of, `[R]` labels."""
    self.sizes = np.zeros(len(labels), int)
    self._features, self._places, self._labels = features, places, labels

  def batch(self, places: Sequence[int], rows: int) -> dict[str, np.ndarray]:
    """`inputs` `[B, F]` and `labels` `[B]`; see `classifier.trainer.Rows`."""
    found = combine(self._features, self._places[places])
    inputs = np.zeros((rows, found.shape[1]), np.float32)
    inputs[:len(places)] = found
    labels = np.zeros(rows, self._labels.dtype)
    labels[:len(places)] = self._labels[places]
    return {'inputs': inputs, 'labels': labels}


class FeatureLearner:
  """A linear head on a frozen model, to be trained several times.

  Attributes:
    name: of the model.
    fingerprint: of the model.
    freeze: 'all'.
  """

  freeze, can_thaw = 'all', False

  def __init__(self, model: FeatureModel, *, labels: Sequence[str], mesh: Mesh | None = None,
               log: Callable[[str], None] | None = None):
    """Takes a model.

    Args:
      model: gives the features.
      labels: names of the classes; one name: a regression.
      mesh: default: all devices.
      log: called with lines.
    """
    self.name, self.fingerprint = model.name, model.fingerprint
    self._model, self._labels = model, tuple(labels)
    self._mesh, self._log = mesh or default_mesh(), log or (lambda line: None)
    self._known: dict[str, int] = {}
    self._features = np.zeros((0, 0), np.float32)

  @property
  def identity(self) -> dict[str, Any]:
    """What decides what it learns, besides the data."""
    return {'kind': 'features', 'fingerprint': self.fingerprint, 'labels': list(self._labels)}

  def fresh(self, seed: int, train: Labelled) -> Any:
    """A new head of a seed, with the mean and deviation of its inputs in the training rows."""
    places = self._places(train.inputs)
    count, total, squares = len(places), 0.0, 0.0
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

  def trainer(self, train: Labelled, recipe: Recipe, *, freeze: str | None = None) -> Trainer:
    """The compiled training on some data; one does for all restarts.

    Args:
      train: what to learn.
      recipe: how.
      freeze: only 'all', which is what it does.
    """
    if freeze not in (None, 'all'):
      raise ValueError(f'features are frozen, not {freeze}')
    places = self._places(train.inputs)  # this asks for the features of new texts
    rows = FeatureRows(self._features, places, train.labels)
    mask = {'inputs': {'mean': np.zeros(1, np.float32), 'std': np.zeros(1, np.float32)},
            'head': {'kernel': np.ones((1, 1), np.float32), 'bias': np.ones(1, np.float32)}}
    return Trainer(rows, _losses, recipe, mesh=self._mesh, log=self._log, mask=mask)

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
      found = np.asarray(self._model.features(new), np.float32)
      self._features = (np.concatenate([self._features, found]) if len(self._features) else found)
      self._known |= {t: len(self._known) + i for i, t in enumerate(new)}
    return np.array([[self._known[t] for t in row] for row in zip(*columns, strict=True)])


def combine(features: np.ndarray, places: np.ndarray) -> np.ndarray:
  """Inputs of the head: u of texts, or u, v, |u - v|, u v side by side of pairs.

  Args:
    features: `[X, D]` float32.
    places: `[R, 1]` or `[R, 2]` int.

  Returns:
    `[R, D]` or `[R, 4 D]` float32.

  >>> combine(np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[0, 1]])).tolist()
  [[1.0, 2.0, 3.0, 5.0, 2.0, 3.0, 3.0, 10.0]]
  """
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
