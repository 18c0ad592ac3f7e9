"""BERT and ALBERT as pure functions of parameters.

Devlin et al. 2019 (arXiv:1810.04805), Lan et al. 2020 (arXiv:1909.11942). The layers run in a
`lax.scan`, so compilation takes as long for 2 layers as for 48. With float32 parameters every
device computes in float32; bfloat16 parameters ask for the fast products. Sums over positions and
widths (softmax, norms, pooling) are float32 at least.

Letters: B batch, T tokens, D model width, E embedding width, N heads, H head width, V vocabulary, P
places, C classes.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fairjax.errors import UserError
from fairjax.model.causal_lm import wide
from fairjax.model.xla_features import takes_rows_only
from fairjax.pretrained.checkpoint import Architecture

Array = jax.Array


def _gelu(x: Array) -> Array:
  """Gaussian error linear unit, x P(X <= x) with X ~ N(0, 1) (arXiv:1606.08415)."""
  wider = wide(x)
  return (0.5 * wider * (1 + jax.lax.erf(wider * 2 ** -0.5))).astype(x.dtype)


_ACTIVATIONS = {
  'gelu': _gelu,
  'gelu_new': functools.partial(jax.nn.gelu, approximate=True),
  'gelu_pytorch_tanh': functools.partial(jax.nn.gelu, approximate=True),
  'relu': jax.nn.relu,
}


def encode(
  params: Mapping[str, Any], arch: Architecture, ids: Array, mask: Array,
  token_types: Array | None = None, *, key: Array | None = None,
  packing: tuple[int, int] | None = None, first_only: bool = False,
) -> Array:
  """Last hidden states of BERT or ALBERT.

  Args:
    params: see `checkpoint.FAMILIES`.
    arch: of the same model.
    ids: `[B, T]` int, T at most `arch.max_positions`.
    mask: `[B, T]` bool, False at padding, which no token attends to.
    token_types: `[B, T]` int in [0, token_types); None is all 0.
    key: PRNG key of the dropout; None drops nothing.
    packing: (groups of rows, most tokens in a group that are no padding): everything but attention
      is then computed for so many tokens instead of all places; None computes at padding too.
    first_only: the last layer computes only keys and values of tokens that are not a row's first.

  Returns:
    `[B, T, D]`, or `[B, 1, D]` with `first_only`, in the parameters' dtype; at padding arbitrary
    but finite.
  """
  keys = [None] * 2 if key is None else jax.random.split(key)
  table = params['embeddings']
  types = table['token_type'][jnp.zeros_like(ids) if token_types is None else token_types]
  x = table['word'][ids] + types + table['position'][None, :ids.shape[1]]
  x = norm(x, table['norm_scale'], table['norm_bias'], arch.norm_eps)
  x = _drop(x, arch.hidden_dropout, keys[0])
  if arch.kind == 'albert':
    x = dense(x, params['projection']['kernel'], params['projection']['bias'])
  seen = mask[:, None, None, :]
  pack, unpack = _packing(mask, *packing) if packing else (_same, _same)
  layer = functools.partial(_post_norm_layer, move=(pack, unpack))
  x, last = _layers(pack(x), params['layers'], arch, seen, keys[1], layer, but_last=first_only)
  if last is None:
    return unpack(x)
  w, key = last
  return _first_token_layer(x, w, key, arch, seen, unpack)


def mlm_logits(
  params: Mapping[str, Any], arch: Architecture, hidden: Array, places: Array | None = None
) -> Array:
  """Scores over the vocabulary, not normalised: `[B, T, D]` of `encode` to `[B, P, V]`.

  `places` `[B, P]` are the positions wanted; None: all, P = T.
  """
  if places is not None:
    hidden = jnp.take_along_axis(hidden, places[..., None], axis=1)
  head = params['mlm']
  x = dense(hidden, head['kernel'], head['bias'], _ACTIVATIONS[arch.activation])
  x = norm(x, head['norm_scale'], head['norm_bias'], arch.norm_eps)
  # Tied, `[V, D]` (ALBERT `[V, E]`), or a table of its own.
  table = params['output']['table'] if 'output' in params else params['embeddings']['word']
  return dense(x, table.T) + head['output_bias'][None, None]


def class_logits(
  params: Mapping[str, Any], arch: Architecture, hidden: Array, *, key: Array | None = None
) -> Array:
  """Scores of the classes: `[B, T, D]` of `encode` to `[B, C]`, read at the first token."""
  pooler, head = params['pooler'], params['classifier']
  x = jnp.tanh(dense(hidden[:, 0], pooler['kernel']) + pooler['bias'][None])
  x = _drop(x, arch.classifier_dropout, key)
  return dense(x, head['kernel']) + head['bias'][None]


def mean_pool(hidden: Array, mask: Array) -> Array:
  """Mean over the tokens that are no padding: `[B, T, D]`, `[B, T]` to `[B, D]`, float32 at least.

  A row of padding only gives zeros.
  """
  hidden = wide(hidden)
  weights = mask[..., None].astype(hidden.dtype)
  return (hidden * weights).sum(1) / jnp.maximum(weights.sum(1), 1)


def normalize(x: Array) -> Array:
  """Vectors `[B, D]` of length 1; zeros stay zeros."""
  return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def unstack_layers(params: Mapping[str, Any]) -> dict[str, Any]:
  """The same parameters with a tuple of layers: they are then unrolled instead of scanned."""
  stacked = params['layers']
  depth = len(stacked['qkv_bias'])
  return {**params, 'layers': tuple(
    jax.tree.map(lambda a, i=i: a[i], stacked) for i in range(depth))}


def _layers(x, weights, arch: Architecture, seen, key, layer, *, but_last: bool = False):
  """Runs the layers in their order; ALBERT's are read again at every depth that shares them."""
  depth = len(arch.layer_order)
  keys = [None] * depth if key is None else jax.random.split(key, depth)
  unrolled = isinstance(weights, tuple)
  order = arch.layer_order[:-1] if but_last else arch.layer_order
  last = None
  if but_last:
    place = arch.layer_order[-1]
    last = (weights[place] if unrolled else jax.tree.map(lambda a: a[place], weights), keys[-1])
  if unrolled:
    for place, layer_key in zip(order, keys, strict=not but_last):
      x = layer(x, weights[place], arch, seen, layer_key)
    return x, last
  stack_in_order = order == tuple(range(len(weights['qkv_bias'])))

  def step(x, given):
    own, key = given
    if not stack_in_order:
      own = jax.tree.map(lambda a: jnp.asarray(a)[own], weights)
    return layer(x, own, arch, seen, key), None

  given = (weights if stack_in_order else jnp.array(order, jnp.int32),
           None if key is None else keys[:len(order)])
  return jax.lax.scan(step, x, given)[0], last


