"""The verb `compile`: the real TPU compiler without a TPU."""

import argparse

from fairjax.commands.verb import Verb, log_line
from fairjax.errors import UserError
from fairjax.signals import ended_at_once
from fairjax.versions import installed_versions


def _add_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--config', metavar='FILE[:ARGS]', help='config file; --config.a.b=VALUE '
                      'overrides a field')
  parser.add_argument('--topology', metavar='NAME', help='slice, in chips: v3:8x8, v4:2x2x4, '
                      'v5e:4x4, v5p:2x2x2, v6e:4x4')
  parser.add_argument('--program', action='append', choices=('lm', 'debias', 'sample'),
                      default=None, help='repeat for several (default: all that the config has)')
  parser.add_argument('--smallest', action='store_true',
                      help="search the topology's generation for the smallest slice that fits")
  parser.add_argument('--matrix', action='store_true',
                      help="the paper's models on the paper's slices and on modern ones")
  parser.add_argument('--output', metavar='FILE', default='docs/compile.md',
                      help='page of --matrix; what is done is kept beside it as JSON')
  parser.add_argument('--json', action='store_true', help='print JSON')


def _compile(options: argparse.Namespace) -> None:
  if not options.matrix and not (options.topology and options.config):
    raise UserError('compile needs --topology=NAME and --config=FILE, or --matrix')
  # Compilations take minutes in which a handler of Python's would wait.
  with ended_at_once('interrupted; the same command continues with the cells that are not compiled'
                     if options.matrix else 'interrupted; nothing is kept of what was compiled'):
    from fairjax.compile.command import compile_config, compile_matrix
    if options.matrix:
      compile_matrix(output=options.output, as_json=options.json, versions=installed_versions(),
                     log=log_line)
      return
    from fairjax.config_files import load_config
    compile_config(
      load_config(options.config, options.overrides), topology=options.topology,
      programs=options.program or (), smallest=options.smallest, as_json=options.json,
      versions=installed_versions(), log=log_line)


VERBS = (
  Verb('compile', 'what the steps need on a TPU slice that is not there (needs libtpu)',
       'fairjax compile --topology=v5e:2x2 --config=configs/quickstart.py --program=lm',
       _add_options, _compile),
)
