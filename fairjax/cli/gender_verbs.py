"""`gender`: what Webster et al. 2020 and Yeo & Chen 2020 measure; and `models relearn`."""

import argparse
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fairjax.cli.options import (
  READING,
  SWAP,
  add_person_options,
  add_shared,
  between,
  field_values,
  not_negative,
  place_of,
  positive,
  refuse,
  require,
)
from fairjax.cli.verb import Command, log_line, print_result, records_reader
from fairjax.errors import UserError, unknown_name
from fairjax.files import write_json
from fairjax.inputs import is_pipe

if TYPE_CHECKING:
  from fairjax.counterfactual import GenderSwap
  from fairjax.gender.fair_generation.completions import Completions, Miss, Parse
  from fairjax.gender.fair_generation.embedding import GenderedEmbedding
  from fairjax.gender.persons import Persons

# `gender cda`: a text file with counterfactual sentences.

_SHOWN = 12  # words and kept words in the summary for people


def make_swap(options: argparse.Namespace, part: str, *, neutral: bool = False) -> 'GenderSwap':
  """The swap of words and names that the options ask for; `part` begins its log lines."""
  from fairjax.counterfactual import GenderSwap, read_names, read_word_pairs
  if len(options.pairs) > 2:
    raise UserError('--pairs is one file of pairs, or a file of male and one of female words')
  if not options.names:
    refuse(options, 'name-gender', 'letters', 'least-count', why='belongs to --names')
  pairs = None if options.pairs == ['none'] else read_word_pairs(*options.pairs)
  names = read_names(options.names, least_count=options.least_count) if options.names else None
  for place in pairs.turned if pairs else ():
    log_line(f'[{part}] {place}: the female word comes first there; the pair is read the other way')
  return GenderSwap(pairs, names, options.seed, name_gender=options.name_gender,
                    letters=options.letters, neutral=neutral)


def _cda_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--input', metavar='FILE', required=True,
                      help='text, plain or compressed; a line is a sentence or a document')
  parser.add_argument('--output', metavar='FILE', help='must not exist; .gz is compressed '
                      '(default: a.txt.gz becomes a.cda.txt.gz)')
  parser.add_argument('--sided', choices=('one', 'two'), default='two', help='one: counterfactual '
                      'sentences only; two: after their originals (default)')
  parser.add_argument('--unit', choices=('sentence', 'document'), default='sentence',
                      help='what of a line is swapped and left out (default: its sentences)')
  add_shared(parser, *SWAP)
  parser.set_defaults(name_gender='random')
  parser.add_argument('--neutral', action='store_true', help='words become those of the third '
                      'column of --pairs')
  add_shared(parser, 'seed', help='of the names that are drawn')
  add_shared(parser, 'json')


def _cda(options: argparse.Namespace) -> None:
  from fairjax.data.corpus import augment_file
  swap = make_swap(options, 'cda', neutral=options.neutral)
  summary = augment_file(
    options.input, options.output or _default_output(options.input), swap, sided=options.sided,
    unit=options.unit, log=log_line)
  pairs, names = swap.pairs, swap.names
  summary |= {
    'pairs': len(pairs.pairs) if pairs else 0, 'pairs_source': pairs.source if pairs else '',
    'one_way': list(pairs.one_way) if pairs else [],
    'names': {'female': len(names.female), 'male': len(names.male), 'neither': names.neither}
    if names else None}
  print_result(options, summary, _format_cda)


def _default_output(path: str) -> str:
  if is_pipe(path):
    raise UserError(f'{path} is no file, after which the result could be named: give --output')
  end = '.gz' if path.endswith('.gz') else ''
  place = pathlib.Path(path.removesuffix(end))
  if place.suffix in ('.bz2', '.xz', '.zst', '.zip'):  # which are read and not written
    place = place.with_suffix('')
  return f'{place.with_suffix("")}.cda{place.suffix}{end}'


