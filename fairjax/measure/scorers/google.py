"""Google Cloud Natural Language as a scorer (H-14): document sentiment s in [-1, 1] -> (s + 1) / 2.

Needs the package google-cloud-language (`pip install 'fairjax[google]'`) and either an API key in
the environment variable FAIRJAX_GOOGLE_API_KEY or Google's application-default credentials. Texts
are sent to Google, and Google asks for money: every answer is kept at once in a file, by a digest
of its text, so that no text is paid for twice. What a kill loses are the requests under way, at
most `workers` of them.

Google may change its model at any time; the fingerprint cannot show that. Scores to be compared
should be made within days and their file kept.
"""

import collections
import hashlib
import json
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from fairjax.errors import UserError
from fairjax.files import JsonLines, read_json_lines
from fairjax.measure.scorers.cache import text_digest

# When to call a service again: a rate limit, and pauses between attempts.

class TokenBucket:
  """Lets `per_minute` calls a minute pass, and up to `capacity` of them at once."""

  def __init__(
    self, per_minute: float, *, capacity: int = 1, clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
  ):
    if not per_minute > 0 or capacity < 1:
      raise ValueError(f'per_minute={per_minute} must be above 0, capacity={capacity} at least 1')
    self._interval, self._burst = 60 / per_minute, (capacity - 1) * 60 / per_minute
    self._clock, self._sleep = clock, sleep
    self._lock = threading.Lock()
    self._full_at = clock()  # when the bucket will be full again

  def take(self) -> None:
    """Waits for a token and takes it."""
    with self._lock:
      now = self._clock()
      self._full_at = max(self._full_at, now)
      wait = self._full_at - self._burst - now
      self._full_at += self._interval
    if wait > 0:
      self._sleep(wait)


def full_jitter(attempt: int, *, base: float = 0.5, most: float = 60.0) -> float:
  """Seconds before attempt number `attempt` + 1: uniform in [0, min(most, base * 2^attempt)]."""
  return random.uniform(0, min(most, base * 2 ** min(attempt, 60)))  # noqa: S311  a delay


FORMAT = 2


class ScoreLog(JsonLines):
  """Scores that were paid for, in a file; texts themselves are not kept."""

  def __init__(self, path: str | os.PathLike, *, scorer: str, fingerprint: str):
    super().__init__(path, {'scorer': scorer, 'fingerprint': fingerprint, 'format': FORMAT},
                     again='choose another file', sync_seconds=1.0)
    # digest of a text -> score in [-1, 1], as the service gave it
    self.known = {bytes.fromhex(entry['text']): entry['score'] for entry in self.entries}

  def keep(self, digest: bytes, score: float) -> None:
    """Keeps one score; it is in the file when this returns."""
    self.append({'text': digest.hex(), 'score': score})
    self.known[digest] = score


def holds_paid_scores(path: str | os.PathLike) -> bool:
  """Whether a file is a `ScoreLog`'s."""
  entries = read_json_lines(path).entries
  return bool(entries) and 'format' in entries[0]


KEY_VARIABLE = 'FAIRJAX_GOOGLE_API_KEY'
REQUESTS_PER_MINUTE = 600  # the default quota, https://cloud.google.com/natural-language/quotas
MOST_REFUSED = 20  # texts; more than that is no matter of single texts
_LOG_SECONDS = 10.0
_AGAIN = 'the same command continues'


class _Answer(NamedTuple):
  """What came of one text: 'scored', 'refused' (this text only), 'stopped', or why to stop."""

  kind: str
  score: float = math.nan  # in [-1, 1] when scored
  words: str = ''


