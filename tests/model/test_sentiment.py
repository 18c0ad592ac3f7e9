"""The sentiment projection against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fairjax.model import SentimentProjection


@pytest.mark.parametrize('num_layers', [2, 3])
def test_projection_is_an_mlp_that_also_returns_its_last_hidden_layer(num_layers):
  projection = SentimentProjection(num_layers=num_layers, hidden_dim=5)
  rng = np.random.default_rng(0)
  h_bar = rng.normal(size=(2, 3, 7)).astype(np.float32)
  shapes = jax.eval_shape(lambda: projection.init(jax.random.key(0), jnp.ones((1, 7))))['params']
  params = jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32), shapes)
  logit, hidden = projection.apply({'params': params}, jnp.asarray(h_bar))
  expected = h_bar
  for i in range(num_layers - 1):
    expected = np.maximum(expected @ params[f'weight_{i}'] + params[f'bias_{i}'], 0)
  np.testing.assert_allclose(hidden, expected, rtol=1e-4, atol=1e-4)
  last = num_layers - 1
  expected = (expected @ params[f'weight_{last}'] + params[f'bias_{last}'])[..., 0]
  np.testing.assert_allclose(logit, expected, rtol=1e-4, atol=1e-4)
  assert len(params) == 2 * num_layers
  coarse = projection.init_with_output(jax.random.key(0), jnp.ones((4, 7), jnp.bfloat16))
  assert {x.dtype for x in jax.tree.leaves(coarse)} == {jnp.dtype('float32')}
