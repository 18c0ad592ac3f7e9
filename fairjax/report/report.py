"""The report of a run: `index.html`, `report.md`, `report.json` and `figures/`."""

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.errors import UserError
from fairjax.files import installed_versions, write_file, write_json
from fairjax.measure.estimates import verdict
from fairjax.report import comparison, figures, sections
from fairjax.report.comparison import KnownBias, ModelRow, scorer_names
from fairjax.report.definitions import definitions
from fairjax.report.differences import FAIRNESS, SCHEMA
from fairjax.report.document import (
  Bullets,
  Code,
  Details,
  Document,
  Figure,
  Part,
  Section,
  Table,
  Text,
  counted,
)
from fairjax.report.page import Distributions, make_page
from fairjax.report.sections import PairedSample

Curves = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]


def write_report(
  directory: str | os.PathLike, *, rows: Sequence[ModelRow], attribute: str,
  distributions: Mapping[str, Distributions],
  config: Mapping[str, Any] | None = None, seeds: Mapping[str, int] | None = None,
  curves: Curves | None = None,
  paired: Sequence[PairedSample] = (), known_bias: KnownBias | None = None,
  notes: Sequence[str] = (), human: Mapping[str, Any] | None = None,
  relevance_share: float = comparison.RELEVANCE_SHARE,
  audit: Mapping[str, Any] | None = None,
  trainings: Mapping[str, Any] | None = None,
) -> pathlib.Path:
  """Writes the report; an earlier one in the folder is replaced.

  Args:
    directory: where `index.html`, `report.md`, its short form `summary.md`, `report.json`,
      `figures/*.png` and `*.svg` go.
    rows: the models, at least one, in the order to show: names differ, values and templates do
      not, at most one has method 'baseline'.
    attribute: name of the sensitive attribute.
    distributions: name of a model -> its distributions and sentences, for the page.
    config: resolved configuration, JSON types.
    seeds: purpose -> seed.
    curves: stage -> run -> lines of its `metrics.jsonl`; one figure a stage, and where it ended.
    paired: same-noise samples (`paired_samples`).
    known_bias: for corpora whose bias is known.
    notes: further sentences for the head of the report, plain text.
    human: result of `human_measures`, the labels of people.
    relevance_share: least share of the baseline's relevance for the selection of a model.
    audit: result of `audit_own_bias`: what the scorers think of the values' words themselves.
    trainings: result of `spread_of_trainings`, of the same run with several seeds.

  Returns:
    The path of `report.md`.

  Raises:
    UserError: the folder has files of these names that are no report of fairjax.
  """
  directory, seeds, curves = pathlib.Path(directory), seeds or {}, curves or {}
  check_folder(directory)
  versions = installed_versions()
  for name in ('values', 'fairness', 'tradeoff-*', 'curves-*'):  # of an earlier report
    for old in (directory / 'figures').glob(f'{name}.[ps][nv]g'):
      old.unlink()
  labelled = comparison.labelling(config, [row.method for row in rows])
  limits = [line for line in [comparison.labelling_warning(labelled)] if line]
  limits += comparison.warnings(rows)
  controls = comparison.control_lines(rows)
  audited = sections.audit_warnings(audit) if audit else []
  selection = _selection(rows, relevance_share)
  judged = {scorer: comparison.verdicts(rows, scorer) for scorer in scorer_names(rows)}
  defined = definitions(rows, config)
  ordered = comparison.recommended_first(rows, selection)
  drawn = _draw(directory / 'figures', ordered, curves, distributions)
  title = f'Sentiment bias by {attribute}'
  head: list[Part] = [
    Text(_subtitle(rows), 'muted'),
    *(Text(line, 'lead') for line in comparison.verdict_lines(rows, attribute, selection))]
  cautions = [Text(line, 'note') for line in (*limits, *audited)]
  overview: list[Part] = [sections.overview_table(ordered, selection),
                          Text(sections.definitions(rows), 'small')]
  overview += [*sections.rewording_lines(ordered), *sections.crossed_parts(ordered)]
  if trainings:
    overview += [sections.trainings_table(trainings), Text(sections.TRAININGS, 'small')]
  costs = _of_kind(drawn, 'tradeoff-')
  document = Document(title, [
    *head, *cautions, *([Details('Notes on these numbers', [Bullets(notes)])] if notes else [])], [
    Section('In short', [*_of_kind(drawn, 'values'), *overview]),
    Section('What debiasing changes and costs', costs and [
      *_of_kind(drawn, 'fairness'), costs[0],
      *([Details('By the other scorers', costs[1:])] if costs[1:] else [])]),
    Section('What this does not show', [Bullets(sections.LIMITS)]),
    *(dataclasses.replace(section, folded=True) for section in (
      Section('All measures', [
        *(_of_kind(drawn, 'fairness') if not costs else []), sections.main_table(ordered),
        Text(sections.legend(rows), 'small'),
        *(Text(line, 'small') for line in sections.absent_lines(ordered))]),
      *_tables(ordered, known_bias, human, selection, audit, controls),
      Section('Training curves', _curve_parts(curves, drawn)),
      *([sections.paired_section(paired)] if paired else []),
      _definitions_section(defined),
      Section('How it was made', [
        sections.counts_table(rows), sections.origin_table(rows, seeds=seeds, versions=versions),
        *([] if config is None else [Details('Configuration', [Code(json.dumps(
          config, indent=2, sort_keys=True, ensure_ascii=False), 'json')])])])))])
  more = Text('All numbers, figures and texts are in report.md and index.html.')
  summary = Document(title, head, [Section('Models', [*overview, *cautions, more])])
  write_json(directory / 'report.json', {
    'schema': SCHEMA, 'attribute': attribute, 'rows': _json_rows(rows, distributions),
    'verdicts': judged, 'warnings': limits + controls + audited, 'notes': list(notes),
    'config': config, 'seeds': dict(seeds), 'versions': versions, 'selection': selection,
    'definitions': defined,
    'known_bias': known_bias and dataclasses.asdict(known_bias), 'human': human,
    'labelling': labelled, 'scorer_audit': audit, 'trainings': trainings,
    'paired_samples': [dataclasses.asdict(p) for p in paired],
    'figures': sorted(f'figures/{file.name}' for figure in drawn
                      for file in (figure.path, figure.path.with_suffix('.png')))})
  path = directory / 'report.md'
  for file_path, text in ((directory / 'index.html', make_page(document, rows, distributions)),
                          (path, document.markdown()),
                          (directory / 'summary.md', summary.markdown())):
    write_file(file_path, text)
  return path


