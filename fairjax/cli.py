"""The command line: `fairjax VERB ...`.

Exit codes: 0 done; 2 the user can mend it (one line says what, where and how); 42 interrupted and
saved, the same command continues; anything else is a fault. Verbs import what they need inside
their functions, so that `fairjax --help` answers at once.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence

from fairjax import human
from fairjax.errors import Preempted, UserError, unknown_name
from fairjax.sample_verbs import add_sample_options, sample_pretrained, write_prompt_file
from fairjax.scorer_verbs import (
  add_audit_options,
  add_lexicon_options,
  add_scorer_options,
  google_arguments,
)

PREEMPTED = 42
_RUN_OPTIONS = '--config=configs/quickstart.py --workdir=runs/quickstart'

VERBS: dict[str, tuple[str, str]] = {
  'run': ('the whole job: data, curriculum, sampling, scores, measures, report',
          f'fairjax run {_RUN_OPTIONS}'),
  'data': ('prepare vocabulary and token stores only', f'fairjax data {_RUN_OPTIONS}'),
  'train': ('train up to a stage of the curriculum', f'fairjax train {_RUN_OPTIONS} --stage=lm'),
  'import': ('put a Transformer-XL checkpoint of the reference in the place of step 1',
             f'fairjax import {_RUN_OPTIONS} --weights=model.safetensors --arguments=config.json '
             '--words=words.txt'),
  'export': ('write a trained model under the names of the reference',
             f'fairjax export {_RUN_OPTIONS} --model=baseline --output=model.safetensors'),
  'sample': ('sample continuations of every trained model', f'fairjax sample {_RUN_OPTIONS}'),
  'score': ('score the sampled continuations', f'fairjax score {_RUN_OPTIONS}'),
  'measure': ('measure a workdir, or any JSONL file of generations',
              'fairjax measure --records=generations.jsonl --attribute=country --scorer=vader '
              '--json'),
  'human': ('write blinded annotation sheets, and evaluate those that come back',
            'fairjax human export --records generations.jsonl --output sheets --annotators 4'),
  'report': ('write the report of a measured workdir', f'fairjax report {_RUN_OPTIONS}'),
  'sentiment-classifier': (
    'train a sentiment classifier, or compare scorers on labelled sentences',
    'fairjax sentiment-classifier train --data=train.tsv --dev=dev.tsv --output=runs/sst'),
  'compile': ('what the steps need on a TPU slice that is not there (needs libtpu)',
              'fairjax compile --topology=v5e:2x2 --config=configs/quickstart.py --program=lm'),
  'scorers': ('what scorers think of the sensitive tokens themselves, and how far they agree',
              'fairjax scorers audit --records=generations.jsonl --attribute=country '
              '--scorer=opinion --scorer=vader --lexicon=lexicon'),
  'lexicon': ('fetch the opinion words of Hu and Liu (network, hash checked)',
              'fairjax lexicon fetch --output=lexicon'),
  'attributes': ('list the built-in attributes, or check a file',
                 'fairjax attributes check country'),
  'config': ('show the resolved configuration with types',
             'fairjax config show --config=configs/quickstart.py --config.lm.steps=100'),
  'doctor': ('print versions and devices', 'fairjax doctor'),
}
"""Verb -> (what it does, an example that works)."""


class _Parser(argparse.ArgumentParser):
  """Reports bad arguments as `UserError`, like every other bad input."""

  def error(self, message: str):
    raise UserError(f'{message} (see: {self.prog} --help)')


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one verb and returns the exit code."""
  argv = list(sys.argv[1:] if argv is None else argv)
  debug = '--debug' in argv
  try:
    options = parse(argv)
    if options.verb is None:
      make_parser().print_help()
      return 0
    return _HANDLERS[options.verb](options) or 0
  except UserError as e:
    if debug:
      raise
    print(f'fairjax: {e}', file=sys.stderr)
    return 2
  except Preempted as e:
    print(f'fairjax: {e}; the same command continues', file=sys.stderr)
    return PREEMPTED
  except KeyboardInterrupt:
    print('fairjax: interrupted; the same command continues', file=sys.stderr)
    return PREEMPTED
  except Exception as e:
    from fairjax.train.loop import TrainingDiverged
    if debug or not isinstance(e, TrainingDiverged):
      raise
    print(f'fairjax: {e}', file=sys.stderr)
    return 1


def parse(argv: Sequence[str]) -> argparse.Namespace:
  """Parses arguments; `--config.a.b=v` (or `--config.a.b v`) land in `overrides`."""
  rest, overrides = [], {}
  words = iter(argv)
  for word in words:
    if word.startswith('--config.'):
      name, has_value, value = word[len('--config.'):].partition('=')
      value = value if has_value else next(words, None)
      if value is None:
        raise UserError(f'{word} needs a value: {word}=...')
      overrides[name] = value
    else:
      rest.append(word)
  if rest and not rest[0].startswith('-') and rest[0] not in VERBS:
    raise unknown_name('verb', rest[0], VERBS)
  options = make_parser().parse_args(rest)
  if overrides and not getattr(options, 'config', None):
    raise UserError(f'--config.{next(iter(overrides))} needs --config=FILE')
  options.overrides = overrides
  return options


