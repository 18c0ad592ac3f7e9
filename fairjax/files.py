"""Files and folders that are either whole or not there."""

import contextlib
import errno
import fcntl
import hashlib
import importlib.metadata
import io
import json
import os
import pathlib
import platform
import shutil
import socket
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    os.chmod(temporary, 0o755)  # noqa: S103  as mkdir makes it
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


# Append-only files of results that cost time: what was appended survives a kill at any moment.
#
# Every line is `{"crc32": "xxxxxxxx", "entry": JSON}`; the checksum is that of the bytes of the
# entry. The first entry says what the file belongs to. A last line without its end is what an
# interruption left: it is no entry, and is cut off before more is appended. Any other damage is an
# error.

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


# Versions of what decides results: every report, config.json and `fairjax doctor` state them.

PACKAGES = ('fairjax', 'jax', 'jaxlib', 'libtpu', 'flax', 'optax', 'orbax-checkpoint', 'numpy',
            'scipy', 'sentencepiece', 'tokenizers', 'vaderSentiment', 'textblob', 'tensorflow',
            'tensorflow-text', 'seqio')


def installed_versions() -> dict[str, str]:
  """Installed versions of what decides results, by package name; absent ones are left out."""
  found = {'python': platform.python_version()}
  for name in PACKAGES:
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  return found


# What a finished folder of data holds: its manifest, its COMPLETE mark, and their checks.
#
#     manifest.json   numbers and, under `files`, bytes and SHA-256 of every file beside it
#     COMPLETE        SHA-256 of manifest.json; written last, so that a folder with it is whole
#
# Policy. At every start the manifest is compared with its mark and every file with its size, which
# costs nothing for any size of data. What is read whole is compared with its SHA-256 when it is
# read;
# tokens are compared block by block when they are first read (`fairjax.data.token_store`), so
# that no process hashes a terabyte of which it reads a part. `fairjax data check` reads everything.

MANIFEST = 'manifest.json'
COMPLETE = 'COMPLETE'


def describe_files(folder: str | os.PathLike, names: Iterable[str]) -> dict[str, dict[str, Any]]:
  """Bytes and SHA-256 (hex) of files of a folder, by name."""
  folder = pathlib.Path(folder)
  return {name: {'bytes': (folder / name).stat().st_size, 'sha256': file_sha256(folder / name)}
          for name in names}


def file_sha256(path: str | os.PathLike) -> str:
  """SHA-256 (hex) of a file, read in pieces.

  Raises:
    UserError: the file cannot be read.
  """
  try:
    with open(path, 'rb') as file:
      return hashlib.file_digest(file, 'sha256').hexdigest()
  except OSError as e:
    raise UserError(f'{path}: cannot be read ({e.strerror})') from None


def write_manifest(folder: str | os.PathLike, values: Mapping[str, Any]) -> None:
  """Writes manifest and mark; a mark that is there goes first."""
  folder = pathlib.Path(folder)
  (folder / COMPLETE).unlink(missing_ok=True)
  write_json(folder / MANIFEST, values)
  with atomic_write(folder / COMPLETE) as file:
    file.write(file_sha256(folder / MANIFEST).encode() + b'\n')


def is_complete(folder: str | os.PathLike) -> bool:
  """Whether manifest and mark are there."""
  folder = pathlib.Path(folder)
  return (folder / MANIFEST).is_file() and (folder / COMPLETE).is_file()


def read_manifest(folder: str | os.PathLike, *, again: str) -> dict[str, Any]:
  """Reads the manifest of a complete folder.

  Args:
    folder: of `write_manifest`.
    again: how the folder is made again, for messages.

  Raises:
    UserError: manifest or mark is missing, or they do not agree.
  """
  folder = pathlib.Path(folder)
  if not (folder / COMPLETE).is_file():
    raise UserError(f'{folder} is not complete (no {COMPLETE}): {again}')
  if not (folder / MANIFEST).is_file():
    raise UserError(f'{folder / MANIFEST} is missing: {again}')
  content = (folder / MANIFEST).read_bytes()
  expected = (folder / COMPLETE).read_bytes().strip().decode('ascii', errors='replace')
  found = hashlib.sha256(content).hexdigest()
  if found != expected:
    raise UserError(f'{folder / MANIFEST} is damaged: it has SHA-256 {found[:12]}, but {COMPLETE} '
                    f'says {expected[:12]!r}: {again}')
  return json.loads(content)


def check_sizes(folder: str | os.PathLike, files: Mapping[str, Mapping[str, Any]], *, again: str
                ) -> None:
  """Compares the sizes of files with their manifest.

  Raises:
    UserError: a file is missing or has another size.
  """
  for name, described in files.items():
    path = pathlib.Path(folder) / name
    if not path.is_file():
      raise UserError(f'{path} is missing: {again}')
    size, expected = path.stat().st_size, described['bytes']
    if size != expected:
      words = f'it is cut off at byte {size}' if size < expected else f'byte {expected} is too much'
      raise UserError(f'{path} has {size} bytes instead of {expected} ({words}): {again}')


def read_checked(folder: str | os.PathLike, name: str, files: Mapping[str, Mapping[str, Any]], *,
                 again: str) -> io.BytesIO:
  """Reads a whole file of a folder, compared with its SHA-256 in the manifest.

  Raises:
    UserError: the file cannot be read or is another one.
  """
  path = pathlib.Path(folder) / name
  try:
    content = path.read_bytes()
  except OSError as e:
    raise UserError(f'{path}: cannot be read ({e.strerror}): {again}') from None
  if hashlib.sha256(content).hexdigest() != files[name]['sha256']:
    raise UserError(f'{path} is damaged: its SHA-256 is not that of the manifest: {again}')
  return io.BytesIO(content)
