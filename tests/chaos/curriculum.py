"""The run that is disturbed: every stage of the main job, as small as it can be."""

import os
import pathlib
from collections.abc import Mapping

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

FIELDS = {
  'data.planted_documents': 400, 'data.planted_heldout_documents': 30, 'data.vocab_size': 640,
  'model.num_layers': 2, 'model.model_dim': 16, 'model.num_heads': 1, 'model.head_dim': 8,
  'model.ff_dim': 16, 'model.segment_len': 16, 'model.memory_len': 8, 'model.hidden_dropout': 0.1,
  'lm.steps': 24, 'lm.batch_size': 8, 'lm.checkpoint_every': 8, 'lm.eval_every': 8,
  'lm.warmup_steps': 1, 'lm.log_every': 4, 'lm.learning_rate': 0.01,
  'sentiment.steps': 6, 'sentiment.batch_size': 4, 'sentiment.checkpoint_every': 2,
  'sentiment.eval_every': 2, 'sentiment.warmup_steps': 1, 'sentiment.log_every': 1,
  'sentiment.max_sentences': 60,
  'debias.steps': 4, 'debias.batch_size': 4, 'debias.checkpoint_every': 2, 'debias.eval_every': 2,
  'debias.warmup_steps': 1, 'debias.log_every': 1, 'debias.pieces_per_branch': 9,
  'debias.variants': "('sentiment:10',)", 'debias.extended_baseline': False,
  'sample.samples': 2, 'sample.max_new_tokens': 8, 'sample.batch_size': 2,
  'measure.permutations': 5, 'measure.eval_batch_size': 8,
}

QUICK = {'measure.encoder': '', 'data.reader': 'numpy', 'sample.heldout_prefixes': False}
"""What a quick pass leaves out: the sentence encoder, a third of the time of a run, seqio, and a
second set of prefixes."""

STAGES = ('data', 'lm', 'sentiment', 'debias', 'sample', 'measure', 'report')
"""In the order in which a run goes through them."""

FAULTS = ('kill', 'term', 'full', 'limit', 'read-only', 'clock', 'corrupt')
"""What can happen to a run."""

_STAGE_OF = {
  'config.json': 'data', 'data': 'data', 'lm': 'lm', 'sentiment': 'sentiment', 'debias': 'debias',
  'generations': 'sample', 'scores': 'measure', 'measures': 'measure', 'report': 'report',
  'DONE': 'report'}


def arguments(workdir: pathlib.Path, fields: Mapping[str, object]) -> list[str]:
  """Command line of the run, without the program; `fields` beside or instead of `FIELDS`."""
  return ['run', f'--config={ROOT / "configs" / "quickstart.py"}', f'--workdir={workdir}',
          *(f'--config.{name}={value}' for name, value in {**FIELDS, **fields}.items())]


def stage_of(path: str) -> str | None:
  """Stage that writes a path (relative to the workdir), None for the workdir itself."""
  first = path.split('/', 1)[0]
  for name, stage in _STAGE_OF.items():
    if first == name or first.startswith(f'.{name}.'):
      return stage
  return None


def set_environment(cache: pathlib.Path, *, quick: bool) -> None:
  """One CPU device, and compiled programs kept in a folder; call it before JAX is imported.

  `quick`: compile without most optimizations.
  """
  flags = ' '.join(flag for flag in os.environ.get('XLA_FLAGS', '').split()
                   if 'device_count' not in flag)
  for name in ('XLA_FLAGS', 'JAX_NUMPY_RANK_PROMOTION', 'JAX_NUM_CPU_DEVICES', 'JAX_ENABLE_X64'):
    os.environ.pop(name, None)
  os.environ |= {
    'JAX_PLATFORMS': 'cpu', 'TF_CPP_MIN_LOG_LEVEL': '3', 'MPLBACKEND': 'Agg',
    # No threads before the fork: of OpenBLAS, and of pyarrow, which Keras imports with pandas.
    'OPENBLAS_NUM_THREADS': '1', 'JE_ARROW_MALLOC_CONF': 'background_thread:false',
    'JAX_COMPILATION_CACHE_DIR': str(cache), 'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1'}
  if quick:
    os.environ |= {'JAX_DISABLE_MOST_OPTIMIZATIONS': '1', 'XLA_FLAGS': flags}
