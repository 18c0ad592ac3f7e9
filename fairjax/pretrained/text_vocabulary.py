"""The tokenizer of a model directory in the place of a vocabulary, for sampling."""

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.pretrained.directory import Pretrained
from fairjax.pretrained.tokenizer_checks import ends_text


class TokenizerVocabulary:
  """Text to ids and back with a `tokenizers.Tokenizer`.

  What `fairjax.generate` needs of a vocabulary.

  Attributes:
    size: number of ids.
    eos_id: the id that ends a text.
    start_ids: what a text to be continued begins with: nothing, as users of GPT-2 prompt it, or the
      end of the text before.
    fingerprint: SHA-256 (hex) of the tokenizer.
  """

  def __init__(self, model: Pretrained, *, start: bool = False):
    """Wraps the tokenizer of a language model.

    Args:
      model: with `eos_token_id` in its config.
      start: begin every text with the end-of-text id.

    Raises:
      UserError: the config names no end-of-text id, or one of an ordinary token.
    """
    eos = model.config.get('eos_token_id')
    self.size = model.arch.vocab_size
    if not isinstance(eos, int) or isinstance(eos, bool) or not 0 <= eos < self.size:
      raise UserError(f"{model.directory / 'config.json'}: eos_token_id is {eos!r}; sampling needs "
                      f'the id that ends a text, in [0, {self.size})')
    if not ends_text(model.tokenizer, eos, model.directory):
      raise UserError(f"{model.directory / 'config.json'}: eos_token_id is {eos}, in the tokenizer "
                      f'the ordinary token {model.tokenizer.id_to_token(eos)!r}, which would cut '
                      'texts: set it to the id of the end of a text, such as <|endoftext|>')
    self._tokenizer = model.tokenizer
    self.eos_id = eos
    self.start_ids = (eos,) if start else ()
    self.fingerprint = hashlib.sha256(
      self._tokenizer.to_str().encode('utf-8') + str((eos, start)).encode()).hexdigest()

  def encode(self, text: str) -> list[int]:
    """Ids of `text`, without special ones."""
    return self._tokenizer.encode(text, add_special_tokens=False).ids

  def decode(self, ids: Sequence[Any] | np.ndarray) -> str:
    """Text of `ids`; special ids add nothing, bytes that are no UTF-8 become U+FFFD."""
    return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

  @functools.cached_property
  def surfaces(self) -> list[bytes]:
    """UTF-8 bytes of each id by itself."""
    return [self.decode([i]).encode('utf-8') for i in range(self.size)]
