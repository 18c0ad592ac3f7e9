"""What people's labels say: agreement, correlation with scores, and human I.F. (H-38 to H-40)."""

import collections
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.measure.encoders import Encoder
from fairjax.measure.fairness import individual_fairness
from fairjax.measure.generations import join_text
from fairjax.measure.human_agreement import agreement, correlate, pearson, spearman
from fairjax.measure.human_difference import Comparison, model_differences
from fairjax.measure.human_ratings import Ratings, Returned
from fairjax.measure.samples import SampleScores
from fairjax.measure.score_cache import score_texts
from fairjax.measure.scorer_audit import check_scorers
from fairjax.measure.scorers import RecordedScorer, Scorer, count_truncated
from fairjax.measure.similarity import own_cosines
from fairjax.measure.wasserstein import wasserstein_1

KIND, SCHEMA = 'fairjax human evaluation', 1
NAMED = 20  # places of dropped rows that are named; all are counted


def human_measures(
  key: Mapping[str, Any], returned: Returned, scorers: Sequence[Scorer | RecordedScorer], *,
  similarities: Sequence[str] = (), encoder: Encoder | None = None, min_raters: int = 1,
  resamples: int = 2000, permutations: int = 2000, seed: int = 0,
) -> dict[str, Any]:
  """Evaluates what came back.

  Args:
    key: of the export.
    returned: the ratings (`human_ratings.read_ratings`).
    scorers: compared with human sentiment, on the unmasked text that annotators read.
    similarities: names of recorded scores, e.g. S.S., compared with human relevance; any finite
      numbers. S.S.c is always compared.
    encoder: its cosine of prefix and continuation, S.S. (H-27), is compared with human relevance,
      as the paper does (H-39).
    min_raters: items with fewer labels are left out and counted.
    resamples: of the bootstrap.
    permutations: of human I.F.
    seed: of both.

  Returns:
    JSON-able: `kind`, `schema`, `export` (digest of the key), `mode` ('sample' or 'pairs'), `text`,
    `masked`, `settings`, `returned` (what was not used), and `tasks`. Each task has counts, labels
    by annotator, `agreement` (`nominal`; for sentiment also `nominal_without_mixed`; `linear`),
    `correlations` and `truncated_texts` (by scorer that cuts long texts); sentiment has
    `individual_fairness` with `pairs`: one entry for each model and pair of values, and
    `differences`: one for each two models. The fields are described in docs/human_evaluation.md.

  Raises:
    UserError: a score is missing or not a number, a scorer is given twice, nothing was rated, or
      no relevance although something is to be compared with it.
  """
  if not any(r.labels for r in returned.ratings.values()):
    raise UserError('the sheets hold no label: nothing to evaluate')
  if (similarities or encoder) and 'relevance' not in returned.ratings:
    raise UserError('similarity is compared with human relevance, of which the sheets hold '
                    'nothing: give its sheets too, or leave out --similarity and --encoder')
  check_scorers(scorers)
  options = key['options']
  result = {
    'kind': KIND, 'schema': SCHEMA, 'export': key['export'],
    'mode': 'pairs' if options['pairs'] else 'sample', 'text': options['text'],
    'masked': options['mask'], 'overlap': options['overlap'],
    'settings': {'min_raters': min_raters, 'resamples': resamples, 'permutations': permutations,
                 'seed': seed},
    'returned': {
      'unknown_items': len(returned.unknown_items),
      'unknown_item_places': list(returned.unknown_items[:NAMED]),
      'empty_rows': returned.empty_rows, 'other_columns': list(returned.other_columns)},
    'tasks': {}}
  draws = {'resamples': resamples, 'seed': seed}
  for name, ratings in returned.ratings.items():
    items = key['tasks'][name]['items']
    means, dropped = _means(ratings, len(items), min_raters)
    truncated: dict[str, int] = {}
    if name == 'sentiment':
      columns, truncated = _sentiment_scores(items, list(means), scorers, options['text'])
    else:
      columns, truncated = _relevance_scores(items, list(means), similarities, encoder)
    task = _counts(ratings, len(items)) | {
      'items_used': len(means), 'items_dropped': dropped,
      'raters_per_item': dict(sorted(collections.Counter(
        str(len(ratings.labels[item])) for item in means).items())),
      'mean': float(np.mean(list(means.values()))) if means else None,
      'agreement': _agreement(ratings, items, draws),
      'correlations': _correlations(items, means, columns, draws),
      'truncated_texts': truncated}
    if name == 'sentiment' and options['pairs']:
      task['individual_fairness'] = _individual_fairness(
        key, means, permutations=permutations, seed=seed)
    result['tasks'][name] = task
  return result


