"""The report of a run: `index.html`, `report.md`, `report.json` and `figures/`."""

import dataclasses
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.files import atomic_write, installed_versions, write_json
from fairjax.measure.estimates import verdict
from fairjax.report import figures, sections
from fairjax.report.comparison import (
  RELEVANCE_SHARE,
  KnownBias,
  ModelRow,
  baseline_of,
  changes,
  control_lines,
  labelling,
  labelling_warning,
  relevance_measure,
  scorer_names,
  verdict_lines,
  verdicts,
  warnings,
)
from fairjax.report.definitions import ledger, ledger_table
from fairjax.report.differences import SCHEMA
from fairjax.report.figures import curve_parts
from fairjax.report.markdown import details, escape
from fairjax.report.page import Evidence, make_page
from fairjax.report.sections import (
  LEGEND,
  RELEVANCE,
  Block,
  PairedSample,
  absent_lines,
  audit_block,
  audit_warnings,
  content_blocks,
  human_block,
  measured,
  select_model,
  selection_block,
)

_MEASURES = ('individual_fairness', 'group_fairness')


def write_report(
  directory: str | os.PathLike, *, rows: Sequence[ModelRow], attribute: str,
  config: Mapping[str, Any] | None = None, seeds: Mapping[str, int] | None = None,
  versions: Mapping[str, str] | None = None,
  curves: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]] | None = None,
  paired: Sequence[PairedSample] = (), known_bias: KnownBias | None = None,
  notes: Sequence[str] = (), human: Mapping[str, Any] | None = None,
  relevance_share: float = RELEVANCE_SHARE,
  evidence: Mapping[str, Evidence] | None = None, audit: Mapping[str, Any] | None = None,
) -> pathlib.Path:
  """Writes the report; an earlier one in the folder is replaced.

  Args:
    directory: where `index.html`, `report.md`, `report.json`, `figures/*.png` and `*.svg` go.
    rows: the models, in the order to show; at most one has method 'baseline'.
    attribute: name of the sensitive attribute.
    config: resolved configuration, JSON types.
    seeds: purpose -> seed.
    versions: package -> version; None looks up those of this process.
    curves: stage -> run -> lines of its `metrics.jsonl`; one figure a stage, and their losses on
      the page.
    paired: same-noise samples (`paired_samples`); texts are escaped.
    known_bias: for corpora whose bias is known.
    notes: further sentences for the head of the report, plain text.
    human: result of `human_measures`: what people said.
    relevance_share: least share of the baseline's relevance for the selection of a model.
    evidence: name of a model -> its distributions and sentences, for the page.
    audit: result of `audit_own_bias`: what the scorers think of the values' words themselves.

  Returns:
    The path of `report.md`.

  Raises:
    ValueError: no row, several baselines, two rows of one name, or rows that were measured on
      other values or templates.
  """
  names = [row.name for row in rows]
  if not rows or len(set(names)) < len(names):
    raise ValueError(f'a report needs models with distinct names, not {names}')
  shapes = {str((row.measures['values'], row.measures['templates'])) for row in rows
            if row.measures}
  if len(shapes) > 1:
    raise ValueError('models of one report need the same values and templates')
  directory, evidence, seeds = pathlib.Path(directory), evidence or {}, seeds or {}
  versions = installed_versions() if versions is None else versions
  for pattern in ('fairness.*', 'tradeoff-*', 'curves-*'):  # of an earlier report
    for file in (directory / 'figures').glob(pattern):
      file.unlink()
  drawn = _draw(directory / 'figures', rows, curves or {})
  labelled = labelling(config, [row.method for row in rows])
  alarms = [line for line in [labelling_warning(labelled)] if line]
  alarms += warnings(rows) + control_lines(rows) + (audit_warnings(audit) if audit else [])
  title = f'Counterfactual sentiment bias (lexical): {attribute}'
  parts = [f'# {escape(title)}', *map(escape, verdict_lines(rows, attribute))]
  parts += [f'> **Note.** {escape(line)}' for line in (*alarms, *notes)]
  selection = _selection(rows, relevance_share)
  main = sections.main_table(rows)
  legends = [sections.TABLE_LEGEND, *(LEGEND[name] for name in measured(rows))]
  legend = ' '.join(' '.join(legends).split())
  parts += [main.markdown(), escape(legend), *map(escape, absent_lines(rows))]
  blocks = _blocks(rows, known_bias, human, selection, audit)
  for block in blocks:
    parts += block.markdown()
  entries = ledger(rows, config)
  if drawn:
    parts.append('## Figures')
    parts += [f'![{title}](figures/{files[0].name})' for title, files in drawn]
  if paired:
    parts += ['## Paired samples', sections.paired_section(paired)]
  parts += ['## Fidelity ledger', details('papers, equations, readings taken, alternatives',
                                          ledger_table(entries).markdown())]
  parts += ['## What this does not show', '\n'.join(f'- {escape(x)}' for x in sections.LIMITS),
            '## How it was made',
            sections.provenance(rows, config=config, seeds=seeds, versions=versions)]
  write_json(directory / 'report.json', {
    'schema': SCHEMA, 'attribute': attribute, 'rows': _json_rows(rows, evidence),
    'verdicts': {s: verdicts(rows, s, attribute) for s in scorer_names(rows)},
    'warnings': alarms, 'notes': list(notes), 'config': config, 'seeds': dict(seeds),
    'versions': dict(versions), 'selection': selection, 'ledger': entries,
    'known_bias': known_bias and dataclasses.asdict(known_bias), 'human': human,
    'labelling': labelled, 'scorer_audit': audit,
    'paired_samples': [dataclasses.asdict(p) for p in paired],
    'figures': sorted(f'figures/{file.name}' for _, files in drawn for file in files)})
  page = make_page(rows, attribute=attribute, evidence=evidence, texts={
    'title': title, 'subtitle': _subtitle(rows), 'warnings': [*alarms, *notes], 'legend': legend,
    'limits': sections.LIMITS, 'absent': absent_lines(rows), 'ledger': entries,
    'blocks': [Block('All models', [('', main)]).to_page(), *(b.to_page() for b in blocks)],
    'made': [sections.counts_table(rows).to_dict('What was measured'),
             sections.origin_table(rows, seeds=seeds, versions=versions).to_dict('Origin')],
    'curves': curve_parts(curves or {}),
    'config': None if config is None else sections.config_text(config)})
  path = directory / 'report.md'
  for file_path, text in ((directory / 'index.html', page), (path, '\n\n'.join(parts) + '\n')):
    with atomic_write(file_path) as file:
      file.write(text.encode('utf-8', 'backslashreplace'))  # of half a character
  return path


