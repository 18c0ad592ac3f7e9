"""States of what was asked for, in the words of every backend, and what gcloud really answers."""

import dataclasses
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

# Steps of a plan: commands to run and files to write, and how a dry run prints them.

@dataclasses.dataclass(frozen=True)
class Run:
  """One command.

  Attributes:
    argv: the words; never a line for a shell.
    why: what it does, one line.
    tries: how often it is tried in all; more than one where the network may fail and repeating is
      harmless.
    done_if: texts of errors which mean that it was done before: it exists already, or is gone.
  """

  argv: tuple[str, ...]
  why: str
  tries: int = 1
  done_if: tuple[str, ...] = ()

  @property
  def remote(self) -> bool:
    """Whether it reaches workers: what it prints is theirs, and their ssh may not be ready yet."""
    return bool({'ssh', 'scp'} & set(self.argv))


@dataclasses.dataclass(frozen=True)
class Write:
  """One file with text that holds no secret."""

  path: str
  text: str
  why: str


Step = Run | Write

EXISTS = ('already exists', 'ALREADY_EXISTS')
GONE = ('was not found', 'NOT_FOUND')
"""What gcloud says where something is there already, or no longer: for `done_if`."""


def _wrapped(argv: Sequence[str]) -> str:
  """The words quoted, in lines of at most 100 columns where words allow it."""
  lines = [shlex.quote(argv[0])]
  for word in map(shlex.quote, argv[1:]):
    if len(lines[-1]) + len(word) > 96:
      lines.append(f'  {word}')
    else:
      lines[-1] += f' {word}'
  return ' \\\n'.join(lines)


def render(steps: Sequence[Step]) -> str:
  r"""The steps as lines for bash: exactly what would run, ready to be pasted.

  >>> print(render([Run(('echo', "it's"), 'say so'), Write('a b', 'x\n', 'keep it')]), end='')
  # say so
  echo 'it'"'"'s'
  # keep it
  cat > 'a b' <<'END_OF_FILE'
  x
  END_OF_FILE
  """
  lines = []
  for step in steps:
    lines.append(f'# {step.why}')
    if isinstance(step, Run):
      lines.append(_wrapped(step.argv))
    else:
      text = step.text if step.text.endswith('\n') else step.text + '\n'
      if 'END_OF_FILE\n' in text:
        raise ValueError(f'{step.path} holds the mark that ends it')
      lines.append(f"cat > {shlex.quote(step.path)} <<'END_OF_FILE'\n{text}END_OF_FILE")
  return ''.join(f'{line}\n' for line in lines)


# What an exit code of a worker's command means: go on, start again, or never again.

DONE, RESTART, USER, FAULT = 'done', 'restart', 'user', 'fault'

USER_ERROR = 2
PREEMPTED = 42
RESTARTED = (PREEMPTED, *range(129, 256))
"""42: interrupted and saved. From 129 on: ended by a signal, or (134) by JAX as a peer was gone."""


def verdict(code: int) -> str:
  """Whether a worker's command is done, starts again, or must not.

  Args:
    code: exit code, 0-255.

  Returns:
    `done` (0), `restart` (42 and 129-255; bounded), `user` (2: starting again cannot help) or
    `fault` (anything else: the program broke, or was not found).

  >>> [verdict(code) for code in (0, 2, 42, 134, 1)]
  ['done', 'user', 'restart', 'restart', 'fault']
  """
  if code == 0:
    return DONE
  if code == USER_ERROR:
    return USER
  return RESTART if code in RESTARTED else FAULT


def joint_code(codes: Iterable[int]) -> int:
  """The exit code of a job from those of all its workers.

  A worker that the user can mend (2) decides, then one that broke, then one that was interrupted
  too often: the others ended because of it.

  Raises:
    ValueError: there are no codes.

  >>> joint_code([134, 2, 0]), joint_code([134, 1]), joint_code([0, 0]), joint_code([42, 134])
  (2, 1, 0, 42)
  """
  codes = list(codes)
  if not codes:
    raise ValueError('no worker ended')
  order = (USER, FAULT, RESTART, DONE)
  return min(codes, key=lambda code: (order.index(verdict(code)), code))


READY, WAITING, DEAD, ABSENT, UNKNOWN = 'ready', 'waiting', 'dead', 'absent', 'unknown'

# A limit of the project; a "quota project" is the one that calls are counted for.
_QUOTA = re.compile(r'quota(?! project)', re.I)
_TRANSIENT = re.compile(r'timed out|max retries|connection (reset|refused|aborted|broken)|'
                        r'network is unreachable|name resolution|find the server', re.I)
# What an account lacks: asking again cannot help. The first that is found says what to do.
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
  (r'property \[(core/)?project\]|project .*(does not exist|not found|deleted)|CONSUMER_INVALID',
   'name a project that is there: --project=ID'),
  (r'PERMISSION_DENIED|have permission|permission .*(denied|required)|required .*permission|'
   r'forbidden|HTTPError 403|not authorized|unauthorized',
   'let an owner of the project give the account the roles roles/tpu.admin and '
   'roles/iam.serviceAccountUser (and look at --zone and --project), or take another account: '
   'gcloud config set account ACCOUNT'))]


class State(NamedTuple):
  """State of a slice.

  Attributes:
    kind: `ready`, `waiting`, `dead` (only deleting helps), `absent`, `unknown` (a state that
      fairjax does not know: it is waited for); '' if the question failed.
    words: as the cloud says it.
    explained: whether a dead one says why.
  """

  kind: str
  words: str
  explained: bool = True

  @property
  def quota(self) -> bool:
    """Whether it died of a limit: asking again cannot help."""
    return self.kind == DEAD and is_limit(self.words)


def is_limit(text: str) -> bool:
  """Whether an error is about a limit of the project.

  >>> is_limit("Quota 'TPUS' exceeded"), is_limit('The API requires a quota project')
  (True, False)
  """
  return _QUOTA.search(text) is not None


def denied(errors: str) -> str:
  """What to do where an account may not or cannot ask at all; '' for every other error.

  >>> denied('ERROR: Reauthentication failed. Please run: gcloud auth login')
  'log in again: gcloud auth login'
  >>> denied('ERROR: There was a problem refreshing your tokens: timed out. Run: gcloud auth login')
  ''
  """
  if is_limit(errors) or _TRANSIENT.search(errors):
    return ''
  return next((remedy for pattern, remedy in _DENIED if pattern.search(errors)), '')


def read_answer(output: str) -> Any:
  r"""The JSON object or list in what gcloud printed, with or without notices around it.

  Raises:
    ValueError: there is none.

  >>> read_answer('Updates are available.\n{"state": 1}\n[survey] tell us')
  {'state': 1}
  """
  decoder, found = json.JSONDecoder(), []
  for begin in re.finditer(r'^[ \t]*(?=[{\[])', output, re.M):
    try:
      value, end = decoder.raw_decode(output, begin.end())
      found.append((end - begin.end(), value))
    except (ValueError, RecursionError):
      continue
  if not found:
    raise ValueError('no JSON')
  return max(found, key=lambda pair: pair[0])[1]
