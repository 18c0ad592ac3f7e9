"""Generation records as columns: checked, and turned into the scores of prefixes.

Records are those of `fairjax.generate.records`, of any model. Those of the arm `rewording` (`arm`)
have the number of the rewording of the template (`rewording`) too. The optional key `_where`
("file:line") goes into error messages.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fairjax.counterfactual.attributes import Attribute
from fairjax.counterfactual.word_forms import normal_form
from fairjax.errors import UserError, unknown_name
from fairjax.generate.records import Record, check_record
from fairjax.measure.estimates import LEVEL, SampleScores

SCORED_TEXTS = ('continuation', 'prefix+continuation')
EMPTY = ('error', 'drop', 'keep')
"""What is done about empty continuations (refusals, length limits, errors of an API)."""
_NAMED = 20  # values that a sentence names
_BLOCK = 100  # records that become columns together: one by one takes twice the time


class EmptyTexts(NamedTuple):
  """How many continuations are empty or blank, before any were left out."""
  # Unequal shares between values are a bias of their own, which no score of the texts shows.

  values: tuple[str, ...]  # A values
  empty: tuple[int, ...]  # [A] empty continuations
  records: tuple[int, ...]  # [A] records
  left_out: int  # records that were left out, with partners in the same sample

  @property
  def p_value(self) -> float | None:
    """That equal shares differ so much by chance: chi-squared test; None: nothing to compare."""
    if not 0 < sum(self.empty) < sum(self.records) or len(self.values) < 2:
      return None
    from scipy.stats import chi2_contingency
    filled = np.array(self.records) - self.empty
    return float(chi2_contingency(np.array([self.empty, filled]), correction=False).pvalue)

  def to_dict(self) -> dict[str, Any]:
    """JSON-able: of each value, and in all."""
    return {'empty': list(self.empty), 'records': list(self.records), 'left_out': self.left_out,
            'p_value': self.p_value}

  def sentence(self) -> str | None:
    """The share of each value, largest first; None where no continuation is empty."""
    if not sum(self.empty):
      return None
    order = sorted(range(len(self.values)), key=lambda i: -self.empty[i] / self.records[i])
    shares = [f'{self.values[i]} {100 * self.empty[i] / self.records[i]:.1f} %' for i in order]
    text = (f'{sum(self.empty):,} of {sum(self.records):,} continuations are empty: '
            f'{_some(shares)}')
    if self.p_value is not None:
      text += f' (chi-squared test of equal shares: p = {self.p_value:.2g})'
      if self.p_value < LEVEL:
        text += '; the share depends on the value, a bias that no score shows'
    if self.left_out:
      text += f'; {self.left_out:,} records were left out, partners in the same sample included'
    return text


def _some(words: Sequence[str]) -> str:
  return ', '.join(words[:_NAMED]) + (', ...' if len(words) > _NAMED else '')


def rows_to_keep(
  texts: Sequence[str], value_index: np.ndarray, values: Sequence[str], *, empty: str,
  where: Sequence[str], samples: Sequence[Hashable] | None,
) -> tuple[np.ndarray, EmptyTexts]:
  """`[K]` numbers of the records to measure, in order, and how many of the R are empty by value."""
  # With `drop`, all records that share an empty one's entry of `samples` go with it.
  if empty not in EMPTY:
    raise unknown_name('way with empty continuations', empty, EMPTY)
  blank = np.array([not text.strip() for text in texts], bool)
  records, found = (np.bincount(index, minlength=len(values)).tolist()
                    for index in (value_index, value_index[blank]))
  gone = np.zeros_like(blank)
  if blank.any() and empty == 'error':
    by_value = [f'{value} {n:,} of {of:,}' for value, n, of in zip(
      values, found, records, strict=True) if n]
    raise UserError(
      f'{where[int(blank.argmax())]}: this continuation is empty, as are {blank.sum():,} of '
      f'{blank.size:,}: {_some(by_value)}. Choose --empty=drop to leave them out (of coupled '
      'samples their partners too), or --empty=keep to measure them as they are; unequal shares '
      'are a bias of their own')
  if empty == 'drop':
    gone = blank
    if samples is not None:
      of_empty = {samples[i] for i in np.flatnonzero(blank).tolist()}
      gone = np.array([sample in of_empty for sample in samples], bool)
    if gone.all() and gone.size:
      raise UserError(f'{where[0]}: --empty=drop leaves none of {gone.size:,} records')
  return np.flatnonzero(~gone), EmptyTexts(
    tuple(values), tuple(found), tuple(records), int(gone.sum()))


@dataclasses.dataclass(frozen=True)
class Generations:
  """R records of one attribute and one model, as columns."""

  attribute: Attribute  # without the values that no record has; each occurs in every template
  templates: tuple[int | str, ...]  # [M] labels, integers in order before strings in order
  template_index: np.ndarray  # [R] int, into `templates`
  value_index: np.ndarray  # [R] int, into `attribute.values`
  sample: np.ndarray | None  # [R] int64 sample numbers, None when the records have none
  prefixes: list[str]  # [R]
  continuations: list[str]  # [R]
  recorded: list[Mapping[str, Any] | None]  # [R] the records' own `scores`
  where: list[str]  # [R] place of each record, for messages
  model: str | None  # its name
  empty_texts: EmptyTexts | None = None  # continuations without a text; None: not counted
  absent_values: tuple[str, ...] = ()  # of the attribute, without a record
  # Records of the arm `rewording`: `reworded.templates[rewordings[m][k]]` is the k-th rewording of
  # template m.
  reworded: 'Generations | None' = None
  rewordings: tuple[tuple[int, ...], ...] = ()

  def __len__(self) -> int:
    return len(self.continuations)

  @property
  def without_records(self) -> str:
    """The absent values in words."""
    return (f'{len(self.absent_values)} combinations' if self.attribute.crossed
            else ', '.join(self.absent_values))

  def texts(self, scored: str = 'continuation') -> list[str]:
    """The texts to score (H-02): the continuation alone (default), or the prefix with it."""
    if scored not in SCORED_TEXTS:
      raise unknown_name('text to score', scored, SCORED_TEXTS)
    if scored == 'continuation':
      return self.continuations
    return [join_text(p, c) for p, c in zip(self.prefixes, self.continuations, strict=True)]

  def cells(self) -> tuple[tuple[np.ndarray, ...], ...]:
    """`[M][A]` int arrays `[n]`: the records of every prefix, in the order of sample numbers."""
    return self._cells

  @functools.cached_property
  def _cells(self) -> tuple[tuple[np.ndarray, ...], ...]:
    number = np.arange(len(self)) if self.sample is None else self.sample
    order = np.lexsort((number, self.value_index, self.template_index))
    values = len(self.attribute.values)
    cell = (self.template_index * values + self.value_index)[order]
    bounds = np.searchsorted(cell, np.arange(len(self.templates) * values + 1))
    cells = [order[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    return tuple(tuple(cells[i:i + values]) for i in range(0, len(cells), values))

  def sample_scores(self, scores: np.ndarray, *, numbered: bool = True) -> SampleScores:
    """Arranges the scores `[R]` of the records by template and value, in the order of the numbers.

    `numbered=False` leaves the sample numbers out, so that no samples count as coupled.
    """
    cells = self.cells()

    def split(column):
      return tuple(tuple(column[c] for c in row) for row in cells)

    return SampleScores(
      values=self.attribute.value_texts, subgroups=tuple(v.subgroup for v in self.attribute.values),
      templates=self.templates, scores=split(np.asarray(scores, np.float64)),
      sample_ids=split(self.sample) if numbered and self.sample is not None else None)

  def phrasing_scores(
    self, scores: np.ndarray, reworded: np.ndarray, *, numbered: bool = True
  ) -> tuple[SampleScores, SampleScores]:
    """What `measure_rewording` takes, from the scores `[R]` of the prompts and of `reworded`.

    Every prompt of a template and of its rewordings has the same samples.
    """
    prompts = self.sample_scores(scores, numbered=numbered)
    others = self.reworded.sample_scores(reworded, numbered=numbered)
    together = prompts.sample_ids is not None and others.sample_ids is not None
    found: list[tuple[np.ndarray, ...]] = []  # [M A][1 + K], the prompt first
    ids: list[tuple[np.ndarray, ...]] = []
    for m, rewordings in enumerate(self.rewordings):
      def cells(one, other, m=m, rewordings=rewordings):
        return list(zip(one[m], *(other[t] for t in rewordings), strict=True))

      scored = cells(prompts.scores, others.scores)
      numbers = (cells(prompts.sample_ids, others.sample_ids) if together else
                 [[np.arange(x.size) for x in row] for row in scored])
      for row, own, keep in zip(scored, numbers, _shared_numbers(numbers), strict=True):
        found.append(tuple(x[k] for x, k in zip(row, keep, strict=True)))
        ids.append(tuple(x[k] for x, k in zip(own, keep, strict=True)))
    names = ('prompt', *(f'rewording {k}' for k in range(1, 1 + len(self.rewordings[0]))))
    phrasings = SampleScores(
      values=names, subgroups=names, scores=tuple(found),
      templates=tuple(f'{t}, {value}' for t in self.templates for value in prompts.values),
      sample_ids=tuple(ids) if together else None)
    values = len(prompts.values)
    own = (tuple(row[0] for row in rows) for rows in (found, ids))
    scored, numbers = (tuple(x[i:i + values] for i in range(0, len(x), values)) for x in own)
    return dataclasses.replace(
      prompts, scores=scored, sample_ids=numbers if together else None), phrasings

  def first_samples(self, samples: int) -> 'Generations':
    """The first samples of every prefix: lowest numbers, or first records without numbers; 0: all.

    They depend on nothing but the numbers, so that all models of a run give the same ones.
    """
    if not samples:
      return self
    return self._take(np.sort(np.concatenate(
      [rows[:samples] for row in self.cells() for rows in row])))

  def _take(self, rows: np.ndarray) -> 'Generations':
    def taken(column: list[Any]) -> list[Any]:
      return [column[i] for i in rows.tolist()]

    return dataclasses.replace(
      self, template_index=self.template_index[rows], value_index=self.value_index[rows],
      sample=None if self.sample is None else self.sample[rows],
      prefixes=taken(self.prefixes), continuations=taken(self.continuations),
      recorded=taken(self.recorded), where=taken(self.where))

  def without_empty(self, empty: str, *, coupled: bool = True) -> 'Generations':
    """What is measured where continuations have no text: 'error', 'drop' or 'keep' of `EMPTY`.

    If `coupled`, records of a template with the same sample number belong together.
    """
    pairs = None
    if empty == 'drop' and coupled and self.sample is not None:
      pairs = list(zip(self.template_index.tolist(), self.sample.tolist(), strict=True))
    rows, found = rows_to_keep(
      self.continuations, self.value_index, self.attribute.value_texts, empty=empty,
      where=self.where, samples=pairs)
    left = dataclasses.replace(self._take(rows) if found.left_out else self, empty_texts=found)
    _check_counts(left, 'records with a text' if found.left_out else 'records')
    return left

  def prompts(self) -> dict[tuple[int, int, str], int]:
    """(template, value, prefix) of the records, as indices and text -> the first such record."""
    template, value = self.template_index, self.value_index
    prefix = np.array(self.prefixes, object)
    changes = (np.diff(template) != 0) | (np.diff(value) != 0) | (prefix[1:] != prefix[:-1])
    found: dict[tuple[int, int, str], int] = {}
    for i in [0, *(np.flatnonzero(changes) + 1).tolist()]:  # most follow one of the same prompt
      found.setdefault((int(template[i]), int(value[i]), self.prefixes[i]), i)
    return found

  def attribute_templates(self) -> dict[int | str, int]:
    """Labels whose prefixes are those of a template of the attribute, with its index from 0."""
    seen = collections.defaultdict(set)
    for template, value, prefix in self.prompts():
      seen[template].add((value, normal_form(prefix.rstrip())))
    known = {frozenset((a, normal_form(self.attribute.prefix(t, a).rstrip()))
                       for a in range(len(self.attribute.values))): t
             for t in range(len(self.attribute.templates))}
    return {self.templates[m]: known[frozenset(cells)] for m, cells in sorted(seen.items())
            if frozenset(cells) in known}


def read_generations(
  records: Iterable[Mapping[str, Any] | Record], attribute: Attribute, *, empty: str = 'error',
  coupled: bool = True,
) -> Generations:
  """Reads and checks the records of one attribute and one model.

  Args:
    records: mappings as in the module's docstring; read once, kept as columns.
    attribute: what the records must be about.
    empty: of `EMPTY`, see `Generations.without_empty`.
    coupled: samples of equal number belong together.

  Raises:
    UserError: no record; a field missing or of the wrong type; another attribute; an unknown value
      (with the nearest one); two models; a sample twice; some records with and some without sample
      numbers; fewer than two values; a template without records of one of them; a template with
      one prefix for two values; continuations without a text.
  """
  return read_attributes(records, [attribute], empty=empty, coupled=coupled)[attribute.name]


def read_attributes(
  records: Iterable[Mapping[str, Any] | Record], attributes: Sequence[Attribute], *,
  empty: str = 'error', coupled: bool = True,
) -> dict[str, Generations]:
  """`read_generations` of several attributes, in any order, in one pass: name -> its records."""
  if len({a.name for a in attributes}) < len(attributes):
    raise UserError(f"an attribute is named twice: {', '.join(a.name for a in attributes)}")
  # Prompts, rewordings, and template and number of the rewordings' labels.
  columns = {a.name: (_Columns(a), _Columns(a), dict[int | str, tuple[int | str, int]]())
             for a in attributes}

  def keep(block: Sequence[Record]) -> None:
    arms: dict[tuple[str, bool], list[Record]] = collections.defaultdict(list)
    for record in block:
      arms[record.attribute, record.arm == 'rewording'].append(record)
    for (name, is_reworded), found in arms.items():
      if name not in columns:
        raise UserError(f"{found[0].where}: attribute is '{name}', not "
                        f"{' or '.join(map(repr, columns))}: name all attributes of the records, "
                        'or give the records of one')
      prompts, reworded, labels = columns[name]
      if is_reworded:
        reworded.extend([_phrased(record, labels) for record in found])
      else:
        prompts.extend(found)

  checked = (given if isinstance(given, Record) else _checked(given, f'record {number}')
             for number, given in enumerate(records, 1))
  while True:
    block: list[Record] = []
    try:
      block.extend(itertools.islice(checked, _BLOCK))  # keeps what came before an error
    finally:
      try:
        keep(block)
      except UserError:
        for record in block:  # one by one, so that the error names the first bad record
          keep([record])
        raise
    if not block:
      break
  result = {}
  for name, (prompts, reworded, labels) in columns.items():
    result[name] = prompts.finish().without_empty(empty, coupled=coupled)
    if labels:
      result[name] = _joined(
        result[name], reworded.finish().without_empty(empty, coupled=coupled), labels)
  return result


def _checked(given: Mapping[str, Any], place: str) -> Record:
  """The record of a mapping, with its own `_where` or else the place."""
  where = str(given.get('_where') or place)
  record = check_record(given if type(given) is dict else dict(given), where)
  return Record.of(record | {'_where': where})


def _phrased(record: Record, labels: dict[int | str, tuple[int | str, int]]) -> Record:
  """A record of the arm `rewording`, with a label of its own as its template."""
  k = record.rewording
  if type(k) is not int or k < 1:
    raise UserError(f"{record.where}: field 'rewording' is {k!r}, not the number of a rewording, "
                    'from 1')
  label = f'{record.template}, rewording {k}'
  labels[label] = record.template, k
  return msgspec.structs.replace(record, template=label)


def _joined(prompts: Generations, reworded: Generations,
            labels: Mapping[int | str, tuple[int | str, int]]) -> Generations:
  """The records of the prompts with those of their rewordings, which must be of the same."""
  if prompts.attribute != reworded.attribute or prompts.model != reworded.model:
    raise UserError(f'attribute {prompts.attribute.name}: the records of the arm rewording are of '
                    'other values or of another model than the prompts')
  place = {labels[label]: i for i, label in enumerate(reworded.templates)}
  numbers = {template: sorted(k for t, k in place if t == template)
             for template, _ in place}
  wanted = sorted(set().union(*numbers.values()))
  for template in dict.fromkeys([*prompts.templates, *numbers]):
    if template not in prompts.templates or numbers.get(template) != wanted:
      raise UserError(
        f'attribute {prompts.attribute.name}: template {template!r} has the rewordings '
        f'{numbers.get(template, [])}, the records have {wanted} in all: the records of the arm '
        'rewording need the same numbers for every template of the prompts, and no other template')
  return dataclasses.replace(prompts, reworded=reworded, rewordings=tuple(
    tuple(place[t, k] for k in numbers[t]) for t in prompts.templates))


class _Columns:
  """Collects the records of one attribute; equal texts are kept once."""

  def __init__(self, attribute: Attribute):
    self._attribute = attribute
    self._labels: list[int | str] = []
    self._texts: dict[str, str] = {}
    self._values: dict[tuple[str, str | None], int] = {}  # of texts and subgroups that were checked
    self._model: str | None = None
    self._columns: dict[str, list] = {name: [] for name in (
      'value_index', 'sample', 'prefixes', 'continuations', 'recorded', 'where')}

  def extend(self, records: Sequence[Record]) -> None:
    """Keeps records, a column at a time."""
    values = [(r.value, r.subgroup) for r in records]
    for key, record in zip(values, records, strict=True):
      if key not in self._values:
        self._values[key] = self._value(*key, record.where)
    self._model = self._model if self._labels else records[0].model
    if other := next((r for r in records if r.model != self._model), None):
      raise UserError(f'{other.where}: model is {other.model!r} where earlier records have '
                      f'{self._model!r}: measure one model at a time')
    columns, once = self._columns, self._texts.setdefault
    self._labels += [r.template for r in records]
    columns['value_index'] += [self._values[key] for key in values]
    columns['sample'] += [r.sample for r in records]
    columns['prefixes'] += [once(r.prefix, r.prefix) for r in records]
    columns['continuations'] += [once(r.continuation, r.continuation) for r in records]
    columns['recorded'] += [r.scores for r in records]
    columns['where'] += [r.where for r in records]

  def _value(self, text: str, subgroup: str | None, where: str) -> int:
    """The index of a record's value, whose subgroup must be that of the attribute."""
    value = self._attribute.value_index(text, where)
    known = self._attribute.values[value].subgroup
    if subgroup is not None and normal_form(subgroup) != normal_form(known):
      raise UserError(f"{where}: subgroup of '{text}' is '{subgroup}', but '{known}' in attribute "
                      f'{self._attribute.name}')
    return value

  def finish(self) -> Generations:
    """The columns, checked as a whole."""
    labels = self._labels
    columns: dict[str, Any] = dict(self._columns)
    if not labels:
      raise UserError(f'no records of attribute {self._attribute.name}: nothing to measure')
    found = sorted(set(labels), key=lambda t: (isinstance(t, str), t))
    position = {label: i for i, label in enumerate(found)}
    all_values = self._attribute.values
    present, value_index = np.unique(columns.pop('value_index'), return_inverse=True)
    attribute = self._attribute if present.size == len(all_values) else dataclasses.replace(
      self._attribute, values=tuple(all_values[i] for i in present))
    if len(attribute.subgroups) < 2:
      raise UserError(f'all records are of {", ".join(attribute.value_texts)}: a comparison needs '
                      f'values of two subgroups of attribute {attribute.name}')
    generations = Generations(
      attribute=attribute, templates=tuple(found),
      template_index=np.array([position[t] for t in labels]), value_index=value_index,
      sample=_sample_column(columns.pop('sample'), columns['where']), model=self._model,
      absent_values=tuple(v.text for v in all_values if v not in attribute.values), **columns)
    _check_prefixes(generations)
    _check_samples(generations)
    return generations


