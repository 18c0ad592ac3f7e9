"""`models masked-lm --distributed`: the model of one process, signals, and who writes; the loop is
that of tests/test_processes.py, which kills."""

import signal

import pytest
from groups import ends, free_address, kill
from groups import start as start_group
from masked_cases import SENTENCES, compare_models

from fairjax import processes

SMALL = ['--layers=1', '--dim=16', '--heads=2', '--vocab_size=64', '--max_length=16',
         '--rows=sentence', '--batch_size=8', '--steps=8', '--log_every=2', '--eval_every=8',
         '--checkpoint_every=2', '--hidden_dropout=0.2', '--attention_dropout=0.1']
# Without TensorBoard files: importing TensorFlow takes longer than the rest.
RUN = '''
import sys
sys.modules['clu'] = None
import jax
jax.config.update('jax_num_cpu_devices', int(sys.argv[1]))
from fairjax.cli import main as cli
sys.exit(cli.main(['models', 'masked-lm', *sys.argv[2:]]))
'''


@pytest.fixture(scope='module')
def start(tmp_path_factory, repository):
  """Starts `count` processes on a workdir; ends those that are left."""
  left = []
  text = tmp_path_factory.mktemp('text') / 'train.txt'
  text.write_text('\n'.join(SENTENCES * 12), encoding='utf-8')

  def start(workdir, count, *more):
    address = free_address()
    group = [['1', f'--distributed={address},{count},{i}'] for i in range(count)]
    found = start_group(
      [['-c', RUN, *own, f'--data={text}', f'--workdir={workdir}', *SMALL, *more]
       for own in (group if count > 1 else [['2']])],
      repository)
    left.extend(found)
    return found

  yield start
  kill(left)


@pytest.fixture(scope='module')
def single(start, tmp_path_factory):
  """The workdir of one process with the two devices."""
  workdir = tmp_path_factory.mktemp('single') / 'mlm'
  assert [code for code, _, _ in ends(start(workdir, 1))] == [0]
  return workdir


@pytest.mark.weekly  # the next test: two processes, then one, train the model of one
def test_two_processes_train_the_model_of_one_and_the_first_tells(start, single, tmp_path):
  first, second = ends(start(tmp_path / 'mlm', 2, '--mesh.fsdp=2'))
  assert first[0] == second[0] == 0, (first, second)
  compare_models(tmp_path / 'mlm', single)
  assert '8 steps, validation loss' in first[1] and '[data] to learn' in first[2]
  assert 'steps' not in second[1] and '[data]' not in second[2] and '[mlm]' not in second[2]


def test_a_signal_saves_and_one_process_goes_on(start, single, tmp_path):
  workdir = tmp_path / 'mlm'
  group = start(workdir, 2)
  for line in group[0].stderr:
    if line.startswith('[mlm] step 2'):
      break
  group[1].send_signal(signal.SIGTERM)
  codes = [code for code, _, _ in ends(group)]
  assert codes == [processes.PREEMPTED] * 2
  ((code, _, error),) = ends(start(workdir, 1))
  assert code == 0 and 'resumes after step' in error
  compare_models(workdir, single)


def test_a_refusal_of_the_first_process_ends_all(start, tmp_path):
  """The text is read by the first one alone; the others must not wait for it."""
  (tmp_path / 'empty').write_text('')
  first, second = ends(start(tmp_path / 'mlm', 2, f'--data={tmp_path / "empty"}'))
  assert first[0] == second[0] == 2
  assert 'is empty' in first[2] and 'process 0 ended with code 2' in second[2]
