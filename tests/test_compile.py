"""`fairjax compile`: slices, errors, search, page; the compiler itself with -m libtpu."""

import dataclasses
import importlib.metadata
import importlib.util
import json
import math
import os
import re
import subprocess
import sys

import jax
import pytest

from fairjax import chips
from fairjax.chips import find_slice
from fairjax.compile import command, devices, matrix, search
from fairjax.compile.analysis import Analysis, out_of_memory
from fairjax.compile.programs import compiled_model, lower_program, programs_of
from fairjax.compile.text import describe
from fairjax.config import Config, DataConfig, DebiasConfig, MeshConfig, ModelConfig, TrainConfig
from fairjax.errors import UserError
from fairjax.train import make_mesh, params_template

GIB = 2**30
TINY = Config(
  data=DataConfig(vocab_size=64),
  model=ModelConfig(num_layers=2, model_dim=16, num_heads=2, head_dim=8, ff_dim=32, segment_len=8,
                    memory_len=8),
  lm=TrainConfig(batch_size=8), debias=DebiasConfig(batch_size=16))


def analysis(topology, *, required=3 * GIB, program='lm', memory=True, **more):
  where = find_slice(topology)
  sizes = {'arguments': 2 * GIB, 'temporaries': GIB, 'outputs': GIB, 'aliased': GIB, 'code': 0}
  cost = {'flops': 2e12, 'bytes': 4e9, 'collectives': {'all-reduce': [7, 8e9]},
          'notes': {'loop counted by its greatest length': 3}}
  return Analysis(**{
    'program': program, 'part': f'{program}: train step', 'topology': topology,
    'mesh': {'data': where.num_devices}, 'batch_size': 64, 'memory': sizes if memory else {},
    'required': required, 'available': where.chip.available_hbm, 'hbm': where.chip.hbm,
    'cost': cost if memory else None, 'floors': {'flops': 0.25, 'bytes': 0.125} if memory else {},
    'seconds': 3.0, 'argument_bytes': 2 * GIB} | more)


# ------------------------------------------------------------------------------- slices

@pytest.mark.parametrize(('name', 'devices'), [
  ('v3:8x8', 128), ('v3:2x4', 16), ('v4:2x2x4', 16), ('v5e:4x4', 16), ('v5p:4x4x4', 64),
  ('v6e:16x16', 256)])
def test_devices_as_jax_counts_them(name, devices):
  assert find_slice(name).num_devices == devices


@pytest.mark.parametrize(('name', 'line'), [
  ('v5e:4x5', "no slice of 20 chips; the nearest: 'v5e:4x4' (16), 'v5e:4x8' (32). Known: v5e:1x1,"),
  ('v5e:3x3', "no slice of 9 chips; the nearest: 'v5e:2x4' (8), 'v5e:4x4' (16)."),
  ('v5e:8x4', "unknown topology 'v5e:8x4': did you mean 'v5e:4x8'? Known: v5e:1x1, v5e:2x2,"),
  ('v4:8x8', "did you mean 'v4:4x4x4'?"), ('v5litepod:4x4', "did you mean 'v5e:4x4'?"),
  ('v4:1x1', "the nearest: 'v4:2x2x1' (4)."), ('v6e:99x99', "the nearest: 'v6e:16x16' (256)."),
  ('v6e:0x4', "unknown topology 'v6e:0x4': Known: v6e:1x1,"), ('v6e:', "'v6e:': Known: v6e:1x1,"),
  ('v9:3x3', "unknown chip 'v9'; known are v3, v4, v5e, v5p, v6e"), ('v7:2x2', "unknown chip 'v7'"),
  ('v3-128', 'name it by its shape in chips, v3:8x8'), ('v5litepod-16', 'v5e:4x4'),
  ('v4-32', 'v4:2x2x4'), ('v3-7', 'Known: v3:16x16'), ('v2:4x4', 'nothing is known of what v2'),
  ('tpu7x-8', 'Known: v3:16x16')])
