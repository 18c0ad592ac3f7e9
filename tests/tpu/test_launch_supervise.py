"""`fairjax tpu run` against a fake gcloud, with the real scripts on fake hosts."""

import hashlib
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import time
import types

import pytest

from fairjax.errors import UserError
from fairjax.tpu.launch import supervise
from fairjax.tpu.launch.plan import Run
from fairjax.tpu.launch.spec import LaunchSpec
from fairjax.tpu.launch.supervise import Executor, StepFailed, denied, is_limit, launch, read_state

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = ('run', '--config=configs/x.py', '--workdir=gs://bucket-1/it',
           "--config.name=a 'b' $HOME")
CANARY = 'canary-5f1d9c-secret'

PROGRAM = r'''#!/usr/bin/env bash
# Stands for the Python of a host: python -m fairjax ARGUMENTS.
shift 2
printf '%s\0' "$@" >"$HOME/argv"
env >"$HOME/environ"
read -ra codes <"$HOME/codes"
n=0
[[ ! -f $HOME/tries ]] || n=$(<"$HOME/tries")
echo $((n + 1)) >"$HOME/tries"
echo "attempt $n of $FAKE_HOST"
exit "${codes[n]:-0}"
'''


def executable(path: pathlib.Path, text: str) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)
  path.chmod(path.stat().st_mode | stat.S_IXUSR)


def commit(folder: pathlib.Path) -> None:
  for words in (['init', '-q'], ['add', '.'], ['-c', 'user.name=t', '-c', 'user.email=t@t',
                                               'commit', '-qm', 'x']):
    subprocess.run(['git', *words], cwd=folder, check=True)


class Cloud:
  """The fake world: what it is asked, what its hosts do, and an executor that reaches it."""

  def __init__(self, folder: pathlib.Path, monkeypatch, capsys):
    self.folder, self.repo, self.bin = folder, folder / 'repo', folder / 'bin'
    self.lines: list[str] = []
    self.pauses: list[float] = []
    self._capsys, self._shown = capsys, ''
    self.time = types.SimpleNamespace(sleep=self.pauses.append, monotonic=time.monotonic)
    monkeypatch.setattr(supervise, 'time', self.time)
    fake = (ROOT / 'tests' / 'fake_gcloud.py').read_text()
    executable(self.bin / 'gcloud', f'#!{sys.executable} -SE\n{fake}')
    executable(self.bin / 'sudo', '#!/bin/sh\nexit 0\n')
    executable(self.bin / 'gcsfuse', '#!/bin/sh\necho "$@" >>"$HOME/mounted"\n')
    executable(self.bin / 'hostname', '#!/bin/sh\necho "$FAKE_HOST"\n')
    monkeypatch.setenv('PATH', f'{self.bin}:{os.environ["PATH"]}')
    monkeypatch.setenv('FAKE_GCLOUD', str(folder))
    shutil.copytree(ROOT / 'launch', self.repo / 'launch')
    for name in ('requirements', 'encoder'):
      (self.repo / 'launch' / f'{name}.txt').write_text('# the lock\n')
    commit(self.repo)

  def world(self, lives, *, codes=('0',), hosts=('w-0', 'w-1'), **more) -> None:
    (self.folder / 'world.json').write_text(
      json.dumps({'lives': lives, 'hosts': list(hosts), **more}))
    lock = hashlib.sha256(b'# the lock\n' * 2).hexdigest()
    for number, host in enumerate(hosts):
      home = self.folder / 'hosts' / host
      executable(home / 'fairjax-launch' / 'venv' / 'bin' / 'python', PROGRAM)
      (home / 'fairjax-launch' / 'venv' / lock).touch()  # as if the packages were there
      (home / 'codes').write_text(codes[min(number, len(codes) - 1)] + '\n')

  def executor(self, **more) -> Executor:
    return Executor(self.repo, log=self.lines.append, **more)

  def hours_pass(self) -> None:
    """Each look at the clock finds it an hour later."""
    self.time.monotonic = iter(range(0, 10**9, 3600)).__next__

  def shown(self) -> str:
    self._shown += ''.join(self._capsys.readouterr())
    return self._shown

  def launch(self, verb='run', specs=None, *, executor=None, **more) -> int:
    return launch(verb, specs or [spec()], executor or self.executor(), **more)

  def flake(self, times: int) -> None:
    """The next calls of ssh and scp fail."""
    path = self.folder / 'state.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | {'flakes': times}))

  def calls(self) -> list[list[str]]:
    path = self.folder / 'calls.jsonl'
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

  def verbs(self) -> list[str]:
    """Calls in short: the verb, for ssh that of worker.sh; repeated questions once."""
    short: list[str] = []
    for call in self.calls():
      verb = call[3]
      if verb == 'ssh':
        verb = next(w for w in ('setup', 'start', 'follow', 'status', 'stop', 'logs')
                    if f'worker.sh {w} ' in ' '.join(call) + ' ')
      if not short or short[-1] != verb or verb != 'describe':
        short.append(verb)
    return short

  def log(self) -> str:
    return '\n'.join(self.lines)


