"""One of several processes that train a tiny curriculum and sample.

`ADDRESS,COUNT,INDEX WORKDIR [SECONDS [DEVICES FSDP MODEL]]`; what takes longer than SECONDS hangs.

On arrays, without TensorFlow. What is compared is in the workdir; the exit code is the command
line's.
"""

import dataclasses
import pathlib
import sys
import traceback

if __name__ == '__main__':  # and not where a test imports this
  sys.modules['clu'] = None  # no TensorBoard files: importing TensorFlow takes longer than the rest

import jax  # noqa: E402
from test_curriculum import CONFIG, STAGES, ArrayFeed, _sentences  # noqa: E402

from fairjax import processes  # noqa: E402
from fairjax.config import LogConfig, MeshConfig, SampleConfig  # noqa: E402
from fairjax.counterfactual import Prefix, load_attribute  # noqa: E402
from fairjax.errors import Preempted  # noqa: E402
from fairjax.generate import generate  # noqa: E402
from fairjax.model import language_model  # noqa: E402
from fairjax.model.decoding import TransformerXLDecoder  # noqa: E402
from fairjax.processes import StopSignal  # noqa: E402
from fairjax.train import Curriculum, make_mesh, own_rows  # noqa: E402

MODEL = dataclasses.replace(CONFIG.model, vocab_size=40)
SAMPLE = SampleConfig(samples=16, max_new_tokens=6, batch_size=8)


class Words:
  """A vocabulary of 40 words, each its number."""

  size, eos_id, end_ids, fingerprint, start_ids, chat = 40, 1, (), 'w' * 64, (1,), None

  def encode(self, text):
    return [3 + len(word) % 30 for word in text.split()]

  def prompt_ids(self, text):
    return [*self.start_ids, *self.encode(text)]

  def decode(self, ids):
    return ''.join(f' {i}' for i in ids)


class SharedFeed(ArrayFeed):
  """Each process gets its rows of the same batches."""

  def train(self, *arguments, **options):
    return own_rows(super().train(*arguments, **options))

  def valid(self, *, batch_size):
    return own_rows(super().valid(batch_size=batch_size))


def run(workdir: pathlib.Path, log, *, devices=None, hang_seconds=300.0, mesh=None) -> None:
  """All stages and the samples of the baseline."""
  mesh = make_mesh(mesh or MeshConfig(), devices)
  with StopSignal().installed() as stop:
    curriculum = Curriculum(
      dataclasses.replace(CONFIG, model=MODEL, log=LogConfig(hang_seconds=hang_seconds)),
      language_model(MODEL), workdir, SharedFeed(), mesh, stop, log, sentences=_sentences)
    lm = curriculum.train(STAGES.values())['lm']
  attribute = load_attribute('country')
  generate(
    lm.params, TransformerXLDecoder(MODEL), Words(), attribute,
    prefixes=[Prefix(*p) for p in [(0, 0, 'a bb ccc'), (0, 1, 'a bb dddd'), (1, 2, 'ee f')]],
    path=workdir / 'records.jsonl.gz', model='baseline', sample=SAMPLE, mesh=mesh, log=log)


def main() -> int:
  """Returns the exit code."""
  processes.start(sys.argv[1])
  try:
    run(pathlib.Path(sys.argv[2]), lambda line: print(line, flush=True),
        hang_seconds=float([*sys.argv, 300][3]),
        mesh=MeshConfig(**dict(zip(('fsdp', 'model'), map(int, sys.argv[5:]), strict=False))))
    code = 0
  except Preempted as e:
    print(e, flush=True)
    code = processes.PREEMPTED
  except Exception:
    processes.wait_for_loss()
    traceback.print_exc()
    code = 1
  return processes.leave(code)


if __name__ == '__main__':
  jax.config.update('jax_num_cpu_devices', int(sys.argv[4]) if sys.argv[4:] else 1)
  sys.exit(main())
