"""The table of chips: names of slices for the compiler and for Google Cloud."""

import pytest

from fairjax.errors import UserError
from fairjax.tpu.chips import (
  CHIPS,
  COMPILED,
  accelerator_types,
  find_accelerator,
  find_slice,
  slices_of,
)


@pytest.mark.parametrize(('name', 'devices', 'topology', 'runtime'), [
  ('v2-8', 8, 'v2:2x2', 'tpu-ubuntu2204-base'), ('v3-128', 128, 'v3:8x8', 'tpu-ubuntu2204-base'),
  ('v4-8', 4, 'v4:2x2x1', 'tpu-ubuntu2204-base'), ('v4-32', 16, 'v4:2x2x4', 'tpu-ubuntu2204-base'),
  ('v5litepod-1', 1, 'v5e:1x1', 'v2-alpha-tpuv5-lite'),
  ('v5e-16', 16, 'v5e:4x4', 'v2-alpha-tpuv5-lite'),
  ('v5p-64', 32, 'v5p:2x4x4', 'v2-alpha-tpuv5'), ('v6e-256', 256, 'v6e:16x16', 'v2-alpha-tpuv6e')])
def test_cores_and_chips_become_devices_and_topologies(name, devices, topology, runtime):
  s = find_accelerator(name)
  assert (s.num_devices, s.name, s.chip.cloud.runtime) == (devices, topology, runtime)
  assert s.accelerator_type == name.replace('v5e-', 'v5litepod-')


def test_both_names_of_a_slice_find_it():
  names = accelerator_types()
  assert len(names) == len(set(names)) and 'v3-16' not in names
  for name in names:
    assert find_accelerator(name).accelerator_type == name
  for name in COMPILED:
    s = find_slice(name)
    assert s.name == name and s.num_devices == s.num_chips * s.chip.devices
  assert {chip.name for chip in CHIPS.values() if not chip.compiles} == {'v2'}


def test_a_shape_must_have_the_size_of_the_type():
  assert find_accelerator('v5p-1536', shape='8x8x12').num_devices == 768
  for shape, hint in (('8x8', '3 sides'), ('8x8x8', 'v5p-1024'), ('0x8x12', '3 sides')):
    with pytest.raises(UserError, match=hint):
      find_accelerator('v5p-1536', shape=shape)


@pytest.mark.parametrize(('find', 'name', 'hint'), [
  *((find_accelerator, name, hint) for name, hint in (
    ('v3-16', 'v3-8, v3-32'), ('v5p-7', 'v5p-8'), ('v7-8', 'v7-8'), ('tpu7x-8', 'tpu7x-8'),
    ('v5litepod16', 'v5litepod-16'), ('v5litepod-24', 'v5litepod-1, v5litepod-4'))),
  *((find_slice, name, hint) for name, hint in (
    ('v9:8', 'v6e'), ('v5e:16x4', 'v5e:8x8'), ('v5e:3x3', 'v5e:2x4'),
    ('v3-128', 'in chips, v3:8x8'), ('v5e-16', 'in chips, v5e:4x4'),
    ('v5litepod-16', 'in chips, v5e:4x4'), ('v2:2x2', 'v2:2x2'), ('v5e', 'v5e:1x1')))])
def test_unknown_names_are_told_the_nearest(find, name, hint):
  with pytest.raises(UserError, match=hint):
    find(name)


def test_slices_ascend_and_chips_are_plausible():
  for chip in CHIPS.values():
    sizes = [s.num_devices for s in slices_of(chip)]
    assert sizes == sorted(set(sizes))
    if chip.compiles:
      assert 0.9 * chip.hbm < chip.available_hbm < chip.hbm
      assert 50 < chip.peak_flops / chip.bandwidth < 1000  # FLOPs a byte
