"""From a spec to commands: `plan(verb, spec)` touches nothing and depends on nothing else.

A slice is a queued resource of the Cloud TPU API, v2 to v6e: one request gives all slices, one name
reaches them all. Checked against `gcloud` 528: `queued-resources create` takes exactly one of
`--node-id` and `--node-count` (above 1); `ssh` and `scp` take `--node=all --worker=all`, so that
nobody counts hosts; `delete` needs `--force` to delete the nodes, too. The scripts that run on the
workers are `launch/*.sh`; they travel with the code, a checkout's or the installed package's.
"""

import dataclasses
import pathlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.config import STEP1_FIELDS
from fairjax.errors import UserError, unknown_name
from fairjax.tpu.chips import SHAPED
from fairjax.tpu.launch.spec import LaunchSpec

VERBS = {
  'run': 'request a slice, ship the code, start the command after --, follow it',
  'up': 'request the slice and wait for it',
  'status': 'state of the slice and of the command on every worker',
  'logs': 'what the workers wrote',
  'stop': 'let the command save and end; the slice stays',
  'down': 'delete the slice',
  'list': 'what was launched in the zone and is still there',
  'clean': 'delete what is dead and only uses up quota',
}

ABSENT_ERRORS = ('was not found', 'NOT_FOUND')
_PACKAGE = pathlib.Path(__file__).resolve().parents[2]
INSTALLED = (_PACKAGE / 'launch').is_dir()  # from a wheel, which has the scripts in the package
ROOT = _PACKAGE if INSTALLED else _PACKAGE.parent
"""What the workers get, with `configs/` and `launch/`."""
_SCRIPTS = str(ROOT / 'launch') if INSTALLED else 'launch'
_GCLOUD = ('gcloud', 'compute', 'tpus', 'queued-resources')
_REMOTE = 'fairjax-launch'  # folder of all launches, in the home of the workers
_TRIES = 6


@dataclasses.dataclass(frozen=True)
class Run:
  """One command."""

  argv: tuple[str, ...]  # words, never a line for a shell
  why: str  # what it does, one line
  tries: int = 1  # more than one where the network may fail and repeating is harmless
  done_if: tuple[str, ...] = ()  # texts of errors that mean: nothing is left to do

  @property
  def remote(self) -> bool:
    """Whether it reaches workers: its output is theirs, and their ssh may not be ready yet."""
    return bool({'ssh', 'scp'} & set(self.argv))


def render(steps: Sequence[Run]) -> str:
  """The steps as lines for bash: exactly what would run, ready to be pasted."""
  text = ''
  for step in steps:
    lines = [shlex.quote(step.argv[0])]
    for word in map(shlex.quote, step.argv[1:]):
      if len(lines[-1]) + len(word) > 96:
        lines.append(f'  {word}')
      else:
        lines[-1] += f' {word}'
    text += f'# {step.why}\n' + ' \\\n'.join(lines) + '\n'
  return text


def plan(verb: str, spec: LaunchSpec, *, follow: bool = False) -> list[Run]:
  """The steps of one of `VERBS`, each once; `supervise` repeats what a lost slice undid."""
  match verb:
    case 'run':
      return [pack(spec), create(spec), describe(spec), *ship(spec), start(spec),
              logs(spec, follow=True), status(spec)]
    case 'up':
      return [create(spec), describe(spec)]
    case 'status':
      return [Run((*_GCLOUD, 'describe', spec.job, *_where(spec), '--format=value(state.state)'),
                  'the state of the request'), status(spec)]
    case 'logs':
      return [logs(spec, follow=follow)]
    case 'stop':
      return [_ssh(spec, _worker(spec, 'stop'), 'let the command save and end on every worker')]
    case 'down':
      return [delete(spec)]
    case 'list':
      return [Run((*_GCLOUD, 'list', *_where(spec),
                   '--filter=tpu.nodeSpec.node.labels.managed-by=fairjax'),
                  'list what was launched here and is still there')]
    case 'clean':
      return [Run(('bash', f'{_SCRIPTS}/clean.sh', *_where(spec)),
                  'delete our requests that failed or were taken away')]
  raise unknown_name('action of tpu', verb, VERBS)


def _where(spec: LaunchSpec) -> list[str]:
  return [f'--zone={spec.zone}', *([f'--project={spec.project}'] if spec.project else [])]


