"""Coupled sampling from a model, and the files of generations that it fills.

Reading records needs no JAX; it is imported when something is sampled.
"""

from fairjax.generate.records import (
  RecordWriter,
  check_complete,
  manifest_of,
  parse_record,
  read_records,
  records_stem,
  repair,
)

__all__ = [
  'GenerationSummary', 'RecordWriter', 'check_complete', 'check_inputs', 'generate', 'manifest_of',
  'parse_record', 'read_records', 'records_stem', 'repair',
  'sample_continuations', 'sentence_end_ids',
]

_LAZY = {
  'GenerationSummary': 'generations', 'check_inputs': 'generations', 'generate': 'generations',
  'sample_continuations': 'sampler', 'sentence_end_ids': 'generations',
}


def __getattr__(name: str):
  """Imports the names that need JAX when they are first used."""
  if name not in _LAZY:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  import importlib

  return getattr(importlib.import_module(f'{__name__}.{_LAZY[name]}'), name)
