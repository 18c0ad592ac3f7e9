"""No step holds the scores of all its queries, nor those of all words: shapes of whole programs.

Of the path 'blocks'. 'shift' holds whole scores by design and shows here that they would be seen;
'heads' and 'kernel' are tested in tests/model. Nothing is run, so the sizes are real ones.
"""

import math
import re

import jax
import pytest

from fairjax.config import Config, DebiasConfig, MeshConfig, ModelConfig, TrainConfig
from fairjax.tpu.programs import lower_program

B, T, M, N, V, K, P = 8, 2048, 2048, 4, 50_000, 2, 2
ROWS, HEADS = 4, 2  # parts of the rows (data x fsdp) and of the heads (model)
SIZES = dict(vocab_size=V, vocab_multiple=2, num_layers=2, model_dim=16, num_heads=N, head_dim=4,
             ff_dim=32, segment_len=T, memory_len=M)


def _lower(kind, attention):
  """A step on data 2 x fsdp 2 x model 2, with the default size of blocks: T holds four."""
  model = ModelConfig(**SIZES, attention=attention)
  assert model.attention_block * 4 == T
  config = Config(
    model=model, mesh=MeshConfig(data=2, fsdp=2, model=2), lm=TrainConfig(batch_size=B),
    debias=DebiasConfig(batch_size=B, branches_per_row=K, pieces_per_branch=P,
                        variants=('embedding:1',)))
  return lower_program(config, kind, jax.devices()).lowered


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
