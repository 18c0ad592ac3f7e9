"""`report`, and `compare` reports, mitigations, paper and gate."""

import argparse
import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairjax import processes
from fairjax.cli.measure_verbs import content_options, load_scorers, read_prompts
from fairjax.cli.options import (
  CONTENT,
  READING,
  SCORERS,
  add_person_options,
  add_run_options,
  add_shared,
  at_least,
  between,
  of_records,
  place_of,
  refuse,
  require,
)
from fairjax.cli.verb import (
  RUN_OPTIONS,
  Command,
  log_line,
  open_job,
  print_result,
  records_reader,
)
from fairjax.config import DECODE_TIME_METHODS
from fairjax.errors import UserError
from fairjax.files import write_file, write_json

if TYPE_CHECKING:
  from fairjax.report.document import Table
  from fairjax.report.paper import PaperRun

# `report` of a workdir or of any records, and `compare reports`: two side by side.

def _add_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser, required=False)
  add_shared(parser, 'records', nargs='+', action='extend', help='instead of a workdir: '
             'generations, as of fairjax measure, one file a model')
  add_shared(parser, *READING)
  add_shared(parser, 'attribute', help='of the records: built-in attribute or YAML file')
  parser.add_argument('--output', metavar='DIR', type=place_of(folder=True), help='with --records: '
                      'folder for index.html, report.md, summary.md, report.json; keeps scores, so '
                      'that the same command goes on')
  parser.add_argument('--baseline', metavar='MODEL', help='with --records: the model to compare '
                      'the others with')
  add_shared(parser, 'permutations', help='with --records: for the floors (default: 1000)')
  add_shared(parser, 'independent', *SCORERS, *CONTENT)


def _compare_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('reports', nargs=2, metavar='REPORT',
                      help='a workdir, its report folder, or a report.json')
  parser.add_argument('--models', nargs=2, action='append', default=[], metavar='NAME',
                      help='a model of the first report and one of the second; repeat (default: '
                      'models of equal name)')
  add_shared(parser, 'json')
  parser.add_argument('--file', metavar='FILE.md', type=place_of(folder=False),
                      help='write there instead of printing')


def _run(options: argparse.Namespace) -> None:
  if not of_records(options, 'baseline', needs='--attribute=A --scorer=S --output=DIR'):
    open_job(options).report()
    return
  from fairjax.counterfactual import load_attribute
  from fairjax.run.recorded import report_records
  require(options, 'report --records', 'attribute', 'scorer', 'output')
  attribute = load_attribute(options.attribute)
  path = report_records(
    options.records, attribute, load_scorers(options, options.records[0]), options.output,
    baseline=options.baseline, permutations=options.permutations,
    coupled=not options.independent, empty=options.empty,
    read=records_reader(options, [attribute], whole=False),
    content=content_options(options, [attribute])[attribute.name], log=log_line)
  print(path.with_name('index.html'))


def _compare(options: argparse.Namespace) -> None:
  from fairjax.report import compare_reports, read_report
  from fairjax.report.differences import comparison_markdown, report_file
  if options.file and options.file.resolve() in (report_file(r).resolve() for r in options.reports):
    raise UserError(f'--file={options.file} is one of the reports: name another file')
  found = compare_reports(*map(read_report, options.reports), names=options.reports,
                          models=options.models)
  text = (json.dumps(found, indent=2, allow_nan=False) if options.json
          else comparison_markdown(found))
  if options.file:
    write_file(options.file, text + '\n')
    text = options.file
  print(text)


# `compare mitigations`: models of one run, made fairer in different ways, in one table.

def _mitigations_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser)
  parser.add_argument('--output', metavar='DIR', type=place_of(folder=True), help='gets '
                      'mitigations.md, mitigations.json and the correlations (default: mitigations '
                      'in the workdir)')
  add_person_options(parser, own='those of the planted corpus, else ')
  parser.add_argument('--winogender', metavar='PATH', help='templates in the form of WinoGender '
                      '(default: those of the planted corpus, else not measured)')
  parser.add_argument('--professions', metavar='FILE', help='shares of women (default: the planted '
                      'ones, else those beside --winogender)')
  parser.add_argument('--persons', type=at_least(2), default=100, metavar='N',
                      help='of DisCo: the first N of each group of a list')
  add_shared(parser, 'seed', help='of the controls')
  add_shared(parser, 'json')


