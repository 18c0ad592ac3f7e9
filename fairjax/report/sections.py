"""The sections of a report, made once from what was measured."""

import collections
import dataclasses
import json
import os
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairjax.errors import UserError, unknown_name
from fairjax.measure.crossed import crossed_effects
from fairjax.measure.estimates import format_estimate
from fairjax.measure.human.ratings import KIND, SCHEMA
from fairjax.report import comparison
from fairjax.report.comparison import KnownBias, ModelRow, baseline_of, scorer_names
from fairjax.report.differences import FAIRNESS
from fairjax.report.document import (
  Bullets,
  Details,
  Part,
  Section,
  Table,
  Text,
  counted,
  number,
  percent_change,
  span,
)
from fairjax.report.figures import is_number

# Measures of the texts other than sentiment: S.S., distinct words, perplexities.

LEGEND = {
  'semantic_similarity': """\
S.S.: continuations whose cosine with their prefix is above a threshold (H-27; encoder and threshold
below); higher is more relevant.""",
  'distinct_word_divergence': """\
Words: bits that one word of a continuation tells about the value (Jensen-Shannon divergence, H-37),
with its floor; within noise the model writes the same for every value.""",
  'next_token_divergence': """\
KL: mean divergence of the next token between two values of a template, nats, read from the model
itself; near 0 the model ignores the value (H-35)."""}
HEADERS = {'semantic_similarity': 'S.S.', 'distinct_word_divergence': 'words (floor)',
           'next_token_divergence': 'KL'}


def measured(rows: Sequence[ModelRow]) -> list[str]:
  """Which of S.S., words and KL some model has, in the order of the columns."""
  return [name for name in HEADERS if any(row.content(name) for row in rows)]


def cell(row: ModelRow, name: str) -> str:
  """A column's text for one model."""
  found = row.content(name)
  if found is None:
    return 'not measured'
  if name == 'semantic_similarity':
    return f"{100 * found['value']:.1f}%"
  if name == 'next_token_divergence':
    return number(found['kl'], 4)
  if found['value'] is None:
    return 'no words'
  return format_estimate(found, named=False)


def absent_lines(rows: Sequence[ModelRow]) -> list[str]:
  """One sentence a measure that was not made, and why."""
  labels = {'semantic_similarity': 'S.S. (H-27)', 'next_token_divergence': 'KL of the next token'}
  found: dict[tuple[str, str], list[str]] = {}
  for row in rows:
    for name, why in (row.content('absent') or {}).items():
      found.setdefault((labels[name], why), []).append(row.name)
  return [f'{label} was not measured for {", ".join(names)}: {why}.'
          for (label, why), names in found.items()]


def content_sections(rows: Sequence[ModelRow]) -> list[Section]:
  """Similarity with examples, distinct words, perplexities per unit."""
  found = []
  similar = [row for row in rows if row.content('semantic_similarity')]
  if similar:
    table, lines = _similarity(similar)
    found.append(Section('Similarity of prefix and continuation', [table, Bullets(lines)]))
    examples = similar[0].content('semantic_similarity')['examples']
    found.append(Section(f'Examples of similarity, {similar[0].name}', [Details(
      'Cosine examples at evenly spaced ranks (H-36; texts may offend)', [_examples(examples)])]))
  words = [row for row in rows if row.content('distinct_words')]
  if words:
    found.append(Section('Distinct words', [
      Text('Words with the largest ratio of shares, p(word | value) / p(word | other), above 1, '
           'each count one more (H-37); as written, with punctuation. Pairs of values whose words '
           'are farthest apart.'),
      Details('Words', [_words(row) for row in words])]))
  if any(row.perplexity for row in rows):
    found.append(Section('Perplexity per token, word and byte', [_perplexities(rows)]))
  return found


def _similarity(rows: Sequence[ModelRow]) -> tuple[Table, list[str]]:
  header = ['model', 'encoder', 'S.S.', '95%', 'n', 'left out', 'threshold', 'mean cosine',
            "with other values' prefixes", 'texts cut']
  body, sources = [], {}
  for row in rows:
    s = row.content('semantic_similarity')
    body.append([
      row.name, s['encoder'], f"{100 * s['value']:.1f}%",
      f"{100 * s['low']:.1f}\u2013{100 * s['high']:.1f}%", str(s['n']), str(s['left_out']),
      number(s['threshold'], 3), number(s['mean_cosine'], 3),
      number(s['mean_cosine_other_values'], 3),
      '\u2013' if s['truncated_texts'] is None else str(s['truncated_texts'])])
    sources.setdefault((s['encoder'], s['encoder_fingerprint'], s['threshold_source']))
  lines = [f'Encoder {name}: fingerprint {fingerprint}; threshold: {source}.'
           for name, fingerprint, source in sources]
  lines.append('A continuation is near its prefix for the words of the template too: the value '
               "itself shows in how much farther the other values' prefixes are.")
  return Table(header, body, text_columns=2), lines


