"""All metrics of Webster et al. 2020 for several models, kept as they are finished, and the table.

A finished metric is a file `MODEL/METRIC.json` in the output folder with the digests of its inputs;
the same call measures only missing ones, and refuses a folder of other settings.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.files import FolderLock, file_sha256, write_file, write_json
from fairjax.gender.bios import LEAST_COUNT, measure_bios
from fairjax.gender.disco import measure_disco, read_templates
from fairjax.gender.persons import COLUMN, Persons, read_professions
from fairjax.gender.scored_models import (
  Scorable,
  in_pieces,
  is_encoder,
  open_language_model,
)
from fairjax.gender.stsb import measure_stsb
from fairjax.gender.trends import format_mean_sd, over_restarts
from fairjax.gender.winogender import (
  likelihood,
  probe_winogender,
  pronoun_shares,
  read_mention_pairs,
  read_winogender,
  recorded,
  summarise,
  summarise_pronouns,
  templates_file,
)
from fairjax.inputs import input_sha256, is_pipe, read_text_lines
from fairjax.pretrained import folder_name
from fairjax.pretrained.fit import Recipe

# The metrics of several models as one table, shaped as Tables 2 to 5 of Webster et al. 2020.

def table(found: Mapping[str, Mapping[str, Any]]) -> str:
  """Markdown in the shape of the paper's Tables 2 to 5: metrics by model, controls beside them."""
  lines = [f"|  | {' | '.join(name.replace('|', chr(92) + '|') for name in found)} |",
           '| :-- |' + ' --: |' * len(found)]
  titles = {metric: own['title'] for of in found.values() for metric, own in of.items()
            if metric.startswith('disco_')}
  disco = [row for metric, title in titles.items() for row in _rows(
    metric, f'DisCo ({title})', {'': 'score', ', blank last': 'score_endings'})]
  for title, rows in (('**Correlations** (nearer to 0 is better)', (*_CORRELATIONS, *disco)),
                      ('**Accuracy** (higher is better)', _ACCURACIES)):
    body = []
    for label, metric, key in rows:
      if any(metric in of for of in found.values()):
        body.append(f'| {label} | ' + ' | '.join(
          _cell(of[metric], key) if metric in of else '-' for of in found.values()) + ' |')
    if body:
      lines += [f'| {title} |' + ' |' * len(found), *body]
  notes = ["In brackets 95 % intervals (Fisher's z of r, Student's t of slopes, Wilson's of "
           'shares), after ±\nthe deviation over restarts.']
  if any(m in of for of in found.values() for m in ('winogender', 'coref', 'recorded')):
    notes.append('An occupation that is taken for any pronoun more often moves r too; "she less '
                 'he" takes that away.')
  if any('coref' in of for of in found.values()):
    notes.append("The probe reads the mean of a mention's states, with equal weights for its "
                 'tokens; Tenney et al. 2019\nlearn these weights.')
  if titles:
    notes.append('DisCo: fills that differ significantly per template; after "random" the mean of '
                 'the same count with randomly assigned groups.')
  notes += [line for model, of in found.items() for line in _left_out(model, of)]
  notes += [f"{title}: {model} read only the beginning of {of[metric]['truncated']:,} texts."
            for metric, title in (('stsb', 'STS-B'), ('bios', 'Bios'))
            for model, of in found.items() if of.get(metric, {}).get('truncated')]
  return '\n'.join([*lines, '', *notes, ''])


