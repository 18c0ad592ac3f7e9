"""The training loop: the curriculum, masked language models, classifiers and heads run in it.

It resumes from the newest checkpoint that verifies, logs, evaluates, saves, and stops cleanly on a
signal. All randomness and the position in the data are functions of the step, so that an
interrupted stage continues bit for bit.
"""

import contextlib
import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fairjax import processes
from fairjax.config import LogConfig, TrainConfig
from fairjax.errors import Damaged, Fault, Preempted
from fairjax.files import write_json
from fairjax.processes import StopSignal
from fairjax.progress import LEAST_ETA_SEC, Progress, format_time
from fairjax.train.checkpoints import (
  CheckpointStore,
  Identity,
  load_params,
  params_digest,
  read_done,
  write_done,
)
from fairjax.train.goodput import read_goodput
from fairjax.train.memory import check_state, compile_step
from fairjax.train.metrics import IntervalMetrics, MetricWriter
from fairjax.train.optimizer import learning_rate
from fairjax.train.sharding import check_batch_size, to_devices
from fairjax.train.steps import BoundStep, Params, TrainState
from fairjax.train.watch import Watch

Batch = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Stage:
  """What one stage trains on and how."""

  name: str  # in log lines, e.g. `debias/country-embedding-10`
  config: TrainConfig  # steps, intervals, optimizer
  mesh: Mesh
  init_state: Callable[[], TrainState]  # makes the state of step 0
  step: BoundStep
  batches: Callable[[int], Iterator[Batch]]  # first step -> this process's rows from that step on
  batch_name: Callable[[int], str]  # step -> text that finds the batch again
  work_per_step: int  # for the throughput, over all processes, in `work_unit`
  work_unit: str = 'tokens'
  flops_per_step: float = 0.0  # of the model, over all processes; 0: not known
  evaluate: Callable[[Params], dict[str, float]] | None = None  # validation metrics
  after_step: Callable[[int, Params], None] | None = None  # gets steps done and parameters
  log_config: LogConfig = LogConfig()
  # Only a stage that is saved needs these; `run_unsaved` does not.
  directory: pathlib.Path = pathlib.Path()
  identity: Identity | None = None
  # The state as `jax.ShapeDtypeStruct` with shardings
  state_template: Callable[[], TrainState] | None = None


def run_stage(stage: Stage, *, stop: StopSignal, log: Callable[[str], None]) -> Params:
  """Trains a stage to its end, or loads it if it is finished; returns the parameters."""
  # A finished stage whose last checkpoint is damaged is trained again from an older one.
  # `Preempted` (a signal came) and `Fault` (too many skipped updates in a row) are raised after the
  # last good state is saved.
  assert stage.identity and stage.state_template
  if (params := load_finished(stage, log)) is not None:
    return params
  check_batch_size(stage.config.batch_size, stage.mesh, field=f'{stage.identity.stage}.batch_size',
                   grad_accum_steps=stage.config.grad_accum_steps)
  check_state(stage.name, stage.state_template())
  with Watch(stage.name, stage.directory, stage.log_config) as watch:
    return _run_stage(stage, watch, stop, log)


def load_finished(stage: Stage, log: Callable[[str], None]) -> Params | None:
  """Parameters of a finished stage; None if it is to be made, or made again where it is damaged."""
  assert stage.state_template
  done = None
  try:
    done = read_done(stage.directory)
    if done is None:
      return None
    params = load_params(stage.directory, stage.state_template().params, stage.identity)
  except Damaged as e:
    imported = done and done['summary'].get('imported')
    if imported and 'published' not in imported:
      raise  # nothing makes this model again
    log(f'WARNING: [{stage.name}] {e}')
    return None
  log(f'[{stage.name}] finished earlier: nothing to do')
  return params


