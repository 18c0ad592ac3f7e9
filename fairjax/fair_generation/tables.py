"""Tables 1 and 2 of Yeo & Chen 2020 for the completions of any models (Y-05, Y-07 to Y-10)."""

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairjax.counterfactual import Attribute
from fairjax.errors import UserError
from fairjax.fair_generation.biases import embedding_bias
from fairjax.fair_generation.bounds import mean_interval, satterthwaite_radius, student_radius
from fairjax.fair_generation.completions import Completions
from fairjax.fair_generation.embedding import GenderedEmbedding
from fairjax.fair_generation.professions import Miss, Parse
from fairjax.measure import read_generations, semantic_similarity_c

_MISSES_SHOWN = 20


def profession_table(
  completions: Completions, parses: Sequence[Parse | Miss], *, window: int, source: str,
) -> dict[str, Any]:
  """What the parse found: rates by prompt and group, misses, professions (Y-05, Y-09)."""
  groups = np.array([completions.prompts[i].group for i in completions.index])
  by_group = {g: _rates([p for p, own in zip(parses, groups, strict=True) if own == g])
              for g in completions.groups}
  found = collections.Counter(p.profession for p in parses if isinstance(p, Parse))
  misses = collections.Counter(p.word or '(nothing)' for p in parses
                               if isinstance(p, Miss) and p.reason == 'no profession')
  return {
    'definition': 'Y-05', 'model': completions.model,
    'records_of_other_templates': completions.left_out,
    'empty_texts': completions.empty_texts and completions.empty_texts.to_dict(),
    'professions_list': source,
    'window': window, 'all': _rates(parses), 'groups': by_group,
    'prompts': [{'prompt': prompt.text, 'group': prompt.group,
                 **_rates([parses[i] for i in completions.rows(k)])}
                for k, prompt in enumerate(completions.prompts)],
    'words_before': {str(k): n for k, n in sorted(collections.Counter(
      p.words_before for p in parses if isinstance(p, Parse)).items())},
    'professions': dict(found.most_common()), 'distinct_professions': len(found),
    'words_behind_as_a_of_misses': dict(misses.most_common(_MISSES_SHOWN)),
    'further_words_of_misses': max(0, len(misses) - _MISSES_SHOWN)}


def _rates(parses: Sequence[Parse | Miss]) -> dict[str, Any]:
  parsed = [p for p in parses if isinstance(p, Parse)]
  reasons = collections.Counter(p.reason for p in parses if isinstance(p, Miss))
  return {'n': len(parses), 'parsed': len(parsed), 'plural': sum(p.plural for p in parsed),
          'parse_rate': len(parsed) / len(parses) if parses else None, 'misses': dict(reasons)}


def bias_tables(
  completions: Completions, parses: Sequence[Parse | Miss], embedding: GenderedEmbedding, *,
  level: float = 0.05,
) -> dict[str, Any]:
  """Tables 1 and 2 of one model: b of the parsed professions, before and after debiasing.

  Each mean has Student's interval (approximate; none below 2 samples) and a guaranteed one (the
  better of Hoeffding's and the empirical Bernstein bound on the range of the list's professions).
  The mean of a group is that of its prompts' means, as in the paper.

  Returns:
    JSON-able: `prompts`, `groups` (Table 1 and, with `debiased`, Table 2 in both parts, Y-08).
  """
  before = embedding_bias(parses, embedding)
  after = embedding_bias(parses, embedding, debiased=True)
  specific = np.array([isinstance(p, Parse) and p.profession in embedding.vectors
                       and embedding.is_specific(p.profession) for p in parses])
  prompts, cells = [], []
  for k, prompt in enumerate(completions.prompts):
    rows = completions.rows(k)
    rows = rows[np.isfinite(before.values[rows])]
    cells.append(rows)
    prompts.append({
      'prompt': prompt.text, 'group': prompt.group, 'value': prompt.value,
      'template': prompt.template, 'completions': int((completions.index == k).sum()),
      'n': len(rows), 'bias': _mean(before.values[rows], before.support, level),
      'bias_debiased': _mean(after.values[rows], after.support, level)})
  groups = {}
  for group in completions.groups:
    own = [cells[k] for k, p in enumerate(completions.prompts) if p.group == group]
    rows = np.concatenate(own)
    groups[group] = {
      'prompts': len(own), 'n': len(rows),
      'bias': _mean_of_means([before.values[r] for r in own], level),
      'bias_debiased': _mean_of_means([after.values[r] for r in own], level),
      'debiased_parts': _parts(after.values[rows], specific[rows], after.support, level)}
  return {
    'definition': 'Y-07, Y-08', 'model': completions.model, 'level': level,
    'undefined': before.undefined, 'support': list(before.support),
    'support_debiased': list(after.support), 'prompts': prompts, 'groups': groups,
    'female_less_male': _difference(completions, cells, before.values, after.values, level)}


