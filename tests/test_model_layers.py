"""Parts of a layer with a backward pass of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fairjax.model.attention import drop
from fairjax.model.layers import relu_and_drop


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('drops', [False, True])
def test_relu_and_dropout_have_the_values_and_gradients_of_one_after_the_other(drops, dtype):
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(3, 5, 7)), dtype).at[0, 0, :2].set(0.0)
  keep = jnp.asarray(rng.random(x.shape) < 0.6) if drops else None
  gradient = jnp.asarray(rng.normal(size=x.shape), dtype)
  found, pull = jax.vjp(lambda x: relu_and_drop(x, keep, rate=0.4), x)
  expected, pull_expected = jax.vjp(lambda x: drop(jax.nn.relu(x), keep, rate=0.4), x)
  tolerance = 3e-7 if dtype == 'float32' else 1e-2  # of a division by a constant
  np.testing.assert_allclose(
    *(y.astype(jnp.float32) for y in (found, expected)), rtol=tolerance, atol=0)
  (g,), (g_expected,) = pull(gradient), pull_expected(gradient)
  assert g.dtype == x.dtype
  np.testing.assert_allclose(
    *(y.astype(jnp.float32) for y in (g, g_expected)), rtol=tolerance, atol=0)
  assert not g[0, 0, :2].any() and g.any()


def test_neither_mask_is_kept_for_the_backward_pass():
  """The result alone, also from one iteration of a loop to its gradient."""
  def loss(x, keep):
    def body(x, keep):
      return jnp.sin(relu_and_drop(x, keep, rate=0.5)), None

    return jax.lax.scan(body, x, keep)[0].sum()

  x, keep = jnp.ones((5, 7)), jnp.ones((3, 5, 7), bool)
  kept = jax.tree.leaves(jax.vjp(loss, x, keep)[1])
  assert all(leaf.dtype != bool for leaf in kept)
