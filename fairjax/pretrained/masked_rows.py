"""Rows of token ids from a token store: a sentence a row, or as many as fit; nothing is lost.

A row is a part of the store; only where it begins and ends is held in memory (16 bytes a row), its
tokens are read when a batch needs them. What the ids of a store mean: `fairjax.vocabulary`.

Letters: R rows, T places of a row (special tokens included).
"""

import array
import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fairjax.errors import UserError
from fairjax.pretrained.tokens import unused_ids
from fairjax.vocabulary import PieceEncoder

FORMS = ('sentence', 'packed')
_BLOCK = 1 << 20  # tokens that are laid out at once, up to the end of a document
_MASKS = ('[MASK]', '<mask>')
_UNKNOWN = ('[UNK]', '<unk>')


class Special(NamedTuple):
  """Ids of special tokens."""

  begin: int  # [CLS], before every row
  end: int  # [SEP], after every row
  mask: int  # where a piece is to be found
  unknown: int | None  # of what the vocabulary cannot write; None where it can write everything
  pad: int
  all: frozenset[int]  # these and every other special token: neither masked nor drawn


def special_tokens(tokenizer: Any, *, pad_id: int, where: str, vocab_size: int) -> Special:
  """Special tokens of a tokenizer, and the ids below `vocab_size` that have no token."""
  ends = tokenizer.encode('').ids
  if len(ends) != 2:
    raise UserError(f'{where}: its tokenizer puts {len(ends)} special tokens around a text, not 2 '
                    '([CLS] and [SEP]): it is not that of a BERT or ALBERT')
  mask, unknown = (next((i for i in map(tokenizer.token_to_id, names) if i is not None), None)
                   for names in (_MASKS, _UNKNOWN))
  if mask is None:
    raise UserError(f"{where}: its tokenizer has no mask token ({' or '.join(_MASKS)}): a masked "
                    'language model needs one')
  added = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
  every = frozenset(added | {*ends, mask, pad_id} | ({unknown} - {None})
                    | set(unused_ids(tokenizer, vocab_size)))
  return Special(ends[0], ends[1], mask, unknown, pad_id, every)


def tells_words_apart(tokenizer: Any) -> bool:
  """Whether a `tokenizers.Tokenizer` says which pieces make a word; some take a text as one."""
  return len(set(tokenizer.encode('a b', add_special_tokens=False).word_ids)) > 1


class Tokens(Protocol):
  """The tokens of a store: read by slices."""

  def __getitem__(self, key: slice, /) -> np.ndarray: ...


class Rows:
  """R rows of a token store; `size` and `longest` count special tokens, too."""

  def __init__(self, tokens: Tokens, encoder: PieceEncoder, special: Special, layout: '_Layout',
               digest: str):
    self._tokens, self._encoder, self.special = tokens, encoder, special
    self._begins = np.array(layout.begins, np.int64)
    self._ends = np.array(layout.ends, np.int64)
    self.counts, self.size, self.longest = layout.counts, layout.size, layout.longest
    where = self._begins.astype('<i8').tobytes() + self._ends.astype('<i8').tobytes()
    self.digest = hashlib.sha256(digest.encode() + where).hexdigest()

  def __len__(self) -> int:
    return len(self._begins)

  def row(self, number: int) -> tuple[np.ndarray, np.ndarray]:
    """One row."""
    encoder, special = self._encoder, self.special
    found = self._tokens[int(self._begins[number]):int(self._ends[number])].astype(np.int32)
    found = found[found != encoder.border_id]
    border = found == encoder.eos_id
    if border.any():  # one, however many documents without a token lie between two
      kept = ~border
      kept[1:] |= ~border[:-1]
      found, border = found[kept], border[kept]
    inside = (found >= encoder.pieces) & ~border
    ids, starts = np.empty(len(found) + 2, np.int32), np.ones(len(found) + 2, bool)
    ids[0], ids[-1] = special.begin, special.end
    ids[1:-1] = np.where(border, special.end, found - encoder.pieces * inside)
    starts[1:-1] = ~inside
    return ids, starts


