"""What a frozen model may move: by part, by layer, never by gradient, decay or an optimizer."""

import pathlib

import jax
import numpy as np
import pytest

from fairjax.errors import UserError
from fairjax.pretrained import load_pretrained
from fairjax.pretrained.models import format_frozen, parse_freeze, trainable_mask

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'pretrained'


@pytest.fixture(scope='module')
def bert():
  return load_pretrained(GOLDEN / 'bert_classifier', 'classifier')


@pytest.mark.parametrize(('freeze', 'embedding', 'first', 'last'), [
  ('none', 1, 1, 1), ('embedding', 0, 1, 1), ('1', 0, 0, 1), ('all', 0, 0, 0)])
def test_parts_by_word(bert, freeze, embedding, first, last):
  left = jax.tree.map(lambda mask, array: mask * np.ones_like(array),
                      trainable_mask(bert.params, bert.arch, freeze), bert.params)
  assert bert.arch.num_layers > 1
  for array in left['embeddings'].values():
    assert (np.asarray(array) == embedding).all()
  for array in left['layers'].values():
    assert (np.asarray(array)[0] == first).all() and (np.asarray(array)[-1] == last).all()
  for group in ('pooler', 'classifier'):
    for array in left[group].values():
      assert (np.asarray(array) == 1).all()


def test_all_layers_by_number_are_all(bert):
  number = str(bert.arch.num_layers)
  a, b = (trainable_mask(bert.params, bert.arch, word) for word in (number, 'all'))
  jax.tree.map(np.testing.assert_array_equal, a, b)


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


def test_words():
  assert format_frozen('embedding') == 'embedding frozen'
