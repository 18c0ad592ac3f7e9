"""Training metrics: weighted means over an interval, JSONL and TensorBoard files."""

import json
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

Metrics = dict[str, tuple[Any, Any]]
"""Name -> (value, weight), both scalars; an interval reports sum(value * weight) / sum(weight)."""


class IntervalMetrics:
  """Collects device scalars without waiting for them; fetches them once per interval."""

  def __init__(self):
    self._steps: list[tuple[int, Metrics]] = []

  def add(self, step: int, metrics: Metrics) -> None:
    """Remembers the metrics of one step."""
    self._steps.append((step, metrics))

  def flush(self) -> tuple[dict[str, float], int | None]:
    """Returns the means since the last flush, and the first step with a non-finite value.

    A name whose weights are all 0 (no pair in the interval) is left out.
    """
    steps, self._steps = jax.device_get(self._steps), []
    bad = next((step for step, metrics in steps
                if not all(np.isfinite(v) for v, w in metrics.values() if w > 0)), None)
    totals: dict[str, list[float]] = {}
    for _, metrics in steps:
      for name, (value, weight) in metrics.items():
        if weight > 0:
          total = totals.setdefault(name, [0.0, 0.0])
          total[0] += float(value) * float(weight)
          total[1] += float(weight)
    return {name: value / weight for name, (value, weight) in totals.items()}, bad


class MetricWriter:
  """Appends to `metrics.jsonl` and to `tensorboard/` of one stage's folder.

  On resume, lines of steps after the restored one are cut away, because they are run again.
  TensorBoard files need the `train` extra; without it a line says that they are not written.
  """

  def __init__(self, directory: pathlib.Path, *, first_step: int, log: Callable[[str], None]):
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / 'metrics.jsonl'
    kept = [line for line in read_metrics(path) if line['step'] <= first_step]
    path.write_text(''.join(json.dumps(line) + '\n' for line in kept), encoding='utf-8')
    self._file = path.open('a', encoding='utf-8')
    self._tensorboard = None
    try:
      from clu.metric_writers import SummaryWriter
      self._tensorboard = SummaryWriter(str(directory / 'tensorboard'))
    except ImportError as e:
      log(f"no TensorBoard files ({e}): pip install 'fairjax[train]' writes them; "
          f'metrics are in {path}')

  def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
    """Writes one line `{"step", "kind", name: value...}`; kind is train or valid."""
    line = {'step': step, 'kind': kind} | {
      name: value if math.isfinite(value) else str(value) for name, value in values.items()}
    self._file.write(json.dumps(line) + '\n')
    self._file.flush()
    if self._tensorboard:
      self._tensorboard.write_scalars(step, {f'{kind}/{k}': v for k, v in values.items()})

  def close(self) -> None:
    """Flushes both."""
    self._file.close()
    if self._tensorboard:
      self._tensorboard.close()


def read_metrics(path: pathlib.Path) -> list[dict[str, Any]]:
  """Lines of a `metrics.jsonl`; a torn last line (killed while writing) is left out."""
  if not path.exists():
    return []
  lines = path.read_text(encoding='utf-8').split('\n')
  return [json.loads(line) for line in lines[:-1] if line]
