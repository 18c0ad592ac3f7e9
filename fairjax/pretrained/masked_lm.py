"""Masked training on the mesh, in the loop and with the checkpoints of the curriculum.

Every random number is a function of (seed, step) or (seed, epoch, row): an interrupted training
that goes on gives, on the same devices, the same model bit by bit.
"""

import contextlib
import dataclasses
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding

from fairjax import processes
from fairjax.config import MeshConfig, TrainConfig
from fairjax.errors import UserError
from fairjax.files import FolderLock, read_sealed_json, write_sealed_json
from fairjax.pretrained.checkpoint import Architecture, load_pretrained, read_architecture
from fairjax.pretrained.masked_rows import MaskedRows, Masking, Rows
from fairjax.pretrained.models import (
  encode,
  format_frozen,
  mlm_logits,
  parse_freeze,
  trainable_mask,
)
from fairjax.pretrained.start import (
  PLAN,
  Sizes,
  Start,
  new_start,
  open_plan,
  write_model,
)
from fairjax.processes import StopSignal
from fairjax.train import derive_seed, make_mesh, own_rows
from fairjax.train.loop import Stage, run_stage
from fairjax.train.optimizer import Adam, kernels_and_tables
from fairjax.train.sharding import (
  ROWS,
  axes_sharding,
  replicated,
  sharded_shapes,
  to_devices,
  to_host,
)
from fairjax.train.steps import BoundStep, TrainState, make_update

# Where the parameters of BERT and ALBERT live: the table of their logical axes.
#
# The meaning of the names is that of the curriculum (`fairjax.train.sharding.RULES`): widths over
# `fsdp`, vocabulary, heads and feed-forward over `model`. Adam's moments lie where their parameters
# do; what is as wide as the model alone (norms, biases behind a sum) is on every device.

# group -> array -> the names of its axes; others are not split
AXES: dict[str, dict[str, tuple[str | None, ...]]] = {
  'embeddings': {'word': ('vocab', 'embed'), 'position': (None, 'embed'),
                 'token_type': (None, 'embed')},
  'projection': {'kernel': ('embed', None)},
  'layers': {
    'qkv_kernel': ('layers', 'embed', 'heads'), 'qkv_bias': ('layers', 'heads'),
    'out_kernel': ('layers', 'heads', 'embed'), 'ff_in_kernel': ('layers', 'embed', 'mlp'),
    'ff_in_bias': ('layers', 'mlp'), 'ff_out_kernel': ('layers', 'mlp', 'embed')},
  'mlm': {'kernel': ('embed', None), 'output_bias': ('vocab',)},
  'output': {'table': ('vocab', 'embed')},
}


def state_shardings(abstract: Any, mesh: Mesh) -> Any:
  """A sharding for every leaf of parameters, or of a state that holds trees like them."""
  def sharding(path, leaf) -> NamedSharding:
    names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    axes = AXES.get(names[-2], {}).get(names[-1]) if len(names) > 1 else None
    return replicated(mesh) if axes is None else axes_sharding(axes, mesh)

  return jax.tree_util.tree_map_with_path(sharding, abstract)


def check_mesh(params: Any, arch: Architecture, mesh: Mesh) -> None:
  """Refuses a mesh whose axes do not divide what they split."""
  sizes: dict[str, dict[str, int]] = {'fsdp': {}, 'model': {'its attention heads': arch.num_heads}}
  leaves = jax.tree_util.tree_leaves_with_path(params)
  shardings = jax.tree.leaves(state_shardings(params, mesh))
  for (path, leaf), sharding in zip(leaves, shardings, strict=True):
    for size, axis in zip(leaf.shape, sharding.spec, strict=False):
      if axis is not None:
        sizes[axis]['.'.join(key.key for key in path)] = size
  for axis, found in sizes.items():
    parts = mesh.shape[axis]
    for name, size in found.items():
      if size % parts:
        most = math.gcd(*found.values(), mesh.size)
        fits = ', '.join(str(n) for n in range(1, most + 1) if most % n == 0)
        raise UserError(f'--mesh.{axis}={parts} does not divide {size} ({name}): of the numbers '
                        f'that divide the {mesh.size} devices this model allows {fits}')


# The masked language model's loss.
#
# Letters: B rows, T places, P places to be found, V vocabulary.

