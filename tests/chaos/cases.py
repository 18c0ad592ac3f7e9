"""Cases: drawn from a seed, carried out, judged."""

import dataclasses
import functools
import json
import pathlib
import random
import shutil
from collections.abc import Callable, Mapping, Sequence

from tests.chaos import curriculum, damage, end_state, faults, nursery
from tests.chaos.curriculum import FAULTS, STAGES
from tests.chaos.moments import Moment, Recorder, Trigger, Watch, read_trace
from tests.chaos.nursery import Outcome

_LATEST = 0.05  # seconds after a moment
_LEFT = (0, 4096, 16384, 65536)  # bytes of a disk that is all but full


@dataclasses.dataclass
class Case:
  """A disturbance and its end, a function of the seed and the number."""

  fault: str
  number: int
  stage: str = ''  # that was disturbed
  what: str = ''  # description of the disturbance
  first: int | None = None  # exit code of the disturbed run; None if there was none
  message: str = ''  # its line for the user, or `traceback`
  second: int | None = None  # exit code of the same command, given again
  answer: str = ''  # the second run's line for the user, or its warning
  verdict: str = ''  # identical | refused | skipped | failed: why
  seconds: float = 0.0  # of processor time of all runs

  @property
  def failed(self) -> bool:
    return self.verdict.startswith('failed')


class Laboratory:
  """Where the runs take place; what a failed case leaves is kept in `failed/`."""

  def __init__(self, folder: pathlib.Path, fields: Mapping[str, object]):
    self.fields = fields
    self.folder = folder.resolve()
    self.disk = faults.SmallDisk(self.folder / 'disk')
    # All runs use one path, so that nothing can differ because of it.
    self.workdir = self.folder / 'disk' / 'run'
    self.states = self.folder / 'states'
    self.trace: list[Moment] = []
    self.end: dict[str, str] = {}

  def record(self) -> Outcome:
    """Runs without a fault and keeps states, moments and the end."""
    self.states.mkdir(parents=True)
    found = self.run(lambda: Watch(self.workdir, Recorder(
      self.workdir, self.folder / 'trace.tsv', self.states)).install())
    if found.code != 0:  # None: it hung
      raise RuntimeError(f'the undisturbed run ended with {found.code}:\n{found.output[-3000:]}')
    shutil.copytree(self.workdir, self.states / 'end', symlinks=True)
    self.trace = read_trace(self.folder / 'trace.tsv')
    self.end = self.read_end()
    return found

  def run(self, prepare: Callable[[], None]) -> Outcome:
    """The command, once, in the workdir as it is."""
    return nursery.run(nursery.command(
      curriculum.arguments(self.workdir, self.fields), prepare), self.folder / 'run.log')

  def reset(self, stage: str) -> None:
    """The workdir as it was before a stage (`data`: none; `end`: finished)."""
    if self.workdir.exists():
      faults.allow_writing(self.workdir)
      shutil.rmtree(self.workdir)
    if stage != STAGES[0]:
      shutil.copytree(self.states / stage, self.workdir, symlinks=True)

  def read_end(self) -> dict[str, str]:
    path = self.folder / 'end.json'
    path.unlink(missing_ok=True)

    def work():
      path.write_text(json.dumps(end_state.read_end(self.workdir)))
      return 0

    found = nursery.run(work, self.folder / 'end.log')
    if not path.is_file():
      raise RuntimeError(f'the end cannot be read:\n{found.output[-3000:]}')
    return json.loads(path.read_text())

  def keep(self, case: Case, output: str) -> None:
    target = self.folder / 'failed' / f'{case.fault}-{case.number}'
    shutil.rmtree(target, ignore_errors=True)
    if self.workdir.exists():
      shutil.copytree(self.workdir, target / 'run', symlinks=True)
    target.mkdir(parents=True, exist_ok=True)
    (target / 'case.json').write_text(json.dumps(dataclasses.asdict(case), indent=2))
    (target / 'output.txt').write_text(output)


