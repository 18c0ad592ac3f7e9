"""When two ways of writing a word are equal, and where a word ends: one rule for the whole package.

Two texts are equal if their `normal_form` is the same: Unicode's NFC (a letter with its accents is
one character, however it was typed), with one sign for each of

* the apostrophe: ' and \u2019 \u2018 \u201b \u02bc \u02bb \u00b4 \uff07;
* the hyphen: - and the typographic and the non-breaking one (U+2010, U+2011);
* the space: also the non-breaking ones (U+00A0, U+2007, U+202F).

A word is made of letters, digits and the combining marks that follow them. It goes on over what
joins two letters without a sign of its own (soft hyphen, zero-width joiners, variation selectors),
and over up to three underscores or asterisks between letters ("snake_case", "**Iran**ian").
Anything else is a border: other punctuation, Markdown around a word ("_Iran_", "**Iran**"), and
raised digits ("Iran\u00b2"). Scripts without spaces between words show no border within a run of
letters.

Nothing here changes a text: places are those of the text as it is written.
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
# Letters that are one character in NFC and were another one in older character sets.
_SINGLES = {'\u00c5': '\u212b', '\u03a9': '\u2126'}
_MOST_MARKS = 4  # of one letter, in any order; more of them are found in the two normal orders


def _ranges(codes: Iterable[int]) -> str:
  """A set of characters for a regular expression, of ascending codes."""
  runs = itertools.groupby(enumerate(codes), lambda item: item[1] - item[0])
  ends = [(found[0][1], found[-1][1]) for found in (list(run) for _, run in runs)]
  return ''.join(f'{chr(a)}-{chr(b)}' for a, b in ends)


_JOINERS = '\u00ad\u180b-\u180d\u200c\u200d\u2060\ufe00-\ufe0f\U000e0100-\U000e01ef'
_NO_LETTER = re.compile(  # joiners, apostrophes that Unicode calls letters, raised digits
  f'[{_JOINERS}\u02bb\u02bc\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u2080-\u2089]').match
# Beyond the first 65,536 characters by blocks (scripts, mathematical letters, scripts, Han): a set
# that lists each of them is slow.
LETTER = ('[{}\U00010000-\U0001cfff\U0001d400-\U0001d7ff\U0001e000-\U0001efff'
          '\U00020000-\U0003ffff]').format(_ranges(
            c for c in range(0x10000) if not _NO_LETTER(chr(c)) and (
              chr(c).isalnum() or unicodedata.category(chr(c)) in ('Mn', 'Mc'))))
"""One character of a word, for regular expressions."""
_WORD_END = f'(?!(?:[{_JOINERS}]|[_*]{{1,3}})?{LETTER})'
_ends_word = re.compile(_WORD_END).match
_inside_word = re.compile('|'.join(
  f'(?<={LETTER}{between})' for between in ('', f'[{_JOINERS}]', '[_*]', '[_*]{2}', '[_*]{3}'))
).match
LETTERS = re.compile(f'{LETTER}+(?:[{_JOINERS}]{LETTER}+)*')
"""A run of letters: a word, or a part of one that apostrophes, hyphens or underscores join."""
_MARKDOWN = re.compile(f'(?<={LETTER})[*_`~]+|[*_`~]+(?={LETTER})')


def normal_form(text: str) -> str:
  """The form in which words are compared; letters keep their case."""
  return text if text.isascii() else unicodedata.normalize('NFC', text).translate(_PLAIN)


def plain_apostrophes(text: str) -> str:
  """The text with ' for all apostrophes, otherwise as it is written."""
  return text if text.isascii() else text.translate(_APOSTROPHES)


def starts_word(text: str, place: int) -> bool:
  """Whether no word goes over the border before character `place`."""
  return _inside_word(text, place) is None


def ends_word(text: str, place: int) -> bool:
  """Whether a word that ends before character `place` does not go on there."""
  return _ends_word(text, place) is not None


def context(text: str, start: int, end: int, *, reach: int) -> tuple[str, str]:
  """What stands before and after characters `start` to `end`, to be read word by word."""
  before = normal_form(text[max(start - reach, 0):start])
  after = normal_form(text[end:end + reach])
  if any(sign in before or sign in after for sign in '*_`~'):
    return _MARKDOWN.sub('', before.rstrip('*_`~')), _MARKDOWN.sub('', after.lstrip('*_`~'))
  return before, after


class WordFinder:
  """Finds words and phrases in text as whole words, in any way of writing them."""

  def __init__(self, words: Iterable[str], *, ignore_case: bool = False, any_space: bool = False):
    """Prepares the search."""
    words = sorted({normal_form(w) for w in words}, key=lambda w: (-len(w), w))
    choices = '|'.join(c for w in words for c in _choices(w, any_space))
    # Without the first condition the expression begins with a set of first letters, which `re`
    # searches for quickly; in any case of the letters it does not, and the condition is quicker.
    before = f'(?<!{LETTER})' if ignore_case else ''
    self._pattern = re.compile(f'{before}(?:{choices}){_WORD_END}',
                               re.IGNORECASE if ignore_case else 0)

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
    """The text with `new` for every match, and how many there were."""
    parts, end, count = [], 0, 0
    for match in self.find(text):
      parts += [text[end:match.start()], new]
      end, count = match.end(), count + 1
    return ''.join([*parts, text[end:]]), count

  def match(self, text: str, place: int) -> re.Match | None:
    """The match at character `place`, where a word must begin."""
    return self._pattern.match(text, place) if starts_word(text, place) else None


def written_forms(word: str, *, most: int = 64) -> tuple[list[str], bool]:
  """The ways to write a word, or its beginning where the whole word has more than `most`."""
  forms = ['']
  for cluster in _clusters(word):
    found = _spellings(cluster)
    if len(forms) * len(found) > most and len(forms) > 1 or len(found) > most:
      return forms, False
    forms = [form + spelling for form in forms for spelling in found]
  return forms, True


def _choices(word: str, any_space: bool) -> Iterator[str]:
  """Patterns of a word in the normal form, one for each way to write its first letter."""
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
  """Letters of a word, each with the marks that follow it, in the normal form."""
  start, word = 0, normal_form(word)
  for place in range(1, len(word) + 1):
    if place == len(word) or not unicodedata.category(word[place]).startswith('M'):
      yield word[start:place]
      start = place


@functools.lru_cache(maxsize=4096)
def _spellings(cluster: str) -> tuple[str, ...]:
  """All texts that are equal to a letter with its marks: the normal one first."""
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
