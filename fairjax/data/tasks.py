"""The seqio tasks that turn documents into tokens: one code for all corpora.

A task has the splits train, valid and test, in the order of the source and without truncation. An
example is `{'targets': ids with eos, 'targets_pretokenized': text}`.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import seqio
import tensorflow as tf

from fairjax.data.documents import list_files
from fairjax.data.token_store import TokenizedDocument
from fairjax.data.vocabularies import SeqioVocabulary
from fairjax.vocabulary import Vocabulary

SPLITS = ('train', 'valid', 'test')
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
  ):
    """Wraps a reader.

    Args:
      read: split -> its documents; called for every pass.
      shards: names of each split's parts, e.g. its files.
      num_input_examples: split -> documents, where known.
    """
    self._read, self._shards, self.error = read, shards, None
    super().__init__(splits=tuple(shards), num_input_examples=num_input_examples,
                     caching_permitted=True)

  @property
  def supports_arbitrary_sharding(self) -> bool:
    """Shards are every n-th document; each reader of a shard reads all files."""
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

    def generate():
      try:
        yield from self._read(split)
      except Exception as e:
        self.error = e
        raise

    dataset = tf.data.Dataset.from_generator(
      generate, output_signature=tf.TensorSpec([], tf.string))
    if shard_info is not None and shard_info.num_shards > 1:
      dataset = dataset.shard(shard_info.num_shards, shard_info.index)
    return dataset.map(lambda text: {'targets': text}, num_parallel_calls=1)


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
  return seqio.TaskRegistry.add(
    name, source=source, output_features={'targets': feature}, shuffle_buffer_size=None,
    preprocessors=[seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder(),
                   seqio.preprocessors.append_eos])


def planted_source(documents: Mapping[str, list[str]]) -> seqio.DataSource:
  """Source of documents in memory, per split."""
  def dataset(split, shuffle_files=False, seed=None):
    del shuffle_files, seed
    return tf.data.Dataset.from_tensor_slices({'targets': documents[split]})

  return seqio.FunctionDataSource(
    dataset, splits=tuple(documents),
    num_input_examples={split: len(texts) for split, texts in documents.items()})


def file_source(
  files: Mapping[str, list[str]], read: Callable[[str], Iterator[str]]) -> DocumentSource:
  """Source of files, per split; `read` yields the documents of a split."""
  return DocumentSource(read, shards={split: list_files(paths) for split, paths in files.items()})


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
    except tf.errors.OpError:
      error = getattr(task.source, 'error', None)
      if error is None:
        raise
      raise error from None
    rows = np.split(batch['targets'].values.numpy(), batch['targets'].row_splits.numpy()[1:-1])
    for ids, content in zip(rows, batch['targets_pretokenized'].numpy(), strict=True):
      yield TokenizedDocument(ids[:-1], len(content.decode('utf-8').split()), len(content))
