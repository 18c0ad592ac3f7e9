"""The seqio tasks that turn documents into tokens: one code for all corpora.

A task has the splits train, valid and test, in the order of the source and without truncation. An
example is `{'targets': ids with eos, 'targets_pretokenized': text}`.
"""

import functools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_text

from fairjax.counterfactual import GenderSwap, augment, augment_document
from fairjax.data.corpus import SPLITS, Corpus
from fairjax.data.documents import split_sentences
from fairjax.data.tfds_wikitext import tfds_source
from fairjax.data.token_store import TokenizedDocument
from fairjax.vocabulary import SentencePieceVocabulary, Vocabulary

# A seqio vocabulary with the ids of `fairjax.vocabulary`, encoded in the TensorFlow graph.

# Where Python's `str.split` cuts; TensorFlow cuts at ASCII's spaces only.
_SPACES = ''.join(filter(str.isspace, map(chr, range(0x3001))))


class SeqioVocabulary(seqio.Vocabulary):
  """A fairjax vocabulary for seqio.

  In the graph tensorflow_text cuts words into pieces and a table looks up whole words: every word
  of a batch once, which is several times as fast as all of them.
  """

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
    """What cannot be encoded otherwise."""
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
    if self._vocabulary.documents == 'text':  # whose rules look back, which TensorFlow's cannot
      return self._words_in_python(texts)
    lines = tf.strings.split(texts, '\n')
    words = tf.strings.split(tf.strings.regex_replace(lines, f'[{_SPACES}]', ' '))
    ids = tf.ragged.map_flat_values(self._table.lookup, words)
    ends = tf.ones_like(lines, tf.int32)[..., tf.newaxis] * self.eos_id
    return tf.concat([ids, ends], 2).merge_dims(1, 2)[:, :-1]

  def _words_in_python(self, texts):
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
    with tf.init_scope():  # it outlives the function that is being traced
      return tensorflow_text.SentencepieceTokenizer(self._vocabulary.model)

  @functools.cached_property
  def _table(self):
    words = self._vocabulary.words[self._vocabulary.unk_id + 1:]
    ids = np.arange(self._vocabulary.unk_id + 1, self._vocabulary.size, dtype=np.int32)
    with tf.init_scope():
      return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(words, ids, tf.string, tf.int32), self.unk_id)

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


# Counterfactual data augmentation as seqio preprocessors (W-14 to W-16).
#
# For tasks of one's own, in front of `seqio.preprocessors.tokenize`:
#
#     preprocessors=[functools.partial(augment_sentences, swap=swap, sided='two'), tokenize, ...]
#
# The tasks of `fairjax.data.seqio_tasks` need none of them: their corpus is augmented by
# `data.cda`, in its
# training split only, which a seqio preprocessor cannot tell.

def augment_documents(
  dataset: tf.data.Dataset, *, swap: GenderSwap, sided: str = 'two', unit: str = 'sentence',
  key: str = 'targets',
) -> tf.data.Dataset:
  """Documents with their counterfactual ones; see `fairjax.counterfactual.augment_document`.

      {'targets': 'It rains. He sings.', 'id': 7}
      -> {'targets': 'It rains. He sings.', 'id': 7}, {'targets': 'She sings.', 'id': 7}

  Args:
    dataset: examples with text in the feature `key`; its other features are repeated.
    swap: makes counterfactuals; the same in any shard and in any order.
    sided: one (a document without a gendered word is left out) or two.
    unit: sentence or document.
    key: feature of the text.
  """
  return _expand(dataset, key, lambda text: augment_document(
    text, swap, sided, unit=unit, split=split_sentences))


def augment_sentences(
  dataset: tf.data.Dataset, *, swap: GenderSwap, sided: str = 'two', key: str = 'targets',
) -> tf.data.Dataset:
  """Sentences of documents, each with its counterfactual one: every sentence is an example (W-15).

      {'targets': 'It rains. He sings.'}
      -> {'targets': 'It rains.'}, {'targets': 'He sings.'}, {'targets': 'She sings.'}

  Args:
    dataset: examples with text in the feature `key`; its other features are repeated.
    swap: makes counterfactuals.
    sided: one (neutral sentences are left out) or two (they occur once).
    key: feature of the text.
  """
  return _expand(dataset, key, lambda text: list(augment(split_sentences(text), swap, sided)))


def _expand(dataset, key, texts_of) -> tf.data.Dataset:
  """Each example becomes one for each text that stands for its text."""
  def texts(content: bytes) -> np.ndarray:
    return np.array([t.encode('utf-8') for t in texts_of(content.decode('utf-8'))], object)

  def examples(example):
    found = tf.numpy_function(texts, [example[key]], tf.string, stateful=False)
    found.set_shape([None])
    rest = {k: v for k, v in example.items() if k != key}
    return tf.data.Dataset.from_tensor_slices(found).map(lambda text: {**rest, key: text})

  return dataset.flat_map(examples)


_BATCH = 128


