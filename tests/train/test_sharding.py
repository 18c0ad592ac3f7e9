"""The shardings of arrays, and that they change no result."""

import dataclasses
import itertools
import os
import re
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from fairjax.config import DebiasConfig, MeshConfig, SentimentConfig, TrainConfig
from fairjax.errors import UserError
from fairjax.model import TransformerXL, likelihood
from fairjax.model.causal_lm import Branches
from fairjax.model.softmax import parameter_table
from fairjax.train import make_mesh, steps
from fairjax.train.optimizer import Adam
from fairjax.train.sharding import batch_sharding, check_batch_size, on_mesh, to_devices
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
  state = steps.lm_state_template(cases.MODELS[model], TrainConfig(batch_size=16), mesh)
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


@pytest.mark.parametrize('model', ['plain', 'adaptive'])
@jax.enable_x64()
def test_batches_states_branches_and_logits_have_the_sharding_of_their_rows(model, monkeypatch):
  mesh, config = make_mesh(MeshConfig(slices=1, data=2, fsdp=2, model=2)), cases.MODELS[model]
  state = steps.init_lm_state(config, TrainConfig(batch_size=16), mesh, seed=0)
  batch = to_devices(cases.make_batch(0, config.vocab_size), mesh)
  blocks = []  # (scores of a block's tokens, of its words) of one device

  def record(cls, params, cluster, block, num_tokens, *, made=likelihood.VocabLogits.of.__func__):
    table = made(cls, params, cluster, block, num_tokens)
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
  """Results on one device, by kind of step and model."""
  found = {}

  def get(kind, model):
    if (kind, model) not in found:
      found[kind, model] = cases.run(kind, model, MeshConfig(), devices=jax.devices()[:1])
    return found[kind, model]

  return get


def _compare(found, expected):
  assert found['metrics'][0].keys() == expected['metrics'][0].keys()
  worst = 0.0
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    scale = max(1.0, np.abs(b).max())
    worst = max(worst, np.abs(np.asarray(a) - np.asarray(b)).max() / scale)
  print(f'largest difference {worst:.1e}')
  assert worst <= 1e-9


@pytest.mark.parametrize(('model', 'mesh'), [
  ('plain', MeshConfig()),
  ('plain', MeshConfig(fsdp=8)),
  ('plain', MeshConfig(slices=2, fsdp=2, model=2)),
  ('adaptive', MeshConfig(fsdp=2, model=2)),
  ('adaptive', MeshConfig(fsdp=2, model=4)),
])
def test_eight_devices_give_what_one_gives(single, model, mesh):
  _compare(cases.run('debias', model, mesh), single('debias', model))


@pytest.mark.parametrize(('kind', 'mesh', 'grad_accum_steps'), [
  ('debias', MeshConfig(fsdp=2, model=2), 4), ('lm', MeshConfig(), 2)])
def test_accumulated_gradients_are_those_of_the_whole_batch(single, kind, mesh, grad_accum_steps):
  found = cases.run(kind, 'plain', mesh, grad_accum_steps=grad_accum_steps)
  _compare(found, single(kind, 'plain'))


