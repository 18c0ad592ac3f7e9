"""Errors that a user can mend: one line that says what, where and how to fix it.

The command line prints a `UserError` without a traceback and exits with code 2.
"""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
  """Input that the user can correct; the message is one complete line."""


class Damaged(UserError):
  """A saved file is not what was written; what can fall back to an older one does."""


class Fault(RuntimeError):
  """Ends the run for a reason that one line states (exit code 1): what happened, what is saved."""


class Preempted(Exception):
  """The work was interrupted and saved; the same command continues it (exit code 42)."""


def unknown_name(kind: str, name: str, known: Iterable[str], *, where: str = '') -> UserError:
  """Builds the error for a name that is not one of `known`, with the nearest one.

  >>> print(unknown_name('scorer', 'vadr', ['opinion', 'vader']))
  unknown scorer 'vadr': did you mean 'vader'? Known: opinion, vader
  """
  known = sorted(known)
  near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
  hint = f"did you mean '{near[0]}'? " if near else ''
  place = f' in {where}' if where else ''
  return UserError(f"unknown {kind} '{name}'{place}: {hint}Known: {', '.join(known)}")
