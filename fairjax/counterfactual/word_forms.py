"""Equal ways of writing a word, and borders of words: one rule for the whole package.

Two texts are equal if their `normal_form` is the same: Unicode's NFC, with one sign for each of the
apostrophes (' and \u2019 \u2018 \u201b \u02bc \u02bb \u00b4 \uff07), hyphens (- and U+2010, U+2011)
and spaces (also U+00A0, U+2007, U+202F).

A word consists of letters, digits and the combining marks that follow them. It continues over
invisible joiners between letters (soft hyphen, zero-width joiners, variation selectors), and over
up to three underscores or asterisks ("snake_case", "**Iran**ian"). Anything else is a border: other
punctuation, Markdown around a word ("_Iran_"), and raised digits ("Iran\u00b2"). Chinese, Japanese,
Thai, Lao, Burmese and Khmer put no spaces between words: either side of their letters is a border.

Nothing here changes a text: positions are those of the text as it is written.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator

_SIGNS = {"'": "'\u2019\u2018\u201b\u02bc\u02bb\u00b4\uff07", '-': '-\u2010\u2011',
          ' ': ' \u00a0\u2007\u202f'}
_PLAIN = {ord(sign): plain for plain, signs in _SIGNS.items() for sign in signs[1:]}
_APOSTROPHES = {ord(sign): "'" for sign in _SIGNS["'"][1:]}
# Letters with a second code point, which NFC replaces.
_SINGLES = {'\u00c5': '\u212b', '\u03a9': '\u2126'}
_MOST_MARKS = 4  # of one letter, found in any order; with more only in the two normal orders


def _ranges(codes: Iterable[int]) -> str:
  """Set of characters for a regular expression, from ascending codes."""
  runs = itertools.groupby(enumerate(codes), lambda item: item[1] - item[0])
  ends = [(found[0][1], found[-1][1]) for found in (list(run) for _, run in runs)]
  return ''.join(f'{chr(a)}-{chr(b)}' for a, b in ends)


_JOINERS = '\u00ad\u180b-\u180d\u200c\u200d\u2060\ufe00-\ufe0f\U000e0100-\U000e01ef'
_NO_LETTER = re.compile(  # joiners, apostrophes that Unicode calls letters, raised digits
  f'[{_JOINERS}\u02bb\u02bc\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u2080-\u2089]').match
_MARKS = [c for c in range(0x10000) if unicodedata.category(chr(c)) in ('Mn', 'Mc')]
_HAN = '\U00020000-\U0003ffff'
# A letter of Thai, Lao, Burmese, Khmer, kana or Han; no mark, which belongs to the letter before.
UNSPACED = re.compile(
  f'(?![{_ranges(_MARKS)}])[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff'
  f'\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f{_HAN}]')
_CODES = sorted({c for c in range(0x10000) if chr(c).isalnum()}.union(_MARKS).difference(
  c for c in range(0x10000) if _NO_LETTER(chr(c))))
# Characters after the first 65,536 are given by blocks (scripts, mathematical letters, scripts,
# Han), since a set that lists each of them is slow.
_BLOCKS = '\U00010000-\U0001cfff\U0001d400-\U0001d7ff\U0001e000-\U0001efff'
LETTER = f'[{_ranges(_CODES)}{_BLOCKS}{_HAN}]'
"""Regular expression for one character of a word."""
_SPACED = f'[{_ranges(c for c in _CODES if not UNSPACED.match(chr(c)))}{_BLOCKS}]'
_WORD_END = (f'(?:(?!(?:[{_JOINERS}]|[_*]{{1,3}})?{_SPACED})'
             f'|(?<={UNSPACED.pattern})(?![{_ranges(_MARKS)}]))')
_ends_word = re.compile(_WORD_END).match
_inside_word = re.compile(f'(?!{UNSPACED.pattern})(?:' + '|'.join(
  f'(?<={_SPACED}{between})' for between in ('', f'[{_JOINERS}]', '[_*]', '[_*]{2}', '[_*]{3}'))
  + ')').match
LETTERS = re.compile(f'{LETTER}+(?:[{_JOINERS}]{LETTER}+)*')
"""A run of letters: a word, or a part of one with apostrophes, hyphens or underscores."""
_MARKDOWN = re.compile(f'(?<={LETTER})[*_`~]+|[*_`~]+(?={LETTER})')


def normal_form(text: str) -> str:
  """The form in which words are compared; letters keep their case.

  >>> normal_form('Jose\u0301 O\u2019Neil') == "Jos\u00e9 O'Neil"
  True
  """
  return text if text.isascii() else unicodedata.normalize('NFC', text).translate(_PLAIN)


def plain_apostrophes(text: str) -> str:
  """Replaces all apostrophes by ' and changes nothing else."""
  return text if text.isascii() else text.translate(_APOSTROPHES)


