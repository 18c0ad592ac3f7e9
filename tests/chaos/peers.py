"""Killed peers: a run of several processes (gloo over loopback) loses one of them."""

import os
import pathlib
import random
import signal
import socket
import time
from collections.abc import Callable, Mapping

from tests.chaos import curriculum, end_state, nursery
from tests.chaos.cases import Case, Laboratory, stage_of_case
from tests.chaos.curriculum import STAGES
from tests.chaos.moments import Trigger, Watch
from tests.chaos.nursery import Outcome

MOST_SECONDS = 60.0  # that survivors may take to end; they do within a few on a quiet machine


class Group(Laboratory):
  """A laboratory whose runs have several processes; the first one's moments are watched."""

  def __init__(self, folder: pathlib.Path, fields: Mapping[str, object], *, count: int = 2):
    super().__init__(folder, fields)
    self.count = count
    self.pids: dict[int, int] = {}

  def run(self, prepare: Callable[[], None] = lambda: None) -> Outcome:
    """The command in all processes; the outcome of the first, or of the first that failed."""
    found = self.wait_all(self.start_all(prepare))
    return next((x for x in found if x.code), found[0])

  def start_all(self, prepare: Callable[[], None]) -> list[nursery.Child]:
    """Starts the first process last, so that it knows the numbers of the others."""
    with socket.socket() as free:
      free.bind(('127.0.0.1', 0))
      port = free.getsockname()[1]
    children = {}
    for index in reversed(range(self.count)):
      arguments = [*curriculum.arguments(self.workdir, **self.fields),
                   f'--distributed=127.0.0.1:{port},{self.count},{index}']
      children[index] = nursery.start(
        nursery.command(arguments, prepare if index == 0 else lambda: None),
        self.folder / f'run-{index}.log')
      self.pids[index] = children[index].pid
    return [children[index] for index in range(self.count)]

  def wait_all(self, children: list[nursery.Child]) -> list[Outcome]:
    """Their outcomes, in order."""
    return [nursery.wait(child) for child in children]


def carry_out(group: Group, number: int, seed: int) -> Case:
  """Kills one process at a drawn moment, looks how the others end, starts all again."""
  case, rng = Case('peer', number), random.Random(f'{seed}/peer/{number}')
  case.stage = stage_of_case('peer', number, STAGES)
  moment = rng.choice([m for m in group.trace if m.stage == case.stage])
  victim = number // len(STAGES) % group.count
  case.kind, case.what = moment.kind, f'{moment}, process {victim} of {group.count} killed'
  group.reset(case.stage)

  def kill():
    os.kill(group.pids[victim] if victim else os.getpid(), signal.SIGKILL)

  trigger = Trigger(moment, 0.0, kill)
  children = group.start_all(lambda: Watch(group.workdir, trigger).install())
  first = nursery.wait(children[victim])
  begin = time.monotonic()
  others = [nursery.wait(child, timeout=MOST_SECONDS)
            for index, child in enumerate(children) if index != victim]
  took = time.monotonic() - begin
  case.first, case.message = first.code, others[0].message
  case.seconds += sum(x.seconds for x in (first, *others))
  outputs = [first.output, *(x.output for x in others)]
  if first.code == -signal.SIGKILL:
    case.what += f'; the others end after {took:.1f} s with {[x.code for x in others]}'
    if any(x.code is None for x in others):
      case.verdict = f'failed: a survivor hangs for {MOST_SECONDS:.0f} s'
    elif not all(x.code and x.message for x in others):
      case.verdict = 'failed: a survivor does not say why it ends'
  elif first.code:
    case.verdict = f'failed: the run ended with {first.code} before the kill'
  if not case.verdict:
    again = group.run()
    outputs.append(again.output)
    case.second, case.answer = again.code, again.message
    case.seconds += again.seconds
    wrong = end_state.differences(group.end, group.read_end()) if not again.code else []
    case.verdict = 'identical'
    if again.code:
      case.verdict = f'failed: the second run ends with {again.code}'
    elif wrong:
      case.verdict = f'failed: {", ".join(wrong[:3])}'
  if case.failed:
    group.keep(case, '\n--- next ---\n'.join(outputs))
  return case
