"""Files that are either complete or absent: atomic writes, seals, append-only files, locks.

Each of these exists once, here: `write_sealed_json` (JSON with its own SHA-256, e.g. the
`manifest.json` of a folder, written last), `JsonLines` (an append-only file), `FolderLock`,
`file_sha256`.
"""

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
import secrets
import shutil
import socket
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any, NamedTuple

from fairjax.errors import Damaged, UserError

# Errors of a path at which no file or folder can be made.
_PLACE_ERRORS = {errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[IO[bytes]]:
  """Opens a temporary file beside `path` for bytes; it becomes `path` when the block succeeds.

  A link stays, and its target is written. A device or a pipe gets the bytes themselves.
  """
  path = pathlib.Path(path)
  if path.exists() and not (path.is_file() or path.is_dir()):
    with open(path, 'wb') as file:
      yield file
    return
  path = pathlib.Path(os.path.realpath(path)) if path.is_symlink() else path
  with _placing(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    file = open(temporary, 'xb')
  try:
    with file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    with _placing(path):
      os.replace(temporary, path)
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise


def _beside(path: pathlib.Path) -> pathlib.Path:
  """A new hidden name beside a path; what is made there has the rights that the umask leaves."""
  return path.parent / f'.{path.name}.{secrets.token_hex(4)}'


@contextlib.contextmanager
def _placing(path: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except OSError as e:
    if e.errno not in _PLACE_ERRORS:
      raise
    raise UserError(f'{path} cannot be written ({e.strerror}): name another place') from None


def check_place(path: str | os.PathLike, *, folder: bool = False) -> pathlib.Path:
  """The path of a file (or folder), existing or not; `UserError` where none can be written."""
  # Nothing is made, but for a moment a file without a name, which asks rights and disk.
  found, real = pathlib.Path(path), pathlib.Path(os.path.realpath(path))
  if found.exists():
    if found.is_dir() != folder:
      raise UserError(f'{found} is {"no folder: name one" if folder else "a folder: name a file"}')
    if not (folder or found.is_file()):
      return found  # a device or a pipe
    above = real if folder else real.parent
  else:
    above = next(p for p in (real, *real.parents) if os.path.lexists(p))
    if not above.is_dir():
      raise UserError(f'{found} cannot be written: {above} is no folder')
  try:
    tempfile.TemporaryFile(dir=above).close()
  except OSError as e:
    raise UserError(f'{found} cannot be written ({above}: {e.strerror}): name another place'
                    ) from None
  return found


def check_brackets(folder: pathlib.Path) -> None:
  """Refuses a folder of checkpoints that Orbax, which takes brackets for a pattern, cannot find."""
  if '[' in str(folder.resolve()):
    raise UserError(f'{folder.resolve()}: no checkpoint can be written into a folder with [ in its '
                    'path: name another')


def refuse_existing(path: str | os.PathLike) -> pathlib.Path:
  """The path of what will be made; `UserError` if something is there."""
  found = pathlib.Path(path)
  if os.path.lexists(found):
    raise UserError(f'{found} exists: it is not overwritten; remove it, or name another --output')
  return found


def make_folder(path: str | os.PathLike) -> pathlib.Path:
  """Makes a folder, and those above it, where there is none; `UserError` where none can be."""
  path = pathlib.Path(path)
  with _placing(path):
    path.mkdir(parents=True, exist_ok=True)
  return path


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike, *, replace: bool = False) -> Iterator[pathlib.Path]:
  """Makes a temporary folder beside `path`; it becomes `path` when the block succeeds."""
  path = pathlib.Path(path) if replace else refuse_existing(path)
  with _placing(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    # To replace, one process at a time (`FolderLock`), which removes what a killed one left.
    temporary = path.parent / f'.{path.name}.unfinished' if replace else _beside(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
  try:
    yield temporary
    for file in (p for p in temporary.rglob('*') if p.is_file()):
      with file.open('rb') as opened:
        os.fsync(opened.fileno())
    if replace and path.exists():
      shutil.rmtree(path)
    os.rename(temporary, path if replace else refuse_existing(path))
  except BaseException:
    shutil.rmtree(temporary, ignore_errors=True)
    raise


def require_file(path: str | os.PathLike, *, made_by: str) -> pathlib.Path:
  """The path of a file that the verb `made_by` makes; `UserError` if it is missing."""
  found = pathlib.Path(path)
  if not found.exists():
    raise UserError(f'{found} does not exist: run fairjax {made_by} with the same --config and '
                    '--workdir first')
  return found


def write_file(path: str | os.PathLike, content: bytes | str) -> None:
  """Writes bytes, or a text in UTF-8, atomically; half a character becomes its escape."""
  with atomic_write(path) as file:
    file.write(content.encode('utf-8', 'backslashreplace') if isinstance(content, str) else content)


def write_json(path: str | os.PathLike, value: Any) -> None:
  """Writes JSON atomically, keys sorted; NaN is refused (`ValueError`)."""
  write_file(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + '\n')


def write_sealed_json(path: str | os.PathLike, value: Mapping[str, Any]) -> None:
  """Writes JSON as `write_json`, with the SHA-256 of the rest under the key `sha256`."""
  sealed = json.loads(json.dumps(value, allow_nan=False))  # as it will be read
  write_json(path, sealed | {'sha256': json_sha256(sealed)})


def read_sealed_json(path: str | os.PathLike, *, again: str) -> dict[str, Any]:
  """Reads what `write_sealed_json` wrote; `again` says how to repair a damaged file."""
  try:
    value = json.loads(pathlib.Path(path).read_bytes())
    if 'sha256' not in value:
      raise ValueError('it has no SHA-256: damaged, or of another version of fairjax')
    if value.pop('sha256') != json_sha256(value):
      raise ValueError('its SHA-256 differs from its content')
  except OSError as e:
    raise Damaged(f'{path} cannot be read ({e.strerror}): {again}') from None
  except (ValueError, AttributeError, TypeError, RecursionError) as e:
    raise Damaged(f'{path} is damaged ({e}): {again}') from None
  return value


def json_sha256(value: Any) -> str:
  """SHA-256 (hex) of the canonical JSON of plain values."""
  text = json.dumps(value, sort_keys=True, allow_nan=False)
  return hashlib.sha256(text.encode('utf-8')).hexdigest()


def file_sha256(path: str | os.PathLike) -> str:
  """SHA-256 (hex) of a file, read in pieces."""
  try:
    with open(path, 'rb') as file:
      return hashlib.file_digest(file, 'sha256').hexdigest()
  except OSError as e:
    raise UserError(f'{path}: cannot be read ({e.strerror})') from None


# A complete folder of data holds manifest.json: sealed, written last, with the bytes and SHA-256 of
# the other files. Every start compares the seal and the sizes, which takes no time for any size of
# data. Small files are compared with their SHA-256 whenever they are read, tokens when a process
# first opens them (`fairjax.data.token_store`); `fairjax step check-data` reads everything.

MANIFEST = 'manifest.json'


def is_complete(folder: str | os.PathLike) -> bool:
  """Whether a folder has its manifest, which is written last."""
  return (pathlib.Path(folder) / MANIFEST).is_file()


def read_manifest(folder: str | os.PathLike, *, again: str) -> dict[str, Any]:
  """The manifest of a complete folder; `again` says how the folder is made again."""
  if not is_complete(folder):
    raise UserError(f'{folder} is not complete (no {MANIFEST}): {again}')
  return read_sealed_json(pathlib.Path(folder) / MANIFEST, again=again)


def describe_files(folder: str | os.PathLike, names: Iterable[str]) -> dict[str, dict[str, Any]]:
  """Bytes and SHA-256 (hex) of files of a folder, by name."""
  folder = pathlib.Path(folder)
  return {name: {'bytes': (folder / name).stat().st_size, 'sha256': file_sha256(folder / name)}
          for name in names}


def check_sizes(folder: str | os.PathLike, files: Mapping[str, Mapping[str, Any]], *, again: str
                ) -> None:
  """Compares the sizes of files with what `describe_files` said of them."""
  for name, described in files.items():
    path = pathlib.Path(folder) / name
    if not path.is_file():
      raise UserError(f'{path} is missing: {again}')
    size, expected = path.stat().st_size, described['bytes']
    if size != expected:
      raise UserError(f'{path} has {size} bytes instead of {expected} '
                      f'({"cut off" if size < expected else "too long"}): {again}')


def read_checked(folder: str | os.PathLike, name: str, files: Mapping[str, Mapping[str, Any]], *,
                 again: str) -> io.BytesIO:
  """Reads a whole file of a folder, compared with its SHA-256 in `files`."""
  path = pathlib.Path(folder) / name
  try:
    content = path.read_bytes()
  except OSError as e:
    raise UserError(f'{path}: cannot be read ({e.strerror}): {again}') from None
  if hashlib.sha256(content).hexdigest() != files[name]['sha256']:
    raise UserError(f'{path} is damaged: its SHA-256 is not that of the manifest: {again}')
  return io.BytesIO(content)


class AppendOnly:
  """A file that only grows, open for one process; a failed append leaves it as it was."""
  # `sync_seconds`: how often appended bytes are forced to the disk; 0: each time. A killed process
  # loses nothing that was appended, a power cut what came since. Threads may share it.

  def __init__(self, path: str | os.PathLike, *, sync_seconds: float = 0.0):
    self.path, self._sync_seconds = pathlib.Path(path), sync_seconds
    self._thread_lock, self._synced = threading.Lock(), time.monotonic()
    try:
      self.path.parent.mkdir(parents=True, exist_ok=True)
      self._file = open(self.path, 'ab', buffering=0)
    except OSError as e:
      raise UserError(f'{self.path}: cannot be written ({e.strerror})') from None
    try:
      _lock(self._file)
    except BlockingIOError:
      self._file.close()
      raise UserError(f'{self.path}: another process is writing into it: wait for it') from None

  def append_bytes(self, content: bytes) -> None:
    """Writes bytes in one piece; they are in the file when this returns."""
    with self._thread_lock:
      size = os.path.getsize(self.path)
      try:
        left = memoryview(content)
        while left:
          left = left[self._file.write(left):]
        if time.monotonic() - self._synced >= self._sync_seconds:
          os.fsync(self._file.fileno())
          self._synced = time.monotonic()
      except OSError as e:
        os.ftruncate(self._file.fileno(), size)
        raise UserError(f'{self.path}: cannot be written ({e.strerror}): the same command '
                        'continues when this is fixed') from None

  def close(self) -> None:
    """Forces everything to the disk and lets other processes in."""
    if not self._file.closed:
      os.fsync(self._file.fileno())
      self._file.close()

  def __enter__(self):
    return self

  def __exit__(self, *_: object) -> None:
    self.close()


# Append-only JSON lines of results that cost time. Each line is an object whose first field `crc32`
# is the checksum of the others. The first object says what the file belongs to. A last line without
# its end is what a kill left: it is ignored, and cut off before more is appended.

class Lines(NamedTuple):
  """Content of a file of JSON lines."""

  entries: list[dict[str, Any]]  # without their checksums
  damaged: list[int]  # numbers of other lines, from 1
  torn_bytes: int  # of a last line without its end


def json_line(values: Mapping[str, Any]) -> bytes:
  """A line of JSON with its checksum."""
  content = json.dumps(values, allow_nan=False).encode('ascii')
  begin = b'{"crc32": %d' % zlib.crc32(content)
  return begin + (b', ' if values else b'') + content[1:] + b'\n'


def read_json_lines(path: str | os.PathLike) -> Lines:
  """Reads a file of JSON lines; one that does not exist is empty."""
  path = pathlib.Path(path)
  try:
    content = path.read_bytes() if path.exists() else b''
  except OSError as e:
    raise UserError(f'{path}: cannot be read ({e.strerror})') from None
  *lines, torn = content.split(b'\n')
  entries, damaged = [], []
  for number, line in enumerate(lines, 1):
    try:
      values, rest = json.loads(line), line.partition(b', ')[2]
      if values.pop('crc32') != zlib.crc32(b'{' + (rest or b'}')):
        raise ValueError
      entries.append(values)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
      damaged.append(number)
  return Lines(entries, damaged, len(torn))


class JsonLines(AppendOnly):
  """Appends entries to JSON lines that belong to `header`, one process at a time."""
  # Opening cuts off a torn last line and reads the `entries` after the header. A file that is
  # damaged elsewhere or has another header is refused unchanged; `again` says how to repair it.

  def __init__(self, path: str | os.PathLike, header: Mapping[str, Any], *, again: str,
               sync_seconds: float = 0.0):
    super().__init__(path, sync_seconds=sync_seconds)
    try:
      content = read_json_lines(self.path)
      found, self.entries = _split_header(content, self.path, again)
      if found not in (None, header):
        raise UserError(f'{self.path} belongs to {describe_header(found)}, not to '
                        f'{describe_header(header)}: {again}')
      if found is None and not json_line(header).startswith(self.path.read_bytes()):
        raise UserError(f'{self.path}:1: not a file of fairjax: name another file')
      self.torn_bytes = content.torn_bytes
      if self.torn_bytes:
        self._file.truncate(os.path.getsize(self.path) - self.torn_bytes)
      if found is None:
        self.append(header)
    except BaseException:
      self._file.close()
      raise

  def append(self, entry: Mapping[str, Any]) -> None:
    """Appends an entry."""
    self.append_bytes(json_line(entry))


def read_entries(path: str | os.PathLike, *, again: str
                 ) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
  """The header of a `JsonLines` file (None if it has none) and the other entries."""
  return _split_header(read_json_lines(path), path, again)


def _split_header(found: Lines, path: str | os.PathLike, again: str
                  ) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
  if found.damaged[:1] == [1]:
    raise UserError(f'{path}:1: not a file of this version of fairjax, or damaged: {again}, or '
                    'name another file')
  if found.damaged:
    raise UserError(f'{path}:{found.damaged[0]}: damaged (its checksum differs): {again}')
  return (found.entries[0] if found.entries else None), found.entries[1:]


def describe_header(header: Mapping[str, Any]) -> str:
  """A header for a message: 'scorer vader, fingerprint 0f3a...'."""
  return ', '.join(f'{name} {str(value)[:40]}' for name, value in header.items())


def _lock(file: IO[Any]) -> str | None:
  """Locks a file, or raises `BlockingIOError`; returns why if its file system has no locks."""
  # The kernel releases it however the process ends. It holds between machines where the file system
  # passes locks on (NFS 4, Lustre with `flock`; not Cloud Storage FUSE).
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise
  except OSError as e:
    return e.strerror or str(e)
  return None


class FolderLock:
  """Keeps other processes from working in a folder; `with lock:` may be nested."""

  def __init__(self, folder: str | os.PathLike, log: Callable[[str], None]):
    self._path, self._log = pathlib.Path(folder) / '.lock', log
    self._file: IO[str] | None = None
    self._depth = 0

  def __enter__(self) -> 'FolderLock':
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
      problem = _lock(file)
    except BlockingIOError:
      file.seek(0)
      holder = file.read(200).strip() or 'unknown'
      file.close()
      raise UserError(f'{self._path.parent} is in use by another run ({holder}): wait until it has '
                      'ended, or name another folder') from None
    if problem:
      self._log(f'WARNING: {self._path} cannot be locked ({problem}): nothing keeps a second '
                'run out of this folder')
    holder = f'process {os.getpid()} on {socket.gethostname()}\n'
    file.seek(0)
    if file.read(200) != holder:
      file.truncate(0)
      file.write(holder)
      file.flush()
    self._file = file


# Versions of what decides results: every report, config.json and `fairjax doctor` state them.

PACKAGES = ('fairjax', 'jax', 'jaxlib', 'libtpu', 'flax', 'optax', 'orbax-checkpoint', 'numpy',
            'scipy', 'numba', 'sentencepiece', 'tokenizers', 'vaderSentiment', 'textblob',
            'tensorflow', 'tensorflow-text', 'seqio')


def installed_versions() -> dict[str, str]:
  """Installed versions of `PACKAGES` and Python, by name; absent ones are left out."""
  found = {'python': platform.python_version()}
  for name in PACKAGES:
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  return found
