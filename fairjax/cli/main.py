"""The command line: `fairjax VERB ...`.

Exit codes: 0 done; 2 the user can fix it (one line says what, where and how); 3 and 4 of `compare
gate`: worse, cannot tell; 42 interrupted, the same command continues from what was saved; 141 the
reader of the output is gone (as after SIGPIPE, without a message); anything else is a fault.
`GROUPS` has the verbs; the module of a verb is imported when it is called, and imports what it
needs in its functions, so help answers at once.
"""

import argparse
import dataclasses
import difflib
import errno
import importlib
import io
import os
import pathlib
import re
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Iterable, Sequence
from select import POLLERR, POLLHUP, poll

from fairjax import __version__, processes
from fairjax.cli.verb import Command, Parser
from fairjax.config import Config
from fairjax.errors import Fault, Preempted, UserError, first_line, unknown_name

# Errors of a full, failing or protected disk; a traceback would add nothing.
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM,
                errno.EIO}

_HOME = re.compile(r'(^|[=:,+])(~[\w.-]*)(?=/|[:,+]|$)')
_CLOSED_PIPE = 128 + signal.SIGPIPE

# Group -> verb -> what it does, and the modules of `fairjax.cli` that have its commands.
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
  'start here': {
    'run': ('train, debias, sample, measure and report in one command', 'training_verbs'),
    'measure': ("the bias of generations in a file, or of a run's models", 'measure_verbs'),
    'report': ('write the page of a measured run, or of generations', 'report_verbs'),
    'sample': ("continuations of a run's models, of a published decoder, or of a model behind an "
               'API', 'generation_verbs'),
    'doctor': ('check versions, devices and known problems', 'inspection_verbs')},
  'generations and scores': {
    'records': ('convert generations, print their schema, plan how many an effect needs',
                'generation_verbs', 'measure_verbs'),
    'attributes': ('list the built-in attributes, or check a file', 'inspection_verbs'),
    'scorers': ("measure the scorers' own bias and accuracy, fetch word lists", 'measure_verbs',
                'pretrained_verbs'),
    'human': ('write blinded annotation sheets, and evaluate those that come back', 'human_verbs')},
  'models': {
    'step': ('config, data, training and scores of a run, one at a time', 'inspection_verbs',
             'training_verbs'),
    'models': ('select, export, import or retrain models; train a classifier or a masked LM',
               'training_verbs', 'gender_verbs', 'pretrained_verbs'),
    'compare': ('reports, a new model and an old one (gate), mitigations, the paper',
                'report_verbs'),
    'gender': ('gendered correlations (Webster et al. 2020), professions (Yeo & Chen 2020)',
               'gender_verbs', 'pretrained_verbs')},
  'more': {
    'tpu': ('estimate memory on a TPU slice you don\'t have, and run commands on slices in Google '
            'Cloud', 'tpu_verbs'),
    'completion': ('print the completion of a shell, for its start-up file', 'main')},
}
VERBS: dict[str, tuple[str, ...]] = {
  verb: row for group in GROUPS.values() for verb, row in group.items()}


def commands(verb: str) -> dict[str, Command]:
  """The commands of a verb, by their words: `measure`, or `step train`, `step data`, ..."""
  return {words: command for module in VERBS[verb][1:]
          for words, command in importlib.import_module(f'fairjax.cli.{module}').COMMANDS.items()
          if words.split()[0] == verb}


def _completion(options: argparse.Namespace) -> None:
  import shtab
  parser = make_parser()
  of_verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
  of_verbs.add_parser('help', help='the options of a verb').add_argument(
    'of', nargs='?', choices=list(VERBS))
  print(shtab.complete(parser, shell=options.shell))


