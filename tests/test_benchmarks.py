"""Every benchmark at its smallest size: it runs, and its JSON says where it is from and the floors.

No time is compared: that the numbers are of this machine is all that is asked of them.
"""

import importlib
import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from fairjax.config import MeshConfig, ModelConfig, TrainConfig
from fairjax.model import language_model, parameter_counts
from fairjax.tpu.programs import model_of
from fairjax.train import make_mesh, steps
from tests.benchmarks import floors, harness, model_flags, sampler

PROVENANCE = {'benchmark', 'options', 'command', 'device', 'cores', 'load_average', 'platform',
              'versions', 'date'}
FLOOR = {'products', 'bytes', 'seconds', 'binds'}
SIZES = {'layers': 2, 'dim': 16, 'heads': 2, 'segment_len': 8, 'vocab_size': 64, 'batch_size': 8,
         'samples': 8, 'new_tokens': 3}
DECODER = '--decoder=tests/golden/decoders/llama3'
TINY = '--config=tests/benchmarks/small.py:' + ','.join(f'{k}={v}' for k, v in SIZES.items())


@pytest.fixture
def run(monkeypatch, capsys):
  """Runs a benchmark in this process, on one device; returns its JSON."""
  monkeypatch.setattr(harness, 'limits', lambda dtype, devices=None: {
    'operations_per_s': 1e12, 'bytes_per_s': 1e11})

  def run(name, *arguments):
    module = importlib.import_module(f'tests.benchmarks.{name}')
    if hasattr(module, 'make_mesh'):
      monkeypatch.setattr(module, 'make_mesh', lambda config, devices=None: make_mesh(
        config, jax.devices()[:1]))
    monkeypatch.setattr(sys, 'argv', [name, *arguments])
    module.main()
    found = json.loads(capsys.readouterr().out)
    assert found.keys() >= PROVENANCE and found['benchmark'] == name
    assert found['command'].startswith("'XLA_FLAGS=")  # the tests' devices are such an option
    assert f' python -m tests.benchmarks.{name} ' in found['command']
    assert found['versions'].keys() >= {'python', 'jax', 'numpy'}
    return found

  return run


def test_sampler(run):
  found = run('sampler', TINY, '--rounds=1', '--devices=1', '--uncoupled')
  assert found['floor'].keys() == FLOOR and found['devices'] == 1 and not found['coupled']
  assert found['memory_mib'].keys() == {'arguments', 'temporaries', 'outputs', 'aliased'}
  rate = found['continuations_per_s']
  assert found['tokens_per_s'] == pytest.approx(3 * rate)
  assert found['seconds_of_730000'] == pytest.approx(730_000 / rate)
  assert found['share_of_peak'] is None


def test_accelerator_leaves_the_json_of_each_and_names_what_failed(tmp_path, monkeypatch, capsys):
  accelerator = importlib.import_module('tests.benchmarks.accelerator')
  monkeypatch.setitem(accelerator.TINY, 'broken', 'no_benchmark')
  monkeypatch.setattr(accelerator, '_LEAST', 1)
  monkeypatch.setattr(sys, 'argv', [
    'accelerator', '--tiny', f'--output={tmp_path}', '--only=broken,attention'])
  assert accelerator.main() == 1
  assert 'without a result: broken\n' in capsys.readouterr().out
  assert accelerator.run(['measure'], tmp_path / 'attention.json', 1) == 'not done in 1 s'
  (path,) = tmp_path.iterdir()
  result = json.loads(path.read_text())
  assert path.stem == 'attention' and result.keys() >= PROVENANCE
  assert all(row['difference'] < 1e-5 for row in result['rows'])


def test_the_accelerator_needs_the_few_packages_that_it_names():
  accelerator = importlib.import_module('tests.benchmarks.accelerator')
  lacking = ('backports.zstd', 'matplotlib', 'seqio', 'sentencepiece', 'shtab', 'tensorflow',
             'textblob', 'tokenizers', 'tqdm', 'vaderSentiment')  # extras are optional
  lines = [f'sys.modules[{name!r}] = None' for name in lacking] + [
    f'import tests.benchmarks.{words.split()[0]}' for words in accelerator.TASKS.values()]
  subprocess.run([sys.executable, '-c', '\n'.join(('import sys', *lines))], check=True)


