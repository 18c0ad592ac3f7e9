"""Models of the Hugging Face Hub by name: `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`."""

import os
import pathlib
import re

from fairjax.errors import UserError

BESIDE_WEIGHTS = ('*.json', '*.txt', '*.model', '*.jinja', 'additional_chat_templates/*.jinja',
                  'LICEN[CS]E*', 'NOTICE*', 'USE_POLICY*')
"""Files of a model that are no weights: no code, no pickles."""
_FILES = (*BESIDE_WEIGHTS, '*.safetensors')
_COPIES = ('original/*', 'onnx/*', 'openvino/*')  # the weights once more in other forms


def is_hub_name(name: str | os.PathLike) -> bool:
  """Whether it names a model of the Hub, not a path."""
  return str(name).startswith('hf:')


def fetch(name: str | os.PathLike) -> pathlib.Path:
  """The folder of a model in the Hub's cache; what is not there yet is downloaded.

  Args:
    name: `hf:ORG/NAME[@REVISION]`; a revision is a branch, a tag or a commit.

  Raises:
    UserError: the name has another form, the package is missing, or the model cannot be had; the
      line says which files to put into a folder.
  """
  match = re.fullmatch(r'hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?', str(name), re.ASCII)
  if match is None:
    raise UserError(f"{name}: a model of the Hub is named hf:ORG/NAME or hf:ORG/NAME@REVISION")
  repository, revision = match.groups()
  remedy = (f'put config.json, all *.safetensors (with model.safetensors.index.json), '
            f'tokenizer.json, tokenizer_config.json and generation_config.json of {repository} '
            'into a folder, and give the folder')
  try:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError
  except ModuleNotFoundError:
    raise UserError(f"{name} needs the package huggingface_hub: pip install 'fairjax[hub]'; or "
                    f'{remedy}') from None
  try:
    return pathlib.Path(snapshot_download(
      repository, revision=revision, allow_patterns=list(_FILES), ignore_patterns=list(_COPIES)))
  except (OSError, ValueError, HfHubHTTPError) as e:
    reason = ' '.join(str(e).split())[:200]
    raise UserError(f'{name} cannot be downloaded ({type(e).__name__}: {reason}): {remedy}'
                    ) from None