COMMANDS = {'completion': Command(
  lambda parser: parser.add_argument('shell', choices=('bash', 'zsh', 'tcsh')), _completion,
  example='fairjax completion bash')}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one verb and returns the exit code.

  Does not return in one of several processes that failed, nor in an interrupted command of a shell
  (`argv` is None).
  """
  # Keeps TensorFlow's lines about drivers out of the one line of an error.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  if sys.stderr is None:  # closed: the next file that is opened would be descriptor 2, and get logs
    sys.stderr = open(os.devnull, 'w', encoding='utf-8')
  if argv is None and isinstance(sys.stdout, io.TextIOWrapper):
    # A terminal may lack a character of ours.
    sys.stdout.reconfigure(errors='backslashreplace')
  try:
    try:
      return processes.leave(_run(argv))
    finally:
      if sys.stdout is not None:
        sys.stdout.flush()  # here, where the error of a closed pipe is still handled
  except BrokenPipeError:
    if not (closed := _closed_streams()):
      raise
    with open(os.devnull, 'wb') as nowhere:
      for stream in closed:  # Python flushes both at its end
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


def _closed_streams() -> list[int]:
  """Which of stdout and stderr are pipes that nobody reads any more."""
  polled = poll()
  for stream in (1, 2):
    polled.register(stream, 0)
  return [stream for stream, event in polled.poll(0) if event & (POLLERR | POLLHUP)]


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
      make_parser(()).print_help()
      return 0
    _check_places(options)
    _refuse_overwriting(options)
    return options.run_command(options) or 0
  except (UserError, Fault) as e:
    if debug:
      raise
    print(f'fairjax: {e}', file=sys.stderr)
    return 2 if isinstance(e, UserError) else 1
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
  except (MemoryError, RuntimeError) as e:  # JAX's error is a RuntimeError
    # A full disk is RESOURCE_EXHAUSTED too, where XLA or TensorStore write.
    if debug or not (isinstance(e, MemoryError) or str(e).startswith('RESOURCE_EXHAUSTED')
                     and 'No space left' not in str(e)):
      raise
    print(f'fairjax: there is not enough memory ({first_line(e)}): use smaller batches '
          '(--batch-size, --config.sample.batch_size), fewer samples or more devices; what was '
          'saved stays', file=sys.stderr)
    return 1


def _refuse_overwriting(options: argparse.Namespace) -> None:
  """Raises `UserError` where the file to write is one that another option names to be read."""
  given = vars(options)
  for name in ('output', 'junit', 'file'):
    for other, value in given.items() if os.path.isfile(given.get(name) or '') else ():
      for word in value if isinstance(value, list) else [value]:
        if (other not in (name, 'verb') and isinstance(word, str | pathlib.Path)
            and os.path.isfile(word) and os.path.samefile(word, given[name])):
          raise UserError(f'--{name}={given[name]} is that of {other} too, and would replace it: '
                          'name another file')


def _check_places(options: argparse.Namespace) -> None:
  """Refuses addresses and - as outputs: they would be folders and files of that name here."""
  for name in ('workdir', 'output', 'keep', 'file', 'junit'):
    place = getattr(options, name, None)
    if str(place) == '-':
      raise UserError(f'--{name}=- would be a file or folder of that name: give another')
    if re.match('[a-z][a-z0-9]+:/', str(place)):  # a path has one slash fewer than its text
      raise UserError(f'--{name}={place} is not on this machine: mount the bucket (gcsfuse) and '
                      'name its folder')


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
    else:  # --dry_run is --dry-run
      name, equals, value = word.partition('=')
      if not word or (equals and not value and name.startswith('--')):
        name = name or f"the word after {['fairjax', *rest][-1]}"
        raise UserError(f'{name} is empty: is a variable of the shell unset?')
      rest.append(name.replace('_', '-') + equals + value if name.startswith('--') else word)
  if asked := rest[:1] == ['help']:
    rest = [*rest[1:], '--help']
  elif rest == ['version']:
    rest = ['--version']
  verb = _named_verb(rest)
  if asked and verb:  # argparse gives the help and ignores what follows
    named = [word for word in rest if not word.startswith('-')]
    if more := named[1 if verb in commands(verb) else 2:]:
      raise UserError(f'unrecognized arguments: {" ".join(more)} (see: fairjax help {verb})')
  options, unknown = make_parser([verb] if verb else ()).parse_known_args(rest)
  place = f'fairjax {options.verb or ""}'.strip()
  word, alone = (unknown or [''])[0], place
  if getattr(options, 'distributed', None):
    word, alone = f'--distributed={options.distributed}', options.alone(options)
  if word.partition('=')[0] == '--distributed' and alone:
    raise UserError(f'{word}: {alone} runs in one process; leave it out, and start the command '
                    'once')
  if unknown:
    raise UserError(f'unrecognized arguments: {" ".join(unknown)}'
                    f'{_suggestion(unknown[0], options)} (see: {place} --help)')
  if overrides and not getattr(options, 'config', None):
    raise UserError(f'--config.{next(iter(overrides))} needs --config=FILE')
  options.overrides = overrides
  if command is not None:
    options.command = command
    options.inner = parse(command) if command else None
  return options


def _named_verb(words: Sequence[str]) -> str | None:
  """The verb of a command; `UserError` with the nearest one where it, or its action, is unknown."""
  verb, action = ([word for word in words if not word.startswith('-')] + [None, None])[:2]
  if verb is None:
    return None
  if verb not in VERBS:
    known = {words.split()[-1]: words for verb in VERBS for words in commands(verb)}
    known |= dict(zip(VERBS, VERBS, strict=True))
    if near := difflib.get_close_matches(verb, known, n=1, cutoff=0.65):
      raise UserError(f"unknown verb '{verb}': did you mean '{known[near[0]]}'? (see: fairjax "
                      'help)')
    raise unknown_name('verb', verb, VERBS)
  actions = [words.partition(' ')[2] for words in commands(verb)]
  if action is None and actions[0] and not {'-h', '--help'} & set(words):
    raise UserError(f'fairjax {verb} needs an action: {", ".join(actions)} (see: fairjax help '
                    f'{verb})')
  if actions[0] and action not in (None, *actions):
    raise unknown_name(f'action of fairjax {verb}', action, actions)
  return verb


def _suggestion(word: str, options: argparse.Namespace) -> str:
  """The option that an unknown word may have meant, as part of a message."""
  name, equals, value = word.lstrip('-').partition('=')
  known = [option for option in options.own_parser._option_string_actions
           if option.startswith('--')] if hasattr(options, 'own_parser') else []
  fields = {field.name for field in dataclasses.fields(Config)}
  if '--config' in known and name.partition('.')[0].replace('-', '_') in fields:
    return f': did you mean --config.{name}{equals}{value}?'
  near = difflib.get_close_matches(f'--{name}', known, n=1, cutoff=0.7) if (
    equals or word.startswith('-')) else []
  return f': did you mean {near[0]}{equals}{value}?' if near else ''


def _split_command(argv: list[str]) -> tuple[list[str], list[str] | None]:
  """Splits the words of a command that takes another one at `--`; drops `fairjax` of that."""
  leading = [word for word in argv if not word.startswith('-')][:2]
  known = commands(leading[0]) if leading and leading[0] in VERBS else {}
  if (own := known.get(' '.join(leading))) is None or not own.takes_command:
    return argv, None
  at = argv.index('--') if '--' in argv else len(argv)
  command = argv[at + 1:]
  if command and re.fullmatch(r'python[0-9.]*', pathlib.PurePath(command[0]).name):
    command = command[3:] if command[1:3] == ['-m', 'fairjax'] else command
  elif command and pathlib.PurePath(command[0]).name == 'fairjax':
    command = command[1:]
  return argv[:at], command


def make_parser(verbs: Iterable[str] = tuple(VERBS)) -> argparse.ArgumentParser:
  """The parser of some verbs; its help has all."""
  parser = _AllVerbs(
    prog='fairjax', description='Measure and reduce the bias of what language models write; train '
    'Transformer-XL language models on TPUs.')
  parser.add_argument('--version', action='version', version=f'fairjax {__version__}')
  parser.add_argument('--debug', action='store_true')
  parser.set_defaults(verb=None)
  of_verbs = parser.add_subparsers(metavar='VERB', parser_class=Parser)
  for verb in verbs:
    found, what = commands(verb), VERBS[verb][0]
    if verb in found:
      _add_command(of_verbs, verb, found[verb]._replace(what=what))
      continue
    verb_parser = of_verbs.add_parser(verb, help=what, description=what)
    actions = verb_parser.add_subparsers(metavar='ACTION', title='actions', parser_class=Parser)
    for words, command in found.items():
      _add_command(actions, words, command)
  return parser


def _add_command(parsers: 'argparse._SubParsersAction[Parser]', words: str, command: Command
                 ) -> None:
  """Adds the parser of a command under the last of its words."""
  parser = parsers.add_parser(
    words.split()[-1], help=command.what, description=command.what,
    epilog=command.example and f'example: {command.example}',
    formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--debug', action='store_true', default=argparse.SUPPRESS,
                      help='show the traceback of user errors')
  parser.set_defaults(verb=words, run_command=command.run, own_parser=parser,
                      alone=command.alone)
  command.add_options(parser)


class _AllVerbs(Parser):
  """The parser of all verbs, whose help has them in groups."""

  def format_help(self) -> str:
    """The help: what fairjax does, the verbs by group, and where to read on."""
    width = max(map(len, VERBS)) + 2
    lines = ['usage: fairjax VERB ...', '', *textwrap.wrap(self.description or '')]
    for title, verbs in GROUPS.items():
      lines += ['', f'{title}:']
      for name, (what, *_) in verbs.items():
        lines += textwrap.wrap(what, 80, initial_indent=f'  {name:{width}s}',
                               subsequent_indent=' ' * (width + 2))
    return '\n'.join([*lines, '', 'fairjax help VERB [ACTION], fairjax --version;',
                      '--debug shows the traceback of user errors.', ''])


if __name__ == '__main__':
  sys.exit(main())
