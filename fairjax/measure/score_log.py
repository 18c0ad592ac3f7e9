"""Scores that were paid for: an append-only file that survives a kill at any moment.

Line 1 is `{"scorer", "fingerprint", "format"}`, every further line `{"text": digest, "score": s}`
with s in [-1, 1] as the service gave it. Texts themselves are not kept. Each line is handed to the
operating system in one piece as soon as its score is there, so a killed process loses no line; a
power cut loses those of the last second. A line that was cut off is removed when the file is opened
again.
"""

import fcntl
import json
import os
import pathlib
import threading
import time
from typing import Any

from fairjax.errors import UserError

FORMAT = 1
_SYNC_SECONDS = 1.0


class ScoreLog:
  """The file of one scorer, open for one process.

  Use it in a `with` block; `append` may be called from several threads.

  Args:
    path: the file; folders are made.
    scorer: name of the scorer.
    fingerprint: of everything that decides a score.

  Attributes:
    known: digest of a text -> score.
    repaired_bytes: bytes of an interrupted line that were removed.

  Raises:
    UserError: the file is damaged (its line is named), is something else or another scorer's (then
      not a byte of it is changed), another process has it open, or the disk is full.
  """

  def __init__(self, path: str | os.PathLike, *, scorer: str, fingerprint: str):
    self.path = pathlib.Path(path)
    self._header: dict[str, Any] = {'scorer': scorer, 'fingerprint': fingerprint, 'format': FORMAT}
    self._lock = threading.Lock()
    self._synced, self._dirty = time.monotonic(), False
    self.known: dict[bytes, float] = {}
    self.repaired_bytes = 0
    try:
      self.path.parent.mkdir(parents=True, exist_ok=True)
      self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as e:
      raise UserError(f'{self.path}: cannot keep scores there: {e.strerror}') from None
    try:
      self._open()
    except BaseException:
      os.close(self._file)
      raise

  def append(self, digest: bytes, score: float) -> None:
    """Keeps one score; it is in the file when this returns."""
    with self._lock:
      self._write({'text': digest.hex(), 'score': score})
      self.known[digest] = score
      if time.monotonic() - self._synced > _SYNC_SECONDS:
        os.fsync(self._file)
        self._synced, self._dirty = time.monotonic(), False

  def close(self) -> None:
    """Hands everything to the disk and lets other processes in."""
    if self._dirty:
      os.fsync(self._file)
    os.close(self._file)

  def __enter__(self) -> 'ScoreLog':
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()

  def _open(self) -> None:
    """Locks, repairs and reads the file."""
    try:
      fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise UserError(f'{self.path}: another process is writing scores into it: wait for it, or '
                      'choose another file') from None
    content = self.path.read_bytes()
    whole = content.rfind(b'\n') + 1
    lines = content[:whole].splitlines()
    # Whose file it is comes first: nothing of another one may be cut off.
    if lines:
      self._check_header(lines[0])
    elif not _line(self._header).startswith(content):
      raise UserError(f'{self.path}:1: not a file of kept scores: choose another file')
    self.repaired_bytes = len(content) - whole
    if self.repaired_bytes:
      os.ftruncate(self._file, whole)
    if not lines:
      self._write(self._header)
      return
    for number, line in enumerate(lines[1:], 2):
      try:
        entry = json.loads(line)
        score = float(entry['score'])
        if not -1 <= score <= 1:
          raise ValueError
        self.known[bytes.fromhex(entry['text'])] = score
      except (ValueError, KeyError, TypeError):
        raise UserError(f'{self.path}:{number}: not a kept score: remove this line to have its '
                        'text scored again') from None

  def _check_header(self, line: bytes) -> None:
    found = _header_of(line)
    if found is None:
      raise UserError(f'{self.path}:1: not a file of kept scores: choose another file')
    if found != self._header:
      raise UserError(
        f"{self.path}: scores of {found.get('scorer')} ({str(found['fingerprint'])[:12]}, format "
        f"{found.get('format')}), not of {self._header['scorer']} "
        f"({self._header['fingerprint'][:12]}, format {FORMAT}): choose another file")

  def _write(self, entry: dict[str, Any]) -> None:
    data, size = _line(entry), os.fstat(self._file).st_size
    self._dirty = True
    try:
      while data:
        data = data[os.write(self._file, data):]
    except OSError as e:  # another thread's line must not be joined to half of this one
      os.ftruncate(self._file, size)
      raise UserError(f'{self.path}: cannot keep scores there: {e.strerror}: make room, then the '
                      'same command continues') from None


def holds_paid_scores(path: str | os.PathLike) -> bool:
  """Whether a file is a `ScoreLog`'s; nothing of it is changed."""
  with open(path, 'rb') as file:
    return _header_of(file.readline()) is not None


def _header_of(line: bytes) -> dict[str, Any] | None:
  """What line 1 says, if it is a header."""
  try:
    found = json.loads(line)
  except ValueError:
    return None
  return found if isinstance(found, dict) and 'fingerprint' in found else None


def _line(entry: dict[str, Any]) -> bytes:
  return json.dumps(entry, allow_nan=False).encode('ascii') + b'\n'
