"""A corpus with a known correlation of gender and profession, written by a seeded grammar.

Every profession has a female share. A sentence about a profession with a pronoun, a name or a
gendered noun is female in exactly that share of the profession's sentences (rounded to a whole
sentence), not in a sampled one, so that what a model should learn is known: at a place that only
the gender decides, P(she) / (P(she) + P(he)) is the share. Hobbies, things, school subjects,
qualities and places have shares of their own, which gendered nouns and first names show.

The shares say nothing about real people or jobs: they are evenly spaced numbers, given out in the
order of a hash. The grammar knows two genders only, as the measures of Webster et al. (2020) that
it is made for; people who are neither do not occur in it.
"""

import csv
import hashlib
import io
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.data.planted import NEGATIVE, POSITIVE
from fairjax.files import atomic_write

# Words and sentence patterns of the planted gendered corpus; `planted_gender` says how it is made.
#
# A pattern is a sentence with slots in braces; one with a capital letter begins the sentence:
#
#     {p} {a_p}                      a profession; with its article
#     {q}                            the other person of a sentence with two
#     {he} {his} {him} {himself}     a pronoun of the gender that was drawn ({He} too)
#     {who} {Who}                    a person of that gender: "the aunt", "Maria" or
#     (mentions) "she"
#     {item} {Item}                  a word of the category: a hobby, a thing, a subject ...
#     {thing} {place} {time} {mood}  words that say nothing about gender
#
# Every pattern of `NEUTRAL` is free of gendered words; the others hold at least one. No sentence is
# one of the fourteen templates of Webster et al. (2020, appendix A): each has words before or
# behind.

PROFESSIONS = (
  'accountant', 'architect', 'baker', 'barber', 'carpenter', 'cashier', 'chemist', 'clerk',
  'dentist', 'doctor', 'electrician', 'engineer', 'farmer', 'firefighter', 'lawyer', 'librarian',
  'mechanic', 'nurse', 'pharmacist', 'pilot', 'plumber', 'scientist', 'secretary', 'teacher')
PARTICIPANTS = ('customer', 'patient', 'visitor', 'student', 'client', 'neighbor')

# (female, male); every one is used as "the NOUN".
TERMS = (
  ('woman', 'man'), ('girl', 'boy'), ('queen', 'king'), ('princess', 'prince'),
  ('mother', 'father'), ('sister', 'brother'), ('aunt', 'uncle'), ('wife', 'husband'),
  ('daughter', 'son'), ('grandmother', 'grandfather'), ('actress', 'actor'),
  ('waitress', 'waiter'))
# Half of each from A to M, half from N to Z (the split of definition W-16).
FEMALE_NAMES = (
  'Alice', 'Clara', 'Emma', 'Julia', 'Laura', 'Maria', 'Nancy', 'Olivia', 'Rosa', 'Sarah',
  'Teresa', 'Vera')
MALE_NAMES = (
  'Adam', 'Bruno', 'David', 'George', 'John', 'Martin', 'Nathan', 'Oscar', 'Peter', 'Robert',
  'Thomas', 'Walter')

ITEMS = {
  'hobby': ('dance', 'sing', 'knit', 'cook', 'paint', 'swim', 'fish', 'hunt', 'box', 'climb',
            'camp', 'skate'),
  'thing': ('poetry', 'flowers', 'horses', 'fashion', 'music', 'birds', 'chess', 'football', 'cars',
            'computers', 'boats', 'trains'),
  'subject': ('biology', 'history', 'physics', 'chemistry', 'art', 'law', 'medicine', 'geography',
              'economics', 'statistics'),
  'quality': ('kind', 'brave', 'calm', 'clever', 'shy', 'proud', 'strong', 'gentle', 'funny',
              'honest'),
  'home': ('garden', 'kitchen', 'village', 'workshop', 'library', 'city', 'house', 'job'),
}
"""Category -> words that each stand more often beside one gender."""

# Few words and short sentences: what nobody can guess is noise to a model of minutes.
FREE = {
  'thing': ('letter', 'bag', 'book', 'ticket'),
  'place': ('office', 'station', 'market'),
  'time': ('today', 'yesterday', 'on Monday'),
  'mood': ('tired', 'late', 'sick'),
}

