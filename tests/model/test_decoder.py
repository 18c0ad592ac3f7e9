"""Pretrained decoders against transformers; branches and cached decoding against whole passes."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_oracle import continuation_logits
from safetensors.numpy import load_file

from fairjax.model.causal_lm import Branches, CausalLM
from fairjax.model.decoder import DecoderModel, NoState
from fairjax.pretrained.decoder_files import (
  read_decoder_config,
  to_decoder_params,
  to_decoder_tensors,
)
from fairjax.pretrained.tensor_files import Stored

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'decoders'
FAMILIES = sorted(path.name for path in GOLDEN.iterdir())
ROWS, SIZE, BRANCHES, PIECES = 2, 19, 3, 3


@pytest.fixture(scope='module', autouse=True)
def float64():
  with jax.enable_x64(True):
    yield


@pytest.fixture(scope='module', params=FAMILIES)
def published(request):
  """(model in float64, parameters, expected arrays) of one family."""
  folder = GOLDEN / request.param
  config = read_decoder_config(json.loads((folder / 'config.json').read_text()))
  config = dataclasses.replace(config, dtype='float64')
  tensors = load_file(folder / 'model.safetensors')
  params = jax.tree.map(jnp.asarray, to_decoder_params(
    {name.removeprefix('transformer.'): Stored.of(x) for name, x in tensors.items()}, config,
    dtype=np.float64))
  expected = dict(np.load(folder / 'expected.npz'))
  return DecoderModel(config), params, expected | {'tensors': tensors}


@pytest.fixture(scope='module')
def branches():
  rng = np.random.default_rng(1)
  start = np.sort(rng.integers(1, SIZE - 4, (ROWS, BRANCHES)), axis=1).astype(np.int32)
  return jax.tree.map(jnp.asarray, Branches(
    tokens=rng.integers(0, 61, (ROWS, BRANCHES, PIECES)).astype(np.int32), start=start,
    length=np.array([[1, 2, 3], [3, 1, 0]], np.int32),
    original_end=start + rng.integers(0, 3, start.shape).astype(np.int32),
    weight=np.array([[1, 1, 1], [1, 1, 0]], np.float32)))


def test_logits_and_states_are_those_of_transformers(published):
  model, params, expected = published
  assert isinstance(model, CausalLM)
  tokens = jnp.asarray(expected['ids'])
  everywhere = jnp.tile(jnp.arange(SIZE)[None], (ROWS, 1))
  output = jax.jit(model.apply)(params, tokens, NoState(), positions=everywhere)
  logits = model.logits(params, output.hidden)
  np.testing.assert_allclose(logits, expected['logits'], rtol=0, atol=1e-12)
  h_bar = (expected['before'] + expected['last']) / 2
  np.testing.assert_allclose(output.h_bar_at, h_bar, rtol=0, atol=1e-12)
  nll = -np.take_along_axis(
    np.asarray(jax.nn.log_softmax(expected['logits'])), expected['ids'][..., None], -1)[..., 0]
  np.testing.assert_allclose(model.nll(params, output.hidden, tokens), nll, rtol=0, atol=1e-12)


def test_published_tensors_come_back_unchanged(published):
  model, params, expected = published
  back = to_decoder_tensors(jax.tree.map(np.asarray, params), model.config)
  tensors = {name.removeprefix('transformer.'): x for name, x in expected['tensors'].items()}
  assert back.keys() == tensors.keys()
  for name, value in tensors.items():
    np.testing.assert_array_equal(back[name].astype(np.float32), value, err_msg=name)


def losses(model, params, tokens, branches, states):
  """Likelihood and fairness loss; `states` gives hidden states, and h-bar of both sides."""
  hidden, here, there = states(params)
  cosine = (here * there).sum(-1) / jnp.linalg.norm(here, axis=-1) / jnp.linalg.norm(there, axis=-1)
  fairness = jnp.where(branches.weight > 0, 1 - cosine, 0).sum()
  return model.mean_nll(params, hidden, tokens) + 10 * fairness


def test_values_and_gradients_of_branches_equal_those_of_separate_passes(published, branches):
  model, params, expected = published
  tokens = jnp.asarray(expected['ids'])

  def fused(params):
    output = model.apply(params, tokens, NoState(), branches)
    return output.hidden, output.pairs.h_bar, output.pairs.h_bar_branch

  texts, ends = np.zeros((ROWS * BRANCHES, SIZE + PIECES), np.int32), []
  for i, (row, k) in enumerate(np.ndindex(ROWS, BRANCHES)):
    start, length = int(branches.start[row, k]), max(int(branches.length[row, k]), 1)
    text = np.concatenate([expected['ids'][row, :start], branches.tokens[row, k, :length]])
    texts[i, :len(text)] = text  # tokens after a text change nothing in it
    ends.append([len(text) - 1])
  texts, ends = jnp.asarray(texts), jnp.asarray(ends)

  def separate(params):
    whole = model.apply(params, tokens, NoState(), positions=branches.original_end)
    there = model.apply(params, texts, NoState(), positions=ends).h_bar_at
    return whole.hidden, whole.h_bar_at, there.reshape(ROWS, BRANCHES, -1)

  found, wanted = (
    jax.jit(jax.value_and_grad(lambda p, states=states: losses(
      model, p, tokens, branches, states)))(params) for states in (fused, separate))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-12), found, wanted)


def test_a_token_sees_itself_and_what_came_before(published):
  model, params, expected = published
  tokens = jnp.asarray(expected['ids'])[:1]

  def state(extra):
    moved = params | {'embedding': params['embedding'][tokens[0]] + extra}
    if not model.config.tied:
      moved['output'] = params['output']
    ids = jnp.arange(SIZE)[None]
    return model.apply(moved, ids, NoState()).hidden[0, 7].sum()

  gradient = jax.jit(jax.grad(state))(jnp.zeros((SIZE, model.config.model_dim)))
  moves = np.abs(gradient).max(-1) > 0
  assert moves[:8].all() or model.config.windows
  assert not moves[8:].any()


def test_cached_decoding_equals_whole_passes(published):
  model, params, _ = published
  rng = np.random.default_rng(2)
  prefixes, lengths = rng.integers(0, 61, (3, 8)), np.array([8, 5, 3])
  new = rng.integers(0, 61, (3, 2, 14))
  found = jax.jit(continuation_logits, static_argnums=0)(
    model.decoder(), params, *map(jnp.asarray, (prefixes, lengths, new)))
  texts = np.zeros((6, 22), np.int32)
  for row, (a, r) in enumerate(np.ndindex(3, 2)):
    text = np.concatenate([prefixes[a, 8 - lengths[a]:], new[a, r]])
    texts[row, :len(text)] = text
  whole = model.logits(params, jax.jit(model.apply)(params, jnp.asarray(texts), NoState()).hidden)
  for row, (a, r) in enumerate(np.ndindex(3, 2)):
    wanted = whole[row, lengths[a] - 1:lengths[a] - 1 + 14]
    np.testing.assert_allclose(found[a, r], wanted, rtol=0, atol=1e-12)
