"""How many parameters a model has, without making them."""

import math
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from fairjax.config import ModelConfig
from fairjax.model.softmax import parameter_table
from fairjax.model.streams import init_memory
from fairjax.model.transformer_xl import TransformerXL


def parameter_counts(config: ModelConfig) -> dict[str, int]:
  """Counts the parameters by their abstract shapes.

  Args:
    config: with its vocabulary size. Rows that only pad the vocabulary are left out.

  Returns:
    `total`, of which `layers` (with position biases and final norm) and `embedding` (with the
    softmax, which is tied to it).
  """
  tokens = jax.ShapeDtypeStruct((1, config.segment_len), jnp.int32)
  memory = jax.eval_shape(lambda: init_memory(config, 1))
  abstract = nn.unbox(jax.eval_shape(
    TransformerXL(config).init, jax.random.key(0), tokens, memory))['params']
  table = parameter_table(config)
  embedding = sum(
    math.prod((p.rows, *p.shape[1:])) for p in table.values())
  rest = {name: value for name, value in abstract.items() if name not in table}
  layers = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(rest))
  return {'total': layers + embedding, 'layers': layers, 'embedding': embedding}


def parameter_words(counts: Mapping[str, int]) -> str:
  """The size of a model in words.

  >>> parameter_words({'total': 1_500_000, 'layers': 1_000_000, 'embedding': 500_000})
  '1.5 M parameters: 1.0 M in the layers, 0.5 M in embedding and softmax'
  """
  total, layers, embedding = (counts[k] / 1e6 for k in ('total', 'layers', 'embedding'))
  return (f'{total:.1f} M parameters: {layers:.1f} M in the layers, {embedding:.1f} M in embedding '
          'and softmax')
