r"""Relative attention of Transformer-XL, for a segment and for its counterfactual branches.

Dai et al. 2019 (arXiv:1901.02860), section 3.3: the score of a query at position i and a key at
position j is

.. math:: \bigl((q_i + u)^\top k_j + (q_i + v)^\top r_{i-j}\bigr) / \sqrt{H},

with :math:`r_d = W_r R_d` and R_d a sinusoid of the distance d. Pure functions without flax.

Heads stand in front of rows (`[N, B, ...]`): the relative term shares its keys among rows, so that
it is one matmul per head without a transpose of scores. Distances always run downwards along an
array: column c of C is the distance C - 1 - c.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

# Threefry-2x32 (Salmon et al. 2011), as `jax.random` uses it. It is written out here because one
# fused elementwise loop is several times faster than `jax.random` on CPU and splits over devices
# like any other function, and because no setting or version of JAX can then change a result.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[Any, Any]:
  """Encrypts two uint32 arrays with two uint32 keys in 20 rounds."""
  keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
  a, b = counter[0] + keys[0], counter[1] + keys[1]
  for i in range(5):
    for rotation in _ROTATIONS[i % 2]:
      a = a + b
      b = a ^ (b << np.uint32(rotation) | b >> np.uint32(32 - rotation))
    a = a + keys[(i + 1) % 3]
    # The scalars are added first: one by one, XLA on CPU takes far more temporary memory.
    b = b + (keys[(i + 2) % 3] + np.uint32(i + 1))
  return a, b


def sinusoids(*, num_distances: int, model_dim: int, clamp_len: int = -1) -> np.ndarray:
  """Embeds the distances `num_distances - 1` down to 0 `[., D]` (Dai et al. 2019, section 3.3).

  >>> sinusoids(num_distances=2, model_dim=2).round(3).tolist()
  [[0.841, 0.54], [0.0, 1.0]]
  """
  # Rounded to float32, as the published checkpoints were trained.
  exponents = np.arange(0, model_dim, 2) / model_dim
  frequencies = np.float32(1) / np.power(10000.0, exponents).astype(np.float32)
  distances = np.arange(num_distances - 1, -1, -1, dtype=np.float64)
  if clamp_len >= 0:
    distances = np.minimum(distances, clamp_len)
  angles = distances[:, None] * frequencies[None, :].astype(np.float64)
  return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def relative_shift(scores: Float[Array, '*A T S']) -> Float[Array, '*A T S']:
  """Moves a score from the column of its distance to the column of its key.

  Column c of the input is the distance S - 1 - c of query t; column j of the result is key j.
  Keys after the query (j > S - T + t) get arbitrary values, which must be masked.

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
  """Cuts the columns `offset .. offset + width - 1` (offset < limit) out of every query's scores.

  >>> shift_by(jnp.arange(4.0).reshape(1, 1, 4), jnp.array([1]), width=2, limit=2).tolist()
  [[[1.0, 2.0]]]
  """
  # On TPUs a chain of log2(limit) selections between an array and itself moved by a power of two,
  # elsewhere a gather of slices. The gradient is another such cut, so there is no scatter.
  columns = width + limit - 1
  missing = max(columns - scores.shape[-1], 0)  # read as 0
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
  seed: UInt32[Array, '2'] | None,  # of the layer
  positions: Int[Array, 'B *Q'],  # in the segment
  *, num_heads: int, rate: float,
  num_columns: int = 0,  # draws columns 0 .. num_columns - 1, or
  columns: Int[Array, 'B *A'] | None = None,  # these, which broadcast against positions[..., None]
  first_head: Any = 0,
) -> Bool[Array, '...'] | None:  # [N, B, ..., X]
  """Draws attention dropout: each weight is kept with probability 1 - rate; None without a seed."""
  # Whether a weight is kept is a hash of the seed, head, row, query position and key column only.
  # So every path drops the same weights without storing them, and a branch piece drops those of
  # the position that it replaces. All of these numbers are below 65536.
  if seed is None:
    return None
  if columns is None:
    columns = jnp.arange(num_columns, dtype=jnp.uint32)[(None,) * positions.ndim]
  heads = first_head + np.arange(num_heads)
  rows = np.arange(positions.shape[0])
  by_row = heads.astype(np.uint32)[:, None] * np.uint32(2 ** 16) + rows.astype(np.uint32)[None]
  by_row = jnp.asarray(by_row).reshape(*by_row.shape, *(1,) * positions.ndim)
  by_place = positions.astype(jnp.uint32)[..., None] * np.uint32(2 ** 16)
  shape = jnp.broadcast_shapes(by_place.shape, columns.shape)
  by_place = jnp.broadcast_to(by_place, shape) + jnp.broadcast_to(columns, shape).astype(jnp.uint32)
  shape = (num_heads, *shape)
  bits, _ = threefry(
    (seed[0], seed[1]), (jnp.broadcast_to(by_row, shape), jnp.broadcast_to(by_place[None], shape)))
  return bits < np.uint32(min(round((1.0 - rate) * 2 ** 32), 2 ** 32 - 1))


