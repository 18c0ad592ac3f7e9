"""Documents as sentences for masked language models: read as streams, held out, augmented, counted.

The files are read anew for every pass, so that no text is held in memory: once to count (and to
choose what is held out), once to encode, and once more for counterfactual documents, which stand
behind all others.
"""

import collections
import contextlib
import dataclasses
import gzip
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fairjax.counterfactual import CdaCounts, GenderSwap, augment_document
from fairjax.data.corpus import describe_files_of
from fairjax.data.documents import list_files, read_documents, split_sentences
from fairjax.data.encode import encode_documents
from fairjax.data.prepare import INPUTS, PROGRESS, check_unchanged
from fairjax.data.token_store import (
  NoMatcher,
  TokenStoreInfo,
  open_token_store,
  write_token_store,
)
from fairjax.errors import UserError
from fairjax.files import (
  MANIFEST,
  FolderLock,
  atomic_write,
  is_complete,
  read_manifest,
  read_sealed_json,
  refuse_existing,
  write_sealed_json,
)
from fairjax.progress import Progress
from fairjax.vocabulary import Encoder, load_encoder

# Counterfactual data augmentation of a text file, a line at a time.

def augment_file(
  source: str | os.PathLike, output: str | os.PathLike, swap: GenderSwap, *, sided: str, unit: str,
  log: Callable[[str], None],
) -> dict[str, Any]:
  """Writes the lines of a file with their counterfactual ones; in memory is one line at a time.

  Args:
    source: text, plain or gzip; a line is a document of one sentence or more.
    output: must not exist; gzip if its name ends in .gz.
    swap: makes counterfactuals.
    sided: one or two, see `augment_document`.
    unit: sentence or document.
    log: gets lines of progress.

  Returns:
    input, output, sided, unit, swap (fingerprint), lines_read, lines_written, blank_lines and
    whatever else was changed in reading, and the fields of `CdaCounts`.

  Raises:
    UserError: a file that cannot be read, or is there already; with file and line.
  """
  output, counts, reading = refuse_existing(output), CdaCounts(), collections.Counter()
  read = written = 0
  with contextlib.ExitStack() as stack:
    file = stack.enter_context(atomic_write(output))
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


_HOLDOUT = 0x401D
_MOST_WORDS = 20  # of those that were swapped, and kept, in the counts


class Survey(NamedTuple):
  """What the first pass has counted.

  Attributes:
    train, valid: documents, before augmentation; those held out are no longer in `train`.
    read: of `read_documents` over all files, and `headings_left_out` (lines of WikiText headings,
      which are no sentences).
  """

  train: int
  valid: int
  read: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Augmentation:
  """Counterfactual data augmentation (W-14 to W-16).

  Attributes:
    swap: makes a counterfactual.
    sided: 'one' (counterfactual sentences only; neutral ones are left out) or 'two' (all sentences
      and the counterfactual ones; neutral ones once).
  """

  swap: GenderSwap
  sided: str


