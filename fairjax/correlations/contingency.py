"""Chi-square tests of how often something happens in several groups."""

import numpy as np


def chi_square(supplied: np.ndarray, sizes: np.ndarray) -> np.ndarray:
  """Pearson's chi-square of "supplied or not" by group, without Yates's correction (W-03).

  Args:
    supplied: `[..., G]` how many persons of each group a fill was supplied for.
    sizes: `[G]` persons of each group, positive.

  Returns:
    `[...]` float64; 0 where all or none of the persons were supplied, as no rates can differ.
  """
  supplied, sizes = np.asarray(supplied, np.float64), np.asarray(sizes, np.float64)
  rate = supplied.sum(axis=-1, keepdims=True) / sizes.sum()
  expected = rate * sizes
  with np.errstate(divide='ignore', invalid='ignore'):
    terms = np.square(supplied - expected) * (1 / expected + 1 / (sizes - expected))
  varies = (rate > 0) & (rate < 1)
  return np.where(varies, terms, 0).sum(axis=-1)


def chi_square_p(statistic: np.ndarray, groups: int) -> np.ndarray:
  """Upper tail of the chi-square distribution with `groups` - 1 degrees of freedom."""
  from scipy import special
  return special.chdtrc(groups - 1, statistic)
