"""Which pieces are masked, and by what: a function of (seed, epoch, row), of nothing else.

Devlin et al. 2019 (arXiv:1810.04805), section 3.1: 15 % of the pieces are to be found; of these
80 % are replaced by the mask, 10 % by a random piece, 10 % stay. Here the share is met exactly on
average: a row of n pieces has floor(0.15 n + u) of them, u uniform in [0, 1). Special tokens, the
unknown one among them, are never chosen and never drawn.

Letters: B rows of a batch, T places of a row, P places that are to be found.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fairjax.masked.rows import Rows, Special

_MASKING, _ORDER, _FIXED = 0x3A5C, 0x04DE, 0xF17ED  # purposes of random numbers
_AS_MASK, _AS_RANDOM = 0.8, 0.9  # of u in [0, 1): mask below the first, random below the second


class Masking(NamedTuple):
  """How pieces are chosen.

  Attributes:
    share: of a row's pieces, in (0, 1).
    whole_words: all pieces of a word or none; a word with more pieces than are still to be chosen
      is passed over.
    seed: >= 0.
  """

  share: float
  whole_words: bool
  seed: int


class MaskedRows:
  """Batches of masked rows.

  Attributes:
    length: T, the same in all batches.
    places: P, the most that a row can have.
  """

  def __init__(self, rows: Rows, special: Special, masking: Masking, *, vocab_size: int,
               length: int):
    """Keeps the rows; `length` is at least that of the longest."""
    self._rows, self._special, self._masking = rows, special, masking
    self.length = length
    self.places = math.floor(masking.share * (length - 2)) + 1
    self._specials = np.zeros(vocab_size, bool)
    self._specials[list(special.all)] = True
    self._drawn = np.flatnonzero(~self._specials).astype(np.int32)

  def __len__(self) -> int:
    return len(self._rows)

  def masked(self, row: int, epoch: int | None
             ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One row.

    Args:
      row: its number.
      epoch: pass over the rows; None gives the masks of validation, which are always the same.

    Returns:
      ids with masks `[n]` int32, places to be found (rising) `[p]` and what stood there `[p]`.
    """
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
    """Arrays of `size` rows: those that are named, then padding.

    Args:
      rows: `[b]` numbers, b at most `size`.
      epochs: `[b]` of each; None: validation.
      size: B.

    Returns:
      `ids` `[B, T]` int32, `mask` `[B, T]` bool (False at padding), and of the places to be found
      `places`, `targets` `[B, P]` int32 and `weights` `[B, P]` float32 (0 at padding).
    """
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
