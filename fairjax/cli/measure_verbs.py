"""`measure`, `records plan`, `scorers audit` and `lexicon`, and what names scorers and measures."""

import argparse
import itertools
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairjax.cli.options import (
  CONTENT,
  READING,
  SCORERS,
  add_run_options,
  add_shared,
  not_negative,
  of_records,
  place_of,
  refuse,
  require,
)
from fairjax.cli.verb import (
  Command,
  format_section,
  log_line,
  open_job,
  print_result,
  records_reader,
)
from fairjax.config import MeasureConfig
from fairjax.errors import UserError
from fairjax.files import write_json
from fairjax.inputs import is_pipe, read_text_lines

if TYPE_CHECKING:
  import numpy as np

  from fairjax.counterfactual import Attribute
  from fairjax.measure import Generations, Scorer
  from fairjax.measure.content import ContentOptions
  from fairjax.measure.power import Scores
  from fairjax.measure.scorers.base import RecordedScorer


def content_options(options: argparse.Namespace, attributes: 'Sequence[Attribute]'
                    ) -> 'dict[str, ContentOptions]':
  """What S.S. (H-27), words and next token of each attribute need, by its name."""
  from fairjax.run.recorded import record_contents
  threshold, baseline = options.similarity_threshold, options.baseline_records
  if threshold.startswith('baseline:') != bool(baseline):
    raise UserError('--similarity-threshold=baseline:SHARE and --baseline-records=FILE need each '
                    'other')
  if not options.encoder and (threshold != 'encoder' or options.similarity_samples):
    raise UserError('--similarity-threshold and --similarity-samples are for S.S., which needs '
                    '--encoder=NAME')
  measure = MeasureConfig(encoder=options.encoder or '', similarity_threshold=threshold,
                          similarity_samples=options.similarity_samples)
  return record_contents(
    attributes, measure,
    records_reader(options, attributes, whole=False)(baseline) if baseline else None,
    empty=options.empty, coupled=not options.independent)


def load_scorers(options: argparse.Namespace, path: str, *, bert: Sequence[str] = (),
                 keep: bool = False) -> 'list[Scorer | RecordedScorer]':
  """The scorers of `--scorer`, after classifiers `bert`, for the texts of a file."""
  # With `keep` slow ones keep their scores beside the texts where the folder can be written, so
  # that an interrupted command continues.
  from fairjax.generate import records_stem
  from fairjax.measure import load_scorer
  from fairjax.measure.scorers.audit import check_scorers
  names = [*(f'bert:{directory}' for directory in bert), *(options.scorer or ())]
  if options.lexicon and 'opinion' not in names:
    raise UserError(f"--lexicon {' '.join(options.lexicon)}: it belongs to --scorer=opinion (and "
                    'takes all words up to the next option)')
  if 'google' not in names:
    refuse(options, 'google-cache', 'google-rate', 'google-endpoint',
           why='belongs to --scorer=google')
  if 'google' in names and not options.google_cache and is_pipe(path):
    raise UserError(f'{path} is no file, so nothing says where scores that were paid for are kept: '
                    'name --google-cache=FILE')

  def beside(name):
    return pathlib.Path(path).parent / f'{records_stem(path)}.{name}-scores.jsonl'

  google = {'cache': options.google_cache or beside('google'), 'log': log_line,
            'requests_per_minute': options.google_rate, 'endpoint': options.google_endpoint}
  scorers = [load_scorer(name, lexicon=options.lexicon, google=google) for name in names]
  check_scorers(scorers)
  for scorer in scorers if keep else ():
    if not hasattr(scorer, 'score_file'):
      continue
    kept = beside(scorer.name)
    if is_pipe(path):
      log_line(f'{scorer.name}: {path} is no file: no score is kept')
    elif os.access(kept if kept.exists() else kept.parent, os.W_OK):
      scorer.score_file = kept
      log_line(f'{scorer.name}: scores are kept in {kept}')
    else:
      log_line(f'{scorer.name}: {kept.parent} cannot be written: no score is kept')
  return scorers


