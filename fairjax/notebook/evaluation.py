"""The evaluation notebook: texts of a checkpoint, a file or a tiny model, and their measures."""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any

from fairjax.config import SampleConfig
from fairjax.counterfactual import Attribute, load_attribute
from fairjax.errors import UserError
from fairjax.job.checkpoint import Checkpoint, open_checkpoint
from fairjax.notebook.devices import Sizes
from fairjax.notebook.showing import Figure, Words
from fairjax.notebook.tiny import TINY, TinyJob, quick_compilation, tiny_config
from fairjax.report.brief import brief_table, largest_cell
from fairjax.report.comparison import ModelRow, scorer_names
from fairjax.report.content import cell as content_cell
from fairjax.report.markdown import Table, escape
from fairjax.report.verdicts import verdict_lines

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
    from fairjax.job.records_report import scores_folder
    from fairjax.measure import read_generations, score_file
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
  from fairjax.job.records_report import measure_files
  from fairjax.report import write_report
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
  from fairjax.measure.score_cache import score_generations
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
    from fairjax.job.run_scorers import load_run_scorer
    return load_run_scorer(name, checkpoint.config, output, log)
  from fairjax.measure import load_scorer
  return load_scorer(name, lexicon=[part.strip() for part in lexicon.split(',') if part.strip()],
                     google={'cache': output / 'google.jsonl', 'log': log})


def _train_tiny(workdir: pathlib.Path, sizes: Sizes, log: Log) -> pathlib.Path:
  """Trains the tiny model of the planted corpus; a finished one is left alone."""
  TinyJob(tiny_config(sizes), workdir, log=log).train()
  return workdir
