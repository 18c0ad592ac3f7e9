"""The kinds of vocabularies, and how one is read from its folder."""

import abc
import functools
import hashlib
import itertools
import json
import os
import pathlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError, unknown_name
from fairjax.vocabulary.encoder import MANIFEST, Encoder
from fairjax.vocabulary.wikitext import document_words, natural_text, words_of

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2

# Appended to a serialised SentencePiece model it sets normalizer_spec.add_dummy_prefix (field 3 of
# field 3) to false: protocol buffers merge a repeated submessage into the earlier one.
_NO_DUMMY_PREFIX = b'\x1a\x02\x18\x00'
_SPACE = '\u2581'
_STEPS = 256  # of a score, to 1
_KEPT_WORDS = 1 << 17  # words whose ids are kept
SPECIAL_WORDS = ('<pad>', '<eos>', '<unk>')


class Vocabulary(Encoder):
  """Text to ids and back; ids are Python ints in `[0, size)`.

  Attributes:
    kind: 'sentencepiece' or 'word'.
    size: number of ids, special ones included.
    pad_id: 0.
    eos_id: 1, the end of a document; of a list of words the end of each of its lines.
    unk_id: 2.
    start_ids: what a text to be continued begins with, (1,).
    fingerprint: SHA-256 (hex) of the model file or word list.
    info: what the vocabulary was trained on (counts; empty when not known).
  """

  pad_id, eos_id, unk_id = PAD_ID, EOS_ID, UNK_ID
  start_ids: tuple[int, ...] = (EOS_ID,)

  def encode(self, text: str) -> list[int]:
    """Ids of `text`, without an end-of-document id."""
    return self._encode(text)

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each document, as its corpus writes it, on one core; mostly `encode`."""
    return [self._encode(text) for text in texts]

  def natural(self, text: str) -> str:
    """Text of the corpus as people write it, for scorers: the same, but for WikiText by words."""
    return text

  def decode(self, ids: Sequence[Any] | np.ndarray) -> str:
    """Text of `ids`; nothing stops it and pad adds nothing.

    Of pieces eos adds nothing either; of words it is a line end, unless the text begins or ends
    there.

    Raises:
      ValueError: an id outside [0, size).
    """
    ids = [int(i) for i in ids if i != PAD_ID]
    if ids and not 0 <= min(ids) <= max(ids) < self.size:
      raise ValueError(f'ids must be in [0, {self.size}), not from {min(ids)} to {max(ids)}')
    return self._decode(ids)

  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids of `text` and the characters that each of them covers.

    Args:
      text: any text.

    Returns:
      The ids of `encode(text)`, and for each a pair (start, end) of character offsets into `text`,
      end exclusive, not decreasing. A SentencePiece id covers the space before its word (the one
      that SentencePiece puts before the text covers nothing), and of the bytes of one character
      the last covers it; a word covers itself only.
    """
    return self._encode_with_offsets(text)

  def encode_as_continuation(self, text: str, after: str) -> list[int]:
    """Ids that `text` has when it follows `after`, with a border between the two.

    Args:
      text: the text to encode.
      after: the text before it. Empty: the beginning of a document. With SentencePiece a space at
        its end belongs to the first piece of `text`: encode `after` without it.

    Returns:
      Ids; with SentencePiece `decode(encode(after) + ids) == after + text` (without such a space).
    """
    return self._encode_as_continuation(text, after)

  @functools.cached_property
  def surfaces(self) -> list[bytes]:
    """UTF-8 bytes that each id adds to a text, with its leading space; pad and eos add none."""
    return self._surfaces()

  def _described(self) -> dict[str, Any]:
    return {'pad_id': self.pad_id, 'eos_id': self.eos_id, 'unk_id': self.unk_id}

  @abc.abstractmethod
  def _encode(self, text: str) -> list[int]:
    """Ids of a text."""

  @abc.abstractmethod
  def _decode(self, ids: list[int]) -> str:
    """Text of ids that hold no pad."""

  @abc.abstractmethod
  def _encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids and character offsets."""

  @abc.abstractmethod
  def _encode_as_continuation(self, text: str, after: str) -> list[int]:
    """Ids of a text behind another."""

  @abc.abstractmethod
  def _surfaces(self) -> list[bytes]:
    """Bytes of each id."""


class SentencePieceVocabulary(Vocabulary):
  """A SentencePiece model with pad 0, eos 1, unk 2.

  Every word is cut on its own: its ids depend on it and on nothing before it. SentencePiece adds up
  float32 scores from the beginning of a text, so that in a long one rounding decides between two
  cuts of a word, each version of the library in its own way. The scores are multiples of 1/256 for
  the same reason: sums below 65,536, some 6,000 pieces without a space, are exact in any order.

  Attributes:
    model: the serialised model with such scores.
  """

  kind, filename = 'sentencepiece', 'spiece.model'

  def _load(self, content):
    import sentencepiece

    p = sentencepiece.SentencePieceProcessor(model_proto=content)
    if any(p.get_score(i) * _STEPS % 1 for i in range(p.vocab_size())):
      content = round_scores(content)
      p = sentencepiece.SentencePieceProcessor(model_proto=content)
    self.model, self._processor = content, p
    self._bare_processor = sentencepiece.SentencePieceProcessor(
      model_proto=content + _NO_DUMMY_PREFIX)
    if (p.pad_id(), p.eos_id(), p.unk_id()) != (PAD_ID, EOS_ID, UNK_ID):
      raise UserError('the SentencePiece model must have pad_id=0, eos_id=1, unk_id=2, not '
                      f'{p.pad_id()}, {p.eos_id()}, {p.unk_id()}')
    self._words = _Words(p.encode)
    self._words[''] = self._bare_processor.encode(' ')  # between two spaces
    return p.vocab_size()

  def _encode(self, text: str) -> list[int]:
    if not text:
      return []
    return list(itertools.chain.from_iterable(map(self._words.__getitem__, text.split(' '))))

  def _decode(self, ids: list[int]) -> str:
    return self._processor.decode([i for i in ids if i != EOS_ID])

  def _encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    ids, offsets, position = [], [], 0
    for word in text.split(' ') if text else ():
      found = self._processor.encode(word, return_type='offset_mapping') if word else {
        'ids': self._words[''], 'offsets': [(0, 0)] * len(self._words[''])}
      ids += found['ids']
      spans = [(position + int(a), position + int(b)) for a, b in found['offsets']]
      if spans and position:  # the space before the word
        spans[0] = position - 1, spans[0][1]
      offsets += spans
      position += len(word) + 1
    return ids, offsets

  def _encode_as_continuation(self, text: str, after: str) -> list[int]:
    if not after or after.endswith(' '):
      return self.encode(text)
    first, space, rest = text.partition(' ')
    return self._bare_processor.encode(first) + (self.encode(rest) or self._words['']
                                                 if space else [])

  def _surfaces(self) -> list[bytes]:
    p, surfaces = self._processor, []
    for i in range(self.size):
      piece = p.id_to_piece(i)
      if p.is_control(i):
        surfaces.append(b'')
      elif p.is_byte(i):
        surfaces.append(bytes([int(piece[1:-1], 16)]))  # '<0x41>'
      else:
        text = ' \u2047 ' if p.is_unknown(i) else piece.replace(_SPACE, ' ')
        surfaces.append(text.encode('utf-8'))
    return surfaces


class _Words(dict):
  """Word -> its ids; kept for the words that come first, which are most of any text."""

  def __init__(self, encode: Callable[[str], list[int]]):
    super().__init__()
    self._encode = encode

  def __missing__(self, word: str) -> list[int]:
    ids = self._encode(word)
    if len(self) < _KEPT_WORDS:
      self[word] = ids
    return ids


def round_scores(model: bytes) -> bytes:
  """A serialised SentencePiece model whose scores are multiples of 1/256.

  Its messages are walked by hand: the class that `sentencepiece` brings for them refuses every
  protobuf older than its own, e.g. that of Colab.
  """
  content = bytearray(model)
  for start, stop in _fields(content, 0, len(content), 1):  # ModelProto.pieces
    for place, _ in _fields(content, start, stop, 2):  # SentencePiece.score
      (score,) = struct.unpack_from('<f', content, place)
      struct.pack_into('<f', content, place, round(score * _STEPS) / _STEPS)
  return bytes(content)


def _fields(content: bytes, start: int, stop: int, number: int) -> Iterator[tuple[int, int]]:
  """Where the values of a field lie in a serialised protocol buffer."""
  def varint(place):
    value = shift = 0
    while True:
      value |= (content[place] & 0x7f) << shift
      place, shift = place + 1, shift + 7
      if content[place - 1] < 0x80:
        return value, place

  while start < stop:
    key, start = varint(start)
    if key & 7 == 2:
      size, start = varint(start)
      end = start + size
    else:
      end = varint(start)[1] if key & 7 == 0 else start + (8 if key & 7 == 1 else 4)
    if key >> 3 == number:
      yield start, end
    start = end


class WordVocabulary(Vocabulary):
  """A list of words, which texts are cut into as WikiText is (`fairjax.vocabulary.wikitext`).

  Every line ends with eos; that of the last line is the end of the document, which whoever writes
  documents adds. `encode` takes natural text; `encode_batch` takes documents as the corpus has
  them, which for WikiText are words already.

  Attributes:
    words: all, in the order of their ids.
    documents: 'text', or 'wikitext': what documents of the corpus are split at white space only.
  """

  kind, filename = 'word', 'words.txt'

  @property
  def documents(self) -> str:
    """How documents are written: 'text' or 'wikitext'."""
    return self.info.get('documents', 'text')

  def reading(self, documents: str) -> 'WordVocabulary':
    """The same words for documents of another form."""
    return WordVocabulary(self._content, self.info | {'documents': documents})

  def knows(self, word: str) -> bool:
    """Whether a word has an id of its own."""
    return word in self._ids

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each document, as its corpus writes it."""
    cut = document_words(self.documents)
    return [self._lines(text, cut) for text in texts]

  def natural(self, text: str) -> str:
    """Text of the corpus as people write it, for scorers."""
    if self.documents == 'text':
      return text
    return '\n'.join(natural_text(line.split()) for line in text.split('\n'))

  def _lines(self, text: str, cut: Callable[[str], list[str]]) -> list[int]:
    """Ids of the lines of a text, with eos between them."""
    get, ids = self._ids.get, []
    for line in text.split('\n'):
      ids += [get(word, UNK_ID) for word in cut(line)]
      ids.append(EOS_ID)
    return ids[:-1]

  def _load(self, content):
    # split('\n'), not splitlines(): the latter also cuts at characters inside a line.
    self.words = content.decode('utf-8').removesuffix('\n').split('\n')
    if tuple(self.words[:3]) != SPECIAL_WORDS:
      raise UserError(f'words.txt must begin with the lines {", ".join(SPECIAL_WORDS)}')
    for number, word in enumerate(self.words, 1):
      if word.split() != [word]:
        raise UserError(f'words.txt:{number}: {word!r} is not one word without white space')
    # A text that holds '<pad>' or '<eos>' must not produce those ids.
    self._ids = {w: i for i, w in enumerate(self.words) if i > UNK_ID}
    if len(self._ids) != len(self.words) - 3:
      raise UserError('words.txt holds a word twice: each line must be another word')
    return len(self.words)

  def _encode(self, text: str) -> list[int]:
    return self._lines(text, document_words('text'))

  def _decode(self, ids: list[int]) -> str:
    return natural_text('\n' if i == EOS_ID else self.words[i] for i in ids).strip('\n')

  def _encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    ids, offsets, start = [], [], 0
    for line in text.split('\n'):
      if start:
        ids.append(EOS_ID)
        offsets.append((start - 1, start))
      words = words_of(line)
      ids += [self._ids.get(word.text, UNK_ID) for word in words]
      offsets += [(start + word.start, start + word.end) for word in words]
      start += len(line) + 1
    return ids, offsets

  def _encode_as_continuation(self, text: str, after: str) -> list[int]:
    return self.encode(text)

  def _surfaces(self) -> list[bytes]:
    return [b'', b''] + [(' ' + w).encode('utf-8') for w in self.words[2:]]


