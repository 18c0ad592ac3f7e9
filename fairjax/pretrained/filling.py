"""Texts of known lengths into parts of so many tokens, nearly full: empty places cost time, too."""

import bisect
import collections
from collections.abc import Sequence

import numpy as np

_LAST = 3  # texts of a part that are chosen by their length


def fill_parts(
  places: Sequence[int], sizes: np.ndarray, *, rows: int, tokens: int
) -> list[list[int]]:
  """Splits texts into parts, each but the last ones nearly full.

  A part takes texts in a shuffled order, so that all parts hold all lengths, and its last three so
  that they fill it: of few lengths nearly any sum can be made.

  Args:
    places: of the texts in `sizes`.
    sizes: `[R]` tokens of the texts, each in [1, tokens].
    rows: most texts of a part.
    tokens: most tokens of a part.

  Returns:
    Places, every one once; the same for the same texts.

  >>> [[int(n) for n in part] for part in fill_parts(range(4), np.array([5, 3, 2, 6]), rows=3,
  ...                                                tokens=8)]
  [[3, 2], [0, 1]]
  """
  pools: dict[int, list[int]] = collections.defaultdict(list)
  for place in places:
    pools[int(sizes[place])].append(place)
  order = np.random.default_rng(0).permutation([int(sizes[place]) for place in places]).tolist()
  taken: collections.Counter[int] = collections.Counter()  # of sizes, before their turn
  known = sorted(pools)
  parts: list[list[int]] = []

  def take(size):
    parts[-1].append(pools[size].pop())
    if not pools[size]:
      del pools[size], known[bisect.bisect_left(known, size)]

  while pools:
    parts.append([])
    room = tokens
    while pools and len(parts[-1]) < rows and known[0] <= room:
      if room > _LAST * known[-1] and rows - len(parts[-1]) > _LAST:
        size = order.pop()
        if taken[size]:
          taken[size] -= 1
          continue
        chosen = [size]
      else:
        chosen = _closest(known, pools, room, min(_LAST, rows - len(parts[-1])))
        taken.update(chosen)
      for size in chosen:
        take(size)
      room -= sum(chosen)
  return parts


def _closest(known: list[int], pools: dict[int, list[int]], room: int, most: int) -> list[int]:
  """At most so many sizes, in falling order, with the largest sum that the room holds."""
  def search(room, most, top, used):
    most = min(most, room // known[0])
    best: list[int] = []
    total = 0
    if not most:
      return best, total
    for i in range(min(top, bisect.bisect_right(known, room) - 1), -1, -1):
      size = known[i]
      if min(room, size * most) <= total:
        break  # smaller ones make no larger sum
      if used.count(size) == len(pools[size]):
        continue
      rest, more = search(room - size, most - 1, i, [*used, size])
      if size + more > total:
        best, total = [size, *rest], size + more
    return best, total

  return search(room, most, len(known) - 1, [])[0]
