"""The report of records of any language models: measured, then written as for a run."""

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from fairjax.counterfactual import Attribute
from fairjax.errors import UserError, unknown_name


def report_records(
  files: Sequence[str | os.PathLike], attribute: Attribute, scorers: Sequence[Any],
  directory: str | os.PathLike, *, baseline: str | None = None, permutations: int | None = None,
  coupled: bool = True, log: Callable[[str], None] | None = None,
) -> pathlib.Path:
  """Measures files of generations and writes `index.html`, `report.md` and `report.json`.

  Args:
    files: JSONL or JSONL.gz, one model each. A model is called what its records say, else what its
      file is called.
    attribute: of all of them.
    scorers: at least one.
    directory: of the report. `scores/<model>/` in it keeps scores: an interrupted call goes on.
    baseline: name of the model that others are compared with; None: no comparison.
    permutations: for the noise floors; None takes the default of `measure_generations`.
    coupled: samples of equal number share their noise.
    log: called with lines of progress.

  Returns:
    The path of `report.md`.

  Raises:
    UserError: records that cannot be used (file and line), two models of one name, models with
      other templates than the first, or an unknown baseline.
  """
  from fairjax.generate import read_records, records_stem
  from fairjax.measure import read_generations
  from fairjax.measure.measures import measure_generations
  from fairjax.report import ModelRow, stored_evidence, write_report
  options = {} if permutations is None else {'permutations': permutations}
  rows: list[ModelRow] = []
  evidence: dict[str, Any] = {}
  templates = None
  for file in files:
    generations = read_generations(read_records(file), attribute)
    name = generations.model or records_stem(file)
    if name in evidence:
      raise UserError(f"{file}: model '{name}' is in an earlier file too: give each model a name "
                      "of its own (field 'model', or the file's name)")
    if templates is not None and generations.templates != templates:
      raise UserError(f'{file}: templates {_short(generations.templates)}, where {files[0]} has '
                      f'{_short(templates)}: models of one report need the same templates')
    templates = generations.templates
    scores = pathlib.Path(directory) / 'scores' / _folder(name)
    measures = measure_generations(
      generations, scorers, coupled=coupled, scores_directory=scores, log=log, **options)
    evidence[name] = stored_evidence(generations, measures, scores)
    rows.append(ModelRow(name, 'baseline' if name == baseline else 'model', measures=measures))
    if log:
      log(f'{name}: {len(generations):,} records measured')
  if baseline is not None and baseline not in evidence:
    raise unknown_name('baseline', baseline, evidence)
  return write_report(directory, rows=rows, attribute=attribute.name, evidence=evidence)


def _folder(name: str) -> str:
  """A model's name as one folder: other characters become their code points."""
  return ''.join(c if c.isalnum() or c in '-_' else f'%{ord(c):x}' for c in name)


def _short(templates: Sequence[int | str]) -> str:
  """The first labels of several."""
  text = ', '.join(map(str, templates[:5]))
  return text + (', ...' if len(templates) > 5 else '')
