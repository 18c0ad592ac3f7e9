"""Accelerator types of Google Cloud: cores or chips, devices of JAX, topology, hosts' machines."""

import dataclasses
import math
import re

from fairjax.chips import CHIPS, Chip, chip_of_cloud_name, slices_of
from fairjax.errors import UserError, unknown_name


@dataclasses.dataclass(frozen=True)
class Accelerator:
  """One slice as Google Cloud names it.

  Attributes:
    name: accelerator type, e.g. `v3-128` (cores), `v5litepod-16` (chips).
    chip: its generation.
    shape: of the slice, in chips: `8x8`.
  """

  name: str
  chip: Chip
  shape: str

  @property
  def num_chips(self) -> int:
    """Chips of one slice."""
    return math.prod(map(int, self.shape.split('x')))

  @property
  def num_devices(self) -> int:
    """Devices of one slice as JAX counts them: what `mesh` and the batch must fit."""
    return self.num_chips * self.chip.devices

  @property
  def topology(self) -> str:
    """The slice as `fairjax compile --topology` takes it."""
    return f'{self.chip.name}:{self.shape}'

  @property
  def machine(self) -> str:
    """Machine type of its hosts in GKE and Compute Engine: four chips, or the only one.

    Raises:
      UserError: the generation is not rented there.
    """
    cloud = self.chip.cloud
    machine = cloud.machine_of_one if self.num_chips == 1 else cloud.machine
    if not machine:
      raise UserError(f"'{self.name}' is rented through the Cloud TPU API only: --backend=queued")
    return machine

  @property
  def chips_per_machine(self) -> int:
    """Chips of a host of `machine`, as its name says."""
    return int(self.machine.rpartition('-')[2].removesuffix('t'))

  @property
  def num_machines(self) -> int:
    """Hosts of `machine` that make the slice. The Cloud TPU API is asked instead: it chooses."""
    return self.num_chips // self.chips_per_machine


def accelerator_names() -> list[str]:
  """Every accelerator type that the table of chips knows."""
  return [f'{chip.cloud.prefix}-{s.num_chips * chip.cloud.per_chip}'
          for chip in CHIPS.values() for s in slices_of(chip)
          if s.shape not in chip.cloud.not_rented]


def parse_accelerator(name: str, *, shape: str = '') -> Accelerator:
  """The accelerator of a type's name; `v5e-16` is taken for `v5litepod-16`.

  Args:
    name: e.g. `v3-128`.
    shape: of the slice in chips, for sizes that the table does not hold, or that exist in several
      shapes; '' is the table's.

  Raises:
    UserError: unknown generation or size (with the nearest name), or a shape of another size.

  >>> parse_accelerator('v3-128').num_devices, parse_accelerator('v4-8').num_devices
  (128, 4)
  >>> parse_accelerator('v5e-16').name, parse_accelerator('v5litepod-16').topology
  ('v5litepod-16', 'v5e:4x4')
  """
  prefix, _, number = name.lower().partition('-')
  chip = chip_of_cloud_name(prefix)
  if chip is None or not re.fullmatch(r'[1-9][0-9]*', number):
    raise unknown_name('accelerator type', name, accelerator_names())
  chips, rest = divmod(int(number), chip.cloud.per_chip)
  if shape:
    return Accelerator(f'{chip.cloud.prefix}-{number}', chip, _checked(shape, chip, name, chips))
  known = [s for s in slices_of(chip)
           if s.num_chips == chips and s.shape not in chip.cloud.not_rented]
  if rest or not known:
    unit = {1: 'chips', 2: 'cores'}[chip.cloud.per_chip]
    same = [n for n in accelerator_names() if n.startswith(f'{chip.cloud.prefix}-')]
    raise UserError(f"accelerator type '{name}': no {chip.name} slice of {number} {unit} is known; "
                    f"known: {', '.join(same)}; for another give its shape: --topology=AxBxC")
  return Accelerator(f'{chip.cloud.prefix}-{number}', chip, known[0].shape)


def _checked(shape: str, chip: Chip, name: str, chips: int) -> str:
  sides = chip.shapes[-1].count('x') + 1
  if not re.fullmatch('x'.join([r'[1-9][0-9]*'] * sides), shape):
    raise UserError(f"topology '{shape}': a {chip.name} slice has {sides} sides, like "
                    f'{chip.shapes[-1]}')
  if math.prod(map(int, shape.split('x'))) != chips:
    raise UserError(f"topology '{shape}' has {math.prod(map(int, shape.split('x')))} chips, "
                    f"'{name}' has {chips}")
  return shape
