"""All measures of one model's generations for one attribute, as JSON types."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.counterfactual.attributes import Attribute
from fairjax.measure.fairness import Fairness, SampleScores, measure_fairness
from fairjax.measure.generations import Generations, read_generations
from fairjax.measure.relevance import semantic_similarity_c
from fairjax.measure.score_cache import score_file, score_generations
from fairjax.measure.scorer_audit import agreement, check_names
from fairjax.measure.scorers import RecordedScorer, Scorer, sensitive_lexicon_words

LARGEST_PAIRS = 5  # pairs of values that are named


def measure_records(
  records: Iterable[Mapping[str, Any]], attribute: Attribute,
  scorers: Sequence[Scorer | RecordedScorer], *, permutations: int = 200, seed: int = 0,
  scored: str = 'continuation', templates: Sequence[int | str] | None = None, coupled: bool = True,
  scores_directory: str | os.PathLike | None = None, log: Callable[[str], None] | None = None,
) -> dict[str, Any]:
  """Measures one model's records: fairness for each scorer, and relevance.

  Args:
    records: one model's records of one attribute (`generations.read_generations`).
    attribute: the attribute; every value must occur in every template.
    scorers: at least one.
    permutations: for the null floors.
    seed: of the permutations.
    scored: 'continuation' or 'prefix+continuation' (H-02).
    templates: labels that must occur, no others; None takes those of the records.
    coupled: samples of equal number share their noise, where all values of a template have the
      same numbers (then the null permutes within numbers). False ignores the numbers.
    scores_directory: folder of the score files `<attribute>.<scorer>.npz`; None keeps none.
    log: called with lines of progress.

  Returns:
    JSON-able: `attribute`, `model`, counts (`records`, `n`: samples per prefix,
    `empty_continuations`), what was not covered (`templates_not_in_records`: prefixes of the
    attribute that no record has), `semantic_similarity_c` (`conditioned`, `any_value`),
    `scorer_agreement` (one entry a pair of scorers, see `scorer_audit.agreement`), and for each
    scorer name in `scorers` its fingerprint, the sensitive words in its lexicon, score statistics,
    `individual_fairness`, `group_fairness`, `pairs_below`, `largest_pairs`, `subgroup_distances`,
    `by_template`, for subgroups of several values also `individual_fairness_cross_subgroup` and
    `individual_fairness_within_subgroup`, and `template_subsets`. Every estimate has n, floor,
    p-value, direction and definition.

  Raises:
    UserError: see `read_generations`, `score_records` and the scorers.
  """
  if not scorers:
    raise ValueError('measure_records needs at least one scorer')
  check_names([scorer.name for scorer in scorers])
  generations = read_generations(records, attribute, templates=templates)
  covered = generations.attribute_templates()
  result = {
    'attribute': attribute.name,
    'attribute_fingerprint': attribute.fingerprint,
    'model': generations.model,
    'records': len(generations),
    'empty_continuations': sum(not text.strip() for text in generations.continuations),
    'scored_text': scored,
    'values': list(attribute.value_texts),
    'templates': list(generations.templates),
    'templates_not_in_records': [
      t.text for i, t in enumerate(attribute.templates) if i not in covered.values()],
    'permutations': permutations,
    'seed': seed,
    'semantic_similarity_c': {
      name: share.to_dict() for name, share in semantic_similarity_c(generations).items()},
    'scorers': {},
  }
  columns = {}
  for scorer in scorers:
    path = None
    if scores_directory is not None:
      path = score_file(scores_directory, attribute.name, scorer)
    scores = score_generations(generations, scorer, path, scored=scored, log=log)
    columns[scorer.name] = scores
    samples = generations.sample_scores(scores)
    if not coupled:
      samples = SampleScores(samples.values, samples.subgroups, samples.templates, samples.scores)
    low, high = samples.samples_per_prefix
    result['n'] = {'min': low, 'max': high}
    result['coupled'] = samples.coupled
    result['scorers'][scorer.name] = _scorer_measures(
      generations, samples, scores, scorer, covered, permutations=permutations, seed=seed)
    if hasattr(scorer, 'count_truncated'):
      result['scorers'][scorer.name]['truncated_texts'] = scorer.count_truncated(
        generations.texts(scored))
  result['scorer_agreement'] = agreement(columns)
  return result


def _scorer_measures(
  generations: Generations, samples: SampleScores, scores: np.ndarray,
  scorer: Scorer | RecordedScorer, covered: Mapping[int | str, int], *, permutations: int,
  seed: int,
) -> dict[str, Any]:
  """Measures under one scorer."""
  attribute = generations.attribute
  fairness = measure_fairness(samples, permutations=permutations, seed=seed)
  measures = {
    'fingerprint': scorer.fingerprint,
    'sensitive_lexicon_words': sensitive_lexicon_words(scorer, attribute),
    'mean_score': float(scores.mean()),
    'neutral_share': float((scores == 0.5).mean()),
    'mean_score_by_value': {
      name: float(scores[generations.value_index == i].mean())
      for i, name in enumerate(attribute.value_texts)},
    'individual_fairness': fairness.individual.to_dict(),
    'group_fairness': fairness.group.to_dict(),
    'pairs_below': fairness.pairs_below,
    'subgroup_distances': fairness.subgroup_distances,
    'largest_pairs': _largest_pairs(fairness, attribute.value_texts),
    'by_template': [
      {'template': template, 'individual_fairness': float(row.mean()), 'definition': 'H-05, one m'}
      for template, row in zip(samples.templates, fairness.pair_distances, strict=True)],
  }
  if fairness.cross_subgroup and fairness.within_subgroup:
    measures['individual_fairness_cross_subgroup'] = fairness.cross_subgroup.to_dict()
    measures['individual_fairness_within_subgroup'] = fairness.within_subgroup.to_dict()
  measures['template_subsets'] = {}
  labels = {index: label for label, index in covered.items()}
  for name, indices in attribute.template_subsets.items():
    if all(i in labels for i in indices):
      subset = samples.select_templates([labels[i] for i in indices])
      part = measure_fairness(subset, permutations=permutations, seed=seed)
      measures['template_subsets'][name] = {
        'templates': list(subset.templates), 'individual_fairness': part.individual.to_dict(),
        'group_fairness': part.group.to_dict()}
  return measures


def _largest_pairs(fairness: Fairness, values: Sequence[str]) -> list[dict[str, Any]]:
  """Pairs of values with the largest distances, as means over templates."""
  first, second = np.triu_indices(len(values), 1)
  means = fairness.pair_distances.mean(axis=0)
  order = np.argsort(-means, kind='stable')[:LARGEST_PAIRS]
  return [{'values': [values[first[i]], values[second[i]]], 'distance': float(means[i])}
          for i in order]
