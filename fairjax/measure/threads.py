"""Independent pieces of NumPy work on all cores."""

import concurrent.futures
import os
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

_Item, _Result = TypeVar('_Item'), TypeVar('_Result')
INTERVAL_SEC = 5.0  # between lines of progress


def in_threads(
  work: Callable[[_Item], _Result], items: Iterable[_Item], *, what: str = '',
  log: Callable[[str], None] | None = None,
) -> list[_Result]:
  """Results of `work` for every item, in their order.

  NumPy sorts and adds without the interpreter's lock, so threads use the cores that this process
  may run on; what each piece computes must not depend on the others.

  Args:
    work: of one item.
    items: what to work on.
    what: names the items in lines of progress.
    log: called with a line of progress at most every five seconds.

  Raises:
    Exception: the first that a piece raised; pieces that have not begun are given up.
  """
  items = list(items)
  results, shown = [], time.monotonic()
  with concurrent.futures.ThreadPoolExecutor(cores()) as pool:
    try:
      for done, result in enumerate(pool.map(work, items), 1):
        results.append(result)
        if log and time.monotonic() - shown > INTERVAL_SEC:
          shown = time.monotonic()
          log(f'{done} of {len(items)} {what}')
    except BaseException:
      pool.shutdown(wait=False, cancel_futures=True)
      raise
  return results


def cores() -> int:
  """How many cores this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
