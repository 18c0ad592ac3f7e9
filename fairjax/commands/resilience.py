"""The verb `resilience`: what fine-tuning brings back, and how soon a language model re-learns."""

import argparse
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from fairjax.commands.verb import Verb, log_line
from fairjax.errors import UserError


def _add_options(parser: argparse.ArgumentParser) -> None:
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
  from fairjax.correlations.resilience import measure_resilience
  from fairjax.finetune import Recipe
  from fairjax.report.resilience_figures import plot_resilience
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
  from fairjax.correlations.trends import mean_sd_words
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
  from fairjax.job.relearning import Relearning, relearn
  from fairjax.report.resilience_figures import plot_relearning
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
  Verb('resilience', 'what fine-tuning brings back, and how soon a debiased model re-learns',
       'fairjax resilience relearn --workdir=runs/quickstart --name=country-embedding-10 '
       '--output=runs/relearned', _add_options, _resilience),
)
