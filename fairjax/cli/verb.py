"""What a command of the command line is, and what several do with their options."""

import argparse
import functools
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fairjax import processes
from fairjax.config import Config
from fairjax.errors import UserError, printable
from fairjax.progress import print_line, write_line

if TYPE_CHECKING:
  from fairjax.counterfactual import Attribute
  from fairjax.report.document import Section
  from fairjax.run.job import Job

RUN_OPTIONS = '--config=configs/quickstart.py --workdir=runs/quickstart'  # of the examples


class Command(NamedTuple):
  """What `fairjax VERB`, or `fairjax VERB ACTION`, does; `fairjax.cli.main` has the verbs."""

  add_options: Callable[[argparse.ArgumentParser], object]  # imports nothing heavy
  # Does the work with the parsed options (with `overrides` of the config, field -> text); returns
  # the exit code, None for 0.
  run: Callable[[argparse.Namespace], int | None]
  what: str = ''  # of an action: one line for `--help`
  example: str = ''  # a command that works
  # Whether the words after `--` are another fairjax command: `command` of the options, parsed
  # `inner` (None without words).
  takes_command: bool = False
  # What of the options one process does alone: `measure --records`, or ''
  alone: Callable[[argparse.Namespace], str] = lambda options: ''


class _Once(argparse.Action):
  """Stores the value of an option; a second one, which would replace it, is refused."""

  def __call__(self, parser, namespace, values, option_string=None):
    if option_string and self.dest in parser.given and parser.given[self.dest] != values:
      raise UserError(f'{option_string} is given twice: leave one of them out')
    if option_string:
      parser.given[self.dest] = values
    setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
  """Reports bad arguments as `UserError`."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self.register('action', None, _Once)
    self.register('action', 'store', _Once)

  def parse_known_args(self, args=None, namespace=None):
    """As the parent's, whose error does not show the words that it does not know."""
    self._words = [word.partition('=')[0] for word in args or () if word.startswith('--')]
    self.given: dict[str, Any] = {}
    return super().parse_known_args(args, namespace)

  def error(self, message: str):
    """Raises `UserError` with the message, misspelt options, and where to look."""
    unknown = [word for word in self._words if not any(
      option.startswith(word) for option in self._option_string_actions)]
    more = f"; unrecognized: {' '.join(unknown)}" * bool(unknown)
    raise UserError(f'{message}{more} (see: {self.prog} --help)')


def print_result(options: argparse.Namespace, result: Any, lines: Callable[[Any], str]) -> None:
  """Prints a result as JSON, or as the text that `lines` makes of it; one process does."""
  if processes.is_first():
    print(json.dumps(result, indent=2, allow_nan=False) if options.json
          else printable(lines(result)))


def format_section(section: 'Section') -> str:
  """Texts, tables and lines of a section of the report, as a terminal shows them."""
  from fairjax.report.document import Bullets, Table, Text
  lines: list[str] = []
  for part in section.parts:
    if isinstance(part, Table):
      lines += [part.title, part.text()] if part.title else [part.text()]
    elif isinstance(part, Bullets | Text):
      lines += part.lines if isinstance(part, Bullets) else [part.text]
  return '\n'.join(lines)


def start_run(options: argparse.Namespace) -> Config:
  """The config of a verb that works on a workdir; joins the processes, opens nothing."""
  from fairjax.config_io import load_config
  config = load_config(options.config, options.overrides)
  join_processes(options)
  return config


def open_job(options: argparse.Namespace, *, log: Callable[[str], None] = print_line,
             config: Config | None = None, only_read: bool = False) -> 'Job':
  """Opens the workdir, which from here on belongs to the config (by default of `start_run`)."""
  # `log` is `log_line` where the verb prints a result.
  config = config or start_run(options)
  from fairjax.run.job import Job
  return Job(config, options.workdir, log=log, only_read=only_read)


def open_training(options: argparse.Namespace, *, until: str | None = None,
                  config: Config | None = None, vocab_size: int | None = None) -> 'Job':
  """`open_job` for training up to a stage (None: the config's)."""
  # Nothing is written where the devices do not divide a batch or the model, whose vocabulary may be
  # known before the data are prepared.
  config = config or start_run(options)
  from fairjax.run.workdir import check_devices
  check_devices(config, pathlib.Path(options.workdir), until=until, vocab_size=vocab_size)
  return open_job(options, config=config)


def join_processes(options: argparse.Namespace) -> None:
  """Joins the group of `--distributed`, if it is given, and handles its signals from here on."""
  if options.distributed:
    processes.start(options.distributed)
    # Never left: whatever this process does, a signal must end or stop the whole group.
    processes.StopSignal().installed().__enter__()


def records_reader(options: argparse.Namespace, attributes: 'Sequence[Attribute]' = (), *,
                   whole: bool = True) -> Callable[[Any], Iterator[Any]]:
  """`read_records` as the options say; logs progress and what was changed."""
  from fairjax.api import read_logged
  return functools.partial(read_logged, attributes=attributes, columns=options.columns,
                           repair=options.repair, whole=whole, log=log_line)


def log_line(line: str) -> None:
  """Writes a line of progress to stderr."""
  write_line(line, sys.stderr)
