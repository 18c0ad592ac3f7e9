"""Checkpoints of one stage, written by Orbax, with digests of all leaves that a restore compares.

A stage's folder holds `checkpoints/<step>/`, `metrics.jsonl`, `tensorboard/` and, once finished,
`DONE`. A step is a folder `<step>` with the arrays (`state`) and their metadata (`card`): identity,
shapes, dtypes and digests. Orbax writes it under another name and renames it when it is whole, so
that a kill leaves no half step; steps are ordered by their numbers, never by time.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import pathlib
import re
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from jax.experimental import multihost_utils

from fairjax import processes
from fairjax.errors import Damaged, Fault, UserError
from fairjax.files import (
  check_brackets,
  file_sha256,
  json_sha256,
  read_sealed_json,
  write_sealed_json,
)
from fairjax.train.metrics import finite_or_text
from fairjax.train.sharding import to_host

# Digests of the leaves of a train state: a restored state is compared with the saved one.
#
# Each process hashes the shards that it holds, so that saving gathers nothing. A restore gathers
# one leaf at a time on the host and compares it shard by shard, also on another mesh.

LeafDigests = dict[str, dict[str, Any]]
"""Name of a leaf -> `dtype`, `shape` and `shards`: (starts, stops, SHA-256 of the bytes)."""


def leaf_digests(tree: Any) -> LeafDigests:
  """Digests of a tree of `jax.Array`; processes that share them call it together."""
  found: LeafDigests = {}
  own: list[bytes] = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    held = {_bounds(s.index, leaf.shape): s.data for s in leaf.addressable_shards
            if s.replica_id == 0}
    shards = sorted({_bounds(index, leaf.shape)
                     for index in leaf.sharding.devices_indices_map(leaf.shape).values()})
    own += [digest_bytes(held[b]) if b in held else bytes(32) for b in shards]
    found[jax.tree_util.keystr(path)] = {
      'dtype': str(leaf.dtype), 'shape': list(leaf.shape),
      'shards': [[*map(list, bounds), ''] for bounds in shards]}
  digests = np.frombuffer(b''.join(own), np.uint8).reshape(-1, 32)
  if jax.process_count() > 1:  # every shard has its digest from one process and 0 from the others
    digests = multihost_utils.process_allgather(digests).sum(0, dtype=np.uint8)
  names = iter(digests)
  for leaf in found.values():
    for shard in leaf['shards']:
      shard[2] = next(names).tobytes().hex()
  return found


def different_leaves(template: Any, saved_leaves: Mapping[str, Any]) -> list[str]:
  """Lines about names, shapes and dtypes that were saved otherwise than a template has them."""
  wanted = {jax.tree_util.keystr(path): (str(leaf.dtype), list(leaf.shape))
            for path, leaf in jax.tree_util.tree_leaves_with_path(template)}
  saved = {name: (x['dtype'], list(x['shape'])) for name, x in saved_leaves.items()}
  return [f'{name}: {_format_leaf(saved.get(name))} -> {_format_leaf(wanted.get(name))}'
          for name in sorted(saved.keys() | wanted.keys()) if saved.get(name) != wanted.get(name)]


def damaged_leaves(
  tree: Any, saved_leaves: Mapping[str, Any], *, read: Callable[[Any], np.ndarray] = to_host
) -> list[str]:
  """Names of leaves with other bytes than those saved; `read` gets a whole leaf."""
  found = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    name, whole = jax.tree_util.keystr(path), read(leaf)
    saved = saved_leaves[name]
    if str(whole.dtype) != saved['dtype'] or list(whole.shape) != saved['shape'] or any(
        digest_bytes(whole[tuple(map(slice, starts, stops))]).hex() != digest
        for starts, stops, digest in saved['shards']):
      found.append(name)
  return found


def digest_bytes(array: Any) -> bytes:
  """SHA-256 over the bytes of an array in C order."""
  flat = np.ascontiguousarray(np.asarray(array)).reshape(-1)
  return hashlib.sha256(flat.view(np.uint8).data).digest()


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[tuple, tuple]:
  ranges = [s.indices(size) for s, size in zip(index, shape, strict=True)]
  return tuple(r[0] for r in ranges), tuple(r[1] for r in ranges)


def _format_leaf(found: tuple[str, list[int]] | None) -> str:
  return 'none' if found is None else f'{found[0]} {tuple(found[1])}'


@dataclasses.dataclass(frozen=True)
class Identity:
  """Says which model a checkpoint or a file of records is of; fields that a stage lacks are empty.

  Every checkpoint, DONE marker and manifest of records carries it. A checkpoint of another identity
  is refused.
  """

  stage: str  # lm | sentiment | debias
  vocabulary: str  # fingerprint
  config: str  # fingerprint of the fields that this stage depends on
  method: str = ''  # embedding | sentiment | random_projection | none (extended baseline)
  fairness_weight: float = 0.0  # lambda
  attribute: str = ''
  attribute_fingerprint: str = ''
  parent: str = ''  # digest of the parameters that the stage started from
  projection: str = ''  # digest of f_sh (sentiment regularisation and its control)

  def to_dict(self) -> dict[str, Any]:
    """Plain values for JSON."""
    return dataclasses.asdict(self)


def params_digest(params: Any) -> str:
  """SHA-256 over names, dtypes, shapes and bytes of every leaf.

  Equal parameters have equal digests on any mesh; processes that share them call it together.
  """
  digest = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    array = to_host(leaf)
    digest.update(f'{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n'.encode())
    digest.update(np.ascontiguousarray(array).tobytes())
  return digest.hexdigest()


def check_identity(saved: Mapping[str, Any], expected: Identity, *, where: str) -> None:
  """Raises `UserError` naming every field in which a saved identity differs."""
  wanted = expected.to_dict()
  wrong = [
    f'{name} is {_short(saved.get(name))}, expected {_short(value)}'
    for name, value in wanted.items() if saved.get(name) != value
  ]
  if wrong:
    raise UserError(
      f'{where} belongs to another run: {"; ".join(wrong)}. Use another --workdir, or restore the '
      'configuration, vocabulary and parent that it was made with')


def _short(value: Any) -> str:
  text = str(value)
  return text[:12] + '...' if len(text) == 64 else repr(value)


# Hides the stacks of a failed save: one line reports the failure.
#
# When a write fails (a full disk), Orbax logs the stack of each of its threads, closes the event
# loop that TensorStore's other writes still report to, and forgets its other writes, each of which
# prints its stack when the collector finds it: hundreds of lines around the one with the remedy.

_LIBRARY = f'{os.sep}orbax{os.sep}'  # a folder of each of its files


def _without_stack(record: logging.LogRecord) -> bool:
  """Removes the stack of a log record of Orbax."""
  if _LIBRARY in record.pathname:
    record.exc_info = record.exc_text = record.stack_info = None
  return True


def _not_forgotten(record: logging.LogRecord) -> bool:
  """Leaves out what asyncio says of Orbax's writes that nobody awaits any more."""
  first = record.getMessage().partition('\n')[0]
  stack = traceback.walk_tb(record.exc_info[2] if record.exc_info else None)
  return not (first.endswith('exception was never retrieved')
              and (first.startswith('_GatheringFuture')
                   or any(_LIBRARY in frame.f_code.co_filename for frame, _ in stack)))