def _run_stage(stage: Stage, watch: Watch, stop: StopSignal, log: Callable[[str], None]) -> Params:
  """Trains a stage that is not finished."""
  assert stage.identity
  store = CheckpointStore(stage.directory, keep=stage.config.keep_checkpoints, log=log,
                          part=watch.part)
  try:
    with watch.part('start'):
      state, start, final, extra_state = stage.init_state(), 0, False, {}
      found = store.restore(state, stage.identity)
      if found is not None:
        start, state, final, extra_state = found
        extra_state = extra_state or {}
        log(f'[{stage.name}] resumes after step {start} of {stage.config.steps}')
      end = start if final else stage.config.steps
    with watch.part('data'):
      # At the end there is nothing to read, and the data may be too short to lay out again.
      batches = stage.batches(start) if start < end else iter(())
    with watch.part('start'):
      writer = MetricWriter(stage.directory, first_step=start, saved=extra_state.get('metrics'),
                            log=log, tracker=stage.log_config.to, name=stage.name)
    watch.begin(start, {
      'work': stage.work_per_step, 'unit': stage.work_unit, 'flops': stage.flops_per_step,
      'devices': stage.mesh.size, 'device': stage.mesh.devices.flat[0].device_kind})
    try:
      with processes.cooperative():
        state, last = _train(
          stage, state, start, end, extra_state, batches, store, writer, watch, stop, log)
    finally:
      writer.close()
      if hasattr(batches, 'close'):  # threads of tf.data
        batches.close()
    if not math.isfinite(last.get('loss', 0.0)):
      raise Fault(f'[{stage.name}] the validation loss after step {end} is not finite: the model '
                  'has diverged. A lower learning_rate, a longer warmup_steps or a smaller '
                  'clip_norm helps, in another --workdir')
    with watch.part('end'):
      skipped = int(state.guard.total)
      write_done(stage.directory, step=end, digest=params_digest(state.params),
                 identity=stage.identity, summary=last | {'skipped_updates': skipped})
    watch.write()
    if processes.is_first() and (times := read_goodput(stage.directory)):
      log(f'[{stage.name}] {times.format(brief=True)}')
    return state.params
  finally:
    store.close()


def run_unsaved(stage: Stage, *, log: Callable[[str], None]
                ) -> tuple[Params, list[dict[str, Any]]]:
  """Trains a stage of which no checkpoint is kept; returns parameters and lines of its metrics."""
  writer = MetricWriter(None, first_step=0, log=log)
  batches = stage.batches(0)
  state, _ = _train(stage, stage.init_state(), 0, stage.config.steps, {}, batches, _NoStore(),
                    writer, Watch(stage.name, None, stage.log_config), StopSignal(), log)
  return state.params, writer.lines


class _NoStore:
  """The store of a stage that is not saved."""

  def save(self, *_: Any, **__: Any) -> None:
    pass

  finish = save

  def failed(self) -> bool:
    return False


_UNTRACED = 3  # first steps that a trace leaves out


