"""Tables and figures of Huang et al. 2020, by number, from the reports of one's own runs.

What the reports do not hold is a dash, counted and named below the table. The numbers that the
paper printed stand in columns of their own. Tables 2 to 4 are the templates of the built-in
attributes; Figure 3 is docs/pipeline.svg.
"""

import dataclasses
import functools
import importlib.resources
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fairjax.counterfactual import load_attribute
from fairjax.errors import UserError, unknown_name
from fairjax.generate import check_complete, read_records
from fairjax.measure import Generations, read_generations
from fairjax.measure.words import TOP_WORDS, count_words, distinct_words
from fairjax.report import paper_figures
from fairjax.report.comparison import ModelRow, baseline_of, scorer_names
from fairjax.report.differences import read_report
from fairjax.report.document import Table, number
from fairjax.report.page import stored_scores
from fairjax.report.sections import PairedSample, paired_samples

ATTRIBUTES = {1: 'occupation', 5: 'country', 6: 'name'}  # of tables
# `data.source` -> name of the corpus, those of the paper as it writes them.
CORPORA = {'newscrawl': 'WMT-19', 'newscrawl_sentences': 'WMT-19', 'wikitext103': 'WikiText-103',
           'wikitext2': 'WikiText-2'}
PAIRS = (('sheriff', 'designer'), ('driver', 'CEO'), ('Finland', 'Italy'), ('Chile', 'Iceland'))
_GRID = (('baseline', None), *(('embedding', w) for w in (1.0, 10.0, 100.0)),
         *(('sentiment', w) for w in (1.0, 10.0, 100.0, 1000.0)))
_LABELS = {'baseline': 'Baseline', 'extended_baseline': 'Extended baseline',
           'embedding': 'Emb. Reg.', 'sentiment': 'Sent. Reg.',
           'random_projection': 'Random projection'}


@dataclasses.dataclass(frozen=True)
class PaperRun:
  """One report: the models of one corpus and attribute."""

  corpus: str  # e.g. WMT-19
  attribute: str
  rows: tuple[ModelRow, ...]
  report: pathlib.Path  # that it was read from
  config: Mapping[str, Any] | None = None  # resolved; None of records

  def row(self, model: str) -> ModelRow:
    """The row of a model."""
    found = {row.name: row for row in self.rows}
    if model not in found:
      raise unknown_name('model', model, found, where=str(self.report))
    return found[model]


def read_run(path: str | os.PathLike, *, corpus: str = '') -> PaperRun:
  """Reads a report; its corpus is named by `data.source`, else by the run, else by the folder."""
  found, path = read_report(path), pathlib.Path(path)
  try:
    names = [field.name for field in dataclasses.fields(ModelRow)]
    rows = tuple(ModelRow(**{name: row[name] for name in names}) for row in found['rows'])
    config = found['config']
    source = '' if config is None else CORPORA.get(config['data']['source'], config['name'])
  except (KeyError, TypeError, AttributeError) as e:
    raise UserError(f'{path}: damaged report ({e!r}): write it again with fairjax report') from None
  folder = path if path.is_dir() else path.parent
  return PaperRun(corpus or source or folder.resolve().name, found['attribute'], rows, path, config)


def merge_runs(runs: Sequence[PaperRun], attribute: str) -> dict[str, list[ModelRow]]:
  """Corpus -> models of one attribute, of all runs; the paper's corpora first."""
  found: dict[str, dict[str, ModelRow]] = {}
  where: dict[tuple[str, str], pathlib.Path] = {}
  for run in runs:
    if run.attribute != attribute:
      continue
    for row in run.rows:
      known = found.setdefault(run.corpus, {}).setdefault(row.name, row)
      place = where.setdefault((run.corpus, row.name), run.report)
      if known != row:
        raise UserError(f'{place} and {run.report} hold different measures of {row.name} of '
                        f'{run.corpus}: name the corpora, as NAME={run.report}')
  order = sorted(found, key=lambda c: (c != 'WMT-19', c != 'WikiText-103'))
  return {corpus: list(found[corpus].values()) for corpus in order}


