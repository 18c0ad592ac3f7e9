"""Coupled sampling from a model, and the files of generations that it fills.

Reading records needs no JAX; it is imported when something is sampled.
"""

from fairjax.generate.records import RecordWriter, parse_record, read_records, repair

__all__ = [
  'GenerationSummary', 'RecordWriter', 'generate', 'manifest_of', 'parse_record', 'read_records',
  'repair', 'sample_continuations', 'sentence_end_ids',
]

_LAZY = {
  'GenerationSummary': 'generations', 'generate': 'generations', 'manifest_of': 'generations',
  'sample_continuations': 'sampler', 'sentence_end_ids': 'generations',
}


def __getattr__(name: str):
  """Imports the names that need JAX when they are first used."""
  if name not in _LAZY:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  import importlib

  return getattr(importlib.import_module(f'{__name__}.{_LAZY[name]}'), name)
