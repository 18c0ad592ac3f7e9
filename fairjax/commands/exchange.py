"""The verbs `import` and `export`: checkpoints under the names of the reference."""

import argparse

from fairjax.commands.run import RUN_OPTIONS
from fairjax.commands.verb import Verb, add_run_options, open_job


def _add_import_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser)
  parser.add_argument('--weights', metavar='FILE', required=True,
                      help='safetensors, names with or without the transformer. prefix')
  parser.add_argument('--arguments', metavar='FILE', required=True,
                      help="JSON of the constructor's arguments, or a published config.json")
  parser.add_argument('--words', metavar='FILE', help='its words, one a line in the order of the '
                      'ids; default: the vocabulary of the config has its ids')


def _add_export_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser)
  parser.add_argument('--model', default='baseline', help='baseline, country-embedding-10, ...')
  parser.add_argument('--output', metavar='FILE', required=True, help='safetensors file')
  parser.add_argument('--prefix', action='store_true',
                      help='names with the transformer. prefix of published checkpoints')


def _import(options: argparse.Namespace) -> None:
  job = open_job(options)
  from fairjax.job.exchange import import_reference
  import_reference(job, weights=options.weights, arguments=options.arguments, words=options.words)


def _export(options: argparse.Namespace) -> None:
  job = open_job(options)
  from fairjax.job.exchange import export_reference
  export_reference(job, model=options.model, output=options.output, prefix=options.prefix)


VERBS = (
  Verb('import', 'put a Transformer-XL checkpoint of the reference in the place of step 1',
       f'fairjax import {RUN_OPTIONS} --weights=model.safetensors --arguments=config.json '
       '--words=words.txt', _add_import_options, _import),
  Verb('export', 'write a trained model under the names of the reference',
       f'fairjax export {RUN_OPTIONS} --model=baseline --output=model.safetensors',
       _add_export_options, _export),
)
