"""Mitigations side by side: what each does to sentiment, to gendered correlations and to quality.

One row a model; beside every number the noise that a reader must know: n, an interval, or what the
number would be if nothing were there (its floor, or its control).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.measure.estimates import format_estimate
from fairjax.report.comparison import ModelRow, scorer_names
from fairjax.report.differences import FAIRNESS
from fairjax.report.document import Table

_COLUMNS = FAIRNESS | {
  'disco_names': 'DisCo Names', 'disco_terms': 'DisCo Terms', 'winogender': 'WinoGender r',
  'winogender_difference': 'she less he, r', 'perplexity': 'PPL', 'semantic_similarity_c': 'S.S.c'}
_UNITS = dict.fromkeys(FAIRNESS, 'samples of a template and value') | {
  'disco_names': 'persons', 'disco_terms': 'persons', 'winogender': 'professions',
  'winogender_difference': 'professions', 'perplexity': 'words',
  'semantic_similarity_c': 'continuations'}  # of n
_NOTES = {
  'individual_fairness': 'I.F., G.F. ± standard error (floor: the largest value expected by '
  'chance alone at this n, 95th percentile); nearer to 0 is better',
  'disco_names': 'DisCo: fills per template that differ significantly between the genders (mean of '
  'random groups); nearer to 0 is better',
  'winogender': "WinoGender: r of P(profession | she) with the share of women, what the model says "
  'next, and of P(profession | she) - P(profession | he) (95 % intervals over professions); nearer '
  'to 0 is better, a negative one is over-corrected. r is blind to size: a small rest may keep its '
  'order',
  'perplexity': 'PPL: word perplexity of the test split, which has the correlations: a model '
  'without them cannot reach that of the baseline',
  'semantic_similarity_c': 'S.S.c (H-28): share of continuations that mention the value of their '
  'prefix (95 % interval); higher is more relevant'}


def compare_mitigations(
  rows: Sequence[ModelRow], correlations: Mapping[str, Mapping[str, Any]], *,
  absent: Mapping[str, str] | None = None,
) -> dict[str, Any]:
  """Each model's value of each column with n and what belongs to it, as JSON types."""
  # `correlations` are by model and metric; the first scorer counts; `absent` says why a metric was
  # not measured.
  scorer = next(iter(scorer_names(rows)), '')
  return {'scorer': scorer, 'absent': dict(absent or {}), 'models': [
    {'name': row.name, 'method': row.method, 'weight': row.weight,
     **_measured(row, scorer), **_correlated(correlations.get(row.name, {}))} for row in rows]}


def _measured(row: ModelRow, scorer: str) -> dict[str, Any]:
  found: dict[str, Any] = {}
  for name in FAIRNESS:
    estimate = row.estimate(scorer, name)
    found[name] = None if estimate is None else {
      k: estimate[k] for k in ('value', 'std_error', 'null_mean', 'null_p95', 'within_floor')} | {
      'n': row.measures['n']['min']}
  found['perplexity'] = None if row.perplexity is None else {
    'value': row.perplexity['word'], 'n': row.perplexity['words']}
  return found | {'semantic_similarity_c': dict(row.relevance())}


def _correlated(metrics: Mapping[str, Any]) -> dict[str, Any]:
  found: dict[str, Any] = {}
  for name in ('disco_names', 'disco_terms'):
    disco = metrics.get(name)
    found[name] = None if disco is None else {
      'value': disco['score'], 'n': sum(disco['n'].values()),
      'control': disco['control']['mean'], 'control_max': disco['control']['max']}
  winogender = metrics.get('winogender')
  for name, key in (('winogender', 'r'), ('winogender_difference', 'r_she_minus_he')):
    found[name] = None if winogender is None else {
      **{k: winogender[key][k] for k in ('value', 'low', 'high', 'n')},
      'accuracy': winogender['accuracy']['value']}
  return found


def _cell(column: str, value: Mapping[str, Any] | None) -> str:
  if value is None or value['value'] is None:
    return '\u2013'
  if column in FAIRNESS:
    return format_estimate(value, digits=3, error=True, named=False)
  if column.startswith('disco'):
    return f"{value['value']:.2f} ({value['control']:.2f})"
  if column.startswith('winogender') and value['low'] is None:
    return f"{value['value']:.2f}"
  if column.startswith('winogender'):
    return f"{value['value']:.2f} ({value['low']:.2f}, {value['high']:.2f})"
  if column == 'perplexity':
    return f"{value['value']:.2f}"
  low, high = 100 * value['low'], 100 * value['high']
  return f"{100 * value['value']:.1f}% ({low:.1f}, {high:.1f})"


def mitigations_markdown(found: Mapping[str, Any]) -> str:
  """The table with n and what its numbers mean."""
  columns = [c for c in _COLUMNS if any(m[c] is not None for m in found['models'])]
  header = [_COLUMNS[c] + (' (floor)' if c.endswith('fairness') else '') for c in columns]
  lines = [Table(['model', *header], [
    [m['name'], *(_cell(c, m[c]) for c in columns)] for m in found['models']]).markdown(), '']
  for column, label in _COLUMNS.items():
    values = [m[column] for m in found['models'] if m[column] is not None]
    numbers = sorted({v['n'] for v in values})
    if values:
      n = f'{numbers[0]:,}' + (f' to {numbers[-1]:,}' if len(numbers) > 1 else '')
      lines.append(f'- {label}: n = {n} {_UNITS[column]}')
    elif column in found['absent']:
      lines.append(f"- {label}: not measured: {found['absent'][column]}")
  lines += [f'- {note}' for column, note in _NOTES.items()
            if any(m[column] is not None for m in found['models'])]
  lines.append(f"- Scorer of I.F. and G.F.: {found['scorer']}. One training seed: differences "
               'between models that other seeds would give are not in these intervals.')
  return '\n'.join(lines) + '\n'
