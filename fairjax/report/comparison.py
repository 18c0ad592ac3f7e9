"""Models of a report: their rows, changes against the baseline, and what a reader must be told."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

WITHIN = 'within the floor'
ABOVE = 'above the floor'


@dataclasses.dataclass(frozen=True)
class ModelRow:
  """One model of the report.

  Attributes:
    name: as shown.
    method: 'baseline', 'extended_baseline', 'embedding', 'sentiment' or another word.
    weight: fairness weight lambda; None for models without one.
    perplexity: `Perplexity.to_dict()` of the test set (PPL); None when not measured.
    subset_perplexity: the same for the documents with a sensitive token (PPL_s).
    measures: result of `measure_records`; None when not measured.
  """

  name: str
  method: str
  weight: float | None = None
  perplexity: Mapping[str, Any] | None = None
  subset_perplexity: Mapping[str, Any] | None = None
  measures: Mapping[str, Any] | None = None

  def scorer(self, scorer: str) -> Mapping[str, Any] | None:
    """Measures under one scorer, None when there are none."""
    return None if self.measures is None else self.measures['scorers'].get(scorer)

  def estimate(self, scorer: str, measure: str) -> Mapping[str, Any] | None:
    """An estimate, e.g. `estimate('vader', 'individual_fairness')`, None when there is none."""
    measures = self.scorer(scorer)
    return None if measures is None else measures.get(measure)

  def relevance(self, kind: str = 'conditioned') -> Mapping[str, Any] | None:
    """S.S.c (H-28): `conditioned` or `any_value`."""
    return None if self.measures is None else self.measures['semantic_similarity_c'][kind]


@dataclasses.dataclass(frozen=True)
class KnownBias:
  """A corpus whose bias is known, and what was measured on prefixes of its grammar.

  Attributes:
    individual_fairness: of the corpus, in closed form.
    group_fairness: of the corpus, in closed form.
    scorer: name of the scorer for which the closed form holds.
    measures: model name -> result of `measure_records` on held-out prefixes of the grammar.
  """

  individual_fairness: float
  group_fairness: float
  scorer: str
  measures: Mapping[str, Mapping[str, Any]]


def scorer_names(rows: Sequence[ModelRow]) -> list[str]:
  """Names of all scorers, in the order of first appearance."""
  return list(dict.fromkeys(s for r in rows if r.measures for s in r.measures['scorers']))


def baseline_of(rows: Sequence[ModelRow]) -> ModelRow | None:
  """The row with method 'baseline', None without one.

  Raises:
    ValueError: there are several.
  """
  found = [row for row in rows if row.method == 'baseline']
  if len(found) > 1:
    raise ValueError(f"several baselines: {', '.join(row.name for row in found)}")
  return found[0] if found else None


def verdict(estimate: Mapping[str, Any]) -> str:
  """'within the floor' unless the value exceeds the 95th percentile of its null."""
  return WITHIN if estimate['within_floor'] else ABOVE


def changes(row: ModelRow, baseline: ModelRow) -> dict[str, Any]:
  """Changes of a model against the baseline.

  Returns:
    Percent changes `perplexity`, `subset_perplexity` (word perplexity) and, by scorer,
    `individual_fairness` and `group_fairness`; `semantic_similarity_c` in percentage points. None
    where one side is missing or the baseline's value is 0.
  """
  def ppl(field):
    pair = getattr(row, field), getattr(baseline, field)
    return None if None in pair else _percent(pair[0]['word'], pair[1]['word'])

  result = {field: ppl(field) for field in ('perplexity', 'subset_perplexity')}
  shares = row.relevance(), baseline.relevance()
  result['semantic_similarity_c'] = (
    None if None in shares else 100 * (shares[0]['value'] - shares[1]['value']))
  for measure in ('individual_fairness', 'group_fairness'):
    result[measure] = {}
    for scorer in scorer_names([row, baseline]):
      pair = row.estimate(scorer, measure), baseline.estimate(scorer, measure)
      result[measure][scorer] = (
        None if None in pair else _percent(pair[0]['value'], pair[1]['value']))
  return result


def warnings(rows: Sequence[ModelRow]) -> list[str]:
  """Sentences about what limits these numbers, most important first; plain text."""
  lines = []
  scorers = scorer_names(rows)
  if len(scorers) == 1:
    lines.append(f'Only one scorer ({scorers[0]}) was used. Scorers have biases of their own: a '
                 'second one is needed before a difference is put down to the language model.')
  baseline = baseline_of(rows)
  if baseline is None:
    lines.append('There is no baseline row: nothing can be said about the effect of a method.')
  for row in rows:
    if row.measures is None:
      lines.append(f'{row.name}: generations were not measured.')
      continue
    lines += _coverage_warnings(row)
    shares = row.relevance(), baseline.relevance() if baseline else None
    if None not in shares and shares[0]['high'] < 0.5 * shares[1]['low']:
      lines.append(
        f'{row.name} mentions the value in {100 * shares[0]["value"]:.1f}% of its continuations, '
        f'the baseline in {100 * shares[1]["value"]:.1f}%: part of its lower bias may come from '
        'ignoring the value (H-35).')
  return list(dict.fromkeys(lines))


def _coverage_warnings(row: ModelRow) -> list[str]:
  """What one model's records lack, and words that move a scorer by themselves."""
  lines, measures = [], row.measures
  missing = measures['templates_not_in_records']
  if missing:
    lines.append(f"{row.name}: {len(missing)} of the attribute's templates have no records, the "
                 'figures are over the others.')
  if not measures['coupled']:
    lines.append(f'{row.name}: samples are not paired by number; the null floor is that of '
                 'independent samples, which is too high if the samples shared their noise.')
  if measures['empty_continuations']:
    lines.append(f"{row.name}: {measures['empty_continuations']} of {measures['records']} "
                 'continuations are empty; they score neutral.')
  for name, scorer in measures['scorers'].items():
    words = ', '.join(f"{w['word']} ({w['valence']:+g})" for w in scorer['sensitive_lexicon_words'])
    if words:
      lines.append(f'Sensitive words in the lexicon of scorer {name}: {words}. A continuation that '
                   'repeats one scores differently for the word alone (H-16).')
    if scorer.get('truncated_texts'):
      lines.append(f"{row.name}: scorer {name} read only the beginning of "
                   f"{scorer['truncated_texts']} of {measures['records']} texts, which are longer "
                   'than its model.')
  return lines


def _percent(value: float | None, base: float | None) -> float | None:
  """Change in percent."""
  return None if value is None or not base else 100 * (value / base - 1)
