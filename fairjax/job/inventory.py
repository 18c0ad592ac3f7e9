"""What a workdir holds, by digests: damage to a file that nothing reads any more is noticed too."""

import hashlib
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fairjax.errors import UserError
from fairjax.files import read_sealed_json, write_sealed_json
from fairjax.job.workdir import ATTRIBUTES
from fairjax.train.checkpoints import done_card

DONE, REPORT = 'DONE', 'report/'
# Hidden files (locks, what a kill left), TensorBoard's, what was moved aside as damaged, runs of
# further attributes; the configuration is compared by its fields.
_NOT_KEPT = re.compile(
  rf'^{DONE}$|^config\.json$|^{ATTRIBUTES}/|(^|/)\.|(^|/)tensorboard/|\.corrupt')
_STEP = re.compile(r'(.*/checkpoints/)(\d+)/')


def write_inventory(
  workdir: str | os.PathLike, version: str, prepared: Any, measures: Iterable[Mapping[str, Any]],
) -> None:
  """Writes `DONE` of a run: the version, and SHA-256 (hex) of every file that the run has left.

  Of the checkpoints of a stage those of the newest step count; older ones may be deleted.

  Args:
    workdir: of the run.
    version: of fairjax.
    prepared: `PreparedData` of the run.
    measures: what was measured; `sources` names what it was made from.

  Raises:
    UserError: a file is not the one that a stage wrote, although no later stage has read it.
  """
  workdir = pathlib.Path(workdir)
  found = file_digests(workdir, _kept(workdir))
  expected = {
    f'{prepared.directory.name}/{split}/{name}': card['sha256']
    for split in prepared.manifest['splits'] if prepared.directory.parent == workdir
    for name, card in prepared.store(split).files.items()}
  for saved in measures:
    expected |= saved['sources']
  for name in [n for n in found if n.endswith(f'/{DONE}')]:
    stage = pathlib.Path(name).parent
    if digest := (done_card(workdir / stage) or {}).get('metrics'):
      expected[f'{stage}/metrics.jsonl'] = digest
  for name, digest in expected.items():
    if found.get(name) != digest:
      held = pathlib.Path(name).parent / DONE
      other = f'{workdir / held}, which keeps the model and loses these lines,' if (
        name.endswith('/metrics.jsonl')) else 'what holds it'
      raise UserError(f'{workdir / name} has changed or is gone since it was made: restore it from '
                      f'a copy, or delete {other} and run again')
  write_sealed_json(workdir / DONE, {'fairjax': version, 'files': found})


def is_finished(workdir: str | os.PathLike, log: Callable[[str], None]) -> bool:
  """Whether a run has ended here and its files are as it left them; later files do not count.

  If only the report has changed, or `DONE` cannot be used, `DONE` is removed with a warning: the
  run then looks at every part and writes the report again.

  Raises:
    UserError: another file has changed or is gone.
  """
  workdir = pathlib.Path(workdir)
  done = workdir / DONE
  if not done.exists():
    return False
  try:
    files = read_sealed_json(done, again='every part is looked at again').get('files', {})
    found = file_digests(workdir, [name for name in files if (workdir / name).is_file()])
    wrong = sorted(name for name, digest in files.items() if found.get(name) != digest)
    words = f'{workdir / wrong[0]} is not what the run left' if wrong else ''
    if not files:
      words = f'{done} lists no files: every part is looked at again'
  except UserError as e:
    wrong, words = [], str(e)
  if any(not name.startswith(REPORT) for name in wrong):
    name = next(name for name in wrong if not name.startswith(REPORT))
    raise UserError(
      f'{workdir} is finished, but {len(wrong)} of its files have changed or are gone since, first '
      f'{workdir / name}: restore it from a copy; or delete {done} and run again: what can be made '
      'anew is, and what cannot is named')
  if words:
    log(f'WARNING: {words}')
    done.unlink()
    return False
  log(f'{workdir} is finished, its {len(files)} files are as the run left them: nothing to do. '
      f'Report: {workdir / REPORT / "report.md"}')
  return True


def refresh(workdir: str | os.PathLike, part: str) -> None:
  """Brings `DONE`, if there is one that can be used, up to date with the files below `part`."""
  workdir = pathlib.Path(workdir)
  if not (workdir / DONE).exists():
    return
  try:
    card = read_sealed_json(workdir / DONE, again='it is written again')
    files = {name: digest for name, digest in card['files'].items() if not name.startswith(part)}
  except (UserError, KeyError):
    (workdir / DONE).unlink()  # the next run looks at every part
    return
  names = [name for name in _kept(workdir) if name.startswith(part)]
  write_sealed_json(workdir / DONE, card | {'files': files | file_digests(workdir, names)})


def file_digests(workdir: str | os.PathLike, names: Iterable[str]) -> dict[str, str]:
  """Name -> SHA-256 (hex) of files of a workdir, named relative to it."""
  found = {}
  for name in names:
    with open(pathlib.Path(workdir) / name, 'rb') as file:
      found[name] = hashlib.file_digest(file, 'sha256').hexdigest()
  return found


def check_sources(workdir: str | os.PathLike, sources: dict[str, str], made: str) -> None:
  """Raises `UserError` if files that something was made from are not what they were.

  Args:
    workdir: of the names.
    sources: name -> SHA-256 (hex), as `file_digests` gave it.
    made: path of what was made from them, for the message.
  """
  there = [name for name in sources if (pathlib.Path(workdir) / name).is_file()]
  found = file_digests(workdir, there)
  for name, digest in sources.items():
    if found.get(name) != digest:
      what = 'has changed since' if name in found else 'is gone'
      raise UserError(f'{pathlib.Path(workdir) / name} {what}, but {made} was made from it: '
                      f'restore it from a copy, or delete both to make them anew')


def _kept(workdir: pathlib.Path) -> Iterator[str]:
  """Names of the files that count."""
  names = [p.relative_to(workdir).as_posix() for p in sorted(workdir.rglob('*')) if p.is_file()]
  names = [name for name in names if not _NOT_KEPT.search(name)]
  newest: dict[str, int] = {}
  steps = {name: found for name in names if (found := _STEP.match(name))}
  for folder, step in (found.groups() for found in steps.values()):
    newest[folder] = max(newest.get(folder, 0), int(step))
  for name in names:
    if name not in steps or newest[steps[name][1]] == int(steps[name][2]):
      yield name
