"""Transformer-XL with counterfactual branches, and the sentiment projection on its hidden states.

The mathematics is in pure functions (`attention`); modules are Flax Linen. Nothing here reads
files, needs a mesh or knows where text comes from.
"""

from fairjax.model.causal_lm import Branches, Memory, Output, Pairs, init_memory
from fairjax.model.likelihood import next_token_nll
from fairjax.model.sentiment import SentimentProjection
from fairjax.model.transformer_xl import TransformerXL, parameter_counts, parameter_words

__all__ = ['Branches', 'Memory', 'Output', 'Pairs', 'SentimentProjection', 'TransformerXL',
           'init_memory', 'next_token_nll', 'parameter_counts', 'parameter_words']
