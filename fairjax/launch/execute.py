"""Runs steps: streams what they print without secrets, repeats what may be repeated."""

import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, NamedTuple

from fairjax.errors import UserError
from fairjax.launch.exit_codes import USER_ERROR
from fairjax.launch.state import denied
from fairjax.launch.steps import Run, Step, Write

MOST_SECONDS = 60


class Result(NamedTuple):
  """What a command gave: exit code, standard output and errors, secrets replaced."""

  code: int
  output: str
  errors: str


class StepFailed(Exception):
  """A step failed as often as it may; `result` is that of the last try.

  Attributes:
    shown: whether what it printed was shown already.
  """

  def __init__(self, step: Run, result: Result, *, shown: bool = True, what: str = ''):
    super().__init__(
      f'{step.why}: {step.argv[0]} {what or f"ended with code {result.code}"}')
    self.step, self.result, self.shown = step, result, shown


def backoff_seconds(attempt: int, *, first: float = 2) -> float:
  """Pause before another try: 2, 4, 8, ... at most 60 seconds.

  >>> [backoff_seconds(n) for n in (0, 1, 2, 9)]
  [2, 4, 8, 60]
  """
  return min(first * 2 ** attempt, MOST_SECONDS)


class Executor:
  """Runs steps in the repository.

  Args:
    root: folder of the repository; relative paths of the steps are in it.
    secrets: name -> value; no value is ever printed or logged, nor may it stand in an argument.
    log: takes lines of progress.
    sleep: waits that many seconds.
    show: takes (text, whether it is an error) of what commands print.
  """

  def __init__(self, root: str | os.PathLike, *, secrets: Mapping[str, str] | None = None,
               log: Callable[[str], None], sleep: Callable[[float], None] = time.sleep,
               show: Callable[[str, bool], None] | None = None):
    self.root = pathlib.Path(root)
    self._secrets = sorted((v for v in (secrets or {}).values() if v), key=len, reverse=True)
    self._log, self.sleep = log, sleep
    self._show = show or _show

  def log(self, line: str) -> None:
    """Logs a line of progress."""
    self._log(self.redact(line))

  def redact(self, text: str) -> str:
    """The text with every secret replaced by `***`."""
    for value in self._secrets:
      text = text.replace(value, '***')
    return text

  def steps(self, steps: Sequence[Step]) -> None:
    """Runs steps in order.

    Raises:
      StepFailed: one failed, and had not been done before.
    """
    for step in steps:
      if isinstance(step, Write):
        path = self.root / step.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step.text, encoding='utf-8')
      else:
        self.run(step)

  def run(self, step: Run, *, quiet: bool = False) -> Result:
    """Runs one command, again after a pause where it may be repeated.

    Code 2 is never repeated: the words are wrong, and will be. Nor is what an account cannot do.

    Args:
      step: what to run.
      quiet: keep what it prints for the result instead of showing it.

    Raises:
      StepFailed: it failed in every try.
      UserError: the program is not installed, or a secret stands in an argument.
    """
    for attempt in range(step.tries):
      result = self._once(step.argv, quiet=quiet)
      if result.code == 0:
        return result
      if any(text in result.errors for text in step.done_if):
        self.log(f'{step.why}: done before')
        return result
      never = result.code == USER_ERROR or (not step.remote and denied(result.errors))
      if never or attempt + 1 == step.tries:
        break
      pause = backoff_seconds(attempt)
      self.log(f'{step.why}: code {result.code}; try {attempt + 2} of {step.tries} '
               f'in {pause:g} s')
      self.sleep(pause)
    raise StepFailed(step, result, shown=not quiet)

  def _once(self, argv: Sequence[str], *, quiet: bool) -> Result:
    if any(value in word for value in self._secrets for word in argv):
      raise UserError('a secret stands in an argument, where process lists show it: take it out '
                      'of the command, the workers get it in their environment')
    try:
      process = subprocess.Popen(
        list(argv), cwd=self.root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, encoding='utf-8', errors='replace')
    except FileNotFoundError:
      raise UserError(f'{argv[0]} is not installed, or not on PATH') from None
    kept: tuple[list[str], list[str]] = ([], [])
    closed: list[BrokenPipeError] = []
    threads = [threading.Thread(target=self._read, args=(stream, kept[i], bool(i), quiet, closed))
               for i, stream in enumerate((process.stdout, process.stderr))]
    for thread in threads:
      thread.start()
    try:
      code = process.wait()
    except BaseException:
      process.terminate()
      process.wait()
      raise
    finally:
      for thread in threads:
        thread.join(timeout=5)
    if closed:
      raise closed[0]
    return Result(code if code >= 0 else 128 - code, ''.join(kept[0]), ''.join(kept[1]))

  def _read(self, stream: IO[str], kept: list[str], is_error: bool, quiet: bool,
            closed: list[BrokenPipeError]) -> None:
    # Where nobody reads what is shown (`| head`), the stream closes and its writer ends, too.
    try:
      with stream:
        for line in stream:
          line = self.redact(line)
          kept.append(line)
          if not quiet:
            self._show(line, is_error)
    except BrokenPipeError as e:
      closed.append(e)


def _show(text: str, is_error: bool) -> None:
  print(text, end='', file=sys.stderr if is_error else sys.stdout, flush=True)
