"""The report's section about people's labels, from what `fairjax human import` wrote."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from fairjax.errors import UserError
from fairjax.measure.estimates import estimate_words
from fairjax.measure.human_measures import KIND, SCHEMA
from fairjax.report.blocks import Block
from fairjax.report.markdown import Table, number

_KAPPA = {'nominal': "Cohen's kappa", 'nominal_without_mixed': "Cohen's kappa without mixed",
          'linear': "Cohen's kappa, linear weights"}

HUMAN_LEGEND = """\
Kappa pools all pairs of annotators (0: agreement by chance, 1: always equal); intervals are 95 %
bootstrap percentiles over items. Human I.F. is the Wasserstein-1 distance of mean human scores of
two prefixes (H-40); its floor is the largest value expected by chance alone, the 95th percentile
under exchanged values: within noise means that no difference was detected."""


def read_human(path: str | os.PathLike) -> dict[str, Any] | None:
  """The file of `fairjax human import`, None where there is none.

  Raises:
    UserError: it is something else, or of another schema.
  """
  path = pathlib.Path(path)
  if not path.exists():
    return None
  try:
    found = json.loads(path.read_text(encoding='utf-8'))
  except (OSError, ValueError) as e:
    raise UserError(f'{path}: not JSON ({e}): write it with fairjax human import') from None
  if not isinstance(found, dict) or (found.get('kind'), found.get('schema')) != (KIND, SCHEMA):
    raise UserError(f'{path}: not what this version of fairjax human import writes: import again, '
                    'or move the file away')
  return found


def human_section(human: Mapping[str, Any]) -> str:
  """Counts, agreement, correlations and human I.F. as Markdown.

  Args:
    human: see `read_human`.
  """
  return '\n\n'.join(human_block(human).markdown()[1:])


def human_block(human: Mapping[str, Any]) -> Block:
  """The same for every form of the report."""
  return Block('Human evaluation', _tables(human), ' '.join(HUMAN_LEGEND.split()), _lines(human))


def _lines(human: Mapping[str, Any]) -> list[str]:
  """Counts of labels and of what was dropped, plain text."""
  lines = []
  for name, task in human['tasks'].items():
    dropped = ', '.join(f"{n} {why.replace('_', ' ')}" for why, n in task['items_dropped'].items())
    lines.append(
      f"{name}: {task['labels']} labels by {len(task['labels_by_annotator'])} annotators; "
      f"{task['items_used']} of {task['items']} items used (dropped: {dropped}); "
      f"{task['empty_labels']} cells empty, {task['missing_rows']} rows missing.")
    lines += [f'{scorer} read only the beginning of {n} of these texts, which are longer than its '
              'model.' for scorer, n in task.get('truncated_texts', {}).items() if n]
  if human['masked']:
    lines.append('Annotators did not see the sensitive tokens; scorers did.')
  return lines


def _tables(human: Mapping[str, Any]) -> list[tuple[str, Table]]:
  """Agreement and correlations, and human I.F. where it was measured, with titles."""
  rows, distances, differences = [], [], []
  for name, task in human['tasks'].items():
    for kind, found in task['agreement'].items():
      rows.append([name, _KAPPA[kind], *_cells(found['pooled'])])
    for score, found in task['correlations'].items():
      for statistic in ('spearman', 'pearson'):
        rows.append([name, f'{statistic.capitalize()} with {score}', *_cells(found[statistic])])
    for entry in task.get('individual_fairness', {}).get('pairs', ()):
      distances.append(_distance_row(entry))
    for entry in task.get('individual_fairness', {}).get('differences', ()):
      differences += _difference_rows(entry)
  found = [('', Table(
    ['task', 'statistic', 'value', '95 % interval', 'n'], rows, text_columns=2))]
  if distances:
    found.append(('Human I.F. (H-40)', Table(
      ['model', 'template', 'values', 'human I.F. (floor)', 'p', 'n'], distances,
      text_columns=3)))
  if differences:
    found.append(('Do two models differ in human I.F.? (the second less the first; p and limit by '
                  'exchange of the models)', Table(
                    ['models', 'template', 'values', 'difference (95 % limit)', 'p', 'n'],
                    differences, text_columns=3)))
  return found


def _difference_rows(entry: Mapping[str, Any]) -> list[list[str]]:
  """Two models: each pair of prefixes, and their mean where there are several."""
  def row(part, template, values, n):
    head = [' / '.join(entry['models']), template, values]
    if part['difference'] is None:
      return [*head, 'not measured', '\u2013', n]
    return [*head, f"{part['difference']:+.3f} ({part['null_p95']:.3f})",
            number(part['p_value'], 4), n]

  parts = entry['comparisons']
  rows = [row(p, str(p['template']), ' / '.join(p['values']),
              str(min(min(side) for side in p['n']))) for p in parts]
  several = sum(p['difference'] is not None for p in parts)
  return rows + ([row(entry, f'mean of {several}', '', '')] if several > 1 else [])


def _cells(found: Mapping[str, Any]) -> list[str]:
  """Value, interval and n of an interval's dictionary."""
  interval = '\u2013' if found['low'] is None else f"{found['low']:.2f} to {found['high']:.2f}"
  return [number(found['value'], 2), interval, str(found['n'])]


def _distance_row(entry: Mapping[str, Any]) -> list[str]:
  """One pair of prefixes of one model."""
  found = entry['estimate']
  head = [entry['model'], str(entry['template']), ' / '.join(entry['values'])]
  if found is None:
    return [*head, 'not measured', '\u2013', '0']
  n = str(found['n_min']) if found['n_min'] == found['n_max'] else (
    f"{found['n_min']}\u2013{found['n_max']}")
  return [*head, estimate_words(found, digits=3, named=False), number(found['p_value'], 4), n]