def lay_out(
  tokens: Tokens, ends: np.ndarray, encoder: PieceEncoder, special: Special, *, form: str,
  max_length: int, what: str, digest: str, apart: int | None = None,
) -> Rows:
  """Lays out the documents of a token store, read once in order; `apart` begins a row."""
  layout = _Layout(form, max_length - 2, apart)
  start = document = 0
  while document < len(ends):
    last = max(document + 1, int(np.searchsorted(ends, start + _BLOCK, side='right')))
    end = int(ends[last - 1])
    layout.add(tokens[start:end], start, document, encoder, special.unknown)
    start, document = end, last
  layout.close()
  if not layout.begins:
    raise UserError(f'{what} has no token: is it empty?')
  return Rows(tokens, encoder, special, layout, digest)


class _Layout:
  """Rows on their way: where the open one lies, and where those that are full do."""

  def __init__(self, form: str, room: int, apart: int | None):
    self.begins, self.ends = array.array('q'), array.array('q')
    self.counts = dict.fromkeys(('documents', 'sentences', 'rows', 'tokens', 'unknown_tokens',
                                 'split_sentences', 'empty_sentences'), 0)
    self.size = self.longest = 0
    self._form, self._room, self._apart = form, room, apart
    self._begin = self._end = self._length = 0
    self._document = -1

  def add(self, block: np.ndarray, first: int, document: int, encoder: PieceEncoder,
          unknown: int | None) -> None:
    """Whole documents, from token `first` of the store and document number `document` on."""
    (marks,) = np.nonzero(block >= encoder.border_id)
    begins = np.concatenate([[0], marks[:-1] + 1])
    ends_document = block[marks] == encoder.eos_id
    numbers = document + np.cumsum(ends_document) - ends_document
    sentences = ~ends_document
    whole = sentences & (marks > begins)
    counts = self.counts
    counts['documents'] += int(ends_document.sum())
    counts['sentences'] += int(sentences.sum())
    counts['empty_sentences'] += int(sentences.sum() - whole.sum())
    counts['tokens'] += len(block) - len(marks)
    if unknown is not None:
      counts['unknown_tokens'] += int(
        ((block == unknown) | (block == encoder.pieces + unknown)).sum())
    for begin, end, number in zip(begins[whole].tolist(), marks[whole].tolist(),
                                  numbers[whole].tolist(), strict=True):
      if end - begin <= self._room:
        self._place(first + begin, end - begin, number)
        continue
      counts['split_sentences'] += 1
      starts_word = (block[begin:end] < encoder.pieces).tolist()
      for part in _parts(starts_word, self._room):
        self._place(first + begin + part.start, part.stop - part.start, number)

  def _place(self, begin: int, length: int, document: int) -> None:
    """A sentence, or a part of one, into the open row or a new one."""
    border = bool(self._length) and document != self._document
    if (self._form == 'sentence' or self._length + border + length > self._room
        or (self._apart is not None and self._document < self._apart <= document)):
      self.close()
      border = False
    if not self._length:
      self._begin = begin
    self._end, self._length = begin + length, self._length + border + length
    self._document = document

  def close(self) -> None:
    """Ends the open row, if there is one."""
    if not self._length:
      return
    self.begins.append(self._begin)
    self.ends.append(self._end)
    self.counts['rows'] += 1
    self.size += self._length + 2
    self.longest = max(self.longest, self._length + 2)
    self._length = 0


def _parts(begins: Sequence[bool], room: int) -> Iterator[slice]:
  """Cuts a sentence into parts of at most `room` tokens, before words where it can."""
  start = 0
  while len(begins) - start > room:
    stop = next((i for i in range(start + room, start, -1) if begins[i]), start + room)
    yield slice(start, stop)
    start = stop
  yield slice(start, len(begins))


# Which pieces are masked, and by what: a function of (seed, epoch, row), of nothing else.
#
# Devlin et al. 2019 (arXiv:1810.04805), section 3.1: 15 % of the pieces are to be found; of these
# 80 % are replaced by the mask, 10 % by a random piece, 10 % stay. Here the share is met exactly on
# average: a row of n pieces has floor(0.15 n + u) of them, u uniform in [0, 1). Special tokens, the
# unknown one among them, are never chosen and never drawn.
#
# Letters: B rows of a batch, T places of a row, P places that are to be found.

_MASKING, _ORDER, _FIXED = 0x3A5C, 0x04DE, 0xF17ED  # purposes of random numbers
_AS_MASK, _AS_RANDOM = 0.8, 0.9  # of u in [0, 1): mask below the first, random below the second


