"""Token stores: the tokens of a split in one flat file, and rows of it by arithmetic.

A store is a folder:

    tokens.bin      all documents one after the other, each ended by eos; uint16 or uint32
    documents.npy   [documents, 4] int64: end (in tokens), words, UTF-8 bytes, number in the source
    spans.npy       [matches, 3] int64: matches of the attribute's sensitive tokens: first token,
                    token after the last, value index
    manifest.json   what `TokenStoreInfo` holds; written last, so that a folder with it is complete

Rows for Transformer-XL: row r of B is a contiguous part of the stream, and step t reads its t-th
segment of T tokens, so that the memory of a row always belongs to the text before. The position in
the data is a function of the step alone: continuing costs nothing and any number of hosts that
divides B reads the same global batch.

Letters: B rows of the global batch, b rows of this host, T segment length.
"""

import array
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from fairjax.counterfactual import TokenMatcher
from fairjax.data.chunks import EncodedChunks, token_dtype
from fairjax.errors import UserError
from fairjax.files import write_json

MANIFEST = 'manifest.json'
_FORMAT = 1
_MATCH_BLOCK = 1 << 27
# Keeps the order of the documents apart from other random numbers of the same seed.
_ORDER_PURPOSE = 0x0D0C5


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
    unaligned: matches in the text that begin or end inside a token; they have no span.
    order_seed: seed of the documents' order; None for the order of the source.
    sha256: of tokens.bin.
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
  sha256: str

  def open_tokens(self) -> np.ndarray:
    """`[tokens]` memory map of `dtype`."""
    if not self.tokens:  # an empty file cannot be mapped
      return np.zeros(0, self.dtype)
    return np.memmap(self.path / 'tokens.bin', dtype=self.dtype, mode='r')

  def open_documents(self) -> np.ndarray:
    """`[documents, 4]` int64: end, words, bytes, number in the source."""
    return np.load(self.path / 'documents.npy', allow_pickle=False)

  def open_spans(self) -> np.ndarray:
    """`[matches, 3]` int64: first token, token after the last, value index; in order."""
    return np.load(self.path / 'spans.npy', allow_pickle=False)


