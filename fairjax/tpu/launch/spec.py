"""The specification of a launch, and all that is wrong with it, checked before anything costs."""

import dataclasses
import fnmatch
import glob
import importlib.metadata
import os
import pathlib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairjax.config import SHIPPED, Config
from fairjax.config_io import described_fields
from fairjax.errors import UserError
from fairjax.tpu.chips import SHAPED, Slice, find_accelerator, slices_of

NAME = re.compile(r'[a-z]([-a-z0-9]{0,38}[a-z0-9])?')
ZONE = re.compile(r'[a-z]+-[a-z]+[0-9]+-[a-z0-9]+')
DURATION = re.compile(r'([1-9][0-9]*[smhd])+')
LABEL_KEY = re.compile(r'[a-z][-_a-z0-9]{0,62}')
LABEL = re.compile(r'[-_a-z0-9]{0,63}')
VARIABLE = re.compile(r'[A-Za-z_][A-Za-z0-9_]*')
SECRET_WORDS = re.compile(r'key|token|secret|password|credential', re.I)
BUCKET = re.compile(r'gs://([a-z0-9][-_.a-z0-9]{1,220}[a-z0-9])(?=/|$)')
RESERVED_LABELS = ('managed-by', 'fairjax-name')
MOUNTS = '/mnt/fairjax'  # of the buckets on the workers; must not depend on who logs in


@dataclasses.dataclass(frozen=True)
class LaunchSpec:
  """One launch."""

  tpu: str  # accelerator type: `v3-128`, `v5litepod-16`
  zone: str  # e.g. `us-east5-b`
  name: str = ''  # of every resource of the launch; '' is `fairjax-TPU`
  command: tuple[str, ...] = ()  # words of `fairjax` on the workers: `('run', '--config=...')`
  topology: str = ''  # shape of the slice in chips; '' is the usual one
  project: str = ''  # '' is the project that gcloud is set to
  slices: int = 1  # that work together (multislice)
  spot: bool = False  # cheaper, and may be taken away at any time
  reserved: bool = False  # from a reservation of the project
  labels: tuple[tuple[str, str], ...] = ()  # (key, value) of the resources, beside our own
  valid_until: str = '6h'  # how long an unfulfilled request stays in the queue
  runtime_version: str = ''  # '' is that of the generation
  service_account: str = ''  # e-mail address; '' is the default
  network: str = ''  # '' is the default
  subnetwork: str = ''  # '' is the default
  internal_ip: bool = False  # workers without external addresses, reached inside the network
  iap: bool = False  # reach the workers through Identity-Aware Proxy
  env: tuple[tuple[str, str], ...] = ()  # (name, value) on the workers; anybody may read them
  secrets: tuple[str, ...] = ()  # names of variables of this machine that the workers get
  restarts: int = 20  # how often a worker starts an interrupted command again
  recreate: int = 10  # how often a preempted slice is deleted and requested again

  @property
  def slice(self) -> Slice:
    """The slice that `tpu` and `topology` name."""
    return find_accelerator(self.tpu, shape=self.topology)

  @property
  def job(self) -> str:
    """The name of every resource."""
    return self.name or f'fairjax-{self.slice.accelerator_type}'

  @property
  def num_devices(self) -> int:
    """Devices of all slices."""
    return self.slice.num_devices * self.slices

  @property
  def several(self) -> bool:
    """Whether several machines work together for certain."""
    return self.slices > 1 or self.slice.num_chips > self.slice.chip.cloud.most_chips

  @property
  def all_labels(self) -> dict[str, str]:
    """Labels of the resources: ours, by which `list` and `clean` find them, and the user's."""
    return {'managed-by': 'fairjax', 'fairjax-name': self.job, **dict(self.labels)}

  @property
  def all_env(self) -> dict[str, str]:
    """Variables of the workers."""
    # JAX takes port 8482 for its coordinator since 0.8.1. The firewall rule that Google Cloud makes
    # for TPUs leaves it closed, so that starting would hang; 8476 is open (jax-ml/jax#35905).
    return {'JAX_COORDINATOR_PORT': '8476', **dict(self.env)}

  @property
  def buckets(self) -> tuple[str, ...]:
    """Buckets that the command names, in order."""
    return tuple(dict.fromkeys(name for word in self.command for name in BUCKET.findall(word)))

  @property
  def words(self) -> tuple[str, ...]:
    """The command as a worker runs it: `gs://BUCKET/x` is `/mnt/fairjax/BUCKET/x` there."""
    return tuple(BUCKET.sub(rf'{MOUNTS}/\1', word) for word in self.command)


