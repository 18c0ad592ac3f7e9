"""From documents to a vocabulary and token stores: `prepare_data`, resumable and checked.

    DIRECTORY/
      inputs.json               what everything is made from: files with digests, attribute, ...
      vocabulary/               see fairjax.vocabulary
      train/ valid/ test/       token stores of all documents
      train_sensitive/ ...      those of documents with a sensitive token (H-23, H-25)
      manifest.json             written last

TensorFlow is imported only where a store has to be written.
"""

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fairjax.config import Config, DataConfig
from fairjax.config_files import config_differences
from fairjax.counterfactual import Attribute, TextMatcher, TokenMatcher, replacement_pieces
from fairjax.data.documents import list_files, read_documents
from fairjax.data.planted import make_planted_documents
from fairjax.data.token_store import (
  TokenStoreInfo,
  open_token_store,
  write_sensitive_store,
  write_token_store,
)
from fairjax.errors import UserError, unknown_name
from fairjax.files import write_json
from fairjax.vocabulary import (
  Vocabulary,
  build_word_vocabulary,
  load_vocabulary,
  train_sentencepiece,
)

SPLITS = ('train', 'valid', 'test')
SENSITIVE = '_sensitive'
# Documents whose text stands for the grammar's version in the fingerprint of a planted corpus.
_SAMPLED_DOCUMENTS = 200


@dataclasses.dataclass(frozen=True)
class PreparedData:
  """Vocabulary and token stores of a run.

  Attributes:
    directory: where they lie.
    attribute: the sensitive attribute.
    vocabulary: of all stores.
    config: what they were made with.
    manifest: inputs, vocabulary and the numbers of every split, as in manifest.json.
  """

  directory: pathlib.Path
  attribute: Attribute
  vocabulary: Vocabulary
  config: DataConfig
  manifest: Mapping[str, Any]

  @property
  def fingerprint(self) -> str:
    """SHA-256 (hex) of all tokens, the vocabulary and the attribute; independent of paths."""
    content = {
      'attribute': self.attribute.fingerprint, 'vocabulary': self.vocabulary.fingerprint,
      'splits': {k: v['sha256'] for k, v in self.manifest['splits'].items()}}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

  def store(self, split: str) -> TokenStoreInfo:
    """Token store of `train`, `valid`, `test`, or one of these with `_sensitive` behind it.

    Raises:
      UserError: unknown split, or a store that is damaged.
    """
    if split not in self.manifest['splits']:
      raise unknown_name('split', split, self.manifest['splits'])
    return open_token_store(
      self.directory / split, vocabulary=self.vocabulary.fingerprint,
      attribute=self.attribute.fingerprint)

  def documents(self, split: str) -> Iterator[str]:
    """Texts of a split, in the order of the source, read anew."""
    base = split.removesuffix(SENSITIVE)
    if base not in SPLITS:
      raise unknown_name('split', split, self.manifest['splits'])
    texts = _read_split(self.config, self.attribute, base)
    if base == split:
      return iter(texts)
    matcher = TextMatcher(self.attribute)
    return (text for text in texts if matcher.find(text))


def prepare_data(
  config: Config, directory: str | os.PathLike, *, attribute: Attribute,
  vocabulary: Vocabulary | None = None, log: Callable[[str], None] = print,
) -> PreparedData:
  """Makes what is missing in a folder: vocabulary, token stores, manifest.

  What is finished is not done again, what was interrupted is done anew. One process at a time.

  Args:
    config: `config.data` names the documents.
    directory: folder for the results.
    attribute: the sensitive attribute.
    vocabulary: use this one instead of `config.data.vocabulary`.
    log: gets one line at a time.

  Raises:
    UserError: files that cannot be used, a training corpus without any sensitive token, or a
      folder that was made from other inputs (the differences are named).
  """
  directory, data = pathlib.Path(directory), config.data
  given = vocabulary
  if given is None and data.vocabulary not in ('sentencepiece', 'word'):
    given = load_vocabulary(data.vocabulary)
  saved = _read_json(directory / 'inputs.json')
  inputs = _describe_inputs(data, attribute, given, saved or {})
  if saved is None:
    write_json(directory / 'inputs.json', inputs)
  else:
    _check_unchanged(directory, saved, inputs)
  vocabulary = _make_vocabulary(data, directory / 'vocabulary', attribute, given, log)
  manifest = _read_json(directory / 'manifest.json')
  if manifest is None:
    stores, counts = _make_stores(config, directory, attribute, vocabulary, log)
    manifest = {
      'inputs': inputs, 'vocabulary': vocabulary.fingerprint, 'normalised': counts,
      'splits': {s.split: _summary(s) for s in stores}}
    write_json(directory / 'manifest.json', manifest)
    manifest = _read_json(directory / 'manifest.json')
  prepared = PreparedData(directory, attribute, vocabulary, data, manifest)
  for split in manifest['splits']:
    prepared.store(split)
  return prepared


