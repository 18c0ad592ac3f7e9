"""The ways to compute the attention of a segment, and which one suits a device.

All give the values of `attention.relative_attention`, the reference:

- shift: whole scores `[N, B, T, S]`; the fastest for short segments on CPU.
- heads: one head and one block of queries at a time, whose scores stay in a CPU's caches; 6 to 15 %
  less time for a training step of T = 512 than blocks.
- blocks: scores of one block of queries at a time; for long segments on accelerators without the
  kernel, and where attention weights are dropped.
- kernel: the fused kernel, for TPUs from v4 on, in float32 and bfloat16; it drops no weights.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, UInt32

from fairjax.config import ModelConfig
from fairjax.model import partitioning
from fairjax.model.attention import attention_by_head, attention_in_blocks, relative_attention
from fairjax.model.attention_kernel import fused_attention, kernel_runs_on, needs_barrel_shift
from fairjax.model.xla_features import device_in_context

_faulty: set[str] = set()  # kinds of devices on which this process does not use the kernel
_SHORT_CPU, _SHORT = 128, 256  # tokens of a segment whose whole scores are cheap; elsewhere
_CPU_BLOCK, _CPU_BLOCKS = 128, 8  # queries whose scores stay in a core's cache; most blocks


def choose_attention(config: ModelConfig, device_kind: str) -> str:
  """Picks the way to compute attention on a device; `config.attention` decides unless auto."""
  if config.attention == 'kernel' and device_kind in _faulty:
    return 'blocks'
  if config.attention != 'auto':
    return config.attention
  if config.segment_len >= 128 and kernel_serves(config, device_kind):
    return 'kernel'
  cpu = device_kind == 'cpu'
  if config.segment_len <= (_SHORT_CPU if cpu else _SHORT):
    return 'shift'
  return 'heads' if cpu else 'blocks'


def kernel_serves(config: ModelConfig, device_kind: str) -> bool:
  """Whether the kernel compiles for a device and the model needs nothing that the kernel lacks."""
  lacks = config.attention_dropout > 0 or config.dtype == 'float64'
  return not lacks and device_kind not in _faulty and kernel_runs_on(
    device_kind, segment_len=config.segment_len, memory_len=config.memory_len,
    width=config.head_dim, block=config.attention_block)


def refuse_kernel(device_kind: str) -> None:
  """Takes `blocks` for the kernel on such devices, in programs that this process traces later."""
  _faulty.add(device_kind)


def main_attention(
  config: ModelConfig,
  query: Float[Array, 'N B X H'],  # X = T, or with branches T + Q
  key_value: Float[Array, '2 N B Y H'] | tuple[Float[Array, 'N B Y H'], Float[Array, 'N B Y H']],
  relative: Float[Array, 'N R H'],  # Y = R = S, or with branches Y = S + Q, R = S + P
  content_bias: Float[Array, 'N H'],
  position_bias: Float[Array, 'N H'],
  memory_length: Int[Array, 'B'],
  seed: UInt32[Array, '2'] | None = None,
  start: Int[Array, 'B K'] | None = None,  # of branches, where `takes_branches`
  *,
  segment_len: int,
) -> Float[Array, 'N B X H']:
  """Attention of a segment, and with `start` of its branches, as `choose_attention` picks."""
  # The device of the mesh in context (`jax.set_mesh`) counts, so that a program can be compiled for
  # devices that are not here.
  device, path = _device_and_path(config)
  shared = (relative, content_bias, position_bias, memory_length)
  if path == 'kernel':
    kernel = functools.partial(
      fused_attention, segment_len=segment_len, block=config.attention_block,
      barrel_shift=needs_barrel_shift(device.device_kind))
    return over_mesh(kernel)(query, key_value, *shared, *(() if start is None else (start,)))
  rate = config.attention_dropout
  attention = {
    'shift': functools.partial(relative_attention, rate=rate),
    'heads': functools.partial(
      attention_by_head, block=max(_CPU_BLOCK, -(-segment_len // _CPU_BLOCKS)), rate=rate),
    'blocks': functools.partial(attention_in_blocks, rate=rate, block=config.attention_block),
  }[path]
  return attention(query, *halves(key_value), *shared, seed)


def takes_branches(
  config: ModelConfig, segment_len: int, memory_len: int, branches: tuple[int, int]
) -> bool:
  """Whether one kernel computes a segment and its (K, P) branches; else `branch_attention` does."""
  device, path = _device_and_path(config)
  return path == 'kernel' and kernel_runs_on(
    device.device_kind, segment_len=segment_len, memory_len=memory_len, width=config.head_dim,
    block=config.attention_block, branches=branches, dtype=config.dtype)


def _device_and_path(config):
  """Device of the mesh in context, or the default one, and its way to compute attention."""
  device = device_in_context()
  return device, choose_attention(config, device.device_kind)


def as_kept(
  config: ModelConfig, key_value: Float[Array, '2 N B S H']
) -> Float[Array, '2 N B S H'] | tuple[Float[Array, 'N B S H'], Float[Array, 'N B S H']]:
  """Keys and values as `main_attention` keeps them: one array for the kernel, else its halves."""
  # Other readers take these arrays too: each split of its own would be kept as well.
  return key_value if _device_and_path(config)[1] == 'kernel' else halves(key_value)


def halves(
  key_value: Float[Array, '2 N B S H'] | tuple[Float[Array, 'N B S H'], Float[Array, 'N B S H']]
) -> tuple[Float[Array, 'N B S H'], Float[Array, 'N B S H']]:
  """Keys and values, [N, B, S, H] each; a tuple stays as it is."""
  if isinstance(key_value, tuple):
    return key_value
  # The gradient of a split is one concatenation, that of two indices two paddings and a sum.
  key, value = (jnp.squeeze(x, 0) for x in jnp.split(key_value, 2))
  return key, value


def all_but_halves(primitive: Any, *_: Any, **__: Any) -> bool:
  """Policy of `jax.checkpoint`: saves everything except the results of `halves`."""
  return primitive.name not in ('split', 'squeeze')


def over_mesh(kernel: Callable[..., Array]) -> Callable[..., Array]:
  """Runs a kernel on each device's own heads and rows, since the compiler cannot split it."""
  def run(query, key_value, relative, content_bias, position_bias, *by_row):
    heads, rows = partitioning.dividing(('heads', 'rows'), query.shape[:2])
    P = PartitionSpec
    in_specs = (P(heads, rows), P(None, heads, rows), P(heads), P(heads), P(heads),
                *[P(rows)] * len(by_row))
    return partitioning.per_device(kernel, in_specs=in_specs, out_specs=P(heads, rows))(
      query, key_value, relative, content_bias, position_bias, *by_row)

  return run
