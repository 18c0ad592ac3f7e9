"""Masked training on the mesh, in the loop and with the checkpoints of the curriculum.

Every random number is a function of (seed, step) or (seed, epoch, row): an interrupted training
that goes on gives, on the same devices, the same model bit by bit.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fairjax import processes
from fairjax.classifier.start import Start
from fairjax.config import MeshConfig, TrainConfig
from fairjax.errors import UserError
from fairjax.files import FolderLock, read_sealed_json, write_sealed_json
from fairjax.masked.masking import MaskedRows, Masking
from fairjax.masked.objective import FreezingAdam, masked_sums
from fairjax.masked.rows import Rows, special_tokens
from fairjax.masked.sharding import check_mesh, state_shardings
from fairjax.masked.start import check_free, write_model
from fairjax.pretrained.freezing import frozen_words, parse_freeze, trainable_mask
from fairjax.train import (
  Identity,
  StopSignal,
  derive_seed,
  fingerprint,
  make_mesh,
  own_rows,
  params_digest,
)
from fairjax.train.loop import Stage, run_stage
from fairjax.train.optimizer import Adam
from fairjax.train.sharding import ROWS, replicated, to_devices, to_host
from fairjax.train.steps import bind
from fairjax.train.update import Guard, TrainState, make_update

CARD, PLAN = 'card.json', 'plan.json'
_TIMES = ('log_every', 'eval_every', 'checkpoint_every', 'keep_checkpoints')  # change no number


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to train.

  Attributes:
    train: steps, rows of a batch, optimizer, intervals.
    mask_share: of the pieces that are to be found.
    whole_words: whether words are masked whole.
    freeze: 'none', 'embedding', 'all' or a number of layers, see `freezing.parse_freeze`.
    seed: >= 0.
  """

  train: TrainConfig
  mask_share: float = 0.15
  whole_words: bool = False
  freeze: str = 'none'
  seed: int = 0

  def identity(self) -> dict[str, Any]:
    """What decides the result."""
    train = {k: v for k, v in dataclasses.asdict(self.train).items() if k not in _TIMES}
    return {**dataclasses.asdict(self), 'train': train}


def train_masked(
  start: Start, train: Rows, valid: Rows, workdir: pathlib.Path, *, settings: Settings,
  source: dict[str, Any], log: Callable[[str], None], mesh: Mesh | None = None,
  stop: StopSignal | None = None,
) -> dict[str, Any]:
  """Trains, and writes a model directory; in a group of processes the first one writes.

  Args:
    start: where from.
    train: rows to learn.
    valid: rows whose loss is told, with masks that never change and without dropout.
    workdir: gets `plan.json` at once and, in the end, tokenizer, `config.json`,
      `model.safetensors` and `card.json`; `training/` holds checkpoints and `metrics.jsonl`, and
      the same call goes on from there.
    settings: see `Settings`.
    source: what else identifies the training (files, CDA) and goes into the card.
    log: called with lines of progress.
    mesh: how devices share the work; default: rows over all of them. No part of the plan.
    stop: of signals; None: none is heeded.

  Returns:
    The card.

  Raises:
    UserError: `workdir` belongs to another training or holds files of something else, rows do not
      fit the model or the devices, there are fewer than the freezing needs, or none of the
      validation is masked.
    Preempted: a signal came; all is saved.
    TrainingDiverged: too many updates in a row were skipped.
  """
  mesh = make_mesh(MeshConfig()) if mesh is None else mesh
  plan = json.loads(json.dumps({
    'settings': settings.identity(), 'start': start.fingerprint, 'config': start.config,
    'train': train.digest, 'valid': valid.digest, 'source': source}))
  _check(start, settings, mesh, longest=max(train.longest, valid.longest))
  run = _Run(start, train, valid, settings, mesh)
  lock = FolderLock(workdir, log) if processes.is_first() else contextlib.nullcontext()
  with lock:
    _claim(workdir, plan)
    log(f'[mlm] {frozen_words(settings.freeze)}; dropout {start.arch.hidden_dropout:g} of hidden '
        f'states, {start.arch.attention_dropout:g} of attention')
    params = run_stage(run.stage(workdir / 'training', plan), stop=stop or StopSignal(), log=log)
    card = {'plan': plan, 'train': train.counts, 'valid': valid.counts, 'length': run.length,
            'row_share_of_padding': round(1 - train.size / (len(train) * run.length), 4),
            **run.result(workdir / 'training')}
    params = jax.tree.map(to_host, params)  # together: each process has parts of them
    if processes.is_first():
      write_model(workdir, start, params)
      write_sealed_json(workdir / CARD, card)
    processes.share()
    return card


