"""`fairjax tpu compile`: slices, errors, search, page; the compiler itself with -m libtpu."""

import contextlib
import dataclasses
import errno
import functools
import importlib.metadata
import importlib.util
import json
import signal
import subprocess
import sys

import jax
import pytest
from test_programs import TINY

from fairjax.cli import main as cli
from fairjax.cli import tpu_verbs as command
from fairjax.config import MeshConfig, TrainConfig
from fairjax.errors import UserError
from fairjax.tpu import slice_search as search
from fairjax.tpu.chips import find_slice
from fairjax.tpu.cost import Analysis

GIB = 2**30


def analysis(topology, *, required=3 * GIB, program='lm', memory=True, **more):
  where = find_slice(topology)
  sizes = {'arguments': 2 * GIB, 'temporaries': GIB, 'outputs': GIB, 'aliased': GIB, 'code': 0}
  return Analysis(**{
    'program': program, 'part': f'{program}: train step', 'topology': topology,
    'mesh': {'data': where.num_devices}, 'batch_size': 64, 'memory': sizes if memory else {},
    'required': required, 'available': where.chip.available_hbm, 'hbm': where.chip.hbm,
    'cost': {'flops': 2e12, 'bytes': 4e9} if memory else None,
    'peak_seconds': 0.25 if memory else None, 'seconds': 3.0} | more)


def test_without_libtpu_nothing_is_tried(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match=r"^the TPU compiler is not installed: .*'jax\[tpu\]'$"):
    command.compile_config(TINY, topology='v5e:2x2', programs=(), smallest=True, as_json=False)


def test_a_batch_that_the_slice_does_not_divide_leaves_other_programs(monkeypatch):
  monkeypatch.setattr(command, 'prepare_process', lambda: None)
  monkeypatch.setattr('fairjax.tpu.cost.slice_devices', lambda where, **k: jax.devices())
  config = dataclasses.replace(TINY, lm=TrainConfig(batch_size=12))
  with pytest.raises(UserError, match='lm.batch_size=12 is not divisible') as e:
    command.compile_config(config, topology='v5e:2x4', programs=(), smallest=False, as_json=False)
  assert str(e.value).endswith('or choose what to compile with --program')


def test_slices_that_cannot_be_joined_are_refused_before_anything_is_compiled(repository, refused):
  refused(['tpu', 'compile', '--topology=v3:2x2', '--config.mesh.slices=2',
           f'--config={repository}/configs/quickstart.py'],
          'mesh.slices=2: v3 slices cannot be joined')


# What fits.