@functools.cache
def _hide_stacks() -> None:
  """Hides these stacks in this process."""
  logging.getLogger('absl').addFilter(_without_stack)
  logging.getLogger('asyncio').addFilter(_not_forgotten)
  shown = sys.unraisablehook

  def hook(unraisable):
    late = str(unraisable.exc_value) == 'Event loop is closed'
    code = getattr(unraisable.object, 'cr_code', None)
    if not late and (code is None or _LIBRARY not in code.co_filename):
      shown(unraisable)

  sys.unraisablehook = hook


_UNFINISHED = re.compile(r'\d+\.(orbax-checkpoint-tmp.*|deleted)')
_SPARE = 1.1  # free space wanted for one step, by its size


class Restored(NamedTuple):
  """A step that was read."""

  step: int  # its number
  state: Any  # tree of arrays
  final: bool  # whether the stage ended with it
  extra_state: Any  # what was saved besides the state


class CheckpointStore:
  """Saves and restores the train state of one stage."""
  # All processes of a group call every method, on one shared folder. `keep` steps are kept; an
  # older one is removed when the newest was read back and verified.

  def __init__(self, directory: pathlib.Path, *, keep: int, log: Callable[[str], None],
               part: Callable[[str], contextlib.AbstractContextManager] = contextlib.nullcontext):
    check_brackets(directory)
    self._directory = (directory / 'checkpoints').resolve()
    self._keep, self._log, self._part = keep, log, part  # of a `Watch`
    self._thread: threading.Thread | None = None
    self._error: BaseException | None = None
    _hide_stacks()
    self._checkpointer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler())
    if processes.is_first():
      self._directory.mkdir(parents=True, exist_ok=True)
    self._clean()

  def steps(self) -> list[int]:
    """Numbers of the steps in the folder, rising; whether they verify is not known yet."""
    if self._thread is not None:  # what is being written counts
      self._thread.join()
    found = [int(p.name) for p in self._directory.iterdir() if p.name.isdigit() and p.is_dir()]
    return processes.share(sorted(found))

  def save(self, step: int, state: Any, identity: Identity, *, final: bool = False,
           extra_state: Any = None) -> None:
    """Writes a step in the background; `state` may be donated afterwards."""
    # After a failed save it waits for this one. `extra_state`: JSON values for a resumed run.
    error, about = self._settle(), _about(identity, final, extra_state)
    if error is None:
      self._start(step, state, about)
    else:
      self._retry(step, state, about, error)

  def finish(self, step: int, state: Any, identity: Identity, *, final: bool = False,
             extra_state: Any = None) -> None:
    """Writes a step (unless it is being written), waits for it, and checks that it is there."""
    error, about = self._settle(), _about(identity, final, extra_state)
    if error is None and step not in self.steps():
      self._start(step, state, about)
      error = self._settle()
    if error is not None or step not in self.steps():
      self._retry(step, state, about, error)

  def failed(self) -> bool:
    """Whether the save in the background has failed; known at once in a process alone."""
    return processes.count() == 1 and self._error is not None

  def restore(self, template: Any, identity: Identity) -> Restored | None:
    """The newest step that verifies, in the shapes, dtypes and shardings of `template`."""
    # Newer steps that do not verify are moved to `<step>.corrupt` once a good one is found. If
    # there are steps and none verifies, nothing is moved and it raises `UserError`.
    bad: list[tuple[int, str]] = []
    steps = self.steps()
    for step in reversed(steps):
      state, metadata, fault = self._read(step, template, identity)
      if fault is None:
        for number, why in bad:
          self._set_aside(number, why)
        return Restored(step, state, metadata['final'], metadata.get('extra_state'))
      bad.append((step, fault))
    if not bad:
      return None
    raise UserError(
      f'{self._directory} holds {len(bad)} checkpoints and none can be used: '
      + '; '.join(f'step {step}: {why}' for step, why in bad)
      + '. Nothing was changed. Restore the folder from a copy, or move it away to train anew')

  def close(self) -> None:
    """Releases the threads; what a process alone is writing is awaited."""
    if self._thread is not None and processes.count() == 1:
      self._thread.join()
      self._thread = None
    if self._thread is None:  # else a group has failed, and the others may never come
      self._checkpointer.close()

  def _retry(self, step: int, state: Any, about: dict[str, Any],
             error: BaseException | None) -> None:
    """The second attempt, with the state of now: that of the failed save may be donated."""
    self._log(f'WARNING: a checkpoint could not be written to {self._directory} '
              f'({_first_line(error)}): what is left of it is removed, and step {step} is saved')
    self._clean()
    self._start(step, state, about)
    error = self._settle()
    if error is not None or step not in self.steps():
      self._clean()
      raise Fault(
        f'step {step} could not be written to {self._directory}, after a failure before it: '
        f'{_first_line(error)}. Saved are the steps {self.steps()}: fix the disk, then the same '
        'command continues')

  def _start(self, step: int, state: Any, about: dict[str, Any]) -> None:
    self._error = None
    folder = self._directory / str(step)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    content = {'step': step, **about, 'leaves': leaf_digests(state)}
    metadata = content | {'sum': json_sha256(content)}
    error: Exception | None = None
    try:
      if processes.is_first():
        check_space(self._directory, size)
        if folder.exists():  # of a save that did not verify
          self._set_aside(step, 'is written again')
    except OSError as e:
      error = e
    if not processes.agree(error is None):
      self._error = error or OSError('the first process could not start to write')
      return
    try:
      self._checkpointer.save(folder, args=ocp.args.Composite(
        state=ocp.args.StandardSave(state), card=ocp.args.JsonSave(metadata)))
    except Exception as e:  # of many types, see `_read`
      self._error = e
      return

    def complete():
      try:
        with self._part('write'):
          self._checkpointer.wait_until_finished()
          if processes.is_first():
            self._verify(step, shapes)
            self._prune()
      except BaseException as e:  # the main thread reports it
        self._error = e

    self._thread = threading.Thread(target=complete, name='checkpoint', daemon=True)
    self._thread.start()

  def _settle(self) -> BaseException | None:
    """Awaits the save in the background; its error, the same answer in all processes."""
    if self._thread is not None:
      self._thread.join()
      self._thread = None
    error, self._error = self._error, None
    if processes.agree(error is None):
      return None
    return error or OSError('another process could not write its part')

  def _verify(self, step: int, shapes: Any) -> None:
    """Reads a step back, leaf by leaf in this process alone."""
    leaves = self._metadata(step)['leaves']
    # No URL: a name may hold %, # or ?.
    base = {'driver': 'file', 'path': f'{self._directory}/{step}/state/'}

    def read(path):
      store = {'driver': 'ocdbt', 'base': base, 'path': f'{path}/'}
      return tensorstore.open({'driver': 'zarr', 'kvstore': store}, open=True,
                              read=True).result().read().result()

    names = jax.tree_util.tree_map_with_path(  # as Orbax stores them
      lambda path, _: jax.tree_util.keystr(path, simple=True, separator='.'), shapes)
    bad = damaged_leaves(names, leaves, read=read)
    if bad:
      raise OSError(f'step {step} was written, but reads back otherwise: {bad[0]}')

  def _metadata(self, step: int) -> dict[str, Any]:
    found = json.loads((self._directory / str(step) / 'card' / 'metadata').read_bytes())
    if found.pop('sum') != json_sha256(found) or found['step'] != step:
      raise ValueError('they are not what was written')
    return found

  def _read(self, step: int, template: Any, identity: Identity) -> tuple[Any, Any, str | None]:
    """(state, metadata, None), or the fault of the step; the same answer in all processes."""
    metadata, fault = _tried('its metadata', lambda: self._metadata(step))
    if fault is not None:
      return None, None, fault
    where = f'{self._directory}/{step}'
    check_identity(metadata['identity'], identity, where=where)
    other = different_leaves(template, metadata['leaves'])
    if other:
      raise UserError(f'{where} holds other arrays than this version makes ({"; ".join(other[:3])})'
                      ': go on with the version that wrote it, or use another --workdir')
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, template)
    state, fault = _tried('its arrays', lambda: self._checkpointer.restore(
      self._directory / str(step), args=ocp.args.Composite(
        state=ocp.args.StandardRestore(abstract))).state)
    if fault is not None:
      return None, None, fault
    bad = damaged_leaves(state, metadata['leaves'])
    if not processes.agree(not bad):
      return None, None, (f'{len(bad)} of its arrays are not what was written, e.g. {bad[0]}'
                          if bad else 'another process read damaged arrays')
    return state, metadata, None

  def _set_aside(self, step: int, why: str) -> None:
    if not processes.is_first():
      return
    folder = self._directory / str(step)
    aside, number = folder.with_name(f'{step}.corrupt'), 1
    while aside.exists():
      number += 1
      aside = folder.with_name(f'{step}.corrupt-{number}')
    folder.rename(aside)
    self._log(f'WARNING: DAMAGED CHECKPOINT: step {step} {why}: moved to {aside}, which you may '
              'remove')

  def _prune(self) -> None:
    """Removes the oldest steps; a kill in between leaves no half step."""
    found = sorted(int(p.name) for p in self._directory.iterdir() if p.name.isdigit())
    for step in found[:-self._keep]:
      gone = self._directory / f'{step}.deleted'
      (self._directory / str(step)).rename(gone)
      shutil.rmtree(gone)

  def _clean(self) -> None:
    """Removes the remains of an interrupted save or removal; every process calls it."""
    for path in self._directory.iterdir() if processes.is_first() else ():
      if _UNFINISHED.fullmatch(path.name):
        shutil.rmtree(path, ignore_errors=True)
    processes.share()


