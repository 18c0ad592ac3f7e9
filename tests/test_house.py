"""The rules of the house: who imports whom, how large files get, what the package never calls.

The rules are read from the source with `ast`, so imports inside functions count too.
"""

import ast
import fnmatch
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / 'fairjax'
MODULES = sorted(PACKAGE.rglob('*.py'))
TENSORFLOW = ('tensorflow', 'tensorflow_text', 'tensorflow_datasets', 'seqio')
MOST_LINES = 400
MOST_FUNCTION_LINES = 80

# Room -> rooms it may import (every room may import itself and EVERYONE).
EVERYONE = {
  'errors', 'files', 'inputs', 'tables', 'journal', 'versions', 'processes', 'signals', 'progress',
  'config', 'config_docs', 'config_files', 'vocabulary'}
ROOMS = {
  'errors': set(),
  'files': set(),
  'inputs': set(),
  'tables': set(),
  'journal': set(),
  'versions': set(),
  'processes': set(),
  'signals': set(),
  'progress': set(),
  'config': {'config_checks'},
  'config_checks': set(),
  'config_docs': set(),
  'config_files': set(),
  'vocabulary': set(),
  'counterfactual': set(),
  'data': {'counterfactual'},
  'model': set(),
  'train': {'model'},
  'generate': {'model', 'counterfactual'},
  'measure': {'counterfactual'},
  'report': {'measure', 'counterfactual'},
  'chips': set(),
  'compile': {'model', 'train', 'generate', 'counterfactual', 'chips'},
  'launch': {'chips'},
  'pretrained': {'model'},
  'classifier': {'pretrained'},
  'finetune': {'pretrained', 'classifier'},
  'masked': {'counterfactual', 'pretrained', 'classifier', 'train'},
  'correlations': {'counterfactual', 'measure', 'pretrained', 'finetune'},
  'fair_generation': {'counterfactual', 'generate', 'measure'},
  # These connect the rooms; no room imports them.
  'job': {'counterfactual', 'data', 'model', 'train', 'generate', 'measure', 'report'},
  'notebook': {'counterfactual', 'data', 'generate', 'job', 'measure', 'report'},
  'commands': {
    'counterfactual', 'data', 'model', 'train', 'compile', 'generate', 'measure', 'report',
    'pretrained', 'classifier', 'finetune', 'masked', 'correlations', 'fair_generation', 'job',
    'launch'},
  'cli': {'commands', 'train'},
  '__main__': {'cli'},
}
# Further rooms that only a function may import, when it runs.
LAZY_ROOMS = {'measure': {'model', 'pretrained'}, 'classifier': {'measure'},
              'correlations': {'job', 'model'}}
# Room -> packages of others at the top of its modules, and those that only functions import.
PACKAGES = {
  'errors': (set(), set()),
  'files': (set(), set()),
  'inputs': (set(), {'compression', 'backports'}),
  'tables': (set(), {'pyarrow'}),
  'journal': (set(), set()),
  'versions': (set(), set()),
  'processes': (set(), {'jax'}),
  'signals': (set(), set()),
  'progress': (set(), {'tqdm'}),
  'config': (set(), set()),
  'config_checks': (set(), set()),
  'config_docs': (set(), set()),
  'config_files': (set(), {'ml_collections'}),
  'vocabulary': ({'numpy'}, {'sentencepiece', 'tokenizers'}),
  'counterfactual': ({'numpy', 'yaml'}, set()),
  'data': ({'numpy', *TENSORFLOW}, set()),
  'model': ({'jax', 'flax', 'numpy', 'jaxtyping'}, set()),
  'train': ({'jax', 'flax', 'optax', 'orbax', 'tensorstore', 'numpy', 'jaxtyping'}, {'clu'}),
  'generate': ({'jax', 'flax', 'numpy', 'jaxtyping'}, {'pyarrow'}),
  'measure': ({'numpy'}, {'scipy', 'jax', 'vaderSentiment', 'textblob', 'google'}),
  'report': ({'numpy'}, {'matplotlib', 'scipy', 'yaml'}),
  'chips': (set(), set()),
  'compile': ({'jax', 'numpy'}, set()),
  'launch': ({'yaml'}, set()),
  'pretrained': ({'jax', 'numpy'}, {'safetensors', 'tokenizers', 'ml_dtypes'}),
  'classifier': ({'jax', 'numpy', 'optax'}, {'safetensors', 'tokenizers'}),
  'finetune': ({'jax', 'numpy', 'optax'}, {'safetensors', 'tokenizers'}),
  'masked': ({'jax', 'numpy', 'optax'}, {'safetensors', 'tokenizers', 'orbax'}),
  'correlations': ({'numpy'}, {'scipy', 'jax', 'optax'}),
  'fair_generation': ({'numpy'}, {'scipy', 'matplotlib'}),
  'job': ({'numpy'}, {'jax', 'safetensors'}),
  'notebook': (set(), {'jax', 'IPython'}),
  'commands': (set(), {'jax'}),
  'cli': (set(), set()),
  '__main__': (set(), set()),
}
# Module -> packages that only its functions may import, beyond its room: each with its reason.
MODULE_PACKAGES = {
  # The Universal Sentence Encoder is a SavedModel, a TensorFlow program: nothing else runs it.
  'measure/universal_encoder.py': {'tensorflow'},
}


