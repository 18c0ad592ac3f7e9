"""Likelihood of text under the model, segment after segment with memory.

Letters: B rows, T segment length, V vocabulary.
"""

import functools
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fairjax.config import ModelConfig
from fairjax.model.streams import Memory, init_memory
from fairjax.model.transformer_xl import TransformerXL


def next_token_nll(
  logits: Float[Array, '*S V'], targets: Int[Array, '*S']
) -> Float[Array, '*S']:
  """Negative log-likelihood of `targets`, nats per token.

  Args:
    logits: `[..., V]` float.
    targets: `[...]` int in [0, V).

  Returns:
    `[...]` float32 (float64 for float64 logits) >= 0.
  """
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
  return jax.nn.logsumexp(logits, axis=-1) - chosen


@functools.lru_cache
def make_segment_nll(config: ModelConfig):
  """Jitted `f(params, memory, batch) -> (nll [B, T], memory)`, without dropout.

  batch: `inputs`, `targets` [B, T] int32, `reset` [B] bool (rows that start a stream).
  """
  model = TransformerXL(config)

  def segment_nll(params, memory: Memory, batch) -> tuple[Array, Memory]:
    output = model.apply({'params': params}, batch['inputs'], memory.reset(batch['reset']))
    logits = model.apply({'params': params}, output.hidden, method='logits')
    return next_token_nll(logits, batch['targets']), output.memory

  return jax.jit(segment_nll)


def evaluate_nll(
  config: ModelConfig, params, batches: Iterable[Mapping[str, np.ndarray]]
) -> tuple[float, int]:
  """Total negative log-likelihood of a finite stream of batches, memory carried (H-25).

  Args:
    config: with its vocabulary size.
    params: of the model.
    batches: dicts with `inputs`, `targets` [B, T] int32, `reset` [B] bool and `weights` [B, T]
      (1 for a token that counts, 0 for padding).

  Returns:
    (sum of nats over the tokens that count, number of those tokens).
  """
  segment_nll = make_segment_nll(config)
  memory, total, tokens = None, 0.0, 0
  for batch in batches:
    if memory is None:
      memory = init_memory(config, batch['inputs'].shape[0])
    weights = np.asarray(batch['weights'], np.float64)
    arrays = {name: batch[name] for name in ('inputs', 'targets', 'reset')}
    nll, memory = segment_nll(params, memory, arrays)
    total += float((np.asarray(nll, np.float64) * weights).sum())
    tokens += int(weights.sum())
  return total, tokens
