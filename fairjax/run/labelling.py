"""Sentences of the training documents with a clear score, for step 2 (H-19), in bounded memory."""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fairjax.config import SentimentConfig
from fairjax.data.documents import split_sentences
from fairjax.errors import UserError
from fairjax.measure import Scorer, score_texts
from fairjax.measure.scorers.base import count_truncated
from fairjax.measure.scorers.cache import CHUNK
from fairjax.train import LabelledSentences, derive_seed
from fairjax.vocabulary import Vocabulary

SCORING_CHUNK = 5000  # sentences scored at a time, more where a scorer has many devices
MOST_HELD = 1_000_000  # sentences whose text is held at once, about 200 MB


def label_sentences(
  documents: Iterable[str], scorer: Scorer, vocabulary: Vocabulary, stage: SentimentConfig, *,
  seed: int, log: Callable[[str], None], most_held: int = MOST_HELD,
  start_ids: Sequence[int] | None = None,
) -> LabelledSentences:
  """Chooses sentences with |2 score - 1| > margin, in a seeded order."""
  # Each begins with `start_ids`, those of a decoder; None: with the end of the document before.
  #
  # Up to `most_held` sentences are shuffled in memory and scored until `stage.max_sentences` (0:
  # all) are chosen. In a larger corpus each sentence gets a random number as it is read, and those
  # with the lowest numbers are kept, so that memory does not grow with the corpus.
  if not isinstance(scorer, Scorer):
    raise UserError(f'sentiment.scorer={scorer.name} reads scores of records, but sentences of the '
                    'corpus have none: use a scorer of texts')
  entropy = derive_seed(seed, 'sentences')
  sentences = (s for d in documents for s in split_sentences(d))
  held = list(itertools.islice(sentences, most_held + 1))
  chooser = _Chooser(scorer, vocabulary, stage, np.random.default_rng(entropy),
                     (vocabulary.eos_id,) if start_ids is None else start_ids)
  if len(held) <= most_held:
    found = chooser.shuffled(held)
  else:
    held.reverse()  # so that a text can go as soon as it was read
    found = chooser.streamed(itertools.chain((held.pop() for _ in range(len(held))), sentences))
  tokens = np.zeros((len(found), stage.sentence_tokens), np.int32)
  for row, (ids, _) in zip(tokens, found, strict=True):
    row[:len(ids)] = ids
  positive = sum(label for _, label in found)
  log(f'[sentiment] {len(found):,} sentences with |2 score - 1| > {stage.margin:g} '
      f'({positive:,} positive) from {chooser.scored:,} of {chooser.read:,} read'
      + (f'; {chooser.unfit:,} left out, not of 2 to sentence_tokens={stage.sentence_tokens} tokens'
         if chooser.unfit else '')
      + ('' if chooser.truncated is None else
         f'; {scorer.name} read only the beginning of {chooser.truncated:,} long ones'))
  return LabelledSentences(
    tokens, np.array([len(ids) for ids, _ in found], np.int32),
    np.array([label for _, label in found], np.float32))


class _Chooser:
  """Both ways to choose, with what happened: sentences read, scored, cut, of an unfit length."""

  def __init__(self, scorer: Scorer, vocabulary: Vocabulary, stage: SentimentConfig,
               rng: np.random.Generator, start_ids: Sequence[int]):
    self.scorer, self.vocabulary, self.stage, self.rng = scorer, vocabulary, stage, rng
    self.start_ids = start_ids
    self.chunk = max(SCORING_CHUNK, CHUNK * getattr(scorer, 'busy_devices', 0))
    self.read = self.scored = self.unfit = 0
    self.truncated: int | None = None  # of a scorer that reads all of any text

  def shuffled(self, sentences: Sequence[str]) -> list[tuple[np.ndarray, bool]]:
    """Scores in a random order until enough are found: (ids, positive) of each."""
    order = self.rng.permutation(len(sentences))
    self.read, limit, found = len(sentences), self.stage.max_sentences or len(sentences), []
    for start in range(0, len(order), self.chunk):
      if len(found) >= limit:
        break
      chunk = [sentences[i] for i in order[start:start + self.chunk]]
      for text, score in zip(chunk, self._scores(chunk), strict=True):
        if len(found) < limit and (row := self._row(text, score)):
          found.append(row)
    return found

  def streamed(self, sentences: Iterable[str]) -> list[tuple[np.ndarray, bool]]:
    """Keeps those with the lowest random numbers; scores only what may still be kept."""
    limit = self.stage.max_sentences or math.inf
    kept: list[tuple[float, int, tuple[np.ndarray, bool]]] = []  # a heap, the highest number first
    waiting: list[tuple[float, int, str]] = []

    def settle():
      for (number, index, text), score in zip(
          waiting, self._scores([text for _, _, text in waiting]), strict=True):
        if (len(kept) < limit or number < -kept[0][0]) and (row := self._row(text, score)):
          (heapq.heappush if len(kept) < limit else heapq.heapreplace)(kept, (-number, index, row))
      waiting.clear()

    for index, text in enumerate(sentences):
      self.read += 1
      number = self.rng.random()
      if len(kept) < limit or number < -kept[0][0]:
        waiting.append((number, index, text))
      if len(waiting) == self.chunk:
        settle()
    settle()
    return [row for _, _, row in sorted(kept, key=lambda k: (-k[0], k[1]))]

  def _scores(self, texts: list[str]) -> list[float]:
    self.scored += len(texts)
    texts = [self.vocabulary.natural(text) for text in texts]
    scores = score_texts(texts, self.scorer).tolist()
    truncated = count_truncated(self.scorer, texts)  # known from the scoring
    if truncated is not None:
      self.truncated = (self.truncated or 0) + truncated
    return scores

  def _row(self, text: str, score: float) -> tuple[np.ndarray, bool] | None:
    """Ids and label of a sentence, None if its score is not clear or its length unfit."""
    if abs(2 * score - 1) <= self.stage.margin:
      return None
    ids = [*self.start_ids, *self.vocabulary.encode_batch([text])[0]]
    if not 2 <= len(ids) <= self.stage.sentence_tokens:
      self.unfit += 1
      return None
    return np.array(ids, np.int32), score > 0.5
