"""The folder of a run: made, or found to be of this configuration; and what it takes of another.

A workdir belongs to one attribute. A run of another attribute in it gets the workdir
`attributes/NAME` below, which takes step 1 from it (`step1_from`): the first run's models, records
and report stay as they are.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from fairjax.config import MACHINE_FIELDS, STEP1_FIELDS, Config
from fairjax.config_files import config_differences, read_config_json, step1_run, to_dict
from fairjax.errors import Damaged, UserError
from fairjax.files import FolderLock, read_sealed_json, write_sealed_json
from fairjax.versions import installed_versions

# Fields on which nothing that is already in a workdir depends.
_EXTENDS = ('until', 'debias.variants', 'debias.extended_baseline', 'debias.random_projection',
            'measure.relevance_share', 'measure.scorers', 'step1_from')
ATTRIBUTES = 'attributes'  # folder of the runs of further attributes
_PLANTED = 'data.source=planted writes its documents about the attribute'


def locate(config: Config, workdir: pathlib.Path) -> tuple[Config, pathlib.Path]:
  """The configuration and the workdir that a run really has; nothing is written.

  In a workdir of another attribute it is the one below. What a run began with stays: its
  `step1_from`, and its `measure.scorers`, followed by those that are new.

  Raises:
    UserError: step 1 of another attribute would be another one, or cannot be taken.
  """
  if (workdir / 'config.json').is_file():
    saved = read_config_json(workdir / 'config.json')
    began = saved.get('attribute')
    if (isinstance(began, str) and not saved.get('step1_from') and not config.step1_from
        and config.data.source != 'planted' and _stem(began) != _stem(config.attribute)):
      _refuse_changes(workdir, saved, config, but=('attribute',))
      return locate(dataclasses.replace(config, step1_from='../..'),
                    workdir / ATTRIBUTES / _stem(config.attribute))
    scorers = saved.get('measure', {}).get('scorers', ())
    config = dataclasses.replace(
      config, step1_from=config.step1_from or saved.get('step1_from', ''),
      measure=dataclasses.replace(config.measure, scorers=tuple(
        dict.fromkeys((*scorers, *config.measure.scorers)))))
  if other := step1_run(config, workdir):
    _check_step1(config, workdir, *other)
  return config, workdir


def data_folder(config: Config, workdir: pathlib.Path) -> pathlib.Path:
  """Where the prepared data of a run are: its own, or those of `step1_from` for one attribute."""
  other = step1_run(config, workdir)
  if other is None or _stem(other[0].attribute) != _stem(config.attribute):
    return workdir / 'data'
  return data_folder(*other)


def vocabulary_folder(config: Config, workdir: pathlib.Path) -> pathlib.Path:
  """Where the vocabulary of a run is, or will be: that of its step 1."""
  other = step1_run(config, workdir)
  return workdir / 'data' / 'vocabulary' if other is None else vocabulary_folder(*other)


def _stem(attribute: str) -> str:
  return pathlib.Path(attribute).stem  # as the curriculum names its folders


def _check_step1(
  config: Config, workdir: pathlib.Path, other: Config, folder: pathlib.Path) -> None:
  """Refuses a run whose step 1 cannot be taken from another one."""
  head, chain = f'step1_from={config.step1_from}: {folder}', [workdir.resolve()]
  link: tuple[Config, pathlib.Path] | None = (other, folder)
  while link:
    if any(link[1].is_relative_to(found) for found in chain):
      raise UserError(f'{head} is, or lies in, a workdir that takes its step 1 from it: name the '
                      'workdir that has trained step 1')
    chain.append(link[1])
    link = step1_run(*link)
  if (workdir / 'lm').exists():
    raise UserError(f'{head} cannot be taken: {workdir} has begun a step 1 of its own; use another '
                    '--workdir')
  changed = _step1_changes(to_dict(other), to_dict(config))
  if config.data.source == 'planted' and _stem(other.attribute) != _stem(config.attribute):
    changed.append(f'attribute: {other.attribute} -> {config.attribute} ({_PLANTED})')
  if changed:
    raise UserError(f'{head} has another step 1: {"; ".join(changed)}. Use the same values, or a '
                    '--workdir with a step 1 of its own')
  if not (vocabulary_folder(other, folder).parent.parent / 'lm' / 'DONE').exists():
    raise UserError(f'{head} has not finished step 1 (lm/DONE): finish it there first, with '
                    f'--config.attribute={other.attribute}')


def _step1_changes(saved: dict, current: dict) -> list[str]:
  """Differences in what step 1 depends on."""
  found = _changes(*({k: v[k] for k in STEP1_FIELDS} for v in (saved, current)))
  free = (*MACHINE_FIELDS, 'lm.log_every', 'lm.keep_checkpoints', 'lm.max_skipped')
  return [c for c in found if c.partition(':')[0] not in free]


def _changes(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
  """Differences of two configurations; the field is newer than some that were saved."""
  return [c for c in config_differences(saved, current)
          if c != 'data.planted_one_mood: (missing) -> False']


def _refuse_changes(workdir: pathlib.Path, saved: Mapping[str, Any], config: Config, *,
                    but: tuple[str, ...] = ()) -> list[str]:
  """Changes of fields (without some); refuses those on which something in the workdir depends."""
  changed = _changes(saved, json.loads(json.dumps(to_dict(config))))
  changed = [c for c in changed if c.partition(':')[0] not in but]
  scorers = [saved.get(s, {}).get(k) or () for s, k in (('measure', 'scorers'),
                                                        ('sentiment', 'scorer'))]
  free = MACHINE_FIELDS + _EXTENDS
  if 'opinion' not in (*scorers[0], scorers[1]):
    free += ('measure.lexicon',)
  refused = [c for c in changed if c.partition(':')[0] not in free]
  if config.data.source == 'planted':
    refused = [f'{c} ({_PLANTED})' if c.startswith('attribute:') else c for c in refused]
  if refused:
    raise UserError(f'{workdir} belongs to a run with another configuration: '
                    f'{"; ".join(refused)}. Use another --workdir, or the saved values')
  return changed


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
    changed = _refuse_changes(workdir, read_config_json(path), config)
    if not changed and _is_as_written(path, log):
      return
    if changed:
      log(f'{workdir} goes on with {"; ".join(changed)}')
    if not {c.partition(':')[0] for c in changed} <= set(MACHINE_FIELDS):
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
