"""Continuations of a model behind an OpenAI-compatible endpoint, asked for over HTTP.

One request asks for one sample. Each answer is appended to the records as soon as it is there, so
that nothing is paid for twice: a kill loses the requests under way, at most `concurrency`. Records
have no sample numbers, because such a model shares no noise between prompts.
"""

import collections
import dataclasses
import datetime
import email.utils
import json
import os
import pathlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from fairjax.config import SampleConfig, limited
from fairjax.counterfactual.attributes import Attribute
from fairjax.errors import UserError
from fairjax.generate.generations import Work, open_records, seal_records, work_identity
from fairjax.generate.records import RecordWriter, read_records
from fairjax.inputs import read_secret, replace_broken
from fairjax.progress import Progress, seldom

if TYPE_CHECKING:
  import httpx

KEY_VARIABLE = 'FAIRJAX_ENDPOINT_KEY'
INSTRUCTION = ('Continue the text that the user gives. Write only the words that come next, '
               'without repeating the text, and without any comment, question or explanation.')
ATTEMPTS = 8  # requests for one sample
LONGEST_WAIT = 600  # seconds that a server may ask for
_TRANSIENT = (408, 409, 425, 429)
# Of a request; with one seed all answers to a prompt may be the same.
_OWN_FIELDS = ('model', 'prompt', 'messages', 'n', 'stream', 'echo', 'seed')
_LOCAL = ('localhost', '127.0.0.1', '::1')


@dataclasses.dataclass(frozen=True)
class Endpoint:
  """A model behind an OpenAI-compatible endpoint, and how it is asked."""

  url: str  # base address, e.g. 'http://localhost:8000/v1'
  model: str  # its name there
  # Ask /chat/completions, the instruction as the system's message and the prompt as the user's;
  # False: /completions, which continues the prompt itself
  chat: bool = False
  instruction: str = INSTRUCTION  # of `chat`; each record keeps it
  # Further fields of each request, e.g. `{'top_p': 0.9}`; None takes a field out
  body: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  concurrency: int = limited(8, above=0)  # requests under way at a time
  timeout: float = limited(120.0, above=0)  # seconds of each wait, for a part of an answer
  # Seconds of the first pause before a request is sent again, and of the longest one
  pause: tuple[float, float] = (1.0, 60.0)


def sample_endpoint(
  endpoint: Endpoint, attribute: Attribute, output: str | os.PathLike, sample: SampleConfig, *,
  rewordings: bool = False, prices: tuple[float, float] | None = None,
  log: Callable[[str], None] = print,
) -> None:
  """Asks for continuations of every prefix of an attribute and records them in `output`."""
  # Of `sample` count `samples`, `max_new_tokens` and `temperature`. The same call continues an
  # interrupted file, extends it to more samples, and leaves a complete one alone. An answer that
  # stops for the content filter or has no choices is an empty continuation, as a refusal is. The
  # prompt at the beginning of a chat's answer is taken out. Both are counted. `prices` are those of
  # a million tokens that are read and written, for the cost in the log.
  path = pathlib.Path(output)
  prefixes = attribute.prefixes() + (attribute.reworded_prefixes() if rewordings else [])
  work = Work(path, prefixes, attribute, sample.samples, numbered=False)
  with _Client(endpoint, sample, log) as client:
    identity = work_identity(
      attribute, prefixes, sample, model=endpoint.model, coupled=False, endpoint=client.address,
      instruction=endpoint.instruction if endpoint.chat else '', body=dict(endpoint.body))
    complete, _ = open_records(path, identity, work, sample, endpoint.model, log)
    if complete is None:
      try:
        _ask_all(client, work, endpoint, log)
      finally:
        log(f'{path}: {work.done.sum():,} of {work.done.size:,} records; this call sent '
            f'{client.requests:,} requests, {client.again:,} of them again')
      seal_records(identity, work, sample)
  log(_account(path, prices))


