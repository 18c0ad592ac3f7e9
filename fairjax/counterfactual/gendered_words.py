"""Pairs of gendered words and lists of first names as data: the built-in list, and file readers.

Webster et al. 2020, section 5.2 swap the word pairs of Zhao et al. 2018 (definitions W-02, W-14).
These lists, like the paper, have two genders only: a limit of the method, not a claim about people.

A file of pairs (UTF-8; `#` begins a comment line; letters' case does not count) is one of:

* a pair on each line, separated by a tab (words may then hold spaces) or by spaces; `_` stands for
  a space. The first column is male, unless the built-in list has the words of a pair in the other
  order, which is reported. A third column is a neutral word (W-21, footnote 6);
* a list of replacements, recognised by rows that occur in both directions (`man woman` and
  `woman man`): the second column replaces the first, and the genders follow from all rows together;
* two files, one with the male and one with the female words, line by line.

A word may have several partners (a bride has a groom and a bridegroom). The first partner replaces
it; the others are only replaced by it and are listed in `one_way`.
"""

import collections
import csv
import dataclasses
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fairjax.counterfactual.attributes import ASSETS
from fairjax.counterfactual.word_forms import LETTERS, normal_form
from fairjax.errors import UserError
from fairjax.files import json_sha256
from fairjax.inputs import read_text, read_text_lines

_BUILT_IN = 'gender_pairs.txt'
# Signs of other forms of lists (commas, quotes, arrows), which no word holds.
_NO_WORD = re.compile(r'\W|.*[,;:"“”()\[\]{}<>|/=]')
# Not in the built-in list, for the reasons given there, but they show which column of another list
# is male.
_MORE_MALE = frozenset('dude dudes chap lord lords god gods governor master host poet'.split())
# "his" is their or theirs, "her" them or their, as the sentence has it. These partners have the
# second use alone, whose neutral word is theirs.
_SECOND_USE = {'his': 'hers', 'her': 'him'}
_MORE_FEMALE = frozenset('chick chicks goddess governess mistress hostess poetess miss'.split())


