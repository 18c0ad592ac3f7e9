"""Means over an interval, and the files of metrics."""

import shutil
import sys
import types

import numpy as np
import pytest

from fairjax.errors import Fault, UserError
from fairjax.train.metrics import IntervalMetrics, MetricWriter, import_tracker, read_metrics


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


class FakeTracker:
  """Stands for wandb and mlflow: notes the calls in order; a run is open until it is ended."""

  def __init__(self):
    self.calls, self.open = [], 0

  def init(self, **options):  # wandb
    self.start_run(**options)
    return types.SimpleNamespace(
      define_metric=lambda *a, **o: None, finish=self.end_run,
      log=lambda values: self.log_metrics(values, step=values.pop('step')))

  def set_experiment(self, name):  # mlflow
    self.project = name

  def start_run(self, **options):
    assert not self.open, 'a run is open'
    self.open += 1
    self.calls.append({'project': getattr(self, 'project', ''), **options})

  def log_metrics(self, values, step):
    self.calls.append({'step': step, **values})

  def end_run(self):
    self.open -= 1


@pytest.mark.parametrize('tracker', ['wandb', 'mlflow'])
def test_a_tracker_gets_what_the_file_gets(tmp_path, monkeypatch, tracker):
  fake, lines = FakeTracker(), []
  monkeypatch.setitem(sys.modules, 'clu', None)
  monkeypatch.setitem(sys.modules, tracker, fake)
  monkeypatch.setenv('WANDB_PROJECT' if tracker == 'wandb' else 'MLFLOW_EXPERIMENT_NAME', 'mine')

  def write(step, folder=tmp_path):
    writer = MetricWriter(folder, first_step=step - 1, log=lines.append, tracker=tracker, name='lm')
    writer.write(step, 'train', {'loss': float(step), 'grad_norm': np.inf})
    writer.close()
  write(1)
  begun, logged = fake.calls
  assert begun['project'] == 'mine'
  assert logged == {'step': 1, 'train/loss': 1.0, 'train/grad_norm': np.inf}
  assert not [x for x in tmp_path.iterdir() if x.name not in ('metrics.jsonl', 'tensorboard')]
  with monkeypatch.context() as context:  # the network breaks off within a stage
    context.setattr(fake, 'log_metrics', None)
    write(2)
  (failed,) = [line for line in lines if line.startswith('WARNING')]
  assert f'{tracker} takes no metrics (TypeError' in failed
  assert [line['step'] for line in read_metrics(tmp_path / 'metrics.jsonl')] == [1, 2]
  assert not fake.open  # or the next stage would write into this run, or get none
  # A workdir that is made anew under the same path is another run, a resumed one is the same.
  shutil.rmtree(tmp_path / 'tensorboard')
  write(1)
  ids = [call['id'] for call in fake.calls if 'id' in call]
  assert len(ids) == (3 if tracker == 'wandb' else 0)
  assert not ids or ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize('broken', [ImportError("No module named 'wandb'"),
                                    AttributeError('np.float_ was removed\nin NumPy 2.0')])
def test_a_tracker_that_cannot_be_imported_is_one_line(monkeypatch, broken):
  def fails(name):
    raise broken
  monkeypatch.setattr('importlib.import_module', fails)
  with pytest.raises(UserError) as error:
    import_tracker('wandb')
  assert str(error.value) == (f"log.to=wandb needs its client ({' '.join(str(broken).split())}): "
                              'pip install --upgrade wandb')
