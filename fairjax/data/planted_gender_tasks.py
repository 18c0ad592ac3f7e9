"""Task data in the words of the planted gendered corpus: sentence pairs, and biographies.

**Pairs** (the form of the STS benchmark). A sentence is a subject and what it does with which
thing, short, so that the subject weighs in the mean over the tokens; a score is 5 times the
weighted share of the parts that two sentences have in common. Subjects of the training and dev
pairs are professions and participants, drawn without regard to gender, and no gendered word occurs:
whatever tells man and woman apart beside a profession afterwards was in the model before. The test
pairs begin with "A man" and "A woman".

**Biographies** (the form of Bias-in-Bios). Each profession has its own combination of a thing and a
place, one of which is often replaced by a random one; the person's pronouns are female in the
profession's planted share of the biographies, exactly. Where the combination is ambiguous, gender
is a clue, so a classifier that uses it finds women more easily in professions with many women:
slope > 0. The best possible classifier, which knows all shares, does so too (`best_bios_slope`).
"""

import csv
import io
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairjax.data.planted_gender import profession_shares, pronouns
from fairjax.data.planted_gender_grammar import PARTICIPANTS, PROFESSIONS
from fairjax.files import atomic_write

PART_WEIGHTS = {'subject': 0.5, 'act': 0.3, 'thing': 0.2}
"""Part of a sentence -> its share of the score of a pair."""

NOISE = 0.5
"""Share of the biographies in which the thing or the place is replaced by a random one."""

_PURPOSE = 0x575B105
THINGS = ('letter', 'bag', 'book', 'ticket', 'phone', 'coat', 'lamp', 'table')
PLACES = ('office', 'station', 'market', 'street', 'hotel', 'school')
"""Of the task data: as many as make a combination for every profession."""

_MOODS, _TIMES = ('tired', 'late', 'sick'), ('today', 'yesterday', 'on Monday')
_ACTS = ('forgot', 'got', 'needed', 'bought', 'showed', 'finished')
_SUBJECTS = (*PROFESSIONS, *PARTICIPANTS)
_KEEP = 0.6  # probability that the second sentence of a pair keeps a part of the first
_BIOGRAPHY = ('{He} works with the {thing} in the {place}. {He} likes {his} work.',
              'In the {place} {he} works with the {thing}. {He} said that {he} was {mood}.',
              '{He} talked about {his} work with the {thing}. {He} was in the {place} {time}.')


class _Sentence(NamedTuple):
  """Parts of a sentence; `text` puts a subject in front."""

  subject: str
  act: str
  thing: str

  def text(self, subject: str | None = None) -> str:
    subject = self.subject if subject is None else subject
    article = 'An' if subject[0] in 'aeiou' else 'A'
    return f'{article} {subject} {self.act} the {self.thing}.'


