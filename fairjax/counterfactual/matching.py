"""Finds the sensitive tokens of an attribute in text and in token ids.

A match (definition H-01; a "sensitive token" is one of phi(a)):

* is case-sensitive, in any way of writing the same accents, apostrophes and hyphens (`word_forms`);
  a value of several words has single spaces between them;
* consists of whole words, by the borders of `word_forms`. "bakery" contains no "baker"; "cook.",
  "(cook", "Italy's", "Iran-Iraq", "_Iran_" and "co-writer" contain matches, since hyphens,
  apostrophes and other punctuation are borders;
* is the longest at its place and does not overlap another match;
* in ids must also begin and end where ids do; other matches are counted and not returned.
"""

import bisect
import collections
import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.counterfactual.attributes import Attribute
from fairjax.counterfactual.word_forms import (
  UNSPACED,
  WordFinder,
  normal_form,
  written_forms,
)
from fairjax.errors import UserError
from fairjax.vocabulary import Vocabulary, WordVocabulary, document_words

_ASCII_WORD = re.compile(rb'[A-Za-z0-9]')
_ENCODING = {'encoding': 'utf-8', 'errors': 'surrogateescape'}
# Surface of ends of documents; no value can contain it.
_SEPARATOR = b'\0'
# A word border depends on at most two characters of 4 bytes (a joiner and a letter, or three signs
# of one byte and a letter), each an id.
_CONTEXT_IDS = 8
_BLOCK_IDS = 1 << 20


class Match(NamedTuple):
  """Characters `start` to `end` (exclusive) of a text hold a token of value `value_index`."""

  start: int
  end: int
  value_index: int


class TextMatcher:
  """Finds an attribute's sensitive tokens in text."""

  def __init__(self, attribute: Attribute, spell: Callable[[str], str] = str):
    """Prepares the search; `spell` writes the tokens as in the texts, e.g. 'Guinea @-@ Bissau'."""
    if attribute.crossed:
      raise UserError(f'{attribute.name} crosses two attributes, for prompts only: name one of '
                      'them where its words are searched or exchanged in texts')
    self.attribute = attribute
    self.owner: dict[str, int] = {}  # what is searched, in the normal form -> value index
    for i, value in enumerate(attribute.values):
      for token in map(normal_form, value.tokens):
        # An apostrophe of another kind may cut a word elsewhere.
        forms, whole = written_forms(token)
        self.owner |= {normal_form(spell(form)): i for form in (forms if whole else (token,))}
    self._find = WordFinder(self.owner).find

  def find(self, text: str, start: int = 0) -> list[Match]:
    """All matches in `text` from character `start` on, in order.

    >>> from fairjax.counterfactual.attributes import load_attribute
    >>> TextMatcher(load_attribute('occupation')).find('The baker of the bakery is a cook.')
    [Match(start=4, end=9, value_index=11), Match(start=29, end=33, value_index=17)]
    """
    return [Match(*m.span(), self.owner[normal_form(m[0])]) for m in self._find(text, start)]


