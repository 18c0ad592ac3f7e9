"""The token store as a seqio source."""

import atexit
import weakref
from collections.abc import Iterator

import numpy as np
import seqio
import tensorflow as tf

from fairjax.counterfactual.branches import BranchBuilder
from fairjax.data.rows import token_rows
from fairjax.data.token_store import TokenStoreInfo

# The seqio FeatureConverter that lays out counterfactual branches.

_SPEC = seqio.FeatureConverter.FeatureSpec
_BLOCK = 32
_ROWS = {
  'inputs': _SPEC(tf.int32), 'targets': _SPEC(tf.int32), 'reset': _SPEC(tf.bool, rank=0)}


def stream_lengths(segment_len: int) -> dict[str, int]:
  """`task_feature_lengths` of the token stream; a row cannot hold more than T matches."""
  return {'inputs': segment_len, 'targets': segment_len, 'spans': segment_len,
          'reset': 1, 'row': 1, 'step': 1}


class StreamFeatureConverter(seqio.FeatureConverter):
  """Segments of the token stream as they are: inputs, targets and reset."""

  TASK_FEATURES = _ROWS | {
    'spans': _SPEC(tf.int32, rank=2), 'row': _SPEC(tf.int64, rank=0),
    'step': _SPEC(tf.int64, rank=0)}
  MODEL_FEATURES = _ROWS
  PACKING_FEATURE_DTYPES = None

  def __init__(self):
    super().__init__(pack=False, apply_length_check=False)

  def _convert_features(self, ds, task_feature_lengths):
    return ds.map(lambda example: {name: example[name] for name in _ROWS})

  def get_model_feature_lengths(self, task_feature_lengths) -> dict[str, int]:
    """Inputs and targets keep their length; reset is a scalar."""
    return {'inputs': task_feature_lengths['inputs'], 'targets': task_feature_lengths['targets'],
            'reset': 1}


class CounterfactualFeatureConverter(StreamFeatureConverter):
  """Segments of the token stream with up to K counterfactual branches of up to P pieces.

  Example with T = 8, K = 2, P = 3. The ids 4 and 5 are the values of the attribute, "Iran" and
  "Italy", 6 and 7 the pieces of a third one, "North Korea"; each is a subgroup of its own. The
  input is an example of `TokenStoreSource`: a segment in which Iran stands at position 2 and North
  Korea at positions 5 and 6, while a third match begins in the last position and is cut:

      ds = [{
        'inputs':  [9, 8, 4, 9, 3, 6, 7, 6],
        'targets': [8, 4, 9, 3, 6, 7, 6, 7],
        'spans':   [[2, 3, 0], [5, 7, 2], [7, 9, 2]],   # first, after the last, value
        'reset': False, 'row': 1, 'step': 5,
      }]

  With seed 0 the converter draws North Korea for Iran and Italy for North Korea:

      converted_ds = [{
        'inputs':        [9, 8, 4, 9, 3, 6, 7, 6],
        'targets':       [8, 4, 9, 3, 6, 7, 6, 7],
        'reset':         False,
        'branch_tokens': [[6, 7, 0], [5, 0, 0]],   # pieces of the other value, pad 0
        'branch_start':  [2, 5],                   # position of the first piece
        'branch_len':    [2, 1],                   # pieces; 0 for an unused branch
        'original_end':  [2, 6],                   # last position of the original span
        'branch_weight': [1.0, 1.0],               # 0.0 for an unused branch
        'branch_counts': [3, 2, 0, 1, 0],          # counterfactual.COUNT_NAMES
      }]

  The draw is a function of (seed, step, row): it does not depend on hosts or on earlier steps.
  """

  def __init__(self, builder: BranchBuilder):
    """Args: builder: attribute, vocabulary, K, P and seed."""
    super().__init__()
    self._builder = builder
    self._empty = builder.empty()
    self.MODEL_FEATURES = _ROWS | {
      name: _SPEC(tf.as_dtype(array.dtype), rank=array.ndim)
      for name, array in self._empty.items()}

  def _convert_features(self, ds, task_feature_lengths):
    names = list(self._empty)

    def build(inputs, spans, lengths, steps, rows):
      spans = np.split(spans, np.cumsum(lengths)[:-1])
      built = [self._builder.build(i, s, step=int(step), row=int(row))
               for i, s, step, row in zip(inputs, spans, steps, rows, strict=True)]
      return [np.stack([arrays[name] for arrays in built]) for name in names]

    def convert(block):
      spans = block['spans']
      if not isinstance(spans, tf.RaggedTensor):  # the number of matches is known
        spans = tf.RaggedTensor.from_tensor(spans)
      arrays = tf.numpy_function(
        build, [block['inputs'], spans.values, spans.row_lengths(), block['step'], block['row']],
        [self._empty[name].dtype for name in names], stateful=False)
      for name, array in zip(names, arrays, strict=True):
        array.set_shape([None, *self._empty[name].shape])
      return {name: block[name] for name in _ROWS} | dict(zip(names, arrays, strict=True))

    # In blocks, because each call from TensorFlow into Python costs 0.3 ms.
    blocks = ds.ragged_batch(_BLOCK)
    return blocks.map(convert, num_parallel_calls=2, deterministic=True).unbatch()

  def get_model_feature_lengths(self, task_feature_lengths) -> dict[str, int]:
    """Lengths of the first axes: T of rows, K of branches."""
    lengths = super().get_model_feature_lengths(task_feature_lengths)
    return lengths | {name: len(array) for name, array in self._empty.items()}


