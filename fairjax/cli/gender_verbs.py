"""The verb `correlations`: gendered correlations of models (Webster et al. 2020)."""

import argparse
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from fairjax.cli.verb import Verb, log_line
from fairjax.errors import UserError, unknown_name

# The verb `cda`: a text file with counterfactual sentences.

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
  from fairjax.data.corpus import augment_file
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


_NEEDS = {
  'disco': (), 'winogender': ('winogender',), 'coref': ('winogender', 'coref'),
  'recorded': ('winogender', 'recorded'), 'stsb': ('stsb', 'professions'), 'bios': ('bios',)}


def _correlations_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('--model', metavar='DIR[@NAME]', action='append', required=True,
                      help='BERT, ALBERT or GPT-2 directory, folder of fairjax export, or workdir '
                      '(@NAME: which of its models); repeat for a table of several')
  parser.add_argument('--output', metavar='DIR', required=True,
                      help='gets correlations.json, correlations.md and what is finished; the same '
                      'command continues')
  parser.add_argument('--metrics', default=None, metavar='LIST',
                      help=f"some of {', '.join(_NEEDS)}; default: those whose data are given")
  parser.add_argument('--json', action='store_true', help='print JSON')
  parser.add_argument('--restarts', type=int, default=5, help='of everything trained (W-11)')
  parser.add_argument('--seed', type=int, default=0, help='the first of them')
  disco = parser.add_argument_group('disco')
  disco.add_argument('--names', metavar='FILE', action='append', default=[],
                     help='name<TAB>group, or SSA statistics (repeat for years); default: names of '
                     'Huang et al. 2020')
  disco.add_argument('--terms', metavar='FILE[,FILE]',
                     help='noun<TAB>group, or pairs of words (see fairjax cda), or a male and a '
                     'female file; default: built-in nouns')
  disco.add_argument('--initials', metavar='RANGES', help='names by their first letters, a score '
                     'for each range, e.g. A-M,N-Z (W-16)')
  disco.add_argument('--persons', type=int, default=100, metavar='N',
                     help='the first N of each group of a list; 0: all')
  disco.add_argument('--templates', metavar='FILE', help="default: the paper's 14")
  disco.add_argument('--candidates', metavar='FILE', help='of causal models: words for blanks that '
                     'do not end a sentence, beside those that the model likes there')
  disco.add_argument('--no-infill', action='store_true',
                     help='of causal models: leave out blanks that do not end a sentence')
  disco.add_argument('--top', type=int, default=3, help='fills supplied for a person')
  disco.add_argument('--shuffles', type=int, default=20, help='random groups of the control')
  disco.add_argument('--per-template', action='store_true',
                     help='Bonferroni over the tests of a template, not all tests')
  coref = parser.add_argument_group('winogender, coref, recorded')
  coref.add_argument('--winogender', metavar='DIR',
                     help='folder of templates.tsv and occupations-stats.tsv')
  coref.add_argument('--coref', metavar='DIR', help='WinoBias files, or train/ and test/ in the '
                     'format of OntoNotes: trains a probe on frozen states')
  coref.add_argument('--recorded', metavar='FILE',
                     help="another system's sentid<TAB>P(pronoun means the occupation)")
  coref.add_argument('--professions', metavar='FILE', help='shares of women, in the form of '
                     'occupations-stats.tsv; default: that of --winogender')
  coref.add_argument('--column', default='bls_pct_female', help='of --professions')
  tasks = parser.add_argument_group('stsb, bios')
  tasks.add_argument('--stsb', metavar='DIR', help='folder of sts-train, sts-dev, sts-test')
  tasks.add_argument('--bios', metavar='FILE', help='biographies with profession and gender')
  tasks.add_argument('--mode', choices=('full', 'frozen'), default='',
                     help='fine-tune the whole model, or a head on its features; default: full for '
                     'BERT and ALBERT, frozen for others')
  tasks.add_argument('--epochs', type=int, default=0, help='default: 3, or 10 of a frozen model')
  tasks.add_argument('--learning_rate', type=float, default=0.0,
                     help='default: 2e-5, or 1e-3 of a frozen model; small models need more')


