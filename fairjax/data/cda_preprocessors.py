"""Counterfactual data augmentation as seqio preprocessors (W-14 to W-16).

For tasks of one's own, in front of `seqio.preprocessors.tokenize`:

    preprocessors=[functools.partial(augment_sentences, swap=swap, sided='two'), tokenize, ...]

The tasks of `fairjax.data.tasks` need none of them: their corpus is augmented by `data.cda`, in its
training split only, which a seqio preprocessor cannot tell.
"""

import numpy as np
import tensorflow as tf

from fairjax.counterfactual import GenderSwap, augment, augment_document
from fairjax.data.sentences import split_sentences


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
