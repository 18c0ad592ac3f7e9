"""Parts of a layer with a backward pass of their own."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fairjax.config import ModelConfig
from fairjax.model import TransformerXL, attention_paths, language_model
from fairjax.model.attention import drop
from fairjax.model.attention_kernel import fused_attention
from fairjax.model.causal_lm import Branches, init_memory
from fairjax.model.layers import layer_norm, relu_and_drop


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


def plain_norm(x, scale, bias):
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  centred = wide - wide.mean(-1, keepdims=True)
  normal = centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
  lead = (None,) * (x.ndim - 1)
  return (normal * scale[lead] + bias[lead]).astype(x.dtype)


@pytest.mark.parametrize('dtype, tolerance', [
  ('float64', 1e-13), ('float32', 3e-6), ('bfloat16', 1e-2)])
def test_layer_norm_has_the_values_and_gradients_of_its_formula(dtype, tolerance):
  with jax.enable_x64(dtype == 'float64'):
    rng = np.random.default_rng(0)
    x, gradient = (jnp.asarray(3 + 2 * rng.normal(size=(2, 5, 16)), dtype) for _ in range(2))
    x = x.at[0, 0].set(1.5)  # a row without variance
    scale, bias = (jnp.asarray(rng.normal(size=16), dtype) for _ in range(2))
    found, pull = jax.vjp(layer_norm, x, scale, bias)
    expected, pull_expected = jax.vjp(plain_norm, x, scale, bias)
    pairs = [(found, expected), *zip(pull(gradient), pull_expected(gradient), strict=True)]
    for ours, theirs in pairs:
      assert ours.dtype == theirs.dtype == x.dtype
      ours, theirs = (np.asarray(y, np.float64) for y in (ours, theirs))
      np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


def test_compiled_gradient_of_layer_norm_under_many_cotangents():
  """In jaxlib 0.10.2 XLA compiled that of x * rsqrt(mean(x * x)) wrongly for four axes."""
  rng = np.random.default_rng(1)
  x = jnp.asarray(rng.normal(size=(2, 2, 12, 8)), jnp.float32)
  scale, bias = jnp.asarray(rng.normal(size=(2, 8)), jnp.float32)

  def jacobian(norm):
    return jax.jit(jax.jacrev(lambda x: norm(x, scale, bias)))(x)

  with jax.enable_x64(True):
    _, pull = jax.vjp(lambda x: plain_norm(x, *(y.astype('float64') for y in (scale, bias))),
                      x.astype('float64'))
    expected = np.stack([
      pull(row)[0] for row in np.eye(x.size).reshape(-1, *x.shape)]).reshape(*x.shape, *x.shape)
  np.testing.assert_allclose(jacobian(layer_norm), expected, rtol=0, atol=1e-5)


@pytest.fixture
def kernel_here(monkeypatch):
  monkeypatch.setattr(attention_paths, 'fused_attention', functools.partial(
    fused_attention, interpret=True))


B, T, M, D, N, H, F, LAYERS = 2, 128, 128, 32, 2, 16, 64, 3


def long_rows(**options):
  """A model with tokens, memory and the shapes of its parameters."""
  config = ModelConfig(
    vocab_size=11, num_layers=LAYERS, model_dim=D, num_heads=N, head_dim=H, ff_dim=F,
    segment_len=T, memory_len=M, tie_position_biases=True, **options)
  model, tokens, memory = TransformerXL(config), jnp.ones((B, T), jnp.int32), init_memory(config, B)
  return model, tokens, memory, nn.unbox(
    jax.eval_shape(model.init, jax.random.key(0), tokens, memory))


def kept_by_layer(function, params, *, weights):
  """Bytes of what the backward pass keeps of a layer, with its weights or without."""
  pull = jax.eval_shape(lambda p: jax.vjp(function, p)[1], params)  # nothing is computed
  shapes = {x.shape for x in jax.tree.leaves(params['params']['layers'])}
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(pull)
             if x.shape[:1] == (LAYERS,) and (weights or x.shape not in shapes)) / LAYERS


@pytest.mark.usefixtures('kernel_here')
@pytest.mark.parametrize('attention', ['shift', 'heads', 'blocks', 'kernel'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_what_a_layer_keeps_for_its_backward_pass(attention, dtype):
  """Every array once: it fills most of the memory of training, and is written and read."""
  model, tokens, memory, params = long_rows(
    attention=attention, dtype=dtype, attention_block=32 if attention == 'blocks' else 128)
  found = kept_by_layer(lambda p: model.apply(p, tokens, memory).hidden, params, weights=True)
  item, s = jnp.dtype(dtype).itemsize, M + T
  # The weights of all layers, once, as they are multiplied.
  weights = item * sum(x.size for x in jax.tree.leaves(params['params']['layers'])) / LAYERS
  # What goes in; attention and residual; both sides of its norm; feed-forward and residual.
  kept = item * B * T * (4 * D + 2 * N * H + F) + item * 2 * B * s * N * H
  kept += 4 * N * B * T * (s if attention == 'shift' else 1)  # weights, or their total
  kept += item * B * M * D + item * s * N * H  # the memory that it read, the relative keys
  assert 0.9 * kept <= found - weights <= 1.05 * kept, (found, weights, kept)


@pytest.mark.usefixtures('kernel_here')
@pytest.mark.parametrize('attention', ['shift', 'heads', 'blocks', 'kernel'])
def test_branches_keep_nothing_of_the_row_again(attention):
  """No second copy of keys, values or states."""
  k, p = 2, 3
  model, tokens, memory, params = long_rows(attention=attention)
  first = jnp.ones((B, k), jnp.int32)
  branches = Branches(tokens=jnp.ones((B, k, p), jnp.int32), start=first, length=p * first,
                      original_end=first, weight=jnp.ones((B, k)))

  def outputs(params):
    output = model.apply(params, tokens, memory, branches)
    return output.hidden, output.pairs.h_bar_branch

  more = kept_by_layer(outputs, params, weights=False) - kept_by_layer(
    lambda p: model.apply(p, tokens, memory).hidden, params, weights=False)
  # States of the pieces, their queries, keys and values, and three weights of each on every key.
  pieces = 4 * B * k * p * (4 * D + 6 * N * H + F + 3 * N * (M + T + k * p))
  assert 0 < more <= pieces, (more, pieces)


def test_gradients_where_products_and_sums_go_to_libraries():
  """At the size of a small training, whose programs XLA hands to other code than those of tests."""
  b, t, k, p = 8, 64, 2, 4
  rng = np.random.default_rng(0)
  tokens = jnp.asarray(rng.integers(0, 512, (b, t + 1)), jnp.int32)
  start = rng.integers(1, t - p, (b, k)).astype(np.int32)
  branches = jax.tree.map(jnp.asarray, Branches(
    tokens=rng.integers(0, 512, (b, k, p)).astype(np.int32), start=start,
    length=np.full((b, k), p, np.int32), original_end=start + 1,
    weight=np.ones((b, k), np.float32)))

  def gradients(dtype, attention):
    config = ModelConfig(
      vocab_size=512, num_layers=1, model_dim=128, num_heads=2, head_dim=64, ff_dim=512,
      segment_len=t, memory_len=t, attention=attention, dtype=dtype)
    model, memory = TransformerXL(config), init_memory(config, b)
    hidden = np.random.default_rng(1).normal(size=memory.hidden.shape)
    memory = memory.replace(
      hidden=jnp.asarray(hidden, dtype), length=jnp.arange(b, dtype='int32') * t // b)
    params = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), tokens[:, :-1], memory))
    params = jax.tree.map(
      lambda x: jnp.asarray(0.1 * np.random.default_rng(x.size).normal(size=x.shape), dtype),
      params)

    def loss(params):
      output = model.apply(params, tokens[:, :-1], memory, branches)
      pairs = jnp.square(output.pairs.h_bar - output.pairs.h_bar_branch).mean()
      return pairs + language_model(config).mean_nll(params['params'], output.hidden, tokens[:, 1:])

    return jax.jit(jax.grad(loss))(params)

  with jax.enable_x64(True):
    expected = jax.tree.map(np.asarray, gradients('float64', 'shift'))
  for attention in ('shift', 'heads', 'blocks'):
    jax.tree.map(
      lambda found, exact: np.testing.assert_allclose(
        found, exact, rtol=0, atol=1e-5 * np.abs(exact).max()),
      gradients('float32', attention), expected)
