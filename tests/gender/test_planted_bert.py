"""A BERT whose embeddings hold a correlation of gender and profession: the whole path sees it."""

import jax
import numpy as np
import pytest

from fairjax.data.planted_gender import profession_shares, write_sts, write_tables
from fairjax.gender.stsb import find_split, measure_stsb, read_pairs
from fairjax.pretrained import heads as features
from fairjax.pretrained.classifier import from_scratch
from fairjax.pretrained.fit import Recipe
from fairjax.pretrained.start import write_model
from fairjax.run.notebook import quick_compilation
from fairjax.train import make_mesh

STRENGTH = 0.3  # of embeddings with a standard deviation of 0.02 in 32 dimensions


@pytest.fixture(autouse=True, scope='module')
def quick():
  """One device and quick compilation."""
  with pytest.MonkeyPatch.context() as patch, quick_compilation():
    patch.setattr(features, 'make_mesh', lambda config: make_mesh(config, jax.devices()[:1]))
    yield


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('planted')
  write_tables(folder)
  write_sts(folder / 'sts', seed=0, pairs=800, templates=8)
  return folder


def write_bert(folder, path, strength):
  """A new BERT in which professions, man and woman lie along one direction by their shares."""
  texts = [t for s in ('train', 'test') for part in
           read_pairs(find_split(folder / 'sts', s))[:2] for t in part]
  sizes = {'layers': 1, 'dim': 32, 'heads': 2, 'vocab_size': 2000, 'max_length': 16}
  start = from_scratch(texts, classes=2, seed=0, sizes=sizes, log=lambda line: None)
  shares = profession_shares() | {'man': 0.0, 'woman': 1.0}
  direction = np.random.default_rng(1).standard_normal(32)
  direction -= direction.mean()  # a norm follows
  table = start.params['embeddings']['word']
  for word, share in shares.items():
    (piece,) = start.tokenizer.encode(word, add_special_tokens=False).ids
    table[piece] += strength * (2 * share - 1) * direction / np.linalg.norm(direction)
  write_model(path, start, start.params, 'classifier')
  return path


@pytest.mark.parametrize(('strength', 'low', 'high'), [(STRENGTH, 0.7, 1.0), (0.0, -0.6, 0.6)])
def test_the_correlation_in_its_embeddings_is_seen(folder, tmp_path, strength, low, high):
  bert = write_bert(folder, tmp_path / 'bert', strength)
  found = measure_stsb(
    bert, folder / 'sts', professions=folder / 'professions.tsv', mode='frozen',
    recipe=Recipe(10, 32, 3e-3), restarts=1, log=lambda line: None)
  assert low <= found['r']['mean'] <= high
  assert found['dev_pearson']['mean'] > 0.6
