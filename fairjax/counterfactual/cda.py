"""Counterfactual data augmentation: sentences with the other gender (Webster et al. 2020, 5.2).

Definitions W-14 to W-16. `GenderSwap` replaces gendered words by their partners, and first names by
other names; `augment` makes a corpus of what it gives:

* one-sided: only the counterfactual sentences; sentences that nothing changes are left out;
* two-sided: every sentence, and behind it its counterfactual one if it has one.

Whatever is left out, and whatever is a word of a pair but kept, is counted. Swapping twice gives
the text back where the pairs allow it: not for words in `WordPairs.one_way`, and for "her" and
"his" where the rule of `fairjax.counterfactual.pronouns` errs.
"""

import collections
import dataclasses
import functools
import hashlib
import importlib.resources
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from fairjax.counterfactual.gendered_words import NameLists, WordPairs
from fairjax.counterfactual.pronouns import (
  CONTEXT,
  her_is_object,
  his_is_independent,
  in_case_of,
  reason_to_keep,
)
from fairjax.counterfactual.word_forms import (
  LETTERS,
  WordFinder,
  context,
  ends_word,
  normal_form,
  starts_word,
)
from fairjax.errors import UserError, unknown_name

SIDES = ('one', 'two')
# Rises with every change of what the rules here, in `pronouns` and in `swap_context` give.
_RULES = 3
UNITS = ('sentence', 'document')
NAME_GENDERS = ('same', 'flip', 'random')


@functools.cache
def _no_first_names() -> frozenset[str]:
  """Words in lists of first names that texts mean otherwise; the asset says how they were found."""
  text = (importlib.resources.files('fairjax.counterfactual') / 'assets' / 'no_first_names.txt'
          ).read_text(encoding='utf-8')
  return frozenset(word for line in text.splitlines() if not line.startswith('#')
                   for word in line.split())


class Change(NamedTuple):
  """Characters `start` to `end` of a text, what stands there, and what comes in its place."""

  start: int
  end: int
  old: str
  new: str
  kind: str  # word | pronoun | name
  mixed_case: bool = False


@dataclasses.dataclass
class CdaCounts:
  """What `augment` did; sums of several are sums of their fields.

  Attributes:
    sentences: read.
    changed: of these, with at least one swap.
    dropped: neutral ones that one-sided augmentation leaves out.
    swaps: words and names replaced.
    words: old word (lower-case) -> swaps; names stand under `(name)`.
    kept: `reason: word` -> how often a word of a pair was kept, see `swap_context`, or a word of
      the list of names that is no first name.
    mixed_case: swapped words in neither lower, title nor upper case.
  """

  sentences: int = 0
  changed: int = 0
  dropped: int = 0
  swaps: int = 0
  words: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  kept: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  mixed_case: int = 0

  def add(self, changes: list[Change], kept: list[tuple[str, str]]) -> None:
    """Counts one sentence."""
    self.sentences += 1
    self.changed += bool(changes)
    self.swaps += len(changes)
    self.words.update('(name)' if c.kind == 'name' else normal_form(c.old.lower())
                      for c in changes)
    self.kept.update(f'{reason}: {normal_form(word.lower())}' for word, reason in kept)
    self.mixed_case += sum(c.mixed_case for c in changes)

  def to_dict(self) -> dict[str, Any]:
    """For JSON; words by how often."""
    return dataclasses.asdict(self) | {
      name: dict(sorted(getattr(self, name).items(), key=lambda item: (-item[1], item[0])))
      for name in ('words', 'kept')}


