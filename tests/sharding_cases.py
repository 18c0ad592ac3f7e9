"""A few steps of tiny models on any mesh: what the sharding tests compare.

In float64: Adam divides by the size of the gradient, so that where the true gradient is next to
nothing float32 rounding alone moves a parameter by a whole step.
"""

import sys

import jax
import numpy as np
from jax_features import complete_jax

from fairjax.config import DebiasConfig, MeshConfig, ModelConfig, SentimentConfig, TrainConfig
from fairjax.model import language_model
from fairjax.train import make_mesh, steps
from fairjax.train.checkpoints import params_digest
from fairjax.train.evaluation import evaluate_nll
from fairjax.train.optimizer import Adam
from fairjax.train.sharding import own_rows, to_devices, to_host
from fairjax.train.steps import FairnessTerm

complete_jax()  # in a process of its own too

B, T, K, P = 16, 8, 2, 2
SIZES = dict(num_layers=2, model_dim=16, num_heads=4, head_dim=4, ff_dim=32, segment_len=T,
             memory_len=6, init_std=0.3, vocab_multiple=8, dtype='float64')
MODELS = {
  'plain': ModelConfig(**SIZES, vocab_size=37),
  'adaptive': ModelConfig(**SIZES, vocab_size=90, cutoffs=(20, 44), div_val=2)}


def make_batch(step, vocab_size):
  """Rows of a random stream with branches; some branches and some resets."""
  rng = np.random.default_rng(step)
  tokens = rng.integers(3, vocab_size, size=(B, T + 1)).astype(np.int32)
  start = rng.integers(0, T, size=(B, K)).astype(np.int32)
  return {
    'inputs': tokens[:, :-1], 'targets': tokens[:, 1:], 'reset': rng.random(B) < 0.2,
    'branch_tokens': rng.integers(3, vocab_size, size=(B, K, P)).astype(np.int32),
    'branch_start': start, 'branch_len': rng.integers(1, P + 1, size=(B, K)).astype(np.int32),
    'original_end': start, 'branch_weight': (rng.random((B, K)) < 0.6).astype(np.float32),
    'branch_counts': np.ones((B, 5), np.int32)}


@jax.enable_x64()
def run(kind, model, mesh_config, *, devices=None, grad_accum_steps=1, num_steps=3, tell=None,
        params=None):
  """Metrics of every step, parameters and memory at the end, and the likelihood of a batch."""
  config = MODELS[model]
  stage = TrainConfig(batch_size=B, grad_accum_steps=grad_accum_steps, clip_norm=1.0)
  mesh = make_mesh(mesh_config, devices)
  lm = language_model(config)
  state = steps.init_lm_state(lm, stage, mesh, seed=0, params=params)
  first = jax.tree.map(to_host, state.params)
  if kind == 'lm':
    step, extra = steps.make_lm_step(lm, Adam.of(stage), mesh, grad_accum_steps), ()
  else:
    term = FairnessTerm.of(DebiasConfig(monitor_every=2), SentimentConfig())
    step = steps.make_debias_step(lm, Adam.of(stage), term, mesh, grad_accum_steps)
    extra = ({'embedding': np.float32(3.0)}, None)
  index, count = jax.process_index(), jax.process_count()
  metrics = []

  def rows(i):
    batch = make_batch(i, config.vocab_size)
    if kind == 'lm':
      batch = {name: batch[name] for name in ('inputs', 'targets', 'reset')}
    return {name: x[index * B // count:(index + 1) * B // count] for name, x in batch.items()}

  for i in range(num_steps):
    state, found = step(state, to_devices(rows(i), mesh), 0, np.float32(0.01), *extra)
    metrics.append({name: float(value) for name, (value, _) in found.items()})
  assert step._compiled._cache_size() == 1, 'a later step compiled again'
  # Seven rows: no mesh divides them, and two processes have three and four.
  batch = make_batch(99, config.vocab_size) | {'weights': np.ones((B, T))}
  nll, tokens = evaluate_nll(lm, state.params, own_rows([
    {name: batch[name][:7] for name in ('inputs', 'targets', 'reset', 'weights')}]), mesh)
  assert tokens == 7 * T
  result = {'metrics': metrics, 'params': jax.tree.map(to_host, state.params),
            'memory': to_host(state.memory.hidden), 'nll': nll, 'first': first}
  if tell is not None:
    tell(params_digest(state.params))
  return result


def main() -> None:
  """One of two processes: `sharding_cases INDEX PORT KIND OUTPUT`."""
  index, port, kind, output = sys.argv[1:]
  jax.config.update('jax_num_cpu_devices', 4)
  jax.distributed.initialize(f'127.0.0.1:{port}', num_processes=2, process_id=int(index))
  found = run(kind, 'plain', MeshConfig(slices=2, fsdp=2, model=2))
  leaves = jax.tree.leaves([found['params'], found['memory'], found['metrics']])
  if index == '0':
    np.savez(output, *leaves)
  print('nll', found['nll'])


if __name__ == '__main__':
  main()
