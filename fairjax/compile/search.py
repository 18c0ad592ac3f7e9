"""The smallest slice of a generation that holds a program."""

import dataclasses
from collections.abc import Callable

from fairjax.chips import Slice, slices_of
from fairjax.compile.analysis import Analysis, analyse
from fairjax.compile.devices import NoCompiler
from fairjax.config import Config
from fairjax.errors import UserError


def smallest_slice(
  config: Config, program: str, where: Slice, *, above: bool = False,
  log: Callable[[str], None] = lambda line: None, analyse: Callable = analyse,
) -> tuple[Analysis | None, list[str]]:
  """Tries slices upwards; the data axis of the mesh grows with the slice.

  Args:
    config: of the run; `mesh.data` is left to the number of devices.
    program: `lm`, `debias` or `sample`.
    where: a slice of the generation.
    above: start above it instead of at the smallest one.
    log: gets one line a slice.
    analyse: as `fairjax.compile.analysis.analyse`.

  Returns:
    The analysis of the first slice that fits, or None; and one line for each slice that did not do.

  Raises:
    NoCompiler: libtpu is not installed.
  """
  config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, data=-1))
  tried = []
  for candidate in slices_of(where.chip):
    if above and candidate.num_devices <= where.num_devices:
      continue
    try:
      found, _ = analyse(config, program, candidate, log=log)
    except NoCompiler:
      raise
    except UserError as e:
      tried.append(f'{candidate.name}: {e}')
      continue
    if found.fits:
      return found, tried
    tried.append(f'{candidate.name}: {found.bytes_over:,} bytes over')
    log(f'{program}: {tried[-1]}')
  return None, tried


def advice(config: Config, found: Analysis) -> str:
  """What else makes a program smaller."""
  ways = []
  if found.program != 'sample' and config.model.remat != 'full':
    ways.append('--config.model.remat=full (computes activations again)')
  if config.mesh.fsdp == 1:
    ways.append('--config.mesh.fsdp=2 or more (splits parameters and Adam state)')
  if found.program == 'sample':
    ways.append('a smaller --config.sample.batch_size')
  else:
    ways.append(f'--config.{found.program}.parts=2 or more (gradient accumulation)')
  return '; '.join(ways)
