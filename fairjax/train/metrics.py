"""Training metrics: weighted means over an interval, JSONL and TensorBoard files, trackers."""

import contextlib
import importlib
import math
import os
import pathlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from fairjax import processes
from fairjax.errors import Damaged, Fault, UserError
from fairjax.files import atomic_write, json_line, read_json_lines
from fairjax.progress import without_native_lines

Metrics = dict[str, tuple[Any, Any]]
"""Name -> (value, weight), both scalars; an interval reports sum(value * weight) / sum(weight)."""


def finite_or_text(value: Any) -> Any:
  """A value for JSON, which has no number that is not finite: that is text, which `float` reads."""
  return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class IntervalMetrics:
  """Collects device scalars without waiting for them; fetches them once per interval."""

  def __init__(self, saved: Any = None):
    """Goes on with an interrupted interval: what `to_json` returned."""
    self._steps: list[tuple[int, Metrics]] = saved or []

  def to_json(self) -> list[Any]:
    """The interval so far as JSON values; a mean over them is bit for bit that over the scalars."""
    return [[step, {name: [finite_or_text(float(value)), float(weight)] for name, (value, weight) in
                    metrics.items()}] for step, metrics in jax.device_get(self._steps)]

  def add(self, step: int, metrics: Metrics) -> None:
    """Remembers the metrics of one step."""
    self._steps.append((step, metrics))

  def flush(self) -> tuple[dict[str, float], list[tuple[int, bool]]]:
    """Means over the steps that were made since the last flush; and of each step whether it was."""
    steps, self._steps = jax.device_get(self._steps), []
    totals: dict[str, list[float]] = {}
    made = []
    for step, metrics in steps:
      skipped, _ = metrics.get('skipped', (0.0, 1.0))
      made.append((step, not skipped))
      for name, (value, weight) in metrics.items():
        if weight > 0 and not skipped and name != 'skipped':
          total = totals.setdefault(name, [0.0, 0.0])
          total[0] += float(value) * float(weight)
          total[1] += float(weight)
    means = {name: value / weight for name, (value, weight) in totals.items()}
    lost = sum(not ok for _, ok in made)
    return means | ({'skipped_updates': float(lost)} if lost else {}), made


_LACKING: set[str] = set()  # of TensorBoard: logged once, not at every stage


class MetricWriter:
  """Appends to `metrics.jsonl`, `tensorboard/` and a `tracker`; in a group the first one writes."""
  # On resume, lines after the restored step (`first_step`) are cut away: its steps are run again.
  # If the others are not those that the checkpoint has `saved`, these are written, with a warning.

  def __init__(self, directory: pathlib.Path | None, *, first_step: int,  # None: writes nothing
               saved: Sequence[dict[str, Any]] | None = None, log: Callable[[str], None],
               tracker: str = '', name: str = ''):
    self._file = self._tensorboard = None
    self._tracker: _Wandb | _Mlflow | None = None
    self._log, self._to = log, tracker
    self.lines: list[dict[str, Any]] = []  # of the file
    self.evaluated: set[int] = set()  # steps that have validation metrics
    if directory is None:
      return
    path = directory / 'metrics.jsonl'
    found, damaged, _ = read_json_lines(path)
    # An evaluation at the restored step comes after the save: the checkpoint does not know it.
    kept = [line for line in found if line['step'] <= first_step]
    later = [line for line in kept if (line['step'], line['kind']) == (first_step, 'valid')]
    self.lines = kept if saved is None else [*saved, *(x for x in later if x not in saved)]
    self.evaluated = {line['step'] for line in self.lines if line['kind'] == 'valid'}
    if not processes.is_first():
      return
    directory.mkdir(parents=True, exist_ok=True)
    if kept != self.lines:
      log(f'WARNING: {path} is not what was written: its {len(self.lines)} lines up to step '
          f'{first_step} are written again, as the checkpoint remembers them')
    elif damaged:
      log(f'WARNING: {path}: {len(damaged)} damaged lines are left out (first: line {damaged[0]})')
    with atomic_write(path) as file:
      file.writelines(map(json_line, self.lines))
    self._file = path.open('ab')
    self._tensorboard_folder = directory / 'tensorboard'
    if tracker:
      with self._tracked():
        self._tracker = _TRACKERS[tracker](import_tracker(tracker), name, directory)
    try:
      with without_native_lines():
        from clu.metric_writers import SummaryWriter
      with self._tensorboard_written():
        self._tensorboard = SummaryWriter(str(self._tensorboard_folder))
    except ImportError as e:
      if str(e) not in _LACKING:
        _LACKING.add(str(e))
        log(f"no TensorBoard files ({e}): pip install -e '.[train]' in fairjax's folder writes "
            'them')

  def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
    """Writes one line `{"step", "kind", name: value...}`; kind is train or valid."""
    if kind == 'valid':
      self.evaluated.add(step)
    line = {'step': step, 'kind': kind} | {
      name: finite_or_text(value) for name, value in values.items()}
    self.lines.append(line)
    if self._file is None:
      return
    self._file.write(json_line(line))
    self._file.flush()
    if self._tensorboard:
      with self._tensorboard_written():
        self._tensorboard.write_scalars(step, {f'{kind}/{k}': v for k, v in values.items()})
    if self._tracker:
      with self._tracked():
        self._tracker.write(step, {f'{kind}/{k}': float(v) for k, v in values.items()})

  def close(self) -> None:
    """Flushes all that is written to."""
    if self._file:
      self._file.close()
    if self._tensorboard:
      with self._tensorboard_written():
        self._tensorboard.close()
    if self._tracker:
      with self._tracked():
        self._tracker.close()

  @contextlib.contextmanager
  def _tracked(self) -> Iterator[None]:
    """Goes on without the tracker after any error of its client."""
    try:
      yield
    except UserError:
      raise
    except Exception as e:
      failed, self._tracker = self._tracker, None
      self._log(f'WARNING: {self._to} takes no metrics ({type(e).__name__}: '
                f'{" ".join(str(e).split())}); they are in '
                f'{self._tensorboard_folder.with_name("metrics.jsonl")}')
      if failed:  # an open run would take the metrics of the next stage
        with contextlib.suppress(Exception):
          failed.close()

  @contextlib.contextmanager
  def _tensorboard_written(self) -> Iterator[None]:
    """TensorFlow's errors, of a full disk above all, in one line."""
    try:
      yield
    except Exception as e:
      if not type(e).__module__.startswith('tensorflow'):
        raise
      why = ' '.join(str(e).split())
      raise Fault(f'{self._tensorboard_folder} cannot be written: {why} (disk, rights): fix it, '
                  'then the same command continues') from e


