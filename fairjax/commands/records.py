"""The verb `records`: generations in other forms."""

import argparse

from fairjax.commands.verb import Verb, add_reading_options, log_line, records_reader


def _add_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('action', choices=('convert',))
  parser.add_argument('--records', metavar='FILE', required=True,
                      help='generations, as of fairjax measure')
  add_reading_options(parser, empty=False)
  parser.add_argument('--output', metavar='FILE', required=True,
                      help='.jsonl, .jsonl.gz or .parquet; must not exist')
  parser.add_argument('--scores', metavar='FILE', nargs='+', default=[],
                      help='score files (of fairjax measure --keep, or scores/ of a workdir): each '
                      "score goes into its record's scores, for --scorer recorded:NAME")
  parser.add_argument('--scored', choices=('continuation', 'prefix+continuation'),
                      default='continuation', help='which part of a record was scored')


def _convert(options: argparse.Namespace) -> None:
  from fairjax.job.records_convert import convert_records
  convert_records(options.records, options.output, scores=options.scores, scored=options.scored,
                  read=records_reader(options), log=log_line)


VERBS = (
  Verb('records', 'convert generations, with their scores, between JSONL and Parquet',
       'fairjax records convert --records=generations.jsonl --output=generations.parquet '
       '--scores scores/country.vader.jsonl', _add_options, _convert),
)