def _first_token_layer(x, w, key, arch: Architecture, seen, unpack) -> Array:
  """`_post_norm_layer` of the first token of each row: `[B, T, D]`, or packed, to `[B, 1, D]`."""
  keys = [None] * 3 if key is None else jax.random.split(key, 3)
  width = arch.model_dim
  first = unpack(x)[:, :1]
  kv = unpack(dense(x, w['qkv_kernel'][:, width:], w['qkv_bias'][width:]))
  q = dense(first, w['qkv_kernel'][:, :width], w['qkv_bias'][:width])
  key, value = jnp.split(kv, 2, axis=-1)
  mixed = _attend(q, key, value, arch, seen, keys[0])
  attended = _drop(dense(mixed, w['out_kernel'], w['out_bias']), arch.hidden_dropout, keys[1])
  return _after_attention(first, attended, w, arch, keys[2])


def _post_norm_layer(x, w, arch: Architecture, seen, key, move) -> Array:
  """Norm after the residual sum (BERT, ALBERT)."""
  keys = [None] * 3 if key is None else jax.random.split(key, 3)
  attended = _drop(_attention(x, w, arch, seen, keys[0], move), arch.hidden_dropout, keys[1])
  return _after_attention(x, attended, w, arch, keys[2])


def _after_attention(x, attended, w, arch: Architecture, key) -> Array:
  """Residual sums, norms and the feed-forward block of `_post_norm_layer`."""
  x = norm(x + attended, w['attention_norm_scale'], w['attention_norm_bias'], arch.norm_eps)
  inner = dense(x, w['ff_in_kernel'], w['ff_in_bias'], _ACTIVATIONS[arch.activation])
  moved = _drop(dense(inner, w['ff_out_kernel'], w['ff_out_bias']), arch.hidden_dropout, key)
  return norm(x + moved, w['ff_norm_scale'], w['ff_norm_bias'], arch.norm_eps)


def _packing(mask, groups: int, capacity: int):
  """Functions from `[B, T, X]` to `[groups, capacity, X]`, the tokens but no padding, and back."""
  rows, length = mask.shape
  flat = mask.reshape(groups, -1)
  places = jax.vmap(lambda m: jnp.nonzero(m, size=capacity, fill_value=0)[0])(flat)
  numbers = jnp.maximum(jnp.cumsum(flat, axis=1) - 1, 0)

  def pack(x):
    return jnp.take_along_axis(x.reshape(groups, flat.shape[1], -1), places[..., None], axis=1)

  def unpack(x):
    return jnp.take_along_axis(x, numbers[..., None], axis=1).reshape(rows, length, -1)

  return pack, unpack


def _same(x):
  return x


def _attention(x, w, arch: Architecture, seen, key, move) -> Array:
  """Attention of all tokens to those `seen`: `[B, T, D]` to `[B, T, D]`, or packed."""
  pack, unpack = move
  q, k, v = jnp.split(unpack(dense(x, w['qkv_kernel'], w['qkv_bias'])), 3, axis=-1)
  mixed = _attend(q, k, v, arch, seen, key)
  return dense(pack(mixed), w['out_kernel'], w['out_bias'])


