"""Runs in processes that are forked from one that has imported everything.

Importing TensorFlow and JAX costs more than the tiny run. No device and no thread is started before
the fork; what a child does from there on is what a new process would do.
"""

import atexit
import dataclasses
import gc
import hashlib
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

TIMEOUT = 400.0  # seconds that a run may take before it counts as hanging
_POLL = 0.02


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a run ended."""

  code: int | None  # negative: the signal that ended it; None: it hung and was killed
  output: str  # both streams
  seconds: float  # of processor time, so that other work on the machine does not count

  @property
  def message(self) -> str:
    lines = [x for x in self.output.splitlines() if x.startswith('fairjax: ')]
    return lines[-1] if lines else ''

  @property
  def traceback(self) -> bool:
    return 'Traceback (most recent call last)' in self.output


def warm_up(*, quick: bool = False) -> None:
  """Imports the modules of a run; `RuntimeError` if one starts a thread, which a fork would lose.

  A quick pass never needs TensorFlow: it writes no files of TensorBoard.

  Figures are not rendered, which would take as long as all the rest of a run: their files hold
  digests of the lines, bars and words.
  """
  if quick:
    sys.modules['clu'] = None
  else:
    import clu.metric_writers  # noqa: F401
    import seqio  # noqa: F401
    import tensorflow_text  # noqa: F401
  import matplotlib.pyplot as plt
  import orbax.checkpoint  # noqa: F401
  import scipy.stats  # noqa: F401
  import tensorstore  # noqa: F401
  import vaderSentiment.vaderSentiment  # noqa: F401

  import fairjax.cli.main  # noqa: F401
  import fairjax.data.batches
  import fairjax.data.planted  # noqa: F401
  import fairjax.data.prepare
  import fairjax.generate
  import fairjax.measure
  import fairjax.model.decoding
  import fairjax.report
  import fairjax.run.job
  import fairjax.run.labelling
  import fairjax.train  # noqa: F401
  plt.Figure.savefig = _write_digest
  gc.freeze()  # no child walks, and so copies, what is here
  gc.set_threshold(50_000, 20, 100)
  threads = os.listdir('/proc/self/task') if os.path.isdir('/proc/self/task') else [0]
  if len(threads) > 1:
    raise RuntimeError(f'{len(threads)} threads run before the fork')


def _write_digest(figure, path, **_) -> None:
  """Stands in for `Figure.savefig`."""
  parts = []
  for axes in figure.axes:
    parts += [line.get_xydata().tobytes() for line in axes.lines]
    parts += [repr(patch.get_path().vertices.tolist()).encode() for patch in axes.patches]
    parts += [text.get_text().encode() for text in (axes.title, axes.xaxis.label, *axes.texts)]
  with open(path, 'wb') as file:
    file.write(b'<svg xmlns="http://www.w3.org/2000/svg" width="9pt" id="figure-'
               + hashlib.sha256(b'\0'.join(parts)).hexdigest().encode() + b'"/>\n')


def run(work: Callable[[], int], log: pathlib.Path) -> Outcome:
  """Does `work` in a forked process; its output, also kept in `log`, goes through a pipe, which no
  limit meets. It is killed after `TIMEOUT` seconds in which this process itself ran."""
  sys.stdout.flush()
  sys.stderr.flush()
  pipe, into = os.pipe()
  child = os.fork()
  if child == 0:
    os.close(pipe)
    _in_child(work, into)
  os.close(into)
  os.set_blocking(pipe, False)
  hangs, waited, last, output = False, 0.0, time.monotonic(), []
  while True:
    output += _read(pipe)
    done, status, used = os.wait4(child, os.WNOHANG if not hangs else 0)
    if done:
      break
    time.sleep(_POLL)
    now = time.monotonic()
    waited += min(now - last, 10 * _POLL)
    last = now
    if waited > TIMEOUT:
      os.kill(child, signal.SIGKILL)
      hangs = True
  output += _read(pipe)
  os.close(pipe)
  log.write_bytes(b''.join(output))
  return Outcome(None if hangs else os.waitstatus_to_exitcode(status),
                 b''.join(output).decode('utf-8', 'replace'), used.ru_utime + used.ru_stime)


def _read(pipe: int) -> list[bytes]:
  found = []
  try:
    while data := os.read(pipe, 1 << 16):
      found.append(data)
  except BlockingIOError:
    pass
  return found


def command(arguments: Sequence[str], prepare: Callable[[], None]) -> Callable[[], int]:
  """Work for `run`: the command line; `prepare` is called before it, in its process."""
  def work():
    import fairjax.cli.main
    prepare()
    return fairjax.cli.main.main(arguments)

  return work


def _in_child(work: Callable[[], int], output: int) -> None:
  """Never returns."""
  code = 1
  try:
    with open(os.devnull, 'rb') as nothing:
      os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    try:
      code = work()
    except SystemExit as e:
      code = e.code if isinstance(e.code, int) else 1
    except BaseException:
      sys.excepthook(*sys.exc_info())
    # As the interpreter does at its end.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
  finally:
    os._exit(code)