def _train(
  stage: Stage, state: TrainState, start: int, end: int, extra_state: dict[str, Any],
  batches: Iterator[Batch], store: CheckpointStore | _NoStore, writer: MetricWriter, watch: Watch,
  stop: StopSignal, log: Callable[[str], None],
) -> tuple[TrainState, dict[str, float]]:
  """Runs the steps from `start`; returns the state and the last validation metrics."""
  config, interval, last = stage.config, IntervalMetrics(extra_state.get('interval')), {}
  throughput, skips = _Throughput(stage), _Skips(stage, start, log)
  progress = Progress(f'[{stage.name}]', config.steps, unit='steps', log=log, done=start,
                      lines=False)

  def evaluate(step, params):
    nonlocal last
    if stage.evaluate is None:
      return
    # Of a stage that had ended but for this, step 2 labels its sentences here.
    with watch.part('evaluate' if start < end else 'data'):
      last = stage.evaluate(params)
      if step not in writer.evaluated:
        writer.write(step, 'valid', last)
    log(f'[{stage.name}] step {step} validation: ' + _format(stage, last))
    throughput.pause()

  def extra_state_now():
    return {'interval': interval.to_json(), 'metrics': list(writer.lines)}

  def report(step, state):
    means, made = interval.flush()
    skips.add(made)
    if skips.in_a_row >= config.max_skipped:
      skips.give_up(store, state, writer.lines)
    if made:
      writer.write(step, 'train', means)
      line = throughput.line(step, means)
      progress.add(step - progress.done, functools.partial(_format, stage, means))
      if not progress.replaces_lines:
        log(line)

  # Killed between a checkpoint and the evaluation that was due there.
  if start and (start == end or (start % config.eval_every == 0 and start not in writer.evaluated)):
    evaluate(start, state.params)
  first = min(start + _UNTRACED, end - 1)
  traced = range(first, min(first + stage.log_config.profile, end))
  with progress, contextlib.ExitStack() as tracing:
    for step in range(start, end):
      if traced and step == traced.start:
        options = jax.profiler.ProfileOptions()
        # Calls of Python are left out: JAX 0.7.2 hooks them in threads too, and crashes on Python
        # 3.13 when a thread that writes a checkpoint ends meanwhile.
        options.python_tracer_level = 0
        jax.profiler.start_trace(str(stage.directory / 'tensorboard'), profiler_options=options)
        tracing.callback(_stop_trace)
      rate = np.float32(learning_rate(config, step))
      with watch.part('input'):
        batch = to_devices(next(batches), stage.mesh)
      if step == start:
        with watch.part('compile'):
          log(compile_step(stage.name, stage.step.lower(state, batch, rate), state))
      with watch.part('step'):
        state, metrics = stage.step(state, batch, rate)
      if traced and step == traced[-1]:
        jax.block_until_ready(state)
        tracing.pop_all()
        jax.profiler.stop_trace()
        log(f'[{stage.name}] trace of {len(traced)} steps: {stage.directory / "tensorboard"}')
      interval.add(step, metrics)
      watch.step = done = step + 1
      if stage.after_step is not None:
        stage.after_step(done, state.params)
      due_save = done % config.checkpoint_every == 0 or done == end
      if done % config.log_every == 0 or due_save:
        with watch.part('wait'):
          report(done, state)
        watch.write()
      with watch.part('agree'):
        stopped = stop.here()
      # Neither a stop nor a second attempt to save ends an interval: the lines of the metrics are
      # those of a run that nothing disturbed.
      if stopped and done < end:
        with watch.part('checkpoint'):
          store.finish(done, state, stage.identity, extra_state=extra_state_now())
        watch.write()
        raise Preempted(f'[{stage.name}] interrupted: saved after step {done} of {config.steps}')
      if due_save or store.failed():
        with watch.part('checkpoint'):
          store.save(done, state, stage.identity, final=done == end, extra_state=extra_state_now())
      if done == end or done % config.eval_every == 0:  # while the checkpoint is being written
        evaluate(done, state.params)
  if start < end:
    with watch.part('checkpoint'):
      store.finish(end, state, stage.identity, final=True, extra_state=extra_state_now())
    if counted := _counters([line for line in writer.lines if line['kind'] == 'train']):
      log(f'[{stage.name}] branches a step: {counted}')
  return state, last


class _Skips:
  """Counts and reports skipped updates, and ends the run after too many in a row."""

  def __init__(self, stage: Stage, start: int, log: Callable[[str], None]):
    self._stage, self._log, self._good = stage, log, start
    self._row: list[int] = []

  @property
  def in_a_row(self) -> int:
    """Updates skipped since the last one that was made."""
    return len(self._row)

  def add(self, made: list[tuple[int, bool]]) -> None:
    """Takes note of steps and whether their updates were made."""
    skipped = [step for step, ok in made if not ok]
    for step, ok in made:
      self._good = step + 1 if ok else self._good
      self._row = [] if ok else [*self._row, step]
    if skipped:
      self._log(f'WARNING: [{self._stage.name}] {len(skipped)} updates skipped (loss or gradient '
                f'not finite, or a spike), the first at step {skipped[0]}, batch: '
                f'{self._stage.batch_name(skipped[0])}')

  def give_up(self, store: CheckpointStore | _NoStore, state: TrainState,
              lines: list[dict[str, Any]]) -> None:
    """Saves the state of the last good step and the bad batches; ends the run."""
    # A skipped update changes the counters only, so the state is still that of the last good step.
    stage, good, first = self._stage, self._good, self._row[0]
    fault = (f'[{stage.name}] loss or gradient was not finite (or a spike) {len(self._row)} times '
             f'in a row, first at step {first}, batch: {stage.batch_name(first)}')
    if isinstance(store, _NoStore):
      raise Fault(f'{fault}. A lower learning rate helps')
    # One that was saved since has the same parameters, and would have this one pruned.
    saved = max((step for step in store.steps() if step >= good), default=good)
    if good and saved == good:
      count = len(self._row)
      guard = dataclasses.replace(state.guard, in_a_row=state.guard.in_a_row * 0,
                                  total=state.guard.total - count)
      state = dataclasses.replace(state, step=state.step - count, guard=guard)
      store.finish(good, state, stage.identity, extra_state={
        'metrics': [line for line in lines if line['step'] <= good]})
    path = stage.directory / 'diverged.json'
    if processes.is_first():
      write_json(path, {'stage': stage.name, 'last_good_step': good, 'skipped': [
        {'step': step, 'batch': stage.batch_name(step)} for step in self._row]})
    raise Fault(
      fault + (f'; the last good state is saved as step {saved}' if good else
               '; no step before was good')
      + f', the batches are listed in {path}. A lower learning_rate, a longer warmup_steps or a '
      'smaller clip_norm helps, in another --workdir')


