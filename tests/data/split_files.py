"""Corpora of lines that tests write, and prepare."""

import collections
import tracemalloc

from fairjax.config import Config, DataConfig
from fairjax.counterfactual import load_attribute
from fairjax.data.documents import read_documents
from fairjax.data.prepare import prepare_data

COUNTRY = load_attribute('country')


def read(*paths, layout='lines', **options):
  """The documents of files, and the counts that are not 0."""
  counts = collections.Counter()
  return list(read_documents(paths, layout=layout, counts=counts, **options)), +counts


def line_data(folder, texts, **fields):
  """Writes documents by split, one a line; their data configuration, with other fields."""
  for split, documents in texts.items():
    path = folder / f'{split}.txt'
    path.write_text('\n'.join(documents) + '\n', encoding='utf-8')
    fields = {split: (str(path),)} | fields
  return DataConfig(**{'source': 'lines', 'reader': 'numpy'} | fields)


def prepare(data, directory, *, attribute=COUNTRY, **options):
  """The prepared data, and the lines of the log."""
  lines = []
  return prepare_data(
    Config(data=data), directory, attribute=attribute, log=lines.append, **options), lines


def peak_of(function):
  """What a function returns, and the most bytes that were held meanwhile."""
  tracemalloc.start()
  try:
    return function(), tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
