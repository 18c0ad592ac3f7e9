"""Append-only files of results that cost time: what was appended survives a kill at any moment.

Every line is `{"crc32": "xxxxxxxx", "entry": JSON}`; the checksum is that of the bytes of the
entry. The first entry says what the file belongs to. A last line without its end is what an
interruption left: it is no entry, and is cut off before more is appended. Any other damage is an
error.
"""

import fcntl
import json
import os
import pathlib
import zlib
from typing import Any

from fairjax.errors import UserError

_PREFIX, _MIDDLE, _SUFFIX = b'{"crc32": "', b'", "entry": ', b'}'
_CRC_DIGITS = 8


def read_journal(path: str | os.PathLike, *, again: str) -> tuple[Any, list[Any], int]:
  """Reads the entries of a file.

  Args:
    path: the file; one that does not exist holds nothing.
    again: how to mend a damaged file, for messages.

  Returns:
    The first entry (None if there is none), the others, and the bytes of an unfinished last line.

  Raises:
    UserError: the file is something else, or damaged before its last line; the line is named.
  """
  path = pathlib.Path(path)
  try:
    content = path.read_bytes() if path.exists() else b''
  except OSError as e:
    raise UserError(f'{path}: cannot be read ({e.strerror})') from None
  whole = content.rfind(b'\n') + 1
  entries = []
  for number, line in enumerate(content[:whole].split(b'\n')[:-1], 1):
    # Damage that left either end of what surrounds the checksum is no foreign file.
    after = line[len(_PREFIX) + _CRC_DIGITS:]
    if number == 1 and not line.startswith(_PREFIX) and not after.startswith(_MIDDLE):
      raise UserError(f'{path}:1: not a file of results that fairjax continues: name another file')
    body = line[len(_PREFIX) + _CRC_DIGITS + len(_MIDDLE):-len(_SUFFIX)]
    if line != _line(body)[:-1]:
      raise UserError(f'{path}:{number}: damaged (its checksum does not agree): {again}')
    entries.append(json.loads(body))
  return (entries[0] if entries else None), entries[1:], len(content) - whole


class JournalWriter:
  """Appends entries, one process at a time.

  Args:
    path: the file; folders are made.
    header: what the file belongs to; the first entry of a new file.
    again: how to mend a damaged file, for messages.

  Attributes:
    repaired_bytes: bytes of an interrupted append that were cut off.

  Raises:
    UserError: the file is damaged, belongs to something else, cannot be written, or another process
      is writing into it.
  """

  def __init__(self, path: str | os.PathLike, header: Any, *, again: str):
    self.path = pathlib.Path(path)
    try:
      self.path.parent.mkdir(parents=True, exist_ok=True)
      self._file = open(self.path, 'ab', buffering=0)
    except OSError as e:
      raise UserError(f'{self.path}: cannot be written ({e.strerror})') from None
    try:
      fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      found, _, self.repaired_bytes = read_journal(self.path, again=again)
      if self.repaired_bytes:
        self._file.truncate(os.path.getsize(self.path) - self.repaired_bytes)
      if found is None:
        self.append(header)
      elif found != header:
        raise UserError(f'{self.path} belongs to something else: {again}')
    except BlockingIOError:
      self._file.close()
      raise UserError(f'{self.path}: another process is writing into it: wait for it') from None
    except BaseException:
      self._file.close()
      raise

  def append(self, entry: Any) -> None:
    """Writes an entry and hands it to the disk; after an error the file is as it was before."""
    body = json.dumps(entry, allow_nan=False).encode('ascii')
    size = os.path.getsize(self.path)
    try:
      line = memoryview(_line(body))
      while line:
        line = line[self._file.write(line):]
      os.fsync(self._file.fileno())
    except OSError as e:
      os.ftruncate(self._file.fileno(), size)
      raise UserError(f'{self.path}: cannot be written ({e.strerror}): the same command continues '
                      'when this is mended') from None

  def close(self) -> None:
    """Lets other processes in."""
    self._file.close()

  def __enter__(self) -> 'JournalWriter':
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()


def _line(body: bytes) -> bytes:
  return b'%s%08x%s%s%s\n' % (_PREFIX, zlib.crc32(body), _MIDDLE, body, _SUFFIX)
