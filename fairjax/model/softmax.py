r"""Embedding and softmax of the language model: plain tied, or adaptive (Grave et al. 2017).

An adaptive softmax (arXiv:1609.04309; adaptive input: Baevski & Auli 2019, arXiv:1809.10853) cuts
the vocabulary, ordered by frequency, into a head and C tail clusters. Cluster i is `div_val ** i`
times narrower than the model; a projection leads from its width E_i to the model's. With one more
head entry for each tail, the probability of a word w in tail i is

.. math:: p(w \mid h) = p_{head}(i \mid h) \; p_i(w \mid h).

Pure functions on a dictionary of parameters, whose names and shapes `parameter_table` gives.
`likelihood` has the loss, which never holds the scores of all words.

Letters: D model width, V vocabulary, C tail clusters, E_i width and V_i padded size of cluster i.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fairjax.config import ModelConfig
from fairjax.model import partitioning as spread

PROJECTION_STD = 0.01  # of initial projections, as the reference's scripts


class Cluster(NamedTuple):
  """Part of the vocabulary: ids `start` .. `start + size - 1`.

  Attributes:
    start: first id.
    size: number of words.
    padded: rows of its table, a multiple of `vocab_multiple`; those behind `size` are never read.
    width: E_i.
    suffix: of its parameters' names; empty for a plain softmax.
    projected: whether a projection leads to the model's width.
    tied: whether the softmax uses the embedding's projection.
  """

  start: int
  size: int
  padded: int
  width: int
  suffix: str
  projected: bool
  tied: bool


class Parameter(NamedTuple):
  """What declares a parameter: `std` of its normal draws, 0 for zeros."""

  shape: tuple[int, ...]
  axes: tuple[str | None, ...]
  std: float
  rows: int  # rows that are drawn; padding behind them is 0


def vocabulary_clusters(config: ModelConfig) -> tuple[Cluster, ...]:
  """Head and tails; one cluster for a plain softmax.

  >>> config = ModelConfig(vocab_size=500, model_dim=32, cutoffs=(50, 120), div_val=2)
  >>> [(c.start, c.size, c.width, c.tied) for c in vocabulary_clusters(config)]
  [(0, 50, 32, False), (50, 70, 16, True), (120, 380, 8, True)]
  """
  c = config
  ends = (*c.cutoffs, c.vocab_size)
  ties = c.tie_projections or (False,) + (True,) * len(c.cutoffs)
  found = []
  for i, (start, end) in enumerate(zip((0, *ends), ends, strict=False)):
    size = end - start
    found.append(Cluster(
      start=start, size=size, padded=-(-size // c.vocab_multiple) * c.vocab_multiple,
      width=c.model_dim // c.div_val ** i, suffix=f'_{i}' if c.cutoffs else '',
      projected=c.div_val > 1, tied=ties[i]))
  return tuple(found)


def parameter_table(config: ModelConfig) -> dict[str, Parameter]:
  """Parameters of embedding and softmax.

  `embedding` [V, D] and `softmax_bias` [V], tied. For an adaptive softmax each cluster i has
  `embedding_i` [V_i, E_i], `softmax_bias_i` [V_i], with `div_val > 1` `projection_i` [E_i, D] and,
  where it is not tied, `softmax_projection_i` [E_i, D]; `cluster_weight` [C, E_0] and
  `cluster_bias` [C] score the tails in the head.
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
  """The projection [E_i, D] that the softmax uses, or None."""
  if not cluster.projected:
    return None
  kind = 'projection' if cluster.tied else 'softmax_projection'
  return params[f'{kind}{cluster.suffix}']


