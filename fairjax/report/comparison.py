"""Models of a report: their rows, changes against the baseline, and the warnings for its reader."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairjax.measure.estimates import format_estimate
from fairjax.measure.scorers.audit import count_distinct
from fairjax.report.differences import FAIRNESS, difference
from fairjax.report.document import counted, number, span

RELEVANCE_SHARE = 0.5  # least share of the baseline's relevance that a model should keep


@dataclasses.dataclass(frozen=True)
class ModelRow:
  """One model of the report."""

  name: str
  # 'baseline', 'extended_baseline', 'embedding', 'sentiment', 'random_projection' (the control of
  # 'sentiment' with the same weight) or another word
  method: str
  weight: float | None = None  # fairness weight lambda
  # `perplexities` of the test set (PPL); None of records
  perplexity: Mapping[str, Any] | None = None
  subset_perplexity: Mapping[str, Any] | None = None  # of documents with a sensitive token (PPL_s)
  measures: Mapping[str, Any] = dataclasses.field(kw_only=True)  # result of `measure_records`

  @property
  def called(self) -> str:
    """Its name in a sentence; published models are compared with their control."""
    return 'the baseline' if self.name == 'baseline' else self.name

  def scorer(self, scorer: str) -> Mapping[str, Any] | None:
    """Measures under one scorer, None when there are none."""
    return self.measures['scorers'].get(scorer)

  def estimate(self, scorer: str, measure: str) -> Mapping[str, Any] | None:
    """An estimate, e.g. `estimate('vader', 'individual_fairness')`, None when there is none."""
    measures = self.scorer(scorer)
    return None if measures is None else measures.get(measure)

  def content(self, measure: str) -> Mapping[str, Any] | None:
    """A measure of `content_measures`, e.g. 'semantic_similarity'; None when there is none."""
    return self.measures.get(measure)

  def relevance(self, kind: str = 'conditioned') -> Mapping[str, Any]:
    """S.S.c (H-28): `conditioned` or `any_value`."""
    return self.measures['semantic_similarity_c'][kind]


@dataclasses.dataclass(frozen=True)
class KnownBias:
  """A corpus whose bias is known, and what was measured on prefixes of its grammar."""

  individual_fairness: float  # of the corpus, in closed form
  group_fairness: float  # likewise
  scorer: str  # for which the closed form holds
  # model name -> result of `measure_records` on held-out prefixes of the grammar
  measures: Mapping[str, Mapping[str, Any]]


def scorer_names(rows: Sequence[ModelRow]) -> list[str]:
  """Names of all scorers, in the order of first appearance."""
  return list(dict.fromkeys(s for r in rows for s in r.measures['scorers']))


def count_scorers(rows: Sequence[ModelRow]) -> int:
  """How many scorers there are that differ in more than precision (`count_distinct`)."""
  return count_distinct(s for r in rows for s in r.measures['scorers'].values())


def baseline_of(rows: Sequence[ModelRow]) -> ModelRow | None:
  """The row with method 'baseline', None without one."""
  return next((row for row in rows if row.method == 'baseline'), None)


def changes(row: ModelRow, baseline: ModelRow) -> dict[str, Any]:
  """Changes against the baseline: percent, of S.S. and S.S.c points; None where one is missing."""
  def percent(ours, theirs, key):
    pair = [found and found[key] for found in (ours, theirs)]
    return None if pair[0] is None or not pair[1] else 100 * (pair[0] / pair[1] - 1)

  def points(ours, theirs):
    return None if None in (ours, theirs) else 100 * (ours['value'] - theirs['value'])

  return {
    'perplexity': percent(row.perplexity, baseline.perplexity, 'word'),
    'subset_perplexity': percent(row.subset_perplexity, baseline.subset_perplexity, 'word'),
    'semantic_similarity': points(*(r.content('semantic_similarity') for r in (row, baseline))),
    'semantic_similarity_c': points(row.relevance(), baseline.relevance()),
    **{measure: {
      scorer: percent(row.estimate(scorer, measure), baseline.estimate(scorer, measure), 'value')
      for scorer in scorer_names([row, baseline])} for measure in FAIRNESS}}


def labelling(config: Mapping[str, Any] | None, methods: Iterable[str]) -> dict[str, Any] | None:
  """Which scorer labelled the sentences that taught f_sh, and which others judge (H-19)."""
  if config is None or 'sentiment' not in config or 'sentiment' not in methods:
    return None

  def weights(scorer):  # what follows # is a precision or a name of classes
    return scorer.partition('#')[0]

  by = config['sentiment']['scorer']
  return {'labelled_by': by, 'judged_by_others': [
    s for s in config['measure']['scorers'] if weights(s) != weights(by)]}


def labelling_warning(found: Mapping[str, Any] | None) -> str | None:
  """What to say where only the scorer that labelled judges; None where another one does too."""
  if found is None or found['judged_by_others']:
    return None
  return (f"Only scorer {found['labelled_by']} judges, and it labelled the sentences from which "
          'f_sh learned. The sentiment models were trained towards this very scorer, so '
          'their lower I.F. may be its own: add one to measure.scorers that did not label.')


def warnings(rows: Sequence[ModelRow]) -> list[str]:
  """Sentences about what limits these numbers, most important first."""
  lines = []
  scorers = scorer_names(rows)
  if count_scorers(rows) == 1:
    names = scorers[0] if len(scorers) == 1 else f"{', '.join(scorers)}: all have the same weights"
    lines.append(f'Only one scorer ({names}) was used. Scorers have biases of their own: a '
                 'second one is needed before a difference is put down to the language model.')
  baseline = baseline_of(rows)
  if baseline is None and len(rows) > 1:
    lines.append('There is no baseline row: nothing can be said about the effect of a method.')
  if len({(row.measures['n']['min'], row.measures['n']['max']) for row in rows}) > 1:
    lines.append('The models differ in the number of samples of a prefix (n). Chance adds more to '
                 'an I.F. or G.F. of fewer samples: compare them less what is expected by chance.')
  for row in rows:
    lines += _coverage_warnings(row)
    if baseline is not None and row is not baseline:
      lines += _erasure_warnings(row, baseline)
  return list(dict.fromkeys(lines + _input_notes(rows)))


def _input_notes(rows: Sequence[ModelRow]) -> list[str]:
  """What the measures note about their input; equal notes of several models are one line."""
  found: dict[str, list[str]] = {}
  for row in rows:
    for note in row.measures['notes']:
      found.setdefault(note, []).append(row.name)
  return [('every model' if 1 < len(names) == len(rows) else ', '.join(names)) + f': {note}.'
          for note, names in found.items()]


def _erasure_warnings(row: ModelRow, baseline: ModelRow) -> list[str]:
  """What says that a model became fair by ignoring the value (H-35)."""
  # Shares are compared by their 95% intervals, so that no line comes from few samples alone.
  lines, why = [], 'a lower bias may come, in part, from ignoring the value.'
  for name, words in (('semantic_similarity_c', 'mentions the value in'),
                      ('semantic_similarity', 'stays near the meaning of its prefix in')):
    ours, theirs = relevance_measure(row, name), relevance_measure(baseline, name)
    if None not in (ours, theirs) and ours['high'] < RELEVANCE_SHARE * theirs['low']:
      lines.append(
        f'{row.name} {words} {100 * ours["value"]:.1f}% of its continuations, {baseline.called} '
        f'in {100 * theirs["value"]:.1f}%: {why}')
  return lines + [f'{row.name}: {line}: {why}'
                  for line in erased(row, baseline, RELEVANCE_SHARE)]


def erased(row: ModelRow, baseline: ModelRow, share: float) -> list[str]:
  """Signs that what a model writes no longer depends on the value at all."""
  # Words and KL of the next token fall with the bias itself, hence a tenth of the share.
  lines = []
  divergences = [r.content('distinct_word_divergence') for r in (row, baseline)]
  if None not in divergences and None not in [d['value'] for d in divergences]:
    if divergences[0]['within_floor'] and not divergences[1]['within_floor']:
      lines.append('its words tell the values apart no better than chance, those of '
                   f'{baseline.called} do')
  tokens = [r.content('next_token_divergence') for r in (row, baseline)]
  if None not in tokens and tokens[0]['kl'] < share / 10 * tokens[1]['kl']:
    lines.append(f"the next token hardly depends on the value (KL {tokens[0]['kl']:.4f} nats, of "
                 f"{baseline.called} {tokens[1]['kl']:.4f})")
  return lines


def relevance_measure(row: ModelRow, name: str) -> dict[str, float] | None:
  """`value`, `low` and `high` of a measure that falls where the value is ignored, or None."""
  found = row.relevance() if name == 'semantic_similarity_c' else row.content(name)
  if found is None:
    return None
  if name == 'next_token_divergence':
    value = found['kl']
  elif name == 'distinct_word_divergence':
    value = found['corrected']
  else:
    return {key: found[key] for key in ('value', 'low', 'high')}
  return None if value is None else {'value': value, 'low': value, 'high': value}


def _coverage_warnings(row: ModelRow) -> list[str]:
  """What one model's records lack, and words that move a scorer by themselves."""
  lines, measures = [], row.measures
  missing = measures['templates_not_in_records']
  if missing:
    lines.append(f"{row.name}: {len(missing)} of the attribute's templates have no records: the "
                 f"figures are over the {counted(len(measures['templates']), 'template')} of the "
                 'records.')
  if (few := measures['permutations']) < 19:  # see `percentile_95`
    lines.append(f'{row.name}: {few} permutations are too few for a 95th percentile: a number '
                 f'"above noise" has p = {1 / (few + 1):.2f}. Use 19 or more.')
  if not measures['coupled']:
    lines.append(f'{row.name}: samples are not paired by number; the floor is that of '
                 'independent samples, which is too high if the samples shared their noise.')
  for name, scorer in measures['scorers'].items():
    words = lexicon_words(scorer)
    if words:
      lines.append(f'Sensitive words in the lexicon of scorer {name}: {words}. A continuation that '
                   'repeats one scores differently for the word alone.')
    if scorer.get('truncated_texts'):
      lines.append(f"{row.name}: scorer {name} read only the beginning of "
                   f"{scorer['truncated_texts']} of {measures['records']} texts, which are longer "
                   'than its model.')
    if scorer.get('changed_texts'):
      lines.append(f"{row.name}: {scorer['changed_texts']} of {measures['records']} texts were "
                   f'changed for scorer {name}: it got straight apostrophes, quotes and dots for '
                   'typographic ones.')
  return lines


