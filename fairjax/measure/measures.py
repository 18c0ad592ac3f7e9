"""All measures of one model's generations for one attribute, as JSON types."""

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import fairjax
from fairjax.counterfactual.attributes import Attribute, load_attribute
from fairjax.errors import UserError
from fairjax.files import JsonLines, read_entries
from fairjax.measure.columns import Generations, read_generations
from fairjax.measure.content import ContentOptions, content_measures
from fairjax.measure.crossed import measure_crossed
from fairjax.measure.estimates import LEVEL, SampleScores
from fairjax.measure.fairness import PERMUTATIONS, Estimates, Fairness, measure_fairness
from fairjax.measure.relevance import semantic_similarity_c
from fairjax.measure.rewording import measure_rewording, rewording_sentence
from fairjax.measure.scorers import load_scorer
from fairjax.measure.scorers.audit import agreement, check_scorers, scorer_facts
from fairjax.measure.scorers.base import (
  RecordedScorer,
  Scorer,
  count_rewritten,
  sensitive_lexicon_words,
)
from fairjax.measure.scorers.cache import score_file, score_generations
from fairjax.measure.words import LARGEST_PAIRS

NAMED = 5  # words that are listed before the rest is counted


def measure_records(
  records: Iterable[Mapping[str, Any]], attribute: Attribute | str,
  scorers: Sequence[Scorer | RecordedScorer | str], *,
  lexicon: Sequence[str | os.PathLike] | None = None, empty: str = 'error', **options: Any,
) -> dict[str, Any]:
  """Measures one model's records: fairness for each scorer, and relevance.

  Args:
    records: one model's records of one attribute (`generations.read_generations`), for example
      `fairjax.generate.read_records('generations.jsonl')`.
    attribute: the attribute, its name or its YAML file; every value must occur in every template.
    scorers: at least one, or their names (`load_scorer`).
    lexicon: of `load_scorer`, for the name 'opinion'.
    empty: 'error', 'drop' or 'keep' continuations without a text (`Generations.without_empty`).
    **options: of `measure_generations`, whose result it returns.
  """
  if isinstance(attribute, str):
    attribute = load_attribute(attribute)
  loaded = [load_scorer(s, lexicon=lexicon) if isinstance(s, str) else s for s in scorers]
  return measure_generations(
    read_generations(records, attribute, empty=empty, coupled=options.get('coupled', True)), loaded,
    **options)


