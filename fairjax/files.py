"""Files and folders that are either whole or not there."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any

from fairjax.errors import Damaged, UserError

# What a path answers where no file or folder can be: in a file, on a folder, in what makes none.
_PLACE_ERRORS = {errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[IO[bytes]]:
  """Opens a temporary file beside `path` for bytes; it becomes `path` when the block succeeds.

  Folders are made, the content reaches the disk before the rename, and after an error nothing is
  left and the old file is as it was.

  Raises:
    UserError: no file can be at that place.
  """
  path = pathlib.Path(path)
  with _placing(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}.')
  try:
    with os.fdopen(handle, 'wb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.chmod(temporary, 0o644)
    with _placing(path):
      os.replace(temporary, path)
  except BaseException:
    pathlib.Path(temporary).unlink(missing_ok=True)
    raise


@contextlib.contextmanager
def _placing(path: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except OSError as e:
    if e.errno not in _PLACE_ERRORS:
      raise
    raise UserError(f'{path} cannot be written ({e.strerror}): name another place') from None


def check_place(path: str | os.PathLike, *, folder: bool = False) -> pathlib.Path:
  """The path of a file (or folder) that may exist already, where work may write one at its end.

  Raises:
    UserError: it is a folder (or a file), or lies in what is no folder.
  """
  found = pathlib.Path(path)
  if os.path.lexists(found):
    if found.is_dir() != folder:
      raise UserError(f'{found} is {"no folder: name one" if folder else "a folder: name a file"}')
  else:
    above = next(p for p in found.absolute().parents if os.path.lexists(p))
    if not above.is_dir():
      raise UserError(f'{found} cannot be written: {above} is no folder')
  return found


def check_writable(path: str | os.PathLike) -> pathlib.Path:
  """`check_place` of a file, and that one can be written there; makes no folder.

  Raises:
    UserError: as `check_place`; or the rights or the disk do not let it.
  """
  found = check_place(path)
  above = next(p for p in found.absolute().parents if os.path.lexists(p))
  try:
    tempfile.TemporaryFile(dir=above).close()
  except OSError as e:
    raise UserError(f'{found} cannot be written ({above}: {e.strerror}): name another place'
                    ) from None
  return found


def refuse_existing(path: str | os.PathLike) -> pathlib.Path:
  """The path of what is about to be made.

  Raises:
    UserError: there is something at that place.
  """
  found = pathlib.Path(path)
  if found.exists() or found.is_symlink():
    raise UserError(f'{found} exists: it is not overwritten; remove it, or name another --output')
  return found


def make_folder(path: str | os.PathLike) -> pathlib.Path:
  """Makes a folder, and those above it, where there is none.

  Raises:
    UserError: no folder can be at that place.
  """
  path = pathlib.Path(path)
  with _placing(path):
    path.mkdir(parents=True, exist_ok=True)
  return path


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike) -> Iterator[pathlib.Path]:
  """Makes a temporary folder beside `path`; it becomes `path` when the block succeeds.

  Its files reach the disk before the rename, and after an error nothing is left.

  Raises:
    UserError: `path` exists, or no folder can be at that place.
  """
  path = refuse_existing(path)
  with _placing(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(dir=path.parent, prefix=f'.{path.name}.'))
  try:
    yield temporary
    for file in (p for p in temporary.rglob('*') if p.is_file()):
      with file.open('rb') as opened:
        os.fsync(opened.fileno())
    os.chmod(temporary, 0o755)
    os.rename(temporary, refuse_existing(path))
  except BaseException:
    shutil.rmtree(temporary, ignore_errors=True)
    raise


def write_sealed_json(path: str | os.PathLike, value: dict[str, Any]) -> None:
  """Writes JSON as `write_json`, with the SHA-256 of the rest under the key `sha256`."""
  value = json.loads(json.dumps(value, allow_nan=False))  # as it will be read
  write_json(path, value | {'sha256': _content_sha256(value)})


def read_sealed_json(path: str | os.PathLike, *, again: str) -> dict[str, Any]:
  """Reads what `write_sealed_json` wrote, without the digest.

  Args:
    path: the file.
    again: how to mend a damaged file, for messages.

  Raises:
    Damaged: the file is not what was written.
  """
  try:
    value = json.loads(pathlib.Path(path).read_bytes())
    digest = value.pop('sha256')
    if digest != _content_sha256(value):
      raise ValueError('its SHA-256 is another one')
  except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as e:
    raise Damaged(f'{path} is damaged ({e}): {again}') from None
  return value


def _content_sha256(value: dict[str, Any]) -> str:
  text = json.dumps(value, sort_keys=True, allow_nan=False)
  return hashlib.sha256(text.encode('utf-8')).hexdigest()


def write_json(path: str | os.PathLike, value: Any) -> None:
  """Writes JSON atomically, keys sorted; NaN is refused (`ValueError`)."""
  text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False)
  with atomic_write(path) as file:
    file.write(text.encode('utf-8') + b'\n')


class FolderLock:
  """Keeps other processes from working in a folder; `with lock:` may be nested.

  An advisory lock (`flock`) on `.lock` in the folder. The kernel takes it back when the process
  ends, however it ends, so a killed run leaves no lock behind. It holds between all processes of a
  machine, and between machines where the file system passes locks on (NFS 4, Lustre with `flock`).
  A bucket mounted with Cloud Storage FUSE does not: there each machine sees its own locks only. A
  file system that knows no locks is reported, and the work goes on without.

  Args:
    folder: made if it is missing.
    log: gets the line about a file system without locks.
  """

  def __init__(self, folder: str | os.PathLike, log: Callable[[str], None]):
    self._path, self._log = pathlib.Path(folder) / '.lock', log
    self._file: IO[str] | None = None
    self._depth = 0

  def __enter__(self) -> 'FolderLock':
    """Takes the lock.

    Raises:
      UserError: another process has it, or the folder cannot be written.
    """
    if not self._depth:
      self._take()
    self._depth += 1
    return self

  def __exit__(self, *_: object) -> None:
    self._depth -= 1
    if not self._depth and self._file is not None:
      self._file.close()
      self._file = None

  def _take(self) -> None:
    try:
      self._path.parent.mkdir(parents=True, exist_ok=True)
      file = self._path.open('a+', encoding='utf-8', errors='replace')
    except OSError as e:
      raise UserError(f'{self._path.parent} cannot be written ({e.strerror}): name a folder that '
                      'can') from None
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      file.seek(0)
      holder = file.read(200).strip() or 'unknown'
      file.close()
      raise UserError(f'{self._path.parent} is in use by another run ({holder}): wait until it has '
                      'ended, or use another --workdir') from None
    except OSError as e:
      self._log(f'WARNING: {self._path} cannot be locked ({e.strerror}): nothing keeps a second '
                'run out of this folder')
    holder = f'process {os.getpid()} on {socket.gethostname()}\n'
    file.seek(0)
    if file.read(200) != holder:
      file.truncate(0)
      file.write(holder)
      file.flush()
    self._file = file


def require_file(path: str | os.PathLike, *, made_by: str) -> pathlib.Path:
  """Returns the path of a file that an earlier verb makes.

  Raises:
    UserError: it does not exist; the line names the verb.
  """
  found = pathlib.Path(path)
  if not found.exists():
    raise UserError(f'{found} does not exist: run fairjax {made_by} with the same --config and '
                    '--workdir first')
  return found
