"""Sentence encoders: their module files are followed, others are refused."""

import json

import numpy as np
import pytest

from fairjax.errors import UserError
from fairjax.pretrained import SentenceEncoder

pytestmark = pytest.mark.usefixtures('one_device')


@pytest.fixture
def folder(copy):
  """A sentence encoder with module files."""
  folder = copy('bert_mlm')
  (folder / '1_Pooling').mkdir()
  write_modules(folder, 'Transformer', 'Pooling', 'Normalize')
  write_pooling(folder, 'mean_tokens')
  return folder


def write_modules(folder, *types):
  (folder / 'modules.json').write_text(json.dumps([
    {'type': f'sentence_transformers.models.{t}', 'path': '1_Pooling' if t == 'Pooling' else ''}
    for t in types]))


def write_pooling(folder, mode):
  (folder / '1_Pooling' / 'config.json').write_text(
    json.dumps({'word_embedding_dimension': 16} | (
      {f'pooling_mode_{mode}': True} if '_' in mode else {'pooling_mode': mode})))


def test_modules_are_followed(folder, monkeypatch):
  texts = ['The baker.', 'A happy, happy farmer was glad', 'x']
  mean = SentenceEncoder(folder)
  vectors = mean.encode(texts)
  np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
  write_modules(folder, 'Transformer', 'Pooling')
  plain = SentenceEncoder(folder)
  found = plain.encode(texts)
  lengths = np.linalg.norm(found, axis=1, keepdims=True)
  np.testing.assert_allclose(found / lengths, vectors, atol=1e-6)
  assert np.abs(lengths - 1).min() > 1e-3
  write_pooling(folder, 'cls_token')
  first = SentenceEncoder(folder)
  assert np.abs(first.encode(texts) - found).max() > 1e-3
  write_pooling(folder, 'cls')  # as version 6 of sentence-transformers writes it
  monkeypatch.setattr('fairjax.pretrained.hub.fetch', lambda name: folder)
  for name in (folder, 'hf:org/encoder'):
    assert SentenceEncoder(name).fingerprint == first.fingerprint
  assert len({e.fingerprint for e in (mean, plain, first)}) == 3
  assert first.encode([]).shape == (0, 16)


def test_length_and_case_are_those_of_the_file(folder):
  path = folder / 'sentence_bert_config.json'
  path.write_text(json.dumps({'max_seq_length': 5, 'do_lower_case': True}))
  encoder = SentenceEncoder(folder)
  assert encoder.max_length == 5
  vectors = encoder.encode(['the the the the the', 'the the the'])
  assert encoder.truncated == 1
  np.testing.assert_array_equal(vectors[0], vectors[1])
  path.write_text(json.dumps({'max_seq_length': 'long'}))
  with pytest.raises(UserError, match="max_seq_length is 'long'"):
    SentenceEncoder(folder)


def test_modules_that_are_not_known(folder):
  write_modules(folder, 'Transformer', 'Pooling', 'Dense')
  with pytest.raises(UserError, match='modules Transformer, Pooling, Dense are not supported'):
    SentenceEncoder(folder)
  write_modules(folder, 'Transformer', 'Pooling')
  write_pooling(folder, 'max_tokens')
  with pytest.raises(UserError, match='pooling max is not supported'):
    SentenceEncoder(folder)
  write_pooling(folder, 'mean')
  options = folder / 'config_sentence_transformers.json'
  options.write_text('{"prompts": {"query": "query: "}, "default_prompt_name": "query"}')
  with pytest.raises(UserError, match="the prompt 'query' before every text"):
    SentenceEncoder(folder)
  (folder / 'modules.json').write_text('[{"type": "a.Transformer", "path": "../x"}]')
  with pytest.raises(UserError, match='modules'):
    SentenceEncoder(folder)
