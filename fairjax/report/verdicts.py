"""What the numbers say, in sentences for people who do not read tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.measure.estimates import estimate_words
from fairjax.report.comparison import ModelRow, baseline_of, changes, scorer_names

TONES = ('above', 'within', 'unmeasured')


def verdicts(rows: Sequence[ModelRow], scorer: str, attribute: str) -> list[dict[str, Any]]:
  """What one scorer says about every model.

  Returns:
    One mapping a row: `model`, `tone` ('above': its I.F. exceeds the noise; 'within';
    'unmeasured') and `sentences`, plain text.
  """
  baseline = baseline_of(rows)
  return [_verdict(row, scorer, attribute, baseline) for row in rows]


def headline(rows: Sequence[ModelRow], scorer: str, attribute: str) -> str | None:
  """One sentence over all models, None when the scorer measured none of them."""
  found = [(row.name, row.estimate(scorer, 'individual_fairness')) for row in rows]
  measured = [(name, estimate) for name, estimate in found if estimate is not None]
  if not measured:
    return None
  above = [name for name, estimate in measured if not estimate['within_floor']]
  if not above:
    what = 'the model' if len(measured) == 1 else f'any of the {len(measured)} models'
    return (f'By scorer {scorer}, no sentiment bias between values of "{attribute}" was detected '
            f'in {what}: every I.F. is within noise at {_sizes(measured)}.')
  if len(measured) == 1:
    return (f'By scorer {scorer}, what {measured[0][0]} writes differs in sentiment between values '
            f'of "{attribute}", beyond noise at {_sizes(measured)}.')
  which = ('in all' if len(above) == len(measured) else f'in {len(above)} of') + (
    f' {len(measured)} models')
  return (f'By scorer {scorer}, sentiment differs between values of "{attribute}" beyond noise '
          f'{which}, at {_sizes(measured)}.')


def _verdict(
  row: ModelRow, scorer: str, attribute: str, baseline: ModelRow | None
) -> dict[str, Any]:
  """What one scorer says about one model."""
  estimate = row.estimate(scorer, 'individual_fairness')
  if estimate is None:
    return {'model': row.name, 'tone': 'unmeasured',
            'sentences': ['Its generations were not measured by this scorer.']}
  sentences = _against_noise(estimate, row.estimate(scorer, 'group_fairness'))
  if estimate['within_floor']:
    sentences.append('No difference was detected; that does not show that there is none. More '
                     'samples lower the noise.')
  if baseline is not None and row is not baseline:
    sentences += _against_baseline(row, baseline, scorer)
  return {'model': row.name, 'tone': 'within' if estimate['within_floor'] else 'above',
          'sentences': sentences}


def _against_noise(individual: Mapping[str, Any], group: Mapping[str, Any]) -> list[str]:
  """Both estimates with floor and verdict, and how many samples these rest on."""
  n = _range(individual['n_min'], individual['n_max'])
  found = [f"{name} {estimate_words(e)}, p = {e['p_value']:.3f}"
           for name, e in (('I.F.', individual), ('G.F.', group))]
  return [f"At n = {n}: {'; '.join(found)}."]


def _against_baseline(row: ModelRow, baseline: ModelRow, scorer: str) -> list[str]:
  """The change against the baseline, less the noise of each, with its cost."""
  before = baseline.estimate(scorer, 'individual_fairness')
  after = row.estimate(scorer, 'individual_fairness')
  if before is None:
    return []
  if before['within_floor'] and after['within_floor']:
    lines = ["The baseline's I.F. is within noise too: no effect can be shown."]
  elif not before['corrected']:
    lines = [f"The baseline's I.F. is {estimate_words(before)}."]
  else:
    change = 100 * (after['corrected'] / before['corrected'] - 1)
    lines = [f"After removing what is expected by chance, I.F. is {abs(change):.0f} % "
             f"{'below' if change < 0 else 'above'} the baseline ({after['corrected']:.4f} vs "
             f"{before['corrected']:.4f})."]
  cost, found = changes(row, baseline), []
  for field, words in (('perplexity', 'perplexity'), ('subset_perplexity', 'PPL_s')):
    if cost[field] is not None:
      found.append(f'{words} {_signed(cost[field])} %')
  if cost['semantic_similarity_c'] is not None:
    found.append(f"mentions of the value {_signed(cost['semantic_similarity_c'])} points")
  return lines + ([f"Its cost: {', '.join(found)}."] if found else [])


def verdict_lines(rows: Sequence[ModelRow], attribute: str) -> list[str]:
  """The headline of every scorer, plain text."""
  found = [headline(rows, scorer, attribute) for scorer in scorer_names(rows)]
  return [line for line in found if line]


def _signed(value: float) -> str:
  """A change with one digit; one that rounds to nothing has no sign."""
  text = f'{value:+.1f}'
  return '0.0' if text in ('+0.0', '-0.0') else text


def _sizes(measured: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
  """The samples per prefix of several estimates."""
  return 'n = ' + _range(min(e['n_min'] for _, e in measured), max(e['n_max'] for _, e in measured))


def _range(low: int, high: int) -> str:
  """Two counts as text."""
  return f'{low:,}' if low == high else f'{low:,}\u2013{high:,}'
