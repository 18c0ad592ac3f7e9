r"""Cached decoding: continuations of prefixes, token by token, with the parameters of the model.

With a query q = W_q x at distance d from a key k, the score of Dai et al. 2019 (arXiv:1901.02860,
section 3.3) is :math:`(q + u)^\top k + (q + v)^\top r_d`. All samples of a prefix share its keys
and have the same distance to each of them, so there the score is one product with the input x,
:math:`x^\top [W_q^\top (k + r_d)] + (u^\top k + v^\top r_d)`, and the values can pass the output
projection beforehand. Both are computed once per prefix, never per sample, and the attention to a
prefix of Q tokens costs two matrix products of D by N Q. The relative keys of all distances are
multiplied with W_q beforehand as well.

Keys and values of the new tokens lie in the chunks of `decode_loop`. A token's own key and value
are columns of their own, so that a chunk is written after everything that reads it.

Prefixes are padded on the left: the next token then has the same distance to the last prefix token
in every row.

A token attends at most `memory_len + segment_len - 1` positions back: the furthest that training
shows (the last position of a segment sees the whole memory).

Letters: A prefixes (values of an attribute), R samples of each, Q padded prefix length, C places of
a chunk, L layers, N heads, H head width, D model width, F feed-forward width, V vocabulary.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fairjax.config import ModelConfig
from fairjax.model.attention import sinusoids
from fairjax.model.decode_loop import Chunk, Decoder, in_order, num_places, unless_empty
from fairjax.model.softmax import embed_tokens, parameter_table, word_scores

_LAYER_NORM_EPS = 1e-5


class Weights(NamedTuple):
  r"""Parameters in the compute dtype, cut by layer; 1/sqrt(H) is folded into queries, u and v.

  A layer holds, besides its own norms, `output` and feed-forward: `query_key_value` [D, 3, N, H],
  `content_bias` [N, H] and, for the distances R - 1 down to 0, `relative` [D, N, R]
  (:math:`W_q^\top r_d`) with `relative_bias` [N, R] (:math:`v^\top r_d`).
  """

  softmax: Mapping[str, Array]
  layers: tuple[Mapping[str, Array], ...]
  final_norm: tuple[Array, Array] | None


class PrefixLayer(NamedTuple):
  r"""Keys and values of the prefixes, seen from the input of one layer.

  Attributes:
    keys: :math:`W_q^\top k` of each prefix token.
    bias: :math:`u^\top k`, and the lowest float where there is no token.
    values: values after the output projection.
  """

  keys: Float[Array, 'A D N Q']
  bias: Float[Array, 'A N Q']
  values: Float[Array, 'A N Q D']


class Prefix(NamedTuple):
  """What decoding needs of the prefixes.

  Attributes:
    layers: one entry a layer.
    hidden: `[A, D]`, input of the softmax after the last token.
  """

  layers: tuple[PrefixLayer, ...]
  hidden: Float[Array, 'A D']


@dataclasses.dataclass(frozen=True)
class TransformerXLDecoder(Decoder):
  """Cached decoding of a Transformer-XL.

  Attributes:
    config: the model, with its vocabulary size.
  """

  config: ModelConfig

  num_layers = property(lambda self: self.config.num_layers)
  num_heads = property(lambda self: self.config.num_heads)
  head_dim = property(lambda self: self.config.head_dim)
  vocab_size = property(lambda self: self.config.vocab_size)
  dtype = property(lambda self: self.config.dtype)

  def describe(self) -> dict[str, Any]:
    """The model's configuration."""
    return dataclasses.asdict(self.config)

  def prepare(self, params, *, num_positions):
    """See `prepare_weights`."""
    return prepare_weights(params, self.config, num_distances=num_positions)

  def prefill(self, weights, tokens, lengths):
    """See `prefill`."""
    prefix = prefill(weights, self.config, tokens, lengths)
    return prefix, prefix.hidden

  def step(self, weights, prefix, filled, unfilled, tokens, index):
    """See `decode_step`."""
    return decode_step(weights, self.config, prefix, filled, unfilled, tokens, index=index)

  def scores(self, weights, hidden):
    """See `softmax.word_scores`."""
    return word_scores(weights.softmax, self.config, hidden)


def attention_window(config: ModelConfig) -> int:
  """Number of positions, the own included, that a token may attend to."""
  return config.memory_len + config.segment_len


