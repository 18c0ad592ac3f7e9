"""Vocabularies: SentencePiece, lists of words as in WikiText, tokenizers of published models."""

import abc
import collections
import datetime
import functools
import hashlib
import io
import itertools
import json
import os
import pathlib
import re
import struct
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.errors import UserError, unknown_name
from fairjax.files import write_file, write_json

# Words as in WikiText (Merity et al. 2016), which follows the rules of the Moses tokenizer for
# English: marks and quotes are words of their own, a hyphen between letters is `@-@`, the comma and
# the point inside a number are `@,@` and `@.@`, an apostrophe begins the rest of its word
# (`didn 't`, `O 'Neill`), and abbreviations keep their full stop (`U.S.`, `Dr.`). `words_of`
# applies these rules to natural text and `natural_text` inverts it. sacremoses 0.1.1 has neither
# `@,@` nor `@.@`, gives no offsets, and its detokenizer changes the beginning of a text when words
# are added.

# Increased with every change of the rules that changes the words of a text: data are then prepared
# again.
WORDS_VERSION = 1

_MARKS = ''.join(c for c in map(chr, range(0x3100)) if unicodedata.category(c) in ('Mn', 'Mc'))
_W = rf'(?:[^\W_]|[{_MARKS}])'  # a letter, with the marks that follow it, or a digit
_L = r'[^\W\d_]'  # a letter
_CHUNK, _NEXT = re.compile(r'\S+'), re.compile(r'\s*(\S?)')
_SUFFIXES = ("'s", "'t", "'re", "'m", "'ve", "'ll", "'d")
_KEPT = frozenset(('<unk>', '<formula>', '@-@', '@,@', '@.@', *_SUFFIXES))
_PIECE = re.compile(rf"""
    <(?:unk|eos|pad|formula)>
  | \.{{2,}}
  | (?<![^\W_.,-])(?P<number>\d+(?:[.,]\d+)+)(?!{_W})
  | (?:(?<={_L})|(?<=<unk>))'{_L}(?:(?:'(?!s(?!{_W})))?{_W})*  # also 'n'roll, as Moses
  | (?<=\d)'s(?!{_W})
  | (?:(?<={_W})|(?<=<unk>))(?P<hyphen>-)(?={_W}|<unk>)
  | (?P<word>-*(?:(?<!{_W})\.(?=\d))?(?:{_W}|`(?={_L}))(?:{_W}|[.`](?={_W})|(?<=\d),(?=\d))*
      (?:-+(?!{_W}|<unk>))?)(?P<stop>\.(?![\w.]))?
  | -+
  | .
  """, re.VERBOSE)
# A full stop after these does not end a sentence.
_ABBREVIATIONS = frozenset(
  'Adm Art Bros Brig Capt Cmdr Co Col Corp Cpl Cpt Dr Drs Ens Fr Ft Gen Gov Hon Inc Insp Jr Lt Ltd '
  'Maj Messrs Mr Mrs Ms Mt Msgr Op Ph Pres Prof Pvt Rep Reps Rev Sec Sen Sens Sfc Sgt Sr St Sts '
  'Supt Surg al cf e.g eg etc i.e ie lit ssp v var vs'.split())
_BEFORE_NUMBERS = frozenset('No Nos Nr p pp'.split())  # abbreviations where a number follows

_CLOSING = frozenset(', . ; : ! ? ) ] } % … ... ” ° ′ ″'.split())
_OPENING = frozenset('( [ { £ $ € ¥ ₹ ₱ ₤ ₩ # “ ‘ „ ¡ ¿'.split())
_INSIDE = {'@-@': '-', '@,@': ',', '@.@': '.'}
_JOINING = frozenset('/ — ⁄'.split())
_BETWEEN_NUMBERS = frozenset('– : −'.split())
_QUOTES = frozenset(('"', "'"))
_SUFFIX = re.compile(rf"'{_L}")


class Word(NamedTuple):
  """A word as WikiText writes it, for the characters [start, end) of a text."""

  text: str
  start: int
  end: int


def words_of(text: str) -> list[Word]:
  r"""Words of natural text, as WikiText would hold them; text in WikiText's form mostly stays.

  >>> ' '.join(w.text for w in words_of('"Well-known Syria," I didn\'t say; 1,000.5 U.S. men.'))
  '" Well @-@ known Syria , " I didn \'t say ; 1 @,@ 000 @.@ 5 U.S. men .'
  """
  words: list[Word] = []
  for chunk in _CHUNK.finditer(text):
    if chunk[0] in _KEPT:
      words.append(Word(chunk[0], *chunk.span()))
    else:
      words += _cut(text, *chunk.span())
  return words


def document_words(documents: str) -> Callable[[str], list[str]]:
  """Function from a line to its words: 'wikitext' has them already, 'text' is natural."""
  return str.split if documents == 'wikitext' else lambda line: [w.text for w in words_of(line)]


