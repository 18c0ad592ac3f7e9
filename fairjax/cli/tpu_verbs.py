"""`tpu`: what programs need on a slice, slices in Google Cloud, and commands of fairjax on them."""

import argparse
import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

from fairjax.cli.options import add_fields, add_shared, field_values
from fairjax.cli.verb import Command, log_line
from fairjax.config import Config, MeshConfig
from fairjax.errors import UserError
from fairjax.files import check_place, installed_versions
from fairjax.processes import ended_at_once
from fairjax.tpu.chips import Slice, find_accelerator, find_slice
from fairjax.tpu.launch.plan import INSTALLED, ROOT, expand_sweep, override_text, plan, render
from fairjax.tpu.launch.plan import VERBS as ACTIONS
from fairjax.tpu.launch.spec import LaunchSpec, check_spec
from fairjax.tpu.launch.supervise import Executor, launch

# `tpu compile`, without JAX at the top, which must not choose a platform before.

_ENVIRONMENT = {
  'JAX_PLATFORMS': 'cpu',  # the slice is described, never opened
  'TPU_SKIP_MDS_QUERY': '1',  # asks no metadata server
  'TPU_ACCELERATOR_TYPE': 'v5litepod-4', 'TPU_WORKER_HOSTNAMES': 'localhost',  # else it complains
  'TPU_MIN_LOG_LEVEL': '3', 'TPU_STDERR_LOG_LEVEL': '3',
  # Nothing is locked on a machine with a TPU, nor against another compilation.
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}


def prepare_process() -> None:
  """Makes this process one that only compiles; to be called before JAX is used."""
  if importlib.util.find_spec('libtpu') is None:
    raise UserError('the TPU compiler is not installed: pip install libtpu, best that of this JAX: '
                    "pip install 'jax[tpu]'")
  os.environ.update(_ENVIRONMENT)


def compile_config(
  config: Config, *, topology: str, programs: Sequence[str], smallest: bool, as_json: bool,
) -> None:
  """Prints what programs (empty: all of the config) need; `UserError` if something does not fit."""
  where = find_slice(topology)
  if why := where.not_joined(config.mesh.slices):
    raise UserError(f'config.mesh.slices={config.mesh.slices}: {why}')
  prepare_process()
  from fairjax.tpu.programs import programs_of, sized

  config, results, problems = sized(config), [], []
  show = (lambda line: None) if as_json else functools.partial(print, flush=True)
  for program in programs or programs_of(config):
    try:
      result, problem = _one(config, program, where, smallest=smallest, show=show)
    except UserError as e:
      if programs:
        raise
      raise UserError(f'{e}; or choose what to compile with --program') from e
    results.append({'program': program} | result)
    problems += [problem] if problem else []
  if as_json:
    print(json.dumps({'topology': topology, 'fits': not problems, 'programs': results,
                      'versions': installed_versions()}, indent=2, allow_nan=False), flush=True)
  else:
    from fairjax.tpu.slice_search import CAVEAT
    print(CAVEAT, flush=True)
  if problems:
    raise UserError('. '.join(problems))


def compile_matrix(*, output: str, as_json: bool) -> None:
  """Compiles the paper's models for its slices and modern ones, and writes the page."""
  page = check_place(output)
  if page.suffix == '.json':
    raise UserError(f'--output={output} is the name of what is kept beside the page: name the '
                    f"page, e.g. {page.with_suffix('.md')}")
  check_place(page.with_suffix('.json'))
  prepare_process()
  from fairjax.tpu.slice_search import paper_cells, run_matrix
  results = run_matrix(
    paper_cells(), output=output, versions=installed_versions(), log=log_line,
    command=f'fairjax tpu compile --matrix --output={output}')
  print(json.dumps(results, indent=2, allow_nan=False) if as_json else output)


