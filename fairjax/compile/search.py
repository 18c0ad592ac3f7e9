"""The smallest slice of a generation, and the mesh on it, that hold a program."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fairjax.chips import Slice, slices_of
from fairjax.compile.analysis import Analysis, analyse, splits
from fairjax.compile.devices import NoCompiler
from fairjax.config import Config
from fairjax.errors import UserError

MOST_MESHES_OF_A_SLICE = 3
"""That are compiled: the given `mesh.fsdp`, the least that should do, the greatest."""


class Search(NamedTuple):
  """What a search found.

  Attributes:
    found: the first that fits, compiled; None if nothing does.
    tried: one line for everything that did not do.
    closest: of those that were compiled and do not fit the one that lacks least, if any.
    refused: the first line of `tried` about a slice that cannot be used, e.g. for its number of
      devices; empty if there is none.
  """

  found: Analysis | None
  tried: list[str]
  closest: Analysis | None
  refused: str = ''


def smallest_slice(
  config: Config, program: str, where: Slice, *, begun: Analysis | None = None,
  log: Callable[[str], None] = lambda line: None, analyse: Callable = analyse,
  splits: Callable = splits,
) -> Search:
  """Tries slices upwards; `mesh.data` grows with them and, where that does not do, `mesh.fsdp`.

  Args:
    config: of the run; `mesh.data` is left to the number of devices.
    program: `lm`, `debias` or `sample`.
    where: a slice of the generation.
    begun: of `where`, where it does not fit: the search begins there, with other meshes, instead of
      at the smallest slice.
    log: gets one line for everything that does not do.
    analyse: as `fairjax.compile.analysis.analyse`.
    splits: as `fairjax.compile.analysis.splits`.

  Raises:
    NoCompiler: libtpu is not installed.
  """
  config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, data=-1))
  tried: list[str] = []
  refused, compiled = '', [begun] if begun else []
  for candidate in slices_of(where.chip):
    if begun and candidate.num_devices < where.num_devices:
      continue
    try:
      for found, why in _meshes(
        config, program, candidate, begun=begun if candidate == where else None, log=log,
        analyse=analyse, splits=splits):
        if found is not None:
          if found.fits:
            return Search(found, tried, min(compiled, key=_over, default=None), refused)
          compiled.append(found)
        tried.append(why)
        log(f'{program}: {why}')
    except NoCompiler:
      raise
    except UserError as e:
      tried.append(f'{candidate.name}: {e}')
      refused = refused or tried[-1]
  return Search(None, tried, min(compiled, key=_over, default=None), refused)


def _over(found: Analysis) -> int:
  return found.bytes_over


def _meshes(
  config: Config, program: str, where: Slice, *, begun: Analysis | None, log: Callable,
  analyse: Callable, splits: Callable,
) -> Iterator[tuple[Analysis | None, str]]:
  """(compiled, what it lacks) for the meshes of a slice that are worth compiling.

  What the state needs follows from its shapes, by `mesh.fsdp`; the rest is taken to be what the
  last one compiled has beside it.
  """
  sizes, limit, rest = splits(config, program, where), where.chip.available_hbm, 0
  fsdp, number = config.mesh.fsdp, 0
  if begun is not None:
    rest, number = max(0, begun.required - sizes.pop(fsdp)), 1
  elif sizes[fsdp] > limit:
    yield None, f'{where.name}: {sizes.pop(fsdp) - limit:,} bytes over without any activation'
  while sizes and number < MOST_MESHES_OF_A_SLICE:
    number += 1
    likely = [f for f, size in sizes.items() if size + rest <= limit]
    fsdp = likely[0] if likely and number < MOST_MESHES_OF_A_SLICE else max(sizes)
    if sizes[fsdp] > limit:
      return
    mesh = dataclasses.replace(config.mesh, fsdp=fsdp)
    found, _ = analyse(dataclasses.replace(config, mesh=mesh), program, where, log=log)
    split = f' with mesh.fsdp={fsdp}' if fsdp != config.mesh.fsdp else ''
    yield found, f'{where.name}{split}: {found.bytes_over:,} bytes over'
    rest = max(0, found.required - sizes[fsdp])
    sizes = {f: size for f, size in sizes.items() if f > fsdp}


def options_of(config: Config, found: Analysis) -> str:
  """What to give `fairjax compile` beside the configuration to get what was found."""
  fsdp = found.mesh.get('fsdp', 1)
  return ' '.join([
    f'--topology={found.topology}',
    *([f'--config.mesh.fsdp={fsdp}'] if fsdp != config.mesh.fsdp else []),
    *(['--config.mesh.data=-1'] if config.mesh.data != -1 else [])])


def advice(config: Config, program: str) -> str:
  """What else makes a program smaller; none of it was compiled."""
  if program == 'sample':
    return 'a smaller --config.sample.batch_size'
  stage = {'lm': config.lm, 'debias': config.debias}[program]
  ways = []
  if config.model.remat != 'full':
    ways.append('--config.model.remat=full (computes activations again)')
  if math.gcd(config.model.num_heads, config.model.ff_dim) > config.mesh.model:
    ways.append('a larger --config.mesh.model (splits heads, feed-forward and vocabulary)')
  ways.append(f'--config.{program}.parts={2 * stage.parts} or more (gradient accumulation)')
  return '; '.join(ways)
