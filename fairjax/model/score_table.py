"""The scores of a softmax, some at a time: normalisers, likelihoods and gradients.

All of it runs inside `spread.per_device`, on one device's tokens and part of the words.

Letters: n tokens, E width, V' words of this device.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fairjax.model import spread
from fairjax.model.softmax import Cluster

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