def natural_text(words: Iterable[str]) -> str:
  r"""Text of words in WikiText's form ('\n' is a line end): inverts `words_of` as far as possible.

  The text of the first words is the beginning of the text of more words. Spaces around dashes and
  slashes and the side of a quote are guessed.

  >>> natural_text('" I am from well @-@ known Syria , " he didn \'t say ; 1 @,@ 000 .'.split())
  '"I am from well-known Syria," he didn\'t say; 1,000.'
  """
  words = list(words)
  open_quotes: set[str] = set()
  written, glued = [], True  # glued: the next word has no space before it
  for i, word in enumerate(words):
    before = words[i - 1] if i else '\n'
    after = words[i + 1] if i + 1 < len(words) else '\n'
    left = right = False  # whether it joins the word on that side
    if word == '\n':
      left = right = True
      open_quotes.clear()
    elif word in _INSIDE or word in _JOINING:
      left = right = True
    elif word in _QUOTES:
      possessive = word == "'" and word not in open_quotes and before[-1:] in ('s', 'x', 'z')
      left = possessive or word in open_quotes
      right = not left
      if not possessive:
        open_quotes ^= {word}
    elif word == '’':
      left = before != '\n'
      right = after in ('s', 't', 'd', 'm', 're', 've', 'll')
    elif word in _BETWEEN_NUMBERS and before[-1:].isdigit():
      left, right = True, after[:1].isdigit()
    elif word in _CLOSING:
      left = True
      right = word == '°' and after in ('C', 'F', 'N', 'S', 'E', 'W')
    elif word in _OPENING:
      right = True
    elif _SUFFIX.match(word):
      left = before[-1:].isalpha() or before == '<unk>' or (
        before[-1:].isdigit() and word == "'s")
    written += ['' if glued or left else ' ', _INSIDE.get(word, word)]
    glued = right
  return ''.join(written)


def _cut(text: str, start: int, end: int) -> Iterator[Word]:
  """Words of the characters [start, end), which hold no white space."""
  for piece in _PIECE.finditer(text, start, end):
    a, b = piece.span()
    if piece['number']:
      for part in re.finditer(r'\d+|[.,]', piece[0]):
        mark = part[0] if part[0].isdigit() else f'@{part[0]}@'
        yield Word(mark, a + part.start(), a + part.end())
    elif piece['hyphen']:
      yield Word('@-@', a, b)
    elif piece['stop'] and not _is_abbreviation(piece['word'], _NEXT.match(text, b)[1]):
      yield Word(piece['word'], a, b - 1)
      yield Word('.', b - 1, b)
    else:
      yield Word(piece[0], a, b)


def _is_abbreviation(word: str, following: str) -> bool:
  """Whether the full stop after a word belongs to it; `following` is the next character, or ''."""
  if '.' in word and re.search(_L, word) or word in _ABBREVIATIONS or following.islower():
    return True
  return (len(word) == 1 and word.isupper() and word.isascii()
          or word in _BEFORE_NUMBERS and following.isdigit())


MANIFEST = 'vocabulary.json'


