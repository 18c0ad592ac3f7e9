"""Memory before step 0: the sums are those of the shapes and of the compiler, nothing twice."""

import dataclasses
import math
import types

import jax
import numpy as np
import pytest
from test_curriculum import CONFIG, ArrayFeed

from fairjax.config import MeshConfig
from fairjax.errors import UserError
from fairjax.model import language_model
from fairjax.processes import StopSignal
from fairjax.train import LM, Curriculum, memory, steps
from fairjax.train.memory import (
  StateBytes,
  check_state,
  compile_step,
  device_bytes,
  format_size,
  out_of_memory,
  program_bytes,
  required_bytes,
)
from fairjax.train.optimizer import Adam
from fairjax.train.sharding import make_mesh, to_devices

MODEL = language_model(CONFIG.model)
MESHES = {'one device': (MeshConfig(), 1), 'rows over 4': (MeshConfig(), 4),
          'parameters over 4': (MeshConfig(fsdp=4), 4), 'all': (MeshConfig(fsdp=2, model=2), 8)}


def held(tree):
  """Bytes that the first device really holds."""
  first = jax.devices()[0]
  return sum(s.data.nbytes for leaf in jax.tree.leaves(tree) for s in leaf.addressable_shards
             if s.device == first)


def zeros(template):
  return jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding),
                      template)


@pytest.mark.parametrize('name', MESHES)
def test_sums_are_the_bytes_that_a_device_holds(name):
  mesh_config, devices = MESHES[name]
  mesh = make_mesh(mesh_config, jax.devices()[:devices])
  state = zeros(steps.lm_state_template(MODEL, CONFIG.lm, mesh))
  found = StateBytes.of(state)
  assert found.parameters == held(state.params) == found.gradients
  assert found.optimizer == held(state.opt_state)
  assert found.hidden == held(state.memory)
  assert StateBytes.of(steps.lm_state_template(MODEL, CONFIG.lm, mesh)) == found
  whole = sum(math.prod(leaf.shape) * 4 for leaf in jax.tree.leaves(state.params))
  assert (found.parameters == whole) == (mesh_config == MeshConfig())
  assert name != 'parameters over 4' or found.parameters < whole / 2
  sentiment = zeros(steps.sentiment_state_template(16, CONFIG.sentiment, mesh))
  found = StateBytes.of(sentiment)
  assert found.hidden == 0 and found.parameters == held(sentiment.params)
  assert device_bytes(sentiment) == held(sentiment)


def test_gradients_of_layers_are_as_wide_as_what_the_model_computes_in():
  model = dataclasses.replace(CONFIG.model, dtype='bfloat16')
  state = steps.lm_state_template(language_model(model), CONFIG.lm, make_mesh(MeshConfig(fsdp=4)))
  found, wide = StateBytes.of(state), steps.lm_state_template(
    MODEL, CONFIG.lm, make_mesh(MeshConfig(fsdp=4)))
  rest = {name: x for name, x in state.params.items() if name != 'layers'}
  layers = device_bytes(state.params['layers'])
  assert found.parameters == StateBytes.of(wide).parameters
  assert found.gradients == device_bytes(rest) + layers / 2 < found.parameters
  assert found.least == memory.least_with_fsdp(state, 4) == (
    StateBytes.of(wide).least - layers / 2 - device_bytes(wide.memory) + found.hidden)


def sentiment_step():
  """A step whose program no other test compiles, and its arguments."""
  mesh = make_mesh(MeshConfig(), jax.devices()[:2])
  stage = dataclasses.replace(CONFIG.sentiment, hidden_dim=9)
  batch = to_devices({'h_bar': np.ones((8, 24), np.float32), 'label': np.ones(8, np.float32)}, mesh)
  step = steps.BoundStep(steps.make_sentiment_step(
    Adam.of(stage), steps.projection_of(stage), mesh), 5)
  state = zeros(steps.sentiment_state_template(24, stage, mesh))
  return step, state, batch, np.float32(1e-3)


def test_the_line_is_the_compilers_and_the_step_is_not_compiled_again():
  compiled = []
  jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: compiled.append(name) if 'backend_compile' in name else None)
  step, *arguments = sentiment_step()
  compiled.clear()
  lowered = step.lower(*arguments)
  line = compile_step('lm', lowered, arguments[0])
  assert len(compiled) == 1
  stats, state = lowered.compile().memory_analysis(), StateBytes.of(arguments[0])
  total = (stats.argument_size_in_bytes + stats.temp_size_in_bytes + stats.output_size_in_bytes
           - stats.alias_size_in_bytes + stats.generated_code_size_in_bytes)
  assert line == (
    f'[lm] device memory: {format_size(total)} (parameters {format_size(state.parameters)}, '
    f'optimizer {format_size(state.optimizer)}, memory {format_size(state.hidden)})')
  assert required_bytes(program_bytes(lowered.compile())) == total
  # The arguments hold the state and the batch; the state is donated.
  assert state.parameters + state.optimizer + state.hidden < stats.argument_size_in_bytes
  assert stats.alias_size_in_bytes >= state.parameters + state.optimizer + state.hidden
  compiled.clear()
  out = step(*arguments)
  jax.block_until_ready(out)
  assert compiled == []


