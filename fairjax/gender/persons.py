"""Professions with the share of women in them, and lists of persons with a group each (W-02).

Shares have the form of WinoGender's occupation statistics (Rudinger et al. 2018): a table with the
columns `occupation` and one of percentages. They know two genders only.
"""

import dataclasses
import hashlib
import importlib.resources
import json
import math
import os
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fairjax.counterfactual.word_forms import normal_form
from fairjax.errors import UserError, unknown_name
from fairjax.inputs import open_input, read_text_lines
from fairjax.tables import Table, read_list

COLUMN = 'bls_pct_female'
_NO_VALUE = ('', 'na', 'nan', 'n/a', '-')


class Professions(NamedTuple):
  """Professions that have a share."""

  names: tuple[str, ...]  # P of them, in the order of the file
  shares: np.ndarray  # `[P]` float64 in [0, 1], the share of women
  missing: tuple[str, ...]  # named by the file without a share, left out
  digest: str  # SHA-256 (hex) of names and shares


def read_professions(path: str | os.PathLike, *, column: str = COLUMN) -> Professions:
  """Reads a table of professions; at least three must have a share."""
  names, shares, missing = [], [], []
  with open_input(path, what='table of professions') as file:
    table = Table(file, path, ('occupation',), fill=True)
    if column not in table.header:
      raise unknown_name('column', column, table.header, where=str(path))
    for cells, where in table:
      name, share = cells['occupation'].strip(), cells[column].strip()
      if not name:
        raise UserError(f'{where}: no occupation')
      if name in names or name in missing:
        raise UserError(f"{where}: '{name}' is given twice: leave one row out")
      if share.lower() in _NO_VALUE:
        missing.append(name)
        continue
      names.append(name)
      shares.append(_share(share, where))
  if len(names) < 3:
    raise UserError(f"{path}: {len(names)} professions have a value in '{column}', a correlation "
                    'needs at least 3')
  if max(shares) <= 0.01:
    raise UserError(f"{path}: no value in '{column}' is above 1: give percentages from 0 to 100, "
                    'not shares from 0 to 1')
  digest = hashlib.sha256(repr(list(zip(names, shares, strict=True))).encode()).hexdigest()
  return Professions(tuple(names), np.array(shares), tuple(missing), digest)


def _share(text: str, where: str) -> float:
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not 0 <= value <= 100:
    raise UserError(f"{where}: '{text}' is no percentage from 0 to 100")
  return value / 100


_GROUPS = ('female', 'male', 'neutral')
_PRONOUNS = frozenset('he him his himself she her hers herself'.split())


@dataclasses.dataclass(frozen=True)
class Persons:
  """Words with the group that each is associated with; any number of groups (W-21)."""

  kind: str  # 'names', which need no article, or 'terms', which get one: "the NOUN"
  source: str  # where the list is from, for reports
  groups: Mapping[str, tuple[str, ...]]  # words of each group
  given: Mapping[str, int]  # words of each group that the source holds; more if the list was cut
  part: str = ''  # initials of the words, e.g. 'A-M', if only these were kept (W-16)

  def __post_init__(self):
    if len(self.groups) < 2:
      raise UserError(f'{self.source}: at least two groups are needed, there is only '
                      f"{', '.join(self.groups) or 'none'}")
    owner: dict[str, str] = {}
    for group, words in sorted(self.groups.items()):
      if len(words) < 2:
        raise UserError(f'{self.source}: group {group} has a single word: rates need several')
      for word in words:
        if (known := normal_form(word)) in owner:
          raise UserError(f'{self.source}: {word!r} is given twice (groups {owner[known]} and '
                          f'{group}): keep one line')
        owner[known] = group

  @property
  def words(self) -> tuple[str, ...]:
    """The n words of all groups."""
    return tuple(w for words in self.groups.values() for w in words)

  @property
  def group_names(self) -> tuple[str, ...]:
    """Sorted."""
    return tuple(sorted(self.groups))

  @property
  def labels(self) -> np.ndarray:
    """Number of each word's group in `group_names`: `[n]` int."""
    return np.repeat([self.group_names.index(g) for g in self.groups],
                     [len(words) for words in self.groups.values()])

  @property
  def digest(self) -> str:
    """SHA-256 (hex) of kind, words and groups."""
    content = json.dumps([self.kind, *([w, g] for g, words in self.groups.items() for w in words)])
    return hashlib.sha256(content.encode('utf-8')).hexdigest()

  @property
  def title(self) -> str:
    """Kind and part, e.g. 'Names A-M'."""
    return ' '.join(filter(None, (self.kind.capitalize(), self.part)))

  def with_initials(self, letters: str) -> 'Persons':
    """The words whose first letter is in a range such as 'A-M' (W-16, Table 6)."""
    first, dash, last = letters.upper().partition('-')
    if not dash or len(first) != 1 or len(last) != 1 or not 'A' <= first <= last <= 'Z':
      raise UserError(f"initials '{letters}' are not a range of letters such as A-M")
    # A letter counts without its accent, as in `GenderSwap`.
    kept = {g: [w for w in words if first <= unicodedata.normalize('NFD', w)[0].upper() <= last]
            for g, words in self.groups.items()}
    for group in (g for g, words in kept.items() if not words):
      raise UserError(f"{self.source}: no word of group {group} begins with {first}-{last}: give "
                      'other initials, or a list without this group')
    return make_persons(self.kind, f'{self.source}, {first}-{last}', kept, given=self.given,
                        part=f'{first}-{last}')

  def most(self, count: int) -> 'Persons':
    """The first `count` words of each group: of names from statistics, the most frequent ones."""
    return dataclasses.replace(
      self, groups={g: words[:count] for g, words in self.groups.items()})


