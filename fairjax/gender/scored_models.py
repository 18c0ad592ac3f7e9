"""Causal language models as the metrics see them: GPT-2, or a Transformer-XL trained here."""

import abc
import dataclasses
import functools
import json
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.errors import UserError

# One interface to the models that are measured: masked (BERT, ALBERT) and causal ones.
#
# The metrics of Webster et al. 2020 are defined by what a model puts into a blank; a causal model
# fills the last place of a text by its next token, and any other by comparing whole texts (W-01).
#
# Letters: R texts, C candidates, D model width, V vocabulary, n tokens of one text.

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
    """Mean over the tokens that touch characters `[start, end)`: `[D]`."""
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
    """Last hidden states of every token."""

  @abc.abstractmethod
  def features(self, texts: Sequence[str]) -> np.ndarray:
    """Mean over the tokens of the last hidden states, `[R, D]` float32; too long texts are cut."""


def in_pieces(model: LanguageModel, words: Sequence[str]) -> dict[str, Any]:
  """How a vocabulary writes people: how many `words`, those of `several` pieces, `unknown` ones."""
  counts = dict(zip(words, model.piece_counts(words), strict=True))
  return {'words': len(counts), 'several': [w for w, n in counts.items() if n > 1],
          'unknown': [w for w, n in counts.items() if not n]}


def blank_parts(text: str) -> tuple[str, str]:
  """What stands before and behind the blank."""
  before, blank, behind = text.partition(BLANK)
  if not blank or BLANK in behind or not (before + behind).strip():
    raise UserError(f'{text!r} must hold {BLANK} once, beside other text')
  return before, behind


def fill_in(text: str, word: str) -> str:
  """The text with a word in its blank."""
  before, behind = blank_parts(text)
  return before + word + behind


def check_lengths(texts: Sequence[str], ids: Sequence[np.ndarray], longest: int) -> None:
  """Refuses texts of more than `longest` tokens with a `UserError`."""
  for text, row in zip(texts, ids, strict=True):
    if len(row) > longest:
      raise UserError(f'a text of {len(row)} tokens, but the model reads {longest}: {text[:60]!r}')


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
  """Puts spaces around punctuation and before 's."""
  pieces = [m for m in re.finditer(r"\w+(?:-\w+)*|'s\b|[^\w\s]", text)]
  spaced, places = '', []
  for number, piece in enumerate(pieces):
    if number:
      spaced += ' '
      places.append(piece.start())
    spaced += piece[0]
    places += range(piece.start(), piece.end())
  return spaced, np.array([*places, pieces[-1].end() if pieces else 0])


# Masked language models, BERT and ALBERT, as the metrics see them.

_SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '<pad>', '<unk>', '<s>', '</s>')
_ROWS_AT_A_TIME = 256  # whole distributions over the vocabulary that are held at a time


class MaskedModel(LanguageModel):
  """BERT or ALBERT with its masked-language-model head."""

  kind = 'masked'

  def __init__(self, model: Any):
    """Wraps a `Pretrained` of head 'mlm', or 'encoder', which has features only."""
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


# Opens a model by its folder, whichever kind it is.

def open_language_model(
  path: str | os.PathLike, *, model: str = 'baseline', dtype: str = 'float32',
  spaced: bool | None = None, features_only: bool = False,
) -> LanguageModel:
  """Opens a model by its folder.

  Args:
    path: a BERT, ALBERT or GPT-2 directory in the published form, a folder of `fairjax export`, or
      the workdir of a run.
    model: of a workdir, `baseline` or the name of a debiased model.
    dtype: of the computation for a published directory.
    spaced: of a model trained here, whether its texts had spaces around punctuation, as WikiText
      has; None: with a vocabulary of words only.
    features_only: a BERT or ALBERT need not have the head for masked words then.

  Raises:
    UserError: no such folder or model, a name of a model for what is no workdir, or one without the
      head that is needed.
  """
  path = pathlib.Path(path)
  if model != 'baseline' and not _is_workdir(path):
    raise UserError(f'{path} is a single model, no workdir: leave @{model} out')
  if is_published(path):
    from fairjax.pretrained import load_pretrained, read_folder
    if read_folder(path)[1]['model_type'] == 'gpt2':
      return _gpt2(load_pretrained(path, 'lm', dtype=dtype))
    return MaskedModel(load_pretrained(path, 'encoder' if features_only else 'mlm', dtype=dtype))
  return _own(path, model, spaced)


def _gpt2(model: Any) -> CausalModel:
  """A GPT-2; every text begins behind the end-of-text id."""
  from fairjax.pretrained import TokenizerVocabulary, lm_hidden, lm_scores

  def offsets(text):
    encoding = model.tokenizer.encode(text, add_special_tokens=False)
    return encoding.ids, encoding.offsets

  return CausalModel(
    name=model.name, fingerprint=model.fingerprint, params=model.params,
    vocabulary=TokenizerVocabulary(model, start=True),
    hidden=lambda p, ids, mask: lm_hidden(p, model.arch, ids, mask), logits=lm_scores,
    max_length=model.max_length, spaced=False, offsets=offsets)


def _own(path: pathlib.Path, name: str, spaced: bool | None) -> CausalModel:
  """A Transformer-XL of a workdir or of an exported folder."""
  from fairjax.model import language_model
  if _is_workdir(path):
    from fairjax.run.checkpoint_model import open_checkpoint
    checkpoint = open_checkpoint(path, name, log=lambda line: None)
    config, vocabulary, params = (
      checkpoint.model_config, checkpoint.vocabulary, checkpoint.params)
    digest, title = checkpoint.card['digest'], f'{path.resolve().name}/{name}'
  else:
    from fairjax.run.export import read_folder
    folder = read_folder(path)
    vocabulary, params = folder.vocabulary, folder.params
    config = dataclasses.replace(folder.config.model, vocab_size=vocabulary.size)
    digest, title = folder.card['digest'], path.resolve().name
  # Each text stands alone: one slot of memory, which nothing fills.
  alone = dataclasses.replace(config, memory_len=1, remat='none')
  model = language_model(alone)

  def hidden(params, ids, mask):
    return model.apply(params, ids, model.init_state(ids.shape[0])).hidden

  return CausalModel(
    name=title, fingerprint=str(digest), vocabulary=vocabulary, params=params, hidden=hidden,
    logits=model.logits, max_length=max(config.segment_len, 128), spaced=bool(spaced),
    offsets=vocabulary.encode_with_offsets)


def is_published(path: pathlib.Path) -> bool:
  """Whether a folder holds a model in the published form, not one of ours (workdir or export)."""
  try:
    content = json.loads((path / 'config.json').read_bytes())
  except (OSError, ValueError, RecursionError):
    content = None  # what is wrong with it is said where it is read
  if isinstance(content, dict) and 'model_type' in content:
    return True
  return not _is_workdir(path) and not (isinstance(content, dict) and 'export' in content)


def _is_workdir(path: pathlib.Path) -> bool:
  """Whether a folder is that of a run, which may hold several models."""
  return (path / 'data' / 'vocabulary').is_dir() or (path / 'debias').is_dir()
