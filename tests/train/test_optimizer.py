"""The optimizer against optax and NumPy."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fairjax.config import TrainConfig
from fairjax.train.optimizer import Adam, learning_rate
from fairjax.train.steps import TrainState, make_update


@pytest.mark.parametrize('schedule', ['cosine', 'linear', 'constant'])
def test_learning_rate_is_that_of_optax(schedule):
  config = TrainConfig(steps=110, warmup_steps=10, learning_rate=2.0, schedule=schedule)
  after = {'cosine': optax.cosine_decay_schedule(2.0, 100),
           'linear': optax.linear_schedule(2.0, 0.0, 100),
           'constant': optax.constant_schedule(2.0)}[schedule]
  expected = optax.join_schedules([optax.linear_schedule(0.0, 2.0, 10), after], [10])
  for step in (0, 3, 9, 10, 11, 60, 109, 110, 500):
    assert learning_rate(config, step) == pytest.approx(float(expected(step)), abs=1e-6)


def test_optimizer_is_adam_on_the_clipped_gradient():
  adam = Adam.of(TrainConfig(clip_norm=1.0, weight_decay=0.01))
  params = {'w': jnp.array([1.0, -2.0])}
  state, m, v, expected = adam.transformation().init(params), 0.0, 0.0, np.array([1.0, -2.0])
  for t, gradient in enumerate(([30.0, 40.0], [0.3, -0.4]), start=1):
    params, state = adam.update({'w': jnp.array(gradient)}, state, params, jnp.float32(0.1))
    g = np.array(gradient) / max(1.0, np.linalg.norm(gradient))
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    direction = (m / (1 - 0.9 ** t)) / (np.sqrt(v / (1 - 0.999 ** t)) + 1e-8)
    expected = expected - 0.1 * (direction + 0.01 * expected)
  np.testing.assert_allclose(params['w'], expected, rtol=1e-5)


def test_frozen_parameters_stay_and_have_no_part_in_the_norm():
  adam = Adam.of(TrainConfig(clip_norm=1.0, weight_decay=0.1), trainable={
    'head': np.ones(1, np.float32), 'base': np.zeros(1, np.float32)})
  params = {'head': jnp.ones(2), 'base': jnp.ones(2)}

  def loss(params, memory, batch, key):
    mean = 3 * params['head'][0] + 40 * params['base'][0]
    return mean, (memory, {'loss': (mean, jnp.ones(()))})

  state, metrics = make_update(loss, adam)(TrainState.fresh(params, adam), {}, 0, jnp.float32(0.1))
  assert metrics['grad_norm'][0] == 3.0
  np.testing.assert_array_equal(state.params['base'], params['base'])
  assert state.params['head'][0] < state.params['head'][1] < 1.0