def _tried(what: str, read: Callable[[], Any]) -> tuple[Any, str | None]:
  """(what is read, None) or (None, why not); the same answer in all processes."""
  found = fault = None
  try:  # Orbax, TensorStore and JSON raise some ten types for damaged files, bare Exception too
    found = read()
  except Exception as e:
    fault = f'{what} cannot be read ({_first_line(e)})'
  if processes.agree(fault is None):
    return found, None
  return None, fault or f'another process cannot read {what}'


def _about(identity: Identity, final: bool, extra_state: Any) -> dict[str, Any]:
  """The metadata besides the arrays."""
  return {'identity': identity.to_dict(), 'final': final, 'extra_state': extra_state}


def check_space(directory: pathlib.Path, size: int) -> None:
  """Raises `OSError` unless a checkpoint of `size` bytes fits on the disk of an existing folder."""
  free = shutil.disk_usage(directory).free
  if free < _SPARE * size:
    raise OSError(f'{directory}: {free / 1e6:,.1f} MB free, a checkpoint needs '
                  f'{_SPARE * size / 1e6:,.1f} MB')


def read_done(directory: pathlib.Path) -> dict[str, Any] | None:
  """Contents of a stage's DONE marker; None if it is not finished, `Damaged` if they changed."""
  path = directory / 'DONE'
  if not path.exists():
    return None
  return read_sealed_json(
    path, again='fairjax step train with the same --config and --workdir writes it again')


