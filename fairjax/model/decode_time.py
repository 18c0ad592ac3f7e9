"""Mitigations at decoding time: the model is as it was, its next-token distribution is not.

Both know the prompts of a template, which differ in the value of the attribute, and change what is
drawn after each of them. Text without such a prompt is the model's own. Letters of `decoding`: B =
A, the prompts that a continuation is read after.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fairjax.model.decoding import Decoder


@dataclasses.dataclass(frozen=True)
class DecodeTime(Decoder):
  """A decoder that changes the distribution of another; 0 leaves it as it is."""

  base: Decoder
  strength: float

  config = property(lambda self: self.base.config)
  cached_heads = property(lambda self: self.base.cached_heads)
  max_positions = property(lambda self: self.base.max_positions)

  def describe(self) -> dict[str, Any]:
    """The model's description, the method and its strength."""
    return self.base.describe() | {'decoding': type(self).__name__, 'strength': self.strength}

  def prepare(self, params, *, num_positions):
    """The model's weights."""
    return self.base.prepare(params, num_positions=num_positions)


class AveragedDecoder(DecodeTime):
  """Draws from (1 - s) p(. | own prompt) + s mean p(. | prompts of all values).

  The continuation of a value is read after the prompts of all A values, which costs A times the
  products. With s = 1 all values get one continuation.
  """

  def cache_shape(self, rows):
    """A rows of prompts, each with the samples of all values."""
    return rows[0], rows[0] * rows[1]

  def prefill(self, weights, tokens, lengths):
    """Hidden states [A, B, D]: every value sees all prompts."""
    prefix, last = self.base.prefill(weights, tokens, lengths)
    return prefix, jnp.broadcast_to(last, (len(last), *last.shape))

  def step(self, weights, prefix, filled, unfilled, tokens, index):
    """Hidden states [A, R, B, D] of the continuations after every prompt."""
    values, samples = tokens.shape
    every = jnp.broadcast_to(tokens.reshape(1, -1), (values, values * samples))
    hidden, new = self.base.step(weights, prefix, filled, unfilled, every, index)
    return jnp.moveaxis(hidden.reshape(values, values, samples, -1), 0, 2), new

  def logits_and_bias(self, weights, hidden):
    """Log-probabilities of the mixture; one prompt at a time, since all logits may not fit."""
    values = hidden.shape[0]
    shares = (1 - self.strength) * np.eye(values) + self.strength / values

    # Probabilities, whose underflow no noise of 32 bits can undo, take one exp a word and prompt.
    def add(total, of_prompt):
      states, share = of_prompt
      found = jax.nn.softmax(self.base.logits(weights, states), axis=-1)
      return total + found * share.reshape(-1, *[1] * (found.ndim - 1)), None

    shape = jax.eval_shape(self.base.logits, weights, hidden[..., 0, :])
    total, _ = jax.lax.scan(
      add, jnp.zeros(shape.shape, shape.dtype),
      (jnp.moveaxis(hidden, -2, 0), jnp.asarray(shares, shape.dtype)))
    return jnp.log(total), None


class SteeredDecoder(DecodeTime):
  """Subtracts s (h_a - mean h) from the input of the softmax, in all positions behind the prompt.

  h_a is that input after the prompt of value a, the mean is over the values. With s = 1 the first
  token has one distribution for all values.
  """

  def prefill(self, weights, tokens, lengths):
    """The cache with the steering vectors [A, D], and the steered states."""
    prefix, last = self.base.prefill(weights, tokens, lengths)
    vectors = self.strength * (last - last.mean(axis=0, keepdims=True))
    return (prefix, vectors), last - vectors

  def step(self, weights, prefix, filled, unfilled, tokens, index):
    """The steered states."""
    hidden, new = self.base.step(weights, prefix[0], filled, unfilled, tokens, index)
    return hidden - prefix[1][:, None], new

  def logits_and_bias(self, weights, hidden):
    """The model's."""
    return self.base.logits_and_bias(weights, hidden)


DECODE_TIME: dict[str, Callable[[Decoder, float], DecodeTime]] = {
  'average': AveragedDecoder, 'steer': SteeredDecoder}
"""The methods by the name that `decoding` gives them."""
