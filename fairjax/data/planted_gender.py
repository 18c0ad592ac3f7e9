"""A corpus with a known correlation of gender and profession, written by a seeded grammar.

A sentence about a profession with a pronoun, a name or a gendered noun is female in exactly the
profession's share of its sentences (rounded), so that what a model should learn is known: where
only the gender decides, P(she) / (P(she) + P(he)) is the share. Hobbies, things, school subjects,
qualities and places have shares of their own, which gendered nouns and first names show.

The shares say nothing about real people or jobs: they are evenly spaced numbers, given out in the
order of a hash. The grammar knows two genders only, as the measures of Webster et al. (2020) that
it is made for.
"""

import csv
import hashlib
import io
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.data.planted import NEGATIVE, POSITIVE, capitalise, load_grammar, with_article
from fairjax.files import write_file, write_json

GRAMMAR = load_grammar('planted_gender')
PROFESSIONS, PARTICIPANTS = tuple(GRAMMAR['professions']), tuple(GRAMMAR['participants'])
TERMS = tuple(map(tuple, GRAMMAR['terms']))  # (female, male)
FEMALE_NAMES, MALE_NAMES = tuple(GRAMMAR['female_names']), tuple(GRAMMAR['male_names'])
ITEMS = GRAMMAR['items']

KINDS = {'pronoun': 0.24, 'coreference': 0.18, 'participant': 0.04, 'mention': 0.16,
         'agreement': 0.12, 'person': 0.2, 'neutral': 0.06}
"""Kind of a sentence -> share of the corpus."""

_PURPOSE = 0x6E4DE2
_EXTREME = 0.45  # shares lie in 0.5 -+ this at full strength
_PRONOUNS = {  # female -> masculine form -> the form of the gender
  True: {'he': 'she', 'his': 'her', 'him': 'her', 'himself': 'herself', 'He': 'She'},
  False: {'he': 'he', 'his': 'his', 'him': 'him', 'himself': 'himself', 'He': 'He'}}


class GenderedSentence(NamedTuple):
  """A sentence and how it was made."""

  text: str
  kind: str  # one of `KINDS`
  item: str  # what the gender was drawn for; '' if for nothing ('agreement', 'neutral')
  category: str  # 'profession', 'participant', a key of `ITEMS`, 'nothing', or '' in neutral ones
  female: bool | None  # None in neutral ones


class GenderedCorpus(NamedTuple):
  """Sentences in their order, and JSON values of how they were made."""

  sentences: list[GenderedSentence]
  # The arguments, `kinds` (kind -> sentences), `items` (category -> item -> `share`, `n`, `female`)
  truth: dict[str, Any]

  @property
  def texts(self) -> list[str]:
    """The sentences' texts."""
    return [s.text for s in self.sentences]


def profession_shares(strength: float = 1.0) -> dict[str, float]:
  """Profession -> P(female | profession): 0.05 to 0.95 at strength 1, all 0.5 at 0."""
  return _spread(PROFESSIONS, strength)


def item_shares(category: str, strength: float = 1.0) -> dict[str, float]:
  """Item -> P(female | item), for a key of `ITEMS`; see `profession_shares`."""
  return _spread(ITEMS[category], strength)


