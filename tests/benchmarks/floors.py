"""The least that a work can take: its matrix products, and the bytes that it must move.

Both are lower bounds of what the programs do. Elementwise operations are left out; of the bytes,
what a device may keep on the chip is left out too. Which of the two binds is the larger time.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fairjax.config import ModelConfig
from fairjax.model.decoder_config import DecoderConfig
from fairjax.model.decoding import cache_dtype
from fairjax.model.softmax import vocabulary_clusters
from fairjax.train.memory import StateBytes
from fairjax.train.steps import TrainState


class Work(NamedTuple):
  """Operations of matrix products, two for each multiply-add, and bytes moved, on all devices."""

  operations: float
  nbytes: float


def floor(work: Work, limits: Mapping[str, float]) -> dict[str, Any]:
  """Seconds of both at the speeds of `harness.limits`, the larger one, and its name."""
  found = {'products': work.operations / limits['operations_per_s'],
           'bytes': work.nbytes / limits['bytes_per_s']}
  binds = max(found, key=found.__getitem__)
  return found | {'seconds': found[binds], 'binds': binds}


def layer_weights(model: ModelConfig | DecoderConfig) -> int:
  """Multiply-adds of a token with the weights of one layer, which are as many numbers."""
  if isinstance(model, DecoderConfig):
    heads = 2 * (model.num_heads + model.num_kv_heads)
    return model.model_dim * (heads * model.head_dim + (2 + model.gated) * model.ff_dim)
  return 4 * model.model_dim * model.num_heads * model.head_dim + 2 * model.model_dim * model.ff_dim


def cluster_shares(model: ModelConfig, targets: np.ndarray) -> list[float]:
  """Share of the targets that need the scores of each cluster; every one needs those of the head.

  >>> cluster_shares(ModelConfig(vocab_size=8, cutoffs=(2, 4)), np.array([0, 2, 3, 7]))
  [1.0, 0.5, 0.25]
  """
  return [1.0] + [float(np.mean((targets >= c.start) & (targets < c.start + c.size)))
                  for c in vocabulary_clusters(model)[1:]]


def softmax_weights(
  model: ModelConfig | DecoderConfig, shares: Sequence[float] | None = None
) -> float:
  """Multiply-adds of a token with the tables and projections of the softmax.

  `shares` of the tokens need each cluster; None: all need all, as in sampling.
  """
  if isinstance(model, DecoderConfig):
    return model.vocab_size * model.model_dim
  clusters = vocabulary_clusters(model)
  shares = [1.0] * len(clusters) if shares is None else shares
  total = sum(share * (c.size * c.width + c.projected * model.model_dim * c.width)
              for share, c in zip(shares, clusters, strict=True))
  return total + len(model.cutoffs) * clusters[0].width


def training(
  model: ModelConfig | DecoderConfig, state: TrainState, *, rows: int, segment_len: int,
  devices: int = 1, queries: float = 1.0, shares: Sequence[float] | None = None,
) -> Work:
  """One step: three times the products of the forward pass.

  Products: with all weights (for the memory, those of its keys and values), the three of attention
  on the keys that a query sees, and the softmax. Bytes: parameters are read by the forward pass,
  the backward pass and the update, and written; gradients are written and read, since their norm is
  clipped; moments are read and written; so are, once, the memory and what enters each layer.
  A decoder has no memory, and two products of attention.

  `queries` are tokens that pass the layers, over those of the rows: more than 1 with branches,
  whose keys and values of the memory and whose softmax are those of the row.
  """
  d, n = model.model_dim, model.num_heads * model.head_dim
  t = segment_len
  if isinstance(model, DecoderConfig):
    layer = queries * (layer_weights(model) + 2 * n * t / 2)
  else:
    m = model.memory_len
    layer = queries * (layer_weights(model) + 3 * n * (m + t / 2)) + 2 * d * n * m / t
  operations = 6 * rows * t * (model.num_layers * layer + softmax_weights(model, shares))
  parts = StateBytes.of(state)
  inputs = model.num_layers * queries * rows * t * d * jnp.dtype(model.dtype).itemsize
  return Work(operations, devices * (
    4 * parts.parameters + 2 * (parts.gradients + parts.optimizer + parts.hidden)) + 2 * inputs)


def evaluation(model: ModelConfig, state: TrainState, *, rows: int, devices: int = 1) -> Work:
  """One segment with cached keys and values; bytes: parameters and the keys and values."""
  n, t, m = model.num_heads * model.head_dim, model.segment_len, model.memory_len
  layer = layer_weights(model) + 3 * n * (m + t / 2)
  cached = 2 * model.num_layers * rows * m * n * jnp.dtype(model.dtype).itemsize
  return Work(2 * rows * t * (model.num_layers * layer + softmax_weights(model)),
              devices * StateBytes.of(state).parameters + cached)


def sampling(
  model: ModelConfig | DecoderConfig, *, values: int, samples: int, new_tokens: int,
  prefix_len: int, batch_size: int = 0, devices: int = 1, platform: str = 'cpu',
) -> Work:
  """Continuations that all have `new_tokens` tokens.

  Products: with the weights of layers and softmax, for each token; attention's own are left out, as
  its time is that of reading. Bytes: in each step of a batch every device reads the weights and the
  keys and values of the prefixes once; each sample's own are written once and read in every later
  step.
  """
  weights = model.num_layers * layer_weights(model) + softmax_weights(model)
  heads = model.num_kv_heads if isinstance(model, DecoderConfig) else model.num_heads
  token = 2 * model.num_layers * heads * model.head_dim  # numbers of keys and values
  size = jnp.dtype(model.dtype).itemsize
  steps = -(-samples // (batch_size or samples)) * new_tokens * devices
  own = token * cache_dtype(model.dtype, platform).itemsize * new_tokens * (new_tokens - 1) / 2
  return Work(2 * values * samples * new_tokens * weights,
              steps * size * (weights + values * prefix_len * token) + values * samples * own)


def loss(
  model: ModelConfig, *, tokens: int, products: int, shares: Sequence[float] | None = None
) -> Work:
  """Loss and gradients of so many tokens, by 3 products, or 4 where scores are computed twice.

  Bytes: tables and projections are read, their gradients written, both in float32; so are the
  hidden states and their gradients in the model's dtype.
  """
  hidden = tokens * model.model_dim * jnp.dtype(model.dtype).itemsize
  return Work(2 * products * tokens * softmax_weights(model, shares),
              2 * (4 * softmax_weights(model) + hidden))
