"""Hard debiasing of an embedding (Bolukbasi et al. 2016, section 6, step 2a; Y-08).

Neutralise: words that are not gender-specific lose their part along g and are made unit again.
Equalise: both words of a pair get the same part off g and opposite parts along it, so that every
neutralised word is equally far from both. With exact neutralising b of every such word is 0:
what remains of a table of biases comes from the gender-specific words alone.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.fair_generation.word_vectors import WordVectors

_LEAST = 1e-9  # a part of a unit vector that is shorter has no direction


@dataclasses.dataclass(frozen=True)
class Debiased:
  """What hard debiasing made of some words.

  Attributes:
    vectors: as given, with the new `units`.
    specific: spellings in the file that were not neutralised.
    equalised: pairs as asked that were equalised.
    skipped: pairs that were not, with the reason.
  """

  vectors: WordVectors
  specific: frozenset[str]
  equalised: tuple[tuple[str, str], ...]
  skipped: tuple[tuple[str, str, str], ...]

  def is_specific(self, word: str) -> bool:
    """Whether a word, as it was asked for, is gender-specific."""
    return self.vectors.spelled[word] in self.specific

  def to_dict(self) -> dict[str, Any]:
    """Counts and reasons as plain JSON types."""
    return {
      'neutralised': len(self.vectors.rows) - len(self.specific),
      'gender_specific': len(self.specific), 'pairs_equalised': len(self.equalised),
      'pairs_skipped': [{'pair': [a, b], 'reason': reason} for a, b, reason in self.skipped]}


def hard_debias(
  vectors: WordVectors, direction: np.ndarray, *, specific: Collection[str],
  pairs: Sequence[tuple[str, str]],
) -> Debiased:
  """Neutralises all loaded words but the gender-specific ones, then equalises pairs.

  Args:
    vectors: of all words that matter; each word is debiased for itself, so that others of the file
      change nothing.
    direction: `[D]` of length 1, g.
    specific: gender-specific words, as spelled in their list; underscores and spaces are equal,
      and so is case. Words of equalised pairs are gender-specific too.
    pairs: equality sets of two words. A pair is skipped, and listed, if a word is not loaded, if
      both are spelled alike in the file, if a word stands in an earlier pair (one vector cannot
      serve two pairs), or if both lie equally far along g.
  """
  known = {_plain(word) for word in specific}
  names = {found for asked, found in vectors.spelled.items()
           if _plain(asked) in known or _plain(found) in known}
  units, equalised, skipped = vectors.units.copy(), [], []
  taken: set[str] = set()
  for pair in pairs:
    reason = _equalise(vectors, units, direction, pair, taken)
    if reason:
      skipped.append((*pair, reason))
    else:
      equalised.append(pair)
  neutral = [row for word, row in vectors.rows.items() if word not in names | taken]
  units[neutral] = neutralise(units[neutral], direction)
  return Debiased(dataclasses.replace(vectors, units=units), frozenset(names | taken),
                  tuple(equalised), tuple(skipped))


def neutralise(units: np.ndarray, direction: np.ndarray) -> np.ndarray:
  """Vectors `[N, D]` of length 1 without their part along g, of length 1 again.

  A vector along g itself has nothing left and becomes 0.

  >>> neutralise(np.array([[0.6, 0.8]]), np.array([1.0, 0.0])).tolist()
  [[0.0, 1.0]]
  """
  rest = units - np.outer(units @ direction, direction)
  norms = np.linalg.norm(rest, axis=1, keepdims=True)
  return np.where(norms > _LEAST, rest / np.maximum(norms, _LEAST), 0)


def equalise(
  first: np.ndarray, second: np.ndarray, direction: np.ndarray,
) -> tuple[np.ndarray, np.ndarray] | None:
  """Both vectors `[D]` of a pair with equal parts off g and opposite ones along it, of length 1.

  With m the mean of the pair, y its part off g: y +- sqrt(1 - |y|^2) g, the sign being that of the
  word's own distance from m along g.

  Returns:
    None if both lie equally far along g.
  """
  along = (first - second) @ direction
  if abs(along) <= _LEAST:
    return None
  mean = (first + second) / 2
  shared = mean - (mean @ direction) * direction
  part = np.sign(along) * np.sqrt(max(0.0, 1 - shared @ shared)) * direction
  return shared + part, shared - part


def _equalise(
  vectors: WordVectors, units: np.ndarray, direction: np.ndarray, pair: tuple[str, str],
  taken: set[str],
) -> str | None:
  """Equalises one pair in `units` and notes its words; or says why not."""
  absent = [w for w in pair if w not in vectors]
  if absent:
    return f"not in the file: {', '.join(absent)}"
  names = [vectors.spelled[w] for w in pair]
  if names[0] == names[1]:
    return f"both are '{names[0]}' in the file"
  if used := [n for n in names if n in taken]:
    return f"'{used[0]}' stands in an earlier pair"
  rows = [vectors.rows[n] for n in names]
  found = equalise(units[rows[0]], units[rows[1]], direction)
  if found is None:
    return 'both lie equally far along g'
  units[rows] = found
  taken.update(names)
  return None


def _plain(word: str) -> str:
  """Lower case, with spaces for underscores and hyphens."""
  return word.lower().replace('_', ' ').replace('-', ' ')


def bias_table(
  words: Sequence[str], direction: np.ndarray, before: WordVectors, after: Debiased,
) -> list[Mapping[str, Any]]:
  """Bias b of words before and after, most male first; words that the file lacks are left out."""
  rows = [{
    'word': word, 'spelled': before.spelled[word],
    'bias': float(np.clip(before.unit(word) @ direction, -1, 1)),
    'bias_debiased': float(np.clip(after.vectors.unit(word) @ direction, -1, 1)),
    'gender_specific': after.is_specific(word)} for word in words if word in before]
  return sorted(rows, key=lambda row: row['bias'])