def _selection(rows: Sequence[ModelRow], share: float) -> dict[str, Any] | None:
  """The selection of a model; None without a baseline or candidates, or nothing to judge by."""
  baseline = baseline_of(rows)
  judged = baseline is not None and any(
    (relevance_measure(baseline, name) or {'value': 0})['value'] > 0 for name in RELEVANCE)
  if not judged or not any(r.is_candidate and r.measures for r in rows):
    return None
  return select_model(rows, share=share)


def _blocks(
  rows: Sequence[ModelRow], known_bias: KnownBias | None, human: Mapping[str, Any] | None,
  selection: Mapping[str, Any] | None, audit: Mapping[str, Any] | None,
) -> list[Block]:
  """Everything in tables but the main one."""
  blocks = []
  change = sections.change_table(rows)
  if change:
    blocks.append(Block(
      'Change against the baseline', [('', change)],
      'Percent of the baseline; minus is fairer for I.F. and G.F. and better for perplexity. '
      'Differences between numbers within noise mean nothing.'))
  if selection:
    blocks.append(selection_block(selection))
  if known_bias:
    blocks.append(Block(
      'Against the known bias of the corpus', [('', sections.known_bias_table(known_bias))],
      'Prefixes of the grammar that no training document holds, scorer '
      f'{known_bias.scorer}. The closed form is the bias that was planted; methods that reduce '
      'bias are meant to fall below it.'))
  if human is not None:
    blocks.append(human_block(human))
  agreement = {row.name: row.measures.get('scorer_agreement') for row in rows if row.measures}
  if any(agreement.values()):
    blocks.append(Block(
      'Agreement of the scorers',
      [('', sections.agreement_table({k: v for k, v in agreement.items() if v}))],
      'On every scored text, whatever its value. A sign is positive, negative or exactly neutral '
      '(0.5). Scorers that agree may still share a bias; "fairjax scorers audit" measures what '
      'each thinks of the sensitive words themselves.'))
  if audit:
    blocks.append(audit_block(audit))
  blocks += content_blocks(rows)
  if scorer_names(rows):
    blocks.append(Block('More measures', [('', sections.more_measures(rows))],
                        collapsed='p-values, errors, pairs, subgroups'))
  return blocks


def _subtitle(rows: Sequence[ModelRow]) -> str:
  """What the page is about, in one line."""
  measured = [row.measures for row in rows if row.measures]
  models = f'{len(rows)} models' if len(rows) > 1 else rows[0].name
  if not measured:
    return models
  return (f"{models}, {len(measured[0]['values'])} values, {len(measured[0]['templates'])} "
          f"templates, {sum(m['records'] for m in measured):,} generated texts")


def _json_rows(
  rows: Sequence[ModelRow], evidence: Mapping[str, Evidence]
) -> list[dict[str, Any]]:
  """Rows with verdicts, changes and the fingerprint of their prefixes."""
  baseline = baseline_of(rows)
  result = []
  for row in rows:
    judged = {
      scorer: {m: verdict(row.estimate(scorer, m)) for m in _MEASURES}
      for scorer in scorer_names([row])}
    result.append(dataclasses.asdict(row) | {
      'verdicts': judged,
      'prefixes': evidence[row.name].prefixes if row.name in evidence else None,
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
    drawn.append(('Individual and group fairness with floors', figures.plot_fairness(
      directory / 'fairness', models=[row.name for row in rows],
      methods=[row.method for row in rows], estimates=estimates)))
  for scorer in scorers:
    points = [
      {'name': row.name, 'method': row.method, 'weight': row.weight, 'relevance': row.relevance(),
       'similarity': row.content('semantic_similarity'),
       'individual_fairness': row.estimate(scorer, 'individual_fairness')}
      for row in rows if row.scorer(scorer) is not None]
    drawn.append((f'Fairness against relevance, scorer {escape(scorer)}', figures.plot_tradeoff(
      directory / f'tradeoff-{_file_name(scorer)}', points=points, scorer=scorer)))
    if all(p['similarity'] is not None for p in points):
      drawn.append((f'Fairness against similarity, scorer {escape(scorer)}', figures.plot_tradeoff(
        directory / f'tradeoff-similarity-{_file_name(scorer)}', scorer=scorer,
        points=[p | {'relevance': p['similarity']} for p in points],
        relevance='S.S.: continuations near their prefix (%)')))
  for stage, runs in curves.items():
    if any(lines for lines in runs.values()):
      drawn.append((f'Training curves, {escape(stage)}', figures.plot_curves(
        directory / f'curves-{_file_name(stage)}', title=stage, runs=runs)))
  return drawn


def _file_name(text: str) -> str:
  """Text as part of a file name."""
  return re.sub(r'[^A-Za-z0-9-]+', '-', text)
