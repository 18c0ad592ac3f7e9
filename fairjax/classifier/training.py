"""Fine-tuning of a sequence classifier: epochs, the best of which is kept, resumable after each."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from fairjax.classifier.examples import Examples
from fairjax.classifier.quality import quality
from fairjax.classifier.start import Start, write_model, write_tokenizer
from fairjax.classifier.trainer import Recipe, TokenRows, Trainer
from fairjax.errors import UserError
from fairjax.files import atomic_write, write_json
from fairjax.pretrained import Architecture, BatchRunner, class_logits, encode, encode_texts
from fairjax.pretrained.batches import default_mesh

CARD = 'card.json'


@dataclasses.dataclass(frozen=True)
class Settings(Recipe):
  """How to train a classifier."""

  classes: int = 2


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
    check_identity(card['identity'], identity, output)
    log(f'[train] {output} finished earlier: nothing to do')
    _remove(checkpoint, best)  # an interruption after the card leaves them
    return card
  if not checkpoint.is_file():
    _check_free(output, start)
  classifier = _Classifier(start, train, dev, settings, mesh or default_mesh(), log)
  trainer, params, history = classifier.trainer, start.params, []
  opt_state = trainer.fresh(params)
  if checkpoint.is_file():
    tensors, saved = _read(checkpoint)
    check_identity(saved['identity'], identity, output)
    params, opt_state = _unflatten((params, opt_state), tensors, where=checkpoint)
    history = saved['history']
    log(f'[train] goes on after epoch {len(history)} of {settings.epochs}')
  write_tokenizer(output, start)
  params, opt_state = trainer.place((params, opt_state))
  for epoch in range(len(history), settings.epochs):
    params, opt_state, loss = trainer.epoch(params, opt_state, epoch)
    found = classifier.evaluate(params)
    history.append({'epoch': epoch + 1, 'train_loss': loss, 'dev': found})
    log(f"[epoch {epoch + 1}/{settings.epochs}] loss {loss:.4f}, dev accuracy "
        f"{found['accuracy']['value']:.4f}, macro F1 {found['macro_f1']['value']:.4f} "
        f"(n = {found['n']})")
    if _best(history) == epoch:
      _write(best, params, {'identity': identity, 'epoch': epoch + 1})
    _write(checkpoint, (params, opt_state), {'identity': identity, 'history': history})
  tensors, saved = _read(best)
  check_identity(saved['identity'], identity, output)
  write_model(output, start, _unflatten(params, tensors, where=best))
  chosen = history[_best(history)]
  card = {
    'identity': identity, 'epochs': history, 'chosen_epoch': chosen['epoch'], 'dev': chosen['dev'],
    'note': 'the epoch was chosen on dev, so its figures are a little too good',
    'train_texts': len(train.texts), 'train_neutral_left_out': train.neutral,
    'train_doubles_left_out': train.doubles, 'dev_texts': len(dev.texts),
    'dev_neutral_left_out': dev.neutral, 'max_length': start.max_length,
    'train_truncated': classifier.train.truncated,
    'dev_truncated': classifier.dev.truncated}
  write_json(output / CARD, card)
  _remove(checkpoint, best)
  return card


class _Classifier:
  """Rows, loss and quality of one training."""

  def __init__(self, start: Start, train: Examples, dev: Examples, settings: Settings, mesh: Mesh,
               log: Callable[[str], None]):
    self._start, self._mesh, self._classes = start, mesh, settings.classes
    self.train, self.dev = (encode_texts(start.tokenizer, e.texts, max_length=start.max_length)
                            for e in (train, dev))
    longer = ', '.join(
      f'{encoded.truncated:,} of {len(encoded.ids):,} {name} texts'
      for name, encoded in (('training', self.train), ('dev', self.dev)) if encoded.truncated)
    if longer:
      log(f'[data] {longer} are longer than the {start.max_length} tokens the model reads: their '
          'end is not seen')
    self._dev_labels = dev.labels
    rows = TokenRows(self.train.ids, train.labels, max_length=start.max_length,
                     pad_id=start.arch.pad_id)
    self.trainer = Trainer(rows, functools.partial(class_losses, arch=start.arch), settings,
                           mesh=mesh, log=log)
    self._runner: BatchRunner | None = None

  def evaluate(self, params: Any) -> dict[str, Any]:
    """Quality on the dev texts."""
    arch = self._start.arch
    if self._runner is None:
      self._runner = BatchRunner(
        lambda p, ids, mask, packing: class_logits(
          p, arch, encode(p, arch, ids, mask, packing=packing, first_only=True)), params,
        max_length=self._start.max_length, pad_id=arch.pad_id, mesh=self._mesh)
    self._runner.load(params)
    return quality(self._dev_labels, self._runner(self.dev.ids).argmax(-1), classes=self._classes)


def class_losses(params: Any, batch: dict[str, jax.Array], key: jax.Array, *, arch: Architecture
                 ) -> jax.Array:
  """Cross-entropy of every row, `[B]` nats."""
  keys = jax.random.split(key)
  hidden = encode(params, arch, batch['ids'], batch['mask'], key=keys[0], first_only=True)
  logits = class_logits(params, arch, hidden, key=keys[1])
  return optax.softmax_cross_entropy_with_integer_labels(logits, batch['labels'])


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


def check_identity(saved: dict[str, Any], wanted: dict[str, Any], output: pathlib.Path) -> None:
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
