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

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


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

  A chain of log2(limit) selections between an array and itself moved by a power of two. A gather
  would do the same, but gathers and their scatter gradients are slow on accelerators.

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
  bits = max(limit - 1, 0).bit_length()
  columns = width + 2 ** bits - 1
  padding = max(columns - scores.shape[-1], 0)
  scores = jnp.pad(scores, [(0, 0)] * (scores.ndim - 1) + [(0, padding)])[..., :columns]
  for bit in reversed(range(bits)):
    moved = (offsets >> bit & 1).astype(bool)[None, ..., None]
    step = 2 ** bit
    scores = jnp.where(moved, scores[..., step:], scores[..., :-step])
  return scores


def drop(
  x: Float[Array, '*S'], keep: Bool[Array, '*S'] | None, *, rate: float
) -> Float[Array, '*S']:
  """Dropout with an explicit mask: x / (1 - rate) where `keep`, else 0; no mask: x itself."""
  return x if keep is None else jnp.where(keep, x / (1.0 - rate), 0.0).astype(x.dtype)


def relative_attention(
  query: Float[Array, 'N B T H'],
  key: Float[Array, 'N B S H'],
  value: Float[Array, 'N B S H'],
  relative: Float[Array, 'N S H'],
  content_bias: Float[Array, 'N H'],
  position_bias: Float[Array, 'N H'],
  mask: Bool[Array, 'B T S'],
  keep: Bool[Array, 'N B T S'] | None = None,
  *,
  rate: float = 0.0,
  by_head: bool = False,
) -> Float[Array, 'N B T H']:
  """Attention of a segment over its memory and itself (Dai et al. 2019, section 3.3).

  Args:
    query: `[N, B, T, H]` projected segment.
    key: `[N, B, S, H]` projected memory and segment, in this order.
    value: `[N, B, S, H]` of the same positions.
    relative: `[N, S, H]` projected distances S - 1 down to 0.
    content_bias: `[N, H]`, u of the paper.
    position_bias: `[N, H]`, v of the paper.
    mask: `[B, T, S]`, true where a query may look; must be false for every key after the query
      (their relative term means nothing), and true somewhere for every query.
    keep: `[N, B, T, S]` attention weights that survive dropout; None: all.
    rate: dropout rate behind `keep`.
    by_head: one head at a time, recomputed in the backward pass. Less memory traffic for long
      segments on CPU; the same values.

  Returns:
    `[N, B, T, H]` in the dtype of `value`. Scores are softmaxed in float32 (float64 for float64).
  """
  if by_head:
    def one_head(xs):
      inner = [x if x is None else x[None] for x in xs]
      return relative_attention(*inner[:6], mask, inner[6], rate=rate)[0]

    heads = (query, key, value, relative, content_bias, position_bias, keep)
    return jax.lax.map(jax.checkpoint(one_head), heads)
  scale = query.shape[-1] ** -0.5
  with_content = (query + content_bias[:, None, None, :]) * scale
  with_position = (query + position_bias[:, None, None, :]) * scale
  scores = jnp.einsum('nbth,nbsh->nbts', with_content, key)
  scores += relative_shift(jnp.einsum('nbth,nsh->nbts', with_position, relative))
  weights = drop(_softmax(scores, mask[None]).astype(value.dtype), keep, rate=rate)
  return jnp.einsum('nbts,nbsh->nbth', weights, value)


def branch_attention(
  query: Float[Array, 'N B K P H'],
  key: Float[Array, 'N B S H'],
  value: Float[Array, 'N B S H'],
  own_key: Float[Array, 'N B K P H'],
  own_value: Float[Array, 'N B K P H'],
  relative: Float[Array, 'N R H'],
  content_bias: Float[Array, 'N H'],
  position_bias: Float[Array, 'N H'],
  start: Int[Array, 'B K'],
  mask: Bool[Array, 'B K S'],
  keep: Bool[Array, 'N B K P S'] | None = None,
  own_keep: Bool[Array, 'N B K P P'] | None = None,
  *,
  segment_len: int,
  rate: float = 0.0,
) -> Float[Array, 'N B K P H']:
  """Attention of branches: over the row before their start, and over their own pieces so far.

  Piece p of a branch that starts at s has position s + p, whatever stands there in the row.

  Args:
    query: `[N, B, K, P, H]` projected pieces.
    key: `[N, B, S, H]` of the row (memory and segment), as in `relative_attention`.
    value: `[N, B, S, H]` of the row.
    own_key: `[N, B, K, P, H]` projected pieces.
    own_value: `[N, B, K, P, H]` projected pieces.
    relative: `[N, R, H]` projected distances R - 1 down to 0, R = S + P.
    content_bias: `[N, H]`, u.
    position_bias: `[N, H]`, v.
    start: `[B, K]` int32 in [0, T), position in the segment of each branch's first piece.
    mask: `[B, K, S]`, true for the keys of the row that a branch sees; must be false for all keys
      at or after its start.
    keep: `[N, B, K, P, S]` weights on the row that survive dropout; None: all.
    own_keep: `[N, B, K, P, P]` weights on own pieces that survive dropout; None: all.
    segment_len: T.
    rate: dropout rate behind the masks.

  Returns:
    `[N, B, K, P, H]` in the dtype of `value`.
  """
  num_keys, num_pieces = key.shape[-2], query.shape[-2]
  scale = query.shape[-1] ** -0.5
  with_content = (query + content_bias[:, None, None, None, :]) * scale
  with_position = (query + position_bias[:, None, None, None, :]) * scale
  piece = np.arange(num_pieces)
  # Column c of `by_distance` is the distance R - 1 - c, and key j of the row is i + M - j away from
  # a query at position i: column j + (T + P - 1 - i).
  by_distance = jnp.einsum('nbkph,nrh->nbkpr', with_position, relative)
  offsets = (segment_len - 1 - start)[:, :, None] + (num_pieces - piece)[None, None, :]
  on_row = jnp.einsum('nbkph,nbsh->nbkps', with_content, key) + shift_by(
    by_distance, offsets, width=num_keys, limit=segment_len + num_pieces)
  back = np.maximum(piece[:, None] - piece[None, :], 0)
  own_relative = relative[:, relative.shape[1] - 1 - back]
  on_own = (jnp.einsum('nbkph,nbkqh->nbkpq', with_content, own_key)
            + jnp.einsum('nbkph,npqh->nbkpq', with_position, own_relative))
  row_mask = jnp.broadcast_to(mask[:, :, None, :], on_row.shape[1:])
  own_mask = jnp.broadcast_to(piece[:, None] >= piece[None, :], on_own.shape[1:])
  weights = _softmax(
    jnp.concatenate([on_row, on_own], axis=-1),
    jnp.concatenate([row_mask, own_mask], axis=-1)[None]).astype(value.dtype)
  row_weights = drop(weights[..., :num_keys], keep, rate=rate)
  own_weights = drop(weights[..., num_keys:], own_keep, rate=rate)
  return (jnp.einsum('nbkps,nbsh->nbkph', row_weights, value)
          + jnp.einsum('nbkpq,nbkqh->nbkph', own_weights, own_value))


def _softmax(scores: Array, mask: Array) -> Array:
  """Softmax over the last axis in float32 or wider; masked scores weigh exactly 0."""
  scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
  return jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)