def test_unknown_slices_name_the_nearest(name, line):
  with pytest.raises(UserError, match="topology '") as e:
    find_slice(name)
  assert line in str(e.value)


def test_slices_ascend_and_chips_are_plausible():
  for chip in chips.CHIPS.values():
    sizes = [s.num_devices for s in chips.slices_of(chip)]
    assert sizes == sorted(set(sizes))
    if chip.compiles:
      assert 0.9 * chip.hbm < chip.available_hbm < chip.hbm
      assert 50 < chip.peak_flops / chip.bandwidth < 1000  # FLOPs a byte
    assert 'docs.cloud.google.com' in chip.source


def test_without_libtpu_the_error_says_how_to_install_it(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match='pip install libtpu'):
    devices.slice_devices(find_slice('v5e:2x2'))


@pytest.mark.parametrize('smallest', [False, True])
def test_without_libtpu_no_other_program_or_slice_is_proposed(smallest, monkeypatch):
  monkeypatch.setattr(command, 'prepare_process', lambda: None)
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match=r"^the TPU compiler is not installed: .*'jax\[tpu\]'$"):
    command.compile_config(TINY, topology='v5e:2x2', programs=(), smallest=smallest, as_json=False,
                           versions={}, log=lambda line: None)


@pytest.mark.parametrize(('programs', 'end'), [
  ((), 'or choose what to compile with --program'), (('lm',), 'e.g. --config.lm.batch_size=8')])
def test_a_batch_that_the_slice_does_not_divide_leaves_other_programs(programs, end, monkeypatch):
  """Where all are compiled; whoever asked for one knows the option."""
  monkeypatch.setattr(command, 'prepare_process', lambda: None)
  monkeypatch.setattr('fairjax.compile.analysis.slice_devices', lambda where, **k: jax.devices())
  config = dataclasses.replace(TINY, lm=TrainConfig(batch_size=12))
  with pytest.raises(UserError, match='lm.batch_size=12 is not divisible') as e:
    command.compile_config(config, topology='v5e:2x4', programs=programs, smallest=False,
                           as_json=False, versions={}, log=lambda line: None)
  assert str(e.value).endswith(end)


# ------------------------------------------------------------------------------- programs

def test_programs_follow_the_curriculum():
  assert programs_of(TINY) == ['lm', 'debias', 'sample']
  assert programs_of(dataclasses.replace(TINY, until='lm')) == ['lm', 'sample']
  without = dataclasses.replace(TINY, debias=DebiasConfig(variants=()))
  assert programs_of(without) == ['lm', 'sample']
  assert compiled_model(TINY).vocab_size == 64


@pytest.mark.parametrize('program', ['lm', 'debias', 'sample'])
def test_programs_lower_without_an_array(program):
  before = {id(a) for a in jax.live_arrays()}
  found = lower_program(TINY, program, jax.devices())
  made = [a for a in jax.live_arrays() if id(a) not in before and a.size > 2]
  assert not made
  assert found.mesh.size == len(jax.devices()) and 'func' in found.lowered.as_text()


def test_argument_bytes_are_those_of_one_device():
  params = params_template(compiled_model(TINY), make_mesh(TINY.mesh))
  sizes = [math.prod(p.shape) for p in jax.tree.leaves(params)]
  # With both moments of Adam; step, its count, seed, rate; three counters of skipped updates.
  replicated = 3 * sum(sizes) + 4 + 3
  rows, model = 8 // 8, TINY.model
  memory = rows * (model.num_layers * model.memory_len * model.model_dim + 1)
  batch = 2 * rows * model.segment_len
  found = lower_program(TINY, 'lm', jax.devices())
  assert found.argument_bytes == 4 * (replicated + memory + batch) + rows  # reset: one byte


def test_deep_samplers_are_compiled_for_one_token(monkeypatch):
  from fairjax.compile import programs
  monkeypatch.setattr(programs, 'MOST_LAYERS_OF_WHOLE_SAMPLER', 1)
  found = lower_program(TINY, 'sample', jax.devices())
  assert 'one token' in programs.part_of(TINY, 'sample')
  assert 'stablehlo.while' not in found.lowered.as_text()
  cache = 2 * 2 * 10 * 32 * 2 * 50 * 8 * 4  # keys and values, layers, values, samples a device, ...
  assert found.argument_bytes > cache