def _format_cda(summary: Mapping[str, Any]) -> str:
  def most_frequent(counts: Mapping[str, int]) -> str:
    shown = ', '.join(f'{word} {n:,}' for word, n in list(counts.items())[:_SHOWN])
    return shown + (f', and {len(counts) - _SHOWN:,} more' if len(counts) > _SHOWN else '')

  units = 'sentences' if summary['unit'] == 'sentence' else 'lines'
  lines = [
    f"{summary['output']}: {summary['lines_written']:,} lines from {summary['lines_read']:,}",
    f"{summary['changed']:,} of {summary['sentences']:,} {units} have a counterfactual; "
    f"{summary['dropped']:,} neutral ones left out",
    f"{summary['swaps']:,} swaps: {most_frequent(summary['words'])}"]
  if summary['kept']:
    lines.append(f"{sum(summary['kept'].values()):,} words kept: "
                 + most_frequent(summary['kept']))
  changes = {k: summary.get(k, 0) for k in (
    'mixed_case', 'blank_lines', 'carriage_returns', 'nul_characters', 'byte_order_marks')}
  if any(changes.values()):
    lines.append(', '.join(f'{n:,} {k.replace("_", " ")}' for k, n in changes.items() if n))
  return '\n'.join(lines)


# `gender correlations`.

_NEEDS = {
  'disco': (), 'winogender': ('winogender',), 'coref': ('winogender', 'coref'),
  'recorded': ('winogender', 'recorded'), 'stsb': ('stsb', 'professions'), 'bios': ('bios',)}


def _correlations_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--model', metavar='DIR[@NAME]', action='append', required=True,
                      help='BERT or ALBERT; published decoder (folder, FILE.gguf, hf:ORG/NAME, '
                      "pip:PACKAGE or an adapter's folder); folder of fairjax models export; or "
                      'workdir (@NAME: which of its models); repeat for a table of several')
  parser.add_argument('--output', metavar='DIR', required=True,
                      help='gets correlations.json, correlations.md and what is finished; the same '
                      'command continues')
  parser.add_argument('--metrics', metavar='LIST',
                      help=f"some of {', '.join(_NEEDS)}; default: those whose data are given")
  add_shared(parser, 'restarts', 'json')
  add_shared(parser, 'seed', help='the first of them')
  disco = parser.add_argument_group('disco')
  add_person_options(disco)
  disco.add_argument('--initials', metavar='RANGES', help='names by their first letters, a score '
                     'for each range, e.g. A-M,N-Z (W-16)')
  disco.add_argument('--persons', type=not_negative, default=100, metavar='N',
                     help='the first N of each group of a list; 0: all')
  disco.add_argument('--templates', metavar='FILE', help="default: the paper's 14")
  disco.add_argument('--candidates', metavar='FILE', help='of causal models: words for blanks that '
                     'do not end a sentence, beside those that the model likes there')
  disco.add_argument('--no-infill', action='store_true',
                     help='of causal models: leave out blanks that do not end a sentence')
  disco.add_argument('--top', type=positive, default=3, help='fills supplied for a person')
  disco.add_argument('--shuffles', type=positive, default=20, help='random groups of the control')
  disco.add_argument('--per-template', action='store_true',
                     help='Bonferroni over the tests of a template, not all tests')
  coref = parser.add_argument_group('winogender, coref, recorded')
  coref.add_argument('--winogender', metavar='PATH',
                     help='templates.tsv beside occupations-stats.tsv, or their folder')
  coref.add_argument('--coref', metavar='DIR', help='WinoBias files, or train/ and test/ in the '
                     'format of OntoNotes: trains a probe on frozen states')
  coref.add_argument('--recorded', metavar='FILE',
                     help="another system's sentid<TAB>P(pronoun means the occupation)")
  add_shared(coref, 'professions', help='shares of women, in the form of occupations-stats.tsv; '
             'default: that of --winogender')
  add_shared(coref, 'column')
  tasks = parser.add_argument_group('stsb, bios')
  add_shared(tasks, 'stsb')
  tasks.add_argument('--bios', metavar='FILE', help='biographies with profession and gender')
  tasks.add_argument('--mode', choices=('full', 'frozen'), default='',
                     help='fine-tune the whole model, or a head on its features; default: full for '
                     'BERT and ALBERT, frozen for others')
  tasks.add_argument('--epochs', type=not_negative, default=0,
                     help='default: 3, or 10 of a frozen model')
  tasks.add_argument('--learning-rate', type=between(0, 1, ends='[)'), default=0.0,
                     help='default: 2e-5, or 1e-3 of a frozen model; small models need more')


