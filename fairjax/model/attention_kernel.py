"""Relative attention of Transformer-XL in one TPU kernel, forward and backward.

Tiles of scores live in the core's memory only (online softmax and recomputation as in Dao et al.
2022, arXiv:2205.14135), with the exact relative term of Dai et al. 2019: see `attention_tiles`.
Temporary memory is O(T). The backward pass is in `attention_kernel_backward`.

Letters as in `attention`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from fairjax.model import attention_kernel_branches as branches
from fairjax.model.attention_kernel_backward import backward
from fairjax.model.attention_tiles import MASKED, Tiling, dot, split_refs, tile_scores, to_row

_BARREL_KIND = 'TPU v4'  # lacks the strided rotation
_BARREL_BLOCK = 256  # larger tiles leave a v4's memory no room for long segments
_UNIT = 128  # blocks are multiples of it, the width of a vector register
# Start of a device kind -> bytes of core memory in which the backward pass may gather gradients:
# what the compiler accepts beside the tiles.
_CAPACITY = {
  'TPU v4': 13 * 2 ** 20, 'TPU v5 lite': 56 * 2 ** 20, 'TPU v5': 32 * 2 ** 20,
  'TPU v6 lite': 56 * 2 ** 20}


def fused_attention(
  query: Float[Array, 'N B T H'],
  key_value: Float[Array, '2 N B S H'],
  relative: Float[Array, 'N S H'],
  content_bias: Float[Array, 'N H'],
  position_bias: Float[Array, 'N H'],
  memory_length: Int[Array, 'B'],
  *,
  block: int = 512,
  barrel: bool = False,
  interpret: bool = False,
) -> Float[Array, 'N B T H']:
  """`relative_attention` as a Pallas kernel for TPUs from v4 on; differentiable.

  Args:
    query: `[N, B, T, H]` float32 or bfloat16.
    key_value: `[2, N, B, S, H]`, projected keys and values of memory and segment.
    relative: `[N, S, H]` projected distances S - 1 down to 0.
    content_bias: `[N, H]`, u.
    position_bias: `[N, H]`, v.
    memory_length: `[B]` int32 in [0, M].
    block: most queries and keys in a tile, a multiple of 128. Neither T nor M need be multiples of
      it: they are padded.
    barrel: for v4, which lacks the strided rotation; blocks of at most 256.
    interpret: run on any device, slowly; blocks may have any size.

  Returns:
    `[N, B, T, H]` in the dtype of `query`.

  Raises:
    ValueError: block is no multiple of 128, or the dtype is neither float32 nor bfloat16.
  """
  segment_len = query.shape[2]
  tiling = _tiling(query, segment_len, key_value.shape[3] - segment_len, block=block,
                   barrel=barrel, interpret=interpret)
  biases = content_bias[:, None], position_bias[:, None]
  return _attention(tiling, query, key_value, relative, *biases, (memory_length, None))


def attention_with_branches(
  query: Float[Array, 'N B X H'],
  key_value: Float[Array, '2 N B Y H'],
  relative: Float[Array, 'N R H'],
  content_bias: Float[Array, 'N H'],
  position_bias: Float[Array, 'N H'],
  start: Int[Array, 'B K'],
  memory_length: Int[Array, 'B'],
  *,
  segment_len: int,
  block: int = 512,
  barrel: bool = False,
  interpret: bool = False,
) -> Float[Array, 'N B X H']:
  """`fused_attention` of a segment and `branch_attention` of its branches in the same kernels.

  Args:
    query: `[N, B, T + Q, H]`, the segment's queries, then those of the pieces of its branches.
    key_value: `[2, N, B, S + Q, H]`, of memory and segment, then of the pieces.
    relative: `[N, R, H]` projected distances R - 1 down to 0, R = S + P.
    content_bias: `[N, H]`, u.
    position_bias: `[N, H]`, v.
    start: `[B, K]` int32 in [0, T).
    memory_length: `[B]` int32 in [0, M].
    segment_len: T.
    block: as for `fused_attention`.
    barrel: as for `fused_attention`.
    interpret: as for `fused_attention`.

  Returns:
    `[N, B, T + Q, H]` in the dtype of `query`.

  Raises:
    ValueError: as `fused_attention`, or the rows of branches divide no block: `kernel_runs_on`
      says where they do.
  """
  tiling = _tiling(query, segment_len, key_value.shape[3] - query.shape[2], block=block,
                   barrel=barrel, interpret=interpret,
                   branches=(start.shape[1], (query.shape[2] - segment_len) // start.shape[1]))
  if not tiling.branches_fit:
    raise ValueError(f'{tiling.branch_rows} rows of branches do not divide a block of '
                     f'{tiling.block} queries: the kernel takes fewer pieces')
  biases = content_bias[:, None], position_bias[:, None]
  return _attention(tiling, query, key_value, relative, *biases, (memory_length, start))


def _tiling(query, segment_len, memory_len, *, block, barrel, interpret, branches=(0, 0)):
  """Sizes of a call; refuses what the kernels cannot do."""
  if query.dtype not in (jnp.float32, jnp.bfloat16):
    raise ValueError(f"the attention kernel computes in float32 or bfloat16, not {query.dtype}: "
                     "set model.attention='blocks'")
  if block % _UNIT and not interpret:
    raise ValueError(f'the attention kernel needs blocks of a multiple of {_UNIT}, not {block}: '
                     'set model.attention_block')
  return Tiling(
    num_heads=query.shape[0], num_rows=query.shape[1], segment_len=segment_len,
    memory_len=memory_len, width=query.shape[3],
    block=_block(segment_len, block, barrel=barrel), dtype=str(query.dtype), barrel=barrel,
    interpret=interpret, num_branches=branches[0], num_pieces=branches[1])


def needs_barrel(device_kind: str) -> bool:
  """Whether a device lacks the strided rotation, so that `barrel` must be set.

  >>> needs_barrel('TPU v4'), needs_barrel('TPU v5 lite')
  (True, False)
  """
  return device_kind.startswith(_BARREL_KIND)


def _block(segment_len, most, *, barrel):
  """The block of a call."""
  return fitting_block(segment_len, most=min(most, _BARREL_BLOCK) if barrel else most)


def kernel_runs_on(
  device_kind: str, *, segment_len: int, memory_len: int, width: int, block: int,
  branches: tuple[int, int] = (0, 0), dtype: str = 'float32',
) -> bool:
  """Whether the kernel and its backward pass compile for a device.

  Args:
    device_kind: as JAX names it, e.g. 'TPU v5 lite'.
    segment_len: T.
    memory_len: M.
    width: H.
    block: most queries in a tile.
    branches: (K, P) of branches that go along (`attention_with_branches`).
    dtype: of the arrays, which decides how much memory branches take.

  Returns:
    False for unknown devices, blocks that are no multiple of 128, segments whose gradients do
    not fit into the core's memory, alone or with what branches take, and branches whose K P rows,
    padded to a power of two, do not divide the block.

  >>> sizes = {'segment_len': 512, 'memory_len': 512, 'width': 64, 'block': 512}
  >>> [kernel_runs_on(kind, **sizes) for kind in ('TPU v3', 'TPU v4', 'TPU v5 lite')]
  [False, True, True]
  """
  capacity = next(
    (size for kind, size in _CAPACITY.items() if device_kind.startswith(kind)), 0)
  if block % _UNIT:
    return False
  barrel = needs_barrel(device_kind)
  alone = Tiling(
    num_heads=1, num_rows=1, segment_len=segment_len, memory_len=memory_len, width=width,
    block=fitting_block(segment_len, most=block), dtype=dtype, barrel=barrel, interpret=False)
  joint = dataclasses.replace(
    alone, block=_block(segment_len, block, barrel=barrel), num_branches=branches[0],
    num_pieces=branches[1])
  return joint.branches_fit and alone.gathered_bytes + joint.branch_bytes <= capacity


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
  """Attention of arrays of any length; keeps them as they came, so that others can share them.

  `places` is (memory_length, start), the latter None without branches.
  """
  return _save(tiling, query, key_value, relative, content_bias, position_bias, places)[0]


def _save(tiling, *arrays):
  out, *sums = _forward(tiling, *_whole_blocks(tiling, *arrays[:3]), *arrays[3:])
  out = _without_padding(tiling, out)
  return out, (*arrays, out, sums)


def _gradients(tiling, saved, out_gradient):
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


_attention.defvjp(_save, _gradients)


def _resized(x, axis, size):
  """Zeros behind, up to a size."""
  missing = size - x.shape[axis]
  return jnp.pad(x, [(0, missing if i == axis else 0) for i in range(x.ndim)]) if missing else x


def _padded(tiling, x, axis, size, whole_size):
  """Pads the row's part of an axis, its first `size` entries, and that of its branches behind."""
  if not tiling.num_branches:
    return _resized(x, axis, whole_size)
  missing = tiling.branch_rows - tiling.num_branches * tiling.num_pieces
  if size == whole_size and not missing:
    return x
  row, rows = jnp.split(x, [size], axis=axis)
  return jnp.concatenate(
    [_resized(row, axis, whole_size), _resized(rows, axis, tiling.branch_rows)], axis=axis)


