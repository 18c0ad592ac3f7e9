"""Batches of labelled sentences for the sentiment projection (H-19), and its F1.

Letters: N sentences, T tokens, B rows of a batch.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from fairjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class LabelledSentences:
  """Sentences whose score is clearly positive or negative.

  Attributes:
    tokens: `[N, T]` int32; each row begins with the document start (EOS) and is padded with 0.
    length: `[N]` int32, tokens of each row with the document start, in [2, T].
    label: `[N]` float32, 1 positive, 0 negative.
  """

  tokens: np.ndarray
  length: np.ndarray
  label: np.ndarray

  def __len__(self) -> int:
    return len(self.label)

  def take(self, index: np.ndarray) -> 'LabelledSentences':
    """The rows of `index`."""
    return LabelledSentences(self.tokens[index], self.length[index], self.label[index])


def split_sentences_set(
  data: LabelledSentences, *, valid_share: float, batch_size: int, seed: int
) -> tuple[LabelledSentences, LabelledSentences]:
  """Seeded split into training and held-out sentences.

  Raises:
    UserError: too few sentences, or one class only.
  """
  order = np.random.default_rng(np.random.SeedSequence([seed, 1])).permutation(len(data))
  held_out = int(round(len(data) * valid_share))
  valid, train = data.take(order[:held_out]), data.take(order[held_out:])
  positives = int(data.label.sum())
  if len(train) < batch_size or held_out < 2 or not 0 < positives < len(data):
    raise UserError(
      f'sentiment: {len(data)} sentences with a clear score ({positives} positive) are too few to '
      f'train on batches of {batch_size}: lower --config.sentiment.margin or .batch_size, use '
      'another --config.sentiment.scorer, or more text')
  return train, valid


def sentence_batches(
  data: LabelledSentences, *, batch_size: int, prefix_share: float, seed: int, start_step: int,
  shard: tuple[int, int] = (0, 1),
) -> Iterator[dict[str, np.ndarray]]:
  """Endless batches; every number is a function of (seed, step), whatever step they start at.

  Args:
    data: training sentences.
    batch_size: rows over all processes.
    prefix_share: share of rows that are read at a uniformly drawn earlier token, because step 3
      applies f_sh in mid-sentence; the others at the last token.
    seed: of order and prefixes.
    start_step: first step.
    shard: (index, count) of this process; it gets its rows of the same global batch.

  Yields:
    `tokens` [b, T] int32, `position` [b] int32, `label` [b] float32.
  """
  per_epoch = len(data) // batch_size
  index, count = shard
  mine = slice(index * batch_size // count, (index + 1) * batch_size // count)
  step, epoch, order = start_step, None, None
  while True:
    if epoch != step // per_epoch:
      epoch = step // per_epoch
      order = np.random.default_rng(np.random.SeedSequence([seed, 2, epoch])).permutation(len(data))
    rows = data.take(order[step % per_epoch * batch_size:][:batch_size])
    rng = np.random.default_rng(np.random.SeedSequence([seed, 3, step]))
    early = rng.integers(1, np.maximum(rows.length - 1, 2))
    position = np.where(rng.random(batch_size) < prefix_share, early, rows.length - 1)
    yield {'tokens': rows.tokens[mine], 'position': position[mine].astype(np.int32),
           'label': rows.label[mine]}
    step += 1


def classification_report(predicted: np.ndarray, label: np.ndarray) -> dict[str, float]:
  """Accuracy, F1 of the positive class and macro F1 (H-15: the papers mix them up), all in [0, 1].

  Also `majority`, the accuracy of always saying the more frequent class.
  """
  predicted, label = np.asarray(predicted, bool), np.asarray(label) > 0.5

  def f1(p, y):
    hits = np.sum(p & y)
    return float(2 * hits / max(1, np.sum(p) + np.sum(y)))

  positive = f1(predicted, label)
  return {'accuracy': float(np.mean(predicted == label)), 'f1': positive,
          'macro_f1': (positive + f1(~predicted, ~label)) / 2,
          'majority': float(max(label.mean(), 1 - label.mean())), 'sentences': float(len(label))}
