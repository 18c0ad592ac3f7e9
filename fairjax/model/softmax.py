r"""Embedding and softmax of the language model: plain tied, or adaptive (Grave et al. 2017).

An adaptive softmax (arXiv:1609.04309; adaptive input: Baevski & Auli 2019, arXiv:1809.10853) cuts
the vocabulary, ordered by frequency, into a head and C tail clusters. Cluster i is `div_val ** i`
times narrower than the model; a projection leads from its width E_i to the model's. With one more
head entry for each tail, the probability of a word w in tail i is

.. math:: p(w \mid h) = p_{head}(i \mid h) \; p_i(w \mid h).

Pure functions on a dictionary of parameters, whose names and shapes `parameter_table` gives.
`likelihood` has the loss, which never holds the logits of all words.

Own letters: C tail clusters, E_i width and V_i padded size of cluster i; in blocks of words n
tokens, E width, V' words of this device.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fairjax.config import ModelConfig
from fairjax.model import partitioning
from fairjax.model.xla_features import word_products

PROJECTION_STD = 0.01  # of initial projections, as the reference's scripts


class Cluster(NamedTuple):
  """Part of the vocabulary: ids `start` .. `start + size - 1`."""

  start: int
  size: int  # words
  padded: int  # rows of its table, a multiple of `vocab_multiple`; rows after `size` are never read
  width: int  # E_i
  suffix: str  # of its parameters' names; empty for a plain softmax
  projected: bool  # a projection leads to the model's width
  tied: bool  # the softmax uses the embedding's projection


class Parameter(NamedTuple):
  """Declaration of a parameter."""

  shape: tuple[int, ...]
  axes: tuple[str | None, ...]
  std: float  # of its normal draws; 0: zeros
  rows: int  # that are drawn; the padding after them is 0


def vocabulary_clusters(config: ModelConfig) -> tuple[Cluster, ...]:
  """Head and tails; one cluster for a plain softmax.

  >>> config = ModelConfig(vocab_size=500, model_dim=32, cutoffs=(50, 120), div_val=2)
  >>> [(c.start, c.size, c.width, c.tied) for c in vocabulary_clusters(config)]
  [(0, 50, 32, False), (50, 70, 16, True), (120, 380, 8, True)]
  """
  ends = (*config.cutoffs, config.vocab_size)
  ties = config.tie_projections or (False,) + (True,) * len(config.cutoffs)
  found = []
  for i, (start, end) in enumerate(zip((0, *ends), ends, strict=False)):
    size = end - start
    found.append(Cluster(
      start=start, size=size, padded=-(-size // config.vocab_multiple) * config.vocab_multiple,
      width=config.model_dim // config.div_val ** i, suffix=f'_{i}' if config.cutoffs else '',
      projected=config.div_val > 1, tied=ties[i]))
  return tuple(found)


def parameter_table(config: ModelConfig) -> dict[str, Parameter]:
  """Parameters of embedding and softmax, which are tied.

  `embedding` [V, D] and `softmax_bias` [V]. An adaptive softmax has `embedding_i` [V_i, E_i] and
  `softmax_bias_i` [V_i] for each cluster i; with `div_val > 1` also `projection_i` [E_i, D] and,
  untied, `softmax_projection_i` [E_i, D]; and `cluster_weight` [C, E_0] and `cluster_bias` [C],
  which give the logits of the tails in the head.
  """
  table = {}
  for i, cluster in enumerate(vocabulary_clusters(config)):
    # Tails are narrow: splitting their width over devices would not pay.
    width_axis = 'embed' if i == 0 else None
    name = f'embedding{cluster.suffix}'
    table[name] = Parameter(
      (cluster.padded, cluster.width), ('vocab', width_axis), config.init_std, cluster.size)
    table[f'softmax_bias{cluster.suffix}'] = Parameter(
      (cluster.padded,), ('vocab',), 0.0, cluster.size)
    if cluster.projected:
      projection = Parameter(
        (cluster.width, config.model_dim), (None, 'embed'), PROJECTION_STD, cluster.width)
      table[f'projection{cluster.suffix}'] = projection
      if not cluster.tied:
        table[f'softmax_projection{cluster.suffix}'] = projection
  tails = len(config.cutoffs)
  if tails:
    table['cluster_weight'] = Parameter(
      (tails, config.model_dim), (None, 'embed'), config.init_std, tails)
    table['cluster_bias'] = Parameter((tails,), (None,), 0.0, tails)
  return table


def softmax_projection(params: Mapping[str, Any], cluster: Cluster) -> Any:
  """Projection [E_i, D] of a cluster in the softmax, or None."""
  if not cluster.projected:
    return None
  kind = 'projection' if cluster.tied else 'softmax_projection'
  return params[f'{kind}{cluster.suffix}']


def embed_tokens(
  params: Mapping[str, Any], config: ModelConfig, tokens: Int[Array, '*S']
) -> Float[Array, '*S D']:
  """Embeds tokens, scaled by sqrt(D) as the reference does."""
  dtype = jnp.dtype(config.dtype)
  scale = config.model_dim ** 0.5
  clusters = vocabulary_clusters(config)
  # The table is split over words only, and each device looks up its own rows of the batch. Split
  # over the width too, each device would look up the rows of all others.
  tables = [partitioning.constrain(jnp.asarray(params[f'embedding{c.suffix}']), 'vocab')
            for c in clusters]
  if len(clusters) == 1 and not clusters[0].projected:
    return tables[0][tokens].astype(dtype) * scale
  total = None
  for cluster, table in zip(clusters, tables, strict=True):
    own = (tokens >= cluster.start) & (tokens < cluster.start + cluster.size)
    rows = table[jnp.clip(tokens - cluster.start, 0, cluster.size - 1)].astype(dtype)
    rows = jnp.where(own[..., None], rows, 0)
    if cluster.projected:
      rows = jnp.einsum(
        '...e,ed->...d', rows, params[f'projection{cluster.suffix}'].astype(dtype))
    total = rows if total is None else total + rows
  return total * scale


def all_logits(
  params: Mapping[str, Any], config: ModelConfig, hidden: Float[Array, '*S D']
) -> Float[Array, '*S V']:
  """Logits [..., V] of every word, float32 or wider; of an adaptive softmax log-probabilities."""
  logits, bias = logits_and_bias(params, config, hidden)
  return logits if bias is None else logits + bias[(None,) * (hidden.ndim - 1)]


def logits_and_bias(
  params: Mapping[str, Any], config: ModelConfig, hidden: Float[Array, '*S D']
) -> tuple[Float[Array, '*S V'], Float[Array, 'V'] | None]:
  """Splits `all_logits` into the logits without the bias of each word and that bias, if any."""
  clusters = vocabulary_clusters(config)
  if len(clusters) == 1:
    return _cluster_logits_and_bias(params, config, clusters[0], hidden)
  head, *tails = (logits + bias[(None,) * (hidden.ndim - 1)] for logits, bias in (
    _cluster_logits_and_bias(params, config, cluster, hidden) for cluster in clusters))
  states = project(hidden.astype(config.dtype), softmax_projection(params, clusters[0]))
  gates = tail_logits(params, states)
  head = jax.nn.log_softmax(jnp.concatenate([head, gates], axis=-1), axis=-1)
  parts = [head[..., :clusters[0].size]]
  for i, tail in enumerate(tails):
    gate = head[..., clusters[0].size + i]
    parts.append(gate[..., None] + jax.nn.log_softmax(tail, axis=-1))
  return jnp.concatenate(parts, axis=-1), None


def _cluster_logits_and_bias(params, config, cluster, hidden):
  """Logits [..., size] of one cluster's words without their bias, and the bias [size]."""
  sum_dtype = jnp.promote_types(jnp.dtype(config.dtype), jnp.float32)
  hidden = project(hidden.astype(config.dtype), softmax_projection(params, cluster))
  table = params[f'embedding{cluster.suffix}'].astype(config.dtype)
  bias = jnp.asarray(params[f'softmax_bias{cluster.suffix}'], sum_dtype)
  logits = word_products(hidden, table, sum_dtype)
  return logits[..., :cluster.size], bias[:cluster.size]


