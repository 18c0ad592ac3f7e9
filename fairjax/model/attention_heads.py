"""Relative attention of one head and one block of queries at a time, for the caches of a CPU.

The values are those of `attention.relative_attention`. The backward pass computes the weights again
from the logarithm of their sum, which the forward pass keeps, and needs the mean of their gradients
under the weights only as the product of output and its gradient (Dao et al. 2022, arXiv:2205.14135,
appendix B.2): so no row of scores is summed in it. Letters as in `attention`, C queries in a block,
W keys that they see.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from fairjax.model.attention import attention_keep, drop, visible


@functools.partial(jax.custom_vjp, nondiff_argnums=(8, 9))
def attention_by_head(
  query: Float[Array, 'N B T H'],
  key: Float[Array, 'N B S H'],
  value: Float[Array, 'N B S H'],
  relative: Float[Array, 'N S H'],
  content_bias: Float[Array, 'N H'],
  position_bias: Float[Array, 'N H'],
  memory_length: Int[Array, 'B'],
  seed: UInt32[Array, '2'] | None = None,
  rate: float = 0.0,
  block: int = 256,
) -> Float[Array, 'N B T H']:
  """`relative_attention`, computed by head and block; differentiable once.

  Temporary memory is that of a few times the `[B, T, S]` scores of one head, whatever N is.

  Args:
    query: as `relative_attention`, and so are the others.
    key: `[N, B, S, H]`.
    value: `[N, B, S, H]`.
    relative: `[N, S, H]`.
    content_bias: `[N, H]`.
    position_bias: `[N, H]`.
    memory_length: `[B]`.
    seed: `[2]`; None: no dropout.
    rate: dropout rate behind `seed`.
    block: C, most queries in a block; keys after a block's last query are not computed. Blocks are
      unrolled: compiling takes as many times longer.

  Returns:
    `[N, B, T, H]` in the dtype of `value`.
  """
  heads = (query, key, value, relative, content_bias, position_bias)
  return _forward(*heads, memory_length, seed, rate, block)[0]


def _forward(*arguments):
  """The output, and what the backward pass needs."""
  *heads, memory_length, seed, rate, block = arguments

  def one_head(xs):
    head, query, key, value, *rest = xs
    outputs, log_totals = [], []
    for begin, end in _blocks(query.shape[1], block):
      scores, mask, keep, *_ = _scores(
        head, (query, key, *rest), memory_length, seed, rate, begin, end)
      scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
      top = scores.max(axis=-1, keepdims=True)
      weights = jnp.exp(scores - top)
      total = weights.sum(axis=-1, keepdims=True)
      mixed = jnp.einsum(
        'bts,bsh->bth', drop(weights.astype(value.dtype), keep, rate=rate),
        value[:, :scores.shape[-1]])
      outputs.append((mixed / total).astype(value.dtype))
      log_totals.append(top + jnp.log(total))
    return jnp.concatenate(outputs, axis=1), jnp.concatenate(log_totals, axis=1)

  out, log_total = jax.lax.map(one_head, (np.arange(heads[0].shape[0]), *heads))
  return out, (heads, memory_length, seed, out, log_total)


def _backward(rate, block, saved, gradient):
  """Gradients of the six arrays."""
  heads, memory_length, seed, out, log_total = saved
  head_dim = heads[0].shape[-1]
  scale = head_dim ** -0.5

  def one_head(xs):
    head, out, log_total, gradient, query, key, value, *rest = xs
    wide = log_total.dtype
    # The mean of a row's weight gradients under its weights.
    mean = (out.astype(wide) * gradient.astype(wide)).sum(axis=-1, keepdims=True)
    d_query, d_biases = [], []
    # Transposed: the products with the large [C, W] on the right need no transposed copy of it.
    d_key, d_value = (jnp.zeros((len(x), head_dim, x.shape[1]), wide) for x in (key, value))
    d_relative = jnp.zeros((head_dim, key.shape[1] + 1), wide)
    for begin, end in _blocks(query.shape[1], block):
      scores, mask, keep, with_content, with_position, table = _scores(
        head, (query, key, *rest), memory_length, seed, rate, begin, end)
      width = scores.shape[-1]
      weights = jnp.where(mask, jnp.exp(scores - log_total[:, begin:end]), 0)
      d_out = gradient[:, begin:end]
      d_weights = jnp.einsum('bth,bsh->bts', d_out, value[:, :width]).astype(wide)
      d_scores = weights * (drop(d_weights, keep, rate=rate) - mean[:, begin:end])
      d_scores = d_scores.astype(query.dtype)
      kept = drop(weights.astype(value.dtype), keep, rate=rate)
      d_shifted = _shift_back(d_scores)
      d_content = jnp.einsum('bts,bsh->bth', d_scores, key[:, :width]) * scale
      d_position = jnp.einsum('bts,sh->bth', d_shifted, table) * scale
      d_query.append(d_content + d_position)
      d_biases.append((d_content.astype(wide).sum((0, 1)), d_position.astype(wide).sum((0, 1))))
      d_value = d_value.at[..., :width].add(jnp.einsum('bth,bts->bhs', d_out, kept))
      d_key = d_key.at[..., :width].add(jnp.einsum('bth,bts->bhs', with_content, d_scores))
      d_relative = d_relative.at[:, -width - 1:].add(
        jnp.einsum('bth,bts->hs', with_position, d_shifted))
    biases = tuple(sum(parts) for parts in zip(*d_biases, strict=True))
    d_key, d_value = (x.swapaxes(1, 2) for x in (d_key, d_value))
    return jnp.concatenate(d_query, axis=1), d_key, d_value, d_relative[:, 1:].T, *biases

  gradients = jax.lax.map(
    one_head, (np.arange(heads[0].shape[0]), out, log_total, gradient, *heads))
  return *(g.astype(x.dtype) for g, x in zip(gradients, heads, strict=True)), None, None


attention_by_head.defvjp(_forward, _backward)


def _blocks(num_queries, block):
  """First and last (exclusive) query of each block."""
  return [(i, min(i + block, num_queries)) for i in range(0, num_queries, block)]


def _shift(scores):
  """`attention.relative_shift` of [B, C, W + 1] whose column 0 nobody reads.

  It is a slice of the flat rows. With the column computed instead of padded, XLA reads it in order
  where it adds it; padding costs a comparison and a division for each score.
  """
  num_rows, num_queries, columns = scores.shape
  flat = scores.reshape(num_rows, num_queries * columns)[:, num_queries:]
  return flat.reshape(num_rows, num_queries, columns - 1)


def _shift_back(gradient):
  """Transpose of `_shift`: [B, C, W + 1] of [B, C, W], C <= W."""
  num_rows, num_queries, columns = gradient.shape
  # Zeros that XLA does not know to be some: it would make a padding of the concatenation, with a
  # division and a comparison for each score.
  unread = 0 * gradient[:, 0, :num_queries]
  flat = jnp.concatenate([unread, gradient.reshape(num_rows, -1)], axis=1)
  return flat.reshape(num_rows, num_queries, columns + 1)


def _scores(head, arrays, memory_length, seed, rate, begin, end):
  """Scores [B, C, W] of queries begin .. end - 1 of one head, and what they are made of.

  Returns:
    The scores in float32 or wider, their mask, the weights that dropout keeps (or None), the scaled
    queries with either bias, and the relative keys of the block.
  """
  query, key, relative, content_bias, position_bias = arrays
  num_rows, num_queries, head_dim = query.shape
  width = key.shape[1] - num_queries + end
  queries, scale = query[:, begin:end], head_dim ** -0.5
  # A distance more than a query of the block can have: `_shift` needs its column.
  table = jnp.pad(relative, ((1, 0), (0, 0)))[-width - 1:]
  with_content = (queries + content_bias[None, None]) * scale
  with_position = (queries + position_bias[None, None]) * scale
  scores = jnp.einsum('bth,bsh->bts', with_content, key[:, :width])
  scores += _shift(jnp.einsum('bth,sh->bts', with_position, table))
  positions = np.arange(begin, end, dtype=np.int32)
  mask = visible(
    memory_length, positions, memory_len=key.shape[1] - num_queries, num_keys=width)
  keep = attention_keep(
    seed, jnp.broadcast_to(positions[None], (num_rows, end - begin)), num_heads=1,
    num_columns=width, rate=rate, first_head=head)
  scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
  return scores, mask, None if keep is None else keep[0], with_content, with_position, table
