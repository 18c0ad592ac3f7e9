"""Pretrained decoders against transformers; branches and cached decoding against whole passes."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_oracle import GOLDEN, continuation_logits, golden_decoder
from scipy.special import log_softmax

from fairjax.model.causal_lm import Branches, Documents
from fairjax.model.decoder import DecoderModel, LoraDecoder, NoState, merge_adapters, with_adapters

FAMILIES = sorted(path.name for path in GOLDEN.iterdir())
ROWS, SIZE, BRANCHES, PIECES = 2, 19, 3, 3


@pytest.fixture(scope='module', autouse=True)
def float64():
  with jax.enable_x64(True):
    yield


@pytest.fixture(scope='module', params=FAMILIES)
def published(request):
  return *golden_decoder(request.param), dict(np.load(GOLDEN / request.param / 'expected.npz'))


def families(*quick):
  """Gives a test every family, those that are not named every week."""
  return pytest.mark.parametrize('published', [
    pytest.param(name, marks=() if name in quick else pytest.mark.weekly) for name in FAMILIES],
    indirect=True)


# Caps and windows of scores; normed queries and keys; learned positions and biases.
various = families('gemma2', 'gemma3', 'gpt2')


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

  @jax.jit
  def read(params, tokens):
    everywhere = jnp.tile(jnp.arange(SIZE)[None], (ROWS, 1))
    output = model.apply(params, tokens, NoState(), positions=everywhere)
    return (model.logits(params, output.hidden), output.h_bar_at,
            model.nll(params, output.hidden, tokens))

  logits, h_bar, nll = read(params, expected['ids'])
  np.testing.assert_allclose(logits, expected['logits'], rtol=0, atol=1e-12)
  np.testing.assert_allclose(
    h_bar, (expected['before'] + expected['last']) / 2, rtol=0, atol=1e-12)
  wanted = -np.take_along_axis(
    log_softmax(expected['logits'], axis=-1), expected['ids'][..., None], -1)[..., 0]
  np.testing.assert_allclose(nll, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(('name', 'later'), [
  ('gpt2', set()), ('gemma3', set()), ('neox', {'parallel', 'rotary_share'}),
  ('olmo2', {'pre_norms', 'joint_qk_norm'}), ('smollm3', {'rotated'})])
def test_records_of_families_that_were_read_earlier_keep_their_identity(name, later):
  model, _ = golden_decoder(name)
  fields = [field.name for field in dataclasses.fields(model.config)]
  wanted = {*fields[:fields.index('pre_norms')], 'unused'} | later
  assert set(model.decoder().describe()) == wanted


def losses(model, params, tokens, branches, states):
  hidden, here, there = states(params)
  cosine = (here * there).sum(-1) / jnp.linalg.norm(here, axis=-1) / jnp.linalg.norm(there, axis=-1)
  fairness = jnp.where(branches.weight > 0, 1 - cosine, 0).sum()
  return model.mean_nll(params, hidden, tokens) + 10 * fairness


@various
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


@families('gemma3')  # a window in some layers
def test_h_bar_of_a_layer_is_that_of_the_model_that_ends_there(published, branches):
  model, params, expected = published
  tokens, ends = jnp.asarray(expected['ids']), 2
  assert ends < model.config.num_layers
  shorter = dataclasses.replace(
    model.config, num_layers=ends, windows=model.config.windows[:ends],
    rotated=model.config.rotated[:ends])
  inner = DecoderModel(dataclasses.replace(model.config, h_bar=f'layer:{ends}'))

  def states(model, params):
    output = model.apply(params, tokens, NoState(), branches, positions=branches.original_end)
    return output.hidden, (output.h_bar_at, output.pairs.h_bar, output.pairs.h_bar_branch)

  def fairness(params):
    hidden, found = states(inner, params)
    return jnp.sum(found[1] * found[2]), (hidden, found)

  gradient, (hidden, found) = jax.jit(jax.grad(fairness, has_aux=True))(params)
  cut = params | {'layers': jax.tree.map(lambda a: a[:ends], params['layers'])}
  whole = jax.jit(functools.partial(states, model))(params)
  wanted = jax.jit(functools.partial(states, DecoderModel(shorter)))(cut)
  for a, b in zip((hidden, *found), (whole[0], *wanted[1]), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
  for name, weight in gradient['layers'].items():
    assert np.any(weight[:ends]) and not np.any(weight[ends:]), name


@various
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
  whole = jax.jit(lambda texts: model.logits(
    params, model.apply(params, texts, NoState()).hidden))(texts)
  for row, (a, r) in enumerate(np.ndindex(3, 2)):
    wanted = whole[row, lengths[a] - 1:lengths[a] - 1 + 14]
    np.testing.assert_allclose(found[a, r], wanted, rtol=0, atol=1e-12)


@various
def test_documents_and_long_branches_of_a_row_are_those_of_separate_passes(published):
  model, params, expected = published
  tokens, cut = jnp.asarray(expected['ids'])[:1], 8
  place = np.arange(SIZE)
  documents = Documents(jnp.asarray((place >= cut).astype(np.int32)[None]),
                        jnp.asarray((place - cut * (place >= cut)).astype(np.int32)[None]))
  # (start, end of the original, new value, tokens after it): in both documents, and padding
  placed = [(3, 3, [5, 6], 2), (11, 12, [7], 1), (cut, cut, [9, 4], 0), (0, 0, [], 0)]
  array = {name: np.zeros((1, 4), np.int32) for name in ('start', 'length', 'original_end')}
  pieces, tail = np.zeros((1, 4, 4), np.int32), np.zeros((1, 4, 2), bool)
  for k, (start, end, value, more) in enumerate(placed):
    branch = [*value, *expected['ids'][0, end + 1:end + 1 + more]]
    pieces[0, k, :len(branch)], tail[0, k, :more] = branch, True
    array['start'][0, k], array['original_end'][0, k] = start, end
    array['length'][0, k] = len(branch)
  branches = jax.tree.map(jnp.asarray, Branches(
    tokens=pieces, weight=np.array([[1, 1, 1, 0]], np.float32), tail=tail, **array))
  found = jax.jit(model.apply)(params, tokens, NoState(), branches, documents=documents)
  apply = jax.jit(model.apply)
  alone = [apply(params, tokens[:, part], NoState(), positions=jnp.arange(size)[None])
           for part, size in ((slice(0, cut), cut), (slice(cut, SIZE), SIZE - cut))]
  hidden = np.concatenate([x.hidden for x in alone], axis=1)
  np.testing.assert_allclose(found.hidden, hidden, rtol=0, atol=1e-12)
  h_bar = np.concatenate([x.h_bar_at for x in alone], axis=1)[0]
  weights = np.asarray(jax.jit(Branches.compared)(branches)[2]).reshape(4, 3)
  np.testing.assert_allclose(weights.sum(1), [1, 1, 1, 0], rtol=1e-6)
  here, there = (np.asarray(x)[0].reshape(4, 3, -1) for x in (
    found.pairs.h_bar, found.pairs.h_bar_branch))
  for k, (start, end, value, more) in enumerate(placed[:3]):
    text = expected['ids'][0, cut * (start >= cut):start].tolist() + pieces[0, k].tolist()
    first = len(text) - 4 + len(value) - 1
    states = apply(params, jnp.asarray([text + [0] * (SIZE - len(text))]), NoState(),
                   positions=first + jnp.arange(3)[None]).h_bar_at[0]
    assert (weights[k] > 0).sum() == 1 + more
    np.testing.assert_allclose(here[k, :1 + more], h_bar[end:end + 1 + more], rtol=0, atol=1e-12)
    np.testing.assert_allclose(there[k, :1 + more], states[:1 + more], rtol=0, atol=1e-12)


def moved(adapters):
  """Adapters of cosines instead."""
  return jax.tree.map(
    lambda x: jnp.asarray(np.cos(np.arange(x.size, dtype=x.dtype)).reshape(x.shape) / 4), adapters)


@families('gemma2', 'gpt2')  # weights with and without biases
def test_adapters_begin_as_the_model_and_merge_into_it(published, branches):
  model, params, expected = published
  lora, tokens = LoraDecoder(model.config, 2), jnp.asarray(expected['ids'])
  adapters = nn.unbox(jax.jit(lora.init)(jax.random.key(1)))
  apply = jax.jit(lambda p: model.apply(p, tokens, NoState(), branches))
  before, found = apply(params), apply(with_adapters(params, adapters))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12), before, found)
  whole = with_adapters(params, moved(adapters))
  merged = jax.jit(merge_adapters)(whole)
  assert jax.tree.structure(merged) == jax.tree.structure(params)
  found, wanted = apply(whole), apply(merged)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-11), found, wanted)
  assert np.abs(found.hidden - before.hidden).max() > 0.01


@families('gemma2')
def test_the_gradient_of_adapters_is_that_of_the_merged_products(published, branches):
  model, params, expected = published
  tokens = jnp.asarray(expected['ids'])
  adapters = moved(nn.unbox(jax.eval_shape(LoraDecoder(model.config, 2).init, jax.random.key(1))))

  def loss(params):
    def states(params):
      output = model.apply(params, tokens, NoState(), branches)
      return output.hidden, output.pairs.h_bar, output.pairs.h_bar_branch
    return losses(model, params, tokens, branches, states)

  found = jax.jit(jax.grad(lambda a: loss(with_adapters(params, a))))(adapters)['layers']
  whole = jax.jit(jax.grad(loss))(merge_adapters(with_adapters(params, adapters)))['layers']
  for name in {name.partition('_lora_')[0] for name in found}:  # W + A B
    a, b = (adapters['layers'][f'{name}_lora_{x}'] for x in 'ab')
    a, b = a.reshape(len(a), -1, 2), b.reshape(len(b), 2, -1)
    of_product = whole[name].reshape(len(a), a.shape[1], b.shape[2])
    for x, wanted in (('a', of_product @ b.mT), ('b', a.mT @ of_product)):
      gradient = found[f'{name}_lora_{x}']
      np.testing.assert_allclose(
        gradient, wanted.reshape(gradient.shape), rtol=0, atol=1e-11, err_msg=name)