class TokenMatcher:
  """Finds an attribute's sensitive tokens in ids of a vocabulary.

  The result is that of `TextMatcher` on the decoded text of each document. Tables over the
  vocabulary exclude nearly all places, and only the others are decoded.
  """

  def __init__(self, attribute: Attribute, vocabulary: Vocabulary):
    self.attribute, self.vocabulary = attribute, vocabulary
    self._word_list = vocabulary.kind == 'word'
    spell = _spaced if self._word_list else str
    self._text_matcher = TextMatcher(attribute, spell)
    self._surfaces = [s or _SEPARATOR for s in vocabulary.surfaces]
    tokens = list(self._text_matcher.owner)
    # No match has more ids than this, since each adds a byte and no way to write a character is
    # longer than four of its normal one; then the ids on which its border depends.
    self._reach = max(len(t.encode('utf-8')) * (1 if t.isascii() else 4) for t in tokens)
    self._reach += _CONTEXT_IDS
    self._begins = _beginnings(tokens, self._surfaces)
    self._may_begin = np.zeros(vocabulary.size, bool)
    self._may_begin[list(self._begins)] = True
    self._pair_may_match = functools.lru_cache(maxsize=1 << 20)(self._check_pair)
    self._may_mention = re.compile('|'.join(
      re.escape(form) for t in tokens for form in written_forms(t.split()[0])[0])).search
    self._may_be_unknown = self._word_list or any(
      self._is_unknown(t) for v in attribute.values for t in v.tokens)

  def find(self, ids: Sequence[Any] | np.ndarray) -> tuple[np.ndarray, int]:
    """All matches in `ids` that begin and end at borders of ids.

    `ids` `[n]` may hold any number of documents, each ended by eos; no match crosses an eos or pad.
    A memory map is read in blocks. Returns `[m, 3]` int32, in order: first id, id after the last,
    value index; and the number of matches that begin or end inside an id and are left out.
    """
    ids = np.asarray(ids)
    if not len(ids):
      return np.zeros((0, 3), np.int32), 0
    places = np.concatenate(
      [self._candidates(ids, s, min(s + _BLOCK_IDS, len(ids)))
       for s in range(0, len(ids), _BLOCK_IDS)])
    spans, unaligned = [], 0
    for group in _groups(places, gap=_CONTEXT_IDS + self._reach):
      start = max(group[0] - _CONTEXT_IDS, 0)
      window = ids[start:group[-1] + self._reach].tolist()
      found, left_out = self._find_exactly(window, group[0] - start)
      spans += [(start + a, start + b, value) for a, b, value in found]
      unaligned += left_out
    return np.array(spans, np.int32).reshape(-1, 3), unaligned

  def count_unknown(self, text: str) -> int:
    """Matches in one document with a word or character that its ids give as unknown."""
    if not self._may_be_unknown:
      return 0
    if not isinstance(self.vocabulary, WordVocabulary):
      return sum(self._is_unknown(text[m.start:m.end]) for m in self._text_matcher.find(text))
    if not self._may_mention(text):
      return 0
    cut, unknown = document_words(self.vocabulary.documents), 0
    for line in text.split('\n'):
      words = cut(line)
      spaced, starts = ' '.join(words), [0, *itertools.accumulate(len(w) + 1 for w in words)]
      for start, end, _ in self._text_matcher.find(spaced):  # a match covers words[first:last]
        first, last = bisect.bisect(starts, start) - 1, bisect.bisect_left(starts, end)
        unknown += any(not self.vocabulary.knows(word) for word in words[first:last])
    return unknown

  def _is_unknown(self, text: str) -> bool:
    return self.vocabulary.unk_id in self.vocabulary.encode(text)

  def _candidates(self, ids: np.ndarray, start: int, end: int) -> np.ndarray:
    """Places in [start, end) whose id may begin a match: all that do, and a few others."""
    eos = np.array([self.vocabulary.eos_id])
    block = np.concatenate([ids[start:end + 1], eos[end < len(ids):]]).astype(np.int64)
    places = np.flatnonzero(self._may_begin[block[:-1]])
    pairs, inverse = np.unique(
      block[places] * self.vocabulary.size + block[places + 1], return_inverse=True)
    may_match = np.array(
      [self._pair_may_match(*divmod(pair, self.vocabulary.size)) for pair in pairs.tolist()], bool)
    return places[may_match[inverse]] + start

  def _check_pair(self, first: int, second: int) -> bool:
    """Whether a match may begin in id `first` when id `second` follows."""
    begin, follows = self._begins[first], self._surfaces[second]
    return begin.whole or any(
      rest.startswith(follows)
      or follows.startswith(rest) and not (ends and _ASCII_WORD.match(follows, len(rest)))
      for rest, ends in begin.rests)

  def _find_exactly(self, ids: list[int], first: int) -> tuple[list[tuple[int, int, int]], int]:
    """Matches in a window of ids from index `first` on, by decoding it."""
    surfaces = [self._surfaces[i] for i in ids]
    offsets = [0, *itertools.accumulate(map(len, surfaces))]
    content = b''.join(surfaces)
    starts = {offsets[i] + s.startswith(b' '): i for i, s in enumerate(surfaces)}
    ends = {offset: i for i, offset in enumerate(offsets)}
    found, unaligned = [], 0
    text = content.decode(**_ENCODING)
    # The ids before `first` only decide its word border; their own borders may be out of sight.
    begin_at = len(content[:offsets[first]].decode(**_ENCODING))
    place = begin = 0  # in characters and in bytes; matches are in order
    for start, end, value in self._text_matcher.find(text, begin_at):
      begin += len(text[place:start].encode(**_ENCODING))
      place = start
      stop = ends.get(begin + len(text[start:end].encode(**_ENCODING)))
      if begin in starts and stop is not None:
        found.append((starts[begin], stop, value))
      else:
        unaligned += 1
    return found, unaligned


