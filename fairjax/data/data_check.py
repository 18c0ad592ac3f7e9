"""Looks for what is wrong with data, reads everything, and goes on after each finding.

`check_sources` reads the documents of a corpus, `check_prepared` what `prepare_data` made of them,
`check_cache` a cache of `write_seqio_cache`. Nothing is changed. docs/corpora.md says what becomes
of each kind of irregularity when the data are prepared.
"""

import array
import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.config import PLANTED_SOURCES, TFDS_SOURCES, Config, DataConfig
from fairjax.data.corpus import SPLITS, TfdsDataset, importing_tensorflow, read_files
from fairjax.data.documents import list_files
from fairjax.data.prepare import HOLDOUT, INPUTS, PROGRESS, SENSITIVE, open_prepared
from fairjax.data.token_store import open_token_store
from fairjax.data.wikitext import compare_wikitext, find_wikitext
from fairjax.errors import UserError
from fairjax.files import check_sizes, file_sha256, read_sealed_json
from fairjax.vocabulary import load_vocabulary

SHOWN = 20  # broken lines of one file that are named; the rest is counted


@dataclasses.dataclass
class Findings:
  """Findings of a check, one line each."""

  problems: list[str] = dataclasses.field(default_factory=list)  # empty if all is well
  notes: list[str] = dataclasses.field(default_factory=list)
  counts: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)  # by split

  def attempt(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `work(*args, **kwargs)` returns; None if it raised `UserError`, now a problem."""
    try:
      return work(*args, **kwargs)
    except UserError as e:
      self.problems.append(str(e))
      return None


def check_sources(config: Config) -> Findings:
  """Reads the documents that `config.data` names."""
  findings, data = Findings(), config.data
  if data.source in PLANTED_SOURCES:
    findings.notes.append('the planted corpus is made, not read: nothing to check')
  elif data.source in TFDS_SOURCES:
    _check_wikitext(data, findings)
  else:
    _check_files(data, findings)
  return findings


def _check_files(data: DataConfig, findings: Findings) -> None:
  digests: dict[str, np.ndarray] = {}
  for split in ('train',) if data.holdout else SPLITS:
    counts, seen = collections.Counter(), array.array('q')
    paths = findings.attempt(list_files, getattr(data, split))
    for path in paths or ():
      _check_source(path, data, findings, counts, seen)
    digests[split] = np.unique(np.array(seen, np.int64))
    counts['repeated'] = len(seen) - len(digests[split])
    if split != 'train':
      counts['in_train'] = int(np.isin(np.array(seen, np.int64), digests['train']).sum())
    findings.counts[split] = dict(counts)
    findings.notes.append(f'{split}: ' + ', '.join(
      f'{n:,} {name.replace("_", " ")}' for name, n in counts.items() if n))


def check_prepared(directory: str | os.PathLike) -> Findings:
  """Reads all that `prepare_data` made in a folder, and the files it was made of."""
  findings, directory = Findings(), pathlib.Path(directory)
  prepared = findings.attempt(open_prepared, directory)
  if prepared is None:
    findings.attempt(load_vocabulary, directory / 'vocabulary')
    for split in (s + end for s in SPLITS for end in ('', SENSITIVE)):
      if (directory / split).exists():
        findings.attempt(lambda split=split: open_token_store(directory / split).verify())
    return findings
  for split in prepared.manifest['splits']:
    store = findings.attempt(prepared.store, split)
    if store is not None:
      findings.attempt(store.verify)
      findings.counts[split] = {'documents': store.documents, 'tokens': store.tokens,
                                'matches': store.matches, 'repeated': store.repeated}
      size = sum(described['bytes'] for described in store.files.values())
      findings.notes.append(f'{store.path}: {store.documents:,} documents, {store.tokens:,} '
                            f'tokens, {size:,} bytes')
  if prepared.config.holdout and not (directory / HOLDOUT).is_file():  # which reading would make
    findings.problems.append(f'{directory / HOLDOUT} is missing: run fairjax step data again')
  elif prepared.config.holdout:
    for split in ('valid', 'test'):
      findings.attempt(lambda split=split: collections.deque(prepared.documents(split), maxlen=0))
  inputs = prepared.manifest['inputs']
  if (path := directory / INPUTS).is_file():  # which knows where they have moved
    inputs = findings.attempt(
      read_sealed_json, path, again=f'delete {directory} to make it anew') or inputs
  _check_inputs(inputs, findings)
  for path in [directory / PROGRESS, *directory.glob('.*.unfinished')]:
    if path.exists():
      findings.notes.append(f'{path} is left of an interrupted preparation: it may be deleted')
  return findings


def check_cache(directory: str | os.PathLike) -> Findings:
  """Reads the caches of `write_seqio_cache` (or of seqio's own job) in a folder."""
  findings, directory = Findings(), pathlib.Path(directory)
  folders = sorted(p.parent for p in directory.glob('**/info.train.json'))
  if not folders:
    findings.problems.append(f'{directory} holds no cache (no info.train.json): run fairjax step '
                             'data --seqio-cache')
  for folder in folders:
    again = f'delete {folder} and run fairjax step data --seqio-cache again'
    if not (folder / 'COMPLETED').is_file():
      findings.problems.append(f'{folder} is not complete (no COMPLETED): {again}')
    own = folder / 'fairjax.json'
    made = findings.attempt(read_sealed_json, own, again=again) if own.is_file() else None
    for name, described in (made or {}).get('files', {}).items():
      findings.attempt(_check_file, folder, name, described, again)
    for path in sorted(folder.glob('stats.*.json')):
      split = path.name.split('.')[1]
      stats = findings.attempt(_read_stats, path, again)
      _check_records(findings, sorted(folder.glob(f'{split}.tfrecord-*')), f'{folder}: {split}',
                     None if stats is None else stats.get('examples'), again)
  return findings


def _check_records(findings: Findings, files: Sequence[str | os.PathLike], where: str,
                   expected: int | None, again: str) -> int:
  """Reads TFRecord files; the number of their examples, which is compared if it is known."""
  with importing_tensorflow('a check of TFRecord files'):
    from fairjax.data.tfds_wikitext import check_tfrecords
  counts = [findings.attempt(check_tfrecords, path) for path in files]
  number = sum(filter(None, counts))
  if expected is not None and None not in counts and number != expected:
    findings.problems.append(f'{where} holds {number} examples instead of {expected}: {again}')
  findings.notes.append(f'{where}: {number:,} examples in {len(files)} files')
  return number


def _check_source(path: str, data: DataConfig, findings: Findings, counts: collections.Counter,
                  seen: array.array) -> None:
  """Reads one file to its end, or as far as it goes."""
  found: list[str] = []
  number = 0

  def report(message: str) -> None:
    nonlocal number
    number += 1
    if number <= SHOWN:
      found.append(message)

  def read() -> None:
    for text in read_files([path], data, report=report, counts=counts):
      counts['words'] += len(text.split())
      seen.frombytes(hashlib.blake2b(text.encode('utf-8'), digest_size=8).digest())

  findings.attempt(read)
  if data.broken == 'skip' and data.source != 'wikitext':
    findings.notes += [f'{message}: left out (data.broken=skip)' for message in found]
  else:
    findings.problems += found
  if number > SHOWN:
    findings.notes.append(f'{path}: {number - SHOWN} more broken lines')


def _check_wikitext(data: DataConfig, findings: Findings) -> None:
  """Reads the dataset in `data.tfds_dir`, else the official files it would be made of."""
  if data.tfds_dir:
    with importing_tensorflow('data.tfds_dir'):
      from fairjax.data.tfds_wikitext import find_dataset
    if builder := find_dataset(data.source, data.tfds_dir):
      dataset = TfdsDataset(builder)
      for split, files in dataset.files.items():
        findings.counts[split] = {'documents': _check_records(
          findings, files, f'{os.path.dirname(files[0])}: {split}', dataset.sizes[split],
          'delete the dataset to make it anew')}
      return
  if not data.manual_dir:
    findings.notes.append(f'no data.manual_dir, and no dataset of {data.source} in data.tfds_dir: '
                          'nothing to check')
    return
  with tempfile.TemporaryDirectory() as unpacked:
    files = findings.attempt(find_wikitext, data.source, data.manual_dir, unpack_to=unpacked,
                             sha256=data.sha256)
    if files:
      train, valid, test = ((str(files[split]),) for split in SPLITS)
      _check_files(dataclasses.replace(
        data, source='wikitext', train=train, valid=valid, test=test), findings)
      findings.notes += [compare_wikitext(data.source, split, collections.Counter(counts))[1]
                         for split, counts in findings.counts.items()]


def _check_inputs(inputs: Mapping[str, Any], findings: Findings) -> None:
  """Compares the original files, where they are."""
  missing = 0
  for split, files in inputs.get('files', {}).items():
    for described in files:
      path = pathlib.Path(described['path'])
      if not path.is_file():
        missing += 1
      elif findings.attempt(file_sha256, path) not in (None, described['sha256']):
        findings.problems.append(f'{path} ({split}) is not the file that the stores were made of: '
                                 'restore it, or prepare it in another folder')
  if missing:
    findings.notes.append(f'{missing} of the original files are not at their place: not compared')


def _check_file(
  folder: pathlib.Path, name: str, described: Mapping[str, Any], again: str) -> None:
  check_sizes(folder, {name: described}, again=again)
  if file_sha256(folder / name) != described['sha256']:
    raise UserError(f'{folder / name} is damaged: its SHA-256 is not the recorded one: {again}')


def _read_stats(path: pathlib.Path, again: str) -> dict[str, Any]:
  try:
    return json.loads(path.read_text(encoding='utf-8'))
  except ValueError as e:
    raise UserError(f'{path} is damaged ({e}): {again}') from None
