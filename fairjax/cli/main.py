"""The command line: `fairjax VERB ...`.

Exit codes: 0 done; 2 the user can fix it (one line says what, where and how); 42 interrupted, the
same command continues from what was saved; 141 the reader of the output is gone (as after SIGPIPE,
without a message); anything else is a fault. Verbs import what they need inside their functions, so
that `fairjax --help` answers at once.
"""

import argparse
import dataclasses
import difflib
import errno
import os
import pathlib
import re
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Sequence
from select import POLLERR, POLLHUP, poll

from fairjax import __version__, processes
from fairjax.cli import (
  gate_verbs,
  gender_verbs,
  generation_verbs,
  human_verbs,
  inspection_verbs,
  measure_verbs,
  pretrained_verbs,
  report_verbs,
  tpu_verbs,
  training_verbs,
)
from fairjax.cli.verb import Parser, Verb
from fairjax.config import Config
from fairjax.errors import Fault, Preempted, UserError, unknown_name

# Errors of a full, failing or protected disk; a traceback would add nothing.
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM,
                errno.EIO}

_HOME = re.compile(r'(^|[=:,+])(~[\w.-]*)(?=/|[:,+]|$)')
_CLOSED_PIPE = 128 + signal.SIGPIPE

_MODULES = (
  training_verbs, generation_verbs, measure_verbs, gate_verbs, report_verbs, human_verbs,
  gender_verbs, pretrained_verbs, tpu_verbs, inspection_verbs)


def _completion_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('shell', choices=('bash', 'zsh', 'tcsh'))


def _completion(options: argparse.Namespace) -> None:
  import shtab
  print(shtab.complete(make_parser(), shell=options.shell))


VERBS: dict[str, Verb] = {verb.name: verb for verb in (
  *(verb for module in _MODULES for verb in module.VERBS),
  Verb('completion', 'print the completion of a shell, for its start-up file',
       'fairjax completion bash', _completion_options, _completion))}
"""Every verb by its name."""