def masked_sums(params: Any, arch: Architecture, batch: dict[str, jax.Array],
                key: jax.Array | None) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Sums over the masked places of a batch, each `[]`: nats, right first guesses, places."""
  hidden = encode(params, arch, batch['ids'], batch['mask'], key=key)
  logits = mlm_logits(params, arch, hidden, batch['places']).astype(jnp.float32)
  targets, weights = batch['targets'], batch['weights']
  nats = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
  right = logits.argmax(-1) == targets
  return (nats * weights).sum(), (right * weights).sum(), weights.sum()


# Where masked training starts: a checkpoint with its MLM head, or a new BERT or ALBERT.

def with_dropout(start: Start, *, hidden: float | None, attention: float | None) -> Start:
  """The same with other rates, in [0, 1), also in its `config.json`; None leaves one as it is."""
  given = {name: rate for name, rate in (('hidden_dropout_prob', hidden),
                                         ('attention_probs_dropout_prob', attention))
           if rate is not None}
  config = {**start.config, **given}
  return start._replace(config=config, arch=read_architecture(config, where='the options'))


def from_checkpoint(directory: str, *, log: Callable[[str], None]) -> Start:
  """Goes on from a BERT or ALBERT that has its MLM head."""
  model = load_pretrained(directory, 'mlm')
  config = {**model.config,
            'architectures': [f'{model.architecture.kind.capitalize()}ForMaskedLM']}
  log(f"[start] {directory}: {model.architecture.kind}; in its files, but no part of this model: "
      + (', '.join(model.ignored) or 'nothing'))
  return Start.of(model, config, model.architecture, model.params)


def from_vocabulary(vocabulary: dict[str, int], sizes: Sizes, *, seed: int,
                    log: Callable[[str], None]) -> Start:
  """Random parameters for a WordPiece vocabulary, piece -> id in the order of the ids."""
  albert = sizes.kind == 'albert'
  more: dict[str, Any] = {
    'embedding_size': sizes.embedding_dim or min(sizes.dim, 128), 'num_hidden_groups': 1,
    'inner_group_num': 1, 'hidden_act': 'gelu_new', 'hidden_dropout_prob': 0.0,
    'attention_probs_dropout_prob': 0.0, 'classifier_dropout_prob': 0.1,
    'bos_token_id': vocabulary['[CLS]'], 'eos_token_id': vocabulary['[SEP]'],
  } if albert else {
    'hidden_act': 'gelu', 'hidden_dropout_prob': 0.1, 'attention_probs_dropout_prob': 0.1}
  # BERT-large's 0.02, for the variance of sums over `dim` inputs: with 0.02 itself attention in a
  # model of width 64 stays even for thousands of steps.
  start = new_start(vocabulary, sizes, std=round(0.02 * math.sqrt(1024 / sizes.dim), 4), head='mlm',
                    seed=seed, log=log, architectures=[f'{sizes.kind.capitalize()}ForMaskedLM'],
                    **more)
  if albert:  # its own tokenizer class reads SentencePiece models only
    options = json.loads(start.files['tokenizer_config.json'])
    start.files['tokenizer_config.json'] = json.dumps(
      options | {'tokenizer_class': 'PreTrainedTokenizerFast'}, indent=2).encode('utf-8')
  return start


CARD = 'card.json'
_TIMES = ('log_every', 'eval_every', 'checkpoint_every', 'keep_checkpoints')  # change no number


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to train."""

  train: TrainConfig
  mask_share: float = 0.15  # of the pieces that are to be found
  whole_words: bool = False
  freeze: str = 'none'  # see `models.parse_freeze`
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
  """Trains, and writes a model directory; in a group of processes the first one writes."""
  mesh = make_mesh(MeshConfig()) if mesh is None else mesh
  plan = json.loads(json.dumps({
    'settings': settings.identity(), 'start': start.fingerprint, 'config': start.config,
    'train': train.digest, 'valid': valid.digest, 'source': source}))
  check_fit(start, settings, mesh)
  run = _Run(start, train, valid, settings, mesh)
  lock = FolderLock(workdir, log) if processes.is_first() else contextlib.nullcontext()
  with lock:
    open_plan(workdir / PLAN, plan, output=workdir, option='--workdir')
    log(f'[mlm] {format_frozen(settings.freeze)}; dropout {start.arch.hidden_dropout:g} of hidden '
        f'states, {start.arch.attention_dropout:g} of attention')
    params = run_stage(run.stage(workdir / 'training', plan), stop=stop or StopSignal(), log=log)
    card = {'plan': plan, 'train': train.counts, 'valid': valid.counts, 'length': run.length,
            'row_share_of_padding': round(1 - train.size / (len(train) * run.length), 4),
            **run.result(workdir / 'training')}
    params = jax.tree.map(to_host, params)  # together: each process has parts of them
    if processes.is_first():
      write_model(workdir, start, params, 'mlm')
      write_sealed_json(workdir / CARD, card)
    processes.share()
    return card


