"""Coupled sampling from a model, and the files of generations that it fills.

Reading records needs no JAX: `generations`, which samples, and `sampler` are imported by name.
"""

from fairjax.generate.records import (
  RecordWriter,
  check_complete,
  manifest_of,
  read_records,
  records_stem,
  repair,
)

__all__ = ['RecordWriter', 'check_complete', 'manifest_of', 'read_records', 'records_stem',
           'repair']
