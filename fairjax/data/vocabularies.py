"""A seqio vocabulary with the ids of `fairjax.vocabulary`."""

import numpy as np
import seqio
import tensorflow as tf

from fairjax.vocabulary import Vocabulary


class SeqioVocabulary(seqio.Vocabulary):
  """A fairjax vocabulary for seqio.

  Text is encoded in Python, inside the TensorFlow graph too, so that the ids do not depend on who
  encodes: TensorFlow splits words at other white space, and the SentencePiece that comes with it
  cuts some words of long texts differently where two ways are equally probable.
  """

  def __init__(self, vocabulary: Vocabulary):
    """Wraps a loaded vocabulary."""
    super().__init__()
    self._vocabulary = vocabulary

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
    return self._vocabulary.encode(s)

  def _decode(self, ids) -> str:
    return self._vocabulary.decode(ids)

  def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
    def encode(text):
      return np.array(self._vocabulary.encode(np.asarray(text).item().decode('utf-8')), np.int32)

    ids = tf.numpy_function(encode, [s], tf.int32, stateful=False)
    ids.set_shape([None])
    return ids

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
