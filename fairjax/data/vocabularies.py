"""seqio vocabularies with the ids of `fairjax.vocabulary`."""

import os
import pathlib

import seqio
import tensorflow as tf

from fairjax.vocabulary import SentencePieceVocabulary, Vocabulary, WordVocabulary


def seqio_vocabulary(
  vocabulary: Vocabulary, directory: str | os.PathLike) -> seqio.Vocabulary:
  """The seqio form of a vocabulary; its ids are the same.

  Args:
    vocabulary: a loaded vocabulary.
    directory: the folder it was saved in (seqio reads SentencePiece models from a file).
  """
  if isinstance(vocabulary, SentencePieceVocabulary):
    return seqio.SentencePieceVocabulary(str(pathlib.Path(directory) / vocabulary.filename))
  return SeqioWordVocabulary(vocabulary)


class SeqioWordVocabulary(seqio.Vocabulary):
  """A list of words for seqio.

  Text is encoded in Python, inside the TensorFlow graph too: TensorFlow splits at other white space
  than Python does, and the ids must not depend on who encodes.
  """

  def __init__(self, vocabulary: WordVocabulary):
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
    """Words that are not listed."""
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
      return tf.constant(self._vocabulary.encode(text.numpy().decode('utf-8')), tf.int32)

    ids = tf.py_function(encode, [s], tf.int32)
    ids.set_shape([None])
    return ids

  def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
    def decode(rows):
      rows = rows.numpy()
      if rows.ndim == 1:
        return tf.constant(self._vocabulary.decode(rows))
      return tf.constant([self._vocabulary.decode(r) for r in rows])

    text = tf.py_function(decode, [ids], tf.string)
    text.set_shape(ids.shape[:-1])
    return text

  def __eq__(self, other: object) -> bool:
    return isinstance(other, SeqioWordVocabulary) and self._vocabulary == other._vocabulary

  def __hash__(self) -> int:
    return hash(self._vocabulary)