@dataclasses.dataclass(frozen=True)
class SentenceCorpus:
  """Documents to learn and to validate; a text of it is a document of one sentence a line.

  Attributes:
    data: files to learn, see `list_files`.
    valid: files to validate; None: a seeded choice of the documents of `data` is held out.
    layout: of all, see `read_documents`.
    text_field: see `read_documents`.
    seed: of the choice, >= 0.
    augmentation: of what is learned; None: none. What is validated is never augmented, so that
      models with and without CDA are compared on the same text.
    valid_share: of the documents, at least one; only without `valid`.
  """

  data: tuple[str, ...]
  valid: tuple[str, ...] | None = None
  layout: str = 'lines'
  text_field: str = 'text'
  seed: int = 0
  augmentation: Augmentation | None = None
  valid_share: float = 0.02

  def describe(self, saved: Mapping[str, Any]) -> dict[str, Any]:
    """What identifies the texts; digests of unchanged files are taken from `saved`.

    Raises:
      UserError: a file is missing, named twice, or cannot be read.
    """
    files = {'train': list_files(self.data)}
    if self.valid is not None:
      files['valid'] = list_files(self.valid)
    found: dict[str, Any] = {'layout': self.layout, 'files': describe_files_of(files, saved)}
    if self.layout in ('jsonl', 'csv', 'parquet'):
      found['text_field'] = self.text_field
    if self.valid is None:
      found['holdout'] = {'share': self.valid_share, 'seed': self.seed}
    if self.augmentation is not None:
      found['cda'] = {'sided': self.augmentation.sided, 'swap': self.augmentation.swap.fingerprint}
    return found

  def survey(self) -> Survey:
    """Reads everything once and counts.

    Raises:
      UserError: a file cannot be used, or there are too few documents to hold some out.
    """
    counts: collections.Counter = collections.Counter()
    train = sum(1 for _ in self._counted(self.data, counts))
    if self.valid is not None:
      valid = sum(1 for _ in self._counted(self.valid, counts))
    elif train < 2:
      raise UserError(f'{train} document(s) are too few to hold some out: give --valid')
    else:
      valid = max(1, round(self.valid_share * train))
      train -= valid
    return Survey(train, valid, {name: int(n) for name, n in sorted(counts.items())})

  def texts(self, split: str, survey: Survey, cda: dict[str, Any] | None = None) -> Iterator[str]:
    """Documents of `train` or `valid` as they are learned or validated, read anew.

    Counterfactual documents come behind all others: in a row that held one beside its original, a
    model could read off what is masked.

    Args:
      split: which.
      survey: of `survey`.
      cda: gets, at the end of `train` with augmentation, what was done: settings and counts.

    Raises:
      UserError: one-sided CDA of a text without a gendered word, or a file cannot be used.
    """
    how = self.augmentation
    if split == 'valid' or how is None or how.sided == 'two':
      for document in self._documents(split, survey):
        yield '\n'.join(split_sentences(document))
    if split == 'train' and how is not None:
      yield from self._counterfactual(survey, how, {} if cda is None else cda)

  def _counterfactual(self, survey: Survey, how: Augmentation, told: dict[str, Any]
                      ) -> Iterator[str]:
    counts, number = CdaCounts(), 0
    for document in self._documents('train', survey):
      found = augment_document(
        document, how.swap, how.sided, unit='sentence', split=split_sentences, counts=counts)
      for text in found[how.sided == 'two':]:
        number += 1
        yield '\n'.join(split_sentences(text))
    if not number:
      raise UserError('CDA found no gendered word in the text: nothing would change; leave --cda '
                      'out or give other --pairs or --names')
    told.update({'sided': how.sided, 'swap': how.swap.fingerprint,
                 'counterfactual_documents': number, **counts.to_dict()})
    for name in ('words', 'kept'):
      told[name] = dict(list(told[name].items())[:_MOST_WORDS])

  def _documents(self, split: str, survey: Survey) -> Iterator[str]:
    """Documents of the files, without those that the other split has of them."""
    if self.valid is not None:
      yield from self._read(self.data if split == 'train' else self.valid)
      return
    held = np.zeros(survey.train + survey.valid, bool)
    chosen = np.random.default_rng([self.seed, _HOLDOUT]).permutation(len(held))
    held[chosen[:survey.valid]] = True
    wanted = split == 'valid'
    for document, out in zip(self._read(self.data), held, strict=True):
      if out == wanted:
        yield document

  def _read(self, files: tuple[str, ...], counts: collections.Counter | None = None
            ) -> Iterator[str]:
    return read_documents(
      files, layout=self.layout, text_field=self.text_field, counts=counts)

  def _counted(self, files: tuple[str, ...], counts: collections.Counter) -> Iterator[str]:
    for document in self._read(files, counts):
      counts['headings_left_out'] += sum(
        line.startswith('=') and not split_sentences(line) for line in document.split('\n'))
      yield document


# From sentences to token stores for masked language models: `prepare_sentences`, resumable.
#
#     DIRECTORY/
#       inputs.json               what everything is made from: files with digests, tokenizer, CDA
#       survey.json               what the first pass over the files has counted
#       vocabulary/               the tokenizer, see `fairjax.vocabulary`
#       cda.json                  what augmentation did
#       train/ valid/             token stores
#       progress/                 encoded chunks of a preparation that is not finished
#       manifest.json             written last, see `fairjax.files`
#
# Encoding, chunks and stores are those of the curriculum (`fairjax.data.encode`, `token_store`).

SPLITS = ('train', 'valid')
Log = Callable[[str], None]
MakeEncoder = Callable[[Callable[[], Iterator[str]]], Encoder]