def _read_split(
  data: DataConfig, attribute: Attribute, split: str,
  counts: collections.Counter | None = None) -> Iterator[str] | list[str]:
  """Documents of a split."""
  if data.source == 'planted':
    number = data.planted_documents if split == 'train' else data.planted_heldout_documents
    return make_planted_documents(
      attribute, num_documents=number, seed=data.seed, strength=data.planted_strength,
      sensitive_share=data.planted_sensitive_share, stream=SPLITS.index(split))
  return read_documents(getattr(data, split), layout=data.source, text_column=data.text_column,
                        counts=counts)


def _describe_inputs(
  data: DataConfig, attribute: Attribute, given: Vocabulary | None, saved: Mapping[str, Any],
) -> dict[str, Any]:
  """Everything that the results depend on; digests of unchanged files are taken from `saved`."""
  inputs = {
    'source': data.source, 'order_seed': data.seed,
    'attribute': {'name': attribute.name, 'fingerprint': attribute.fingerprint},
    'vocabulary': {'given': given.fingerprint} if given is not None else {
      'kind': data.vocabulary, 'size': data.vocab_size},
  }
  if data.source == 'planted':
    texts = make_planted_documents(
      attribute, num_documents=_SAMPLED_DOCUMENTS, seed=data.seed, strength=data.planted_strength,
      sensitive_share=data.planted_sensitive_share)
    return inputs | {'planted': {
      'documents': data.planted_documents, 'heldout_documents': data.planted_heldout_documents,
      'strength': data.planted_strength, 'sensitive_share': data.planted_sensitive_share,
      'sample_sha256': hashlib.sha256('\n'.join(texts).encode()).hexdigest()}}
  if data.source == 'tsv':
    inputs['text_column'] = data.text_column
  known = {(f['path'], f['bytes'], f['mtime_ns']): f['sha256']
           for files in saved.get('files', {}).values() for f in files}
  inputs['files'] = {
    split: [_describe_file(path, known) for path in list_files(getattr(data, split))]
    for split in SPLITS}
  return inputs


def _describe_file(path: str, known: Mapping[tuple, str]) -> dict[str, Any]:
  """Path, size, time and digest; one with known path, size and time is not read again."""
  path, state = os.path.realpath(path), os.stat(path)
  digest = known.get((path, state.st_size, state.st_mtime_ns))
  if digest is None:
    try:
      with open(path, 'rb') as file:
        digest = hashlib.file_digest(file, 'sha256').hexdigest()
    except OSError as e:
      raise UserError(f'{path}: cannot be read ({e.strerror})') from None
  return {'path': path, 'bytes': state.st_size, 'mtime_ns': state.st_mtime_ns, 'sha256': digest}


def _check_unchanged(directory, saved, inputs) -> None:
  """Raises if the folder was made from something else; moved or touched files are fine."""
  def comparable(values):
    values = dict(values)
    files = values.pop('files', {})
    names = {split: {str(i): f['sha256'] for i, f in enumerate(fs)} for split, fs in files.items()}
    return values | {'files': names}

  differences = config_differences(comparable(saved), comparable(inputs))
  if not differences:
    return
  for i, difference in enumerate(differences):
    field, _, _ = difference.partition(':')
    if field.startswith('files.'):
      _, split, number = field.split('.')
      current = inputs.get('files', {}).get(split, [])
      name = current[int(number)]['path'] if int(number) < len(current) else f'file {number}'
      differences[i] = f'{split}: {name} has changed'
  raise UserError(f'{directory} was made from other data ({"; ".join(differences[:5])}): use '
                  'another folder, or delete it to make it anew')


