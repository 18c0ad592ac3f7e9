"""What `fair-generation` says to people: tables and lines of its results."""

import argparse
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairjax.cli.verb import Verb, add_reading_options, log_line, records_reader
from fairjax.errors import UserError

_SHOWN = 10  # professions at either end; pairs of which d demands nothing

NO_XLNET = ("The paper's tables also have XLNet, which fairjax cannot sample: it is no causal "
            'model. Give its generations as --records.')


def subspace_words(result: Mapping[str, Any]) -> list[str]:
  """The gender direction and the bias of the professions."""
  space, debias, found = result['subspace'], result['debias'], result['professions']
  shares = ', '.join(f'{100 * s:.1f}' for s in space['explained_variance'])
  lines = [
    f"{result['embeddings']}: {result['format']}, {result['words_in_file']:,} words, width "
    f"{result['width']}", _pair_words(result),
    f"gender direction (Y-06) of {space['n_pairs']} pairs, female positive; variance explained by "
    f'each component: {shares} %']
  if space['leave_one_pair_out']:
    out = space['leave_one_pair_out']
    lines.append(
      f"without any one pair: cosine with g at least {out['cosine_min']:.3f}, first component "
      f"{100 * out['first_component_min']:.1f} to {100 * out['first_component_max']:.1f} %")
  lines.append('pairs whose female word lies above the male one: '
               f"{space['pairs_with_female_above']} of {space['n_pairs']}")
  lines += [f"pair {'/'.join(m['pair'])} left out, not in the file: {', '.join(m['words_missing'])}"
            for m in space['pairs_missing']]
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


def _pair_words(embedding: Mapping[str, Any]) -> str:
  """The definitional pairs that give g, and whose list it is."""
  space = embedding['subspace']
  absent = [m['pair'] for m in space['pairs_missing']]
  return (f"definitional pairs ({embedding['pairs_list']}): "
          + ', '.join('/'.join(pair) for pair in space['pairs'])
          + (f"; not in the file: {', '.join('/'.join(p) for p in absent)}" if absent else ''))


def professions_words(result: Sequence[Mapping[str, Any]]) -> list[str]:
  """Parse rates by group and prompt, and what was missed."""
  lines = []
  for model in result:
    lines.append(f"{model['model']}: {_rate_words(model['all'])}; {model['distinct_professions']} "
                 f"different professions (list: {model['professions_list']}, window "
                 f"{model['window']})"
                 + (f"; {model['records_of_other_templates']} records of other templates left out"
                    if model['records_of_other_templates'] else ''))
    wide = max(len(row['prompt']) for row in model['prompts'])
    lines += [f'  {name:{wide + 2}s} {_rate_words(part)}' for name, part in model['groups'].items()]
    lines += [f"    {row['prompt']:{wide}s} {_rate_words(row)}" for row in model['prompts']]
    lines.append('  words before the profession: ' + ', '.join(
      f'{k}: {n}' for k, n in model['words_before'].items()))
    first = ', '.join(f'{w} {n}' for w, n in model['words_behind_as_a_of_misses'].items())
    if first:
      more = model['further_words_of_misses']
      lines.append(f'  behind "as a" of misses: {first}' + (f' and {more} more' if more else ''))
  return lines


def _rate_words(part: Mapping[str, Any]) -> str:
  if not part['n']:
    return 'no completion'
  misses = ', '.join(f'{reason}: {n}' for reason, n in part['misses'].items())
  return (f"{part['parsed']} of {part['n']} parsed ({100 * part['parse_rate']:.1f} %"
          + (f", {part['plural']} plural" if part['plural'] else '') + ')'
          + (f'; missed: {misses}' if misses else ''))


