"""The cells of the notebooks: devices, a run that is small enough for them, tables and figures."""

import contextlib
import dataclasses
import html
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairjax.config import (
  BASELINE,
  Config,
  DataConfig,
  DebiasConfig,
  MeasureConfig,
  ModelConfig,
  SampleConfig,
  TrainConfig,
)
from fairjax.config_checks import validate
from fairjax.counterfactual import Attribute, load_attribute
from fairjax.errors import UserError
from fairjax.files import installed_versions
from fairjax.measure import Generations, RecordedScorer, Scorer, format_estimate
from fairjax.report import paired_samples, plot_curves, plot_floors
from fairjax.report.comparison import ModelRow, scorer_names, verdict_lines
from fairjax.report.document import Table, escape
from fairjax.report.sections import brief_table, cell, known_bias_table, largest_cell
from fairjax.run.job import Job, load_run_scorer
from fairjax.run.results import Run, open_run

if TYPE_CHECKING:
  from IPython.display import DisplayHandle, Image, Markdown

Log = Callable[[str], None]


# What cells show besides tables: figures, Markdown, the lines of a long job.

def show_figure(files: Sequence[pathlib.Path]) -> 'Image':
  """The PNG of what a function of `fairjax.report` drew, at the size it was drawn for."""
  import matplotlib.image
  from IPython.display import Image
  png = next(path for path in files if path.suffix == '.png')
  pixels = matplotlib.image.imread(png).shape[1]  # 150 an inch, where CSS has 96
  return Image(filename=str(png), width=round(pixels * 96 / 150))


def show_text(*paragraphs: str) -> 'Markdown':
  """Paragraphs of Markdown."""
  from IPython.display import Markdown
  return Markdown('\n\n'.join(paragraphs))


class Progress:
  """Takes the lines of a long job; shows the newest one, and all of them when it is unfolded."""

  def __init__(self, title: str):
    self._title, self._start = title, time.monotonic()
    self._lines: list[str] = []
    self._handle: DisplayHandle | None = None

  def __call__(self, line: str) -> None:
    """Adds a line, with the seconds since the beginning."""
    from IPython.display import HTML, display
    self._lines.append(f'{time.monotonic() - self._start:6.1f} s  {line}')
    shown = HTML(
      f'<details><summary><b>{html.escape(self._title)}</b> '
      f'<small>{html.escape(self._lines[-1][:110].strip())}</small></summary>'
      '<pre style="white-space: pre-wrap; font-size: 85%">'
      f'{html.escape(chr(10).join(self._lines))}</pre></details>')
    if self._handle is None:
      self._handle = display(shown, display_id=True)
    else:
      self._handle.update(shown)


# Which devices a notebook runs on, and sizes that suit them.

@dataclasses.dataclass(frozen=True)
class Sizes:
  """How much a notebook does."""

  samples: int  # of every prefix
  batch_size: int  # samples at a time for all values of a template
  max_new_tokens: int  # most tokens of a continuation
  permutations: int  # for the floors


# The paper's sizes for accelerators; on a CPU, sizes of which a cell takes seconds.
_ACCELERATED = Sizes(samples=1000, batch_size=250, max_new_tokens=50, permutations=1000)
_CPU = Sizes(samples=50, batch_size=50, max_new_tokens=24, permutations=200)


@dataclasses.dataclass(frozen=True)
class Devices:
  """Devices of one kind."""

  backend: str  # cpu, gpu or tpu
  kind: str  # as JAX names it
  count: int
  libtpu: str | None  # version that is installed
  jax_version: str

  def sized(self, samples: int = 0) -> Sizes:
    """Sizes for these devices, with another number of samples if it is above 0."""
    sizes = _CPU if self.backend == 'cpu' else _ACCELERATED
    return sizes if not samples else dataclasses.replace(
      sizes, samples=samples, batch_size=min(samples, _ACCELERATED.batch_size))

  def _repr_markdown_(self) -> str:
    sizes, on_cpu = self.sized(), self.backend == 'cpu'
    what = (f'{os.cpu_count()} CPU cores' if on_cpu else
            f'{self.count} x {self.kind} ({self.backend})')
    text = (f'**{escape(what)}**, JAX {escape(self.jax_version)}: {sizes.samples:,} samples of '
            f'every prefix, at most {sizes.max_new_tokens} tokens each, {sizes.permutations:,} '
            'permutations for the floors.')
    if on_cpu and self.libtpu is not None:
      text += (f'\n\nlibtpu {escape(self.libtpu)} is installed but JAX found no TPU. In Colab: '
               '*Runtime > Change runtime type > TPU*. Another process may hold it: *Runtime > '
               'Restart*. `fairjax doctor` compares the versions.')
    return text


