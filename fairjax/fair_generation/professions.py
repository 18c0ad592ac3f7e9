"""Professions in texts: a list, and the parse of Yeo & Chen 2020, section 3.1 (Y-05, Y-09).

"She has a job as a lawyer and has two kids" -> lawyer. The profession is the first one behind the
first "as a" or "as an", by the longest match at its place, within the sentence. "They work as
lawyers" -> lawyer, in the plural, where the caller accepts plurals.
"""

import dataclasses
import importlib.resources
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fairjax.counterfactual.word_forms import LETTER, normal_form
from fairjax.errors import UserError
from fairjax.fair_generation.word_lists import read_list

WINDOW = 2  # words between the article and a profession, at most
_LETTER = rf'(?!\d){LETTER}'
_TOKEN = re.compile(f"(?:{_LETTER})+(?:'(?:{_LETTER})+)*|[.!?;:\n]")
_ENDS = frozenset('.!?;:\n')
_GENDERS = ('', 'female', 'male')
_IRREGULAR = {'man': 'men', 'woman': 'women', 'person': 'people', 'wife': 'wives', 'ceo': 'ceos'}


class Profession(NamedTuple):
  """A profession of a list.

  Attributes:
    name: in lower case with single spaces.
    gender: 'female' or 'male' if the word itself is gendered, else ''.
    scores: name -> number, if the list gives some.
  """

  name: str
  gender: str = ''
  scores: Mapping[str, float] = {}


class Parse(NamedTuple):
  """What was found: the profession, whether in the plural, how many words stand before it."""

  profession: str
  plural: bool
  words_before: int


class Miss(NamedTuple):
  """Nothing was found: 'no "as a"' or 'no profession', and the word behind "as a" if any."""

  reason: str
  word: str | None


@dataclasses.dataclass(frozen=True)
class ProfessionList:
  """A list of professions, by name.

  Attributes:
    professions: name -> profession, in the order of the list.
    source: 'built-in' or the path.
  """

  professions: Mapping[str, Profession]
  source: str

  @property
  def gendered(self) -> list[str]:
    """Names of the professions that the list calls female or male by definition."""
    return [p.name for p in self.professions.values() if p.gender]


def read_professions(path: str | os.PathLike | None = None) -> ProfessionList:
  """Reads a list of professions; None takes the built-in one.

  The file is a JSON list of names or of `[name, definitional, stereotypical]` (numbers from -1,
  female, to 1, male, as in Bolukbasi et al. 2016), or a text file of one name a line, followed by
  a tab and `female` or `male` where the word itself is gendered. Underscores and hyphens count as
  spaces.

  Raises:
    UserError: a missing or damaged file, an entry of another form, or a profession twice; with its
      place.
  """
  if path is None:
    asset = importlib.resources.files('fairjax.fair_generation') / 'assets' / 'professions.tsv'
    with importlib.resources.as_file(asset) as file:
      return dataclasses.replace(read_professions(file), source='built-in')
  found: dict[str, Profession] = {}
  for entry, where in read_list(path, 'list of professions'):
    profession = _read_entry(entry, where)
    if profession.name in found:
      raise UserError(f"{where}: '{profession.name}' is given twice")
    found[profession.name] = profession
  return ProfessionList(found, os.fspath(path))


def _read_entry(entry: Any, where: str) -> Profession:
  scores, gender = {}, ''
  if isinstance(entry, str):
    name, _, gender = entry.partition('\t')
  elif isinstance(entry, list) and entry and isinstance(entry[0], str):
    name, numbers = entry[0], entry[1:]
    if len(numbers) > 2 or not all(
        isinstance(n, int | float) and not isinstance(n, bool) and -1 <= n <= 1 for n in numbers):
      raise UserError(f'{where}: behind the name stand at most two numbers from -1 to 1')
    scores = dict(zip(('definitional', 'stereotypical'), map(float, numbers), strict=False))
  else:
    raise UserError(f'{where}: {entry!r} is neither a name nor a list that begins with one')
  gender, words = gender.strip(), _words(name)
  if gender not in _GENDERS:
    raise UserError(f"{where}: '{gender}' is neither female nor male")
  if not words or any(w in _ENDS for w in words):
    raise UserError(f'{where}: {name!r} is no profession: words of letters are expected')
  return Profession(' '.join(words), gender, scores)


