"""The verbs `sample` (models of a run, prompts for an API, pretrained models) and `records`."""

import argparse
import collections
import dataclasses
import importlib.resources
import itertools
import json
import math
import pathlib
import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fairjax import processes
from fairjax.cli.options import (
  add_fields,
  add_run_options,
  add_shared,
  between,
  field_values,
  positive,
  refuse,
  require,
)
from fairjax.cli.verb import (
  RUN_OPTIONS,
  Command,
  join_processes,
  log_line,
  open_job,
  records_reader,
)
from fairjax.config import SampleConfig
from fairjax.config_io import load_config
from fairjax.errors import UserError

if TYPE_CHECKING:
  from fairjax.counterfactual import Attribute

_DRAWN = ('samples', 'max-new-tokens', 'temperature', 'seed', 'independent')
# What is sampled -> the options that it reads, of those that not all read.
_READS: dict[str, tuple[str, ...]] = {
  '--endpoint': (*_DRAWN, 'chat', 'model', 'instruction', 'body', 'concurrency', 'price-in',
                 'price-out'),
  '--pretrained': (*_DRAWN, 'chat', 'sentence-end', 'batch-size', 'dtype', 'start'),
  '--prompts-only': ('config', 'seed'),
  'a run': ('config', 'workdir', *_DRAWN, 'sentence-end', 'batch-size'),
}
_DEFAULT = SampleConfig(batch_size=100, heldout_prefixes=False)  # of no run


def _sample_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser, required=False)
  parser.add_argument('--prompts-only', action='store_true',
                      help='write the prompts of --attribute (or of the config) for another model')
  parser.add_argument('--pretrained', metavar='MODEL',
                      help='sample a published decoder (GPT-2, Pythia, Llama, SmolLM, Mistral, '
                      'Qwen 2 and 3, OLMo 2 and 3, Gemma 2 and 3): folder, FILE.gguf, '
                      "hf:ORG/NAME[@REVISION], pip:PACKAGE or an adapter's folder "
                      '(docs/exchange.md); with --attribute and --output')
  parser.add_argument('--endpoint', metavar='URL', help='sample a model behind an '
                      'OpenAI-compatible endpoint, e.g. http://localhost:8000/v1; the key is that '
                      'of the environment variable FAIRJAX_ENDPOINT_KEY (docs/endpoints.md)')
  add_shared(parser, 'attribute', help='built-in attribute, YAML file, or the combinations of two '
             '(A*B); of a run: other prompts than those of its config, with --output')
  parser.add_argument('--output', metavar='FILE', help='JSONL (or .gz); of a run a folder, which '
                      'gets one file a model')
  parser.add_argument('--rewordings', action='store_true',
                      help='with --attribute: the rewordings of its templates too (arm rewording), '
                      'for the rewording floor')
  parser.add_argument('--fraction', type=float, metavar='SHARE',
                      help='with --attribute=A*B: prompts for that share of the combinations, a '
                      'balanced choice by --seed')
  of_model = parser.add_argument_group(
    'with --attribute and --output', "defaults: those of the run's config; of --pretrained and "
    f'--endpoint {_DEFAULT.samples} samples, {_DEFAULT.max_new_tokens} tokens, temperature '
    f'{_DEFAULT.temperature:g}; of --pretrained batch {_DEFAULT.batch_size}, seed {_DEFAULT.seed}')
  add_fields(of_model, SampleConfig, samples=None, max_new_tokens=None, temperature=None,
             sentence_end=None, batch_size=None, seed=None)
  of_model.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32')
  of_model.add_argument('--independent', action='store_true',
                        help='draw the samples of each value independently (not coupled)')
  of_model.add_argument('--start', action='store_true',
                        help='begin every text with the end-of-text id (default: the prompt alone)')
  of_model.add_argument('--chat', action='store_true', help='ask a chat model: of --pretrained by '
                        "its tokenizer's chat template, of --endpoint /chat/completions with "
                        '--instruction, instead of /completions, which continues the prompt itself')
  asked = parser.add_argument_group('with --endpoint')
  asked.add_argument('--model', metavar='NAME', help='of the model, as the endpoint knows it')
  asked.add_argument('--instruction', metavar='TEXT', help="of --chat: the system's message, which "
                     'the records keep (default: to continue the text and write nothing else)')
  asked.add_argument('--body', metavar='JSON', type=_json_object, help='further fields of each '
                     """request, e.g. '{"top_p": 0.9}'; null takes a field out""")
  asked.add_argument('--concurrency', type=positive, metavar='N',
                     help='requests under way at a time (default: 8)')
  for name, of in (('in', 'read'), ('out', 'written')):
    asked.add_argument(f'--price-{name}', type=between(0, math.inf, ends='[)'), metavar='P',
                       help=f'of a million tokens that are {of}: the cost is counted too')