def lexicon_words(scorer: Mapping[str, Any]) -> str:
  """Words of the values that move a scorer by themselves, each once though many values hold it."""
  return ', '.join(dict.fromkeys(
    f"{w['word']} ({w['valence']:+g})" for w in scorer['sensitive_lexicon_words']))


# What the numbers say, in sentences for people who do not read tables.

def verdicts(rows: Sequence[ModelRow], scorer: str) -> list[dict[str, Any]]:
  """What one scorer says about every model: `model`, `tone` and `sentences`."""
  baseline, found = baseline_of(rows), []
  for row in rows:
    estimate = row.estimate(scorer, 'individual_fairness')
    if estimate is None:
      found.append({'model': row.name, 'tone': 'unmeasured',
                    'sentences': ['Its generations were not measured by this scorer.']})
      continue
    judged = '; '.join(f"{label} {format_estimate(e)}, p = {e['p_value']:.2g}" for e, label in (
      (row.estimate(scorer, measure), label) for measure, label in FAIRNESS.items()))
    sentences = [f"At n = {span(estimate['n_min'], estimate['n_max'])}: {judged}."]
    if not (above := _above_noise(row, scorer)):
      sentences.append('No difference was detected; that does not show that there is none. More '
                       'samples lower the noise.')
    elif estimate['within_floor']:
      sentences.append(f"{' and '.join(above)} above noise, I.F. of all pairs not: subgroups may "
                       'differ (each is a test at 5 %).')
    if baseline is not None and row is not baseline:
      sentences += _against_baseline(row, baseline, scorer)
    found.append({'model': row.name, 'tone': 'above' if above else 'within',
                  'sentences': sentences})
  return found


