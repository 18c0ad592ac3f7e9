"""The noise of sampling against other implementations of the generator and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from fairjax.generate import noise


def keys_of(seed, template, samples, coupled=True):
  stream = noise.stream_key(
    jnp.asarray(noise.seed_words(seed)), jnp.uint32(template), coupled=coupled)
  return noise.fold_in(stream, jnp.asarray(samples, jnp.uint32))


def test_keys_and_bits_are_those_of_jax():
  key = jax.random.wrap_key_data(jnp.array([7, 2 ** 31 + 5], jnp.uint32), impl='threefry2x32')
  folded = jax.random.fold_in(key, 123)
  own = noise.fold_in((jnp.uint32(7), jnp.uint32(2 ** 31 + 5)), jnp.uint32(123))
  assert list(map(int, own)) == jax.random.key_data(folded).tolist()
  bits = np.asarray(jax.random.bits(folded, (1000,)))
  # The Gumbel transform in float64.
  expected = -np.log(-np.log1p(-(bits + 0.5) / 2 ** 32))
  drawn = np.asarray(noise.gumbel(own, size=1000))
  assert drawn.dtype == np.float32
  np.testing.assert_allclose(drawn, expected, rtol=2e-5, atol=2e-6)


def test_distribution_and_independence():
  draws = np.asarray(noise.gumbel(keys_of(1, 2, range(400)), size=500))
  assert np.isfinite(draws).all()
  assert scipy.stats.kstest(draws.ravel()[:50000], scipy.stats.gumbel_r.cdf).pvalue > 1e-3
  for other in (keys_of(2, 2, range(400)), keys_of(1, 3, range(400)),
                keys_of(1, 2, range(400, 800)), keys_of(1, 2, range(400), coupled=False)):
    correlation = np.corrcoef(draws.ravel(), np.asarray(noise.gumbel(other, size=500)).ravel())
    assert abs(correlation[0, 1]) < 5 / np.sqrt(draws.size)


def test_choose_draws_from_the_softmax_and_never_what_has_no_share():
  logits = np.random.default_rng(0).normal(size=37, scale=2).astype(np.float32)
  logits[[0, 5, 36]] = -np.inf
  count = 200_000
  keys = keys_of(3, 0, range(count), coupled=False)
  drawn = np.asarray(noise.choose(keys, jnp.broadcast_to(jnp.asarray(logits), (count, 37))))
  shares = np.exp(logits - logits.max())
  shares /= shares.sum()
  counts = np.bincount(drawn, minlength=37)
  assert counts[[0, 5, 36]].sum() == 0 and counts.sum() == count
  z = (counts - count * shares) / np.sqrt(np.maximum(count * shares * (1 - shares), 1e-9))
  assert np.abs(z[shares > 0]).max() < 4.5
