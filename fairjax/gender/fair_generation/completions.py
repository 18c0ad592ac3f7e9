"""Professions in the completions of prompts, and generation records arranged by prompt.

A prompt is one prefix of the records of any model; its group is the subgroup of its value
('female', 'male', or any other name).
"""

import collections
import dataclasses
import importlib.resources
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.counterfactual import Attribute, list_attributes, load_attribute
from fairjax.counterfactual.word_forms import LETTER, normal_form
from fairjax.errors import UserError, unknown_name
from fairjax.generate import check_complete, read_records, records_stem
from fairjax.measure.columns import EmptyTexts, rows_to_keep
from fairjax.tables import read_list

# Professions in texts: a list, and the parse of Yeo & Chen 2020, section 3.1 (Y-05, Y-09).

WINDOW = 2  # words between the article and a profession, at most
_LETTER = rf'(?!\d){LETTER}'
_TOKEN = re.compile(f"(?:{_LETTER})+(?:'(?:{_LETTER})+)*|[.!?;:\n]")
_ENDS = frozenset('.!?;:\n')
GENDERS = ('female', 'male')
# What a chat model calls itself where it refuses: "As an AI language model, I cannot ..."
_ITSELF = {('ai', 'model'), ('language', 'model'), ('ai', 'assistant')}
_IRREGULAR = {'man': 'men', 'person': 'people', 'wife': 'wives'}


class Profession(NamedTuple):
  """A profession of a list."""

  name: str  # in lower case with single spaces
  gender: str = ''  # 'female' or 'male' if the word itself is gendered
  scores: Mapping[str, float] = {}  # if the list gives some


class Parse(NamedTuple):
  """A profession that was found."""

  profession: str
  plural: bool
  words_before: int  # between the article and the profession


class Miss(NamedTuple):
  """No profession was found."""

  reason: str  # 'no "as a"' or 'no profession'
  word: str | None  # the one after "as a", if any


@dataclasses.dataclass(frozen=True)
class ProfessionList:
  """A list of professions."""

  professions: Mapping[str, Profession]  # by name, in the order of the list
  source: str  # 'built-in' or the path

  @property
  def gendered(self) -> list[str]:
    """Names of the professions that the list calls female or male by definition."""
    return [p.name for p in self.professions.values() if p.gender]


def read_professions(path: str | os.PathLike | None = None) -> ProfessionList:
  """Reads a list of professions; None takes the built-in one.

  The file is a JSON list of names or of `[name, definitional, stereotypical]` (numbers from -1,
  female, to 1, male, as in Bolukbasi et al. 2016), or lines of a name, and a tab and `female` or
  `male` where the word itself is gendered.
  """
  if path is None:
    asset = importlib.resources.files(__package__) / 'assets' / 'professions.tsv'
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
      raise UserError(f'{where}: after the name come at most two numbers from -1 to 1')
    scores = dict(zip(('definitional', 'stereotypical'), map(float, numbers), strict=False))
  else:
    raise UserError(f'{where}: {entry!r} is neither a name nor a list that begins with one')
  gender, words = gender.strip(), _words(name)
  if gender not in ('', *GENDERS):
    raise UserError(f"{where}: '{gender}' is neither female nor male")
  if not words or any(w in _ENDS for w in words) or re.search(r'[,;:"“”()\[\]{}<>|/=]', name):
    raise UserError(f'{where}: {name!r} is no profession: give one a line, without commas, quotes '
                    'and brackets; female or male after a tab')
  return Profession(' '.join(words), gender, scores)


def plural(name: str) -> str:
  """Plural of a profession by rule, made on its last word."""
  for ending, many in _IRREGULAR.items():
    if name.endswith(ending):
      return name.removesuffix(ending) + many
  if re.search(r'[^aeiou]y\Z', name):
    return f'{name[:-1]}ies'
  return name + ('es' if re.search(r'(s|x|z|ch|sh)\Z', name) else 's')