@pytest.fixture
def cloud(tmp_path, monkeypatch, capsys):
  return Cloud(tmp_path, monkeypatch, capsys)


def spec(**more) -> LaunchSpec:
  return LaunchSpec(**{'tpu': 'v5litepod-16', 'zone': 'us-west4-a', 'name': 'job', 'spot': True,
                       'command': COMMAND, **more})


def test_a_command_runs_on_every_worker_with_its_words_as_they_were(cloud):
  cloud.world([['WAITING_FOR_RESOURCES', 'PROVISIONING', 'ACTIVE']])
  assert cloud.launch() == 0
  assert cloud.verbs() == ['describe', 'create', 'describe', 'status', 'scp', 'setup', 'start',
                           'follow', 'status', 'describe']
  for host in ('w-0', 'w-1'):
    home = cloud.folder / 'hosts' / host
    words = (home / 'argv').read_bytes().split(b'\0')[:-1]
    assert [w.decode() for w in words] == [
      'run', '--config=configs/x.py', '--workdir=/mnt/fairjax/bucket-1/it', COMMAND[-1]]
    assert 'JAX_COORDINATOR_PORT=8476' in (home / 'environ').read_text()
    assert (home / 'mounted').read_text().split()[-2:] == ['bucket-1', '/mnt/fairjax/bucket-1']
    assert f'[{host}] attempt 0 of {host}\n' in cloud.shown()
  assert 'still there, and costing money: queued resource job (1 x v5litepod-16) in us-west4-a' \
    in cloud.log()
  assert 'gcloud compute tpus queued-resources delete job --zone=us-west4-a --force' in cloud.log()


def test_delete_when_done_leaves_nothing_and_says_nothing_is_left(cloud):
  cloud.world([['ACTIVE']], codes=('1',))
  assert cloud.launch(delete_after=True) == 1
  assert cloud.verbs()[-1] == 'delete'
  assert 'still there' not in cloud.log()


def test_a_slice_whose_workers_do_not_answer_is_not_deleted(cloud):
  cloud.world([['ACTIVE']], hosts=('w-0',))
  assert cloud.launch('up') == 0
  cloud.flake(100)
  assert cloud.launch(delete_after=True) in (1, 42)
  assert 'delete' not in cloud.verbs() and 'not deleted: a command may still' in cloud.log()


def test_a_slice_on_which_something_runs_is_not_deleted_before_it_was_looked_at(cloud):
  errors = [f'REFUSE:{error}' for error in ['timed out'] * 6]
  cloud.world([['ACTIVE', 'ACTIVE', *errors, 'ACTIVE']], hosts=('w-0',))
  assert cloud.launch('up') == 0
  assert cloud.launch(delete_after=True) == 1  # a laptop that wakes without a network
  shutil.rmtree(cloud.repo / '.git')
  assert cloud.launch(delete_after=True) == 2  # nothing can be packed
  assert 'delete' not in cloud.verbs() and cloud.log().count('not deleted') == 2


@pytest.mark.parametrize(('error', 'deleted'), [
  ('ERROR: (gcloud.x) ALREADY_EXISTS: Resource job exists', False),  # somebody was quicker
  ('ERROR: (gcloud.x) timed out', True)])  # it may have come into being
def test_after_a_request_that_failed_only_what_is_ours_is_deleted(cloud, error, deleted):
  cloud.world([['ACTIVE']], create=error)
  assert cloud.launch(delete_after=True) == 1
  assert ('delete' in cloud.verbs()) == deleted != ('not deleted' in cloud.log())


@pytest.mark.parametrize(('states', 'deleted'), [
  (['WAITING_FOR_RESOURCES'], True), (['ACTIVE', 'REPAIRING'], False)])
