"""Cost of the fused debias step beside the plain step and the stacked pair, in one run.

  python -m tests.benchmarks.debias_step --json
  python -m tests.benchmarks.debias_step --topology=v5e:2x2 --dtype=bfloat16 --dim=1024 --heads=8 \
    --layers=4 --segment_len=512 --batch_size=4 --pieces=4 --vocab_size=32000 --unroll --json

With `--topology` (needs libtpu) nothing runs: plain and fused are compiled for one of its devices,
and the compiler says what they take, beside our own count (loops counted, on-chip buffers not).

The stacked pair is the usual way: the batch is doubled with one swapped copy of every row, so it
does one counterfactual per row where the fused step does K. The three are timed in turns, so that
whatever else the machine does hits all of them. Floor of the ratio: (T + K * P) / T for the fused
step (query tokens; keys and values of the row are shared), 2 for the stacked pair.
"""

import argparse
import os

import jax
import jax.numpy as jnp
import numpy as np

from fairjax.config import DebiasConfig, MeshConfig, ModelConfig, SentimentConfig, TrainConfig
from fairjax.model import TransformerXL, next_token_nll
from fairjax.train import make_mesh, steps
from fairjax.train.losses import cosine_fairness_loss
from fairjax.train.optimizer import Adam
from fairjax.train.sharding import batch_sharding
from fairjax.train.steps import FairnessTerm, make_update
from tests.benchmarks import harness


def make_stacked_step(model_config, adam):
  """One swapped copy per row behind the batch; exact for one counterfactual per row."""
  model = TransformerXL(model_config)

  def loss_fn(params, memory, batch, key, fairness_weight):
    memory = memory.reset(batch['reset'])
    both = jax.tree.map(lambda x: jnp.concatenate([x, x], axis=x.ndim > 1), memory)
    tokens = jnp.concatenate([batch['inputs'], batch['swapped']])
    end = jnp.concatenate([batch['original_end'][:, :1]] * 2)
    output = model.apply({'params': params}, tokens, both, positions=end, train=True,
                         rngs={'dropout': key})
    rows = batch['inputs'].shape[0]
    logits = model.apply({'params': params}, output.hidden[:rows], method='logits')
    nll = jnp.mean(next_token_nll(logits, batch['targets']))
    h, h_cf = output.h_bar_at[:rows], output.h_bar_at[rows:]
    fairness = cosine_fairness_loss(h, h_cf, batch['branch_weight'][:, :1])
    memory = output.memory.replace(hidden=output.memory.hidden[:, :rows],
                                   length=output.memory.length[:rows])
    return nll + fairness_weight * fairness, (memory, {'loss': (nll, jnp.ones(()))})

  return jax.jit(make_update(loss_fn, adam), donate_argnums=0)


def make_batch(options, vocab_size, rng):
  """Random tokens; branch k replaces one token by P pieces."""
  rows, t, k, p = options.batch_size, options.segment_len, options.branches, options.pieces
  tokens = rng.integers(3, vocab_size, size=(rows, t + 1)).astype(np.int32)
  start = np.sort(rng.integers(0, t, size=(rows, k))).astype(np.int32)
  batch = {
    'inputs': tokens[:, :-1], 'targets': tokens[:, 1:], 'reset': np.zeros(rows, bool),
    'branch_tokens': rng.integers(3, vocab_size, size=(rows, k, p)).astype(np.int32),
    'branch_start': start, 'branch_len': np.full((rows, k), p, np.int32), 'original_end': start,
    'branch_weight': np.ones((rows, k), np.float32),
    'branch_counts': np.tile(np.array([k, k, 0, 0, 0], np.int32), (rows, 1))}
  swapped = batch['inputs'].copy()
  swapped[np.arange(rows), start[:, 0]] = batch['branch_tokens'][:, 0, 0]
  return batch, {**batch, 'swapped': swapped}


def model_of(options) -> ModelConfig:
  """The model of the options."""
  return ModelConfig(
    vocab_size=options.vocab_size, num_layers=options.layers, model_dim=options.dim,
    num_heads=options.heads, head_dim=options.dim // options.heads, ff_dim=4 * options.dim,
    segment_len=options.segment_len, memory_len=options.segment_len, remat=options.remat,
    scan_unroll=options.layers if options.unroll else 1, dtype=options.dtype)


def compile_only(options) -> dict:
  """What the TPU compiler and our count say of both programs on one device."""
  from fairjax.chips import find_slice
  from fairjax.compile.devices import slice_devices
  from fairjax.compile.hlo_cost import count
  device = slice_devices(find_slice(options.topology))[0]
  mesh, model = make_mesh(MeshConfig(), [device]), model_of(options)
  lm, adam = TrainConfig(batch_size=options.batch_size), Adam.of(TrainConfig())
  state = steps.lm_state_template(model, lm, mesh)
  sharding = batch_sharding(mesh)
  batch, _ = make_batch(options, options.vocab_size, np.random.default_rng(0))
  batch = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
           for name, x in batch.items()}
  plain_batch = {name: batch[name] for name in ('inputs', 'targets', 'reset')}
  term = FairnessTerm.of(DebiasConfig(monitor_every=100), SentimentConfig())
  weights = {'embedding': np.float32(10)}
  lowered = {
    'plain': steps.make_lm_step(model, adam, mesh).lower(state, plain_batch, 0, np.float32(1e-4)),
    'fused': steps.make_debias_step(model, adam, term, mesh).lower(
      state, batch, 0, np.float32(1e-4), weights, None)}
  found = {}
  for name, program in lowered.items():
    compiled = program.compile()
    cost, own = compiled.cost_analysis(), count(compiled.as_text())
    found[name] = {
      'compiler_bytes': cost['bytes accessed'], 'compiler_flops': cost['flops'],
      'counted_bytes': own.nbytes, 'counted_flops': own.flops,
      'temporary_mib': compiled.memory_analysis().temp_size_in_bytes / 2 ** 20}
  return harness.provenance('debias_step', options) | {
    'device': device.device_kind, 'programs': found,
    'fused_over_plain': {k: found['fused'][k] / found['plain'][k] for k in found['plain']}}


