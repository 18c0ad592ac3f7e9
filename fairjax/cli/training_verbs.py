"""What works on a workdir: `run`, `step` train, score, data, `models` import, export, select."""

import argparse
import dataclasses
import math
import pathlib
from typing import TYPE_CHECKING

from fairjax import processes
from fairjax.cli.options import add_run_options, add_shared, between, positive, refuse
from fairjax.cli.verb import (
  RUN_OPTIONS,
  Command,
  format_section,
  log_line,
  open_job,
  open_training,
  print_result,
  start_run,
)
from fairjax.config import STAGES, Config
from fairjax.config_io import from_dict, load_config, read_config_json
from fairjax.errors import UserError

if TYPE_CHECKING:
  from fairjax.run.job import Job


def _job_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser)
  parser.add_argument('--profile', metavar='STEPS', help='write the trace (XProf) of so many steps '
                      "of each stage into its folder tensorboard; the same as --config.log.profile")


def _train_options(parser: argparse.ArgumentParser) -> None:
  _job_options(parser)
  parser.add_argument('--stage', choices=STAGES,
                      help="train up to and with this stage (default: config's until)")


def _run_options(parser: argparse.ArgumentParser) -> None:
  _job_options(parser)
  parser.add_argument('--seeds', metavar='N', type=positive, default=1, help="train N times, with "
                      "the config's seed and the next ones (in --workdir, seeds/SEED): the report "
                      'has the spread over the trainings')


def _run(options: argparse.Namespace) -> None:
  job = _open_job(options)
  if options.seeds > 1:
    from fairjax.run.job import repeat_trainings
    repeat_trainings(job, options.seeds)
  else:
    job.run()
  if processes.is_first():
    print('\n'.join(job.ending()))


def _train(options: argparse.Namespace) -> None:
  _open_job(options, until=options.stage).train(until=options.stage)


def _open_job(options: argparse.Namespace, until: str | None = None) -> 'Job':
  if options.profile:
    options.overrides['log.profile'] = options.profile
  return open_training(options, until=until)


def _score(options: argparse.Namespace) -> None:
  open_job(options).score()


# `step data` prepares vocabulary and token stores, `step check-data` checks those that are there.

def _data_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser)
  parser.add_argument('--seqio-cache', metavar='DIR', help="also write seqio's offline cache")


def _data(options: argparse.Namespace) -> None:
  from fairjax.data.corpus import importing_tensorflow
  prepared = open_job(options).prepared
  if processes.is_first():
    print(f'{prepared.directory}: vocabulary of {prepared.vocabulary.size} ids, splits '
          + ', '.join(prepared.manifest['splits']))
    if options.seqio_cache:
      with importing_tensorflow('--seqio-cache'):
        from fairjax.data.seqio_cache import write_seqio_cache
      write_seqio_cache(prepared, options.seqio_cache)
  processes.share()  # the others wait as long as the first one writes


def _check_options(parser: argparse.ArgumentParser) -> None:
  add_shared(parser, 'config', help='checks its documents')
  add_shared(parser, 'workdir', help='checks its token stores')
  parser.add_argument('--seqio-cache', metavar='DIR', help="checks seqio's offline cache")
  add_shared(parser, 'json')


def _check_data(options: argparse.Namespace) -> int:
  """Prints what is wrong with documents, stores and cache; returns 2 if anything is, else 0."""
  if not (options.config or options.workdir or options.seqio_cache):
    raise UserError('step check-data needs --config=FILE (the documents), --workdir=DIR (the '
                    'prepared data) or --seqio-cache=DIR')
  from fairjax.data.data_check import check_cache, check_prepared, check_sources
  parts = {}
  if options.config:
    parts['documents'] = check_sources(load_config(options.config, options.overrides))
  if options.workdir:
    from fairjax.data.prepare import refuse_sentences
    from fairjax.run.workdir import data_folder
    folder, saved = pathlib.Path(options.workdir), pathlib.Path(options.workdir, 'config.json')
    refuse_sentences(folder / 'data')  # its config.json is that of a published model
    parts['prepared'] = check_prepared(
      data_folder(from_dict(read_config_json(saved)), folder) if saved.is_file()
      else folder / 'data')
  if options.seqio_cache:
    parts['seqio_cache'] = check_cache(options.seqio_cache)
  problems = sum(len(found.problems) for found in parts.values())

  def lines(_):
    return '\n'.join([
      *(f'[{name}] {line}' for name, found in parts.items()
        for line in (*found.notes, *(f'PROBLEM {line}' for line in found.problems))),
      f'{problems} problem(s)' if problems else 'no problem found'])

  print_result(options, {k: dataclasses.asdict(v) for k, v in parts.items()}, lines)
  return 2 if problems else 0


