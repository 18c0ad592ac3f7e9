"""The same run with several seeds: one preparation of the data, and the spread over trainings."""

import dataclasses
import json
import shutil
import statistics

import pytest
from test_attribute_runs import arguments

from fairjax.cli.main import main
from fairjax.config import Config
from fairjax.report import ModelRow
from fairjax.report.sections import spread_of_trainings
from fairjax.run.results import open_run
from fairjax.run.workdir import data_folder

SMALL = {'debias__variants': "('embedding:10',)", 'debias__extended_baseline': False}
CONFIG = 'configs/quickstart.py'
PLANTED = SMALL | {
  'data__planted_documents': 300, 'data__planted_heldout_documents': 20, 'data__vocab_size': 640,
  'measure__encoder': '', 'sample__heldout_prefixes': False}


def read(path):
  return json.loads(path.read_text())


def run(workdir, seeds=None, **changes):
  return main([*arguments('run', CONFIG, workdir, **PLANTED | changes),
               *([] if seeds is None else [f'--seeds={seeds}'])])


pytestmark = pytest.mark.usefixtures('no_figures_in_module', 'one_device')


@pytest.fixture(scope='module')
def workdir(tmp_path_factory, in_repository_in_module, one_device):
  folder = tmp_path_factory.mktemp('seeds') / 'run'
  assert run(folder, seed=5) == 0
  before = (folder / 'lm' / 'DONE').read_bytes(), read(folder / 'report' / 'report.json')
  assert run(folder, 2, seed=5) == 0
  return folder, before


def digest(folder):
  return read(folder / 'lm' / 'DONE')['digest']


def test_the_next_seed_trains_another_model_on_the_same_data(workdir):
  folder, (done, report) = workdir
  other = folder / 'seeds' / '6'
  assert (folder / 'lm' / 'DONE').read_bytes() == done and digest(other) != digest(folder)
  assert read(other / 'config.json')['config']['seed'] == 6
  assert not (other / 'data' / 'manifest.json').exists() and (folder / 'data' / 'train').exists()
  again = read(folder / 'report' / 'report.json')
  assert report['trainings'] is None and {**again, 'trainings': None} == report


def test_the_report_has_the_spread_of_the_runs_own_numbers(workdir, check_keys):
  folder, _ = workdir
  rows = [open_run(place).rows() for place in (folder, folder / 'seeds' / '6')]
  check_keys(found := read(folder / 'report' / 'report.json'), 'report')
  found = found['trainings']
  assert found['seeds'] == [5, 6]
  assert [f['model'] for f in found['models']] == [
    name for name in ('baseline', 'country-embedding-10') for _ in range(3)]
  for entry in found['models']:
    (values,) = [[
      row.perplexity['word'] if entry['scorer'] is None else
      row.measures['scorers']['vader'][entry['measure']]['value'] for row in pair]
      for pair in zip(*rows, strict=True) if pair[0].name == entry['model']]
    assert entry['values'] == values
    assert entry['mean'] == statistics.fmean(values)
    assert entry['std_dev'] == statistics.stdev(values)
  for name in ('report.md', 'summary.md', 'index.html'):
    text = (folder / 'report' / name).read_text()
    mean, spread = found['models'][2]['mean'], found['models'][2]['std_dev']
    assert 'over 2 trainings (seeds 5, 6)' in text and f'{mean:.2f} ± {spread:.2f}' in text


def test_a_seed_with_another_number_of_samples_is_left_out_of_the_spread(workdir):
  lines = []
  base = open_run(workdir[0], log=lines.append)
  assert base.trainings()['seeds'] == [5, 6] and not lines
  base.config = dataclasses.replace(base.config, until='debias', sample=dataclasses.replace(
    base.config.sample, samples=9, batch_size=3))
  assert base.trainings() is None
  assert 'seeds/6 has another configuration' in lines[0] and 'sample.samples: 2 -> 9' in lines[0]


def test_the_same_command_continues_and_a_finished_run_is_left_alone(workdir, tmp_path, capfd):
  folder = tmp_path / 'run'
  shutil.copytree(workdir[0], folder, copy_function=shutil.copy2)
  report = (folder / 'report' / 'report.json').stat().st_mtime_ns
  assert run(folder, 2, seed=5) == 0 and 'seeds/6 is finished' in capfd.readouterr().out
  assert (folder / 'report' / 'report.json').stat().st_mtime_ns == report
  other, model = folder / 'seeds' / '6', digest(folder / 'seeds' / '6')
  (other / 'DONE').unlink()  # as after a kill in step 3
  next((other / 'debias').rglob('DONE')).unlink()
  for name in ('generations', 'measures', 'scores', 'report'):
    shutil.rmtree(other / name)
  before = (folder / 'report' / 'report.json').read_bytes()
  assert run(folder, 2, seed=5) == 0
  assert digest(other) == model and (folder / 'report' / 'report.json').read_bytes() == before
  (folder / 'seeds' / '6' / 'measures' / 'baseline' / 'country.json').write_text('{}')
  assert run(folder, 2, seed=5) == 2


def test_the_data_of_another_seed_are_those_of_the_first(workdir):
  assert main(['step', 'check-data', f'--workdir={workdir[0] / "seeds" / "6"}']) == 0


def test_a_run_that_cannot_be_repeated_is_refused(workdir, tmp_path, refused):
  for seeds, changes, words in (
      (2, {'seed': 5, 'step1_from': workdir[0]}, 'repeats step 1 too'),
      (3, {'seed': 2**32 - 2}, 'seed=4294967296 must be at least 0 and below')):
    refused([*arguments('run', CONFIG, tmp_path / 'other', **PLANTED | changes),
             f'--seeds={seeds}'], words)
  assert not (tmp_path / 'other' / 'lm').exists()


def test_a_folder_of_that_name_may_hold_runs_of_their_own(tmp_path):
  own = tmp_path / 'seeds' / '1'
  assert data_folder(Config(), own) == own / 'data'
  (tmp_path / 'config.json').write_text('{}')
  assert data_folder(Config(), own) == tmp_path / 'data'


def test_zero_is_a_value_and_what_a_training_lacks_is_null():
  def row(name, value):
    return ModelRow(name, 'baseline', measures={'scorers': {'vader': {
      'individual_fairness': {'value': value}, 'group_fairness': {'value': 1.0}}}})

  found = spread_of_trainings({3: [row('a', 0.0), row('b', 2.0)], 4: [row('a', 1.0)]})
  values = {(f['model'], f['measure']): (f['values'], f['mean'], f['std_dev'])
            for f in found['models']}
  assert values['a', 'individual_fairness'] == ([0.0, 1.0], 0.5, pytest.approx(0.5**0.5))
  assert values['b', 'individual_fairness'] == ([2.0, None], 2.0, None)
  assert values['a', 'perplexity'] == ([None, None], None, None)
