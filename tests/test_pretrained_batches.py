"""Texts in buckets over a mesh: order, padding, truncation, compilations, the texts beside one."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from fairjax.errors import UserError
from fairjax.pretrained import (
  BatchRunner,
  bucket_lengths,
  class_logits,
  encode,
  encode_texts,
  load_pretrained,
)

GOLDEN = pathlib.Path(__file__).parent / 'golden' / 'pretrained'


def mesh(*shape, names=('data', 'model')):
  devices = np.array(jax.devices()[:int(np.prod(shape))]).reshape(shape)
  return Mesh(devices, names[:len(shape)], axis_types=(AxisType.Auto,) * len(shape))


def summary(params, ids, mask):
  """Sum, length and greatest id of each row: exact in float32."""
  assert ids.dtype == jnp.int32 and mask.dtype == bool
  kept = jnp.where(mask, ids, 0)
  return jnp.stack([kept.sum(1), mask.sum(1), kept.max(1)], 1) * params


def texts_of(count, longest, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.integers(1, 1000, size=rng.integers(1, longest + 1)).astype(np.int32)
          for _ in range(count)]


@pytest.mark.parametrize('shape', [(1,), (8,), (4, 2)])
def test_every_text_gets_its_own_value_in_order(shape):
  run = BatchRunner(summary, jnp.int32(1), max_length=100, mesh=mesh(*shape), batch_tokens=128,
                    pad_id=999_999)
  ids = texts_of(150, 100)
  found = run(ids)
  np.testing.assert_array_equal(found, [[x.sum(), len(x), x.max()] for x in ids])


@pytest.mark.parametrize('longest', [1, 7, 8, 9, 100, 512])
def test_buckets_are_few_and_waste_little(longest):
  for per_octave, most, waste in ((8, 39, 1.13), (2, 14, 1.5)):
    lengths = bucket_lengths(longest, per_octave=per_octave)
    assert lengths[-1] == longest and list(lengths) == sorted(set(lengths))
    assert len(lengths) <= most
    for length in range(9, longest + 1):
      padded = min(n for n in lengths if n >= length)
      assert padded < length + 4 or padded < waste * length


def test_one_compilation_for_each_bucket_in_use():
  run = BatchRunner(summary, jnp.int32(1), max_length=64, mesh=mesh(2), batch_tokens=64)
  for seed in range(3):
    run(texts_of(60, 30, seed))
  assert set(run.traced) <= {8, 12, 16, 20, 24, 28, 32} and len(run.traced) >= 4
  run(texts_of(5, 64))
  assert set(run.traced.values()) == {1} and len(run.traced) <= len(run.lengths)


def test_few_texts_share_a_batch():
  run = BatchRunner(summary, jnp.int32(1), max_length=64, mesh=mesh(1), batch_tokens=256)
  ids = [np.full(n, n) for n in (3, 60, 10, 20, 30, 1)]
  np.testing.assert_array_equal(run(ids), [[len(x) ** 2, len(x), len(x)] for x in ids])
  # Two of 8 and one of 12 and 20 cost less at 32, but those 5 at 60 (15 rows) more than a batch.
  assert dict(run.traced) == {32: 1, 60: 1}
  ids = texts_of(2000, 30)
  padded = sum(run.rows(n) * n for n, _ in run._plan(
    np.searchsorted(run.lengths, [len(x) for x in ids])))
  assert padded < 1.15 * sum(map(len, ids))


def test_rows_are_split_over_the_devices_and_not_over_model():
  seen = {}

  def function(params, ids, mask):
    jax.debug.inspect_array_sharding(ids, callback=lambda s: seen.update(sharding=s))
    return ids.sum(1)

  run = BatchRunner(function, {}, max_length=8, mesh=mesh(4, 2), batch_tokens=16)
  run([np.array([1, 2])])
  assert run.rows(8) == 8
  assert seen['sharding'].shard_shape((8, 8)) == (2, 8)


def test_bad_lengths_are_refused():
  run = BatchRunner(summary, jnp.int32(1), max_length=8, mesh=mesh(1))
  for bad in ([], [np.zeros(0, np.int32)], [np.zeros(9, np.int32)]):
    with pytest.raises(ValueError, match='texts of'):
      run(bad)


@pytest.fixture(scope='module')
def classifier():
  return load_pretrained(GOLDEN / 'bert_classifier', 'classifier')


def runner(model, *, tokens=96, devices=1):
  def function(params, ids, mask):
    return class_logits(params, model.arch, encode(params, model.arch, ids, mask))

  return BatchRunner(function, model.params, max_length=model.max_length, mesh=mesh(devices),
                     batch_tokens=tokens)


def test_a_score_does_not_depend_on_the_batch(classifier):
  ids = [row % 90 for row in texts_of(60, 24)]
  together = runner(classifier)(ids)
  shuffled = np.random.default_rng(1).permutation(60)
  others = [runner(classifier)([ids[i] for i in shuffled])[np.argsort(shuffled)],
            np.concatenate([runner(classifier)([row]) for row in ids]),
            runner(classifier, tokens=48)(ids), runner(classifier, devices=8)(ids)]
  for other in others:
    # Another length or number of rows sums in another order: a few units of the last place.
    np.testing.assert_allclose(other, together, atol=1e-6)
  print('\nlargest difference by batch', max(np.abs(o - together).max() for o in others))
  np.testing.assert_array_equal(runner(classifier)(ids), together)


def test_padding_tokens_do_not_count(classifier):
  ids = [row % 90 for row in texts_of(12, 24, seed=3)]
  exact = np.concatenate([
    class_logits(classifier.params, classifier.arch, encode(
      classifier.params, classifier.arch, row[None], np.ones((1, len(row)), bool)))
    for row in ids])
  np.testing.assert_allclose(runner(classifier)(ids), exact, atol=1e-6)


def test_long_texts_are_cut_and_counted(classifier):
  texts = ['the ' * n for n in (1, 21, 22, 23, 40)]
  encoded = encode_texts(classifier.tokenizer, texts, max_length=24)
  assert [len(row) for row in encoded.ids] == [3, 23, 24, 24, 24]
  assert encoded.truncated == 2 and encoded.repaired == 0
  sep = classifier.tokenizer.token_to_id('[SEP]')
  assert all(row[-1] == sep for row in encoded.ids)


def test_lone_surrogates_are_replaced_and_counted(classifier):
  encoded = encode_texts(classifier.tokenizer, ['good', 'good \ud800'], max_length=24)
  assert encoded.repaired == 1 and len(encoded.ids) == 2


def test_a_text_without_tokens_is_named():
  gpt2 = load_pretrained(GOLDEN / 'gpt2', 'lm')
  with pytest.raises(UserError, match='text 2 of 2 has no tokens'):
    encode_texts(gpt2.tokenizer, ['a', ''], max_length=24)
