"""Continuations without a text: refusals, length limits, errors of an API. What is done about them.

Unequal shares between values are a bias of their own, which no score of the texts shows.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.errors import UserError, unknown_name

EMPTY = ('error', 'drop', 'keep')
"""What is done; `drop` takes partners of coupled samples too."""
_NAMED = 20  # values that a sentence names


class EmptyTexts(NamedTuple):
  """How many continuations are empty or blank, before any were left out.

  Attributes:
    values: A values.
    empty: `[A]` empty continuations of each value.
    records: `[A]` records of each value.
    left_out: records that were left out, with partners in the same sample.
  """

  values: tuple[str, ...]
  empty: tuple[int, ...]
  records: tuple[int, ...]
  left_out: int

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

  def sentence(self, level: float) -> str | None:
    """The share of each value, largest first; None where no continuation is empty."""
    if not sum(self.empty):
      return None
    order = sorted(range(len(self.values)), key=lambda i: -self.empty[i] / self.records[i])
    shares = [f'{self.values[i]} {100 * self.empty[i] / self.records[i]:.1f} %' for i in order]
    text = (f'{sum(self.empty):,} of {sum(self.records):,} continuations are empty: '
            + ', '.join(shares[:_NAMED]) + (', ...' if len(shares) > _NAMED else ''))
    if self.p_value is not None:
      text += f' (chi-squared test of equal shares: p = {self.p_value:.2g})'
      if self.p_value < level:
        text += '; the share depends on the value, a bias that no score shows'
    if self.left_out:
      text += f'; {self.left_out:,} records were left out, partners in the same sample included'
    return text


def rows_to_keep(
  texts: Sequence[str], value_index: np.ndarray, values: Sequence[str], *, empty: str,
  where: Sequence[str], samples: Sequence[Hashable] | None,
) -> tuple[np.ndarray, EmptyTexts]:
  """Chooses the records that are measured.

  Args:
    texts: `[R]` continuations.
    value_index: `[R]` int, into `values`; each value occurs.
    values: A values.
    empty: one of `EMPTY`.
    where: `[R]` place of each record.
    samples: `[R]` what coupled records share; with `drop`, those of an empty one go with it. None:
      they are not coupled.

  Returns:
    `[K]` rows to keep, in order, and the counts.

  Raises:
    UserError: `error`, and there are some; the line counts them by value.
  """
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
      f'{blank.size:,}: {", ".join(by_value[:_NAMED])}{", ..." if len(by_value) > _NAMED else ""}. '
      'Choose --empty=drop to leave them out (of coupled samples their partners too), or '
      '--empty=keep to measure them as they are; unequal shares are a bias of their own')
  if empty == 'drop':
    gone = blank
    if samples is not None:
      of_empty = {samples[i] for i in np.flatnonzero(blank)}
      gone = np.array([sample in of_empty for sample in samples], bool)
    if gone.all() and gone.size:
      raise UserError(f'{where[0]}: --empty=drop leaves none of {gone.size:,} records')
  return np.flatnonzero(~gone), EmptyTexts(
    tuple(values), tuple(found), tuple(records), int(gone.sum()))