def carry_out(laboratory: Laboratory, fault: str, number: int, seed: int) -> Case:
  case, rng = Case(fault, number), random.Random(f'{seed}/{fault}/{number}')
  if fault == 'full' and laboratory.disk.problem:
    case.what, case.verdict = laboratory.disk.problem, 'skipped'
    return case
  outputs = []
  try:
    if fault == 'corrupt':
      _corrupt(laboratory, case, rng, outputs)
    else:
      _disturb(laboratory, case, rng, outputs)
  finally:
    laboratory.disk.free()
    if laboratory.workdir.exists():
      faults.allow_writing(laboratory.workdir)
  if case.failed:
    laboratory.keep(case, '\n--- again ---\n'.join(outputs))
  return case


def stage_of_case(fault: str, number: int, stages: Sequence[str]) -> str:
  """Stages in turns, each fault beginning with another one."""
  return stages[(number + FAULTS.index(fault)) % len(stages)]


def _disturb(laboratory, case, rng, outputs) -> None:
  """A fault inside a run, then the same command again."""
  case.stage = stage_of_case(case.fault, case.number, STAGES)
  here = [m for m in laboratory.trace if m.stage == case.stage]
  moment = rng.choice(here)
  delay = rng.choice((0.0, rng.uniform(0, _LATEST)))
  case.what = f'{moment}' + (f' + {delay * 1000:.0f} ms' if delay else '')
  laboratory.reset(case.stage)
  first = laboratory.run(_preparation(laboratory, case, rng, moment, delay))
  outputs.append(first.output)
  case.first, case.message = first.code, _message(first)
  case.seconds += first.seconds
  problem = _judge_first(case.fault, first)
  laboratory.disk.free()
  faults.allow_writing(laboratory.workdir)
  prepare = _nothing
  if case.fault == 'clock':
    damage.shuffle_times(laboratory.workdir, rng)
    jump = rng.choice((-1, 1)) * rng.randrange(10**6, 10**9)
    case.what += f'; file times shuffled, second run {jump:+,} s'
    prepare = functools.partial(faults.jump_clock, jump)
  elif case.fault == 'kill' and case.number % 5 == 4:
    other = rng.choice(here)
    case.what += f'; again at {other}'
    between = laboratory.run(_preparation(laboratory, case, rng, other, 0.0))
    outputs.append(between.output)
    case.seconds += between.seconds
  _finish(laboratory, case, outputs, prepare)
  if problem:  # whatever the second run made of it
    case.verdict = f'failed: {problem}; then {case.verdict}'


