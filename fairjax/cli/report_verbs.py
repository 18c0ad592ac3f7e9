"""The verb `paper`: tables and figures of Huang et al. 2020 from the reports of one's own runs."""

import argparse
import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairjax import processes
from fairjax.cli.measure_verbs import (
  add_content_options,
  add_scorer_options,
  content_options,
  google_arguments,
)
from fairjax.cli.training_verbs import RUN_OPTIONS
from fairjax.cli.verb import (
  Parser,
  Verb,
  add_reading_options,
  add_run_options,
  log_line,
  open_job,
  records_reader,
  refuse_processes,
)
from fairjax.errors import UserError

# The verb `report`: that of a workdir, of anyone's records, and two of them side by side.

def _add_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser, required=False)
  parser.add_argument('--records', metavar='FILE', nargs='+', help='instead of a workdir: '
                      'generations, as of fairjax measure, one file a model')
  add_reading_options(parser)
  parser.add_argument('--attribute', help='of the records: built-in attribute or YAML file')
  parser.add_argument('--output', metavar='DIR', help='with --records: folder for index.html, '
                      'report.md, report.json; keeps scores, so that the same command goes on')
  parser.add_argument('--baseline', metavar='MODEL', help='with --records: the model to compare '
                      'the others with')
  parser.add_argument('--permutations', type=int, default=None,
                      help='with --records: for the noise floors (default: 1000)')
  parser.add_argument('--independent', action='store_true', help='with --records: samples of '
                      'different values were drawn independently (not coupled)')
  add_scorer_options(parser)
  add_content_options(parser)
  actions = parser.add_subparsers(dest='action', metavar='compare', parser_class=Parser)
  compare = actions.add_parser(
    'compare', help='two reports side by side, with what noise allows to say')
  compare.add_argument('reports', nargs=2, metavar='REPORT',
                       help='a workdir, its report folder, or a report.json')
  compare.add_argument('--models', nargs=2, action='append', default=[], metavar='NAME',
                       help='a model of the first report and one of the second; repeat (default: '
                       'models of equal name)')
  compare.add_argument('--json', action='store_true', help='print JSON')
  compare.add_argument('--file', metavar='FILE.md', help='write there instead of printing')


def _run(options: argparse.Namespace) -> None:
  if options.action == 'compare' or options.records:
    refuse_processes(options, 'report ' + ('compare' if options.action else '--records'))
  if options.action == 'compare':
    if options.config or options.workdir or options.records:
      raise UserError('report compare takes two reports, no --config, --workdir or --records')
    _compare(options)
  elif options.records:
    if options.config or options.workdir:
      raise UserError('report: give --records, or --config and --workdir of a run, not both')
    _report_records(options)
  elif options.encoder:
    raise UserError('report: --encoder belongs to --records; a run measures S.S. where its '
                    'config.measure.encoder says so')
  elif options.config and options.workdir:
    open_job(options).report()
  else:
    raise UserError('report needs --config and --workdir of a run; or --records=FILE '
                    '--attribute=A --scorer=S --output=DIR; or: report compare A B')


def _report_records(options: argparse.Namespace) -> None:
  """Measures files of generations and writes their report."""
  from fairjax.counterfactual import load_attribute
  from fairjax.measure import load_scorer
  from fairjax.run.recorded import report_records
  if not (options.attribute and options.scorer and options.output):
    raise UserError('report --records needs --attribute=A, --scorer=S (opinion, vader, '
                    'textblob, google, bert:DIR, recorded:NAME; repeat) and --output=DIR')
  google = google_arguments(options, options.records[0])
  attribute = load_attribute(options.attribute)
  path = report_records(
    options.records, attribute,
    [load_scorer(name, lexicon=options.lexicon, google=google) for name in options.scorer],
    options.output, baseline=options.baseline, permutations=options.permutations,
    coupled=not options.independent, empty=options.empty or 'error', read=records_reader(options),
    content=content_options(options, {attribute.name: attribute})[attribute.name], log=log_line)
  print(path.with_name('index.html'))


def _compare(options: argparse.Namespace) -> None:
  from fairjax.files import atomic_write
  from fairjax.report import compare_reports, read_report
  from fairjax.report.differences import comparison_markdown
  if options.file and pathlib.Path(options.file).resolve() in {
      pathlib.Path(path).resolve() for path in options.reports}:
    raise UserError(f'--file={options.file} is one of the reports: name another file')
  found = compare_reports(*map(read_report, options.reports), names=options.reports,
                          models=options.models)
  text = (json.dumps(found, indent=2, allow_nan=False) if options.json
          else comparison_markdown(found))
  if options.file:
    with atomic_write(options.file) as file:
      file.write((text + '\n').encode('utf-8'))
    text = options.file
  print(text)


