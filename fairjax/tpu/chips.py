"""The table of TPU chips: their slices, how JAX counts devices, and how Google Cloud rents them.

A slice is named `GENERATION:SHAPE`, the shape in chips: `v3:8x8` is 64 chips, 128 cores and, since
every v3 core is a device of its own, 128 devices. v4 and v5p run as megacore: one device a chip.
`fairjax tpu compile` and `fairjax tpu run` both read this table.
"""

import dataclasses
import math
import re

from fairjax.errors import UserError, unknown_name

GIB = 2**30
_HBM_SOURCE = "libtpu 0.0.52, 'available HBM' of its out-of-memory error"


@dataclasses.dataclass(frozen=True)
class Cloud:
  """How Google Cloud rents a generation (docs.cloud.google.com/tpu/docs/runtimes)."""

  prefix: str  # of the accelerator types: `v5litepod` of `v5litepod-16`
  per_chip: int  # what the number after the prefix counts: 1 for chips, 2 for cores
  runtime: str  # runtime version of the Cloud TPU API
  most_chips: int = 4  # of one host: a larger slice is several machines
  not_rented: tuple[str, ...] = ()  # shapes that the compiler knows and the cloud does not rent


@dataclasses.dataclass(frozen=True)
class Chip:
  """One generation; all numbers are per device."""

  name: str
  devices: int  # per chip
  hbm: int  # bytes of memory; 0, as the next three, where nothing was checked with the compiler
  available_hbm: int  # bytes that programs may use; the compiler refuses larger programs
  peak_flops: float  # bfloat16 FLOP/s
  bandwidth: float  # bytes/s between memory and device
  shapes: tuple[str, ...]  # of its slices, smallest first
  source: str  # of the numbers
  cloud: Cloud
  options: tuple[tuple[str, str], ...] = ()  # further arguments of `get_topology_desc`

  @property
  def compiles(self) -> bool:
    """Whether `fairjax tpu compile` knows it."""
    return self.available_hbm > 0


