"""Relative attention of Transformer-XL in one TPU kernel, forward and backward.

Scores exist as tiles in the core's memory only (online softmax and recomputation as in Dao et al.
2022, arXiv:2205.14135), with the exact relative term of Dai et al. 2019. Temporary memory is O(T).

The scores of a segment are cut into tiles of C queries by C keys. The distances within a tile are
2C - 1 consecutive ones, in two consecutive blocks of C rows of the relative keys, the same two for
all tiles on a diagonal. `(q + v)` times these rows is a `[C, 2C]` array, whose row t must move by
C - 1 - t columns to put every distance below its key: `rel_shift`, a strided rotation of lanes.
Its transpose is `rel_unshift`.

The file has four parts: tiles, rows of branches, the backward pass, the forward pass.

Own letters: C queries and keys in a tile, Q rows of branches (padded), X rows of the table of
relative keys, J blocks of keys.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

MASKED = -1e30  # a score whose weight is 0; it is finite, so that differences are numbers
_LANES = 128
_SUBLANES = 16  # rows of a register of bfloat16
_DEFAULT_GATHERED = 6 * 2 ** 20  # fits into the compiler's default limit beside the tiles
_FOR_TILES = 24 * 2 ** 20  # what tiles and the compiler take beside what is gathered


@dataclasses.dataclass(frozen=True)
class Tiling:
  """Sizes of one call, and the numbering of blocks."""

  num_heads: int
  num_rows: int
  segment_len: int
  memory_len: int
  width: int  # H
  block: int  # C
  dtype: str
  barrel_shift: bool  # rotate by powers of two: a v4 lacks the strided rotation
  interpret: bool
  num_branches: int = 0  # K
  num_pieces: int = 0  # P

  @property
  def query_blocks(self) -> int:
    """Blocks of queries, the last one padded."""
    return pl.cdiv(self.segment_len, self.block)

  @property
  def memory_blocks(self) -> int:
    """Blocks of the memory; query block i sees key blocks up to `memory_blocks + i`."""
    return pl.cdiv(self.memory_len, self.block)

  @property
  def key_blocks(self) -> int:
    """Blocks of keys, and of relative keys."""
    return self.memory_blocks + self.query_blocks

  @property
  def branch_rows(self) -> int:
    """Rows for the pieces of all branches: K P, padded to a block of their own."""
    pieces = self.num_branches * self.num_pieces
    rows = min(_SUBLANES, self.block)
    while rows < pieces:
      rows *= 2
    return rows if pieces else 0

  @property
  def distances(self) -> int:
    """Rows of the table of relative keys, padded, with room for the distances of branches."""
    lanes = min(self.block, _LANES)
    return self.key_blocks * self.block + pl.cdiv(self.num_pieces, lanes) * lanes

  @property
  def scale(self) -> float:
    """Factor of all scores."""
    return self.width ** -0.5

  @property
  def gathered_bytes(self) -> int:
    """Core memory for the gradients that the backward pass gathers; rows fill whole registers."""
    rows = (self.query_blocks + self.key_blocks + 3) * self.block
    return 4 * rows * pl.cdiv(self.width, _LANES) * _LANES

  @property
  def branch_bytes(self) -> int:
    """Core memory for branches in the backward pass, an upper bound for the forward pass."""
    # The whole table and its gradient, each twice, and parts of them in products; scores by
    # distance in three arrays that stay and some eight temporary ones.
    if not self.num_branches:
      return 0
    table = 8 * jnp.dtype(self.dtype).itemsize * pl.cdiv(self.width, _LANES) * _LANES
    return self.distances * (table + 12 * 4 * self.branch_rows)

  @property
  def reversed_rows(self) -> int:
    """Rows that `rel_unshift` reverses at a time."""
    return min(self.block, _LANES)

  def memory_limit(self, gathered: int) -> int | None:
    """Core memory to request beside the tiles; None: the compiler's default, all that a v4 has."""
    beyond = gathered > _DEFAULT_GATHERED and not self.barrel_shift
    return gathered + _FOR_TILES if beyond else None

  def first_key_block(self, memory_length: Array) -> Array:
    """First block with a valid key."""
    return (self.memory_len - memory_length) // self.block

  def distance_block(self, query_block: Array, key_block: Array) -> Array:
    """First of the two blocks of relative keys of a tile."""
    return self.query_blocks - 1 - query_block + key_block

  def cost(
    self, *, products: int,  # of C x C x H in every visible tile
    of_branches: int,  # products of each row of branches with all keys, or all distances
    once: tuple,  # arrays that are copied once
    unshifted: int = 0,  # calls of `rel_unshift` in every visible tile
  ) -> pl.CostEstimate:
    """Operations, exponentials and bytes of a call."""
    # Each tile copies four blocks [C, H], each head its table if there are branches.
    visible = sum(self.memory_blocks + i + 1 for i in range(self.query_blocks))
    tiles, block_size = self.num_heads * self.num_rows * visible, self.block * self.width
    itemsize = jnp.dtype(self.dtype).itemsize
    copied = 4 * tiles * block_size * itemsize
    # Each row of a group is reversed by a product with [C], and again with [2C], columns.
    reversal = 0 if self.barrel_shift else 3 * unshifted * self.reversed_rows * self.block ** 2
    scores = self.num_heads * self.num_rows * self.branch_rows * self.distances
    if self.num_branches:
      copied += self.num_heads * self.distances * self.width * itemsize
    return pl.CostEstimate(
      flops=2 * (tiles * (products * self.block * block_size + reversal)
                 + of_branches * scores * self.width),
      transcendentals=tiles * self.block ** 2 + scores,
      bytes_accessed=copied + sum(a.size * jnp.dtype(a.dtype).itemsize for a in once))


