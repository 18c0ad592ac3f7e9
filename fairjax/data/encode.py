"""Encodes documents in parallel processes, chunk by chunk, so that an interruption costs little.

The documents are read in one process, in their order, and cut into chunks by their sizes alone, so
that the chunks do not depend on how many processes encode them or how often the work began anew.
Chunks of an earlier run are taken over after their numbers of documents, words and bytes were
compared; the text before them is read again, since gzip files cannot be entered in the middle.
"""

import itertools
import json
import os
import pathlib
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from fairjax.data.chunks import EncodedChunks, read_chunk_table, token_dtype, write_chunk
from fairjax.data.encode_worker import write_frame
from fairjax.errors import UserError
from fairjax.files import write_json
from fairjax.progress import Progress
from fairjax.vocabulary import Encoder

CHUNK_BYTES = 4 << 20  # of text, about a million tokens; a process holds some ten times as much
CHUNK_DOCUMENTS = 1 << 15
_ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def encode_documents(
  texts: Iterable[str], folder: str | os.PathLike, *, vocabulary: Encoder,
  vocabulary_folder: str | os.PathLike, workers: int = 0, size: int | None = None,
  name: str = 'documents', log: Callable[[str], None] = print,
) -> EncodedChunks:
  """Encodes documents into chunks in a folder; complete chunks that lie there are kept.

  Args:
    texts: documents in order; read once, to the end.
    folder: for the chunks. What was made with another vocabulary is deleted.
    vocabulary: of the ids.
    vocabulary_folder: where the processes load it from.
    workers: number of processes; 0 for one per core that this process may use. One works inside
      this process, and so does everything if there is only one chunk.
    size: number of documents, if known, for the time that is left.
    name: what the lines of progress call the documents.
    log: gets one line at a time.

  Raises:
    UserError: a process ended by itself, or cannot write.
  """
  folder, dtype = pathlib.Path(folder), token_dtype(vocabulary)
  _open_folder(folder, {'vocabulary': vocabulary.fingerprint, 'bytes': CHUNK_BYTES,
                        'documents': CHUNK_DOCUMENTS})
  workers = workers or available_cores()
  number = 0

  def missing():
    nonlocal number
    for number, chunk in enumerate(_cut(texts), 1):
      table = read_chunk_table(folder, number - 1, dtype)
      if table is not None and len(table) == len(chunk) and (
          int(table[:, 2].sum()) == sum(map(len, chunk))):
        counts.take_over(len(chunk))
      else:
        yield number - 1, chunk

  with Progress(f'[data] {name}', size, unit='documents', log=log) as progress:
    counts = _Counts(name, log, progress)
    chunks = missing()
    first = list(itertools.islice(chunks, 2))
    counts.workers = 1 if len(first) < 2 else workers
    chunks = itertools.chain(first, chunks)
    if counts.workers == 1:
      for index, chunk in chunks:
        tokens = write_chunk(folder, index, [t.decode('utf-8') for t in chunk], vocabulary)
        counts.add(len(chunk), tokens)
    else:
      with _Workers(workers, vocabulary_folder, folder) as pool:
        for documents, tokens in pool.encode(chunks):
          counts.add(documents, tokens)
  counts.finish()
  return EncodedChunks(folder, number, dtype)