def _make_vocabulary(data, directory, attribute, given, log) -> Vocabulary:
  """Loads the folder's vocabulary, or makes it from the training documents."""
  if (directory / 'vocabulary.json').exists():
    return load_vocabulary(directory)
  if given is not None:
    given.save(directory)
    return given
  make = build_word_vocabulary if data.vocabulary == 'word' else train_sentencepiece
  texts = _read_split(data, attribute, 'train')
  if data.source == 'planted':
    texts = texts + _word_list(texts)
  vocabulary = make(texts, size=data.vocab_size, directory=directory)
  log(f'[data] {data.vocabulary} vocabulary of {vocabulary.size} ids from the training documents')
  return vocabulary


def _word_list(texts: list[str]) -> list[str]:
  """Lines that make every word of a small corpus a candidate for one piece.

  SentencePiece considers strings that occur in two different words, and of the grammar's words
  many never stand before a full stop.
  """
  words = sorted({word for text in texts for word in re.findall(r'\w+', text)})
  return [f'{word} {word}.' for word in words]


def _make_stores(config, directory, attribute, vocabulary, log):
  """Writes the stores that are not complete; returns all, and what the reader normalised."""
  from fairjax.data import tasks

  data, matcher, stores = config.data, TokenMatcher(attribute, vocabulary), []
  counts = {split: collections.Counter() for split in SPLITS}
  if data.source == 'planted':
    source = tasks.planted_source({s: _read_split(data, attribute, s) for s in SPLITS})
  else:
    source = tasks.file_source(
      {s: list(getattr(data, s)) for s in SPLITS},
      lambda split: _read_split(data, attribute, split, counts[split]))
  task = tasks.register_document_task(f'fairjax_{data.source}', source, vocabulary)
  for split in SPLITS:
    store = write_token_store(
      directory / split, tasks.tokenized_documents(task, split), split=split, matcher=matcher,
      order_seed=data.seed if split == 'train' else None)
    if split == 'train' and not store.matches:
      raise _no_sensitive_token(attribute, store)
    sensitive = write_sensitive_store(
      directory / f'{split}{SENSITIVE}', store, split=f'{split}{SENSITIVE}')
    stores += [store, sensitive]
    _report(store, sensitive, counts[split], log)
  missing = [v.text for v, n in zip(attribute.values, stores[0].value_counts, strict=True) if not n]
  if missing:
    log(f'[data] values of {attribute.name} that no training document holds as tokens: '
        + ', '.join(missing))
  for line in replacement_pieces(attribute, vocabulary).unusable(
      num_pieces=config.debias.pieces_per_branch):
    log(f'[data] never a counterfactual: {line}')
  return stores, {s: dict(c) for s, c in counts.items()}


def _no_sensitive_token(attribute: Attribute, store: TokenStoreInfo) -> UserError:
  values = ', '.join(attribute.value_texts[:5]) + (', ...' if len(attribute.values) > 5 else '')
  hint = 'choose an attribute that the text mentions (--config.attribute=...) or more text'
  if store.unaligned:
    hint = (f'{store.unaligned} stand inside other tokens: use --config.data.vocabulary='
            'sentencepiece, or tokenised text')
  return UserError(f'the training documents hold no sensitive token of attribute '
                   f"'{attribute.name}' ({values}): {hint}")


def _report(store: TokenStoreInfo, sensitive: TokenStoreInfo, counts, log) -> None:
  log(f'[data] {store.split}: {store.documents:,} documents, {store.words:,} words, '
      f'{store.tokens:,} tokens; {sensitive.documents:,} documents with a sensitive token '
      f'({store.matches:,} in all)')
  changes = {k: v for k, v in counts.items()
             if v and k not in ('files', 'lines', 'documents', 'blank_lines')}
  if changes:
    log(f'[data] {store.split}, normalised or left out: '
        + ', '.join(f'{v:,} {k.replace("_", " ")}' for k, v in sorted(changes.items())))
  if store.unaligned:
    log(f'[data] {store.split}: {store.unaligned:,} sensitive tokens stand inside other tokens and '
        'are not used')


def _summary(store: TokenStoreInfo) -> dict[str, Any]:
  values = dataclasses.asdict(store)
  for field in ('path', 'split', 'vocabulary', 'attribute'):
    del values[field]
  return values


def _read_json(path: pathlib.Path) -> dict[str, Any] | None:
  if not path.exists():
    return None
  try:
    return json.loads(path.read_text(encoding='utf-8'))
  except ValueError as e:
    raise UserError(f'{path} is damaged ({e}): delete its folder and make it again') from None
