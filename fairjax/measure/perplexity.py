"""Perplexity of a test set from its total negative log-likelihood (H-25).

The paper reports PPL on the test set and PPL_s on the articles that hold a sensitive token, without
saying whether per word or per sub-word. All three normalisations of one total are given: only word
perplexity and bits per byte can be compared between vocabularies.
"""

import dataclasses
import math
from typing import Any


@dataclasses.dataclass(frozen=True)
class Perplexity:
  """Likelihood of one set of documents.

  Attributes:
    nll: total negative log-likelihood, nats, finite and at least 0.
    tokens: predicted tokens, above 0, eos included. With a word vocabulary on WikiText these are
      the published tokens: words and one eos for each line.
    words: words between white space of the original text, above 0 (the paper's unit).
    num_bytes: UTF-8 bytes of the original text; None when unknown.
    documents: documents in the set; None when unknown.
    memory_len: hidden states of earlier tokens that the model read, carried from segment to
      segment of a document; None when unknown.
    definition: ID of the definition.
    direction: how to read it.

  Raises:
    ValueError: a number out of its range.

  >>> found = Perplexity(nll=10 * math.log(8), tokens=10, words=5, num_bytes=15)
  >>> round(found.token, 6), round(found.word, 6), round(found.bits_per_byte, 6)
  (8.0, 64.0, 2.0)
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
    if not math.isfinite(self.nll) or self.nll < 0:
      raise ValueError(f'a total negative log-likelihood is finite and >= 0, not {self.nll}')
    for count in (self.tokens, self.words, 1 if self.num_bytes is None else self.num_bytes):
      if count <= 0:
        raise ValueError(f'a perplexity needs at least one unit, not {count}')

  @property
  def token(self) -> float:
    """Perplexity per token of the vocabulary."""
    return _exponential(self.nll / self.tokens)

  @property
  def word(self) -> float:
    """Perplexity per word."""
    return _exponential(self.nll / self.words)

  @property
  def bits_per_byte(self) -> float | None:
    """Bits per byte, None when the bytes are unknown."""
    return None if self.num_bytes is None else self.nll / self.num_bytes / math.log(2)

  def to_dict(self) -> dict[str, Any]:
    """Counts and all normalisations as JSON types; a perplexity that overflows is None."""
    derived = {'token': self.token, 'word': self.word, 'bits_per_byte': self.bits_per_byte}
    return dataclasses.asdict(self) | {
      name: value if value is not None and math.isfinite(value) else None
      for name, value in derived.items()}


def _exponential(nats: float) -> float:
  """exp, infinite where it overflows."""
  try:
    return math.exp(nats)
  except OverflowError:
    return math.inf
