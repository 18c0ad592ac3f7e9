"""Cloud TPU queued resources, v2 to v6e: one request gives all slices, one name reaches them all.

Checked against `gcloud` 528: `queued-resources create` takes exactly one of `--node-id` and
`--node-count` (above 1); `ssh` and `scp` take `--node=all --worker=all`, so that nobody counts
hosts; `delete` needs `--force` to delete the nodes, too.
"""

from fairjax.tpu.launch import workers
from fairjax.tpu.launch.commands import (
  ABSENT,
  DEAD,
  GONE,
  READY,
  UNKNOWN,
  WAITING,
  Run,
  State,
  read_answer,
)
from fairjax.tpu.launch.spec import LaunchSpec

GROUP = ('gcloud', 'compute', 'tpus', 'queued-resources')
TRIES = 6

_WAITING = {'CREATING', 'ACCEPTED', 'PROVISIONING', 'WAITING_FOR_RESOURCES'}
_DEAD = {'FAILED', 'SUSPENDING', 'SUSPENDED', 'DELETING', 'PREEMPTED', 'TERMINATED'}


def _here(spec: LaunchSpec) -> list[str]:
  return [f'--zone={spec.zone}', *([f'--project={spec.project}'] if spec.project else [])]


def up(spec: LaunchSpec) -> list[Run]:
  """Requests the slices."""
  a = spec.accelerator
  options = [f'--accelerator-type={a.name}',
             f'--runtime-version={spec.runtime_version or a.chip.cloud.runtime}']
  options += ([f'--node-id={spec.job}'] if spec.slices == 1 else
              [f'--node-count={spec.slices}', f'--node-prefix={spec.job}'])
  options += [f'--labels={_pairs(spec.all_labels)}', f'--valid-until-duration={spec.valid_until}']
  for flag, value in (('service-account', spec.service_account), ('network', spec.network),
                      ('subnetwork', spec.subnetwork)):
    options += [f'--{flag}={value}'] if value else []
  for flag, wanted in (('spot', spec.spot), ('reserved', spec.reserved),
                       ('internal-ips', spec.internal_ip)):
    options += [f'--{flag}'] if wanted else []
  return [Run((*GROUP, 'create', spec.job, *_here(spec), *options, '--async', '--quiet'),
              f'request {spec.slices} x {a.name}; it expires if not granted within '
              f'{spec.valid_until}')]


def _pairs(labels: dict[str, str]) -> str:
  return ','.join(f'{key}={value}' for key, value in labels.items())


def describe(spec: LaunchSpec) -> Run:
  """Asks for the state of the request."""
  return Run((*GROUP, 'describe', spec.job, *_here(spec), '--format=json'),
             'ask for the state until it is ACTIVE')


def show(spec: LaunchSpec) -> Run:
  """Shows the state to people."""
  return Run((*GROUP, 'describe', spec.job, *_here(spec), '--format=value(state.state)'),
             'the state of the request')


def read_state(code: int, output: str, errors: str) -> State:
  """The state from what `describe` gave."""
  if code:
    kind = ABSENT if 'NOT_FOUND' in errors or 'was not found' in errors else ''
    return State(kind, errors.strip())
  try:
    answer = read_answer(output)
    found = answer.get('state')
    name = found if isinstance(found, str) else found.get('state')
  except (ValueError, AttributeError):
    name = None
  if not isinstance(name, str) or not name:
    return State('', f'gcloud gave no state: {output.strip() or "nothing"}')
  message = found
  for field in ('failedData', 'error', 'message'):
    message = message.get(field) if isinstance(message, dict) else None
  words = f'{name}: {message}' if message else name
  if name == 'ACTIVE' or name in _WAITING:
    return State(READY if name == 'ACTIVE' else WAITING, words)
  if name not in _DEAD:
    return State(UNKNOWN, f'{words} (fairjax does not know this state, and waits)')
  return State(DEAD, words, explained=bool(message))


def ssh(spec: LaunchSpec, command: str, why: str, *, tries: int = TRIES) -> Run:
  """Runs a line in the shell of every worker of every slice."""
  return Run((*GROUP, 'ssh', spec.job, *_here(spec), '--node=all', '--worker=all',
              f'--command={command}', *_way(spec), '--quiet'), why, tries=tries)


def copy(spec: LaunchSpec) -> list[Run]:
  """Copies the packed files into the home of every worker."""
  return [Run((*GROUP, 'scp', *workers.packed_files(spec), f'{spec.job}:', *_here(spec),
               '--node=all', '--worker=all', *_way(spec), '--quiet'),
              'copy it to every worker', tries=TRIES)]


def _way(spec: LaunchSpec) -> list[str]:
  return (['--internal-ip'] if spec.internal_ip else []) + (
    ['--tunnel-through-iap'] if spec.iap else [])


def down(spec: LaunchSpec) -> list[Run]:
  """Deletes the slices and their request."""
  return [Run((*GROUP, 'delete', spec.job, *_here(spec), '--force', '--quiet'),
              'delete the slices and the request', tries=3, done_if=GONE)]


def list_all(spec: LaunchSpec) -> list[Run]:
  """Lists what was launched in the zone and is still there."""
  return [Run((*GROUP, 'list', *_here(spec),
               '--filter=tpu.nodeSpec.node.labels.managed-by=fairjax'),
              'list what was launched here and is still there')]


def clean(spec: LaunchSpec) -> list[Run]:
  """Deletes requests of ours that are dead and only use up quota."""
  return [Run(('bash', 'launch/clean.sh', 'queued', *_here(spec)),
              'delete our requests that failed or were taken away')]


def what(spec: LaunchSpec) -> str:
  """What stands there and costs money, in words."""
  return f'queued resource {spec.job} ({spec.slices} x {spec.accelerator.name}) in {spec.zone}'
