"""Models as functions: packed tokens, first tokens, causality, and what a frozen one may move."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from golden_models import GOLDEN

from fairjax import pretrained
from fairjax.errors import UserError
from fairjax.pretrained import load_pretrained
from fairjax.pretrained.models import (
  _gelu,
  parse_freeze,
  trainable_mask,
  unstack_layers,
)

encode = jax.jit(pretrained.encode, static_argnums=1, static_argnames=('packing', 'first_only'))


@pytest.fixture(scope='module')
def bert():
  return load_pretrained(GOLDEN / 'bert_classifier', 'classifier')


def test_albert_shares_its_layers():
  albert = load_pretrained(GOLDEN / 'albert_mlm', 'mlm')
  assert parse_freeze('all', albert.arch) == albert.arch.num_layers
  left = trainable_mask(albert.params, albert.arch, 'embedding')
  assert not left['projection']['kernel'].any() and left['layers']['qkv_kernel'].all()
  assert left['mlm']['kernel'].all()
  whole = trainable_mask(albert.params, albert.arch, 'all')
  assert not whole['layers']['qkv_kernel'].any() and whole['mlm']['kernel'].all()
  with pytest.raises(UserError, match='share their parameters'):
    parse_freeze('1', albert.arch)


@pytest.mark.parametrize('word', ['', '0', '-1', '99', 'some', '1.0'])
def test_other_words_are_refused(bert, word):
  with pytest.raises(UserError, match='--freeze: .* is not none, embedding, all'):
    parse_freeze(word, bert.arch)


@pytest.mark.parametrize(('packing', 'unrolled'), [(None, True), ((2, 44), False)])
@pytest.mark.parametrize('name', ['bert_classifier', 'albert_mlm'])
def test_states_of_first_tokens_alone_and_of_unrolled_layers(name, packing, unrolled):
  model = load_pretrained(GOLDEN / name, 'mlm' if 'mlm' in name else 'classifier')
  rng = np.random.default_rng(0)
  ids = rng.integers(0, 60, (6, 24))
  mask = np.arange(24)[None] < np.array([24, 1, 7, 3, 12, 2])[:, None]
  params = unstack_layers(model.params) if unrolled else model.params
  plain = encode(model.params, model.arch, ids, mask)
  first = encode(params, model.arch, ids, mask, packing=packing, first_only=True)
  assert first.shape == (6, 1, plain.shape[-1])
  np.testing.assert_allclose(first[:, 0], plain[:, 0], atol=3e-6)
  if unrolled:
    whole = encode(params, model.arch, ids, mask, packing=packing)
    np.testing.assert_allclose(whole[mask], plain[mask], atol=3e-6)


def test_first_tokens_alone_are_dropped_out_as_all_are(bert):
  ids, mask = np.full((4, 8), 7), np.ones((4, 8), bool)
  arch = dataclasses.replace(bert.arch, hidden_dropout=0.5, attention_dropout=0.5)
  key = jax.random.key(0)
  first = encode(bert.params, arch, ids, mask, key=key, first_only=True)
  assert first.shape[1] == 1 and len(np.unique(np.asarray(first)[:, 0, 0])) == 4
  still = encode(bert.params, bert.arch, ids, mask, first_only=True)
  assert not np.allclose(first, still, atol=0.05)


@pytest.mark.parametrize('dtype', ['float64', 'float32', 'bfloat16'])
def test_gelu_is_x_times_the_normal_distribution_function(dtype):
  with jax.enable_x64(dtype == 'float64'):
    x = jnp.asarray(np.linspace(-12, 12, 4801), dtype)
    found = _gelu(x)
  assert found.dtype == dtype
  x, found = np.asarray(x, np.float64), np.asarray(found, np.float64)
  wanted = x * scipy.stats.norm.cdf(x)
  # 1 + erf(x) is rounded near 1 and then multiplied by x; bfloat16 rounds the result, too.
  eps = 2 ** -52 if dtype == 'float64' else 2 ** -23
  off = 2 * eps * np.abs(x) + (2 ** -8 * np.abs(wanted) if dtype == 'bfloat16' else 0)
  assert (np.abs(found - wanted) <= off).all()


def test_compile_time_does_not_depend_on_depth():
  model = load_pretrained(GOLDEN / 'bert_mlm', 'encoder')
  ids = jnp.zeros((2, 5), int)

  def lines(layers):
    params = model.params | {'layers': {
      k: np.resize(v, (layers, *v.shape[1:])) for k, v in model.params['layers'].items()}}
    arch = model.arch.__class__(**{**vars(model.arch), 'num_layers': layers, 'groups': layers})
    text = jax.jit(encode, static_argnums=1).lower(params, arch, ids, ids == 0).as_text()
    return len(text.splitlines())

  assert lines(3) == lines(24)
