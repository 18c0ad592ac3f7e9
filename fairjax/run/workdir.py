"""The folder of a run: its configuration, models and inventory, and step 1 of another run.

A workdir belongs to one attribute. A run of another attribute in it gets the workdir
`attributes/NAME` below, which takes step 1 from it (`step1_from`): the first run's models, records
and report stay as they are. The same run with another seed (`run --seeds`) gets `seeds/SEED`, which
reads the first one's data.
"""

import dataclasses
import functools
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fairjax import processes
from fairjax.config import (
  FILE_SOURCES,
  MACHINE_FIELDS,
  STAGES,
  STEP1_FIELDS,
  TFDS_SOURCES,
  Config,
  parse_decoding,
)
from fairjax.config_io import (
  WORKDIR_FORMAT,
  config_differences,
  read_config_json,
  read_saved,
  step1_run,
  to_dict,
)
from fairjax.counterfactual import load_attribute
from fairjax.errors import Damaged, UserError
from fairjax.files import (
  FolderLock,
  atomic_write,
  check_brackets,
  file_sha256,
  installed_versions,
  json_sha256,
  read_sealed_json,
  write_sealed_json,
)
from fairjax.report.differences import read_report

if TYPE_CHECKING:
  from fairjax.data.prepare import PreparedData
  from fairjax.measure import RecordedScorer, Scorer
  from fairjax.measure.similarity import Encoder
  from fairjax.pretrained.checkpoint import ModelFiles
  from fairjax.train import LabelledSentences

_M = TypeVar('_M')
_Model = TypeVar('_Model', bound='Scorer | RecordedScorer | Encoder')
# Fields on which nothing that is already in a workdir depends.
EXTENDS = ('name', 'until', 'debias.variants', 'debias.extended_baseline',
           'debias.random_projection', 'decoding', 'measure.relevance_share', 'measure.scorers',
           'step1_from')
HUMAN = 'human.json'  # in the folder of the measures: what people judged
ATTRIBUTES = 'attributes'  # folder of the runs of further attributes
SEEDS = 'seeds'  # folder of the same run with further seeds
_PLANTED = 'data.source=planted writes its documents about the attribute'


def locate(config: Config, workdir: pathlib.Path) -> tuple[Config, pathlib.Path]:
  """The configuration and the workdir of a run; nothing is written."""
  # A run of another attribute gets the workdir `attributes/NAME` below. `step1_from` and the
  # scorers that a run began with are kept.
  if is_begun(workdir):
    saved = read_config_json(workdir / 'config.json')
    began = saved.get('attribute')
    if (isinstance(began, str) and not saved.get('step1_from') and not config.step1_from
        and (workdir / 'lm').exists() and config.data.source != 'planted'
        and _stem(began) != _stem(config.attribute)):
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


def is_begun(workdir: pathlib.Path) -> bool:
  """Whether a run has made something here: a start that failed before that claims no folder."""
  def shown(folder: pathlib.Path) -> list[pathlib.Path]:  # these precede the data
    return [x for x in folder.iterdir()
            if not x.name.startswith(('.', 'lexicon_', 'inputs.json', 'pretrained.json'))]

  return (workdir / 'config.json').is_file() and any(
    x.name != 'config.json' and (not x.is_dir() or shown(x)) for x in shown(workdir))


def data_folder(config: Config, workdir: pathlib.Path) -> pathlib.Path:
  """Where the prepared data of a run are: its own, or those of `step1_from` for one attribute."""
  other = step1_run(config, workdir)
  if other is None or _stem(other[0].attribute) != _stem(config.attribute):
    return _first_seed(workdir) / 'data'
  return data_folder(*other)


def vocabulary_folder(config: Config, workdir: pathlib.Path) -> pathlib.Path:
  """Where the vocabulary of a run is, or will be: that of its step 1."""
  other = step1_run(config, workdir)
  return (_first_seed(workdir) / 'data' / 'vocabulary' if other is None
          else vocabulary_folder(*other))