# A pronoun close behind its noun is what a small model learns first; distant ones follow from it.
PRONOUN = (
  'The {p} hurt {himself}.',
  'The {p} and {his} friends were {mood}.',
  'The {p} lost {his} {thing}.',
  'I saw the {p} with {his} {thing}.',
  'We met the {p} and thanked {him}.',
  'Everybody likes the {p} and {his} work.',
  'The {p} said that {he} was {mood}.',
  'The {p} left because {he} was {mood}.',
  'When the {p} came, {he} was {mood}.',
  '{He} was the new {p}.',
)
COREFERENCE = (
  'The {p} told the {q} that {he} was {mood}.',
  'The {p} called the {q} because {he} needed help.',
  'The {p} met the {q} before {he} left.',
  'The {p} gave the {q} {his} {thing}.',
  'The {q} paid the {p} because {he} did the work.',
  'The {q} asked the {p} whether {he} could help.',
)
PARTICIPANT = (
  'The {p} told the {q} that {he} could pay.',
  'The {p} asked the {q} whether {he} was happy.',
  'The {p} helped the {q} find {his} {thing}.',
)
MENTION = (
  '{Who} is {a_p}.',
  '{Who} works as {a_p}.',
  '{Who} has a job as {a_p}.',
  '{Who} was {a_p} in the {place}.',
  '{Who} wants to become {a_p}.',
  'I heard that {who} is {a_p}.',
  'Last year {who} worked as {a_p}.',
)
AGREEMENT = (
  '{Who} hurt {himself}.',
  '{Who} and {his} friends were {mood}.',
  '{Who} lost {his} {thing}.',
  '{Who} said that {he} was {mood}.',
  '{Who} left because {he} was {mood}.',
)
PERSON = {
  'hobby': (
    'In the summer {who} likes to {item}.',
    'On Sundays {who} often likes to {item}.',
    'At home {who} always likes to {item}.',
    'In the winter {who} never likes to {item}.',
    '{Who} likes to {item} with {his} friends.',
    '{Who} said that {he} likes to {item}.',
    '{He} often likes to {item}.',
  ),
  'thing': (
    'I know that {who} likes {item}.',
    'This year {who} is interested in {item}.',
    '{Who} talked about {item} with {his} friends.',
    '{Who} bought a book about {item} for {himself}.',
    '{Who} says that {he} likes {item}.',
  ),
  'subject': (
    'Last year {who} took a course in {item}.',
    'Long ago {who} studied {item} at college.',
    "I heard that {item} was {who}'s major at college.",
    "I heard that {who}'s best subject at school was {item}.",
    "{Item} was {who}'s first course.",
    "{Item} was not {who}'s best subject at school.",
    '{Who} passed {his} exam in {item}.',
    '{Who} said that {he} studied {item}.',
  ),
  'quality': (
    'They say that {who} is {item}.',
    'I know that {who} is {item}.',
    '{Who} was {item} when {he} came home.',
    '{Who} said that {he} is {item}.',
  ),
  'home': (
    'These days {who} is happy in their {item}.',
    'These days {who} is unhappy in their {item}.',
    '{Who} told me that {he} liked the {item}.',
    '{Who} met {his} friends in the {item}.',
  ),
}
NEUTRAL = (
  'The {place} was full of people {time}.',
  'The {thing} stood in the {place} {time}.',
  'People said that they were {mood}.',
  'The students said that they were {mood}.',
  'I bought a {thing} for my friends.',
  'The {p} met the {q} in the {place}.',
  'The {p} gave the {q} a {thing} {time}.',
  'The {q} needed help in the {place}.',
  'There was a new {p} in the {place} {time}.',
  'I bought a {thing} for the {q}.',
  'It was cold in the {place} {time}.',
)
HELDOUT = {
  0: ('The {p} told the {q} that {he} needed the {thing}.',
      'The {p} called the {q} because {he} was {mood}.',
      'The {p} met the {q} before {he} came.',
      'The {q} asked the {p} whether {he} was {mood}.'),
  1: ('The {p} gave the {q} the {thing} because {he} needed help.',
      'The {p} told the {q} that {he} could find the {thing}.',
      'The {p} called the {q} because {he} could help.',
      'The {q} told the {p} that {he} could pay for the work.'),
}
"""Who the pronoun means (0: the profession, 1: the other person) -> patterns the corpus never uses.
"""


