"""What the fused pair costs, counted in the compiled program: nothing is run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fairjax.config import DebiasConfig, MeshConfig, ModelConfig, SentimentConfig, TrainConfig
from fairjax.model import language_model, likelihood
from fairjax.tpu.cost import counts
from fairjax.train import make_mesh, steps
from fairjax.train.optimizer import Adam
from fairjax.train.steps import FairnessTerm

MODEL = ModelConfig(
  vocab_size=8000, num_layers=2, model_dim=256, num_heads=4, head_dim=64, ff_dim=1024,
  segment_len=512, memory_len=512, attention='shift', scan_unroll=2)
SWAPS = 16


def _batch(rows, branches):
  def array(shape, dtype=jnp.int32):
    return jax.ShapeDtypeStruct((rows, *shape), dtype)

  batch = {'inputs': array((512,)), 'targets': array((512,)), 'reset': array((), jnp.bool_)}
  if not branches:
    return batch
  names = ('branch_start', 'branch_len', 'original_end')
  return batch | {name: array((branches,)) for name in names} | {
    'branch_tokens': array((branches, 1)), 'branch_weight': array((branches,), jnp.float32),
    'branch_counts': array((5,))}


@pytest.fixture(autouse=True, scope='module')
def without_loops():
  """Lets the loss make all logits at once: XLA counts the body of a loop once."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(likelihood, '_WHOLE', 1 << 40)
    yield


@functools.cache
def _flops(rows, branches):
  mesh, stage = make_mesh(MeshConfig(), jax.devices()[:1]), TrainConfig(batch_size=rows)
  state = steps.lm_state_template(language_model(MODEL), stage, mesh)
  if branches:
    term = FairnessTerm.of(DebiasConfig(monitor_every=0), SentimentConfig())
    lowered = steps.make_debias_step(language_model(MODEL), Adam.of(stage), term, mesh).lower(
      state, _batch(rows, branches), 0, np.float32(1), {'embedding': np.float32(1)}, None)
  else:
    lowered = steps.make_lm_step(language_model(MODEL), Adam.of(stage), mesh).lower(
      state, _batch(rows, 0), 0, np.float32(1))
  return counts(lowered.compile())['flops']


def test_a_step_costs_its_matrix_products():
  """Three times the forward pass, of the scores too: swaps as rows would cost 17 times as much."""
  d, t, s, heads = 256, 512, 1024, 256
  layer = 2 * (d * heads * 2 * s + 2 * d * heads * t + 2 * d * 4 * d * t + 3 * heads * t * s)
  distances = 2 * 2 * d * heads * s  # of all rows together; two products in the backward pass
  expected = 3 * 2 * 2 * layer + 2 * distances + 3 * 2 * 2 * t * d * 8000
  assert _flops(2, 0) == pytest.approx(expected, rel=0.02)


def test_sixteen_swaps_a_row_cost_three_percent():
  plain, fused = _flops(2, 0), _flops(2, SWAPS)
  print(f'fused / plain FLOPs {fused / plain:.4f}')
  assert 1 < fused / plain <= 1.03
