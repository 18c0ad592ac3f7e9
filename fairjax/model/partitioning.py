"""Splits the model's arrays over devices by logical axes: `rows` of a batch, `heads`, `vocab`, ...

`fairjax.train.sharding` puts a mesh and a table from logical to mesh axes into context. Without
them every function here is the identity.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import PartitionSpec


def spec(*axes: str | None) -> PartitionSpec:
  """Mesh axes of an array whose leading axes have these logical names."""
  if not _several():
    return PartitionSpec()
  return nn.logical_to_mesh_axes(axes)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
  """Fixes how an intermediate array is split."""
  if not _several():
    return x
  return jax.lax.with_sharding_constraint(x, spec(*axes))


def constrain_dividing(x: jax.Array, *axes: str | None) -> jax.Array:
  """`constrain`, but an axis that its devices do not divide is whole."""
  if not _several():
    return x
  found = [axis and dividing((axis,), (size,))[0] for axis, size in zip(axes, x.shape, strict=True)]
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*found))


def per_device(function: Callable, *, in_specs: Any, out_specs: Any) -> Callable:
  """Runs `function` on each device's part of its arguments."""
  if not _several():
    return function
  return jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def dividing(axes: Sequence[str], sizes: Sequence[int]) -> list[Any]:
  """Mesh axes of each logical axis, or None where its devices do not divide the size."""
  if not _several():
    return [None] * len(axes)
  return [found if size % parts(axis) == 0 else None
          for axis, found, size in zip(axes, spec(*axes), sizes, strict=True)]


def parts(axis: str) -> int:
  """Number of parts into which a logical axis is split."""
  mesh = jax.sharding.get_abstract_mesh()
  return math.prod(mesh.shape[name] for name in _names(axis))


def index(axis: str) -> Any:
  """This device's part of a logical axis, inside `per_device`."""
  names = _names(axis)
  return jax.lax.axis_index(names) if names else 0


def total(x: Any, axis: str) -> Any:
  """Sum over the devices that hold parts of a logical axis, inside `per_device`."""
  names = _names(axis)
  return jax.lax.psum(x, names) if names else x


def maximum(x: Any, axis: str) -> Any:
  """Maximum over the devices that hold parts of a logical axis, inside `per_device`."""
  names = _names(axis)
  return jax.lax.pmax(x, names) if names else x


def _several() -> bool:
  """Whether a mesh of more than one device and a table are in context."""
  mesh = jax.sharding.get_abstract_mesh()
  return not mesh.empty and mesh.size > 1 and bool(nn.get_logical_axis_rules())


def _names(axis: str) -> tuple[str, ...]:
  if not _several():
    return ()
  (found,) = spec(axis) or (None,)
  return () if found is None else (found,) if isinstance(found, str) else tuple(found)
