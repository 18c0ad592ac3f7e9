"""Moments of a run: what it writes and prints, by names that are the same in every run.

A moment is the n-th time that an operation touches a path of the workdir, or that a line is
printed. Random parts of names (temporary files, hashes) are replaced by '#'. Python announces its
file operations to audit hooks *before* it carries them out; what libraries in C++ write has no
moments of its own and is met by a delay after one.
"""

import collections
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.chaos.curriculum import STAGES, stage_of

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_RANDOM = (
  (re.compile(r'\b[0-9a-f]{32,64}\b'), '#'), (re.compile(r'\d{6,}'), '#'),
  (re.compile(r'(^|/)(\.[^/]+)\.[a-z0-9_]{8}(?=$|/)'), r'\1\2.#'))
_PROGRESS = re.compile(r'\[[\w/.-]+\]( step \d+/\d+)?( validation)?')


class Moment(NamedTuple):
  """The `nth` (from 1) time that `operation` touches `path` while `stage` runs."""

  stage: str
  operation: str  # open | rename | remove | mkdir | rmdir | truncate | print
  path: str  # relative to the workdir, random parts as '#'; of `print`, the head of the line
  nth: int

  def __str__(self):
    return f'{self.operation} {self.path}' + (f' ({self.nth})' if self.nth > 1 else '')


class Watch:
  """Calls `on_moment`, whose own work makes none, at every moment of this process, before it."""

  def __init__(self, workdir: str | os.PathLike, on_moment: Callable[[Moment], None]):
    self._prefix = os.path.join(os.fspath(workdir), '')
    self._on_moment, self._stage = on_moment, STAGES[0]
    self._count, self._lock = collections.Counter(), threading.RLock()
    self._busy = False

  def install(self) -> None:
    sys.addaudithook(self._hook)
    sys.stdout = _Lines(sys.stdout, self._line)

  def _hook(self, event: str, args: tuple) -> None:
    if event == 'open':
      path, _, flags = args
      if isinstance(flags, int) and flags & _WRITES:
        self._touch('open', path)
    elif event in ('os.rename', 'os.remove', 'os.mkdir', 'os.rmdir', 'os.truncate'):
      # A rename matters by its target.
      self._touch(event[3:], args[1] if event == 'os.rename' else args[0])

  def _touch(self, operation: str, path) -> None:
    if isinstance(path, bytes):
      path = os.fsdecode(path)
    if not isinstance(path, str | os.PathLike):
      return  # a file descriptor
    path = os.fspath(path)
    if not path.startswith(self._prefix):
      return
    path = path[len(self._prefix):]
    for pattern, new in _RANDOM:
      path = pattern.sub(new, path)
    stage = stage_of(path)
    if stage and '/tensorboard' not in path:
      self._emit(stage, operation, path)

  def _line(self, line: str) -> None:
    found = _PROGRESS.match(line)
    if found:
      self._emit(self._stage, 'print', found[0])

  def _emit(self, stage: str, operation: str, path: str) -> None:
    with self._lock:
      if self._busy:
        return
      self._stage = stage
      self._count[stage, operation, path] += 1
      moment = Moment(stage, operation, path, self._count[stage, operation, path])
      self._busy = True
      try:
        self._on_moment(moment)
      finally:
        self._busy = False


class _Lines:
  """A text stream that also hands on its whole lines."""

  def __init__(self, stream, on_line):
    self._stream, self._on_line, self._rest = stream, on_line, ''

  def write(self, text):
    written = self._stream.write(text)
    *lines, self._rest = (self._rest + text).split('\n')
    for line in lines:
      self._stream.flush()
      self._on_line(line)
    return written

  def __getattr__(self, name):
    return getattr(self._stream, name)


class Recorder:
  """Writes every moment into a file and keeps the workdir as it is before each stage."""

  def __init__(self, workdir, trace, states):
    self._workdir, self._states, self._reached = workdir, states, 0
    self._file = open(trace, 'w', encoding='utf-8', buffering=1)

  def __call__(self, moment: Moment) -> None:
    self._file.write('\t'.join(map(str, moment)) + '\n')
    index = STAGES.index(moment.stage)
    if index > self._reached:
      # A stage's files are closed before the next stage writes its first.
      for stage in STAGES[self._reached + 1:index + 1]:
        shutil.copytree(self._workdir, self._states / stage, symlinks=True)
      self._reached = index


def read_trace(path: str | os.PathLike) -> list[Moment]:
  with open(path, encoding='utf-8') as file:
    rows = [line.rstrip('\n').split('\t') for line in file]
  return [Moment(stage, operation, name, int(nth)) for stage, operation, name, nth in rows]


class Trigger:
  """Does something once: `delay` seconds after a moment, in a thread unless the delay is 0."""

  def __init__(self, moment: Moment, delay: float, action: Callable[[], None]):
    self._moment, self._delay, self._action = moment, delay, action
    self._fired = False

  def __call__(self, moment: Moment) -> None:
    if self._fired or moment != self._moment:
      return
    self._fired = True
    if self._delay:
      threading.Thread(target=self._late, daemon=True).start()
    else:
      self._action()

  def _late(self):
    time.sleep(self._delay)
    self._action()
