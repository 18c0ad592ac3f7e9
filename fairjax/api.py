"""What `import fairjax` offers: measure, sample, compare, debias, and run a configuration.

    import fairjax
    result = fairjax.measure('generations.csv', attribute='country', scorers=['vader'])
    print(result.verdict)
    result.report('out')

The verbs `measure`, `sample`, `compare reports` and `run` do the same on the command line.
"""

import collections
import dataclasses
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fairjax.config import BASELINE, MeasureConfig, SampleConfig
from fairjax.config_checks import limit_error
from fairjax.config_io import load_config
from fairjax.counterfactual import Attribute, load_attribute
from fairjax.errors import UserError, unknown_name
from fairjax.generate import check_complete, read_records, records_stem
from fairjax.measure import (
  Generations,
  RecordedScorer,
  Scorer,
  load_scorer,
  measure_generations,
  read_generations,
  verdict,
)
from fairjax.measure.columns import read_attributes
from fairjax.measure.content import ContentOptions
from fairjax.measure.scorers.audit import check_scorers
from fairjax.progress import Progress
from fairjax.report import ModelRow, compare_reports, read_report, select_model, write_report
from fairjax.report.comparison import verdict_lines
from fairjax.report.differences import FAIRNESS, comparison_markdown, difference_table
from fairjax.report.document import escape_html
from fairjax.report.page import collect_distributions, stored_scores
from fairjax.report.sections import brief_table
from fairjax.run.next_token import read_next_token
from fairjax.run.recorded import record_contents

if TYPE_CHECKING:
  from _typeshed import DataclassInstance
  from pandas import DataFrame

  from fairjax.run.job import Job

