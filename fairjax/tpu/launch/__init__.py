"""Launching on TPUs: a planner, which is a pure function from a spec to words, and what runs them.

Nothing here imports JAX: a laptop with Python and `gcloud` is enough.
"""

from fairjax.tpu.launch.commands import Run, Write, render, verdict
from fairjax.tpu.launch.plan import VERBS, plan
from fairjax.tpu.launch.spec import (
  BACKENDS,
  Accelerator,
  LaunchSpec,
  check_spec,
  expand_sweep,
  override_text,
  parse_accelerator,
  waits,
)
from fairjax.tpu.launch.supervise import Executor, launch

__all__ = [
  'BACKENDS', 'VERBS', 'Accelerator', 'Executor', 'LaunchSpec', 'Run', 'Write', 'check_spec',
  'expand_sweep', 'launch', 'override_text', 'waits',
  'parse_accelerator', 'plan', 'render', 'verdict',
]
