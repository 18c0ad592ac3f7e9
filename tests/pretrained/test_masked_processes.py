"""`models masked-lm --distributed`: the model of one process, signals, and who writes; the loop is
that of tests/test_processes.py, which kills."""

import signal
import sys

import pytest
from groups import ends, starter
from masked_cases import compare_models

from fairjax import processes
from fairjax.cli import main as cli

SMALL = ['--layers=1', '--dim=16', '--heads=2', '--vocab_size=64', '--max_length=16',
         '--rows=sentence', '--batch_size=8', '--steps=8', '--log_every=2', '--eval_every=8',
         '--checkpoint_every=2', '--hidden_dropout=0.2', '--attention_dropout=0.1']
# Without TensorBoard files: importing TensorFlow takes longer than the rest.
RUN = '''
import sys
sys.modules['clu'] = None
import jax
jax.config.update('jax_num_cpu_devices', 1)
from fairjax.cli import main as cli
sys.exit(cli.main(sys.argv[1:]))
'''


def command(text, workdir, *more):
  return ['models', 'masked-lm', f'--data={text}', f'--workdir={workdir}', *SMALL, *more]


@pytest.fixture(scope='module')
def start(text, repository):
  """Starts two processes on a workdir; ends those that are left."""
  with starter(repository) as group:
    yield lambda workdir, *more: group(lambda place: [
      '-c', RUN, *command(text, workdir, *more), f'--distributed={place}'])


@pytest.fixture(scope='module')
def train(text, two_devices):
  """Trains in this process, on two of its devices."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, 'clu', None)
    yield lambda workdir: cli.main(command(text, workdir))


@pytest.fixture(scope='module')
def single(train, tmp_path_factory):
  """The workdir of one process with the two devices."""
  workdir = tmp_path_factory.mktemp('single') / 'mlm'
  assert train(workdir) == 0
  return workdir


def test_a_signal_saves_and_one_process_goes_on(start, train, single, tmp_path, capsys):
  workdir = tmp_path / 'mlm'
  group = start(workdir)
  for line in group[0].stderr:
    if line.startswith('[mlm] step 2'):
      break
  group[1].send_signal(signal.SIGTERM)
  codes = [code for code, _, _ in ends(group)]
  assert codes == [processes.PREEMPTED] * 2
  assert train(workdir) == 0 and 'resumes after step' in capsys.readouterr().err
  compare_models(workdir, single)


def test_a_refusal_of_the_first_process_ends_all(start, tmp_path):
  """The text is read by the first one alone; the others must not wait for it."""
  (tmp_path / 'empty').write_text('')
  first, second = ends(start(tmp_path / 'mlm', f'--data={tmp_path / "empty"}'))
  assert first[0] == second[0] == 2
  assert 'is empty' in first[2] and 'process 0 ended with code 2' in second[2]