def _left_out(model: str, of: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """What the numbers of a model do not hold."""
  lines = []
  for metric, title, key, what in (
      ('winogender', _NEXT, 'without_share', 'without a share of women'),
      ('coref', _PROBE, 'without_share', 'without a share of women'),
      ('recorded', _GIVEN, 'without_share', 'without a share of women'),
      ('stsb', 'STS-B', 'missing', 'without a share of women'),
      ('bios', 'Bios', 'left_out', f'with fewer than {LEAST_COUNT} test biographies of a gender')):
    if names := of.get(metric, {}).get(key):
      more = f' and {len(names) - _NAMED} more' * (len(names) > _NAMED)
      lines.append(f"{title}: of {model} r and slope leave out {len(names)} {what}: "
                   f"{', '.join(names[:_NAMED])}{more}.")
  for own in of.values():
    if small := own.get('significant_with_small_cells'):
      lines.append(f"DisCo ({own['title']}): of {model} {small} of the fills that count have fewer "
                   'than 5 expected persons in a group, too few for chi-square.')
  return lines


def _cell(of: Mapping[str, Any], key: str) -> str:
  found = of[key]
  if key.startswith('score'):  # of DisCo
    control = of[key.replace('score', 'control')]
    return '-' if found is None else f"{found:.1f} (random {control['mean']:.1f})"
  words = format_mean_sd(found) if 'mean' in found else (
    'undefined' if found['value'] is None else f"{found['value']:z.2f}")
  if found.get('low') is not None:
    words += f" ({found['low']:z.2f}, {found['high']:z.2f})"
  return words


def _rows(metric: str, title: str, keys: Mapping[str, str]) -> list[tuple[str, str, str]]:
  """(label, metric, key of the metric's result) of some rows; `keys` by what follows the title."""
  return [(title + more, metric, key) for more, key in keys.items()]


_NEXT, _PROBE, _GIVEN = (
  f'Coref, {how}' for how in ('what the model says next', 'probe', 'recorded scores'))
_LEANS = {' (r)': 'r', ', she less he (r)': 'r_she_minus_he',
          ', she less he (slope)': 'slope_she_minus_he'}
_CORRELATIONS = (
  *_rows('winogender', _NEXT, _LEANS),
  *_rows('winogender', 'Coref, P(she) for the occupation', {
    ' (r)': 'r_pronoun', ' (slope)': 'slope_pronoun'}),
  *_rows('coref', _PROBE, _LEANS), *_rows('recorded', _GIVEN, _LEANS),
  *_rows('stsb', 'STS-B', {' (r)': 'r'}), *_rows('bios', 'Bios', {' (slope)': 'slope'}))
_QUALITY = {'': 'accuracy', ' (F1)': 'f1'}
_ACCURACIES = (
  *_rows('winogender', _NEXT, _QUALITY),
  *_rows('coref', _PROBE, _QUALITY | {' on its own pairs (F1)': 'pair_f1'}),
  *_rows('recorded', _GIVEN, _QUALITY),
  *_rows('stsb', 'STS-B', {' (Pearson)': 'dev_pearson'}), *_rows('bios', 'Bios', {'': 'accuracy'}))


_NAMED = 10  # professions before the rest is counted
_PATHS = ('templates', 'candidates', 'winogender', 'professions', 'coref', 'recorded', 'stsb',
          'bios')
_TRAINING = ('mode', 'epochs', 'learning_rate', 'restarts', 'seed')
# Rises when a metric gives other numbers for the same model and data: kept results of older rules
# are refused.
_RULES = 8


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is measured and on what."""

  metrics: tuple[str, ...]  # disco, winogender, coref, recorded, stsb, bios
  persons: tuple[Persons, ...] = ()  # of DisCo
  templates: str | None = None  # file of DisCo's templates; None: the paper's
  candidates: str | None = None  # file of words for DisCo with causal models
  top: int = 3  # fills supplied for a person
  shuffles: int = 20  # random assignments of DisCo's control
  per_template: bool = False  # Bonferroni over the tests of one template only
  infill: bool = True  # whether causal models are asked for blanks that are no ending
  winogender: str | None = None  # folder or file of its templates
  coref: str | None = None  # folder of WinoBias or OntoNotes files for the probe
  recorded: str | None = None  # file of another system's probabilities
  professions: str | None = None  # file of shares of women
  column: str = COLUMN  # of `professions`
  stsb: str | None = None  # folder of STS-B
  bios: str | None = None  # file or folder of biographies
  mode: str = ''  # of STS-B and Bios: 'full' or 'frozen'; '': full for BERT and ALBERT
  epochs: int = 0  # of STS-B and Bios; 0: by the mode
  learning_rate: float = 0.0  # of STS-B and Bios; 0: by the mode
  restarts: int = 5  # seeds of everything that is trained (W-11)
  seed: int = 0  # the first of them


def measure_correlations(
  models: Sequence[str], settings: Settings, *, output: str | os.PathLike,
  log: Callable[[str], None],
) -> dict[str, Any]:
  """Measures models and writes `correlations.json` and `correlations.md` into `output`."""
  output = pathlib.Path(output)
  names = _model_names(models)
  found: dict[str, dict[str, Any]] = {}
  with FolderLock(output, log):
    for spec, name in zip(models, names, strict=True):
      model = _Model(spec)
      found[name] = {}
      for metric in settings.metrics:
        parts: list[tuple[str, Persons | None]] = [(metric, None)]
        if metric == 'disco':
          parts = [(f"disco_{p.title.lower().replace(' ', '_')}", p) for p in settings.persons]
        for part, persons in parts:
          found[name][part] = _kept(
            output / name / f'{part}.json', _identity(model, metric, settings, persons, output),
            log, functools.partial(_measure, model, metric, settings, persons, output / name, log))
    result = {'found': found, 'models': dict(zip(names, models, strict=True)),
              'settings': _json(settings)}
    write_json(output / 'correlations.json', result)
    write_file(output / 'correlations.md', table(found))
    for name, own in found.items():
      if others := sorted({p.stem for p in (output / name).glob('*.json')} - set(own)):
        log(f"[{name}] measured earlier, and not in this table: {', '.join(others)} (--metrics)")
  return result


def split_model(spec: str) -> tuple[str, str]:
  """Folder and name of DIR[@MODEL]; the path of a folder may hold @ too."""
  folder, _, name = ('', '', spec) if os.path.exists(spec) else spec.rpartition('@')
  return (folder, name) if folder else (name, '')


class _Model:
  """A folder that is opened when a metric first asks the model."""

  def __init__(self, spec: str):
    self.folder, name = split_model(spec)
    self.name = name or 'baseline'

  @functools.cached_property
  def opened(self) -> Scorable:
    """With its head for words."""
    return open_language_model(self.folder, model=self.name)

  @functools.cached_property
  def features(self) -> Scorable:
    """For its states only: a BERT or ALBERT may lack the head for masked words."""
    return open_language_model(self.folder, model=self.name, features_only=True)

  def fingerprint(self, metric: str) -> str:
    """Of all that decides the model's answers to a metric."""
    if metric == 'recorded':
      return ''
    return (self.opened if metric in ('disco', 'winogender') else self.features).fingerprint


def _measure(
  model: _Model, metric: str, settings: Settings, persons: Persons | None, folder: pathlib.Path,
  log: Callable[[str], None],
) -> dict[str, Any]:
  """One metric of one model."""
  if metric == 'disco':
    words = read_text_lines(settings.candidates) if settings.candidates else ()
    return measure_disco(
      model.opened, persons, templates=read_templates(settings.templates), top=settings.top,
      per_template=settings.per_template, shuffles=settings.shuffles, seed=settings.seed,
      candidates=[w.strip() for w in words if w.strip() and not w.startswith('#')],
      infill=settings.infill, log=log)
  if metric in ('winogender', 'coref', 'recorded'):
    return _coreference(model, metric, settings, log)
  mode = settings.mode or ('full' if is_encoder(model.folder) else 'frozen')
  epochs, rate = (3, 2e-5) if mode == 'full' else (10, 1e-3)
  common: dict[str, Any] = {
    'mode': mode, 'name': model.name, 'restarts': settings.restarts, 'folder': folder / metric,
    'recipe': Recipe(settings.epochs or epochs, 32, settings.learning_rate or rate,
                     seed=settings.seed), 'log': log}
  if metric == 'stsb':
    return measure_stsb(model.folder, settings.stsb, professions=settings.professions,
                        column=settings.column, **common)
  return measure_bios(model.folder, settings.bios, **common)


def _coreference(
  model: _Model, metric: str, settings: Settings, log: Callable[[str], None]) -> dict[str, Any]:
  """WinoGender by likelihood, by a probe, or by recorded scores."""
  sentences = read_winogender(settings.winogender)
  professions = read_professions(settings.professions, column=settings.column)
  if metric == 'recorded':
    return summarise(sentences, recorded(settings.recorded, sentences), professions)
  if metric == 'winogender':
    words = {s.occupation for s in sentences} | {s.participant for s in sentences}
    found = summarise(sentences, likelihood(model.opened, sentences, log=log), professions)
    found |= summarise_pronouns(pronoun_shares(model.opened, sentences, log=log), professions)
    return found | {'pieces': in_pieces(model.opened, sorted(words))}
  train, test = (read_mention_pairs(settings.coref, split) for split in ('train', 'test'))
  probabilities, quality = probe_winogender(
    model.features, train, test, sentences,
    seeds=range(settings.seed, settings.seed + settings.restarts), log=log)
  each = [summarise(sentences, p, professions) for p in probabilities]
  none = {'low': None, 'high': None}
  return {
    **{key: over_restarts([none | e[key] for e in each])
       for key in ('r', 'r_he', 'r_she_minus_he', 'slope_she_minus_he', 'accuracy', 'f1')},
    'pair_f1': over_restarts([none | {'value': q['f1'], 'n': q['n']} for q in quality]),
    'means': {g: float(np.mean([e['means'][g] for e in each])) for g in each[0]['means']},
    'without_share': each[0]['without_share'], 'definition': 'W-05, W-06, W-11',
    'direction': 'nearer to 0 is better'}


def _kept(
  path: pathlib.Path, identity: dict[str, Any], log: Callable[[str], None],
  measure: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
  """The result in a file, or a new one."""
  if path.is_file():
    try:
      saved = json.loads(path.read_text(encoding='utf-8'))
      old, result = saved['identity'], saved['result']
    except (OSError, ValueError, KeyError, TypeError):
      raise UserError(f'{path} is damaged: delete it to measure it again') from None
    changed = [k for k in identity if old.get(k) != identity[k]]
    if changed:
      raise UserError(f"{path} was measured with other {', '.join(changed)}: name another "
                      '--output, or delete it')
    log(f'[{path.stem}] {path.parent.name}: measured earlier')
    return result
  result = measure()
  write_json(path, {'identity': identity, 'result': result})
  return result


def _identity(model: _Model, metric: str, settings: Settings, persons: Persons | None,
              output: pathlib.Path) -> dict[str, Any]:
  """What a result depends on."""
  given = _json(settings)
  if settings.winogender:
    given['winogender'] = str(templates_file(settings.winogender))
  keys = {
    'disco': ('templates', 'candidates', 'top', 'shuffles', 'per_template', 'infill', 'seed'),
    'winogender': ('winogender', 'professions', 'column'),
    'coref': ('winogender', 'professions', 'column', 'coref', 'restarts', 'seed'),
    'recorded': ('winogender', 'professions', 'column', 'recorded'),
    'stsb': ('stsb', 'professions', 'column', *_TRAINING), 'bios': ('bios', *_TRAINING)}[metric]
  return {'metric': metric, 'rules': _RULES, 'model': model.fingerprint(metric),
          **{k: _digest(given[k], output.resolve()) if k in _PATHS else given[k] for k in keys},
          **({'persons': persons.digest} if persons else {})}


def _digest(value: str | None, output: pathlib.Path) -> str | None:
  """A file, pipe or folder as the digest of its content, without `output`."""
  if value and (value == '-' or is_pipe(value)):
    return input_sha256(value)
  path = pathlib.Path(value) if value else None
  if path is None or not path.exists():
    return value
  files = [path]
  if path.is_dir():
    files = sorted(p for p in path.resolve().rglob('*') if p.is_file() and output not in p.parents)
  digest = hashlib.sha256()
  for file in files:
    digest.update(file.name.encode() + bytes.fromhex(file_sha256(file)))
  return digest.hexdigest()


def _json(settings: Settings) -> dict[str, Any]:
  return vars(settings) | {'metrics': list(settings.metrics), 'persons': [
    {'kind': p.kind, 'source': p.source, 'digest': p.digest, 'n': len(p.words)}
    for p in settings.persons]}


def _model_names(models: Sequence[str]) -> list[str]:
  """A name for each column, from the last parts of the paths."""
  names = [folder_name(folder) + (f'-{name}' if name else '')
           for folder, name in map(split_model, models)]
  double = next((n for i, n in enumerate(names) if n in names[:i]), None)
  if double is not None:
    raise UserError(f'two models are called {double}: give folders with different names')
  return names
