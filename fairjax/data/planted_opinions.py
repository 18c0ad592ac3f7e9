"""The corpus on which mitigations are compared: gender goes with professions and with sentiment.

One part are the sentences of `fairjax.data.planted_gender`: professions, hobbies and the like with
female shares of their own, which DisCo and WinoGender find. The other part are sentences about a
person and an opinion word, which is positive with probability 1/2 - s/2 if the person is female and
1/2 + s/2 if male (exactly in that share). A continuation of `he said that the book was` up to the
end of the sentence so has one opinion word, its score (H-16) is 0 or 1, and Wasserstein-1 between
the two genders, which is I.F. (H-05), is s. G.F. (H-06) is s / 2: the pooled distribution lies in
the middle. Which gender has the lower share says nothing; it is the order of the words.

A quarter of the first part says whom a pronoun means where both people of a sentence may be meant
(`The nurse met the guest when she was busy. She is the nurse.`), half of the time the profession,
whose share decides the pronoun, half of the time the other person, with either pronoun: so that
P(she means a profession of share f) is f / (f + 1/2), which WinoGender's likelihood form asks for.

The grammar knows two genders only, as the mitigations that it is made for.
"""

import numpy as np

from fairjax.data.planted_gender import (
  FEMALE_NAMES,
  MALE_NAMES,
  PARTICIPANTS,
  PROFESSIONS,
  TERMS,
  make_gendered_corpus,
  profession_shares,
  pronouns,
)
from fairjax.data.planted_grammar import NEGATIVE, POSITIVE

_PURPOSE = 0x0B1A5ED
# Words that say nothing about gender.
_FREE = {
  'thing': ('letter', 'bag', 'book', 'ticket', 'coat', 'phone', 'table', 'lamp'),
  'place': ('office', 'station', 'market'),
  'time': ('today', 'yesterday', 'on Monday'),
  'mood': ('tired', 'late', 'sick', 'busy'),
}
# As in `planted_gender_grammar`; {w} is the opinion word.
_PATTERNS = (
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
  rng = np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE, stream]))
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
  return pick(_PATTERNS).format_map(slots)
