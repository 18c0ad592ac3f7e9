"""The verb `mitigations`: models of one run, made fairer in different ways, in one table."""

import argparse
import dataclasses
import pathlib

from fairjax import processes
from fairjax.commands.verb import Verb, add_run_options, log_line, open_job
from fairjax.errors import UserError


def _add_options(parser: argparse.ArgumentParser) -> None:
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

  from fairjax.correlations.persons import names_from, terms_from
  from fairjax.correlations.suite import Settings, measure_correlations
  from fairjax.job.report_parts import model_rows
  from fairjax.report.mitigations import (
    compare_mitigations,
    mitigations_markdown,
    write_mitigations,
  )
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
  from fairjax.correlations.persons import names_from, terms_from
  from fairjax.correlations.professions import read_professions
  from fairjax.correlations.winogender import read_winogender
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


VERBS = (
  Verb('mitigations', 'CDA, dropout and regularisers compared in one run: all of it, and the table',
       'fairjax mitigations --config=configs/mitigations.py --workdir=runs/mitigations',
       _add_options, _mitigations),
)
