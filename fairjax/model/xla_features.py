"""What a version of JAX or XLA may lack, found by asking for it once in a process."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


@functools.cache
def knows_options(*options: tuple[str, Any]) -> bool:
  """Whether the compiler of the default device knows these options with these values."""
  try:
    jax.jit(lambda x: x, compiler_options=dict(options)).lower(0).compile()
  except jax.errors.JaxRuntimeError:
    return False
  return True


def device_in_context() -> Any:
  """Device of the mesh in context, which has no platform in JAX 0.7.2, or the default one."""
  return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def takes_rows_only(dtype: Any) -> bool:
  """Whether products of a dtype with sums in float32 must have two axes: the XLA of JAX 0.7.2."""
  return (dtype == jnp.bfloat16 and device_in_context().device_kind == 'cpu'
          and not _sums_bfloat16_in_float32())


def word_products(
  hidden: Float[Array, '*S E'], table: Float[Array | np.ndarray, 'V E'], sum_dtype: Any
) -> Float[Array, '*S V']:
  """Products of hidden states and the vectors of words, summed in `sum_dtype`."""
  if takes_rows_only(hidden.dtype):
    rows = _word_products(hidden.reshape(-1, hidden.shape[-1]), table, sum_dtype)
    return rows.reshape(*hidden.shape[:-1], -1)
  return _word_products(hidden, table, sum_dtype)


def _word_products(hidden, table, sum_dtype):
  return jnp.einsum('...e,ve->...v', hidden, table, preferred_element_type=sum_dtype)


@functools.cache
def _sums_bfloat16_in_float32():
  """Whether `_word_products` of several axes runs on CPU: the XLA of JAX 0.7.2 takes rows only."""
  hidden, table = np.zeros((4, 6, 16), jnp.bfloat16), np.zeros((40, 16), jnp.bfloat16)
  try:
    run = jax.jit(_word_products, static_argnums=2).lower(hidden, table, jnp.float32).compile()
    jax.block_until_ready(run(hidden, table))
  except jax.errors.JaxRuntimeError:
    return False
  return True
