"""One of several processes that train a tiny curriculum and sample.

`ADDRESS,COUNT,INDEX WORKDIR [SECONDS [DEVICES FSDP MODEL]]`; what takes longer than SECONDS hangs.
`ADDRESS,COUNT,INDEX WORKDIR lm` ends after step 1.

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
import numpy as np  # noqa: E402

from fairjax import processes  # noqa: E402
from fairjax.config import (  # noqa: E402
  Config,
  DataConfig,
  DebiasConfig,
  LogConfig,
  MeshConfig,
  ModelConfig,
  SampleConfig,
  SentimentConfig,
  TrainConfig,
  Variant,
)
from fairjax.counterfactual import Prefix, load_attribute  # noqa: E402
from fairjax.errors import Preempted  # noqa: E402
from fairjax.generate.generations import generate  # noqa: E402
from fairjax.model import language_model  # noqa: E402
from fairjax.model.decoding import TransformerXLDecoder  # noqa: E402
from fairjax.processes import StopSignal  # noqa: E402
from fairjax.train import (  # noqa: E402
  LM,
  SENTIMENT,
  Curriculum,
  LabelledSentences,
  make_mesh,
  own_rows,
  variant_stage,
)

T, V, K, P = 8, 32, 2, 2
OPTIMISER = dict(batch_size=8, learning_rate=3e-3, warmup_steps=1, log_every=2, eval_every=3,
                 checkpoint_every=3)
CONFIG = Config(
  model=ModelConfig(vocab_size=V, num_layers=2, model_dim=16, num_heads=2, head_dim=8, ff_dim=32,
                    segment_len=T, memory_len=T, hidden_dropout=0.1, attention_dropout=0.1),
  data=DataConfig(), lm=TrainConfig(steps=7, **OPTIMISER),
  sentiment=SentimentConfig(steps=7, sentence_tokens=6, hidden_dim=8, **OPTIMISER),
  debias=DebiasConfig(steps=7, branches_per_row=K, pieces_per_branch=P, **OPTIMISER))
STAGES = {'lm': LM, 'sentiment': SENTIMENT,
          'debias': variant_stage('country', Variant('sentiment', 5.0))}
SAMPLE = SampleConfig(samples=16, max_new_tokens=6, batch_size=8)


class ArrayFeed:
  """Tokens that are a function of the step; a branch replaces token s by another."""

  vocabulary_fingerprint = 'v' * 64
  attribute_fingerprint = 'a' * 64

  def train(self, split, *, batch_size, start_step, branches):
    step = start_step
    while True:
      yield self._batch(step, batch_size, branches)
      step += 1

  def valid(self, *, batch_size):
    for step in (1000, 1001):
      yield self._batch(step, batch_size, False) | {
        'weights': np.ones((batch_size, T), np.float32)}

  def batch_name(self, split, step, *, batch_size):
    return f'{split} segment {step}'

  def _batch(self, step, rows, branches):
    rng = np.random.default_rng(step)
    tokens = (rng.integers(3, V, size=(rows, 1)) + np.arange(T + 1)) % (V - 3) + 3
    batch = {'inputs': tokens[:, :-1].astype(np.int32), 'targets': tokens[:, 1:].astype(np.int32),
             'reset': np.full(rows, step % 4 == 0)}
    if branches:
      start = rng.integers(0, T, size=(rows, K)).astype(np.int32)
      batch |= {
        'branch_tokens': rng.integers(3, V, size=(rows, K, P)).astype(np.int32),
        'branch_start': start, 'branch_len': rng.integers(1, P + 1, size=(rows, K), dtype=np.int32),
        'original_end': start, 'branch_weight': np.ones((rows, K), np.float32),
        'branch_counts': np.tile(np.array([3, K, 1, 0, 0], np.int32), (rows, 1))}
    return batch


def sentences():
  rng = np.random.default_rng(0)
  label = np.tile([0.0, 1.0], 40).astype(np.float32)
  tokens = np.where(label[:, None] > 0, 20, 5) + rng.integers(0, 5, size=(80, 6))
  tokens[:, 0] = 1
  return LabelledSentences(tokens.astype(np.int32), np.full(80, 6, np.int32), label)


class Words:
  """A vocabulary of words, each its number."""

  size, eos_id, end_ids, fingerprint, start_ids, chat = V, 1, (), 'w' * 64, (1,), None

  def encode(self, text):
    return [3 + len(word) % (V - 3) for word in text.split()]

  def prompt_ids(self, text):
    return [*self.start_ids, *self.encode(text)]

  def decode(self, ids):
    return ''.join(f' {i}' for i in ids)


class SharedFeed(ArrayFeed):
  def train(self, *arguments, **options):
    return own_rows(super().train(*arguments, **options))

  def valid(self, *, batch_size):
    return own_rows(super().valid(batch_size=batch_size))


def run(workdir: pathlib.Path, log, *, devices=None, hang_seconds=300.0, mesh=None,
        lm_alone=False) -> None:
  mesh = make_mesh(mesh or MeshConfig(), devices)
  with StopSignal().installed() as stop:
    curriculum = Curriculum(
      dataclasses.replace(CONFIG, log=LogConfig(hang_seconds=hang_seconds)),
      language_model(CONFIG.model), workdir, SharedFeed(), mesh, stop, log, sentences=sentences)
    lm = curriculum.train(list(STAGES.values())[:1 if lm_alone else None])['lm']
  if lm_alone:
    return
  attribute = load_attribute('country')
  generate(
    lm.params, TransformerXLDecoder(CONFIG.model), Words(), attribute,
    prefixes=[Prefix(*p) for p in [(0, 0, 'a bb ccc'), (0, 1, 'a bb dddd'), (1, 2, 'ee f')]],
    path=workdir / 'records.jsonl.gz', model='baseline', sample=SAMPLE, mesh=mesh, log=log)


def main() -> int:
  address, workdir, *rest = (word for word in sys.argv[1:] if word != 'lm')
  if rest and float(rest[0]) < processes.HEARTBEAT_SECONDS:
    processes.HEARTBEAT_SECONDS = 300  # so that what hangs is noticed by `Watch`, not by JAX
  processes.start(address)
  try:
    run(pathlib.Path(workdir), lambda line: print(line, flush=True),
        hang_seconds=float([*rest, 300][0]),
        mesh=MeshConfig(**dict(zip(('fsdp', 'model'), map(int, rest[2:]), strict=False))),
        lm_alone=sys.argv[-1] == 'lm')
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
