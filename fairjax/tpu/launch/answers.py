"""Answers of gcloud: the state of a slice, limits of the project, what an account lacks."""

import json
import re
from typing import Any, NamedTuple

READY, WAITING, DEAD, ABSENT, UNKNOWN = 'ready', 'waiting', 'dead', 'absent', 'unknown'

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
  (r'property \[(core/)?project\]|project .*(does not exist|not found|deleted)|CONSUMER_INVALID',
   'name a project that is there: --project=ID'),
  (r'PERMISSION_DENIED|have permission|permission .*(denied|required)|required .*permission|'
   r'forbidden|HTTPError 403|not authorized|unauthorized',
   'let an owner of the project give the account the roles roles/tpu.admin and '
   'roles/iam.serviceAccountUser (and look at --zone and --project), or take another account: '
   'gcloud config set account ACCOUNT'))]


class State(NamedTuple):
  """State of a slice."""

  # 'unknown' is a state that fairjax does not know, and waits for; '' is an answer without a state.
  kind: str
  words: str  # of the cloud
  explained: bool = True  # whether a dead slice comes with a reason

  @property
  def quota(self) -> bool:
    """Whether it died of a limit of the project, so that another request would, too."""
    return self.kind == DEAD and is_limit(self.words)


def is_limit(text: str) -> bool:
  """Whether an error is about a limit of the project.

  >>> is_limit("Quota 'TPUS' exceeded"), is_limit('The API requires a quota project')
  (True, False)
  """
  return _QUOTA.search(text) is not None


def denied(errors: str) -> str:
  """The remedy where an account may not or cannot ask at all; '' for every other error.

  >>> denied('ERROR: Reauthentication failed. Please run: gcloud auth login')
  'log in again: gcloud auth login'
  >>> denied('ERROR: There was a problem refreshing your tokens: timed out. Run: gcloud auth login')
  ''
  """
  if is_limit(errors) or _TRANSIENT.search(errors):
    return ''
  return next((remedy for pattern, remedy in _DENIED if pattern.search(errors)), '')


def _read_json(output: str) -> Any:
  r"""The JSON in what gcloud printed, with or without notices around it; None without any.

  >>> _read_json('Updates are available.\n{"state": 1}\n[survey] tell us')
  {'state': 1}
  """
  decoder, found = json.JSONDecoder(), []
  for begin in re.finditer(r'^[ \t]*(?=[{\[])', output, re.M):
    try:
      value, end = decoder.raw_decode(output, begin.end())
      found.append((end - begin.end(), value))
    except (ValueError, RecursionError):
      continue
  return max(found, key=lambda pair: pair[0], default=(0, None))[1]


_WAITING = {'CREATING', 'ACCEPTED', 'PROVISIONING', 'WAITING_FOR_RESOURCES'}
_DEAD = {'FAILED', 'SUSPENDING', 'SUSPENDED', 'DELETING', 'PREEMPTED', 'TERMINATED'}


def read_state(output: str) -> State:
  """The state in the answer to `describe`."""
  answer = _read_json(output)
  found = answer.get('state') if isinstance(answer, dict) else None
  name = found.get('state') if isinstance(found, dict) else found
  if not isinstance(name, str) or not name:
    return State('', f'gcloud gave no state: {output.strip() or "nothing"}')
  reason = found
  for field in ('failedData', 'error', 'message'):
    reason = reason.get(field) if isinstance(reason, dict) else None
  words = f'{name}: {reason}' if reason else name
  if name == 'ACTIVE' or name in _WAITING:
    return State(READY if name == 'ACTIVE' else WAITING, words)
  if name not in _DEAD:
    return State(UNKNOWN, f'{words} (fairjax does not know this state, and waits)')
  return State(DEAD, words, explained=bool(reason))


def read_status(text: str) -> dict[str, tuple[str, int]]:
  r"""Worker -> (`running`, `exited` or `absent`, exit code or 0), as `worker.sh status` prints it.

  >>> read_status('noise\nfairjax-worker w-0 exited 42\n')
  {'w-0': ('exited', 42)}
  """
  found = {}
  for line in text.splitlines():
    words = line.split()
    if len(words) == 4 and words[0] == 'fairjax-worker' and words[3].isdigit():
      found[words[1]] = (words[2], int(words[3]))
  return found