def _corrupt(laboratory, case, rng, outputs) -> None:
  """Harms a file of a workdir at rest or of a killed run, then gives the command."""
  case.stage = stage_of_case('corrupt', case.number, (*STAGES[1:], 'end'))
  laboratory.reset(case.stage)
  if case.stage != 'end' and rng.random() < 0.5:
    moment = rng.choice([m for m in laboratory.trace if m.stage == case.stage])
    case.what = f'killed at {moment}; '
    first = laboratory.run(_preparation(laboratory, case, rng, moment, 0.0, fault='kill'))
    outputs.append(first.output)
    case.first, case.seconds = first.code, first.seconds
  classes = damage.classes(laboratory.workdir)
  name = rng.choice(classes[rng.choice(sorted(classes))])
  operation = damage.OPERATIONS[case.number // len(STAGES) % len(damage.OPERATIONS)]
  path = laboratory.workdir / name
  if operation == 'delete' and rng.random() < 0.25 and path.parent != laboratory.workdir:
    name, done = str(pathlib.PurePath(name).parent), damage.delete_folder(path.parent)
  else:
    done = damage.damage(path, operation, rng)
  case.what += f'{name}: {done}'
  before = {p for p in laboratory.workdir.rglob('*') if p.is_file()}
  _finish(laboratory, case, outputs, _nothing, may_refuse=True)
  lost = [p for p in before if not p.exists() and not _may_go(p, laboratory.workdir)]
  if case.verdict == 'refused' and lost:
    case.verdict = f'failed: refused, but {lost[0].relative_to(laboratory.workdir)} is gone'


def _may_go(path: pathlib.Path, workdir: pathlib.Path) -> bool:
  """Whether a run may remove a file: of a checkpoint (moved aside or too old), or a hidden one.

  Also the parts of measures whose whole is there: the run went on until it met the damage.
  """
  name = path.relative_to(workdir).as_posix()
  if path.name.endswith('.parts.jsonl'):
    return path.with_name(path.name.removesuffix('.parts.jsonl') + '.json').exists()
  return '/checkpoints/' in name or '/progress/' in name or path.name.startswith('.')


def _finish(laboratory, case, outputs, prepare, *, may_refuse: bool = False) -> None:
  """Gives the command (again) and judges the end."""
  again = laboratory.run(prepare)
  outputs.append(again.output)
  case.second, case.answer = again.code, _message(again)
  case.seconds += again.seconds
  if again.code is None:
    case.verdict = 'failed: the second run hangs'
  elif again.code:
    if not may_refuse:
      case.verdict = f'failed: the second run ends with {again.code}'
    elif not again.message or again.traceback:
      case.verdict = 'failed: refused with a traceback'
    else:
      case.verdict = 'refused'
  else:
    wrong = end_state.differences(laboratory.end, laboratory.read_end())
    case.verdict = 'identical'
    if wrong:
      more = f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''
      case.verdict = f'failed: {", ".join(wrong[:3])}{more}'


def _preparation(laboratory, case, rng, moment, delay, *, fault: str | None = None):
  """What the process of a disturbed run does before it starts."""
  fault, workdir = fault or case.fault, laboratory.workdir
  extra: list[Trigger] = []
  before: Callable[[], None] = _nothing
  if fault == 'kill':
    action = faults.kill
  elif fault == 'term':
    action = faults.terminate
  elif fault == 'full':
    left = rng.choice(_LEFT)
    case.what += f', {left} bytes left'
    action = functools.partial(laboratory.disk.fill, left)
  elif fault == 'limit':
    most = rng.choice(_LEFT[:3])
    case.what += f', files of at most {most} bytes'
    action = functools.partial(faults.limit_file_sizes, most)
  elif fault == 'read-only':
    folder = _folder_of(moment, workdir) if rng.random() < 0.5 else workdir
    case.what += f', {"all" if folder == workdir else "its folder"} read-only'
    before, action = faults.obey_modes, lambda: faults.forbid_writing(_existing(folder))
  else:  # the clock
    jump = rng.choice((-1, 1)) * rng.randrange(10**6, 10**9)
    case.what += f', {jump:+,} s, then killed'
    action = functools.partial(faults.jump_clock, jump)
    here = [m for m in laboratory.trace if m.stage == case.stage]
    extra = [Trigger(rng.choice(here), _LATEST, faults.kill)]
  triggers = [Trigger(moment, delay, action), *extra]

  def prepare():
    before()
    Watch(workdir, lambda m: [t(m) for t in triggers]).install()

  return prepare


def _nothing() -> None:
  """What a run that nothing disturbs does before it starts."""


def _folder_of(moment: Moment, workdir: pathlib.Path) -> pathlib.Path:
  if moment.operation == 'print':
    return workdir / {'sample': 'generations', 'measure': 'measures'}.get(
      moment.stage, moment.stage)
  return (workdir / moment.path).parent


def _existing(folder: pathlib.Path) -> pathlib.Path:
  while not folder.is_dir():
    folder = folder.parent
  return folder


def _judge_first(fault: str, found: Outcome) -> str:
  """What is wrong with how the disturbed run ended; '' if nothing is."""
  if found.code is None:
    return 'the disturbed run hangs'
  if fault == 'term' and found.code not in (0, 42):
    return f'SIGTERM ended it with {found.code}, not 42'
  if fault in ('full', 'limit', 'read-only') and found.code:
    if found.code < 0:
      return f'died of signal {-found.code}'
    if not found.message or found.traceback:
      return 'no line for the user'
  if fault == 'clock' and found.code not in (0, -9):
    return f'the jump ended it with {found.code}'
  return ''


def _message(found: Outcome) -> str:
  if found.message:
    return found.message
  if found.traceback:
    return 'traceback: ' + found.output.strip().splitlines()[-1][:200]
  warning = [x for x in found.output.splitlines() if 'WARNING' in x or 'damaged' in x]
  return warning[0][:300] if warning else ''