def check_folder(directory: str | os.PathLike) -> None:
  """Refuses a folder that has files of a report's names, but no `report.json` of fairjax."""
  directory = pathlib.Path(directory)
  there = [name for name in ('report.json', 'index.html', 'report.md', 'summary.md')
           if (directory / name).exists()]
  try:  # parsing a large report takes as long as making it
    known = re.search(rb'[{,]\s*"schema"\s*:\s*\d', (directory / 'report.json').read_bytes())
  except OSError:
    known = None
  if there and not known:
    raise UserError(f'{directory} holds {there[0]}, but no report of fairjax that could be '
                    'replaced: give another folder')


def _selection(rows: Sequence[ModelRow], share: float) -> dict[str, Any] | None:
  """The selection of a model; None without a baseline or candidates, or nothing to judge by."""
  try:
    return sections.select_model(rows, share=share)
  except UserError:
    return None


def _of_kind(drawn: Sequence[Figure], kind: str) -> list[Figure]:
  """The figures of a kind, by their file names."""
  return [figure for figure in drawn if figure.path.name.startswith(kind)]


def _tables(
  rows: Sequence[ModelRow], known_bias: KnownBias | None, human: Mapping[str, Any] | None,
  selection: Mapping[str, Any] | None, audit: Mapping[str, Any] | None, controls: Sequence[str],
) -> list[Section]:
  """Everything in tables but the main one."""
  found = []
  if selection:
    found.append(sections.selection_section(selection))
  if controls:
    found.append(Section('Is it the sentiment projection?', [Bullets(controls)]))
  if known_bias:
    found.append(Section('Against the known bias of the corpus', [
      Text('Prefixes of the grammar that no training document holds, scorer '
           f'{known_bias.scorer}. The closed form is the bias that was planted; methods that '
           'reduce bias are meant to fall below it.'), sections.known_bias_table(known_bias)]))
  if human is not None:
    found.append(sections.human_section(human))
  agreement = {row.name: pairs for row in rows if (pairs := row.measures.get('scorer_agreement'))}
  if agreement:
    found.append(Section('Agreement of the scorers', [
      Text('On every scored text, whatever its value. A sign is positive, negative or exactly '
           'neutral (0.5). Scorers that agree may still share a bias; "fairjax scorers audit" '
           'measures what each thinks of the sensitive words themselves.'),
      sections.agreement_table(agreement)]))
  if audit:
    found.append(sections.audit_section(audit))
  found += sections.content_sections(rows)
  return [*found, Section('More measures', [Details(
    'p-values, errors, pairs, subgroups', [sections.more_measures(rows)])])]


