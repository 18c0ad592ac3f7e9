"""Verbs about scorers: `fairjax scorers audit`, `fairjax lexicon fetch`, and their options."""

import argparse
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.commands.verb import Verb, add_reading_options, log_line, records_reader
from fairjax.errors import UserError
from fairjax.inputs import is_pipe, read_text_lines


def add_scorer_options(parser: argparse._ActionsContainer) -> None:
  """Adds what names scorers and what they need."""
  parser.add_argument('--scorer', action='append', default=None,
                      help='opinion | vader | textblob | google | bert:DIR | recorded:NAME; repeat')
  parser.add_argument('--lexicon', nargs='+', metavar='FILE', default=None,
                      help='opinion scorer: POSITIVE NEGATIVE, or --lexicon=DIR of lexicon fetch')
  parser.add_argument('--google-cache', metavar='FILE', default=None,
                      help='google scorer: file of the scores that were paid for (default: beside '
                      'the texts that are scored)')
  parser.add_argument('--google-rate', metavar='N', type=float, default=600.0,
                      help='google scorer: requests a minute')
  parser.add_argument('--google-endpoint', metavar='HOST', default='',
                      help='google scorer: host of another region')


def _add_audit_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('action', choices=('audit',))
  add_scorer_options(parser)
  parser.add_argument('--records', metavar='FILE',
                      help='generations, as of fairjax measure')
  add_reading_options(parser, empty=False)
  parser.add_argument('--texts', metavar='FILE', help='or a text file, one text a line')
  parser.add_argument('--attribute', required=True, help='built-in attribute or YAML file')
  parser.add_argument('--scored', choices=('continuation', 'prefix+continuation'),
                      default='continuation', help='which part of a record is scored')
  parser.add_argument('--limit', type=int, default=0, metavar='N',
                      help='swap in at most N texts, a seeded choice, counted (0: in all)')
  parser.add_argument('--permutations', type=int, default=9999, help='of the paired test')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--json', action='store_true', help='print JSON')


def _add_lexicon_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('action', choices=('fetch',))
  parser.add_argument('--output', metavar='DIR', required=True,
                      help='folder for positive-words.txt and negative-words.txt')
  parser.add_argument('--url', default=None, help='another https address of the same archive')


def google_arguments(options: argparse.Namespace, path: str) -> dict[str, Any]:
  """Arguments of the google scorer from options; its file lies beside `path` by default."""
  from fairjax.generate import records_stem
  asked = 'google' in (getattr(options, 'scorer', None) or ())
  if asked and not options.google_cache and is_pipe(path):
    raise UserError(f'{path} is no file, so nothing says where scores that were paid for are kept: '
                    'name --google-cache=FILE')
  cache = options.google_cache or pathlib.Path(path).with_name(
    f'{records_stem(path)}.google-scores.jsonl')
  return {'cache': cache, 'requests_per_minute': options.google_rate,
          'endpoint': options.google_endpoint,
          'log': log_line}


def load_scorers(options: argparse.Namespace, path: str) -> list[Any]:
  """The scorers of `--scorer` for the texts of a file.

  Those that take long keep their scores beside the texts, as google's are, unless the folder can
  only be read: an interrupted command then continues.

  Raises:
    UserError: a scorer cannot be made, or is given twice.
  """
  from fairjax.generate import records_stem
  from fairjax.measure import load_scorer
  from fairjax.measure.scorer_audit import check_scorers
  google = google_arguments(options, path)
  scorers = [load_scorer(n, lexicon=options.lexicon, google=google) for n in options.scorer]
  check_scorers(scorers)
  for scorer in scorers:
    if getattr(options, 'keep', None) or not hasattr(scorer, 'score_file'):
      continue
    kept = pathlib.Path(path).with_name(f'{records_stem(path)}.{scorer.name}-scores.jsonl')
    if is_pipe(path):
      log_line(f'{scorer.name}: {path} is no file: no score is kept')
    elif os.access(kept if kept.exists() else kept.parent, os.W_OK):
      scorer.score_file = kept
      log_line(f'{scorer.name}: scores are kept in {kept}')
    else:
      log_line(f'{scorer.name}: {kept.parent} cannot be written: no score is kept')
  return scorers


