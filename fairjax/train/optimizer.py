"""Adam with warm-up, decay and gradient clipping (H-18; schedule and clipping: see config).

The learning rate is an argument of the compiled step, so that stages that differ in length or rate
share one program.
"""

import math
from typing import Any, NamedTuple

import jax
import optax

from fairjax.config import TrainConfig


class Adam(NamedTuple):
  """What of a stage's optimisation a compiled step depends on, and when it skips an update."""

  clip_norm: float
  b1: float
  b2: float
  weight_decay: float
  max_skipped: int
  spike_sigmas: float
  spike_window: int

  @classmethod
  def of(cls, stage: TrainConfig) -> 'Adam':
    """The optimizer of a stage."""
    return cls(stage.clip_norm, stage.adam_b1, stage.adam_b2, stage.weight_decay,
               stage.max_skipped, stage.spike_sigmas, stage.spike_window)

  def transformation(self) -> optax.GradientTransformation:
    """Clips the global norm, then Adam; the direction still has to be scaled by -learning rate."""
    return optax.chain(
      optax.clip_by_global_norm(self.clip_norm), optax.scale_by_adam(b1=self.b1, b2=self.b2),
      optax.add_decayed_weights(self.weight_decay))

  def update(
    self, gradients: Any, opt_state: Any, params: Any, learning_rate: jax.Array
  ) -> tuple[Any, Any]:
    """One step; returns (parameters, optimizer state)."""
    direction, opt_state = self.transformation().update(gradients, opt_state, params)
    updates = jax.tree.map(lambda d: (-learning_rate).astype(d.dtype) * d, direction)
    return optax.apply_updates(params, updates), opt_state


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
