"""Fine-tuning of a sequence classifier: epochs, the best of which is kept, resumable after each.

Every random number is a function of (seed, epoch, step), so an interrupted training that goes on
gives the same model, bit by bit, as one that was not interrupted (on the same devices).
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fairjax.classifier.examples import Examples
from fairjax.classifier.quality import quality
from fairjax.classifier.start import Start, write_model, write_tokenizer
from fairjax.errors import UserError
from fairjax.files import atomic_write, write_json
from fairjax.pretrained import BatchRunner, bucket_lengths, class_logits, encode, encode_texts
from fairjax.pretrained.batches import default_mesh
from fairjax.progress import Progress

CARD = 'card.json'
_POOL = 50  # batches whose texts are sorted by length together


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to train."""

  classes: int
  epochs: int
  batch_size: int
  learning_rate: float
  weight_decay: float = 0.01  # of kernels and tables
  warmup_share: float = 0.1  # of all steps; then linearly to 0
  clip_norm: float = 1.0
  seed: int = 0


def train_classifier(
  start: Start, train: Examples, dev: Examples, output: pathlib.Path, *, settings: Settings,
  source: dict[str, Any], log: Callable[[str], None], mesh: Mesh | None = None,
) -> dict[str, Any]:
  """Trains, keeps the epoch with the highest accuracy on `dev` and writes a model directory.

  Args:
    start: where from.
    train: texts to learn.
    dev: texts that choose the epoch.
    output: gets tokenizer, `config.json`, `model.safetensors` and `card.json`; `training/` holds
      the last and the best epoch until then, and the same call goes on from there.
    settings: see `Settings`.
    source: what else identifies the training and goes into the card.
    log: called with lines of progress.
    mesh: default: all devices.

  Returns:
    The card.

  Raises:
    UserError: `output` belongs to another training or holds files of something else, or the loss is
      not finite.
  """
  identity = {'settings': dataclasses.asdict(settings), 'start': start.fingerprint,
              'config': start.config, 'train': train.digest, 'dev': dev.digest, **source}
  checkpoint, best = output / 'training' / 'last.safetensors', output / 'training/best.safetensors'
  if (output / CARD).is_file():
    card = _read_card(output / CARD)
    _check_identity(card['identity'], identity, output)
    log(f'[train] {output} finished earlier: nothing to do')
    _remove(checkpoint, best)  # an interruption after the card leaves them
    return card
  if not checkpoint.is_file():
    _check_free(output, start)
  trainer = _Trainer(start, train, dev, settings, mesh or default_mesh(), log)
  params, opt_state, history = trainer.fresh()
  if checkpoint.is_file():
    tensors, saved = _read(checkpoint)
    _check_identity(saved['identity'], identity, output)
    params, opt_state = _unflatten((params, opt_state), tensors, where=checkpoint)
    history = saved['history']
    log(f'[train] goes on after epoch {len(history)} of {settings.epochs}')
  write_tokenizer(output, start)
  params, opt_state = trainer.place((params, opt_state))
  for epoch in range(len(history), settings.epochs):
    params, opt_state, loss = trainer.epoch(params, opt_state, epoch)
    found = trainer.evaluate(params)
    history.append({'epoch': epoch + 1, 'train_loss': loss, 'dev': found})
    log(f"[epoch {epoch + 1}/{settings.epochs}] loss {loss:.4f}, dev accuracy "
        f"{found['accuracy']['value']:.4f}, macro F1 {found['macro_f1']['value']:.4f} "
        f"(n = {found['n']})")
    if _best(history) == epoch:
      _write(best, params, {'identity': identity, 'epoch': epoch + 1})
    _write(checkpoint, (params, opt_state), {'identity': identity, 'history': history})
  tensors, saved = _read(best)
  _check_identity(saved['identity'], identity, output)
  write_model(output, start, _unflatten(params, tensors, where=best))
  chosen = history[_best(history)]
  card = {
    'identity': identity, 'epochs': history, 'chosen_epoch': chosen['epoch'], 'dev': chosen['dev'],
    'note': 'the epoch was chosen on dev, so its figures are a little too good',
    'train_texts': len(train.texts), 'train_neutral_left_out': train.neutral,
    'train_doubles_left_out': train.doubles, 'dev_texts': len(dev.texts),
    'dev_neutral_left_out': dev.neutral, 'max_length': start.max_length,
    'train_truncated': trainer.train.truncated, 'dev_truncated': trainer.dev.truncated}
  write_json(output / CARD, card)
  _remove(checkpoint, best)
  return card


