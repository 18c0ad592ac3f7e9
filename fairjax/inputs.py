"""Input files, recognised by their first bytes, not by their names.

Every reader of the package opens its files here. gzip, bzip2, xz, Zstandard and zip archives of one
file are unpacked. A UTF-8 byte order mark is removed. The error for a Git LFS pointer, another
encoding or another format names what the file is. `-` is the standard input. A pipe is copied into
a temporary file, because files are read more than once.
"""

import bz2
import collections
import gzip
import hashlib
import io
import lzma
import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from typing import IO, Any

from fairjax.errors import UserError

_BEGIN = 512  # bytes that decide
_BLOCK = 1 << 17
_MOST_LAYERS = 3  # of compression, one in the other
_BOM = b'\xef\xbb\xbf'
_PARQUET = b'PAR1'
_LFS = b'version https://git-lfs.github.com/spec/'
_PACKED = (
  ('gzip', re.compile(rb'\x1f\x8b')),
  ('bzip2', re.compile(rb'BZh[1-9](1AY&SY|\x17rE8P\x90)')),
  ('xz', re.compile(rb'\xfd7zXZ\0')),
  ('Zstandard', re.compile(rb'\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18')),
  ('zip', re.compile(rb'PK(\x03\x04|\x05\x06|\x07\x08)')))
_ENCODINGS = ((b'\xff\xfe\0\0', 'UTF-32'), (b'\0\0\xfe\xff', 'UTF-32'),
              (b'\xff\xfe', 'UTF-16'), (b'\xfe\xff', 'UTF-16'))
_WEB_PAGE = re.compile(rb'\s*<(!doctype\s+html|html[\s>])', re.IGNORECASE)
PICKLE = ('a pickle, which can run any code when it is read, so it is not read: convert it where '
           'you trust it, for example to one JSON object a line')
# (place of the mark, the mark, what the file is and what to do)
_FOREIGN = (
  (0, b'%PDF-', 'a PDF document: save its text'),
  (0, b'\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1', 'an old Excel or Word file (.xls, .doc): save it as CSV '
   'or as text'),
  (0, b'ARROW1\0', 'an Arrow file: write it as Parquet'),
  (0, b'\xff' * 4, 'an Arrow stream, as of Hugging Face datasets: write Parquet (to_parquet)'),
  (0, b'\x93NUMPY', 'a NumPy array (.npy): convert it to text'),
  (0, b'GGUF', 'model weights (GGUF): name a text file'),
  (0, b'\x89PNG\r\n\x1a\n', 'an image: name a text file'),
  (0, b'\xff\xd8\xff', 'an image: name a text file'),
  (257, b'ustar', 'a tar archive: unpack it and name one of its files'),
  (0, _PARQUET, 'a Parquet file, which is read as records (--records) and as a corpus '
   '(layout=parquet): save it as text'))
# (a member whose name ends so, what the archive is and what to do)
_ARCHIVES = (
  ('xl/workbook.xml', 'an Excel workbook: save it as CSV (UTF-8)'),
  ('word/document.xml', 'a Word document: save it as text (UTF-8)'),
  ('META-INF/manifest.xml', 'an OpenDocument file: save it as CSV or text (UTF-8)'),
  ('data.pkl', f'a PyTorch file, in which there is {PICKLE}'),
  ('.npy', 'NumPy arrays (.npz): convert them to text'))

_kept: dict[tuple[int, int, str], IO[bytes]] = {}  # of a pipe -> what came out of it


def open_input(path: str | os.PathLike, *, what: str = 'file', parquet: bool = False,
               counts: collections.Counter | None = None) -> io.BufferedReader:
  """Opens a file (or a pipe, or `-`) for its content: unpacked, without a byte order mark."""
  # Damage of a compressed file is raised where it is read, with file and line. `what` names the
  # file in the message that there is none; `counts` gets 1 more `byte_order_marks` where there was
  # one.
  path = os.fspath(path)
  file = raw = _open(path, what)
  try:
    for _ in range(_MOST_LAYERS):
      begin = file.peek(_BEGIN)[:_BEGIN]
      kind = next((kind for kind, mark in _PACKED if mark.match(begin)), None)
      if kind is None:
        break
      file = io.BufferedReader(_Unpacked(path, kind, _unpack(path, kind, file), raw), _BLOCK)
    if begin.startswith(_BOM):
      file.read(len(_BOM))
      begin = begin[len(_BOM):]
      if counts is not None:
        counts['byte_order_marks'] += 1
    problem = None if parquet and begin.startswith(_PARQUET) else _problem(begin)
    if problem:
      raise UserError(f'{path} is {problem}')
    return file
  except OSError as e:
    file.close()
    raise UserError(f'{path} cannot be read ({e.strerror or e})') from None
  except BaseException:
    file.close()
    raise


