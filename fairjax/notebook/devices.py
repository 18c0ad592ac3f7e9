"""Which devices a notebook runs on, and sizes that suit them."""

import dataclasses
import os

from fairjax.notebook.showing import Words
from fairjax.report.markdown import escape
from fairjax.versions import installed_versions


@dataclasses.dataclass(frozen=True)
class Sizes:
  """How much a notebook does; every field can be set there.

  Attributes:
    samples: of every prefix.
    batch_size: samples at a time for all values of a template.
    max_new_tokens: most tokens of a continuation.
    permutations: for the floors.
  """

  samples: int
  batch_size: int
  max_new_tokens: int
  permutations: int


# The paper's sizes where there is an accelerator; on a CPU what ends in seconds.
_ACCELERATED = Sizes(samples=1000, batch_size=250, max_new_tokens=50, permutations=1000)
_CPU = Sizes(samples=50, batch_size=50, max_new_tokens=24, permutations=200)


class Devices(Words):
  """Devices in words, with `sizes`."""

  def __init__(self, sizes: Sizes, *paragraphs: str):
    super().__init__(*paragraphs)
    self.sizes = sizes

  def sized(self, samples: int = 0) -> Sizes:
    """The sizes, with another number of samples if it is above 0."""
    if not samples:
      return self.sizes
    return dataclasses.replace(
      self.sizes, samples=samples, batch_size=min(samples, _ACCELERATED.batch_size))


def find_devices() -> Devices:
  """Finds the devices that JAX uses, picks sizes, and says both."""
  import jax
  devices, versions = jax.devices(), installed_versions()
  return describe(jax.default_backend(), devices[0].device_kind, len(devices),
                  libtpu=versions.get('libtpu'), jax_version=versions['jax'])


def describe(
  backend: str, kind: str, count: int, *, libtpu: str | None, jax_version: str
) -> Devices:
  """What `find_devices` says about the devices of one kind.

  Args:
    backend: cpu, gpu or tpu.
    kind: as JAX names it.
    count: how many.
    libtpu: version that is installed, or None.
    jax_version: of JAX.
  """
  sizes = _CPU if backend == 'cpu' else _ACCELERATED
  what = f'{os.cpu_count()} CPU cores' if backend == 'cpu' else f'{count} x {kind} ({backend})'
  lines = [f'**{escape(what)}**, JAX {escape(jax_version)}: {sizes.samples:,} samples of every '
           f'prefix, at most {sizes.max_new_tokens} tokens each, {sizes.permutations:,} '
           'permutations for the floors.']
  if backend == 'cpu' and libtpu is not None:
    lines.append(f'libtpu {escape(libtpu)} is installed but JAX found no TPU. In Colab: *Runtime > '
                 'Change runtime type > TPU*. Another process may hold it: *Runtime > Restart*. '
                 '`fairjax doctor` compares the versions.')
  return Devices(sizes, *lines)
