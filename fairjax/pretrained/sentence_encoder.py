"""Sentence vectors of MiniLM-type encoders (Reimers and Gurevych 2019, arXiv:1908.10084)."""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from fairjax.errors import UserError
from fairjax.pretrained.batch_runner import BatchRunner, busy_devices
from fairjax.pretrained.checkpoint import find_snapshot, load_pretrained
from fairjax.pretrained.hub import model_path
from fairjax.pretrained.models import encode, mean_pool, normalize
from fairjax.pretrained.tokens import CutTexts, encode_texts
from fairjax.vocabulary import read_json


class SentenceEncoder:
  """Texts to vectors."""

  name = 'minilm'
  threshold = 0.4  # cosine above which two texts are similar
  threshold_source = ('the number of the paper, which is meant for the Universal Sentence Encoder: '
                      'not checked against people for this encoder')

  def __init__(self, directory: str | os.PathLike, *, mesh: Mesh | None = None):
    """Reads a directory."""
    root = find_snapshot(model_path(directory))
    # pooling: 'mean' over the tokens, or 'cls': the first one; normalized: vectors of length 1.
    folder, self.pooling, self.normalized, self._lower = _read_modules(root)
    model = load_pretrained(folder, 'encoder')
    self.max_length, self.truncated = model.max_length, 0  # truncated: texts that lost their end
    self._tokenizer, arch = model.tokenizer, model.architecture
    self._texts = CutTexts(self._encode)
    settings = [model.fingerprint, self.pooling, self.normalized, self._lower]
    self.fingerprint = hashlib.sha256(json.dumps(settings).encode('utf-8')).hexdigest()

    def vectors(params, ids, mask, packing):
      hidden = encode(params, arch, ids, mask, packing=packing)
      pooled = mean_pool(hidden, mask) if self.pooling == 'mean' else hidden[:, 0]
      return normalize(pooled) if self.normalized else pooled

    self._run = BatchRunner(vectors, model.params, max_length=self.max_length, pad_id=arch.pad_id,
                            mesh=mesh)
    self._width, self.busy_devices = arch.model_dim, busy_devices(mesh)

  def count_truncated(self, texts: Sequence[str]) -> int:
    """How many of the texts are longer than `max_length` tokens."""
    return self._texts.count(texts)

  def encode(self, texts: Sequence[str]) -> np.ndarray:
    """Vectors `[R, D]` of R texts, float32."""
    if not len(texts):
      return np.zeros((0, self._width), np.float32)
    encoded = self._texts.encode(texts)
    self.truncated += encoded.truncated
    return self._run(encoded.ids)

  def _encode(self, texts: Sequence[str]):
    return encode_texts(self._tokenizer, [t.lower() if self._lower else t for t in texts],
                        max_length=self.max_length)


def _read_modules(root: pathlib.Path) -> tuple[pathlib.Path, str, bool, bool]:
  """Folder of the encoder, pooling, whether vectors are normalised, whether case is dropped."""
  folder, pooling, normalized = root, 'mean', True
  path = root / 'modules.json'
  if path.is_file():
    try:
      modules = [(m['type'].rpartition('.')[2], pathlib.PurePath(m['path']))
                 for m in json.loads(path.read_text(encoding='utf-8'))]
    except (ValueError, TypeError, KeyError, AttributeError) as e:
      raise UserError(f'{path} lists no modules ({type(e).__name__}: {e})') from None
    types = [t for t, _ in modules]
    if types not in (['Transformer', 'Pooling'], ['Transformer', 'Pooling', 'Normalize']):
      raise UserError(f"{path}: modules {', '.join(types)} are not supported, only Transformer, "
                      'Pooling and, last, Normalize')
    for _, place in modules:
      if place.is_absolute() or '..' in place.parts:
        raise UserError(f'{path}: module path {str(place)!r} leads out of the directory')
    folder, normalized = root / modules[0][1], 'Normalize' in types
    pooling = _pooling(root / modules[1][1] / 'config.json')
  path = root / 'config_sentence_transformers.json'
  prompt = path.is_file() and read_json(path).get('default_prompt_name')
  if prompt:
    raise UserError(f"{path}: the prompt '{prompt}' before every text (default_prompt_name) is not "
                    'supported: set it to null, or take a model without one')
  options: dict[str, Any] = {}
  if (folder / 'sentence_bert_config.json').is_file():
    options = read_json(folder / 'sentence_bert_config.json')
  return folder, pooling, normalized, bool(options.get('do_lower_case', False))


def _pooling(path: pathlib.Path) -> str:
  """The one pooling mode that is set."""
  config = read_json(path)
  chosen = [str(config['pooling_mode'])] if 'pooling_mode' in config else [  # since version 6
    re.sub('^pooling_mode_|_tokens?$', '', k) for k, on in config.items()
    if k.startswith('pooling_mode_') and on is True]
  if chosen not in (['mean'], ['cls']):
    raise UserError(f"{path}: pooling {', '.join(chosen) or 'none'} is not supported, only mean or "
                    'cls')
  return chosen[0]
