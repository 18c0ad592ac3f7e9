"""Results of the measures of Yeo & Chen 2020 as lines of text."""

from collections.abc import Mapping, Sequence
from typing import Any

_SHOWN = 10  # professions at either end; pairs of which d demands nothing


def format_subspace(result: Mapping[str, Any]) -> list[str]:
  """The gender direction and the bias of the professions."""
  space, debias, found = result['subspace'], result['debias'], result['professions']
  shares = ', '.join(f'{100 * s:.1f}' for s in space['explained_variance'])
  lines = [
    f"{result['embeddings']}: {result['format']}, {result['words_in_file']:,} words, width "
    f"{result['width']}", _pairs(result),
    f"gender direction (Y-06) of {space['n_pairs']} pairs, female positive; variance explained by "
    f'each component: {shares} %']
  lines.append('pairs whose female word has the larger projection: '
               f"{space['pairs_with_female_above']} of {space['n_pairs']}")
  he_she = result['cosine_he_she']
  lines.append('cos(he, she): ' + ('a word is missing' if he_she is None else f'{he_she:.4f}'))
  lines.append(f"professions ({found['list']}): {found['found']} of {found['n']} in the file, "
               f"{len(found['respelled'])} of them under another spelling; {found['policy']}")
  lines.append(
    f"hard debiasing (Y-08): {debias['neutralised']} of the loaded words neutralised, "
    f"{debias['gender_specific']} gender-specific; {debias['pairs_equalised']} pairs equalised, "
    f"{len(debias['pairs_skipped'])} skipped")
  lines.append(f"{'professions':16s} {'n':>4s}  {'mean b':>8s} {'sd':>7s} {'mean |b|':>8s}   after:"
               f" {'mean b':>8s} {'mean |b|':>8s} {'largest |b|':>11s}")
  for name in ('all', 'gender_specific', 'neutral'):
    part = result['summary'][name]
    if not part['n']:
      continue
    before, after = part['bias'], part['bias_debiased']
    sd = '-' if before['sd'] is None else f"{before['sd']:.4f}"
    lines.append(
      f"{name:16s} {part['n']:4d}  {before['mean']:+z8.4f} {sd:>7s} {before['mean_absolute']:8.4f}"
      f"          {after['mean']:+z8.4f} {after['mean_absolute']:8.4f} "
      f"{max(abs(after['min']), abs(after['max'])):11.2g}")
  scores = result['summary']['stereotype_correlation']
  if scores:
    lines.append(f"Spearman of b with the list's stereotypes (female positive): "
                 f"{scores['spearman']:.3f} (n = {scores['n']}, 95 % {scores['low']:.3f} to "
                 f"{scores['high']:.3f})")
  table = found['table']
  for title, rows in (('most male', table[:_SHOWN]), ('most female', table[::-1][:_SHOWN])):
    lines.append(f'{title}: ' + ', '.join(
      f"{r['word']} {r['bias']:+z.3f} ({r['bias_debiased']:+z.3f})" for r in rows))
  return [*lines, 'in brackets after debiasing; --json has all professions. The direction knows '
          'two genders only: those of its pairs']


def _pairs(embedding: Mapping[str, Any]) -> str:
  """The definitional pairs that give g, and the source of their list."""
  space = embedding['subspace']
  absent = [m['pair'] for m in space['pairs_missing']]
  return (f"definitional pairs ({embedding['pairs_list']}): "
          + ', '.join('/'.join(pair) for pair in space['pairs'])
          + (f"; not in the file: {', '.join('/'.join(p) for p in absent)}" if absent else ''))