def _attend(q, k, v, arch: Architecture, seen, key) -> Array:
  """Mixed values: queries `[B, Q, D]`, keys and values `[B, T, D]` to `[B, Q, D]`."""
  q, k, v = (y.reshape(*y.shape[:2], arch.num_heads, arch.head_dim) for y in (q, k, v))
  q = q * jnp.asarray(arch.head_dim ** -0.5, q.dtype)
  scores = wide(jnp.einsum('bqnh,bsnh->bnqs', q, k, precision=precision_of(q)))
  # The least number, not -inf: a row of padding sees nothing and must stay finite.
  scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
  shares = _drop(jax.nn.softmax(scores, axis=-1), arch.attention_dropout, key).astype(q.dtype)
  mixed = jnp.einsum('bnqs,bsnh->bqnh', shares, v, precision=precision_of(q))
  return mixed.reshape(*mixed.shape[:2], arch.model_dim)


def dense(x, kernel, bias=None, activation=_same) -> Array:
  """`[B, T, in]` to `[B, T, out]`, in the dtype of x."""
  def finish(product):
    product = product.reshape(*x.shape[:-1], -1)
    return activation(product if bias is None else product + bias[None, None].astype(product.dtype))

  def multiply(x, kernel, **options):
    return jnp.matmul(
      x.reshape(-1, x.shape[-1]) if takes_rows_only(x.dtype) else x, kernel, **options)

  def rounded_once(x, kernel):
    return finish(multiply(x, kernel, preferred_element_type=jnp.float32)).astype(x.dtype)

  def in_own_dtype(x, kernel):
    return finish(multiply(x, kernel, precision=precision_of(x)))

  if x.dtype != jnp.bfloat16:
    return in_own_dtype(x, kernel)
  # XLA's library for CPUs with bfloat16 units knows the product only with sums of float32; what
  # follows it is faster in float32 there, too.
  return jax.lax.platform_dependent(x, kernel, cpu=rounded_once, default=in_own_dtype)


def precision_of(x) -> jax.lax.Precision:
  """Products as exact as the numbers; bfloat16 has nothing to lose."""
  return (jax.lax.Precision.DEFAULT if x.dtype == jnp.bfloat16 else jax.lax.Precision.HIGHEST)


def norm(x, scale, bias, eps: float) -> Array:
  """Layer norm over the last axis of `[B, T, D]`."""
  x32 = wide(x)
  mean = x32.mean(-1, keepdims=True)
  variance = jnp.square(x32 - mean).mean(-1, keepdims=True)
  normed = (x32 - mean) * jax.lax.rsqrt(variance + eps)
  return normed.astype(x.dtype) * scale[None, None] + bias[None, None]


def _drop(x, rate: float, key) -> Array:
  """Inverted dropout; the identity without a key."""
  if key is None or not rate:
    return x
  return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0).astype(x.dtype)


# Which parameters a further training may move: none of the embedding, or of the first k layers.
#
# Webster et al. 2020, section 6 and figure 2 (W-19): from no frozen layer over E, the embedding, up
# to all layers but the last. Freezing k layers freezes the embedding too, as the figure counts. An
# output table that is tied to the embedding is frozen with it.

NONE, EMBEDDING, ALL = 'none', 'embedding', 'all'
_EMBEDDING = ('embeddings', 'projection')


def parse_freeze(text: str, arch: Architecture) -> int:
  """Frozen layers that a word asks for: -1 for 'none', 0 for 'embedding', k, L for 'all'."""
  if text in (NONE, EMBEDDING, ALL):
    return {NONE: -1, EMBEDDING: 0, ALL: arch.num_layers}[text]
  if not text.isdecimal() or not 1 <= int(text) <= arch.num_layers:
    raise UserError(f"--freeze: '{text}' is not none, embedding, all, or a number of layers from 1 "
                    f'to {arch.num_layers}')
  if int(text) < arch.num_layers and arch.kind == 'albert':
    raise UserError(f'--freeze={text}: the layers of an ALBERT share their parameters, so that the '
                    'first of them cannot be frozen: give none, embedding or all')
  return int(text)


def trainable_mask(params: Mapping[str, Mapping[str, Any]], arch: Architecture, freeze: str
                   ) -> dict[str, dict[str, np.ndarray]]:
  """What may move, for every array of parameters."""
  layers = parse_freeze(freeze, arch)

  def mask(group, array):
    shape = (1,) * np.ndim(array)
    if group == 'layers':
      moves = np.arange(np.shape(array)[0]) >= layers
      if layers >= arch.num_layers:  # ALBERT stacks fewer than it applies
        moves[:] = False
      return moves.astype(np.float32).reshape(-1, *shape[1:])
    frozen = group in _EMBEDDING and layers >= 0
    return np.full(shape, 0.0 if frozen else 1.0, np.float32)

  return {group: {name: mask(group, array) for name, array in arrays.items()}
          for group, arrays in params.items()}


def format_frozen(freeze: str) -> str:
  """The option in words, for logs and tables."""
  fixed = {NONE: 'nothing frozen', EMBEDDING: 'embedding frozen', ALL: 'all but the head frozen'}
  return fixed.get(freeze) or f'embedding and the first {freeze} layers frozen'
