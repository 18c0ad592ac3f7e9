"""The data of a run, and batches of them for the curriculum: `fairjax.train.Feed`."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

from fairjax.config import TFDS_SOURCES, Config, ModelConfig
from fairjax.config_files import step1_run
from fairjax.job.workdir import data_folder, vocabulary_folder
from fairjax.vocabulary import load_vocabulary


def run_data(config: Config, workdir: pathlib.Path, prepare: Callable[..., Any]) -> Any:
  """`PreparedData` of a run: its own, or those of the run that `step1_from` names.

  The spans of sensitive tokens belong to one attribute, so another one has stores of its own, in
  the same vocabulary and of the same documents.

  Args:
    config: of the run.
    workdir: of the run.
    prepare: `(config, folder, vocabulary=None)` makes what is missing.

  Raises:
    UserError: the documents have changed since step 1.
  """
  from fairjax.data.prepare import check_unchanged, open_prepared, read_json
  folder = data_folder(config, workdir)
  if step1_run(config, workdir) is None:
    return prepare(config, folder)
  if folder.parent != workdir:
    return open_prepared(folder)
  first = vocabulary_folder(config, workdir).parent
  if config.data.source in TFDS_SOURCES and not config.data.tfds_dir:
    config = dataclasses.replace(
      config, data=dataclasses.replace(config.data, tfds_dir=str(first / 'tfds')))
  found = prepare(config, folder, vocabulary=load_vocabulary(first / 'vocabulary'))
  check_unchanged(folder, *(
    {key: value for key, value in (read_json(place / 'inputs.json') or {}).items()
     if key not in ('attribute', 'vocabulary')} for place in (first, folder)))
  return found


class PreparedFeed:
  """Batches of the data room for the curriculum, of a run whose templates tell values apart."""

  def __init__(self, prepared, model: ModelConfig, config: Config, log: Callable[[str], None]):
    from fairjax.generate import check_inputs
    from fairjax.job.model_measures import run_prefixes
    from fairjax.train import derive_seed
    heldout = config.data.source == 'planted' and config.sample.heldout_prefixes
    for chosen in (False, True)[:1 + heldout]:  # before the training, not after it
      check_inputs(run_prefixes(prepared.attribute, heldout=chosen), prepared.attribute,
                   prepared.vocabulary)
    self._prepared, self._model, self._debias, self._log = prepared, model, config.debias, log
    self._reader = config.data.reader
    self._seed = derive_seed(config.seed, 'branches')
    self.vocabulary_fingerprint = prepared.vocabulary.fingerprint
    self.attribute_fingerprint = prepared.attribute.fingerprint

  def train(self, split: str, *, batch_size: int, start_step: int, branches: bool):
    """This process's rows from a step on, as `data.reader` reads them."""
    from fairjax.data.rows import token_rows
    from fairjax.data.streams import train_batches
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
    from fairjax.data.rows import token_rows
    rows = token_rows(self._prepared.store(split), batch_size=batch_size,
                      segment_len=self._model.segment_len)
    return f'split {split}, {rows.describe(step)}, {batch_size} rows'
