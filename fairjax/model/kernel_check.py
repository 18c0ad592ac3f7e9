"""Compares the attention kernel with `blocks` on a device, before a run relies on it there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fairjax.config import ModelConfig
from fairjax.errors import first_line
from fairjax.model.attention import attention_in_blocks, branch_attention
from fairjax.model.attention_kernel import fused_attention, kernel_runs_on, needs_barrel_shift

TOLERANCE = 0.03
"""Largest difference, by the largest value of an array: products in bfloat16 make 0.01."""


def kernel_fault(
  config: ModelConfig, branches: tuple[int, int] = (0, 0), *, interpret: bool = False
) -> str:
  """What is wrong with the kernel on the first device (`interpret`: slowly, on any), or ''."""
  # One row of the model's sizes, values and gradients of all arrays: the segment alone and, where
  # the model would compute them together, with its (K, P) branches.
  device_kind = jax.local_devices()[0].device_kind
  barrel_shift = needs_barrel_shift(device_kind)
  joint = branches[0] > 0 and (interpret or kernel_runs_on(
    device_kind, segment_len=config.segment_len, memory_len=config.memory_len,
    width=config.head_dim, block=config.attention_block, branches=branches, dtype=config.dtype))
  options = {'block': config.attention_block, 'barrel_shift': barrel_shift, 'interpret': interpret}
  try:
    worst = np.max([_difference(config, laid_out, options)
                    for laid_out in ((0, 0), *([branches] if joint else []))])
  except Exception as e:  # of the compiler, Mosaic and the device: many types
    return f'it does not run: {type(e).__name__}: {first_line(e)[:200]}'
  if not worst <= TOLERANCE:  # nor NaN
    return f'it differs from blocks by {worst:.2g} of the largest value, at most {TOLERANCE:g}'
  return ''


def _difference(config, branches, options):
  """Largest difference of values and gradients, by the largest value of an array; perhaps NaN."""
  count, pieces = branches
  heads, length, width = config.num_heads, config.segment_len, config.head_dim
  keys, own = config.memory_len + length, count * pieces
  rng = np.random.default_rng(0)
  arrays = [jnp.asarray(rng.normal(size=shape), config.dtype) for shape in (
    (heads, 1, length + own, width), (2, heads, 1, keys + own, width),
    (heads, keys + pieces, width), (heads, width), (heads, width))]
  # Part of the memory is there.
  memory_length = jnp.array([config.memory_len - config.memory_len // 3], jnp.int32)
  start = jnp.asarray(rng.integers(0, length, (1, max(count, 1))), jnp.int32)
  cotangent = jnp.asarray(rng.normal(size=arrays[0].shape), config.dtype)

  def kernel(*arrays):
    return fused_attention(*arrays, memory_length, start if count else None, segment_len=length,
                           **options)

  def blocks(query, key_value, relative, u, v):
    row, own = jnp.split(key_value, [keys], axis=3)
    further, near = jnp.split(relative, [pieces], axis=1)
    found = attention_in_blocks(query[:, :, :length], *row, near, u, v, memory_length,
                                block=config.attention_block)
    if not count:
      return found
    return jnp.concatenate([found, branch_attention(
      query[:, :, length:], *row, *own, near, further, u, v, start, memory_length,
      segment_len=length)], axis=2)

  @functools.partial(jax.jit, static_argnums=0)
  def both(attention, arrays):
    value, gradient = jax.vjp(attention, *arrays)
    return [value, *gradient(cotangent)]

  pairs = zip(*([np.asarray(x, np.float64) for x in both(attention, arrays)]
                for attention in (kernel, blocks)), strict=True)
  return float(np.max([np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in pairs]))
