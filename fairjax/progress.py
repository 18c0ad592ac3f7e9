"""Progress of work that takes a while: a bar on a terminal, plain lines elsewhere.

The first of several processes draws the bar on stderr if that is a terminal, so that the bar never
mixes with what a verb prints on stdout. Elsewhere a line goes to the log at most every ten seconds.
`write_line` writes other lines above the bar.
"""

import contextlib
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from fairjax import processes
from fairjax.errors import printable

if TYPE_CHECKING:
  from tqdm import tqdm

INTERVAL_SEC = 10.0  # between two plain lines
BAR_INTERVAL_SEC = 0.2  # between two updates of the bar
LEAST_ETA_SEC = 5.0  # a shorter time left is not shown
_open_bars: list['tqdm'] = []


class Progress:
  """Shows how far one piece of work is; a context manager."""
  # `total` is None if that is not known. Without `log` nothing is shown; it gets the plain lines,
  # but for `lines=False` (the work writes its own). What an earlier run has `done` does not count
  # for the rate.

  def __init__(self, what: str, total: int | None, *, unit: str,
               log: Callable[[str], None] | None, done: int = 0, lines: bool = True):
    self.done = done
    self._what, self._total, self._unit, self._log = what, total, unit, log
    self._earlier, self._lines = done, lines
    self._start = self._shown = time.monotonic()
    self._bar: tqdm | None = None

  def __enter__(self) -> 'Progress':
    if self._log is not None and sys.stderr.isatty() and processes.is_first():
      from tqdm import tqdm
      tqdm.set_lock(threading.RLock())  # the default one is shared with processes to be
      self._bar = tqdm(total=self._total, initial=self.done, desc=self._what, dynamic_ncols=True,
                       unit=f' {self._unit}', unit_scale=False, file=sys.stderr, leave=False,
                       mininterval=0, miniters=1)
      _open_bars.append(self._bar)
    return self

  def __exit__(self, *_: object) -> None:
    if self._bar is not None:
      self._bar.close()
      _open_bars.remove(self._bar)
      self._bar = None

  @property
  def replaces_lines(self) -> bool:
    """Whether the bar and stdout are on the same terminal."""
    return self._bar is not None and sys.stdout.isatty()

  def skip(self, count: int) -> None:
    """Adds work that an earlier run has done."""
    self._earlier += count
    self.done += count
    if self._bar is not None:
      self._bar.initial += count
      self._bar.n += count

  def add(self, count: int = 1, more: Callable[[], str] = str) -> None:
    """Adds work that was done now; shows it, with the text of `more`, if it is time."""
    self.done += count
    interval = BAR_INTERVAL_SEC if self._bar is not None else INTERVAL_SEC
    if self._log is None or time.monotonic() - self._shown < interval:
      return
    if self._bar is not None:
      self._bar.set_postfix_str(more(), refresh=False)
      self._bar.update(self.done - self._bar.n)
    elif self._lines:
      self._log(self.line(more()))
    self._shown = time.monotonic()

  def line(self, more: str = '') -> str:
    """The plain line: done, total, rate, time left."""
    seconds = max(time.monotonic() - self._start, 1e-9)
    rate = (self.done - self._earlier) / seconds
    parts = [f'{self._what}: {self.done:,}' + (
      '' if self._total is None else f' of {self._total:,}') + f' {self._unit}']
    if rate:
      parts.append(f'{rate:,.0f} {self._unit}/s' if rate >= 10 else f'{rate:.2g} {self._unit}/s')
    if more:
      parts.append(more)
    if rate and self._total is not None and (
        left := (self._total - self.done) / rate) >= LEAST_ETA_SEC:
      parts.append(f'ETA {format_time(left)}')
    return ', '.join(parts)


def seldom(log: Callable[[str], None]) -> Callable[[str], None]:
  """A log for threads that passes a line on at most every ten seconds and drops the others."""
  lock, passed = threading.Lock(), -INTERVAL_SEC

  def write(line: str) -> None:
    nonlocal passed
    with lock:
      due = time.monotonic() - passed >= INTERVAL_SEC
      passed = time.monotonic() if due else passed
    if due:
      log(line)

  return write


def format_time(seconds: float) -> str:
  """A time as minutes and seconds, with hours if there are any."""
  minutes, rest = divmod(int(max(seconds, 0)), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02d}:{rest:02d}' if hours else f'{minutes}:{rest:02d}'


_NATIVE = re.compile(rb'WARNING: All log messages before absl::InitializeLog|[IWE]\d{4} \d\d:\d\d:')


@contextlib.contextmanager
def without_native_lines() -> Iterator[None]:
  """Holds back what TensorFlow's C++ code writes to stderr when it is imported."""
  try:  # no setting does: it writes these lines before it reads any
    before = os.dup(2)
  except OSError:  # stderr is closed
    yield
    return
  with tempfile.TemporaryFile() as kept:
    os.dup2(kept.fileno(), 2)
    try:
      yield
    finally:
      os.dup2(before, 2)
      os.close(before)
      kept.seek(0)
      for line in kept:
        if not _NATIVE.match(line):
          os.write(2, line)


def write_line(line: str, file: TextIO) -> None:
  """Writes a line at once, above an open bar."""
  with contextlib.ExitStack() as stack:
    if _open_bars:
      from tqdm import tqdm
      stack.enter_context(tqdm.external_write_mode(file=file))
    print(printable(line), file=file, flush=True)


def print_line(line: str) -> None:
  """Prints a line of a log on stdout."""
  write_line(line, sys.stdout)
