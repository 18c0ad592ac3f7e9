"""Requests a slice, watches it, and names what is left: `launch(verb, specs, ...)`.

The command runs detached on the workers, which start it again themselves after code 42. Only this
side can replace a slice that was taken away. A laptop that sleeps meanwhile loses nothing: the same
line continues.
"""

import dataclasses
import json
import pathlib
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, NamedTuple

from fairjax.errors import UserError
from fairjax.processes import PREEMPTED
from fairjax.tpu.launch.plan import (
  Run,
  create,
  delete,
  describe,
  logs,
  pack,
  plan,
  ship,
  start,
  status,
)
from fairjax.tpu.launch.spec import LaunchSpec

# Exit codes of a worker's command.

DONE, RESTART, USER, FAULT = 'done', 'restart', 'user', 'fault'
FAULT_CODE, USER_ERROR = 1, 2
# 42: interrupted and saved. From 129 on: ended by a signal, or (134) by JAX, which lost a peer.
RESTARTED = (PREEMPTED, *range(129, 256))


def verdict(code: int) -> str:
  """Whether a command is done (0), starts again (42, 129-255), or must not (2; other faults)."""
  if code == 0:
    return DONE
  if code == USER_ERROR:
    return USER
  return RESTART if code in RESTARTED else FAULT


def joint_code(codes: Iterable[int]) -> int:
  """The code of a job: a user error decides, then a fault, then an interruption."""
  order = (USER, FAULT, RESTART, DONE)
  return min(codes, key=lambda code: (order.index(verdict(code)), code))


# Running one command: its output is streamed without secrets, and a failure repeated where it may.

class Result(NamedTuple):
  """Exit code, standard output and errors of a command, secrets replaced."""

  code: int
  output: str
  errors: str


class StepFailed(Exception):
  """A step failed in every try; `result` is that of the last one."""

  def __init__(self, step: Run, result: Result, *, shown: bool):
    ended = f'ended with code {result.code}' if result.code else 'gave no answer that can be read'
    super().__init__(f'{step.why}: {step.argv[0]} {ended}')
    self.step, self.result, self.shown = step, result, shown


# gcloud's words for slices that it cannot reach; it goes on with the others, and ends with code 0.
_LEFT_OUT = 'Could not prepare all'


def backoff_seconds(attempt: int, *, first: float = 2) -> float:
  """Pause before another try: 2, 4, 8, ... at most 60 seconds."""
  return min(first * 2 ** attempt, 60)


