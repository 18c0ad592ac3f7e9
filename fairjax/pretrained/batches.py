"""Many texts through a compiled function: sorted into few lengths, one compilation for each.

The texts beside one can move it to a batch of another length, which changes sums in their last
places only (about 1e-7 in float32); otherwise they change nothing.
Letters: B rows of a batch, T tokens, R texts.
"""

import collections
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

# Tokens of a batch on one device: enough to keep it busy, few enough that the last batch of each
# length, which is filled with padding, costs little.
_CPU_TOKENS, _BATCH_TOKENS = 1024, 8192
_SMALLEST = 8
_AHEAD = 2  # batches that run while earlier results are fetched


def bucket_lengths(longest: int, *, per_octave: int = 8) -> tuple[int, ...]:
  """Lengths that texts are padded to: multiples of 4, then steps that grow with the length.

  Args:
    longest: the last one.
    per_octave: steps between a power of two and the next, where they are above 4.

  >>> bucket_lengths(30)
  (8, 12, 16, 20, 24, 28, 30)
  >>> bucket_lengths(100, per_octave=2)
  (8, 12, 16, 24, 32, 48, 64, 96, 100)
  """
  lengths = [_SMALLEST]
  while lengths[-1] < longest:
    octave = 2 ** int(math.log2(lengths[-1]))
    lengths.append(lengths[-1] + max(4, octave // per_octave))
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
    max_length: int, pad_id: int = 0, mesh: Mesh | None = None, batch_tokens: int | None = None,
  ):
    """Puts the parameters on the devices.

    Args:
      function: takes ids `[B, T]` int32 and mask `[B, T]` bool, returns `[B, ...]` whose further
        axes do not depend on T. Rows must not depend on each other.
      params: its parameters.
      max_length: most tokens of a text.
      pad_id: id at padding.
      mesh: default: all devices.
      batch_tokens: B x T on each device, about; None: by the kind of device.
    """
    self.mesh = default_mesh() if mesh is None else mesh
    rows_axes = tuple(a for a in self.mesh.axis_names if a != 'model')
    self._devices = math.prod(self.mesh.shape[a] for a in rows_axes)
    self._rows_sharding = NamedSharding(self.mesh, PartitionSpec(rows_axes))
    whole = NamedSharding(self.mesh, PartitionSpec())
    self._whole = whole
    self.load(params)
    cpu = self.mesh.devices.flat[0].platform == 'cpu'
    self._batch_tokens = batch_tokens or (_CPU_TOKENS if cpu else _BATCH_TOKENS)
    self._pad_id = pad_id
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

    for length, places in self._plan(buckets):
      rows = self.rows(length)
      waiting.append((places, self._run(self._params, *self._batch(ids, places, rows, length))))
      if len(waiting) > _AHEAD:
        fetch()
    while waiting:
      fetch()
    return results

  def _plan(self, buckets: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Length and texts of every batch.

    Texts that do not fill a batch go to the next length in use if that costs less than padding.
    """
    used = np.unique(buckets)
    left = np.zeros(0, int)
    for i, bucket in enumerate(used):
      length = self.lengths[bucket]
      rows = self.rows(length)
      members = np.concatenate([left, np.flatnonzero(buckets == bucket)])
      full = len(members) // rows * rows
      for start in range(0, full, rows):
        yield length, members[start:start + rows]
      left = members[full:]
      longer = self.lengths[used[i + 1]] if i + 1 < len(used) else None
      if len(left) and (longer is None or len(left) * longer >= rows * length):
        yield length, left
        left = left[:0]

  def _batch(self, ids, places, rows: int, length: int) -> tuple[jax.Array, jax.Array]:
    """Ids and mask of some texts, padded to `[rows, length]`, on the devices."""
    tokens = np.full((rows, length), self._pad_id, np.int32)
    mask = np.zeros((rows, length), bool)
    for row, place in enumerate(places):
      tokens[row, :len(ids[place])] = ids[place]
      mask[row, :len(ids[place])] = True
    return tuple(jax.make_array_from_callback(a.shape, self._rows_sharding, a.__getitem__)
                 for a in (tokens, mask))
