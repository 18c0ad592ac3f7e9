"""The shardings of arrays, and that they change no result."""

import dataclasses
import itertools
import json
import pathlib
import re

import jax
import numpy as np
import pytest
from groups import ends, free_address, start

from fairjax.config import DebiasConfig, MeshConfig, SentimentConfig, TrainConfig
from fairjax.errors import UserError
from fairjax.model import TransformerXL, language_model, likelihood
from fairjax.model.causal_lm import Branches
from fairjax.model.decoder import DecoderModel, LoraDecoder
from fairjax.model.softmax import parameter_table
from fairjax.pretrained.decoder_files import read_decoder_config
from fairjax.tpu.chips import find_slice
from fairjax.train import make_mesh, steps
from fairjax.train.optimizer import Adam
from fairjax.train.sharding import AXES, batch_sharding, check_batch_size, on_mesh, to_devices
from tests import sharding_cases as cases

# Array (path suffix) -> mesh axis of each of its axes; what follows the last named axis is whole.
ROWS = ('slice', 'data', 'fsdp')
PARAMETERS = {
  'embedding': ('model', 'fsdp'),
  'embedding_0': ('model', 'fsdp'),
  'embedding_1': ('model',),
  'embedding_2': ('model',),
  'softmax_bias': ('model',),
  'softmax_bias_0': ('model',),
  'softmax_bias_1': ('model',),
  'softmax_bias_2': ('model',),
  'projection_0': (None, 'fsdp'),
  'projection_1': (None, 'fsdp'),
  'projection_2': (None, 'fsdp'),
  'softmax_projection_0': (None, 'fsdp'),
  'cluster_weight': (None, 'fsdp'),
  'cluster_bias': (),
  'content_bias': ('model',),
  'position_bias': ('model',),
  'query': (None, 'fsdp', 'model'),
  'key_value': (None, 'fsdp', None, 'model'),
  'relative': (None, 'fsdp', 'model'),
  'output': (None, 'model', None, 'fsdp'),
  'ff_in': (None, 'fsdp', 'model'),
  'ff_in_bias': (None, 'model'),
  'ff_out': (None, 'model', 'fsdp'),
  'ff_out_bias': (),
  'attention_norm_scale': (), 'attention_norm_bias': (), 'ff_norm_scale': (), 'ff_norm_bias': (),
}
OTHERS = {
  '.step': (), '.count': (), '.guard.in_a_row': (), '.guard.total': (), '.guard.made': (),
  '.memory.hidden': (None, ROWS), '.memory.length': (ROWS,)}


def _trimmed(spec):
  axes = list(spec)
  while axes and axes[-1] is None:
    axes.pop()
  return tuple(axes)


@pytest.mark.parametrize('model', ['plain', 'adaptive'])
@jax.enable_x64()
def test_every_array_of_the_state_has_the_sharding_of_the_table(model):
  mesh = make_mesh(MeshConfig(slices=1, data=2, fsdp=2, model=2))
  state = steps.lm_state_template(
    language_model(cases.MODELS[model]), TrainConfig(batch_size=16), mesh)
  seen = set()
  for path, leaf in jax.tree_util.tree_leaves_with_path(state):
    name = jax.tree_util.keystr(path)
    key = next((k for k in OTHERS if name.endswith(k)), None)
    if key is None:
      key = re.findall(r"\['(\w+)'\]", name)[-1]
    expected = OTHERS[key] if key in OTHERS else PARAMETERS[key]
    found = _trimmed(leaf.sharding.spec)
    assert found == expected, name
    seen.add(key)
  names = {k for k in PARAMETERS if not k[-1].isdigit()} if model == 'plain' else (
    PARAMETERS.keys() - {'embedding', 'softmax_bias'})
  if model == 'plain':
    names -= {'cluster_weight', 'cluster_bias'}
  assert seen == names | OTHERS.keys()


