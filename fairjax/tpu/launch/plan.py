"""From a spec to commands: `plan(verb, spec)` touches nothing and depends on nothing else."""

from collections.abc import Callable
from types import ModuleType

from fairjax.errors import unknown_name
from fairjax.tpu.launch import compute, gke, queued, sky, workers
from fairjax.tpu.launch.commands import Run, Step
from fairjax.tpu.launch.spec import LaunchSpec

VERBS = {
  'run': 'request a slice, ship the code, start the command, follow it (the default)',
  'up': 'request the slice and wait for it',
  'status': 'state of the slice and of the command on every worker',
  'logs': 'what the workers wrote; --follow goes on',
  'stop': 'let the command save and end; the slice stays',
  'down': 'delete the slice',
  'list': 'what was launched in the zone and is still there',
  'clean': 'delete what is dead and only uses up quota',
}
"""Verbs of `fairjax launch`."""

MODULES: dict[str, ModuleType] = {'queued': queued, 'compute': compute, 'gke': gke, 'sky': sky}
SLICES = ('queued', 'compute')
"""Backends whose workers are reached with ssh; the others run jobs themselves."""


def plan(verb: str, spec: LaunchSpec, *, follow: bool = False) -> list[Step]:
  """The steps of one verb, in order.

  Args:
    verb: one of `VERBS`.
    spec: a checked spec.
    follow: whether `logs` goes on until the command ends.

  Returns:
    Steps. `up` and `run` of a slice hold each step once; what runs them (`supervise`) asks for the
    state until it is ready and repeats what a lost slice undid.

  Raises:
    UserError: unknown verb.
  """
  if verb not in VERBS:
    raise unknown_name('verb of launch', verb, VERBS)
  module = MODULES[spec.backend]
  if verb in ('list', 'clean'):
    return list({'list': module.list_all, 'clean': module.clean}[verb](spec))
  if spec.backend in SLICES:
    return _on_slice(verb, spec, module, follow=follow)
  if verb == 'run':
    return [*module.up(spec), *module.run(spec)]
  if verb == 'logs':
    return list(module.logs(spec, follow=follow))
  return list(getattr(module, verb)(spec))


def _on_slice(verb: str, spec: LaunchSpec, module: ModuleType, *, follow: bool) -> list[Step]:
  steps: dict[str, Callable[[], list[Step]]] = {
    'up': lambda: [*module.up(spec), module.describe(spec)],
    'run': lambda: [*module.up(spec), module.describe(spec), *ship(spec), start(spec),
                    logs(spec, follow=True), status(spec)],
    'status': lambda: [module.show(spec), status(spec)],
    'logs': lambda: [logs(spec, follow=follow)],
    'stop': lambda: [module.ssh(spec, workers.worker_command(spec, 'stop'),
                                'let the command save and end on every worker')],
    'down': lambda: module.down(spec),
  }
  return list(steps[verb]())


def ship(spec: LaunchSpec) -> list[Step]:
  """Packs the code here and installs it on every worker."""
  module = MODULES[spec.backend]
  return [*workers.pack(spec), *module.copy(spec), *workers.forget_secrets(spec),
          module.ssh(spec, workers.unpack_command(spec), 'unpack it, install what is locked')]


def start(spec: LaunchSpec) -> Run:
  """Starts the command on every worker, detached."""
  return MODULES[spec.backend].ssh(
    spec, workers.start_command(spec), 'start the command on every worker; it outlives this line')


def logs(spec: LaunchSpec, *, follow: bool) -> Run:
  """Shows the log of every worker, its name before each line."""
  verb = 'follow' if follow else 'logs'
  return MODULES[spec.backend].ssh(
    spec, workers.worker_command(spec, verb),
    'show the logs until the command ends' if follow else 'show the logs', tries=1)


def status(spec: LaunchSpec) -> Run:
  """Asks every worker how its command stands."""
  return MODULES[spec.backend].ssh(
    spec, workers.worker_command(spec, 'status'), 'ask how the command stands', tries=3)