def _first_seed(workdir: pathlib.Path) -> pathlib.Path:
  """The workdir whose data a run reads: its own, or that of the same run with its first seed."""
  above = workdir.parent.parent
  return above if workdir.parent.name == SEEDS and (above / 'config.json').is_file() else workdir


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
  changes = _changes(*({k: v[k] for k in STEP1_FIELDS} for v in map(to_dict, (other, config))))
  same = _moved(changes, workdir, other.attribute, config)
  changed = [line for name, line in changes.items() if name not in (*MACHINE_FIELDS, *same)]
  if config.data.source == 'planted' and _stem(other.attribute) != _stem(config.attribute):
    changed.append(f'attribute: {other.attribute} -> {config.attribute} ({_PLANTED})')
  if changed:
    raise UserError(f'{head} has another step 1: {"; ".join(changed)}. Use the same values, or a '
                    '--workdir with a step 1 of its own')
  if not (vocabulary_folder(other, folder).parent.parent / 'lm' / 'DONE').exists():
    raise UserError(f'{head} has not finished step 1 (lm/DONE): finish it there first, with '
                    f'--config.attribute={other.attribute}')


def _changes(saved: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, str]:
  """Field -> its change, of two configurations; a field newer than a saved one has its default."""
  new = set(config_differences({}, to_dict(Config())))
  return {c.partition(':')[0]: c for c in config_differences(saved, current) if c not in new}


def _refuse_changes(workdir: pathlib.Path, saved: Mapping[str, Any], config: Config, *,
                    but: tuple[str, ...] = ()) -> dict[str, str]:
  """Changes of fields (without some); refuses those on which something in the workdir depends."""
  changed = {name: line for name, line in _changes(saved, to_dict(config)).items()
             if name not in but}
  scorers = [saved.get(s, {}).get(k) or () for s, k in (('measure', 'scorers'),
                                                        ('sentiment', 'scorer'))]
  # Measures are made anew. A stage that has not begun may have other settings, and the model before
  # the first stage.
  sections = {'measure', *(stage for stage in STAGES if not _has_trained(workdir / stage))}
  sections |= {'model'} if sections.issuperset(STAGES) else set()
  sections |= {'sample'} if not (workdir / 'generations').exists() else set()
  old, new = saved.get('sample', {}), to_dict(config.sample)
  free = {*MACHINE_FIELDS, *EXTENDS, *(  # more texts
    f'sample.{name}' for name in ('samples', 'rewordings') if new[name] > old.get(name, 0))}
  free |= _moved(changed, workdir, str(saved.get('attribute')), config)
  fixed = {'measure.lexicon'} if 'opinion' in (*scorers[0], scorers[1]) else set()
  refused = {name: line for name, line in changed.items() if name in fixed or (
    name not in free and name.partition('.')[0] not in sections)}
  if config.data.source == 'planted' and 'attribute' in refused:
    refused['attribute'] += f' ({_PLANTED})'
  if refused:
    concerned, other = {name.partition('.')[0] for name in refused}, 'use another --workdir'
    if concerned == {'sample'}:
      other = ('use fairjax sample --attribute=A --output=DIR, which asks the trained models '
               'again, another --workdir')
    elif concerned.isdisjoint((*STEP1_FIELDS, 'attribute')) and (workdir / 'lm' / 'DONE').exists():
      other += f' with --config.step1_from={workdir.resolve()}, which trains no step 1 again'
    elif (workdir / 'data').exists() and not any((workdir / s).exists() for s in STAGES):
      other = f'delete {workdir / "data"}, on which no stage has trained yet, {other}'
    raise UserError(f'{workdir} belongs to a run with another configuration: '
                    f'{"; ".join(refused.values())}. {other[:1].upper()}{other[1:]}, or use the '
                    'saved values')
  return changed


def _has_trained(folder: pathlib.Path) -> bool:
  """Whether a stage, or a variant in its folder, has a model: it may have failed at its data."""
  return any(place for name in ('checkpoints/*', 'DONE') for place in folder.glob(f'**/{name}'))


_FOLDERS = ('data.manual_dir', 'data.tfds_dir')
_NAMED_FILES = frozenset(('attribute', 'data.train', 'data.valid', 'data.test', *_FOLDERS))


