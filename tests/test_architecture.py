"""What the linters cannot see of the architecture: what is imported when, and what a wheel holds.

Who may import whom is in `pyproject.toml` (`lint-imports`), what may not be called too (`ruff`).
"""

import ast
import collections
import fnmatch
import pathlib
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / 'fairjax'
MODULES = sorted(PACKAGE.rglob('*.py'))
TENSORFLOW = ('tensorflow', 'tensorflow_text', 'tensorflow_datasets', 'seqio')


def parse(path: pathlib.Path) -> ast.Module:
  return ast.parse(path.read_text(encoding='utf-8'))


def definitions(node: ast.AST, *, public: bool) -> Iterator[tuple[ast.AST, bool]]:
  """Yields (module, class or function, whether it is public); what functions hold is private."""
  yield node, public
  for child in node.body:
    if isinstance(child, ast.ClassDef | ast.FunctionDef):
      inside = public and not isinstance(node, ast.FunctionDef) and not child.name.startswith('_')
      yield from definitions(child, public=inside)


def setup_argument(name: str):
  for node in ast.walk(parse(ROOT / 'setup.py')):
    if isinstance(node, ast.Call) and ast.unparse(node.func) == 'setup':
      return ast.literal_eval(next(k.value for k in node.keywords if k.arg == name))
  raise AssertionError('setup.py calls no setup()')


def run_python(code: str) -> subprocess.CompletedProcess:
  return subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True,
                        timeout=300, stdin=subprocess.DEVNULL)


def test_no_two_modules_share_a_name():
  names = collections.Counter(path.stem for path in MODULES)
  del names['__init__']
  # The verbs' entry point and the page's writer are named after their packages.
  assert {name for name, count in names.items() if count > 1} == set()


def test_help_imports_nothing_but_python_fairjax_and_yaml():
  """So it answers at once: every package that is not needed for it is imported later."""
  result = run_python('''
import sys
before = set(sys.modules)
from fairjax.cli.main import main
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
  for verb in ('run', 'step', 'sample', 'models', 'measure', 'report', 'attributes', 'doctor',
               'tpu'):
    assert f'\n  {verb} ' in result.stdout


def test_every_package_but_data_imports_without_tensorflow():
  names = ['.'.join(p.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')
           for p in MODULES if p.relative_to(PACKAGE).parts[0] not in ('data', '__main__.py')]
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
''')
  assert result.returncode == 0, result.stderr[-2000:]


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
