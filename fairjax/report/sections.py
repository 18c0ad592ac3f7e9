"""Sections of the Markdown report."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.report.comparison import (
  KnownBias,
  ModelRow,
  baseline_of,
  changes,
  scorer_names,
  verdict,
)
from fairjax.report.markdown import code_block, details, escape, number, percent_change, table
from fairjax.report.paired import PairedSample

LEGEND = """\
PPL and PPL\\_s: word perplexity on the test set and on its documents with a sensitive token (H-25),
with the perplexity per token in brackets; lower is better. S.S.c: continuations that mention the
value of their prefix (H-28); higher is more relevant. I.F. and G.F.: Wasserstein-1 distance of
score distributions between pairs of values (H-05, Eq. 3) and between subgroups and the whole set
(H-06, Eq. 4); lower is fairer. The floor is the 95th percentile of the same number after the
values' labels were permuted: finite samples differ even when no value matters, and a number up to
its floor shows no detectable bias. n: samples per prefix."""

LIMITS = """\
- The test is lexical: a word of a template is replaced and everything else is kept. It makes no
  claim about causes in the world, about people, or about fairness in any use of the model.
- "Within the floor" means that no difference was detected with this many samples, templates and
  this scorer; it is no proof that there is none. More samples lower the floor.
- Sentiment is what the scorer measures. Scorers err, and err differently for different words and
  groups; agreement of several scorers is the least to ask for.
- Only the listed values and templates were tested. Names stand for two genders only and for few
  origins; they say nothing about other genders, and a name is no person's identity.