def test_what_is_not_ready_is_deleted_unless_a_command_may_run_there(cloud, states, deleted):
  cloud.world([states])
  cloud.hours_pass()
  assert cloud.launch(delete_after=True) == 42
  assert ('delete' in cloud.verbs()) == deleted


def test_deleting_what_is_not_there_says_so(cloud):
  cloud.world([['ACTIVE']])
  assert cloud.launch('down') == 0
  assert 'nothing was deleted: there is no queued resource job' in cloud.log()


def test_a_worker_starts_again_after_42_and_lost_peers_but_never_after_2(cloud):
  cloud.world([['ACTIVE']], codes=('42 134 0', '2 0'))
  assert cloud.launch() == 2
  assert (cloud.folder / 'hosts/w-0/tries').read_text() == '3\n'
  assert (cloud.folder / 'hosts/w-1/tries').read_text() == '1\n'
  assert 'ended with code 2 (user) on 2 workers' in cloud.log()


def test_restarts_are_bounded_and_then_the_same_line_continues(cloud):
  cloud.world([['ACTIVE']], codes=('42 42 42 42 42',), hosts=('w-0',))
  assert cloud.launch(specs=[spec(restarts=2)]) == 42
  assert (cloud.folder / 'hosts/w-0/tries').read_text() == '3\n'


def test_a_preempted_slice_is_deleted_requested_again_and_the_command_started_there(cloud):
  cloud.world([['ACTIVE', 'SUSPENDED'], ['PROVISIONING', 'ACTIVE']])
  assert cloud.launch() == 0
  assert cloud.verbs() == [
    'describe', 'create', 'describe', 'status', 'scp', 'setup', 'start', 'follow', 'status',
    'status', 'status', 'describe', 'delete', 'describe', 'create', 'describe', 'status', 'scp',
    'setup', 'start', 'follow', 'status', 'describe']
  assert cloud.verbs().count('create') == 2 and cloud.verbs().count('delete') == 1
  assert 'deleting it and asking again, 1 of 10' in cloud.log()


def test_what_cannot_be_packed_costs_nothing_and_a_slice_that_is_replaced_gets_the_same_code(cloud):
  shutil.copytree(cloud.repo / '.git', cloud.folder / 'kept')
  shutil.rmtree(cloud.repo / '.git')
  assert cloud.launch() == 2 and cloud.calls() == []
  assert 'git tracks no file here' in cloud.shown()
  shutil.copytree(cloud.folder / 'kept', cloud.repo / '.git')
  cloud.world([['ACTIVE', 'SUSPENDED'], ['ACTIVE']], hosts=('w-0',))
  (cloud.repo / 'launch' / 'lock.sh').write_text('as at the beginning')
  delete = cloud.bin / 'gcloud'
  delete.write_text(delete.read_text().replace("  if verb == 'delete':\n", (
    "  if verb == 'delete':\n"
    f"    pathlib.Path('{cloud.repo}/launch/lock.sh').write_text('edited meanwhile')\n")))
  assert cloud.launch() == 0 and cloud.verbs().count('scp') == 2
  code = cloud.folder / 'hosts/w-0/fairjax-launch/job/code'
  assert (code / 'launch' / 'lock.sh').read_text() == 'as at the beginning'


def test_a_slice_that_is_being_deleted_is_waited_for_and_requested_again(cloud):
  cloud.world([['ACTIVE', 'ACTIVE', 'DELETING', 'DELETING', 'GONE'], ['ACTIVE']])
  assert cloud.launch('up') == cloud.launch() == 0
  assert cloud.verbs().count('create') == 2 and 'delete' not in cloud.verbs()


@pytest.mark.parametrize('state', ['DELETING', 'GONE'])
def test_a_slice_that_somebody_deletes_meanwhile_is_not_requested_again(cloud, state):
  cloud.world([['ACTIVE', state], ['ACTIVE']])
  assert cloud.launch() == 42
  assert cloud.verbs().count('create') == 1 and 'the same line requests it again' in cloud.log()


def test_slices_that_are_always_taken_away_are_replaced_only_so_often(cloud):
  cloud.world([['ACTIVE', 'PREEMPTED']])
  assert cloud.launch(specs=[spec(recreate=2)]) == 42
  assert cloud.verbs().count('create') == 3 and cloud.verbs().count('delete') == 2
  assert 'taken away 3 times: giving up' in cloud.log()
  assert 'still there' in cloud.log()
  replaced = [p for p in cloud.pauses if p in (5, 10)]
  assert replaced == [5, 10]  # the pauses grow


