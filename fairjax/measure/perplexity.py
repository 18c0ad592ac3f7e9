"""Perplexity of a test set from its total negative log-likelihood (H-25).

The paper reports PPL on the test set and PPL_s on the articles that hold a sensitive token, without
saying whether per word or per sub-word. All three normalisations of one total are given: only word
perplexity and bits per byte can be compared between vocabularies.
"""

import math
from typing import Any


def perplexities(
  nll: float, *, tokens: int, words: int, num_bytes: int, documents: int | None = None,
  memory_len: int | None = None,
) -> dict[str, Any]:
  """Perplexity per token and word, and bits per byte, of one set of documents.

  Args:
    nll: total negative log-likelihood, nats.
    tokens: predicted tokens, above 0, eos included. With a word vocabulary on WikiText these are
      the published tokens: words and one eos for each line.
    words: words between white space of the original text, above 0 (the paper's unit).
    num_bytes: UTF-8 bytes of the original text, above 0.
    documents: documents in the set.
    memory_len: hidden states of earlier tokens that the model read, carried from segment to
      segment of a document.

  Returns:
    JSON types: the arguments, `token`, `word` (None where it overflows) and `bits_per_byte`.

  Raises:
    ValueError: a log-likelihood that is not finite or negative.

  >>> found = perplexities(10 * math.log(8), tokens=10, words=5, num_bytes=15)
  >>> round(found['token'], 6), round(found['word'], 6), round(found['bits_per_byte'], 6)
  (8.0, 64.0, 2.0)
  """
  if not math.isfinite(nll) or nll < 0:
    raise ValueError(f'a total negative log-likelihood is finite and >= 0, not {nll}')
  return {
    'nll': nll, 'tokens': tokens, 'words': words, 'num_bytes': num_bytes, 'documents': documents,
    'memory_len': memory_len, 'definition': 'H-25', 'direction': 'lower is better',
    'token': _exponential(nll / tokens), 'word': _exponential(nll / words),
    'bits_per_byte': nll / num_bytes / math.log(2)}


def _exponential(nats: float) -> float | None:
  """exp, None where it overflows."""
  try:
    return math.exp(nats)
  except OverflowError:
    return None
