"""The seqio tasks that turn documents into tokens: one code for all corpora.

A task has the splits train, valid and test, in the order of the source and without truncation. An
example is `{'targets': ids with eos, 'targets_pretokenized': text}`.
"""

import functools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import seqio
import tensorflow as tf

from fairjax.data.corpus import SPLITS, Corpus
from fairjax.data.token_store import TokenizedDocument
from fairjax.data.vocabularies import SeqioVocabulary
from fairjax.data.wikitext_builder import tfds_source
from fairjax.vocabulary import Vocabulary

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
