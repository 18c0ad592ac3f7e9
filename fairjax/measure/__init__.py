"""Scores, fairness, relevance and perplexity of what a model generates.

`measure_records` does all of it for the records of one model, wherever they come from.
"""

from fairjax.measure.fairness import (
  Estimate,
  Fairness,
  SampleScores,
  group_fairness,
  individual_fairness,
  measure_fairness,
)
from fairjax.measure.generations import Generations, read_generations
from fairjax.measure.measures import measure_records
from fairjax.measure.perplexity import Perplexity, bits_per_byte, token_perplexity, word_perplexity
from fairjax.measure.relevance import Share, mentions, semantic_similarity_c
from fairjax.measure.score_cache import score_file, score_records, score_texts
from fairjax.measure.scorers import (
  OpinionScorer,
  RecordedScorer,
  Scorer,
  VaderScorer,
  load_scorer,
  sensitive_lexicon_words,
)
from fairjax.measure.wasserstein import wasserstein_1, wasserstein_1_equal

__all__ = [
  'Estimate', 'Fairness', 'Generations', 'OpinionScorer', 'Perplexity', 'RecordedScorer',
  'SampleScores', 'Scorer', 'Share', 'VaderScorer', 'bits_per_byte', 'group_fairness',
  'individual_fairness', 'load_scorer', 'measure_fairness', 'measure_records', 'mentions',
  'read_generations', 'score_file', 'score_records', 'score_texts', 'semantic_similarity_c',
  'sensitive_lexicon_words', 'token_perplexity', 'wasserstein_1', 'wasserstein_1_equal',
  'word_perplexity',
]
