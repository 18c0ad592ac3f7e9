"""Texts in buckets over a mesh: order, padding, truncation, compilations, the texts beside one."""

import collections
import platform

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_models import GOLDEN
from jax.sharding import AxisType, Mesh

from fairjax.model.xla_features import knows_options
from fairjax.pretrained import (
  BatchRunner,
  bucket_lengths,
  class_logits,
  encode,
  load_pretrained,
)
from fairjax.pretrained import batch_runner as batches
from fairjax.pretrained.models import dense


def mesh(*shape, names=('data', 'model')):
  devices = np.array(jax.devices()[:int(np.prod(shape))]).reshape(shape)
  return Mesh(devices, names[:len(shape)], axis_types=(AxisType.Auto,) * len(shape))


def summary(params, ids, mask, packing):
  """Sum, length and greatest id of each row: exact in float32."""
  assert ids.dtype == jnp.int32 and mask.dtype == bool
  assert ids.shape[0] % packing[0] == 0
  kept = jnp.where(mask, ids, 0)
  return jnp.stack([kept.sum(1), mask.sum(1), kept.max(1)], 1) * params


def texts_of(count, longest, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.integers(1, 1000, size=rng.integers(1, longest + 1)).astype(np.int32)
          for _ in range(count)]


@pytest.mark.parametrize('shape', [(8,), (4, 2)])
def test_every_text_gets_its_own_value_in_order(shape):
  run = BatchRunner(summary, jnp.int32(1), max_length=100, mesh=mesh(*shape), batch_tokens=128,
                    pad_id=999_999)
  ids = texts_of(150, 100)
  found = run(ids)
  np.testing.assert_array_equal(found, [[x.sum(), len(x), x.max()] for x in ids])


def test_a_long_limit_makes_no_batch_larger_and_a_long_text_is_one():
  run = BatchRunner(summary, jnp.int32(1), max_length=5000, mesh=mesh(1, 1), batch_tokens=128,
                    pad_id=0)
  assert run.rows(24) == 128 // 17
  ids = [np.full(n, 3, np.int32) for n in (4, 700, 20, 5000)]
  np.testing.assert_array_equal(run(ids), [[3 * len(x), len(x), 3] for x in ids])


@pytest.mark.parametrize('longest', [1, 7, 8, 9, 100, 512])
def test_buckets_are_few_and_waste_little(longest):
  lengths = bucket_lengths(longest)
  assert lengths[-1] == longest and list(lengths) == sorted(set(lengths)) and len(lengths) <= 13
  for length in range(9, longest + 1):
    assert min(n for n in lengths if n >= length) < 1.5 * length


def test_one_compilation_for_each_bucket_in_use():
  traced = collections.Counter()

  def counted(params, ids, *more):
    traced[ids.shape[1]] += 1  # runs when the function is traced, not when it is called
    return summary(params, ids, *more)

  run = BatchRunner(counted, jnp.int32(1), max_length=64, mesh=mesh(2), batch_tokens=64)
  for seed in range(3):
    run(texts_of(60, 30, seed))
  assert set(traced) <= {8, 12, 16, 24, 32} and len(traced) >= 4
  run(texts_of(5, 64))
  assert set(traced.values()) == {1} and len(traced) <= len(run.lengths)


@pytest.mark.parametrize('devices', [1, 4])
def test_batches_hold_every_text_once_and_are_nearly_full(devices):
  run = BatchRunner(summary, jnp.int32(1), max_length=64, mesh=mesh(devices), batch_tokens=512)
  sizes = np.array([len(x) for x in texts_of(3000, 64)])
  plan = list(run._plan(sizes))
  places = [place for _, parts in plan for part in parts for place in part]
  assert sorted(places) == list(range(3000))
  for length, parts in plan:
    assert 1 <= len(parts) <= devices
    for part in parts:
      assert sizes[part].sum() <= 512 and sizes[part].max() <= length
      assert len(part) <= run.rows(length)
  assert 512 * devices * len(plan) < 1.1 * sizes.sum() + 512 * devices
  lengths = [length for length, _ in plan]
  assert lengths == sorted(lengths, reverse=True)


def test_rows_are_split_over_the_devices_and_not_over_model():
  seen = {}

  def function(params, ids, mask, packing):
    jax.debug.inspect_array_sharding(ids, callback=lambda s: seen.update(sharding=s))
    return ids.sum(1)

  run = BatchRunner(function, {}, max_length=8, mesh=mesh(4, 2), batch_tokens=16)
  run([np.array([1, 2])])
  assert run.rows(8) == 4
  assert seen['sharding'].shard_shape((16, 8)) == (4, 8)


def test_layers_are_unrolled_on_a_cpu_where_they_are_large(classifier, monkeypatch):
  ids = texts_of(5, 20)
  ids = [row % 90 for row in ids]
  scanned, counts = runner(classifier)(ids), []
  for most in (2 ** 40, 0):
    monkeypatch.setattr(batches, '_SCANNED_LAYER_BYTES', most)
    run = runner(classifier)
    counts.append(isinstance(run._params['layers'], tuple))
    np.testing.assert_allclose(run(ids), scanned, atol=3e-6)
  assert counts == [False, True]