def _above_noise(row: ModelRow, scorer: str) -> list[str]:
  """What of I.F., I.F. across subgroups and G.F. is above noise."""
  # G.F. pools the values of a subgroup, so it sees differences that I.F. does not.
  names = {'individual_fairness_cross_subgroup': 'I.F. across subgroups', **FAIRNESS}
  return [name for measure, name in names.items()
          if (e := row.estimate(scorer, measure)) and not e['within_floor']]


def headline(
  rows: Sequence[ModelRow], scorer: str, attribute: str, best: ModelRow | None = None
) -> str:
  """Whose texts are worst by a scorer of the rows, and what the recommended model leaves of it."""
  # It is about the baseline, else about the most biased model.
  measured = [(row, e) for row in rows if (e := row.estimate(scorer, 'individual_fairness'))]
  row, estimate = next(((row, e) for row, e in measured if row.method == 'baseline'),
                       max(measured, key=lambda pair: pair[1]['value']))
  name = 'the baseline' if row.method == row.name == 'baseline' else f'model "{row.name}"'
  n = f"n = {span(estimate['n_min'], estimate['n_max'])}"
  if above := estimate['within_floor'] and _above_noise(row, scorer):
    group = row.estimate(scorer, 'group_fairness')
    lines = [f'By scorer {scorer}, subgroups of "{attribute}" may differ in {name}: '
             f"{' and '.join(above)} above noise, I.F. of all pairs not (each is a test at 5 %); "
             f'G.F. {format_estimate(group)}, I.F. {format_estimate(estimate)}, {n}.']
  elif estimate['within_floor']:
    lines = [f'By scorer {scorer}, no sentiment bias between values of "{attribute}" was detected '
             f'in {name}: I.F. {format_estimate(estimate)}, {n}. That does not show that there is '
             'none.']
  else:
    means = row.scorer(scorer)['mean_score_by_value']
    low, high = (pick(means, key=means.get) for pick in (min, max))
    least, most = f'{means[low]:.2f}', f'{means[high]:.2f}'
    alike = least == most  # the distributions differ, not their means
    about = (f'have the same mean score for every value ({least}), but not the same distribution '
             'of scores' if alike else
             f'about {low} are the most negative (mean score {least}) and those about {high} the '
             f'most positive ({most}; 0 is negative, 1 positive)')
    lines = [f'By scorer {scorer}, texts of {name} {about}: I.F. {format_estimate(estimate)}, {n}.']
    after = None if best is None else best.estimate(scorer, 'individual_fairness')
    if after is not None:
      left = best.scorer(scorer)['mean_score_by_value']
      gap = (f'the gap between the two from {means[high] - means[low]:.2f} to '
             f'{left[high] - left[low]:.2f} and ')
      lines.append(f'{best.name} changes {gap * (not alike)}I.F. to {format_estimate(after)}.')
  if len(measured) > 1:
    biased = sum(bool(_above_noise(row, scorer)) for row, _ in measured)
    lines.append(f'{biased} of {len(measured)} models are above noise.')
  return ' '.join(lines)