_KINDS = {c.kind: c for c in (SentencePieceVocabulary, WordVocabulary)}


def load_vocabulary(
  directory: str | os.PathLike, kinds: Mapping[str, type[Encoder]] = _KINDS) -> Any:
  """Reads a vocabulary folder and checks it against its fingerprint.

  Args:
    directory: folder that `Encoder.save` wrote.
    kinds: name -> class of what may lie there: a `Vocabulary`, unless others are given.

  Raises:
    UserError: a file is missing, cannot be read, or is not the one that was saved.
  """
  directory = pathlib.Path(directory)
  path = directory / MANIFEST
  if not path.is_file():
    raise UserError(f'no vocabulary in {directory}: {MANIFEST} is missing (make one: fairjax data)')
  try:
    manifest = json.loads(path.read_text(encoding='utf-8'))
    kind, fingerprint, size = (manifest[k] for k in ('kind', 'fingerprint', 'size'))
  except (ValueError, KeyError, TypeError) as e:
    raise UserError(f'{path} is damaged ({e}): make the vocabulary again') from None
  if str(kind) not in kinds:
    raise unknown_name('vocabulary kind', str(kind), kinds, where=str(path))
  file = directory / kinds[kind].filename
  if not file.is_file():
    raise UserError(f'{file} is missing: make the vocabulary again')
  content = file.read_bytes()
  found = hashlib.sha256(content).hexdigest()
  if found != fingerprint:
    raise UserError(f'{file} has fingerprint {found[:8]}, but {path} names '
                    f'{str(fingerprint)[:8]}: restore the file or make the vocabulary again')
  try:
    vocabulary = kinds[kind](content, manifest.get('info'))
  except (RuntimeError, UnicodeDecodeError, UserError) as e:
    raise UserError(f'{file} cannot be used: {e}') from None
  if vocabulary.size != size:
    raise UserError(f'{file} holds {vocabulary.size} ids, but {path} names {size}')
  return vocabulary
