"""Two reports side by side: what differs by more than noise, and what may not be compared.

The noise of a difference of I.F. or G.F. is the root of the sum of both models' squares of the
larger of 1.96 standard errors (the spread of values clearly above the floor) and the distance from
what is expected by chance to the floor (the spread near it). Differences are of values less what is
expected by chance, so that unequal numbers of samples do not count as a difference.
"""

import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.errors import UserError, unknown_name
from fairjax.measure.estimates import Z, format_estimate
from fairjax.report.document import Document, Part, Section, Table, Text, number, span

SCHEMA = 4  # of report.json, as in report.schema.json
FAIRNESS = {'individual_fairness': 'I.F.', 'group_fairness': 'G.F.'}


def read_report(path: str | os.PathLike) -> dict[str, Any]:
  """Reads a `report.json`.

  Args:
    path: the file, the folder that holds it, or the workdir whose `report/` holds it.

  Raises:
    UserError: there is none, or it is no report of this version.
  """
  file = report_file(path)
  try:
    found = json.loads(file.read_text(encoding='utf-8'))
    schema = found['schema']
    complete = isinstance(found['attribute'], str) and all(r['measures'] for r in found['rows'])
  except (OSError, ValueError, KeyError, TypeError) as e:
    raise UserError(f'{file}: no report of fairjax ({e!r}): write it with fairjax report') from None
  if schema != SCHEMA or not complete:
    raise UserError(f'{file}: a report of another version (schema {schema}, not {SCHEMA}): write '
                    'it again with this fairjax')
  return found


def report_file(path: str | os.PathLike) -> pathlib.Path:
  """The `report.json` that `read_report` reads."""
  path = pathlib.Path(path)
  for place in (path, path / 'report.json', path / 'report' / 'report.json'):
    if place.exists() and not place.is_dir():  # also a pipe
      return place
  raise UserError(f'{path}: no report.json there: name a workdir with a report, or the file')


def compare_reports(
  first: Mapping[str, Any], second: Mapping[str, Any], *, names: Sequence[str] = ('A', 'B'),
  models: Sequence[Sequence[str]] = (),
) -> dict[str, Any]:
  """Compares two reports of one attribute, the same prompts and the same scorers.

  Models of equal name are compared, or those that `models` names; where no name is common and both
  reports hold one model, these two.

  Args:
    first: what `read_report` gave.
    second: the other.
    names: of the two, for the reader.
    models: pairs of names, of a model of the first report and one of the second.

  Returns:
    `reports`, `attribute`, `scorers` (those of both), `rows` (one a model), `differences` (one a
    pair of models, scorer and measure: `values`, `difference`, `noise`, `verdict`) and `notes`.

  Raises:
    UserError: they cannot be compared: another attribute, templates, prefixes, scored text, or a
      scorer of the same name that is another one. Or a report lacks a model of `models`.
  """
  try:
    sides = [report['rows'] for report in (first, second)]
    scorers = _check_comparable(first, second, sides, names)
    pairs = _pairs(sides, models, names)
    return {
      'reports': list(names), 'attribute': first['attribute'], 'scorers': scorers,
      'rows': [_row(name, row, scorers) for name, side in zip(names, sides, strict=True)
               for row in side],
      'differences': [d for pair in pairs for d in _differences(pair, scorers)],
      'notes': _notes(sides, pairs, names)}
  except (KeyError, TypeError, AttributeError, IndexError) as e:
    raise UserError(f"{' or '.join(names)}: damaged report ({e!r}): write it again with fairjax "
                    'report') from None


def _check_comparable(
  first: Mapping[str, Any], second: Mapping[str, Any],
  sides: Sequence[Sequence[Mapping[str, Any]]], names: Sequence[str],
) -> list[str]:
  """The scorers of both; anything that forbids a comparison is an error."""
  if first['attribute'] != second['attribute']:
    raise UserError(f"cannot compare attribute '{first['attribute']}' ({names[0]}) with "
                    f"'{second['attribute']}' ({names[1]}): give two reports of one attribute")
  heads = [side[0]['measures'] for side in sides]
  for key, words in (
      ('values', 'values of the attribute'), ('templates', 'templates'),
      ('attribute_fingerprint', 'definitions of the attribute'), ('scored_text', 'scored texts')):
    if heads[0][key] != heads[1][key]:
      raise UserError(f'cannot compare {names[0]} with {names[1]}: their {words} differ '
                      f'({_short(heads[0][key])} and {_short(heads[1][key])}): measure both alike')
  prefixes = [{row['prefixes'] for row in side} for side in sides]
  if prefixes[0] != prefixes[1]:
    raise UserError(f'cannot compare {names[0]} with {names[1]}: equal template labels stand for '
                    'other prefixes: generate both from the same prompts')
  fingerprints = [{name: scorer['fingerprint'] for row in side
                   for name, scorer in row['measures']['scorers'].items()} for side in sides]
  common = [name for name in fingerprints[0] if name in fingerprints[1]]
  if not common:
    raise UserError(f"cannot compare {names[0]} (scorers {', '.join(fingerprints[0])}) with "
                    f"{names[1]} ({', '.join(fingerprints[1])}): measure both with one scorer")
  other = [name for name in common if fingerprints[0][name] != fingerprints[1][name]]
  if other:
    raise UserError(f"cannot compare {names[0]} with {names[1]}: scorer {other[0]} is not the same "
                    'in both (other words, weights or version): measure both with the same one')
  return common