@pytest.fixture
def faked(monkeypatch):
  """Fakes `analyse` and `splits` of a program of some sizes; returns the list of what is compiled.

  `mesh.fsdp` splits the state, but each device gathers some bytes; all devices split the
  activations; at most 32 divide the batch.
  """
  def fake(activations, *, state=0, gathered=0):
    seen = []

    def splits(config, program, where):
      if where.num_devices > 32:
        raise UserError('lm.batch_size=32 is not divisible')
      if program == 'sample':
        return {config.mesh.fsdp: 0}
      first, most = config.mesh.fsdp, where.num_devices
      return {fsdp: state // fsdp for fsdp in (1, 2, 4, 8, 16, 32) if first <= fsdp <= most}

    def analyse(config, program, where, *, log):
      fsdp = config.mesh.fsdp
      assert config.mesh.data == -1 and where.num_devices <= 32
      seen.append((where.name, fsdp))
      needs = activations // where.num_devices + state // fsdp + gathered * (fsdp > 1)
      mesh = {'fsdp': fsdp} if fsdp > 1 else {}
      return analysis(where.name, program=program, required=needs, mesh=mesh), 'key'

    monkeypatch.setattr(command, 'prepare_process', lambda: None)
    monkeypatch.setattr(search, 'splits', splits)
    monkeypatch.setattr(search, 'analyse', analyse)
    return seen

  return fake


def test_the_search_goes_up_to_the_smallest_slice_that_fits(faked):
  config, where = dataclasses.replace(TINY, mesh=MeshConfig(data=4)), find_slice('v5e:2x2')
  seen = faked(100 * GIB)
  found = search.smallest_slice(config, 'sample', where)
  assert found.found.topology == 'v5e:2x4' and found.closest.topology == 'v5e:2x2'
  assert [name for name, _ in seen] == ['v5e:1x1', 'v5e:2x2', 'v5e:2x4']
  assert found.tried[0] == f'v5e:1x1: {100 * GIB - int(15.75 * GIB):,} bytes over'
  assert found.tried[1] == f'v5e:2x2: {25 * GIB - int(15.75 * GIB):,} bytes over'
  faked(1000 * GIB)
  found = search.smallest_slice(config, 'lm', where)
  assert found.found is None and 'not divisible' in found.tried[-1]
  assert found.refused == 'v5e:8x8: lm.batch_size=32 is not divisible'
  assert found.closest.topology == 'v5e:4x8'


def test_a_search_that_has_begun_tries_other_meshes_of_that_slice_first(faked):
  begun = analysis('v5e:2x2', required=22 * GIB, mesh={})
  seen = faked(8 * GIB, state=20 * GIB)
  found = search.smallest_slice(TINY, 'lm', find_slice('v5e:2x2'), begun=begun)
  assert seen == [('v5e:2x2', 2)] and found.found.mesh == {'fsdp': 2}
  assert search.options_of(TINY, found.found) == '--topology=v5e:2x2 --config.mesh.fsdp=2'
  config = dataclasses.replace(TINY, mesh=MeshConfig(data=2, fsdp=2))
  assert search.options_of(config, found.found) == '--topology=v5e:2x2 --config.mesh.data=-1'


def test_what_parameters_bind_is_given_a_larger_fsdp_and_only_what_may_fit_is_compiled(faked):
  """As few compilations as the shapes allow: each takes minutes."""
  seen, lines = faked(8 * GIB, state=40 * GIB), []
  found = search.smallest_slice(
    TINY, 'lm', find_slice('v5e:1x1'), log=lines.append, begun=analysis(
      'v5e:1x1', required=48 * GIB, mesh={})).found
  assert seen == [('v5e:2x2', 4)] and found.topology == 'v5e:2x2' and found.fits
  assert lines == [f'lm: v5e:2x2: {int(24.25 * GIB):,} bytes over without any activation']
  # What a split does not take away leaves the greatest split as the last one to try.
  seen = faked(0, state=20 * GIB, gathered=13 * GIB)
  found = search.smallest_slice(TINY, 'lm', find_slice('v5e:1x1'))
  assert seen == [('v5e:2x2', 2), ('v5e:2x2', 4), ('v5e:2x4', 2), ('v5e:2x4', 8)]
  assert found.found.mesh == {'fsdp': 8}
  assert found.tried[2] == f'v5e:2x2 with mesh.fsdp=2: {int(7.25 * GIB):,} bytes over'


def test_the_search_compiles_few_meshes_of_a_slice(faked):
  seen = faked(32 * GIB, state=8 * GIB, gathered=99 * GIB)
  search.smallest_slice(
    TINY, 'lm', find_slice('v5e:4x8'), begun=analysis('v5e:4x8', required=16 * GIB))
  assert len(seen) == search.MOST_MESHES_OF_A_SLICE - 1
  assert seen[-1] == ('v5e:4x8', 32)


@pytest.mark.parametrize('fits', [True, False])
@pytest.mark.parametrize('as_json', [False, True])
def test_result_and_json(fits, as_json, faked, capsys):
  faked(8 * GIB if fits else 8 * 16 * GIB)
  with contextlib.nullcontext() if fits else pytest.raises(UserError) as error:
    command.compile_config(
      TINY, topology='v5e:2x4', programs=['lm'], smallest=False, as_json=as_json)
  out = capsys.readouterr().out
  if as_json:
    result = json.loads(out)
    (program,) = result['programs']
    assert result['versions']['jax'] == jax.__version__
    assert result['fits'] == program['fits'] == fits and program['topology'] == 'v5e:2x4'
    assert fits or program['smallest']['topology'] == 'v5e:4x4'
    assert fits or program['options'] == '--topology=v5e:4x4'
  else:
    assert fits or 'fits: --topology=v5e:4x4 (7.75 GiB left)' in out
    assert 'not times' in out
  assert fits or str(error.value) == (
    'lm needs 16.00 GiB of 15.75 GiB a device on v5e:2x4, 256.0 MiB (268,435,456 bytes) too much; '
    'compiled and fits: --topology=v5e:4x4 (7.75 GiB left)')


@pytest.mark.parametrize(('options', 'words'), [
  (['--topology=v5e:1x1', '--program=lm'],
   'lm needs 48.00 GiB of 15.75 GiB a device on v5e:1x1, 32.25 GiB (34,628,173,824 bytes) too '
   'much; compiled and fits: --topology=v5e:2x2 --config.mesh.fsdp=4 (3.75 GiB left)'),
  (['--topology=v5e:4x8', '--program=sample', '--smallest'],
   'sample needs 40.25 GiB of 15.75 GiB a device on v5e:4x8, 24.50 GiB (26,306,674,688 bytes) too '
   'much; no slice of v5e fits (v5e:8x8: '),
  (['--topology=v5e:4x8', '--program=debias', '--config.mesh.fsdp=16'],
   'debias needs 99.75 GiB of 15.75 GiB a device on v5e:4x8 with mesh.fsdp=16, 84.00 GiB '
   '(90,194,313,216 bytes) too much; no larger slice of v5e fits, nor with a larger mesh.fsdp (')])
def test_what_does_not_fit_ends_with_one_line_and_code_2(
    options, words, faked, capsys, in_repository):
  faked(8 * GIB, state=40 * GIB, gathered=97 * GIB * ('debias' in words))
  assert cli.main(['tpu', 'compile', '--config=configs/quickstart.py', *options]) == 2
  out, err = capsys.readouterr()
  (line,) = [line for line in err.splitlines() if line.startswith('fairjax: ')]
  assert err.endswith(f'{line}\n') and line.startswith(f'fairjax: {words}') and len(line) < 600
  assert 'not times' in out


# Page.

CELLS = [search.Cell('configs/quickstart.py', 'lm', name) for name in ('v3:8x8', 'v5e:4x4')]


@pytest.mark.usefixtures('in_repository')
def test_the_matrix_resumes_and_compiles_changed_programs_again(tmp_path, monkeypatch):
  keys, compiled = {'v3:8x8': 'a', 'v5e:4x4': 'b'}, []

  def analyse(config, program, where, *, log, cached):
    earlier = cached(keys[where.name])
    if earlier is None:
      if where.name in failing:
        raise KeyboardInterrupt
      compiled.append(where.name)
    return analysis(where.name, memory=where.name == 'v3:8x8'), keys[where.name]

  def run():
    return search.run_matrix(
      CELLS, output=str(tmp_path / 'page.md'), versions={'jax': '0.10.2', 'libtpu': '0.0.52'},
      command='fairjax tpu compile --matrix', log=lambda line: None)

  monkeypatch.setattr(search, 'analyse', analyse)
  old = {'cells': {CELLS[1].name: {'key': 'b', 'result': {'floors': {}}}}}  # of an earlier version
  (tmp_path / 'page.json').write_text(json.dumps(old), encoding='utf-8')
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
  page = search.render(CELLS, results, command='fairjax tpu compile --matrix', date='2026-01-02')
  row = ('| `configs/quickstart.py` | lm: train step | v3:8x8 | 128 | 64 | 3.00 GiB | 15.48 GiB '
         '| yes | 2.00 | 4.0 | 250.0 ms |')
  assert row in page.splitlines()
  assert '| over 20.00 GiB | 15.75 GiB | **no**, 4.25 GiB over | - |' in page
  del results['cells'][CELLS[1].name]
  page += search.render(CELLS, results, command='', date='2026-01-02')
  widths = {line.count('|') for line in page.splitlines() if line.startswith('|')}
  assert len(widths) == 2  # two tables, rows of one length each


@pytest.mark.parametrize('output', ['file/x.md', 'x.json', 'there/page.md', 'no/x.md'])
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_compiled(
    output, tmp_path, monkeypatch, refused):
  def refuse(**options):
    raise PermissionError(errno.EACCES, 'Permission denied')

  def compiles():
    raise AssertionError('it would compile')
  monkeypatch.setattr(command, 'prepare_process', compiles)
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'there' / 'page.json').mkdir(parents=True)
  (tmp_path / 'file').touch()
  if output == 'no/x.md':
    monkeypatch.setattr('tempfile.TemporaryFile', refuse)
  before = sorted(tmp_path.rglob('*'))
  refused(['tpu', 'compile', '--matrix', f'--output={output}'])
  assert sorted(tmp_path.rglob('*')) == before