def format_professions(result: Sequence[Mapping[str, Any]]) -> list[str]:
  """Parse rates by group and prompt, and what was missed."""
  lines = []
  for model in result:
    lines.append(f"{model['model']}: {_rates(model['all'])}; {model['distinct_professions']} "
                 f"different professions (list: {model['professions_list']}, window "
                 f"{model['window']})"
                 + (f"; {n} records of rewordings or other templates left out"
                    if (n := model['records_of_other_templates']) else ''))
    wide = max(len(row['prompt']) for row in model['prompts'])
    lines += [f'  {name:{wide + 2}s} {_rates(part)}' for name, part in model['groups'].items()]
    lines += [f"    {row['prompt']:{wide}s} {_rates(row)}" for row in model['prompts']]
    lines.append('  words before the profession: ' + ', '.join(
      f'{k}: {n}' for k, n in model['words_before'].items()))
    first = ', '.join(f'{w} {n}' for w, n in model['words_behind_as_a_of_misses'].items())
    if first:
      more = model['further_words_of_misses']
      lines.append(f'  after "as a" of misses: {first}' + (f' and {more} more' if more else ''))
  return lines


def _rates(part: Mapping[str, Any]) -> str:
  if not part['n']:
    return 'no completion'
  misses = ', '.join(f'{reason}: {n}' for reason, n in part['misses'].items())
  return (f"{part['parsed']} of {part['n']} parsed ({100 * part['parse_rate']:.1f} %"
          + (f", {part['plural']} plural" if part['plural'] else '') + ')'
          + (f'; missed: {misses}' if misses else ''))


def format_tables(result: Mapping[str, Any]) -> list[str]:
  """Tables 1 and 2, one block a model."""
  space = result['embedding']['subspace']
  lines = [f"bias w.g (Y-06), {result['embedding']['embeddings']}, {space['n_pairs']} pairs, first "
           f"component {100 * space['explained_variance'][0]:.1f} % of their variance",
           _pairs(result['embedding'])]
  for model in result['models']:
    wide = max(len(row['prompt']) for row in model['prompts'])
    group = max(map(len, model['groups']))
    lines += ['', f"{model['model']}: Table 1, mean bias by prompt; [Student], (guaranteed), "
              f"{100 * (1 - model['level']):g} % each"]
    lines += [f"  {row['group']:{group}s}  {row['prompt']:{wide}s} {_mean(row['bias'])}"
              for row in model['prompts']]
    lines += [f"  {name:{group}s}  {'average of the prompts':{wide}s} {_mean(part['bias'])}"
              for name, part in model['groups'].items()]
    lines.append(f"{model['model']}: Table 2, the same on the debiased embedding, and its parts")
    for name, part in model['groups'].items():
      parts = part['debiased_parts']
      specific, neutral = parts['gender_specific'], parts['neutral']
      lines.append(f"  {name:{group}s}  {_mean(part['bias_debiased'])}")
      lines.append(f"    gender-specific: {_part(specific)}; neutral: "
                   f'{_part(neutral)}')
    gap = model['female_less_male']
    lines += [f"  female less male, {title}: {gap[column]['difference']:+z.4f}"
              + _brackets(gap[column]['student'], '[]')
              for column, title in (('bias', 'original'), ('bias_debiased', 'debiased')) if gap]
    if not gap:
      lines.append('  female less male: not measured, it needs two values of each prompt of the '
                   'groups female and male (--group)')
    undefined = ', '.join(f'{k}: {n}' for k, n in model['undefined'].items())
    lines.append(f"  {_rates(model['parse']['all'])}"
                 + (f'; without a bias: {undefined}' if undefined else ''))
    lines += [f'  {line}' for line in _utility(model['utility'])]
  return lines


def _mean(found: Mapping[str, Any] | None) -> str:
  if found is None:
    return 'no profession parsed'
  return (f"{found['mean']:+z.4f}{_brackets(found['student'], '[]')}"
          f"{_brackets(found.get('guaranteed'), '()')}  n = {found['n']}"
          + (f", {found['prompts_without_value']} prompts without a profession"
             if found.get('prompts_without_value') else ''))


def _brackets(interval: Sequence[float] | None, signs: str) -> str:
  if interval is None:
    return ''
  return f' {signs[0]}{interval[0]:+z.4f}, {interval[1]:+z.4f}{signs[1]}'


def _part(part: Mapping[str, Any]) -> str:
  return 'none' if part['mean'] is None else (
    f"{part['mean']:+z.4f} (n = {part['n']}, largest |b| {part['largest']:.2g})")


