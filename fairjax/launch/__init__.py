"""Launching on TPUs: a planner, which is a pure function from a spec to words, and what runs them.

Nothing here imports JAX: a laptop with Python and `gcloud` is enough.
"""

from fairjax.launch.accelerators import Accelerator, parse_accelerator
from fairjax.launch.execute import Executor
from fairjax.launch.exit_codes import verdict
from fairjax.launch.plan import VERBS, plan
from fairjax.launch.spec import BACKENDS, LaunchSpec, check_spec
from fairjax.launch.steps import Run, Write, render
from fairjax.launch.supervise import launch
from fairjax.launch.sweep import expand_sweep, override_text, waits

__all__ = [
  'BACKENDS', 'VERBS', 'Accelerator', 'Executor', 'LaunchSpec', 'Run', 'Write', 'check_spec',
  'expand_sweep', 'launch', 'override_text', 'waits',
  'parse_accelerator', 'plan', 'render', 'verdict',
]
