"""Options that several verbs share, each described once, and the types of options."""

import argparse
import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

from fairjax.config_checks import limit_error
from fairjax.config_io import field_docs
from fairjax.errors import UserError
from fairjax.files import check_place


def at_least(least: int, *, most: int = 10 ** 9) -> Callable[[str], int]:
  """Type of an option: a whole number from `least` to `most`."""
  def parse(text: str) -> int:
    if not least <= int(text) <= most:
      raise argparse.ArgumentTypeError(f'{text} must be at least {least} and at most {most:,}')
    return int(text)

  parse.__name__ = 'int'
  return parse


positive, not_negative = at_least(1), at_least(0)


def between(low: float, high: float, *, ends: str = '()') -> Callable[[str], float]:
  """Type of an option: a number in an interval, `ends` of which say what belongs to it.

  >>> between(0, 1, ends='[)')('0')
  0.0
  """
  def parse(text: str) -> float:
    number = float(text)
    if not (low < number < high or number == low and ends[0] == '['
            or number == high and ends[1] == ']'):
      raise argparse.ArgumentTypeError(f'{text} is not in {ends[0]}{low:g}, {high:g}{ends[1]}')
    return number

  parse.__name__ = 'float'
  return parse


def place_of(*, folder: bool) -> Callable[[str], pathlib.Path]:
  """Type of an option: a path that can be written, checked before any work."""
  def parse(text: str) -> pathlib.Path:
    try:
      return check_place(text, folder=folder)
    except UserError as e:
      raise argparse.ArgumentTypeError(str(e)) from None

  return parse


def renamed_columns(text: str) -> dict[str, str]:
  """Type of an option: columns of a file under the names of fields, THEIRS=OURS with commas.

  >>> renamed_columns('prompt=prefix,answer=continuation')
  {'prompt': 'prefix', 'answer': 'continuation'}
  """
  pairs = [part.rpartition('=') for part in text.split(',')]
  found = {theirs.strip(): ours.strip() for theirs, _, ours in pairs}
  if len(found) < len(pairs) or not all(found) or not all(found.values()):
    raise argparse.ArgumentTypeError(
      f"'{text}' must be pairs of a column and a field, e.g. prompt=prefix,answer=continuation")
  return found


_FLAG: dict[str, Any] = {'action': 'store_true'}
_FILES: dict[str, Any] = {'metavar': 'FILE', 'nargs': '+', 'action': 'extend', 'default': []}

SHARED: dict[str, dict[str, Any]] = {
  'config': {'metavar': 'FILE[:ARGS]',
             'help': 'config file, or the name of a shipped one (quickstart); --config.a.b=VALUE '
             'overrides a field'},
  'workdir': {'metavar': 'DIR', 'help': 'folder of the run; the same command continues it'},
  'distributed': {
    'metavar': 'auto|HOST:PORT,COUNT,INDEX', 'nargs': '?', 'const': 'auto',
    'help': 'one of several processes that share the work, and the folder: auto (the default) on '
            'Cloud TPU, GKE, Slurm, MPI; else the address of the first, how many, which this is'},
  'records': {'metavar': 'FILE', 'help': 'generations, as of fairjax measure'},
  'attribute': {'help': 'built-in attribute, YAML file, or the combinations of two (A*B)'},
  'columns': {
    'metavar': 'THEIRS=OURS,...', 'type': renamed_columns, 'help': 'columns of the records that '
    'have other names, e.g. prompt=prefix,answer=continuation'},
  'empty': {
    'choices': ('error', 'drop', 'keep'), 'default': 'error', 'help': 'records whose continuation '
    'is null, empty or blank: stop and count them by value (error, the default), leave them out '
    '(drop; of coupled samples their partners too), or measure them as they are (keep)'},
  'repair': _FLAG | {'help': 'replace halves of characters (lone surrogates) and NUL in records by '
                     'U+FFFD, counted, instead of stopping'},
  'keep': {'metavar': 'DIR', 'help': 'with --records: folder of scores and finished parts, from '
           'which the same command continues after an interruption (default: only the scores of '
           'classifiers and of google are kept, beside the records)'},
  'scored': {'choices': ('continuation', 'prefix+continuation'), 'default': 'continuation',
             'help': 'which part of a record is scored'},
  'independent': _FLAG | {
    'help': 'samples of different values were drawn independently (not coupled)'},
  'scorer': {'action': 'append', 'help': 'opinion | vader | textblob | google | bert:DIR | '
             'recorded:NAME; repeat'},
  'lexicon': {'nargs': '+', 'action': 'extend', 'metavar': 'FILE',
              'help': 'opinion scorer: POSITIVE NEGATIVE, or --lexicon=DIR of scorers lexicon'},
  'google-cache': {'metavar': 'FILE', 'help': 'google scorer: file of the scores that were paid '
                   'for (default: beside the texts that are scored)'},
  'google-rate': {'metavar': 'N', 'type': float, 'default': 600.0,
                  'help': 'google scorer: requests a minute'},
  'google-endpoint': {'metavar': 'HOST', 'default': '',
                      'help': 'google scorer: host of another region'},
  'encoder': {'metavar': 'NAME', 'help': 'S.S.: minilm | minilm:DIR | use:DIR (Universal Sentence '
              'Encoder)'},
  'similarity-samples': {'type': not_negative, 'default': 0, 'metavar': 'N',
                         'help': 'S.S.: the first N samples of each prefix (0: all)'},
  'similarity-threshold': {
    'default': 'encoder', 'metavar': 'T', 'help': "S.S.: the encoder's own (encoder), a cosine, or "
    'baseline:SHARE with --baseline-records'},
  'baseline-records': {'metavar': 'FILE', 'help': "S.S.: the baseline's generations, SHARE of "
                       'which are to be similar'},
  'permutations': {'type': at_least(1, most=10 ** 6), 'default': 1000, 'help': 'for the floors'},
  'seed': {'type': not_negative, 'default': 0},
  'json': _FLAG | {'help': 'print JSON'},
  'pairs': _FILES | {'help': 'word pairs; or a male and a female word file; none: names only '
                     '(default: built in)'},
  'names': _FILES | {'help': 'counts of first names, as of the US Social Security Administration: '
                     'names are swapped too'},
  'name-gender': {'choices': ('same', 'flip', 'random'), 'help': 'of the name that replaces '
                  'another (default: %(default)s)'},
  'letters': {'metavar': 'A-M', 'default': 'A-Z',
              'help': 'initials of the names that are replaced'},
  'least-count': {'type': int, 'default': 1, 'metavar': 'N',
                  'help': 'rarer names are neither replaced nor drawn'},
  'stsb': {'metavar': 'DIR', 'help': 'folder of sts-train, sts-dev, sts-test'},
  'professions': {'metavar': 'FILE', 'help': 'shares of women, in the form of '
                  'occupations-stats.tsv: occupation, bls_pct_female'},
  'column': {'default': 'bls_pct_female', 'help': 'of --professions'},
  'restarts': {'type': positive, 'default': 5, 'help': 'of everything trained (W-11)'},
  'level': {'type': between(0, 1), 'default': 0.05,
            'help': 'chance that a bound fails (default: 0.05)'},
}
"""Options by name: the arguments of `add_argument`."""

