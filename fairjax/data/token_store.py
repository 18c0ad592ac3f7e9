"""Token stores: documents encoded into one flat file of tokens, and rows of batches from it.

A store is a folder:

    tokens.bin      all documents one after the other, each ended by eos; uint16 or uint32
    tokens.sha256   SHA-256 (32 bytes) of each MiB of tokens.bin
    documents.npy   [documents, 5] int64: end (in tokens), words, UTF-8 bytes, number in the source,
                    digest of the tokens (equal documents have equal ones)
    spans.npy       [matches, 3] int64: matches of the attribute's sensitive tokens: first token,
                    token after the last, value index
    manifest.json   what `TokenStoreInfo` holds; written last

Letters: B rows of the global batch, b rows of this host, T segment length.
"""

import abc
import collections
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import shutil
import time
import types
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.counterfactual import TokenMatcher
from fairjax.errors import UserError
from fairjax.files import (
  MANIFEST,
  atomic_folder,
  atomic_write,
  check_sizes,
  describe_files,
  read_checked,
  read_manifest,
  write_json,
  write_sealed_json,
)
from fairjax.progress import Progress
from fairjax.vocabulary import Encoder

# Encoded chunks: what an interrupted encoding keeps. They depend on the sizes of documents only.
#
#     FOLDER/chunks.json    what the chunks were made with
#     FOLDER/00000.tokens   documents one after the other, each ended by eos; uint16 or uint32
#     FOLDER/00000.npz      documents: [documents, 3] int64: end (in tokens of the chunk), words,
#                           UTF-8 bytes; sha256: [32] uint8, of the tokens. Written last
#
# One process encodes: two more used 1.7 times the processor time for the same time on the clock
# (docs/performance.md).

CHUNK_BYTES = 4 << 20  # of text, about a million tokens; memory holds some ten times as much
CHUNK_DOCUMENTS = 1 << 15

Tokenize = Callable[[Iterable[list[str]]], Iterator[Sequence[Sequence[int]]]]
"""Ids of the documents of chunks, without eos: one sequence of rows for each chunk, in order."""


def encode_documents(
  texts: Iterable[str], folder: str | os.PathLike, *, vocabulary: Encoder,
  tokenize: Tokenize | None = None, size: int | None = None, name: str = 'documents',
  log: Callable[[str], None] = print,
) -> 'EncodedChunks':
  """Encodes documents into chunks in a folder; complete chunks of an earlier run are kept."""
  folder = pathlib.Path(folder)
  dtype = np.dtype(np.uint16 if vocabulary.size <= 1 << 16 else np.uint32)
  _open_chunks(folder, {'vocabulary': vocabulary.fingerprint, 'bytes': CHUNK_BYTES,
                        'documents': CHUNK_DOCUMENTS})
  tokenize = tokenize or (lambda chunks: map(vocabulary.encode_batch, chunks))
  waiting: collections.deque[tuple[int, list[str]]] = collections.deque()
  number, earlier = 0, []  # earlier: documents of the chunks that are kept

  def missing():
    nonlocal number
    for number, chunk in enumerate(_cut(texts), 1):
      table = read_chunk_table(folder, number - 1)
      if table is not None and (len(table), int(table[:, 2].sum())) == (
          len(chunk), sum(len(text.encode()) for text in chunk)):
        earlier.append(len(chunk))
      else:
        waiting.append((number - 1, chunk))
        yield chunk

  start, skipped, tokens, documents, chunks = time.monotonic(), 0, 0, 0, 0

  def rate():
    return f'{tokens / max(time.monotonic() - start, 1e-9):,.0f} tokens/s'

  with Progress(f'[data] {name}', size, unit='documents', log=log) as progress:
    for ids in tokenize(missing()):
      index, chunk = waiting.popleft()
      progress.skip(sum(earlier) - skipped)
      skipped = sum(earlier)
      try:
        tokens += write_chunk(folder, index, chunk, ids, dtype, vocabulary.eos_id)
      except (OSError, UserError) as e:  # a full disk; a folder in the place of the file
        fault = f'{e.filename or folder}: {e.strerror}' if isinstance(e, OSError) else str(e)
        raise UserError(f'chunk {index} cannot be written ({fault}): the same command continues '
                        'when this is fixed') from None
      del ids  # millions of integers, while the next chunk makes as many
      documents, chunks = documents + len(chunk), chunks + 1
      progress.add(len(chunk), rate)
    progress.skip(sum(earlier) - skipped)
  if earlier:
    log(f'[data] {name}: {sum(earlier):,} documents in {len(earlier):,} chunks were encoded '
        'earlier')
  if chunks > 1:
    log(f'[data] {name}: {documents:,} documents encoded, {tokens:,} tokens in '
        f'{time.monotonic() - start:.0f} s, {rate()}')
  return EncodedChunks(folder, number, dtype)


