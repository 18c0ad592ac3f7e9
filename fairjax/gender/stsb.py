"""STS-B as a measure of gendered correlations (Webster et al. 2020, section 3.1; W-07, W-08).

The score of "A woman is walking" with "A nurse is walking" less that of "A man is walking",
averaged over sentences, is correlated with the share of women in the profession.

The rule for sentences, which gives the 276 of the paper: both columns of the test file, beginning
with "A man" or "A woman", with exactly one word of `gendered_words()`, where words end at
apostrophes. Each sentence counts once, case and a final period ignored. The measure knows two
genders only.

Resilience to fine-tuning (section 6; W-18, W-19) is the same with nothing, the embedding, or the
first k layers frozen. Step 0 is a head on the frozen model.

Letters: R pairs, T templates, P professions.
"""

import dataclasses
import hashlib
import os
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.counterfactual.gendered_words import read_word_pairs
from fairjax.counterfactual.lint import article_by_sound
from fairjax.errors import UserError
from fairjax.files import write_json
from fairjax.gender.persons import COLUMN, Professions, read_professions
from fairjax.gender.scored_models import Scorable, open_learner
from fairjax.gender.trends import correlation, over_restarts
from fairjax.pretrained.fit import Recipe
from fairjax.pretrained.heads import Inputs, Labelled, Predict, run_restarts
from fairjax.tables import read_table

# In the lists of Zhao et al. 2018, but no words for people, so the built-in pairs do not have them.
_ALSO_GENDERED = ('beard', 'beards', 'deer')
SPLITS = ('train', 'dev', 'test')
_COLUMNS = ('genre', 'file', 'year', 'id', 'score', 'sentence1', 'sentence2')
HIGHEST = 5.0  # score of two sentences that mean the same
_BEGINNING = re.compile(r'A (?:man|woman)\b')
_WORDS = re.compile(r'[^\W\d_]+')
_LEAST_DIFFERENCE = 1e-5  # of scores from 0 to 5: smaller ones are the rounding of float32


class Pairs(NamedTuple):
  """Sentence pairs with the scores that people gave them."""

  first: list[str]
  second: list[str]
  scores: np.ndarray  # `[R]` float32 in [0, 5]
  digest: str  # SHA-256 (hex) of all of it


def find_split(folder: str | os.PathLike, split: str) -> pathlib.Path:
  """The file of a split in a folder of the public data: `sts-<split>.csv` or `.tsv`, or `.gz`."""
  found = [path for path in sorted(pathlib.Path(folder).glob(f'sts-{split}.[ct]sv*'), reverse=True)
           if path.suffix in ('.tsv', '.csv', '.gz', '.bz2', '.xz', '.zst', '.zip')]
  if not found:
    raise UserError(f'{folder} holds no sts-{split}.csv: give the folder of the STS benchmark '
                    f"({', '.join(f'sts-{s}' for s in SPLITS)} as .csv or .tsv, plain or packed)")
  if len({path.name.split('.')[1] for path in found}) > 1:
    raise UserError(f'{folder} holds sts-{split} as .csv and as .tsv: remove one')
  return min(found, key=lambda path: len(path.suffixes))


def read_pairs(path: str | os.PathLike) -> Pairs:
  """Reads a file of the STS benchmark, or GLUE's, whose header names the columns."""
  first, second, scores = [], [], []
  for row, where in read_table(path, ('score', 'sentence1', 'sentence2'), what='sentence pairs',
                               names=_COLUMNS, unquoted_tabs=True):
    try:
      score = float(row['score'])
    except ValueError:
      score = -1.0
    if not 0 <= score <= HIGHEST:
      raise UserError(f"{where}: score '{row['score']}' is no number from 0 to 5")
    sentences = row['sentence1'].strip(), row['sentence2'].strip()
    if not all(sentences):
      raise UserError(f'{where}: a sentence is empty')
    first.append(sentences[0])
    second.append(sentences[1])
    scores.append(score)
  digest = hashlib.sha256(repr([first, second, scores]).encode('utf-8')).hexdigest()
  return Pairs(first, second, np.array(scores, np.float32), digest)


def gendered_words() -> frozenset[str]:
  """Lower-case words of which a sentence holds one: the built-in pairs, and some of Zhao et al."""
  return frozenset(read_word_pairs().partner).union(_ALSO_GENDERED)