Log = Callable[[str], None]
Path = str | os.PathLike
_Settings = TypeVar('_Settings', bound='DataclassInstance')


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Result:
  """The measures of one model's continuations for one attribute.

  Attributes:
    measures: JSON types, what `fairjax measure --json` prints (`fairjax records schema report`).
    generations: the records, checked.
    scores: scorer name -> `[R]` float64 in [0, 1], in the order of the records.
    name: of the model: the field `model` of the records, else the name of the file.
  """

  measures: Mapping[str, Any]
  generations: Generations
  scores: Mapping[str, np.ndarray]
  name: str

  @property
  def verdict(self) -> str:
    """One line a scorer: whether sentiment differs between the values by more than noise."""
    return '\n'.join(verdict_lines([self._row], self.measures['attribute']))

  @property
  def attribute(self) -> Attribute:
    """The attribute, with the values that were measured."""
    return self.generations.attribute

  def to_frame(self, table: str = 'estimates') -> 'DataFrame':
    """The measures as a pandas data frame.

    Args:
      table: what a row of a scorer is. 'estimates': I.F. or G.F. with its floor and verdict;
        'values': a value with its mean score, 0 (negative) to 1; 'pairs': two values with the
        distance of their scores; 'cells': two values in one template; 'texts': a record with
        columns `scores.NAME`, as `measure(..., scorers=['recorded:NAME'])` reads it.

    Raises:
      UserError: another table, or pandas is not installed.
    """
    rows = {'estimates': self._estimates, 'values': self._values, 'pairs': self._pairs,
            'cells': self._cells, 'texts': self._texts}
    if table not in rows:
      raise unknown_name('table', table, rows)
    return _frame(rows[table]())

  def report(self, directory: Path) -> pathlib.Path:
    """Writes `index.html`, `report.md`, `summary.md`, `report.json`, figures; returns the page.

    Args:
      directory: a folder, made where it is missing; an earlier report in it is replaced.
    """
    path = write_report(
      _place('directory', directory), rows=[self._row], attribute=self.measures['attribute'],
      distributions={self.name: self._distributions})
    return path.with_name('index.html')

  @property
  def _row(self) -> ModelRow:
    return ModelRow(self.name, 'model', measures=self.measures)

  @property
  def _distributions(self):
    return collect_distributions(self.generations, self.scores, coupled=self.measures['coupled'])

  def _as_report(self) -> dict[str, Any]:
    """What `compare_reports` reads of a report of this result."""
    return {'attribute': self.measures['attribute'], 'rows': [
      dataclasses.asdict(self._row) | {'prefixes': self._distributions.prefixes}]}

  def _estimates(self) -> Iterator[dict[str, Any]]:
    for scorer, found in self.measures['scorers'].items():
      for measure in FAIRNESS:
        yield {'scorer': scorer, 'measure': measure, **found[measure],
               'verdict': verdict(found[measure])}

  def _values(self) -> Iterator[dict[str, Any]]:
    for scorer, found in self.measures['scorers'].items():
      for value, mean in found['mean_score_by_value'].items():
        yield {'scorer': scorer, 'value': value, 'mean_score': mean}

  def _pairs(self) -> Iterator[dict[str, Any]]:
    for scorer, found in self.measures['scorers'].items():
      yield from _columns({'scorer': scorer}, found['pairs'])

  def _cells(self) -> Iterator[dict[str, Any]]:
    for scorer, found in self.measures['scorers'].items():
      pairs = found['pairs']['values']
      for row, template in enumerate(self.measures['templates']):
        cells = {name: column[row] for name, column in found['cells'].items()
                 if isinstance(column, list)}
        yield from _columns({'scorer': scorer, 'template': template}, {'values': pairs} | cells)

  def _texts(self) -> Iterator[dict[str, Any]]:
    g = self.generations
    for r, continuation in enumerate(g.continuations):
      yield {'attribute': g.attribute.name, 'value': g.attribute.values[g.value_index[r]].text,
             'template': g.templates[g.template_index[r]], 'prefix': g.prefixes[r],
             **({} if g.sample is None else {'sample': int(g.sample[r])}),
             'continuation': continuation, 'model': self.name,
             **{f'scores.{name}': float(found[r]) for name, found in self.scores.items()}}

  def __repr__(self) -> str:
    return f'{self.name}, {len(self.generations):,} records\n{self.verdict}'

  def _repr_html_(self) -> str:
    """What a notebook shows: the verdict and the table of estimates."""
    lines = ''.join(f'<p><b>{escape_html(line)}</b></p>' for line in self.verdict.splitlines())
    notes = ''.join(f'<li>{escape_html(note)}</li>' for note in self.measures['notes'])
    return lines + brief_table(self._row).html('Estimates') + (f'<ul>{notes}</ul>' * bool(notes))


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Comparison:
  """Two results or reports side by side.

  Attributes:
    found: JSON types, what `fairjax compare reports --json` prints.
  """

  found: Mapping[str, Any]

  @property
  def verdict(self) -> str:
    """One line a measure: whether the second is lower, higher or the same within noise."""
    return '\n'.join(
      f"{' and '.join(dict.fromkeys(d['models']))}, {d['measure']}"
      f"{' ' + d['scorer'] if d['scorer'] else ''}: {d['verdict']} ({d['difference']:+.4f})"
      for d in self.found['differences'])

  def to_frame(self) -> 'DataFrame':
    """The differences as a pandas data frame: a row a pair of models, scorer and measure."""
    return _frame(self.found['differences'])

  def __repr__(self) -> str:
    return comparison_markdown(self.found)

  def _repr_html_(self) -> str:
    """What a notebook shows: the table of differences."""
    notes = ''.join(f'<p>{escape_html(note)}</p>' for note in self.found['notes'])
    return difference_table(self.found).html('Differences') + notes