class GenderSwap:
  """Replaces gendered words, and first names, by those of another gender.

  A function of the text, the settings and `position` alone, so that any number of processes give
  the same result.
  """

  def __init__(
    self, pairs: WordPairs | None, names: NameLists | None = None, seed: int = 0, *,
    name_gender: str = 'random', letters: str = 'A-Z', neutral: bool = False,
  ):
    """Prepares the search."""
    if pairs is None and names is None:
      raise UserError('counterfactuals need word pairs or names')
    if name_gender not in NAME_GENDERS:
      raise unknown_name('gender of names', name_gender, NAME_GENDERS)
    if not re.fullmatch('[A-Z]-[A-Z]', letters) or letters[0] > letters[2]:
      raise UserError(f"letters='{letters}' is no range of initials such as A-M or N-Z")
    if neutral and (pairs is None or not pairs.to_neutral):
      raise UserError('neutral counterfactuals need word pairs with a third column')
    self.pairs, self.names, self.seed = pairs, names, seed
    self.name_gender, self.letters, self.neutral = name_gender, letters, neutral
    self._words = set(pairs.partner) if pairs else set()
    # One rule for the four words that "her" stands between, if the list has it.
    self._pronouns = bool(pairs) and 'her' in pairs.to_male and not neutral
    if self._pronouns:
      self._words |= {'him', 'his', 'her', 'hers'}
    # A search for all of them at every letter takes three times as long.
    self._find, self._first = _by_first_word(self._words)
    self._place = {normal_form(name): (place, g)
                   for g, found in enumerate((names.female, names.male))
                   for place, name in enumerate(found)} if names else {}
    self._find_long_name, self._first_of_long = _by_first_word(
      name for name in self._place if not LETTERS.fullmatch(name))

  @property
  def fingerprint(self) -> str:
    """SHA-256 (hex) of all that the result depends on besides the text."""
    content = (self.pairs and self.pairs.fingerprint, self.names and self.names.fingerprint,
               self.seed, self.name_gender, self.letters, self.neutral, _RULES)
    return hashlib.sha256(repr(content).encode('utf-8')).hexdigest()

  def swap(self, text: str, position: int | None = None) -> tuple[str, int]:
    """The text with the other gender, and how many words and names were swapped.

    Args:
      text: a sentence, or any text.
      position: decides which names are drawn, together with the seed and the name; None: the text
        itself stands for it.

    >>> from fairjax.counterfactual.gendered_words import read_word_pairs
    >>> GenderSwap(read_word_pairs()).swap("HE gave her the king's hat, and her dog is his.")
    ("SHE gave him the queen's hat, and his dog is hers.", 5)
    """
    changes, _ = self.changes(text, position)
    return apply_changes(text, changes), len(changes)

  def changes(
    self, text: str, position: int | None = None,
  ) -> tuple[list[Change], list[tuple[str, str]]]:
    """What `swap` replaces, in order, and the (word, reason) of what it keeps."""
    changes, kept, taken = [], [], set()
    end = 0
    for word in LETTERS.finditer(text):
      lower = word[0].lower()
      if lower not in self._first and (lower.isascii() or normal_form(lower) not in self._first):
        continue
      start = word.start()
      if start < end:
        continue
      match = self._find.match(text, start)
      if match is None:
        continue
      end = match.end()
      taken.update(range(start, end))
      reason = reason_to_keep(text, start, end, gendered=self._words)
      new, kind = self._partner(normal_form(match[0].lower()), text, start, end)
      if not new or reason:
        kept.append((match[0], reason or 'no neutral word'))
        continue
      new, mixed = in_case_of(match[0], new)
      changes.append(Change(start, end, match[0], new, kind, mixed))
    if self._place:
      position = position_of(text) if position is None else position
      found = [c for c in self._name_changes(text, position) if c.start not in taken]
      kept += [(c.old, 'no first name') for c in found if not c.new]
      changes = sorted([*changes, *(c for c in found if c.new)])
    return changes, kept

  def _partner(self, word: str, text: str, start: int, end: int) -> tuple[str, str]:
    """What a word becomes ('' without a neutral word), and its kind."""
    if self.neutral:
      return self.pairs.to_neutral.get(word, ''), 'word'
    if not self._pronouns or word not in ('him', 'his', 'her', 'hers'):
      return self.pairs.partner[word], 'word'
    before, after = context(text, start, end, reach=CONTEXT)
    if word == 'her':
      return ('him' if her_is_object(before, after) else 'his'), 'pronoun'
    if word == 'his':
      return ('hers' if his_is_independent(before, after) else 'her'), 'pronoun'
    return ('his' if word == 'hers' else 'her'), 'pronoun'

  def _name_changes(self, text: str, position: int) -> Iterator[Change]:
    """Names and what comes in their place: '' where the word is no first name."""
    first, _, last = self.letters
    end = 0
    for match in LETTERS.finditer(text):
      old = match[0]
      if not first <= old[0] <= last and (  # the letter without its accents counts
          old[0].isascii() or not first <= unicodedata.normalize('NFD', old[0])[0] <= last):
        continue
      if match.start() < end:
        continue
      if self._find_long_name and normal_form(old).lower() in self._first_of_long:
        long = self._find_long_name.match(text, match.start())
        match = long if long and self._name_of(long[0]) else match
        old = match[0]
      name = self._name_of(old)
      if not name or not (starts_word(text, match.start()) and ends_word(text, match.end())):
        continue
      end = match.end()
      is_name = _no_first_names().isdisjoint((name, normal_form(old)))
      new = self._draw(name, position) if is_name else ''
      in_capitals = normal_form(old) != name
      yield Change(*match.span(), old, new.upper() if in_capitals else new, 'name')

  def _name_of(self, old: str) -> str:
    """The name of the lists that a word of a text is, perhaps in capitals; '' if it is none."""
    name = normal_form(old)
    if name.isupper() and len(name) > 1:
      name = name.title()
    return name if name in self._place else ''

  def _draw(self, name: str, position: int) -> str:
    place, own = self._place[name]
    gender = own
    digest = hashlib.sha256(f'{self.seed}/{position}/{name}'.encode()).digest()
    if self.name_gender == 'flip' or self.name_gender == 'random' and digest[0] & 1:
      gender = 1 - gender
    pool, number = (self.names.female, self.names.male)[gender], int.from_bytes(digest[1:9], 'big')
    if own != gender or len(pool) == 1:
      return pool[number % len(pool)]
    index = number % (len(pool) - 1)  # another one, all with the same chance
    return pool[index + (index >= place)]


