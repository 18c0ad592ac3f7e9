"""Counterfactual data augmentation: sentences with the other gender (Webster et al. 2020, 5.2).

Definitions W-14 to W-16. `GenderSwap` replaces gendered words by their partners, and first names by
other names; `augment_document` makes a corpus of the results:

* one-sided: only the counterfactual sentences; sentences without a change are left out;
* two-sided: every sentence, followed by its counterfactual one if it has one.

Sentences that are left out and words of a pair that are kept are counted. A second swap restores
the text, except for words in `WordPairs.one_way` and where the rule for "her" and "his" in
`fairjax.counterfactual.pronouns` errs.
"""

import collections
import dataclasses
import functools
import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from fairjax.counterfactual.attributes import ASSETS
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

# Increased with every change of the results of the rules here and in `pronouns`.
_RULES = 4
_NEUTRAL_RULES = 2  # of the third column


@functools.cache
def _no_first_names() -> frozenset[str]:
  """Words of the lists of first names that are mostly no names in texts; see the asset."""
  text = (ASSETS / 'no_first_names.txt').read_text(encoding='utf-8')
  return frozenset(word for line in text.splitlines() if not line.startswith('#')
                   for word in line.split())


class Change(NamedTuple):
  """Replacement of the characters `start` to `end` of a text."""

  start: int
  end: int
  old: str
  new: str
  is_name: bool = False
  mixed_case: bool = False


@dataclasses.dataclass
class CdaCounts:
  """Counts of `augment_document`; counts of several corpora are sums of the fields."""

  sentences: int = 0  # read
  changed: int = 0  # with at least one swap
  dropped: int = 0  # neutral ones that one-sided augmentation leaves out
  swaps: int = 0  # words and names replaced
  # Old word in lower case, `(name)` for all names -> swaps
  words: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  # `reason: word` -> how often a word of a pair was kept (`pronouns.reason_to_keep`), or a word of
  # the lists of names was no first name
  kept: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  mixed_case: int = 0  # swapped words in neither lower, title nor upper case

  def add(self, changes: list[Change], kept: list[tuple[str, str]]) -> None:
    """Counts one sentence."""
    self.sentences += 1
    self.changed += bool(changes)
    self.swaps += len(changes)
    self.words.update('(name)' if c.is_name else normal_form(c.old.lower())
                      for c in changes)
    self.kept.update(f'{reason}: {normal_form(word.lower())}' for word, reason in kept)
    self.mixed_case += sum(c.mixed_case for c in changes)

  def to_dict(self) -> dict[str, Any]:
    """Converts to JSON values, the most frequent words first."""
    return dataclasses.asdict(self) | {
      name: dict(sorted(getattr(self, name).items(), key=lambda item: (-item[1], item[0])))
      for name in ('words', 'kept')}


