"""Keeps the stacks of a failed save off the screen: the failure itself is told in one line.

When a write fails (a full disk), Orbax logs the stack of each of its threads, and closes the event
loop that TensorStore's other writes still report to, which prints a stack for every one of them:
hundreds of lines above the line that says what to do.
"""

import logging
import sys

_LIBRARY = 'orbax'


class _WithoutStack(logging.Filter):
  """Leaves the words of a record of Orbax and takes its stack."""

  def filter(self, record: logging.LogRecord) -> bool:
    if _LIBRARY in record.pathname:
      record.exc_info = record.exc_text = record.stack_info = None
    return True


class _WithoutForgotten(logging.Filter):
  """Leaves out what asyncio says of a group of writes that nobody asks for its error any more."""

  def filter(self, record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith('_GatheringFuture exception was never retrieved')


_filter, _of_asyncio = _WithoutStack(), _WithoutForgotten()
_installed = False


def install() -> None:
  """From now on in this process; again is no harm."""
  global _installed
  logging.getLogger('absl').addFilter(_filter)
  logging.getLogger('asyncio').addFilter(_of_asyncio)
  if _installed:
    return
  _installed = True
  shown = sys.unraisablehook

  def hook(unraisable):
    late = unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == (
      'Event loop is closed')
    if not late:
      shown(unraisable)

  sys.unraisablehook = hook
