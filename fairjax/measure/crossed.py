"""Main effects and interaction of two crossed attributes, from whole score distributions.

Letters: M templates, A and B values of the two attributes, N combinations with records (A B, or a
fraction), n samples of a prefix, S scores of a template, U thresholds, R permutations.

The shares of scores up to a threshold, F_ab(s) = mu(s) + alpha_a(s) + beta_b(s) + gamma_ab(s), are
fitted by least squares at every s. A main effect is the mean over pairs of values of the area
between their alpha, the interaction that over combinations of the area below |gamma|
(docs/measures.md). Averages of shares are shares of the scores taken together.

Each is averaged over templates. Nulls, within a template: a main effect permutes the values of its
attribute among the combinations with the same value of the other (and within sample numbers where
samples share their noise): exact where the attribute changes nothing. The interaction takes the
samples apart into two random halves (the same numbers of all combinations where samples share their
noise): half the difference of the two shares has the variances and covariances of the noise of F,
and nothing of any effect. (Odd n: weights of equal sum of squares.) Halves of few samples say too
little about the noise (of one sample: nothing), so the interaction needs 20 samples of a prefix.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairjax.counterfactual.attributes import Attribute, incidence, separable
from fairjax.measure.estimates import LEVEL, Estimate, SampleScores, holm, summarise
from fairjax.measure.fairness import JACKKNIFE_GROUPS
from fairjax.measure.nulls import in_threads

_PURPOSE = 0x41  # separates these random streams from others of the same seed
_BATCH = 1 << 20  # shares at once; changing these numbers changes the random draws
_BLOCK = 50  # permutations of one random stream
_LEVELS = 2049  # more distinct scores are rounded to so many, which moves W1 by 0.0005 at most
INTERACTION = 'interaction'


def measure_crossed(
  samples: SampleScores, attribute: Attribute, *, permutations: int, seed: int,
  log: Callable[[str], None] | None = None,
) -> dict[str, Any] | None:
  """Main effects and interaction, as JSON types; None where the combinations do not tell them."""
  if not separable(attribute.levels):
    return None
  names = [factor.name for factor in attribute.crossed]
  low, high = samples.samples_per_prefix
  errors: Any = [None] * 3
  effects = []  # name, what it averages over, how many of these
  for k, name in enumerate(names):
    count = len({levels[k] for levels in attribute.levels})
    effects.append((name, f'pairs of {name}', count * (count - 1) // 2))
  if low >= JACKKNIFE_GROUPS:
    effects.append((INTERACTION, 'combinations', len(attribute.levels)))
    errors = _jackknife(samples, attribute.levels)
  templates = [_Template(row, attribute.levels, samples.coupled) for row in samples.scores]
  observed = np.mean([t.effects()[:len(effects), 0] for t in templates], axis=0)

  def block(work):
    effect, start = work
    count = min(_BLOCK, permutations - start)
    found = np.zeros(count)
    for m, template in enumerate(templates):
      rng = np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE, effect, m, start]))
      found += template.null(rng, effect, count)
    return found / len(templates)

  blocks = in_threads(
    block, itertools.product(range(len(effects)), range(0, permutations, _BLOCK)),
    what='effects of crossed attributes', unit='blocks', log=log)
  summaries = summarise(observed, np.concatenate(blocks).reshape(len(effects), permutations))
  corrected, found = holm(summaries[2]), {}
  for k, (name, group, count) in enumerate(effects):
    mean, p95, p_value, mid_p_value = (float(column[k]) for column in summaries)
    found[name] = Estimate(
      value=float(observed[k]), group=group, count=count, n_min=low, n_max=high, null_mean=mean,
      null_p95=p95, p_value=p_value, mid_p_value=mid_p_value, std_error=errors[k],
      definition='main effect' if name in names else INTERACTION, coupled=samples.coupled,
      permutations=permutations).to_dict() | {'p_holm': float(corrected[k])}
  return {
    'main_effects': {name: found[name] for name in names}, INTERACTION: found.get(INTERACTION),
    'combinations': len(attribute.levels), 'combinations_in_all': int(np.prod(
      [len(factor.values) for factor in attribute.crossed])),
    'sentence': crossed_sentence(found, names)}


def crossed_effects(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
  """The estimates that `measure_crossed` found, by their names in words."""
  effects = {f'main effect of {name}': part for name, part in found['main_effects'].items()}
  return effects | ({'interaction': found[INTERACTION]} if found[INTERACTION] else {})


def crossed_sentence(found: dict[str, Any], names: Sequence[str]) -> str:
  """The effects in words."""
  def moves(name):
    part, p = found[name], f"Holm p = {found[name]['p_holm']:.2g}"
    return (f"{part['corrected']:.4f} less what is expected by chance ({p})"
            if part['p_holm'] <= LEVEL else f'no more than noise ({p})')

  first, second = names
  added = (f'moves them by {moves(INTERACTION)}' if INTERACTION in found else
           f'is judged from {JACKKNIFE_GROUPS} samples of each prefix on')
  return (f'changing the {first} moves the scores by {moves(first)}, changing the {second} by '
          f'{moves(second)}; what a combination adds to its two values {added}')


class _Template:
  """The scores of one template, combination after combination."""

  def __init__(self, row: Sequence[np.ndarray], levels: Sequence[tuple[int, int]], coupled: bool):
    scores, self._sizes = np.concatenate(row), np.array([x.size for x in row])
    grid, codes = np.unique(scores, return_inverse=True)
    if grid.size > _LEVELS:
      grid, codes = np.unique(np.rint(scores * (_LEVELS - 1)), return_inverse=True)
      grid /= _LEVELS - 1
    self._codes, self._gaps = codes.reshape(-1), np.diff(grid)
    self._combination = np.repeat(np.arange(self._sizes.size), self._sizes)
    self._coupled, self._levels = coupled, np.array(levels)
    self._incidence = incidence(levels)
    self._solve = np.linalg.pinv(self._incidence)  # [A + B, N]
    self._first = np.unique(self._levels[:, 0]).size
    self._batch = max(1, _BATCH // (self._sizes.size * grid.size))

  def effects(self, codes: np.ndarray | None = None, weights: np.ndarray | None = None
              ) -> np.ndarray:
    """`[3, K]` both main effects and the interaction of codes, or of weighted scores, `[K, S]`."""
    codes = self._codes[None] if codes is None else codes
    count = len(codes if weights is None else weights)
    shape = (count, self._sizes.size, self._gaps.size + 1)
    cells = self._combination * shape[2] + codes + np.arange(count)[:, None] * shape[1] * shape[2]
    sums = np.bincount(cells.reshape(-1), None if weights is None else weights.reshape(-1),
                       minlength=np.prod(shape)).reshape(shape)
    shares = np.cumsum(sums, axis=2)[:, :, :-1] / self._sizes[:, None]
    fitted = self._solve @ shares
    rest = np.abs(shares - self._incidence @ fitted).mean(axis=1)
    return np.stack([_pair_mean(fitted[:, :self._first]), _pair_mean(fitted[:, self._first:]),
                     rest]) @ self._gaps

  def null(self, rng: np.random.Generator, effect: int, count: int) -> np.ndarray:
    """`[count]` numbers that chance alone gives for an effect."""
    draw = (lambda k: self.effects(weights=self._halves(rng, k))) if effect == 2 else (
      lambda k: self.effects(self._permuted(rng, 1 - effect, k)))
    return np.concatenate([draw(min(self._batch, count - start))[effect]
                           for start in range(0, count, self._batch)])

  def _permuted(self, rng: np.random.Generator, fixed: int, count: int) -> np.ndarray:
    """`[count, S]` codes that changed places among combinations with the same value of `fixed`."""
    result = np.repeat(self._codes[None], count, axis=0)
    for level in np.unique(self._levels[:, fixed]):
      places: np.ndarray = np.flatnonzero(self._levels[self._combination, fixed] == level)
      if self._coupled:
        places = places.reshape(-1, self._sizes[0])
      result[:, places] = rng.permuted(result[:, places], axis=1)
    return result

  def _halves(self, rng: np.random.Generator, count: int) -> np.ndarray:
    """`[count, S]` weights, +1 for one half of a prefix and -1 for the other."""
    def halves(n):
      weights = np.where(np.arange(n) < n // 2, -1.0, 1.0)
      weights -= weights.mean()
      return rng.permuted(np.repeat(weights[None], count, axis=0), axis=1) * np.sqrt(
        n / max(1, weights @ weights))

    if self._coupled:
      return np.tile(halves(self._sizes[0]), self._sizes.size)
    return np.concatenate([halves(n) for n in self._sizes], axis=1)


def _pair_mean(effects: np.ndarray) -> np.ndarray:
  """Mean absolute difference over all pairs along axis 1 of `[K, A, U]`."""
  count = effects.shape[1]
  factors = 2 * np.arange(count) - count + 1  # of the sorted numbers in the sum over pairs
  return np.tensordot(np.sort(effects, axis=1), factors, (1, 0)) / (count * (count - 1) // 2)


def _jackknife(samples: SampleScores, levels: Sequence[tuple[int, int]]) -> list[float]:
  """Standard errors of the three, from leaving out each of 20 groups of samples."""
  def without(group):
    return np.mean([t.effects()[:, 0] for t in (
      _Template([x[np.arange(x.size) % JACKKNIFE_GROUPS != group] for x in row], levels, False)
      for row in samples.scores)], axis=0)

  values = np.array(in_threads(without, range(JACKKNIFE_GROUPS)))
  return np.sqrt((JACKKNIFE_GROUPS - 1) * values.var(axis=0)).tolist()
