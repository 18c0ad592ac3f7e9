"""What is to be launched, and everything that is wrong with it in one message."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.config import STEP1_FIELDS
from fairjax.errors import UserError, unknown_name
from fairjax.tpu.chips import CHIPS, Chip, chip_of_cloud_name, slices_of

# Accelerator types of Google Cloud: cores or chips, devices of JAX, topology, hosts' machines.

@dataclasses.dataclass(frozen=True)
class Accelerator:
  """One slice as Google Cloud names it.

  Attributes:
    name: accelerator type, e.g. `v3-128` (cores), `v5litepod-16` (chips).
    chip: its generation.
    shape: of the slice, in chips: `8x8`.
  """

  name: str
  chip: Chip
  shape: str

  @property
  def num_chips(self) -> int:
    """Chips of one slice."""
    return math.prod(map(int, self.shape.split('x')))

  @property
  def num_devices(self) -> int:
    """Devices of one slice as JAX counts them: what `mesh` and the batch must fit."""
    return self.num_chips * self.chip.devices

  @property
  def topology(self) -> str:
    """The slice as `fairjax compile --topology` takes it."""
    return f'{self.chip.name}:{self.shape}'

  @property
  def machine(self) -> str:
    """Machine type of its hosts in GKE and Compute Engine: four chips, or the only one.

    Raises:
      UserError: the generation is not rented there.
    """
    cloud = self.chip.cloud
    machine = cloud.machine_of_one if self.num_chips == 1 else cloud.machine
    if not machine:
      raise UserError(f"'{self.name}' is rented through the Cloud TPU API only: --backend=queued")
    return machine

  @property
  def chips_per_machine(self) -> int:
    """Chips of a host of `machine`, as its name says."""
    return int(self.machine.rpartition('-')[2].removesuffix('t'))

  @property
  def num_machines(self) -> int:
    """Hosts of `machine` that make the slice. The Cloud TPU API is asked instead: it chooses."""
    return self.num_chips // self.chips_per_machine


def accelerator_names() -> list[str]:
  """Every accelerator type that the table of chips knows."""
  return [f'{chip.cloud.prefix}-{s.num_chips * chip.cloud.per_chip}'
          for chip in CHIPS.values() for s in slices_of(chip)
          if s.shape not in chip.cloud.not_rented]


def parse_accelerator(name: str, *, shape: str = '') -> Accelerator:
  """The accelerator of a type's name; `v5e-16` is taken for `v5litepod-16`.

  Args:
    name: e.g. `v3-128`.
    shape: of the slice in chips, for sizes that the table does not hold, or that exist in several
      shapes; '' is the table's.

  Raises:
    UserError: unknown generation or size (with the nearest name), or a shape of another size.

  >>> parse_accelerator('v3-128').num_devices, parse_accelerator('v4-8').num_devices
  (128, 4)
  >>> parse_accelerator('v5e-16').name, parse_accelerator('v5litepod-16').topology
  ('v5litepod-16', 'v5e:4x4')
  """
  prefix, _, number = name.lower().partition('-')
  chip = chip_of_cloud_name(prefix)
  if chip is None or not re.fullmatch(r'[1-9][0-9]*', number):
    raise unknown_name('accelerator type', name, accelerator_names())
  chips, rest = divmod(int(number), chip.cloud.per_chip)
  if shape:
    return Accelerator(f'{chip.cloud.prefix}-{number}', chip, _checked(shape, chip, name, chips))
  known = [s for s in slices_of(chip)
           if s.num_chips == chips and s.shape not in chip.cloud.not_rented]
  if rest or not known:
    unit = {1: 'chips', 2: 'cores'}[chip.cloud.per_chip]
    same = [n for n in accelerator_names() if n.startswith(f'{chip.cloud.prefix}-')]
    raise UserError(f"accelerator type '{name}': no {chip.name} slice of {number} {unit} is known; "
                    f"known: {', '.join(same)}; for another give its shape: --topology=AxBxC")
  return Accelerator(f'{chip.cloud.prefix}-{number}', chip, known[0].shape)


def _checked(shape: str, chip: Chip, name: str, chips: int) -> str:
  sides = chip.shapes[-1].count('x') + 1
  if not re.fullmatch('x'.join([r'[1-9][0-9]*'] * sides), shape):
    raise UserError(f"topology '{shape}': a {chip.name} slice has {sides} sides, like "
                    f'{chip.shapes[-1]}')
  if math.prod(map(int, shape.split('x'))) != chips:
    raise UserError(f"topology '{shape}' has {math.prod(map(int, shape.split('x')))} chips, "
                    f"'{name}' has {chips}")
  return shape


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


# Sweeps: the points of a config's `sweep(add)` become commands.

_STEP1_FROM = '--config.step1_from='


def point_label(point: Mapping[str, Any]) -> str:
  """A name of a point for folders and resources, from its values.

  >>> point_label({'attribute': 'country', 'debias.variants': ('embedding:10',)})
  'country-embedding-10'
  """
  words = [str(v) for value in point.values()
           for v in (value if isinstance(value, tuple | list) else (value,))]
  return re.sub(r'[^a-z0-9]+', '-', '-'.join(words).lower()).strip('-')


def override_text(value: Any) -> str:
  """A value as `--config.a.b=TEXT` takes it.

  >>> [override_text(v) for v in (True, 1e-3, 'x', ('a', 'b'))]
  ['true', '0.001', 'x', "('a', 'b')"]
  """
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, tuple | list):
    return repr(tuple(value))
  return str(value)


def expand_sweep(command: Sequence[str], points: Sequence[Mapping[str, Any]], *,
                 planted: bool = False) -> list[tuple[str, tuple[str, ...]]]:
  """The command of every point: its overrides added, a workdir of its own below the given one.

  Points that do not differ in what step 1 depends on train it once: the first of them does, and the
  others take it from there (`step1_from`), unless the command names a workdir for all.

  Args:
    command: words, with one `--workdir=DIR`.
    points: field -> value, in the order of `add`.
    planted: the text is written about the attribute, so that step 1 depends on it.

  Returns:
    (label, words) of every point.

  Raises:
    UserError: no points, no workdir, or two points with one label.

  >>> expand_sweep(('run', '--workdir=gs://b/x'), [{'seed': 1}, {'seed': 2}])[1]
  ('2', ('run', '--workdir=gs://b/x/2', '--config.seed=2'))
  >>> expand_sweep(('run', '--workdir=x'), [{'attribute': 'country'}, {'attribute': 'name'}])[1]
  ('name', ('run', '--workdir=x/name', '--config.attribute=name', '--config.step1_from=../country'))
  """
  if not points:
    raise UserError('the sweep has no points: its sweep(add) never calls add(...)')
  if sum(word.startswith('--workdir=') for word in command) != 1:
    raise UserError('a sweep needs one --workdir=DIR in its command: every point gets a folder '
                    'in it')
  labels = [point_label(point) for point in points]
  twice = sorted({label for label in labels if labels.count(label) > 1})
  if twice or '' in labels:
    raise UserError(f'points of the sweep need names of their own, from their values: {twice}')
  shares = command[0] in ('run', 'train', 'mitigations') and not any(
    word.startswith(_STEP1_FROM) for word in command)
  expanded, firsts = [], {}
  for label, point in zip(labels, points, strict=True):
    words = [f'{word.rstrip("/")}/{label}' if word.startswith('--workdir=') else word
             for word in command]
    words += [f'--config.{name}={override_text(value)}' for name, value in point.items()]
    step1 = repr(sorted((name, value) for name, value in point.items() if (
      name.partition('.')[0] in STEP1_FIELDS or (planted and name == 'attribute'))))
    if shares and firsts.setdefault(step1, label) != label:
      words.append(f'{_STEP1_FROM}../{firsts[step1]}')
    own = next(word for word in words if word.startswith('--workdir=')).partition('=')[2]
    expanded.append((label, tuple(w for w in words if w.rstrip('/') != f'{_STEP1_FROM}{own}')))
  return expanded


def waits(command: Sequence[str]) -> bool:
  """Whether a command of `expand_sweep` needs that of another point to have ended."""
  return any(word.startswith(f'{_STEP1_FROM}../') for word in command)
