"""The models of the paper on the slices of the paper and on modern ones, as a page."""

import collections
import json
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fairjax.chips import CHIPS, find_slice
from fairjax.compile.text import gib
from fairjax.config_files import load_config
from fairjax.errors import UserError
from fairjax.files import atomic_write, write_json


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
  """Step 1 on 128 cores of v3 and step 3 on 16, as the paper (H-18, H-23), and on v5e and v6e."""
  cells = []
  for program, topologies in (('lm', ('v3:8x8', 'v5e:8x8', 'v6e:8x8')),
                              ('debias', ('v3:2x4', 'v5e:4x4', 'v6e:4x4')),
                              ('sample', ('v5e:4x4',))):
    variant = 'lm' if program == 'lm' else 'debias'
    cells += [Cell(f'configs/{corpus}.py:variant={variant}', program, topology)
              for corpus in ('wikitext103', 'wmt19') for topology in topologies]
  return cells


def run_matrix(
  cells: list[Cell], *, output: str, versions: Mapping[str, str], command: str,
  log: Callable[[str], None], analyse: Callable | None = None,
) -> dict[str, Any]:
  """Compiles every cell and writes the page; cells that were done are not compiled again.

  Results lie beside the page in a JSON file, with the fingerprint of program and compiler: an
  interrupted matrix goes on, and a changed program is compiled again.

  Args:
    cells: what to compile.
    output: path of the Markdown page.
    versions: of the packages.
    command: that a reader types to repeat it.
    log: gets progress lines.
    analyse: as `fairjax.compile.analysis.analyse`.

  Returns:
    What the JSON file holds.

  Raises:
    UserError: a configuration is missing, a slice does not divide its batch, or the JSON file is
      something else.
  """
  if analyse is None:
    from fairjax.compile.analysis import analyse
  path = pathlib.Path(output)
  cache = path.with_suffix('.json')
  saved = _read(cache) if cache.exists() else {}
  configs = {cell.config: load_config(cell.config) for cell in cells}
  results: dict[str, Any] = dict(saved.get('cells', {}))
  for number, cell in enumerate(cells, 1):
    earlier = results.get(cell.name, {})

    def cached(key, earlier=earlier):
      return earlier.get('result') if earlier.get('key') == key else None

    found, key = analyse(
      configs[cell.config], cell.program, find_slice(cell.topology), cached=cached,
      log=lambda line, number=number: log(f'[{number}/{len(cells)}] {line}'))
    if earlier.get('key') != key:
      results[cell.name] = {'key': key, 'result': found.to_dict()}
      _write(path, cells, {'cells': results, 'versions': dict(versions)}, command)
    log(f"[{number}/{len(cells)}] {cell.name}: "
        + ('fits' if found.fits else f'{found.bytes_over:,} bytes over'))
  kept = {'cells': {cell.name: results[cell.name] for cell in cells}, 'versions': dict(versions)}
  _write(path, cells, kept, command)
  return kept


def _read(cache: pathlib.Path) -> dict[str, Any]:
  """What an earlier matrix kept."""
  try:
    saved = json.loads(cache.read_bytes())
    if not all({'key', 'result'} <= set(cell) for cell in saved['cells'].values()):
      raise ValueError('a cell lacks its result')
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise UserError(f'{cache} is not what fairjax compile --matrix keeps ({e}): move it away, or '
                    'name another --output') from None
  return saved


def _write(
  path: pathlib.Path, cells: list[Cell], results: dict[str, Any], command: str
) -> None:
  write_json(path.with_suffix('.json'), results)
  with atomic_write(path) as file:
    file.write(render(cells, results, command=command, date=time.strftime('%Y-%m-%d')).encode())


def render(cells: list[Cell], results: Mapping[str, Any], *, command: str, date: str) -> str:
  """The page."""
  lines = [
    '# What the steps need on TPUs', '',
    'The real TPU compiler (libtpu), without a TPU: memory and work of each program **on one '
    'device**. Written by', '', '```bash', command, '```', '',
    f'on {date} with ' + ', '.join(f'{name} {results["versions"][name]}' for name in
                                   ('fairjax', 'jax', 'jaxlib', 'libtpu', 'flax')
                                   if name in results['versions']) + '.', '',
    '| config | program | slice | devices | batch | needs | may use | fits | TFLOP | GB moved '
    '| collectives | floor FLOPs | floor bytes |',
    '|---|---|---|---|---|---|---|---|---|---|---|---|---|']
  notes, uncounted = collections.Counter(), False
  for cell in cells:
    if cell.name not in results['cells']:
      lines.append(f'| `{cell.config}` | {cell.program} | {cell.topology} | not compiled yet'
                   + 9 * ' | -' + ' |')
      continue
    found = results['cells'][cell.name]['result']
    lines.append('| ' + ' | '.join(_row(cell, found)) + ' |')
    uncounted |= bool(found['memory']) and found['cost'] is None
    notes |= collections.Counter((found['cost'] or {}).get('notes', {}))
  lines += [
    '', '## How to read it', '',
    '- **No times.** Nothing was run. A floor is FLOPs / peak FLOP/s or bytes / memory bandwidth '
    'of a device; a real step is slower than both.',
    '- Needs = arguments + temporaries + outputs that reuse no argument + code, as the compiler '
    'reports them. Where it refuses a program, what it asks for at least.',
    '- FLOPs are those of matrix products and convolutions, bytes what instructions outside '
    'fusions read from and write to main memory; every loop body counts as often as it runs '
    "(XLA's own analysis counts it once). Padding of tiles is not counted.",
    '- Custom calls (Pallas kernels) count by the cost estimate that they carry, otherwise by '
    'operands and results alone.',
    '- Collectives: number in one execution, bytes of the larger side on one device.',
    '- `sample` of a model of more than 8 layers is compiled as reading the prefixes and one token '
    'of one batch, not as the whole loop.']
  if uncounted:
    lines.append('- Not counted: jaxlib could not read the optimized program that libtpu wrote.')
  lines += [f'- Here: {note} (at most {number} in one program).'
            for note, number in sorted(notes.items())]
  lines += ['', '## Chips', '',
            '| chip | devices a chip | HBM | may use | peak bf16 TFLOP/s | GB/s | source |',
            '|---|---|---|---|---|---|---|']
  lines += [f'| {c.name} | {c.devices} | {gib(c.hbm)} | {gib(c.available_hbm)} | '
            f'{c.peak_flops / 1e12:g} | {c.bandwidth / 1e9:g} | {c.source} |'
            for c in CHIPS.values() if c.compiles]
  return '\n'.join(lines) + '\n'


def _row(cell: Cell, found: Mapping[str, Any]) -> list[str]:
  cost = found['cost']
  row = [f'`{cell.config}`', found['part'], cell.topology,
         str(find_slice(cell.topology).num_devices), str(found['batch_size']),
         ('' if found['memory'] else 'over ') + gib(found['required']), gib(found['available']),
         'yes' if found['fits'] else f"**no**, {gib(found['bytes_over'])} over"]
  if cost is None:
    return [*row, *['not counted' if found['memory'] else '-'] * 5]
  kinds = '; '.join(f'{int(n):,} {kind} {size / 1e9:.2f} GB'
                    for kind, (n, size) in sorted(cost['collectives'].items()))
  return [*row, f"{cost['flops'] / 1e12:.2f}", f"{cost['bytes'] / 1e9:.1f}", kinds or 'none',
          *(f'{1e3 * found["floors"][k]:.1f} ms' for k in ('flops', 'bytes'))]
