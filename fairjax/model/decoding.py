r"""Cached decoding: continuations of prefixes, token by token, with the parameters of the model.

With a query q = W_q x at distance d from a key k, the score of Dai et al. 2019 (arXiv:1901.02860,
section 3.3) is :math:`(q + u)^\top k + (q + v)^\top r_d`. All samples of a prefix share its keys
and have the same distance to each of them, so there the score is one product with the input x,
:math:`x^\top [W_q^\top (k + r_d)] + (u^\top k + v^\top r_d)`, and the values can pass the output
projection beforehand. Both are computed once per prefix, never per sample, and the attention to a
prefix of Q tokens costs two matrix products of D by N Q. The relative keys of all distances are
multiplied with W_q beforehand as well.

Prefixes are padded on the left: the next token then has the same distance to the last prefix token
in every row. A token attends at most `memory_len + segment_len - 1` positions back, the furthest
distance of training (the last position of a segment sees the whole memory).

Own letters: A prefixes (values of an attribute), R samples of each, B prompts that a method at
decoding time reads a sample after (else absent), Q padded prefix length, C slots of a chunk.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fairjax.config import ModelConfig, model_identity
from fairjax.model.attention import sinusoids
from fairjax.model.decoder_config import DecoderConfig
from fairjax.model.softmax import embed_tokens, logits_and_bias, lowest, parameter_table

# The loop that reads new tokens one by one, for any decoder that caches keys and values. Keys and
# values of the new tokens are in chunks. Each stage is a loop whose state holds the chunks that it
# fills; earlier chunks are constants of the loop and are never copied. A chunk without a token is
# never read.

# More stages read fewer empty slots. Each compiles all layers again; a program gets at most 30
# copies of a layer.
_STAGE_STEPS, _MAX_STAGES, _MAX_LAYERS = 10, 5, 30
_CHUNK_SLOTS = 5  # of a chunk on CPU, which reads its caches at the speed of main memory


class Chunk(NamedTuple):
  """Keys and values of C new tokens, [A, R, N, C, H] by layer."""

  keys: tuple[Array, ...]
  values: tuple[Array, ...]


class Decoder(abc.ABC):
  """A language model as sampling uses it.

  A decoder is hashable and equal to every other decoder of the same model, so that compiled
  programs are cached by it. Parameters, and the weights made of them, are arguments of its methods.
  """

  config: ModelConfig | DecoderConfig
  max_positions: int | None = None  # most tokens of prefix and continuation; None: no limit

  @property
  def cached_heads(self) -> int:
    """Heads of keys and values."""
    return self.config.num_heads

  def cache_shape(self, rows: tuple[int, int]) -> tuple[int, int]:
    """Rows and samples of the keys and values of [A, R] continuations."""
    return rows

  def describe(self) -> dict[str, Any]:
    """Everything besides the parameters on which the logits depend, as JSON values."""
    return model_identity(dataclasses.asdict(self.config))

  @abc.abstractmethod
  def prepare(self, params: Any, *, num_positions: int) -> Any:
    """Makes the weights for texts of at most `num_positions` tokens, prefix padding included."""

  @abc.abstractmethod
  def prefill(
    self, weights: Any, tokens: Int[Array, 'A Q'], lengths: Int[Array, 'A']
  ) -> tuple[Any, Float[Array, 'A *B D']]:
    """Reads left-padded prefixes; returns their caches and the input of `logits`."""

  @abc.abstractmethod
  def step(
    self, weights: Any, prefix: Any,
    filled: Sequence[Chunk],  # the first new tokens, without an empty slot
    unfilled: Sequence[Chunk],  # tokens after those and before this; empty slots hold finite values
    tokens: Int[Array, 'A R'],
    index: Int[Array, ''],  # number of new tokens before this one, in the slots of `unfilled`
  ) -> tuple[Float[Array, 'A R *B D'], Chunk]:
    """Reads one new token of each sample; returns the input of `logits` and a one-slot chunk."""

  @abc.abstractmethod
  def logits_and_bias(
    self, weights: Any, hidden: Float[Array, '*S D']
  ) -> tuple[Float[Array, '*T V'], Float[Array, 'V'] | None]:
    """Logits in float32 or wider without the bias of each word, and that bias; T is S without B."""

  def logits(self, weights: Any, hidden: Float[Array, '*S D']) -> Float[Array, '*T V']:
    """Logits, float32 or wider."""
    logits, bias = self.logits_and_bias(weights, hidden)
    return logits if bias is None else logits + bias[(None,) * (logits.ndim - 1)]


def cache_dtype(dtype: str, platform: str) -> jnp.dtype:
  """Dtype of keys and values: `dtype`, but float32 for bfloat16 on CPU."""
  # XLA on CPU would convert all keys and values to float32 in every step.
  found = jnp.dtype(dtype)
  return jnp.dtype(jnp.float32) if platform == 'cpu' and found == jnp.bfloat16 else found


def chunks_and_flags(
  filled: Sequence[Chunk], unfilled: Sequence[Chunk], index: Int[Array, ''] | int
) -> list[tuple[Bool[Array, ''] | None, Chunk]]:
  """All chunks, each with a flag whether it holds a token; None: read it without a test."""
  # The first of `unfilled` is read at every step, since it is empty at one of them only.
  found: list[tuple[Bool[Array, ''] | None, Chunk]] = [(None, chunk) for chunk in filled]
  begin = num_slots(filled)
  for number, chunk in enumerate(unfilled):
    found.append((jnp.asarray(index) > begin if number else None, chunk))
    begin += num_slots([chunk])
  return found


def num_slots(chunks: Sequence[Chunk]) -> int:
  """Slots of all chunks together."""
  return sum(chunk.keys[0].shape[3] for chunk in chunks)


def skip_if_empty(
  used: Bool[Array, ''] | None, function: Callable[..., Array], *arrays: Array,
  add_to: Array | None = None,
) -> Array:
  """`function(*arrays)`, plus `add_to`; where `used` is false, zeros plus `add_to`, and no read."""
  if used is None:
    return function(*arrays) if add_to is None else add_to + function(*arrays)
  if add_to is not None:
    return jax.lax.cond(
      used, lambda total, *arrays: total + function(*arrays), lambda total, *_: total, add_to,
      *arrays)
  out = jax.eval_shape(function, *arrays)
  return jax.lax.cond(used, function, lambda *_: jnp.zeros(out.shape, out.dtype), *arrays)


def write_slot(
  chunks: Sequence[Chunk], new: Chunk, slot: Int[Array, ''] | int
) -> tuple[Chunk, ...]:
  """Writes the one token of `new` into a slot, counted over all chunks."""
  written = []
  for chunk in chunks:
    size = num_slots([chunk])
    at, inside = jnp.clip(slot, 0, size - 1), (0 <= slot) & (slot < size)

    def write(cache, token, at=at, inside=inside):
      if len(chunks) > 1:  # every chunk is written, all but one with what is there
        token = jnp.where(inside, token, jax.lax.dynamic_slice_in_dim(cache, at, 1, axis=3))
      return jax.lax.dynamic_update_slice_in_dim(cache, token, at, axis=3)

    written.append(jax.tree.map(write, chunk, new))
    slot = slot - size
  return tuple(written)


def run_decoding(
  decoder: Decoder,
  weights: Any,  # of `decoder.prepare`, for Q + num_steps positions
  prefix: Any,  # of `decoder.prefill`
  first: Int[Array, 'A R'],  # the first token to read
  carry: Any,
  # (carry, hidden [A, R, D], index) -> (carry, next tokens [A, R], go_on []); False ends the loop
  consume: Callable[[Any, Array, Array], tuple[Any, Array, Array]],
  *, num_steps: int,
  platform: str | None = None,  # 'cpu' or another; None: JAX's default
) -> Any:  # the last carry
  """Reads up to `num_steps` new tokens; call it under `jax.jit`."""
  c = decoder.config
  most = max(1, min(_MAX_STAGES, _MAX_LAYERS // c.num_layers))
  stages = min(-(-num_steps // _STAGE_STEPS), most)
  ends = sorted({-(-num_steps * (i + 1) // stages) for i in range(stages)} - {0})
  platform = platform or jax.default_backend()
  dtype = cache_dtype(c.dtype, platform)
  begin, state, filled = 0, (jnp.int32(0), first, jnp.bool_(True), carry), ()

  def body(begin, filled, loop):
    (index, tokens, _, carry), chunks = loop
    hidden, new = decoder.step(weights, prefix, filled, chunks, tokens, index)
    carry, tokens, go_on = consume(carry, hidden, index)
    # `tokens.min() < 0` is always false, which XLA cannot know. The slot depends on it, so that a
    # chunk is written after every read of it, and so in place; else XLA copies it twice a step.
    chunks = write_slot(chunks, new, index - begin + (tokens.min() < 0))
    return (index + 1, tokens, go_on, carry), chunks

  def empty(slots):
    shape = (*decoder.cache_shape(first.shape), decoder.cached_heads, slots, c.head_dim)
    return Chunk(*[(jnp.zeros(shape, dtype),) * c.num_layers] * 2)

  for end in ends:
    most = _CHUNK_SLOTS if platform == 'cpu' else end - begin
    chunks = tuple(empty(min(most, end - at)) for at in range(begin, end, most))
    state, chunks = jax.lax.while_loop(
      functools.partial(lambda end, loop: (loop[0][0] < end) & loop[0][2], end),
      functools.partial(body, begin, filled), (state, chunks))
    begin, filled = end, (*filled, *chunks)
  return state[3]


_LAYER_NORM_EPS = 1e-5


class Weights(NamedTuple):
  r"""Parameters in the compute dtype, cut by layer; 1/sqrt(H) is folded into queries, u and v."""

  softmax: Mapping[str, Array]
  # Norms, `output` and feed-forward as in the model; `query_key_value` [D, 3, N, H];
  # `content_bias` [N, H]; for the distances R - 1 down to 0 `relative` [D, N, R] (W_q^T r_d) and
  # `relative_bias` [N, R] (v^T r_d).
  layers: tuple[Mapping[str, Array], ...]
  final_norm: tuple[Array, Array] | None


class PrefixLayer(NamedTuple):
  """Keys and values of the prefixes, as one layer's input sees them."""

  keys: Float[Array, 'A D N Q']  # W_q^T k of each prefix token
  bias: Float[Array, 'A N Q']  # u^T k, and the lowest float where there is no token
  values: Float[Array, 'A N Q D']  # values after the output projection