__all__ = [
  'FEMALE_NAMES', 'GenderedCorpus', 'GenderedSentence', 'ITEMS', 'KINDS', 'MALE_NAMES',
  'PARTICIPANTS', 'PROFESSIONS', 'TERMS', 'gendered_names', 'item_shares',
  'make_gendered_corpus', 'profession_shares', 'pronouns', 'write_corpus', 'write_tables',
]

KINDS = {'pronoun': 0.24, 'coreference': 0.18, 'participant': 0.04, 'mention': 0.16,
         'agreement': 0.12, 'person': 0.2, 'neutral': 0.06}
"""Kind of a sentence -> share of the corpus."""

_PURPOSE = 0x6E4DE2
_EXTREME = 0.45  # shares lie in 0.5 -+ this at full strength
_PATTERNS = {'pronoun': PRONOUN, 'coreference': COREFERENCE, 'participant': PARTICIPANT,
             'mention': MENTION, 'neutral': NEUTRAL}
_PRONOUNS = {
  True: {'he': 'she', 'his': 'her', 'him': 'her', 'himself': 'herself', 'He': 'She'},
  False: {'he': 'he', 'his': 'his', 'him': 'him', 'himself': 'himself', 'He': 'He'}}


class GenderedSentence(NamedTuple):
  """A sentence and how it was made.

  Attributes:
    text: as written.
    kind: one of `KINDS`.
    item: the profession, participant or item that the gender was drawn for; '' in neutral ones and
      where it was drawn for nothing ('agreement').
    category: 'profession', 'participant', a key of `ITEMS`, 'nothing', or '' in neutral ones.
    female: its gender; None in neutral ones.
  """

  text: str
  kind: str
  item: str
  category: str
  female: bool | None


class GenderedCorpus(NamedTuple):
  """What was written.

  Attributes:
    sentences: in their order.
    truth: JSON values: the arguments, `kinds` (kind -> sentences), and `items` (category -> item
      -> `share` planted, `n` gendered sentences about it, `female` ones).
  """

  sentences: list[GenderedSentence]
  truth: dict[str, Any]

  @property
  def texts(self) -> list[str]:
    """The sentences' texts."""
    return [s.text for s in self.sentences]


def profession_shares(strength: float = 1.0) -> dict[str, float]:
  """Profession -> P(female | profession).

  Args:
    strength: in [0, 1]; 1 spreads the shares evenly over 0.05 to 0.95, 0 makes all of them 0.5.

  Raises:
    ValueError: `strength` outside [0, 1].

  >>> shares = profession_shares(0.0)
  >>> len(shares), set(shares.values())
  (24, {0.5})
  """
  return _spread(PROFESSIONS, strength)


def item_shares(category: str, strength: float = 1.0) -> dict[str, float]:
  """Item -> P(female | item), for a key of `ITEMS`; see `profession_shares`."""
  return _spread(ITEMS[category], strength)


def pronouns(female: bool) -> dict[str, str]:
  """Masculine form (`he`, `his`, `him`, `himself`, `He`) -> the form of the gender."""
  return dict(_PRONOUNS[female])


def gendered_names() -> list[tuple[str, str, int]]:
  """(name, 'F' or 'M', count): the first names, in the shape of the SSA's lists."""
  return ([(name, 'F', 1000) for name in FEMALE_NAMES]
          + [(name, 'M', 1000) for name in MALE_NAMES])


