"""Verbs that look and change nothing: `attributes`, `config`."""

import argparse
from collections.abc import Sequence

from fairjax.commands.verb import Verb
from fairjax.errors import UserError


def _add_attributes_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('action', choices=('list', 'check'))
  parser.add_argument('file', nargs='?', help='attribute name or YAML file')
  parser.add_argument('--vocabulary', metavar='DIR', help='also check pieces in a vocabulary')
  parser.add_argument('--lexicon', nargs='+', metavar='FILE', default=(),
                      help='also check against word lists of a scorer')


def _add_config_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('action', choices=('show',))
  parser.add_argument('--config', metavar='FILE[:ARGS]', required=True)


def _attributes(options: argparse.Namespace) -> int:
  from fairjax.counterfactual import list_attributes, load_attribute
  if options.action == 'list':
    for name in list_attributes():
      attribute = load_attribute(name)
      print(f'{name}: {len(attribute.values)} values, {len(attribute.templates)} templates, '
            f'{len(attribute.subgroups)} subgroups')
    return 0
  if options.file is None:
    raise UserError('attributes check needs a file: fairjax attributes check FILE')
  return check_attribute(options.file, vocabulary=options.vocabulary, lexicon=options.lexicon)


def check_attribute(file: str, *, vocabulary: str | None, lexicon: Sequence[str]) -> int:
  """Prints the lint of an attribute file; returns 2 if it found an error, else 0."""
  from fairjax.counterfactual import lint_attribute, load_attribute, render_findings
  from fairjax.measure.lexicons import lexicon_files
  from fairjax.measure.scorers import read_lexicon
  from fairjax.vocabulary import load_vocabulary
  files = lexicon_files(lexicon)
  words = {word.lower() for path in files for word in read_lexicon(path)} if files else None
  findings = lint_attribute(
    load_attribute(file), vocabulary=load_vocabulary(vocabulary) if vocabulary else None,
    lexicon_words=words)
  print('\n'.join(render_findings(findings)))
  return 2 if any(f.level == 'error' for f in findings) else 0


def _config(options: argparse.Namespace) -> None:
  from fairjax.config_docs import describe
  from fairjax.config_files import load_config
  config = load_config(options.config, options.overrides)
  print('\n'.join(describe(config)))
  if config.model.vocab_size:
    from fairjax.model import parameter_counts, parameter_words
    print(parameter_words(parameter_counts(config.model)))


VERBS = (
  Verb('attributes', 'list the built-in attributes, or check a file',
       'fairjax attributes check country', _add_attributes_options, _attributes),
  Verb('config', 'show the resolved configuration with types and documentation',
       'fairjax config show --config=configs/quickstart.py --config.lm.steps=100',
       _add_config_options, _config),
)