def visible(
  memory_length: Int[Array, 'B'], positions: Int[np.ndarray, 'T'] | Int[Array, 'T'], *,
  memory_len: int, num_keys: int,
) -> Bool[Array, 'B T S']:
  """Masks for queries: the valid slots of the memory, and the segment up to the query itself.

  >>> visible(jnp.array([1]), np.arange(2), memory_len=2, num_keys=4).astype(int).tolist()
  [[[0, 1, 1, 0], [0, 1, 1, 1]]]
  """
  slots = np.arange(num_keys, dtype=np.int32)
  valid = memory_len - memory_length[:, None] <= slots[None]
  return valid[:, None, :] & (slots[None, :] - memory_len <= positions[:, None])[None]


def relative_attention(
  query: Float[Array, 'N B T H'],
  key: Float[Array, 'N B S H'],
  value: Float[Array, 'N B S H'],
  relative: Float[Array, 'N S H'],  # projected distances S - 1 down to 0
  content_bias: Float[Array, 'N H'],  # u of the paper
  position_bias: Float[Array, 'N H'],  # v of the paper
  memory_length: Int[Array, 'B'],  # newest slots of the memory that are valid, in [0, M]
  seed: UInt32[Array, '2'] | None = None,  # of `attention_keep`; None: no dropout
  *,
  rate: float = 0.0,
) -> Float[Array, 'N B T H']:
  """Attention of a segment over its memory and itself: the reference for all other paths."""
  num_heads, num_rows, num_queries, _ = query.shape
  positions = np.arange(num_queries, dtype=np.int32)
  mask = visible(
    memory_length, positions, memory_len=key.shape[2] - num_queries, num_keys=key.shape[2])
  keep = attention_keep(
    seed, jnp.broadcast_to(positions[None], (num_rows, num_queries)), num_heads=num_heads,
    num_columns=key.shape[2], rate=rate)
  # The checkpoint keeps the query for the backward pass instead of its sums with both biases.
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


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def attend(
  scores: Float[Array, 'N B T S'], value: Float[Array, 'N B S H'], mask: Bool[Array, '1 B T S'],
  keep: Bool[Array, 'N B T S'] | None, rate: float,
) -> Float[Array, 'N B T H']:
  """Averages values by the softmax of scores; the backward pass keeps only the weights."""
  return _attend_forward(scores, value, mask, keep, rate)[0]


def _attend_forward(scores, value, mask, keep, rate):
  weights = _softmax(scores, mask)
  kept = drop(weights.astype(value.dtype), keep, rate=rate)
  out = jnp.einsum('nbts,nbsh->nbth', kept, value)
  return out, (weights, value, keep, out)


def _attend_backward(rate, saved, gradient):
  """Gradients of scores and values."""
  weights, value, keep, out = saved
  sum_dtype = weights.dtype
  kept = drop(weights.astype(value.dtype), keep, rate=rate)
  d_value = jnp.einsum('nbts,nbth->nbsh', kept, gradient)
  d_weights = jnp.einsum('nbth,nbsh->nbts', gradient, value).astype(sum_dtype)
  # A product of matrices: in a sum of products one side of which vmap broadcasts (as jax.jacrev
  # does), jaxlib 0.10.2 makes wrong numbers on CPU (docs/performance.md).
  mean = jnp.einsum('nbth,nbth->nbt', out.astype(sum_dtype), gradient.astype(sum_dtype))[..., None]
  d_scores = weights * (drop(d_weights, keep, rate=rate) - mean)
  return d_scores.astype(value.dtype), d_value, None, None


