"""Cached decoding of GPT-2 for the coupled sampler (H-33).

All samples of a prefix share its keys and values. Letters as in
`fairjax.model.decoding`.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fairjax.model.decoder import CachedDecoder, DecoderConfig
from fairjax.model.decoding import Chunk, Decoder, chunks_and_flags, num_slots, skip_if_empty
from fairjax.pretrained.checkpoint import Architecture, Pretrained
from fairjax.pretrained.models import (
  dense,
  feed_forward,
  norm,
  output_table,
  precision_of,
  wide,
)

Array = jax.Array


def make_decoder(model: Pretrained, dtype: str) -> Decoder:
  """Cached decoding of a pretrained language model.

  Args:
    model: of `load_pretrained(directory, 'lm', dtype=dtype)`.
    dtype: of the computation.
  """
  if isinstance(model.arch, DecoderConfig):
    return CachedDecoder(model.arch, model.unused_ids)
  return GPT2Decoder(model.arch, dtype, model.unused_ids)


class Prefix(NamedTuple):
  """Caches of the prefixes."""

  keys: tuple[Array, ...]  # [A, N, Q, H] of each layer
  values: tuple[Array, ...]
  valid: Array  # [A, Q] bool, False at padding
  lengths: Array  # [A]


@dataclasses.dataclass(frozen=True)
class GPT2Decoder(Decoder):
  """Cached decoding of a GPT-2 of any size.

  Attributes:
    arch: of `read_architecture`, of kind 'gpt2'.
    dtype: of the parameters: 'float32', 'bfloat16' or 'float64'.
    unused: ids that are no token (`unused_ids`) and are never drawn.
  """

  arch: Architecture
  dtype: str = 'float32'
  unused: tuple[int, ...] = ()

  num_layers = property(lambda self: self.arch.num_layers)
  num_heads = property(lambda self: self.arch.num_heads)
  head_dim = property(lambda self: self.arch.head_dim)
  vocab_size = property(lambda self: self.arch.vocab_size)
  max_positions = property(lambda self: self.arch.max_positions)

  def describe(self) -> dict[str, Any]:
    """The architecture, the dtype, and how many ids are never drawn."""
    return dataclasses.asdict(self.arch) | {'dtype': self.dtype} | (
      {'unused': len(self.unused)} if self.unused else {})

  def prepare(self, params, *, num_positions):
    """The parameters, with the layers apart: their loop is unrolled."""
    layers = [jax.tree.map(lambda a, i=i: a[i], params['layers']) for i in range(self.num_layers)]
    weights = {**params, 'layers': layers}
    if self.dtype == 'bfloat16':  # whose product on CPU takes a fifth less time by output
      for layer in layers:
        layer['ff_out_rows'] = layer.pop('ff_out_kernel').T
    return weights

  def prefill(self, weights, tokens, lengths):
    """Reads the prefixes; the input of `logits` is normed already."""
    size, table = tokens.shape[1], weights['embeddings']
    slot = jnp.arange(size)
    valid = slot[None] >= size - lengths[:, None]
    position = jnp.maximum(slot[None] - (size - lengths[:, None]), 0)
    # A padded slot sees itself: its row stays finite, and nobody else sees it.
    seen = (valid[:, None, :] | jnp.eye(size, dtype=bool)[None]) & jnp.tril(
      jnp.ones((size, size), bool))[None]
    x = table['word'][tokens] + table['position'][position]
    keys, values = [], []
    for w in weights['layers']:
      q, k, v = self._project(x, w)
      scores = wide(jnp.einsum('atnh,asnh->ants', q, k, precision=precision_of(x)))
      probs = _softmax(jnp.where(seen[:, None], scores, jnp.finfo(scores.dtype).min), x.dtype)
      context = jnp.einsum('ants,asnh->atnh', probs, v, precision=precision_of(x))
      x = self._finish(x, w, context)
      keys.append(k.swapaxes(1, 2))
      values.append(v.swapaxes(1, 2))
    prefix = Prefix(tuple(keys), tuple(values), valid, lengths)
    return prefix, self._final(weights, x[:, -1:])[:, 0]

  def step(self, weights, prefix, filled, unfilled, tokens, index):
    """See `Decoder.step`."""
    table, size = weights['embeddings'], prefix.valid.shape[1]
    chunks = chunks_and_flags(filled, unfilled, index)
    slots = num_slots([chunk for _, chunk in chunks])
    own = jnp.broadcast_to((jnp.arange(slots) < index)[None], (tokens.shape[0], slots))
    seen = jnp.concatenate([prefix.valid, own, jnp.ones((tokens.shape[0], 1), bool)], axis=1)
    x = table['word'][tokens] + table['position'][prefix.lengths + index][:, None]
    cache = unfilled[0].keys[0].dtype
    product = functools.partial(jnp.einsum, precision=precision_of(unfilled[0].keys[0]))
    own_scores = functools.partial(product, 'arnh,arnch->arnc')
    own_context = functools.partial(product, 'arnc,arnch->arnh')
    keys, values = [], []
    for i, w in enumerate(weights['layers']):
      q, k, v = (y.astype(cache) for y in self._project(x, w))
      of_prefix = [y[i].astype(cache) for y in (prefix.keys, prefix.values)]
      scores = jnp.concatenate(
        [product('arnh,anqh->arnq', q, of_prefix[0])]
        + [skip_if_empty(used, own_scores, q, chunk.keys[i]) for used, chunk in chunks]
        + [product('arnh,arnh->arn', q, k)[..., None]], axis=-1)
      scores = wide(scores)
      probs = _softmax(
        jnp.where(seen[:, None, None], scores, jnp.finfo(scores.dtype).min), cache)
      context = probs[..., -1:] * v + product(
        'arnq,anqh->arnh', probs[..., :size], of_prefix[1])
      end = size
      for used, chunk in chunks:
        begin, end = end, end + num_slots([chunk])
        context = skip_if_empty(
          used, own_context, probs[..., begin:end], chunk.values[i], add_to=context)
      x = self._finish(x, w, context.astype(x.dtype))
      keys.append(k[:, :, :, None])
      values.append(v[:, :, :, None])
    return self._final(weights, x), Chunk(tuple(keys), tuple(values))

  def logits_and_bias(self, weights, hidden):
    """Logits, `[..., V]`, with the sums of bfloat16 as they are: float32; -inf for `unused`."""
    # Two axes: of more XLA's product of bfloat16 on CPU turns the table over in every step.
    scores = jnp.einsum(
      'rd,vd->rv', hidden.reshape(-1, hidden.shape[-1]), output_table(weights),
      precision=precision_of(hidden),
      preferred_element_type=jnp.promote_types(hidden.dtype, jnp.float32))
    bias = None
    if self.unused:
      bias = jnp.zeros(self.vocab_size, scores.dtype).at[np.array(self.unused)].set(-jnp.inf)
    return scores.reshape(*hidden.shape[:-1], -1), bias

  def _project(self, x, w):
    """Queries (scaled), keys and values, [A, T, N, H] each."""
    normed = norm(x, w['attention_norm_scale'], w['attention_norm_bias'], self.arch.norm_eps)
    qkv = dense(normed, w['qkv_kernel'], w['qkv_bias'])
    q, k, v = jnp.split(
      qkv.reshape(*x.shape[:2], 3 * self.num_heads, self.head_dim), 3, axis=2)
    return q * jnp.asarray(self.head_dim ** -0.5, q.dtype), k, v

  def _finish(self, x, w, context):
    """Residuals and feed-forward."""
    x = x + dense(context.reshape(x.shape), w['out_kernel'], w['out_bias'])
    return x + feed_forward(
      norm(x, w['ff_norm_scale'], w['ff_norm_bias'], self.arch.norm_eps), w, self.arch)

  def _final(self, weights, x):
    scale_and_bias = weights['final_norm']['scale'], weights['final_norm']['bias']
    return norm(x, *scale_and_bias, self.arch.norm_eps)


def _softmax(scores, dtype):
  return jax.nn.softmax(scores, axis=-1).astype(dtype)