# The verb `mitigations`: models of one run, made fairer in different ways, in one table.

def _mitigations_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser)
  parser.add_argument('--output', metavar='DIR', default=None, help='gets mitigations.md, '
                      'mitigations.json and the correlations (default: mitigations in the workdir)')
  parser.add_argument('--names', metavar='FILE', action='append', default=[], help='of DisCo: '
                      'name<TAB>group, or SSA statistics (default: those of the planted corpus, '
                      'else of Huang et al. 2020)')
  parser.add_argument('--terms', metavar='FILE', help='of DisCo: noun<TAB>group, or pairs of words '
                      '(default: those of the planted corpus, else the built-in pairs)')
  parser.add_argument('--winogender', metavar='PATH', help='templates in the form of WinoGender '
                      '(default: those of the planted corpus, else not measured)')
  parser.add_argument('--professions', metavar='FILE', help='shares of women (default: the planted '
                      'ones, else those beside --winogender)')
  parser.add_argument('--persons', type=int, default=100, metavar='N',
                      help='of DisCo: the first N of each group of a list')
  parser.add_argument('--seed', type=int, default=0, help='of the controls')
  parser.add_argument('--json', action='store_true', help='print JSON')


def _mitigations(options: argparse.Namespace) -> None:
  import json

  from fairjax.gender.persons import names_from, terms_from
  from fairjax.gender.suite import Settings, measure_correlations
  from fairjax.report.mitigations import (
    compare_mitigations,
    mitigations_markdown,
    write_mitigations,
  )
  from fairjax.run.results import model_rows
  job = open_job(options, log=log_line)
  _check_given(options)
  job.run()
  if processes.count() > 1:  # what follows reads models on one host's devices, and writes one table
    if processes.is_first():
      log_line('[mitigations] all models are trained and measured; the same command without '
               '--distributed adds DisCo and WinoGender and writes the table')
    return
  output = pathlib.Path(options.output or job.workdir / 'mitigations')
  if job.config.data.source == 'planted_gender':
    _use_planted(options, output / 'planted')
  persons = tuple(p.most(options.persons) for p in (
    names_from(options.names), terms_from(options.terms)))
  names = [model.name for model in job.models]
  result = measure_correlations(
    [f'{job.workdir}@{name}' for name in names], Settings(
      metrics=('disco', 'winogender') if options.winogender else ('disco',), persons=persons,
      winogender=options.winogender, professions=options.professions, seed=options.seed),
    output=output / 'correlations', log=log_line)
  prefix = f'{pathlib.Path(job.config.attribute).stem}-'  # the same for all regularised models
  rows = [dataclasses.replace(row, name=row.name.removeprefix(prefix)) for row in model_rows(job)]
  found = compare_mitigations(
    rows, dict(zip((row.name for row in rows), result['found'].values(), strict=True)),
    absent={} if options.winogender else {'winogender': 'give --winogender=PATH'})
  path = write_mitigations(output, found)
  print(json.dumps(found, indent=2) if options.json else mitigations_markdown(found))
  log_line(f'[mitigations] {path}')


def _check_given(options: argparse.Namespace) -> None:
  """Reads what the options name: what one lacks must not wait for the end of the training."""
  from fairjax.gender.persons import names_from, read_professions, terms_from
  from fairjax.gender.winogender import read_winogender
  if options.persons < 2:
    raise UserError(f'--persons={options.persons}: rates need at least 2 of each group')
  if options.names:
    names_from(options.names)
  if options.terms:
    terms_from(options.terms)
  if options.winogender:
    read_winogender(options.winogender)
    folder = pathlib.Path(options.winogender)
    folder = folder if folder.is_dir() else folder.parent
    options.professions = options.professions or str(folder / 'occupations-stats.tsv')
  if options.professions:
    read_professions(options.professions)


def _use_planted(options: argparse.Namespace, folder: pathlib.Path) -> None:
  """Names, terms, sentences and shares of the planted corpus, where no others are given."""
  from fairjax.data.planted_gender import TERMS, write_tables
  from fairjax.files import atomic_write
  files = write_tables(folder)
  terms = folder / 'terms.txt'
  with atomic_write(terms) as file:
    file.write(''.join(f'{male}\t{female}\n' for female, male in TERMS).encode('utf-8'))
  options.names = options.names or [str(files['names.txt'])]
  options.terms = options.terms or str(terms)
  if not options.winogender:
    options.winogender = str(files['coreference.tsv'])
    options.professions = options.professions or str(files['professions.tsv'])