@pytest.mark.parametrize('name', ['step', 'decoder_step', 'sampler', 'decoder_sampler'])
def test_configurations_of_the_accelerator_fit_their_benchmarks(name):
  accelerator = importlib.import_module('tests.benchmarks.accelerator')
  module, *arguments = accelerator.TASKS[name].split()
  parser = harness.parser('sizes', rounds=1)
  parser.add_argument('--steps')
  config = model_flags.parse(parser, arguments)[1]
  assert config.model.dtype == 'bfloat16' and (
    bool(config.pretrained.model) == name.startswith('decoder'))
  assert config.model.segment_len == 512 or module == 'sampler'


def test_the_step_of_a_decoder(run):
  found = run('debias_step', TINY, DECODER, '--rounds=1', '--steps=plain,fused',
              '--devices=1')
  assert found['tokens_over_plain']['fused'] == 2


@pytest.mark.weekly  # its step and its floor are those of `peers`
def test_debias_step_with_the_parts_of_a_real_model(run):
  found = run('debias_step', TINY, '--config.model.cutoffs=20,', '--config.model.div_val=4',
              '--config.model.hidden_dropout=0.1', '--config.model.attention=shift', '--rounds=1',
              '--devices=1', '--steps=fused,stacked')
  names = {'fused', 'stacked'}  # the plain step is that of `peers`
  for key in ('seconds', 'memory_mib', 'floors', 'share_of_peak'):
    assert found[key].keys() == names, key
  assert all(floor.keys() == FLOOR for floor in found['floors'].values())
  # 4 branches of 2 pieces in 8 tokens; the softmax and the memory's keys do not grow with them.
  assert found['tokens_over_plain'] == {'fused': 2, 'stacked': 2}
  assert 1 < found['floor']['fused'] < 2
  assert found['model']['cutoffs'] == [20] and found['model']['hidden_dropout'] == 0.1


def test_loss(run):
  found = run('loss', '--vocab_size=128', '--tokens=16', '--dim=16', '--rounds=1')
  ways = {'all scores', 'blocks', 'mean', 'adaptive'}
  assert found['floors'].keys() == ways == found['seconds'].keys()
  assert all(floor.keys() == FLOOR for floor in found['floors'].values())
  assert found['floors']['adaptive']['products'] < found['floors']['blocks']['products']


def test_attention(run):
  found = run('attention', '--lengths=16', '--heads=1', '--rows=1', '--width=8', '--rounds=1',
              '--paths=kernel,shift,blocks')
  assert [row['path'] for row in found['rows']] == ['kernel', 'shift', 'blocks']
  assert 'CPU' in found['rows'][0]['error']  # the others go on
  assert all(row['floor'].keys() == FLOOR for row in found['rows'][1:])


@pytest.mark.parametrize('work', ['train', 'gpt2', *(
  pytest.param(work, marks=pytest.mark.weekly) for work in ('evaluate', 'generate'))])
def test_peers_beside_a_torch_that_does_nothing(run, monkeypatch, work):
  sampling = work in ('generate', 'gpt2')

  class Peer:
    versions = {'torch': 'none'}

    def __init__(self, options, kind, config, prefixes):
      assert kind == ('decoder' if sampling else 'transformer_xl')
      assert config['model_type'] == ('llama' if work == 'gpt2' else 'gpt2')
      assert len(prefixes) == options.values

    def run(self, name):
      assert name == ('generate' if sampling else work)

    def close(self):
      pass

  monkeypatch.setattr(importlib.import_module('tests.benchmarks.peers'), 'Peer', Peer)
  found = run('peers', '--torch_python=none', f'--work={work}', '--rounds=1', '--warm=0',
              '--memory_len=8', *(f'--{name}={size}' for name, size in SIZES.items()),
              *([DECODER, '--values=2'] if work == 'gpt2' else []))
  assert found['floor'].keys() == FLOOR


def test_data(run):
  found = run('data', '--documents=600', '--rounds=1', '--batch_size=2', '--segment_len=16')
  store = found['token_store']['reading']
  assert store['floor_seconds'] > 0 and store['bytes_per_token'] == 6
  assert 'sentencepiece' in found['versions'] and found['preparation'].keys() == {'chunks'}
  assert found['preparation']['chunks']['tokens_per_cpu_s'] > 0


def test_checks_of_a_job_that_does_nothing(run, monkeypatch):
  checks = importlib.import_module('tests.benchmarks.checks')
  monkeypatch.setattr(checks.Clocks, 'install', lambda self: self.wrap(list, 'm.f')('ab'))
  # What the job says is no part of the JSON.
  monkeypatch.setattr('fairjax.cli.main.main', lambda arguments: print('[lm] step 1') or 0)
  found = run('checks', '--config=configs/quickstart.py')
  assert found['exit_code'] == 0 and found['functions'].keys() == {'m.f'}


