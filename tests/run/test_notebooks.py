"""The notebooks: what they hold, and that each runs without TensorFlow and shows its numbers."""

import ast
import importlib.metadata
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import nbclient
import nbformat
import pytest
from groups import flags
from packaging.requirements import Requirement
from record_cases import records_of, write_lines
from test_architecture import TENSORFLOW, setup_argument

import fairjax
from fairjax.cli import main as cli
from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.run.export import read_folder

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ('quickstart', 'tradeoff', 'evaluate')
PATHS = {name: ROOT / 'notebooks' / f'{name}.ipynb' for name in NAMES}
ABSENT = (*TENSORFLOW, 'clu', 'tensorboard', 'torch', 'jinja2')
# Runs before the first cell: the packages cannot be found, as where they are not installed.
WITHOUT = f'''
import gc, sys

gc.set_threshold(50_000, 20, 100)  # as in tests/conftest.py

class Without:
  def __init__(self, finder):
    self.finder = finder
  def find_spec(self, name, path=None, target=None):
    if name.partition('.')[0] in {ABSENT!r}:
      return None
    return self.finder.find_spec(name, path, target)
  def __getattr__(self, name):
    return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
'''


def read(name: str) -> nbformat.NotebookNode:
  return nbformat.read(PATHS[name], as_version=nbformat.NO_CONVERT)


def cells(name: str, kind: str) -> list[str]:
  return [cell.source for cell in read(name).cells if cell.cell_type == kind]


def test_every_notebook_is_tested():
  assert sorted((ROOT / 'notebooks').glob('*.ipynb')) == sorted(PATHS.values())


@pytest.mark.parametrize('name', NAMES)
def test_the_file_is_stripped_and_complete(name):
  notebook = read(name)
  nbformat.validate(notebook)
  assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
  assert notebook.metadata.kernelspec.name == 'python3'
  for cell in notebook.cells:
    assert set(cell.metadata) <= {'tags', 'cellView'} and cell.source.strip()
    if cell.cell_type == 'code':
      assert cell.outputs == [] and cell.execution_count is None


@pytest.mark.parametrize('name', NAMES)
def test_files_and_commands_in_the_text_exist(name):
  text = '\n\n'.join(cells(name, 'markdown'))
  files = re.findall(r'`((?:docs|fairjax|notebooks|configs)/[\w./]+|README\.md)`', text)
  files += [f'notebooks/{n}' for n in re.findall(r'`(\w+\.ipynb)`', text)]
  assert files
  for file in files:
    assert (ROOT / file).exists(), file
  for line in re.findall(r'^fairjax .*$', text, re.M):
    assert cli.parse(shlex.split(line)[1:]).verb


@pytest.mark.parametrize('name', NAMES)
def test_cells_use_the_public_interface(name):
  for source in cells(name, 'code')[1:]:
    for node in ast.walk(ast.parse(source)):
      assert getattr(node, 'attr', '') != 'style'  # needs jinja2
      assert not (isinstance(node, ast.ImportFrom) and node.module.startswith('fairjax'))
      if isinstance(node, ast.Attribute) and getattr(node.value, 'id', '') == 'fairjax':
        assert node.attr in fairjax.__all__


# The install cell: the only one with logic, since the package is not there yet.


def test_the_install_cell_is_one():
  assert len({cells(name, 'code')[0] for name in NAMES}) == 1
  assert 'tensorflow' not in cells('evaluate', 'code')[0].lower()


def run_install_cell(folder, *, missing, source=''):
  """Runs the cell; pip is replaced by a recorder that prints its arguments."""
  cell = cells('evaluate', 'code')[0].replace("SOURCE = ''", f'SOURCE = {source!r}')
  prelude = ['import importlib.util, json, subprocess',
             'subprocess.run = lambda words, check: print(json.dumps(words))']
  if missing:
    prelude.append('importlib.util.find_spec = lambda name: None')
  (folder / 'cell.py').write_text('\n'.join([*prelude, cell]), encoding='utf-8')
  return subprocess.run([sys.executable, folder / 'cell.py'], capture_output=True, text=True,
                        check=False, timeout=60, cwd=ROOT)


