"""Word embeddings of word2vec and GloVe: only the wanted words, whatever the size of the file.

Three forms are told apart by their content, each plain or compressed:

- word2vec binary: a line `COUNT WIDTH`, then the word, a space and WIDTH little-endian float32;
- word2vec text (also fastText's `.vec`): the same first line, then lines of a word and numbers;
- GloVe text: as above without the first line; the first word's line decides the width.

Every row is looked at for its width; the numbers of words that nobody asked for are not read.
"""

import dataclasses
import hashlib
import itertools
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO

import numpy as np

from fairjax.counterfactual.word_forms import normal_form
from fairjax.errors import UserError, unknown_name
from fairjax.inputs import open_input
from fairjax.progress import Progress

MULTI_WORD = ('skip', 'head')
_MOST_WORD_BYTES = 1000
_MOST_LINE_BYTES = 1 << 22
_MOST_WIDTH = 1 << 16
_HEADER = re.compile(rb'(\d{1,12}) (\d{1,12})[ \t\r]*\n')
_NUMBER_BEGINS = frozenset(b'+-.0123456789nNiI')


@dataclasses.dataclass(frozen=True)
class WordVectors:
  """Vectors of the wanted words that a file has.

  Attributes:
    spelled: word as asked -> word of the file, of those that were found.
    missing: words as asked that the file has not (out of vocabulary, OOV).
    rows: word of the file -> its row in `units`.
    units: `[N, D]` float64, vectors divided by their length.
    format: 'word2vec binary', 'word2vec text' or 'GloVe text'.
    words_in_file: number of words of the file.
    fingerprint: SHA-256 (hex) of the words that were kept and their numbers.
    path: of the file.
  """

  spelled: Mapping[str, str]
  missing: tuple[str, ...]
  rows: Mapping[str, int]
  units: np.ndarray
  format: str
  words_in_file: int
  fingerprint: str
  path: str

  def __contains__(self, word: str) -> bool:
    return word in self.spelled

  def unit(self, word: str) -> np.ndarray:
    """`[D]` float64 of length 1, of a word as it was asked for."""
    return self.units[self.rows[self.spelled[word]]]

  @property
  def respelled(self) -> dict[str, str]:
    """Words that were found under another spelling."""
    return {asked: found for asked, found in self.spelled.items() if asked != found}


def spellings(word: str, multi_word: str = 'skip') -> list[str]:
  """Under which names a word is looked up, in order; the first that the file has is taken.

  As given; with underscores for spaces and hyphens, as word2vec joins phrases; all of it in lower
  case. A word of several words that is none of these is out of vocabulary, unless 'head' takes its
  last word.

  Raises:
    UserError: another policy.

  >>> spellings('Police officer', 'head')
  ['Police officer', 'Police_officer', 'police officer', 'police_officer', 'officer']
  """
  if multi_word not in MULTI_WORD:
    raise unknown_name('policy for words of several words', multi_word, MULTI_WORD)
  plain = normal_form(word)
  joined = re.sub(r'[ -]', '_', plain)
  names = [word, plain, joined, plain.lower(), joined.lower()]
  if multi_word == 'head' and '_' in joined.strip('_'):
    names.append(joined.strip('_').lower().rpartition('_')[2])
  return list(dict.fromkeys(names))


def load_word_vectors(
  path: str | os.PathLike, words: Iterable[str], *, multi_word: str = 'skip',
  log: Callable[[str], None] | None = None,
) -> WordVectors:
  """Reads the vectors of some words; memory is that of these words, whatever the file's size.

  Args:
    path: word2vec binary or text, or GloVe text, plain or compressed.
    words: what is wanted.
    multi_word: 'skip' or 'head', see `spellings`.
    log: gets lines of progress.

  Raises:
    UserError: no such file, a truncated or damaged one, a row of another width, a wanted word twice
      or with numbers that are not finite or all 0; with file and line (text) or byte (binary).
  """
  path, asked = pathlib.Path(path), list(dict.fromkeys(words))
  names = {word: spellings(word, multi_word) for word in asked}
  wanted = {name.encode('utf-8') for found in names.values() for name in found}
  kept: dict[bytes, np.ndarray] = {}
  kind, count, width = _sniff(path)
  read = _read_binary if kind == 'word2vec binary' else _read_text
  rows = 0
  with open_input(path) as file, Progress('reading embeddings', count, unit='words',
                                          log=log) as progress:
    for where, word, numbers in read(file, path, count, width, wanted):
      rows += 1
      progress.add()
      if word is not None and numbers is not None:
        if word in kept:
          raise UserError(f"{where}: the word '{_shown(word)}' occurs twice: remove one")
        kept[word] = _checked(numbers, word, where)
  if count is not None and rows != count:
    raise UserError(f'{path}: its first line promises {count} words, it holds {rows}: copy it '
                    'again, or mend the first line')
  return _collect(path, names, kept, kind, rows, width)


def _collect(path, names, kept, kind, rows, width) -> WordVectors:
  """Chooses a spelling for each word and normalises."""
  spelled = {}
  for word, found in names.items():
    name = next((n for n in found if n.encode('utf-8') in kept), None)
    if name is not None:
      spelled[word] = name
  order = list(dict.fromkeys(spelled.values()))
  vectors = np.array([kept[n.encode('utf-8')] for n in order], np.float64).reshape(-1, width)
  digest = hashlib.sha256()
  for name, vector in zip(order, vectors, strict=True):
    digest.update(name.encode('utf-8') + b'\0' + vector.tobytes())
  return WordVectors(
    spelled=spelled, missing=tuple(w for w in names if w not in spelled),
    rows={name: i for i, name in enumerate(order)},
    units=vectors / np.linalg.norm(vectors, axis=1, keepdims=True), format=kind,
    words_in_file=rows, fingerprint=digest.hexdigest(), path=str(path))


