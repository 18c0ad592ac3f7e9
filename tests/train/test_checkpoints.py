"""Checkpoints: what verifies is used, what does not is moved aside, and nothing starts anew."""

import asyncio
import dataclasses
import gc
import json
import os
import runpy
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fairjax.config import MeshConfig, TrainConfig
from fairjax.errors import Damaged, Fault, UserError
from fairjax.train import Identity, checkpoints, make_mesh
from fairjax.train.checkpoints import (
  CheckpointStore,
  check_identity,
  damaged_leaves,
  different_leaves,
  leaf_digests,
  params_digest,
)
from fairjax.train.optimizer import Adam
from fairjax.train.steps import Guard, TrainState

IDENTITY = Identity(stage='lm', vocabulary='v' * 64, config='c' * 64)
MESH = make_mesh(MeshConfig(), jax.devices()[:1])


def make_state(step, mesh=MESH, width=8):
  rng = np.random.default_rng(step)
  params = {'embedding': rng.normal(size=(16, width)).astype(np.float32),
            'layers': {'ff': rng.normal(size=(2, width, 4)).astype(jnp.bfloat16)}}
  adam = Adam.of(TrainConfig())
  state = TrainState(step=jnp.asarray(step), params=params, memory=None, guard=Guard.fresh(adam),
                     opt_state=adam.transformation().init(params))

  def place(x):
    axis = next((i for i, size in enumerate(np.shape(x)) if size % mesh.size == 0), None)
    spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, 'data')
    return jax.device_put(jnp.asarray(x), NamedSharding(mesh, spec))

  return jax.tree.map(place, state)


def assert_same(found, expected):
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.fixture
def lines():
  return []


@pytest.fixture
def store(tmp_path, lines):
  store = CheckpointStore(tmp_path, keep=3, log=lines.append)
  yield store
  store.close()


def save(store, *numbers, **options):
  for step in numbers:
    store.save(step, make_state(step), IDENTITY, **options)
  store.finish(numbers[-1], make_state(numbers[-1]), IDENTITY, **options)


def files(folder):
  return {p.relative_to(folder): p.read_bytes() for p in folder.rglob('*') if p.is_file()}


def test_the_newest_step_comes_back_with_its_bits_and_its_metadata(store, tmp_path):
  save(store, 2, 10, 9)  # ordered by number, not by the time of writing
  assert store.steps() == [2, 9, 10]
  step, state, final, _ = store.restore(make_state(0), IDENTITY)
  assert (step, final) == (10, False)
  assert_same(state, make_state(10))
  found = json.loads((tmp_path / 'checkpoints' / '10' / 'card' / 'metadata').read_text())
  assert found['identity'] == IDENTITY.to_dict()
  assert found['leaves'][".params['layers']['ff']"]['dtype'] == 'bfloat16'


def test_folders_may_have_any_name_that_orbax_finds_again(tmp_path, lines):
  store = CheckpointStore(tmp_path / 'a %20b#1?:é', keep=1, log=lines.append)
  save(store, 1)
  assert_same(store.restore(make_state(0), IDENTITY)[1], make_state(1))
  store.close()
  assert not lines
  with pytest.raises(UserError, match=r'no checkpoint can be written .* with \['):
    CheckpointStore(tmp_path / 'run[3]', keep=1, log=lines.append)


def arrays(step):
  """All files with bytes of arrays; the largest may be one that nobody reads."""
  return list((step / 'state').rglob('d/*'))


