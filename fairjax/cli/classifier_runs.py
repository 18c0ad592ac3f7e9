"""The verb `sentiment-classifier`: train one, or compare scorers on labelled sentences."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.files import check_place
from fairjax.pretrained.classifier import NAMES, SPECIAL, Examples, quality, read_examples

_HELD_OUT = 0.1  # share of the training texts that stands in for dev texts where none are given


def train(options: argparse.Namespace, log: Callable[[str], None]) -> None:
  """Trains a classifier and prints its figures.

  Raises:
    UserError: bad options, data or checkpoint, or an output of another training.
  """
  if not options.output:
    raise UserError('sentiment-classifier train needs --output=DIR')
  positive = ('layers', 'dim', 'heads', 'vocab_size', 'max_length', 'batch_size')
  for name in positive:
    if getattr(options, name) < 1:
      raise UserError(f'--{name} must be positive')
  epochs = options.epochs if options.epochs is not None else (3 if options.init else 8)
  rate = options.learning_rate
  if rate is None:
    rate = 3e-5 if options.init else 5e-4
  if epochs < 1 or not 0 < rate < 1:
    raise UserError('--epochs must be positive and --learning_rate in (0, 1)')
  if options.max_length < 3 or options.dim % options.heads:
    raise UserError('--max_length must be at least 3 and --heads must divide --dim')
  if options.vocab_size <= len(SPECIAL):
    raise UserError(f'--vocab_size={options.vocab_size} leaves no room beside the {len(SPECIAL)} '
                    'special pieces: give thousands')
  _check_seed(options.seed)
  output = check_place(options.output, folder=True)
  data = read_examples(options.data, classes=options.classes, phrases=options.phrases)
  if options.dev:
    dev = read_examples(options.dev, classes=options.classes)
  else:
    if options.phrases:
      raise UserError('--phrases needs --dev: a tenth of the phrases would be parts of the others')
    data, dev = _split(data, options.seed)
  _check_classes(data, dev, options, log)
  log(f'[data] {len(data.texts):,} training texts ({data.neutral:,} neutral and {data.doubles:,} '
      f'repeated ones left out), {len(dev.texts):,} dev texts ({dev.neutral:,} neutral left out)'
      + ('' if options.dev else ', a tenth of the data'))
  from fairjax.pretrained.classifier import (
    Settings,
    from_checkpoint,
    from_scratch,
    train_classifier,
  )
  if options.init:
    start = from_checkpoint(options.init, labels=NAMES[options.classes], seed=options.seed,
                            log=log)
  else:
    sizes = {name: getattr(options, name)
             for name in ('layers', 'dim', 'heads', 'vocab_size', 'max_length')}
    start = from_scratch(data.texts, classes=options.classes, seed=options.seed, sizes=sizes,
                         log=log)
  card = train_classifier(
    start, data, dev, output, log=log, source={'phrases': options.phrases},
    settings=Settings(epochs, options.batch_size, rate, seed=options.seed,
                      classes=options.classes))
  if options.json:
    print(json.dumps(card, indent=2))
    return
  print(f"{output}: epoch {card['chosen_epoch']} of {epochs}, chosen on these dev texts")
  print(table({output.name: card['dev']}))


def evaluate(
  options: argparse.Namespace, log: Callable[[str], None], *,
  google: Mapping[str, Any] | None = None,
) -> None:
  """Prints accuracy and F1 of models and scorers on the same texts.

  Args:
    options: of the verb.
    log: called with lines of progress.
    google: arguments of the google scorer.

  Raises:
    UserError: nothing to evaluate, unusable data, or a scorer without five classes for 5.
  """
  from fairjax.measure import count_truncated, load_scorer
  names = [f'bert:{directory}' for directory in options.model] + (options.scorer or [])
  if not names:
    raise UserError('sentiment-classifier evaluate needs --model=DIR or --scorer=NAME')
  _check_seed(options.seed)
  data = read_examples(options.data, classes=options.classes)
  found = {}
  for name in names:
    scorer = load_scorer(name, lexicon=options.lexicon, google=google)
    if not hasattr(scorer, 'score'):
      raise UserError(f"scorer '{name}' reads scores of records; it cannot score sentences")
    predictions = predict(scorer, data.texts, classes=options.classes)
    if options.undecided == 'negative' and (predictions < 0).any():
      log(f'[{scorer.name}] {(predictions < 0).sum()} undecided texts count as negative')
      predictions = np.maximum(predictions, 0)
    result = quality(data.labels, predictions, classes=options.classes, seed=options.seed)
    truncated = count_truncated(scorer, data.texts)
    if truncated is not None:
      result['truncated_texts'] = truncated
      log(f'[{scorer.name}] {truncated} texts longer than {scorer.max_length} tokens')
    found[scorer.name] = result
  if options.json:
    print(json.dumps({'data': {'texts': len(data.texts), 'neutral_left_out': data.neutral,
                               'digest': data.digest}, 'scorers': found}, indent=2))
    return
  print(f'{len(data.texts)} texts, {data.neutral} neutral ones left out')
  print(table(found))


def predict(scorer: Any, texts: Sequence[str], *, classes: int) -> np.ndarray:
  """Classes of R texts: `[R]` int; -1 where a two-class score is exactly 0.5 (undecided).

  Raises:
    UserError: five classes are asked of a scorer that has not five.
  """
  if classes == 2:
    scores = np.asarray(scorer.score(texts))
    return np.where(scores == 0.5, -1, scores > 0.5).astype(int)
  values = getattr(scorer, 'values', {})
  if len(values) != classes:
    raise UserError(f'scorer {scorer.name} has no five classes: use --classes=2')
  if len(set(values.values())) < classes:
    raise UserError(f'scorer {scorer.name} gives two classes the same value, so they have no '
                    'order: give each its own, or use --classes=2')
  ranks = np.argsort(np.argsort(list(values.values())))
  return ranks[scorer.probabilities(texts).argmax(-1)]


def table(found: dict[str, dict[str, Any]]) -> str:
  """A Markdown table: one row a scorer, intervals of 95 % in brackets."""
  two = all('positive_f1' in q for q in found.values())
  keys = ['accuracy', 'macro_f1'] + (['positive_f1'] if two else [])
  lines = ['| scorer | accuracy | macro F1 |' + (' F1 of positive |' if two else '')
           + ' undecided | accuracy of the others | n |',
           '| :-- |' + ' --: |' * (len(keys) + 3)]
  for name, q in found.items():
    cells = [f"{q[k]['value']:.3f} ({q[k]['low']:.3f}, {q[k]['high']:.3f})" for k in keys]
    decided = q['accuracy_of_decided']
    cells += [str(q['undecided']), '-' if decided is None else f'{decided:.3f}', str(q['n'])]
    lines.append(f"| {name} | {' | '.join(cells)} |")
  return '\n'.join(lines)


def _check_seed(seed: int) -> None:
  if seed < 0:
    raise UserError(f'--seed={seed} must not be negative')


def _check_classes(
  data: Examples, dev: Examples, options: argparse.Namespace, log: Callable[[str], None]
) -> None:
  """Raises `UserError` where there is nothing to tell apart; says which classes are missing."""
  names = NAMES[options.classes]
  present = np.unique(data.labels).tolist()
  if len(present) == 1:
    raise UserError(f'{options.data}: all {len(data.texts)} training texts are '
                    f'{names[present[0]]}: a classifier needs texts of two classes at least')
  for where, labels in (('training', data.labels), ('dev', dev.labels)):
    missing = [name for i, name in enumerate(names) if i not in labels]
    if missing:
      log(f"[data] WARNING: no {where} text is {' or '.join(missing)}")


def _split(data: Examples, seed: int) -> tuple[Examples, Examples]:
  """Training and dev part of one file."""
  if len(data.texts) < 20:
    raise UserError(f'{len(data.texts)} texts are too few to hold a tenth out: give --dev')
  order = np.random.default_rng([seed, 2]).permutation(len(data.texts))
  cut = round(_HELD_OUT * len(order))
  parts = [np.sort(order[cut:]), np.sort(order[:cut])]
  return tuple(Examples([data.texts[i] for i in part], data.labels[part], data.neutral,
                        data.doubles, f'{data.digest}:{name}')
               for part, name in zip(parts, ('train', 'dev'), strict=True))
