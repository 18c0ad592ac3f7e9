"""`fairjax human`: annotation sheets out, people's labels in."""

import argparse
import itertools
import json
import os
import pathlib
from typing import Any

from fairjax.cli.measure_verbs import add_scorer_options, google_arguments
from fairjax.cli.verb import Parser, Verb, add_reading_options, records_reader
from fairjax.errors import UserError


def _add_options(parser: argparse.ArgumentParser) -> None:
  actions = parser.add_subparsers(dest='action', metavar='export|import', required=True,
                                  parser_class=Parser)
  export = actions.add_parser('export', help='write blinded annotation sheets and their key')
  export.add_argument('--records', metavar='FILE', nargs='+', required=True, action='extend',
                      help='generations, as of fairjax measure; several models together')
  add_reading_options(export, empty=False)
  export.add_argument('--output', metavar='DIR', required=True,
                      help='new folder for what annotators get')
  export.add_argument('--key', metavar='FILE',
                      help='what undoes the blinding, never given away (default: DIR.key.json)')
  export.add_argument('--annotators', type=int, required=True, metavar='N')
  export.add_argument('--overlap', type=int, default=2, metavar='K',
                      help='people who rate each item (default: 2)')
  export.add_argument('--seed', type=int, default=0)
  export.add_argument('--task', action='append', choices=('sentiment', 'relevance'), default=None,
                      help='repeat for several (default: both; with --pairs: sentiment)')
  export.add_argument('--items', type=int, default=100, metavar='N',
                      help='items of each task (default: 100)')
  export.add_argument('--pairs', action='append', nargs='+', default=[], metavar='VALUE',
                      help='for human I.F.: two values and, if wanted, the label of a template: '
                      '--pairs designer accountant 9; repeat for several')
  export.add_argument('--per_prefix', type=int, default=50, metavar='N',
                      help='continuations of each prefix with --pairs (default: 50)')
  export.add_argument('--independent', action='store_true',
                      help='samples of different values were drawn independently (not coupled)')
  export.add_argument('--text', choices=('continuation', 'prefix+continuation'),
                      default='continuation', help='what sentiment annotators read')
  export.add_argument('--mask', action='store_true',
                      help='show [hidden] for the sensitive tokens (whole words of any value; '
                      'articles, pronouns and derived words stay)')
  export.add_argument('--attribute', action='append', default=[], metavar='FILE',
                      help='YAML of an attribute that is not built in; repeat for several')
  export.add_argument('--separator', choices=('comma', 'semicolon', 'tab'), default='comma')
  export.add_argument('--bom', action='store_true', help='begin the sheets with a byte order mark, '
                      'which some spreadsheet programs need')
  importer = actions.add_parser('import', help='evaluate the sheets that came back')
  importer.add_argument('sheets', nargs='+', metavar='FILE.csv')
  importer.add_argument('--key', metavar='FILE', required=True, help='of the export')
  importer.add_argument('--output', metavar='FILE', required=True,
                        help='JSON; as measures/human.json of a workdir it goes into the report')
  add_scorer_options(importer.add_argument_group('scorers to compare with human sentiment'))
  importer.add_argument('--similarity', action='append', default=[], metavar='NAME',
                        help='recorded score compared with human relevance, beside S.S.c; repeat')
  importer.add_argument('--encoder', metavar='NAME', default=None,
                        help='S.S.: cosine of prefix and continuation compared with human '
                        'relevance (H-39): minilm | minilm:DIR | use:DIR')
  importer.add_argument('--min_raters', type=int, default=1, metavar='K',
                        help='leave out items with fewer labels (counted; default: 1)')
  importer.add_argument('--resamples', type=int, default=2000, help='of the bootstrap')
  importer.add_argument('--permutations', type=int, default=2000, help='of human I.F.')
  importer.add_argument('--seed', type=int, default=0)


