"""seqio: vocabularies, tasks that turn documents into tokens, feature converters, rows of batches.

A document task has the splits train, valid and test, in the order of the source and without
truncation. An example is `{'targets': ids with eos, 'targets_pretokenized': text}`: tensorflow_text
tokenises in the graph. `tokenize_chunks` prepares token stores through such a task; `seqio_batches`
reads their rows through another one and a feature converter. seqio's caches are in
`fairjax.data.seqio_cache`.
"""

import atexit
import collections
import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_text

from fairjax.counterfactual.branches import BranchBuilder
from fairjax.data.corpus import SPLITS, Corpus
from fairjax.data.token_store import TokenStoreInfo, token_rows
from fairjax.progress import without_native_lines
from fairjax.vocabulary import SentencePieceVocabulary, Vocabulary


class SeqioVocabulary(seqio.Vocabulary):
  """A fairjax vocabulary for seqio; in the graph it cuts every word of a batch into pieces once."""

  def __init__(self, vocabulary: Vocabulary):
    """Wraps a loaded vocabulary."""
    super().__init__()
    self._vocabulary = vocabulary

  def __reduce__(self):
    return SeqioVocabulary, (self._vocabulary,)  # what is in the graph cannot be pickled

  @property
  def bos_id(self) -> int | None:
    """There is none."""
    return None

  @property
  def eos_id(self) -> int:
    """End of a document."""
    return self._vocabulary.eos_id

  @property
  def unk_id(self) -> int:
    """Id of an unknown word or piece."""
    return self._vocabulary.unk_id

  @property
  def _base_vocab_size(self) -> int:
    return self._vocabulary.size

  def _encode(self, s: str) -> list[int]:
    return self._vocabulary.encode_batch([s])[0]

  def _decode(self, ids) -> str:
    return self._vocabulary.decode(ids)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
    """Ids `[tokens]` of one text, or `[B, (tokens)]` of B."""
    encode = self._pieces if isinstance(self._vocabulary, SentencePieceVocabulary) else self._words
    ids = encode(tf.reshape(s, [-1]))
    return ids if s.shape.rank else ids.values

  def _pieces(self, texts):
    words = tf.strings.split(texts, ' ')
    unique, places = tf.unique(words.values)
    # The tokenizer gives the empty word nothing: it is a space, unless the whole text is empty.
    number = tf.size(unique)
    pieces = tf.concat([self._tokenizer.tokenize(unique), tf.ragged.constant(
      [self._vocabulary.encode_as_continuation(' ', 'x'), []], tf.int32)], 0)
    places = tf.gather(tf.where(unique == '', number, tf.range(number)), places)
    places = tf.where(tf.repeat(texts == '', words.row_lengths()), number + 1, places)
    return words.with_values(tf.gather(pieces, places)).merge_dims(1, 2)

  def _words(self, texts):
    def encode(contents):
      found = self._vocabulary.encode_batch([c.decode('utf-8') for c in contents.tolist()])
      return (np.array([i for ids in found for i in ids], np.int32),
              np.array([len(ids) for ids in found], np.int64))

    ids, lengths = tf.numpy_function(encode, [texts], (tf.int32, tf.int64), stateful=False)
    ids.set_shape([None])
    lengths.set_shape([None])
    return tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)

  @functools.cached_property
  def _tokenizer(self):
    # It outlives the function that is being traced; SentencePiece writes about its normaliser.
    with tf.init_scope(), without_native_lines():
      return tensorflow_text.SentencepieceTokenizer(self._vocabulary.model)

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    def decode(rows):
      texts = [self._vocabulary.decode(r).encode('utf-8') for r in rows.reshape(-1, rows.shape[-1])]
      return np.array(texts, object).reshape(rows.shape[:-1])

    text = tf.numpy_function(decode, [ids], tf.string, stateful=False)
    text.set_shape(ids.shape[:-1])
    return text

  def __eq__(self, other: object) -> bool:
    return isinstance(other, SeqioVocabulary) and self._vocabulary == other._vocabulary

  def __hash__(self) -> int:
    return hash(self._vocabulary)


_BATCH = 128  # documents that enter the graph at a time
_ROW_BLOCK = 32  # rows that enter Python at a time