def measure(options) -> dict:
  """Times the steps in turns; seconds are the median over the rounds."""
  model = model_of(options)
  lm, adam = TrainConfig(batch_size=options.batch_size), Adam.of(TrainConfig())
  mesh = make_mesh(MeshConfig())
  batch, stacked_batch = make_batch(options, options.vocab_size, np.random.default_rng(0))
  plain_batch = {name: batch[name] for name in ('inputs', 'targets', 'reset')}
  rate, weight = np.float32(1e-4), np.float32(10.0)
  term = FairnessTerm.of(DebiasConfig(), SentimentConfig())
  programs = {
    'plain': (steps.make_lm_step(model, adam, mesh), (plain_batch, 0, rate)),
    'fused': (steps.make_debias_step(model, adam, term, mesh),
              (batch, 0, rate, {'embedding': weight}, None)),
    'stacked': (make_stacked_step(model, adam), (stacked_batch, 0, rate, weight))}
  programs = {name: programs[name] for name in options.steps.split(',')}
  states, temporaries, runs = {}, {}, {}
  for name, (step, arguments) in programs.items():
    states[name] = steps.init_lm_state(model, lm, mesh, seed=0)
    memory = step.lower(states[name], *arguments).compile().memory_analysis()
    temporaries[name] = memory.temp_size_in_bytes / 2 ** 20

    def run(name=name, step=step, arguments=arguments):
      states[name], metrics = step(states[name], *arguments)
      return states[name], metrics

    runs[name] = run
  seconds = harness.in_turns(runs, rounds=options.rounds)
  limits = harness.limits(options.dtype)
  medians = {name: float(np.median(values)) for name, values in seconds.items()}
  tokens = options.batch_size * options.segment_len
  # Three times the forward pass: products with weights (the memory's keys and values too), the
  # three of attention on the keys that a query sees, and the softmax.
  d, t = options.dim, options.segment_len
  layer = 2 * (2 * d * d + 2 * 2 * d * d + 8 * d * d) + 3 * 2 * 1.5 * t * d
  operations = 3 * tokens * (options.layers * layer + 2 * d * options.vocab_size)
  extra = (options.segment_len + options.branches * options.pieces) / options.segment_len
  factor = {'plain': 1.0, 'fused': extra, 'stacked': 2.0}
  return harness.provenance('debias_step', options) | {
    'limits': limits, 'seconds': medians, 'temporary_mib': temporaries,
    'tokens_per_s': {name: tokens / s for name, s in medians.items()},
    'ratio_to_plain': harness.ratios(seconds, 'plain') if 'plain' in seconds else None,
    'spread': {name: float(np.std(values) / medians[name]) for name, values in seconds.items()},
    'floor': {name: factor[name] for name in medians},
    'floor_seconds': {
      name: factor[name] * operations / limits['operations_per_s'] for name in medians},
    'share_of_matmul_speed': {
      name: factor[name] * operations / limits['operations_per_s'] / s
      for name, s in medians.items()},
    'counterfactuals_per_row': {'fused': options.branches, 'stacked': 1}}


def main() -> None:
  """Parses the sizes, prints the table or JSON."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  for name, default in (('dim', 256), ('layers', 6), ('heads', 4), ('segment_len', 128),
                        ('batch_size', 8), ('branches', 4), ('pieces', 2), ('vocab_size', 8192),
                        ('rounds', 15)):
    parser.add_argument(f'--{name}', type=int, default=default)
  parser.add_argument('--dtype', default='float32', choices=('float32', 'bfloat16'))
  parser.add_argument('--remat', default='none', choices=('none', 'dots', 'full'))
  parser.add_argument('--steps', default='plain,fused,stacked', help='which, in turns')
  parser.add_argument('--unroll', action='store_true', help='unroll the scan over layers')
  parser.add_argument('--json', action='store_true')
  parser.add_argument('--topology', default='', help="of the TPU compiler, e.g. 'v5e:2x2'")
  options = parser.parse_args()
  if options.topology:
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    result = compile_only(options)
    lines = [f'{name}: {value:.4f} times plain'
             for name, value in result['fused_over_plain'].items()]
    harness.show(result, lines, as_json=options.json)
    return
  result = measure(options)
  lines = [
    f'{name:8s} {1e3 * seconds:8.1f} ms (floor {1e3 * result["floor_seconds"][name]:.1f})  '
    f'{result["tokens_per_s"][name]:10,.0f} tokens/s  '
    f'{(result["ratio_to_plain"] or {}).get(name, 1.0):.3f}x of plain '
    f'(floor {result["floor"][name]:.3f}x)  {result["temporary_mib"][name]:.0f} MiB temporary'
    for name, seconds in result['seconds'].items()]
  harness.show(result, lines, as_json=options.json)


if __name__ == '__main__':
  main()
