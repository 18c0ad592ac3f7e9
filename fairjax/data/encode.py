"""Encodes documents chunk by chunk, so that an interruption costs little.

The chunks depend on the sizes of the documents alone, not on how often the work began anew. Chunks
of an earlier run are taken over after their numbers of documents and bytes were compared; the text
before them is read again, since gzip files cannot be entered in the middle.

One process does it: two more that encoded used 1.7 times the processors' time for the same time on
the clock, and seqio's task in TensorFlow 1.4 times (documents of 18 kB) to 5 times (of 400 bytes);
see docs/performance.md.
"""

import json
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator

from fairjax.data.token_store import EncodedChunks, read_chunk_table, token_dtype, write_chunk
from fairjax.errors import UserError
from fairjax.files import write_json
from fairjax.progress import Progress
from fairjax.vocabulary import Encoder

CHUNK_BYTES = 4 << 20  # of text, about a million tokens; memory holds some ten times as much
CHUNK_DOCUMENTS = 1 << 15


def encode_documents(
  texts: Iterable[str], folder: str | os.PathLike, *, vocabulary: Encoder,
  size: int | None = None, name: str = 'documents', log: Callable[[str], None] = print,
) -> EncodedChunks:
  """Encodes documents into chunks in a folder; complete chunks that lie there are kept.

  Args:
    texts: documents in order; read once, to the end.
    folder: for the chunks. What was made with another vocabulary is deleted.
    vocabulary: of the ids.
    size: number of documents, if known, for the time that is left.
    name: what the lines of progress call the documents.
    log: gets one line at a time.

  Raises:
    UserError: a chunk cannot be written.
  """
  folder, dtype = pathlib.Path(folder), token_dtype(vocabulary)
  _open_folder(folder, {'vocabulary': vocabulary.fingerprint, 'bytes': CHUNK_BYTES,
                        'documents': CHUNK_DOCUMENTS})
  number = 0
  with Progress(f'[data] {name}', size, unit='documents', log=log) as progress:
    counts = _Counts(name, log, progress)
    for number, (chunk, num_bytes) in enumerate(_cut(texts), 1):
      table = read_chunk_table(folder, number - 1, dtype)
      if table is not None and (len(table), int(table[:, 2].sum())) == (len(chunk), num_bytes):
        counts.take_over(len(chunk))
        continue
      try:
        tokens = write_chunk(folder, number - 1, chunk, vocabulary)
      except (OSError, UserError) as e:  # a full disk; something in the way of the file
        fault = f'{e.filename or folder}: {e.strerror}' if isinstance(e, OSError) else str(e)
        raise UserError(f'chunk {number - 1} cannot be written ({fault}): the same command '
                        'continues when this is mended') from None
      counts.add(len(chunk), tokens)
  counts.finish()
  return EncodedChunks(folder, number, dtype)


def _open_folder(folder: pathlib.Path, made_with: dict) -> None:
  path = folder / 'chunks.json'
  try:
    if json.loads(path.read_text(encoding='utf-8')) == made_with:
      return
  except (OSError, ValueError):
    pass
  shutil.rmtree(folder, ignore_errors=True)
  write_json(path, made_with)


def _cut(texts: Iterable[str]) -> Iterator[tuple[list[str], int]]:
  """Runs of documents, of about CHUNK_BYTES and at most CHUNK_DOCUMENTS each, and their bytes."""
  chunk, size = [], 0
  for text in texts:
    chunk.append(text)
    size += len(text.encode('utf-8'))
    if size >= CHUNK_BYTES or len(chunk) >= CHUNK_DOCUMENTS:
      yield chunk, size
      chunk, size = [], 0
  if chunk:
    yield chunk, size


class _Counts:
  """What is encoded, in words; the bar and the lines on the way are `Progress`'s."""

  def __init__(self, name: str, log: Callable[[str], None], progress: Progress):
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
    return f'{self._tokens / seconds:,.0f} tokens/s'
