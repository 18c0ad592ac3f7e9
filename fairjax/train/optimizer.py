"""AdamW with warm-up, a schedule and gradient clipping (H-18), for every training of this package.

The learning rate is an argument of the compiled step, so that stages that differ in length or rate
share one program.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from fairjax.config import TrainConfig


class Adam(NamedTuple):
  """What a compiled step depends on of a stage's optimisation; hashable without `trainable`."""

  clip_norm: float
  b1: float
  b2: float
  weight_decay: float
  max_skipped: int  # these three: see `steps.Guard`
  spike_sigmas: float
  spike_window: int
  # Parameters -> tree of bools: the arrays whose weights decay. None: all
  decayed: Callable[[Any], Any] | None = None
  # Tree of arrays of 0 (frozen) and 1 that broadcast to the parameters. None: everything is trained
  trainable: Any = None

  @classmethod
  def of(cls, stage: TrainConfig, *, decayed: Callable[[Any], Any] | None = None,
         trainable: Any = None) -> 'Adam':
    """The optimizer of a stage."""
    return cls(stage.clip_norm, stage.adam_b1, stage.adam_b2, stage.weight_decay,
               stage.max_skipped, stage.spike_sigmas, stage.spike_window, decayed, trainable)

  def transformation(self) -> optax.GradientTransformation:
    """Clips the global norm, then Adam; the direction still has to be scaled by -learning rate."""
    return optax.chain(
      optax.clip_by_global_norm(self.clip_norm), optax.scale_by_adam(b1=self.b1, b2=self.b2),
      optax.add_decayed_weights(self.weight_decay, mask=self.decayed))

  def update(
    self, gradients: Any, opt_state: Any, params: Any, learning_rate: jax.Array
  ) -> tuple[Any, Any]:
    """One step; returns (parameters, optimizer state)."""
    # Frozen parameters have no part in the norm that is clipped, and their weights do not decay.
    direction, opt_state = self.transformation().update(
      self.trained(gradients), opt_state, params)
    updates = jax.tree.map(
      lambda d: (-learning_rate).astype(d.dtype) * d, self.trained(direction))
    return optax.apply_updates(params, updates), opt_state

  def trained(self, tree: Any) -> Any:
    """A tree like the parameters, 0 where they are frozen."""
    if self.trainable is None:
      return tree
    return jax.tree.map(lambda a, m: a * m.astype(a.dtype), tree, self.trainable)


def kernels_and_tables(params: Any) -> Any:
  """The weights that BERT decays: not biases and norms. For `Adam.decayed`."""
  return {group: {name: not name.endswith(('bias', 'scale')) for name in arrays}
          for group, arrays in params.items()}


def learning_rate(config: TrainConfig, step: int) -> float:
  """Rate of the update that follows `step` updates: linear from 0, then the schedule to the end.

  >>> config = TrainConfig(steps=110, warmup_steps=10, learning_rate=2.0)
  >>> [learning_rate(config, step) for step in (0, 5, 10, 60)]
  [0.0, 1.0, 2.0, 1.0]
  """
  if step < config.warmup_steps:
    return config.learning_rate * step / config.warmup_steps
  share = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
  factor = {'cosine': 0.5 * (1 + math.cos(math.pi * min(share, 1.0))),
            'linear': 1 - min(share, 1.0), 'constant': 1.0}[config.schedule]
  return config.learning_rate * factor
