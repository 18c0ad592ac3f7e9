"""Training of any head on rows of any input: batches, schedule, optimizer, on a mesh.

Every random number is a function of (seed, epoch, step), so an interrupted training that goes on
gives the same model, bit by bit, as one that was not interrupted (on the same devices).

Letters: R rows of data, B rows of a batch, T places of a row, C scores of a row.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fairjax.errors import UserError
from fairjax.pretrained.batch_runner import bucket_lengths
from fairjax.pretrained.models import masked
from fairjax.progress import Progress

_POOL = 50  # batches whose rows are sorted by length together


@dataclasses.dataclass(frozen=True)
class Recipe:
  """How to train: BERT's fine-tuning (Devlin et al. 2019, appendix A.3) with other numbers."""

  epochs: int
  batch_size: int
  learning_rate: float
  weight_decay: float = 0.01  # of kernels and tables
  warmup_share: float = 0.1  # of all steps; then linearly to 0
  clip_norm: float = 1.0
  seed: int = 0


class Rows(Protocol):
  """Training rows with their labels.

  Attributes:
    sizes: `[R]` int, by which rows of like size are put together.
  """

  sizes: np.ndarray

  def batch(self, places: Sequence[int], rows: int) -> dict[str, np.ndarray]:
    """Arrays of `rows` rows: those at `places`, then padding; `labels` and the input."""


class TokenRows:
  """Rows of token ids, padded to the length of a bucket."""

  def __init__(self, ids: Sequence[np.ndarray], labels: np.ndarray, *, max_length: int,
               pad_id: int):
    """Keeps R arrays of ids and `[R]` labels."""
    self.sizes = np.array([len(row) for row in ids])
    self._ids, self._labels, self._pad_id = ids, labels, pad_id
    self._lengths = bucket_lengths(max_length)

  def batch(self, places: Sequence[int], rows: int) -> dict[str, np.ndarray]:
    """`ids`, `mask` `[B, T]` and `labels` `[B]` of some rows; see `Rows`."""
    longest = max(self.sizes[i] for i in places)
    length = next(n for n in self._lengths if n >= longest)
    batch = {'ids': np.full((rows, length), self._pad_id, np.int32),
             'mask': np.zeros((rows, length), bool),
             'labels': np.zeros(rows, self._labels.dtype)}
    for row, i in enumerate(places):
      batch['ids'][row, :len(self._ids[i])] = self._ids[i]
      batch['mask'][row, :len(self._ids[i])] = True
    batch['labels'][:len(places)] = self._labels[places]
    return batch


