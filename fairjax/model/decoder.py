r"""Pretrained decoder-only language models: GPT-2, GPT-NeoX, Llama, Mistral, Qwen, OLMo, Gemma.

They differ in a few switches (`DecoderConfig`), so one function computes them all. Positions and
masks are explicit. A counterfactual branch is a few more queries at the end of the row: each has
the position that it would have, and sees the row before the branch's start and the earlier pieces
of its own branch. Values and gradients are those of separate passes.

`fairjax.pretrained.decoder_files` reads and writes the published files.

Own letters: S = T + Q, J keys, G key heads; in decoding A prefixes, R samples of each, C slots of a
chunk.
"""

import contextlib
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fairjax.model import partitioning
from fairjax.model.causal_lm import (
  REMAT,
  Branches,
  CausalLM,
  Documents,
  Output,
  Pairs,
  Params,
  at_pieces,
  at_places,
  wide,
)
from fairjax.model.decoder_config import DecoderConfig
from fairjax.model.decoding import Chunk, Decoder, chunks_and_flags, num_slots, skip_if_empty
from fairjax.model.likelihood import table_nll
from fairjax.model.xla_features import word_products

_ACTIVATIONS = {
  'silu': jax.nn.silu, 'relu': jax.nn.relu, 'gelu': functools.partial(
    jax.nn.gelu, approximate=False),
  **dict.fromkeys(('gelu_new', 'gelu_fast', 'gelu_pytorch_tanh'), jax.nn.gelu)}
ACTIVATIONS = tuple(_ACTIVATIONS)
"""Names in published configurations."""


@flax.struct.dataclass
class NoState:
  """A decoder keeps nothing between rows: every row starts at position 0."""

  def reset(self, mask: Bool[Array, 'B']) -> 'NoState':
    """Nothing to forget."""
    return self


class Parameter(NamedTuple):
  """Shape, logical axes and initial value of an array (of one layer)."""

  shape: tuple[int, ...]
  axes: tuple[str | None, ...]
  std: float = 0.02  # of normal draws; 0: a constant
  constant: float = 0.0


def layer_parameters(config: DecoderConfig) -> dict[str, Parameter]:
  """Parameters of one layer; all layers are stacked on axis 0."""
  c = config
  d, n, g, h, f = c.model_dim, c.num_heads, c.num_kv_heads, c.head_dim, c.ff_dim
  found = {
    'query': Parameter((d, n, h), ('embed', 'heads', None)),
    'key': Parameter((d, g, h), ('embed', 'kv_heads', None)),
    'value': Parameter((d, g, h), ('embed', 'kv_heads', None)),
    'attention_output': Parameter((n, h, d), ('heads', None, 'embed')),
    'ff_up': Parameter((d, f), ('embed', 'mlp'))}
  if c.gated:
    found['ff_gate'] = Parameter((d, f), ('embed', 'mlp'))
  found['ff_down'] = Parameter((f, d), ('mlp', 'embed'))
  if c.qkv_bias:
    found |= {f'{name}_bias': Parameter(found[name].shape[1:], found[name].axes[1:], 0.0)
              for name in ('query', 'key', 'value')}
  if c.other_bias:
    found |= {'attention_output_bias': Parameter((d,), (None,), 0.0),
              'ff_up_bias': Parameter((f,), ('mlp',), 0.0),
              'ff_down_bias': Parameter((d,), (None,), 0.0)}
  norms = {'attention_norm': d, 'ff_norm': d} if c.pre_norms else {}
  if c.qk_norm:
    norms |= {'query_norm': n * h if c.joint_qk_norm else h,
              'key_norm': g * h if c.joint_qk_norm else h}
  if c.post_norms:
    norms |= {'attention_post_norm': d, 'ff_post_norm': d}
  for name, size in norms.items():
    found |= _norm_parameters(c, name, size)
  return found