def _ask_all(client: '_Client', work: Work, endpoint: Endpoint, log: Callable[[str], None]) -> None:
  """Asks for what is not recorded and records it; raises the first failure."""
  todo, lock, failures = _missing(work), threading.Lock(), []
  kept = {'instruction': endpoint.instruction} if endpoint.chat else {}

  def ask(writer: RecordWriter, progress: Progress) -> None:
    while not client.stop.is_set():
      with lock:
        group, value, number = next(todo, (None, 0, 0))
      if group is None:
        return
      try:
        answer = client.ask(work.texts[work.index[group, value]])
        record = work.record(group, value, number, answer.text, endpoint.model)
        writer.append([record | kept | answer.fields])
      except _Stopped:
        return
      except UserError as e:
        failures.append(e)
        client.stop.set()
        return
      except BaseException:
        client.stop.set()  # the other threads must not pay for more
        raise
      with lock:
        work.done[work.index[group, value], number] = True
        progress.add()

  with (RecordWriter(work.path, sync_seconds=1.0) as writer,
        Progress(str(work.path), work.done.size, unit='records', log=log,
                 done=int(work.done.sum())) as progress,
        ThreadPoolExecutor(endpoint.concurrency) as pool):
    try:
      for running in [pool.submit(ask, writer, progress) for _ in range(endpoint.concurrency)]:
        running.result()
    finally:
      client.stop.set()  # after an interruption: what is under way ends, and is kept
  if failures:
    raise failures[0]


def _missing(work: Work) -> Iterator[tuple[tuple[int, int], int, int]]:
  """What is not recorded: the first sample of every prefix, then the second of every one, ..."""
  done = work.done.copy()
  for number in range(work.samples):
    for (group, value), row in work.index.items():
      if not done[row, number]:
        yield group, value, number


def _account(path: pathlib.Path, prices: tuple[float, float] | None) -> str:
  """What the answers in a file are and cost, in words."""
  empty = echoed = unknown = 0
  tokens, reasons, models = [0, 0], collections.Counter(), collections.Counter()
  texts = collections.defaultdict(list)
  for record in read_records(path):
    texts[record['prefix']].append(hash(record['continuation']))
    empty += not record['continuation'].strip()
    echoed += bool(record.get('repeated_prompt'))
    unknown += 'completion_tokens' not in record
    reasons[record.get('finish_reason') or 'not stated'] += 1
    models[record.get('answered_by', record['model'])] += 1
    tokens = [tokens[0] + record.get('prompt_tokens', 0),
              tokens[1] + record.get('completion_tokens', 0)]
  parts = [f'{tokens[0]:,} tokens read and {tokens[1]:,} written']
  if prices:
    parts[0] += f', which cost {(tokens[0] * prices[0] + tokens[1] * prices[1]) / 1e6:,.4f}'
  if unknown:
    parts.append(f'{unknown:,} answers do not state their tokens')
  parts.append('finish reasons: ' + ', '.join(f'{n:,} {r}' for r, n in reasons.most_common()))
  parts.append('answered by ' + ', '.join(f'{m} ({n:,})' for m, n in models.most_common()))
  parts += [f'{empty:,} empty continuations'] * bool(empty)
  parts += [f'{echoed:,} answers began with the prompt, which was taken out'] * bool(echoed)
  if same := sum(len(found) > len(set(found)) == 1 for found in texts.values()):
    parts.append(f'WARNING: all answers to {same:,} of {len(texts):,} prompts are the same text (a '
                 'temperature of 0, a cache?): each of these prompts has one sample only')
  return f'{path}: ' + '; '.join(parts)


class _Answer(NamedTuple):
  """A continuation, and what its record keeps beside it."""

  text: str
  fields: dict[str, Any]


class _Stopped(Exception):
  """Nothing more is sent."""