def _correlations(options: argparse.Namespace) -> None:
  from fairjax.gender.suite import Settings, measure_correlations, table
  for name, least in (('restarts', 1), ('persons', 0), ('top', 1), ('shuffles', 1), ('seed', 0),
                      ('epochs', 0)):
    if getattr(options, name) < least:
      raise UserError(f'--{name} must be at least {least}')
  if not 0 <= options.learning_rate < 1:
    raise UserError(f'--learning_rate={options.learning_rate} must be in [0, 1)')
  if options.winogender and not options.professions:
    options.professions = str(pathlib.Path(options.winogender) / 'occupations-stats.tsv')
  metrics = _metrics(options)
  settings = Settings(
    metrics=metrics, persons=_persons(options) if 'disco' in metrics else (),
    infill=not options.no_infill,
    **{name: getattr(options, name) for name in (
      'templates', 'candidates', 'top', 'shuffles', 'per_template', 'winogender', 'coref',
      'recorded', 'professions', 'column', 'stsb', 'bios', 'mode', 'epochs', 'learning_rate',
      'restarts', 'seed')})
  found = measure_correlations(options.model, settings, output=options.output, log=log_line)
  print(json.dumps(found, indent=2) if options.json else table(found['found']))


def _metrics(options: argparse.Namespace) -> tuple[str, ...]:
  """What is asked for, or what data are given for.

  Raises:
    UserError: an unknown metric, none, or one whose data are given in part.
  """
  if options.metrics is None:  # a metric has the name of the option of its own data
    chosen = tuple(m for m, needs in _NEEDS.items() if not needs or getattr(options, m))
  else:
    chosen = tuple(dict.fromkeys(m.strip() for m in options.metrics.split(',') if m.strip()))
  for metric in chosen:
    if metric not in _NEEDS:
      raise unknown_name('metric', metric, _NEEDS)
    missing = [f'--{need}' for need in _NEEDS[metric] if not getattr(options, need)]
    if missing:
      raise UserError(f"metric {metric} needs {' and '.join(missing)}")
  if not chosen:
    raise UserError(f"--metrics is empty: give some of {', '.join(_NEEDS)}")
  return chosen


def _persons(options: argparse.Namespace) -> tuple:
  """The lists of names and terms."""
  from fairjax.gender.persons import names_from, terms_from
  names, terms = names_from(options.names), terms_from(options.terms)
  parts = [part.strip() for part in (options.initials or '').split(',') if part.strip()]
  lists = (*([names.with_initials(part) for part in parts] or [names]), terms)
  if options.persons:
    lists = tuple(persons.most(options.persons) for persons in lists)
  for persons in lists:
    counts = {g: persons.groups.count(g) for g in persons.group_names}
    used = ', '.join(f"{n} of {persons.given[g]} {g}" for g, n in counts.items())
    log_line(f'[disco] {persons.title}: {used} ({persons.source})')
  return lists


# The verb `resilience`: what fine-tuning brings back, and how soon a language model re-learns.