class _Wandb:
  """A run of Weights & Biases, in WANDB_PROJECT; a stage that resumes goes on with it."""

  def __init__(self, wandb: Any, name: str, directory: pathlib.Path):
    folder = directory / 'tensorboard'  # which is no result
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / 'wandb-id'
    if not own.exists():  # not made from the path, which a later workdir may have, too
      own.write_text(secrets.token_hex(8))
    self._run = wandb.init(
      project=os.environ.get('WANDB_PROJECT', 'fairjax'), name=name, dir=str(folder),
      resume='allow', id=own.read_text(), reinit='create_new')  # beside a run of the notebook
    self._run.define_metric('*', step_metric='step')  # steps after a checkpoint come again

  def write(self, step: int, values: Mapping[str, float]) -> None:
    self._run.log({'step': step, **values})

  def close(self) -> None:
    self._run.finish()


class _Mlflow:
  """A run of MLflow, a new one at each start of a stage."""

  def __init__(self, mlflow: Any, name: str, directory: pathlib.Path):
    self._mlflow = mlflow
    # By default a server that does not answer would hold the training for minutes at each call.
    os.environ.setdefault('MLFLOW_HTTP_REQUEST_MAX_RETRIES', '2')
    os.environ.setdefault('MLFLOW_HTTP_REQUEST_TIMEOUT', '30')
    mlflow.set_experiment(os.environ.get('MLFLOW_EXPERIMENT_NAME', 'fairjax'))
    mlflow.start_run(run_name=name, tags={'folder': str(directory.resolve())}, nested=True)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    self._mlflow.log_metrics(dict(values), step=step)

  def close(self) -> None:
    self._mlflow.end_run()


_TRACKERS: Mapping[str, type[_Wandb] | type[_Mlflow]] = {'wandb': _Wandb, 'mlflow': _Mlflow}


def import_tracker(name: str) -> Any:
  """The client of `log.to`; `UserError` if it is not installed, or does not go with the others."""
  try:
    return importlib.import_module(name)
  except Exception as e:  # an old client fails with a new NumPy or protobuf in many ways
    raise UserError(f'log.to={name} needs its client ({" ".join(str(e).split())}): '
                    f'pip install --upgrade {name}') from None


def read_metrics(path: pathlib.Path) -> list[dict[str, Any]]:
  """Lines of a `metrics.jsonl`, a torn last one left out; `Damaged` names file and line."""
  found = read_json_lines(path)
  if found.damaged:
    raise Damaged(f'{path} is damaged (line {found.damaged[0]})')
  return found.entries
