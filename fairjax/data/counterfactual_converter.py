"""The seqio FeatureConverter that lays out counterfactual branches."""

import numpy as np
import seqio
import tensorflow as tf

from fairjax.data.branch_builder import BranchBuilder

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
