"""What people's labels say: agreement, correlation with scores, and human I.F. (H-38 to H-40)."""

import collections
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.errors import UserError
from fairjax.inputs import open_input
from fairjax.measure.columns import scored_text
from fairjax.measure.correlation import Clusters, bootstrap_interval, correlate, pearson, spearman
from fairjax.measure.estimates import SampleScores, summarise, wasserstein_1
from fairjax.measure.fairness import measure_fairness
from fairjax.measure.human.sheets import LABEL, TASKS, Task, same_text, sheet_name
from fairjax.measure.scorers.base import RecordedScorer, Scorer, count_truncated
from fairjax.measure.scorers.cache import score_texts
from fairjax.measure.similarity import Encoder, own_cosines
from fairjax.tables import Table

KIND, SCHEMA = 'fairjax human evaluation', 1
NAMED = 20  # places of dropped rows that are named; all are counted
_PURPOSE = 0x36  # separates these random streams from others of the same seed


Labels = Mapping[str, Mapping[str, str]]  # item -> annotator -> label
MeanRatings = Mapping[int | str, float]  # number of a sample (or name of an item) -> mean rating


class Returned(NamedTuple):
  """All sheets that came back."""

  rows: Mapping[str, Labels]  # of every task of the key; '' is a row without a label
  unknown_items: list[str]  # places of rows whose item is not in the key; they are left out
  empty_rows: int
  other_columns: list[str]  # file: name of columns that people added; they are not read


def read_ratings(key: Mapping[str, Any], paths: Sequence[str | os.PathLike]) -> Returned:
  """Reads returned sheets, in any order; one file may hold several."""
  sheets = {sheet_name(key['export'], task, annotator): (TASKS[task], annotator)
            for task in key['tasks'] for annotator in key['annotators']}
  found: dict[tuple[str, str, str], tuple[str, str]] = {}  # task, item, annotator: label, place
  unknown, others, counts = [], [], collections.Counter[str]()
  for path in paths:
    shown = {'sheet', 'item', LABEL}
    with open_input(path, what='annotation sheet') as file:
      table = Table(file, path, ('sheet', 'item', LABEL), counts=counts, blank='empty')
      for row, where in table:
        sheet, item = row['sheet'].strip(), row['item'].strip()
        if sheet not in sheets:
          raise UserError(f'{where}: sheet is {sheet!r}, which is none of this key '
                          f"({', '.join([*sheets][:2])}, ...): restore the cell from another row "
                          'of the sheet, remove the row, or give the key of its export')
        task, annotator = sheets[sheet]
        shown |= set(task.columns)
        if item not in key['tasks'][task.name]['items']:
          unknown.append(f'{where}: {item!r}')
          continue
        _check_row(row, task, key['tasks'][task.name], item, annotator, where)
        place = (task.name, item, annotator)
        if place in found:
          raise UserError(f'{where}: item {item} was rated by {annotator} already in '
                          f'{found[place][1]}: remove one of the rows')
        found[place] = (row[LABEL].strip().lower(), where)
    others += [f'{path}: {name}' for name in table.header if name and name not in shown]
  rows: dict[str, dict[str, dict[str, str]]] = {name: {} for name in key['tasks']}
  for (name, item, annotator), (label, _) in sorted(found.items()):
    rows[name].setdefault(item, {})[annotator] = label
  return Returned(rows, unknown, counts['empty'], others)


def _check_row(row: Mapping[str, str], task: Task, part: Mapping[str, Any], item: str,
               annotator: str, where: str) -> None:
  """The item belongs to the annotator, its texts are as they were, and its label is known."""
  if item not in part['sheets'][annotator]:
    raise UserError(f'{where}: item {item} was not given to {annotator}: restore the cells "sheet" '
                    'and "item" of this row')
  for column in task.columns:
    text = part['items'][item]['shown'][column]
    if column not in row:
      raise UserError(f'{where}: the column {column} is missing: texts are compared, put it back')
    if not same_text(row[column], text):
      raise UserError(f'{where}: the {column} of item {item} was edited: it was exported as '
                      f'{text[:60]!r} and is {row[column][:60]!r}: restore it, if the exported '
                      'text was rated')
  label = row[LABEL].strip()
  if label and label.lower() not in task.labels:
    raise UserError(f"{where}: label {label!r} of item {item} is not one of "
                    f"{', '.join(task.labels)}: correct it or leave the cell empty")


