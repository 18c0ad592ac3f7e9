"""Causal language models as the metrics see them: GPT-2, or a Transformer-XL trained here."""

import functools
import re
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


class CausalModel(LanguageModel):
  """A model that reads from left to right: GPT-2, or a Transformer-XL trained here."""

  kind = 'causal'

  def __init__(
    self, *, name: str, fingerprint: str, vocabulary: Any, params: Any, hidden: Any, logits: Any,
    max_length: int, spaced: bool, offsets: Any,
  ):
    """Takes the parts of a model.

    Args:
      name: for tables.
      fingerprint: of all that decides its answers.
      vocabulary: with `encode`, `surfaces`, `start_ids`, `eos_id` and `size`.
      params: of the two functions.
      hidden: `(params, ids [B, T], mask [B, T]) -> [B, T, D]`, what the softmax reads.
      logits: `(params, [..., D]) -> [..., V]`; columns beyond `vocabulary.size` are padding.
      max_length: most tokens, with those at the start.
      spaced: put spaces around punctuation first.
      offsets: text -> (ids, [(start, end)]) without `start_ids`.
    """
    self.name, self.fingerprint, self.max_length = name, fingerprint, max_length
    self._vocabulary, self._params = vocabulary, params
    self._runners: dict[int, Any] = {}
    self._hidden_of, self._logits_of = hidden, logits
    self._spaced, self._offsets = spaced, offsets
    if not vocabulary.start_ids:
      raise ValueError('the first token needs something before it')

  def fill(self, texts, *, top):
    """See `LanguageModel.fill`; what stands behind the blank is not read."""
    ids = self._encode([blank_parts(t)[0].rstrip() for t in texts])
    surfaces = self._vocabulary.surfaces
    fills = []
    for row in self._best(min(top, self._vocabulary.size - len(self._no_fill)))(ids):
      fills.append([Fill(surfaces[int(i)].decode('utf-8', 'replace').strip(), float(p))
                    for i, p in zip(*row, strict=True)])
    return fills

  def candidate_log_probs(self, texts, candidates):
    """See `LanguageModel.candidate_log_probs`."""
    whole = [fill_in(text, word)
             for text, own in zip(texts, candidates, strict=True) for word in own]
    totals = self.log_probs(whole)
    ends = np.cumsum([len(own) for own in candidates])[:-1]
    return np.split(totals, ends)

  def log_probs(self, texts: Sequence[str]) -> np.ndarray:
    """Log-probability of each text behind a start, nats, `[R]` float64; its end is not scored."""
    ids = self._encode(texts)
    for text, row in zip(texts, ids, strict=True):
      if len(row) == len(self._vocabulary.start_ids):
        raise UserError(f'{text!r} has no token')
    nll = self._nll(ids)
    starts = len(self._vocabulary.start_ids)
    return np.array([-row[starts - 1:-1].astype(np.float64).sum() for row in nll])

  def piece_counts(self, words):
    """See `LanguageModel.piece_counts`."""
    unknown = getattr(self._vocabulary, 'unk_id', None)
    after = len(self._vocabulary.encode('the'))
    pieces = [self._vocabulary.encode(f'the {w}')[after:] for w in words]
    return [0 if unknown is not None and unknown in own else len(own) for own in pieces]

  def token_features(self, texts):
    """See `LanguageModel.token_features`; offsets are those of the text as it was given."""
    spaced = [space(t) if self._spaced else (t, np.arange(len(t) + 1)) for t in texts]
    found = [self._offsets(text) for text, _ in spaced]
    starts = list(self._vocabulary.start_ids)
    ids = [np.array(starts + list(own), np.int32) for own, _ in found]
    check_lengths(texts, ids, self.max_length)
    result = []
    for hidden, (_, offsets), (_, places) in zip(self._states(ids), found, spaced, strict=True):
      own = places[np.array(offsets, int).reshape(-1, 2)]
      result.append(TokenFeatures(
        hidden, np.concatenate([np.zeros((len(starts), 2), own.dtype), own])))
    return result

  def features(self, texts):
    """See `LanguageModel.features`."""
    ids = [self._ids(t) for t in texts]
    self.truncated += sum(len(row) > self.max_length for row in ids)
    return self._pooled([row[:self.max_length] for row in ids])

  def _ids(self, text: str) -> np.ndarray:
    text = space(text)[0] if self._spaced else text
    return np.array([*self._vocabulary.start_ids, *self._vocabulary.encode(text)], np.int32)

  def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
    ids = [self._ids(t) for t in texts]
    check_lengths(texts, ids, self.max_length)
    return ids

  def _runner(self, function, *, per_token: bool = False):
    from fairjax.pretrained import BatchRunner
    return BatchRunner(
      lambda params, ids, mask, packing: function(params['model'], ids, mask),
      {'model': self._params}, max_length=self.max_length, pad_id=self._vocabulary.eos_id,
      per_token=per_token)

  def _best(self, top: int):
    if top in self._runners:
      return self._runners[top]
    no_fill = self._no_fill

    def best(params, ids, mask):
      import jax
      import jax.numpy as jnp
      hidden = self._hidden_of(params, ids, mask)
      last = jnp.take_along_axis(hidden, (mask.sum(axis=1) - 1)[:, None, None], axis=1)[:, 0]
      log_probs = jax.nn.log_softmax(self._scores(params, last), axis=-1)
      values, places = jax.lax.top_k(log_probs.at[:, no_fill].set(-jnp.inf), top)
      return jnp.stack([places.astype(values.dtype), values], axis=1)

    return self._runners.setdefault(top, self._runner(best))

  @functools.cached_property
  def _no_fill(self) -> np.ndarray:
    """Ids without text (ends, padding of the table) and that of unknown words: never a fill."""
    unknown = getattr(self._vocabulary, 'unk_id', None)
    return np.array([i for i, s in enumerate(self._vocabulary.surfaces)
                     if not s.strip() or i == unknown], np.int32)

  def _scores(self, params, hidden):
    import jax.numpy as jnp
    logits = self._logits_of(params, hidden)[..., :self._vocabulary.size]
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

  @functools.cached_property
  def _nll(self):
    def nll(params, ids, mask):
      import jax
      import jax.numpy as jnp
      logits = self._scores(params, self._hidden_of(params, ids, mask))
      targets = jnp.roll(ids, -1, axis=1)  # the last one's is never read
      chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
      return jax.nn.logsumexp(logits, axis=-1) - chosen

    return self._runner(nll, per_token=True)

  @functools.cached_property
  def _states(self):
    return self._runner(self._hidden_of, per_token=True)

  @functools.cached_property
  def _pooled(self):
    from fairjax.pretrained import mean_pool
    return self._runner(lambda p, ids, mask: mean_pool(self._hidden_of(p, ids, mask), mask))


def space(text: str) -> tuple[str, np.ndarray]:
  """Puts spaces around punctuation and before 's.

  Returns:
    The text, and `[its length + 1]` int: where each of its characters stands in the given text.

  >>> space("The boss's plan, she said.")[0]
  "The boss 's plan , she said ."
  """
  pieces = [m for m in re.finditer(r"\w+(?:-\w+)*|'s\b|[^\w\s]", text)]
  spaced, places = '', []
  for number, piece in enumerate(pieces):
    if number:
      spaced += ' '
      places.append(piece.start())
    spaced += piece[0]
    places += range(piece.start(), piece.end())
  return spaced, np.array([*places, pieces[-1].end() if pieces else 0])