class Encoder(abc.ABC):
  """Text to ids, Python ints in [0, size); encodes the documents of a token store."""

  kind: str  # its name in its folder: 'sentencepiece', 'word', 'tokenizer' or 'pieces'
  filename: str
  eos_id: int  # end of a document

  def __init__(self, content: bytes, info: Mapping[str, Any] | None = None):
    self._content = content
    self.info = dict(info or {})  # counts of its training data; empty when unknown
    self.fingerprint = self.digest(content, self.info)
    self.size = self._load(content)  # number of ids, special ones included

  @staticmethod
  def digest(content: bytes, info: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of what decides the ids."""
    return hashlib.sha256(content).hexdigest()

  @abc.abstractmethod
  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text, without an end-of-document id."""

  @abc.abstractmethod
  def _load(self, content: bytes) -> int:
    """Parses the file; returns the number of ids."""

  def save(self, directory: str | os.PathLike) -> None:
    """Writes a folder for `load_vocabulary`; each file appears whole or not at all."""
    directory = pathlib.Path(directory)
    write_file(directory / self.filename, self._content)
    special = {name: getattr(self, name) for name in ('pad_id', 'eos_id', 'unk_id')
               if isinstance(self, Vocabulary)}
    write_json(directory / MANIFEST, {
      'kind': self.kind, 'size': self.size, 'fingerprint': self.fingerprint, 'file': self.filename,
      **special, 'info': self.info})

  def __eq__(self, other: object) -> bool:
    return (isinstance(other, Encoder)
            and (self.kind, self.fingerprint) == (other.kind, other.fingerprint))

  def __hash__(self) -> int:
    return hash((self.kind, self.fingerprint))

  def __repr__(self) -> str:
    return f'{type(self).__name__}(size={self.size}, fingerprint={self.fingerprint[:8]})'


PAD_ID, EOS_ID, UNK_ID = 0, 1, 2

# Appended to a serialised SentencePiece model it sets normalizer_spec.add_dummy_prefix (field 3 of
# field 3) to false: protocol buffers merge a repeated submessage into the earlier one.
_NO_DUMMY_PREFIX = b'\x1a\x02\x18\x00'
_SPACE = '\u2581'
_STEPS = 256  # scores are multiples of 1 / _STEPS
_CACHED_WORDS, _CACHED_CHARACTERS = 1 << 17, 64  # without spaces a word may be a document
SPECIAL_WORDS = ('<pad>', '<eos>', '<unk>')


class Vocabulary(Encoder):
  """Text to ids and back, of a language model."""

  pad_id, eos_id, unk_id = PAD_ID, EOS_ID, UNK_ID
  start_ids: tuple[int, ...] = (EOS_ID,)  # a text to be continued begins with them
  end_ids: tuple[int, ...] = ()  # end a text as `eos_id` does

  @abc.abstractmethod
  def encode(self, text: str) -> list[int]:
    """Ids of `text`, without an end-of-document id."""

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each document, as its corpus writes it; mostly `encode`."""
    return [self.encode(text) for text in texts]

  def natural(self, text: str) -> str:
    """Text of the corpus as people write it, for scorers; only WikiText differs."""
    return text

  def decode(self, ids: Sequence[Any] | np.ndarray) -> str:
    """Text of `ids`, also after an eos; `ValueError` for an id outside [0, size)."""
    ids = [int(i) for i in ids if i != self.pad_id]
    if ids and not 0 <= min(ids) <= max(ids) < self.size:
      raise ValueError(f'ids must be in [0, {self.size}), not from {min(ids)} to {max(ids)}')
    return self._decode(ids)

  @property
  def chat(self) -> Mapping[str, Any] | None:
    """By what prompts are asked; None: the text alone."""
    return None

  def prompt_ids(self, text: str) -> list[int]:
    """Ids that a model reads to continue `text`."""
    return [*self.start_ids, *self.encode(text)]

  @abc.abstractmethod
  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Ids of `text`, and the characters (start, end) that each covers, with the space before it."""

  @abc.abstractmethod
  def encode_as_continuation(self, text: str, after: str) -> list[int]:
    """Ids of `text` when it follows `after`; without `after` it begins a document."""
    # A space at the end of `after` belongs to the first piece: encode `after` without it.

  @property
  @abc.abstractmethod
  def surfaces(self) -> list[bytes]:
    """UTF-8 bytes that each id adds to a text, with its leading space; pad and eos add none."""

  @property
  def silent_ids(self) -> tuple[int, ...]:
    """Ids that add no text, and neither begin nor end one: a published model never draws them."""
    ends = {self.eos_id, *self.end_ids, *self.start_ids}
    return tuple(i for i, s in enumerate(self.surfaces) if not s and i not in ends)

  @abc.abstractmethod
  def _decode(self, ids: list[int]) -> str:
    """Text of ids without pad."""


class SentencePieceVocabulary(Vocabulary):
  """A SentencePiece model with pad 0, eos 1, unk 2; every word is encoded alone."""

  # SentencePiece sums float32 scores from the beginning of a text: in a long text rounding would
  # decide between two segmentations of a word, differently in each version of the library. Scores
  # are multiples of 1/256 for the same reason: sums below 65,536 are exact in any order.

  kind, filename = 'sentencepiece', 'spiece.model'

  def _load(self, content):
    import sentencepiece

    sentencepiece.set_min_log_level(2)  # it says that the normalisation is the identity
    p = sentencepiece.SentencePieceProcessor(model_proto=content)
    if any(p.get_score(i) * _STEPS % 1 for i in range(p.vocab_size())):
      content = round_scores(content)
      p = sentencepiece.SentencePieceProcessor(model_proto=content)
    self.model, self._processor = content, p  # the serialised model with rounded scores
    self._bare_processor = sentencepiece.SentencePieceProcessor(
      model_proto=content + _NO_DUMMY_PREFIX)
    if (p.pad_id(), p.eos_id(), p.unk_id()) != (PAD_ID, EOS_ID, UNK_ID):
      raise UserError('the SentencePiece model must have pad_id=0, eos_id=1, unk_id=2, not '
                      f'{p.pad_id()}, {p.eos_id()}, {p.unk_id()}')
    self._words = _Words(p.encode)
    self._words[''] = self._bare_processor.encode(' ')  # between two spaces
    return p.vocab_size()

  def encode(self, text: str) -> list[int]:
    """See `Vocabulary`."""
    if not text:
      return []
    return list(itertools.chain.from_iterable(map(self._words.__getitem__, text.split(' '))))

  def _decode(self, ids: list[int]) -> str:
    return self._processor.decode([i for i in ids if i != EOS_ID])

  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """See `Vocabulary`."""
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

  def encode_as_continuation(self, text: str, after: str) -> list[int]:
    """See `Vocabulary`."""
    if not after or after.endswith(' '):
      return self.encode(text)
    first, space, rest = text.partition(' ')
    return self._bare_processor.encode(first) + (self.encode(rest) or self._words['']
                                                 if space else [])

  @functools.cached_property
  def surfaces(self) -> list[bytes]:
    """See `Vocabulary`."""
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
  """Cache of word -> its ids, for the first words, which are most of any text."""

  def __init__(self, encode: Callable[[str], list[int]]):
    super().__init__()
    self._encode = encode

  def __missing__(self, word: str) -> list[int]:
    ids = self._encode(word)
    if len(self) < _CACHED_WORDS and len(word) <= _CACHED_CHARACTERS:
      self[word] = ids
    return ids


def round_scores(model: bytes) -> bytes:
  """Rounds the scores of a serialised SentencePiece model to multiples of 1/256."""
  # Walks the messages by hand: the class that `sentencepiece` brings for them refuses every
  # protobuf older than its own, e.g. Colab's.
  content = bytearray(model)
  for start, stop in _fields(content, 0, len(content), 1):  # ModelProto.pieces
    for place, _ in _fields(content, start, stop, 2):  # SentencePiece.score
      (score,) = struct.unpack_from('<f', content, place)
      struct.pack_into('<f', content, place, round(score * _STEPS) / _STEPS)
  return bytes(content)


def _fields(
  content: bytes | bytearray, start: int, stop: int, number: int) -> Iterator[tuple[int, int]]:
  """Start and end of each value of a field in a serialised protocol buffer."""
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
  """A list of words; texts are cut into words as WikiText is, and every line ends with eos."""

  # The eos of the last line ends the document; the writer of documents adds it.

  kind, filename = 'word', 'words.txt'

  @property
  def documents(self) -> str:
    """Form of the documents: 'text', or 'wikitext' for words between white space."""
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
    # split('\n') and not splitlines(), which also splits at characters inside a line.
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

  def encode(self, text: str) -> list[int]:
    """See `Vocabulary`."""
    return self._lines(text, document_words('text'))

  def _decode(self, ids: list[int]) -> str:
    return natural_text('\n' if i == EOS_ID else self.words[i] for i in ids).strip('\n')

  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """See `Vocabulary`."""
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

  def encode_as_continuation(self, text: str, after: str) -> list[int]:
    """See `Vocabulary`."""
    return self.encode(text)

  @functools.cached_property
  def surfaces(self) -> list[bytes]:
    """See `Vocabulary`."""
    return [b'', b''] + [(' ' + w).encode('utf-8') for w in self.words[2:]]


# Tokenizers of published models: whatever the package `tokenizers` reads.

_KNOWN_ENDS = ('<|endoftext|>', '<|end_of_text|>', '</s>', '<eos>', '[EOS]', '[SEP]')
_SEPARATORS = _KNOWN_ENDS[:4]  # of the documents that a model was trained on
_BYTE = re.compile(r'<0x([0-9A-F]{2})>')
_REQUEST = 'Continue the sentence: '  # of the user of a chat model, before the prefix


class TokenizerVocabulary(Vocabulary):
  """The `tokenizer.json` of a published language model.

  Ids of tokens that the tokenizer does not have (a padded table) have no text.

  Attributes:
    eos_id: separates documents: the tokenizer's end of a text (SmolLM2-Instruct: `<|endoftext|>`).
    end_ids: others that end a text, such as the end of a turn.
    start_ids: what the tokenizer puts before every text (Llama's and Gemma's <bos>); where it puts
      nothing (GPT-2, Pythia, Qwen, SmolLM), nothing, or with `start` the end of the text before.
    unk_id: -1 if nothing is unknown.
    chat: template and named tokens by which `prompt_ids` asks a chat model; None: plain text.
  """

  kind, filename = 'tokenizer', 'tokenizer.json'

  def __init__(self, content: bytes, info: Mapping[str, Any] | None = None, *,
               tokenizer: Any = None):
    """Takes a `tokenizer.json`, and it parsed if somebody did; `UserError` if it is no tokenizer.

    `info`: `end_ids`, the one between documents first; `size`, the ids that the model has (without
    it the tokenizer's); `start`, see `start_ids`; `chat`, where prompts are asked by it.
    """
    self._tokenizer = parse_tokenizer(content) if tokenizer is None else tokenizer
    super().__init__(content, info)

  @classmethod
  def read(cls, directory: str | os.PathLike, *, config: Mapping[str, Any] | None = None,
           content: bytes | None = None, start: bool = False,
           chat: str | os.PathLike | None = None,
           options: Mapping[str, Any] | None = None) -> 'TokenizerVocabulary':
    """Reads the tokenizer of a model's folder.

    `config`, `content` and `options` are the contents of config.json, tokenizer.json and
    tokenizer_config.json where the folder has none. `start` begins every text with the end of
    another if the tokenizer begins it with nothing; `chat` asks by the chat template of a folder.
    `UserError`: a file is damaged, no id ends a text, or there is no template, or it fails.
    """
    directory = pathlib.Path(directory)
    path, where = directory / cls.filename, directory / 'config.json'
    try:
      content = path.read_bytes() if content is None else content
      tokenizer = parse_tokenizer(content)
    except (OSError, UserError) as e:
      raise UserError(f'{path} cannot be read ({e}): download it again') from None
    if config is None:
      config = read_json(where) if where.is_file() else None
    ids = tokenizer.get_vocab(with_added_tokens=True)
    size = 1 + max(ids.values())
    if config is None:
      ends = [ids[t] for t in (*named_tokens(directory, 'eos'), *_KNOWN_ENDS) if t in ids][:1]
      if not ends:
        raise UserError(f'{directory}: no file says which token ends a text: add the config.json '
                        'of the model, or tokenizer_config.json with its eos_token')
    else:
      size = config.get('vocab_size', size)
      ends = _end_ids(directory, config, tokenizer, size)
    added = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()
             if token.special and i < size}
    known = {tokenizer.id_to_token(i): i for i in ends}
    separator = next((found[t] for found in (known, added) for t in _SEPARATORS if t in found),
                     ends[0])
    ends = [separator, *(i for i in ends if i != separator)]
    info = {'end_ids': ends, 'size': size, 'start': start}
    found = cls(content, info | ({} if chat is None else {
      'chat': _read_chat(pathlib.Path(chat), options)}), tokenizer=tokenizer)
    if chat is not None:
      found.prompt_ids('This')  # a template that fails does so here
    return found

  @staticmethod
  def digest(content: bytes, info: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of the file, of the ids at both ends of a text, and of the chat."""
    chat = [info['chat']] if 'chat' in info else []
    deciding = json.dumps([list(info.get('end_ids', ())), bool(info.get('start')), *chat],
                          sort_keys=True)
    return hashlib.sha256(content + deciding.encode()).hexdigest()

  def _load(self, content):
    t = self._tokenizer
    self.eos_id, *others = self.info['end_ids']
    self.end_ids, self.pad_id = tuple(others), self.eos_id
    begun, plain = (t.encode('a', add_special_tokens=special).ids for special in (True, False))
    # What stands before the text; some tokenizers also end it.
    before = next((i for i in range(len(begun)) if begun[i:i + len(plain)] == plain), 0)
    self.start_ids = tuple(begun[:before]) or ((self.eos_id,) if self.info.get('start') else ())
    parsed = json.loads(content)
    self._decoder, model = parsed.get('decoder'), parsed['model']
    unknown = model.get('unk_id')
    if unknown is None and model.get('unk_token') is not None:
      unknown = t.token_to_id(model['unk_token'])
    self.unk_id = -1 if unknown is None else unknown
    return self.info.get('size') or 1 + max(t.get_vocab(with_added_tokens=True).values())

  @functools.cached_property
  def _documents(self) -> Any:
    """Reads what looks like a special token as text."""
    content = json.loads(self._content)
    model, added = content['model'], content.get('added_tokens', [])
    if 'unk_id' in model:  # a Unigram model, which finds every piece of its list
      special = {token['content'] for token in added if token['special']}
      model['vocab'] = [[f'\uffff{piece}' if piece in special else piece, score]
                        for piece, score in model['vocab']]
      content['added_tokens'] = [token for token in added if not token['special']]
    found = parse_tokenizer(json.dumps(content).encode())
    found.encode_special_tokens = True
    return found

  def encode(self, text: str) -> list[int]:
    """Ids of `text`; special tokens that are written in it are those tokens."""
    return self._checked([self._tokenizer.encode(text, add_special_tokens=False)])[0]

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each document, in which nothing is a special token."""
    return self._checked(self._documents.encode_batch(list(texts), add_special_tokens=False))

  def plain(self) -> 'TokenizerVocabulary':
    """The vocabulary that begins every text, and asks nothing by a chat."""
    return TokenizerVocabulary(
      self._content, {'end_ids': self.info['end_ids'], 'size': self.size, 'start': True},
      tokenizer=self._tokenizer)

  @property
  def chat(self) -> dict[str, Any] | None:
    """See above."""
    return self.info.get('chat')

  def prompt_ids(self, text: str) -> list[int]:
    """See `Vocabulary`; by chat the answer of the model is begun with `text`."""
    if self.chat is None:
      return super().prompt_ids(text)
    return self.encode(self.chat_text(text))

  def chat_text(self, text: str) -> str:
    """What a chat model reads: a user's request, and the answer that begins with `text`."""
    # The whole answer is rendered and cut, as `continue_final_message` of transformers does: what
    # templates write before an answer is not always what they write to ask for one.
    request, end = _REQUEST + text, '\ufdd0'  # which no text holds
    remedy = ('correct it (chat_template.jinja or tokenizer_config.json), or ask without the chat '
              'template')
    try:
      found = self._template.render(
        messages=[{'role': 'user', 'content': request},
                  {'role': 'assistant', 'content': text + end}],
        add_generation_prompt=False, tools=None, documents=None, **self.chat['tokens'])
    except UserError:
      raise
    except Exception as e:  # a template is a program, and may raise anything
      what = f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
      raise UserError(f'the chat template fails ({what}): {remedy}') from None
    if request.strip() not in found:
      raise UserError(f"the chat template leaves the user's message out: {remedy}")
    answer = found.rpartition(end)[0]
    if end not in found or not answer.endswith(text.lstrip()):
      raise UserError(f'the chat template leaves the answer out, or changes it: {remedy}')
    return answer

  @functools.cached_property
  def _template(self) -> Any:
    """The compiled template, with what `transformers` gives to one."""
    try:
      import jinja2.ext
      import jinja2.sandbox
    except ModuleNotFoundError:
      raise UserError("chat templates need the package jinja2: pip install -e '.[chat]' in "
                      "fairjax's folder") from None

    class Generation(jinja2.ext.Extension):
      """`{% generation %}`, which marks answers to learn from, and changes no text."""

      tags = {'generation'}

      def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(('name:endgeneration',), drop_needle=True)

    def refuse(message):
      raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters['tojson'] = (
      lambda value, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
        sort_keys=sort_keys))
    # A prompt is the same on every day: a template that writes the date gets Llama's default.
    environment.globals |= {'raise_exception': refuse,
                            'strftime_now': datetime.datetime(2024, 7, 26).strftime}
    return environment.from_string(self.chat['template'])

  def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """See `Vocabulary`; whether the space before belongs to a token is as the tokenizer says."""
    encoding = self._tokenizer.encode(text, add_special_tokens=False)
    return self._checked([encoding])[0], encoding.offsets

  def encode_as_continuation(self, text: str, after: str) -> list[int]:
    """See `Vocabulary`."""
    # A tokenizer may join the end of `after` with the text; other ends then tell the same ids.
    spaced = after.endswith(' ')
    for before in (after.rstrip(' '), '\n', '"', 'a.'):
      whole, known = self.encode(before + ' ' * spaced + text), self.encode(before)
      ids = whole[len(known):]
      if whole[:len(known)] == known and (
          b''.join(self.surfaces[i] for i in ids) == b' ' * spaced + text.encode('utf-8')):
        return ids
    return self.encode(' ' * spaced + text)

  def _decode(self, ids: list[int]) -> str:
    return self._tokenizer.decode(ids, skip_special_tokens=True)

  def _checked(self, encodings: list[Any]) -> list[list[int]]:
    refuse_tokens_beyond(encodings, self.size, 'the model')
    return [encoding.ids for encoding in encodings]

  @functools.cached_property
  def surfaces(self) -> list[bytes]:
    """See `Vocabulary`; special tokens add nothing."""
    # Decoding single ids would lose the parts of a character, and spaces at the beginning.
    found, to_bytes = [b''] * self.size, _piece_bytes(self._decoder)
    special = {i for i, t in self._tokenizer.get_added_tokens_decoder().items() if t.special}
    for piece, i in self._tokenizer.get_vocab(with_added_tokens=True).items():
      if i < self.size and i not in special:
        found[i] = to_bytes(piece)
    return found


