"""Professions with the share of women in them, from a file that the user gives.

The form is that of WinoGender's occupation statistics (Rudinger et al. 2018): a table with a
header, a column `occupation` and a column of percentages. Such shares know two genders only.
"""

import hashlib
import math
import os
from typing import NamedTuple

import numpy as np

from fairjax.errors import UserError, unknown_name
from fairjax.inputs import open_input
from fairjax.tables import Table

COLUMN = 'bls_pct_female'
_NO_VALUE = ('', 'na', 'nan', 'n/a', '-')


class Professions(NamedTuple):
  """Professions that have a share.

  Attributes:
    names: P of them, in the order of the file.
    shares: `[P]` float64 in [0, 1], the share of women.
    missing: professions that the file names without a share; they are left out.
    digest: SHA-256 (hex) of names and shares.
  """

  names: tuple[str, ...]
  shares: np.ndarray
  missing: tuple[str, ...]
  digest: str


def read_professions(path: str | os.PathLike, *, column: str = COLUMN) -> Professions:
  """Reads such a file.

  Raises:
    UserError: unreadable, another header, a share that is no percentage, a profession twice, or
      less than three professions with a share.
  """
  names, shares, missing = [], [], []
  with open_input(path, what='table of professions') as file:
    table = Table(file, path, ('occupation',), fill=True)
    if column not in table.header:
      raise unknown_name('column', column, table.header, where=str(path))
    for cells, where in table:
      name, share = cells['occupation'].strip(), cells[column].strip()
      if not name:
        raise UserError(f'{where}: no occupation')
      if name in names or name in missing:
        raise UserError(f"{where}: '{name}' stands there twice: leave one row out")
      if share.lower() in _NO_VALUE:
        missing.append(name)
        continue
      names.append(name)
      shares.append(_share(share, where))
  if len(names) < 3:
    raise UserError(f"{path}: {len(names)} professions have a value in '{column}', a correlation "
                    'needs at least 3')
  digest = hashlib.sha256(repr(list(zip(names, shares, strict=True))).encode()).hexdigest()
  return Professions(tuple(names), np.array(shares), tuple(missing), digest)


def _share(text: str, where: str) -> float:
  try:
    value = float(text)
  except ValueError:
    value = math.nan
  if not 0 <= value <= 100:
    raise UserError(f"{where}: '{text}' is no percentage from 0 to 100")
  return value / 100