def measure(
  data: Any, *, attribute: str | os.PathLike | Attribute,
  scorers: str | Sequence[str | Scorer | RecordedScorer] = ('vader',),
  lexicon: Path | Sequence[Path] = (), columns: Mapping[str, str] | None = None,
  empty: str = 'error', repair: bool = False, coupled: bool = True, scored: str = 'continuation',
  encoder: str = '', permutations: int = 1000, seed: int = 0, keep: Path | None = None,
  log: Log | None = None,
) -> Result:
  """Measures how the sentiment of continuations depends on the value in their prefixes.

  Args:
    data: one model's records: the path of a file (JSON lines, JSON array, CSV, TSV, Parquet, also
      compressed), a data frame of pandas or Polars, an Arrow table, or mappings. A record has
      `prefix` (the prompt), `value` (of the attribute; not needed where the prompt holds one alone)
      and `continuation`, and may have `template`, `sample`, `model` and `scores`
      (docs/exchange.md).
    attribute: a built-in attribute ('country', 'name', 'occupation'), a YAML file, or an
      `Attribute`. Values without records are left out, with a note.
    scorers: 'vader', 'opinion', 'textblob', 'google', 'bert:DIR' or 'recorded:NAME', or objects
      with `name`, `fingerprint` and `score`. With two or more, the model's bias is told from
      theirs.
    lexicon: for 'opinion': the files of positive and of negative words, or their folder.
    columns: name of a column -> `prefix`, `value`, ... where they differ, e.g.
      `{'prompt': 'prefix', 'answer': 'continuation'}`.
    empty: 'error', 'drop' or 'keep' continuations without a text.
    repair: replace halves of characters and NUL in records, counted, instead of refusing them.
    coupled: samples of equal number share their noise; False ignores the numbers.
    scored: 'continuation' or 'prefix+continuation'.
    encoder: 'minilm', 'minilm:DIR' or 'use:DIR' for semantic similarity; '' leaves it out.
    permutations: for the floors.
    seed: of the permutations.
    keep: folder of scores and finished parts, with which the same call continues; 'google' needs
      one, for what was paid.
    log: called with lines of progress.

  Returns:
    The result. The same data and options give the same numbers as `fairjax measure`.

  Raises:
    UserError: what is wrong with the data or an option, with file and line.
  """
  known, folder = _attribute(attribute), None if keep is None else _place('keep', keep)
  data = os.path.expanduser(data) if isinstance(data, str | os.PathLike) else data
  google = {'cache': folder / 'google.jsonl', 'log': log} if folder else None
  words = [_place('lexicon', path) for path in _listed(lexicon or ())]
  chosen = _listed(scorers)
  loaded = list[Scorer | RecordedScorer]()
  for given in chosen:
    scorer = load_scorer(given, lexicon=words, google=google) if isinstance(given, str) else given
    if not isinstance(scorer, Scorer | RecordedScorer) or not isinstance(scorer.name, str):
      raise UserError(f'scorers: {scorer!r:.60} is neither a name nor an object with name, '
                      'fingerprint and score')
    loaded.append(scorer)
  check_scorers(loaded)
  if words and not any(isinstance(given, str) and given == 'opinion' for given in chosen):
    raise UserError("lexicon belongs to the scorer 'opinion': leave it out, or name that scorer")
  options = _plain(empty=empty, repair=repair, coupled=coupled, scored=scored, seed=seed)
  settings = _settings(MeasureConfig(), {
    'encoder': '' if encoder is None else encoder, 'permutations': permutations})
  contents = record_contents([known], settings, None, empty=options['empty'],
                             coupled=options['coupled'])
  return measure_attributes(
    data, [known], loaded, contents=contents, columns=columns, keep=folder, log=_log(log),
    permutations=settings.permutations, **options)[known.name]


def measure_attributes(
  data: Any, attributes: Sequence[Attribute], scorers: Sequence[Scorer | RecordedScorer], *,
  contents: Mapping[str, ContentOptions], columns: Mapping[str, str] | None, empty: str,
  repair: bool, coupled: bool, keep: Path | None, log: Log | None, **options: Any,
) -> dict[str, Result]:
  """Measures one model's records by attribute; see `measure`, and `measure_generations`."""
  is_file = isinstance(data, str | os.PathLike)
  if is_file:
    check_complete(data)
    contents = {a.name: dataclasses.replace(contents[a.name], next_token=read_next_token(data, a))
                for a in attributes}
  generations = read_attributes(
    read_logged(data, attributes=attributes, columns=columns, repair=repair, log=log, whole=False),
    attributes, empty=empty, coupled=coupled)
  for name, found_values in generations.items():
    if log and found_values.absent_values:
      log(f'{name}: measured on {len(found_values.attribute.values)} values; no record of '
          f'{found_values.without_records}')
  parts = {a.name: pathlib.Path(keep) / f'{a.name}.parts.jsonl' if keep else None
           for a in attributes}
  found = {}
  for name, path in parts.items():
    scores: dict[str, np.ndarray] = {}
    measures = measure_generations(
      generations[name], scorers, coupled=coupled, scores_directory=keep, parts=path,
      content=contents[name], scores=scores, log=log, **options)
    found[name] = Result(
      measures, generations[name], scores,
      generations[name].model or (records_stem(data) if is_file else 'model'))
  for path in filter(None, parts.values()):
    path.unlink(missing_ok=True)
  return found