def _sniff(path: pathlib.Path) -> tuple[str, int | None, int]:
  """(format, number of words if the file says it, width)."""
  with open_input(path, what='embeddings') as file:
    line = file.readline(_MOST_LINE_BYTES)
    header = _HEADER.fullmatch(line)
    if not header:
      # From the right, as the first token may hold spaces too; a token may be a number itself.
      fields = line.rstrip(b' \r\n').split(b' ')
      numbers = itertools.takewhile(_is_number, reversed(fields))
      width = min(sum(1 for _ in numbers), len(fields) - 1)
      if not line.endswith(b'\n') or not 1 <= width <= _MOST_WIDTH:
        raise UserError(f'{path}:1: neither "COUNT WIDTH" (word2vec) nor a word and its numbers '
                        '(GloVe), ended by a line feed')
      return 'GloVe text', None, width
    count, width = int(header[1]), int(header[2])
    if not count or not 1 <= width <= _MOST_WIDTH:
      raise UserError(f'{path}:1: {count} words of width {width}: at least one word is needed, and '
                      f'a width from 1 to {_MOST_WIDTH}')
    begin = file.read(_MOST_WORD_BYTES + 4 * width)
  numbers = begin[begin.find(b' ') + 1:][:max(4 * width, 16)]
  # float32 numbers are full of control characters and of bytes that are no UTF-8.
  text = not re.search(rb'[\x00-\x08\x0b\x0c\x0e-\x1f]', numbers)
  if text:
    try:
      numbers.decode('utf-8')
    except UnicodeDecodeError as e:
      text = e.start >= len(numbers) - 3  # the last character may be cut
  return ('word2vec text' if text else 'word2vec binary'), count, width


def _read_text(
  file: IO[bytes], path: pathlib.Path, count: int | None, width: int, wanted: set[bytes],
) -> Iterator[tuple[str, bytes | None, np.ndarray | None]]:
  """Yields (place, word if wanted, its numbers) of every line."""
  if count is not None:
    file.readline(_MOST_LINE_BYTES)
  number, blank = 0 if count is None else 1, 0
  while line := file.readline(_MOST_LINE_BYTES):
    number += 1
    where = f'{path}:{number}'
    if not line.strip():  # at the end, if at all
      blank = blank or number
      continue
    if blank:
      raise UserError(f'{path}:{blank}: the line is empty, but rows follow it: remove it')
    if not line.endswith(b'\n'):
      raise UserError(f'{where}: the last line does not end with a line feed, so it may be cut '
                      'off: copy the file again, or end the line')
    # From the right: words of GloVe's larger tables hold spaces, or are one that was stripped.
    word, *numbers = line.rstrip(b' \r\n').rsplit(b' ', width)
    if len(numbers) != width or not all(n and n[0] in _NUMBER_BEGINS
                                                    for n in (numbers[0], numbers[-1])) or (
        b' ' in word and _is_number(word.rpartition(b' ')[2])):
      raise UserError(f'{where}: not a word and {width} numbers, each behind one space: the line '
                      'is cut off or of another width')
    if word not in wanted:
      yield where, None, None
      continue
    try:
      yield where, word, np.array(numbers).astype(np.float32)
    except ValueError:
      raise UserError(f"{where}: '{_shown(word)}' has something that is no number") from None


def _read_binary(
  file: IO[bytes], path: pathlib.Path, count: int | None, width: int, wanted: set[bytes],
) -> Iterator[tuple[str, bytes | None, np.ndarray | None]]:
  """Yields (place, word if wanted, its numbers) of every row."""
  offset, buffer, at, need = len(file.readline(_MOST_LINE_BYTES)), b'', 0, 4 * width
  row_bytes = _MOST_WORD_BYTES + 2 + need
  for _ in range(count or 0):
    if len(buffer) - at < row_bytes:
      buffer, at = buffer[at:] + file.read(max(1 << 20, row_bytes)), 0
    if buffer[at:at + 1] == b'\n':  # some writers end each row with a line feed
      at, offset = at + 1, offset + 1
    where, end = f'{path}, byte {offset}', buffer.find(b' ', at, at + _MOST_WORD_BYTES + 1)
    if len(buffer) - at < need or end < 0 or len(buffer) - end - 1 < need:
      if len(buffer) - at >= row_bytes - 1:
        raise UserError(f'{where}: no word begins here: the rows are not of width {width}')
      raise UserError(f'{where}: the file is truncated here: copy it again')
    word = buffer[at:end]
    if word in wanted:
      yield where, word, np.frombuffer(buffer, '<f4', width, end + 1)
    else:
      yield where, None, None
    offset, at = offset + end + 1 + need - at, end + 1 + need
  if rest := (buffer[at:] + file.read(16)).strip(b'\n'):
    raise UserError(f'{path}, byte {offset}: {len(rest)} or more bytes behind the last of {count} '
                    'words: the first line says too little, or the rows are of another width')


def _checked(numbers: np.ndarray, word: bytes, where: str) -> np.ndarray:
  """The numbers of a wanted word, if they are a direction."""
  if not np.isfinite(numbers).all():
    raise UserError(f"{where}: '{_shown(word)}' has a number that is not finite: remove the row")
  if not numbers.any():
    raise UserError(f"{where}: '{_shown(word)}' has only zeros, which has no direction: remove "
                    'the row')
  return np.array(numbers, np.float32)


def _is_number(text: bytes) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True


def _shown(word: bytes) -> str:
  return word.decode('utf-8', 'replace')
