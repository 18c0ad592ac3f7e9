"""Parity with the authors' implementation of Transformer-XL."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fairjax.errors import UserError
from fairjax.model import TransformerXL, attention, init_memory
from fairjax.model.likelihood import token_nll
from fairjax.model.reference import params_from_reference, params_to_reference
from fairjax.run.export import pad_vocabulary

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'transformer_xl'


def _load(name):
  config = json.loads((GOLDEN / f'{name}.json').read_text(encoding='utf-8'))
  return load_file(GOLDEN / f'{name}.safetensors'), config


@pytest.fixture
def reference():
  return _load('plain_softmax')


@pytest.fixture
def adaptive():
  return _load('adaptive_softmax')


def _by_token(nll, targets, cutoffs):
  """The reference's adaptive softmax returns its losses [T * B] sorted by cluster, not by token."""
  order = np.argsort(np.searchsorted(cutoffs, targets.T.ravel(), side='right'), kind='stable')
  flat = np.empty(nll.size)
  flat[order] = nll.T.ravel()
  return flat.reshape(nll.T.shape).T


@pytest.mark.parametrize('block', [0, 64])
@pytest.mark.parametrize('name', ['plain_softmax', 'adaptive_softmax'])
@pytest.mark.parametrize(('dtype', 'tolerance'), [('float32', 2e-5), ('float64', 1e-9)])
def test_nll_and_memory_of_four_segments_equal_the_reference(
  name, dtype, tolerance, block, monkeypatch):
  if dtype == 'float64':
    # The reference casts its scores to float32 when it masks them, whatever it computes in; alone
    # that moves the nll by 4e-8 (plain) and 2e-7 (adaptive), see docs/exchange.md.
    exact = attention._softmax
    monkeypatch.setattr(attention, '_softmax', lambda scores, mask: exact(
      scores.astype(jnp.float32).astype(jnp.float64), mask))
  golden = np.load(GOLDEN / f'{name}.npz', allow_pickle=False)
  with jax.enable_x64(dtype == 'float64'):
    config, params = params_from_reference(*_load(name), dtype=dtype)
    model = TransformerXL(config)

    @jax.jit
    def segment(memory, tokens, targets):
      output = model.apply({'params': params}, tokens, memory)
      return token_nll(params, config, output.hidden, targets, block=block), output.state

    memory = init_memory(config, golden['tokens'].shape[1])
    worst = 0.0
    for tokens, targets, expected in zip(
      golden['tokens'], golden['targets'], golden['nll'], strict=True):
      nll, memory = segment(memory, jnp.asarray(tokens, jnp.int32), jnp.asarray(targets, jnp.int32))
      assert nll.dtype == dtype
      worst = max(worst, np.abs(np.asarray(nll, np.float64) - _by_token(
        expected, targets, config.cutoffs)).max())
    assert worst <= tolerance
    assert memory.hidden.dtype == dtype
    # The reference also stores the output of the last layer, which no layer reads.
    np.testing.assert_allclose(memory.hidden, golden['memory'][:-1], rtol=0, atol=tolerance)
    np.testing.assert_array_equal(memory.length, config.memory_len)
    far = np.abs(np.asarray(memory.hidden, np.float64) - golden['memory'][:-1]).max()
    print(f'{name}, {dtype}, block {block}: largest error of nll {worst:.1e}, of memory {far:.1e}')


def test_untied_position_biases_go_to_their_layers(reference):
  weights, config = reference
  rng = np.random.default_rng(0)
  for name in ('r_w_bias', 'r_r_bias'):
    del weights[name]
    for i in range(config['n_layer']):
      weights[f'layers.{i}.dec_attn.{name}'] = rng.normal(size=(4, 8)).astype(np.float32)
  ours, params = params_from_reference(weights, config | {'untie_r': True})
  assert not ours.tie_position_biases
  np.testing.assert_array_equal(
    params['layers']['position_bias'][1], weights['layers.1.dec_attn.r_r_bias'])
  np.testing.assert_array_equal(
    params['layers']['content_bias'][2], weights['layers.2.dec_attn.r_w_bias'])
  assert 'content_bias' not in params
  written, arguments = params_to_reference(params, ours)
  assert arguments['untie_r'] and written.keys() >= {n for n in weights if n.startswith('layers.')}
  for name in written.keys() & weights.keys():
    np.testing.assert_array_equal(written[name], weights[name])


def test_everything_that_does_not_fit_is_named_at_once(adaptive):
  weights, config = adaptive
  del weights['crit.out_projs.0'], weights['r_w_bias']
  weights['crit.cluster_weight'] = weights['crit.cluster_weight'][:2]
  weights['extra'] = np.zeros((2, 3), np.float32)
  with pytest.raises(UserError) as error:
    params_from_reference(weights, config)
  for words in ('crit.out_projs.0 (32, 32) lacks', 'r_w_bias (4, 8) lacks',
                'crit.cluster_weight has shape (2, 32)', 'extra (2, 3) is not understood'):
    assert words in str(error.value)


