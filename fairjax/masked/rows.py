"""Text as rows of token ids: a sentence a row, or as many as fit; nothing is lost, all is counted.

Letters: R rows, T places of a row (special tokens included).
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.errors import UserError

FORMS = ('sentence', 'packed')
_CHUNK = 4096  # sentences that the tokenizer gets at once
_MASKS = ('[MASK]', '<mask>')
_UNKNOWN = ('[UNK]', '<unk>')


class Special(NamedTuple):
  """Ids of special tokens.

  Attributes:
    begin, end: `[CLS]` and `[SEP]`, around every row.
    mask: stands where a piece is to be found.
    unknown: of what the vocabulary cannot write; None where it can write everything.
    pad: at padding.
    all: of these and of every other special token: they are neither masked nor drawn.
  """

  begin: int
  end: int
  mask: int
  unknown: int | None
  pad: int
  all: frozenset[int]


def special_tokens(tokenizer: Any, *, pad_id: int, where: str) -> Special:
  """Special tokens of a `tokenizers.Tokenizer`.

  Raises:
    UserError: it puts no begin and end around a text, or has no mask token.
  """
  ends = tokenizer.encode('').ids
  if len(ends) != 2:
    raise UserError(f'{where}: its tokenizer puts {len(ends)} special tokens around a text, not 2 '
                    '([CLS] and [SEP]): it is not that of a BERT or ALBERT')
  mask, unknown = (next((i for i in map(tokenizer.token_to_id, names) if i is not None), None)
                   for names in (_MASKS, _UNKNOWN))
  if mask is None:
    raise UserError(f"{where}: its tokenizer has no mask token ({' or '.join(_MASKS)}): a masked "
                    'language model needs one')
  added = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
  every = frozenset(added | {*ends, mask, pad_id} | ({unknown} - {None}))
  return Special(*ends, mask, unknown, pad_id, every)


def tells_words_apart(tokenizer: Any) -> bool:
  """Whether a `tokenizers.Tokenizer` says which pieces make a word; some take a text as one."""
  return len(set(tokenizer.encode('a b', add_special_tokens=False).word_ids)) > 1


class Rows(NamedTuple):
  """R rows, one after the other.

  Attributes:
    ids: int32, all tokens of all rows, special ones included.
    starts: bool, of every token whether a word begins there.
    borders: `[R + 1]` int64; row r is `ids[borders[r]:borders[r + 1]]`.
    counts: `documents`, `sentences`, `rows`, `tokens` (without special ones), `unknown_tokens`,
      `split_sentences` (longer than a row: they went into several), `empty_sentences` (without a
      token: nothing of them is in a row).
    digest: SHA-256 (hex) of the rows.
  """

  ids: np.ndarray
  starts: np.ndarray
  borders: np.ndarray
  counts: dict[str, int]
  digest: str

  def __len__(self) -> int:
    return len(self.borders) - 1

  def row(self, number: int) -> tuple[np.ndarray, np.ndarray]:
    """`ids` and `starts` of one row."""
    part = slice(*self.borders[number:number + 2])
    return self.ids[part], self.starts[part]

  @property
  def longest(self) -> int:
    """Tokens of the longest row."""
    return int(np.diff(self.borders).max())


def make_rows(documents: Iterable[Sequence[str]], tokenizer: Any, special: Special, *, form: str,
              max_length: int, what: str, apart: int | None = None) -> Rows:
  """Lays out documents of sentences.

  Args:
    documents: lists of sentences.
    tokenizer: without padding and truncation.
    special: of the same tokenizer.
    form: 'sentence': a row holds one sentence. 'packed': as many whole ones as fit, of one document
      and the next, with `[SEP]` between documents. A sentence that is longer than a row is split,
      at the beginning of a word where there is one.
    max_length: T, special tokens included.
    what: of the text, for messages.
    apart: number of a document that begins a row, so that none holds documents before and behind.

  Raises:
    UserError: no token at all.
  """
  counts = dict.fromkeys(('documents', 'sentences', 'rows', 'tokens', 'unknown_tokens',
                          'split_sentences', 'empty_sentences'), 0)
  room = max_length - 2
  ids, starts, borders = [], [], [0]
  open_ids: list[int] = []
  open_starts: list[bool] = []
  open_document = -1

  def close():
    if not open_ids:
      return
    ids.append(np.array([special.begin, *open_ids, special.end], np.int32))
    starts.append(np.array([True, *open_starts, True], bool))
    borders.append(borders[-1] + len(open_ids) + 2)
    open_ids.clear()
    open_starts.clear()

  for document, tokens, begins in _encoded(documents, tokenizer, counts):
    counts['tokens'] += len(tokens)
    counts['unknown_tokens'] += tokens.count(special.unknown)
    counts['split_sentences'] += len(tokens) > room
    for part in _parts(begins, room):
      border = bool(open_ids) and document != open_document
      full = len(open_ids) + border + part.stop - part.start > room
      if form == 'sentence' or full or (apart is not None and open_document < apart <= document):
        close()
        border = False
      open_ids.extend([special.end] * border + tokens[part])
      open_starts.extend([True] * border + begins[part])
      open_document = document
  close()
  if not ids:
    raise UserError(f'{what} has no token: is it empty?')
  counts['rows'] = len(ids)
  flat, lengths = np.concatenate(ids), np.array(borders, np.int64)
  digest = hashlib.sha256(flat.tobytes() + lengths.tobytes()).hexdigest()
  return Rows(flat, np.concatenate(starts), lengths, counts, digest)


def _encoded(documents, tokenizer, counts) -> Iterator[tuple[int, list[int], list[bool]]]:
  """(number of the document, ids, where words begin) of every sentence that has tokens."""
  def sentences():
    for number, document in enumerate(documents):
      counts['documents'] += 1
      for sentence in document:
        yield number, sentence

  source = sentences()
  while chunk := list(itertools.islice(source, _CHUNK)):
    found = tokenizer.encode_batch([text for _, text in chunk], add_special_tokens=False)
    for (number, _), encoding in zip(chunk, found, strict=True):
      counts['sentences'] += 1
      if not encoding.ids:
        counts['empty_sentences'] += 1
        continue
      words = encoding.word_ids
      yield number, encoding.ids, [i == 0 or words[i] != words[i - 1] for i in range(len(words))]


def _parts(begins: Sequence[bool], room: int) -> Iterator[slice]:
  """Cuts a sentence into parts of at most `room` tokens, before words where it can."""
  start = 0
  while len(begins) - start > room:
    stop = next((i for i in range(start + room, start, -1) if begins[i]), start + room)
    yield slice(start, stop)
    start = stop
  yield slice(start, len(begins))
