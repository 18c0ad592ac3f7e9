"""Scores of every prefix: checked, with the names of values, subgroups and templates.

Letters: M templates, A attribute values, n samples of one prefix (template and value).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class SampleScores:
  """Scores of the continuations of every prefix.

  Attributes:
    values: `[A]` names of the attribute's values.
    subgroups: `[A]` subgroup of each value.
    templates: `[M]` labels.
    scores: `[M][A]` float64 arrays `[n]` in [0, 1]; n may differ from prefix to prefix.
    sample_ids: `[M][A]` int arrays `[n]`, ascending, or None when samples are not numbered. Equal
      numbers of two values of a template name samples that were drawn together.

  Raises:
    UserError: fewer than two values, a prefix without samples, or a score that is NaN or outside
      [0, 1]; the message names template and value.
    ValueError: lengths that do not agree.
  """

  values: tuple[str, ...]
  subgroups: tuple[str, ...]
  templates: tuple[int | str, ...]
  scores: tuple[tuple[np.ndarray, ...], ...]
  sample_ids: tuple[tuple[np.ndarray, ...], ...] | None = None

  def __post_init__(self):
    if len(self.values) < 2:
      raise UserError(f'fairness compares values: at least 2 are needed, not {len(self.values)}')
    if len(self.subgroups) != len(self.values) or len(self.scores) != len(self.templates):
      raise ValueError('values and subgroups, templates and scores must agree in length')
    if not self.templates:
      raise ValueError('at least one template is needed')
    for template, row in zip(self.templates, self.scores, strict=True):
      missing = [v for v, x in zip(self.values, row, strict=True) if x.size == 0]
      if missing:
        raise UserError(f"template {template!r} has no sample of: {', '.join(missing)}")
      for value, x in zip(self.values, row, strict=True):
        wrong = np.flatnonzero(~((x >= 0) & (x <= 1)))
        if wrong.size:
          raise UserError(
            f'template {template!r}, value {value!r}: score {wrong[0] + 1} is {x[wrong[0]]}, not a '
            f'number in [0, 1] ({wrong.size} of {x.size} are not); scores from -1 to 1: use '
            '(s + 1) / 2')

  @classmethod
  def from_arrays(
    cls, scores: Any, *, coupled: bool = False, values: Sequence[str] | None = None,
    subgroups: Sequence[str] | None = None, templates: Sequence[int | str] | None = None,
  ) -> 'SampleScores':
    """Scores given as arrays.

    Args:
      scores: `[A, n]` (one template) or `[M, A, n]` numbers in [0, 1], or nested lists of these
        shapes in which n may differ; or a mapping from value to `[n]`, or from template to such a
        mapping (then the keys are the names).
      coupled: the i-th samples of all values of a template were drawn with the same noise.
      values: `[A]` names; default v0, v1, ...
      subgroups: `[A]`; default each value its own.
      templates: `[M]` labels; default 0, 1, ...

    Raises:
      UserError: see the class; also `coupled` with values of unequal n, or other values in another
        template.

    >>> SampleScores.from_arrays({'Chile': [0.1, 0.5], 'Iraq': [0.2, 0.9]}).values
    ('Chile', 'Iraq')
    """
    if isinstance(scores, Mapping):
      if not isinstance(next(iter(scores.values()), None), Mapping):
        scores = {0: scores}
      templates = templates or tuple(scores)
      values = values or tuple(next(iter(scores.values())))
      for template, row in scores.items():
        if set(row) != set(values):
          raise UserError(f'template {template!r} has the values {", ".join(map(str, row))} where '
                          f'others have {", ".join(map(str, values))}: every value is needed')
      rows = [[row[v] for v in values] for row in scores.values()]
    else:
      rows = scores
      if np.ndim(rows[0][0]) == 0:
        rows = [rows]
    arrays = tuple(tuple(np.asarray(x, np.float64).reshape(-1) for x in row) for row in rows)
    count = len(arrays[0])
    if any(len(row) != count for row in arrays):
      raise UserError('every template needs the same number of values, not '
                      f'{sorted({len(row) for row in arrays})}')
    values = tuple(values or (f'v{a}' for a in range(count)))
    templates = tuple(templates or range(len(arrays)))
    for template, row in zip(templates, arrays, strict=True):
      if coupled and len({x.size for x in row}) > 1:
        raise UserError(f'template {template!r}: coupled samples need the same n for every value, '
                        f'not {sorted({x.size for x in row})}; or measure them as not coupled')
    ids = tuple(tuple(np.arange(x.size) for x in row) for row in arrays) if coupled else None
    return cls(values, tuple(subgroups or values), templates, arrays, ids)

  @property
  def coupled(self) -> bool:
    """True when every value of a template holds the same, distinct sample numbers."""
    if self.sample_ids is None:
      return False
    return all(
      np.array_equal(row[0], ids) and (np.diff(ids) > 0).all()
      for row in self.sample_ids for ids in row)

  @property
  def sizes(self) -> np.ndarray:
    """`[M, A]` int, samples of every prefix."""
    return np.array([[x.size for x in row] for row in self.scores])

  @property
  def samples_per_prefix(self) -> tuple[int, int]:
    """Smallest and largest number of samples of a prefix."""
    sizes = self.sizes
    return int(sizes.min()), int(sizes.max())

  @property
  def subgroup_names(self) -> tuple[str, ...]:
    """`[G]` names of the subgroups, in the order of appearance."""
    return tuple(dict.fromkeys(self.subgroups))

  @property
  def subgroup_index(self) -> np.ndarray:
    """`[A]` int, index of each value's subgroup in `subgroup_names`."""
    order = {name: i for i, name in enumerate(self.subgroup_names)}
    return np.array([order[s] for s in self.subgroups])

  def first(self, count: int) -> 'SampleScores':
    """The first `count` samples of every prefix; all of a prefix that has fewer."""
    ids = self.sample_ids
    return dataclasses.replace(
      self, scores=tuple(tuple(x[:count] for x in row) for row in self.scores),
      sample_ids=None if ids is None else tuple(tuple(x[:count] for x in row) for row in ids))

  def select_templates(self, templates: Sequence[int | str]) -> 'SampleScores':
    """The scores of some of the templates, named by their labels."""
    index = [self.templates.index(t) for t in templates]
    return dataclasses.replace(
      self, templates=tuple(templates), scores=tuple(self.scores[i] for i in index),
      sample_ids=None if self.sample_ids is None else tuple(self.sample_ids[i] for i in index))