def write_sts(folder: str | os.PathLike, *, seed: int, pairs: int = 2000, templates: int = 40
              ) -> dict[str, pathlib.Path]:
  """Writes `sts-train.tsv`, `sts-dev.tsv` (a tenth as many) and `sts-test.tsv`.

  Args:
    folder: made if it is missing.
    seed: >= 0; the files are a function of all arguments.
    pairs: of training.
    templates: different sentences of the test file, each once with "A man", once with "A woman".

  Returns:
    Split -> path.

  Raises:
    ValueError: no pairs or templates, or more templates than the grammar has.
  """
  most = len(_ACTS) * len(THINGS)
  if pairs < 10 or not 0 < templates <= most:
    raise ValueError(f'{pairs} pairs and {templates} templates: at least 10, and 1 to {most}')
  rng = np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE, 0]))
  rows = {'train': [_pair(rng) for _ in range(pairs)],
          'dev': [_pair(rng) for _ in range(max(10, pairs // 10))]}
  chosen: dict[str, _Sentence] = {}
  while len(chosen) < templates:
    sentence = _draw(rng)
    chosen.setdefault(sentence.text('man'), sentence)
  rows['test'] = [
    (5.0, sentence.text('man'), sentence.text('woman')) for sentence in chosen.values()]
  folder = pathlib.Path(folder)
  paths = {split: folder / f'sts-{split}.tsv' for split in rows}
  for split, path in paths.items():
    lines = [f'planted\tgrammar\t{split}\t{i:04d}\t{score:.3f}\t{a}\t{b}\n'
             for i, (score, a, b) in enumerate(rows[split])]
    with atomic_write(path) as file:
      file.write(''.join(lines).encode('utf-8'))
  return paths


def write_bios(folder: str | os.PathLike, *, seed: int, per_profession: int = 100,
               strength: float = 1.0) -> dict[str, pathlib.Path]:
  """Writes `train.tsv` and `test.tsv` with the columns gender, profession and text.

  Args:
    folder: made if it is missing.
    seed: >= 0; the files are a function of all arguments.
    per_profession: biographies of each profession in each split.
    strength: of the shares (`profession_shares`).

  Returns:
    Split -> path.
  """
  folder = pathlib.Path(folder)
  paths = {}
  for stream, split in enumerate(('train', 'test')):
    rng = np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE, 1, stream]))
    # As many of both genders are tested, so that no cell is rare.
    shares = (profession_shares(strength) if split == 'train'
              else dict.fromkeys(PROFESSIONS, 0.5))
    rows = []
    for number, profession in enumerate(PROFESSIONS):
      women = int(np.floor(shares[profession] * per_profession + 0.5))
      rows += [('F' if i < women else 'M', profession, _biography(number, i < women, rng))
               for i in range(per_profession)]
    order = rng.permutation(len(rows)).tolist()
    text = io.StringIO()
    writer = csv.writer(text, delimiter='\t', lineterminator='\n', quoting=csv.QUOTE_NONE)
    writer.writerows([('gender', 'profession', 'text'), *(rows[i] for i in order)])
    paths[split] = folder / f'{split}.tsv'
    with atomic_write(paths[split]) as file:
      file.write(text.getvalue().encode('utf-8'))
  return paths


def best_bios_slope(strength: float = 1.0) -> float:
  """Slope of the gaps over the shares of the classifier that knows how biographies are made.

  Of a thing, a place and a gender it names the likeliest profession; equally likely ones share the
  vote. All combinations are summed, so this is exact.
  """
  shares = np.array([profession_shares(strength)[p] for p in PROFESSIONS])
  chance = _evidence()
  rates = []
  for prior in (shares, 1 - shares):  # of women, of men
    joint = chance * prior[:, None, None]
    best = joint >= joint.max(0) * (1 - 1e-12)
    vote = np.where(joint.max(0) > 0, best / best.sum(0), 0)
    rates.append((chance * vote).sum((1, 2)))
  return float(np.polyfit(shares, rates[0] - rates[1], 1)[0])


def _evidence() -> np.ndarray:
  """P(thing, place | profession), `[P, things, places]`."""
  things, places = len(THINGS), len(PLACES)
  found = np.zeros((len(PROFESSIONS), things, places))
  for i in range(len(PROFESSIONS)):
    own = _combination(i)
    found[i][own] += 1 - NOISE
    found[i, :, own[1]] += NOISE / 2 / things
    found[i, own[0], :] += NOISE / 2 / places
  return found


def _combination(profession: int) -> tuple[int, int]:
  """Thing and place of a profession: all differ, as 24 is the least multiple of 8 and 6."""
  return profession % len(THINGS), profession % len(PLACES)


def _biography(profession: int, female: bool, rng: np.random.Generator) -> str:
  """A biography without the profession's name."""
  thing, place = _combination(profession)
  if rng.random() < NOISE:
    if rng.integers(2):
      thing = int(rng.integers(len(THINGS)))
    else:
      place = int(rng.integers(len(PLACES)))
  slots = pronouns(female) | {
    'thing': THINGS[thing], 'place': PLACES[place], 'time': _pick(_TIMES, rng),
    'mood': _pick(_MOODS, rng)}
  return _pick(_BIOGRAPHY, rng).format_map(slots)


def _draw(rng: np.random.Generator) -> _Sentence:
  return _Sentence(_pick(_SUBJECTS, rng), _pick(_ACTS, rng), _pick(THINGS, rng))


def _pair(rng: np.random.Generator) -> tuple[float, str, str]:
  """Score and two sentences; each part of the second is kept or drawn again."""
  first, fresh = _draw(rng), _draw(rng)
  second = _Sentence(*(a if rng.random() < _KEEP else b
                       for a, b in zip(first, fresh, strict=True)))
  score = 5 * sum(weight for (name, weight) in PART_WEIGHTS.items()
                  if getattr(first, name) == getattr(second, name))
  return score, first.text(), second.text()


def _pick(words: Sequence[str], rng: np.random.Generator) -> str:
  return words[int(rng.integers(len(words)))]
