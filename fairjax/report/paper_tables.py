"""The tables of Huang et al. 2020 from one's own reports: none holds a number that was typed in.

| table | function |
|---|---|
| 1, 5, 6 | `relevance_table`: PPL, PPL_s, S.S., S.S.c by model and corpus, of an attribute each |
| 7, 8 | `generated_table`: what models wrote for a pair of values with the same noise |
| 9 | `similarity_table`: examples of cosine similarity |
| 10 | `distinct_table`: distinct words of pairs of values |

Tables 2 to 4 are the templates of the built-in attributes. What the reports do not hold is a dash,
counted and named below the table.
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairjax.errors import UserError, unknown_name
from fairjax.measure import Generations
from fairjax.measure.words import TOP_WORDS, count_words, distinct_words
from fairjax.report.comparison import ModelRow, baseline_of
from fairjax.report.differences import read_report
from fairjax.report.document import Table, number
from fairjax.report.sections import PairedSample

ATTRIBUTES = {1: 'occupation', 5: 'country', 6: 'name'}
"""Table -> attribute."""

CORPORA = {'newscrawl': 'WMT-19', 'newscrawl_sentences': 'WMT-19', 'wikitext103': 'WikiText-103',
           'wikitext2': 'WikiText-2'}
"""`data.source` -> name of the corpus, those of the paper as it writes them."""

PAIRS = (('sheriff', 'designer'), ('driver', 'CEO'), ('Finland', 'Italy'), ('Chile', 'Iceland'))
"""Pairs of values of Table 10."""

_GRID = (('baseline', None), *(('embedding', w) for w in (1.0, 10.0, 100.0)),
         *(('sentiment', w) for w in (1.0, 10.0, 100.0, 1000.0)))
_LABELS = {'baseline': 'Baseline', 'extended_baseline': 'Extended baseline',
           'embedding': 'Emb. Reg.', 'sentiment': 'Sent. Reg.',
           'random_projection': 'Random projection'}


@dataclasses.dataclass(frozen=True)
class PaperRun:
  """One report: the models of one corpus and attribute.

  Attributes:
    corpus: name, e.g. `WMT-19`.
    attribute: name.
    rows: the models.
    report: path that it was read from, for messages.
    config: resolved configuration; None of records.
  """

  corpus: str
  attribute: str
  rows: tuple[ModelRow, ...]
  report: pathlib.Path
  config: Mapping[str, Any] | None = None

  def row(self, model: str) -> ModelRow:
    """The row of a model.

    Raises:
      UserError: there is none.
    """
    found = {row.name: row for row in self.rows}
    if model not in found:
      raise unknown_name('model', model, found, where=str(self.report))
    return found[model]


def read_run(path: str | os.PathLike, *, corpus: str = '') -> PaperRun:
  """Reads a report of `fairjax report`.

  Args:
    path: see `read_report`.
    corpus: its name; '': by `data.source`, else the run's name, else that of the folder.

  Raises:
    UserError: no report, or a damaged one.
  """
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
  """Corpus -> models of one attribute, baseline first, of all runs; the paper's corpora first.

  Raises:
    UserError: two runs of one corpus hold different measures of a model of the same name.
  """
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
  """Tables 1, 5 and 6: PPL, PPL_s, S.S. and S.S.c by model, of every corpus (H-25, H-27, H-28).

  The paper's models come in its order, further ones after them.

  Args:
    runs: of any attributes.
    number_: of the table.
    unit: of the perplexities: word, token or another one that the reports have.

  Returns:
    The table, and sentences about units and about what the runs do not hold.

  Raises:
    UserError: no run of the attribute, or a unit that no report has.
  """
  attribute = ATTRIBUTES[number_]
  corpora = merge_runs(runs, attribute)
  if not corpora:
    raise UserError(f'Table {number_} is of {attribute}, and the runs hold '
                    f"{', '.join(sorted({run.attribute for run in runs}))}: name a run of it")
  rows = {corpus: {_key(row): row for row in found} for corpus, found in corpora.items()}
  keys = list(dict.fromkeys([*_GRID, *(key for found in rows.values() for key in found)]))
  _check_unit(unit, [row for found in corpora.values() for row in found])
  title = attribute.capitalize()
  header = ['Model', '\u03bb', *(f'{corpus} {title} {column}' for corpus in rows
                           for column in ('PPL', 'PPL_s', 'S.S.', 'S.S.c'))]
  body, lines = [], []
  for method, weight in keys:
    cells = [_LABELS.get(method, method), '' if weight is None else f'{weight:g}']
    for found in rows.values():
      cells += _cells(found.get((method, weight)), unit)
    body.append(cells)
  for corpus, found in rows.items():
    wanted = [k for k in _GRID if (corpus, k) != ('WMT-19', ('sentiment', 1.0))]
    missing = [_words(key) for key in wanted if key not in found]
    if missing:
      lines.append(f"{corpus}: {len(missing)} of the paper's {len(wanted)} models are not in these "
                   f"runs: {', '.join(missing)}.")
    absent = [f'{column} of {_words(key)}' for key, row in found.items() for column, cell in zip(
      ('PPL', 'PPL_s', 'S.S.', 'S.S.c'), _cells(row, unit), strict=True) if cell == '\u2013']
    if absent:
      lines.append(f"{corpus}: {len(absent)} values were not measured: {', '.join(absent)}.")
    similar = [s for row in found.values() if (s := row.content('semantic_similarity'))]
    lines += [f'{corpus}: S.S. by encoder {name}, cosine above {threshold:.3g} ({source}).'
              for name, threshold, source in dict.fromkeys(
                (s['encoder'], s['threshold'], s['threshold_source']) for s in similar)]
  lines += [f'{corpus}: no run of {attribute}.' for corpus in ('WMT-19', 'WikiText-103')
            if corpus not in rows]
  return Table(header, body, text_columns=1), [
    f'PPL and PPL_s are per {unit}; S.S. and S.S.c are percent of the continuations.', *lines]


def _key(row: ModelRow) -> tuple[str, float | None]:
  """What makes a row of a table: method and lambda, the name where the method says too little."""
  known = row.method in _LABELS
  return (row.method if known else row.name), row.weight if known else None


def _words(key: tuple[str, float | None]) -> str:
  method, weight = key
  return _LABELS.get(method, method) + ('' if weight is None else f' \u03bb={weight:g}')


def _check_unit(unit: str, rows: Iterable[ModelRow]) -> None:
  """Refuses a unit that no perplexity has."""
  known = {name for row in rows for found in (row.perplexity, row.subset_perplexity) if found
           for name, value in found.items() if isinstance(value, float) and name != 'nll'}
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
    [sample.prefixes.get(value, '\u2013'), value, model,
     '\u2013' if texts.get(value) is None else ' '.join(texts[value].split())]
    for sample in samples for value in sample.prefixes
    for model, texts in sample.continuations.items()], text_columns=4)


def similarity_table(run: PaperRun, model: str | None = None) -> tuple[Table, list[str]]:
  """Table 9: cosine examples of a model, the baseline's by default (H-36).

  Raises:
    UserError: no such model, or it was measured without an encoder.
  """
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
  found: Sequence[tuple[Generations, Sequence[tuple[str, str]]]], *, top: int = TOP_WORDS,
) -> tuple[Table, list[str]]:
  """Table 10: words with the largest p(w | value) / p(w | other), for chosen pairs (H-37).

  Args:
    found: generations of one model each, with pairs of values of their attribute.
    top: how many words.

  Returns:
    The table, and a sentence for every value with fewer words.
  """
  body, lines = [], ['Words as written, with punctuation; each count is one more, and a word is '
                     'counted from its fifth occurrence on.']
  for generations, pairs in found:
    counts = count_words(generations)
    if counts.left_out:
      lines.append(f'{counts.left_out} of {len(generations)} records were not read.')
    for pair in pairs:
      for value, other in (pair, pair[::-1]):
        words = [w['word'] for w in distinct_words(counts, value, other, top=top)]
        body.append([value, other, ', '.join(words) or '\u2013'])
        if len(words) < top:
          lines.append(f'{value} against {other}: {len(words)} of {top} words occur so often.')
  return Table(['Token', 'Against', f'Top {top} distinct words'], body, text_columns=3), lines
