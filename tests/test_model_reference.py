"""Parity with the authors' implementation of Transformer-XL."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from fairjax.errors import UserError
from fairjax.model import TransformerXL, attention, init_memory
from fairjax.model.likelihood import next_token_nll
from fairjax.model.reference import params_from_reference

GOLDEN = pathlib.Path(__file__).parent / 'golden' / 'transformer_xl'


@pytest.fixture
def reference():
  config = json.loads((GOLDEN / 'plain_softmax.json').read_text(encoding='utf-8'))
  return load_file(GOLDEN / 'plain_softmax.safetensors'), config


@pytest.mark.parametrize(('dtype', 'tolerance'), [('float32', 2e-5), ('float64', 1e-9)])
def test_nll_and_memory_of_four_segments_equal_the_reference(
  reference, dtype, tolerance, monkeypatch):
  if dtype == 'float64':
    # The reference casts its scores to float32 when it masks them, whatever it computes in; alone
    # that moves the nll by 4e-8.
    exact = attention._softmax
    monkeypatch.setattr(attention, '_softmax', lambda scores, mask: exact(
      scores.astype(jnp.float32).astype(jnp.float64), mask))
  golden = np.load(GOLDEN / 'plain_softmax.npz', allow_pickle=False)
  with jax.enable_x64(dtype == 'float64'):
    config, params = params_from_reference(*reference, dtype=dtype)
    model = TransformerXL(config)

    @jax.jit
    def segment(memory, tokens, targets):
      output = model.apply({'params': params}, tokens, memory)
      logits = model.apply({'params': params}, output.hidden, method='logits')
      return next_token_nll(logits, targets), output.memory

    memory = init_memory(config, golden['tokens'].shape[1])
    worst = 0.0
    for tokens, targets, expected in zip(
      golden['tokens'], golden['targets'], golden['nll'], strict=True):
      nll, memory = segment(memory, jnp.asarray(tokens, jnp.int32), jnp.asarray(targets, jnp.int32))
      assert nll.dtype == dtype
      worst = max(worst, np.abs(np.asarray(nll, np.float64) - expected).max())
    assert worst <= tolerance
    assert memory.hidden.dtype == dtype
    # The reference also stores the output of the last layer, which no layer reads.
    np.testing.assert_allclose(memory.hidden, golden['memory'][:-1], rtol=0, atol=tolerance)
    np.testing.assert_array_equal(memory.length, config.memory_len)


def test_prefixed_names_of_published_checkpoints_are_read(reference):
  weights, config = reference
  prefixed = {
    name if name.startswith('crit.') else f'transformer.{name}': array
    for name, array in weights.items()}
  plain, renamed = (params_from_reference(w, config)[1] for w in (weights, prefixed))
  jax.tree.map(np.testing.assert_array_equal, plain, renamed)


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


@pytest.mark.parametrize(('change', 'message'), [
  ({'cutoffs': [50]}, 'adaptive softmax'),
  ({'div_val': 2}, 'adaptive softmax'),
  ({'attn_type': 2}, 'attn_type=2'),
  ({'same_length': True}, 'same_length=True'),
  ({'d_embed': 16}, 'd_embed=16'),
  ({'d_inner': 65}, r'shape \(64, 32\)'),
  ({'n_layer': 2}, 'not understood'),
  ({'n_layer': 4}, 'layers.3.dec_attn.qkv_net.weight lacks'),
])
def test_what_is_not_covered_is_refused_by_name(reference, change, message):
  weights, config = reference
  with pytest.raises(UserError, match=message) as error:
    params_from_reference(weights, config | change)
  assert '\n' not in str(error.value)


def test_untied_softmax_and_missing_arguments_are_refused(reference):
  weights, config = reference
  del config['mem_len']
  with pytest.raises(UserError, match='mem_len'):
    params_from_reference(weights, config)
  weights['crit.out_layers.0.weight'] = weights['crit.out_layers.0.weight'] + 1
  with pytest.raises(UserError, match='tied'):
    params_from_reference(weights, config | {'mem_len': 16})
