"""The smallest slice that holds a program; the models of the papers on many slices, as a page."""

import dataclasses
import functools
import json
import operator
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from fairjax.config import Config
from fairjax.config_io import load_config
from fairjax.errors import UserError
from fairjax.files import write_file, write_json
from fairjax.tpu.chips import CHIPS, Slice, find_slice, slices_of
from fairjax.tpu.cost import Analysis, analyse, splits
from fairjax.tpu.programs import sized
from fairjax.train.memory import format_size

# What `fairjax tpu compile` prints.

CAVEAT = ('FLOPs and bytes are counts of the compiler, not times: no program was run. Every layer '
          'counts; other loops (blocks of the loss, grad_accum_steps, tokens of a sample) count '
          'once, so the FLOPs are a lower bound. Bytes include those that stay on the chip.')


def describe(found: Analysis) -> list[str]:
  """Lines about one program on one slice."""
  mesh = ' '.join(f'{axis}={size}' for axis, size in found.mesh.items()) or 'one device'
  lines = [f'{found.part} on {found.topology}: mesh {mesh}, batch {found.batch_size}']
  required, available = format_size(found.required), format_size(found.available)
  if not found.memory:
    lines.append(f'  the compiler refuses it: needs {required} of {available} a device, '
                 f'DOES NOT FIT, {found.bytes_over:,} bytes over')
    return lines
  lines.append('  ' + ', '.join(
    f'{name} {format_size(size)}' for name, size in found.memory.items()))
  verdict = (f'fits, {format_size(-found.bytes_over)} left' if found.fits else
             f'DOES NOT FIT, {found.bytes_over:,} bytes over')
  lines.append(f'  needs {required} of {available} that programs may use of '
               f'{format_size(found.hbm)} a device: {verdict}')
  if found.cost:
    flops, size = _scaled(found.cost['flops'], 'FLOP'), _scaled(found.cost['bytes'], 'B')
    lines.append(f'  {flops} and {size} accessed on each device; the FLOPs take '
                 f'{1e3 * found.peak_seconds:,.3g} ms at peak FLOP/s')
  lines.append(f'  compiled in {found.seconds:.0f} s')
  return lines


def shortage(found: Analysis) -> str:
  """Formats how much memory a program lacks, in one line."""
  split = f" with mesh.fsdp={found.mesh['fsdp']}" if 'fsdp' in found.mesh else ''
  return (f'{found.program} needs {"" if found.memory else "at least "}'
          f'{format_size(found.required)} of {format_size(found.available)} a device on '
          f'{found.topology}{split}, {format_size(found.bytes_over)} ({found.bytes_over:,} bytes) '
          'too much')


def _scaled(value: float, unit: str) -> str:
  for prefix, power in (('T', 12), ('G', 9), ('M', 6)):
    if value >= 10**power:
      return f'{value / 10**power:.3g} {prefix}{unit}'
  return f'{value:.0f} {unit}'


# The smallest slice of a generation, and the mesh on it, that hold a program.

MOST_MESHES_OF_A_SLICE = 3
"""Which are compiled: the given `mesh.fsdp`, the least that should do, the greatest."""


class Search(NamedTuple):
  """What a search found."""

  found: Analysis | None  # the first that fits, compiled
  tried: list[str]  # one line for everything that did not do
  closest: Analysis | None  # of what was compiled and does not fit, the one that lacks least
  refused: str = ''  # the first of `tried` that cannot be used, e.g. for its number of devices


def smallest_slice(
  config: Config, program: str, where: Slice, *, begun: Analysis | None = None,
  log: Callable[[str], None] = lambda line: None,
) -> Search:
  """Tries slices upwards, each with larger `mesh.fsdp`; from `begun` on, which does not fit."""
  config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, data=-1))
  tried: list[str] = []
  refused, compiled, over = '', [begun] if begun else [], operator.attrgetter('bytes_over')
  for candidate in slices_of(where.chip):
    if begun and candidate.num_devices < where.num_devices:
      continue
    try:
      for found, why in _meshes(
        config, program, candidate, begun=begun if candidate == where else None, log=log):
        if found is not None:
          if found.fits:
            return Search(found, tried, min(compiled, key=over, default=None), refused)
          compiled.append(found)
        tried.append(why)
        log(f'{program}: {why}')
    except UserError as e:
      tried.append(f'{candidate.name}: {e}')
      refused = refused or tried[-1]
  return Search(None, tried, min(compiled, key=over, default=None), refused)