class _Run:
  """What a stage of the loop needs."""

  def __init__(self, start: Start, train: Rows, valid: Rows, settings: Settings, mesh: Mesh):
    self._start, self._settings, self._mesh = start, settings, mesh
    self._config = settings.train
    # Rows of one length compile once; padding is no more than the longest needs.
    longest = max(train.longest, valid.longest)
    self.length = min(-(-longest // 8) * 8, start.arch.max_positions)
    masking = Masking(settings.mask_share, settings.whole_words,
                      derive_seed(settings.seed, 'masked-lm/masking'))
    self._train, self._valid = (
      MaskedRows(rows, masking, vocab_size=start.arch.vocab_size, length=self.length)
      for rows in (train, valid))
    if not any(len(self._valid.masked(row, None)[1]) for row in range(len(valid))):
      raise UserError('the validation text is so short that nothing of it is masked: give more '
                      'text with --valid, or a larger --mask-share')
    self._tokens = int(train.size / len(train) * self._config.batch_size)
    moves = None
    if settings.freeze != 'none':
      moves = trainable_mask(start.params, start.arch, settings.freeze)
    self._adam = Adam.of(self._config, decayed=kernels_and_tables, trainable=moves)
    self._dropout_seed = derive_seed(settings.seed, 'masked-lm/dropout')
    whole = replicated(mesh)
    self._abstract = jax.eval_shape(self._fresh, start.params)
    self._shardings = state_shardings(self._abstract, mesh)
    self._update = jax.jit(make_update(self._loss, self._adam), donate_argnums=0,
                           out_shardings=(self._shardings, whole))
    self._sums = jax.jit(lambda params, batch: masked_sums(params, start.arch, batch, None),
                         out_shardings=whole)

  def stage(self, directory: pathlib.Path, plan: dict[str, Any]) -> Stage:
    start, config, mesh = self._start, self._config, self._mesh
    template = sharded_shapes(self._abstract, self._shardings)
    return Stage(
      name='mlm', directory=directory, identity=start.identity('masked-lm', plan), config=config,
      mesh=mesh,
      init_state=lambda: jax.jit(self._fresh, out_shardings=self._shardings)(start.params),
      state_template=lambda: template, step=BoundStep(self._update, self._dropout_seed),
      batches=lambda first: own_rows(self._train.training(first, config.batch_size)),
      batch_name=lambda step: f'rows {step * config.batch_size} to '
                              f'{(step + 1) * config.batch_size - 1} of the shuffled passes',
      evaluate=self._evaluate, work_per_step=self._tokens)

  def result(self, directory: pathlib.Path) -> dict[str, Any]:
    """The last validation, from the marker of the finished stage."""
    done = read_sealed_json(directory / 'DONE', again='the same command writes it again')
    return {'steps': done['step'], 'result': done['summary']}

  def _fresh(self, params: Any) -> TrainState:
    return TrainState.fresh(jax.tree.map(jnp.asarray, params), self._adam)

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


def check_fit(start: Start, settings: Settings, mesh: Mesh) -> None:
  """Raises `UserError` where model, settings and devices do not fit."""
  parse_freeze(settings.freeze, start.arch)
  check_mesh(start.params, start.arch, mesh)
  devices = int(np.prod([mesh.shape[axis] for axis in ROWS]))
  size = settings.train.batch_size
  if size % devices:
    raise UserError(f'--batch-size={size} is not divisible by the {devices} devices that share the '
                    f'rows: use --batch-size={max(devices, size // devices * devices)}')