if TYPE_CHECKING:
  from fairjax.report.markdown import Table
  from fairjax.report.paper_tables import PaperRun

_TABLES = (1, 5, 6, 7, 9, 10)
_FIGURES = (1, 2, *range(4, 18))
_TEXTS = {'markdown': '.md', 'text': '.txt', 'csv': '.csv'}
_DRAWINGS = ('png', 'svg', 'pdf')
# Figure -> kind of scorer; figure -> (corpus, attribute, measure). Both by the captions.
_ONE_SCORER = {4: 'bert', 5: 'opinion', 7: 'google'}
_ONE_CORPUS = {
  8 + 4 * a + 2 * c + m: (corpus, attribute, measure)
  for a, attribute in enumerate(('country', 'name'))
  for c, corpus in enumerate(('WMT-19', 'WikiText-103'))
  for m, measure in enumerate(('individual_fairness', 'group_fairness'))}
_MODELS = {16: 'individual_fairness', 17: 'group_fairness'}


def _paper_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('runs', nargs='*', metavar='RUN', help='a workdir with all its attributes, a '
                      'report folder, or a report.json; NAME=RUN names its corpus (default: '
                      'WMT-19 or WikiText-103 by data.source, else the name of the run)')
  parser.add_argument('--table', type=int, action='append', default=[], choices=_TABLES,
                      metavar='N', help='1, 5, 6 (PPL, S.S. by model), 7 (texts of equal noise; 8 '
                      'is that of one --model), 9 (cosine examples), 10 (distinct words); repeat')
  parser.add_argument('--figure', type=int, action='append', default=[], choices=_FIGURES,
                      metavar='N', help='1, 2, 4 to 17; repeat (3 is docs/pipeline.svg)')
  parser.add_argument('--output', metavar='DIR', default=None, help='gets table-N.md and figure-N: '
                      'figures need it (default: tables are printed)')
  parser.add_argument('--format', action='append', default=[], choices=(*_TEXTS, *_DRAWINGS),
                      help='of tables (default: markdown) and of figures (default: png and svg); '
                      'repeat')
  parser.add_argument('--pairs', nargs='+', metavar='VALUE/VALUE', default=None,
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
    raise UserError('paper needs --table=N (1, 5, 6, 7, 9, 10) or --figure=N (1, 2, 4 to 17)')
  if options.figure and not options.output:
    raise UserError('paper --figure needs --output=DIR')
  runs = _read(options.runs)
  if not runs and set(options.figure) | {f'table {n}' for n in options.table} != {2}:
    raise UserError('paper needs a RUN: a workdir with a report, or a report.json')
  from fairjax.files import atomic_write
  for number in options.table:
    table, lines = _table(number, runs, options)
    for form in [f for f in options.format if f in _TEXTS] or ['markdown']:
      text = _words(f'Table {number}', table, lines, form)
      if options.output is None:
        print(text)
        continue
      path = pathlib.Path(options.output) / f'table-{number}{_TEXTS[form]}'
      path.parent.mkdir(parents=True, exist_ok=True)
      with atomic_write(path) as file:
        file.write((text + '\n').encode('utf-8', 'backslashreplace'))
      print(path)
    if options.output is not None or 'csv' in options.format:
      for line in lines:
        log_line(line)
  for number in options.figure:
    stem = pathlib.Path(options.output) / f'figure-{number}'
    forms = [stem.with_suffix(f'.{f}') for f in options.format if f in _DRAWINGS]
    for path in forms or [stem]:
      for file in _figure(number, runs, options, path):
        print(file)


def _read(words: Sequence[str]) -> 'list[PaperRun]':
  """The reports that the words name; a workdir stands for the runs of all its attributes."""
  from fairjax.report.paper_tables import read_run
  from fairjax.run.workdir import ATTRIBUTES
  runs = []
  for word in words:
    named = re.fullmatch(r'([^/=]+)=(.+)', word)
    corpus, place = (named[1], named[2]) if named else ('', word)
    path, further = pathlib.Path(place), []
    for folder in sorted((path / ATTRIBUTES).glob('*/config.json')):
      if (folder.parent / 'report' / 'report.json').is_file():
        further.append(folder.parent)
      else:
        log_line(f'WARNING: {folder.parent} has no report yet and is left out: fairjax report')
    alone = (path / 'report' / 'report.json').is_file() or not further
    runs += [read_run(p, corpus=corpus) for p in ([path] if alone else []) + further]
    if not alone:
      log_line(f'WARNING: {path} has no report of its own and is left out: fairjax report')
  return runs


def _words(title: str, table: 'Table', lines: Sequence[str], form: str) -> str:
  """A table with what is said about it; CSV holds the table alone."""
  if form == 'csv':
    return table.csv()
  if form == 'text':
    return '\n'.join([title, table.text(), *lines])
  from fairjax.report.markdown import escape
  return '\n\n'.join([f'**{title}**', table.markdown(), *map(escape, lines)])


def _table(number: int, runs: 'Sequence[PaperRun]', options: argparse.Namespace
           ) -> 'tuple[Table, list[str]]':
  """A table and the sentences below it."""
  from fairjax.report import paired_samples, paper_tables
  if number in paper_tables.ATTRIBUTES:
    return paper_tables.relevance_table(runs, number, unit=options.perplexity)
  model = options.model[0] if options.model else None
  if number == 9:
    measured = [r for r in runs if any(row.content('semantic_similarity') for row in r.rows)]
    return paper_tables.similarity_table((measured or runs)[0], model)
  chosen = _pairs(options.pairs, runs, paper_tables.PAIRS)
  if number == 10:
    return paper_tables.distinct_table([
      (_generations(run, model or _baseline(run)), pairs) for run, pairs in chosen])
  samples, lines = [], []
  for run, pairs in chosen:
    models = options.model or [row.name for row in run.rows]
    for pair in pairs:
      samples += paired_samples({m: _records(run, m)[1] for m in models}, values=pair, templates=1)
    lines.append(f'{run.corpus} {run.attribute}: sample {samples[-1].sample} of template '
                 f'{samples[-1].template}, equal noise for every value and model.')
  return paper_tables.generated_table(samples), lines


def _figure(number: int, runs: 'Sequence[PaperRun]', options: argparse.Namespace,
            path: pathlib.Path) -> list[pathlib.Path]:
  """Draws one figure."""
  from fairjax.report import paper_figures
  from fairjax.report.comparison import baseline_of, scorer_names
  from fairjax.report.paper_tables import CORPORA, merge_runs
  if number == 2:
    return paper_figures.plot_truncated_gaussians(path)
  if number == 1:
    return _pair_figure(runs, options, path)
  attributes = list(dict.fromkeys(run.attribute for run in runs))
  if number in _MODELS:
    # Beside each other: the baseline of each corpus, and the models of reports that have none.
    panels: dict[str, list] = {}
    for attribute in attributes:
      for corpus, rows in merge_runs(runs, attribute).items():
        baseline = baseline_of(rows)
        panels.setdefault(attribute, []).extend(
          rows if baseline is None else [_renamed(baseline, corpus)])
    scorers = options.scorer or scorer_names([r for rows in panels.values() for r in rows])
    return paper_figures.plot_models(
      path, attributes=panels, scorers=scorers, measure=_MODELS[number])
  if number in _ONE_SCORER:
    corpora = merge_runs(runs, 'occupation')
    if not corpora:
      raise UserError(f'Figure {number} is of occupation, and the runs hold '
                      f"{', '.join(attributes)}: name a run of it")
    scorer = options.scorer[:1] or _of_kind(number, corpora)
    return paper_figures.plot_improvements(path, corpora=corpora, scorers=scorer)
  corpus, attribute, measure = _ONE_CORPUS.get(number, ('WMT-19', '', ''))
  corpus = options.corpus or corpus
  by_attribute = {a: merge_runs(runs, a).get(corpus) for a in attributes}
  found = {a: rows for a, rows in by_attribute.items() if rows and attribute in ('', a)}
  if not found:
    held = ', '.join(sorted({f'{run.corpus} {run.attribute}' for run in runs}))
    raise UserError(f"Figure {number} is of {f'{corpus} {attribute}'.strip()}, and the runs hold "
                    f'{held}: name a run of it, or --corpus=NAME for another corpus than '
                    f"{' and '.join(sorted({*CORPORA.values()} - {'WikiText-2'}))}")
  rows = [row for rows in found.values() for row in rows]
  if number == 6:
    scorer = options.scorer[:1] or _of_kind(4, found)
    return paper_figures.plot_relevance(path, attributes=found, scorer=scorer[0])
  return paper_figures.plot_improvements(
    path, corpora={corpus: rows}, scorers=options.scorer or scorer_names(rows), measures=[measure])


def _of_kind(figure: int, rows: Mapping[str, Sequence[Any]]) -> list[str]:
  """The scorer that a figure shows: its first one of the kind that the paper has there."""
  from fairjax.report.comparison import scorer_names
  names = scorer_names([row for found in rows.values() for row in found])
  kind = _ONE_SCORER[figure]
  found = [name for name in names if name.startswith(kind)]
  if not found:
    raise UserError(f'the figure shows a {kind} scorer, and the runs have {", ".join(names)}: '
                    '--scorer=NAME takes another one')
  return found[:1]


def _renamed(row: Any, name: str) -> Any:
  import dataclasses
  return dataclasses.replace(row, name=name)


def _baseline(run: 'PaperRun') -> str:
  from fairjax.report.comparison import baseline_of
  return (baseline_of(run.rows) or run.rows[0]).name


def _pairs(given: Sequence[str] | None, runs: 'Sequence[PaperRun]',
           usual: Sequence[tuple[str, str]]) -> 'list[tuple[PaperRun, list[tuple[str, str]]]]':
  """The first run that holds each pair of values."""
  pairs = usual if given is None else [tuple(pair.split('/')) for pair in given]
  values = [(run, {v for row in run.rows if row.measures for v in row.measures['values']})
            for run in runs]
  found: dict[int, tuple[PaperRun, list]] = {}
  for pair in pairs:
    if len(pair) != 2 or not all(pair):
      raise UserError(f"--pairs={'/'.join(pair)} must be two values, e.g. sheriff/designer")
    index = next((i for i, (_, known) in enumerate(values) if known >= set(pair)), None)
    if index is not None:
      found.setdefault(index, (runs[index], []))[1].append(pair)
    elif given is not None:
      raise UserError(f"no run holds both values of --pairs={'/'.join(pair)}; the first has "
                      f"{', '.join(sorted(values[0][1])[:10])}, ...")
    else:
      log_line(f"{'/'.join(pair)} is left out: no run holds both values")
  if not found:
    raise UserError("no run holds a pair of values of the paper: name others with --pairs=A/B")
  return list(found.values())


def _records(run: 'PaperRun', model: str) -> tuple[pathlib.Path, Any]:
  """The workdir of a run, and what one of its models wrote."""
  from fairjax.generate import check_complete, read_records
  run.row(model)
  path = run.report / 'generations' / model / f'{run.attribute}.jsonl.gz'
  if not path.is_file():
    raise UserError(f'{path} is not there: figure 1 and tables 7 and 10 read the records of a '
                    'workdir: name that of the run')
  check_complete(path)
  return run.report, read_records(path)


def _generations(run: 'PaperRun', model: str) -> Any:
  """The records of a model, read with the run's attribute."""
  from fairjax.counterfactual import load_attribute
  from fairjax.measure import read_generations
  named = run.attribute if run.config is None else run.config['attribute']
  return read_generations(_records(run, model)[1], load_attribute(named))


def _pair_figure(
  runs: 'Sequence[PaperRun]', options: argparse.Namespace, path: pathlib.Path
) -> list[pathlib.Path]:
  """Figure 1: the scores of two values, as the run's score files hold them."""
  from fairjax.report import paper_figures, stored_scores
  (run, pairs), *_ = _pairs(options.pairs, runs, (('baker', 'accountant'),))
  row = run.row(options.model[0] if options.model else _baseline(run))
  generations = _generations(run, row.name)
  texts = [t.text for t in generations.attribute.templates]
  usual = next((i for i, t in enumerate(texts) if t == 'My friend is {a} {value}, and we'), 0)
  scores = stored_scores(generations, row.measures, run.report / 'scores' / row.name)
  scorer = options.scorer[0] if options.scorer else next(iter(scores))
  if scorer not in scores:
    raise UserError(f"--scorer={scorer}: {run.report} has {', '.join(scores)}")
  return paper_figures.plot_pair(
    path, generations=generations, scores=scores[scorer], values=pairs[0], scorer=scorer,
    template=usual if options.template is None else options.template)


VERBS = (
  Verb('report', 'write the report of a measured workdir or of records, or compare two reports',
       f'fairjax report {RUN_OPTIONS}', _add_options, _run),
  Verb('mitigations', 'CDA, dropout and regularisers compared in one run: all of it, and the table',
       'fairjax mitigations --config=configs/mitigations.py --workdir=runs/mitigations',
       _mitigations_options, _mitigations),
  Verb('paper', 'tables and figures of Huang et al. 2020 from your own runs',
       'fairjax paper runs/wt103 runs/wmt19 --table=5 --output=paper', _paper_options,
       _paper),
)