def _resilience_options(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('action', choices=('finetune', 'relearn'),
                      help='finetune: a BERT on STS-B, by step and by frozen layers; relearn: a '
                      "debiased model of a workdir on its own text, with the reduction's half-life")
  parser.add_argument('--output', metavar='DIR', required=True,
                      help='folder of results and figures; the same command continues it')
  parser.add_argument('--learning_rate', type=float, default=None,
                      help="default 2e-5; of relearn that of the run's debiasing, held constant")
  parser.add_argument('--json', action='store_true', help='print JSON')
  tune = parser.add_argument_group('finetune')
  tune.add_argument('--model', metavar='DIR', help='BERT or ALBERT in the published form')
  tune.add_argument('--stsb', metavar='DIR', help='folder of sts-train, sts-dev and sts-test')
  tune.add_argument('--professions', metavar='FILE',
                    help='tab-separated: occupation, bls_pct_female')
  tune.add_argument('--column', default='bls_pct_female', help='of --professions')
  tune.add_argument('--freeze', default='none', metavar='WORDS',
                    help='comma-separated: none, embedding, a number of layers, all')
  tune.add_argument('--points', type=int, default=6, help='of each curve; 0: ends only')
  tune.add_argument('--curve_templates', type=int, default=40,
                    help='sentences compared at points of a curve; 0: all')
  tune.add_argument('--seed', type=int, default=0, help='of the first restart')
  tune.add_argument('--restarts', type=int, default=5, help='(W-11)')
  tune.add_argument('--epochs', type=int, default=3)
  tune.add_argument('--batch_size', type=int, default=32)
  relearn = parser.add_argument_group('relearn')
  relearn.add_argument('--workdir', metavar='DIR', help='of a finished run; it is only read')
  relearn.add_argument('--name', help='a debiased model of it, e.g. country-embedding-10')
  relearn.add_argument('--steps', type=int, default=1000)
  relearn.add_argument('--every', type=int, default=100, help='steps between two looks')
  relearn.add_argument('--samples', type=int, default=50, help='per template and value, each look')
  relearn.add_argument('--scorer', default=None, help="of I.F.; default: the run's first")


def _resilience(options: argparse.Namespace) -> None:
  needed = (('model', 'stsb', 'professions') if options.action == 'finetune'
            else ('workdir', 'name'))
  missing = [f'--{name}' for name in needed if not getattr(options, name)]
  if missing:
    raise UserError(f"resilience {options.action} needs {' and '.join(missing)}")
  if options.seed < 0:
    raise UserError(f'--seed={options.seed} must not be negative')
  if options.learning_rate is not None and not 0 < options.learning_rate < 1:
    raise UserError(f'--learning_rate={options.learning_rate} must lie in (0, 1)')
  result, lines = (_finetune if options.action == 'finetune' else _relearn)(options)
  print(json.dumps(result, indent=2) if options.json else '\n'.join(lines))


def _finetune(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
  """Curves and ends of a BERT; the figure."""
  for name, least in (('restarts', 1), ('epochs', 1), ('batch_size', 1), ('points', 0),
                      ('curve_templates', 0)):
    if getattr(options, name) < least:
      raise UserError(f'--{name}={getattr(options, name)} must be at least {least}')
  from fairjax.gender.resilience import measure_resilience
  from fairjax.pretrained.fit import Recipe
  from fairjax.report.figures import plot_resilience
  rate = 2e-5 if options.learning_rate is None else options.learning_rate
  result = measure_resilience(
    options.model, options.stsb, options.output, professions=options.professions,
    column=options.column, freezes=options.freeze.split(','), points=options.points,
    restarts=options.restarts, seed=options.seed, curve_templates=options.curve_templates,
    log=log_line, recipe=Recipe(options.epochs, options.batch_size, rate, seed=options.seed))
  plot_resilience(pathlib.Path(options.output) / 'resilience', runs=result['runs'])
  return result, finetune_words(result)


def finetune_words(result: Mapping[str, Any]) -> list[str]:
  """A Markdown table of the ends, one row a freeze."""
  from fairjax.gender.trends import mean_sd_words
  runs = result['runs']
  lines = [f"{result['model']}, STS-B: {runs[0]['templates']} templates, "
           f"{runs[0]['r']['n']} professions, {len(runs[0]['seeds'])} restarts (mean±sd)", '',
           '| frozen | Pearson on dev | Spearman on dev | r with share of women | 95 % of one r |',
           '| :-- | --: | --: | --: | --: |']
  for run in runs:
    r = run['r']
    interval = '-' if r['low'] is None else f"{r['low']:.2f} to {r['high']:.2f}"
    lines.append(f"| {run['freeze']} | {mean_sd_words(run['dev_pearson'])} | "
                 f"{mean_sd_words(run['dev_spearman'])} | {mean_sd_words(r)} | {interval} |")
  if runs[0]['missing']:
    lines += ['', f"without a share, left out: {', '.join(runs[0]['missing'])}"]
  return lines


def _relearn(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
  """The way back of a debiased language model; the figure."""
  from fairjax.report.figures import plot_relearning
  from fairjax.run.relearning import Relearning, relearn
  result = relearn(options.workdir, options.name, options.output, log=log_line,
                   settings=Relearning(
                     steps=options.steps, every=options.every, samples=options.samples,
                     learning_rate=options.learning_rate, scorer=options.scorer))
  plot_relearning(pathlib.Path(options.output) / 'relearning', result=result)
  lines = [f"{result['model']}, {result['attribute']}, scorer {result['scorer']}: I.F. of the "
           f"baseline {_estimate_words(result['baseline'])}"]
  lines += [f"step {p['step']}: I.F. {_estimate_words(p)}" for p in result['curve']]
  return result, [*lines, result['half_life']['words']]


_BESIDE = (
  ('semantic_similarity', 'S.S.'), ('semantic_similarity_c', 'S.S.c'),
  ('distinct_word_divergence', 'words'), ('next_token_kl', 'KL'))


def _estimate_words(found: Mapping[str, Any]) -> str:
  from fairjax.measure import estimate_words
  beside = ', '.join(f'{words} {found[name]:.4f}' for name, words in _BESIDE
                     if found.get(name) is not None)
  return f"{estimate_words(found | {'value': found['individual_fairness']}, error=True)}; {beside}"


VERBS = (
  Verb('cda', 'write a text file with counterfactual sentences (he, she)',
       'fairjax cda --input=train.txt.gz --sided=two --output=train.cda.txt.gz',
       _add_options, _run),
  Verb('correlations', 'gendered correlations of models: DisCo, WinoGender, STS-B, Bios',
       'fairjax correlations --model=runs/bert --winogender=winogender --output=runs/correlations',
       _correlations_options, _correlations),
  Verb('resilience', 'what fine-tuning brings back, and how soon a debiased model re-learns',
       'fairjax resilience relearn --workdir=runs/quickstart --name=country-embedding-10 '
       '--output=runs/relearned', _resilience_options, _resilience),
)