def tables_words(result: Mapping[str, Any]) -> list[str]:
  """Tables 1 and 2, one block a model."""
  space = result['embedding']['subspace']
  lines = [f"bias w.g (Y-06), {result['embedding']['embeddings']}, {space['n_pairs']} pairs, first "
           f"component {100 * space['explained_variance'][0]:.1f} % of their variance",
           _pair_words(result['embedding'])]
  for model in result['models']:
    wide = max(len(row['prompt']) for row in model['prompts'])
    group = max(map(len, model['groups']))
    lines += ['', f"{model['model']}: Table 1, mean bias by prompt; [Student], (guaranteed), "
              f"{100 * (1 - model['level']):g} % each"]
    lines += [f"  {row['group']:{group}s}  {row['prompt']:{wide}s} {_mean_words(row['bias'])}"
              for row in model['prompts']]
    lines += [f"  {name:{group}s}  {'average of the prompts':{wide}s} {_mean_words(part['bias'])}"
              for name, part in model['groups'].items()]
    lines.append(f"{model['model']}: Table 2, the same on the debiased embedding, and its parts")
    for name, part in model['groups'].items():
      parts = part['debiased_parts']
      specific, neutral = parts['gender_specific'], parts['neutral']
      lines.append(f"  {name:{group}s}  {_mean_words(part['bias_debiased'])}")
      lines.append(f"    gender-specific: {_part_words(specific)}; neutral: "
                   f'{_part_words(neutral)}')
    gap = model['female_less_male']
    for column, title in (('bias', 'original'), ('bias_debiased', 'debiased')):
      if gap:
        found = gap[column]
        lines.append(f"  female less male, {title}: {found['difference']:+z.4f}"
                     + _brackets(found['student'], '[]'))
    undefined = ', '.join(f'{k}: {n}' for k, n in model['undefined'].items())
    lines.append(f"  {_rate_words(model['parse']['all'])}"
                 + (f'; without a bias: {undefined}' if undefined else ''))
    lines += [f'  {line}' for line in utility_words(model['utility'])]
  if not any('xlnet' in model['model'].lower() for model in result['models']):
    lines += ['', NO_XLNET]
  return lines


def _mean_words(found: Mapping[str, Any] | None) -> str:
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


def _part_words(part: Mapping[str, Any]) -> str:
  return 'none' if part['mean'] is None else (
    f"{part['mean']:+z.4f} (n = {part['n']}, largest |b| {part['largest']:.2g})")


def test_words(result: Sequence[Mapping[str, Any]]) -> list[str]:
  """The verdicts, and the pairs that decide them."""
  lines = [_pair_words(result[0]['embedding'])] if result and result[0]['embedding'] else []
  for test in result:
    factor = '' if test['lipschitz'] == 1 else f"{test['lipschitz']:g} x "
    more = f" + {test['tolerance']:g}" if test['tolerance'] else ''
    lines.append(
      f"{test['model']}: |E b(C(u)) - E b(C(v))| <= {factor}d{more}, d = {test['distance']} "
      f"({test['distance_scale']}); {test['intervals']} intervals at once, "
      f"{100 * (1 - test['level']):g} %, {test['bound']}"
      + ('' if test['guaranteed'] else ' (approximate)'))
    lines += [line for name, found in test['biases'].items() for line in _bias_words(name, found)]
    verdicts = ', '.join(f'{name}: {_verdict(v)}' for name, v in test['verdicts'].items())
    lines.append(f"  verdict: {_verdict(test['verdict'])} ({verdicts})")
    lines += [f'  {line}' for line in utility_words(test['utility'])]
  return lines


def _bias_words(name: str, found: Mapping[str, Any]) -> list[str]:
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
  return lines + _other_pair_words(found['other_pairs'])


def _other_pair_words(rows: Sequence[Mapping[str, Any]]) -> list[str]:
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


def utility_words(found: Mapping[str, Any]) -> list[str]:
  """Whether what is fair is of use (Y-10)."""
  shared = found['semantic_similarity_c']
  words = 'S.S.c ' + (f"{100 * shared['value']:.1f} % [{100 * shared['low']:.1f}, "
                      f"{100 * shared['high']:.1f}]" if shared else
                      f"not measured: {found['semantic_similarity_c_absent']}")
  lines = [f"utility (Y-10): {words}; {100 * found['distinct_continuations']:.1f} % of "
           f"{found['n']} continuations differ, {found['distinct_professions']} professions, "
           f"{100 * found['parse_rate']:.1f} % parsed"]
  if found['constant']:
    lines.append('every prompt got the same text: fair by every d, and useless')
  return lines


# The verb `fair-generation`: the measures of Yeo & Chen 2020 for the records of any model.

_WORDS = ('embeddings', 'pairs', 'equalize', 'gender_specific', 'multi_word')
_RECORDS = ('records', 'empty', 'repair', 'group', 'attribute', 'templates', 'window')
_OWN_OPTIONS = {
  'subspace': _WORDS,
  'professions': _RECORDS,
  'tables': (*_RECORDS, *_WORDS, 'level'),
  'test': (*_RECORDS, *_WORDS, 'level', 'bias', 'lexicon', 'distance', 'bound', 'lipschitz',
           'tolerance', 'independent')}
_DEFAULTS = {
  'window': 2, 'multi_word': 'skip', 'level': 0.05, 'bias': ['embedding'],
  'distance': ['masked'], 'bound': 'best', 'lipschitz': 1.0, 'tolerance': 0.0,
  'independent': False, 'empty': 'error', 'repair': False}