def _mitigations(options: argparse.Namespace) -> None:
  from fairjax.gender.persons import names_from, terms_from
  from fairjax.gender.suite import Settings, measure_correlations
  from fairjax.report import mitigations
  job = open_job(options, log=log_line)
  _check_given(options)
  job.run()
  if processes.count() > 1:  # what follows reads models on one host's devices, and writes one table
    if processes.is_first():
      log_line('[mitigations] all models are trained and measured; the same command without '
               '--distributed adds DisCo and WinoGender and writes the table')
    return
  output = options.output or job.workdir / 'mitigations'
  if job.config.data.source == 'planted_gender':
    _use_planted(options, output / 'planted')
  persons = tuple(p.most(options.persons) for p in (
    names_from(options.names), terms_from(options.terms)))
  # Methods at decoding time come last; no sentence of the correlations has their prompts.
  names = [m.name for m in job.models if m.method not in DECODE_TIME_METHODS]
  result = measure_correlations(
    [f'{job.workdir}@{name}' for name in names], Settings(
      metrics=('disco', 'winogender') if options.winogender else ('disco',), persons=persons,
      winogender=options.winogender, professions=options.professions, seed=options.seed),
    output=output / 'correlations', log=log_line)
  prefix = f'{pathlib.Path(job.config.attribute).stem}-'  # the same for all regularised models
  rows = [dataclasses.replace(row, name=row.name.removeprefix(prefix)) for row in job.rows()]
  found = mitigations.compare_mitigations(
    rows, dict(zip((row.name for row in rows), result['found'].values(), strict=False)),
    absent={} if options.winogender else {'winogender': 'give --winogender=PATH'})
  path = output / 'mitigations.md'
  write_json(path.with_suffix('.json'), found)
  write_file(path, mitigations.mitigations_markdown(found))
  print_result(options, found, mitigations.mitigations_markdown)
  log_line(f'[mitigations] {path}')


def _check_given(options: argparse.Namespace) -> None:
  """Reads the files that the options name, so that their errors come before the training."""
  from fairjax.gender.persons import names_from, read_professions, terms_from
  from fairjax.gender.winogender import read_winogender, templates_file
  names_from(options.names)
  terms_from(options.terms)
  if options.winogender:
    read_winogender(options.winogender)
    options.professions = options.professions or str(
      templates_file(options.winogender).with_name('occupations-stats.tsv'))
  if options.professions:
    read_professions(options.professions)


def _use_planted(options: argparse.Namespace, folder: pathlib.Path) -> None:
  """Names, terms, sentences and shares of the planted corpus, where no others are given."""
  from fairjax.data.planted_gender import TERMS, write_tables
  files = write_tables(folder)
  terms = folder / 'terms.txt'
  write_file(terms, ''.join(f'{male}\t{female}\n' for female, male in TERMS))
  options.names = options.names or [str(files['names.txt'])]
  options.terms = options.terms or str(terms)
  if not options.winogender:
    options.winogender = str(files['coreference.tsv'])
    options.professions = options.professions or str(files['professions.tsv'])


# `compare paper`: tables and figures of Huang et al. 2020 from reports.

_TEXTS = {'markdown': '.md', 'text': '.txt', 'csv': '.csv'}
_DRAWINGS = ('png', 'svg', 'pdf')
_TABLES = (1, 5, 6, 7, 9, 10)
_FIGURES = (1, 2, *range(4, 18))
_READ_BY: dict[str, tuple[Sequence[int], Sequence[int]]] = {  # option -> tables and figures
  'pairs': ((7, 10), (1,)), 'model': ((7, 9, 10), (1,)), 'template': ((), (1,)),
  'scorer': ((), (1, *range(4, 18))), 'corpus': ((), (6, *range(8, 16))),
  'perplexity': ((1, 5, 6), ())}


