"""What digests and checks of files cost: `python -m tests.benchmarks.checks`.

Runs the main job in this process with every function that computes or compares a digest of saved
data wrapped in a clock of its thread's processor time, and gives their share of the processor time
of the whole job. Processor time, because other work on the machine does not change it. What another
wrapped function calls counts once. Import of the packages counts as part of the job, as it does for
the command.
"""

import argparse
import collections
import contextlib
import functools
import importlib
import pathlib
import sys
import tempfile
import threading
import time

# Module -> functions and methods. A name that is gone is an error.
CHECKS = {
  'fairjax.train.checkpoints': (
    'params_digest', 'leaf_digests', 'damaged_leaves', 'different_leaves',
    'CheckpointStore._verify', 'CheckpointStore._metadata', 'check_space', 'read_done',
  ),
  'fairjax.files': (
    'describe_files', 'read_manifest', 'check_sizes', 'read_checked', 'write_sealed_json',
    'read_sealed_json', 'file_sha256', 'read_json_lines', 'json_line',
  ),
  'fairjax.data.token_store': (
    'VerifiedTokens._verify', 'block_digests', 'open_token_store',
  ),
  'fairjax.generate.records': (
    'check_complete',
  ),
  'fairjax.run.workdir': (
    'write_inventory', 'is_finished', 'check_sources', 'file_digests',
  ),
}


class Clocks:
  """Processor time of functions, by name; nested calls count for the outer one."""

  def __init__(self):
    self.seconds: collections.Counter[str] = collections.Counter()
    self._inside = threading.local()
    self._lock = threading.Lock()

  def wrap(self, function, name: str):
    @functools.wraps(function)
    def timed(*args, **kwargs):
      if getattr(self._inside, 'yes', False):
        return function(*args, **kwargs)
      self._inside.yes, begin = True, time.thread_time()
      try:
        return function(*args, **kwargs)
      finally:
        self._inside.yes = False
        with self._lock:
          self.seconds[name] += time.thread_time() - begin

    return timed

  def install(self) -> None:
    """Wraps all of `CHECKS`, wherever they were imported to already."""
    for module_name, names in CHECKS.items():
      module = importlib.import_module(module_name)
      for name in names:
        owner, _, attribute = name.rpartition('.')
        holder = getattr(module, owner) if owner else module
        original = getattr(holder, attribute)
        timed = self.wrap(original, f'{module_name}.{name}')
        setattr(holder, attribute, timed)
        for other in [m for n, m in sys.modules.items() if n.startswith('fairjax')]:
          for key, value in list(vars(other).items()):
            if value is original:
              setattr(other, key, timed)


def main() -> int:
  parser = argparse.ArgumentParser(prog='python -m tests.benchmarks.checks', description=__doc__)
  parser.add_argument('--config', default='configs/quickstart.py')
  parser.add_argument('--workdir', type=pathlib.Path, help='empty; a temporary one by default')
  options, overrides = parser.parse_known_args()
  import fairjax.cli.main
  import fairjax.run.job  # noqa: F401
  clocks = Clocks()
  clocks.install()
  with tempfile.TemporaryDirectory() as temporary:
    workdir = options.workdir or pathlib.Path(temporary) / 'run'
    begin = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):  # ours is the result
      code = fairjax.cli.main.main(['run', f'--config={options.config}', f'--workdir={workdir}',
                               *overrides])
    seconds = time.perf_counter() - begin
  total, checks = time.process_time(), sum(clocks.seconds.values())
  from tests.benchmarks import harness  # JAX's import is part of the job, not of ours
  harness.show(harness.provenance('checks', options) | {
    'config': options.config, 'exit_code': code, 'wall_seconds': round(seconds, 2),
    'cpu_seconds': round(total, 2), 'checks_cpu_seconds': round(checks, 3),
    'share': round(checks / total, 5),
    'functions': {name: round(value, 4) for name, value in clocks.seconds.most_common()}})
  return code


if __name__ == '__main__':
  sys.exit(main())
