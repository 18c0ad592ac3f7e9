"""The ways to compute the attention of a segment, and which one suits a device.

All give the values of `attention.relative_attention`, the reference:

- shift: whole scores `[N, B, T, S]`; the fastest for short segments on CPU.
- heads: whole scores of one head at a time, which stay in a CPU's caches.
- blocks: scores of one block of queries at a time; for long segments and attention dropout on
  accelerators.

Letters as in `attention`.
"""

import functools

import jax
from jaxtyping import Array, Float, Int, UInt32

from fairjax.config import ModelConfig
from fairjax.model.attention import relative_attention
from fairjax.model.attention_blocks import attention_in_blocks

_SHORT = 256  # tokens of a segment whose whole scores are cheap


def choose_attention(config: ModelConfig, platform: str, device_kind: str) -> str:
  """Picks the way to compute attention where `config.attention` leaves it open.

  Args:
    config: of the model.
    platform: 'cpu', 'gpu' or 'tpu'.
    device_kind: as JAX names it, e.g. 'TPU v5 lite'.

  Returns:
    'shift', 'heads' or 'blocks', or whatever else `config.attention` says.

  >>> choose_attention(ModelConfig(segment_len=512), 'cpu', 'cpu')
  'heads'
  """
  if config.attention != 'auto':
    return config.attention
  if config.segment_len <= _SHORT:
    return 'shift'
  return 'heads' if platform == 'cpu' else 'blocks'


def main_attention(
  config: ModelConfig,
  query: Float[Array, 'N B T H'],
  key_value: Float[Array, '2 N B S H'],
  relative: Float[Array, 'N S H'],
  content_bias: Float[Array, 'N H'],
  position_bias: Float[Array, 'N H'],
  memory_length: Int[Array, 'B'],
  seed: UInt32[Array, '2'] | None = None,
) -> Float[Array, 'N B T H']:
  """Attention of a segment, computed as `choose_attention` says for the default device.

  Args:
    config: of the model.
    query: `[N, B, T, H]`, and the others as for `relative_attention`.
    key_value: `[2, N, B, S, H]`, keys and values.
    relative: `[N, S, H]`.
    content_bias: `[N, H]`.
    position_bias: `[N, H]`.
    memory_length: `[B]`.
    seed: `[2]`; None: no dropout.

  Returns:
    `[N, B, T, H]`.
  """
  device = jax.devices()[0]
  rate = config.attention_dropout
  path = {
    'shift': functools.partial(relative_attention, rate=rate),
    'heads': functools.partial(relative_attention, rate=rate, by_head=True),
    'blocks': functools.partial(attention_in_blocks, rate=rate, block=config.attention_block),
  }[choose_attention(config, device.platform, device.device_kind)]
  return path(query, key_value[0], key_value[1], relative, content_bias, position_bias,
              memory_length, seed)
