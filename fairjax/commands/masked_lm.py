"""The verb `masked-lm`: a planted corpus, training of BERT or ALBERT, a look at the result."""

import argparse
import json
from typing import Any

from fairjax import processes
from fairjax.commands.verb import Verb, add_distributed_option, join_processes, log_line
from fairjax.errors import UserError

_LAYOUTS = (
  'lines', 'tsv', 'wikitext', 'newscrawl', 'newscrawl_sentences', 'jsonl', 'csv', 'parquet')


def _add_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('action', choices=('corpus', 'train', 'pronouns'),
                      help='corpus: write a text with a known correlation of gender and '
                      'profession; train: train a model; pronouns: P(she) beside professions')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--json', action='store_true', help='print JSON')
  corpus = parser.add_argument_group('corpus')
  corpus.add_argument('--output', metavar='DIR', help='new folder')
  corpus.add_argument('--sentences', type=int, default=40000, help='to learn; a twentieth more to '
                      'validate')
  corpus.add_argument('--strength', type=float, default=1.0, help='of the correlation, 0 to 1')
  data = parser.add_argument_group('train: text')
  data.add_argument('--data', metavar='FILE', nargs='+', help='files or patterns')
  data.add_argument('--valid', metavar='FILE', nargs='+', help='default: 2 %% of the documents')
  data.add_argument('--layout', choices=_LAYOUTS, default='lines', help='what a document is; '
                    'lines: a line; jsonl, csv, parquet: the field --text_field of a row')
  data.add_argument('--text_field', default='text', metavar='NAME', help='see --layout')
  data.add_argument('--rows', choices=('packed', 'sentence'), default='packed',
                    help='as many sentences in a row as fit, or one')
  data.add_argument('--max_length', type=int, default=128, help='pieces of a row')
  data.add_argument('--cda', choices=('one', 'two'), help='counterfactual data augmentation')
  data.add_argument('--pairs', metavar='FILE', nargs='+', default=[], help='gendered words, or a '
                    'male and a female word file; default: the built-in list; none: names only')
  data.add_argument('--names', metavar='FILE', nargs='+', help='counts of first names: names are '
                    'swapped too')
  data.add_argument('--name_gender', choices=('same', 'flip', 'random'), default='flip',
                    help='of the name that replaces another')
  data.add_argument('--least_count', type=int, default=1, metavar='N',
                    help='rarer names are neither replaced nor drawn')
  data.add_argument('--letters', default='A-Z', help='initials of the names that are replaced')
  model = parser.add_argument_group('train: model')
  model.add_argument('--workdir', metavar='DIR', help='model directory to write; the same command '
                     'continues it')
  model.add_argument('--init', metavar='DIR', help='BERT or ALBERT with MLM head to train further; '
                     'default: a new one')
  model.add_argument('--kind', choices=('bert', 'albert'), default='bert', help='of a new model')
  for name, default, words in (
      ('layers', 2, 'of a new model'), ('dim', 128, 'width of a new model'),
      ('heads', 4, 'of a new model'), ('embedding_dim', 0, 'of a new ALBERT; 0: at most 128'),
      ('vocab_size', 8000, 'word pieces of a new model')):
    model.add_argument(f'--{name}', type=int, default=default, help=words)
  model.add_argument('--hidden_dropout', type=float, help='default: of the checkpoint, or 0.1 '
                     '(ALBERT: 0)')
  model.add_argument('--attention_dropout', type=float, help='likewise')
  model.add_argument('--freeze', default='none', metavar='none|embedding|K|all',
                     help='what does not move; K: embedding and the first K layers')
  fit = parser.add_argument_group('train: optimisation')
  for name, default, words in (
      ('steps', 2000, 'updates'), ('batch_size', 64, 'rows'), ('log_every', 100, 'steps'),
      ('eval_every', 500, 'steps'), ('checkpoint_every', 500, 'steps')):
    fit.add_argument(f'--{name}', type=int, default=default, help=words)
  fit.add_argument('--learning_rate', type=float, help='default 1e-3, with --init 5e-5')
  fit.add_argument('--warmup_steps', type=int, help='default: a tenth of the steps')
  fit.add_argument('--weight_decay', type=float, default=0.01)
  fit.add_argument('--mask_share', type=float, default=0.15)
  fit.add_argument('--whole_words', action='store_true', help='mask words whole')
  devices = parser.add_argument_group('train: devices')
  add_distributed_option(devices)
  for name, default, words in (
      ('slices', 1, 'pod slices that the data-centre network joins'),
      ('data', -1, 'rows are split over slices x data x fsdp; -1: what the others leave'),
      ('fsdp', 1, 'parts of the parameters, beside data'), ('model', 1, 'parts of each matrix')):
    devices.add_argument(f'--mesh.{name}', type=int, default=default, help=words,
                         dest=f'mesh_{name}')
  look = parser.add_argument_group('pronouns')
  look.add_argument('--model', metavar='DIR', nargs='+', default=[], help='BERT or ALBERT')
  look.add_argument('--shares', metavar='FILE', help='table of occupation and bls_pct_female')


