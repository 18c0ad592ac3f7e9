"""What an exit code of a worker's command means: go on, start again, or never again."""

from collections.abc import Iterable

DONE, RESTART, USER, FAULT = 'done', 'restart', 'user', 'fault'

USER_ERROR = 2
PREEMPTED = 42
RESTARTED = (PREEMPTED, *range(129, 256))
"""42: interrupted and saved. From 129 on: ended by a signal, or (134) by JAX as a peer was gone."""


def verdict(code: int) -> str:
  """Whether a worker's command is done, starts again, or must not.

  Args:
    code: exit code, 0-255.

  Returns:
    `done` (0), `restart` (42 and 129-255; bounded), `user` (2: starting again cannot help) or
    `fault` (anything else: the program broke, or was not found).

  >>> [verdict(code) for code in (0, 2, 42, 134, 1)]
  ['done', 'user', 'restart', 'restart', 'fault']
  """
  if code == 0:
    return DONE
  if code == USER_ERROR:
    return USER
  return RESTART if code in RESTARTED else FAULT


def joint_code(codes: Iterable[int]) -> int:
  """The exit code of a job from those of all its workers.

  A worker that the user can mend (2) decides, then one that broke, then one that was interrupted
  too often: the others ended because of it.

  Raises:
    ValueError: there are no codes.

  >>> joint_code([134, 2, 0]), joint_code([134, 1]), joint_code([0, 0]), joint_code([42, 134])
  (2, 1, 0, 42)
  """
  codes = list(codes)
  if not codes:
    raise ValueError('no worker ended')
  order = (USER, FAULT, RESTART, DONE)
  return min(codes, key=lambda code: (order.index(verdict(code)), code))