attend.defvjp(_attend_forward, _attend_backward)


def _softmax(scores: Array, mask: Array) -> Array:
  """Softmax over the last axis in float32 or wider; masked scores weigh exactly 0."""
  scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
  return jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)


# Counterfactual branches. Q = K P pieces of a row, in the order of their branches. Piece p of a
# branch that starts at s has position s + p, whatever the row holds there.

def branch_attention(
  query: Float[Array, 'N B Q H'],
  key: Float[Array, 'N B S H'],
  value: Float[Array, 'N B S H'],
  own_key: Float[Array, 'N B Q H'],
  own_value: Float[Array, 'N B Q H'],
  relative: Float[Array, 'N S H'],  # the segment's: kept once for both in the backward pass
  relative_tail: Float[Array, 'N P H'],  # the distances before them, R - 1 down to S, R = S + P
  content_bias: Float[Array, 'N H'],
  position_bias: Float[Array, 'N H'],
  start: Int[Array, 'B K'],  # position of each branch's first piece
  memory_length: Int[Array, 'B'],
  replaced: Int[Array, 'B K P'] | None = None,  # the position whose dropout each piece uses
  seed: UInt32[Array, '2'] | None = None,  # the segment's
  *,
  segment_len: int,
  rate: float = 0.0,
) -> Float[Array, 'N B Q H']:
  """Attention of branches: over the row before their start, and over their own pieces so far."""
  num_heads, _, size, width = query.shape
  num_keys, num_pieces = key.shape[2], size // start.shape[1]
  piece, branch = np.arange(size) % num_pieces, np.arange(size) // num_pieces
  first = jnp.repeat(start, num_pieces, axis=1)
  with_content, with_position = (
    (query + bias[:, None, None, :]) * width ** -0.5 for bias in (content_bias, position_bias))
  # Column c is the distance R - 1 - c, and key j of the row is i + M - j away from a query at
  # position i: column j + (T + P - 1 - i).
  by_distance = jnp.concatenate(
    [jnp.einsum('nbqh,nrh->nbqr', with_position, part) for part in (relative_tail, relative)],
    axis=-1)
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
  sum_dtype = jnp.promote_types(parts[0][0].dtype, jnp.float32)
  lowest = jnp.finfo(sum_dtype).min
  scores = [jnp.where(mask, part.astype(sum_dtype), lowest) for part, mask in parts]
  highest = jax.lax.stop_gradient(
    jnp.stack([part.max(-1, keepdims=True) for part in scores]).max(0))
  weights = [jnp.exp(part - highest) for part in scores]
  total = sum(part.sum(-1, keepdims=True) for part in weights)
  return [part / total for part in weights]


# Attention in blocks of C queries, for accelerators without the fused kernel and for attention
# dropout on them: temporary memory is that of [N, B, C, S] scores instead of [N, B, T, S]. The
# values are those of `relative_attention`; only the order of the sums differs. W: keys that a group
# of blocks sees.

_GROUPS = 4  # of blocks, each one scan that stops at the group's last key; also the fewest blocks


