"""Tiles of the fused attention kernels: which there are, their scores, the skew of distances.

The scores of a segment are cut into tiles of C queries by C keys. The distances within a tile are
2C - 1 consecutive ones, which lie in two consecutive blocks of C rows of the relative keys, the
same two for all tiles on a diagonal. `(q + v)` times these rows is a `[C, 2C]` array whose row t
must move by C - 1 - t columns to put every distance below its key: `skew`, a strided rotation of
lanes. Its transpose is `unskew`.

Letters as in `attention`.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

MASKED = -1e30  # a score that no weight survives; finite, so that differences are numbers
_LANES = 128
_SUBLANES = 16  # rows of a register of bfloat16
_DEFAULT_GATHERED = 6 * 2 ** 20  # fits into the compiler's default limit beside the tiles
_FOR_TILES = 24 * 2 ** 20  # what tiles and the compiler take beside what is gathered


@dataclasses.dataclass(frozen=True)
class Tiling:
  """Sizes of one call, and how tiles number their blocks."""

  num_heads: int
  num_rows: int
  segment_len: int
  memory_len: int
  width: int  # H
  block: int  # C
  dtype: str
  barrel: bool  # rotate by powers of two instead of the strided rotation, which v4 lacks
  interpret: bool
  num_branches: int = 0  # K
  num_pieces: int = 0  # P

  @property
  def query_blocks(self) -> int:
    """Blocks of queries, the last one padded."""
    return pl.cdiv(self.segment_len, self.block)

  @property
  def memory_blocks(self) -> int:
    """Key block `memory_blocks + i` is the last one that query block i sees."""
    return pl.cdiv(self.memory_len, self.block)

  @property
  def key_blocks(self) -> int:
    """Blocks of keys, and of relative keys."""
    return self.memory_blocks + self.query_blocks

  @property
  def branch_rows(self) -> int:
    """Rows for the pieces of all branches: K P, padded so that they are a block of their own."""
    pieces = self.num_branches * self.num_pieces
    rows = min(_SUBLANES, self.block)
    while rows < pieces:
      rows *= 2
    return rows if pieces else 0

  @property
  def branches_fit(self) -> bool:
    """Whether the rows of branches divide a block, so that they have a place of their own."""
    return not self.branch_rows or self.block % self.branch_rows == 0

  @property
  def distances(self) -> int:
    """Rows of the table of relative keys, padded: with branches, those beyond S have room too."""
    lanes = min(self.block, _LANES)
    return self.key_blocks * self.block + pl.cdiv(self.num_pieces, lanes) * lanes

  @property
  def scale(self) -> float:
    """Factor of all scores."""
    return self.width ** -0.5

  @property
  def gathered_bytes(self) -> int:
    """Core memory that the backward pass gathers gradients in; rows fill whole registers."""
    rows = (self.query_blocks + self.key_blocks + 3) * self.block
    return 4 * rows * pl.cdiv(self.width, _LANES) * _LANES

  @property
  def branch_bytes(self) -> int:
    """Core memory that branches take in the backward pass, and at most in the forward pass.

    The whole table and its gradient, each twice, and parts of them in products; scores by distance
    in three arrays that stay and some eight that do not.
    """
    if not self.num_branches:
      return 0
    table = 8 * jnp.dtype(self.dtype).itemsize * pl.cdiv(self.width, _LANES) * _LANES
    return self.distances * (table + 12 * 4 * self.branch_rows)

  @property
  def reversed_rows(self) -> int:
    """Rows that `unskew` reverses at a time."""
    return min(self.block, _LANES)

  def memory_limit(self, gathered: int) -> int | None:
    """Core memory to ask for beside tiles; None: the compiler's default, all that a v4 has."""
    beyond = gathered > _DEFAULT_GATHERED and not self.barrel
    return gathered + _FOR_TILES if beyond else None

  def first_key_block(self, memory_length: Array) -> Array:
    """First block with a valid key."""
    return (self.memory_len - memory_length) // self.block

  def distance_block(self, query_block: Array, key_block: Array) -> Array:
    """First of the two blocks of relative keys of a tile."""
    return self.query_blocks - 1 - query_block + key_block

  def cost(
    self, *, products: int, of_branches: int, once: tuple, unskewed: int = 0
  ) -> pl.CostEstimate:
    """Work of a call.

    Args:
      products: of C x C x H in every visible tile.
      unskewed: calls of `unskew` in every visible tile.
      of_branches: products with all keys, or all distances, that each row of branches takes.
      once: arrays that are copied once; each tile copies four blocks `[C, H]` besides, and each
        head its table if there are branches.

    Returns:
      Operations, exponentials and bytes.
    """
    visible = sum(self.memory_blocks + i + 1 for i in range(self.query_blocks))
    tiles, block_size = self.num_heads * self.num_rows * visible, self.block * self.width
    itemsize = jnp.dtype(self.dtype).itemsize
    copied = 4 * tiles * block_size * itemsize
    # Each row of a group is reversed by a product with [C], and again with [2C], columns.
    reversal = 0 if self.barrel else 3 * unskewed * self.reversed_rows * self.block ** 2
    scores = self.num_heads * self.num_rows * self.branch_rows * self.distances
    if self.num_branches:
      copied += self.num_heads * self.distances * self.width * itemsize
    return pl.CostEstimate(
      flops=2 * (tiles * (products * self.block * block_size + reversal)
                 + of_branches * scores * self.width),
      transcendentals=tiles * self.block ** 2 + scores,
      bytes_accessed=copied + sum(a.size * jnp.dtype(a.dtype).itemsize for a in once))