def read_prompts(options: argparse.Namespace, attributes: 'Sequence[Attribute]', path: str
                 ) -> 'dict[str, Generations]':
  """Records of a file by attribute, without those of rewordings; logs what is not there."""
  from fairjax.measure.columns import read_attributes
  from fairjax.measure.measures import coverage_notes
  found = read_attributes(records_reader(options, attributes, whole=False)(path), attributes,
                          empty=options.empty, coupled=not options.independent)
  for generations in found.values():
    for note in coverage_notes(generations):
      log_line(f'{path}: {note}')
    if generations.reworded is not None:
      log_line(f'{path}: {len(generations.reworded):,} records of rewordings are left out')
  return found


# `scorers audit` and `scorers lexicon`.

def _audit_options(parser: argparse.ArgumentParser) -> None:
  add_shared(parser, *SCORERS, 'records', 'columns', 'repair')
  parser.add_argument('--texts', metavar='FILE', help='or a text file, one text a line')
  add_shared(parser, 'attribute', required=True)
  add_shared(parser, 'scored')
  parser.add_argument('--limit', type=not_negative, default=0, metavar='N',
                      help='swap in at most N texts, a seeded choice, counted (0: in all)')
  add_shared(parser, 'permutations', default=9999, help='of the paired test')
  add_shared(parser, 'seed', 'json')


def _lexicon_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--output', metavar='DIR', required=True,
                      help='folder for positive-words.txt and negative-words.txt')


def _audit(options: argparse.Namespace) -> None:
  from fairjax.counterfactual import load_attribute
  from fairjax.measure.scorers.audit import audit_scorers
  if not options.scorer or bool(options.records) == bool(options.texts):
    raise UserError('scorers audit needs --scorer=S (once or more), --attribute=A, and either '
                    '--records=FILE or --texts=FILE')
  attribute = load_attribute(options.attribute)
  scorers = load_scorers(options, options.records or options.texts, keep=True)
  texts, recorded = _read(options, scorers, attribute)
  result = audit_scorers(
    texts, attribute, scorers, recorded=recorded, limit=options.limit,
    permutations=options.permutations, seed=options.seed)
  print_result(options, result, _format_audit)


def _read(options: argparse.Namespace, scorers: 'Sequence[Scorer | RecordedScorer]',
          attribute: 'Attribute') -> tuple[list[str], 'dict[str, np.ndarray]']:
  """Texts as they are scored, and the recorded scores by scorer name."""
  from fairjax.measure import score_records
  from fairjax.measure.columns import scored_text
  from fairjax.measure.scorers.base import RecordedScorer
  recorded = [s for s in scorers if isinstance(s, RecordedScorer)]
  if options.texts:
    refuse(options, 'columns', 'repair', 'scored', why='belongs to --records')
    if recorded:
      raise UserError(f'{recorded[0].name}: a text file brings no scores: use --records')
    lines = read_text_lines(options.texts, what='texts')
    return [line.strip() for line in lines if line.strip()], {}
  records = list(records_reader(options, [attribute])(options.records))
  texts = [scored_text(r, options.scored) for r in records]
  return texts, {s.name: score_records(records, s) for s in recorded}


def _fetch(options: argparse.Namespace) -> None:
  from fairjax.measure.scorers import lexicon
  paths = lexicon.fetch_lexicon(options.output, url=lexicon.URL)
  counts = [len(lexicon.read_lexicon(path)) for path in paths]
  print(f'{paths[0].parent}: {counts[0]} positive and {counts[1]} negative words of Hu and Liu '
        f'(2004), CC BY 4.0: name the authors. Use: --lexicon {paths[0].parent}')