# `models import` and `models export`.

_CARD = ('license', 'language', 'dataset')
_OPTIONS_OF_FORM = {
  'fairjax': _CARD, 'transformer-xl': ('prefix',), 'published': (*_CARD, 'dtype', 'adapter')}


def _import_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser)
  parser.add_argument('--from', metavar='DIR', dest='folder',
                      help='a folder that models export wrote; its config.json may be --config')
  reference = parser.add_argument_group('a checkpoint of the reference')
  reference.add_argument('--weights', metavar='FILE',
                         help='safetensors, names with or without the transformer. prefix')
  reference.add_argument('--arguments', metavar='FILE',
                         help="JSON of the constructor's arguments, or a published config.json")
  reference.add_argument('--words', metavar='FILE', help='its words, one a line in the order of '
                         'the ids; default: the vocabulary of the config has its ids')


def _export_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser)
  parser.add_argument('--model', default='baseline', help='baseline, country-embedding-10, ...')
  parser.add_argument('--output', metavar='PATH', required=True,
                      help='folder, or safetensors file; must not exist')
  parser.add_argument('--form', choices=tuple(_OPTIONS_OF_FORM), help='fairjax: a folder with '
                      'parameters, config.json, vocabulary and model card, which models import '
                      'reads bit for bit; transformer-xl: a file under the names of the reference '
                      '(default: by --output, a file if it ends in .safetensors); published: the '
                      'folder of pretrained.model as it came, the form of every run of one')
  parser.add_argument('--prefix', action='store_true', help='transformer-xl: names with the '
                      'transformer. prefix of published checkpoints')
  parser.add_argument('--dtype', choices=('float32', 'bfloat16', 'float16'),
                      help='published: of the weights (default: as they came)')
  parser.add_argument('--adapter', action='store_true', help='published: the adapter of a run with '
                      'pretrained.lora alone, as peft reads it')
  card = parser.add_argument_group('model card (fairjax, published)')
  card.add_argument('--license', metavar='ID',
                    help='e.g. apache-2.0 (default: the card states none)')
  card.add_argument('--language', metavar='CODE', action='append', default=[],
                    help='of the training text; repeat (default: en for the corpora that fairjax '
                    'brings, else none)')
  card.add_argument('--dataset', metavar='NAME', action='append', default=[],
                    help='name under which the training text is published; repeat')


def _import(options: argparse.Namespace) -> None:
  reference = options.weights, options.arguments, options.words
  if bool(options.folder) == any(reference) or not options.folder and not all(reference[:2]):
    raise UserError('models import needs --from=DIR (a folder that models export wrote), or '
                    '--weights=FILE and --arguments=FILE of a checkpoint of the reference, not '
                    'both')
  from fairjax.run import export
  config = start_run(options)  # a model that does not fit leaves the workdir to another config
  if config.pretrained.model:
    raise UserError('models import puts a model in the place of step 1, where this config has '
                    f'pretrained.model={config.pretrained.model}: give it without')
  if options.folder:
    folder = export.read_folder(options.folder)
    # The tables of the vocabulary are padded in the file.
    export.check_fields(config.model, folder.config.model, more=('vocab_multiple',))
    job = _open(options, config, folder.vocabulary.size)
    export.import_folder(job, folder, options.folder)
  else:
    found = export.read_reference(config.model, weights=options.weights,
                                  arguments=options.arguments, words=options.words)
    export.import_reference(_open(options, config, found.model.vocab_size), found)


def _open(options: argparse.Namespace, config: Config, vocab_size: int) -> 'Job':
  """Opens the workdir that gets a model; it must have a step 1 of its own."""
  job = open_training(options, config=config, until='lm', vocab_size=vocab_size)
  if job.config.step1_from:
    raise UserError(f'{job.workdir} takes step 1 from {job.config.step1_from}: import the model '
                    'into a workdir of its own')
  return job