def _means(
  ratings: Ratings, items: int, min_raters: int
) -> tuple[dict[str, float], dict[str, int]]:
  """Mean value of each item that is used, and why the others are not."""
  values, means = ratings.task.labels, {}
  dropped = {'unrated': items - len(ratings.labels), 'mixed': 0, 'too_few_raters': 0}
  for item, by_annotator in ratings.labels.items():
    given = [values[label] for label in by_annotator.values()]
    if None in given:
      dropped['mixed'] += 1
    elif len(given) < min_raters:
      dropped['too_few_raters'] += 1
    else:
      means[item] = float(np.mean(given))
  return means, dropped


def _counts(ratings: Ratings, items: int) -> dict[str, Any]:
  """Numbers of rows and labels."""
  by_annotator: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
  for labels in ratings.labels.values():
    for who, label in labels.items():
      by_annotator[who][label] += 1
  return {
    'items': items, 'rows': ratings.rows,
    'labels': sum(map(len, ratings.labels.values())), 'empty_labels': ratings.empty,
    'missing_rows': len(ratings.missing), 'missing_row_places': list(ratings.missing[:NAMED]),
    'absent_annotators': list(ratings.absent),
    'labels_by_annotator': {
      who: {label: by_annotator[who][label] for label in ratings.task.labels}
      for who in sorted(by_annotator)}}


def _cluster(item: str, record: Mapping[str, Any]) -> tuple:
  """Name of an item's cluster: samples of one number share their noise."""
  if record.get('sample') is None:
    return (item,)
  return (record['attribute'], record['template'], record['sample'])


def _agreement(
  ratings: Ratings, items: Mapping[str, Any], draws: Mapping[str, int]
) -> dict[str, Any]:
  """Cohen's kappa, unweighted over all labels and weighted over those in order."""
  task = ratings.task
  clusters = {item: _cluster(item, items[item]['record']) for item in ratings.labels}
  found = {'nominal': agreement(ratings.labels, tuple(task.labels), linear=False,
                                clusters=clusters, **draws)}
  if len(task.ordered) < len(task.labels):
    found['nominal_without_mixed'] = agreement(
      ratings.labels, task.ordered, linear=False, clusters=clusters, **draws)
  return found | {'linear': agreement(
    ratings.labels, task.ordered, linear=True, clusters=clusters, **draws)}


def _correlations(
  items: Mapping[str, Any], means: Mapping[str, float], columns: Mapping[str, np.ndarray],
  draws: Mapping[str, int],
) -> dict[str, Any]:
  """Spearman and Pearson of each column of scores with the mean labels."""
  human = np.array(list(means.values()))
  clusters = [_cluster(item, items[item]['record']) for item in means]
  return {name: {
    'spearman': correlate(spearman, human, scores, clusters, **draws).to_dict(),
    'pearson': correlate(pearson, human, scores, clusters, **draws).to_dict()}
    for name, scores in columns.items()}


