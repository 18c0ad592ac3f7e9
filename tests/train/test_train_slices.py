"""The mesh of several TPU slices: rows over the slices, parameters within each.

On devices that only look like TPUs, and with -m libtpu on those that the TPU compiler describes.
"""

import dataclasses
import importlib.util
import json

import jax
import pytest
from jax.experimental import topologies

from fairjax.config import MeshConfig
from fairjax.errors import UserError
from fairjax.tpu import programs as devices
from fairjax.tpu.chips import find_slice
from fairjax.train import make_mesh
from fairjax.train.sharding import AXES


@dataclasses.dataclass(frozen=True)
class Chip:
  """What `mesh_utils` and `make_mesh` read of a TPU device."""

  id: int
  slice_index: int
  coords: tuple[int, int, int]
  device_kind: str
  core_on_chip: int = 0
  process_index: int = 0
  platform: str = 'tpu'


def chips(kind, shape, num_slices, cores=1):
  """Devices of equal slices in turns, the last slice first; in their order within each."""
  x, y, z = shape
  return [Chip(1000 * s + i, s, (c % x, c // x % y, c // (x * y)), kind, i % cores)
          for i in range(x * y * z * cores) for c in [i // cores] for s in range(num_slices)[::-1]]


KINDS = [('TPU v5 lite', (4, 4, 1), 1), ('TPU v4', (2, 2, 4), 1), ('TPU v3', (4, 2, 1), 2)]


@pytest.mark.parametrize(('kind', 'shape', 'cores'), KINDS)
@pytest.mark.parametrize('num_slices', [2, 3])
@pytest.mark.parametrize(('fsdp', 'model'), [(1, 1), (2, 4), (16, 1), (1, 8)])
def test_every_slice_is_one_part_of_the_slice_axis(kind, shape, cores, num_slices, fsdp, model):
  every = chips(kind, shape, num_slices, cores)
  mesh = make_mesh(MeshConfig(slices=num_slices, fsdp=fsdp, model=model), every)
  assert mesh.axis_names == AXES
  assert mesh.devices.shape == (num_slices, 16 // (fsdp * model), fsdp, model)
  for index, part in enumerate(mesh.devices):  # what crosses only this axis crosses the network
    assert {d.slice_index for d in part.flat} == {index}
  assert {d.id for d in mesh.devices.flat} == {d.id for d in every}


@pytest.mark.parametrize(('kind', 'shape', 'cores'), KINDS)
def test_all_slices_are_laid_out_alike(kind, shape, cores):
  """Gradients are summed between devices of the same place in each slice."""
  mesh = make_mesh(MeshConfig(slices=2, fsdp=2, model=4), chips(kind, shape, 2, cores))
  first, second = ([(d.coords, d.core_on_chip) for d in part.flat] for part in mesh.devices)
  assert first == second and len(set(first)) == 16


def test_neighbours_of_the_model_axis_are_neighbours_in_the_slice():
  mesh = make_mesh(MeshConfig(slices=2, data=4, model=4), chips('TPU v5 lite', (4, 4, 1), 2))
  for row in mesh.devices.reshape(-1, 4):
    lines = {tuple(d.coords[axis] for d in row) for axis in (0, 1)}
    assert any(len(set(line)) == 1 for line in lines), 'one row or column of chips'


def test_other_numbers_of_slices_are_refused():
  every = chips('TPU v5 lite', (2, 2, 1), 2)
  with pytest.raises(UserError, match=r'are in 2 slices: set --config.mesh.slices=2$'):
    make_mesh(MeshConfig(), every)
  with pytest.raises(UserError, match=r'are in 1 slices: set --mesh.slices=1$'):
    make_mesh(MeshConfig(slices=2), chips('TPU v5 lite', (2, 2, 1), 1), field='--mesh.')
  with pytest.raises(UserError, match=r'slices=2 x data=3 .* does not cover the 8 devices'):
    make_mesh(MeshConfig(slices=2, data=3), every)


@pytest.mark.parametrize('config', [MeshConfig(fsdp=3), MeshConfig(slices=3)])
def test_axes_that_do_not_divide_the_devices_are_refused_without_the_one_nobody_set(config):
  with pytest.raises(UserError, match=r'model=1 takes 3 devices or a multiple, not 1: set ') as e:
    make_mesh(config, jax.devices()[:1])
  assert 'data' not in str(e.value)


def test_processes_or_fake_devices_stand_for_slices():
  mesh = make_mesh(MeshConfig(slices=2, fsdp=2, model=2))
  assert mesh.devices.shape == (2, 1, 2, 2)
  assert [d.id for d in mesh.devices[0].flat] == [d.id for d in jax.devices()[:4]]


@pytest.mark.parametrize(('name', 'num_slices', 'options'), [
  ('v5e:4x4', 1, {}), ('v5e:4x4', 2, {'num_slices': 2}),
  ('v4:2x2x1', 4, {'num_slices': 4, 'chip_config_name': 'megacore'}),
  ('v6e:1x1', 2, {'num_slices': 2, 'chips_per_host_bounds': [1, 1, 1]})])
def test_the_compiler_is_asked_for_so_many_slices(name, num_slices, options, monkeypatch):
  asked = []

  class Description:
    devices = ('a', 'b')

  def describe(**found):
    asked.append(found)
    return Description

  monkeypatch.setattr(importlib.util, 'find_spec', lambda module: module)
  monkeypatch.setattr(topologies, 'get_topology_desc', describe)
  assert devices.slice_devices(find_slice(name), num_slices=num_slices) == ['a', 'b']
  assert asked == [{'platform': 'tpu', 'topology_name': name} | options]


CODE = '''
import json, sys
from fairjax.cli.tpu_verbs import prepare_process
prepare_process()
from fairjax.tpu.chips import find_slice
from fairjax.tpu.programs import slice_devices
from fairjax.config import MeshConfig
from fairjax.train import make_mesh
for name in sys.argv[1:]:
  where = find_slice(name)
  found = slice_devices(where, num_slices=2)
  mesh = make_mesh(MeshConfig(slices=2, model=2), found)
  parts = [{(*d.coords, d.core_on_chip) for d in part.flat} for part in mesh.devices]
  print(json.dumps({
    'devices': len(found), 'of': 2 * where.num_devices, 'shape': mesh.devices.shape,
    'slices': [sorted({d.slice_index for d in part.flat}) for part in mesh.devices],
    'alike': parts[0] == parts[1], 'places': len(parts[0])}))
'''


@pytest.mark.libtpu
@pytest.mark.slow
def test_two_slices_as_the_tpu_compiler_describes_them(run_with_libtpu):
  names = ['v3:2x2', 'v4:2x2x2', 'v5e:4x4', 'v5p:2x2x1', 'v6e:2x4']
  done = run_with_libtpu('-c', CODE, *names)
  assert done.returncode == 0, done.stderr[-2000:]
  for name, line in zip(names, done.stdout.splitlines()[-len(names):], strict=True):
    found, half = json.loads(line), find_slice(name).num_devices
    assert found == {'devices': 2 * half, 'of': 2 * half, 'shape': [2, half // 2, 1, 2],
                     'slices': [[0], [1]], 'alike': True, 'places': half}, name
  done = run_with_libtpu(
    '-m', 'fairjax', 'compile', '--config=configs/quickstart.py', '--config.mesh.slices=2',
    '--topology=v5e:2x2', '--program=lm', '--json')
  assert done.returncode == 0, done.stderr[-2000:]
  (program,) = json.loads(done.stdout)['programs']
  assert program['fits'] and program['mesh'] == {'slice': 2, 'data': 4}
