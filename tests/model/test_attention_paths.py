"""Every way to compute attention against whole scores: values, gradients, dropout, memory."""

import types

import jax
import jax.extend.random
import jax.numpy as jnp
import model_oracle as oracle
import numpy as np
import pytest

from fairjax.config import ModelConfig
from fairjax.model.attention import (
  attention_by_head,
  attention_in_blocks,
  attention_keep,
  relative_attention,
)
from fairjax.model.attention_paths import (
  as_kept,
  choose_attention,
  main_attention,
  takes_branches,
)

N, B, M, H = 3, 2, 5, 4
SEED = jnp.array([12345, 2 ** 31 + 6789], jnp.uint32)
_value_and_gradients = oracle.value_and_gradients


def _arrays(segment_len, memory_len, dtype, heads=N):
  rng = np.random.default_rng(segment_len)
  keys = memory_len + segment_len
  shapes = ((heads, B, segment_len, H), (heads, B, keys, H), (heads, B, keys, H), (heads, keys, H),
            (heads, H), (heads, H))
  return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


@pytest.mark.parametrize('path', [attention_in_blocks, attention_by_head])
@pytest.mark.parametrize(('segment_len', 'memory_len', 'block', 'rate'), [
  (8, 5, 4, 0.3), (13, 5, 4, 0.0), (37, 3, 4, 0.3), (7, 0, 3, 0.0), (3, 9, 16, 0.3), (6, 2, 1, 0.0),
  *(pytest.param(*case, marks=pytest.mark.weekly) for case in (
    (8, 5, 4, 0.0), (13, 5, 4, 0.3), (37, 3, 4, 0.0), (7, 0, 3, 0.3), (3, 9, 16, 0.0),
    (6, 2, 1, 0.3)))])
def test_blocks_have_the_values_and_gradients_of_whole_scores(
    segment_len, memory_len, block, rate, path):
  with jax.enable_x64(True):
    arrays = _arrays(segment_len, memory_len, jnp.float64)
    length = jnp.array([memory_len, min(2, memory_len)], jnp.int32)
    seed = SEED if rate else None
    expected, ours = (
      jax.jit(lambda a, f=f: _value_and_gradients(f, a, length))(arrays) for f in (
        lambda *a: relative_attention(*a, seed, rate=rate),
        lambda *a: path(*a, seed, rate=rate, block=block)))
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-10), ours, expected)
    assert all(np.abs(g).max() > 1e-3 for g in ours[1:])


@pytest.mark.parametrize('path', ['shift', 'heads', 'blocks'])
def test_the_config_chooses_the_path(path):
  with jax.enable_x64(True):
    arrays, length = _arrays(7, M, jnp.float64), jnp.array([M, 1], jnp.int32)
    config = ModelConfig(attention=path, attention_block=2, attention_dropout=0.3)
    query, key, value, *rest = arrays
    ours = lambda seed: main_attention(  # noqa: E731
      config, query, jnp.stack([key, value]), *rest, length, seed, segment_len=7)
    for seed in (None, SEED):
      np.testing.assert_allclose(
        ours(seed), relative_attention(*arrays, length, seed, rate=0.3), rtol=0, atol=1e-12)
    program = str(jax.make_jaxpr(ours)(SEED))
    assert ('scan' in program) == (path in ('heads', 'blocks'))
    assert (f'f64[{N},{B},7,{M + 7}]' in program) == (path == 'shift')


def _temporaries(attention, segment_len, heads=N):
  shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in jax.eval_shape(
    lambda: _arrays(segment_len, segment_len, jnp.float32, heads))]
  length = jax.ShapeDtypeStruct((B,), jnp.int32)
  compiled = jax.jit(lambda a, n: _value_and_gradients(attention, a, n)).lower(
    shapes, length).compile()
  return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize('rate', [pytest.param(0.0, marks=pytest.mark.weekly), 0.3])
