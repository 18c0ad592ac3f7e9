"""The verb `cda`: a text file with counterfactual sentences."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from fairjax.commands.verb import Verb, log_line
from fairjax.errors import UserError

_SHOWN = 12  # words and kept words in the summary for people


def _add_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--input', metavar='FILE', required=True,
                      help='text, plain or .gz; a line is a sentence or a document')
  parser.add_argument('--output', metavar='FILE', default=None, help='must not exist; .gz is '
                      'compressed (default: a.txt.gz becomes a.cda.txt.gz)')
  parser.add_argument('--sided', choices=('one', 'two'), default='two', help='one: counterfactual '
                      'sentences only; two: behind their originals (default)')
  parser.add_argument('--unit', choices=('sentence', 'document'), default='sentence',
                      help='what of a line is swapped and left out (default: its sentences)')
  parser.add_argument('--pairs', metavar='FILE', nargs='+', default=[], help='word pairs; or a '
                      'male and a female word file; none: names only (default: built in)')
  parser.add_argument('--names', metavar='FILE', nargs='+', default=[],
                      help='counts of first names, as of the US Social Security Administration')
  parser.add_argument('--name-gender', choices=('same', 'flip', 'random'), default='random',
                      help='of the name that replaces another (default: random)')
  parser.add_argument('--letters', metavar='A-M', default='A-Z',
                      help='initials of the names that are replaced')
  parser.add_argument('--least-count', type=int, default=1, metavar='N',
                      help='rarer names are neither replaced nor drawn')
  parser.add_argument('--neutral', action='store_true', help='words become those of the third '
                      'column of --pairs')
  parser.add_argument('--seed', type=int, default=0, help='of the names that are drawn')
  parser.add_argument('--json', action='store_true', help='print the summary as JSON, with the '
                      'count of every word')


def _run(options: argparse.Namespace) -> None:
  from fairjax.counterfactual import GenderSwap, read_names, read_word_pairs
  from fairjax.data.cda_file import augment_file
  if len(options.pairs) > 2:
    raise UserError('--pairs is one file of pairs, or a file of male and one of female words')
  pairs = None if options.pairs == ['none'] else read_word_pairs(*options.pairs)
  names = None
  if options.names:
    names = read_names(options.names, least_count=options.least_count)
  for place in pairs.turned if pairs else ():
    log_line(f'[cda] {place}: the female word comes first there; the pair is read the other way')
  swap = GenderSwap(pairs, names, options.seed, name_gender=options.name_gender,
                    letters=options.letters, neutral=options.neutral)
  summary = augment_file(
    options.input, options.output or _default_output(options.input), swap, sided=options.sided,
    unit=options.unit, log=log_line)
  summary |= {
    'pairs': len(pairs.pairs) if pairs else 0, 'pairs_source': pairs.source if pairs else '',
    'one_way': list(pairs.one_way) if pairs else [],
    'names': {'female': len(names.female), 'male': len(names.male), 'neither': names.neither}
    if names else None}
  print(json.dumps(summary, indent=2) if options.json else '\n'.join(summary_words(summary)))


def _default_output(path: str) -> str:
  end = '.gz' if path.endswith('.gz') else ''
  stem = path.removesuffix(end)
  head, dot, suffix = stem.rpartition('.')
  if dot and head and '/' not in suffix:
    return f'{head}.cda.{suffix}{end}'
  return f'{stem}.cda{end}'


def summary_words(summary: Mapping[str, Any]) -> list[str]:
  """Lines for people about what `augment_file` did."""
  def most_frequent(counts: Mapping[str, int]) -> str:
    shown = ', '.join(f'{word} {n:,}' for word, n in list(counts.items())[:_SHOWN])
    return shown + (f', and {len(counts) - _SHOWN:,} more' if len(counts) > _SHOWN else '')

  units = 'sentences' if summary['unit'] == 'sentence' else 'lines'
  lines = [
    f"{summary['output']}: {summary['lines_written']:,} lines from {summary['lines_read']:,}",
    f"{summary['changed']:,} of {summary['sentences']:,} {units} have a counterfactual; "
    f"{summary['dropped']:,} neutral ones left out",
    f"{summary['swaps']:,} swaps: {most_frequent(summary['words'])}"]
  if summary['kept']:
    lines.append(f"{sum(summary['kept'].values()):,} words kept: "
                 + most_frequent(summary['kept']))
  changes = {k: summary.get(k, 0) for k in (
    'mixed_case', 'blank_lines', 'carriage_returns', 'nul_characters', 'byte_order_marks')}
  if any(changes.values()):
    lines.append(', '.join(f'{n:,} {k.replace("_", " ")}' for k, n in changes.items() if n))
  return lines


VERBS = (
  Verb('cda', 'write a text file with counterfactual sentences (he, she)',
       'fairjax cda --input=train.txt.gz --sided=two --output=train.cda.txt.gz',
       _add_options, _run),
)