def test_distances_are_clamped_above_0_alone_as_the_reference_does(reference):
  weights, arguments = reference
  config, params = params_from_reference(weights, arguments | {'clamp_len': 0})
  assert config.clamp_len == -1
  with pytest.raises(UserError, match='does not clamp at model.clamp_len=0'):
    params_to_reference(params, dataclasses.replace(config, clamp_len=0))


def test_an_untied_softmax_is_refused(reference):
  weights, config = reference
  weights['crit.out_layers.0.weight'] = weights['crit.out_layers.0.weight'] + 1
  with pytest.raises(UserError, match='tied'):
    params_from_reference(weights, config)


@pytest.mark.parametrize('prefix', [False, True])
@pytest.mark.parametrize('name', ['plain_softmax', 'adaptive_softmax'])
def test_export_gives_back_every_tensor(name, prefix, tmp_path):
  weights, arguments = _load(name)
  config, params = params_from_reference(weights, arguments)
  found, written = params_to_reference(pad_vocabulary(params, 16), config, prefix=prefix)
  save_file(found, tmp_path / 'x.safetensors')  # refuses tensors that share memory
  found = load_file(tmp_path / 'x.safetensors')
  names = {n if n.startswith('crit.') or not prefix else f'transformer.{n}': n for n in weights}
  assert found.keys() == names.keys()
  for theirs, ours in names.items():
    np.testing.assert_array_equal(found[theirs], weights[ours], err_msg=theirs)
  again = params_from_reference(found, written)
  assert again[0] == config
  jax.tree.map(np.testing.assert_array_equal, again[1], params)


def test_one_table_for_all_clusters_is_cut_and_joined(reference):
  """`div_val=1` with cutoffs: the reference keeps one table."""
  weights, arguments = reference
  arguments = arguments | {'cutoffs': [20, 60]}
  rng = np.random.default_rng(0)
  weights['crit.cluster_weight'] = rng.normal(size=(2, 32)).astype(np.float32)
  weights['crit.cluster_bias'] = rng.normal(size=2).astype(np.float32)
  config, params = params_from_reference(weights, arguments)
  np.testing.assert_array_equal(
    params['embedding_1'], weights['word_emb.emb_layers.0.weight'][20:60])
  found, written = params_to_reference(params, config)
  assert written['cutoffs'] == [20, 60]
  assert found.keys() == weights.keys()
  for name, value in weights.items():
    np.testing.assert_array_equal(found[name], value)


def test_published_checkpoints_order_the_gates_from_the_start(adaptive):
  weights, arguments = adaptive
  published = {k: v for k, v in arguments.items() if k not in ('n_token', 'tgt_len', 'tie_projs')}
  published |= {'vocab_size': 500, 'model_type': 'transfo-xl', 'same_length': True,
                'proj_share_all_but_first': True}
  theirs = params_from_reference(weights, arguments)[1]['cluster_weight']
  config, params = params_from_reference(weights, published)
  np.testing.assert_array_equal(params['cluster_weight'], weights['crit.cluster_weight'])
  np.testing.assert_array_equal(theirs, weights['crit.cluster_weight'][::-1])
  assert config.tie_projections == (False, True, True, True)


@pytest.mark.parametrize(('arguments', 'message'), [
  ({'n_token': 'a'}, 'arguments: Expected `int`, got `str` - at `.*n_token`'),
  ({'n_layer': None}, 'n_layer'),
  ({'mem_len': None}, 'mem_len'),
  ({'d_model': -32}, 'int` >= 1 - at `.*d_model`'),
  ({'cutoffs': 20}, 'array`, got `int` - at `.*cutoffs`'),
  ({'cutoffs': [20, 'b']}, 'int`, got `str` - at `.*cutoffs'),
  ({'div_val': 2}, 'div_val=2'),
  ({'cutoffs': [60, 20]}, r'cutoffs=\[60, 20\] must rise'),
  ({'cutoffs': [20], 'div_val': 3}, 'div_val=3 .* does not divide d_model=32'),
  ({'cutoffs': [20], 'div_val': 2, 'tie_projs': [True]}, 'tie_projs has 1 values, there are 2'),
  ({'layer_norm_epsilon': 1e-6}, 'layer_norm_epsilon=1e-06 is not covered'),
  ({'cluster_order': ['forward']}, 'cluster_order=.* is not one of'),
  ({'cluster_order': 'up'}, 'cluster_order=.* is not one of'),
])
def test_arguments_of_another_type_are_named(reference, arguments, message):
  weights, config = reference
  with pytest.raises(UserError, match=message):
    params_from_reference(weights, config | arguments)