def refuse_tokens_beyond(encodings: Sequence[Any], size: int, where: str) -> None:
  """Raises `UserError` if one of the encoded texts holds a token whose id is not below `size`."""
  for number, encoding in enumerate(encodings, 1):
    if encoding.ids and max(encoding.ids) >= size:
      token, i = next((t, i) for t, i in zip(encoding.tokens, encoding.ids, strict=True)
                      if i >= size)
      raise UserError(
        f'text {number} of {len(encodings)} holds {token!r}, token {i} of the tokenizer, but '
        f'{where} has {size} embeddings: take the token out of the text, or give a model whose '
        'embeddings were resized to its tokenizer (resize_token_embeddings)')


def parse_tokenizer(content: bytes) -> Any:
  """The `tokenizers.Tokenizer` of a `tokenizer.json`."""
  import tokenizers
  try:
    tokenizer = tokenizers.Tokenizer.from_str(content.decode('utf-8'))
  except Exception as e:  # the package raises plain Exception
    raise UserError(f'no tokenizer ({e})') from None
  tokenizer.no_padding()  # a training with cut and padded texts leaves both in the file
  tokenizer.no_truncation()
  return tokenizer


def _end_ids(directory: pathlib.Path, config: Mapping[str, Any], tokenizer: Any,
             size: int) -> list[int]:
  """Ids that end a text: those of `config.json`, and what `generation_config.json` adds."""
  def listed(content):
    found = content.get('eos_token_id')
    return [] if found is None else found if isinstance(found, list) else [found]

  where, generation = directory / 'config.json', directory / 'generation_config.json'
  ids = listed(config)
  added, named = tokenizer.get_added_tokens_decoder(), named_tokens(directory, 'eos')
  if generation.is_file():
    # One without the model's own end, and with ordinary tokens, is a leftover of another model.
    more = listed(read_json(generation))
    if all(i in more for i in ids) or all(i in added and added[i].special for i in more):
      ids = ids + more
  ids = [i for place, i in enumerate(ids) if i not in ids[:place]]
  if not ids or not all(type(i) is int and 0 <= i < size for i in ids):
    raise UserError(f'{where}: eos_token_id is {ids[0] if len(ids) == 1 else ids or None}; '
                    f'sampling needs the id that ends a text, in [0, {size})')
  for i in ids:
    special, token = i in added and added[i].special, tokenizer.id_to_token(i)
    if not special and token not in (*_KNOWN_ENDS, *named):
      raise UserError(f'{where}: eos_token_id is {i}, in the tokenizer the ordinary token '
                      f'{token!r}, which would cut texts: set it to the id of the end of a text, '
                      'such as <|endoftext|>')
  return ids