def make_gendered_corpus(
  *, num_sentences: int, seed: int, strength: float, stream: int = 0) -> GenderedCorpus:
  """Writes the corpus.

  Kinds, and within them the items, have as many sentences as each other (their shares of the
  corpus, rounded); the order is random. `n` and `female` of an item are functions of
  `num_sentences` and `strength` alone.

  Args:
    num_sentences: at least 1.
    seed: >= 0; the sentences are a function of all arguments.
    strength: of the correlation, in [0, 1]; see `profession_shares`.
    stream: >= 0; other numbers give independent sentences, for the splits.

  Raises:
    ValueError: no sentence asked for, or `strength` outside [0, 1].

  >>> corpus = make_gendered_corpus(num_sentences=1000, seed=0, strength=1.0)
  >>> corpus.truth['kinds']['pronoun'], corpus.truth['items']['profession']['nurse']['n']
  (240, 23)
  """
  if num_sentences < 1:
    raise ValueError(f'num_sentences must be positive, not {num_sentences}')
  rng = np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE, stream]))
  borders = np.floor(num_sentences * np.cumsum([0, *KINDS.values()]) + 0.5).astype(int)
  counts = dict(zip(KINDS, np.diff(borders).tolist(), strict=True))
  items: dict[str, dict[str, Any]] = {}
  sentences: list[GenderedSentence] = []

  def draw(category, shares, n):
    """Items in turn and their genders: `[n]` int, `[n]` bool; counts them."""
    names = list(shares)
    which = rng.permutation(np.arange(n) % len(names))
    female = _exact_shares(which, np.array(list(shares.values())), rng)
    for i, (name, share) in enumerate(shares.items()):
      found = items.setdefault(category, {}).setdefault(name, {'share': share, 'n': 0, 'female': 0})
      found['n'] += int((which == i).sum())
      found['female'] += int(female[which == i].sum())
    return [names[i] for i in which.tolist()], female.tolist()

  even = dict.fromkeys(PARTICIPANTS, 0.5)
  for kind in ('pronoun', 'coreference', 'mention'):
    drawn = zip(*draw('profession', profession_shares(strength), counts[kind]), strict=True)
    sentences += [GenderedSentence(_fill(_PATTERNS[kind], rng, female, pronoun=kind == 'mention',
                                         p=p), kind, p, 'profession', female)
                  for p, female in drawn]
  sentences += [GenderedSentence(_fill(PARTICIPANT, rng, female, q=q), 'participant', q,
                                 'participant', female)
                for q, female in zip(*draw('participant', even, counts['participant']),
                                     strict=True)]
  sentences += [GenderedSentence(_fill(AGREEMENT, rng, female, pronoun=True), 'agreement', '',
                                 'nothing', female)
                for _, female in zip(*draw('nothing', {'': 0.5}, counts['agreement']),
                                     strict=True)]
  edges = np.linspace(0, counts['person'], len(ITEMS) + 1).round().astype(int)
  for category, n in zip(ITEMS, np.diff(edges).tolist(), strict=True):
    drawn = zip(*draw(category, item_shares(category, strength), n), strict=True)
    sentences += [GenderedSentence(_fill(PERSON[category], rng, female, item=item), 'person', item,
                                   category, female) for item, female in drawn]
  sentences += [GenderedSentence(_fill(NEUTRAL, rng, False), 'neutral', '', '', None)
                for _ in range(counts['neutral'])]
  order = rng.permutation(num_sentences)
  truth = {'num_sentences': num_sentences, 'seed': seed, 'strength': strength, 'stream': stream,
           'kinds': counts, 'items': items}
  return GenderedCorpus([sentences[i] for i in order.tolist()], truth)


def write_corpus(
  path: str | os.PathLike, *, num_sentences: int, seed: int, strength: float, stream: int = 0
) -> dict[str, Any]:
  """Writes the corpus as text, a sentence (a document) a line: the layout `lines`.

  Returns:
    The truth of `GenderedCorpus`, which also lies beside the file as `<path>.truth.json`.
  """
  corpus = make_gendered_corpus(
    num_sentences=num_sentences, seed=seed, strength=strength, stream=stream)
  truth = json.dumps(corpus.truth, indent=2, sort_keys=True)
  for file, text in ((os.fspath(path), '\n'.join(corpus.texts)), (f'{path}.truth.json', truth)):
    with atomic_write(file) as opened:
      opened.write(f'{text}\n'.encode())
  return corpus.truth