def split_refs(refs: Sequence[Any], *sizes: int) -> list[Sequence[Any]]:
  """Splits the references of a kernel into consecutive groups of these sizes."""
  left = iter(refs)
  return [list(itertools.islice(left, size)) for size in sizes]


def dot(tiling: Tiling, a: Array, b: Array, dimensions: str) -> Array:
  """`jnp.einsum` of two matrices in float32; exact products for float32 inputs."""
  precision = jax.lax.Precision.HIGHEST if tiling.dtype == 'float32' else None
  left, right = dimensions.split(',')
  contracting = ((left.index('x'),), (right.index('x'),))
  return jax.lax.dot_general(
    a, b, (contracting, ((), ())), precision=precision, preferred_element_type=jnp.float32)


def rel_shift(tiling: Tiling, x: Float[Array, 'C X']) -> Float[Array, 'C C']:
  """Cuts columns C - 1 - t to 2C - 2 - t out of row t."""
  block = tiling.block
  if tiling.barrel_shift:
    rotated = rotate_rows(x, jax.lax.broadcasted_iota(jnp.int32, x.shape, 0) + (block + 1))
  else:
    rotated = pltpu.roll(x, block + 1, 1, stride=1, stride_axis=0)
  return rotated[:, :block]


def rel_unshift(tiling: Tiling, x: Float[Array, 'C C']) -> Float[Array, 'C X']:
  """Transposes `rel_shift`: row t starts at column C - 1 - t, with zeros around it."""
  # The rotation's stride cannot be negative, so rows are reversed before and after it, in groups,
  # by products with a reversed identity. They are exact, since `x` is rounded to the compute dtype.
  block = tiling.block
  x = x.astype(jnp.dtype(tiling.dtype))
  if tiling.barrel_shift:
    padded = jnp.concatenate([x, jnp.zeros_like(x)], axis=1).astype(jnp.float32)
    start = block - 1 - jax.lax.broadcasted_iota(jnp.int32, padded.shape, 0)
    return rotate_rows(padded, start).astype(x.dtype)
  size = tiling.reversed_rows
  rows, columns = (jax.lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in (0, 1))
  reverse = (rows + columns == size - 1).astype(jnp.float32).astype(x.dtype)
  groups = []
  for begin in range(0, block, size):
    group = dot(tiling, reverse, x[begin:begin + size], 'ax,xb')
    group = jnp.concatenate([group, jnp.zeros_like(group)], axis=1)
    group = pltpu.roll(group, block - begin - size, 1, stride=1, stride_axis=0)
    groups.append(dot(tiling, reverse, group.astype(x.dtype), 'ax,xb').astype(x.dtype))
  return jnp.concatenate(groups, axis=0)


def rotate_rows(x: Float[Array, 'C X'], shifts: Array) -> Float[Array, 'C X']:
  """Rotates row t of `x` to the right by `shifts[t]` in [0, X), as a chain of powers of two."""
  step = 1
  while step < x.shape[1]:
    x = jnp.where((shifts & step) == step, pltpu.roll(x, step, 1), x)
    step *= 2
  return x


def to_row(column: Float[Array, 'C 1']) -> Float[Array, '1 C']:
  """Transposes a column of numbers with an operation that the hardware has."""
  return jnp.broadcast_to(column, (column.shape[0], _LANES)).T[:1]


def to_column(row: Float[Array, '1 C']) -> Float[Array, 'C 1']:
  """Transposes a row of numbers."""
  return jnp.broadcast_to(row, (_LANES, row.shape[1])).T[:, :1]


def both_queries(
  tiling: Tiling, query: Float[Array, 'C H'], biases: tuple[Array, Array]
) -> tuple[Float[Array, 'C H'], Float[Array, 'C H']]:
  """Queries plus u and plus v, scaled, in the compute dtype."""
  query_f32 = query.astype(jnp.float32)
  with_content, with_position = (
    ((query_f32 + bias.astype(jnp.float32)) * tiling.scale).astype(query.dtype) for bias in biases)
  return with_content, with_position


def tile_scores(
  tiling: Tiling, query: Array, key: Array, relative: Array, biases: tuple[Array, Array],
  memory_length: Array, place: tuple[Array, Array],
) -> tuple[Array, Array, Array]:
  """Masked scores [C, C] of a tile in float32, and (q + u) and (q + v), [C, H] each, scaled."""
  with_content, with_position = both_queries(tiling, query, biases)
  scores = dot(tiling, with_content, key, 'ax,bx')
  scores += rel_shift(tiling, dot(tiling, with_position, relative, 'ax,bx'))
  rows, columns = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1))
  position = place[0] * tiling.block + rows
  slot = place[1] * tiling.block + columns - tiling.memory_len
  mask = (slot <= position) & (slot >= -memory_length)
  return jnp.where(mask, scores, MASKED), with_content, with_position


def average_further(
  tiling: Tiling, scores: Array, key_value: Any, highest: Any, total: Any, average: Any
) -> None:
  """Adds a block of keys to averages of values: the highest score, sum and average so far."""
  before = highest[...]
  now = jnp.maximum(before, scores.max(axis=1, keepdims=True))
  # A row without a visible key so far sums ones; its first visible key multiplies the sum by 0.
  weights, correction = jnp.exp(scores - now), jnp.exp(before - now)
  highest[...] = now
  total[...] = total[...] * correction + weights.sum(axis=1, keepdims=True)
  average[...] = average[...] * correction + dot(
    tiling, weights.astype(key_value.dtype), key_value[1, 0, 0], 'ax,xb')


