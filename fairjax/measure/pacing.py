"""When to call a service again: a rate limit, and pauses between attempts."""

import random
import threading
import time
from collections.abc import Callable


class TokenBucket:
  """Lets `per_minute` calls a minute pass, and up to `capacity` of them at once.

  Any window of s seconds holds at most s * per_minute / 60 + capacity calls. Threads may share it.

  Args:
    per_minute: calls a minute, above 0.
    capacity: tokens of a full bucket, at least 1.
    clock: seconds that never go back.
    sleep: waits for some seconds.

  >>> waits = []
  >>> bucket = TokenBucket(60, clock=lambda: 0.0, sleep=waits.append)
  >>> for _ in range(3): bucket.take()
  >>> waits
  [1.0, 2.0]
  """

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
  """Seconds before attempt number `attempt` + 1: uniform in [0, min(most, base * 2^attempt)].

  Spreading the whole range, not only its end, keeps clients that failed together from coming back
  together.
  """
  return random.uniform(0, min(most, base * 2 ** min(attempt, 60)))
