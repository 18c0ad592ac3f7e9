"""The token stores of all splits of a corpus, with what was changed, left out or repeated."""

import collections
import shutil
from collections.abc import Callable, Mapping

import numpy as np

from fairjax.config import Config
from fairjax.counterfactual import Attribute, TokenMatcher, replacement_pieces
from fairjax.data.corpus import SPLITS, Corpus
from fairjax.data.encode import encode_documents
from fairjax.data.manifest import is_complete
from fairjax.data.token_store import (
  TokenStoreInfo,
  open_token_store,
  write_sensitive_store,
  write_token_store,
)
from fairjax.errors import UserError
from fairjax.vocabulary import Vocabulary

SENSITIVE = '_sensitive'
PROGRESS = 'progress'  # folder of what an interrupted run goes on with


def make_stores(
  config: Config, corpus: Corpus, vocabulary: Vocabulary, log: Callable[[str], None],
) -> tuple[list[TokenStoreInfo], dict[str, dict[str, int]]]:
  """Writes the stores that are not complete, and says what they hold.

  Args:
    config: of the run.
    corpus: its documents; the stores lie in its folder.
    vocabulary: of the tokens; it was saved in the folder.
    log: gets one line at a time.

  Returns:
    All stores, and counts for the manifest: `normalised` (split -> what the reader changed or left
    out) and `documents_in_train` (split -> documents that are in train too).

  Raises:
    UserError: a file cannot be used, or no training document holds a sensitive token.
  """
  attribute, matcher, stores, digests = corpus.attribute, None, [], {}
  normalised, in_train = {}, {}
  for split in SPLITS:
    store = _finished_store(corpus, split, vocabulary)
    if store is None:
      matcher = matcher or TokenMatcher(attribute, vocabulary)
      store = _make_store(corpus, split, matcher, log)
    if split == 'train' and not store.matches:
      raise _no_sensitive_token(attribute, store)
    sensitive = write_sensitive_store(
      corpus.directory / f'{split}{SENSITIVE}', store, split=f'{split}{SENSITIVE}')
    stores += [store, sensitive]
    normalised[split] = dict(store.normalised)
    digests[split] = store.open_documents()[:, 4]
    if split != 'train':
      in_train[split] = int(np.isin(digests[split], digests['train']).sum())
    _report(store, sensitive, in_train.get(split, 0), log)
  missing = [v.text for v, n in zip(attribute.values, stores[0].value_counts, strict=True) if not n]
  if missing:
    log(f'[data] values of {attribute.name} that no training document holds as tokens: '
        + ', '.join(missing))
  for line in replacement_pieces(attribute, vocabulary).unusable(
      num_pieces=config.debias.pieces_per_branch):
    log(f'[data] never a counterfactual: {line}')
  if corpus.data.holdout:
    normalised['all'] = dict(corpus.holdout().counts)
  return stores, {'normalised': normalised, 'documents_in_train': in_train}


def _make_store(corpus, split, matcher, log) -> TokenStoreInfo:
  """Encodes a split and writes its store."""
  counts, chunks = collections.Counter(), corpus.directory / PROGRESS / split
  unknown = 0

  def texts():  # read to the end in every run, also where chunks of an earlier one are kept
    nonlocal unknown
    for text in corpus.texts(split, counts):
      unknown += matcher.count_unknown(text)
      yield text

  encoded = encode_documents(
    texts(), chunks, vocabulary=matcher.vocabulary, size=corpus.size(split), name=split, log=log)
  store = write_token_store(
    corpus.directory / split, encoded, split=split, matcher=matcher, normalised=counts,
    unknown=unknown,
    order_seed=corpus.data.seed if split == 'train' else None)
  shutil.rmtree(chunks)
  return store


def _finished_store(corpus, split, vocabulary) -> TokenStoreInfo | None:
  """The store of an earlier, interrupted run, if it is complete."""
  if not is_complete(corpus.directory / split):
    return None
  return open_token_store(
    corpus.directory / split, vocabulary=vocabulary.fingerprint,
    attribute=corpus.attribute.fingerprint)


def _no_sensitive_token(attribute: Attribute, store: TokenStoreInfo) -> UserError:
  values = ', '.join(attribute.value_texts[:5]) + (', ...' if len(attribute.values) > 5 else '')
  hint = 'choose an attribute that the text mentions (--config.attribute=...) or more text'
  if store.unaligned:
    hint = (f'{store.unaligned} stand inside other tokens or unknown words: use '
            '--config.data.vocabulary=sentencepiece, or tokenised text')
  return UserError(f'the training documents hold no sensitive token of attribute '
                   f"'{attribute.name}' ({values}): {hint}")


def report_holdout(corpus: Corpus, log: Callable[[str], None]) -> None:
  """Says what is held out, when it was made."""
  made_before = (corpus.directory / 'holdout' / 'holdout.json').is_file()
  found = corpus.holdout()
  if not made_before:
    log(f'[data] held out behind {found.train:,} training documents: the next {found.valid:,} as '
        f'valid, the last {found.test:,} as test')
    _report_changes('all files', found.counts, log)


def _report(store: TokenStoreInfo, sensitive: TokenStoreInfo, in_train: int, log) -> None:
  log(f'[data] {store.split}: {store.documents:,} documents, {store.words:,} words, '
      f'{store.tokens:,} tokens; {sensitive.documents:,} documents with a sensitive token '
      f'({store.matches:,} in all)')
  _report_changes(store.split, store.normalised, log)
  if store.repeated or in_train:
    log(f'[data] {store.split}: {store.repeated:,} documents repeat an earlier one'
        + (f', {in_train:,} are in train too' if store.split != 'train' else '')
        + ' (as tokens); they are kept')
  if store.unaligned:
    log(f'[data] {store.split}: {store.unaligned:,} sensitive tokens stand inside other tokens or '
        'unknown words and are not used')


def _report_changes(name: str, counts: Mapping[str, int], log) -> None:
  changes = {k: v for k, v in counts.items()
             if v and k not in ('files', 'lines', 'documents', 'blank_lines')}
  if changes:
    log(f'[data] {name}, normalised or left out: '
        + ', '.join(f'{v:,} {k.replace("_", " ")}' for k, v in sorted(changes.items())))
