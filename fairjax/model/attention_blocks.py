"""Relative attention in blocks of queries, so that the scores of a segment never exist whole.

For accelerators without the fused kernel and for attention dropout on them. The values are those
of `attention.relative_attention`; only the order of the sums differs. Letters as in `attention`,
C queries in a block, W keys that a group of blocks sees.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from fairjax.model.attention import attend, attention_keep, visible

_GROUPS = 4  # of blocks, each scanned; keys after a group are not computed. Also the fewest blocks


def skew(scores: Float[Array, '*A C X'], *, width: int) -> Float[Array, '*A C W']:
  """Cuts columns C - 1 - t .. C - 2 - t + width out of row t.

  The relative shift of a block: column c of the input is a distance, column j of the result a key.

  Args:
    scores: `[..., C, X]` float, X >= width + C.
    width: W, columns to return.

  Returns:
    `[..., C, width]`, the dtype of `scores`.

  >>> skew(jnp.array([[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]), width=2).tolist()
  [[1.0, 2.0], [4.0, 5.0]]
  """
  *lead, rows, columns = scores.shape
  flat = scores.reshape(*lead, rows * columns)[..., rows - 1:]
  return flat[..., :rows * (columns - 1)].reshape(*lead, rows, columns - 1)[..., :width]


def attention_in_blocks(
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
  block: int = 512,
) -> Float[Array, 'N B T H']:
  """`relative_attention`, one block of queries at a time, recomputed in the backward pass.

  Blocks are scanned in at most four groups. A group sees the keys up to its own end: those after
  it cost nothing. Temporary memory is that of `[N, B, C, S]` scores instead of `[N, B, T, S]`,
  C at most a quarter of T.

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
    block: most queries in a block; it has at most a quarter of T in any case, and T need not be a
      multiple of it.

  Returns:
    `[N, B, T, H]` in the dtype of `value`.
  """
  # Kept as they came: the groups' slices of keys and values would be kept one by one.
  return jax.checkpoint(functools.partial(_attention, rate=rate, block=block), prevent_cse=False)(
    query, key, value, relative, content_bias, position_bias, memory_length, seed)


def _attention(
  query, key, value, relative, content_bias, position_bias, memory_length, seed, *, rate, block
):
  """All groups."""
  num_queries, num_keys = query.shape[2], key.shape[2]
  block = min(block, -(-num_queries // _GROUPS))
  num_blocks = -(-num_queries // block)
  per_group = -(-num_blocks // _GROUPS)
  excess = num_blocks * block - num_queries
  scale = query.shape[-1] ** -0.5
  # Padded queries sit at the end; in front of the table are their distances, which are too large,
  # behind it those of keys after the query, which are negative. Nobody reads either.
  padded = jnp.pad(query, ((0, 0), (0, 0), (0, excess), (0, 0)))
  table = jnp.pad(relative, ((0, 0), (excess, per_group * block), (0, 0)))

  @functools.partial(jax.checkpoint, prevent_cse=False)
  def one_block(first, block_query, seen_key, seen_value, table, biases, memory_length, seed):
    width = seen_key.shape[2]
    row = num_blocks * block - block - first
    near = jax.lax.dynamic_slice_in_dim(table, row, width + block, axis=1)
    with_content = (block_query + biases[0][:, None, None, :]) * scale
    with_position = (block_query + biases[1][:, None, None, :]) * scale
    scores = jnp.einsum('nbth,nbsh->nbts', with_content, seen_key)
    scores += skew(jnp.einsum('nbth,nsh->nbts', with_position, near), width=width)
    positions = first + np.arange(block, dtype=np.int32)
    keep = attention_keep(
      seed, jnp.broadcast_to(positions[None], (query.shape[1], block)),
      num_heads=query.shape[0], num_columns=width, rate=rate)
    mask = visible(memory_length, positions, memory_len=num_keys - num_queries, num_keys=width)
    return attend(scores, seen_value, mask[None], keep, rate=rate)

  outputs = []
  for begin in range(0, num_blocks, per_group):
    size = min(per_group, num_blocks - begin)
    end = (begin + size) * block
    width = min(num_keys - num_queries + end, num_keys)
    blocks = padded[:, :, begin * block:end]
    blocks = jnp.moveaxis(blocks.reshape(*blocks.shape[:2], size, block, -1), 2, 0)
    firsts = jnp.arange(begin * block, end, block, dtype=jnp.int32)
    shared = (key[:, :, :width], value[:, :, :width], table, (content_bias, position_bias),
              memory_length, seed)
    _, attended = jax.lax.scan(
      lambda _, xs, shared=shared: (None, one_block(*xs, *shared)), None, (firsts, blocks))
    attended = jnp.moveaxis(attended, 0, 2)
    outputs.append(attended.reshape(*attended.shape[:2], size * block, -1))
  return jnp.concatenate(outputs, axis=2)[:, :, :num_queries]