def cohen_kappa(table: np.ndarray, *, linear: bool = False) -> float | None:
  """Cohen's kappa of counts `[L, L]`, first rater by second; None where chance never disagrees."""
  # `linear` weighs a disagreement by the distance of the labels, which must then be in order.
  table = np.asarray(table, np.float64)
  place = np.arange(len(table))
  cost = np.abs(place[:, None] - place).astype(np.float64)
  if not linear:
    cost = np.minimum(cost, 1)
  expected = (cost * np.outer(table.sum(axis=1), table.sum(axis=0))).sum()
  return None if expected == 0 else float(1 - (cost * table).sum() * table.sum() / expected)


def rater_agreement(
  labels: Labels, names: Sequence[str], *, linear: bool,
  clusters: Mapping[str, Any], resamples: int, seed: int,
) -> dict[str, Any]:
  """Cohen's kappa over all annotators and of each two."""
  # `pooled` is kappa of the sum of all pairs' tables, each counted in both directions, since who is
  # first is arbitrary: chance is then that of the annotators together. `mean_of_pairs` averages the
  # kappas of pairs, as the paper seems to; with few common items a pair its terms are very noisy.
  index, size = {name: i for i, name in enumerate(names)}, len(names)
  tables: dict[tuple[str, str], list[tuple[str, int, int]]] = {}  # what each two annotators rated
  for item, by_annotator in labels.items():
    known = [(who, index[label]) for who, label in sorted(by_annotator.items()) if label in index]
    for (first, a), (second, b) in itertools.combinations(known, 2):
      tables.setdefault((first, second), []).append((item, a, b))
  rated: dict[str, np.ndarray] = {}
  pairs: list[dict[str, Any]] = []
  for who, table in tables.items():
    own = np.zeros((size, size))
    for item, a, b in table:
      own[a, b] += 1
      both = rated.setdefault(item, np.zeros((size, size)))
      both[a, b] += 0.5
      both[b, a] += 0.5
    pairs.append({'annotators': list(who), 'n': len(table),
                  'kappa': cohen_kappa(own, linear=linear)})
  pairs.sort(key=lambda pair: pair['annotators'])
  counts = np.array([*rated.values()]).reshape(-1, size, size)
  groups = Clusters([clusters[item] for item in rated])

  def draw(rng):
    return cohen_kappa(counts[groups.draw(rng)].sum(axis=0), linear=linear)

  whole = counts.sum(axis=0)
  pooled = bootstrap_interval(
    cohen_kappa(whole, linear=linear), int(round(whole.sum())), groups.count, draw,
    resamples=resamples, seed=seed)
  defined = [p['kappa'] for p in pairs if p['kappa'] is not None]
  return {
    'pooled': pooled,
    'observed': float(np.trace(whole) / whole.sum()) if rated else None,
    'mean_of_pairs': float(np.mean(defined)) if defined else None,
    'pairs_defined': len(defined), 'pairs': pairs}


def human_measures(
  key: Mapping[str, Any], returned: Returned, scorers: Sequence[Scorer | RecordedScorer], *,
  similarities: Sequence[str] = (), encoder: Encoder | None = None, min_raters: int = 1,
  resamples: int = 2000, permutations: int = 2000, seed: int = 0,
) -> dict[str, Any]:
  """All figures of a human evaluation: `human` of the report's schema."""
  given: dict[str, Labels] = {
    name: {item: known for item, row in rows.items()
           if (known := {who: label for who, label in row.items() if label})}
    for name, rows in returned.rows.items()}
  if not any(given.values()):
    raise UserError('the sheets hold no label: nothing to evaluate')
  if (similarities or encoder) and 'relevance' not in given:
    raise UserError('similarity is compared with human relevance, of which the sheets hold '
                    'nothing: give its sheets too, or leave out --similarity and --encoder')
  options = key['options']
  result = {
    'kind': KIND, 'schema': SCHEMA, 'export': key['export'],
    'mode': 'pairs' if options['pairs'] else 'sample', 'text': options['text'],
    'masked': options['mask'], 'overlap': options['overlap'],
    'settings': {'min_raters': min_raters, 'resamples': resamples, 'permutations': permutations,
                 'seed': seed},
    'returned': {
      'unknown_items': len(returned.unknown_items),
      'unknown_item_places': returned.unknown_items[:NAMED],
      'empty_rows': returned.empty_rows, 'other_columns': returned.other_columns},
    'tasks': {}}
  draws = {'resamples': resamples, 'seed': seed}
  for name, labels in given.items():
    items = key['tasks'][name]['items']
    means, dropped = _means(TASKS[name], labels, len(items), min_raters)
    records = [items[item]['record'] for item in means]
    columns, truncated = (
      _sentiment_scores(records, scorers, options['text']) if name == 'sentiment'
      else _relevance_scores(records, similarities, encoder))
    task = _counts(key['tasks'][name], returned.rows[name], labels, TASKS[name]) | {
      'items_used': len(means), 'items_dropped': dropped,
      'raters_per_item': dict(sorted(collections.Counter(
        str(len(labels[item])) for item in means).items())),
      'mean': float(np.mean(list(means.values()))) if means else None,
      'agreement': _agreement(TASKS[name], labels, items, draws),
      'correlations': _correlations(items, means, columns, draws),
      'truncated_texts': truncated}
    if name == 'sentiment' and options['pairs']:
      task['individual_fairness'] = _individual_fairness(
        key, means, permutations=permutations, seed=seed)
    result['tasks'][name] = task
  return result


