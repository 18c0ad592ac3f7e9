"""The one table of TPU chips: their slices, as JAX counts devices, and how Google Cloud rents them.

A slice is named `GENERATION:SHAPE`, the shape in chips: `v3:8x8` is 64 chips, 128 cores and, since
every v3 core is a device of its own, 128 devices. v4 and v5p run as megacore: one device a chip.
`fairjax compile` and `fairjax launch` both read this table.
"""

import dataclasses
import math

from fairjax.errors import UserError, unknown_name

GIB = 2**30
_HBM_SOURCE = "libtpu 0.0.52, 'available HBM' of its out-of-memory error"


@dataclasses.dataclass(frozen=True)
class Cloud:
  """How Google Cloud rents a generation.

  Attributes:
    prefix: of the accelerator types: `v5litepod` of `v5litepod-16`.
    per_chip: what the number behind the prefix counts: 1 for chips, 2 for cores.
    runtime: runtime version of the Cloud TPU API; empty where that API does not offer it.
    gke: value of the node label `cloud.google.com/gke-tpu-accelerator`; empty if not in GKE.
    machine: machine type of hosts with four chips, in GKE and Compute Engine.
    machine_of_one: machine type of a host with one chip; empty where there is none.
    image: image family of Compute Engine; empty where it is not rented as an instance.
    most_chips: that one host holds: a larger slice is several machines.
    not_rented: shapes that the compiler knows and nobody can rent.
  """

  prefix: str
  per_chip: int
  runtime: str
  gke: str
  machine: str
  machine_of_one: str = ''
  image: str = ''
  most_chips: int = 4
  not_rented: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Chip:
  """One generation; all numbers are per device.

  Attributes:
    name: of the generation.
    devices: per chip.
    hbm: bytes of memory; 0 where nothing was checked with the compiler, as the next three.
    available_hbm: bytes of it that programs may use; the compiler refuses larger ones.
    peak_flops: bfloat16 FLOP/s.
    bandwidth: bytes/s between memory and device.
    shapes: of its slices, smallest first.
    source: where the numbers stand.
    cloud: how it is rented.
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
  cloud: Cloud
  options: tuple[tuple[str, str], ...] = ()

  @property
  def compiles(self) -> bool:
    """Whether `fairjax compile` knows it."""
    return self.available_hbm > 0


_SQUARES = ('1x1', '2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
_CUBES = ('2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8')

# Runtime versions: docs.cloud.google.com/tpu/docs/runtimes. Node labels and machine types:
# docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus; images: tpu/docs/tpu-os-images.
_IMAGE = 'ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e'

CHIPS = {chip.name: chip for chip in (
  # Rented, but never compiled for here: memory and speed are left out.
  Chip('v2', 2, 0, 0, 0, 0, ('2x2', '4x4', '4x8', '8x8', '8x16', '16x16'),
       'docs.cloud.google.com/tpu/docs/v2', Cloud('v2', 2, 'tpu-ubuntu2204-base', '', '')),
  # docs.cloud.google.com/tpu/docs/v3: 123 TFLOP/s, 32 GiB and 900 GB/s a chip of two cores. The
  # 16-core slice 2x4 (step 3 of the paper) is not for rent in Google Cloud, but compiles.
  Chip('v3', 2, 16 * GIB, int(15.48 * GIB), 123e12 / 2, 900e9 / 2,
       ('2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16', '16x32', '32x32'),
       f'docs.cloud.google.com/tpu/docs/v3; {_HBM_SOURCE}',
       Cloud('v3', 2, 'tpu-ubuntu2204-base', '', '', not_rented=('2x4',))),
  # docs.cloud.google.com/tpu/docs/v4: 275 TFLOP/s, 32 GiB, 1200 GB/s a chip. Without the megacore
  # option libtpu describes two devices a chip, which no TPU VM shows to JAX.
  Chip('v4', 1, 32 * GIB, int(30.75 * GIB), 275e12, 1200e9, _CUBES,
       f'docs.cloud.google.com/tpu/docs/v4; {_HBM_SOURCE}',
       Cloud('v4', 2, 'tpu-ubuntu2204-base', 'tpu-v4-podslice', 'ct4p-hightpu-4t'),
       (('chip_config_name', 'megacore'),)),
  # docs.cloud.google.com/tpu/docs/v5e: 197 TFLOP/s, 16 GB, 819 GB/s.
  Chip('v5e', 1, 16 * GIB, int(15.75 * GIB), 197e12, 819e9, _SQUARES,
       f'docs.cloud.google.com/tpu/docs/v5e; {_HBM_SOURCE}',
       Cloud('v5litepod', 1, 'v2-alpha-tpuv5-lite', 'tpu-v5-lite-podslice', 'ct5lp-hightpu-4t',
             machine_of_one='ct5lp-hightpu-1t', most_chips=8)),
  # docs.cloud.google.com/tpu/docs/v5p: 459 TFLOP/s, 95 GB (libtpu: 95.73 GiB), 2765 GB/s.
  Chip('v5p', 1, 96 * GIB, int(95.73 * GIB), 459e12, 2765e9, _CUBES,
       f'docs.cloud.google.com/tpu/docs/v5p; {_HBM_SOURCE}',
       Cloud('v5p', 2, 'v2-alpha-tpuv5', 'tpu-v5p-slice', 'ct5p-hightpu-4t', image=_IMAGE)),
  # docs.cloud.google.com/tpu/docs/v6e: 918 TFLOP/s, 32 GB, 1638 GB/s.
  Chip('v6e', 1, 32 * GIB, int(31.24 * GIB), 918e12, 1638e9, _SQUARES,
       f'docs.cloud.google.com/tpu/docs/v6e; {_HBM_SOURCE}',
       Cloud('v6e', 1, 'v2-alpha-tpuv6e', 'tpu-v6e-slice', 'ct6e-standard-4t',
             machine_of_one='ct6e-standard-1t', image=_IMAGE, most_chips=8)),
  # Two devices a chip; the Cloud TPU API does not offer it. Never compiled for here.
  Chip('tpu7x', 2, 0, 0, 0, 0, ('1x1x1', *_CUBES), 'docs.cloud.google.com/tpu/docs/tpu7x',
       Cloud('tpu7x', 2, '', 'tpu7x', 'tpu7x-standard-4t', machine_of_one='tpu7x-standard-1t',
             image='ubuntu-accel-2404-amd64-tpu-tpu7x')),
)}
"""By generation."""


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
  def num_chips(self) -> int:
    """Chips."""
    return math.prod(map(int, self.shape.split('x')))

  @property
  def num_devices(self) -> int:
    """Devices as JAX counts them."""
    return self.num_chips * self.chip.devices


def slice_names() -> list[str]:
  """Every slice that `fairjax compile` knows."""
  return [s.name for chip in CHIPS.values() if chip.compiles for s in slices_of(chip)]


def find_slice(name: str) -> Slice:
  """The slice of that name, for the compiler.

  Raises:
    UserError: unknown; the line holds the nearest sizes of that chip, or the known chips.

  >>> find_slice('v3:8x8').num_devices
  128
  """
  generation, colon, shape = name.partition(':')
  if name in slice_names():
    return Slice(CHIPS[generation], shape)
  if colon:
    raise _unknown_slice(name, generation, shape)
  same = _slice_of_cloud_name(name)
  if same is not None:
    raise UserError(f"topology '{name}': name it by its shape in chips, {same.name}")
  raise unknown_name('topology', name, slice_names())


def _unknown_slice(name: str, generation: str, shape: str) -> UserError:
  """The error for a name that has the form of a slice's."""
  chip = chip_of_cloud_name(generation)
  known = ', '.join(f'{c.name} ({c.name}:{c.shapes[0]}, {c.name}:{c.shapes[1]} to '
                    f'{c.name}:{c.shapes[-1]})' for c in CHIPS.values() if c.compiles)
  if chip is None:
    return UserError(f"topology '{name}': unknown chip '{generation}'; known are {known}")
  if not chip.compiles:
    return UserError(
      f"topology '{name}': nothing is known of what {generation} holds; known are {known}")
  slices, sides = slices_of(chip), shape.split('x')
  hint = ''
  if all(side.isdecimal() and int(side) for side in sides):
    count = math.prod(map(int, sides))
    near = [s for s in slices if s.num_chips <= count][-1:]
    if not near or near[0].num_chips < count:
      near += [s for s in slices if s.num_chips > count][:1]
    if near[0].num_chips == count:
      hint = f"did you mean '{near[0].name}'? "
    else:
      hint = (f'no slice of {count} chips; the nearest: '
              + ', '.join(f"'{s.name}' ({s.num_chips})" for s in near) + '. ')
  return UserError(f"unknown topology '{name}': {hint}Known: " + ', '.join(s.name for s in slices))


def _slice_of_cloud_name(name: str) -> Slice | None:
  """The slice that Google Cloud calls e.g. `v3-128` or `v5litepod-16`."""
  prefix, _, number = name.partition('-')
  chip = chip_of_cloud_name(prefix)
  if chip is None or not chip.compiles or not number.isdigit():
    return None
  return next((s for s in slices_of(chip) if s.num_chips * chip.cloud.per_chip == int(number)),
              None)


def chip_of_cloud_name(prefix: str) -> Chip | None:
  """The generation whose accelerator types begin so; `v5e` stands for `v5litepod`."""
  return next((c for c in CHIPS.values() if prefix in (c.name, c.cloud.prefix)), None)


def slices_of(chip: Chip) -> list[Slice]:
  """The slices of a generation, smallest first."""
  return [Slice(chip, shape) for shape in chip.shapes]
