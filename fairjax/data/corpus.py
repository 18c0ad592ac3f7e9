"""The corpus that `config.data` names: its splits as texts, and what identifies it.

TensorFlow is imported only for TFDS datasets.
"""

import collections
import contextlib
import dataclasses
import gzip
import hashlib
import itertools
import json
import os
import pathlib
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from fairjax.config import FILE_SOURCES, PLANTED_SOURCES, TFDS_SOURCES, DataConfig
from fairjax.counterfactual import (
  Attribute,
  CdaCounts,
  GenderSwap,
  augment_document,
  read_names,
  read_word_pairs,
)
from fairjax.data.documents import list_files, read_documents, split_sentences
from fairjax.data.planted import make_planted_documents
from fairjax.data.planted_gender import make_gender_documents
from fairjax.data.wikitext import SPLITS
from fairjax.errors import UserError
from fairjax.files import (
  atomic_write,
  file_sha256,
  read_sealed_json,
  refuse_existing,
  write_sealed_json,
)
from fairjax.inputs import is_pipe
from fairjax.progress import Progress, without_native_lines

# The last documents of a corpus as validation and test: `data.holdout`.
#
# Huang et al. 2020 hold out the last 10,000 articles of WMT-19, 1,000 to validate and 9,000 to test
# (H-41). The paper does not give the order within them: here valid comes first, then test, as in
# the files, and nothing is shuffled before. One pass counts the documents and keeps the last ones
# in a ring, so that memory holds no more than these.
#
#     FOLDER/valid.jsonl, test.jsonl   one JSON string a line
#     FOLDER/holdout.json              what `Holdout` holds; written last

_MANIFEST = 'holdout.json'


@dataclasses.dataclass(frozen=True)
class Holdout:
  """The split of a corpus."""

  folder: pathlib.Path  # of the held-out documents
  train: int  # numbers of documents, in this order in the corpus
  valid: int
  test: int
  digests: tuple[str, str]  # SHA-256 of valid.jsonl and test.jsonl
  counts: Mapping[str, int]  # of all files, see `read_documents`

  def texts(self, split: str, corpus: Iterable[str]) -> Iterator[str]:
    """Documents of a split; `corpus`, all documents in order, is read for `train` only."""
    if split == 'train':
      yield from itertools.islice(corpus, self.train)
      return
    path, expected = self.folder / f'{split}.jsonl', self.digests[split == 'test']
    if not path.is_file() or file_sha256(path) != expected:
      raise UserError(f'{path} is missing or damaged: delete {self.folder} to make it anew')
    with path.open(encoding='utf-8') as file:
      yield from map(json.loads, file)


def make_holdout(
  corpus: Iterable[str], sizes: tuple[int, ...], folder: pathlib.Path, counts: Mapping[str, int],
) -> Holdout:
  """Splits off the last documents; a folder that is complete is only read."""
  path, (valid, test) = folder / _MANIFEST, sizes
  if path.is_file():
    values = read_sealed_json(path, again=f'delete {folder} to make it anew')
    return Holdout(folder, **values | {'digests': tuple(values['digests'])})
  last, number = collections.deque(maxlen=valid + test), 0
  for text in corpus:
    last.append(text)
    number += 1
  if number <= valid + test:
    raise UserError(f'the files of data.train hold {number} documents, and data.holdout='
                    f'({valid}, {test}) leaves none to train on: lower it or add files')
  digests = []
  for split, texts in (('valid', itertools.islice(last, valid)),
                       ('test', itertools.islice(last, valid, None))):
    with atomic_write(folder / f'{split}.jsonl') as file:
      file.writelines(json.dumps(text).encode() + b'\n' for text in texts)
    digests.append(file_sha256(folder / f'{split}.jsonl'))
  made = Holdout(folder, number - valid - test, valid, test, (digests[0], digests[1]), dict(counts))
  write_sealed_json(path, {k: v for k, v in dataclasses.asdict(made).items() if k != 'folder'})
  return made


