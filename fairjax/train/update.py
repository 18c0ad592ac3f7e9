"""From a loss to a training step: gradients, in parts if wanted, and the optimizer."""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from fairjax.model import Memory
from fairjax.train.metrics import Metrics
from fairjax.train.optimizer import Adam


@flax.struct.dataclass
class Guard:
  """What decides whether an update is made, and counts those that were not.

  In the state, because a resumed run must decide as an uninterrupted one does.
  """

  in_a_row: jax.Array  # [] int32, updates skipped since the last one that was made
  total: jax.Array  # [] int32, updates skipped at all
  made: jax.Array  # [] int32, losses that went into `losses`
  losses: jax.Array | None  # [spike_window] float32, of the last updates; None without spikes

  @classmethod
  def fresh(cls, adam: Adam) -> 'Guard':
    """Nothing skipped, no loss seen."""
    zero = jnp.zeros((), jnp.int32)
    losses = jnp.zeros((adam.spike_window,), jnp.float32) if adam.spike_sigmas else None
    return cls(zero, zero, zero, losses)

  def allows(self, adam: Adam, loss: jax.Array, norm: jax.Array) -> jax.Array:
    """Whether the update is made, `[]` bool.

    Not if loss or gradient norm is not finite; if the loss lies `spike_sigmas` standard deviations
    above the mean of a full window; or if `max_skipped` in a row were skipped: then nothing moves
    until the loop, which reads the counts at intervals, stops the run at the last good step.
    """
    ok = jnp.isfinite(loss) & jnp.isfinite(norm) & (self.in_a_row < adam.max_skipped)
    if adam.spike_sigmas:
      limit = self.losses.mean() + adam.spike_sigmas * self.losses.std()
      ok &= (self.made < adam.spike_window) | (loss.astype(jnp.float32) <= limit)
    return ok

  def after(self, adam: Adam, ok: jax.Array, loss: jax.Array) -> 'Guard':
    """The guard of the next step."""
    losses = self.losses
    if adam.spike_sigmas:
      entered = losses.at[self.made % adam.spike_window].set(loss.astype(jnp.float32))
      losses = jnp.where(ok, entered, losses)
    skipped = (~ok).astype(jnp.int32)
    return Guard(in_a_row=skipped * (self.in_a_row + 1), total=self.total + skipped,
                 made=self.made + (1 - skipped), losses=losses)


@flax.struct.dataclass
class TrainState:
  """Arrays only, so that it can be donated, sharded and saved as it is."""

  step: jax.Array  # [] int32, steps done, with those whose update was skipped
  params: Any
  opt_state: Any
  memory: Memory | None  # None for the sentiment projection
  guard: Guard


def make_update(
  loss_fn: Callable, adam: Adam, *, parts: int = 1,
  prepare: Callable[[dict[str, Any]], dict[str, Any]] = lambda batch: batch,
) -> Callable:
  """Turns `loss_fn(params, memory, batch, key, *extra) -> (loss, (memory, metrics))` into a step.

  Args:
    loss_fn: a mean over the rows of the batch that it gets.
    adam: the optimizer.
    parts: of which the batch is made, one after the other; their gradients are averaged (gradient
      accumulation). The result is that of the whole batch up to rounding, except that dropout
      draws other masks.
    prepare: adds scalars of the whole batch to what each part gets.

  Returns:
    `step(state, batch, seed, learning_rate, *extra) -> (state, metrics)`; the batch that the loss
    gets also holds `step`, and the key is a function of (seed, step). Where the guard of the state
    does not allow the update, parameters, optimizer and memory stay as they were, and the metric
    `skipped` is 1 instead of 0.
  """
  def step(state: TrainState, batch, seed, learning_rate, *extra) -> tuple[TrainState, Metrics]:
    key = jax.random.fold_in(jax.random.key(seed), state.step)
    batch = prepare(dict(batch) | {'step': state.step})
    gradient = jax.grad(loss_fn, has_aux=True)
    if parts == 1:
      gradients, (memory, metrics) = gradient(state.params, state.memory, batch, key, *extra)
    else:
      gradients, memory, metrics = _accumulate(gradient, state, batch, key, extra, parts)
    params, opt_state = adam.update(gradients, state.opt_state, state.params, learning_rate)
    one, norm = jnp.ones(()), optax.tree.norm(gradients)
    loss = metrics.get('total_loss', metrics['loss'])[0]
    ok = state.guard.allows(adam, loss, norm)
    kept = jax.tree.map(lambda new, old: jnp.where(ok, new, old), (params, opt_state, memory),
                        (state.params, state.opt_state, state.memory))
    metrics = metrics | {'grad_norm': (norm, one), 'learning_rate': (learning_rate, one),
                         'skipped': (1.0 - ok, one)}
    return TrainState(state.step + 1, *kept, guard=state.guard.after(adam, ok, loss)), metrics

  return step


def _accumulate(gradient, state, batch, key, extra, parts):
  """Means of the gradients and metrics over the parts, and the memory of all rows."""
  # Part i has the rows i, i + parts, ...: on every device the same share of its own rows.
  def split(x, axis=0):
    shape = (*x.shape[:axis], x.shape[axis] // parts, parts, *x.shape[axis + 1:])
    return jnp.moveaxis(x.reshape(shape), axis + 1, 0)

  def join(x, axis=0):
    whole = jnp.moveaxis(x, 0, axis + 1)
    return whole.reshape(*whole.shape[:axis], -1, *whole.shape[axis + 2:])

  rows = {name: split(x) for name, x in batch.items() if x.ndim}
  scalars = {name: x for name, x in batch.items() if not x.ndim}
  memory = Memory(hidden=split(state.memory.hidden, 1), length=split(state.memory.length))

  def body(total, xs):
    part, own_rows, own_memory = xs
    found, (new_memory, metrics) = gradient(
      state.params, own_memory, own_rows | scalars, jax.random.fold_in(key, part), *extra)
    return jax.tree.map(jnp.add, total, found), (new_memory, metrics)

  total, (memory, metrics) = jax.lax.scan(
    body, jax.tree.map(jnp.zeros_like, state.params), (jnp.arange(parts), rows, memory))
  means = {name: (jnp.where(w.sum() > 0, (v * w).sum() / jnp.maximum(w.sum(), 1e-30), 0), w.sum())
           for name, (v, w) in metrics.items()}
  memory = Memory(hidden=join(memory.hidden, 1), length=join(memory.length))
  return jax.tree.map(lambda g: g / parts, total), memory, means
