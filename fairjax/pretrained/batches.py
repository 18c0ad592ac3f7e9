"""Many texts through a compiled function: sorted into few lengths, one compilation for each.

A text's shape depends on its own length alone, so its values do not depend on the texts beside it.
Letters: B rows of a batch, T tokens, R texts.
"""

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

BATCH_TOKENS = 4096  # tokens of a batch on one device: enough to keep it busy
_SMALLEST = 8
_AHEAD = 2  # batches that run while earlier results are fetched


def bucket_lengths(longest: int) -> tuple[int, ...]:
  """Lengths that texts are padded to: each at most half as long again as the one before.

  >>> bucket_lengths(100)
  (8, 12, 16, 24, 32, 48, 64, 96, 100)
  """
  lengths = [_SMALLEST]
  while lengths[-1] < longest:
    lengths.append(lengths[-1] * 3 // 2 if math.log2(lengths[-1]).is_integer()
                   else lengths[-1] * 4 // 3)
  return (*(n for n in lengths if n < longest), longest)


def default_mesh() -> Mesh:
  """All devices, with the rows over them."""
  return Mesh(np.array(jax.devices()), ('data',), axis_types=(AxisType.Auto,))


class BatchRunner:
  """Runs `function(params, ids, mask)` over texts of any length, on a mesh.

  Rows are split over all axes of the mesh but `model`; parameters are on every device. In several
  processes all must call it with the same texts; all get all results.

  Attributes:
    lengths: of the buckets.
    traced: bucket length -> times that the function was traced (compiled) for it.
  """

  def __init__(
    self, function: Callable[[Any, jax.Array, jax.Array], jax.Array], params: Any, *,
    max_length: int, pad_id: int = 0, mesh: Mesh | None = None, batch_tokens: int = BATCH_TOKENS,
  ):
    """Puts the parameters on the devices.

    Args:
      function: takes ids `[B, T]` int32 and mask `[B, T]` bool, returns `[B, ...]` whose further
        axes do not depend on T. Rows must not depend on each other.
      params: its parameters.
      max_length: most tokens of a text.
      pad_id: id at padding.
      mesh: default: all devices.
      batch_tokens: B x T on each device, about.
    """
    self.mesh = default_mesh() if mesh is None else mesh
    rows_axes = tuple(a for a in self.mesh.axis_names if a != 'model')
    self._devices = math.prod(self.mesh.shape[a] for a in rows_axes)
    self._rows_sharding = NamedSharding(self.mesh, PartitionSpec(rows_axes))
    whole = NamedSharding(self.mesh, PartitionSpec())
    self._whole = whole
    self.load(params)
    self._batch_tokens, self._pad_id = batch_tokens, pad_id
    self.lengths = bucket_lengths(max_length)
    self.traced: collections.Counter[int] = collections.Counter()

    def traced(params, ids, mask):
      self.traced[ids.shape[1]] += 1  # runs when the function is traced, not when it is called
      return function(params, ids, mask)

    self._run = jax.jit(traced, out_shardings=whole)

  def load(self, params: Any) -> None:
    """Goes on with other parameters of the same shapes, without another compilation."""
    self._params = jax.device_put(params, self._whole)

  def rows(self, length: int) -> int:
    """Rows of a batch of texts padded to `length`, a multiple of the devices."""
    return max(1, self._batch_tokens // length) * self._devices

  def __call__(self, ids: Sequence[np.ndarray]) -> np.ndarray:
    """Runs R texts.

    Args:
      ids: R arrays of 1 to `max_length` token ids.

    Returns:
      `[R, ...]`, in the order of the texts.

    Raises:
      ValueError: no texts, or one without tokens or with more than `max_length`.
    """
    sizes = np.array([len(row) for row in ids])
    if not len(sizes) or sizes.min() < 1 or sizes.max() > self.lengths[-1]:
      raise ValueError(f'texts of {sizes.tolist()[:5]} tokens, not of 1 to {self.lengths[-1]}')
    buckets = np.searchsorted(self.lengths, sizes)
    waiting: collections.deque[tuple[np.ndarray, jax.Array]] = collections.deque()
    results: np.ndarray | None = None

    def fetch():
      nonlocal results
      places, values = waiting.popleft()
      values = np.asarray(values)[:len(places)]  # rows beyond them are padding
      if results is None:
        results = np.empty((len(ids), *values.shape[1:]), values.dtype)
      results[places] = values

    for bucket in np.unique(buckets):
      length = self.lengths[bucket]
      members, rows = np.flatnonzero(buckets == bucket), self.rows(length)
      for start in range(0, len(members), rows):
        places = members[start:start + rows]
        waiting.append((places, self._run(self._params, *self._batch(ids, places, rows, length))))
        if len(waiting) > _AHEAD:
          fetch()
    while waiting:
      fetch()
    return results

  def _batch(self, ids, places, rows: int, length: int) -> tuple[jax.Array, jax.Array]:
    """Ids and mask of some texts, padded to `[rows, length]`, on the devices."""
    tokens = np.full((rows, length), self._pad_id, np.int32)
    mask = np.zeros((rows, length), bool)
    for row, place in enumerate(places):
      tokens[row, :len(ids[place])] = ids[place]
      mask[row, :len(ids[place])] = True
    return tuple(jax.make_array_from_callback(a.shape, self._rows_sharding, a.__getitem__)
                 for a in (tokens, mask))
