"""What every test shares: eight fake CPU devices, one compilation cache, strict shapes, two paths.

The environment is set before JAX is imported, so that subprocesses of tests inherit it too.
`JAX_PLATFORMS=cuda pytest ...` runs the tests on an accelerator instead.
"""

import gc
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from jax_features import complete_jax, xla_knows

ROOT = pathlib.Path(__file__).resolve().parent.parent

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# XLA ends the process when one of its devices waits for the others longer than this: 40 s are soon
# over where eight share two busy cores.
# Its older emitter writes LLVM's IR at once and compiles in a third of the time; a program that is
# not cut into parts, which many cores would compile at once, in a tenth less.
for flag, value in (('xla_force_host_platform_device_count', 8),
                    ('xla_cpu_use_fusion_emitters', 'false'),
                    ('xla_cpu_parallel_codegen_split_count', 1),
                    ('xla_cpu_collective_call_terminate_timeout_seconds', 1200)):
  if flag not in os.environ.get('XLA_FLAGS', '') and xla_knows(flag):
    os.environ['XLA_FLAGS'] = f"{os.environ.get('XLA_FLAGS', '')} --{flag}={value}".strip()
os.environ['JAX_NUMPY_RANK_PROMOTION'] = 'raise'
if os.environ['JAX_PLATFORMS'] == 'cpu':
  # Nearly all of the time is compiling. LLVM alone does less: XLA's text of a program, its memory
  # and its FLOPs, which some tests read, are those of use.
  os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
  # Most of the time is compiling, and tests, their processes and the workers compile the same
  # programs again. The cache begins empty and ends with this session.
  os.environ['JAX_COMPILATION_CACHE_DIR'] = OWN_CACHE = tempfile.mkdtemp(prefix='fairjax-compiled-')
  os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
else:
  OWN_CACHE = None
# A thread of OpenBLAS that waits for work keeps a core busy, and the workers need all cores.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
os.environ.setdefault('MPLBACKEND', 'Agg')

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  # Started in the background of a shell: what the tests start would ignore Ctrl-C too.
  signal.signal(signal.SIGINT, signal.default_int_handler)

complete_jax()  # imports JAX, which reads the environment

if importlib.util.find_spec('beartype'):
  from jaxtyping import install_import_hook

  # Checks every annotated shape and dtype of the model room while the tests run.
  install_import_hook('fairjax.model', 'beartype.beartype')


# What takes longest runs first, so that no worker of --dist=loadfile is left alone with it at the
# end. Those that compile the same programs stand apart: the later one finds them compiled.
LONG = (
  'run/test_job.py', 'train/test_curriculum.py', 'run/test_notebooks.py', 'train/test_sharding.py',
  'run/test_published.py', 'test_processes.py', 'model/test_decoder.py',
  'pretrained/test_classifier_training.py', 'model/test_transformer_xl.py',
  'pretrained/test_masked_training.py', 'pretrained/test_sample_pretrained.py', 'test_examples.py',
  'test_benchmarks.py', 'test_readme.py', 'tpu/test_launch_supervise.py', 'tpu/test_cost.py',
  'train/test_steps.py')


def pytest_configure(config):
  """Leaves the order of the files as it is; xdist would begin with those of the most tests."""
  config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
  """Puts the long files first."""
  place = {ROOT / 'tests' / name: k for k, name in enumerate(LONG)}
  items.sort(key=lambda item: place.get(item.path, len(LONG)))


def pytest_unconfigure():
  """Removes the cache where this process made it: of parallel runs, the one that starts them."""
  if OWN_CACHE:
    shutil.rmtree(OWN_CACHE, ignore_errors=True)


def pytest_collection_finish():
  """Leaves what was imported out of the collections of garbage, which take 8 % of the time."""
  gc.collect()
  gc.freeze()
  gc.set_threshold(50_000, 20, 100)


@pytest.fixture(scope='module', autouse=True)
def compiled_programs_end_with_their_module():
  """Thousands of programs that no later test runs would fill the memory."""
  yield
  sys.modules['jax'].clear_caches()
  gc.collect()
  gc.freeze()  # what is left stays: no later collection walks it


@pytest.fixture(scope='session')
def repository() -> pathlib.Path:
  """Root of the repository."""
  return ROOT


