"""One interface to the models that are measured: masked (BERT, ALBERT) and causal ones.

The metrics of Webster et al. 2020 are defined by what a model puts into a blank; a causal model
fills the last place of a text by its next token, and any other by comparing whole texts (W-01).

Letters: R texts, C candidates, D model width, V vocabulary, n tokens of one text.
"""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.errors import UserError

BLANK = '[BLANK]'


class Fill(NamedTuple):
  """A piece of the vocabulary in the place of the blank.

  Attributes:
    word: its text; one that is only part of a word keeps the mark of its tokenizer, e.g. `##ing`.
    log_prob: nats, <= 0.
  """

  word: str
  log_prob: float


class TokenFeatures(NamedTuple):
  """Last hidden states of one text.

  Attributes:
    hidden: `[n, D]` float32.
    offsets: `[n, 2]` int, the characters of the text that each token covers, end exclusive; (0, 0)
      for tokens that the model adds.
  """

  hidden: np.ndarray
  offsets: np.ndarray

  def span(self, start: int, end: int) -> np.ndarray:
    """Mean over the tokens that touch characters `[start, end)`: `[D]`.

    Raises:
      ValueError: there is none.
    """
    touching = (self.offsets[:, 0] < end) & (self.offsets[:, 1] > start)
    if not touching.any():
      raise ValueError(f'no token at characters {start} to {end}')
    return self.hidden[touching].mean(axis=0)


class LanguageModel(abc.ABC):
  """What the metrics ask of a model.

  Attributes:
    kind: 'masked' or 'causal'.
    name: for tables.
    fingerprint: SHA-256 (hex) of all that decides its answers.
    max_length: most tokens of a text, those that the model adds included.
    truncated: texts given to `features` so far that were longer and lost their end.
  """

  kind: str
  name: str
  fingerprint: str
  max_length: int
  truncated = 0

  @abc.abstractmethod
  def fill(self, texts: Sequence[str], *, top: int) -> list[list[Fill]]:
    """The `top` likeliest single pieces in the blank of each text, best first.

    Args:
      texts: each with one `[BLANK]`, which a causal model reads only up to there.
      top: how many; pieces that stand for no text (padding, ends, masks, unknown words) never
        count.

    Raises:
      UserError: a text without a blank or with several, or longer than the model reads.
    """

  @abc.abstractmethod
  def candidate_log_probs(
    self, texts: Sequence[str], candidates: Sequence[Sequence[str]]
  ) -> list[np.ndarray]:
    """How likely each candidate is in the blank, beside its rivals in the same text.

    A causal model scores whole texts, so everything behind the blank counts. A masked one predicts
    the pieces of a candidate from left to right, those to come masked, so the number of pieces is
    known to it.

    Args:
      texts: R texts with one blank each.
      candidates: of each text; any words, of any number of pieces.

    Returns:
      R float64 arrays `[C]`, nats up to a constant of the text.

    Raises:
      UserError: as `fill`, or a candidate without a token.
    """

  @abc.abstractmethod
  def piece_counts(self, words: Sequence[str]) -> list[int]:
    """Pieces of each word behind another word; 0 if it holds a character that has none."""

  @abc.abstractmethod
  def token_features(self, texts: Sequence[str]) -> list[TokenFeatures]:
    """Last hidden states of every token.

    Raises:
      UserError: a text longer than the model reads.
    """

  @abc.abstractmethod
  def features(self, texts: Sequence[str]) -> np.ndarray:
    """Mean over the tokens of the last hidden states, `[R, D]` float32; too long texts are cut.

    How many were is counted in `truncated`.
    """


def in_pieces(model: LanguageModel, words: Sequence[str]) -> dict[str, Any]:
  """How a vocabulary writes people: how many `words`, those of `several` pieces, `unknown` ones.

  Different people that a model cannot write are the same to it.
  """
  counts = dict(zip(words, model.piece_counts(words), strict=True))
  return {'words': len(counts), 'several': [w for w, n in counts.items() if n > 1],
          'unknown': [w for w, n in counts.items() if not n]}


def blank_parts(text: str) -> tuple[str, str]:
  """What stands before and behind the blank.

  Raises:
    UserError: no blank, several, or nothing else.
  """
  before, blank, behind = text.partition(BLANK)
  if not blank or BLANK in behind or not (before + behind).strip():
    raise UserError(f'{text!r} must hold {BLANK} once, beside other text')
  return before, behind


def fill_in(text: str, word: str) -> str:
  """The text with a word in its blank.

  >>> fill_in('She likes [BLANK].', 'tea')
  'She likes tea.'
  """
  before, behind = blank_parts(text)
  return before + word + behind


def check_lengths(texts: Sequence[str], ids: Sequence[np.ndarray], longest: int) -> None:
  """Refuses texts of more than `longest` tokens with a `UserError`."""
  for text, row in zip(texts, ids, strict=True):
    if len(row) > longest:
      raise UserError(f'a text of {len(row)} tokens, but the model reads {longest}: {text[:60]!r}')