def test_blocks_never_hold_the_whole_scores(rate):
  T, seed = 1024, SEED if rate else None
  scores = 4 * N * B * T * 2 * T
  assert _temporaries(lambda *a: relative_attention(*a), T) > scores
  assert _temporaries(
    lambda *a: attention_in_blocks(*a, seed, rate=rate, block=16), T) < 0.25 * scores


@pytest.mark.parametrize('rate', [pytest.param(0.0, marks=pytest.mark.weekly), 0.3])
def test_heads_hold_the_scores_of_one_head(rate):
  seed = SEED if rate else None

  def temporaries(heads):
    return _temporaries(
      lambda *a: attention_by_head(*a, seed, rate=rate, block=256), 1024, heads)

  # Four more heads; their scores alone would be four times this.
  assert temporaries(6) - temporaries(2) < 0.1 * 4 * B * 1024 * 2048


def test_dropout_is_threefry_of_head_row_position_and_column():
  positions = jnp.array([[3, 0], [7, 2]])
  keep = attention_keep(SEED, positions, num_heads=3, num_columns=5, rate=0.3)
  for n, b, q, column in np.ndindex(*keep.shape):
    counters = [n * 2 ** 16 + b, int(positions[b, q]) * 2 ** 16 + column]
    word = jax.extend.random.threefry_2x32(SEED, jnp.array(counters, jnp.uint32))[0]
    assert bool(keep[n, b, q, column]) == (int(word) < 0.7 * 2 ** 32)
  some = attention_keep(SEED, positions[:, 1:], num_heads=2, columns=jnp.full((2, 1, 3), 4),
                        rate=0.3, first_head=1)
  np.testing.assert_array_equal(some, np.repeat(keep[1:, :, 1:, 4:], 3, axis=-1))
  assert attention_keep(SEED, positions, num_heads=3, num_columns=5, rate=1e-30).all()
  assert attention_keep(None, positions, num_heads=2, num_columns=3, rate=0.3) is None


@pytest.mark.parametrize(('device_kind', 'changes', 'expected'), [
  ('cpu', {'segment_len': 128}, 'shift'),
  ('cpu', {'segment_len': 129}, 'heads'),
  ('NVIDIA H100', {'segment_len': 256}, 'shift'),
  ('NVIDIA H100', {}, 'blocks'),
  ('TPU v3', {}, 'blocks'),
  ('TPU v4', {}, 'kernel'),
  ('TPU v5 lite', {}, 'kernel'),
  ('TPU v6 lite', {}, 'kernel'),
  ('TPU v5 lite', {'segment_len': 64}, 'shift'),
  ('TPU v5 lite', {'attention_dropout': 0.1}, 'blocks'),
  ('TPU v5 lite', {'dtype': 'float64'}, 'blocks'),
  ('TPU v5 lite', {'attention_block': 100}, 'blocks'),
  ('TPU v4', {'segment_len': 8192, 'memory_len': 16384}, 'blocks'),
  ('TPU v5 lite', {'attention': 'heads'}, 'heads'),
])
def test_the_device_decides_where_the_config_leaves_it_open(device_kind, changes, expected):
  config = ModelConfig(**{'segment_len': 512, 'memory_len': 512, 'head_dim': 128} | changes)
  assert choose_attention(config, device_kind) == expected


@pytest.mark.parametrize(('device_kind', 'kernel'), [
  ('TPU v5 lite', True), ('cpu', False), ('NVIDIA H100', False)])
def test_the_mesh_decides_where_its_device_has_no_platform(device_kind, kernel, monkeypatch):
  """In Colab's JAX 0.7.2 the device of an abstract mesh has a kind and a number of cores."""
  mesh = types.SimpleNamespace(abstract_device=types.SimpleNamespace(
    device_kind=device_kind, num_cores=None))
  monkeypatch.setattr(jax.sharding, 'get_abstract_mesh', lambda: mesh)
  key_value = jnp.zeros((2, N, B, 1024, 128))
  config = ModelConfig(segment_len=512, memory_len=512, head_dim=128)
  assert (as_kept(config, key_value) is key_value) == kernel
  assert takes_branches(config, 512, 512, (4, 4)) == kernel
