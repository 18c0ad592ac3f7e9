"""Pairs of sentences as BERT and ALBERT read them: `[CLS] first [SEP] second [SEP]`, with types.

The types of the tokens (0: first sentence, 1: second) are read off the ids, so that whatever
batches ids need not carry them.

Letters: B batch, T tokens.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fairjax.errors import UserError
from fairjax.pretrained.tokens import Encoded, is_broken


def encode_pairs(
  tokenizer: Any, firsts: Sequence[str], seconds: Sequence[str], *, max_length: int
) -> Encoded:
  """Token ids of pairs, special tokens included; of a pair that is too long the longer is cut.

  Args:
    tokenizer: of a BERT or ALBERT.
    firsts: R texts.
    seconds: R texts.
    max_length: most tokens of a pair.

  Raises:
    UserError: the tokenizer does not put pairs together as BERT's, or a text holds its separator.
  """
  whole, repaired = [], 0
  for pair in zip(firsts, seconds, strict=True):
    broken = any(map(is_broken, pair))
    repaired += broken
    whole.append(tuple(_mended(text) for text in pair) if broken else pair)
  sep = separator_id(tokenizer)
  tokenizer.enable_truncation(max_length, strategy='longest_first')
  encodings = tokenizer.encode_batch(whole)
  ids = [np.array(e.ids, np.int32) for e in encodings]
  for pair, row, encoding in zip(whole, ids, encodings, strict=True):
    if not np.array_equal(_types(row[None], sep, np)[0], encoding.type_ids):
      raise UserError(f'the pair {pair[0][:60]!r}, {pair[1][:60]!r} does not become one separator '
                      "behind each sentence: it holds the tokenizer's own separator as text, or "
                      'the tokenizer does not join pairs as BERT does')
  return Encoded(ids, sum(bool(e.overflowing) for e in encodings), repaired)


def separator_id(tokenizer: Any) -> int:
  """Id of the token that ends each sentence of a pair.

  Raises:
    UserError: pairs do not end with the same token as their first sentence.
  """
  tokenizer.no_truncation()
  pair, single = tokenizer.encode('a', 'a'), tokenizer.encode('a')
  if len(single.ids) < 2 or pair.ids[-1] != single.ids[-1] or pair.type_ids[-1] != 1:
    raise UserError('the tokenizer does not join a pair of sentences as BERT does ([CLS] first '
                    '[SEP] second [SEP], with token types): pairs need such a model')
  return pair.ids[-1]


def pair_types(ids: jax.Array, sep_id: int) -> jax.Array:
  """Token types of `[B, T]` ids: 1 behind the first separator; at padding arbitrary.

  >>> pair_types(jnp.array([[2, 7, 3, 8, 9, 3], [2, 7, 8, 9, 9, 3]]), 3).tolist()
  [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]]
  """
  return _types(ids, sep_id, jnp)


def _types(ids, sep_id, xp):
  ends = (ids == sep_id).astype(xp.int32)
  return ((xp.cumsum(ends, axis=1) - ends) > 0).astype(xp.int32)


def _mended(text: str) -> str:
  """A text with U+FFFD for half characters, which no tokenizer takes."""
  return text.encode('utf-8', 'surrogatepass').decode('utf-8', 'replace')
