"""What encodes the documents of a token store: a name, a fingerprint, a folder, ids."""

import abc
import hashlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.files import atomic_write, write_json

MANIFEST = 'vocabulary.json'


class Encoder(abc.ABC):
  """Text to ids; ids are Python ints in `[0, size)`.

  Attributes:
    kind: name in its folder, e.g. 'sentencepiece', 'word' or 'pieces'.
    filename: of the file that holds it.
    size: number of ids, special ones included.
    eos_id: the end of a document.
    fingerprint: SHA-256 (hex) of the file.
    info: what it was trained on (counts; empty when not known).
  """

  kind: str
  filename: str
  eos_id: int

  def __init__(self, content: bytes, info: Mapping[str, Any] | None = None):
    self._content = content
    self.fingerprint = hashlib.sha256(content).hexdigest()
    self.info = dict(info or {})
    self.size = self._load(content)

  @abc.abstractmethod
  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text, without an end-of-document id."""

  @abc.abstractmethod
  def _load(self, content: bytes) -> int:
    """Parses the file; returns the number of ids."""

  def _described(self) -> dict[str, Any]:
    """What the folder says of it besides kind, size and fingerprint."""
    return {}

  def save(self, directory: str | os.PathLike) -> None:
    """Writes the folder that is loaded again; each file appears whole or not at all."""
    directory = pathlib.Path(directory)
    with atomic_write(directory / self.filename) as file:
      file.write(self._content)
    write_json(directory / MANIFEST, {
      'kind': self.kind, 'size': self.size, 'fingerprint': self.fingerprint, 'file': self.filename,
      **self._described(), 'info': self.info})

  def __eq__(self, other: object) -> bool:
    return (isinstance(other, Encoder)
            and (self.kind, self.fingerprint) == (other.kind, other.fingerprint))

  def __hash__(self) -> int:
    return hash((self.kind, self.fingerprint))

  def __repr__(self) -> str:
    return f'{type(self).__name__}(size={self.size}, fingerprint={self.fingerprint[:8]})'
