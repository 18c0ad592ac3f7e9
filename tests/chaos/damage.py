"""Damage to the files of a workdir, between two runs."""

import os
import pathlib
import random
import re
import shutil

OPERATIONS = ('flip', 'truncate', 'empty', 'delete')

# The first pattern that a path matches is its class.
_CLASSES = (
  ('checkpoint arrays', r'/checkpoints/.*/d/[^/]+$'),
  ('checkpoint metadata', r'/checkpoints/'),
  ('stage marker', r'^(lm|sentiment|debias/[^/]+)/DONE$'),
  ('metrics', r'/metrics\.jsonl$'),
  ('vocabulary', r'^data/vocabulary/'),
  ('token store', r'^data/[^/]+/'),
  ('data cards', r'^data/'),
  ('records', r'^generations/.*\.gz$'),
  ('record cards', r'^generations/'),
  ('scores', r'^scores/'),
  ('measures', r'^measures/'),
  ('report', r'^report/'),
  ('config', r'^config\.json$'),
  ('run marker', r'^DONE$'),
)


def classes(workdir: pathlib.Path) -> dict[str, list[str]]:
  """Paths (relative to the workdir) by class, without TensorBoard's, which nothing reads again."""
  found = {}
  for path in sorted(p for p in workdir.rglob('*') if p.is_file()):
    name = path.relative_to(workdir).as_posix()
    if '/tensorboard/' not in name:
      sort = next((sort for sort, pattern in _CLASSES if re.search(pattern, name)), 'other')
      found.setdefault(sort, []).append(name)
  return found


def damage(path: pathlib.Path, operation: str, rng: random.Random) -> str:
  """Harms a file by one of `OPERATIONS` (an empty one is deleted); returns what was done."""
  size = path.stat().st_size
  if operation == 'delete' or not size:
    path.unlink()
    return 'deleted'
  if operation == 'flip':
    at, bit = rng.randrange(size), rng.randrange(8)
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f'bit {bit} of byte {at} of {size} flipped'
  length = 0 if operation == 'empty' else rng.randrange(size)
  os.truncate(path, length)
  return f'cut to {length} of {size} bytes'


def delete_folder(path: pathlib.Path) -> str:
  number = sum(p.is_file() for p in path.rglob('*'))
  shutil.rmtree(path)
  return f'folder with {number} files deleted'


def shuffle_times(workdir: pathlib.Path, rng: random.Random) -> None:
  """Gives every file and folder another time, decades to either side."""
  for path in (workdir, *workdir.rglob('*')):
    moved = path.stat().st_mtime + rng.uniform(-1e9, 1e9)
    os.utime(path, (moved, moved), follow_symlinks=False)
