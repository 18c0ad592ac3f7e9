"""Tokens on the disk that are compared with their digests when they are first read.

Beside `tokens.bin` lies `tokens.sha256`: the SHA-256 (32 bytes) of each MiB of it. A store of a
terabyte has 32 MiB of digests, and a process hashes what it reads, once.
"""

import hashlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fairjax.errors import UserError

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
