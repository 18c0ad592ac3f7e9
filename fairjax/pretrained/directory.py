"""Model directories: `config.json`, safetensors, a tokenizer; all checked before anything runs."""

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

import jax
import numpy as np

from fairjax.errors import UserError
from fairjax.pretrained.architecture import Architecture, read_architecture
from fairjax.pretrained.tokenizer_checks import check_tokenizer
from fairjax.pretrained.tokens import length_limit, load_tokenizer, read_json
from fairjax.pretrained.weights import Params, read_tensors, to_params, weight_files

DTYPES = ('float32', 'bfloat16', 'float64')
_DECIDING = ('config.json', 'tokenizer.json', 'vocab.txt', 'tokenizer_config.json',
             'sentence_bert_config.json', 'modules.json')


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A model that was read.

  Attributes:
    directory: where from.
    config: content of `config.json`.
    arch: what it says.
    head: one of `names.HEADS`.
    params: NumPy arrays; see `names`.
    tokenizer: a `tokenizers.Tokenizer`.
    max_length: most tokens of a text, special ones included.
    ignored: names of tensors that were in the files and are not needed for this head.
    fingerprint: SHA-256 (hex) of all files that decide what the model computes.
  """

  directory: pathlib.Path
  config: dict[str, Any]
  arch: Architecture
  head: str
  params: Params
  tokenizer: Any
  max_length: int
  ignored: tuple[str, ...]
  fingerprint: str

  def weights_digest(self) -> str:
    """SHA-256 (hex) of the weights in bfloat16: equal for copies and for every dtype of them."""
    import ml_dtypes
    digest = hashlib.sha256()
    for path, array in jax.tree_util.tree_leaves_with_path(self.params):
      digest.update(f'{jax.tree_util.keystr(path)} {array.shape}\n'.encode())
      digest.update(np.ascontiguousarray(array, ml_dtypes.bfloat16).view(np.uint8).data)
    return digest.hexdigest()


def load_pretrained(
  directory: str | os.PathLike, head: str, *, dtype: str = 'float32'
) -> Pretrained:
  """Reads a BERT, ALBERT or GPT-2 from a directory in the published form.

  Args:
    directory: holds `config.json`, `model.safetensors` (or its shards with their index) and
      `tokenizer.json` (for BERT also `vocab.txt` with `tokenizer_config.json`).
    head: 'encoder' | 'pooled' | 'mlm' | 'classifier' (BERT, ALBERT), 'lm' (GPT-2).
    dtype: of parameters and computation; 'float64' needs JAX's 64-bit mode.

  Raises:
    UserError: anything that is missing, unknown, superfluous or of another size; one line names
      directory and tensors.
  """
  directory = pathlib.Path(directory)
  if dtype not in DTYPES:
    raise UserError(f"dtype '{dtype}' is not one of {', '.join(DTYPES)}")
  if not directory.is_dir():
    raise UserError(f'{directory} is no directory: give the folder of config.json and '
                    'model.safetensors')
  config = read_json(directory / 'config.json', remedy='a model directory holds config.json, '
                     'model.safetensors and its tokenizer: download the whole of it, or write it '
                     'with save_pretrained of model and tokenizer')
  arch = read_architecture(config, where=str(directory / 'config.json'))
  files = weight_files(directory)
  # ml_dtypes registers bfloat16 with NumPy; JAX needs it, so it is there.
  import ml_dtypes
  numpy_dtype = ml_dtypes.bfloat16 if dtype == 'bfloat16' else np.dtype(dtype)
  params, ignored = to_params(
    read_tensors(files), arch, head, where=str(directory), dtype=numpy_dtype)
  tokenizer = load_tokenizer(directory, kind=arch.kind, vocab_size=arch.vocab_size)
  check_tokenizer(tokenizer, directory, kind=arch.kind)
  return Pretrained(
    directory=directory, config=config, arch=arch, head=head, params=params, tokenizer=tokenizer,
    max_length=length_limit(directory, arch.max_positions), ignored=tuple(ignored),
    fingerprint=_fingerprint(directory, files, head, dtype))


def _fingerprint(directory: pathlib.Path, files: list[pathlib.Path], head: str, dtype: str) -> str:
  """Digest of the files that decide the values, by name."""
  parts = ['pretrained 1', head, dtype]
  for path in [directory / name for name in _DECIDING] + files:
    if path.is_file():
      with path.open('rb') as file:
        parts.append([path.name, hashlib.file_digest(file, 'sha256').hexdigest()])
  return hashlib.sha256(json.dumps(parts).encode('utf-8')).hexdigest()