- A model can be fair by ignoring the value: read I.F. and G.F. together with S.S.c and the samples.
- Whiskers and floors describe the sampling of continuations. They do not hold the variation between
  training runs: one run a model was measured. The p-values of several rows are not corrected."""


def main_table(rows: Sequence[ModelRow]) -> str:
  """The table: model by PPL, PPL_s, S.S.c, and I.F. and G.F. with floors for each scorer, n."""
  scorers = scorer_names(rows)
  header = ['model', 'PPL', 'PPL\\_s', 'S.S.c']
  header += [f'{m} {escape(s)} (floor)' for s in scorers for m in ('I.F.', 'G.F.')] + ['n']
  body = []
  for row in rows:
    cells = [escape(row.name), _perplexity(row.perplexity), _perplexity(row.subset_perplexity)]
    share = row.relevance()
    cells.append('not measured' if share is None else f"{100 * share['value']:.1f}%")
    for scorer in scorers:
      cells += [_estimate(row.estimate(scorer, m)) for m in
                ('individual_fairness', 'group_fairness')]
    body.append([*cells, _samples(row)])
  return table(header, body)


def change_table(rows: Sequence[ModelRow]) -> str | None:
  """Changes against the baseline; None without a baseline or another model."""
  baseline = baseline_of(rows)
  others = [row for row in rows if row is not baseline]
  if baseline is None or not others:
    return None
  scorers = scorer_names(rows)
  header = ['model', 'PPL', 'PPL\\_s', 'S.S.c (points)']
  header += [f'{m} {escape(s)}' for s in scorers for m in ('I.F.', 'G.F.')]
  body = []
  for row in others:
    change = changes(row, baseline)
    points = change['semantic_similarity_c']
    cells = [escape(row.name), percent_change(change['perplexity']),
             percent_change(change['subset_perplexity']),
             '\u2013' if points is None else f'{points:+.1f}']
    for scorer in scorers:
      cells += [percent_change(change[m].get(scorer)) for m in
                ('individual_fairness', 'group_fairness')]
    body.append(cells)
  return table(header, body)


def more_measures(rows: Sequence[ModelRow]) -> str:
  """Score statistics, p-values, errors, pair shares and subgroup splits, one row per scorer."""
  header = ['model', 'scorer', 'mean score', 'neutral', 'I.F. \u00b1 s.e.', 'p', 'null mean',
            'G.F. \u00b1 s.e.', 'p', 'null mean', 'pairs \u2264 floor', 'pairs < 0.05',
            'pairs < 0.1', 'I.F. across subgroups', 'I.F. within subgroups', 'S.S.c any value']
  body = []
  for row in rows:
    for name in scorer_names([row]):
      m = row.scorer(name)
      cells = [escape(row.name), escape(name), number(m['mean_score'], 3),
               f"{100 * m['neutral_share']:.0f}%"]
      for measure in ('individual_fairness', 'group_fairness'):
        e = m[measure]
        error = '' if e['std_error'] is None else f" \u00b1 {e['std_error']:.4f}"
        cells += [f"{e['value']:.4f}{error}", number(e['p_value'], 3), number(e['null_mean'], 4)]
      cells += [f'{100 * share:.0f}%' for share in m['pairs_below'].values()]
      cells += [_estimate(m.get(f'individual_fairness_{kind}_subgroup'), absent='\u2013')
                for kind in ('cross', 'within')]
      body.append([*cells, f"{100 * row.relevance('any_value')['value']:.1f}%"])
  return table(header, body, text_columns=2)


def agreement_table(agreement: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
  """Agreement of scorers on the same texts: model name (may be '') -> pairs of scorers."""
  header = ['model', 'scorers', 'n', 'Spearman', 'Pearson', 'equal signs', 'n neither neutral',
            'equal signs of these']
  first = 0 if any(agreement) else 1  # one unnamed set of texts needs no column of models
  body = []
  for model, pairs in agreement.items():
    for pair in pairs:
      shares = ['\u2013' if pair[key] is None else f'{100 * pair[key]:.1f}%'
                for key in ('equal_signs', 'equal_signs_opinionated')]
      cells = [escape(model), ' and '.join(map(escape, pair['scorers'])), str(pair['n']),
               number(pair['spearman'], 3), number(pair['pearson'], 3), shares[0],
               str(pair['n_opinionated']), shares[1]]
      body.append(cells[first:])
  return table(header[first:], body, text_columns=2 - first)


def known_bias_table(known: KnownBias) -> str:
  """Measured against the closed form, on prefixes of the grammar that training never saw."""
  header = ['model', 'I.F. (floor)', 'of the closed form', 'G.F. (floor)', 'of the closed form']
  truth = {'individual_fairness': known.individual_fairness, 'group_fairness': known.group_fairness}
  body = [['closed form', number(truth['individual_fairness'], 4), '100%',
           number(truth['group_fairness'], 4), '100%']]
  for model, measures in known.measures.items():
    cells = [escape(model)]
    for measure, value in truth.items():
      estimate = measures['scorers'][known.scorer][measure]
      share = f"{100 * estimate['value'] / value:.0f}%" if value else '\u2013'
      cells += [_estimate(estimate), share]
    body.append(cells)
  return table(header, body)


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


def provenance(
  rows: Sequence[ModelRow], *, config: Mapping[str, Any] | None, seeds: Mapping[str, int],
  versions: Mapping[str, str],
) -> str:
  """Counts, scorers, seeds, versions and the config."""
  counts = []
  scorers = {}
  for row in rows:
    if row.measures is None:
      continue
    m = row.measures
    counts.append([
      escape(row.name), str(m['records']), str(len(m['templates'])), str(len(m['values'])),
      _samples(row), 'yes' if m['coupled'] else 'no', str(m['permutations']),
      str(m['empty_continuations']), escape(m['scored_text'])])
    for name, scorer in m['scorers'].items():
      scorers[name, scorer['fingerprint']] = None
  parts = [
    table(['model', 'records', 'templates', 'values', 'n', 'coupled', 'permutations',
           'empty continuations', 'scored text'], counts),
    '\n'.join(f'- Scorer {escape(name)}: fingerprint `{fingerprint}`'
              for name, fingerprint in scorers),
    '- Seeds: ' + (', '.join(f'{escape(k)} {v}' for k, v in seeds.items()) or 'not given'),
    '- Versions: ' + ', '.join(f'{escape(k)} {escape(v)}' for k, v in versions.items())]
  if config is not None:
    text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
    parts.append(details('Configuration', code_block(text, 'json')))
  return '\n\n'.join(part for part in parts if part)


def _estimate(estimate: Mapping[str, Any] | None, *, absent: str = 'not measured') -> str:
  """An estimate with its floor and, where it holds, the verdict."""
  if estimate is None:
    return absent
  words = f", {verdict(estimate)}" if estimate['within_floor'] else ''
  return f"{estimate['value']:.4f} ({estimate['null_p95']:.4f}){words}"


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
