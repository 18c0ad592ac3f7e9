"""Rows of branches in the fused attention kernels, forward and backward.

The pieces of a row's branches are a block of queries behind those of the segment, and a block of
keys behind those of the row (`attention_branch` says what they see). They go along with the last
block of queries, which meets every key: so keys and values are read once for both, and their
gradients are summed where they are. Scores by distance are made of the whole table at once and
moved below their keys by a rotation of each row, in the core's memory.

Row c of the table holds the distance M + queries - 1 - c, cyclically, the queries of a segment
being whole blocks: a row at some position finds key slot s in column s + queries - 1 - position.

Letters as in `attention`; Q rows of branches, X rows of the table, J blocks of keys.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from fairjax.model.attention_tiles import MASKED, Tiling, both_queries, dot, rotate_rows


class Rows(NamedTuple):
  """What the kernels read of the branches."""

  query: Any  # [1, 1, Q, H]
  own: Any  # [2, 1, 1, Q, H], their keys and values
  table: Any  # [1, X, H], the head's relative keys
  places: Any  # [2, 1, Q, 1] int32, each piece's position and its branch's start
  back: Any  # [Q, Q] int32, pieces back from a row to another of its branch; -1: not seen


class Kept(NamedTuple):
  """What the backward pass reads besides."""

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
  """`Rows.places` of all rows `[2, B, Q, 1]`, and `Rows.back`; padding sees memory and padding."""
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
  """Blocks of `Rows` in the arrays of a call whose grid starts with (head, row)."""
  size, width = tiling.branch_rows, tiling.width
  behind = tiling.query_blocks * tiling.block // size
  behind_keys = tiling.key_blocks * tiling.block // size
  return Rows(
    query=pl.BlockSpec((1, 1, size, width), lambda n, b, *_: (n, b, behind, 0)),
    own=pl.BlockSpec((2, 1, 1, size, width), lambda n, b, *_: (0, n, b, behind_keys, 0)),
    table=pl.BlockSpec((1, tiling.distances, width), lambda n, *_: (n, 0, 0)),
    places=pl.BlockSpec((2, 1, size, 1), lambda n, b, *_: (0, b, 0, 0)),
    back=pl.BlockSpec((size, size), lambda *_: (0, 0)))


def average_shapes(tiling: Tiling) -> Average:
  """Scratch of the forward pass."""
  size = tiling.branch_rows
  return Average(*(pltpu.VMEM(shape, jnp.float32) for shape in (
    (tiling.key_blocks, size, tiling.block), (size, 1), (size, 1), (size, tiling.width))))


def sum_shapes(tiling: Tiling) -> Sums:
  """Scratch of the backward pass."""
  size, blocks = tiling.branch_rows, (tiling.key_blocks, tiling.branch_rows, tiling.block)
  return Sums(*(pltpu.VMEM(shape, jnp.float32) for shape in (
    blocks, blocks, (size, tiling.distances), (size, tiling.width))))


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
  before = to.highest[...]
  now = jnp.maximum(before, scores.max(axis=1, keepdims=True))
  weights, correction = jnp.exp(scores - now), jnp.exp(before - now)
  to.highest[...] = now
  to.total[...] = to.total[...] * correction + weights.sum(axis=1, keepdims=True)
  to.average[...] = to.average[...] * correction + dot(
    tiling, weights.astype(rows.query.dtype), key_value[1, 0, 0], 'ax,xb')


def finish_average(to: Average, out: Any, log_sum: Any) -> None:
  """After the last block of keys."""
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
  """Relative terms of every key slot, block by block."""
  moved = rotate_rows(by_distance, _rotation(tiling, rows, by_distance.shape, back=False))
  for j in range(tiling.key_blocks):
    to[j] = moved[:, j * tiling.block:(j + 1) * tiling.block]


def _rotation(tiling, rows, shape, *, back):
  """How far each row moves to the right from distances to keys, or back."""
  shift = rows.places[0, 0] + (1 - tiling.query_blocks * tiling.block)
  shift = -shift if back else shift
  return jnp.broadcast_to(jnp.where(shift < 0, shift + tiling.distances, shift), shape)


def _columns(array):
  return jax.lax.broadcasted_iota(jnp.int32, array.shape, 1)


def _column_of(tiling, distance):
  """Where a distance below S stands in the table."""
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
