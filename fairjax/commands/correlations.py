"""The verb `correlations`: gendered correlations of models (Webster et al. 2020)."""

import argparse
import json
import pathlib

from fairjax.commands.verb import Verb, log_line
from fairjax.errors import UserError, unknown_name

_NEEDS = {
  'disco': (), 'winogender': ('winogender',), 'coref': ('winogender', 'coref'),
  'recorded': ('winogender', 'recorded'), 'stsb': ('stsb', 'professions'), 'bios': ('bios',)}


def _add_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--model', metavar='DIR[@NAME]', action='append', required=True,
                      help='BERT, ALBERT or GPT-2 directory, folder of fairjax export, or workdir '
                      '(@NAME: which of its models); repeat for a table of several')
  parser.add_argument('--output', metavar='DIR', required=True,
                      help='gets correlations.json, correlations.md and what is finished; the same '
                      'command continues')
  parser.add_argument('--metrics', default=None, metavar='LIST',
                      help=f"some of {', '.join(_NEEDS)}; default: those whose data are given")
  parser.add_argument('--json', action='store_true', help='print JSON')
  parser.add_argument('--restarts', type=int, default=5, help='of everything trained (W-11)')
  parser.add_argument('--seed', type=int, default=0, help='the first of them')
  disco = parser.add_argument_group('disco')
  disco.add_argument('--names', metavar='FILE', action='append', default=[],
                     help='name<TAB>group, or SSA statistics (repeat for years); default: names of '
                     'Huang et al. 2020')
  disco.add_argument('--terms', metavar='FILE[,FILE]',
                     help='noun<TAB>group, or pairs of words (see fairjax cda), or a male and a '
                     'female file; default: built-in nouns')
  disco.add_argument('--initials', metavar='RANGES', help='names by their first letters, a score '
                     'for each range, e.g. A-M,N-Z (W-16)')
  disco.add_argument('--persons', type=int, default=100, metavar='N',
                     help='the first N of each group of a list; 0: all')
  disco.add_argument('--templates', metavar='FILE', help="default: the paper's 14")
  disco.add_argument('--candidates', metavar='FILE', help='of causal models: words for blanks that '
                     'do not end a sentence, beside those that the model likes there')
  disco.add_argument('--no-infill', action='store_true',
                     help='of causal models: leave out blanks that do not end a sentence')
  disco.add_argument('--top', type=int, default=3, help='fills supplied for a person')
  disco.add_argument('--shuffles', type=int, default=20, help='random groups of the control')
  disco.add_argument('--per-template', action='store_true',
                     help='Bonferroni over the tests of a template, not all tests')
  coref = parser.add_argument_group('winogender, coref, recorded')
  coref.add_argument('--winogender', metavar='DIR',
                     help='folder of templates.tsv and occupations-stats.tsv')
  coref.add_argument('--coref', metavar='DIR', help='WinoBias files, or train/ and test/ in the '
                     'format of OntoNotes: trains a probe on frozen states')
  coref.add_argument('--recorded', metavar='FILE',
                     help="another system's sentid<TAB>P(pronoun means the occupation)")
  coref.add_argument('--professions', metavar='FILE', help='shares of women, in the form of '
                     'occupations-stats.tsv; default: that of --winogender')
  coref.add_argument('--column', default='bls_pct_female', help='of --professions')
  tasks = parser.add_argument_group('stsb, bios')
  tasks.add_argument('--stsb', metavar='DIR', help='folder of sts-train, sts-dev, sts-test')
  tasks.add_argument('--bios', metavar='FILE', help='biographies with profession and gender')
  tasks.add_argument('--mode', choices=('full', 'frozen'), default='',
                     help='fine-tune the whole model, or a head on its features; default: full for '
                     'BERT and ALBERT, frozen for others')
  tasks.add_argument('--epochs', type=int, default=0, help='default: 3, or 10 of a frozen model')
  tasks.add_argument('--learning_rate', type=float, default=0.0,
                     help='default: 2e-5, or 1e-3 of a frozen model; small models need more')


def _correlations(options: argparse.Namespace) -> None:
  from fairjax.correlations.suite import Settings, measure_correlations
  from fairjax.correlations.table import table
  for name, least in (('restarts', 1), ('persons', 0), ('top', 1), ('shuffles', 1), ('seed', 0),
                      ('epochs', 0)):
    if getattr(options, name) < least:
      raise UserError(f'--{name} must be at least {least}')
  if not 0 <= options.learning_rate < 1:
    raise UserError(f'--learning_rate={options.learning_rate} must be in [0, 1)')
  if options.winogender and not options.professions:
    options.professions = str(pathlib.Path(options.winogender) / 'occupations-stats.tsv')
  metrics = _metrics(options)
  settings = Settings(
    metrics=metrics, persons=_persons(options) if 'disco' in metrics else (),
    infill=not options.no_infill,
    **{name: getattr(options, name) for name in (
      'templates', 'candidates', 'top', 'shuffles', 'per_template', 'winogender', 'coref',
      'recorded', 'professions', 'column', 'stsb', 'bios', 'mode', 'epochs', 'learning_rate',
      'restarts', 'seed')})
  found = measure_correlations(options.model, settings, output=options.output, log=log_line)
  print(json.dumps(found, indent=2) if options.json else table(found['found']))


def _metrics(options: argparse.Namespace) -> tuple[str, ...]:
  """What is asked for, or what data are given for.

  Raises:
    UserError: an unknown metric, none, or one whose data are given in part.
  """
  if options.metrics is None:  # a metric has the name of the option of its own data
    chosen = tuple(m for m, needs in _NEEDS.items() if not needs or getattr(options, m))
  else:
    chosen = tuple(dict.fromkeys(m.strip() for m in options.metrics.split(',') if m.strip()))
  for metric in chosen:
    if metric not in _NEEDS:
      raise unknown_name('metric', metric, _NEEDS)
    missing = [f'--{need}' for need in _NEEDS[metric] if not getattr(options, need)]
    if missing:
      raise UserError(f"metric {metric} needs {' and '.join(missing)}")
  if not chosen:
    raise UserError(f"--metrics is empty: give some of {', '.join(_NEEDS)}")
  return chosen


def _persons(options: argparse.Namespace) -> tuple:
  """The lists of names and terms."""
  from fairjax.correlations.persons import names_from, terms_from
  names, terms = names_from(options.names), terms_from(options.terms)
  parts = [part.strip() for part in (options.initials or '').split(',') if part.strip()]
  lists = (*([names.with_initials(part) for part in parts] or [names]), terms)
  if options.persons:
    lists = tuple(persons.most(options.persons) for persons in lists)
  for persons in lists:
    counts = {g: persons.groups.count(g) for g in persons.group_names}
    used = ', '.join(f"{n} of {persons.given[g]} {g}" for g, n in counts.items())
    log_line(f'[disco] {persons.title}: {used} ({persons.source})')
  return lists


VERBS = (
  Verb('correlations', 'gendered correlations of models: DisCo, WinoGender, STS-B, Bios',
       'fairjax correlations --model=runs/bert --winogender=winogender --output=runs/correlations',
       _add_options, _correlations),
)