class Trainer:
  """Compiled step on a mesh, and the epochs of it.

  Attributes:
    steps: of one epoch.
  """

  def __init__(
    self, rows: Rows, loss: Callable[[Any, dict[str, jax.Array], jax.Array], jax.Array],
    recipe: Recipe, *, mesh: Mesh, log: Callable[[str], None], mask: Any = None,
  ):
    """Prepares; nothing is compiled before the first step."""
    self.recipe, self._rows, self._log = recipe, rows, log
    self._size = -(-recipe.batch_size // mesh.size) * mesh.size
    self.steps = -(-len(rows.sizes) // recipe.batch_size)
    self._sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    self._whole = NamedSharding(mesh, PartitionSpec())
    # On CPU a step waits for the one before: with an epoch of them sent ahead, a training on eight
    # devices was seen to stand still until XLA's limit for collectives ended it.
    self._waits = mesh.devices.flat[0].platform == 'cpu'
    self._adam = optax.chain(
      optax.clip_by_global_norm(recipe.clip_norm), optax.scale_by_adam(),
      optax.add_decayed_weights(recipe.weight_decay, mask=_decayed))

    def mean_loss(params, batch, key):
      return (loss(params, batch, key) * batch['weights']).sum() / batch['weights'].sum()

    def step(params, opt_state, batch, key, number, rate):
      found, gradients = jax.value_and_grad(mean_loss)(
        params, batch, jax.random.fold_in(key, number))
      if mask is not None:  # before the norm is clipped: what is frozen has no say in it
        gradients = masked(gradients, mask)
      direction, opt_state = self._adam.update(gradients, opt_state, params)
      if mask is not None:  # nor do its weights decay
        direction = masked(direction, mask)
      params = optax.apply_updates(params, jax.tree.map(lambda d: -rate * d, direction))
      return params, opt_state, found

    self._step = jax.jit(step, donate_argnums=(0, 1), out_shardings=self._whole)

  def fresh(self, params: Any) -> Any:
    """Optimizer state before the first epoch."""
    return self._adam.init(params)

  def place(self, tree: Any) -> Any:
    """Puts arrays on all devices; the steps take them away again, so they are copied."""
    return jax.tree.map(lambda a: jax.device_put(np.array(a), self._whole), tree)

  def epoch(
    self, params: Any, opt_state: Any, epoch: int, *, seed: int | None = None,
    after_step: Callable[[int, Any], None] | None = None,
  ) -> tuple[Any, Any, float]:
    """One pass over the rows: parameters, optimizer state, mean loss."""
    r, losses, total = self.recipe, [], self.recipe.epochs * self.steps
    seed = r.seed if seed is None else seed
    key = jax.random.key(seed)
    with Progress(f'[epoch {epoch + 1}/{r.epochs}] trained', total, unit='steps',
                  log=self._log, done=epoch * self.steps) as progress:
      for number, places in enumerate(self._batches(epoch, seed)):
        done = epoch * self.steps + number
        rate = r.learning_rate * schedule(done, total, r.warmup_share)
        params, opt_state, loss = self._step(
          params, opt_state, self._batch(places), key, np.int32(done), np.float32(rate))
        if self._waits:
          loss.block_until_ready()
        losses.append((loss, len(places)))
        words = functools.partial('loss {:.4f}, rate {:.2e}'.format, loss, rate)
        progress.add(1, words)  # waits for the loss only when it is shown
        if after_step is not None:
          after_step(done + 1, params)
    values = np.array(jax.device_get([loss for loss, _ in losses]), np.float64)
    if not np.isfinite(values).all():
      raise UserError(f'the loss is not finite in epoch {epoch + 1}: lower --learning_rate')
    return params, opt_state, float(np.average(values, weights=[n for _, n in losses]))

  def _batches(self, epoch: int, seed: int) -> Iterator[np.ndarray]:
    """Numbers of the rows of every batch: random, but with those of like length together."""
    rng = np.random.default_rng([seed, 1, epoch])
    sizes = self._rows.sizes
    order, size = rng.permutation(len(sizes)), self.recipe.batch_size
    batches: list[np.ndarray] = []
    for begin in range(0, len(order), size * _POOL):
      pool = order[begin:begin + size * _POOL]
      pool = pool[np.argsort(sizes[pool], kind='stable')]
      batches += [pool[i:i + size] for i in range(0, len(pool), size)]
    yield from (batches[i] for i in rng.permutation(len(batches)))

  def _batch(self, places: Sequence[int]) -> dict[str, jax.Array]:
    """Arrays and weights of some rows, padded, on the devices."""
    batch = self._rows.batch(places, self._size)
    batch['weights'] = (np.arange(self._size) < len(places)).astype(np.float32)
    return jax.device_put(batch, self._sharding)


def schedule(step: int, steps: int, warmup_share: float) -> float:
  """Share of the learning rate: linear from 0, then linear to 0."""
  warm = math.ceil(warmup_share * steps)
  return step / warm if step < warm else (steps - step) / max(1, steps - warm)


def _decayed(params) -> Any:
  """Kernels and tables, not biases and norms."""
  return {group: {name: not name.endswith(('bias', 'scale')) for name in arrays}
          for group, arrays in params.items()}