# Rows of branches. The pieces of a row's branches are a block of queries after the segment's, and a
# block of keys after the row's (`branch_attention` defines what they see). They are computed with
# the last block of queries, which meets every key, so that keys and values are read once for both
# and their gradients are summed in place. Scores by distance are made of the whole table at once
# and moved below their keys by a rotation of each row, in the core's memory.
#
# Row c of the table holds the distance M + queries - 1 - c, cyclically, where the queries of a
# segment are padded to whole blocks: a row at some position finds key slot s in column
# s + queries - 1 - position.

class Rows(NamedTuple):
  """Inputs of the kernels for the branches."""

  query: Any  # [1, 1, Q, H]
  own: Any  # [2, 1, 1, Q, H], their keys and values
  table: Any  # [1, X, H], the head's relative keys
  places: Any  # [2, 1, Q, 1] int32, each piece's position and its branch's start
  back: Any  # [Q, Q] int32, how many pieces a piece of the same branch is back; -1: not seen


class Kept(NamedTuple):
  """Further inputs of the backward pass."""

  out_gradient: Any  # [1, 1, Q, H]
  sums: Any  # [2, 1, 1, Q, 1] float32: log of the denominator, output times gradient


class Average(NamedTuple):
  """Core memory of the forward pass."""

  scores: Any  # [J, Q, C] float32, relative terms below their keys
  highest: Any  # [Q, 1]
  total: Any  # [Q, 1]
  average: Any  # [Q, H]


class Sums(NamedTuple):
  """Core memory of the backward pass."""

  scores: Any  # [J, Q, C] float32, relative terms below their keys
  of_scores: Any  # [J, Q, C]
  by_distance: Any  # [Q, X], gradients of scores by distance
  query: Any  # [Q, H]


def rows_of(tiling: Tiling, start: Int[Array, 'B K']) -> tuple[Array, np.ndarray]:
  """`Rows.places` [2, B, Q, 1] and `Rows.back`; padding sees the memory and padding."""
  pieces, size = tiling.num_branches * tiling.num_pieces, tiling.branch_rows
  padding = ((0, 0), (0, size - pieces))
  first = jnp.repeat(start, tiling.num_pieces, axis=1)
  piece = np.arange(pieces) % tiling.num_pieces
  places = jnp.stack([jnp.pad(x, padding) for x in (first + piece[None], first)])
  row = np.arange(size)
  branch, piece = row // tiling.num_pieces, row % tiling.num_pieces
  back = np.where(branch[:, None] == branch, piece[:, None] - piece, -1)
  return places[..., None].astype(jnp.int32), np.maximum(back, -1).astype(np.int32)


def row_specs(tiling: Tiling) -> Rows:
  """Block specs of `Rows` for a grid that starts with (head, row)."""
  size, width = tiling.branch_rows, tiling.width
  query_at = tiling.query_blocks * tiling.block // size  # branches follow the segment
  keys_at = tiling.key_blocks * tiling.block // size
  return Rows(
    query=pl.BlockSpec((1, 1, size, width), lambda n, b, *_: (n, b, query_at, 0)),
    own=pl.BlockSpec((2, 1, 1, size, width), lambda n, b, *_: (0, n, b, keys_at, 0)),
    table=pl.BlockSpec((1, tiling.distances, width), lambda n, *_: (n, 0, 0)),
    places=pl.BlockSpec((2, 1, size, 1), lambda n, b, *_: (0, b, 0, 0)),
    back=pl.BlockSpec((size, size), lambda *_: (0, 0)))


def start_average(tiling: Tiling, rows: Rows, biases: Any, to: Average) -> None:
  """Before the first block of keys: relative terms, and the average over the own pieces."""
  with_content, with_position = both_queries(tiling, rows.query[0, 0], biases)
  by_distance = dot(tiling, with_position, rows.table[0], 'ax,bx')
  _write_below_keys(tiling, by_distance, rows, to.scores)
  scores = _own_scores(tiling, rows, with_content, by_distance)
  highest = scores.max(axis=1, keepdims=True)
  weights = jnp.exp(scores - highest)
  to.highest[...] = highest
  to.total[...] = weights.sum(axis=1, keepdims=True)
  to.average[...] = dot(tiling, weights.astype(rows.own.dtype), rows.own[1, 0, 0], 'ax,xb')


def add_to_average(
  tiling: Tiling, rows: Rows, biases: Any, key_value: Any, length: Array, j: Array, to: Average
) -> None:
  """One block of keys."""
  with_content, _ = both_queries(tiling, rows.query[0, 0], biases)
  scores = _tile_scores(tiling, rows, with_content, key_value, to.scores, length, j)
  average_further(tiling, scores, key_value, to.highest, to.total, to.average)


def finish_average(to: Average, out: Any, log_sum: Any) -> None:
  """After the last block of keys: the output and the log of the softmax's denominator."""
  out[0, 0] = (to.average[...] / to.total[...]).astype(out.dtype)
  log_sum[0, 0] = to.highest[...] + jnp.log(to.total[...])


def start_sums(
  tiling: Tiling, rows: Rows, kept: Kept, biases: Any, to: Sums, of_own: Any
) -> None:
  """Before the first block of keys: relative terms again, and the gradients of the own pieces."""
  with_content, with_position = both_queries(tiling, rows.query[0, 0], biases)
  by_distance = dot(tiling, with_position, rows.table[0], 'ax,bx')
  _write_below_keys(tiling, by_distance, rows, to.scores)
  to.of_scores[...] = jnp.zeros(to.of_scores.shape, jnp.float32)
  scores = _own_scores(tiling, rows, with_content, by_distance)
  weights, of_scores = _gradients(tiling, kept, scores, rows.own[1, 0, 0])
  of_own[0, 0, 0] = dot(tiling, of_scores, with_content, 'xa,xb').astype(of_own.dtype)
  of_own[1, 0, 0] = dot(tiling, weights, kept.out_gradient[0, 0], 'xa,xb').astype(of_own.dtype)
  to.query[...] = dot(tiling, of_scores, rows.own[0, 0, 0], 'ax,xb')
  back, column = rows.back[...], _columns(to.by_distance)
  total = jnp.zeros(to.by_distance.shape, jnp.float32)
  for distance in range(tiling.num_pieces):
    found = jnp.where(back == distance, of_scores.astype(jnp.float32), 0).sum(1, keepdims=True)
    total += jnp.where(column == _column_of(tiling, distance), found, 0)
  to.by_distance[...] = total