def rel_shift_block(scores: Float[Array, '*A C X'], *, width: int) -> Float[Array, '*A C W']:
  """Cuts columns C - 1 - t .. C - 2 - t + width out of row t: the relative shift of one block.

  >>> rel_shift_block(jnp.array([[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]), width=2).tolist()
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
  """`relative_attention`, one block of queries at a time, recomputed in the backward pass."""
  # Without this checkpoint every group's slices of keys and values would be kept.
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
  # Queries are padded at the end. The table gets rows for their distances at its beginning, and
  # rows for keys after the query (negative distances) at its end. Neither reaches a result.
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
    scores += rel_shift_block(jnp.einsum('nbth,nsh->nbts', with_position, near), width=width)
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


# Attention of one head and one block of C queries at a time, whose scores stay in a CPU's caches;
# they see W keys. The values are those of `relative_attention`. The backward pass computes the
# weights again from the logarithm of their sum; the mean of their gradients under the weights is
# the product of the output and its gradient (Dao et al. 2022, arXiv:2205.14135, appendix B.2).
# Blocks are unrolled, so compiling takes as many times longer.

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
  """`relative_attention` by head and block of queries; differentiable once."""
  heads = (query, key, value, relative, content_bias, position_bias)
  return _forward(*heads, memory_length, seed, rate, block)[0]


def _forward(*arguments):
  """The output, and what the backward pass needs."""
  *heads, memory_length, seed, rate, block = arguments

  def one_head(xs):
    head, query, key, value, *rest = xs
    outputs, log_totals = [], []
    for begin, end in _blocks(query.shape[1], block):
      scores, mask, keep, *_ = _head_scores(
        head, (query, key, *rest), memory_length, seed, rate, begin, end)
      scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
      top = scores.max(axis=-1, keepdims=True)
      weights = jnp.exp(scores - top)
      total = weights.sum(axis=-1, keepdims=True)
      context = jnp.einsum(
        'bts,bsh->bth', drop(weights.astype(value.dtype), keep, rate=rate),
        value[:, :scores.shape[-1]])
      outputs.append((context / total).astype(value.dtype))
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
    sum_dtype = log_total.dtype
    # Mean of a row's weight gradients under its weights.
    mean = (out.astype(sum_dtype) * gradient.astype(sum_dtype)).sum(axis=-1, keepdims=True)
    d_query, d_biases = [], []
    # Gradients are transposed, so that the products take the large [C, W] without a copy.
    d_key, d_value = (jnp.zeros((len(x), head_dim, x.shape[1]), sum_dtype) for x in (key, value))
    d_relative = jnp.zeros((head_dim, key.shape[1] + 1), sum_dtype)
    for begin, end in _blocks(query.shape[1], block):
      scores, mask, keep, with_content, with_position, table = _head_scores(
        head, (query, key, *rest), memory_length, seed, rate, begin, end)
      width = scores.shape[-1]
      weights = jnp.where(mask, jnp.exp(scores - log_total[:, begin:end]), 0)
      d_out = gradient[:, begin:end]
      d_weights = jnp.einsum('bth,bsh->bts', d_out, value[:, :width]).astype(sum_dtype)
      d_scores = weights * (drop(d_weights, keep, rate=rate) - mean[:, begin:end])
      d_scores = d_scores.astype(query.dtype)
      kept = drop(weights.astype(value.dtype), keep, rate=rate)
      d_shifted = _shift_back(d_scores)
      d_content = jnp.einsum('bts,bsh->bth', d_scores, key[:, :width]) * scale
      d_position = jnp.einsum('bts,sh->bth', d_shifted, table) * scale
      d_query.append(d_content + d_position)
      d_biases.append(tuple(d.astype(sum_dtype).sum((0, 1)) for d in (d_content, d_position)))
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
  """`relative_shift` of [B, C, W + 1], whose column 0 is never read, as a slice of flat rows."""
  # Padding a column, as `relative_shift` does, costs a comparison and a division for each score.
  num_rows, num_queries, columns = scores.shape
  flat = scores.reshape(num_rows, num_queries * columns)[:, num_queries:]
  return flat.reshape(num_rows, num_queries, columns - 1)


def _shift_back(gradient):
  """Transpose of `_shift`: [B, C, W + 1] of [B, C, W], C <= W."""
  num_rows, num_queries, columns = gradient.shape
  # 0 * gradient instead of zeros: XLA turns a concatenation with constant zeros into a padding,
  # which costs a division and a comparison for each score.
  unread = 0 * gradient[:, 0, :num_queries]
  flat = jnp.concatenate([unread, gradient.reshape(num_rows, -1)], axis=1)
  return flat.reshape(num_rows, num_queries, columns + 1)


def _head_scores(head, arrays, memory_length, seed, rate, begin, end):
  """Scores [B, C, W] of queries begin .. end - 1 of one head, and what the gradients need."""
  query, key, relative, content_bias, position_bias = arrays
  num_rows, num_queries, head_dim = query.shape
  width = key.shape[1] - num_queries + end
  queries, scale = query[:, begin:end], head_dim ** -0.5
  # One distance more than the block needs, for the column that `_shift` drops.
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