def _export(options: argparse.Namespace) -> None:
  file, config = options.output.endswith('.safetensors'), start_run(options)
  usual = 'published' if config.pretrained.model else 'transformer-xl' if file else 'fairjax'
  form = options.form or usual
  if (form == 'published') != bool(config.pretrained.model):
    raise UserError(f'--form={form}: a run with pretrained.model has the form published, every '
                    'other run one of the others')
  refuse(options, *(n for names in _OPTIONS_OF_FORM.values() for n in names
                    if n not in _OPTIONS_OF_FORM[form]), why=f'does not belong to --form={form}')
  if (form == 'transformer-xl') != file:
    raise UserError(f'--output={options.output}: --form={form} writes ' + (
      'a folder: name one without .safetensors' if file else
      'a file: let its name end in .safetensors'))
  from fairjax.run.export import export_folder, export_published, export_reference
  job = open_job(options, config=config, only_read=True)
  card = {'license': options.license, 'languages': options.language, 'datasets': options.dataset}
  if form == 'published':
    export_published(job, model=options.model, output=options.output, dtype=options.dtype,
                     adapter=options.adapter, **card)
  elif form == 'fairjax':
    export_folder(job, model=options.model, output=options.output, **card)
  else:
    export_reference(job, model=options.model, output=options.output, prefix=options.prefix)


# `models select`: the best lambda of a run that did not lose its relevance.

def _select_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser)
  parser.add_argument('--relevance-share', type=float, metavar='SHARE', help='least share of the '
                      "baseline's relevance (default: measure.relevance_share)")
  parser.add_argument('--relevance', action='append', metavar='MEASURE',
                      help='semantic_similarity | semantic_similarity_c | distinct_word_divergence '
                      '| next_token_divergence; repeat (default: the first two)')
  parser.add_argument('--fairness', default='individual_fairness', metavar='MEASURE',
                      help='individual_fairness | group_fairness')
  parser.add_argument('--scorer', action='append', help='repeat (default: all)')
  parser.add_argument('--perplexity-rise', type=between(-100, math.inf), metavar='PERCENT',
                      help='most that the word perplexity may rise')
  add_shared(parser, 'json')


def _select(options: argparse.Namespace) -> None:
  from fairjax.report.sections import RELEVANCE, select_model, selection_section
  job = open_job(options, log=log_line, only_read=True)
  share = options.relevance_share
  found = select_model(
    job.rows(), share=job.config.measure.relevance_share if share is None else share,
    relevance=options.relevance or RELEVANCE, fairness=options.fairness, scorers=options.scorer,
    most_perplexity=options.perplexity_rise)
  print_result(options, found, lambda found: format_section(selection_section(found)))


COMMANDS = {
  'run': Command(_run_options, _run, example=f'fairjax run {RUN_OPTIONS}'),
  'step data': Command(_data_options, _data, 'prepare vocabulary and token stores',
                       f'fairjax step data {RUN_OPTIONS}'),
  'step check-data': Command(_check_options, _check_data,
                             'list all that is wrong with documents, stores or cache'),
  'step train': Command(_train_options, _train, 'train up to a stage of the curriculum',
                        f'fairjax step train {RUN_OPTIONS} --stage=lm'),
  'step score': Command(add_run_options, _score, 'score the sampled continuations',
                        f'fairjax step score {RUN_OPTIONS}'),
  'models select': Command(
    _select_options, _select,
    'the best lambda of a measured run; refuses models that lost their relevance',
    f'fairjax models select {RUN_OPTIONS}'),
  'models export': Command(
    _export_options, _export, 'write a trained model: as a folder with config, vocabulary and '
    'model card, under the names of the reference, or as a published decoder came',
    f'fairjax models export {RUN_OPTIONS} --model=baseline --output=models/baseline'),
  'models import': Command(
    _import_options, _import,
    'start from an exported Transformer-XL, or a checkpoint of the reference, instead of training '
    'step 1',
    f'fairjax models import {RUN_OPTIONS} --from=models/baseline'),
}