def other_parameters(config: DecoderConfig) -> dict[str, Parameter]:
  """Parameters outside the layers."""
  c = config
  found = {'embedding': Parameter((c.vocab_size, c.model_dim), ('words', 'embed'))}
  if not c.rope_theta:
    found['positions'] = Parameter((c.max_positions, c.model_dim), (None, 'embed'))
  if not c.tied:
    found['output'] = Parameter((c.vocab_size, c.model_dim), ('words', 'embed'))
  return found | _norm_parameters(c, 'final_norm', c.model_dim)


_PRODUCTS = {'query': 1, 'key': 1, 'value': 1, 'attention_output': 2, 'ff_up': 1, 'ff_gate': 1,
             'ff_down': 1}  # weights that adapters change, with the number of axes that are summed


def adapter_parameters(config: DecoderConfig, rank: int) -> dict[str, Parameter]:
  """Adapters of one layer (LoRA, arXiv:2106.09685): a product W becomes W + A B of a low rank.

  B begins at 0, so that the model begins as it was; the scale of A B is 1.
  """
  found = {}
  for name, whole in layer_parameters(config).items():
    if inputs := _PRODUCTS.get(name):
      width = math.prod(whole.shape[:inputs])
      found[f'{name}_lora_a'] = Parameter(
        (*whole.shape[:inputs], rank), (*whole.axes[:inputs], None), (3 * width) ** -0.5)
      found[f'{name}_lora_b'] = Parameter(
        (rank, *whole.shape[inputs:]), (None, *whole.axes[inputs:]), 0.0)
  return found


def with_adapters(params: Params, adapters: Params) -> Params:
  """Parameters whose layers hold adapters beside their products."""
  return params | {'layers': params['layers'] | adapters['layers']}


def merge_adapters(params: Params) -> Params:
  """Parameters in which W + A B stands for W, A and B; the same outputs."""
  layers = dict(params['layers'])
  for name in _PRODUCTS:
    if f'{name}_lora_a' in layers:
      a, b = layers.pop(f'{name}_lora_a'), layers.pop(f'{name}_lora_b')
      with jax.default_matmul_precision('highest'):
        layers[name] += jax.vmap(lambda a, b: jnp.tensordot(a, b, 1))(a, b)
  return params | {'layers': layers}


def _norm_parameters(config, name, size):
  scale = Parameter((size,), (None,), 0.0, 0.0 if config.norm_plus_one else 1.0)
  bias = {f'{name}_bias': Parameter((size,), (None,), 0.0)} if config.layer_norm else {}
  return {f'{name}_scale': scale} | bias


