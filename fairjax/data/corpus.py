"""The corpus that `config.data` names: its splits as texts, and what identifies it.

TensorFlow is imported only for TFDS datasets.
"""

import collections
import hashlib
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fairjax.config import FILE_SOURCES, PLANTED_SOURCES, TFDS_SOURCES, DataConfig
from fairjax.counterfactual import Attribute
from fairjax.data.cda import cda_documents, describe_cda
from fairjax.data.documents import list_files, read_documents
from fairjax.data.holdout import Holdout, make_holdout
from fairjax.data.planted import make_planted_documents
from fairjax.data.planted_opinions import make_gender_documents
from fairjax.errors import UserError
from fairjax.inputs import is_pipe

SPLITS = ('train', 'valid', 'test')
# Documents whose text stands for the grammar's version in the fingerprint of a planted corpus.
_SAMPLED_DOCUMENTS = 200


class Corpus:
  """Documents of the splits `train`, `valid` and `test`.

  Attributes:
    data: the configuration.
    attribute: of a planted corpus.
    directory: folder for what has to be written before the corpus can be read.
    by_words: articles of WikiText hold their blank lines, since every line is a token (eos).
  """

  def __init__(self, data: DataConfig, attribute: Attribute, directory: str | os.PathLike, *,
               by_words: bool = False):
    """Opens nothing yet."""
    self.data, self.attribute, self.by_words = data, attribute, by_words
    self.directory = pathlib.Path(directory)
    self._builder = None

  @property
  def is_tfds(self) -> bool:
    """Whether a TFDS dataset holds the documents."""
    return self.data.source in TFDS_SOURCES

  @property
  def tfds_dir(self) -> pathlib.Path:
    """Folder of the TFDS dataset."""
    return pathlib.Path(self.data.tfds_dir or self.directory / 'tfds').expanduser()

  def texts(self, split: str, counts: collections.Counter | None = None) -> Iterator[str]:
    """Documents of a split in their order, read anew; `counts` is that of `read_documents`.

    With `data.cda` those of `train` are what `fairjax.data.cda` makes of the source's.
    """
    found = self._source_texts(split, counts)
    return cda_documents(found, self.data, counts) if split == 'train' and self.data.cda else found

  def _source_texts(self, split: str, counts: collections.Counter | None) -> Iterator[str]:
    data = self.data
    if data.source in PLANTED_SOURCES:
      return iter(self.planted(split))
    if self.is_tfds:
      from fairjax.data.wikitext_builder import tfds_texts
      texts = tfds_texts(self.tfds_dataset().name_and_dir, split)
      return texts if self.by_words else map(drop_blank_lines, texts)
    if data.holdout:
      corpus = self._files('train', counts)
      return self.holdout().texts(split, corpus)
    return self._files(split, counts)

  def size(self, split: str) -> int | None:
    """Number of documents of a split where it is known without reading it."""
    data = self.data
    if split == 'train' and data.cda:
      return None
    if data.source in PLANTED_SOURCES:
      return data.planted_documents if split == 'train' else data.planted_heldout_documents
    if self.is_tfds:
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

  def planted(self, split: str) -> list[str]:
    """Documents of a split of the planted corpus, as the grammar writes them."""
    data = self.data
    number = data.planted_documents if split == 'train' else data.planted_heldout_documents
    return self._write_planted(number, SPLITS.index(split))

  def _write_planted(self, number: int, stream: int) -> list[str]:
    data = self.data
    common = {'num_documents': number, 'seed': data.seed, 'strength': data.planted_strength,
              'stream': stream}
    if data.source == 'planted_gender':
      return make_gender_documents(**common, opinion_share=data.planted_sensitive_share)
    return make_planted_documents(
      self.attribute, **common, sensitive_share=data.planted_sensitive_share,
      one_mood=data.planted_one_mood)

  def holdout(self) -> Holdout:
    """The split into train, valid and test; made at the first call."""
    counts = collections.Counter()
    return make_holdout(self._files('train', counts), self.data.holdout,
                        self.directory / 'holdout', counts=counts)

  def tfds_dataset(self, log: Callable[[str], None] = lambda line: None) -> 'TfdsDataset':
    """The TFDS dataset; made at the first call."""
    if self._builder is None:
      from fairjax.data.wikitext_builder import build_wikitext
      data = self.data
      self._builder = TfdsDataset(build_wikitext(
        data.source, self.tfds_dir, manual_dir=data.manual_dir, download=data.download,
        sha256=data.sha256, log=log))
    return self._builder

  def describe(self, saved: Mapping[str, Any]) -> dict[str, Any]:
    """What identifies the documents; digests of unchanged files are taken from `saved`."""
    cda = {'cda': describe_cda(self.data)} if self.data.cda else {}
    return self._describe_source(saved) | cda

  def _describe_source(self, saved: Mapping[str, Any]) -> dict[str, Any]:
    data = self.data
    if data.source in PLANTED_SOURCES:
      texts = self._write_planted(_SAMPLED_DOCUMENTS, 0)
      return {'planted': {
        'documents': data.planted_documents, 'heldout_documents': data.planted_heldout_documents,
        'strength': data.planted_strength, 'sensitive_share': data.planted_sensitive_share,
        **({'one_mood': True} if data.planted_one_mood else {}),
        'sample_sha256': hashlib.sha256('\n'.join(texts).encode()).hexdigest()}}
    inputs = {}
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
    if self.is_tfds:
      files = self.tfds_dataset().files
    else:
      files = {split: list_files(getattr(data, split))
               for split in (('train',) if data.holdout else SPLITS)}
    return inputs | {'files': describe_files_of(files, saved)}

  def _files(self, split: str, counts: collections.Counter | None) -> Iterator[str]:
    return self._read(getattr(self.data, split), counts)

  def _read(self, paths, counts: collections.Counter | None) -> Iterator[str]:
    data = self.data
    return read_documents(
      paths, layout=data.source, text_column=data.text_column, text_field=data.text_field,
      lines_per_document=data.lines_per_document, broken=data.broken,
      max_line_bytes=data.max_line_bytes, counts=counts, blank_lines=self.by_words)


def drop_blank_lines(text: str) -> str:
  r"""An article without its blank lines.

  >>> drop_blank_lines('\n= A =\n\ntext\n')
  '= A =\ntext'
  """
  return re.sub('\n+', '\n', text).strip('\n')


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
  """Path, size, time and digest of the files of splits.

  Args:
    files: split -> paths.
    saved: what `files` of it says of a file with the same path, size and time is taken over.

  Raises:
    UserError: a file cannot be read.
  """
  known = {(f['path'], f['bytes'], f['mtime_ns']): f['sha256']
           for split in saved.get('files', {}).values() for f in split}
  return {split: [_describe_file(path, known) for path in paths] for split, paths in files.items()}


def _describe_file(path: str, known: Mapping[tuple, str]) -> dict[str, Any]:
  """Path, size, time and digest; one with known path, size and time is not read again."""
  if is_pipe(path):
    raise UserError(f'{path} is no file, but a corpus is read several times, also when a run '
                    'continues: write it to a file')
  path, state = os.path.realpath(path), os.stat(path)
  digest = known.get((path, state.st_size, state.st_mtime_ns))
  if digest is None:
    try:
      with open(path, 'rb') as file:
        digest = hashlib.file_digest(file, 'sha256').hexdigest()
    except OSError as e:
      raise UserError(f'{path}: cannot be read ({e.strerror})') from None
  return {'path': path, 'bytes': state.st_size, 'mtime_ns': state.st_mtime_ns, 'sha256': digest}
