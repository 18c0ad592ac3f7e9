"""Perplexity of a test set from its total negative log-likelihood (H-25).

The paper reports PPL on the test set and PPL_s on the articles that hold a sensitive token, without
saying whether per word or per sub-word. All three normalisations of one total are given: only word
perplexity and bits per byte can be compared between vocabularies.
"""

import dataclasses
import math
from typing import Any


def token_perplexity(nll: float, tokens: int) -> float:
  """Perplexity per token of the vocabulary, eos included.

  With a word vocabulary on WikiText that is per published token: words and one eos for each line.

  Args:
    nll: total negative log-likelihood of the tokens, nats.
    tokens: number of predicted tokens, > 0.

  >>> round(token_perplexity(10 * math.log(8), tokens=10), 6)
  8.0
  """
  return _exponential(nll, tokens)


def word_perplexity(nll: float, words: int) -> float:
  """Perplexity per word of the original text, separated by white space (the paper's unit, H-25).

  Args:
    nll: total negative log-likelihood of the tokens of these words, nats.
    words: number of words, > 0. Published WikiText figures count one more for each line's end
      (`token_perplexity`).

  >>> round(word_perplexity(10 * math.log(8), words=5), 6)
  64.0
  """
  return _exponential(nll, words)


def bits_per_byte(nll: float, num_bytes: int) -> float:
  """Bits per byte of the original UTF-8 text.

  Args:
    nll: total negative log-likelihood, nats.
    num_bytes: number of bytes, > 0.

  >>> bits_per_byte(24 * math.log(2), num_bytes=12)
  2.0
  """
  _check(nll, num_bytes)
  return nll / num_bytes / math.log(2)


@dataclasses.dataclass(frozen=True)
class Perplexity:
  """Likelihood of one set of documents.

  Attributes:
    nll: total negative log-likelihood, nats.
    tokens: predicted tokens.
    words: words between white space of the original text.
    num_bytes: UTF-8 bytes of the original text; None when unknown.
    documents: documents in the set; None when unknown.
    memory_len: hidden states of earlier tokens that the model read, carried from segment to
      segment of a document; None when unknown.
    definition: ID of the definition.
    direction: how to read it.

  >>> Perplexity(nll=10 * math.log(4), tokens=10, words=5).token
  4.0
  """

  nll: float
  tokens: int
  words: int
  num_bytes: int | None = None
  documents: int | None = None
  memory_len: int | None = None
  definition: str = 'H-25'
  direction: str = 'lower is better'

  def __post_init__(self):
    for count in (self.tokens, self.words, 1 if self.num_bytes is None else self.num_bytes):
      _check(self.nll, count)

  @property
  def token(self) -> float:
    """Perplexity per token."""
    return token_perplexity(self.nll, self.tokens)

  @property
  def word(self) -> float:
    """Perplexity per word."""
    return word_perplexity(self.nll, self.words)

  @property
  def bits_per_byte(self) -> float | None:
    """Bits per byte, None when the bytes are unknown."""
    return None if self.num_bytes is None else bits_per_byte(self.nll, self.num_bytes)

  def to_dict(self) -> dict[str, Any]:
    """Counts and all normalisations as JSON types; a perplexity that overflows is None."""
    derived = {'token': self.token, 'word': self.word, 'bits_per_byte': self.bits_per_byte}
    return dataclasses.asdict(self) | {
      name: value if value is not None and math.isfinite(value) else None
      for name, value in derived.items()}


def _exponential(nll: float, count: int) -> float:
  """exp(nll / count), infinite where it overflows."""
  _check(nll, count)
  try:
    return math.exp(nll / count)
  except OverflowError:
    return math.inf


def _check(nll: float, count: int) -> None:
  """Refuses what cannot be a likelihood or a count."""
  if not math.isfinite(nll) or nll < 0:
    raise ValueError(f'a total negative log-likelihood is finite and >= 0, not {nll}')
  if count <= 0:
    raise ValueError(f'a perplexity needs at least one unit, not {count}')
