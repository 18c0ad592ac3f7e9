"""Lines of progress, where counters are means over the stage; a training that is not saved."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fairjax.config import LogConfig, MeshConfig, TrainConfig
from fairjax.errors import Fault
from fairjax.train.loop import Stage, _counters, _format, run_unsaved
from fairjax.train.optimizer import Adam
from fairjax.train.sharding import make_mesh
from fairjax.train.steps import BoundStep, TrainState, make_update

MEANS = {
  'branches/hits': 49.5, 'branches/too_long': 0.0, 'cosine': 0.93056,
  'fairness_loss/embedding': 0.0694, 'fairness_loss/sentiment': 0.1518, 'grad_norm': 2.28,
  'js': 8e-4, 'kl': 0.00336, 'learning_rate': 2e-4, 'loss': 1.17,
  'pairs_per_batch': 48.2, 'total_loss': 1.79}


def stage(method='', unit='tokens'):
  return types.SimpleNamespace(identity=types.SimpleNamespace(method=method), work_unit=unit)


def test_a_line_holds_what_somebody_watches_in_fixed_decimals():
  assert _format(stage('embedding'), MEANS) == 'loss 1.170  fairness 0.0694  cos 0.931  KL 0.0034'
  assert 'fairness 0.1518' in _format(stage('sentiment'), MEANS)
  assert _format(stage(), {'loss': 7.0, 'learning_rate': 1.0}) == 'loss 7.000  perplexity 1,097'
  assert _format(stage(unit='examples'), {'loss': 0.5, 'accuracy': 1.0}
                 ) == 'loss 0.500  accuracy 1.000'


def test_counters_are_means_and_zeros_are_left_out():
  short = MEANS | {'branches/hits': 39.5, 'step': 12, 'skipped_updates': 1.0}  # one step counts
  assert _counters([MEANS | {'step': 10}, short, {'step': 15, 'skipped_updates': 3.0}]
                   ) == f'hits {(10 * 49.5 + 39.5) / 11:.1f}'


def diverging(log_every=100, **fields):
  """A stage whose steps from 5 on are not finite."""
  config = TrainConfig(steps=9, max_skipped=3, log_every=log_every)
  adam = Adam.of(config)

  def loss(params, memory, batch, key):
    mean = (params * batch['x']).mean()
    return mean, (memory, {'loss': (mean, jnp.ones(()))})

  return Stage(
    name='probe', config=config, mesh=make_mesh(MeshConfig(), jax.devices()[:1]),
    init_state=lambda: TrainState.fresh(jnp.ones(2), adam),
    step=BoundStep(jax.jit(make_update(loss, adam)), 0),
    batches=lambda start: ({'x': np.full(2, np.nan if step > 4 else 1.0, np.float32)}
                           for step in itertools.count(start)),
    batch_name='draw {}'.format, work_per_step=1, **fields)


def test_a_training_that_is_not_saved_writes_nothing_when_it_diverges(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(Fault, match=r'4 times in a row, first at step 5, batch: draw 5\. A lower'):
    run_unsaved(diverging(), log=lambda line: None)
  assert not list(tmp_path.iterdir())


def test_an_error_in_traced_steps_ends_the_trace(monkeypatch, tmp_path):
  called = []
  monkeypatch.setattr(jax.profiler, 'start_trace', lambda *_, **__: called.append('start'))
  monkeypatch.setattr(jax.profiler, 'stop_trace', lambda: called.append('stop'))
  stage = diverging(log_every=1, log_config=LogConfig(profile=10), directory=tmp_path)
  with pytest.raises(Fault):
    run_unsaved(stage, log=lambda line: None)
  assert called == ['start', 'stop']