def add_to_sums(
  tiling: Tiling, rows: Rows, kept: Kept, biases: Any, key_value: Any, length: Array, j: Array,
  to: Sums, of_key_value: Any
) -> None:
  """One block of keys, whose gradients are added to `of_key_value`."""
  with_content, _ = both_queries(tiling, rows.query[0, 0], biases)
  scores = _tile_scores(tiling, rows, with_content, key_value, to.scores, length, j)
  weights, of_scores = _gradients(tiling, kept, scores, key_value[1, 0, 0])
  of_key_value[0] += dot(tiling, of_scores, with_content, 'xa,xb')
  of_key_value[1] += dot(tiling, weights, kept.out_gradient[0, 0], 'xa,xb')
  to.query[...] += dot(tiling, of_scores, key_value[0, 0, 0], 'ax,xb')
  to.of_scores[j] = of_scores.astype(jnp.float32)


def finish_sums(
  tiling: Tiling, rows: Rows, biases: Any, to: Sums, of_query: Any, of_table: Any,
  of_biases: tuple[Any, Any]
) -> None:
  """After the last block of keys: gradients of queries, distances and biases."""
  _, with_position = both_queries(tiling, rows.query[0, 0], biases)
  blocks = [to.of_scores[j] for j in range(tiling.key_blocks)]
  size = tiling.distances - tiling.key_blocks * tiling.block
  blocks.append(jnp.zeros((tiling.branch_rows, size), jnp.float32))
  moved = rotate_rows(
    jnp.concatenate(blocks, axis=1), _rotation(tiling, rows, to.by_distance.shape, back=True))
  by_distance = (to.by_distance[...] + moved).astype(rows.query.dtype)
  to_content, to_position = to.query[...], dot(tiling, by_distance, rows.table[0], 'ax,xb')
  of_table[:tiling.distances] += dot(tiling, by_distance, with_position, 'xa,xb')
  of_query[0, 0] = (tiling.scale * (to_content + to_position)).astype(of_query.dtype)
  for of_bias, found in zip(of_biases, (to_content, to_position), strict=True):
    of_bias[0] += tiling.scale * found.sum(axis=0, keepdims=True)


def _write_below_keys(tiling, by_distance, rows, to):
  """Writes the relative terms of every key slot, block by block."""
  moved = rotate_rows(by_distance, _rotation(tiling, rows, by_distance.shape, back=False))
  for j in range(tiling.key_blocks):
    to[j] = moved[:, j * tiling.block:(j + 1) * tiling.block]


def _rotation(tiling, rows, shape, *, back):
  """Columns that each row moves to the right, from distances to keys or back."""
  shift = rows.places[0, 0] + (1 - tiling.query_blocks * tiling.block)
  shift = -shift if back else shift
  return jnp.broadcast_to(jnp.where(shift < 0, shift + tiling.distances, shift), shape)


def _columns(array):
  """Column numbers of an array."""
  return jax.lax.broadcasted_iota(jnp.int32, array.shape, 1)


def _column_of(tiling, distance):
  """Column of a distance below S in the table."""
  return tiling.query_blocks * tiling.block + tiling.memory_len - 1 - distance


def _own_scores(tiling, rows, with_content, by_distance):
  """Scores [Q, Q] of the own pieces, masked."""
  back, column = rows.back[...], _columns(by_distance)
  scores = dot(tiling, with_content, rows.own[0, 0, 0], 'ax,bx')
  for distance in range(tiling.num_pieces):
    term = jnp.where(column == _column_of(tiling, distance), by_distance, 0).sum(1, keepdims=True)
    scores += jnp.where(back == distance, term, 0)
  return jnp.where(back >= 0, scores, MASKED)


def _tile_scores(tiling, rows, with_content, key_value, relative, length, j):
  """Scores [Q, C] of a block of the row's keys, masked."""
  scores = dot(tiling, with_content, key_value[0, 0, 0], 'ax,bx') + relative[j]
  slot = j * tiling.block + _columns(scores) - tiling.memory_len
  return jnp.where((slot < rows.places[1, 0]) & (slot >= -length), scores, MASKED)


def _gradients(tiling, kept, scores, value) -> tuple[Float[Array, 'Q C'], Float[Array, 'Q C']]:
  """Weights, and gradients of scores, in the compute dtype."""
  gradient = kept.out_gradient[0, 0]
  weights = jnp.exp(scores - kept.sums[0, 0, 0])
  of_scores = weights * (dot(tiling, gradient, value, 'ax,bx') - kept.sums[1, 0, 0])
  return weights.astype(gradient.dtype), of_scores.astype(gradient.dtype)


# The backward pass: all gradients in one sweep over the tiles. Key blocks are the outer loop, query
# blocks the inner one. A key block's gradients are complete after its own sweep. The gradients of
# queries and of relative keys are summed in the core's memory, and their block j is written after
# the sweep of key block j: by then query block j - memory_blocks has met its last key, and relative
# keys j meet only lower key blocks (in the last row of the batch, where all rows have been added).

