"""Losses of the curriculum: fairness, sentiment, and the divergence monitor.

Letters: B batch rows, T segment length, K branches per row, D width, V vocabulary.
Everything is computed in float32 (float64 when the inputs are), whatever the model computes in.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def _wide(x: Array) -> Array:
  """Casts to float32 unless x is wider already."""
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def weighted_mean(
  values: Float[Array, '*S'], weights: Float[Array, '*S'], total: Any = None
) -> Float[Array, '']:
  """Mean of `values` under `weights` >= 0; 0.0 when every weight is 0.

  Values behind a zero weight never reach the result, NaN included. `total` replaces the sum of the
  weights.
  """
  total = weights.sum() if total is None else total
  used = jnp.where(weights > 0, values, 0.0)
  return jnp.where(total > 0, (used * weights).sum() / jnp.where(total > 0, total, 1.0), 0.0)


def cosine_fairness_loss(
  hidden: Float[Array, 'B K D'], hidden_cf: Float[Array, 'B K D'], weights: Float[Array, 'B K'],
  *, eps: float = 1e-6, total: Any = None,
) -> Float[Array, '']:
  r"""Distance between the hidden states of a prefix and its counterfactual.

  Huang et al. 2020 (arXiv:1911.03064), section 4 (H-21; H-22 on the sentiment projection):

  .. math:: R = 1 - \cos\bigl(h(x_{1:i}), h(\tilde x_{1:i})\bigr)

  as a weighted mean over pairs.

  Args:
    hidden: `[B, K, D]` float, last token of each original prefix.
    hidden_cf: `[B, K, D]` float, last token of the swapped prefix.
    weights: `[B, K]` float >= 0; 0 marks padding; any scale.
    total: divides the weighted sum; None: the sum of the weights. Parts of a batch give their share
      of the whole batch's mean this way.
    eps: floor of the *squared* norms, so that zero vectors give loss 1 and finite gradients.

  Returns:
    Scalar in [0, 2], dimensionless; 0.0 if every weight is 0.

  >>> h = jnp.array([[[3.0, 0.0], [1.0, 0.0]]])
  >>> cf = jnp.array([[[0.0, 5.0], [2.0, 0.0]]])
  >>> float(cosine_fairness_loss(h, cf, jnp.ones((1, 2))))
  0.5
  """
  # Padding is replaced before the quotient: a NaN there would reach the gradient as 0 * NaN.
  a, b = (jnp.where(weights[..., None] > 0, _wide(x), 1.0) for x in (hidden, hidden_cf))
  squared_norms = (jnp.maximum(jnp.square(v).sum(-1), eps) for v in (a, b))
  norm_a, norm_b = (jnp.sqrt(s) for s in squared_norms)
  cosine = (a * b).sum(-1) / (norm_a * norm_b)
  return weighted_mean(1.0 - cosine, weights, total)


def next_token_divergences(
  logits: Float[Array, 'B K V'], logits_cf: Float[Array, 'B K V'], weights: Float[Array, 'B K']
) -> dict[str, Float[Array, '']]:
  """How far the next-token distributions of a pair are apart, without sampling.

  Args:
    logits: `[B, K, V]` float at the end of each original prefix.
    logits_cf: `[B, K, V]` float at the end of the swapped prefix.
    weights: `[B, K]` float >= 0; 0 marks padding.

  Returns:
    `kl`: mean KL(original || counterfactual), nats, >= 0; `js`: mean Jensen-Shannon divergence,
    nats, in [0, ln 2].
  """
  log_p, log_q = (jax.nn.log_softmax(_wide(x), axis=-1) for x in (logits, logits_cf))
  log_m = jnp.logaddexp(log_p, log_q) - jnp.log(2.0).astype(log_p.dtype)

  def kl(log_a, log_b):
    return jnp.sum(jnp.exp(log_a) * (log_a - log_b), axis=-1)

  js = 0.5 * (kl(log_p, log_m) + kl(log_q, log_m))
  return {'kl': weighted_mean(kl(log_p, log_q), weights), 'js': weighted_mean(js, weights)}


def binary_cross_entropy(
  logits: Float[Array, 'B'], labels: Float[Array, 'B']
) -> Float[Array, '']:
  """Mean logistic loss, nats; `labels` are 1 (positive) or 0 (negative)."""
  logits = _wide(logits)
  return jnp.mean(jax.nn.softplus(logits) - labels * logits)