class DocumentSource(seqio.DataSource):
  """Documents that Python reads: TensorFlow's own readers end a cut file without an error."""

  def __init__(
    self, read: Callable[[str], Iterator[str]], *, shards: Mapping[str, list[str]],
    num_input_examples: Mapping[str, int] | None = None,
    read_shard: Callable[[str, int], Iterator[str]] | None = None,
  ):
    self._read, self._shards, self._read_shard = read, shards, read_shard
    self.error: Exception | None = None
    super().__init__(splits=tuple(shards), num_input_examples=num_input_examples,
                     caching_permitted=True)

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """As many shards as parts are the parts; otherwise a shard is every n-th document of all."""
    return True

  def list_shards(self, split: str) -> list[str]:
    """Names of the parts of a split."""
    return list(self._shards[split])

  def get_dataset(
    self, split='train', shuffle=False, seed=None, shard_info=None, *, sequence_length=None,
    use_cached=False, num_epochs=1,
  ) -> tf.data.Dataset:
    """Documents in their order as `{'targets': text}`."""
    del seed, sequence_length, use_cached, num_epochs
    if shuffle:
      raise ValueError('documents are read in their order: the token store orders them')
    number = shard_info.num_shards if shard_info is not None else 1
    by_part = self._read_shard is not None and number == len(self._shards[split]) > 1

    def generate():
      try:
        yield from self._read_shard(split, shard_info.index) if by_part else self._read(split)
      except Exception as e:
        self.error = e
        raise

    dataset = tf.data.Dataset.from_generator(
      generate, output_signature=tf.TensorSpec([], tf.string))
    if number > 1 and not by_part:
      dataset = dataset.shard(shard_info.num_shards, shard_info.index)
    return dataset.map(lambda text: {'targets': text}, num_parallel_calls=1)


def tokenize(
  dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]) -> tf.data.Dataset:
  """`seqio.preprocessors.tokenize` of the feature `targets`, many documents at a time."""
  def encode(batch):
    ids = output_features['targets'].vocabulary.encode_tf(batch['targets'])
    return {'targets_pretokenized': batch['targets'], 'targets': ids}

  return dataset.batch(_BATCH).map(
    encode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).unbatch()


def register_document_task(
  name: str, source: seqio.DataSource, vocabulary: Vocabulary) -> seqio.Task:
  """Adds the task of a source of `{'targets': text}` to seqio's registry, or replaces it there."""
  if name in seqio.TaskRegistry.names():
    seqio.TaskRegistry.remove(name)
  feature = seqio.Feature(SeqioVocabulary(vocabulary), add_eos=True)
  return seqio.TaskRegistry.add(
    name, source=source, output_features={'targets': feature}, shuffle_buffer_size=None,
    preprocessors=[tokenize, seqio.CacheDatasetPlaceholder(),
                   seqio.preprocessors.append_eos])


def register_corpus_task(corpus: Corpus, vocabulary: Vocabulary) -> seqio.Task:
  """Adds the task `fairjax_SOURCE` of a corpus, e.g. `fairjax_newscrawl`, to seqio's registry."""
  sizes = {split: corpus.size(split) for split in SPLITS}
  source = DocumentSource(
    corpus.texts, shards={split: corpus.shards(split) for split in SPLITS},
    num_input_examples=sizes if all(sizes.values()) else None, read_shard=corpus.shard_texts)
  return register_document_task(f'fairjax_{corpus.data.source}', source, vocabulary)


class Elements:
  """Iterator over a dataset that ends its threads before Python ends.

  What the source of `task` raised is raised as it was.
  """

  open = weakref.WeakSet()

  def __init__(self, dataset: tf.data.Dataset, task: seqio.Task | None = None):
    self._iterator, self._source = iter(dataset), None if task is None else task.source
    self.open.add(self)

  def __iter__(self):
    return self

  def __next__(self) -> Any:
    try:
      return next(self._iterator)
    except tf.errors.OpError as e:
      raise getattr(self._source, 'error', None) or e from None

  def close(self) -> None:
    """Stops reading; the iterator cannot be used any more."""
    self._iterator = iter(())


@atexit.register
def _close_all() -> None:
  for elements in list(Elements.open):
    elements.close()


