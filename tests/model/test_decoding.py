"""Cached decoding against recomputation by the model itself."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import model_oracle
import numpy as np
import pytest
from model_oracle import continuation_logits as decoder_logits
from model_oracle import whole_logits

from fairjax.config import ModelConfig
from fairjax.model import TransformerXL, decoding, init_memory, language_model
from fairjax.model.decoding import TransformerXLDecoder

CONFIG = ModelConfig(
  vocab_size=32, num_layers=2, model_dim=16, num_heads=2, head_dim=8, ff_dim=24, segment_len=20,
  memory_len=12, init_std=0.3)
OTHER = {'norm': 'pre', 'final_norm': True, 'tie_position_biases': False, 'clamp_len': 5}

make_params = functools.partial(model_oracle.make_params, scale=0.35)
_logits = jax.jit(decoder_logits, static_argnums=0)


def continuation_logits(params, config, *texts):
  return _logits(TransformerXLDecoder(config), params, *texts)


def make_texts(*, lengths=(3, 5, 2), samples=2, new=9, size=6):
  rng = np.random.default_rng(1)
  prefixes = rng.integers(3, 32, (len(lengths), size))
  continuations = rng.integers(3, 32, (len(lengths), samples, new))
  return tuple(map(jnp.asarray, (prefixes, lengths, continuations)))


@functools.partial(jax.jit, static_argnums=0)
def step(config, params, tokens, memory):
  output = TransformerXL(config).apply({'params': params}, tokens, memory)
  return output.state, language_model(config).logits(params, output.hidden)


def recomputed_logits(params, config, prefixes, lengths, continuations):
  out = []
  texts = map(np.asarray, (prefixes, lengths, continuations))
  for row, length, samples in zip(*texts, strict=True):
    text = np.concatenate([np.tile(row[-length:], (len(samples), 1)), samples], axis=1)
    # Tokens behind a text change nothing before them: one length compiles once.
    text = np.pad(text, ((0, 0), (0, 28 - text.shape[1])))
    end = length + samples.shape[1] - 1
    out.append(np.asarray(whole_logits(config, params, text))[:, length - 1:end])
  return np.stack(out)


@pytest.mark.parametrize('variant, dtype, limit, new', [  # a loop for every 10 tokens
  ({}, 'float32', 1e-5, 22), ({}, 'float64', 1e-10, 9), (OTHER, 'float64', 1e-10, 13),
  ({'norm': 'pre', 'num_layers': 3}, 'float64', 1e-10, 9),
], ids=str)
def test_cached_is_recomputed(variant, dtype, limit, new):
  with jax.enable_x64(dtype == 'float64'):
    config = dataclasses.replace(CONFIG, dtype=dtype, **variant)
    params, texts = make_params(config), make_texts(new=new)
    cached = continuation_logits(params, config, *texts)
    expected = recomputed_logits(params, config, *texts)
    assert cached.dtype == dtype and np.ptp(expected) > 2
    np.testing.assert_allclose(cached, expected, rtol=0, atol=limit * max(1, abs(expected).max()))


def test_bfloat16_is_near():
  config = dataclasses.replace(CONFIG, dtype='bfloat16')
  params, texts = make_params(config), make_texts()
  cached = continuation_logits(params, config, *texts)
  expected = recomputed_logits(params, dataclasses.replace(CONFIG, dtype='float32'), *texts)
  assert cached.dtype == jnp.float32
  assert np.abs(cached - expected).mean() < 0.02 * np.ptp(expected)


def windowed_logits(params, config, text):
  """Logits of one text whose tokens see T + M positions: as many as the last one of a segment.

  Position by position with memory M = window - 1: one query a segment sees itself and its memory.
  """
  window = config.segment_len + config.memory_len
  config = dataclasses.replace(config, segment_len=1, memory_len=window - 1)
  memory, out = init_memory(config, 1), []
  for token in text:
    memory, logits = step(config, params, np.array([[token]]), memory)
    out.append(logits[0, 0])
  return np.stack(out)


def test_window_is_that_of_training():
  with jax.enable_x64(True):
    config = dataclasses.replace(CONFIG, dtype='float64', segment_len=2, memory_len=2)
    params = make_params(config)
    prefixes, lengths, continuations = make_texts()
    cached = continuation_logits(params, config, prefixes, lengths, continuations)
    wide = dataclasses.replace(CONFIG, dtype='float64')
    wide = continuation_logits(params, wide, prefixes, lengths, continuations)
    assert np.abs(np.asarray(cached) - np.asarray(wide)).max() > 0.05
    for a, r in [(0, 0), (1, 1), (2, 0)]:
      text = np.concatenate([prefixes[a, -lengths[a]:], continuations[a, r]])
      expected = windowed_logits(params, config, text)[lengths[a] - 1:-1]
      np.testing.assert_allclose(cached[a, r], expected, rtol=0, atol=1e-10)


def test_samples_of_a_prefix_share_its_cache():
  """No array repeats the prefix for every sample."""
  params, (prefixes, lengths, _) = make_params(CONFIG), make_texts()
  decoder = TransformerXLDecoder(CONFIG)
  prefix, _ = jax.eval_shape(lambda params: decoder.prefill(
    decoder.prepare(params, num_positions=20), prefixes, lengths), params)
  shapes = {x.shape for x in jax.tree.leaves(prefix)}
  assert shapes == {(3, 16, 2, 6), (3, 2, 6), (3, 2, 6, 16)}


def test_decoding_ends_when_told_to():
  params, (prefixes, lengths, _) = make_params(CONFIG), make_texts()
  decoder = TransformerXLDecoder(CONFIG)
  weights = decoder.prepare(params, num_positions=40)
  prefix, _ = jax.jit(decoder.prefill)(weights, prefixes, lengths)
  tokens = jnp.ones((3, 2), jnp.int32)

  def consume(carry, hidden, index):
    return carry + 1, tokens, index < 10

  steps = decoding.run_decoding(
    decoder, weights, prefix, tokens, jnp.int32(0), consume, num_steps=30)
  assert int(steps) == 11


@pytest.mark.parametrize('index', [0, 5, 6, 8])
def test_chunks_are_read_once_something_is_in_them(index):
  """Numbers are read from a chunk with a token in it, and from the first one that fills."""
  filled, *unfilled = ([decoding.Chunk(*[(jnp.zeros((1, 2, 3, size, 4)),)] * 2)
                        for size in (2, 3, 3, 1)])
  found = decoding.chunks_and_flags([filled], unfilled, index)
  assert [id(chunk) for _, chunk in found] == [id(chunk) for chunk in (filled, *unfilled)]
  used = [flag is None or bool(flag) for flag, _ in found]
  assert used == [True, True, index > 5, index > 8]


@pytest.mark.parametrize(('places', 'steps'), [
  (4, 11), (1, 4), *(pytest.param(*case, marks=pytest.mark.weekly) for case in ((1, 11), (4, 4)))])
def test_the_size_of_a_chunk_does_not_matter(places, steps, monkeypatch):
  """Also where a chunk is not full at the end of its loop."""
  with jax.enable_x64(True):
    config = dataclasses.replace(CONFIG, dtype='float64')
    params, texts = make_params(config), make_texts(new=12)
    expected = recomputed_logits(params, config, *texts)
    monkeypatch.setattr(decoding, '_CHUNK_SLOTS', places)
    monkeypatch.setattr(decoding, '_STAGE_STEPS', steps)
    found = jax.jit(lambda params, *texts: decoder_logits(
      TransformerXLDecoder(config), params, *texts))(params, *texts)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
