"""Speed of the data pipeline: SentencePiece, preparation with 1 and 2 processes, reading.

  python -m tests.benchmarks.data --json
  python -m tests.benchmarks.data --files=wiki.train.txt.gz --vocabulary=DIR/data/vocabulary --json

Without files it makes a text of random words and trains a vocabulary on it. Floors: of the
preparation, how fast one process reads and splits the files, since all others wait for it; of the
token store, the bytes that a batch moves (2 or 4 read, 4 written, 4 + 4 for both shifts as they
are used) over the measured bandwidth of a copy. Medians over rounds.
"""

import argparse
import pathlib
import resource
import tempfile
import threading
import time

import numpy as np

from fairjax.counterfactual import TokenMatcher, load_attribute
from fairjax.data.documents import read_documents
from fairjax.data.encode import encode_documents
from fairjax.data.streams import token_rows
from fairjax.data.token_store import write_token_store
from fairjax.vocabulary import load_vocabulary, train_sentencepiece


def make_text(folder, number):
  """Documents of words whose frequencies fall as in natural text, and a vocabulary."""
  rng = np.random.default_rng(0)
  letters = list('etaoinshrdlucmfwypvbgk')
  words = [''.join(rng.choice(letters, rng.integers(2, 10))) for _ in range(20000)]
  ranks = 1 / np.arange(2, len(words) + 2)
  lines = [' '.join(rng.choice(words, 400, p=ranks / ranks.sum())) for _ in range(number)]
  path = folder / 'text.txt'
  path.write_text('\n'.join(lines) + '\n')
  train_sentencepiece(lines[:500], size=8000, directory=folder / 'vocabulary')
  return [str(path)], 'lines', folder / 'vocabulary'


def seconds_of(function, rounds):
  """Median, and what the function returned last."""
  times = []
  for _ in range(rounds):
    begin = time.perf_counter()
    result = function()
    times.append(time.perf_counter() - begin)
  return float(np.median(times)), result


def cpu_seconds():
  """Of this process and of those that it has waited for."""
  used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  return sum(u.ru_utime + u.ru_stime for u in used)


class PeakMemory:
  """Largest resident sizes of child processes, in MiB, sampled ten times a second."""

  def __enter__(self):
    self.peak, self._stop = 0.0, threading.Event()
    self._thread = threading.Thread(target=self._watch)
    self._thread.start()
    return self

  def __exit__(self, *exception):
    self._stop.set()
    self._thread.join()

  def _watch(self):
    me = pathlib.Path('/proc/self').resolve().name
    while not self._stop.wait(0.1):
      for path in pathlib.Path('/proc').glob('[0-9]*/status'):
        try:
          fields = dict(line.split(':\t', 1) for line in path.read_text().splitlines())
        except OSError:
          continue
        command = path.with_name('cmdline')
        if fields.get('PPid') == me and 'VmHWM' in fields and b'encode_worker' in (
            command.read_bytes() if command.exists() else b''):
          self.peak = max(self.peak, int(fields['VmHWM'].split()[0]) / 1024)