def _meshes(
  config: Config, program: str, where: Slice, *, begun: Analysis | None,
  log: Callable[[str], None],
) -> Iterator[tuple[Analysis | None, str]]:
  """(compiled, what it lacks) for the meshes of a slice that are worth compiling."""
  # What the state needs follows from its shapes, by `mesh.fsdp`; the rest is taken to be what the
  # last one compiled has beside it.
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
  """What to give `fairjax tpu compile` beside the configuration to get what was found."""
  fsdp = found.mesh.get('fsdp', 1)
  return ' '.join([
    f'--topology={found.topology}',
    *([f'--config.mesh.fsdp={fsdp}'] if fsdp != config.mesh.fsdp else []),
    *(['--config.mesh.data=-1'] if config.mesh.data != -1 else [])])


def advice(program: str) -> str:
  """What else makes a program smaller; none of it was compiled."""
  if program == 'sample':
    return 'a smaller --config.sample.batch_size'
  return ('--config.model.remat=full (computes activations again); a larger --config.mesh.model '
          '(splits heads, feed-forward and vocabulary); a larger '
          f'--config.{program}.grad_accum_steps (smaller microbatches)')


# The page of `fairjax tpu compile --matrix`.

class Cell(NamedTuple):
  """One program of one configuration on one slice."""

  config: str
  program: str
  topology: str

  @property
  def name(self) -> str:
    """Key in the cache."""
    return ' '.join(self)


def paper_cells() -> list[Cell]:
  """Steps 1 and 3 of the paper on its slices (H-18, H-23) and modern ones; published decoders."""
  cells = []
  for program, topologies in (('lm', ('v3:8x8', 'v5e:8x8', 'v6e:8x8')),
                              ('debias', ('v3:2x4', 'v5e:4x4', 'v6e:4x4')),
                              ('sample', ('v5e:4x4',))):
    variant = 'lm' if program == 'lm' else 'debias'
    cells += [Cell(f'configs/{corpus}.py:variant={variant}', program, topology)
              for corpus in ('wikitext103', 'wmt19') for topology in topologies]
  return cells + [
    Cell(f'configs/pretrained.py:model=configs/decoders/{model},train=TEXT,chips={chips},'
         f'batch={batch}', 'debias', topology)
    for model, chips, batch, topology in (('llama-3.2-1b', 8, 16, 'v5e:2x4'),
                                          ('llama-3.1-8b', 64, 64, 'v5e:8x8'))]


def run_matrix(
  cells: list[Cell], *, output: str, versions: Mapping[str, str], command: str,
  log: Callable[[str], None],
) -> dict[str, Any]:
  """Compiles the cells that the JSON file beside the page lacks; writes and returns both."""
  path = pathlib.Path(output)
  cache = path.with_suffix('.json')
  results = _read(cache) if cache.exists() else {}
  configs = {cell.config: sized(load_config(cell.config)) for cell in cells}
  for number, cell in enumerate(cells, 1):
    earlier = results.get(cell.name, {})

    def cached(key, earlier=earlier):
      return earlier.get('result') if earlier.get('key') == key else None

    found, key = analyse(
      configs[cell.config], cell.program, find_slice(cell.topology), cached=cached,
      log=functools.partial(lambda begin, line: log(begin + line), f'[{number}/{len(cells)}] '))
    if earlier.get('key') != key:
      results[cell.name] = {'key': key, 'result': found.to_dict()}
      _write(path, cells, {'cells': results, 'versions': dict(versions)}, command)
    log(f"[{number}/{len(cells)}] {cell.name}: "
        + ('fits' if found.fits else f'{found.bytes_over:,} bytes over'))
  kept = {'cells': {cell.name: results[cell.name] for cell in cells}, 'versions': dict(versions)}
  _write(path, cells, kept, command)
  return kept