def has_chat(directory: pathlib.Path) -> bool:
  """Whether a folder brings a chat template."""
  config = directory / 'tokenizer_config.json'
  return (directory / 'chat_template.jinja').is_file() or (
    config.is_file() and bool(read_json(config).get('chat_template')))


def _read_chat(directory: pathlib.Path, options: Mapping[str, Any] | None) -> dict[str, Any]:
  """The chat template of a model, and the tokens that it may name."""
  path, config = directory / 'chat_template.jinja', directory / 'tokenizer_config.json'
  if options is None:
    options = read_json(config) if config.is_file() else {}
  try:
    template = path.read_text(encoding='utf-8') if path.is_file() else options.get('chat_template')
  except (OSError, UnicodeDecodeError) as e:
    raise UserError(f'{path} cannot be read ({e}): download it again') from None
  if isinstance(template, list):  # several with names
    template = next((t.get('template') for t in template
                     if isinstance(t, dict) and t.get('name') == 'default'), None)
  if not isinstance(template, str):
    raise UserError(f'{directory} has no chat template (chat_template.jinja, or chat_template in '
                    'tokenizer_config.json): ask for plain continuations, without --chat or '
                    'pretrained.chat')
  more = directory / 'special_tokens_map.json'
  named = read_json(more) if more.is_file() else {}
  named |= {role: token for role, token in options.items() if token is not None}
  extra = named.get('extra_special_tokens')  # with names, or a list without
  extra = extra if isinstance(extra, dict) else {}
  tokens = {}
  for role in ('bos_token', 'eos_token', 'unk_token', 'pad_token', *extra):
    if (token := token_text((named | extra).get(role))) is not None:
      tokens[role] = token
  return {'template': template, 'tokens': tokens, 'rules': 2}  # 2: the answer is rendered too


