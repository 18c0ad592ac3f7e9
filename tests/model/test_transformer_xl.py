"""The language model against its slow oracle; causality, memory, remat, dropout, precision."""

import dataclasses

import jax
import jax.numpy as jnp
import model_oracle as oracle
import numpy as np
import pytest

from fairjax.model import Branches, TransformerXL, init_memory, language_model


def _segments(model, params, tokens, memory, **kwargs):
  apply = oracle.jit(lambda t, m: model.apply({'params': params}, t, m, **kwargs))
  hidden = []
  for start in range(0, tokens.shape[1], model.config.segment_len):
    output = apply(tokens[:, start:start + model.config.segment_len], memory)
    hidden.append(output.hidden)
    memory = output.state
  return jax.device_put(np.concatenate(hidden, axis=1)), memory


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
      both = [np.concatenate([m, s], 1)[:, s.shape[1]:] for m, s in zip(
        np.asarray(slow.hidden), states[:-1], strict=True)]
      slow = slow.replace(
        hidden=np.stack(both), length=np.minimum(slow.length + 8, config.memory_len))
    np.testing.assert_allclose(memory.hidden, slow.hidden, rtol=0, atol=1e-11)
    np.testing.assert_array_equal(memory.length, slow.length)


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


def test_remat_recomputes():
  """The policies differ in the program; that none changes a result is shown with branches."""
  params, tokens, products = oracle.make_params(oracle.TINY), jnp.zeros((2, 8), jnp.int32), []
  for remat in ('none', 'dots', 'full'):
    config = dataclasses.replace(oracle.TINY, remat=remat)
    loss = lambda p, config=config: TransformerXL(config).apply(  # noqa: E731
      {'params': p}, tokens, init_memory(config, 2)).hidden.sum()
    products.append(str(jax.make_jaxpr(jax.grad(loss))(params)).count('dot_general'))
  assert products[0] < products[1] < products[2]


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


@pytest.mark.parametrize('remat', ['none', 'dots'])
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
  off, plain = (oracle.jit(lambda model=model, train=train: model.apply(
    {'params': params}, tokens, memory, train=train).hidden)()
                for model, train in ((model, False), (TransformerXL(oracle.TINY), True)))
  np.testing.assert_array_equal(off, plain)


@pytest.mark.parametrize(('norm', 'memory_len'), [('post', 3), ('pre', 9)])
def test_kept_keys_and_values_give_what_kept_states_give(norm, memory_len):
  """Four segments, one row of which starts anew in the third; M above and below T."""
  with jax.enable_x64():
    config = dataclasses.replace(oracle.TINY, norm=norm, memory_len=memory_len, dtype='float64')
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), oracle.make_params(config))
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


# Counterfactual branches: exactly the values and gradients of separate passes.


def _cosine(a, b):
  return (a * b).sum(-1) / jnp.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def _loss(params, hidden, h_bar, h_bar_branch, ends, targets, branches):
  logits = hidden @ params['embedding'].T + params['softmax_bias'][None, None]
  nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()
  fairness = (branches.weight * (1 - _cosine(h_bar, h_bar_branch))).sum()
  direction = jnp.sin(jnp.arange(hidden.shape[-1]))[None, None]
  monitor = (branches.weight[..., None] * jnp.tanh(ends[0] - 2 * ends[1]) * direction).sum()
  return nll + 10 * fairness + monitor


BRANCH_CASES = {
  'pre, normed h-bar': {'norm': 'pre', 'final_norm': True, 'h_bar_final_norm': True,
                        'tie_position_biases': False, 'memory_len': 2},
  'post, in blocks': {'attention': 'blocks', 'attention_block': 3, 'remat': 'dots'},
  'post, no memory, clamped': {'memory_len': 0, 'clamp_len': 4, 'remat': 'full'},
}


@pytest.mark.parametrize('case', BRANCH_CASES)
def test_values_and_gradients_equal_those_of_separate_passes(case):
  with jax.enable_x64(True):
    config = oracle.tiny(**BRANCH_CASES[case])
    model, params = TransformerXL(config), oracle.make_params(config)
    tokens = oracle.random_tokens(config, 2, 9)
    tokens, targets = tokens[:, :-1], tokens[:, 1:]
    # One row with a partly filled memory, one whose stream has just begun.
    memory = oracle.random_memory(config, 2, [min(3, config.memory_len), 0])
    branches = oracle.eight_branches()

    def fused(params):
      output = model.apply({'params': params}, tokens, memory, branches)
      pairs = output.pairs
      loss = _loss(params, output.hidden, pairs.h_bar, pairs.h_bar_branch,
                   (pairs.hidden, pairs.hidden_branch), targets, branches)
      return loss, (output.hidden, pairs)

    def separate(params):
      hidden, pairs = oracle.separate_passes(config, params, tokens, memory, branches)
      loss = _loss(params, hidden, *pairs[:2], pairs[2:], targets, branches)
      return loss, (hidden, pairs)

    (loss, (hidden, pairs)), gradient = oracle.jit(jax.value_and_grad(fused, has_aux=True))(params)
    (expected_loss, (expected_hidden, expected_pairs)), expected_gradient = oracle.jit(
      jax.value_and_grad(separate, has_aux=True))(params)
    assert abs(loss - expected_loss) <= 1e-9
    np.testing.assert_allclose(hidden, expected_hidden, rtol=0, atol=1e-9)
    used = np.asarray(branches.weight, bool)
    ours = (pairs.h_bar, pairs.h_bar_branch, pairs.hidden, pairs.hidden_branch)
    for a, b in zip(ours, expected_pairs, strict=True):
      np.testing.assert_allclose(a[used], b[used], rtol=0, atol=1e-9)
      assert np.isfinite(a).all()  # of padding too
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-9), gradient, expected_gradient)
    assert all(np.abs(g).max() > 1e-6 for g in jax.tree.leaves(gradient))


