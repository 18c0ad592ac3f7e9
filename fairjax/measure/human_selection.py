"""Which records people are shown: a stratified draw, or n continuations of chosen prefixes.

A stratum is one (attribute, model, value, template). `draw_stratified` (H-38, H-39) chooses items
one after another. Each comes from a stratum that still has records and whose attribute has been
chosen least often so far; among those, whose model of that attribute has; then whose pair of model
and value; then whose value; then the stratum itself; then its template; what is left is decided by
the seed. As long as the records allow, attributes, the models of an attribute and the values of a
model differ by at most one item, no stratum is used twice before all of its model and value were
used, and templates differ little, even where there are far more strata than items. Within a stratum
every record is equally likely. Continuations without text cannot be judged: they are left out and
counted.

Records are read twice and never held all at once.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError

Record = Mapping[str, Any]
Stratum = tuple[str, str, str, int | str]  # attribute, model, value, template
NO_MODEL = '(not named)'


@dataclasses.dataclass(frozen=True)
class Pair:
  """Two values whose prefixes are compared, at one template or (None) at all of them (H-40)."""

  first: str
  second: str
  template: str | None = None


@dataclasses.dataclass(frozen=True)
class Counts:
  """What the files hold: records of each stratum with a text, and those without one."""

  strata: Mapping[Stratum, int]
  empty: int


def stratum_of(record: Record) -> Stratum:
  """Attribute, model, value and template of a record."""
  return (record['attribute'], record.get('model') or NO_MODEL, record['value'],
          record['template'])


def count_records(read: Callable[[], Iterable[Record]]) -> Counts:
  """Counts the records of each stratum.

  Args:
    read: starts reading all records from the beginning; each has `_where` ("file:line").

  Raises:
    UserError: records of several files do not name their model, so that models would be mixed.
  """
  strata, empty, nameless = collections.Counter(), 0, set()
  for record in read():
    if not record.get('model'):
      nameless.add(record['_where'].rpartition(':')[0])
    if record['continuation'].strip():
      strata[stratum_of(record)] += 1
    else:
      empty += 1
  if len(nameless) > 1:
    raise UserError(f"records of {' and '.join(sorted(nameless))} do not name their model: add the "
                    "field 'model', or export one file at a time")
  return Counts(dict(strata), empty)


def draw_stratified(
  read: Callable[[], Iterable[Record]], counts: Counts, draws: Sequence[tuple[int, Sequence[int]]],
) -> list[list[Record]]:
  """Draws records by the rule above, several times over.

  Args:
    read: as for `count_records`.
    counts: its result.
    draws: number of records and entropy of the seed of each draw; draws do not know each other, so
      that a record may be in several.

  Returns:
    The records of each draw, in the order of the files.

  Raises:
    UserError: there are fewer records than a draw wants, or the files changed meanwhile.
  """
  strata = sorted(counts.strata, key=repr)
  available = np.array([counts.strata[s] for s in strata], np.int64)
  wanted = []
  for number, entropy in draws:
    if number > available.sum():
      raise UserError(f'{number} items wanted, but only {available.sum()} records have a text: ask '
                      'for fewer with --items')
    rng = np.random.default_rng(np.random.SeedSequence(entropy))
    amounts = _allocate(strata, available, number, rng)
    wanted.append({s: set(rng.choice(size, amount, replace=False).tolist())
                   for s, size, amount in zip(strata, available, amounts, strict=True)})
  found: list[list[Record]] = [[] for _ in draws]
  position = collections.Counter()
  for record in read():
    if not record['continuation'].strip():
      continue
    stratum = stratum_of(record)
    for chosen, records in zip(wanted, found, strict=True):
      if position[stratum] in chosen.get(stratum, ()):
        records.append(record)
    position[stratum] += 1
  if position != counts.strata:
    raise UserError('the record files changed while they were read: export again')
  return found


def draw_pairs(
  read: Callable[[], Iterable[Record]], pairs: Sequence[Pair], per_prefix: int, *,
  coupled: bool, entropy: Sequence[int],
) -> tuple[list[Record], bool, int]:
  """Draws n continuations of each prefix of chosen pairs of values, for every model (H-40).

  Where all records of a template are numbered and `coupled`, the same numbers are drawn for all
  values and models, so that pairs stay pairs; otherwise each prefix is drawn for itself.

  Args:
    read: as for `count_records`.
    pairs: at least one.
    per_prefix: continuations of each (template, value, model).
    coupled: samples of equal number share their noise.
    entropy: of the seed.

  Returns:
    The records in the order of the files, whether they are coupled, and how many records of these
    prefixes have no text (these are left out).

  Raises:
    UserError: a value or template without records, values of several attributes, a sample twice,
      too few continuations, or a pair of one value with itself.
  """
  cells, empty = _pair_cells(read, pairs)
  numbered = coupled and all(None not in samples for samples in cells.values())
  rng = np.random.default_rng(np.random.SeedSequence(entropy))
  chosen: dict[Stratum, set[int]] = {}
  by_template = collections.defaultdict(list)
  for cell in sorted(cells, key=repr):
    by_template[cell[0], cell[3]].append(cell)
  for (_, template), group in by_template.items():
    if numbered:
      for cell in group:
        if len(set(cells[cell])) < len(cells[cell]):
          raise UserError(f"a sample number of model {cell[1]}, value '{cell[2]}', template "
                          f'{template!r} occurs twice: is a file given twice?')
      common = sorted(set.intersection(*(set(cells[cell]) for cell in group)))
      _require(len(common), per_prefix, f'template {template!r} has {{}} sample numbers that all '
               'its values and models share')
      numbers = set(rng.choice(common, per_prefix, replace=False).tolist())
      for cell in group:
        chosen[cell] = {i for i, sample in enumerate(cells[cell]) if sample in numbers}
    else:
      for cell in group:
        size = len(cells[cell])
        _require(size, per_prefix, f"model {cell[1]}, value '{cell[2]}', template {template!r} "
                 'has {} continuations with a text')
        chosen[cell] = set(rng.choice(size, per_prefix, replace=False).tolist())
  found, position = [], collections.Counter()
  for record in read():
    stratum = stratum_of(record)
    if stratum not in chosen or not record['continuation'].strip():
      continue
    if position[stratum] in chosen[stratum]:
      found.append(record)
    position[stratum] += 1
  if position != {cell: len(samples) for cell, samples in cells.items()}:
    raise UserError('the record files changed while they were read: export again')
  return found, numbered, empty


def _pair_cells(
  read: Callable[[], Iterable[Record]], pairs: Sequence[Pair]
) -> tuple[dict[Stratum, list[int | None]], int]:
  """Sample numbers of the records of each (attribute, model, value, template) to compare."""
  for pair in pairs:
    if pair.first == pair.second:
      raise UserError(f"a pair needs two different values, not '{pair.first}' twice")
  values = {v for pair in pairs for v in (pair.first, pair.second)}
  cells: dict[Stratum, list[int | None]] = collections.defaultdict(list)
  attributes, empty = collections.defaultdict(set), collections.Counter()
  for record in read():
    if record['value'] in values:
      attributes[record['value']].add(record['attribute'])
      if record['continuation'].strip():
        cells[stratum_of(record)].append(record.get('sample'))
      else:
        empty[stratum_of(record)] += 1
  models = sorted({cell[1] for cell in cells})
  wanted = {}
  for pair in pairs:
    names = (pair.first, pair.second)
    for value in names:
      if value not in attributes:
        raise UserError(f"no record of value '{value}': spell it as in the records")
    found = attributes[pair.first] & attributes[pair.second]
    if len(found) != 1:
      raise UserError(f"'{pair.first}' and '{pair.second}' are not values of one attribute in the "
                      'records')
    templates = {c[3] for c in cells if c[0] in found and c[2] in names
                 and pair.template in (None, str(c[3]))}
    if not templates:
      raise UserError(f"no record of '{pair.first}' or '{pair.second}' at template "
                      f'{pair.template}: use the label of the records')
    for template in templates:
      for model in models:
        for value in names:
          cell = (next(iter(found)), model, value, template)
          if cell not in cells:
            raise UserError(f"model {model} has no continuation of '{value}' at template "
                            f'{template!r}: all models need both values')
          wanted[cell] = cells[cell]
  return wanted, sum(empty[cell] for cell in wanted)


def _allocate(
  strata: Sequence[Stratum], available: np.ndarray, number: int, rng: np.random.Generator
) -> np.ndarray:
  """How many records to take of each stratum, `[S]` int; the rule of the module."""
  keys = [[s[0] for s in strata], [s[:2] for s in strata], [s[:3] for s in strata],
          [(s[0], s[2]) for s in strata], list(strata), [(s[0], s[3]) for s in strata]]
  groups = []
  for names in keys:
    index = {name: i for i, name in enumerate(dict.fromkeys(names))}
    groups.append(np.array([index[name] for name in names]))
  taken = [np.zeros(group.max() + 1, np.int64) for group in groups]
  amounts = np.zeros(len(strata), np.int64)
  for _ in range(number):
    left = np.flatnonzero(amounts < available)
    for group, count in zip(groups, taken, strict=True):
      counts = count[group[left]]
      left = left[counts == counts.min()]
    chosen = rng.choice(left)
    amounts[chosen] += 1
    for group, count in zip(groups, taken, strict=True):
      count[group[chosen]] += 1
  return amounts


def _require(found: int, wanted: int, words: str) -> None:
  if found < wanted:
    raise UserError(f"{words.format(found)}, but {wanted} are wanted: sample more, or lower "
                    '--per_prefix')
