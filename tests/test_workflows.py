"""The workflows: pinned actions, and a place for every test that is left out elsewhere."""

import pathlib
import re

import pytest
import yaml

FOLDER = pathlib.Path(__file__).parent.parent / '.github' / 'workflows'
FLOWS = {path.name: yaml.safe_load(path.read_text(encoding='utf-8'))
         for path in sorted(FOLDER.glob('*.yml'))}
TESTS = pathlib.Path(__file__).parent


def steps(flow):
  return [(job, step) for job in flow['jobs'].values() for step in job['steps']]


@pytest.mark.parametrize('name', FLOWS)
def test_actions_are_pinned_and_jobs_end(name):
  for job, step in steps(FLOWS[name]):
    assert job['timeout-minutes'] <= 90
    assert re.fullmatch(r'[\w/-]+@[0-9a-f]{40}', step.get('uses', 'a/b@' + 40 * '0'))
  assert FLOWS[name]['permissions'] == {'contents': 'read'}


def scheduled(words):
  """(job, command) of the scheduled steps whose command holds these words."""
  return [(job, step['run']) for flow in FLOWS.values() if 'schedule' in flow[True]  # YAML's "on"
          for job, step in steps(flow) if words in step.get('run', '')]


def test_the_tests_of_the_tpu_compiler_run_weekly():
  ((job, _),) = scheduled('pytest -m libtpu')
  assert "pip install -e '.[tpu,dev]'" in [step.get('run') for step in job['steps']]
  assert any('@pytest.mark.libtpu' in path.read_text(encoding='utf-8')
             for path in TESTS.rglob('test_*.py'))


def test_the_test_of_the_beam_job_runs_weekly():
  ((job, command),) = scheduled('test_seqio_cache.py')
  assert 'FAIRJAX_BEAM_VENV' in job['env']
  assert "pip install -e '.[train,dev]'" in [step.get('run') for step in job['steps']]
  file = TESTS.parent / command.split()[-1]
  assert "'FAIRJAX_BEAM_VENV' not in os.environ" in file.read_text(encoding='utf-8')


def test_everything_runs_weekly():
  assert scheduled("pytest -n 2 --dist=loadfile -m ''")
