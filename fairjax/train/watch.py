"""Times what a stage does, and ends the process when a part of it hangs.

Parts are `compile`, `input`, `step` (the program is started), `wait` (for results of steps),
`agree` (of the processes, whether to stop), `evaluate`, `checkpoint`, `write` (a checkpoint in the
background), `start`, `data` (is laid out; step 2 labels its sentences) and `end`, and `batch` of
sampling. A part hangs when it takes `log.hang_factor` times its usual time, at least
`log.hang_seconds`. Its usual time is the longest of the last 100, without the first, in which
programs are compiled and caches filled. A part that has no usual time yet may take `hang_factor *
hang_seconds`, compilation, `data` and the first batch of sampling any time.

The times lie in `times.jsonl`, beside `metrics.jsonl`, whose bytes are those of any run: a line for
each start of the stage, and lines of seconds by part, each up to a step. `goodput` adds them up.
"""

import collections
import contextlib
import faulthandler
import os
import pathlib
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from fairjax import processes
from fairjax.config import LogConfig
from fairjax.files import json_line

Item = TypeVar('Item')

_LAST = 100  # durations from which the usual time is learned
_WRITING_SEC = 10.0  # for the stacks: the disk may be what hangs


class _Open:
  """A part that has begun."""

  def __init__(self, name: str):
    self.name, self.waited = name, 0.0


class Watch:
  """Times the parts of one stage; in its `with` block a thread ends the process if one hangs."""
  # `directory` gets `times.jsonl` and the stacks; None: nothing is written and nothing ended.

  def __init__(self, name: str, directory: pathlib.Path | None, config: LogConfig):
    self.step = 0  # steps done, which the loop sets
    # Of the main thread by part, since the last line.
    self.seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
    self._name, self._directory, self._config = name, directory, config
    self._usual: dict[str, collections.deque[float]] = {}
    self._open: set[_Open] = set()
    self._left, self._begun = threading.Event(), time.time()
    self._thread = threading.Thread(target=self._run, name='watch', daemon=True)

  def __enter__(self) -> 'Watch':
    if self._directory is not None:
      self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    self._left.set()
    if self._directory is not None:
      self._thread.join()

  @contextlib.contextmanager
  def part(self, name: str) -> Iterator[None]:
    """Times the block; it may be open in several threads at once."""
    begun, open_part = time.monotonic(), _Open(name)
    self._open.add(open_part)
    try:
      yield
    finally:
      self._open.discard(open_part)
      seconds = time.monotonic() - begun
      if name != 'write':
        self.seconds[name] += seconds
      if name in self._usual:
        self._usual[name].append(seconds)
      else:
        self._usual[name] = collections.deque(maxlen=_LAST)

  def each(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
    """The items; to make one is a part and counts as a step."""
    source = iter(items)
    while True:
      with self.part(name):
        try:
          item = next(source)
        except StopIteration:
          return
      self.step += 1
      yield item

  def begin(self, step: int, about: dict[str, Any]) -> None:
    """Writes the line of a start after `step`, with what the rates need."""
    self.step = step
    self._write({'start': step, 'at': self._begun} | about)

  def write(self) -> None:
    """Writes the seconds since the last line."""
    seconds, self.seconds = dict(self.seconds), collections.defaultdict(float)
    self._write({'step': self.step, 'at': time.time(), 'seconds': seconds})

  def _write(self, line: dict[str, Any]) -> None:
    if self._directory is None or not processes.is_first():
      return
    with (self._directory / 'times.jsonl').open('a+b') as file:
      if file.tell() and (file.seek(-1, os.SEEK_END), file.read())[1] != b'\n':
        file.write(b'\n')  # after a line that a kill has torn
      file.write(json_line(line))

  def limit(self, name: str) -> float:
    """Seconds after which a part hangs."""
    factor, least = self._config.hang_factor, self._config.hang_seconds
    usual = self._usual.get(name)
    if name in ('compile', 'data') or (name == 'batch' and usual is None):
      return float('inf')
    return max(least, factor * max(usual)) if usual else factor * least

  def _run(self) -> None:
    tick, last = min(1.0, self._config.hang_seconds / 10), time.monotonic()
    while not self._left.wait(tick):
      now = time.monotonic()
      # Time in which this process was itself stopped does not count.
      passed, last = min(now - last, 2 * tick), now
      for part in list(self._open):
        part.waited += passed
        if part.waited > self.limit(part.name):
          self._end(part)

  def _end(self, part: _Open) -> None:
    assert self._directory is not None
    path = self._directory / f'hang-process-{processes.index()}.txt'
    line = (f'[{self._name}] hangs after step {self.step}: {part.name} takes more than '
            f'{self.limit(part.name):,.1f} s')

    def write():
      with contextlib.suppress(OSError), path.open('w') as file:
        print(line, file=file, flush=True)
        faulthandler.dump_traceback(file, all_threads=True)
        written.set()

    written = threading.Event()
    threading.Thread(target=write, name='stacks', daemon=True).start()
    where = str(path)
    if not written.wait(_WRITING_SEC):
      where = 'above'
      os.write(2, f'{line}\n'.encode())
      faulthandler.dump_traceback(2, all_threads=True)
    processes.end_all(processes.PREEMPTED, f'{line}; stacks of all threads: {where}; the same '
                      'command continues from what was saved (if it was only slow, set a larger '
                      'log.hang_seconds)')
