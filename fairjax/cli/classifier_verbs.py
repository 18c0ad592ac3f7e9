"""The verb `sentiment-classifier`: options and dispatch; the work is in the classifier room."""

import argparse

from fairjax.cli.measure_verbs import add_scorer_options, google_arguments
from fairjax.cli.verb import Verb, log_line


def _add_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('action', choices=('train', 'evaluate'))
  parser.add_argument('--data', metavar='FILE', required=True, help='labelled sentences: trees, '
                      'label<TAB>binary<TAB>text, or label<TAB>text; .gz is read too')
  parser.add_argument('--classes', type=int, choices=(2, 5), default=2,
                      help='2: neutral texts are left out, counted')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--json', action='store_true', help='print JSON')
  train = parser.add_argument_group('train')
  train.add_argument('--dev', metavar='FILE', help='chooses the epoch; default: a seeded tenth of '
                     'the data')
  train.add_argument('--output', metavar='DIR', help='model directory to write; the same command '
                     'continues it')
  train.add_argument('--init', metavar='DIR', help='BERT checkpoint to fine-tune; default: a small '
                     'new BERT with its own vocabulary')
  train.add_argument('--phrases', action='store_true', help='of trees, learn every phrase')
  train.add_argument('--epochs', type=int, help='default 8, with --init 3')
  train.add_argument('--learning_rate', type=float, help='default 5e-4, with --init 3e-5')
  train.add_argument('--batch_size', type=int, default=32)
  for name, default, words in (
      ('layers', 2, 'of a new BERT'), ('dim', 128, 'width of a new BERT'),
      ('heads', 4, 'of a new BERT'), ('vocab_size', 8000, 'word pieces of a new BERT'),
      ('max_length', 128, 'tokens that a new BERT reads')):
    train.add_argument(f'--{name}', type=int, default=default, help=words)
  evaluate = parser.add_argument_group('evaluate')
  evaluate.add_argument('--model', metavar='DIR', action='append', default=[],
                        help='classifier; repeat for several')
  evaluate.add_argument('--undecided', choices=('wrong', 'negative'), default='wrong',
                        help='what a score of exactly 0.5 counts as, of two classes')
  add_scorer_options(evaluate)


def _sentiment_classifier(options: argparse.Namespace) -> None:
  from fairjax.cli import classifier_runs as command
  if options.action == 'train':
    command.train(options, log_line)
  else:
    command.evaluate(options, log_line, google=google_arguments(options, options.data))


VERBS = (
  Verb('sentiment-classifier',
       'train a sentiment classifier, or compare scorers on labelled sentences',
       'fairjax sentiment-classifier train --data=train.tsv --dev=dev.tsv --output=runs/sst',
       _add_options, _sentiment_classifier),
)