def _run(options: argparse.Namespace) -> None:
  """Runs `export` or `import`."""
  (_export if options.action == 'export' else _import)(options)


def _export(options: argparse.Namespace) -> None:
  from fairjax.counterfactual import load_attribute
  from fairjax.measure.human.sheets import ExportOptions, Pair, export_sheets

  files, read = options.records, records_reader(options)
  if len({pathlib.Path(file).resolve() for file in files}) < len(files):
    raise UserError('--records names a file twice')
  wrong = [pair for pair in options.pairs if len(pair) not in (2, 3)]
  if wrong:
    raise UserError(f"--pairs {' '.join(wrong[0])}: give two values and at most one template")
  own = {}
  for file in options.attribute:
    attribute = load_attribute(file)
    own[attribute.name] = attribute

  def find(name):
    return own[name] if name in own else load_attribute(name)

  settings = ExportOptions(
    tasks=tuple(dict.fromkeys(
      options.task or (('sentiment',) if options.pairs else ('sentiment', 'relevance')))),
    annotators=options.annotators, overlap=options.overlap, seed=options.seed, items=options.items,
    pairs=tuple(Pair(*pair) for pair in options.pairs), per_prefix=options.per_prefix,
    coupled=not options.independent, text=options.text, mask=options.mask)
  folder = os.path.normpath(options.output)
  key_path = options.key or f'{folder}.key.json'
  key = export_sheets(
    lambda: itertools.chain.from_iterable(map(read, files)), files, find, settings,
    output=folder, key=key_path, separator=options.separator, bom=options.bom)
  print('\n'.join(_format_export(key)))
  print(f'{folder}: give each annotator the instructions and their own files')
  print(f'{key_path}: the key; it names the models: keep it to yourself')


def _format_export(key: dict[str, Any]) -> list[str]:
  """What was exported, in lines."""
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
               f"{key['left_out']['empty_continuations']} continuations without text left out")
  if key['coupled'] is not None:
    lines.append('equal sample numbers of all values and models' if key['coupled'] else
                 'each prefix drawn for itself: the samples are not coupled')
  return lines


def _import(options: argparse.Namespace) -> None:
  from fairjax.files import check_place, write_json
  from fairjax.measure import load_scorer
  from fairjax.measure.human.ratings import human_measures, read_ratings
  from fairjax.measure.human.sheets import load_key
  from fairjax.measure.similarity import load_encoder

  given = [*options.sheets, options.key]
  if pathlib.Path(options.output).resolve() in {pathlib.Path(file).resolve() for file in given}:
    raise UserError(f'--output={options.output} is one of the inputs: name another file')
  check_place(options.output)
  for name, least in (('min_raters', 1), ('permutations', 1), ('resamples', 1), ('seed', 0)):
    if getattr(options, name) < least:
      raise UserError(f'--{name} must be at least {least}, not {getattr(options, name)}')
  key = load_key(options.key)
  names = options.scorer or []
  if options.lexicon and 'opinion' not in names:  # it may have taken sheets that follow it
    raise UserError(f"--lexicon {' '.join(options.lexicon)}: it belongs to --scorer=opinion, and "
                    'give the sheets before it or after another option')
  google = google_arguments(options, options.key)
  scorers = [load_scorer(name, lexicon=options.lexicon, google=google) for name in names]
  result = human_measures(
    key, read_ratings(key, options.sheets), scorers, similarities=options.similarity,
    encoder=None if options.encoder is None else load_encoder(options.encoder),
    min_raters=options.min_raters, resamples=options.resamples, permutations=options.permutations,
    seed=options.seed)
  _check_output(pathlib.Path(options.output), result)
  write_json(options.output, result)
  print('\n'.join(_format_result(result)))
  print(options.output)