def _paper_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('runs', nargs='*', metavar='RUN', help='a workdir with all its attributes, a '
                      'report folder, or a report.json; NAME=RUN names its corpus (default: '
                      'WMT-19 or WikiText-103 by data.source, else the name of the run)')
  parser.add_argument('--table', type=int, action='append', default=[], choices=_TABLES,
                      metavar='N', help='1, 5, 6 (PPL, S.S. by model), 7 (texts of equal noise; 8 '
                      'is that of one --model), 9 (cosine examples), 10 (distinct words); repeat')
  parser.add_argument('--figure', type=int, action='append', default=[], choices=_FIGURES,
                      metavar='N', help='1, 2, 4 to 17; repeat (3 is docs/pipeline.svg)')
  parser.add_argument('--output', metavar='DIR', type=place_of(folder=True), help='gets table-N.md '
                      'and figure-N: figures need it (default: tables are printed)')
  parser.add_argument('--format', action='append', default=[], choices=(*_TEXTS, *_DRAWINGS),
                      help='of tables (default: markdown) and of figures (default: png and svg); '
                      'repeat')
  parser.add_argument('--pairs', nargs='+', action='extend', metavar='VALUE/VALUE', default=None,
                      help='of figure 1 (the first) and tables 7 and 10, e.g. sheriff/designer '
                      "(default: the paper's)")
  parser.add_argument('--model', action='append', default=[], help='of figure 1 and tables 7, 9 '
                      'and 10 (default: the baseline; 7: all); repeat for 7')
  parser.add_argument('--template', type=int, default=None, metavar='N', help='of figure 1, from 0 '
                      "(default: the paper's, else the first)")
  parser.add_argument('--scorer', action='append', default=[], help='instead of the scorers that a '
                      'figure shows in the paper; repeat where there are several')
  parser.add_argument('--corpus', default=None, metavar='NAME', help='instead of the corpus that a '
                      'figure is of in the paper (6, 8 to 15)')
  parser.add_argument('--perplexity', default='word', metavar='UNIT',
                      help='of tables 1, 5 and 6: word, token, ...')


def _paper(options: argparse.Namespace) -> None:
  if not options.table and not options.figure:
    raise UserError('compare paper needs --table=N (1, 5, 6, 7, 9, 10) or --figure=N (1, 2, 4 to '
                    '17)')
  for name, (tables, figures) in _READ_BY.items():
    if not {*options.table} & {*tables} and not {*options.figure} & {*figures}:
      refuse(options, name, why='is of other tables or figures (see: fairjax compare paper --help)')
  for form in options.format:
    if not (options.table if form in _TEXTS else options.figure):
      kind = 'tables' if form in _TEXTS else 'figures'
      raise UserError(f'--format={form} is of {kind}, of which none is named')
  if options.figure and not options.output:
    raise UserError('compare paper --figure needs --output=DIR')
  runs = _read_runs(options.runs)
  if not runs and (options.table or options.figure != [2]):
    raise UserError('compare paper needs a RUN: a workdir with a report, or a report.json')
  from fairjax.report.paper import Choices, draw_figure, make_table
  choices = Choices(options.model, options.pairs, options.scorer, options.corpus, options.template,
                    options.perplexity)
  for number in options.table:
    table, lines = make_table(number, runs, choices, log_line)
    for form in [f for f in options.format if f in _TEXTS] or ['markdown']:
      text = _format_table(f'Table {number}', table, lines, form)
      if options.output is None:
        print(text)
        continue
      path = options.output / f'table-{number}{_TEXTS[form]}'
      write_file(path, text + '\n')
      print(path)
    if options.output is not None or 'csv' in options.format:
      for line in lines:
        log_line(line)
  for number in options.figure:
    stem = options.output / f'figure-{number}'
    forms = [stem.with_suffix(f'.{f}') for f in options.format if f in _DRAWINGS]
    for path in forms or [stem]:
      for drawn in draw_figure(number, runs, path, choices, log_line):
        print(drawn)


def _read_runs(words: Sequence[str]) -> 'list[PaperRun]':
  """The reports that the words name; a workdir has those of all its attributes."""
  from fairjax.report.paper import read_run
  from fairjax.run.workdir import ATTRIBUTES
  runs = []
  for word in words:
    named = None if os.path.exists(word) else re.fullmatch(r'([^/=]+)=(.+)', word)
    corpus, path = (named[1], pathlib.Path(named[2])) if named else ('', pathlib.Path(word))
    folders = [path, *(p.parent for p in sorted((path / ATTRIBUTES).glob('*/config.json')))]
    found = [p for p in folders if (p / 'report' / 'report.json').is_file()]
    if len(folders) > 1:
      for folder in (p for p in folders if p not in found):
        log_line(f'WARNING: {folder} has no report and is left out: fairjax report')
    runs += [read_run(p, corpus=corpus) for p in found or [path]]
  return runs