def starts_word(text: str, place: int) -> bool:
  """Whether no word continues over the border before character `place`."""
  return _inside_word(text, place) is None


def ends_word(text: str, place: int) -> bool:
  """Whether a word that ends before character `place` does not continue there."""
  return _ends_word(text, place) is not None


def context(text: str, start: int, end: int, *, reach: int) -> tuple[str, str]:
  """Up to `reach` characters before and after text[start:end], to be read word by word."""
  # In the normal form, without Markdown that touches a letter or the word itself.
  before = normal_form(text[max(start - reach, 0):start])
  after = normal_form(text[end:end + reach])
  if any(sign in before or sign in after for sign in '*_`~'):
    return _MARKDOWN.sub('', before.rstrip('*_`~')), _MARKDOWN.sub('', after.lstrip('*_`~'))
  return before, after


class WordFinder:
  """Finds whole words and phrases in text, in any way of writing them; the longest at one place."""

  def __init__(self, words: Iterable[str], *, ignore_case: bool = False, any_space: bool = False):
    """Prepares the search; `any_space`: white space of any length is equal to a space."""
    words = sorted({normal_form(w) for w in words}, key=lambda w: (-len(w), w))
    choices = '|'.join(c for w in words for c in _choices(w, any_space))
    # An expression that begins with a set of first letters is searched quickly by `re`. With
    # IGNORECASE there is no such set, and a condition before the word is quicker. The set _SPACED
    # holds both cases of its letters: compiling it with IGNORECASE takes twice as long for nothing.
    begin = '' if any(map(UNSPACED.match, words)) else f'(?<!{_SPACED})'
    words_of = f'{begin}(?i:{choices})' if ignore_case else f'(?:{choices})'
    self._pattern = re.compile(f'{words_of}{_WORD_END}')

  def find(self, text: str, start: int = 0) -> Iterator[re.Match]:
    """All matches in `text` from character `start` on, in order."""
    search, inside = self._pattern.search, _inside_word
    while match := search(text, start):
      start = match.end()
      if inside(text, match.start()) is None:
        yield match
      else:
        start = match.start() + 1

  def search(self, text: str) -> re.Match | None:
    """The first match in `text`."""
    return next(self.find(text), None)

  def replace(self, text: str, new: str) -> tuple[str, int]:
    """Replaces every match by `new`; returns the text and the number of matches."""
    parts, end, count = [], 0, 0
    for match in self.find(text):
      parts += [text[end:match.start()], new]
      end, count = match.end(), count + 1
    return ''.join([*parts, text[end:]]), count

  def match(self, text: str, place: int) -> re.Match | None:
    """The match at the beginning of a word, at character `place`."""
    return self._pattern.match(text, place) if starts_word(text, place) else None


def written_forms(word: str, *, most: int = 64) -> tuple[list[str], bool]:
  """Ways to write a word, or its beginning if it has more than `most`; whether it is whole."""
  forms = ['']
  for cluster in _clusters(word):
    found = _spellings(cluster)
    if len(forms) * len(found) > most and len(forms) > 1 or len(found) > most:
      return forms, False
    forms = [form + spelling for form in forms for spelling in found]
  return forms, True


def _choices(word: str, any_space: bool) -> Iterator[str]:
  """Patterns of a word, one for each way to write its first letter."""
  parts = []
  for cluster in _clusters(word):
    if cluster == ' ' and any_space:
      parts.append([r'\s+'])
    else:
      parts.append([re.escape(s) for s in _spellings(cluster)])
  rest = ''.join(p[0] if len(p) == 1 else f"(?:{'|'.join(p)})" for p in parts[1:])
  for first in parts[0]:
    yield first + rest


def _clusters(word: str) -> Iterator[str]:
  """Letters of the normal form of a word, each with the marks that follow it."""
  start, word = 0, normal_form(word)
  for place in range(1, len(word) + 1):
    if place == len(word) or not unicodedata.category(word[place]).startswith('M'):
      yield word[start:place]
      start = place


@functools.lru_cache(maxsize=4096)
def _spellings(cluster: str) -> tuple[str, ...]:
  """All ways to write a letter with its marks, the normal one first."""
  if cluster in _SIGNS:
    return tuple(_SIGNS[cluster])
  apart = unicodedata.normalize('NFD', cluster)
  found = {cluster: None, apart: None}
  if 1 < len(apart) <= _MOST_MARKS + 1:
    orders = map(''.join, itertools.permutations(apart))
    found |= dict.fromkeys(o for o in orders if unicodedata.normalize('NFD', o) == apart)
  queue = list(found)
  for text in queue:
    for i in range(len(text) - 1):
      joined = unicodedata.normalize('NFC', text[i:i + 2])
      new = text[:i] + joined + text[i + 2:]
      if len(joined) == 1 and new not in found:
        found[new] = None
        queue.append(new)
  if cluster in _SINGLES:
    found[_SINGLES[cluster]] = None
  return tuple(found)