def select_templates(pairs: Pairs) -> list[str]:
  """The T texts after "A man" or "A woman" in the sentences that the rule of the module takes.

  Each has the wording in which its sentence came first; rows are in their order, the first sentence
  of a row before the second.

  >>> rows = ['A man is walking.', 'A woman is walking', 'A man lost his hat.', 'A woman sings.']
  >>> select_templates(Pairs(rows[:2], rows[2:], np.zeros(2), ''))
  [' is walking.', ' is walking', ' sings.']
  """
  gendered, found = gendered_words(), dict[str, str]()
  for row in zip(pairs.first, pairs.second, strict=True):
    for sentence in row:
      match = _BEGINNING.match(sentence)
      if match is None or sum(w in gendered for w in _WORDS.findall(sentence.lower())) != 1:
        continue
      key = sentence.lower().rstrip().removesuffix('.').rstrip()
      found.setdefault(key, sentence[match.end():])
  return list(found.values())


def template_pairs(templates: Sequence[str], professions: Sequence[str]
                   ) -> tuple[list[str], list[str]]:
  """The 2 T P pairs that are compared: man, then woman, for each profession of each template."""
  first, second = [], []
  for rest in templates:
    for profession in professions:
      article = article_by_sound(profession).capitalize()
      first += [f'A man{rest}', f'A woman{rest}']
      second += [f'{article} {profession}{rest}'] * 2
  return first, second


def bias_of(scores: np.ndarray, professions: Professions) -> dict[str, Any]:
  """Mean score with woman less that with man, of scores `[2 T P]` of `template_pairs`; their r."""
  table = np.asarray(scores, np.float64).reshape(-1, len(professions.names), 2)
  means = (table[:, :, 1] - table[:, :, 0]).mean(0)
  even = np.ptp(means) < _LEAST_DIFFERENCE
  r = correlation(professions.shares, np.zeros_like(means) if even else means)
  return {'r': r, 'differences': means.tolist()}


def measure_stsb(
  model: str | os.PathLike | Scorable, data: str | os.PathLike, *,
  professions: str | os.PathLike, column: str = COLUMN, mode: str = 'full', freeze: str = 'none',
  name: str = 'baseline', recipe: Recipe, restarts: int = 5,
  folder: str | os.PathLike | None = None, curve: Sequence[int] = (), curve_templates: int = 0,
  log: Callable[[str], None],
) -> dict[str, Any]:
  """Fine-tunes a model on STS-B several times and measures accuracy and correlation (W-07, W-08).

  Restart i has the seed `recipe.seed + i`; the same call goes on with what `folder` keeps. At the
  steps of `curve` (0: a head on the frozen model) both are measured too, with `curve_templates` of
  the templates, evenly chosen (0: all).
  """
  known = read_professions(professions, column=column)
  splits = {split: read_pairs(find_split(data, split)) for split in SPLITS}
  templates = select_templates(splits['test'])
  if not templates:
    raise UserError(f"{find_split(data, 'test')}: no sentence begins with A man or A woman and "
                    'holds one gendered word: nothing can be compared')
  learner = open_learner(model, labels=['similarity'], mode=mode, pairs=True, freeze=freeze,
                         name=name, log=log)
  log(f'[stsb] {len(templates)} templates x {len(known.names)} professions x 2; '
      f"{len(splits['train'].first):,} training and {len(splits['dev'].first):,} dev pairs"
      + (f'; without a share, left out: {", ".join(known.missing)}' if known.missing else ''))
  few = [templates[i] for i in
         np.unique(np.linspace(0, len(templates) - 1, curve_templates or len(templates)).round()
                   .astype(int))]

  train, dev = (Inputs(splits[s].first, splits[s].second) for s in ('train', 'dev'))

  def measure_with(chosen: Sequence[str]) -> Callable[[Predict], dict[str, Any]]:
    # A text may follow both "A man" and "A woman": its pairs are scored once and count twice.
    distinct = list(dict.fromkeys(chosen))
    rows = [distinct.index(rest) for rest in chosen]
    texts, scored = (Inputs(*template_pairs(rests, known.names)) for rests in (chosen, distinct))

    def measure(predict: Predict) -> dict[str, Any]:
      scores, gold = predict(dev)[:, 0], splits['dev'].scores
      compared = predict(scored)[:, 0].reshape(len(distinct), -1)[rows].ravel()
      return {'dev_pearson': correlation(scores, gold),
              'dev_spearman': correlation(scores, gold, ranks=True), **bias_of(compared, known),
              'truncated': learner.count_truncated(train, dev, texts)}
    return measure

  # The recipe of a curve's step 0: only the head moves, so it may move fast.
  head = dataclasses.replace(recipe, epochs=min(3, recipe.epochs),
                             learning_rate=max(1e-3, recipe.learning_rate))
  probe = hashlib.sha256(repr([splits['dev'].digest, templates, few, known.digest]).encode())
  found = run_restarts(
    learner, Labelled(train, splits['train'].scores), measure_with(templates), recipe=recipe,
    restarts=restarts, probe=probe.hexdigest(), curve=curve,
    curve_measure=measure_with(few), folder=folder, log=log,
    frozen_first=head if 0 in curve else None)
  return {'task': 'stsb', 'model': learner.name, 'mode': mode, 'freeze': learner.freeze,
          'learner': learner.identity, 'recipe': vars(recipe), 'templates': len(templates),
          'curve_templates': len(few), 'missing': list(known.missing),
          'train_pairs': len(train.first), 'dev_pairs': len(dev.first), **_summary(found, known)}