def test_the_install_cell_installs_what_is_missing_and_keeps_what_the_runtime_brings(tmp_path):
  done = run_install_cell(tmp_path, missing=False)
  assert (done.returncode, done.stdout, done.stderr) == (0, '', '')
  done = run_install_cell(tmp_path, missing=True)
  assert done.returncode == 1 and done.stderr.startswith('Set SOURCE: ')
  done = run_install_cell(tmp_path, missing=True, source='git+https://example.org/x')
  assert done.returncode == 0, done.stderr
  words = json.loads(done.stdout)
  assert words[:5] == [sys.executable, '-m', 'pip', 'install', '--quiet']
  assert words[5] == 'git+https://example.org/x'
  installed = {name: importlib.metadata.version(name) for name in ('jax', 'jaxlib', 'numpy')}
  assert {f'{name}=={version}' for name, version in installed.items()} <= set(words[6:])
  assert not [w for w in words if 'tensorflow' in w or w in ('-U', '--upgrade')]


def test_the_notebooks_install_the_jax_of_setup_for_tpus():
  (tpu,) = setup_argument('extras_require')['tpu']
  (jax,) = (r for r in map(Requirement, setup_argument('install_requires')) if r.name == 'jax')
  assert Requirement(tpu).specifier == jax.specifier
  assert all(f'"{tpu}"' in cells(name, 'markdown')[1] for name in NAMES)


# Each notebook as a reader runs it.


@pytest.fixture(scope='module')
def execute(tmp_path_factory):
  """Runs a notebook, with other parameters, in a folder of its own and without TensorFlow."""
  def run(name, **parameters):
    folder = tmp_path_factory.mktemp(name)
    startup = folder / 'ipython' / 'profile_default' / 'startup'
    startup.mkdir(parents=True)
    (startup / '00-without.py').write_text(WITHOUT, encoding='utf-8')
    notebook = read(name)
    for cell in notebook.cells:
      if 'parameters' in cell.metadata.get('tags', ()):
        for key, value in parameters.items():
          cell.source, found = re.subn(
            rf'^{key} = .*$', lambda match, k=key, v=value: f'{k} = {v!r}', cell.source, flags=re.M)
          assert found == 1
    # They train for a thousand steps: LLVM's first level costs less than it saves.
    env = os.environ | {
      'IPYTHONDIR': str(folder / 'ipython'), 'JAX_DISABLE_MOST_OPTIMIZATIONS': '0',
      'XLA_FLAGS': f'{flags()} --xla_backend_optimization_level=1 '
                   '--xla_llvm_disable_expensive_passes=true'}
    env.pop('MPLBACKEND', None)
    client = nbclient.NotebookClient(
      notebook, timeout=600, kernel_name='python3', resources={'metadata': {'path': str(folder)}})
    client.execute(env=env)
    return Shown(notebook, folder)

  return run


class Shown:
  """What a notebook shows."""

  def __init__(self, notebook, folder):
    self.folder = folder
    self.outputs = [output for cell in notebook.cells if cell.cell_type == 'code'
                    for output in cell.outputs]

  def of(self, kind: str) -> list[str]:
    """Contents of one MIME type, in order."""
    return [o.data[kind] for o in self.outputs if 'data' in o and kind in o.data]

  @property
  def noise(self) -> list:
    """What was printed, warned or logged where nothing should be."""
    return [o for o in self.outputs if o.output_type in ('stream', 'error')]

  def has(self, *texts: str) -> bool:
    """Whether one shown table or line holds all of them."""
    return any(all(text in shown for text in texts)
               for kind in ('text/html', 'text/plain') for shown in self.of(kind))


@pytest.fixture(scope='module')
def quickstart(execute):
  return execute('quickstart')


@pytest.fixture(scope='module')
def evaluated(execute, quickstart):
  return execute('evaluate', CHECKPOINT=str(quickstart.folder / 'fairjax-quickstart'),
                 ATTRIBUTE=str(ROOT / 'fairjax/counterfactual/assets/country.yaml'),
                 SCORERS='vader', SAMPLES=20)


def test_evaluate_measures_a_checkpoint_without_tensorflow(evaluated):
  assert evaluated.noise == []
  report = evaluated.folder / 'fairjax-evaluation' / 'report'
  assert (report.parent / 'baseline-country.jsonl.gz').is_file()
  assert (report / 'index.html').is_file()
  (saved,) = json.loads((report / 'report.json').read_text())['rows']
  assert saved['measures']['records'] == 2000 and saved['measures']['coupled']
  found = saved['measures']['scorers']['vader']['individual_fairness']
  assert 0 < found['null_p95'] < found['value'] < 1
  assert (found['n_min'], found['permutations']) == (20, 200)
  assert evaluated.has(  # what is shown is what the report holds
    'I.F. vader', f"{found['value']:.4f} ({found['null_p95']:.4f}), above noise")
  assert evaluated.has('By scorer vader', 'above noise, n = 20')
  assert len(evaluated.of('image/png')) == 2


