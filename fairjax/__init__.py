"""Train language models on TPUs; measure and reduce the bias of what language models write.

    import fairjax
    result = fairjax.measure('generations.csv', attribute='country', scorers=['vader'])
    print(result.verdict)

`measure`, `compare`, `sample` and `debias` are functions of `fairjax.api`, which is imported when
one of them is first used. `fairjax.measure` is a package too; calling it calls the function.
"""

import importlib
import types
from typing import Any

__version__ = '0.1.0'
__all__ = ['Comparison', 'Debiased', 'Result', 'compare', 'debias', 'measure', 'sample']


class CallablePackage(types.ModuleType):
  """The package `fairjax.measure`, which is the function `fairjax.api.measure` too."""

  def __call__(self, data: Any, **options: Any) -> Any:
    """See `fairjax.api.measure`."""
    return importlib.import_module('fairjax.api').measure(data, **options)


def __getattr__(name: str) -> Any:
  """Imports what the package offers when it is first used."""
  if name == 'measure':
    return importlib.import_module('fairjax.measure')
  if name in __all__:
    return getattr(importlib.import_module('fairjax.api'), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted([*globals(), *__all__])