class Masking(NamedTuple):
  """How pieces are chosen."""

  share: float  # of a row's pieces, in (0, 1)
  whole_words: bool  # all pieces of a word or none; a word with too many is passed over
  seed: int


class MaskedRows:
  """Batches of masked rows of T places, `length`, with at most P, `places`, to be found."""

  def __init__(self, rows: Rows, masking: Masking, *, vocab_size: int, length: int):
    self._rows, self._special, self._masking = rows, rows.special, masking
    self.length = length
    self.places = math.floor(masking.share * (length - 2)) + 1
    self._specials = np.zeros(vocab_size, bool)
    self._specials[list(rows.special.all)] = True
    self._drawn = np.flatnonzero(~self._specials).astype(np.int32)

  def __len__(self) -> int:
    return len(self._rows)

  def masked(self, row: int, epoch: int | None
             ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One row."""
    m, (ids, starts) = self._masking, self._rows.row(row)
    purpose = [_MASKING, epoch] if epoch is not None else [_FIXED]
    rng = np.random.default_rng([m.seed, *purpose, row])
    (candidates,) = np.nonzero(~self._specials[ids])
    wanted = math.floor(m.share * len(candidates) + rng.random())
    places = (self._words(candidates, starts, wanted, rng) if m.whole_words
              else np.sort(rng.permutation(candidates)[:wanted]))
    found = ids[places]
    kinds = rng.random(len(places))
    random = self._drawn[rng.integers(len(self._drawn), size=len(places))]
    masked = ids.copy()
    masked[places] = np.where(kinds < _AS_MASK, self._special.mask,
                              np.where(kinds < _AS_RANDOM, random, found))
    return masked, places, found

  @staticmethod
  def _words(candidates: np.ndarray, starts: np.ndarray, wanted: int, rng: np.random.Generator
             ) -> np.ndarray:
    """Places of random whole words, at most `wanted` places."""
    numbers = np.cumsum(starts)[candidates]
    chosen: list[int] = []
    for word in rng.permutation(np.unique(numbers)):
      places = candidates[numbers == word]
      if len(chosen) + len(places) <= wanted:
        chosen.extend(places.tolist())
      if len(chosen) == wanted:
        break
    return np.array(sorted(chosen), np.int64)

  def batch(self, rows: np.ndarray, epochs: np.ndarray | None, size: int
            ) -> dict[str, np.ndarray]:
    """Arrays of `size` rows: those that are named, then padding."""
    batch = {'ids': np.full((size, self.length), self._special.pad, np.int32),
             'mask': np.zeros((size, self.length), bool),
             'places': np.zeros((size, self.places), np.int32),
             'targets': np.zeros((size, self.places), np.int32),
             'weights': np.zeros((size, self.places), np.float32)}
    for i, row in enumerate(rows.tolist()):
      ids, places, found = self.masked(row, None if epochs is None else int(epochs[i]))
      batch['ids'][i, :len(ids)] = ids
      batch['mask'][i, :len(ids)] = True
      batch['places'][i, :len(places)] = places
      batch['targets'][i, :len(places)] = found
      batch['weights'][i, :len(places)] = 1
    return batch

  def training(self, first_step: int, size: int) -> Iterator[dict[str, np.ndarray]]:
    """Endless batches from a step on; every pass over the rows has an order of its own."""
    orders: dict[int, np.ndarray] = {}
    step = first_step
    while True:
      epochs, at = np.divmod(np.arange(step * size, (step + 1) * size), len(self))
      for epoch in set(epochs.tolist()) - orders.keys():
        orders[epoch] = np.random.default_rng(
          [self._masking.seed, _ORDER, epoch]).permutation(len(self))
      orders = {epoch: orders[epoch] for epoch in set(epochs.tolist())}
      rows = np.array([orders[e][i] for e, i in zip(epochs.tolist(), at.tolist(), strict=True)])
      yield self.batch(rows, epochs, size)
      step += 1

  def validation(self, size: int) -> Iterator[dict[str, np.ndarray]]:
    """Every row once, with masks that never change."""
    for first in range(0, len(self), size):
      yield self.batch(np.arange(first, min(first + size, len(self))), None, size)
