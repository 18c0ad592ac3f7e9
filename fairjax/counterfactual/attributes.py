"""Sensitive attributes as data: values, subgroups and templates from YAML files.

`assets/` holds the attributes of Huang et al. 2020, appendix A (definitions H-09 to H-11). A user's
own file has the same fields:

    name: faith                     # letters, digits, '-' and '_'
    values: [Christian, {text: Muslim, subgroup: islam, tokens: [Muslim, Muslims], article: a}]
    templates: ['My {value} friend said', '{value} people are']   # prompts; records bring their own
    source: ...                     # optional, as are notes, template_subsets and rewordings
    rewordings: [['My {value} friend has said', ...], ...]  # three or more of each template

A value without a subgroup is a subgroup of its own. Instead of `values` a file may have
`subgroups`, a mapping from subgroup to
`{values: [...], pronouns: {they: he, them: him, their: his}}`.

Placeholders of templates: `{value}`, `{a}` and `{A}` (a or an before the value), and the names
under `pronouns`. The model continues after the end of a template.

A file that crosses two attributes has `crossed` instead of `values`, e.g. `{country: country, job:
jobs.yaml}`. Its values are all combinations, its placeholders `{country}` and `{job}`, and those of
the attributes themselves with these names: `{a_job}`, `{they_person}`.
"""

import dataclasses
import functools
import importlib.resources
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import yaml

from fairjax.counterfactual.word_forms import normal_form
from fairjax.errors import UserError, first_line, unknown_name
from fairjax.files import json_sha256
from fairjax.inputs import is_whole, read_text

ASSETS = importlib.resources.files('fairjax.counterfactual') / 'assets'
_FIELDS = ('name', 'values', 'subgroups', 'templates', 'template_subsets', 'rewordings',
           'source', 'notes', 'crossed')
_OWN = ('value', 'a', 'A')  # placeholders of every attribute with values of its own
SPELLED_WITH_VOWEL = 'AEFHILMNORSX'  # capitals whose names begin with the sound of a vowel
_VALUE_FIELDS = ('text', 'subgroup', 'tokens', 'article', 'pronouns')
_PLACEHOLDER = re.compile(r'\{(\w*)\}')
_PURPOSE = 0x43  # separates the choice of a fraction from other random streams of the same seed
AND = ' * '  # between the values of a combination


@dataclasses.dataclass(frozen=True)
class Value:
  """One value of an attribute."""

  text: str  # its name in templates
  subgroup: str  # counterfactuals are values of another subgroup
  tokens: tuple[str, ...]  # its sensitive tokens phi(a) (H-01): the forms that are matched in text
  article: str  # 'a' or 'an', before `text`
  # Placeholder -> word, e.g. {'they': 'he'}
  pronouns: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)


@dataclasses.dataclass(frozen=True)
class Template:
  """A sentence beginning with placeholders; `id` is its number in the file, from '1'."""

  text: str
  id: str

  @property
  def placeholders(self) -> tuple[str, ...]:
    """Names between braces, in order of appearance."""
    return tuple(_PLACEHOLDER.findall(self.text))

  def fill(self, value: Value) -> str:
    """The template's text for one value."""
    words = {**value.pronouns, 'value': value.text, 'a': value.article,
             'A': value.article.capitalize()}
    return _PLACEHOLDER.sub(lambda m: words[m[1]], self.text)


@dataclasses.dataclass(frozen=True)
class Prefix:
  """A filled template: indices (from 0) of template and value, and the text."""

  template: int
  value: int
  text: str
  rewording: int = 0  # number of the template's rewording, from 1; 0: the template itself