@pytest.mark.parametrize(('world', 'said', 'not_said'), [
  ({'lives': [['FAILED: Quota limit TPUV5sPreemptiblePerProject has been exceeded']]},
   ['still there'], []),
  ({'lives': [['ACTIVE']], 'create': "ERROR: Quota 'TPUS_PER_PROJECT' exceeded. Limit: 0"},
   ['fairjax tpu list', 'failed: request 1 x v5litepod-16; ',
    'nothing is left that costs money: there is no queued resource job'],
   ['still there', 'delete job'])])
def test_quota_is_never_asked_for_again(cloud, world, said, not_said):
  cloud.world(**world)
  assert cloud.launch() == 2
  assert cloud.verbs() == ['describe', 'create', 'describe']
  assert all(words in cloud.log() for words in ['a limit of the project', *said])
  assert not any(words in cloud.log() for words in not_said)


@pytest.mark.parametrize(('state', 'left'), [
  ('ACTIVE', 'still there, and costing money: queued'),
  ('FAILED: it broke', 'still there, dead, and using up quota: queued'),
  ('REFUSE:timed out', 'perhaps still there, and costing money (the question failed): queued')])
def test_a_failed_launch_says_what_is_left_and_what_it_costs(cloud, state, left):
  cloud.world([['ACTIVE', 'ACTIVE', state]], flakes=100, hosts=('w-0',))
  assert cloud.launch() in (1, 42)
  assert left in cloud.log()
  assert 'queued-resources delete job --zone=us-west4-a --force --quiet' in cloud.log()
  assert state != 'ACTIVE' or sum(call[3] == 'scp' for call in cloud.calls()) == 6


QUOTA_PROJECT = ('ERROR: PERMISSION_DENIED: The tpu.googleapis.com API requires a quota project, '
                 'which is not set by default.')


@pytest.mark.parametrize(('error', 'remedy'), [
  (QUOTA_PROJECT, 'set-quota-project'),
  ("ERROR: (gcloud.compute.tpus.queued-resources.describe) PERMISSION_DENIED: Permission "
   "'tpu.queuedResources.get' denied on 'projects/p/locations/z' (or it may not exist).",
   'roles/tpu.admin'),
  ("ERROR: (gcloud.x) There was a problem refreshing your current auth tokens: ('invalid_grant: "
   "Token has been expired or revoked.')", 'gcloud auth login'),
  ('ERROR: (gcloud.x) You do not currently have an active account selected.', 'gcloud auth login'),
  ('ERROR: (gcloud.x) PERMISSION_DENIED: Cloud TPU API has not been used in project 1 before or it '
   'is disabled. reason: SERVICE_DISABLED', 'gcloud services enable tpu.googleapis.com'),
  ('ERROR: (gcloud.x) FAILED_PRECONDITION: This API method requires billing to be enabled.',
   'gcloud billing projects link'),
  ('ERROR: (gcloud.x) The required property [project] is not currently set.', '--project=ID'),
  ('ERROR: (gcloud.x) Error parsing [queued_resource].\nThe [queued_resource] resource is not '
   'properly specified.\nFailed to find attribute [project].', '--project=ID')])
def test_what_an_account_lacks_is_recognised(error, remedy):
  assert remedy in denied(error) and not is_limit(error)


@pytest.mark.parametrize('at', ['create', 'later'])
def test_an_account_that_cannot_stops_at_once(cloud, at):
  lives = [['ACTIVE']] if at != 'later' else [[f'REFUSE:{QUOTA_PROJECT}']]
  cloud.world(lives, **({at: QUOTA_PROJECT} if at != 'later' else {}))
  assert cloud.launch('up') == 2
  assert cloud.pauses == []  # not even once again
  assert 'set-quota-project' in cloud.log() and 'a limit of the project' not in cloud.log()
  verb = 'create' if at == 'create' else 'describe'
  assert f'gcloud compute tpus queued-resources {verb} job' in cloud.log()
  assert QUOTA_PROJECT in cloud.log() + cloud.shown()
  assert 'delete' not in cloud.verbs()
  assert ('still there' in cloud.log()) == (at == 'later')


