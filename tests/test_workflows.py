"""The workflows: pinned actions, no rights, an end."""

import pathlib
import re

import pytest
import yaml

FOLDER = pathlib.Path(__file__).parent.parent / '.github' / 'workflows'
FLOWS = {path.name: yaml.safe_load(path.read_text(encoding='utf-8'))
         for path in sorted(FOLDER.glob('*.yml'))}


def steps(flow):
  return [(job, step) for job in flow['jobs'].values() for step in job['steps']]


@pytest.mark.parametrize('name', FLOWS)
def test_actions_are_pinned_and_jobs_end(name):
  for job, step in steps(FLOWS[name]):
    assert job['timeout-minutes'] <= 90
    assert re.fullmatch(r'[\w/-]+@[0-9a-f]{40}', step.get('uses', 'a/b@' + 40 * '0'))
  assert FLOWS[name]['permissions'] == {'contents': 'read'}
