"""The training loop that every stage of the curriculum runs in.

It resumes from the newest checkpoint, logs, evaluates, saves, and stops cleanly on a signal. All
randomness and the position in the data are functions of the step, so that an interrupted stage
continues bit for bit.
"""

import contextlib
import dataclasses
import math
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fairjax.config import TrainConfig
from fairjax.errors import Preempted
from fairjax.train.checkpoints import CheckpointStore, done_card, load_params, write_done
from fairjax.train.identity import Identity, params_digest
from fairjax.train.metrics import IntervalMetrics, MetricWriter
from fairjax.train.optimizer import learning_rate
from fairjax.train.sharding import to_devices

Batch = Mapping[str, np.ndarray]


class TrainingDiverged(RuntimeError):
  """Loss or gradient became non-finite; the message names step, batch and last good checkpoint."""


class StopSignal:
  """Turns the first SIGINT or SIGTERM into a flag; a second one ends the process at once."""

  def __init__(self):
    self.received = False

  @contextlib.contextmanager
  def installed(self) -> Iterator['StopSignal']:
    """Handles the signals inside the block (main thread only)."""
    def handle(number, frame):
      if self.received:
        raise KeyboardInterrupt
      self.received = True

    previous = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
      yield self
    finally:
      for number, handler in previous.items():
        signal.signal(number, handler)


@dataclasses.dataclass(frozen=True)
class Stage:
  """What one stage trains on and how.

  Attributes:
    name: shown in log lines, e.g. `debias/country-embedding-10`.
    directory: the stage's folder.
    identity: card of what it makes.
    config: steps, intervals, optimizer.
    mesh: devices.
    init_state: makes the `TrainState` of step 0.
    params_template: abstract parameters with shardings, to load a finished stage.
    step: `(state, batch on devices, learning rate) -> (state, metrics)`.
    batches: first step -> iterator of this process's NumPy rows, from that step on.
    batch_name: step -> words that find the batch again.
    evaluate: parameters -> validation metrics.
    work_per_step: for the throughput, over all processes, in `work_unit`.
    work_unit: what is counted.
  """

  name: str
  directory: pathlib.Path
  identity: Identity
  config: TrainConfig
  mesh: Mesh
  init_state: Callable[[], Any]
  params_template: Callable[[], Any]
  step: Callable[[Any, Mapping[str, jax.Array], np.float32], tuple[Any, Any]]
  batches: Callable[[int], Iterator[Batch]]
  batch_name: Callable[[int], str]
  evaluate: Callable[[Any], dict[str, float]]
  work_per_step: int
  work_unit: str = 'tokens'


def run_stage(stage: Stage, *, stop: StopSignal, log: Callable[[str], None]) -> Any:
  """Trains a stage to its end, or loads it if it is finished.

  Returns:
    The trained parameters.

  Raises:
    UserError: the folder holds another run's checkpoints.
    Preempted: a signal came; the state is saved.
    TrainingDiverged: a metric became non-finite.
  """
  if done_card(stage.directory) is not None:
    params = load_params(stage.directory, stage.params_template(), stage.identity)
    log(f'[{stage.name}] finished earlier: nothing to do')
    return params
  store = CheckpointStore(stage.directory, keep=stage.config.keep_checkpoints)
  try:
    state, start = stage.init_state(), 0
    if store.latest_step() is not None:
      start = store.latest_step()
      state = store.restore(start, state, stage.identity)
      log(f'[{stage.name}] resumes after step {start} of {stage.config.steps}')
    writer = MetricWriter(stage.directory, first_step=start, log=log)
    # At the end there is nothing to read, and the data may be too short to lay out again.
    batches = stage.batches(start) if start < stage.config.steps else iter(())
    try:
      state, last = _train(stage, state, start, batches, store, writer, stop, log)
    finally:
      writer.close()
      if hasattr(batches, 'close'):  # threads of tf.data
        batches.close()
    store.wait(stage.config.steps)
    write_done(stage.directory, step=stage.config.steps, digest=params_digest(state.params),
               identity=stage.identity, summary=last)
    return state.params
  finally:
    store.close()


def _train(stage, state, start, batches, store, writer, stop, log):
  """Runs the steps from `start`; returns the state and the last validation metrics."""
  config, interval, last = stage.config, IntervalMetrics(), {}
  throughput = _Throughput(stage)
  saved = start if start else None
  for step in range(start, config.steps):
    rate = np.float32(learning_rate(config, step))
    state, metrics = stage.step(state, to_devices(next(batches), stage.mesh), rate)
    interval.add(step, metrics)
    done = step + 1
    final = done == config.steps
    due_log, due_save = done % config.log_every == 0, done % config.checkpoint_every == 0
    if due_log or due_save or final or stop.received:
      means, bad = interval.flush()
      if bad is not None:
        raise TrainingDiverged(
          f'[{stage.name}] non-finite loss or gradient at step {bad}, batch: '
          f'{stage.batch_name(bad)}; last good checkpoint: step {saved}. A lower learning_rate, a '
          'longer warmup_steps or a smaller clip_norm helps')
      writer.write(done, 'train', means)
      log(throughput.line(done, means))
    if final or done % config.eval_every == 0:
      last = stage.evaluate(state.params)
      writer.write(done, 'valid', last)
      log(f'[{stage.name}] step {done} validation: ' + _words(last))
      throughput.pause()
    if due_save or final or stop.received:
      store.save(done, state, stage.identity)
      saved = done
      if stop.received and not final:
        store.wait(done)
        raise Preempted(f'[{stage.name}] interrupted: saved after step {done} of {config.steps}')
  if start >= config.steps:  # killed between the last save and DONE
    last = stage.evaluate(state.params)
  return state, last


class _Throughput:
  """Progress lines: step, metrics, tokens/s and the time left."""

  def __init__(self, stage: Stage):
    self._stage, self._step, self._time = stage, None, 0.0

  def pause(self) -> None:
    """Leaves the time since the last line out of the rate."""
    self._step = None

  def line(self, step: int, means: Mapping[str, float]) -> str:
    now, text = time.monotonic(), ''
    if self._step is not None and step > self._step:
      seconds = (now - self._time) / (step - self._step)
      left = int(seconds * (self._stage.config.steps - step))
      text = (f' | {self._stage.work_per_step / seconds:,.0f} {self._stage.work_unit}/s '
              f'| ETA {left // 60}:{left % 60:02d}')
    self._step, self._time = step, now
    shown = {k: v for k, v in means.items() if k not in ('learning_rate', 'grad_norm')}
    return f'[{self._stage.name}] step {step}/{self._stage.config.steps} {_words(shown)}{text}'


def _words(values: Mapping[str, float]) -> str:
  parts = []
  for name, value in values.items():
    parts.append(f'{name} {value:.4g}')
    if name == 'loss' and 'perplexity' not in values and 'accuracy' not in values:
      parts.append(f'perplexity {math.exp(min(value, 50.0)):.4g}')
  return ' '.join(parts)