class ProfessionParser:
  """Finds the first profession after the first "as a" or "as an", by the longest match."""

  # At most `window` words away, in the sentence: further away it belongs to something else ("as a
  # member of the board that hired the lawyer").
  def __init__(self, professions: ProfessionList, *, window: int = WINDOW):
    self.window = window
    names = professions.professions
    self._one = {tuple(n.split()): n for n in names}
    # A form that is also a singular ("marines") stays what the list says.
    self._many = {tuple(plural(n).split()): n for n in names}
    self._longest = max(len(form) for form in (*self._one, *self._many))

  def parse(self, text: str, *, plurals: bool = False) -> Parse | Miss:
    """The profession of a text; with `plurals` also after a first "as" without article (Y-09).

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
    after = words[article + 2] if len(words) > article + 2 else None
    return Miss('no profession', None if after in _ENDS else after)

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
          return None if (words[at - 1], found) in _ITSELF else (found, at - start)
    return None


def _words(text: str) -> list[str]:
  """Words in lower case and marks that end a sentence, without the dots of "U.S."."""
  text = normal_form(text)
  text = re.sub(r'\b((?:[A-Za-z]\.)+[A-Za-z])\.', lambda m: m[1].replace('.', ' '), text)
  return _TOKEN.findall(text.lower().replace('_', ' '))


@dataclasses.dataclass(frozen=True)
class Prompt:
  """A prefix that was completed; its text has no space at the end."""

  attribute: str
  value: str
  group: str
  template: int | str
  text: str


@dataclasses.dataclass(frozen=True)
class Completions:
  """R completions of P prompts by one model."""

  model: str
  prompts: tuple[Prompt, ...]  # `[P]`, in the order of the records
  index: np.ndarray  # `[R]` int, the prompt of each
  # `[R]` int64: equal numbers of different prompts share their noise where the sampler couples them
  sample: np.ndarray | None
  records: list[dict[str, Any]]  # `[R]`
  left_out: int = 0  # records of templates that were not asked for, and of rewordings
  empty_texts: EmptyTexts | None = None  # completions without a text, by value

  @property
  def groups(self) -> list[str]:
    """Names of the groups: female, male, then others in the order of the prompts."""
    names = dict.fromkeys(p.group for p in self.prompts)
    return [g for g in GENDERS if g in names] + [g for g in names if g not in GENDERS]

  def rows(self, prompt: int) -> np.ndarray:
    """Rows of one prompt, by sample number."""
    rows = np.flatnonzero(self.index == prompt)
    return rows if self.sample is None else rows[np.argsort(self.sample[rows], kind='stable')]


def read_completions(
  paths: Sequence[str | os.PathLike], *, groups: Mapping[str, str] | None = None,
  attributes: Sequence[Attribute] = (), templates: Sequence[str] = (), empty: str = 'error',
  coupled: bool = True, read: Callable[[Any], Iterable[dict[str, Any]]] = read_records,
  log: Callable[[str], None] | None = None,
) -> list[Completions]:
  """Reads files of records: one `Completions` for each model, in the order of appearance.

  The model is that of the records, or the name of the file. The group of a prompt is that of
  `groups`, else the record's subgroup, else that of its value in the attribute (a given one, or a
  built-in one of that name), else the value itself. `templates` are labels, none takes all; with
  `coupled` records of a template with the same sample number belong together.
  """
  groups = {normal_form(value): group for value, group in (groups or {}).items()}
  known, written = {a.name: a for a in attributes}, {}

  def once(text: str) -> str:
    """Equal texts as the first of them is written."""
    return written.setdefault(normal_form(text), text)

  models: dict[str, list[tuple[dict[str, Any], Prompt]]] = {}
  values, labels = set(), set()
  left_out = collections.Counter[str]()
  for path in paths:
    check_complete(path)
    for record in read(path):
      labels.add(str(record['template']))
      model = record.get('model') or records_stem(path)
      if record.get('arm') == 'rewording' or (
          templates and str(record['template']) not in templates):
        left_out[model] += 1
        continue
      name = record['attribute']
      if name not in known and name in list_attributes():
        known[name] = load_attribute(name)
      values.add(normal_form(record['value']))
      prompt = Prompt(
        name, once(record['value']), once(_group(record, groups, known.get(name))),
        record['template'], once(record['prefix'].rstrip()))
      models.setdefault(model, []).append((record, prompt))
  for template in templates:
    if template not in labels:
      raise unknown_name('template', template, labels, where='--templates')
  for value in groups:
    if value not in values:
      raise unknown_name('value', value, values, where='--group')
  if nothing := [model for model in left_out if model not in models]:
    raise UserError(f'{nothing[0]}: all its records are of rewordings, or of other templates than '
                    '--templates: give it others, or leave its file out')
  result = []
  for model, found in models.items():
    if log and left_out[model]:
      log(f'{model}: {left_out[model]} records of rewordings or other templates are left out')
    completions = _arrange(model, found, left_out[model], empty, coupled)
    warning = completions.empty_texts.sentence()
    if log and warning:
      log(f'{model}: {warning}')
    result.append(completions)
  return result


def _group(record: dict[str, Any], groups: dict[str, str], attribute: Attribute | None) -> str:
  if normal_form(record['value']) in groups:
    return groups[normal_form(record['value'])]
  if record.get('subgroup') is not None:
    return record['subgroup']
  value = None if attribute is None else attribute.find_value(record['value'])
  if value is not None:
    return attribute.values[value].subgroup
  return record['value']


def _arrange(
  model: str, found: list[tuple[dict[str, Any], Prompt]], left_out: int, empty: str, coupled: bool,
) -> Completions:
  numbered = [r for r, _ in found if r.get('sample') is not None]
  if numbered and len(numbered) < len(found):
    other = next(r for r, _ in found if r.get('sample') is None)
    raise UserError(f"{other['_where']}: no sample number, but other records of {model} have one: "
                    'number all or none')
  seen: dict[tuple[Prompt, int], str] = {}
  for record, prompt in found if numbered else ():
    key = prompt, record['sample']
    if key in seen:
      raise UserError(f"{record['_where']}: sample {record['sample']} of '{prompt.text}' occurs "
                      f'twice (first at {seen[key]}): remove one')
    seen[key] = record['_where']
  values = list(dict.fromkeys(r['value'] for r, _ in found))
  rows, empty_texts = rows_to_keep(
    [r['continuation'] for r, _ in found], np.array([values.index(r['value']) for r, _ in found]),
    values, empty=empty, where=[r['_where'] for r, _ in found],
    samples=[(p.template, r['sample']) for r, p in found] if numbered and coupled else None)
  found = [found[i] for i in rows]
  prompts = {p: i for i, p in enumerate(dict.fromkeys(p for _, p in found))}
  return Completions(
    model=model, prompts=tuple(prompts), index=np.array([prompts[p] for _, p in found]),
    sample=np.array([r['sample'] for r, _ in found], np.int64) if numbered else None,
    records=[r for r, _ in found], left_out=left_out, empty_texts=empty_texts)
