"""`fairjax compile`: the verb, without JAX at the top, which must not choose a platform before."""

import json
import os
from collections.abc import Callable, Mapping, Sequence

from fairjax.chips import Slice, find_slice
from fairjax.config import Config
from fairjax.errors import UserError

_ENVIRONMENT = {
  'JAX_PLATFORMS': 'cpu',  # the slice is described, never opened
  'TPU_SKIP_MDS_QUERY': '1',  # asks no metadata server
  'TPU_ACCELERATOR_TYPE': 'v5litepod-4', 'TPU_WORKER_HOSTNAMES': 'localhost',  # else it complains
  'TPU_MIN_LOG_LEVEL': '3', 'TPU_STDERR_LOG_LEVEL': '3',
  # Nothing is locked on a machine with a TPU, nor against another compilation.
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}


def prepare_process() -> None:
  """Makes this process one that only compiles; to be called before JAX is used."""
  os.environ.update(_ENVIRONMENT)


def compile_config(
  config: Config, *, topology: str, programs: Sequence[str], smallest: bool, as_json: bool,
  versions: Mapping[str, str], log: Callable[[str], None],
) -> int:
  """Compiles programs for a slice and prints what they need.

  Args:
    config: of the run.
    topology: name of a slice.
    programs: `lm`, `debias`, `sample`; empty: all that the configuration has.
    smallest: search for the smallest slice of the generation instead.
    as_json: print one JSON object; progress then stays off the standard output.
    versions: of the packages, for the JSON.
    log: gets progress lines.

  Returns:
    0, or 2 if something does not fit.

  Raises:
    UserError: unknown topology or program, no libtpu, or the slice does not divide a batch.
  """
  where = find_slice(topology)
  prepare_process()
  from fairjax.compile.devices import NoCompiler
  from fairjax.compile.programs import programs_of

  results = []
  for program in programs or programs_of(config):
    try:
      results.append(_one(config, program, where, smallest=smallest, log=log,
                          show=(lambda line: None) if as_json else print))
    except NoCompiler:
      raise
    except UserError as e:
      if programs:
        raise
      raise UserError(f'{e}; or choose what to compile with --program') from e
  fits = all(r['fits'] for r in results)
  if as_json:
    print(json.dumps({'topology': topology, 'fits': fits, 'programs': results,
                      'versions': dict(versions)}, indent=2, allow_nan=False))
  else:
    from fairjax.compile.text import FLOOR_CAVEAT
    print(FLOOR_CAVEAT)
  return 0 if fits else 2


def compile_matrix(
  *, output: str, as_json: bool, versions: Mapping[str, str], log: Callable[[str], None],
) -> None:
  """Compiles the paper's models for its slices and modern ones, and writes the page.

  Raises:
    UserError: no libtpu, or a configuration is missing (start it in the repository).
  """
  prepare_process()
  from fairjax.compile.matrix import paper_cells, run_matrix
  results = run_matrix(
    paper_cells(), output=output, versions=versions, log=log,
    command=f'fairjax compile --matrix --output={output}')
  print(json.dumps(results, indent=2, allow_nan=False) if as_json else output)


def _one(
  config: Config, program: str, where: Slice, *, smallest: bool, log: Callable[[str], None],
  show: Callable[[str], None],
) -> dict:
  """Result of one program, for JSON."""
  from fairjax.compile.analysis import analyse
  from fairjax.compile.search import advice, smallest_slice
  from fairjax.compile.text import describe

  if smallest:
    found, tried = smallest_slice(config, program, where, log=log)
    result = {'fits': found is not None, 'tried': tried}
    if found is None:
      show(f'{program}: no slice of {where.chip.name} holds it: ' + '; '.join(tried))
    else:
      show(f'{program}: the smallest slice of {where.chip.name} that holds it is {found.topology}')
      show('\n'.join(describe(found)))
      result |= found.to_dict()
    return {'program': program} | result
  found, _ = analyse(config, program, where, log=log)
  show('\n'.join(describe(found)))
  result = found.to_dict()
  if not found.fits:
    larger, tried = smallest_slice(config, program, where, above=True, log=log)
    result |= {'smallest': larger.to_dict() if larger else None, 'tried': tried,
               'advice': advice(config, found)}
    show('  ' + (f'the smallest slice of {where.chip.name} above it that fits: {larger.topology} '
                 f'({larger.bytes_over / -2**30:.2f} GiB left)' if larger else
                 f'no larger slice of {where.chip.name} fits: {"; ".join(tried) or "none known"}'))
    show(f'  or {result["advice"]}')
  return result