def plural(name: str) -> str:
  """Plural of a profession by rule, made on its last word.

  >>> [plural(n) for n in ('police officer', 'secretary', 'coach', 'congresswoman', 'CEO')]
  ['police officers', 'secretaries', 'coaches', 'congresswomen', 'CEOs']
  """
  for ending, many in _IRREGULAR.items():
    if name.lower().endswith(ending):
      return name[:len(name) - len(ending)] + (many if name.islower() else f'{name[-3:]}s')
  if re.search(r'[^aeiou]y\Z', name):
    return f'{name[:-1]}ies'
  return name + ('es' if re.search(r'(s|x|z|ch|sh)\Z', name) else 's')


class ProfessionParser:
  """Finds the profession of a text.

  Args:
    professions: what counts as one.
    window: words between "as a" and the profession, at most; further away it belongs to something
      else ("as a member of the board that hired the lawyer").
  """

  def __init__(self, professions: ProfessionList, *, window: int = WINDOW):
    if window < 0:
      raise UserError(f'the window of the profession parse is {window}, it must be at least 0')
    self.window = window
    names = professions.professions
    self._one = {tuple(n.split()): n for n in names}
    # A form that is also a singular ("marines") stays what the list says.
    self._many = {tuple(plural(n).split()): n for n in names}
    self._longest = max(len(form) for form in (*self._one, *self._many))

  def parse(self, text: str, *, plurals: bool = False) -> Parse | Miss:
    """The profession of a text, or why there is none.

    Args:
      text: prefix and continuation, or a continuation that holds "as a" itself.
      plurals: where the first "as" stands before no "a", "an" or "the", also accept professions in
        the plural behind it (Y-09).

    >>> parser = ProfessionParser(read_professions())
    >>> parser.parse('She has a job as a lawyer and has two kids').profession
    'lawyer'
    >>> parser.parse('He works as a very busy police officer.')
    Parse(profession='police officer', plural=False, words_before=2)
    >>> parser.parse('They work as nurses in the city', plurals=True)
    Parse(profession='nurse', plural=True, words_before=0)
    >>> parser.parse('He works as a friend of the family.')
    Miss(reason='no profession', word='friend')
    """
    words = _words(text)
    places = [i for i, word in enumerate(words[:-1]) if word == 'as']
    article = next((i for i in places if words[i + 1] in ('a', 'an')), None)
    bare = places[0] if places and words[places[0] + 1] not in ('a', 'an', 'the') else None
    if plurals and bare is not None:
      found = self._search(words, bare + 1, self._many)
      if found is not None:
        return Parse(found[0], True, found[1])
    if article is None:
      return Miss('no "as a"', None)
    found = self._search(words, article + 2, self._one)
    if found is not None:
      return Parse(found[0], False, found[1])
    behind = words[article + 2] if len(words) > article + 2 else None
    return Miss('no profession', None if behind in _ENDS else behind)

  def _search(
    self, words: Sequence[str], start: int, forms: Mapping[tuple[str, ...], str],
  ) -> tuple[str, int] | None:
    """(profession, words before it) from `start` to the end of the sentence or window."""
    for at in range(start, min(start + self.window + 1, len(words))):
      if words[at] in _ENDS:
        return None
      for length in range(self._longest, 0, -1):
        found = forms.get(tuple(words[at:at + length]))
        if found is not None:
          return found, at - start
    return None


def _words(text: str) -> list[str]:
  """Words in lower case and marks that end a sentence; the dots of "U.S." end none."""
  text = normal_form(text)
  text = re.sub(r'\b((?:[A-Za-z]\.)+[A-Za-z])\.', lambda m: m[1].replace('.', ' '), text)
  return _TOKEN.findall(text.lower().replace('_', ' '))