def test_what_may_pass_is_asked_again(cloud):
  errors = [
    'ERROR: There was a problem refreshing your current auth tokens: HTTPSConnectionPool: Max '
    'retries exceeded. Please run: $ gcloud auth login', 'ERROR: (gcloud.x) UNAVAILABLE: try again',
    'ERROR: Quota exceeded for quota metric ReadRequests per minute', '']
  cloud.world([[*(f'REFUSE:{error}' for error in errors), 'ACTIVE']])
  assert cloud.launch('up') == 0
  assert cloud.pauses == [2, 4, 8, 16]


def test_permission_denied_by_a_worker_that_boots_is_tried_again(cloud):
  cloud.world([['ACTIVE']], flakes=2)
  fake = cloud.bin / 'gcloud'
  fake.write_text(fake.read_text().replace(
    'ERROR: [/usr/bin/ssh] exited', 'root@w: Permission denied (publickey). exited'))
  assert cloud.launch() == 0


def test_a_slice_that_gcloud_leaves_out_is_no_success(cloud):
  cloud.world([['ACTIVE']], skips=4, hosts=('s0-w-0', 's1-w-0'))
  assert cloud.launch(specs=[spec(tpu='v5litepod-4', slices=2)]) == 0
  assert [call[3] for call in cloud.calls()].count('scp') == 4 and cloud.pauses == [2, 4, 8]
  assert (cloud.folder / 'hosts/s1-w-0/tries').read_text() == '1\n'


@pytest.mark.parametrize('answer', ['<html>', '"ACTIVE"', '{"state": null}'])
def test_an_answer_without_a_state_is_asked_for_again_and_deletes_nothing(cloud, answer):
  cloud.world([[f'ANSWER:{answer}']])
  assert cloud.launch('up') == 1
  assert cloud.pauses == [2, 4, 8, 16, 32]
  line = next(x for x in cloud.lines if x.startswith('failed: '))
  assert 'queued-resources describe job' in line and answer in line
  assert cloud.verbs().count('delete') == 0 and 'perhaps still there' in cloud.log()


@pytest.mark.parametrize(('nodes', 'code'), [
  ([{'nodeId': 'job'}], 0), ([{'nodeId': 'job-0'}, {'nodeId': 'job-1'}], 2),
  ([{'multisliceParams': {'nodeCount': 2}}], 2)])
def test_a_slice_of_that_name_that_is_another_is_not_taken(cloud, nodes, code):
  spec = [{'node': {'acceleratorType': 'v5litepod-16'}, **node} for node in nodes]
  answer = {'state': {'state': 'ACTIVE'}, 'tpu': {'nodeSpec': spec}}
  cloud.world([[f'ANSWER:{json.dumps(answer)}']])
  assert cloud.launch('run' if code else 'up', delete_after=bool(code)) == code
  assert ('there job is 2 x v5litepod-16, not 1 x v5litepod-16' in cloud.log()) == bool(code)
  assert 'delete' not in cloud.verbs()


def test_a_failure_without_a_message_shows_the_answer(cloud):
  for failed in (None, {'error': 'it broke'}, {'error': {'code': 5}}):
    text = json.dumps({'state': {'state': 'FAILED', 'failedData': failed}})
    assert read_state(text)[:3] == ('dead', f'FAILED: {text}', False)
  taken = json.dumps({'name': 'projects/quota-lab/x', 'state': {'state': 'SUSPENDED'}})
  assert not read_state(taken).quota  # the name of a project is no limit
  failed = {'error': None}
  answer = json.dumps({'state': {'state': 'FAILED', 'failedData': failed}})
  cloud.world([[f'ANSWER:{answer}'], ['ACTIVE']])
  assert cloud.launch('up') == 0
  assert f'job (1 x v5litepod-16) in us-west4-a: FAILED: {answer}' in cloud.log()


def test_an_unknown_state_is_waited_for_and_never_a_reason_to_delete(cloud):
  name = 'SOMETHING_NEW'
  cloud.world([['PROVISIONING', name, name, 'ACTIVE', 'ACTIVE', name, 'ACTIVE']])
  assert cloud.launch() == 0
  assert 'delete' not in cloud.verbs() and cloud.verbs().count('create') == 1
  assert f'{name} (fairjax does not know this state, and waits)' in cloud.log()
  cloud.hours_pass()
  cloud.world([[name]])
  (cloud.folder / 'state.json').unlink()
  assert cloud.launch('up') == 42
  assert 'delete' not in cloud.verbs() and 'perhaps costing money' in cloud.log()


