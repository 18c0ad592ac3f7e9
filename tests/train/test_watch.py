"""A part of a stage that hangs ends the process with 42, and the same command continues.

Run with `WORKDIR FAULT`, this module trains the tiny language model with the fault.
"""

import dataclasses
import os
import pathlib
import sys
import threading
import time

if __name__ == '__main__':
  sys.modules['clu'] = None  # no TensorBoard files: importing TensorFlow takes longer than the rest

import pytest  # noqa: E402
import test_curriculum  # noqa: E402
from groups import ends, start  # noqa: E402
from test_curriculum import ArrayFeed, _curriculum, _train  # noqa: E402

from fairjax import processes  # noqa: E402
from fairjax.config import LogConfig  # noqa: E402
from fairjax.train import checkpoints  # noqa: E402
from fairjax.train.goodput import read_goodput  # noqa: E402
from fairjax.train.watch import Watch  # noqa: E402

QUICK = LogConfig(hang_factor=4.0, hang_seconds=4.0)


def main(workdir, fault):
  class Starved(ArrayFeed):
    def train(self, *arguments, **options):
      for number, batch in enumerate(super().train(*arguments, **options)):
        if number == 5:
          threading.Event().wait()
        yield batch

  config = dataclasses.replace(test_curriculum.CONFIG, log=QUICK)
  if fault == 'disk':  # blocks the thread that writes the second checkpoint
    whole, calls, fifo = checkpoints.CheckpointStore._verify, [], workdir / '.fifo'

    def verify(*arguments):
      calls.append(1)
      if len(calls) == 2:
        os.mkfifo(fifo)
        fifo.write_bytes(b'nobody reads')
      whole(*arguments)
    checkpoints.CheckpointStore._verify = verify
  feed = Starved() if fault == 'input' else None
  _train(_curriculum(workdir, config=config, log=lambda line: print(line, flush=True), feed=feed),
         'lm')


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
  return _train(_curriculum(tmp_path_factory.mktemp('straight')), 'lm')


@pytest.mark.parametrize(('fault', 'step', 'part', 'function'), [
  ('input', 5, 'input', 'in train'), ('disk', 7, 'checkpoint', 'in verify')])
def test_what_hangs_ends_with_42_and_goes_on_to_the_same_bits(
    tmp_path, repository, straight, fault, step, part, function):
  ((code, printed, error),) = ends(start([[__file__, tmp_path / 'run', fault]], repository), 120)
  assert code == processes.PREEMPTED, error[-3000:]
  assert f'[lm] hangs after step {step}: {part} takes more than' in error.splitlines()[-1]
  stacks = (tmp_path / 'run' / 'lm' / 'hang-process-0.txt').read_text()
  assert function in stacks and f'after step {step}' in stacks
  found, expected = _train(_curriculum(tmp_path / 'run'), 'lm'), straight
  assert found.digest == expected.digest
  times, whole = read_goodput(found.directory), read_goodput(expected.directory)
  assert (times.starts, times.steps, whole.starts, whole.steps) == (2, 7, 1, 7)
  assert times.seconds['lost to restarts'] > 0 and 'lost to restarts' not in whole.seconds
  assert (found.directory / 'metrics.jsonl').read_bytes() == (
    expected.directory / 'metrics.jsonl').read_bytes()


def test_the_usual_time_is_the_longest_but_the_first(monkeypatch, tmp_path):
  clock = [0.0]
  monkeypatch.setattr('fairjax.train.watch.time.monotonic', lambda: clock[0])
  watch = Watch('lm', tmp_path, LogConfig(hang_factor=10.0, hang_seconds=300.0))
  for seconds, limit in ((1000.0, 3000.0), (20.0, 300.0), (50.0, 500.0), (2.0, 500.0)):
    with watch.part('wait'):
      clock[0] += seconds
    assert watch.limit('wait') == limit
  assert watch.limit('input') == 3000.0
  assert watch.limit('compile') == watch.limit('data') == watch.limit('batch') == float('inf')
  with watch.part('batch'):
    pass
  assert watch.limit('batch') == 3000.0
  assert watch.seconds == {'wait': 1072.0, 'batch': 0.0}


def test_the_time_in_which_the_process_itself_was_stopped_does_not_count(monkeypatch, tmp_path):
  ended = []
  monkeypatch.setattr(Watch, '_end', lambda self, part: ended.append(part.waited))
  real, jump = time.monotonic, [0.0]
  monkeypatch.setattr('fairjax.train.watch.time.monotonic', lambda: real() + jump[0])
  with Watch('lm', tmp_path, LogConfig(hang_factor=2.0, hang_seconds=0.5)) as watch:
    with watch.part('input'):
      time.sleep(0.2)
      jump[0] = 1e6  # SIGSTOP, or a machine that was moved
      time.sleep(0.2)
    assert not ended
    with watch.part('input'):
      time.sleep(1.6)
  assert ended


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), sys.argv[2])