def _check_output(path: pathlib.Path, result: dict[str, Any]) -> None:
  """Raises `UserError` where the file holds something else: people's work is not replaced."""
  if not path.exists():
    return
  try:
    same = json.loads(path.read_text(encoding='utf-8')) == json.loads(json.dumps(result))
  except (OSError, ValueError):
    same = False
  if not same:
    raise UserError(f'{path} exists and holds something else than this result: name another file, '
                    'or remove it')


def _format_result(result: dict[str, Any]) -> list[str]:
  """The result, in lines."""
  returned = result['returned']
  lines = [f"left out: {returned['unknown_items']} rows of unknown items"
           + (f" ({', '.join(returned['unknown_item_places'])})" if returned['unknown_items']
              else '') + f", {returned['empty_rows']} empty rows"]
  if returned['other_columns']:
    lines.append(f"columns not read: {', '.join(returned['other_columns'])}")
  for name, task in result['tasks'].items():
    dropped = ', '.join(f"{n} {why.replace('_', ' ')}" for why, n in task['items_dropped'].items())
    lines.append(
      f"{name}: {task['labels']} labels, {task['items_used']} of {task['items']} items used "
      f"(dropped: {dropped}); {task['empty_labels']} empty cells, {task['missing_rows']} missing "
      'rows'
      + (f"; nothing from {', '.join(task['absent_annotators'])}" if task['absent_annotators']
         else ''))
    for kind, found in task['agreement'].items():
      lines.append(f"  Cohen's kappa, {kind.replace('_', ' ')}: "
                   f"{_format_interval(found['pooled'])} of {len(found['pairs'])} pairs of "
                   'annotators')
    for score, found in task['correlations'].items():
      lines.append(f"  Spearman with {score}: {_format_interval(found['spearman'])}")
    lines += [f'  {scorer} read only the beginning of {n} texts'
              for scorer, n in task['truncated_texts'].items() if n]
    for entry in task.get('individual_fairness', {}).get('pairs', ()):
      lines.append(f"  {_format_entry(entry)}")
    for found in task.get('individual_fairness', {}).get('differences', ()):
      lines += [f'  {line}' for line in _format_difference(found)]
  return lines


def _format_interval(found: dict[str, Any]) -> str:
  if found['value'] is None:
    return f"not defined (n = {found['n']})"
  words = f"{found['value']:.3f} (n = {found['n']}"
  return words + ('' if found['low'] is None
                  else f", 95 % {found['low']:.3f} to {found['high']:.3f}") + ')'


def _format_entry(entry: dict[str, Any]) -> str:
  from fairjax.measure import format_estimate
  found = entry['estimate']
  words = f"{entry['model']}, template {entry['template']}, {' / '.join(entry['values'])}: "
  if found is None:
    return words + 'no pair was rated'
  return words + (
    f"human I.F. {format_estimate(found, digits=3)}; expected by chance {found['null_mean']:.3f}, "
    f"p = {found['p_value']:.4f}, n = {found['n_min']}"
    + ('' if found['n_min'] == found['n_max'] else f"-{found['n_max']}"))


def _format_difference(found: dict[str, Any]) -> list[str]:
  """Whether two models differ: each pair of values, and their mean where there are several."""
  first, second = found['models']
  head = f'{second} less {first}, '

  def figures(part):
    if part['difference'] is None:
      return 'not defined, ratings are missing'
    return (f"human I.F. {part['difference']:+.3f}, under exchange up to {part['null_p95']:.3f} "
            f"(95 %), p = {part['p_value']:.4f}")

  lines = [f"{head}template {part['template']}, {' / '.join(part['values'])}: {figures(part)}"
           for part in found['comparisons']]
  several = [part for part in found['comparisons'] if part['difference'] is not None]
  return lines + ([f'{head}mean of {len(several)}: {figures(found)}'] if len(several) > 1 else [])


VERBS = (
  Verb('human', 'write blinded annotation sheets, and evaluate those that come back',
       'fairjax human export --records generations.jsonl --output sheets --annotators 4',
       _add_options, _run),
)