def check_spec(spec: LaunchSpec, verb: str) -> LaunchSpec:
  """Returns the spec, or raises `UserError` with all that is wrong in one line."""
  faults = []
  for option, value, pattern, example in (
      ('--name', spec.job, NAME, 'at most 40 of a-z, 0-9 and -, a letter first: my-run'),
      ('--zone', spec.zone, ZONE, 'like us-east5-b'),
      ('--valid-until', spec.valid_until, DURATION, 'like 6h or 1d12h')):
    if not pattern.fullmatch(value):
      faults.append(f"{option}='{value}' must be {example}")
  for key, value in spec.labels:
    if key in RESERVED_LABELS or not LABEL_KEY.fullmatch(key) or not LABEL.fullmatch(value):
      faults.append(f"--label={key}={value} must be key=value in a-z, 0-9, - and _, and not one "
                    f"of {', '.join(RESERVED_LABELS)}")
  for name, _ in spec.env:
    if not VARIABLE.fullmatch(name):
      faults.append(f'--env={name}=... does not name a variable')
    elif SECRET_WORDS.search(name):
      faults.append(f'--env={name}=... would show a secret in process lists and logs: export it '
                    f'here and give --secret={name}')
  # The text after '=' may be the secret itself, so it is not repeated.
  for name, has_value, _ in (name.partition('=') for name in spec.secrets):
    if has_value or not VARIABLE.fullmatch(name):
      faults.append(f"--secret={name}{'=...' if has_value else ''} must be the name of a variable")
  s = spec.slice
  usual = next((x for x in slices_of(s.chip) if x.accelerator_type == s.accelerator_type), s)
  if usual != s and s.chip.name not in SHAPED:
    faults.append(f'--topology={s.shape}: gcloud requests {s.accelerator_type} as {usual.shape} '
                  'alone')
  if spec.slices < 1:
    faults.append('--slices must be at least 1')
  elif why := spec.slice.not_joined(spec.slices):
    faults.append(why)
  if spec.spot and spec.reserved:
    faults.append('--spot and --reserved exclude each other')
  if spec.internal_ip and spec.iap:
    faults.append('--internal-ip and --iap are two ways to reach the workers: choose one')
  if spec.restarts < 0 or spec.recreate < 0:
    faults.append('--restarts and --recreate must be at least 0')
  if verb == 'run':
    faults += _command_faults(spec)
  if faults:
    raise UserError('tpu: ' + '; '.join(faults))
  return spec


def _command_faults(spec: LaunchSpec) -> list[str]:
  if not spec.command:
    return ['there is no command; put it after --: fairjax tpu run ... -- run --config=FILE '
            '--workdir=gs://BUCKET/DIR']
  return [f"'{word}' names no bucket: gs://BUCKET/DIR, three letters at least"
          for word in spec.words if 'gs://' in word]


# Files that the command reads. Workers get those that git tracks here (`launch/pack.sh`), and the
# buckets that the command names.

# Fields of a config that are paths -> values that are not paths.
PATH_FIELDS = {
  'attribute': (), 'data.train': (), 'data.valid': (), 'data.test': (), 'data.manual_dir': (),
  'data.tfds_dir': (), 'data.vocabulary': ('sentencepiece', 'word'), 'data.cda_pairs': ('none',),
  'data.cda_names': (), 'measure.lexicon': (), 'pretrained.model': ()}
_WITH_FOLDER = re.compile(r'(?:bert|use|minilm):(?=.)')
_NO_PATH = (SHIPPED, 'hf:', 'pip:', 'recorded:', 'http://', 'https://')
_OF_ENDPOINTS = {'model', 'instruction', 'body'}  # words that it gets
_WRITTEN = {'workdir', 'output', 'keep', 'config', 'command', 'verb', 'action', 'overrides'}
_FILE = re.compile(r'/|\.(jsonl?|txt|[tc]sv|gz|xz|zst|bz2|zip|parquet|ya?ml|tokens|bin|model)$',
                   re.I)
_SHARED = {'nfs', 'nfs4', 'cifs', 'lustre', 'ceph', 'beegfs', 'gpfs', 'fuse.gcsfuse', '9p'}


def config_paths(config: Config, *, attributes: Sequence[str]) -> Iterator[tuple[str, str]]:
  """(field, path) of everything that a config reads from files; `attributes`: built-in names."""
  for field, found, *_ in described_fields(config):
    for value in _texts(found):
      folder = _WITH_FOLDER.sub('', value, count=1)
      if folder.startswith(_NO_PATH):
        continue
      if field == 'attribute':
        if '*'.join(sorted(value.split('*'))) not in attributes:
          yield field, value
      elif field in PATH_FIELDS:
        if value and value not in PATH_FIELDS[field]:
          yield field, value
      elif folder != value or ('/' in value and os.path.exists(value)):
        yield field, folder


