"""Where the time of a stage went, and its rates: sums over `times.jsonl` (see `watch`)."""

import collections
import dataclasses
import math
import pathlib
from collections.abc import Mapping

from fairjax.files import read_json_lines
from fairjax.progress import format_time

KINDS = {'step': 'productive', 'wait': 'productive', 'agree': 'productive', 'compile': 'compiling',
         'input': 'waiting for input', 'evaluate': 'evaluating',
         'checkpoint': 'writing checkpoints', 'start': 'starting and ending',
         'data': 'starting and ending', 'end': 'starting and ending'}
"""Part of a stage -> what its time counts as."""

LOST, STOPPED = 'lost to restarts', 'stopped'

PEAK_FLOPS = {
  'TPU v3': 61.5e12, 'TPU v4': 275e12, 'TPU v5 lite': 197e12, 'TPU v5': 459e12,
  'TPU v6 lite': 918e12, 'NVIDIA A100': 312e12, 'NVIDIA H100': 989e12, 'NVIDIA H200': 989e12,
  'NVIDIA H100 PCIe': 756e12, 'NVIDIA H100 NVL': 835e12, 'NVIDIA H200 NVL': 835e12}
"""bfloat16 FLOP/s of a device, dense, by the beginning of its name in JAX (data sheets)."""


@dataclasses.dataclass(frozen=True)
class Goodput:
  """Times and rates of a stage over all its starts."""

  seconds: Mapping[str, float]  # a value of KINDS, or LOST (steps done again, starts after the
  # first) -> seconds
  stopped: float  # between two starts, by the clock
  starts: int
  steps: int  # that count
  steps_per_second: float  # in productive time and waiting for input
  work_per_second: float
  unit: str
  utilisation: float | None  # of the devices' bfloat16 peak by the model's FLOPs

  def format(self, *, brief: bool = False) -> str:
    """One line: rates, then the time and its parts; `brief`: only the largest that is lost."""
    total = sum(self.seconds.values())
    mfu = '' if self.utilisation is None else f', {100 * self.utilisation:.1f} % of peak FLOP/s'
    parts = [f'{name} {format_seconds(self.seconds[name])}' for name in self.seconds]
    parts += [f'{STOPPED} {format_seconds(self.stopped)}'] * (self.starts > 1)
    if brief:
      parts = [part for part in parts if not part.startswith('productive')][:1]
    share = self.seconds.get('productive', 0.0) / total if total else 0.0
    return (f'{self.steps_per_second:,.4g} steps/s, {self.work_per_second:,.0f} {self.unit}/s'
            f'{mfu}; {100 * share:.0f} % of {format_seconds(total)} productive'
            + (': ' + ', '.join(parts) if parts else ''))


def format_seconds(seconds: float) -> str:
  """Seconds below two minutes, else hours, minutes and seconds.

  >>> format_seconds(3.25), format_seconds(3661)
  ('3.2 s', '1:01:01')
  """
  return f'{seconds:.1f} s' if seconds < 120 else format_time(seconds)


def read_goodput(directory: pathlib.Path) -> Goodput | None:
  """The times of a stage's folder; None if it has none. Damaged lines are left out."""
  starts: list[tuple[dict, list[dict]]] = []
  for line in read_json_lines(directory / 'times.jsonl').entries:
    if 'start' in line:
      starts.append((line, []))
    elif starts:
      starts[-1][1].append(line)
  if not starts:
    return None
  seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
  stopped, busy, capacity = 0.0, ('productive', 'waiting for input'), []
  for number, (head, lines) in enumerate(starts):
    # A later start may go back beyond the one before it, whose checkpoint was damaged.
    again_from = min((later['start'] for later, _ in starts[number + 1:]), default=math.inf)
    last, before = head['start'], sum(seconds[name] for name in busy)
    for line in lines:
      kept = 1.0
      if line['step'] > again_from:  # the share of its steps that were not done again
        kept = max(0.0, again_from - last) / max(1, line['step'] - last)
      for part, value in line['seconds'].items():
        again = number > 0 and part in ('start', 'data', 'compile')
        seconds[KINDS[part]] += 0.0 if again else kept * value
        seconds[LOST] += value if again else (1 - kept) * value
      last = line['step']
    if used := sum(seconds[name] for name in busy) - before:
      capacity.append(peak_flops(head['device']) * head['devices'] * used)
    if number + 1 < len(starts):
      stopped += max(0.0, starts[number + 1][0]['at'] - (lines[-1] if lines else head)['at'])
  steps, time = last - starts[0][0]['start'], sum(seconds[name] for name in busy)
  rate = steps / time if time else 0.0
  return Goodput(
    seconds={name: value for name, value in sorted(seconds.items(), key=lambda x: -x[1])
             if value or name == 'productive'},
    stopped=stopped, starts=len(starts), steps=steps, steps_per_second=rate,
    work_per_second=rate * head['work'], unit=head['unit'],
    utilisation=steps * head['flops'] / sum(capacity)
    if capacity and all(capacity) and head['flops'] else None)


def peak_flops(device_kind: str) -> float:
  """bfloat16 FLOP/s of a device; 0 if they are not known."""
  found = [name for name in PEAK_FLOPS if device_kind.startswith(name)]
  return PEAK_FLOPS[max(found, key=len)] if found else 0.0
