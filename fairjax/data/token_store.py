"""Token stores: the tokens of a split in one flat file, with what is known of its documents.

A store is a folder:

    tokens.bin      all documents one after the other, each ended by eos; uint16 or uint32
    tokens.sha256   digests of its blocks, see `fairjax.data.verified_tokens`
    documents.npy   [documents, 5] int64: end (in tokens), words, UTF-8 bytes, number in the source,
                    digest of the tokens (equal documents have equal ones)
    spans.npy       [matches, 3] int64: matches of the attribute's sensitive tokens: first token,
                    token after the last, value index
    manifest.json   what `TokenStoreInfo` holds
    COMPLETE        see `fairjax.data.manifest`; written last

`fairjax.data.rows` cuts it into the rows of training batches.
"""

import array
import dataclasses
import hashlib
import os
import pathlib
import shutil
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fairjax.counterfactual import TokenMatcher
from fairjax.data.chunks import EncodedChunks, token_dtype
from fairjax.data.manifest import (
  check_sizes,
  describe_files,
  is_complete,
  read_checked,
  read_manifest,
  write_manifest,
)
from fairjax.data.verified_tokens import VerifiedTokens, block_digests
from fairjax.errors import UserError
from fairjax.vocabulary import Encoder

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
  write_manifest(temporary, values | {'format': _FORMAT})
  if path.exists():
    shutil.rmtree(path)
  os.replace(temporary, path)
  return info


def _save_array(path: pathlib.Path, array: np.ndarray) -> None:
  """`numpy.save`, whose own way to files does not say why one could not be written."""
  with path.open('wb') as file:
    np.save(types.SimpleNamespace(write=file.write), array, allow_pickle=False)
