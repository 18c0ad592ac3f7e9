"""The verbs `import` and `export`: models as folders, and under the names of the reference."""

import argparse

from fairjax.commands.run import RUN_OPTIONS
from fairjax.commands.verb import Verb, add_run_options, open_job, open_training, start_run
from fairjax.config import Config
from fairjax.errors import UserError

_FORMS = ('fairjax', 'transformer-xl')


def _add_import_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser)
  parser.add_argument('--from', metavar='DIR', dest='folder',
                      help='a folder that fairjax export wrote; its config.json may be --config')
  reference = parser.add_argument_group('a checkpoint of the reference')
  reference.add_argument('--weights', metavar='FILE',
                         help='safetensors, names with or without the transformer. prefix')
  reference.add_argument('--arguments', metavar='FILE',
                         help="JSON of the constructor's arguments, or a published config.json")
  reference.add_argument('--words', metavar='FILE', help='its words, one a line in the order of '
                         'the ids; default: the vocabulary of the config has its ids')


def _add_export_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser)
  parser.add_argument('--model', default='baseline', help='baseline, country-embedding-10, ...')
  parser.add_argument('--output', metavar='PATH', required=True,
                      help='folder, or safetensors file; must not exist')
  parser.add_argument('--form', choices=_FORMS, default=None, help='fairjax: a folder with '
                      'parameters, config.json, vocabulary and model card, which fairjax import '
                      'reads bit for bit; transformer-xl: a file under the names of the reference '
                      '(default: by --output, a file if it ends in .safetensors)')
  parser.add_argument('--prefix', action='store_true', help='transformer-xl: names with the '
                      'transformer. prefix of published checkpoints')
  card = parser.add_argument_group('model card (fairjax)')
  card.add_argument('--license', metavar='ID', default=None,
                    help='e.g. apache-2.0 (default: the card states none)')
  card.add_argument('--language', metavar='CODE', action='append', default=[],
                    help='of the training text; repeat (default: en for the corpora that fairjax '
                    'brings, else none)')
  card.add_argument('--dataset', metavar='NAME', action='append', default=[],
                    help='name under which the training text is published; repeat')


def _import(options: argparse.Namespace) -> None:
  reference = options.weights, options.arguments, options.words
  if options.folder and any(reference):
    raise UserError('import takes --from=DIR, or --weights, --arguments and --words of a '
                    'checkpoint of the reference, not both')
  if not options.folder and not (options.weights and options.arguments):
    raise UserError('import needs --from=DIR (a folder that fairjax export wrote), or '
                    '--weights=FILE and --arguments=FILE of a checkpoint of the reference')
  config = start_run(options)  # a model that does not fit leaves the workdir to another config
  if options.folder:
    from fairjax.job.model_folder import import_folder, read_matching
    folder = read_matching(config.model, options.folder)
    import_folder(_open(options, config, folder.vocabulary.size), folder, options.folder)
    return
  from fairjax.job.exchange import import_reference, read_reference
  found = read_reference(config.model, weights=options.weights, arguments=options.arguments,
                         words=options.words)
  import_reference(_open(options, config, found.model.vocab_size), found)


def _open(options: argparse.Namespace, config: Config, vocab_size: int):
  """The workdir that gets a model: one with a step 1 of its own."""
  job = open_training(options, config=config, until='lm', vocab_size=vocab_size)
  if job.config.step1_from:
    raise UserError(f'{job.workdir} takes step 1 from {job.config.step1_from}: import the model '
                    'into a workdir of its own')
  return job


def _export(options: argparse.Namespace) -> None:
  file = options.output.endswith('.safetensors')
  form = options.form or _FORMS[file]
  only = {'fairjax': {'--license': options.license, '--language': options.language,
                      '--dataset': options.dataset},
          'transformer-xl': {'--prefix': options.prefix}}
  for name, given in ((n, g) for f in _FORMS if f != form for n, g in only[f].items()):
    if given:
      raise UserError(f'{name} does not belong to --form={form}: leave it out, or name the other '
                      '--form')
  if form == 'fairjax' and file:
    raise UserError(f'--output={options.output}: --form=fairjax writes a folder: name one without '
                    '.safetensors')
  job = open_job(options)
  if form == 'fairjax':
    from fairjax.job.model_folder import export_folder
    export_folder(job, model=options.model, output=options.output, license=options.license,
                  languages=options.language, datasets=options.dataset)
    return
  from fairjax.job.exchange import export_reference
  export_reference(job, model=options.model, output=options.output, prefix=options.prefix)


VERBS = (
  Verb('import', 'put an exported model, or a checkpoint of the reference, in the place of step 1',
       f'fairjax import {RUN_OPTIONS} --from=models/baseline', _add_import_options, _import),
  Verb('export', 'write a trained model: as a folder with config, vocabulary and model card, or '
       'under the names of the reference',
       f'fairjax export {RUN_OPTIONS} --model=baseline --output=models/baseline',
       _add_export_options, _export),
)