def save_untrained(
  directory: pathlib.Path, state: Any, identity: Identity, *, digest: str, summary: dict[str, Any],
  log: Callable[[str], None],
) -> None:
  """Finishes a stage with a state that was made elsewhere, as its step 0."""
  store = CheckpointStore(directory, keep=1, log=log)
  try:
    store.finish(0, state, identity, final=True)
  finally:
    store.close()
  write_done(directory, step=0, digest=digest, identity=identity, summary=summary)


def write_done(
  directory: pathlib.Path, *, step: int, digest: str, identity: Identity, summary: dict[str, Any]
) -> None:
  """Marks the stage finished, atomically, with the SHA-256 of its `metrics.jsonl`."""
  summary = {name: finite_or_text(value) for name, value in summary.items()}
  if processes.is_first():
    lines = directory / 'metrics.jsonl'  # an imported model has none
    metrics = file_sha256(lines) if lines.exists() else None
    write_sealed_json(directory / 'DONE', {
      'step': step, 'digest': digest, 'identity': identity.to_dict(), 'summary': summary,
      'metrics': metrics})
  processes.share()


def load_params(directory: pathlib.Path, abstract: Any, identity: Identity | None = None) -> Any:
  """Parameters of a finished stage, as `abstract` (`jax.ShapeDtypeStruct` with shardings) says.

  `identity` is the expected one; None accepts any. `Damaged`: parameters or DONE are not what was
  written. `UserError`: the stage is not finished, or belongs to another run.
  """
  done = read_done(directory)
  if done is None:
    raise UserError(f'{directory} holds no finished stage (no DONE): run the training again, it '
                    'continues where it stopped')
  if identity is not None:
    check_identity(done['identity'], identity, where=str(directory))
  where = (directory / 'checkpoints').resolve() / str(done['step'])
  item = {'params': abstract}

  def read():
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
      return checkpointer.restore(where / 'state', args=ocp.args.PyTreeRestore(
        item=item, partial_restore=True,
        restore_args=ocp.checkpoint_utils.construct_restore_args(item)))['params']

  params, fault = _tried('its parameters', read)
  if fault is None and (digest := params_digest(params)) != done['digest']:
    fault = f'its parameters have digest {digest[:12]}..., saved as {done["digest"][:12]}...'
  if not processes.agree(fault is None):
    imported = done['summary'].get('imported')
    how = ('restore it from a copy, or import the model into another --workdir'
           if imported and 'published' not in imported else 'fairjax step train with the same '
           f'--config and --workdir {"imports it again" if imported else "uses an older step"}')
    raise Damaged(f'{where} is damaged: {fault or "another process read others"}: {how}')
  return params


def _first_line(error: BaseException | None) -> str:
  if error is None:
    return 'it is not there'
  lines = str(error).strip().splitlines()
  if not lines:
    return type(error).__name__
  words = lines[0].partition('. See full TensorStore')[0]
  return f'{type(error).__name__}: {words[:200]}'
