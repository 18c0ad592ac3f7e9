"""Opens a model by its folder, whichever kind it is."""

import dataclasses
import json
import os
import pathlib
from typing import Any

from fairjax.correlations.causal_model import CausalModel
from fairjax.correlations.language_model import LanguageModel
from fairjax.correlations.masked_model import MaskedModel
from fairjax.errors import UserError


def open_language_model(
  path: str | os.PathLike, *, model: str = 'baseline', dtype: str = 'float32',
  spaced: bool | None = None, features_only: bool = False,
) -> LanguageModel:
  """Opens a model by its folder.

  Args:
    path: a BERT, ALBERT or GPT-2 directory in the published form, a folder of `fairjax export`, or
      the workdir of a run.
    model: of a workdir, `baseline` or the name of a debiased model.
    dtype: of the computation for a published directory.
    spaced: of a model trained here, whether its texts had spaces around punctuation, as WikiText
      has; None: with a vocabulary of words only.
    features_only: a BERT or ALBERT need not have the head for masked words then.

  Raises:
    UserError: no such folder or model, a name of a model for what is no workdir, or one without the
      head that is needed.
  """
  path = pathlib.Path(path)
  if model != 'baseline' and not _is_workdir(path):
    raise UserError(f'{path} is a single model, no workdir: leave @{model} out')
  if is_published(path):
    from fairjax.pretrained import load_pretrained, read_folder
    if read_folder(path)[1]['model_type'] == 'gpt2':
      return _gpt2(load_pretrained(path, 'lm', dtype=dtype))
    return MaskedModel(load_pretrained(path, 'encoder' if features_only else 'mlm', dtype=dtype))
  return _own(path, model, spaced)


def _gpt2(model: Any) -> CausalModel:
  """A GPT-2; every text begins behind the end-of-text id."""
  from fairjax.pretrained import TokenizerVocabulary, lm_hidden, lm_scores

  def offsets(text):
    encoding = model.tokenizer.encode(text, add_special_tokens=False)
    return encoding.ids, encoding.offsets

  return CausalModel(
    name=model.name, fingerprint=model.fingerprint, params=model.params,
    vocabulary=TokenizerVocabulary(model, start=True),
    hidden=lambda p, ids, mask: lm_hidden(p, model.arch, ids, mask), logits=lm_scores,
    max_length=model.max_length, spaced=False, offsets=offsets)


def _own(path: pathlib.Path, name: str, spaced: bool | None) -> CausalModel:
  """A Transformer-XL of a workdir or of an exported folder."""
  from fairjax.model import TransformerXL, init_memory
  if _is_workdir(path):
    from fairjax.job.checkpoint import open_checkpoint
    checkpoint = open_checkpoint(path, name, log=lambda line: None)
    config, vocabulary, params = (
      checkpoint.model_config, checkpoint.vocabulary, checkpoint.params)
    digest, title = checkpoint.card['digest'], f'{path.resolve().name}/{name}'
  else:
    from fairjax.job.model_folder import read_folder
    folder = read_folder(path)
    vocabulary, params = folder.vocabulary, folder.params
    config = dataclasses.replace(folder.config.model, vocab_size=vocabulary.size)
    digest, title = folder.card['digest'], path.resolve().name
  # Each text stands alone: one slot of memory, which nothing fills.
  alone = dataclasses.replace(config, memory_len=1, remat='none')
  model = TransformerXL(alone)

  def hidden(params, ids, mask):
    return model.apply({'params': params}, ids, init_memory(alone, ids.shape[0])).hidden

  def logits(params, hidden):
    return model.apply({'params': params}, hidden, method='logits')

  return CausalModel(
    name=title, fingerprint=str(digest), vocabulary=vocabulary, params=params, hidden=hidden,
    logits=logits, max_length=max(config.segment_len, 128),
    spaced=bool(spaced),
    offsets=vocabulary.encode_with_offsets)


def is_published(path: pathlib.Path) -> bool:
  """Whether a folder holds a model in the published form, not one of ours (workdir or export)."""
  try:
    content = json.loads((path / 'config.json').read_bytes())
  except (OSError, ValueError, RecursionError):
    content = None  # what is wrong with it is said where it is read
  if isinstance(content, dict) and 'model_type' in content:
    return True
  return not _is_workdir(path) and not (isinstance(content, dict) and 'export' in content)


def _is_workdir(path: pathlib.Path) -> bool:
  """Whether a folder is that of a run, which may hold several models."""
  return (path / 'data' / 'vocabulary').is_dir() or (path / 'debias').is_dir()