@pytest.mark.parametrize('devices', [1, 8])
def test_samplers_are_those_of_the_slice_not_of_this_machine(devices, monkeypatch):
  """Keys and values of bfloat16 are float32 on CPU only."""
  from fairjax.generate import sampler
  monkeypatch.setattr(sampler, 'platform_of', lambda mesh: 'cpu' if mesh is None else 'tpu')
  config = dataclasses.replace(TINY, model=dataclasses.replace(TINY.model, dtype='bfloat16'))
  program = lower_program(config, 'sample', jax.devices()[:devices]).lowered.as_text()
  model = config.model
  cache = rf'tensor<\d+x\d+x{model.num_heads}x\d+x{model.head_dim}x(\w+)>'
  loops = re.findall(r'stablehlo.while.*', program)
  assert {dtype for loop in loops for dtype in re.findall(cache, loop)} == {'bf16'}


def test_batches_that_the_slice_does_not_divide_are_refused():
  config = dataclasses.replace(TINY, lm=TrainConfig(batch_size=12))
  with pytest.raises(UserError, match=r'lm.batch_size=12 is not divisible by the 8 devices'):
    lower_program(config, 'lm', jax.devices())
  with pytest.raises(UserError, match="unknown program 'lmm'"):
    lower_program(config, 'lmm', jax.devices())


# ------------------------------------------------------------------------------- what fits

@pytest.mark.parametrize(('message', 'needed'), [
  ('RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory '
   'required for HLO temporaries (16.50G) exceeds available HBM (15.48G). HLO module: jit_step.',
   16.5 * GIB),
  ('Ran out of memory in memory space hbm. Used 20.5M of 15.75G hbm.', 20.5 * 2**20),
  ('INVALID_ARGUMENT: something else', None)])
def test_what_the_compiler_says_about_memory(message, needed):
  assert out_of_memory(message) == needed


def test_fits_or_by_how_much_not():
  found = analysis('v5e:2x2')
  assert found.fits and found.bytes_over < 0
  over = analysis('v5e:2x2', required=int(15.75 * GIB) + 5)
  assert not over.fits and over.bytes_over == 5
  assert 'DOES NOT FIT, 5 bytes over' in '\n'.join(describe(over))
  refused = analysis('v5e:2x2', memory=False)
  assert not refused.fits and 'refuses' in '\n'.join(describe(refused))
  assert 'not counted' in '\n'.join(describe(analysis('v5e:2x2', cost=None, floors={})))
  lines = '\n'.join(describe(found))
  assert 'fits, 12.75 GiB left' in lines and '2 TFLOP and 4 GB' in lines
  assert '250 ms at peak' in lines and 'not times' in lines and '7 all-reduce (8 GB)' in lines


