"""A short pass of the harness, and that the harness sees what it should."""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.chaos import cases, end_state, nursery
from tests.chaos.cases import Case
from tests.chaos.curriculum import FAULTS, ROOT
from tests.chaos.moments import Moment, read_trace


# Every day test_processes.py kills a run, and run/test_published.py goes on from what kills leave.
@pytest.mark.weekly
@pytest.mark.tf
@pytest.mark.skipif(importlib.util.find_spec('tensorflow') is None, reason='needs TensorFlow')
def test_a_short_pass_loses_nothing_and_hides_nothing(tmp_path):
  result = subprocess.run(
    [sys.executable, '-m', 'tests.chaos', f'--faults={",".join(FAULTS)}', '--runs=1', '--quick',
     '--seed=7', f'--scratch={tmp_path}', '--json'],
    cwd=ROOT, capture_output=True, text=True, timeout=1100, stdin=subprocess.DEVNULL)
  assert result.stdout, result.stderr[-3000:]
  found = json.loads(result.stdout)['cases']
  assert [case['fault'] for case in found] == list(FAULTS)
  assert [case for case in found if case['verdict'].startswith('failed')] == []
  assert result.returncode == 0
  by_fault = {case['fault']: case for case in found}
  assert (by_fault['kill']['first'], by_fault['term']['first']) == (-9, 42)
  # A fault that comes a little after its moment may find nothing left to be written.
  met = [case for case in found if case['fault'] in ('full', 'limit', 'read-only') and (
    case['first'])]
  assert met and all(case['message'].startswith('fairjax: ') for case in met)
  assert len({case['stage'] for case in found}) == len(FAULTS)  # each fault in another stage


class Scripted:
  """A laboratory whose run ends as it is told."""

  def __init__(self, outcome, end):
    self.outcome, self.end, self._found = outcome, {'a': '1'}, end

  def run(self, prepare):
    return self.outcome

  def read_end(self):
    return self._found


def outcome(code, output=''):
  return nursery.Outcome(code, output, 0.0)


@pytest.mark.parametrize('found, end, may_refuse, verdict', [
  (outcome(0), {'a': '1'}, True, 'identical'),
  (outcome(0), {'a': '2'}, True, 'failed: a differs'),
  (outcome(0), {}, False, 'failed: a is missing'),
  (outcome(0), {'a': '1', 'b': '1'}, False, 'failed: b should not be there'),
  (outcome(2, 'x\nfairjax: a is damaged'), {'a': '2'}, True, 'refused'),
  (outcome(2, 'fairjax: a is damaged'), {'a': '2'}, False, 'failed: the second run ends with 2'),
  (outcome(1, 'Traceback (most recent call last)\nKeyError'), {}, True,
   'failed: refused with a traceback'),
  (outcome(1), {}, True, 'failed: refused with a traceback'),
  (outcome(None), {}, True, 'failed: the second run hangs'),
])
def test_verdicts(found, end, may_refuse, verdict):
  case = Case('corrupt', 0)
  cases._finish(Scripted(found, end), case, [], lambda: None, may_refuse=may_refuse)
  assert case.verdict == verdict
  assert case.failed == verdict.startswith('failed')


@pytest.mark.parametrize('fault, code, output, fine', [
  ('term', 42, '', True), ('term', -15, '', False), ('term', 1, '', False),
  ('full', 1, 'fairjax: no space', True), ('full', 1, '', False), ('full', -6, '', False),
  ('full', 1, 'Traceback (most recent call last)\nfairjax: x', False), ('kill', -9, '', True),
  ('kill', None, '', False), ('clock', 1, 'fairjax: x', False),
])
def test_how_a_disturbed_run_may_end(fault, code, output, fine):
  assert (cases._judge_first(fault, outcome(code, output)) == '') == fine


CHILD = '''
import os, sys
sys.path.insert(0, {root!r})
from tests.chaos.moments import Watch
workdir = {workdir!r}
file = open({trace!r}, 'w')
Watch(workdir, lambda m: print(*m, sep='\\t', file=file, flush=True)).install()
os.makedirs(workdir + '/lm/checkpoints')
for _ in range(2):
  with open(workdir + '/lm/.DONE.abcd1234', 'w') as f:
    f.write('x')
  os.replace(workdir + '/lm/.DONE.abcd1234', workdir + '/lm/DONE')
open(workdir + '/lm/DONE').read()
open({trace!r} + '2', 'w').close()
print('[lm] step 3/6 loss 2.5')
print('other')
os.remove(workdir + '/lm/DONE')
'''


def test_moments_are_writes_inside_the_workdir_and_lines_of_progress(tmp_path):
  workdir, trace = str(tmp_path / 'run'), str(tmp_path / 'trace')
  subprocess.run([sys.executable, '-c', CHILD.format(root=str(ROOT), workdir=workdir, trace=trace)],
                 check=True, stdout=subprocess.DEVNULL)
  temporary = 'lm/.DONE.#'
  assert read_trace(trace) == [
    Moment('lm', 'mkdir', 'lm', 1), Moment('lm', 'mkdir', 'lm/checkpoints', 1),
    Moment('lm', 'open', temporary, 1), Moment('lm', 'rename', 'lm/DONE', 1),
    Moment('lm', 'open', temporary, 2), Moment('lm', 'rename', 'lm/DONE', 2),
    Moment('lm', 'print', '[lm] step 3/6', 1), Moment('lm', 'remove', 'lm/DONE', 1)]


def test_the_end_sees_a_bit_of_an_array_and_of_a_file(tmp_path):
  """Checkpoints written by TensorStore itself, with other chunks: only values count."""
  ts = pytest.importorskip('tensorstore')
  import numpy as np
  values = np.arange(12, dtype=np.float32).reshape(3, 4)

  def write(workdir, values, chunks, text):
    base = workdir / 'lm' / 'checkpoints' / '4' / 'state'
    base.mkdir(parents=True)
    store = {'driver': 'ocdbt', 'base': f'file://{base}/', 'path': 'params.w/'}
    array = ts.open({'driver': 'zarr', 'kvstore': store, 'metadata': {'chunks': chunks}},
                    create=True, dtype=values.dtype, shape=values.shape).result()
    array.write(values).result()
    (workdir / 'lm' / 'DONE').write_text(text)
    (workdir / 'lm' / 'tensorboard').mkdir()
    (workdir / 'lm' / 'tensorboard' / 'events').write_text(str(chunks))
    return end_state.read_end(workdir)

  first = write(tmp_path / 'a', values, [3, 4], 'x')
  assert set(first) == {'lm/DONE', 'lm/checkpoints/4:params.w'}
  assert end_state.differences(first, write(tmp_path / 'b', values, [1, 4], 'x')) == []
  flipped = values.copy()
  flipped.view(np.uint32)[1, 2] ^= 1
  assert end_state.differences(first, write(tmp_path / 'c', flipped, [3, 4], 'y')) == [
    'lm/DONE differs', 'lm/checkpoints/4:params.w differs']
  assert end_state.differences(
    first, write(tmp_path / 'd', values.astype(np.float64), [3, 4], 'x')) == [
      'lm/checkpoints/4:params.w differs']