@dataclasses.dataclass(frozen=True)
class DecoderModel(CausalLM['NoState']):
  """A decoder-only model as a `CausalLM`; it drops nothing in training."""

  config: DecoderConfig

  def reading(self, *, segment_len: int, memory_len: int) -> 'DecoderModel':
    """See `CausalLM`."""
    return self

  def init(self, key: Array) -> Params:
    """See `CausalLM`."""
    first, second = jax.random.split(key)
    return _draw(self.config, other_parameters(self.config), first) | {
      'layers': _draw(self.config, layer_parameters(self.config), second, layers=True)}

  def init_state(self, batch_size: int, *, cached: bool = False) -> NoState:
    """See `CausalLM`."""
    return NoState()

  def state_axes(self, *, cached: bool = False) -> NoState:
    """See `CausalLM`."""
    return NoState()

  def apply(
    self, params: Params, tokens: Int[Array, 'B T'], state: NoState,
    branches: Branches | None = None, *, positions: Int[Array, 'B K'] | None = None,
    documents: Documents | None = None, dropout_key: Array | None = None,
  ) -> Output:
    """See `CausalLM`. ValueError: more tokens than the model has positions."""
    c, (rows, size) = self.config, tokens.shape
    if size > c.max_positions:
      raise ValueError(f'{size} tokens, but the model has {c.max_positions} positions')
    if documents is None:
      places = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32)[None], (rows, size))
      ids = jnp.zeros_like(places)
    else:
      places, ids = documents.positions, documents.segment_ids
    row_sees = (ids[:, :, None] == ids[:, None]) & np.tril(np.ones((size, size), bool))[None]
    own = None
    if branches is not None:
      pieces = branches.tokens
      tokens = jnp.concatenate([tokens, pieces.reshape(rows, -1).astype(tokens.dtype)], axis=1)
      first = jnp.take_along_axis(places, branches.start, axis=1)
      at = first[:, :, None] + np.arange(pieces.shape[2], dtype=np.int32)[None, None]
      places = jnp.concatenate([places, at.reshape(rows, -1)], axis=1)
      own = _branches_see(branches, ids)
    with _exact(c):
      last, read = forward(params, c, tokens, places, row_sees, own)
      normed = _norm(params, 'final_norm', last, c)
    main = [x[:, :size] for x in read]
    hidden = normed[:, :size]
    pairs = None
    if branches is not None:
      *of_branch, of_softmax = [
        x[:, size:].reshape(*pieces.shape, -1) for x in (*read, normed)]
      here, there, _ = branches.compared()
      pairs = Pairs(
        h_bar=self._h_bar(params, *(at_places(x, here) for x in main)),
        h_bar_branch=self._h_bar(params, *(at_pieces(x, there) for x in of_branch)),
        hidden=at_places(hidden, branches.original_end),
        hidden_branch=at_pieces(of_softmax, branches.value_end))
    h_bar_at = None
    if positions is not None:
      h_bar_at = self._h_bar(params, *(at_places(x, positions) for x in main))
    return Output(hidden=partitioning.constrain(hidden, 'rows'), state=state, pairs=pairs,
                  h_bar_at=h_bar_at)

  def _h_bar(self, params, *outputs):
    """Mean of two layers' outputs, in float32 or wider."""
    outputs = [wide(x) for x in outputs]
    if self.config.h_bar == 'normed':
      outputs = [_norm(params, 'final_norm', x, self.config) for x in outputs]
    return 0.5 * (outputs[0] + outputs[1])

  def logits(self, params: Params, hidden: Float[Array, '*S D']) -> Float[Array, '*S V']:
    """See `CausalLM`."""
    with _exact(self.config):
      return vocab_logits(params, self.config, hidden)

  def nll(
    self, params: Params, hidden: Float[Array, 'B T D'], targets: Int[Array, 'B T']
  ) -> Float[Array, 'B T']:
    """See `CausalLM`."""
    c = self.config
    table = jnp.asarray(params['embedding' if c.tied else 'output'])
    return table_nll(table, hidden, targets, dtype=c.dtype, cap=c.logit_cap,
                     precision=_precision(c))

  def decoder(self) -> 'CachedDecoder':
    """See `CausalLM`."""
    return CachedDecoder(self.config)


def _exact(config: DecoderConfig) -> contextlib.AbstractContextManager:
  """Products of float32 in float32 on every device; bfloat16 has nothing to lose."""
  return jax.default_matmul_precision(_precision(config))


def _precision(config):
  return 'default' if config.dtype == 'bfloat16' else 'highest'


@dataclasses.dataclass(frozen=True)
class LoraDecoder(DecoderModel):
  """A decoder whose trained parameters are adapters (`adapter_parameters`).

  `init` draws these alone; all other methods take the whole parameters, see `with_adapters`.
  """

  rank: int

  def init(self, key: Array) -> Params:
    """See `CausalLM`."""
    return {'layers': _draw(
      self.config, adapter_parameters(self.config, self.rank), key, layers=True)}


def _draw(config, parameters, key, *, layers=False):
  """Initial values, boxed with their logical axes; of all layers on axis 0."""
  dtype = jnp.promote_types(config.dtype, jnp.float32)
  lead, axes = ((config.num_layers,), ('layers',)) if layers else ((), ())
  keys = jax.random.split(key, len(parameters))
  return {name: nn.LogicallyPartitioned(
    p.std * jax.random.normal(k, lead + p.shape, dtype) + p.constant, axes + p.axes)
    for k, (name, p) in zip(keys, parameters.items(), strict=True)}


