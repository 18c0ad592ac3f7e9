"""A slow Transformer-XL, written from the paper without any trick, for tests to compare with.

Relative embeddings are gathered for every pair of positions, the four terms of Dai et al. 2019,
section 3.3, are added one by one, layers are a Python loop, and a counterfactual is a second pass
over the changed sequence.
"""

import dataclasses
import functools
import json
import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from fairjax.config import ModelConfig
from fairjax.model import Branches, TransformerXL, init_memory, language_model
from fairjax.model.decoder import DecoderModel
from fairjax.model.decoding import run_decoding
from fairjax.pretrained.decoder_files import read_decoder_config, to_decoder_params
from fairjax.pretrained.tensor_files import Stored

TINY = ModelConfig(
  vocab_size=32, num_layers=2, model_dim=16, num_heads=2, head_dim=8, ff_dim=24, segment_len=8,
  memory_len=8, init_std=0.3)

jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})
"""Compiles in half the time: these programs run once."""

TINY64 = dataclasses.replace(TINY, dtype='float64')


def tiny(**changes):
  return dataclasses.replace(TINY64, **changes)


GOLDEN = pathlib.Path(__file__).parent / 'golden' / 'decoders'


def golden_decoder(name):
  """(model, parameters) of a family's random weights, in float64."""
  config = dataclasses.replace(
    read_decoder_config(json.loads((GOLDEN / name / 'config.json').read_text())), dtype='float64')
  tensors = load_file(GOLDEN / name / 'model.safetensors')
  return DecoderModel(config), jax.tree.map(jnp.asarray, to_decoder_params(
    {name.removeprefix('transformer.'): Stored(x.shape, x.dtype.name, x.__getitem__)
     for name, x in tensors.items()}, config,
    dtype=np.float64))


def make_params(config, seed=0, *, scale=0.3):
  """Random parameters in which every leaf matters (biases and scales too)."""
  tokens = jnp.zeros((1, 2), jnp.int32)
  shapes = jax.eval_shape(
    lambda: nn.unbox(TransformerXL(config).init(jax.random.key(0), tokens, init_memory(config, 1))))
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda s: jnp.asarray(rng.normal(size=s.shape) * scale, s.dtype), shapes['params'])


def random_tokens(config, batch_size, length, seed=1):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.integers(0, config.vocab_size, (batch_size, length)), jnp.int32)


def random_memory(config, batch_size, lengths, seed=2):
  """A memory full of numbers, also in slots that are not valid: nobody may read those."""
  rng = np.random.default_rng(seed)
  memory = init_memory(config, batch_size)
  hidden = jnp.asarray(rng.normal(size=memory.hidden.shape), memory.hidden.dtype)
  return memory.replace(hidden=hidden, length=jnp.asarray(lengths, jnp.int32))


def value_and_gradients(attention, arrays, length):
  """The output and the gradients of every array under an uneven cotangent."""
  out, vjp = jax.vjp(lambda *a: attention(*a, length), *arrays)
  kind = jnp.promote_types(out.dtype, jnp.float32)
  return out, *vjp(jnp.cos(jnp.arange(out.size, dtype=kind)).reshape(out.shape).astype(out.dtype))


def layer_norm(x, scale, bias):
  mean = x.mean(-1, keepdims=True)
  variance = ((x - mean) ** 2).mean(-1, keepdims=True)
  lead = (None,) * (x.ndim - 1)
  return (x - mean) / jnp.sqrt(variance + 1e-5) * scale[lead] + bias[lead]


def _attention(config, w, u, v, x, memory, length):
  source = jnp.concatenate([memory, x], axis=1)
  if config.norm == 'pre':
    source = layer_norm(source, w['attention_norm_scale'], w['attention_norm_bias'])
  M, T, D = memory.shape[1], x.shape[1], x.shape[2]
  i, j = np.arange(T)[:, None] + M, np.arange(M + T)[None, :]
  distance = np.maximum(i - j, 0)
  if config.clamp_len >= 0:
    distance = np.minimum(distance, config.clamp_len)
  frequency = (np.float32(1) / np.float32(10000.0 ** (np.arange(0, D, 2) / D))).astype(np.float64)
  angle = distance[:, :, None] * frequency
  R = jnp.asarray(np.concatenate([np.sin(angle), np.cos(angle)], -1), x.dtype)
  query = jnp.einsum('btd,dnh->btnh', source[:, M:], w['query'])
  key = jnp.einsum('bsd,dnh->bsnh', source, w['key_value'][:, 0])
  value = jnp.einsum('bsd,dnh->bsnh', source, w['key_value'][:, 1])
  relative = jnp.einsum('tsd,dnh->tsnh', R, w['relative'])
  score = jnp.einsum('btnh,bsnh->bnts', query, key)
  score += jnp.einsum('btnh,tsnh->bnts', query, relative)
  score += jnp.einsum('nh,bsnh->bns', u, key)[:, :, None, :]
  score += jnp.einsum('nh,tsnh->nts', v, relative)[None]
  seen = (j <= i)[None] & (np.arange(M + T)[None, None, :] >= M - length[:, None, None])
  weight = jnp.where(seen[:, None], jnp.exp(score / np.sqrt(config.head_dim)), 0.0)
  weight /= weight.sum(-1, keepdims=True)
  return jnp.einsum('bnts,bsnh,nhd->btd', weight, value, w['output'])