def token_text(token: Any) -> str | None:
  """The text of a token in a model's options: a string, or an object with its content."""
  token = token.get('content') if isinstance(token, dict) else token
  return token if isinstance(token, str) else None


def named_tokens(directory: pathlib.Path, role: str) -> tuple[str, ...]:
  """The tokens of a role by a model's files of options, if they name any."""
  found = {}
  for name in ('tokenizer_config.json', 'special_tokens_map.json'):
    if (directory / name).is_file():
      token = token_text(read_json(directory / name).get(f'{role}_token'))
      if token is not None:
        found[token] = None
  return tuple(found)


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """The object in a JSON file of a published model."""
  try:
    value = json.loads(path.read_text(encoding='utf-8-sig'))
  except OSError as e:
    raise UserError(f'{path}: {e.strerror or e}') from None
  except (ValueError, RecursionError) as e:
    raise UserError(f'{path} is not JSON ({e}): it is damaged, download it again') from None
  if not isinstance(value, dict):
    raise UserError(f'{path} holds no JSON object: it is damaged, download it again')
  return value


def _piece_bytes(decoder: Mapping[str, Any] | None) -> Callable[[str], bytes]:
  """How a decoder of `tokenizer.json` turns one piece into bytes."""
  steps = [decoder or {'type': 'none'}]
  while any(step['type'] == 'Sequence' for step in steps):
    steps = [inner for step in steps for inner in step.get('decoders', [step])]
  signs, by_byte, fallback = [], False, False
  for step in steps:
    match step:
      case {'type': 'ByteLevel'}:
        by_byte = True
      case {'type': 'ByteFallback'}:
        fallback = True
      case {'type': 'Replace', 'pattern': {'String': old}, 'content': new}:
        signs.append((old, new))
      case {'type': 'Metaspace', 'replacement': sign}:
        signs.append((sign, ' '))
      case {'type': 'Fuse' | 'Strip'}:  # the latter concerns the beginning of a whole text
        pass
      case {'type': name}:
        raise UserError(f'tokenizer.json: the bytes of single tokens are not known for the decoder '
                        f'{name}, only for ByteLevel, Metaspace, Replace with ByteFallback')
  alphabet = _byte_alphabet()

  def to_bytes(piece):
    if fallback and (byte := _BYTE.fullmatch(piece)):
      return bytes([int(byte[1], 16)])
    if by_byte and all(c in alphabet for c in piece):  # added tokens are written as they are
      return bytes(alphabet[c] for c in piece)
    for old, new in signs:
      piece = piece.replace(old, new)
    return piece.encode('utf-8')

  return to_bytes