def _moved(
  changed: Iterable[str], workdir: pathlib.Path, attribute: str, config: Config) -> set[str]:
  """Fields whose file or folder is only elsewhere: the run has begun with the same content."""
  from fairjax.data.corpus import describe_files_of
  from fairjax.data.documents import list_files
  from fairjax.data.prepare import INPUTS
  path, found = data_folder(config, workdir) / INPUTS, set()
  saved = read_sealed_json(path, again=f'delete {path.parent} and run again') if (
    path.is_file() and _NAMED_FILES.intersection(changed)) else {}
  if ('attribute' in changed and saved and _stem(attribute) == _stem(config.attribute)
      and saved['attribute']['fingerprint'] == load_attribute(config.attribute).fingerprint):
    found.add('attribute')
  named = {split: getattr(config.data, split) for split in saved.get('files', {})}
  if config.data.source in FILE_SOURCES and named and all(named.values()):
    files = describe_files_of({split: list_files(paths) for split, paths in named.items()}, saved)
    if all([f['sha256'] for f in files[split]] == [f['sha256'] for f in saved['files'][split]]
           for split in files):
      found.update(f'data.{split}' for split in files)
  elif config.data.source in TFDS_SOURCES and saved:
    found.update(_FOLDERS)  # what is in them is compared when the data are prepared
  path, model = published_file(config, workdir), config.pretrained.model
  if 'pretrained.model' in changed and model and path.exists() and (
      began_with(path, open_published(model))):
    found.add('pretrained.model')
  return found


def check_inputs_kept(config: Config, workdir: pathlib.Path, log: Callable[[str], None]) -> None:
  """Refuses a finished run whose attribute, text or published model has other content now."""
  from fairjax.data.prepare import INPUTS
  path = data_folder(config, workdir) / INPUTS
  saved = read_sealed_json(path, again=f'delete {path.parent} and run again') if (
    path.is_file()) else {}
  fields = {'attribute'} if 'attribute' in saved else set()
  if config.data.source in FILE_SOURCES:
    fields |= {f'data.{split}' for split in saved.get('files', {}) if getattr(config.data, split)}
  if config.pretrained.model and published_file(config, workdir).exists():
    fields.add('pretrained.model')
  try:
    changed = fields - _moved(fields, workdir, config.attribute, config)
  except UserError as e:  # files that are gone change no result
    log(f'WARNING: what {workdir} was made of cannot be compared: {e}')
    return
  if changed:
    raise UserError(f'{workdir} is finished, but the files of {", ".join(sorted(changed))} have '
                    'changed since: put the old ones back, or use another --workdir')


# The files of a published model, which a run knows by their content.

def published_file(config: Config, workdir: pathlib.Path) -> pathlib.Path:
  """What a run keeps of its published model's files, in the workdir of its step 1."""
  return vocabulary_folder(config, workdir).parent.parent / 'pretrained.json'


def open_published(source: str) -> 'ModelFiles':
  """A model whose tensors can be read; of an adapter that of its base."""
  from fairjax.pretrained.checkpoint import open_model
  files = open_model(source)
  _ = files.tensors  # what is damaged, or no adapter of its base, ends here: nothing is written yet
  return files


def began_with(path: pathlib.Path, files: 'ModelFiles') -> bool:
  """Whether a `published_file` was written for the same configuration and weights."""
  from fairjax.data.corpus import known_digests
  saved = read_sealed_json(path, again='delete it and run again')
  return saved['digest'] == files_digest(files, known_digests(saved.get('files', ())))


def files_digest(files: 'ModelFiles', known: Mapping[tuple, str]) -> str:
  """SHA-256 (hex) of a model's configuration and weights; `known`: see `describe_file`."""
  from fairjax.data.corpus import describe_file
  return json_sha256([files.config, *(
    [path.name, describe_file(path, known)['sha256']] for path in files.weights)])


