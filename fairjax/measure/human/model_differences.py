"""Whether two models differ in human I.F.: a permutation test of the difference (H-40).

One model above its noise floor and the other within it do not show that they differ. The null is
that it does not matter which of the two models wrote a text. Then the ratings of the two may change
places, and the difference of the two distances is one of those that such exchanges give
(approximate randomization, Noreen 1989). Samples of one number share their noise in both models and
at both values, so all their ratings change places together; samples without numbers are dealt to
the models anew, value by value. Both distances are taken over the same numbers (or the same
counts), so that what finite samples add to each of them is the same under the null.

The null is stricter than "equal I.F.": a model that writes otherwise, but is as fair, differs from
it too. The statistic looks at the difference of the distances alone.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.measure.wasserstein import wasserstein_1

_PURPOSE = 0x36  # separates these random streams from others of the same seed
_TIE = 1e-12  # rounding: differences below it count as equal

# Number of a sample (or name of an item) -> mean rating.
MeanRatings = Mapping[int | str, float]


class Comparison(NamedTuple):
  """Two values at one template."""

  template: int | str
  values: tuple[str, str]
  ratings: Mapping[str, tuple[MeanRatings, MeanRatings]]  # model -> of either value


def model_differences(
  comparisons: Sequence[Comparison], *, coupled: bool, permutations: int, seed: int
) -> list[dict[str, Any]]:
  """Tests, for each two models, whether their human I.F. differ."""
  names = sorted({name for c in comparisons for name in c.ratings})
  found = []
  for number, models in enumerate(itertools.combinations(names, 2)):
    rng = np.random.default_rng(np.random.SeedSequence((seed, _PURPOSE, number)))
    deal = (_swap if coupled else _deal)(
      [c for c in comparisons if all(m in c.ratings for m in models)], models, permutations, rng)
    entries, draws = [], []
    for comparison, sides, entry in deal:
      # Row 0 is what was found, the others are exchanged; [model][value] of [1 + draws, n].
      if sides is None:
        entries.append(_entry(comparison) | entry)
        continue
      distances = np.stack([_distances(*side) for side in sides])
      draws.append(distances[1] - distances[0])
      entries.append(_entry(comparison) | entry | {
        'individual_fairness': distances[:, 0].tolist()} | _judge(draws[-1]))
    whole = _judge(np.mean(draws, axis=0)) if draws else dict.fromkeys(
      ('difference', 'null_p95', 'p_value'))
    if entries:
      found.append({'models': list(models), 'permutations': permutations, 'coupled': coupled,
                    'comparisons': entries} | whole)
  return found


def _entry(comparison: Comparison) -> dict[str, Any]:
  return {'template': comparison.template, 'values': list(comparison.values)} | dict.fromkeys(
    ('individual_fairness', 'difference', 'null_p95', 'p_value'))


def _judge(differences: np.ndarray) -> dict[str, float]:
  """The first of `[1 + draws]` differences beside the others."""
  sizes = np.abs(differences)
  return {'difference': float(differences[0]), 'null_p95': float(np.quantile(sizes[1:], 0.95)),
          'p_value': float(np.mean(sizes >= sizes[0] - _TIE))}


# A comparison, [model][value] ratings [1 + R, n] (row 0 as found; None: nothing left), and counts.
_Sides = Iterator[tuple[Comparison, list[list[np.ndarray]] | None, dict[str, Any]]]


def _swap(
  comparisons: Sequence[Comparison], models: Sequence[str], permutations: int,
  rng: np.random.Generator,
) -> _Sides:
  """Exchanges the two models' ratings of a number, together wherever the number occurs."""
  places: dict[tuple, int] = {}
  common = []
  for c in comparisons:
    numbers = sorted(set.intersection(*(set(side) for m in models for side in c.ratings[m])))
    common.append(numbers)
    for k in numbers:
      places.setdefault((c.template, k), len(places))
  swapped = np.concatenate([np.zeros((1, len(places)), bool),
                            rng.random((permutations, len(places))) < 0.5])
  for c, numbers in zip(comparisons, common, strict=True):
    entry = {'n': [[len(numbers)] * 2] * 2,
             'lost': [[len(side) - len(numbers) for side in c.ratings[m]] for m in models]}
    if not numbers:
      yield c, None, entry
      continue
    swap = swapped[:, [places[c.template, k] for k in numbers]]
    (first, second) = ([np.array([side[k] for k in numbers]) for side in c.ratings[m]]
                       for m in models)
    yield c, [[np.where(swap, b, a) for a, b in zip(first, second, strict=True)],
              [np.where(swap, a, b) for a, b in zip(first, second, strict=True)]], entry


def _deal(
  comparisons: Sequence[Comparison], models: Sequence[str], permutations: int,
  rng: np.random.Generator,
) -> _Sides:
  """Deals the ratings of a value to the two models anew."""
  dealt: dict[tuple, list[np.ndarray]] = {}
  for c in comparisons:
    entry = {'n': [[len(side) for side in c.ratings[m]] for m in models], 'lost': [[0, 0]] * 2}
    if not all(side for m in models for side in c.ratings[m]):
      yield c, None, entry
      continue
    for value, sides in zip(c.values, zip(*(c.ratings[m] for m in models), strict=True),
                            strict=True):
      if (c.template, value) not in dealt:
        pool = np.array([rating for side in sides for rating in side.values()])
        rows = np.concatenate([pool[None], rng.permuted(np.tile(pool, (permutations, 1)), axis=1)])
        dealt[c.template, value] = np.split(rows, [len(sides[0])], axis=1)
    yield c, [[dealt[c.template, value][i] for value in c.values] for i in range(2)], entry


def _distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Wasserstein-1 distance of each row of `[R, n]` and `[R, k]`: `[R]`."""
  if x.shape == y.shape:
    return np.abs(np.sort(x, axis=1) - np.sort(y, axis=1)).mean(axis=1)
  return np.array([wasserstein_1(a, b) for a, b in zip(x, y, strict=True)])