def write_token_store(
  path: str | os.PathLike, documents: Iterable[TokenizedDocument] | EncodedChunks, *, split: str,
  matcher: TokenMatcher, order_seed: int | None = None,
) -> TokenStoreInfo:
  """Writes a store; the folder appears when it is complete.

  A seeded order is made from the documents on the disk, so that the corpus need not fit into
  memory: only its table does (32 bytes a document).

  Args:
    path: folder to write; one that exists is replaced.
    documents: read once and written as they come; or chunks that lie on the disk.
    split: name kept in the manifest.
    matcher: finds the sensitive tokens; names attribute and vocabulary.
    order_seed: seed of a random order of the documents, or None to keep theirs.
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
    temporary, path, table=table, spans=spans, split=split, dtype=dtype, unaligned=unaligned,
    order_seed=order_seed, vocabulary=vocabulary.fingerprint,
    attribute=matcher.attribute.fingerprint, num_values=len(matcher.attribute.values))


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
    attribute=source.attribute, num_values=len(source.value_counts))


def open_token_store(
  path: str | os.PathLike, *, vocabulary: str | None = None, attribute: str | None = None,
  verify: bool = False,
) -> TokenStoreInfo:
  """Opens a store and checks that it is complete and of the right vocabulary and attribute.

  Args:
    path: its folder.
    vocabulary: fingerprint that it must have.
    attribute: fingerprint that it must have.
    verify: also compare the SHA-256 of the tokens (reads the whole file).

  Raises:
    UserError: the store is missing, incomplete, damaged, or of another vocabulary or attribute.
  """
  path = pathlib.Path(path)
  again = 'delete the folder and run fairjax data again'
  if not (path / MANIFEST).is_file():
    raise UserError(f'no complete token store in {path}: {again}')
  try:
    manifest = json.loads((path / MANIFEST).read_text(encoding='utf-8'))
    if manifest.pop('format') != _FORMAT:
      raise UserError(f'{path} was written by another version of fairjax: {again}')
    info = TokenStoreInfo(
      path=path, value_counts=tuple(manifest.pop('value_counts')), **manifest)
    sizes = {'tokens.bin': info.tokens * np.dtype(info.dtype).itemsize}
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    if isinstance(e, UserError):
      raise
    raise UserError(f'{path / MANIFEST} is damaged ({e}): {again}') from None
  for name, size in sizes.items():
    found = (path / name).stat().st_size if (path / name).is_file() else None
    if found != size:
      raise UserError(f'{path / name} has {found} bytes instead of {size}: {again}')
  for kind, expected in (('vocabulary', vocabulary), ('attribute', attribute)):
    if expected is not None and getattr(info, kind) != expected:
      raise UserError(f'{path} was made with another {kind} ({getattr(info, kind)[:8]}, not '
                      f'{expected[:8]}): {again}')
  try:
    right = (len(info.open_documents()) == info.documents
             and len(info.open_spans()) == info.matches)
  except (OSError, ValueError, EOFError) as e:
    raise UserError(f'{path} is damaged ({e}): {again}') from None
  if not right or verify and _sha256(path / 'tokens.bin') != info.sha256:
    raise UserError(f'{path} is damaged: its content does not agree with its manifest: {again}')
  return info


class TokenRows:
  """Reads the rows of training batches from a token stream, by arithmetic.

  With S = (n - 1) // (B T) steps in an epoch, row r reads n' = S T inputs from token r n' on; the
  target of an input is the next token. The fewer than B T tokens behind the last row are left
  out (`dropped_tokens`). Every epoch reads the same rows again.

  Attributes:
    steps_per_epoch: S.
    dropped_tokens: tokens that are no target in an epoch (the first of the stream apart).
  """

  def __init__(
    self, tokens: np.ndarray, spans: np.ndarray | None = None, *, batch_size: int,
    segment_len: int, shard: tuple[int, int] = (0, 1), name: str = 'the token stream',
  ):
    """Lays out the rows.

    Args:
      tokens: `[n]` integers, may be a memory map.
      spans: `[m, 3]` matches in order, or None.
      batch_size: B.
      segment_len: T.
      shard: (index, count) of this host; it reads rows index b to (index + 1) b, b = B / count.
      name: what an error calls the stream.

    Raises:
      UserError: fewer than B T + 1 tokens.
      ValueError: the number of hosts does not divide B.
    """
    index, count = shard
    if batch_size % count or not 0 <= index < count:
      raise ValueError(f'shard {index} of {count} is impossible for {batch_size} rows')
    self.tokens, self.batch_size, self.segment_len = tokens, batch_size, segment_len
    self.steps_per_epoch = (len(tokens) - 1) // (batch_size * segment_len)
    if self.steps_per_epoch < 1:
      raise UserError(
        f'{name} holds {len(tokens)} tokens, too few for one batch of {batch_size} rows of '
        f'{segment_len}: lower batch_size or model.segment_len, or use more text')
    self.dropped_tokens = len(tokens) - 1 - self.steps_per_epoch * batch_size * segment_len
    rows = batch_size // count
    self.rows = np.arange(index * rows, (index + 1) * rows)
    self._row_len = self.steps_per_epoch * segment_len
    spans = np.zeros((0, 3), np.int64) if spans is None else np.asarray(spans)
    self._starts, self._ends = np.ascontiguousarray(spans[:, 0]), np.ascontiguousarray(spans[:, 1])
    self._spans = spans

  def read(self, step: int) -> dict[str, np.ndarray]:
    """The rows of this host at a step.

    Returns:
      inputs: `[b, T]` int32.
      targets: `[b, T]` int32, the token after each input.
      reset: `[b]` bool, True at the first step of an epoch: the memory is of other text.
    """
    segment = step % self.steps_per_epoch
    starts = self.rows * self._row_len + segment * self.segment_len
    block = np.empty((len(starts), self.segment_len + 1), np.int32)
    for i, start in enumerate(starts.tolist()):
      block[i] = self.tokens[start:start + self.segment_len + 1]
    return {'inputs': block[:, :-1], 'targets': block[:, 1:],
            'reset': np.full(len(starts), segment == 0)}

  def spans(self, step: int) -> list[np.ndarray]:
    """Matches that lie in the inputs of the segments of a step or reach into them.

    Returns:
      For each row of this host `[k, 3]` int32: first position, position after the last, value
      index; relative to the segment, so below 0 or above T where its border cuts a match.
    """
    starts = self.rows * self._row_len + step % self.steps_per_epoch * self.segment_len
    first = np.searchsorted(self._ends, starts, side='right')
    last = np.searchsorted(self._starts, starts + self.segment_len, side='left')
    found = [self._spans[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    offset = np.zeros((len(starts), 3), np.int64)
    offset[:, :2] = starts[:, None]
    return [(f - o).astype(np.int32) for f, o in zip(found, offset, strict=True)]

  def describe(self, step: int) -> str:
    """Words that find a batch again, e.g. 'epoch 0, segment 3 of 120'."""
    epoch, segment = divmod(step, self.steps_per_epoch)
    return f'epoch {epoch}, segment {segment} of {self.steps_per_epoch}'


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
  tokens: np.ndarray | EncodedChunks, table: np.ndarray, order: np.ndarray, path: pathlib.Path,
) -> np.ndarray:
  """Writes chosen documents in a given order; returns their table."""
  starts = np.concatenate([[0], table[:-1, 0]]) if len(table) else np.zeros(0, np.int64)
  new = table[order]
  with open(path, 'wb', buffering=1 << 20) as file:
    for start, end in zip(starts[order].tolist(), new[:, 0].tolist(), strict=True):
      file.write(tokens[start:end].tobytes())
  new[:, 0] = np.cumsum(new[:, 0] - starts[order])
  return new


def _blocks(ends: np.ndarray) -> Iterator[tuple[int, int]]:
  """Borders of runs of whole documents of about `_MATCH_BLOCK` tokens."""
  start = document = 0
  while document < len(ends):
    document = max(document + 1, int(np.searchsorted(ends, start + _MATCH_BLOCK, side='right')))
    end = int(ends[document - 1])
    yield start, end
    start = end


def _find_spans(
  tokens: np.ndarray, ends: np.ndarray, matcher: TokenMatcher) -> tuple[np.ndarray, int]:
  """All matches as int64, and how many are not aligned with tokens."""
  parts, unaligned = [np.zeros((0, 3), np.int64)], 0
  for start, end in _blocks(ends):
    found, left_out = matcher.find(tokens[start:end])
    parts.append(found + np.array([start, start, 0], np.int64))
    unaligned += left_out
  return np.concatenate(parts), unaligned


def _finish(temporary, path, *, table, spans, num_values, dtype, **fields) -> TokenStoreInfo:
  """Writes tables and manifest, makes them durable and gives the folder its name."""
  np.save(temporary / 'documents.npy', table, allow_pickle=False)
  np.save(temporary / 'spans.npy', spans, allow_pickle=False)
  for name in ('tokens.bin', 'documents.npy', 'spans.npy'):
    with open(temporary / name, 'rb') as file:
      os.fsync(file.fileno())
  info = TokenStoreInfo(
    path=path, documents=len(table), tokens=int(table[-1, 0]) if len(table) else 0,
    words=int(table[:, 1].sum()), num_bytes=int(table[:, 2].sum()), dtype=dtype.name,
    matches=len(spans), sha256=_sha256(temporary / 'tokens.bin'),
    value_counts=tuple(np.bincount(spans[:, 2], minlength=num_values).tolist()), **fields)
  values = dataclasses.asdict(info)
  del values['path']
  write_json(temporary / MANIFEST, values | {'format': _FORMAT})
  if path.exists():
    shutil.rmtree(path)
  os.replace(temporary, path)
  return info


def _sha256(path: pathlib.Path) -> str:
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
