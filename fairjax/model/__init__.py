"""Causal language models with counterfactual branches; the sentiment projection on their states.

Other packages name the protocol `CausalLM` and get a model from `language_model`. The mathematics
is in pure functions (`attention`); modules are Flax Linen. This package reads no files, needs no
mesh and knows nothing of text.

Letters in all modules: B batch rows, T segment length, M memory length, S = M + T keys, K branches
of a row, P pieces of a branch, Q = K P, R = S + P, N heads, H head width, D model width, F
feed-forward width, V vocabulary, L layers.
"""

from fairjax.model.causal_lm import (
  Branches,
  CausalLM,
  Documents,
  Memory,
  Params,
  State,
  init_memory,
)
from fairjax.model.sentiment import SentimentProjection
from fairjax.model.transformer_xl import (
  TransformerXL,
  TransformerXLModel,
  format_parameters,
  language_model,
  parameter_counts,
)

__all__ = ['Branches', 'CausalLM', 'Documents', 'Memory', 'Params',
           'SentimentProjection', 'State', 'TransformerXL', 'TransformerXLModel',
           'format_parameters', 'init_memory', 'language_model',
           'parameter_counts']
