"""STS-B as a measure of gendered correlations (Webster et al. 2020, section 3.1; W-07, W-08).

A model is fine-tuned to score how similar two sentences are (0 to 5), on pairs of people's scores.
Then "A man is walking" and "A woman is walking" are each compared with "A nurse is walking", for
every profession and for the sentences of the test set that begin so. The difference woman - man,
averaged over sentences, is correlated with the share of women in the profession.

The rule for sentences, which gives the 276 of the paper: both columns of the test file, beginning
with "A man" or "A woman", with exactly one word of `gendered_words()`, where words end at
apostrophes ("woman's" holds "woman"). Each sentence counts once, case and a final period ignored;
"A man sings" and "A woman sings" are two. The measure knows two genders only.

Letters: R pairs, T templates, P professions.
"""

import dataclasses
import hashlib
import os
import pathlib
import re
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.counterfactual.attributes import article_by_letter
from fairjax.counterfactual.gendered_words import read_word_pairs
from fairjax.errors import UserError
from fairjax.gender.persons import COLUMN, Professions, read_professions
from fairjax.gender.trends import correlation, over_restarts
from fairjax.inputs import read_text_lines

# In the lists of Zhao et al. 2018, but no words for people, so the built-in pairs do not have them.
_ALSO_GENDERED = ('beard', 'beards', 'deer')
SPLITS = ('train', 'dev', 'test')
HIGHEST = 5.0  # score of two sentences that mean the same
_SUFFIXES = tuple(f'{kind}{packed}' for packed in ('', '.gz', '.bz2', '.xz', '.zst', '.zip')
                  for kind in ('.tsv', '.csv'))
_BEGINNING = re.compile(r'A (?:man|woman)\b')
_WORDS = re.compile(r'[^\W\d_]+')
_LEAST_DIFFERENCE = 1e-5  # of scores from 0 to 5: smaller ones are the rounding of float32


class Pairs(NamedTuple):
  """Sentence pairs with the scores that people gave them.

  Attributes:
    first: R sentences.
    second: R sentences.
    scores: `[R]` float32 in [0, 5].
    digest: SHA-256 (hex) of all of it.
  """

  first: list[str]
  second: list[str]
  scores: np.ndarray
  digest: str


def find_split(folder: str | os.PathLike, split: str) -> pathlib.Path:
  """The file of a split in a folder of the public data: `sts-<split>.csv` or `.tsv`, or `.gz`."""
  folder = pathlib.Path(folder)
  for suffix in _SUFFIXES:
    if (folder / f'sts-{split}{suffix}').is_file():
      return folder / f'sts-{split}{suffix}'
  raise UserError(f'{folder} holds no sts-{split}.csv: give the folder of the STS benchmark '
                  f"({', '.join(f'sts-{s}' for s in SPLITS)} as {', '.join(_SUFFIXES)})")


def read_pairs(path: str | os.PathLike) -> Pairs:
  """Reads a file of the STS benchmark.

  Columns by tabs, without quotes: genre, file, year, id, score, first, second sentence; further
  columns (sources) are not read. A first line that names sentence1, sentence2 and score (GLUE) says
  which columns they are.

  Raises:
    UserError: unreadable, or a line with its number: less than seven columns, a score that is no
      number from 0 to 5, an empty sentence.
  """
  first, second, scores = [], [], []
  named = None
  for number, line in enumerate(read_text_lines(path, what='sentence pairs'), 1):
    row = line.split('\t')
    if number == 1 and {'sentence1', 'sentence2', 'score'} <= set(row):  # GLUE's file
      named = [row.index(name) for name in ('score', 'sentence1', 'sentence2')]
      continue
    if row == ['']:
      continue
    if named and len(row) > max(named):
      row = [*[''] * 4, *(row[i] for i in named)]
    where = f'{path}:{number}'
    if len(row) < 7:
      raise UserError(f'{where}: {len(row)} columns, not genre, file, year, id, score and two '
                      'sentences with tabs between')
    try:
      score = float(row[4])
    except ValueError:
      score = -1.0
    if not 0 <= score <= HIGHEST:
      raise UserError(f"{where}: score '{row[4]}' is no number from 0 to 5")
    if not row[5].strip() or not row[6].strip():
      raise UserError(f'{where}: a sentence is empty')
    first.append(row[5].strip())
    second.append(row[6].strip())
    scores.append(score)
  if not first:
    raise UserError(f'{path} holds no pair')
  digest = hashlib.sha256(repr([first, second, scores]).encode('utf-8')).hexdigest()
  return Pairs(first, second, np.array(scores, np.float32), digest)


def gendered_words() -> frozenset[str]:
  """Lower-case words of which a sentence holds one: the built-in pairs, and some of Zhao et al."""
  return frozenset(read_word_pairs().partner).union(_ALSO_GENDERED)


def select_templates(pairs: Pairs, gendered: Container[str] | None = None) -> list[str]:
  """What follows "A man" or "A woman" in the sentences that the rule of the module takes.

  Args:
    pairs: the test split.
    gendered: lower-case words; None: `gendered_words()`.

  Returns:
    T texts such as `' is walking.'`, each in the wording in which its sentence came first: the rows
    in their order, the first sentence of a row before the second. A text that follows "A man" in
    one sentence and "A woman" in another is there twice.

  >>> rows = ['A man is walking.', 'A woman is walking', 'A man lost his hat.', 'A woman sings.']
  >>> select_templates(Pairs(rows[:2], rows[2:], np.zeros(2), ''))
  [' is walking.', ' is walking', ' sings.']
  """
  gendered = gendered_words() if gendered is None else gendered
  found: dict[str, str] = {}
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
      article = article_by_letter(profession).capitalize()
      first += [f'A man{rest}', f'A woman{rest}']
      second += [f'{article} {profession}{rest}'] * 2
  return first, second


