"""The programs of a run, lowered for devices that are not there."""

import dataclasses
import math
import pathlib
import re
import shutil

import jax
import pytest
from safetensors.numpy import load_file

from fairjax.config import (
  Config,
  DataConfig,
  DebiasConfig,
  MeshConfig,
  ModelConfig,
  PretrainedConfig,
  TrainConfig,
)
from fairjax.errors import UserError
from fairjax.model import language_model
from fairjax.pretrained.checkpoint import open_model
from fairjax.pretrained.decoder_files import tensor_shapes
from fairjax.tpu import programs
from fairjax.tpu.programs import (
  compiled_model,
  lower_program,
  model_of,
  programs_of,
  sized,
  state_of,
)
from fairjax.train import make_mesh, params_template

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'decoders'
CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
TINY = Config(
  data=DataConfig(vocab_size=64),
  model=ModelConfig(num_layers=2, model_dim=16, num_heads=2, head_dim=8, ff_dim=32, segment_len=8,
                    memory_len=8),
  lm=TrainConfig(batch_size=8), debias=DebiasConfig(batch_size=16, branch_tokens=2))


def test_programs_follow_the_curriculum():
  assert programs_of(TINY) == ['lm', 'debias', 'sample']
  assert programs_of(dataclasses.replace(TINY, until='lm')) == ['lm', 'sample']
  without = dataclasses.replace(TINY, debias=DebiasConfig(variants=()))
  assert programs_of(without) == ['lm', 'sample']
  assert compiled_model(TINY).vocab_size == 64


@pytest.mark.parametrize('program', ['lm', 'debias', 'sample'])
def test_programs_lower_without_an_array(program):
  before = {id(a) for a in jax.live_arrays()}
  found = lower_program(TINY, program, jax.devices())
  made = [a for a in jax.live_arrays() if id(a) not in before and a.size > 2]
  assert not made
  assert found.mesh.size == len(jax.devices()) and 'func' in found.lowered.as_text()


def test_argument_bytes_are_those_of_one_device():
  params = params_template(language_model(compiled_model(TINY)), make_mesh(TINY.mesh))
  sizes = [math.prod(p.shape) for p in jax.tree.leaves(params)]
  # With both moments of Adam; step, its count, seed, rate; three counters of skipped updates.
  replicated = 3 * sum(sizes) + 4 + 3
  rows, model = 8 // 8, TINY.model
  memory = rows * (model.num_layers * model.memory_len * model.model_dim + 1)
  batch = 2 * rows * model.segment_len
  found = lower_program(TINY, 'lm', jax.devices())
  assert found.argument_bytes == 4 * (replicated + memory + batch) + rows  # reset: one byte


def test_deep_samplers_are_compiled_for_one_token(monkeypatch):
  monkeypatch.setattr(programs, 'MOST_LAYERS_OF_WHOLE_SAMPLER', 1)
  found = lower_program(TINY, 'sample', jax.devices())
  assert 'one token' in programs.part_of(TINY, 'sample')
  assert 'stablehlo.while' not in found.lowered.as_text()
  cache = 2 * 2 * 10 * 32 * 2 * 50 * 8 * 4  # keys and values, layers, values, samples a device, ...
  assert found.argument_bytes > cache


def test_samplers_are_those_of_the_slice_not_of_this_machine(monkeypatch):
  """Keys and values of bfloat16 are float32 on CPU only."""
  from fairjax.generate import sampler
  monkeypatch.setattr(sampler, 'platform_of', lambda mesh: 'cpu' if mesh is None else 'tpu')
  config = dataclasses.replace(TINY, model=dataclasses.replace(TINY.model, dtype='bfloat16'))
  program = lower_program(config, 'sample', jax.devices()[:1]).lowered.as_text()
  model = config.model
  cache = rf'tensor<\d+x\d+x{model.num_heads}x\d+x{model.head_dim}x(\w+)>'
  loops = re.findall(r'stablehlo.while.*', program)
  assert {dtype for loop in loops for dtype in re.findall(cache, loop)} == {'bf16'}


@pytest.mark.parametrize(('name', 'lora'), [('llama3', 0), ('gemma3', 0), ('llama3', 2)])
def test_the_step_of_a_published_decoder_is_lowered_from_its_config_alone(name, lora, tmp_path):
  shutil.copy(GOLDEN / name / 'config.json', tmp_path)
  config = sized(dataclasses.replace(
    TINY, model=ModelConfig(segment_len=16), pretrained=PretrainedConfig(
      model=str(tmp_path), lora=lora), mesh=MeshConfig(fsdp=4)))
  assert programs_of(config) == ['debias']
  assert (config.model.num_layers, config.model.vocab_size, config.model.model_dim) == (4, 61, 16)
  lowered = lower_program(config, 'debias', jax.devices()).lowered
  batch = lowered.args_info[0][1]
  assert {'segment_ids', 'positions', 'weights', 'branch_tokens'} <= set(batch)
  stored = sum(p.size for p in load_file(GOLDEN / name / 'model.safetensors').values())
  adapters = 4 * 2 * sum((16 + 24, 16 + 12, 16 + 12, 24 + 16, 3 * (16 + 24)))  # layers, rank, sizes
  state = state_of(config, 'debias', make_mesh(config.mesh))
  assert sum(p.size for p in jax.tree.leaves(state.params)) == (adapters if lora else stored)
  # The work is counted in models of fewer layers.
  short = dataclasses.replace(config, model=dataclasses.replace(
    config.model, num_layers=2, scan_unroll=2))
  assert model_of(short).config.num_layers == 2
  for program in ('lm', 'sample'):
    with pytest.raises(UserError, match=f'--program={program}: of a run with pretrained.model'):
      lower_program(config, program, jax.devices())


def test_the_sizes_of_published_decoders_are_theirs():
  for name, billions in (('llama-3.2-1b', 1.2358), ('llama-3.1-8b', 8.0303)):
    config = open_model(CONFIGS / 'decoders' / name).decoder
    assert sum(map(math.prod, tensor_shapes(config).values())) == pytest.approx(
      1e9 * billions, rel=1e-4)
