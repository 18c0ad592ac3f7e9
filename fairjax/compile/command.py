"""`fairjax compile`: the verb, without JAX at the top, which must not choose a platform before."""

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence

from fairjax.chips import Slice, find_slice
from fairjax.config import Config
from fairjax.errors import UserError
from fairjax.files import check_writable

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
) -> None:
  """Compiles programs for a slice and prints what they need.

  Args:
    config: of the run.
    topology: name of a slice.
    programs: `lm`, `debias`, `sample`; empty: all that the configuration has.
    smallest: search for the smallest slice of the generation instead.
    as_json: print one JSON object; progress then stays off the standard output.
    versions: of the packages, for the JSON.
    log: gets progress lines.

  Raises:
    UserError: unknown topology or program, no libtpu, or the slice does not divide a batch; or,
      when all is printed, something does not fit: by how much, and what does.
  """
  where = find_slice(topology)
  prepare_process()
  from fairjax.compile.devices import NoCompiler
  from fairjax.compile.programs import programs_of

  results, problems = [], []
  for program in programs or programs_of(config):
    try:
      result, problem = _one(
        config, program, where, smallest=smallest, log=log,
        show=(lambda line: None) if as_json else functools.partial(print, flush=True))
    except NoCompiler:
      raise
    except UserError as e:
      if programs:
        raise
      raise UserError(f'{e}; or choose what to compile with --program') from e
    results.append({'program': program} | result)
    problems += [problem] if problem else []
  if as_json:
    print(json.dumps({'topology': topology, 'fits': not problems, 'programs': results,
                      'versions': dict(versions)}, indent=2, allow_nan=False), flush=True)
  else:
    from fairjax.compile.text import FLOOR_CAVEAT
    print(FLOOR_CAVEAT, flush=True)
  if problems:
    raise UserError('. '.join(problems))


def compile_matrix(
  *, output: str, as_json: bool, versions: Mapping[str, str], log: Callable[[str], None],
) -> None:
  """Compiles the paper's models for its slices and modern ones, and writes the page.

  Raises:
    UserError: the page or the JSON beside it cannot be written, no libtpu, or a configuration is
      missing (start it in the repository).
  """
  page = check_writable(output)
  if page.suffix == '.json':
    raise UserError(f'--output={output} is the name of what is kept beside the page: name the '
                    f"page, e.g. {page.with_suffix('.md')}")
  check_writable(page.with_suffix('.json'))
  prepare_process()
  from fairjax.compile.matrix import paper_cells, run_matrix
  results = run_matrix(
    paper_cells(), output=output, versions=versions, log=log,
    command=f'fairjax compile --matrix --output={output}')
  print(json.dumps(results, indent=2, allow_nan=False) if as_json else output)


def _one(
  config: Config, program: str, where: Slice, *, smallest: bool, log: Callable[[str], None],
  show: Callable[[str], None],
) -> tuple[dict, str]:
  """Result of one program, for JSON; and what it lacks, in words, if it does not fit."""
  from fairjax.compile.analysis import analyse
  from fairjax.compile.search import advice, options_of, smallest_slice
  from fairjax.compile.text import describe, gib, shortage

  chip, begun = where.chip.name, None
  if not smallest:
    begun, _ = analyse(config, program, where, log=log)
    show('\n'.join(describe(begun)))
    if begun.fits:
      return begun.to_dict(), ''
  search = smallest_slice(config, program, where, begun=begun, log=log)
  found, tried = search.found, search.tried
  more: dict = {'tried': tried} | ({} if smallest else {'advice': advice(config, program)})
  options = options_of(config, found) if found else None
  if smallest and found:
    show(f'{program}: the smallest slice of {chip} that holds it is {found.topology}: {options}')
    show('\n'.join(describe(found)))
    return more | found.to_dict() | {'options': options}, ''
  lacking = begun or search.closest
  lacks = shortage(lacking) if lacking else program
  if begun and found:
    left = f'({gib(-found.bytes_over)} left)'
    show(f'  the smallest slice of {chip} from it on that fits: {options} {left}')
    show(f'  or, not compiled: {more["advice"]}')
    return begun.to_dict() | more | {'smallest': found.to_dict(), 'options': options}, (
      f'{lacks}; compiled and fits: {options} {left}')
  nothing = f'no {"" if smallest else "larger "}slice of {chip}'
  show(f'{"  " if begun else f"{program}: "}{nothing} fits: {"; ".join(tried) or "none known"}')
  if begun:
    show(f'  or, not compiled: {more["advice"]}')
    more = begun.to_dict() | more | {'smallest': None, 'options': None}
  split = '' if program == 'sample' else ', nor with a larger mesh.fsdp'
  why = f' ({search.refused})' if search.refused else ''
  return {'fits': False} | more, (
    f'{lacks}; {nothing} fits{split}{why}; not compiled, may help: {advice(config, program)}')