@pytest.mark.parametrize('model', [pytest.param('plain', marks=pytest.mark.weekly), 'adaptive'])
@jax.enable_x64()
def test_batches_states_branches_and_logits_have_the_sharding_of_their_rows(model, monkeypatch):
  mesh, config = make_mesh(MeshConfig(slices=1, data=2, fsdp=2, model=2)), cases.MODELS[model]
  state = steps.init_lm_state(language_model(config), TrainConfig(batch_size=16), mesh, seed=0)
  batch = to_devices(cases.make_batch(0, config.vocab_size), mesh)
  blocks = []  # (scores of a block's tokens, of its words) of one device

  made = likelihood.VocabLogits.of.__func__

  def record(cls, params, cluster, block, num_tokens, cap=0.0):
    table = made(cls, params, cluster, block, num_tokens, cap)
    blocks.append((num_tokens, table.weight.shape[0], cluster.size))
    return table

  monkeypatch.setattr(likelihood.VocabLogits, 'of', classmethod(record))

  def forward(params, memory, batch):
    net = TransformerXL(config)
    output = net.apply({'params': params}, batch['inputs'], memory.reset(batch['reset']),
                       Branches.from_batch(batch))
    softmax = {name: params[name] for name in parameter_table(config)}
    nll = likelihood.token_nll(softmax, config, output.hidden, batch['targets'], block=8)
    return {'hidden': output.hidden, 'memory': output.state.hidden, 'pairs': output.pairs,
            'nll': nll}

  with on_mesh(mesh):
    found = jax.jit(forward)(state.params, state.memory, batch)
  rows = ('data', 'fsdp')  # one slice: its axis has one part
  for path, leaf in jax.tree_util.tree_leaves_with_path(found):
    name = jax.tree_util.keystr(path)
    assert _trimmed(leaf.sharding.spec) == ((None, rows) if 'memory' in name else (rows,)), name
  for name, array in batch.items():
    assert _trimmed(array.sharding.spec) == (ROWS,), name
  # Scores exist only inside the loss: a device has those of a quarter of the rows and half of the
  # words (37 padded to 40; the adaptive head holds two more, for its tails).
  assert blocks
  for tokens, words, size in blocks:
    assert tokens == cases.B * cases.T // 4
    assert words == -(-size // config.vocab_multiple) * config.vocab_multiple // 2


@pytest.fixture(scope='module')
def single():
  found = {}

  def get(kind, model):
    if (kind, model) not in found:
      found[kind, model] = cases.run(kind, model, MeshConfig(), devices=jax.devices()[:1])
    return found[kind, model]

  return get


def _compare(found, expected):
  worst = np.max([np.abs(np.asarray(a) - np.asarray(b)).max() / max(1.0, np.abs(b).max())
                  for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True)])
  print(f'largest difference {worst:.1e}')
  assert worst <= 1e-9  # nor NaN


@pytest.mark.parametrize(('model', 'mesh'), [
  ('plain', MeshConfig(slices=2, fsdp=2, model=2)),
  ('adaptive', MeshConfig(fsdp=4, model=2)),
  *(pytest.param(*case, marks=pytest.mark.weekly) for case in (
    ('plain', MeshConfig()), ('plain', MeshConfig(fsdp=8)),
    ('adaptive', MeshConfig(fsdp=2, model=2)), ('adaptive', MeshConfig(fsdp=2, model=4)))),
])
def test_eight_devices_give_what_one_gives(single, model, mesh):
  one = single('debias', model)
  drawn = model == 'plain'  # on the mesh too; given parameters compile nothing that draws
  found = cases.run('debias', model, mesh, params=None if drawn else one['first'])
  assert found['metrics'][0].keys() == one['metrics'][0].keys()
  _compare(found, one)


@pytest.mark.parametrize(('kind', 'mesh', 'grad_accum_steps'), [
  ('debias', MeshConfig(fsdp=2, model=2), 4),
  pytest.param('lm', MeshConfig(), 2, marks=pytest.mark.weekly)])
def test_accumulated_gradients_are_those_of_the_whole_batch(single, kind, mesh, grad_accum_steps):
  one = single(kind, 'plain')
  _compare(cases.run(
    kind, 'plain', mesh, grad_accum_steps=grad_accum_steps, params=one['first']), one)


def test_two_processes_give_what_one_gives(single, tmp_path, repository):
  output, port = tmp_path / 'leaves.npz', free_address().rpartition(':')[2]
  group = ends(start([['-m', 'tests.sharding_cases', i, port, 'debias', output] for i in range(2)],
                     repository))
  assert [code for code, _, _ in group] == [0, 0], group
  expected = single('debias', 'plain')
  found = np.load(output, allow_pickle=False)
  _compare([found[name] for name in found.files],
           [expected['params'], expected['memory'], expected['metrics']])
  nll = [float(re.search(r'nll ([\d.]+)', text)[1]) for _, text, _ in group]
  assert nll == pytest.approx([expected['nll']] * 2, rel=1e-9)