def _read(cache: pathlib.Path) -> dict[str, Any]:
  """The cells that an earlier matrix kept; those of a version with other fields are left out."""
  fields = {f.name for f in dataclasses.fields(Analysis)}
  try:
    cells = json.loads(cache.read_bytes())['cells']
    if not all({'key', 'result'} <= set(cell) for cell in cells.values()):
      raise ValueError('a cell lacks its result')
    return {name: cell for name, cell in cells.items() if fields <= set(cell['result'])}
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise UserError(f'{cache} is not what fairjax tpu compile --matrix keeps ({e}): move it away, '
                    'or name another --output') from None


def _write(
  path: pathlib.Path, cells: list[Cell], results: dict[str, Any], command: str
) -> None:
  write_json(path.with_suffix('.json'), results)
  write_file(path, render(cells, results, command=command, date=time.strftime('%Y-%m-%d')))


def render(cells: list[Cell], results: Mapping[str, Any], *, command: str, date: str) -> str:
  """The page."""
  lines = [
    '# What the steps need on TPUs', '',
    'The real TPU compiler (libtpu), without a TPU: memory and work of each program **on one '
    'device**. Written by', '', '```bash', command, '```', '',
    f'on {date} with ' + ', '.join(f'{name} {results["versions"][name]}' for name in
                                   ('fairjax', 'jax', 'jaxlib', 'libtpu', 'flax')
                                   if name in results['versions']) + '.', '',
    '| config | program | slice | devices | batch | needs | may use | fits | TFLOP | GB accessed '
    '| at peak FLOP/s |',
    '|---|---|---|---|---|---|---|---|---|---|---|']
  for cell in cells:
    if cell.name not in results['cells']:
      lines.append(f'| `{cell.config}` | {cell.program} | {cell.topology} | not compiled yet'
                   + 7 * ' | -' + ' |')
      continue
    lines.append('| ' + ' | '.join(_row(cell, results['cells'][cell.name]['result'])) + ' |')
  lines += [
    '', '## How to read it', '',
    '- **No times.** Nothing was run. A real step is slower than its FLOPs at the peak rate.',
    '- Needs = arguments + temporaries + outputs that reuse no argument + code, as the compiler '
    'reports them. Where it refuses a program, what it asks for at least.',
    "- FLOPs and bytes are those of XLA's `cost_analysis`, in models of 2 and 3 unrolled layers; "
    'every further layer counts as the third. Other loops (blocks of the loss, microbatches of '
    '`grad_accum_steps`, tokens of a sample) count once: the FLOPs are a lower bound.',
    '- Bytes are operands and results of every instruction, on the chip or in main memory.',
    '- `sample` of a model of more than 8 layers is compiled as reading the prefixes and one token '
    'of one batch, not as the whole loop.',
    '- Of published decoders the step of `embedding` and `sentiment` is compiled, from their '
    'config.json alone: neither weights nor the file TEXT are read.']
  lines += ['', '## Chips', '',
            '| chip | devices a chip | HBM | may use | peak bf16 TFLOP/s | GB/s | source |',
            '|---|---|---|---|---|---|---|']
  lines += [f'| {c.name} | {c.devices} | {format_size(c.hbm)} | {format_size(c.available_hbm)} | '
            f'{c.peak_flops / 1e12:g} | {c.bandwidth / 1e9:g} | {c.source} |'
            for c in CHIPS.values() if c.compiles]
  return '\n'.join(lines) + '\n'


def _row(cell: Cell, found: Mapping[str, Any]) -> list[str]:
  cost = found['cost']
  row = [f'`{cell.config}`', found['part'], cell.topology,
         str(find_slice(cell.topology).num_devices), str(found['batch_size']),
         ('' if found['memory'] else 'over ') + format_size(found['required']),
         format_size(found['available']),
         'yes' if found['fits'] else f"**no**, {format_size(found['bytes_over'])} over"]
  if cost is None:
    return [*row, '-', '-', '-']
  return [*row, f"{cost['flops'] / 1e12:.2f}", f"{cost['bytes'] / 1e9:.1f}",
          f"{1e3 * found['peak_seconds']:.1f} ms"]