def _branches_see(branches: Branches, ids: Int[Array, 'B T']) -> Bool[Array, 'B Q S']:
  """Keys of every piece: the row before its branch in its document, its branch up to itself."""
  rows, number, pieces = branches.tokens.shape
  branch, piece = np.divmod(np.arange(number * pieces), pieces)
  own = (branch[:, None] == branch) & (piece[:, None] >= piece)
  before = np.arange(ids.shape[1])[None, None] < branches.start[:, :, None]
  document = jnp.take_along_axis(ids, branches.start, axis=1)
  row = jnp.repeat(before & (ids[:, None] == document[:, :, None]), pieces, axis=1)
  return jnp.concatenate([row, jnp.broadcast_to(own, (rows, *own.shape))], axis=2)


def forward(
  params: Params, config: DecoderConfig, tokens: Int[Array, 'B S'], places: Int[Array, 'B S'],
  row_sees: Bool[Array, 'B T T'],  # the row comes first
  branches_see: Bool[Array, 'B Q S'] | None,
) -> tuple[Float[Array, 'B S D'], tuple[Float[Array, 'B S D'], Float[Array, 'B S D']]]:
  """Output of the last layer; of the layer that h-bar is read at, and of the one before it.

  None is normed.
  """
  x = partitioning.constrain(_embed(params, config, tokens, places), 'rows')
  size = row_sees.shape[1]
  dtype = jnp.dtype(config.dtype)

  def layer(carry, given):
    x, _ = carry
    w, frequencies, stretch, window = given
    q, k, v = _project(w, config, x, places, frequencies, stretch)

    def mixed(begin, end, keys, sees):
      near = places[:, begin:end, None] - places[:, None, :keys] < window
      return _attend(q[:, begin:end], k[:, :keys], v[:, :keys], sees & near, config)

    context = mixed(0, size, size, row_sees)
    if branches_see is not None:
      context = jnp.concatenate(
        [context, mixed(size, x.shape[1], x.shape[1], branches_see)], axis=1)
    return (partitioning.constrain(_finish(w, config, x, context), 'rows'), x), None

  if config.remat != 'none':
    layer = jax.checkpoint(layer, policy=REMAT[config.remat], prevent_cse=False)
  layers = jax.tree.map(lambda a: a.astype(dtype), params['layers'])

  def through(carry, begin, end):
    given = jax.tree.map(lambda a: a[begin:end], (layers, *_by_layer(config)))
    return jax.lax.scan(layer, carry, given, unroll=config.scan_unroll)[0]

  read = through((x, x), 0, config.h_bar_layer)
  if config.h_bar_layer == config.num_layers:
    return read[0], read
  return through(read, config.h_bar_layer, config.num_layers)[0], read


def _by_layer(config: DecoderConfig) -> tuple[Array, Array, Array]:
  """Rotary frequencies [L, F], stretches [L] and windows [L] of all layers."""
  windows = config.windows or (0,) * config.num_layers
  rotated = config.rotated or (1,) * config.num_layers
  frequencies, stretches = zip(*(rotary_frequencies(config, bool(w)) for w in windows), strict=True)
  seen = np.array([w or np.iinfo(np.int32).max for w in windows], np.int32)
  dtype = _wide_dtype(config)
  return (jnp.asarray(np.stack(frequencies) * np.array(rotated)[:, None], dtype),
          jnp.asarray(np.where(rotated, stretches, 1.0), dtype), jnp.asarray(seen))


