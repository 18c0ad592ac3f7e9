"""The verb `report`: that of a workdir, of anyone's records, and two of them side by side."""

import argparse
import json
import pathlib

from fairjax.commands.content import add_content_options, content_options
from fairjax.commands.run import RUN_OPTIONS
from fairjax.commands.scorers import add_scorer_options, google_arguments
from fairjax.commands.verb import (
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
  from fairjax.job.records_report import report_records
  from fairjax.measure import load_scorer
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


VERBS = (
  Verb('report', 'write the report of a measured workdir or of records, or compare two reports',
       f'fairjax report {RUN_OPTIONS}', _add_options, _run),
)