def _without_padding(tiling, out):
  """The queries of `_padded` without its zeros."""
  queries, pieces = tiling.query_blocks * tiling.block, tiling.num_branches * tiling.num_pieces
  if out.shape[2] == tiling.segment_len + pieces:
    return out
  row = out[:, :, :tiling.segment_len]
  return jnp.concatenate([row, out[:, :, queries:queries + pieces]], axis=2) if pieces else row


def _whole_blocks(tiling, query, key_value, relative):
  """Pads to whole blocks; row c of the table is the distance of a key c - (queries - 1) later.

  Distances beyond those of the segment, for branches, come before row 0 in a cycle.
  """
  queries, keys = (x * tiling.block for x in (tiling.query_blocks, tiling.key_blocks))
  front = queries - tiling.segment_len - tiling.num_pieces
  table = _resized(relative, 1, tiling.distances)
  return (
    _padded(tiling, query, 2, tiling.segment_len, queries),
    _padded(tiling, key_value, 3, tiling.segment_len + tiling.memory_len, keys),
    jnp.roll(table, front, axis=1) if front else table)


def _forward(tiling, query, key_value, relative, content_bias, position_bias, places):
  """Of padded arrays: the output, log(sum(exp(scores))) `[N, B, 1, T]` float32, and of branches.

  Those of branches are `[N, B, Q, 1]`.
  """
  memory_length, start = places
  block, width = tiling.block, tiling.width
  num_heads, num_rows, _, _ = query.shape
  queries = tiling.query_blocks * block

  def key_block(head, row, i, j, lengths):
    # Tiles that are skipped name the block of a tile that is not: nothing is copied for them.
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
  scratch = [pltpu.VMEM((block, 1), jnp.float32), pltpu.VMEM((block, 1), jnp.float32),
             pltpu.VMEM((block, width), jnp.float32)]
  if tiling.num_branches:
    size = tiling.branch_rows
    inputs += branches.Rows(query, key_value, relative, *branches.rows_of(tiling, start))
    in_specs += branches.row_specs(tiling)
    for columns, dtype in ((width, query.dtype), (1, jnp.float32)):
      out_shape.append(jax.ShapeDtypeStruct((num_heads, num_rows, size, columns), dtype))
      out_specs.append(pl.BlockSpec((1, 1, size, columns), lambda n, b, *_: (n, b, 0, 0)))
    scratch += branches.average_shapes(tiling)
  out, log_sum, *of_rows = pl.pallas_call(
    functools.partial(_forward_with_branches if tiling.num_branches else _forward_tile, tiling),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(num_heads, num_rows, tiling.query_blocks, tiling.key_blocks),
      in_specs=in_specs, out_specs=out_specs, scratch_shapes=scratch),
    out_shape=out_shape,
    compiler_params=pltpu.CompilerParams(
      # The last block of queries leads the branches: then no two cores may share a row.
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


def _forward_with_branches(tiling, lengths, *refs):
  """One tile of the forward pass, and of that of the branches, in the last block of queries."""
  inputs, rows, (out, log_sum, *of_rows), scratch, to = split_refs(refs, 6, 5, 4, 3, 4)
  rows, to = branches.Rows(*rows), branches.Average(*to)
  key_value, biases = inputs[1], tuple(x[0] for x in inputs[4:])
  i, j = pl.program_id(2), pl.program_id(3)
  length, last = lengths[pl.program_id(1)], i == tiling.query_blocks - 1

  @pl.when(last & (j == 0))
  def _():
    branches.start_average(tiling, rows, biases, to)

  @pl.when(last & (j >= tiling.first_key_block(length)))
  def _():
    branches.add_to_average(tiling, rows, biases, key_value, length, j, to)

  @pl.when(last & (j == tiling.key_blocks - 1))
  def _():
    branches.finish_average(to, *of_rows)

  _forward_tile(tiling, lengths, *inputs, out, log_sum, *scratch)


def _forward_tile(tiling, lengths, query, key_value, near, far, content_bias, position_bias, out,
                  log_sum, highest, total, average):
  """One tile of the forward pass; key blocks follow each other."""
  i, j = pl.program_id(2), pl.program_id(3)
  length = lengths[pl.program_id(1)]
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
    before = highest[...]
    now = jnp.maximum(before, scores.max(axis=1, keepdims=True))
    # A row without a visible key so far sums ones; its first visible key multiplies them by 0.
    weights = jnp.exp(scores - now)
    correction = jnp.exp(before - now)
    highest[...] = now
    total[...] = total[...] * correction + weights.sum(axis=1, keepdims=True)
    average[...] = average[...] * correction + dot(
      tiling, weights.astype(query.dtype), key_value[1, 0, 0], 'ax,xb')

  @pl.when(j == last)
  def _():
    out[0, 0] = (average[...] / total[...]).astype(out.dtype)
    log_sum[0, 0] = to_row(highest[...] + jnp.log(total[...]))