def _by_first_word(words: Iterable[str]) -> tuple[WordFinder | None, frozenset[str]]:
  """A search for words in any case, and the first words, in lower case, at which to try it."""
  words = list(words)
  if not words:
    return None, frozenset()
  return (WordFinder(words, ignore_case=True),
          frozenset(LETTERS.match(normal_form(w).lower())[0] for w in words))


def position_of(text: str) -> int:
  """A number that stands for a text: the same wherever it is read."""
  return int.from_bytes(hashlib.sha256(text.encode('utf-8', 'surrogatepass')).digest()[:8], 'big')


def apply_changes(text: str, changes: Iterable[Change]) -> str:
  """The text with its changes, which are in order and do not overlap."""
  parts, at = [], 0
  for change in changes:
    parts += [text[at:change.start], change.new]
    at = change.end
  return ''.join([*parts, text[at:]])


def augment(
  sentences: Iterable[str], swap: GenderSwap, sided: str = 'two', *,
  counts: CdaCounts | None = None, position: int | None = None,
) -> Iterator[str]:
  """Sentences with their counterfactual ones (W-14, W-15).

  Args:
    sentences: any number of texts, read once.
    swap: makes a counterfactual.
    sided: one (only counterfactual sentences), or two (each sentence, then its counterfactual one;
      a neutral sentence once).
    counts: is added to.
    position: of all of them, for names; None: each sentence stands for its own.

  Raises:
    UserError: another `sided`.

  >>> from fairjax.counterfactual.gendered_words import read_word_pairs
  >>> list(augment(['It rains.', 'He sings.'], GenderSwap(read_word_pairs())))
  ['It rains.', 'He sings.', 'She sings.']
  """
  if sided not in SIDES:
    raise unknown_name('way of augmenting', sided, SIDES)
  counts = CdaCounts() if counts is None else counts
  for sentence in sentences:
    changes, kept = swap.changes(sentence, position)
    counts.add(changes, kept)
    if sided == 'two':
      yield sentence
    elif not changes:
      counts.dropped += 1
    if changes:
      yield apply_changes(sentence, changes)


def augment_document(
  document: str, swap: GenderSwap, sided: str, *, unit: str, split: Callable[[str], list[str]],
  counts: CdaCounts | None = None,
) -> list[str]:
  """The documents that stand for one document: none, itself, or itself and a counterfactual one.

  Args:
    document: any text.
    swap: makes a counterfactual.
    sided: one or two, as `augment`.
    unit: sentence (the counterfactual document holds the counterfactual sentences only, so that a
      neutral sentence occurs once, W-15) or document (it is the whole text, swapped).
    split: text -> its sentences.
    counts: is added to; a document is one sentence with the unit document.

  Raises:
    UserError: another `sided` or `unit`.
  """
  if sided not in SIDES:
    raise unknown_name('way of augmenting', sided, SIDES)
  if unit not in UNITS:
    raise unknown_name('unit of augmentation', unit, UNITS)
  counts = CdaCounts() if counts is None else counts
  position = position_of(document)  # a name becomes the same one in the whole document
  lines = [[document]] if unit == 'document' else map(split, document.split('\n'))
  found = []
  for line in lines:
    swapped = []
    for sentence in line:
      changes, kept = swap.changes(sentence, position)
      counts.add(changes, kept)
      if changes:
        swapped.append(apply_changes(sentence, changes))
      elif sided == 'one':
        counts.dropped += 1
    if swapped:
      found.append(' '.join(swapped))
  return ([document] if sided == 'two' else []) + (['\n'.join(found)] if found else [])
