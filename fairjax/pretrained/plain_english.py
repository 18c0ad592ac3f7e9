"""How well a decoder knows plain English: a wrong conversion gives fluent nonsense and no error."""

import importlib.resources
import math

import jax
import jax.numpy as jnp
import numpy as np

from fairjax.model.decoder import DecoderModel, NoState
from fairjax.model.decoder_config import DecoderConfig
from fairjax.pretrained.checkpoint import Pretrained

MOST_BITS = 1.3
"""Bits per character above which a model is none of English. SmolLM2-135M has 0.96, and 1.53 with
the queries and keys of its GGUF file not turned back."""

_ROW = 512


def rate_plain_english(model: Pretrained) -> tuple[float, float]:
  """Perplexity per token and bits per character of 300 words of English, written for this."""
  asset = importlib.resources.files('fairjax.pretrained') / 'assets' / 'plain_english.txt'
  text = asset.read_text(encoding='utf-8').strip()
  ids = np.array(model.tokenizer.encode(text).ids, np.int32)
  size = min(_ROW, model.arch.max_positions, len(ids) - 1)
  # Each row begins with the last token of the one before, which it does not predict again.
  count = -(-(len(ids) - 1) // size)
  padded = np.pad(ids, (0, count * size + 1 - len(ids)))
  rows = np.stack([padded[i * size:(i + 1) * size + 1] for i in range(count)])
  assert isinstance(model.arch, DecoderConfig)
  lm = DecoderModel(model.arch)

  @jax.jit
  def nll(params, rows):
    return lm.nll(params, lm.apply(params, rows[:, :-1], NoState()).hidden, rows[:, 1:])

  nats = np.asarray(nll(model.params, jnp.asarray(rows)), np.float64).reshape(-1)[:len(ids) - 1]
  return math.exp(min(nats.mean(), 700.0)), float(nats.sum() / math.log(2) / len(text))