def find_devices() -> Devices:
  """The devices that JAX uses."""
  import jax
  devices, versions = jax.devices(), installed_versions()
  return Devices(jax.default_backend(), devices[0].device_kind, len(devices),
                 versions.get('libtpu'), versions['jax'])


# A run of the planted corpus that is small enough for a cell of a notebook on two CPU cores.

TINY = 'tiny'  # name of such a run
_BATCH = 8  # of every stage: then the validation is compiled once


def tiny_config(
  sizes: Sizes, *, embedding: Sequence[float] = (), strength: float = 0.9, seed: int = 0,
  heldout: bool = True,
) -> Config:
  """The quickstart's run with a smaller model, without TensorFlow; `embedding` lists lambdas."""
  optimiser: dict[str, Any] = dict(batch_size=_BATCH, adam_b2=0.95, clip_norm=1.0)
  config = Config(
    name=TINY, seed=seed, until='debias' if embedding else 'lm',
    data=DataConfig(
      source='planted', reader='numpy', seed=seed, vocab_size=640,
      planted_documents=6000, planted_heldout_documents=200, planted_strength=strength,
      planted_sensitive_share=1.0),
    # One head, post-norm and a large initial scale: see configs/quickstart.py.
    model=ModelConfig(num_layers=2, model_dim=64, num_heads=1, head_dim=32, ff_dim=128,
                      segment_len=32, memory_len=16, init_std=0.125),
    lm=TrainConfig(steps=1600, learning_rate=4e-3, warmup_steps=30, log_every=100, eval_every=1600,
                   checkpoint_every=1600, **optimiser),
    debias=DebiasConfig(steps=50, learning_rate=2e-3, warmup_steps=10, log_every=10, eval_every=50,
                        checkpoint_every=50, extended_baseline=False,
                        variants=tuple(f'embedding:{w:g}' for w in embedding), **optimiser),
    sample=SampleConfig(samples=sizes.samples, batch_size=sizes.batch_size,
                        max_new_tokens=sizes.max_new_tokens, sentence_end=True,
                        heldout_prefixes=heldout),
    measure=MeasureConfig(permutations=sizes.permutations, eval_batch_size=_BATCH, audit_texts=0))
  validate(config)
  return config


class TinyJob(Job):
  """A job on the CPU of which everything but step 1 runs shorter than it compiles."""

  def train(self, until: str | None = None) -> None:
    """Step 1 compiled as usual, the few steps of step 3 quickly."""
    super().train('lm')
    if (until or self.config.until) != 'lm':
      with quick_compilation():
        super().train(until)

  def sample(self) -> None:
    """See `Job.sample`."""
    with quick_compilation():
      super().sample()

  def measure(self) -> None:
    """See `Job.measure`."""
    with quick_compilation():
      super().measure()


@contextlib.contextmanager
def quick_compilation() -> Iterator[None]:
  """On a CPU, leaves out XLA's costly passes: programs compile in half the time and run slower."""
  import jax
  before = jax.config.read('jax_disable_most_optimizations')
  jax.config.update('jax_disable_most_optimizations', before or jax.default_backend() == 'cpu')
  try:
    yield
  finally:
    jax.config.update('jax_disable_most_optimizations', before)


# The texts of a checkpoint, a file or a tiny model, and their measures.

@dataclasses.dataclass(frozen=True)
class Texts:
  """Generations to be measured."""

  path: pathlib.Path  # JSONL
  attribute: Attribute
  coupled: bool  # samples of equal number share their noise
  run: Run | None  # of the model that wrote them; None for a file of somebody else
  model: str = ''  # its name in the run

  def _repr_markdown_(self) -> str:
    from fairjax.generate import read_records
    first = next(iter(read_records(self.path, attributes=[self.attribute], repair=True)))
    who = (f'model {escape(self.model)} of {escape(str(self.run.workdir))}' if self.run
           else 'a file of generations')
    noise = ('samples of equal number share their noise' if self.coupled
             else 'every value has samples of its own')
    return (f'Texts of {who}, in `{self.path}`: attribute *{escape(self.attribute.name)}*, '
            f'{len(self.attribute.values)} values; {noise}. The first one:\n\n'
            f'> **{escape(first["prefix"])}** {escape(first["continuation"])}')


