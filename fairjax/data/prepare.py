"""From documents to a vocabulary and token stores, resumable and checked.

`prepare_data` prepares the documents of a config, `prepare_sentences` those of a masked language
model. Both fill a folder:

    DIRECTORY/
      inputs.json            what everything is made from: files with digests, attribute, ...
      vocabulary/            see fairjax.vocabulary
      train/ valid/ test/    token stores (sentences: no test)
      train_sensitive/ ...   those of documents with a sensitive token (H-23, H-25)
      holdout/ tfds/         see fairjax.data.corpus and tfds_wikitext, where they are used
      survey.json            sentences: counts of the first pass
      progress/              encoded chunks of a preparation that is not finished
      manifest.json          written last, see fairjax.files

With `data.reader=seqio` documents become tokens in the seqio task of `fairjax.data.seqio_tasks`,
else in Python; the ids are the same.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import re
import shutil
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fairjax.config import (
  FILE_SOURCES,
  MACHINE_FIELDS,
  PLANTED_SOURCES,
  STAGES,
  TFDS_SOURCES,
  WIKITEXT_SOURCES,
  Config,
  DataConfig,
)
from fairjax.config_io import config_differences, from_dict
from fairjax.counterfactual import (
  Attribute,
  Replacements,
  TokenMatcher,
  list_attributes,
  load_attribute,
)
from fairjax.counterfactual.word_forms import written_forms
from fairjax.data.corpus import SPLITS, Corpus, importing_tensorflow
from fairjax.data.documents import sample_lines
from fairjax.data.sentence_text import SentenceCorpus, Survey
from fairjax.data.token_store import (
  Tokenize,
  TokenStoreInfo,
  encode_documents,
  open_token_store,
  write_sensitive_store,
  write_token_store,
)
from fairjax.errors import UserError
from fairjax.files import (
  MANIFEST,
  FolderLock,
  describe_files,
  is_complete,
  json_sha256,
  read_checked,
  read_manifest,
  read_sealed_json,
  write_sealed_json,
)
from fairjax.vocabulary import (
  WORDS_VERSION,
  Encoder,
  Vocabulary,
  WordVocabulary,
  build_word_vocabulary,
  load_encoder,
  load_vocabulary,
  train_sentencepiece,
)

SENSITIVE = '_sensitive'
INPUTS = 'inputs.json'
HOLDOUT = 'holdout/holdout.json'
SURVEY = 'survey.json'  # of sentences only
PROGRESS = 'progress'  # folder of what an interrupted run goes on with
_COUNTED = 1 << 24  # tokens that are counted at once


def import_seqio_tasks() -> types.ModuleType:
  """`fairjax.data.seqio_tasks`; `UserError` where TensorFlow or seqio is not installed."""
  with importing_tensorflow('data.reader=seqio', '; or set --config.data.reader=numpy, which gives '
                            'the same batches'):
    from fairjax.data import seqio_tasks
  return seqio_tasks


def check_inputs(
  directory: pathlib.Path, describe: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
  """Saves the inputs of a folder, or compares them with those of which it holds something."""
  path = directory / INPUTS
  kept = read_sealed_json(path, again=_AGAIN) if path.exists() else None
  if kept is None and is_complete(directory):
    kept = read_manifest(directory, again=_AGAIN).get('inputs')
  elif kept is None and any(is_complete(found) for found in directory.glob('*/')):
    raise UserError(f'{path} is missing, so nothing says what {directory} was made from: {_AGAIN}')
  inputs, saved = describe(kept or {}), kept
  made = [x for x in directory.glob('[!.]*') if x != path and not x.name.startswith('lexicon_')]
  if saved is not None and not (directory / SURVEY).is_file():
    # A broken file of a later split may have been mended: nothing was made of it.
    read = saved.get('files', {})
    mended = {split: files for split, files in inputs.get('files', {}).items()
              if split != 'train' and not is_complete(directory / split)
              and read.get(split) not in (None, files)}
    for split in mended:
      shutil.rmtree(directory / PROGRESS / split, ignore_errors=True)
    if mended:
      saved = saved | {'files': read | mended}
  if saved is None or not made and saved != inputs:  # the broken file that stopped it was mended
    write_sealed_json(path, inputs)
  else:
    check_unchanged(directory, saved, inputs)
    if kept != inputs or not path.exists():  # new places or times: the next start would hash again
      with contextlib.suppress(OSError, UserError):  # finished data may be read-only
        write_sealed_json(path, inputs)
  return inputs


def make_store(
  directory: pathlib.Path, split: str, texts: Iterable[str], *, vocabulary: Encoder,
  matcher: TokenMatcher | None = None, tokenize: Tokenize | None = None, size: int | None = None,
  order_seed: int | None = None, counts: Mapping[str, Any] | None = None,
  log: Callable[[str], None],
) -> TokenStoreInfo:
  """Encodes the documents of a split and writes its store; `counts` grow while texts are read."""
  chunks, unknown = directory / PROGRESS / split, 0

  def read():  # to the end in every run, also where chunks of an earlier one are kept
    nonlocal unknown
    for text in texts:
      unknown += matcher.count_unknown(text) if matcher else 0
      yield text

  encoded = encode_documents(
    read(), chunks, vocabulary=vocabulary, tokenize=tokenize, size=size, name=split, log=log)
  store = write_token_store(
    directory / split, encoded, vocabulary=vocabulary, matcher=matcher, order_seed=order_seed,
    unknown=unknown,
    normalised=+counts if isinstance(counts, collections.Counter) else counts)
  shutil.rmtree(chunks)
  return store


def _make_stores(
  config: Config, corpus: Corpus, vocabulary: Vocabulary, log: Callable[[str], None],
) -> tuple[list[TokenStoreInfo], dict[str, dict[str, Any]]]:
  """Writes the stores that are not complete; all stores, and counts for the manifest."""
  attribute, directory = corpus.attribute, corpus.directory
  matcher, stores, digests, normalised, in_train, unknown = None, [], {}, {}, {}, {}
  for split in SPLITS:
    if is_complete(directory / split):  # of an interrupted run
      store = open_token_store(directory / split, vocabulary=vocabulary.fingerprint,
                               attribute=attribute.fingerprint)
    else:
      matcher, counts = matcher or TokenMatcher(attribute, vocabulary), collections.Counter()
      tokenize = None if corpus.data.reader == 'numpy' else functools.partial(
        import_seqio_tasks().tokenize_chunks, vocabulary)
      store = make_store(
        directory, split, corpus.texts(split, counts), vocabulary=vocabulary, matcher=matcher,
        tokenize=tokenize, size=corpus.size(split),
        order_seed=corpus.data.seed if split == 'train' else None, counts=counts, log=log)
    if split == 'train' and not store.matches:
      fault = _no_sensitive_token(corpus, store)
      if config.until == STAGES[-1]:
        raise UserError(fault)
      log(f'[data] WARNING: step 3 will lack text: {fault}')
    sensitive = write_sensitive_store(directory / f'{split}{SENSITIVE}', store)
    stores += [store, sensitive]
    normalised[split] = dict(store.normalised)
    digests[split] = store.open_documents()[:, 4]
    if split != 'train':
      in_train[split] = int(np.isin(digests[split], digests['train']).sum())
    _report(store, sensitive, in_train.get(split, 0), log)
    if vocabulary.kind == 'word':
      unknown[split] = _count_tokens(store, vocabulary.unk_id)
      log(f'[data] {split}: {unknown[split]:,} of the tokens stand for unknown words '
          f'({unknown[split] / max(store.tokens, 1):.1%})')
  missing = [v.text for v, n in zip(attribute.values, stores[0].value_counts, strict=True) if not n]
  if missing:
    log(f'[data] values of {attribute.name} that no training document holds as tokens: '
        + ', '.join(missing))
  for line in Replacements(attribute, vocabulary).unusable(
      num_pieces=config.debias.pieces_per_branch):
    log(f'[data] never a counterfactual: {line}')
  if corpus.data.holdout:
    normalised['all'] = dict(corpus.holdout().counts)
  return stores, {'normalised': normalised, 'documents_in_train': in_train,
                  'unknown_words': unknown}


def _count_tokens(store: TokenStoreInfo, token: int) -> int:
  """How often a token occurs."""
  tokens = store.open_tokens()
  return sum(int((tokens[i:i + _COUNTED] == token).sum()) for i in range(0, len(tokens), _COUNTED))


def _no_sensitive_token(corpus: Corpus, store: TokenStoreInfo) -> str:
  attribute = corpus.attribute
  values = ', '.join(attribute.value_texts[:5]) + (', ...' if len(attribute.values) > 5 else '')
  hint = (f'delete {corpus.directory} and choose an attribute that the text mentions '
          '(--config.attribute=...) or more text')
  if store.unaligned:
    hint = (f'{store.unaligned} are inside other tokens or unknown words: delete '
            f'{corpus.directory} and use --config.data.vocabulary=sentencepiece, or tokenised text')
  return (f"the training documents hold no sensitive token of attribute '{attribute.name}' "
          f'({values}): {hint}')


def _report(store: TokenStoreInfo, sensitive: TokenStoreInfo, in_train: int,
            log: Callable[[str], None]) -> None:
  log(f'[data] {store.split}: {store.documents:,} documents, {store.words:,} words, '
      f'{store.tokens:,} tokens; {store.matches:,} sensitive ones in '
      f'{sensitive.documents:,} documents')
  _report_changes(store.split, store.normalised, log)
  if store.repeated or in_train:
    log(f'[data] {store.split}: {store.repeated:,} documents repeat an earlier one'
        + (f', {in_train:,} are in train too' if store.split != 'train' else '')
        + ' (as tokens); they are kept')
  if store.unaligned:
    log(f'[data] {store.split}: {store.unaligned:,} sensitive tokens are inside other tokens or '
        'unknown words and are not used')


def _report_changes(name: str, counts: Mapping[str, int], log: Callable[[str], None]) -> None:
  changes = {k: v for k, v in counts.items()
             if v and k not in ('files', 'lines', 'documents', 'blank_lines')}
  if changes:
    log(f'[data] {name}, normalised or left out: '
        + ', '.join(f'{v:,} {k.replace("_", " ")}' for k, v in sorted(changes.items())))


_AGAIN = 'delete the folder and run fairjax step data again'


@dataclasses.dataclass(frozen=True)
class PreparedData:
  """Vocabulary and token stores of a run."""

  directory: pathlib.Path
  attribute: Attribute
  vocabulary: Vocabulary
  config: DataConfig  # what they were made with
  manifest: Mapping[str, Any]  # inputs, vocabulary and the numbers of every split

  @property
  def corpus(self) -> Corpus:
    """The documents that the stores were made of."""
    return Corpus(self.config, self.attribute, self.directory,
                  by_words=self.vocabulary.kind == 'word')

  @property
  def fingerprint(self) -> str:
    """SHA-256 (hex) of all tokens, the vocabulary and the attribute; independent of paths."""
    content = {
      'attribute': self.attribute.fingerprint, 'vocabulary': self.vocabulary.fingerprint,
      'splits': {k: v['sha256'] for k, v in self.manifest['splits'].items()}}
    return json_sha256(content)

  def store(self, split: str) -> TokenStoreInfo:
    """Token store of `train`, `valid`, `test`, or `train_sensitive` and its like."""
    store = open_token_store(
      self.directory / split, vocabulary=self.vocabulary.fingerprint,
      attribute=self.attribute.fingerprint)
    if _summary(store) != self.manifest['splits'][split]:
      raise UserError(f'{store.path} is not the store that {self.directory / MANIFEST} names: '
                      f'{_AGAIN}')
    return store

  def documents(self, split: str) -> Iterator[str]:
    """Texts of a split, in the order of the source, read anew."""
    # A token inside another one has no span and makes no document sensitive: ask the store.
    base = split.removesuffix(SENSITIVE)
    texts = self.corpus.texts(base)
    if base == split:
      return texts
    chosen = set(self.store(split).open_documents()[:, 3].tolist())
    return (text for number, text in enumerate(texts) if number in chosen)


def prepare_data(
  config: Config, directory: str | os.PathLike, *, attribute: Attribute,
  vocabulary: Vocabulary | None = None, log: Callable[[str], None] = print,
) -> PreparedData:
  """Makes what is missing in a folder: vocabulary, token stores, manifest.

  An interrupted preparation goes on at the next chunk of documents. `vocabulary` replaces
  `config.data.vocabulary`. A folder of other inputs, or in use, is a `UserError`.
  """
  directory, data = pathlib.Path(directory), config.data
  given = vocabulary
  if given is None and data.vocabulary not in ('sentencepiece', 'word'):
    given = load_vocabulary(data.vocabulary)
  # Finished data may be read-only and need no lock.
  finished = _finished_manifest(directory) is not None
  with contextlib.nullcontext() if finished else FolderLock(directory, log):
    by_words = (data.vocabulary if given is None else given.kind) == 'word'
    return _prepare(config, Corpus(data, attribute, directory, by_words=by_words), given, log)


def _prepare(config: Config, corpus: Corpus, given: Vocabulary | None,
             log: Callable[[str], None]) -> PreparedData:
  directory = corpus.directory
  if corpus.data.source in TFDS_SOURCES:
    corpus.tfds_dataset(log)
  inputs = check_inputs(directory, lambda saved: _describe_inputs(corpus, given, saved))
  if corpus.data.holdout and not (directory / HOLDOUT).is_file():
    found = corpus.holdout()
    log(f'[data] held out after {found.train:,} training documents: the next {found.valid:,} as '
        f'valid, the last {found.test:,} as test')
    _report_changes('all files', found.counts, log)
  vocabulary = _make_vocabulary(corpus, directory / 'vocabulary', given, log)
  manifest = _finished_manifest(directory)
  if manifest is None:
    stores, counts = _make_stores(config, corpus, vocabulary, log)
    # A run that was killed while it wrote the vocabulary may have left a temporary file.
    made = sorted(f'vocabulary/{path.name}' for path in (directory / 'vocabulary').glob('[!.]*'))
    name = config.attribute  # a file is found from any folder
    manifest = {
      'files': describe_files(directory, made), 'inputs': inputs,
      'vocabulary': vocabulary.fingerprint, **counts,
      'config': {'attribute': os.path.realpath(name) if (
        os.path.isfile(name) and name not in list_attributes()) else name, 'data': {
        k: v for k, v in dataclasses.asdict(corpus.data).items()
        if f'data.{k}' not in MACHINE_FIELDS}},
      'splits': {s.split: _summary(s) for s in stores}}
    write_sealed_json(directory / MANIFEST, manifest)
    manifest = read_manifest(directory, again=_AGAIN)
  # Also where the manifest is of an earlier run, which was killed right after it.
  shutil.rmtree(directory / PROGRESS, ignore_errors=True)
  _check_vocabulary(directory, manifest)
  prepared = PreparedData(directory, corpus.attribute, vocabulary, corpus.data, manifest)
  for split in manifest['splits']:
    prepared.store(split)
  return prepared


def _finished_manifest(directory: pathlib.Path) -> dict[str, Any] | None:
  """The manifest of a folder whose stores are all there: one that was deleted is made again."""
  if not is_complete(directory):
    return None
  manifest = read_manifest(directory, again=_AGAIN)
  return manifest if all(is_complete(directory / s) for s in manifest['splits']) else None


def _check_vocabulary(directory: pathlib.Path, manifest: Mapping[str, Any]) -> None:
  """Compares the vocabulary's files, which are small, with the manifest."""
  for name in manifest['files']:
    read_checked(directory, name, manifest['files'], again=_AGAIN)