@pytest.fixture(scope='module')
def classifier():
  return load_pretrained(GOLDEN / 'bert_classifier', 'classifier')


def runner(model, *, tokens=96, devices=1):
  def function(params, ids, mask, packing):
    return class_logits(params, model.arch, encode(params, model.arch, ids, mask, packing=packing))

  return BatchRunner(function, model.params, max_length=model.max_length, mesh=mesh(devices),
                     batch_tokens=tokens)


def test_a_score_does_not_depend_on_the_batch(classifier):
  ids, run = [row % 90 for row in texts_of(60, 24)], runner(classifier)
  together = run(ids)
  shuffled = np.random.default_rng(1).permutation(60)
  others = [run([ids[i] for i in shuffled])[np.argsort(shuffled)],
            np.concatenate([run([row]) for row in ids]),
            runner(classifier, tokens=48)(ids), runner(classifier, devices=8)(ids)]
  for other in others:
    # Another length or number of rows sums in another order: a few units of the last place.
    np.testing.assert_allclose(other, together, atol=1e-6)
  np.testing.assert_array_equal(run(ids), together)
  # As without padding: as many rows of each length as there are, and no other token.
  arch = classifier.arch
  exact = jax.jit(lambda params, ids: class_logits(
    params, arch, encode(params, arch, ids, jnp.ones_like(ids, bool))))
  for length in (1, 7, 11, 23):
    rows = np.stack([row for row in ids if len(row) == length])
    assert length not in run.lengths
    np.testing.assert_allclose(run(list(rows)), exact(classifier.params, rows), atol=1e-6)


def test_a_row_for_every_token():
  run = BatchRunner(lambda p, ids, mask, packing: jnp.stack([ids * p, ids + 1], axis=-1),
                    jnp.int32(2), max_length=50, mesh=mesh(4), batch_tokens=64, per_token=True)
  ids = texts_of(60, 50)
  for row, found in zip(ids, run(ids), strict=True):
    np.testing.assert_array_equal(found, np.stack([row * 2, row + 1], axis=-1))


def test_products_of_bfloat16_are_rounded_once_after_the_bias():
  rng = np.random.default_rng(0)
  table, weight, bias = (jnp.asarray(rng.normal(size=shape), jnp.bfloat16)
                         for shape in ((50, 96), (96, 160), (160,)))
  bias *= 20  # cancels products: a rounding before the sum would show

  def function(params, ids, mask, packing):
    return dense(params['table'][ids], params['weight'], params['bias'], jax.nn.relu)[:, 0]

  run = BatchRunner(function, {'table': table, 'weight': weight, 'bias': bias}, max_length=8)
  ids = rng.integers(0, 50, (300, 1)).astype(np.int32)
  exact = np.maximum(np.asarray(table, np.float64)[ids[:, 0]] @ np.asarray(weight, np.float64)
                     + np.asarray(bias, np.float64), 0)
  result = run(list(ids))
  assert result.dtype == jnp.bfloat16
  # Half a unit of the last of 8 bits (2^-8 of a number just above a power of two), and what
  # float32 sums of 96 terms may be off.
  off = np.abs(np.asarray(result, np.float64) - exact)
  assert (off <= 2.0 ** -8 * exact + 1e-4).all()


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_products_of_float32_on_a_cpu_are_those_of_onednn(dtype):
  if jax.default_backend() != 'cpu' or platform.machine() != 'x86_64':
    pytest.skip('jaxlib is known to hold oneDNN for x86-64 CPUs only')
  rng = np.random.default_rng(0)
  params = {'table': jnp.asarray(rng.normal(size=(1000, 256)), dtype),
            'kernel': jnp.asarray(rng.normal(size=(256, 256)), dtype)}
  run = BatchRunner(
    lambda params, ids, mask, packing: dense(params['table'][ids], params['kernel'])[:, 0],
    params, max_length=1, mesh=mesh(1), batch_tokens=128)
  found = run([np.array([i], np.int32) for i in range(100)])
  table, kernel = (np.asarray(params[k], np.float64) for k in ('table', 'kernel'))
  # A sum of 256 products is off by 256 roundings of 2^-24 of their size at most, and by the one
  # to 8 bits in bfloat16.
  exact, size = table[:100] @ kernel, np.abs(table[:100]) @ np.abs(kernel)
  off = 2 ** -16 * size + (2 ** -8 * np.abs(exact) if dtype == 'bfloat16' else 0)
  assert (np.abs(found.astype(np.float64) - exact) <= off).all()
  rows = jnp.zeros((run.rows(1), 1), jnp.int32)
  program = run._run.lower(params, rows, rows == 0).compile().as_text()
  known = knows_options(*batches._CPU_OPTIONS.items())  # not in JAX 0.7.2
  assert ('__onednn_fusion' in program) == (dtype == 'float32' and known)
