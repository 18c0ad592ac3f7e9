"""The verb `masked-lm`: options are checked, text becomes rows, a model is trained."""

import argparse
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

from fairjax.config import TrainConfig
from fairjax.counterfactual.cda import GenderSwap
from fairjax.counterfactual.first_names import read_names
from fairjax.counterfactual.word_pairs import read_word_pairs
from fairjax.errors import UserError
from fairjax.masked.corpus import Augmentation, make_corpus

Log = Callable[[str], None]


def train(
  options: argparse.Namespace, documents: Iterable[str], valid: Iterable[str] | None, *,
  read: Callable[[], dict[str, Any]], split: Callable[[str], list[str]], log: Log,
) -> dict[str, Any]:
  """Trains as the options of the verb say; returns the card.

  Args:
    options: of the verb, checked by `check`.
    documents: to learn.
    valid: documents for the validation loss; None: some are held out.
    read: what reading both has counted; called when they are read.
    split: document -> its sentences.
    log: called with lines of progress.

  Raises:
    UserError: bad options, text, checkpoint, or a workdir of another training.
    Preempted: a signal came; all is saved.
  """
  from fairjax.masked.rows import make_rows, special_tokens, tells_words_apart
  from fairjax.masked.start import Sizes, from_checkpoint, from_scratch, with_dropout
  from fairjax.masked.training import Settings, train_masked
  from fairjax.train import StopSignal
  swap = augmentation(options)
  for place in swap.swap.pairs.turned if swap and swap.swap.pairs else ():
    log(f'[data] {place}: the female word comes first there; the pair is read the other way')
  start = from_checkpoint(options.init, log=log) if options.init else None  # before much is read
  corpus = make_corpus(documents, valid, split=split, seed=options.seed, augmentation=swap)
  counts = read()
  log(f"[data] {len(corpus.train):,} documents to learn, {len(corpus.valid):,} to validate; read: "
      + ', '.join(f'{name} {n:,}' for name, n in counts.items() if n))
  if 'cda' in corpus.source:
    cda = corpus.source['cda']
    log(f"[data] CDA, {cda['sided']}-sided: {cda['changed']:,} of {cda['sentences']:,} sentences "
        f"have a counterfactual ({cda['swaps']:,} swaps), {cda['dropped']:,} neutral ones left out")
  if start is None:
    sizes = Sizes(kind=options.kind, layers=options.layers, dim=options.dim, heads=options.heads,
                  vocab_size=options.vocab_size, max_length=options.max_length,
                  embedding_dim=options.embedding_dim)
    texts = (sentence for document in corpus.train for sentence in document)
    start = from_scratch(texts, sizes, seed=options.seed, log=log)
  start = with_dropout(start, hidden=options.hidden_dropout,
                       attention=options.attention_dropout)
  length = min(options.max_length, start.max_length)
  special = special_tokens(start.tokenizer, pad_id=start.arch.pad_id,
                           where=options.init or 'the new model')
  if options.whole_words and not tells_words_apart(start.tokenizer):
    raise UserError(f'{options.init}: its tokenizer does not tell words apart: leave --whole_words '
                    'out')
  rows = [make_rows(part, start.tokenizer, special, form=options.rows, max_length=length,
                    what=f'the {name} text', apart=apart)
          for name, part, apart in (
            ('training', corpus.train, corpus.source['train_documents']),  # no row with both
            ('validation', corpus.valid, None))]
  for name, made in zip(('learn', 'validate'), rows, strict=True):
    c = made.counts
    log(f"[data] to {name}: {c['rows']:,} rows of {c['tokens']:,} pieces, "
        f"{c['unknown_tokens']:,} unknown; {c['split_sentences']:,} sentences are longer than a "
        f"row and go into several, {c['empty_sentences']:,} have no piece")
  with StopSignal().installed() as stop:
    return train_masked(start, *rows, pathlib.Path(options.workdir), settings=Settings(
      train=train_config(options), mask_share=options.mask_share,
      whole_words=options.whole_words, freeze=options.freeze, seed=options.seed),
      source={'rows': options.rows, 'read': counts, **corpus.source}, log=log, stop=stop)


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


def augmentation(options: argparse.Namespace) -> Augmentation | None:
  """The CDA that the options ask for; None: none."""
  if not options.cda:
    return None
  names = None
  if options.names:
    names = read_names(options.names, least_count=options.least_count)
  pairs = None if options.pairs == ['none'] else read_word_pairs(*options.pairs)
  return Augmentation(GenderSwap(pairs, names, options.seed, name_gender=options.name_gender,
                                 letters=options.letters), options.cda)