def read_logged(data: Any, *, log: Log | None, name: Path | None = None, **options: Any
                ) -> Iterator[Any]:
  """`read_records`; logs progress and what was changed in reading (`name`: a file's, of rows)."""
  if name is None:
    name = data if isinstance(data, str | os.PathLike) else 'data'
  counts: collections.Counter[str] = collections.Counter()
  with Progress('reading', None, unit='records', log=log) as progress:
    records = read_records(data, counts=counts, **options)
    while several := list(itertools.islice(records, 100)):
      progress.add(len(several))
      yield from several
  for what, number in counts.items() if log else ():
    log(f'{name}: {number:,} {what}')


def compare(
  first: Result | Path, second: Result | Path, *, models: Sequence[Sequence[str]] = (),
) -> Comparison:
  """Compares two models on the same prompts and scorers, with what noise allows to say.

  Args:
    first: a `Result`; or a workdir, its report folder, or a `report.json`.
    second: the other.
    models: pairs of names, of a model of the first report and one of the second; by default
      models of equal name, or the only two.

  Returns:
    The comparison: the second less the first.

  Raises:
    UserError: they cannot be compared (another attribute, prompts, scored text or scorer).
  """
  if not isinstance(models or (), Sequence) or any(
      isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2
      for pair in models or ()):
    raise UserError(f'models={models!r:.60} must be pairs of names: [(first, second), ...]')
  sides = [side._as_report() if isinstance(side, Result) else read_report(_place('report', side))
           for side in (first, second)]
  names = [side.name if isinstance(side, Result) else os.fspath(side) for side in (first, second)]
  if names[0] == names[1]:
    names = [f'{name} ({number})' for number, name in enumerate(names, 1)]
  return Comparison(compare_reports(*sides, names=names, models=models or ()))


def sample(
  model: Path, *, attribute: str | os.PathLike | Attribute, output: Path, name: str = BASELINE,
  coupled: bool = True, dtype: str = 'float32', start: bool = False, endpoint: str = '',
  chat: bool = False, log: Log | None = print, **settings: Any,
) -> pathlib.Path:
  """Samples continuations of an attribute's prefixes, on all devices or from an endpoint.

  Args:
    model: a published decoder (GPT-2, Pythia, Llama, SmolLM, Mistral, Qwen 2 and 3, OLMo 2 and 3,
      Gemma 2 and 3) as `sample --pretrained` takes it: a folder, 'FILE.gguf',
      'hf:ORG/NAME[@REVISION]', 'pip:PACKAGE' or an adapter's folder; or the workdir of a run; with
      `endpoint` its name there.
    attribute: as of `measure`.
    output: `.jsonl` or `.jsonl.gz`; an interrupted file is continued, a complete one left alone.
    name: of a workdir: which of its models.
    coupled: one noise for all values of a template; False: independent samples.
    dtype: of a published decoder: 'float32' or 'bfloat16'.
    start: of a published decoder: begin every text with the end-of-text id.
    endpoint: address of an OpenAI-compatible endpoint, e.g. 'http://localhost:8000/v1', whose key
      the environment variable FAIRJAX_ENDPOINT_KEY holds. Its samples are independent.
    chat: ask a published decoder by its chat template; the endpoint's model is a chat model
      (docs/endpoints.md).
    log: called with lines of progress.
    **settings: fields of `fairjax.config.SampleConfig`: samples, max_new_tokens, temperature,
      sentence_end, batch_size, seed, rewordings (also those of the attribute's templates, as arm
      rewording). But for the last, a run's own are the defaults of its models. An endpoint takes
      the first three, and further fields of `fairjax.generate.endpoint.Endpoint` (instruction,
      body, concurrency, ...).

  Returns:
    The path, which `measure` takes.

  Raises:
    UserError: no model there, an unknown setting, or the file belongs to another model.
  """
  known, output, log = _attribute(attribute), _place('output', output), _log(log) or _silent
  model = model if endpoint else os.path.expanduser(_place('model', model))
  _plain(name=name, coupled=coupled, dtype=dtype, start=start, endpoint=endpoint, chat=chat)
  published = not _is_run(_place('model', model))
  kind, taken = ('an endpoint', ['chat']) if endpoint else (
    'a published decoder', ['dtype', 'start', 'chat']) if published else ('a run', ['name'])
  for option, given in (('name', name != BASELINE), ('dtype', dtype != 'float32'),
                        ('start', start), ('chat', chat)):
    if given and option not in taken:
      raise UserError(f'{option} is no option of {kind}, which {os.fspath(model)} is taken for: '
                      'leave it out')
  if endpoint:
    from fairjax.generate.endpoint import Endpoint, sample_endpoint
    ours = {field.name for field in dataclasses.fields(Endpoint)}
    asked = {name: settings.pop(name) for name in ours & settings.keys()}
    if 'instruction' in asked and not chat:
      raise UserError('instruction belongs to chat=True: give both or neither')
    for key in settings.keys() - {'samples', 'max_new_tokens', 'temperature'}:
      raise UserError(f'{key} is no setting of an endpoint')
    sample_endpoint(_settings(Endpoint(endpoint, os.fspath(model), chat=chat), asked), known,
                    output, _settings(SampleConfig(), settings), log=log)
  elif published:
    from fairjax.run.recorded import sample_pretrained
    asked_for = _settings(SampleConfig(batch_size=100), settings)
    sample_pretrained(
      model, known, output, asked_for, dtype=dtype, start=start, chat=chat, coupled=coupled,
      rewordings=asked_for.rewordings, log=log)
  else:
    from fairjax.run.results import open_run
    if not os.path.exists(model):
      raise UserError(f"{model}: there is no such folder or file: name the workdir of a run, or a "
                      "published decoder (a folder, FILE.gguf, 'hf:ORG/NAME', 'pip:PACKAGE')")
    run = open_run(model, log=log)
    own = dataclasses.replace(run.config.sample, rewordings=False)
    run.generate(run.find_model(name), output, attribute=known, coupled=coupled,
                 sample=_settings(own, settings))
  return output