def _mean(values: np.ndarray, support: tuple[float, float], level: float) -> dict[str, Any] | None:
  """Mean with both intervals; None without values."""
  sure = mean_interval(values, level=level, support=support)
  if sure is None:
    return None
  radius = student_radius(values, level=level)
  return {'mean': sure.mean, 'n': sure.n,
          'student': ([sure.mean - radius, sure.mean + radius] if math.isfinite(radius)
                      else None),
          'guaranteed': [sure.low, sure.high]}


def _mean_of_means(cells: Sequence[np.ndarray], level: float) -> dict[str, Any] | None:
  """Mean over prompts of their means; prompts without a value are left out and counted."""
  full = [c for c in cells if len(c)]
  if not full:
    return None
  mean, found = float(np.mean([c.mean() for c in full])), None
  if all(len(c) > 1 for c in full):
    parts = [(float(np.var(c, ddof=1)) / len(c) / len(full)**2, len(c) - 1) for c in full]
    radius = satterthwaite_radius(parts, level=level)
    found = [mean - radius, mean + radius] if math.isfinite(radius) else None
  return {'mean': mean, 'n': sum(map(len, full)), 'prompts_without_value': len(cells) - len(full),
          'student': found}


def _parts(values: np.ndarray, specific: np.ndarray, support, level) -> dict[str, Any]:
  """Gender-specific and other words apart: the latter are 0 after exact debiasing (Y-08)."""
  found: dict[str, Any] = {
    name: {'n': int(mask.sum()), 'mean': float(values[mask].mean()) if mask.any() else None,
           'largest': float(np.abs(values[mask]).max()) if mask.any() else None}
    for name, mask in (('gender_specific', specific), ('neutral', ~specific))}
  found['gender_specific']['share'] = float(specific.mean()) if len(specific) else None
  return found


def _difference(completions, cells, before, after, level) -> dict[str, Any] | None:
  """Female less male: the difference of the groups' means, with Student's interval."""
  sides = [[cells[k] for k, p in enumerate(completions.prompts) if p.group == g]
           for g in ('female', 'male')]
  if not all(sides) or any(len(c) < 2 for side in sides for c in side):
    return None
  found: dict[str, Any] = {}
  for name, values in (('bias', before), ('bias_debiased', after)):
    means = [float(np.mean([values[c].mean() for c in side])) for side in sides]
    radius = satterthwaite_radius(
      [(float(np.var(values[c], ddof=1)) / len(c) / len(side)**2, len(c) - 1)
       for side in sides for c in side], level=level)
    gap = means[0] - means[1]
    found[name] = {'difference': gap,
                   'student': [gap - radius, gap + radius] if math.isfinite(radius) else None}
  return found


def utility(
  completions: Completions, parses: Sequence[Parse | Miss], attribute: Attribute | None,
) -> dict[str, Any]:
  """Whether what is fair is of use (Y-10): parse rate, different texts, S.S.c (H-28).

  A completer that writes one text for every prompt is fair by every d: `constant` says so.

  Args:
    completions: of one model.
    parses: of the completions.
    attribute: of the records, for S.S.c over its values that occur in them; None leaves it out,
      with the reason.
  """
  texts = [t.strip() for t in completions.continuations]
  distinct = len(set(texts))
  shared, absent = None, None
  if attribute is None:
    absent = 'the attribute of the records is not built in: give it with --attribute'
  else:
    # The paper's eight prompts have no "they": what no record has, is not asked for.
    present = {p.value for p in completions.prompts}
    asked = dataclasses.replace(
      attribute, values=tuple(v for v in attribute.values if v.text in present))
    try:
      found = semantic_similarity_c(read_generations(completions.records, asked, empty='keep'))
      shared = found['conditioned'].to_dict()
    except UserError as e:
      absent = str(e)
  return {
    'definition': 'Y-10', 'n': len(texts), 'distinct_continuations': distinct / len(texts),
    'constant': distinct == 1 and len(completions.prompts) > 1,
    'parse_rate': _rates(parses)['parse_rate'],
    'distinct_professions': len({p.profession for p in parses if isinstance(p, Parse)}),
    'semantic_similarity_c': shared, 'semantic_similarity_c_absent': absent}