def refuse_sentences(directory: pathlib.Path) -> None:
  """Raises `UserError` for a folder of `prepare_sentences`, finished or not."""
  if (directory / SURVEY).is_file():
    raise UserError(f'{directory} holds the text of a masked language model: fairjax models '
                    'masked-lm, which made it, checks it at every start')


def open_prepared(directory: str | os.PathLike) -> PreparedData:
  """Opens what `prepare_data` finished, from its folder alone, without the original files."""
  directory = pathlib.Path(directory)
  refuse_sentences(directory)
  if not is_complete(directory):
    raise UserError(f'no finished data in {directory}: run fairjax step data (of this version) '
                    'first; it fills the folder data of its workdir')
  manifest = read_manifest(directory, again=_AGAIN)
  _check_vocabulary(directory, manifest)
  saved = manifest['config']
  files = manifest['inputs']['files'] if saved['data']['source'] in FILE_SOURCES else {}
  config = from_dict({'data': saved['data'] | {
    split: [f['path'] for f in found] for split, found in files.items()}}).data
  attribute = load_attribute(saved['attribute'])
  if attribute.fingerprint != manifest['inputs']['attribute']['fingerprint']:
    raise UserError(f"attribute '{saved['attribute']}' is not the one that {directory} was made "
                    'with: restore its file')
  return PreparedData(
    directory, attribute, load_vocabulary(directory / 'vocabulary'), config, manifest)


