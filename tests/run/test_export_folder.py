"""Models as folders: written with everything that belongs to them, read back bit for bit."""

import json
import os
import pathlib
import shlex
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from fairjax.cli.main import VERBS, main
from fairjax.config import MeshConfig, ModelConfig
from fairjax.config_io import load_config
from fairjax.errors import UserError
from fairjax.processes import StopSignal
from fairjax.report.document import escape
from fairjax.run.export import read_folder, read_tensors, to_params, to_tensors, write_tensors
from fairjax.run.job import Job
from fairjax.run.results import open_run
from fairjax.train import make_mesh, params_template

TINY = {
  'data.planted_documents': 300, 'data.planted_heldout_documents': 20, 'data.vocab_size': 500,
  'model.num_layers': 2, 'model.model_dim': 16, 'model.num_heads': 2, 'model.head_dim': 8,
  'model.ff_dim': 16, 'model.segment_len': 16, 'model.memory_len': 8, 'model.dtype': 'bfloat16',
  'model.vocab_multiple': 64, 'lm.batch_size': 8, 'lm.eval_batches': 1, 'until': 'lm'}
FIELDS = [f'--config.{name}={value}' for name, value in TINY.items()]


def run(verb, workdir, *more, config='configs/quickstart.py'):
  fields = FIELDS if config.endswith('.py') else []
  return main([verb, f'--config={config}', f'--workdir={workdir}', *map(str, more), *fields])


@pytest.fixture(scope='module')
def trained(tmp_path_factory, repository):
  """A workdir with a language model, whose parameters nobody trained."""
  os.chdir(repository)
  workdir = tmp_path_factory.mktemp('trained') / 'run'
  job = Job(load_config('configs/quickstart.py', {k: str(v) for k, v in TINY.items()}), workdir)
  random = np.random.default_rng(0)
  params = jax.tree.map(lambda leaf: random.normal(0, 0.1, leaf.shape).astype(leaf.dtype),
                        params_template(job.model_config, job.mesh))
  job.curriculum(StopSignal()).import_lm(params, source={'by': 'a test'})
  return workdir


@pytest.fixture(scope='module')
def exported(trained):
  folder = trained.parent / 'exported'
  assert run('export', trained, f'--output={folder}', '--license=apache-2.0') == 0
  return folder


@pytest.fixture
def copy(exported, tmp_path):
  """A copy of the folder that a test may change."""
  return pathlib.Path(shutil.copytree(exported, tmp_path / 'copy'))


def digest(workdir):
  return json.loads((workdir / 'lm' / 'DONE').read_text())['digest']


@pytest.mark.tf
def test_an_imported_model_is_the_exported_one_bit_for_bit(trained, exported, tmp_path, capsys):
  again = tmp_path / 'again'
  assert run('import', again, f'--from={exported}', config=f'{exported}/config.json') == 0
  assert 'validation perplexity' in capsys.readouterr().out
  assert digest(again) == digest(trained)
  one, two = (run.params(run.find_model('baseline')) for run in map(open_run, (trained, again)))
  for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(two),
                          strict=True):
    assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes(), path
  for name in ('spiece.model', 'vocabulary.json'):
    contents = {(folder / name).read_bytes() for folder in (
      exported / 'vocabulary', trained / 'data' / 'vocabulary', again / 'data' / 'vocabulary')}
    assert len(contents) == 1
  # What came in is told when it goes out again, under the same bytes.
  out = tmp_path / 'out'
  assert run('export', again, f'--output={out}', config=f'{exported}/config.json') == 0
  assert (out / 'model.safetensors').read_bytes() == (exported / 'model.safetensors').read_bytes()
  card = (out / 'README.md').read_text()
  assert f'trained elsewhere: digest {digest(trained)}' in card and 'License' in card
  assert run('import', again, f'--from={exported}', config=f'{exported}/config.json') == 2
  assert 'has none yet' in capsys.readouterr().err


