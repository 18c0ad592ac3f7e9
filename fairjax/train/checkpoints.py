"""Checkpoints of one stage: Orbax, with the identity card and the digest of the parameters.

A stage's folder holds `checkpoints/<step>/`, `metrics.jsonl`, `tensorboard/` and, once finished,
`DONE` (JSON: step, digest, identity, summary). A restore checks the card and the digest.
"""

import json
import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp

from fairjax.errors import UserError
from fairjax.files import write_json
from fairjax.train.identity import Identity, check_identity, params_digest


def done_card(directory: pathlib.Path) -> dict[str, Any] | None:
  """Contents of the stage's DONE marker, or None if the stage is not finished."""
  path = directory / 'DONE'
  return json.loads(path.read_text(encoding='utf-8')) if path.exists() else None


def write_done(
  directory: pathlib.Path, *, step: int, digest: str, identity: Identity, summary: dict[str, Any]
) -> None:
  """Marks the stage finished, atomically."""
  write_json(directory / 'DONE', {
    'step': step, 'digest': digest, 'identity': identity.to_dict(), 'summary': summary})


class CheckpointStore:
  """Saves and restores the train state of one stage."""

  def __init__(self, directory: pathlib.Path, *, keep: int):
    self._directory = directory / 'checkpoints'
    self._directory.mkdir(parents=True, exist_ok=True)
    self._manager = ocp.CheckpointManager(
      self._directory.resolve(),
      options=ocp.CheckpointManagerOptions(
        preservation_policy=ocp.checkpoint_managers.LatestN(keep), cleanup_tmp_directories=True))

  def latest_step(self) -> int | None:
    """Newest committed step, or None."""
    return self._manager.latest_step()

  def save(self, step: int, state: Any, identity: Identity) -> None:
    """Writes a step in the background; `wait` or the next save reports a failure."""
    card = {'identity': identity.to_dict(), 'digest': params_digest(state.params)}
    self._manager.save(step, args=ocp.args.Composite(
      state=ocp.args.StandardSave(state), card=ocp.args.JsonSave(card)))

  def restore(self, step: int, template: Any, identity: Identity) -> Any:
    """Reads a step into the shapes, dtypes and shardings of `template`.

    Raises:
      UserError: the card belongs to another run, or the parameters do not have their digest.
    """
    where = f'{self._directory}/{step}'
    card = self._manager.restore(step, args=ocp.args.Composite(card=ocp.args.JsonRestore())).card
    check_identity(card['identity'], identity, where=where)
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, template)
    state = self._manager.restore(
      step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract))).state
    _check_digest(state.params, card['digest'], where)
    return state

  def wait(self, step: int) -> None:
    """Blocks until everything is written.

    Raises:
      OSError: `step` is not among the committed steps afterwards.
    """
    self._manager.wait_until_finished()
    self._manager.reload()
    if self._manager.latest_step() != step:
      raise OSError(f'checkpoint {step} was not written to {self._directory} '
                    f'(newest: {self._manager.latest_step()}): check the free space')

  def close(self) -> None:
    """Releases the background threads."""
    self._manager.close()


def load_params(directory: pathlib.Path, abstract: Any, identity: Identity | None = None) -> Any:
  """Parameters of a finished stage.

  Args:
    directory: the stage's folder.
    abstract: tree of `jax.ShapeDtypeStruct` (with shardings) of the parameters.
    identity: expected card; None accepts any.

  Raises:
    UserError: unfinished stage, card of another run, other shapes, or damaged parameters.
  """
  done = done_card(directory)
  if done is None:
    raise UserError(f'{directory} holds no finished stage (no DONE): run the training again, it '
                    'continues where it stopped')
  if identity is not None:
    check_identity(done['identity'], identity, where=str(directory))
  path = (directory / 'checkpoints').resolve()
  item = {'params': abstract}
  restore_args = ocp.checkpoint_utils.construct_restore_args(item)
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
    restored = checkpointer.restore(
      path / str(done['step']) / 'state',
      args=ocp.args.PyTreeRestore(item=item, restore_args=restore_args, partial_restore=True))
  _check_digest(restored['params'], done['digest'], f'{path}/{done["step"]}')
  return restored['params']


def _check_digest(params: Any, digest: str, where: str) -> None:
  found = params_digest(params)
  if found != digest:
    raise UserError(f'{where} is damaged: its parameters have digest {found[:12]}..., saved as '
                    f'{digest[:12]}...: move that folder away to fall back to an older step')
