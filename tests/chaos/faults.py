"""Faults inside a run: what a process does to itself at a moment."""

import ctypes
import os
import pathlib
import resource
import signal
import stat
import time

_MS_REMOUNT = 32
_CAPABILITY_VERSION_3 = 0x20080522
# CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: root without them obeys the modes of files.
_OVERRIDES = (1 << 1) | (1 << 2)


def kill() -> None:
  os.kill(os.getpid(), signal.SIGKILL)


def terminate() -> None:
  """SIGTERM, as a scheduler sends before it takes the machine back."""
  os.kill(os.getpid(), signal.SIGTERM)


def limit_file_sizes(most: int) -> None:
  """No file grows beyond `most` bytes (EFBIG): a full disk for those who are not root."""
  _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))


class SmallDisk:
  """A file system in memory whose size can be changed while it is used; needs root.

  `problem`: why there is none, only a folder; or ''.
  """

  SIZE = 1 << 28

  def __init__(self, folder: pathlib.Path):
    self.folder, self.problem = folder, ''
    folder.mkdir(parents=True, exist_ok=True)
    try:
      self._mount(0, self.SIZE)
    except (OSError, AttributeError) as e:
      self.problem = f'a file system in memory cannot be mounted here ({e}): needs root'

  def fill(self, left: int) -> None:
    """Leaves about `left` bytes; every write beyond them fails with ENOSPC."""
    used = os.statvfs(self.folder)
    taken = (used.f_blocks - used.f_bfree) * used.f_bsize
    self._mount(_MS_REMOUNT, max(taken + left, 1))

  def free(self) -> None:
    if not self.problem:
      self._mount(_MS_REMOUNT, self.SIZE)

  def close(self) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not self.problem and libc.umount2(os.fsencode(self.folder), 2):
      raise OSError(ctypes.get_errno(), f'umount {self.folder}')

  def _mount(self, flags: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b'tmpfs', os.fsencode(self.folder), b'tmpfs', ctypes.c_ulong(flags),
                  f'size={size}'.encode()):
      raise OSError(ctypes.get_errno(), f'mount {self.folder}')


def obey_modes() -> None:
  """Root ignores modes: this process and its threads to come give that up."""
  if os.geteuid():
    return
  libc = ctypes.CDLL(None, use_errno=True)
  header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
  data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 bits
  if libc.capget(header, data):
    raise OSError(ctypes.get_errno(), 'capget')
  data[0] &= ~_OVERRIDES
  if libc.capset(header, data):
    raise OSError(ctypes.get_errno(), 'capset')


def forbid_writing(folder: pathlib.Path) -> None:
  """Takes the right to write from a folder and all below it."""
  for path in [p for p in (folder, *folder.rglob('*')) if p.is_dir()]:
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)


def allow_writing(folder: pathlib.Path) -> None:
  """Gives the right to write back, to a folder and all below it."""
  for path in (folder, *folder.rglob('*')):
    if path.is_dir():
      path.chmod(0o755)


def jump_clock(seconds: int) -> None:
  """Moves `time.time` and `time.time_ns`, which Python code reads."""
  now, now_ns = time.time, time.time_ns
  time.time = lambda: now() + seconds
  time.time_ns = lambda: now_ns() + seconds * 10**9