def tokenized_documents(task: seqio.Task, split: str) -> Iterator[np.ndarray]:
  """Runs a task over a split: ids of each document, without eos, in order."""
  dataset = task.get_dataset(
    None, split, shuffle=False, trim_output_features=False, try_in_mem_cache=False)
  # Batches only for speed: each element of a dataset that reaches Python costs 0.3 ms.
  targets = dataset.map(lambda example: example['targets'])
  for batch in Elements(targets.ragged_batch(_BATCH).prefetch(2), task):
    for ids in np.split(batch.values.numpy(), batch.row_splits.numpy()[1:-1]):
      yield ids[:-1]


def tokenize_chunks(
  vocabulary: Vocabulary, chunks: Iterable[list[str]]) -> Iterator[list[np.ndarray]]:
  """The ids of chunks of documents, through a seqio task (see `token_store.Tokenize`)."""
  sizes: collections.deque[int] = collections.deque()

  def read(split):
    for chunk in chunks:
      sizes.append(len(chunk))
      yield from chunk

  task = register_document_task(
    'fairjax_documents', DocumentSource(read, shards={'documents': ['documents']}), vocabulary)
  ids = tokenized_documents(task, 'documents')
  for first in ids:
    yield [first, *itertools.islice(ids, sizes.popleft() - 1)]


# The seqio FeatureConverter that lays out counterfactual branches.

_SPEC = seqio.FeatureConverter.FeatureSpec
_ROWS = {
  'inputs': _SPEC(tf.int32), 'targets': _SPEC(tf.int32), 'reset': _SPEC(tf.bool, rank=0)}
_DOCUMENT_ROWS = _ROWS | {'segment_ids': _SPEC(tf.int32), 'positions': _SPEC(tf.int32),
                          'weights': _SPEC(tf.float32)}


def _row_lengths(segment_len: int, documents: bool) -> dict[str, int]:
  return {name: segment_len if spec.rank else 1
          for name, spec in (_DOCUMENT_ROWS if documents else _ROWS).items()}


class CounterfactualFeatureConverter(seqio.FeatureConverter):
  """Segments of the token stream with up to K counterfactual branches of up to P pieces.

  To an example of `TokenStoreSource` it adds the arrays of `BranchBuilder.build`. The
  draw is a function of (seed, step, row): it does not depend on hosts or on earlier steps.
  """

  PACKING_FEATURE_DTYPES = None

  def __init__(self, builder: BranchBuilder | None, *, documents: bool):
    """`builder`: attribute, vocabulary, K, P, seed; None: no branches. `documents`: a decoder's."""
    self._builder, self._documents = builder, documents
    self._empty = {} if builder is None else builder.empty()
    self._rows = _DOCUMENT_ROWS if documents else _ROWS
    self.TASK_FEATURES = self._rows | {
      'spans': _SPEC(tf.int32, rank=2), 'row': _SPEC(tf.int64, rank=0),
      'step': _SPEC(tf.int64, rank=0)}
    self.MODEL_FEATURES = self._rows | {
      name: _SPEC(tf.as_dtype(array.dtype), rank=array.ndim)
      for name, array in self._empty.items()}
    super().__init__(pack=False, apply_length_check=False)

  def _convert_features(self, ds, task_feature_lengths):
    if self._builder is None:
      return ds.map(lambda example: {name: example[name] for name in self._rows})
    names = list(self._empty)

    def build(inputs, spans, lengths, steps, rows, positions=None):
      spans = np.split(spans, np.cumsum(lengths)[:-1])
      positions = [None] * len(rows) if positions is None else positions
      built = [self._builder.build(i, s, step=int(step), row=int(row), positions=p)
               for i, s, step, row, p in zip(inputs, spans, steps, rows, positions, strict=True)]
      return [np.stack([arrays[name] for arrays in built]) for name in names]

    def convert(block):
      spans = block['spans']
      positions = [block['positions']] if self._documents else []
      arrays = tf.numpy_function(
        build, [block['inputs'], spans.values, spans.row_lengths(), block['step'], block['row'],
                *positions],
        [self._empty[name].dtype for name in names], stateful=False)
      for name, array in zip(names, arrays, strict=True):
        array.set_shape([None, *self._empty[name].shape])
      return {name: block[name] for name in self._rows} | dict(zip(names, arrays, strict=True))

    # In blocks, because each call from TensorFlow into Python costs 0.3 ms.
    blocks = ds.ragged_batch(_ROW_BLOCK)
    return blocks.map(convert, num_parallel_calls=2, deterministic=True).unbatch()

  def get_model_feature_lengths(self, task_feature_lengths) -> dict[str, int]:
    """Lengths of the first axes: T of rows, K of branches."""
    return _row_lengths(task_feature_lengths['inputs'], self._documents) | {
      name: len(array) for name, array in self._empty.items()}