@dataclasses.dataclass(frozen=True)
class PreparedSentences:
  """Tokenizer and token stores.

  Attributes:
    directory: where they lie.
    encoder: of the ids.
    survey: documents of the files.
    cda: what augmentation did; empty without it.
    stores: 'train' and 'valid'.
  """

  directory: pathlib.Path
  encoder: Encoder
  survey: Survey
  cda: Mapping[str, Any]
  stores: Mapping[str, TokenStoreInfo]


def prepare_sentences(
  corpus: SentenceCorpus, directory: pathlib.Path, *, tokenizer: Mapping[str, Any],
  make_encoder: MakeEncoder, log: Log = print,
) -> PreparedSentences:
  """Makes what is missing in a folder.

  What is finished is not done again, and an interrupted preparation goes on at the next chunk. One
  process at a time.

  Args:
    corpus: the documents.
    directory: folder for the results.
    tokenizer: what identifies the tokenizer, plain JSON.
    make_encoder: gets a function that reads the texts to learn anew, as often as it is called; it
      is only asked where the folder has no tokenizer yet.
    log: gets one line at a time.

  Raises:
    UserError: files that cannot be used, or a folder that was made from other inputs (they are
      named), or that another process fills.
  """
  with FolderLock(directory, log):
    path, again = directory / INPUTS, f'delete {directory}, the same command makes it again'
    saved = read_sealed_json(path, again=again) if path.exists() else None
    inputs = corpus.describe(saved or {}) | {'tokenizer': dict(tokenizer)}
    if saved is None:
      write_sealed_json(path, inputs)
    else:
      check_unchanged(directory, saved, inputs)
    if not is_complete(directory):
      _prepare(corpus, directory, make_encoder, log)
    shutil.rmtree(directory / PROGRESS, ignore_errors=True)
  return open_sentences(directory)


def open_sentences(directory: pathlib.Path) -> PreparedSentences:
  """What `prepare_sentences` finished.

  Raises:
    UserError: it is not finished, or damaged.
  """
  again = f'delete {directory}, the same command makes it again'
  manifest = read_manifest(directory, again=again)
  encoder = load_encoder(directory / 'vocabulary')
  stores = {}
  for split in SPLITS:
    stores[split] = open_token_store(directory / split, vocabulary=encoder.fingerprint)
    if stores[split].sha256 != manifest['splits'][split]:
      raise UserError(f'{stores[split].path} is not the store that {directory / "manifest.json"} '
                      f'names: {again}')
  return PreparedSentences(directory, encoder, Survey(**manifest['survey']), manifest['cda'],
                           stores)


def _prepare(corpus: SentenceCorpus, directory: pathlib.Path, make_encoder: MakeEncoder,
             log: Log) -> None:
  survey = _survey(corpus, directory)
  folder = directory / 'vocabulary'
  if not (folder / 'vocabulary.json').is_file():
    make_encoder(lambda: corpus.texts('train', survey)).save(folder)
  encoder = load_encoder(folder)
  again = f'delete {directory}, the same command makes it again'
  cda: dict[str, Any] = {}
  stores = {}
  for split in SPLITS:
    if is_complete(directory / split):
      stores[split] = open_token_store(directory / split, vocabulary=encoder.fingerprint)
      continue
    chunks = directory / PROGRESS / split
    augmented = split == 'train' and corpus.augmentation is not None
    encoded = encode_documents(  # the texts are read to their end also where chunks are there
      corpus.texts(split, survey, cda), chunks, vocabulary=encoder,
      size=None if augmented else getattr(survey, split), name=split, log=log)
    if augmented:
      write_sealed_json(directory / 'cda.json', cda)
    stores[split] = write_token_store(
      directory / split, encoded, split=split, matcher=NoMatcher(encoder))
    shutil.rmtree(chunks)
  if corpus.augmentation is not None:
    cda = read_sealed_json(directory / 'cda.json', again=again)
  write_sealed_json(directory / MANIFEST, {
    'survey': survey._asdict(), 'cda': cda, 'vocabulary': encoder.fingerprint,
    'splits': {split: store.sha256 for split, store in stores.items()}})


def _survey(corpus: SentenceCorpus, directory: pathlib.Path) -> Survey:
  """Counts the documents, once."""
  path = directory / 'survey.json'
  if path.is_file():
    return Survey(**read_sealed_json(path, again=f'delete {directory}, the same command makes it '
                                     'again'))
  survey = corpus.survey()
  write_sealed_json(path, survey._asdict())
  return survey