def _examples(examples: Sequence[Mapping[str, Any]]) -> Table:
  return Table(['cosine', 'prefix', 'continuation'], [
    [number(e['cosine'], 3), e['prefix'], e['continuation']] for e in examples], text_columns=3)


def _words(row: ModelRow) -> Table:
  words: Any = row.content('distinct_words')
  return Table(['value', 'other', 'words, best first'], [
    [p['value'], p['other'],
     ', '.join(f"{w['word']} ({w['count']}:{w['count_other']})" for w in p['words'])
     or '\u2013'] for p in words], text_columns=3, title=row.name)


def _perplexities(rows: Sequence[ModelRow]) -> Table:
  header = ['model', 'set', 'per token', 'per word', 'bits per byte', 'documents', 'tokens',
            'words', 'memory']
  body = []
  for row in rows:
    for name, p in (('PPL', row.perplexity), ('PPL_s', row.subset_perplexity)):
      if p is not None:
        body.append([
          row.name, name, number(p['token'], 3), number(p['word'], 3),
          number(p['bits_per_byte'], 4), *('\u2013' if p.get(k) is None else str(p[k])
                                           for k in ('documents', 'tokens', 'words',
                                                     'memory_len'))])
  return Table(header, body, text_columns=2)


def curve_table(
  stage: str, runs: Mapping[str, Sequence[Mapping[str, Any]]]
) -> tuple[Table, int]:
  """Where the losses of each run of a stage ended, and how many of them are not finite."""
  body, lost = [], 0
  for name, lines in runs.items():
    losses = {kind: [line for line in lines if line.get('kind', 'train') == kind
                     and is_number(line.get('loss'))] for kind in ('train', 'valid')}
    lost += sum('loss' in line for line in lines) - sum(map(len, losses.values()))
    if any(losses.values()):
      perplexity = [line['perplexity'] for line in lines if is_number(line.get('perplexity'))]
      body.append([
        name, f"{max(found[-1]['step'] for found in losses.values() if found):,}",
        *(number(found[-1]['loss'] if found else None, 4) for found in losses.values()),
        number(perplexity[-1] if perplexity else None, 2)])
  return Table(['run', 'steps', 'training loss', 'validation loss', 'validation perplexity'], body,
               title=f'Where {stage} ended'), lost


# Continuations of the same noise for two values and several models, side by side (H-34).

@dataclasses.dataclass(frozen=True)
class PairedSample:
  """One sample number of one template."""

  template: int | str
  sample: int
  prefixes: dict[str, str]  # by value
  continuations: dict[str, dict[str, str]]  # model -> value -> text


def paired_samples(
  records: Mapping[str, Iterable[Mapping[str, Any]]], *, values: Sequence[str], templates: int = 3,
) -> list[PairedSample]:
  """Chooses the first number of each of the first templates, without looking at the texts."""
  # `records`: model -> its records, with sample numbers, each read once; they answer the same
  # prompts.
  found: dict[tuple[int | str, int], dict[tuple[str, str], str]] = {}
  prefixes = {}
  for model, lines in records.items():
    for record in lines:
      if (value := record['value']) in values:
        prefixes[record['template'], value] = record['prefix']
        cell = found.setdefault((record['template'], record['sample']), {})
        cell[model, value] = record['continuation']
  chosen = []
  for label in sorted({t for t, _ in found}, key=lambda t: (isinstance(t, str), t))[:templates]:
    sample = min(s for t, s in found if t == label)
    chosen.append(PairedSample(
      template=label, sample=sample, prefixes={v: prefixes[label, v] for v in values},
      continuations={model: {v: found[label, sample][model, v] for v in values}
                     for model in records}))
  return chosen


DEFINITIONS = """\
I.F. (individual fairness) is the average distance between the sentiment distributions of two
values, G.F. (group fairness) that between a subgroup and all; 0 is no difference, lower is fairer.
In brackets is the floor, the largest value expected by chance alone at this sample size (95th
percentile). A number up to its floor is within noise: no bias was detected, which does not show
that there is none."""

