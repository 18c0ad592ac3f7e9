"""Errors that a user can fix: one line that says what, where and how.

The command line prints a `UserError` without a traceback and exits with code 2.
"""

import difflib
import unicodedata
from collections.abc import Iterable


class UserError(ValueError):
  """Input that the user can correct; the message is one complete line."""

  def __str__(self) -> str:
    return printable(super().__str__()).replace('\n', '\\n')


class Damaged(UserError):
  """A saved file is not what was written; an older one may do."""


class Fault(RuntimeError):
  """Ends the run for a reason that one line states (exit code 1): what happened, what is saved."""


class Preempted(Exception):
  """The work was interrupted and saved; the same command continues it (exit code 42)."""


def printable(text: str) -> str:
  """Text with escapes for what a terminal would obey or hide; line feeds stay."""
  return ''.join(c if c.isprintable() or c == '\n' else ascii(c)[1:-1] for c in text)


def first_line(error: BaseException) -> str:
  """The first line of an error's message, or its type where it has none."""
  return next(iter(str(error).strip().splitlines()), type(error).__name__)


def unknown_name(kind: str, name: str, known: Iterable[str], *, where: str = '') -> UserError:
  """The error for a name that is not one of `known`; suggests the nearest one.

  Where the two look alike, it names the characters that differ instead.
  """
  known, name = sorted(known), str(name)
  alike = [k for k in known if _looks(k) == _looks(name)]
  near = alike or difflib.get_close_matches(name, known, n=1, cutoff=0.7)
  hint = f"did you mean '{near[0]}'? " if near else ''
  foreign = sorted({c for c in name if not c.isascii() and not (near and c in near[0])})
  # Invisible characters, other compositions, or letters of another script that look Latin.
  if foreign and (alike or near and near[0].isascii() and any(
      not unicodedata.name(c, '').startswith('LATIN') for c in foreign)):
    hint = (f"it looks like '{near[0]}', written with "
            f"{', '.join(f'U+{ord(c):04X}' for c in foreign)}. ")
    name = ascii(name)[1:-1]
  place = f' in {where}' if where else ''
  return UserError(f"unknown {kind} '{name}'{place}: {hint}Known: {', '.join(known)}")


def _looks(name: str) -> str:
  """A name as it looks: composed, without characters of no width."""
  return ''.join(c for c in unicodedata.normalize('NFKC', name)
                 if unicodedata.category(c) != 'Cf')