def open_workdir(
  workdir: pathlib.Path, config: Config, lock: FolderLock, log: Callable[[str], None], *,
  only_read: bool = False, check: Callable[[set[str]], object] = lambda fields: None,
) -> None:
  """Writes `config.json` until a run has made something; later compares it.

  `only_read` writes and removes nothing. `check` gets the changed fields before anything is
  written; if it raises, nothing is.
  """
  path, current = workdir / 'config.json', to_dict(config)
  done, stale, changed = list[pathlib.Path](), list[pathlib.Path](), dict[str, str]()
  began: dict[str, Any] = {}  # the first names of moved files, see `as_begun`
  if workdir.exists() and not workdir.is_dir():
    raise UserError(f'--workdir={workdir} is a file: name a folder')
  check_brackets(workdir / _stem(config.attribute))  # which folders of step 3 begin with
  if path.exists() and (is_begun(workdir) or not _changes(read_config_json(path), current)):
    saved = read_config_json(path)
    changed = _refuse_changes(workdir, saved, config)
    began = {name: value for name, value in saved.get('data', {}).items()
             if f'data.{name}' in _NAMED_FILES.intersection(changed)} | (
               read_saved(path).get('began', {}))
    if not changed and _is_as_written(path, log):
      return
    fields = set(changed).difference(MACHINE_FIELDS)
    done = [workdir / 'DONE'] if fields else []
    if any(name.startswith(('sample.', 'measure.'))
           for name in fields.difference(EXTENDS, ('measure.lexicon',))):
      stale = [x for x in (workdir / 'measures').glob('*') if x.name != HUMAN]
  elif workdir.is_dir() and not path.exists():
    # A run does not begin among other files, e.g. in a repository. Names with a dot are a lock, or
    # the remains of an interrupted first start.
    found = sorted(x.name for x in workdir.iterdir() if not x.name.startswith('.'))
    if found:
      raise UserError(f'--workdir={workdir} holds {found[0]} but no config.json, so it is no '
                      "run's: name a new folder, or put its config.json back")
  if only_read:
    return
  check(set(changed))
  if stale or 'decoding' in changed:  # a mesh that these devices lack is refused first, too
    from fairjax.train import make_mesh
    make_mesh(config.mesh)
  if changed:
    log(f'{workdir} goes on with {"; ".join(changed.values())}'
        + '; all is measured again' * bool(stale))
  with lock:
    for place in (*done, *stale):  # first, so that a kill leaves no measures of the old values
      if place.is_dir():
        shutil.rmtree(place)
      else:
        place.unlink(missing_ok=True)
    write_sealed_json(path, {
      'workdir_format': WORKDIR_FORMAT, 'config': current, 'versions': installed_versions(),
      **({'began': began} if began else {})})


def _is_as_written(path: pathlib.Path, log: Callable[[str], None]) -> bool:
  try:
    read_sealed_json(path, again='it is written again')
  except Damaged as e:
    log(f'WARNING: {e}')
    return False
  return True


# The language models of a run.

@dataclasses.dataclass(frozen=True)
class Model:
  """One language model of the run."""

  name: str
  directory: pathlib.Path  # of its stage
  # baseline | extended_baseline | control | embedding | sentiment | random_projection | dropout |
  # cda | average | steer
  method: str
  weight: float | None = None  # lambda, or the strength of a method at decoding time


def run_models(config: Config, workdir: pathlib.Path) -> list[Model]:
  """The language models of a run, baseline first."""
  from fairjax.train import curriculum_stages, stage_folder
  trained = [Model(stage.model, stage_folder(config, workdir, stage), stage.method, stage.weight)
             for stage in curriculum_stages(config) if stage.model]
  return trained + [Model(f'{method}-{strength:g}', trained[0].directory, method, strength)
                    for method, strength in map(parse_decoding, config.decoding)]


# Sizes that the devices cannot divide are refused before anything is prepared or written.

def check_devices(
  config: Config, workdir: pathlib.Path, *, until: str | None = None, vocab_size: int | None = None,
) -> None:
  """Compares the mesh with the batches of the stages that are left to train, and with the model."""
  from fairjax.train import check_batch_size, make_mesh, model_problems
  config, workdir = locate(config, workdir)
  left = stages_left(config, workdir, until or config.until)
  if not left:
    return
  mesh, problems = make_mesh(config.mesh), []
  for name in left:
    stage = getattr(config, name)
    try:
      check_batch_size(stage.batch_size, mesh, field=f'{name}.batch_size',
                       grad_accum_steps=stage.grad_accum_steps)
    except UserError as e:
      problems.append(str(e))
  size = vocab_size or vocabulary_size(config, workdir) or 0
  if not config.pretrained.model:  # which is split where it can be
    problems += model_problems(dataclasses.replace(config.model, vocab_size=size), mesh)
  if problems:
    begun = [name for name in left if _has_trained(workdir / name)]
    raise UserError('; '.join(problems) + (
      f'. The sizes of {" and ".join(begun)}, begun in {workdir}, stay: choose another mesh, or '
      'another --workdir' if begun else ''))


def stages_left(config: Config, workdir: pathlib.Path, until: str) -> list[str]:
  """The stages up to one that have not ended in the workdir, by their sections of the config."""
  from fairjax.train import curriculum_stages, stage_folder
  return list(dict.fromkeys(
    stage.section for stage in curriculum_stages(config, until)
    if not (stage_folder(config, workdir, stage) / 'DONE').exists()))