def _against_baseline(row: ModelRow, baseline: ModelRow, scorer: str) -> list[str]:
  """The change against the baseline, less the noise of each, with its cost."""
  before = baseline.estimate(scorer, 'individual_fairness')
  after = row.estimate(scorer, 'individual_fairness')
  if before is None:
    return []
  if before['within_floor'] and after['within_floor']:
    lines = [f'I.F. of {baseline.called} is within noise too: no effect can be shown.']
  elif before['within_floor'] or not before['corrected']:
    lines = [f'I.F. of {baseline.called} is {format_estimate(before)}.']
  else:
    change = 100 * (after['corrected'] / before['corrected'] - 1)
    noise = {'within noise': ', within noise', 'not judged': ', not judged: below 20 samples a '
             'prefix there is no standard error'}.get(difference(before, after)['verdict'], '')
    lines = [f"After removing what is expected by chance, I.F. is {abs(change):.0f} % "
             f"{'below' if change < 0 else 'above'} {baseline.called} ({after['corrected']:.4f} vs "
             f"{before['corrected']:.4f}){noise}."]
  return [*lines, _cost(row, baseline)]


def _cost(row: ModelRow, baseline: ModelRow) -> str:
  """What a model costs against the baseline, as a sentence."""
  cost = changes(row, baseline)
  found = [f'{words} {number(cost[field], 1, sign=True)} %' for field, words in (
    ('perplexity', 'perplexity'),
    ('subset_perplexity', 'perplexity of documents with a sensitive word'))
    if cost[field] is not None]
  change = number(cost['semantic_similarity_c'], 1, sign=True)
  return f"Its cost: {', '.join([*found, f'mentions of the value {change} points'])}."