def _is_run(model: pathlib.Path) -> bool:
  """Whether it is taken for the workdir of a run, not for a published decoder."""
  try:
    return 'config' in json.loads((model / 'config.json').read_text(encoding='utf-8'))
  except (OSError, ValueError, TypeError):
    return not model.exists() and not os.fspath(model).startswith(('hf:', 'pip:'))


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class RunResult:
  """A finished run: its models, what they wrote and what was measured.

  Attributes:
    verdict: bias of the baseline with its floor, and the best debiased model, a line each.
    best: name of that model; None: none is fairer and keeps its relevance.
    page: the report, `index.html`.
  """

  verdict: str
  best: str | None
  page: pathlib.Path
  _job: 'Job'

  def result(self, model: str = BASELINE) -> Result:
    """The measures of one model with its texts and scores.

    Raises:
      UserError: no such model.
    """
    found = self._job.find_model(model)
    row = self._job.row(found)
    generations = read_generations(self._job.records(found), self._job.attribute, empty='keep')
    folder = self._job.scores_folder(found, heldout=False)
    return Result(row.measures, generations, stored_scores(generations, row.measures, folder),
                  row.name)

  def to_frame(self, table: str = 'models') -> 'DataFrame':
    """The models, or how they were trained, as a pandas data frame.

    Args:
      table: 'models': I.F. of a model by a scorer with floor and verdict, word perplexity, bits
        that a word tells about the value, KL of the next token between values; 'known': I.F. and
        G.F. of the baseline beside the closed form of a planted corpus, on held-out prefixes;
        'curves': the lines of `metrics.jsonl`, by stage and model.

    Raises:
      UserError: another table, or pandas is not installed.
    """
    tables = {'models': self._models, 'known': self._known, 'curves': self._curves}
    if table not in tables:
      raise unknown_name('table', table, tables)
    return _frame(tables[table]())

  def select(self, *, share: float, relevance: str | Sequence[str]) -> 'DataFrame':
    """The candidates, fairest first, and why the rule refuses one ('' where it does not).

    Args:
      share: of the baseline's relevance that a model must keep, in (0, 1].
      relevance: 'semantic_similarity', 'semantic_similarity_c', 'distinct_word_divergence' or
        'next_token_divergence', or several of them.

    Raises:
      UserError: nothing to select from, or an unknown measure.
    """
    found = select_model(
      self._job.rows(), share=_typed('share', share, float), relevance=_listed(relevance))
    return _frame({'model': c['name'], 'relative_fairness': c['relative_fairness'],
                   'perplexity_change': c['perplexity_change'],
                   'kept': min(r['kept'] for r in c['relevance'].values()),
                   'refused': '; '.join(c['refused'])} for c in found['candidates'])

  def _models(self) -> Iterator[dict[str, Any]]:
    for row in self._job.rows():
      words = row.content('distinct_word_divergence') or {}
      tokens = row.content('next_token_divergence') or {}
      for scorer in row.measures['scorers']:
        found = row.estimate(scorer, 'individual_fairness')
        yield {'model': row.name, 'method': row.method, 'weight': row.weight, 'scorer': scorer,
               'individual_fairness': found['value'], 'floor': found['null_p95'],
               'verdict': verdict(found), 'perplexity': (row.perplexity or {}).get('word'),
               'words': words.get('value'), 'words_floor': words.get('null_p95'),
               'kl': tokens.get('kl')}

  def _known(self) -> Iterator[dict[str, Any]]:
    if (known := self._job.known_bias()) is None:
      raise UserError(f'{self._job.workdir}: the bias of its corpus is not known')
    for model, measures in known.measures.items():
      for name in FAIRNESS:
        found = measures['scorers'][known.scorer][name]
        yield {'model': model, 'measure': name, 'value': found['value'],
               'floor': found['null_p95'], 'closed_form': getattr(known, name)}

  def _curves(self) -> Iterator[dict[str, Any]]:
    for stage, models in self._job.curves()[0].items():
      for model, lines in models.items():
        yield from ({'stage': stage, 'model': model, **line} for line in lines)

  def __repr__(self) -> str:
    return f'{self.verdict}\nopen: {self.page}'

  def export(self, output: Path, *, model: str | None = None, adapter: bool = False) -> None:
    """Writes a model as the published one came: config, tokenizer, safetensors, model card.

    A Transformer-XL becomes the folder that `fairjax models import` reads.

    Args:
      output: a folder that is not there yet.
      model: its name in the report; by default the best.
      adapter: write the adapter of LoRA, as PEFT reads it, instead of the whole model.

    Raises:
      UserError: no such model, or none is best and none is named; an adapter without LoRA.
    """
    from fairjax.run.export import export_folder, export_published
    if (name := model or self.best) is None:
      raise UserError('no model is fairer and keeps its relevance: name one, model=...')
    place = os.fspath(_place('output', output))
    if self._job.published or adapter:
      export_published(self._job, model=name, output=place, adapter=adapter)
    else:
      export_folder(self._job, model=name, output=place)


