"""No step holds the scores of all its queries, nor those of all words: shapes of whole programs.

Of the path 'blocks'. 'shift' holds whole scores by design and shows here that they would be seen;
'heads' and 'kernel' are tested in tests/model. Nothing is run, so the sizes are real ones.
"""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fairjax.config import DebiasConfig, MeshConfig, ModelConfig, SentimentConfig, TrainConfig
from fairjax.model import language_model
from fairjax.train import make_mesh, steps
from fairjax.train.optimizer import Adam
from fairjax.train.sharding import batch_sharding

B, T, M, N, V, K, P = 8, 2048, 2048, 4, 50_000, 2, 2
ROWS, HEADS = 4, 2  # parts of the rows (data x fsdp) and of the heads (model)
SIZES = dict(vocab_size=V, vocab_multiple=2, num_layers=2, model_dim=16, num_heads=N, head_dim=4,
             ff_dim=32, segment_len=T, memory_len=M)


def _lower(kind, attention):
  """A step on data 2 x fsdp 2 x model 2, with the default size of blocks: T holds four."""
  config = ModelConfig(**SIZES, attention=attention)
  assert config.attention_block * 4 == T
  stage = TrainConfig(batch_size=B)
  mesh = make_mesh(MeshConfig(data=2, fsdp=2, model=2))

  def array(*shape, dtype=jnp.int32):
    return jax.ShapeDtypeStruct((B, *shape), dtype, sharding=batch_sharding(mesh))

  state = steps.lm_state_template(language_model(config), stage, mesh)
  batch = {'inputs': array(T), 'targets': array(T), 'reset': array(dtype=jnp.bool_)}
  if kind == 'lm':
    return steps.make_lm_step(language_model(config), Adam.of(stage), mesh).lower(
      state, batch, 0, np.float32(1))
  batch |= {name: array(K) for name in ('branch_start', 'branch_len', 'original_end')} | {
    'branch_tokens': array(K, P), 'branch_weight': array(K, dtype=jnp.float32),
    'branch_counts': array(5)}
  term = steps.FairnessTerm.of(DebiasConfig(), SentimentConfig())
  return steps.make_debias_step(language_model(config), Adam.of(stage), term, mesh).lower(
    state, batch, 0, np.float32(1), {'embedding': np.float32(1)}, None)


def _largest(text, pattern, separator):
  """(numbers, shape) of the largest array that a program's text names."""
  shapes = {tuple(int(n) for n in found.split(separator) if n)
            for found in re.findall(pattern, text)}
  return max((math.prod(shape), shape) for shape in shapes)


def _largest_traced(lowered):
  return _largest(lowered.as_text(), r'tensor<((?:\d+x)+)[a-z]', 'x')


@pytest.mark.parametrize('kind', [pytest.param('lm', marks=pytest.mark.weekly), 'debias'])
def test_no_array_of_a_sharded_step_holds_the_scores_of_all_queries(kind):
  scores, words = N * B * T * (M + T), B * T * V
  lowered = _lower(kind, 'blocks')
  traced, _ = _largest_traced(lowered)
  assert traced < scores / 2 < words / 2
  # On one device, after the compiler split and fused the program.
  made, _ = _largest(lowered.compile().as_text(), r'\b[a-z]+\d*\[([\d,]+)\]', ',')
  assert made < scores / (ROWS * HEADS) / 2 < words / (ROWS * HEADS) / 2


@pytest.mark.parametrize('kind', ['lm', 'debias'])
def test_whole_scores_would_be_seen(kind):
  assert _largest_traced(_lower(kind, 'shift'))[0] >= N * B * T * (M + T)