def measure_generations(
  generations: Generations, scorers: Sequence[Scorer | RecordedScorer], *,
  permutations: int = PERMUTATIONS, seed: int = 0, scored: str = 'continuation',
  coupled: bool = True, scores_directory: str | os.PathLike | None = None,
  parts: str | os.PathLike | None = None, earlier: Mapping[str, Any] | None = None,
  content: ContentOptions | None = None, scores: dict[str, np.ndarray] | None = None,
  log: Callable[[str], None] | None = None,
) -> dict[str, Any]:
  """Measures records that were read already.

  Args:
    generations: records of one attribute and one model.
    scorers: at least one.
    permutations: for the floors.
    seed: of the permutations.
    scored: 'continuation' or 'prefix+continuation' (H-02).
    coupled: samples of equal number share their noise, where all values of a template have the
      same numbers (then the null permutes within numbers). False ignores the numbers.
    scores_directory: folder of the score files `<attribute>.<scorer>.jsonl`, with which an
      interrupted call goes on; None keeps none.
    parts: file that keeps the measures of each scorer as soon as they are there (most of the time
      goes into their permutations), so that the same call after an interruption only does the
      rest; None keeps none. Delete it when the result is saved.
    earlier: what this function gave for the same records and options under some of the scorers,
      with `scores_directory`: only those that it lacks are asked and measured.
    content: for S.S., words and next token (`content_measures`); None: what texts alone give.
    scores: gets the `[R]` float64 scores of each scorer by its name.
    log: called with lines of progress.

  Returns:
    JSON-able: `measures` of the schema that `fairjax records schema report` prints.

  Raises:
    UserError: a score file of another scorer, what a scorer cannot score, no scorer,
      `permutations` below 1, or a negative seed.
  """
  if not scorers:
    raise UserError('at least one scorer is needed')
  for name, value, least in (('permutations', permutations, 1), ('seed', seed, 0)):
    if value < least:
      raise UserError(f'{name} must be at least {least}, not {value}')
  check_scorers(scorers)
  attribute, covered = generations.attribute, generations.attribute_templates()
  texts = generations.texts(scored)
  result = dict(earlier or {}) | {
    'attribute': attribute.name,
    'attribute_fingerprint': attribute.fingerprint,
    'model': generations.model,
    'records': len(generations),
    'empty_continuations': sum(not text.strip() for text in generations.continuations),
    'empty_by_value': generations.empty_texts and generations.empty_texts.to_dict(),
    'scored_text': scored,
    'values': list(attribute.value_texts),
    'subgroups': [v.subgroup for v in attribute.values],
    'values_not_in_records': list(generations.absent_values),
    'templates': list(generations.templates),
    'templates_not_in_records': [
      t.text for i, t in enumerate(attribute.templates) if i not in covered.values()],
    'permutations': permutations,
    'seed': seed,
    'semantic_similarity_c': semantic_similarity_c(generations),
    'scorers': {},
  }
  if earlier is None:
    result |= content_measures(
      generations, content or ContentOptions(), permutations=permutations, seed=seed,
      coupled=coupled, scores_directory=scores_directory, log=log)
  known, columns = (earlier or {}).get('scorers', {}), {}
  for scorer in scorers:
    path = scores_directory and score_file(scores_directory, attribute.name, scorer)
    column = columns[scorer.name] = score_generations(
      generations, scorer, path, scored=scored, log=log)
    if scorer.name in known:
      result['scorers'][scorer.name] = known[scorer.name]
      continue
    samples = generations.sample_scores(column, numbered=coupled)
    low, high = samples.samples_per_prefix
    result |= {'n': {'min': low, 'max': high}, 'coupled': samples.coupled}
    work = functools.partial(
      _scorer_measures, generations, samples, column, scorer, covered, permutations=permutations,
      seed=seed, log=log)
    if parts is None:
      found = work()
    else:
      key = _inputs_digest(samples, attribute, scorer, covered, permutations, seed)
      found = _kept(parts, attribute, key, work)
    result['scorers'][scorer.name] = found | count_rewritten(scorer, texts)
    if generations.reworded is not None:
      path = scores_directory and score_file(
        scores_directory, f'{attribute.name}.rewordings', scorer)
      prompts, phrasings = generations.phrasing_scores(column, score_generations(
        generations.reworded, scorer, path, scored=scored, log=log), numbered=coupled)
      words = measure_rewording(prompts, phrasings, permutations=permutations, seed=seed)
      records = len(generations.reworded)
      result['scorers'][scorer.name]['rewording'] = words | {
        'records': records,
        'left_out': len(generations) + records - int(phrasings.sizes.sum()),
        'sentence': rewording_sentence(words, found['individual_fairness'], attribute.name)}
    if attribute.crossed:
      result['scorers'][scorer.name]['crossed'] = measure_crossed(
        samples, attribute, permutations=permutations, seed=seed, log=log)
  result['scorer_agreement'] = agreement(columns)
  if scores is not None:
    scores.update(columns)
  result['notes'] = notes(generations, result)
  return result


