"""Many texts through a compiled function: sorted by length, one compilation for each bucket.

A batch holds a fixed number of tokens and not of texts; the function is told that number, so that
what is no attention need not be computed at padding (`models.encode`, `packing`). The texts beside
one can move it to a batch of another length, which changes sums in their last places only (about
1e-7 in float32); otherwise they change nothing.

Letters: G groups of rows (one a device), B rows of a batch, T places of a row, R texts.
"""

import collections
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fairjax.model.xla_features import knows_options
from fairjax.pretrained.checkpoint import Architecture
from fairjax.pretrained.models import class_logits, encode, unstack_layers
from fairjax.pretrained.tokens import pair_types

# Tokens of a batch on one device: enough to keep it busy, few enough that the last batch of each
# length, which is filled with padding, costs little. On CPU in float32 every product orders its
# weights anew (oneDNN): the more tokens share that, the better.
_CPU_TOKENS, _CPU_BFLOAT16_TOKENS, _BATCH_TOKENS = 2048, 1024, 8192
_SMALLEST = 8
# On a CPU the layers of larger models are unrolled: copying the weights out of the stack costs 5 %
# of BERT-base's time. Those of smaller ones stay in the caches, and compile once for all layers.
_SCANNED_LAYER_BYTES = 8 * 2 ** 20
_AHEAD = 2  # batches that run while earlier results are fetched
# Of jaxlib 0.10.2's three libraries for products on CPU, oneDNN takes the least of BERT-base's time
# in float32; sums stay with XLA's default, and so does bfloat16 (docs/performance.md). Where oneDNN
# was not built in (ARM), the products are Eigen's; so they are where jaxlib lacks the options.
_CPU_OPTIONS = {
  'xla_cpu_use_onednn': True,
  'xla_cpu_experimental_onednn_fusion_type': 'LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT',
  'xla_cpu_experimental_ynn_fusion_type': 'LIBRARY_FUSION_TYPE_REDUCE'}