def tail_logits(params: Mapping[str, Any], hidden: Float[Array, '*S E']) -> Float[Array, '*S C']:
  """Logits of the tail clusters in the head, of states projected to its width."""
  sum_dtype = jnp.promote_types(hidden.dtype, jnp.float32)
  logits = word_products(hidden, params['cluster_weight'].astype(hidden.dtype), sum_dtype)
  return logits + params['cluster_bias'].astype(sum_dtype)[(None,) * (hidden.ndim - 1)]


def project(hidden: Array, projection: Any) -> Array:
  """Projects [..., D] to a cluster's width [..., E]."""
  if projection is None:
    return hidden
  return jnp.einsum('...d,ed->...e', hidden, projection.astype(hidden.dtype))


# Logits in blocks of words: normalisers, likelihoods and gradients. This code runs inside
# `partitioning.per_device`, on one device's tokens and part of the words.

BLOCK = 1 << 22  # logits that are computed at a time
# Tokens of a part of `loss_and_gradients`. Each part adds to the gradient of all words, so small
# parts are slow; on CPU large parts are slow too, since their logits leave the caches.
_PART_TOKENS, _PART_LOGITS = 256, 1 << 21


class VocabLogits(NamedTuple):
  """Computes a cluster's logits, hidden [n, E] @ weight.T + bias, for this device's words."""

  weight: Any  # [V', E]
  bias: Any  # [V']
  size: int  # words of the cluster, on all devices
  block: int
  offset: Any  # this device's first word
  cap: float = 0.0  # logits go through cap * tanh(x / cap) (Gemma 2); 0: they do not

  @classmethod
  def of(
    cls, params, cluster: Cluster, block: int, num_tokens: int, cap: float = 0.0
  ) -> 'VocabLogits':
    """Takes a cluster's parameters; `block` words at a time (0: chosen by the number of tokens)."""
    weight = params[f'embedding{cluster.suffix}']
    words = weight.shape[0]
    block = block or max(BLOCK // max(num_tokens, 1), 1024)
    return cls(weight, params[f'softmax_bias{cluster.suffix}'], cluster.size, min(block, words),
               partitioning.index('vocab') * words, cap)

  def block_logits(self, hidden, i):
    """Logits [n, block] of block i, its first word, and its weight.

    Words of an earlier block and of the padding get `lowest`.
    """
    words = self.weight.shape[0]
    start = jnp.minimum(i * self.block, words - self.block)  # the last block overlaps
    sum_dtype = jnp.promote_types(hidden.dtype, jnp.float32)
    weight = jax.lax.dynamic_slice_in_dim(self.weight, start, self.block).astype(hidden.dtype)
    if self.blocks > 1:
      # Without the barrier XLA's TPU compiler fuses the slice with the product, takes the whole
      # table for its operand and copies all of it on the chip for each block.
      weight = jax.lax.optimization_barrier(weight)
    bias = jax.lax.dynamic_slice_in_dim(self.bias, start, self.block).astype(sum_dtype)
    logits = jnp.einsum('ne,ve->nv', hidden, weight, preferred_element_type=sum_dtype) + bias[None]
    if self.cap:
      logits = jnp.tanh(logits / self.cap) * self.cap
    if words % self.block or words * partitioning.parts('vocab') != self.size:
      column = start + jnp.arange(self.block)
      counts = (column >= i * self.block) & (self.offset + column < self.size)
      logits = jnp.where(counts[None], logits, lowest(sum_dtype))
    return logits, start, weight

  @property
  def blocks(self) -> int:
    """Number of blocks; the last one may overlap the one before."""
    return -(-self.weight.shape[0] // self.block)

  def normaliser(self, hidden, target):
    """Log normaliser and logit of `target`, [n] each; the logit is 0 for targets outside."""
    sum_dtype = jnp.promote_types(hidden.dtype, jnp.float32)
    local = target - self.offset

    def step(i, carry):
      top, total, chosen = carry
      logits, start, _ = self.block_logits(hidden, i)
      new_top = jnp.maximum(top, logits.max(-1))
      total = total * jnp.exp(top - new_top) + jnp.exp(logits - new_top[:, None]).sum(-1)
      at = self._is_target(local, start, i)
      return new_top, total, chosen + jnp.where(at, logits, 0).sum(-1)

    n = hidden.shape[0]
    zeros = jnp.zeros((n,), sum_dtype)
    start = (jnp.full((n,), lowest(sum_dtype)), zeros, zeros)
    top, total, chosen = jax.lax.fori_loop(0, self.blocks, step, start)
    new_top = partitioning.maximum(top, 'vocab')
    total = partitioning.total(total * jnp.exp(top - new_top), 'vocab')
    return new_top + jnp.log(total), partitioning.total(chosen, 'vocab')

  def gradients(self, hidden, target, normaliser, gradient):
    """Gradients of sum(gradient * (normaliser - chosen)): of hidden [n, E], weight and bias."""
    # `normaliser` may be that of a larger softmax which contains these words. The gradient of
    # hidden covers this device's words only.
    sum_dtype = normaliser.dtype
    local = target - self.offset

    def step(j, carry):
      # The last block comes first: the block before it overwrites the words that both contain.
      i = self.blocks - 1 - j
      d_hidden, d_weight, d_bias = carry
      logits, start, weight = self.block_logits(hidden, i)
      probs = jnp.exp(logits - normaliser[:, None])
      d_logits = (probs - self._is_target(local, start, i)) * gradient[:, None]
      if self.cap:  # words that do not count are far below -cap
        d_logits *= 1 - jnp.square(jnp.maximum(logits / self.cap, -1))
      narrow = d_logits.astype(hidden.dtype)
      d_hidden += jnp.einsum('nv,ve->ne', narrow, weight, preferred_element_type=sum_dtype)
      of_words = jnp.einsum('nv,ne->ve', narrow, hidden, preferred_element_type=sum_dtype)
      return (d_hidden, jax.lax.dynamic_update_slice_in_dim(d_weight, of_words, start, axis=0),
              jax.lax.dynamic_update_slice_in_dim(d_bias, d_logits.sum(0), start, axis=0))

    start = (jnp.zeros(hidden.shape, sum_dtype), jnp.zeros(self.weight.shape, sum_dtype),
             jnp.zeros(self.bias.shape, sum_dtype))
    return jax.lax.fori_loop(0, self.blocks, step, start)

  def loss_and_gradients(self, hidden, target):
    """Likelihoods [n] and the gradients of their sum, of hidden [n, E], weight and bias."""
    # Some tokens at a time, all words of each: three products, where `normaliser` and `gradients`
    # take four.
    sum_dtype = jnp.promote_types(hidden.dtype, jnp.float32)
    parts = _equal_parts(target.size, self.weight.shape[0])

    def step(carry, given):
      d_weight, d_bias = carry
      h, local = given
      logits, start, weight = self.block_logits(h, 0)
      top = partitioning.maximum(logits.max(-1), 'vocab')
      probs = jnp.exp(logits - top[:, None])
      total = partitioning.total(probs.sum(-1), 'vocab')
      is_target = self._is_target(local, start, 0)
      chosen = partitioning.total(jnp.where(is_target, logits, 0).sum(-1), 'vocab')
      d_logits = probs * (1 / total)[:, None] - is_target
      narrow = d_logits.astype(h.dtype)
      d_hidden = jnp.einsum('nv,ve->ne', narrow, weight, preferred_element_type=sum_dtype)
      d_weight += jnp.einsum('nv,ne->ve', narrow, h, preferred_element_type=sum_dtype)
      return (d_weight, d_bias + d_logits.sum(0)), (top + jnp.log(total) - chosen, d_hidden)

    zeros = jnp.zeros(self.weight.shape, sum_dtype), jnp.zeros(self.bias.shape, sum_dtype)
    rows = [x.reshape(parts, -1, *x.shape[1:]) for x in (hidden, target - self.offset)]
    (d_weight, d_bias), (nll, d_hidden) = jax.lax.scan(step, zeros, tuple(rows))
    return nll.reshape(-1), d_hidden.reshape(hidden.shape), d_weight, d_bias

  def _is_target(self, local, start, i):
    """Which of the block's words [n, block] are the target; those of the overlap never."""
    column = start + jnp.arange(self.block)
    return (local[:, None] == column[None]) & (column >= i * self.block)[None]


def fits_one_pass(num_words: int) -> bool:
  """Whether `VocabLogits.loss_and_gradients` holds no more than `BLOCK` logits at a time."""
  return _PART_TOKENS * num_words <= BLOCK


def _equal_parts(num_tokens: int, num_words: int) -> int:
  """Smallest number of equal parts of the tokens that are small enough."""
  limit = max(_PART_TOKENS, _PART_LOGITS // num_words)
  return next(n for n in range(-(-num_tokens // limit), num_tokens + 1) if num_tokens % n == 0)


def lowest(dtype: Any) -> jax.Array:
  """A logit for no word, a score of no weight; finite, as the sum and difference of two are."""
  return jnp.asarray(jnp.finfo(dtype).min / 4, dtype)
