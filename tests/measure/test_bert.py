"""The BERT scorer: classes and their meaning, truncation, the score file, configuration."""

import json
import pathlib

import jax
import numpy as np
import pytest
from golden_models import copied
from jax.sharding import AxisType, Mesh

from fairjax.config_io import load_config
from fairjax.errors import UserError
from fairjax.measure import load_scorer, score_texts
from fairjax.measure.scorers.bert import BertScorer, label_values, parse_values

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'pretrained' / 'bert_classifier'
TEXTS = ['The baker sold warm bread.', 'sad', '', 'good ' * 60, 'a happy farmer was glad']
FIVE = ('very negative', 'negative', 'neutral', 'positive', 'very positive')


def small(directory=GOLDEN, values=None):
  return BertScorer(str(directory), values, mesh=Mesh(
    np.array(jax.devices()[:1]), ('data',), axis_types=(AxisType.Auto,)))


def with_labels(tmp_path, labels, name='model', **config):
  """The golden classifier with other names of its classes (the first ones, if they are fewer)."""
  return copied(tmp_path / name, GOLDEN, lambda tensors: {
    k: v[:len(labels)] if k.startswith('classifier.') else v for k, v in tensors.items()},
    id2label=dict(enumerate(labels)), label2id=None, **config)


@pytest.mark.parametrize(('name', 'values'), [
  ('bert_classifier', [0, 0.25, 0.5, 0.75, 1]), ('albert_classifier', [0, 0.5, 1])])
def test_scores_are_the_expectation_under_the_reference(name, values):
  folder = GOLDEN.parent / name
  scorer = small(folder)
  texts = json.loads((folder.parent / 'texts.json').read_text(encoding='utf-8'))
  with np.load(folder / 'expected.npz', allow_pickle=False) as file:
    shares = np.exp(file['text_logits'])
  shares /= shares.sum(1, keepdims=True)
  np.testing.assert_allclose(scorer.probabilities(texts), shares, atol=1e-6)
  np.testing.assert_allclose(scorer.score(texts), shares @ values, atol=1e-6)
  assert np.ptp(scorer.score(texts)) > 1e-3
  assert scorer.score([]).shape == (0,) and scorer.score(texts).dtype == np.float64


def test_bfloat16_scores_are_near_and_have_a_name_of_their_own(tmp_path):
  scorers = {dtype: BertScorer.from_name(f'{GOLDEN}#dtype={dtype}')
             for dtype in ('float32', 'bfloat16')}
  exact, near = (scorers[dtype].score(TEXTS) for dtype in ('float32', 'bfloat16'))
  np.testing.assert_allclose(exact, small().score(TEXTS), atol=1e-6)
  np.testing.assert_allclose(near, exact, atol=0.01)
  assert (near != exact).any()
  assert scorers['float32'].fingerprint == small().fingerprint
  assert scorers['bfloat16'].name not in (scorers['float32'].name, small().name)
  assert scorers['bfloat16'].weights == small().weights
  labels = ['LABEL_0', 'LABEL_1']
  other = with_labels(tmp_path, labels, 'other')  # without three of the classes
  assert BertScorer(str(other), dict(zip(labels, (0, 1), strict=True))).weights != small().weights
  named = BertScorer.from_name(
    f'{with_labels(tmp_path, labels)}#dtype=bfloat16,LABEL_0=1,LABEL_1=0')
  assert named.values == {'LABEL_0': 1.0, 'LABEL_1': 0.0}
  with pytest.raises(UserError, match="dtype 'float16' of bert:.* is not one of float32, bfloat"):
    BertScorer.from_name(f'{GOLDEN}#dtype=float16')


def test_order_of_the_classes_does_not_matter_but_their_names_do(tmp_path):
  two = small(with_labels(tmp_path, ['NEGATIVE', 'POSITIVE'], 'a'))
  turned = small(with_labels(tmp_path, ['positive', 'negative'], 'b'))
  np.testing.assert_allclose(two.score(TEXTS), two.probabilities(TEXTS)[:, 1], atol=1e-12)
  np.testing.assert_allclose(turned.score(TEXTS), 1 - two.score(TEXTS), atol=1e-12)


