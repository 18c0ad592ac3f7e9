"""Independent pieces of NumPy work on all cores."""

import concurrent.futures
import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from fairjax.progress import Progress

_Item, _Result = TypeVar('_Item'), TypeVar('_Result')


def in_threads(
  work: Callable[[_Item], _Result], items: Iterable[_Item], *, what: str = '',
  unit: str = 'items',
  log: Callable[[str], None] | None = None,
) -> list[_Result]:
  """Results of `work` for every item, in their order.

  NumPy sorts and adds without the interpreter's lock, so threads use the cores that this process
  may run on; what each piece computes must not depend on the others.

  Args:
    work: of one item.
    items: what to work on.
    what: names the work in lines of progress.
    unit: names the items there.
    log: gets lines of progress; None: none are shown.

  Raises:
    Exception: the first that a piece raised; pieces that have not begun are given up.
  """
  items = list(items)
  results = []
  with (Progress(what, len(items), unit=unit, log=log) as progress,
        concurrent.futures.ThreadPoolExecutor(cores()) as pool):
    try:
      for result in pool.map(work, items):
        results.append(result)
        progress.add()
    except BaseException:
      pool.shutdown(wait=False, cancel_futures=True)
      raise
  return results


def cores() -> int:
  """How many cores this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