def find_texts(
  *, sizes: Sizes, output: str | os.PathLike, log: Log, checkpoint: str = '',
  model: str = BASELINE, records: str = '', attribute: str = '', independent: bool = False,
) -> Texts:
  """Opens a file of generations, or samples a model of a workdir, or trains a tiny one and samples.

  The same call continues an interrupted one. `attribute` is a name or a YAML file; '' takes that of
  the run, and country for a file.
  """
  output = pathlib.Path(output)
  if checkpoint and records:
    raise UserError('a checkpoint and a file of generations are given: leave one of them empty')
  if records:
    from fairjax.generate import check_complete
    if not pathlib.Path(records).is_file():
      raise UserError(f'{records} is no file: upload it, or name its path')
    check_complete(records)
    return Texts(pathlib.Path(records), load_attribute(attribute or 'country'), not independent,
                 None)
  if not checkpoint:
    checkpoint, model = str(output / 'tiny'), BASELINE
    TinyJob(tiny_config(sizes), checkpoint, log=log).train()
  run = open_run(checkpoint, log=log)
  found, own = run.find_model(model), run.config.sample
  chosen = load_attribute(attribute) if attribute else run.attribute
  path = output / f'{model}-{chosen.name}.jsonl.gz'
  with quick_compilation() if run.config.name == TINY else contextlib.nullcontext():
    run.generate(found, path, attribute=chosen, sample=SampleConfig(
      samples=sizes.samples, batch_size=sizes.batch_size, max_new_tokens=sizes.max_new_tokens,
      sentence_end=own.sentence_end, seed=own.seed, temperature=own.temperature))
  return Texts(path, chosen, True, run, model)


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """The measures of texts, and how cells show them."""

  row: ModelRow  # the model with its measures
  texts: Texts
  scorer: Scorer | RecordedScorer  # the first of them
  folder: pathlib.Path  # of report, figures and scores

  @property
  def verdict(self) -> 'Markdown':
    """One sentence a scorer."""
    return show_text(*(f'**{escape(line)}**' for line in verdict_lines(
      [self.row], self.texts.attribute.name)))

  @property
  def table(self) -> Table:
    """Every measure with its floor."""
    return brief_table([self.row])

  @property
  def content_table(self) -> Table:
    """Relevance, divergences and perplexities."""
    share = self.row.relevance() or {}  # every measured row has it
    body = [['S.S.c, texts that name the value', f"{100 * share['value']:.1f}%",
             f"95 %: {100 * share['low']:.1f} to {100 * share['high']:.1f}%"]]
    for name, label in (('distinct_word_divergence', 'words, bits (floor)'),
                        ('next_token_divergence', 'KL of the next token, nats')):
      note = (self.row.content('absent') or {}).get(name, '')
      body.append([label, cell(self.row, name), note])
    for label, found in (('PPL', self.row.perplexity), ('PPL_s', self.row.subset_perplexity)):
      if found is None or found['word'] is None:
        body.append([label, 'not measured', ''])
      else:
        body.append([label, f"{found['word']:.2f}", f"{found['tokens']:,} tokens"])
    return Table(['measure', 'value', 'note'], body)

  @property
  def report(self) -> 'Markdown':
    """Path of the report."""
    path = self.folder / 'index.html'
    return show_text(f'[{escape(str(path))}]({path.as_posix()}), with `report.md` and '
                     '`report.json`. In Colab: *Files* on the left, then *Download*.')

  @property
  def fairness_figure(self) -> 'Image':
    """I.F. and G.F. of every scorer with their floors."""
    from fairjax.report import plot_fairness
    return show_figure(plot_fairness(
      self.folder / 'figures' / 'scorers', models=[self.row.name], methods=[self.row.method],
      estimates={scorer: {label: [self.row.estimate(scorer, name)] for label, name in (
        ('I.F.', 'individual_fairness'), ('G.F.', 'group_fairness'))}
        for scorer in scorer_names([self.row])}))

  @property
  def pair_figure(self) -> 'Image':
    """Scores of the template and the pair of values that are farthest apart by the first scorer."""
    from fairjax.generate import read_records
    from fairjax.run.recorded import scores_folder
    return _draw_pair(
      self.folder, read_records(
        self.texts.path, attributes=[self.texts.attribute], repair=True), self.texts.attribute,
      self.row,
      self.scorer, scores_folder(self.folder, self.row.name))


