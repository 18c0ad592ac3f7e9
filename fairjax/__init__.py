"""Train language models on TPUs; measure and reduce the bias of what language models write.

    import fairjax
    result = fairjax.measure('generations.csv', attribute='country', scorers=['vader'])
    print(result.verdict)

`measure`, `compare`, `sample`, `debias` and `run` are functions of `fairjax.api`, which is imported
when one of them is first used. `fairjax.measure` and `fairjax.run` are packages too; calling one
calls the function.
"""

import importlib
import types
from typing import Any

__version__ = '0.1.0'
__all__ = ['Comparison', 'Result', 'RunResult', 'compare', 'debias', 'measure', 'run', 'sample']


class CallablePackage(types.ModuleType):
  """The package `fairjax.measure` or `fairjax.run`, which is that function of `fairjax.api` too."""

  @property
  def _function(self) -> Any:
    """The function of `fairjax.api` that has the name of the package."""
    return getattr(importlib.import_module('fairjax.api'), self.__name__.rpartition('.')[2])

  @property
  def __signature__(self) -> Any:
    """The signature of the function, which editors show."""
    import inspect
    return inspect.signature(self._function)

  def __call__(self, *what: Any, **options: Any) -> Any:
    """See `fairjax.api.measure` and `fairjax.api.run`."""
    return self._function(*what, **options)


def __getattr__(name: str) -> Any:
  """Imports what the package offers when it is first used."""
  if name in ('measure', 'run'):
    return importlib.import_module(f'fairjax.{name}')
  if name in __all__:
    return getattr(importlib.import_module('fairjax.api'), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted([*globals(), *__all__])