def _format_table(title: str, table: 'Table', lines: Sequence[str], form: str) -> str:
  """A table with the sentences below it; CSV holds the table alone."""
  if form == 'csv':
    return table.csv()
  if form == 'text':
    return '\n'.join([title, table.text(), *lines])
  from fairjax.report.document import escape
  return '\n\n'.join([f'**{title}**', table.markdown(), *map(escape, lines)])


# `compare gate`: a build fails where a model has become less fair than another by a margin.

def _gate_options(parser: argparse.ArgumentParser) -> None:
  add_shared(parser, 'records')
  parser.add_argument('--against', metavar='FILE', help='generations of the old model')
  parser.add_argument('--margin', type=between(0, 1), default=0.01, metavar='W1',
                      help='the largest rise of the I.F. that passes')
  parser.add_argument('--junit', metavar='FILE', type=place_of(folder=False),
                      help="write JUnit's XML, as build servers read it")
  add_shared(parser, 'attribute', action='append', help='built-in attribute or YAML file; repeat')
  add_shared(parser, *READING, *SCORERS, 'scored', 'permutations', 'seed', 'independent', 'json')


def _gate(options: argparse.Namespace) -> int:
  from fairjax.counterfactual import load_attribute
  from fairjax.generate import check_complete
  from fairjax.measure import gate
  from fairjax.measure.scorers.cache import score_generations
  require(options, 'compare gate', 'records', 'against', 'attribute', 'scorer')
  attributes = [load_attribute(a) for a in options.attribute]
  files, coupled = (options.records, options.against), not options.independent
  read, samples, results = [], [], {}
  for file in files:
    check_complete(file)
    read.append(read_prompts(options, attributes, file))
  for name, generations in read[0].items():
    gate.check_prompts(*map(gate.prompts_of, (generations, read[1][name])), attribute=name,
                       files=files)
  for file, side in zip(files, read, strict=True):
    scorers = load_scorers(options, file)
    samples.append({
      (name, scorer.name): generations.sample_scores(score_generations(
        generations, scorer, None, scored=options.scored, log=log_line), numbered=coupled)
      for name, generations in side.items() for scorer in scorers})
  for key, new in samples[0].items():
    try:
      results[key] = gate.compare_fairness(new, samples[1][key], margin=options.margin,
                                           permutations=options.permutations, seed=options.seed)
    except UserError as e:
      raise UserError(f'{files[0]} and {files[1]}, {", ".join(key)}: {e}') from None
  if options.junit:
    write_file(options.junit, gate.junit_xml(results))
  print_result(options, gate.to_dict(results), lambda _: '\n'.join(
    f'{attribute}, {scorer}: {found.sentence()}' for (attribute, scorer), found in results.items()))
  found = {r.verdict for r in results.values()}
  return next(gate.CODES[v] for v in ('worse', 'cannot tell', 'no worse') if v in found)


COMMANDS = {
  'report': Command(_add_options, _run, example=f'fairjax report {RUN_OPTIONS}',
                    alone=lambda options: 'report --records' if options.records else ''),
  'compare reports': Command(_compare_options, _compare,
                             'two reports side by side, with what noise allows to say'),
  'compare mitigations': Command(
    _mitigations_options, _mitigations,
    'CDA, dropout and regularisers in one run: trains them and writes the table',
    'fairjax compare mitigations --config=configs/mitigations.py --workdir=runs/mitigations'),
  'compare paper': Command(
    _paper_options, _paper, 'tables and figures of Huang et al. 2020 beside those of your runs',
    'fairjax compare paper runs/wt103 runs/wmt19 --table=5 --output=paper'),
  'compare gate': Command(
    _gate_options, _gate,
    'fail a build where a new model is less fair than the old one by a margin',
    'fairjax compare gate --records=new.jsonl --against=old.jsonl --attribute=country '
    '--scorer=vader --margin=0.01'),
}
