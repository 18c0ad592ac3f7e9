"""Labelled sentences for the sentiment projection (H-19), batches of their states, and its F1.

Letters: N sentences, T tokens, P positions read in each sentence, D model width, B rows of a batch.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from fairjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class LabelledSentences:
  """Sentences whose score is clearly positive or negative."""

  # `[N, T]` int32; each row begins as the model's texts do (EOS; start ids, if any, of a decoder)
  # and is padded with 0
  tokens: np.ndarray
  length: np.ndarray  # `[N]` int32, tokens of each row with those of its beginning, in [2, T]
  label: np.ndarray  # `[N]` float32, 1 positive, 0 negative

  def __len__(self) -> int:
    return len(self.label)

  def take(self, index: np.ndarray) -> 'LabelledSentences':
    """The rows of `index`."""
    return LabelledSentences(self.tokens[index], self.length[index], self.label[index])


def split_sentences_set(
  data: LabelledSentences, *, valid_share: float, batch_size: int, seed: int
) -> tuple[LabelledSentences, LabelledSentences]:
  """Seeded split into training and held-out sentences; `UserError` if they are too few."""
  order = np.random.default_rng(np.random.SeedSequence([seed, 1])).permutation(len(data))
  held_out = int(round(len(data) * valid_share))
  valid, train = data.take(order[:held_out]), data.take(order[held_out:])
  positives = int(data.label.sum())
  if len(data) and positives in (0, len(data)):
    raise UserError(
      f'sentiment: all {len(data)} sentences with a clear score are '
      f'{"positive" if positives else "negative"}, and f_sh learns from both kinds: use another '
      '--config.sentiment.scorer, or other text')
  if len(train) < batch_size or held_out < 2:
    raise UserError(
      f'sentiment: {len(data)} sentences with a clear score ({positives} positive) are too few to '
      f'train on batches of {batch_size}: lower --config.sentiment.margin or .batch_size, raise '
      '.max_sentences or .sentence_tokens, use another --config.sentiment.scorer, or more text')
  return train, valid


@dataclasses.dataclass(frozen=True)
class SentenceStates:
  """States of the frozen language model for sentences: computed once, read in every epoch."""

  # `[N, P, D]` float32, h-bar at the last token (place 0) and at P - 1 random prefixes
  h_bar: np.ndarray
  label: np.ndarray  # `[N]` float32, 1 positive, 0 negative


def read_positions(data: LabelledSentences, *, prefixes: int, seed: int) -> np.ndarray:
  """Positions `[N, P]` where sentences are read: the last token and random tokens before it."""
  # Prefixes, because step 3 applies f_sh in mid-sentence.
  rng = np.random.default_rng(np.random.SeedSequence([seed, 3]))
  last = data.length[:, None] - 1
  early = rng.integers(1, np.maximum(last, 2), size=(len(data), prefixes))
  return np.concatenate([last, early], axis=1).astype(np.int32)


def sentence_states(
  data: LabelledSentences, features: Callable[[np.ndarray, np.ndarray], np.ndarray], *,
  batch_size: int, prefixes: int, seed: int,
) -> SentenceStates:
  """h-bar of every sentence; `features(tokens [B, T], positions [B, P])` gives it for a batch."""
  positions = read_positions(data, prefixes=prefixes, seed=seed)
  parts = []
  for start in range(0, len(data), batch_size):
    index = np.arange(start, start + batch_size)
    rows = np.where(index < len(data), index, 0)  # the last part is filled up with row 0
    parts.append(np.asarray(features(data.tokens[rows], positions[rows]), np.float32))
  return SentenceStates(np.concatenate(parts)[:len(data)], data.label)


def state_batches(
  data: SentenceStates, *, batch_size: int, prefix_share: float, seed: int, start_step: int,
) -> Iterator[dict[str, np.ndarray]]:
  """Endless batches; every number is a function of (seed, step)."""
  # A share `prefix_share` of the rows is read at a prefix, the others at the last token.
  number, places = data.h_bar.shape[:2]
  per_epoch = number // batch_size
  step, epoch, order = start_step, None, None
  while True:
    if epoch != step // per_epoch:
      epoch = step // per_epoch
      order = np.random.default_rng(np.random.SeedSequence([seed, 2, epoch])).permutation(number)
    rows = order[step % per_epoch * batch_size:][:batch_size]
    rng = np.random.default_rng(np.random.SeedSequence([seed, 4, step]))
    early = rng.integers(min(1, places - 1), places, size=batch_size)
    place = np.where(rng.random(batch_size) < prefix_share, early, 0)
    yield {'h_bar': data.h_bar[rows, place], 'label': data.label[rows]}
    step += 1


def classification_report(predicted: np.ndarray, label: np.ndarray) -> dict[str, float]:
  """Accuracy, F1 of the positive class, macro F1 (H-15), and `majority`, all in [0, 1]."""
  # `majority`: accuracy of always predicting the more frequent class.
  predicted, label = np.asarray(predicted, bool), np.asarray(label) > 0.5

  def f1(p, y):
    hits = np.sum(p & y)
    return float(2 * hits / max(1, np.sum(p) + np.sum(y)))

  positive = f1(predicted, label)
  return {'accuracy': float(np.mean(predicted == label)), 'f1': positive,
          'macro_f1': (positive + f1(~predicted, ~label)) / 2,
          'majority': float(max(label.mean(), 1 - label.mean())), 'sentences': float(len(label))}
