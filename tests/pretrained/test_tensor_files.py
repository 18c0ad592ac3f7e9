"""Tensors of files: each process reads its own part, once."""

import json
import pathlib

import jax
import numpy as np
import pytest
from golden_models import same
from safetensors.numpy import load_file

from fairjax.model.decoder import layer_parameters, other_parameters
from fairjax.pretrained import tensor_files
from fairjax.pretrained.decoder_files import (
  read_decoder_config,
  tensor_shapes,
  to_decoder_params,
)

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'decoders'
AXES = {'embed': 'fsdp', 'heads': 'model', 'mlp': 'model'}


@pytest.fixture
def reads(monkeypatch):
  """(name of the tensor, its slice, numbers in it) of everything that is read."""
  found, plain = [], tensor_files._reader

  def reader(file, name):
    read = plain(file, name)

    def counted(index):
      values = read(index)
      found.append((name, index, values.size))
      return values

    return counted

  monkeypatch.setattr(tensor_files, '_reader', reader)
  return found


def shardings_of(config, mesh):
  def sharding(parameter, *before):
    axes = (*before, *(AXES.get(axis) for axis in parameter.axes))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))

  return {name: sharding(p) for name, p in other_parameters(config).items()} | {
    'layers': {name: sharding(p, None) for name, p in layer_parameters(config).items()}}


@pytest.mark.parametrize('name', ['gpt2', 'llama3', 'gemma3', 'neox'])
def test_every_part_of_a_split_model_is_read_once_by_itself(name, reads):
  folder = GOLDEN / name
  config = read_decoder_config(json.loads((folder / 'config.json').read_text()))
  tensors = {name.removeprefix('transformer.'): tensor for name, tensor in
             tensor_files.open_tensors(tensor_files.weight_files(folder)).items()}
  whole = to_decoder_params(tensors, config)
  # GPT-NeoX has queries, keys and values of a head side by side: they are read together, each time.
  stored = sum(x.size * (3 if 'query_key_value' in n else 1)
               for n, x in load_file(folder / 'model.safetensors').items())
  assert sum(size for _, _, size in reads) == stored
  reads.clear()
  mesh = jax.make_mesh((4, 2), ('fsdp', 'model'), axis_types=(jax.sharding.AxisType.Auto,) * 2)
  shardings = shardings_of(config, mesh)
  params = to_decoder_params(tensors, config, shardings=shardings)
  jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim) or pytest.fail(str(s)),
               params, shardings)
  same(jax.tree.map(np.asarray, params), whole)
  # Of a tensor that is split over all eight devices, each one reads an eighth.
  down = {'gpt2': 'transformer.h.0.mlp.c_proj.weight',
          'neox': 'gpt_neox.layers.0.mlp.dense_4h_to_h.weight'}.get(
            name, 'model.layers.0.mlp.down_proj.weight')
  size = np.prod(tensor_shapes(config)[down.removeprefix('transformer.')])
  parts = [(str(index), count) for n, index, count in reads if n == down]
  assert len(set(parts)) == len(parts) == 8 and {count for _, count in parts} == {size // 8}
