"""Memory and work of a program as the compiler counts them, here that of the CPU."""

import dataclasses
import importlib.metadata

import jax
import pytest
import test_programs

from fairjax.config import Config, DebiasConfig, ModelConfig, TrainConfig
from fairjax.errors import UserError
from fairjax.tpu import cost
from fairjax.tpu.chips import find_slice
from fairjax.tpu.cost import analyse, counts, work
from fairjax.tpu.programs import lower_program
from fairjax.train.memory import program_bytes

TINY = dataclasses.replace(
  test_programs.TINY, debias=DebiasConfig(batch_size=8),
  model=ModelConfig(num_layers=4, model_dim=64, num_heads=2, head_dim=32, ff_dim=256,
                    segment_len=32, memory_len=32))


def with_model(**sizes) -> Config:
  return dataclasses.replace(TINY, model=dataclasses.replace(TINY.model, **sizes))


def compiled(config, program='lm', devices=1):
  return lower_program(config, program, jax.devices()[:devices]).lowered.compile()


@pytest.mark.parametrize('program', [pytest.param('lm', marks=pytest.mark.weekly), 'debias'])
def test_every_layer_counts_as_in_the_unrolled_program(program):
  if program == 'lm' and jax.__version_info__ < (0, 8):
    pytest.skip('JAX 0.7 adds gradients of the size of all layers for each layer that it unrolls')
  unrolled = counts(compiled(with_model(scan_unroll=4), program))
  scanned = compiled(TINY, program)
  found = work(TINY, program, jax.devices()[:1], scanned)
  assert found['flops'] == pytest.approx(unrolled['flops'], rel=0.001)
  assert found['bytes'] == pytest.approx(unrolled['bytes'], rel=0.05)
  assert counts(scanned)['flops'] < 0.5 * found['flops']  # what it is for: one body of four


def test_the_memory_is_that_of_the_program_that_runs(monkeypatch):
  monkeypatch.setattr(cost, 'slice_devices', lambda where, **k: jax.devices())
  monkeypatch.setattr(importlib.metadata, 'version', lambda name: '0.0.42')
  where = find_slice('v5e:2x4')
  found, key = analyse(TINY, 'lm', where)
  program = compiled(TINY, devices=8)
  assert found.memory == program_bytes(program) and found.fits and found.mesh == {'data': 8}
  assert found.cost == work(TINY, 'lm', jax.devices(), program)
  assert found.peak_seconds == found.cost['flops'] / where.chip.peak_flops
  again = analyse(TINY, 'lm', where, cached={key: found.to_dict()}.get)
  assert again == (found, key)
  chip = dataclasses.replace(where.chip, available_hbm=found.required - 1)
  found, other = analyse(TINY, 'lm', dataclasses.replace(where, chip=chip))
  assert other != key and found.bytes_over == 1
  assert not found.fits and found.cost is None and found.peak_seconds is None


def test_what_shapes_say_of_splits_is_said_of_the_programs_arguments(monkeypatch):
  monkeypatch.setattr(cost, 'slice_devices', lambda where, **k: jax.devices())
  where = find_slice('v5e:2x4')
  for program in ('lm', 'debias'):
    sizes = cost.splits(TINY, program, where)
    assert list(sizes) == [1, 2, 4, 8] and sorted(sizes.values(), reverse=True) == [*sizes.values()]
  assert cost.splits(TINY, 'sample', where) == {1: 0}
  with pytest.raises(UserError, match='lm.batch_size=12 is not divisible'):
    cost.splits(dataclasses.replace(TINY, lm=TrainConfig(batch_size=12)), 'lm', where)


@pytest.mark.parametrize('program', ['lm', pytest.param('debias', marks=pytest.mark.weekly)])
def test_size_of_a_step_does_not_grow_with_depth(program):
  """Neither what JAX traces nor what XLA makes of it: compiling 48 layers is compiling one."""
  for remat in ('full', 'none'):
    lowered = [lower_program(with_model(num_layers=layers, remat=remat), program,
                             jax.devices()[:1]).lowered for layers in (4, 12)]
    traced = [x.as_text().count('\n') for x in lowered]
    assert traced[0] == traced[1], (remat, traced)
  made = [x.compile().as_text().count(' = ') for x in lowered]
  print(f'{program}: {traced} lines of StableHLO, {made} instructions')
  assert made[1] <= made[0] + 20