def _describe_inputs(
  corpus: Corpus, given: Vocabulary | None, saved: Mapping[str, Any]) -> dict[str, Any]:
  """Everything that the results depend on; digests of unchanged files are taken from `saved`."""
  data, attribute = corpus.data, corpus.attribute
  vocabulary = {'kind': data.vocabulary, 'size': data.vocab_size}
  if data.vocab_sentences and data.vocabulary == 'sentencepiece':
    vocabulary['sentences'] = data.vocab_sentences
  if given is not None:
    vocabulary = {'given': given.fingerprint}
  if corpus.by_words:
    vocabulary['rule'] = WORDS_VERSION
  return {
    'source': data.source, 'order_seed': data.seed,
    'attribute': {'name': attribute.name, 'fingerprint': attribute.fingerprint},
    'vocabulary': vocabulary,
  } | corpus.describe(saved)


def check_unchanged(
  directory: pathlib.Path, saved: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
  """Compares what a folder was made from with what it would be; moved or touched files are fine."""
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


def _make_vocabulary(corpus: Corpus, directory: pathlib.Path, given: Vocabulary | None,
                     log: Callable[[str], None]) -> Vocabulary:
  """Loads the folder's vocabulary, or makes it from the training documents."""
  data = corpus.data
  documents = 'wikitext' if data.source in WIKITEXT_SOURCES else 'text'
  here = (directory / 'vocabulary.json').exists()
  if here or given is not None:
    found = load_vocabulary(directory) if here else given
    if isinstance(found, WordVocabulary) and found.documents != documents:
      found, here = found.reading(documents), False
    if not here:
      found.save(directory)
    return found
  texts: Iterable[str] = corpus.texts('train')
  vocabulary: Vocabulary
  if data.source in PLANTED_SOURCES:
    planted = list(texts)
    texts = planted + _word_list(planted)
  if data.vocabulary == 'word':
    if data.source == 'wikitext':
      begin = '\n'.join(itertools.islice(corpus.texts('train'), 200))
      if len(re.findall(r'\w,\s', begin)) > begin.count(' , '):
        log('[data] WARNING: WikiText is cut into words at its spaces, but this text is not '
            'written so ("city,", where WikiText has "city ,"): words before a sign become others '
            'than in prompts. Use data.vocabulary=sentencepiece, or another data.source')
    vocabulary = build_word_vocabulary(
      texts, size=data.vocab_size, directory=directory, documents=documents,
      keep=[form for value in corpus.attribute.values for token in (value.text, *value.tokens)
            for form in written_forms(token)[0]])
    kept = vocabulary.info['kept_words']
    of = f', {kept} rarer ones of {corpus.attribute.name} among them' if kept else ''
  else:
    info = {}
    if data.vocab_sentences:
      texts, info = sample_lines(texts, data.vocab_sentences, data.seed)
    vocabulary = train_sentencepiece(
      texts, size=data.vocab_size, directory=directory, info=info)
    info = vocabulary.info
    of = f' ({info["characters_used"]:,} of their {info["characters"]:,} characters)'
  log(f'[data] {data.vocabulary} vocabulary of {vocabulary.size} ids from the training documents'
      + of)
  return vocabulary


def _word_list(texts: list[str]) -> list[str]:
  """Lines that make every word of a small corpus a candidate for one piece."""
  # SentencePiece considers strings that occur in two different words, and of the grammar's words
  # many never occur before a full stop.
  words = sorted({word for text in texts for word in re.findall(r'\w+', text)})
  return [f'{word} {word}.' for word in words]


def _summary(store: TokenStoreInfo) -> dict[str, Any]:
  values = json.loads(json.dumps(dataclasses.asdict(store) | {'path': ''}))
  for field in ('path', 'split', 'vocabulary', 'attribute', 'normalised'):
    del values[field]
  return values | {'sha256': store.sha256}


# Sentences for masked language models.

SENTENCE_SPLITS = ('train', 'valid')
MakeEncoder = Callable[[Callable[[], Iterator[str]]], Encoder]


@dataclasses.dataclass(frozen=True)
class PreparedSentences:
  """Tokenizer and token stores of a `SentenceCorpus`."""

  directory: pathlib.Path
  encoder: Encoder
  survey: Survey  # documents of the files
  cda: Mapping[str, Any]  # what augmentation did; empty without it
  stores: Mapping[str, TokenStoreInfo]  # of `train` and `valid`


def prepare_sentences(
  corpus: SentenceCorpus, directory: pathlib.Path, *, tokenizer: Mapping[str, Any],
  make_encoder: MakeEncoder, log: Callable[[str], None] = print,
) -> PreparedSentences:
  """Makes what is missing in a folder; `tokenizer` (JSON) identifies what `make_encoder` makes."""
  with FolderLock(directory, log):
    check_inputs(directory, lambda saved: corpus.describe(saved) | {'tokenizer': dict(tokenizer)})
    if not is_complete(directory):
      _make_sentence_stores(corpus, directory, make_encoder, log)
    shutil.rmtree(directory / PROGRESS, ignore_errors=True)
  return open_sentences(directory)


def open_sentences(directory: pathlib.Path) -> PreparedSentences:
  """Opens what `prepare_sentences` finished."""
  again = f'delete {directory}, the same command makes it again'
  manifest = read_manifest(directory, again=again)
  encoder = load_encoder(directory / 'vocabulary')
  stores = {}
  for split in SENTENCE_SPLITS:
    stores[split] = open_token_store(directory / split, vocabulary=encoder.fingerprint)
    if stores[split].sha256 != manifest['splits'][split]:
      raise UserError(f'{stores[split].path} is not the store that {directory / MANIFEST} names: '
                      f'{again}')
  return PreparedSentences(directory, encoder, Survey(**manifest['survey']), manifest['cda'],
                           stores)


def _make_sentence_stores(corpus: SentenceCorpus, directory: pathlib.Path,
                          make_encoder: MakeEncoder, log: Callable[[str], None]) -> None:
  path, folder = directory / SURVEY, directory / 'vocabulary'
  if not path.is_file():
    write_sealed_json(path, corpus.survey()._asdict())
  survey = Survey(**read_sealed_json(
    path, again=f'delete {directory}, the same command makes it again'))
  if not (folder / 'vocabulary.json').is_file():
    make_encoder(lambda: corpus.texts('train', survey)).save(folder)
  encoder, stores = load_encoder(folder), {}
  for split in SENTENCE_SPLITS:
    if is_complete(directory / split):
      stores[split] = open_token_store(directory / split, vocabulary=encoder.fingerprint)
      continue
    cda: dict[str, Any] = {}  # filled by `texts`
    augmented = split == 'train' and corpus.augmentation is not None
    stores[split] = make_store(
      directory, split, corpus.texts(split, survey, cda), vocabulary=encoder, counts=cda,
      size=None if augmented else getattr(survey, split), log=log)
  write_sealed_json(directory / MANIFEST, {
    'survey': survey._asdict(), 'cda': stores['train'].normalised,
    'vocabulary': encoder.fingerprint,
    'splits': {split: store.sha256 for split, store in stores.items()}})
