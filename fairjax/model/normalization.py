"""Layer normalisation with a backward pass of its own."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_EPSILON = 1e-5


@jax.custom_vjp
def layer_norm(
  x: Float[Array, '*S D'], scale: Float[Array, 'D'], bias: Float[Array, 'D']
) -> Float[Array, '*S D']:
  """Layer normalisation (Ba et al. 2016) with epsilon 1e-5; statistics in float32 or wider.

  For the backward pass it keeps x in its own dtype and two numbers a row, where differentiating the
  formula would keep four arrays like x in float32. Differentiable in reverse mode.

  Args:
    x: `[..., D]` float.
    scale: `[D]`.
    bias: `[D]`.

  Returns:
    `[..., D]` in the dtype of `x`.
  """
  return _normalise(x, *_statistics(x), scale, bias)


def _statistics(x):
  """Mean and reciprocal of the standard deviation of each row, `[..., 1]`."""
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  mean = wide.mean(-1, keepdims=True)
  variance = jnp.square(wide - mean).mean(-1, keepdims=True)
  return mean, 1 / jnp.sqrt(variance + _EPSILON)


def _normalise(x, mean, rate, scale, bias):
  normal, lead = (x.astype(mean.dtype) - mean) * rate, (None,) * (x.ndim - 1)
  return (normal * scale[lead] + bias[lead]).astype(x.dtype)


def _forward(x, scale, bias):
  mean, rate = _statistics(x)
  return _normalise(x, mean, rate, scale, bias), (x, mean, rate, scale, bias)


def _backward(saved, gradient):
  """Gradients of x, scale and bias, each in its dtype.

  With n the normalised row and g = gradient * scale, that of x is the part of g that is orthogonal
  to 1 and to n, over the standard deviation.
  """
  x, mean, rate, scale, bias = saved
  gradient, rows = gradient.astype(mean.dtype), tuple(range(x.ndim - 1))
  normal = (x.astype(mean.dtype) - mean) * rate
  d_normal = gradient * scale[(None,) * len(rows)]
  d_x = rate * (d_normal - d_normal.mean(-1, keepdims=True)
                - normal * (d_normal * normal).mean(-1, keepdims=True))
  d_scale, d_bias = (gradient * normal).sum(rows), gradient.sum(rows)
  return d_x.astype(x.dtype), d_scale.astype(scale.dtype), d_bias.astype(bias.dtype)


layer_norm.defvjp(_forward, _backward)