def _add_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('action', choices=tuple(_OWN_OPTIONS),
                      help='subspace: gender direction and bias of professions; professions: what '
                      'the parse finds; tables: Tables 1 and 2 and the figures; test: |E b(C(u)) '
                      '- E b(C(v))| <= d(u, v) for all pairs of prompts')
  parser.add_argument('--professions', metavar='FILE', default=None,
                      help='list: JSON, or one a line (default: the built-in one)')
  parser.add_argument('--json', action='store_true', help='print JSON')
  parser.add_argument('--output', metavar='DIR', default=None,
                      help='write the JSON, and the figures of tables, into a folder')
  records = parser.add_argument_group('professions, tables, test')
  records.add_argument('--records', metavar='FILE', nargs='+',
                       help='generations of one or more models, as of fairjax measure')
  add_reading_options(records)
  records.add_argument('--group', metavar='VALUE=GROUP', nargs='+',
                       help='group of a value: female, male or another (default: its subgroup)')
  records.add_argument('--attribute', metavar='FILE', nargs='+',
                       help='of the records, if it is not built in: its subgroups, and S.S.c')
  records.add_argument('--templates', metavar='LABEL', nargs='+',
                       help='take the records of these templates only (default: all)')
  records.add_argument('--window', type=int, metavar='N',
                       help='words between "as a" and the profession, at most (default: 2)')
  words = parser.add_argument_group('subspace, tables, test')
  words.add_argument('--embeddings', metavar='FILE',
                     help='word2vec (text, binary) or GloVe, also compressed')
  words.add_argument('--pairs', metavar='FILE', help='definitional pairs, female first')
  words.add_argument('--equalize', metavar='FILE', help='pairs to equalise')
  words.add_argument('--gender-specific', metavar='FILE', help='words that are not neutralised')
  words.add_argument('--multi-word', choices=('skip', 'head'),
                     help='a profession of several words that the embedding lacks: leave it out '
                     '(default), or take its last word')
  test = parser.add_argument_group('test')
  test.add_argument('--bias', metavar='B', nargs='+',
                    help='embedding (default), embedding-debiased, vader, opinion, bert:DIR, '
                    'recorded:NAME; all of several must be fair')
  test.add_argument('--lexicon', metavar='FILE', nargs='+', help='of opinion')
  test.add_argument('--distance', metavar='D', nargs='+',
                    help='masked (default), jaccard, edit, cosine:ENCODER')
  test.add_argument('--bound', choices=('best', 'bernstein', 'hoeffding', 'student'),
                    help='of the gaps; best (default): the better of the two that are guaranteed')
  test.add_argument('--lipschitz', type=float, metavar='L', help='allow L d (default: 1)')
  test.add_argument('--tolerance', type=float, metavar='T', help='allow d + T (default: 0)')
  test.add_argument('--independent', action='store_const', const=True,
                    help='samples of different prompts were drawn independently (not coupled)')
  test.add_argument('--level', type=float, help='chance that a bound fails (default: 0.05)')


def _run(options: argparse.Namespace) -> None:
  own = _OWN_OPTIONS[options.action]
  for name in sorted({n for names in _OWN_OPTIONS.values() for n in names}):
    if getattr(options, name) is not None and name not in own:
      raise UserError(f"--{name.replace('_', '-')} does not belong to: fairjax fair-generation "
                      f'{options.action}')
    if getattr(options, name) is None:
      setattr(options, name, _DEFAULTS.get(name))
  for name in ('records', 'embeddings'):
    needed = name in own and not (name == 'embeddings' and options.action == 'test')
    if needed and not getattr(options, name):
      raise UserError(f'fair-generation {options.action} needs --{name}=FILE')
  if options.output and pathlib.Path(options.output).is_file():
    raise UserError(f'--output={options.output} is a file: name a folder')
  action: Callable[[argparse.Namespace], tuple[Any, list[str]]] = {
    'subspace': _subspace, 'professions': _professions, 'tables': _tables, 'test': _test,
  }[options.action]
  result, lines = action(options)
  if options.output:
    from fairjax.files import write_json
    path = pathlib.Path(options.output) / f'{options.action}.json'
    write_json(path, result)
    log_line(f'wrote {path}')
  print(json.dumps(result, indent=2, allow_nan=False) if options.json else '\n'.join(lines))


def _subspace(options: argparse.Namespace) -> tuple[Any, list[str]]:
  result = _embedding(options).to_dict()
  return result, subspace_words(result)


def _professions(options: argparse.Namespace) -> tuple[Any, list[str]]:
  result = [_parsed(options, found, parses) for found, parses, _ in _completions(options)]
  return result, professions_words(result)


