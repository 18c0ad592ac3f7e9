"""SIGINT and SIGTERM, heeded while the main thread computes or compiles."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def heard_by(act: Callable[[int], None]) -> Iterator[None]:
  """Has a thread call `act(number)` for each of the signals in the block (main thread only).

  A handler written in Python would wait until the main thread has compiled or computed.
  """
  def handle(number, frame):
    pass  # the thread below acts

  def hear():
    while data := reader.recv(64):
      for number in data:
        if number in NUMBERS:
          act(number)

  reader, writer = socket.socketpair()
  writer.setblocking(False)
  thread = threading.Thread(target=hear, name='signals', daemon=True)
  previous = {number: signal.signal(number, handle) for number in NUMBERS}
  before = signal.set_wakeup_fd(writer.fileno())
  thread.start()
  try:
    yield
  finally:
    signal.set_wakeup_fd(before)
    for number, handler in previous.items():
      signal.signal(number, handler)
    writer.close()
    thread.join()
    reader.close()


@contextlib.contextmanager
def ended_at_once(line: str) -> Iterator[None]:
  """One of the signals in the block ends the process, with `line` and code 128 + its number.

  So a shell counts a process that a signal ended. In a thread that is not the main one, nothing.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return

  def end(number):
    os.write(2, f'fairjax: {line}\n'.encode())
    os._exit(128 + number)  # flushes nothing: the main thread may be writing and hold the stream

  with heard_by(end):
    yield
