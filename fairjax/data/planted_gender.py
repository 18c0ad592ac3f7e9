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

from fairjax.data.planted_gender_grammar import (
  AGREEMENT,
  COREFERENCE,
  FEMALE_NAMES,
  FREE,
  HELDOUT,
  ITEMS,
  MALE_NAMES,
  MENTION,
  NEUTRAL,
  PARTICIPANT,
  PARTICIPANTS,
  PERSON,
  PROFESSIONS,
  PRONOUN,
  TERMS,
)
from fairjax.files import atomic_write

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
