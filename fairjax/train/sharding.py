"""The sharding of every array: one mesh, one table from logical axes to mesh axes.

The mesh is `slice` x `data` x `fsdp` x `model`. Rows of a batch and of the memory are split over
`slice` (pod slices, joined by the data-centre network), `data` and `fsdp`; parameters over `fsdp`
(their width) and `model` (heads, feed-forward, vocabulary). Only the sum of the gradients crosses
slices.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fairjax.config import MeshConfig, ModelConfig
from fairjax.errors import UserError
from fairjax.model.attention_paths import kernel_serves
from fairjax.model.decoder_config import DecoderConfig
from fairjax.model.softmax import vocabulary_clusters

AXES = ('slice', 'data', 'fsdp', 'model')
ROWS = ('slice', 'data', 'fsdp')
"""Mesh axes over which rows are split."""

RULES = (
  ('rows', ROWS),
  ('layers', None),
  ('vocab', 'model'),
  ('embed', 'fsdp'),
  ('heads', 'model'),
  ('kv_heads', 'model'),
  ('words', 'model'),
  ('head_dim', None),
  ('mlp', 'model'),
)
"""Logical axis -> mesh axis (None: not split)."""

WHERE_DIVIDED = ('kv_heads', 'words')
"""Axes of published models, which have the sizes that they have: whole where it does not divide."""


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None, *,
              field: str = '--config.mesh.') -> Mesh:
  """Builds the mesh over `devices` (default: all), which may be those of a described slice.

  `field` is what an option of the mesh begins with, for the `UserError` where the axes do not
  multiply to the number of devices.
  """
  count = jax.process_count() if devices is None else 1
  devices = list(jax.devices() if devices is None else devices)
  rest = config.slices * config.fsdp * config.model
  data = len(devices) // rest if config.data == -1 else config.data
  if config.data == -1 and len(devices) % rest:
    raise UserError(
      f'mesh slices={config.slices} x fsdp={config.fsdp} x model={config.model} takes {rest} '
      f'devices or a multiple, not {len(devices)}: set {field}slices, .fsdp and .model so that '
      'they multiply to a divisor of it')
  if data * rest != len(devices):
    raise UserError(
      f'mesh slices={config.slices} x data={data} x fsdp={config.fsdp} x model={config.model} does '
      f'not cover the {len(devices)} devices: set {field}slices, .data, .fsdp and .model so that '
      'they multiply to it')
  if config.slices * data * config.fsdp % count:
    raise UserError(f'mesh.model={config.model} spans processes: each of the {count} processes '
                    'needs rows of its own, so slices x data x fsdp must be a multiple of it')
  shape = (1, data, config.fsdp, config.model)
  real = {getattr(d, 'slice_index', 0) for d in devices if d.platform == 'tpu'}
  if real and len(real) != config.slices:
    raise UserError(f'the devices are in {len(real)} slices: set {field}slices={len(real)}')
  if len(real) > 1:
    grid = mesh_utils.create_hybrid_device_mesh(
      shape, (config.slices, 1, 1, 1), devices, allow_split_physical_axes=True)
  else:  # processes or fake devices stand for slices
    parts = np.array(devices).reshape(config.slices, -1)
    grid = np.concatenate([
      mesh_utils.create_device_mesh(shape, list(part), allow_split_physical_axes=True)
      for part in parts])
  return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


@contextlib.contextmanager
def on_mesh(mesh: Mesh) -> Iterator[None]:
  """Traces and runs the block with the mesh and the table in context."""
  with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
    yield


def check_batch_size(
  batch_size: int, mesh: Mesh, *, field: str, grad_accum_steps: int = 1
) -> None:
  """Raises `UserError` unless the devices that share the rows divide each microbatch.

  `batch_size` counts rows over all devices; `field` is that of the configuration.
  """
  devices = math.prod(mesh.shape[axis] for axis in ROWS)
  unit = devices * grad_accum_steps
  if batch_size % unit:
    near = max(unit, batch_size // unit * unit)
    what = f'the {devices} devices that share the rows (mesh slices x data x fsdp)'
    if grad_accum_steps > 1:
      what += f' times {grad_accum_steps} gradient accumulation steps'
    raise UserError(f'{field}={batch_size} is not divisible by {what}: use a multiple of {unit}, '
                    f'e.g. --config.{field}={near}')


def model_problems(config: ModelConfig | DecoderConfig, mesh: Mesh) -> list[str]:
  """Lines about the fields of a model that a mesh cannot run.

  Its axes `fsdp` and `model` must divide some sizes, and its devices run the attention that the
  config names. A vocabulary of unknown size (0) must be padded to a multiple of `model`.
  """
  found = []
  if config.dtype == 'float64' and jax.dtypes.canonicalize_dtype('float64') != 'float64':
    found.append('model.dtype=float64 needs 64-bit numbers of JAX: set JAX_ENABLE_X64=true in the '
                 'environment')
  if isinstance(config, DecoderConfig):
    return found  # `tree_shardings` names what an axis does not divide
  for axis, fields in (('model', ('num_heads', 'ff_dim')), ('fsdp', ('model_dim',))):
    parts, sizes = mesh.shape[axis], {f'model.{f}': getattr(config, f) for f in fields}
    wrong = [f'{field}={size}' for field, size in sizes.items() if size % parts]
    if wrong:
      most = math.gcd(*sizes.values(), mesh.size)
      found.append(f'mesh.{axis}={parts} does not divide {" and ".join(wrong)}: set '
                   f'--config.mesh.{axis}={most}' + (' or a divisor of it' if most > 1 else ''))
  parts, multiple = mesh.shape['model'], config.vocab_multiple
  if multiple % parts:
    rows = [c.padded for c in vocabulary_clusters(config)] if config.vocab_size else []
    wrong = [str(size) for size in rows if size % parts]
    size = f'{" and ".join(wrong)}, rows of a table of the vocabulary' if wrong else (
      'every size that the vocabulary may get from the data')
    if wrong or not rows:
      found.append(f'mesh.model={parts} does not divide {size} (model.vocab_multiple={multiple}): '
                   f'set --config.model.vocab_multiple={math.lcm(multiple, parts)}, or another '
                   '--config.mesh.model')
  kind = mesh.devices.flat[0].device_kind
  if config.attention == 'kernel' and not kernel_serves(config, kind):
    found.append(
      f"model.attention='kernel' does not run on {kind} with model.segment_len="
      f'{config.segment_len} and model.memory_len={config.memory_len}: set '
      '--config.model.attention=auto, which takes it where it runs')
  return found


def replicated(mesh: Mesh) -> NamedSharding:
  """Every device holds the whole array."""
  return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Rows on axis 0."""
  return NamedSharding(mesh, PartitionSpec(ROWS))


