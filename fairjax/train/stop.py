"""Signals that ask a run to stop: the first is heeded at the next step, the second at once."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from fairjax import processes, signals

# Who ends a job often tells the process and its whole group (`timeout` does): SIGTERM twice in a
# moment is one request. Ctrl-C twice is two.
_ECHO_SECONDS = 1.0


class StopSignal:
  """Turns the first SIGINT or SIGTERM into a flag; a second one ends the process at once."""

  def __init__(self):
    self.received = False

  def here(self) -> bool:
    """Whether to stop after the step just done; in a group all processes get the same answer."""
    return processes.stop_here() if processes.started() else self.received

  @contextlib.contextmanager
  def installed(self) -> Iterator['StopSignal']:
    """Handles the signals inside the block (main thread only).

    A second one ends the process with code 128 + its number, as if there were no handler.
    """
    first = (0, 0.0)

    def act(number):
      nonlocal first
      now = time.monotonic()
      if number == signal.SIGTERM == first[0] and now - first[1] < _ECHO_SECONDS:
        return
      if self.received:
        os.write(2, b'fairjax: second signal: ends at once; the same command continues from the '
                    b'last checkpoint\n')
        os._exit(128 + number)
      self.received, first = True, (number, now)
      name = signal.Signals(number).name
      processes.ask_to_stop(f'process {processes.index()} received {name}')
      os.write(2, f'fairjax: {name}: stops after this step; once more ends at once\n'.encode())

    with signals.heard_by(act):
      yield self
