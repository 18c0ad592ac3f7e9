"""The folder of a run: made, or found to be of this configuration."""

import json
import pathlib
from collections.abc import Callable

from fairjax.config import MACHINE_FIELDS, Config
from fairjax.config_files import config_differences, read_config_json, to_dict
from fairjax.errors import Damaged, UserError
from fairjax.files import FolderLock, read_sealed_json, write_sealed_json
from fairjax.versions import installed_versions

# Fields on which nothing that is already in a workdir depends.
_EXTENDS = ('until', 'debias.variants', 'debias.extended_baseline', 'measure.relevance_share')


def claim(
  workdir: pathlib.Path, config: Config, lock: FolderLock, log: Callable[[str], None]
) -> None:
  """Writes `config.json` at the first start of a run; later compares it.

  A `config.json` whose fields are right but which is otherwise not what was written (its versions,
  say) is written again, with a warning.

  Raises:
    UserError: the folder belongs to a run with another configuration (the fields are named), or to
      no run.
  """
  path, current = workdir / 'config.json', to_dict(config)
  if workdir.exists() and not workdir.is_dir():
    raise UserError(f'--workdir={workdir} is a file: name a folder')
  if path.exists():
    saved = read_config_json(path)
    changed = config_differences(saved, json.loads(json.dumps(current)))
    fields = [c.partition(':')[0] for c in changed]
    refused = [c for c, field in zip(changed, fields, strict=True)
               if field not in MACHINE_FIELDS + _EXTENDS]
    if refused:
      raise UserError(f'{workdir} belongs to a run with another configuration: '
                      f'{"; ".join(refused)}. Use another --workdir, or the saved values')
    if not changed and _is_as_written(path, log):
      return
    if changed:
      log(f'{workdir} goes on with {"; ".join(changed)}')
    if not set(fields) <= set(MACHINE_FIELDS):
      (workdir / 'DONE').unlink(missing_ok=True)
  elif workdir.is_dir():
    # Not a folder of something else, a repository's root say, among whose files a run would get
    # lost. Names with a dot are a lock, or what an interrupted first start left.
    found = sorted(x.name for x in workdir.iterdir() if not x.name.startswith('.'))
    if found:
      raise UserError(f'--workdir={workdir} holds {found[0]} but no config.json, so it is no '
                      "run's: name a new folder, or put its config.json back")
  with lock:
    write_sealed_json(path, {'config': current, 'versions': installed_versions()})


def _is_as_written(path: pathlib.Path, log: Callable[[str], None]) -> bool:
  try:
    read_sealed_json(path, again='it is written again')
  except Damaged as e:
    log(f'WARNING: {e}')
    return False
  return True
