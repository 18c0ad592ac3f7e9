"""The fused kernel, interpreted, against whole scores."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.extend.core
import jax.numpy as jnp
import model_oracle as oracle
import numpy as np
import pytest
from jax.sharding import AxisType

from fairjax.model import TransformerXL, attention_paths, attention_tiles
from fairjax.model.attention import relative_attention
from fairjax.model.attention_kernel import fused_attention

N, B, H = 2, 3, 8


def _arrays(segment_len, memory_len, dtype=jnp.float32):
  """q, key_value, relative, u, v and three rows: whole memory, part of it, none."""
  rng = np.random.default_rng(segment_len)
  keys = memory_len + segment_len
  shapes = ((N, B, segment_len, H), (2, N, B, keys, H), (N, keys, H), (N, H), (N, H))
  arrays = [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]
  return arrays, jnp.array([memory_len, memory_len // 3, 0], jnp.int32)


def _reference(query, key_value, *rest):
  return relative_attention(query, key_value[0], key_value[1], *rest)


def _value_and_gradients(attention, arrays, length):
  """The output and the gradients of every array under an uneven cotangent."""
  out, vjp = jax.vjp(lambda *a: attention(*a, length), *arrays)
  cotangent = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
  return out, *vjp(cotangent.astype(out.dtype))


def _errors(ours, expected):
  """Largest error of every array relative to its largest entry."""
  return [float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in zip(
    *(jax.tree.map(lambda x: np.asarray(x, np.float64), t) for t in (ours, expected)), strict=True)]


@pytest.mark.parametrize(('segment_len', 'memory_len', 'block', 'barrel'), [
  (16, 16, 8, False), (24, 8, 8, True), (8, 0, 8, False), (21, 11, 8, True), (5, 19, 8, False),
  (13, 7, 16, False), (17, 9, 12, True)])
def test_values_and_gradients_are_those_of_whole_scores(segment_len, memory_len, block, barrel,
                                                         monkeypatch):
  arrays, length = _arrays(segment_len, memory_len)
  # Rows are reversed in groups of the width of a register: in two of them here.
  monkeypatch.setattr(attention_tiles, '_LANES', 4)
  kernel = functools.partial(fused_attention, block=block, barrel=barrel, interpret=True)
  ours, expected = (
    oracle.jit(lambda a, f=f: _value_and_gradients(f, a, length))(arrays)
    for f in (kernel, _reference))
  assert max(_errors(ours, expected)) <= 1e-5


def test_bfloat16_is_no_farther_from_float32_than_whole_scores_are():
  exact, length = _arrays(16, 16)
  coarse = [a.astype(jnp.bfloat16) for a in exact]
  kernel = functools.partial(fused_attention, block=8, interpret=True)
  expected = _value_and_gradients(_reference, [a.astype(jnp.float32) for a in coarse], length)
  ours, theirs = (_value_and_gradients(f, coarse, length) for f in (kernel, _reference))
  assert {a.dtype for a in ours} == {jnp.dtype('bfloat16')}
  root_mean_square = lambda arrays: [  # noqa: E731
    float(np.sqrt(np.mean((np.asarray(a, np.float32) - b) ** 2) / np.mean(b ** 2)))
    for a, b in zip(arrays, expected, strict=True)]
  for a, b in zip(root_mean_square(ours), root_mean_square(theirs), strict=True):
    assert a < 1.2 * b < 0.05


def test_no_array_grows_with_the_square_of_the_segment():
  arrays, length = _arrays(64, 64)
  kernel = functools.partial(fused_attention, block=16, interpret=True)
  program = jax.make_jaxpr(lambda a: _value_and_gradients(kernel, a, length))(arrays)
  shapes = set()

  def walk(jaxpr):
    for equation in jaxpr.eqns:
      shapes.update(v.aval.shape for v in equation.outvars)
      for inner in jax.extend.core.jaxprs_in_params(equation.params):
        walk(inner)

  walk(program.jaxpr)
  assert not [shape for shape in shapes if np.prod(shape) > 2 * N * B * 128 * H]


@pytest.mark.parametrize(('changes', 'words'), [
  ({'block': 100}, 'multiple of 128'), ({'block': 256, 'dtype': jnp.float16}, 'float16')])
def test_what_the_kernel_cannot_do_is_refused(changes, words):
  arrays, length = _arrays(8, 8, changes.get('dtype', jnp.float32))
  with pytest.raises(ValueError, match=words):
    fused_attention(*arrays, length, block=changes['block'])


RULES = (('rows', ('data', 'fsdp')), ('heads', 'model'))


@pytest.mark.parametrize(('shape', 'split'), [
  ((2, 1, 2), True), ((1, 2, 2), True), ((8, 1, 1), False), ((1, 1, 8), False)])
def test_every_device_computes_its_own_rows_and_heads(shape, split):
  arrays, length = _arrays(16, 16)
  arrays[0], arrays[1] = arrays[0][:, :2], arrays[1][:, :, :2]
  length = length[:2]
  kernel = functools.partial(fused_attention, block=8, interpret=True)
  expected = _value_and_gradients(_reference, arrays, length)
  mesh = jax.make_mesh(shape, ('data', 'fsdp', 'model'), axis_types=(AxisType.Auto,) * 3,
                       devices=jax.devices()[:int(np.prod(shape))])
  with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
    program = jax.jit(lambda a, n: _value_and_gradients(
      attention_paths.over_mesh(kernel, (N, 2)), a, n))
    ours = program(arrays, length)
    text = str(jax.make_jaxpr(program)(arrays, length))
  assert max(_errors(ours, expected)) <= 1e-5
  # Inside a device: one of two rows and one of two heads, or all where they do not divide.
  assert 'shard_map' in text
  assert (f'f32[1,1,16,{H}]' in text) == split


def test_a_model_with_the_kernel_equals_one_with_whole_scores(monkeypatch):
  monkeypatch.setattr(attention_paths, 'fused_attention', functools.partial(
    fused_attention, interpret=True))
  shift = dataclasses.replace(oracle.TINY, attention='shift')
  kernel = dataclasses.replace(shift, attention='kernel', attention_block=8, remat='dots')
  params, branches = oracle.make_params(shift), oracle.eight_branches()
  tokens, memory = oracle.random_tokens(shift, 2, 8), oracle.random_memory(shift, 2, [3, 0])

  def loss(params, config):
    output = TransformerXL(config).apply({'params': params}, tokens, memory, branches)
    return sum(jnp.sin(x).sum() for x in (output.hidden, output.pairs.h_bar_branch))

  ours, expected = (
    oracle.jit(jax.grad(lambda p, c=c: loss(p, c)))(params) for c in (kernel, shift))
  assert max(_errors(jax.tree.leaves(ours), jax.tree.leaves(expected))) <= 1e-5
