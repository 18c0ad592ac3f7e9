"""The verb `launch`: slices of TPUs in Google Cloud, and commands of fairjax on them."""

import argparse
import dataclasses
import os
import pathlib
import shlex
from collections.abc import Mapping

from fairjax.commands.verb import Verb, log_line
from fairjax.errors import UserError

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _pair(text: str) -> tuple[str, str]:
  key, equals, value = text.partition('=')
  if not equals or not key:
    raise argparse.ArgumentTypeError(f"'{text}' must be KEY=VALUE")
  return key, value


def _add_options(parser: argparse.ArgumentParser) -> None:
  from fairjax.launch.plan import VERBS as ACTIONS
  from fairjax.launch.spec import BACKENDS
  parser.add_argument('action', nargs='?', default='run', choices=tuple(ACTIONS), metavar='ACTION',
                      help='; '.join(f'{name}: {what}' for name, what in ACTIONS.items()))
  parser.add_argument('--tpu', metavar='TYPE',
                      help='not for list and clean: v3-128, v5litepod-16, v6e-256, tpu7x-128')
  parser.add_argument('--zone', required=True)
  parser.add_argument('--backend', default=None, choices=BACKENDS,
                      help='queued (Cloud TPU queued resources; default up to v6e), gke (JobSet), '
                      'sky (SkyPilot), compute (Compute Engine; default of tpu7x)')
  parser.add_argument('--dry_run', action='store_true', help='print what would run, run nothing')
  for name, what in (
      ('name', 'of all resources (default: fairjax-TYPE)'), ('project', "default: gcloud's"),
      ('topology', 'shape of the slice in chips, for unusual ones'),
      ('reservation', 'name of a reservation (compute, gke)'),
      ('runtime_version', "default: the generation's; compute: the image family"),
      ('service_account', 'of the workers'), ('network', ''), ('subnetwork', ''),
      ('image', 'container image (gke), made from launch/Dockerfile'),
      ('cluster', 'of GKE (default: where kubectl points)')):
    parser.add_argument(f'--{name}', default='', help=what)
  parser.add_argument('--namespace', default='default', help='of GKE')
  parser.add_argument('--valid_until', default='6h', metavar='TIME',
                      help='how long a request waits before it expires (default: 6h)')
  for name, default, what in (
      ('slices', 1, 'slices that work together'),
      ('restarts', 20, 'how often a worker starts an interrupted command again'),
      ('recreate', 10, 'how often a slice that was taken away is replaced'),
      ('disk_gb', 200, 'boot disk (compute)')):
    parser.add_argument(f'--{name}', type=int, default=default, metavar='N', help=what)
  for name, what in (
      ('spot', 'cheaper, and may be taken away at any time'), ('reserved', 'from a reservation'),
      ('internal_ip', 'no external addresses'), ('iap', 'through Identity-Aware Proxy'),
      ('follow', 'logs: go on until the command ends'),
      ('detach', 'run: return once the command has started'),
      ('delete', 'run: delete the slice when the command has ended'),
      ('sweep', "run: the points of the config's sweep(add), one after the other")):
    parser.add_argument(f'--{name}', action='store_true', help=what)
  for name, what in (('label', 'of the resources'), ('env', 'variable of the workers')):
    parser.add_argument(f'--{name}', type=_pair, action='append', default=[], metavar='KEY=VALUE',
                        help=what)
  parser.add_argument('--secret', action='append', default=[], metavar='NAME',
                      help='variable of this machine that the workers get; never shown')


def make_specs(options: argparse.Namespace) -> list:
  """The specs that the options ask for: one, or one for each point of a sweep.

  Raises:
    UserError: something is wrong with the slice, the command or its config.
  """
  from fairjax.launch import LaunchSpec, check_spec, parse_accelerator
  if options.tpu is None:
    if options.action not in ('list', 'clean'):
      raise UserError('launch needs --tpu=TYPE, like v3-128 or v5litepod-16')
    # Neither looks at the type, only at what offers it.
    options.tpu = 'tpu7x-8' if options.backend == 'compute' else 'v4-8'
  accelerator = parse_accelerator(options.tpu, shape=options.topology)
  fields = {f.name for f in dataclasses.fields(LaunchSpec)}
  values = {name: value for name, value in vars(options).items() if name in fields}
  running = options.action == 'run'
  values.update(
    backend=options.backend or ('queued' if accelerator.chip.cloud.runtime else 'compute'),
    command=worker_words(options.command, options.inner, accelerator.num_chips * options.slices),
    labels=tuple(options.label), env=tuple(options.env),
    secrets=tuple(options.secret))
  spec = check_spec(LaunchSpec(**values), options.action)
  if not running:
    return [spec]
  specs: list = [spec]
  points: list[dict[str, str]] = [{}]
  if options.sweep:
    specs, points = _sweep(spec, options.inner)
  for point in points:
    check_command(spec, options.inner, point)
  return specs


def worker_words(command: list[str], inner: argparse.Namespace | None, chips: int
                 ) -> tuple[str, ...]:
  """The command of the workers: a verb that can join several processes is told to, if it may be.

  Without it every machine of a slice would work alone and wait for the others for ever. No host has
  more than four chips for sure, and joining a group of one changes nothing.
  """
  joins = hasattr(inner, 'distributed') and inner.distributed is None and chips > 4
  return (*command, *(['--distributed=auto'] if joins else []))


