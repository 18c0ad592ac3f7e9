"""Token stores: the tokens of a split in one flat file, with what is known of its documents.

A store is a folder:

    tokens.bin      all documents one after the other, each ended by eos; uint16 or uint32
    tokens.sha256   digests of its blocks, see `fairjax.data.token_store`
    documents.npy   [documents, 5] int64: end (in tokens), words, UTF-8 bytes, number in the source,
                    digest of the tokens (equal documents have equal ones)
    spans.npy       [matches, 3] int64: matches of the attribute's sensitive tokens: first token,
                    token after the last, value index
    manifest.json   what `TokenStoreInfo` holds; written last

`fairjax.data.rows` cuts it into the rows of training batches.
"""

import array
import dataclasses
import hashlib
import os
import pathlib
import shutil
import types
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.counterfactual import TokenMatcher
from fairjax.errors import UserError
from fairjax.files import (
  MANIFEST,
  atomic_write,
  check_sizes,
  describe_files,
  is_complete,
  read_checked,
  read_manifest,
  write_sealed_json,
)
from fairjax.vocabulary import Encoder

# Encoded chunks: parts of a token store on their way, so that an interruption loses one each.
#
#     FOLDER/00000.tokens   documents one after the other, each ended by eos; uint16 or uint32
#     FOLDER/00000.npz     documents: [documents, 3] int64: end (in tokens of the chunk),
#     words, UTF-8
#                          bytes; sha256: [32] uint8, of the tokens; written after them: with it the
#                          chunk is complete
#
# Neither TensorFlow nor JAX is imported.

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


# Tokens on the disk that are compared with their digests when they are first read.
#
# Beside `tokens.bin` lies `tokens.sha256`: the SHA-256 (32 bytes) of each MiB of it. A store of a
# terabyte has 32 MiB of digests, and a process hashes what it reads, once.

BLOCK_BYTES = 1 << 20
_DIGEST_BYTES = 32


def block_digests(path: str | os.PathLike) -> bytes:
  """The SHA-256 of each block of a file, one after the other."""
  digests = []
  with open(path, 'rb') as file:
    while block := file.read(BLOCK_BYTES):
      digests.append(hashlib.sha256(block).digest())
  return b''.join(digests)


