"""Masked language models from text, in a workdir: stores, rows, training."""

import pathlib
from collections.abc import Callable
from typing import Any, cast

from fairjax import processes
from fairjax.config import MeshConfig
from fairjax.data.prepare import PreparedSentences, open_sentences, prepare_sentences
from fairjax.data.sentence_text import SentenceCorpus
from fairjax.errors import UserError
from fairjax.pretrained.masked_lm import (
  PLAN,
  Settings,
  Sizes,
  check_fit,
  from_checkpoint,
  from_vocabulary,
  make_mesh,
  train_masked,
  with_dropout,
)
from fairjax.pretrained.masked_rows import lay_out, special_tokens, tells_words_apart
from fairjax.pretrained.start import Start, check_free, new_tokenizer
from fairjax.run.workdir import check_shared
from fairjax.vocabulary import PieceEncoder

Log = Callable[[str], None]


def train_on_text(
  corpus: SentenceCorpus, workdir: pathlib.Path, *, init: str | None, sizes: Sizes,
  settings: Settings, mesh: MeshConfig, rows: str, max_length: int | None = None,
  hidden_dropout: float | None = None, attention_dropout: float | None = None, log: Log,
) -> dict[str, Any]:
  """Trains a masked language model on a text; the same call continues it."""
  # The first of several processes prepares the text and writes the model; all train.
  log = log if processes.is_first() else lambda line: None
  # Everything that can be refused early is checked before the text is read.
  devices = make_mesh(mesh, field='--mesh.')
  start = from_checkpoint(init, log=log) if init else None
  if start is not None:
    if max_length is not None and max_length > start.max_length:
      raise UserError(f'--max-length={max_length} is too much: {init} reads '
                      f'{start.max_length} tokens')
    check_fit(start, settings, devices)
  if not (workdir / PLAN).is_file():
    check_free(workdir, option='--workdir')
  if processes.is_first():
    workdir.mkdir(parents=True, exist_ok=True)
  check_shared(workdir)
  prepared = _prepare(corpus, workdir / 'data', start, sizes, log)
  encoder = cast(PieceEncoder, prepared.encoder)
  if start is None:
    start = from_vocabulary(encoder.vocabulary(), sizes, seed=settings.seed, log=log)
  start = with_dropout(start, hidden=hidden_dropout, attention=attention_dropout)
  special = special_tokens(start.tokenizer, pad_id=start.arch.pad_id, where=init or 'the new model',
                           vocab_size=start.arch.vocab_size)
  if settings.whole_words and not tells_words_apart(start.tokenizer):
    raise UserError(f'{init}: its tokenizer does not tell words apart: leave --whole-words out')
  survey, laid_out = prepared.survey, []
  for split, what, purpose, apart in (
      ('train', 'training', 'learn', survey.train),  # begins a row
      ('valid', 'validation', 'validate', None)):
    store = prepared.stores[split]
    laid_out.append(lay_out(
      store.open_tokens(), store.open_documents()[:, 0], encoder, special, form=rows,
      max_length=min(sizes.max_length, start.max_length), what=f'the {what} text',
      digest=store.sha256, apart=apart))
    counts = laid_out[-1].counts
    log(f"[data] to {purpose}: {counts['rows']:,} rows of {counts['tokens']:,} pieces, "
        f"{counts['unknown_tokens']:,} unknown; {counts['split_sentences']:,} sentences are longer "
        f"than a row and go into several, {counts['empty_sentences']:,} have no piece")
  train, valid = laid_out
  source: dict[str, Any] = {
    'rows': rows, 'read': dict(survey.read), 'train_documents': survey.train,
    'valid_documents': survey.valid}
  if prepared.cda:
    source['cda'] = dict(prepared.cda)
  with processes.StopSignal().installed() as stop:
    return train_masked(start, train, valid, workdir, settings=settings, source=source, log=log,
                        stop=stop, mesh=devices)


def _prepare(corpus: SentenceCorpus, folder: pathlib.Path, start: Start | None, sizes: Sizes,
             log: Log) -> PreparedSentences:
  """Tokenizer and token stores; the first process makes what is missing."""
  if not processes.is_first():
    processes.share()  # then the first has made everything
    return open_sentences(folder)
  if start is not None:
    given = PieceEncoder.of(start.tokenizer)
    tokenizer: dict[str, Any] = {'given': given.fingerprint}

    def make_encoder(texts):
      return given
  else:
    tokenizer = {'wordpiece': sizes.vocab_size}

    def make_encoder(texts):
      sentences = (line for text in texts() for line in text.split('\n'))
      return PieceEncoder.of(new_tokenizer(
        sentences, vocab_size=sizes.vocab_size, max_length=sizes.max_length)[0])

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
