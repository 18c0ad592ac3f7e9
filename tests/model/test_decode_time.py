"""Mitigations at decoding time against the distributions that they are defined by."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_oracle import continuation_logits, golden_decoder, make_params, tiny
from scipy.special import log_softmax, logsumexp

from fairjax.counterfactual import Prefix
from fairjax.generate.sampler import next_token_log_probs
from fairjax.model import TransformerXL, init_memory, language_model
from fairjax.model.decode_time import AveragedDecoder, SteeredDecoder
from fairjax.model.decoding import Decoder, TransformerXLDecoder
from fairjax.run.next_token import next_token_divergence

LENGTHS, NEW = (3, 5, 2), 4
_logits = jax.jit(continuation_logits, static_argnums=0)


def texts(vocab_size, samples):
  rng = np.random.default_rng(1)
  return (rng.integers(3, vocab_size, (3, 6)), np.array(LENGTHS),
          rng.integers(3, vocab_size, (3, samples, NEW)))


@pytest.fixture(scope='module', params=['transformer_xl', 'llama'])
def model(request):
  """(decoder, parameters, texts, log-probabilities [A, B, R, T, V] of text a after prompt b)."""
  with jax.enable_x64(True):
    if request.param == 'llama':
      lm, params = golden_decoder('llama')
      decoder = lm.decoder()
    else:
      decoder, params = TransformerXLDecoder(tiny()), make_params(tiny())
    prefixes, lengths, continuations = texts(32, 2)
    every = np.stack([np.asarray(_logits(
      decoder, params, prefixes, lengths, jnp.broadcast_to(one, continuations.shape)), np.float64)
      for one in continuations])
    yield decoder, params, (prefixes, lengths, continuations), log_softmax(every, axis=-1)


@pytest.mark.parametrize('strength', [0.3, 1.0])
def test_averaged_is_the_mixture_over_the_prompts(model, strength):
  decoder, params, given, every = model
  found = np.asarray(_logits(AveragedDecoder(decoder, strength), params, *given))
  own = np.einsum('aartv->artv', np.exp(every))
  expected = np.log((1 - strength) * own + strength * np.exp(every).mean(axis=1))
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
  assert abs(logsumexp(found, axis=-1)).max() < 1e-12 and (strength == 1) == np.allclose(
    found[:, :, 0], found[:1, :, 0], rtol=0, atol=1e-10)


def test_steered_states_lack_the_difference_of_the_prompts():
  config, strength = tiny(), 0.7
  prefixes, lengths, continuations = texts(32, 2)
  with jax.enable_x64(True):
    params = make_params(config)
    found = np.asarray(_logits(
      SteeredDecoder(TransformerXLDecoder(config), strength), params, prefixes, lengths,
      continuations))
    lm, hidden = language_model(config), []
    for row, length, samples in zip(prefixes, lengths, continuations, strict=True):
      whole = np.concatenate([np.tile(row[-length:], (len(samples), 1)), samples], axis=1)
      memory = init_memory(dataclasses.replace(config, memory_len=0), len(whole))
      states = jax.jit(TransformerXL(config).apply)({'params': params}, whole, memory).hidden
      hidden.append(np.asarray(states)[:, length - 1:-1])
    hidden = jnp.asarray(np.stack(hidden))
    last = hidden[:, 0, 0]
    steered = hidden - strength * (last - last.mean(axis=0, keepdims=True))[:, None, None]
    expected = np.asarray(lm.logits(params, steered))
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


class FixedDecoder(Decoder):
  """Its parameters are the logits after each prompt."""

  def prepare(self, params, *, num_positions):
    return params

  def prefill(self, weights, tokens, lengths):
    return None, weights

  def logits_and_bias(self, weights, hidden):
    return hidden, None

  step = None


def test_a_probability_that_is_0_for_one_value_alone_leaves_the_divergence_finite():
  logits = np.zeros((2, 5), np.float32)
  logits[:, 1], logits[:, 2] = -np.inf, [-85, -200]  # never drawn; below float32 for the second
  vocabulary = types.SimpleNamespace(eos_id=0, size=5, prompt_ids=lambda text: [3, 4])
  found, = next_token_log_probs(logits, AveragedDecoder(FixedDecoder(), 0.5), vocabulary, [
    Prefix(0, value, text) for value, text in enumerate('ab')])
  assert found.shape == (2, 4) and np.isfinite(found).all()
  assert 0 <= next_token_divergence([found], 'ab', [0])['kl'] < 1e-12
