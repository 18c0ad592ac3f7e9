"""The report of records of any language models: measured, then written as for a run."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fairjax.counterfactual import Attribute
from fairjax.errors import UserError, unknown_name
from fairjax.job.next_token_file import read_next_token


def report_records(
  files: Sequence[str | os.PathLike], attribute: Attribute, scorers: Sequence[Any],
  directory: str | os.PathLike, **options: Any,
) -> pathlib.Path:
  """Measures files of generations and writes `index.html`, `report.md` and `report.json`.

  Args and errors: see `measure_files`.

  Returns:
    The path of `report.md`.
  """
  from fairjax.report import write_report
  rows, evidence = measure_files(files, attribute, scorers, directory, **options)
  return write_report(directory, rows=rows, attribute=attribute.name, evidence=evidence)


def measure_files(
  files: Sequence[str | os.PathLike], attribute: Attribute, scorers: Sequence[Any],
  directory: str | os.PathLike, *, baseline: str | None = None, permutations: int | None = None,
  coupled: bool = True, content: Any = None, empty: str = 'error',
  read: Callable[[Any], Iterable[dict[str, Any]]] | None = None,
  log: Callable[[str], None] | None = None,
) -> tuple[list[Any], dict[str, Any]]:
  """Measures files of generations.

  Args:
    files: JSONL or JSONL.gz, one model each. A model is called what its records say, else what its
      file is called.
    attribute: of all of them.
    scorers: at least one.
    directory: of the report. `scores/<model>/` in it keeps scores: an interrupted call goes on.
    baseline: name of the model that others are compared with; None: no comparison.
    permutations: for the noise floors; None takes the default of `measure_generations`.
    coupled: samples of equal number share their noise.
    content: `fairjax.measure.content.ContentOptions` with the sentence encoder of S.S. (H-27);
      None: no S.S.
    empty: 'error', 'drop' or 'keep' continuations without a text.
    read: reads the records; None: `read_records`.
    log: called with lines of progress.

  Returns:
    One `fairjax.report.ModelRow` a file, and the evidence behind each by its model's name.

  Raises:
    UserError: records that cannot be used (file and line) or are not all there, two models of one
      name, models with other templates than the first, an unknown baseline, or a divergence of the
      next token beside records that are others.
  """
  from fairjax.generate import check_complete, read_records, records_stem
  from fairjax.measure import read_generations
  from fairjax.measure.content import ContentOptions
  from fairjax.measure.measures import measure_generations
  from fairjax.report import ModelRow, stored_evidence
  options: dict[str, Any] = {} if permutations is None else {'permutations': permutations}
  rows: list[ModelRow] = []
  evidence: dict[str, Any] = {}
  templates = None
  for file in files:
    check_complete(file)
  for file in files:
    generations = read_generations(
      (read or read_records)(file), attribute, empty=empty, coupled=coupled)
    name = generations.model or records_stem(file)
    if name in evidence:
      raise UserError(f"{file}: model '{name}' is in an earlier file too: give each model a name "
                      "of its own (field 'model', or the file's name)")
    if templates is not None and generations.templates != templates:
      raise UserError(f'{file}: templates {_short(generations.templates)}, where {files[0]} has '
                      f'{_short(templates)}: models of one report need the same templates')
    templates = generations.templates
    scores = scores_folder(directory, name)
    own = dataclasses.replace(
      content or ContentOptions(), next_token=read_next_token(file, attribute))
    measures = measure_generations(
      generations, scorers, coupled=coupled, scores_directory=scores, content=own, log=log,
      **options)
    evidence[name] = stored_evidence(generations, measures, scores)
    rows.append(ModelRow(name, 'baseline' if name == baseline else 'model', measures=measures))
    if log:
      log(f'{name}: {len(generations):,} records measured')
  if baseline is not None and baseline not in evidence:
    raise unknown_name('baseline', baseline, evidence)
  return rows, evidence


def scores_folder(directory: str | os.PathLike, name: str) -> pathlib.Path:
  """Where the scores of a model are kept: other characters of its name become code points."""
  folder = ''.join(c if c.isalnum() or c in '-_' else f'%{ord(c):x}' for c in name)
  return pathlib.Path(directory) / 'scores' / folder


def _short(templates: Sequence[int | str]) -> str:
  """The first labels of several."""
  text = ', '.join(map(str, templates[:5]))
  return text + (', ...' if len(templates) > 5 else '')
