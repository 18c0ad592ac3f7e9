"""Word lists of users: pairs of words, and plain lists, as JSON or one a line."""

import json
import os
from typing import Any

from fairjax.errors import UserError
from fairjax.inputs import is_whole, read_text


def read_list(path: str | os.PathLike, what: str) -> list[tuple[Any, str]]:
  """Entries of a JSON list, or the lines of a text file, with the place of each.

  Lines that are empty or begin with `#` are passed.

  Args:
    path: a file whose first character that is no space is `[` is JSON; others are text.
    what: names the list in messages.

  Returns:
    (entry, place) in order: JSON values, or lines without white space around them.

  Raises:
    UserError: the file is missing, not UTF-8, not JSON, or holds no entry.
  """
  text = read_text(path, what=what)
  if text.lstrip().startswith('['):
    try:
      entries = [(entry, f'{path}, entry {i}') for i, entry in enumerate(json.loads(text), 1)]
    except (ValueError, RecursionError) as e:
      raise UserError(f'{path}: not JSON ({e}): mend the file') from None
  else:
    entries = [(line.strip(), f'{path}:{i}') for i, line in enumerate(text.split('\n'), 1)
               if line.strip() and not line.lstrip().startswith('#')]
  for entry, where in entries:
    if not is_whole(entry):
      raise UserError(f'{where}: holds half a character (a lone surrogate) or NUL: mend it')
  if not entries:
    raise UserError(f'{path}: {what}: the list is empty')
  return entries


def read_words(path: str | os.PathLike, what: str) -> list[str]:
  """Words of a JSON list of texts, or one a line; equal ones once.

  Raises:
    UserError: see `read_list`, or an entry that is no word.
  """
  words = []
  for entry, where in read_list(path, what):
    if not isinstance(entry, str) or not entry.strip():
      raise UserError(f'{where}: {entry!r} is no word')
    words.append(entry.strip())
  return list(dict.fromkeys(words))


def read_pairs(path: str | os.PathLike, what: str) -> list[tuple[str, str]]:
  """Pairs of words: JSON lists of two texts, or two words a line (one space or tab between).

  Raises:
    UserError: see `read_list`; an entry that is no pair, twice the same word, or a pair twice.
  """
  pairs: list[tuple[str, str]] = []
  for entry, where in read_list(path, what):
    found = entry.split() if isinstance(entry, str) else entry
    if not isinstance(found, list) or len(found) != 2 or not all(
        isinstance(w, str) and w.strip() for w in found):
      raise UserError(f'{where}: {entry!r} is no pair of words')
    first, second = (w.strip() for w in found)
    if first == second:
      raise UserError(f"{where}: '{first}' is paired with itself")
    if (first, second) in pairs or (second, first) in pairs:
      raise UserError(f"{where}: the pair '{first}', '{second}' is given twice")
    pairs.append((first, second))
  return pairs