def _format_audit(result: Mapping[str, Any]) -> str:
  """Paragraphs and tables."""
  from fairjax.measure.scorers.audit import count_distinct
  from fairjax.report.sections import agreement_table, audit_section
  parts = [format_section(audit_section(result))]
  if result['agreement']:
    parts += ['Agreement on all texts:', agreement_table({'': result['agreement']}).text()]
  if count_distinct(result['scorers'].values()) == 1:
    same = '' if len(result['scorers']) == 1 else ' (all have the same weights)'
    parts.append(f'One scorer only{same}: nothing says which differences are its own. Add a second '
                 'one.')
  return '\n\n'.join(parts)


# The verb `measure`.

def _measure_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser, required=False)
  add_shared(parser, 'records', help='generations of any model, as JSON lines, JSON array, CSV, '
             'TSV or Parquet, also compressed; - reads the standard input: prefix, value, '
             'continuation')
  add_shared(parser, 'attribute', action='append',
             help='built-in attribute, YAML file, or the combinations of two (A*B); repeat for a '
             'file with several')
  add_shared(parser, *READING, *SCORERS)
  add_shared(parser, 'keep', *CONTENT, 'scored', 'permutations')
  add_shared(parser, 'seed', help='of the permutations')
  add_shared(parser, 'independent', 'json')
  parser.add_argument('--output', metavar='FILE', type=place_of(folder=False),
                      help='write the JSON to a file')


def _measure(options: argparse.Namespace) -> None:
  if not of_records(options, 'keep', 'scored', 'seed', 'json',
                    needs='--attribute=A --scorer=S'):
    open_job(options).measure()
    return
  from fairjax.api import measure_attributes
  from fairjax.counterfactual import load_attribute
  from fairjax.report import ModelRow
  from fairjax.report.sections import measure_section
  require(options, 'measure --records', 'attribute', 'scorer')
  attributes = [load_attribute(name) for name in options.attribute]
  found = measure_attributes(
    options.records, attributes, load_scorers(options, options.records, keep=not options.keep),
    contents=content_options(options, attributes), columns=options.columns,
    empty=options.empty, repair=options.repair, coupled=not options.independent,
    keep=options.keep, scored=options.scored, permutations=options.permutations,
    seed=options.seed, log=log_line)
  measures = {name: result.measures for name, result in found.items()}
  result = measures if len(measures) > 1 else next(iter(measures.values()))
  if options.output:
    write_json(options.output, result)
    log_line(f'wrote {options.output}')
  print_result(options, result, lambda _: '\n'.join(
    line for result in found.values()
    for line in (format_section(measure_section(ModelRow(
      result.name, 'model', measures=result.measures))), result.verdict)))


# `records plan`: how many samples of a prefix an effect needs.

def _plan_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--effect', type=float, metavar='W1', required=True,
                      help='the I.F., or distance of a pair, that must be found')
  parser.add_argument('--power', type=float, default=0.8, help='how often it must be found')
  parser.add_argument('--level', type=float, default=0.05, help='of the test')
  parser.add_argument('--values', type=int, default=2, help='values of the attribute')
  parser.add_argument('--templates', type=int, default=1, help='templates of the average')
  parser.add_argument('--pairs', type=int, default=1,
                      help="tests of Holm's correction, whose first step the effect must pass")
  parser.add_argument('--shared', type=float, metavar='R',
                      help='share of the sample numbers at which all values score the same '
                      '(default: none and 0.8; with --records the measured one)')
  pilot = parser.add_argument_group('a pilot, whose scores stand for those of the samples')
  add_shared(pilot, 'records')
  add_shared(pilot, 'attribute', action='append', help='of the records; repeat for several')
  add_shared(pilot, *READING, *SCORERS, 'keep', 'scored', 'independent')
  add_shared(parser, 'seed', 'json')