def test_two_processes_give_what_one_gives(single, tmp_path, repository):
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    port = s.getsockname()[1]
  environment = os.environ | {'PYTHONPATH': str(repository), 'XLA_FLAGS': ''}
  output = tmp_path / 'leaves.npz'
  processes = [subprocess.Popen(
    [sys.executable, '-m', 'tests.sharding_cases', str(i), str(port), 'debias', str(output)],
    cwd=repository, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for i in range(2)]
  texts = [p.communicate(timeout=300)[0] for p in processes]
  assert [p.returncode for p in processes] == [0, 0], '\n'.join(texts)[-3000:]
  expected = single('debias', 'plain')
  found = np.load(output, allow_pickle=False)
  leaves = jax.tree.leaves([expected['params'], expected['memory'], expected['metrics']])
  assert len(found.files) == len(leaves)
  worst = max(np.abs(found[name] - leaf).max() / max(1, np.abs(leaf).max())
              for name, leaf in zip(found.files, leaves, strict=True))
  print(f'largest difference {worst:.1e}')
  for name, leaf in zip(found.files, leaves, strict=True):
    np.testing.assert_allclose(found[name], leaf, rtol=0, atol=1e-9 * max(1, np.abs(leaf).max()))
  nll = [float(re.search(r'nll ([\d.]+)', text)[1]) for text in texts]
  assert nll == pytest.approx([expected['nll']] * 2, rel=1e-9)


@jax.enable_x64()
def _gathered(kind, model, mesh_config):
  """Shapes of what a whole step gathers, and those of the parameters that the mesh splits."""
  mesh, config, stage = make_mesh(mesh_config), cases.MODELS[model], TrainConfig(batch_size=16)
  state = steps.lm_state_template(config, stage, mesh)
  batch = {name: jax.ShapeDtypeStruct(
    x.shape, x.dtype, sharding=batch_sharding(mesh)) for name, x in cases.make_batch(
      0, config.vocab_size).items() if kind == 'debias' or name in ('inputs', 'targets', 'reset')}
  if kind == 'lm':
    step, extra = steps.make_lm_step(config, Adam.of(stage), mesh), ()
  else:
    term = steps.FairnessTerm.of(DebiasConfig(), SentimentConfig())
    step = steps.make_debias_step(config, Adam.of(stage), term, mesh)
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
  ('lm', 'plain', {'fsdp': 4, 'model': 2}), ('lm', 'adaptive', {'fsdp': 4, 'model': 2}),
  ('debias', 'adaptive', {'fsdp': 4, 'model': 2}),
  ('debias', 'plain', {'slices': 2, 'fsdp': 2, 'model': 2})])
def test_nothing_but_parameters_is_gathered(kind, model, mesh):
  """No memory and no other array of the rows, embeddings among them."""
  gathered, parameters = _gathered(kind, model, MeshConfig(**mesh))
  print(sorted(gathered))
  assert gathered, 'parameters are gathered over fsdp'
  assert gathered <= parameters, gathered - parameters
  length = cases.MODELS[model].memory_len
  assert not any({length, length + cases.T} & set(shape) for shape in gathered)


@pytest.mark.parametrize('kind', ['lm', 'debias'])
def test_rows_alone_gather_nothing(kind):
  assert _gathered(kind, 'adaptive', MeshConfig())[0] == set()


@jax.enable_x64()
def test_what_does_not_divide_is_named():
  mesh = make_mesh(MeshConfig(fsdp=2, model=2))
  with pytest.raises(UserError, match=r'lm.batch_size=12 .* 4 devices .* times 2 .* of 8'):
    check_batch_size(12, mesh, field='lm.batch_size', grad_accum_steps=2)
  config = dataclasses.replace(cases.MODELS['plain'], vocab_multiple=1)
  with pytest.raises(UserError, match='model=2 does not divide 37.*vocab_multiple=2'):
    steps.lm_state_template(config, TrainConfig(batch_size=16), mesh)
  config = dataclasses.replace(cases.MODELS['plain'], num_heads=3)
  with pytest.raises(UserError, match='mesh.model=2 does not divide model.num_heads=3'):
    steps.lm_state_template(config, TrainConfig(batch_size=16), mesh)


def test_mesh_takes_the_rest_and_refuses_what_does_not_fit():
  n = jax.device_count()
  assert dict(make_mesh(MeshConfig()).shape) == {
    'slice': 1, 'data': n, 'fsdp': 1, 'model': 1}
  with pytest.raises(UserError, match='multiply'):
    make_mesh(MeshConfig(data=n + 1))


def test_rows_must_divide():
  mesh = make_mesh(MeshConfig())
  check_batch_size(2 * jax.device_count(), mesh, field='lm.batch_size')
  with pytest.raises(UserError, match='lm.batch_size=9 is not divisible by the 8 devices'):
    check_batch_size(9, mesh, field='lm.batch_size')
  rows = np.arange(16).reshape(8, 2)
  np.testing.assert_array_equal(to_devices({'x': rows}, mesh)['x'], rows)
