"""Counterfactual branches: exactly what separate passes over the changed sequences give."""

import dataclasses

import jax
import jax.numpy as jnp
import model_oracle as oracle
import numpy as np
import pytest

from fairjax.model import Branches, TransformerXL, init_memory


def _cosine(a, b):
  return (a * b).sum(-1) / jnp.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def _loss(params, hidden, h_bar, h_bar_branch, ends, targets, branches):
  """Language model loss, fairness loss, and a term on the states that the softmax reads."""
  logits = hidden @ params['embedding'].T + params['softmax_bias'][None, None]
  nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()
  fairness = (branches.weight * (1 - _cosine(h_bar, h_bar_branch))).sum()
  direction = jnp.sin(jnp.arange(hidden.shape[-1]))[None, None]
  monitor = (branches.weight[..., None] * jnp.tanh(ends[0] - 2 * ends[1]) * direction).sum()
  return nll + 10 * fairness + monitor


CASES = {
  'post': {},
  'pre': {'norm': 'pre', 'final_norm': True, 'tie_position_biases': False, 'memory_len': 5},
  'normed h-bar': {'norm': 'pre', 'final_norm': True, 'h_bar_final_norm': True, 'memory_len': 2},
  'in blocks': {'attention': 'blocks', 'attention_block': 3, 'remat': 'dots'},
  'no memory, clamped': {'memory_len': 0, 'clamp_len': 4, 'remat': 'full'},
}


@pytest.mark.parametrize('case', CASES)
def test_values_and_gradients_equal_those_of_separate_passes(case):
  with jax.enable_x64(True):
    config = oracle.tiny(**CASES[case])
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


def _branch_dependence(config, branches):
  """|d h-bar of a branch / d embedding of a slot|: tokens [B, K, B, T], pieces [B, K, B, K, P]."""
  model, params = TransformerXL(config), oracle.make_params(config)
  B, T = 2, config.segment_len
  K, P = branches.tokens.shape[1:]
  # Every slot gets a vocabulary entry of its own, so that its gradient can be told apart.
  slots = jnp.arange(B * (T + K * P)).reshape(B, T + K * P)
  params['embedding'] = jax.random.normal(jax.random.key(1), (slots.size, config.model_dim))
  params['softmax_bias'] = jnp.zeros(slots.size)
  memory = oracle.random_memory(config, B, [3, 0])
  swapped = branches.replace(tokens=slots[:, T:].reshape(B, K, P))

  def h_bar_branch(embedding):
    variables = {'params': params | {'embedding': embedding}}
    return model.apply(variables, slots[:, :T], memory, swapped).pairs.h_bar_branch

  jacobian = oracle.jit(jax.jacrev(h_bar_branch))(params['embedding'])
  size = np.abs(jacobian).max(axis=(2, 4))[:, :, np.asarray(slots)]
  return size[..., :T], size[..., T:].reshape(B, K, B, K, P)


def test_branches_see_the_row_before_them_and_their_own_pieces_only():
  branches = oracle.eight_branches()
  config = dataclasses.replace(oracle.TINY, vocab_size=2 * (8 + 16))
  tokens, pieces = _branch_dependence(config, branches)
  for b in range(2):
    for k in range(4):
      expected_tokens, expected_pieces = np.zeros((2, 8), bool), np.zeros((2, 4, 4), bool)
      expected_tokens[b, :branches.start[b, k]] = True
      # Padding (length 0) is read at its first piece.
      expected_pieces[b, k, :max(int(branches.length[b, k]), 1)] = True
      np.testing.assert_array_equal(tokens[b, k] > 0, expected_tokens)
      np.testing.assert_array_equal(pieces[b, k] > 0, expected_pieces)


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
  ((0.3, 0.0), 'post', 'shift'), ((0.0, 0.3), 'post', 'blocks'), ((0.3, 0.3), 'pre', 'shift'),
  ((0.0, 0.3), 'post', 'heads')])
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


def test_from_batch_takes_the_arrays_of_the_feature_converter():
  names = {'branch_tokens': 'tokens', 'branch_start': 'start', 'branch_len': 'length',
           'original_end': 'original_end', 'branch_weight': 'weight'}
  batch = {name: np.full((1,), i) for i, name in enumerate(names)} | {'inputs': np.zeros(1)}
  branches = Branches.from_batch(batch)
  for i, field in enumerate(names.values()):
    assert getattr(branches, field) == i
  del batch['original_end']
  with pytest.raises(KeyError):
    Branches.from_batch(batch)


def test_the_pair_costs_one_scan_and_no_second_pass():
  config = oracle.TINY
  model, params = TransformerXL(config), oracle.make_params(config)
  tokens, memory = oracle.random_tokens(config, 2, 8), init_memory(config, 2)

  def jaxpr(branches):
    return jax.make_jaxpr(
      lambda p: model.apply({'params': p}, tokens, memory, branches).hidden)(params)

  fused = jaxpr(oracle.eight_branches())
  scans = [e for e in fused.eqns if e.primitive.name == 'scan']
  assert len(scans) == 1
  inside = {tuple(v.aval.shape) for e in scans[0].params['jaxpr'].eqns for v in e.outvars}
  assert (2, 24, 16) in inside  # segment and pieces share the products with weights
  assert not {(4, 8, 16), (10, 8, 16)} & inside  # no stacked pair
  # Scores [N, B, queries, keys]: of the segment, of the pieces, never of all against all.
  assert {(2, 2, 8, 16), (2, 2, 16, 16)} <= inside
  assert not {(2, 2, 24, 16), (2, 2, 24, 24), (2, 2, 24, 32)} & inside
