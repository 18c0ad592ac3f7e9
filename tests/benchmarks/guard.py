"""What the guard against non-finite updates costs: `python -m tests.benchmarks.guard --json`.

The lm step of a config with the guard and with one that allows everything (the compiler then drops
the choice between old and new state), in turns in one process. What is there either way, the norm
of the gradients that clipping needs, is no part of the cost. Floor: one comparison and one choice
for each number of the state, 4 bytes read and written that the update reads and writes anyway.
"""

import argparse
import dataclasses
import unittest.mock

import jax.numpy as jnp
import numpy as np

from fairjax.config_io import load_config
from fairjax.model import language_model
from fairjax.train import make_mesh, steps
from fairjax.train.optimizer import Adam
from fairjax.train.steps import Guard
from tests.benchmarks import harness


def measure(options) -> dict:
  """Times both steps in turns."""
  config = load_config(options.config, {})
  model = dataclasses.replace(
    config.model, vocab_size=config.model.vocab_size or config.data.vocab_size)
  mesh, lm = make_mesh(config.mesh), config.lm
  rng = np.random.default_rng(0)
  tokens = rng.integers(3, model.vocab_size, (lm.batch_size, model.segment_len + 1))
  tokens = tokens.astype(np.int32)
  batch = {'inputs': tokens[:, :-1], 'targets': tokens[:, 1:],
           'reset': np.zeros(lm.batch_size, bool)}
  states, runs = {}, {}
  everything = unittest.mock.patch.object(Guard, 'allows', lambda *_: jnp.bool_(True))
  for name in ('guarded', 'unguarded'):
    step = steps.make_lm_step(language_model(model), Adam.of(lm), mesh)
    states[name] = steps.init_lm_state(language_model(model), lm, mesh, seed=0)
    if name == 'unguarded':
      with everything:
        step.lower(states[name], batch, 0, np.float32(1e-4)).compile()
        states[name], _ = step(states[name], batch, 0, np.float32(1e-4))
    else:
      states[name], _ = step(states[name], batch, 0, np.float32(1e-4))

    def run(name=name, step=step):
      states[name], metrics = step(states[name], batch, 0, np.float32(1e-4))
      return states[name], metrics

    runs[name] = run
  seconds = harness.in_turns(runs, rounds=options.rounds)
  guarded, unguarded = (np.array(seconds[name]) for name in ('guarded', 'unguarded'))
  rounds = guarded / unguarded - 1
  spread = float(np.std(rounds) / np.sqrt(len(rounds)))
  return harness.provenance('guard', options) | {
    'seconds': {name: float(np.median(values)) for name, values in seconds.items()},
    'overhead': float(np.median(rounds)), 'standard_error_of_the_mean': spread}


def main() -> None:
  """Parses the options, prints a line or JSON."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--config', default='configs/quickstart.py')
  parser.add_argument('--rounds', type=int, default=60)
  parser.add_argument('--json', action='store_true')
  options = parser.parse_args()
  found = measure(options)
  harness.show(found, [
    f'guarded {1e3 * found["seconds"]["guarded"]:.1f} ms, unguarded '
    f'{1e3 * found["seconds"]["unguarded"]:.1f} ms: {100 * found["overhead"]:+.2f} % '
    f'(standard error {100 * found["standard_error_of_the_mean"]:.2f} %)'],
    as_json=options.json)


if __name__ == '__main__':
  main()
