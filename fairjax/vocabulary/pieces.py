"""The tokenizer of a masked language model as what encodes a token store: sentences of pieces.

A document is text of one sentence a line. With V pieces in the tokenizer its ids are

    i          piece i, where a word begins
    V + i      piece i, inside a word
    2 V        the end of a sentence, also of one without a piece
    2 V + 1    the end of a document

so that a store tells sentences and words apart whatever the tokenizer takes for a word, and
whatever a text holds: also `[CLS]` or `[SEP]`, which tokenizers read as their special pieces.
"""

import itertools
import os
from collections.abc import Sequence
from typing import Any

from fairjax.errors import UserError
from fairjax.vocabulary.encoder import Encoder
from fairjax.vocabulary.kinds import SentencePieceVocabulary, WordVocabulary, load_vocabulary

_AT_ONCE = 4096  # sentences: the tokenizer's own objects take some 200 bytes a piece


class PieceEncoder(Encoder):
  """Sentences, a line each, to pieces of a `tokenizers.Tokenizer`.

  Attributes:
    tokenizer: without padding and truncation.
    pieces: V.
    border_id: 2 V, behind every sentence.
    eos_id: 2 V + 1.
  """

  kind, filename = 'pieces', 'tokenizer.json'

  @classmethod
  def of(cls, tokenizer: Any) -> 'PieceEncoder':
    """Of a `tokenizers.Tokenizer`."""
    return cls(tokenizer.to_str().encode('utf-8'))

  def _load(self, content: bytes) -> int:
    import tokenizers
    try:
      self.tokenizer = tokenizers.Tokenizer.from_str(content.decode('utf-8'))
    except Exception as e:  # the package raises plain Exception
      raise UserError(f'no tokenizer ({e})') from None
    self.tokenizer.no_padding()
    self.tokenizer.no_truncation()
    self.pieces = 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values())
    self.border_id, self.eos_id = 2 * self.pieces, 2 * self.pieces + 1
    return 2 * self.pieces + 2

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each document; the empty text is one without a sentence."""
    found: list[list[int]] = [[] for _ in texts]
    sentences = ((i, line) for i, text in enumerate(texts) if text for line in text.split('\n'))
    while chunk := list(itertools.islice(sentences, _AT_ONCE)):
      encoded = self.tokenizer.encode_batch([line for _, line in chunk], add_special_tokens=False)
      for (number, _), encoding in zip(chunk, encoded, strict=True):
        ids, words = encoding.ids, encoding.word_ids
        found[number] += ids[:1]
        found[number] += [i + self.pieces if word == before else i for i, word, before in zip(
          ids[1:], words[1:], words, strict=False)]
        found[number].append(self.border_id)
    return found

  def vocabulary(self) -> dict[str, int]:
    """Piece -> id, in the order of the ids."""
    return dict(sorted(self.tokenizer.get_vocab(with_added_tokens=True).items(),
                       key=lambda item: item[1]))


def load_encoder(directory: str | os.PathLike) -> Encoder:
  """Reads a folder of any kind, a `Vocabulary` or a `PieceEncoder`.

  Raises:
    UserError: a file is missing, cannot be read, or is not the one that was saved.
  """
  return load_vocabulary(
    directory, {c.kind: c for c in (SentencePieceVocabulary, WordVocabulary, PieceEncoder)})
