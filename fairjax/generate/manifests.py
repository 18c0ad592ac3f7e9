"""The manifest beside a file of generations: who wrote it, how, and whether it is whole.

Beside `x.jsonl.gz` lies `x.manifest.json` with the identity of the work, `complete`, and once it is
complete the number of records, bytes and SHA-256.
"""

import hashlib
import json
import os
import pathlib
import re
from typing import Any

from fairjax.errors import UserError


def manifest_of(path: str | os.PathLike) -> pathlib.Path:
  """Path of the manifest beside a records file.

  >>> manifest_of('a/country.jsonl.gz').as_posix()
  'a/country.manifest.json'
  """
  path = pathlib.Path(path)
  return path.with_name(re.sub(r'(\.jsonl)?(\.gz)?$', '', path.name) + '.manifest.json')


def check_complete(path: str | os.PathLike) -> None:
  """Compares a records file with the manifest beside it; a file without one passes.

  Raises:
    UserError: the sampling has not ended, or the file is not the one that it wrote.
  """
  path, manifest_path = pathlib.Path(path), manifest_of(path)
  if not manifest_path.is_file():
    return
  manifest = read_manifest(path)
  if not manifest['complete']:
    raise UserError(f'{path} is not complete: repeat the command that samples it, it continues')
  size, expected = path.stat().st_size, manifest.get('bytes')
  if size != expected:
    raise UserError(f'{path} has {size} bytes, its manifest says {expected}: restore it, or remove '
                    'both and sample again')
  if file_sha256(path) != manifest.get('sha256'):
    raise UserError(f'{path} is damaged: its SHA-256 is not that of its manifest: restore it, or '
                    'remove both and sample again')


def read_manifest(path: str | os.PathLike) -> dict[str, Any]:
  """Reads the manifest of a records file.

  Raises:
    UserError: it is missing or damaged.
  """
  path, manifest_path = pathlib.Path(path), manifest_of(path)
  try:
    manifest = json.loads(manifest_path.read_text(encoding='utf-8'))
    if not isinstance(manifest['identity'], dict) or type(manifest['complete']) is not bool:
      raise TypeError('identity, complete')
    manifest['samples'], manifest['batch_size']
  except (OSError, ValueError, KeyError, TypeError) as e:
    raise UserError(f'{manifest_path} is damaged ({e}): remove it and {path.name} and sample again'
                    ) from None
  return manifest


def file_sha256(path: str | os.PathLike) -> str:
  """SHA-256 (hex) of a file."""
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
