"""`models` masked-lm and classifier, which train them, and what looks at them."""

import argparse
import pathlib
from collections.abc import Mapping
from typing import Any

from fairjax import processes
from fairjax.cli.gender_verbs import make_swap
from fairjax.cli.measure_verbs import load_scorers
from fairjax.cli.options import (
  SCORERS,
  SWAP,
  add_fields,
  add_shared,
  at_least,
  between,
  field_values,
  not_negative,
  place_of,
  positive,
  refuse,
)
from fairjax.cli.verb import Command, join_processes, log_line, print_result
from fairjax.config import FILE_SOURCES, MeshConfig, TrainConfig
from fairjax.errors import UserError

_RATE = between(0, 1)
_SHARE = between(0, 1, ends='[)')


def _add_sizes(group: argparse._ActionsContainer) -> None:
  for name, default, words in (('layers', 2, 'of'), ('dim', 128, 'width of'), ('heads', 4, 'of')):
    group.add_argument(f'--{name}', type=positive, default=default, help=f'{words} a new model')


def _check_sizes(options: argparse.Namespace, *more: str) -> None:
  if options.init:
    refuse(options, 'layers', 'dim', 'heads', 'vocab-size', *more,
           why='is of a new model, and --init has its own')
  if options.dim % options.heads:
    raise UserError(f'--heads={options.heads} does not divide --dim={options.dim}')


# `models masked-lm`, and its planted corpus and pronouns.

def _corpus_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--output', metavar='DIR', required=True, help='new folder')
  parser.add_argument('--sentences', type=positive, default=40000,
                      help='to learn; a twentieth more to validate')
  parser.add_argument('--strength', type=between(0, 1, ends='[]'), default=1.0,
                      help='of the correlation, 0 to 1')
  add_shared(parser, 'seed')


def _pronoun_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--model', metavar='DIR', nargs='+', action='extend', required=True,
                      help='BERT or ALBERT; published decoder (folder, FILE.gguf, '
                      "hf:ORG/NAME[@REVISION], pip:PACKAGE or an adapter's folder); folder of "
                      'fairjax models export; or workdir (its baseline)')
  parser.add_argument('--shares', metavar='FILE', required=True,
                      help='table of occupation and bls_pct_female')
  add_shared(parser, 'seed', 'json')


def _train_options(parser: argparse.ArgumentParser) -> None:
  add_shared(parser, 'seed', 'json')
  data = parser.add_argument_group('text')
  data.add_argument('--data', metavar='FILE', nargs='+', action='extend', required=True,
                    help='files or patterns')
  data.add_argument('--valid', metavar='FILE', nargs='+', action='extend',
                    help='default: 2 %% of the documents')
  data.add_argument('--layout', choices=FILE_SOURCES, default='lines', help='what a document is; '
                    'lines: a line; jsonl, csv, parquet: the field --text-field of a row')
  data.add_argument('--text-field', default='text', metavar='NAME', help='see --layout')
  data.add_argument('--rows', choices=('packed', 'sentence'), default='packed',
                    help='as many sentences in a row as fit, or one')
  data.add_argument('--max-length', type=at_least(8), help='pieces of a row; default 128, with '
                    '--init at most what the model reads')
  data.add_argument('--cda', choices=('one', 'two'), help='counterfactual data augmentation')
  add_shared(data, *SWAP)
  parser.set_defaults(name_gender='flip')
  model = parser.add_argument_group('model')
  add_shared(model, 'workdir', required=True,
             help='model directory to write; the same command continues it')
  model.add_argument('--init', metavar='DIR', help='BERT or ALBERT with MLM head to train further; '
                     'default: a new one')
  model.add_argument('--kind', choices=('bert', 'albert'), default='bert', help='of a new model')
  _add_sizes(model)
  model.add_argument('--vocab-size', type=at_least(6), default=8000,
                     help='word pieces of a new model')
  model.add_argument('--embedding-dim', type=not_negative, default=0,
                     help='of a new ALBERT; 0: at most 128')
  model.add_argument('--hidden-dropout', type=_SHARE, help='default: of the checkpoint, or 0.1 '
                     '(ALBERT: 0)')
  model.add_argument('--attention-dropout', type=_SHARE, help='likewise')
  model.add_argument('--freeze', default='none', metavar='none|embedding|K|all',
                     help='what does not move; K: embedding and the first K layers')
  fit = parser.add_argument_group('optimisation')
  add_fields(fit, TrainConfig, 'eval_every', 'checkpoint_every', steps=2000, batch_size=64,
             weight_decay=0.01, log_every=100)
  fit.add_argument('--learning-rate', type=_RATE, help='default 1e-3, with --init 5e-5')
  fit.add_argument('--warmup-steps', type=not_negative, help='default: a tenth of the steps')
  fit.add_argument('--mask-share', type=_RATE, default=0.15)
  fit.add_argument('--whole-words', action='store_true', help='mask words whole')
  devices = parser.add_argument_group('devices')
  add_shared(devices, 'distributed')
  add_fields(devices, MeshConfig, 'slices', 'data', 'fsdp', 'model', prefix='mesh.')