def relevance_table(
  runs: Sequence[PaperRun], number_: int, *, unit: str = 'word') -> tuple[Table, list[str]]:
  """Tables 1, 5 and 6: PPL, PPL_s, S.S. and S.S.c by model, of every corpus (H-25, H-27, H-28)."""
  # What the paper printed of a corpus stands in four columns behind those of the runs.
  attribute = ATTRIBUTES[number_]
  corpora = merge_runs(runs, attribute)
  if not corpora:
    raise UserError(f'Table {number_} is of {attribute}, and the runs hold '
                    f"{', '.join(sorted({run.attribute for run in runs}))}: name a run of it")
  rows: dict[str, dict[tuple[str, float | None], ModelRow]] = {corpus: {} for corpus in corpora}
  for corpus, row in ((corpus, row) for corpus, found in corpora.items() for row in found):
    other = rows[corpus].setdefault(_key(row), row)
    if other is not row:
      raise UserError(f'{corpus}: {other.name} and {row.name} are both {_format_key(_key(row))} of '
                      f'Table {number_}: name their runs, as NAME=FOLDER')
  keys = list(dict.fromkeys([*_GRID, *(key for found in rows.values() for key in found)]))
  _check_unit(unit, [row for found in corpora.values() for row in found])
  columns = ('PPL', 'PPL_s', 'S.S.', 'S.S.c')
  header, lines = ['Model', '\u03bb'], []
  body = [[_LABELS.get(method, method), '' if weight is None else f'{weight:g}']
          for method, weight in keys]
  for corpus, found in rows.items():
    paper = printed(number_, corpus)
    for of in ('', ' (paper)') if paper else ('',):
      header += [f'{corpus} {attribute.capitalize()} {column}{of}' for column in columns]
    for cells, key in zip(body, keys, strict=True):
      cells += _cells(found.get(key), unit)
      cells += paper.get(key, ['\u2013'] * 4) if paper else []
    wanted = paper or _GRID
    missing = [_format_key(key) for key in wanted if key not in found]
    if missing:
      lines.append(f"{corpus}: {len(missing)} of the paper's {len(wanted)} models are not in these "
                   f"runs: {', '.join(missing)}.")
    absent = [
      f'{column} of {_format_key(key)}' for key, row in found.items()
      for column, cell in zip(columns, _cells(row, unit), strict=True) if cell == '\u2013']
    if absent:
      lines.append(f"{corpus}: {len(absent)} values were not measured: {', '.join(absent)}.")
    similar = [s for row in found.values() if (s := row.content('semantic_similarity'))]
    lines += [f'{corpus}: S.S. by encoder {name}, cosine above {threshold:.3g} ({source}).'
              for name, threshold, source in dict.fromkeys(
                (s['encoder'], s['threshold'], s['threshold_source']) for s in similar)]
  lines += [f'{corpus}: no run of {attribute}.' for corpus in ('WMT-19', 'WikiText-103')
            if corpus not in rows]
  if any(printed(number_, corpus) for corpus in rows):
    lines.append(f'(paper): Table {number_} as printed, of models that differ from these in code, '
                 'tokens and training. It does not say what its perplexity is per; its S.S. is by '
                 'the Universal Sentence Encoder, cosine above 0.4. It gives no errors.')
  return Table(header, body, text_columns=1), [
    f'PPL and PPL_s are per {unit}; S.S. and S.S.c are percent of the continuations.', *lines]


@functools.cache
def printed(table: int, corpus: str) -> dict[tuple[str, float | None], list[str]]:
  """(method, lambda) -> PPL, PPL_s, S.S. and S.S.c of a table of the paper; {} of other corpora."""
  assets = importlib.resources.files('fairjax.report') / 'assets'
  text = (assets / 'huang2020.tsv').read_text(encoding='utf-8')
  rows = [line.split('\t') for line in text.splitlines() if line[0].isdigit()]
  return {(method, float(weight) if weight else None): cells
          for number_, of, method, weight, *cells in rows if (int(number_), of) == (table, corpus)}


def _key(row: ModelRow) -> tuple[str, float | None]:
  """What makes a row of a table: method and lambda, the name where the method says too little."""
  known = row.method in _LABELS
  return (row.method if known else row.name), row.weight if known else None


def _format_key(key: tuple[str, float | None]) -> str:
  method, weight = key
  return _LABELS.get(method, method) + ('' if weight is None else f' \u03bb={weight:g}')


def _check_unit(unit: str, rows: Iterable[ModelRow]) -> None:
  """Refuses a unit that no perplexity has."""
  known = {name for row in rows for found in (row.perplexity, row.subset_perplexity) if found
           for name, value in found.items() if isinstance(value, float)
           and name not in ('nll', 'bits_per_byte')}
  if known and unit not in known:
    raise unknown_name('unit of perplexity', unit, sorted(known))


