"""Verbs about scorers: `fairjax scorers audit`, `fairjax lexicon fetch`, and their options."""

import argparse
import gzip
import json
import pathlib
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from fairjax.errors import UserError


def add_scorer_options(parser: argparse.ArgumentParser) -> None:
  """Adds what names scorers and what they need."""
  parser.add_argument('--scorer', action='append', default=None,
                      help='opinion | vader | google | bert:DIR | recorded:NAME; repeat')
  parser.add_argument('--lexicon', nargs='+', metavar='FILE', default=None,
                      help='opinion scorer: POSITIVE NEGATIVE, or the folder of lexicon fetch')
  parser.add_argument('--google-cache', metavar='FILE', default=None,
                      help='google scorer: file of the scores that were paid for (default: beside '
                      'the records)')
  parser.add_argument('--google-rate', metavar='N', type=float, default=600.0,
                      help='google scorer: requests a minute')
  parser.add_argument('--google-endpoint', metavar='HOST', default='',
                      help='google scorer: host of another region')


def add_audit_options(parser: argparse.ArgumentParser) -> None:
  """Adds the options of `fairjax scorers`."""
  parser.add_argument('action', choices=('audit',))
  add_scorer_options(parser)
  parser.add_argument('--records', metavar='FILE', help='JSONL (or .gz) of generations')
  parser.add_argument('--texts', metavar='FILE', help='or a text file (or .gz), one text a line')
  parser.add_argument('--attribute', required=True, help='built-in attribute or YAML file')
  parser.add_argument('--scored', choices=('continuation', 'prefix+continuation'),
                      default='continuation', help='which part of a record is scored')
  parser.add_argument('--limit', type=int, default=0, metavar='N',
                      help='swap in at most N texts, a seeded choice, counted (0: in all)')
  parser.add_argument('--permutations', type=int, default=9999, help='of the paired test')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--json', action='store_true', help='print JSON')


def add_lexicon_options(parser: argparse.ArgumentParser) -> None:
  """Adds the options of `fairjax lexicon`."""
  parser.add_argument('action', choices=('fetch',))
  parser.add_argument('--output', metavar='DIR', required=True,
                      help='folder for positive-words.txt and negative-words.txt')
  parser.add_argument('--url', default=None, help='another https address of the same archive')


def google_arguments(options: argparse.Namespace, path: str) -> dict[str, Any]:
  """Arguments of the google scorer from options; its file lies beside `path` by default."""
  name = pathlib.Path(path).name.removesuffix('.gz').removesuffix('.jsonl')
  cache = options.google_cache or pathlib.Path(path).with_name(f'{name}.google-scores.jsonl')
  return {'cache': cache, 'requests_per_minute': options.google_rate,
          'endpoint': options.google_endpoint,
          'log': lambda line: print(line, file=sys.stderr, flush=True)}


def audit(options: argparse.Namespace) -> None:
  """Prints the audit of scorers on a file of texts, as Markdown or JSON.

  Raises:
    UserError: no scorer, both or neither of records and texts, or what cannot be read or scored.
  """
  from fairjax.counterfactual import load_attribute
  from fairjax.measure import load_scorer
  from fairjax.measure.scorer_audit import audit_scorers
  if not options.scorer or bool(options.records) == bool(options.texts):
    raise UserError('scorers audit needs --scorer=S (once or more), --attribute=A, and either '
                    '--records=FILE or --texts=FILE')
  if options.limit < 0 or options.permutations < 1:
    raise UserError('--limit must not be negative and --permutations at least 1')
  path = options.records or options.texts
  attribute = load_attribute(options.attribute)
  google = google_arguments(options, path)
  scorers = [load_scorer(n, lexicon=options.lexicon, google=google) for n in options.scorer]
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
  from fairjax.report.sections import agreement_table
  counts, limit = result['counts'], ''
  if counts['left_out']:
    limit = f", {counts['left_out']:,} of them left out by --limit"
  parts = [
    f"{counts['texts']:,} texts; {counts['with_token']:,} "
    f"({100 * result['share_with_token']:.1f} %) hold a sensitive token of {result['attribute']}"
    f"{limit} ({counts['with_several_values']:,} of several values: only the first is swapped); "
    f"{counts['frames']:,} differ outside the token."]
  biased = {n: s['own_bias'] for n, s in result['scorers'].items() if s['own_bias']}
  if biased:
    parts.append('Own bias: score with the value less the median score with the others, mean over '
                 'the same texts; p of a paired permutation test '
                 f"({result['permutations']} orders), corrected for {len(result['values'])} values "
                 '(Holm).')
    parts.append(_bias_table(result['values'], biased))
    parts.append('\n'.join(
      f"- {name}: the value moves the score of {100 * b['moved']:.1f} % of the texts; highest less "
      f"lowest score of a text, on average {b['range']:.4f}." for name, b in biased.items()))
  lines = []
  for name, scorer in result['scorers'].items():
    if name not in biased:
      lines.append(f'- {name}: no own bias: ' + (
        'no text holds a token.' if not counts['with_token'] else
        'recorded scores say nothing about other texts.'))
    words = ', '.join(f"{w['word']} ({w['valence']:+g})" for w in scorer['sensitive_lexicon_words'])
    lines.append(f"- Sensitive words in the lexicon of {name}: {words or 'none'}.")
  parts.append('\n'.join(lines))
  if result['agreement']:
    parts += ['Agreement on all texts:', agreement_table({'': result['agreement']})]
  else:
    parts.append('One scorer only: nothing says which differences are its own. Add a second one.')
  return parts


def _bias_table(values: Sequence[str], biased: Mapping[str, Mapping[str, Any]]) -> str:
  from fairjax.report.markdown import escape, table
  header = ['value', 'texts with it']
  for name in biased:
    header += [escape(name), 'p (Holm)']
  body = []
  for a, value in enumerate(values):
    rows = [bias['values'][a] for bias in biased.values()]
    cells = [f(row) for row in rows for f in (
      lambda r: f"{round(r['difference'], 4) + 0.0:+.4f}", lambda r: f"{r['p_holm']:.4f}")]
    body.append([escape(value), str(rows[0]['n']), *cells])
  return table(header, body)


def _read(options: argparse.Namespace, scorers: Sequence[Any]):
  """Texts as they are scored, and the recorded scores by scorer name."""
  from fairjax.generate import read_records
  from fairjax.measure.generations import join_text
  from fairjax.measure.scorers import RecordedScorer
  recorded = [s for s in scorers if isinstance(s, RecordedScorer)]
  if options.texts:
    if recorded:
      raise UserError(f'{recorded[0].name}: a text file brings no scores: use --records')
    return _read_lines(options.texts), {}
  records = list(read_records(options.records))
  texts = [r['continuation'] if options.scored == 'continuation'
           else join_text(r['prefix'], r['continuation']) for r in records]
  return texts, {s.name: s.score_records(records) for s in recorded}


def _read_lines(path: str) -> list[str]:
  """Lines of a text file that are not empty."""
  try:
    with (gzip.open(path) if path.endswith('.gz') else open(path, 'rb')) as file:
      lines = file.read().decode('utf-8').split('\n')
  except UnicodeDecodeError as e:
    raise UserError(f'{path}: not UTF-8 at byte {e.start}: convert the file') from None
  except (EOFError, zlib.error, OSError) as e:
    raise UserError(f'{path}: cannot be read ({getattr(e, "strerror", None) or e})') from None
  return [line.strip() for line in lines if line.strip()]
