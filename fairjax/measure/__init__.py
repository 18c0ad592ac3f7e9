"""Scores, fairness, relevance and perplexity of what a model generates.

`measure_records` does all of it for the records of one model, wherever they come from. Called as a
function, the package is `fairjax.api.measure`.
"""

import sys

import fairjax
from fairjax.measure.columns import Generations, read_generations
from fairjax.measure.estimates import (
  Estimate,
  SampleScores,
  format_estimate,
  verdict,
  wasserstein_1,
)
from fairjax.measure.fairness import Fairness, measure_fairness
from fairjax.measure.measures import measure_generations, measure_records
from fairjax.measure.perplexity import perplexities
from fairjax.measure.power import model_scores, pilot_scores, plan_samples
from fairjax.measure.relevance import mentions, semantic_similarity_c
from fairjax.measure.scorers import load_scorer
from fairjax.measure.scorers.audit import audit_scorers
from fairjax.measure.scorers.base import (
  OpinionScorer,
  RecordedScorer,
  Scorer,
  VaderScorer,
)
from fairjax.measure.scorers.cache import score_records, score_texts
from fairjax.measure.scorers.google import GoogleScorer

__all__ = [
  'Estimate', 'Fairness', 'Generations', 'GoogleScorer', 'OpinionScorer', 'RecordedScorer',
  'SampleScores', 'Scorer', 'VaderScorer', 'audit_scorers', 'format_estimate', 'load_scorer',
  'measure_fairness', 'measure_generations', 'measure_records', 'mentions', 'model_scores',
  'perplexities', 'pilot_scores', 'plan_samples', 'read_generations', 'score_records',
  'score_texts', 'semantic_similarity_c', 'verdict', 'wasserstein_1',
]

sys.modules[__name__].__class__ = fairjax.CallablePackage
