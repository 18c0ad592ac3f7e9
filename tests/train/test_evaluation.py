"""Likelihoods do not depend on the devices: rows that they do not divide are filled up."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from model_oracle import golden_decoder

from fairjax.config import MeshConfig, TrainConfig
from fairjax.data.batches import eval_batches
from fairjax.model import language_model
from fairjax.train import evaluate_nll, make_mesh, steps
from tests import sharding_cases as cases

CONFIG = dataclasses.replace(cases.MODELS['plain'], dtype='float32')


def batches(rows):
  """Three segments of a stream; the last row is over in the last one."""
  rng = np.random.default_rng(rows)
  for i in range(3):
    tokens = rng.integers(3, CONFIG.vocab_size, size=(rows, cases.T + 1)).astype(np.int32)
    weights = np.ones((rows, cases.T), np.float32)
    weights[-1] = i < 2
    yield {'inputs': tokens[:, :-1], 'targets': tokens[:, 1:], 'weights': weights,
           'reset': np.full(rows, i == 0)}


def test_any_number_of_rows_gives_on_eight_devices_what_one_gives():
  found = []
  for mesh in (make_mesh(MeshConfig(), jax.devices()[:1]), make_mesh(MeshConfig()),
               make_mesh(MeshConfig(fsdp=2, model=2))):
    state = steps.init_lm_state(language_model(CONFIG), TrainConfig(batch_size=8), mesh, seed=0)
    found.append([evaluate_nll(language_model(CONFIG), state.params, batches(rows), mesh)
                  for rows in (3, 12)])
  for one, *many in zip(*found, strict=True):
    for nll, tokens in many:
      assert (nll, tokens) == (pytest.approx(one[0], rel=1e-6), one[1])
  assert [tokens for _, tokens in found[0]] == [(3 * rows - 1) * cases.T for rows in (3, 12)]


@pytest.mark.parametrize(('name', 'start_ids'), [('llama', (1,)), ('gpt2', ())])
@jax.enable_x64()
def test_a_decoder_reads_each_document_as_if_it_were_alone(name, start_ids):
  (model, params), rng, width = golden_decoder(name), np.random.default_rng(0), 12
  sizes = [5, 1, 4, 30, 12, 11, 3, 2]  # of the documents; two are longer than a row
  texts = [[*rng.integers(3, 61, size).tolist(), 2] for size in sizes]
  tokens = np.array(sum(texts, []), np.uint16)
  store = types.SimpleNamespace(
    tokens=len(tokens), open_tokens=lambda: tokens,
    open_documents=lambda: np.cumsum([len(text) for text in texts])[:, None])

  @jax.jit
  def alone(text):
    hidden = model.apply(params, text[None, :-1], model.init_state(1)).hidden
    return model.nll(params, hidden, text[None, 1:])[0]

  expected = []
  for text in texts:
    for first in range(0, len(text) - 1, width - len(start_ids)):
      part = [*start_ids, *text[first:first + width - len(start_ids) + 1]]
      # The part before has predicted its first token.
      known = len(start_ids) if first else max(len(start_ids) - 1, 0)
      found = alone(jnp.array(part + [0] * (width + 1 - len(part))))
      expected += np.asarray(found)[known:len(part) - 1].tolist()
  for mesh, rows in ((make_mesh(MeshConfig(), jax.devices()[:1]), 3), (make_mesh(MeshConfig()), 5)):
    nll, number = evaluate_nll(model, params, eval_batches(
      store, batch_size=rows, segment_len=width, start_ids=start_ids), mesh)
    assert number == len(expected) == len(tokens) - (0 if start_ids else len(texts))
    assert nll == pytest.approx(sum(expected), rel=1e-12)
