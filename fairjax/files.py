"""Files that are either whole or not there."""

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import IO, Any


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike) -> Iterator[IO[bytes]]:
  """Opens a temporary file beside `path` for bytes; it becomes `path` when the block succeeds.

  Folders are made, the content reaches the disk before the rename, and after an error nothing is
  left and the old file is as it was.
  """
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}.')
  try:
    with os.fdopen(handle, 'wb') as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
  except BaseException:
    pathlib.Path(temporary).unlink(missing_ok=True)
    raise


def write_json(path: str | os.PathLike, value: Any) -> None:
  """Writes JSON atomically, keys sorted; NaN is refused (`ValueError`)."""
  text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False)
  with atomic_write(path) as file:
    file.write(text.encode('utf-8') + b'\n')
