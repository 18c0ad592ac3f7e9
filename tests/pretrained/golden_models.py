"""The golden models and what tests of several modules do with them."""

import functools
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from safetensors.numpy import load_file, save_file

from fairjax.errors import UserError
from fairjax.model.decoder import DecoderModel, NoState
from fairjax.pretrained import load_pretrained

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'pretrained'
MODELS = [('gpt2', 'lm'), ('bert_mlm', 'mlm'), ('bert_classifier', 'classifier'),
          ('albert_mlm', 'mlm'), ('albert_classifier', 'classifier')]
MORE = 14  # rows of a padded table
ATTRIBUTE = """
name: town
values: [Rome, Oslo]
templates: ['The {value} is', 'My friend from {value} likes']
"""


@functools.partial(jax.jit, static_argnums=1)
def lm_logits(params, config, ids):
  lm = DecoderModel(config)
  return lm.logits(params, lm.apply(params, jnp.asarray(ids), NoState()).hidden)


def oracle_kl(folder):
  """Mean and largest KL(next token | value || other value) for the prompts of `ATTRIBUTE`."""
  with jax.enable_x64(True):
    model = load_pretrained(folder, 'lm', dtype='float64')
    vocabulary, found = model.files.vocabulary(), []
    for text in ('The {} is', 'My friend from {} likes'):
      logits = []
      for ids in map(vocabulary.prompt_ids, map(text.format, ('Rome', 'Oslo'))):
        row = np.array([ids + [0] * (32 - len(ids))])  # what follows changes nothing
        drawn = np.asarray(lm_logits(model.params, model.arch, row))[0, len(ids) - 1]
        logits.append(scipy.special.log_softmax(np.delete(drawn, vocabulary.silent_ids)))
      found += [(np.exp(p) * (p - q)).sum() for p, q in (logits, logits[::-1])]
  return np.mean(found), max(found)


def same(ours, other):
  """Asserts that two trees of arrays are equal."""
  assert jax.tree.structure(ours) == jax.tree.structure(other)
  jax.tree.map(np.testing.assert_array_equal, ours, other)


def unloadable(folder, head, message):
  """Asserts that a model is unloadable."""
  with pytest.raises(UserError, match=message):
    load_pretrained(folder, head)


def vocab_size(name):
  return json.loads((GOLDEN / name / 'config.json').read_text())['vocab_size']


def padded(size):
  """Gives tables `MORE` more rows, so large that they would win wherever they may."""
  return lambda tensors: {
    name: np.concatenate([t, np.full((MORE, *t.shape[1:]), 30, t.dtype)])
    if t.shape[:1] == (size,) else t for name, t in tensors.items()}


def rewrite(path, change):
  """Changes the object in a JSON file."""
  value = json.loads(path.read_text(encoding='utf-8')) if path.is_file() else {}
  path.write_text(json.dumps(change(value) or value), encoding='utf-8')


def copied(folder, name, change=None, **config):
  """Copies a golden model, changes its tensors and its config (None: without the field)."""
  shutil.copytree(GOLDEN / name, folder, dirs_exist_ok=True)
  rewrite(folder / 'config.json', lambda values: {
    k: v for k, v in (values | config).items() if v is not None})
  if change is not None:
    path = folder / 'model.safetensors'
    save_file({k: np.ascontiguousarray(v) for k, v in change(load_file(path)).items()}, path)
  return folder


def added(number, content):
  """An entry of `added_tokens` in tokenizer.json."""
  return {'id': number, 'content': content, 'special': True, 'normalized': False,
          'single_word': False, 'lstrip': False, 'rstrip': False}


def expected(name):
  """What the reference computed."""
  with np.load(GOLDEN / name / 'expected.npz', allow_pickle=False) as file:
    return dict(file)
