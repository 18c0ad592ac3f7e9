"""How WikiText writes text as words, and back: the one definition for every list of words.

WikiText (Merity et al. 2016) was cut by the rules of the Moses tokenizer for English: marks and
quotes are words of their own, a hyphen between letters is `@-@`, the comma and the point inside a
number are `@,@` and `@.@`, an apostrophe begins the rest of its word (`didn 't`, `O 'Neill`), and
abbreviations keep their full stop (`U.S.`, `Dr.`). `words_of` repeats this for natural text and
`natural_text` inverts it. Tried first: sacremoses 0.1.1, which knows neither `@,@` nor `@.@`, gives
no offsets, and whose detokenizer changes the beginning of a text when words are added.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

# Raised when a change of the rules changes the words of a text: data are then prepared again.
WORDS_VERSION = 1

_MARKS = ''.join(c for c in map(chr, range(0x3100)) if unicodedata.category(c) in ('Mn', 'Mc'))
_W = rf'(?:[^\W_]|[{_MARKS}])'  # a letter, with the marks that follow it, or a digit
_L = r'[^\W\d_]'  # a letter
_CHUNK = re.compile(r'\S+')
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
# With a full stop behind them these do not end a sentence.
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

  Args:
    text: any text. Line ends are white space.

  Returns:
    Words in order; none holds white space.

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
  """How lines of a corpus become words: 'wikitext' has them already, 'text' is natural."""
  return str.split if documents == 'wikitext' else lambda line: [w.text for w in words_of(line)]


def natural_text(words: Iterable[str]) -> str:
  r"""Text of words in WikiText's form: the inverse of `words_of`, as far as there is one.

  The text of the first words is how the text of more words begins. What WikiText no longer shows is
  guessed: the spaces around dashes and slashes, the side on which a quote stood.

  Args:
    words: words; `\\n` is the end of a line.

  >>> natural_text('" I am from well @-@ known Syria , " he didn \'t say ; 1 @,@ 000 .'.split())
  '"I am from well-known Syria," he didn\'t say; 1,000.'
  """
  words = list(words)
  open_quotes: set[str] = set()
  written, glued = [], True  # glued: no space comes before the next word
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
    elif piece['stop'] and not _is_abbreviation(piece['word'], text[b:].lstrip()[:1]):
      yield Word(piece['word'], a, b - 1)
      yield Word('.', b - 1, b)
    else:
      yield Word(piece[0], a, b)


def _is_abbreviation(word: str, following: str) -> bool:
  """Whether the full stop behind a word belongs to it; `following`: the next character, or ''."""
  if '.' in word and re.search(_L, word) or word in _ABBREVIATIONS or following.islower():
    return True
  return (len(word) == 1 and word.isupper() and word.isascii()
          or word in _BEFORE_NUMBERS and following.isdigit())