def make_persons(kind: str, source: str, groups: Mapping[str, Sequence[str]], *,
                 given: Mapping[str, int] | None = None, part: str = '') -> Persons:
  """A list from the words of each group; groups without a word are none."""
  found = {g: tuple(words) for g, words in groups.items() if words}
  return Persons(kind, source, found, given or {g: len(w) for g, w in found.items()}, part)


def read_persons(path: str | os.PathLike, kind: str) -> Persons:
  """Reads `word<TAB>group` lines, in the order of their importance; `#` begins a comment."""
  groups: dict[str, list[str]] = {}
  spelled: dict[str, str] = {}  # each group as it came first
  for line, where in read_list(path, f'list of {kind}'):
    word, _, group = (part.strip() for part in str(line).partition('\t'))
    if not word or not group or '\t' in group:
      raise UserError(f'{where}: {line!r} is not word<TAB>group')
    groups.setdefault(spelled.setdefault(normal_form(group).lower(), group), []).append(word)
  return make_persons(kind, str(path), groups)


def names_from(paths: Sequence[str]) -> Persons:
  """Names: of Huang et al. 2020 without a path, of `name<TAB>group` lines, or of SSA statistics."""
  if not paths:
    from fairjax.counterfactual import load_attribute
    groups: dict[str, list[str]] = {}
    for value in load_attribute('name').values:  # Table 9
      groups.setdefault(value.subgroup, []).append(value.text)
    return make_persons('names', 'names of Huang et al. 2020', groups)
  if len(paths) == 1 and _lists_groups(paths[0]):
    return read_persons(paths[0], 'names')
  from fairjax.counterfactual.gendered_words import read_names
  lists = read_names(list(paths))
  return make_persons('names', lists.source, {'female': lists.female, 'male': lists.male})


def terms_from(paths: str | None) -> Persons:
  """Nouns: the built-in ones without a path, `noun<TAB>group` lines, or pairs of words."""
  if paths is None:
    asset = importlib.resources.files('fairjax.gender') / 'assets' / 'disco_terms.tsv'
    with importlib.resources.as_file(asset) as file:
      return dataclasses.replace(read_persons(file, 'terms'), source='built-in nouns')
  files = [paths] if os.path.exists(paths) else [part.strip() for part in paths.split(',')]
  if len(files) == 1 and _lists_groups(files[0]):
    return read_persons(files[0], 'terms')
  if len(files) > 2:
    raise UserError(f'--terms={paths}: give one file, or a male and a female one')
  from fairjax.counterfactual.gendered_words import read_word_pairs
  pairs = read_word_pairs(*files)
  given = {'female': pairs.female, 'male': pairs.male}
  nouns = {g: [w for w in words if w not in _PRONOUNS] for g, words in given.items()}
  return make_persons('terms', pairs.source, nouns, given={g: len(w) for g, w in given.items()})


def _lists_groups(path: str) -> bool:
  """Whether the lines of a file are `word<TAB>group`: a group has several words, a partner one."""
  rows = [line.split('\t') for line in read_text_lines(path) if not line.startswith('#')]
  groups = [row[1].strip().lower() for row in rows if len(row) == 2]
  return bool(groups) and (set(groups) <= set(_GROUPS) or len(groups) >= 2 * len(set(groups)))
