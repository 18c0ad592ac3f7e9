"""Scores of prefixes from arrays, for the tests of the measures and their benchmarks."""

import numpy as np

from fairjax.measure.estimates import SampleScores


def from_arrays(
  scores, *, coupled=False, values=None, subgroups=None, templates=None
) -> SampleScores:
  """Scores `[M][A][n]`, or `[A][n]` of one template; without subgroups each value is its own."""
  rows = [scores] if np.ndim(scores[0][0]) == 0 else scores
  arrays = tuple(tuple(np.asarray(x, np.float64) for x in row) for row in rows)
  ids = tuple(tuple(np.arange(x.size) for x in row) for row in arrays) if coupled else None
  values = tuple(values or (f'v{a}' for a in range(len(arrays[0]))))
  return SampleScores(
    values, tuple(subgroups or values), tuple(templates or range(len(arrays))), arrays, ids)