def _open_chunks(folder: pathlib.Path, made_with: dict[str, Any]) -> None:
  """Deletes the chunks of another vocabulary."""
  path = folder / 'chunks.json'
  try:
    if json.loads(path.read_text(encoding='utf-8')) == made_with:
      return
  except (OSError, ValueError):
    pass
  shutil.rmtree(folder, ignore_errors=True)
  write_json(path, made_with)


def _cut(texts: Iterable[str]) -> Iterator[list[str]]:
  """Runs of documents, of about CHUNK_BYTES and at most CHUNK_DOCUMENTS each."""
  chunk, size = [], 0
  for text in texts:
    chunk.append(text)
    size += len(text.encode('utf-8'))
    if size >= CHUNK_BYTES or len(chunk) >= CHUNK_DOCUMENTS:
      yield chunk
      chunk, size = [], 0
  if chunk:
    yield chunk


def write_chunk(folder: pathlib.Path, index: int, texts: Sequence[str],
                ids: Sequence[Sequence[int]], dtype: np.dtype, eos_id: int) -> int:
  """Writes the tokens of documents as a chunk and returns their number."""
  rows, end, digest = np.zeros((len(texts), 3), np.int64), 0, hashlib.sha256()
  border = dtype.type(eos_id).tobytes()
  with atomic_write(folder / f'{index:05d}.tokens') as file:
    for i, (text, row) in enumerate(zip(texts, ids, strict=True)):
      content = np.asarray(row, dtype).tobytes() + border
      file.write(content)
      digest.update(content)
      end += len(row) + 1
      rows[i] = end, len(text.split()), len(text.encode('utf-8'))
  with atomic_write(folder / f'{index:05d}.npz') as file:
    np.savez(file, documents=rows, sha256=np.frombuffer(digest.digest(), np.uint8))
  return end


def read_chunk_table(folder: pathlib.Path, index: int) -> np.ndarray | None:
  """`[documents, 3]` table of a chunk: end, words, bytes; None if the chunk is not whole."""
  try:
    with np.load(folder / f'{index:05d}.npz', allow_pickle=False) as file:
      table, expected = file['documents'], file['sha256'].tobytes()
    found = hashlib.sha256((folder / f'{index:05d}.tokens').read_bytes()).digest()
  except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
    return None
  return table if found == expected else None


class EncodedChunks:
  """All chunks of a split as one stream of tokens that is read from the disk by slices."""

  def __init__(self, folder: str | os.PathLike, count: int, dtype: np.dtype):
    self.folder, self.dtype = pathlib.Path(folder), np.dtype(dtype)
    tables = [np.zeros((0, 3), np.int64)]
    for index in range(count):
      with np.load(self.folder / f'{index:05d}.npz', allow_pickle=False) as file:
        tables.append(file['documents'])
    sizes = [len(table) for table in tables[1:]]
    self._starts = np.cumsum([0, *(table[-1, 0] for table in tables[1:])])  # of the chunks
    table = np.concatenate(tables)
    del tables  # as large as what is made next
    table[:, 0] += np.repeat(self._starts[:-1], sizes)
    # [documents, 4] int64: end (in the stream), words, bytes, number in the source
    self.documents = np.column_stack([table, np.arange(len(table))])

  def __getitem__(self, part: slice) -> np.ndarray:
    """Tokens [start, stop) of one document; they are in one chunk."""
    index = int(np.searchsorted(self._starts, part.start, side='right')) - 1
    start = part.start - int(self._starts[index])
    return np.fromfile(
      self.folder / f'{index:05d}.tokens', self.dtype, count=part.stop - part.start,
      offset=start * self.dtype.itemsize)


# A store of a terabyte has 32 MiB of digests, and a process hashes only what it reads, once.

BLOCK_BYTES = 1 << 20
_DIGEST_BYTES = 32