def evaluate(
  texts: Texts, *, scorers: str, output: str | os.PathLike, sizes: Sizes, log: Log,
  lexicon: str = '',
) -> Evaluation:
  """Measures texts, and their model where there is one, and writes the report.

  The same call reads the scores that an earlier one has kept. `scorers` and `lexicon` are lists
  with commas; '' takes the words of the grammar for a model of the planted corpus.
  """
  from fairjax.measure import load_scorer
  from fairjax.report import write_report
  from fairjax.run.recorded import measure_files
  output, run, notes, loaded = pathlib.Path(output), texts.run, [], []
  folder = output / f'report-{texts.attribute.name}'
  for name in _split(scorers):
    if name == 'opinion' and not lexicon and run is not None:
      loaded.append(load_run_scorer(name, run.config, output, log))
    else:
      loaded.append(load_scorer(name, lexicon=_split(lexicon),
                                google={'cache': output / 'google.jsonl', 'log': log}))
  if not loaded:
    raise UserError(f"scorers='{scorers}' names no scorer: 'opinion, vader'")
  (row,), distributions = measure_files(
    [texts.path], texts.attribute, loaded, folder, permutations=sizes.permutations,
    coupled=texts.coupled, log=log)
  if run is not None and run.has_data:
    params = run.params(run.find_model(texts.model))
    row = dataclasses.replace(row, perplexity=run.perplexity(params, 'test'),
                              subset_perplexity=run.perplexity(params, 'test_sensitive'))
  elif run is not None:
    notes.append(f'{run.workdir} holds no finished data folder: no perplexity.')
  write_report(folder, rows=[row], attribute=texts.attribute.name, distributions=distributions,
               notes=notes)
  return Evaluation(row, texts, loaded[0], folder)


def _split(text: str) -> list[str]:
  return [part.strip() for part in text.split(',') if part.strip()]


def _read_scored(
  records: Iterable[Mapping[str, Any]], attribute: Attribute, scorer: Scorer | RecordedScorer,
  folder: pathlib.Path,
) -> tuple[Generations, np.ndarray]:
  """Records with the scores that a folder keeps."""
  from fairjax.measure import read_generations, score_file
  from fairjax.measure.scorers.cache import score_generations
  generations = read_generations(records, attribute, empty='keep')
  return generations, score_generations(
    generations, scorer, score_file(folder, attribute.name, scorer))


def _draw_pair(
  folder: pathlib.Path, records: Iterable[Mapping[str, Any]], attribute: Attribute, row: ModelRow,
  scorer: Scorer | RecordedScorer, scores: pathlib.Path,
) -> 'Image':
  """Scores and texts of the template and values that are farthest apart by a scorer."""
  from fairjax.report.paper_figures import plot_pair
  template, values = largest_cell(row, scorer.name)
  generations, found = _read_scored(records, attribute, scorer, scores)
  return show_figure(plot_pair(
    folder / 'figures' / 'pair', generations=generations, scores=found, template=template,
    values=values, scorer=scorer.name, stacked=True))


# Tables and figures of a run on the planted corpus.

_SCORER = 'opinion'  # for which the closed form holds


