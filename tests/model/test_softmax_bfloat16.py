"""The loss of a bfloat16 model against float64: what is rounded are its inputs, never a sum.

Hidden states, tables and projections are bfloat16 numbers, and the projected states happen to be
some exactly, so that the oracle, which adds in float64, has the same numbers to add. What is left
is the float32 rounding of the sums, bounded by counting them.
"""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from test_softmax import CONFIGS, _slow_log_probability

from fairjax.model import likelihood, softmax
from fairjax.model.likelihood import mean_nll, token_nll
from fairjax.model.softmax import parameter_table

B, T = 4, 64  # the mean of so many is a power of two, which rounds nothing
U, U_NARROW = 2.0 ** -24, 2.0 ** -8  # largest share of one rounding to float32, to bfloat16
MODELS = {name: dataclasses.replace(config, dtype='bfloat16') for name, config in CONFIGS.items()}


def _inputs(config):
  """Parameters, hidden states of few bits, targets; the parameters as the model reads them."""
  rng = np.random.default_rng(0)
  params = {}
  for name, p in parameter_table(config).items():
    values = rng.normal(size=p.shape)
    if 'projection' in name:  # sums of 16 products are multiples of 1/32 below 8: eight bits
      values = rng.integers(-1, 2, size=p.shape) / 4
    params[name] = values.astype(np.float32)
  hidden = rng.integers(-4, 5, size=(B, T, config.model_dim)) / 8
  targets = rng.integers(0, config.vocab_size, size=(B, T)).astype(np.int32)
  read = {name: x.astype(np.float64) if 'bias' in name else _narrow(x)
          for name, x in params.items()}
  return params, jnp.asarray(hidden, jnp.bfloat16), jnp.asarray(targets), read


def _narrow(x):
  return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def _expected(config, hidden, targets, read):
  """Likelihoods [B, T] and probabilities [B, T, V] in float64."""
  logs = np.array([[_slow_log_probability(read, config, h) for h in row]
                   for row in np.asarray(hidden, np.float64)])
  return -np.take_along_axis(logs, np.asarray(targets)[..., None], -1)[..., 0], np.exp(logs)


def _bound(config, hidden, read):
  """What float32 sums may be off.

  A score adds E products and a bias: E roundings of at most the sum of their sizes; a normaliser
  adds V exponentials, whose arguments are off by two scores; then a logarithm and the chosen score.
  Twice, for the head and a tail.
  """
  width = config.model_dim
  largest = max(np.abs(x).sum(-1).max() for name, x in read.items() if name.startswith('embedding'))
  state = max([np.abs(np.asarray(hidden, np.float64)).max()] + [
    np.abs(np.asarray(hidden, np.float64) @ x.T).max()
    for name, x in read.items() if 'projection' in name])
  size = largest * state + max(np.abs(x).max() for name, x in read.items() if 'bias' in name)
  return 2 * U * ((2 * width + 6) * size + config.vocab_size + 10)


@pytest.mark.parametrize('block', [0, 64])
@pytest.mark.parametrize('name', MODELS)
def test_likelihoods_are_sums_in_float32(name, block):
  config = MODELS[name]
  params, hidden, targets, read = _inputs(config)
  found = token_nll(params, config, hidden, targets, block=block)
  assert found.dtype == jnp.float32
  expected, _ = _expected(config, hidden, targets, read)
  worst, bound = np.abs(found - expected).max(), _bound(config, hidden, read)
  print(f'{name}, block {block}: {worst:.1e} of at most {bound:.1e}')
  assert worst <= bound < 2e-4


@pytest.mark.parametrize('name', ['plain', 'padded'])
@pytest.mark.parametrize('way', ['mean', 'mean of tokens'])
def test_the_mean_and_its_gradients_are_sums_in_float32(name, way, monkeypatch):
  config = MODELS[name]
  monkeypatch.setattr(likelihood, '_WHOLE', 0)  # as large inputs go
  monkeypatch.setattr(softmax, '_PART_TOKENS', 1)
  monkeypatch.setattr(softmax, '_PART_LOGITS', 40 * 224)  # of 256 tokens
  params, hidden, targets, read = _inputs(config)

  def loss(params, hidden):
    if way == 'mean':
      return mean_nll(params, config, hidden, targets)
    return jnp.mean(token_nll(params, config, hidden, targets, block=64))

  found, (d_params, d_hidden) = jax.value_and_grad(loss, (0, 1))(params, hidden)
  assert found.dtype == jnp.float32 and d_hidden.dtype == jnp.bfloat16
  nll, shares = _expected(config, hidden, targets, read)
  bound, n = _bound(config, hidden, read), B * T
  assert abs(float(found) - nll.mean()) <= bound + n * U * nll.mean()
  d_scores = (shares - np.eye(config.vocab_size)[np.asarray(targets)]).reshape(n, -1) / n
  # Of the bias: n terms as they are, each a share of its own error; the sum is in float32.
  error = np.abs(d_params['softmax_bias'][:config.vocab_size] - d_scores.sum(0))
  sizes = np.abs(d_scores).sum(0)
  assert d_params['softmax_bias'].dtype == jnp.float32
  assert (error <= (bound + n * U) * sizes + U).all()
  # Of the table: each term is rounded to bfloat16 once, before the product; the sums are not.
  flat = np.asarray(hidden, np.float64).reshape(n, -1)
  sizes = np.abs(d_scores).T @ np.abs(flat)
  gradient = d_params['embedding'][:config.vocab_size]
  error = np.abs(gradient - d_scores.T @ flat)
  assert (error <= (U_NARROW + bound + n * U) * sizes + U).all()
  # Terms next to the middle of two bfloat16 numbers may go the other way; most sums have none.
  error = np.abs(gradient - _narrow(d_scores).T @ flat)
  assert np.median(error / sizes) <= n * U


@pytest.mark.parametrize('name', ['plain', 'adaptive'])
def test_sums_in_bfloat16_would_be_seen(name, monkeypatch):
  """What the first test asks for rules them out: they are off a hundred times as much."""
  config = MODELS[name]
  params, hidden, targets, read = _inputs(config)
  expected, _ = _expected(config, hidden, targets, read)
  monkeypatch.setattr(jnp, 'promote_types', lambda dtype, wide: dtype)
  found = token_nll(params, config, hidden, targets, block=64)
  assert found.dtype == jnp.bfloat16
  worst = np.abs(np.asarray(found, np.float64) - expected).max()
  assert worst > 100 * _bound(config, hidden, read)
