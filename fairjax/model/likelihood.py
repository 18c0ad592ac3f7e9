"""Negative log-likelihood of the next token, without the logits of all words in memory.

A softmax over V words on n tokens has n V logits: 0.5 GiB for 512 tokens of a 267,735-word
vocabulary, several times over in the gradient. So the vocabulary passes in blocks: the forward
pass keeps a running maximum and sum (the log of the normaliser), the backward pass computes each
block's logits again and turns them into gradients. An adaptive softmax computes a tail for its own
tokens only: tokens are sorted by cluster, and loops of dynamic length run over them, so that no
token is dropped whatever the counts.

Under a mesh (`jax.set_mesh` and logical axis rules in context) every device computes its rows and
its part of the vocabulary. One maximum and two sums a token cross devices, and the gradients.

Own letters: n tokens, E width of a cluster.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from fairjax.config import ModelConfig
from fairjax.model import partitioning
from fairjax.model.softmax import (
  Cluster,
  VocabLogits,
  all_logits,
  fits_one_pass,
  lowest,
  parameter_table,
  project,
  softmax_projection,
  tail_logits,
  vocabulary_clusters,
)

_WHOLE = 1 << 21  # up to so many logits (tokens x words) are computed at once
_TAIL_TOKENS = 512  # tokens of a tail that are computed at a time


def next_token_nll(
  logits: Float[Array, '*S V'], targets: Int[Array, '*S']
) -> Float[Array, '*S']:
  """Negative log-likelihood of `targets` in [0, V), nats >= 0, float32 or wider."""
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
  return jax.nn.logsumexp(logits, axis=-1) - chosen


def token_nll(
  params: Mapping[str, Any], config: ModelConfig, hidden: Float[Array, 'B T D'],
  targets: Int[Array, 'B T'], *, block: int = 0,
) -> Float[Array, 'B T']:
  """Negative log-likelihood of `targets` under the model's softmax: nats, float32 or wider."""
  if not block and not config.cutoffs and targets.size * config.vocab_size <= _WHOLE:
    return next_token_nll(all_logits(params, config, hidden), targets)
  return _token_nll(_Static(config, block), _softmax_params(params, config), hidden, targets)


def mean_nll(
  params: Mapping[str, Any], config: ModelConfig, hidden: Float[Array, 'B T D'],
  targets: Int[Array, 'B T'],
) -> Float[Array, '']:
  """Mean of `token_nll`, for training; differentiable once."""
  # With vocabularies of up to some 16,000 words the forward pass makes the gradients too, while it
  # has the logits: three products instead of four.
  if (config.cutoffs or targets.size * config.vocab_size <= _WHOLE
      or not fits_one_pass(config.vocab_size)):
    return jnp.mean(token_nll(params, config, hidden, targets))
  return _mean_nll(_Static(config, 0), _softmax_params(params, config), hidden, targets)


def table_nll(
  table: Float[Array, 'V D'], hidden: Float[Array, 'B T D'], targets: Int[Array, 'B T'], *,
  dtype: str, cap: float = 0.0, precision: str = 'default',
) -> Float[Array, 'B T']:
  """`token_nll` of a softmax that has a table of output embeddings and no biases.

  The table is whole, or split by word over devices, whose number need not divide V. `dtype` and
  `precision` (a value of `jax.default_matmul_precision`) are those of the products; sums are
  float32 or wider. Logits go through cap * tanh(x / cap); 0: they do not.
  """
  words, width = table.shape
  rest = -words % partitioning.parts('vocab')
  config = ModelConfig(vocab_size=words, model_dim=width, dtype=dtype)
  # The table is cast before devices gather it, and its gradient after they sum it: half the bytes.
  table = table.astype(dtype)
  params = {'embedding': jnp.pad(table, ((0, rest), (0, 0))),
            'softmax_bias': jnp.zeros(words + rest, table.dtype)}
  return _token_nll(_Static(config, 0, cap, precision), params, hidden, targets)


class _Static(NamedTuple):
  config: ModelConfig
  block: int
  cap: float = 0.0
  precision: str | None = None  # None: that of the context