class GoogleScorer:
  """Sentiment of Google Cloud Natural Language, v1, kept on disk text by text (H-14).

  Empty texts and white space are neutral and not sent. A text that the service refuses
  (INVALID_ARGUMENT: not supported or too long) has no score, and none is made up: the others are
  scored and kept, then a `UserError` says how many were refused and shows the first. After
  `MOST_REFUSED` of them nothing more is sent.

  429, 503 and exceeded deadlines are tried again after exponential pauses with full jitter, until
  `deadline` seconds after the text was first sent; a quota of the day stops at once.

  Args:
    cache: file of the scores that were paid for (`ScoreLog`).
    client: `LanguageServiceClient`; None makes one from the key or the default credentials.
    endpoint: host of another region, e.g. 'eu-language.googleapis.com'; '' is Google's default.
    language: of the texts; the service does not guess it.
    requests_per_minute: of all threads together, retries included.
    workers: requests under way at a time.
    timeout: seconds for one request.
    deadline: seconds for one text with all its retries.
    clock: seconds that never go back.
    sleep: waits; None waits so that an interruption ends it.
    pause: seconds before the next attempt, given the number of failed ones less 1.
    log: gets a line of progress every ten seconds and at the end.

  Attributes:
    counts: over all calls: `asked` (texts scored by the service), `kept` (found in the file),
      `empty`, `refused`, `requests`, `retries`.

  Raises:
    UserError: package or credentials are missing, or an argument is out of range.
  """

  name = 'google'
  paid = True

  def __init__(
    self, cache: str | os.PathLike, *, client: Any = None, endpoint: str = '', language: str = 'en',
    requests_per_minute: float = REQUESTS_PER_MINUTE, workers: int = 8, timeout: float = 30.0,
    deadline: float = 300.0, clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] | None = None, pause: Callable[[int], float] = full_jitter,
    log: Callable[[str], None] | None = None,
  ):
    for name, value in (('requests_per_minute', requests_per_minute), ('workers', workers),
                        ('timeout', timeout), ('deadline', deadline)):
      if not value > 0:
        raise UserError(f'google scorer: {name} must be above 0, not {value}')
    self.cache, self.language = cache, language
    self.counts: collections.Counter[str] = collections.Counter()
    content = json.dumps(['google', 'v1 analyzeSentiment, document score', language])
    self.fingerprint = hashlib.sha256(content.encode('utf-8')).hexdigest()
    self._secret = _api_key()
    self._client = _make_client(self._secret, endpoint) if client is None else client
    self._workers, self._timeout, self._deadline = workers, timeout, deadline
    self._stop, self._lock = threading.Event(), threading.Lock()
    self._clock, self._pause, self._log = clock, pause, log
    self._sleep = self._stop.wait if sleep is None else sleep
    self._bucket = TokenBucket(requests_per_minute, clock=clock, sleep=self._sleep)

  def score(self, texts: Sequence[str]) -> np.ndarray:
    """Scores R texts: `[R]` float64 in [0, 1]; equal texts are sent once.

    Raises:
      UserError: quota used up, service not reachable, an answer that is no sentiment, texts that
        were refused, or the file is unusable. What was scored is kept in the file.
    """
    digests = [text_digest(text) for text in texts]
    full = [bool(text.strip()) for text in texts]
    with ScoreLog(self.cache, scorer=self.name, fingerprint=self.fingerprint) as kept:
      if kept.torn_bytes:
        self._say(f'{self.cache}: removed {kept.torn_bytes} bytes of an interrupted line')
      wanted = {d: t for d, t, ok in zip(digests, texts, full, strict=True) if ok}
      todo = {d: t for d, t in wanted.items() if d not in kept.known}
      self.counts['kept'] += len(wanted) - len(todo)
      self.counts['empty'] += full.count(False)
      before = self.counts.copy()
      try:
        self._ask_all(todo, kept, total=len(wanted))
      finally:
        made = self.counts - before
        self._say(f"google: {len(texts)} texts: {full.count(False)} empty (neutral), "
                  f"{len(wanted) - len(todo)} kept from earlier, {made['asked']} scored now in "
                  f"{made['requests']} requests ({made['retries']} retries)")
      return np.array([(kept.known[d] + 1) / 2 if ok else 0.5
                       for d, ok in zip(digests, full, strict=True)], np.float64)

  def _ask_all(self, todo: dict[bytes, str], kept: ScoreLog, *, total: int) -> None:
    """Asks for every text, several at a time; raises when some have no score."""
    self._stop.clear()
    queue, bad, start = iter(todo.items()), [], len(kept.known)
    last, retries = self._clock(), self.counts['retries']

    def report(trouble: str = '') -> None:
      """A line every ten seconds, whether or not a text was settled in them."""
      nonlocal last
      with self._lock:
        if self._clock() - last <= _LOG_SECONDS:
          return
        last = self._clock()
        again = self.counts['retries'] - retries
        self._say(f'google: {len(kept.known) - start} of {len(todo)} texts'
                  + (f', {again} requests sent again' if again else '')
                  + (f'; now: {trouble}' if trouble else ''))

    def settle(digest: bytes, text: str, answer: _Answer) -> None:
      if answer.kind == 'scored':
        kept.keep(digest, answer.score)
      with self._lock:
        if answer.kind == 'scored':
          self.counts['asked'] += 1
        elif answer.kind != 'stopped':
          bad.append((answer, text))
        refused = sum(a.kind == 'refused' for a, _ in bad)
        if refused < len(bad) or refused >= MOST_REFUSED:
          self._stop.set()
      report()

    def work() -> None:
      try:
        while not self._stop.is_set():
          with self._lock:
            item = next(queue, None)
          if item is None:
            return
          settle(*item, self._ask(item[1], report))
      except BaseException:
        self._stop.set()  # the other threads need not pay for more
        raise

    with ThreadPoolExecutor(min(self._workers, max(1, len(todo)))) as pool:
      try:
        for future in [pool.submit(work) for _ in range(min(self._workers, len(todo)))]:
          future.result()
      finally:
        self._stop.set()  # after an interruption: what is under way ends, and is kept
    if bad:
      missing = len(todo) - (len(kept.known) - start)
      self._raise(bad, f'{total - missing} of {total} different texts are scored and kept in '
                  f'{self.cache}')

  def _raise(self, bad: list[tuple[_Answer, str]], state: str) -> None:
    """Raises the error of the worst answer."""
    refused = [(a, t) for a, t in bad if a.kind == 'refused']
    self.counts['refused'] += len(refused)
    fatal = [(a, t) for a, t in bad if a.kind != 'refused']
    answer, text = (fatal or refused)[0]
    if answer.kind == 'quota':
      raise UserError(f'google: quota used up: {state}; wait or raise the quota, then {_AGAIN} '
                      f'({answer.words})')
    if answer.kind == 'unreachable':
      raise UserError(f'google: no answer for {self._deadline:g} s: {state}; {_AGAIN} '
                      f'({answer.words})')
    if answer.kind == 'garbage':
      raise UserError(f'google: {answer.words} for the text {text[:60]!r}: {state}; {_AGAIN}')
    if answer.kind == 'failed':
      raise UserError(f'google: {answer.words}: {state}; mend it, then {_AGAIN}')
    at_most = ' (nothing more was sent)' if len(refused) >= MOST_REFUSED else ''
    what = '1 text was' if len(refused) == 1 else f'{len(refused)} texts were'
    raise UserError(f'google: {what} refused{at_most}, the first {text[:60]!r} '
                    f'({answer.words}): {state}; a refused text has no score: remove its record or '
                    'use another scorer')

  def _ask(self, text: str, report: Callable[[str], None]) -> _Answer:
    """Asks for one text until there is an answer or its deadline has passed."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError
    transient = (exceptions.TooManyRequests, exceptions.ServiceUnavailable,
                 exceptions.GatewayTimeout)
    try:
      request = self._request(text)
    except UnicodeError:
      return _Answer('refused', words='not valid Unicode')
    start, attempt = math.inf, 0
    while True:
      self._bucket.take()
      if self._stop.is_set():
        return _Answer('stopped')
      start = min(start, self._clock())
      left = self._deadline - (self._clock() - start)
      with self._lock:
        self.counts['requests'] += 1
        self.counts['retries'] += attempt > 0
      try:
        # retry=None: the client's own does not cover 429, and passes by the rate limit.
        response = self._client.analyze_sentiment(
          request=request, retry=None, timeout=min(self._timeout, max(left, 1.0)))
        return _read(response)
      except exceptions.InvalidArgument as e:
        return _Answer(*self._judge_refusal(e))
      except transient as e:
        words, used_up = self._scrub(e), isinstance(e, exceptions.TooManyRequests)
        if used_up and _of_the_day(e):
          return _Answer('quota', words=words)
        if 'Getting metadata from plugin failed' in words:  # credentials, dressed up as a 503
          return _Answer('failed', words=words)
      except (exceptions.GoogleAPIError, GoogleAuthError) as e:
        return _Answer('failed', words=self._scrub(e))
      wait = self._pause(attempt)
      attempt += 1
      if self._clock() - start + wait > self._deadline:
        return _Answer('quota' if used_up else 'unreachable', words=words)
      report(words)
      self._sleep(wait)
      if self._stop.is_set():
        return _Answer('stopped')

  def _request(self, text: str) -> Any:
    from google.cloud import language_v1
    text.encode('utf-8')  # a lone surrogate cannot be sent
    return language_v1.AnalyzeSentimentRequest(
      document=language_v1.Document(
        content=text, type_=language_v1.Document.Type.PLAIN_TEXT, language=self.language),
      encoding_type=language_v1.EncodingType.UTF32)

  def _judge_refusal(self, error: Exception) -> tuple[str, float, str]:
    """INVALID_ARGUMENT is about the text, unless it is about the key."""
    words = self._scrub(error)
    about_key = 'API_KEY' in str(getattr(error, 'reason', '')) or 'api key' in words.lower()
    return ('failed' if about_key else 'refused'), math.nan, words

  def _scrub(self, error: Exception) -> str:
    """An error as one short line without the key."""
    words = ' '.join(f'{type(error).__name__}: {error}'.split())
    return (words.replace(self._secret, '***') if self._secret else words)[:300]

  def _say(self, line: str) -> None:
    if self._log:
      self._log(line)


def _read(response: Any) -> _Answer:
  """The score of a response, if it is one; proto3 cannot tell a missing number from 0."""
  if 'document_sentiment' not in response:
    return _Answer('garbage', words='an answer without document_sentiment')
  score = response.document_sentiment.score
  if not -1 <= score <= 1:  # NaN included
    return _Answer('garbage', words=f'an answer with score {score}, outside [-1, 1],')
  return _Answer('scored', score=float(score))


def _of_the_day(error: Any) -> bool:
  """Whether a 429 is about a quota that no retry within minutes can meet."""
  metadata = getattr(error, 'metadata', None) or {}
  limit = f"{metadata.get('quota_limit', '')} {error}".lower().replace(' ', '')
  return 'perday' in limit


def _api_key() -> str:
  """The key of the environment, '' without one."""
  key = os.environ.get(KEY_VARIABLE, '').strip()
  if not all('!' <= c <= '~' for c in key):
    raise UserError(f'{KEY_VARIABLE} holds white space or a character that no API key has: set it '
                    'to the key alone')
  return key


def _make_client(key: str, endpoint: str) -> Any:
  """A client with the key, or with application-default credentials."""
  try:
    from google.api_core.client_options import ClientOptions
    from google.auth.exceptions import GoogleAuthError
    from google.cloud import language_v1
  except ImportError:
    raise UserError("the google scorer needs the package google-cloud-language: pip install "
                    "'fairjax[google]'") from None
  if not re.fullmatch(r'([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])?(:[0-9]{1,5})?', endpoint):
    raise UserError(f'google scorer: {endpoint!r} is no HOST or HOST:PORT, like '
                    'eu-language.googleapis.com')
  options = ClientOptions(api_key=key or None, api_endpoint=endpoint or None)
  try:
    return language_v1.LanguageServiceClient(client_options=options)
  except GoogleAuthError:
    raise UserError(f'the google scorer found no credentials: set {KEY_VARIABLE} to an API key, or '
                    'set up application-default credentials (gcloud auth application-default '
                    'login)') from None
