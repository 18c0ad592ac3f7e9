"""The fused kernel, interpreted, against whole scores."""

import dataclasses
import functools
import json
import math

import flax.linen as nn
import jax
import jax.extend.core
import jax.numpy as jnp
import model_oracle as oracle
import numpy as np
import pytest
from jax.sharding import AxisType

from fairjax.model import TransformerXL, attention_kernel, attention_paths
from fairjax.model.attention import branch_attention, relative_attention
from fairjax.model.attention_kernel import fused_attention, kernel_runs_on

N, B, H = 2, 3, 8
_value_and_gradients = oracle.value_and_gradients


def _arrays(segment_len, memory_len, branches=(0, 0), dtype=jnp.float32):
  """q, key_value, relative, u, v; memory lengths of three rows: whole, a part, none; starts.

  Branches start anywhere, at both ends too.
  """
  rng = np.random.default_rng(segment_len)
  keys, (count, pieces) = memory_len + segment_len, branches
  behind = count * pieces
  shapes = ((N, B, segment_len + behind, H), (2, N, B, keys + behind, H), (N, keys + pieces, H),
            (N, H), (N, H))
  arrays = [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]
  length = jnp.array([memory_len, memory_len // 3, 0], jnp.int32)
  if not count:
    return arrays, length, None
  start = rng.integers(0, segment_len, size=(B, count))
  # The first position with a whole memory and with none, and the last one.
  start[0, 0], start[1, -1], start[2, 0] = 0, segment_len - 1, 0
  return arrays, length, jnp.asarray(start, jnp.int32)


def _reference(query, key_value, relative, u, v, length, start=None, *, segment_len):
  row, own = jnp.split(key_value, [key_value.shape[3] - query.shape[2] + segment_len], axis=3)
  further, near = jnp.split(relative, [relative.shape[1] - row.shape[3]], axis=1)
  found = relative_attention(query[:, :, :segment_len], *row, near, u, v, length)
  if start is None:
    return found
  return jnp.concatenate([found, branch_attention(
    query[:, :, segment_len:], *row, *own, near, further, u, v, start, length,
    segment_len=segment_len)], axis=2)


def _both(arrays, length, start, segment_len, **options):
  """Values and gradients by the kernel and by the reference."""
  kernel = functools.partial(fused_attention, interpret=True, **options)
  return (oracle.jit(lambda a, f=f: _value_and_gradients(
    lambda *a: f(*a, start, segment_len=segment_len), a, length))(arrays)
    for f in (kernel, _reference))


def _errors(ours, expected):
  """Largest error of every array relative to its largest entry; infinite for what is no number."""
  found = [float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in zip(
    *(jax.tree.map(lambda x: np.asarray(x, np.float64), t) for t in (ours, expected)), strict=True)]
  return [x if np.isfinite(x) else np.inf for x in found]


# Without branches, then with them: whole blocks and padded ones; rows of branches that fill theirs
# and that do not; one piece.
@pytest.mark.parametrize(('segment_len', 'memory_len', 'block', 'barrel_shift', 'branches'), [
  *((*case, (0, 0)) for case in (
    (16, 16, 8, False), (24, 8, 8, True), (8, 0, 8, False), (21, 11, 8, True), (5, 19, 8, False),
    (13, 7, 16, False), (17, 9, 12, True))),
  (24, 8, 8, True, (2, 4)), (8, 0, 8, False, (1, 1)), (13, 7, 16, False, (4, 3)),
  *(pytest.param(*case, marks=pytest.mark.weekly) for case in (
    (16, 16, 8, False, (4, 2)), (5, 19, 8, False, (2, 4)), (33, 40, 16, True, (8, 1))))])
def test_values_and_gradients_are_those_of_whole_scores(
    segment_len, memory_len, block, barrel_shift, branches, monkeypatch):
  # Rows are reversed in groups of the width of a register: in two of them here.
  monkeypatch.setattr(attention_kernel, '_LANES', 4)
  given = _arrays(segment_len, memory_len, branches)
  assert max(_errors(*_both(*given, segment_len, block=block, barrel_shift=barrel_shift))) <= 1e-5


@pytest.mark.parametrize(('kind', 'sizes', 'branches', 'alone', 'joint'), [
  ('TPU v5 lite', {}, (4, 4), True, True),
  ('TPU v5 lite', {}, (16, 33), True, False),  # more rows than a block
  ('TPU v4', {}, (16, 16), True, False),  # memory
  ('TPU v4', {'dtype': 'bfloat16'}, (4, 4), True, True),
  ('TPU v4', {'dtype': 'bfloat16'}, (16, 32), True, False),  # blocks are smaller there
  ('TPU v5 lite', {'segment_len': 100}, (16, 16), True, False),  # blocks of 128
  ('TPU v5 lite', {'segment_len': 4096, 'memory_len': 4096}, (16, 16), True, False),
  ('TPU v5 lite', {'segment_len': 65536, 'memory_len': 65536}, (4, 4), False, False),
  ('TPU v3', {}, (4, 4), False, False), ('cpu', {}, (4, 4), False, False)])
def test_where_branches_go_along(kind, sizes, branches, alone, joint):
  sizes = {'segment_len': 512, 'memory_len': 512, 'width': 128, 'block': 512} | sizes
  assert kernel_runs_on(kind, **sizes) == alone
  assert kernel_runs_on(kind, **sizes, branches=branches) == joint


@pytest.mark.parametrize('branches', [
  (0, 0), pytest.param((4, 2), marks=pytest.mark.weekly)])
def test_bfloat16_is_no_farther_from_float32_than_whole_scores_are(branches):
  coarse, *rest = _arrays(16, 16, branches, jnp.bfloat16)
  ours, theirs = _both(coarse, *rest, 16, block=8)
  _, expected = _both([a.astype(jnp.float32) for a in coarse], *rest, 16, block=8)
  assert {a.dtype for a in ours} == {jnp.dtype('bfloat16')}
  root_mean_square = lambda arrays: [  # noqa: E731
    float(np.sqrt(np.mean((np.asarray(a, np.float32) - b) ** 2) / np.mean(b ** 2)))
    for a, b in zip(arrays, expected, strict=True)]
  for a, b in zip(root_mean_square(ours), root_mean_square(theirs), strict=True):
    assert a < 1.2 * b < 0.05


def _equations(jaxpr):
  """All equations of a jaxpr, those of what it calls too, of conditions both ways."""
  for equation in jaxpr.eqns:
    yield equation
    for called in jax.extend.core.jaxprs_in_params(equation.params):
      yield from _equations(called)


def test_no_array_grows_with_the_square_of_the_segment():
  arrays, length, start = _arrays(64, 64, (4, 4))
  program = jax.make_jaxpr(lambda a: _value_and_gradients(lambda *a: fused_attention(
    *a, start, segment_len=64, block=16, interpret=True), a, length))(arrays)
  shapes = {v.aval.shape for equation in _equations(program.jaxpr) for v in equation.outvars}
  assert not [shape for shape in shapes if np.prod(shape) > 2 * N * B * 144 * H]


RULES = (('rows', ('data', 'fsdp')), ('heads', 'model'))


@pytest.mark.parametrize(('shape', 'split', 'branches'), [
  ((1, 2, 2), True, (4, 2)), ((8, 1, 1), False, (0, 0)),
  *(pytest.param(*case, marks=pytest.mark.weekly) for case in (
    ((1, 2, 2), True, (0, 0)), ((8, 1, 1), False, (4, 2))))])
def test_every_device_computes_its_own_rows_and_heads(shape, split, branches):
  arrays, *by_row = _arrays(16, 16, branches)
  arrays[0], arrays[1] = arrays[0][:, :2], arrays[1][:, :, :2]
  by_row = [x[:2] for x in by_row if x is not None]
  mesh = jax.make_mesh(shape, ('data', 'fsdp', 'model'), axis_types=(AxisType.Auto,) * 3,
                       devices=jax.devices()[:int(np.prod(shape))])

  def gradients(attention):
    return jax.jit(lambda arrays, length, *start: _value_and_gradients(
      lambda *a: attention(*a, *start), arrays, length))

  expected = gradients(functools.partial(_reference, segment_len=16))(arrays, *by_row)
  with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
    program = gradients(attention_paths.over_mesh(functools.partial(
      fused_attention, segment_len=16, block=8, interpret=True)))
    ours = program(arrays, *by_row)
    text = str(jax.make_jaxpr(program)(arrays, *by_row))
  assert max(_errors(ours, expected)) <= 1e-5
  # Inside a device: one of two rows and one of two heads, or all where they do not divide.
  assert 'shard_map' in text
  assert (f'f32[1,1,{16 + math.prod(branches)},{H}]' in text) == split


@pytest.mark.parametrize('joint', [True, pytest.param(False, marks=pytest.mark.weekly)])
def test_a_model_with_the_kernel_equals_one_with_whole_scores(monkeypatch, joint):
  calls = []

  def interpreted(*arrays, **options):
    calls.append(len(arrays) == 7)  # with the starts of branches
    return fused_attention(*arrays, interpret=True, **options)

  monkeypatch.setattr(attention_paths, 'fused_attention', interpreted)
  monkeypatch.setattr(attention_paths, 'kernel_runs_on', lambda *args, **sizes: joint)
  shift = dataclasses.replace(oracle.TINY, attention='shift')
  kernel = dataclasses.replace(shift, attention='kernel', attention_block=16, remat='dots')
  params, branches = oracle.make_params(shift), oracle.eight_branches()
  tokens, memory = oracle.random_tokens(shift, 2, 8), oracle.random_memory(shift, 2, [3, 0])

  def loss(params, config):
    output = TransformerXL(config).apply({'params': params}, tokens, memory, branches)
    return sum(jnp.sin(x).sum() for x in (output.hidden, output.pairs.h_bar_branch))

  ours, expected = (
    oracle.jit(jax.grad(lambda p, c=c: loss(p, c)))(params) for c in (kernel, shift))
  assert max(_errors(jax.tree.leaves(ours), jax.tree.leaves(expected))) <= 1e-5
  assert set(calls) == {joint}


def _product_flops(eqn):
  ((contracted,), _), _ = eqn.params['dimension_numbers']
  return 2 * eqn.outvars[0].aval.size * eqn.invars[0].aval.shape[contracted]


@pytest.mark.parametrize('barrel_shift', [False, True])
@pytest.mark.parametrize(('block', 'width'), [(128, 64), (256, 128)])
def test_declared_operations_are_those_of_the_kernel(barrel_shift, block, width):
  """Those of the tiles that are not skipped, without branches; nothing runs."""
  n, b, t, m = 2, 3, 2 * block, block
  arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in (
    (n, b, t, width), (2, n, b, m + t, width), (n, m + t, width), (n, width), (n, width))]
  length = jnp.full((b,), m, jnp.int32)

  def loss(*arrays):
    out = fused_attention(
      *arrays, length, segment_len=t, block=block, barrel_shift=barrel_shift)
    return out.astype(jnp.float32).sum()

  traced = jax.make_jaxpr(jax.grad(loss, argnums=range(5)))(*arrays).jaxpr
  kernels = {eqn.params['jaxpr'].debug_info.func_name: eqn.params for eqn in _equations(traced)
             if eqn.primitive.name == 'pallas_call'}
  assert set(kernels) == {'relative_attention', 'relative_attention_backward'}
  tiles = n * b * (2 + 3)  # query blocks that see memory and themselves
  for kernel in kernels.values():
    products = [_product_flops(eqn) for eqn in _equations(kernel['jaxpr'])
                if eqn.primitive.name == 'dot_general']
    assert kernel['cost_estimate'].flops == tiles * sum(products) > 0


# The kernel compiles for every TPU that it is for. This needs libtpu (`pip install libtpu`), which
# compiles for a named topology on any machine, and no TPU. Each compilation has its own process,
# since libtpu is loaded once per process.

CODE = '''
import json, sys
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from fairjax.config import ModelConfig
from fairjax.model.attention_paths import choose_attention, main_attention, takes_branches

topology, dtype, (T, M, H, K, P) = *sys.argv[1:3], map(int, sys.argv[3:])
devices = topologies.get_topology_desc(platform='tpu', topology_name=topology).devices
mesh = Mesh(np.array(devices[:1]), ('x',), axis_types=(AxisType.Auto,))
config = ModelConfig(segment_len=T, memory_len=M, head_dim=H, dtype=dtype)

def array(*shape, dtype=jnp.dtype(dtype)):
  return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))

N, B, S, Q = 8, 2, M + T, K * P
arrays = (array(N, B, T + Q, H), array(2, N, B, S + Q, H), array(N, S + P, H), array(N, H),
          array(N, H))

def attention(*arrays, start, length):
  return main_attention(config, *arrays, length, start=start if K else None, segment_len=T)

def gradients(arrays, start, length):
  out, vjp = jax.vjp(lambda *a: attention(*a, start=start, length=length), *arrays)
  return vjp(out)

with jax.set_mesh(mesh):
  compiled = jax.jit(gradients).lower(
    arrays, array(B, K, dtype=jnp.int32), array(B, dtype=jnp.int32)).compile()
  takes = takes_branches(config, T, M, (K, P))
print(json.dumps({
  'takes': takes,
  'path': choose_attention(config, devices[0].device_kind),
  'kernels': compiled.as_text().count('custom_call_target="tpu_custom_call"'),
  'temporary': compiled.memory_analysis().temp_size_in_bytes}))
'''


def _compile(run_with_libtpu, topology, dtype, sizes):
  done = run_with_libtpu('-c', CODE, topology, dtype, *map(str, sizes))
  assert done.returncode == 0, done.stderr[-2000:]
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.libtpu
@pytest.mark.parametrize('topology', ['v4:2x2x1', 'v5e:2x2', 'v5p:2x2x1', 'v6e:2x2'])
@pytest.mark.parametrize('sizes', [
  (512, 512, 128, 0, 0), (4096, 4096, 128, 0, 0), (640, 100, 64, 0, 0), (512, 512, 128, 4, 4),
  (640, 100, 64, 3, 2)])
def test_forward_and_backward_compile_for(topology, sizes, run_with_libtpu):
  found = _compile(run_with_libtpu, topology, 'bfloat16', sizes)
  assert (found['path'], found['kernels'], found['takes']) == ('kernel', 2, True)
  # The scores of T = M = 4096 would be 1 GiB.
  assert found['temporary'] <= 100 * 2 ** 20


@pytest.mark.libtpu
@pytest.mark.parametrize(('topology', 'dtype', 'sizes'), [
  ('v4:2x2x1', 'float32', (768, 768, 64, 4, 4)), ('v4:2x2x1', 'bfloat16', (1024, 1024, 64, 4, 8)),
  ('v5e:2x2', 'bfloat16', (4096, 4096, 128, 8, 8)),
  ('v5e:2x2', 'float32', (1024, 1024, 64, 16, 16)),
  ('v5p:2x2x1', 'float32', (2048, 2048, 64, 4, 4)),
  ('v6e:2x2', 'float32', (3072, 3072, 64, 8, 8))])
def test_branches_that_are_let_in_fit_into_the_core(topology, dtype, sizes, run_with_libtpu):
  """Near the most that `kernel_runs_on` lets in."""
  found = _compile(run_with_libtpu, topology, dtype, sizes)
  assert (found['path'], found['kernels'], found['takes']) == ('kernel', 2, True)
