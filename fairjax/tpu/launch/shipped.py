"""Checks that the workers will have the files that the command of a launch reads.

Workers get the files that git tracks here (`launch/pack.sh`), and buckets that the command names.
"""

import dataclasses
import fnmatch
import os
import pathlib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairjax.config import Config

# Fields of a config that are paths -> values that are not paths.
PATH_FIELDS = {
  'attribute': None, 'data.train': (), 'data.valid': (), 'data.test': (), 'data.manual_dir': (),
  'data.tfds_dir': (), 'data.vocabulary': ('sentencepiece', 'word'), 'data.cda_pairs': ('none',),
  'data.cda_names': (), 'measure.lexicon': ()}
_WITH_FOLDER = re.compile(r'(?:bert|use|minilm):(?=.)')
_WRITTEN = {'workdir', 'output', 'keep', 'config', 'command', 'verb', 'action', 'overrides'}
_FILE = re.compile(r'/|\.(jsonl?|txt|[tc]sv|gz|xz|zst|bz2|zip|parquet|ya?ml|tokens|bin|model)$',
                   re.I)
_SHARED = {'nfs', 'nfs4', 'cifs', 'lustre', 'ceph', 'beegfs', 'gpfs', 'fuse.gcsfuse', '9p'}


def config_paths(config: Config, *, attributes: Sequence[str]) -> Iterator[tuple[str, str]]:
  """(field, path) of everything that a config reads from files; `attributes`: built-in names."""
  for field, values in _texts(dataclasses.asdict(config), ''):
    for value in values:
      folder = _WITH_FOLDER.sub('', value, count=1)
      if field in PATH_FIELDS:
        if value and value not in (attributes if field == 'attribute' else PATH_FIELDS[field]):
          yield field, value
      elif folder != value or ('/' in value and os.path.exists(value)):
        yield field, folder


def option_paths(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
  """(option, path) of the files that a command's options seem to name."""
  for name, values in _texts({k: v for k, v in options.items() if k not in _WRITTEN}, ''):
    for value in values:
      path = _WITH_FOLDER.sub('', value, count=1)
      if path != value or _FILE.search(value) or os.path.exists(value):
        yield f"--{name.replace('_', '-')}", path


def _texts(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, list[str]]]:
  for name, value in values.items():
    if isinstance(value, Mapping):
      yield from _texts(value, f'{prefix}{name}.')
    else:
      items = value if isinstance(value, list | tuple) else [value]
      yield f'{prefix}{name}', [v for v in items if isinstance(v, str)]


def not_on_workers(
  paths: Sequence[tuple[str, str]], *, root: pathlib.Path, command: Sequence[str],
) -> list[str]:
  """One line for each path that no worker will have.

  Args:
    paths: of `config_paths` and `option_paths`.
    root: the repository whose tracked files are shipped.
    command: the words of the command, whose buckets are mounted.
  """
  if not paths:
    return []
  tracked, faults, home = _tracked(root), [], os.path.expanduser('~').rstrip('/')
  for name, path in paths:
    if path.startswith('gs://'):
      if not any(path in word for word in command):
        faults.append(f'{name}={path} is named in the config file only: name it in the command, '
                      'so that the workers mount the bucket')
    elif path.startswith(f'{home}/'):
      faults.append(f'{name}=~{path.removeprefix(home)} is on this machine')
    elif os.path.isabs(path):
      if os.path.exists(path) and not _on_a_shared_disk(path):
        faults.append(f'{name}={path} is on this machine')
    else:
      plain = os.path.normpath(path)
      here = any(root.glob(plain)) if not plain.startswith('..') else False
      if tracked is not None and here:
        here = any(fnmatch.fnmatch(file, plain) or file.startswith(f'{plain}/')
                   for file in tracked)
        faults += [] if here else [f'{name}={path} is not tracked by git']
      elif not here:
        faults.append(f'{name}={path} is no file of the repository')
  return faults


def _tracked(root: pathlib.Path) -> list[str] | None:
  """The files that a launch ships, relative to the root; None where git tracks none."""
  try:
    done = subprocess.run(['git', 'ls-files', '-z'], cwd=root, capture_output=True, check=True)
  except (OSError, subprocess.CalledProcessError):
    return None
  return [f for f in done.stdout.decode('utf-8', 'surrogateescape').split('\0') if f] or None


def _on_a_shared_disk(path: str) -> bool:
  """Whether a path is on a disk of the network, which workers may mount at the same place."""
  try:
    lines = pathlib.Path('/proc/mounts').read_text(encoding='utf-8').splitlines()
  except OSError:
    return False
  mounts = {words[1]: words[2] for words in map(str.split, lines)}
  real = os.path.realpath(path)
  places = [p for p in mounts if real == p or real.startswith(p.rstrip('/') + '/')]
  return mounts.get(max(places, key=len, default='')) in _SHARED