class DocumentSource(seqio.DataSource):
  """Documents that Python reads, as a seqio source.

  All layouts go through `read_documents`, since TensorFlow's own readers end a file that is cut
  off without an error.

  Attributes:
    error: what the reader raised; TensorFlow replaces it by an error of its own.
  """

  def __init__(
    self, read: Callable[[str], Iterator[str]], *, shards: Mapping[str, list[str]],
    num_input_examples: Mapping[str, int] | None = None,
    read_shard: Callable[[str, int], Iterator[str]] | None = None,
  ):
    """Wraps a reader.

    Args:
      read: split -> its documents; called for every pass.
      shards: names of each split's parts, e.g. its files.
      num_input_examples: split -> documents, where known.
      read_shard: split, number of a part -> its documents, where parts can be read alone.
    """
    self._read, self._shards, self.error = read, shards, None
    self._read_shard = read_shard
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
    """Documents in their order as `{'targets': text}`; the token store shuffles them."""
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
  """`seqio.preprocessors.tokenize` of the feature `targets`, many documents at a time.

  The vocabulary then encodes a word of many documents once, and the graph is entered once.
  """
  def encode(batch):
    ids = output_features['targets'].vocabulary.encode_tf(batch['targets'])
    return {'targets_pretokenized': batch['targets'], 'targets': ids}

  return dataset.batch(_BATCH).map(
    encode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).unbatch()


def register_document_task(
  name: str, source: seqio.DataSource, vocabulary: Vocabulary) -> seqio.Task:
  """Adds the task of a source to seqio's registry (in the place of one of that name).

  Args:
    name: e.g. `fairjax_wikitext`.
    source: gives `{'targets': text}`.
    vocabulary: of the ids.
  """
  if name in seqio.TaskRegistry.names():
    seqio.TaskRegistry.remove(name)
  feature = seqio.Feature(SeqioVocabulary(vocabulary), add_eos=True)
  rekey = []
  if isinstance(source, seqio.TfdsDataSource):
    rekey = [functools.partial(seqio.preprocessors.rekey, key_map={'targets': 'text'})]
    if vocabulary.kind != 'word':
      rekey.append(_drop_blank_lines)
  return seqio.TaskRegistry.add(
    name, source=source, output_features={'targets': feature}, shuffle_buffer_size=None,
    preprocessors=[*rekey, tokenize, seqio.CacheDatasetPlaceholder(),
                   seqio.preprocessors.append_eos])


def _drop_blank_lines(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """`fairjax.data.corpus.drop_blank_lines` in the graph."""
  def drop(text):
    return tf.strings.regex_replace(tf.strings.regex_replace(text, '\n+', '\n'), '^\n|\n$', '')

  return dataset.map(lambda example: {'targets': drop(example['targets'])}, num_parallel_calls=1)


def register_corpus_task(corpus: Corpus, vocabulary: Vocabulary) -> seqio.Task:
  """Adds the task `fairjax_SOURCE` of a corpus, e.g. `fairjax_newscrawl`, to seqio's registry."""
  return register_document_task(
    f'fairjax_{corpus.data.source}', corpus_source(corpus), vocabulary)


def corpus_source(corpus: Corpus) -> seqio.DataSource:
  """The source of a corpus: its TFDS dataset, or what Python reads and augments."""
  if corpus.is_tfds and not corpus.data.cda:
    return tfds_source(corpus.tfds_dataset().name_and_dir, SPLITS)
  sizes = {split: corpus.size(split) for split in SPLITS}
  return DocumentSource(
    corpus.texts, shards={split: corpus.shards(split) for split in SPLITS},
    num_input_examples=sizes if all(sizes.values()) else None,
    read_shard=corpus.shard_texts)


def open_examples(task: seqio.Task, dataset: tf.data.Dataset) -> Iterator[dict[str, np.ndarray]]:
  """Examples of a dataset that reads a task's source.

  Raises:
    UserError: what the reader of the files found.
  """
  examples = dataset.as_numpy_iterator()
  while True:
    try:
      example = next(examples)
    except StopIteration:
      return
    except tf.errors.OpError as e:
      raise getattr(task.source, 'error', None) or e from None
    yield example


def tokenized_documents(task: seqio.Task, split: str) -> Iterator[TokenizedDocument]:
  """Runs a task over a split, in order.

  Raises:
    UserError: what the reader of the files found.
  """
  dataset = task.get_dataset(
    None, split, shuffle=False, trim_output_features=False, try_in_mem_cache=False)
  # Batches only for speed: each element of a dataset that reaches Python costs 0.3 ms.
  batches = iter(dataset.ragged_batch(_BATCH).prefetch(2))
  while True:
    try:
      batch = next(batches)
    except StopIteration:
      return
    except tf.errors.OpError as e:
      raise getattr(task.source, 'error', None) or e from None
    rows = np.split(batch['targets'].values.numpy(), batch['targets'].row_splits.numpy()[1:-1])
    for ids, content in zip(rows, batch['targets_pretokenized'].numpy(), strict=True):
      yield TokenizedDocument(ids[:-1], len(content.decode('utf-8').split()), len(content))
