"""Batches of rows, for training and for perplexity, as dictionaries of NumPy arrays.

A Transformer-XL reads contiguous rows and keeps its memory. A decoder, whose `start_ids` are given,
reads rows of documents that do not see each other (`token_store.document_rows`).

Letters: B rows of the global batch, b rows of this host, T segment length, K branches per row, P
pieces per branch.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fairjax.counterfactual.branches import BranchBuilder
from fairjax.data.prepare import PreparedData, import_seqio_tasks
from fairjax.data.token_store import (
  Piece,
  Rows,
  TokenStoreInfo,
  VerifiedTokens,
  document_rows,
  text_places,
  token_rows,
)
from fairjax.errors import UserError


def train_batches(
  prepared: PreparedData, split: str, *, batch_size: int, segment_len: int, start_step: int = 0,
  seed: int = 0, shard: tuple[int, int] = (0, 1), branches: Mapping[str, int] | None = None,
  reader: str = 'numpy', start_ids: Sequence[int] | None = None,
) -> Iterator[dict[str, np.ndarray]]:
  """Endless batches from a step on, each a function of (data, seed, step) only.

  inputs, targets: `[b, T]` int32; reset: `[b]` bool. With `branches` (`num_branches`,
  `num_pieces`, `tail`) also the arrays of `BranchBuilder`, each with b in front. `shard`: (index,
  count) of this host. `start_ids` of a decoder: the arrays of `document_rows`; None: a
  Transformer-XL reads the rows.
  """
  store = prepared.store(split)
  rows = token_rows(store, batch_size=batch_size, segment_len=segment_len, shard=shard,
                    start_ids=start_ids)
  builder = None
  if branches is not None:
    builder = BranchBuilder(
      prepared.attribute, prepared.vocabulary, segment_len=segment_len, seed=seed, **branches)
  if reader == 'seqio':
    return import_seqio_tasks().seqio_batches(
      store, builder, batch_size=batch_size, segment_len=segment_len, start_step=start_step,
      shard=shard, start_ids=start_ids)
  return _numpy_batches(rows, builder, start_step)


def _numpy_batches(rows: Rows, builder: BranchBuilder | None, step: int
                   ) -> Iterator[dict[str, np.ndarray]]:
  while True:
    batch = rows.read(step)
    if builder is not None:
      positions = batch.get('positions', [None] * len(rows.rows))
      built = [
        builder.build(inputs, spans, step=step, row=row, positions=p)
        for inputs, spans, row, p in zip(
          batch['inputs'], rows.spans(step), rows.rows.tolist(), positions, strict=True)]
      batch |= {name: np.stack([b[name] for b in built]) for name in built[0]}
    yield batch
    step += 1


def eval_batches(
  store: TokenStoreInfo, *, batch_size: int, segment_len: int,
  start_ids: Sequence[int] | None = None,
) -> Iterator[dict[str, np.ndarray]]:
  """Batches in which every token of a store is a target exactly once, for perplexity (H-25).

  inputs, targets: `[B, T]` int32; weights: `[B, T]` float32, 0 after a row's end; reset: `[B]`.
  `start_ids` of a decoder: the arrays of `document_rows`. A document that a row holds is whole in
  one, a longer one is read in parts of its own, so that its likelihood does not depend on others.
  Without start ids nothing predicts its first token, which is then no target.
  """
  if not store.tokens:
    raise UserError(f"split '{store.split}' holds no document: nothing to evaluate")
  tokens = store.open_tokens()
  if start_ids is not None:
    rows = _whole_documents(store.open_documents()[:, 0], segment_len, start_ids)
    return (document_rows(tokens, [*part, *[()] * (batch_size - len(part))],
                          segment_len=segment_len, start_ids=start_ids)
            for part in iter(lambda: list(itertools.islice(rows, batch_size)), []))
  return _eval_batches(tokens, batch_size, segment_len, int(tokens[-1]))  # a document's end


def _whole_documents(
  ends: np.ndarray, segment_len: int, start_ids: Sequence[int]) -> Iterator[list[Piece]]:
  """Rows of whole documents in their order; a row is over where the next one does not fit."""
  most, starts = text_places(segment_len, start_ids), len(start_ids)
  row: list[Piece] = []
  begin = used = 0
  for end in ends.tolist():
    for first in range(begin, max(end - 1, begin + bool(starts)), most):
      piece = Piece(first, min(most, end - 1 - first), first == begin)
      if used + starts + piece.size > segment_len:
        yield row
        row, used = [], 0
      row.append(piece)
      used += starts + piece.size
    begin = end
  if row:
    yield row


def _eval_batches(tokens: VerifiedTokens | np.ndarray, batch_size: int, segment_len: int,
                  eos_id: int) -> Iterator[dict[str, np.ndarray]]:
  row_len = -(-len(tokens) // batch_size)
  for offset in range(0, row_len, segment_len):
    inputs, targets = np.zeros((2, batch_size, segment_len), np.int32)
    weights = np.zeros((batch_size, segment_len), np.float32)
    for row in range(batch_size):
      start = row * row_len + offset
      end = min(start + segment_len, (row + 1) * row_len, len(tokens))
      if start >= end:
        continue
      size = end - start
      targets[row, :size] = tokens[start:end]
      inputs[row, 1:size] = tokens[start:end - 1]
      inputs[row, 0] = tokens[start - 1] if start else eos_id
      weights[row, :size] = 1
    yield {'inputs': inputs, 'targets': targets, 'weights': weights,
           'reset': np.full(batch_size, offset == 0)}