def _softmax_params(params: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
  """The parameters that the softmax reads."""
  embeds = {f'projection{c.suffix}' for c in vocabulary_clusters(config) if not c.tied}
  return {name: params[name] for name in parameter_table(config) if name not in embeds}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _token_nll(static, params, hidden, targets):
  return _forward(static, params, hidden, targets)[0]


def _forward(static, params, hidden, targets):
  rows, params_spec = _specs(params)
  run = partitioning.per_device(
    functools.partial(_local_forward, static), in_specs=(params_spec, rows, rows),
    out_specs=(rows, (rows, rows)))
  with jax.default_matmul_precision(static.precision):
    nll, normalisers = run(params, hidden, targets)
  return nll, (params, hidden, targets, normalisers)


def _backward(static, saved, gradient):
  params, hidden, targets, normalisers = saved
  rows, params_spec = _specs(params)
  run = partitioning.per_device(
    functools.partial(_local_backward, static),
    in_specs=(params_spec, rows, rows, (rows, rows), rows), out_specs=(params_spec, rows))
  with jax.default_matmul_precision(static.precision):
    return *run(params, hidden, targets, normalisers, gradient), None


_token_nll.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mean_nll(static, params, hidden, targets):
  return jnp.mean(_token_nll(static, params, hidden, targets))


def _mean_forward(static, params, hidden, targets):
  rows, params_spec = _specs(params)
  run = partitioning.per_device(
    functools.partial(_local_loss_and_gradients, static), in_specs=(params_spec, rows, rows),
    out_specs=(rows, params_spec, rows))
  nll, *gradients = run(params, hidden, targets)
  return jnp.mean(nll), (gradients, params, hidden)


def _mean_backward(static, saved, gradient):
  gradients, *primals = saved
  per_token = gradient / math.prod(primals[1].shape[:-1])
  return *jax.tree.map(lambda g, x: (per_token * g).astype(x.dtype), gradients, primals), None


_mean_nll.defvjp(_mean_forward, _mean_backward)


def _specs(params):
  """Splits of parameters and tokens: vocabulary tables by word, tokens by row, the rest whole."""
  def spec(name):
    table = name.startswith(('embedding', 'softmax_bias'))
    return partitioning.spec('vocab') if table else PartitionSpec()

  return partitioning.spec('rows'), {name: spec(name) for name in params}


# The functions below run on one device's rows and part of the vocabulary.


def _local_forward(static, params, hidden, targets):
  """Likelihoods [b, T], and the log normalisers [b, T] of the head and of each token's tail."""
  config = static.config
  head, *tails = vocabulary_clusters(config)
  flat, target = _flatten(config, hidden, targets)
  table = VocabLogits.of(params, head, static.block, target.size, static.cap)
  h = project(flat, softmax_projection(params, head))
  normaliser, chosen = table.normaliser(h, jnp.where(target < head.size, target, -1))
  order, cluster, counts = _by_cluster(config, target)
  of_tail = jnp.zeros_like(normaliser)  # 0 for words of the head
  if tails:
    gates = tail_logits(params, h)
    top = jnp.maximum(normaliser, gates.max(-1))
    normaliser = top + jnp.log(jnp.exp(normaliser - top) + jnp.exp(gates - top[:, None]).sum(-1))
    chosen += jnp.where(_gate_of(cluster, tails), gates, 0).sum(-1)
    chosen_in_tail = jnp.zeros_like(of_tail)
    for i, tail in enumerate(tails, start=1):
      table = VocabLogits.of(params, tail, static.block, min(_TAIL_TOKENS, target.size))

      def step(at, valid, carry, table=table, tail=tail):
        word = jnp.where(valid, target[at] - tail.start, -1)
        found = table.normaliser(project(flat[at], softmax_projection(params, tail)), word)
        return [c.at[at].add(jnp.where(valid, f, 0)) for c, f in zip(carry, found, strict=True)]

      of_tail, chosen_in_tail = _over_tokens(order, counts, i, step, [of_tail, chosen_in_tail])
    chosen += chosen_in_tail
  nll = normaliser + of_tail - chosen
  return nll.reshape(targets.shape), (
    normaliser.reshape(targets.shape), of_tail.reshape(targets.shape))


def _local_backward(static, params, hidden, targets, normalisers, gradient):
  """Gradients of the parameters (whole) and of this device's hidden states."""
  config = static.config
  head, *tails = vocabulary_clusters(config)
  flat, target = _flatten(config, hidden, targets)
  of_head, of_tail = (x.reshape(-1) for x in normalisers)
  g = gradient.reshape(-1)
  grads = {}
  h = project(flat, softmax_projection(params, head))
  table = VocabLogits.of(params, head, static.block, target.size, static.cap)
  d_h, grads[f'embedding{head.suffix}'], grads[f'softmax_bias{head.suffix}'] = table.gradients(
    h, jnp.where(target < head.size, target, -1), of_head, g)
  d_h = partitioning.total(d_h, 'vocab')
  order, cluster, counts = _by_cluster(config, target)
  if tails:
    gates = tail_logits(params, h)
    d_gates = (jnp.exp(gates - of_head[:, None]) - _gate_of(cluster, tails)) * g[:, None]
    narrow = d_gates.astype(h.dtype)
    grads['cluster_weight'] = jnp.einsum(
      'nc,ne->ce', narrow, h, preferred_element_type=of_head.dtype)
    grads['cluster_bias'] = d_gates.sum(0)
    d_h += jnp.einsum('nc,ce->ne', narrow, params['cluster_weight'].astype(h.dtype),
                      preferred_element_type=of_head.dtype)
  d_flat, d_projection = _unproject(flat, d_h, softmax_projection(params, head))
  _accumulate(grads, head, d_projection)
  for i, tail in enumerate(tails, start=1):
    table = VocabLogits.of(params, tail, static.block, min(_TAIL_TOKENS, target.size))
    projection = softmax_projection(params, tail)

    def step(at, valid, carry, table=table, tail=tail, projection=projection):
      d_flat, *sums = carry
      rows = flat[at]
      word = jnp.where(valid, target[at] - tail.start, -1)
      # Tokens of other clusters get a normaliser that makes their probabilities 0, and no gradient.
      d_h, *found = table.gradients(
        project(rows, projection), word, jnp.where(valid, of_tail[at], -lowest(g.dtype)),
        jnp.where(valid, g[at], 0))
      d_rows, d_projection = _unproject(rows, partitioning.total(d_h, 'vocab'), projection)
      found.append(d_projection)
      new = [None if s is None else s + f for s, f in zip(sums, found, strict=True)]
      return [d_flat.at[at].add(jnp.where(valid[:, None], d_rows, 0)), *new]

    zeros = [jnp.zeros(x.shape, g.dtype) for x in (table.weight, table.bias)]
    zeros.append(None if projection is None else jnp.zeros(projection.shape, g.dtype))
    d_flat, d_weight, d_bias, d_projection = _over_tokens(
      order, counts, i, step, [d_flat, *zeros])
    grads |= {f'embedding{tail.suffix}': d_weight, f'softmax_bias{tail.suffix}': d_bias}
    _accumulate(grads, tail, d_projection)
  grads = {name: value.astype(params[name].dtype)
           for name, value in partitioning.total(grads, 'rows').items()}
  return grads, d_flat.reshape(hidden.shape).astype(hidden.dtype)


def _local_loss_and_gradients(static, params, hidden, targets):
  """Likelihoods [b, T], and gradients of their sum: of the parameters (whole), of hidden states."""
  (head,) = vocabulary_clusters(static.config)
  flat, target = _flatten(static.config, hidden, targets)
  projection = softmax_projection(params, head)
  words = params[f'embedding{head.suffix}'].shape[0]
  table = VocabLogits.of(params, head, words, target.size)
  nll, d_h, d_weight, d_bias = table.loss_and_gradients(project(flat, projection), target)
  grads = {f'embedding{head.suffix}': d_weight, f'softmax_bias{head.suffix}': d_bias}
  d_flat, d_projection = _unproject(flat, partitioning.total(d_h, 'vocab'), projection)
  _accumulate(grads, head, d_projection)
  return nll.reshape(targets.shape), partitioning.total(grads, 'rows'), d_flat.reshape(hidden.shape)


def _flatten(config, hidden, targets):
  """Hidden states [n, D] in the compute dtype and targets [n]."""
  return hidden.astype(config.dtype).reshape(-1, hidden.shape[-1]), targets.reshape(-1)


def _by_cluster(config, target):
  """Order that sorts tokens by cluster, each token's cluster, and the tokens of each cluster."""
  if not config.cutoffs:
    return None, None, None
  cluster = sum((target >= cut).astype(jnp.int32) for cut in config.cutoffs)
  member = cluster[:, None] == jnp.arange(len(config.cutoffs) + 1)[None]
  # A counting sort, since a sort is slow to compile for TPUs.
  number = jnp.cumsum(member, axis=0, dtype=jnp.int32)
  counts = number[-1]
  first = jnp.cumsum(counts) - counts
  rank = jnp.where(member, number - 1 + first[None], 0).sum(-1)
  order = jnp.zeros_like(rank).at[rank].set(
    jnp.arange(rank.size, dtype=rank.dtype), unique_indices=True)
  return order, cluster, counts


def _gate_of(cluster, tails):
  return cluster[:, None] == jnp.arange(1, len(tails) + 1)[None]


def _over_tokens(order, counts, i, step, carry):
  """Runs `step(positions, valid, carry)` over the tokens of cluster i, some at a time."""
  size = min(_TAIL_TOKENS, order.shape[0])
  first = counts[:i].sum()

  def body(j, carry):
    begin = first + j * size
    start = jnp.minimum(begin, order.shape[0] - size)
    rank = start + jnp.arange(size)
    valid = (rank >= begin) & (rank < first + counts[i])
    return step(jax.lax.dynamic_slice_in_dim(order, start, size), valid, carry)

  runs = -(-counts[i] // size)
  return jax.lax.while_loop(
    lambda state: state[0] < runs,
    lambda state: (state[0] + 1, body(state[0], state[1])), (jnp.int32(0), carry))[1]


def _unproject(rows, d_h, projection):
  """Gradients of a projection's input [n, D] and of its weights [E, D]."""
  if projection is None:
    return d_h, None
  narrow = d_h.astype(rows.dtype)
  return (jnp.einsum('ne,ed->nd', narrow, projection.astype(rows.dtype),
                     preferred_element_type=d_h.dtype),
          jnp.einsum('ne,nd->ed', narrow, rows, preferred_element_type=d_h.dtype))


def _accumulate(grads, cluster: Cluster, d_projection) -> None:
  if d_projection is not None:
    kind = 'projection' if cluster.tied else 'softmax_projection'
    grads[f'{kind}{cluster.suffix}'] = d_projection
