"""The rewording floor: does another value move the score more than harmless words do?

Letters: M templates, A values, K rewordings of a template, n samples of a prefix.

A template and its rewordings are K + 1 phrasings of one prompt. With the value held fixed, I.F.
(H-05, Eq. 3) over the phrasings instead of the values says how far words that change nothing about
the value move the score: the second floor. Chance adds another amount to it than to I.F. over
the values, because values and phrasings need not share as much of their noise.

The contrast is the mean over templates of the one less the other, each less its null mean. Its null
hypothesis is that values and phrasings move the score alike, so that in each template the
difference may as well have the other sign. Templates are kept together: all 2^M signs are tried, or
some at random.
"""

import itertools
from typing import Any

import numpy as np

from fairjax.measure.estimates import LEVEL, TIE, SampleScores
from fairjax.measure.fairness import measure_fairness
from fairjax.measure.nulls import LabelStatistics

_PURPOSE = 0x3F  # separates these random streams from others of the same seed
_MOST = 14  # templates of which all signs are tried


def measure_rewording(
  samples: SampleScores, phrasings: SampleScores, *, permutations: int, seed: int,
) -> dict[str, Any]:
  """I.F. over the phrasings with its null floor, the contrast in [-1, 1] and its p-value."""
  # Both are of `Generations.phrasing_scores`. In `phrasings` a "template" is a template of
  # `samples` with a value, template after template, and a "value" is a phrasing. With M templates
  # the two-sided p-value is at least 2 / 2^M.
  words = measure_fairness(phrasings, permutations=permutations, seed=seed)
  statistics = LabelStatistics(samples.scores, samples.subgroup_index)
  null = statistics.permuted(permutations, coupled=samples.coupled, seed=seed).all_pairs
  found, p_value = contrast(
    statistics.observed().all_pairs[:, 0] - null.mean(axis=1),
    words.by_template.distance - words.by_template.null_mean,  # `corrected` is never below 0
    permutations=permutations, seed=seed)
  return {'individual_fairness': words.individual.to_dict(), 'contrast': found, 'p_value': p_value}


def contrast(
  values: np.ndarray, words: np.ndarray, *, permutations: int, seed: int,
) -> tuple[float, float]:
  """Contrast and p-value, from I.F. less chance: of values `[M]`, of phrasings `[M x A]`."""
  count = values.size
  difference = values - words.reshape(count, -1).mean(axis=1)
  if count <= _MOST:
    signs = np.array(list(itertools.product((1, -1), repeat=count)))
  else:
    rng = np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE]))
    signs = 1 - 2 * rng.integers(0, 2, (permutations + 1, count))
    signs[0] = 1
  found = float(difference.mean())
  reached = np.abs(signs @ difference) / count >= abs(found) - TIE
  return found, float(reached.mean())


def rewording_sentence(found: dict[str, Any], individual: dict[str, Any], attribute: str) -> str:
  """What `measure_rewording` found beside I.F. of the values, in words."""
  words, p = found['individual_fairness'], f"p = {found['p_value']:.2g}"
  if individual['within_floor'] and words['within_floor']:
    return (f'neither changing the {attribute} nor rewording the sentence moves the score beyond '
            'noise')
  if found['p_value'] > LEVEL:
    return (f'these templates do not tell whether changing the {attribute} moves the score more '
            f'or less than rewording the sentence ({p})')
  if words['corrected'] > 0 and not words['within_floor'] and found['contrast'] > 0:
    times = 1 + found['contrast'] / words['corrected']
    return (f'changing the {attribute} moves the score {times:.1f} times as much as rewording the '
            f'sentence, less what is expected by chance ({p})')
  return (f"changing the {attribute} moves the score {'more' if found['contrast'] > 0 else 'less'} "
          f'than rewording the sentence ({p})')