@pytest.mark.parametrize('content', ['{', '{"cells": {"a": {}}}'])
def test_what_is_no_result_of_a_matrix_is_not_taken_for_one(
    content, tmp_path, in_repository, monkeypatch):
  (tmp_path / 'page.json').write_text(content, encoding='utf-8')
  monkeypatch.setattr(search, 'analyse', lambda *a, **k: pytest.fail('it would compile'))
  with pytest.raises(UserError, match=r'page.json is not what fairjax tpu compile --matrix keeps'):
    search.run_matrix(
      CELLS, output=str(tmp_path / 'page.md'), versions={}, command='', log=lambda line: None)


# Signals.

# A compilation, as a signal sees it: C code that never comes back to Python, nor for a handler.
STUCK = """
import ctypes, sys
from fairjax.cli import tpu_verbs as command
from fairjax.cli.main import main
def stuck(*arguments, **options):
  mutex = ctypes.create_string_buffer(256)
  print('compiling', flush=True)
  for _ in range(2):
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
command.compile_config = command.compile_matrix = stuck
sys.exit(main())
"""


@pytest.mark.parametrize(('number', 'options'), [
  (signal.SIGINT, ['--topology=v5e:2x2', '--config=configs/quickstart.py']),
  (signal.SIGTERM, ['--matrix'])])