@pytest.fixture
def limit(monkeypatch):
  def set_limit(size):
    monkeypatch.setattr(memory, 'device_limit', lambda: size)
  return set_limit


def test_a_state_that_cannot_fit_is_refused_by_how_much_before_it_is_made(limit):
  mesh = make_mesh(MeshConfig(), jax.devices()[:1])
  state = steps.lm_state_template(MODEL, CONFIG.lm, mesh)
  least = StateBytes.of(state).least
  limit(least)
  check_state('lm', state)
  limit(least - 2048)
  with pytest.raises(UserError) as error:
    check_state('lm', state)
  assert f'{format_size(least - 2048)}: 2.0 KiB too much' in str(error.value)
  assert 'mesh.fsdp' in str(error.value)


def test_the_split_that_would_fit_is_named(limit):
  """Compared with the state that has that split."""
  mesh, found = make_mesh(MeshConfig()), {}
  state = steps.lm_state_template(MODEL, CONFIG.lm, mesh)
  for fsdp in (1, 2, 4, 8):
    split = steps.lm_state_template(MODEL, CONFIG.lm, make_mesh(MeshConfig(fsdp=fsdp)))
    found[fsdp] = StateBytes.of(split).least
    assert memory.least_with_fsdp(state, fsdp) == found[fsdp]
  assert memory.state_splits(state) == found and list(memory.state_splits(state))[0] == 1
  split = steps.lm_state_template(MODEL, CONFIG.lm, make_mesh(MeshConfig(fsdp=4)))
  assert memory.state_splits(split) == {fsdp: found[fsdp] for fsdp in (4, 8)}
  assert memory.least_with_fsdp(state, 3) is memory.least_with_fsdp(state, 16) is None
  for fsdp in (2, 4, 8):
    limit(found[fsdp])
    with pytest.raises(UserError) as error:
      check_state('lm', state)
    words = f'--config.mesh.fsdp={fsdp} would need about {format_size(found[fsdp])}'
    assert words in str(error.value)
  limit(found[8] - 1)
  with pytest.raises(UserError, match=f'Even --config.mesh.fsdp=8 would need about '
                     f'{format_size(found[8])}'):
    check_state('lm', state)


def test_a_step_that_cannot_fit_is_refused_by_how_much(limit):
  step, *arguments = sentiment_step()
  lowered = step.lower(*arguments)
  needed = required_bytes(program_bytes(lowered.compile()))
  limit(needed)
  assert f': {format_size(needed)} of {format_size(needed)} (' in compile_step(
    'lm', lowered, arguments[0])
  limit(needed - 4096)
  with pytest.raises(UserError, match=r'4\.0 KiB too much'):
    compile_step('lm', lowered, arguments[0])


def test_what_the_compiler_refuses_is_one_line_and_other_faults_are_not_hidden(limit):
  state = sentiment_step()[1]

  def compiler(message):
    def compile():
      raise RuntimeError(message)
    return types.SimpleNamespace(compile=compile)

  limit(2**34)
  with pytest.raises(UserError, match=r'20\.50 GiB of each device, as the compiler.* 16\.00 GiB: '
                     r'4\.50 GiB too much'):
    compile_step('lm', compiler('Ran out of memory in memory space hbm. Used 20.5G of 15.75G hbm.'),
                 state)
  assert out_of_memory(  # in other words
    'RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory '
    'required for HLO temporaries (16.50G) exceeds available HBM (15.48G).') == 16.5 * 2**30
  with pytest.raises(RuntimeError, match='something else'):
    compile_step('lm', compiler('something else'), state)
  silent = types.SimpleNamespace(compile=lambda: types.SimpleNamespace(
    memory_analysis=lambda: None))
  assert compile_step('lm', silent, state).endswith('the compiler reports no more')


def test_a_stage_that_cannot_fit_leaves_nothing_behind(tmp_path, limit):
  limit(1000)
  run = Curriculum(CONFIG, MODEL, tmp_path / 'run', ArrayFeed(), make_mesh(
    MeshConfig(), jax.devices()[:1]), StopSignal(), print)
  with pytest.raises(UserError, match=r'\[lm\] does not fit: it needs at least'):
    run.train([LM])
  assert not (tmp_path / 'run').exists()
