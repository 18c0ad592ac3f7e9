"""Masked training on meshes: where each parameter lives, one model on all of them, resumption."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from masked_cases import SENTENCES, compare_models, new_start, rows_of, stop_before

from fairjax.config import MeshConfig, TrainConfig
from fairjax.errors import Preempted, UserError
from fairjax.pretrained import masked_lm as training
from fairjax.pretrained.masked_lm import (
  AXES,
  Settings,
  Sizes,
  check_mesh,
  train_masked,
)
from fairjax.pretrained.masked_rows import special_tokens
from fairjax.pretrained.start import new_params
from fairjax.processes import StopSignal
from fairjax.train import make_mesh

# By hand; what is not here is on every device.
SPECS = {
  'embeddings.word': P('model', 'fsdp'), 'embeddings.position': P(None, 'fsdp'),
  'embeddings.token_type': P(None, 'fsdp'), 'layers.qkv_kernel': P(None, 'fsdp', 'model'),
  'layers.qkv_bias': P(None, 'model'), 'layers.out_kernel': P(None, 'model', 'fsdp'),
  'layers.ff_in_kernel': P(None, 'fsdp', 'model'), 'layers.ff_in_bias': P(None, 'model'),
  'layers.ff_out_kernel': P(None, 'model', 'fsdp'), 'mlm.kernel': P('fsdp', None),
  'mlm.output_bias': P('model'), 'projection.kernel': P('fsdp', None),
  'output.table': P('model', 'fsdp')}


def start_of(kind):
  sizes = Sizes(kind=kind, layers=2, dim=16, heads=4, vocab_size=64, max_length=16,
                embedding_dim=8 if kind == 'albert' else 0)
  found = new_start(sizes)
  assert found.arch.vocab_size == 64
  return found


@pytest.fixture(scope='module')
def starts():
  return {kind: start_of(kind) for kind in ('bert', 'albert')}


def arguments(start, steps=6):
  """Rows, settings and the like of a short training with dropout."""
  special = special_tokens(start.tokenizer, pad_id=0, where='x', vocab_size=64)
  rows = rows_of([SENTENCES * 6], start.tokenizer, special)
  settings = Settings(TrainConfig(steps=steps, batch_size=8, learning_rate=1e-3, warmup_steps=2,
                                  log_every=2, eval_every=steps, checkpoint_every=3), 0.3)
  return (start, rows, rows), {'settings': settings, 'source': {}, 'log': lambda line: None}


def name_of(path):
  keys = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
  return '.'.join(keys[-2:])


@pytest.mark.parametrize('kind', ['bert', 'albert'])
def test_every_parameter_and_both_moments_live_where_the_table_says(starts, kind, tmp_path):
  """In the state that is made, and in the one that a step gives back."""
  (start, rows, _), options = arguments(starts[kind])
  mesh = make_mesh(MeshConfig(fsdp=2, model=2))
  stage = training._Run(start, rows, rows, options['settings'], mesh).stage(tmp_path, {})
  state = stage.init_state()
  batch = training.to_devices(next(stage.batches(0)), mesh)
  after, _ = stage.step(stage.init_state(), batch, np.float32(0.1))
  for found in (state, after):
    seen = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(found):
      name = name_of(path)
      wanted = SPECS.get(name, P())
      assert leaf.sharding.is_equivalent_to(
        jax.sharding.NamedSharding(mesh, wanted), leaf.ndim), (path, leaf.sharding)
      if name:
        seen[name] = seen.get(name, 0) + 1
        parts = np.prod([mesh.shape[axis] for axis in wanted if axis], initial=1)
        assert leaf.addressable_shards[0].data.size * parts == leaf.size
    assert set(seen.values()) == {3}  # the parameters, and Adam's two moments
    assert sum(name in SPECS for name in seen) == (12 if kind == 'albert' else 11)
  template = stage.state_template()
  assert jax.tree.map(lambda a: a.sharding.spec, template) == jax.tree.map(
    lambda a: a.sharding.spec, state)


def test_the_table_names_arrays_that_there_are(starts):
  found = {group: set(arrays) for start in starts.values() for group, arrays in
           start.params.items()}
  untied = dataclasses.replace(starts['bert'].arch, tied=False)
  found |= {'output': set(new_params(untied, seed=0, std=1, head='mlm')['output'])}
  for group, arrays in AXES.items():
    assert set(arrays) <= found[group]
    for name in arrays:
      assert f'{group}.{name}' in SPECS


@pytest.fixture(scope='module')
def alone(starts, tmp_path_factory):
  """Folders of models that one device trained."""
  folders = {}
  for kind, start in starts.items():
    folders[kind] = tmp_path_factory.mktemp(kind)
    given, options = arguments(start)
    train_masked(*given, folders[kind], mesh=make_mesh(MeshConfig(), jax.devices()[:1]), **options)
  return folders


@pytest.mark.parametrize(('kind', 'mesh'), [
  ('albert', MeshConfig(fsdp=2, model=2)),
  *(pytest.param('bert', mesh, marks=pytest.mark.weekly) for mesh in (
    MeshConfig(), MeshConfig(fsdp=8), MeshConfig(fsdp=2, model=4),
    MeshConfig(slices=2, fsdp=2, model=2)))])
def test_every_mesh_trains_the_model_of_one_device(starts, alone, tmp_path, kind, mesh):
  given, options = arguments(starts[kind])
  train_masked(*given, tmp_path, mesh=make_mesh(mesh), **options)
  compare_models(tmp_path, alone[kind])


@pytest.mark.parametrize(('first', 'second'), [
  (MeshConfig(fsdp=2, model=2), 1),  # programs of other tests
  pytest.param(MeshConfig(slices=2, fsdp=2, model=2), 8, marks=pytest.mark.weekly)])
def test_a_training_goes_on_on_another_mesh(starts, alone, tmp_path, monkeypatch, first, second):
  """Four steps of six on the one, two on the other: the model of one device."""
  given, options = arguments(starts['bert'])
  with monkeypatch.context() as patch, StopSignal().installed() as stop:
    stop_before(3, patch, lambda: stop)
    with pytest.raises(Preempted, match='saved after step 4 of 6'):
      train_masked(*given, tmp_path, stop=stop, mesh=make_mesh(first), **options)
  lines, mesh = [], make_mesh(MeshConfig(fsdp=min(second, 2)), jax.devices()[:second])
  train_masked(*given, tmp_path, mesh=mesh, **options | {'log': lines.append})
  assert any('resumes after step 4 of 6' in line for line in lines)
  compare_models(tmp_path, alone['bert'])


def test_a_mesh_that_does_not_fit_is_refused_with_what_fits(starts):
  start = starts['bert']
  check_mesh(start.params, start.arch, make_mesh(MeshConfig(fsdp=2, model=4)))
  with pytest.raises(UserError, match=r'--mesh\.model=8 does not divide 4 \(its attention heads\)'
                     r'.* allows 1, 2, 4'):
    check_mesh(start.params, start.arch, make_mesh(MeshConfig(model=8)))
  odd = {**start.params, 'mlm': {**start.params['mlm'], 'output_bias': np.zeros(62)}}
  with pytest.raises(UserError, match=r'does not divide 62 \(mlm\.output_bias\).* allows 1, 2$'):
    check_mesh(odd, start.arch, make_mesh(MeshConfig(model=4)))
