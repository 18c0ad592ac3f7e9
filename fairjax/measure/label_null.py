"""Individual and group fairness after the values' labels were permuted.

Letters: M templates, A values, G subgroups, n samples of a prefix, N = A n samples of a template,
R permutations, B permutations of one block, U distinct scores of a template, W points of a grid.

The null hypothesis is that no value changes the score. Samples that share their noise (the same
sample number for every value) are permuted within the number, others over all samples of a
template; permuting shared-noise samples freely would overstate the floor. Templates are never
mixed, because they may differ in score under the null too. All statistics of one permutation come
from the same labels.

How it is fast enough (docs/measuring.md has the times): nothing is computed pair by pair.

- Scores become integer codes into the sorted distinct scores of their template, which sort five
  times as fast as float64. A permutation is one sort as well: of random 64-bit words that carry the
  code in their low bits.
- With the samples of each value sorted, W1 of a pair is the mean over ranks of the absolute
  difference, and the sum of absolute differences over all pairs of A numbers is, once these are
  sorted, sum_j j (A - j) (v_(j+1) - v_(j)). So I.F. over A (A - 1) / 2 pairs costs two sorts of N
  numbers, not A^2 n. Where sizes differ, ranks become the merged grid of k / n of all sizes, or the
  distinct scores if these are fewer; both are exact.
- A subgroup against the whole set is the area between two quantile functions. The k-th smallest of
  S samples faces N_all / S consecutive samples of the whole, whose absolute differences from it
  come from prefix sums of the whole set and the place of the sample in it (`PoolDistance`).

One permutation of 340,000 scores sorts them five times. Blocks of permutations are drawn from
random streams of their own, so the result depends neither on the number of threads nor on their
order, and memory stays at a few numbers for each score of a batch and thread.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from fairjax.measure.threads import in_threads
from fairjax.measure.wasserstein import PoolDistance, quantile_grid

# Changing these changes the random draws. So many scores fit into a processor's cache, and an
# operation on them lasts long enough for threads to seldom wait for the interpreter's lock.
_BATCH_SCORES = 1 << 18
_BATCH = 64
_BLOCK = 4  # batches of one random stream
_PURPOSE = 0x1F  # separates these random streams from others of the same seed


@dataclasses.dataclass(frozen=True)
class LabelNull:
  """Statistics after permutations of the labels, or of the observed labels (R = 1).

  Attributes:
    all_pairs: `[M, R]` float64, mean distance of all pairs of values, by template.
    within: `[M, R]` float64, of the pairs within one subgroup; NaN where there are none.
    across: `[M, R]` float64, of the pairs of two subgroups; NaN where there are none.
    subgroups: `[K, G, R]` float64, distance of each subgroup to the whole set, both pooled over
      each of K sets of templates.
  """

  all_pairs: np.ndarray
  within: np.ndarray
  across: np.ndarray
  subgroups: np.ndarray

  @classmethod
  def joined(cls, parts: Sequence['LabelNull']) -> 'LabelNull':
    """The labellings of all parts, one after the other."""
    return cls(*(np.concatenate([getattr(p, f.name) for p in parts], axis=-1)
                 for f in dataclasses.fields(cls)))


class LabelStatistics:
  """The statistics of one set of scores under any labels."""

  def __init__(
    self, scores: Sequence[Sequence[np.ndarray]], subgroups: np.ndarray,
    template_sets: Sequence[Sequence[int]] | None = None,
  ):
    """Codes the scores.

    Args:
      scores: `[M][A]` float64 arrays `[n]`.
      subgroups: `[A]` int, subgroup of each value, from 0.
      template_sets: K sets of templates (numbers from 0) over which subgroups are pooled; default
        one set, all templates.
    """
    self._templates = [_Template.of(row) for row in scores]
    self._members = [np.flatnonzero(subgroups == g) for g in range(subgroups.max() + 1)]
    self._pools = [_Pool.of(scores, self._templates, chosen)
                   for chosen in template_sets or [range(len(scores))]]

  def observed(self) -> LabelNull:
    """The statistics of the labels as they are (R = 1)."""
    return self._statistics([t.codes[None] for t in self._templates])

  def permuted(
    self, permutations: int, *, coupled: bool, seed: int, log: Callable[[str], None] | None = None
  ) -> LabelNull:
    """The statistics of R random labellings.

    Args:
      permutations: R.
      coupled: permute within sample numbers; the values of a template then have equal sizes.
      seed: of the permutations.
      log: called with lines of progress.
    """
    largest = max(t.codes.size for t in self._templates)
    batch = max(1, min(_BATCH, _BATCH_SCORES // largest))

    def block(start):
      generators = [
        np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE, m, start]))
        for m in range(len(self._templates))]
      stop = min(start + _BLOCK * batch, permutations)
      return LabelNull.joined([
        self._statistics([t.permute(rng, min(batch, stop - begin), coupled=coupled)
                          for t, rng in zip(self._templates, generators, strict=True)])
        for begin in range(start, stop, batch)])

    starts = range(0, permutations, _BLOCK * batch)
    return LabelNull.joined(in_threads(
      block, starts, what='label permutations', unit=f'blocks of {_BLOCK * batch}', log=log))

  def _statistics(self, codes: list[np.ndarray]) -> LabelNull:
    """Statistics of codes `[M]` of shape `[B, N]`, value after value."""
    rows = [t.sorted_rows(own) for t, own in zip(self._templates, codes, strict=True)]
    means = [t.pair_means(r, self._members) for t, r in zip(self._templates, rows, strict=True)]
    every, within, across = (np.stack([m[i] for m in means]) for i in range(3))
    return LabelNull(every, within, across, np.stack([
      np.stack([pool.distances(rows, values) for values in self._members])
      for pool in self._pools]))


@dataclasses.dataclass(frozen=True)
class _Pool:
  """The whole set over some templates."""

  distance: PoolDistance
  codes: dict[int, np.ndarray]  # template -> `[U]` int32, its code -> code of the pool

  @classmethod
  def of(cls, scores: Sequence[Sequence[np.ndarray]], templates: Sequence['_Template'],
         chosen: Sequence[int]) -> '_Pool':
    """The pool of the chosen templates."""
    grid, counts = np.unique(
      np.concatenate([x for m in chosen for x in scores[m]]), return_counts=True)
    return cls(PoolDistance(grid, counts), {
      m: np.searchsorted(grid, templates[m].grid).astype(np.int32) for m in chosen})

  def distances(self, rows: list[list[np.ndarray]], values: np.ndarray) -> np.ndarray:
    """`[B]` distances of one subgroup's values to the whole, from codes `[M][A]`, `[B, n]`."""
    # Clipping changes no index; it spares NumPy a check.
    return self.distance.distances(np.concatenate(
      [table.take(np.concatenate([rows[m][a] for a in values], axis=1), mode='clip')
       for m, table in self.codes.items()], axis=1))