TABLE_LEGEND = """\
PPL and PPL_s: word perplexity on the test set and on its documents with a sensitive token (H-25),
with the perplexity per token in brackets; lower is better. S.S.c: continuations that mention the
value of their prefix (H-28); higher is more relevant. I.F. and G.F.: Wasserstein-1 distance of
score distributions between pairs of values (H-05, Eq. 3) and between subgroups and the whole set
(H-06, Eq. 4); lower is fairer. Floor, in brackets: the largest value expected by chance alone at
this sample size, the 95th percentile of the same number after the values' labels were permuted
(finite samples differ even when no value matters). Within noise: the number does not exceed its
floor, so no bias was detected. Above noise: it does. The verdict goes by the numbers before
rounding. n: samples per prefix."""

LIMITS = (
  'The test is lexical: a word of a template is replaced and everything else is kept. It makes no '
  'claim about causes in the world, about people, or about fairness in any use of the model.',
  '"Within noise" means that no difference was detected with this many samples, templates and '
  'this scorer; it is no proof that there is none. More samples lower the floor.',
  'Sentiment is what the scorer measures. Scorers err, and err differently for different words and '
  'groups; agreement of several scorers is the least to ask for.',
  'Only the listed values and templates were tested. Names stand for two genders only and for few '
  "origins; they say nothing about other genders, and a name is no person's identity.",
  'A model can be fair by ignoring the value: read I.F. and G.F. together with S.S.c and the '
  'samples.',
  'Whiskers and floors describe the sampling of continuations. They do not hold the variation '
  'between training runs, which "fairjax run --seeds=3" measures. The p-values of several rows are '
  'not corrected.')


def definitions(rows: Sequence[ModelRow]) -> str:
  """What the columns of the overview mean."""
  relevance = ' S.S.c is the share of texts that mention the value of their prefix.'
  return ' '.join(DEFINITIONS.split()) + relevance * (baseline_of(rows) is not None)


def legend(rows: Sequence[ModelRow]) -> str:
  """What the columns of the main table mean."""
  return ' '.join(' '.join([TABLE_LEGEND, *(LEGEND[name] for name in measured(rows))]).split())


def main_table(rows: Sequence[ModelRow]) -> Table:
  """The table: model by PPL, PPL_s, S.S.c, and I.F. and G.F. with floors for each scorer, n."""
  scorers = scorer_names(rows)
  found = measured(rows)
  header = ['model', 'PPL', 'PPL_s', 'S.S.c', *(HEADERS[name] for name in found)]
  header += [f'{m} {s} (floor)' for s in scorers for m in FAIRNESS.values()] + ['n']
  body = []
  for row in rows:
    cells = [row.name, _perplexity(row.perplexity), _perplexity(row.subset_perplexity),
             f"{100 * row.relevance()['value']:.1f}%", *(cell(row, name) for name in found)]
    cells += [_estimate(row.estimate(s, m)) for s in scorers for m in FAIRNESS]
    body.append([*cells, _samples(row)])
  return Table(header, body)


def overview_table(rows: Sequence[ModelRow], selection: Mapping[str, Any] | None) -> Table:
  """What matters of each model: I.F. by each scorer, what it changed and what it costs."""
  baseline, scorers = baseline_of(rows), scorer_names(rows)
  if baseline is None:
    return Table(
      ['model', *(f'{label} {s} (floor)' for s in scorers for label in FAIRNESS.values())],
      [[row.name, *(_estimate(row.estimate(s, m)) for s in scorers for m in FAIRNESS)]
       for row in rows])
  best, body = comparison.recommended(rows, selection), []
  for row in rows:
    found = {} if row is baseline else comparison.changes(row, baseline)
    change = found.get('individual_fairness', {})
    body.append([
      row.name + ' (recommended)' * (row is best),
      *(cell for s in scorers for cell in (_estimate(row.estimate(s, 'individual_fairness')),
                                           percent_change(change.get(s)))),
      percent_change(found.get('perplexity')),
      number(found.get('semantic_similarity_c'), 1, sign=True)])
  return Table(['model', *(h for s in scorers for h in (f'I.F. {s} (floor)', 'change')),
                'perplexity change', 'S.S.c (points)'], body)


def rewording_lines(rows: Sequence[ModelRow]) -> list[Part]:
  """The rewording floor, where records have that arm."""
  return [
    Text(f"{row.name}, {scorer}: {words['sentence']}; I.F. of rewordings "
         f"{format_estimate(words['individual_fairness'])}, contrast {words['contrast']:.4f}.")
    for row in rows for scorer, m in row.measures['scorers'].items()
    if (words := m.get('rewording'))]


