"""TPU chips and the slices of them that the compiler knows, as JAX counts devices.

A slice is named `GENERATION:SHAPE`, the shape in chips: `v3:8x8` is 64 chips, 128 cores and, since
every v3 core is a device of its own, 128 devices. v4 and v5p run as megacore: one device a chip.
"""

import dataclasses
import math

from fairjax.errors import UserError, unknown_name

GIB = 2**30
_HBM_SOURCE = "libtpu 0.0.52, 'available HBM' of its out-of-memory error"


@dataclasses.dataclass(frozen=True)
class Chip:
  """One generation; all numbers are per device.

  Attributes:
    name: of the generation.
    devices: per chip.
    hbm: bytes of memory.
    available_hbm: bytes of it that programs may use; the compiler refuses larger ones.
    peak_flops: bfloat16 FLOP/s.
    bandwidth: bytes/s between memory and device.
    shapes: of its slices, smallest first.
    source: where the numbers stand.
    options: further arguments of `get_topology_desc`.
  """

  name: str
  devices: int
  hbm: int
  available_hbm: int
  peak_flops: float
  bandwidth: float
  shapes: tuple[str, ...]
  source: str
  options: tuple[tuple[str, str], ...] = ()


_SQUARES = ('1x1', '2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
_CUBES = ('2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8')

CHIPS = {chip.name: chip for chip in (
  # docs.cloud.google.com/tpu/docs/v3: 123 TFLOP/s, 32 GiB and 900 GB/s a chip of two cores. The
  # 16-core slice 2x4 (step 3 of the paper) is not for rent in Google Cloud, but compiles.
  Chip('v3', 2, 16 * GIB, int(15.48 * GIB), 123e12 / 2, 900e9 / 2,
       ('2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16', '16x32', '32x32'),
       f'docs.cloud.google.com/tpu/docs/v3; {_HBM_SOURCE}'),
  # docs.cloud.google.com/tpu/docs/v4: 275 TFLOP/s, 32 GiB, 1200 GB/s a chip. Without the megacore
  # option libtpu describes two devices a chip, which no TPU VM shows to JAX.
  Chip('v4', 1, 32 * GIB, int(30.75 * GIB), 275e12, 1200e9, _CUBES,
       f'docs.cloud.google.com/tpu/docs/v4; {_HBM_SOURCE}', (('chip_config_name', 'megacore'),)),
  # docs.cloud.google.com/tpu/docs/v5e: 197 TFLOP/s, 16 GB, 819 GB/s.
  Chip('v5e', 1, 16 * GIB, int(15.75 * GIB), 197e12, 819e9, _SQUARES,
       f'docs.cloud.google.com/tpu/docs/v5e; {_HBM_SOURCE}'),
  # docs.cloud.google.com/tpu/docs/v5p: 459 TFLOP/s, 95 GB (libtpu: 95.73 GiB), 2765 GB/s.
  Chip('v5p', 1, 96 * GIB, int(95.73 * GIB), 459e12, 2765e9, _CUBES,
       f'docs.cloud.google.com/tpu/docs/v5p; {_HBM_SOURCE}'),
  # docs.cloud.google.com/tpu/docs/v6e: 918 TFLOP/s, 32 GB, 1638 GB/s.
  Chip('v6e', 1, 32 * GIB, int(31.24 * GIB), 918e12, 1638e9, _SQUARES,
       f'docs.cloud.google.com/tpu/docs/v6e; {_HBM_SOURCE}'),
)}
"""By generation. libtpu 0.0.52 also describes v2 and tpu7x, for which nothing here was checked."""


@dataclasses.dataclass(frozen=True)
class Slice:
  """A slice of one generation."""

  chip: Chip
  shape: str

  @property
  def name(self) -> str:
    """As libtpu takes it."""
    return f'{self.chip.name}:{self.shape}'

  @property
  def num_devices(self) -> int:
    """Devices as JAX counts them."""
    return math.prod(map(int, self.shape.split('x'))) * self.chip.devices


def slice_names() -> list[str]:
  """Every known slice."""
  return [f'{chip.name}:{shape}' for chip in CHIPS.values() for shape in chip.shapes]


def find_slice(name: str) -> Slice:
  """The slice of that name.

  Raises:
    UserError: unknown; the line holds the nearest name and the known ones.

  >>> find_slice('v3:8x8').num_devices
  128
  """
  if name not in slice_names():
    generation, colon, _ = name.partition(':')
    if colon and generation in CHIPS:
      raise unknown_name('topology', name, [s.name for s in slices_of(CHIPS[generation])])
    same = _slice_of_cloud_name(name)
    if same is not None:
      raise UserError(f"topology '{name}': name it by its shape in chips, {same.name}")
    raise unknown_name('topology', name, slice_names())
  generation, _, shape = name.partition(':')
  return Slice(CHIPS[generation], shape)


def _slice_of_cloud_name(name: str) -> Slice | None:
  """The slice that Google Cloud calls e.g. `v3-128` or `v5litepod-16`."""
  generation, _, number = name.replace('v5litepod', 'v5e').partition('-')
  chip = CHIPS.get(generation)
  if chip is None or not number.isdigit():
    return None
  cores = 1 if generation in ('v5e', 'v6e') else 2  # in those names: chips, elsewhere cores
  chips = int(number) // cores
  return next((s for s in slices_of(chip) if s.num_devices == chips * chip.devices), None)


def slices_of(chip: Chip) -> list[Slice]:
  """The slices of a generation, smallest first."""
  return [Slice(chip, shape) for shape in chip.shapes]


def slice_devices(where: Slice, *, num_slices: int = 1) -> list:
  """Describes the devices of a slice that is not there, or of several joined by a network.

  No device is touched. The process must not have chosen another platform before (`prepare_process`
  does it).

  Raises:
    UserError: libtpu is not installed.
  """
  import importlib.util

  if importlib.util.find_spec('libtpu') is None:
    raise UserError('the TPU compiler is not installed: pip install libtpu, best that of this JAX: '
                    "pip install 'jax[tpu]'")
  from jax.experimental import topologies

  options: dict = dict(where.chip.options)
  if num_slices > 1:
    options['num_slices'] = num_slices
  if where.num_devices == 1:  # otherwise libtpu takes a host of 2x2 chips
    options['chips_per_host_bounds'] = [1, 1, 1]
  return list(topologies.get_topology_desc(
    platform='tpu', topology_name=where.name, **options).devices)
