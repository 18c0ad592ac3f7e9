"""Losses of 20 steps, which a change that claims no effect reproduces to the last printed digit.

A file for each minor version of JAX and platform. Training is in float64: with instructions of SSE
4.2, AVX2 and AVX-512 the losses differ by 1e-15, and the 10 printed decimals do not. The masked
model's softmax is in float32 whatever the parameters: 5 decimals.
"""

import os
import pathlib
import sys

import jax
import pytest
import sharding_cases
from masked_cases import SENTENCES, new_start, rows_of

from fairjax.config import MeshConfig, TrainConfig
from fairjax.pretrained.masked_lm import Settings, Sizes, train_masked
from fairjax.pretrained.masked_rows import special_tokens
from fairjax.train import make_mesh, read_metrics

STEPS = 20
FOLDER = pathlib.Path(__file__).resolve().parents[1] / 'golden' / 'losses'
COLUMNS = {'lm': 10, 'debias': 10, 'fairness': 10, 'masked': 5}  # decimals


def curriculum_losses(kind, *names):
  metrics = sharding_cases.run(kind, 'adaptive', MeshConfig(), devices=jax.devices()[:1],
                               num_steps=STEPS)['metrics']
  return [[step[name] for step in metrics] for name in names]


@jax.enable_x64()
def masked_losses(folder):
  sizes = Sizes(kind='bert', layers=2, dim=16, heads=2, vocab_size=120, max_length=16)
  start = new_start(sizes)
  start = start._replace(params=jax.tree.map(lambda x: x.astype('float64'), start.params))
  special = special_tokens(start.tokenizer, pad_id=start.arch.pad_id, where='the start',
                           vocab_size=start.arch.vocab_size)
  rows = rows_of([SENTENCES * 6], start.tokenizer, special)
  train = TrainConfig(steps=STEPS, batch_size=8, learning_rate=0.01, warmup_steps=2, log_every=1)
  train_masked(start, rows, rows, folder, settings=Settings(train), source={},
               log=lambda line: None, mesh=make_mesh(MeshConfig(), jax.devices()[:1]))
  lines = read_metrics(folder / 'training' / 'metrics.jsonl')
  return [line['loss'] for line in lines[:STEPS]]  # the validation's follows


def test_losses_are_those_of_the_file(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'clu', None)  # no TensorBoard files: they need TensorFlow
  version = '.'.join(jax.__version__.split('.')[:2])
  file = FOLDER / f'jax-{version}-{jax.default_backend()}.txt'
  write = 'FAIRJAX_UPDATE_GOLDEN' in os.environ
  if not (write or file.exists()):
    pytest.skip(f'no {file.name}: FAIRJAX_UPDATE_GOLDEN=1 python -m pytest '
                'tests/train/test_golden_losses.py writes it')
  columns = [*curriculum_losses('lm', 'loss'), *curriculum_losses(
    'debias', 'loss', 'fairness_loss/embedding'), masked_losses(tmp_path / 'masked')]
  text = '\n'.join([' '.join(f'{name:>13}' for name in COLUMNS)] + [
    ' '.join(f'{x:13.{digits}f}' for x, digits in zip(row, COLUMNS.values(), strict=True))
    for row in zip(*columns, strict=True)]) + '\n'
  if write:
    file.write_text(text, encoding='utf-8')
  assert file.read_text(encoding='utf-8') == text
