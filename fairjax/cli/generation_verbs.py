"""The verbs `sample` (models of a run, prompts for an API, pretrained models) and `records`."""

import argparse
import dataclasses
import pathlib
from typing import TYPE_CHECKING

from fairjax import processes
from fairjax.cli.verb import (
  RUN_OPTIONS,
  Verb,
  above_zero,
  add_reading_options,
  add_run_options,
  add_scored_option,
  join_processes,
  log_line,
  not_negative,
  open_job,
  positive,
  records_reader,
  refuse_processes,
)
from fairjax.config import SampleConfig
from fairjax.errors import UserError

if TYPE_CHECKING:
  from fairjax.counterfactual import Attribute
  from fairjax.pretrained import Pretrained, TokenizerVocabulary

_DEFAULT = SampleConfig(batch_size=100, heldout_prefixes=False)  # of --pretrained
_FIELDS = ('samples', 'max_new_tokens', 'temperature', 'sentence_end', 'batch_size', 'seed')


def _add_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser, required=False)
  parser.add_argument('--prompts-only', action='store_true',
                      help='write the prompts of --attribute (or of the config) for another model')
  parser.add_argument('--pretrained', metavar='DIR', default=None,
                      help='sample a GPT-2: folder of config.json, model.safetensors and '
                      'tokenizer.json; with --attribute and --output')
  parser.add_argument('--attribute', help='built-in attribute or YAML file (of a run: other '
                      'prompts than those of its config, with --output)')
  parser.add_argument('--output', metavar='FILE', help='JSONL (or .gz); of a run a folder, which '
                      'gets one file a model')
  of_model = parser.add_argument_group(
    'with --attribute and --output', "defaults: those of the run's config; of --pretrained "
    f'{_DEFAULT.samples} samples, {_DEFAULT.max_new_tokens} tokens, temperature '
    f'{_DEFAULT.temperature:g}, batch {_DEFAULT.batch_size}, seed {_DEFAULT.seed}')
  of_model.add_argument('--samples', type=positive, help='per template and value (H-12)')
  of_model.add_argument('--max-new-tokens', type=positive)
  of_model.add_argument('--temperature', type=above_zero)
  of_model.add_argument('--sentence-end', action='store_const', const=True,
                        help='stop at the end of a sentence')
  of_model.add_argument('--batch-size', type=positive,
                        help='samples at a time for all values of one template')
  of_model.add_argument('--seed', type=not_negative)
  of_model.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32')
  of_model.add_argument('--independent', action='store_true',
                        help='draw the samples of each value independently (not coupled)')
  of_model.add_argument('--start', action='store_true',
                        help='begin every text with the end-of-text id (default: the prompt alone)')


def _sample_config(options: argparse.Namespace, default: SampleConfig) -> SampleConfig:
  """The default with what was given."""
  given = {name: getattr(options, name) for name in _FIELDS if getattr(options, name) is not None}
  return dataclasses.replace(default, **given)


def _sample_run(options: argparse.Namespace) -> None:
  """Samples the models of a run with the prompts of any attribute, into a folder; continues."""
  from fairjax.counterfactual import load_attribute
  from fairjax.run.job import sample_attribute
  if pathlib.Path(options.output).is_file():
    raise UserError(f'--output={options.output} is a file: of a run it is a folder, which gets one '
                    'file a model')
  attribute = load_attribute(options.attribute)
  job = open_job(options)
  sample = _sample_config(options, job.config.sample)
  for path in sample_attribute(job, attribute, options.output, sample,
                               coupled=not options.independent):
    print(f'{path}: measure it with: fairjax measure --records={path} '
          f'--attribute={options.attribute} --scorer=vader')


