"""Keeps the stacks of a failed save off the screen: the failure itself is told in one line.

When a write fails (a full disk), Orbax logs the stack of each of its threads, closes the event loop
that TensorStore's other writes still report to, and forgets its other writes, each of which then
prints its stack whenever the collector finds it: hundreds of lines around the line that says what
to do.
"""

import logging
import os
import sys
import traceback

_LIBRARY = f'{os.sep}orbax{os.sep}'  # a folder of each of its files


class _WithoutStack(logging.Filter):
  """Leaves the words of a record of Orbax and takes its stack."""

  def filter(self, record: logging.LogRecord) -> bool:
    if _LIBRARY in record.pathname:
      record.exc_info = record.exc_text = record.stack_info = None
    return True


class _WithoutForgotten(logging.Filter):
  """Leaves out what asyncio says of Orbax's writes that nobody asks for their errors any more.

  A group of writes has no stack of its own. A single one is Orbax's if its stack goes through it;
  it is forgotten when another one failed before it, and that failure is the one that is told.
  """

  def filter(self, record: logging.LogRecord) -> bool:
    first = record.getMessage().partition('\n')[0]
    if not first.endswith('exception was never retrieved'):
      return True
    if first.startswith('_GatheringFuture'):
      return False
    stack = record.exc_info[2] if record.exc_info else None
    return not any(_LIBRARY in frame.f_code.co_filename
                   for frame, _ in traceback.walk_tb(stack))


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
    code = getattr(unraisable.object, 'cr_code', None)
    abandoned = code is not None and _LIBRARY in code.co_filename
    if not late and not abandoned:
      shown(unraisable)

  sys.unraisablehook = hook