@dataclasses.dataclass(frozen=True)
class WordPairs:
  """Words of two genders and their replacements, in lower case."""

  pairs: tuple[tuple[str, str], ...]  # different (male, female) pairs, in the order of the file
  to_female: Mapping[str, str] = dataclasses.field(hash=False)  # male word -> its replacement
  to_male: Mapping[str, str] = dataclasses.field(hash=False)  # female word -> its replacement
  # Male or female word -> its neutral one, where the list has a third column
  to_neutral: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
  source: str = ''  # the file
  turned: tuple[str, ...] = ()  # `file:line` of two-column rows whose first word is female

  @property
  def male(self) -> tuple[str, ...]:
    """Male words, in order, each once."""
    return tuple(self.to_female)

  @property
  def female(self) -> tuple[str, ...]:
    """Female words, in order, each once."""
    return tuple(self.to_male)

  @functools.cached_property
  def partner(self) -> Mapping[str, str]:
    """Replacement of every word."""
    return {**self.to_female, **self.to_male}

  @property
  def one_way(self) -> tuple[str, ...]:
    """Words that a second swap does not restore: the partner of their partner is another word."""
    return tuple(w for w in self.partner if self.partner[self.partner[w]] != w)

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256 (hex) of the replacements; the path of the list does not count."""
    content = [self.pairs, dict(self.to_female), dict(self.to_male), dict(self.to_neutral)]
    return json_sha256(content)


def read_word_pairs(
  path: str | os.PathLike | None = None, female: str | os.PathLike | None = None) -> WordPairs:
  """Reads word pairs, as the module describes; without a path the built-in list.

  With `female`, `path` holds the male words, and line i of `female` the partner of its line i.
  """
  if path is None:
    text = (ASSETS / _BUILT_IN).read_text(encoding='utf-8')
    return _collect(_BUILT_IN, list(_rows(_BUILT_IN, text)), known=None)
  path = os.fspath(path)
  if female is None:
    return _collect(path, list(_rows(path, read_text(path, what='word pairs'))), known=_known())
  sides = [[' '.join(line.split()) for line in read_text(side, what='word pairs').rstrip().split(
    '\n')] for side in (path, female)]
  if len(sides[0]) != len(sides[1]):
    raise UserError(f'{path} has {len(sides[0])} lines and {female} {len(sides[1])}: line i of one '
                    'is the partner of line i of the other')
  rows = list(_rows(path, '\n'.join(map('\t'.join, zip(*sides, strict=True)))))
  for place, words in rows:
    if words[0] in _known().female or words[1] in _known().male:
      raise UserError(f"{place}: '{words[0]}' is the female word of its pair with '{words[1]}': "
                      'the file of male words comes first')
  return _collect(f'{path} + {os.fspath(female)}', rows, known=None)


class _Known(NamedTuple):
  """Words whose gender is known."""

  male: frozenset[str]
  female: frozenset[str]


@functools.cache
def _known() -> _Known:
  built_in = read_word_pairs()
  return _Known(_MORE_MALE.union(built_in.male), _MORE_FEMALE.union(built_in.female))


def _rows(path: str, text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
  """(place, words) of each pair."""
  for number, line in enumerate(text.split('\n'), 1):
    if not line.strip() or line.lstrip().startswith('#'):
      continue
    place = f'{path}:{number}'
    words = tuple(map(_word, line.split('\t') if '\t' in line else line.split()))
    if not 2 <= len(words) <= 3:
      raise UserError(f'{place}: {len(words)} column(s): a row is a male and a female word, and a '
                      'neutral one if you like (tab, or spaces; _ stands for a space in a word)')
    if not all(words):
      raise UserError(f'{place}: an empty side: each word needs its partner')
    for word in words[:2]:
      if _NO_WORD.match(word) or not LETTERS.match(normal_form(word).lower()):
        raise UserError(f"{place}: '{word}' is no word: separate the words of a row by a tab or "
                        'spaces, without commas, quotes or brackets')
    yield place, words


def _word(text: str) -> str:
  return ' '.join(normal_form(text.replace('_', ' ').lower()).split())


def _collect(
  source: str, rows: list[tuple[str, tuple[str, ...]]], *, known: _Known | None) -> WordPairs:
  """Collects the pairs of rows; words in `known` may exchange the columns of a row."""
  if not rows:
    raise UserError(f'{source}: no pair in it: give a male and a female word a line')
  found = {row[:2] for _, row in rows}
  directed = known is not None and any(row[::-1] in found for row in found)  # a replacement list
  first_seen: dict[str, tuple[int, str]] = {}
  for place, words in rows:
    for side, word in enumerate(words[:2]):
      seen, where = first_seen.setdefault(word, (side, place))
      if seen != side and not directed:
        raise UserError(f"{place}: '{word}' is in both genders: {('male', 'female')[seen]} in "
                        f'{where}, {("male", "female")[side]} here; a word has one gender')
  is_male = _genders(rows, known)
  pairs, replaced_by, to_neutral, turned = {}, {}, {}, []
  for place, (left, right, *neutral) in rows:
    pair = (left, right) if is_male[left] else (right, left)
    if pair != (left, right) and not directed:
      turned.append(place)
    if directed and replaced_by.setdefault(left, (right, place))[0] != right:
      raise UserError(f"{place}: '{left}' becomes '{right}' here and '{replaced_by[left][0]}' in "
                      f'{replaced_by[left][1]}: a replacement is given once')
    pairs.setdefault(pair, place)
    for word in pair if neutral else ():
      if _SECOND_USE.get(word) in pair:
        continue
      if to_neutral.setdefault(word, neutral[0]) != neutral[0]:
        raise UserError(f"{place}: the neutral word of '{word}' is '{neutral[0]}' here and "
                        f"'{to_neutral[word]}' before: give it once")
  # A row as written has priority over a row read in the other direction.
  partner = {word: other for word, (other, _) in replaced_by.items()}
  for male, female in pairs:
    partner.setdefault(male, female)
    partner.setdefault(female, male)
  return WordPairs(
    pairs=tuple(pairs), source=source, turned=tuple(turned),
    to_female={male: partner[male] for male, _ in pairs},
    to_male={female: partner[female] for _, female in pairs}, to_neutral=to_neutral)


def _genders(rows: list[tuple[str, tuple[str, ...]]], known: _Known | None) -> dict[str, bool]:
  """Word -> whether it is male."""
  # Partners have different genders. That leaves one choice for all words that rows connect: words
  # in `known` make it, otherwise the first word of the first row is male.
  neighbours = collections.defaultdict(list)
  for place, (left, right, *_) in rows:
    if left == right:
      raise UserError(f"{place}: '{left}' is in both genders: a word cannot be its own partner")
    neighbours[left].append((right, place))
    neighbours[right].append((left, place))
  is_male: dict[str, bool] = {}
  for _, (first, *_) in rows:
    if first in is_male:
      continue
    group, queue = {first: True}, [first]
    for word in queue:
      for other, place in neighbours[word]:
        if other not in group:
          queue.append(other)
        if group.setdefault(other, not group[word]) == group[word]:
          raise UserError(f"{place}: '{other}' is in both genders: by other rows it has the gender "
                          f"of '{word}', which is its partner here")
    male, female = known or ((), ())
    agree = {(word in male) == side for word, side in group.items() if word in male or
             word in female}
    if len(agree) == 2:
      odd = next(w for w, side in group.items() if w in (female if side == group[first] else male))
      raise UserError(f"{neighbours[odd][0][1]}: '{odd}' is in both genders: words that the rows "
                      f"connect with it, such as '{neighbours[odd][0][0]}', have its own")
    flip = agree == {False}
    is_male |= {word: side != flip for word, side in group.items()}
  return is_male


# First names by gender, from counts in the formats of the US Social Security statistics.
#
# Webster et al. 2020, section 3: names with more than 80 % of their counts in one gender (W-02).
# Rows of two formats are read and may be mixed:
#
# * `name,sex,count` with sex F or M, the file of one year (yobYYYY.txt), a row for each gender;
# * `name`, female count, male count, separated by tabs or commas: sums over years.
#
# Names in capitals or small letters throughout (MARY, as in the census lists) are read as Mary. A
# name that is written in two ways (`word_forms`) is one name, as it is written first.
#
# The statistics have two genders, as registered at birth, of people in the United States only.

_SHARE = 0.8
_FORMATS = 'give name,F,count or name,M,count; or name, female count, male count'


@dataclasses.dataclass(frozen=True)
class NameLists:
  """Names of two genders, the most frequent in that gender first, then by letter."""

  female: tuple[str, ...]  # names with more than 80 % of their count as female
  male: tuple[str, ...]  # the same, as male
  source: str = ''  # the files
  neither: int = 0  # names in the files that are in no list, for their share or their count

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256 (hex) of the two lists."""
    return json_sha256([self.female, self.male])