def _one(
  config: Config, program: str, where: Slice, *, smallest: bool, show: Callable[[str], None],
) -> tuple[dict, str]:
  """Result of one program, for JSON; and what it lacks, in words, if it does not fit."""
  from fairjax.tpu import slice_search
  from fairjax.train.memory import format_size

  chip, begun = where.chip.name, None
  if not smallest:
    begun, _ = slice_search.analyse(config, program, where, log=log_line)
    show('\n'.join(slice_search.describe(begun)))
    if begun.fits:
      return begun.to_dict(), ''
  search = slice_search.smallest_slice(config, program, where, begun=begun, log=log_line)
  found, tried = search.found, search.tried
  more: dict = {'tried': tried} | ({} if smallest else {'advice': slice_search.advice(program)})
  options = slice_search.options_of(config, found) if found else None
  if smallest and found:
    show(f'{program}: the smallest slice of {chip} that holds it is {found.topology}: {options}')
    show('\n'.join(slice_search.describe(found)))
    return more | found.to_dict() | {'options': options}, ''
  lacking = begun or search.closest
  lacks = slice_search.shortage(lacking) if lacking else program
  if begun and found:
    left = f'({format_size(-found.bytes_over)} left)'
    show(f'  the smallest slice of {chip} from it on that fits: {options} {left}')
    show(f'  or, not compiled: {more["advice"]}')
    return begun.to_dict() | more | {'smallest': found.to_dict(), 'options': options}, (
      f'{lacks}; compiled and fits: {options} {left}')
  nothing = f'no {"" if smallest else "larger "}slice of {chip}'
  show(f'{"  " if begun else f"{program}: "}{nothing} fits: {"; ".join(tried) or "none known"}')
  if begun:
    show(f'  or, not compiled: {more["advice"]}')
    more = begun.to_dict() | more | {'smallest': None, 'options': None}
  split = '' if program == 'sample' else ', nor with a larger mesh.fsdp'
  why = f' ({search.refused})' if search.refused else ''
  return {'fits': False} | more, (
    f'{lacks}; {nothing} fits{split}{why}; not compiled, may help: {slice_search.advice(program)}')


# `tpu compile`: the real TPU compiler without a TPU.

def _add_options(parser: argparse.ArgumentParser) -> None:
  add_shared(parser, 'config')
  parser.add_argument('--topology', metavar='NAME', help='slice, in chips: v3:8x8, v4:2x2x4, '
                      'v5e:4x4, v5p:2x2x2, v6e:4x4')
  parser.add_argument('--program', action='append', choices=('lm', 'debias', 'sample'),
                      default=None, help='repeat for several (default: all that the config has)')
  parser.add_argument('--smallest', action='store_true',
                      help="search the topology's generation for the smallest slice that fits")
  parser.add_argument('--matrix', action='store_true',
                      help="the paper's models on the paper's slices and on modern ones")
  parser.add_argument('--output', metavar='FILE', default='docs/compile.md',
                      help='page of --matrix; what is done is kept beside it as JSON')
  add_shared(parser, 'json')


def _compile(options: argparse.Namespace) -> None:
  if not options.matrix and not (options.topology and options.config):
    raise UserError('tpu compile needs --topology=NAME and --config=FILE, or --matrix')
  # Compilations take minutes in which a handler of Python's would wait.
  with ended_at_once('interrupted; the same command continues with the cells that are not compiled'
                     if options.matrix else 'interrupted; nothing is kept of what was compiled'):
    if options.matrix:
      compile_matrix(output=options.output, as_json=options.json)
      return
    from fairjax.config_io import load_config
    compile_config(
      load_config(options.config, options.overrides), topology=options.topology,
      programs=options.program or (), smallest=options.smallest, as_json=options.json)


_EXAMPLE = (
  'fairjax tpu run --tpu=v3-128 --zone=europe-west4-a --dry-run -- run '
  '--config=configs/wmt19.py:train=gs://my-bucket/news.gz --workdir=gs://my-bucket/wmt19')


def _pair(text: str) -> tuple[str, str]:
  key, equals, value = text.partition('=')
  if not equals or not key:
    raise argparse.ArgumentTypeError(f"'{text}' must be KEY=VALUE")
  return key, value