def _correlations(options: argparse.Namespace) -> None:
  from fairjax.gender.scored_models import check_model
  from fairjax.gender.suite import Settings, measure_correlations, split_model, table
  from fairjax.gender.winogender import templates_file
  if options.winogender and not options.professions:
    options.professions = str(templates_file(options.winogender).with_name('occupations-stats.tsv'))
  metrics = _metrics(options)
  settings = Settings(**field_values(options, Settings) | {
    'metrics': metrics, 'persons': _persons(options) if 'disco' in metrics else (),
    'infill': not options.no_infill})
  for spec in options.model if metrics != ('recorded',) else ():
    folder, name = split_model(spec)  # what is no model is found before the first is measured
    check_model(pathlib.Path(folder), name or 'baseline')
  found = measure_correlations(options.model, settings, output=options.output, log=log_line)
  print_result(options, found, lambda found: table(found['found']))


def _metrics(options: argparse.Namespace) -> tuple[str, ...]:
  """The metrics of `--metrics`, or those whose data are given."""
  if options.metrics is None:  # a metric has the name of the option of its own data
    chosen = tuple(m for m, needs in _NEEDS.items() if not needs or getattr(options, m))
  else:
    chosen = tuple(dict.fromkeys(m.strip() for m in options.metrics.split(',') if m.strip()))
  for metric in chosen:
    if metric not in _NEEDS:
      raise unknown_name('metric', metric, _NEEDS)
    require(options, f'metric {metric}', *_NEEDS[metric])
    for name in (*_NEEDS[metric], 'professions'):  # found before the metrics that come first
      path = getattr(options, name)
      if path not in (None, '-') and not pathlib.Path(path).exists():
        raise UserError(f'--{name}={path}: there is no such file or folder')
  if not chosen:
    raise UserError(f"--metrics is empty: give some of {', '.join(_NEEDS)}")
  return chosen


def _persons(options: argparse.Namespace) -> 'tuple[Persons, ...]':
  """The lists of names and terms."""
  from fairjax.gender.persons import names_from, terms_from
  names, terms = names_from(options.names), terms_from(options.terms)
  parts = [part.strip() for part in (options.initials or '').split(',') if part.strip()]
  lists = (*([names.with_initials(part) for part in parts] or [names]), terms)
  if options.persons:
    lists = tuple(persons.most(options.persons) for persons in lists)
  for persons in lists:
    used = ', '.join(f'{len(persons.groups[g])} of {persons.given[g]} {g}'
                     for g in persons.group_names)
    log_line(f'[disco] {persons.title}: {used} ({persons.source})')
  return lists


# `gender finetune`: what fine-tuning brings back; `models relearn`: how soon a model re-learns.

def _finetune_options(parser: argparse.ArgumentParser) -> None:
  _add_resilience_options(parser, 'default 2e-5')
  parser.add_argument('--model', metavar='DIR', required=True,
                      help='BERT or ALBERT in the published form')
  add_shared(parser, 'stsb', 'professions', required=True)
  add_shared(parser, 'column')
  parser.add_argument('--freeze', default='none', metavar='WORDS',
                      help='comma-separated: none, embedding, a number of layers, all')
  parser.add_argument('--points', type=not_negative, default=6, help='of each curve; 0: ends only')
  parser.add_argument('--curve-templates', type=not_negative, default=40,
                      help='sentences compared at points of a curve; 0: all')
  add_shared(parser, 'seed', help='of the first restart')
  add_shared(parser, 'restarts')
  parser.add_argument('--epochs', type=positive, default=3)
  parser.add_argument('--batch-size', type=positive, default=32)


def _relearn_options(parser: argparse.ArgumentParser) -> None:
  _add_resilience_options(parser, "default that of the run's debiasing, held constant")
  parser.add_argument('--workdir', metavar='DIR', required=True,
                      help='of a finished run; it is only read')
  parser.add_argument('--name', required=True,
                      help='a debiased model of it, e.g. country-embedding-10')
  parser.add_argument('--steps', type=positive, default=1000)
  parser.add_argument('--every', type=positive, default=100, help='steps between two looks')
  parser.add_argument('--samples', type=positive, default=50,
                      help='per template and value, each look')
  parser.add_argument('--scorer', help="of I.F.; default: the run's first")