def profession_differences(scores: np.ndarray, professions: int) -> np.ndarray:
  """Score with woman less score with man, `[T, P]`, of scores `[2 T P]` of `template_pairs`."""
  table = np.asarray(scores, np.float64).reshape(-1, professions, 2)
  return table[:, :, 1] - table[:, :, 0]


def bias_of(scores: np.ndarray, professions: Professions) -> dict[str, Any]:
  """Correlation of the mean differences with the shares of women."""
  table = profession_differences(scores, len(professions.names))
  means = table.mean(0)
  even = np.ptp(means) < _LEAST_DIFFERENCE
  r = correlation(professions.shares, np.zeros_like(means) if even else means)
  errors = table.std(0, ddof=1) / np.sqrt(len(table)) if len(table) > 1 else np.zeros_like(means)
  return {'r': r, 'differences': means.tolist(), 'std_errors': errors.tolist()}


def measure_stsb(
  model: Any, data: str | os.PathLike, *, professions: str | os.PathLike, column: str = COLUMN,
  mode: str = 'full', freeze: str = 'none', name: str = 'baseline', recipe: Any = None,
  restarts: int = 5, seed: int = 0, folder: str | os.PathLike | None = None,
  curve: Sequence[int] = (), curve_templates: int = 0, log: Callable[[str], None],
) -> dict[str, Any]:
  """Fine-tunes a model on STS-B several times and measures accuracy and correlation (W-07, W-08).

  Args:
    model: a directory or an open `LanguageModel`; see `tasks.open_learner`.
    data: folder of the public files.
    professions: file of `read_professions`.
    column: of that file, the shares of women.
    mode: 'full' or 'frozen'.
    freeze: of 'full', what does not move.
    name: of a workdir, which of its models.
    recipe: `finetune.Recipe`; None: BERT's (3 epochs, rate 2e-5), or 10 epochs at 1e-3 of a frozen
      model's head, batches of 32.
    restarts: how many; restart i has the seed `seed + i`.
    seed: see there.
    folder: keeps what is finished; the same call goes on.
    curve: steps after which both are measured too; 0 is a head trained on the frozen model.
    curve_templates: of curves, only so many of the templates, evenly chosen; 0: all.
    log: called with lines of progress.

  Returns:
    JSON values: `r`, `dev_pearson`, `dev_spearman` (`over_restarts` of each), `by_profession`,
    `curves`, `templates`, `missing`, `truncated`, and how it was made.

  Raises:
    UserError: data or model cannot be used.
  """
  from fairjax.gender.probe_tasks import open_learner
  from fairjax.pretrained.heads import Inputs, Labelled, run_restarts
  known = read_professions(professions, column=column)
  splits = {split: read_pairs(find_split(data, split)) for split in SPLITS}
  templates = select_templates(splits['test'])
  if not templates:
    raise UserError(f"{find_split(data, 'test')}: no sentence begins with A man or A woman and "
                    'holds one gendered word: nothing can be compared')
  learner = open_learner(model, labels=['similarity'], mode=mode, pairs=True, freeze=freeze,
                         name=name, log=log)
  recipe = recipe or default_recipe(mode, seed=seed)
  log(f'[stsb] {len(templates)} templates x {len(known.names)} professions x 2; '
      f"{len(splits['train'].first):,} training and {len(splits['dev'].first):,} dev pairs"
      + (f'; without a share, left out: {", ".join(known.missing)}' if known.missing else ''))
  few = [templates[i] for i in
         np.unique(np.linspace(0, len(templates) - 1, curve_templates or len(templates)).round()
                   .astype(int))]

  train, dev = (Inputs(splits[s].first, splits[s].second) for s in ('train', 'dev'))

  def measure_with(chosen):
    texts = Inputs(*template_pairs(chosen, known.names))

    def measure(predict):
      scores, gold = predict(dev)[:, 0], splits['dev'].scores
      return {'dev_pearson': correlation(scores, gold),
              'dev_spearman': correlation(scores, gold, ranks=True),
              **bias_of(predict(texts)[:, 0], known),
              'truncated': learner.count_truncated(train, dev, texts)}
    return measure

  probe = hashlib.sha256(repr([splits['dev'].digest, templates, few, known.digest]).encode())
  found = run_restarts(
    learner, Labelled(train, splits['train'].scores), measure_with(templates), recipe=recipe,
    restarts=restarts, probe=probe.hexdigest(), curve=curve,
    curve_measure=measure_with(few), folder=folder, log=log,
    frozen_first=_frozen_first(recipe) if 0 in curve else None)
  return {'task': 'stsb', 'model': learner.name, 'mode': mode, 'freeze': learner.freeze,
          'learner': learner.identity, 'recipe': vars(recipe), 'templates': len(templates),
          'curve_templates': len(few), 'missing': list(known.missing),
          'train_pairs': len(train.first), 'dev_pairs': len(dev.first), **_summary(found, known)}


def default_recipe(mode: str, *, seed: int = 0) -> Any:
  """How a whole model, or a head on frozen features, is trained unless it is said otherwise."""
  from fairjax.pretrained.fit import Recipe
  if mode == 'full':
    return Recipe(epochs=3, batch_size=32, learning_rate=2e-5, seed=seed)
  return Recipe(epochs=10, batch_size=32, learning_rate=1e-3, seed=seed)


def _frozen_first(recipe: Any) -> Any:
  """Of a curve's step 0: only the head moves, so it may move fast."""
  return dataclasses.replace(recipe, epochs=min(3, recipe.epochs),
                             learning_rate=max(1e-3, recipe.learning_rate))


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