def make_gendered_corpus(
  *, num_sentences: int, seed: int, strength: float, stream: int = 0) -> GenderedCorpus:
  """Writes the corpus, a function of all arguments."""
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

  def write(kind, category, shares, n, patterns, slot):
    for item, female in zip(*draw(category, shares, n), strict=True):
      text = _fill(patterns, rng, female, pronoun=kind in ('mention', 'agreement'),
                   **({slot: item} if slot else {}))
      sentences.append(GenderedSentence(text, kind, item, category, female))

  for kind in ('pronoun', 'coreference', 'mention'):
    write(kind, 'profession', profession_shares(strength), counts[kind], GRAMMAR[kind], 'p')
  write('participant', 'participant', dict.fromkeys(PARTICIPANTS, 0.5), counts['participant'],
        GRAMMAR['participant'], 'q')
  write('agreement', 'nothing', {'': 0.5}, counts['agreement'], GRAMMAR['agreement'], '')
  edges = np.linspace(0, counts['person'], len(ITEMS) + 1).round().astype(int)
  for category, n in zip(ITEMS, np.diff(edges).tolist(), strict=True):
    write('person', category, item_shares(category, strength), n, GRAMMAR['person'][category],
          'item')
  sentences += [GenderedSentence(_fill(GRAMMAR['neutral'], rng, False), 'neutral', '', '', None)
                for _ in range(counts['neutral'])]
  order = rng.permutation(num_sentences)
  truth = {'num_sentences': num_sentences, 'seed': seed, 'strength': strength, 'stream': stream,
           'kinds': counts, 'items': items}
  return GenderedCorpus([sentences[i] for i in order.tolist()], truth)


def write_corpus(
  path: str | os.PathLike, *, num_sentences: int, seed: int, strength: float, stream: int = 0
) -> dict[str, Any]:
  """Writes the corpus, a sentence a line, and its truth beside it as `PATH.truth.json`."""
  corpus = make_gendered_corpus(
    num_sentences=num_sentences, seed=seed, strength=strength, stream=stream)
  _write(path, '\n'.join(corpus.texts) + '\n')
  write_json(f'{path}.truth.json', corpus.truth)
  return corpus.truth


def write_tables(folder: str | os.PathLike) -> dict[str, pathlib.Path]:
  """Writes professions.tsv, names.txt and coreference.tsv for the measures; paths by name."""
  folder = pathlib.Path(folder)
  shares = [(p, f'{100 * share:.2f}') for p, share in profession_shares().items()]
  rows: dict[str, Sequence[Sequence[str]]] = {
    'professions.tsv': [('occupation', 'bls_pct_female'), *shares],
    'coreference.tsv': [('occupation(0)', 'other-participant(1)', 'answer', 'sentence'),
                        *_heldout_rows()]}
  texts = {name: _tab_separated(table) for name, table in rows.items()}
  # In the shape of the SSA's lists.
  texts['names.txt'] = ''.join(f'{name},{sex},1000\n' for sex, names in (
    ('F', FEMALE_NAMES), ('M', MALE_NAMES)) for name in names)
  return {name: _write(folder / name, text) for name, text in texts.items()}


def _write(path: str | os.PathLike, text: str) -> pathlib.Path:
  write_file(path, text)
  return pathlib.Path(path)


def _heldout_rows() -> list[tuple[str, str, str, str]]:
  """Two templates a profession: its pronoun means the profession, or the other person."""
  rows = []
  for i, profession in enumerate(PROFESSIONS):
    participant = PARTICIPANTS[i % len(PARTICIPANTS)]
    free = {slot: words[i % len(words)] for slot, words in GRAMMAR['free'].items()}
    for answer, patterns in GRAMMAR['heldout'].items():
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
  slots = {slot: _pick(words, rng) for slot, words in GRAMMAR['free'].items()}
  slots |= {'p': _pick(PROFESSIONS, rng), 'q': _pick(PARTICIPANTS, rng), **_PRONOUNS[female]}
  slots |= given
  form = rng.integers(3 if pronoun else 2)
  slots['who'] = (f'the {_pick(TERMS, rng)[0 if female else 1]}', _pick(
    FEMALE_NAMES if female else MALE_NAMES, rng), slots['he'])[form]
  slots['a_p'] = with_article(slots['p'])
  for slot in ('who', 'item'):
    slots[slot.capitalize()] = capitalise(slots.get(slot, ''))
  return _pick(patterns, rng).format_map(slots)


