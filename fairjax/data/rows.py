"""Rows of training batches from a token stream, by arithmetic.

Rows for Transformer-XL: row r of B is a contiguous part of the stream, and step t reads its t-th
segment of T tokens, so that the memory of a row always belongs to the text before. The position in
the data is a function of the step alone: continuing costs nothing and any number of hosts that
divides B reads the same global batch.

Letters: B rows of the global batch, b rows of this host, T segment length.
"""

import numpy as np

from fairjax.data.token_store import TokenStoreInfo, VerifiedTokens
from fairjax.errors import UserError


class TokenRows:
  """Reads the rows of training batches from a token stream, by arithmetic.

  With S = (n - 1) // (B T) steps in an epoch, row r reads n' = S T inputs from token r n' on; the
  target of an input is the next token. The fewer than B T tokens behind the last row are left
  out (`dropped_tokens`). Every epoch reads the same rows again.

  Attributes:
    steps_per_epoch: S.
    dropped_tokens: tokens that are no target in an epoch (the first of the stream apart).
  """

  def __init__(
    self, tokens: np.ndarray | VerifiedTokens, spans: np.ndarray | None = None, *, batch_size: int,
    segment_len: int, shard: tuple[int, int] = (0, 1), name: str = 'the token stream',
  ):
    """Lays out the rows.

    Args:
      tokens: `[n]` integers; read by slices.
      spans: `[m, 3]` matches in order, or None.
      batch_size: B.
      segment_len: T.
      shard: (index, count) of this host; it reads rows index b to (index + 1) b, b = B / count.
      name: what an error calls the stream.

    Raises:
      UserError: fewer than B T + 1 tokens.
      ValueError: the number of hosts does not divide B.
    """
    index, count = shard
    if batch_size % count or not 0 <= index < count:
      raise ValueError(f'shard {index} of {count} is impossible for {batch_size} rows')
    self.tokens, self.batch_size, self.segment_len = tokens, batch_size, segment_len
    self.steps_per_epoch = (len(tokens) - 1) // (batch_size * segment_len)
    if self.steps_per_epoch < 1:
      raise UserError(
        f'{name} holds {len(tokens)} tokens, too few for one batch of {batch_size} rows of '
        f'{segment_len}: lower batch_size or model.segment_len, or use more text')
    self.dropped_tokens = len(tokens) - 1 - self.steps_per_epoch * batch_size * segment_len
    rows = batch_size // count
    self.rows = np.arange(index * rows, (index + 1) * rows)
    self._row_len = self.steps_per_epoch * segment_len
    spans = np.zeros((0, 3), np.int64) if spans is None else np.asarray(spans)
    self._starts, self._ends = np.ascontiguousarray(spans[:, 0]), np.ascontiguousarray(spans[:, 1])
    self._spans = spans

  def read(self, step: int) -> dict[str, np.ndarray]:
    """The rows of this host at a step.

    Returns:
      inputs: `[b, T]` int32.
      targets: `[b, T]` int32, the token after each input.
      reset: `[b]` bool, True at the first step of an epoch: the memory is of other text.
    """
    segment = step % self.steps_per_epoch
    starts = self.rows * self._row_len + segment * self.segment_len
    block = np.empty((len(starts), self.segment_len + 1), np.int32)
    for i, start in enumerate(starts.tolist()):
      block[i] = self.tokens[start:start + self.segment_len + 1]
    return {'inputs': block[:, :-1], 'targets': block[:, 1:],
            'reset': np.full(len(starts), segment == 0)}

  def spans(self, step: int) -> list[np.ndarray]:
    """Matches that lie in the inputs of the segments of a step or reach into them.

    Returns:
      For each row of this host `[k, 3]` int32: first position, position after the last, value
      index; relative to the segment, so below 0 or above T where its border cuts a match.
    """
    starts = self.rows * self._row_len + step % self.steps_per_epoch * self.segment_len
    first = np.searchsorted(self._ends, starts, side='right')
    last = np.searchsorted(self._starts, starts + self.segment_len, side='left')
    found = [self._spans[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    offset = np.zeros((len(starts), 3), np.int64)
    offset[:, :2] = starts[:, None]
    return [(f - o).astype(np.int32) for f, o in zip(found, offset, strict=True)]

  def describe(self, step: int) -> str:
    """Words that find a batch again, e.g. 'epoch 0, segment 3 of 120'."""
    epoch, segment = divmod(step, self.steps_per_epoch)
    return f'epoch {epoch}, segment {segment} of {self.steps_per_epoch}'


def token_rows(
  store: TokenStoreInfo, *, batch_size: int, segment_len: int, shard: tuple[int, int] = (0, 1),
) -> TokenRows:
  """The rows of a store; `steps_per_epoch`, `dropped_tokens` and `describe(step)` tell of them."""
  return TokenRows(
    store.open_tokens(), store.open_spans(), batch_size=batch_size, segment_len=segment_len,
    shard=shard, name=f"split '{store.split}'")
