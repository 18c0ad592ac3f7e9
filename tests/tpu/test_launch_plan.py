"""Plans of launches: pure, golden, quoted, accepted by the real gcloud; their page is golden too.

`FAIRJAX_UPDATE_GOLDEN=1 pytest tests/tpu/test_launch_plan.py` writes the golden blocks anew; read
the difference before you commit it.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess

import pytest
import yaml

from fairjax.cli import main as cli
from fairjax.cli import tpu_verbs as launch_verb
from fairjax.config import Config
from fairjax.config_io import described_fields
from fairjax.errors import UserError
from fairjax.tpu.chips import CHIPS, find_slice
from fairjax.tpu.launch import plan
from fairjax.tpu.launch.commands import Run, Write, joint_code, render, verdict
from fairjax.tpu.launch.gke import manifest
from fairjax.tpu.launch.plan import VERBS
from fairjax.tpu.launch.shipped import PATH_FIELDS, not_on_workers
from fairjax.tpu.launch.sky import task
from fairjax.tpu.launch.spec import (
  BACKENDS,
  LaunchSpec,
  accelerator_names,
  check_spec,
  expand_sweep,
  parse_accelerator,
)
from fairjax.tpu.launch.workers import start_command

ROOT = pathlib.Path(__file__).resolve().parents[2]
UPDATE = os.environ.get('FAIRJAX_UPDATE_GOLDEN') == '1'
COMMAND = ('run', '--config=configs/wmt19.py', '--workdir=gs://my-bucket/wmt19')


def spec(**more) -> LaunchSpec:
  return LaunchSpec(**{'tpu': 'v5litepod-16', 'zone': 'us-west4-a', 'command': COMMAND, **more})


FULL = {
  'queued': spec(
    spot=True, project='my-project', labels=(('team', 'fair'),), valid_until='1d',
    service_account='tpu@my-project.iam.gserviceaccount.com', network='net', subnetwork='sub',
    internal_ip=True, env=(('LIBTPU_INIT_ARGS', '--a=1 --b=2'),), secrets=('WANDB_API_KEY',)),
  'gke': spec(tpu='v6e-256', zone='us-east5-b', backend='gke', slices=2, spot=True,
              image='us-docker.pkg.dev/my-project/fairjax/fairjax:1', cluster='my-cluster',
              service_account='trainer', secrets=('WANDB_API_KEY',)),
  'sky': spec(tpu='v6e-16', zone='us-east5-b', backend='sky', spot=True,
              secrets=('WANDB_API_KEY',)),
  'compute': spec(tpu='tpu7x-128', zone='us-central1-c', backend='compute', project='my-project',
                  reservation='my-reservation', iap=True, secrets=('WANDB_API_KEY',)),
}


# ------------------------------------------------------------------------------- golden

@pytest.mark.parametrize('backend', BACKENDS)
def test_every_verb_of_every_backend_is_as_written_down(backend):
  blocks = [f'== {verb}\n' + render(plan(verb, check_spec(FULL[backend], verb), follow=True))
            for verb in VERBS]
  path = ROOT / 'tests' / 'golden' / 'launch' / f'{backend}.txt'
  if UPDATE:
    path.parent.mkdir(exist_ok=True)
    path.write_text(''.join(blocks))
  assert ''.join(blocks) == path.read_text()


DOCS = ROOT / 'docs' / 'launch.md'
BLOCK = re.compile(r'^```console\n\$ (fairjax launch .*?--dry_run.*?)\n(?=#|gcloud)(.*?)^```$',
                   re.M | re.S)


def test_the_golden_blocks_of_the_page_are_what_a_dry_run_prints(capsys, monkeypatch):
  monkeypatch.chdir(ROOT)
  text = DOCS.read_text(encoding='utf-8')
  blocks = list(BLOCK.finditer(text))
  words = ' '.join(block[1] for block in blocks)
  for tpu in ('v3-128', 'v5litepod-16', 'v6e-256', '--slices=2', 'v5p-64', 'tpu7x-', '--spot'):
    assert tpu in words
  for block in blocks:
    assert cli.main(shlex.split(block[1].replace('\\\n', ' '))[1:]) == 0
    printed = capsys.readouterr().out
    if UPDATE:
      text = text.replace(block[0], f'```console\n$ {block[1]}\n{printed}```')
    else:
      assert printed == block[2], block[1]
  if UPDATE:
    DOCS.write_text(text, encoding='utf-8')


def test_the_commands_of_the_page_parse():
  lines = re.findall(r'^```bash\n(.*?)^```', DOCS.read_text(encoding='utf-8'), re.M | re.S)
  commands = [line for line in ''.join(lines).replace('\\\n', ' ').splitlines()
              if line.startswith('fairjax ')]
  assert len(commands) >= 9
  for line in commands:
    assert cli.parse(shlex.split(line, comments=True)[1:]).verb == 'launch'


def test_the_page_names_every_option(capsys):
  with pytest.raises(SystemExit):
    cli.main(['launch', '--help'])
  options = set(re.findall(r'--[a-z_]+', capsys.readouterr().out)) - {
    '--help', '--debug', '--config', '--workdir', '--zone', '--tpu'}
  page = DOCS.read_text(encoding='utf-8')
  assert [o for o in sorted(options) if f'`{o}' not in page] == []


# ------------------------------------------------------------------------------- argv

def argvs(backend: str) -> list[tuple[str, ...]]:
  steps = [s for verb in VERBS for s in plan(verb, FULL[backend], follow=True)]
  return [s.argv for s in steps if isinstance(s, Run)]


def called_by_scripts(folder: pathlib.Path) -> list[list[str]]:
  """What the scripts of launch/ give to gcloud, with a gcloud that only writes it down."""
  fake = folder / 'bin' / 'gcloud'
  fake.parent.mkdir()
  fake.write_text('#!/usr/bin/env bash\n{ printf "%s\\0" "$@"; printf "\\n"; } >>"$CALLS"\n'
                  'case "$*" in *list*) echo host-1 ;; *describe*) echo ACTIVE ;; esac\n')
  fake.chmod(0o755)
  repo = folder / 'repo'
  shutil.copytree(ROOT / 'launch', repo / 'launch')
  for words in (['init', '-q'], ['add', '.'], ['-c', 'user.name=t', '-c', 'user.email=t@t',
                                               'commit', '-qm', 'x']):
    subprocess.run(['git', *words], cwd=repo, check=True)
  env = {'PATH': f'{fake.parent}:{os.environ["PATH"]}', 'CALLS': str(folder / 'calls'),
         'HOME': str(folder)}
  for words in (
      ['create.sh', 'n', 'v5litepod-16', 'us-west4-a', '--spot'],
      ['run.sh', 'n', 'us-west4-a', 'run', '--workdir=/x'], ['delete.sh', 'n', 'us-west4-a'],
      ['clean.sh', 'queued', '--zone=us-west4-a'],
      ['clean.sh', 'compute', '--zone=us-west4-a', '--project=p'],
      ['on_hosts.sh', 'ssh', 'g', '--zone=us-west4-a', '--project=p', '--internal-ip', '--', 'ls'],
      ['on_hosts.sh', 'scp', 'g', '--zone=us-west4-a', '--tunnel-through-iap', '--', 'a', 'b']):
    subprocess.run(['bash', f'launch/{words[0]}', *words[1:]], cwd=repo, env=env, check=True,
                   capture_output=True)
  return [['gcloud', *line.split('\0')[:-1]]
          for line in (folder / 'calls').read_text().splitlines()]


@pytest.mark.slow
def test_the_real_gcloud_takes_every_argument(tmp_path):
  if not shutil.which('gcloud'):
    pytest.skip('gcloud is not installed')
  commands = [list(a) for backend in BACKENDS for a in argvs(backend) if a[0] == 'gcloud']
  commands += called_by_scripts(tmp_path)
  # What runs on the workers is not gcloud's matter; without it many are the same.
  short = [['--command=x' if w.startswith('--command=') else w for w in c] for c in commands]
  good = sorted({shlex.join(c) for c in short})
  # The linter takes several commands at once. A wrong one shows that it looks at all.
  bad = 'gcloud compute tpus queued-resources create q --node-id=n --zone=z --sopt'
  path = tmp_path / 'commands.json'
  path.write_text(json.dumps([{'command_string': c} for c in [*good, bad]]))
  done = subprocess.run(
    ['gcloud', 'meta', 'lint-gcloud-commands', f'--commands-file={path}'], text=True,
    capture_output=True, env={**os.environ, 'CLOUDSDK_CONFIG': str(tmp_path / 'config')})
  if done.returncode and 'lint-gcloud-commands' in done.stderr:
    pytest.skip(f'this gcloud has no linter: {done.stderr.splitlines()[0]}')
  found = [r for r in json.loads(done.stdout) if not r['success']]
  assert [r['command_string'] for r in found] == [bad], [
    (r['command_string'], r['error_message']) for r in found]
  assert len(good) > 20


def test_the_real_kubectl_takes_every_argument(tmp_path):
  if not shutil.which('kubectl'):
    pytest.skip('kubectl is not installed')
  env = {'PATH': os.environ['PATH'], 'HOME': str(tmp_path), 'KUBECONFIG': '/nonexistent'}

  def errors(argv):  # no cluster is there: what it says comes after the words were read
    return subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True).stderr

  assert 'unknown flag' in errors(['kubectl', 'get', 'pods', '--selektor=a'])
  commands = [a for a in argvs('gke') if a[0] == 'kubectl']
  assert len(set(commands)) >= 9
  for argv in sorted(set(commands)):
    told = errors(argv)
    assert 'unknown' not in told and 'Usage' not in told and '--help' not in told, (argv, told)


# ------------------------------------------------------------------------------- quoting

PIECES = ['a', ' ', '  ', "'", '"', '$HOME', '$(id)', '`id`', '\n', '\\', '\\n', '*', '?', '~', '!',
          '#', '&', ';', '|', '<', '>', '(', '{a,b}', '=', '--', 'ä', '日', '\t', '\x7f', '%s', '']


def odd_words(seed: int) -> tuple[str, ...]:
  choose = random.Random(seed)
  return tuple(''.join(choose.choices(PIECES, k=choose.randint(0, 6)))
               for _ in range(choose.randint(1, 6)))


@pytest.fixture
def host(tmp_path):
  """A home whose worker.sh writes down its words."""
  script = tmp_path / 'fairjax-launch' / 'fairjax-v5litepod-16' / 'code' / 'launch' / 'worker.sh'
  script.parent.mkdir(parents=True)
  script.write_text('printf "%s\\0" "$@" >words\n')
  return tmp_path


@pytest.mark.parametrize('seed', range(60))
def test_words_reach_the_worker_as_they_were(host, seed):
  words = odd_words(seed)
  command = start_command(spec(command=words, env=(('A', words[0]),)))
  # gcloud cuts the command at single blanks, ssh joins the pieces with blanks, the login shell of
  # the worker reads the result.
  line = ' '.join(command.split(' '))
  subprocess.run(['bash', '-c', line], cwd=host, check=True)
  arrived = [w.decode() for w in (host / 'words').read_bytes().split(b'\0')[:-1]]
  assert arrived == ['start', 'fairjax-v5litepod-16', '20', 'env', 'JAX_COORDINATOR_PORT=8476',
                     f'A={words[0]}', 'fairjax', *words]


def test_a_dry_run_pasted_into_bash_gives_the_same_words(tmp_path):
  steps = [Run(('dump', *odd_words(seed), f'end-{seed}'), f'number {seed}') for seed in range(40)]
  steps.append(Write(str(tmp_path / 'a file'), "it's $HOME\n\\n\n", 'write it'))
  script = 'dump() { printf "%s\\0" "$@"; }\n' + render(steps)
  done = subprocess.run(['bash', '-c', script], capture_output=True, check=True, cwd=tmp_path)
  expected = b''.join(word.encode() + b'\0' for s in steps[:-1] for word in s.argv[1:])
  assert done.stdout == expected
  assert (tmp_path / 'a file').read_text() == "it's $HOME\n\\n\n"


def test_no_step_goes_through_a_shell_here():
  for backend in BACKENDS:
    for argv in argvs(backend):
      assert argv[:2] != ('bash', '-c') and argv[0] in (
        'gcloud', 'bash', 'kubectl', 'sky', 'mkdir', 'rm')
      assert all(isinstance(word, str) and word for word in argv)


# ------------------------------------------------------------------------------- accelerators

@pytest.mark.parametrize(('name', 'devices', 'topology', 'runtime'), [
  ('v2-8', 8, 'v2:2x2', 'tpu-ubuntu2204-base'), ('v3-128', 128, 'v3:8x8', 'tpu-ubuntu2204-base'),
  ('v4-8', 4, 'v4:2x2x1', 'tpu-ubuntu2204-base'), ('v4-32', 16, 'v4:2x2x4', 'tpu-ubuntu2204-base'),
  ('v5litepod-1', 1, 'v5e:1x1', 'v2-alpha-tpuv5-lite'),
  ('v5litepod-16', 16, 'v5e:4x4', 'v2-alpha-tpuv5-lite'),
  ('v5p-64', 32, 'v5p:2x4x4', 'v2-alpha-tpuv5'), ('v6e-256', 256, 'v6e:16x16', 'v2-alpha-tpuv6e'),
  ('tpu7x-8', 8, 'tpu7x:2x2x1', ''), ('tpu7x-128', 128, 'tpu7x:4x4x4', '')])
def test_cores_and_chips_become_devices_and_topologies(name, devices, topology, runtime):
  a = parse_accelerator(name)
  assert (a.num_devices, a.topology, a.chip.cloud.runtime) == (devices, topology, runtime)


def test_the_table_is_the_compilers():
  names = accelerator_names()
  assert len(names) == len(set(names)) > 50 and 'v3-16' not in names
  for name in names:
    a = parse_accelerator(name)
    if a.chip.compiles:
      assert find_slice(a.topology).num_devices == a.num_devices
    if a.chip.cloud.machine and (a.num_chips > 1 or a.chip.cloud.machine_of_one):
      assert a.num_machines * a.chips_per_machine == a.num_chips


@pytest.mark.parametrize(('name', 'line'), [
  ('v3-16', 'no v3 slice of 16 cores is known'), ('v5p-7', 'no v5p slice of 7 cores'),
  ('v7-8', "unknown accelerator type 'v7-8'"), ('v5litepod16', 'unknown accelerator type'),
  ('v5litepod-24', 'known: v5litepod-1, v5litepod-4')])
def test_unknown_types_say_what_is_known(name, line):
  with pytest.raises(UserError) as e:
    parse_accelerator(name)
  assert line in str(e.value)


def test_a_shape_must_have_the_size_of_the_type():
  assert parse_accelerator('v5p-1536', shape='8x8x12').num_devices == 768
  for shape, line in (('8x8', 'has 3 sides'), ('8x8x8', '512 chips'), ('0x8x12', 'has 3 sides')):
    with pytest.raises(UserError, match=line):
      parse_accelerator('v5p-1536', shape=shape)


# ------------------------------------------------------------------------------- what is wrong

@pytest.mark.parametrize(('more', 'line'), [
  ({'name': 'Run_1'}, '--name='), ({'name': 'a' * 41}, 'at most 40'),
  ({'name': '-x; id'}, '--name='),
  ({'zone': 'us-west4'}, '--zone='), ({'zone': 'us-west4-a; id'}, '--zone='),
  ({'valid_until': '6'}, '--valid_until='), ({'labels': (('Team', 'x'),)}, '--label=Team'),
  ({'labels': (('managed-by', 'me'),)}, 'not one of'), ({'labels': (('a', 'b,c=d'),)}, '--label='),
  ({'env': (('HF_TOKEN', 'x'),)}, 'say --secret=HF_TOKEN'), ({'env': (('A B', 'x'),)}, '--env='),
  ({'secrets': ('A=B',)}, '--secret=A=... must be the name'), ({'backend': 'queue'}, '--backend='),
  ({'tpu': 'tpu7x-8'}, 'does not offer tpu7x'), ({'slices': 0}, 'at least 1'),
  ({'tpu': 'v3-32', 'slices': 2}, 'cannot be joined'),
  ({'spot': True, 'reserved': True}, 'exclude'),
  ({'backend': 'gke'}, '--image='),
  ({'backend': 'gke', 'tpu': 'v3-8', 'image': 'i'}, 'GKE does not'),
  ({'backend': 'compute'}, 'Compute Engine does not offer v5e'),
  ({'backend': 'compute', 'tpu': 'v6e-16'}, '--project=ID'),
  ({'backend': 'compute', 'tpu': 'v6e-1', 'reserved': True}, '--reservation=NAME'),
  ({'backend': 'compute', 'tpu': 'tpu7x-128', 'slices': 2}, 'several slices'),
  ({'backend': 'sky', 'tpu': 'tpu7x-8'}, 'SkyPilot'),
  ({'internal_ip': True, 'iap': True}, 'choose'),
  ({'command': ()}, 'what shall run?'), ({'command': ('run', 'a\0b')}, 'NUL'),
  ({'command': ('run', '--workdir=runs/x')}, 'another folder on every worker'),
  ({'command': ('run', '--workdir=gs://b/x')}, 'names no bucket'),
  ({'restarts': -1}, '--restarts'), ({'reservation': 'r'}, 'queued resources take --reserved')])
def test_what_is_wrong_is_said_before_anything_is_asked_for(more, line):
  with pytest.raises(UserError) as e:
    check_spec(spec(**more), 'run')
  assert line in str(e.value) and '\n' not in str(e.value)


def test_all_faults_come_in_one_line():
  with pytest.raises(UserError) as e:
    check_spec(spec(name='X', zone='y', slices=0, command=()), 'run')
  assert all(part in str(e.value) for part in ('--name', '--zone', '--slices', 'what shall run'))


def test_a_workdir_on_one_machine_may_be_local():
  for tpu in ('v5litepod-8', 'v6e-8', 'v4-8', 'v3-8'):
    check_spec(spec(tpu=tpu, command=('run', '--workdir=runs/x')), 'run')
  for tpu in ('v5litepod-16', 'v4-16', 'v3-32'):
    with pytest.raises(UserError, match='another folder on every worker'):
      check_spec(spec(tpu=tpu, command=('run', '--workdir=runs/x')), 'run')


@pytest.mark.parametrize(('words', 'line'), [
  ('--tpu=v3-8 --zone=us-west4-a -- runn', "did you mean 'run'"),
  ('--tpu=v3-8 --zone=us-west4-a -- run --config=configs/none.py --workdir=x', 'not found'),
  ('--tpu=v3-8 --zone=us-west4-a -- run --config=configs/wmt19.py --config.lm.stps=1 --workdir=x',
   'lm.stps'),
  ('--tpu=v5litepod-4 --zone=us-west4-a -- run --config=configs/wmt19.py --workdir=x',
   'does not fit the 4 devices'),
  ('--tpu=v6e-8 --slices=2 --zone=us-west4-a -- run --config=configs/wmt19.py --workdir=gs://bkt/x',
   '--config.mesh.slices=2'),
  ('up --zone=us-west4-a', '--tpu=TYPE'),
  ('--tpu=v3-8 --zone=us-west4-a -- launch list --zone=us-west4-a', 'cannot launch itself'),
  ('--tpu=v3-8 --zone=us-west4-a --secret=NOT_SET_ANYWHERE -- doctor', 'is not set here'),
  ('--tpu=v3-8 --zone=us-west4-a --label=x -- doctor', 'must be KEY=VALUE'),
  ('--tpu=v3-8 --zone=us-west4-a --sweep -- doctor', '--sweep needs a command with --config'),
])
def test_a_wrong_command_costs_nothing(words, line, capsys, monkeypatch):
  monkeypatch.chdir(ROOT)
  monkeypatch.setenv('PATH', '')  # nothing could be called
  assert cli.main(['launch', *words.split()]) == 2
  errors = capsys.readouterr().err
  assert line in errors and errors.count('\n') == 1


LOCAL = ['--config=configs/text.py:train=gs://bkt/a.gz,valid=gs://bkt/b.gz,test=gs://bkt/c.gz']


@pytest.mark.parametrize(('words', 'field'), [
  (['--config=configs/text.py:train=a.txt,valid=b.txt,test=c.txt'], 'data.train=a.txt is no file'),
  ([*LOCAL, '--config.data.valid=HERE/x.gz'], 'data.valid=HERE/x.gz is on this machine'),
  ([*LOCAL, '--config.data.test=~/x.gz'], 'data.test=~/x.gz is on this machine'),
  ([*LOCAL, '--config.measure.lexicon=pos.txt,neg.txt'], 'measure.lexicon=pos.txt'),
  ([*LOCAL, "--config.measure.scorers=('vader','bert:models/x')"], 'measure.scorers=models/x'),
  ([*LOCAL, '--config.sentiment.scorer=bert:HERE'], 'sentiment.scorer=HERE is on this machine'),
  ([*LOCAL, '--config.measure.encoder=use:../use'], 'measure.encoder=../use is no file'),
  ([*LOCAL, '--config.data.vocabulary=runs/v'], 'data.vocabulary=runs/v'),
  ([*LOCAL, '--config.data.cda_names=ssa/yob2000.txt', '--config.data.cda=two'],
   'data.cda_names=ssa/yob2000.txt'),
  ([*LOCAL, '--config.attribute=mine.yaml'], 'attribute=mine.yaml'),
  (['--config=configs/wikitext103.py:corpus=wiki'], 'data.manual_dir=wiki'),
  (['--config=configs/wmt19.py'], 'data.train=wmt19/news-docs.*.en.filtered.gz is no file'),
  (['--config=HERE/c.py'], '--config=HERE/c.py is on this machine'),
  (['--config=HERE/c.json'], '--config=HERE/c.json is on this machine'),
])
def test_what_no_worker_has_is_refused(words, field, capsys, monkeypatch, tmp_path):
  for name in ('x.gz', 'c.py', 'c.json'):
    (tmp_path / name).write_text('')
  monkeypatch.chdir(ROOT)
  words = [w.replace('HERE', str(tmp_path)) for w in words]
  assert cli.main(['launch', '--tpu=v5litepod-16', '--zone=us-west4-a', '--dry_run', '--', 'run',
                   '--workdir=gs://bkt/w', *words]) == 2
  errors = capsys.readouterr().err
  assert field.replace('HERE', str(tmp_path)) in errors and errors.count('\n') == 1
  assert 'no worker has what the command reads' in errors and 'gs://BUCKET/PATH' in errors


@pytest.mark.parametrize('words', [
  ['run', *LOCAL], ['run', '--config=configs/quickstart.py'],
  ['run', '--config=configs/text.py:train=docs/*.md,valid=README.md,test=/shared/x.gz'],
  ['run', *LOCAL, '--config.measure.scorers=bert:tests/golden/pretrained/bert_classifier'],
  ['run', *LOCAL, "--config.data.cda_pairs=('none',)", '--config.data.vocabulary=word',
   '--config.data.cda=one', '--config.data.cda_names=gs://bkt/names.txt'],
  ['run', *LOCAL, '--config.measure.encoder=minilm', '--config.data.vocabulary=gs://bkt/v'],
  ['measure', '--records=gs://bkt/r.jsonl', '--attribute=country', '--scorer=vader',
   '--output=/tmp/o.json'],
  ['run', '--config=/nowhere/here.py'], ['doctor']])
def test_what_workers_have_is_taken(words, capsys, monkeypatch):
  monkeypatch.chdir(ROOT)
  workdir = ['--workdir=gs://bkt/w'] if words[0] == 'run' else []
  assert cli.main(['launch', '--tpu=v5litepod-16', '--zone=us-west4-a', '--dry-run', '--',
                   *words, *workdir]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(('words', 'line'), [
  (['measure', '--records=r.jsonl', '--attribute=country', '--scorer=vader'], '--records=r.jsonl'),
  (['measure', '--records=gs://bkt/r.jsonl', '--attribute=mine.yaml', '--scorer=bert:b/x'],
   '--attribute=mine.yaml is no file of the repository; --scorer=b/x'),
  (['sample', '--pretrained=models/gpt2', '--attribute=country', '--output=gs://bkt/o.jsonl'],
   '--pretrained=models/gpt2'),
  (['masked-lm', 'train', '--data', 'a.txt', '--workdir=gs://bkt/w'], '--data=a.txt')])
def test_options_that_name_what_no_worker_has_are_refused(words, line, capsys, monkeypatch):
  monkeypatch.chdir(ROOT)
  assert cli.main(['launch', '--tpu=v3-8', '--zone=us-west4-a', '--dry_run', '--', *words]) == 2
  assert line in capsys.readouterr().err


def test_what_git_does_not_track_and_what_only_a_config_names_is_refused(tmp_path):
  subprocess.run(['git', 'init', '-q'], cwd=tmp_path, check=True)
  for name in ('tracked.txt', 'untracked.txt', 'folder/a.txt'):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('')
  subprocess.run(['git', 'add', 'tracked.txt', 'folder'], cwd=tmp_path, check=True)
  paths = [('a', name) for name in ('tracked.txt', './folder', 'folder/*.txt', 'untracked.txt',
                                    'gs://bkt/in', 'gs://bkt/no')]
  assert not_on_workers(paths, root=tmp_path, command=['--x=gs://bkt/in/y']) == [
    'a=untracked.txt is not tracked by git',
    'a=gs://bkt/no is named in the config file only: say it in the command, so that the workers '
    'mount the bucket']
  # In a copy that the repository around it ignores, what is there decides; pack.sh refuses it.
  (tmp_path / '.gitignore').write_text('copy')
  (tmp_path / 'copy').mkdir()
  (tmp_path / 'copy' / 'x.txt').write_text('')
  assert not_on_workers([('a', 'x.txt'), ('b', 'y.txt')], root=tmp_path / 'copy', command=[]) == [
    'b=y.txt is no file of the repository']


def test_every_field_that_reads_files_is_known():
  """Those whose comment speaks of a file or folder; the rest of them take PREFIX:DIR."""
  found = {name for name, _, kind, words in described_fields(Config())
           if 'str' in kind and re.search(r'\b(files?|folder|DIR|path|as train)\b', words)}
  assert found - PATH_FIELDS.keys() == {
    'data.source', 'sentiment.scorer', 'measure.scorers', 'measure.encoder'}
  assert PATH_FIELDS.keys() <= found


def test_options_behind_the_dashes_are_the_commands_own():
  options = cli.parse(['launch', '--tpu=v3-8', '--zone=z', '--', 'run', '--config=a',
                       '--config.lm.steps=5', '--workdir=b', '--', 'x'][:-2])
  assert options.command == ['run', '--config=a', '--config.lm.steps=5', '--workdir=b']
  assert options.overrides == {} and options.inner.overrides == {'lm.steps': '5'}
  assert options.action == 'run'


@pytest.mark.parametrize(('inner', 'chips', 'added'), [
  ({'distributed': None}, 16, True), ({'distributed': None}, 4, False),
  ({'distributed': 'a:1,2,0'}, 16, False), ({}, 16, False)])
def test_workers_that_work_together_are_told_to(inner, chips, added):
  words = launch_verb.worker_words(['run', '--workdir=x'], argparse.Namespace(**inner), chips)
  assert words == ('run', '--workdir=x', *(['--distributed=auto'] if added else []))


# ------------------------------------------------------------------------------- exit codes

def test_exit_codes_mean_the_same_on_the_worker():
  loop = 'for c in {0..255}; do bash launch/worker.sh verdict $c; done'
  body = (ROOT / 'launch' / 'worker.sh').read_text()
  function = re.search(r'^verdict\(\) \{\n.*?^\}\n', body, re.M | re.S)[0]
  done = subprocess.run(['bash', '-c', function + loop.replace('bash launch/worker.sh ', '')],
                        capture_output=True, text=True, check=True)
  assert done.stdout.split() == [verdict(code) for code in range(256)]
  assert {c for c in range(256) if verdict(c) == 'restart'} == {42, *range(129, 256)}


def test_the_worker_that_the_user_can_mend_decides():
  assert joint_code([0, 42, 134, 1, 2]) == 2 and joint_code([134, 42, 7, 0]) == 7
  assert joint_code([0, 42]) == 42 and joint_code([0]) == 0


# ------------------------------------------------------------------------------- manifests

def test_the_jobset_has_a_pod_for_every_host_and_restarts_what_the_codes_say():
  found = yaml.safe_load(next(s.text for s in plan('run', FULL['gke']) if isinstance(s, Write)))
  assert found == manifest(FULL['gke'])
  job = found['spec']['replicatedJobs'][0]
  inner = job['template']['spec']
  pod = inner['template']['spec']
  container, = pod['containers']
  assert job['replicas'] == 2 and found['spec']['suspend'] is False
  assert inner['parallelism'] == inner['completions'] == 64 and inner['backoffLimit'] == 0
  assert container['resources']['limits']['google.com/tpu'] * 64 == 256
  rule, = inner['podFailurePolicy']['rules']
  restarted = {c for c in range(256) if verdict(c) == 'restart'}
  assert rule['onExitCodes'] == {
    'containerName': container['name'], 'operator': 'NotIn', 'values': sorted(restarted)}
  assert rule['action'] == 'FailJob' and pod['restartPolicy'] == 'Never'
  assert pod['nodeSelector']['cloud.google.com/gke-tpu-topology'] == '16x16'
  assert container['command'] == ['fairjax', 'run', '--config=configs/wmt19.py',
                                  '--workdir=/mnt/fairjax/my-bucket/wmt19']
  assert container['volumeMounts'][0]['name'] == pod['volumes'][0]['name']


def test_kubernetes_puts_nothing_in_the_place_of_a_dollar():
  words = manifest(dataclasses.replace(FULL['gke'], command=('run', '$(A) $B')))
  pod = words['spec']['replicatedJobs'][0]['template']['spec']['template']['spec']
  assert pod['containers'][0]['command'][-1] == '$$(A) $B'


def test_the_task_of_skypilot_restarts_after_42_alone_and_knows_no_secret(tmp_path):
  found = yaml.safe_load(next(s.text for s in plan('run', FULL['sky']) if isinstance(s, Write)))
  assert found == task(FULL['sky'])
  assert found['resources']['job_recovery'] == {
    'max_restarts_on_errors': 0, 'recover_on_exit_codes': [42]}
  assert found['secrets'] == {'WANDB_API_KEY': None}
  words = odd_words(5)
  script = tmp_path / 'launch' / 'worker.sh'
  script.parent.mkdir()
  script.write_text('printf "%s\\0" "$@"\n')
  run = yaml.safe_load(yaml.safe_dump(task(dataclasses.replace(FULL['sky'], command=words))))['run']
  done = subprocess.run(['bash', '-c', run], cwd=tmp_path, capture_output=True, check=True)
  assert [w.decode() for w in done.stdout.split(b'\0')[:-1]] == ['exec', 'fairjax', *words]


# ------------------------------------------------------------------------------- sweeps

def test_a_sweep_is_the_grid_of_its_config(capsys, monkeypatch):
  monkeypatch.chdir(ROOT)
  assert cli.main(['launch', '--tpu=v6e-16', '--zone=us-east5-b', '--sweep', '--dry_run', '--',
                   'run', '--config=configs/quickstart.py', '--workdir=gs://bkt/q']) == 0
  printed = capsys.readouterr().out
  assert re.findall(r'--workdir=/mnt/fairjax/bkt/q/([a-z0-9-]+)', printed) == [
    'country', 'occupation', 'name']
  assert 'step1_from' not in printed  # the planted text is about the attribute


def test_a_sweep_trains_step_1_once(capsys, monkeypatch):
  monkeypatch.chdir(ROOT)
  sweep = ['launch', '--zone=us-east5-b', '--sweep', '--dry_run', '--tpu=v6e-16']
  command = ['--', 'run', '--config=configs/wikitext103.py', '--workdir=gs://bkt/w']
  assert cli.main([*sweep, *command]) == 0
  starts = [line for line in capsys.readouterr().out.splitlines() if '--config.attribute=' in line]
  assert [re.search(r'--workdir=\S+/w/(\w+)', line)[1] for line in starts] == [
    'country', 'occupation', 'name']
  assert ['--config.step1_from=../country' in line for line in starts] == [False, True, True]
  # Where all would start at once, the first goes alone.
  gke = [*sweep, '--backend=gke', '--image=i']
  assert cli.main([*gke, *command]) == 2
  error = capsys.readouterr().err
  assert 'add --config.step1_from=gs://bkt/w/country to the sweep' in error
  assert error.count('\n') == 1
  assert cli.main([*gke, *command, '--config.step1_from=gs://bkt/w/country']) == 0
  printed = capsys.readouterr().out
  assert printed.count('--config.step1_from=/mnt/fairjax/bkt/w/country') == 2  # not of itself


def test_points_with_another_step_1_train_their_own():
  points = [{'seed': s, 'debias.variants': (v,)} for s in (0, 1)
            for v in ('cda:one', 'dropout:0.1')]
  found = [[w for w in words if 'step1_from' in w] for _, words in expand_sweep(
    ('run', '--workdir=x'), points)]
  assert found == [[], ['--config.step1_from=../0-cda-one'], [],
                   ['--config.step1_from=../1-cda-one']]
  points = [{'attribute': a, 'debias.variants': (v,)} for a in ('name', 'country')
            for v in ('embedding:1', 'embedding:2')]
  for planted, count in ((False, 3), (True, 2)):
    found = expand_sweep(('run', '--workdir=x'), points, planted=planted)
    assert sum('step1_from' in ' '.join(words) for _, words in found) == count


@pytest.mark.parametrize(('command', 'points', 'line'), [
  (('run', '--workdir=x'), [], 'no points'), (('run',), [{'seed': 1}], '--workdir=DIR'),
  (('run', '--workdir=x'), [{'seed': 1}, {'seed': 1}], 'names of their own')])
def test_sweeps_that_cannot_be(command, points, line):
  with pytest.raises(UserError, match=line):
    expand_sweep(command, points)


def test_a_sweep_with_a_wrong_field_costs_nothing(tmp_path, monkeypatch, capsys):
  text = (ROOT / 'configs' / 'quickstart.py').read_text()
  (tmp_path / 'c.py').write_text(text.replace('add(attribute=', 'add(atribute='))
  monkeypatch.chdir(tmp_path)
  assert cli.main(['launch', '--tpu=v5litepod-4', '--zone=us-west4-a', '--sweep', '--dry_run', '--',
                   'run', '--config=c.py', '--workdir=gs://bkt/q']) == 2
  assert 'atribute' in capsys.readouterr().err


def test_every_generation_is_in_the_shell_script_as_in_the_table():
  text = (ROOT / 'launch' / 'create.sh').read_text()
  for chip in CHIPS.values():
    line = next((x for x in text.splitlines() if f'{chip.cloud.prefix}-*' in x), '')
    if chip.cloud.runtime:
      assert re.search(r"runtime='(.*)'", line)[1] == chip.cloud.runtime
    else:
      assert not line
