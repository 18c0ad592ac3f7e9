"""The language model against its slow oracle; causality, memory, remat, dropout, precision."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import model_oracle as oracle
import numpy as np
import pytest

from fairjax.config import ModelConfig
from fairjax.model import CausalLM, State, TransformerXL, init_memory, language_model
from fairjax.model.softmax import embed_tokens


def _segments(model, params, tokens, memory, **kwargs):
  """Reads tokens [B, X] segment after segment; returns all softmax inputs and the last memory."""
  apply = oracle.jit(lambda t, m: model.apply({'params': params}, t, m, **kwargs))
  hidden = []
  for start in range(0, tokens.shape[1], model.config.segment_len):
    output = apply(tokens[:, start:start + model.config.segment_len], memory)
    hidden.append(output.hidden)
    memory = output.state
  return jnp.concatenate(hidden, axis=1), memory


VARIANTS = {
  'post': {},
  'pre, scan unrolled': {'norm': 'pre', 'final_norm': True, 'num_layers': 3, 'scan_unroll': 3},
  'untied, short memory': {'tie_position_biases': False, 'memory_len': 3},
  'no memory': {'memory_len': 0},
  'clamped': {'clamp_len': 5},
  'longer memory than segment': {'memory_len': 19},
}


@pytest.mark.parametrize('variant', VARIANTS)
def test_scanned_segments_equal_a_loop_over_layers(variant):
  with jax.enable_x64(True):
    config = oracle.tiny(**VARIANTS[variant])
    params = oracle.make_params(config)
    tokens = oracle.random_tokens(config, 2, 3 * 8)
    hidden, memory = _segments(TransformerXL(config), params, tokens, init_memory(config, 2))
    slow = init_memory(config, 2)
    forward = oracle.jit(lambda t, m: oracle.forward(config, params, t, m))
    for start in range(0, tokens.shape[1], 8):
      expected, states = forward(tokens[:, start:start + 8], slow)
      np.testing.assert_allclose(hidden[:, start:start + 8], expected, rtol=0, atol=1e-11)
      both = [jnp.concatenate([m, s], 1)[:, s.shape[1]:] for m, s in zip(
        slow.hidden, states[:-1], strict=True)]
      slow = slow.replace(
        hidden=jnp.stack(both), length=jnp.minimum(slow.length + 8, config.memory_len))
    np.testing.assert_allclose(memory.hidden, slow.hidden, rtol=0, atol=1e-11)
    np.testing.assert_array_equal(memory.length, slow.length)


def test_segments_with_a_whole_memory_equal_one_long_segment():
  # With a memory as long as the text nothing is cut off, so segments change nothing.
  with jax.enable_x64(True):
    config = oracle.tiny(memory_len=24)
    params, tokens = oracle.make_params(config), oracle.random_tokens(config, 2, 24)
    model = TransformerXL(config)
    in_segments, _ = _segments(model, params, tokens, init_memory(config, 2))
    at_once = oracle.jit(model.apply)({'params': params}, tokens, init_memory(config, 2)).hidden
    np.testing.assert_allclose(in_segments, at_once, rtol=0, atol=1e-11)


def test_a_token_sees_itself_and_what_came_before():
  config = dataclasses.replace(oracle.TINY, vocab_size=2 * 8)
  model, params = TransformerXL(config), oracle.make_params(config)
  tokens = jnp.arange(16).reshape(2, 8)  # every slot has an embedding of its own
  memory = oracle.random_memory(config, 2, [3, 8])

  def hidden(embedding, memory_hidden):
    return model.apply({'params': params | {'embedding': embedding}}, tokens,
                       memory.replace(hidden=memory_hidden)).hidden

  on_tokens, on_memory = oracle.jit(jax.jacrev(hidden, argnums=(0, 1)))(
    params['embedding'], memory.hidden)
  sees = np.abs(on_tokens).max(axis=(2, 4)).reshape(2, 8, 2, 8) > 0
  expected = np.zeros((2, 8, 2, 8), bool)
  expected[0, :, 0] = expected[1, :, 1] = np.tril(np.ones((8, 8), bool))
  np.testing.assert_array_equal(sees, expected)
  reads = np.abs(on_memory).max(axis=(2, 6)) > 0  # [B, T, L, B, M]
  expected = np.zeros((2, 8, 2, 2, 8), bool)
  expected[0, :, :, 0, 5:] = expected[1, :, :, 1, :] = True  # valid slots only, in every layer
  np.testing.assert_array_equal(reads, expected)


def test_reset_rows_start_afresh_and_others_go_on():
  config, tokens = oracle.TINY, oracle.random_tokens(oracle.TINY, 2, 8)
  model, params = TransformerXL(config), oracle.make_params(config)
  memory = oracle.random_memory(config, 2, [8, 8])
  read = oracle.jit(lambda m: model.apply({'params': params}, tokens, m).hidden)
  kept, fresh = read(memory), read(init_memory(config, 2))
  reset = read(memory.reset(jnp.array([True, False])))
  np.testing.assert_array_equal(reset[0], fresh[0])
  np.testing.assert_array_equal(reset[1], kept[1])
  assert np.abs(kept[0] - fresh[0]).max() > 1e-2


def test_memory_carries_no_gradient():
  with jax.enable_x64(True):
    config = oracle.tiny()
    model, params = TransformerXL(config), oracle.make_params(config)
    first, second = (oracle.random_tokens(config, 2, 8, seed) for seed in (1, 2))
    read = lambda p, t, m: model.apply({'params': p}, t, m)  # noqa: E731

    def loss(p, q):  # the memory comes from parameters q
      memory = read(q, first, init_memory(config, 2)).state
      return jnp.sin(read(p, second, memory).hidden).sum()

    of_reader, of_writer = oracle.jit(jax.grad(loss, argnums=(0, 1)))(params, params)
    assert all(np.abs(g).max() > 1e-6 for g in jax.tree.leaves(of_reader['layers']))
    assert all(np.abs(g).max() == 0 for g in jax.tree.leaves(of_writer))


def test_remat_recomputes_and_changes_nothing():
  with jax.enable_x64(True):
    tokens = oracle.random_tokens(oracle.TINY64, 2, 8)
    params = oracle.make_params(oracle.TINY64)
    gradients, programs = {}, {}
    for remat in ('none', 'dots', 'full'):
      config = oracle.tiny(remat=remat)
      loss = lambda p, config=config: jnp.sin(TransformerXL(config).apply(  # noqa: E731
        {'params': p}, tokens, oracle.random_memory(config, 2, [3, 8])).hidden).sum()
      gradients[remat] = oracle.jit(jax.grad(loss))(params)
      programs[remat] = str(jax.make_jaxpr(jax.grad(loss))(params)).count('dot_general')
    # Recomputed matmuls: the policies differ in the program, not in the result.
    assert programs['none'] < programs['dots'] < programs['full']
    for remat in ('dots', 'full'):
      jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-11),
                   gradients['none'], gradients[remat])


def test_bfloat16_stays_near_float32_with_float32_parameters_and_logits():
  config = oracle.TINY
  coarse = dataclasses.replace(config, dtype='bfloat16')
  params = oracle.make_params(coarse)
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype('float32')}
  tokens = oracle.random_tokens(config, 2, 16)
  logits = {}
  for c in (config, coarse):
    model = TransformerXL(c)
    hidden, memory = _segments(model, params, tokens, init_memory(c, 2))
    assert hidden.dtype == memory.hidden.dtype == c.dtype
    logits[c.dtype] = language_model(model.config).logits(params, hidden)
    assert logits[c.dtype].dtype == jnp.float32
  error = np.abs(logits['bfloat16'] - logits['float32']).max()
  assert 0 < error < 0.03 * np.abs(logits['float32']).max()


@pytest.mark.parametrize('remat', ['none', 'dots', 'full'])
def test_loops_over_layers_read_weights_and_stack_gradients_in_the_dtype_that_they_multiply(remat):
  """Neither loop over the layers moves a weight in float32, and none is stacked again."""
  config = dataclasses.replace(oracle.TINY, dtype='bfloat16', remat=remat, memory_len=5)
  model, params = TransformerXL(config), oracle.make_params(config)
  tokens, memory = oracle.random_tokens(config, 3, 8), init_memory(config, 3)
  program = jax.make_jaxpr(jax.grad(lambda p: model.apply(
    {'params': p}, tokens, memory).hidden.astype(jnp.float32).sum()))(params)
  forward, backward = (e for e in program.eqns if e.primitive.name == 'scan')
  shapes = {x.shape for x in jax.tree.leaves(params['layers'])}
  read, stacked, again = (
    [x.aval for x in atoms if x.aval.shape in shapes]
    for atoms in (forward.invars + backward.invars, backward.outvars, forward.outvars))
  assert len(stacked) == len(jax.tree.leaves(params['layers'])) and again == []
  assert {x.dtype for x in read + stacked} == {jnp.dtype('bfloat16')}
  assert {x.dtype for x in program.out_avals} == {jnp.dtype('float32')}


def test_dropout_is_on_in_training_only_and_follows_its_key():
  config = dataclasses.replace(oracle.TINY, hidden_dropout=0.3, attention_dropout=0.3)
  model, params = TransformerXL(config), oracle.make_params(config)
  tokens, memory = oracle.random_tokens(config, 2, 8), init_memory(config, 2)
  train = oracle.jit(lambda key: model.apply(
    {'params': params}, tokens, memory, train=True, rngs={'dropout': key}).hidden)
  one, again, other = (train(jax.random.key(seed)) for seed in (0, 0, 1))
  np.testing.assert_array_equal(one, again)
  assert np.abs(one - other).max() > 0.1
  # A unit of the softmax's input is dropped with the rate of hidden states.
  dropped = np.mean([np.asarray(train(jax.random.key(seed)) == 0) for seed in range(40)])
  assert abs(dropped - 0.3) < 4 * (0.3 * 0.7 / (40 * 2 * 8 * 16)) ** 0.5
  off = model.apply({'params': params}, tokens, memory).hidden
  plain = TransformerXL(oracle.TINY).apply({'params': params}, tokens, memory, train=True).hidden
  np.testing.assert_array_equal(off, plain)


@pytest.mark.parametrize('field', ['hidden_dropout', 'attention_dropout'])
def test_the_mean_over_dropout_masks_is_near_no_dropout(field):
  # One layer's attention and embeddings enter the first residual linearly enough to see a bias of
  # the 1 / (1 - rate) scale at once.
  config = dataclasses.replace(oracle.TINY, norm='pre', init_std=0.05, **{field: 0.2})
  model, params = TransformerXL(config), oracle.make_params(config)
  params = jax.tree.map(lambda p: 0.3 * p, params)
  tokens, memory = oracle.random_tokens(config, 2, 8), init_memory(config, 2)
  keys = jax.random.split(jax.random.key(0), 400)
  draws = oracle.jit(jax.vmap(lambda key: model.apply(
    {'params': params}, tokens, memory, train=True, rngs={'dropout': key}).hidden))(keys)
  expected = model.apply({'params': params}, tokens, memory).hidden
  spread = np.asarray(draws.std(0)) / 20
  assert spread.max() > 0
  assert np.mean(np.abs(draws.mean(0) - expected) <= 3 * spread + 1e-3) > 0.95


@pytest.mark.parametrize('normed', [False, True])
def test_h_bar_is_the_mean_of_the_last_two_layers(normed):
  with jax.enable_x64(True):
    config = oracle.tiny(norm='pre', final_norm=True, h_bar_final_norm=normed, num_layers=3)
    params, tokens = oracle.make_params(config), oracle.random_tokens(config, 2, 8)
    memory = oracle.random_memory(config, 2, [3, 8])
    positions = jnp.array([[0, 7, 3], [2, 2, 6]])
    output = oracle.jit(TransformerXL(config).apply)(
      {'params': params}, tokens, memory, positions=positions)
    _, states = oracle.jit(lambda p: oracle.forward(config, p, tokens, memory))(params)
    last = states[3]
    if normed:
      last = oracle.layer_norm(last, params['final_norm_scale'], params['final_norm_bias'])
    expected = (states[2] + last)[np.arange(2)[:, None], positions] / 2
    np.testing.assert_allclose(output.h_bar_at, expected, rtol=0, atol=1e-11)
    assert output.pairs is None


def test_logits_share_the_embedding():
  config, params = oracle.TINY, oracle.make_params(oracle.TINY)
  model = TransformerXL(config)
  hidden = jnp.asarray(np.random.default_rng(0).normal(size=(3, 16)), jnp.float32)
  np.testing.assert_allclose(
    language_model(model.config).logits(params, hidden),
    np.asarray(hidden) @ np.asarray(params['embedding']).T + np.asarray(params['softmax_bias']),
    rtol=0, atol=1e-5)
  np.testing.assert_allclose(
    embed_tokens(params, config, jnp.array([5, 2])),
    4 * np.asarray(params['embedding'])[[5, 2]], rtol=1e-6, atol=0)


def test_parameter_tree_has_the_published_shapes_and_counts():
  # The wt103-large model of Dai et al.: 245.5 M parameters outside its softmax.
  config = ModelConfig(
    vocab_size=1000, num_layers=18, model_dim=1024, num_heads=16, head_dim=64, ff_dim=4096)
  shapes = jax.eval_shape(lambda: TransformerXL(config).init(
    jax.random.key(0), jnp.zeros((1, 2), jnp.int32), init_memory(config, 1)))['params']
  plain = nn.unbox(shapes)
  sizes = {name: sum(leaf.size for leaf in jax.tree.leaves(tree)) for name, tree in plain.items()}
  per_layer = 5 * 1024 ** 2 + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024
  assert sizes == {
    'embedding': 1000 * 1024, 'softmax_bias': 1000, 'content_bias': 1024, 'position_bias': 1024,
    'layers': 18 * per_layer}
  assert round(18 * per_layer / 1e6, 1) == 245.5
  assert all(leaf.shape[0] == 18 for leaf in jax.tree.leaves(plain['layers']))
  names = {
    axis for spec in jax.tree.leaves(
      nn.get_partition_spec(shapes), is_leaf=lambda x: isinstance(x, jax.P)) for axis in spec}
  assert names == {'layers', 'vocab', 'embed', 'heads', 'head_dim', 'mlp', None}


def test_compile_time_does_not_grow_with_the_layers():
  def equations(num_layers):
    config = dataclasses.replace(oracle.TINY, num_layers=num_layers)
    tokens, memory = jnp.zeros((1, 8), jnp.int32), init_memory(config, 1)
    model = TransformerXL(config)
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), tokens, memory))
    return str(jax.make_jaxpr(lambda p: model.apply(p, tokens, memory).hidden)(params)).count('\n')

  assert equations(2) == equations(24)


def test_wrong_configs_and_shapes_are_refused():
  tokens, memory = jnp.zeros((1, 8), jnp.int32), init_memory(oracle.TINY, 1)
  with pytest.raises(ValueError, match='vocab_size'):
    TransformerXL(dataclasses.replace(oracle.TINY, vocab_size=0)).init(
      jax.random.key(0), tokens, memory)
  with pytest.raises(ValueError, match='jax_enable_x64'):
    TransformerXL(oracle.TINY64).init(jax.random.key(0), tokens, memory)


@pytest.mark.parametrize('norm', ['post', 'pre'])
def test_kept_keys_and_values_give_what_kept_states_give(norm):
  """Four segments, one row of which starts anew in the third; M above and below T."""
  with jax.enable_x64():
    for memory_len in (3, 9):
      config = dataclasses.replace(
        oracle.TINY, norm=norm, memory_len=memory_len, dtype='float64')
      params = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float64), oracle.make_params(config))
      model, rng = TransformerXL(config), np.random.default_rng(0)
      memories = [init_memory(config, 2, cached=cached) for cached in (False, True)]
      apply = jax.jit(model.apply)
      for i in range(4):
        tokens = jnp.asarray(rng.integers(0, config.vocab_size, size=(2, 5)), jnp.int32)
        found = []
        for j, memory in enumerate(memories):
          memory = memory.reset(jnp.array([False, i == 2]))
          output = apply({'params': params}, tokens, memory)
          memories[j] = output.state
          found.append(output.hidden)
        np.testing.assert_allclose(*found, rtol=0, atol=1e-12)
      assert memories[1].hidden.shape == (
        config.num_layers, 2, config.num_heads, 2, memory_len, config.head_dim)


def test_the_model_of_a_configuration_serves_the_protocol():
  config, params = oracle.tiny(dtype='float32'), oracle.make_params(oracle.tiny(dtype='float32'))
  model = language_model(config)
  state = model.init_state(4)
  assert isinstance(model, CausalLM) and isinstance(state, State)
  assert model == language_model(config) and hash(model) == hash(language_model(config))
  assert model.decoder() == language_model(config).decoder()
  state = state.replace(
    length=jnp.arange(4), hidden=state.hidden + jnp.arange(4, dtype='float32')[None, :, None, None])
  parts = state.split_rows(2)
  np.testing.assert_array_equal(parts.length, [[0, 2], [1, 3]])
  np.testing.assert_array_equal(parts.hidden[1], state.hidden[:, 1::2])
  jax.tree.map(np.testing.assert_array_equal, parts.join_rows(), state)
  assert jax.tree.structure(model.state_axes(), is_leaf=lambda x: isinstance(x, tuple)) == (
    jax.tree.structure(state))
  tokens = oracle.random_tokens(config, 4, 5)
  np.testing.assert_array_equal(
    model.apply(params, tokens, state).hidden,
    TransformerXL(config).apply({'params': params}, tokens, state).hidden)
