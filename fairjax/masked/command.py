"""The options of `masked-lm train`: which cannot be, and the optimisation that they ask for."""

import argparse

from fairjax.config import MeshConfig, TrainConfig
from fairjax.errors import UserError


def check(options: argparse.Namespace) -> None:
  """Raises `UserError` for options that cannot be, before anything is read."""
  if not options.workdir:
    raise UserError('masked-lm train needs --workdir=DIR')
  if not options.data:
    raise UserError('masked-lm train needs --data=FILE')
  for name in ('layers', 'dim', 'heads', 'vocab_size', 'steps', 'batch_size', 'log_every',
               'eval_every', 'checkpoint_every'):
    if getattr(options, name) < 1:
      raise UserError(f'--{name} must be positive')
  for name in ('hidden_dropout', 'attention_dropout'):
    rate = getattr(options, name)
    if rate is not None and not 0 <= rate < 1:
      raise UserError(f'--{name}={rate} is not in [0, 1)')
  if not 0 < options.mask_share < 1:
    raise UserError(f'--mask_share={options.mask_share} is not in (0, 1)')
  if options.learning_rate is not None and not 0 < options.learning_rate < 1:
    raise UserError(f'--learning_rate={options.learning_rate} is not in (0, 1)')
  for name, least in (('slices', 1), ('fsdp', 1), ('model', 1), ('data', -1)):
    value = getattr(options, f'mesh_{name}')
    if value < least or not value:
      raise UserError(f'--mesh.{name}={value} is no number of parts')
  if options.max_length < 8:
    raise UserError(f'--max_length={options.max_length} leaves no room for a sentence: give at '
                    'least 8')
  if options.dim % options.heads:
    raise UserError(f'--heads={options.heads} does not divide --dim={options.dim}')
  if options.embedding_dim < 0 or options.weight_decay < 0 or options.seed < 0:
    raise UserError('--embedding_dim, --weight_decay and --seed must not be negative')
  if options.warmup_steps is not None and not 0 <= options.warmup_steps <= options.steps:
    raise UserError(f'--warmup_steps={options.warmup_steps} is not between 0 and '
                    f'--steps={options.steps}')
  if options.embedding_dim and options.kind != 'albert':
    raise UserError('--embedding_dim belongs to --kind=albert')
  if not options.cda and (options.pairs or options.names):
    raise UserError('--pairs and --names belong to --cda=one or --cda=two')
  if len(options.pairs) > 2:
    raise UserError('--pairs is one file of pairs, or a file of male and one of female words')


def train_config(options: argparse.Namespace) -> TrainConfig:
  """The optimisation that the options ask for."""
  rate = options.learning_rate
  if rate is None:
    rate = 5e-5 if options.init else 1e-3
  warmup = options.warmup_steps
  return TrainConfig(
    steps=options.steps, batch_size=options.batch_size, learning_rate=rate,
    warmup_steps=options.steps // 10 if warmup is None else warmup, schedule='linear',
    clip_norm=1.0, weight_decay=options.weight_decay, log_every=options.log_every,
    eval_every=options.eval_every, checkpoint_every=options.checkpoint_every)


def mesh_config(options: argparse.Namespace) -> MeshConfig:
  """The mesh that the options ask for."""
  return MeshConfig(slices=options.mesh_slices, data=options.mesh_data, fsdp=options.mesh_fsdp,
                    model=options.mesh_model)
