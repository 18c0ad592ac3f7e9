"""The verb `masked-lm`: a planted corpus, training of BERT or ALBERT, a look at the result."""

import argparse
import json
import pathlib
from collections.abc import Callable
from typing import Any

from fairjax import processes
from fairjax.cli.verb import Verb, add_distributed_option, join_processes, log_line
from fairjax.config import MeshConfig, TrainConfig
from fairjax.errors import UserError

# The options of `masked-lm train`: which cannot be, and the optimisation that they ask for.

def check(options: argparse.Namespace) -> None:
  """Raises `UserError` for options that cannot be, before anything is read."""
  if not options.workdir:
    raise UserError('masked-lm train needs --workdir=DIR')
  if not options.data:
    raise UserError('masked-lm train needs --data=FILE')
  for name in ('layers', 'dim', 'heads', 'vocab_size', 'steps', 'batch_size', 'log_every',
               'eval_every', 'checkpoint_every'):
    if getattr(options, name) < 1:
      raise UserError(f'--{name} must be positive')
  for name in ('hidden_dropout', 'attention_dropout'):
    rate = getattr(options, name)
    if rate is not None and not 0 <= rate < 1:
      raise UserError(f'--{name}={rate} is not in [0, 1)')
  if not 0 < options.mask_share < 1:
    raise UserError(f'--mask_share={options.mask_share} is not in (0, 1)')
  if options.learning_rate is not None and not 0 < options.learning_rate < 1:
    raise UserError(f'--learning_rate={options.learning_rate} is not in (0, 1)')
  for name, least in (('slices', 1), ('fsdp', 1), ('model', 1), ('data', -1)):
    value = getattr(options, f'mesh_{name}')
    if value < least or not value:
      raise UserError(f'--mesh.{name}={value} is no number of parts')
  if options.max_length < 8:
    raise UserError(f'--max_length={options.max_length} leaves no room for a sentence: give at '
                    'least 8')
  if options.dim % options.heads:
    raise UserError(f'--heads={options.heads} does not divide --dim={options.dim}')
  if options.embedding_dim < 0 or options.weight_decay < 0 or options.seed < 0:
    raise UserError('--embedding_dim, --weight_decay and --seed must not be negative')
  if options.warmup_steps is not None and not 0 <= options.warmup_steps <= options.steps:
    raise UserError(f'--warmup_steps={options.warmup_steps} is not between 0 and '
                    f'--steps={options.steps}')
  if options.embedding_dim and options.kind != 'albert':
    raise UserError('--embedding_dim belongs to --kind=albert')
  if not options.cda and (options.pairs or options.names):
    raise UserError('--pairs and --names belong to --cda=one or --cda=two')
  if len(options.pairs) > 2:
    raise UserError('--pairs is one file of pairs, or a file of male and one of female words')


def train_config(options: argparse.Namespace) -> TrainConfig:
  """The optimisation that the options ask for."""
  rate = options.learning_rate
  if rate is None:
    rate = 5e-5 if options.init else 1e-3
  warmup = options.warmup_steps
  return TrainConfig(
    steps=options.steps, batch_size=options.batch_size, learning_rate=rate,
    warmup_steps=options.steps // 10 if warmup is None else warmup, schedule='linear',
    clip_norm=1.0, weight_decay=options.weight_decay, log_every=options.log_every,
    eval_every=options.eval_every, checkpoint_every=options.checkpoint_every)


def mesh_config(options: argparse.Namespace) -> MeshConfig:
  """The mesh that the options ask for."""
  return MeshConfig(slices=options.mesh_slices, data=options.mesh_data, fsdp=options.mesh_fsdp,
                    model=options.mesh_model)


# `masked-lm train`: text becomes token stores, stores become rows, a model is trained.

Log = Callable[[str], None]


def train(options: argparse.Namespace, log: Log) -> dict[str, Any]:
  """Trains as the options of the verb say; returns the card.

  In a group of processes the first prepares the text, writes the model and tells of it; all train.

  Args:
    options: of the verb, checked by `command.check`.
    log: called with lines of progress.

  Raises:
    UserError: bad options, text, checkpoint, or a workdir of another training.
    Preempted: a signal came; all is saved.
  """
  from fairjax.pretrained.masked_lm import (
    PLAN,
    Settings,
    Sizes,
    check_free,
    check_mesh,
    from_checkpoint,
    from_vocabulary,
    make_mesh,
    train_masked,
    with_dropout,
  )
  from fairjax.pretrained.masked_rows import lay_out, special_tokens, tells_words_apart
  from fairjax.processes import StopSignal
  from fairjax.run.workdir import check_shared
  workdir = pathlib.Path(options.workdir)
  log = log if processes.is_first() else lambda line: None
  # What cannot be is said before much is read.
  mesh = make_mesh(mesh_config(options), field='--mesh.')
  corpus = _corpus(options, log)
  start = from_checkpoint(options.init, log=log) if options.init else None
  if start is not None:
    check_mesh(start.params, start.arch, mesh)
  if not (workdir / PLAN).is_file():
    check_free(workdir)
  if processes.is_first():
    workdir.mkdir(parents=True, exist_ok=True)
  check_shared(workdir)
  prepared = _prepare(options, corpus, start, log)
  if start is None:
    sizes = Sizes(kind=options.kind, layers=options.layers, dim=options.dim, heads=options.heads,
                  vocab_size=options.vocab_size, max_length=options.max_length,
                  embedding_dim=options.embedding_dim)
    start = from_vocabulary(prepared.encoder.vocabulary(), sizes, seed=options.seed, log=log)
  start = with_dropout(start, hidden=options.hidden_dropout, attention=options.attention_dropout)
  special = special_tokens(start.tokenizer, pad_id=start.arch.pad_id,
                           where=options.init or 'the new model')
  if options.whole_words and not tells_words_apart(start.tokenizer):
    raise UserError(f'{options.init}: its tokenizer does not tell words apart: leave --whole_words '
                    'out')
  rows = []
  for split, what, apart in (('train', 'training', prepared.survey.train),  # no row with both
                             ('valid', 'validation', None)):
    store = prepared.stores[split]
    rows.append(lay_out(
      store.open_tokens(), store.open_documents()[:, 0], prepared.encoder, special,
      form=options.rows, max_length=min(options.max_length, start.max_length),
      what=f'the {what} text', digest=store.sha256, apart=apart))
    _tell(split, rows[-1].counts, log)
  with StopSignal().installed() as stop:
    return train_masked(start, *rows, workdir, settings=Settings(
      train=train_config(options), mask_share=options.mask_share,
      whole_words=options.whole_words, freeze=options.freeze, seed=options.seed),
      source=_source(options, prepared), log=log, stop=stop,
      mesh=mesh)


