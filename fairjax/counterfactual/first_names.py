"""First names by gender from counts: files in the formats of the US Social Security statistics.

Webster et al. 2020, section 3: names with more than 80 % of their counts in one gender (W-02). Two
formats are read, told by their rows, and may be mixed:

* `name,sex,count` with sex F or M, the file of one year (yobYYYY.txt), a row for each gender;
* `name`, female count, male count, separated by tabs or commas: sums over years.

Names in capitals or small letters throughout (MARY, as in the census lists) are read as Mary, which
is how texts write them. A name that is written in two ways (`word_forms`) is one name, as it is
written first.

The statistics know two genders, as registered at birth, of people in the United States only.
"""

import collections
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence

from fairjax.counterfactual.word_forms import normal_form
from fairjax.errors import UserError
from fairjax.inputs import read_text_lines

_FORMATS = 'give name,F,count or name,M,count; or name, female count, male count'


@dataclasses.dataclass(frozen=True)
class NameLists:
  """Names of two genders, the most frequent first (by their count in that gender, then by letter).

  Attributes:
    female: names with more than `share` of their count as female.
    male: the same, as male.
    counts: name -> (female count, male count), of both lists.
    share: in [0.5, 1).
    neither: names in the files that are in no list, for their share or their count.
    source: the files.
  """

  female: tuple[str, ...]
  male: tuple[str, ...]
  counts: Mapping[str, tuple[int, int]] = dataclasses.field(hash=False)
  share: float = 0.8
  neither: int = 0
  source: str = ''

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256 (hex) of the two lists."""
    return hashlib.sha256(json.dumps([self.female, self.male]).encode('utf-8')).hexdigest()


def read_names(
  path: str | os.PathLike | Sequence[str | os.PathLike], share: float = 0.8, *,
  least_count: int = 1, most: int = 0,
) -> NameLists:
  """Reads counts and chooses the names of one gender.

  Args:
    path: a file, or several whose counts are added, e.g. one for each year.
    share: a name belongs to a gender that has more than this share of its count; in [0.5, 1).
    least_count: a rarer name (both genders together) is left out and counted in `neither`.
    most: so many names of each gender, the most frequent ones; 0: all.

  Raises:
    UserError: a file is missing or damaged, a row cannot be read, its count is negative or not a
      number, it repeats another of the same file, or a gender has no name; with file and line.
    ValueError: `share` outside [0.5, 1).
  """
  if not 0.5 <= share < 1:
    raise ValueError(f'share must be in [0.5, 1), not {share}')
  paths = [path] if isinstance(path, str | os.PathLike) else list(path)
  counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
  written: dict[str, str] = {}
  for file in map(os.fspath, paths):
    for name, found in _read_file(file).items():
      name = written.setdefault(normal_form(name), name)
      for gender in (0, 1):
        counts[name][gender] += found[gender]
  lists = []
  for gender in (0, 1):
    names = [n for n, c in counts.items() if sum(c) >= max(least_count, 1) and
             c[gender] > share * sum(c)]
    names.sort(key=lambda n: (-counts[n][gender], n))
    lists.append(tuple(names[:most or None]))
  source = ' + '.join(map(os.fspath, paths))
  for gender, names in zip(('female', 'male'), lists, strict=True):
    if not names:
      raise UserError(f'{source}: no name has more than {share:.0%} of its count as {gender}: '
                      'both genders are needed')
  chosen = {n: tuple(counts[n]) for n in (*lists[0], *lists[1])}
  return NameLists(*lists, counts=chosen, share=share, neither=len(counts) - len(chosen),
                   source=source)


def _read_file(path: str) -> dict[str, list[int]]:
  """Name -> [female count, male count] of one file."""
  counts: dict[str, list[int]] = {}
  written: dict[str, str] = {}
  seen: dict[tuple[str, str], int] = {}
  for number, line in enumerate(read_text_lines(path, what='file of names'), 1):
    if not line.strip() or line.startswith('#'):
      continue
    columns = [c.strip() for c in line.split('\t' if '\t' in line else ',')]
    if len(columns) != 3 or not columns[0]:
      raise UserError(f'{path}:{number}: {len(columns)} column(s) in {line.strip()!r}: {_FORMATS}')
    name, second, third = columns
    plain = normal_form(name)
    name = plain.title() if name.isupper() or name.islower() else name
    name = written.setdefault(normal_form(name), name)
    found = counts.setdefault(name, [0, 0])
    if second in ('F', 'M'):
      found[second == 'M'] += _count(third, path, number)
    else:
      second_count, third_count = (_count(c, path, number) for c in (second, third))
      found[0] += second_count
      found[1] += third_count
      second = ''
    first = seen.setdefault((name, second), number)
    if first != number:
      raise UserError(f"{path}:{number}: '{name}' stands in line {first} already: a file gives a "
                      'name once (for each gender)')
  if not counts:
    raise UserError(f'{path}: no name in it: {_FORMATS}')
  return counts


def _count(text: str, path: str, number: int) -> int:
  if not (text.isascii() and text.isdigit() and len(text) < 19):
    raise UserError(f"{path}:{number}: '{text}' is no count (a whole number from 0 on): {_FORMATS}")
  return int(text)