# Counterfactual training documents: what `data.cda` and its like make of a corpus (W-14 to W-16).
#
# Only the training split is augmented: what a model is evaluated on stays what it was.

NO_WORDS = 'none'
"""In the place of word pairs: names only (W-16)."""


def make_swap(data: DataConfig) -> GenderSwap:
  """The swap that the fields `cda_...` describe."""
  pairs = None if data.cda_pairs == (NO_WORDS,) else read_word_pairs(*data.cda_pairs)
  names = read_names(data.cda_names) if data.cda_names else None
  return GenderSwap(pairs, names, data.seed, name_gender=data.cda_name_gender,
                    letters=data.cda_name_letters)


def cda_documents(
  texts: Iterable[str], data: DataConfig, counts: collections.Counter | None = None,
) -> Iterator[str]:
  """Training documents as `data.cda` wants them, counted in `counts` as cda_..."""
  swap, found = make_swap(data), CdaCounts()
  counts = collections.Counter() if counts is None else counts
  for text in texts:
    documents = augment_document(
      text, swap, data.cda, unit=data.cda_unit, split=split_sentences, counts=found)
    counts['cda_originals_left_out'] += data.cda == 'one'
    counts['cda_documents'] += len(documents) - (data.cda == 'two')
    yield from documents
  if not found.swaps:
    raise UserError('CDA found no gendered word in the training text: nothing would change; leave '
                    'it out, or give other data.cda_pairs or data.cda_names')
  counts.update(cda_neutral_left_out=found.dropped, cda_swaps=found.swaps,
                cda_kept=sum(found.kept.values()), cda_mixed_case=found.mixed_case,
                cda_pairs_female_first=len(swap.pairs.turned) if swap.pairs else 0)


def augment_file(
  source: str | os.PathLike, output: str | os.PathLike, swap: GenderSwap, *, sided: str, unit: str,
  log: Callable[[str], None],
) -> dict[str, Any]:
  """Writes a text file's lines, plain or .gz, with their counterfactuals; settings and counts."""
  output, counts, reading = refuse_existing(output), CdaCounts(), collections.Counter()
  read = written = 0
  with contextlib.ExitStack() as stack:
    file: IO[bytes] | gzip.GzipFile = stack.enter_context(atomic_write(output))
    if output.suffix == '.gz':
      # No name and time inside: the same text gives the same bytes.
      file = stack.enter_context(gzip.GzipFile('', 'wb', fileobj=file, mtime=0))
    progress = stack.enter_context(
      Progress(f'[cda] {pathlib.Path(source).name}', None, unit='lines', log=log))
    for line in read_documents([source], layout='lines', counts=reading):
      for text in augment_document(
          line, swap, sided, unit=unit, split=split_sentences, counts=counts):
        file.write(text.encode('utf-8') + b'\n')
        written += 1
      read += 1
      progress.add(1, lambda: f'{counts.swaps:,} swaps')
    refuse_existing(output)
  return {
    'input': os.fspath(source), 'output': os.fspath(output), 'sided': sided, 'unit': unit,
    'swap': swap.fingerprint, 'lines_read': read, 'lines_written': written,
    **{k: reading[k] for k in ('blank_lines', 'carriage_returns', 'nul_characters',
                               'byte_order_marks', 'replacement_characters') if reading[k]},
    **counts.to_dict()}


@contextlib.contextmanager
def importing_tensorflow(what: str, instead: str = '') -> Iterator[None]:
  """Imports TensorFlow without its lines; `UserError` where something is not installed."""
  try:
    with without_native_lines():
      yield
  except ModuleNotFoundError as e:
    raise UserError(f"{what} needs {e.name}: pip install -e '.[train]' in fairjax's folder{instead}"
                    ) from None