def read_names(
  path: str | os.PathLike | Sequence[str | os.PathLike], *, least_count: int = 1) -> NameLists:
  """Reads files, whose counts are added, and chooses the names of one gender.

  A name with fewer than `least_count`, both genders together, is left out.
  """
  paths = [os.fspath(p) for p in ([path] if isinstance(path, str | os.PathLike) else path)]
  counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])  # female, male
  written: dict[str, str] = {}  # each name as it is written first
  for file in paths:
    seen: dict[tuple[str, str], int] = {}
    for number, line in enumerate(read_text_lines(file, what='file of names'), 1):
      if not line.strip() or line.startswith('#'):
        continue
      try:
        (row,) = csv.reader([line.strip()], delimiter='\t' if '\t' in line else ',',
                            skipinitialspace=True)
      except csv.Error as e:
        raise UserError(f'{file}:{number}: not CSV ({e}): {_FORMATS}') from None
      columns = [c.strip() for c in row]
      if len(columns) != 3 or not columns[0]:
        raise UserError(f'{file}:{number}: {len(columns)} column(s) in {line.strip()!r}: '
                        + _FORMATS)
      name, second, third = columns
      plain = normal_form(name)
      if not LETTERS.match(plain.lower()):
        raise UserError(f"{file}:{number}: '{name}' is no name: it begins with a sign")
      name = plain.title() if name.isupper() or name.islower() else name
      name = written.setdefault(normal_form(name), name)
      if second in ('F', 'M'):
        counts[name][second == 'M'] += _count(third, file, number)
      else:
        for gender, text in enumerate((second, third)):
          counts[name][gender] += _count(text, file, number)
        second = ''
      first = seen.setdefault((name, second), number)
      if first != number:
        raise UserError(f"{file}:{number}: '{name}' is in line {first} already: a file gives a "
                        'name once (for each gender)')
    if not seen:
      raise UserError(f'{file}: no name in it: {_FORMATS}')
  lists = []
  for gender in (0, 1):
    names = [n for n, c in counts.items() if sum(c) >= max(least_count, 1) and
             c[gender] > _SHARE * sum(c)]
    names.sort(key=lambda n: (-counts[n][gender], n))
    lists.append(tuple(names))
  source = ' + '.join(paths)
  for name, chosen in zip(('female', 'male'), lists, strict=True):
    if not chosen:
      raise UserError(f'{source}: no name has more than {_SHARE:.0%} of its count as {name}: '
                      'both genders are needed')
  female, male = lists
  return NameLists(female, male, source, neither=len(counts) - len(female) - len(male))


def _count(text: str, path: str, number: int) -> int:
  if not (text.isascii() and text.isdigit() and len(text) < 19):
    raise UserError(f"{path}:{number}: '{text}' is no count (a whole number from 0 on): {_FORMATS}")
  return int(text)
