"""What a finished folder of data holds: its manifest, its COMPLETE mark, and their checks.

    manifest.json   numbers and, under `files`, bytes and SHA-256 of every file beside it
    COMPLETE        SHA-256 of manifest.json; written last, so that a folder with it is whole

Policy. At every start the manifest is compared with its mark and every file with its size, which
costs nothing for any size of data. What is read whole is compared with its SHA-256 when it is read;
tokens are compared block by block when they are first read (`fairjax.data.verified_tokens`), so
that no process hashes a terabyte of which it reads a part. `fairjax data check` reads everything.
"""

import hashlib
import io
import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from fairjax.errors import UserError
from fairjax.files import atomic_write, write_json

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
