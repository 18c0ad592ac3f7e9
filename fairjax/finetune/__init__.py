"""Heads on a pretrained model: regression and classes, frozen or whole, over several seeds."""

from fairjax.classifier.trainer import Recipe
from fairjax.finetune.features import FeatureLearner
from fairjax.finetune.inputs import Inputs, Labelled
from fairjax.finetune.restarts import Predict, run_restarts
from fairjax.finetune.tokens import TokenLearner

__all__ = ['FeatureLearner', 'Inputs', 'Labelled', 'Predict', 'Recipe',
           'TokenLearner', 'run_restarts']
