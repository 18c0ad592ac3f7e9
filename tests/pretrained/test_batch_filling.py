"""Texts into parts of so many tokens: every text once, within both limits, and nearly full."""

import itertools
import math

import numpy as np
import pytest

from fairjax.pretrained.batch_runner import _closest, fill_parts


@pytest.mark.parametrize('seed', range(5))
def test_the_last_texts_fill_a_part_as_well_as_any_could(seed):
  rng = np.random.default_rng(seed)
  for _ in range(40):
    sizes = np.sort(rng.integers(1, 30, rng.integers(1, 8))).tolist()
    pools = {size: [0] * sizes.count(size) for size in sizes}
    room, most = int(rng.integers(1, 80)), int(rng.integers(1, 4))
    best = max(sum(chosen) for count in range(most + 1)
               for chosen in itertools.combinations(sizes, count) if sum(chosen) <= room)
    chosen = _closest(sorted(pools), pools, room, most)
    assert sum(chosen) == best and len(chosen) <= most
    assert all(chosen.count(size) <= sizes.count(size) for size in chosen)
    assert chosen == sorted(chosen, reverse=True)


@pytest.mark.parametrize(('shortest', 'longest'), [(1, 8), (9, 12), (33, 48), (1, 64), (385, 512)])
@pytest.mark.parametrize('count', [1, 7, 400])
def test_every_text_once_in_nearly_full_parts(shortest, longest, count):
  rng = np.random.default_rng(count)
  sizes, tokens = rng.integers(shortest, longest + 1, 2 * count), 1024
  places = rng.permutation(2 * count)[:count].tolist()
  rows = tokens // shortest
  parts = fill_parts(places, sizes, rows=rows, tokens=tokens)
  assert sorted(place for part in parts for place in part) == sorted(places)
  assert all(0 < len(part) <= rows and sizes[part].sum() <= tokens for part in parts)
  assert parts == fill_parts(places, sizes, rows=rows, tokens=tokens)
  if longest < 100:  # of larger ones no two need fit
    assert len(parts) <= math.ceil(sizes[places].sum() / tokens) + (count > 100)
    full = [sizes[part].sum() for part in parts[:-2]]
    assert not full or np.mean(full) > 0.995 * tokens


def test_no_part_has_more_texts_than_rows():
  parts = fill_parts(range(100), np.full(100, 3), rows=7, tokens=1000)
  assert [len(part) for part in parts] == [7] * 14 + [2]
  assert fill_parts([], np.zeros(0, int), rows=7, tokens=10) == []