def test_a_signal_ends_it_at_once_and_says_what_is_kept(number, options, repository):
  process = subprocess.Popen(
    [sys.executable, '-c', STUCK, 'tpu', 'compile', *options], cwd=repository, text=True,
    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  try:
    assert process.stdout.readline() == 'compiling\n'
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
  finally:
    process.kill()
  assert process.returncode == 128 + number
  assert err.startswith('fairjax: interrupted; ') and err.count('\n') == 1
  assert ('the same command continues' in err) == (options == ['--matrix'])


# The compiler.

@pytest.mark.libtpu
def test_the_tpu_compiler(run_with_libtpu):
  run = functools.partial(run_with_libtpu, '-m', 'fairjax', 'tpu', 'compile')
  done = run('--config=configs/quickstart.py', '--topology=v5e:2x2', '--program=lm', '--json',
             '--config.model.num_layers=3')
  assert done.returncode == 0, done.stderr[-2000:]
  result = json.loads(done.stdout)
  (program,) = result['programs']
  assert program['fits'] and program['mesh'] == {'data': 4} and program['required'] > 2**20
  # Forward and backward products of the layers alone, on 2 of 8 rows of 64 tokens.
  layers = 3 * (128 * 64 * 4 + 2 * 128 * 512)
  assert program['cost']['flops'] > 6 * layers * 2 * 64
  assert result['versions']['libtpu'] == importlib.metadata.version('libtpu')
  # Too large for one chip of v5e, whatever the compiler does.
  done = run('--config=configs/quickstart.py', '--topology=v5e:1x1', '--program=lm',
             '--config.data.vocab_size=20000000')
  assert done.returncode == 2 and 'DOES NOT FIT' in done.stdout, done.stderr[-2000:]
  # Nor for several: the table is gathered whole. What is named was compiled; here nothing is.
  assert 'v5e:2x2 with mesh.fsdp=4: ' in done.stdout and 'v5e:2x4 with mesh.fsdp=8: ' in done.stdout
  (line,) = [line for line in done.stderr.splitlines() if line.startswith('fairjax: ')]
  assert 'GiB of 15.75 GiB a device on v5e:1x1' in line and 'no larger slice of v5e fits' in line


@pytest.mark.libtpu
def test_the_split_that_the_tpu_compiler_is_shown_to_take(run_with_libtpu):
  done = run_with_libtpu(
    '-m', 'fairjax', 'tpu', 'compile', '--config=configs/quickstart.py', '--program=lm',
    '--topology=v5e:1x1', *(f'--config.model.{size}' for size in (
      'num_layers=5', 'model_dim=4096', 'ff_dim=16384', 'num_heads=32', 'head_dim=128')))
  assert done.returncode == 2, done.stderr[-2000:]
  line = done.stderr.splitlines()[-1]
  assert '; compiled and fits: --topology=v5e:2x2 --config.mesh.fsdp=2 (' in line