def fake_analyse(needs):
  """Needs `needs` bytes over all devices; at most 32 devices divide the batch."""
  seen = []

  def analyse(config, program, where, *, log=print, cached=lambda key: None):
    assert config.mesh.data == -1
    seen.append(where.name)
    if where.num_devices > 32:
      raise UserError('lm.batch_size=32 is not divisible')
    return analysis(where.name, required=needs // where.num_devices), 'key'
  return analyse, seen


def test_the_search_goes_up_to_the_smallest_slice_that_fits():
  config = dataclasses.replace(TINY, mesh=MeshConfig(data=4))
  analyse, seen = fake_analyse(100 * GIB)
  found, tried = search.smallest_slice(
    config, 'lm', find_slice('v5e:2x2'), log=lambda line: None, analyse=analyse)
  assert found.topology == 'v5e:2x4' and seen == ['v5e:1x1', 'v5e:2x2', 'v5e:2x4']
  assert tried == [f'v5e:1x1: {100 * GIB - int(15.75 * GIB):,} bytes over',
                   f'v5e:2x2: {25 * GIB - int(15.75 * GIB):,} bytes over']
  analyse, seen = fake_analyse(100 * GIB)
  search.smallest_slice(config, 'lm', find_slice('v5e:2x2'), above=True, analyse=analyse)
  assert seen == ['v5e:2x4']
  analyse, seen = fake_analyse(1000 * GIB)
  found, tried = search.smallest_slice(config, 'lm', find_slice('v5e:2x2'), analyse=analyse)
  assert found is None and 'not divisible' in tried[-1]
  assert 'remat=full' in search.advice(config, analysis('v5e:2x2'))
  assert 'lm.parts=2' in search.advice(config, analysis('v5e:2x2'))
  assert 'mesh.fsdp=2' in search.advice(config, analysis('v5e:2x2', program='sample'))


@pytest.mark.parametrize(('fits', 'status'), [(True, 0), (False, 2)])
@pytest.mark.parametrize('as_json', [False, True])
def test_exit_code_and_json(fits, status, as_json, monkeypatch, capsys):
  def analyse(config, program, where, *, log=print, cached=lambda key: None):
    return analysis(where.name, program=program,
                    required=GIB if fits or where.num_devices > 8 else 16 * GIB), 'key'
  monkeypatch.setattr(command, 'prepare_process', lambda: None)
  monkeypatch.setattr('fairjax.compile.analysis.analyse', analyse)
  monkeypatch.setattr('fairjax.compile.search.analyse', analyse)
  monkeypatch.setattr(search.smallest_slice, '__kwdefaults__',
                      search.smallest_slice.__kwdefaults__ | {'analyse': analyse})
  assert status == command.compile_config(
    TINY, topology='v5e:2x4', programs=['lm'], smallest=False, as_json=as_json,
    versions={'jax': '1'}, log=lambda line: None)
  out = capsys.readouterr().out
  if as_json:
    result = json.loads(out)
    assert result['fits'] == fits and result['programs'][0]['topology'] == 'v5e:2x4'
    assert fits or result['programs'][0]['smallest']['topology'] == 'v5e:4x4'
  else:
    assert fits or 'fits: v5e:4x4' in out
    assert 'not times' in out


# ------------------------------------------------------------------------------- page

CELLS = [matrix.Cell('configs/quickstart.py', 'lm', name) for name in ('v3:8x8', 'v5e:4x4')]


def test_the_matrix_resumes_and_compiles_changed_programs_again(tmp_path, repository, monkeypatch):
  monkeypatch.chdir(repository)
  keys, compiled = {'v3:8x8': 'a', 'v5e:4x4': 'b'}, []

  def analyse(config, program, where, *, log, cached):
    earlier = cached(keys[where.name])
    if earlier is None:
      if where.name in failing:
        raise KeyboardInterrupt
      compiled.append(where.name)
    return analysis(where.name, memory=where.name == 'v3:8x8'), keys[where.name]

  def run():
    return matrix.run_matrix(
      CELLS, output=str(tmp_path / 'page.md'), versions={'jax': '0.10.2', 'libtpu': '0.0.52'},
      command='fairjax compile --matrix', log=lambda line: None, analyse=analyse)

  failing = ['v5e:4x4']
  with pytest.raises(KeyboardInterrupt):
    run()
  assert 'v5e:4x4 | not compiled yet' in (tmp_path / 'page.md').read_text(encoding='utf-8')
  failing = []
  run()
  assert 'not compiled yet' not in (tmp_path / 'page.md').read_text(encoding='utf-8')
  assert compiled == ['v3:8x8', 'v5e:4x4']
  run()
  assert len(compiled) == 2
  keys['v3:8x8'] = 'c'
  result = run()
  assert compiled[2:] == ['v3:8x8']
  saved = json.loads((tmp_path / 'page.json').read_text(encoding='utf-8'))
  assert saved == json.loads(json.dumps(result)) and len(saved['cells']) == 2


def test_the_page_holds_table_command_versions_and_caveats():
  results = {'versions': {'jax': '0.10.2', 'libtpu': '0.0.52'}, 'cells': {
    CELLS[0].name: {'key': 'a', 'result': analysis('v3:8x8').to_dict()},
    CELLS[1].name: {'key': 'b', 'result': analysis(
      'v5e:4x4', memory=False, required=20 * GIB).to_dict()}}}
  page = matrix.render(CELLS, results, command='fairjax compile --matrix', date='2026-01-02')
  row = ('| `configs/quickstart.py` | lm: train step | v3:8x8 | 128 | 64 | 3.00 GiB | 15.48 GiB '
         '| yes | 2.00 | 4.0 | 7 all-reduce 8.00 GB | 250.0 ms | 125.0 ms |')
  assert row in page.splitlines()
  assert '| over 20.00 GiB | 15.75 GiB | **no**, 4.25 GiB over | - |' in page
  for word in ('2026-01-02', 'libtpu 0.0.52', 'fairjax compile --matrix', '**No times.**',
               'Custom calls (Pallas kernels)', 'loop counted by its greatest length'):
    assert word in page
  del results['cells'][CELLS[1].name]
  page += matrix.render(CELLS, results, command='', date='2026-01-02')
  widths = {line.count('|') for line in page.splitlines() if line.startswith('|')}
  assert len(widths) == 2  # two tables, rows of one length each


def test_the_paper_matrix_asks_for_both_models():
  cells = matrix.paper_cells()
  assert len({c.name for c in cells}) == len(cells)
  for corpus in ('wikitext103', 'wmt19'):
    mine = {(c.program, c.topology) for c in cells if corpus in c.config}
    assert {('lm', 'v3:8x8'), ('debias', 'v3:2x4')} <= mine
  assert all(find_slice(c.topology) for c in cells)


# ------------------------------------------------------------------------------- the compiler

@pytest.mark.libtpu
@pytest.mark.slow
def test_the_tpu_compiler(repository, tmp_path):
  if importlib.util.find_spec('libtpu') is None:
    pytest.skip('the TPU compiler is not installed: pip install libtpu')
  environment = {k: v for k, v in os.environ.items() if k != 'XLA_FLAGS'}

  def run(*arguments):
    return subprocess.run(
      [sys.executable, '-m', 'fairjax', 'compile', *arguments], cwd=repository, text=True,
      capture_output=True, env=environment, timeout=600, stdin=subprocess.DEVNULL)

  done = run('--config=configs/quickstart.py', '--topology=v5e:2x2', '--program=lm', '--json',
             '--config.model.num_layers=3')
  assert done.returncode == 0, done.stderr[-2000:]
  result = json.loads(done.stdout)
  (program,) = result['programs']
  assert program['fits'] and program['mesh'] == {'data': 4} and program['required'] > 2**20
  assert program['cost']['collectives']['all-reduce'][0] >= 1
  # Forward and backward products of the layers alone, on 2 of 8 rows of 64 tokens.
  layers = 3 * (128 * 64 * 4 + 2 * 128 * 512)
  assert program['cost']['flops'] > 6 * layers * 2 * 64
  assert result['versions']['libtpu'] == importlib.metadata.version('libtpu')
  # The tails of an adaptive softmax run as often as a step's words want: counted by the most.
  done = run('--config=configs/quickstart.py', '--topology=v5e:2x2', '--program=lm', '--json',
             '--config.model.num_layers=3', '--config.model.cutoffs=(20,40)')
  assert done.returncode == 0, done.stderr[-2000:]
  (program,) = json.loads(done.stdout)['programs']
  assert 'loop of unknown length counted once' not in program['cost']['notes']
  # Too large for one chip of v5e, whatever the compiler does.
  done = run('--config=configs/quickstart.py', '--topology=v5e:1x1', '--program=lm',
             '--config.data.vocab_size=20000000')
  assert done.returncode == 2 and 'DOES NOT FIT' in done.stdout, done.stderr[-2000:]
  assert 'mesh.fsdp' in done.stdout
