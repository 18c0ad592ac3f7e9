"""Likelihoods do not depend on the devices: rows that they do not divide are filled up."""

import dataclasses

import jax
import numpy as np
import pytest

from fairjax.config import MeshConfig, TrainConfig
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


@pytest.mark.parametrize('mesh', [MeshConfig(), MeshConfig(fsdp=2, model=2)])
def test_any_number_of_rows_gives_on_eight_devices_what_one_gives(mesh):
  for rows in (3, 8, 12):
    found = []
    for m in (make_mesh(mesh), make_mesh(MeshConfig(), jax.devices()[:1])):
      state = steps.init_lm_state(language_model(CONFIG), TrainConfig(batch_size=8), m, seed=0)
      found.append(evaluate_nll(language_model(CONFIG), state.params, batches(rows), m))
    (nll, tokens), (expected, number) = found
    assert tokens == number == (3 * rows - 1) * cases.T
    assert nll == pytest.approx(expected, rel=1e-6)