def crossed_parts(rows: Sequence[ModelRow]) -> list[Part]:
  """Main effects and interaction of crossed attributes, where there are some."""
  found = [(row.name, scorer, part) for row in rows
           for scorer, m in row.measures['scorers'].items() if (part := m.get('crossed'))]
  if not found:
    return []
  parts = [[name, scorer, words, format_estimate(effect), f"{effect['corrected']:.4f}",
            f"{effect['p_value']:.3g}", f"{effect['p_holm']:.3g}"]
           for name, scorer, part in found for words, effect in crossed_effects(part).items()]
  header = ['model', 'scorer', 'effect', 'value (floor)', 'less chance', 'p', 'p (Holm)']
  return [Table(header, parts, text_columns=3, title='Main effects and interaction'),
          *(Text(f"{name}, {scorer}: {part['sentence']}.") for name, scorer, part in found)]


def more_measures(rows: Sequence[ModelRow]) -> Table:
  """Score statistics, p-values, errors, pair shares and subgroup splits, one row per scorer."""
  judged = [name for m in FAIRNESS.values() for name in (f'{m} \u00b1 s.e. (floor)', 'p',
                                                        'expected by chance')]
  header = ['model', 'scorer', 'mean score', 'neutral', *judged, 'pairs \u2264 floor',
            'pairs < 0.05', 'pairs < 0.1', 'I.F. across subgroups (floor)',
            'I.F. within subgroups (floor)', 'S.S.c any value']
  body = []
  for row in rows:
    for name in scorer_names([row]):
      m = row.scorer(name)
      cells = [row.name, name, number(m['mean_score'], 3),
               f"{100 * m['neutral_share']:.0f}%"]
      for e in (m[measure] for measure in FAIRNESS):
        cells += [format_estimate(e, error=True, named=False), f"{e['p_value']:.2g}",
                  number(e['null_mean'], 4)]
      below = m['individual_fairness']['pairs_below']  # a file may hold its keys in another order
      cells += [f'{100 * below[key]:.0f}%' for key in ('floor', '0.05', '0.1')]
      cells += [_estimate(m.get(f'individual_fairness_{kind}_subgroup'), absent='\u2013')
                for kind in ('cross', 'within')]
      body.append([*cells, f"{100 * row.relevance('any_value')['value']:.1f}%"])
  return Table(header, body, text_columns=2)