def make_parser() -> argparse.ArgumentParser:
  """The parser of all verbs."""
  parser = _Parser(
    prog='fairjax', description='Train Transformer-XL language models, measure and reduce the '
    'counterfactual sentiment bias of what they write.')
  parser.add_argument('--debug', action='store_true', help='show the traceback of user errors')
  verbs = parser.add_subparsers(dest='verb', metavar='VERB', parser_class=_Parser)
  parsers = {}
  for verb, (what, example) in VERBS.items():
    parsers[verb] = verbs.add_parser(
      verb, help=what, description=what, epilog=f'example: {example}',
      formatter_class=argparse.RawDescriptionHelpFormatter)
    parsers[verb].add_argument('--debug', action='store_true', default=argparse.SUPPRESS,
                               help='show the traceback of user errors')
  for verb in ('run', 'data', 'train', 'import', 'export', 'score', 'report'):
    _add_run_options(parsers[verb], required=True)
  parsers['data'].add_argument(
    '--seqio_cache', metavar='DIR', help="also write seqio's offline cache of the documents")
  parsers['train'].add_argument('--stage', choices=('lm', 'sentiment', 'debias'), default=None,
                                help="train up to and with this stage (default: config's until)")
  _add_exchange_options(parsers['import'], parsers['export'])
  measure = parsers['measure']
  _add_run_options(measure, required=False)
  measure.add_argument('--records', metavar='FILE', help='JSONL (or .gz) of generations, from any '
                       'model: attribute, value, template, prefix, continuation')
  measure.add_argument('--attribute', help='built-in attribute or YAML file')
  add_scorer_options(measure)
  measure.add_argument('--permutations', type=int, default=200, help='for the null floor')
  measure.add_argument('--independent', action='store_true',
                       help='samples of different values were drawn independently (not coupled)')
  measure.add_argument('--json', action='store_true', help='print JSON')
  human.add_options(parsers['human'], _Parser)
  sample = parsers['sample']
  _add_run_options(sample, required=False)
  add_sample_options(sample)
  add_audit_options(parsers['scorers'])
  add_lexicon_options(parsers['lexicon'])
  attributes = parsers['attributes']
  attributes.add_argument('action', choices=('list', 'check'))
  attributes.add_argument('file', nargs='?', help='attribute name or YAML file')
  attributes.add_argument('--vocabulary', metavar='DIR', help='also check pieces in a vocabulary')
  attributes.add_argument('--lexicon', nargs='+', metavar='FILE', default=(),
                          help='also check against word lists of a scorer')
  _add_compile_options(parsers['compile'])
  from fairjax.classifier.options import add_options
  add_scorer_options(add_options(parsers['sentiment-classifier']))
  config = parsers['config']
  config.add_argument('action', choices=('show',))
  config.add_argument('--config', metavar='FILE[:ARGS]', required=True)
  return parser


def _add_exchange_options(importer: argparse.ArgumentParser, exporter: argparse.ArgumentParser):
  importer.add_argument('--weights', metavar='FILE', required=True,
                        help='safetensors, names with or without the transformer. prefix')
  importer.add_argument('--arguments', metavar='FILE', required=True,
                        help="JSON of the constructor's arguments, or a published config.json")
  importer.add_argument('--words', metavar='FILE', help='its words, one a line in the order of the '
                        'ids; default: the vocabulary of the config has its ids')
  exporter.add_argument('--model', default='baseline', help='baseline, country-embedding-10, ...')
  exporter.add_argument('--output', metavar='FILE', required=True, help='safetensors file')
  exporter.add_argument('--prefix', action='store_true',
                        help='names with the transformer. prefix of published checkpoints')


def _add_run_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
  parser.add_argument('--config', metavar='FILE[:ARGS]', required=required,
                      help='config file; --config.a.b=VALUE overrides a field')
  parser.add_argument('--workdir', metavar='DIR', required=required,
                      help='folder of the run; the same command continues it')


def _add_compile_options(parser: argparse.ArgumentParser) -> None:
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


def _job(options: argparse.Namespace):
  """Opens the workdir of a verb that works on one."""
  from fairjax.config_files import load_config
  config = load_config(options.config, options.overrides)
  # A terminated job raises at once, as with Ctrl-C; training replaces this by a clean save.
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  from fairjax.main_job import Job
  return Job(config, options.workdir)


def _run(options: argparse.Namespace) -> None:
  _job(options).run()


def _data(options: argparse.Namespace) -> None:
  job = _job(options)
  print(f'{job.prepared.directory}: vocabulary of {job.prepared.vocabulary.size} ids, splits '
        + ', '.join(job.prepared.manifest['splits']))
  if options.seqio_cache:
    from fairjax.data.seqio_cache import write_seqio_cache
    write_seqio_cache(job.prepared, options.seqio_cache)


