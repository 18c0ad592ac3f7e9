"""What a verb of the command line is, and the options and checks that several verbs share."""

import argparse
import collections
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from fairjax import processes
from fairjax.config import Config
from fairjax.errors import UserError
from fairjax.files import check_place
from fairjax.progress import Progress, print_line, write_line

if TYPE_CHECKING:
  from fairjax.run.job import Job

RUN_OPTIONS = '--config=configs/quickstart.py --workdir=runs/quickstart'  # of the examples


class Verb(NamedTuple):
  """A verb of `fairjax`."""

  name: str
  what: str  # one line for `--help`
  example: str  # a command that works
  add_options: Callable[[argparse.ArgumentParser], object]  # imports nothing heavy
  # Does the work with the parsed options (with `overrides` of the config, field -> text); returns
  # the exit code, None for 0.
  run: Callable[[argparse.Namespace], int | None]
  # Whether the words after `--` are another fairjax command: `command` of the options, parsed
  # `inner` (None without words).
  takes_command: bool = False


class Parser(argparse.ArgumentParser):
  """Takes `--dry-run` and `--dry_run` for one option; reports bad arguments as `UserError`."""

  def parse_known_args(self, args=None, namespace=None):
    """As the parent's, with every option in the spelling that it was added with."""
    words = list(sys.argv[1:] if args is None else args)
    end = words.index('--') if '--' in words else len(words)
    return super().parse_known_args([*map(self._spelled, words[:end]), *words[end:]], namespace)

  def _spelled(self, word: str) -> str:
    """An option's word, or the beginning of one, with the hyphens and underscores of our own."""
    name, equals, value = word.partition('=')
    if not name.startswith('--') or name in self._option_string_actions:
      return word
    plain = {option.replace('_', '-'): option for option in self._option_string_actions}
    given = name.replace('_', '-')
    found = [given] if given in plain else [option for option in plain if option.startswith(given)]
    return f'{plain[found[0]]}{equals}{value}' if len(found) == 1 else word

  def error(self, message: str):
    """Raises `UserError` with the message and where to look."""
    raise UserError(f'{message} (see: {self.prog} --help)')


class Action(NamedTuple):
  """An action of a verb, with options of its own: `fairjax VERB ACTION ...`."""

  name: str
  what: str  # one line for `--help`
  add_options: Callable[[argparse.ArgumentParser], object]
  run: Callable[[argparse.Namespace], int | None]


def add_actions(parser: argparse.ArgumentParser, *actions: Action) -> None:
  """Adds the actions of a verb, one of which must be given; `run_action` runs it."""
  parsers = parser.add_subparsers(dest='action', metavar='|'.join(a.name for a in actions),
                                  required=True, parser_class=Parser)
  for action in actions:
    own = parsers.add_parser(action.name, help=action.what, description=action.what)
    own.add_argument('--debug', action='store_true', default=argparse.SUPPRESS,
                     help=argparse.SUPPRESS)
    action.add_options(own)
    own.set_defaults(run_action=action.run)


def run_action(options: argparse.Namespace) -> int | None:
  """Runs the action that the options name."""
  return options.run_action(options)


def at_least(least: int) -> Callable[[str], int]:
  """Type of an option: a whole number that is not smaller."""
  def parse(text: str) -> int:
    if int(text) < least:
      raise argparse.ArgumentTypeError(f'{text} must be at least {least}')
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


above_zero = between(0, math.inf)


def place_of(*, folder: bool) -> Callable[[str], pathlib.Path]:
  """Type of an option: a path that can be written, checked before any work."""
  def parse(text: str) -> pathlib.Path:
    try:
      return check_place(text, folder=folder)
    except UserError as e:
      raise argparse.ArgumentTypeError(str(e)) from None

  return parse


def require(options: argparse.Namespace, verb: str, names: Iterable[str]) -> None:
  """Raises `UserError` with the options of these names that are missing or empty."""
  missing = [f"--{name.replace('_', '-')}" for name in names if not getattr(options, name)]
  if missing:
    raise UserError(f"{verb} needs {' and '.join(missing)}")


def add_seed_option(parser: argparse._ActionsContainer, words: str | None = None) -> None:
  """Adds `--seed`."""
  parser.add_argument('--seed', type=not_negative, default=0, help=words)


def add_json_option(parser: argparse._ActionsContainer) -> None:
  """Adds `--json`, of `print_result`."""
  parser.add_argument('--json', action='store_true', help='print JSON')