_SQUARES = ('1x1', '2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
_CUBES = ('2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8', '8x8x8')

CHIPS = {chip.name: chip for chip in (
  # Rented, but never compiled for here: memory and speed are left out.
  Chip('v2', 2, 0, 0, 0, 0, ('2x2', '4x4', '4x8', '8x8', '8x16', '16x16'),
       'docs.cloud.google.com/tpu/docs/v2', Cloud('v2', 2, 'tpu-ubuntu2204-base')),
  # docs.cloud.google.com/tpu/docs/v3: 123 TFLOP/s, 32 GiB and 900 GB/s a chip of two cores. The
  # 16-core slice 2x4 (step 3 of the paper) is not for rent in Google Cloud, but compiles.
  Chip('v3', 2, 16 * GIB, int(15.48 * GIB), 123e12 / 2, 900e9 / 2,
       ('2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16', '16x32', '32x32'),
       f'docs.cloud.google.com/tpu/docs/v3; {_HBM_SOURCE}',
       Cloud('v3', 2, 'tpu-ubuntu2204-base', not_rented=('2x4',))),
  # docs.cloud.google.com/tpu/docs/v4: 275 TFLOP/s, 32 GiB, 1200 GB/s a chip. Without the megacore
  # option libtpu describes two devices a chip, which no TPU VM shows to JAX.
  Chip('v4', 1, 32 * GIB, int(30.75 * GIB), 275e12, 1200e9, _CUBES,
       f'docs.cloud.google.com/tpu/docs/v4; {_HBM_SOURCE}',
       Cloud('v4', 2, 'tpu-ubuntu2204-base'),
       (('chip_config_name', 'megacore'),)),
  # docs.cloud.google.com/tpu/docs/v5e: 197 TFLOP/s, 16 GB, 819 GB/s.
  Chip('v5e', 1, 16 * GIB, int(15.75 * GIB), 197e12, 819e9, _SQUARES,
       f'docs.cloud.google.com/tpu/docs/v5e; {_HBM_SOURCE}',
       Cloud('v5litepod', 1, 'v2-alpha-tpuv5-lite', most_chips=8)),
  # docs.cloud.google.com/tpu/docs/v5p: 459 TFLOP/s, 95 GB (libtpu: 95.73 GiB), 2765 GB/s.
  Chip('v5p', 1, 96 * GIB, int(95.73 * GIB), 459e12, 2765e9, _CUBES,
       f'docs.cloud.google.com/tpu/docs/v5p; {_HBM_SOURCE}',
       Cloud('v5p', 2, 'v2-alpha-tpuv5')),
  # docs.cloud.google.com/tpu/docs/v6e: 918 TFLOP/s, 32 GB, 1638 GB/s.
  Chip('v6e', 1, 32 * GIB, int(31.24 * GIB), 918e12, 1638e9, _SQUARES,
       f'docs.cloud.google.com/tpu/docs/v6e; {_HBM_SOURCE}',
       Cloud('v6e', 1, 'v2-alpha-tpuv6e', most_chips=8)),
)}
"""By generation."""

SHAPED = ('v2', 'v3', 'v4')
"""Whose shape `gcloud` 528 takes (--type); of the others the accelerator type has one shape."""


@dataclasses.dataclass(frozen=True)
class Slice:
  """A slice of one generation; its shape counts chips: `8x8`."""

  chip: Chip
  shape: str

  @property
  def name(self) -> str:
    """The name that libtpu takes: `v3:8x8`."""
    return f'{self.chip.name}:{self.shape}'

  @property
  def num_chips(self) -> int:
    """Number of chips."""
    return math.prod(map(int, self.shape.split('x')))

  @property
  def num_devices(self) -> int:
    """Number of devices as JAX counts them: what `mesh` and the batch must fit."""
    return self.num_chips * self.chip.devices

  @property
  def accelerator_type(self) -> str:
    """The name in Google Cloud: `v3-128` (cores), `v5litepod-16` (chips)."""
    return f'{self.chip.cloud.prefix}-{self.num_chips * self.chip.cloud.per_chip}'

  @property
  def rented(self) -> bool:
    """Whether Google Cloud rents this shape."""
    return self.shape not in self.chip.cloud.not_rented

  def not_joined(self, slices: int) -> str:
    """Why so many slices cannot work together; '' if they can."""
    # docs.cloud.google.com/tpu/docs/multislice-introduction
    if slices == 1 or self.chip.name not in ('v2', 'v3'):
      return ''
    return f'{self.chip.name} slices cannot be joined (multislice): v4 and later can'


def slices_of(chip: Chip) -> list[Slice]:
  """The slices of a generation, smallest first."""
  return [Slice(chip, shape) for shape in chip.shapes]


COMPILED = {s.name: s for chip in CHIPS.values() if chip.compiles for s in slices_of(chip)}
"""The slices that `fairjax tpu compile` knows, by name."""


def accelerator_types() -> list[str]:
  """Every accelerator type of Google Cloud that the table knows."""
  return [s.accelerator_type for chip in CHIPS.values() for s in slices_of(chip) if s.rented]


def find_slice(name: str) -> Slice:
  """The slice of that name, for the compiler; else `UserError` with the nearest names."""
  if name in COMPILED:
    return COMPILED[name]
  for s in COMPILED.values():
    if s.accelerator_type == name.replace('v5e-', 'v5litepod-'):  # its name in the cloud
      raise UserError(f"topology '{name}': name it by its shape in chips, {s.name}")
  raise unknown_name('topology', name, COMPILED)


def find_accelerator(name: str, *, shape: str = '') -> Slice:
  """The slice that Google Cloud rents; `shape`, in chips, for sizes that the table lacks."""
  prefix, _, number = name.lower().partition('-')
  chip = next((c for c in CHIPS.values() if prefix in (c.name, c.cloud.prefix)), None)
  if chip is None or not re.fullmatch(r'[1-9][0-9]*', number):
    raise unknown_name('accelerator type', name, accelerator_types())
  wanted = f'{chip.cloud.prefix}-{number}'
  if shape:
    sides = chip.shapes[-1].count('x') + 1
    if not re.fullmatch('x'.join([r'[1-9][0-9]*'] * sides), shape):
      raise UserError(f"topology '{shape}': a {chip.name} slice has {sides} sides, like "
                      f'{chip.shapes[-1]}')
    found = Slice(chip, shape)
    if found.accelerator_type != wanted:
      raise UserError(f"topology '{shape}' is {found.accelerator_type}, not {wanted}")
    return found
  known = [s for s in slices_of(chip) if s.rented]
  for s in known:
    if s.accelerator_type == wanted:
      return s
  raise UserError(f"accelerator type '{name}': no such {chip.name} slice is known; known: "
                  f"{', '.join(s.accelerator_type for s in known)}; for another give its shape: "
                  '--topology=AxBxC')