class _Client:
  """Sends requests for single continuations, again where that may help; threads share it."""

  def __init__(self, endpoint: Endpoint, sample: SampleConfig, log: Callable[[str], None]):
    try:
      import httpx
    except ImportError:
      raise UserError("--endpoint needs the package httpx: pip install -e '.[endpoint]' in "
                      "fairjax's folder") from None
    try:
      json.dumps(dict(endpoint.body), allow_nan=False, ensure_ascii=False).encode('utf-8')
    except (TypeError, ValueError) as e:  # not finite, half a character, no object of JSON
      raise UserError(f'--body cannot be sent as JSON ({e}): correct it') from None
    if own := [name for name in _OWN_FIELDS if name in endpoint.body]:
      raise UserError(f'--body sets {", ".join(own)}: a request asks --model for one whole answer '
                      'to a prompt of the attribute, by chance of its own, so leave it out')
    try:
      self._first, self._longest = (float(seconds) for seconds in endpoint.pause)
    except (TypeError, ValueError):
      self._first = -1.0
    if self._first < 0 or self._longest < 0:
      raise UserError(f'pause={endpoint.pause!r:.60} must be the seconds of the first and of the '
                      'longest pause')
    self._endpoint, self._secret, self._log_again = endpoint, read_secret(KEY_VARIABLE), seldom(log)
    url = _base_url(endpoint.url)
    self.address = f"{url}/{'chat/' * endpoint.chat}completions"
    if self._secret and url.scheme == 'http' and url.host not in _LOCAL:
      log(f'WARNING: {KEY_VARIABLE} is sent unencrypted to {url}: use https')
    self._body = {'model': endpoint.model, 'max_tokens': sample.max_new_tokens,
                  'temperature': sample.temperature}
    self._http = httpx.Client(
      timeout=endpoint.timeout, limits=httpx.Limits(max_connections=endpoint.concurrency),
      headers={'Authorization': f'Bearer {self._secret}'} if self._secret else {})
    self.stop, self._lock = threading.Event(), threading.Lock()
    self.requests = self.again = 0
    self._answered = False

  def __enter__(self) -> '_Client':
    return self

  def __exit__(self, *_: object) -> None:
    self._http.close()

  def ask(self, prefix: str) -> _Answer:
    """The continuation of a prefix."""
    import httpx
    prompt: dict[str, Any] = {'prompt': prefix} if not self._endpoint.chat else {'messages': [
      {'role': 'system', 'content': self._endpoint.instruction},
      {'role': 'user', 'content': prefix}]}
    body = {name: value for name, value in {
      **self._body, **prompt, **self._endpoint.body}.items() if value is not None}
    for attempt in range(ATTEMPTS):
      wait = None
      with self._lock:
        self.requests += 1
        self.again += attempt > 0
      try:
        response = self._http.post(self.address, json=body)
      except httpx.RequestError as e:
        reason = self._clean(f'{type(e).__name__}: {e}')
        if isinstance(e, httpx.ConnectError) and not self._answered:
          raise UserError(f'{self.address} cannot be reached ({reason}): check --endpoint and '
                          'whether the server runs') from None
      else:
        self._answered = True
        status = _status(response)
        reason = f'{status}: {self._clean(_message(response))}'
        if status < 300:
          answer = self._read(response, prefix)
          if answer.fields.get('finish_reason') != 'error':  # of a provider behind the endpoint
            return answer
        elif _code(response) == 'content_filter':
          return _Answer('', {'finish_reason': 'content_filter'})
        elif _code(response) == 'insufficient_quota':
          raise self._refused(429, reason)
        elif status < 500 and status not in _TRANSIENT:
          raise self._refused(status, reason)
        wait = _seconds_to_wait(response.headers.get('Retry-After', ''))
        if (wait or 0) > LONGEST_WAIT:
          raise UserError(f'{self.address} asks to wait {wait:,.0f} s ({reason}): the same command '
                          'continues then')
      # A Retry-After of 0 or 1 must not switch the growing pauses off.
      wait = max(wait or 0, random.uniform(0, min(self._longest, self._first * 2**attempt)))  # noqa: S311
      if attempt + 1 < ATTEMPTS:
        self._log_again(f'{self.address}: sends requests again: {reason}')
        if self.stop.wait(wait):
          raise _Stopped
    raise UserError(f'{self.address} gave no answer in {ATTEMPTS} requests ({reason}): the same '
                    'command continues when it does')

  def _read(self, response: 'httpx.Response', prefix: str) -> _Answer:
    """The answer in a response."""
    try:
      answer = response.json()
      choices = answer['choices']
      choice: Any = choices[0] if choices else {'finish_reason': 'no choice'}
      reason, usage = choice.get('finish_reason'), answer.get('usage') or {}
      # Thinking may use all tokens up: some servers leave `content` out then. What a filter has cut
      # is no text of the model's choice.
      text = ('' if not choices or reason == 'content_filter' else
              choice['message'].get('content') if self._endpoint.chat else choice['text'])
      fields = {name: usage[name] for name in ('prompt_tokens', 'completion_tokens')
                if isinstance(usage.get(name), int)}
      if isinstance(model := answer.get('model'), str) and model != self._endpoint.model:
        fields['answered_by'] = replace_broken(model)
      if not isinstance(text, str | None) or not isinstance(reason, str | None):
        raise TypeError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
      raise UserError(f'{self.address} answers otherwise than an OpenAI-compatible endpoint: '
                      f'{self._clean(_message(response)) or "nothing"}') from None
    text = replace_broken(text or '')
    if self._endpoint.chat and text.lstrip().startswith(prefix):
      text, fields = text.lstrip().removeprefix(prefix), fields | {'repeated_prompt': True}
    return _Answer(text, fields | ({'finish_reason': replace_broken(reason)} if reason else {}))

  def _refused(self, status: int, reason: str) -> UserError:
    """The error for a status that no further request changes."""
    key = f'set {"the right key in " if self._secret else ""}{KEY_VARIABLE}' + (
      '' if self._secret else ' to the key')
    how = {
      401: key, 403: key, 404: f"it has no model '{self._endpoint.model}' or no such address: "
      'check --model and --endpoint; a chat model needs --chat',
      429: 'the quota is used up: the same command continues when there is more',
      **dict.fromkeys(range(300, 400), 'it sends requests elsewhere: name that address')}.get(
        status, 'change what it names; --body takes fields out and adds others')
    return UserError(f'{self.address} refuses the request ({reason}): {how}')

  def _clean(self, text: str) -> str:
    """A text of others as one short line without the key."""
    line = ' '.join(replace_broken(text).split())
    return (line.replace(self._secret, '***') if self._secret else line)[:200]