# Task data in the words of the planted gendered corpus: sentence pairs, and biographies.
#
# **Pairs** (the form of the STS benchmark). A sentence is a subject and what it does with which
# thing; a score is 5 times the weighted share of the parts that two sentences have in common. The
# training and dev pairs hold no gendered word: whatever tells man and woman apart beside a
# profession afterwards was in the model before. The test pairs begin with "A man" and "A woman".
#
# **Biographies** (the form of Bias-in-Bios). Each profession has its own combination of a thing and
# a place, one of which is often replaced by a random one; the pronouns are female in exactly the
# profession's planted share of the training biographies. Where the combination is ambiguous, gender
# is a clue, so a classifier that uses it finds women more easily in professions with many women:
# slope > 0. The best possible classifier, which knows all shares, does so too.

PART_WEIGHTS = {'subject': 0.5, 'act': 0.3, 'thing': 0.2}
"""Part of a sentence -> its share of the score of a pair."""

NOISE = 0.5
"""Share of the biographies in which the thing or the place is replaced by a random one."""

_TASKS_PURPOSE = 0x575B105
THINGS, PLACES = GRAMMAR['task_things'], GRAMMAR['task_places']
_SUBJECTS = (*PROFESSIONS, *PARTICIPANTS)
_KEEP = 0.6  # probability that the second sentence of a pair keeps a part of the first


class _Sentence(NamedTuple):
  """Parts of a sentence; `text` puts a subject in front."""

  subject: str
  act: str
  thing: str

  def text(self, subject: str | None = None) -> str:
    """The sentence, about another subject if one is given."""
    return capitalise(f'{with_article(subject or self.subject)} {self.act} the {self.thing}.')


