"""The one interface through which the metrics ask models, and what fulfils it.

The metrics of Webster et al. 2020 are defined by what a model puts into a blank. A causal model
fills the last place of a text by its next token, and any other by comparing whole texts (W-01).

Letters: R texts, C candidates, D model width, V vocabulary, n tokens of one text.
"""

import abc
import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from fairjax.errors import UserError
from fairjax.model import CausalLM, language_model
from fairjax.model.causal_lm import wide
from fairjax.model.decoder import DecoderModel
from fairjax.model.decoder_config import DecoderConfig
from fairjax.pretrained import (
  BatchRunner,
  Pretrained,
  encode,
  encode_texts,
  load_pretrained,
  mean_pool,
  mlm_logits,
  open_model,
)
from fairjax.pretrained.heads import FeatureLearner, Learner, TokenLearner
from fairjax.pretrained.masked_rows import special_tokens
from fairjax.pretrained.tokens import length_limit
from fairjax.vocabulary import TokenizerVocabulary, Vocabulary

BLANK = '[BLANK]'


class TokenFeatures(NamedTuple):
  """Last hidden states of one text."""

  hidden: np.ndarray  # `[n, D]` float32
  # `[n, 2]` int: the characters that each token covers, end exclusive; (0, 0) for added tokens
  offsets: np.ndarray

  def span(self, start: int, end: int) -> np.ndarray:
    """Mean over the tokens that touch characters `[start, end)`: `[D]`."""
    touching = (self.offsets[:, 0] < end) & (self.offsets[:, 1] > start)
    if not touching.any():
      raise UserError(f'a tokenizer gives the characters {start} to {end} of a text no token')
    return self.hidden[touching].mean(axis=0)