def _write_corpus(options: argparse.Namespace) -> None:
  from fairjax.data.planted_gender import write_bios, write_corpus, write_sts, write_tables
  from fairjax.files import atomic_folder
  with atomic_folder(options.output) as folder:
    for stream, (name, size) in enumerate((('train', options.sentences),
                                           ('valid', -(-options.sentences // 20)))):
      truth = write_corpus(folder / f'{name}.txt', num_sentences=size, seed=options.seed,
                           strength=options.strength, stream=stream)
      gendered = size - truth['kinds']['neutral']
      log_line(f'[corpus] {name}.txt: {size:,} sentences, {gendered:,} of them gendered')
    files = write_tables(folder)
    write_sts(folder / 'stsb', seed=options.seed)
    write_bios(folder / 'bios', seed=options.seed)
  print(f'{options.output}: train.txt, valid.txt, their truth, {", ".join(sorted(files))}, and the '
        'tasks stsb/ and bios/ of `fairjax gender correlations`')


def _train(options: argparse.Namespace) -> None:
  _check_train(options)
  join_processes(options)
  from fairjax.data.sentence_text import Augmentation, SentenceCorpus
  from fairjax.pretrained.masked_lm import Settings, Sizes
  from fairjax.run.masked_training import train_on_text
  corpus = SentenceCorpus(
    tuple(options.data), tuple(options.valid) if options.valid else None, layout=options.layout,
    text_field=options.text_field, seed=options.seed,
    augmentation=Augmentation(make_swap(options, 'data'), options.cda) if options.cda else None)
  train = TrainConfig(**{
    'schedule': 'linear', 'clip_norm': 1.0, 'learning_rate': 5e-5 if options.init else 1e-3,
    'warmup_steps': options.steps // 10} | field_values(options, TrainConfig))
  card = train_on_text(
    corpus, pathlib.Path(options.workdir), init=options.init, rows=options.rows,
    sizes=Sizes(**field_values(options, Sizes)), max_length=options.max_length,
    settings=Settings(**field_values(options, Settings) | {'train': train}),
    mesh=MeshConfig(**field_values(options, MeshConfig, prefix='mesh_')),
    hidden_dropout=options.hidden_dropout, attention_dropout=options.attention_dropout,
    log=log_line)
  print_result(options, card, lambda card: (
    f"{options.workdir}: {card['steps']} steps, validation loss "
    f"{float(card['result']['loss']):.4f}, accuracy {card['result']['accuracy']:.4f} at "
    f"{card['result']['places']:,.0f} masked places, {card['result']['skipped_updates']} updates "
    'skipped'))


def _check_train(options: argparse.Namespace) -> None:
  """Raises `UserError` for options that exclude each other."""
  _check_sizes(options, 'kind', 'embedding-dim')
  if not options.mesh_data:
    raise UserError('--mesh.data=0 is no number of parts')
  if (options.warmup_steps or 0) > options.steps:
    raise UserError(f'--warmup-steps={options.warmup_steps} is not between 0 and '
                    f'--steps={options.steps}')
  if options.embedding_dim and options.kind != 'albert':
    raise UserError('--embedding-dim belongs to --kind=albert')
  if not options.cda:
    refuse(options, *SWAP, why='belongs to --cda=one or --cda=two')


def _pronouns(options: argparse.Namespace) -> None:
  from fairjax.gender.persons import read_professions
  from fairjax.gender.scored_models import open_language_model
  from fairjax.gender.trends import fit_slope
  from fairjax.gender.winogender import PLAIN_SENTENCES, plain_shares
  from fairjax.measure.correlation import correlate, pearson
  professions = read_professions(options.shares)
  results: dict[str, dict[str, Any]] = {}
  for directory in options.model:
    found = plain_shares(open_language_model(directory), professions.names)
    r = correlate(pearson, found, professions.shares, list(professions.names), resamples=2000,
                  seed=options.seed)
    results[directory] = {
      'r': r, 'sentences': len(PLAIN_SENTENCES),
      'slope': fit_slope(professions.shares, found)['value'],
      'p_she': dict(zip(professions.names, found.round(4).tolist(), strict=True))}
  print_result(options, results, _format_pronouns)


def _format_pronouns(results: Mapping[str, Mapping[str, Any]]) -> str:
  """A table: one row a model."""
  from fairjax.report.document import Table, number
  first, rows = next(iter(results.values())), []
  for directory, found in results.items():
    r, p = found['r'], found['p_she']
    interval = '' if r['low'] is None else f" ({r['low']:.3f}, {r['high']:.3f})"
    rows.append([directory, number(r['value'], 3) + interval, number(found['slope'], 3),
                 *(f'{name} {p[name]:.3f}' for name in (min(p, key=p.get), max(p, key=p.get))),
                 str(r['n'])])
  table = Table(['model', 'Pearson r (95 %)', 'slope', 'lowest', 'highest', 'n'], rows)
  return (f"P(she) / (P(she) + P(he)) in {first['sentences']} sentences about each of "
          f"{len(first['p_she'])} professions against their share; binary pronouns only\n\n"
          + table.text())


# `models classifier` and `scorers evaluate`.

def _example_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--data', metavar='FILE', required=True, help='labelled sentences: trees, '
                      'label<TAB>binary<TAB>text, label<TAB>text, a table with a header (GLUE) or '
                      'JSON lines, also compressed')
  parser.add_argument('--classes', type=int, choices=(2, 5), default=2,
                      help='2: neutral texts are left out, counted')
  add_shared(parser, 'seed', 'json')


def _fit_options(parser: argparse.ArgumentParser) -> None:
  _example_options(parser)
  parser.add_argument('--dev', metavar='FILE', help='chooses the epoch; default: a seeded tenth of '
                      'the data')
  parser.add_argument('--output', metavar='DIR', required=True, type=place_of(folder=True),
                      help='model directory to write; the same command continues it')
  parser.add_argument('--init', metavar='DIR', help='BERT checkpoint to fine-tune; default: a '
                      'small new BERT with its own vocabulary')
  parser.add_argument('--phrases', action='store_true', help='of trees, learn every phrase')
  parser.add_argument('--epochs', type=positive, help='default 8, with --init 3')
  parser.add_argument('--learning-rate', type=_RATE, help='default 5e-4, with --init 3e-5')
  parser.add_argument('--batch-size', type=positive, default=32, help='texts')
  _add_sizes(parser)
  parser.add_argument('--vocab-size', type=at_least(6), default=8000,
                      help='word pieces of a new BERT')
  parser.add_argument('--max-length', type=at_least(3), default=128,
                      help='tokens that a new BERT reads')


def _evaluate_options(parser: argparse.ArgumentParser) -> None:
  _example_options(parser)
  parser.add_argument('--model', metavar='DIR', action='append', default=[],
                      help='classifier; repeat for several')
  parser.add_argument('--undecided', choices=('wrong', 'negative'), default='wrong',
                      help='what a score of exactly 0.5 counts as, of two classes')
  add_shared(parser, *SCORERS)


def _fit_classifier(options: argparse.Namespace) -> None:
  from fairjax.pretrained.classifier import (
    NAMES,
    Settings,
    from_checkpoint,
    from_scratch,
    read_training,
    train_classifier,
  )
  from fairjax.pretrained.start import Sizes
  _check_sizes(options, 'max-length')
  data, dev = read_training(options.data, options.dev, classes=options.classes,
                            phrases=options.phrases, seed=options.seed, log=log_line)
  if options.init:
    start = from_checkpoint(options.init, labels=NAMES[options.classes], seed=options.seed,
                            log=log_line)
  else:
    start = from_scratch(data.texts, Sizes(kind='bert', **field_values(options, Sizes)),
                         classes=options.classes, seed=options.seed, log=log_line)
  settings = Settings(**{'epochs': 3 if options.init else 8,
                         'learning_rate': 3e-5 if options.init else 5e-4}
                      | field_values(options, Settings))
  with processes.StopSignal().installed() as stop:
    card = train_classifier(
      start, data, dev, options.output, log=log_line, source={'phrases': options.phrases},
      stop=stop, settings=settings)
  print_result(options, card, lambda card: (
    f"{options.output}: epoch {card['chosen_epoch']} of {settings.epochs}, chosen on these dev "
    f"texts\n{_format_quality({options.output.name: card['dev']})}"))


def _evaluate(options: argparse.Namespace) -> None:
  from fairjax.measure.scorers.audit import scorer_quality
  from fairjax.pretrained.classifier import read_examples
  scorers = load_scorers(options, options.data, bert=options.model)
  if not scorers:
    raise UserError('scorers evaluate needs --model=DIR or --scorer=NAME')
  data = read_examples(options.data, classes=options.classes)
  found = {scorer.name: scorer_quality(
    scorer, data, classes=options.classes, undecided=options.undecided, seed=options.seed,
    log=log_line) for scorer in scorers}
  print_result(
    options, {'data': {'texts': len(data.texts), 'neutral_left_out': data.neutral,
                       'digest': data.digest}, 'scorers': found},
    lambda result: f'{len(data.texts)} texts, {data.neutral} neutral ones left out\n'
    + _format_quality(result['scorers']))


def _format_quality(found: Mapping[str, Mapping[str, Any]]) -> str:
  """A table: one row a scorer, intervals of 95 % in brackets."""
  from fairjax.report.document import Table, number
  keys = {'accuracy': 'accuracy', 'macro_f1': 'macro F1', 'positive_f1': 'F1 of positive'}
  keys = {key: title for key, title in keys.items() if all(key in q for q in found.values())}
  return Table(
    ['scorer', *keys.values(), 'undecided', 'accuracy of the others', 'n'],
    [[name, *(f"{q[k]['value']:.3f} ({q[k]['low']:.3f}, {q[k]['high']:.3f})" for k in keys),
      str(q['undecided']), number(q['accuracy_of_decided'], 3), str(q['n'])]
     for name, q in found.items()]).text()


COMMANDS = {
  'gender corpus': Command(_corpus_options, _write_corpus,
                           'write a text with a known correlation of gender and profession'),
  'gender pronouns': Command(_pronoun_options, _pronouns, 'P(she) of models beside professions'),
  'models masked-lm': Command(
    _train_options, _train, 'train a BERT or ALBERT on masked words, with CDA or dropout',
    'fairjax models masked-lm --data=corpus/train.txt --valid=corpus/valid.txt --rows=sentence '
    '--max-length=32 --steps=1500 --workdir=runs/mlm'),
  'models classifier': Command(
    _fit_options, _fit_classifier, 'train a sentiment classifier, a scorer (bert:DIR)',
    'fairjax models classifier --data=train.tsv --dev=dev.tsv --output=runs/sst'),
  'scorers evaluate': Command(_evaluate_options, _evaluate,
                              'accuracy and F1 of scorers and classifiers on labelled sentences'),
}
