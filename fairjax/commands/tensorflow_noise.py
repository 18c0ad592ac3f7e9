"""Keeps lines that TensorFlow writes while it is loaded away from the one line of an error.

They tell of drivers and instruction sets. Those of its C++ logging before that is set up heed no
setting, so stderr is caught while the package is imported; whatever else was written to it then is
written afterwards, and everything if the import fails.
"""

import contextlib
import importlib.abc
import importlib.machinery
import os
import re
import sys
import tempfile
import types
from collections.abc import Iterator

_PACKAGE = 'tensorflow'
_NOISE = re.compile(
  rb'WARNING: All log messages before absl::InitializeLog|[IWE]\d{4} [\d:.]+ +\d+ ')


def install() -> None:
  """From now on in this process, if TensorFlow is not loaded yet; again is no harm."""
  # Later lines of its logging: what goes wrong is raised too.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  if _PACKAGE not in sys.modules and not any(isinstance(f, _Finder) for f in sys.meta_path):
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
  """Finds the package as the others do, and has it loaded quietly."""

  def find_spec(self, name, path, target=None):
    if name != _PACKAGE:
      return None
    spec = importlib.machinery.PathFinder.find_spec(name, path, target)
    if spec is not None and spec.loader is not None:
      spec.loader = _Loader(spec.loader)
    return spec


class _Loader(importlib.abc.Loader):
  """Another loader, quietly."""

  def __init__(self, loader):
    self._loader = loader

  def __getattr__(self, name):
    return getattr(self._loader, name)

  def create_module(self, spec):
    return self._loader.create_module(spec)

  def exec_module(self, module: types.ModuleType) -> None:
    with _caught():
      self._loader.exec_module(module)


@contextlib.contextmanager
def _caught() -> Iterator[None]:
  """Leaves out the lines that are noise, of whatever writes to the file of stderr."""
  sys.stderr.flush()
  shown, failed = os.dup(2), True
  try:
    with tempfile.TemporaryFile() as file:
      os.dup2(file.fileno(), 2)
      try:
        yield
        failed = False
      finally:
        sys.stderr.flush()
        os.dup2(shown, 2)
        file.seek(0)
        for line in file:
          if failed or not _NOISE.match(line):
            os.write(2, line)
  finally:
    os.close(shown)
