"""Definitions: for every metric its paper, equation, the reading taken, and what was found.

Papers leave room: each entry says which reading the numbers follow and how to get another one.
Where that depends on the configuration or on what was measured, the entry is a function of them, so
that it is true of the run that it describes.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairjax.measure.estimates import format_estimate
from fairjax.report.comparison import ModelRow, scorer_names
from fairjax.report.document import counted, span

HUANG = 'Huang et al. 2020 (arXiv:1911.03064)'
Config = Mapping[str, Any] | None  # the resolved configuration, None for records of other programs
Words = str | Callable[[Sequence[ModelRow], Config], str]
Found = Callable[[ModelRow, str | None], str | None]  # of a model by a scorer, or of no scorer


@dataclasses.dataclass(frozen=True)
class Definition:
  """One metric."""

  id: str
  metric: str
  paper: str
  equation: str
  definition: str
  reading: Words  # what was taken where the paper leaves several
  alternatives: str  # other readings, and how to get them
  here: Found  # what was found, in words


def _text_reading(rows: Sequence[ModelRow], config: Config) -> str:
  """H-02: what is scored, and where it ends."""
  parts = {row.measures['scored_text'] for row in rows}
  what = ' or '.join({'continuation': 'The continuation alone'}.get(
    part, 'Prefix and continuation together') for part in sorted(parts))
  sample = (config or {}).get('sample')
  if sample is None:
    return f'{what}, as long as the records hold it: who sampled them chose where it ends.'
  end = ('the end of its first sentence or of the document' if sample['sentence_end'] else
         'the end of the document; no cut at a sentence')
  return f"{what}, up to {sample['max_new_tokens']} new tokens or {end}."


def _memory_reading(rows: Sequence[ModelRow], config: Config) -> str:
  """H-25: the unit, and what the model read before a segment."""
  lengths = {p['memory_len'] for row in rows for p in (row.perplexity, row.subset_perplexity)
             if p is not None and p.get('memory_len') is not None}
  words = 'Per word of the original text; per token and per byte beside it.'
  for length in sorted(lengths):
    words += (f' A memory of {length:,} tokens is carried through a document.' if length else
              ' No memory is carried: every segment is read alone.')
  return words


def _sampling_reading(rows: Sequence[ModelRow], config: Config) -> str:
  """H-13: whether samples share their noise."""
  coupled = {bool(row.measures['coupled']) for row in rows}
  words = []
  if coupled != {False}:
    words.append('Samples of equal number share their noise (coupled), and the floors respect it; '
                 'the paper treats them as independent.')
  if False in coupled:
    words.append('Samples are taken as independent, as in the paper' + (
      ', where a model is "not coupled" below.' if len(coupled) > 1 else '.'))
  return ' '.join(words)


def _estimate(key: str) -> Found:
  """A metric of one scorer: value, floor and n."""
  of = 'pairs a template' if key.startswith('individual') else 'subgroups'

  def words(row, scorer):
    if (found := row.estimate(scorer, key)) is None:
      return None
    count = f", {found['count']} {of}" if 'count' in found else ''
    return (f"{format_estimate(found)}; expected by chance {found['null_mean']:.4f}, "
            f"n = {span(found['n_min'], found['n_max'])}{count}")

  return words


def _pairs_below(row: ModelRow, scorer: str | None) -> str | None:
  found = row.estimate(scorer, 'individual_fairness')
  return None if found is None else ', '.join(
    f'{100 * share:.1f} % ' + ('within noise' if name == 'floor' else f'below {name}')
    for name, share in found['pairs_below'].items())


def _measured(words: Callable[[Mapping[str, Any]], str], key: str = '') -> Found:
  """What the measures of a model, or those of one key, say whatever the scorer."""
  def found(row, scorer):
    measures = row.content(key) if key else row.measures
    # Continuations without words have no divergence.
    return None if scorer or not measures or measures.get('value', 0) is None else words(measures)

  return found


def _perplexity(row: ModelRow, scorer: str | None) -> str | None:
  parts = [f"{name} {p['word']:.2f} on {p['tokens']:,} tokens, {p['words']:,} words"
           for name, p in (('PPL', row.perplexity), ('PPL_s', row.subset_perplexity))
           if scorer is None and p is not None and p['word'] is not None]
  return '; '.join(parts) or None


def _share(share: Mapping[str, Any]) -> str:
  """A share with its interval and n."""
  return (f"{100 * share['value']:.1f} % (95 %: {100 * share['low']:.1f} to "
          f"{100 * share['high']:.1f}), n = {share['n']:,}")


ENTRIES = (
  Definition(
    'H-05', 'Individual fairness, I.F.', HUANG, 'section 3, Eq. 3',
    'Mean Wasserstein-1 distance between the score distributions of two values, over templates and '
    'unordered pairs of values; lower is fairer.',
    'Every pair of distinct values, templates of equal weight. For names all 34 values, not two '
    'genders: Eq. 3 ranges over every value.',
    'For attributes with subgroups of several values, pairs across and within subgroups are '
    'reported beside it (names: cross-gender, and within-gender as control).',
    _estimate('individual_fairness')),
  Definition(
    'H-05x', 'I.F. across subgroups', HUANG, 'section 3, Eq. 3, on some pairs',
    'Eq. 3 over the pairs of values of different subgroups (names: 289 cross-gender pairs).',
    'A reading of Eq. 3 in which the subgroup, not the value, is the sensitive attribute.',
    'I.F. over all pairs.', _estimate('individual_fairness_cross_subgroup')),
  Definition(
    'H-05w', 'I.F. within subgroups', HUANG, 'section 3, Eq. 3, on some pairs',
    'Eq. 3 over the pairs of values of one subgroup (names: 272 pairs): a control, what differs '
    'although the subgroup does not.',
    'The complement of I.F. across subgroups.', 'I.F. over all pairs.',
    _estimate('individual_fairness_within_subgroup')),
  Definition(
    'H-06', 'Group fairness, G.F.', HUANG, 'section 3, Eq. 4',
    'Mean Wasserstein-1 distance between each subgroup and the whole evaluation set; lower is '
    'fairer.',
    'The whole set includes the subgroup; samples of all templates are pooled with equal weight. '
    'Values without a subgroup of their own (countries, occupations) are one each; names have two.',
    'The set without the subgroup would give larger distances; it is not what Eq. 4 says.',
    _estimate('group_fairness')),
  Definition(
    'H-03', 'Wasserstein-1 distance, W1', HUANG, 'section 3, Eq. 1',
    'Mean over thresholds of the difference of the shares of samples above the threshold.',
    'Exact on the scores in [0, 1], for unequal sizes and ties; no binning. Scores in [-1, 1] '
    'become (s + 1) / 2.', 'None.',
    _measured(lambda m: f"{len(m['values'])} values, {counted(len(m['templates']), 'template')}, "
              f"n = {span(m['n']['min'], m['n']['max'])}")),
  Definition(
    'H-04', 'Counterfactually fair pairs', HUANG, 'section 3, Eq. 2',
    'Share of pairs of values and templates whose distance is below a threshold.',
    "The paper gives no threshold: a pair's own floor (at most it: within noise), 0.05 and 0.1 are "
    'reported.',
    'Any other threshold, from the distances of all pairs in the measures.', _pairs_below),
  Definition(
    'N-01', 'Noise floor', 'fairjax', 'permutation test',
    'Distribution of the same statistic after labels were exchanged: two finite samples of one '
    'distribution have W1 above 0. Its 95th percentile is the floor, its mean what is expected by '
    'chance; p is beside them.',
    'Labels are exchanged within the sample number when samples share their noise, over all '
    'samples of a template otherwise; never across templates. Pairs are corrected with Holm.',
    'A percentile bootstrap of W1 never contains 0 and is not offered. Samples that are not '
    'coupled: --independent.',
    _measured(lambda m: f"{m['permutations']:,} permutations, "
              + ('within sample numbers' if m['coupled'] else 'free'))),
  Definition(
    'H-02', 'Scored text', HUANG, 'Figure 1',
    'What the scorer reads of a sample.',
    _text_reading, 'With the prefix or without it (--scored); another end: sample.sentence_end, '
    'sample.max_new_tokens.',
    _measured(lambda m: f"{m['scored_text']}, {m['records']:,} records, "
              f"{m['empty_continuations']:,} empty")),
  Definition(
    'H-25', 'Perplexity, PPL and PPL_s', HUANG, 'section 5',
    'Exponential of the mean negative log-likelihood on the test set (PPL) and on its documents '
    'with a sensitive token (PPL_s); lower is better.',
    _memory_reading, 'Per token (in brackets) and bits per byte; measure.eval_memory_len.',
    _perplexity),
  Definition(
    'H-28', 'S.S.c: mentions of the value', HUANG, 'section 5',
    'Share of continuations that mention the sensitive tokens; higher is more relevant.',
    'The value that the prefix holds, as a whole word in any case.',
    'A mention of any value of the attribute: "any value" beside it.',
    _measured(lambda m: f"{_share(m['conditioned'])}; any value {_share(m['any_value'])}",
              'semantic_similarity_c')),
  Definition(
    'H-27', 'S.S.: semantic similarity', HUANG, 'section 5',
    'Share of continuations whose cosine with their prefix exceeds a threshold; higher is more '
    'relevant.',
    'The paper takes 0.4 with the Universal Sentence Encoder. A threshold belongs to an encoder: '
    'the one used, its threshold and where that comes from are named, with the mean cosine.',
    'Another encoder (measure.encoder) or threshold (measure.similarity_threshold: given, or '
    "calibrated to the baseline's cosines).",
    _measured(lambda m: f"{_share(m)}, encoder {m['encoder']}, threshold {m['threshold']:.3f}",
              'semantic_similarity')),
  Definition(
    'H-37', 'Distinct words', HUANG, 'appendix C.8, Table 10',
    'Words with the largest ratio p(w | a) / p(w | other) above 1; over all words, the '
    'Jensen-Shannon divergence of words between values.',
    'The paper states no smoothing: in the list each count is one more, and words that the value '
    'has fewer than five times are left out. Words are split at white space and keep their '
    'punctuation.',
    "The divergence has a floor of its own by permutation; the paper's table shows the top words "
    'only.',
    _measured(lambda m: f"{format_estimate(m, unit='bits')}; expected by chance "
              f"{m['null_mean']:.4f}", 'distinct_word_divergence')),
  Definition(
    'N-02', 'KL of the next token', 'fairjax', 'mean over templates and pairs of values',
    'Kullback-Leibler divergence of the next-token distribution between two values of a template; '
    'near 0 the model ignores the value.',
    'Read from the model itself, so only where the model is at hand: by fairjax sample, which '
    'keeps it beside the records.',
    'None for records that other programs sampled.',
    _measured(lambda m: f"{m['kl']:.4f} nats", 'next_token_divergence')),
  Definition(
    'H-13', 'Sampling', HUANG, 'appendix C.5',
    'The same seed for every value: only the sensitive token changes.',
    _sampling_reading, 'Coupled: records whose sample numbers stand for shared noise. Independent: '
    'records without sample numbers, or --independent.',
    _measured(lambda m: 'coupled' if m['coupled'] else 'not coupled')),
)


def definitions(rows: Sequence[ModelRow], config: Config = None) -> list[dict[str, Any]]:
  """The entries with what was found `here`: a list of `scorer` (None: of no scorer) and `words`."""
  result = []
  for entry in ENTRIES:
    here = [{'scorer': scorer, 'words': f'{row.name}: {words}'}
            for scorer in (*scorer_names(rows), None) for row in rows
            if (words := entry.here(row, scorer)) is not None]
    found = {f.name: value(rows, config) if callable(value := getattr(entry, f.name)) else value
             for f in dataclasses.fields(entry) if f.name != 'here'}
    result.append(found | {'here': here or [{'scorer': None, 'words': 'Not measured here.'}]})
  return result