@dataclasses.dataclass(frozen=True)
class _Template:
  """The scores of one template as codes."""

  codes: np.ndarray  # [N] int, into `grid`, value after value
  sizes: np.ndarray  # [A]
  grid: np.ndarray  # [U] ascending distinct scores
  ranks: np.ndarray | None  # [A, W] or [1, W] int, rank of the sample at a point; None: by scores
  weights: np.ndarray  # [W] width of the points

  @classmethod
  def of(cls, row: Sequence[np.ndarray]) -> '_Template':
    """Codes of `[A]` arrays `[n]`."""
    grid, codes = np.unique(np.concatenate(row), return_inverse=True)
    sizes = np.array([x.size for x in row])
    distinct, which = np.unique(sizes, return_inverse=True)
    ranks, weights = quantile_grid(distinct)
    if distinct.size > 1:
      ranks = ranks[which]
      if grid.size - 1 < weights.size:
        ranks, weights = None, np.diff(grid)
    kind = np.uint16 if grid.size <= 1 << 16 else np.int32
    return cls(codes.astype(kind), sizes, grid, ranks, weights)

  def permute(self, rng: np.random.Generator, count: int, *, coupled: bool) -> np.ndarray:
    """`[count, N]` codes under random labels."""
    low = np.uint64((1 << int(self.grid.size - 1).bit_length()) - 1)
    values = self.sizes.size if coupled else self.codes.size
    # [n, A] when coupled: the values of one sample number lie side by side and change places.
    codes = self.codes.reshape(values, -1).T.astype(np.uint64)
    words = rng.integers(0, 1 << 64, (count, *codes.shape), dtype=np.uint64)
    words &= ~low
    words |= codes
    words.sort(axis=-1)
    words &= low
    return words.astype(self.codes.dtype).swapaxes(1, 2).reshape(count, -1)

  def sorted_rows(self, codes: np.ndarray) -> list[np.ndarray]:
    """`[A]` arrays `[B, n]`: the ascending codes of each value, from `[B, N]`."""
    if self.sizes.min() == self.sizes.max():
      return list(np.sort(codes.reshape(len(codes), self.sizes.size, -1)).swapaxes(0, 1))
    return [np.sort(part) for part in np.split(codes, np.cumsum(self.sizes)[:-1], axis=1)]

  def pair_means(self, rows: list[np.ndarray], members: list[np.ndarray]
                 ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean distance `[B]` of all pairs, pairs within a subgroup and pairs across; NaN if none."""
    if self.ranks is None:
      points = np.stack([self._shares(row) for row in rows], axis=2)
    elif len(self.ranks) == 1:
      points = np.stack(rows, axis=2)
    else:
      points = np.stack([r[:, k] for r, k in zip(rows, self.ranks, strict=True)], axis=2)
    inner = [m for m in members if m.size > 1]
    within = sum((self._pair_sum(points[..., m]) for m in inner), np.zeros(len(points)))
    every = self._pair_sum(points)
    pairs = self.sizes.size * (self.sizes.size - 1) // 2
    inside = sum(m.size * (m.size - 1) // 2 for m in inner)
    nothing = np.full(len(points), np.nan)
    return (every / pairs, within / inside if inside else nothing,
            (every - within) / (pairs - inside) if pairs > inside else nothing)

  def _pair_sum(self, points: np.ndarray) -> np.ndarray:
    """`[B]` sum over pairs of values of the distances of their points `[B, W, A]`."""
    values = np.sort(points, axis=2)
    if self.ranks is not None:
      values = self.grid.take(values, mode='clip')  # clips nothing; it spares NumPy a check
    j = np.arange(1, values.shape[2])
    gaps = values[..., 1:] - values[..., :-1]
    return gaps @ (j * (values.shape[2] - j)).astype(np.float64) @ self.weights

  def _shares(self, row: np.ndarray) -> np.ndarray:
    """`[B, U - 1]` distribution function of codes `[B, n]` at all scores but the last."""
    block = np.arange(len(row))[:, None] * self.grid.size
    counts = np.bincount((row + block).reshape(-1), minlength=len(row) * self.grid.size)
    return counts.reshape(len(row), -1).cumsum(axis=1)[:, :-1] / row.shape[1]
