"""`masked-lm train`: text becomes token stores, stores become rows, a model is trained."""

import argparse
import pathlib
from collections.abc import Callable
from typing import Any

from fairjax import processes
from fairjax.errors import UserError
from fairjax.masked import command

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
  from fairjax.job.group import check_shared
  from fairjax.masked.rows import lay_out, special_tokens, tells_words_apart
  from fairjax.masked.sharding import check_mesh
  from fairjax.masked.start import (
    Sizes,
    check_free,
    from_checkpoint,
    from_vocabulary,
    with_dropout,
  )
  from fairjax.masked.training import PLAN, Settings, make_mesh, train_masked
  from fairjax.train import StopSignal
  workdir = pathlib.Path(options.workdir)
  log = log if processes.is_first() else lambda line: None
  # What cannot be is said before much is read.
  mesh = make_mesh(command.mesh_config(options), field='--mesh.')
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
      train=command.train_config(options), mask_share=options.mask_share,
      whole_words=options.whole_words, freeze=options.freeze, seed=options.seed),
      source=_source(options, prepared), log=log, stop=stop,
      mesh=mesh)


def _corpus(options: argparse.Namespace, log: Log):
  """The documents that the options name."""
  from fairjax.counterfactual import GenderSwap, read_names, read_word_pairs
  from fairjax.data.sentence_corpus import Augmentation, SentenceCorpus
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
  from fairjax.classifier.start import new_tokenizer
  from fairjax.data.sentence_stores import open_sentences, prepare_sentences
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
