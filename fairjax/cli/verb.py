"""What a verb of the command line is, and what several verbs share."""

import argparse
import collections
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fairjax import processes
from fairjax.config import Config
from fairjax.errors import UserError
from fairjax.progress import Progress, print_line, write_line


class Verb(NamedTuple):
  """A verb of `fairjax`.

  Attributes:
    name: as typed.
    what: one line for `--help`.
    example: a command that works.
    add_options: adds the options to the parser of the verb; imports nothing heavy.
    run: does the work, with the parsed options (and `overrides`, field -> text, of the config);
      returns the exit code, None for 0.
    takes_command: whether words behind `--` are a command of fairjax of their own: the words land
      in `command` of the options, their parsed form in `inner` (None if there are none).
  """

  name: str
  what: str
  example: str
  add_options: Callable[[argparse.ArgumentParser], object]
  run: Callable[[argparse.Namespace], int | None]
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


def add_run_options(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
  """Adds `--config` and `--workdir`."""
  parser.add_argument('--config', metavar='FILE[:ARGS]', required=required,
                      help='config file; --config.a.b=VALUE overrides a field')
  parser.add_argument('--workdir', metavar='DIR', required=required,
                      help='folder of the run; the same command continues it')
  add_distributed_option(parser)


def add_distributed_option(parser: argparse.ArgumentParser) -> None:
  """Adds `--distributed`; `join_processes` heeds it."""
  parser.add_argument(
    '--distributed', metavar='auto|HOST:PORT,COUNT,INDEX', nargs='?', const='auto', default=None,
    help='one of several processes that share the work, and the folder: auto (the default) on '
         'Cloud TPU, GKE, Slurm, MPI; else the address of the first, how many, which this is')


def start_run(options: argparse.Namespace) -> Config:
  """The config of a verb that works on a workdir; joins the processes, opens nothing.

  Raises:
    UserError: the config or the name of the workdir is wrong.
  """
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
             config: Config | None = None):
  """Opens the workdir of a verb that works on one: from here on it belongs to the config.

  Args:
    options: of the command line.
    log: gets the lines of the job; `log_line` where the verb prints something else.
    config: of `start_run`, where something is looked at before the workdir is opened.

  Raises:
    UserError: the config is wrong, or the workdir belongs to another one.
  """
  config = config or start_run(options)
  from fairjax.run.job import Job
  return Job(config, options.workdir, log=log)


def open_training(options: argparse.Namespace, *, until: str | None = None,
                  config: Config | None = None, vocab_size: int | None = None):
  """`open_job` for a verb that trains.

  Args:
    options: of the command line.
    until: the last stage; None: the config's.
    config: of `start_run`, if it was called.
    vocab_size: of the model, where it is known before the data are prepared.

  Raises:
    UserError: as `open_job`; or the devices do not divide a batch or the model, and then nothing
      was written.
  """
  config = config or start_run(options)
  from fairjax.run.workdir import check_devices
  check_devices(config, pathlib.Path(options.workdir), until=until, vocab_size=vocab_size)
  return open_job(options, config=config)


def join_processes(options: argparse.Namespace) -> None:
  """Joins the group that `--distributed` names, if it does, and sees to its signals.

  Raises:
    UserError: the processes do not find each other.
  """
  if getattr(options, 'distributed', None):
    processes.start(options.distributed)
    # Never left: whatever this process does, a signal must end or stop the whole group.
    from fairjax.processes import StopSignal
    StopSignal().installed().__enter__()


def refuse_processes(options: argparse.Namespace, verb: str) -> None:
  """Raises `UserError` where `--distributed` is given to what one process does alone."""
  if options.distributed:
    raise UserError(f'--distributed={options.distributed}: {verb} runs in one process; leave it '
                    'out, and start the command once')


def add_reading_options(parser: Any, *, empty: bool = True) -> None:
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
  """`read_records` as the options say, with lines of progress and of what was changed."""
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
  """Writes a line of progress, away from what the verb prints."""
  write_line(line, sys.stderr)