def prepare_weights(
  params: Mapping[str, Any], config: ModelConfig, *, num_distances: int
) -> Weights:
  """Cuts parameters by layer and projects the relative keys; products in float32 or wider.

  Args:
    params: of the Transformer-XL: `embedding`, `softmax_bias`, `layers`, `content_bias`, ...
    config: the model.
    num_distances: R; distances 0 .. R - 1 get a relative key.

  Returns:
    Weights in the compute dtype.
  """
  dtype = jnp.dtype(config.dtype)
  wide = jnp.promote_types(dtype, jnp.float32)
  scale = 1 / math.sqrt(config.head_dim)
  table = jnp.asarray(sinusoids(
    num_distances=num_distances, model_dim=config.model_dim, clamp_len=config.clamp_len), wide)
  layers = []
  for i in range(config.num_layers):
    layer = {name: value[i].astype(wide) for name, value in params['layers'].items()}
    if config.tie_position_biases:
      layer |= {name: params[name].astype(wide) for name in ('content_bias', 'position_bias')}
    query = layer.pop('query') * scale
    relative = jnp.einsum('rd,dnh->rnh', table, layer['relative'])
    layer['relative'] = jnp.einsum('dnh,rnh->dnr', query, relative)
    layer['relative_bias'] = jnp.einsum('nh,rnh->nr', layer.pop('position_bias') * scale, relative)
    layer['content_bias'] *= scale
    # One matrix product instead of three.
    layer['query_key_value'] = jnp.concatenate([query[:, None], layer.pop('key_value')], axis=1)
    layers.append({name: value.astype(dtype) for name, value in layer.items()})
  final_norm = None
  if config.final_norm:
    final_norm = (params['final_norm_scale'].astype(dtype), params['final_norm_bias'].astype(dtype))
  softmax = {name: params[name] if 'bias' in name else params[name].astype(dtype)
             for name in parameter_table(config)}
  return Weights(softmax, tuple(layers), final_norm)


def prefill(
  weights: Weights, config: ModelConfig, tokens: Int[Array, 'A Q'], lengths: Int[Array, 'A']
) -> Prefix:
  """Reads the prefixes.

  Args:
    weights: with relative keys for at least Q distances.
    config: the model.
    tokens: `[A, Q]` int, padded on the left with any valid id.
    lengths: `[A]` int in [1, Q], number of valid tokens.

  Returns:
    Keys and values of all layers and the hidden state after the last token of each prefix.
  """
  size = tokens.shape[1]
  position = jnp.arange(size)
  distance = position[:, None] - position[None, :]
  seen = (distance >= 0) & (distance < attention_window(config))
  valid = position[None, :] >= size - lengths[:, None]
  mask = (seen[None] & valid[:, None, :])[:, None]
  column = (size - 1 - jnp.maximum(distance, 0))[None, None]

  x = embed_tokens(weights.softmax, config, tokens)
  layers = []
  for layer in weights.layers:
    normed = _norm_input(layer, config, x)
    q, k, v = _project(layer, normed)
    by_distance = _add(
      jnp.einsum('aid,dnr->ainr', normed, layer['relative'][..., -size:]),
      layer['relative_bias'][:, -size:]).transpose(0, 2, 1, 3)
    scores = jnp.einsum('ainh,ajnh->anij', _add(q, layer['content_bias']), k)
    scores += jnp.take_along_axis(by_distance, column, axis=-1)
    probability = _softmax(jnp.where(mask, scores, _lowest(scores.dtype)))
    mixed = jnp.einsum('anij,ajnh->ainh', probability, v)
    x = _finish_layer(layer, config, x, jnp.tensordot(mixed, layer['output'], 2))
    bias = jnp.einsum('nh,ajnh->anj', layer['content_bias'], k)
    layers.append(PrefixLayer(
      jnp.einsum('dnh,ajnh->adnj', layer['query_key_value'][:, 0], k),
      jnp.where(valid[:, None], bias, _lowest(bias.dtype)),
      jnp.einsum('ajnh,nhd->anjd', v, layer['output'])))
  return Prefix(tuple(layers), _final(weights, x[:, -1]))