def _sentiment_scores(
  items: Mapping[str, Any], used: Sequence[str], scorers: Sequence[Scorer | RecordedScorer],
  text: str,
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
  """Scores of the used items by scorer name, and how many texts a scorer cuts."""
  records = [items[item]['record'] for item in used]
  columns, truncated = {}, {}
  for scorer in scorers:
    if isinstance(scorer, RecordedScorer):
      columns[scorer.name] = scorer.score_columns(
        [r.get('scores') for r in records], [r['where'] for r in records])
    else:
      texts = [r['continuation'] if text == 'continuation'
               else join_text(r['prefix'], r['continuation']) for r in records]
      columns[scorer.name] = score_texts(texts, scorer)
      longer = count_truncated(scorer, texts)
      if longer is not None:
        truncated[scorer.name] = longer
  return columns, truncated


def _relevance_scores(
  items: Mapping[str, Any], used: Sequence[str], similarities: Sequence[str],
  encoder: Encoder | None,
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
  """S.S.c (H-28), S.S. and recorded similarities of the used items; texts that were cut."""
  records = [items[item]['record'] for item in used]
  columns = {'S.S.c': np.array([float(r['mentions']) for r in records])}
  for name in similarities:
    values = []
    for record in records:
      value = (record.get('scores') or {}).get(name)
      if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise UserError(f"{record['where']}: score '{name}' is {value!r}, not a number: record it, "
                        'or name another with --similarity')
      values.append(float(value))
    columns[f'recorded:{name}'] = np.array(values)
  if encoder is None:
    return columns, {}
  texts = [r['continuation'] for r in records]
  name = f'S.S. {encoder.name}'
  columns[name] = own_cosines([r['prefix'] for r in records], texts, encoder)
  longer = count_truncated(encoder, texts)
  return columns, {} if longer is None else {name: longer}


def _individual_fairness(
  key: Mapping[str, Any], means: Mapping[str, float], *, permutations: int, seed: int
) -> dict[str, Any]:
  """Distance of the human scores of each pair of prefixes, by model, and between models (H-40)."""
  items = key['tasks']['sentiment']['items']
  cells: dict[tuple, dict[str, list[tuple[int | str, float | None]]]] = {}
  for item, content in items.items():
    r = content['record']
    cell = cells.setdefault((r['model'], r['template']), {})
    number = r['sample'] if key['coupled'] else item
    cell.setdefault(r['value'], []).append((number, means.get(item)))
  entries, compared = [], {}
  for model, template in sorted(cells, key=repr):
    cell = cells[model, template]
    for pair in key['options']['pairs']:
      names = (pair['first'], pair['second'])
      if all(name in cell for name in names) and pair['template'] in (None, str(template)):
        entries.append({'model': model, 'template': template, 'values': list(names)} | _distance(
          names, [cell[name] for name in names], coupled=key['coupled'],
          permutations=permutations, seed=seed))
        compared.setdefault((template, names), {})[model] = tuple(
          {number: mean for number, mean in cell[name] if mean is not None} for name in names)
  return {'definition': 'H-40', 'coupled': key['coupled'], 'pairs': entries,
          'differences': model_differences(
            [Comparison(*place, ratings) for place, ratings in compared.items()],
            coupled=key['coupled'], permutations=permutations, seed=seed)}


def _distance(
  names: Sequence[str], rated: Sequence[Sequence[tuple[int | str, float | None]]], *,
  coupled: bool, permutations: int, seed: int,
) -> dict[str, Any]:
  """Distance of two prefixes with its null.

  Coupled samples are compared as pairs, so that the null can exchange within them: a sample of
  which one side was dropped loses the other too. `all_items` is the distance over every item that
  has a mean, as the paper has it.
  """
  kept = [{number: mean for number, mean in side if mean is not None} for side in rated]
  entry = {'exported': [len(side) for side in rated], 'rated': [len(side) for side in kept],
           'lost_partner': [0, 0], 'estimate': None, 'all_items': None, 'mean': None}
  if not all(kept):
    return entry
  scores = [np.array(list(side.values())) for side in kept]
  entry['all_items'] = wasserstein_1(*scores)
  entry['mean'] = [float(x.mean()) for x in scores]
  ids = None
  if coupled:
    common = sorted(set(kept[0]) & set(kept[1]))
    entry['lost_partner'] = [len(side) - len(common) for side in kept]
    if not common:
      return entry
    scores = [np.array([side[number] for number in common]) for side in kept]
    ids = ((np.array(common), np.array(common)),)
  samples = SampleScores(
    values=tuple(names), subgroups=tuple(names), templates=('pair',), scores=(tuple(scores),),
    sample_ids=ids)
  estimate = individual_fairness(samples, permutations=permutations, seed=seed)
  return entry | {'estimate': estimate.to_dict() | {
    'definition': 'H-40: W1 of mean human scores of two prefixes'}}
