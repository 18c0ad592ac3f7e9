"""Two and four processes on loopback: the results of one, kills and signals."""

import concurrent.futures
import functools
import gzip
import json
import re
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import process_cases
import pytest
from groups import ends, free_address, starter
from groups import start as start_group

from fairjax import processes
from fairjax.errors import UserError
from fairjax.model import language_model
from fairjax.train import load_params, make_mesh, read_done, steps
from fairjax.train.steps import params_template

STAGES = ('lm', 'sentiment', 'debias/country-sentiment-5')


@pytest.fixture(scope='module')
def single(tmp_path_factory):
  """Gives the workdir of one process with one device: of all stages, or of step 1."""
  @functools.cache
  def single(lm_alone=False):
    workdir = tmp_path_factory.mktemp('single')
    process_cases.run(workdir, lambda line: None, devices=jax.devices()[:1], lm_alone=lm_alone)
    return workdir

  return single


@pytest.fixture(scope='module')
def start(repository):
  """Starts `count` processes on a workdir; ends those that are left."""
  with starter(repository) as group:
    yield lambda workdir, count, *more: group(
      lambda place: ['-m', 'tests.process_cases', place, workdir, *more], count)


def wait_for(process, words):
  for line in process.stdout:
    if words in line:
      return
  raise AssertionError(f'never printed {words!r}: {process.stderr.read()[-2000:]}')


def compare(workdir, single, *, lm_alone=False):
  """Parameters of all stages to 1e-5, and the records as text; or of step 1."""
  mesh, config = make_mesh(process_cases.MeshConfig(), jax.devices()[:1]), process_cases.CONFIG
  for stage in STAGES[:1] if lm_alone else STAGES:
    template = steps.sentiment_state_template(
      config.model.model_dim, config.sentiment, mesh).params if (
      stage == 'sentiment') else params_template(language_model(config.model), mesh)
    found, expected = (load_params(w / stage, template) for w in (workdir, single))
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))
    print(f'{stage}: largest difference {max(np.abs(a - b).max() for a, b in pairs):.1e}')
    for a, b in pairs:
      np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
  if not lm_alone:
    records = [sorted(gzip.open(w / 'records.jsonl.gz', 'rt')) for w in (workdir, single)]
    assert records[0] == records[1] and len(records[0]) == 48


@pytest.mark.parametrize(('victim', 'words'), [
  (1, '[lm] step 4/'), *(pytest.param(*case, marks=pytest.mark.weekly) for case in (
    (1, '[sentiment] step 4/'), (0, '[debias')))])
def test_a_killed_process_ends_the_other_and_both_go_on(tmp_path, start, single, victim, words):
  group = start(tmp_path, 2)
  wait_for(group[0], words)
  group[victim].send_signal(signal.SIGKILL)
  begin = time.monotonic()
  code, _, error = ends(group)[1 - victim]
  print(f'the other ended after {time.monotonic() - begin:.2f} s with code {code}: {error[-600:]}')
  assert time.monotonic() - begin < 20  # heartbeats alone take 30 s, JAX's default 100
  if victim:  # without the first process JAX's own service may abort before the line is out
    assert code == processes.PREEMPTED
    assert f'process {victim} of 2 is gone' in error
  else:
    assert code != 0
  quick = words.startswith('[lm]')
  again = start(tmp_path, 2, *['lm'] * quick)
  assert [code for code, _, _ in ends(again)] == [0, 0]
  compare(tmp_path, single(lm_alone=quick), lm_alone=quick)


def test_a_process_that_stops_is_noticed(tmp_path, start):
  group = start(tmp_path, 2, 2)
  wait_for(group[0], '[lm] step 4/')
  group[1].send_signal(signal.SIGSTOP)
  begin = time.monotonic()
  code = group[0].wait(timeout=60)
  print(f'the other ended after {time.monotonic() - begin:.1f} s')
  group[1].send_signal(signal.SIGCONT)
  found = ends(group)
  assert code == processes.PREEMPTED and '[lm] hangs after step' in found[0][2], found
  # When it goes on, JAX sees that the first process is gone, and may be faster than its message.
  assert 'JAX distributed service detected fatal errors' in found[1][2] or (
    found[1][0] == processes.PREEMPTED and '[lm] hangs after step' in found[1][2]), found
  assert 'Current thread' in (tmp_path / 'lm' / 'hang-process-0.txt').read_text()


@pytest.mark.weekly  # of two processes: tests/pretrained/test_masked_processes.py
def test_a_signal_to_one_of_four_saves_once_and_two_can_go_on(tmp_path, start, single):
  group = start(tmp_path, 4)
  wait_for(group[0], '[lm] step 2/')
  group[3].send_signal(signal.SIGTERM)
  found = ends(group)
  assert [code for code, _, _ in found] == [processes.PREEMPTED] * 4, found
  (step,) = {re.search(r'saved after step (\d) of 7', text)[1] for _, text, _ in found}
  card = json.loads((tmp_path / 'lm' / 'checkpoints' / step / 'card' / 'metadata').read_text())
  hidden = card['leaves']['.memory.hidden']
  assert len(hidden['shards']) == 4  # each process hashed its own
  again = start(tmp_path, 2)
  assert [code for code, _, _ in ends(again)] == [0, 0]
  compare(tmp_path, single())


