"""Google Cloud Natural Language as a scorer (H-14): document sentiment s in [-1, 1] -> (s + 1) / 2.

Texts are sent to Google, and every request is billed: each answer is appended to a score file as
soon as it is there, so that no text is paid for twice. A kill loses the requests under way, at most
`workers` of them. Google may change its model at any time, which the fingerprint cannot show: score
what you compare within days, and keep the file.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from fairjax.errors import UserError
from fairjax.files import json_sha256
from fairjax.inputs import read_secret
from fairjax.measure.scorers.cache import ScoreFile, text_digest
from fairjax.progress import Progress, seldom

if TYPE_CHECKING:
  from google.cloud.language_v1 import AnalyzeSentimentRequest, LanguageServiceClient

KEY_VARIABLE = 'FAIRJAX_GOOGLE_API_KEY'
_LANGUAGE = 'en'  # of the texts; the service does not guess it
REQUESTS_PER_MINUTE = 600  # the default quota, https://cloud.google.com/natural-language/quotas
MOST_REFUSED = 20  # texts; with more than that the reason is not in single texts


class GoogleScorer:
  """Sentiment of Google Cloud Natural Language, v1, kept on disk text by text (H-14).

  Empty texts and white space are neutral and not sent. A text that the service refuses
  (INVALID_ARGUMENT: not supported or too long) has no score: the others are scored and kept, then a
  `UserError` counts the refused ones and shows the first. After `MOST_REFUSED` of them nothing more
  is sent. 429, 503 and exceeded deadlines are tried again after exponential pauses with full jitter
  (`google.api_core.retry.Retry`); a quota of the day ends the work at once.

  Args:
    cache: score file of what was paid for (`cache.ScoreFile`).
    client: `LanguageServiceClient`; None makes one from the API key in the environment variable
      FAIRJAX_GOOGLE_API_KEY or from Google's application-default credentials.
    endpoint: host of another region, e.g. 'eu-language.googleapis.com'; '' is Google's default.
    requests_per_minute: of all threads together, retries included.
    log: gets a line of progress every ten seconds and at the end.

  Attributes:
    requests: sent so far, retries included.

  Raises:
    UserError: package or credentials are missing, or an argument is out of range.
  """

  name = 'google'
  fingerprint = json_sha256(['google', 'v1 analyzeSentiment, document score', _LANGUAGE])
  paid = True
  workers = 8  # requests under way at a time
  timeout = 30.0  # seconds for one request
  deadline = 300.0  # seconds for one text with all its retries
  pause = (0.5, 10.0)  # seconds of the first pause and of the longest one

  def __init__(
    self, cache: str | os.PathLike, *, client: 'LanguageServiceClient | None' = None,
    endpoint: str = '', requests_per_minute: float = REQUESTS_PER_MINUTE,
    log: Callable[[str], None] | None = None,
  ):
    if not requests_per_minute > 0:
      raise UserError('google scorer: requests_per_minute must be above 0, not '
                      f'{requests_per_minute}')
    self.cache, self.requests = cache, 0
    self._secret = read_secret(KEY_VARIABLE)
    self._client = _make_client(self._secret, endpoint) if client is None else client
    self._interval, self._next_request = 60 / requests_per_minute, 0.0
    self._log = log or (lambda line: None)
    self._log_again = seldom(self._log)
    self._stop, self._lock = threading.Event(), threading.Lock()

  def score(self, texts: Sequence[str]) -> np.ndarray:
    """Scores R texts: `[R]` float64 in [0, 1]; equal texts are sent once.

    After any error what was scored is kept in the file.
    """
    digests = [text_digest(text) if text.strip() else None for text in texts]
    wanted = {d: t for d, t in zip(digests, texts, strict=True) if d is not None}
    with ScoreFile(self.cache, self, again='choose another file', sync_seconds=1.0) as kept:
      if kept.torn_bytes:
        self._log(f'{self.cache}: removed {kept.torn_bytes} bytes of an interrupted line')
      todo = {d: t for d, t in wanted.items() if d not in kept.known}
      sent_before = self.requests
      try:
        failures = self._ask_all(todo, kept)
      finally:
        new = sum(d in kept.known for d in todo)
        self._log(f'google: {len(texts)} texts: {digests.count(None)} empty (neutral), '
                  f'{len(wanted) - len(todo)} kept from earlier, {new} scored now in '
                  f'{self.requests - sent_before} requests')
      if failures:
        _raise(failures, f'{sum(d in kept.known for d in wanted)} of {len(wanted)} different '
               f'texts are scored and kept in {self.cache}')
      return np.array([0.5 if d is None else kept.known[d] for d in digests], np.float64)

  def _ask_all(self, todo: dict[bytes, str], kept: ScoreFile) -> list[tuple[str, '_Failed']]:
    """Asks for every text and keeps the answers; the texts without one, and why."""
    failures: list[tuple[str, _Failed]] = []
    self._stop.clear()

    def work(item: tuple[bytes, str]) -> None:
      digest, text = item
      if self._stop.is_set():
        return
      try:
        kept.keep({digest: self._ask(text)})
      except _Stopped:
        pass
      except _Failed as e:
        failures.append((text, e))
        if not e.one_text or len(failures) >= MOST_REFUSED:
          self._stop.set()
      except BaseException:
        self._stop.set()  # the other threads must not pay for more
        raise

    with (Progress('google: asked', len(todo), unit='texts', log=self._log) as progress,
          ThreadPoolExecutor(self.workers) as pool):
      try:
        for _ in pool.map(work, todo.items()):
          progress.add()
      finally:
        self._stop.set()  # after an interruption: what is under way ends, and is kept
    return failures

  def _ask(self, text: str) -> float:
    """The score in [0, 1]."""
    from google.api_core import exceptions
    from google.api_core.retry import Retry
    from google.auth.exceptions import GoogleAuthError
    from google.cloud import language_v1
    try:
      request = language_v1.AnalyzeSentimentRequest(
        document=language_v1.Document(
          content=text.encode('utf-8'), type_=language_v1.Document.Type.PLAIN_TEXT,
          language=_LANGUAGE),
        encoding_type=language_v1.EncodingType.UTF32)
    except UnicodeEncodeError:  # a lone surrogate cannot be sent
      raise _Failed('not valid Unicode', one_text=True) from None
    retry = Retry(predicate=_is_transient, initial=self.pause[0], maximum=self.pause[1],
                  timeout=self.deadline, on_error=lambda error: self._log_again(
                    f'google: sends requests again: {self._format(error)}'))
    try:
      response = retry(self._send)(request)
    except (exceptions.GoogleAPIError, GoogleAuthError) as e:
      error = e.cause if isinstance(e, exceptions.RetryError) else e
      reason = self._format(error)
      if isinstance(error, exceptions.TooManyRequests):
        raise _Failed(f'quota used up ({reason})') from None
      if isinstance(e, exceptions.RetryError):
        raise _Failed(f'no answer for {self.deadline:g} s ({reason})') from None
      # INVALID_ARGUMENT is about the text, unless it is about the key.
      raise _Failed(reason, one_text=isinstance(e, exceptions.InvalidArgument)
                    and 'api key' not in reason.lower()) from None
    if 'document_sentiment' not in response:  # proto3 cannot tell a missing number from 0
      raise _Failed('an answer without document_sentiment')
    score = response.document_sentiment.score
    if not -1 <= score <= 1:  # NaN included
      raise _Failed(f'an answer with score {score}, outside [-1, 1]')
    return (score + 1) / 2

  def _send(self, request: 'AnalyzeSentimentRequest') -> Any:
    """Sends one request, at the rate of all threads together."""
    with self._lock:
      now = time.monotonic()
      wait = max(self._next_request - now, 0.0)
      self._next_request = now + wait + self._interval
    if self._stop.wait(wait) or self._stop.is_set():
      raise _Stopped
    with self._lock:
      self.requests += 1
    # retry=None: the client's own does not cover 429, and does not keep to the rate.
    return self._client.analyze_sentiment(request=request, retry=None, timeout=self.timeout)

  def _format(self, error: Exception) -> str:
    """An error as one short line without the key."""
    line = ' '.join(f'{type(error).__name__}: {error}'.split())
    return (line.replace(self._secret, '***') if self._secret else line)[:300]


class _Stopped(Exception):
  """Nothing more is sent."""


class _Failed(Exception):
  """No score for a text; `one_text`: the service refuses this text and may score others."""

  def __init__(self, reason: str, *, one_text: bool = False):
    super().__init__(reason)
    self.one_text = one_text


def _raise(failures: Sequence[tuple[str, _Failed]], state: str) -> None:
  """Raises the error of the worst failure."""
  for text, reason in failures:
    if not reason.one_text:
      raise UserError(f'google: {reason}, for the text {text[:60]!r}: {state}; fix it or wait, '
                      'then the same command continues')
  text, reason = failures[0]
  at_most = ' (nothing more was sent)' if len(failures) >= MOST_REFUSED else ''
  raise UserError(f'google: {len(failures)} texts were refused{at_most}, the first {text[:60]!r} '
                  f'({reason}): {state}; remove the records of refused texts, or use another '
                  'scorer')


def _is_transient(error: Exception) -> bool:
  """Whether the same request may succeed within minutes."""
  from google.api_core import exceptions
  if isinstance(error, exceptions.TooManyRequests):
    return 'perday' not in str(error).lower().replace(' ', '')
  return isinstance(error, exceptions.ServiceUnavailable | exceptions.GatewayTimeout) and (
    'Getting metadata from plugin failed' not in str(error))  # how gRPC reports credentials


def _make_client(key: str, endpoint: str) -> 'LanguageServiceClient':
  """A client with the key, or with application-default credentials."""
  try:
    from google.api_core.client_options import ClientOptions
    from google.auth.exceptions import GoogleAuthError
    from google.cloud import language_v1
  except ImportError:
    raise UserError("the google scorer needs the package google-cloud-language: pip install "
                    "-e '.[google]' in fairjax's folder") from None
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