def _means(
  task: Task, labels: Labels, items: int, min_raters: int
) -> tuple[dict[str, float], dict[str, int]]:
  """Mean value of each item that is used, and why the others are not."""
  means, dropped = {}, {'unrated': items - len(labels), 'mixed': 0, 'too_few_raters': 0}
  for item, by_annotator in labels.items():
    given = [task.labels[label] for label in by_annotator.values()]
    if None in given:
      dropped['mixed'] += 1
    elif len(given) < min_raters:
      dropped['too_few_raters'] += 1
    else:
      means[item] = float(np.mean(given))
  return means, dropped


def _counts(part: Mapping[str, Any], rows: Labels, labels: Labels, task: Task) -> dict[str, Any]:
  """Numbers of rows and labels."""
  count, given = sum(map(len, rows.values())), sum(map(len, labels.values()))
  here = {who for row in rows.values() for who in row}
  missing = [f'{who}/{item}' for who, items in part['sheets'].items() if who in here
             for item in items if who not in rows.get(item, {})]
  used = collections.Counter(pair for row in labels.values() for pair in row.items())
  return {
    'items': len(part['items']), 'rows': count, 'labels': given, 'empty_labels': count - given,
    'missing_rows': len(missing), 'missing_row_places': missing[:NAMED],
    'absent_annotators': [
      who for who, items in part['sheets'].items() if items and who not in here],
    'labels_by_annotator': {who: {label: used[who, label] for label in task.labels}
                            for who in sorted({who for who, _ in used})}}


def _cluster(item: str, items: Mapping[str, Any]) -> tuple:
  """Name of an item's cluster: samples of one number share their noise."""
  record = items[item]['record']
  if record.get('sample') is None:
    return (item,)
  return (record['attribute'], record['template'], record['sample'])


def _agreement(
  task: Task, labels: Labels, items: Mapping[str, Any], draws: Mapping[str, int]
) -> dict[str, Any]:
  """Cohen's kappa, unweighted over all labels and weighted over those in order."""
  clusters = {item: _cluster(item, items) for item in labels}
  kinds = {'nominal': (tuple(task.labels), False)}
  if len(task.ordered) < len(task.labels):
    kinds['nominal_without_mixed'] = (task.ordered, False)
  kinds['linear'] = (task.ordered, True)
  return {kind: rater_agreement(labels, names, linear=linear, clusters=clusters, **draws)
          for kind, (names, linear) in kinds.items()}


def _correlations(
  items: Mapping[str, Any], means: Mapping[str, float], columns: Mapping[str, np.ndarray],
  draws: Mapping[str, int],
) -> dict[str, Any]:
  """Spearman and Pearson of each column of scores with the mean labels."""
  human = np.array(list(means.values()))
  clusters = [_cluster(item, items) for item in means]
  return {name: {
    'spearman': correlate(spearman, human, scores, clusters, **draws),
    'pearson': correlate(pearson, human, scores, clusters, **draws)}
    for name, scores in columns.items()}