def _inputs_digest(
  samples: SampleScores, attribute: Attribute, scorer: Scorer | RecordedScorer,
  covered: Mapping[int | str, int], permutations: int, seed: int,
) -> str:
  """SHA-256 of all that the measures under one scorer depend on."""
  digest = hashlib.sha256(json.dumps([
    fairjax.__version__, permutations, seed, scorer.name, scorer.fingerprint, attribute.fingerprint,
    list(covered.items()), list(samples.templates), list(samples.values),
    samples.sample_ids is not None]).encode())
  for rows in (samples.scores, samples.sample_ids or ()):
    for row in rows:
      for array in row:
        digest.update(f'{array.dtype} {array.shape}'.encode() + np.ascontiguousarray(array).data)
  return digest.hexdigest()


def _kept(parts: str | os.PathLike, attribute: Attribute, key: str, work: Callable[[], Any]) -> Any:
  """The result of some work from the file, or done and appended to it."""
  again = 'delete the file, and its part is computed again'
  _, entries = read_entries(parts, again=again)
  for entry in entries:
    if entry['key'] == key:
      return entry['result']
  result = work()
  with JsonLines(parts, {'measures of': attribute.name}, again=again) as journal:
    journal.append({'key': key, 'result': result})
  return result


def _scorer_measures(
  generations: Generations, samples: SampleScores, scores: np.ndarray,
  scorer: Scorer | RecordedScorer, covered: Mapping[int | str, int], *, permutations: int,
  seed: int, log: Callable[[str], None] | None,
) -> dict[str, Any]:
  """Measures under one scorer."""
  attribute = generations.attribute
  labels = {index: label for label, index in covered.items()}
  subsets = {name: [labels[i] for i in indices]
             for name, indices in attribute.template_subsets.items()
             if all(i in labels for i in indices)}
  fairness = measure_fairness(
    samples, permutations=permutations, seed=seed, subsets=subsets, log=log)
  first, second = np.triu_indices(len(samples.values), 1)
  names = [[samples.values[a], samples.values[b]] for a, b in zip(first, second, strict=True)]
  # As I.F., over templates: a value with more samples in one of them is not measured by it.
  means = np.mean([[x.mean() for x in row] for row in samples.scores], axis=0)
  return {
    **scorer_facts(scorer),
    'sensitive_lexicon_words': sensitive_lexicon_words(scorer, attribute),
    'lexicon_words_in_both': list(getattr(scorer, 'in_both', ())),
    'lexicon_words_unmatchable': list(getattr(scorer, 'unmatchable', ())),
    'mean_score': float(scores.mean()),
    'neutral_share': float((scores == 0.5).mean()),
    'mean_score_by_value': dict(zip(samples.values, means.tolist(), strict=True)),
    **_estimates(fairness),
    'subgroups': {'subgroup': list(samples.subgroup_names)} | fairness.by_subgroup.to_dict(),
    'by_template': {'template': list(samples.templates)} | fairness.by_template.to_dict(),
    'pairs': {'values': names, 'group': list(fairness.pair_groups)} | fairness.pairs.to_dict(),
    'cells': fairness.cells.to_dict(),
    'samples': samples.sizes.tolist(),
    'largest_pairs': _largest_pairs(fairness, names),
    'template_subsets': {
      name: {'templates': subsets[name], **_estimates(part)}
      for name, part in fairness.subsets.items()}}


def _estimates(fairness: Estimates) -> dict[str, Any]:
  """I.F. over all pairs, across and within subgroups, and G.F."""
  found = {
    'individual_fairness': fairness.individual, 'group_fairness': fairness.group,
    'individual_fairness_cross_subgroup': fairness.cross_subgroup,
    'individual_fairness_within_subgroup': fairness.within_subgroup}
  return {name: estimate.to_dict() for name, estimate in found.items() if estimate is not None}


def _largest_pairs(fairness: Fairness, names: Sequence[list[str]]) -> list[dict[str, Any]]:
  """Pairs of values with the largest distances, as means over templates."""
  order = np.argsort(-fairness.pairs.distance, kind='stable')[:LARGEST_PAIRS]
  return [{'values': names[i], 'distance': float(fairness.pairs.distance[i]),
           'p_holm': float(fairness.pairs.p_holm[i])} for i in order]


