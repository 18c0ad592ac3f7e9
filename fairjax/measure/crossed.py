"""Main effects and interaction of two crossed attributes, from whole score distributions.

Letters: M templates, A and B values of the two attributes, N combinations with records (A B, or a
fraction), n samples of a prefix, S scores of a template, R permutations, L numbers of which an
effect is the mean.

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
from fairjax.measure.fairness import JACKKNIFE_GROUPS, without_group
from fairjax.measure.nulls import compiled, in_threads

_PURPOSE = 0x41  # separates these random streams from others of the same seed
_BLOCK = 50  # permutations of one random stream; changing it changes the random draws
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
  levels = np.array(attribute.levels)
  contrasts = _contrasts(levels)
  effects = [(name, f'pairs of {name}') for name in names]  # and what it averages over
  if low >= JACKKNIFE_GROUPS:
    effects.append((INTERACTION, 'combinations'))
    errors = _jackknife(samples, levels, contrasts)
  templates = [_Template(row, levels, contrasts, samples.coupled) for row in samples.scores]
  observed = np.mean([[t.effect(k)[0] for k in range(len(effects))] for t in templates], axis=0)

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
  for k, (name, group) in enumerate(effects):
    mean, p95, p_value, mid_p_value = (float(column[k]) for column in summaries)
    found[name] = Estimate(
      value=float(observed[k]), group=group, count=len(contrasts[k]), n_min=low, n_max=high,
      null_mean=mean, null_p95=p95, p_value=p_value, mid_p_value=mid_p_value, std_error=errors[k],
      definition='main effect' if name in names else INTERACTION, coupled=samples.coupled,
      permutations=permutations).to_dict() | {'p_holm': float(corrected[k])}
  return {
    'main_effects': {name: found[name] for name in names}, INTERACTION: found.get(INTERACTION),
    'combinations': len(levels), 'combinations_in_all': int(np.prod(
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


@compiled
def _step_areas(labels, order, scores, steps, areas):
  """Adds to `[B, L]` the areas below the absolute values of L step functions of a threshold.

  `order` `[N]` are the places in `labels` `[B, N]` of the `scores`, ascending. A score of a label
  is a step of `steps[label]` `[L]`.
  """
  gaps = np.append(scores[1:] - scores[:-1], 0.0)
  for b in range(len(labels)):
    own, area, apart = labels[b], areas[b], np.zeros(steps.shape[1])
    for k in range(0, order.size - 1, 2):  # two scores at once: fewer visits of memory
      one, two = steps[own[order[k]]], steps[own[order[k + 1]]]
      for g in range(apart.size):
        first = apart[g] + one[g]
        second = first + two[g]
        apart[g] = second
        area[g] = area[g] + gaps[k] * abs(first) + gaps[k + 1] * abs(second)


class _Template:
  """The scores of one template, combination after combination."""

  def __init__(self, row: Sequence[np.ndarray], levels: np.ndarray, contrasts: list[np.ndarray],
               coupled: bool = False):
    scores, self._sizes = np.concatenate(row), np.array([x.size for x in row])
    self._order = scores.argsort(kind='stable')
    self._scores = scores[self._order]
    self._combination = np.repeat(np.arange(self._sizes.size), self._sizes)
    self._coupled, self._levels = coupled, levels
    # [N, L] each, row after row: what a score of a combination adds to the effect.
    self._steps = [np.ascontiguousarray((part / self._sizes).T) for part in contrasts]

  def effect(self, effect: int, labels: np.ndarray | None = None,
             steps: np.ndarray | None = None) -> np.ndarray:
    """`[K]` effects of scores with the labels `[K, S]` (rows of `steps`)."""
    labels = self._combination[None] if labels is None else labels
    steps = self._steps[effect] if steps is None else steps
    areas = np.zeros((len(labels), steps.shape[1]))
    _step_areas(labels, self._order, self._scores, steps, areas)
    return areas.mean(axis=1)

  def null(self, rng: np.random.Generator, effect: int, count: int) -> np.ndarray:
    """`[count]` numbers that chance alone gives for an effect."""
    if effect < 2:
      return self.effect(effect, self._permuted(rng, 1 - effect, count))
    return self.effect(effect, *self._halves(rng, count))

  def _permuted(self, rng: np.random.Generator, fixed: int, count: int) -> np.ndarray:
    """`[count, S]` labels that changed places among those with the same value of `fixed`."""
    labels = np.repeat(self._combination[None], count, axis=0)
    for level in np.unique(self._levels[:, fixed]):
      places: np.ndarray = np.flatnonzero(self._levels[self._combination, fixed] == level)
      if self._coupled:
        places = places.reshape(-1, self._sizes[0])
      labels[:, places] = rng.permuted(labels[:, places], axis=1)
    return labels

  def _halves(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """`[count, S]` labels, N apart for the halves of a prefix, and the steps `[2 N, L]` of both."""
    def halves(n):
      return rng.permuted(np.repeat((np.arange(n) < n // 2)[None], count, axis=0), axis=1)

    first = (np.tile(halves(self._sizes[0]), self._sizes.size) if self._coupled else
             np.concatenate([halves(n) for n in self._sizes], axis=1))
    # Of -1 and +1, less their mean, with the sum of squares n.
    n = self._sizes[:, None]
    mean = (n % 2) / n
    steps = self._steps[2] / np.sqrt(1 - mean ** 2)
    return (self._combination + self._sizes.size * first,
            np.concatenate([(1 - mean) * steps, (-1 - mean) * steps]))


def _contrasts(levels: np.ndarray) -> list[np.ndarray]:
  """`[L, N]` each: the pairs of both main effects, and the interaction, of shares `[N]`."""
  table = incidence(levels.tolist())
  solve = np.linalg.pinv(table)  # [A + B, N]
  first = np.unique(levels[:, 0]).size
  pairs = [part[a] - part[b] for part in (solve[:first], solve[first:])
           for a, b in [np.triu_indices(len(part), 1)]]
  return [*pairs, np.eye(len(levels)) - table @ solve]


def _jackknife(samples: SampleScores, *design: Any) -> list[float]:
  """Standard errors of the three, from leaving out each of 20 groups of samples."""
  def without(group):
    return np.mean([[t.effect(k)[0] for k in range(3)] for t in (
      _Template(row, *design) for row in without_group(samples, group))], axis=0)

  values = np.array(in_threads(without, range(JACKKNIFE_GROUPS)))
  return np.sqrt((JACKKNIFE_GROUPS - 1) * values.var(axis=0)).tolist()
