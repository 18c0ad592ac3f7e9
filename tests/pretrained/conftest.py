"""Copies of the golden models that tests change."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from golden_models import GOLDEN
from safetensors.numpy import load_file, save_file


def _write(path, tensors):
  save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, path)


@pytest.fixture
def copy(tmp_path):
  """Copies a golden model, changes its tensors and its config (None: without the field)."""
  def copy(name, change=None, **config):
    folder = pathlib.Path(shutil.copytree(GOLDEN / name, tmp_path / f'copy-{name}',
                                          dirs_exist_ok=True))
    values = json.loads((folder / 'config.json').read_text()) | config
    (folder / 'config.json').write_text(
      json.dumps({k: v for k, v in values.items() if v is not None}))
    if change is not None:
      _write(folder / 'model.safetensors', change(load_file(folder / 'model.safetensors')))
    return folder
  return copy


@pytest.fixture
def write_tensors():
  """Writes a safetensors file."""
  return _write
