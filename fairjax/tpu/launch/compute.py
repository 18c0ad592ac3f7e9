"""Compute Engine: a managed instance group with a workload policy, the only way for TPU7x.

Checked against the arguments that `gcloud` 528 takes; nobody has rented a slice this way with
fairjax. The hosts are asked from the group by `launch/on_hosts.sh`, whenever one is needed.
"""

from fairjax.tpu.launch import workers
from fairjax.tpu.launch.commands import (
  ABSENT,
  DEAD,
  EXISTS,
  GONE,
  READY,
  UNKNOWN,
  WAITING,
  Run,
  State,
  read_answer,
)
from fairjax.tpu.launch.spec import LaunchSpec

IMAGE_PROJECT = 'ubuntu-os-accelerator-images'
TRIES = 6

_WAITING = {'', 'PENDING', 'PROVISIONING', 'STAGING', 'REPAIRING'}
_DEAD = {'STOPPING', 'STOPPED', 'TERMINATED', 'SUSPENDING', 'SUSPENDED', 'PENDING_STOP',
         'DEPROVISIONING'}


def _project(spec: LaunchSpec) -> list[str]:
  return [f'--project={spec.project}'] if spec.project else []


def up(spec: LaunchSpec) -> list[Run]:
  """Creates policy, template and group."""
  a = spec.accelerator
  steps = []
  placed = []
  if a.num_machines > 1:
    steps.append(Run(
      ('gcloud', 'compute', 'resource-policies', 'create', 'workload-policy', spec.job,
       '--type=HIGH_THROUGHPUT', f'--accelerator-topology={a.shape}', f'--region={spec.region}',
       *_project(spec), '--quiet'), f'a policy that joins the hosts to one slice of {a.shape}',
      done_if=EXISTS))
    placed = [f'--workload-policy=projects/{spec.project}/regions/{spec.region}/resourcePolicies/'
              f'{spec.job}']
  steps.append(Run(
    ('gcloud', 'compute', 'instance-templates', 'create', spec.job, f'--machine-type={a.machine}',
     f'--image-family={spec.runtime_version or a.chip.cloud.image}',
     f'--image-project={IMAGE_PROJECT}', f'--boot-disk-size={spec.disk_gb}GB',
     '--maintenance-policy=TERMINATE', *_provisioning(spec), *_network(spec),
     '--scopes=cloud-platform',
     '--labels=' + ','.join(f'{k}={v}' for k, v in spec.all_labels.items()),
     *_project(spec), '--quiet'), f'a template of the hosts: {a.machine}', done_if=EXISTS))
  steps.append(Run(
    ('gcloud', 'compute', 'instance-groups', 'managed', 'create', spec.job,
     f'--size={a.num_machines}', f'--template={spec.job}', f'--zone={spec.zone}',
     '--default-action-on-vm-failure=do-nothing', *placed, *_project(spec), '--quiet'),
    f'{a.num_machines} hosts of {a.chips_per_machine} chips: {spec.num_devices} devices'))
  return steps


def _provisioning(spec: LaunchSpec) -> list[str]:
  if spec.spot:
    return ['--provisioning-model=SPOT', '--instance-termination-action=STOP']
  if spec.reservation:
    return ['--provisioning-model=RESERVATION_BOUND', '--reservation-affinity=specific',
            f'--reservation={spec.reservation}']
  return []


def _network(spec: LaunchSpec) -> list[str]:
  return ([f'--network={spec.network}'] if spec.network else []) + (
    [f'--subnet={spec.subnetwork}'] if spec.subnetwork else []) + (
    ['--no-address'] if spec.internal_ip else []) + (
    [f'--service-account={spec.service_account}'] if spec.service_account else [])


def describe(spec: LaunchSpec) -> Run:
  """Asks for the states of the hosts."""
  return Run(('gcloud', 'compute', 'instance-groups', 'managed', 'list-instances', spec.job,
              f'--zone={spec.zone}', *_project(spec), '--format=json'),
             'ask for the hosts until all are RUNNING')


def show(spec: LaunchSpec) -> Run:
  """Shows the states of the hosts to people."""
  return Run(describe(spec).argv[:-1], 'the hosts')


def read_state(code: int, output: str, errors: str) -> State:
  """The state of the group from those of its hosts."""
  if code:
    return State(ABSENT if 'was not found' in errors else '', errors.strip())
  try:
    states = [host.get('instanceStatus') or '' for host in read_answer(output)]
  except (ValueError, AttributeError, TypeError):
    return State('', f'gcloud gave no list of hosts: {output.strip() or "nothing"}')
  words = ', '.join(f'{states.count(s)} {s or "not there yet"}' for s in sorted(set(states)))
  if states and all(s == 'RUNNING' for s in states):
    return State(READY, words)
  if any(s in _DEAD for s in states):
    return State(DEAD, words)
  if all(s in _WAITING | {'RUNNING'} for s in states):
    return State(WAITING, words or 'no host yet')
  return State(UNKNOWN, f'{words} (fairjax does not know this state, and waits)')


def _on_hosts(spec: LaunchSpec, verb: str, *arguments: str) -> tuple[str, ...]:
  way = (['--internal-ip'] if spec.internal_ip else []) + (
    ['--tunnel-through-iap'] if spec.iap else [])
  return ('bash', 'launch/on_hosts.sh', verb, spec.job, f'--zone={spec.zone}', *_project(spec),
          *way, '--', *arguments)


def ssh(spec: LaunchSpec, command: str, why: str, *, tries: int = TRIES) -> Run:
  """Runs a line in the shell of every host."""
  return Run(_on_hosts(spec, 'ssh', command), why, tries=tries)


def copy(spec: LaunchSpec) -> list[Run]:
  """Copies the packed files into the home of every host."""
  return [Run(_on_hosts(spec, 'scp', *workers.packed_files(spec)), 'copy it to every host',
              tries=TRIES)]


def down(spec: LaunchSpec) -> list[Run]:
  """Deletes the group with its hosts, the template and the policy."""
  steps = [
    Run(('gcloud', 'compute', 'instance-groups', 'managed', 'delete', spec.job,
         f'--zone={spec.zone}', *_project(spec), '--quiet'), 'delete the hosts and their group',
        tries=3, done_if=GONE),
    Run(('gcloud', 'compute', 'instance-templates', 'delete', spec.job, *_project(spec),
         '--quiet'), 'delete the template', tries=3, done_if=GONE)]
  if spec.accelerator.num_machines > 1:
    steps.append(Run(('gcloud', 'compute', 'resource-policies', 'delete', spec.job,
                      f'--region={spec.region}', *_project(spec), '--quiet'), 'delete the policy',
                     tries=3, done_if=GONE))
  return steps


def list_all(spec: LaunchSpec) -> list[Run]:
  """Lists the hosts that were launched in the zone and are still there."""
  return [Run(('gcloud', 'compute', 'instances', 'list', f'--zones={spec.zone}', *_project(spec),
               '--filter=labels.managed-by=fairjax'),
              'list what was launched here and is still there')]


def clean(spec: LaunchSpec) -> list[Run]:
  """Deletes groups of ours with a host that was taken away."""
  return [Run(('bash', 'launch/clean.sh', 'compute', f'--zone={spec.zone}', *_project(spec)),
              'delete our groups whose hosts were taken away')]


def what(spec: LaunchSpec) -> str:
  """What stands there and costs money, in words."""
  return f'instance group {spec.job} ({spec.accelerator.name}) in {spec.zone}'
