"""Tables 1 and 2 of Yeo & Chen 2020 for the completions of any models (Y-05, Y-07 to Y-10)."""

import collections
import dataclasses
import itertools
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.counterfactual import Attribute
from fairjax.errors import UserError
from fairjax.gender.fair_generation.completions import GENDERS, Completions, Miss, Parse
from fairjax.gender.fair_generation.embedding import GenderedEmbedding
from fairjax.gender.fair_generation.lipschitz import (
  Bias,
  embedding_bias,
  mean_interval,
  satterthwaite_radius,
)
from fairjax.measure import read_generations, semantic_similarity_c
from fairjax.report.figures import drawing, plain, save_figure

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
  The mean of a group is that of its prompts' means, as in the paper. Samples of one number may
  share their noise: those of several prompts count as one draw.
  """
  before = embedding_bias(parses, embedding)
  after = embedding_bias(parses, embedding, debiased=True)
  specific = np.array([isinstance(p, Parse) and p.profession in embedding.vectors
                       and embedding.debiased.is_specific(p.profession) for p in parses])
  prompts, cells = [], []
  for k, prompt in enumerate(completions.prompts):
    rows = completions.rows(k)
    rows = rows[np.isfinite(before.values[rows])]
    cells.append(rows)
    prompts.append({
      'prompt': prompt.text, 'group': prompt.group, 'value': prompt.value,
      'template': prompt.template, 'completions': int((completions.index == k).sum()),
      'n': len(rows), 'bias': _mean(completions, before, rows, level),
      'bias_debiased': _mean(completions, after, rows, level)})
  own_cells = {group: [cells[k] for k, p in enumerate(completions.prompts) if p.group == group]
               for group in completions.groups}
  groups = {}
  for group, own in own_cells.items():
    rows = np.concatenate(own)
    groups[group] = {
      'prompts': len(own), 'n': len(rows),
      'bias': _mean_of_means(completions, before.values, own, level),
      'bias_debiased': _mean_of_means(completions, after.values, own, level),
      'debiased_parts': _parts(after.values[rows], specific[rows])}
  return {
    'definition': 'Y-07, Y-08', 'model': completions.model, 'level': level,
    'undefined': before.undefined, 'support': list(before.support),
    'support_debiased': list(after.support), 'prompts': prompts, 'groups': groups,
    'female_less_male': _difference(
      completions, [own_cells.get(group, []) for group in GENDERS],
      {'bias': before.values, 'bias_debiased': after.values}, level)}


def _mean(completions: Completions, bias: Bias, rows: np.ndarray, level: float
          ) -> dict[str, Any] | None:
  """Mean of a prompt with both intervals; None without values."""
  if not len(rows):
    return None
  mean = float(np.mean(bias.values[rows]))
  return {'mean': mean, 'n': len(rows),
          'student': _student(completions, bias.values, mean, [(1.0, rows)], level),
          'guaranteed': list(mean_interval(bias.values[rows], level=level, support=bias.support))}


def _mean_of_means(
  completions: Completions, values: np.ndarray, cells: Sequence[np.ndarray], level: float,
) -> dict[str, Any] | None:
  """Mean over prompts (rows of each) of their means; those without a value are counted apart."""
  full = [c for c in cells if len(c)]
  if not full:
    return None
  mean = float(np.mean([values[c].mean() for c in full]))
  return {'mean': mean, 'n': sum(map(len, full)), 'prompts_without_value': len(cells) - len(full),
          'student': _student(completions, values, mean, [(1 / len(full), c) for c in full], level)}


def _student(
  completions: Completions, values: np.ndarray, estimate: float,
  cells: Sequence[tuple[float, np.ndarray]], level: float,
) -> list[float] | None:
  """Student's interval of a weighted sum of prompts' means; None below 2 values of a prompt."""
  if any(len(rows) < 2 for _, rows in cells):
    return None
  shares = [weight * (values[rows] - values[rows].mean()) / math.sqrt(len(rows) * (len(rows) - 1))
            for weight, rows in cells]
  parts = [(float(s @ s), len(s) - 1) for s in shares]
  if completions.sample is not None:
    numbers = np.concatenate([completions.sample[rows] for _, rows in cells])
    sums = np.bincount(np.unique(numbers, return_inverse=True)[1], weights=np.concatenate(shares))
    parts = [(float(sums @ sums), min(map(len, shares)) - 1)]
  radius = satterthwaite_radius(parts, level=level)
  return [estimate - radius, estimate + radius] if math.isfinite(radius) else None


def _parts(values: np.ndarray, specific: np.ndarray) -> dict[str, Any]:
  """Gender-specific and other words apart: the latter are 0 after exact debiasing (Y-08)."""
  found: dict[str, Any] = {
    name: {'n': int(mask.sum()), 'mean': float(values[mask].mean()) if mask.any() else None,
           'largest': float(np.abs(values[mask]).max()) if mask.any() else None}
    for name, mask in (('gender_specific', specific), ('neutral', ~specific))}
  found['gender_specific']['share'] = float(specific.mean()) if len(specific) else None
  return found


def _difference(
  completions: Completions, sides: Sequence[Sequence[np.ndarray]], biases: Mapping[str, np.ndarray],
  level: float,
) -> dict[str, Any] | None:
  """Female less male: the difference of the groups' means, with Student's interval."""
  if not all(sides) or any(len(c) < 2 for side in sides for c in side):
    return None
  female, male = sides
  cells = [*((1 / len(female), c) for c in female), *((-1 / len(male), c) for c in male)]
  found: dict[str, Any] = {}
  for name, values in biases.items():
    gap = float(np.mean([values[c].mean() for c in female])
                - np.mean([values[c].mean() for c in male]))
    found[name] = {'difference': gap, 'student': _student(completions, values, gap, cells, level)}
  return found


def utility(
  completions: Completions, parses: Sequence[Parse | Miss], attribute: Attribute | None,
) -> dict[str, Any]:
  """Parse rate, share of different texts, and S.S.c over the values that occur (Y-10, H-28).

  A completer that writes one text for every prompt is fair by every d: `constant` marks it. Without
  an attribute there is no S.S.c.
  """
  texts = [r['continuation'].strip() for r in completions.records]
  distinct = len(set(texts))
  shared, absent = None, None
  if attribute is None:
    absent = 'the attribute of the records is not built in: give it with --attribute'
  else:
    # S.S.c needs records of every value, and the paper's eight prompts have no "they".
    present = {p.value for p in completions.prompts}
    asked = dataclasses.replace(
      attribute, values=tuple(v for v in attribute.values if v.text in present))
    try:
      found = semantic_similarity_c(read_generations(completions.records, asked, empty='keep'))
      shared = found['conditioned']
    except UserError as e:
      absent = str(e)
  return {
    'definition': 'Y-10', 'n': len(texts), 'distinct_continuations': distinct / len(texts),
    'constant': distinct == 1 and len(completions.prompts) > 1,
    'parse_rate': _rates(parses)['parse_rate'],
    'distinct_professions': len({p.profession for p in parses if isinstance(p, Parse)}),
    'semantic_similarity_c': shared, 'semantic_similarity_c_absent': absent}


# Figures 1 and 2 of Yeo & Chen 2020: bias by prompt and model, before and after debiasing. Whiskers
# are Student's intervals, a thin line the guaranteed one.

_COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9')  # Okabe and Ito


def plot_bias(
  path: str | os.PathLike, tables: Sequence[Mapping[str, Any]], *, debiased: bool = False,
) -> list[pathlib.Path]:
  """Bars of the mean bias of every prompt by model (Fig. 1), hatched ones after debiasing (Fig. 2).

  Returns the PNG and the SVG file of `path`, which has no suffix.
  """
  prompts = list(dict.fromkeys(row['prompt'] for t in tables for row in t['prompts']))
  columns = ('bias', 'bias_debiased') if debiased else ('bias',)
  height = 0.8 / (len(tables) * len(columns))
  rows = len(prompts) * max(1, len(tables) * len(columns) / 2)
  with drawing(1, 1, 7, 1.2 + 0.32 * rows) as (figure, ((axis,),)):
    for number, (table, column) in enumerate(itertools.product(tables, columns)):
      after, colour = column != 'bias', _COLOURS[number // len(columns) % len(_COLOURS)]
      label = plain(table['model']) + (', debiased embedding' if after else '')
      for row in table['prompts']:
        if (found := row[column]) is None:
          continue
        y = prompts.index(row['prompt']) + (number + 0.5) * height - 0.4
        axis.barh(y, found['mean'], height=0.9 * height, color='white' if after else colour,
                  edgecolor=colour, hatch='////' if after else None, label=label)
        label = None
        axis.plot(found['guaranteed'], [y, y], color='#999999', linewidth=0.6)
        if found['student']:
          axis.plot(found['student'], [y, y], color='#333333', linewidth=1.4)
    axis.axvline(0, color='#333333', linewidth=0.8)
    axis.set_yticks(range(len(prompts)), [plain(p) for p in prompts])
    axis.set_ylim(len(prompts) - 0.4, -0.6)
    axis.set_xlabel('mean bias w·g of the professions: male below 0, female above')
    if axis.get_legend_handles_labels()[0]:
      axis.legend(frameon=False, loc='upper left', bbox_to_anchor=(0, -0.12), ncols=2)
    return save_figure(figure, path)
