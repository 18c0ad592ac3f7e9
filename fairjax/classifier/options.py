"""Options of the verb `sentiment-classifier`; imports nothing heavy, for `--help`."""

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
  """Adds the options of the verb; every one has a word of help."""
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
  evaluate.add_argument('--scorer', action='append', default=[],
                        help='another scorer to compare with: opinion | vader | bert:DIR')
  evaluate.add_argument('--lexicon', nargs=2, metavar=('POSITIVE', 'NEGATIVE'), default=None,
                        help='word lists of the opinion scorer')
