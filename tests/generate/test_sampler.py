"""Coupled sampling: what it depends on, what stops it, and its distribution."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from model_oracle import continuation_logits, make_params, whole_logits

from fairjax.config import ModelConfig
from fairjax.generate import noise, sampler
from fairjax.generate.sampler import sample_continuations
from fairjax.model.decoding import TransformerXLDecoder

CONFIG = ModelConfig(
  vocab_size=12, num_layers=2, model_dim=8, num_heads=2, head_dim=4, ff_dim=16, segment_len=16,
  memory_len=16)
PREFIXES = [[1, 3, 4], [1, 5, 4, 6], [1, 7, 4]]
OPTIONS = dict(template=2, seed=3, max_new_tokens=5, temperature=1.0, eos_id=1)


@pytest.fixture(scope='module')
def params():
  return make_params(CONFIG, scale=0.4)


def draw(params, prefixes=PREFIXES, samples=range(40), **options):
  return sample_continuations(
    params, TransformerXLDecoder(CONFIG), prefixes, samples=samples,
    **(OPTIONS | {'batch_size': 40} | options))


def test_tokens_are_argmax_of_logits_and_shared_noise(params):
  """Replays every draw with jax.random and recomputed logits, in float64 NumPy."""
  tokens, lengths = draw(params, temperature=0.7)
  padded = jnp.array([[1] * (8 - len(p)) + p for p in PREFIXES])
  logits = np.asarray(jax.jit(continuation_logits, static_argnums=0)(
    TransformerXLDecoder(CONFIG), params, padded, jnp.array(list(map(len, PREFIXES))),
    jnp.asarray(tokens)), np.float64)
  key = jax.random.wrap_key_data(jnp.array([0, 3], jnp.uint32), impl='threefry2x32')
  key = jax.random.fold_in(jax.random.fold_in(key, noise._COUPLED), 2)
  checked = 0
  for a, r in itertools.product(range(3), range(40)):
    for t in range(min(lengths[a, r] + 1, 5)):
      position = jax.random.fold_in(jax.random.fold_in(key, r), t)
      w = (np.asarray(jax.random.bits(position, (12,))) + 0.5) / 2 ** 32
      scores = logits[a, r, t] / 0.7 - np.log(-np.log1p(-w))
      assert tokens[a, r, t] == scores.argmax()
      checked += 1
  assert checked > 300


def test_ends_and_lengths(params):
  tokens, lengths = draw(params, samples=range(200))
  assert tokens.dtype == lengths.dtype == np.int32 and tokens.shape == (3, 200, 5)
  assert len(np.unique(lengths)) == 6  # 0 .. 5: some end at once, some not at all
  for row, length in zip(tokens.reshape(-1, 5), lengths.ravel(), strict=True):
    assert 1 not in row[:length]
    assert length == 5 or row[length] == 1
    assert not row[length + 1:].any()


def test_stop_ids_end_a_text_and_belong_to_it(params):
  free, _ = draw(params)
  tokens, lengths = draw(params, stop_ids=(5, 7))
  stopped = 0
  for row, length, whole in zip(tokens.reshape(-1, 5), lengths.ravel(), free.reshape(-1, 5),
                                strict=True):
    ends = np.flatnonzero(np.isin(whole, (1, 5, 7)))
    end = ends[0] if len(ends) else 5
    stop = end < 5 and whole[end] != 1
    stopped += stop
    assert length == end + stop
    np.testing.assert_array_equal(row[:end + 1], whole[:end + 1])
    assert not row[end + 1:].any()
  assert stopped > 10


def test_batches_order_padding_and_other_values_do_not_matter(params):
  tokens, lengths = draw(params)
  other, sizes = draw(params, batch_size=7, prefix_len=20)
  np.testing.assert_array_equal(tokens, other)
  np.testing.assert_array_equal(lengths, sizes)
  chosen = [31, 4, 17]
  np.testing.assert_array_equal(tokens[:, chosen], draw(params, samples=chosen)[0])
  np.testing.assert_array_equal(tokens[1:2], draw(params, [PREFIXES[1]])[0])


def test_independent_values_differ(params):
  prefixes = [PREFIXES[0]] * 3
  tokens, _ = draw(params, prefixes, coupled=False)
  assert (tokens[0, :, 0] == tokens[1, :, 0]).mean() < 0.5
  swapped, _ = draw(params, prefixes, coupled=False, values=[2, 1, 0])
  np.testing.assert_array_equal(tokens, swapped[::-1])


def test_eight_devices_give_the_text_of_one(params):
  mesh = jax.make_mesh((4, 2), ('data', 'model'), axis_types=(jax.sharding.AxisType.Auto,) * 2)
  tokens, lengths = draw(params)
  split, sizes = draw(params, mesh=mesh)
  np.testing.assert_array_equal(tokens, split)
  np.testing.assert_array_equal(lengths, sizes)
  np.testing.assert_array_equal(tokens[:, :9], draw(params, samples=range(9), mesh=mesh)[0])


def test_devices_do_not_wait_for_each_other(params):
  """Nothing passes between devices before the finished samples are gathered."""
  mesh = jax.make_mesh((4, 2), ('data', 'model'), axis_types=(jax.sharding.AxisType.Auto,) * 2)
  program = sampler.make_sampler('cpu').lower(
    params, np.ones((3, 16), np.int32), np.full(3, 2, np.int32), np.arange(3, dtype=np.uint32),
    np.arange(16, dtype=np.uint32), noise.seed_words(3), np.uint32(0), np.float32(1),
    decoder=TransformerXLDecoder(CONFIG), max_new_tokens=5, end_ids=(1,), stop_ids=(), coupled=True,
    mesh=mesh).compile().as_text()
  names = re.findall(r' (all-\w+|collective-\w+|reduce-scatter|while)\(', program)
  assert 'while' in names and set(names) - {'while'} == {'all-gather'}
  computations = re.split(r'\n(?=(?:ENTRY )?%\S+ \()', program)
  assert all(c.startswith('ENTRY') for c in computations if ' all-gather(' in c)


@pytest.mark.parametrize(('coupled', 'devices', 'scored', 'drawn'), [
  (True, 4, 10, 10), (False, 1, 40, 4),
  *(pytest.param(*case, marks=pytest.mark.weekly) for case in ((True, 1, 20, 5), (False, 4, 20, 5)))
])
def test_blocks_of_samples_do_not_matter(params, coupled, devices, scored, drawn, monkeypatch):
  """So many samples are scored at a time, and drawn, on one device or four together."""
  mesh = None if devices == 1 else jax.make_mesh(
    (4,), ('data',), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
  expected = draw(params, coupled=coupled, mesh=mesh)
  values, vocab = len(PREFIXES), CONFIG.vocab_size
  assert sampler.count_blocks(40 // devices, values, vocab, 'cpu') == (1, 1)
  # With a vocabulary of 267,735 a block still has the rows that its product needs.
  assert sampler.count_blocks(1024, 4, 267735, 'cpu') == (8, 128)
  for name, samples in (('_SCORED_BYTES', scored), ('_DRAWN_BYTES', drawn)):
    monkeypatch.setattr(sampler, name, {'cpu': 4 * values * vocab * samples // devices, 'tpu': 0})
  monkeypatch.setattr(sampler, '_SCORED_ROWS', 0)
  found = sampler.count_blocks(40 // devices, values, vocab, 'cpu')
  if devices == 1:
    assert found == (40 // scored, scored // drawn)
  else:  # ten samples each; the limits are not whole numbers of samples
    assert found == {10: (5, 1), 20: (2, 5), 40: (1, 10)}[scored]
  sampler.make_sampler.cache_clear()
  try:
    for ours, whole in zip(draw(params, coupled=coupled, mesh=mesh), expected, strict=True):
      np.testing.assert_array_equal(ours, whole)
  finally:
    sampler.make_sampler.cache_clear()


def test_compiles_once_for_templates_and_models(params):
  draw(params)
  sample = sampler.make_sampler(jax.default_backend())
  before = sample._cache_size()
  assert before
  draw(make_params(CONFIG, 9, scale=0.4), [[1, 2], [1, 9, 9, 9, 9], [1]], template=7, seed=8,
       temperature=0.5)
  assert sample._cache_size() == before


def test_all_texts_may_end_at_once(params):
  ending = dict(params, softmax_bias=params['softmax_bias'].at[1].set(1e4))
  tokens, lengths = draw(ending)
  assert (tokens[..., 0] == 1).all() and not tokens[..., 1:].any() and not lengths.any()


def exact_texts(params, prefix, length):
  """Probability of every token sequence, from the model without a cache."""
  texts = np.array(list(itertools.product(range(CONFIG.vocab_size), repeat=length)))
  whole = np.concatenate([np.tile(prefix, (len(texts), 1)), texts], axis=1)
  logits = np.asarray(whole_logits(CONFIG, params, whole), np.float64)
  log_p = logits - scipy.special.logsumexp(logits, axis=-1, keepdims=True)
  start = len(prefix) - 1
  return np.exp(sum(log_p[np.arange(len(texts)), start + t, texts[:, t]] for t in range(length)))


@pytest.mark.parametrize('coupled', [True, False])
def test_marginals_are_those_of_the_model(params, coupled):
  """Chi-square of the pairs of tokens against exact probabilities, for every value."""
  count = 20000
  tokens, _ = draw(params, samples=range(count), coupled=coupled, max_new_tokens=2,
                   batch_size=count)
  for prefix, row in zip(PREFIXES, tokens, strict=True):
    probability = exact_texts(params, prefix, 2).reshape(12, 12)
    # After the end of a text there is 0.
    probability[1] = np.eye(12)[0] * probability[1].sum()
    observed = np.zeros((12, 12))
    np.add.at(observed, (row[:, 0], row[:, 1]), 1)
    expected = probability * count
    assert not observed[probability == 0].any()
    rare = expected < 5
    cells, wanted = list(observed[~rare]), list(expected[~rare])
    if expected[rare].sum() > 0:
      cells.append(observed[rare].sum())
      wanted.append(expected[rare].sum())
    wanted = np.array(wanted) * sum(cells) / sum(wanted)
    assert scipy.stats.chisquare(cells, wanted).pvalue > 1e-3
    assert (~rare).sum() > 60
  agreement = (tokens[0, :, 0] == tokens[1, :, 0]).mean()
  p, q = (exact_texts(params, PREFIXES[a], 1) for a in (0, 1))
  if coupled:
    # Both take i when E_j / E_i > max(p_j / p_i, q_j / q_i) for all j, E exponential variables.
    expected = sum(1 / np.maximum(p / p[i], q / q[i]).sum() for i in range(12))
    assert abs(agreement - expected) < 0.02 and expected > 1.5 * (p * q).sum()
  else:
    assert abs(agreement - (p * q).sum()) < 0.02


@pytest.mark.parametrize('shape', [(5,), (2, 31), (3, 64), (2, 1, 100)])
def test_argmax(shape):
  scores = np.random.default_rng(0).integers(0, 9, shape).astype(np.float32)  # many ties
  np.testing.assert_array_equal(sampler.argmax(jnp.asarray(scores)), scores.argmax(axis=-1))