@dataclasses.dataclass(frozen=True)
class TransformerXLDecoder(Decoder):
  """Cached decoding of a Transformer-XL."""

  config: ModelConfig

  @property
  def _window(self) -> int:
    """Number of positions that a token may attend to, itself included."""
    return self.config.memory_len + self.config.segment_len

  def prepare(self, params, *, num_positions):
    """Splits parameters by layer and projects the relative keys; products in float32 or wider."""
    c = self.config
    dtype = jnp.dtype(c.dtype)
    sum_dtype = jnp.promote_types(dtype, jnp.float32)
    scale = 1 / math.sqrt(c.head_dim)
    table = jnp.asarray(sinusoids(
      num_distances=num_positions, model_dim=c.model_dim, clamp_len=c.clamp_len), sum_dtype)
    layers = []
    for i in range(c.num_layers):
      layer = {name: value[i].astype(sum_dtype) for name, value in params['layers'].items()}
      if c.tie_position_biases:
        layer |= {name: params[name].astype(sum_dtype)
                  for name in ('content_bias', 'position_bias')}
      query = layer.pop('query') * scale
      relative = jnp.einsum('rd,dnh->rnh', table, layer['relative'])
      layer['relative'] = jnp.einsum('dnh,rnh->dnr', query, relative)
      layer['relative_bias'] = jnp.einsum(
        'nh,rnh->nr', layer.pop('position_bias') * scale, relative)
      layer['content_bias'] *= scale
      # One matrix product instead of three projects queries, keys and values.
      layer['query_key_value'] = jnp.concatenate([query[:, None], layer.pop('key_value')], axis=1)
      layers.append({name: value.astype(dtype) for name, value in layer.items()})
    final_norm = None
    if c.final_norm:
      final_norm = tuple(params[f'final_norm_{name}'].astype(dtype) for name in ('scale', 'bias'))
    softmax = {name: params[name] if 'bias' in name else params[name].astype(dtype)
               for name in parameter_table(c)}
    return Weights(softmax, tuple(layers), final_norm)

  def prefill(self, weights, tokens, lengths):
    """A `PrefixLayer` for each layer, and the input of `logits`."""
    c = self.config
    size = tokens.shape[1]
    position = jnp.arange(size)
    distance = position[:, None] - position[None, :]
    seen = (distance >= 0) & (distance < self._window)
    valid = position[None, :] >= size - lengths[:, None]
    mask = (seen[None] & valid[:, None, :])[:, None]
    column = (size - 1 - jnp.maximum(distance, 0))[None, None]

    x = embed_tokens(weights.softmax, c, tokens)
    layers = []
    for layer in weights.layers:
      normed = _norm_input(layer, c, x)
      q, k, v = _project(layer, normed)
      by_distance = _add(
        jnp.einsum('aid,dnr->ainr', normed, layer['relative'][..., -size:]),
        layer['relative_bias'][:, -size:]).transpose(0, 2, 1, 3)
      scores = jnp.einsum('ainh,ajnh->anij', _add(q, layer['content_bias']), k)
      scores += jnp.take_along_axis(by_distance, column, axis=-1)
      probability = _softmax(jnp.where(mask, scores, lowest(scores.dtype)))
      context = jnp.einsum('anij,ajnh->ainh', probability, v)
      x = _finish_layer(layer, c, x, jnp.tensordot(context, layer['output'], 2))
      bias = jnp.einsum('nh,ajnh->anj', layer['content_bias'], k)
      layers.append(PrefixLayer(
        jnp.einsum('dnh,ajnh->adnj', layer['query_key_value'][:, 0], k),
        jnp.where(valid[:, None], bias, lowest(bias.dtype)),
        jnp.einsum('ajnh,nhd->anjd', v, layer['output'])))
    return tuple(layers), _final(weights, x[:, -1])

  def step(self, weights, prefix, filled, unfilled, tokens, index):
    """See `Decoder.step`."""
    c = self.config
    size = prefix[0].bias.shape[-1]
    chunks = chunks_and_flags(filled, unfilled, index)
    slots = num_slots([chunk for _, chunk in chunks])
    distance = size + index - jnp.arange(size + slots)
    seen = (distance > 0) & (distance < self._window)

    x = embed_tokens(weights.softmax, c, tokens)
    cache = unfilled[0].keys[0].dtype
    own_scores = functools.partial(jnp.einsum, 'arnh,arnch->arnc')
    own_context = functools.partial(jnp.einsum, 'arnc,arnch->arnh')
    keys, values = [], []
    for i, layer in enumerate(weights.layers):
      normed = _norm_input(layer, c, x)
      q, k, v = (y.astype(cache) for y in _project(layer, normed))
      # One column for each position, distances from size + index down; those below 1 are masked.
      start = layer['relative'].shape[2] - 1 - size - index
      relative, relative_bias = (
        jax.lax.dynamic_slice_in_dim(
          jnp.pad(r, [(0, 0)] * (r.ndim - 1) + [(0, slots)]), start, size + slots, axis=-1)
        for r in (layer['relative'], layer['relative_bias']))
      relative_bias = jnp.where(seen, relative_bias, lowest(relative_bias.dtype))

      of_prefix = prefix[i]
      to_prefix = jnp.einsum('ard,adnq->arnq', normed, of_prefix.keys + relative[None, ..., :size])
      bias = of_prefix.bias + relative_bias[None, :, :size]
      to_prefix += jnp.broadcast_to(bias[:, None], to_prefix.shape)
      content = _add(q, layer['content_bias'].astype(cache))
      to_own = jnp.concatenate([
        skip_if_empty(used, own_scores, content, chunk.keys[i]) for used, chunk in chunks], axis=-1)
      to_own += _add(
        jnp.einsum('ard,dnc->arnc', normed, relative[..., size:]), relative_bias[:, size:])
      to_self = _add(jnp.einsum('arnh,arnh->arn', content, k)
                     + jnp.einsum('ard,dn->arn', normed, layer['relative'][..., -1]),
                     layer['relative_bias'][:, -1])
      probability = _softmax(jnp.concatenate([to_prefix, to_own, to_self[..., None]], axis=-1))

      context = probability[..., -1:] * v
      end = size
      for used, chunk in chunks:
        begin, end = end, end + num_slots([chunk])
        context = skip_if_empty(
          used, own_context, probability[..., begin:end], chunk.values[i], add_to=context)
      x = _finish_layer(
        layer, c, x, jnp.tensordot(context.astype(x.dtype), layer['output'], 2)
        + jnp.einsum(
          'arnq,anqd->ard', probability[..., :size].astype(x.dtype), of_prefix.values))
      keys.append(k[:, :, :, None])
      values.append(v[:, :, :, None])
    return _final(weights, x), Chunk(tuple(keys), tuple(values))

  def logits_and_bias(self, weights, hidden):
    """See `softmax.logits_and_bias`."""
    return logits_and_bias(weights.softmax, self.config, hidden)


def _norm_input(layer, config, x):
  """Input of the projections of queries, keys and values."""
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
