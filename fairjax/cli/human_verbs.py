"""`fairjax human`: annotation sheets out, people's labels in."""

import argparse
import itertools
import json
import os
import pathlib
from typing import Any

from fairjax.cli.measure_verbs import load_scorers
from fairjax.cli.options import SCORERS, add_shared, field_values, place_of, positive, refuse
from fairjax.cli.verb import Command, format_section, records_reader
from fairjax.errors import UserError
from fairjax.files import write_json


def _export_options(parser: argparse.ArgumentParser) -> None:
  add_shared(parser, 'records', nargs='+', required=True, action='extend',
             help='generations, as of fairjax measure; several models together')
  add_shared(parser, 'columns', 'repair')
  parser.add_argument('--output', metavar='DIR', required=True,
                      help='new folder for what annotators get')
  parser.add_argument('--key', metavar='FILE',
                      help='what undoes the blinding, never given away (default: DIR.key.json)')
  parser.add_argument('--annotators', type=positive, required=True, metavar='N')
  parser.add_argument('--overlap', type=positive, default=2, metavar='K',
                      help='people who rate each item (default: 2)')
  add_shared(parser, 'seed')
  parser.add_argument('--task', action='append', choices=('sentiment', 'relevance'),
                      help='repeat for several (default: both; with --pairs: sentiment)')
  parser.add_argument('--items', type=positive, default=100, metavar='N',
                      help='items of each task (default: 100)')
  parser.add_argument('--pairs', action='append', nargs='+', default=[], metavar='VALUE',
                      help='for human I.F.: two values and, if wanted, the label of a template: '
                      '--pairs designer accountant 9; repeat for several')
  parser.add_argument('--per-prefix', type=positive, default=50, metavar='N',
                      help='continuations of each prefix with --pairs (default: 50)')
  add_shared(parser, 'independent')
  parser.add_argument('--text', choices=('continuation', 'prefix+continuation'),
                      default='continuation', help='what sentiment annotators read')
  parser.add_argument('--mask', action='store_true',
                      help='show [hidden] for the sensitive tokens (whole words of any value; '
                      'articles, pronouns and derived words stay)')
  add_shared(parser, 'attribute', action='append', default=[],
             help='YAML of an attribute that is not built in, or the attribute of records that do '
             'not name it; repeat for several')
  parser.add_argument('--separator', choices=('comma', 'semicolon', 'tab'), default='comma')
  parser.add_argument('--bom', action='store_true', help='begin the sheets with a byte order mark, '
                      'which some spreadsheet programs need')


def _import_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('sheets', nargs='+', metavar='FILE.csv')
  parser.add_argument('--key', metavar='FILE', required=True, help='of the export')
  parser.add_argument('--output', metavar='FILE', required=True, type=place_of(folder=False),
                      help='JSON; as measures/human.json of a workdir it goes into the report')
  add_shared(parser.add_argument_group('scorers to compare with human sentiment'), *SCORERS)
  parser.add_argument('--similarity', action='append', default=[], metavar='NAME',
                      help='recorded score compared with human relevance, beside S.S.c; repeat')
  add_shared(parser, 'encoder', help='S.S.: cosine of prefix and continuation compared with human '
             'relevance (H-39): minilm | minilm:DIR | use:DIR')
  parser.add_argument('--min-raters', type=positive, default=1, metavar='K',
                      help='leave out items with fewer labels (counted; default: 1)')
  parser.add_argument('--resamples', type=positive, default=2000, help='of the bootstrap')
  add_shared(parser, 'permutations', default=2000, help='of human I.F.')
  add_shared(parser, 'seed')