def _sample_pretrained(options: argparse.Namespace) -> None:
  """Samples a pretrained model with coupled noise (H-13, H-33), and writes its next-token file."""
  if options.config or options.workdir or options.prompts_only:
    raise UserError('--pretrained takes no --config, --workdir or --prompts-only: leave them out')
  if not options.attribute or not options.output:
    raise UserError('sample --pretrained needs --attribute=A and --output=FILE')
  sample = _sample_config(options, _DEFAULT)
  join_processes(options)
  import jax

  from fairjax.counterfactual import load_attribute
  from fairjax.generate import generate
  from fairjax.pretrained import GPT2Decoder, TokenizerVocabulary, load_pretrained
  from fairjax.pretrained.checkpoint import safe_name
  from fairjax.run.next_token import write_next_token
  attribute = load_attribute(options.attribute)
  model = load_pretrained(options.pretrained, 'lm', dtype=options.dtype)
  vocabulary = TokenizerVocabulary(model, start=options.start)
  _check_lengths(options, model, vocabulary, attribute, sample)
  devices, mesh, place = jax.devices(), None, None  # of all processes
  if len(devices) > 1:
    mesh = jax.make_mesh((len(devices),), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  parts = (jax.device_put(model.params, place),
           GPT2Decoder(model.arch, options.dtype, model.unused_ids), vocabulary, attribute)
  log = print if processes.is_first() else lambda line: None
  generate(
    *parts, path=options.output, model=safe_name(model.name), sample=sample,
    card={'fingerprint': model.fingerprint}, coupled=not options.independent, mesh=mesh, log=log)
  write_next_token(options.output, *parts, mesh=mesh, log=log)
  log(f'{options.output}: measure it with: fairjax measure --records={options.output} '
      f'--attribute={options.attribute} --scorer=vader'
      + (' --independent' if options.independent else ''))


def _check_lengths(options: argparse.Namespace, model: 'Pretrained',
                   vocabulary: 'TokenizerVocabulary', attribute: 'Attribute', sample: SampleConfig
                   ) -> None:
  """Raises `UserError` if a prefix and its continuation do not fit into the model."""
  sizes = {p.text: len(vocabulary.start_ids) + len(vocabulary.encode(p.text))
           for p in attribute.prefixes()}
  text, longest = max(sizes.items(), key=lambda item: item[1])
  left = model.arch.max_positions - longest
  head = (f'{options.pretrained} has {model.arch.max_positions} positions, the longest prefix of '
          f'{attribute.name} {longest} tokens')
  if left < 1:
    raise UserError(f'{head}, which leaves no place for a new one ({text[:60]!r}): shorten the '
                    'template, or take a model that reads longer texts')
  if sample.max_new_tokens > left:
    raise UserError(f'{head}: --max-new-tokens can be at most {left}')


def _write_prompts(options: argparse.Namespace) -> None:
  """Writes the prompts of an attribute for another model."""
  refuse_processes(options, 'sample --prompts-only')
  if not options.output or bool(options.attribute) == bool(options.config):
    raise UserError('sample --prompts-only needs --output=FILE, and either --attribute=A or '
                    '--config=FILE')
  from fairjax.config_io import load_config
  from fairjax.counterfactual import load_attribute
  from fairjax.generate.generations import write_prompts
  attribute = load_attribute(
    options.attribute or load_config(options.config, options.overrides).attribute)
  count = write_prompts(attribute, options.output)
  print(f'{options.output}: {count} prompts of {attribute.name}; add a continuation to each line '
        f'and run: fairjax measure --records={options.output} --attribute='
        f'{options.attribute or attribute.name} --scorer=vader')


def _sample(options: argparse.Namespace) -> None:
  if options.pretrained is not None:
    _sample_pretrained(options)
  elif options.prompts_only:
    _write_prompts(options)
  elif options.attribute and options.output and options.config and options.workdir:
    if options.start:
      raise UserError('--start belongs to sample --pretrained=DIR')
    _sample_run(options)
  elif options.attribute or options.output:
    raise UserError('--attribute and --output belong to sample --prompts-only and --pretrained=DIR,'
                    ' or, both, to a run (--config and --workdir)')
  elif not (options.config and options.workdir):
    raise UserError('sample needs --config=FILE and --workdir=DIR, or --attribute=A and '
                    '--output=FILE with --prompts-only or --pretrained=DIR')
  else:
    open_job(options).sample()


# The verb `records`: generations in other forms.

def _records_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('action', choices=('convert',))
  parser.add_argument('--records', metavar='FILE', required=True,
                      help='generations, as of fairjax measure')
  add_reading_options(parser, empty=False)
  parser.add_argument('--output', metavar='FILE', required=True,
                      help='.jsonl, .jsonl.gz or .parquet; must not exist')
  parser.add_argument('--scores', metavar='FILE', nargs='+', default=[],
                      help='score files (of fairjax measure --keep, or scores/ of a workdir): each '
                      "score goes into its record's scores, for --scorer recorded:NAME")
  add_scored_option(parser)


def _convert(options: argparse.Namespace) -> None:
  from fairjax.run.recorded import convert_records
  convert_records(options.records, options.output, scores=options.scores, scored=options.scored,
                  read=records_reader(options), log=log_line)


VERBS = (
  Verb('sample', 'sample continuations of every trained model', f'fairjax sample {RUN_OPTIONS}',
       _add_options, _sample),
  Verb('records', 'convert generations, with their scores, between JSONL and Parquet',
       'fairjax records convert --records=generations.jsonl --output=generations.parquet '
       '--scores scores/country.vader.jsonl', _records_options, _convert),
)