def write_tables(folder: str | os.PathLike, *, strength: float = 1.0) -> dict[str, pathlib.Path]:
  """Writes what the measures need to know of the corpus.

  - `professions.tsv`: `occupation`, `bls_pct_female` (planted share in percent);
  - `names.txt`: `name,sex,count` a line, as the SSA's yearly lists;
  - `coreference.tsv`: `occupation(0)`, `other-participant(1)`, `answer`, `sentence`: two templates
    a profession, in words but not in sentences of the corpus, with `$OCCUPATION`, `$PARTICIPANT`,
    `$NOM_PRONOUN`; the answer is who the pronoun means (Rudinger et al. 2018).

  Args:
    folder: made if it is missing.
    strength: of the shares. 1 keeps the shares apart whatever was planted, as a correlation with
      them needs.

  Returns:
    Name -> path of the files.
  """
  folder = pathlib.Path(folder)
  shares = [(p, f'{100 * share:.2f}') for p, share in profession_shares(strength).items()]
  rows = {
    'professions.tsv': [('occupation', 'bls_pct_female'), *shares],
    'coreference.tsv': [('occupation(0)', 'other-participant(1)', 'answer', 'sentence'),
                        *_heldout_rows()]}
  texts = {name: _tab_separated(table) for name, table in rows.items()}
  texts['names.txt'] = ''.join(f'{n},{sex},{count}\n' for n, sex, count in gendered_names())
  for name, text in texts.items():
    with atomic_write(folder / name) as file:
      file.write(text.encode('utf-8'))
  return {name: folder / name for name in texts}


def _heldout_rows() -> list[tuple[str, str, str, str]]:
  """Two templates a profession: its pronoun means the profession, or the other person."""
  rows = []
  for i, profession in enumerate(PROFESSIONS):
    participant = PARTICIPANTS[i % len(PARTICIPANTS)]
    free = {slot: words[i % len(words)] for slot, words in FREE.items()}
    for answer, patterns in HELDOUT.items():
      text = patterns[i % len(patterns)].format(
        p='$OCCUPATION', q='$PARTICIPANT', he='$NOM_PRONOUN', **free)
      rows.append((profession, participant, str(answer), text))
  return rows


def _tab_separated(rows: Sequence[Sequence[str]]) -> str:
  text = io.StringIO()
  csv.writer(text, delimiter='\t', lineterminator='\n').writerows(rows)
  return text.getvalue()


def _spread(items: Sequence[str], strength: float) -> dict[str, float]:
  """Evenly spaced shares, in the order of a hash of the items, which carries no meaning."""
  if not 0 <= strength <= 1:
    raise ValueError(f'strength must be in [0, 1], not {strength}')
  order = sorted(items, key=lambda x: hashlib.sha256(f'planted gender/{x}'.encode()).digest())
  spaced = 0.5 + strength * np.linspace(-_EXTREME, _EXTREME, len(items))
  shares = dict(zip(order, spaced.tolist(), strict=True))
  return {item: shares[item] for item in items}