@jax.enable_x64()
def _gathered(kind, model, mesh_config):
  """Shapes of what a whole step gathers, and those of the parameters that the mesh splits."""
  mesh, config = make_mesh(mesh_config), cases.MODELS[model]
  stage = TrainConfig(batch_size=cases.B, clip_norm=1.0)
  state = steps.lm_state_template(language_model(config), stage, mesh)
  batch = {name: jax.ShapeDtypeStruct(
    x.shape, x.dtype, sharding=batch_sharding(mesh)) for name, x in cases.make_batch(
      0, config.vocab_size).items() if kind == 'debias' or name in ('inputs', 'targets', 'reset')}
  if kind == 'lm':
    step, extra = steps.make_lm_step(language_model(config), Adam.of(stage), mesh), ()
  else:
    term = steps.FairnessTerm.of(DebiasConfig(), SentimentConfig())
    step = steps.make_debias_step(language_model(config), Adam.of(stage), term, mesh)
    extra = ({'embedding': np.float32(1)}, None)
  with on_mesh(mesh):
    text = step.lower(state, batch, 0, np.float32(0.1), *extra).compile().as_text()
  found = re.findall(r'= \(?\w+\[([\d,]*)\]\S* all-gather', text)
  whole = {x.shape for x in jax.tree.leaves(state.params)}
  whole |= {shape[1:] for shape in whole}  # of one layer
  parts = {part for shape in whole for part in itertools.product(
    *({size, size // mesh_config.model} for size in shape))}
  return {tuple(map(int, shape.split(','))) for shape in found}, parts


@pytest.mark.parametrize(('kind', 'model', 'mesh'), [
  ('debias', 'adaptive', {'fsdp': 4, 'model': 2}),  # compiled above
  *(pytest.param(*case, marks=pytest.mark.weekly) for case in (
    ('lm', 'plain', {'fsdp': 4, 'model': 2}),
    ('debias', 'plain', {'slices': 2, 'fsdp': 2, 'model': 2})))])
def test_nothing_but_parameters_is_gathered(kind, model, mesh):
  """No memory and no other array of the rows, embeddings among them."""
  gathered, parameters = _gathered(kind, model, MeshConfig(**mesh))
  print(sorted(gathered))
  assert gathered, 'parameters are gathered over fsdp'
  assert gathered <= parameters, gathered - parameters
  length = cases.MODELS[model].memory_len
  assert not any({length, length + cases.T} & set(shape) for shape in gathered)


def test_rows_alone_gather_nothing():
  assert _gathered('debias', 'adaptive', MeshConfig())[0] == set()


@jax.enable_x64()
def test_what_does_not_divide_is_named():
  mesh = make_mesh(MeshConfig(fsdp=2, model=2))
  with pytest.raises(UserError, match=r'lm.batch_size=12 .* 4 devices .* times 2 .* of 8'):
    check_batch_size(12, mesh, field='lm.batch_size', grad_accum_steps=2)
  config = dataclasses.replace(cases.MODELS['plain'], vocab_multiple=1)
  with pytest.raises(UserError, match='model=2 does not divide 37.*vocab_multiple=2'):
    steps.lm_state_template(language_model(config), TrainConfig(batch_size=16), mesh)
  config = dataclasses.replace(cases.MODELS['plain'], num_heads=3)
  with pytest.raises(UserError, match='mesh.model=2 does not divide model.num_heads=3'):
    steps.lm_state_template(language_model(config), TrainConfig(batch_size=16), mesh)
  with jax.enable_x64(False), pytest.raises(UserError, match='=float64 needs .*JAX_ENABLE_X64'):
    steps.lm_state_template(language_model(cases.MODELS['plain']), TrainConfig(batch_size=17), mesh)


def test_mesh_takes_the_rest_and_rows_must_divide():
  mesh = make_mesh(MeshConfig())
  assert dict(mesh.shape) == {'slice': 1, 'data': 8, 'fsdp': 1, 'model': 1}
  check_batch_size(16, mesh, field='lm.batch_size')
  with pytest.raises(UserError, match='lm.batch_size=9 is not divisible by the 8 devices'):
    check_batch_size(9, mesh, field='lm.batch_size')
  rows = np.arange(16).reshape(8, 2)
  np.testing.assert_array_equal(to_devices({'x': rows}, mesh)['x'], rows)


# Slices: rows over the slices, parameters within each. On devices that only look like TPUs, and
# with -m libtpu on those that the TPU compiler describes.


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


@pytest.mark.parametrize(('kind', 'shape', 'cores'), [
  ('TPU v5 lite', (4, 4, 1), 1), ('TPU v4', (2, 2, 4), 1), ('TPU v3', (4, 2, 1), 2)])
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
  # All slices are laid out alike: gradients are summed between devices of the same place in each.
  places = {tuple((d.coords, d.core_on_chip) for d in part.flat) for part in mesh.devices}
  assert len(places) == 1


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
  for config in (MeshConfig(fsdp=3), MeshConfig(slices=3)):
    with pytest.raises(UserError, match=r'model=1 takes 3 devices or a multiple, not 1: set ') as e:
      make_mesh(config, jax.devices()[:1])
    assert 'data' not in str(e.value)  # which nobody set


def test_processes_or_fake_devices_stand_for_slices():
  mesh = make_mesh(MeshConfig(slices=2, fsdp=2, model=2))
  assert mesh.devices.shape == (2, 1, 2, 2)
  assert [d.id for d in mesh.devices[0].flat] == [d.id for d in jax.devices()[:4]]


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
def test_two_slices_as_the_tpu_compiler_describes_them(run_with_libtpu):
  names = ['v3:2x2', 'v4:2x2x2', 'v5e:4x4', 'v5p:2x2x1', 'v6e:2x4']
  done = run_with_libtpu('-c', CODE, *names)
  assert done.returncode == 0, done.stderr[-2000:]
  for name, line in zip(names, done.stdout.splitlines()[-len(names):], strict=True):
    found, half = json.loads(line), find_slice(name).num_devices
    assert found == {'devices': 2 * half, 'of': 2 * half, 'shape': [2, half // 2, 1, 2],
                     'slices': [[0], [1]], 'alike': True, 'places': half}, name
  # At half the width libtpu 0.0.50 (JAX 0.12.0) lacks a fusion: "2nd-minor compaction".
  done = run_with_libtpu(
    '-m', 'fairjax', 'tpu', 'compile', '--config=configs/quickstart.py', '--config.mesh.slices=2',
    '--config.model.model_dim=256', '--topology=v5e:2x2', '--program=lm', '--json')
  assert done.returncode == 0, done.stderr[-2000:]
  (program,) = json.loads(done.stdout)['programs']
  assert program['fits'] and program['mesh'] == {'slice': 2, 'data': 4}


@pytest.mark.parametrize(('name', 'lora'), [
  ('gemma3', 2), *(pytest.param(*case, marks=pytest.mark.weekly)
                   for case in (('llama3', 0), ('llama3', 2), ('gemma3', 0), ('neox', 2),
                                ('olmo3', 0), ('smollm3', 2)))])
@jax.enable_x64()
def test_eight_devices_step_a_published_decoder_as_one_does(name, lora):
  """Key heads and vocabulary, which the mesh does not divide, are whole."""
  folder = pathlib.Path(__file__).parents[1] / 'golden' / 'decoders' / name
  config = dataclasses.replace(
    read_decoder_config(json.loads((folder / 'config.json').read_text())), dtype='float64')
  stage, term = TrainConfig(batch_size=cases.B, clip_norm=1.0), steps.FairnessTerm.of(
    DebiasConfig(), SentimentConfig())
  batch = cases.make_batch(0, config.vocab_size) | {
    'segment_ids': np.tile(np.arange(cases.T) >= 3, (cases.B, 1)).astype(np.int32),
    'positions': np.tile([*range(3), *range(cases.T - 3)], (cases.B, 1)).astype(np.int32),
    'weights': (np.arange(cases.B * cases.T).reshape(cases.B, -1) % 5 > 0).astype(np.float32)}
  found = []
  for mesh in (make_mesh(MeshConfig(fsdp=2, model=2)), make_mesh(MeshConfig(), jax.devices()[:1])):
    model, extra = DecoderModel(config), ()
    start = steps.init_lm_state(model, stage, mesh, seed=3)
    if lora:
      model, extra = LoraDecoder(config, lora), (start.params,)
      start = steps.init_lm_state(model, stage, mesh, seed=4)
    step = steps.make_debias_step(model, Adam.of(stage), term, mesh)
    for _ in range(2):
      start, metrics = step(start, to_devices(batch, mesh), 0, np.float32(0.01),
                            {'embedding': np.float32(3)}, None, *extra)
    found.append((jax.tree.map(np.asarray, start.params),
                  {name: float(value) for name, (value, _) in metrics.items()}))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-10), *found)