def option_paths(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
  """(option, path) of the files that a command's options seem to name."""
  others = _WRITTEN | (_OF_ENDPOINTS if options.get('endpoint') else set())
  for name, found in options.items():
    for value in _texts(found) if name not in others else ():
      path = _WITH_FOLDER.sub('', value, count=1)
      if path.startswith(_NO_PATH):
        continue
      if path != value or _FILE.search(value) or os.path.exists(value):
        yield f"--{name.replace('_', '-')}", path


def lacking_packages(
  config: Config, options: Mapping[str, Any], *, launch: pathlib.Path) -> list[str]:
  """One line for each package that a command needs and that no list of the workers has."""
  lists = ''.join((launch / f'{name}.txt').read_text('utf-8')
                  for name in ('requirements', 'encoder'))
  given = [(field, value) for field, value, *_ in described_fields(config)]
  found = {}
  for name, value in [*given, *((f'--{name}', value) for name, value in options.items())]:
    chats = value is True and (
      name == 'pretrained.chat' or name == '--chat' and not options.get('endpoint'))
    for text in ['True'] if chats else _texts(value):
      packages = (
        ['jinja2'] if chats else [text] if name == 'log.to' else
        ['httpx'] if name == '--endpoint' else
        [text[4:], *['gguf'] * _may_be_gguf(text[4:], lists)] if text.startswith('pip:') else
        ['gguf'] if text.endswith('.gguf') else
        ['google-cloud-language'] if text == 'google' and 'scorer' in name else [])
      for package in packages:
        if package and not re.search(rf'^{re.escape(package)}==', lists, re.M):
          found[package] = f'{name}={text}'
  return [f'{what} needs the package {package}' for package, what in found.items()]


def _may_be_gguf(package: str, lists: str) -> bool:
  """Whether a package holds a GGUF file; one that is neither here nor in the lists may."""
  try:
    files = importlib.metadata.files(package) or []
  except (importlib.metadata.PackageNotFoundError, ValueError):
    return not re.search(rf'^{re.escape(package)}==', lists, re.M)
  return any(file.suffix == '.gguf' for file in files)


def _texts(value: Any) -> list[str]:
  items = value if isinstance(value, list | tuple) else [value]
  return [item for item in items if isinstance(item, str)]


def not_on_workers(
  paths: Sequence[tuple[str, str]], *, root: pathlib.Path, command: Sequence[str],
) -> list[str]:
  """One line for each path that no worker has: neither tracked in `root` nor in a named bucket."""
  if not paths:
    return []
  tracked, faults, home = _tracked(root), [], os.path.expanduser('~').rstrip('/')
  for name, path in paths:
    if path.startswith('gs://'):
      if not any(path in word for word in command):
        faults.append(f'{name}={path} is named in the config file only: name it in the command, '
                      'so that the workers mount the bucket')
    elif path.startswith(f'{home}/'):
      faults.append(f'{name}=~{path.removeprefix(home)} is on this machine')
    elif os.path.isabs(path):
      if os.path.exists(path) and not _on_a_shared_disk(path):
        faults.append(f'{name}={path} is on this machine')
    else:
      plain = os.path.normpath(path)
      here = not plain.startswith('..') and bool(glob.glob(plain, root_dir=root, recursive=True))
      if tracked is not None and here:
        here = any(fnmatch.fnmatch(file, plain) or file.startswith(f'{plain}/')
                   for file in tracked)
        faults += [] if here else [f'{name}={path} is not tracked by git']
      elif not here:
        faults.append(f'{name}={path} is no file of the repository')
  return faults


def _tracked(root: pathlib.Path) -> list[str] | None:
  """The files that a launch ships, relative to the root; None where git tracks none."""
  try:
    done = subprocess.run(['git', 'ls-files', '-z'], cwd=root, capture_output=True, check=True)
  except (OSError, subprocess.CalledProcessError):
    return None
  return [f for f in done.stdout.decode('utf-8', 'surrogateescape').split('\0') if f] or None


def _on_a_shared_disk(path: str) -> bool:
  """Whether a path is on a disk of the network, which workers may mount at the same place."""
  try:
    lines = pathlib.Path('/proc/mounts').read_text(encoding='utf-8').splitlines()
  except OSError:
    return False
  mounts = {words[1]: words[2] for words in map(str.split, lines)}
  real = os.path.realpath(path)
  places = [p for p in mounts if real == p or real.startswith(p.rstrip('/') + '/')]
  return mounts.get(max(places, key=len, default='')) in _SHARED
