"""Versions of what decides results: every report, config.json and `fairjax doctor` state them."""

import importlib.metadata
import platform

PACKAGES = ('fairjax', 'jax', 'jaxlib', 'libtpu', 'flax', 'optax', 'orbax-checkpoint', 'numpy',
            'scipy', 'sentencepiece', 'tokenizers', 'vaderSentiment', 'textblob', 'tensorflow',
            'tensorflow-text', 'seqio')


def installed_versions() -> dict[str, str]:
  """Installed versions of what decides results, by package name; absent ones are left out."""
  found = {'python': platform.python_version()}
  for name in PACKAGES:
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  return found