def axes_sharding(axes: Sequence[str | None], mesh: Mesh) -> NamedSharding:
  """Sharding of an array whose axes have these logical names; None is not split."""
  rules = dict(RULES)
  return NamedSharding(mesh, PartitionSpec(*(name and rules[name] for name in axes)))


def tree_shardings(abstract: Any, mesh: Mesh) -> Any:
  """Shardings of a tree with logical axis names (`nn.Partitioned`); others are replicated."""
  def fitted(leaf):
    if not isinstance(leaf, nn.LogicallyPartitioned):
      return leaf
    names = zip(leaf.names, leaf.value.shape, strict=True)
    return leaf.replace(names=tuple(
      None if name in WHERE_DIVIDED and size % mesh.shape[dict(RULES)[name]] else name
      for name, size in names))

  abstract = jax.tree.map(
    fitted, abstract, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))
  specs = nn.get_partition_spec(abstract)
  shardings = nn.logical_to_mesh_sharding(specs, mesh, list(RULES))
  leaves = jax.tree_util.tree_leaves_with_path(nn.unbox(abstract))
  for (path, leaf), sharding in zip(leaves, jax.tree.leaves(shardings), strict=True):
    for size, axis in zip(leaf.shape, sharding.spec, strict=False):
      if axis is not None and size % mesh.shape[axis]:
        name = jax.tree_util.keystr(path)
        raise UserError(f'mesh axis {axis}={mesh.shape[axis]} does not divide {size}, an axis of '
                        f'parameter {name} {tuple(leaf.shape)}: choose another '
                        f'--config.mesh.{axis}')
  return shardings


def sharded_shapes(tree: Any, shardings: Any) -> Any:
  """Arrays, or their shapes, as `jax.ShapeDtypeStruct` with a tree of shardings or one for all."""
  if isinstance(shardings, NamedSharding):
    shardings = jax.tree.map(lambda _: shardings, tree)
  return jax.tree.map(lambda leaf, sharding: jax.ShapeDtypeStruct(
    leaf.shape, leaf.dtype, sharding=sharding), tree, shardings)


def own_rows(batches: Iterable[Mapping[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
  """This process's rows of batches that hold those of all processes."""
  index, count = jax.process_index(), jax.process_count()
  for batch in batches:
    yield {name: x[index * len(x) // count:(index + 1) * len(x) // count]
           for name, x in batch.items()}


def to_devices(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
  """Puts this process's rows of every array on its devices as one global array."""
  sharding = batch_sharding(mesh)
  return {
    name: jax.make_array_from_process_local_data(sharding, np.asarray(rows))
    for name, rows in batch.items()
  }


def to_host(x: Any) -> np.ndarray:
  """The whole array in this process's memory; every process must call it for arrays they share."""
  if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
    x = multihost_utils.process_allgather(x, tiled=True)
  return np.asarray(x)