def create(spec: LaunchSpec) -> Run:
  """Requests the slices."""
  tpu = spec.slice.accelerator_type
  chip = spec.slice.chip
  options = [f'--type={chip.name}', f'--topology={spec.topology}'] if (
    spec.topology and chip.name in SHAPED) else [f'--accelerator-type={tpu}']
  options += [f'--runtime-version={spec.runtime_version or chip.cloud.runtime}']
  options += ([f'--node-id={spec.job}'] if spec.slices == 1 else
              [f'--node-count={spec.slices}', f'--node-prefix={spec.job}'])
  labels = ','.join(f'{key}={value}' for key, value in spec.all_labels.items())
  options += [f'--labels={labels}', f'--valid-until-duration={spec.valid_until}']
  for flag, value in (('service-account', spec.service_account), ('network', spec.network),
                      ('subnetwork', spec.subnetwork)):
    options += [f'--{flag}={value}'] if value else []
  for flag, wanted in (('spot', spec.spot), ('reserved', spec.reserved),
                       ('internal-ips', spec.internal_ip)):
    options += [f'--{flag}'] if wanted else []
  return Run((*_GCLOUD, 'create', spec.job, *_where(spec), *options, '--async', '--quiet'),
             f'request {spec.slices} x {tpu}; it expires if not granted within {spec.valid_until}')


def describe(spec: LaunchSpec) -> Run:
  """Asks for the state of the request."""
  return Run((*_GCLOUD, 'describe', spec.job, *_where(spec), '--format=json'),
             'ask for the state until it is ACTIVE', tries=_TRIES, done_if=ABSENT_ERRORS)


def delete(spec: LaunchSpec) -> Run:
  """Deletes the slices and their request."""
  return Run((*_GCLOUD, 'delete', spec.job, *_where(spec), '--force', '--quiet'),
             'delete the slices and the request', tries=3, done_if=ABSENT_ERRORS)


def pack(spec: LaunchSpec) -> Run:
  """Packs the code: once, before anything costs; a slice that is replaced gets the same."""
  return Run(('bash', f'{_SCRIPTS}/pack.sh', _packed(spec)), 'pack the installed package'
             if INSTALLED else 'pack the files that git tracks, as they are now')


def _packed(spec: LaunchSpec) -> str:
  return f'.launch/{spec.job}/{_REMOTE}-{spec.job}.tar.gz'


def ship(spec: LaunchSpec) -> list[Run]:
  """Installs the packed code, and the secrets apart from it, on every worker."""
  archive, packed = f'{_REMOTE}-{spec.job}.tar.gz', [_packed(spec)]
  steps, forget = [], []
  if spec.secrets:
    secrets = f'.launch/{spec.job}/{_REMOTE}-{spec.job}.env'
    packed.append(secrets)
    steps.append(Run(('bash', f'{_SCRIPTS}/secrets.sh', secrets, *spec.secrets), 'write the values '
                     f'of {", ".join(spec.secrets)} into a file that only you can read'))
    forget = [Run(('rm', '-f', secrets), 'remove the file of the secrets from here')]
  code = f'{_REMOTE}/{spec.job}/code'
  unpack = ' && '.join((
    shlex.join(('rm', '-rf', code)), shlex.join(('mkdir', '-p', code)),
    shlex.join(('tar', '-xzf', archive, '-C', code)), _worker(spec, 'setup', *spec.buckets)))
  # A worker may run something although it did not answer before: its code is left as it is.
  unpack = f'{_worker(spec, "running")} 2>/dev/null || {{ {unpack}; }}'
  return [*steps,
          Run((*_GCLOUD, 'scp', *packed, f'{spec.job}:', *_where(spec), *_on_all(spec), '--quiet'),
              'copy it to every worker', tries=_TRIES),
          *forget, _ssh(spec, unpack, 'unpack it, install what is locked')]


def start(spec: LaunchSpec) -> Run:
  """Starts the command on every worker, detached; the same command again changes nothing."""
  return _ssh(spec, _worker(spec, 'start', *_restarted(spec)),
              'start the command on every worker; it outlives this line')


def _restarted(spec: LaunchSpec) -> tuple[str, ...]:
  """How often a worker starts the command again, and the command."""
  variables = [f'{name}={value}' for name, value in spec.all_env.items()]
  return (str(spec.restarts), 'env', *variables, 'fairjax', *spec.words)


def logs(spec: LaunchSpec, *, follow: bool) -> Run:
  """Shows the log of every worker, its name before each line."""
  return _ssh(spec, _worker(spec, 'follow' if follow else 'logs'),
              'show the logs until the command ends' if follow else 'show the logs', tries=1)


