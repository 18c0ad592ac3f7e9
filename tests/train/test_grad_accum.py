"""Parts of the training room that need no model: schedules, sentences, metrics, identity, mesh."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fairjax.config import MeshConfig, TrainConfig
from fairjax.errors import Fault, UserError
from fairjax.train.checkpoints import Identity, check_identity, params_digest
from fairjax.train.curriculum import derive_seed
from fairjax.train.metrics import IntervalMetrics, MetricWriter, read_metrics
from fairjax.train.optimizer import Adam, learning_rate
from fairjax.train.sentiment_examples import (
  LabelledSentences,
  SentenceStates,
  classification_report,
  read_positions,
  sentence_states,
  split_sentences_set,
  state_batches,
)
from fairjax.train.sharding import check_batch_size, make_mesh, to_devices


@pytest.mark.parametrize('schedule', ['cosine', 'linear', 'constant'])
def test_learning_rate_is_that_of_optax(schedule):
  config = TrainConfig(steps=110, warmup_steps=10, learning_rate=2.0, schedule=schedule)
  after = {'cosine': optax.cosine_decay_schedule(2.0, 100),
           'linear': optax.linear_schedule(2.0, 0.0, 100),
           'constant': optax.constant_schedule(2.0)}[schedule]
  expected = optax.join_schedules([optax.linear_schedule(0.0, 2.0, 10), after], [10])
  for step in (0, 3, 9, 10, 11, 60, 109, 110, 500):
    assert learning_rate(config, step) == pytest.approx(float(expected(step)), abs=1e-6)


def test_optimizer_is_adam_on_the_clipped_gradient():
  adam = Adam.of(TrainConfig(clip_norm=1.0, weight_decay=0.01))
  params = {'w': jnp.array([1.0, -2.0])}
  state, m, v, expected = adam.transformation().init(params), 0.0, 0.0, np.array([1.0, -2.0])
  for t, gradient in enumerate(([30.0, 40.0], [0.3, -0.4]), start=1):
    params, state = adam.update({'w': jnp.array(gradient)}, state, params, jnp.float32(0.1))
    g = np.array(gradient) / max(1.0, np.linalg.norm(gradient))
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    direction = (m / (1 - 0.9 ** t)) / (np.sqrt(v / (1 - 0.999 ** t)) + 1e-8)
    expected = expected - 0.1 * (direction + 0.01 * expected)
  np.testing.assert_allclose(params['w'], expected, rtol=1e-5)


def _sentences(n=40, t=6):
  rng = np.random.default_rng(1)
  length = rng.integers(2, t + 1, size=n).astype(np.int32)
  tokens = np.where(np.arange(t) < length[:, None], np.arange(n)[:, None] + 3, 0).astype(np.int32)
  return LabelledSentences(tokens, length, (np.arange(n) % 2).astype(np.float32))


def test_sentence_split_holds_every_sentence_once():
  data = _sentences()
  train, valid = split_sentences_set(data, valid_share=0.25, batch_size=4, seed=3)
  assert len(valid) == 10
  found = np.sort(np.concatenate([train.tokens[:, 0], valid.tokens[:, 0]]))
  np.testing.assert_array_equal(found, np.sort(data.tokens[:, 0]))


def test_sentence_split_refuses_one_class_and_too_few():
  data = _sentences()
  one_class = dataclasses.replace(data, label=np.ones_like(data.label))
  for bad, size in ((one_class, 4), (data, 64)):
    with pytest.raises(UserError, match='too few'):
      split_sentences_set(bad, valid_share=0.25, batch_size=size, seed=3)


def _states(n=40, places=3):
  """h-bar [n, places, 2] holds (sentence, place)."""
  sentence, place = np.meshgrid(np.arange(n), np.arange(places), indexing='ij')
  return SentenceStates(np.stack([sentence, place], -1).astype(np.float32),
                        (np.arange(n) % 2).astype(np.float32))


def test_state_batches_resume_shard_and_cover_an_epoch():
  data = _states()
  arguments = dict(batch_size=8, prefix_share=0.5, seed=7)
  stream = state_batches(data, start_step=0, **arguments)
  batches = [next(stream) for _ in range(12)]
  resumed = state_batches(data, start_step=9, **arguments)
  for expected in batches[9:]:
    found = next(resumed)
    for name in expected:
      np.testing.assert_array_equal(found[name], expected[name])
  halves = [next(state_batches(data, start_step=4, shard=(i, 2), **arguments)) for i in (0, 1)]
  for name, rows in batches[4].items():
    np.testing.assert_array_equal(np.concatenate([h[name] for h in halves]), rows)
  epoch = np.concatenate([b['h_bar'][:, 0] for b in batches[:5]])
  assert len(set(epoch.tolist())) == 40  # each sentence once
  assert (epoch != np.concatenate([b['h_bar'][:, 0] for b in batches[5:10]])).any()
  for batch in batches:
    np.testing.assert_array_equal(batch['label'], batch['h_bar'][:, 0] % 2)


@pytest.mark.parametrize('places, expected', [(3, [0.8, 0.1, 0.1]), (1, [1.0])])
def test_states_are_read_at_the_last_token_or_at_a_prefix(places, expected):
  stream = state_batches(_states(100, places), batch_size=100, prefix_share=0.2, seed=0,
                         start_step=0)
  found = np.concatenate([next(stream)['h_bar'][:, 1] for _ in range(200)]).astype(int)
  np.testing.assert_allclose(np.bincount(found) / len(found), expected, atol=0.015)


def test_positions_are_the_last_token_and_uniform_prefixes():
  data = LabelledSentences(np.full((5000, 9), 5, np.int32), np.full(5000, 9, np.int32),
                           np.zeros(5000, np.float32))
  positions = read_positions(data, prefixes=4, seed=0)
  assert positions.shape == (5000, 5) and (positions[:, 0] == 8).all()
  counts = np.bincount(positions[:, 1:].ravel(), minlength=9) / 20000
  np.testing.assert_allclose(counts, [0] + [1 / 7] * 7 + [0], atol=0.01)
  short = dataclasses.replace(data, length=np.full(5000, 2, np.int32))
  assert (read_positions(short, prefixes=2, seed=0) == 1).all()


def test_states_are_those_of_the_sentences_whatever_the_batch():
  data = _sentences()

  def features(tokens, positions):
    assert len(tokens) == 16  # one compiled shape
    return np.stack([np.take_along_axis(tokens, positions, 1), positions], -1)

  states = sentence_states(data, features, batch_size=16, prefixes=2, seed=5)
  assert states.h_bar.shape == (40, 3, 2)
  np.testing.assert_array_equal(states.h_bar[:, :, 1], read_positions(data, prefixes=2, seed=5))
  np.testing.assert_array_equal(states.h_bar[:, :, 0], np.tile(np.arange(40)[:, None] + 3, 3))
  np.testing.assert_array_equal(states.label, data.label)


def test_classification_report_by_hand():
  report = classification_report(np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1]))
  assert report['accuracy'] == pytest.approx(3 / 5)
  assert report['f1'] == pytest.approx(2 / 3)  # 2 hits, 1 false alarm, 1 miss
  assert report['macro_f1'] == pytest.approx((2 / 3 + 1 / 2) / 2)
  assert report['majority'] == pytest.approx(3 / 5)


def test_interval_metrics_weight_and_leave_skipped_updates_out():
  interval = IntervalMetrics()
  interval.add(4, {'a': (1.0, 1.0), 'b': (2.0, 0.0), 'skipped': (0.0, 1.0)})
  interval.add(5, {'a': (4.0, 3.0), 'b': (np.nan, 0.0), 'skipped': (0.0, 1.0)})
  assert interval.flush() == ({'a': 13 / 4}, [(4, True), (5, True)])
  interval.add(6, {'a': (1.0, 1.0), 'skipped': (0.0, 1.0)})
  interval.add(7, {'a': (np.inf, 1.0), 'skipped': (1.0, 1.0)})
  interval.add(8, {'a': (np.nan, 1.0), 'skipped': (1.0, 1.0)})
  assert interval.flush() == ({'a': 1.0, 'skipped_updates': 2.0},
                              [(6, True), (7, False), (8, False)])
  assert interval.flush() == ({}, [])


@pytest.mark.tf
def test_metric_writer_cuts_what_is_run_again_and_a_torn_line(tmp_path):
  writer = MetricWriter(tmp_path, first_step=0, log=print)
  for step in (1, 2, 3):
    writer.write(step, 'train', {'loss': float(step)})
  writer.close()
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 4, "ki')
  writer = MetricWriter(tmp_path, first_step=2, log=print)
  writer.write(3, 'train', {'loss': 30.0})
  writer.close()
  lines = read_metrics(tmp_path / 'metrics.jsonl')
  assert [(x['step'], x['loss']) for x in lines] == [(1, 1.0), (2, 2.0), (3, 30.0)]
  assert list((tmp_path / 'tensorboard').glob('events.out.tfevents*'))


def test_identity_mismatch_names_every_field():
  card = Identity(stage='debias', vocabulary='v' * 64, config='c' * 64, method='embedding',
                  fairness_weight=10.0, attribute='country')
  check_identity(json.loads(json.dumps(card.to_dict())), card, where='x')
  other = dataclasses.replace(card, vocabulary='w' * 64, fairness_weight=1.0)
  with pytest.raises(UserError) as error:
    check_identity(card.to_dict(), other, where='runs/x')
  assert 'vocabulary is vvvvvvvvvvvv..., expected wwwwwwwwwwww...' in str(error.value)
  assert 'fairness_weight is 10.0, expected 1.0' in str(error.value)
  assert 'method' not in str(error.value)


def test_digest_sees_values_names_shapes_and_dtypes():
  trees = [{'a': np.zeros(4, np.float32)}, {'b': np.zeros(4, np.float32)},
           {'a': np.zeros((2, 2), np.float32)}, {'a': np.zeros(4, np.int32)},
           {'a': np.array([0, 0, 0, 1], np.float32)}]
  assert len({params_digest(t) for t in trees}) == len(trees)
  assert params_digest({'a': jnp.zeros(4)}) == params_digest(trees[0])


def test_seeds_of_purposes_differ():
  seeds = {derive_seed(seed, purpose) for seed in range(20) for purpose in ('lm', 'debias')}
  assert len(seeds) == 40


def test_mesh_takes_the_rest_and_refuses_what_does_not_fit():
  n = jax.device_count()
  assert dict(make_mesh(MeshConfig()).shape) == {
    'slice': 1, 'data': n, 'fsdp': 1, 'model': 1}
  with pytest.raises(UserError, match='multiply'):
    make_mesh(MeshConfig(data=n + 1))


def test_rows_must_divide():
  mesh = make_mesh(MeshConfig())
  check_batch_size(2 * jax.device_count(), mesh, field='lm.batch_size')
  with pytest.raises(UserError, match='lm.batch_size=9 is not divisible by the 8 devices'):
    check_batch_size(9, mesh, field='lm.batch_size')
  rows = np.arange(16).reshape(8, 2)
  np.testing.assert_array_equal(to_devices({'x': rows}, mesh)['x'], rows)


def test_tensorboard_files_that_cannot_be_written_are_told_in_one_line(tmp_path):
  pytest.importorskip('clu.metric_writers')
  (tmp_path / 'tensorboard').write_text('not a folder')
  with pytest.raises(Fault) as error:
    MetricWriter(tmp_path, first_step=0, log=print)
  assert str(tmp_path / 'tensorboard') in str(error.value) and 'Not a directory' in str(error.value)
  assert '\n' not in str(error.value)