@pytest.fixture(scope='module')
def split(tmp_path_factory, start):
  """The workdirs of one process with four devices and of two with two, which no fault disturbed."""
  found = {}
  for count, devices in ((1, 4), (2, 2)):
    found[count] = tmp_path_factory.mktemp(f'split-{count}')
    assert [code for code, _, _ in ends(start(found[count], count, 300, devices, 2, 2))
            ] == [0] * count
  return found


def left_bits(workdir):
  return [((workdir / stage / 'metrics.jsonl').read_bytes(), read_done(workdir / stage)['digest'])
          for stage in STAGES] + [sorted(gzip.open(workdir / 'records.jsonl.gz', 'rt'))]


@pytest.mark.weekly
def test_parameters_split_over_processes_are_those_of_one(split):
  assert left_bits(split[2]) == left_bits(split[1])


@pytest.mark.weekly
@pytest.mark.parametrize('seed', [0, 1])
def test_split_parameters_survive_random_kills_to_the_bit(tmp_path, start, split, seed):
  rng = np.random.default_rng(seed)
  for _ in range(5):
    group = start(tmp_path, 2, 300, 2, 2, 2)
    for _ in range(rng.integers(1, 20)):
      if not group[0].stdout.readline():
        break
    time.sleep(rng.random() / 2)
    victim = rng.integers(2)
    group[victim].send_signal(signal.SIGKILL)
    ends(group)
  assert [code for code, _, _ in ends(start(tmp_path, 2, 300, 2, 2, 2))] == [0, 0]
  assert left_bits(tmp_path) == left_bits(split[2])


NOTICE = '''
import os, signal, sys, time
from fairjax import processes
processes.start(sys.argv[1])
before = processes.stop_here()
os.kill(os.getpid(), signal.SIGTERM)  # no handler of ours: the runtime's own takes it
for _ in range(300):
  if processes.stop_here():
    print('noticed', before, processes.stop_here(), flush=True)
    sys.exit(processes.leave(0))
  time.sleep(0.1)
'''


def test_the_preemption_notice_of_the_runtime_stops_too(repository):
  ((code, printed, error),) = ends(start_group(
    [['-c', NOTICE, f'{free_address()},1,0']], repository))
  assert (code, printed) == (0, 'noticed False True\n'), error[-2000:]


TWICE = '''
import hashlib
from fairjax.processes import StopSignal
with StopSignal().installed():
  print('ready', flush=True)
  hashlib.pbkdf2_hmac('sha256', b'x', b'y', 2 ** 31 - 1)  # as a compilation: no handler gets a turn
'''


def asked_to_stop(repository):
  """A process that computes and has received one SIGTERM."""
  process = subprocess.Popen([sys.executable, '-c', TWICE], cwd=repository, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  assert process.stdout.readline() == 'ready\n'
  process.send_signal(signal.SIGTERM)
  assert 'SIGTERM: stops after this step' in process.stderr.readline()
  return process


def test_a_second_signal_ends_at_once_whatever_the_main_thread_does(repository):
  process = asked_to_stop(repository)
  assert process.poll() is None
  process.send_signal(signal.SIGINT)
  assert process.wait(timeout=30) == 128 + signal.SIGINT
  assert 'ends at once' in process.stderr.read()


def test_a_term_that_comes_twice_in_a_moment_is_one(repository):
  """`timeout` sends it to the process and to its group."""
  process = asked_to_stop(repository)
  process.send_signal(signal.SIGTERM)
  time.sleep(1.5)
  assert process.poll() is None
  process.send_signal(signal.SIGTERM)
  assert process.wait(timeout=30) == 128 + signal.SIGTERM
  assert 'ends at once' in process.stderr.read()


def test_work_in_a_thread_leaves_the_signals_to_others():
  def work():
    with processes.StopSignal().installed() as stop:
      return stop.here()

  before = signal.getsignal(signal.SIGTERM)
  with concurrent.futures.ThreadPoolExecutor() as pool:
    assert not pool.submit(work).result() and signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize('spec', ['', '127.0.0.1', '127.0.0.1:x,2,0', '127.0.0.1:1,2,2', 'h:1,a,0'])
def test_a_bad_group_is_one_line(spec):
  with pytest.raises(UserError, match='HOST:PORT,COUNT,INDEX'):
    processes.start(spec)


def test_a_port_of_another_program_is_refused():
  with socket.create_server(('', 0)) as other:
    with pytest.raises(UserError, match='cannot be taken .*in use'):
      processes.start(f'127.0.0.1:{other.getsockname()[1]},2,0')


LATE = """
import sys
from fairjax import processes
processes.START_SECONDS = 2
processes.start(sys.argv[1])
"""


def test_processes_that_do_not_come_are_one_line_and_may_come_again(repository):
  address = free_address()
  for code, _, error in ends(start_group([['-c', LATE, f'{address},3,{i}'] for i in (0, 1)],
                                         repository)):
    assert code == processes.PREEMPTED and error.count('\n') == 1, error
    assert 'did not find each other within 2 s: start the same command' in error


def test_a_process_alone_agrees_with_itself():
  assert processes.is_first() and processes.count() == 1 and not processes.started()
  assert processes.share({'a': (1, 2)}) == {'a': (1, 2)}
  assert processes.agree(True) and not processes.agree(False) and not processes.stop_here()
  assert processes.leave(3) == 3