def _train(options: argparse.Namespace) -> None:
  _job(options).train(until=options.stage)


def _import(options: argparse.Namespace) -> None:
  job = _job(options)
  from fairjax.exchange import import_reference
  import_reference(job, weights=options.weights, arguments=options.arguments, words=options.words)


def _export(options: argparse.Namespace) -> None:
  job = _job(options)
  from fairjax.exchange import export_reference
  export_reference(job, model=options.model, output=options.output, prefix=options.prefix)


def _sample(options: argparse.Namespace) -> None:
  if options.pretrained is not None:
    sample_pretrained(options)
  elif options.prompts_only:
    write_prompt_file(options)
  elif options.attribute or options.output:
    raise UserError('--attribute and --output belong to sample --prompts-only and --pretrained=DIR')
  elif not (options.config and options.workdir):
    raise UserError('sample needs --config=FILE and --workdir=DIR, or --attribute=A and '
                    '--output=FILE with --prompts-only or --pretrained=DIR')
  else:
    _job(options).sample()


def _score(options: argparse.Namespace) -> None:
  _job(options).score()


def _report(options: argparse.Namespace) -> None:
  _job(options).report()


def _measure(options: argparse.Namespace) -> None:
  if options.records is None:
    if not (options.config and options.workdir):
      raise UserError('measure needs --records=FILE --attribute=A --scorer=S, or --config and '
                      '--workdir of a run')
    _job(options).measure()
    return
  if not options.attribute or not options.scorer:
    raise UserError('measure --records needs --attribute=A and --scorer=S (opinion, vader, google, '
                    'bert:DIR, recorded:NAME)')
  from fairjax.verbs import measure_file
  measure_file(
    options.records, attribute=options.attribute, scorers=options.scorer, lexicon=options.lexicon,
    google=google_arguments(options, options.records),
    permutations=options.permutations, coupled=not options.independent, as_json=options.json)


def _scorers(options: argparse.Namespace) -> None:
  from fairjax.scorer_verbs import audit
  audit(options)


def _lexicon(options: argparse.Namespace) -> None:
  from fairjax.scorer_verbs import fetch
  fetch(options)


def _attributes(options: argparse.Namespace) -> int:
  from fairjax.counterfactual import list_attributes, load_attribute
  if options.action == 'list':
    for name in list_attributes():
      attribute = load_attribute(name)
      print(f'{name}: {len(attribute.values)} values, {len(attribute.templates)} templates, '
            f'{len(attribute.subgroups)} subgroups')
    return 0
  if options.file is None:
    raise UserError('attributes check needs a file: fairjax attributes check FILE')
  from fairjax.verbs import check_attribute
  return check_attribute(options.file, vocabulary=options.vocabulary, lexicon=options.lexicon)


def _config(options: argparse.Namespace) -> None:
  from fairjax.config_files import describe, load_config
  config = load_config(options.config, options.overrides)
  print('\n'.join(describe(config)))
  if config.model.vocab_size:
    from fairjax.main_job import parameter_words
    from fairjax.model import parameter_counts
    print(parameter_words(parameter_counts(config.model)))


def _compile(options: argparse.Namespace) -> int:
  from fairjax.compile.command import compile_config, compile_matrix
  from fairjax.verbs import versions

  def log(line):
    print(line, file=sys.stderr, flush=True)

  if options.matrix:
    compile_matrix(output=options.output, as_json=options.json, versions=versions(), log=log)
    return 0
  if not options.topology or not options.config:
    raise UserError('compile needs --topology=NAME and --config=FILE, or --matrix')
  from fairjax.config_files import load_config
  return compile_config(
    load_config(options.config, options.overrides), topology=options.topology,
    programs=options.program or (), smallest=options.smallest, as_json=options.json,
    versions=versions(), log=log)


def _sentiment_classifier(options: argparse.Namespace) -> None:
  # A terminated training raises at once, as with Ctrl-C; its last epoch is saved.
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  from fairjax.classifier import command

  def log(line):
    print(line, file=sys.stderr, flush=True)

  if options.action == 'train':
    command.train(options, log)
  else:
    command.evaluate(options, log, google=google_arguments(options, options.data))


def _doctor(options: argparse.Namespace) -> None:
  from fairjax.verbs import doctor
  doctor()


_HANDLERS: dict[str, Callable[[argparse.Namespace], int | None]] = {
  'run': _run, 'data': _data, 'train': _train, 'import': _import, 'export': _export,
  'sample': _sample, 'score': _score,
  'measure': _measure, 'human': human.run, 'report': _report,
  'sentiment-classifier': _sentiment_classifier, 'compile': _compile, 'scorers': _scorers,
  'lexicon': _lexicon, 'attributes': _attributes, 'config': _config, 'doctor': _doctor,
}


if __name__ == '__main__':
  sys.exit(main())