def test_workers_that_are_not_there_yet_are_not_asked_for_their_state(cloud):
  cloud.world([['ACTIVE', 'PROVISIONING']])
  assert cloud.launch('up') == cloud.launch('status') == 0
  assert cloud.shown() == 'PROVISIONING\n' and 'status' not in cloud.verbs()


def test_a_request_that_is_not_granted_in_time_is_named(cloud):
  cloud.world([['WAITING_FOR_RESOURCES']])
  cloud.hours_pass()
  assert cloud.launch('up') == 42
  assert 'not granted within 6h' in cloud.log() and 'still there' in cloud.log()
  cloud.world([['WAITING_FOR_RESOURCES'] * 6 + ['FAILED: it expired']])
  (cloud.folder / 'state.json').unlink()
  assert cloud.launch('up') == 42
  assert cloud.verbs().count('create') == 2 and 'delete' not in cloud.verbs()


def test_the_same_line_again_follows_what_runs_and_ships_nothing(cloud):
  cloud.world([['ACTIVE']], hosts=('w-0',))
  assert cloud.launch(detach=True) == 0
  home = cloud.folder / 'hosts/w-0'
  wait_for(home / 'fairjax-launch/job/exit')
  # A second launch of a command that goes on for a while.
  executable(home / 'fairjax-launch/venv/bin/python', '#!/bin/sh\nsleep 30\n')
  assert cloud.launch(detach=True) == 0
  before = len(cloud.calls())
  assert cloud.launch(detach=True) == 0
  again = [call[3] for call in cloud.calls()[before:]]
  assert 'scp' not in again and 'create' not in again
  assert 'the command is running already' in cloud.log()
  # Workers that do not answer at first keep the code that runs.
  code = home / 'fairjax-launch/job/code'
  (code / 'running').touch()
  cloud.flake(1)
  assert cloud.launch(detach=True) == 0
  assert cloud.verbs()[-4:] == ['scp', 'setup', 'start', 'describe'] and (code / 'running').exists()
  other = spec(command=('run', '--config=configs/y.py', '--workdir=gs://bucket-1/it'))
  assert cloud.launch(specs=[other], delete_after=True) == 2
  assert 'another command runs: stop it first' in cloud.shown()
  assert 'delete' not in cloud.verbs() and 'not deleted: a command may still' in cloud.log()
  # A sweep whose second point is the one that runs.
  assert cloud.launch(specs=[other, spec()], detach=True) == 0
  assert '1 of 2 ended earlier: a later one is running' in cloud.log()
  assert cloud.launch('stop') == 0
  assert wait_for(home / 'fairjax-launch/job/exit').read_text() == '143\n'


def wait_for(path: pathlib.Path, seconds: float = 20) -> pathlib.Path:
  end = time.monotonic() + seconds
  while not path.exists() and time.monotonic() < end:
    time.sleep(0.05)
  assert path.exists(), path
  return path


def test_a_worker_that_was_booted_anew_gets_its_command_again(cloud):
  cloud.world([['ACTIVE']], codes=('0 0',), reboot=True)
  assert cloud.launch() == 0
  assert 'a worker was started anew' in cloud.log()
  assert cloud.verbs().count('start') == 2 and cloud.verbs().count('create') == 1
  mounted = (cloud.folder / 'hosts/w-0/mounted').read_text().splitlines()
  assert len(mounted) == 3 and len(set(mounted)) == 1  # by setup and by each start
  assert (cloud.folder / 'hosts/w-1/tries').read_text() == '2\n'


def test_the_log_is_followed_to_its_end_while_the_command_runs(cloud):
  cloud.world([['ACTIVE']], hosts=('w-0',))
  program = cloud.folder / 'hosts/w-0/fairjax-launch/venv/bin/python'
  executable(program, '#!/bin/sh\necho first\nsleep 1.5\necho last\n')
  assert cloud.launch() == 0
  shown = cloud.shown()
  assert shown.index('[w-0] first\n') < shown.index('[w-0] last\n')


