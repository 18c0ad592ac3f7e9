"""Batches of the data room for the curriculum: `fairjax.train.Feed` on prepared data."""

from collections.abc import Callable

from fairjax.config import Config, ModelConfig


class PreparedFeed:
  """Batches of the data room for the curriculum."""

  def __init__(self, prepared, model: ModelConfig, config: Config, log: Callable[[str], None]):
    from fairjax.train import derive_seed
    self._prepared, self._model, self._debias, self._log = prepared, model, config.debias, log
    self._reader = config.data.reader
    self._seed = derive_seed(config.seed, 'branches')
    self.vocabulary_fingerprint = prepared.vocabulary.fingerprint
    self.attribute_fingerprint = prepared.attribute.fingerprint

  def train(self, split: str, *, batch_size: int, start_step: int, branches: bool):
    """This process's rows from a step on, as `data.reader` reads them."""
    from fairjax.data.streams import token_rows, train_batches
    from fairjax.train.curriculum import process_shard
    store = self._prepared.store(split)
    rows = token_rows(store, batch_size=batch_size, segment_len=self._model.segment_len)
    self._log(f'[data] {split}: {rows.steps_per_epoch:,} steps an epoch; {rows.dropped_tokens:,} '
              f'of {store.tokens:,} tokens do not fill the rows and are left out')
    return train_batches(
      self._prepared, split, batch_size=batch_size, segment_len=self._model.segment_len,
      start_step=start_step, seed=self._seed, shard=process_shard(), reader=self._reader, branches={
        'num_branches': self._debias.branches_per_row,
        'num_pieces': self._debias.pieces_per_branch} if branches else None)

  def valid(self, *, batch_size: int):
    """This process's rows of the validation split, every token once."""
    from fairjax.data.streams import eval_batches
    from fairjax.train import own_rows
    return own_rows(eval_batches(self._prepared.store('valid'), batch_size=batch_size,
                                 segment_len=self._model.segment_len))

  def batch_name(self, split: str, step: int, *, batch_size: int) -> str:
    """Split, epoch and segment of a step."""
    from fairjax.data.streams import token_rows
    rows = token_rows(self._prepared.store(split), batch_size=batch_size,
                      segment_len=self._model.segment_len)
    return f'split {split}, {rows.describe(step)}, {batch_size} rows'