@dataclasses.dataclass(frozen=True)
class Attribute:
  """A sensitive attribute: A values in at least two subgroups, and templates."""

  name: str  # short, used in file names
  values: tuple[Value, ...]  # their order is the value index everywhere
  templates: tuple[Template, ...]  # their order is the template index everywhere
  # Name to template indices (from 0), e.g. `pronoun_neutral` (H-09)
  template_subsets: Mapping[str, tuple[int, ...]] = dataclasses.field(
    default_factory=dict, hash=False)
  source: str = ''  # where the lists come from
  notes: str = ''  # remarks for readers
  # `[M][K]`, K >= 3: of each template, phrasings that change nothing about the value; () if none
  rewordings: tuple[tuple[Template, ...], ...] = ()
  crossed: tuple['Attribute', ...] = ()  # the two whose combinations the values are, or ()

  @property
  def value_texts(self) -> tuple[str, ...]:
    """Texts of the A values."""
    return tuple(v.text for v in self.values)

  @property
  def subgroups(self) -> tuple[str, ...]:
    """Distinct subgroups in order of first appearance."""
    return tuple(dict.fromkeys(v.subgroup for v in self.values))

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256 (hex) of values and templates; source, notes and rewordings do not count.

    A fraction of the combinations has that of all.
    """
    values: list[Any] = ([factor.fingerprint for factor in self.crossed]
                         or [dataclasses.asdict(v) for v in self.values])
    content = {'name': self.name, 'values': values,
               'templates': [dataclasses.asdict(t) for t in self.templates],
               'template_subsets': dict(self.template_subsets)}
    return json_sha256(content)

  def value_index(self, text: str, where: str = '') -> int:
    """Index of the value with this text, in any way of writing it; `UserError` without one."""
    if (index := self.find_value(text)) is None:
      error = unknown_name(f'value of attribute {self.name}', text, self.value_texts, where=where)
      raise UserError(f'{error}. Other values need an attribute file (YAML); to measure records, '
                      'two lines are enough: "name: NAME" and "values: [A, B, ...]"')
    return index

  def find_value(self, text: str) -> int | None:
    """As `value_index`; None if no value has the text."""
    return self._index_of.get(normal_form(text))

  @functools.cached_property
  def _index_of(self) -> dict[str, int]:
    return {normal_form(text): i for i, text in enumerate(self.value_texts)}

  @functools.cached_property
  def levels(self) -> tuple[tuple[int, int], ...]:
    """`[A]` of each combination the indices of its values in `crossed`; () if nothing is."""
    if not self.crossed:
      return ()
    first, second = self.crossed
    place = {v.text: levels for v, levels in zip(combinations(first, second), itertools.product(
      range(len(first.values)), range(len(second.values))), strict=True)}
    return tuple(place[text] for text in self.value_texts)

  def fraction(self, share: float, seed: int = 0) -> 'Attribute':
    """A seeded choice of `share` of the combinations of a crossed attribute, rounded.

    Each value of the two attributes occurs as often as the others, or once more. `UserError` if the
    attribute is not crossed, or so few combinations do not tell main effects and interaction apart.
    """
    if not self.crossed:
      raise UserError(f'attribute {self.name} crosses no two attributes: a fraction is of '
                      'combinations, as of country*occupation')
    if not 0 < share <= 1:
      raise UserError(f'a fraction is above 0 and at most 1, not {share:g}')
    sizes = [len(factor.values) for factor in self.crossed]
    few, many = sorted(sizes)
    # In a turn each of the few values meets another of the many, evenly spread, which moves on by
    # one in the next. Rare ones come first, so that any beginning of the walk is balanced.
    walk: list[tuple[int, int]] = []
    for turn in range(many):
      others = (turn + np.arange(few) * many // few) % many
      seen = np.bincount([b for _, b in walk], minlength=many)
      walk += [(int(i), int(others[i])) for i in np.argsort(seen[others], kind='stable')]
    rng = np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE]))
    first, second = rng.permutation(few), rng.permutation(many)
    walk = [(int(first[i]), int(second[j])) for i, j in walk]
    if sizes[0] > few:
      walk = [(j, i) for i, j in walk]
    count = round(share * len(walk))
    if count < sum(sizes) or not separable(walk[:count]):
      least = next(n for n in range(sum(sizes), len(walk) + 1) if separable(walk[:n]))
      raise UserError(f'{count} of {len(walk)} combinations do not tell main effects and '
                      f'interaction apart: take at least {least}, a fraction of '
                      f'{math.ceil(1000 * least / len(walk)) / 1000:g}')
    chosen = set(walk[:count])
    return dataclasses.replace(self, values=tuple(
      v for v, levels in zip(self.values, self.levels, strict=True) if levels in chosen))

  def alternatives(self, value_index: int) -> tuple[int, ...]:
    """Indices of the values of other subgroups: the possible counterfactuals (H-01)."""
    subgroup = self.values[value_index].subgroup
    return tuple(i for i, v in enumerate(self.values) if v.subgroup != subgroup)

  def prefix(self, template_index: int, value_index: int) -> str:
    """Text of a template filled with a value."""
    return self.templates[template_index].fill(self.values[value_index])

  def prefixes(self) -> list[Prefix]:
    """All filled templates, of the first for every value, then the next; `UserError` without."""
    if not self.templates:
      raise UserError(f'attribute {self.name} has no templates: prompts need them, add the field '
                      'templates to its file')
    return [Prefix(t, a, self.prefix(t, a))
            for t in range(len(self.templates)) for a in range(len(self.values))]

  def reworded_prefixes(self) -> list[Prefix]:
    """All filled rewordings; `UserError` if the attribute has none."""
    if not self.rewordings:
      raise UserError(f'attribute {self.name} has no rewordings: add the field rewordings to its '
                      'file, three or more of each template')
    return [Prefix(t, a, phrase.fill(value), k) for t, phrases in enumerate(self.rewordings)
            for k, phrase in enumerate(phrases, 1) for a, value in enumerate(self.values)]


def combinations(first: Attribute, second: Attribute) -> tuple[Value, ...]:
  """The values of two crossed attributes, those of the second fastest."""
  def words(attribute, value):
    own = {**value.pronouns, 'a': value.article, 'A': value.article.capitalize()}
    return {attribute.name: value.text, **{f'{k}_{attribute.name}': w for k, w in own.items()}}

  return tuple(
    Value(f'{a.text}{AND}{b.text}', f'{a.subgroup}{AND}{b.subgroup}',
          tuple(dict.fromkeys((*a.tokens, *b.tokens))), a.article,
          words(first, a) | words(second, b))
    for a in first.values for b in second.values)


def separable(levels: Sequence[tuple[int, int]]) -> bool:
  """Whether combinations tell the main effects apart, and leave something to an interaction."""
  table = incidence(levels)
  return np.linalg.matrix_rank(table) == table.shape[1] - 1 < len(levels)


def incidence(levels: Sequence[tuple[int, int]]) -> np.ndarray:
  """`[N, A + B]` float64: 1 where a combination has the value, of those that occur."""
  return np.concatenate([np.eye(column.max() + 1)[column] for column in (
    np.unique(column, return_inverse=True)[1] for column in np.reshape(levels, (-1, 2)).T)], axis=1)


def article_by_letter(text: str) -> str:
  """'an' before a vowel letter, otherwise 'a' (H-10): right for all 29 occupations.

  >>> [article_by_letter(text) for text in ('actor', '18-year-old', 'X-ray technician', 'U.S.')]
  ['an', 'an', 'an', 'a']
  """
  if text[:1].isdigit():  # eight, eleven, eighteen; also 1800 and 11000
    return 'an' if re.match(r'8|1[18](?:\d\d\d?)?(?!\d)', text) else 'a'
  if re.match(r"[A-Z](?![\w'’])", text):  # a letter by its name, not "Māori" or "L’Oréal"
    return 'an' if text[0] in SPELLED_WITH_VOWEL else 'a'
  return 'an' if text[:1].lower() in ('a', 'e', 'i', 'o', 'u') else 'a'


def list_attributes() -> list[str]:
  """Names of the built-in attributes, sorted."""
  return sorted(f.name.removesuffix('.yaml') for f in ASSETS.iterdir() if f.name.endswith('.yaml'))


def list_crossed() -> list[str]:
  """Pairs of built-in attributes that have templates of their own, as 'country*name', sorted."""
  return sorted(f.name.removesuffix('.yaml').replace('_', '*')
                for f in (ASSETS / 'crossed').iterdir() if f.name.endswith('.yaml'))


def load_attribute(name_or_path: str | os.PathLike) -> Attribute:
  """Reads a built-in attribute (see `list_attributes`) by name, or a YAML file by path.

  'country*name', 'country*occupation' and 'name*occupation' are their combinations.

  Raises:
    UserError: unknown name (with the nearest one), or a field of the file is missing, unknown, of
      the wrong type, contradictory or given twice; it names file, line and field.
  """
  name = os.fspath(name_or_path)
  file = ASSETS / f'{name}.yaml' if name in list_attributes() else None
  if '*' in name and not os.path.exists(name):
    file = ASSETS / 'crossed' / f"{'_'.join(sorted(name.split('*')))}.yaml"
    if '/' in name or not file.is_file():
      raise UserError(f"no templates for {name}, only for {', '.join(list_crossed())}: write a "
                      "YAML file with the fields crossed and templates (docs/measures.md)")
  if file is not None:
    return _read_attribute(file.name, file.read_text(encoding='utf-8'))
  if not name.endswith(('.yaml', '.yml')) and not os.path.exists(name):
    raise unknown_name('attribute or YAML file', name, list_attributes())
  try:
    return _read_attribute(name, read_text(name, what='attribute file'))
  except RecursionError:
    raise UserError(f'{name} holds itself: take out what refers to the file, or to the list, that '
                    'it is in') from None


class _Field:
  """A value of an attribute file; its errors name file, line and field (keys and indices)."""

  def __init__(self, file: str, node: yaml.Node, value: Any, name: str = ''):
    self._file, self._node, self.value, self._name = file, node, value, name

  def __contains__(self, key: str) -> bool:
    return key in self.value

  def __getitem__(self, key: Any) -> '_Field':
    node = self._node
    if isinstance(node, yaml.SequenceNode):
      node = node.value[key]
    elif isinstance(node, yaml.MappingNode):
      node = next((value for k, value in node.value if k.value == str(key)), node)
    name = f'[{key}]' if isinstance(key, int) else f'.{key}' if self._name else str(key)
    return _Field(self._file, node, self.value[key], self._name + name)

  @property
  def place(self) -> str:
    """As `file:line: field`, e.g. `my.yaml:12: values[3].text`."""
    return f'{self._file}:{self._node.start_mark.line + 1}: {self._name}'

  def fail(self, message: str) -> NoReturn:
    """Raises the error of the field."""
    raise UserError(f'{self.place}: {message}')

  def text(self) -> str:
    """A string."""
    if not isinstance(self.value, str):
      self.fail(f'{self.value!r} is not text: put it in quotes')
    if not is_whole(self.value):
      self.fail(f'{self.value!a} holds half a character or NUL: write the character itself')
    return self.value

  def phrase(self) -> str:
    """Words with single spaces between them."""
    text = self.text()
    if not text or text != ' '.join(text.split()):
      self.fail(f'{text!r} must be words with single spaces between them, none at the ends')
    return text

  def entries(self) -> list['_Field']:
    """Those of a list that is not empty."""
    if not isinstance(self.value, list) or not self.value:
      self.fail('must be a list with at least one entry')
    return [self[i] for i in range(len(self.value))]

  def fields(self, known: Sequence[str] = ()) -> dict[Any, '_Field']:
    """Those of a mapping that is not empty; others than `known`, if given, are refused."""
    if not isinstance(self.value, dict) or not self.value:
      self.fail('must hold fields')
    found = {key: self[key] for key in self.value}
    for key, field in found.items():
      if known and key not in known:
        raise unknown_name('field', str(key), known, where=field.place)
    return found


def _read_attribute(path: str, text: str) -> Attribute:
  """An attribute from the content of a file."""
  try:
    loader = yaml.SafeLoader(text)
    node = loader.get_single_node()
    repeated = next(_repeated_keys(node), None)
    content = None if node is None else loader.construct_document(node)
  except (yaml.YAMLError, ValueError, LookupError, AttributeError) as e:  # of tags: !!bool x
    mark = getattr(e, 'problem_mark', None)
    line = f':{mark.line + 1}' if mark else ''
    problem = getattr(e, 'problem', None) or first_line(e)
    raise UserError(f'{path}{line}: not valid YAML: {problem}') from None
  if not isinstance(content, dict):
    raise UserError(f'{path}: the file must hold fields, one "name: value" a line')
  if repeated:
    line = repeated.start_mark.line + 1
    raise UserError(f'{path}:{line}: field {repeated.value} is given twice')
  root = _Field(path, node, content)
  root.fields(_FIELDS)
  if 'name' not in root:
    raise UserError(f'{path}: field name is missing')
  name = root['name'].text()
  if not re.fullmatch(r'[\w-]+', name, re.ASCII):
    root['name'].fail(f"'{name}' may hold only letters, digits, '-' and '_'")
  crossed = _crossed(root, path) if 'crossed' in root else ()
  values = combinations(*crossed) if crossed else _values_of(root, path)
  needed = tuple(factor.name for factor in crossed) or ('value',)
  own = () if crossed else _OWN
  templates = _templates(root['templates'], values, needed, own) if 'templates' in root else ()
  rewordings: tuple[tuple[Template, ...], ...] = ()
  if 'rewordings' in root:
    lists = root['rewordings'].entries()
    if len(lists) != len(templates):
      root['rewordings'].fail(f'must hold one list for each of the {len(templates)} templates')
    rewordings = tuple(_templates(field, values, needed, own) for field in lists)
    if len(rewordings[0]) < 3 or len(set(map(len, rewordings))) > 1:
      root['rewordings'].fail('must hold equally many rewordings of each template, 3 or more')
  return Attribute(
    name=name, values=values, templates=templates, crossed=crossed, rewordings=rewordings,
    template_subsets=_subsets(root, len(templates)),
    source=root['source'].text() if 'source' in root else '',
    notes=root['notes'].text() if 'notes' in root else '')


def _repeated_keys(node: yaml.Node | None) -> Iterator[yaml.Node]:
  """Keys that a mapping gives twice, of which YAML would silently take the last."""
  if isinstance(node, yaml.MappingNode):
    seen = set()
    for key, value in node.value:
      if str(key.value) in seen:
        yield key
      seen.add(str(key.value))
      yield from _repeated_keys(value)
  elif isinstance(node, yaml.SequenceNode):
    for item in node.value:
      yield from _repeated_keys(item)


def _crossed(root: _Field, path: str) -> tuple[Attribute, Attribute]:
  for name in ('values', 'subgroups'):
    if name in root:
      root[name].fail('the values are those of the crossed attributes: leave it out')
  factors = root['crossed'].fields()
  if len(factors) != 2:
    root['crossed'].fail('must name two attributes, each after the placeholder for its values')
  found = []
  for key, field in factors.items():
    if not isinstance(key, str) or not re.fullmatch(r'[A-Za-z0-9]+', key) or key in _OWN:
      field.fail(f'{key!r} cannot be a placeholder: use letters and digits, not '
                 f'{", ".join(_OWN)} alone')
    named = field.text()
    if named not in list_attributes():
      named = os.path.join(os.path.dirname(path), named)
    attribute = load_attribute(named)
    if attribute.crossed or any(AND in v.text for v in attribute.values):
      field.fail(f'{named} crosses attributes itself, or a value holds {AND!r}')
    found.append(dataclasses.replace(attribute, name=key))
  return found[0], found[1]


def _values_of(root: _Field, path: str) -> tuple[Value, ...]:
  """The values of a file with values or subgroups, which differ in the normal form."""
  if ('values' in root) == ('subgroups' in root):
    raise UserError(f'{path}: give either values or subgroups')
  values = [] if 'subgroups' in root else [_value(item) for item in root['values'].entries()]
  for group, field in root['subgroups'].fields().items() if 'subgroups' in root else ():
    field.fields(('values', 'pronouns'))
    if not isinstance(group, str):
      field.fail('the name of a subgroup must be text: put it in quotes')
    pronouns = _pronouns(field['pronouns']) if 'pronouns' in field else {}
    if 'values' not in field:
      field.fail('field values is missing')
    values += [_value(item, group, pronouns) for item in field['values'].entries()]
  subgroups: dict[str, str] = {}  # each as it is written first
  owner: dict[str, tuple[str, str]] = {}
  for i, value in enumerate(values):
    group = subgroups.setdefault(normal_form(value.subgroup), value.subgroup)
    values[i] = dataclasses.replace(value, subgroup=group)
    for token in {value.text, *value.tokens}:
      key = normal_form(token)
      if key in owner:
        other, first = owner[key]
        written = '' if other == token else (
          f": it is '{other}', with other characters for an accent, apostrophe, hyphen or space")
        raise UserError(f"{path}: '{token}' is given twice (values '{first}' and "
                        f"'{value.text}'){written}")
      owner[key] = token, value.text
  if len(subgroups) < 2:
    raise UserError(f'{path}: all values are of one subgroup: a counterfactual needs a value of '
                    'another one')
  return tuple(values)


def _value(item: _Field, group: str | None = None, pronouns: Mapping[str, str] | None = None
           ) -> Value:
  """A value; `group` and `pronouns` are those of the subgroup that it is listed under."""
  if not isinstance(item.value, dict):
    text = item.phrase()
    return Value(text, group or text, (text,), article_by_letter(text), pronouns or {})
  item.fields(_VALUE_FIELDS)
  if 'text' not in item:
    item.fail('field text is missing')
  text = item['text'].phrase()
  if group is not None and 'subgroup' in item:
    item['subgroup'].fail(f"the value is in subgroup '{group}' already")
  own = item['subgroup'].phrase() if 'subgroup' in item else group or text
  tokens = tuple(t.phrase() for t in item['tokens'].entries()) if 'tokens' in item else (text,)
  article = item['article'].text() if 'article' in item else article_by_letter(text)
  if article not in ('a', 'an'):
    item['article'].fail(f"'{article}' is neither a nor an")
  words = _pronouns(item['pronouns']) if 'pronouns' in item else pronouns or {}
  return Value(text, own, tokens, article, words)


def _pronouns(field: _Field) -> dict[str, str]:
  words = field.fields()
  for key, word in words.items():
    if not isinstance(key, str) or not key.isidentifier() or key in _OWN:
      word.fail(f"'{key}' cannot be the name of a pronoun")
  return {key: word.phrase() for key, word in words.items()}


def _templates(
  field: _Field, values: Sequence[Value], needed: Sequence[str], own: Sequence[str],
) -> tuple[Template, ...]:
  """Templates with the placeholders `needed`, and no others than `own` and the values' words."""
  found: dict[str, Template] = {}
  for i, entry in enumerate(field.entries(), 1):
    template = Template(entry.phrase(), str(i))
    if set('{}') & set(_PLACEHOLDER.sub('', template.text)):
      entry.fail('a brace that belongs to no placeholder')
    for name in needed:
      if name not in template.placeholders:
        entry.fail(f'placeholder {{{name}}} is missing')
    for value in values:
      known = {*own, *value.pronouns}
      for name in template.placeholders:
        if name not in known:
          names = ', '.join(f'{{{k}}}' for k in sorted(known))
          entry.fail(f"placeholder {{{name}}} is unknown for value '{value.text}': it has {names}")
    other = found.setdefault(normal_form(template.text), template)
    if other is not template:
      entry.fail(f'the same as template {other.id}')
  return tuple(found.values())


def _subsets(root: _Field, count: int) -> dict[str, tuple[int, ...]]:
  if 'template_subsets' not in root:
    return {}
  subsets = {}
  for name, field in root['template_subsets'].fields().items():
    for entry in field.entries():
      if type(entry.value) is not int or not 1 <= entry.value <= count:
        entry.fail(f'{entry.value!r} is not the number of a template (1 to {count})')
    subsets[str(name)] = tuple(number - 1 for number in field.value)
  return subsets
