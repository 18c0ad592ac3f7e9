"""What the devices do not divide is refused before anything is prepared or written."""

import dataclasses
import os
import socket
import subprocess
import sys

import jax
import pytest

from fairjax.cli.main import main
from fairjax.config import Config, MeshConfig, ModelConfig
from fairjax.errors import UserError
from fairjax.model import language_model
from fairjax.run.workdir import check_devices, stages_left
from fairjax.train import make_mesh, model_problems, steps
from fairjax.train.sharding import tree_shardings

QUICK = '--config=configs/quickstart.py'


@pytest.fixture(autouse=True)
def _in_repository(monkeypatch, repository):
  monkeypatch.chdir(repository)


@pytest.mark.parametrize('verb', ['train', 'run'])
def test_everything_is_named_at_once_and_the_workdir_stays_free(verb, tmp_path, capsys):
  fields = {'lm.batch_size': 20, 'debias.batch_size': 12, 'debias.grad_accum_steps': 2,
            'mesh.fsdp': 2, 'mesh.model': 2, 'model.num_heads': 3}
  assert main([verb, QUICK, f'--workdir={tmp_path}/run',
               *(f'--config.{name}={value}' for name, value in fields.items())]) == 2
  error = capsys.readouterr().err
  assert error.count('\n') == 1 and 'lm.batch_size=20' not in error  # four devices share rows
  for words in ('debias.batch_size=12 is not divisible by the 4 devices',
                '--config.debias.batch_size=8', 'mesh.model=2 does not divide model.num_heads=3',
                '--config.model.vocab_multiple=2'):
    assert words in error
  assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_begun_is_told_that_its_sizes_stay(tmp_path):
  config = dataclasses.replace(Config(until='lm'), lm=dataclasses.replace(
    Config().lm, batch_size=12))
  with pytest.raises(UserError, match='lm.batch_size=12') as error:
    check_devices(config, tmp_path)
  assert 'sizes stay' not in str(error.value)
  (tmp_path / 'config.json').write_text('{}')
  with pytest.raises(UserError, match='choose another mesh'):
    check_devices(config, tmp_path)
  (tmp_path / 'lm').mkdir()
  (tmp_path / 'lm' / 'DONE').touch()
  check_devices(config, tmp_path)  # nothing is left that would need them


def test_only_stages_that_are_left_are_looked_at(tmp_path):
  config = Config()
  assert stages_left(config, tmp_path, 'debias') == ['lm', 'sentiment', 'debias']
  assert stages_left(config, tmp_path, 'lm') == ['lm']
  assert stages_left(config, tmp_path, 'sentiment') == ['lm', 'sentiment']
  few = dataclasses.replace(config, debias=dataclasses.replace(
    config.debias, variants=('embedding:1',), extended_baseline=False))
  assert stages_left(few, tmp_path, 'debias') == ['lm', 'debias']
  for folder in ('lm', 'debias/country-embedding-1'):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / 'DONE').touch()
  assert stages_left(few, tmp_path, 'debias') == []
  assert stages_left(config, tmp_path, 'debias') == ['sentiment', 'debias']


def test_it_refuses_the_models_that_no_sharding_holds():
  """Compared with the axes of every parameter."""
  base = ModelConfig(vocab_size=40, num_layers=2, model_dim=16, num_heads=4, head_dim=4, ff_dim=32)
  adaptive = dict(cutoffs=(16, 24), div_val=2)
  seen = []
  for mesh in (MeshConfig(fsdp=2, model=4), MeshConfig(fsdp=8), MeshConfig(model=8)):
    for change in ({}, {'num_heads': 2}, {'num_heads': 8}, {'ff_dim': 34}, {'model_dim': 20},
                   {'vocab_size': 37}, {'vocab_size': 37, 'vocab_multiple': 8}, adaptive,
                   adaptive | {'vocab_size': 50}, {'num_heads': 8, **adaptive, 'cutoffs': (16, 28)},
                   {'num_heads': 8, 'vocab_size': 36, 'vocab_multiple': 4}):
      config = dataclasses.replace(base, **change)
      where = make_mesh(mesh)
      abstract = jax.eval_shape(language_model(config).init, jax.random.key(0))
      try:
        tree_shardings(abstract, where)
        holds = True
      except UserError:
        holds = False
      assert (model_problems(config, where) == []) == holds, (mesh, change)
      seen.append(holds)
  assert 5 < sum(seen) < len(seen) - 5


@pytest.mark.parametrize('change', [{}, {'segment_len': 100_000}])
def test_the_kernel_where_it_does_not_run_is_named_before_anything_is_prepared(tmp_path, change):
  config = Config(until='lm', model=ModelConfig(attention='kernel', **change))
  with pytest.raises(UserError, match=r"^model\.attention='kernel' does not run on cpu with "
                     r'model\.segment_len=\d+ .*: set --config\.model\.attention=auto') as e:
    check_devices(config, tmp_path)
  assert '\n' not in str(e.value)
  with pytest.raises(UserError, match="'kernel' does not run on cpu"):
    steps.params_template(dataclasses.replace(config.model, vocab_size=64), make_mesh(config.mesh))
  auto = dataclasses.replace(config, model=dataclasses.replace(config.model, attention='auto'))
  check_devices(auto, tmp_path)


def test_every_process_of_a_group_says_so(tmp_path, repository):
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    port = s.getsockname()[1]
  group = [subprocess.Popen(
    [sys.executable, '-m', 'fairjax', 'train', QUICK, f'--workdir={tmp_path}/run',
     '--config.lm.batch_size=3', f'--distributed=127.0.0.1:{port},2,{i}'],
    cwd=repository, env=os.environ | {'XLA_FLAGS': '', 'PYTHONPATH': str(repository)},
    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for i in range(2)]
  ends = [p.communicate(timeout=300) for p in group]
  assert [p.returncode for p in group] == [2, 2], ends
  assert any('lm.batch_size=3 is not divisible by the 2 devices' in error for _, error in ends)
  assert list(tmp_path.iterdir()) == []
