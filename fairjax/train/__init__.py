"""Training: losses, steps, the three-step curriculum, checkpoints, sharding."""

from fairjax.processes import StopSignal
from fairjax.train.checkpoints import (
  CheckpointError,
  Identity,
  check_identity,
  done_card,
  fingerprint,
  load_params,
  params_digest,
)
from fairjax.train.curriculum import (
  Curriculum,
  Feed,
  Trained,
  debias_name,
  derive_seed,
  stage_folder,
  variant_config,
  variant_name,
)
from fairjax.train.evaluation import evaluate_nll
from fairjax.train.loop import TrainingDiverged
from fairjax.train.metrics import read_metrics
from fairjax.train.sentiment_examples import LabelledSentences
from fairjax.train.sharding import check_batch_size, make_mesh, model_problems, own_rows
from fairjax.train.steps import params_template

__all__ = [
  'CheckpointError', 'Curriculum', 'Feed', 'Identity', 'LabelledSentences', 'StopSignal', 'Trained',
  'TrainingDiverged', 'check_batch_size', 'check_identity', 'debias_name', 'derive_seed',
  'done_card', 'evaluate_nll', 'fingerprint', 'load_params', 'make_mesh',
  'model_problems', 'own_rows', 'params_digest', 'params_template', 'read_metrics',
  'stage_folder', 'variant_config', 'variant_name',
]
