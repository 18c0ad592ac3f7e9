"""Training: losses, steps, the three-step curriculum, checkpoints, sharding."""

from fairjax.train.checkpoints import (
  Identity,
  check_identity,
  load_params,
  params_digest,
  read_done,
)
from fairjax.train.curriculum import (
  LM,
  PLAIN,
  SENTIMENT,
  BatchSource,
  Curriculum,
  StageResult,
  StageSpec,
  curriculum_stages,
  derive_seed,
  stage_folder,
  variant_config,
  variant_stage,
)
from fairjax.train.evaluation import evaluate_nll
from fairjax.train.metrics import read_metrics
from fairjax.train.sentiment_examples import LabelledSentences
from fairjax.train.sharding import check_batch_size, make_mesh, model_problems, own_rows
from fairjax.train.steps import params_template

__all__ = [
  'LM', 'PLAIN', 'SENTIMENT', 'BatchSource', 'Curriculum', 'Identity', 'LabelledSentences',
  'StageResult', 'StageSpec', 'check_batch_size', 'check_identity', 'curriculum_stages',
  'derive_seed', 'evaluate_nll', 'load_params', 'make_mesh', 'model_problems', 'own_rows',
  'params_digest', 'params_template', 'read_done', 'read_metrics', 'stage_folder',
  'variant_config', 'variant_stage',
]