def _tables(options: argparse.Namespace) -> tuple[Any, list[str]]:
  from fairjax.gender.fair_generation.bias_tables import bias_tables, plot_bias
  from fairjax.gender.fair_generation.lipschitz import check_level
  check_level(options.level)
  embedding, models = _embedding(options), []
  for found, parses, use in _completions(options):
    models.append(bias_tables(found, parses, embedding, level=options.level) | {
      'parse': _parsed(options, found, parses), 'utility': use})
  result = {'embedding': embedding.to_dict(), 'models': models}
  if options.output:
    for name, debiased in (('figure_1', False), ('figure_2', True)):
      for path in plot_bias(pathlib.Path(options.output) / name, models, debiased=debiased):
        log_line(f'wrote {path}')
  return result, tables_words(result)


def _test(options: argparse.Namespace) -> tuple[Any, list[str]]:
  from fairjax.gender.fair_generation.lipschitz import (
    EMBEDDING_BIASES,
    FairnessTest,
    load_distance,
    make_biases,
  )
  if options.embeddings and not set(options.bias) & set(EMBEDDING_BIASES):
    raise UserError('--embeddings is for --bias=embedding or --bias=embedding-debiased')
  test = FairnessTest(
    level=options.level, method=options.bound, lipschitz=options.lipschitz,
    tolerance=options.tolerance, coupled=not options.independent)
  if len(set(options.distance)) < len(options.distance):
    raise UserError(f"a distance is named twice: {', '.join(options.distance)}")
  distances = [load_distance(name) for name in options.distance]
  embedding = _embedding(options) if options.embeddings else None
  biases = make_biases(options.bias, lexicon=options.lexicon, embedding=embedding)
  used = None if embedding is None else {
    'embeddings': embedding.vectors.path, 'pairs_list': embedding.pairs_list,
    'subspace': embedding.subspace.to_dict()}
  result = []
  for found, parses, use in _completions(options):
    values = biases(found, parses)
    result += [test(found, values, distance) | {'embedding': used, 'utility': use}
               for distance in distances]
  return result, test_words(result)


def _embedding(options: argparse.Namespace):
  from fairjax.gender.fair_generation.completions import read_professions
  from fairjax.gender.fair_generation.embedding import load_embedding
  return load_embedding(
    options.embeddings, professions=read_professions(options.professions), pairs=options.pairs,
    equalize=options.equalize, specific=options.gender_specific, multi_word=options.multi_word,
    log=log_line)


def _completions(options: argparse.Namespace) -> list[tuple[Any, Any, dict[str, Any]]]:
  """(completions, parses, utility) of every model of the records."""
  from fairjax.counterfactual import list_attributes, load_attribute
  from fairjax.gender.fair_generation.bias_tables import utility
  from fairjax.gender.fair_generation.completions import (
    ProfessionParser,
    read_completions,
    read_professions,
  )
  from fairjax.gender.fair_generation.lipschitz import parse_completions
  parser = ProfessionParser(read_professions(options.professions), window=options.window)
  attributes = {a.name: a for a in map(load_attribute, options.attribute or ())}
  result = []
  for found in read_completions(options.records, groups=_groups(options.group),
                                attributes=list(attributes.values()),
                                templates=options.templates or (), empty=options.empty,
                                coupled=not options.independent, read=records_reader(options),
                                log=log_line):
    parses, name = parse_completions(found, parser), found.prompts[0].attribute
    if name not in attributes and name in list_attributes():
      attributes[name] = load_attribute(name)
    result.append((found, parses, utility(found, parses, attributes.get(name))))
  return result


def _groups(pairs: list[str] | None) -> dict[str, str]:
  groups: dict[str, str] = {}
  for pair in pairs or ():
    value, equals, group = pair.rpartition('=')
    if not equals or not value or not group:
      raise UserError(f"--group: '{pair}' is not VALUE=GROUP, for example woman=female")
    if groups.get(value, group) != group:
      raise UserError(f"--group: '{value}' is given two groups")
    groups[value] = group
  return groups


def _parsed(options: argparse.Namespace, found, parses) -> dict[str, Any]:
  from fairjax.gender.fair_generation.bias_tables import profession_table
  return profession_table(found, parses, window=options.window,
                          source=options.professions or 'built-in')


VERBS = (
  Verb('fair-generation', 'professions, gender subspace and Lipschitz test of Yeo & Chen 2020',
       'fairjax fair-generation test --records generations.jsonl --bias embedding vader '
       '--embeddings vectors.txt.gz --distance masked jaccard --json', _add_options, _run),
)