def run(
  config: Path, *, workdir: Path, fields: Mapping[str, Any] | None = None, log: Log | None = print,
) -> RunResult:
  """Trains, samples, measures and reports, as `fairjax run`; the same call continues a run.

  Args:
    config: a shipped config ('quickstart', 'tutorial', 'pretrained', ...) or a file, with its
      argument after a colon, e.g. 'tutorial:strength=0.5'.
    workdir: folder of the run.
    fields: config fields with their values, e.g. `{'debias.steps': 200}`.
    log: called with lines of progress.

  Raises:
    UserError: what is wrong with a file, a field, the devices or the workdir.
  """
  from fairjax.run.job import Job
  from fairjax.run.workdir import check_devices
  place, log = _place('workdir', workdir), _log(log) or _silent
  if not isinstance(fields or {}, Mapping) or not all(isinstance(n, str) for n in fields or {}):
    raise UserError(f"fields={fields!r:.60} is no mapping of names to values, as "
                    "{'debias.steps': 200}")
  loaded = load_config(os.fspath(_place('config', config)), {
    name: _override(value) for name, value in (fields or {}).items()})
  check_devices(loaded, place, until=None)
  job = Job(loaded, place, log=log)
  job.run()
  selection = read_report(job.workdir)['selection']
  return RunResult('\n'.join(job.ending()[:2]), selection and selection['best'],
                   job.workdir / 'report' / 'index.html', job)