class TokenStoreSource(seqio.DataSource):
  """Endless segments of a token store, ordered by step and then by row, as `token_rows`."""

  def __init__(
    self, store: TokenStoreInfo, *, batch_size: int, segment_len: int, start_step: int = 0,
    start_ids: Sequence[int] | None = None,
  ):
    """Chooses rows and first step."""
    self.store, self.batch_size, self.segment_len = store, batch_size, segment_len
    self.start_step, self.start_ids = start_step, start_ids
    self.error: Exception | None = None
    super().__init__(splits=(store.split,), caching_permitted=False)

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """Rows are split over hosts by arithmetic."""
    return True

  def list_shards(self, split: str) -> list[str]:
    """One shard per row."""
    return [f'{split}:{row}' for row in range(self.batch_size)]

  def get_dataset(
    self, split='train', shuffle=False, seed=None, shard_info=None, *, sequence_length=None,
    use_cached=False, num_epochs=1,
  ) -> tf.data.Dataset:
    """Segments from `start_step` on; the order of the documents is that of the store."""
    del split, seed, sequence_length, use_cached, num_epochs
    if shuffle:
      raise ValueError('a token stream keeps its order')
    shard = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
    rows = token_rows(
      self.store, batch_size=self.batch_size, segment_len=self.segment_len, shard=shard,
      start_ids=self.start_ids)
    features = _ROWS if self.start_ids is None else _DOCUMENT_ROWS

    def read(step):
      try:
        batch, spans = rows.read(int(step)), rows.spans(int(step))
      except Exception as e:
        self.error = e
        raise
      lengths = np.array([len(s) for s in spans], np.int64)
      return (*(batch[name] for name in features), np.concatenate(spans), lengths,
              rows.rows.astype(np.int64), np.full(len(rows.rows), step, np.int64))

    def load(step):
      *arrays, spans, lengths, row, steps = tf.numpy_function(
        read, [step], [*(spec.dtype for spec in features.values()), tf.int32, tf.int64, tf.int64,
                       tf.int64], stateful=False)
      number = len(rows.rows)
      for array, spec in zip(arrays, features.values(), strict=True):
        array.set_shape([number, *[self.segment_len] * spec.rank])
      for array in (lengths, row, steps):
        array.set_shape([number])
      spans.set_shape([None, 3])
      return dict(zip(features, arrays, strict=True)) | {
        'row': row, 'step': steps,
        'spans': tf.RaggedTensor.from_row_lengths(spans, lengths, validate=False)}

    steps = tf.data.Dataset.range(self.start_step, np.iinfo(np.int64).max)
    return steps.map(load, num_parallel_calls=2, deterministic=True).unbatch()


def seqio_batches(
  store: TokenStoreInfo, builder: BranchBuilder | None, *, batch_size: int, segment_len: int,
  start_step: int = 0, shard: tuple[int, int] = (0, 1), start_ids: Sequence[int] | None = None,
) -> Iterator[dict[str, np.ndarray]]:
  """Batches of `train_batches` through seqio: task, feature converter, batching."""
  (index, count), documents = shard, start_ids is not None
  feature = seqio.Feature(seqio.PassThroughVocabulary(size=1 << 32), add_eos=False)
  task = seqio.Task(
    'fairjax_token_stream', preprocessors=[], shuffle_buffer_size=None,
    source=TokenStoreSource(
      store, batch_size=batch_size, segment_len=segment_len, start_step=start_step,
      start_ids=start_ids),
    output_features={'inputs': feature, 'targets': feature})
  dataset = seqio.get_dataset(
    task,  # a row cannot hold more than T matches
    _row_lengths(segment_len, documents) | {'spans': segment_len, 'row': 1, 'step': 1},
    CounterfactualFeatureConverter(builder, documents=documents), shuffle=False,
    dataset_split=store.split, shard_info=seqio.ShardInfo(index, count),
    batch_size=batch_size // count, verbose=False)
  for batch in Elements(dataset.prefetch(4), task):
    yield {name: tensor.numpy() for name, tensor in batch.items()}