def flip(path, position=None):
  data = bytearray(path.read_bytes())
  data[len(data) // 2 if position is None else position] ^= 4
  path.write_bytes(data)


def flip_many(step):
  """One byte may be of a file that nobody reads; of these some are in every array."""
  for path in arrays(step):
    for position in range(0, path.stat().st_size, 16):
      flip(path, position)


DAMAGES = {
  'flipped bits of the arrays': flip_many,
  'truncated arrays': lambda step: [os.truncate(p, p.stat().st_size // 2) for p in arrays(step)],
  'arrays gone': lambda step: [p.unlink() for p in arrays(step)],
  'state gone': lambda step: shutil.rmtree(step / 'state'),
  'metadata gone': lambda step: (step / 'card' / 'metadata').unlink(),
  'another fingerprint in the metadata': lambda step: (step / 'card' / 'metadata').write_text(
    (step / 'card' / 'metadata').read_text().replace('cccc', 'cccd', 1)),
  'metadata of another step': lambda step: shutil.copy(
    step.with_name('4') / 'card' / 'metadata', step / 'card' / 'metadata'),
  'arrays of another step': lambda step: [
    shutil.rmtree(step / 'state'), shutil.copytree(step.with_name('4') / 'state', step / 'state')],
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_a_damaged_step_is_moved_aside_and_the_one_before_is_used(store, tmp_path, lines, damage):
  save(store, 3, 4, 5)
  folder = tmp_path / 'checkpoints'
  DAMAGES[damage](folder / '5')
  step, state, _, _ = store.restore(make_state(0), IDENTITY)
  assert step == 4
  assert_same(state, make_state(4))
  (line,) = lines
  assert line.startswith('WARNING: DAMAGED CHECKPOINT: step 5') and '5.corrupt' in line
  assert (folder / '5.corrupt').is_dir() and store.steps() == [3, 4]
  save(store, 5)  # the number is free again
  assert_same(store.restore(make_state(0), IDENTITY)[1], make_state(5))


def test_every_flipped_bit_of_the_arrays_is_seen_or_harmless(store, tmp_path):
  save(store, 1)
  rng, seen = np.random.default_rng(0), 0
  for path in sorted((tmp_path / 'checkpoints' / '1' / 'state').rglob('*')):
    if not path.is_file():
      continue
    whole = path.read_bytes()
    for position in rng.integers(0, len(whole), 5):
      flip(path, position)
      try:
        assert_same(store.restore(make_state(0), IDENTITY)[1], make_state(1))
      except UserError:
        seen += 1
      path.write_bytes(whole)
  assert seen > 10


def test_when_no_step_verifies_the_start_is_refused_and_nothing_changes(store, tmp_path, lines):
  save(store, 1, 2)
  folder = tmp_path / 'checkpoints'
  flip_many(folder / '1')
  (folder / '2' / 'card' / 'metadata').write_text('{')
  before = files(folder)
  with pytest.raises(UserError, match='holds 2 checkpoints and none can be used: step 2: .*step 1'):
    store.restore(make_state(0), IDENTITY)
  assert files(folder) == before and store.steps() == [1, 2] and not lines


def test_a_step_of_another_run_or_other_arrays_is_refused_before_anything_is_read(
    store, tmp_path, lines):
  save(store, 1, 2)
  shutil.rmtree(tmp_path / 'checkpoints' / '2' / 'state')  # would be an error of its own
  other = dataclasses.replace(IDENTITY, vocabulary='w' * 64)
  with pytest.raises(UserError, match='belongs to another run: vocabulary is'):
    store.restore(make_state(0), other)
  shape, dtype, missing = make_state(0, width=12), make_state(0), make_state(0)
  dtype.params['layers']['ff'] = dtype.params['layers']['ff'].astype(jnp.float32)
  del missing.params['layers']
  for template in (shape, dtype, missing):
    with pytest.raises(UserError, match='holds other arrays than this version makes'):
      store.restore(template, IDENTITY)
  assert store.steps() == [1, 2] and not lines


@pytest.mark.parametrize('devices', [(8, 1), (1, 8), (8, 2)])
def test_digests_hold_on_any_mesh(tmp_path, devices):
  saved, read = (make_mesh(MeshConfig(), jax.devices()[:n]) for n in devices)
  store = CheckpointStore(tmp_path, keep=1, log=print)
  store.finish(1, make_state(1, saved), IDENTITY)
  assert_same(store.restore(make_state(0, read), IDENTITY)[1], make_state(1))
  store.close()


def test_digests_tell_one_changed_number_and_other_shapes():
  state, mesh = make_state(1), make_mesh(MeshConfig())
  digests = leaf_digests(make_state(1, mesh))
  assert len(digests[".params['embedding']"]['shards']) == 8
  assert damaged_leaves(state, digests) == [] == different_leaves(state, digests)
  state.params['embedding'] = state.params['embedding'].at[3, 5].add(1e-6)
  assert damaged_leaves(state, digests) == [".params['embedding']"]
  state.params['embedding'] = jnp.zeros((16, 9))
  assert different_leaves(state, digests) == [
    ".params['embedding']: float32 (16, 8) -> float32 (16, 9)"]


def test_old_steps_go_only_when_the_new_one_reads_back(tmp_path, monkeypatch, lines):
  store = CheckpointStore(tmp_path, keep=1, log=lines.append)
  save(store, 1, 2)
  assert store.steps() == [2]
  monkeypatch.setattr(CheckpointStore, '_verify', _not_verified)
  with pytest.raises(Fault, match='step 3 could not be written.*reads back otherwise'):
    save(store, 3)
  monkeypatch.undo()
  assert 2 in store.steps()
  assert_same(store.restore(make_state(0), IDENTITY)[1], make_state(3))
  store.close()


def _not_verified(self, step, shapes):
  raise OSError(f'step {step} was written, but reads back otherwise: x')


def test_a_step_that_is_damaged_while_it_is_written_is_noticed(store, tmp_path, monkeypatch, lines):
  """What reads back is compared with what was in memory."""
  wait = store._checkpointer.wait_until_finished
  times = []

  def damage():
    wait()
    if not times and (tmp_path / 'checkpoints' / '1').exists():
      flip_many(tmp_path / 'checkpoints' / '1')
      times.append(1)

  monkeypatch.setattr(store._checkpointer, 'wait_until_finished', damage)
  save(store, 1)
  assert any('could not be written' in line for line in lines)
  assert_same(store.restore(make_state(0), IDENTITY)[1], make_state(1))


def _failing(store, monkeypatch, times):
  """Lets the next saves fail in the background, as a full disk does."""
  wait, left = store._checkpointer.wait_until_finished, [times]

  def fail():
    wait()
    if left[0]:
      left[0] -= 1
      raise ValueError('RESOURCE_EXHAUSTED: no space left on device')

  monkeypatch.setattr(store._checkpointer, 'wait_until_finished', fail)


_LIMITED = """
import pathlib, resource, signal, sys
sys.path[:0] = [{root!r}, {tests!r}]
import jax.numpy as jnp
from test_checkpoints import IDENTITY
from fairjax.errors import Fault
from fairjax.train.checkpoints import CheckpointStore
store = CheckpointStore(pathlib.Path({folder!r}), keep=2,
                        log=lambda line: print('log:', line, file=sys.stderr))
state = {{f'leaf{{i}}': jnp.arange(60_000, dtype=jnp.float32) + i for i in range(20)}}
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
  store.finish(1, state, IDENTITY)
except Fault as e:
  print('error:', e, file=sys.stderr)
store.close()
"""


def test_a_failed_write_is_reported_without_stacks(tmp_path, repository):
  script = _LIMITED.format(root=str(repository), tests=str(repository / 'tests' / 'train'),
                           folder=str(tmp_path))
  found = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True,
                         timeout=120, stdin=subprocess.DEVNULL)
  assert 'error: step 1 could not be written' in found.stderr, found.stderr[-2000:]
  assert 'Traceback' not in found.stderr and 'Event loop' not in found.stderr


@pytest.mark.parametrize('library', ['orbax', 'own'])
def test_what_asyncio_says_is_left_out_of_orbax_alone(library, tmp_path, caplog):
  checkpoints._hide_stacks()
  path = tmp_path / library / 'io.py'
  path.parent.mkdir()
  path.write_text('async def write():\n  raise ValueError\n')
  write = runpy.run_path(str(path))['write']

  async def forget():
    await asyncio.wait([asyncio.get_running_loop().create_task(write())])

  asyncio.run(forget())
  gc.collect()
  assert caplog.text.count('Task exception was never retrieved') == (library == 'own')


def test_a_failed_save_is_tried_once_more_with_the_state_of_then(store, monkeypatch, lines):
  save(store, 1)
  _failing(store, monkeypatch, 1)
  store.save(2, make_state(2), IDENTITY)
  store.save(3, make_state(3), IDENTITY)
  store.finish(3, make_state(3), IDENTITY)
  assert len(lines) >= 1 and 'RESOURCE_EXHAUSTED' in lines[0] and 'step 3 is saved' in lines[0]
  assert_same(store.restore(make_state(0), IDENTITY)[1], make_state(3))


def test_two_failed_saves_end_the_run_and_keep_what_was_saved(store, monkeypatch, lines):
  save(store, 1)
  _failing(store, monkeypatch, 9)
  store.save(2, make_state(2), IDENTITY)
  with pytest.raises(Fault, match='step 3 could not be written.*RESOURCE_EXHAUSTED'):
    store.save(3, make_state(3), IDENTITY)
  assert 1 in store.steps()


def test_no_space_is_noticed_before_anything_is_written(store, tmp_path, monkeypatch, lines):
  save(store, 1)
  before = files(tmp_path)
  usage = shutil.disk_usage(tmp_path)
  monkeypatch.setattr(checkpoints.shutil, 'disk_usage', lambda _: usage._replace(free=1000))
  with pytest.raises(Fault, match='0.0 MB free, a checkpoint needs 0.0 MB'):
    store.finish(2, make_state(2), IDENTITY)
  assert files(tmp_path) == before and store.steps() == [1]


def test_what_kills_have_left_is_removed_and_never_read(tmp_path, store):
  save(store, 1)
  folder = tmp_path / 'checkpoints'
  for name in ('2.orbax-checkpoint-tmp', '0.deleted'):
    shutil.copytree(folder / '1', folder / name)
  again = CheckpointStore(tmp_path, keep=3, log=print)
  assert sorted(p.name for p in folder.iterdir()) == ['1'] and again.steps() == [1]
  again.close()


def test_a_damaged_done_marker_is_refused(tmp_path):
  checkpoints.write_done(tmp_path, step=3, digest='d' * 64, identity=IDENTITY, summary={'x': 1.5})
  path = tmp_path / 'DONE'
  assert checkpoints.read_done(tmp_path)['summary'] == {'x': 1.5}
  whole = path.read_bytes()
  for damaged in (b'', whole[:-9], whole.replace(b'1.5', b'1.6'), b'[]', b'\xff' + whole):
    path.write_bytes(damaged)
    with pytest.raises(Damaged, match='DONE is damaged'):
      checkpoints.read_done(tmp_path)


def test_identity_mismatch_names_every_field():
  card = Identity(stage='debias', vocabulary='v' * 64, config='c' * 64, method='embedding',
                  fairness_weight=10.0, attribute='country')
  check_identity(json.loads(json.dumps(card.to_dict())), card, where='x')
  other = dataclasses.replace(card, vocabulary='w' * 64, fairness_weight=1.0)
  with pytest.raises(UserError) as error:
    check_identity(card.to_dict(), other, where='runs/x')
  assert 'vocabulary is vvvvvvvvvvvv..., expected wwwwwwwwwwww...' in str(error.value)
  assert 'fairness_weight is 10.0, expected 1.0' in str(error.value)
  assert 'method' not in str(error.value)


def test_digest_sees_values_names_shapes_and_dtypes():
  trees = [{'a': np.zeros(4, np.float32)}, {'b': np.zeros(4, np.float32)},
           {'a': np.zeros((2, 2), np.float32)}, {'a': np.zeros(4, np.int32)},
           {'a': np.array([0, 0, 0, 1], np.float32)}]
  assert len({params_digest(t) for t in trees}) == len(trees)
  assert params_digest({'a': jnp.zeros(4)}) == params_digest(trees[0])
