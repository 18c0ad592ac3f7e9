"""Sections of the Markdown report."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.measure.estimates import estimate_words
from fairjax.report import content
from fairjax.report.comparison import (
  KnownBias,
  ModelRow,
  baseline_of,
  changes,
  scorer_names,
)
from fairjax.report.markdown import (
  Table,
  code_block,
  details,
  escape,
  number,
  percent_change,
  table,
)
from fairjax.report.paired import PairedSample

LEGEND = """\
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
  'between training runs: one run a model was measured. The p-values of several rows are not '
  'corrected.')


def main_table(rows: Sequence[ModelRow]) -> Table:
  """The table: model by PPL, PPL_s, S.S.c, and I.F. and G.F. with floors for each scorer, n."""
  scorers = scorer_names(rows)
  found = content.measured(rows)
  header = ['model', 'PPL', 'PPL_s', 'S.S.c', *(content.HEADERS[name] for name in found)]
  header += [f'{m} {s} (floor)' for s in scorers for m in ('I.F.', 'G.F.')] + ['n']
  body = []
  for row in rows:
    cells = [row.name, _perplexity(row.perplexity), _perplexity(row.subset_perplexity)]
    share = row.relevance()
    cells.append('not measured' if share is None else f"{100 * share['value']:.1f}%")
    cells += [content.cell(row, name) for name in found]
    for scorer in scorers:
      cells += [_estimate(row.estimate(scorer, m)) for m in
                ('individual_fairness', 'group_fairness')]
    body.append([*cells, _samples(row)])
  return Table(header, body)


def change_table(rows: Sequence[ModelRow]) -> Table | None:
  """Changes against the baseline; None without a baseline or another model."""
  baseline = baseline_of(rows)
  others = [row for row in rows if row is not baseline]
  if baseline is None or not others:
    return None
  scorers = scorer_names(rows)
  similar = any(row.content('semantic_similarity') for row in rows)
  header = ['model', 'PPL', 'PPL_s', 'S.S.c (points)', *(['S.S. (points)'] * similar)]
  header += [f'{m} {s}' for s in scorers for m in ('I.F.', 'G.F.')]
  body = []
  for row in others:
    change = changes(row, baseline)
    cells = [row.name, percent_change(change['perplexity']),
             percent_change(change['subset_perplexity'])]
    for name in ('semantic_similarity_c', *(['semantic_similarity'] * similar)):
      cells.append('\u2013' if change[name] is None else f'{change[name]:+.1f}')
    for scorer in scorers:
      cells += [percent_change(change[m].get(scorer)) for m in
                ('individual_fairness', 'group_fairness')]
    body.append(cells)
  return Table(header, body)


def more_measures(rows: Sequence[ModelRow]) -> Table:
  """Score statistics, p-values, errors, pair shares and subgroup splits, one row per scorer."""
  judged = [name for m in ('I.F.', 'G.F.') for name in (f'{m} \u00b1 s.e. (floor)', 'p',
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
      for measure in ('individual_fairness', 'group_fairness'):
        e = m[measure]
        cells += [estimate_words(e, error=True, named=False), number(e['p_value'], 3),
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


def paired_section(samples: Sequence[PairedSample]) -> str:
  """Paired samples, collapsed; texts are escaped."""
  blocks = []
  for sample in samples:
    prefixes = '; '.join(f'{escape(v)}: *{escape(p)}*' for v, p in sample.prefixes.items())
    body = [[escape(model), escape(value), '(no record)' if text is None else escape(text)]
            for model, texts in sample.continuations.items() for value, text in texts.items()]
    blocks.append(f'Template {escape(str(sample.template))}, sample {sample.sample}. {prefixes}\n\n'
                  + table(['model', 'value', 'continuation'], body, text_columns=3))
  return details(f'{len(samples)} paired samples: equal noise for every value and model (texts may '
                 'offend)', '\n\n'.join(blocks))


def counts_table(rows: Sequence[ModelRow]) -> Table:
  """What was measured, by model."""
  body = []
  for row in rows:
    if row.measures is not None:
      m = row.measures
      body.append([
        row.name, str(m['records']), str(len(m['templates'])), str(len(m['values'])),
        _samples(row), 'yes' if m['coupled'] else 'no', str(m['permutations']),
        str(m['empty_continuations']), m['scored_text']])
  return Table(['model', 'records', 'templates', 'values', 'n', 'coupled', 'permutations',
                'empty continuations', 'scored text'], body)


def origin_table(
  rows: Sequence[ModelRow], *, seeds: Mapping[str, int], versions: Mapping[str, str]
) -> Table:
  """Scorers with their fingerprints, seeds and versions."""
  scorers = dict.fromkeys((name, scorer['fingerprint']) for row in rows if row.measures
                          for name, scorer in row.measures['scorers'].items())
  return Table(['what', 'name', 'value'], [
    *(['scorer', name, fingerprint] for name, fingerprint in scorers),
    *(['seed', name, str(seed)] for name, seed in seeds.items()),
    *(['version', name, version] for name, version in versions.items())], text_columns=3)


def config_text(config: Mapping[str, Any]) -> str:
  """A configuration as it is shown."""
  return json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)


def provenance(
  rows: Sequence[ModelRow], *, config: Mapping[str, Any] | None, seeds: Mapping[str, int],
  versions: Mapping[str, str],
) -> str:
  """Counts, scorers, seeds, versions and the config."""
  parts = [counts_table(rows).markdown(),
           origin_table(rows, seeds=seeds, versions=versions).markdown()]
  if config is not None:
    parts.append(details('Configuration', code_block(config_text(config), 'json')))
  return '\n\n'.join(parts)


def _estimate(estimate: Mapping[str, Any] | None, *, absent: str = 'not measured') -> str:
  """An estimate with its floor and the verdict."""
  return absent if estimate is None else estimate_words(estimate, named=False)


def _perplexity(perplexity: Mapping[str, Any] | None) -> str:
  """Word perplexity, with the one per token in brackets."""
  if perplexity is None:
    return 'not measured'
  words, tokens = ('over 1e308' if perplexity[k] is None else f'{perplexity[k]:.2f}'
                   for k in ('word', 'token'))
  return f'{words} ({tokens})'


def _samples(row: ModelRow) -> str:
  """Samples per prefix, a range where they differ."""
  if row.measures is None:
    return '\u2013'
  low, high = row.measures['n']['min'], row.measures['n']['max']
  return str(low) if low == high else f'{low}\u2013{high}'
