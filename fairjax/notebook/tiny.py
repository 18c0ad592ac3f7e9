"""A run of the planted corpus that is small enough for a cell of a notebook on two CPU cores."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from fairjax.config import (
  Config,
  DataConfig,
  DebiasConfig,
  MeasureConfig,
  ModelConfig,
  SampleConfig,
  TrainConfig,
  validate,
)
from fairjax.job.main_job import Job
from fairjax.notebook.devices import Sizes

TINY = 'tiny'  # name of such a run
_BATCH = 8  # of every stage: then the validation is compiled once


def tiny_config(
  sizes: Sizes, *, embedding: Sequence[float] = (), strength: float = 0.9, seed: int = 0,
  heldout: bool = True,
) -> Config:
  """The quickstart's run with a model of 64 instead of 128 dimensions, without TensorFlow.

  Args:
    sizes: of the sampling and the floors.
    embedding: lambda of each debiased model; none: the run ends with the baseline.
    strength: range of P(positive | value) in the corpus; 0 plants no bias.
    seed: of the run and its corpus.
    heldout: continue beginnings of sentences that training never saw, too.
  """
  optimiser: dict[str, Any] = dict(batch_size=_BATCH, adam_b2=0.95, clip_norm=1.0)
  config = Config(
    name=TINY, seed=seed, until='debias' if embedding else 'lm',
    data=DataConfig(
      source='planted', reader='numpy', seed=seed, vocab_size=640,
      planted_documents=6000, planted_heldout_documents=200, planted_strength=strength,
      planted_sensitive_share=1.0),
    # One head, post-norm and a large initial scale: see configs/quickstart.py.
    model=ModelConfig(num_layers=2, model_dim=64, num_heads=1, head_dim=32, ff_dim=128,
                      segment_len=32, memory_len=16, init_std=0.125),
    lm=TrainConfig(steps=1600, learning_rate=4e-3, warmup_steps=30, log_every=100, eval_every=1600,
                   checkpoint_every=1600, **optimiser),
    debias=DebiasConfig(steps=50, learning_rate=2e-3, warmup_steps=10, log_every=10, eval_every=50,
                        checkpoint_every=50, extended_baseline=False,
                        variants=tuple(f'embedding:{w:g}' for w in embedding), **optimiser),
    sample=SampleConfig(samples=sizes.samples, batch_size=sizes.batch_size,
                        max_new_tokens=sizes.max_new_tokens, sentence_end=True,
                        heldout_prefixes=heldout),
    measure=MeasureConfig(permutations=sizes.permutations, eval_batch_size=_BATCH, audit_texts=0))
  validate(config)
  return config


class TinyJob(Job):
  """A job on the CPU of which everything but step 1 runs shorter than it compiles."""

  def train(self, until: str | None = None) -> None:
    """Step 1 compiled as usual, the few steps of step 3 quickly."""
    super().train('lm')
    if (until or self.config.until) != 'lm':
      with quick_compilation():
        super().train(until)

  def sample(self) -> None:
    """See `Job.sample`."""
    with quick_compilation():
      super().sample()

  def measure(self) -> None:
    """See `Job.measure`."""
    with quick_compilation():
      super().measure()


@contextlib.contextmanager
def quick_compilation() -> Iterator[None]:
  """On a CPU, leaves out XLA's costly passes: programs compile in half the time and run slower."""
  import jax
  before = jax.config.read('jax_disable_most_optimizations')
  jax.config.update('jax_disable_most_optimizations', before or jax.default_backend() == 'cpu')
  try:
    yield
  finally:
    jax.config.update('jax_disable_most_optimizations', before)