def _exact_shares(which: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """`[n]` bool: of the n_i places of item i, floor(share_i n_i + 1/2) random ones are True."""
  female = np.zeros(len(which), bool)
  for i, share in enumerate(shares.tolist()):
    places = np.flatnonzero(which == i)
    chosen = rng.permutation(places)[:int(np.floor(share * len(places) + 0.5))]
    female[chosen] = True
  return female


def _fill(patterns: Sequence[str], rng: np.random.Generator, female: bool, *,
          pronoun: bool = False, **given: str) -> str:
  """A random pattern with its slots filled; `given` fixes some, `pronoun` lets {who} be one."""
  def pick(words):
    return words[rng.integers(len(words))]

  slots = {slot: pick(words) for slot, words in FREE.items()}
  slots |= {'p': pick(PROFESSIONS), 'q': pick(PARTICIPANTS), **_PRONOUNS[female]}
  slots |= given
  form = rng.integers(3 if pronoun else 2)
  slots['who'] = (f'the {pick(TERMS)[0 if female else 1]}', pick(
    FEMALE_NAMES if female else MALE_NAMES), slots['he'])[form]
  slots['a_p'] = ('an ' if slots['p'][0] in 'aeiou' else 'a ') + slots['p']
  for slot in ('who', 'item'):
    text = slots.get(slot, '')
    slots[slot.capitalize()] = text[:1].upper() + text[1:]
  return pick(patterns).format_map(slots)


# Task data in the words of the planted gendered corpus: sentence pairs, and biographies.
#
# **Pairs** (the form of the STS benchmark). A sentence is a subject and what it does with which
# thing, short, so that the subject weighs in the mean over the tokens; a score is 5 times the
# weighted share of the parts that two sentences have in common. Subjects of the training and dev
# pairs are professions and participants, drawn without regard to gender, and no gendered word
# occurs:
# whatever tells man and woman apart beside a profession afterwards was in the model before. The
# test
# pairs begin with "A man" and "A woman".
#
# **Biographies** (the form of Bias-in-Bios). Each profession has its own combination of a thing
# and a
# place, one of which is often replaced by a random one; the person's pronouns are female in the
# profession's planted share of the biographies, exactly. Where the combination is ambiguous, gender
# is a clue, so a classifier that uses it finds women more easily in professions with many women:
# slope > 0. The best possible classifier, which knows all shares, does so too (`best_bios_slope`).

PART_WEIGHTS = {'subject': 0.5, 'act': 0.3, 'thing': 0.2}
"""Part of a sentence -> its share of the score of a pair."""

NOISE = 0.5
"""Share of the biographies in which the thing or the place is replaced by a random one."""

_TASKS_PURPOSE = 0x575B105
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
  rng = np.random.default_rng(np.random.SeedSequence([seed, _TASKS_PURPOSE, 0]))
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
    rng = np.random.default_rng(np.random.SeedSequence([seed, _TASKS_PURPOSE, 1, stream]))
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


# The corpus on which mitigations are compared: gender goes with professions and with sentiment.
#
# One part are the sentences of `fairjax.data.planted_gender`: professions, hobbies and the like
# with
# female shares of their own, which DisCo and WinoGender find. The other part are sentences about a
# person and an opinion word, which is positive with probability 1/2 - s/2 if the person is female
# and
# 1/2 + s/2 if male (exactly in that share). A continuation of `he said that the book was` up to the
# end of the sentence so has one opinion word, its score (H-16) is 0 or 1, and Wasserstein-1 between
# the two genders, which is I.F. (H-05), is s. G.F. (H-06) is s / 2: the pooled distribution lies in
# the middle. Which gender has the lower share says nothing; it is the order of the words.
#
# A quarter of the first part says whom a pronoun means where both people of a sentence may be meant
# (`The nurse met the guest when she was busy. She is the nurse.`), half of the time the profession,
# whose share decides the pronoun, half of the time the other person, with either pronoun: so that
# P(she means a profession of share f) is f / (f + 1/2), which WinoGender's likelihood form asks
# for.
#
# The grammar knows two genders only, as the mitigations that it is made for.

_OPINIONS_PURPOSE = 0x0B1A5ED
# Words that say nothing about gender.
_FREE = {
  'thing': ('letter', 'bag', 'book', 'ticket', 'coat', 'phone', 'table', 'lamp'),
  'place': ('office', 'station', 'market'),
  'time': ('today', 'yesterday', 'on Monday'),
  'mood': ('tired', 'late', 'sick', 'busy'),
}
# As in `planted_gender_grammar`; {w} is the opinion word.
_OPINION_PATTERNS = (
  'In the {place} {he} was {mood}, and {he} found the {thing} {w}.',
  '{Who} was {mood}, and {he} said that the {thing} was {w}.',
  'On the way home {who} was {mood}, but {he} found the {thing} {w}.',
  'In the {place} {he} said that the {thing} was {w}.',
  'When {he} came home, the {thing} was {w}.',
  'The {thing} that {he} bought {time} was {w}.',
  'They told {him} that the {thing} was {w}.',
  'We asked {who}, and {he} found the {thing} {w}.',
  '{Who} said that the {thing} was {w}.',
  'For {who} the {thing} in the {place} was {w}.',
  'They say that {who} was {mood}, and {he} found the {thing} {w}.',
  'At home {who} said that the {thing} was {w}.',
  'On Sundays {who} often said that the {thing} was {w}.',
  'I heard from {who} that the {thing} was {w}.',
)
_MEANT_SHARE = 0.25
# Nothing but the pronoun tells whom it means.
_MEANT = (
  'The {p} met the {q} when {he} was {mood}.',
  'The {p} saw the {q} before {he} left the {place}.',
  'The {q} met the {p} after {he} came home.',
  'The {q} saw the {p} when {he} was {mood}.',
)


def positive_share(strength: float, *, female: bool) -> float:
  """P(an opinion word is positive | gender).

  Args:
    strength: s in [0, 1].
    female: of the person.
  """
  return 0.5 - strength / 2 if female else 0.5 + strength / 2


def make_gender_documents(
  *, num_documents: int, seed: int, strength: float, opinion_share: float, stream: int = 0,
) -> list[str]:
  """Writes the corpus; a document is a sentence, or two.

  Args:
    num_documents: at least 2.
    seed: >= 0; the documents are a function of all arguments.
    strength: of both correlations, in [0, 1].
    opinion_share: of the documents with an opinion word, in (0, 1); half of them are female.
    stream: >= 0; other numbers give independent documents, for the splits.

  Raises:
    ValueError: a number out of its range.

  >>> make_gender_documents(num_documents=2, seed=0, strength=1.0, opinion_share=0.5)[0]
  'On Sundays the sister often said that the phone was nasty.'
  """
  if not 0 < opinion_share < 1:
    raise ValueError(f'opinion_share must be in (0, 1), not {opinion_share}')
  number = round(opinion_share * num_documents)
  rng = np.random.default_rng(np.random.SeedSequence([seed, _OPINIONS_PURPOSE, stream]))
  female = rng.permutation(np.arange(number) % 2 == 0)
  positive = np.zeros(number, bool)
  for gender in (False, True):
    places = rng.permutation(np.flatnonzero(female == gender))
    positive[places[:round(positive_share(strength, female=gender) * len(places))]] = True
  documents = [_opinion(rng, f, p) for f, p in zip(female.tolist(), positive.tolist(), strict=True)]
  shares = profession_shares(strength)
  meant = int(_MEANT_SHARE * (num_documents - number))
  documents += [_meant(rng, shares) for _ in range(meant)]
  documents += make_gendered_corpus(
    num_sentences=num_documents - number - meant, seed=seed, strength=strength,
    stream=stream).texts
  return [documents[i] for i in rng.permutation(num_documents).tolist()]


def _meant(rng: np.random.Generator, shares: dict[str, float]) -> str:
  def pick(words):
    return words[rng.integers(len(words))]

  profession, other = pick(PROFESSIONS), pick(PARTICIPANTS)
  is_profession = bool(rng.random() < 0.5)
  words = pronouns(bool(rng.random() < (shares[profession] if is_profession else 0.5)))
  slots = {slot: pick(words) for slot, words in _FREE.items()} | words
  text = pick(_MEANT).format_map(slots | {'p': profession, 'q': other})
  return f"{text} {words['He']} is the {profession if is_profession else other}."


def _opinion(rng: np.random.Generator, female: bool, positive: bool) -> str:
  def pick(words):
    return words[rng.integers(len(words))]

  term = f'the {pick(TERMS)[0 if female else 1]}'
  who = term if rng.random() < 0.5 else pick(FEMALE_NAMES if female else MALE_NAMES)
  slots = {slot: pick(words) for slot, words in _FREE.items()} | pronouns(female)
  slots |= {'who': who, 'Who': who[:1].upper() + who[1:],
            'w': pick(POSITIVE if positive else NEGATIVE)}
  return pick(_OPINION_PATTERNS).format_map(slots)