def format_test(result: Sequence[Mapping[str, Any]]) -> list[str]:
  """The verdicts, and the pairs that decide them."""
  lines = [_pairs(result[0]['embedding'])] if result and result[0]['embedding'] else []
  for test in result:
    factor = '' if test['lipschitz'] == 1 else f"{test['lipschitz']:g} x "
    more = f" + {test['tolerance']:g}" if test['tolerance'] else ''
    lines.append(
      f"{test['model']}: |E b(C(u)) - E b(C(v))| <= {factor}d{more}, d = {test['distance']} "
      f"({test['distance_scale']}); {test['intervals']} intervals at once, "
      f"{100 * (1 - test['level']):g} %, {test['bound']}"
      + ('' if test['guaranteed'] else ' (approximate)'))
    lines += [line for name, found in test['biases'].items() for line in _bias(name, found)]
    verdicts = ', '.join(f'{name}: {_verdict(v)}' for name, v in test['verdicts'].items())
    lines.append(f"  verdict: {_verdict(test['verdict'])} ({verdicts})")
    lines += [f'  {line}' for line in _utility(test['utility'])]
  return lines


def _bias(name: str, found: Mapping[str, Any]) -> list[str]:
  undefined = ', '.join(f'{k}: {n}' for k, n in found['undefined'].items())
  lines = [
    f"  {name}: of {found['pairs_tested']} pairs {found['holds']} hold, {found['violated']} "
    f"violated, {found['undecided']} undecided at this n; of "
    f"{found['pairs_demanding_nothing']} other pairs d demands nothing; n = {found['n']}"
    + (f' (without a value: {undefined})' if undefined else '')]
  for title, row in (('worst pair', found['worst']), ('largest ratio', found['largest_ratio'])):
    if row:
      ratio = '' if row['ratio'] is None else f", gap / d = {row['ratio']:.3g}"
      lines.append(
        f"    {title}: '{row['first']}' / '{row['second']}': gap {row['gap']:.4f} "
        f"[{row['low']:.4f}, {row['high']:.4f}], allowed {row['allowed']:.4f}, slack "
        f"{row['slack']:+z.4f}{ratio}, n = {row['n'][0]} and {row['n'][1]}: "
        f"{_verdict(row['verdict'])}"
        + (f" (Hoeffding's bound would take {row['samples_to_decide']:,} of each)"
           if row['samples_to_decide'] else ''))
  return lines + _demanding_nothing(found['other_pairs'])


def _demanding_nothing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
  """Pairs of which d demands nothing, those with the least slack first."""
  lines = []
  for row in rows[:_SHOWN]:
    gap = ('no value' if row['gap'] is None else
           f"gap {row['gap']:.4f}, allowed {row['allowed']:.4f}, slack {row['slack']:+z.4f}")
    lines.append(f"    demands nothing: '{row['first']}' / '{row['second']}': {gap}, n = "
                 f"{row['n'][0]} and {row['n'][1]}")
  if len(rows) > _SHOWN:
    lines.append(f'    and {len(rows) - _SHOWN} more such pairs with more slack (--json lists all)')
  return lines


def _verdict(verdict: str) -> str:
  return 'undecided at this n' if verdict == 'undecided' else verdict


def _utility(found: Mapping[str, Any]) -> list[str]:
  """The utility of the completions (Y-10)."""
  shared = found['semantic_similarity_c']
  words = 'S.S.c ' + (f"{100 * shared['value']:.1f} % [{100 * shared['low']:.1f}, "
                      f"{100 * shared['high']:.1f}]" if shared else
                      f"not measured: {found['semantic_similarity_c_absent']}")
  lines = [f"utility (Y-10): {words}; {100 * found['distinct_continuations']:.1f} % "
           f"distinct texts in {found['n']} continuations, {found['distinct_professions']} "
           f"professions, {100 * found['parse_rate']:.1f} % parsed"]
  if found['constant']:
    lines.append('every prompt got the same text: fair by every d, and useless')
  return lines
