"""The verb `select`: the best lambda of a run that did not lose its relevance."""

import argparse
import json

from fairjax.commands.verb import Verb, add_run_options, open_job


def _add_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser)
  parser.add_argument('--relevance-share', type=float, default=None, metavar='SHARE',
                      help="least share of the baseline's relevance (default: "
                      'measure.relevance_share)')
  parser.add_argument('--relevance', action='append', default=None, metavar='MEASURE',
                      help='semantic_similarity | semantic_similarity_c | distinct_word_divergence '
                      '| next_token_divergence; repeat (default: the first two)')
  parser.add_argument('--fairness', default='individual_fairness', metavar='MEASURE',
                      help='individual_fairness | group_fairness')
  parser.add_argument('--scorer', action='append', default=None, help='repeat (default: all)')
  parser.add_argument('--perplexity-rise', type=float, default=None, metavar='PERCENT',
                      help='most that the word perplexity may rise')
  parser.add_argument('--json', action='store_true', help='print JSON')


def _select(options: argparse.Namespace) -> None:
  from fairjax.job.report_parts import model_rows
  from fairjax.report.selection import RELEVANCE, select_model, selection_section
  job = open_job(options)
  share = options.relevance_share
  found = select_model(
    model_rows(job), share=job.config.measure.relevance_share if share is None else share,
    relevance=options.relevance or RELEVANCE, fairness=options.fairness, scorers=options.scorer,
    most_perplexity=options.perplexity_rise)
  print(json.dumps(found, indent=2, allow_nan=False) if options.json else selection_section(found))


VERBS = (
  Verb('select', 'the best lambda of a measured run; refuses models that lost their relevance',
       'fairjax select --config=configs/quickstart.py --workdir=runs/quickstart',
       _add_options, _select),
)
