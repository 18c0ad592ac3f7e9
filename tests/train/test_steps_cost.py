"""What the fused pair costs, counted in the compiled program: nothing is run."""

import functools

import jax
import pytest

from fairjax.config import Config, DebiasConfig, ModelConfig, TrainConfig
from fairjax.model import likelihood
from fairjax.tpu.cost import counts
from fairjax.tpu.programs import lower_program

MODEL = ModelConfig(
  vocab_size=8000, num_layers=2, model_dim=256, num_heads=4, head_dim=64, ff_dim=1024,
  segment_len=512, memory_len=512, attention='shift', scan_unroll=2)
SWAPS = 16


@pytest.fixture(autouse=True, scope='module')
def without_loops():
  """Lets the loss make all logits at once: XLA counts the body of a loop once."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(likelihood, '_WHOLE', 1 << 40)
    yield


@functools.cache
def _flops(rows, branches):
  config = Config(model=MODEL, lm=TrainConfig(batch_size=rows), debias=DebiasConfig(
    batch_size=rows, branches_per_row=branches, pieces_per_branch=1, monitor_every=0,
    variants=('embedding:1',)))
  program = lower_program(config, 'debias' if branches else 'lm', jax.devices()[:1])
  return counts(program.lowered.compile())['flops']


def test_a_step_costs_its_matrix_products():
  """Three times the forward pass, of the scores too: swaps as rows would cost 17 times as much."""
  d, t, s, heads = 256, 512, 1024, 256
  layer = 2 * (d * heads * 2 * s + 2 * d * heads * t + 2 * d * 4 * d * t + 3 * heads * t * s)
  distances = 2 * 2 * d * heads * s  # of all rows together; two products in the backward pass
  expected = 3 * 2 * 2 * layer + 2 * distances + 3 * 2 * 2 * t * d * 8000
  assert _flops(2, 0) == pytest.approx(expected, rel=0.02)


def test_sixteen_swaps_a_row_cost_three_percent():
  plain, fused = _flops(2, 0), _flops(2, SWAPS)
  rows = _flops(2 * (1 + SWAPS), 0)
  print(f'fused / plain FLOPs {fused / plain:.4f}, swaps as rows / fused {rows / fused:.1f}')
  assert 1 < fused / plain <= 1.03