def backward(
  tiling: Tiling,
  query: Array,  # [N, B, T + Q, H], T and S padded to whole blocks, Q to `branch_rows`
  key_value: Array,  # [2, N, B, S + Q, H]
  relative: Array,  # [N, X, H]
  content_bias: Array,  # [N, 1, H]
  position_bias: Array,  # [N, 1, H]
  places: tuple[Array, Array | None],  # memory lengths [B], starts of branches [B, K]
  # Log of the softmax's denominators, and output times its gradient summed over H: [2, N, B, 1, T]
  # float32; with branches, theirs [2, N, B, Q, 1] too.
  sums: Sequence[Array],
  out_gradient: Array,  # [N, B, T + Q, H]
) -> tuple[Array, Array, Array, Array, Array]:
  """Gradients of the padded arrays of the forward pass, each with its shape and dtype."""
  block, width = tiling.block, tiling.width
  num_rows = tiling.num_rows
  memory_length, start = places

  def query_block(i, j):  # of a skipped tile as in the forward pass
    return jnp.maximum(i, j - tiling.memory_blocks)

  def distances(later):
    def index(n, b, j, i, _):
      first = tiling.distance_block(query_block(i, j), j)
      return n, jnp.minimum(first + later, tiling.key_blocks - 1), 0
    return pl.BlockSpec((1, block, width), index)

  of_queries = pl.BlockSpec(
    (1, 1, block, width), lambda n, b, j, i, _: (n, b, query_block(i, j), 0))
  of_sums = pl.BlockSpec(
    (2, 1, 1, 1, block), lambda n, b, j, i, _: (0, n, b, 0, query_block(i, j)))
  of_keys = pl.BlockSpec((2, 1, 1, block, width), lambda n, b, j, i, _: (0, n, b, j, 0))
  of_head = pl.BlockSpec((1, 1, width), lambda n, b, j, i, _: (n, 0, 0))
  whole_table = pl.BlockSpec((1, tiling.distances, width), lambda n, *_: (n, 0, 0))
  bias = jax.ShapeDtypeStruct(content_bias.shape, jnp.float32)
  inputs = [query, out_gradient, sums[0], key_value, relative, relative, content_bias,
            position_bias]
  in_specs = [of_queries, of_queries, of_sums, of_keys, distances(0), distances(1), of_head,
              of_head]
  out_shape = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (query, key_value, relative)]
  out_shape += [bias, bias]
  out_specs = [
    pl.BlockSpec((1, 1, block, width),
                 lambda n, b, j, i, _: (n, b, jnp.maximum(j - tiling.memory_blocks, 0), 0)),
    of_keys,
    whole_table if tiling.num_branches else pl.BlockSpec(
      (1, block, width), lambda n, b, j, i, _: (n, jnp.where(b == num_rows - 1, j, 0), 0)),
    of_head, of_head]
  scratch: list[tuple[int, ...]] = [
    (tiling.query_blocks * block, width), ((tiling.key_blocks + 1) * block, width),
    (2, block, width)]
  if tiling.num_branches:
    size, specs = tiling.branch_rows, row_specs(tiling)
    inputs += Rows(query, key_value, relative, *rows_of(tiling, start))
    inputs += Kept(out_gradient, sums[1])
    in_specs += specs
    in_specs += Kept(specs.query, pl.BlockSpec(
      (2, 1, 1, size, 1), lambda n, b, *_: (0, n, b, 0, 0)))
    own = query.shape[:2] + (size, width)
    out_shape += [jax.ShapeDtypeStruct(own, query.dtype),
                  jax.ShapeDtypeStruct((2, *own), query.dtype)]
    out_specs += [pl.BlockSpec((1, 1, size, width), lambda n, b, *_: (n, b, 0, 0)),
                  pl.BlockSpec((2, 1, 1, size, width), lambda n, b, *_: (0, n, b, 0, 0))]
    scores = tiling.key_blocks, size, block
    scratch += Sums(scores, scores, (size, tiling.distances), (size, width))
  of_query, of_key_value, of_relative, of_content, of_position, *of_rows = pl.pallas_call(
    functools.partial(_tile, tiling),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(tiling.num_heads, num_rows, tiling.key_blocks, tiling.query_blocks),
      in_specs=in_specs, out_specs=out_specs,
      scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch]),
    out_shape=out_shape,
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'arbitrary', 'arbitrary', 'arbitrary'),
      vmem_limit_bytes=tiling.memory_limit(tiling.gathered_bytes + tiling.branch_bytes)),
    cost_estimate=tiling.cost(
      products=11, of_branches=8, once=(key_value, *out_shape), unshifted=1),
    interpret=tiling.interpret, name='relative_attention_backward',
  )(memory_length.astype(jnp.int32), *inputs)
  if tiling.num_branches:
    of_branches, of_own = of_rows
    of_query = of_query.at[:, :, tiling.query_blocks * block:].set(of_branches)
    of_key_value = of_key_value.at[:, :, :, tiling.key_blocks * block:].set(of_own)
  return (of_query, of_key_value, of_relative, of_content.astype(content_bias.dtype),
          of_position.astype(position_bias.dtype))


