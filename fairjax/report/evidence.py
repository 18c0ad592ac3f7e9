"""What stands behind the numbers of one model: distributions of scores, and sentences.

Letters: M templates, A attribute values, k samples of a prefix that are kept.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.measure.generations import Generations
from fairjax.measure.score_cache import score_file, score_generations
from fairjax.measure.scorers import RecordedScorer

BINS = 20  # ranges of the score in a histogram
MOST_SAMPLES = 20  # of a prefix


@dataclasses.dataclass(frozen=True)
class Evidence:
  """Distributions and sentences of one model.

  Attributes:
    values: `[A]` names.
    templates: `[M]` labels.
    coupled: samples of equal number were drawn with equal noise.
    prefixes: sha256 of every template's and value's prefixes: equal for records that answer the
      same prompts.
    numbers: `[M][k]` sample numbers, None when the samples are not coupled.
    texts: `[M][A][k]` pairs of prefix and continuation. The k smallest sample numbers (the first
      records where there are none), so that nobody chose them by what they say.
    scores: scorer -> `[M][A][k]` scores of those texts.
    histograms: scorer -> `[M, A, BINS]` int, counts of all samples; the last range holds 1.0.
    means: scorer -> `[M, A]` float64, means of all samples.
  """

  values: tuple[str, ...]
  templates: tuple[int | str, ...]
  coupled: bool
  prefixes: str
  numbers: list[list[int]] | None
  texts: list[list[list[tuple[str, str]]]]
  scores: dict[str, list[list[list[float]]]]
  histograms: dict[str, np.ndarray]
  means: dict[str, np.ndarray]


def stored_evidence(
  generations: Generations, measures: Mapping[str, Any], scores_directory: str | os.PathLike
) -> Evidence:
  """Collects the evidence of records that were measured, with the scores that were kept.

  Args:
    generations: the records.
    measures: what `measure_records` gave for them.
    scores_directory: folder of the score files that it wrote. No scorer is needed.

  Raises:
    UserError: a text without a kept score, or a score file of another scorer.
  """
  scores = stored_scores(generations, measures, scores_directory)
  return collect_evidence(generations, scores, coupled=measures['coupled'])


def stored_scores(
  generations: Generations, measures: Mapping[str, Any], scores_directory: str | os.PathLike
) -> dict[str, np.ndarray]:
  """Scorer -> `[R]` scores that were kept; see `stored_evidence`."""
  scores = {}
  for name, found in measures['scorers'].items():
    kind, _, key = name.partition(':')
    scorer = (RecordedScorer(key or None) if kind == 'recorded'
              else _StoredScorer(name, found['fingerprint']))
    path = score_file(scores_directory, measures['attribute'], scorer)
    scores[name] = score_generations(generations, scorer, path, scored=measures['scored_text'])
  return scores


class _StoredScorer:
  """Stands for a scorer whose scores of all texts lie in a file."""

  def __init__(self, name: str, fingerprint: str):
    self.name, self.fingerprint = name, fingerprint

  def score(self, texts: Sequence[str]) -> np.ndarray:
    """Refuses: it knows no text."""
    raise UserError(f'{len(texts)} texts have no score of {self.name} in its score file, which the '
                    'measures had: score and measure the records again')


def collect_evidence(
  generations: Generations, scores: Mapping[str, np.ndarray], *, coupled: bool = True,
  most: int = MOST_SAMPLES,
) -> Evidence:
  """Collects the evidence of one model.

  Args:
    generations: R checked records.
    scores: scorer name -> `[R]` float64 in [0, 1], in the order of the records.
    coupled: as in `measure_records`: False ignores that sample numbers are equal.
    most: samples of a prefix to keep, at least 0.

  Returns:
    The evidence; histograms and means are over all records.
  """
  index = generations.cells()
  if coupled:
    coupled = generations.sample is not None and all(
      generations.sample_scores(column).coupled for column in scores.values())
  kept = [[cell[:most] for cell in row] for row in index]
  numbers = [generations.sample[row[0]].tolist() for row in kept] if coupled else None
  prefixes = sorted({(repr(generations.templates[t]), int(v), p) for t, v, p in zip(
    generations.template_index, generations.value_index, generations.prefixes, strict=True)})
  names = generations.attribute.value_texts
  content = json.dumps([[t, names[v], p] for t, v, p in prefixes])
  histograms, means = {}, {}
  for name, column in scores.items():
    ranges = np.minimum((column * BINS).astype(np.int64), BINS - 1)
    histograms[name] = np.array([[np.bincount(ranges[c], minlength=BINS) for c in row]
                                 for row in index])
    means[name] = np.array([[column[c].mean() for c in row] for row in index])
  return Evidence(
    values=names, templates=generations.templates, coupled=coupled,
    prefixes=hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest(), numbers=numbers,
    texts=[[[(generations.prefixes[i], generations.continuations[i]) for i in c] for c in row]
           for row in kept],
    scores={name: [[column[c].tolist() for c in row] for row in kept]
            for name, column in scores.items()},
    histograms=histograms, means=means)