def _byte_alphabet() -> dict[str, int]:
  """The byte of each character of byte-level tokenizers (Radford et al. 2019)."""
  # Bytes that print stand for themselves, the others for the characters from 256 on.
  printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [b for b in range(256) if b not in printed]
  return {chr(b): b for b in printed} | {chr(256 + i): b for i, b in enumerate(others)}


_KINDS = {c.kind: c for c in (SentencePieceVocabulary, WordVocabulary, TokenizerVocabulary)}


def load_vocabulary(
  directory: str | os.PathLike, kinds: Mapping[str, type[Encoder]] = _KINDS) -> Any:
  """Reads a folder that `Encoder.save` wrote, checking its fingerprint, or that of a tokenizer."""
  directory = pathlib.Path(directory)
  path = directory / MANIFEST
  if not path.is_file():
    if TokenizerVocabulary.kind in kinds and (directory / TokenizerVocabulary.filename).is_file():
      return TokenizerVocabulary.read(directory)
    raise UserError(f'no vocabulary in {directory}: {MANIFEST} is missing (make one: fairjax step '
                    f'data; that of a published model has a {TokenizerVocabulary.filename})')
  try:
    manifest = json.loads(path.read_text(encoding='utf-8'))
    kind, fingerprint = manifest['kind'], manifest['fingerprint']
  except (ValueError, KeyError, TypeError) as e:
    raise UserError(f'{path} is damaged ({e}): make the vocabulary again') from None
  if str(kind) not in kinds:
    raise unknown_name('vocabulary kind', str(kind), kinds, where=str(path))
  file = directory / kinds[kind].filename
  if not file.is_file():
    raise UserError(f'{file} is missing: make the vocabulary again')
  content = file.read_bytes()
  found = kinds[kind].digest(content, manifest.get('info') or {})
  if found != fingerprint:
    raise UserError(f'{file} has fingerprint {found[:8]}, but {path} names '
                    f'{str(fingerprint)[:8]}: restore the file or make the vocabulary again')
  try:
    return kinds[kind](content, manifest.get('info'))
  except (RuntimeError, UnicodeDecodeError, UserError) as e:
    raise UserError(f'{file} cannot be used: {e}') from None


# Pieces of a masked language model's tokenizer. A document is text of one sentence a line. With V
# pieces in the tokenizer its ids are
#
#     i          piece i, where a word begins
#     V + i      piece i, inside a word
#     2 V        the end of a sentence, also of one without a piece
#     2 V + 1    the end of a document
#
# so that a store separates sentences and words for any tokenizer and any text, also for `[CLS]` or
# `[SEP]` in the text, which tokenizers read as their special pieces.

_AT_ONCE = 4096  # sentences; the tokenizer's objects take some 200 bytes a piece


