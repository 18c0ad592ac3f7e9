"""States of what was asked for, in the words of every backend, and what gcloud really answers."""

import json
import re
from typing import Any, NamedTuple

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