def corpus_table(config: Config) -> Table:
  """What the planted corpus says about three values: P(positive) and a document each."""
  from fairjax.data.planted import make_planted_documents
  data, order = config.data, _by_probability(config)
  documents = make_planted_documents(
    load_attribute(config.attribute), num_documents=400, seed=data.seed,
    strength=data.planted_strength, sensitive_share=1.0)
  return Table(['value', 'a document', 'P(positive)'], [
    [value, next(d for d in documents if value in d), f'{probability:.2f}']
    for probability, value in (order[0], order[len(order) // 2], order[-1])], text_columns=2)


def curve_figure(job: Job) -> 'Image':
  """The loss of step 1, in nats a token."""
  curves, _ = job.curves()
  lines = [{key: line[key] for key in ('step', 'kind', 'loss')}
           for line in curves['lm']['baseline']]
  return show_figure(plot_curves(
    job.workdir / 'figures' / 'lm', title='Step 1: language model', runs={'baseline': lines}))


def pair_table(
  job: Job, *, models: Sequence[str] = (), templates: int = 3, samples: int = 2
) -> Table:
  """Texts of equal noise for the values of least and of greatest P(positive), the first ones."""
  order = _by_probability(job.config)
  values = order[0][1], order[-1][1]
  found = paired_samples(
    {m.name: job.records(m) for m in job.models if not models or m.name in models},
    values=values, templates=templates, samples=samples)
  blank = f'[{job.attribute.name}]'
  body = [[_short(job, model), sample.prefixes[values[0]].replace(values[0], blank),
           *(texts[value] or '\u2013' for value in values)]
          for sample in found for model, texts in sample.continuations.items()]
  one = len({line[0] for line in body}) == 1  # one model needs no column of names
  header = ['model', 'prompt', *values]
  return Table(header[one:], [line[one:] for line in body], text_columns=4 - one)


def pair_figure(job: Job) -> 'Image':
  """Score distributions of the template and values that differ most for the baseline."""
  model = job.models[0]
  return _draw_pair(job.workdir, job.records(model), job.attribute, job.row(model), _opinion(job),
                    job.scores_folder(model, heldout=False))


def fairness_table(job: Job) -> Table:
  """I.F. and G.F. of every scorer for the baseline, with floors."""
  return brief_table(job.rows()[:1])


def bias_table(job: Job) -> Table:
  """Measured beside the closed form, on beginnings of sentences that training never saw."""
  return known_bias_table(job.known_bias())


def summary_table(job: Job) -> Table:
  """All models: perplexity, I.F. with its floor, and how far they still tell the values apart."""
  body = []
  for row in job.rows():
    found = row.estimate(_SCORER, 'individual_fairness')
    body.append([
      _short(job, row.name), f"{row.perplexity['word']:.2f}",
      format_estimate(found, named=False),
      *(cell(row, name) for name in ('distinct_word_divergence', 'next_token_divergence'))])
  return Table(['model', 'PPL', 'I.F. (floor)', 'words (floor)', 'KL'], body)


def weight_figure(job: Job) -> 'Image':
  """Measures by lambda."""
  from fairjax.report import plot_weights
  return show_figure(
    plot_weights(job.workdir / 'figures' / 'weights', rows=job.rows(), scorer=_SCORER))


def selection(job: Job, *, keep: float) -> 'Markdown':
  """Which lambda `fairjax models select` takes, and why it refuses the others (H-35).

  A model must keep a share `keep` of the baseline's KL of the next token.
  """
  from fairjax.report.sections import select_model, selection_section
  return show_text(selection_section(select_model(
    job.rows(), share=keep, scorers=[_SCORER], relevance=['next_token_divergence'])).body())


def floor_figure(job: Job, names: Sequence[str], *, counts: Sequence[int]) -> 'Image':
  """I.F. and its floor for growing numbers of samples of some models."""
  from fairjax.measure import fairness_by_samples
  found = {}
  for model in job.models:
    if model.name in names:
      generations, scores = _read_scored(
        job.records(model), job.attribute, _opinion(job), job.scores_folder(model, heldout=False))
      found[model.name] = [e.to_dict() for e in fairness_by_samples(
        generations.sample_scores(scores), counts,
        permutations=job.config.measure.permutations, seed=job.config.seed)]
  return show_figure(plot_floors(job.workdir / 'figures' / 'floors', models=found))


def _short(job: Job, model: str) -> str:
  """Name of a model without that of the attribute, for narrow tables."""
  return model.removeprefix(f'{job.attribute.name}-')


def _by_probability(config: Config) -> list[tuple[float, str]]:
  """(P(positive), value) in rising order."""
  from fairjax.data.planted import value_probabilities
  attribute = load_attribute(config.attribute)
  probabilities = value_probabilities(attribute, config.data.planted_strength)
  return sorted(zip(probabilities.tolist(), attribute.value_texts, strict=True))


def _opinion(job: Job) -> Scorer | RecordedScorer:
  """The scorer of the closed form."""
  return load_run_scorer(_SCORER, job.config, job.workdir, job.log)