def _export(options: argparse.Namespace) -> None:
  from fairjax.counterfactual import load_attribute
  from fairjax.measure.human.sheets import ExportOptions, Pair, export_sheets
  files = options.records
  if len({pathlib.Path(file).resolve() for file in files}) < len(files):
    raise UserError('--records names a file twice')
  wrong = [pair for pair in options.pairs if len(pair) not in (2, 3)]
  if wrong:
    raise UserError(f"--pairs {' '.join(wrong[0])}: give two values and at most one template")
  if options.pairs:
    refuse(options, 'items', why='is of the draw without --pairs: name --per-prefix')
  else:
    refuse(options, 'per-prefix', 'independent', why='belongs to --pairs')
  own = {attribute.name: attribute for attribute in map(load_attribute, options.attribute)}

  def attribute_of(name):
    try:
      return own.get(name) or load_attribute(name)
    except UserError as e:
      raise UserError(f'{e}; name that of the records with --attribute=FILE (or A*B)') from None

  read = records_reader(options, list(own.values()))
  settings = ExportOptions(**field_values(options, ExportOptions) | {
    'tasks': tuple(dict.fromkeys(
      options.task or (('sentiment',) if options.pairs else ('sentiment', 'relevance')))),
    'pairs': tuple(Pair(*pair) for pair in options.pairs), 'coupled': not options.independent})
  folder = os.path.normpath(options.output)
  key_path = options.key or f'{folder}.key.json'
  key = export_sheets(
    lambda: itertools.chain.from_iterable(map(read, files)), files, attribute_of, settings,
    output=folder, key=key_path, separator=options.separator, bom=options.bom)
  print('\n'.join(_format_export(key)))
  print(f'{folder}: give each annotator the instructions and their own files')
  print(f'{key_path}: the key; it names the models: keep it to yourself')


def _format_export(key: dict[str, Any]) -> list[str]:
  lines = []
  for name, task in key['tasks'].items():
    loads = [len(items) for items in task['sheets'].values()]
    lines.append(
      f"{name}: {len(task['items'])} items, each to {key['options']['overlap']} of "
      f"{len(loads)} annotators ({min(loads)} to {max(loads)} each); "
      f"{task['items_with_equal_texts']} share their text with another"
      + (f"; {task['hidden_tokens']} words hidden" if key['mask'] else ''))
    if key['options']['overlap'] == 1:
      lines.append(f'{name}: one rater an item, so agreement cannot be measured')
  lines.append(f"drawn from {key['records']} records in {key['strata']} strata; "
               f"{key['left_out']['empty_continuations']} continuations without text left out"
               + (f", {n} of reworded prompts too" if (n := key['left_out']['rewordings']) else ''))
  if key['coupled'] is not None:
    lines.append('equal sample numbers of all values and models' if key['coupled'] else
                 'each prefix drawn for itself: the samples are not coupled')
  return lines


def _import(options: argparse.Namespace) -> None:
  from fairjax.measure.human.ratings import human_measures, read_ratings
  from fairjax.measure.human.sheets import load_key
  from fairjax.measure.similarity import load_encoder
  from fairjax.report.sections import human_section
  key = load_key(options.key)
  scorers = load_scorers(options, options.key)
  result = human_measures(
    key, read_ratings(key, options.sheets), scorers, similarities=options.similarity,
    encoder=None if options.encoder is None else load_encoder(options.encoder),
    min_raters=options.min_raters, resamples=options.resamples, permutations=options.permutations,
    seed=options.seed)
  if options.output.exists() and not _holds(options.output, result):  # people's work stays
    raise UserError(f'{options.output} exists and holds something else than this result: name '
                    'another file, or remove it')
  write_json(options.output, result)
  print('\n'.join([
    *_format_left_out(result), format_section(human_section(result)), str(options.output)]))


def _holds(path: pathlib.Path, result: dict[str, Any]) -> bool:
  try:
    return json.loads(path.read_text(encoding='utf-8')) == json.loads(json.dumps(result))
  except (OSError, ValueError):
    return False


def _format_left_out(result: dict[str, Any]) -> list[str]:
  returned, places = result['returned'], result['returned']['unknown_item_places']
  lines = [f"left out: {returned['unknown_items']} rows of unknown items"
           + (f" ({', '.join(places)})" if places else '')
           + f", {returned['empty_rows']} empty rows"]
  if returned['other_columns']:
    lines.append(f"columns not read: {', '.join(returned['other_columns'])}")
  return lines + [f"{name}: nothing from {', '.join(task['absent_annotators'])}"
                  for name, task in result['tasks'].items() if task['absent_annotators']]


COMMANDS = {
  'human export': Command(
    _export_options, _export, 'write blinded annotation sheets and their key',
    'fairjax human export --records generations.jsonl --attribute=country --output=sheets '
    '--annotators=4'),
  'human import': Command(_import_options, _import, 'evaluate the sheets that came back'),
}