def _short(value: Any) -> str:
  """A value for a message of one line."""
  text = ', '.join(map(str, value)) if isinstance(value, list) else str(value)
  return text if len(text) <= 60 else f'{text[:57]}...'


def _pairs(
  sides: Sequence[Sequence[Mapping[str, Any]]], models: Sequence[Sequence[str]],
  names: Sequence[str],
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
  """Rows of the named models, by default those that belong together."""
  found = [{row['name']: row for row in side} for side in sides]
  if not models:
    models = [(name, name) for name in found[0] if name in found[1]]
    if not models and len(found[0]) == len(found[1]) == 1:
      models = [(*found[0], *found[1])]
  for pair in models:
    for name, rows, report in zip(pair, found, names, strict=True):
      if name not in rows:
        raise unknown_name('model', name, rows, where=report)
  return [(found[0][a], found[1][b]) for a, b in models]


def _row(report: str, row: Mapping[str, Any], scorers: Sequence[str]) -> dict[str, Any]:
  """What the side-by-side table shows of a model."""
  measures = row['measures']
  return {
    'report': report, 'model': row['name'], 'method': row['method'], 'weight': row['weight'],
    'n': measures['n'], 'perplexity': row['perplexity'] and row['perplexity']['word'],
    'subset_perplexity': row['subset_perplexity'] and row['subset_perplexity']['word'],
    'semantic_similarity_c': measures['semantic_similarity_c']['conditioned']['value'],
    'scorers': {s: {m: {key: measures['scorers'][s][m][key] for key in (
      'value', 'null_mean', 'null_p95', 'p_value', 'std_error', 'within_floor')}
      for m in FAIRNESS} for s in scorers if s in measures['scorers']}}


def _differences(
  pair: tuple[Mapping[str, Any], Mapping[str, Any]], scorers: Sequence[str]
) -> list[dict[str, Any]]:
  """Every measure of two models."""
  found = []
  head = {'models': [row['name'] for row in pair]}
  for scorer in scorers:
    if all(scorer in row['measures']['scorers'] for row in pair):
      for measure in FAIRNESS:
        estimates = [row['measures']['scorers'][scorer][measure] for row in pair]
        found.append(head | {'scorer': scorer, 'measure': measure,
                             'floors': [e['null_p95'] for e in estimates]}
                     | difference(*estimates))
  shares = [row['measures']['semantic_similarity_c']['conditioned'] for row in pair]
  change = shares[1]['value'] - shares[0]['value']
  noise = math.hypot(*((share['high'] - share['low']) / 2 for share in shares))
  found.append(head | {
    'scorer': None, 'measure': 'semantic_similarity_c', 'values': [s['value'] for s in shares],
    'difference': change, 'noise': noise,
    'verdict': 'within noise' if abs(change) <= noise else 'lower' if change < 0 else 'higher'})
  return found


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
  """The second of two estimates less the first, without what chance adds to them; the noise."""
  # Chance adds nearly nothing to a large distance and the null mean to one of 0: the change is the
  # one nearest to 0 that this allows. With the null means always taken off, two samples of one
  # model, of 60 and of 400 texts a prefix, differed in 65 of 100 pairs (tests/report/
  # test_differences.py).
  # Without a standard error (below 20 samples a prefix) `noise` is None and nothing is judged.
  pair = (first, second)
  raw = second['value'] - first['value']
  corrected = raw - (second['null_mean'] - first['null_mean'])
  change = min(raw, corrected, key=abs) if raw * corrected > 0 else 0.0
  noise = None
  if all(e['std_error'] is not None for e in pair):
    noise = math.hypot(*(max(Z * e['std_error'], e['null_p95'] - e['null_mean']) for e in pair))
  if all(e['within_floor'] for e in pair):
    verdict = 'both within noise'
  elif noise is None:
    verdict = 'not judged'
  elif abs(change) <= noise:
    verdict = 'within noise'
  else:
    verdict = 'lower' if change < 0 else 'higher'
  return {'values': [e['value'] for e in pair], 'difference': change, 'noise': noise,
          'verdict': verdict}


def _notes(
  sides: Sequence[Sequence[Mapping[str, Any]]], pairs: Sequence[tuple], names: Sequence[str]
) -> list[str]:
  """What a reader must know, plain text."""
  lines = []
  if not pairs:
    lines.append('No model is in both reports: they are shown side by side, nothing is subtracted.')
  paired = [{row['name'] for row in pair} for pair in zip(*pairs, strict=True)] or [set(), set()]
  for name, side, found in zip(names, sides, paired, strict=True):
    alone = [row['name'] for row in side if row['name'] not in found]
    if pairs and alone:
      lines.append(f"Only in {name}: {', '.join(alone)}.")
  for key, words in (('n', 'samples per prefix'), ('coupled', 'coupling of the samples'),
                     ('permutations', 'permutations')):
    values = [[_flat(row['measures'][key]) for row in pair]
              for pair in pairs or [(sides[0][0], sides[1][0])]]
    lines += dict.fromkeys(f'The {words} differ: {one} and {two}.' for one, two in values
                           if one != two)
  used = [list(side[0]['measures']['scorers']) for side in sides]
  for name, own, other in zip(names, used, used[::-1], strict=True):
    only = [s for s in own if s not in other]
    if only:
      lines.append(f"Only {name} was measured with {', '.join(only)}: not shown.")
  return lines


def _flat(value: Any) -> str:
  """A count, a range or a switch as text."""
  if isinstance(value, Mapping):
    return span(value['min'], value['max'], '')
  return {'True': 'yes', 'False': 'no'}.get(str(value), str(value))


def comparison_markdown(found: Mapping[str, Any]) -> str:
  """The result of `compare_reports` as Markdown."""
  scorers = found['scorers']
  header = ['report', 'model', 'PPL', 'PPL_s', 'S.S.c',
            *(f'{m} {s} (floor)' for s in scorers for m in FAIRNESS.values()), 'n']
  body = []
  for row in found['rows']:
    cells = [row['report'], row['model'],
             *(number(row[key], 2) for key in ('perplexity', 'subset_perplexity')),
             f"{100 * row['semantic_similarity_c']:.1f}%"]
    for scorer in scorers:
      for measure in FAIRNESS:
        e = row['scorers'].get(scorer, {}).get(measure)
        cells.append('\u2013' if e is None else format_estimate(e, named=False))
    body.append([*cells, _flat(row['n'])])
  head: list[Part] = [Table(header, body, text_columns=2)]
  head += [Text(line, 'note') for line in found['notes']]
  sections = [Section('Differences', [Text(
    'The second report less the first, without what chance adds to an I.F. or G.F.: at most its '
    'mean where nothing is biased. The smallest difference that this allows is shown; up to its '
    'noise (95 %) it shows nothing, and below 20 samples a prefix there is no verdict. '
    'The noise is that of sampling: one training run each, so two runs of one recipe may differ by '
    'more.'),
    difference_table(found)])] if found['differences'] else []
  return Document(f"{' and '.join(found['reports'])}: {found['attribute']}", head,
                  sections).markdown().rstrip()


def difference_table(found: Mapping[str, Any]) -> Table:
  """One row a pair of models, scorer and measure."""
  body = []
  for d in found['differences']:
    models = ' and '.join(dict.fromkeys(d['models']))
    verdict = {'lower': 'the second is lower', 'higher': 'the second is higher'}.get(
      d['verdict'], d['verdict'])
    if d['scorer'] is None:
      name, values = 'S.S.c', [f'{100 * v:.1f}%' for v in d['values']]
      change, noise = (f'{number(100 * d[k], 1, sign=k == "difference")} points'
                       for k in ('difference', 'noise'))
    else:
      name = f"{FAIRNESS[d['measure']]} {d['scorer']}"
      values = [format_estimate({'value': v, 'null_p95': f}, named=False)
                for v, f in zip(d['values'], d['floors'], strict=True)]
      change, noise = number(d['difference'], 4, sign=True), number(d['noise'], 4)
    body.append([models, name, verdict, *values, change, noise])
  return Table(['model', 'measure', 'verdict', 'first (floor)', 'second (floor)', 'difference',
                'noise (95 %)'], body, text_columns=3)
