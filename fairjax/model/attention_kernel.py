"""Relative attention of Transformer-XL in one TPU kernel, forward and backward.

Tiles of scores live in the core's memory only (online softmax and recomputation as in Dao et al.
2022, arXiv:2205.14135), with the exact relative term of Dai et al. 2019: see `attention_tiles`.
Temporary memory is O(T). The backward pass is in `attention_kernel_backward`.

Letters as in `attention`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from fairjax.model.attention_kernel_backward import backward
from fairjax.model.attention_tiles import MASKED, Tiling, dot, tile_scores, to_row

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
  num_heads, num_rows, segment_len, width = query.shape
  if query.dtype not in (jnp.float32, jnp.bfloat16):
    raise ValueError(f"the attention kernel computes in float32 or bfloat16, not {query.dtype}: "
                     "set model.attention='blocks'")
  if block % _UNIT and not interpret:
    raise ValueError(f'the attention kernel needs blocks of a multiple of {_UNIT}, not {block}: '
                     'set model.attention_block')
  tiling = Tiling(
    num_heads=num_heads, num_rows=num_rows, segment_len=segment_len,
    memory_len=key_value.shape[3] - segment_len, width=width,
    block=fitting_block(segment_len, most=min(block, _BARREL_BLOCK) if barrel else block),
    dtype=str(query.dtype), barrel=barrel, interpret=interpret)
  biases = content_bias[:, None], position_bias[:, None]
  return _attention(tiling, query, key_value, relative, *biases, memory_length)


def kernel_runs_on(
  device_kind: str, *, segment_len: int, memory_len: int, width: int, block: int
) -> bool:
  """Whether the kernel and its backward pass compile for a device.

  Args:
    device_kind: as JAX names it, e.g. 'TPU v5 lite'.
    segment_len: T.
    memory_len: M.
    width: H.
    block: most queries in a tile.

  Returns:
    False for unknown devices, blocks that are no multiple of 128, and segments whose gradients do
    not fit into the core's memory.

  >>> sizes = {'segment_len': 512, 'memory_len': 512, 'width': 64, 'block': 512}
  >>> [kernel_runs_on(kind, **sizes) for kind in ('TPU v3', 'TPU v4', 'TPU v5 lite')]
  [False, True, True]
  """
  capacity = next(
    (size for kind, size in _CAPACITY.items() if device_kind.startswith(kind)), 0)
  if block % _UNIT:
    return False
  tiling = Tiling(
    num_heads=1, num_rows=1, segment_len=segment_len, memory_len=memory_len, width=width,
    block=fitting_block(segment_len, most=block), dtype='float32', barrel=False, interpret=False)
  return tiling.gathered_bytes <= capacity


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
def _attention(tiling, query, key_value, relative, content_bias, position_bias, memory_length):
  """Attention of arrays of any length; keeps them as they came, so that others can share them."""
  return _save(
    tiling, query, key_value, relative, content_bias, position_bias, memory_length)[0]


def _save(tiling, *arrays):
  out, log_sum = _forward(tiling, *_whole_blocks(tiling, *arrays[:3]), *arrays[3:])
  out = out[:, :, :tiling.segment_len]
  return out, (*arrays, out, log_sum)


def _gradients(tiling, saved, out_gradient):
  *arrays, memory_length, out, log_sum = saved
  padded, cut = jax.vjp(functools.partial(_whole_blocks, tiling), *arrays[:3])
  product = (out.astype(jnp.float32) * out_gradient.astype(jnp.float32)).sum(-1)[:, :, None]
  rest = tiling.query_blocks * tiling.block - tiling.segment_len
  gradients = backward(
    tiling, *padded, *arrays[3:], memory_length, log_sum,
    jnp.pad(product, ((0, 0), (0, 0), (0, 0), (0, rest))),
    jnp.pad(out_gradient, ((0, 0), (0, 0), (0, rest), (0, 0))))
  return *cut(gradients[:3]), *gradients[3:], np.zeros(memory_length.shape, jax.dtypes.float0)


_attention.defvjp(_save, _gradients)


def _whole_blocks(tiling, query, key_value, relative):
  """Pads to whole blocks; row c of the table is the distance of a key c - (queries - 1) later."""
  front = tiling.query_blocks * tiling.block - tiling.segment_len
  behind = tiling.key_blocks * tiling.block - key_value.shape[3]
  return (
    jnp.pad(query, ((0, 0), (0, 0), (0, front), (0, 0))),
    jnp.pad(key_value, ((0, 0), (0, 0), (0, 0), (0, behind), (0, 0))),
    jnp.pad(relative, ((0, 0), (front, behind - front), (0, 0))))


def _forward(tiling, query, key_value, relative, content_bias, position_bias, memory_length):
  """Of padded arrays: the output and log(sum(exp(scores))) `[N, B, 1, T]` float32."""
  block, width = tiling.block, tiling.width
  num_heads, num_rows, _, _ = query.shape

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
  out_shape = (
    jax.ShapeDtypeStruct(query.shape, query.dtype),
    jax.ShapeDtypeStruct((num_heads, num_rows, 1, query.shape[2]), jnp.float32))
  return pl.pallas_call(
    functools.partial(_forward_tile, tiling),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(num_heads, num_rows, tiling.query_blocks, tiling.key_blocks),
      in_specs=[
        of_queries,
        pl.BlockSpec((2, 1, 1, block, width),
                     lambda n, b, i, j, s: (0, n, b, key_block(n, b, i, j, s), 0)),
        distances(0), distances(1), of_head, of_head],
      out_specs=(
        of_queries, pl.BlockSpec((1, 1, 1, block), lambda n, b, i, j, _: (n, b, 0, i))),
      scratch_shapes=[pltpu.VMEM((block, 1), jnp.float32), pltpu.VMEM((block, 1), jnp.float32),
                      pltpu.VMEM((block, width), jnp.float32)]),
    out_shape=out_shape,
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'parallel', 'parallel', 'arbitrary')),
    cost_estimate=tiling.cost(products=4, once=(query, *out_shape)),
    interpret=tiling.interpret, name='relative_attention',
  )(memory_length.astype(jnp.int32), query, key_value, relative, relative, content_bias,
    position_bias)


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