def _add_resilience_options(parser: argparse.ArgumentParser, rate: str) -> None:
  parser.add_argument('--output', metavar='DIR', required=True,
                      help='folder of results and figures; the same command continues it')
  parser.add_argument('--learning-rate', type=between(0, 1), help=rate)
  add_shared(parser, 'json')


def _finetune(options: argparse.Namespace) -> None:
  from fairjax.gender.stsb import measure_resilience
  from fairjax.pretrained.fit import Recipe
  from fairjax.report.figures import plot_resilience
  rate = 2e-5 if options.learning_rate is None else options.learning_rate
  result = measure_resilience(
    options.model, options.stsb, options.output, professions=options.professions,
    column=options.column, freezes=[word.strip() for word in options.freeze.split(',')],
    points=options.points, restarts=options.restarts, curve_templates=options.curve_templates,
    recipe=Recipe(options.epochs, options.batch_size, rate, seed=options.seed), log=log_line)
  plot_resilience(pathlib.Path(options.output) / 'resilience', runs=result['runs'])
  print_result(options, result, format_finetune)


def format_finetune(result: Mapping[str, Any]) -> str:
  """A table of the ends, one row a freeze."""
  from fairjax.gender.trends import format_mean_sd
  from fairjax.report.document import Table
  runs = result['runs']
  table = Table(
    ['frozen', 'Pearson on dev', 'Spearman on dev', 'r with share of women', '95 % of one r'],
    [[run['freeze'], *map(format_mean_sd, (run['dev_pearson'], run['dev_spearman'], run['r'])),
      '-' if run['r']['low'] is None else f"{run['r']['low']:.2f} to {run['r']['high']:.2f}"]
     for run in runs])
  missing = runs[0]['missing']
  return '\n\n'.join([
    f"{result['model']}, STS-B: {runs[0]['templates']} templates, {runs[0]['r']['n']} professions, "
    f"{len(runs[0]['seeds'])} restarts (mean±sd)", table.text(),
    *([f"without a share, left out: {', '.join(missing)}"] if missing else [])])


def _relearn(options: argparse.Namespace) -> None:
  from fairjax.report.figures import plot_relearning
  from fairjax.run.relearning import Relearning, relearn
  result = relearn(options.workdir, options.name, options.output, log=log_line,
                   settings=Relearning(**field_values(options, Relearning)))
  plot_relearning(pathlib.Path(options.output) / 'relearning', result=result)
  print_result(options, result, _format_relearning)


def _format_relearning(result: Mapping[str, Any]) -> str:
  from fairjax.measure import format_estimate

  def point(found: Mapping[str, Any]) -> str:
    words = format_estimate({**found, 'value': found['individual_fairness']}, error=True)
    return f'I.F. {words}'

  return '\n'.join([
    f"{result['model']}, {result['attribute']}, scorer {result['scorer']}: of the baseline "
    f"{point(result['baseline'])}",
    *(f"step {p['step']}: {point(p)}" for p in result['curve']), result['half_life']['words']])


# `gender` subspace, professions, tables, lipschitz: the measures of Yeo & Chen 2020 of any records.

def _add_fair_options(parser: argparse.ArgumentParser, *, records: bool = True,
                      embeddings: bool | None = None) -> None:
  """Adds what actions share; `embeddings`: whether they are needed, None: not read."""
  add_shared(parser, 'professions',
             help='list: JSON, or one a line (default: the built-in one)')
  add_shared(parser, 'json')
  parser.add_argument('--output', metavar='DIR', type=place_of(folder=True),
                      help='write the JSON, and the figures of tables, into a folder')
  if records:
    add_shared(parser, 'records', nargs='+', action='extend', required=True,
               help='generations of one or more models, as of fairjax measure')
    add_shared(parser, *READING)
    parser.add_argument('--group', metavar='VALUE=GROUP', nargs='+', action='extend', default=[],
                        help='group of a value: female, male or another (default: its subgroup)')
    add_shared(parser, 'attribute', metavar='FILE', nargs='+', action='extend', default=[],
               help='of the records, if it is not built in: its subgroups, and S.S.c')
    parser.add_argument('--templates', metavar='LABEL', nargs='+', action='extend', default=[],
                        help='take the records of these templates only (default: all)')
    parser.add_argument('--window', type=not_negative, metavar='N', default=2,
                        help='words between "as a" and the profession, at most (default: 2)')
  if embeddings is not None:
    parser.add_argument('--embeddings', metavar='FILE', required=embeddings,
                        help='word2vec (text, binary) or GloVe, also compressed')
    parser.add_argument('--pairs', metavar='FILE', help='definitional pairs, female first')
    parser.add_argument('--equalize', metavar='FILE', help='pairs to equalise')
    parser.add_argument('--gender-specific', metavar='FILE', help='words that are not neutralised')
    parser.add_argument('--multi-word', choices=('skip', 'head'), default='skip',
                        help='a profession of several words that the embedding lacks: leave it out '
                        '(default), or take its last word')