def embed_tokens(
  params: Mapping[str, Any], config: ModelConfig, tokens: Int[Array, '*S']
) -> Float[Array, '*S D']:
  """Embeds tokens, scaled by sqrt(D) as the reference does.

  Args:
    params: arrays of `parameter_table`, any float dtype.
    config: the model.
    tokens: `[...]` int in [0, V).

  Returns:
    `[..., D]` in the compute dtype.
  """
  dtype = jnp.dtype(config.dtype)
  scale = config.model_dim ** 0.5
  clusters = vocabulary_clusters(config)
  # Words stay split, and each device looks up its own rows of the batch: in a table that is split
  # over the width too, each would look up those of all others.
  tables = [spread.constrain(jnp.asarray(params[f'embedding{c.suffix}']), 'vocab')
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
  """Scores of every word: for a few positions, or in sampling; training uses `likelihood`.

  Args:
    params: of `parameter_table`.
    config: the model.
    hidden: `[..., D]`.

  Returns:
    `[..., V]` float32 (float64 for a float64 model): logits of a plain softmax, log-probabilities
    of an adaptive one.
  """
  scores, bias = word_scores(params, config, hidden)
  return scores if bias is None else scores + bias[(None,) * (hidden.ndim - 1)]


def word_scores(
  params: Mapping[str, Any], config: ModelConfig, hidden: Float[Array, '*S D']
) -> tuple[Float[Array, '*S V'], Float[Array, 'V'] | None]:
  """`all_logits` before the bias of each word is added, and that bias, if there is one."""
  clusters = vocabulary_clusters(config)
  if len(clusters) == 1:
    return _unbiased_logits(params, config, clusters[0], hidden)
  head, *tails = (cluster_logits(params, config, cluster, hidden) for cluster in clusters)
  gates = tail_logits(params, config, hidden)
  head = jax.nn.log_softmax(jnp.concatenate([head, gates], axis=-1), axis=-1)
  parts = [head[..., :clusters[0].size]]
  for i, tail in enumerate(tails):
    gate = head[..., clusters[0].size + i]
    parts.append(gate[..., None] + jax.nn.log_softmax(tail, axis=-1))
  return jnp.concatenate(parts, axis=-1), None


def cluster_logits(params, config, cluster: Cluster, hidden: Array) -> Array:
  """Scores [..., size] of one cluster's words."""
  scores, bias = _unbiased_logits(params, config, cluster, hidden)
  return scores + bias[(None,) * (hidden.ndim - 1)]


def _unbiased_logits(params, config, cluster, hidden):
  """Scores [..., size] of one cluster's words without their bias, and that, [size]."""
  wide = jnp.promote_types(jnp.dtype(config.dtype), jnp.float32)
  hidden = project(hidden.astype(config.dtype), softmax_projection(params, cluster))
  table = params[f'embedding{cluster.suffix}'].astype(config.dtype)
  bias = jnp.asarray(params[f'softmax_bias{cluster.suffix}'], wide)
  scores = jnp.einsum('...e,ve->...v', hidden, table, preferred_element_type=wide)
  return scores[..., :cluster.size], bias[:cluster.size]


def tail_logits(params, config, hidden: Array) -> Array:
  """Scores [..., C] of the tail clusters in the head."""
  wide = jnp.promote_types(jnp.dtype(config.dtype), jnp.float32)
  head = vocabulary_clusters(config)[0]
  hidden = project(hidden.astype(config.dtype), softmax_projection(params, head))
  scores = jnp.einsum('...e,ce->...c', hidden, params['cluster_weight'].astype(config.dtype),
                      preferred_element_type=wide)
  return scores + params['cluster_bias'].astype(wide)[(None,) * (hidden.ndim - 1)]


def project(hidden: Array, projection: Any) -> Array:
  """From the model's width to a cluster's: [..., D] to [..., E]."""
  if projection is None:
    return hidden
  return jnp.einsum('...d,ed->...e', hidden, projection.astype(hidden.dtype))


# The scores of a softmax, some at a time: normalisers, likelihoods and gradients.
#
# All of it runs inside `spread.per_device`, on one device's tokens and part of the words.
#
# Letters: n tokens, E width, V' words of this device.

BLOCK = 1 << 22  # scores that are computed at a time
# Tokens of a part of `at_once`: each part adds to the gradient of all words, so it must not be
# small; on CPU larger parts are slower again, since their scores leave the caches.
_PART_TOKENS, _PART_SCORES = 256, 1 << 21


class ScoreTable(NamedTuple):
  """A cluster's scores: hidden [n, E] @ weight.T + bias, on this device's part of its words."""

  weight: Any  # [V', E]
  bias: Any  # [V']
  size: int  # words of the cluster, on all devices
  block: int
  offset: Any  # this device's first word

  @classmethod
  def of(cls, params, cluster: Cluster, block: int, num_tokens: int) -> 'ScoreTable':
    """That of a cluster, `block` words at a time (0: chosen for so many tokens)."""
    weight = params[f'embedding{cluster.suffix}']
    words = weight.shape[0]
    block = block or max(BLOCK // max(num_tokens, 1), 1024)
    return cls(weight, params[f'softmax_bias{cluster.suffix}'], cluster.size, min(block, words),
               spread.index('vocab') * words)

  def scores(self, hidden, i):
    """Scores [n, block] of block i (the lowest of words that do not count), its first word, weight.

    Words of an earlier block and of the padding do not count.
    """
    words = self.weight.shape[0]
    start = jnp.minimum(i * self.block, words - self.block)  # the last block overlaps
    wide = jnp.promote_types(hidden.dtype, jnp.float32)
    weight = jax.lax.dynamic_slice_in_dim(self.weight, start, self.block).astype(hidden.dtype)
    if self.blocks > 1:
      # Fused with the products, a cut looks to XLA's TPU compiler as if all words were read: with
      # 16 rows a device it brought the whole table on the chip for each block.
      weight = jax.lax.optimization_barrier(weight)
    bias = jax.lax.dynamic_slice_in_dim(self.bias, start, self.block).astype(wide)
    scores = jnp.einsum('ne,ve->nv', hidden, weight, preferred_element_type=wide) + bias[None]
    if words % self.block or words * spread.parts('vocab') != self.size:
      column = start + jnp.arange(self.block)
      counts = (column >= i * self.block) & (self.offset + column < self.size)
      scores = jnp.where(counts[None], scores, lowest(wide))
    return scores, start, weight

  @property
  def blocks(self) -> int:
    """Number of blocks; the last one may overlap the one before."""
    return -(-self.weight.shape[0] // self.block)

  def normaliser(self, hidden, target):
    """(log normaliser, score of `target`), [n] each; targets outside score 0."""
    wide = jnp.promote_types(hidden.dtype, jnp.float32)
    local = target - self.offset

    def step(i, carry):
      top, total, chosen = carry
      scores, start, _ = self.scores(hidden, i)
      new_top = jnp.maximum(top, scores.max(-1))
      total = total * jnp.exp(top - new_top) + jnp.exp(scores - new_top[:, None]).sum(-1)
      at = self._is_target(local, start, i)
      return new_top, total, chosen + jnp.where(at, scores, 0).sum(-1)

    n = hidden.shape[0]
    start = (jnp.full((n,), lowest(wide)), jnp.zeros((n,), wide), jnp.zeros((n,), wide))
    top, total, chosen = jax.lax.fori_loop(0, self.blocks, step, start)
    new_top = spread.maximum(top, 'vocab')
    total = spread.total(total * jnp.exp(top - new_top), 'vocab')
    return new_top + jnp.log(total), spread.total(chosen, 'vocab')

  def gradients(self, hidden, target, normaliser, gradient):
    """Gradients of sum(gradient * (normaliser - chosen)): of hidden [n, E], weight and bias.

    `normaliser` may be that of a larger softmax of which these words are a part. The gradient of
    hidden is this device's share.
    """
    wide = normaliser.dtype
    local = target - self.offset

    def step(j, carry):
      # The last block first: the one before it writes over their common words, for which it counts.
      i = self.blocks - 1 - j
      d_hidden, d_weight, d_bias = carry
      scores, start, weight = self.scores(hidden, i)
      share = jnp.exp(scores - normaliser[:, None])
      d_scores = (share - self._is_target(local, start, i)) * gradient[:, None]
      narrow = d_scores.astype(hidden.dtype)
      d_hidden += jnp.einsum('nv,ve->ne', narrow, weight, preferred_element_type=wide)
      of_words = jnp.einsum('nv,ne->ve', narrow, hidden, preferred_element_type=wide)
      return (d_hidden, jax.lax.dynamic_update_slice_in_dim(d_weight, of_words, start, axis=0),
              jax.lax.dynamic_update_slice_in_dim(d_bias, d_scores.sum(0), start, axis=0))

    start = (jnp.zeros(hidden.shape, wide), jnp.zeros(self.weight.shape, wide),
             jnp.zeros(self.bias.shape, wide))
    return jax.lax.fori_loop(0, self.blocks, step, start)

  def at_once(self, hidden, target):
    """Likelihoods [n] and the gradients of their sum: each token's scores are computed once.

    Some tokens at a time, all words of each: three products instead of the four of `normaliser`
    and `gradients`.

    Args:
      hidden: `[n, E]`.
      target: `[n]` int in [0, size).

    Returns:
      Likelihoods; gradients of hidden [n, E] (this device's share), weight and bias.
    """
    wide = jnp.promote_types(hidden.dtype, jnp.float32)
    parts = _equal_parts(target.size, self.weight.shape[0])

    def step(carry, given):
      d_weight, d_bias = carry
      h, local = given
      scores, start, weight = self.scores(h, 0)
      top = spread.maximum(scores.max(-1), 'vocab')
      shares = jnp.exp(scores - top[:, None])
      total = spread.total(shares.sum(-1), 'vocab')
      is_target = self._is_target(local, start, 0)
      chosen = spread.total(jnp.where(is_target, scores, 0).sum(-1), 'vocab')
      d_scores = shares * (1 / total)[:, None] - is_target
      narrow = d_scores.astype(h.dtype)
      d_hidden = jnp.einsum('nv,ve->ne', narrow, weight, preferred_element_type=wide)
      d_weight += jnp.einsum('nv,ne->ve', narrow, h, preferred_element_type=wide)
      return (d_weight, d_bias + d_scores.sum(0)), (top + jnp.log(total) - chosen, d_hidden)

    zeros = jnp.zeros(self.weight.shape, wide), jnp.zeros(self.bias.shape, wide)
    rows = [x.reshape(parts, -1, *x.shape[1:]) for x in (hidden, target - self.offset)]
    (d_weight, d_bias), (nll, d_hidden) = jax.lax.scan(step, zeros, tuple(rows))
    return nll.reshape(-1), d_hidden.reshape(hidden.shape), d_weight, d_bias

  def _is_target(self, local, start, i):
    """Which of the block's words [n, block] are the target; those of the overlap never."""
    column = start + jnp.arange(self.block)
    return (local[:, None] == column[None]) & (column >= i * self.block)[None]


def fits_at_once(num_words: int) -> bool:
  """Whether `ScoreTable.at_once` holds no more than `BLOCK` scores at a time."""
  return _PART_TOKENS * num_words <= BLOCK


def _equal_parts(num_tokens: int, num_words: int) -> int:
  """Number of equal parts of the tokens, each as large as it may be."""
  limit = max(_PART_TOKENS, _PART_SCORES // num_words)
  return next(n for n in range(-(-num_tokens // limit), num_tokens + 1) if num_tokens % n == 0)


def lowest(dtype: Any) -> jax.Array:
  """A score that stands for no word; finite, so that differences of two stay defined."""
  return jnp.asarray(jnp.finfo(dtype).min / 4, dtype)
