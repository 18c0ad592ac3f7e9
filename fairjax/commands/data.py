"""The verb `data`: prepares vocabulary and token stores, or checks data that are there."""

import argparse
import json
import os

from fairjax.commands.verb import Verb, add_run_options, open_job, refuse_processes
from fairjax.errors import UserError


def _add_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('action', nargs='?', choices=('prepare', 'check'), default='prepare',
                      help='check reads the documents of --config, the stores in --workdir and the '
                      'cache in --seqio_cache, lists all that is wrong and changes nothing')
  add_run_options(parser, required=False)
  parser.add_argument(
    '--seqio_cache', metavar='DIR', help="also write (or check) seqio's offline cache")
  parser.add_argument('--json', action='store_true', help='check: print JSON')


def _data(options: argparse.Namespace) -> int:
  if options.action == 'check':
    refuse_processes(options, 'data check')
    return check_data(options)
  if not (options.config and options.workdir):
    raise UserError('data needs --config=FILE and --workdir=DIR (or: fairjax data check)')
  if options.json:
    raise UserError('--json belongs to fairjax data check')
  job = open_job(options)
  print(f'{job.prepared.directory}: vocabulary of {job.prepared.vocabulary.size} ids, splits '
        + ', '.join(job.prepared.manifest['splits']))
  if options.seqio_cache:
    from fairjax.data.seqio_cache import write_seqio_cache
    write_seqio_cache(job.prepared, options.seqio_cache)
  return 0


def check_data(options: argparse.Namespace) -> int:
  """Prints what is wrong with documents, stores and cache; returns 2 if anything is, else 0.

  Raises:
    UserError: nothing to check was named.
  """
  if not (options.config or options.workdir or options.seqio_cache):
    raise UserError('data check needs --config=FILE (the documents), --workdir=DIR (the prepared '
                    'data) or --seqio_cache=DIR')
  from fairjax.data.check import check_cache, check_prepared, check_sources
  parts = {}
  if options.config:
    from fairjax.config_files import load_config
    from fairjax.counterfactual import load_attribute
    config = load_config(options.config, options.overrides)
    parts['documents'] = check_sources(config, load_attribute(config.attribute))
  if options.workdir:
    parts['prepared'] = check_prepared(os.path.join(options.workdir, 'data'))
  if options.seqio_cache:
    parts['seqio_cache'] = check_cache(options.seqio_cache)
  problems = [line for found in parts.values() for line in found.problems]
  if options.json:
    print(json.dumps({name: found.to_dict() for name, found in parts.items()}, indent=2))
  else:
    for name, found in parts.items():
      for line in found.notes:
        print(f'[{name}] {line}')
      for line in found.problems:
        print(f'[{name}] PROBLEM {line}')
    print(f'{len(problems)} problem(s)' if problems else 'no problem found')
  return 2 if problems else 0


VERBS = (
  Verb('data', 'prepare vocabulary and token stores only, or check data',
       'fairjax data --config=configs/quickstart.py --workdir=runs/quickstart', _add_options,
       _data),
)