def _tables_options(parser: argparse.ArgumentParser) -> None:
  _add_fair_options(parser, embeddings=True)
  add_shared(parser, 'level')


def _test_options(parser: argparse.ArgumentParser) -> None:
  _add_fair_options(parser, embeddings=False)
  add_shared(parser, 'level')
  parser.add_argument('--bias', metavar='B', nargs='+', action='extend', default=[],
                      help='embedding (default), embedding-debiased, vader, opinion, bert:DIR, '
                      'recorded:NAME; all of several must be fair')
  add_shared(parser, 'lexicon')
  parser.add_argument('--distance', metavar='D', nargs='+', action='extend', default=[],
                      help='masked (default), jaccard, edit, cosine:ENCODER')
  parser.add_argument('--bound', choices=('best', 'bernstein', 'hoeffding', 'student'),
                      default='best', help='of the gaps; best (default): the better of the two '
                      'that are guaranteed')
  parser.add_argument('--lipschitz', type=between(0, math.inf, ends='[)'), metavar='L', default=1.0,
                      help='allow L d (default: 1)')
  parser.add_argument('--tolerance', type=between(0, math.inf, ends='[)'), metavar='T', default=0.0,
                      help='allow d + T (default: 0)')
  add_shared(parser, 'independent', help='samples of different prompts were drawn independently '
             '(not coupled)')


def _print_fair(options: argparse.Namespace, result: Any, lines: Callable[[Any], list[str]]
                ) -> None:
  if options.output:
    path = options.output / f"{options.verb.removeprefix('gender ')}.json"
    write_json(path, result)
    log_line(f'wrote {path}')
  print_result(options, result, lambda result: '\n'.join(lines(result)))


def _subspace(options: argparse.Namespace) -> None:
  from fairjax.gender.fair_generation.summaries import format_subspace
  _print_fair(options, _embedding(options).to_dict(), format_subspace)


def _professions(options: argparse.Namespace) -> None:
  from fairjax.gender.fair_generation.summaries import format_professions
  _print_fair(options, [_parsed(options, found, parses)
                        for found, parses, _ in _completions(options)], format_professions)


def _tables(options: argparse.Namespace) -> None:
  from fairjax.gender.fair_generation.bias_tables import bias_tables, plot_bias
  from fairjax.gender.fair_generation.summaries import format_tables
  embedding, models = _embedding(options), []
  for found, parses, use in _completions(options):
    models.append(bias_tables(found, parses, embedding, level=options.level) | {
      'parse': _parsed(options, found, parses), 'utility': use})
  if options.output:
    for name, debiased in (('figure_1', False), ('figure_2', True)):
      for path in plot_bias(options.output / name, models, debiased=debiased):
        log_line(f'wrote {path}')
  _print_fair(options, {'embedding': embedding.to_dict(), 'models': models}, format_tables)


def _test(options: argparse.Namespace) -> None:
  from fairjax.gender.fair_generation import lipschitz
  from fairjax.gender.fair_generation.summaries import format_test
  biases, named = options.bias or ['embedding'], options.distance or ['masked']
  if not set(biases) & set(lipschitz.EMBEDDING_BIASES):
    refuse(options, 'embeddings', 'pairs', 'equalize', 'gender-specific', 'multi-word',
           why='is for --bias=embedding or --bias=embedding-debiased')
  if 'opinion' not in biases:
    refuse(options, 'lexicon', why='is for --bias=opinion')
  coupled = not options.independent
  test = lipschitz.FairnessTest(**field_values(options, lipschitz.FairnessTest) | {
    'method': options.bound, 'coupled': coupled})
  if len(set(named)) < len(named):
    raise UserError(f"a distance is named twice: {', '.join(named)}")
  distances = [lipschitz.load_distance(name) for name in named]
  embedding = _embedding(options) if options.embeddings else None
  make_values = lipschitz.make_biases(biases, lexicon=options.lexicon, embedding=embedding)
  used = None if embedding is None else {
    'embeddings': embedding.vectors.path, 'pairs_list': embedding.pairs_list,
    'subspace': embedding.subspace.to_dict()}
  result = []
  for found, parses, use in _completions(options, coupled=coupled):
    values = make_values(found, parses)
    result += [test(found, values, distance) | {'embedding': used, 'utility': use}
               for distance in distances]
  _print_fair(options, result, format_test)