def test_no_secret_in_any_output_argument_or_file_that_others_may_read(cloud, monkeypatch):
  monkeypatch.setenv('WANDB_API_KEY', CANARY)
  cloud.world([['ACTIVE']], flakes=1)
  home = cloud.folder / 'hosts/w-0'
  program = home / 'fairjax-launch/venv/bin/python'
  program.write_text(program.read_text().replace('echo "attempt', f'echo "{CANARY} attempt'))
  executor = cloud.executor(secrets=[CANARY])
  for verb in ('up', 'run', 'status', 'logs', 'stop'):
    assert cloud.launch(verb, [spec(secrets=('WANDB_API_KEY',))], executor=executor) == 0
  assert f'WANDB_API_KEY={CANARY}' in (home / 'environ').read_text().splitlines()
  written = (cloud.folder / 'calls.jsonl').read_text()
  assert CANARY not in written + cloud.log() + cloud.shown()
  assert '*** attempt' in cloud.shown()
  files = [p for p in cloud.folder.rglob('*') if p.is_file() and p != program
           and p.name != 'environ' and CANARY.encode() in p.read_bytes()
           and p.name != 'log']
  assert {p.name for p in files} == {'secrets.env'}
  assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in files)
  archive = cloud.repo / '.launch/job/fairjax-launch-job.tar.gz'
  assert CANARY.encode() not in subprocess.run(['gzip', '-dc', archive], capture_output=True,
                                               check=True).stdout


def test_secrets_do_not_stay_here_where_copying_fails(cloud, monkeypatch):
  monkeypatch.setenv('WANDB_API_KEY', CANARY)
  cloud.world([['ACTIVE']], flakes=100)
  assert cloud.launch(specs=[spec(secrets=('WANDB_API_KEY',))]) in (1, 42)
  assert 'scp' in [call[3] for call in cloud.calls()]
  assert [p.name for p in (cloud.repo / '.launch/job').iterdir()] == ['fairjax-launch-job.tar.gz']


def test_a_secret_in_an_argument_is_refused_before_it_is_shown(cloud):
  executor = cloud.executor(secrets=[CANARY])
  for act in (lambda: executor.run(Run(('echo', f'--key={CANARY}'), 'say it')),
              lambda: cloud.launch(specs=[spec(env=(('X', CANARY),))], executor=executor)):
    with pytest.raises(UserError, match='holds a secret') as e:
      act()
    assert CANARY not in str(e.value)
  assert cloud.calls() == []


def test_deleting_what_is_gone_is_no_failure(cloud):
  cloud.world([['ACTIVE']])
  assert cloud.launch('down') == 0


def test_code_2_is_not_repeated_and_a_missing_program_is_named(cloud):
  with pytest.raises(StepFailed):
    cloud.executor().run(Run(('bash', '-c', 'echo x >>tried; exit 2'), 'try', tries=5))
  assert (cloud.repo / 'tried').read_text() == 'x\n' and cloud.pauses == []
  with pytest.raises(UserError, match='gclod is not installed'):
    cloud.executor().run(Run(('gclod',), 'try'))


def test_ctrl_c_names_what_is_left_and_how_to_delete_it(cloud):
  cloud.world([['WAITING_FOR_RESOURCES']])
  process = subprocess.Popen(
    [sys.executable, '-m', 'fairjax', 'tpu', 'up', '--tpu=v3-8', '--zone=europe-west4-a',
     '--name=job'], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    start_new_session=True)
  end = time.monotonic() + 60
  while [call[3] for call in cloud.calls()][-2:] != ['create', 'describe'] \
      and time.monotonic() < end:
    time.sleep(0.05)
  os.killpg(process.pid, signal.SIGINT)
  _, errors = process.communicate(timeout=60)
  assert process.returncode == 42, errors
  assert 'still there, and costing money as soon as it is granted: queued resource job (1 x v3-8)' \
    in errors
  assert 'queued-resources delete job --zone=europe-west4-a --force --quiet' in errors
  assert 'Traceback' not in errors


@pytest.mark.parametrize(('codes', 'code', 'starts'), [('0 0', 0, 'ab'), ('2 0', 2, 'a')])
def test_a_sweep_runs_its_points_on_one_slice_up_to_the_first_that_fails(
    cloud, codes, code, starts):
  cloud.world([['ACTIVE']], codes=(codes,), hosts=('w-0',))
  points = [spec(command=('run', f'--workdir=gs://bucket-1/{x}')) for x in 'ab']
  assert cloud.launch(specs=points) == code
  assert cloud.verbs().count('create') == 1 and cloud.verbs().count('start') == len(starts)
  words = (cloud.folder / 'hosts/w-0/argv').read_bytes()
  assert words == f'run\0--workdir=/mnt/fairjax/bucket-1/{starts[-1]}\0'.encode()
  assert ('2 of 2: run --workdir=gs://bucket-1/b' in cloud.log()) == (code == 0)
