"""Attention of counterfactual branches over the row before them and over their own pieces.

Letters as in `attention`; Q = K P pieces of a row, in the order of their branches.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from fairjax.model.attention import attention_keep, drop, shift_by


def branch_attention(
  query: Float[Array, 'N B Q H'],
  key: Float[Array, 'N B S H'],
  value: Float[Array, 'N B S H'],
  own_key: Float[Array, 'N B Q H'],
  own_value: Float[Array, 'N B Q H'],
  relative: Float[Array, 'N S H'],
  further: Float[Array, 'N P H'],
  content_bias: Float[Array, 'N H'],
  position_bias: Float[Array, 'N H'],
  start: Int[Array, 'B K'],
  memory_length: Int[Array, 'B'],
  replaced: Int[Array, 'B K P'] | None = None,
  seed: UInt32[Array, '2'] | None = None,
  *,
  segment_len: int,
  rate: float = 0.0,
) -> Float[Array, 'N B Q H']:
  """Attention of branches: over the row before their start, and over their own pieces so far.

  Piece p of a branch that starts at s has position s + p, whatever stands there in the row.

  Args:
    query: `[N, B, Q, H]` projected pieces, those of the first branch first.
    key: `[N, B, S, H]` of the row (memory and segment), as in `relative_attention`.
    value: `[N, B, S, H]` of the row.
    own_key: `[N, B, Q, H]` projected pieces.
    own_value: `[N, B, Q, H]` projected pieces.
    relative: `[N, S, H]` projected distances S - 1 down to 0, as the segment has them: so they are
      kept once for the backward pass.
    further: `[N, P, H]` those before them, R - 1 down to S, R = S + P.
    content_bias: `[N, H]`, u.
    position_bias: `[N, H]`, v.
    start: `[B, K]` int32 in [0, T), position in the segment of each branch's first piece.
    memory_length: `[B]` int32 in [0, M], the newest slots of the memory that are valid.
    replaced: `[B, K, P]` int32 in [0, T), the position whose dropout each piece takes over.
    seed: `[2]` of `attention_keep`, the segment's; None: no dropout.
    segment_len: T.
    rate: dropout rate behind `seed`.

  Returns:
    `[N, B, Q, H]` in the dtype of `value`.
  """
  num_heads, _, size, width = query.shape
  num_keys, num_pieces = key.shape[2], size // start.shape[1]
  piece, branch = np.arange(size) % num_pieces, np.arange(size) // num_pieces
  first = jnp.repeat(start, num_pieces, axis=1)
  with_content, with_position = (
    (query + bias[:, None, None, :]) * width ** -0.5 for bias in (content_bias, position_bias))
  # Column c is the distance R - 1 - c, and key j of the row is i + M - j away from a query at
  # position i: column j + (T + P - 1 - i).
  by_distance = jnp.concatenate(
    [jnp.einsum('nbqh,nrh->nbqr', with_position, part) for part in (further, relative)], axis=-1)
  to_row = shift_by(
    by_distance, segment_len - 1 - first + (num_pieces - piece)[None], width=num_keys,
    limit=segment_len + num_pieces)
  to_row += jnp.einsum('nbqh,nbsh->nbqs', with_content, key)
  back = piece[:, None] - piece[None, :]
  chosen = back[:, :, None] == num_pieces - 1 - np.arange(num_pieces)
  to_own = jnp.einsum(
    'nbqr,qxr->nbqx', by_distance[..., -num_pieces:], jnp.asarray(chosen, by_distance.dtype),
    precision=jax.lax.Precision.HIGHEST)
  to_own += jnp.einsum('nbqh,nbxh->nbqx', with_content, own_key)
  column = np.arange(num_keys)[None, None, :] - (num_keys - segment_len)
  sees_row = (column >= -memory_length[:, None, None]) & (column < first[:, :, None])
  sees_own = (branch[:, None] == branch[None, :]) & (back >= 0)
  row_weights, own_weights = (
    weights.astype(value.dtype) for weights in _joint_softmax(
      (to_row, sees_row[None]), (to_own, jnp.asarray(sees_own)[None, None])))
  if seed is not None and replaced is not None:
    places = replaced.reshape(replaced.shape[0], size)
    row_weights = drop(row_weights, attention_keep(
      seed, places, num_heads=num_heads, num_columns=num_keys, rate=rate), rate=rate)
    own_weights = drop(own_weights, attention_keep(
      seed, places, num_heads=num_heads, columns=num_keys - segment_len + places[:, None, :],
      rate=rate), rate=rate)
  return (jnp.einsum('nbqs,nbsh->nbqh', row_weights, value)
          + jnp.einsum('nbqx,nbxh->nbqh', own_weights, own_value))


def _joint_softmax(*parts):
  """Softmax over the last axes of all (scores, mask) together, in float32 or wider."""
  wide = jnp.promote_types(parts[0][0].dtype, jnp.float32)
  lowest = jnp.finfo(wide).min
  scores = [jnp.where(mask, part.astype(wide), lowest) for part, mask in parts]
  highest = jax.lax.stop_gradient(
    jnp.stack([part.max(-1, keepdims=True) for part in scores]).max(0))
  weights = [jnp.exp(part - highest) for part in scores]
  total = sum(part.sum(-1, keepdims=True) for part in weights)
  return [part / total for part in weights]