@pytest.mark.parametrize(('labels', 'values'), [
  (('NEGATIVE', 'POSITIVE'), (0, 1)), (('pos', 'neg'), (1, 0)),
  (('neutral', 'positive', 'negative'), (0.5, 1, 0)),
  (FIVE, (0, 0.25, 0.5, 0.75, 1)),
  (('5 stars', '1 star', '2 stars', '3 stars', '4 stars'), (1, 0, 0.25, 0.5, 0.75)),
  (('Very_Positive', 'very-negative', 'neg', 'pos'), (1, 0, 1 / 3, 2 / 3)),
])
def test_values_of_known_names(labels, values):
  assert tuple(label_values(labels, where='x').values()) == pytest.approx(values)


@pytest.mark.parametrize(('labels', 'message'), [
  (('LABEL_0', 'LABEL_1'), r"class 'LABEL_0' is not known: .*bert:x#LABEL_0=0,LABEL_1=1"),
  (('negative', 'neutral'), 'not symmetrical about neutral'),
  (('negative', 'neg'), 'not symmetrical'),
])
def test_unknown_names_ask_for_values(labels, message):
  with pytest.raises(UserError, match=message):
    label_values(labels, where='x')


def test_given_values(tmp_path):
  folder = with_labels(tmp_path, ['LABEL_0', 'LABEL_1'])
  with pytest.raises(UserError, match='LABEL_0.*not known'):
    load_scorer(f'bert:{folder}')
  scorer = load_scorer(f'bert:{folder}#LABEL_1=0,LABEL_0=1')
  assert list(scorer.values.items()) == [('LABEL_0', 1.0), ('LABEL_1', 0.0)]  # the model's order
  other = load_scorer(f'bert:{folder}#LABEL_1=1,LABEL_0=0')
  assert scorer.fingerprint != other.fingerprint and scorer.name != other.name
  with pytest.raises(UserError, match='values are given for LABEL_0, but its classes are LABEL_0'):
    load_scorer(f'bert:{folder}#LABEL_0=1')
  for bad in ('LABEL_0', 'LABEL_0=2', 'a=0,a=1', '=1', 'a=x', 'a=nan', 'a=0,'):
    with pytest.raises(UserError, match='CLASS=VALUE'):
      parse_values(bad)


@pytest.mark.parametrize(('change', 'labels', 'message'), [
  ({'problem_type': 'multi_label_classification'}, 2, 'a head of 2 classes for multi_label'),
  ({'problem_type': 'regression'}, 1, 'a head of 1 class for regression'),
  ({}, 1, 'a head of 1 class gives'),
  ({'architectures': ['BertForTokenClassification']}, 2, 'no classifier of whole texts')])
def test_heads_that_are_read_otherwise_are_refused(tmp_path, change, labels, message):
  names = ['LABEL_0', 'LABEL_1'][:labels]
  folder = with_labels(tmp_path, names, **change)
  with pytest.raises(UserError, match=message):
    load_scorer(f'bert:{folder}#' + ','.join(f'{n}=1' for n in names))


def test_directories_that_are_no_classifier():
  with pytest.raises(UserError, match='needs the directory of a classifier: bert:DIR'):
    load_scorer('bert')
  with pytest.raises(UserError, match='has no classifier head'):
    load_scorer(f'bert:{GOLDEN.parent / "bert_mlm"}')
  with pytest.raises(UserError, match='no is no directory'):
    load_scorer('bert:no')


def test_long_texts_are_counted_and_reported(tmp_path):
  scorer, lines = small(), []
  assert scorer.name == f'bert-bert_classifier-{scorer.fingerprint[:6]}'
  assert scorer.max_length == 24 and scorer.count_truncated(TEXTS) == 1
  path = tmp_path / 'scores.jsonl'
  first = score_texts(TEXTS, scorer, path, log=lines.append, chunk=2)
  assert lines[-1].endswith(
    '1 of 5 texts are longer than the 24 tokens it reads; their end is not scored')
  scorer.score = None  # everything is in the file now
  np.testing.assert_array_equal(score_texts(TEXTS, scorer, path), first)


def test_configurations_accept_it():
  base = 'configs/quickstart.py'
  config = load_config(base, {'measure.scorers': 'opinion,bert:runs/sst',
                              'sentiment.scorer': 'bert:runs/sst'})
  assert config.measure.scorers == ('opinion', 'bert:runs/sst')
  for bad in ('bert', 'bert:', 'bert:#a=1', 'brt:x'):
    with pytest.raises(UserError, match='measure.scorers'):
      load_config(base, {'measure.scorers': bad})
  with pytest.raises(UserError, match='sentiment.scorer'):
    load_config(base, {'sentiment.scorer': 'bert:'})