def bucket_lengths(longest: int) -> tuple[int, ...]:
  """Lengths that texts are padded to: each at most half as long again as the one before."""
  lengths = [_SMALLEST]
  while lengths[-1] < longest:
    octave = 2 ** int(math.log2(lengths[-1]))
    lengths.append(lengths[-1] + octave // 2)
  return (*(n for n in lengths if n < longest), longest)


def default_mesh(*, together: bool = False) -> Mesh:
  """All devices of this process, or `together` those of all, which then run the same texts."""
  devices = jax.devices() if together else jax.local_devices()
  return Mesh(np.array(devices), ('data',), axis_types=(AxisType.Auto,))


def busy_devices(mesh: Mesh | None = None) -> int:
  """How many devices of a mesh (None: the default one) want a full batch each at once."""
  mesh = default_mesh() if mesh is None else mesh
  if mesh.devices.flat[0].platform == 'cpu':
    return 1
  return math.prod(size for axis, size in mesh.shape.items() if axis != 'model')


class BatchRunner:
  """Runs `function(params, ids, mask, packing)` over texts of any length, on a mesh.

  Rows are split over all axes of the mesh but `model`; parameters are on every device. In several
  processes all must call it with the same texts; all get all results.

  Attributes:
    lengths: of the buckets.
  """

  def __init__(
    self, function: Callable[[Any, jax.Array, jax.Array, tuple[int, int]], jax.Array],
    params: Any, *,
    max_length: int, pad_id: int = 0, mesh: Mesh | None = None, batch_tokens: int | None = None,
    per_token: bool = False,
  ):
    """Puts the parameters on the devices.

    `function` takes the parameters, ids `[B, T]` int32, mask `[B, T]` bool and (groups of rows,
    most tokens in a group), and returns `[B, ...]` whose further axes do not depend on T, or with
    `per_token` `[B, T, ...]`. Rows must not depend on each other. `batch_tokens` are those on each
    device; None: by the kind of device.
    """
    self._per_token = per_token
    self.mesh = default_mesh() if mesh is None else mesh
    rows_axes = tuple(a for a in self.mesh.axis_names if a != 'model')
    self._devices = math.prod(self.mesh.shape[a] for a in rows_axes)
    self._rows_sharding = NamedSharding(self.mesh, PartitionSpec(rows_axes))
    self._whole = whole = NamedSharding(self.mesh, PartitionSpec())
    self._on_cpu = cpu = self.mesh.devices.flat[0].platform == 'cpu'
    # Products with bfloat16 are those of another library.
    bfloat16 = any(a.dtype.name == 'bfloat16' for a in jax.tree.leaves(params))
    self.load(params)
    cpu_tokens = _CPU_BFLOAT16_TOKENS if bfloat16 else _CPU_TOKENS
    self.batch_tokens = batch_tokens or (cpu_tokens if cpu else _BATCH_TOKENS)
    self._pad_id = pad_id
    self.lengths = bucket_lengths(max_length)

    def packed(params, ids, mask):
      # A text may be longer than a batch: then it is one alone.
      return function(params, ids, mask, (self._devices, max(self.batch_tokens, ids.shape[1])))

    onednn = cpu and not bfloat16
    # Gathering results makes the devices wait for each other: only for other processes to read.
    self._run = jax.jit(
      packed, out_shardings=whole if jax.process_count() > 1 else self._rows_sharding,
      compiler_options=_CPU_OPTIONS if onednn and knows_options(*_CPU_OPTIONS.items()) else None)

  def load(self, params: Any) -> None:
    """Goes on with other parameters of the same shapes, without another compilation."""
    if self._on_cpu and _layer_bytes(params) > _SCANNED_LAYER_BYTES:
      params = unstack_layers(params)
    self._params = jax.device_put(params, self._whole)

  def rows(self, length: int) -> int:
    """Rows of a device's part of a batch: it can take so many of the bucket's shortest texts."""
    shortest = max((n for n in self.lengths if n < length), default=0) + 1
    return max(1, self.batch_tokens // max(shortest, _SMALLEST // 2))

  def __call__(self, ids: Sequence[np.ndarray]) -> Any:
    """Runs R texts, arrays of 1 to `max_length` ids: `[R, ...]`, in their order.

    With `per_token` R arrays `[tokens of the text, ...]`.
    """
    sizes = np.array([len(row) for row in ids])
    waiting: collections.deque[tuple[list, jax.Array]] = collections.deque()
    results: Any = [None] * len(ids) if self._per_token else None

    def fetch():
      nonlocal results
      parts, values = waiting.popleft()
      values = np.asarray(values)
      values = values.reshape(self._devices, -1, *values.shape[1:])
      if results is None:
        results = np.empty((len(ids), *values.shape[2:]), values.dtype)
      for places, rows in zip(parts, values, strict=False):  # rows beyond them are padding
        if self._per_token:
          for place, row in zip(places, rows, strict=False):
            results[place] = row[:sizes[place]].copy()  # the rest of the batch can go
        else:
          results[places] = rows[:len(places)]

    for length, parts in self._plan(sizes):
      arrays = self._batch(ids, parts, length)
      waiting.append((parts, self._run(self._params, *arrays)))
      if len(waiting) > _AHEAD:
        fetch()
    while waiting:
      fetch()
    return results

  def _plan(self, sizes: np.ndarray) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Length of every batch, and the texts of each device, from the longest text on."""
    order = np.argsort(-sizes, kind='stable')
    ends = np.cumsum(sizes[order])
    begin = 0
    while begin < len(order):
      longest = sizes[order[begin]]
      length = next(n for n in self.lengths if n >= longest)
      parts: list[np.ndarray] = []
      while begin < len(order) and len(parts) < self._devices:
        before = ends[begin] - sizes[order[begin]]
        full = int(np.searchsorted(ends, before + self.batch_tokens, side='right'))
        end = min(begin + self.rows(length), max(begin + 1, full))
        parts.append(order[begin:end])
        begin = end
      yield length, parts

  def _batch(self, ids, parts: list[np.ndarray], length: int) -> tuple[jax.Array, jax.Array]:
    """Ids and mask of the parts, padded to `[devices x rows, length]`, on the devices."""
    rows = self.rows(length)
    tokens = np.full((self._devices * rows, length), self._pad_id, np.int32)
    mask = np.zeros(tokens.shape, bool)
    for part, places in enumerate(parts):
      for row, place in enumerate(places, part * rows):
        tokens[row, :len(ids[place])] = ids[place]
        mask[row, :len(ids[place])] = True
    placed = (jax.make_array_from_callback(a.shape, self._rows_sharding, a.__getitem__)
              for a in (tokens, mask))
    return next(placed), next(placed)


def class_runner(params: Any, arch: Architecture, *, max_length: int, mesh: Mesh | None = None,
                 sep: int | None = None) -> BatchRunner:
  """Scores `[R, C]` of texts, or of pairs with a separator, without dropout."""
  def scores(params, ids, mask, packing):
    types = None if sep is None else pair_types(ids, sep)
    return class_logits(params, arch, encode(params, arch, ids, mask, types, packing=packing,
                                             first_only=True))

  return BatchRunner(scores, params, max_length=max_length, pad_id=arch.pad_id, mesh=mesh)


def _layer_bytes(params: Any) -> int:
  """Bytes of one of the stacked layers; 0 without them."""
  layers = params.get('layers', {}) if isinstance(params, Mapping) else {}
  return sum(a.nbytes // len(a) for a in jax.tree.leaves(layers))