def _embedding(options: argparse.Namespace) -> 'GenderedEmbedding':
  from fairjax.gender.fair_generation.completions import read_professions
  from fairjax.gender.fair_generation.embedding import load_embedding
  return load_embedding(
    options.embeddings, professions=read_professions(options.professions), pairs=options.pairs,
    equalize=options.equalize, specific=options.gender_specific, multi_word=options.multi_word,
    log=log_line)


def _completions(options: argparse.Namespace, *, coupled: bool = True
                 ) -> 'Iterator[tuple[Completions, list[Parse | Miss], dict[str, Any]]]':
  """Completions, parses and utility of every model of the records."""
  from fairjax.counterfactual import list_attributes, load_attribute
  from fairjax.gender.fair_generation import bias_tables, completions, lipschitz
  parser = completions.ProfessionParser(
    completions.read_professions(options.professions), window=options.window)
  attributes = {a.name: a for a in map(load_attribute, options.attribute)}
  for found in completions.read_completions(
      options.records, groups=_groups(options.group), attributes=list(attributes.values()),
      templates=options.templates, empty=options.empty, coupled=coupled,
      read=records_reader(options, list(attributes.values())), log=log_line):
    parses, name = lipschitz.parse_completions(found, parser), found.prompts[0].attribute
    if name not in attributes and name in list_attributes():
      attributes[name] = load_attribute(name)
    yield found, parses, bias_tables.utility(found, parses, attributes.get(name))


def _groups(pairs: list[str]) -> dict[str, str]:
  groups: dict[str, str] = {}
  for pair in pairs:
    value, _, group = pair.rpartition('=')
    if not value or not group:
      raise UserError(f"--group: '{pair}' is not VALUE=GROUP, for example woman=female")
    if groups.setdefault(value, group) != group:
      raise UserError(f"--group: '{value}' is given two groups")
  return groups


def _parsed(options: argparse.Namespace, found: 'Completions', parses: 'list[Parse | Miss]'
            ) -> dict[str, Any]:
  from fairjax.gender.fair_generation.bias_tables import profession_table
  return profession_table(found, parses, window=options.window,
                          source=options.professions or 'built-in')


COMMANDS = {
  'gender cda': Command(
    _cda_options, _cda, 'swap gendered words in a text file (counterfactual augmentation)',
    'fairjax gender cda --input=train.txt.gz --sided=two --output=train.cda.txt.gz'),
  'gender correlations': Command(
    _correlations_options, _correlations, 'models by DisCo, WinoGender, STS-B and Bios',
    'fairjax gender correlations --model=runs/bert --winogender=winogender '
    '--output=runs/correlations'),
  'gender finetune': Command(_finetune_options, _finetune, 'what fine-tuning on STS-B brings back, '
                             'by step and by frozen layers'),
  'models relearn': Command(
    _relearn_options, _relearn, 'how soon a debiased model re-learns, on its own text',
    'fairjax models relearn --workdir=runs/quickstart --name=country-embedding-10 '
    '--output=runs/relearned'),
  'gender subspace': Command(
    functools.partial(_add_fair_options, records=False, embeddings=True), _subspace,
    'gender direction of an embedding, and bias of professions'),
  'gender professions': Command(_add_fair_options, _professions,
                                'which professions models give to women and men'),
  'gender tables': Command(_tables_options, _tables,
                           'Tables 1 and 2 and the figures of Yeo & Chen 2020'),
  'gender lipschitz': Command(
    _test_options, _test, 'whether |E b(C(u)) - E b(C(v))| <= d(u, v) for all pairs of prompts',
    'fairjax gender lipschitz --records generations.jsonl --bias embedding vader '
    '--embeddings vectors.txt.gz --distance masked jaccard --json'),
}
