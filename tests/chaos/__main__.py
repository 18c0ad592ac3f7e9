"""The command line of the harness; `python -m tests.chaos --help`."""

import argparse
import collections
import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile
import time

from tests.chaos import curriculum
from tests.chaos.curriculum import FAULTS


def main() -> int:
  """Returns 0 if no case failed, 1 otherwise, 2 for bad arguments."""
  options = _options()
  # Not TemporaryDirectory: the first forked process to end would remove its folder.
  folder = options.scratch or pathlib.Path(tempfile.mkdtemp(prefix='chaos-'))
  try:
    folder.mkdir(parents=True, exist_ok=True)
    # Before anything imports JAX.
    curriculum.set_environment(folder.resolve() / 'compiled', quick=options.quick)
    found = _pass(options, folder)
  finally:
    if not options.scratch:
      shutil.rmtree(folder, ignore_errors=True)
  if options.json:
    cases = [dataclasses.asdict(case) for case in found]
    print(json.dumps({'seed': options.seed, 'cases': cases}, indent=2))
  else:
    for (fault, stage, verdict), count in sorted(collections.Counter(
        (c.fault, c.stage, c.verdict) for c in found).items()):
      print(f'{fault:10} {stage:10} {count:4} {verdict}')
  return int(any(case.failed for case in found))


def _options() -> argparse.Namespace:
  parser = argparse.ArgumentParser(prog='python -m tests.chaos', description=__doc__)
  parser.add_argument('--faults', default='all', help=f'of {", ".join(FAULTS)}; comma between')
  parser.add_argument('--runs', type=int, default=7, help='cases of each fault')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--quick', action='store_true',
                      help='runs without sentence similarity, programs without optimizations')
  parser.add_argument('--scratch', type=pathlib.Path, help='folder; a temporary one by default')
  parser.add_argument('--json', action='store_true', help='print JSON instead of counts')
  options = parser.parse_args()
  options.faults = FAULTS if options.faults == 'all' else tuple(options.faults.split(','))
  unknown = set(options.faults) - set(FAULTS)
  if unknown:
    parser.error(f'unknown faults: {", ".join(sorted(unknown))}; known: {", ".join(FAULTS)}')
  return options


def _pass(options: argparse.Namespace, folder: pathlib.Path) -> list:
  from tests.chaos import cases, nursery
  nursery.warm_up(quick=options.quick)
  shutil.rmtree(folder / 'one', ignore_errors=True)
  laboratory = cases.Laboratory(folder / 'one', curriculum.QUICK if options.quick else {})
  found = []
  try:
    begin = time.monotonic()
    undisturbed = laboratory.record()
    _log(f'undisturbed: {time.monotonic() - begin:.1f} s, {undisturbed.seconds:.1f} s of processor '
         f'time, {len(laboratory.trace)} moments, {len(laboratory.end)} files and arrays')
    # The faults in turns, so that a pass that is cut off has tried all of them.
    for number in range(options.runs):
      for fault in options.faults:
        case = cases.carry_out(laboratory, fault, number, options.seed)
        found.append(case)
        _log(f'{fault} {number}: {case.what} | {case.first} {case.message} | {case.second} '
             f'{case.answer} | {case.seconds:.1f} s | {case.verdict}')
  finally:
    laboratory.disk.close()
  return found


def _log(line: str) -> None:
  print(line, file=sys.stderr, flush=True)


if __name__ == '__main__':
  sys.exit(main())