def vocabulary_size(config: Config, workdir: pathlib.Path) -> int | None:
  """Ids of the run's vocabulary; None if it is made of data that are not prepared yet."""
  from fairjax.vocabulary import load_vocabulary
  prepared = vocabulary_folder(config, workdir)
  if (prepared / 'vocabulary.json').exists():
    return load_vocabulary(prepared).size
  if config.data.vocabulary not in ('sentencepiece', 'word'):
    return load_vocabulary(config.data.vocabulary).size
  return config.model.vocab_size or None


# The digests of a workdir's files: damage to a file that nothing reads any more is noticed too.

DONE, REPORT = 'DONE', 'report/'
# Hidden files (locks, what a kill left), TensorBoard's, times, verdicts, stacks of a hang, what was
# moved aside as damaged, runs of further attributes or seeds; config.json is compared by fields.
_NOT_KEPT = re.compile(
  rf'^{DONE}$|^config\.json$|^({ATTRIBUTES}|{SEEDS})/|(^|/)\.|(^|/)tensorboard/|\.corrupt'
  r'|(^|/)(times\.jsonl|kernel\.json|hang-process-\d+\.txt)$')
_STEP = re.compile(r'(.*/checkpoints/)(\d+)/')


def write_inventory(
  workdir: pathlib.Path, version: str, prepared: 'PreparedData',
  measures: Iterable[Mapping[str, Any]],
) -> None:
  """Writes `DONE` of a run: the version and the SHA-256 of every file that the run has made."""
  # `measures` are those of `Run.read_measures`. Of a stage's checkpoints only the newest counts.
  from fairjax.train import read_done
  found = file_digests(workdir, _kept(workdir))
  expected = {
    f'{prepared.directory.name}/{split}/{name}': described['sha256']
    for split in prepared.manifest['splits'] if prepared.directory.parent == workdir
    for name, described in prepared.store(split).files.items()}
  for saved in measures:
    expected |= saved['sources']
  if prepared.config.holdout and prepared.directory.parent == workdir:
    digests = prepared.corpus.holdout().digests
    expected |= {f'{prepared.directory.name}/holdout/{split}.jsonl': digest
                 for split, digest in zip(('valid', 'test'), digests, strict=True)}
  for name in [n for n in found if n.endswith(f'/{DONE}')]:
    stage = pathlib.Path(name).parent
    if digest := (read_done(workdir / stage) or {}).get('metrics'):
      expected[f'{stage}/metrics.jsonl'] = digest
  for name, digest in expected.items():
    if found.get(name) != digest:
      held = pathlib.Path(name).parent / DONE
      other = f'{workdir / held}, which keeps the model and loses these lines,' if (
        name.endswith('/metrics.jsonl')) else 'what holds it'
      raise UserError(f'{workdir / name} has changed or is gone since it was made: restore it from '
                      f'a copy, or delete {other} and run again')
  write_sealed_json(workdir / DONE, {'fairjax': version, 'files': found})


def is_finished(workdir: pathlib.Path, log: Callable[[str], None]) -> bool:
  """Whether a run has ended here; `UserError` if a file has changed since."""
  # If only the report has changed or is of another version, or `DONE` is damaged, `DONE` is removed
  # with a warning: the run then checks every part and writes the report again.
  done = workdir / DONE
  if not done.exists():
    return False
  try:
    files = read_sealed_json(done, again='every part is checked again')['files']
    found = file_digests(workdir, [name for name in files if (workdir / name).is_file()])
    wrong = sorted(name for name, digest in files.items() if found.get(name) != digest)
    warning = f'{workdir / wrong[0]} is not what the run left' if wrong else ''
    if not wrong:
      read_report(workdir)
  except UserError as e:
    wrong, warning = [], str(e)
  if any(not name.startswith(REPORT) for name in wrong):
    name = next(name for name in wrong if not name.startswith(REPORT))
    raise UserError(
      f'{workdir} is finished, but {len(wrong)} of its files have changed or are gone since, first '
      f'{workdir / name}: restore it from a copy; or delete {done} and run again, which makes '
      'anew what it can and names the rest')
  if warning:
    log(f'WARNING: {warning}')
    done.unlink()
    return False
  log(f'{workdir} is finished, its {len(files)} files are as the run left them: nothing to do. '
      f'Report: {workdir / REPORT / "index.html"}')
  return True