def _launch_options(action: str, parser: argparse.ArgumentParser) -> None:
  parser.set_defaults(action=action, command=[], inner=None, follow=False, detach=False,
                      delete=False, sweep=False, label=[], env=[], secret=[])
  named = action not in ('list', 'clean')
  if named:
    parser.add_argument('--tpu', metavar='TYPE', required=True,
                        help='v3-128, v5litepod-16, v6e-256')
  parser.add_argument('--zone', required=True, help='e.g. us-east5-b')
  parser.add_argument('--dry-run', action='store_true', help='print what would run, run nothing')
  add_fields(parser, LaunchSpec, 'project')
  if not named:
    parser.set_defaults(tpu='v4-8', topology='', slices=1)  # any: they do not use it
    return
  add_fields(parser, LaunchSpec, 'name', 'topology', 'slices', 'internal_ip', 'iap')
  if action == 'logs':
    parser.add_argument('--follow', action='store_true', help='go on until the command ends')
  if action in ('run', 'up'):
    add_fields(parser, LaunchSpec, 'spot', 'reserved', 'valid_until', 'runtime_version',
               'service_account', 'network', 'subnetwork', 'recreate')
    _add_pairs(parser, 'label', 'of the resources')
  if action == 'run':
    add_fields(parser, LaunchSpec, 'restarts')
    for name, text in (('detach', 'return once the command has started'),
                       ('delete', 'delete the slice when the command has ended'),
                       ('sweep', "the points of the config's sweep(add), one after the other")):
      parser.add_argument(f'--{name}', action='store_true', help=text)
    _add_pairs(parser, 'env', 'variable of the workers')
    parser.add_argument('--secret', action='append', default=[], metavar='NAME',
                        help='variable of this machine that the workers get; never shown')


def _add_pairs(parser: argparse.ArgumentParser, name: str, text: str) -> None:
  parser.add_argument(f'--{name}', type=_pair, action='append', default=[], metavar='KEY=VALUE',
                      help=text)


def make_specs(options: argparse.Namespace) -> list[LaunchSpec]:
  """The checked specs that the options ask for: one, or one for each point of a sweep."""
  from fairjax.config_io import load_config, load_sweep
  where = find_accelerator(options.tpu, shape=options.topology)
  values = field_values(options, LaunchSpec) | {
    'command': worker_words(options.command, options.inner, where.num_chips, options.slices),
    'labels': tuple(options.label), 'env': tuple(options.env), 'secrets': tuple(options.secret)}
  spec = check_spec(LaunchSpec(**values), options.action)
  if options.action != 'run':
    return [spec]
  inner = options.inner
  if not options.sweep:
    check_command(spec, inner, {})
    return [spec]
  if not getattr(inner, 'config', None):
    raise UserError('--sweep needs a command with --config=FILE')
  points = load_sweep(inner.config)
  planted = load_config(inner.config, inner.overrides).data.source == 'planted'
  specs = [check_spec(dataclasses.replace(spec, command=words), 'run')
           for _, words in expand_sweep(spec.command, points, planted=planted)]
  for point in points:
    check_command(spec, inner, {name: override_text(value) for name, value in point.items()})
  return specs


def worker_words(command: list[str], inner: argparse.Namespace | None, chips: int, slices: int
                 ) -> tuple[str, ...]:
  """The command of the workers, with --distributed=auto if it can join several processes."""
  # Without it every machine of a slice would work alone, and wait for the others for ever. Some
  # hosts have four chips, so more chips may be several hosts; a group of one changes nothing.
  joins = (slices > 1 or chips > 4) and hasattr(inner, 'distributed') and (
    inner.distributed is None and not inner.alone(inner))
  return (*command, *(['--distributed=auto'] if joins else []))


