"""Model directories: `config.json`, safetensors, a tokenizer; all checked before anything runs."""

import dataclasses
import hashlib
import json
import os
import pathlib
import sys
from typing import Any

import jax
import numpy as np

from fairjax import processes
from fairjax.errors import UserError
from fairjax.inputs import refuse_pointer
from fairjax.pretrained.architecture import Architecture, read_architecture, recognise
from fairjax.pretrained.tokenizer_checks import check_tokenizer
from fairjax.pretrained.tokens import (
  length_limit,
  load_tokenizer,
  read_json,
  unused_ids,
  within_model,
)
from fairjax.pretrained.weights import (
  Params,
  read_tensors,
  to_params,
  weight_files,
  without_wrappers,
)
from fairjax.progress import write_line

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

  @property
  def name(self) -> str:
    """Name of the model, by its folder."""
    return folder_name(self.directory)

  @property
  def unused_ids(self) -> tuple[int, ...]:
    """Ids that are no token: the model must never draw them."""
    return unused_ids(self.tokenizer, self.arch.vocab_size)

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
    directory: holds `config.json`, `model.safetensors` (or its shards) and `tokenizer.json` (for
      BERT also `vocab.txt` with `tokenizer_config.json`); see `read_folder`.
    head: 'encoder' | 'pooled' | 'mlm' | 'classifier' (BERT, ALBERT), 'lm' (GPT-2).
    dtype: of parameters and computation; 'float64' needs JAX's 64-bit mode.

  Raises:
    UserError: anything that is missing, unknown, superfluous or of another size; one line names
      directory and tensors.
  """
  if dtype not in DTYPES:
    raise UserError(f"dtype '{dtype}' is not one of {', '.join(DTYPES)}")
  directory, config, lines = read_folder(directory)
  arch = read_architecture(config, where=str(directory / 'config.json'))
  files = weight_files(directory)
  # ml_dtypes registers bfloat16 with NumPy; JAX needs it, so it is there.
  import ml_dtypes
  numpy_dtype = ml_dtypes.bfloat16 if dtype == 'bfloat16' else np.dtype(dtype)
  tensors, prefixes = without_wrappers(read_tensors(files), arch.kind, where=str(directory))
  params, ignored = to_params(tensors, arch, head, where=str(directory), dtype=numpy_dtype)
  tokenizer = load_tokenizer(directory, kind=arch.kind, vocab_size=arch.vocab_size)
  check_tokenizer(tokenizer, directory, kind=arch.kind)
  tokenizer, differences = within_model(tokenizer, arch.vocab_size, str(directory))
  if processes.is_first():
    for line in (*lines, *prefixes, *differences):
      write_line(line, sys.stderr)
  return Pretrained(
    directory=directory, config=config, arch=arch, head=head, params=params, tokenizer=tokenizer,
    max_length=length_limit(directory, arch.max_positions), ignored=tuple(ignored),
    fingerprint=_fingerprint(directory, files, head, dtype))


def read_folder(directory: str | os.PathLike) -> tuple[pathlib.Path, dict[str, Any], list[str]]:
  """Finds the model in a folder that people have, and reads its `config.json`.

  Args:
    directory: of a model, or a folder of the Hub's cache that holds one snapshot of one model.

  Returns:
    The folder of the model, its config with `model_type`, and lines on what was recognised.

  Raises:
    UserError: there is no such folder, or it holds something else: the line names what it is (an
      adapter, several snapshots, other formats, quantised weights) and what to do.
  """
  given = pathlib.Path(directory)
  if not given.is_dir():
    what = 'a file' if given.exists() else 'no directory'
    raise UserError(f'{given} is {what}: give the folder of config.json and model.safetensors '
                    "(a model of the Hub is downloaded first: hf download NAME --local-dir DIR)")
  found, lines = find_snapshot(given), []
  if found != given:
    lines.append(f'{given} is a folder of a cache: its snapshot {found} is read')
  for file in sorted(found.iterdir()):
    if file.suffix in ('.json', '.txt') and file.is_file():
      refuse_pointer(file)
  path = found / 'config.json'
  if not path.is_file():
    raise UserError(f'{path}: No such file or directory: {_what_it_is(found)}')
  config = read_json(path)
  kind, recognised_by = recognise(config, where=str(path))
  if recognised_by:
    lines.append(f'{path} has no model_type: it is read as {kind}, by {recognised_by}')
  return found, {**config, 'model_type': kind}, lines


def folder_name(directory: str | os.PathLike) -> str:
  """Name of a model by its folder; in a cache of the Hub by that of the model, not of the snapshot.

  >>> folder_name('/x/my-model'), folder_name('/x/models--org--name/snapshots/0a1b')
  ('my-model', 'name')
  """
  path = pathlib.Path(os.path.abspath(directory))
  cached = [part for part in path.parts[-3:] if part.startswith('models--')]
  return cached[0].rpartition('--')[2] if cached else path.resolve().name


def find_snapshot(folder: pathlib.Path) -> pathlib.Path:
  """The one snapshot in a folder of the Hub's cache; any other folder itself.

  Raises:
    UserError: none that is complete, or several of which none is the main one.
  """
  if (folder / 'config.json').exists():
    return folder
  models = [p for place in (folder, folder / 'hub') if place.is_dir()
            for p in sorted(place.glob('models--*')) if p.is_dir()]
  if len(models) == 1:
    return find_snapshot(models[0])
  if models:
    raise UserError(f'{folder} is a cache of {len(models)} models: name the folder of one, like '
                    f'{models[0]}')
  place = folder if folder.name == 'snapshots' else folder / 'snapshots'
  if not place.is_dir():
    return folder
  main = place.parent / 'refs' / 'main'
  if main.is_file():
    named = place / main.read_text(encoding='utf-8', errors='replace').strip()
    if named.parent == place and (named / 'config.json').is_file():
      return named
  whole = sorted(p for p in place.iterdir() if (p / 'config.json').is_file())
  if len(whole) != 1:
    have = ('holds no snapshot with a config.json: download the model again, the whole of it'
            if not whole else f'holds {len(whole)} snapshots: name the folder of one, like '
            f'{whole[0]}')
    raise UserError(f'{folder} is a folder of a cache of models and {have}')
  return whole[0]


def _what_it_is(folder: pathlib.Path) -> str:
  """What a folder without `config.json` holds, and what to do."""
  adapter = folder / 'adapter_config.json'
  if adapter.is_file():
    content = read_json(adapter)
    base = content.get('base_model_name_or_path') or 'its base model'
    return (f"{folder} is an adapter ({content.get('peft_type', 'PEFT')}) of {base}, not a whole "
            f'model: merge it (PeftModel.from_pretrained(base, {str(folder)!r})'
            '.merge_and_unload().save_pretrained(DIR), and save the tokenizer there), then give '
            'DIR')
  gguf = sorted(p.name for p in folder.glob('*.gguf'))
  if gguf:
    return (f'{gguf[0]} is in the format GGUF, which is not read: take the folder of the same '
            'model with config.json and safetensors')
  inner = sorted(p.parent for p in folder.glob('*/config.json'))
  if inner:
    return f'{inner[0]} holds one: give the folder of the model itself'
  return ('a model directory holds config.json, model.safetensors and its tokenizer: download the '
          'whole of it, or write it with save_pretrained of model and tokenizer')


def _fingerprint(directory: pathlib.Path, files: list[pathlib.Path], head: str, dtype: str) -> str:
  """Digest of the files that decide the values, by name."""
  parts = ['pretrained 1', head, dtype]
  for path in [directory / name for name in _DECIDING] + files:
    if path.is_file():
      with path.open('rb') as file:
        parts.append([path.name, hashlib.file_digest(file, 'sha256').hexdigest()])
  return hashlib.sha256(json.dumps(parts).encode('utf-8')).hexdigest()
