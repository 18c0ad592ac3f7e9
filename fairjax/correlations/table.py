"""The metrics of several models as one table, shaped as Tables 2 to 5 of Webster et al. 2020."""

from collections.abc import Mapping
from typing import Any

from fairjax.correlations.trends import mean_sd_words

_SLOPE = 'slope_she_minus_he'


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
  """Markdown in the shape of the paper's Tables 2 to 5: metrics by model, controls beside them.

  Args:
    found: model -> metric -> result.

  >>> print(table({'m': {'recorded': {
  ...   'r': {'value': 0.5, 'low': 0.28, 'high': 0.67, 'n': 60},
  ...   'r_she_minus_he': {'value': 0.1, 'low': -0.16, 'high': 0.34, 'n': 60},
  ...   'slope_she_minus_he': {'value': 0.02, 'low': -0.03, 'high': 0.07, 'n': 60},
  ...   'accuracy': {'value': 0.7, 'n': 720}, 'f1': {'value': 0.68, 'n': 720}}}}))
  |  | m |
  | :-- | --: |
  | **Correlations** (nearer to 0 is better) | |
  | Coref, recorded scores (r) | 0.50 (0.28, 0.67) |
  | Coref, recorded scores, she less he (r) | 0.10 (-0.16, 0.34) |
  | Coref, recorded scores, she less he (slope) | 0.02 (-0.03, 0.07) |
  | **Accuracy** (higher is better) | |
  | Coref, recorded scores | 0.70 |
  | Coref, recorded scores (F1) | 0.68 |
  <BLANKLINE>
  In brackets 95 % intervals (Fisher's z of r, Student's t of slopes, Wilson's of shares), after ±
  the deviation over restarts.
  An occupation that is taken for any pronoun more often moves r too; "she less he" takes that away.
  <BLANKLINE>
  """
  lines = [f"|  | {' | '.join(found)} |", '| :-- |' + ' --: |' * len(found)]
  lists = dict.fromkeys(m for of in found.values() for m in of if m.startswith('disco_'))
  disco = [row for metric in lists for row in _disco_rows(metric, found)]
  for title, rows in (('**Correlations** (nearer to 0 is better)', (*_CORRELATIONS, *disco)),
                      ('**Accuracy** (higher is better)', _ACCURACIES)):
    body = []
    for label, metric, cell in rows:
      if any(metric in of for of in found.values()):
        body.append(f'| {label} | ' + ' | '.join(
          cell(of[metric]) if metric in of else '-' for of in found.values()) + ' |')
    if body:
      lines += [f'| {title} |' + ' |' * len(found), *body]
  notes = ["In brackets 95 % intervals (Fisher's z of r, Student's t of slopes, Wilson's of "
           'shares), after ±\nthe deviation over restarts.']
  if any(m in of for of in found.values() for m in ('winogender', 'coref', 'recorded')):
    notes.append('An occupation that is taken for any pronoun more often moves r too; "she less '
                 'he" takes that away.')
  if any('coref' in of for of in found.values()):
    notes.append("The probe reads the mean of a mention's states, with equal weights for its "
                 'tokens; Tenney et al. 2019\nlearn these weights.')
  if any(metric.startswith('disco') for of in found.values() for metric in of):
    notes.append('DisCo: fills that differ significantly per template; after "random" the mean of '
                 'the same count with randomly assigned groups.')
  notes += [f"{title}: {model} read only the beginning of {of[metric]['truncated']:,} texts."
            for metric, title in (('stsb', 'STS-B'), ('bios', 'Bios'))
            for model, of in found.items() if of.get(metric, {}).get('truncated')]
  return '\n'.join([*lines, '', *notes, ''])


def _estimate(key: str):
  def cell(of):
    found = of[key]
    words = mean_sd_words(found) if 'mean' in found else (
      'undefined' if found['value'] is None else f"{found['value']:.2f}")
    if found.get('low') is not None:
      words += f" ({found['low']:.2f}, {found['high']:.2f})"
    return words
  return cell


def _disco_rows(metric: str, found: Mapping[str, Mapping[str, Any]]):
  """Rows of one list of persons: all templates, and those that end with the blank."""
  title = next(of[metric]['title'] for of in found.values() if metric in of)
  return ((f'DisCo ({title})', metric, _disco('score', 'control')),
          (f'DisCo ({title}), blank last', metric, _disco('score_endings', 'control_endings')))


def _disco(score: str, control: str):
  def cell(of):
    if of[score] is None:
      return '-'
    return f"{of[score]:.1f} (random {of[control]['mean']:.1f})"
  return cell


_CORRELATIONS = (
  ('Coref, what the model says next (r)', 'winogender', _estimate('r')),
  ('Coref, what the model says next, she less he (r)', 'winogender', _estimate('r_she_minus_he')),
  ('Coref, what the model says next, she less he (slope)', 'winogender', _estimate(_SLOPE)),
  ('Coref, P(she) for the occupation (r)', 'winogender', _estimate('r_pronoun')),
  ('Coref, P(she) for the occupation (slope)', 'winogender', _estimate('slope_pronoun')),
  ('Coref, probe (r)', 'coref', _estimate('r')),
  ('Coref, probe, she less he (r)', 'coref', _estimate('r_she_minus_he')),
  ('Coref, probe, she less he (slope)', 'coref', _estimate(_SLOPE)),
  ('Coref, recorded scores (r)', 'recorded', _estimate('r')),
  ('Coref, recorded scores, she less he (r)', 'recorded', _estimate('r_she_minus_he')),
  ('Coref, recorded scores, she less he (slope)', 'recorded', _estimate(_SLOPE)),
  ('STS-B (r)', 'stsb', _estimate('r')),
  ('Bios (slope)', 'bios', _estimate('slope')),
)
_ACCURACIES = (
  ('Coref, what the model says next', 'winogender', _estimate('accuracy')),
  ('Coref, what the model says next (F1)', 'winogender', _estimate('f1')),
  ('Coref, probe', 'coref', _estimate('accuracy')),
  ('Coref, probe (F1)', 'coref', _estimate('f1')),
  ('Coref, probe on its own pairs (F1)', 'coref', _estimate('pair_f1')),
  ('Coref, recorded scores', 'recorded', _estimate('accuracy')),
  ('Coref, recorded scores (F1)', 'recorded', _estimate('f1')),
  ('STS-B (Pearson)', 'stsb', _estimate('dev_pearson')),
  ('Bios', 'bios', _estimate('accuracy')),
)