def status(spec: LaunchSpec, *, tries: int = 3, own: bool = False) -> Run:
  """Asks every worker for the state of its command; `own`: of this one, not of any."""
  return _ssh(spec, _worker(spec, 'status', *(_restarted(spec) if own else ())),
              'ask how the command stands', tries=tries)


def _worker(spec: LaunchSpec, verb: str, *arguments: str) -> str:
  """One verb of `launch/worker.sh`, quoted for one shell: the login shell of the worker."""
  script = f'{_REMOTE}/{spec.job}/code/launch/worker.sh'
  return shlex.join(('bash', script, verb, spec.job, *arguments))


def _on_all(spec: LaunchSpec) -> list[str]:
  way = (['--internal-ip'] if spec.internal_ip else []) + (
    ['--tunnel-through-iap'] if spec.iap else [])
  return ['--node=all', '--worker=all', *way]


def _ssh(spec: LaunchSpec, command: str, why: str, *, tries: int = _TRIES) -> Run:
  """Runs a line in the shell of every worker of every slice."""
  # A machine that is gone answers nothing: without keepalives ssh would wait for it for hours.
  return Run((*_GCLOUD, 'ssh', spec.job, *_where(spec), *_on_all(spec),
              '--ssh-flag=-oServerAliveInterval=30', f'--command={command}', '--quiet'), why,
             tries=tries)


# Sweeps: the points of a config's `sweep(add)` become commands.

_STEP1_FROM = '--config.step1_from='


def _point_label(point: Mapping[str, Any]) -> str:
  """The name of a point's folder: `country-embedding-10`."""
  words = [str(v) for value in point.values()
           for v in (value if isinstance(value, tuple | list) else (value,))]
  return re.sub(r'[^a-z0-9]+', '-', '-'.join(words).lower()).strip('-')


def override_text(value: Any) -> str:
  """A value as `--config.a.b=TEXT` takes it."""
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, tuple | list):
    return repr(tuple(value))
  return str(value)


def expand_sweep(command: Sequence[str], points: Sequence[Mapping[str, Any]], *,
                 planted: bool = False) -> list[tuple[str, tuple[str, ...]]]:
  """(label, words) of every point: the command with its overrides and a workdir of its own.

  Points that agree in all that step 1 depends on train it once: the first of them does, and the
  others take it from there (`step1_from`), unless the command names a workdir for all. Step 1 of
  planted text depends on the attribute.

  >>> expand_sweep(('run', '--workdir=x'), [{'attribute': 'country'}, {'attribute': 'name'}])[1]
  ('name', ('run', '--workdir=x/name', '--config.attribute=name', '--config.step1_from=../country'))
  """
  if not points:
    raise UserError('the sweep has no points: its sweep(add) never calls add(...)')
  if sum(word.startswith('--workdir=') for word in command) != 1:
    raise UserError('a sweep needs one --workdir=DIR in its command: every point gets a folder '
                    'in it')
  labels = [_point_label(point) for point in points]
  twice = sorted({label for label in labels if labels.count(label) > 1})
  if twice or '' in labels:
    raise UserError(f'every point of the sweep needs a name of its own, from its values: {twice}')
  shares = command[0] == 'run' or command[:2] in (('step', 'train'), ('compare', 'mitigations'))
  shares = shares and not any(word.startswith(_STEP1_FROM) for word in command)
  expanded, firsts = [], {}
  for label, point in zip(labels, points, strict=True):
    words = [f'{word.rstrip("/")}/{label}' if word.startswith('--workdir=') else word
             for word in command]
    for name in point:
      if any(word.partition('=')[0] == f'--config.{name}' for word in words):
        raise UserError(f'--config.{name} is what the sweep changes: leave it out')
    words += [f'--config.{name}={override_text(value)}' for name, value in point.items()]
    step1 = repr(sorted((name, value) for name, value in point.items() if (
      name.partition('.')[0] in STEP1_FIELDS or (planted and name == 'attribute'))))
    if shares and firsts.setdefault(step1, label) != label:
      words.append(f'{_STEP1_FROM}../{firsts[step1]}')
    own = next(word for word in words if word.startswith('--workdir=')).partition('=')[2]
    expanded.append((label, tuple(w for w in words if w.rstrip('/') != f'{_STEP1_FROM}{own}')))
  return expanded
