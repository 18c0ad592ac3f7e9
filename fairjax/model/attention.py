r"""Relative attention of Transformer-XL, for a segment and for its counterfactual branches.

Dai et al. 2019 (arXiv:1901.02860), section 3.3: the score of a query at position i and a key at
position j is

.. math:: \bigl((q_i + u)^\top k_j + (q_i + v)^\top r_{i-j}\bigr) / \sqrt{H},

with :math:`r_d = W_r R_d` and R_d a sinusoid of the distance d. Pure functions without flax.

Letters: B batch rows, T segment length, M memory length, S = M + T keys, K branches per row,
P pieces per branch, N heads, H head width, D model width. Heads stand in front of rows
(`[N, B, ...]`): the relative term shares its keys among rows, so that it is one matmul per head
without a transpose of scores. Distances always run downwards along an array: column c of C is the
distance C - 1 - c.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from fairjax.model.threefry import threefry


def sinusoids(*, num_distances: int, model_dim: int, clamp_len: int = -1) -> np.ndarray:
  """Embeds the distances `num_distances - 1` down to 0 (Dai et al. 2019, section 3.3).

  The angular frequencies are rounded to float32, which is how the published checkpoints were
  trained; the angles and their sines are float64.

  Args:
    num_distances: rows of the table.
    model_dim: D, even.
    clamp_len: larger distances are embedded as this one; -1: none are.

  Returns:
    `[num_distances, D]` float64 in [-1, 1]: D/2 sines, then D/2 cosines.

  >>> sinusoids(num_distances=2, model_dim=2).round(3).tolist()
  [[0.841, 0.54], [0.0, 1.0]]
  """
  exponents = np.arange(0, model_dim, 2) / model_dim
  frequencies = np.float32(1) / np.power(10000.0, exponents).astype(np.float32)
  distances = np.arange(num_distances - 1, -1, -1, dtype=np.float64)
  if clamp_len >= 0:
    distances = np.minimum(distances, clamp_len)
  angles = distances[:, None] * frequencies[None, :].astype(np.float64)
  return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def relative_shift(scores: Float[Array, '*A T S']) -> Float[Array, '*A T S']:
  """Moves a score from the column of its distance to the column of its key.

  Column c of the input is the distance S - 1 - c of query t; column j of the result is key j, whose
  distance from query t is S - T + t - j. Keys after the query (j > S - T + t) get values that mean
  nothing and must be masked.

  >>> relative_shift(jnp.array([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])).tolist()
  [[1.0, 0.0, 0.0], [2.0, 1.0, 0.0]]
  """
  *lead, num_queries, num_keys = scores.shape
  padded = jnp.pad(scores, [(0, 0)] * (len(lead) + 1) + [(1, 0)])
  padded = padded.reshape(*lead, num_keys + 1, num_queries)
  return padded[..., 1:, :].reshape(scores.shape)


def shift_by(
  scores: Float[Array, 'N *Q C'], offsets: Int[Array, '*Q'], *, width: int, limit: int
) -> Float[Array, 'N *Q W']:
  """Cuts the columns `offset .. offset + width - 1` out of every query's scores.

  On TPUs a chain of log2(limit) selections between an array and itself moved by a power of two,
  elsewhere a gather of slices. The gradient is another such cut: no scatter.

  Args:
    scores: `[N, ..., C]` float; columns beyond C read as 0.
    offsets: `[...]` int32 in [0, limit).
    width: number of columns to return.
    limit: all offsets are below it.

  Returns:
    `[N, ..., width]`, the dtype of `scores`.

  >>> shift_by(jnp.arange(4.0).reshape(1, 1, 4), jnp.array([1]), width=2, limit=2).tolist()
  [[[1.0, 2.0]]]
  """
  columns = width + limit - 1
  missing = max(columns - scores.shape[-1], 0)
  scores = jnp.pad(scores, [(0, 0)] * (scores.ndim - 1) + [(0, missing)])[..., :columns]
  return _cut(scores, offsets, width, limit)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _cut(scores, offsets, width, limit):
  """`shift_by` for width + limit - 1 columns."""
  return jax.lax.platform_dependent(
    scores, offsets, tpu=functools.partial(_by_selections, width=width, limit=limit),
    default=functools.partial(_by_slices, width=width))


def _cut_forward(scores, offsets, width, limit):
  return _cut(scores, offsets, width, limit), offsets


def _cut_backward(width, limit, offsets, gradient):
  # Column c of the scores went to column c - offset.
  padded = jnp.pad(gradient, [(0, 0)] * (gradient.ndim - 1) + [(limit - 1,) * 2])
  return _cut(padded, limit - 1 - offsets, width + limit - 1, limit), None


_cut.defvjp(_cut_forward, _cut_backward)


def _by_selections(scores, offsets, *, width, limit):
  """`shift_by` for TPUs, which are slow at gathers."""
  bits = max(limit - 1, 0).bit_length()
  columns = width + 2 ** bits - 1
  padding = max(columns - scores.shape[-1], 0)
  scores = jnp.pad(scores, [(0, 0)] * (scores.ndim - 1) + [(0, padding)])[..., :columns]
  for bit in reversed(range(bits)):
    moved = (offsets >> bit & 1).astype(bool)[None, ..., None]
    step = 2 ** bit
    scores = jnp.where(moved, scores[..., step:], scores[..., :-step])
  return scores


def _by_slices(scores, offsets, *, width):
  """`shift_by` for CPUs and GPUs: a slice of every query."""
  cut = functools.partial(jax.lax.dynamic_slice_in_dim, slice_size=width, axis=1)
  for _ in range(offsets.ndim):
    cut = jax.vmap(cut, in_axes=(1, 0), out_axes=1)
  return cut(scores, offsets)


def drop(
  x: Float[Array, '*S'], keep: Bool[Array, '*S'] | None, *, rate: float
) -> Float[Array, '*S']:
  """Dropout with an explicit mask: x / (1 - rate) where `keep`, else 0; no mask: x itself."""
  return x if keep is None else jnp.where(keep, x / (1.0 - rate), 0.0).astype(x.dtype)


def attention_keep(
  seed: UInt32[Array, '2'] | None, positions: Int[Array, 'B *Q'], *, num_heads: int, rate: float,
  num_columns: int = 0, columns: Int[Array, 'B *A'] | None = None, first_head: Any = 0,
) -> Bool[Array, '...'] | None:
  """Draws attention dropout: each weight is kept with probability 1 - rate.

  A weight's fate is a hash of the seed, its head, row, query position and key column (threefry2x32,
  Salmon et al. 2011, as `jax.random` uses it) and of nothing else. So every way of computing the
  attention drops the same weights without storing them, and a branch's piece those of the position
  that it replaces.

  Args:
    seed: `[2]` of the layer; None: nothing is dropped.
    positions: `[B, ...]` int in [0, 65536), position in the segment whose weights are drawn.
    num_heads: N, below 65536 as B is.
    rate: dropout rate.
    num_columns: X, draws key columns 0 .. X - 1 of the row.
    columns: `[B, ...]` int32 in [0, 65536) that broadcasts against `positions[..., None]`: draws
      these columns instead.
    first_head: number of the first head.

  Returns:
    `[N, B, ..., X]` bool, true where the weight is kept; None without a seed.
  """
  if seed is None:
    return None
  if columns is None:
    columns = jnp.arange(num_columns, dtype=jnp.uint32)[(None,) * positions.ndim]
  heads = first_head + np.arange(num_heads)
  rows = np.arange(positions.shape[0])
  by_row = (heads.astype(np.uint32) if isinstance(heads, np.ndarray) else
            heads.astype(jnp.uint32))[:, None] * np.uint32(2 ** 16) + rows.astype(np.uint32)[None]
  by_row = jnp.asarray(by_row).reshape(*by_row.shape, *(1,) * positions.ndim)
  by_place = positions.astype(jnp.uint32)[..., None] * np.uint32(2 ** 16)
  shape = jnp.broadcast_shapes(by_place.shape, columns.shape)
  by_place = jnp.broadcast_to(by_place, shape) + jnp.broadcast_to(columns, shape).astype(jnp.uint32)
  shape = (num_heads, *shape)
  bits, _ = threefry(
    (seed[0], seed[1]), (jnp.broadcast_to(by_row, shape), jnp.broadcast_to(by_place[None], shape)))
  return bits < np.uint32(round((1.0 - rate) * 2 ** 32))


def visible(
  memory_length: Int[Array, 'B'], positions: Int[np.ndarray, 'T'] | Int[Array, 'T'], *,
  memory_len: int, num_keys: int,
) -> Bool[Array, 'B T S']:
  """Which keys queries see: the valid slots of the memory, and the segment up to themselves.

  Args:
    memory_length: `[B]` int32 in [0, M]: the newest slots that are valid.
    positions: `[T]` int32, positions in the segment of the queries.
    memory_len: M.
    num_keys: S, keys 0 .. S - 1 are judged.

  Returns:
    `[B, T, S]` bool.

  >>> visible(jnp.array([1]), np.arange(2), memory_len=2, num_keys=4).astype(int).tolist()
  [[[0, 1, 1, 0], [0, 1, 1, 1]]]
  """
  slots = np.arange(num_keys, dtype=np.int32)
  valid = slots[None] >= memory_len - memory_length[:, None]
  return valid[:, None, :] & (slots[None, :] - memory_len <= positions[:, None])[None]


def relative_attention(
  query: Float[Array, 'N B T H'],
  key: Float[Array, 'N B S H'],
  value: Float[Array, 'N B S H'],
  relative: Float[Array, 'N S H'],
  content_bias: Float[Array, 'N H'],
  position_bias: Float[Array, 'N H'],
  memory_length: Int[Array, 'B'],
  seed: UInt32[Array, '2'] | None = None,
  *,
  rate: float = 0.0,
) -> Float[Array, 'N B T H']:
  """Attention of a segment over its memory and itself (Dai et al. 2019, section 3.3).

  A query sees the valid slots of the memory and the segment up to itself.

  Args:
    query: `[N, B, T, H]` projected segment.
    key: `[N, B, S, H]` projected memory and segment, in this order.
    value: `[N, B, S, H]` of the same positions.
    relative: `[N, S, H]` projected distances S - 1 down to 0.
    content_bias: `[N, H]`, u of the paper.
    position_bias: `[N, H]`, v of the paper.
    memory_length: `[B]` int32 in [0, M], the newest slots of the memory that are valid.
    seed: `[2]` of `attention_keep`; None: no dropout.
    rate: dropout rate behind `seed`.

  Returns:
    `[N, B, T, H]` in the dtype of `value`. Scores are softmaxed in float32 (float64 for float64).
  """
  num_heads, num_rows, num_queries, _ = query.shape
  positions = np.arange(num_queries, dtype=np.int32)
  mask = visible(
    memory_length, positions, memory_len=key.shape[2] - num_queries, num_keys=key.shape[2])
  keep = attention_keep(
    seed, jnp.broadcast_to(positions[None], (num_rows, num_queries)), num_heads=num_heads,
    num_columns=key.shape[2], rate=rate)
  # The query is kept, not also its sums with either bias.
  scores = jax.checkpoint(_scores, prevent_cse=False)(
    query, key, relative, content_bias, position_bias)
  return attend(scores, value, mask[None], keep, rate=rate)


def _scores(query, key, relative, content_bias, position_bias):
  """Scores `[N, B, T, S]` of `relative_attention`."""
  scale = query.shape[-1] ** -0.5
  with_content = (query + content_bias[:, None, None, :]) * scale
  with_position = (query + position_bias[:, None, None, :]) * scale
  scores = jnp.einsum('nbth,nbsh->nbts', with_content, key)
  return scores + relative_shift(jnp.einsum('nbth,nsh->nbts', with_position, relative))


def attend(
  scores: Float[Array, 'N B T S'], value: Float[Array, 'N B S H'], mask: Bool[Array, '1 B T S'],
  keep: Bool[Array, 'N B T S'] | None, *, rate: float,
) -> Float[Array, 'N B T H']:
  """Averages values by the softmax of scores: 0 where not `mask`, with dropout where `keep`.

  The backward pass keeps the weights once, and neither scores nor the mask.
  """
  return _attend(rate, scores, value, mask, keep)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(rate, scores, value, mask, keep):
  return _attend_forward(rate, scores, value, mask, keep)[0]


def _attend_forward(rate, scores, value, mask, keep):
  weights = _softmax(scores, mask)
  kept = drop(weights.astype(value.dtype), keep, rate=rate)
  out = jnp.einsum('nbts,nbsh->nbth', kept, value)
  return out, (weights, value, keep, out)


def _attend_backward(rate, saved, gradient):
  """Gradients of scores and values; the mean of a row's is that of `attention_heads`."""
  weights, value, keep, out = saved
  wide = weights.dtype
  kept = drop(weights.astype(value.dtype), keep, rate=rate)
  d_value = jnp.einsum('nbts,nbth->nbsh', kept, gradient)
  d_weights = jnp.einsum('nbth,nbsh->nbts', gradient, value).astype(wide)
  # A product of matrices: in a sum of products one side of which vmap broadcasts (as jax.jacrev
  # does), jaxlib 0.10.2 makes wrong numbers on CPU (docs/performance.md).
  mean = jnp.einsum('nbth,nbth->nbt', out.astype(wide), gradient.astype(wide))[..., None]
  d_scores = weights * (drop(d_weights, keep, rate=rate) - mean)
  return d_scores.astype(value.dtype), d_value, None, None


_attend.defvjp(_attend_forward, _attend_backward)


def _softmax(scores: Array, mask: Array) -> Array:
  """Softmax over the last axis in float32 or wider; masked scores weigh exactly 0."""
  scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
  return jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)
