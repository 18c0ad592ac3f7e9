"""Fine-tuning by epochs: batches of rows of like length, BERT's recipe, and the stage of the loop.

Every random number is a function of (seed, epoch, step), so that a training that was interrupted
gives, on the same devices, the same model bit by bit.

Letters: R rows of data, B rows of a batch, T positions of a row, C scores of a row.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from fairjax.config import MeshConfig, TrainConfig
from fairjax.pretrained.batch_runner import bucket_lengths
from fairjax.train.loop import Stage, run_unsaved
from fairjax.train.optimizer import Adam, kernels_and_tables
from fairjax.train.sharding import make_mesh, replicated, sharded_shapes
from fairjax.train.steps import BoundStep, TrainState, make_update


def label_losses(scores: jax.Array, labels: jax.Array) -> jax.Array:
  """Loss of every row: squared error of float labels, cross-entropy (nats) of int ones."""
  if jnp.issubdtype(labels.dtype, jnp.floating):
    return jnp.square(scores[:, 0] - labels)
  return optax.softmax_cross_entropy_with_integer_labels(scores, labels)


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
  """Training rows with their labels."""

  sizes: np.ndarray  # [R] int, by which rows of like size are put together

  def batch(self, numbers: np.ndarray, rows: int) -> dict[str, np.ndarray]:
    """Arrays of `rows` rows: those of the numbers, then padding; `labels` and the input."""


class TokenRows:
  """Rows of token ids, padded to the length of a bucket."""

  def __init__(self, ids: Sequence[np.ndarray], labels: np.ndarray, *, max_length: int,
               pad_id: int):
    self.sizes = np.array([len(row) for row in ids])
    self._ids, self._labels, self._pad_id = ids, labels, pad_id
    self._lengths = bucket_lengths(max_length)

  def batch(self, numbers: np.ndarray, rows: int) -> dict[str, np.ndarray]:
    """`ids`, `mask` `[B, T]` and `labels` `[B]` of some rows; see `Rows`."""
    longest = max(self.sizes[i] for i in numbers)
    length = next(n for n in self._lengths if n >= longest)
    batch = {'ids': np.full((rows, length), self._pad_id, np.int32),
             'mask': np.zeros((rows, length), bool),
             'labels': np.zeros(rows, self._labels.dtype)}
    for row, i in enumerate(numbers):
      batch['ids'][row, :len(self._ids[i])] = self._ids[i]
      batch['mask'][row, :len(self._ids[i])] = True
    batch['labels'][:len(numbers)] = self._labels[numbers]
    return batch


class _WaitingStep(BoundStep):
  """Waits for each step: a training on eight CPU devices with many sent ahead stood still."""

  def __call__(self, state, batch, rate):
    state, metrics = super().__call__(state, batch, rate)
    metrics['loss'][0].block_until_ready()
    return state, metrics


class FineTuning:
  """The compiled step of a fine-tuning, and its stages: restarts share what is compiled."""

  def __init__(
    self, rows: Rows, loss: Callable[[Any, dict[str, jax.Array], jax.Array], jax.Array],
    recipe: Recipe, *, mesh: Mesh | None = None, trainable: Any = None,
  ):
    # loss: (params, batch, dropout key) -> [B]. trainable: of `models.trainable_mask`; None: all
    self.mesh = mesh = make_mesh(MeshConfig()) if mesh is None else mesh
    self.epoch_steps = -(-len(rows.sizes) // recipe.batch_size)
    self._rows, self._batch_size = rows, recipe.batch_size
    steps = recipe.epochs * self.epoch_steps
    self.config = TrainConfig(
      steps=steps, batch_size=-(-recipe.batch_size // mesh.size) * mesh.size, schedule='linear',
      learning_rate=recipe.learning_rate, warmup_steps=math.ceil(recipe.warmup_share * steps),
      weight_decay=recipe.weight_decay, clip_norm=recipe.clip_norm, keep_checkpoints=1,
      eval_every=self.epoch_steps, checkpoint_every=self.epoch_steps)
    self._adam = Adam.of(self.config, decayed=kernels_and_tables, trainable=trainable)

    def mean_loss(params, memory, batch, key):
      weights = batch['weights']
      mean = (loss(params, batch, key) * weights).sum() / weights.sum()
      return mean, (memory, {'loss': (mean, weights.sum()), 'rows': (weights.sum(), jnp.ones(()))})

    self._update = jax.jit(make_update(mean_loss, self._adam), donate_argnums=0,
                           out_shardings=replicated(mesh))
    self._init = jax.jit(self._init_state, out_shardings=replicated(mesh))

  def _init_state(self, params: Any) -> TrainState:
    return TrainState.fresh(jax.tree.map(jnp.asarray, params), self._adam)

  def stage(self, params: Any, *, name: str, seed: int, **more: Any) -> Stage:
    """A stage of the loop that starts from parameters; `more` are further fields of `Stage`."""
    template = sharded_shapes(jax.eval_shape(self._init_state, params), replicated(self.mesh))
    on_cpu = self.mesh.devices.flat[0].platform == 'cpu'
    step = (_WaitingStep if on_cpu else BoundStep)(self._update, seed)
    return Stage(
      name=name, config=self.config, mesh=self.mesh, init_state=lambda: self._init(params),
      state_template=lambda: template, step=step,
      batches=lambda first: self._batches(seed, first),
      batch_name=lambda step: 'step {1} of epoch {0}'.format(*divmod(step, self.epoch_steps)),
      work_per_step=self._batch_size, work_unit='rows', **more)

  def run(self, params: Any, *, name: str, seed: int, log: Callable[[str], None],
          after_step: Callable[[int, Any], None] | None = None) -> tuple[Any, float]:
    """Trains without checkpoints; returns the parameters and the mean loss of the last epoch."""
    stage = self.stage(params, name=name, seed=seed, after_step=after_step)
    params, lines = run_unsaved(stage, log=log)
    return params, self.epoch_loss(lines, self.config.steps // self.epoch_steps - 1)

  def epoch_loss(self, lines: Sequence[dict[str, Any]], epoch: int) -> float:
    """Mean loss of the rows of an epoch (from 0) by the lines of a stage's metrics."""
    first = epoch * self.epoch_steps
    found = [line for line in lines if line['kind'] == 'train' and 'loss' in line
             and first < line['step'] <= first + self.epoch_steps]
    steps = np.diff([first, *(line['step'] for line in found)])
    return float(np.average([line['loss'] for line in found],
                            weights=steps * [line['rows'] for line in found]))

  def _batches(self, seed: int, first: int) -> Iterator[dict[str, np.ndarray]]:
    """Batches from a step on; every epoch has an order of its own."""
    epoch, skipped = divmod(first, self.epoch_steps)
    for number in itertools.count(epoch):
      for rows in itertools.islice(self._order(number, seed), skipped, None):
        batch = self._rows.batch(rows, self.config.batch_size)
        batch['weights'] = (np.arange(self.config.batch_size) < len(rows)).astype(np.float32)
        yield batch
      skipped = 0

  def _order(self, epoch: int, seed: int) -> Iterator[np.ndarray]:
    """Numbers of the rows of every batch: random, but with those of like length together."""
    rng = np.random.default_rng([seed, 1, epoch])
    sizes = self._rows.sizes
    order, size = rng.permutation(len(sizes)), self._batch_size
    batches: list[np.ndarray] = []
    for begin in range(0, len(order), size * _POOL):
      pool = order[begin:begin + size * _POOL]
      pool = pool[np.argsort(sizes[pool], kind='stable')]
      batches += [pool[i:i + size] for i in range(0, len(pool), size)]
    yield from (batches[i] for i in rng.permutation(len(batches)))