def refresh_report(workdir: pathlib.Path) -> None:
  """Updates a readable `DONE` with the digests of the files of the report."""
  if not (workdir / DONE).exists():
    return
  try:
    saved = read_sealed_json(workdir / DONE, again='it is written again')
    files = {name: digest for name, digest in saved['files'].items()
             if not name.startswith(REPORT)}
  except UserError:
    (workdir / DONE).unlink()  # the next run checks every part
    return
  names = [name for name in _kept(workdir) if name.startswith(REPORT)]
  write_sealed_json(workdir / DONE, saved | {'files': files | file_digests(workdir, names)})


def file_digests(workdir: pathlib.Path, names: Iterable[str]) -> dict[str, str]:
  """Name -> SHA-256 (hex) of files of a workdir, named relative to it."""
  return {name: file_sha256(workdir / name) for name in names}


def check_sources(
  workdir: pathlib.Path, sources: Mapping[str, str], made: str | os.PathLike
) -> None:
  """Raises `UserError` if files that something was made from are not what they were."""
  there = [name for name in sources if (workdir / name).is_file()]
  found = file_digests(workdir, there)
  for name, digest in sources.items():
    if found.get(name) != digest:
      what = 'has changed since' if name in found else 'is gone'
      raise UserError(f'{workdir / name} {what}, but {made} was made from it: '
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


# A folder that all processes of a job see, and models that the first one leads.

def check_shared(workdir: pathlib.Path) -> None:
  """Refuses a folder that not all processes see."""
  if processes.count() == 1:
    return
  path = workdir / f'.shared-{processes.share(os.urandom(8).hex())}'
  if processes.is_first():
    path.touch()
  processes.share()
  seen = processes.agree(path.exists())
  if processes.is_first():
    path.unlink()
  if not seen:
    raise UserError(f'--workdir={workdir} is not the same folder for all processes: name one on a '
                    'file system that they share')


class SharedModels:
  """Scorers and encoders that run on the devices of all processes."""
  # The first process decides what is scored (`lead`). Where it calls one of these models, it sends
  # the texts to the others, and all run their share. Every process adds the same models in the same
  # order.

  def __init__(self):
    self._methods: list[Callable[[Sequence[str]], np.ndarray]] = []
    self._leading = False

  def add(self, model: _Model, method: str) -> _Model:
    """The scorer or encoder, whose method (texts to an array) then runs in all processes."""
    if processes.count() == 1:
      return model
    self._methods.append(getattr(model, method))
    shared: Any = _SharedModel(
      model, method, functools.partial(self._run, len(self._methods) - 1))
    return shared

  def lead(self, work: Callable[[], _M]) -> _M | None:
    """Does `work` in the first process; the others run its texts. All return when it is done."""
    found = None
    if processes.is_first():
      self._leading = True
      try:
        found = work()
      finally:  # after an error too, the others stop waiting for texts
        self._leading = False
        processes.share(None)
    else:
      while (piece := processes.share()) is not None:
        self._methods[piece['model']](piece['texts'])
    processes.share()
    return found

  def _run(self, number: int, texts: Sequence[str]) -> np.ndarray:
    if not self._leading:
      raise RuntimeError('a model of all processes was called outside of lead(): the others would '
                         'never take part')
    processes.share({'model': number, 'texts': list(texts)})
    return self._methods[number](texts)


class _SharedModel:
  """A model with one method replaced."""

  def __init__(self, model: 'Scorer | RecordedScorer | Encoder', method: str,
               replacement: Callable[[Sequence[str]], np.ndarray]):
    self._model = model
    # For `isinstance(..., Scorer)`, which from Python 3.12 on does not call `__getattr__`.
    self.name, self.fingerprint = model.name, model.fingerprint
    setattr(self, method, replacement)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._model, name)


def share_sentences(
  found: 'LabelledSentences | None', path: pathlib.Path
) -> 'LabelledSentences | None':
  """The sentences of the first process in all, through a file that is removed afterwards."""
  from fairjax.train import LabelledSentences
  if processes.count() == 1:
    return found
  if processes.is_first():
    with atomic_write(path) as file:
      np.savez(file, **dataclasses.asdict(found))
  processes.share()
  with np.load(path, allow_pickle=False) as saved:
    read = LabelledSentences(**saved)
  processes.agree(True)
  if processes.is_first():
    path.unlink()
  return read