class PieceEncoder(Encoder):
  """Sentences, a line each, to pieces of a `tokenizers.Tokenizer`."""

  kind, filename = 'pieces', 'tokenizer.json'

  @classmethod
  def of(cls, tokenizer: Any) -> 'PieceEncoder':
    """Serialises a `tokenizers.Tokenizer`."""
    return cls(tokenizer.to_str().encode('utf-8'))

  def _load(self, content: bytes) -> int:
    self.tokenizer = parse_tokenizer(content)
    self.pieces = 1 + max(  # V
      self.tokenizer.get_vocab(with_added_tokens=True).values())
    self.border_id, self.eos_id = 2 * self.pieces, 2 * self.pieces + 1
    return 2 * self.pieces + 2

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each document; the empty text is one without a sentence."""
    found: list[list[int]] = [[] for _ in texts]
    sentences = ((i, line) for i, text in enumerate(texts) if text for line in text.split('\n'))
    while chunk := list(itertools.islice(sentences, _AT_ONCE)):
      encoded = self.tokenizer.encode_batch([line for _, line in chunk], add_special_tokens=False)
      for (number, _), encoding in zip(chunk, encoded, strict=True):
        ids, words = encoding.ids, encoding.word_ids
        found[number] += ids[:1]
        found[number] += [i + self.pieces if word == before else i for i, word, before in zip(
          ids[1:], words[1:], words, strict=False)]
        found[number].append(self.border_id)
    return found

  def vocabulary(self) -> dict[str, int]:
    """Piece -> id, in the order of the ids."""
    return dict(sorted(self.tokenizer.get_vocab(with_added_tokens=True).items(),
                       key=lambda item: item[1]))


def load_encoder(directory: str | os.PathLike) -> Encoder:
  """Reads a folder of any kind, a `Vocabulary` or a `PieceEncoder`."""
  return load_vocabulary(
    directory, {c.kind: c for c in (SentencePieceVocabulary, WordVocabulary, PieceEncoder)})


# SentencePiece silently leaves out longer lines, so they are cut at a space.
_MAX_LINE_CHARACTERS = 4000
# A fixed number, since the sums of the training depend on it.
_TRAINER_THREADS = 4


def train_sentencepiece(
  texts: Iterable[str], *, size: int, directory: str | os.PathLike,
  max_characters: int = 200_000_000,
  info: Mapping[str, Any] | None = None,
) -> SentencePieceVocabulary:
  """Trains a unigram SentencePiece model, saves it in `directory` and returns it."""
  # There is no normalisation and white space is kept; rare characters become bytes (256 ids).
  import sentencepiece

  def train(**options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=_lines(kept), model_writer=model, vocab_size=size, model_type='unigram',
      pad_id=PAD_ID, eos_id=EOS_ID, unk_id=UNK_ID, bos_id=-1, byte_fallback=True,
      normalization_rule_name='identity', remove_extra_whitespaces=False, hard_vocab_limit=False,
      character_coverage=0.9995, max_sentence_length=8 * _MAX_LINE_CHARACTERS,
      train_extremely_large_corpus=True, num_threads=_TRAINER_THREADS, minloglevel=2, **options)
    return round_scores(model.getvalue())

  kept, counts = _thin_out(texts, max_characters)
  try:
    model = train()
    found = sentencepiece.SentencePieceProcessor(model_proto=model)
    if found.piece_to_id(_SPACE) == UNK_ID:
      # In long lines without spaces its sign is rare, and its bytes would not become a space again.
      model = train(required_chars=_SPACE)
  except RuntimeError as e:
    needed = re.search(r'required_chars\. \d+ vs (\d+)', str(e))
    if not needed:
      raise
    raise UserError(
      f'a SentencePiece vocabulary of {size} ids is too small: the bytes and characters of the '
      f'corpus need {needed[1]}; raise data.vocab_size') from None
  drawn = dict(info or {})  # of `sample_lines`, whose lines may have been thinned out
  drawn |= {'characters_used': counts['characters_used']} | (
    {'lines_used': counts['texts_used']} if 'lines_used' in drawn else {})
  vocabulary = SentencePieceVocabulary(model, counts | {'requested_size': size} | drawn)
  vocabulary.save(directory)
  return vocabulary


def build_word_vocabulary(
  texts: Iterable[str], *, size: int, directory: str | os.PathLike, documents: str = 'text',
  keep: Iterable[str] = (),
) -> WordVocabulary:
  """Lists the most frequent words, saves the list in `directory` and returns it."""
  # `keep`: natural texts whose words get ids however rare they are, if they occur at all.
  counter, number, cut = collections.Counter(), 0, document_words(documents)
  for text in texts:
    counter.update(cut(text))
    number += 1
  total = sum(counter.values())
  for word in SPECIAL_WORDS:
    counter.pop(word, None)
  if not counter:
    raise UserError('no word to build a vocabulary from: the training texts are empty')
  ranked = sorted(counter, key=lambda w: (-counter[w], w))
  wanted = {word.text for text in keep for word in words_of(text) if word.text in counter}
  kept = [w for w in ranked[size - 3:] if w in wanted]
  if len(wanted) > size - 3:
    raise UserError(f'a word vocabulary of {size} ids has no place for the {len(wanted)} words of '
                    'the attribute: raise data.vocab_size')
  others = [w for w in ranked if w not in wanted][:size - 3 - len(wanted)]
  words = sorted(wanted.union(others), key=lambda w: (-counter[w], w))
  content = '\n'.join([*SPECIAL_WORDS, *words, '']).encode('utf-8')
  vocabulary = WordVocabulary(content, {
    'requested_size': size, 'texts': number, 'words': total, 'distinct_words': len(ranked),
    'unknown_words': total - sum(counter[w] for w in words), 'kept_words': len(kept),
    'documents': documents,
  })
  vocabulary.save(directory)
  return vocabulary


def _thin_out(texts: Iterable[str], limit: int) -> tuple[list[str], dict[str, int]]:
  """Every `stride`-th text, the stride doubled whenever the kept characters exceed `limit`."""
  kept, stride, characters, number, read = [], 1, 0, 0, 0
  for number, text in enumerate(texts, 1):
    read += len(text)
    if (number - 1) % stride == 0:
      kept.append(text)
      characters += len(text)
      while characters > limit and len(kept) > 1:
        kept, stride = kept[::2], stride * 2
        characters = sum(map(len, kept))
  if not characters:
    raise UserError('no text to train a vocabulary from: the training texts are empty')
  return kept, {'texts': number, 'characters': read, 'texts_used': len(kept),
                'characters_used': characters}


def _lines(texts: Iterable[str]) -> Iterator[str]:
  """Lines with their line ends, the long ones cut before a space."""
  for text in texts:
    # SentencePiece silently leaves out a line with its own sign of an unknown character.
    for line in text.replace('\u2585', ' ').splitlines(keepends=True):
      while len(line) > _MAX_LINE_CHARACTERS:
        cut = line.rfind(' ', 1, _MAX_LINE_CHARACTERS)
        cut = cut if cut > 0 else _MAX_LINE_CHARACTERS
        yield line[:cut]
        line = line[cut:]
      if line:
        yield line
