"""The evaluation notebook: texts of a checkpoint, a file or a tiny model, and their measures."""

import contextlib
import dataclasses
import html
import os
import pathlib
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fairjax.config import (
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
from fairjax.measure.estimates import format_estimate
from fairjax.report import paired_samples, plot_curves, plot_floors
from fairjax.report.comparison import ModelRow, scorer_names, verdict_lines
from fairjax.report.document import Table, escape
from fairjax.report.sections import brief_table, cell, known_bias_table, largest_cell
from fairjax.report.sections import cell as content_cell
from fairjax.run.checkpoint_model import Checkpoint, open_checkpoint
from fairjax.run.job import Job, load_run_scorer

# Objects that a notebook shows as what they are: a figure, Markdown, one line of progress.

_DPI = 150  # of the figures' PNG files
_SCREEN = 96  # CSS pixels an inch


class Figure:
  """A figure that was written to a file, shown at the size it was drawn for."""

  def __init__(self, files: Sequence[str | os.PathLike]):
    """Takes what a function of `fairjax.report` returns: the PNG and the SVG file."""
    self.path = next(p for p in map(pathlib.Path, files) if p.suffix == '.png')

  def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
    """The PNG file, and its width in CSS pixels."""
    data = self.path.read_bytes()
    (width,) = struct.unpack('>I', data[16:20])  # of the IHDR chunk, the first one
    return data, {'width': round(width * _SCREEN / _DPI)}

  def __repr__(self) -> str:
    return f'Figure({str(self.path)!r})'


class Words:
  """Paragraphs of Markdown."""

  def __init__(self, *paragraphs: str):
    """Takes Markdown; texts of others must be escaped already."""
    self.text = '\n\n'.join(paragraphs)

  def _repr_markdown_(self) -> str:
    return self.text

  def __repr__(self) -> str:
    return self.text


class Progress:
  """Takes the lines of a long job; shows the newest one, and all of them when it is unfolded.

  Args:
    title: what is being done.
  """

  def __init__(self, title: str):
    self._title, self._start = title, time.monotonic()
    self._lines: list[str] = []
    self._handle: Any = None

  def __call__(self, line: str) -> None:
    """Adds a line, with the seconds since the beginning."""
    from IPython.display import display
    self._lines.append(f'{time.monotonic() - self._start:6.1f} s  {line}')
    if self._handle is None:
      self._handle = display(self, display_id=True)
    else:
      self._handle.update(self)

  def _repr_html_(self) -> str:
    newest = html.escape(self._lines[-1][:110].strip()) if self._lines else ''
    lines = html.escape('\n'.join(self._lines))
    return (f'<details><summary><b>{html.escape(self._title)}</b> <small>{newest}</small></summary>'
            f'<pre style="white-space: pre-wrap; font-size: 85%">{lines}</pre></details>')

  def __repr__(self) -> str:
    return '\n'.join([self._title, *self._lines])


# Which devices a notebook runs on, and sizes that suit them.

@dataclasses.dataclass(frozen=True)
class Sizes:
  """How much a notebook does; every field can be set there.

  Attributes:
    samples: of every prefix.
    batch_size: samples at a time for all values of a template.
    max_new_tokens: most tokens of a continuation.
    permutations: for the floors.
  """

  samples: int
  batch_size: int
  max_new_tokens: int
  permutations: int


# The paper's sizes where there is an accelerator; on a CPU what ends in seconds.
_ACCELERATED = Sizes(samples=1000, batch_size=250, max_new_tokens=50, permutations=1000)
_CPU = Sizes(samples=50, batch_size=50, max_new_tokens=24, permutations=200)


class Devices(Words):
  """Devices in words, with `sizes`."""

  def __init__(self, sizes: Sizes, *paragraphs: str):
    super().__init__(*paragraphs)
    self.sizes = sizes

  def sized(self, samples: int = 0) -> Sizes:
    """The sizes, with another number of samples if it is above 0."""
    if not samples:
      return self.sizes
    return dataclasses.replace(
      self.sizes, samples=samples, batch_size=min(samples, _ACCELERATED.batch_size))


def find_devices() -> Devices:
  """Finds the devices that JAX uses, picks sizes, and says both."""
  import jax
  devices, versions = jax.devices(), installed_versions()
  return describe(jax.default_backend(), devices[0].device_kind, len(devices),
                  libtpu=versions.get('libtpu'), jax_version=versions['jax'])


def describe(
  backend: str, kind: str, count: int, *, libtpu: str | None, jax_version: str
) -> Devices:
  """What `find_devices` says about the devices of one kind.

  Args:
    backend: cpu, gpu or tpu.
    kind: as JAX names it.
    count: how many.
    libtpu: version that is installed, or None.
    jax_version: of JAX.
  """
  sizes = _CPU if backend == 'cpu' else _ACCELERATED
  what = f'{os.cpu_count()} CPU cores' if backend == 'cpu' else f'{count} x {kind} ({backend})'
  lines = [f'**{escape(what)}**, JAX {escape(jax_version)}: {sizes.samples:,} samples of every '
           f'prefix, at most {sizes.max_new_tokens} tokens each, {sizes.permutations:,} '
           'permutations for the floors.']
  if backend == 'cpu' and libtpu is not None:
    lines.append(f'libtpu {escape(libtpu)} is installed but JAX found no TPU. In Colab: *Runtime > '
                 'Change runtime type > TPU*. Another process may hold it: *Runtime > Restart*. '
                 '`fairjax doctor` compares the versions.')
  return Devices(sizes, *lines)


# A run of the planted corpus that is small enough for a cell of a notebook on two CPU cores.

TINY = 'tiny'  # name of such a run
_BATCH = 8  # of every stage: then the validation is compiled once


def tiny_config(
  sizes: Sizes, *, embedding: Sequence[float] = (), strength: float = 0.9, seed: int = 0,
  heldout: bool = True,
) -> Config:
  """The quickstart's run with a model of 64 instead of 128 dimensions, without TensorFlow.

  Args:
    sizes: of the sampling and the floors.
    embedding: lambda of each debiased model; none: the run ends with the baseline.
    strength: range of P(positive | value) in the corpus; 0 plants no bias.
    seed: of the run and its corpus.
    heldout: continue beginnings of sentences that training never saw, too.
  """
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


Log = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Texts:
  """Generations to be measured.

  Attributes:
    path: JSONL.
    attribute: of the texts.
    coupled: samples of equal number share their noise.
    checkpoint: the model that wrote them; None for a file of somebody else.
  """

  path: pathlib.Path
  attribute: Attribute
  coupled: bool
  checkpoint: Checkpoint | None

  def _repr_markdown_(self) -> str:
    from fairjax.generate import read_records
    first = next(iter(read_records(self.path, repair=True)))
    who = (f'model {escape(self.checkpoint.name)} of {escape(str(self.checkpoint.workdir))}'
           if self.checkpoint else 'a file of generations')
    noise = ('samples of equal number share their noise' if self.coupled
             else 'every value has samples of its own')
    return (f'Texts of {who}, in `{self.path}`: attribute *{escape(self.attribute.name)}*, '
            f'{len(self.attribute.values)} values; {noise}. The first one:\n\n'
            f'> **{escape(first["prefix"])}** {escape(first["continuation"])}')


def find_texts(
  *, sizes: Sizes, output: str | os.PathLike, log: Log, checkpoint: str = '',
  model: str = 'baseline', records: str = '', attribute: str = '', independent: bool = False,
) -> Texts:
  """Opens a file of generations, or samples a checkpoint, or trains and samples a tiny model.

  The same call continues what was interrupted.

  Args:
    sizes: of the sampling.
    output: folder for what is written.
    log: gets one line at a time.
    checkpoint: workdir of a run, or ''.
    model: of that workdir.
    records: JSONL of generations, or ''.
    attribute: name or YAML file; '' takes that of the checkpoint's run (of a file: country).
    independent: of a file: the samples of different values were drawn independently.

  Raises:
    UserError: both are given, or one cannot be used.
  """
  if checkpoint and records:
    raise UserError('a checkpoint and a file of generations are given: leave one of them empty')
  if records:
    from fairjax.generate import check_complete
    if not pathlib.Path(records).is_file():
      raise UserError(f'{records} is no file: upload it, or name where it lies')
    check_complete(records)
    return Texts(pathlib.Path(records), load_attribute(attribute or 'country'), not independent,
                 None)
  if not checkpoint:
    checkpoint, model = str(_train_tiny(pathlib.Path(output) / 'tiny', sizes, log)), 'baseline'
  opened = open_checkpoint(checkpoint, model, log=log)
  chosen = load_attribute(attribute) if attribute else opened.attribute
  sample = SampleConfig(
    samples=sizes.samples, batch_size=sizes.batch_size, max_new_tokens=sizes.max_new_tokens,
    sentence_end=opened.config.sample.sentence_end, seed=opened.config.sample.seed,
    temperature=opened.config.sample.temperature)
  with quick_compilation() if opened.config.name == TINY else contextlib.nullcontext():
    path = opened.sample(pathlib.Path(output) / f'{model}-{chosen.name}.jsonl.gz', sample,
                         attribute=chosen)
  return Texts(path, chosen, True, opened)


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """What was measured, and how it is shown.

  Attributes:
    row: the model with its measures.
    texts: of what.
    scorer: the first of them.
    folder: of report, figures and scores.
  """

  row: ModelRow
  texts: Texts
  scorer: Any
  folder: pathlib.Path

  @property
  def verdict(self) -> Words:
    """One sentence a scorer."""
    return Words(*(f'**{escape(line)}**' for line in verdict_lines(
      [self.row], self.texts.attribute.name)))

  @property
  def table(self) -> Table:
    """Every measure with its floor."""
    return brief_table([self.row])

  @property
  def content_table(self) -> Table:
    """What beside sentiment was measured: relevance, divergences, perplexities."""
    share = self.row.relevance() or {}  # every measured row has it
    body = [['S.S.c, texts that name the value', f"{100 * share['value']:.1f}%",
             f"95 %: {100 * share['low']:.1f} to {100 * share['high']:.1f}%"]]
    for name, label in (('distinct_word_divergence', 'words, bits (floor)'),
                        ('next_token_divergence', 'KL of the next token, nats')):
      note = (self.row.content('absent') or {}).get(name, '')
      body.append([label, content_cell(self.row, name), note])
    for label, found in (('PPL', self.row.perplexity), ('PPL_s', self.row.subset_perplexity)):
      if found is None or found['word'] is None:
        body.append([label, 'not measured', ''])
      else:
        body.append([label, f"{found['word']:.2f}", f"{found['tokens']:,} tokens"])
    return Table(['measure', 'value', 'note'], body)

  @property
  def report(self) -> Words:
    """Where the report lies."""
    path = self.folder / 'index.html'
    return Words(f'[{escape(str(path))}]({path.as_posix()}) (also `report.md` and `report.json` '
                 'beside it). In Colab: *Files* on the left, then *Download*.')

  @property
  def fairness_figure(self) -> Figure:
    """I.F. and G.F. of every scorer with their floors."""
    from fairjax.report import plot_fairness
    return Figure(plot_fairness(
      self.folder / 'figures' / 'scorers', models=[self.row.name], methods=[self.row.method],
      estimates={scorer: {label: [self.row.estimate(scorer, name)] for label, name in (
        ('I.F.', 'individual_fairness'), ('G.F.', 'group_fairness'))}
        for scorer in scorer_names([self.row])}))

  @property
  def pair_figure(self) -> Figure:
    """Scores of the template and the pair of values that are farthest apart by the first scorer."""
    from fairjax.generate import read_records
    from fairjax.measure import read_generations, score_file
    from fairjax.run.recorded import scores_folder
    generations = read_generations(
      read_records(self.texts.path, repair=True), self.texts.attribute, empty='keep')
    return draw_pair(
      self.folder / 'figures' / 'pair', generations, self.row, self.scorer,
      score_file(scores_folder(self.folder, self.row.name), self.texts.attribute.name,
                 self.scorer))


def evaluate(
  texts: Texts, *, scorers: str, output: str | os.PathLike, sizes: Sizes, log: Log,
  lexicon: str = '',
) -> Evaluation:
  """Measures texts, and their model where there is one, and writes the report.

  Scores are kept in `output`: the same call continues.

  Args:
    texts: of `find_texts`.
    scorers: names between commas, see `fairjax.measure.load_scorer`.
    output: folder of the report.
    sizes: `permutations` is used.
    log: gets one line at a time.
    lexicon: for the scorer `opinion`: its folder, or two files with a comma between; '' takes the
      words of the grammar where the model learned the planted corpus.

  Raises:
    UserError: a scorer lacks something, or records that cannot be used.
  """
  from fairjax.report import write_report
  from fairjax.run.recorded import measure_files
  folder = pathlib.Path(output) / f'report-{texts.attribute.name}'
  loaded = [_scorer(name.strip(), lexicon, texts.checkpoint, pathlib.Path(output), log)
            for name in scorers.split(',') if name.strip()]
  if not loaded:
    raise UserError(f"scorers='{scorers}' names no scorer: 'opinion, vader'")
  model = texts.checkpoint
  (row,), evidence = measure_files(
    [texts.path], texts.attribute, loaded, folder, permutations=sizes.permutations,
    coupled=texts.coupled, log=log)
  notes = []
  if model is not None and model.has_corpus:
    row = dataclasses.replace(row, perplexity=model.perplexity('test'),
                              subset_perplexity=model.perplexity('test_sensitive'))
  elif model is not None:
    notes.append(f'{model.workdir} holds no finished data folder: no perplexity.')
  write_report(folder, rows=[row], attribute=texts.attribute.name, evidence=evidence, notes=notes)
  return Evaluation(row, texts, loaded[0], folder)


def draw_pair(
  path: str | os.PathLike, generations: Any, row: ModelRow, scorer: Any,
  scores_path: str | os.PathLike,
) -> Figure:
  """Scores and texts of the cell of `generations` that is farthest apart by a scorer."""
  from fairjax.measure.scorers.cache import score_generations
  from fairjax.report.paper_figures import plot_pair
  template, values = largest_cell(row, scorer.name)
  return Figure(plot_pair(
    path, generations=generations, scores=score_generations(generations, scorer, scores_path),
    template=template, values=values, scorer=scorer.name, stacked=True))


def _scorer(
  name: str, lexicon: str, checkpoint: Checkpoint | None, output: pathlib.Path, log: Log
) -> Any:
  """A scorer by name; opinion words of the grammar for a model of the planted corpus."""
  if name == 'opinion' and not lexicon and checkpoint is not None:
    from fairjax.run.job import load_run_scorer
    return load_run_scorer(name, checkpoint.config, output, log)
  from fairjax.measure import load_scorer
  return load_scorer(name, lexicon=[part.strip() for part in lexicon.split(',') if part.strip()],
                     google={'cache': output / 'google.jsonl', 'log': log})


def _train_tiny(workdir: pathlib.Path, sizes: Sizes, log: Log) -> pathlib.Path:
  """Trains the tiny model of the planted corpus; a finished one is left alone."""
  TinyJob(tiny_config(sizes), workdir, log=log).train()
  return workdir


# What the notebooks on the planted corpus show of a run: small tables and figures.

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


def curve_figure(job: Job) -> Figure:
  """The loss of step 1, in nats a token."""
  curves, _ = job.curves()
  lines = [{key: line[key] for key in ('step', 'kind', 'loss')}
           for line in curves['lm']['baseline']]
  return Figure(plot_curves(job.workdir / 'figures' / 'lm', title='Step 1: language model',
                            runs={'baseline': lines}))


def pair_table(
  job: Job, *, models: Sequence[str] = (), templates: int = 3, samples: int = 2
) -> Table:
  """Texts of equal noise for the values of least and of greatest P(positive), side by side.

  Args:
    job: whose models were sampled.
    models: names; empty takes all.
    templates: how many, the first ones.
    samples: of each template, the first ones: nobody chose them by what they say.
  """
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


def pair_figure(job: Job) -> Figure:
  """Score distributions of the template and values that differ most for the baseline."""
  from fairjax.measure import read_generations, score_file
  model, row = job.models[0], job.rows()[0]
  scorer = _lesson_scorer(job)
  generations = read_generations(job.records(model), job.attribute, empty='keep')
  return draw_pair(
    job.workdir / 'figures' / 'pair', generations, row, scorer,
    score_file(job.scores_folder(model, heldout=False), job.attribute.name, scorer))


def fairness_table(job: Job) -> Table:
  """I.F. and G.F. of every scorer for the baseline, with floors."""
  return brief_table(job.rows()[:1])


def bias_table(job: Job) -> Table:
  """Measured beside the closed form, on beginnings of sentences that training never saw."""
  return known_bias_table(job.known_bias())


def summary_table(job: Job) -> Table:
  """All models: perplexity, I.F. with its floor, and whether they still heed the value."""
  body = []
  for row in job.rows():
    found = row.estimate(_SCORER, 'individual_fairness')
    body.append([
      _short(job, row.name), f"{row.perplexity['word']:.2f}",
      format_estimate(found, named=False),
      *(cell(row, name) for name in ('distinct_word_divergence', 'next_token_divergence'))])
  return Table(['model', 'PPL', 'I.F. (floor)', 'words (floor)', 'KL'], body)


def weight_figure(job: Job) -> Figure:
  """Measures by lambda."""
  from fairjax.report import plot_weights
  return Figure(plot_weights(job.workdir / 'figures' / 'weights', rows=job.rows(),
                             scorer=_SCORER))


def selection(job: Job, *, keep: float) -> Words:
  """Which lambda `fairjax select` takes, and why it refuses the others (H-35).

  Args:
    job: whose models were measured.
    keep: least share of the baseline's KL of the next token.
  """
  from fairjax.report.sections import select_model, selection_section
  return Words(selection_section(select_model(
    job.rows(), share=keep, scorers=[_SCORER], relevance=['next_token_divergence'])).body())


def floor_figure(job: Job, names: Sequence[str], *, counts: Sequence[int]) -> Figure:
  """I.F. and its floor for growing numbers of samples of some models."""
  from fairjax.measure import fairness_by_samples, read_generations, score_file
  from fairjax.measure.scorers.cache import score_generations
  scorer, found = _lesson_scorer(job), {}
  for model in job.models:
    if model.name in names:
      generations = read_generations(job.records(model), job.attribute, empty='keep')
      scores = score_generations(generations, scorer, score_file(
        job.scores_folder(model, heldout=False), job.attribute.name, scorer))
      found[model.name] = [e.to_dict() for e in fairness_by_samples(
        generations.sample_scores(scores), counts,
        permutations=job.config.measure.permutations, seed=job.config.seed)]
  return Figure(plot_floors(job.workdir / 'figures' / 'floors', models=found))


def _short(job: Job, model: str) -> str:
  """Name of a model without that of the attribute, for narrow tables."""
  return model.removeprefix(f'{job.attribute.name}-')


def _by_probability(config: Config) -> list[tuple[float, str]]:
  """(P(positive), value) in rising order."""
  from fairjax.data.planted import value_probabilities
  attribute = load_attribute(config.attribute)
  probabilities = value_probabilities(attribute, config.data.planted_strength)
  return sorted(zip(probabilities.tolist(), attribute.value_texts, strict=True))


def _lesson_scorer(job: Job) -> Any:
  """The scorer of the closed form."""
  return load_run_scorer(_SCORER, job.config, job.workdir, job.log)
