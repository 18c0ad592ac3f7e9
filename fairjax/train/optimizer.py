"""Adam with warm-up, decay and gradient clipping (H-18; schedule and clipping: see config)."""

import optax

from fairjax.config import TrainConfig


def make_schedule(config: TrainConfig) -> optax.Schedule:
  """Learning rate by step: linear from 0 over `warmup_steps`, then `schedule` over the rest."""
  decay_steps = max(1, config.steps - config.warmup_steps)
  peak = config.learning_rate
  after = {
    'cosine': optax.cosine_decay_schedule(peak, decay_steps),
    'linear': optax.linear_schedule(peak, 0.0, decay_steps),
    'constant': optax.constant_schedule(peak),
  }[config.schedule]
  if not config.warmup_steps:
    return after
  warmup = optax.linear_schedule(0.0, peak, config.warmup_steps)
  return optax.join_schedules([warmup, after], [config.warmup_steps])


def make_optimizer(config: TrainConfig) -> optax.GradientTransformation:
  """Clips the global norm, then Adam (AdamW if `weight_decay` > 0)."""
  return optax.chain(
    optax.clip_by_global_norm(config.clip_norm),
    optax.adamw(
      make_schedule(config), b1=config.adam_b1, b2=config.adam_b2,
      weight_decay=config.weight_decay),
  )
