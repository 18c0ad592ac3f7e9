"""Means over an interval, and the files of metrics."""

import sys
import types

import numpy as np
import pytest

from fairjax.errors import Fault, UserError
from fairjax.train.metrics import IntervalMetrics, MetricWriter, read_metrics


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


def test_tensorboard_files_that_cannot_be_written_are_one_line(tmp_path):
  pytest.importorskip('clu.metric_writers')
  (tmp_path / 'tensorboard').write_text('not a folder')
  with pytest.raises(Fault) as error:
    MetricWriter(tmp_path, first_step=0, log=print)
  assert str(tmp_path / 'tensorboard') in str(error.value) and 'Not a directory' in str(error.value)
  assert '\n' not in str(error.value)


def fake_wandb(calls):
  run = types.SimpleNamespace(
    define_metric=lambda *a, **o: calls.append(('define', a, o)),
    log=lambda values: calls.append(('log', values)), finish=lambda: calls.append('finish'))
  return types.SimpleNamespace(init=lambda **o: (calls.append(('init', o)), run)[1])


def fake_mlflow(calls):
  return types.SimpleNamespace(
    set_experiment=lambda name: calls.append(name),
    start_run=lambda **o: calls.append(('start', o)), end_run=lambda: calls.append('end'),
    log_metrics=lambda values, step: calls.append(('log', {'step': step, **values})))


@pytest.mark.parametrize(('tracker', 'fake'), [('wandb', fake_wandb), ('mlflow', fake_mlflow)])
def test_a_tracker_gets_what_the_file_gets(tmp_path, monkeypatch, tracker, fake):
  calls, lines = [], []
  monkeypatch.setitem(sys.modules, 'clu', None)
  monkeypatch.setitem(sys.modules, tracker, module := fake(calls))
  def write(step):
    writer = MetricWriter(tmp_path, first_step=step - 1, log=lines.append, tracker=tracker,
                          name='lm')
    writer.write(step, 'train', {'loss': float(step), 'grad_norm': np.inf})
    writer.close()
  write(1)
  assert [c[1] for c in calls if c[0] == 'log'] == [
    {'step': 1, 'train/loss': 1.0, 'train/grad_norm': np.inf}]
  assert calls[-1] in ('finish', 'end')
  assert not [x for x in tmp_path.iterdir() if x.name not in ('metrics.jsonl', 'tensorboard')]
  monkeypatch.setattr(module, 'init' if tracker == 'wandb' else 'log_metrics', None)  # no network
  write(2)
  (failed,) = [line for line in lines if line.startswith('WARNING')]
  assert 'takes no metrics (TypeError' in failed
  assert [line['step'] for line in read_metrics(tmp_path / 'metrics.jsonl')] == [1, 2]
  monkeypatch.setitem(sys.modules, tracker, None)
  with pytest.raises(UserError, match=f'log.to={tracker} needs its client.*pip install {tracker}'):
    write(3)