def check_command(
  spec: LaunchSpec, inner: argparse.Namespace, point: Mapping[str, str],
) -> None:
  """Refuses a wrong config, a mesh that does not fit the slice, and files that no worker has."""
  if inner.verb is None:
    raise UserError('the command after -- begins with a verb of fairjax: run, step, sample, ...')
  if inner.verb.startswith('tpu '):
    raise UserError('tpu run cannot launch itself: put the command of the workers after --')
  alone = inner.alone(inner) or ('' if hasattr(inner, 'distributed') else inner.verb)
  if spec.several and alone and inner.verb != 'doctor':
    raise UserError(f'tpu run: {alone} runs in one process, and every machine of {spec.slices} x '
                    f'{spec.slice.accelerator_type} would run it: run it here, or take a slice of '
                    'one machine')
  for name in ('workdir', 'output', 'keep'):
    place = str(getattr(inner, name, None) or '/')
    if not place.startswith(('gs:/', '/')):  # a Path has one slash fewer than its text
      raise UserError(f'tpu run: --{name}={place} would be in the folder of the code, which every '
                      'worker has for itself and the next launch removes: take gs://BUCKET/DIR, or '
                      'the absolute path of a disk that stays')
  from fairjax.config_io import load_config, shipped_configs
  from fairjax.counterfactual.attributes import list_attributes, list_crossed
  from fairjax.tpu.launch.spec import config_paths, lacking_packages, not_on_workers, option_paths
  config, paths = Config(), list(option_paths(vars(inner)))
  if getattr(inner, 'config', None):
    path = inner.config.partition(':')[0]
    here = not inner.config.startswith('gs://') and path not in shipped_configs()
    paths += [('--config', path)] if here else []
    if not inner.config.startswith(('gs://', '/')):
      config = load_config(inner.config, {**inner.overrides, **point})
      _check_mesh(spec, config.mesh)
      paths += config_paths(config, attributes=[*list_attributes(), *list_crossed()])
  launch = ROOT / 'launch'
  if lacks := lacking_packages(config, vars(inner), launch=launch):
    raise UserError(f"tpu run: no worker installs what the command needs: {'; '.join(lacks)}: "
                    f'append it, with hashes: cd {launch} && echo PACKAGE | uv pip compile - '
                    '--constraint=requirements.txt --generate-hashes >>encoder.txt')
  faults = not_on_workers(
    paths, root=ROOT, command=[*spec.command, *(f'--config.{k}={v}' for k, v in point.items())])
  if faults:
    raise UserError(f"tpu run: no worker has what the command reads: {'; '.join(faults)}: put it "
                    'into a bucket and name it gs://BUCKET/PATH' + (
                      '' if INSTALLED else
                      f', or add it to git in {ROOT}, whose tracked files the workers get'))


def _check_mesh(spec: LaunchSpec, mesh: MeshConfig) -> None:
  """Raises `UserError` where a mesh does not fit the slice."""
  if mesh.slices != spec.slices:
    raise UserError(f'--slices={spec.slices} needs --config.mesh.slices={spec.slices} in the '
                    f'command, which has {mesh.slices}')
  fixed = mesh.slices * mesh.fsdp * mesh.model * max(mesh.data, 1)
  if spec.num_devices % fixed or (mesh.data > 0 and fixed != spec.num_devices):
    raise UserError(f'config.mesh (slices {mesh.slices}, data {mesh.data}, fsdp {mesh.fsdp}, model '
                    f'{mesh.model}) does not fit the {spec.num_devices} devices of '
                    f'{spec.slices} x {spec.slice.accelerator_type}')


def secret_values(names: tuple[str, ...]) -> list[str]:
  """The secrets in this process's environment; `UserError` where one is not set, or not a line."""
  for name in names:
    if not os.environ.get(name):
      raise UserError(f'--secret={name}: the variable is not set here: read -rs {name} && export '
                      f'{name}')
    if '\n' in os.environ[name]:
      raise UserError(f'--secret={name}: the variable holds a line break')
  return [os.environ[name] for name in names]


def headline(spec: LaunchSpec) -> str:
  """What a launch is, in a line."""
  s = spec.slice
  compiled = f'; fairjax tpu compile --topology={s.name}' if s.chip.compiles else ''
  return (f'# {spec.slices} x {s.accelerator_type} in {spec.zone}: {spec.num_devices} devices '
          f'({s.num_chips} chips {s.shape} a slice{compiled})')


def _launch(options: argparse.Namespace) -> int:
  if options.detach and options.delete:
    raise UserError('tpu run: --detach returns while the command runs, so --delete has nothing to '
                    'wait for: leave one out (fairjax tpu down deletes the slice)')
  specs = make_specs(options)
  if options.dry_run:
    if options.action not in ('list', 'clean'):
      print(headline(specs[0]))
    for spec in specs:
      print(render(plan(options.action, spec, follow=options.follow)), end='')
    return 0
  executor = Executor(pathlib.Path.cwd() if INSTALLED else ROOT, log=log_line,
                      secrets=secret_values(specs[0].secrets))
  return launch(options.action, specs, executor, follow=options.follow, detach=options.detach,
                delete_after=options.delete)


COMMANDS = {
  'tpu compile': Command(
    _add_options, _compile, "estimate memory and FLOPs on a slice you don't have (needs libtpu)",
    'fairjax tpu compile --topology=v5e:2x2 --config=configs/quickstart.py --program=lm'),
} | {
  f'tpu {action}': Command(functools.partial(_launch_options, action), _launch, what,
                           _EXAMPLE if action == 'run' else '', takes_command=action == 'run')
  for action, what in ACTIONS.items()}
