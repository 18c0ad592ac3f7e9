"""Losses against NumPy in float64, closed forms and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial.distance
import scipy.special
import scipy.stats

from fairjax.train import steps as losses

RNG = np.random.default_rng(0)


def test_cosine_loss_is_scipy_cosine_distance():
  a, b = RNG.normal(size=(2, 3, 4, 5))
  weights = RNG.integers(0, 3, size=(3, 4)).astype(float)
  expected = np.average(
    [[scipy.spatial.distance.cosine(x, y) for x, y in zip(r, s, strict=True)]
     for r, s in zip(a, b, strict=True)], weights=weights)
  with jax.enable_x64(True):
    found = losses.cosine_fairness_loss(jnp.asarray(a), jnp.asarray(b), jnp.asarray(weights))
    assert abs(float(found) - expected) < 1e-12


def test_cosine_loss_ignores_padding_even_nan_and_is_zero_without_pairs():
  a, b = jnp.ones((1, 2, 3)), jnp.ones((1, 2, 3)).at[0, 1].set(jnp.nan)
  weights = jnp.array([[1.0, 0.0]])
  value, gradient = jax.value_and_grad(losses.cosine_fairness_loss)(a, b, weights)
  assert abs(float(value)) < 1e-6
  assert np.isfinite(np.asarray(gradient)).all()
  assert float(losses.cosine_fairness_loss(a, a, jnp.zeros((1, 2)))) == 0.0


def test_cosine_loss_of_zero_vectors_is_one_with_finite_gradient():
  value, gradient = jax.value_and_grad(losses.cosine_fairness_loss)(
    jnp.zeros((1, 1, 4)), jnp.ones((1, 1, 4)), jnp.ones((1, 1)))
  assert float(value) == 1.0
  assert np.isfinite(np.asarray(gradient)).all()


def test_cosine_loss_gradient_is_that_of_finite_differences():
  a, b = RNG.normal(size=(2, 2, 3, 4))
  weights = np.array([[1.0, 0.0, 2.0], [0.5, 1.0, 0.0]])
  with jax.enable_x64(True):
    def loss(x):
      return float(losses.cosine_fairness_loss(jnp.asarray(x), jnp.asarray(b),
                                               jnp.asarray(weights)))
    gradient = np.asarray(jax.grad(losses.cosine_fairness_loss)(
      jnp.asarray(a), jnp.asarray(b), jnp.asarray(weights)))
  numeric = np.zeros_like(a)
  with jax.enable_x64(True):
    for index in np.ndindex(a.shape):
      step = np.zeros_like(a)
      step[index] = 1e-6
      numeric[index] = (loss(a + step) - loss(a - step)) / 2e-6
  np.testing.assert_allclose(gradient, numeric, atol=1e-9)


def test_divergences_are_scipy_ones():
  p, q = RNG.normal(size=(2, 2, 3, 7))
  weights = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
  soft_p, soft_q = scipy.special.softmax(p, -1), scipy.special.softmax(q, -1)
  kl = np.average(scipy.stats.entropy(soft_p, soft_q, axis=-1), weights=weights)
  js = np.average(scipy.spatial.distance.jensenshannon(soft_p, soft_q, axis=-1) ** 2,
                  weights=weights)
  with jax.enable_x64(True):
    found = losses.next_token_divergences(jnp.asarray(p), jnp.asarray(q), jnp.asarray(weights))
    assert abs(float(found['kl']) - kl) < 1e-12
    assert abs(float(found['js']) - js) < 1e-12


def test_js_of_disjoint_distributions_is_ln_2():
  p = jnp.array([[[50.0, -50.0]]])
  found = losses.next_token_divergences(p, -p, jnp.ones((1, 1)))
  np.testing.assert_allclose(found['js'], np.log(2), rtol=1e-6)


def test_binary_cross_entropy_is_the_log_likelihood_and_stays_finite():
  logits, labels = np.array([-3.0, 0.2, 80.0, -80.0]), np.array([0.0, 1.0, 1.0, 1.0])
  expected = -np.mean(np.where(labels > 0, scipy.special.log_expit(logits),
                               scipy.special.log_expit(-logits)))
  found = losses.binary_cross_entropy(jnp.asarray(logits, jnp.float32),
                                      jnp.asarray(labels, jnp.float32))
  np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize('weights, expected', [([1, 1], 2.0), ([0, 3], 3.0), ([0, 0], 0.0)])
def test_weighted_mean(weights, expected):
  found = losses.weighted_mean(jnp.array([1.0, 3.0]), jnp.array(weights, jnp.float32))
  assert float(found) == expected