def rotary_frequencies(config: DecoderConfig, local: bool) -> tuple[np.ndarray, float]:
  """Radians per position of each pair of dimensions that is rotated, [F] float64, and a stretch.

  The stretch multiplies what is rotated; it is 1 but for YaRN.
  """
  size = int(config.rotary_share * config.head_dim)
  theta = (config.local_rope_theta if local else 0.0) or config.rope_theta or 1.0
  frequencies = theta ** -(np.arange(0, size, 2) / size)
  if not config.rope_scaling or local and config.local_rope_theta:
    return frequencies, 1.0
  factor, *rest = config.rope_scaling
  if not rest:
    return frequencies / factor, 1.0
  # Long waves are stretched, short ones are not.
  if len(rest) == 3:
    (low, high, positions), stretch = rest, 1.0  # Llama 3.1, by wave length
    kept = (positions * frequencies / (2 * math.pi) - low) / (high - low)
  else:
    fast, slow, positions, stretch = rest  # YaRN (arXiv:2309.00071), by dimension
    first, last = (size * math.log(positions / (turns * 2 * math.pi)) / (2 * math.log(theta))
                   for turns in (fast, slow))
    first, last = max(math.floor(first), 0), min(math.ceil(last), size - 1)
    kept = 1 - (np.arange(size // 2) - first) / ((last - first) or 0.001)
  kept = np.clip(kept, 0, 1)
  return (1 - kept) * frequencies / factor + kept * frequencies, stretch


def _embed(params, config, tokens, places):
  dtype = jnp.dtype(config.dtype)
  # Split over words only: each device then looks up its own rows of the batch.
  table = jnp.asarray(params['embedding'])
  table = partitioning.constrain_dividing(table, 'words', None)
  x = table[tokens].astype(dtype)
  if 'positions' in params:
    x += jnp.asarray(params['positions'])[places].astype(dtype)
  return x * jnp.asarray(config.embedding_scale, dtype)  # rounded, as published


def _project(w, config, x, places, frequencies, stretch):
  """Queries [B, S, N, H], scaled, and keys and values [B, S, G, H], rotated to their positions."""
  x = _input(w, 'attention_norm', x, config)
  q, k, v = (_product(w, name, x) for name in ('query', 'key', 'value'))
  if config.qkv_bias:
    q, k, v = (y + w[f'{name}_bias'][None, None]
               for y, name in ((q, 'query'), (k, 'key'), (v, 'value')))
  if config.qk_norm:
    shape = (-1,) if config.joint_qk_norm else (-1, config.head_dim)
    q, k = (_norm(w, name, y.reshape(*y.shape[:2], *shape), config).reshape(y.shape)
            for y, name in ((q, 'query_norm'), (k, 'key_norm')))
  if config.rope_theta:
    angles = places[..., None, None].astype(frequencies.dtype) * frequencies[None, None, None]
    cos, sin = stretch * jnp.cos(angles), stretch * jnp.sin(angles)
    q, k = (_rotate(y, cos, sin) for y in (q, k))
  return q * jnp.asarray(config.query_scale, q.dtype), k, v


def _product(w, name, x):
  """Gives x W, with adapters x W + (x A) B."""
  inputs = _PRODUCTS[name]
  y = jnp.tensordot(x, w[name], inputs)
  if f'{name}_lora_a' not in w:
    return y
  return y + jnp.tensordot(
    jnp.tensordot(x, w[f'{name}_lora_a'], inputs), w[f'{name}_lora_b'], 1)


def _rotate(x, cos, sin):
  half = cos.shape[-1]
  a, b, rest = jnp.split(wide(x), [half, 2 * half], axis=-1)
  return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1).astype(x.dtype)


def _attend(q, k, v, sees, config):
  """Mixed values [B, X, N, H] of queries [B, X, N, H]; sees [B, X, J]."""
  q = q.reshape(*q.shape[:2], config.num_kv_heads, -1, config.head_dim)
  scores = jnp.einsum('bxgnh,bjgh->bgnxj', q, k)
  weights = _softmax(scores, sees[:, None, None], config).astype(v.dtype)
  mixed = jnp.einsum('bgnxj,bjgh->bxgnh', weights, v)
  return mixed.reshape(*mixed.shape[:2], config.num_heads, config.head_dim)


def _softmax(scores, sees, config):
  scores = wide(scores)
  if config.attention_cap:
    scores = jnp.tanh(scores / config.attention_cap) * config.attention_cap
  return jax.nn.softmax(jnp.where(sees, scores, jnp.finfo(scores.dtype).min), axis=-1)


def _finish(w, config, x, context):
  """Output product, feed-forward and residual sums: [B, S, D]."""
  def add(x, y, name):
    return x + (_norm(w, name, y, config) if config.post_norms else y)

  def with_bias(y, name):
    return y + w[name][None, None] if config.other_bias else y

  before, y = x, _product(w, 'attention_output', context)
  x = add(x, with_bias(y, 'attention_output_bias'), 'attention_post_norm')
  y, activation = before if config.parallel else x, _ACTIVATIONS[config.activation]
  y = _input(w, 'ff_norm', y, config)
  inner = with_bias(_product(w, 'ff_up', y), 'ff_up_bias')
  inner = activation(_product(w, 'ff_gate', y)) * inner if config.gated else activation(inner)
  return add(x, with_bias(_product(w, 'ff_down', inner), 'ff_down_bias'), 'ff_post_norm')


def _input(w, name, x, config):
  """What attention or feed-forward reads of [B, S, D]: normed, but for OLMo."""
  return _norm(w, name, x, config) if config.pre_norms else x


def _norm(w, name, x, config):
  """RMS norm or layer norm over the last axis; statistics in float32 or wider."""
  y, lead = wide(x), (None,) * (x.ndim - 1)
  if config.layer_norm:
    y -= y.mean(-1, keepdims=True)
  y *= jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + config.norm_eps)
  y *= wide(jnp.asarray(w[f'{name}_scale']))[lead] + (1.0 if config.norm_plus_one else 0.0)
  if config.layer_norm:
    y += wide(jnp.asarray(w[f'{name}_bias']))[lead]
  return y.astype(x.dtype)


