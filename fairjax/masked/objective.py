"""The masked language model's loss, and an optimizer that leaves frozen parameters alone.

Letters: B rows, T places, P places to be found, V vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fairjax.pretrained import Architecture, encode, mlm_logits
from fairjax.pretrained.freezing import masked
from fairjax.train.optimizer import Adam


def place_losses(params: Any, arch: Architecture, hidden: jax.Array, places: jax.Array,
                 targets: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Cross-entropy at places, and whether the first guess is right.

  Args:
    params: with the group `mlm`.
    arch: of the same model.
    hidden: `[B, T, D]` of `encode`.
    places: `[B, P]` int32.
    targets: `[B, P]` int32, the pieces that belong there.

  Returns:
    nats `[B, P]` float32, right `[B, P]` bool.
  """
  logits = mlm_logits(params, arch, hidden, places).astype(jnp.float32)
  nats = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
  return nats, logits.argmax(-1) == targets


def masked_sums(params: Any, arch: Architecture, batch: dict[str, jax.Array],
                key: jax.Array | None) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Sums over the masked places of a batch, each `[]`: nats, right first guesses, places.

  Args:
    params: with the group `mlm`.
    arch: of the same model.
    batch: of `MaskedRows.batch`.
    key: of the dropout; None drops nothing.
  """
  hidden = encode(params, arch, batch['ids'], batch['mask'], key=key)
  nats, right = place_losses(params, arch, hidden, batch['places'], batch['targets'])
  weights = batch['weights']
  return (nats * weights).sum(), (right * weights).sum(), weights.sum()


class FreezingAdam:
  """`Adam` with BERT's weight decay (of kernels and tables only) and parameters that stay.

  What is frozen has no part in the norm that is clipped, and its weights do not decay.
  """

  def __init__(self, adam: Adam, moves: Any | None):
    """Keeps the settings, and the mask of `freezing.trainable_mask` (None: everything moves)."""
    self._adam, self._moves = adam, moves
    self.max_skipped, self.spike_sigmas = adam.max_skipped, adam.spike_sigmas
    self.spike_window = adam.spike_window

  def transformation(self) -> optax.GradientTransformation:
    """Clips the global norm, then Adam, then decays; still to be scaled by -learning rate."""
    a = self._adam
    return optax.chain(
      optax.clip_by_global_norm(a.clip_norm), optax.scale_by_adam(b1=a.b1, b2=a.b2),
      optax.add_decayed_weights(a.weight_decay, mask=_decayed))

  def update(self, gradients: Any, opt_state: Any, params: Any, learning_rate: jax.Array
             ) -> tuple[Any, Any]:
    """One step; returns (parameters, optimizer state)."""
    if self._moves is not None:
      gradients = masked(gradients, self._moves)
    direction, opt_state = self.transformation().update(gradients, opt_state, params)
    if self._moves is not None:
      direction = masked(direction, self._moves)
    return optax.apply_updates(
      params, jax.tree.map(lambda d: -learning_rate * d, direction)), opt_state


def _decayed(params: Any) -> Any:
  return {group: {name: not name.endswith(('bias', 'scale')) for name in arrays}
          for group, arrays in params.items()}