def measure_encoding(options, files, layout, folder, vocabulary_folder):
  """Reading, encoding on one core, and both with processes."""
  vocabulary = load_vocabulary(vocabulary_folder)
  reading, texts = seconds_of(lambda: list(read_documents(files, layout=layout)), options.rounds)
  size = sum(len(t.encode()) for t in texts)
  sample = texts[:max(1, len(texts) // 4)]
  one_core, ids = seconds_of(lambda: vocabulary.encode_batch(sample), options.rounds)
  tokens, prepared = sum(map(len, ids)), {}
  for workers in (1, 2):
    def run(workers=workers):
      with tempfile.TemporaryDirectory(dir=folder) as chunks:
        return len(encode_documents(
          read_documents(files, layout=layout), chunks, vocabulary=vocabulary,
          vocabulary_folder=vocabulary_folder, workers=workers, log=lambda line: None))

    before = cpu_seconds()
    with PeakMemory() as memory:
      seconds, total = seconds_of(run, options.rounds)
    cpu = (cpu_seconds() - before) / options.rounds
    prepared[f'{workers} process(es)'] = {
      'tokens': total, 'seconds': seconds, 'tokens_per_s': total / seconds,
      'cpu_seconds': cpu, 'tokens_per_cpu_s': total / cpu,
      'peak_mib_of_a_process': memory.peak or None}
  return {
    'documents': len(texts), 'bytes': size, 'vocabulary': vocabulary.size,
    'sentencepiece_one_core': {'tokens': tokens, 'seconds': one_core,
                               'tokens_per_s': tokens / one_core, 'goal': 0.3e6},
    'reading_floor': {'seconds': reading, 'tokens_per_s': total / reading,
                      'bytes_per_s': size / reading},
    'preparation': prepared}


def measure_store(options, files, layout, folder, vocabulary_folder):
  """Writing a store in a seeded order, and reading batches from it."""
  vocabulary = load_vocabulary(vocabulary_folder)
  chunks = encode_documents(
    read_documents(files, layout=layout), folder / 'chunks', vocabulary=vocabulary,
    vocabulary_folder=vocabulary_folder, log=lambda line: None)
  matcher = TokenMatcher(load_attribute('country'), vocabulary)
  writing, store = seconds_of(
    lambda: write_token_store(folder / 'store', chunks, split='train', matcher=matcher,
                              order_seed=0), options.rounds)
  rows = token_rows(store, batch_size=options.batch_size, segment_len=options.segment_len)
  steps = min(rows.steps_per_epoch, 200)

  def read():
    for step in range(steps):
      rows.read(step)

  read()
  reading, _ = seconds_of(read, options.rounds)
  tokens = steps * options.batch_size * options.segment_len
  block = np.zeros(1 << 24, np.uint8)  # 16 MiB read and written
  copying, _ = seconds_of(block.copy, 15)
  bandwidth = 2 * block.nbytes / copying
  moved = np.dtype(store.dtype).itemsize + 4
  return {
    'writing': {'tokens': store.tokens, 'seconds': writing, 'tokens_per_s': store.tokens / writing},
    'reading': {
      'tokens': tokens, 'seconds': reading, 'tokens_per_s': tokens / reading, 'goal': 10e6,
      'batch_size': options.batch_size, 'segment_len': options.segment_len,
      'floor_seconds': tokens * moved / bandwidth, 'bytes_per_token': moved,
      'bandwidth_bytes_per_s': bandwidth}}


def main() -> None:
  """Parses the sizes, prints the result."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--files', nargs='*', default=())
  parser.add_argument('--layout', default='wikitext')
  parser.add_argument('--vocabulary', default=None, help='folder; needed with --files')
  parser.add_argument('--documents', type=int, default=6000, help='of the made text')
  for name, default in (('batch_size', 16), ('segment_len', 512), ('rounds', 3)):
    parser.add_argument(f'--{name}', type=int, default=default)
  parser.add_argument('--json', action='store_true')
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    if options.files:
      corpus = options.files, options.layout, folder
      if options.vocabulary is None:
        parser.error('--files needs --vocabulary')
      corpus = (*corpus, pathlib.Path(options.vocabulary))
    else:
      files, layout, vocabulary = make_text(folder, options.documents)
      corpus = files, layout, folder, vocabulary
    result = {**measure_encoding(options, *corpus),
              'token_store': measure_store(options, *corpus)}
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
  from tests.benchmarks import harness  # JAX would count as memory of the parent
  result = harness.provenance('data', options) | result | {'peak_mib_of_the_parent': peak}
  store = result['token_store']['reading']
  rows = (('sentencepiece, one core', result['sentencepiece_one_core'], ''),
          ('reading (floor of both below)', result['reading_floor'], ''),
          *((f'preparation, {k}', v, '') for k, v in result['preparation'].items()),
          ('writing the store', result['token_store']['writing'], ''),
          ('reading the store', store,
           f"  floor {store['tokens'] / store['floor_seconds']:,.0f} tokens/s "
           f"({store['bytes_per_token']} bytes a token at "
           f"{store['bandwidth_bytes_per_s'] / 1e9:.1f} GB/s)"))
  harness.show(result, [f"{name:32s} {value['tokens_per_s']:12,.0f} tokens/s{more}"
                        for name, value, more in rows], as_json=options.json)


if __name__ == '__main__':
  main()