class VerifiedTokens:
  """`[n]` tokens of a file; reading a part compares the blocks that it touches for the first time.

  It is read like an array: `tokens[a:b]`, `tokens[i]`, `len(tokens)`, `np.asarray(tokens)`.

  Attributes:
    dtype: of the tokens.
  """

  def __init__(self, path: str | os.PathLike, dtype: str | np.dtype, digests: bytes, *, again: str):
    """Maps the file.

    Args:
      path: the file; its size was checked.
      dtype: of the tokens.
      digests: of `block_digests`.
      again: how the file is made again, for messages.
    """
    self.path, self.dtype = pathlib.Path(path), np.dtype(dtype)
    size = self.path.stat().st_size
    blocks = -(-size // BLOCK_BYTES)
    if len(digests) != blocks * _DIGEST_BYTES:
      raise UserError(f'{self.path} has {blocks} blocks, but digests of '
                      f'{len(digests) // _DIGEST_BYTES}: {again}')
    # An empty file cannot be mapped.
    self._bytes = np.memmap(self.path, np.uint8, 'r') if size else np.zeros(0, np.uint8)
    self._tokens = self._bytes.view(self.dtype)
    self._digests, self._again = digests, again
    self._verified = np.zeros(blocks, bool)

  def __len__(self) -> int:
    return len(self._tokens)

  def __getitem__(self, key: int | slice) -> Any:
    if not isinstance(key, slice):
      index = range(len(self))[key]
      self._verify(index, index + 1)
      return self._tokens[index]
    start, stop, step = key.indices(len(self))
    if step != 1:
      raise ValueError('tokens are read in their order: step must be 1')
    self._verify(start, stop)
    return self._tokens[start:stop]

  def __iter__(self) -> Iterator[Any]:
    return iter(self[:])

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    tokens = self[:]
    return tokens.astype(dtype or self.dtype) if copy or dtype else tokens

  def verify(self) -> None:
    """Compares everything.

    Raises:
      UserError: a block is damaged; with file and bytes.
    """
    self._verify(0, len(self))

  def _verify(self, start: int, stop: int) -> None:
    """Compares the blocks of tokens [start, stop) that were not compared yet."""
    if stop <= start:
      return
    first = start * self.dtype.itemsize // BLOCK_BYTES
    last = -(-stop * self.dtype.itemsize // BLOCK_BYTES)
    if self._verified[first:last].all():
      return
    for block in range(first, last):
      if not self._verified[block]:
        begin, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, len(self._bytes))
        expected = self._digests[block * _DIGEST_BYTES:(block + 1) * _DIGEST_BYTES]
        if hashlib.sha256(self._bytes[begin:end]).digest() != expected:
          raise UserError(f'{self.path} is damaged between bytes {begin} and {end}: their SHA-256 '
                          f'is not the recorded one: {self._again}')
        self._verified[block] = True


_AGAIN = ('delete the folder and run fairjax data again (fairjax masked-lm train in a workdir of '
          'its own)')
_FORMAT = 2
_FILES = ('tokens.bin', 'tokens.sha256', 'documents.npy', 'spans.npy')
_MATCH_BLOCK = 1 << 27
_TABLE_BLOCK = 1 << 15  # documents copied between two looks at the table
# Keeps the order of the documents apart from other random numbers of the same seed.
_ORDER_PURPOSE = 0x0D0C5


class NoAttribute(NamedTuple):
  """In the place of an attribute where no sensitive tokens are sought."""

  fingerprint: str = ''
  values: tuple[str, ...] = ()


class NoMatcher(NamedTuple):
  """In the place of a `TokenMatcher`: a store without spans.

  Attributes:
    vocabulary: of the ids.
    attribute: none.
  """

  vocabulary: Encoder
  attribute: NoAttribute = NoAttribute()

  def find(self, tokens: np.ndarray) -> tuple[np.ndarray, int]:
    """Nothing is found, whatever the tokens."""
    return np.zeros((0, 3), np.int64), 0


class TokenizedDocument(NamedTuple):
  """Ids of a document without eos, its number of white-space words and of UTF-8 bytes."""

  ids: np.ndarray
  words: int
  num_bytes: int


@dataclasses.dataclass(frozen=True)
class TokenStoreInfo:
  """A complete store.

  Attributes:
    path: its folder.
    split: e.g. `train` or `train_sensitive`.
    documents: number of documents.
    tokens: number of tokens, eos included.
    words: words of the original text, between white space (for word perplexity, H-25).
    num_bytes: bytes of the original text in UTF-8.
    dtype: `uint16` or `uint32`.
    vocabulary: fingerprint of the vocabulary.
    attribute: fingerprint of the attribute that `spans` belongs to.
    matches: number of matches (spans).
    value_counts: matches of each value.
    unaligned: matches in the text that begin or end inside a token, or hold a word that the
      vocabulary does not know; they have no span.
    order_seed: seed of the documents' order; None for the order of the source.
    repeated: documents whose tokens are those of an earlier one; they are kept.
    normalised: what the reader of the documents changed, left out or repaired, counted.
    files: bytes and SHA-256 of every file.
  """

  path: pathlib.Path
  split: str
  documents: int
  tokens: int
  words: int
  num_bytes: int
  dtype: str
  vocabulary: str
  attribute: str
  matches: int
  value_counts: tuple[int, ...]
  unaligned: int
  order_seed: int | None
  repeated: int
  normalised: Mapping[str, int]
  files: Mapping[str, Mapping[str, Any]]

  @property
  def sha256(self) -> str:
    """SHA-256 (hex) of tokens.bin."""
    return self.files['tokens.bin']['sha256']

  def open_tokens(self) -> VerifiedTokens:
    """`[tokens]` of `dtype`, mapped; a part is compared with its digests when it is first read.

    Raises:
      UserError: the digests are damaged; reading raises it where the tokens are.
    """
    return VerifiedTokens(
      self.path / 'tokens.bin', self.dtype, self._read('tokens.sha256').getvalue(), again=_AGAIN)

  def open_documents(self) -> np.ndarray:
    """`[documents, 5]` int64: end, words, bytes, number in the source, digest of the tokens.

    Raises:
      UserError: the file is damaged.
    """
    return np.load(self._read('documents.npy'), allow_pickle=False)

  def open_spans(self) -> np.ndarray:
    """`[matches, 3]` int64: first token, token after the last, value index; in order.

    Raises:
      UserError: the file is damaged.
    """
    return np.load(self._read('spans.npy'), allow_pickle=False)

  def verify(self) -> None:
    """Reads and compares everything.

    Raises:
      UserError: a file is damaged; the file, and the bytes of tokens.bin, are named.
    """
    self.open_tokens().verify()
    for name in self.files:
      if name != 'tokens.bin':  # its blocks were compared
        self._read(name)

  def _read(self, name):
    return read_checked(self.path, name, self.files, again=_AGAIN)


def write_token_store(
  path: str | os.PathLike, documents: Iterable[TokenizedDocument] | EncodedChunks, *, split: str,
  matcher: TokenMatcher | NoMatcher, order_seed: int | None = None,
  normalised: Mapping[str, int] | None = None, unknown: int = 0,
) -> TokenStoreInfo:
  """Writes a store; the folder appears when it is complete.

  A seeded order is made from the documents on the disk, so that the corpus need not fit into
  memory: only its table does (40 bytes a document).

  Args:
    path: folder to write; one that exists is replaced.
    documents: read once and written as they come; or chunks that lie on the disk.
    split: name kept in the manifest.
    matcher: finds the sensitive tokens; names attribute and vocabulary.
    order_seed: seed of a random order of the documents, or None to keep theirs.
    normalised: what the reader counted, kept in the manifest.
    unknown: matches in the texts that no id shows (`TokenMatcher.count_unknown`).
  """
  path, vocabulary = pathlib.Path(path), matcher.vocabulary
  dtype = token_dtype(vocabulary)
  temporary = _empty_folder(path)
  source = temporary / 'source.bin'
  if isinstance(documents, EncodedChunks):
    stream, table = documents, documents.documents
  else:
    table = _spool(documents, source, vocabulary.eos_id, dtype)
    stream = _map(source, dtype)
  if order_seed is None:
    order = np.arange(len(table))
  else:
    rng = np.random.default_rng(np.random.SeedSequence([order_seed, _ORDER_PURPOSE]))
    order = rng.permutation(len(table))
  table = _copy_documents(stream, table, order, temporary / 'tokens.bin')
  source.unlink(missing_ok=True)
  tokens = _map(temporary / 'tokens.bin', dtype)
  spans, unaligned = _find_spans(tokens, table[:, 0], matcher)
  return _finish(
    temporary, path, table=table, spans=spans, split=split, dtype=dtype,
    unaligned=unaligned + unknown, order_seed=order_seed, vocabulary=vocabulary.fingerprint,
    attribute=matcher.attribute.fingerprint, num_values=len(matcher.attribute.values),
    normalised={k: v for k, v in (normalised or {}).items() if v})


def write_sensitive_store(
  path: str | os.PathLike, source: TokenStoreInfo, *, split: str) -> TokenStoreInfo:
  """Writes the documents of a store that hold at least one match, in its order (H-23, H-25)."""
  path, tokens = pathlib.Path(path), source.open_tokens()
  table, spans = source.open_documents(), source.open_spans()
  owner = np.searchsorted(table[:, 0], spans[:, 0], side='right')
  chosen = np.unique(owner)
  temporary = _empty_folder(path)
  new_table = _copy_documents(tokens, table, chosen, temporary / 'tokens.bin')
  # How far each chosen document moved towards the beginning.
  shift = np.zeros(len(table), np.int64)
  shift[chosen] = table[chosen, 0] - new_table[:, 0]
  new_spans = spans.copy()
  new_spans[:, :2] -= shift[owner][:, None]
  return _finish(
    temporary, path, table=new_table, spans=new_spans, split=split, dtype=np.dtype(source.dtype),
    unaligned=0, order_seed=source.order_seed, vocabulary=source.vocabulary,
    attribute=source.attribute, num_values=len(source.value_counts), normalised={})


def open_token_store(
  path: str | os.PathLike, *, vocabulary: str | None = None, attribute: str | None = None,
  verify: bool = False,
) -> TokenStoreInfo:
  """Opens a store and checks that it is complete and of the right vocabulary and attribute.

  Args:
    path: its folder.
    vocabulary: fingerprint that it must have.
    attribute: fingerprint that it must have.
    verify: also read everything and compare it, see `TokenStoreInfo.verify`.

  Raises:
    UserError: the store is missing, incomplete, damaged, or of another vocabulary or attribute.
  """
  path = pathlib.Path(path)
  if not is_complete(path):
    raise UserError(f'no complete token store in {path}: {_AGAIN}')
  manifest = read_manifest(path, again=_AGAIN)
  if manifest.pop('format', None) != _FORMAT:
    raise UserError(f'{path} was written by another version of fairjax: {_AGAIN}')
  info = TokenStoreInfo(path=path, value_counts=tuple(manifest.pop('value_counts')), **manifest)
  check_sizes(path, info.files, again=_AGAIN)
  for kind, expected in (('vocabulary', vocabulary), ('attribute', attribute)):
    if expected is not None and getattr(info, kind) != expected:
      raise UserError(f'{path} was made with another {kind} ({getattr(info, kind)[:8]}, not '
                      f'{expected[:8]}): {_AGAIN}')
  if verify:
    info.verify()
  return info


def _empty_folder(path: pathlib.Path) -> pathlib.Path:
  """A fresh folder beside `path`, where unfinished files lie."""
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.parent / f'.{path.name}.unfinished'
  shutil.rmtree(temporary, ignore_errors=True)
  temporary.mkdir()
  return temporary


def _spool(
  documents: Iterable[TokenizedDocument], path: pathlib.Path, eos_id: int, dtype: np.dtype,
) -> np.ndarray:
  """Writes documents as they come; returns their table."""
  table, end = array.array('q'), 0
  with open(path, 'wb') as file:
    for number, document in enumerate(documents):
      file.write(np.append(document.ids, eos_id).astype(dtype).tobytes())
      end += len(document.ids) + 1
      table.extend((end, document.words, document.num_bytes, number))
  return np.array(table, np.int64).reshape(-1, 4)


def _map(path: pathlib.Path, dtype: np.dtype) -> np.ndarray:
  return np.memmap(path, dtype=dtype, mode='r') if path.stat().st_size else np.zeros(0, dtype)


def _copy_documents(
  tokens: np.ndarray | VerifiedTokens | EncodedChunks, table: np.ndarray, order: np.ndarray,
  path: pathlib.Path,
) -> np.ndarray:
  """Writes chosen documents in a given order; returns their table with digests, `[documents, 5]`.

  The table may have digests, or not yet: 4 columns.
  """
  new = np.empty((len(order), 5), np.int64)
  with open(path, 'wb', buffering=1 << 20) as file:
    for first in range(0, len(order), _TABLE_BLOCK):  # its numbers as Python's take many bytes each
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


def document_blocks(ends: np.ndarray) -> Iterator[tuple[int, int]]:
  """Borders (start, end) of runs of whole documents of about 2**27 tokens, given their ends."""
  start = document = 0
  while document < len(ends):
    document = max(document + 1, int(np.searchsorted(ends, start + _MATCH_BLOCK, side='right')))
    end = int(ends[document - 1])
    yield start, end
    start = end


def _find_spans(
  tokens: np.ndarray, ends: np.ndarray, matcher: TokenMatcher | NoMatcher
) -> tuple[np.ndarray, int]:
  """All matches as int64, and how many are not aligned with tokens."""
  parts, unaligned = [np.zeros((0, 3), np.int64)], 0
  for start, end in document_blocks(ends):
    found, left_out = matcher.find(tokens[start:end])
    parts.append(found + np.array([start, start, 0], np.int64))
    unaligned += left_out
  return np.concatenate(parts), unaligned


def _finish(temporary, path, *, table, spans, num_values, dtype, **fields) -> TokenStoreInfo:
  """Writes tables and manifest, makes them durable and gives the folder its name."""
  _save_array(temporary / 'documents.npy', table)
  _save_array(temporary / 'spans.npy', spans)
  (temporary / 'tokens.sha256').write_bytes(block_digests(temporary / 'tokens.bin'))
  for name in _FILES:
    with open(temporary / name, 'rb') as file:
      os.fsync(file.fileno())
  info = TokenStoreInfo(
    path=path, documents=len(table), tokens=int(table[-1, 0]) if len(table) else 0,
    words=int(table[:, 1].sum()), num_bytes=int(table[:, 2].sum()), dtype=dtype.name,
    matches=len(spans), repeated=len(table) - len(np.unique(table[:, 4])),
    value_counts=tuple(np.bincount(spans[:, 2], minlength=num_values).tolist()),
    files=describe_files(temporary, _FILES), **fields)
  values = dataclasses.asdict(info)
  del values['path']
  write_sealed_json(temporary / MANIFEST, values | {'format': _FORMAT})
  if path.exists():
    shutil.rmtree(path)
  os.replace(temporary, path)
  return info


def _save_array(path: pathlib.Path, array: np.ndarray) -> None:
  """`numpy.save`, whose own way to files does not say why one could not be written."""
  with path.open('wb') as file:
    np.save(types.SimpleNamespace(write=file.write), array, allow_pickle=False)
