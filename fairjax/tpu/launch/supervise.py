"""Requests a slice, watches over it, and announces what is left: `launch(verb, specs, ...)`.

The command runs detached on the workers, which start it again themselves after code 42. What only
this side can do is to replace a slice that was taken away; a laptop that sleeps meanwhile loses
nothing, and the same line takes up where it was.
"""

import os
import pathlib
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, NamedTuple

from fairjax.errors import UserError
from fairjax.tpu.launch import workers
from fairjax.tpu.launch.commands import (
  ABSENT,
  DEAD,
  PREEMPTED,
  READY,
  RESTART,
  UNKNOWN,
  USER_ERROR,
  WAITING,
  Run,
  State,
  Step,
  Write,
  denied,
  is_limit,
  joint_code,
  verdict,
)
from fairjax.tpu.launch.plan import MODULES, SLICES, logs, plan, ship, start, status
from fairjax.tpu.launch.spec import LaunchSpec

# Runs steps: streams what they print without secrets, repeats what may be repeated.

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


POLL_SECONDS = 30
FAULT_CODE = 1
_FAILURES = 6
_UNREADABLE = 3  # answers without a state after which nothing better is to be expected
_LEFT = {
  READY: 'still there, and costing money',
  WAITING: 'still there, and costing money as soon as it is granted',
  DEAD: 'still there, dead, and using up quota',
  UNKNOWN: 'still there, and perhaps costing money',
  '': 'perhaps still there, and costing money (the question failed)'}
_STEADY_SECONDS = 300  # a log that was followed for so long breaks off for a new reason


def launch(verb: str, specs: Sequence[LaunchSpec], executor: Executor, *, follow: bool = False,
           detach: bool = False, delete: bool = False,
           clock: Callable[[], float] = time.monotonic) -> int:
  """Does one verb.

  Args:
    verb: one of `plan.VERBS`.
    specs: what to launch; several (a sweep) differ in their command and, where the backend queues
      jobs itself, in their name. All share one slice otherwise, one after the other.
    executor: runs the commands.
    follow: whether `logs` goes on.
    detach: whether `run` returns once the command has started.
    delete: whether `run` deletes the slice when the command has ended, however it did.
    clock: seconds, for the time that a request may wait.

  Returns:
    Exit code: 0 done; 2 the user can mend it; 42 the same line continues; 1 a fault; for `run` also
    the code of a worker's command that broke.
  """
  try:
    if verb not in ('up', 'run') or specs[0].backend not in SLICES:
      for spec in specs:
        executor.steps(plan(verb, spec, follow=follow))
      if verb == 'run':
        announce(specs, executor)
      return 0
  except StepFailed as e:
    code = failed(e, executor)
    if verb == 'run' and e.step == plan('run', spec)[-1]:  # what submits it
      announce([spec], executor)
    return code
  slice_ = Slice(specs[0], executor, clock=clock)
  try:
    code = slice_.ready() if verb == 'up' else slice_.work(specs, detach=detach)
  except StepFailed as e:
    code = failed(e, executor)
  except BaseException:
    # Ctrl-C and faults of ours, too: nothing stays behind without being named.
    slice_.announce()
    raise
  if delete and verb == 'run' and not detach:
    executor.log(f'{MODULES[specs[0].backend].what(specs[0])} is deleted')
    try:
      executor.steps(plan('down', specs[0]))
      return code
    except StepFailed as e:
      failed(e, executor)
  slice_.announce()
  return code


def failed(error: StepFailed, executor: Executor) -> int:
  """Says what failed, with the command and its output; 2 where the user can mend it, else 1."""
  output = '' if error.shown else (error.result.errors + error.result.output).strip()
  executor.log(f'failed: {error}: {shlex.join(error.step.argv)}' + (
    f'\n  {output}' if output else ''))
  if error.step.remote:
    return USER_ERROR if error.result.code == USER_ERROR else FAULT_CODE
  if is_limit(error.result.errors):
    executor.log('a limit of the project is reached: fairjax launch list shows what stands, '
                 'fairjax launch clean deletes what is dead')
    return USER_ERROR
  remedy = denied(error.result.errors)
  if remedy:
    executor.log(f'the account cannot do this, and asking again cannot help: {remedy}')
    return USER_ERROR
  return USER_ERROR if error.result.code == USER_ERROR else FAULT_CODE


def announce(specs: Sequence[LaunchSpec], executor: Executor,
             left: str = 'still there, and costing money') -> None:
  """Names what still stands, and the commands that delete it."""
  for spec in specs:
    module = MODULES[spec.backend]
    lines = [shlex.join(step.argv) for step in module.down(spec)]
    executor.log(f'{left}: {module.what(spec)}. Delete it:\n  ' + '\n  '.join(lines))