def block_digests(path: str | os.PathLike) -> bytes:
  """The SHA-256 of each block of a file, one after the other."""
  digests = []
  with open(path, 'rb') as file:
    while block := file.read(BLOCK_BYTES):
      digests.append(hashlib.sha256(block).digest())
  return b''.join(digests)


def _map_bytes(path: pathlib.Path) -> np.ndarray:
  """The bytes of a file, mapped; an empty file cannot be."""
  return np.memmap(path, np.uint8, 'r') if path.stat().st_size else np.zeros(0, np.uint8)


class VerifiedTokens:
  """`[n]` tokens of a file, read like an array; damage raises `UserError` when it is read."""

  def __init__(self, path: pathlib.Path, dtype: str | np.dtype, digests: bytes):
    self.path, self.dtype = path, np.dtype(dtype)
    self._bytes = _map_bytes(path)
    self._tokens, self._digests = self._bytes.view(self.dtype), digests
    self._verified = np.zeros(-(-len(self._bytes) // BLOCK_BYTES), bool)

  def __len__(self) -> int:
    return len(self._tokens)

  def __getitem__(self, key: int | slice) -> Any:
    if not isinstance(key, slice):
      index = range(len(self))[key]
      return self[index:index + 1][0]
    start, stop, _ = key.indices(len(self))
    self._verify(start, stop)
    return self._tokens[start:stop]

  def _verify(self, start: int, stop: int) -> None:
    """Compares the blocks of tokens [start, stop) that were not compared yet."""
    first = start * self.dtype.itemsize // BLOCK_BYTES
    last = -(-stop * self.dtype.itemsize // BLOCK_BYTES)
    if self._verified[first:last].all():  # nearly always, and faster than what follows
      return
    for block in first + np.flatnonzero(~self._verified[first:last]):
      begin, end = int(block) * BLOCK_BYTES, min(int(block + 1) * BLOCK_BYTES, len(self._bytes))
      expected = self._digests[block * _DIGEST_BYTES:(block + 1) * _DIGEST_BYTES]
      if hashlib.sha256(self._bytes[begin:end].data).digest() != expected:
        raise UserError(f'{self.path} is damaged between bytes {begin} and {end}: their SHA-256 '
                        f'is not the recorded one: {_AGAIN}')
      self._verified[block] = True


_AGAIN = ('delete the folder and run fairjax step data again (fairjax models masked-lm in a '
          'workdir of its own)')
_FORMAT = 2
_FILES = ('tokens.bin', 'tokens.sha256', 'documents.npy', 'spans.npy')
_MATCH_BLOCK = 1 << 27  # tokens of whole documents that are matched at once
_TABLE_BLOCK = 1 << 15  # documents copied at a time: Python numbers take many bytes each
# Keeps the order of the documents apart from other random numbers of the same seed.
_ORDER_PURPOSE = 0x0D0C5


@dataclasses.dataclass(frozen=True)
class TokenStoreInfo:
  """A complete store."""

  path: pathlib.Path  # its folder
  split: str  # e.g. `train` or `train_sensitive`
  documents: int
  tokens: int  # eos included
  words: int  # of the original text, between white space (for word perplexity, H-25)
  num_bytes: int  # of the original text in UTF-8
  dtype: str  # uint16 or uint32
  vocabulary: str  # fingerprint
  attribute: str  # fingerprint of what the spans belong to; '' without spans
  matches: int  # number of spans
  value_counts: tuple[int, ...]  # matches of each value
  unaligned: int  # matches that begin or end inside a token, or hold an unknown word: without span
  order_seed: int | None  # of the documents' order; None for the order of the source
  repeated: int  # documents whose tokens are those of an earlier one; they are kept
  normalised: Mapping[str, Any]  # what the reader of the documents changed or left out, counted
  files: Mapping[str, Mapping[str, Any]]  # bytes and SHA-256 of every file

  @property
  def sha256(self) -> str:
    """SHA-256 (hex) of tokens.bin."""
    return self.files['tokens.bin']['sha256']

  def open_tokens(self) -> VerifiedTokens:
    """`[tokens]` of `dtype`, mapped; reading a damaged part raises `UserError`."""
    return VerifiedTokens(
      self.path / 'tokens.bin', self.dtype, self._read('tokens.sha256').getvalue())

  def open_documents(self) -> np.ndarray:
    """`[documents, 5]` int64: end, words, bytes, number in the source, digest of the tokens."""
    return np.load(self._read('documents.npy'), allow_pickle=False)

  def open_spans(self) -> np.ndarray:
    """`[matches, 3]` int64: first token, token after the last, value index; in order."""
    return np.load(self._read('spans.npy'), allow_pickle=False)

  def verify(self) -> None:
    """Reads and compares everything."""
    self.open_tokens()[:]
    for name in self.files:
      if name != 'tokens.bin':  # its blocks were compared
        self._read(name)

  def _read(self, name: str) -> io.BytesIO:
    return read_checked(self.path, name, self.files, again=_AGAIN)


def write_token_store(
  path: str | os.PathLike, chunks: EncodedChunks, *, vocabulary: Encoder,
  matcher: TokenMatcher | None = None, order_seed: int | None = None,
  normalised: Mapping[str, Any] | None = None, unknown: int = 0,
) -> TokenStoreInfo:
  """Writes the store of a split, replacing one that exists; it appears when it is complete."""
  path, order = pathlib.Path(path), np.arange(len(chunks.documents))
  if order_seed is not None:
    rng = np.random.default_rng(np.random.SeedSequence([order_seed, _ORDER_PURPOSE]))
    order = rng.permutation(len(order))
  with atomic_folder(path, replace=True) as folder:
    table = _copy_documents(chunks, chunks.documents, order, folder / 'tokens.bin')
    spans, unaligned = np.zeros((0, 3), np.int64), 0
    if matcher is not None:
      tokens = _map_bytes(folder / 'tokens.bin').view(chunks.dtype)
      spans, unaligned = _find_spans(tokens, table[:, 0], matcher)
    return _finish(
      folder, path, table=table, spans=spans, dtype=chunks.dtype, unaligned=unaligned + unknown,
      order_seed=order_seed, vocabulary=vocabulary.fingerprint,
      attribute=matcher.attribute.fingerprint if matcher else '',
      num_values=len(matcher.attribute.values) if matcher else 0,
      normalised=dict(normalised or {}))


def write_sensitive_store(path: str | os.PathLike, source: TokenStoreInfo) -> TokenStoreInfo:
  """Writes the documents of a store that hold at least one match, in its order (H-23, H-25)."""
  path, tokens = pathlib.Path(path), source.open_tokens()
  table, spans = source.open_documents(), source.open_spans()
  owner = np.searchsorted(table[:, 0], spans[:, 0], side='right')
  chosen = np.unique(owner)
  with atomic_folder(path, replace=True) as folder:
    new_table = _copy_documents(tokens, table, chosen, folder / 'tokens.bin')
    # How far each chosen document moved towards the beginning.
    shift = np.zeros(len(table), np.int64)
    shift[chosen] = table[chosen, 0] - new_table[:, 0]
    new_spans = spans.copy()
    new_spans[:, :2] -= shift[owner][:, None]
    return _finish(
      folder, path, table=new_table, spans=new_spans, dtype=np.dtype(source.dtype), unaligned=0,
      order_seed=source.order_seed, vocabulary=source.vocabulary, attribute=source.attribute,
      num_values=len(source.value_counts), normalised={})


def open_token_store(
  path: str | os.PathLike, *, vocabulary: str | None = None, attribute: str | None = None,
) -> TokenStoreInfo:
  """Opens a complete store, of the given fingerprints."""
  path = pathlib.Path(path)
  manifest = read_manifest(path, again=_AGAIN)
  if (found := manifest.pop('format', None)) != _FORMAT:
    raise UserError(f'{path} has format {found}, and this fairjax reads {_FORMAT}: {_AGAIN}')
  info = TokenStoreInfo(path=path, value_counts=tuple(manifest.pop('value_counts')), **manifest)
  check_sizes(path, info.files, again=_AGAIN)
  for kind, expected in (('vocabulary', vocabulary), ('attribute', attribute)):
    if expected is not None and getattr(info, kind) != expected:
      raise UserError(f'{path} was made with another {kind} ({getattr(info, kind)[:8]}, not '
                      f'{expected[:8]}): {_AGAIN}')
  return info


def _copy_documents(
  tokens: VerifiedTokens | EncodedChunks, table: np.ndarray, order: np.ndarray, path: pathlib.Path,
) -> np.ndarray:
  """Writes chosen documents in a given order; returns their `[documents, 5]` table."""
  new = np.empty((len(order), 5), np.int64)
  with open(path, 'wb', buffering=1 << 20) as file:
    for first in range(0, len(order), _TABLE_BLOCK):
      chosen, block = order[first:first + _TABLE_BLOCK], new[first:first + _TABLE_BLOCK]
      block[:, :4] = table[chosen, :4]
      starts, digests = np.where(chosen > 0, table[chosen - 1, 0], 0), bytearray()
      for start, end in zip(starts.tolist(), block[:, 0].tolist(), strict=True):
        content = tokens[start:end].tobytes()
        file.write(content)
        digests += hashlib.blake2b(content, digest_size=8).digest()
      block[:, 0] -= starts
      block[:, 4] = np.frombuffer(digests, '<i8')
  np.cumsum(new[:, 0], out=new[:, 0])
  return new


def _find_spans(
  tokens: np.ndarray, ends: np.ndarray, matcher: TokenMatcher) -> tuple[np.ndarray, int]:
  """All matches as int64, and how many are not aligned with tokens."""
  parts, unaligned = [np.zeros((0, 3), np.int64)], 0
  start = document = 0
  while document < len(ends):
    document = max(document + 1, int(np.searchsorted(ends, start + _MATCH_BLOCK, side='right')))
    end = int(ends[document - 1])
    found, left_out = matcher.find(tokens[start:end])
    parts.append(found + np.array([start, start, 0], np.int64))
    unaligned += left_out
    start = end
  return np.concatenate(parts), unaligned


def _finish(folder: pathlib.Path, path: pathlib.Path, *, table: np.ndarray, spans: np.ndarray,
            num_values: int, dtype: np.dtype, **fields: Any) -> TokenStoreInfo:
  """Writes tables and manifest of a store that will be at `path`."""
  _save_array(folder / 'documents.npy', table)
  _save_array(folder / 'spans.npy', spans)
  (folder / 'tokens.sha256').write_bytes(block_digests(folder / 'tokens.bin'))
  info = TokenStoreInfo(
    path=path, split=path.name, documents=len(table), tokens=int(table[-1, 0]) if len(table) else 0,
    words=int(table[:, 1].sum()), num_bytes=int(table[:, 2].sum()), dtype=dtype.name,
    matches=len(spans), repeated=len(table) - len(np.unique(table[:, 4])),
    value_counts=tuple(np.bincount(spans[:, 2], minlength=num_values).tolist()),
    files=describe_files(folder, _FILES), **fields)
  values = dataclasses.asdict(info)
  del values['path']
  write_sealed_json(folder / MANIFEST, values | {'format': _FORMAT})
  return info


def _save_array(path: pathlib.Path, array: np.ndarray) -> None:
  """`numpy.save`, whose own way to files does not say why one could not be written."""
  with path.open('wb') as file:
    np.save(types.SimpleNamespace(write=file.write), array, allow_pickle=False)


class Rows(abc.ABC):
  """Rows of training batches; the position in the data is a function of the step alone.

  Continuing costs nothing, and any number of hosts that divides B reads the same global batch.
  """

  steps_per_epoch: int  # S
  dropped_tokens: int  # that are no target in an epoch

  def __init__(
    self, tokens: np.ndarray | VerifiedTokens, spans: np.ndarray, *, batch_size: int,
    segment_len: int, shard: tuple[int, int],
  ):
    self.tokens, self.segment_len, self._spans = tokens, segment_len, spans
    index, count = shard
    self.rows = np.split(np.arange(batch_size), count)[index]
    self._starts, self._ends = np.ascontiguousarray(spans[:, :2].T)

  @abc.abstractmethod
  def read(self, step: int) -> dict[str, np.ndarray]:
    """Arrays of this host's rows at a step."""

  @abc.abstractmethod
  def spans(self, step: int) -> list[np.ndarray]:
    """Matches in the inputs of a step, a `[k, 3]` int32 for each row, relative to the row.

    A match that the row cuts begins below 0 or ends above T.
    """

  def describe(self, step: int) -> str:
    """Text that identifies a batch, e.g. 'epoch 0, segment 3 of 120'."""
    epoch, segment = divmod(step, self.steps_per_epoch)
    return f'epoch {epoch}, segment {segment} of {self.steps_per_epoch}'


# Row r of B is a contiguous part of the stream, and step t reads its t-th segment of T tokens, so
# that the memory of a row always belongs to the text before.

class TokenRows(Rows):
  """Reads the rows of a model with memory from a token stream, by arithmetic."""

  def __init__(
    self, tokens: np.ndarray | VerifiedTokens, spans: np.ndarray, *, batch_size: int,
    segment_len: int, shard: tuple[int, int] = (0, 1), name: str = 'the token stream',
    field: str = 'batch_size',
  ):
    super().__init__(tokens, spans, batch_size=batch_size, segment_len=segment_len, shard=shard)
    self.steps_per_epoch = (len(tokens) - 1) // (batch_size * segment_len)
    if self.steps_per_epoch < 1:
      raise UserError(
        f'{name} holds {len(tokens)} tokens, too few for one batch of {batch_size} rows of '
        f'{segment_len}: lower {field} or model.segment_len, or use more text')
    # The first of the stream apart.
    self.dropped_tokens = len(tokens) - 1 - self.steps_per_epoch * batch_size * segment_len
    self._row_len = self.steps_per_epoch * segment_len

  def read(self, step: int) -> dict[str, np.ndarray]:
    """Rows of this host at a step: inputs, targets `[b, T]` int32, reset `[b]` bool."""
    segment = step % self.steps_per_epoch
    starts = self.rows * self._row_len + segment * self.segment_len
    block = np.empty((len(starts), self.segment_len + 1), np.int32)
    for i, start in enumerate(starts.tolist()):
      block[i] = self.tokens[start:start + self.segment_len + 1]
    return {'inputs': block[:, :-1], 'targets': block[:, 1:],
            'reset': np.full(len(starts), segment == 0)}

  def spans(self, step: int) -> list[np.ndarray]:
    """See `Rows`."""
    starts = self.rows * self._row_len + step % self.steps_per_epoch * self.segment_len
    first = np.searchsorted(self._ends, starts, side='right')
    last = np.searchsorted(self._starts, starts + self.segment_len, side='left')
    return [(self._spans[a:b] - [start, start, 0]).astype(np.int32) for a, b, start in zip(
      first.tolist(), last.tolist(), starts.tolist(), strict=True)]


class Piece(NamedTuple):
  """A part of a document in a row: start ids, then tokens."""

  first: int  # place in the store of its first token
  size: int  # number of its tokens, without the document's end
  opens: bool  # no earlier row predicted its first token


def document_rows(
  tokens: np.ndarray | VerifiedTokens, rows: Sequence[Sequence[Piece]], *, segment_len: int,
  start_ids: Sequence[int],
) -> dict[str, np.ndarray]:
  """Rows of a decoder, in which each piece is a text of its own, as in sampling.

  A piece begins with the start ids, at position 0. Each token is predicted by the one before; the
  end of a document is a target and never an input. `rows` are the pieces of each row, with s start
  ids each at most T places. All arrays are `[b, T]`:

  inputs, targets: int32, 0 at padding, which is at a row's end only.
  segment_ids: int32, number of the piece in its row; -1 at padding.
  positions: int32, from 0 in each piece; 0 at padding.
  weights: float32, 1 where the target is to be predicted; 0 where it is a start id, a token that an
    earlier row predicted, or padding.
  reset: `[b]` bool, True.
  """
  shape, starts, before = (len(rows), segment_len), len(start_ids), np.array(start_ids, np.int64)
  found: dict[str, np.ndarray] = {
    name: np.zeros(shape, np.int32) for name in ('inputs', 'targets', 'positions')}
  found |= {'segment_ids': np.full(shape, -1, np.int32), 'weights': np.zeros(shape, np.float32),
            'reset': np.full(len(rows), True)}
  for row, pieces in enumerate(rows):
    place = 0
    for number, (first, size, opens) in enumerate(pieces):
      text = np.concatenate([before, tokens[first:first + size + 1]])
      part = row, slice(place, place + starts + size)
      found['inputs'][part], found['targets'][part] = text[:-1], text[1:]
      found['positions'][part], found['segment_ids'][part] = np.arange(len(text) - 1), number
      found['weights'][part][starts if not opens else max(0, starts - 1):] = 1
      place += starts + size
  return found


# In training, a document takes one place for each start id and each token but its end. A row takes
# the next T - s places, with s start ids; it cuts the document that it does not hold whole. That
# one goes on in the next row as a text of its own: start ids come first again, hence the s places
# that are left free for them, and its first token there has weight 0, because the row before has
# predicted it. A row that begins with the start ids of a document needs no others, and ends with
# padding. No token is left out: the last rows of an epoch are padded too.

class DocumentRows(Rows):
  """Reads the rows of a decoder, by arithmetic; see `document_rows`."""

  dropped_tokens = 0

  def __init__(
    self, tokens: np.ndarray | VerifiedTokens, spans: np.ndarray, document_ends: np.ndarray, *,
    batch_size: int, segment_len: int, start_ids: Sequence[int],
    shard: tuple[int, int] = (0, 1), name: str = 'the token stream',
  ):
    super().__init__(tokens, spans, batch_size=batch_size, segment_len=segment_len, shard=shard)
    self.start_ids, self._advance = tuple(start_ids), text_places(segment_len, start_ids)
    self._document_ends = np.ascontiguousarray(document_ends)
    sizes = np.diff(self._document_ends, prepend=0) - 1 + len(self.start_ids)
    self._places = np.concatenate([[0], np.cumsum(sizes)])  # before each document, and after all
    if not self._places[-1]:
      raise UserError(f'{name} holds no text')
    self.steps_per_epoch = -(-int(self._places[-1]) // (batch_size * self._advance))

  def read(self, step: int) -> dict[str, np.ndarray]:
    """See `document_rows`."""
    return document_rows(self.tokens, self._pieces(step), segment_len=self.segment_len,
                         start_ids=self.start_ids)

  def spans(self, step: int) -> list[np.ndarray]:
    """See `Rows`."""
    found = []
    for pieces in self._pieces(step):
      place, parts = 0, [np.zeros((0, 3), np.int32)]
      for first, size, _ in pieces:
        place += len(self.start_ids)
        a = np.searchsorted(self._ends, first, side='right')
        b = np.searchsorted(self._starts, first + size, side='left')
        start, end, value = (self._spans[a:b] - [first, first, 0]).T
        parts.append(np.stack([
          np.where(start < 0, -1, start + place),
          np.where(end > size, self.segment_len + 1, end + place), value], axis=1))
        place += size
      found.append(np.concatenate(parts).astype(np.int32))
    return found

  def _pieces(self, step: int) -> list[list[Piece]]:
    segment = step % self.steps_per_epoch
    return [self._row(place) for place in (
      (self.rows * self.steps_per_epoch + segment) * self._advance).tolist()]

  def _row(self, place: int) -> list[Piece]:
    """The pieces of the row that begins at a place."""
    pieces, starts = [], len(self.start_ids)
    end = min(place + self._advance, int(self._places[-1]))
    document = int(np.searchsorted(self._places, place, side='right')) - 1
    while place < end:
      begin, after = self._places[document:document + 2].tolist()
      done = max(0, place - begin - starts)  # tokens that earlier rows hold
      size, opens = min(end, after) - begin - starts - done, place - begin < starts
      if size + opens > 0:  # else the row ends within the start ids
        first = int(self._document_ends[document]) - 1 - (after - begin - starts - done)
        pieces.append(Piece(first, size, opens))
      place, document = after, document + 1
    return pieces


def text_places(segment_len: int, start_ids: Sequence[int]) -> int:
  """Places of a row beside start ids; `UserError` if there is none."""
  if segment_len <= len(start_ids):
    raise UserError(f'model.segment_len={segment_len} leaves no place for a token: the model '
                    f'begins every text with {len(start_ids)} ids')
  return segment_len - len(start_ids)


def token_rows(
  store: TokenStoreInfo, *, batch_size: int, segment_len: int, shard: tuple[int, int] = (0, 1),
  start_ids: Sequence[int] | None = None, field: str = 'batch_size',
) -> Rows:
  """The rows of a store; those of a decoder where its `start_ids` are given.

  `field` is how the error of too few tokens calls the batch size.
  """
  options: dict[str, Any] = {'batch_size': batch_size, 'segment_len': segment_len, 'shard': shard,
                             'name': f"split '{store.split}'"}
  tokens, spans = store.open_tokens(), store.open_spans()
  if start_ids is None:
    return TokenRows(tokens, spans, field=field, **options)
  return DocumentRows(
    tokens, spans, store.open_documents()[:, 0], start_ids=start_ids, **options)
