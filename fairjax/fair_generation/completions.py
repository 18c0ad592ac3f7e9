"""Completions of prompts by one model: generation records, arranged by prompt.

A prompt is one prefix of the records; its group is the subgroup of its value ('female', 'male', or
any other name). Everything here takes records of any model (fairjax/generate/records.py).
"""

import collections
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.counterfactual import Attribute, list_attributes, load_attribute
from fairjax.counterfactual.word_forms import normal_form
from fairjax.errors import UserError, unknown_name
from fairjax.generate import check_complete, read_records, records_stem
from fairjax.measure.empty import EmptyTexts, rows_to_keep
from fairjax.measure.estimates import LEVEL

GENDERS = ('female', 'male')


@dataclasses.dataclass(frozen=True)
class Prompt:
  """A prefix that was completed: what it is about, and its text without space at the end."""

  attribute: str
  value: str
  group: str
  template: int | str
  text: str


@dataclasses.dataclass(frozen=True)
class Completions:
  """R completions of P prompts by one model.

  Attributes:
    model: its name.
    prompts: `[P]`, in the order of the records.
    index: `[R]` int, the prompt of each.
    sample: `[R]` int64 sample numbers; equal ones of different prompts share their noise where the
      sampler couples them. None without numbers.
    records: `[R]` the records.
    left_out: records of templates that were not asked for.
    empty_texts: completions without a text, by value.
  """

  model: str
  prompts: tuple[Prompt, ...]
  index: np.ndarray
  sample: np.ndarray | None
  records: list[dict[str, Any]]
  left_out: int = 0
  empty_texts: EmptyTexts | None = None

  def __len__(self) -> int:
    return len(self.records)

  @property
  def continuations(self) -> list[str]:
    """`[R]` texts."""
    return [r['continuation'] for r in self.records]

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
  built-in one of that name), else the value itself.

  Args:
    paths: see `read_records`.
    groups: value -> group, before all else.
    attributes: of the user's own.
    templates: labels of the templates to take, as text; empty takes all. What is left out is
      counted in `left_out`.
    empty: 'error', 'drop' or 'keep' completions without a text.
    coupled: records of a template with the same sample number belong together.
    read: reads the records of a path.
    log: gets lines of progress.

  Raises:
    UserError: a file or record that cannot be read, a sampling that is not finished, a group or
      template that no record has, a sample twice, or sample numbers in some records only.
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
      if templates and str(record['template']) not in templates:
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
  result = []
  for model, found in models.items():
    completions = _arrange(model, found, left_out[model], empty, coupled)
    told = completions.empty_texts.sentence(LEVEL)
    if log and told:
      log(f'{model}: {told}')
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