def _tfds_wikitext() -> types.ModuleType:
  with importing_tensorflow('a dataset of WikiText', '; or set data.source=wikitext and the files '
                            'in data.train, data.valid and data.test'):
    from fairjax.data import tfds_wikitext
  return tfds_wikitext


# Documents whose text stands for the grammar's version in the fingerprint of a planted corpus.
_SAMPLED_DOCUMENTS = 200


class Corpus:
  """Documents of the splits `train`, `valid` and `test`."""

  def __init__(self, data: DataConfig, attribute: Attribute, directory: str | os.PathLike, *,
               by_words: bool = False):
    self.data, self.attribute, self.by_words = data, attribute, by_words
    self.directory = pathlib.Path(directory)
    self._builder: TfdsDataset | None = None

  def texts(self, split: str, counts: collections.Counter | None = None) -> Iterator[str]:
    """Documents of a split in their order, read anew; `counts` is that of `read_documents`."""
    found = self._source_texts(split, counts)
    return cda_documents(found, self.data, counts) if split == 'train' and self.data.cda else found

  def _source_texts(self, split: str, counts: collections.Counter | None) -> Iterator[str]:
    data = self.data
    if data.source in PLANTED_SOURCES:
      return iter(self._planted(self._planted_number(split), SPLITS.index(split)))
    if data.source in TFDS_SOURCES:
      texts = _tfds_wikitext().tfds_texts(self.tfds_dataset().name_and_dir, split)
      return texts if self.by_words else (re.sub('\n+', '\n', t).strip('\n') for t in texts)
    if data.holdout:
      return self.holdout().texts(split, self._read(data.train, counts))
    return self._read(getattr(data, split), counts)

  def size(self, split: str) -> int | None:
    """Number of documents of a split where it is known without reading it."""
    data = self.data
    if split == 'train' and data.cda:
      return None
    if data.source in PLANTED_SOURCES:
      return self._planted_number(split)
    if data.source in TFDS_SOURCES:
      return self.tfds_dataset().sizes[split]
    return getattr(self.holdout(), split) if data.holdout else None

  def shards(self, split: str) -> list[str]:
    """Names of the parts of a split: its files, or one name."""
    augmented = split == 'train' and self.data.cda  # its parts are not those of the files
    if self.data.source not in FILE_SOURCES or self.data.holdout or augmented:
      return [f'{self.data.source}:{split}']
    return list_files(getattr(self.data, split))

  def shard_texts(self, split: str, number: int) -> Iterator[str]:
    """Documents of one of several `shards`."""
    return self._read([self.shards(split)[number]], None)

  def _planted_number(self, split: str) -> int:
    data = self.data
    return data.planted_documents if split == 'train' else data.planted_heldout_documents

  def _planted(self, number: int, stream: int) -> list[str]:
    data = self.data
    common: dict[str, Any] = {'num_documents': number, 'seed': data.seed,
                              'strength': data.planted_strength, 'stream': stream}
    if data.source == 'planted_gender':
      return make_gender_documents(**common, opinion_share=data.planted_sensitive_share)
    return make_planted_documents(
      self.attribute, **common, sensitive_share=data.planted_sensitive_share,
      one_mood=data.planted_one_mood)

  def holdout(self) -> Holdout:
    """The split into train, valid and test; made at the first call."""
    counts = collections.Counter()
    return make_holdout(self._read(self.data.train, counts), self.data.holdout,
                        self.directory / 'holdout', counts)

  def tfds_dataset(self, log: Callable[[str], None] = lambda line: None) -> 'TfdsDataset':
    """The TFDS dataset; made at the first call."""
    if self._builder is None:
      data = self.data
      self._builder = TfdsDataset(_tfds_wikitext().build_wikitext(
        data.source, data.tfds_dir or self.directory / 'tfds', manual_dir=data.manual_dir,
        download=data.download, sha256=data.sha256, log=log))
    return self._builder

  def describe(self, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of the documents; digests of unchanged files are taken from `saved`."""
    data, found = self.data, self._describe_source(saved)
    if data.cda:
      found['cda'] = {'sided': data.cda, 'unit': data.cda_unit, 'swap': make_swap(data).fingerprint}
    return found

  def _describe_source(self, saved: Mapping[str, Any]) -> dict[str, Any]:
    data = self.data
    if data.source in PLANTED_SOURCES:
      texts = self._planted(_SAMPLED_DOCUMENTS, 0)
      return {'planted': {
        'documents': data.planted_documents, 'heldout_documents': data.planted_heldout_documents,
        'strength': data.planted_strength, 'sensitive_share': data.planted_sensitive_share,
        **({'one_mood': True} if data.planted_one_mood else {}),
        'sample_sha256': hashlib.sha256('\n'.join(texts).encode()).hexdigest()}}
    inputs: dict[str, Any] = {}
    if data.source in ('tsv', 'newscrawl'):
      inputs['text_column'] = data.text_column
    if data.source in ('jsonl', 'csv', 'parquet'):
      inputs['text_field'] = data.text_field
    if data.source == 'newscrawl_sentences':
      inputs['lines_per_document'] = data.lines_per_document
    if data.broken != 'error':
      inputs['broken'] = data.broken
      inputs['max_line_bytes'] = data.max_line_bytes
    if data.holdout:
      inputs['holdout'] = list(data.holdout)
    if data.source in TFDS_SOURCES:
      files = self.tfds_dataset().files
    else:
      files = {split: list_files(getattr(data, split))
               for split in (('train',) if data.holdout else SPLITS)}
    return inputs | {'files': describe_files_of(files, saved)}

  def _read(self, paths, counts: collections.Counter | None) -> Iterator[str]:
    return read_files(paths, self.data, counts=counts, blank_lines=self.by_words)


def read_files(paths: Iterable[str], data: DataConfig, **options: Any) -> Iterator[str]:
  """`read_documents` of files in the layout that a configuration says."""
  return read_documents(
    paths, layout=data.source, text_column=data.text_column, text_field=data.text_field,
    lines_per_document=data.lines_per_document, broken=data.broken,
    max_line_bytes=data.max_line_bytes, **options)


class TfdsDataset:
  """Name, place, sizes and files of a prepared TFDS dataset."""

  def __init__(self, builder: Any):
    """Reads them off a `tfds.core.DatasetBuilder`."""
    folder = pathlib.Path(builder.data_dir)
    self.name_and_dir = (f'{builder.name}:{builder.version}', str(folder.parent.parent))
    self.sizes = {split: builder.info.splits[split].num_examples for split in SPLITS}
    self.files = {split: [str(folder / name) for name in builder.info.splits[split].filenames]
                  for split in SPLITS}


def describe_files_of(
  files: Mapping[str, Sequence[str]], saved: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
  """Path, size, time and digest of the files of splits; known ones are taken from `saved`."""
  known = known_digests(f for of_split in saved.get('files', {}).values() for f in of_split)
  return {split: [describe_file(path, known) for path in paths] for split, paths in files.items()}


def known_digests(described: Iterable[Mapping[str, Any]]) -> dict[tuple, str]:
  """What `describe_file` said of files, as it takes it."""
  return {(f['path'], f['bytes'], f['mtime_ns']): f['sha256'] for f in described}


def describe_file(path: str | os.PathLike, known: Mapping[tuple, str]) -> dict[str, Any]:
  """Path, size, time and digest; one with known path, size and time is not read again."""
  if is_pipe(path):
    raise UserError(f'{path} is no file, but a corpus is read several times, also when a run '
                    'continues: write it to a file')
  path, state = os.path.realpath(path), os.stat(path)
  digest = known.get((path, state.st_size, state.st_mtime_ns)) or file_sha256(path)
  return {'path': path, 'bytes': state.st_size, 'mtime_ns': state.st_mtime_ns, 'sha256': digest}
