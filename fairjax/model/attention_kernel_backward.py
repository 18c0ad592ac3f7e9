"""Backward pass of the fused attention kernel: all gradients in one sweep over the tiles.

Key blocks are the outer loop, query blocks the inner one. A key block's gradients are complete
after its own sweep. Those of queries and of relative keys are gathered in the core's memory, and
their block j leaves it after the sweep of key block j: query block j - memory_blocks has met its
last key then, and relative keys j meet only lower key blocks (in the last row, where all rows'
contributions are in).

Letters as in `attention`.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from fairjax.model import attention_kernel_branches as branches
from fairjax.model.attention_tiles import (
  Tiling,
  dot,
  split_refs,
  tile_scores,
  to_column,
  unskew,
)


def backward(
  tiling: Tiling, query: Array, key_value: Array, relative: Array, content_bias: Array,
  position_bias: Array, places: tuple[Array, Array | None], sums: Sequence[Array],
  out_gradient: Array,
) -> tuple[Array, Array, Array, Array, Array]:
  """Gradients of the padded arrays of the forward pass.

  Args:
    tiling: sizes; T and S below are padded to whole blocks, Q to `branch_rows` (0 without).
    query: `[N, B, T + Q, H]`.
    key_value: `[2, N, B, S + Q, H]`.
    relative: `[N, X, H]`.
    content_bias: `[N, 1, H]`.
    position_bias: `[N, 1, H]`.
    places: `[B]` int32, memory lengths, and `[B, K]` int32, starts of branches or None.
    sums: `[2, N, B, 1, T]` float32, log of the softmax's denominators, and output times its
      gradient, summed over H; with branches, theirs `[2, N, B, Q, 1]` too.
    out_gradient: `[N, B, T + Q, H]`.

  Returns:
    Gradients of `query`, `key_value`, `relative`, `content_bias` and `position_bias`, each with
    its shape and dtype.
  """
  block, width = tiling.block, tiling.width
  num_rows = tiling.num_rows
  memory_length, start = places

  def query_block(i, j):
    # Tiles that are skipped name the block of a tile that is not: nothing is copied for them.
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
  accumulators = [(tiling.query_blocks * block, width), ((tiling.key_blocks + 1) * block, width),
                  (2, block, width)]
  scratch = [pltpu.VMEM(shape, jnp.float32) for shape in accumulators]
  if tiling.num_branches:
    size, specs = tiling.branch_rows, branches.row_specs(tiling)
    inputs += branches.Rows(query, key_value, relative, *branches.rows_of(tiling, start))
    inputs += branches.Kept(out_gradient, sums[1])
    in_specs += specs
    in_specs += branches.Kept(specs.query, pl.BlockSpec(
      (2, 1, 1, size, 1), lambda n, b, *_: (0, n, b, 0, 0)))
    own = query.shape[:2] + (size, width)
    out_shape += [jax.ShapeDtypeStruct(own, query.dtype),
                  jax.ShapeDtypeStruct((2, *own), query.dtype)]
    out_specs += [pl.BlockSpec((1, 1, size, width), lambda n, b, *_: (n, b, 0, 0)),
                  pl.BlockSpec((2, 1, 1, size, width), lambda n, b, *_: (0, n, b, 0, 0))]
    scratch += branches.sum_shapes(tiling)
  of_query, of_key_value, of_relative, of_content, of_position, *of_rows = pl.pallas_call(
    functools.partial(_tile_with_branches if tiling.num_branches else _tile, tiling),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(tiling.num_heads, num_rows, tiling.key_blocks, tiling.query_blocks),
      in_specs=in_specs, out_specs=out_specs, scratch_shapes=scratch),
    out_shape=out_shape,
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'arbitrary', 'arbitrary', 'arbitrary'),
      vmem_limit_bytes=tiling.memory_limit(tiling.gathered_bytes + tiling.branch_bytes)),
    cost_estimate=tiling.cost(
      products=11, of_branches=8, once=(key_value, *out_shape), unskewed=1),
    interpret=tiling.interpret, name='relative_attention_backward',
  )(memory_length.astype(jnp.int32), *inputs)
  if tiling.num_branches:
    of_branches, of_own = of_rows
    of_query = of_query.at[:, :, tiling.query_blocks * block:].set(of_branches)
    of_key_value = of_key_value.at[:, :, :, tiling.key_blocks * block:].set(of_own)
  return (of_query, of_key_value, of_relative, of_content.astype(content_bias.dtype),
          of_position.astype(position_bias.dtype))


def _tile(tiling, lengths, *refs):
  """One tile of the backward pass; query blocks follow each other."""
  _start(tiling, *refs)
  _accumulate(tiling, lengths, *refs)
  _finish(tiling, *refs)


def _tile_with_branches(tiling, lengths, *refs):
  """The same, and a tile of the branches in the last block of queries."""
  inputs, rows, outputs, of_rows, scratch, to = split_refs(refs, 8, 7, 5, 2, 3, 4)
  rows, kept = branches.Rows(*rows[:5]), branches.Kept(*rows[5:])
  to, (of_query, of_own) = branches.Sums(*to), of_rows
  key_value, biases = inputs[3], tuple(x[0] for x in inputs[6:])
  relative_sum, key_value_sum = scratch[1:]
  row, j, i = (pl.program_id(axis) for axis in (1, 2, 3))
  length, last = lengths[row], i == tiling.query_blocks - 1
  _start(tiling, *inputs, *outputs, *scratch)
  _accumulate(tiling, lengths, *inputs, *outputs, *scratch)

  @pl.when(last & (j == 0))
  def _():
    branches.start_sums(tiling, rows, kept, biases, to, of_own)

  @pl.when(last & (j >= tiling.first_key_block(length)))
  def _():
    branches.add_to_sums(
      tiling, rows, kept, biases, key_value, length, j, to, key_value_sum)

  @pl.when(last & (j == tiling.key_blocks - 1))
  def _():
    branches.finish_sums(tiling, rows, biases, to, of_query, relative_sum, outputs[3:])

  _finish(tiling, *inputs, *outputs, *scratch)


def _start(tiling, query, out_gradient, sums, key_value, near, far, content_bias, position_bias,
           of_query, of_key_value, of_relative, of_content, of_position, query_sum, relative_sum,
           key_value_sum):
  """Zeros where sums start."""
  row, j, i = (pl.program_id(axis) for axis in (1, 2, 3))

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


def _accumulate(tiling, lengths, query, out_gradient, sums, key_value, near, far, content_bias,
                position_bias, of_query, of_key_value, of_relative, of_content, of_position,
                query_sum, relative_sum, key_value_sum):
  """Adds what a tile gives."""
  block = tiling.block
  row, j, i = (pl.program_id(axis) for axis in (1, 2, 3))
  length = lengths[row]

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
    by_distance = unskew(tiling, of_scores)
    to_content = dot(tiling, of_scores, k, 'ax,xb')
    to_position = dot(tiling, by_distance, r, 'ax,xb')
    query_sum[pl.ds(i * block, block)] += to_content + to_position
    of_content[0] += tiling.scale * to_content.sum(axis=0, keepdims=True)
    of_position[0] += tiling.scale * to_position.sum(axis=0, keepdims=True)
    relative_sum[pl.ds(tiling.distance_block(i, j) * block, 2 * block)] += dot(
      tiling, by_distance, with_position, 'xa,xb')


def _finish(tiling, query, out_gradient, sums, key_value, near, far, content_bias, position_bias,
            of_query, of_key_value, of_relative, of_content, of_position, query_sum, relative_sum,
            key_value_sum):
  """Writes the sums that are complete."""
  block = tiling.block
  row, j, i = (pl.program_id(axis) for axis in (1, 2, 3))

  @pl.when(i == j - tiling.memory_blocks)
  def _():
    of_query[0, 0] = (tiling.scale * query_sum[pl.ds(i * block, block)]).astype(of_query.dtype)

  @pl.when(i == tiling.query_blocks - 1)
  def _():
    of_key_value[:, 0, 0] = key_value_sum[...].astype(of_key_value.dtype)

    last_row = row == tiling.num_rows - 1
    if tiling.num_branches:  # they meet all distances up to the last tile
      @pl.when(last_row & (j == tiling.key_blocks - 1))
      def _():
        of_relative[0] = relative_sum[:tiling.distances].astype(of_relative.dtype)
    else:
      @pl.when(last_row)
      def _():
        of_relative[0] = relative_sum[pl.ds(j * block, block)].astype(of_relative.dtype)