def test_checks_name_what_exists():
  checks = importlib.import_module('tests.benchmarks.checks')
  for module, names in checks.CHECKS.items():
    for name in names:
      owner, _, attribute = name.rpartition('.')
      holder = importlib.import_module(module)
      assert callable(getattr(getattr(holder, owner) if owner else holder, attribute)), name


def test_measure_and_nulls(run):
  found = run('measure', '--samples=2', '--permutations=10', '--attributes', 'country')
  assert found['records'] == 200 and found['floor_seconds'] > 0
  run('nulls', '--runs=2', '--samples=4', '--permutations=9')


@pytest.mark.parametrize(('arguments', 'words'), [
  (('--config.model.num_layers=1',), 'model.num_layers=1 must be'),
  (('--rounds=0',), '--rounds: 0 is too small'), (('--devices=99',), '--devices=99, but there')])
def test_bad_sizes_end_with_a_line(monkeypatch, capsys, arguments, words):
  monkeypatch.setattr(sys, 'argv', ['sampler', *arguments])
  with pytest.raises(SystemExit) as ended:
    sampler.main()
  assert ended.value.code == 2 and words in capsys.readouterr().err.splitlines()[-1]


# The floors, against other ways to count.


MODEL = ModelConfig(vocab_size=64, num_layers=3, model_dim=16, num_heads=2, head_dim=8, ff_dim=32,
                    segment_len=8, memory_len=8)


def test_products_of_a_decoder_are_its_parameters_without_norms():
  model = model_of(model_flags.parse(
    harness.parser('sizes'), ['--decoder=configs/decoders/llama-3.2-1b'])[1])
  sizes, shapes = model.config, jax.eval_shape(model.init, jax.random.key(0))
  norms = (2 * sizes.num_layers + 1) * sizes.model_dim
  assert floors.softmax_weights(sizes) + sizes.num_layers * floors.layer_weights(sizes) == (
    sum(x.size for x in jax.tree.leaves(shapes)) - norms)


def test_products_of_layers_and_softmax_are_the_parameters():
  """All weights but those of distances, biases and norms are multiplied with each token."""
  counts = parameter_counts(MODEL)
  relative, biases = 16 * 16, 32 + 16 + 4 * 16
  assert counts['layers'] == 3 * (floors.layer_weights(MODEL) + relative + biases) + 2 * 16
  assert floors.softmax_weights(MODEL) == counts['embedding'] - 64  # its bias


def test_an_adaptive_softmax_counts_its_tails_for_their_own_tokens():
  model = ModelConfig(vocab_size=64, model_dim=16, cutoffs=(20, 40), div_val=4)
  tails = 20 * 4 + 16 * 4, 24 * 1 + 16 * 1
  head = 20 * 16 + 16 * 16 + 2 * 16
  assert floors.softmax_weights(model) == head + sum(tails)
  shares = floors.cluster_shares(model, np.array([0, 0, 25, 63]))
  assert floors.softmax_weights(model, shares) == head + tails[0] / 4 + tails[1] / 4


def test_bytes_of_sampling_are_those_of_a_loop_over_tokens():
  sizes = {'values': 2, 'samples': 5, 'new_tokens': 4, 'prefix_len': 3, 'batch_size': 2}
  weights = 3 * floors.layer_weights(MODEL) + floors.softmax_weights(MODEL)
  token, total = 3 * 2 * 16, 0  # 3 layers, key and value, 16 numbers
  for batch in (2, 2, 1):
    for step in range(4):
      total += weights + 2 * 3 * token  # both prefixes
      if step:  # reads the tokens before the last one, and writes that
        total += 2 * batch * (step - 1 + 1) * token
  work = floors.sampling(MODEL, **sizes)
  assert work.nbytes == 4 * total
  assert work.operations == 2 * 2 * 5 * 4 * weights


def test_bytes_of_training_hold_parameters_gradients_and_moments():
  state = steps.lm_state_template(language_model(MODEL), TrainConfig(batch_size=2), make_mesh(
    MeshConfig(), jax.devices()[:1]))
  one, two = (floors.training(
    MODEL, state, rows=2, segment_len=MODEL.segment_len, queries=q) for q in (1.0, 2.0))
  inputs = 2 * 3 * 2 * 8 * 16 * 4
  assert two.nbytes - one.nbytes == inputs
  counted = 4 * parameter_counts(MODEL)['total'] * (4 + 2 + 4) + inputs + 2 * 3 * 2 * 8 * 16 * 4
  assert one.nbytes == pytest.approx(counted, rel=1e-3)  # lengths and steps are counters
  assert one.operations < two.operations < 2 * one.operations