def forward(config, params, tokens, memory):
  """Returns (softmax inputs [B, T, D], [embedding, output of layer 1, ...])."""
  x = params['embedding'][tokens] * config.model_dim ** 0.5
  states = [x]
  for layer in range(config.num_layers):
    w = jax.tree.map(lambda a, layer=layer: a[layer], params['layers'])
    owner = params if config.tie_position_biases else w
    attended = _attention(config, w, owner['content_bias'], owner['position_bias'], x,
                          memory.hidden[layer], memory.length)
    x = x + attended
    if config.norm == 'post':
      x = layer_norm(x, w['attention_norm_scale'], w['attention_norm_bias'])
      inner = x
    else:
      inner = layer_norm(x, w['ff_norm_scale'], w['ff_norm_bias'])
    inner = jnp.maximum(inner @ w['ff_in'] + w['ff_in_bias'][None, None], 0)
    x = x + inner @ w['ff_out'] + w['ff_out_bias'][None, None]
    if config.norm == 'post':
      x = layer_norm(x, w['ff_norm_scale'], w['ff_norm_bias'])
    states.append(x)
  if config.final_norm:
    x = layer_norm(x, params['final_norm_scale'], params['final_norm_bias'])
  return x, states


@functools.partial(jax.jit, static_argnums=0)
def whole_logits(config, params, tokens):
  """Logits of texts that a Transformer-XL reads at once."""
  memory = init_memory(dataclasses.replace(config, memory_len=0), len(tokens))
  hidden = TransformerXL(config).apply({'params': params}, tokens, memory).hidden
  return language_model(config).logits(params, hidden)


def separate_passes(config, params, tokens, memory, branches):
  """Reads the rows, and every branch as a row of its own.

  Returns (hidden [B, T, D], (h_bar, h_bar_branch, hidden, hidden_branch) each [B, K, D]).
  """
  B, K, P = branches.tokens.shape
  T = tokens.shape[1]
  t = np.arange(T + P)[None, None, :]
  piece = jnp.clip(t - branches.start[:, :, None], 0, P - 1)
  originals = jnp.pad(tokens, ((0, 0), (0, P)))
  swapped = jnp.where(
    t < branches.start[:, :, None], jnp.broadcast_to(originals[:, None], (B, K, T + P)),
    jnp.take_along_axis(branches.tokens, piece, axis=2))
  owner = np.concatenate([np.arange(B), np.repeat(np.arange(B), K)])
  hidden, states = forward(
    config, params, jnp.concatenate([originals, swapped.reshape(B * K, T + P)]),
    memory.replace(hidden=memory.hidden[:, owner], length=memory.length[owner]))
  last = states[-1]
  if config.h_bar_final_norm:
    last = layer_norm(last, params['final_norm_scale'], params['final_norm_bias'])
  h_bar = (last + states[-2]) / 2
  row, branch_row = np.arange(B)[:, None], B + np.arange(B * K).reshape(B, K)
  end, branch_end = branches.original_end, branches.start + branches.length - 1
  return hidden[:B, :T], (
    h_bar[row, end], h_bar[branch_row, branch_end],
    hidden[row, end], hidden[branch_row, branch_end])


def eight_branches():
  """Two rows of T = 8 with four branches each: 1-4 tokens become 1-4 pieces, at both ends too."""
  start = np.array([[0, 2, 6, 0], [7, 1, 0, 4]], np.int32)
  end = np.array([[0, 5, 7, 0], [7, 3, 1, 4]], np.int32)
  length = np.array([[4, 1, 3, 0], [4, 2, 2, 1]], np.int32)
  tokens = np.random.default_rng(3).integers(3, 32, (2, 4, 4)).astype(np.int32)
  tokens = np.where(np.arange(4)[None, None] < length[:, :, None], tokens, 0)
  return Branches(
    tokens=jnp.asarray(tokens), start=jnp.asarray(start), length=jnp.asarray(length),
    original_end=jnp.asarray(end), weight=jnp.asarray(length > 0, jnp.float32))


def continuation_logits(decoder, params, prefixes, lengths, continuations):
  """Logits [A, R, T, V] for every token of given continuations, by the path that sampling takes."""
  size, steps = prefixes.shape[1], continuations.shape[2] - 1
  weights = decoder.prepare(params, num_positions=size + steps + 1)
  prefix, hidden = decoder.prefill(weights, prefixes, lengths)
  first = decoder.logits(weights, hidden)[:, None, None]
  shape = (*continuations.shape, first.shape[-1])
  logits = jnp.zeros(shape, first.dtype).at[:, :, :1].set(first)

  def consume(logits, hidden, index):
    new = decoder.logits(weights, hidden)[:, :, None]
    logits = jax.lax.dynamic_update_slice_in_dim(logits, new, index + 1, axis=2)
    # The last token has no successor; its index is clipped and the result never read.
    following = jax.lax.dynamic_index_in_dim(continuations, index + 1, axis=2, keepdims=False)
    return logits, following, jnp.bool_(True)

  return run_decoding(
    decoder, weights, prefix, continuations[:, :, 0], logits, consume, num_steps=steps)
