"""What is to be launched, and everything that is wrong with it in one message."""

import dataclasses
import re

from fairjax.errors import UserError
from fairjax.launch.accelerators import Accelerator, parse_accelerator

BACKENDS = ('queued', 'gke', 'sky', 'compute')
"""Cloud TPU queued resources, a GKE JobSet, SkyPilot, Compute Engine."""

NAME = re.compile(r'[a-z]([-a-z0-9]{0,38}[a-z0-9])?')
ZONE = re.compile(r'[a-z]+-[a-z]+[0-9]+-[a-z0-9]+')
DURATION = re.compile(r'([1-9][0-9]*[smhd])+')
LABEL_KEY = re.compile(r'[a-z][-_a-z0-9]{0,62}')
LABEL = re.compile(r'[-_a-z0-9]{0,63}')
VARIABLE = re.compile(r'[A-Za-z_][A-Za-z0-9_]*')
SECRET_WORDS = re.compile(r'key|token|secret|password|credential', re.I)
BUCKET = re.compile(r'gs://([a-z0-9][-_.a-z0-9]{1,220}[a-z0-9])(?=/|$)')
RESERVED_LABELS = ('managed-by', 'fairjax-name')


@dataclasses.dataclass(frozen=True)
class LaunchSpec:
  """One launch.

  Attributes:
    tpu: accelerator type: `v3-128`, `v5litepod-16`, `tpu7x-128`.
    zone: e.g. `us-east5-b`.
    name: of every resource of the launch; '' is `fairjax-TPU`.
    command: words of `fairjax` on the workers, e.g. `('run', '--config=...')`.
    backend: one of `BACKENDS`.
    topology: shape of the slice in chips; '' is the usual one.
    project: '' is the one that gcloud is set to.
    slices: how many slices work together (multislice).
    spot: take a machine that may be taken away at any time.
    reserved: use a reservation of the project.
    reservation: its name (Compute Engine).
    labels: (key, value) of the resources, beside our own.
    valid_until: how long an unfulfilled request stays in the queue.
    runtime_version: '' is that of the generation.
    service_account: e-mail address, or the Kubernetes account; '' is the default.
    network: '' is the default.
    subnetwork: '' is the default.
    internal_ip: workers without external addresses, reached from inside the network.
    iap: reach the workers through Identity-Aware Proxy.
    env: (name, value) on the workers; for values that anybody may read.
    secrets: names of variables of this machine that the workers get, never shown.
    restarts: how often a worker starts an interrupted command again.
    recreate: how often a preempted slice is deleted and requested again.
    image: container image with fairjax (GKE).
    cluster: of GKE; '' is the current context of kubectl.
    namespace: of GKE.
    disk_gb: boot disk (Compute Engine).
  """

  tpu: str
  zone: str
  name: str = ''
  command: tuple[str, ...] = ()
  backend: str = 'queued'
  topology: str = ''
  project: str = ''
  slices: int = 1
  spot: bool = False
  reserved: bool = False
  reservation: str = ''
  labels: tuple[tuple[str, str], ...] = ()
  valid_until: str = '6h'
  runtime_version: str = ''
  service_account: str = ''
  network: str = ''
  subnetwork: str = ''
  internal_ip: bool = False
  iap: bool = False
  env: tuple[tuple[str, str], ...] = ()
  secrets: tuple[str, ...] = ()
  restarts: int = 20
  recreate: int = 10
  image: str = ''
  cluster: str = ''
  namespace: str = 'default'
  disk_gb: int = 200

  @property
  def accelerator(self) -> Accelerator:
    """What `tpu` and `topology` name."""
    return parse_accelerator(self.tpu, shape=self.topology)

  @property
  def job(self) -> str:
    """The name of every resource."""
    return self.name or f'fairjax-{self.accelerator.name}'

  @property
  def region(self) -> str:
    """The region of the zone."""
    return self.zone.rpartition('-')[0]

  @property
  def num_devices(self) -> int:
    """Devices of all slices."""
    return self.accelerator.num_devices * self.slices

  @property
  def several(self) -> bool:
    """Whether it is certain that several machines work together."""
    a = self.accelerator
    return self.slices > 1 or a.num_chips > a.chip.cloud.most_chips

  @property
  def all_labels(self) -> dict[str, str]:
    """Labels of the resources: ours, by which `list` and `clean` find them, and the user's."""
    return {'managed-by': 'fairjax', 'fairjax-name': self.job, **dict(self.labels)}

  @property
  def all_env(self) -> dict[str, str]:
    """Variables of the workers.

    JAX takes port 8482 for its coordinator since 0.8.1, which the firewall rule that Google Cloud
    makes for TPUs leaves closed: starting would hang. 8476 is open (jax-ml/jax#35905).
    """
    return {'JAX_COORDINATOR_PORT': '8476', **dict(self.env)}

  @property
  def buckets(self) -> tuple[str, ...]:
    """Buckets that the command names, in order."""
    found = [name for word in self.command for name in BUCKET.findall(word)]
    return tuple(dict.fromkeys(found))

  @property
  def words(self) -> tuple[str, ...]:
    """The command as a worker runs it: `gs://BUCKET/x` is `MOUNTS/BUCKET/x` there."""
    return tuple(BUCKET.sub(rf'{self.mounts}/\1', word) for word in self.command)

  @property
  def mounts(self) -> str:
    """Folder of the mounted buckets on the workers; it must not depend on who logs in."""
    return '/mnt/fairjax'


