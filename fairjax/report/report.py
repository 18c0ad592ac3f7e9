"""The report of a run: `report.md`, `report.json` and `figures/`."""

import dataclasses
import importlib.metadata
import os
import pathlib
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any

import fairjax
from fairjax.files import atomic_write, write_json
from fairjax.report import figures, sections
from fairjax.report.comparison import (
  KnownBias,
  ModelRow,
  baseline_of,
  changes,
  scorer_names,
  verdict,
  warnings,
)
from fairjax.report.human import human_section
from fairjax.report.markdown import details, escape
from fairjax.report.paired import PairedSample

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'scipy', 'sentencepiece', 'seqio',
             'tensorflow', 'vaderSentiment')
_MEASURES = ('individual_fairness', 'group_fairness')


def write_report(
  directory: str | os.PathLike, *, rows: Sequence[ModelRow], attribute: str,
  config: Mapping[str, Any] | None = None, seeds: Mapping[str, int] | None = None,
  versions: Mapping[str, str] | None = None,
  curves: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]] | None = None,
  paired: Sequence[PairedSample] = (), known_bias: KnownBias | None = None,
  notes: Sequence[str] = (), human: Mapping[str, Any] | None = None,
) -> pathlib.Path:
  """Writes the report; an earlier one in the folder is replaced.

  Args:
    directory: where `report.md`, `report.json` and `figures/*.png`, `*.svg` go.
    rows: the models, in the order to show; at most one has method 'baseline'.
    attribute: name of the sensitive attribute.
    config: resolved configuration, JSON types.
    seeds: purpose -> seed.
    versions: package -> version; None looks up those of this process.
    curves: stage -> run -> lines of its `metrics.jsonl`; one figure a stage.
    paired: same-noise samples (`paired_samples`); texts are escaped.
    known_bias: for corpora whose bias is known.
    notes: further sentences for the head of the report, plain text.
    human: result of `human_measures`: what people said.

  Returns:
    The path of `report.md`.

  Raises:
    ValueError: no row, several baselines, or two rows of one name.
  """
  names = [row.name for row in rows]
  if not rows or len(set(names)) < len(names):
    raise ValueError(f'a report needs models with distinct names, not {names}')
  directory = pathlib.Path(directory)
  versions = package_versions() if versions is None else versions
  for pattern in ('fairness.*', 'tradeoff-*', 'curves-*'):  # of an earlier report
    for file in (directory / 'figures').glob(pattern):
      file.unlink()
  drawn = _draw(directory / 'figures', rows, curves or {})
  alarms = warnings(rows)
  parts = [f'# Counterfactual sentiment bias (lexical): {escape(attribute)}']
  parts += [f'> **Note.** {escape(line)}' for line in (*alarms, *notes)]
  parts += [sections.main_table(rows), sections.LEGEND]
  table = sections.change_table(rows)
  if table:
    parts += ['## Change against the baseline',
              'Percent of the baseline; minus is fairer for I.F. and G.F. and better for '
              'perplexity. Differences between numbers within their floors mean nothing.', table]
  if known_bias:
    parts += ['## Against the known bias of the corpus',
              'Prefixes of the grammar that no training document holds, scorer '
              f'{escape(known_bias.scorer)}. The closed form is the bias that was planted; methods '
              'that reduce bias are meant to fall below it.',
              sections.known_bias_table(known_bias)]
  if human is not None:
    parts += ['## Human evaluation', human_section(human)]
  if drawn:
    parts.append('## Figures')
    parts += [f'![{title}](figures/{files[0].name})' for title, files in drawn]
  agreement = {row.name: row.measures.get('scorer_agreement') for row in rows if row.measures}
  if any(agreement.values()):
    parts += ['## Agreement of the scorers',
              'On every scored text, whatever its value. A sign is positive, negative or exactly '
              'neutral (0.5). Scorers that agree may still share a bias; `fairjax scorers audit` '
              'measures what each thinks of the sensitive words themselves.',
              sections.agreement_table({k: v for k, v in agreement.items() if v})]
  if scorer_names(rows):
    parts += ['## More measures', details('p-values, errors, pairs, subgroups',
                                          sections.more_measures(rows))]
  if paired:
    parts += ['## Paired samples', sections.paired_section(paired)]
  parts += ['## What this does not show', sections.LIMITS, '## How it was made',
            sections.provenance(rows, config=config, seeds=seeds or {}, versions=versions)]
  write_json(directory / 'report.json', {
    'schema': 1, 'attribute': attribute, 'rows': _json_rows(rows), 'warnings': alarms,
    'notes': list(notes), 'config': config, 'seeds': dict(seeds or {}), 'versions': dict(versions),
    'known_bias': known_bias and dataclasses.asdict(known_bias), 'human': human,
    'paired_samples': [dataclasses.asdict(p) for p in paired],
    'figures': sorted(f'figures/{file.name}' for _, files in drawn for file in files)})
  path = directory / 'report.md'
  with atomic_write(path) as file:
    file.write(('\n\n'.join(parts) + '\n').encode('utf-8'))
  return path


def package_versions() -> dict[str, str]:
  """Versions of Python, fairjax and the packages that decide results; absent ones say so."""
  versions = {'python': platform.python_version(), 'fairjax': fairjax.__version__}
  for name in _PACKAGES:
    try:
      versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      versions[name] = 'not installed'
  return versions


def _json_rows(rows: Sequence[ModelRow]) -> list[dict[str, Any]]:
  """Rows with verdicts and changes."""
  baseline = baseline_of(rows)
  result = []
  for row in rows:
    verdicts = {
      scorer: {m: verdict(row.estimate(scorer, m)) for m in _MEASURES}
      for scorer in scorer_names([row])}
    result.append(dataclasses.asdict(row) | {
      'verdicts': verdicts,
      'change_against_baseline':
        None if baseline is None or row is baseline else changes(row, baseline)})
  return result


def _draw(
  directory: pathlib.Path, rows: Sequence[ModelRow],
  curves: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
) -> list[tuple[str, list[pathlib.Path]]]:
  """Draws every figure that the data allow: (title, files)."""
  drawn = []
  scorers = scorer_names(rows)
  if scorers:
    estimates = {s: {title: [row.estimate(s, m) for row in rows]
                     for title, m in zip(('I.F.', 'G.F.'), _MEASURES, strict=True)}
                 for s in scorers}
    drawn.append(('Individual and group fairness with null floors', figures.plot_fairness(
      directory / 'fairness', models=[row.name for row in rows],
      methods=[row.method for row in rows], estimates=estimates)))
  for scorer in scorers:
    points = [
      {'name': row.name, 'method': row.method, 'weight': row.weight, 'relevance': row.relevance(),
       'individual_fairness': row.estimate(scorer, 'individual_fairness')}
      for row in rows if row.scorer(scorer) is not None]
    drawn.append((f'Fairness against relevance, scorer {escape(scorer)}', figures.plot_tradeoff(
      directory / f'tradeoff-{_file_name(scorer)}', points=points, scorer=scorer)))
  for stage, runs in curves.items():
    if any(lines for lines in runs.values()):
      drawn.append((f'Training curves, {escape(stage)}', figures.plot_curves(
        directory / f'curves-{_file_name(stage)}', title=stage, runs=runs)))
  return drawn


def _file_name(text: str) -> str:
  """Text as part of a file name."""
  return re.sub(r'[^A-Za-z0-9-]+', '-', text)
