"""`compare gate`: a build fails where a model has become less fair by more than a margin."""

import argparse

from fairjax.cli.measure_verbs import load_scorers
from fairjax.cli.options import READING, SCORERS, add_shared, between, place_of, require
from fairjax.cli.verb import Command, log_line, print_result, records_reader
from fairjax.errors import UserError


def _options(parser: argparse.ArgumentParser) -> None:
  add_shared(parser, 'records')
  parser.add_argument('--against', metavar='FILE', help='generations of the old model')
  parser.add_argument('--margin', type=between(0, 1), default=0.01, metavar='W1',
                      help='the largest rise of the I.F. that passes')
  parser.add_argument('--junit', metavar='FILE', type=place_of(folder=False),
                      help="write JUnit's XML, as build servers read it")
  add_shared(parser, 'attribute', action='append', help='built-in attribute or YAML file; repeat')
  add_shared(parser, *READING, *SCORERS, 'scored', 'permutations', 'seed', 'independent', 'json')


def _gate(options: argparse.Namespace) -> int:
  from fairjax.counterfactual import load_attribute
  from fairjax.files import atomic_write
  from fairjax.generate import check_complete
  from fairjax.measure.columns import read_attributes
  from fairjax.measure.gate import CODES, check_prompts, compare_fairness, junit_xml, to_dict
  from fairjax.measure.scorers.cache import score_generations
  require(options, 'compare gate', 'records', 'against', 'attribute', 'scorer')
  attributes = [load_attribute(a) for a in options.attribute]
  files, coupled = (options.records, options.against), not options.independent
  read, samples, results = [], [], {}
  for file in files:
    check_complete(file)
    read.append(read_attributes(records_reader(options, attributes)(file), attributes,
                                empty=options.empty or 'error', coupled=coupled))
  for name, generations in read[0].items():
    check_prompts(generations, read[1][name], files=files)
  for file, side in zip(files, read, strict=True):
    scorers = load_scorers(options, file)
    samples.append({
      (name, scorer.name): generations.sample_scores(score_generations(
        generations, scorer, None, scored=options.scored, log=log_line), numbered=coupled)
      for name, generations in side.items() for scorer in scorers})
  for key, new in samples[0].items():
    try:
      results[key] = compare_fairness(new, samples[1][key], margin=options.margin,
                                      permutations=options.permutations, seed=options.seed)
    except UserError as e:
      raise UserError(f'{files[0]} and {files[1]}, {", ".join(key)}: {e}') from None
  if options.junit:
    with atomic_write(options.junit) as file:
      file.write(junit_xml(results))
  print_result(options, to_dict(results), lambda _: '\n'.join(
    f'{attribute}, {scorer}: {found.sentence()}' for (attribute, scorer), found in results.items()))
  found = {r.verdict for r in results.values()}
  return CODES['worse' if 'worse' in found else
               'cannot tell' if 'cannot tell' in found else 'no worse']


COMMANDS = {
  'compare gate': Command(
    _options, _gate, 'fail a build where a new model is less fair than the old one by a margin',
    'fairjax compare gate --records=new.jsonl --against=old.jsonl --attribute=country '
    '--scorer=vader --margin=0.01'),
}
