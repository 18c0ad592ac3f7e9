"""Generation records as columns: checked, and turned into the scores of prefixes.

A record is a mapping with `attribute`, `value`, `template`, `prefix` and `continuation`, and
optionally `sample`, `subgroup`, `model` and `scores`. Records of any model will do. The optional
key `_where` ("file:line") goes into error messages.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.counterfactual.attributes import Attribute
from fairjax.counterfactual.word_forms import normal_form
from fairjax.errors import UserError, unknown_name
from fairjax.measure.empty import EmptyTexts, rows_to_keep
from fairjax.measure.samples import SampleScores

REQUIRED = ('attribute', 'value', 'template', 'prefix', 'continuation')
SCORED_TEXTS = ('continuation', 'prefix+continuation')

@dataclasses.dataclass(frozen=True)
class Generations:
  """R records of one attribute and one model, as columns.

  Attributes:
    attribute: the attribute; every value occurs in every template.
    templates: `[M]` labels, integers in order before strings in order.
    template_index: `[R]` int, into `templates`.
    value_index: `[R]` int, into `attribute.values`.
    sample: `[R]` int64 sample numbers, or None when the records have none.
    prefixes: `[R]` texts.
    continuations: `[R]` texts.
    recorded: `[R]` the records' own `scores`, or None.
    where: `[R]` place of each record, for messages.
    model: name of the model, or None.
    empty_texts: continuations without a text, by value; None: nobody looked.
  """

  attribute: Attribute
  templates: tuple[int | str, ...]
  template_index: np.ndarray
  value_index: np.ndarray
  sample: np.ndarray | None
  prefixes: list[str]
  continuations: list[str]
  recorded: list[Mapping[str, Any] | None]
  where: list[str]
  model: str | None
  empty_texts: EmptyTexts | None = None

  def __len__(self) -> int:
    return len(self.continuations)

  def texts(self, scored: str = 'continuation') -> list[str]:
    """The texts to score (H-02): the continuation alone (default), or the prefix with it.

    Prefix and continuation are joined by one space unless one of them brings white space or the
    continuation begins with a character that is not a letter or a digit.

    Raises:
      UserError: `scored` is neither 'continuation' nor 'prefix+continuation'.
    """
    if scored not in SCORED_TEXTS:
      raise unknown_name('text to score', scored, SCORED_TEXTS)
    if scored == 'continuation':
      return self.continuations
    return [join_text(p, c) for p, c in zip(self.prefixes, self.continuations, strict=True)]

  def cells(self) -> tuple[tuple[np.ndarray, ...], ...]:
    """`[M][A]` int arrays `[n]`: the records of every prefix, in the order of sample numbers."""
    number = np.arange(len(self)) if self.sample is None else self.sample
    order = np.lexsort((number, self.value_index, self.template_index))
    values = len(self.attribute.values)
    cell = (self.template_index * values + self.value_index)[order]
    bounds = np.searchsorted(cell, np.arange(len(self.templates) * values + 1))
    cells = [order[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    return tuple(tuple(cells[i:i + values]) for i in range(0, len(cells), values))

  def sample_scores(self, scores: np.ndarray) -> SampleScores:
    """Arranges one score per record by template and value, in the order of sample numbers.

    Args:
      scores: `[R]` float64 in [0, 1], in the order of the records.
    """
    cells = self.cells()

    def split(column):
      return tuple(tuple(column[c] for c in row) for row in cells)

    return SampleScores(
      values=self.attribute.value_texts, subgroups=tuple(v.subgroup for v in self.attribute.values),
      templates=self.templates, scores=split(np.asarray(scores, np.float64)),
      sample_ids=None if self.sample is None else split(self.sample))

  def first_samples(self, samples: int) -> 'Generations':
    """The first samples of every prefix: lowest numbers, or first records without numbers; 0: all.

    They depend on nothing but the numbers, so that all models of a run give the same ones.
    """
    if not samples:
      return self
    number = np.arange(len(self)) if self.sample is None else self.sample
    order = np.lexsort((number, self.value_index, self.template_index))
    cell = (self.template_index * len(self.attribute.values) + self.value_index)[order]
    rank = np.arange(cell.size) - np.searchsorted(cell, cell)
    return self._take(np.sort(order[rank < samples]))

  def _take(self, rows: np.ndarray) -> 'Generations':
    return dataclasses.replace(
      self, template_index=self.template_index[rows], value_index=self.value_index[rows],
      sample=None if self.sample is None else self.sample[rows],
      **{name: [getattr(self, name)[i] for i in rows]
         for name in ('prefixes', 'continuations', 'recorded', 'where')})

  def without_empty(self, empty: str, *, coupled: bool = True) -> 'Generations':
    """What is measured of the continuations without a text.

    Args:
      empty: 'error', 'drop' or 'keep'.
      coupled: records of a template with the same sample number belong together.

    Raises:
      UserError: 'error', and there are some; or 'drop' leaves a prefix without records.
    """
    pairs = None
    if coupled and self.sample is not None:
      pairs = list(zip(self.template_index.tolist(), self.sample.tolist(), strict=True))
    rows, found = rows_to_keep(
      self.continuations, self.value_index, self.attribute.value_texts, empty=empty,
      where=self.where, samples=pairs)
    left = dataclasses.replace(self._take(rows) if found.left_out else self, empty_texts=found)
    _check_cells(left)
    return left

  def attribute_templates(self) -> dict[int | str, int]:
    """Labels whose prefixes are those of a template of the attribute, with its index from 0."""
    seen = collections.defaultdict(set)
    for template, value, prefix in zip(self.template_index, self.value_index, self.prefixes,
                                       strict=True):
      seen[int(template)].add((int(value), normal_form(prefix.rstrip())))
    known = {frozenset((a, normal_form(self.attribute.prefix(t, a).rstrip()))
                       for a in range(len(self.attribute.values))): t
             for t in range(len(self.attribute.templates))}
    return {self.templates[m]: known[frozenset(cells)] for m, cells in sorted(seen.items())
            if frozenset(cells) in known}


def read_generations(
  records: Iterable[Mapping[str, Any]], attribute: Attribute, *,
  templates: Sequence[int | str] | None = None, empty: str = 'error', coupled: bool = True,
) -> Generations:
  """Reads and checks the records of one attribute and one model.

  Args:
    records: mappings as in the module's docstring; read once, kept as columns.
    attribute: what the records must be about.
    templates: labels that must occur, no others; None takes those of the records.
    empty: see `Generations.without_empty`.
    coupled: see `Generations.without_empty`.

  Raises:
    UserError: no record; a field missing or of the wrong type; another attribute; an unknown value
      (with the nearest one); two models; a sample twice; some records with and some without sample
      numbers; a template, or a value of one, without records; a template with one prefix for two
      values; continuations without a text.
  """
  columns = _Columns(attribute)
  for record, where in _checked(records):
    if record['attribute'] != attribute.name:
      raise UserError(f"{where}: attribute is '{record['attribute']}', not '{attribute.name}': "
                      'give the records of one attribute, or name all their attributes')
    columns.add(record, where)
  return columns.finish(templates).without_empty(empty, coupled=coupled)


def read_attributes(
  records: Iterable[Mapping[str, Any]], attributes: Sequence[Attribute], *, empty: str = 'error',
  coupled: bool = True,
) -> dict[str, Generations]:
  """Reads and checks the records of several attributes, in any order, in one pass.

  Args:
    records: as of `read_generations`.
    attributes: the attributes that the records are about, no others.
    empty: see `Generations.without_empty`.
    coupled: see `Generations.without_empty`.

  Returns:
    Attribute name -> its records, in the order of `attributes`.

  Raises:
    UserError: see `read_generations`; also two attributes of one name.
  """
  columns = {a.name: _Columns(a) for a in attributes}
  if len(columns) < len(attributes):
    raise UserError(f"an attribute is named twice: {', '.join(a.name for a in attributes)}")
  for record, where in _checked(records):
    if record['attribute'] not in columns:
      raise UserError(f"{where}: attribute is '{record['attribute']}', not "
                      f"{' or '.join(map(repr, columns))}: name all attributes of the records")
    columns[record['attribute']].add(record, where)
  return {name: columns[name].finish(None).without_empty(empty, coupled=coupled)
          for name in columns}


class _Columns:
  """Collects the records of one attribute; equal prefixes are kept once."""

  def __init__(self, attribute: Attribute):
    self._attribute = attribute
    self._labels: list[int | str] = []
    self._texts: dict[str, str] = {}
    self._model = None
    self._columns: dict[str, list] = {name: [] for name in (
      'value_index', 'sample', 'prefixes', 'continuations', 'recorded', 'where')}

  def add(self, record: Mapping[str, Any], where: str) -> None:
    """Checks and keeps one record."""
    value = self._check(record, where)
    if self._labels and record.get('model') != self._model:
      raise UserError(f"{where}: model is {record.get('model')!r} where earlier records have "
                      f'{self._model!r}: measure one model at a time')
    self._model = record.get('model')
    self._labels.append(record['template'])
    columns = self._columns
    columns['value_index'].append(value)
    columns['sample'].append(record.get('sample'))
    columns['prefixes'].append(self._texts.setdefault(record['prefix'], record['prefix']))
    columns['continuations'].append(record['continuation'])
    columns['recorded'].append(record.get('scores'))
    columns['where'].append(where)

  def _check(self, record: Mapping[str, Any], where: str) -> int:
    """Checks the fields of one record; the index of its value."""
    attribute = self._attribute
    value = attribute.find_value(record['value'])
    if value is None:
      raise unknown_name(f'value of attribute {attribute.name}', record['value'],
                         attribute.value_texts, where=where)
    subgroup, given = attribute.values[value].subgroup, record.get('subgroup')
    if given not in (None, subgroup) and normal_form(str(given)) != normal_form(subgroup):
      raise UserError(f"{where}: subgroup of '{record['value']}' is '{given}', but "
                      f"'{subgroup}' in attribute {attribute.name}")
    sample = record.get('sample')
    if sample is not None and (not isinstance(sample, int) or isinstance(sample, bool)):
      raise UserError(f"{where}: field 'sample' is {sample!r}, not a whole number")
    scores = record.get('scores')
    if scores is not None and not isinstance(scores, Mapping):
      raise UserError(f"{where}: field 'scores' is {scores!r}, not names with scores")
    return value

  def finish(self, templates: Sequence[int | str] | None) -> Generations:
    """The columns, checked as a whole."""
    labels, columns = self._labels, dict(self._columns)
    if not labels:
      raise UserError(f'no records of attribute {self._attribute.name}: nothing to measure')
    found = sorted(set(labels), key=lambda t: (isinstance(t, str), t))
    _check_templates(found, templates)
    position = {label: i for i, label in enumerate(found)}
    generations = Generations(
      attribute=self._attribute, templates=tuple(found),
      template_index=np.array([position[t] for t in labels]),
      value_index=np.array(columns.pop('value_index')),
      sample=_sample_column(columns.pop('sample'), columns['where']), model=self._model, **columns)
    _check_cells(generations)
    return generations


def join_text(prefix: str, continuation: str) -> str:
  """Prefix and continuation as one text.

  >>> join_text('Chile is', 'far.'), join_text('Chile is', ', far.')
  ('Chile is far.', 'Chile is, far.')
  """
  if not continuation or not prefix or prefix[-1].isspace() or not continuation[0].isalnum():
    return prefix + continuation
  return f'{prefix} {continuation}'


def _checked(records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str]]:
  """Yields records whose required fields are there and of their types, each with its place."""
  accepted: set[tuple] = set()  # names and types of fields, which most records share
  for number, record in enumerate(records, 1):
    where = record.get('_where')
    where = f'record {number}' if where is None else str(where)
    shape = (*record, *map(type, record.values()))
    if shape not in accepted:
      _check_fields(record, where)
      accepted.add(shape)
    yield record, where


def _check_fields(record: Mapping[str, Any], where: str) -> None:
  """The required fields are there and of their types."""
  for field in REQUIRED:
    if field not in record:
      raise UserError(f"{where}: field '{field}' is missing; required: {', '.join(REQUIRED)}")
    kinds = (str, int) if field == 'template' else (str,)
    if not isinstance(record[field], kinds) or isinstance(record[field], bool):
      expected = ' or '.join(k.__name__ for k in kinds)
      raise UserError(f"{where}: field '{field}' is {record[field]!r}, not {expected}")


def _check_templates(
  found: Sequence[int | str], expected: Sequence[int | str] | None
) -> None:
  """Compares the labels of the records with those asked for."""
  if expected is None:
    return
  missing = [t for t in expected if t not in found]
  extra = [t for t in found if t not in expected]
  if missing:
    raise UserError(f"no records of template {', '.join(map(repr, missing))}: generate them, or "
                    'measure without naming templates')
  if extra:
    raise UserError(f"records of template {', '.join(map(repr, extra))}, which is not among those "
                    f"to measure: {', '.join(map(repr, expected))}")


def _check_inputs(generations: Generations) -> None:
  """No prefix of a template stands for two values: their distance would say nothing."""
  seen: dict[tuple[int, str], int] = {}
  columns = zip(generations.template_index.tolist(), generations.value_index.tolist(),
                generations.prefixes, generations.where, strict=True)
  for template, value, prefix, where in columns:
    other = seen.setdefault((template, prefix.strip()), value)
    if other != value:
      values = generations.attribute.value_texts
      raise UserError(
        f'{where}: template {generations.templates[template]!r} has the same prefix {prefix!r} for '
        f"'{values[other]}' and '{values[value]}': the same input tells nothing about the values; "
        'leave the records of this template out, or record the prefix that the model was given')


def _sample_column(samples: list[int | None], where: list[str]) -> np.ndarray | None:
  """Sample numbers of all records or of none."""
  without = [w for s, w in zip(samples, where, strict=True) if s is None]
  if len(without) == len(samples):
    return None
  if without:
    raise UserError(f"{without[0]}: field 'sample' is missing where other records have it: number "
                    'all samples or none')
  return np.array(samples, np.int64)


def _check_cells(generations: Generations) -> None:
  """Every value in every template, no sample twice."""
  values = generations.attribute.values
  cell = generations.template_index * len(values) + generations.value_index
  counts = np.bincount(cell, minlength=len(generations.templates) * len(values))
  empty = np.flatnonzero(counts == 0)
  if empty.size:
    by_template = collections.defaultdict(list)
    for i in empty:
      by_template[generations.templates[i // len(values)]].append(values[i % len(values)].text)
    parts = [f"template {t!r}: {', '.join(v)}" for t, v in by_template.items()]
    raise UserError(
      f'no records of {empty.size} of {counts.size} pairs of template and value of attribute '
      f"{generations.attribute.name}: {'; '.join(parts)}. Every value is needed in every template")
  _check_inputs(generations)
  if generations.sample is None:
    return
  order = np.lexsort((generations.sample, cell))
  same = (np.diff(cell[order]) == 0) & (np.diff(generations.sample[order]) == 0)
  if same.any():
    i = int(order[np.flatnonzero(same)[0] + 1])
    raise UserError(
      f'{generations.where[i]}: sample {generations.sample[i]} of template '
      f"{generations.templates[generations.template_index[i]]!r} and value "
      f"'{values[generations.value_index[i]].text}' occurs twice: remove one")
