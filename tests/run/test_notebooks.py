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
from test_architecture import TENSORFLOW, setup_argument
from test_notebook import write_texts

from fairjax.cli import main as cli

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ('quickstart', 'tradeoff', 'evaluate')
PATHS = {name: ROOT / 'notebooks' / f'{name}.ipynb' for name in NAMES}
# What Colab's runtimes brought on 2026-08-19: googlecolab/backend-info on GitHub (CPU, GPU, TPU).
COLAB = {'python': '3.13', 'jax': '0.7.2', 'flax': '0.11.2', 'optax': '0.2.8',
         'orbax-checkpoint': '0.12.4', 'numpy': '2.1.3'}
ABSENT = (*TENSORFLOW, 'clu', 'tensorboard', 'torch')
# Runs before the first cell: the packages cannot be found, as where they are not installed.
WITHOUT = f'''
import sys

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
  assert notebook.metadata.kernelspec.language == 'python'
  ids = [cell.id for cell in notebook.cells]
  assert len(set(ids)) == len(ids)
  for cell in notebook.cells:
    assert set(cell.metadata) <= {'tags', 'cellView'}
    assert cell.source.strip()
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
def test_the_parameters_are_literals_with_fields(name):
  (cell,) = [c for c in read(name).cells if 'parameters' in c.metadata.get('tags', ())]
  title, *lines = cell.source.splitlines()
  assert title.startswith('#@title ')
  for line in lines:
    assert re.fullmatch(r'[A-Z]+ = .*  #@param (\[.*\] )?\{.*\}', line), line
    ast.literal_eval(line.partition(' = ')[2])
  text = '\n'.join(cells(name, 'markdown'))
  assert all(f'`{line.split()[0]}`' in text or line.startswith('SEED') for line in lines)


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


def test_the_install_cell_leaves_an_installed_package_alone(tmp_path):
  done = run_install_cell(tmp_path, missing=False)
  assert (done.returncode, done.stdout, done.stderr) == (0, '', '')


def test_the_install_cell_keeps_what_the_runtime_brings(tmp_path):
  done = run_install_cell(tmp_path, missing=True, source='git+https://example.org/x')
  assert done.returncode == 0, done.stderr
  words = json.loads(done.stdout)
  assert words[:5] == [sys.executable, '-m', 'pip', 'install', '--quiet']
  assert words[5] == 'git+https://example.org/x'
  installed = {name: importlib.metadata.version(name) for name in ('jax', 'jaxlib', 'numpy')}
  assert {f'{name}=={version}' for name, version in installed.items()} <= set(words[6:])
  assert not [w for w in words if 'tensorflow' in w or w in ('-U', '--upgrade')]


def test_the_package_takes_what_colab_brings():
  needed = {r.name: r for r in map(Requirement, setup_argument('install_requires'))}
  needed['python'] = Requirement('python' + setup_argument('python_requires'))
  for name, version in COLAB.items():
    assert version in needed[name].specifier, f'{needed[name]} refuses {version}'
  (tpu,) = setup_argument('extras_require')['tpu']
  assert Requirement(tpu).specifier == needed['jax'].specifier
  assert all(f'"{tpu}"' in cells(name, 'markdown')[1] for name in NAMES)


def test_the_install_cell_asks_for_a_source(tmp_path):
  done = run_install_cell(tmp_path, missing=True)
  assert done.returncode == 1 and done.stderr.startswith('Set SOURCE: ')


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
    # Compiled as a reader's: 1,600 steps of step 1 pay for it.
    env = os.environ | {'IPYTHONDIR': str(folder / 'ipython'), 'XLA_FLAGS': flags(),
                        'JAX_DISABLE_MOST_OPTIMIZATIONS': '0'}
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

  def table(self, *columns: str) -> list[dict[str, str]]:
    """Rows of the only table with these columns."""
    (found,) = [rows for rows in map(parse_table, self.of('text/markdown'))
                if rows and set(columns) <= set(rows[0])]
    return found


def parse_table(text: str) -> list[dict[str, str]]:
  lines = [line for line in text.splitlines() if line.startswith('|')]
  parts = [[part.strip() for part in line.strip('| ').split(' | ')] for line in lines]
  return [dict(zip(parts[0], row, strict=False)) for row in parts[2:]]


def value_and_floor(text: str) -> tuple[float, float]:
  found = re.match(r'([\d.]+) \(([\d.]+)\)', text)
  return float(found[1]), float(found[2])


@pytest.fixture(scope='module')
def quickstart(execute):
  return execute('quickstart')


@pytest.fixture(scope='module')
def evaluated(execute, quickstart):
  return execute('evaluate', CHECKPOINT=str(quickstart.folder / 'fairjax-quickstart'))


def test_evaluate_measures_a_checkpoint_without_tensorflow(evaluated):
  assert evaluated.noise == []
  rows = {row['measure']: row for row in evaluated.table('measure', 'value (floor)')}
  assert list(rows) == ['I.F. opinion', 'G.F. opinion', 'I.F. vader', 'G.F. vader']
  for row in rows.values():
    value, floor = value_and_floor(row['value (floor)'])
    assert 0 < floor < value < 1 and 0 < float(row['less noise']) < value
    assert row['value (floor)'].endswith('), above noise') and row['n'] == '50'
  (verdict,) = [text for text in evaluated.of('text/markdown') if 'By scorer opinion' in text]
  assert 'above noise, n = 50' in verdict
  # What is shown is what the report holds.
  report = evaluated.folder / 'fairjax-evaluation' / 'report-country'
  assert (report / 'index.html').is_file()
  (saved,) = json.loads((report / 'report.json').read_text())['rows']
  found = saved['measures']['scorers']['opinion']['individual_fairness']
  assert rows['I.F. opinion']['value (floor)'] == (
    f"{found['value']:.4f} ({found['null_p95']:.4f}), above noise")
  assert (found['n_min'], found['permutations']) == (50, 200)
  assert saved['measures']['records'] == 5000 and saved['measures']['coupled']


@pytest.mark.weekly
def test_evaluate_trains_a_model_of_its_own_and_shows_how_far_it_is(execute):
  shown = execute('evaluate')
  (progress,) = [html for html in shown.of('text/html') if 'Finding the texts' in html]
  assert progress.count('<details>') == 1 and 'step 1600/1600' in progress
  assert float({r['measure']: r for r in shown.table('measure', 'value', 'note')}['PPL'][
    'value']) < 6


def test_evaluate_shows_what_beside_sentiment_was_measured(evaluated):
  rows = {row['measure']: row for row in evaluated.table('measure', 'value', 'note')}
  words, floor = value_and_floor(rows['words, bits (floor)']['value'])
  assert 0 < floor < words
  assert float(rows['KL of the next token, nats']['value']) > 0
  assert 3 < float(rows['PPL']['value']) < 6
  assert len(evaluated.of('image/png')) == 2


def test_evaluate_measures_a_file_of_anyone(execute, tmp_path):
  write_texts(tmp_path / 'texts.jsonl', effect=0.0)
  shown = execute('evaluate', RECORDS=str(tmp_path / 'texts.jsonl'), SCORERS='vader')
  assert shown.noise == []
  individual, _ = shown.table('measure', 'value (floor)')
  assert individual['value (floor)'] == '0.0000 (0.0000), within noise' and individual['n'] == '20'
  rows = {row['measure']: row for row in shown.table('measure', 'value', 'note')}
  assert rows['PPL']['value'] == rows['KL of the next token, nats']['value'] == 'not measured'
  assert not (shown.folder / 'fairjax-evaluation' / 'tiny').exists()


def test_quickstart_recovers_the_planted_bias_and_lowers_it(quickstart):
  shown = quickstart
  assert shown.noise == []
  planted = 0.9 * 11 / 27
  truth, baseline = shown.table('model', 'of the closed form')
  assert float(truth['I.F. (floor)']) == pytest.approx(planted, abs=1e-4)
  value, floor = value_and_floor(baseline['I.F. (floor)'])
  assert floor < 0.5 * planted < value < 1.2 * planted
  before, after = shown.table('model', 'PPL', 'KL')
  assert (before['model'], after['model']) == ('baseline', 'embedding-10')
  assert value_and_floor(after['I.F. (floor)'])[0] < 0.5 * value_and_floor(
    before['I.F. (floor)'])[0]
  assert float(before['PPL']) < float(after['PPL']) < 1.3 * float(before['PPL'])
  assert float(after['KL']) < float(before['KL'])
  probabilities = [float(row['P(positive)']) for row in shown.table('value', 'a document')]
  assert probabilities == [0.05, 0.55, 0.95]
  pairs = shown.table('model', 'prompt', 'Chile', 'Iceland')
  assert [row['model'] for row in pairs] == 6 * ['baseline', 'embedding-10']
  assert len(shown.of('image/png')) == 2


@pytest.mark.weekly  # its functions: test_notebook.py; its refusal: test_selection.py
def test_tradeoff_shows_the_curve_and_refuses_erasure(execute):
  shown = execute('tradeoff')
  assert shown.noise == []
  rows = shown.table('model', 'PPL', 'KL')
  names = [f'embedding-{weight}' for weight in (1, 10, 1000)]
  assert [row['model'] for row in rows] == ['baseline', *names]
  baseline, *models = [value_and_floor(row['I.F. (floor)']) for row in rows]
  assert baseline[0] > baseline[1] and rows[0]['I.F. (floor)'].endswith('), above noise')
  assert models[0][0] > models[1][0] and models[-1][0] < 0.25 * baseline[0]
  refused = {row['model']: row['refused because'] for row in shown.table('model', 'KL kept')}
  assert 'KL fell to' in refused['country-embedding-1000']
  (words,) = [text for text in shown.of('text/markdown') if text.startswith('The fairest model')]
  assert "at least 25% of the baseline's KL: country-embedding-1." in words
  assert len(shown.of('image/png')) == 2