class GenderSwap:
  """Replaces gendered words and first names by those of another gender.

  The result depends only on the text, the settings and `position`, so that it is the same for any
  number of processes.
  """

  def __init__(
    self, pairs: WordPairs | None, names: NameLists | None = None, seed: int = 0, *,
    name_gender: str = 'random', letters: str = 'A-Z', neutral: bool = False,
  ):
    """Prepares the search; `UserError` if a setting is invalid or there is nothing to swap.

    `pairs` None swaps names only (W-16), `names` None words only. The new name has the gender of
    the old one (same), the other one (flip), or a drawn one (random); all names of a gender have
    the same chance. Names with the initials `letters`, e.g. A-M, are replaced by names with any.
    `neutral`: words become the neutral ones of a list with three columns (W-21).
    """
    if pairs is None and names is None:
      raise UserError('counterfactuals need word pairs or names')
    if name_gender not in (known := ('same', 'flip', 'random')):
      raise unknown_name('gender of names', name_gender, known)
    if not re.fullmatch('[A-Z]-[A-Z]', letters) or letters[0] > letters[2]:
      raise UserError(f"letters='{letters}' is no range of initials such as A-M or N-Z")
    if neutral and (pairs is None or not pairs.to_neutral):
      raise UserError('neutral counterfactuals need word pairs with a third column')
    self.pairs, self.names, self.seed = pairs, names, seed
    self.name_gender, self.letters, self.neutral = name_gender, letters, neutral
    self._words = set(pairs.partner) if pairs else set()
    # If the list has "her", one rule decides among him, his, her and hers.
    self._pronouns = bool(pairs) and 'her' in pairs.to_male and not neutral
    if self._pronouns:
      self._words |= {'him', 'his', 'her', 'hers'}
    # Trying the search at first words only takes a third of the time.
    self._find, self._first = _by_first_word(self._words)
    self._place = {normal_form(name): (place, g)
                   for g, found in enumerate((names.female, names.male))
                   for place, name in enumerate(found)} if names else {}
    self._find_long_name, self._first_of_long = _by_first_word(
      name for name in self._place if not LETTERS.fullmatch(name))

  @property
  def fingerprint(self) -> str:
    """SHA-256 (hex) of everything besides the text on which the result depends."""
    content = (self.pairs and self.pairs.fingerprint, self.names and self.names.fingerprint,
               self.seed, self.name_gender, self.letters, self.neutral and _NEUTRAL_RULES, _RULES)
    return hashlib.sha256(repr(content).encode('utf-8')).hexdigest()

  def swap(
    self, text: str, position: int | None = None,
  ) -> tuple[str, list[Change], list[tuple[str, str]]]:
    """The text with the other gender, the changes in order, and (word, reason) of what is kept.

    `position` decides with the seed and the name which name is drawn; None: a hash of the text.

    >>> from fairjax.counterfactual.gendered_words import read_word_pairs
    >>> swap = GenderSwap(read_word_pairs()).swap
    >>> swap("HE gave her the king's hat, and her dog is his.")[0]
    "SHE gave him the queen's hat, and his dog is hers."
    """
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
      old = normal_form(match[0].lower()) if match else ''
      if match is None or old not in self._words:  # equal but for its case: "half-ſister"
        continue
      end = match.end()
      taken.update(range(start, end))
      reason = reason_to_keep(text, start, end, gendered=self._words)
      new = self._partner(old, text, start, end)
      if not new or reason:
        kept.append((match[0], reason or 'no neutral word'))
        continue
      new, mixed = in_case_of(match[0], new)
      changes.append(Change(start, end, match[0], new, mixed_case=mixed))
    if self._place:
      position = position_of(text) if position is None else position
      found = [c for c in self._name_changes(text, position) if c.start not in taken]
      kept += [(c.old, 'no first name') for c in found if not c.new]
      changes = sorted([*changes, *(c for c in found if c.new)])
    parts, at = [], 0
    for change in changes:
      parts += [text[at:change.start], change.new]
      at = change.end
    return ''.join([*parts, text[at:]]), changes, kept

  def _partner(self, word: str, text: str, start: int, end: int) -> str:
    """Replacement of a word; '' without a neutral word."""
    if self.neutral:
      known = self.pairs.to_neutral
      before, after = context(text, start, end, reach=CONTEXT)
      if word == 'her' and her_is_object(before, after):
        word = 'him'
      elif word == 'his' and his_is_independent(before, after):
        word = 'hers'
      return known.get(word, '')
    if not self._pronouns or word not in ('him', 'his', 'her', 'hers'):
      return self.pairs.partner[word]
    before, after = context(text, start, end, reach=CONTEXT)
    if word == 'her':
      return 'him' if her_is_object(before, after) else 'his'
    if word == 'his':
      return 'hers' if his_is_independent(before, after) else 'her'
    return 'his' if word == 'hers' else 'her'

  def _name_changes(self, text: str, position: int) -> Iterator[Change]:
    """Replacements of names; the new name is '' where the word is no first name."""
    first, last = self.letters[0], self.letters[2]
    end = 0
    for match in LETTERS.finditer(text):
      old = match[0]
      if not first <= old[0] <= last and (  # an initial counts without its accents
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
      yield Change(*match.span(), old, new.upper() if in_capitals else new, is_name=True)

  def _name_of(self, old: str) -> str:
    """Finds a word of a text, perhaps in capitals, in the lists of names; '' if it is none."""
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
    index = number % (len(pool) - 1)  # a different name, all with the same chance
    return pool[index + (index >= place)]


def _by_first_word(words: Iterable[str]) -> tuple[WordFinder | None, frozenset[str]]:
  """A search for words in any case, and their first words in lower case, at which to try it."""
  words = list(words)
  if not words:
    return None, frozenset()
  return (WordFinder(words, ignore_case=True),
          frozenset(LETTERS.match(normal_form(w).lower())[0] for w in words))


def position_of(text: str) -> int:
  """Hash of a text as a number; it does not depend on where the text is read."""
  return int.from_bytes(hashlib.sha256(text.encode('utf-8', 'surrogatepass')).digest()[:8], 'big')


def augment_document(
  document: str, swap: GenderSwap, sided: str, *, unit: str, split: Callable[[str], list[str]],
  counts: CdaCounts | None = None,
) -> list[str]:
  """Documents for one document: none, itself, or itself and a counterfactual one.

  `sided`: one (only what is counterfactual) or two (the document, then the counterfactual one).
  `unit`: sentence (of those that `split` gives, the counterfactual document has only the
  counterfactual ones, so that a neutral sentence occurs once, W-15) or document (the whole text,
  swapped). `counts` is added to; a document is one sentence with the unit document.

  >>> from fairjax.counterfactual.gendered_words import read_word_pairs
  >>> swap = GenderSwap(read_word_pairs())
  >>> augment_document('He sings.', swap, 'two', unit='document', split=str.splitlines)
  ['He sings.', 'She sings.']
  """
  for given, known in ((sided, ('one', 'two')), (unit, ('sentence', 'document'))):
    if given not in known:
      raise unknown_name('way of augmenting', given, known)
  counts = CdaCounts() if counts is None else counts
  position = position_of(document)  # a name becomes the same one in the whole document
  lines = [[document]] if unit == 'document' else map(split, document.split('\n'))
  found = []
  for line in lines:
    new = []
    for sentence in line:
      text, changes, kept = swap.swap(sentence, position)
      counts.add(changes, kept)
      counts.dropped += sided == 'one' and not changes
      if changes:
        new.append(text)
    if new:
      found.append(' '.join(new))
  return ([document] if sided == 'two' else []) + (['\n'.join(found)] if found else [])