class Slice:
  """One slice while it is watched.

  Attributes:
    asked: whether something may stand in the cloud.
  """

  def __init__(self, spec: LaunchSpec, executor: Executor, *, clock: Callable[[], float]):
    self._spec, self._executor, self._clock = spec, executor, clock
    self._module = MODULES[spec.backend]
    self._recreated = 0
    self.asked = False

  def state(self, *, tries: int = _FAILURES) -> State:
    """Asks for the state; repeats a question that failed.

    Raises:
      StepFailed: it failed too often, or the account may not ask.
    """
    step: Run = self._module.describe(self._spec)
    for attempt in range(tries):
      try:
        result = self._executor.run(step, quiet=True)
        found = self._module.read_state(0, result.output, '')
        error = StepFailed(step, result, shown=False, what='gave no answer that can be read')
      except StepFailed as e:
        found, error = self._module.read_state(e.result.code, '', e.result.errors), e
        if not found.kind and (e.result.code == USER_ERROR or denied(e.result.errors)):
          raise
      if found.kind:
        self.asked = self.asked or found.kind != ABSENT
        if not found.explained:
          self._executor.log(f'{shlex.join(step.argv)} answered:\n  {result.output.strip()}')
        return found
      if attempt + 1 == min(tries, tries if error.result.code else _UNREADABLE):
        break
      pause = backoff_seconds(attempt)
      self._executor.log(f'the state is not known ({found.words}); asking again in {pause:g} s')
      self._executor.sleep(pause)
    raise error

  def ready(self) -> int:
    """Requests the slice unless it is there, waits, replaces a dead one (bounded).

    Returns:
      0 when it is ready; 2 for a limit of the project; 42 if it was taken away too often, or did
      not come in time: the same line goes on.
    """
    begun, said = self._clock(), ''
    while True:
      state = self.state()
      if state.words != said and state.kind != ABSENT:
        self._executor.log(f'{self._module.what(self._spec)}: {state.words}')
        said = state.words
      if state.kind == READY:
        return 0
      if state.kind == ABSENT:
        self.asked = True  # from here on: a create that fails may have created something
        self._executor.steps(self._module.up(self._spec))
        begun = self._clock()
        continue
      elif state.kind == DEAD:
        if state.quota:
          self._executor.log('a limit of the project is reached; asking again cannot help')
          return USER_ERROR
        if not self.replace():
          return PREEMPTED
        continue
      elif self._clock() - begun > _seconds(self._spec.valid_until):
        self._executor.log(f'not granted within {self._spec.valid_until}; the same line asks on')
        return PREEMPTED
      self._executor.sleep(POLL_SECONDS)

  def announce(self) -> None:
    """Says what is left in the cloud and what it costs; asks, where something may be left."""
    if not self.asked:
      return
    kind = ''
    try:
      kind = self.state(tries=1).kind
    except (StepFailed, UserError):
      pass  # that it may be there is said below
    finally:  # also where Ctrl-C ends the question
      if kind == ABSENT:
        rest = [shlex.join(step.argv) for step in self._module.down(self._spec)[1:]]
        self._executor.log(
          f'nothing is left that costs money: there is no {self._module.what(self._spec)} '
          f'(fairjax launch list --zone={self._spec.zone} shows what there is)' + ''.join(
            f'\n  what is free is deleted by: {line}' for line in rest))
      else:
        announce([self._spec], self._executor, _LEFT[kind])

  def replace(self) -> bool:
    """Deletes a dead slice, so that it is requested again; False if that was done too often."""
    if self._recreated == self._spec.recreate:
      self._executor.log(f'taken away {self._recreated + 1} times: giving up (--recreate)')
      return False
    pause = backoff_seconds(self._recreated, first=5)
    self._recreated += 1
    self._executor.log(f'deleting it and asking again, {self._recreated} of '
                       f'{self._spec.recreate}, after {pause:g} s')
    self._executor.steps(self._module.down(self._spec))
    self._executor.sleep(pause)
    return True

  def work(self, specs: Sequence[LaunchSpec], *, detach: bool) -> int:
    """Runs the commands of the specs, one after the other, on slices that may be lost meanwhile."""
    for number, spec in enumerate(specs):
      if len(specs) > 1:
        self._executor.log(f'{number + 1} of {len(specs)}: {shlex.join(spec.command)}')
      code = None
      while code is None:
        code = self.ready() or self._try(spec, detach=detach and spec is specs[-1])
      if code:
        return code
    return 0

  def _try(self, spec: LaunchSpec, *, detach: bool) -> int | None:
    """The code of the command, or None if the slice was lost."""
    try:
      if any(state == 'running' for state, _ in self._workers(spec, tries=1).values()):
        self._executor.log('the command is running already')
      else:
        self._executor.steps(ship(spec))
      self._executor.steps([start(spec)])  # changes nothing where it runs
    except StepFailed:
      if self.state().kind != READY:
        return None
      raise
    return 0 if detach else self._follow(spec)

  def _follow(self, spec: LaunchSpec) -> int | None:
    failures = 0
    while failures < _FAILURES:
      begun = self._clock()
      try:
        self._executor.run(logs(spec, follow=True))
      except StepFailed as e:
        self._executor.log(f'the log broke off (code {e.result.code})')
      failures = 1 if self._clock() - begun > _STEADY_SECONDS else failures + 1
      found = self._workers(spec, tries=3)
      if found and all(state == 'exited' for state, _ in found.values()):
        code = joint_code(code for _, code in found.values())
        self._executor.log(f'ended with code {code} ({verdict(code)}) on {len(found)} workers')
        return PREEMPTED if verdict(code) == RESTART else code
      if self.state().kind != READY:
        return None
      if any(state == 'absent' for state, _ in found.values()):
        self._executor.log('a worker was started anew: starting the command there')
        self._executor.steps([start(spec)])
      self._executor.sleep(backoff_seconds(failures))
    self._executor.log('the workers cannot be followed; the command may still run: '
                       'fairjax launch status')
    return PREEMPTED

  def _workers(self, spec: LaunchSpec, *, tries: int) -> dict[str, tuple[str, int]]:
    """State of the command on every worker; empty if they do not answer."""
    step = status(spec)
    try:
      result = self._executor.run(
        Run(step.argv, step.why, tries=tries), quiet=True)
    except StepFailed:
      return {}
    return workers.read_status(result.output)


def _seconds(duration: str) -> float:
  """Seconds of `1d12h`."""
  units = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}
  total, number = 0, ''
  for letter in duration:
    if letter.isdigit():
      number += letter
    else:
      total, number = total + int(number) * units[letter], ''
  return total
