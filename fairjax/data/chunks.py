"""Encoded chunks: parts of a token store on their way, so that an interruption loses one each.

    FOLDER/00000.tokens   documents one after the other, each ended by eos; uint16 or uint32
    FOLDER/00000.npz     documents: [documents, 3] int64: end (in tokens of the chunk), words, UTF-8
                         bytes; sha256: [32] uint8, of the tokens; written after them: with it the
                         chunk is complete

Neither TensorFlow nor JAX is imported.
"""

import hashlib
import os
import pathlib
import zipfile
from collections.abc import Sequence

import numpy as np

from fairjax.files import atomic_write
from fairjax.vocabulary import Encoder


def token_dtype(vocabulary: Encoder) -> np.dtype:
  """uint16 if all ids fit, else uint32."""
  return np.dtype(np.uint16 if vocabulary.size <= 1 << 16 else np.uint32)


def write_chunk(
  folder: str | os.PathLike, index: int, texts: Sequence[str], vocabulary: Encoder) -> int:
  """Encodes documents into a chunk and returns the number of tokens."""
  folder, rows, end = pathlib.Path(folder), np.zeros((len(texts), 3), np.int64), 0
  digest = hashlib.sha256()
  with atomic_write(folder / f'{index:05d}.tokens') as file:
    dtype = token_dtype(vocabulary)
    for i, (text, ids) in enumerate(zip(texts, vocabulary.encode_batch(texts), strict=True)):
      ids.append(vocabulary.eos_id)
      content = np.array(ids, dtype).tobytes()
      file.write(content)
      digest.update(content)
      end += len(ids)
      rows[i] = end, len(text.split()), len(text.encode('utf-8'))
  with atomic_write(folder / f'{index:05d}.npz') as file:
    np.savez(file, documents=rows, sha256=np.frombuffer(digest.digest(), np.uint8))
  return end


def read_chunk_table(
  folder: str | os.PathLike, index: int, dtype: np.dtype, *, verify: bool = True,
) -> np.ndarray | None:
  """`[documents, 3]` table of a whole chunk: end, words, bytes; None if it is not whole.

  Args:
    folder: of the chunks.
    index: of the chunk.
    dtype: of its tokens.
    verify: compare the tokens with their SHA-256, and not only their number.
  """
  folder = pathlib.Path(folder)
  tokens = folder / f'{index:05d}.tokens'
  try:
    with np.load(folder / f'{index:05d}.npz', allow_pickle=False) as file:
      table, digest = file['documents'], file['sha256'].tobytes()
    size = tokens.stat().st_size
    if verify and hashlib.sha256(tokens.read_bytes()).digest() != digest:
      return None
  except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
    return None
  right = (table.ndim == 2 and table.shape[1] == 3
           and size == (int(table[-1, 0]) if len(table) else 0) * dtype.itemsize)
  return table if right else None


class EncodedChunks:
  """All chunks of a split as one stream of tokens that is read from the disk by slices.

  Attributes:
    documents: `[documents, 4]` int64: end (in the stream), words, bytes, number in the source.
  """

  def __init__(self, folder: str | os.PathLike, count: int, dtype: np.dtype):
    """Reads the tables of `count` complete chunks."""
    self.folder, self.dtype = pathlib.Path(folder), np.dtype(dtype)
    tables = [read_chunk_table(folder, i, self.dtype, verify=False) for i in range(count)]
    ends = np.array([t[-1, 0] if len(t) else 0 for t in tables], np.int64)
    self._starts = np.concatenate([[0], np.cumsum(ends)]).astype(np.int64)
    number = sum(map(len, tables))
    self.documents = np.empty((number, 4), np.int64)
    self.documents[:, 3] = np.arange(number)
    row = 0
    for table, start in zip(tables, self._starts[:-1].tolist(), strict=True):
      self.documents[row:row + len(table), :3] = table
      self.documents[row:row + len(table), 0] += start
      row += len(table)

  def __len__(self) -> int:
    return int(self._starts[-1])

  def __getitem__(self, part: slice) -> np.ndarray:
    """Tokens [start, stop) of one document; they lie in one chunk."""
    index = int(np.searchsorted(self._starts, part.start, side='right')) - 1
    start = part.start - int(self._starts[index])
    return np.fromfile(
      self.folder / f'{index:05d}.tokens', self.dtype, count=part.stop - part.start,
      offset=start * self.dtype.itemsize)