def read_text(path: str | os.PathLike, *, what: str = 'file') -> str:
  """The whole text of a file, see `open_input`; its lines end in LF, whatever ended them."""
  with open_input(path, what=what) as file:
    try:
      content = file.read()
    except OSError as e:
      raise UserError(f'{path} cannot be read ({e.strerror or e})') from None
  text = decode(content, path)
  if '\0' in text:
    line = text.count('\n', 0, text.index('\0')) + 1
    raise UserError(f'{path}:{line}: the line holds a NUL character: remove it')
  text = text.replace('\r\n', '\n')
  return text if '\n' in text else text.replace('\r', '\n')


def read_text_lines(path: str | os.PathLike, *, what: str = 'file') -> list[str]:
  """Lines of a text file, without their ends; raises as `read_text`."""
  lines = read_text(path, what=what).split('\n')
  return lines[:-1] if lines[-1] == '' else lines


def decode(content: bytes, path: str | os.PathLike, line: int = 1) -> str:
  """Text of bytes that begin at a line of a file."""
  try:
    return content.decode('utf-8')
  except UnicodeDecodeError as e:
    raise UserError(f'{path}:{line + content.count(10, 0, e.start)}: {not_utf8(e)}: save the file '
                    'as UTF-8') from None


def not_utf8(error: UnicodeDecodeError, what: str = 'line') -> str:
  """The byte that is wrong in a text, or in the last of several lines, for a message."""
  start = error.object.rfind(b'\n', 0, error.start) if what == 'line' else -1
  return (f'not UTF-8 (byte {error.start - start} of the {what} is '
          f'0x{error.object[error.start]:02x})')


def is_whole(value: Any) -> bool:
  """Whether no text in a value (of JSON) holds half a character (a lone surrogate) or NUL."""
  if isinstance(value, str):
    if not value.isascii():
      try:
        value.encode('utf-8')
      except UnicodeEncodeError:
        return False
    return '\0' not in value
  if isinstance(value, dict):
    return all(map(is_whole, value)) and all(map(is_whole, value.values()))
  return not isinstance(value, list) or all(map(is_whole, value))


def replace_broken(value: Any) -> Any:
  """The value with U+FFFD in place of what `is_whole` looks for."""
  if isinstance(value, str):
    return re.sub('[\ud800-\udfff\0]', '\ufffd', value)
  if isinstance(value, dict):
    return {replace_broken(k): replace_broken(v) for k, v in value.items()}
  return [replace_broken(v) for v in value] if isinstance(value, list) else value


def read_secret(variable: str) -> str:
  """A key from the environment, '' without one; no message shows it."""
  key = os.environ.get(variable, '').strip()
  if not all('!' <= c <= '~' for c in key):
    raise UserError(f'{variable} holds white space or a character that no API key has: set it to '
                    'the key alone')
  return key


def refuse_pointer(path: str | os.PathLike) -> None:
  """Checks that a file is there itself, and not as a pointer of Git LFS or git-annex."""
  with open(path, 'rb') as file:
    words = _pointer(file.read(_BEGIN))
  if words:
    raise UserError(f'{os.fspath(path)} is {words}')


def input_sha256(path: str | os.PathLike) -> str:
  """SHA-256 (hex) of a file as it is, or of what came out of a pipe."""
  with _open(os.fspath(path), 'file') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def is_pipe(path: str | os.PathLike) -> bool:
  """Whether a path is no file but what can be read once only, as `-`, `/dev/stdin`, `<(...)`."""
  try:
    mode = os.stat(_place(path)).st_mode
  except OSError:
    return False
  return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _place(path: str | os.PathLike) -> str:
  return '/dev/stdin' if os.fspath(path) == '-' else os.fspath(path)


def _open(path: str, what: str) -> io.BufferedReader:
  """The bytes of a file, or of the temporary file that a pipe was read into."""
  try:
    if os.path.isdir(path):
      raise UserError(f'{path} is a folder: name a file')
    if not is_pipe(path):
      return io.BufferedReader(io.FileIO(_place(path)), _BLOCK)
    state, real = os.stat(_place(path)), os.path.realpath(_place(path))
    # The number of a pipe with a name may be that of one that is gone.
    key = state.st_dev, state.st_ino, '' if real.startswith('/proc/') else real
    if key not in _kept:
      kept = tempfile.TemporaryFile()
      with open(_place(path), 'rb') as pipe:
        shutil.copyfileobj(pipe, kept)
      _kept[key] = kept
    _kept[key].flush()
    file: io.BufferedReader = io.BufferedReader(io.FileIO(os.dup(_kept[key].fileno())), _BLOCK)
    file.seek(0)
    return file
  except FileNotFoundError:
    raise UserError(f'{what} not found: {path}: No such file or directory') from None
  except OSError as e:
    raise UserError(f'{path} cannot be read ({e.strerror or e})') from None


def _unpack(path: str, kind: str, file: io.BufferedReader) -> Any:
  """The content of a compressed file, as a file."""
  if kind == 'gzip':
    return gzip.GzipFile(fileobj=file)
  if kind == 'bzip2':
    return bz2.BZ2File(file)
  if kind == 'xz':
    return lzma.LZMAFile(file)
  if kind == 'Zstandard':
    return _zstd().ZstdFile(file)
  return _only_member(path, seekable(file))


