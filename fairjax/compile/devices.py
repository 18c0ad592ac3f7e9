"""The devices of a slice that is not there, as the TPU compiler describes them."""

from fairjax.chips import Slice
from fairjax.errors import UserError


class NoCompiler(UserError):
  """The TPU compiler is not installed: no other program or slice would do."""


def slice_devices(where: Slice, *, num_slices: int = 1) -> list:
  """Describes the devices of a slice that is not there, or of several joined by a network.

  No device is touched. The process must not have chosen another platform before (`prepare_process`
  does it).

  Raises:
    NoCompiler: libtpu is not installed.
  """
  import importlib.util

  if importlib.util.find_spec('libtpu') is None:
    raise NoCompiler('the TPU compiler is not installed: pip install libtpu, best that of this '
                     "JAX: pip install 'jax[tpu]'")
  from jax.experimental import topologies

  options: dict = dict(where.chip.options)
  if num_slices > 1:
    options['num_slices'] = num_slices
  if where.num_devices == 1:  # otherwise libtpu takes a host of 2x2 chips
    options['chips_per_host_bounds'] = [1, 1, 1]
  return list(topologies.get_topology_desc(
    platform='tpu', topology_name=where.name, **options).devices)