def _tile(tiling, lengths, *refs):
  """One tile of the backward pass; the inner loop runs over query blocks."""
  sizes = (8, 7, 5, 2, 3, 4) if tiling.num_branches else (8, 0, 5, 0, 3, 0)
  inputs, rows, outputs, of_rows, scratch, to = split_refs(refs, *sizes)
  query, out_gradient, sums, key_value, near, far, content_bias, position_bias = inputs
  of_query, of_key_value, of_relative, of_content, of_position = outputs
  query_sum, relative_sum, key_value_sum = scratch
  block = tiling.block
  row, j, i = (pl.program_id(axis) for axis in (1, 2, 3))
  length, last = lengths[row], i == tiling.query_blocks - 1

  def zero(ref):
    ref[...] = jnp.zeros(ref.shape, ref.dtype)

  @pl.when(i == 0)
  def _():
    zero(key_value_sum)

    @pl.when(j == 0)
    def _():
      zero(query_sum)

      @pl.when(row == 0)
      def _():
        for ref in (relative_sum, of_content, of_position):
          zero(ref)

  @pl.when((j >= tiling.first_key_block(length)) & (i >= j - tiling.memory_blocks))
  def _():
    q, g, k, v = query[0, 0], out_gradient[0, 0], key_value[0, 0, 0], key_value[1, 0, 0]
    r = jnp.concatenate([near[0], far[0]], axis=0)
    scores, with_content, with_position = tile_scores(
      tiling, q, k, r, (content_bias[0], position_bias[0]), length, (i, j))
    weights = jnp.exp(scores - to_column(sums[0, 0, 0]))
    of_scores = weights * (dot(tiling, g, v, 'ax,bx') - to_column(sums[1, 0, 0]))
    of_scores = of_scores.astype(q.dtype)
    key_value_sum[0] += dot(tiling, of_scores, with_content, 'xa,xb')
    key_value_sum[1] += dot(tiling, weights.astype(q.dtype), g, 'xa,xb')
    by_distance = rel_unshift(tiling, of_scores)
    to_content = dot(tiling, of_scores, k, 'ax,xb')
    to_position = dot(tiling, by_distance, r, 'ax,xb')
    query_sum[pl.ds(i * block, block)] += to_content + to_position
    of_content[0] += tiling.scale * to_content.sum(axis=0, keepdims=True)
    of_position[0] += tiling.scale * to_position.sum(axis=0, keepdims=True)
    relative_sum[pl.ds(tiling.distance_block(i, j) * block, 2 * block)] += dot(
      tiling, by_distance, with_position, 'xa,xb')

  if tiling.num_branches:  # the last block of queries also takes a tile of them
    rows, kept, to = Rows(*rows[:5]), Kept(*rows[5:]), Sums(*to)
    biases = content_bias[0], position_bias[0]

    @pl.when(last & (j == 0))
    def _():
      start_sums(tiling, rows, kept, biases, to, of_rows[1])

    @pl.when(last & (j >= tiling.first_key_block(length)))
    def _():
      add_to_sums(tiling, rows, kept, biases, key_value, length, j, to, key_value_sum)

    @pl.when(last & (j == tiling.key_blocks - 1))
    def _():
      finish_sums(tiling, rows, biases, to, of_rows[0], relative_sum, (of_content, of_position))

  # Sums that are complete after this tile.
  @pl.when(i == j - tiling.memory_blocks)
  def _():
    of_query[0, 0] = (tiling.scale * query_sum[pl.ds(i * block, block)]).astype(of_query.dtype)

  @pl.when(last)
  def _():
    of_key_value[:, 0, 0] = key_value_sum[...].astype(of_key_value.dtype)

    last_row = row == tiling.num_rows - 1
    if tiling.num_branches:  # branches add to all distances until the last tile
      @pl.when(last_row & (j == tiling.key_blocks - 1))
      def _():
        of_relative[0] = relative_sum[:tiling.distances].astype(of_relative.dtype)
    else:
      @pl.when(last_row)
      def _():
        of_relative[0] = relative_sum[pl.ds(j * block, block)].astype(of_relative.dtype)


_NO_STRIDED_ROLL = 'TPU v4'  # lacks the strided rotation
_BARREL_SHIFT_BLOCK = 256  # with larger tiles long segments do not fit into a v4's memory
_UNIT = 128  # blocks are multiples of it, the width of a vector register
# Start of a device kind -> bytes of core memory that the compiler accepts beside the tiles, for the
# gradients of the backward pass.
_CAPACITY = {
  'TPU v4': 13 * 2 ** 20, 'TPU v5 lite': 56 * 2 ** 20, 'TPU v5': 32 * 2 ** 20,
  'TPU v6 lite': 56 * 2 ** 20}