def vocab_logits(
  params: Params, config: DecoderConfig, hidden: Float[Array, '*S D']
) -> Float[Array, '*S V']:
  """Logits, float32 or wider."""
  dtype = jnp.dtype(config.dtype)
  table = jnp.asarray(params['embedding' if config.tied else 'output']).astype(dtype)
  logits = word_products(hidden.astype(dtype), table, _wide_dtype(config))
  return jnp.tanh(logits / config.logit_cap) * config.logit_cap if config.logit_cap else logits


def _wide_dtype(config):
  return jnp.promote_types(config.dtype, jnp.float32)


class Prefix(NamedTuple):
  """Caches of left-padded prefixes."""

  keys: tuple[Float[Array, 'A G J H'], ...]  # by layer
  values: tuple[Float[Array, 'A G J H'], ...]
  valid: Bool[Array, 'A J']
  places: Int[Array, 'A J']
  lengths: Int[Array, 'A']


# Fields that came later: records of other families keep the identity that they had without them.
_LATER = ('pre_norms', 'joint_qk_norm', 'parallel', 'rotary_share', 'rotated')


@dataclasses.dataclass(frozen=True)
class CachedDecoder(Decoder):
  """Cached decoding: all samples of a prefix share its keys and values."""

  config: DecoderConfig
  unused: tuple[int, ...] = ()  # ids that are never drawn

  cached_heads = property(lambda self: self.config.num_kv_heads)
  max_positions = property(lambda self: self.config.max_positions)

  def describe(self) -> dict[str, Any]:
    """The model's configuration, and how many ids are never drawn."""
    default = {f.name: f.default for f in dataclasses.fields(self.config)}
    return {name: value for name, value in super().describe().items()
            if name not in _LATER or value != default[name]} | {'unused': len(self.unused)}

  def prepare(self, params, *, num_positions):
    """Parameters in the compute dtype, cut by layer: their loop is unrolled."""
    c = self.config
    cast = jax.tree.map(lambda a: jnp.asarray(a).astype(jnp.dtype(c.dtype)), params)
    layers = [jax.tree.map(lambda a, i=i: a[i], cast['layers']) for i in range(c.num_layers)]
    return cast | {'layers': layers}

  def prefill(self, weights, tokens, lengths):
    """Reads the prefixes; the input of `logits` is normed already."""
    c, size = self.config, tokens.shape[1]
    slot, first = np.arange(size), size - lengths[:, None]
    valid, places = slot[None] >= first, jnp.maximum(slot[None] - first, 0)
    # A padded slot sees itself: its row stays finite, and no token sees it.
    sees = (valid[:, None] | np.eye(size, dtype=bool)[None]) & np.tril(
      np.ones((size, size), bool))[None]
    keys, values = [], []
    with _exact(c):
      x = _embed(weights, c, tokens, places)
      for w, frequencies, stretch, window in zip(weights['layers'], *_by_layer(c), strict=True):
        q, k, v = _project(w, c, x, places, frequencies, stretch)
        near = places[:, :, None] - places[:, None] < window
        x = _finish(w, c, x, _attend(q, k, v, sees & near, c))
        keys.append(k.swapaxes(1, 2))
        values.append(v.swapaxes(1, 2))
      hidden = _norm(weights, 'final_norm', x[:, -1], c)
    return Prefix(tuple(keys), tuple(values), valid, places, lengths), hidden

  def step(self, weights, prefix, filled, unfilled, tokens, index):
    """See `Decoder.step`."""
    c, (rows, samples) = self.config, tokens.shape
    chunks = chunks_and_flags(filled, unfilled, index)
    slots = num_slots([chunk for _, chunk in chunks])
    cache, size = unfilled[0].keys[0].dtype, prefix.valid.shape[1]
    now = prefix.lengths + index
    sees = jnp.concatenate(
      [prefix.valid, jnp.broadcast_to((np.arange(slots) < index)[None], (rows, slots)),
       jnp.ones((rows, 1), bool)], axis=1)
    key_places = jnp.concatenate(
      [prefix.places, prefix.lengths[:, None] + np.arange(slots)[None], now[:, None]], axis=1)
    places = jnp.broadcast_to(now[:, None], (rows, samples))
    score = functools.partial(jnp.einsum, 'argnh,argch->argnc')
    mix = functools.partial(jnp.einsum, 'argnc,argch->argnh')
    keys, values = [], []
    with _exact(c):
      x = _embed(weights, c, tokens, places)
      layers = zip(weights['layers'], *_by_layer(c), prefix.keys, prefix.values, strict=True)
      for i, (w, frequencies, stretch, window, prefix_keys, prefix_values) in enumerate(layers):
        q, k, v = (y.astype(cache) for y in _project(w, c, x, places, frequencies, stretch))
        q = q.reshape(rows, samples, c.num_kv_heads, -1, c.head_dim)
        scores = jnp.concatenate(
          [jnp.einsum('argnh,agjh->argnj', q, prefix_keys.astype(cache))]
          + [skip_if_empty(used, score, q, chunk.keys[i]) for used, chunk in chunks]
          + [jnp.einsum('argnh,argh->argn', q, k)[..., None]], axis=-1)
        near = sees & (now[:, None] - key_places < window)
        probs = _softmax(scores, near[:, None, None, None], c).astype(cache)
        context = probs[..., -1:] * v[:, :, :, None] + jnp.einsum(
          'argnj,agjh->argnh', probs[..., :size], prefix_values.astype(cache))
        end = size
        for used, chunk in chunks:
          begin, end = end, end + num_slots([chunk])
          context = skip_if_empty(
            used, mix, probs[..., begin:end], chunk.values[i], add_to=context)
        context = context.reshape(rows, samples, c.num_heads, c.head_dim).astype(x.dtype)
        x = _finish(w, c, x, context)
        keys.append(k[:, :, :, None])
        values.append(v[:, :, :, None])
      hidden = _norm(weights, 'final_norm', x, c)
    return hidden, Chunk(tuple(keys), tuple(values))

  def logits_and_bias(self, weights, hidden):
    """See `Decoder.logits_and_bias`."""
    # Two axes: of more XLA's product of bfloat16 on CPU turns the table over in every step.
    rows = hidden.reshape(-1, hidden.shape[-1])
    with _exact(self.config):
      logits = vocab_logits(weights, self.config, rows).reshape(*hidden.shape[:-1], -1)
    if not self.unused:
      return logits, None
    return logits, jnp.zeros(logits.shape[-1], logits.dtype).at[np.array(self.unused)].set(-jnp.inf)