def write_sts(folder: str | os.PathLike, *, seed: int, pairs: int = 2000, templates: int = 40
              ) -> dict[str, pathlib.Path]:
  """Writes `sts-train.tsv`, `sts-dev.tsv` (a tenth as many) and `sts-test.tsv`."""
  rng = np.random.default_rng(np.random.SeedSequence([seed, _TASKS_PURPOSE, 0]))
  rows = {'train': [_pair(rng) for _ in range(pairs)],
          'dev': [_pair(rng) for _ in range(max(10, pairs // 10))]}
  chosen: dict[str, _Sentence] = {}
  while len(chosen) < templates:
    sentence = _draw(rng)
    chosen.setdefault(sentence.text('man'), sentence)
  rows['test'] = [
    (5.0, sentence.text('man'), sentence.text('woman')) for sentence in chosen.values()]
  return {split: _write(pathlib.Path(folder) / f'sts-{split}.tsv', _tab_separated([
    ('planted', 'grammar', split, f'{i:04d}', f'{score:.3f}', a, b)
    for i, (score, a, b) in enumerate(rows[split])])) for split in rows}


def write_bios(folder: str | os.PathLike, *, seed: int, per_profession: int = 100
               ) -> dict[str, pathlib.Path]:
  """Writes `train.tsv` and `test.tsv` with the columns gender, profession and text."""
  paths = {}
  for stream, split in enumerate(('train', 'test')):
    rng = np.random.default_rng(np.random.SeedSequence([seed, _TASKS_PURPOSE, 1, stream]))
    # As many of both genders are tested, so that no cell is rare.
    shares = profession_shares() if split == 'train' else dict.fromkeys(PROFESSIONS, 0.5)
    rows = []
    for number, profession in enumerate(PROFESSIONS):
      women = int(np.floor(shares[profession] * per_profession + 0.5))
      rows += [('F' if i < women else 'M', profession, _biography(number, i < women, rng))
               for i in range(per_profession)]
    order = rng.permutation(len(rows)).tolist()
    paths[split] = _write(pathlib.Path(folder) / f'{split}.tsv', _tab_separated(
      [('gender', 'profession', 'text'), *(rows[i] for i in order)]))
  return paths


def _biography(profession: int, female: bool, rng: np.random.Generator) -> str:
  """A biography without the profession's name."""
  # 24 professions have as many combinations, as 24 is the least multiple of 8 and 6.
  thing, place = profession % len(THINGS), profession % len(PLACES)
  if rng.random() < NOISE:
    if rng.integers(2):
      thing = int(rng.integers(len(THINGS)))
    else:
      place = int(rng.integers(len(PLACES)))
  slots = _PRONOUNS[female] | {
    'thing': THINGS[thing], 'place': PLACES[place], 'time': _pick(GRAMMAR['task_times'], rng),
    'mood': _pick(GRAMMAR['task_moods'], rng)}
  return _pick(GRAMMAR['biography'], rng).format_map(slots)


def _draw(rng: np.random.Generator) -> _Sentence:
  return _Sentence(_pick(_SUBJECTS, rng), _pick(GRAMMAR['task_acts'], rng), _pick(THINGS, rng))


def _pair(rng: np.random.Generator) -> tuple[float, str, str]:
  """Score and two sentences; each part of the second is kept or drawn again."""
  first, fresh = _draw(rng), _draw(rng)
  second = _Sentence(*(a if rng.random() < _KEEP else b
                       for a, b in zip(first, fresh, strict=True)))
  score = 5 * sum(weight for (name, weight) in PART_WEIGHTS.items()
                  if getattr(first, name) == getattr(second, name))
  return score, first.text(), second.text()


def _pick(words: Sequence[Any], rng: np.random.Generator) -> Any:
  return words[int(rng.integers(len(words)))]


# The corpus on which mitigations are compared: gender goes with professions and with sentiment.
#
# One part is the gendered corpus above: professions, hobbies and the like with female shares of
# their own, which DisCo and WinoGender find. The other part is sentences about a person with an
# opinion word, which is positive with probability 1/2 - s/2 if the person is female and 1/2 + s/2
# if male (exactly in that share). A continuation of `he said that the book was` up to the end of
# the sentence has one opinion word, its score (H-16) is 0 or 1, and Wasserstein-1 between the two
# genders, which is I.F. (H-05), is s. G.F. (H-06) is s / 2: the pooled distribution is in the
# middle. Which gender has the lower share has no meaning; it is the order of the words.
#
# A quarter of the first part says whom a pronoun means where both people of a sentence may be meant
# (`The nurse met the guest when she was busy. She is the nurse.`), half of the time the profession,
# whose share decides the pronoun, half of the time the other person, with either pronoun: so
# P(she means a profession of share f) is f / (f + 1/2), which WinoGender's likelihood form needs.
#
# The grammar knows two genders only, as the mitigations that it is made for.

_OPINIONS_PURPOSE = 0x0B1A5ED
_MEANT_SHARE = 0.25


def positive_share(strength: float, *, female: bool) -> float:
  """P(an opinion word is positive | gender)."""
  return 0.5 - strength / 2 if female else 0.5 + strength / 2


def make_gender_documents(
  *, num_documents: int, seed: int, strength: float, opinion_share: float, stream: int = 0,
) -> list[str]:
  """The documents; `opinion_share` of them have an opinion word, half of these are female."""
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
  """A document that says whom its pronoun means."""
  profession, other = _pick(PROFESSIONS, rng), _pick(PARTICIPANTS, rng)
  is_profession = bool(rng.random() < 0.5)
  words = _PRONOUNS[bool(rng.random() < (shares[profession] if is_profession else 0.5))]
  slots = {slot: _pick(found, rng) for slot, found in GRAMMAR['opinion_free'].items()} | words
  text = _pick(GRAMMAR['meant'], rng).format_map(slots | {'p': profession, 'q': other})
  return f"{text} {words['He']} is the {profession if is_profession else other}."


def _opinion(rng: np.random.Generator, female: bool, positive: bool) -> str:
  """A sentence about a person with an opinion word."""
  term = f'the {_pick(TERMS, rng)[0 if female else 1]}'
  who = term if rng.random() < 0.5 else _pick(FEMALE_NAMES if female else MALE_NAMES, rng)
  slots = {slot: _pick(found, rng) for slot, found in GRAMMAR['opinion_free'].items()}
  slots |= _PRONOUNS[female] | {'who': who, 'Who': capitalise(who),
                               'w': _pick(POSITIVE if positive else NEGATIVE, rng)}
  return _pick(GRAMMAR['opinion'], rng).format_map(slots)