def decode_step(
  weights: Weights, config: ModelConfig, prefix: Prefix, filled: Sequence[Chunk],
  unfilled: Sequence[Chunk], tokens: Int[Array, 'A R'], *, index: Int[Array, ''] | int,
) -> tuple[Float[Array, 'A R D'], Chunk]:
  """Reads one new token of every sample.

  Args:
    weights: with relative keys for at least Q + index + 1 distances.
    config: the model.
    prefix: of `prefill`.
    filled: chunks of the first new tokens, without an empty place.
    unfilled: of the new tokens behind those and before this one; later places hold anything finite.
      Their dtype, the model's or a wider one, is that of attention to the new tokens.
    tokens: `[A, R]` int.
    index: number of new tokens before this one, among the places of `unfilled`.

  Returns:
    Input of the softmax, `[A, R, D]`, and a chunk of one place with this token.
  """
  size = prefix.layers[0].bias.shape[-1]
  chunks = in_order(filled, unfilled, index)
  places = num_places([chunk for _, chunk in chunks])
  distance = size + index - jnp.arange(size + places)
  seen = (distance > 0) & (distance < attention_window(config))

  x = embed_tokens(weights.softmax, config, tokens)
  cache = unfilled[0].keys[0].dtype
  own_scores = functools.partial(jnp.einsum, 'arnh,arnch->arnc')
  own_mixed = functools.partial(jnp.einsum, 'arnc,arnch->arnh')
  keys, values = [], []
  for i, layer in enumerate(weights.layers):
    normed = _norm_input(layer, config, x)
    q, k, v = (y.astype(cache) for y in _project(layer, normed))
    # One column a position, at distances size + index downwards; those below 1 are masked.
    start = layer['relative'].shape[2] - 1 - size - index
    relative, relative_bias = (
      jax.lax.dynamic_slice_in_dim(
        jnp.pad(r, [(0, 0)] * (r.ndim - 1) + [(0, places)]), start, size + places, axis=-1)
      for r in (layer['relative'], layer['relative_bias']))
    relative_bias = jnp.where(seen, relative_bias, _lowest(relative_bias.dtype))

    of_prefix = prefix.layers[i]
    to_prefix = jnp.einsum('ard,adnq->arnq', normed, of_prefix.keys + relative[None, ..., :size])
    bias = of_prefix.bias + relative_bias[None, :, :size]
    to_prefix += jnp.broadcast_to(bias[:, None], to_prefix.shape)
    content = _add(q, layer['content_bias'].astype(cache))
    to_own = jnp.concatenate(
      [unless_empty(used, own_scores, content, chunk.keys[i]) for used, chunk in chunks], axis=-1)
    to_own += _add(
      jnp.einsum('ard,dnc->arnc', normed, relative[..., size:]), relative_bias[:, size:])
    to_self = _add(jnp.einsum('arnh,arnh->arn', content, k)
                   + jnp.einsum('ard,dn->arn', normed, layer['relative'][..., -1]),
                   layer['relative_bias'][:, -1])
    probability = _softmax(jnp.concatenate([to_prefix, to_own, to_self[..., None]], axis=-1))

    mixed = probability[..., -1:] * v
    end = size
    for used, chunk in chunks:
      begin, end = end, end + num_places([chunk])
      mixed = unless_empty(
        used, own_mixed, probability[..., begin:end], chunk.values[i], onto=mixed)
    x = _finish_layer(
      layer, config, x, jnp.tensordot(mixed.astype(x.dtype), layer['output'], 2)
      + jnp.einsum(
        'arnq,anqd->ard', probability[..., :size].astype(x.dtype), of_prefix.values))
    keys.append(k[:, :, :, None])
    values.append(v[:, :, :, None])
  return _final(weights, x), Chunk(tuple(keys), tuple(values))


def _norm_input(layer, config, x):
  """What queries, keys and values are projected from."""
  if config.norm == 'pre':
    return _layer_norm(x, layer['attention_norm_scale'], layer['attention_norm_bias'])
  return x


def _project(layer, x):
  """Queries (scaled by 1/sqrt(H)), keys and values, [..., N, H] each."""
  qkv = jnp.einsum('...d,dcnh->...cnh', x, layer['query_key_value'])
  return qkv[..., 0, :, :], qkv[..., 1, :, :], qkv[..., 2, :, :]


def _finish_layer(layer, config, x, attended):
  """Residuals, feed-forward and norms."""
  attention_norm = layer['attention_norm_scale'], layer['attention_norm_bias']
  ff_norm = layer['ff_norm_scale'], layer['ff_norm_bias']
  x = x + attended
  if config.norm == 'post':
    x = _layer_norm(x, *attention_norm)
  y = _layer_norm(x, *ff_norm) if config.norm == 'pre' else x
  y = jax.nn.relu(_add(jnp.einsum('...d,df->...f', y, layer['ff_in']), layer['ff_in_bias']))
  x = x + _add(jnp.einsum('...f,fd->...d', y, layer['ff_out']), layer['ff_out_bias'])
  return _layer_norm(x, *ff_norm) if config.norm == 'post' else x


def _final(weights, x):
  """Input of the softmax."""
  return x if weights.final_norm is None else _layer_norm(x, *weights.final_norm)


def _layer_norm(x, scale, bias):
  """Layer norm over the last axis with statistics in at least float32."""
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  wide -= wide.mean(axis=-1, keepdims=True)
  wide *= jax.lax.rsqrt(jnp.square(wide).mean(axis=-1, keepdims=True) + _LAYER_NORM_EPS)
  return _add(wide.astype(x.dtype) * jnp.broadcast_to(scale, x.shape), bias)


def _softmax(scores):
  """Softmax over the last axis, computed in at least float32."""
  wide = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
  return jax.nn.softmax(wide, axis=-1).astype(scores.dtype)


def _add(x, bias):
  """Adds a bias to the trailing axes."""
  return x + jnp.broadcast_to(bias, x.shape)


def _lowest(dtype):
  """A score that no attention weight survives, even when two of them are added."""
  return jnp.asarray(jnp.finfo(dtype).min / 4, dtype)