def print_result(options: argparse.Namespace, result: Any, lines: Callable[[Any], str]) -> None:
  """Prints a result as JSON, or as the text that `lines` makes of it."""
  print(json.dumps(result, indent=2, allow_nan=False) if options.json else lines(result))


def add_run_options(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
  """Adds `--config` and `--workdir`."""
  parser.add_argument('--config', metavar='FILE[:ARGS]', required=required,
                      help='config file; --config.a.b=VALUE overrides a field')
  parser.add_argument('--workdir', metavar='DIR', required=required,
                      help='folder of the run; the same command continues it')
  add_distributed_option(parser)


def add_distributed_option(parser: argparse.ArgumentParser) -> None:
  """Adds `--distributed`, of `join_processes`."""
  parser.add_argument(
    '--distributed', metavar='auto|HOST:PORT,COUNT,INDEX', nargs='?', const='auto', default=None,
    help='one of several processes that share the work, and the folder: auto (the default) on '
         'Cloud TPU, GKE, Slurm, MPI; else the address of the first, how many, which this is')


def start_run(options: argparse.Namespace) -> Config:
  """The config of a verb that works on a workdir; joins the processes, opens nothing."""
  from fairjax.config_io import load_config
  config = load_config(options.config, options.overrides)
  if not options.workdir:
    raise UserError('--workdir is empty: name a folder (is a variable of the shell unset?)')
  if '://' in options.workdir:
    raise UserError(f'--workdir={options.workdir} is not a folder: mount the bucket (gcsfuse) and '
                    'name its folder')
  join_processes(options)
  return config


def open_job(options: argparse.Namespace, *, log: Callable[[str], None] = print_line,
             config: Config | None = None) -> 'Job':
  """Opens the workdir, which from here on belongs to the config (by default of `start_run`).

  `log` is `log_line` where the verb prints a result.
  """
  config = config or start_run(options)
  from fairjax.run.job import Job
  return Job(config, options.workdir, log=log)


def open_training(options: argparse.Namespace, *, until: str | None = None,
                  config: Config | None = None, vocab_size: int | None = None) -> 'Job':
  """`open_job` for training up to a stage (None: the config's).

  Nothing is written where the devices do not divide a batch or the model, whose vocabulary may be
  known before the data are prepared.
  """
  config = config or start_run(options)
  from fairjax.run.workdir import check_devices
  check_devices(config, pathlib.Path(options.workdir), until=until, vocab_size=vocab_size)
  return open_job(options, config=config)


def join_processes(options: argparse.Namespace) -> None:
  """Joins the group of `--distributed`, if it is given, and handles its signals from here on."""
  if getattr(options, 'distributed', None):
    processes.start(options.distributed)
    # Never left: whatever this process does, a signal must end or stop the whole group.
    processes.StopSignal().installed().__enter__()


def refuse_processes(options: argparse.Namespace, verb: str) -> None:
  """Raises `UserError` if `--distributed` is given to a verb that one process runs alone."""
  if options.distributed:
    raise UserError(f'--distributed={options.distributed}: {verb} runs in one process; leave it '
                    'out, and start the command once')


def add_scored_option(parser: argparse._ActionsContainer) -> None:
  """Adds `--scored`."""
  parser.add_argument('--scored', choices=('continuation', 'prefix+continuation'),
                      default='continuation', help='which part of a record is scored')


def add_reading_options(parser: argparse._ActionsContainer, *, empty: bool = True) -> None:
  """Adds `--repair` and, where continuations are measured, `--empty`."""
  if empty:
    parser.add_argument(
      '--empty', choices=('error', 'drop', 'keep'), default=None, help='records whose continuation '
      'is null, empty or blank: stop and count them by value (error, the default), leave them out '
      '(drop; of coupled samples their partners too), or measure them as they are (keep)')
  parser.add_argument(
    '--repair', action='store_const', const=True, default=None, help='replace halves of characters '
    '(lone surrogates) and NUL in records by U+FFFD, counted, instead of stopping')


def records_reader(options: argparse.Namespace) -> Callable[[Any], Iterator[dict[str, Any]]]:
  """`read_records` as the options say; logs progress and what was repaired."""
  from fairjax.generate import read_records

  def read(path):
    counts: collections.Counter[str] = collections.Counter()
    with Progress('reading', None, unit='records', log=log_line) as progress:
      for record in read_records(path, repair=bool(options.repair), counts=counts):
        progress.add()
        yield record
    for what, number in counts.items():
      log_line(f'{path}: {number:,} {what}')

  return read


def log_line(line: str) -> None:
  """Writes a line of progress to stderr."""
  write_line(line, sys.stderr)