def fused_attention(
  query: Float[Array, 'N B X H'],  # X = T + Q: the segment's, then those of its branches' pieces
  key_value: Float[Array, '2 N B Y H'],  # Y = S + Q
  relative: Float[Array, 'N R H'],  # R = S + P
  content_bias: Float[Array, 'N H'],
  position_bias: Float[Array, 'N H'],
  memory_length: Int[Array, 'B'],
  start: Int[Array, 'B K'] | None = None,  # of the branches, if any
  *,
  segment_len: int,
  block: int = 512,  # most queries and keys in a tile, a multiple of 128
  barrel_shift: bool = False,  # for v4, which lacks the strided rotation
  interpret: bool = False,  # on any device, slowly, with blocks of any size
) -> Float[Array, 'N B X H']:
  """`relative_attention` of a segment, and `branch_attention` of its branches, in one kernel.

  It is a Pallas kernel for TPUs from v4 on, differentiable, in float32 and bfloat16.
  `kernel_runs_on` says for which sizes.
  """
  branches = 0 if start is None else start.shape[1]
  tiling = Tiling(
    num_heads=query.shape[0], num_rows=query.shape[1], segment_len=segment_len,
    memory_len=key_value.shape[3] - query.shape[2], width=query.shape[3],
    block=_block(segment_len, block, barrel_shift=barrel_shift), dtype=str(query.dtype),
    barrel_shift=barrel_shift, interpret=interpret, num_branches=branches,
    num_pieces=(query.shape[2] - segment_len) // max(branches, 1))
  return _attention(tiling, query, key_value, relative, content_bias[:, None],
                    position_bias[:, None], (memory_length, start))


def needs_barrel_shift(device_kind: str) -> bool:
  """Whether a device lacks the strided rotation.

  >>> needs_barrel_shift('TPU v4'), needs_barrel_shift('TPU v5 lite')
  (True, False)
  """
  return device_kind.startswith(_NO_STRIDED_ROLL)


def _block(segment_len, most, *, barrel_shift):
  """Block of a call."""
  return fitting_block(segment_len, most=min(most, _BARREL_SHIFT_BLOCK) if barrel_shift else most)


def kernel_runs_on(
  device_kind: str, *, segment_len: int, memory_len: int, width: int, block: int,
  branches: tuple[int, int] = (0, 0), dtype: str = 'float32',
) -> bool:
  """Whether the kernel and its backward pass compile for a device, as JAX names it.

  >>> sizes = {'segment_len': 512, 'memory_len': 512, 'width': 64, 'block': 512}
  >>> [kernel_runs_on(kind, **sizes) for kind in ('TPU v3', 'TPU v4', 'TPU v5 lite')]
  [False, True, True]
  """
  # False for unknown devices, blocks that are no multiple of 128, gradients that exceed the core's
  # memory, and branches whose padded rows do not divide the block.
  capacity = next(
    (size for kind, size in _CAPACITY.items() if device_kind.startswith(kind)), 0)
  if block % _UNIT:
    return False
  barrel_shift = needs_barrel_shift(device_kind)
  alone = Tiling(
    num_heads=1, num_rows=1, segment_len=segment_len, memory_len=memory_len, width=width,
    block=fitting_block(segment_len, most=block), dtype=dtype,
    barrel_shift=barrel_shift, interpret=False)
  joint = dataclasses.replace(
    alone, block=_block(segment_len, block, barrel_shift=barrel_shift), num_branches=branches[0],
    num_pieces=branches[1])
  if joint.branch_rows and joint.block % joint.branch_rows:
    return False
  return alone.gathered_bytes + joint.branch_bytes <= capacity


def fitting_block(segment_len: int, *, most: int) -> int:
  """Halves `most` down to 128 while that pads the segment less.

  >>> fitting_block(640, most=512), fitting_block(1024, most=512), fitting_block(9, most=512)
  (128, 512, 128)
  """
  sizes = [most]
  while sizes[-1] % (2 * _UNIT) == 0:
    sizes.append(sizes[-1] // 2)
  return min(sizes, key=lambda size: (pl.cdiv(segment_len, size) * size, -size))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(tiling, query, key_value, relative, content_bias, position_bias, places):
  """Attention of arrays of any length; `places` is (memory_length, start or None)."""
  # The arrays are kept for the backward pass without padding, so that other readers share them.
  return _save(tiling, query, key_value, relative, content_bias, position_bias, places)[0]


def _save(tiling, *arrays):
  """The output, and what the backward pass reads."""
  out, *sums = _forward(tiling, *_whole_blocks(tiling, *arrays[:3]), *arrays[3:])
  out = _without_padding(tiling, out)
  return out, (*arrays, out, sums)


def _kernel_gradients(tiling, saved, out_gradient):
  """Gradients of the arrays of `_attention`."""
  *arrays, places, out, sums = saved
  padded, cut = jax.vjp(functools.partial(_whole_blocks, tiling), *arrays[:3])
  product = (out.astype(jnp.float32) * out_gradient.astype(jnp.float32)).sum(-1)
  queries = tiling.query_blocks * tiling.block
  of_segment = _resized(product[:, :, :tiling.segment_len], 2, queries)[:, :, None]
  sums = [jnp.stack([sums[0], of_segment])] + [
    jnp.stack([of_rows, _resized(product[:, :, tiling.segment_len:, None], 2, of_rows.shape[2])])
    for of_rows in sums[1:]]
  gradients = backward(tiling, *padded, *arrays[3:], places, sums, _padded(
    tiling, out_gradient, 2, tiling.segment_len, queries))
  return *cut(gradients[:3]), *gradients[3:], jax.tree.map(
    lambda x: np.zeros(x.shape, jax.dtypes.float0), places)


_attention.defvjp(_save, _kernel_gradients)


def _resized(x, axis, size):
  """Pads an axis with zeros at its end, up to a size."""
  missing = size - x.shape[axis]
  return jnp.pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)]) if missing else x


def _padded(tiling, x, axis, size, whole_size):
  """Pads the segment's entries of an axis (the first `size`), then those of its branches."""
  if not tiling.num_branches:
    return _resized(x, axis, whole_size)
  missing = tiling.branch_rows - tiling.num_branches * tiling.num_pieces
  if size == whole_size and not missing:
    return x
  row, rows = jnp.split(x, [size], axis=axis)
  return jnp.concatenate(
    [_resized(row, axis, whole_size), _resized(rows, axis, tiling.branch_rows)], axis=axis)


def _without_padding(tiling, out):
  """Removes the padding of `_padded` from the queries."""
  queries, pieces = tiling.query_blocks * tiling.block, tiling.num_branches * tiling.num_pieces
  if out.shape[2] == tiling.segment_len + pieces:
    return out
  row = out[:, :, :tiling.segment_len]
  return jnp.concatenate([row, out[:, :, queries:queries + pieces]], axis=2) if pieces else row


def _whole_blocks(tiling, query, key_value, relative):
  """Pads the arrays to whole blocks."""
  # Row c of the table is the distance to a key c - (queries - 1) later; distances beyond those of
  # the segment, for branches, come before row 0 in a cycle.
  queries, keys = (x * tiling.block for x in (tiling.query_blocks, tiling.key_blocks))
  front = queries - tiling.segment_len - tiling.num_pieces
  table = _resized(relative, 1, tiling.distances)
  return (
    _padded(tiling, query, 2, tiling.segment_len, queries),
    _padded(tiling, key_value, 3, tiling.segment_len + tiling.memory_len, keys),
    jnp.roll(table, front, axis=1) if front else table)


