"""Preparation of a text for masked models: pieces per second and memory.

  python -m tests.benchmarks.masked_text --megabytes=100 --json

The text is of random words, a document of some sentences a line; the tokenizer is a WordPiece
vocabulary of 8,000 pieces of its beginning. The peak of memory is that of the resident pages, files
that are mapped included. CPU seconds are those of all threads (the tokenizer has one a core); on
the clock other work on the machine counts too. `rows` is the
layout of packed rows of 128 from the finished store, which every start of a training does.
"""

import argparse
import json
import pathlib
import resource
import tempfile
import time

import numpy as np

from fairjax.data.prepare import prepare_sentences
from fairjax.data.sentence_text import SentenceCorpus
from fairjax.pretrained.masked_rows import lay_out, special_tokens
from fairjax.pretrained.start import new_tokenizer
from fairjax.vocabulary import PieceEncoder


def make_text(path, size):
  """Documents of 1 to 9 sentences of 4 to 24 words whose frequencies fall as in natural text."""
  rng = np.random.default_rng(0)
  letters = list('etaoinshrdlucmfwypvbgk')
  words = np.array([''.join(rng.choice(letters, rng.integers(2, 10))) for _ in range(20000)])
  chances = 1 / np.arange(2, len(words) + 2)
  chances /= chances.sum()
  written = 0
  with path.open('w', encoding='utf-8') as file:
    while written < size:
      drawn = iter(words[rng.choice(len(words), 200_000, p=chances)].tolist())
      for _ in range(2000):
        document = ' '.join(' '.join(next(drawn) for _ in range(length)).capitalize() + '.'
                            for length in rng.integers(4, 15, rng.integers(1, 10)).tolist())
        written += file.write(document + '\n')


def measure(text, folder):
  """One preparation."""
  with open(text, encoding='utf-8') as file:
    beginning = [file.readline() for _ in range(3000)]
  tokenizer, _, _ = new_tokenizer(beginning, vocab_size=8000, max_length=128)
  encoder = PieceEncoder.of(tokenizer)
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  begin, cpu = time.perf_counter(), time.process_time()
  prepared = prepare_sentences(
    SentenceCorpus((text,)), pathlib.Path(folder), tokenizer={'given': encoder.fingerprint},
    make_encoder=lambda texts: encoder, log=lambda line: None)
  seconds, cpu, begin = time.perf_counter() - begin, time.process_time() - cpu, time.perf_counter()
  store = prepared.stores['train']
  rows = lay_out(
    store.open_tokens(), store.open_documents()[:, 0], encoder,
    special_tokens(tokenizer, pad_id=0, where='x'), form='packed', max_length=128, what='x',
    digest=store.sha256)
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
  return {
    'text_mb': round(pathlib.Path(text).stat().st_size / 1e6, 1),
    'documents': store.documents, 'pieces': rows.counts['tokens'],
    'seconds': round(seconds, 1), 'pieces_per_second': round(rows.counts['tokens'] / seconds),
    'cpu_seconds': round(cpu, 1),
    'pieces_per_cpu_second': round(rows.counts['tokens'] / cpu), 'rows': len(rows),
    'rows_seconds': round(time.perf_counter() - begin, 1),
    'mib_before': round(before / 1024), 'mib_peak': round(peak)}


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--megabytes', type=float, default=100)
  parser.add_argument('--json', action='store_true')
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as place:
    folder = pathlib.Path(place)
    make_text(folder / 'text.txt', options.megabytes * 1e6)
    found = measure(str(folder / 'text.txt'), folder / 'data')
  print(json.dumps(found) if options.json else '\n'.join(
    f'{name}: {value}' for name, value in found.items()), flush=True)


if __name__ == '__main__':
  main()