def _corpus(options: argparse.Namespace, log: Log):
  """The documents that the options name."""
  from fairjax.counterfactual import GenderSwap, read_names, read_word_pairs
  from fairjax.data.sentence_text import Augmentation, SentenceCorpus
  augmentation = None
  if options.cda:
    names = None
    if options.names:
      names = read_names(options.names, least_count=options.least_count)
    pairs = None if options.pairs == ['none'] else read_word_pairs(*options.pairs)
    for place in pairs.turned if pairs else ():
      log(f'[data] {place}: the female word comes first there; the pair is read the other way')
    augmentation = Augmentation(GenderSwap(
      pairs, names, options.seed, name_gender=options.name_gender, letters=options.letters),
      options.cda)
  return SentenceCorpus(
    tuple(options.data), tuple(options.valid) if options.valid else None, layout=options.layout,
    text_field=options.text_field, seed=options.seed, augmentation=augmentation)


def _prepare(options: argparse.Namespace, corpus, start, log: Log):
  """Tokenizer and token stores in the workdir; the first process makes what is missing."""
  from fairjax.data.prepare import open_sentences, prepare_sentences
  from fairjax.pretrained.classifier import new_tokenizer
  from fairjax.vocabulary import PieceEncoder
  folder = pathlib.Path(options.workdir) / 'data'
  if not processes.is_first():
    processes.share()  # then the first has made everything
    return open_sentences(folder)
  if start is not None:
    given = PieceEncoder.of(start.tokenizer)
    tokenizer: dict[str, Any] = {'given': given.fingerprint}

    def make_encoder(texts):
      return given
  else:
    tokenizer = {'wordpiece': options.vocab_size}

    def make_encoder(texts):
      sentences = (line for text in texts() for line in text.split('\n'))
      return PieceEncoder.of(new_tokenizer(
        sentences, vocab_size=options.vocab_size, max_length=options.max_length)[0])

  prepared = prepare_sentences(
    corpus, folder, tokenizer=tokenizer, make_encoder=make_encoder, log=log)
  processes.share()
  survey, cda = prepared.survey, prepared.cda
  log(f'[data] {survey.train:,} documents to learn, {survey.valid:,} to validate; read: '
      + ', '.join(f'{name} {n:,}' for name, n in survey.read.items() if n))
  if cda:
    log(f"[data] CDA, {cda['sided']}-sided: {cda['changed']:,} of {cda['sentences']:,} sentences "
        f"have a counterfactual ({cda['swaps']:,} swaps), {cda['dropped']:,} neutral ones left out")
  return prepared


def _tell(split: str, counts: dict[str, int], log: Log) -> None:
  name = {'train': 'learn', 'valid': 'validate'}[split]
  log(f"[data] to {name}: {counts['rows']:,} rows of {counts['tokens']:,} pieces, "
      f"{counts['unknown_tokens']:,} unknown; {counts['split_sentences']:,} sentences are longer "
      f"than a row and go into several, {counts['empty_sentences']:,} have no piece")


def _source(options: argparse.Namespace, prepared) -> dict[str, Any]:
  """What the card says of the text."""
  survey = prepared.survey
  source = {'rows': options.rows, 'read': dict(survey.read), 'train_documents': survey.train,
            'valid_documents': survey.valid}
  return source | ({'cda': dict(prepared.cda)} if prepared.cda else {})


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
  {'corpus': _write_corpus, 'train': _train, 'pronouns': _pronouns}[options.action](options)


def _write_corpus(options: argparse.Namespace) -> None:
  if not options.output:
    raise UserError('masked-lm corpus needs --output=DIR')
  if not 0 <= options.strength <= 1:
    raise UserError(f'--strength={options.strength} is not in [0, 1]')
  if options.sentences < 1 or options.seed < 0:
    raise UserError('--sentences must be positive and --seed must not be negative')
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
        'tasks stsb/ and bios/ of `fairjax correlations`')


def _train(options: argparse.Namespace) -> None:
  check(options)
  join_processes(options)
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
  from fairjax.measure.human.ratings import correlate, pearson
  from fairjax.pretrained import load_pretrained
  from fairjax.pretrained.masked_pronouns import SENTENCES, compare_shares, read_shares
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