class _Run:
  """What a stage of the loop needs."""

  def __init__(self, start: Start, train: Rows, valid: Rows, settings: Settings, mesh: Mesh):
    self._start, self._settings, self._mesh = start, settings, mesh
    self._config = settings.train
    special = special_tokens(start.tokenizer, pad_id=start.arch.pad_id, where='the start',
                             vocab_size=start.arch.vocab_size)
    # Rows of one length compile once; padding is no more than the longest needs.
    longest = max(train.longest, valid.longest)
    self.length = min(-(-longest // 8) * 8, start.arch.max_positions)
    masking = Masking(settings.mask_share, settings.whole_words,
                      derive_seed(settings.seed, 'masked-lm/masking'))
    self._train, self._valid = (
      MaskedRows(rows, special, masking, vocab_size=start.arch.vocab_size, length=self.length)
      for rows in (train, valid))
    if not any(len(self._valid.masked(row, None)[1]) for row in range(len(valid))):
      raise UserError('the validation text is so short that nothing of it is masked: give more '
                      'text with --valid, or a larger --mask_share')
    self._tokens = int(train.size / len(train) * self._config.batch_size)
    moves = None
    if settings.freeze != 'none':
      moves = trainable_mask(start.params, start.arch, settings.freeze)
    self._adam = FreezingAdam(Adam.of(self._config), moves)
    self._dropout_seed = derive_seed(settings.seed, 'masked-lm/dropout')
    whole = replicated(mesh)
    self._abstract = jax.eval_shape(self._fresh, start.params)
    self._shardings = state_shardings(self._abstract, mesh)
    self._update = jax.jit(make_update(self._loss, self._adam, parts=1), donate_argnums=0,
                           out_shardings=(self._shardings, whole))
    self._sums = jax.jit(lambda params, batch: masked_sums(params, start.arch, batch, None),
                         out_shardings=whole)

  def stage(self, directory: pathlib.Path, plan: dict[str, Any]) -> Stage:
    start, config, mesh = self._start, self._config, self._mesh
    template = jax.tree.map(lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding), self._abstract, self._shardings)
    identity = Identity(
      stage='masked-lm', config=fingerprint(plan),
      vocabulary=fingerprint({k: v.hex() for k, v in start.files.items()}),
      parent=params_digest(start.params))
    return Stage(
      name='mlm', directory=directory, identity=identity, config=config, mesh=mesh,
      init_state=lambda: jax.jit(self._fresh, out_shardings=self._shardings)(start.params),
      params_template=lambda: template.params, state_template=lambda: template,
      step=bind(self._update, self._dropout_seed),
      batches=lambda first: own_rows(self._train.training(first, config.batch_size)),
      batch_name=lambda step: f'rows {step * config.batch_size} to '
                              f'{(step + 1) * config.batch_size - 1} of the shuffled passes',
      evaluate=self._evaluate, work_per_step=self._tokens)

  def result(self, directory: pathlib.Path) -> dict[str, Any]:
    """The last validation, from the marker of the finished stage."""
    done = read_sealed_json(directory / 'DONE', again='the same command writes it again')
    return {'steps': done['step'], 'result': done['summary']}

  def _fresh(self, params: Any) -> TrainState:
    return TrainState(
      step=jnp.zeros((), jnp.int32), params=jax.tree.map(jnp.asarray, params), memory=None,
      opt_state=self._adam.transformation().init(params), guard=Guard.fresh(self._adam))

  def _loss(self, params, memory, batch, key):
    nats, right, count = masked_sums(params, self._start.arch, batch, key)
    most = jnp.maximum(count, 1)  # a batch of rows so short that nothing is masked teaches nothing
    loss = nats / most
    return loss, (memory, {'loss': (loss, count), 'accuracy': (right / most, count)})

  def _evaluate(self, params: Any) -> dict[str, float]:
    """Loss and accuracy at the masked places of the validation rows."""
    total = np.zeros(3)
    for batch in own_rows(self._valid.validation(self._config.batch_size)):
      sums = self._sums(params, to_devices(batch, self._mesh))
      total += np.array(jax.device_get(sums), np.float64)
    nats, right, count = total.tolist()
    return {'loss': nats / count, 'accuracy': right / count, 'places': count}


def _check(start: Start, settings: Settings, mesh: Mesh, *, longest: int) -> None:
  """Raises `UserError` where model, settings and devices do not fit."""
  parse_freeze(settings.freeze, start.arch)
  check_mesh(start.params, start.arch, mesh)
  if longest > start.arch.max_positions:
    raise UserError(f'rows of {longest} tokens, but the model reads {start.arch.max_positions}: '
                    f'give --max_length={start.arch.max_positions}')
  devices = int(np.prod([mesh.shape[axis] for axis in ROWS]))
  size = settings.train.batch_size
  if size % devices:
    raise UserError(f'--batch_size={size} is not divisible by the {devices} devices that share the '
                    f'rows: use --batch_size={max(devices, size // devices * devices)}')


def _claim(workdir: pathlib.Path, plan: dict[str, Any]) -> None:
  """Writes the plan into a new folder, or compares it with that of an earlier start."""
  path = workdir / PLAN
  if processes.share(not path.is_file()):
    check_free(workdir)
    if processes.is_first():
      write_sealed_json(path, plan)
    processes.share()
    return
  saved = read_sealed_json(path, again=f'delete {workdir} to train again')
  old, new = _flat(saved), _flat(plan)
  changed = [f'{k} ({_shown(old.get(k))}, now {_shown(new.get(k))})'
             for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k)]
  if changed:
    more = f' and {len(changed) - 3} more' if len(changed) > 3 else ''
    raise UserError(f"{workdir} belongs to another training: {'; '.join(changed[:3])}{more}: use "
                    'another --workdir, or the same options and text')


def _flat(tree: Any, prefix: str = '') -> dict[str, Any]:
  if not isinstance(tree, dict):
    return {prefix.removesuffix('.'): tree}
  return functools.reduce(
    lambda found, item: found | _flat(item[1], f'{prefix}{item[0]}.'), tree.items(), {})


def _shown(value: Any) -> str:
  return f'{value[:12]}...' if isinstance(value, str) and len(value) == 64 else repr(value)