@pytest.mark.parametrize('train', [False, True])
def test_branches_leave_segment_and_memory_alone(train):
  config = dataclasses.replace(oracle.TINY, hidden_dropout=0.2, attention_dropout=0.2)
  model, params = TransformerXL(config), oracle.make_params(config)
  tokens, memory = oracle.random_tokens(config, 2, 8), oracle.random_memory(config, 2, [3, 8])
  rngs = {'dropout': jax.random.key(4)}
  apply = oracle.jit(lambda branches: model.apply(
    {'params': params}, tokens, memory, branches, train=train, rngs=rngs))
  alone, together = apply(None), apply(oracle.eight_branches())
  assert alone.pairs is None
  np.testing.assert_allclose(together.hidden, alone.hidden, rtol=0, atol=1e-6)
  np.testing.assert_allclose(together.state.hidden, alone.state.hidden, rtol=0, atol=1e-6)
  np.testing.assert_array_equal(together.state.length, alone.state.length)


def _identical_branches(tokens, pieces):
  """Branches that say what the row says, the last one at the row's end."""
  start = np.array([[0, 3, 5], [1, 2, 6]], np.int32)
  length = np.array([[2, 1, 3], [3, 1, 2]], np.int32)
  index = np.minimum(start[:, :, None] + np.arange(pieces), tokens.shape[1] - 1)
  return Branches(
    tokens=tokens[np.arange(2)[:, None, None], index], start=jnp.asarray(start),
    length=jnp.asarray(length), original_end=jnp.asarray(start + length - 1),
    weight=jnp.ones((2, 3)))


@pytest.mark.parametrize(('rates', 'norm', 'attention'), [
  ((0.0, 0.3), 'post', 'blocks'), ((0.3, 0.3), 'pre', 'shift'), ((0.0, 0.3), 'post', 'heads')])
def test_a_branch_identical_to_the_original_has_the_same_states_under_dropout(
  rates, norm, attention):
  with jax.enable_x64(True):
    config = oracle.tiny(hidden_dropout=rates[0], attention_dropout=rates[1], norm=norm,
                         attention=attention, attention_block=3)
    model, params = TransformerXL(config), oracle.make_params(config)
    tokens, memory = oracle.random_tokens(config, 2, 8), oracle.random_memory(config, 2, [3, 8])
    branches = _identical_branches(tokens, 3)
    apply = oracle.jit(lambda seed: model.apply(
      {'params': params}, tokens, memory, branches, train=True,
      rngs={'dropout': jax.random.key(seed)}).pairs)
    pairs, other = apply(0), apply(1)
    np.testing.assert_allclose(pairs.h_bar_branch, pairs.h_bar, rtol=0, atol=1e-12)
    np.testing.assert_allclose(pairs.hidden_branch, pairs.hidden, rtol=0, atol=1e-12)
    assert np.abs(pairs.h_bar - other.h_bar).max() > 0.1  # dropout was on


def test_pieces_use_the_masks_of_the_positions_that_they_replace():
  model, params = TransformerXL(oracle.TINY), oracle.make_params(oracle.TINY)
  branches = oracle.eight_branches()
  context = model.apply(
    {'params': params}, (2, 8), init_memory(oracle.TINY, 2), branches, (None, None),
    method='_context')
  for b, k in np.ndindex(2, 4):
    start, end, length = (int(x[b, k]) for x in (
      branches.start, branches.original_end, branches.length))
    expected = [min(start + p, end) for p in range(4)]
    if length:
      expected[length - 1] = end  # the states of a pair are read there
    np.testing.assert_array_equal(context.replaced[b, k], expected)


@jax.enable_x64()
def test_a_branch_that_goes_on_reads_what_a_separate_pass_reads():
  config = dataclasses.replace(
    oracle.TINY, dtype='float64', hidden_dropout=0.0, attention_dropout=0.0)
  model, params, memory = TransformerXL(config), oracle.make_params(config), init_memory(config, 1)
  row, start, end, value, more = [3, 5, 2, 6, 4, 1, 2, 3], 2, 3, [4, 5], 2
  branch, tokens = [*value, *row[end + 1:end + 1 + more]], jnp.asarray([row], jnp.int32)
  branches = Branches(
    tokens=jnp.asarray([[branch]], jnp.int32), start=jnp.array([[start]], jnp.int32),
    length=jnp.array([[len(branch)]], jnp.int32), original_end=jnp.array([[end]], jnp.int32),
    weight=jnp.ones((1, 1), jnp.float32), tail=jnp.ones((1, 1, more), bool))
  apply = oracle.jit(model.apply)
  pairs = apply({'params': params}, tokens, memory, branches).pairs
  for found, text, first in ((pairs.h_bar, row, end),
                             (pairs.h_bar_branch, row[:start] + branch, start + len(value) - 1)):
    wanted = apply({'params': params}, jnp.asarray([text], jnp.int32), memory,
                   positions=first + jnp.arange(1 + more, dtype=jnp.int32)[None]).h_bar_at
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