def _sentiment_scores(
  records: Sequence[Mapping[str, Any]], scorers: Sequence[Scorer | RecordedScorer], text: str,
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
  """Scores of the records by scorer name, and how many texts a scorer cuts."""
  texts, columns, truncated = [scored_text(r, text) for r in records], {}, {}
  for scorer in scorers:
    if isinstance(scorer, RecordedScorer):
      columns[scorer.name] = scorer.score_columns(
        [r.get('scores') for r in records], [r['where'] for r in records])
    else:
      columns[scorer.name] = score_texts(texts, scorer)
      truncated[scorer.name] = count_truncated(scorer, texts)
  return columns, {name: count for name, count in truncated.items() if count is not None}


def _relevance_scores(
  records: Sequence[Mapping[str, Any]], similarities: Sequence[str], encoder: Encoder | None,
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
  """S.S.c (H-28), S.S. and recorded similarities of the records; how many texts are cut."""
  columns = {'S.S.c': np.array([float(r['mentions']) for r in records])}
  for name in similarities:
    values = [(record.get('scores') or {}).get(name) for record in records]
    for record, value in zip(records, values, strict=True):
      if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise UserError(f"{record['where']}: score '{name}' is {value!r}, not a number: record it, "
                        'or name another with --similarity')
    columns[f'recorded:{name}'] = np.array(values, np.float64)
  if encoder is None:
    return columns, {}
  texts, name = [r['continuation'] for r in records], f'S.S. {encoder.name}'
  columns[name] = own_cosines([r['prefix'] for r in records], texts, encoder)
  longer = count_truncated(encoder, texts)
  return columns, {} if longer is None else {name: longer}


def _individual_fairness(
  key: Mapping[str, Any], means: Mapping[str, float], *, permutations: int, seed: int
) -> dict[str, Any]:
  """Distance of the human scores of each pair of prefixes, by model, and between models (H-40)."""
  # Model, template and value -> mean of each sample, by its number or else its item.
  cells: dict[tuple, dict[int | str, float | None]] = {}
  for item, content in key['tasks']['sentiment']['items'].items():
    r = content['record']
    cells.setdefault((r['model'], r['template'], r['value']), {})[
      r['sample'] if key['coupled'] else item] = means.get(item)
  entries, compared = [], {}
  for model, template in sorted({cell[:2] for cell in cells}, key=repr):
    for pair in key['options']['pairs']:
      names = (pair['first'], pair['second'])
      both = [(model, template, name) for name in names]
      if all(cell in cells for cell in both) and pair['template'] in (None, str(template)):
        rated = tuple({number: mean for number, mean in cells[cell].items() if mean is not None}
                      for cell in both)
        entries.append({
          'model': model, 'template': template, 'values': list(names),
          'exported': [len(cells[cell]) for cell in both]} | _distance(
            names, rated, coupled=key['coupled'], permutations=permutations, seed=seed))
        compared.setdefault((template, names), {})[model] = rated
  return {'definition': 'H-40', 'coupled': key['coupled'], 'pairs': entries,
          'differences': model_differences(
            compared, coupled=key['coupled'], permutations=permutations, seed=seed)}


def _distance(
  names: tuple[str, str], rated: Sequence[MeanRatings], *, coupled: bool, permutations: int,
  seed: int,
) -> dict[str, Any]:
  """Distance of two prefixes with its null."""
  # Coupled samples are compared as pairs, so that the null can exchange within them: a sample of
  # which one side was dropped loses the other too. `all_items` is the distance over every item that
  # has a mean, as the paper has it.
  entry: dict[str, Any] = {
    'rated': [len(side) for side in rated], 'lost_partner': [0, 0], 'estimate': None,
    'all_items': None, 'mean': None}
  if not all(rated):
    return entry
  scores = [np.array(list(side.values())) for side in rated]
  entry |= {'all_items': wasserstein_1(*scores), 'mean': [float(x.mean()) for x in scores]}
  ids = None
  if coupled:
    common = sorted(set(rated[0]) & set(rated[1]))
    entry['lost_partner'] = [len(side) - len(common) for side in rated]
    if not common:
      return entry
    scores = [np.array([side[number] for number in common]) for side in rated]
    ids = ((np.array(common),) * 2,)
  samples = SampleScores(names, names, ('pair',), (tuple(scores),), ids)
  estimate = measure_fairness(samples, permutations=permutations, seed=seed).individual
  return entry | {'estimate': estimate.to_dict() | {
    'definition': 'H-40: W1 of mean human scores of two prefixes'}}


# Whether two models differ in human I.F.: a permutation test of the difference (H-40).
#
# One model above its noise floor and the other within it do not show that they differ. The null is
# that it does not matter which of the two models wrote a text. Then the ratings of the two may
# change places, and the difference of the two distances is one of those that such exchanges give
# (approximate randomization, Noreen 1989). Samples of one number share their noise in both models
# and at both values, so all their ratings change places together; samples without numbers are dealt
# to the models anew, value by value. Both distances are taken over the same numbers (or the same
# counts), so that what finite samples add to each of them is the same under the null.
#
# The null is stricter than "equal I.F.": a model that writes otherwise, but is as fair, differs
# from it too. The statistic looks at the difference of the distances alone.

Place = tuple[int | str, tuple[str, str]]  # a template, and two values that are compared at it


def model_differences(
  comparisons: Mapping[Place, Mapping[str, Sequence[MeanRatings]]], *, coupled: bool,
  permutations: int, seed: int,
) -> list[dict[str, Any]]:
  """Tests for each pair of models whether their human I.F. differ."""
  names = sorted({name for ratings in comparisons.values() for name in ratings})
  found = []
  for number, models in enumerate(itertools.combinations(names, 2)):
    rng = np.random.default_rng(np.random.SeedSequence((seed, _PURPOSE, number)))
    both = {place: [ratings[m] for m in models] for place, ratings in comparisons.items()
            if all(m in ratings for m in models)}
    entries, draws = [], []
    for (template, values), sides, counts in (_swap if coupled else _deal)(both, permutations, rng):
      entry = {'template': template, 'values': list(values),
               'individual_fairness': None} | _judge(None) | counts
      if sides is not None:
        distances = np.stack([_distances(*side) for side in sides])
        draws.append(distances[1] - distances[0])
        entry |= {'individual_fairness': distances[:, 0].tolist()} | _judge(draws[-1])
      entries.append(entry)
    whole = _judge(np.mean(draws, axis=0) if draws else None)
    if entries:
      found.append({'models': list(models), 'permutations': permutations, 'coupled': coupled,
                    'comparisons': entries} | whole)
  return found


def _judge(differences: np.ndarray | None) -> dict[str, float | None]:
  """The first of `[1 + draws]` differences beside the others; None: ratings are missing."""
  if differences is None:
    return dict.fromkeys(('difference', 'null_p95', 'p_value'))
  sizes = np.abs(differences)
  _, p95, p_value, _ = summarise(sizes[0], sizes[1:])
  return {'difference': float(differences[0]), 'null_p95': float(p95), 'p_value': float(p_value)}


_Both = Mapping[Place, Sequence[Sequence[MeanRatings]]]  # [model][value] of two models
# [model][value] ratings [1 + R, n] (row 0 as found; None: nothing left), and counts.
_Sides = Iterator[tuple[Place, list[list[np.ndarray]] | None, dict[str, Any]]]


def _swap(both: _Both, permutations: int, rng: np.random.Generator) -> _Sides:
  """Exchanges the two models' ratings of a number, together wherever the number occurs."""
  common = {place: sorted(set.intersection(*map(set, itertools.chain(*ratings))))
            for place, ratings in both.items()}
  columns: dict[tuple, int] = {}
  for (template, _), numbers in common.items():
    for k in numbers:
      columns.setdefault((template, k), len(columns))
  swapped = np.concatenate([np.zeros((1, len(columns)), bool),
                            rng.random((permutations, len(columns))) < 0.5])
  for place, numbers in common.items():
    counts = {'n': [[len(numbers)] * 2] * 2,
              'lost': [[len(side) - len(numbers) for side in sides] for sides in both[place]]}
    if not numbers:
      yield place, None, counts
      continue
    swap = swapped[:, [columns[place[0], k] for k in numbers]]
    first, second = ([np.array([side[k] for k in numbers]) for side in sides]
                     for sides in both[place])
    yield place, [[np.where(swap, b, a) for a, b in zip(first, second, strict=True)],
                  [np.where(swap, a, b) for a, b in zip(first, second, strict=True)]], counts


def _deal(both: _Both, permutations: int, rng: np.random.Generator) -> _Sides:
  """Deals the ratings of a value to the two models anew."""
  dealt: dict[tuple, list[np.ndarray]] = {}
  for place, ratings in both.items():
    counts = {'n': [[len(side) for side in sides] for sides in ratings], 'lost': [[0, 0]] * 2}
    if not all(itertools.chain(*ratings)):
      yield place, None, counts
      continue
    cells = [(place[0], value) for value in place[1]]
    for cell, sides in zip(cells, zip(*ratings, strict=True), strict=True):
      if cell not in dealt:
        pool = np.array([rating for side in sides for rating in side.values()])
        rows = np.concatenate([pool[None], rng.permuted(np.tile(pool, (permutations, 1)), axis=1)])
        dealt[cell] = np.split(rows, [len(sides[0])], axis=1)
    yield place, [[dealt[cell][i] for cell in cells] for i in range(2)], counts


def _distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Wasserstein-1 distance of each row of `[R, n]` and `[R, k]`: `[R]`."""
  if x.shape == y.shape:
    return np.abs(np.sort(x, axis=1) - np.sort(y, axis=1)).mean(axis=1)
  return np.array([wasserstein_1(a, b) for a, b in zip(x, y, strict=True)])
