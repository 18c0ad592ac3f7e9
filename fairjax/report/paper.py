"""Tables and figures of Huang et al. 2020, by number, from the reports of one's own runs."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError
from fairjax.generate import check_complete, read_records
from fairjax.measure import Generations, read_generations
from fairjax.report import paired_samples, paper_figures, paper_tables, stored_scores
from fairjax.report.comparison import ModelRow, baseline_of, scorer_names
from fairjax.report.document import Table
from fairjax.report.paper_tables import CORPORA, PaperRun, merge_runs

# Figure -> kind of scorer; figure -> (corpus, attribute, measure). Both by the captions.
_ONE_SCORER = {4: 'bert', 5: 'opinion', 7: 'google'}
_ONE_CORPUS = {
  8 + 4 * a + 2 * c + m: (corpus, attribute, measure)
  for a, attribute in enumerate(('country', 'name'))
  for c, corpus in enumerate(('WMT-19', 'WikiText-103'))
  for m, measure in enumerate(('individual_fairness', 'group_fairness'))}
_MODELS = {16: 'individual_fairness', 17: 'group_fairness'}


@dataclasses.dataclass(frozen=True)
class Choices:
  """What is shown instead of the paper's choice; None or empty: the paper's."""

  models: Sequence[str] = ()
  pairs: Sequence[str] | None = None  # VALUE/VALUE
  scorers: Sequence[str] = ()
  corpus: str | None = None
  template: int | None = None  # of figure 1
  unit: str = 'word'  # of perplexity


def make_table(number: int, runs: Sequence[PaperRun], choices: Choices, log: Callable[[str], None]
               ) -> tuple[Table, list[str]]:
  """A table of the paper, and the sentences below it."""
  if number in paper_tables.ATTRIBUTES:
    return paper_tables.relevance_table(runs, number, unit=choices.unit)
  model = choices.models[0] if choices.models else None
  if number == 9:
    measured = [r for r in runs if any(row.content('semantic_similarity') for row in r.rows)]
    return paper_tables.similarity_table((measured or runs)[0], model)
  chosen = _pairs(choices, runs, paper_tables.PAIRS, log)
  if number == 10:
    return paper_tables.distinct_table([
      (_generations(run, model or _baseline(run)), pairs) for run, pairs in chosen])
  samples, lines = [], []
  for run, pairs in chosen:
    models = choices.models or [row.name for row in run.rows]
    for pair in pairs:
      samples += paired_samples({m: _records(run, m) for m in models}, values=pair, templates=1)
    lines.append(f'{run.corpus} {run.attribute}: sample {samples[-1].sample} of template '
                 f'{samples[-1].template}, equal noise for every value and model.')
  return paper_tables.generated_table(samples), lines


def draw_figure(number: int, runs: Sequence[PaperRun], path: pathlib.Path, choices: Choices,
                log: Callable[[str], None]) -> list[pathlib.Path]:
  """Draws a figure of the paper; returns its files."""
  if number == 2:
    return paper_figures.plot_truncated_gaussians(path)
  if number == 1:
    return _pair_figure(runs, path, choices, log)
  attributes = list(dict.fromkeys(run.attribute for run in runs))
  if number in _MODELS:
    # Beside each other: the baseline of each corpus, and the models of reports that have none.
    panels: dict[str, list] = {}
    for attribute in attributes:
      for corpus, rows in merge_runs(runs, attribute).items():
        baseline = baseline_of(rows)
        panels.setdefault(attribute, []).extend(
          rows if baseline is None else [dataclasses.replace(baseline, name=corpus)])
    scorers = choices.scorers or scorer_names([r for rows in panels.values() for r in rows])
    return paper_figures.plot_models(
      path, attributes=panels, scorers=scorers, measure=_MODELS[number])
  if number in _ONE_SCORER:
    corpora = merge_runs(runs, 'occupation')
    if not corpora:
      raise UserError(f'Figure {number} is of occupation, and the runs hold '
                      f"{', '.join(attributes)}: name a run of it")
    scorer = choices.scorers[:1] or _of_kind(number, corpora)
    return paper_figures.plot_improvements(path, corpora=corpora, scorers=scorer)
  corpus, attribute, measure = _ONE_CORPUS.get(number, ('WMT-19', '', ''))
  corpus = choices.corpus or corpus
  by_attribute = {a: merge_runs(runs, a).get(corpus) for a in attributes}
  found = {a: rows for a, rows in by_attribute.items() if rows and attribute in ('', a)}
  if not found:
    held = ', '.join(sorted({f'{run.corpus} {run.attribute}' for run in runs}))
    raise UserError(f"Figure {number} is of {f'{corpus} {attribute}'.strip()}, and the runs hold "
                    f'{held}: name a run of it, or --corpus=NAME for another corpus than '
                    f"{' and '.join(sorted({*CORPORA.values()} - {'WikiText-2'}))}")
  rows = [row for rows in found.values() for row in rows]
  if number == 6:
    scorer = choices.scorers[:1] or _of_kind(4, found)
    return paper_figures.plot_relevance(path, attributes=found, scorer=scorer[0])
  return paper_figures.plot_improvements(
    path, corpora={corpus: rows}, scorers=choices.scorers or scorer_names(rows), measures=[measure])


def _of_kind(figure: int, rows: Mapping[str, Sequence[ModelRow]]) -> list[str]:
  """The scorer that a figure shows: its first one of the kind that the paper has there."""
  names = scorer_names([row for found in rows.values() for row in found])
  kind = _ONE_SCORER[figure]
  found = [name for name in names if name.startswith(kind)]
  if not found:
    raise UserError(f'the figure shows a {kind} scorer, and the runs have {", ".join(names)}: '
                    '--scorer=NAME takes another one')
  return found[:1]


def _baseline(run: PaperRun) -> str:
  return (baseline_of(run.rows) or run.rows[0]).name


def _pairs(choices: Choices, runs: Sequence[PaperRun], usual: Sequence[tuple[str, str]],
           log: Callable[[str], None]) -> list[tuple[PaperRun, list[tuple[str, str]]]]:
  """The first run that holds each pair of values."""
  given = choices.pairs
  pairs = usual if given is None else [tuple(pair.split('/')) for pair in given]
  values = [(run, {v for row in run.rows if row.measures for v in row.measures['values']})
            for run in runs]
  found: dict[int, tuple[PaperRun, list]] = {}
  for pair in pairs:
    if len(pair) != 2 or not all(pair):
      raise UserError(f"--pairs={'/'.join(pair)} must be two values, e.g. sheriff/designer")
    index = next((i for i, (_, known) in enumerate(values) if known >= set(pair)), None)
    if index is not None:
      found.setdefault(index, (runs[index], []))[1].append(pair)
    elif given is not None:
      raise UserError(f"no run holds both values of --pairs={'/'.join(pair)}; the first has "
                      f"{', '.join(sorted(values[0][1])[:10])}, ...")
    else:
      log(f"{'/'.join(pair)} is left out: no run holds both values")
  if not found:
    raise UserError("no run holds a pair of values of the paper: name others with --pairs=A/B")
  return list(found.values())


def _records(run: PaperRun, model: str) -> Iterator[dict[str, Any]]:
  """The records of a model."""
  run.row(model)
  path = run.report / 'generations' / model / f'{run.attribute}.jsonl.gz'
  if not path.is_file():
    raise UserError(f'{path} is not there: figure 1 and tables 7 and 10 read the records of a '
                    'workdir: name that of the run')
  check_complete(path)
  return read_records(path)


def _generations(run: PaperRun, model: str) -> Generations:
  """The records of a model, read with the run's attribute."""
  named = run.attribute if run.config is None else run.config['attribute']
  return read_generations(_records(run, model), load_attribute(named))


def _pair_figure(runs: Sequence[PaperRun], path: pathlib.Path, choices: Choices,
                 log: Callable[[str], None]) -> list[pathlib.Path]:
  """Figure 1: the scores of two values, as the run's score files hold them."""
  (run, pairs), *_ = _pairs(choices, runs, (('baker', 'accountant'),), log)
  row = run.row(choices.models[0] if choices.models else _baseline(run))
  generations = _generations(run, row.name)
  texts = [t.text for t in generations.attribute.templates]
  usual = next((i for i, t in enumerate(texts) if t == 'My friend is {a} {value}, and we'), 0)
  scores = stored_scores(generations, row.measures, run.report / 'scores' / row.name)
  scorer = choices.scorers[0] if choices.scorers else next(iter(scores))
  if scorer not in scores:
    raise UserError(f"--scorer={scorer}: {run.report} has {', '.join(scores)}")
  return paper_figures.plot_pair(
    path, generations=generations, scores=scores[scorer], values=pairs[0], scorer=scorer,
    template=usual if choices.template is None else choices.template)