def room_of(path: pathlib.Path) -> str:
  return path.relative_to(PACKAGE).parts[0].removesuffix('.py')


def parse(path: pathlib.Path) -> ast.Module:
  return ast.parse(path.read_text(encoding='utf-8'))


def imports(tree: ast.AST, *, lazy: bool = False) -> Iterator[tuple[str, bool, int]]:
  """Yields (dotted name, whether a function does it, line) of every import."""
  for node in ast.iter_child_nodes(tree):
    if isinstance(node, ast.Import):
      yield from ((alias.name, lazy, node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f'relative import in line {node.lineno}'
      if node.module == 'fairjax':
        yield from ((f'fairjax.{alias.name}', lazy, node.lineno) for alias in node.names)
      else:
        yield node.module, lazy, node.lineno
    else:
      inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
      yield from imports(node, lazy=lazy or inside)


def import_faults(path: pathlib.Path, tree: ast.Module) -> list[str]:
  """What a module imports although the tables above do not allow it."""
  room, faults = room_of(path), []
  top, inside = PACKAGES[room]
  inside = inside | MODULE_PACKAGES.get(path.relative_to(PACKAGE).as_posix(), set())
  for name, lazy, line in imports(tree):
    package, *rest = name.split('.')
    if package in sys.stdlib_module_names:
      continue
    if package == 'fairjax':
      allowed = {room, '__version__', *EVERYONE, *ROOMS[room]}
      allowed |= LAZY_ROOMS.get(room, set()) if lazy else set()
      ok = not rest or rest[0] in allowed
    else:
      ok = package in top or (lazy and package in inside)
    if not ok:
      faults.append(f'{path.name}:{line} imports {name}' + (' in a function' if lazy else ''))
  return faults


@pytest.mark.parametrize('path', [p for p in MODULES if p.parent != PACKAGE or p.name !=
                                  '__init__.py'], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_table(path):
  assert room_of(path) in ROOMS, f'{room_of(path)} is a new room: write its imports into the tables'
  assert import_faults(path, parse(path)) == []


@pytest.mark.parametrize(('room', 'code', 'fault'), [
  ('model/x.py', 'import fairjax.train.losses', True),
  ('model/x.py', 'from fairjax import data', True),
  ('model/x.py', 'def f():\n  from fairjax.data.prepare import prepare_data', True),
  ('model/x.py', 'from fairjax.config import ModelConfig', False),
  ('measure/x.py', 'from fairjax.model import evaluate_nll', True),
  ('measure/x.py', 'def f():\n  from fairjax.model import evaluate_nll', False),
  ('measure/x.py', 'def f():\n  import scipy.stats', False),
  ('measure/x.py', 'import jax', True),
  ('train/x.py', 'def f():\n  import seqio', True),
  ('measure/x.py', 'def f():\n  import tensorflow as tf', True),
  ('measure/universal_encoder.py', 'import tensorflow as tf', True),
  ('measure/universal_encoder.py', 'def f():\n  import tensorflow as tf', False),
  ('data/x.py', 'import tensorflow as tf', False),
])
def test_the_import_rule_sees_what_it_should(room, code, fault):
  assert bool(import_faults(PACKAGE / room, ast.parse(code))) == fault


def test_every_room_has_its_line_in_the_tables():
  assert set(ROOMS) == set(PACKAGES)
  rooms = {room_of(path) for path in MODULES} - {'__init__'}
  assert rooms <= set(ROOMS)
  for module in MODULE_PACKAGES:
    assert (PACKAGE / module).is_file(), f'{module} is gone: remove its exception'


def run_python(code: str) -> subprocess.CompletedProcess:
  return subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True,
                        timeout=300, stdin=subprocess.DEVNULL)


def test_help_imports_nothing_but_python_fairjax_and_yaml():
  """So it answers at once: every package that is not needed for it is imported later."""
  result = run_python('''
import sys
before = set(sys.modules)
from fairjax.cli import main
sys.argv = ['fairjax', '--help']
try:
  status = main()
except SystemExit as e:
  status = e.code
imported = {name.partition('.')[0] for name in set(sys.modules) - before}
small = {'fairjax', 'yaml', '_yaml', 'cython_runtime'}
other = {name for name in imported - set(sys.stdlib_module_names) - small
         if not name.startswith('_cython')}
assert not other, other
sys.exit(status)
''')
  assert result.returncode == 0, result.stderr
  for verb in ('run', 'data', 'train', 'sample', 'score', 'measure', 'report', 'attributes',
               'doctor', 'compile'):
    assert f'\n    {verb}' in result.stdout


def test_every_room_but_data_imports_without_tensorflow():
  names = ['.'.join(p.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')
           for p in MODULES if room_of(p) not in ('data', '__main__')]
  result = run_python(f'''
import importlib, sys

class Blocked:
  def find_spec(self, name, path=None, target=None):
    if name.partition('.')[0] in {TENSORFLOW!r}:
      raise ImportError('blocked: ' + name)

sys.meta_path.insert(0, Blocked())
try:
  import tensorflow
except ImportError:
  pass
else:
  raise SystemExit('the block does not work')
for name in {names!r}:
  importlib.import_module(name)
print(len(sys.modules))
''')
  assert result.returncode == 0, result.stderr[-2000:]


FORBIDDEN_IMPORTS = {'pickle', 'cPickle', 'dill', 'cloudpickle', 'joblib', 'shelve', 'marshal'}
FORBIDDEN_CALLS = {
  'eval', 'exec', 'os.system', 'os.popen', 'yaml.load', 'yaml.load_all', 'yaml.full_load',
  'yaml.unsafe_load', 'torch.load', 'subprocess.getoutput', 'subprocess.getstatusoutput',
  'tempfile.mktemp', '__import__',
}
# Archives: tarfile's own filter, and single members of a zip by names that the code knows.
ARCHIVE_CALLS = {'extract', 'extractall', 'unpack_archive'}


def unsafe(tree: ast.AST) -> list[str]:
  """Calls that run or load what somebody else may have written."""
  found = [name for name, _, _ in imports(tree) if name.partition('.')[0] in FORBIDDEN_IMPORTS]
  for node in ast.walk(tree):
    if not isinstance(node, ast.Call):
      continue
    name = ast.unparse(node.func)
    keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
    if name in FORBIDDEN_CALLS:
      found.append(f'{name}( in line {node.lineno}')
    if name in ('np.load', 'numpy.load') and keywords.get('allow_pickle') != 'False':
      found.append(f'np.load without allow_pickle=False in line {node.lineno}')
    if name.rpartition('.')[2] in ARCHIVE_CALLS and keywords.get('filter') != "'data'":
      found.append(f"{name} without filter='data' in line {node.lineno}")
    found += [f'{k}=True in line {node.lineno}'
              for k in ('allow_pickle', 'shell', 'trust_remote_code') if keywords.get(k) == 'True']
  return found


CODE = sorted(p for p in [ROOT / 'setup.py', *MODULES, *ROOT.glob('configs/**/*.py'),
                          *ROOT.glob('launch/**/*.py'), *ROOT.glob('tests/**/*.py')]
              if '__pycache__' not in p.parts)


@pytest.mark.parametrize('path', CODE, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_unsafe_is_called(path):
  assert unsafe(parse(path)) == []


@pytest.mark.parametrize('code', [
  'import pickle', 'from pickle import loads', 'def f():\n  import dill', 'yaml.load(text)',
  'np.load(path)', 'np.load(path, allow_pickle=True)', 'subprocess.run(c, shell=True)',
  'os.system(c)', 'x = eval(text)', 'tar.extractall(d)',
  "shutil.unpack_archive(a, d, filter='tar')", 'zipfile.ZipFile(a).extract(name)',
  'tempfile.mktemp()',
])
def test_the_rule_sees_unsafe_calls(code):
  assert unsafe(ast.parse(code))


def test_the_rule_lets_safe_calls_pass():
  code = 'yaml.safe_load(t); np.load(p, allow_pickle=False); jax.eval_shape(f); model.eval(x)'
  code += "; tarfile.open(a).extractall(d, filter='data'); attribute.extract_words()"
  assert unsafe(ast.parse(code)) == []


@pytest.mark.parametrize('path', MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_sizes_names_and_docstrings(path):
  text, tree = path.read_text(encoding='utf-8'), parse(path)
  assert len(text.splitlines()) <= MOST_LINES, 'is it two rooms?'
  assert path.stem not in ('utils', 'util', 'common', 'helpers', 'helper', 'misc')
  for word in ('TODO', 'FIXME', 'NotImplementedError'):
    assert word not in text
  for node, public in definitions(tree, public=True):
    docstring = ast.get_docstring(node)
    if public and getattr(node, 'name', '') != 'setup':  # Linen's, the class says what it makes
      assert docstring, f'{getattr(node, "name", path.name)} has no docstring'
    if isinstance(node, ast.FunctionDef):
      lines = node.end_lineno - node.lineno + 1
      if docstring:
        lines -= node.body[0].end_lineno - node.body[0].lineno + 1
      assert lines <= MOST_FUNCTION_LINES, f'{node.name} has {lines} lines'


def definitions(node: ast.AST, *, public: bool) -> Iterator[tuple[ast.AST, bool]]:
  """Yields (module, class or function, whether it is public); what functions hold is private."""
  yield node, public
  for child in node.body:
    if isinstance(child, ast.ClassDef | ast.FunctionDef):
      inside = public and not isinstance(node, ast.FunctionDef) and not child.name.startswith('_')
      yield from definitions(child, public=inside)


def setup_argument(name: str):
  """The literal value of a keyword of `setup(...)` in setup.py."""
  for node in ast.walk(parse(ROOT / 'setup.py')):
    if isinstance(node, ast.Call) and ast.unparse(node.func) == 'setup':
      return ast.literal_eval(next(k.value for k in node.keywords if k.arg == name))
  raise AssertionError('setup.py calls no setup()')


def test_the_package_takes_its_data_files_along():
  patterns = setup_argument('package_data')['']
  files = [p for p in PACKAGE.rglob('*') if p.is_file() and '__pycache__' not in p.parts
           and p.suffix != '.py']
  names = {p.relative_to(PACKAGE) for p in files}
  for attribute in ('country', 'occupation', 'name'):
    assert pathlib.Path('counterfactual/assets', f'{attribute}.yaml') in names
  for path in files:
    package = next(q for q in path.parents if (q / '__init__.py').is_file())
    name = path.relative_to(package).as_posix()
    assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns), path


def test_every_folder_of_modules_is_a_package():
  for folder in {path.parent for path in MODULES}:
    assert (folder / '__init__.py').is_file(), folder


def test_the_entry_point_exists():
  (script,) = setup_argument('entry_points')['console_scripts']
  assert script == 'fairjax=fairjax.cli:main'
  names = {n.name for n in parse(PACKAGE / 'cli.py').body if isinstance(n, ast.FunctionDef)}
  assert 'main' in names
