"""The gender direction of an embedding (Bolukbasi et al. 2016, section 5.1; Y-06).

Letters: P pairs, D width, C components. Female is positive; only the two genders of the pairs
exist for this measure.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.fair_generation.word_vectors import WordVectors


@dataclasses.dataclass(frozen=True)
class GenderSubspace:
  """A direction with what is needed to judge it.

  Attributes:
    direction: `[D]` float64 of length 1: g, the first principal component; female is positive.
    explained: `[C]` float64, share of the variance of the pairs along each component, descending.
    pairs: (female, male) as asked, of those that were used.
    missing: pairs of which the file lacks a word, with these words.
    agreeing: number of pairs whose female word lies above its male one on g.
    left_out: `[P]` float64, cosine of g with that of all pairs but one.
    left_out_explained: `[P]` float64, the first component's share without one pair.
  """

  direction: np.ndarray
  explained: np.ndarray
  pairs: tuple[tuple[str, str], ...]
  missing: tuple[tuple[str, str, tuple[str, ...]], ...]
  agreeing: int
  left_out: np.ndarray
  left_out_explained: np.ndarray

  def bias(self, units: np.ndarray) -> np.ndarray:
    """b(v) = w . g (Y-06): `[...]` float64 in [-1, 1] of vectors `[..., D]` of length 1."""
    return np.clip(units @ self.direction, -1, 1)

  def to_dict(self) -> dict[str, Any]:
    """Fields as plain JSON types, without the direction."""
    return {
      'definition': 'Y-06', 'sign': 'female is positive', 'n_pairs': len(self.pairs),
      'pairs': [list(p) for p in self.pairs],
      'pairs_missing': [{'pair': [f, m], 'words_missing': list(words)}
                        for f, m, words in self.missing],
      'explained_variance': self.explained.tolist(),
      'pairs_with_female_above': self.agreeing,
      'leave_one_pair_out': None if not self.left_out.size else {
        'cosine_min': float(self.left_out.min()),
        'first_component_min': float(self.left_out_explained.min()),
        'first_component_max': float(self.left_out_explained.max())}}


def gender_subspace(vectors: WordVectors, pairs: Sequence[tuple[str, str]]) -> GenderSubspace:
  """First principal component of the pairs, each centred on its own mean.

  The 2P rows are w - m and -(w - m) for both words of a pair with mean m; their singular vectors
  are the components, squared singular values the variance. The sign is that with which the mean
  over pairs of (female - male) . g is positive.

  Args:
    vectors: holds the words of the pairs that the file has.
    pairs: (female, male).

  Raises:
    UserError: no pair is there whole, all have equal vectors, or the mean difference has no sign.
  """
  used, missing = [], []
  for female, male in pairs:
    absent = tuple(w for w in (female, male) if w not in vectors)
    if absent:
      missing.append((female, male, absent))
    else:
      used.append((female, male))
  if not used:
    raise UserError(f'{vectors.path}: none of the {len(pairs)} definitional pairs is there: give '
                    'others with --pairs')
  females = np.stack([vectors.unit(f) for f, _ in used])
  males = np.stack([vectors.unit(m) for _, m in used])
  direction, explained = _first_component(females, males, vectors.path)
  every = range(len(used))
  others = [] if len(used) < 3 else [
    _first_component(np.delete(females, i, 0), np.delete(males, i, 0), vectors.path)
    for i in every]
  return GenderSubspace(
    direction=direction, explained=explained, pairs=tuple(used), missing=tuple(missing),
    agreeing=int(((females - males) @ direction > 0).sum()),
    left_out=np.array([g @ direction for g, _ in others]),
    left_out_explained=np.array([share[0] for _, share in others]))


def _first_component(
  females: np.ndarray, males: np.ndarray, path: str,
) -> tuple[np.ndarray, np.ndarray]:
  """(g `[D]`, shares of the variance `[C]`) of vectors `[P, D]`."""
  half = (females - males) / 2
  _, singular, components = np.linalg.svd(np.concatenate([half, -half]), full_matrices=False)
  variance = singular[:len(half)] ** 2  # the rows have a rank of at most P
  if variance[0] <= 1e-20:
    raise UserError(f'{path}: both words of every definitional pair have one vector: no direction')
  sign = (half @ components[0]).mean()
  if abs(sign) < 1e-9:
    raise UserError(f'{path}: the definitional pairs do not agree which side of their first '
                    'component is female: give pairs of one order (female first) with --pairs')
  return components[0] * np.sign(sign), variance / variance.sum()
