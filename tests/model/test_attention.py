"""Relative attention against loops over positions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fairjax.model import attention
from fairjax.model.attention import (
  attention_keep,
  branch_attention,
  relative_attention,
  shift_by,
)

N, B, T, M, H, K, P = 2, 2, 5, 3, 4, 3, 2
S = M + T
SEED = jnp.array([12345, 2 ** 31 + 6789], jnp.uint32)


def _arrays(*shapes, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.normal(size=shape) for shape in shapes]


def _softmax_average(scores, values):
  weights = np.exp(np.array(scores) - max(scores))
  return (weights / weights.sum()) @ np.array(values), weights / weights.sum()


@pytest.mark.parametrize('of_tpus', [False, True])
@pytest.mark.parametrize('columns', [4, 30])
@pytest.mark.parametrize('limit', [1, 7, 8])
def test_shift_by_is_a_window_at_each_offset(limit, columns, of_tpus, monkeypatch):
  if of_tpus:
    monkeypatch.setattr(attention, '_by_slices', functools.partial(
      attention._by_selections, limit=limit))
  width, (scores, cotangent) = 6, _arrays((N, 3, 4, columns), (N, 3, 4, 6))
  offsets = np.random.default_rng(1).integers(0, limit, (3, 4))
  offsets[0, 0], offsets[0, 1] = limit - 1, 0
  cut, vjp = jax.vjp(
    lambda x: shift_by(x, jnp.asarray(offsets), width=width, limit=limit), jnp.asarray(scores))
  gradient, = vjp(jnp.asarray(cotangent, cut.dtype))
  padded = np.pad(scores, [(0, 0)] * 3 + [(0, 20)]).astype(np.float32)
  expected = np.zeros(padded.shape, np.float32)
  for a, b in np.ndindex(3, 4):
    window = slice(offsets[a, b], offsets[a, b] + width)
    np.testing.assert_array_equal(cut[:, a, b], padded[:, a, b, window])
    expected[:, a, b, window] = cotangent[:, a, b]
  np.testing.assert_array_equal(gradient, expected[..., :columns])


def test_shift_by_is_no_gather_on_tpus():
  def gradient(x):
    return jax.grad(lambda x: shift_by(
      x, jnp.array([[1, 0]]), width=3, limit=2).sum())(x)

  scores = jax.ShapeDtypeStruct((1, 1, 2, 4), jnp.float32)
  for platform, gathers in (('tpu', False), ('cpu', True), ('cuda', True)):
    program = jax.jit(gradient).trace(scores).lower(lowering_platforms=(platform,)).as_text()
    assert ('gather' in program) == gathers and 'scatter' not in program


def _main_inputs(dtype):
  arrays = _arrays((N, B, T, H), (N, B, S, H), (N, B, S, H), (N, S, H), (N, H), (N, H))
  return [jnp.asarray(a, dtype) for a in arrays], jnp.array([M, 1], jnp.int32), SEED


def _keep(rate):
  return attention_keep(SEED, jnp.broadcast_to(jnp.arange(T)[None], (B, T)), num_heads=N,
                        num_columns=S, rate=rate)


@pytest.mark.parametrize('dropout', [False, True])
def test_attention_equals_a_loop(dropout):
  with jax.enable_x64(True):
    arrays, length, seed = _main_inputs(jnp.float64)
    keep = _keep(0.3)
    mask = np.tril(np.ones((T, S), bool), M)[None].repeat(B, 0)
    mask[1, :, :2] = False  # the second row's memory has one valid slot
    q, k, v, r, u, w = (np.asarray(a) for a in arrays)
    ours = relative_attention(*arrays, length, seed if dropout else None, rate=0.3 * dropout)
    for n, b, t in np.ndindex(N, B, T):
      seen = np.flatnonzero(mask[b, t])
      query, distances = q[n, b, t], [M + t - j for j in seen]
      scores = [
        ((query + u[n]) @ k[n, b, j] + (query + w[n]) @ r[n, S - 1 - d]) / H ** 0.5
        for j, d in zip(seen, distances, strict=True)]
      expected, weights = _softmax_average(scores, v[n, b, seen])
      if dropout:
        expected = (weights * np.asarray(keep)[n, b, t, seen] / 0.7) @ v[n, b, seen]
      np.testing.assert_allclose(ours[n, b, t], expected, rtol=0, atol=1e-12)


def test_branch_attention_equals_a_loop():
  with jax.enable_x64(True):
    q, k, v, ok, ov, r, u, w = _arrays(
      (N, B, K, P, H), (N, B, S, H), (N, B, S, H), (N, B, K, P, H), (N, B, K, P, H), (N, S + P, H),
      (N, H), (N, H))
    start = np.array([[0, 2, 4], [4, 1, 3]])
    mask = np.arange(S)[None, None] - M < start[:, :, None]
    mask[1, :, :2] = False
    length = np.array([M, 1], np.int32)
    pieces, own_keys, own_values = (x.reshape(N, B, K * P, H) for x in (q, ok, ov))
    ours = branch_attention(
      *map(jnp.asarray, (pieces, k, v, own_keys, own_values, r[:, P:], r[:, :P], u, w, start,
                         length)), segment_len=T).reshape(N, B, K, P, H)
    for n, b, kk, p in np.ndindex(N, B, K, P):
      at, query = M + start[b, kk] + p, q[n, b, kk, p]
      seen = np.flatnonzero(mask[b, kk])
      keys = [(k[n, b, j], at - j) for j in seen]
      keys += [(ok[n, b, kk, o], p - o) for o in range(p + 1)]
      scores = [
        ((query + u[n]) @ key + (query + w[n]) @ r[n, S + P - 1 - d]) / H ** 0.5 for key, d in keys]
      values = np.concatenate([v[n, b, seen], ov[n, b, kk, :p + 1]])
      np.testing.assert_allclose(
        ours[n, b, kk, p], _softmax_average(scores, values)[0], rtol=0, atol=1e-12)


def test_scores_are_normalised_in_float32_for_bfloat16():
  arrays, length, _ = _main_inputs(jnp.bfloat16)
  exact = relative_attention(*(a.astype(jnp.float32) for a in arrays), length)
  coarse = relative_attention(*arrays, length)
  assert coarse.dtype == jnp.bfloat16
  np.testing.assert_allclose(coarse.astype(jnp.float32), exact, rtol=0, atol=0.06)
  jaxpr = str(jax.make_jaxpr(lambda a: relative_attention(*a, length))(arrays))
  assert f'f32[{N},{B},{T},{S}] = exp' in jaxpr