class Scorable(Protocol):
  """A model that the metrics can ask.

  Texts to fill hold one `[BLANK]`. A text of more than `max_length` tokens, or without a blank or
  with several, raises `UserError`; only `features` cuts too long texts.
  """

  kind: str  # 'masked' or 'causal'
  name: str  # in tables
  fingerprint: str  # SHA-256 (hex) of all that decides its answers
  max_length: int  # most tokens of a text, those that the model adds included
  truncated: int = 0  # texts given to `features` so far that lost their end

  def fill(self, texts: Sequence[str], *, top: int) -> list[list[str]]:
    """The `top` likeliest different texts of single pieces in the blank of each text, best first.

    A causal model reads a text up to its blank. Pieces without a text (padding, masks, unknown
    words) are never filled in; one that is only part of a word keeps the mark of its tokenizer,
    e.g. `##ing`.
    """

  def candidate_log_probs(
    self, texts: Sequence[str], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """How likely each text's candidates are in its blank: float64 `[C]`, nats up to a constant.

    A causal model scores whole texts. A masked one predicts the pieces of a candidate from left to
    right, those to come masked, so it knows their number.
    """

  def piece_counts(self, words: Sequence[str]) -> list[int]:
    """Pieces of each word after another word; 0 if it holds a character that has none."""

  def token_features(self, texts: Sequence[str]) -> list[TokenFeatures]:
    """Last hidden states of every token."""

  def features(self, texts: Sequence[str], *, max_length: int | None = None) -> np.ndarray:
    """Mean over the first tokens of the last hidden states, `[R, D]` float32."""


def in_pieces(model: Scorable, words: Sequence[str]) -> dict[str, Any]:
  """How a vocabulary writes people: how many `words`, those of `several` pieces, `unknown` ones."""
  counts = dict(zip(words, model.piece_counts(words), strict=True))
  return {'words': len(counts), 'several': [w for w, n in counts.items() if n > 1],
          'unknown': [w for w, n in counts.items() if not n]}


def blank_parts(text: str) -> tuple[str, str]:
  """The text before and after the blank."""
  before, blank, after = text.partition(BLANK)
  if not blank or BLANK in after or not (before + after).strip():
    raise UserError(f'{text!r} must hold {BLANK} once, beside other text')
  return before, after


def fill_in(text: str, word: str) -> str:
  """The text with a word in its blank."""
  before, after = blank_parts(text)
  return before + word + after


def _checked(texts: Sequence[str], ids: Iterable[Sequence[int]], longest: int) -> list[np.ndarray]:
  """Ids as arrays; refuses texts of more than `longest` tokens."""
  rows = [np.array(row, np.int32) for row in ids]
  for text, row in zip(texts, rows, strict=True):
    if len(row) > longest:
      raise UserError(f'a text of {len(row)} tokens, but the model reads {longest}: {text[:60]!r}')
  return rows


class _Batched(Scorable):
  """What both kinds share: functions of batches of ids, each compiled once, and what may be filled.

  `texts` are those of the pieces by id, '' of those that are never filled in. Pieces with one text,
  e.g. with and without a space before it, are one fill, as likely as the likeliest of them.
  """

  def __init__(self, params: Any, *, pad_id: int, texts: Sequence[str]):
    self._params, self._pad_id = params, pad_id
    numbers = {text: n for n, text in enumerate(dict.fromkeys(filter(None, texts)))}
    self._fills = list(numbers)
    # `[V]`; that of a piece without a text is out of range, so that its probability counts nowhere
    self._fill_of = np.array([numbers.get(text, len(numbers)) for text in texts], np.int32)
    self._best_of: dict[int, BatchRunner] = {}

  @abc.abstractmethod
  def _hidden(self, params, ids, mask, packing) -> jax.Array:
    """Last hidden states `[B, T, D]`."""

  @abc.abstractmethod
  def _at_blank(self, params, ids, mask, packing) -> jax.Array:
    """Log-probabilities `[B, V]` float32 of the pieces in the blank of each row."""

  def _runner(self, function: Callable[..., jax.Array], *, per_token: bool = False) -> BatchRunner:
    return BatchRunner(function, self._params, max_length=self.max_length, pad_id=self._pad_id,
                       per_token=per_token)

  def _best(self, ids: Sequence[np.ndarray], top: int) -> list[list[str]]:
    """The likeliest fills of each row."""
    top = min(top, len(self._fills))
    if top not in self._best_of:
      self._best_of[top] = self._runner(lambda *given: jax.lax.top_k(jax.ops.segment_max(
        self._at_blank(*given).T, self._fill_of, num_segments=len(self._fills)).T, top)[1])
    return [[self._fills[i] for i in row] for row in self._best_of[top](ids).tolist()]

  @functools.cached_property
  def _states(self) -> BatchRunner:
    return self._runner(self._hidden, per_token=True)

  @functools.cached_property
  def _pooled(self) -> BatchRunner:
    return self._runner(lambda params, ids, mask, packing: mean_pool(
      self._hidden(params, ids, mask, packing), mask))


class CausalModel(_Batched):
  """A model that reads from left to right: a published decoder, or one trained here."""

  kind = 'causal'

  def __init__(
    self, model: CausalLM, params: Any, *, name: str, fingerprint: str, vocabulary: Vocabulary,
    max_length: int,
  ):
    """Takes the parts of a model; its logits beyond `vocabulary.size` are padding."""
    self.name, self.fingerprint, self.max_length = name, fingerprint, max_length
    self._vocabulary, self._model = vocabulary, model
    texts = ['' if i == vocabulary.unk_id else surface.decode('utf-8', 'replace').strip()
             for i, surface in enumerate(vocabulary.surfaces)]
    super().__init__({'model': params}, pad_id=vocabulary.eos_id, texts=texts)

  def fill(self, texts: Sequence[str], *, top: int) -> list[list[str]]:
    """The best next tokens after the text before the blank."""
    return self._best(self._encode([blank_parts(t)[0].rstrip() for t in texts]), top)

  def candidate_log_probs(
    self, texts: Sequence[str], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Log-probabilities of the whole texts."""
    whole = [fill_in(text, word)
             for text, own in zip(texts, candidates, strict=True) for word in own]
    return np.split(self.log_probs(whole), np.cumsum([len(own) for own in candidates])[:-1])

  def log_probs(self, texts: Sequence[str]) -> np.ndarray:
    """Log-probability of each text after a start, nats, `[R]` float64; its end is not scored."""
    ids, starts = self._encode(texts), len(self._vocabulary.start_ids)
    for text, row in zip(texts, ids, strict=True):
      if len(row) == starts:
        raise UserError(f'{text!r} has no token')
    return np.array([-row[starts - 1:-1].astype(np.float64).sum() for row in self._nll(ids)])

  def piece_counts(self, words: Sequence[str]) -> list[int]:
    """Tokens of each word after "the"."""
    after = len(self._vocabulary.encode('the'))
    pieces = [self._vocabulary.encode(f'the {w}')[after:] for w in words]
    return [0 if self._vocabulary.unk_id in own else len(own) for own in pieces]

  def token_features(self, texts: Sequence[str]) -> list[TokenFeatures]:
    """Last hidden states of every token."""
    starts = list(self._vocabulary.start_ids)
    found = [self._vocabulary.encode_with_offsets(text) for text in texts]
    ids = _checked(texts, [starts + list(own) for own, _ in found], self.max_length)
    return [TokenFeatures(hidden, np.array([(0, 0)] * len(starts) + list(offsets)))
            for hidden, (_, offsets) in zip(self._states(ids), found, strict=True)]

  def features(self, texts: Sequence[str], *, max_length: int | None = None) -> np.ndarray:
    """Mean hidden states."""
    ids = [np.array(self._vocabulary.prompt_ids(text), np.int32) for text in texts]
    most = min(self.max_length, max_length or self.max_length)
    self.truncated += sum(len(row) > most for row in ids)
    return self._pooled([row[:most] for row in ids])

  def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
    return _checked(texts, map(self._vocabulary.prompt_ids, texts), self.max_length)

  def _hidden(self, params, ids, mask, packing):
    return self._model.apply(params['model'], ids, self._model.init_state(len(ids))).hidden

  def _at_blank(self, params, ids, mask, packing):
    hidden = self._hidden(params, ids, mask, packing)
    last = jnp.take_along_axis(hidden, (mask.sum(axis=1) - 1)[:, None, None], axis=1)[:, 0]
    return jax.nn.log_softmax(self._scores(params, last), axis=-1)

  def _scores(self, params: Any, hidden: jax.Array) -> jax.Array:
    return wide(self._model.logits(params['model'], hidden)[..., :self._vocabulary.size])

  @functools.cached_property
  def _nll(self) -> BatchRunner:
    def nll(params, ids, mask, packing):
      logits = self._scores(params, self._hidden(params, ids, mask, packing))
      targets = jnp.roll(ids, -1, axis=1)  # the last one's is never read
      chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
      return jax.nn.logsumexp(logits, axis=-1) - chosen

    return self._runner(nll, per_token=True)


_ROWS_AT_A_TIME = 256  # whole distributions over the vocabulary that are held at a time


class MaskedModel(_Batched):
  """BERT or ALBERT with its masked-language-model head; of head 'encoder' for features only."""

  kind = 'masked'

  def __init__(self, model: Pretrained):
    self._model, self._tokenizer = model, model.tokenizer
    self.name = model.name
    self.fingerprint, self.max_length = model.fingerprint, model.max_length
    pad_id, size = model.architecture.pad_id, model.arch.vocab_size
    special = special_tokens(
      self._tokenizer, pad_id=pad_id, where=str(model.directory), vocab_size=size)
    self._mask_id, self._unknown_id = special.mask, special.unknown
    self._mask = self._tokenizer.id_to_token(special.mask)
    if special.mask not in self._tokenizer.get_added_tokens_decoder():
      # Some files list it as a word only: inside a text it would be taken apart. Where it is added
      # already it stays as it is: that of ALBERT takes the space before it, no piece of its own.
      self._tokenizer.add_special_tokens([self._mask])
    super().__init__(model.params, pad_id=pad_id, texts=[
      '' if i in special.all else self._tokenizer.id_to_token(i).replace('\u2581', ' ').strip()
      for i in range(size)])

  def fill(self, texts: Sequence[str], *, top: int) -> list[list[str]]:
    """The best pieces at a mask."""
    return self._best(self._encode([fill_in(t, self._mask) for t in texts]), top)

  def candidate_log_probs(
    self, texts: Sequence[str], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Sums over the pieces of a candidate, from left to right."""
    rows, targets, owners = [], [], []
    for text, own in enumerate(zip(texts, candidates, strict=True)):
      before, after = blank_parts(own[0])
      for candidate, word in enumerate(own[1]):
        ids, places = self._candidate(before, word, after)
        for place in places:  # the pieces before it are known, those from it on are masked
          row = ids.copy()
          row[[p for p in places if p >= place]] = self._mask_id
          rows.append(row)
          targets.append(int(ids[place]))
          owners.append((text, candidate))
    found = [np.zeros(len(own)) for own in candidates]
    for start in range(0, len(rows), _ROWS_AT_A_TIME):
      part = slice(start, start + _ROWS_AT_A_TIME)
      for (text, candidate), target, row in zip(
          owners[part], targets[part], self._whole(rows[part]), strict=True):
        found[text][candidate] += row[target]
    return found

  def piece_counts(self, words: Sequence[str]) -> list[int]:
    """Pieces of each word after "the"."""
    encoded = self._tokenizer.encode_batch([f'the {w}' for w in words], add_special_tokens=False)
    first = len(self._tokenizer.encode('the', add_special_tokens=False).ids)
    return [0 if self._unknown_id in e.ids[first:] else len(e.ids) - first for e in encoded]

  def token_features(self, texts: Sequence[str]) -> list[TokenFeatures]:
    """Last hidden states of every piece."""
    ids = self._encode(texts)
    offsets = [np.array(e.offsets) for e in self._tokenizer.encode_batch(list(texts))]
    return [TokenFeatures(h, o) for h, o in zip(self._states(ids), offsets, strict=True)]

  def features(self, texts: Sequence[str], *, max_length: int | None = None) -> np.ndarray:
    """Mean hidden states."""
    most = min(self.max_length, max_length or self.max_length)
    encoded = encode_texts(self._tokenizer, texts, max_length=most)
    self._tokenizer.no_truncation()
    self.truncated += encoded.truncated
    return self._pooled(encoded.ids)

  def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
    self._tokenizer.no_truncation()
    encoded = self._tokenizer.encode_batch(list(texts))
    return _checked(texts, (e.ids for e in encoded), self.max_length)

  def _candidate(self, before: str, word: str, after: str) -> tuple[np.ndarray, list[int]]:
    """Ids of the text with the candidate, and the candidate's places."""
    text = before + word + after
    (ids,), encoding = self._encode([text]), self._tokenizer.encode(text)
    # The space before it is the candidate's: SentencePiece may write it as a piece of its own.
    start, end = len(before.rstrip()), len(before) + len(word)
    places = [place for place, (a, b) in enumerate(encoding.offsets) if a < end and b > start]
    if not places:
      raise UserError(f'{word!r} in {text!r} has no token of its own')
    return ids, places

  def _hidden(self, params, ids, mask, packing):
    return encode(params, self._model.arch, ids, mask, packing=packing)

  def _at_blank(self, params, ids, mask, packing):
    """At the first masked place."""
    hidden = self._hidden(params, ids, mask, packing)
    places = (ids == self._mask_id).argmax(axis=1)[:, None]
    return jax.nn.log_softmax(
      wide(mlm_logits(params, self._model.arch, hidden, places)[:, 0]), axis=-1)

  @functools.cached_property
  def _whole(self) -> BatchRunner:
    return self._runner(self._at_blank)


def open_language_model(
  path: str | os.PathLike, *, model: str = 'baseline', features_only: bool = False) -> Scorable:
  """Opens a published model, a folder of `fairjax models export`, or a model of a workdir.

  With `features_only` a BERT or ALBERT need not have the head for masked words.
  """
  path = pathlib.Path(path)
  check_model(path, model)
  if is_encoder(path):
    return MaskedModel(load_pretrained(path, 'encoder' if features_only else 'mlm'))
  if not is_published(path):
    return _own(path, model)
  decoder = load_pretrained(path, 'lm')
  return CausalModel(  # every text begins with the tokenizer's own id, else the end of a text
    DecoderModel(cast(DecoderConfig, decoder.arch)), decoder.params, name=decoder.name,
    fingerprint=decoder.fingerprint, vocabulary=decoder.files.vocabulary(start=True),
    max_length=decoder.max_length)


def _own(path: pathlib.Path, name: str) -> CausalModel:
  """A model of a workdir, or a Transformer-XL of an exported folder."""
  if _is_workdir(path):
    from fairjax.run.results import open_run
    run = open_run(path, log=lambda line: None)
    trained = run.find_model(name, trained=True)
    config, vocabulary, params = run.model_config, run.vocabulary, run.params(trained)
    digest, title = run.metadata(trained)['digest'], f'{path.resolve().name}/{name}'
    if run.published:
      assert isinstance(vocabulary, TokenizerVocabulary)
      return CausalModel(
        run.language_model, params, name=title, fingerprint=digest, vocabulary=vocabulary.plain(),
        max_length=length_limit(open_model(run.published.source).directory,
                                run.published.config.max_positions))
  else:
    from fairjax.run.export import read_folder as read_export
    folder = read_export(path)
    vocabulary, params = folder.vocabulary, folder.params
    config = dataclasses.replace(folder.config.model, vocab_size=vocabulary.size)
    digest, title = folder.metadata['digest'], path.resolve().name
  # Every text is read alone: one slot of memory, which nothing fills.
  model = language_model(dataclasses.replace(config, memory_len=1, remat='none'))
  return CausalModel(model, params, name=title, fingerprint=digest, vocabulary=vocabulary,
                     max_length=max(config.segment_len, 512))


def check_model(path: pathlib.Path, name: str) -> None:
  """Refuses what is no model, and a name where a folder holds a single one."""
  is_encoder(path)  # raises where the folder holds no model
  if name != 'baseline' and (is_published(path) or not _is_workdir(path)):
    raise UserError(f'{path} is a single model, no workdir: leave @{name} out')


def is_published(path: pathlib.Path) -> bool:
  """Whether a folder holds a model in the published form, not one of ours (workdir or export)."""
  try:
    content = json.loads((path / 'config.json').read_bytes())
  except (OSError, ValueError, RecursionError):
    content = None  # the reader of the folder reports the error
  if isinstance(content, dict) and 'model_type' in content:
    return True
  return not _is_workdir(path) and not (isinstance(content, dict) and 'export' in content)


def is_encoder(path: str | os.PathLike) -> bool:
  """Whether a folder is a published BERT or ALBERT."""
  path = pathlib.Path(path)
  return is_published(path) and open_model(path).config['model_type'] in ('bert', 'albert')


def _is_workdir(path: pathlib.Path) -> bool:
  """Whether a folder is that of a run, which may hold several models."""
  return (path / 'data' / 'vocabulary').is_dir() or (path / 'debias').is_dir()


def open_learner(
  model: str | os.PathLike | Scorable, *, labels: Sequence[str], mode: str, pairs: bool = False,
  freeze: str = 'none', name: str = 'baseline', max_length: int | None = None,
  log: Callable[[str], None],
) -> Learner:
  """A model with a new head: `mode` 'full' fine-tunes a BERT or ALBERT, 'frozen' reads features."""
  if mode == 'full':
    if not isinstance(model, str | os.PathLike) or not is_encoder(model):
      raise UserError(f'{model} is no BERT or ALBERT: only these are fine-tuned as a whole, of '
                      'other models the features are read: gender correlations --mode=frozen')
    return TokenLearner(model, labels=labels, pairs=pairs, freeze=freeze, max_length=max_length,
                        log=log)
  if isinstance(model, str | os.PathLike):
    model = open_language_model(model, model=name, features_only=True)
  return FeatureLearner(model, labels=labels, max_length=max_length)