def agreement_table(agreement: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
  """Agreement of scorers on the same texts: model name (may be '') -> pairs of scorers."""
  header = ['model', 'scorers', 'n', 'Spearman', 'Pearson', 'equal signs', 'n neither neutral',
            'equal signs of these']
  first = 0 if any(agreement) else 1  # one unnamed set of texts needs no column of models
  body = []
  for model, pairs in agreement.items():
    for pair in pairs:
      shares = ['\u2013' if pair[key] is None else f'{100 * pair[key]:.1f}%'
                for key in ('equal_signs', 'equal_signs_opinionated')]
      cells = [model, ' and '.join(pair['scorers']), str(pair['n']),
               number(pair['spearman'], 3), number(pair['pearson'], 3), shares[0],
               str(pair['n_opinionated']), shares[1]]
      body.append(cells[first:])
  return Table(header[first:], body, text_columns=2 - first)


def known_bias_table(known: KnownBias) -> Table:
  """Measured against the closed form, on prefixes of the grammar that training never saw."""
  header = ['model', 'I.F. (floor)', 'of the closed form', 'G.F. (floor)', 'of the closed form']
  truth = {'individual_fairness': known.individual_fairness, 'group_fairness': known.group_fairness}
  body = [['closed form', number(truth['individual_fairness'], 4), '100%',
           number(truth['group_fairness'], 4), '100%']]
  for model, measures in known.measures.items():
    cells = [model]
    for measure, value in truth.items():
      estimate = measures['scorers'][known.scorer][measure]
      share = f"{100 * estimate['value'] / value:.0f}%" if value else '\u2013'
      cells += [_estimate(estimate), share]
    body.append(cells)
  return Table(header, body)


def paired_section(samples: Sequence[PairedSample]) -> Section:
  """Paired samples, collapsed."""
  parts: list[Part] = []
  for sample in samples:
    prefixes = '; '.join(f'{value}: {prefix}' for value, prefix in sample.prefixes.items())
    parts += [Text(f'Template {sample.template}, sample {sample.sample}. {prefixes}'),
              Table(['model', 'value', 'continuation'], [
                [model, value, text] for model, texts in sample.continuations.items()
                for value, text in texts.items()], text_columns=3)]
  return Section('Paired samples', [Details(
    f'{len(samples)} paired samples: equal noise for every value and model (texts may offend)',
    parts)])


def counts_table(rows: Sequence[ModelRow]) -> Table:
  """What was measured, by model."""
  body = []
  for row in rows:
    m = row.measures
    body.append([
      row.name, str(m['records']), str(len(m['templates'])), str(len(m['values'])),
      _samples(row), 'yes' if m['coupled'] else 'no', str(m['permutations']),
      str(m['empty_continuations']), m['scored_text']])
  return Table(['model', 'records', 'templates', 'values', 'n', 'coupled', 'permutations',
                'empty continuations', 'scored text'], body, title='What was measured')


def origin_table(
  rows: Sequence[ModelRow], *, seeds: Mapping[str, int], versions: Mapping[str, str]
) -> Table:
  """Scorers with their fingerprints, seeds and versions."""
  scorers = dict.fromkeys((name, scorer['fingerprint']) for row in rows
                          for name, scorer in row.measures['scorers'].items())
  return Table(['what', 'name', 'value'], [
    *(['scorer', name, fingerprint] for name, fingerprint in scorers),
    *(['seed', name, str(seed)] for name, seed in seeds.items()),
    *(['version', name, version] for name, version in versions.items())], text_columns=3,
    title='Origin')


def _estimate(estimate: Mapping[str, Any] | None, *, absent: str = 'not measured') -> str:
  """An estimate with its floor and the verdict."""
  return absent if estimate is None else format_estimate(estimate, named=False)


def _perplexity(perplexity: Mapping[str, Any] | None) -> str:
  """Word perplexity, with the one per token in brackets."""
  if perplexity is None:
    return 'not measured'
  words, tokens = ('over 1e308' if perplexity[k] is None else f'{perplexity[k]:.2f}'
                   for k in ('word', 'token'))
  return f'{words} ({tokens})'


def _samples(row: ModelRow) -> str:
  """Samples per prefix, a range where they differ."""
  return span(row.measures['n']['min'], row.measures['n']['max'], '')


# The spread over trainings of one run with several seeds.

TRAININGS = ('The spread holds what differs between trainings and between samples. From few '
             'trainings it is a rough number itself.')


def spread_of_trainings(rows: Mapping[int, Sequence[ModelRow]]) -> dict[str, Any]:
  """I.F., G.F. and word perplexity of each model over several trainings, JSON types."""
  # `rows`: seed -> the rows of that training; the first one's models and scorers count.
  seeds, (first, *_) = list(rows), rows.values()
  named = [{row.name: row for row in found} for found in rows.values()]
  models = []
  for name in named[0]:
    for scorer, measure in [*((s, m) for s in scorer_names(first) for m in FAIRNESS),
                            (None, 'perplexity')]:
      values = [_value_of(found.get(name), scorer, measure) for found in named]
      known = [value for value in values if value is not None]
      models.append({
        'model': name, 'scorer': scorer, 'measure': measure, 'values': values,
        'mean': statistics.fmean(known) if known else None,
        'std_dev': statistics.stdev(known) if len(known) > 1 else None})
  return {'seeds': seeds, 'models': models}


def _value_of(row: ModelRow | None, scorer: str | None, measure: str) -> float | None:
  found = None if row is None else (
    row.perplexity if scorer is None else row.estimate(scorer, measure))
  return None if found is None else found['word' if scorer is None else 'value']


def trainings_table(trainings: Mapping[str, Any]) -> Table:
  """Mean and standard deviation over trainings, a line a model."""
  seeds, lines = trainings['seeds'], collections.defaultdict(list)
  for found in trainings['models']:
    digits = 2 if found['scorer'] is None else 4
    spread = '' if found['std_dev'] is None else f" ± {number(found['std_dev'], digits)}"
    lines[found['model']].append(number(found['mean'], digits) + spread)
  columns = list(dict.fromkeys((f['measure'], f['scorer']) for f in trainings['models']))
  return Table(
    ['model', *('PPL' if s is None else f'{FAIRNESS[m]} {s}' for m, s in columns)],
    [[model, *cells] for model, cells in lines.items()],
    title=f"Mean ± standard deviation over {len(seeds)} trainings (seeds "
          f"{', '.join(map(str, seeds))})")


# A result of one model: each number with its floor and verdict.

_ESTIMATES = FAIRNESS | {'individual_fairness_cross_subgroup': 'I.F. across subgroups',
                         'individual_fairness_within_subgroup': 'I.F. within subgroups'}


def brief_table(row: ModelRow) -> Table:
  """One line for each scorer and measure: value, floor and verdict."""
  body = []
  for scorer in scorer_names([row]):
    m = row.scorer(scorer)
    for subset, part in {'': m, **m['template_subsets']}.items():
      body += [[f"{label} {scorer}{', ' * bool(subset)}{subset}", format_estimate(e, named=False),
                f"{e['corrected']:.4f}", f"{e['p_value']:.2g}", span(e['n_min'], e['n_max'])]
               for name, label in _ESTIMATES.items() if (e := part.get(name))]
  return Table(['measure', 'value (floor)', 'less noise', 'p', 'n'], body)


def measure_section(row: ModelRow) -> Section:
  """What `fairjax measure` prints of one model."""
  m = row.measures
  found = measured([row])
  agreement = [agreement_table({'': m['scorer_agreement']})] if m['scorer_agreement'] else []
  return Section(row.name, [
    Text(f"{m['records']:,} records of {m['attribute']}, {len(m['values'])} values, "
         f"{counted(len(m['templates']), 'template')}, n = {_samples(row)} per prefix, "
         f"{'coupled' if m['coupled'] else 'independent'} samples"),
    brief_table(row), *rewording_lines([row]), *crossed_parts([row]), *agreement,
    Table(['S.S.c', *(HEADERS[name] for name in found)], [
      [f"{100 * row.relevance()['value']:.1f}%", *(cell(row, name) for name in found)]]),
    Bullets([
      *(f"{scorer}: {part['individual_fairness']['significant_pairs']} of "
        f"{len(m['templates']) * part['individual_fairness']['count']} pairs in templates differ "
        "after Holm's correction." for scorer, part in m['scorers'].items()),
      *absent_lines([row]), *comparison.warnings([row])])])


# The scorers' own bias in words and a table, from what `measure.scorer_audit` found.

SIGNIFICANT = 0.05  # Holm p of a bias that is named at the top
_NAMED = 3  # values named there for each scorer

AUDIT_NOTE = """\
Every value of the attribute in the place of the word that is there: what a scorer thinks of the
word alone. Difference: score with the value less the median score with the others, mean over the
same texts; p of a paired permutation test, corrected for the number of values (Holm). What a model
writes is not involved: a bias here is none of the model's, and moves its I.F. and G.F. where the
model repeats the word."""


def audit_lines(audit: Mapping[str, Any]) -> list[str]:
  """What was swapped, how much it moves, what was not audited and why; plain text."""
  counts, values = audit['counts'], len(audit['values'])
  limit = f", {counts['left_out']:,} of them left out by a seeded choice" if counts['left_out'] \
    else ''
  lines = [
    f"{counts['texts']:,} texts; {counts['with_token']:,} "
    f"({100 * audit['share_with_token']:.1f} %) hold a sensitive token of {audit['attribute']}"
    f"{limit} ({counts['with_several_values']:,} of several values: only the first is swapped); "
    f"{counts['frames']:,} differ outside the token. {audit['permutations']} random orders."]
  for name, scorer in audit['scorers'].items():
    bias = scorer['own_bias']
    if bias is None:
      lines.append(f"{name}: own bias not measured: {scorer['not_measured']}.")
    else:
      lines.append(f"{name}: the value moves the score of {100 * bias['moved']:.1f} % of the "
                   f"texts; highest less lowest score of a text, on average {bias['range']:.4f}.")
    words = comparison.lexicon_words(scorer) or 'none'
    lines.append(f'Sensitive words in the lexicon of {name}: {words}.')
    lines += [f'{name} reads only the beginning of {scorer[key]:,} of the {of:,} {what}, which are '
              'longer than its model.' for key, of, what in (
                ('truncated_texts', counts['texts'], 'texts'),
                ('truncated_swaps', counts['frames'] * values, 'swapped texts')) if key in scorer]
  return lines


def own_bias_table(audit: Mapping[str, Any]) -> Table | None:
  """Own bias of every value under every audited scorer; None where none was."""
  biased = {name: s['own_bias'] for name, s in audit['scorers'].items() if s['own_bias']}
  if not biased:
    return None
  header = ['value', 'texts with it'] + [c for name in biased for c in (name, 'p (Holm)')]
  body = []
  for a, value in enumerate(audit['values']):
    rows = [bias['values'][a] for bias in biased.values()]
    cells = [cell for row in rows for cell in (
      f"{round(row['difference'], 4) + 0.0:+.4f}", f"{row['p_holm']:.2g}")]
    body.append([value, str(rows[0]['n']), *cells])
  return Table(header, body)


def audit_section(audit: Mapping[str, Any]) -> Section:
  """The scorers' own bias."""
  table = own_bias_table(audit)
  return Section('Own bias of the scorers', [
    Text(' '.join(AUDIT_NOTE.split())), *([] if table is None else [table]),
    Bullets(audit_lines(audit))])


def audit_warnings(audit: Mapping[str, Any]) -> list[str]:
  """A sentence for each scorer that rates values differently for their words alone; plain text."""
  lines = []
  for name, scorer in audit['scorers'].items():
    found = [row for row in (scorer['own_bias'] or {}).get('values', ())
             if row['p_holm'] <= SIGNIFICANT]
    found.sort(key=lambda row: -abs(row['difference']))
    if found:
      named = ', '.join(f"{row['value']} {row['difference']:+.4f}" for row in found[:_NAMED])
      more = f' and {len(found) - _NAMED} more' if len(found) > _NAMED else ''
      lines.append(f'Scorer {name} has a bias of its own in the same texts: {named}{more}. It is '
                   'not the language model\'s; see "Own bias of the scorers".')
  return lines


# The report's section about people's labels, from what `fairjax human import` wrote.

_KAPPA = {'nominal': "Cohen's kappa", 'nominal_without_mixed': "Cohen's kappa without mixed",
          'linear': "Cohen's kappa, linear weights"}

HUMAN_LEGEND = """\
Kappa pools all pairs of annotators (0: agreement by chance, 1: always equal); intervals are 95 %
bootstrap percentiles over items. Human I.F. is the Wasserstein-1 distance of mean human scores of
two prefixes (H-40); its floor is the largest value expected by chance alone, the 95th percentile
under exchanged values: within noise means that no difference was detected."""


def read_human(path: str | os.PathLike) -> dict[str, Any] | None:
  """The file of `fairjax human import`, None where there is none."""
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


def human_section(human: Mapping[str, Any]) -> Section:
  """Counts, agreement, correlations and human I.F. of what `read_human` gave."""
  return Section('Human evaluation', [
    Text(' '.join(HUMAN_LEGEND.split())), *_tables(human), Bullets(_lines(human))])


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


def _tables(human: Mapping[str, Any]) -> list[Table]:
  """Agreement and correlations, and human I.F. where it was measured."""
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
  found = [Table(['task', 'statistic', 'value', '95 % interval', 'n'], rows, text_columns=2)]
  if distances:
    found.append(Table(['model', 'template', 'values', 'human I.F. (floor)', 'p', 'n'], distances,
                       text_columns=3, title='Human I.F. (H-40)'))
  if differences:
    found.append(Table(
      ['models', 'template', 'values', 'difference (95 % limit)', 'p', 'n'], differences,
      text_columns=3, title='Do two models differ in human I.F.? (the second less the first; p and '
      'limit by exchange of the models)'))
  return found


def _difference_rows(entry: Mapping[str, Any]) -> list[list[str]]:
  """Two models: each pair of prefixes, and their mean where there are several."""
  def row(part, template, values, n):
    head = [' / '.join(entry['models']), template, values]
    if part['difference'] is None:
      return [*head, 'not measured', '\u2013', n]
    return [*head, f"{part['difference']:+.3f} ({part['null_p95']:.3f})",
            f"{part['p_value']:.2g}", n]

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
  return [*head, format_estimate(found, digits=3, named=False), f"{found['p_value']:.2g}",
          span(found['n_min'], found['n_max'], '')]


# Model selection: the fairest model that still writes about the value of its prefix (H-35). The
# paper chooses lambda by hand from its Tables 1, 5 and 6.

RELEVANCE = ('semantic_similarity', 'semantic_similarity_c')
MEASURES = (*RELEVANCE, 'distinct_word_divergence', 'next_token_divergence')
LABELS = {'semantic_similarity': 'S.S.', 'semantic_similarity_c': 'S.S.c',
          'distinct_word_divergence': 'words less chance', 'next_token_divergence': 'KL',
          **FAIRNESS}


def select_model(
  rows: Sequence[ModelRow], *, share: float = comparison.RELEVANCE_SHARE,
  relevance: Sequence[str] = RELEVANCE, fairness: str = 'individual_fairness',
  scorers: Sequence[str] | None = None, most_perplexity: float | None = None,
) -> dict[str, Any]:
  """The fairest debiased model that keeps its relevance.

  A model's fairness is its I.F. (or G.F.) over the baseline's, averaged over scorers. It is refused
  where a measure of relevance is below `share` of the baseline's, where what it writes no longer
  depends on the value (`comparison.erased`), where it is not fairer than the baseline, or where
  its perplexity rose too much.

  Args:
    rows: a baseline, and models with a fairness weight; others (controls) are no candidates.
    share: in (0, 1], of the baseline's relevance.
    relevance: of `MEASURES`; those that were not made for the baseline are named in `notes`.
    fairness: of `FAIRNESS`.
    scorers: names; None takes all.
    most_perplexity: largest rise of the word perplexity in percent; None: no limit.

  Returns:
    JSON-able: `baseline` (what it is called), `best` (name or None), `share`, `relevance`,
    `fairness`, `scorers`, `notes`, and `candidates`, fairest first: `name`, `method`, `weight`,
    `relative_fairness`, `perplexity_change` (percent), `relevance` (measure -> `value`, `baseline`,
    `kept`: the share of the baseline's), `refused` (reasons; empty: accepted).

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
  if baseline is None:
    raise UserError('model selection needs a baseline')
  models = [r for r in rows if r.weight is not None and r.method != 'random_projection']
  if not models:
    raise UserError('model selection needs models with a fairness weight')
  known = scorer_names([baseline])
  for name in scorers or ():
    if name not in known:
      raise unknown_name('scorer', name, known)
  scorers = list(scorers or known)
  notes: list[str] = []
  judged = _judged(baseline, relevance, notes)
  own = {s: baseline.estimate(s, fairness) for s in scorers}
  notes += [f'scorer {s}: {LABELS[fairness]} of {baseline.called} is {format_estimate(e)}: there '
            'is nothing to reduce' for s, e in own.items() if e['within_floor']]
  found = [_candidate(row, baseline, judged, fairness=fairness, scorers=scorers, share=share,
                      most_perplexity=most_perplexity) for row in models]
  found.sort(key=lambda c: (
    c['relative_fairness'] is None, c['relative_fairness'] or 0.0, c['weight']))
  best = next((c['name'] for c in found if not c['refused']), None)
  return {'baseline': baseline.called, 'best': best, 'share': share, 'relevance': list(judged),
          'fairness': fairness, 'scorers': scorers, 'most_perplexity': most_perplexity,
          'notes': notes, 'candidates': found}


def selection_section(selection: Mapping[str, Any]) -> Section:
  """The selection: the rule, the candidates with the reasons, the best."""
  judged, label = selection['relevance'], LABELS[selection['fairness']]
  theirs = f"{selection['baseline']}'s"
  header = ['model', f'{label} / {theirs}', *(f'{LABELS[m]} kept' for m in judged),
            'PPL change', 'refused because']
  body = []
  for c in selection['candidates']:
    cells = [c['name'], number(c['relative_fairness'], 3)]
    cells += [f"{100 * c['relevance'][m]['kept']:.0f}%" if m in c['relevance'] else '\u2013'
              for m in judged]
    body.append([*cells, percent_change(c['perplexity_change']),
                 '; '.join(c['refused']) or '\u2013'])
  rule = (f"The fairest model ({label}, mean over scorers {', '.join(selection['scorers'])}) that "
          f"keeps at least {100 * selection['share']:.0f}% of {theirs} "
          f"{' and '.join(LABELS[m] for m in judged)}")
  if selection['most_perplexity'] is not None:
    rule += f", with a word perplexity at most {selection['most_perplexity']:g}% higher"
  return Section('Model selection', [
    Text(f"{rule}: {selection['best'] or 'none'}."), Table(header, body),
    Bullets(selection['notes'])])


def _judged(baseline: ModelRow, relevance: Sequence[str], notes: list[str]) -> list[str]:
  """Measures of relevance that can be compared; the others get a note."""
  judged = []
  for name in relevance:
    found = comparison.relevance_measure(baseline, name)
    if found is None:
      notes.append(f'{LABELS[name]} was not measured and judges nothing')
    elif found['value'] <= 0:
      notes.append(f'{LABELS[name]} of {baseline.called} is 0 and judges nothing')
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
    refused.append(f'not fairer than {baseline.called}')
  for name in judged:
    ours, theirs = (comparison.relevance_measure(r, name) for r in (row, baseline))
    if ours is None:
      refused.append(f'{LABELS[name]} was not measured')
      continue
    ratio = ours['value'] / theirs['value']
    kept[name] = {'value': ours['value'], 'baseline': theirs['value'], 'kept': ratio}
    if ratio < share:
      sure = ours['high'] < share * theirs['low']
      refused.append(f"{LABELS[name]} fell to {100 * ratio:.0f}% of {baseline.called}'s"
                     + ('' if sure else ' (not sure at this n)'))
  refused += comparison.erased(row, baseline, share)
  change = comparison.changes(row, baseline)['perplexity']
  if most_perplexity is not None and (change is None or change > most_perplexity):
    refused.append('perplexity was not measured' if change is None else
                   f'perplexity rose by {change:.1f}%')
  return {'name': row.name, 'method': row.method, 'weight': row.weight,
          'relative_fairness': relative, 'perplexity_change': change, 'relevance': kept,
          'refused': refused}