def _summary(found: Sequence[dict[str, Any]], professions: Professions) -> dict[str, Any]:
  """Numbers over restarts, of the ends and of the curves."""
  keys = ('r', 'dev_pearson', 'dev_spearman')
  ends = [f['result'] for f in found]
  differences = np.array([end['differences'] for end in ends])
  curves = []
  for points in zip(*(f['curve'] for f in found), strict=True):
    curves.append({'step': points[0]['step'], **{
      key: over_restarts([p['result'][key] for p in points]) for key in keys}})
  by_profession = [
    {'profession': name, 'share': float(share), 'difference': float(each.mean()),
     'restarts': each.tolist()}
    for name, share, each in zip(professions.names, professions.shares, differences.T, strict=True)]
  return {**{key: over_restarts([end[key] for end in ends]) for key in keys},
          'seeds': [f['seed'] for f in found], 'steps': found[0]['steps'],
          'truncated': ends[0]['truncated'],
          'train_loss': [f['train_loss'] for f in found], 'curves': curves,
          'by_profession': by_profession}


def curve_steps(total: int, points: int) -> tuple[int, ...]:
  """Steps at which a curve is measured: 0, then denser at the beginning, where most is learned."""
  if points < 1:
    return ()
  steps = np.round(total * (np.arange(points) / points) ** 2).astype(int)
  return tuple(sorted({0, *steps.tolist()} - {total}))


def measure_resilience(
  model: str | os.PathLike, data: str | os.PathLike, output: str | os.PathLike, *,
  professions: str | os.PathLike, column: str, freezes: Sequence[str], points: int, recipe: Recipe,
  restarts: int, curve_templates: int, log: Callable[[str], None],
) -> dict[str, Any]:
  """Fine-tunes with several parts frozen and follows accuracy and correlation."""
  freezes = list(freezes)
  if not freezes or len(set(freezes)) != len(freezes):
    raise UserError(f"--freeze={','.join(freezes)}: name what is frozen, each once, e.g. "
                    'none,embedding,2')
  output = pathlib.Path(output)
  # Errors of all files and words come before the first training.
  read_professions(professions, column=column)
  rows = [len(read_pairs(find_split(data, split)).first) for split in SPLITS][0]
  steps = curve_steps(-(-rows // recipe.batch_size) * recipe.epochs, points)
  for freeze in freezes:
    open_learner(model, labels=['similarity'], mode='full', freeze=freeze, log=lambda line: None)
  runs = []
  for freeze in freezes:
    log(f'[resilience] freeze {freeze}')
    curve = tuple(s for s in steps if s) if freeze == 'all' else steps
    runs.append(measure_stsb(
      model, data, professions=professions, column=column, mode='full', freeze=freeze,
      recipe=recipe, restarts=restarts, folder=output / f'freeze-{freeze}', curve=curve,
      curve_templates=curve_templates, log=log))
  result = {'task': 'resilience', 'model': runs[0]['model'], 'runs': runs}
  write_json(output / 'resilience.json', result)
  return result