def _json_object(text: str) -> dict[str, Any]:
  """Type of an option: an object of JSON."""
  try:
    found = json.loads(text)
  except (ValueError, RecursionError):
    found = None
  if not isinstance(found, dict):
    raise argparse.ArgumentTypeError(f"""'{text}' is no object of JSON like {{"top_p": 0.9}}""")
  return found


def _attribute(options: argparse.Namespace, name: str) -> 'Attribute':
  """The attribute whose prompts are asked for."""
  from fairjax.counterfactual import load_attribute
  attribute = load_attribute(name)
  if options.fraction is None:
    return attribute
  return attribute.fraction(options.fraction, seed=options.seed or 0)


def _sample_run(options: argparse.Namespace) -> None:
  if not (options.config and options.workdir) or bool(options.attribute) != bool(options.output):
    raise UserError('sample needs --config=FILE and --workdir=DIR of a run, for other prompts with '
                    '--attribute=A and --output=DIR; or --attribute=A and --output=FILE with '
                    '--prompts-only, --pretrained=DIR or --endpoint=URL')
  if not options.attribute:
    refuse(options, *_READS['a run'][2:], 'rewordings', 'fraction', why='of a run needs '
           '--attribute=A and --output=DIR; its own samples are those of its config '
           '(--config.sample.samples=N)')
    open_job(options).sample()
    return
  from fairjax.run.job import sample_attribute
  if pathlib.Path(options.output).is_file():
    raise UserError(f'--output={options.output} is a file: of a run it is a folder, which gets one '
                    'file a model')
  attribute = _attribute(options, options.attribute)
  job = open_job(options, only_read=True)
  sample = dataclasses.replace(job.config.sample, **field_values(options, SampleConfig))
  for path in sample_attribute(job, attribute, options.output, sample,
                               coupled=not options.independent, rewordings=options.rewordings):
    if processes.is_first():
      print(_measure_it(path, options))


def _measure_it(path: object, options: argparse.Namespace) -> str:
  return (f'{path}: measure it with: fairjax measure --records={shlex.quote(str(path))} '
          f'--attribute={shlex.quote(options.attribute)} --scorer=vader'
          + (' --independent' if options.independent else ''))


def _sample_pretrained(options: argparse.Namespace) -> None:
  require(options, 'sample --pretrained', 'attribute', 'output')
  join_processes(options)
  from fairjax.run.recorded import sample_pretrained
  log = print if processes.is_first() else lambda line: None
  sample_pretrained(
    options.pretrained, _attribute(options, options.attribute), options.output,
    dataclasses.replace(_DEFAULT, **field_values(options, SampleConfig)), dtype=options.dtype,
    start=options.start, chat=options.chat, coupled=not options.independent,
    rewordings=options.rewordings, log=log)
  log(_measure_it(options.output, options))


def _sample_endpoint(options: argparse.Namespace) -> None:
  require(options, 'sample --endpoint', 'model', 'attribute', 'output')
  if options.instruction is not None and not options.chat:
    raise UserError('--instruction belongs to --chat')
  from fairjax.generate.endpoint import Endpoint, sample_endpoint
  given = {name: getattr(options, name) for name in ('instruction', 'body', 'concurrency')}
  endpoint = Endpoint(options.endpoint, options.model, chat=options.chat,
                      **{name: value for name, value in given.items() if value is not None})
  prices = (options.price_in, options.price_out)
  sample_endpoint(
    endpoint, _attribute(options, options.attribute), options.output,
    dataclasses.replace(_DEFAULT, **field_values(options, SampleConfig)),
    rewordings=options.rewordings,
    prices=None if prices == (None, None) else (prices[0] or 0.0, prices[1] or 0.0), log=log_line)
  log_line(_measure_it(options.output, options))


def _write_prompts(options: argparse.Namespace) -> None:
  if not options.output or bool(options.attribute) == bool(options.config):
    raise UserError('sample --prompts-only needs --output=FILE, and either --attribute=A or '
                    '--config=FILE')
  from fairjax.generate.generations import write_prompts
  name = options.attribute or load_config(options.config, options.overrides).attribute
  attribute = _attribute(options, name)
  count = write_prompts(attribute, options.output, rewordings=options.rewordings)
  print(f'{options.output}: {count} prompts of {attribute.name}; add a continuation to each line '
        f'and run: fairjax measure --records={shlex.quote(options.output)} --attribute='
        f'{shlex.quote(name)} --scorer=vader')


