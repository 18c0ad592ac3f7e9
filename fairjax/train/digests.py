"""Digests of the leaves of a train state: what was saved can be told from what is read back.

Each process hashes the shards that it holds, so that saving gathers nothing; on restore every leaf
is gathered on the host, one at a time, and compared shard by shard, whatever its sharding is now.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from fairjax.train.sharding import to_host

Cards = dict[str, dict[str, Any]]
"""Name of a leaf -> `dtype`, `shape` and `shards`: (starts, stops, SHA-256 of the bytes)."""


def leaf_cards(tree: Any) -> Cards:
  """Card of every leaf of a tree of `jax.Array`; processes that share them call it together."""
  cards: Cards = {}
  own: list[bytes] = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    held = {_bounds(s.index, leaf.shape): s.data for s in leaf.addressable_shards
            if s.replica_id == 0}
    shards = sorted({_bounds(index, leaf.shape)
                     for index in leaf.sharding.devices_indices_map(leaf.shape).values()})
    own += [digest_bytes(held[b]) if b in held else bytes(32) for b in shards]
    cards[jax.tree_util.keystr(path)] = {
      'dtype': str(leaf.dtype), 'shape': list(leaf.shape),
      'shards': [[*map(list, bounds), ''] for bounds in shards]}
  digests = np.frombuffer(b''.join(own), np.uint8).reshape(-1, 32)
  if jax.process_count() > 1:  # every shard has its digest from one process and 0 from the others
    digests = multihost_utils.process_allgather(digests).sum(0, dtype=np.uint8)
  names = iter(digests)
  for card in cards.values():
    for shard in card['shards']:
      shard[2] = next(names).tobytes().hex()
  return cards


def different_leaves(template: Any, cards: Mapping[str, Any]) -> list[str]:
  """What of names, shapes and dtypes in the cards is not that of a template, in words."""
  wanted = {jax.tree_util.keystr(path): (str(leaf.dtype), list(leaf.shape))
            for path, leaf in jax.tree_util.tree_leaves_with_path(template)}
  saved = {name: (card['dtype'], list(card['shape'])) for name, card in cards.items()}
  return [f'{name}: {_words(saved.get(name))} -> {_words(wanted.get(name))}'
          for name in sorted(saved.keys() | wanted.keys()) if saved.get(name) != wanted.get(name)]


def damaged_leaves(
  tree: Any, cards: Mapping[str, Any], *, read: Callable[[Any], np.ndarray] = to_host
) -> list[str]:
  """Names of leaves whose bytes are not those of their cards.

  Args:
    tree: of the names, shapes and dtypes of the cards.
    cards: of `leaf_cards`.
    read: leaf -> the whole array on the host; processes that share the leaves call it together.
  """
  found = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    name = jax.tree_util.keystr(path)
    whole = read(leaf)
    if str(whole.dtype) != cards[name]['dtype'] or list(whole.shape) != cards[name]['shape'] or any(
        digest_bytes(whole[tuple(map(slice, starts, stops))]).hex() != digest
        for starts, stops, digest in cards[name]['shards']):
      found.append(name)
  return found


def digest_bytes(array: Any) -> bytes:
  """SHA-256 over the bytes of an array in C order."""
  flat = np.ascontiguousarray(np.asarray(array)).reshape(-1)
  return hashlib.sha256(flat.view(np.uint8)).digest()


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[tuple, tuple]:
  ranges = [s.indices(size) for s, size in zip(index, shape, strict=True)]
  return tuple(r[0] for r in ranges), tuple(r[1] for r in ranges)


def _words(found: tuple[str, list[int]] | None) -> str:
  return 'none' if found is None else f'{found[0]} {tuple(found[1])}'