def seekable(file: io.BufferedReader) -> IO[bytes]:
  """The file, or a temporary copy where it cannot seek."""
  if file.seekable():
    return file
  kept = tempfile.TemporaryFile()
  shutil.copyfileobj(file, kept)
  return kept


def _zstd() -> Any:
  """`compression.zstd` of Python 3.14, or the same module for the versions before it."""
  try:
    from compression import zstd
  except ImportError:
    from backports import zstd
  return zstd


def _only_member(path: str, file: Any) -> IO[bytes]:
  """The one file of a zip archive."""
  try:
    archive = zipfile.ZipFile(file)
    found = [m for m in archive.infolist() if not m.is_dir() and
             not m.filename.startswith('__MACOSX/') and not m.filename.endswith('.DS_Store')]
    for end, words in _ARCHIVES:
      if any(m.filename.endswith(end) for m in found):
        raise UserError(f'{path} is {words}')
    if not found:
      raise UserError(f'{path} is a zip archive without a file: name another')
    if len(found) > 1:
      names = ', '.join(m.filename for m in found[:6]) + (', ...' if len(found) > 6 else '')
      raise UserError(f'{path} is a zip archive of {len(found)} files ({names}): unpack it and '
                      'name the one to read')
    if found[0].flag_bits & 1:
      raise UserError(f'{path} is a zip archive with a password: unpack it')
    return archive.open(found[0])
  except (zipfile.BadZipFile, RuntimeError) as e:
    raise UserError(f'{path}: the zip archive is cut off or damaged, or of a kind that Python does '
                    f'not unpack ({e}): fetch it again, or unpack it') from None


class _Unpacked(io.RawIOBase):
  """Bytes of a compressed file as they are unpacked; what is wrong with it has its line."""

  def __init__(self, path: str, kind: str, content: Any, packed: io.BufferedReader):
    self._path, self._kind, self._content, self._packed = path, kind, content, packed
    self._line = 1
    self._error: UserError | None = None
    self._errors: tuple[type[Exception], ...] = (
      EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
    if kind == 'Zstandard':
      self._errors += (_zstd().ZstdError,)

  def readable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    """Fills the buffer; what comes before damage is given first."""
    if self._error:
      raise self._error
    filled = 0
    while filled < len(buffer):
      try:
        data = self._content.read1(len(buffer) - filled)
      except self._errors as e:
        self._error = self._damage(e)
        if not filled:
          raise self._error from None
        break
      if not data:
        break
      buffer[filled:filled + len(data)] = data
      filled += len(data)
      self._line += data.count(b'\n')
    return filled

  def _damage(self, error: Exception) -> UserError:
    where, byte = f'{self._path}:{self._line}: the {self._kind} file', self._packed.tell()
    if isinstance(error, EOFError):
      return UserError(f'{where} ends here without its end mark: it is cut off at byte {byte}: '
                       'fetch it again')
    return UserError(f'{where} is damaged at or before byte {byte} ({error}): fetch it again')

  def close(self) -> None:
    """Closes the compressed file too."""
    if not self.closed:
      self._content.close()
      self._packed.close()
    super().close()


def _problem(begin: bytes) -> str | None:
  """What a content is that no reader of text takes, and what to do; None where it may be text."""
  for mark, encoding in _ENCODINGS:
    if begin.startswith(mark):
      return f'{encoding}, not UTF-8: save it as UTF-8, e.g. with iconv -f {encoding} -t UTF-8'
  if len(begin) >= 8 and (not any(begin[1:64:2]) and all(begin[:64:2])
                          or not any(begin[:64:2]) and all(begin[1:64:2])):
    return 'UTF-16 by its look, not UTF-8: save it as UTF-8'
  for place, mark, words in _FOREIGN:
    if begin.startswith(mark, place):
      return words
  if begin[:1] == b'\x80' and begin[1:2] in b'\x02\x03\x04\x05':
    return PICKLE
  if begin[8:10] == b'{"' and begin[4:8] == b'\0\0\0\0':
    return 'model weights (safetensors): name a text file'
  if _WEB_PAGE.match(begin):
    return 'a web page (HTML), perhaps instead of the file that was to be fetched: fetch it again'
  return _pointer(begin)


def _pointer(begin: bytes) -> str | None:
  """What a pointer is, and what fetches the file."""
  if begin.startswith(_LFS):
    size = re.search(rb'\nsize (\d+)', begin)
    held = f' ({int(size[1]):,} bytes)' if size else ''
    return (f'a Git LFS pointer, not the file itself{held}: run git lfs pull in its folder, or '
            'download the file')
  if begin.startswith((b'/annex/objects/', b'.git/annex/objects/')):
    return 'a git-annex pointer, not the file itself: run git annex get on it'
  return None