def available_cores() -> int:
  """Cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _open_folder(folder: pathlib.Path, made_with: dict) -> None:
  path = folder / 'chunks.json'
  try:
    if json.loads(path.read_text(encoding='utf-8')) == made_with:
      return
  except (OSError, ValueError):
    pass
  shutil.rmtree(folder, ignore_errors=True)
  write_json(path, made_with)


def _cut(texts: Iterable[str]) -> Iterator[list[bytes]]:
  """Runs of documents in UTF-8, each of about CHUNK_BYTES and at most CHUNK_DOCUMENTS."""
  chunk, size = [], 0
  for text in texts:
    content = text.encode('utf-8')
    chunk.append(content)
    size += len(content)
    if size >= CHUNK_BYTES or len(chunk) >= CHUNK_DOCUMENTS:
      yield chunk
      chunk, size = [], 0
  if chunk:
    yield chunk


class _Workers:
  """Processes of `encode_worker`; each has at most one chunk."""

  def __init__(self, number: int, vocabulary_folder: str | os.PathLike, folder: pathlib.Path):
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get('PYTHONPATH', '')]))
    command = [sys.executable, '-m', 'fairjax.data.encode_worker', os.fspath(vocabulary_folder),
               os.fspath(folder)]
    self._idle, self._busy = [], selectors.DefaultSelector()
    self._processes = []
    for _ in range(number):
      # Own processes and not multiprocessing: that would import the user's script once more, and
      # would leave its processes behind when this one is killed.
      process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {
          'PYTHONPATH': path, 'TOKENIZERS_PARALLELISM': 'false'})  # a core each
      self._processes.append(process)
      self._idle.append(process)

  def __enter__(self):
    return self

  def __exit__(self, *exception):
    for process in self._processes:
      try:
        process.stdin.close()
      except BrokenPipeError:
        pass
      if any(exception):
        process.terminate()
    for process in self._processes:
      process.wait()
      process.stdout.close()
    self._busy.close()

  def encode(
    self, chunks: Iterable[tuple[int, Sequence[bytes]]]) -> Iterator[tuple[int, int]]:
    """Yields (documents, tokens) of every chunk, in the order in which they become ready."""
    for index, chunk in chunks:
      while not self._idle:
        yield from self._wait()
      process = self._idle.pop()
      try:
        write_frame(process.stdin, index, chunk)
      except BrokenPipeError:
        raise _ended(process) from None
      self._busy.register(process.stdout, selectors.EVENT_READ, (process, len(chunk)))
    while self._busy.get_map():
      yield from self._wait()

  def _wait(self) -> Iterator[tuple[int, int]]:
    for key, _ in self._busy.select():
      process, documents = key.data
      line = process.stdout.readline()
      if not line:
        raise _ended(process)
      answer = json.loads(line)
      if 'error' in answer:
        raise UserError(f'chunk {answer["index"]} cannot be written ({answer["error"]}): the same '
                        'command continues when this is mended')
      self._busy.unregister(process.stdout)
      self._idle.append(process)
      yield documents, answer['tokens']


def _ended(process: subprocess.Popen) -> UserError:
  return UserError(f'an encoding process ended by itself (exit code {process.wait()}; -9 is often '
                   'too little memory): lower data.workers (--workers); the same command '
                   'continues')


class _Counts:
  """What is encoded, in words; the bar and the lines on the way are `Progress`'s."""

  def __init__(self, name: str, log: Callable[[str], None], progress: Progress):
    self.workers = 0
    self._name, self._log, self._progress = name, log, progress
    self._documents = self._tokens = self._chunks = self._earlier = self._earlier_chunks = 0
    self._start = time.monotonic()

  def take_over(self, documents: int) -> None:
    """A chunk of an earlier run."""
    self._earlier += documents
    self._earlier_chunks += 1
    self._progress.skip(documents)

  def add(self, documents: int, tokens: int) -> None:
    """A new chunk."""
    self._documents += documents
    self._tokens += tokens
    self._chunks += 1
    self._progress.add(documents, self._rate)

  def finish(self) -> None:
    """The last line; none if there was only one chunk, as it took no time."""
    if self._earlier_chunks:
      self._log(f'[data] {self._name}: {self._earlier:,} documents in {self._earlier_chunks:,} '
                'chunks were encoded earlier')
    if self._chunks > 1:
      self._log(f'[data] {self._name}: {self._documents:,} documents encoded, {self._tokens:,} '
                f'tokens in {time.monotonic() - self._start:.0f} s, {self._rate()}')

  def _rate(self) -> str:
    seconds = max(time.monotonic() - self._start, 1e-9)
    return f'{self._tokens / seconds:,.0f} tokens/s with {self.workers} process(es)'
