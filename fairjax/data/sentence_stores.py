"""From sentences to token stores for masked language models: `prepare_sentences`, resumable.

    DIRECTORY/
      inputs.json               what everything is made from: files with digests, tokenizer, CDA
      survey.json               what the first pass over the files has counted
      vocabulary/               the tokenizer, see `fairjax.vocabulary.pieces`
      cda.json                  what augmentation did
      train/ valid/             token stores
      progress/                 encoded chunks of a preparation that is not finished
      manifest.json COMPLETE    written last, see `fairjax.data.manifest`

Encoding, chunks and stores are those of the curriculum (`fairjax.data.encode`, `token_store`).
"""

import dataclasses
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fairjax.data.encode import encode_documents
from fairjax.data.manifest import is_complete, read_manifest, write_manifest
from fairjax.data.prepare import check_unchanged, read_json
from fairjax.data.sentence_corpus import SentenceCorpus, Survey
from fairjax.data.splits import PROGRESS
from fairjax.data.token_store import (
  NoMatcher,
  TokenStoreInfo,
  open_token_store,
  write_token_store,
)
from fairjax.errors import UserError
from fairjax.files import FolderLock, read_sealed_json, write_json, write_sealed_json
from fairjax.vocabulary import Encoder, load_encoder

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
    path = directory / 'inputs.json'
    saved = read_json(path)
    inputs = corpus.describe(saved or {}) | {'tokenizer': dict(tokenizer)}
    if saved is None:
      write_json(path, inputs)
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
  write_manifest(directory, {
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