@pytest.mark.tf
def test_the_folder_says_what_the_model_is(trained, exported):
  config = json.loads((exported / 'config.json').read_text())
  assert config['export']['digest'] == digest(trained)
  tensors = load_file(exported / 'model.safetensors')
  assert tensors['layers.query'].shape == (2, 16, 2, 8)
  assert len(tensors['embedding']) % 64 == 0
  found = read_folder(exported)
  assert len(tensors['embedding']) > found.vocabulary.size == found.config.model.vocab_size
  text = (exported / 'README.md').read_text(encoding='utf-8')
  _, head, body = text.split('---\n', 2)
  front = yaml.safe_load(head)
  assert front == {
    'language': ['en'], 'license': 'apache-2.0', 'library_name': 'fairjax',
    'pipeline_tag': 'text-generation', 'metrics': ['perplexity'],
    'tags': ['fairjax', 'jax', 'transformer-xl', 'fairness', 'counterfactual-sentiment-bias']}
  assert 'was not measured' in body and '## Limits' in body and '## License' not in body
  assert escape(digest(trained)) in body


@pytest.mark.tf
def test_the_examples_of_the_help_work(trained, tmp_path, monkeypatch):
  shutil.copytree(trained, tmp_path / 'runs' / 'quickstart')
  (tmp_path / 'configs').symlink_to(pathlib.Path('configs').absolute())
  monkeypatch.chdir(tmp_path)
  assert main([*shlex.split(VERBS['export'].example)[1:], *FIELDS]) == 0
  shutil.rmtree(tmp_path / 'runs' / 'quickstart')
  assert main([*shlex.split(VERBS['import'].example)[1:], *FIELDS]) == 0
  assert digest(tmp_path / 'runs' / 'quickstart') == digest(trained)


def test_tensors_keep_every_bit_of_every_dtype(tmp_path):
  bits = np.arange(1 << 16, dtype=np.uint16)  # every bfloat16: NaNs, infinities, -0.0
  params = {'layers': {'a': bits.view(ml_dtypes.bfloat16).reshape(256, 256).T,
                       'b': np.array([[np.nan, -0.0], [5e-324, np.inf]])[:, ::-1]},
            'c': np.float32(1.5), 'd': np.zeros((0, 3), np.float16)}
  write_tensors(tmp_path / 'x.safetensors', to_tensors(params))
  found = read_tensors(tmp_path / 'x.safetensors')
  for name, value in (('layers.a', params['layers']['a']), ('layers.b', params['layers']['b']),
                      ('c', params['c']), ('d', params['d'])):
    assert found[name].dtype == value.dtype and found[name].shape == value.shape
    assert found[name].tobytes() == np.ascontiguousarray(value).tobytes()


def test_tensors_that_do_not_fit_are_named_with_shapes_and_dtypes():
  model = ModelConfig(vocab_size=10, num_layers=1, model_dim=4, num_heads=1, head_dim=4, ff_dim=8)
  template = params_template(model, make_mesh(MeshConfig()))
  tensors = to_tensors(jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), template))
  assert jax.tree.structure(to_params(tensors, model, where='w')) == jax.tree.structure(template)
  tensors['softmax_bias'] = np.zeros(10, ml_dtypes.bfloat16)
  tensors['embedding'] = np.zeros((9, 4), np.float32)
  tensors['extra'] = tensors.pop('layers.query')
  with pytest.raises(UserError) as error:
    to_params(tensors, model, where='w')
  assert str(error.value) == (
    'w does not fit its configuration: embedding is float32 (9, 4) instead of float32 (10, 4); '
    'extra is float32 (1, 4, 1, 4) instead of nothing; layers.query is nothing instead of float32 '
    '(1, 4, 1, 4); softmax_bias is bfloat16 (10,) instead of float32 (10,)')


def _flip(folder):
  path = folder / 'model.safetensors'
  content = bytearray(path.read_bytes())
  content[-5] ^= 1
  path.write_bytes(content)


def _narrow(folder):
  tensors = load_file(folder / 'model.safetensors')
  save_file(tensors | {'embedding': tensors['embedding'][:, :8].copy()},
            folder / 'model.safetensors')