class _Trainer:
  """Compiled step and evaluation on a mesh."""

  def __init__(self, start: Start, train: Examples, dev: Examples, settings: Settings, mesh: Mesh,
               log: Callable[[str], None]):
    self.settings, self._start, self._log, self._mesh = settings, start, log, mesh
    self.train, self.dev = (encode_texts(start.tokenizer, e.texts, max_length=start.max_length)
                            for e in (train, dev))
    self._labels, self._dev_labels = train.labels, dev.labels
    self._lengths = bucket_lengths(start.max_length)
    self._rows = -(-settings.batch_size // mesh.size) * mesh.size
    self._steps = -(-len(train.texts) // settings.batch_size)
    self._sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    self._whole = NamedSharding(mesh, PartitionSpec())
    arch = start.arch
    self._adam = optax.chain(
      optax.clip_by_global_norm(settings.clip_norm), optax.scale_by_adam(),
      optax.add_decayed_weights(settings.weight_decay, mask=_decayed))
    self._runner: BatchRunner | None = None

    def step(params, opt_state, batch, number, rate):
      key = jax.random.fold_in(jax.random.key(settings.seed), number)
      loss, gradients = jax.value_and_grad(_loss)(params, arch, batch, key)
      direction, opt_state = self._adam.update(gradients, opt_state, params)
      params = optax.apply_updates(params, jax.tree.map(lambda d: -rate * d, direction))
      return params, opt_state, loss

    self._step = jax.jit(step, donate_argnums=(0, 1), out_shardings=self._whole)

  def fresh(self) -> tuple[Any, Any, list]:
    """Parameters, optimizer state and history before the first epoch."""
    return self._start.params, self._adam.init(self._start.params), []

  def place(self, tree: Any) -> Any:
    """Puts arrays on all devices."""
    return jax.device_put(tree, self._whole)

  def epoch(self, params: Any, opt_state: Any, epoch: int) -> tuple[Any, Any, float]:
    """One pass over the training texts: parameters, optimizer state, mean loss."""
    s, losses, total = self.settings, [], self.settings.epochs * self._steps
    with Progress(f'[epoch {epoch + 1}/{s.epochs}] trained', total, unit='steps',
                  log=self._log, done=epoch * self._steps) as progress:
      for number, places in enumerate(self._batches(epoch)):
        done = epoch * self._steps + number
        rate = s.learning_rate * _schedule(done, total, s.warmup_share)
        params, opt_state, loss = self._step(
          params, opt_state, self._batch(places), np.int32(done), np.float32(rate))
        losses.append((loss, len(places)))
        words = functools.partial('loss {:.4f}, rate {:.2e}'.format, loss, rate)
        progress.add(1, words)  # waits for the loss only when it is shown
    values = np.array(jax.device_get([loss for loss, _ in losses]), np.float64)
    if not np.isfinite(values).all():
      raise UserError(f'the loss is not finite in epoch {epoch + 1}: lower --learning_rate')
    return params, opt_state, float(np.average(values, weights=[n for _, n in losses]))

  def evaluate(self, params: Any) -> dict[str, Any]:
    """Quality on the dev texts."""
    arch = self._start.arch
    if self._runner is None:
      self._runner = BatchRunner(
        lambda p, ids, mask, packing: class_logits(
          p, arch, encode(p, arch, ids, mask, packing=packing, first_only=True)), params,
        max_length=self._start.max_length, pad_id=arch.pad_id, mesh=self._mesh)
    self._runner.load(params)
    return quality(self._dev_labels, self._runner(self.dev.ids).argmax(-1),
                   classes=self.settings.classes)

  def _batches(self, epoch: int) -> Iterator[np.ndarray]:
    """Numbers of the texts of every batch: random, but with those of like length together."""
    rng = np.random.default_rng([self.settings.seed, 1, epoch])
    sizes = np.array([len(row) for row in self.train.ids])
    order, size = rng.permutation(len(sizes)), self.settings.batch_size
    batches: list[np.ndarray] = []
    for begin in range(0, len(order), size * _POOL):
      pool = order[begin:begin + size * _POOL]
      pool = pool[np.argsort(sizes[pool], kind='stable')]
      batches += [pool[i:i + size] for i in range(0, len(pool), size)]
    yield from (batches[i] for i in rng.permutation(len(batches)))

  def _batch(self, places: Sequence[int]) -> dict[str, jax.Array]:
    """Ids, mask, labels and weights of some texts, padded to a bucket's length."""
    longest = max(len(self.train.ids[i]) for i in places)
    length = next(n for n in self._lengths if n >= longest)
    batch = {'ids': np.full((self._rows, length), self._start.arch.pad_id, np.int32),
             'mask': np.zeros((self._rows, length), bool),
             'labels': np.zeros(self._rows, np.int32), 'weights': np.zeros(self._rows, np.float32)}
    for row, i in enumerate(places):
      batch['ids'][row, :len(self.train.ids[i])] = self.train.ids[i]
      batch['mask'][row, :len(self.train.ids[i])] = True
    batch['labels'][:len(places)], batch['weights'][:len(places)] = self._labels[places], 1
    return jax.device_put(batch, self._sharding)


def _loss(params, arch, batch, key) -> jax.Array:
  """Mean cross-entropy over the rows that are no padding."""
  keys = jax.random.split(key)
  hidden = encode(params, arch, batch['ids'], batch['mask'], key=keys[0], first_only=True)
  logits = class_logits(params, arch, hidden, key=keys[1])
  each = optax.softmax_cross_entropy_with_integer_labels(logits, batch['labels'])
  return (each * batch['weights']).sum() / batch['weights'].sum()


def _decayed(params) -> Any:
  """Kernels and tables, not biases and norms."""
  return {group: {name: not name.endswith(('bias', 'scale')) for name in arrays}
          for group, arrays in params.items()}


def _schedule(step: int, steps: int, warmup_share: float) -> float:
  """Share of the learning rate: linear from 0, then linear to 0.

  >>> [_schedule(step, 100, 0.1) for step in (0, 5, 10, 55)]
  [0.0, 0.5, 1.0, 0.5]
  """
  warm = math.ceil(warmup_share * steps)
  return step / warm if step < warm else (steps - step) / max(1, steps - warm)


def _best(history: list[dict[str, Any]]) -> int:
  """Index of the epoch with the highest accuracy, the first of equal ones."""
  return int(np.argmax([h['dev']['accuracy']['value'] for h in history]))


def _names(tree: Any) -> list[str]:
  return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _write(path: pathlib.Path, tree: Any, card: dict[str, Any]) -> None:
  """Writes a tree of arrays with its card, atomically."""
  from safetensors.numpy import save
  arrays = [np.asarray(a, order='C') for a in jax.device_get(jax.tree.leaves(tree))]
  with atomic_write(path) as file:
    file.write(save(dict(zip(_names(tree), arrays, strict=True)),
                    metadata={'card': json.dumps(card)}))


def _read(path: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Arrays and card of a file of `_write`."""
  from safetensors import SafetensorError, safe_open
  try:
    with safe_open(path, 'np') as file:
      return {name: file.get_tensor(name) for name in file.keys()}, json.loads(  # noqa: SIM118
        file.metadata()['card'])
  except (OSError, SafetensorError, ValueError, KeyError, TypeError) as e:
    raise UserError(f'{path} is damaged ({e}): delete its folder to train again') from None


def _read_card(path: pathlib.Path) -> dict[str, Any]:
  """The card of a finished training."""
  try:
    card = json.loads(path.read_text(encoding='utf-8'))
    if isinstance(card['identity'], dict):
      return card
  except (OSError, ValueError, KeyError, TypeError):
    pass
  raise UserError(f'{path} is not the card of a finished training: name another --output, or '
                  'delete it to train again')


def _check_free(output: pathlib.Path, start: Start) -> None:
  """A training that begins must not write over files that are not its own."""
  for name in ('config.json', 'model.safetensors', *start.files):
    path = output / name
    if path.exists() and (name not in start.files or path.read_bytes() != start.files[name]):
      raise UserError(f'{path} exists and is not of this training: it would be written over; name '
                      'a new folder with --output')


def _remove(checkpoint: pathlib.Path, best: pathlib.Path) -> None:
  """Removes what an interrupted training would go on with."""
  for path in (checkpoint, best):
    path.unlink(missing_ok=True)
  if checkpoint.parent.is_dir() and not any(checkpoint.parent.iterdir()):
    checkpoint.parent.rmdir()


def _unflatten(tree: Any, tensors: dict[str, np.ndarray], *, where: pathlib.Path) -> Any:
  """Puts arrays by name into the places of `tree`."""
  names = _names(tree)
  shapes = dict(zip(names, map(np.shape, jax.tree.leaves(tree)), strict=True))
  if shapes != {name: tensor.shape for name, tensor in tensors.items()}:
    raise UserError(f'{where} holds other arrays than this training: delete its folder')
  return jax.tree.unflatten(jax.tree.structure(tree), [tensors[name] for name in names])


def _check_identity(saved: dict[str, Any], wanted: dict[str, Any], output: pathlib.Path) -> None:
  """Refuses to go on with another training, naming what differs."""
  def flat(tree, prefix=''):
    if not isinstance(tree, dict):
      return {prefix.removesuffix('.'): tree}
    return {k: v for name, value in tree.items()
            for k, v in flat(value, f'{prefix}{name}.').items()}

  old, new = flat(saved), flat(json.loads(json.dumps(wanted)))
  changed = [f'{k} ({old.get(k)!r}, now {new.get(k)!r})' for k in sorted(old.keys() | new.keys())
             if old.get(k) != new.get(k)]
  if changed:
    more = f' and {len(changed) - 3} more' if len(changed) > 3 else ''
    raise UserError(f"{output} belongs to another training: {'; '.join(changed[:3])}{more}: use "
                    'another --output, or the same options')