def _plan(options: argparse.Namespace) -> None:
  from fairjax.measure import model_scores, plan_samples
  from fairjax.measure.power import KINDS
  if options.records:
    kinds = _pilots(options)
  else:
    refuse(options, 'attribute', *READING, *SCORERS, 'keep', 'scored', 'independent',
           why='is of a pilot: name its --records too')
    shares = (0.0, 0.8) if options.shared is None else (options.shared,)
    kinds = [model_scores(kind, shared=share) for share in shares for kind in KINDS]
  rows = []
  for scores in kinds:
    rows.append(plan_samples(
      scores, effect=options.effect, power=options.power, level=options.level,
      values=options.values, templates=options.templates, tests=options.pairs, seed=options.seed))
    if not options.json:
      print(_format_plan(rows[-1]), flush=True)
  if options.json:
    print(json.dumps(rows, indent=2, allow_nan=False))
  elif not options.records:
    print('binary scores vary most: no scores need more. For your own scorer and model, give a '
          'pilot: --records=FILE --attribute=A --scorer=S')


def _format_plan(row: Mapping[str, Any]) -> str:
  from fairjax.report.document import counted
  kind = f"coupled, shared {row['shared']:.2f}" if row['coupled'] else 'independent'
  found, low, high = (f"{100 * row[k]:.0f}" for k in ('power_found', 'power_low', 'power_high'))
  # At level 0.05 of one test the limit is the 95th percentile; other tests have other limits.
  limit = 'floor' if row['level'] == 0.05 and row['tests'] == 1 else 'significant above'
  return (f"{row['scores']:20s} {kind:26s} {row['samples']:>9,} samples per prefix "
          f"({row['continuations']:,} in all, of {row['values']} values in "
          f"{counted(row['templates'], 'template')}): found in {found} % [{low}, {high}]; "
          f"expected by chance {row['null_mean']:.4f}, {limit} {row['critical']:.4f}")


def _pilots(options: argparse.Namespace) -> 'list[Scores]':
  """Scores of the records, for each attribute and scorer."""
  from fairjax.counterfactual import load_attribute
  from fairjax.measure import pilot_scores
  from fairjax.measure.scorers.cache import score_file, score_generations
  require(options, 'records plan --records (a pilot)', 'attribute', 'scorer')
  if options.shared is not None:
    raise UserError('--shared is measured on the records of a pilot: leave it out')
  scorers = load_scorers(options, options.records, keep=not options.keep)
  attributes = [load_attribute(a) for a in options.attribute]
  found = []
  for name, generations in read_prompts(options, attributes, options.records).items():
    for scorer in scorers:
      samples = generations.sample_scores(score_generations(
        generations, scorer, score_file(options.keep, name, scorer) if options.keep else None,
        scored=options.scored, log=log_line), numbered=not options.independent)
      found.append(pilot_scores(samples, f'{name}, {scorer.name}'))
      if all(len({*x}) == 1 for x in map(itertools.chain.from_iterable, samples.scores)):
        log_line(f"{found[-1].name}: the pilot's scores never vary in a template: its plan tells "
                 'too little: take another scorer, or more records')
      elif samples.samples_per_prefix[1] == 1:
        log_line(f'{found[-1].name}: the pilot has 1 sample a prefix: its plan is uncertain: take '
                 'more samples')
  return found


COMMANDS = {
  'measure': Command(
    _measure_options, _measure,
    example='fairjax measure --records=generations.jsonl --attribute=country --scorer=vader '
    '--json', alone=lambda options: 'measure --records' if options.records else ''),
  'records plan': Command(_plan_options, _plan, 'how many samples an effect needs',
                          'fairjax records plan --effect=0.01 --templates=10'),
  'scorers audit': Command(
    _audit_options, _audit, "measure the scorers' own bias and how well they agree",
    'fairjax scorers audit --records=generations.jsonl --attribute=country '
    '--scorer=opinion --scorer=vader --lexicon=lexicon'),
  'scorers lexicon': Command(
    _lexicon_options, _fetch, 'fetch the opinion words of Hu and Liu (network, hash checked)',
    'fairjax scorers lexicon --output=lexicon'),
}