class Executor:
  """Runs steps in the repository; values of secrets are never printed, logged or arguments."""

  def __init__(self, root: pathlib.Path, *, secrets: Sequence[str] = (),
               log: Callable[[str], None]):
    self.root, self._log = root, log
    self._secrets = sorted(secrets, key=len, reverse=True)

  def log(self, line: str) -> None:
    """Logs a line of progress, without secrets."""
    self._log(self._redact(line))

  def _redact(self, text: str) -> str:
    for value in self._secrets:
      text = text.replace(value, '***')
    return text

  def check(self, argv: Sequence[str]) -> None:
    """Refuses arguments that hold a secret: process lists show them."""
    if any(value in word for value in self._secrets for word in argv):
      raise UserError('an argument holds a secret, and process lists show arguments: take it out '
                      'of the command, the workers get it in their environment')

  def run(self, step: Run, *, quiet: bool = False,
          readable: Callable[[str], bool] = lambda output: True) -> Result:
    """Runs one command, again after a pause where that may help; `StepFailed` after all tries."""
    # Code 2 is never repeated (the words are wrong), nor is what the account cannot do.
    for attempt in range(step.tries):
      result = self._once(step.argv, quiet=quiet)
      if step.remote and _LEFT_OUT in result.errors:
        result = result._replace(code=result.code or 255)
      if result.code == 0 and readable(result.output):
        return result
      if any(text in result.errors for text in step.done_if):
        return result
      never = result.code == USER_ERROR or (not step.remote and denied(result.errors))
      if never or attempt + 1 == step.tries:
        break
      pause = backoff_seconds(attempt)
      self.log(f'{step.why}: code {result.code}; try {attempt + 2} of {step.tries} '
               f'in {pause:g} s')
      time.sleep(pause)
    raise StepFailed(step, result, shown=not quiet)

  def _once(self, argv: Sequence[str], *, quiet: bool) -> Result:
    self.check(argv)
    try:
      process = subprocess.Popen(
        list(argv), cwd=self.root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, encoding='utf-8', errors='replace')
    except FileNotFoundError:
      raise UserError(f'{argv[0]} is not installed, or not on PATH') from None
    kept: tuple[list[str], list[str]] = ([], [])
    closed: list[BrokenPipeError] = []

    def read(stream: IO[str], is_error: bool) -> None:
      # If nobody reads what is shown (`| head`), the stream closes and its writer ends, too.
      try:
        with stream:
          for line in map(self._redact, stream):
            kept[is_error].append(line)
            if not quiet:
              print(line, end='', file=sys.stderr if is_error else sys.stdout, flush=True)
      except BrokenPipeError as e:
        closed.append(e)

    threads = [threading.Thread(target=read, args=(stream, bool(i)))
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


# Answers of gcloud: the state of a slice, limits of the project, what an account lacks.

READY, WAITING, DEAD, GOING, ABSENT = 'ready', 'waiting', 'dead', 'going', 'absent'
UNKNOWN = 'unknown'  # a state that fairjax does not know, and waits for

# A "quota project" is something else: the project that calls are counted for.
_QUOTA = re.compile(r'quota(?! project)', re.I)
_TRANSIENT = re.compile(r'timed out|max retries|connection (reset|refused|aborted|broken)|'
                        r'network is unreachable|name resolution|find the server', re.I)
# Errors of an account, which repeating cannot help: (pattern, remedy), the first match counts.
_DENIED = [(re.compile(pattern, re.I), remedy) for pattern, remedy in (
  ('quota project', 'set the project that calls are counted for: gcloud auth application-default '
   'set-quota-project PROJECT, or gcloud config set billing/quota_project PROJECT'),
  ('SERVICE_DISABLED|has not been used in project|is not enabled|API .*disabled',
   'enable the API: gcloud services enable tpu.googleapis.com compute.googleapis.com '
   '--project=PROJECT'),
  ('billing', 'link the project to a billing account: gcloud billing projects link PROJECT '
   '--billing-account=ACCOUNT'),
  ('reauth|invalid_grant|expired or revoked|UNAUTHENTICATED|gcloud auth login|active account|'
   'valid credentials|default credentials', 'log in again: gcloud auth login'),
  (r'(property|attribute) \[(core/)?project\]|project .*(does not exist|not found|deleted)|'
   'CONSUMER_INVALID', 'name a project that is there: --project=ID'),
  (r'PERMISSION_DENIED|have permission|permission .*(denied|required)|required .*permission|'
   r'forbidden|HTTPError 403|not authorized|unauthorized',
   'let an owner of the project give the account the roles roles/tpu.admin and '
   'roles/iam.serviceAccountUser (and look at --zone and --project), or take another account: '
   'gcloud config set account ACCOUNT'))]


class State(NamedTuple):
  """State of a slice."""

  kind: str  # one of the above; '' is an answer without a state
  words: str  # of the cloud: the state and its reason, or the whole answer of a dead slice
  quota: bool = False  # it died of a limit of the project, so that another request would, too
  slices: str = ''  # number and type: '2 x v6e-8'; '' where the answer does not hold them


def is_limit(text: str) -> bool:
  """Whether an error is about a limit of the project."""
  return _QUOTA.search(text) is not None


def denied(errors: str) -> str:
  """The remedy where an account may not or cannot ask at all; '' for every other error."""
  if is_limit(errors) or _TRANSIENT.search(errors):
    return ''
  return next((remedy for pattern, remedy in _DENIED if pattern.search(errors)), '')


_STATES = {
  READY: ('ACTIVE',), WAITING: ('CREATING', 'ACCEPTED', 'PROVISIONING', 'WAITING_FOR_RESOURCES'),
  DEAD: ('FAILED', 'SUSPENDING', 'SUSPENDED', 'PREEMPTED', 'TERMINATED'), GOING: ('DELETING',)}


def read_state(output: str) -> State:
  """The state in the answer to `describe`."""
  try:
    answer = json.loads(output)
    name = answer['state']['state']
  except (ValueError, KeyError, TypeError):
    return State('', f'gcloud gave no state: {output.strip() or "nothing"}')
  kind = next((kind for kind, names in _STATES.items() if name in names), UNKNOWN)
  if kind == UNKNOWN:
    return State(kind, f'{name} (fairjax does not know this state, and waits)')
  if kind != DEAD:
    return State(kind, name, slices='' if kind == GOING else _slices(answer))
  try:
    reason = answer['state']['failedData']['error']['message']
  except (KeyError, TypeError):
    return State(kind, f'{name}: {output.strip()}')
  return State(kind, f'{name}: {reason}', is_limit(reason))


def _slices(answer: Any) -> str:
  try:
    specs = answer['tpu']['nodeSpec']
    count = sum(found.get('multisliceParams', {}).get('nodeCount', 1) for found in specs)
    tpu, = {found['node']['acceleratorType'].rpartition('/')[2] for found in specs}
  except (KeyError, TypeError, ValueError, AttributeError):
    return ''
  return f'{count} x {tpu}'


def read_status(text: str) -> dict[str, tuple[str, int]]:
  r"""Worker -> (running, other, exited or absent; exit code or 0), as `worker.sh status` prints it.

  >>> read_status('noise\nfairjax-worker w-0 exited 42\n')
  {'w-0': ('exited', 42)}
  """
  found = {}
  for line in text.splitlines():
    words = line.split()
    if len(words) == 4 and words[0] == 'fairjax-worker' and words[3].isdigit():
      found[words[1]] = (words[2], int(words[3]))
  return found


# Watching a slice.

POLL_SECONDS = 30
_STEADY_SECONDS = 300  # a log that was followed for so long breaks off for a new reason
_FAILURES = 6
_LEFT = {
  READY: 'still there, and costing money',
  WAITING: 'still there, and costing money as soon as it is granted',
  DEAD: 'still there, dead, and using up quota',
  GOING: 'being deleted, and costing money until it is gone',
  UNKNOWN: 'still there, and perhaps costing money',
  '': 'perhaps still there, and costing money (the question failed)'}


def launch(verb: str, specs: Sequence[LaunchSpec], executor: Executor, *, follow: bool = False,
           detach: bool = False, delete_after: bool = False) -> int:
  """Does one verb and returns its exit code; the specs of a sweep share a slice, one by one."""
  spec = specs[0]
  if verb not in ('up', 'run'):
    try:
      for step in plan(verb, spec, follow=follow):
        result = executor.run(step)
        if verb == 'down' and result.code:
          executor.log(f'nothing was deleted: there is no {WatchedSlice(spec, executor).title} '
                       f'(fairjax tpu list --zone={spec.zone} shows what there is)')
        if verb == 'status' and not step.remote and result.output.strip() != 'ACTIVE':
          break  # it has no workers that could be asked
      return 0
    except StepFailed as e:
      return _failed(e, executor)
  for step in (step for one in specs for step in plan(verb, one)):
    executor.check(step.argv)  # here, where nothing costs yet
  watched = WatchedSlice(spec, executor)
  try:
    code = watched.ready() if verb == 'up' else watched.work(specs, detach=detach)
  except StepFailed as e:
    code = _failed(e, executor)
  except BaseException:
    watched.announce()  # after Ctrl-C and our own faults, too
    raise
  if delete_after and watched.may_run:
    executor.log('not deleted: a command may still run there (fairjax tpu status)')
  elif delete_after:
    executor.log(f'deleting {watched.title}')
    try:
      executor.run(delete(spec))
      return code
    except StepFailed as e:
      _failed(e, executor)
  watched.announce()
  return code


def _failed(error: StepFailed, executor: Executor) -> int:
  """Logs a failed step, with its command and output; the code is 2 where the user can help."""
  step, result = error.step, error.result
  output = '' if error.shown else (result.errors + result.output).strip()
  executor.log(f'failed: {error}: {shlex.join(step.argv)}' + (f'\n  {output}' if output else ''))
  remedy = ''
  if not step.remote and is_limit(result.errors):
    remedy = ('a limit of the project is reached: fairjax tpu list --zone=ZONE shows what is '
              'there, fairjax tpu clean --zone=ZONE deletes what is dead')
  elif not step.remote and denied(result.errors):
    remedy = (f'the account cannot do this, and repeating it cannot help: {denied(result.errors)}')
  if remedy:
    executor.log(remedy)
  return USER_ERROR if remedy or result.code == USER_ERROR else FAULT_CODE


class WatchedSlice:
  """One slice while it is watched."""

  def __init__(self, spec: LaunchSpec, executor: Executor):
    self._spec, self._executor = spec, executor
    self._recreated = 0
    self._asked = False  # whether something may be in the cloud
    self._made = False  # the slice, in this process
    self._had = False  # a slice that was ready, and that we did not delete
    self.may_run = True  # a command of ours or of others, until we know better
    self._slices = f'{spec.slices} x {spec.slice.accelerator_type}'
    self.title = f'queued resource {spec.job} ({self._slices}) in {spec.zone}'

  def state(self, *, tries: int = _FAILURES) -> State:
    """Asks for the state; `StepFailed` if every try failed or the account may not ask."""
    step = dataclasses.replace(describe(self._spec), tries=tries)
    result = self._executor.run(step, quiet=True, readable=lambda out: bool(read_state(out).kind))
    if result.code:
      return State(ABSENT, result.errors.strip())
    self._asked = True
    return read_state(result.output)

  def ready(self) -> int:
    """Requests the slice unless it is there, waits, replaces a dead one; returns the exit code."""
    begun, logged = time.monotonic(), ''
    while True:
      state = self.state()
      if state.kind in (WAITING, DEAD, GOING, ABSENT):
        self.may_run = False
      if state.words != logged and state.kind != ABSENT:
        self._executor.log(f'{self.title}: {state.words}')
        logged = state.words
      if state.slices not in ('', self._slices):
        self._executor.log(f'there {self._spec.job} is {state.slices}, not {self._slices}: choose '
                           'another --name, or delete that one')
        self.may_run = True
        return USER_ERROR
      if state.kind == READY:
        self._had = True
        return 0
      if state.kind in (GOING, ABSENT) and self._had:
        self._executor.log('somebody deleted it; the same line requests it again')
        return PREEMPTED
      if state.kind == ABSENT:
        self._asked = True  # from here on: a create that fails may have created something
        begun = time.monotonic()
        try:
          self._executor.run(create(self._spec))
        except StepFailed as e:
          self.may_run = 'ALREADY_EXISTS' in e.result.errors  # somebody was quicker
          raise
        self._made = True
      elif state.kind == DEAD and state.quota:
        self._executor.log('a limit of the project is reached; asking again cannot help')
        return USER_ERROR
      elif not (state.kind == DEAD and self._had) and (
          time.monotonic() - begun > _seconds(self._spec.valid_until)):
        self._executor.log(f'not granted within {self._spec.valid_until}; the same line continues')
        return PREEMPTED
      elif state.kind == DEAD:
        if not self._replace():
          return PREEMPTED
      else:
        time.sleep(POLL_SECONDS)

  def announce(self) -> None:
    """Logs what is left in the cloud, its cost and the command that deletes it."""
    if not self._asked:
      return
    kind = ''
    try:
      kind = self.state(tries=1).kind
    except (StepFailed, UserError):
      pass  # _LEFT[''] says so
    finally:  # also where Ctrl-C ends the question
      if kind == ABSENT:
        self._executor.log(f'nothing is left that costs money: there is no {self.title} '
                           f'(fairjax tpu list --zone={self._spec.zone} shows what there is)')
      else:
        self._executor.log(f'{_LEFT[kind]}: {self.title}. Delete it:\n  '
                           + shlex.join(delete(self._spec).argv))

  def _replace(self) -> bool:
    """Deletes a dead slice, so that it is requested again; False if that was done too often."""
    if self._recreated == self._spec.recreate:
      self._executor.log(f'taken away {self._recreated + 1} times: giving up (--recreate)')
      return False
    pause = backoff_seconds(self._recreated, first=5)
    self._recreated += 1
    self._executor.log(f'deleting it and asking again, {self._recreated} of '
                       f'{self._spec.recreate}, after {pause:g} s')
    self._executor.run(delete(self._spec))
    self._had = False
    time.sleep(pause)
    return True

  def work(self, specs: Sequence[LaunchSpec], *, detach: bool) -> int:
    """Runs the commands of the specs, one after the other, on slices that may be lost meanwhile."""
    self._executor.run(pack(self._spec))
    for number, spec in enumerate(specs):
      if number < len(specs) - 1 and self._runs_later(spec, specs[number + 1:]):
        self._executor.log(f'{number + 1} of {len(specs)} ended earlier: a later one is running')
        continue
      if len(specs) > 1:
        self._executor.log(f'{number + 1} of {len(specs)}: {shlex.join(spec.command)}')
      code = None
      while code is None:
        code = self.ready() or self._try(spec, detach=detach and spec is specs[-1])
      if code:
        return code
    return 0

  def _runs_later(self, spec: LaunchSpec, others: Sequence[LaunchSpec]) -> bool:
    """Whether a worker runs one of the others, and so is done with this."""
    def running(one: LaunchSpec, state: str) -> bool:
      return any(s == state for s, _ in self._workers(one, tries=1, own=True).values())

    return running(spec, 'other') and any(running(other, 'running') for other in others)

  def _try(self, spec: LaunchSpec, *, detach: bool) -> int | None:
    """The code of the command, or None if the slice was lost."""
    try:
      found = self._workers(spec, tries=1)
      # Workers of a slice that was there before may run something although they do not answer.
      self.may_run = not found and not self._made
      if any(state == 'running' for state, _ in found.values()):
        self._executor.log('the command is running already')
      else:
        steps = ship(spec)
        try:
          for step in steps:
            self._executor.run(step)
        finally:  # of the secrets, where copying them failed
          for name in (step.argv[-1] for step in steps if step.argv[0] == 'rm'):
            (self._executor.root / name).unlink(missing_ok=True)
      self.may_run = True
      self._executor.run(start(spec))  # changes nothing where it runs
    except StepFailed:
      if (kind := self.state().kind) != READY:
        self.may_run = kind == UNKNOWN
        return None
      raise
    return 0 if detach else self._follow(spec)

  def _follow(self, spec: LaunchSpec) -> int | None:
    failures = 0
    while failures < _FAILURES:
      begun = time.monotonic()
      try:
        self._executor.run(logs(spec, follow=True))
      except StepFailed as e:
        self._executor.log(f'the log broke off (code {e.result.code})')
      failures = 1 if time.monotonic() - begun > _STEADY_SECONDS else failures + 1
      found = self._workers(spec, tries=3)
      if found and all(state == 'exited' for state, _ in found.values()):
        self.may_run = False
        code = joint_code(code for _, code in found.values())
        self._executor.log(f'ended with code {code} ({verdict(code)}) on {len(found)} workers')
        return PREEMPTED if verdict(code) == RESTART else code
      if (kind := self.state().kind) != READY:
        self.may_run = kind == UNKNOWN
        return None
      if any(state == 'absent' for state, _ in found.values()):
        self._executor.log('a worker was started anew: starting the command there')
        self._executor.run(start(spec))
      time.sleep(backoff_seconds(failures))
    self._executor.log('the workers cannot be followed; the command may still run: '
                       'fairjax tpu status')
    return PREEMPTED

  def _workers(
    self, spec: LaunchSpec, *, tries: int, own: bool = False) -> dict[str, tuple[str, int]]:
    """State of the command on every worker; empty if they do not answer."""
    try:
      return read_status(self._executor.run(status(spec, tries=tries, own=own), quiet=True).output)
    except StepFailed:
      return {}


def _seconds(duration: str) -> float:
  """Seconds of `1d12h`."""
  units = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}
  return sum(int(number) * units[unit] for number, unit in re.findall(r'(\d+)([smhd])', duration))