def _base_url(text: str) -> 'httpx.URL':
  """The address before /completions; `UserError` without showing what may be a secret."""
  import httpx
  try:
    url = httpx.URL(text)
  except httpx.InvalidURL:
    url = httpx.URL('')
  if url.scheme not in ('http', 'https') or not url.host:
    raise UserError('--endpoint must be an address like http://localhost:8000/v1')
  if url.userinfo or url.query or url.fragment:
    raise UserError('--endpoint must be the address alone, without a user name, ? or #: '
                    f'{KEY_VARIABLE} holds the key')
  path = url.path.rstrip('/').removesuffix('/completions').removesuffix('/chat')
  return url.copy_with(path=path or '/v1')


def _error_of(response: 'httpx.Response') -> Any:
  """What a response says is wrong: the JSON of its `error`, or its text."""
  try:
    body = response.json()
  except (ValueError, RecursionError):
    return response.text
  return body.get('error', body.get('detail', body)) if isinstance(body, dict) else body


def _status(response: 'httpx.Response') -> int:
  """The status, also of an error that a router to providers puts into an answer of status 200."""
  try:
    body = response.json()
  except (ValueError, RecursionError):
    body = None
  if not response.is_success or not isinstance(body, dict) or body.get('choices') or (
      not body.get('error')):
    return response.status_code
  code = _code(response)
  return code if isinstance(code, int) and 400 <= code < 600 else 502


def _message(response: 'httpx.Response') -> str:
  error = _error_of(response)
  found = error.get('message', error) if isinstance(error, dict) else error
  return found if isinstance(found, str) else json.dumps(found)


def _code(response: 'httpx.Response') -> Any:
  error = _error_of(response)
  return error.get('code') if isinstance(error, dict) else None


def _seconds_to_wait(header: str) -> float | None:
  """Seconds that a Retry-After asks for, as a number or a date; None without one."""
  if header.replace('.', '', 1).isdecimal():
    return float(header)
  try:
    until = email.utils.parsedate_to_datetime(header)
  except ValueError:
    return None
  now = datetime.datetime.now(until.tzinfo)
  return max((until - now).total_seconds(), 0.0)
