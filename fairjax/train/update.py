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
class TrainState:
  """Arrays only, so that it can be donated, sharded and saved as it is."""

  step: jax.Array  # [] int32, updates done
  params: Any
  opt_state: Any
  memory: Memory | None  # None for the sentiment projection


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
    gets also holds `step`, and the key is a function of (seed, step).
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
    one = jnp.ones(())
    metrics = metrics | {'grad_norm': (optax.tree.norm(gradients), one),
                         'learning_rate': (learning_rate, one)}
    return TrainState(step=state.step + 1, params=params, opt_state=opt_state,
                      memory=memory), metrics

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