_GROUPS = {
  'start here': ('run', 'measure', 'report', 'doctor'),
  'texts of any model': ('sample', 'records', 'scorers', 'lexicon', 'attributes', 'human'),
  'a run, step by step': ('config', 'data', 'train', 'score', 'select', 'import', 'export',
                          'mitigations', 'paper'),
  'other models': ('masked-lm', 'sentiment-classifier', 'cda', 'correlations', 'resilience',
                   'fair-generation'),
  'TPUs': ('compile', 'launch'),
}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one verb and returns the exit code.

  Does not return in one of several processes that failed, nor in an interrupted command of a shell
  (`argv` is None).
  """
  # Keeps TensorFlow's lines about drivers out of the one line of an error.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  try:
    try:
      return processes.leave(_run(argv))
    finally:
      if sys.stdout is not None:
        sys.stdout.flush()  # here, where the error of a closed pipe is still handled
  except BrokenPipeError:
    if not _reader_is_gone():
      raise
    with open(os.devnull, 'wb') as nowhere:
      for stream in (1, 2):  # Python flushes both at its end
        if _reader_is_gone(stream):
          os.dup2(nowhere.fileno(), stream)
    return processes.leave(_CLOSED_PIPE)
  except KeyboardInterrupt:
    print('fairjax: interrupted; the same command continues from what was saved', file=sys.stderr)
    processes.leave(processes.PREEMPTED)
    if argv is None:
      # XLA's threads may still compile or compute, and crash when Python frees what they use. The
      # verb has closed its files and locks.
      processes.end_now(processes.PREEMPTED, '')
    return processes.PREEMPTED
  except Exception:
    if not processes.started():
      raise
    processes.wait_for_loss()  # whose line says more than the error of a broken collective
    traceback.print_exc()
    return processes.leave(1)


def _reader_is_gone(*streams: int) -> bool:
  """Whether the pipe of stdout, stderr or a given stream is closed."""
  polled = poll()
  for stream in streams or (1, 2):
    polled.register(stream, 0)
  return any(event & (POLLERR | POLLHUP) for _, event in polled.poll(0))


def _run(argv: Sequence[str] | None) -> int:
  argv = list(sys.argv[1:] if argv is None else argv)
  debug = '--debug' in argv
  options = None
  if threading.current_thread() is threading.main_thread():
    # A terminated verb raises at once, as with Ctrl-C; training replaces this by a clean save.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    options = parse(argv)
    if options.verb is None:
      make_parser().print_help()
      return 0
    return VERBS[options.verb].run(options) or 0
  except UserError as e:
    if debug:
      raise
    print(f'fairjax: {e}', file=sys.stderr)
    return 2
  except Preempted as e:
    print(f'fairjax: {e}; the same command continues', file=sys.stderr)
    return processes.PREEMPTED
  except OSError as e:
    if debug or e.errno not in _DISK_ERRORS:
      raise
    where = e.filename or getattr(options, 'workdir', None) or getattr(options, 'output', None)
    print(f'fairjax: {where or "a file"} cannot be written or read: {e.strerror} (disk, rights): '
          'fix it, then the same command continues', file=sys.stderr)
    return 1
  except Fault as e:
    if debug:
      raise
    print(f'fairjax: {e}', file=sys.stderr)
    return 1


def parse(argv: Sequence[str]) -> argparse.Namespace:
  """Parses arguments; `--config.a.b=v` (or `--config.a.b v`) land in `overrides`."""
  rest, overrides = [], {}
  argv, command = _split_command(list(argv))
  # A shell expands only a ~ that begins a word, and none in --output=~/x or :train=~/a+~/b.
  words = (_HOME.sub(lambda m: m[1] + os.path.expanduser(m[2]), word) for word in argv)
  for word in words:
    if word.startswith('--config.'):
      name, has_value, value = word[len('--config.'):].partition('=')
      name = name.replace('-', '_')
      value = value if has_value else next(words, None)
      if value is None:
        raise UserError(f'{word} needs a value: {word}=...')
      if overrides.get(name, value) != value:
        raise UserError(f"--config.{name} is given twice, as '{overrides[name]}' and '{value}': "
                        'leave one out')
      overrides[name] = value
    else:
      rest.append(word)
  if rest[:1] == ['help']:
    rest = [*rest[1:2], '--help']
  elif rest == ['version']:
    rest = ['--version']
  if rest and not rest[0].startswith('-') and rest[0] not in VERBS:
    raise unknown_name('verb', rest[0], VERBS)
  options, unknown = make_parser().parse_known_args(rest)
  if unknown:
    action = options.action if hasattr(options, 'run_action') else ''
    place = f'fairjax {options.verb or ""} {action}'.strip()
    if unknown[0].partition('=')[0] == '--distributed':
      raise UserError(f'{unknown[0]}: {place} runs in one process; leave it out, and start the '
                      'command once')
    raise UserError(f'unrecognized arguments: {" ".join(unknown)}'
                    f'{_suggestion(unknown[0], options)} (see: {place} --help)')
  if overrides and not getattr(options, 'config', None):
    raise UserError(f'--config.{next(iter(overrides))} needs --config=FILE')
  options.overrides = overrides
  if command is not None:
    options.command = command
    options.inner = parse(command) if command else None
  return options


def _suggestion(word: str, options: argparse.Namespace) -> str:
  """The option that an unknown word may have meant, as part of a message."""
  name, equals, value = word.lstrip('-').partition('=')
  known = options.own_parser.long_options() if hasattr(options, 'own_parser') else []
  fields = {field.name for field in dataclasses.fields(Config)}
  if '--config' in known and name.partition('.')[0].replace('-', '_') in fields:
    return f': did you mean --config.{name}{equals}{value}?'
  near = difflib.get_close_matches(f'--{name.replace("_", "-")}', known, n=1, cutoff=0.7)
  return f': did you mean {near[0]}{equals}{value}?' if near else ''


def _split_command(argv: list[str]) -> tuple[list[str], list[str] | None]:
  """Splits the words of a verb that takes a command at `--`; drops `fairjax` of the command."""
  verb = next((word for word in argv if not word.startswith('-')), None)
  if verb not in VERBS or not VERBS[verb].takes_command:
    return argv, None
  at = argv.index('--') if '--' in argv else len(argv)
  command = argv[at + 1:]
  if command and re.fullmatch(r'python[0-9.]*', pathlib.PurePath(command[0]).name):
    command = command[3:] if command[1:3] == ['-m', 'fairjax'] else command
  elif command and pathlib.PurePath(command[0]).name == 'fairjax':
    command = command[1:]
  return argv[:at], command


def make_parser() -> argparse.ArgumentParser:
  """The parser of all verbs."""
  parser = _AllVerbs(
    prog='fairjax', description='Measure and reduce the bias of what language models write; train '
    'Transformer-XL language models on TPUs.')
  parser.add_argument('--version', action='version', version=f'fairjax {__version__}')
  parser.add_argument('--debug', action='store_true', help='show the traceback of user errors')
  verbs = parser.add_subparsers(dest='verb', metavar='VERB', parser_class=Parser)
  for verb in VERBS.values():
    verb_parser = verbs.add_parser(
      verb.name, help=verb.what, description=verb.what, epilog=f'example: {verb.example}',
      formatter_class=argparse.RawDescriptionHelpFormatter)
    verb_parser.add_argument('--debug', action='store_true', default=argparse.SUPPRESS,
                             help='show the traceback of user errors')
    verb_parser.set_defaults(own_parser=verb_parser)
    verb.add_options(verb_parser)
  return parser


class _AllVerbs(Parser):
  """The parser of all verbs, whose help has them in groups."""

  def format_help(self) -> str:
    """The help: what fairjax does, the verbs by group, and where to read on."""
    named = {name for names in _GROUPS.values() for name in names}
    groups = {**_GROUPS, 'more': tuple(name for name in VERBS if name not in named)}
    width = max(map(len, VERBS)) + 2
    lines = ['usage: fairjax VERB ...', '', *textwrap.wrap(self.description or '')]
    for title, names in groups.items():
      lines += ['', f'{title}:']
      for name in names:
        lines += textwrap.wrap(VERBS[name].what, 80, initial_indent=f'  {name:{width}s}',
                               subsequent_indent=' ' * (width + 2))
    return '\n'.join([*lines, '', 'fairjax help VERB, fairjax --version, fairjax completion SHELL;',
                      '--debug shows the traceback of user errors.', ''])


if __name__ == '__main__':
  sys.exit(main())