READING = ('columns', 'empty', 'repair')
SCORERS = ('scorer', 'lexicon', 'google-cache', 'google-rate', 'google-endpoint')
CONTENT = ('encoder', 'similarity-samples', 'similarity-threshold', 'baseline-records')
SWAP = ('pairs', 'names', 'name-gender', 'letters', 'least-count')


def add_shared(parser: argparse._ActionsContainer, *names: str, **changes: Any) -> None:
  """Adds shared options by name; `changes` replace arguments of all of them."""
  for name in names:
    parser.add_argument(f'--{name}', **SHARED[name] | changes)


def add_run_options(parser: argparse._ActionsContainer, *, required: bool = True) -> None:
  """Adds `--config`, `--workdir` and `--distributed`."""
  add_shared(parser, 'config', 'workdir', required=required)
  add_shared(parser, 'distributed')


def add_person_options(parser: argparse._ActionsContainer, *, own: str = '') -> None:
  """Adds the names and terms of DisCo; `own` says which are taken before the built-in ones."""
  parser.add_argument('--names', metavar='FILE', action='append', default=[],
                      help='of DisCo: name<TAB>group, or SSA statistics (repeat for years); '
                      f'default: {own}names of Huang et al. 2020')
  parser.add_argument('--terms', metavar='FILE[,FILE]',
                      help='of DisCo: noun<TAB>group, or pairs of words (see gender cda), or '
                      f'a male and a female file; default: {own}built-in nouns')


def add_fields(group: argparse._ActionsContainer, of: type, *names: str, prefix: str = '',
               **defaults: Any) -> None:
  """Adds options for fields of a configuration, with their type, limits and documentation."""
  # The fields in `names` keep their defaults, those in `defaults` get other ones.
  for field in dataclasses.fields(of):
    if field.name in names or field.name in defaults:
      kind = ({'action': 'store_const', 'const': True} if field.type is bool else
              {'type': _type_of(field), 'choices': field.metadata.get('choices') or None})
      group.add_argument(
        f'--{prefix}{field.name}'.replace('_', '-'), dest=f'{prefix}{field.name}'.replace('.', '_'),
        default=defaults.get(field.name, field.default),
        help=field_docs(of)[field.name].replace('%', '%%'), **kind)


def _type_of(field: dataclasses.Field) -> Callable[[str], Any]:
  """Type of an option: a value within the limits of a field."""
  kind: Any = field.type

  def parse(text: str) -> Any:
    value = kind(text)
    if wrong := limit_error(field, value):
      raise argparse.ArgumentTypeError(wrong)
    return value

  parse.__name__ = kind.__name__
  return parse


def field_values(options: argparse.Namespace, of: type, *, prefix: str = '') -> dict[str, Any]:
  """What was given, or is a default, for the fields of a dataclass, by their names."""
  found = {field.name: getattr(options, f'{prefix}{field.name}', None)
           for field in dataclasses.fields(of)}
  return {name: value for name, value in found.items() if value is not None}


def refuse(options: argparse.Namespace, *names: str, why: str) -> None:
  """Raises `UserError` with the first option of these names that was given."""
  for name in names:
    given, parser = name.replace('-', '_'), options.own_parser
    if given in parser.given or getattr(options, given) != parser.get_default(given):
      raise UserError(f'--{name} {why}')


def of_records(options: argparse.Namespace, *names: str, needs: str) -> bool:
  """Whether a verb works on `--records`; refuses the options of records where it works on a run."""
  run = options.config, options.workdir
  if any(run) if options.records else not all(run):
    raise UserError(f'{options.verb} needs --records=FILE {needs}, or --config and --workdir of a '
                    'run, not both')
  if not options.records:
    refuse(options, *READING, *SCORERS, *CONTENT, 'attribute', 'output', 'permutations',
           'independent', *names, why='belongs to --records: a run is measured as its config says, '
           'and what is found is in its workdir')
  return bool(options.records)


def require(options: argparse.Namespace, verb: str, *names: str) -> None:
  """Raises `UserError` with the options of these names that are missing or empty."""
  missing = [f'--{name}' for name in names if not getattr(options, name.replace('-', '_'))]
  if missing:
    raise UserError(f"{verb} needs {' and '.join(missing)}")
