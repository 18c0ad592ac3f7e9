"""Speed of the data pipeline: SentencePiece, preparation, the seqio task, reading.

  python -m tests.benchmarks.data
  python -m tests.benchmarks.data --files=wiki.train.txt.gz --vocabulary=DIR/data/vocabulary \\
      --seqio

Without files it makes a text of random words and trains a vocabulary on it. Preparation and the
seqio task (with TensorFlow, whose threads use all cores) run in turns; processors' seconds stand
beside those on the clock. Floors: of both, how fast the files are read and split; of the token
store, the bytes that a batch moves (2 or 4 read, 4 written, 4 + 4 for both shifts as they
are used) over the measured bandwidth of a copy. Medians over rounds.
"""

import pathlib
import tempfile
import time

import numpy as np

from fairjax.counterfactual import TokenMatcher, load_attribute
from fairjax.data.documents import read_documents
from fairjax.data.token_store import encode_documents, token_rows, write_token_store
from fairjax.vocabulary import load_vocabulary, train_sentencepiece
from tests.benchmarks import harness


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


def in_turns(runs, rounds):
  """Medians of (wall, processors' seconds) of every run; each round runs all of them."""
  found = {name: [] for name in runs}
  for _ in range(rounds):
    for name, run in runs.items():  # whatever else the machine does hits all of them
      cpu, begin = time.process_time(), time.perf_counter()
      run()
      found[name].append((time.perf_counter() - begin, time.process_time() - cpu))
  return {name: np.median(values, 0).tolist() for name, values in found.items()}


def seqio_task(files, layout, vocabulary):
  """Counts the tokens that the seqio task gives."""
  from fairjax.data import seqio_tasks as tasks

  source = tasks.DocumentSource(
    lambda split: read_documents(files, layout=layout), shards={'train': ['all']})
  task = tasks.register_document_task('fairjax_benchmark', source, vocabulary)
  return lambda: sum(len(ids) + 1 for ids in tasks.tokenized_documents(task, 'train'))


def measure_encoding(options, files, layout, folder, vocabulary_folder):
  """Reading, encoding on one core, and both in chunks and in the seqio task."""
  vocabulary = load_vocabulary(vocabulary_folder)
  reading, texts = seconds_of(lambda: list(read_documents(files, layout=layout)), options.rounds)
  size = sum(len(t.encode()) for t in texts)
  sample = texts[:max(1, len(texts) // 4)]
  one_core, ids = seconds_of(lambda: vocabulary.encode_batch(sample), options.rounds)
  tokens = sum(map(len, ids))

  def chunks():
    with tempfile.TemporaryDirectory(dir=folder) as place:
      found = encode_documents(read_documents(files, layout=layout), place,
                               vocabulary=vocabulary, log=lambda line: None)
      return int(found.documents[-1, 0])  # tokens

  runs = {'chunks': chunks}
  if options.seqio:
    runs['seqio task'] = seqio_task(files, layout, vocabulary)
  total, *others = [run() for run in runs.values()]  # warm
  if any(other != total for other in others):
    raise AssertionError(f'{total:,} tokens in chunks, {others[0]:,} of the seqio task')
  return {
    'documents': len(texts), 'bytes': size, 'vocabulary': vocabulary.size,
    'sentencepiece_one_core': {'tokens': tokens, 'seconds': one_core,
                               'tokens_per_s': tokens / one_core, 'goal': 0.3e6},
    'reading_floor': {'seconds': reading, 'tokens_per_s': total / reading,
                      'bytes_per_s': size / reading},
    'preparation': {name: {
      'tokens': total, 'seconds': seconds, 'tokens_per_s': total / seconds, 'cpu_seconds': cpu,
      'tokens_per_cpu_s': total / cpu} for name, (seconds, cpu) in in_turns(
        runs, options.rounds).items()}}


def measure_store(options, files, layout, folder, vocabulary_folder):
  """Writing a store in a seeded order, and reading batches from it."""
  vocabulary = load_vocabulary(vocabulary_folder)
  chunks = encode_documents(
    read_documents(files, layout=layout), folder / 'chunks', vocabulary=vocabulary,
    log=lambda line: None)
  matcher = TokenMatcher(load_attribute('country'), vocabulary)
  writing, store = seconds_of(
    lambda: write_token_store(folder / 'store', chunks, vocabulary=vocabulary,
                              matcher=matcher, order_seed=0), options.rounds)
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
  parser = harness.parser(__doc__, documents=6000, batch_size=16, segment_len=512, rounds=3)
  parser.add_argument('--files', nargs='*', default=())
  parser.add_argument('--layout', default='wikitext')
  parser.add_argument('--vocabulary', type=pathlib.Path, help='folder; needed with --files')
  parser.add_argument('--seqio', action='store_true', help='the seqio task too (TensorFlow)')
  options = parser.parse_args()
  if options.files and not options.vocabulary:
    parser.error('--files needs --vocabulary')
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    files, layout, vocabulary = (options.files, options.layout, options.vocabulary) if (
      options.files) else make_text(folder, options.documents)
    corpus = files, layout, folder, vocabulary
    harness.show(harness.provenance('data', options) | measure_encoding(options, *corpus) | {
      'token_store': measure_store(options, *corpus)})


if __name__ == '__main__':
  main()
