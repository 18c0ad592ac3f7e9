"""Options and output of the measures of content: S.S., words, next token."""

import argparse
from collections.abc import Mapping
from typing import Any

from fairjax.errors import UserError


def add_content_options(parser: argparse._ActionsContainer) -> None:
  """Adds what S.S. needs (H-27)."""
  parser.add_argument('--encoder', metavar='NAME', default=None,
                      help='S.S.: minilm | minilm:DIR | use:DIR (Universal Sentence Encoder)')
  parser.add_argument('--similarity-samples', type=int, default=0, metavar='N',
                      help='S.S.: the first N samples of each prefix (0: all)')
  parser.add_argument('--similarity-threshold', default='encoder', metavar='T',
                      help="S.S.: the encoder's own (encoder), a cosine, or baseline:SHARE with "
                      '--baseline-records')
  parser.add_argument('--baseline-records', metavar='FILE', default=None,
                      help="S.S.: the baseline's generations, SHARE of which are to be similar")


def content_options(options: argparse.Namespace, attributes: Mapping[str, Any]) -> dict[str, Any]:
  """`ContentOptions` of each attribute (name -> attribute) from the command line.

  Raises:
    UserError: options that need another one, or an encoder that cannot be used.
  """
  from fairjax.measure.content import ContentOptions
  from fairjax.measure.encoders import load_encoder
  from fairjax.measure.similarity import Calibration, parse_threshold, prefix_cosines
  kind, number = parse_threshold(options.similarity_threshold)
  if (kind == 'baseline') != bool(options.baseline_records):
    raise UserError('--similarity-threshold=baseline:SHARE and --baseline-records=FILE need each '
                    'other')
  if options.encoder is None:
    for name, given in (('--similarity-threshold', kind != 'encoder'),
                        ('--similarity-samples', options.similarity_samples)):
      if given:
        raise UserError(f'{name} is for S.S., which needs --encoder=NAME')
    return {name: ContentOptions() for name in attributes}
  encoder = load_encoder(options.encoder)
  threshold, source = (number, 'given') if kind == 'given' else (None, None)
  thresholds = dict.fromkeys(attributes, threshold)
  if kind == 'baseline':
    from fairjax.commands.verb import records_reader
    from fairjax.measure import read_attributes
    calibration = Calibration(number)
    source = calibration.source
    read = read_attributes(
      records_reader(options)(options.baseline_records), list(attributes.values()),
      empty=options.empty or 'error', coupled=not options.independent)
    thresholds = {
      name: calibration(prefix_cosines(found, encoder, samples=options.similarity_samples))
      for name, found in read.items()}
  return {name: ContentOptions(encoder=encoder, samples=options.similarity_samples,
                               threshold=thresholds[name], threshold_source=source)
          for name in attributes}


def content_words(measures: Mapping[str, Any]) -> list[str]:
  """Lines for people about what stands beside I.F."""
  from fairjax.measure import estimate_words
  lines, found = [], measures['semantic_similarity']
  if found is not None:
    lines.append(
      f"S.S. (H-27) {100 * found['value']:.1f} % above {found['threshold']:.3g} "
      f"({found['encoder']}; {found['threshold_source']}), n = {found['n']}; mean cosine "
      f"{found['mean_cosine']:.3f}, with the other values' prefixes "
      f"{found['mean_cosine_other_values']:.3f}")
    if found['truncated_texts']:
      lines.append(f"{found['encoder']} read only the beginning of {found['truncated_texts']} "
                   'texts')
  words = measures['distinct_word_divergence']
  if words['value'] is None:
    lines.append('Words (H-37): a value has no word at all: no divergence')
  else:
    lines.append(
      f"Words (H-37) about the value: {estimate_words(words, unit='bits')}; expected by chance "
      f"{words['null_mean']:.4f}"
      + ('; words do not tell the values apart' if words['within_floor'] else ''))
  token = measures['next_token_divergence']
  if token is not None:
    lines.append(f"Next token: KL {token['kl']:.4f} nats between values (largest "
                 f"{token['kl_largest']:.4f}), JS {token['js']:.4f}")
  names = {'semantic_similarity': 'S.S. (H-27)', 'next_token_divergence': 'KL of the next token'}
  return lines + [f'{names[name]} not measured: {why}' for name, why in measures['absent'].items()]
