"""Copies of the golden models that tests change; texts to train on, an attribute to sample with."""

import jax
import pytest
from golden_models import ATTRIBUTE, copied
from masked_cases import SENTENCES

from fairjax.pretrained import fit
from fairjax.run import masked_training
from fairjax.train import make_mesh


@pytest.fixture(scope='module')
def two_devices():
  """Leaves two devices to trainings: enough to split rows, and quick to compile for."""
  with pytest.MonkeyPatch.context() as patch:
    for module in (fit, masked_training):
      patch.setattr(module, 'make_mesh', lambda config, **_: make_mesh(config, jax.devices()[:2]))
    yield


@pytest.fixture(scope='module')
def text(tmp_path_factory):
  """A file to train masked models on."""
  path = tmp_path_factory.mktemp('text') / 'train.txt'
  path.write_text('\n'.join(SENTENCES * 12), encoding='utf-8')
  return path


@pytest.fixture
def attribute(tmp_path):
  """The file of `ATTRIBUTE`."""
  path = tmp_path / 'town.yaml'
  path.write_text(ATTRIBUTE, encoding='utf-8')
  return path


@pytest.fixture
def copy(tmp_path):
  """`copied` to a folder of its name."""
  return lambda name, *change, **config: copied(tmp_path / f'copy-{name}', name, *change, **config)