class TokenStoreSource(seqio.DataSource):
  """Endless segments of a token store, ordered by step and then by row.

  Batches of B (or, with `shard_info`, of this host's share) are those of `TokenRows`: row r goes
  on where row r of the batch before ended. An example is

      inputs, targets: [T] int32    reset: bool, the row's stream starts here
      spans: [n, 3] int32, matches relative to the segment    row, step: int64, global
  """

  def __init__(
    self, store: TokenStoreInfo, *, batch_size: int, segment_len: int, start_step: int = 0):
    """Chooses rows and first step.

    Args:
      store: a token store.
      batch_size: B.
      segment_len: T.
      start_step: first step; continuing costs nothing.
    """
    self.store, self.batch_size, self.segment_len = store, batch_size, segment_len
    self.start_step = start_step
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
      self.store, batch_size=self.batch_size, segment_len=self.segment_len, shard=shard)

    def read(step):
      batch = rows.read(int(step))
      spans = rows.spans(int(step))
      lengths = np.array([len(s) for s in spans], np.int64)
      return (batch['inputs'], batch['targets'], batch['reset'], np.concatenate(spans), lengths,
              rows.rows.astype(np.int64), np.full(len(rows.rows), step, np.int64))

    def load(step):
      inputs, targets, reset, spans, lengths, row, steps = tf.numpy_function(
        read, [step], [tf.int32, tf.int32, tf.bool, tf.int32, tf.int64, tf.int64, tf.int64],
        stateful=False)
      number = len(rows.rows)
      for array in (inputs, targets):
        array.set_shape([number, self.segment_len])
      for array in (reset, lengths, row, steps):
        array.set_shape([number])
      spans.set_shape([None, 3])
      return {'inputs': inputs, 'targets': targets, 'reset': reset, 'row': row, 'step': steps,
              'spans': tf.RaggedTensor.from_row_lengths(spans, lengths, validate=False)}

    def to_dense(example):
      spans = example['spans']
      if isinstance(spans, tf.RaggedTensor):
        spans = spans.to_tensor()
      return example | {'spans': tf.ensure_shape(spans, [None, 3])}

    steps = tf.data.Dataset.range(self.start_step, np.iinfo(np.int64).max)
    return steps.map(load, num_parallel_calls=2, deterministic=True).unbatch().map(to_dense)


def stream_task(
  name: str, store: TokenStoreInfo, *, batch_size: int, segment_len: int, start_step: int = 0,
) -> seqio.Task:
  """The task of a token stream; add it to `seqio.TaskRegistry` or give it to seqio directly."""
  vocabulary = seqio.PassThroughVocabulary(size=1 << 32)
  feature = seqio.Feature(vocabulary, add_eos=False)
  return seqio.Task(
    name, preprocessors=[], shuffle_buffer_size=None,
    source=TokenStoreSource(
      store, batch_size=batch_size, segment_len=segment_len, start_step=start_step),
    output_features={'inputs': feature, 'targets': feature})


def seqio_batches(
  store: TokenStoreInfo, builder: BranchBuilder | None, *, batch_size: int, segment_len: int,
  start_step: int = 0, shard: tuple[int, int] = (0, 1),
) -> Iterator[dict[str, np.ndarray]]:
  """Batches of `train_batches` through seqio: task, feature converter, batching."""
  index, count = shard
  task = stream_task(
    'fairjax_token_stream', store, batch_size=batch_size, segment_len=segment_len,
    start_step=start_step)
  converter = StreamFeatureConverter() if builder is None else (
    CounterfactualFeatureConverter(builder))
  dataset = seqio.get_dataset(
    task, stream_lengths(segment_len), converter, dataset_split=store.split, shuffle=False,
    shard_info=seqio.ShardInfo(index, count), batch_size=batch_size // count, verbose=False)
  return _Batches(dataset.prefetch(4))


class _Batches:
  """Iterator over a dataset that ends its threads before Python ends.

  TensorFlow's threads call back into Python; if they still run when the interpreter shuts down,
  the process hangs.
  """

  open = weakref.WeakSet()

  def __init__(self, dataset: tf.data.Dataset):
    self._iterator = iter(dataset)
    self.open.add(self)

  def __iter__(self):
    return self

  def __next__(self) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in next(self._iterator).items()}

  def close(self) -> None:
    """Stops reading; the iterator cannot be used any more."""
    self._iterator = iter(())


@atexit.register
def _close_all() -> None:
  for batches in list(_Batches.open):
    batches.close()