def split_refs(refs: Sequence[Any], *sizes: int) -> list[Sequence[Any]]:
  """Consecutive groups of these sizes of what a kernel is given."""
  ends = list(itertools.accumulate(sizes))
  assert ends[-1] == len(refs), (ends, len(refs))
  return [refs[end - size:end] for size, end in zip(sizes, ends, strict=True)]


def dot(tiling: Tiling, a: Array, b: Array, dimensions: str) -> Array:
  """`jnp.einsum` of two matrices in float32; exact products for float32 inputs."""
  precision = jax.lax.Precision.HIGHEST if tiling.dtype == 'float32' else None
  left, right = dimensions.split(',')
  contracting = ((left.index('x'),), (right.index('x'),))
  return jax.lax.dot_general(
    a, b, (contracting, ((), ())), precision=precision, preferred_element_type=jnp.float32)


def skew(tiling: Tiling, x: Float[Array, 'C X']) -> Float[Array, 'C C']:
  """Columns C - 1 - t to 2C - 2 - t of row t."""
  block = tiling.block
  if tiling.barrel:
    rotated = rotate_rows(x, jax.lax.broadcasted_iota(jnp.int32, x.shape, 0) + (block + 1))
  else:
    rotated = pltpu.roll(x, block + 1, 1, stride=1, stride_axis=0)
  return rotated[:, :block]


def unskew(tiling: Tiling, x: Float[Array, 'C C']) -> Float[Array, 'C X']:
  """The transpose of `skew`: row t starts at column C - 1 - t, zeros around it.

  The rotation's stride cannot be negative, so rows are reversed before and after, in groups, by
  products with a reversed identity. They are exact: `x` has been rounded to the compute dtype.
  """
  block = tiling.block
  x = x.astype(jnp.dtype(tiling.dtype))
  if tiling.barrel:
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
  """A column of numbers as a row, by a transpose that the hardware has."""
  return jnp.broadcast_to(column, (column.shape[0], _LANES)).T[:1]


def to_column(row: Float[Array, '1 C']) -> Float[Array, 'C 1']:
  """A row of numbers as a column."""
  return jnp.broadcast_to(row, (_LANES, row.shape[1])).T[:, :1]


def both_queries(
  tiling: Tiling, query: Float[Array, 'C H'], biases: tuple[Array, Array]
) -> tuple[Float[Array, 'C H'], Float[Array, 'C H']]:
  """Queries plus u and plus v, scaled, in the compute dtype."""
  wide = query.astype(jnp.float32)
  with_content, with_position = (
    ((wide + bias.astype(jnp.float32)) * tiling.scale).astype(query.dtype) for bias in biases)
  return with_content, with_position


def tile_scores(
  tiling: Tiling, query: Array, key: Array, relative: Array, biases: tuple[Array, Array],
  memory_length: Array, place: tuple[Array, Array],
) -> tuple[Array, Array, Array]:
  """Scores of a tile, masked, and both kinds of queries.

  Args:
    tiling: sizes.
    query: `[C, H]`.
    key: `[C, H]`.
    relative: `[2C, H]`, the tile's relative keys.
    biases: u and v, each `[1, H]`.
    memory_length: scalar int32 of the row.
    place: (query block, key block).

  Returns:
    `[C, C]` float32; (q + u) and (q + v), each `[C, H]`, scaled, in the compute dtype.
  """
  with_content, with_position = both_queries(tiling, query, biases)
  scores = dot(tiling, with_content, key, 'ax,bx')
  scores += skew(tiling, dot(tiling, with_position, relative, 'ax,bx'))
  rows, columns = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1))
  position = place[0] * tiling.block + rows
  slot = place[1] * tiling.block + columns - tiling.memory_len
  mask = (slot <= position) & (slot >= -memory_length)
  return jnp.where(mask, scores, MASKED), with_content, with_position
