"""Likelihood of the next token.

Letters: V vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


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