def _forward(tiling, query, key_value, relative, content_bias, position_bias, places):
  """Output of padded arrays, and log(sum(exp(scores))) [N, B, 1, T]; then both for the branches."""
  memory_length, start = places
  block, width = tiling.block, tiling.width
  num_heads, num_rows, _, _ = query.shape
  queries = tiling.query_blocks * block

  def key_block(head, row, i, j, lengths):
    # A skipped tile names the block of its computed neighbour, so that no block is copied for it.
    return jnp.clip(j, tiling.first_key_block(lengths[row]), i + tiling.memory_blocks)

  def distances(later):
    def index(head, row, i, j, lengths):
      first = tiling.distance_block(i, key_block(head, row, i, j, lengths))
      return head, jnp.minimum(first + later, tiling.key_blocks - 1), 0
    return pl.BlockSpec((1, block, width), index)

  of_queries = pl.BlockSpec((1, 1, block, width), lambda n, b, i, j, _: (n, b, i, 0))
  of_head = pl.BlockSpec((1, 1, width), lambda n, b, i, j, _: (n, 0, 0))
  inputs = [query, key_value, relative, relative, content_bias, position_bias]
  in_specs = [
    of_queries,
    pl.BlockSpec((2, 1, 1, block, width),
                 lambda n, b, i, j, s: (0, n, b, key_block(n, b, i, j, s), 0)),
    distances(0), distances(1), of_head, of_head]
  out_shape = [
    jax.ShapeDtypeStruct(query.shape, query.dtype),
    jax.ShapeDtypeStruct((num_heads, num_rows, 1, queries), jnp.float32)]
  out_specs = [of_queries, pl.BlockSpec((1, 1, 1, block), lambda n, b, i, j, _: (n, b, 0, i))]
  scratch = [(block, 1), (block, 1), (block, width)]
  if tiling.num_branches:
    size = tiling.branch_rows
    inputs += Rows(query, key_value, relative, *rows_of(tiling, start))
    in_specs += row_specs(tiling)
    for columns, dtype in ((width, query.dtype), (1, jnp.float32)):
      out_shape.append(jax.ShapeDtypeStruct((num_heads, num_rows, size, columns), dtype))
      out_specs.append(pl.BlockSpec((1, 1, size, columns), lambda n, b, *_: (n, b, 0, 0)))
    scratch += Average((tiling.key_blocks, size, block), (size, 1), (size, 1), (size, width))
  out, log_sum, *of_rows = pl.pallas_call(
    functools.partial(_forward_tile, tiling),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(num_heads, num_rows, tiling.query_blocks, tiling.key_blocks),
      in_specs=in_specs, out_specs=out_specs,
      scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch]),
    out_shape=out_shape,
    compiler_params=pltpu.CompilerParams(
      # Branches go with the last block of queries, so with them no two cores may share a row.
      dimension_semantics=('parallel', 'parallel',
                           'arbitrary' if tiling.num_branches else 'parallel', 'arbitrary'),
      vmem_limit_bytes=tiling.memory_limit(tiling.branch_bytes)),
    cost_estimate=tiling.cost(products=4, of_branches=3, once=(query, *out_shape)),
    interpret=tiling.interpret, name='relative_attention',
  )(memory_length.astype(jnp.int32), *inputs)
  if not tiling.num_branches:
    return out, log_sum
  of_branches, log_sum_of_branches = of_rows
  return out.at[:, :, queries:].set(of_branches), log_sum, log_sum_of_branches


def _forward_tile(tiling, lengths, *refs):
  """One tile of the forward pass; the inner loop runs over key blocks."""
  sizes = (6, 5, 4, 3, 4) if tiling.num_branches else (6, 0, 2, 3, 0)
  inputs, rows, (out, log_sum, *of_rows), (highest, total, average), to = split_refs(refs, *sizes)
  query, key_value, near, far, content_bias, position_bias = inputs
  i, j = pl.program_id(2), pl.program_id(3)
  length = lengths[pl.program_id(1)]

  if tiling.num_branches:  # the last block of queries also takes a tile of them
    rows, to = Rows(*rows), Average(*to)
    biases, with_last = (content_bias[0], position_bias[0]), i == tiling.query_blocks - 1

    @pl.when(with_last & (j == 0))
    def _():
      start_average(tiling, rows, biases, to)

    @pl.when(with_last & (j >= tiling.first_key_block(length)))
    def _():
      add_to_average(tiling, rows, biases, key_value, length, j, to)

    @pl.when(with_last & (j == tiling.key_blocks - 1))
    def _():
      finish_average(to, *of_rows)

  last = i + tiling.memory_blocks

  @pl.when(j == 0)
  def _():
    highest[...] = jnp.full(highest.shape, MASKED, jnp.float32)
    total[...] = jnp.zeros(total.shape, jnp.float32)
    average[...] = jnp.zeros(average.shape, jnp.float32)

  @pl.when((j >= tiling.first_key_block(length)) & (j <= last))
  def _():
    scores, _, _ = tile_scores(
      tiling, query[0, 0], key_value[0, 0, 0], jnp.concatenate([near[0], far[0]], axis=0),
      (content_bias[0], position_bias[0]), length, (i, j))
    average_further(tiling, scores, key_value, highest, total, average)

  @pl.when(j == last)
  def _():
    out[0, 0] = (average[...] / total[...]).astype(out.dtype)
    log_sum[0, 0] = to_row(highest[...] + jnp.log(total[...]))