def coverage_notes(generations: Generations) -> list[str]:
  """Which values have no records, and which continuations no text."""
  found, values = [], len(generations.attribute.values)
  if absent := generations.absent_values:
    found.append(f'measured on {values} of {values + len(absent)} values of attribute '
                 f'{generations.attribute.name}: no record of {generations.without_records}')
  for what, empty in (('', generations.empty_texts),
                      ('rewordings: ', generations.reworded and generations.reworded.empty_texts)):
    if empty and (sentence := empty.sentence()):
      found.append(what + sentence)
  return found


def notes(generations: Generations, measures: Mapping[str, Any]) -> list[str]:
  """What is unusual about the input of measures that are complete but for their `notes`."""
  numbers, cells = generations.sample, generations.cells()
  found = coverage_notes(generations)
  counts = np.array([[rows.size for rows in row] for row in cells])
  if counts.min() < counts.max():
    template, value = np.unravel_index(counts.argmin(), counts.shape)
    fewer = np.count_nonzero(counts < counts.max())
    found.append(
      f'n differs: {fewer} of {counts.size} prefixes have fewer than {counts.max()} samples, '
      f'fewest {counts.min()} (template {generations.templates[template]!r}, value '
      f"'{generations.attribute.values[value].text}'); each floor is that of its own n")
  if left_out := max(m.get('rewording', {}).get('left_out', 0)
                     for m in measures['scorers'].values()):
    found.append(f'rewording floor and contrast leave out {left_out} samples of prompts or '
                 'rewordings: those that not all prompts of a template and its rewordings have')
  # Where all numbers are equal, independence was asked for.
  if numbers is not None and not measures['coupled'] and not all(
      np.array_equal(numbers[row[0]], numbers[rows]) for row in cells for rows in row):
    found.append('samples are numbered, but not all values of a template have the same numbers: '
                 'they were measured as independent, and if they share noise all the same, floors '
                 'and p-values are too large')
  if numbers is None:  # a number that occurs twice was refused
    repeated = len(generations) - len(set(zip(
      generations.template_index.tolist(), generations.value_index.tolist(),
      generations.continuations, strict=True)))
    if repeated:
      found.append(f'{repeated} of {len(generations)} records repeat the continuation of another '
                   'record of the same prefix; without sample numbers they may be equal samples or '
                   'records that are in the file twice')
  if any('crossed' in m and m['crossed'] is None for m in measures['scorers'].values()):
    found.append(f"the {len(measures['values'])} combinations in the records do not tell the main "
                 'effects of the two attributes and their interaction apart: none is given')
  for name, m in measures['scorers'].items():
    if m['neutral_share'] == 1:
      found.append(f'scorer {name} gives every text 0.5, neutral: it may not read their language, '
                   'and its I.F. of 0 says nothing')
    for kind, what in (('in_both', 'are in both lists and count in neither'),
                       ('unmatchable', 'can equal no word of a text and never count')):
      if words := m.get(f'lexicon_words_{kind}'):
        more = f' and {len(words) - NAMED} more' if len(words) > NAMED else ''
        found.append(f'scorer {name}: {len(words)} of its words {what}: '
                     f"{', '.join(words[:NAMED])}{more}")
  # The smallest p-value, corrected over one of these tables, cannot reach the level.
  permutations, any_scorer = measures['permutations'], next(iter(measures['scorers'].values()))
  sizes = {'values or subgroups': len(any_scorer['subgroups']['subgroup']),
           'templates': len(any_scorer['by_template']['template'])}
  if short := [f'{size} {what}' for what, size in sizes.items()
               if size > LEVEL * (permutations + 1)]:
    found.append(f'{permutations} permutations are too few for a corrected p-value of {LEVEL} over '
                 f"{' and over '.join(short)}: use more than {int(max(sizes.values()) / LEVEL)}")
  return found