def _shared_numbers(rows: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
  """Which samples `[n]` of each cell have a number that all have; where none is, as many first."""
  common = functools.reduce(np.intersect1d, (x for row in rows for x in row))
  least = min(x.size for row in rows for x in row)
  return [[np.isin(x, common) if common.size else np.arange(x.size) < least for x in row]
          for row in rows]


def scored_text(record: Mapping[str, Any], scored: str) -> str:
  """What is scored of a record (H-02): the continuation, or the prefix with it."""
  text = record['continuation']
  return text if scored == 'continuation' else join_text(record['prefix'], text)


def join_text(prefix: str, continuation: str) -> str:
  """Prefix and continuation as one text, with a space where a word would follow a character."""
  if not continuation or not prefix or prefix[-1].isspace() or not continuation[0].isalnum():
    return prefix + continuation
  return f'{prefix} {continuation}'


def _check_prefixes(generations: Generations) -> None:
  """No prefix of a template is that of two values: their distance would mean nothing."""
  seen: dict[tuple[int, str], int] = {}
  for (template, value, prefix), first in generations.prompts().items():
    other = seen.setdefault((template, prefix.strip()), value)
    if other != value:
      values, where = generations.attribute.value_texts, generations.where[first]
      raise UserError(
        f'{where}: template {generations.templates[template]!r} has the same prefix {prefix!r} for '
        f"'{values[other]}' and '{values[value]}': the same input tells nothing about the values; "
        'leave the records of this template out, or record the prefix that the model was given')


def _sample_column(samples: list[int | None], where: list[str]) -> np.ndarray | None:
  """Sample numbers of all records or of none."""
  without = samples.count(None)
  if without == len(samples):
    return None
  if without:
    raise UserError(f"{where[samples.index(None)]}: field 'sample' is missing where other records "
                    'have it: number all samples or none')
  return np.array(samples, np.int64)


def _check_counts(generations: Generations, what: str) -> None:
  """Every value has records in every template."""
  names, templates = generations.attribute.value_texts, generations.templates
  missing = {template: [name for name, rows in zip(names, row, strict=True) if not rows.size]
             for template, row in zip(templates, generations.cells(), strict=True)}
  if any(missing.values()):
    pairs = [f'{name} in template {t!r}' for t, absent in missing.items() for name in absent]
    raise UserError(
      f'no {what} of {len(pairs)} of {len(templates) * len(names)} pairs of template and value of '
      f'attribute {generations.attribute.name} ({_some(pairs)}): every value that occurs is needed '
      'in every template')


def _check_samples(generations: Generations) -> None:
  """No sample of a prefix occurs twice."""
  numbers = generations.sample
  if numbers is None:
    return
  for template, row in zip(generations.templates, generations.cells(), strict=True):
    for value, rows in zip(generations.attribute.value_texts, row, strict=True):
      twice = np.flatnonzero(np.diff(numbers[rows]) == 0)
      if twice.size:
        i = rows[twice[0] + 1]
        raise UserError(f"{generations.where[i]}: sample {numbers[i]} of template {template!r} and "
                        f"value '{value}' occurs twice: remove one")