def _spaced(text: str) -> str:
  """A text as words of WikiText's form with spaces between them."""
  return ' '.join(document_words('text')(text))


class _Beginning(NamedTuple):
  """Beginnings of matches inside one id."""

  whole: bool  # it contains a whole token
  rests: tuple[tuple[bytes, bool], ...]  # what must follow, and whether the token ends with it


def _beginnings(tokens: list[str], surfaces: Sequence[bytes]) -> dict[int, _Beginning]:
  """Beginnings of matches in the bytes of each id that has some."""
  # Word borders are checked by ASCII letters only; superfluous beginnings do no harm.
  forms = [(form.encode('utf-8'), ends and not UNSPACED.match(token[-1])) for token in tokens
           for found, ends in [written_forms(token)] for form in found]
  first = b''.join({re.escape(form[:1]) for form, _ in forms})
  places = re.compile(rb'(?:(?<![A-Za-z0-9])|(?=[\x80-\xff]))[%s]' % first).finditer
  begins_whole = re.compile(b'|'.join(
    re.escape(form) + (b'(?![A-Za-z0-9])' if ends else b'')
    for form, ends in sorted(forms, key=lambda f: -len(f[0])))).match
  rests = collections.defaultdict(set)
  for form, ends in forms:
    for n in range(1, len(form)):
      rests[form[:n]].add((form[n:], ends))
  found = {}
  for number, surface in enumerate(surfaces):
    offsets = [place.start() for place in places(surface)]
    whole = any(begins_whole(surface, offset) for offset in offsets)
    follow = set().union(*(rests.get(surface[offset:], ()) for offset in offsets))
    if whole or follow:
      found[number] = _Beginning(whole, tuple(sorted(follow)))
  return found


def _groups(places: np.ndarray, *, gap: int) -> list[list[int]]:
  """Splits sorted places where neighbours are more than `gap` apart."""
  cuts = np.flatnonzero(np.diff(places) > gap) + 1
  return [g.tolist() for g in np.split(places, cuts)] if len(places) else []


class Replacements:
  """Ids of every value of an attribute, which replace those of a matched value.

  `starts_word`, `[V]` bool: whether an id begins with a space; its replacement must too.
  `unknown`: values with an unknown word, which cannot replace anything.
  """

  def __init__(self, attribute: Attribute, vocabulary: Vocabulary):
    """Encodes every value once for the starts of words and once for other places."""
    # The text before may be any, in the second case any that does not end in a space.
    self._attribute, self._pieces = attribute, {
      starts: [list(vocabulary.encode_as_continuation(v.text, before)) for v in attribute.values]
      for starts, before in ((True, 'a '), (False, '('))}
    self.starts_word = np.array(
      [vocabulary.kind == 'word' or s.startswith(b' ') for s in vocabulary.surfaces])
    self.unknown = tuple(
      i for i, ids in enumerate(self._pieces[True]) if vocabulary.unk_id in ids)
    self.fitting = functools.cache(self._fitting)

  def pieces(self, value_index: int, starts_word: bool) -> list[int]:
    """Ids of a value, for a place whose first id begins a word or does not."""
    return self._pieces[starts_word][value_index]

  def _fitting(self, value_index: int, starts_word: bool, *, num_pieces: int) -> tuple[int, ...]:
    """Values that may replace a value: of another subgroup, known, at most `num_pieces` ids."""
    return tuple(i for i in self._attribute.alternatives(value_index)
                 if i not in self.unknown and len(self.pieces(i, starts_word)) <= num_pieces)

  def unusable(self, *, num_pieces: int) -> list[str]:
    """Formats a line for each value that never replaces another with P = `num_pieces`."""
    lines = []
    for i, value in enumerate(self._attribute.values):
      if i in self.unknown:
        lines.append(f"'{value.text}' is not in the vocabulary")
      elif (length := len(self.pieces(i, True))) > num_pieces:
        lines.append(f"'{value.text}' is {length} pieces, more than {num_pieces}")
    return lines