def _sweep(spec, inner: argparse.Namespace) -> tuple[list, list[dict[str, str]]]:
  """The spec and the overrides of every point."""
  from fairjax.config_files import load_config, load_sweep
  from fairjax.launch import check_spec, expand_sweep, override_text, waits
  from fairjax.launch.plan import SLICES
  if not getattr(inner, 'config', None):
    raise UserError('--sweep needs a command with --config=FILE')
  points = load_sweep(inner.config)
  planted = load_config(inner.config, inner.overrides).data.source == 'planted'
  found = expand_sweep(spec.command, points, planted=planted)
  if spec.backend not in SLICES and any(waits(words) for _, words in found):
    first = next(word for word in found[0][1] if word.startswith('--workdir=')).partition('=')[2]
    raise UserError(
      f'--sweep: {spec.backend} starts all points at once, but step 1 is trained once, by the '
      f'first of them: launch that one alone, {shlex.join(found[0][1])}; when it has ended, add '
      f'--config.step1_from={first} to the sweep')
  specs = [check_spec(dataclasses.replace(
    spec, command=words,
    # Where jobs are queued each needs a name; on a slice they follow each other.
    name=spec.job if spec.backend in SLICES else f'{spec.job}-{number}'), 'run')
    for number, (_, words) in enumerate(found, 1)]
  return specs, [{k: override_text(v) for k, v in point.items()} for point in points]


def check_command(spec, inner: argparse.Namespace, point: Mapping[str, str]) -> None:
  """Loads the command's config, and looks for what it reads, before anything costs money.

  Args:
    spec: the slice.
    inner: the parsed command.
    point: further overrides.

  Raises:
    UserError: a wrong config, a mesh that does not fit the slice, or files that no worker has.
  """
  if inner.verb is None:
    raise UserError('the command behind -- begins with a verb of fairjax: run, train, sample, ...')
  if inner.verb == 'launch':
    raise UserError('launch cannot launch itself: put the command of the workers behind --')
  from fairjax.config_files import load_config
  from fairjax.counterfactual import list_attributes
  from fairjax.launch.shipped import config_paths, not_on_workers, option_paths
  paths = list(option_paths(vars(inner)))
  if getattr(inner, 'config', None):
    paths.append(('--config', inner.config.partition(':')[0]))
  if paths and paths[-1][0] == '--config' and not inner.config.startswith(('gs://', '/')):
    config = load_config(inner.config, {**inner.overrides, **point})
    _check_mesh(spec, config.mesh)
    paths += config_paths(config, attributes=list_attributes())
  faults = not_on_workers(
    paths, root=ROOT, command=[*spec.command, *(f'--config.{k}={v}' for k, v in point.items())])
  if faults:
    raise UserError(f"launch: no worker has what the command reads: {'; '.join(faults)}: put it "
                    'into a bucket and name it gs://BUCKET/PATH, or add it to git in '
                    f'{ROOT}, whose tracked files the workers get')


def _check_mesh(spec, mesh) -> None:
  """Raises `UserError` where a mesh does not fit the slice."""
  if mesh.slices != spec.slices:
    raise UserError(f'--slices={spec.slices} needs --config.mesh.slices={spec.slices} in the '
                    f'command, which has {mesh.slices}')
  fixed = mesh.slices * mesh.fsdp * mesh.model * max(mesh.data, 1)
  if spec.num_devices % fixed or (mesh.data > 0 and fixed != spec.num_devices):
    raise UserError(f'config.mesh (slices {mesh.slices}, data {mesh.data}, fsdp {mesh.fsdp}, model '
                    f'{mesh.model}) does not fit the {spec.num_devices} devices of '
                    f'{spec.slices} x {spec.accelerator.name}')


def secret_values(names: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
  """The values of the secrets in this process's environment.

  Raises:
    UserError: one is not set.
  """
  missing = [name for name in names if not environment.get(name)]
  if missing:
    raise UserError(f'--secret={missing[0]}: the variable is not set here: read -rs {missing[0]} '
                    f'&& export {missing[0]}')
  return {name: environment[name] for name in names}


def headline(spec) -> str:
  """What a launch is, in a line."""
  a = spec.accelerator
  compiled = f'; fairjax compile --topology={a.topology}' if a.chip.compiles else ''
  return (f'# {spec.slices} x {a.name} in {spec.zone}: {spec.num_devices} devices '
          f'({a.num_chips} chips {a.shape} a slice{compiled})')


def _launch(options: argparse.Namespace) -> int:
  from fairjax.launch import Executor, launch, plan, render
  specs = make_specs(options)
  if options.dry_run:
    if options.action not in ('list', 'clean'):
      print(headline(specs[0]))
    for spec in specs:
      print(render(plan(options.action, spec, follow=options.follow)), end='')
    return 0
  if not (ROOT / 'launch' / 'worker.sh').is_file():
    raise UserError('launching needs a clone of fairjax (its folder launch/), not only the package')
  executor = Executor(ROOT, secrets=secret_values(specs[0].secrets, os.environ), log=log_line)
  return launch(options.action, specs, executor, follow=options.follow, detach=options.detach,
                delete=options.delete)


VERBS = (
  Verb('launch', 'run a command on a TPU slice in Google Cloud',
       'fairjax launch --tpu=v3-128 --zone=europe-west4-a --dry_run -- run '
       '--config=configs/wmt19.py:train=gs://my-bucket/news.gz --workdir=gs://my-bucket/wmt19',
       _add_options, _launch, takes_command=True),
)