def _edit(folder, change):
  value = json.loads((folder / 'config.json').read_text())
  change(value)
  (folder / 'config.json').write_text(json.dumps(value))


@pytest.mark.tf
@pytest.mark.parametrize(('change', 'message'), [
  (lambda f: _flip(f), 'model.safetensors is damaged: its parameters have digest'),
  (lambda f: _narrow(f), 'embedding is float32 (512, 8) instead of float32 (512, 16)'),
  (lambda f: (f / 'model.safetensors').write_bytes(b'x'), 'cannot be read as safetensors'),
  (lambda f: (f / 'config.json').unlink(), 'config.json is missing'),
  (lambda f: _edit(f, lambda c: c.pop('export')), "('export' is missing)"),
  (lambda f: _edit(f, lambda c: c['export'].update(format=2)), 'has format 2'),
  (lambda f: _edit(f, lambda c: c['config']['model'].update(depth=2)), 'model.depth'),
  (lambda f: _edit(f, lambda c: c['config']['model'].update(num_layers=3)),
   'layers.attention_norm_bias is float32 (2, 16) instead of float32 (3, 16)'),
  (lambda f: (f / 'vocabulary' / 'spiece.model').write_bytes(b'x'), 'has fingerprint'),
  (lambda f: _edit(f, lambda c: c['export']['vocabulary'].update(fingerprint='00')),
   'names 00: copy the folder again'),
])
def test_a_damaged_folder_is_refused_before_anything_is_written(
    copy, tmp_path, capsys, change, message):
  change(copy)
  assert run('import', tmp_path / 'w', f'--from={copy}') == 2
  error = capsys.readouterr().err
  assert message in error and error.count('\n') == 1
  assert not (tmp_path / 'w').exists()  # it belongs to no configuration yet


@pytest.mark.tf
def test_another_model_or_vocabulary_is_refused(exported, trained, tmp_path, capsys):
  assert run('import', tmp_path / 'w', f'--from={exported}', '--config.model.ff_dim=32',
             config=f'{exported}/config.json') == 2
  assert 'model.ff_dim=32 but the checkpoint has 16' in capsys.readouterr().err
  assert not (tmp_path / 'w').exists()
  assert run('import', tmp_path / 'w2', f'--from={exported}', '--config.model.vocab_multiple=1',
             config=f'{exported}/config.json') == 2
  assert 'model.vocab_multiple=1 but the checkpoint has 64' in capsys.readouterr().err
  assert run('data', tmp_path / 'w4', '--config.data.vocab_size=450',
             config=f'{exported}/config.json') == 0
  assert run('import', tmp_path / 'w4', f'--from={exported}', '--config.data.vocab_size=450',
             config=f'{exported}/config.json') == 2
  assert 'import into a workdir whose data are not prepared yet' in capsys.readouterr().err


@pytest.mark.tf
def test_nothing_is_overwritten_and_options_belong_to_their_form(trained, tmp_path, capsys):
  (tmp_path / 'there').mkdir()
  (tmp_path / 'x.json').write_text('mine')
  for more, message in (
      ([f'--output={tmp_path}/there'], 'exists: it is not overwritten'),
      ([f'--output={tmp_path}/x.safetensors'], 'x.json exists: it is not overwritten'),
      ([f'--output={tmp_path}/y', '--prefix'], '--prefix does not belong to --form=fairjax'),
      ([f'--output={tmp_path}/y.safetensors', '--license=mit'],
       '--license does not belong to --form=transformer-xl'),
      ([f'--output={tmp_path}/y.safetensors', '--form=fairjax'], 'writes a folder'),
      ([f'--output={tmp_path}/y', '--license=My Own'], '--license=My Own is not an identifier'),
      ([f'--output={tmp_path}/y', '--language=English'], '--language=English is not a code'),
      ([f'--output={tmp_path}/y', '--model=baselin'], "did you mean 'baseline'")):
    assert run('export', trained, *more) == 2, more
    assert message in capsys.readouterr().err
  assert sorted(p.name for p in tmp_path.iterdir()) == ['there', 'x.json']
  assert (tmp_path / 'x.json').read_text() == 'mine'
