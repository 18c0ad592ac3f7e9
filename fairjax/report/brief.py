"""Few numbers in a small table, each beside its floor and what may be read from it."""

from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.measure.estimates import estimate_words
from fairjax.report.comparison import ModelRow, scorer_names
from fairjax.report.markdown import Table

_MEASURES = (('I.F.', 'individual_fairness'), ('G.F.', 'group_fairness'))


def brief_table(
  rows: Sequence[ModelRow], *, scorers: Sequence[str] | None = None, group: bool = True
) -> Table:
  """One line for each model, scorer and measure: value, floor and verdict.

  Args:
    rows: the models.
    scorers: names; None takes all.
    group: with G.F. beside I.F.
  """
  measures = _MEASURES if group else _MEASURES[:1]
  body = []
  for row in rows:
    for scorer in scorers or scorer_names([row]):
      for label, name in measures:
        if (found := row.estimate(scorer, name)) is not None:
          body.append([row.name, f'{label} {scorer}', estimate_words(found, named=False),
                       f"{found['corrected']:.4f}", sample_size(found)])
  header = ['model', 'measure', 'value (floor)', 'less noise', 'n']
  skip = len({row.name for row in rows}) == 1  # one model needs no column of names
  return Table(header[skip:], [line[skip:] for line in body], text_columns=2 - skip)


def sample_size(estimate: Mapping[str, Any]) -> str:
  """Samples of a prefix, a range where they differ."""
  low, high = estimate['n_min'], estimate['n_max']
  return f'{low:,}' if low == high else f'{low:,}\u2013{high:,}'


def largest_cell(row: ModelRow, scorer: str) -> tuple[int | str, tuple[str, str]]:
  """The template and the pair of values whose distributions are farthest apart.

  The largest of many distances is large by chance too: read its Holm-corrected p-value.
  """
  measures = row.scorer(scorer)
  if measures is None:
    raise ValueError(f'{row.name} was not measured by scorer {scorer}')
  _, template, pair = max(
    (distance, -t, -p) for t, line in enumerate(measures['cells']['distance'])
    for p, distance in enumerate(line))
  first, second = measures['pairs']['values'][-pair]
  return measures['by_template']['template'][-template], (first, second)