def audit(options: argparse.Namespace) -> None:
  """Prints the audit of scorers on a file of texts, as Markdown or JSON.

  Raises:
    UserError: no scorer, both or neither of records and texts, or what cannot be read or scored.
  """
  from fairjax.counterfactual import load_attribute
  from fairjax.measure.scorer_audit import audit_scorers
  if not options.scorer or bool(options.records) == bool(options.texts):
    raise UserError('scorers audit needs --scorer=S (once or more), --attribute=A, and either '
                    '--records=FILE or --texts=FILE')
  if options.limit < 0 or options.seed < 0 or options.permutations < 1:
    raise UserError('--limit and --seed must not be negative and --permutations at least 1')
  path = options.records or options.texts
  attribute = load_attribute(options.attribute)
  scorers = load_scorers(options, path)
  texts, recorded = _read(options, scorers)
  result = audit_scorers(
    texts, attribute, scorers, recorded=recorded, limit=options.limit,
    permutations=options.permutations, seed=options.seed)
  if options.json:
    print(json.dumps(result, indent=2, allow_nan=False))
  else:
    print('\n\n'.join(audit_words(result)))


def fetch(options: argparse.Namespace) -> None:
  """Fetches the opinion lexicon and says what was fetched."""
  from fairjax.measure import lexicons
  from fairjax.measure.scorers import read_lexicon
  paths = lexicons.fetch_lexicon(options.output, url=options.url or lexicons.URL)
  counts = [len(read_lexicon(path)) for path in paths]
  print(f'{paths[0].parent}: {counts[0]} positive and {counts[1]} negative words of Hu and Liu '
        f'(2004), CC BY 4.0: name the authors. Use: --lexicon {paths[0].parent}')


def audit_words(result: Mapping[str, Any]) -> list[str]:
  """Markdown paragraphs and tables of `audit_scorers`' result."""
  from fairjax.measure.scorer_audit import count_distinct
  from fairjax.report.scorer_audit import AUDIT_NOTE, audit_lines, own_bias_table
  from fairjax.report.sections import agreement_table
  table, lines = own_bias_table(result), audit_lines(result)
  parts = [lines[0], *([] if table is None else [AUDIT_NOTE, table.markdown()]),
           '\n'.join(f'- {line}' for line in lines[1:])]
  if result['agreement']:
    parts += ['Agreement on all texts:', agreement_table({'': result['agreement']}).markdown()]
  if count_distinct(result['scorers'].values()) == 1:
    same = '' if len(result['scorers']) == 1 else ' (all have the same weights)'
    parts.append(f'One scorer only{same}: nothing says which differences are its own. Add a second '
                 'one.')
  return parts


def _read(options: argparse.Namespace, scorers: Sequence[Any]):
  """Texts as they are scored, and the recorded scores by scorer name."""
  from fairjax.measure.generations import join_text
  from fairjax.measure.scorers import RecordedScorer
  recorded = [s for s in scorers if isinstance(s, RecordedScorer)]
  if options.texts:
    if recorded:
      raise UserError(f'{recorded[0].name}: a text file brings no scores: use --records')
    lines = read_text_lines(options.texts, what='texts')
    return [line.strip() for line in lines if line.strip()], {}
  records = list(records_reader(options)(options.records))
  texts = [r['continuation'] if options.scored == 'continuation'
           else join_text(r['prefix'], r['continuation']) for r in records]
  return texts, {s.name: s.score_records(records) for s in recorded}


VERBS = (
  Verb('scorers', 'what scorers think of the sensitive tokens themselves, and how far they agree',
       'fairjax scorers audit --records=generations.jsonl --attribute=country '
       '--scorer=opinion --scorer=vader --lexicon=lexicon', _add_audit_options, audit),
  Verb('lexicon', 'fetch the opinion words of Hu and Liu (network, hash checked)',
       'fairjax lexicon fetch --output=lexicon', _add_lexicon_options, fetch),
)