def debias(
  model: Path, *, train: Path | Sequence[Path], workdir: Path, attribute: Path = 'country',
  lora: int = 0, seed: int = 0, chips: int = 0, fields: Mapping[str, Any] | None = None,
  log: Log | None = print,
) -> RunResult:
  """Fine-tunes a published decoder so that what it writes depends less on an attribute.

  Runs `configs/pretrained.py`: a control without the fairness term, variants of the three methods,
  samples, measures and the report. The same call continues an interrupted run.

  Args:
    model: a folder (config.json, safetensors, tokenizer.json), 'FILE.gguf',
      'hf:ORG/NAME[@REVISION]', 'pip:PACKAGE' or an adapter's folder (docs/exchange.md).
    train: text files with a document in each line.
    workdir: folder of the run.
    attribute: a built-in attribute ('country', 'name', 'occupation') or a YAML file.
    lora: rank of adapters; 0: all parameters are trained.
    seed: of everything random.
    chips: accelerators that share the parameters; 0: sizes for CPU cores.
    fields: as of `run`.
    log: called with lines of progress.

  Raises:
    UserError: what is wrong with a file, a field or the model.
  """
  texts = _listed(train or ())
  if not texts:
    raise UserError('train names no file: give text files with a document in each line')
  quoted = {'model': _quoted('model', model),
            'train': '+'.join(_quoted('train', text) for text in texts),
            'attribute': _quoted('attribute', attribute), 'lora': lora, 'seed': seed,
            'chips': chips}
  return run('pretrained:' + ','.join(f'{name}={value}' for name, value in quoted.items()),
             workdir=workdir, fields=fields, log=log)


def _override(value: Any) -> str:
  """The value of a field as the command line takes it."""
  value = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
  if isinstance(value, list | tuple):
    value = [os.fspath(v) if isinstance(v, os.PathLike) else
             v.item() if isinstance(v, np.generic) else v for v in value]
  return str(value)


def _quoted(name: str, path: Path) -> str:
  """As an argument of a config file."""
  text = os.fspath(path) if path == '' else os.fspath(_place(name, path))
  mark = "'" if '"' in text else '"'
  return f'{mark}{text}{mark}'


def _attribute(attribute: str | os.PathLike | Attribute) -> Attribute:
  return attribute if isinstance(attribute, Attribute) else load_attribute(
    _place('attribute', attribute))


def _listed(given: Any) -> list[Any]:
  """One or several, as a list."""
  one = isinstance(given, str | os.PathLike) or not isinstance(given, Iterable)
  return [given] if one else list(given)


def _log(log: Any) -> Log | None:
  """The function, or None."""
  if not (log is None or callable(log)):
    raise UserError(f'log={log!r:.60} is no function that takes a line')
  return log


def _silent(line: str) -> None:
  """Logs nothing; by its name a result can be pickled."""


def _place(name: str, path: Path) -> pathlib.Path:
  """The path that an option gives."""
  if not isinstance(path, str | os.PathLike) or not os.fspath(path) or '://' in os.fspath(path):
    raise UserError(f'{name}={path!r:.60} is no path of a file or folder' + (
      ': mount the bucket (gcsfuse) and name its folder' * ('://' in str(path))))
  return pathlib.Path(os.path.expanduser(path))


_KINDS = {'seed': int} | dict.fromkeys(
  ('repair', 'coupled', 'start', 'chat'), bool)
"""Types of options; the others are texts."""


def _plain(**options: Any) -> dict[str, Any]:
  """The options, each of its type; numbers of NumPy become Python's."""
  return {name: _typed(name, value, _KINDS.get(name, str)) for name, value in options.items()}


def _typed(name: str, value: Any, kind: type) -> Any:
  value = value.item() if isinstance(value, np.generic) else value
  if type(value) is not kind and not (kind is float and type(value) is int):
    raise UserError(f'{name}={value!r:.60} must be {kind.__name__}')
  return value


def _settings(base: _Settings, changes: Mapping[str, Any]) -> _Settings:
  """The settings with changes, each checked."""
  fields = {field.name: field for field in dataclasses.fields(base)
            if field.name != 'heldout_prefixes'}  # which a run alone samples
  found = {}
  for name, value in changes.items():
    if name not in fields:
      raise unknown_name('setting', name, fields)
    kind: Any = fields[name].type
    found[name] = _typed(name, value, kind) if kind in (bool, int, float, str) else value
    if wrong := limit_error(fields[name], found[name]):
      raise UserError(wrong)
  return dataclasses.replace(base, **found)


def _columns(head: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]
             ) -> Iterator[dict[str, Any]]:
  """Rows of a table that is stored by columns; a pair of values becomes two columns."""
  for row in zip(*columns.values(), strict=True):
    cells = dict(zip(columns, row, strict=True))
    first, second = cells.pop('values')
    yield {**head, 'first': first, 'second': second, **cells}


def _frame(rows: Any) -> 'DataFrame':
  try:
    from pandas import DataFrame
  except ImportError:
    raise UserError('to_frame needs pandas, which is not installed: pip install pandas') from None
  return DataFrame(list(rows))