@pytest.fixture(scope='session')
def check_keys() -> Callable[[Any, str], None]:
  """Checks what was written against a part of the published schema, which must hold every key."""
  import jsonschema
  text = (ROOT / 'fairjax/report/assets/report.schema.json').read_text(encoding='utf-8')
  schema = json.loads(text, object_hook=lambda part: (
    part | {'additionalProperties': False} if 'properties' in part else part))
  return lambda found, part: jsonschema.validate(found, schema | {'$ref': f'#/$defs/{part}'})


@pytest.fixture(scope='session')
def test_data() -> pathlib.Path:
  """Folder of real corpora and lexicons; tests that need it are skipped where it is absent."""
  folder = pathlib.Path(os.environ.get('FAIRJAX_TEST_DATA') or ROOT.parent / 'shared' / 'data')
  if not folder.is_dir():
    pytest.skip(f'no real test data at {folder}: set FAIRJAX_TEST_DATA')
  return folder


def _without_figures():
  """Leaves the figures, a quarter of a tiny run, out of tests that are about text."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr('fairjax.report.report._draw', lambda *arguments: [])
    yield


no_figures = pytest.fixture(_without_figures)
no_figures_in_module = pytest.fixture(_without_figures, scope='module')


def _in_repository():
  """Paths of the repository in a command are found; the working directory comes back."""
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(ROOT)
    yield


in_repository = pytest.fixture(_in_repository)
in_repository_in_module = pytest.fixture(_in_repository, scope='module')


@pytest.fixture(scope='module')
def one_device():
  """Leaves one device to runs of which it is not asked whether eight compute the same."""
  jax = sys.modules['jax']
  with pytest.MonkeyPatch.context() as patch:
    for name in ('devices', 'local_devices'):
      every = getattr(jax, name)
      patch.setattr(jax, name, lambda *a, every=every, **k: every(*a, **k)[:1])
    yield


@pytest.fixture
def refused(capsys) -> Callable[..., str]:
  """Calls the command line, which must refuse with 2 and a line of certain words."""
  from fairjax.cli.main import main

  def check(command, *words, alone=True):  # if not, lines of what was done come before it
    capsys.readouterr()
    assert main([*map(str, command)]) == 2
    error = capsys.readouterr().err
    (line,) = [part for part in error.splitlines() if part.startswith('fairjax: ')]
    assert error == f'{line}\n' or not alone and error.endswith(f'\n{line}\n'), error
    assert 'Traceback' not in error and all(w in line for w in words), error
    return line

  return check


@pytest.fixture
def printed(capsys) -> Callable[..., str]:
  """Calls the command line, which must end with 0: what it prints."""
  from fairjax.cli.main import main

  def call(*command):
    capsys.readouterr()
    assert main([*map(str, command)]) == 0
    return capsys.readouterr().out

  return call


@pytest.fixture
def found(printed) -> Callable[..., Any]:
  """Calls the command line with `--json`: the object that it prints."""
  return lambda *command: json.loads(printed(*command, '--json'))


@pytest.fixture
def run_with_libtpu(repository) -> Callable[..., subprocess.CompletedProcess[str]]:
  """Runs Python with some arguments in a process of its own, where libtpu may be loaded.

  It is loaded once a process, and never for tests that do not need it. Fake CPU devices are left
  out, and nobody asks for a TPU's addresses.
  """
  if importlib.util.find_spec('libtpu') is None:
    pytest.skip('the TPU compiler is not installed: pip install libtpu')
  environment = {k: v for k, v in os.environ.items() if k not in (
    'XLA_FLAGS', 'JAX_DISABLE_MOST_OPTIMIZATIONS')} | {
    'JAX_PLATFORMS': 'cpu', 'TPU_SKIP_MDS_QUERY': '1', 'TPU_WORKER_HOSTNAMES': 'localhost',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
    'PYTHONPATH': f'{repository}{os.pathsep}{os.environ.get("PYTHONPATH", "")}'}

  def run(*arguments):
    return subprocess.run([sys.executable, *arguments], cwd=repository, env=environment, text=True,
                          capture_output=True, timeout=600, stdin=subprocess.DEVNULL)

  return run