@pytest.mark.weekly
def test_evaluate_trains_a_model_of_its_own(execute):
  shown = execute('evaluate')
  assert shown.noise == [] and shown.has('I.F. textblob', 'noise')
  assert (shown.folder / 'fairjax-evaluation' / 'tiny' / 'report' / 'index.html').is_file()


def test_evaluate_measures_a_file_of_anyone(execute, tmp_path):
  write_lines(tmp_path / 'texts.jsonl', records_of(  # the same for every country
    load_attribute('country'), 20, lambda p, i: 'wonderful.' if i % 2 else 'terrible.'))
  shown = execute('evaluate', RECORDS=str(tmp_path / 'texts.jsonl'), SCORERS='vader')
  assert shown.noise == []
  assert shown.has('I.F. vader', '0.0000 (0.0000), within noise')
  assert not (shown.folder / 'fairjax-evaluation' / 'tiny').exists()


def test_quickstart_recovers_the_planted_bias_and_lowers_it(quickstart, tmp_path):
  assert quickstart.noise == []
  figures = quickstart.folder / 'fairjax-quickstart' / 'report' / 'figures'
  assert {p.suffix for p in figures.iterdir()} == {'.png', '.svg'}
  run = fairjax.run('tutorial:strength=0.9,samples=50,seed=0', log=lambda line: None,
                    workdir=quickstart.folder / 'fairjax-quickstart',
                    fields={'debias.variants': ('embedding:10',)})
  known = run.to_frame('known').set_index('measure').loc['individual_fairness']
  assert known.closed_form == pytest.approx(0.9 * 11 / 27, abs=1e-4)
  assert known.floor < 0.5 * known.closed_form < known.value < 1.2 * known.closed_form
  models = run.to_frame().query("scorer == 'opinion'").set_index('model')
  before, after = models.loc['baseline'], models.loc['country-embedding-10']
  assert after.individual_fairness < 0.5 * before.individual_fairness
  assert before.perplexity < after.perplexity < 1.3 * before.perplexity
  assert after.kl < before.kl and before.verdict == 'above noise'
  # What the notebook shows.
  assert quickstart.has('baseline', 'country-embedding-10', f'{after.individual_fairness:.6f}')
  assert quickstart.has('closed_form', f'{known.value:.6f}')
  assert quickstart.has('I.F. opinion', f'{before.individual_fairness:.4f} ({before.floor:.4f})')
  assert quickstart.has('Chile', 'Iceland') and len(quickstart.of('image/png')) == 2
  # The texts of a result are records, whose scores give the same number.
  texts = run.result().to_frame('texts')
  again = fairjax.measure(texts, attribute='country', scorers=['recorded:opinion'],
                          permutations=200).to_frame()
  assert again['value'].iloc[0] == before.individual_fairness
  assert again['null_p95'].iloc[0] == before.floor
  with pytest.raises(UserError, match='is no adapter'):
    run.export(tmp_path / 'model', model='country-embedding-10', adapter=True)
  run.export(tmp_path / 'model', model='country-embedding-10')
  assert read_folder(tmp_path / 'model').metadata['model'] == 'country-embedding-10'
  (refused,) = run.select(share=0.25, relevance='next_token_divergence').refused
  assert 'KL fell to' in refused


@pytest.mark.weekly
def test_tradeoff_shows_the_curve_and_refuses_erasure(execute):
  shown = execute('tradeoff')
  assert shown.noise == []
  report = json.loads((shown.folder / 'fairjax-tradeoff/report/report.json').read_text())
  found = {row['name']: row['measures']['scorers']['opinion']['individual_fairness']
           for row in report['rows']}
  names = [f'country-embedding-{weight}' for weight in (1, 10, 1000)]
  assert list(found) == ['baseline', *names]
  assert found[names[0]]['value'] > found[names[0]]['null_p95']
  assert found[names[2]]['value'] < 0.25 * found['baseline']['value']
  assert shown.has('refused', 'KL fell to') and shown.has('n_min', 'null_p95')
  assert len(shown.of('image/png')) == 4
