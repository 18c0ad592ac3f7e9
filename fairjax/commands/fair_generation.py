"""The verb `fair-generation`: the measures of Yeo & Chen 2020 for the records of any model."""

import argparse
import json
import pathlib
from collections.abc import Callable
from typing import Any

from fairjax.commands.fair_generation_words import (
  professions_words,
  subspace_words,
  tables_words,
  test_words,
)
from fairjax.commands.verb import Verb, add_reading_options, log_line, records_reader
from fairjax.errors import UserError

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
  from fairjax.fair_generation import bias_tables, plot_bias
  from fairjax.fair_generation.bounds import check_level
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
  from fairjax.fair_generation import FairnessTest, load_distance, make_biases
  from fairjax.fair_generation.biases import EMBEDDING_BIASES
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
  from fairjax.fair_generation import load_embedding, read_professions
  return load_embedding(
    options.embeddings, professions=read_professions(options.professions), pairs=options.pairs,
    equalize=options.equalize, specific=options.gender_specific, multi_word=options.multi_word,
    log=log_line)


def _completions(options: argparse.Namespace) -> list[tuple[Any, Any, dict[str, Any]]]:
  """(completions, parses, utility) of every model of the records."""
  from fairjax.counterfactual import list_attributes, load_attribute
  from fairjax.fair_generation import (
    ProfessionParser,
    parse_completions,
    read_completions,
    read_professions,
    utility,
  )
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
  from fairjax.fair_generation import profession_table
  return profession_table(found, parses, window=options.window,
                          source=options.professions or 'built-in')


VERBS = (
  Verb('fair-generation', 'professions, gender subspace and Lipschitz test of Yeo & Chen 2020',
       'fairjax fair-generation test --records generations.jsonl --bias embedding vader '
       '--embeddings vectors.txt.gz --distance masked jaccard --json', _add_options, _run),
)
