"""What heads are trained on: texts or pairs of texts, with a number or a class each."""

import hashlib
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

REGRESSION, CLASSES = 'regression', 'classes'


class Inputs(NamedTuple):
  """R texts, or R pairs of texts.

  Attributes:
    first: R texts.
    second: R texts; None: there are no pairs.
  """

  first: list[str]
  second: list[str] | None = None

  def part(self, begin: int, end: int) -> 'Inputs':
    """Rows of a range."""
    second = None if self.second is None else self.second[begin:end]
    return Inputs(self.first[begin:end], second)


class Labelled(NamedTuple):
  """Inputs with their labels.

  Attributes:
    inputs: R of them.
    labels: `[R]`: float32 numbers of a regression, or int32 numbers of classes.
  """

  inputs: Inputs
  labels: np.ndarray

  @property
  def digest(self) -> str:
    """SHA-256 (hex) of all of it."""
    content = json.dumps([self.inputs, self.labels.tolist()])
    return hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()


def label_losses(scores: jax.Array, labels: jax.Array) -> jax.Array:
  """Loss of every row: squared error of float labels, cross-entropy (nats) of int ones.

  Args:
    scores: `[B, C]`; C is 1 for a regression.
    labels: `[B]`.

  Returns:
    `[B]` float32.

  >>> label_losses(jnp.array([[1.0], [3.0]]), jnp.array([2.0, 3.0])).tolist()
  [1.0, 0.0]
  """
  if jnp.issubdtype(labels.dtype, jnp.floating):
    return jnp.square(scores[:, 0] - labels)
  return optax.softmax_cross_entropy_with_integer_labels(scores, labels)