_WIDTH = 120


class _Throughput:
  """Progress lines: step, metrics, tokens/s and the time left."""

  def __init__(self, stage: Stage):
    self._stage, self._time = stage, 0.0
    self._step: int | None = None

  def pause(self) -> None:
    """Leaves the time since the last line out of the rate."""
    self._step = None

  def line(self, step: int, means: Mapping[str, float]) -> str:
    now, text = time.monotonic(), ''
    if self._step is not None and step > self._step:
      seconds = (now - self._time) / (step - self._step)
      left = seconds * (self._stage.config.steps - step)
      rate, unit = self._stage.work_per_step / seconds, self._stage.work_unit
      text = (f'  {rate / 1000:,.0f}k' if rate >= 10000 else f'  {rate:,.0f}'
              ) + f" {'tok' if unit == 'tokens' else unit}/s"
      if left >= LEAST_ETA_SEC:
        text += f'  ETA {format_time(left)}'
    self._step, self._time = step, now
    line = (f'[{self._stage.name}] step {step}/{self._stage.config.steps}  '
            f'{_format(self._stage, means)}{text}')
    return line if len(line) <= _WIDTH else ' '.join(line.split())


# What a line of progress leaves out: `metrics.jsonl` has it, and the end of a stage its counters.
_UNSEEN = ('learning_rate', 'grad_norm', 'rows', 'total_loss', 'js', 'pairs_per_batch', 'majority',
           'sentences', 'macro_f1')
_WORDS = {'cosine': 'cos', 'kl': 'KL', 'f1': 'F1', 'skipped_updates': 'skipped'}
_DECIMALS = {'perplexity': 2, 'fairness': 4, 'kl': 4}  # of others three
_MANY = 1000.0  # from here on no decimals


def _stop_trace() -> None:
  """Ends a trace whose training ended first: what ended it says more than a full disk."""
  with contextlib.suppress(Exception):
    jax.profiler.stop_trace()


def _format(stage: Stage, values: Mapping[str, float]) -> str:
  """The numbers that somebody watches, in fixed decimals."""
  shown = {name: value for name, value in values.items()
           if name not in _UNSEEN and '/' not in name}
  if 'loss' in shown and stage.work_unit == 'tokens' and not {'perplexity', 'accuracy',
                                                              'cosine'} & shown.keys():
    shown['perplexity'] = math.exp(min(shown['loss'], 50.0))
  method = stage.identity.method if stage.identity else ''
  for kind in ('embedding',) if method == 'embedding' else ('sentiment', 'embedding'):
    if f'fairness_loss/{kind}' in values:
      shown['fairness'] = values[f'fairness_loss/{kind}']
      break
  order = ('loss', 'fairness', 'cosine', 'kl')
  names = [name for name in order if name in shown] + [name for name in shown if name not in order]
  return '  '.join(f'{_WORDS.get(name, name)} {_fixed(name, shown[name])}' for name in names)


def _fixed(name: str, value: float) -> str:
  if abs(value) >= _MANY or name == 'skipped_updates':
    return f'{value:,.0f}'
  return f'{value:.{_DECIMALS.get(name, 3)}f}'


def _counters(lines: Sequence[Mapping[str, Any]]) -> str:
  """Counters of branches, as means over the updates that were made; '' where there are none."""
  ends = [0, *(line['step'] for line in lines)]
  weights = np.diff(ends) - [line.get('skipped_updates', 0) for line in lines]
  names = dict.fromkeys(name for line in lines for name in line if name.startswith('branches/'))
  means = {name: np.average([line.get(name, 0.0) for line in lines], weights=weights)
           for name in names}
  return ', '.join(f"{name.partition('/')[2].replace('_', ' ')} {mean:,.1f}"
                   for name, mean in means.items() if mean)