def _cells(row: ModelRow | None, unit: str) -> list[str]:
  """PPL, PPL_s, S.S. and S.S.c; a dash for what is not there."""
  if row is None:
    return ['\u2013'] * 4
  found = [number(None if p is None else p.get(unit), 1)
           for p in (row.perplexity, row.subset_perplexity)]
  for share in (row.content('semantic_similarity'), row.relevance()):
    found.append(number(None if share is None else 100 * share['value'], 1))
  return found


def generated_table(samples: Sequence[PairedSample]) -> Table:
  """Tables 7 and 8: continuations of the same noise by value and model (H-34, H-35)."""
  return Table(['Prefix', 'Token', 'Model', 'Generated text'], [
    [prefix, value, model, ' '.join(texts[value].split())]
    for sample in samples for value, prefix in sample.prefixes.items()
    for model, texts in sample.continuations.items()], text_columns=4)


def similarity_table(run: PaperRun, model: str | None = None) -> tuple[Table, list[str]]:
  """Table 9: cosine examples of a model, the baseline's by default (H-36)."""
  row = run.row(model) if model else baseline_of(run.rows) or run.rows[0]
  found = row.content('semantic_similarity')
  if not found:
    raise UserError(f'Table 9: no S.S. of {row.name} in {run.report}: measure with an encoder '
                    '(--config.measure.encoder)')
  return Table(['Cosine similarity', 'Prefix', 'Sample from generated text'], [
    [number(e['cosine'], 3), e['prefix'], ' '.join(e['continuation'].split())]
    for e in found['examples']], text_columns=3), [
      f"{run.corpus} {run.attribute}, {row.name}, encoder {found['encoder']}."]


def distinct_table(
  found: Sequence[tuple[Generations, Sequence[tuple[str, str]]]],
) -> tuple[Table, list[str]]:
  """Table 10: words with the largest p(w | value) / p(w | other), for chosen pairs (H-37)."""
  body, lines = [], ['Words as written, with punctuation; each count is one more, and a word is '
                     'counted from its fifth occurrence on.']
  for generations, pairs in found:
    counts = count_words(generations)
    if counts.left_out:
      lines.append(f'{counts.left_out} of {len(generations)} records were not read.')
    for pair in pairs:
      for value, other in (pair, pair[::-1]):
        words = [w['word'] for w in distinct_words(counts, value, other)]
        body.append([value, other, ', '.join(words) or '\u2013'])
        if len(words) < TOP_WORDS:
          lines.append(f'{value} against {other}: {len(words)} of {TOP_WORDS} words occur so '
                       'often, and oftener than with the other.')
  return Table(['Token', 'Against', f'Top {TOP_WORDS} distinct words'], body, text_columns=3), lines


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
  if number in ATTRIBUTES:
    return relevance_table(runs, number, unit=choices.unit)
  model = choices.models[0] if choices.models else None
  if number == 9:
    measured = [r for r in runs if any(row.content('semantic_similarity') for row in r.rows)]
    return similarity_table((measured or runs)[0], model)
  chosen = _pairs(choices, runs, PAIRS, log)
  if number == 10:
    return distinct_table([
      (_generations(run, model or _baseline(run)), pairs) for run, pairs in chosen])
  samples, lines = [], []
  for run, pairs in chosen:
    models = choices.models or [row.name for row in run.rows]
    for name in models:
      if not run.row(name).measures['coupled']:
        raise UserError(f'Table 7 is of texts of equal noise, and the samples of {name} in '
                        f'{run.report} are independent')
    for pair in pairs:
      samples += paired_samples({m: _records(run, m) for m in models}, values=pair, templates=1)
    lines.append(f'{run.corpus} {run.attribute}: sample {samples[-1].sample} of template '
                 f'{samples[-1].template}, equal noise for every value and model.')
  return generated_table(samples), lines


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
  values = [(run, {v for row in run.rows for v in row.measures['values']})
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
  run.row(model)
  path = run.report / 'generations' / model / f'{run.attribute}.jsonl.gz'
  if not path.is_file():
    raise UserError(f'{path} is not there: figure 1 and tables 7 and 10 read the records of a '
                    'workdir: name that of the run')
  check_complete(path)
  return (r for r in read_records(path, repair=True) if r.get('arm') != 'rewording')


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
