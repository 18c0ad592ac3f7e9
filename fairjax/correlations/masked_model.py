"""Masked language models, BERT and ALBERT, as the metrics see them."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairjax.correlations.language_model import (
  Fill,
  LanguageModel,
  TokenFeatures,
  blank_parts,
  check_lengths,
  fill_in,
)
from fairjax.errors import UserError

_SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '<pad>', '<unk>', '<s>', '</s>')
_ROWS_AT_A_TIME = 256  # whole distributions over the vocabulary that are held at a time


class MaskedModel(LanguageModel):
  """BERT or ALBERT with its masked-language-model head."""

  kind = 'masked'

  def __init__(self, model: Any):
    """Wraps a `Pretrained` of head 'mlm', or 'encoder', which has features only.

    Raises:
      UserError: its tokenizer has no mask token.
    """
    self._model, self._tokenizer = model, model.tokenizer
    self.name = model.name
    self.fingerprint, self.max_length = model.fingerprint, model.max_length
    self._runners: dict[int, Any] = {}
    self._mask_id = self._tokenizer.token_to_id('[MASK]')
    if self._mask_id is None:
      raise UserError(f'{model.directory}: the tokenizer has no [MASK]')
    if self._mask_id not in self._tokenizer.get_added_tokens_decoder():
      # Some files list it as a word only: inside a text it would be taken apart. Where it is added
      # already it stays as it is: that of ALBERT takes the space before it, no piece of its own.
      self._tokenizer.add_special_tokens(['[MASK]'])
    added = self._tokenizer.get_added_tokens_decoder()
    named = [i for i in map(self._tokenizer.token_to_id, (*_SPECIAL, '\u2581')) if i is not None]
    self._special = np.array(sorted({
      *named, *(i for i, token in added.items() if token.special), *model.unused_ids}), np.int32)
    self._unknown_ids = [i for i in map(self._tokenizer.token_to_id, ('[UNK]', '<unk>'))
                         if i is not None]

  def fill(self, texts, *, top):
    """See `LanguageModel.fill`."""
    self._need_head()
    ids = self._encode([fill_in(t, '[MASK]') for t in texts])
    found = self._best(min(top, self._model.arch.vocab_size - len(self._special)))(ids)
    return [[Fill(self._tokenizer.id_to_token(int(i)).replace('\u2581', ' ').strip(), float(p))
             for i, p in zip(*row, strict=True)] for row in found]

  def candidate_log_probs(self, texts, candidates):
    """See `LanguageModel.candidate_log_probs`."""
    self._need_head()
    rows, targets, owners = [], [], []
    for text, own in enumerate(zip(texts, candidates, strict=True)):
      before, behind = blank_parts(own[0])
      for candidate, word in enumerate(own[1]):
        ids, places = self._candidate(before, word, behind)
        for place in places:  # those before it stand there, those from it on are masked
          row = ids.copy()
          row[[p for p in places if p >= place]] = self._mask_id
          rows.append(row)
          targets.append(int(ids[place]))
          owners.append((text, candidate))
    found = [np.zeros(len(own)) for own in candidates]
    for start in range(0, len(rows), _ROWS_AT_A_TIME):
      part = slice(start, start + _ROWS_AT_A_TIME)
      log_probs = self._whole(rows[part])
      for (text, candidate), target, row in zip(
          owners[part], targets[part], log_probs, strict=True):
        found[text][candidate] += row[target]
    return found

  def piece_counts(self, words):
    """See `LanguageModel.piece_counts`."""
    encoded = self._tokenizer.encode_batch([f'the {w}' for w in words], add_special_tokens=False)
    first = len(self._tokenizer.encode('the', add_special_tokens=False).ids)
    return [0 if set(self._unknown_ids) & set(e.ids[first:]) else len(e.ids) - first
            for e in encoded]

  def token_features(self, texts):
    """See `LanguageModel.token_features`."""
    ids = self._encode(texts)
    offsets = [np.array(e.offsets) for e in self._tokenizer.encode_batch(list(texts))]
    return [TokenFeatures(h, o) for h, o in zip(self._hidden(ids), offsets, strict=True)]

  def features(self, texts):
    """See `LanguageModel.features`."""
    from fairjax.pretrained import encode_texts
    encoded = encode_texts(self._tokenizer, texts, max_length=self.max_length)
    self._tokenizer.no_truncation()
    self.truncated += encoded.truncated
    return self._pooled(encoded.ids)

  def _need_head(self) -> None:
    if self._model.head != 'mlm':
      raise UserError(f'{self._model.directory} was opened for its features: it has no head that '
                      'fills a blank')

  def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
    self._tokenizer.no_truncation()
    ids = [np.array(e.ids, np.int32) for e in self._tokenizer.encode_batch(list(texts))]
    check_lengths(texts, ids, self.max_length)
    return ids

  def _candidate(self, before: str, word: str, behind: str) -> tuple[np.ndarray, list[int]]:
    """Ids of the text with the candidate, and the candidate's places."""
    text = before + word + behind
    (ids,), encoding = self._encode([text]), self._tokenizer.encode(text)
    # The space before it is the candidate's: SentencePiece may write it as a piece of its own.
    start, end = len(before.rstrip()), len(before) + len(word)
    places = [place for place, (a, b) in enumerate(encoding.offsets) if a < end and b > start]
    if not places:
      raise UserError(f'{word!r} in {text!r} has no token of its own')
    return ids, places

  def _runner(self, function, *, per_token: bool = False):
    from fairjax.pretrained import BatchRunner
    return BatchRunner(function, self._model.params, max_length=self.max_length,
                       pad_id=self._model.arch.pad_id, per_token=per_token)

  def _at_mask(self, params, ids, mask, packing):
    """Log-probabilities `[B, V]` float32 at the first masked place."""
    import jax

    from fairjax.pretrained import encode, mlm_logits
    from fairjax.pretrained.models import wide
    hidden = encode(params, self._model.arch, ids, mask, packing=packing)
    places = (ids == self._mask_id).argmax(axis=1)[:, None]
    return jax.nn.log_softmax(
      wide(mlm_logits(params, self._model.arch, hidden, places)[:, 0]), axis=-1)

  @functools.cached_property
  def _whole(self):
    return self._runner(self._at_mask)

  def _best(self, top: int):
    if top in self._runners:
      return self._runners[top]

    def best(params, ids, mask, packing):
      import jax
      import jax.numpy as jnp
      log_probs = self._at_mask(params, ids, mask, packing)
      values, places = jax.lax.top_k(log_probs.at[:, self._special].set(-jnp.inf), top)
      return jnp.stack([places.astype(values.dtype), values], axis=1)  # ids are exact below 2^24

    return self._runners.setdefault(top, self._runner(best))

  @functools.cached_property
  def _hidden(self):
    from fairjax.pretrained import encode
    return self._runner(
      lambda p, ids, mask, packing: encode(p, self._model.arch, ids, mask, packing=packing),
      per_token=True)

  @functools.cached_property
  def _pooled(self):
    from fairjax.pretrained import encode, mean_pool
    return self._runner(lambda p, ids, mask, packing: mean_pool(
      encode(p, self._model.arch, ids, mask, packing=packing), mask))