def _sample(options: argparse.Namespace) -> None:
  given = [kind for kind, value in (
    ('--endpoint', options.endpoint), ('--pretrained', options.pretrained),
    ('--prompts-only', options.prompts_only or None)) if value is not None]
  if len(given) > 1:
    raise UserError(f"{' and '.join(given)} exclude each other: leave one out")
  kind = given[0] if given else 'a run'
  for name in dict.fromkeys(name for names in _READS.values() for name in names):
    if name not in _READS[kind]:
      readers = [other for other, names in _READS.items() if name in names]
      refuse(options, name, why=f"belongs to {' or '.join(readers)}, not to {kind}")
  if kind in ('--endpoint', '--prompts-only') and options.fraction is None:
    refuse(options, 'seed', why=f'does nothing with {kind} but choose a --fraction: leave it out')
  {'--endpoint': _sample_endpoint, '--pretrained': _sample_pretrained,
   '--prompts-only': _write_prompts, 'a run': _sample_run}[kind](options)


# The verb `records`: generations in other forms.

def _schema_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('of', nargs='?', choices=('record', 'report'), default='record')


def _print_schema(options: argparse.Namespace) -> None:
  package = {'record': 'fairjax.generate', 'report': 'fairjax.report'}[options.of]
  file = importlib.resources.files(package) / 'assets' / f'{options.of}.schema.json'
  print(file.read_text(encoding='utf-8'), end='')


def _convert_options(parser: argparse.ArgumentParser) -> None:
  add_shared(parser, 'records', required=True)
  add_shared(parser, 'columns', 'repair')
  parser.add_argument('--output', metavar='FILE', required=True,
                      help='.jsonl, .jsonl.gz or .parquet; must not exist')
  parser.add_argument('--scores', metavar='FILE', nargs='+', action='extend', default=[],
                      help='score files (of fairjax measure --keep, or scores/ of a workdir): each '
                      "score goes into its record's scores, for --scorer recorded:NAME")
  add_shared(parser, 'scored')
  add_shared(parser, 'attribute', help='what the records are about, where they do not say it; '
             'finds values and templates in the prefixes')
  other = parser.add_argument_group('files of other tools')
  other.add_argument('--from', dest='form', metavar='FORM',
                     help='lm-eval | inspect | langfair | csv | openai-batch')
  other.add_argument('--map', action='append', default=[], metavar='FIELD=PATH,...',
                     help='where a field of records is in an item, e.g. prefix=doc.query')
  other.add_argument('--requests', metavar='FILE', help='of openai-batch: the file that was sent')


def _convert(options: argparse.Namespace) -> None:
  from fairjax.run.recorded import convert_records
  if not options.scores:
    refuse(options, 'scored', why='belongs to --scores=FILE')
  if options.form:
    read = _foreign_reader(options)
  else:
    refuse(options, 'map', 'requests', why='belongs to --from=FORM')
    from fairjax.counterfactual import load_attribute
    read = records_reader(options, [load_attribute(options.attribute)] if options.attribute else [])
  convert_records(options.records, options.output, scores=options.scores, scored=options.scored,
                  read=read, log=log_line)


def _foreign_reader(options: argparse.Namespace) -> Callable[[Any], Iterator[dict[str, Any]]]:
  """Reads what another tool wrote, and logs what was left out."""
  from fairjax.counterfactual import load_attribute
  from fairjax.generate.foreign import foreign_records, parse_rules
  if not options.attribute:
    raise UserError('--from needs --attribute=A: the attribute that the prompts are about')
  attribute, rules = load_attribute(options.attribute), parse_rules(options.map)

  def read(path):
    left_out: collections.Counter[str] = collections.Counter()
    found = foreign_records(path, options.form, rules=rules, attribute=attribute,
                            requests=options.requests, left_out=left_out)
    try:
      first = next(found)
    except StopIteration:
      raise UserError(f'{path}: holds no record: ' + (', '.join(
        f'{number:,} left out {what}' for what, number in left_out.items()) or 'it is empty')
      ) from None
    yield from records_reader(options, [attribute])(itertools.chain([first], found), name=path)
    for what, number in left_out.items():
      log_line(f'{path}: {number:,} left out {what}')

  return read


COMMANDS = {
  'sample': Command(
    _sample_options, _sample, example=f'fairjax sample {RUN_OPTIONS}', alone=lambda options: (
      'sample --endpoint' if options.endpoint else
      'sample --prompts-only' if options.prompts_only else '')),
  'records convert': Command(
    _convert_options, _convert, 'write records, with scores, as JSONL or Parquet',
    'fairjax records convert --records=generations.jsonl --attribute=country '
    '--output=generations.parquet --scores scores/country.vader.jsonl'),
  'records schema': Command(_schema_options, _print_schema,
                            'print the JSON Schema of records or of report.json'),
}