def _masked_lm(options: argparse.Namespace) -> None:
  if options.distributed and options.action != 'train':
    raise UserError(f'--distributed belongs to masked-lm train, not to {options.action}')
  {'corpus': _corpus, 'train': _train, 'pronouns': _pronouns}[options.action](options)


def _corpus(options: argparse.Namespace) -> None:
  if not options.output:
    raise UserError('masked-lm corpus needs --output=DIR')
  if not 0 <= options.strength <= 1:
    raise UserError(f'--strength={options.strength} is not in [0, 1]')
  if options.sentences < 1 or options.seed < 0:
    raise UserError('--sentences must be positive and --seed must not be negative')
  from fairjax.data.planted_gender import write_corpus, write_tables
  from fairjax.data.planted_gender_tasks import write_bios, write_sts
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
        'tasks stsb/ and bios/ of `fairjax correlations`')


def _train(options: argparse.Namespace) -> None:
  from fairjax.masked import command
  command.check(options)
  join_processes(options)
  from fairjax.commands.masked_training import train
  card = train(options, log_line)
  if not processes.is_first():
    return
  if options.json:
    print(json.dumps(card, indent=2))
    return
  found = card['result']
  print(f"{options.workdir}: {card['steps']} steps, validation loss {found['loss']:.4f}, accuracy "
        f"{found['accuracy']:.4f} at {found['places']:,.0f} masked places, "
        f"{found['skipped_updates']} updates skipped")


def _pronouns(options: argparse.Namespace) -> None:
  if not options.model or not options.shares:
    raise UserError('masked-lm pronouns needs --model=DIR and --shares=FILE')
  from fairjax.masked.pronouns import SENTENCES, compare_shares, read_shares
  from fairjax.measure.human_agreement import correlate, pearson
  from fairjax.pretrained import load_pretrained
  shares = read_shares(options.shares)
  results: dict[str, dict[str, Any]] = {}
  for directory in options.model:
    found, planted, slope = compare_shares(load_pretrained(directory, 'mlm'), shares)
    r = correlate(pearson, found, planted, list(shares), resamples=2000, seed=options.seed)
    results[directory] = {
      'r': r.to_dict(), 'sentences': len(SENTENCES), 'slope': slope,
      'p_she': dict(zip(shares, found.round(4).tolist(), strict=True))}
  if options.json:
    print(json.dumps(results, indent=2))
    return
  print(f'P(she) / (P(she) + P(he)) in {len(SENTENCES)} sentences about each of {len(shares)} '
        'professions against their share; binary pronouns only\n')
  print(_table(results))


def _table(results: dict[str, dict[str, Any]]) -> str:
  """A Markdown table: one row a model."""
  lines = ['| model | Pearson r (95 %) | slope | lowest | highest | n |',
           '| :-- | --: | --: | --: | --: | --: |']
  for directory, found in results.items():
    r, p = found['r'], found['p_she']
    value = '-' if r['value'] is None else f"{r['value']:.3f}"
    if r['low'] is not None:
      value += f" ({r['low']:.3f}, {r['high']:.3f})"
    slope = '-' if found['slope'] is None else f"{found['slope']:.3f}"
    low, high = (f'{name} {p[name]:.3f}' for name in (min(p, key=p.get), max(p, key=p.get)))
    lines.append(f"| {directory} | {value} | {slope} | {low} | {high} | {r['n']} |")
  return '\n'.join(lines)


VERBS = (
  Verb('masked-lm', 'train a BERT or ALBERT on the masked-word objective, with CDA or dropout',
       'fairjax masked-lm train --data=corpus/train.txt --valid=corpus/valid.txt --rows=sentence '
       '--max_length=32 --steps=1500 --workdir=runs/mlm', _add_options, _masked_lm),
)