def _curve_parts(curves: Curves, drawn: Sequence[Figure]) -> list[Part]:
  """The figure of each stage, and its last losses."""
  parts: list[Part] = []
  for stage, runs in curves.items():
    parts += _of_kind(drawn, f'curves-{_file_name(stage)}.svg')
    table, lost = sections.curve_table(stage, runs)
    if table.rows:
      parts.append(table)
    notes = [f'{lost} values are not finite and are left out.'] * bool(lost)
    if any(sum(line.get('kind', 'train') == 'train' for line in lines) > figures.MOST_POINTS
           for lines in runs.values()):
      notes.append(f'At most {figures.MOST_POINTS:,} points of a line are drawn.')
    if notes:
      parts.append(Text(f"{stage}: {' '.join(notes)}", 'small'))
  return parts


def _definitions_section(entries: Sequence[Mapping[str, Any]]) -> Section:
  """One definition a metric to open."""
  fields = {'paper': 'Paper', 'equation': 'Equation', 'definition': 'Definition',
            'reading': 'Reading taken', 'alternatives': 'Alternatives'}
  return Section('Definitions', [
    Text('What each number is, where it comes from, and which reading was taken where the paper '
         'leaves several.'),
    *(Details(f"{e['metric']} ({e['id']}; {e['equation']})", [
      Table(['what', 'words'], [[label, e[key]] for key, label in fields.items()], text_columns=2),
      Bullets([(f"{h['scorer']}, " if h['scorer'] else '') + h['words'] for h in e['here']])])
      for e in entries)])


def _subtitle(rows: Sequence[ModelRow]) -> str:
  """What the report is about, in one line."""
  models = f'{len(rows)} models' if len(rows) > 1 else rows[0].name
  first = rows[0].measures
  reworded = sum(scorer.get('rewording', {'records': 0})['records'] for row in rows
                 for scorer in list(row.measures['scorers'].values())[:1])
  return (f"{models}, {len(first['values'])} values, {counted(len(first['templates']), 'template')}"
          f", {sum(row.measures['records'] for row in rows):,} generated texts"
          + f', {reworded:,} of rewordings' * (reworded > 0))


def _json_rows(
  rows: Sequence[ModelRow], distributions: Mapping[str, Distributions]
) -> list[dict[str, Any]]:
  """Rows with verdicts, changes and the fingerprint of their prefixes."""
  baseline = comparison.baseline_of(rows)
  result = []
  for row in rows:
    judged = {
      scorer: {m: verdict(row.estimate(scorer, m)) for m in FAIRNESS}
      for scorer in scorer_names([row])}
    result.append(vars(row) | {
      'verdicts': judged,
      'prefixes': distributions[row.name].prefixes,
      'change_against_baseline':
        None if baseline is None or row is baseline else comparison.changes(row, baseline)})
  return result


def _draw(
  directory: pathlib.Path, rows: Sequence[ModelRow], curves: Curves,
  distributions: Mapping[str, Distributions],
) -> list[Figure]:
  """Draws every figure that the data allow."""
  drawn = []

  def draw(title, files):
    drawn.append(Figure(title, files[0].with_suffix('.svg')))

  scorers = scorer_names(rows)
  draw('Mean score of each value (0 negative, 1 positive) with its 95 % interval',
       figures.plot_values(directory / 'values', rows=rows, scorers=scorers, errors={
         name: found.errors for name, found in distributions.items()}))
  estimates = {f'scorer {s}': {label: [row.estimate(s, m) for row in rows]
                               for m, label in FAIRNESS.items()} for s in scorers}
  draw('Individual and group fairness with floors', figures.plot_fairness(
    directory / 'fairness', models=[row.name for row in rows],
    methods=[row.method for row in rows], estimates=estimates))
  names = [_file_name(scorer) for scorer in scorers]
  for k, scorer in enumerate(scorers if len(rows) > 1 else ()):
    name = names[k] + f'-{k}' * (names.index(names[k]) < k)  # a.b and a-b are two scorers
    panels = [('', label, points) for label, measure in figures.COSTS.items()
              if (points := figures.tradeoff_points(rows, scorer, measure))]
    draw(f'Fairness against what it costs, scorer {scorer}', figures.plot_tradeoff(
      directory / f'tradeoff-{name}', panels=panels, scorer=scorer))
  methods = {row.name: row.method for row in rows} | {'f_sh': 'sentiment'}
  for stage, runs in curves.items():
    draw(f'Training curves, {stage}', figures.plot_curves(
      directory / f'curves-{_file_name(stage)}', title=stage, runs=runs, methods=methods))
  return drawn


def _file_name(text: str) -> str:
  return re.sub(r'[^A-Za-z0-9-]+', '-', text)
