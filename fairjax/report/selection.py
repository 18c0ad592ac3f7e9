"""Model selection: the fairest model that still writes about the value it was given (H-35).

The paper chooses lambda by hand from its Tables 1, 5 and 6. Here the rule is stated: a model whose
relevance fell below a share of the baseline's is refused, however fair it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.errors import UserError, unknown_name
from fairjax.measure.estimates import estimate_words
from fairjax.report.blocks import Block
from fairjax.report.comparison import (
  RELEVANCE_SHARE,
  ModelRow,
  baseline_of,
  changes,
  erased,
  relevance_measure,
  scorer_names,
)
from fairjax.report.markdown import Table, number, percent_change

RELEVANCE = ('semantic_similarity', 'semantic_similarity_c')
MEASURES = (*RELEVANCE, 'distinct_word_divergence', 'next_token_divergence')
FAIRNESS = ('individual_fairness', 'group_fairness')
LABELS = {'semantic_similarity': 'S.S.', 'semantic_similarity_c': 'S.S.c',
          'distinct_word_divergence': 'words less chance', 'next_token_divergence': 'KL',
          'individual_fairness': 'I.F.', 'group_fairness': 'G.F.'}


def select_model(
  rows: Sequence[ModelRow], *, share: float = RELEVANCE_SHARE,
  relevance: Sequence[str] = RELEVANCE, fairness: str = 'individual_fairness',
  scorers: Sequence[str] | None = None, most_perplexity: float | None = None,
) -> dict[str, Any]:
  """The fairest debiased model that keeps its relevance.

  A model's fairness is its I.F. (or G.F.) over the baseline's, averaged over scorers. It is refused
  where one of the relevance measures that were made is below `share` of the baseline's, where what
  it writes no longer depends on the value (`comparison.erased`), where it is not fairer than the
  baseline, or where its perplexity rose too much. A measure of which the
  baseline has 0 judges nothing, and that is said.

  Args:
    rows: a baseline, and models with a fairness weight; others (controls) are no candidates.
    share: in (0, 1], of the baseline's relevance.
    relevance: of `MEASURES`; those that were not made for the baseline are named in `notes`.
    fairness: of `FAIRNESS`.
    scorers: names; None takes all.
    most_perplexity: largest rise of the word perplexity in percent; None: no limit.

  Returns:
    JSON-able: `best` (name or None), `share`, `relevance`, `fairness`, `scorers`, `notes`, and
    `candidates`, fairest first: `name`, `method`, `weight`, `relative_fairness`,
    `perplexity_change` (percent), `relevance` (measure -> `value`, `baseline`, `kept`: the share
    of the baseline's), `refused` (reasons; empty: accepted).

  Raises:
    UserError: no baseline, no candidate, an unknown measure or scorer, no measure of relevance to
      judge by, or a share outside (0, 1].
  """
  for name in relevance:
    if name not in MEASURES:
      raise unknown_name('measure of relevance', name, MEASURES)
  if fairness not in FAIRNESS:
    raise unknown_name('measure of fairness', fairness, FAIRNESS)
  if not 0 < share <= 1:
    raise UserError(f'share of the baseline\'s relevance: {share} is not in (0, 1]')
  baseline = baseline_of(rows)
  if baseline is None or baseline.measures is None:
    raise UserError('model selection needs a measured baseline')
  models = [r for r in rows if r.is_candidate and r.measures is not None]
  if not models:
    raise UserError('model selection needs models with a fairness weight that were measured')
  known = scorer_names([baseline])
  for name in scorers or ():
    if name not in known:
      raise unknown_name('scorer', name, known)
  scorers = list(scorers or known)
  notes = [f'{row.name}: not measured, no candidate' for row in rows
           if row.is_candidate and row.measures is None]
  judged = _judged(baseline, relevance, notes)
  own = {s: baseline.estimate(s, fairness) for s in scorers}
  notes += [f"scorer {s}: the baseline's {LABELS[fairness]} is {estimate_words(e)}: there is "
            'nothing to reduce' for s, e in own.items() if e['within_floor']]
  found = [_candidate(row, baseline, judged, fairness=fairness, scorers=scorers, share=share,
                      most_perplexity=most_perplexity) for row in models]
  found.sort(key=lambda c: (
    c['relative_fairness'] is None, c['relative_fairness'] or 0.0, c['weight']))
  best = next((c['name'] for c in found if not c['refused']), None)
  return {'best': best, 'share': share, 'relevance': list(judged), 'fairness': fairness,
          'scorers': scorers, 'most_perplexity': most_perplexity, 'notes': notes,
          'candidates': found}


def selection_section(selection: Mapping[str, Any]) -> str:
  """The selection as Markdown: the rule, the candidates with the reasons, the best."""
  return '\n\n'.join(selection_block(selection).markdown()[1:])


def selection_block(selection: Mapping[str, Any]) -> Block:
  """The same for every form of the report."""
  judged, label = selection['relevance'], LABELS[selection['fairness']]
  header = ['model', f"{label} / baseline's", *(f'{LABELS[m]} kept' for m in judged),
            'PPL change', 'refused because']
  body = []
  for c in selection['candidates']:
    cells = [c['name'], number(c['relative_fairness'], 3)]
    cells += [f"{100 * c['relevance'][m]['kept']:.0f}%" if m in c['relevance'] else '\u2013'
              for m in judged]
    body.append([*cells, percent_change(c['perplexity_change']),
                 '; '.join(c['refused']) or '\u2013'])
  rule = (f"The fairest model ({label}, mean over scorers {', '.join(selection['scorers'])}) that "
          f"keeps at least {100 * selection['share']:.0f}% of the baseline's "
          f"{' and '.join(LABELS[m] for m in judged)}")
  if selection['most_perplexity'] is not None:
    rule += f", with a word perplexity at most {selection['most_perplexity']:g}% higher"
  return Block('Model selection', [('', Table(header, body))],
               f"{rule}: {selection['best'] or 'none'}.", selection['notes'])


def _judged(baseline: ModelRow, relevance: Sequence[str], notes: list[str]) -> list[str]:
  """Measures of relevance that can be compared; the others get a note."""
  judged = []
  for name in relevance:
    found = relevance_measure(baseline, name)
    if found is None:
      notes.append(f'{LABELS[name]} was not measured and judges nothing')
    elif found['value'] <= 0:
      notes.append(f'{LABELS[name]} of the baseline is 0 and judges nothing')
    else:
      judged.append(name)
  if not judged:
    raise UserError('model selection has no measure of relevance to judge by: '
                    f"{'; '.join(notes)}. Measure S.S. with an encoder, or name another of "
                    f"{', '.join(MEASURES)}")
  return judged


def _candidate(
  row: ModelRow, baseline: ModelRow, judged: Sequence[str], *, fairness: str,
  scorers: Sequence[str], share: float, most_perplexity: float | None,
) -> dict[str, Any]:
  """One model with the reasons against it."""
  refused, kept, ratios = [], {}, []
  for scorer in scorers:
    ours, theirs = row.estimate(scorer, fairness), baseline.estimate(scorer, fairness)
    if ours is None or not theirs['value']:
      refused.append(f'no {LABELS[fairness]} of scorer {scorer} to compare')
    else:
      ratios.append(ours['value'] / theirs['value'])
  relative = sum(ratios) / len(ratios) if ratios else None
  if relative is not None and relative >= 1:
    refused.append('not fairer than the baseline')
  for name in judged:
    ours, theirs = relevance_measure(row, name), relevance_measure(baseline, name)
    if ours is None:
      refused.append(f'{LABELS[name]} was not measured')
      continue
    ratio = ours['value'] / theirs['value']
    kept[name] = {'value': ours['value'], 'baseline': theirs['value'], 'kept': ratio}
    if ratio < share:
      sure = ours['high'] < share * theirs['low']
      refused.append(f"{LABELS[name]} fell to {100 * ratio:.0f}% of the baseline's"
                     + ('' if sure else ' (not sure at this n)'))
  refused += erased(row, baseline, share)
  change = changes(row, baseline)['perplexity']
  if most_perplexity is not None and (change is None or change > most_perplexity):
    refused.append('perplexity was not measured' if change is None else
                   f'perplexity rose by {change:.1f}%')
  return {'name': row.name, 'method': row.method, 'weight': row.weight,
          'relative_fairness': relative, 'perplexity_change': change, 'relevance': kept,
          'refused': refused}