def check_spec(spec: LaunchSpec, verb: str) -> LaunchSpec:
  """Checks everything that can be checked before anything is asked for.

  Args:
    spec: what is to be launched.
    verb: of `plan.VERBS`; what deletes or lists needs less.

  Returns:
    The spec.

  Raises:
    UserError: all that is wrong, in one line.
  """
  accelerator = spec.accelerator
  faults = [*_names(spec), *_choices(spec, accelerator)]
  if verb == 'run':
    faults += _running(spec)
  if verb in ('up', 'run'):
    faults += _asking(spec, accelerator)
  if faults:
    raise UserError('launch: ' + '; '.join(faults))
  return spec


def _names(spec: LaunchSpec) -> list[str]:
  faults = []
  for what, value, pattern, example in (
      ('--name', spec.job, NAME, 'at most 40 of a-z, 0-9 and -, a letter first: my-run'),
      ('--zone', spec.zone, ZONE, 'like us-east5-b'),
      ('--valid_until', spec.valid_until, DURATION, 'like 6h or 1d12h'),
      ('--namespace', spec.namespace, NAME, 'like default')):
    if not pattern.fullmatch(value):
      faults.append(f"{what}='{value}' must be {example}")
  for key, value in spec.labels:
    if key in RESERVED_LABELS or not LABEL_KEY.fullmatch(key) or not LABEL.fullmatch(value):
      faults.append(f"--label={key}={value} must be key=value in a-z, 0-9, - and _, and not one "
                    f"of {', '.join(RESERVED_LABELS)}")
  for name, value in spec.env:
    if not VARIABLE.fullmatch(name) or '\0' in value:
      faults.append(f"--env={name}=... is no variable of an environment")
    elif SECRET_WORDS.search(name):
      faults.append(f'--env={name}=... would show a secret in process lists and logs: export it '
                    f'here and say --secret={name}')
  # What stands behind '=' may be the secret itself: it is not repeated.
  for name, has_value, _ in (name.partition('=') for name in spec.secrets):
    if has_value or not VARIABLE.fullmatch(name):
      faults.append(f"--secret={name}{'=...' if has_value else ''} must be the name of a variable")
  return faults


def _choices(spec: LaunchSpec, accelerator: Accelerator) -> list[str]:
  faults = []
  cloud = accelerator.chip.cloud
  if spec.backend not in BACKENDS:
    faults.append(f"--backend='{spec.backend}' must be one of {', '.join(BACKENDS)}")
  if spec.backend == 'queued' and not (cloud.runtime or spec.runtime_version):
    faults.append(f'the Cloud TPU API does not offer {accelerator.chip.name}: --backend=compute '
                  'or gke')
  if spec.backend == 'sky' and not cloud.runtime:
    faults.append(f'SkyPilot is not planned for {accelerator.chip.name}: --backend=compute or gke')
  if spec.backend == 'gke' and not cloud.gke:
    faults.append(f'GKE does not offer {accelerator.chip.name}: --backend=queued')
  if spec.backend == 'compute' and not cloud.image:
    faults.append(f'Compute Engine does not offer {accelerator.chip.name}: --backend=queued')
  if spec.backend in ('gke', 'compute') and cloud.machine:
    if accelerator.num_chips % accelerator.chips_per_machine:
      faults.append(f'{accelerator.name} is no multiple of the chips of {accelerator.machine}')
  if spec.slices < 1:
    faults.append('--slices must be at least 1')
  if spec.slices > 1 and spec.backend in ('compute', 'sky'):
    faults.append(f'several slices need --backend=queued or gke, not {spec.backend}')
  if spec.slices > 1 and accelerator.chip.name in ('v2', 'v3'):
    faults.append(f'{accelerator.chip.name} slices cannot be joined (multislice): v4 and later can')
  if spec.internal_ip and spec.iap:
    faults.append('--internal_ip and --iap are two ways to reach the workers: choose one')
  if spec.restarts < 0 or spec.recreate < 0 or spec.disk_gb < 20:
    faults.append('--restarts and --recreate must be at least 0, --disk_gb at least 20')
  return faults


def _asking(spec: LaunchSpec, accelerator: Accelerator) -> list[str]:
  cloud = accelerator.chip.cloud
  faults = []
  if spec.backend == 'compute' and cloud.image and not spec.project \
      and accelerator.num_machines > 1:
    faults.append('Compute Engine needs --project=ID: the placement of the slice is named by it')
  if spec.backend == 'compute' and spec.reserved and not spec.reservation:
    faults.append('Compute Engine needs the name of the reservation: --reservation=NAME')
  if spec.spot and (spec.reserved or spec.reservation):
    faults.append('--spot and a reservation exclude each other')
  if spec.reservation and spec.backend not in ('compute', 'gke'):
    faults.append('--reservation=NAME is for --backend=compute and gke; queued resources take '
                  '--reserved')
  return faults


def _running(spec: LaunchSpec) -> list[str]:
  if not spec.command:
    return ['what shall run? Put it behind --: fairjax launch ... -- run --config=FILE '
            '--workdir=gs://BUCKET/DIR']
  faults = []
  if spec.backend == 'gke' and not spec.image:
    faults.append('GKE needs --image=IMAGE, made from launch/Dockerfile')
  if any('\0' in word for word in spec.command):
    faults.append('the command holds a NUL, which no argument can')
  faults += [f"'{word}' names no bucket: gs://BUCKET/DIR, three letters at least"
             for word in spec.words if 'gs://' in word]
  workdir = next((w.partition('=')[2] for w in spec.command if w.startswith('--workdir=')), None)
  if spec.several and workdir is not None and not workdir.startswith(('gs://', '/')):
    faults.append(f"--workdir={workdir} would be another folder on every worker: take "
                  'gs://BUCKET/DIR, or the absolute path of a shared disk')
  return faults