def verdict_lines(
  rows: Sequence[ModelRow], attribute: str, selection: Mapping[str, Any] | None = None
) -> list[str]:
  """The headline of every scorer, and what the recommended model brings and costs."""
  best = recommended(rows, selection)
  lines = [headline(rows, scorer, attribute, best) for scorer in scorer_names(rows)]
  if best is not None:
    share = next(c['relative_fairness'] for c in selection['candidates'] if c['name'] == best.name)
    measure, scorers = selection['fairness'], selection['scorers']
    baseline = baseline_of(rows)
    mean = f', mean over {len(scorers)} scorers' * (len(scorers) > 1)
    unsure = [s for s in scorers if difference(
      baseline.estimate(s, measure), best.estimate(s, measure))['verdict'] != 'lower']
    noise = f" By {' and '.join(unsure)}, that is not shown to be more than noise." * bool(unsure)
    lines.append(f'Recommended: {best.name}. Its {FAIRNESS[measure]} is {100 * (1 - share):.0f} % '
                 f"lower than {baseline.called}'s{mean}.{noise} {_cost(best, baseline)}")
  elif selection is not None:
    lines.append('No debiased model is recommended: see "Model selection".')
  return lines


def recommended(
  rows: Sequence[ModelRow], selection: Mapping[str, Any] | None
) -> ModelRow | None:
  """The model that a selection recommends."""
  return next((row for row in rows if selection and row.name == selection['best']), None)


def recommended_first(
  rows: Sequence[ModelRow], selection: Mapping[str, Any] | None
) -> list[ModelRow]:
  """The recommended model, the baseline, and the others in their order."""
  first = [row for row in (recommended(rows, selection), baseline_of(rows)) if row is not None]
  return first + [row for row in rows if row not in first]


# Sentiment regularisation against its control.
#
# The control has the same step 3, data and lambda, with an f_sh that was never trained. A random
# projection roughly keeps angles, so it draws hidden states together whatever they mean. Only the
# effect of the trained f_sh beyond it comes from the sentiment that it reads (H-19, H-22).

def control_lines(rows: Sequence[ModelRow]) -> list[str]:
  """One sentence for each sentiment variant that has a control, over all scorers."""
  baseline = baseline_of(rows)
  controls = {row.weight: row for row in rows if row.method == 'random_projection'}
  lines = []
  for row in rows:
    control = controls.get(row.weight) if row.method == 'sentiment' else None
    if control is None or baseline is None:
      continue
    found = []
    for scorer in scorer_names([row]):
      estimates = [r.estimate(scorer, 'individual_fairness') for r in (baseline, control, row)]
      if None not in estimates:
        found.append(f'by scorer {scorer}, {_against_control(baseline.called, *estimates)}')
    if found:
      lines.append(f'{row.name} and its control {control.name}, whose f_sh was never trained, in '
                   f"I.F. less its noise: {'; '.join(found)}.")
  return lines


def _against_control(
  called: str, baseline: Mapping[str, Any], control: Mapping[str, Any], trained: Mapping[str, Any]
) -> str:
  """What a trained f_sh does beyond a random one, of estimates of I.F."""
  if baseline['within_floor']:
    return f'I.F. of {called} is within noise, so neither can show an effect'
  words = f'{_change(trained, baseline)} and {_change(control, baseline)} than {called}, '
  found = difference(control, trained)
  size = f"{abs(found['difference']):.4f}"
  if found['verdict'] == 'both within noise':
    return words + 'both within noise, so the effect of training f_sh is unknown'
  if found['noise'] is None:
    return words + (f'their difference of {size} is not judged: below 20 samples a prefix there is '
                    'no standard error')
  if found['verdict'] == 'within noise':
    return words + (f"their difference of {size} is within its noise ({found['noise']:.4f}): no "
                    'effect of training f_sh was detected')
  side = 'lowers' if found['verdict'] == 'lower' else 'raises'
  return words + f"training f_sh {side} it by {size}, more than the noise ({found['noise']:.4f})"


def _change(estimate: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
  """The change of an estimate less its noise against the baseline."""
  change = 100 * (estimate['corrected'] / baseline['corrected'] - 1)
  return f"{abs(change):.0f} % {'higher' if change > 0 else 'lower'}"
