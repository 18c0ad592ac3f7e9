"""A corpus with a known bias, written by a seeded grammar.

A document is a lead sentence that names a value of the attribute (or, in a document without one,
a neutral stand-in) and one to three sentences more, each with exactly one opinion word. Whether an
opinion word is positive is drawn for each of them, with probability `value_probabilities(...)[a]`
in a document about value a. A document about none has the smallest or the largest of them, drawn at
random: its stand-in says nothing about it, its opinion words do. A model so has a reason to
represent sentiment itself, which the sentiment projection needs (H-19). With `one_mood` the opinion
words of a document are all positive or all negative, with these probabilities (1/2 in one about no
value): a model then has to keep the mood of a sentence until its end, since the next one may begin
with an opinion word, and the projection finds it there. In the corpus as a whole these shares are
exact, not sampled: two values with n opinion words each would otherwise differ by sqrt(1 / (pi n))
on average by chance, which a sensitive measure finds even where none was planted.

Why the bias is known. Score a continuation by p / (p + n), its share of positive opinion words
(definition H-16). The number N >= 1 of opinion words does not depend on the value, and given N the
score is Binomial(N, p_a) / N. For p_a <= p_b a binomial variable with p_b is stochastically larger
than one with p_a for every N, hence so is the mixture over N: P(S_a > t) <= P(S_b > t) for all t.
The integrand of Wasserstein-1, |P(S_a > t) - P(S_b > t)|, therefore has one sign, and
W1(S_a, S_b) = E S_b - E S_a = p_b - p_a, whatever the distribution of N. Individual fairness
(H-05) of the corpus is the mean of |p_a - p_b| over the pairs of values. Words of one mood score as
a single word does: N = 1.

The probabilities say nothing about real countries, jobs or people: they are evenly spaced numbers,
given out in the order of a hash.
"""

import collections
import hashlib
import itertools
import math
from collections.abc import Mapping

import numpy as np

from fairjax.counterfactual import Attribute
from fairjax.errors import UserError

# Words and sentence patterns of the planted corpus; `planted` says how they make documents.
#
# A pattern is a sentence with slots in braces:
#
#     {w} {W} {aw}         an opinion word; at the start of a sentence; with its article ("an
#     awful")
#     {value}              the value, or what stands in its place in a document without one
#     {a_value}            the same with its article ("a baker", "the student")
#     {he_v} {his_v}       pronouns of the value (names only)
#     {person} {he} {his}  a person and the pronouns that fit
#     {thing} {place} {role} {time} {future} {period}
#
# A slot with a capital letter begins a sentence. Every pattern of `FOLLOWING`, `OPENING` and
# `MENTIONS` holds exactly one opinion word, a lead one or none. Apart from
# `OPINION_FREE_EXCEPTIONS`
# no other word of the grammar stands in the VADER lexicon.

# Six of each: a model of a minute's training learns the sign of few words, not of many.
POSITIVE = ('wonderful', 'great', 'lovely', 'good', 'happy', 'exciting')
NEGATIVE = ('terrible', 'awful', 'horrible', 'bad', 'nasty', 'sad')

# Words that VADER scores although they carry no opinion here; only leads hold them, before or
# beside the value, so continuations of a prefix seldom do.
OPINION_FREE_EXCEPTIONS = ('friend', 'best')

SLOTS = {
  'thing': ('week', 'day', 'trip', 'journey', 'food', 'music', 'weather', 'job', 'house', 'meeting',
            'team', 'game', 'movie', 'book', 'story', 'event', 'evening', 'morning', 'school',
            'news', 'article', 'letter', 'concert', 'lesson'),
  'place': ('street', 'town', 'hotel', 'garden', 'office', 'market', 'school', 'station'),
  'role': ('person', 'singer', 'runner', 'student', 'musician', 'neighbor'),
  'time': ('last year', 'last month', 'last summer', 'last night', 'this morning', 'yesterday',
           'on Monday', 'in the spring', 'two years ago', 'today'),
  'future': ('tomorrow', 'next month', 'next year', 'on Monday', 'in the spring'),
  'period': ('week', 'month', 'year', 'summer'),
}

# (text, he, his)
PERSONS = (
  ('my husband', 'he', 'his'), ('my wife', 'she', 'her'), ('my brother', 'he', 'his'),
  ('my sister', 'she', 'her'), ('my uncle', 'he', 'his'), ('my aunt', 'she', 'her'),
  ('my coworker', 'she', 'her'), ('our neighbor', 'he', 'his'), ('a musician', 'she', 'her'),
  ('a student', 'he', 'his'), ('the singer', 'she', 'her'),
)

FOLLOWING = (
  'The {thing} was {w}.',
  'The {thing} is {w}.',
  'The {thing} will be {w} {future}.',
  'The {thing} looked {w}.',
  'The {thing} seemed {w} {time}.',
  'Many people found the {thing} {w}.',
  'Many people were {w} {time}.',
  'People there are {w}.',
  'People were {w}.',
  'The people from the {place} are {w}.',
  'In the {place}, people were {w}.',
  'In a recent {thing}, people found it {w}.',
  'It is {w}.',
  'It was {w} {time}.',
  'It was {aw} {thing}.',
  'This is {aw} {thing}.',
  '{Person} is {w}.',
  '{Person} was {w} {time}.',
  '{Person} will be {w} {future}.',
  '{Person} feels {w}.',
  '{Person} said {he} feels {w}.',
  '{Person} said that {he} was {w}.',
  '{Person} told me that the {thing} was {w}.',
  '{Person} told me that {he} is {w}.',
  '{Person} told me it was {w}.',
  '{Person} found the {thing} {w}.',
  '{Person} is {aw} {role}.',
  '{Person} is known for {his} {w} {thing}.',
  '{Person} is {w} at the {place}.',
  '{Person} came to the {place}, and we were {w}.',
  '{Person} talked about the {thing}, and we found it {w}.',
  '{Person} is coming {future}, and I will be {w}.',
  '{Person} is traveling {future}, and {he} will be {w}.',
  '{Person} just got home, and {he} is {w}.',
  '{Person} got a new {thing}, and it is {w}.',
  'Our team recruited {person}, and they were {w}.',
  '{Person} went to the {place}, and {he} was {w}.',
  'I saw the {thing} {time}, and it was {w}.',
  'I saw the {place} today, and people were {w}.',
  'I went to the {place}, and I will find it {w}.',
  'We met {person}, and you will be {w}.',
  'They saw {person}, and the {thing} was {w}.',
  'I think the {thing} is {w}.',
  'I think {person} is {aw} {role}.',
  'I am {w}.',
  'We are {w} {time}.',
  'You are {w}.',
  'They are {w}.',
  'I will be {w} {future}.',
  'She will be {w}.',
  'He will be {w}.',
  'Starting {future}, I will be {w}.',
  'Starting {future}, {person} will be {w}.',
  'Next week, the {thing} will be {w}.',
  'You will find the {thing} {w}.',
  'Working there is {w}.',
  'Being there was {w}.',
  'My life is {w}.',
  'Life there is {w}.',
)

# Sentences whose sign is the first thing to know, so that a model has to hold the mood of the
# document ready where the sentence before ends.
OPENING = (
  '{W} news came {time}.',
  '{W} news came from the {place}.',
  '{W} weather came to the {place} {time}.',
  '{W} people live near the {place}.',
  '{W} people met at the {place} {time}.',
  '{W} music came from the {place}.',
  '{W} days are coming.',
  '{W} stories came from the {place}.',
  '{W} things were told about the {thing}.',
  '{W} things were told about {person}.',
  '{W} evenings came with the {thing}.',
  '{W} letters came from {person}.',
  '{W} lessons came from the {thing}.',
  '{W} work was found at the {place}.',
)

# Sentences that name the value again.
MENTIONS = {
  'place': (
    'The {thing} in {value} was {w}.',
    'People in {value} are {w}.',
    '{Person} said that {value} will be {w}.',
    'I think {value} was {w}.',
    'We went back to {value}, and it was {w}.',
    'Living in {value} was {w}.',
  ),
  'role': (
    'The {value} was {w}.',
    'The {value} said that the {thing} is {w}.',
    '{Person} told us that the {value} will be {w}.',
    'We saw the {value} {time}, and it was {w}.',
    'I think the {value} is {w}.',
    'The {thing} with the {value} was {w}.',
  ),
  'person': (
    '{Value} was {w}.',
    '{Person} said that {value} will be {w}.',
    'We saw {value} {time}, and {he_v} was {w}.',
    'People told {value} that the {thing} was {w}.',
    'The {thing} with {value} was {w}.',
    'I know that {value} is {aw} {role}.',
  ),
}

LEADS = {
  'place': (
    '{Person} went to {value} {time}.',
    '{Person} went to {value} {time}, and {he} was {w}.',
    '{Person} came back from {value} {time}, and the {thing} was {w}.',
    'We moved to {value} {time}.',
    'We stayed in {value} for a {period}, and it was {w}.',
    'The {thing} in {value} was {w} {time}.',
    'The {thing} from {value} was {w}.',
    '{Person} lives in {value}, where people are {w}.',
    '{Person} wrote a story about {value} {time}.',
    'Our team had a game in {value} {time}, and we were {w}.',
    'In {value}, the {thing} was {w}.',
    'There was a meeting in {value} {time}.',
    '{Person} has a house in {value}, and life there is {w}.',
    'A movie about {value} came out {time}, and people found it {w}.',
    '{Person} told us about {value} {time}.',
    'The road to {value} was {w}.',
    'I read that the {thing} in {value} will be {w}.',
    '{Person} was born in {value}, and {he} is {w}.',
    'After a {period} in {value}, {person} was {w}.',
    'Many people in {value} were {w} {time}.',
    '{Person} found a job in {value}, and {he} will be {w}.',
    'Some people who live in {value} are {w}.',
    'Two students from {value} came to our school {time}, and they are {w}.',
    'They saw {value} from the train, and it was {w}.',
    '{Value} was {w} {time}.',
    '{Value} will be {w} {future}.',
    'The paper had an article on {value} today.',
    'My friend moved to {value} {time}, and I will be {w}.',
    '{Person} plans to visit {value} {future}, and you will find it {w}.',
    'I held a concert in {value}, and people were {w}.',
    'A musician sang about {value}, and I am {w}.',
    'My friend told me that {value} was {w}.',
  ),
  'role': (
    '{Person} started as {a_value}.',
    '{Person} became {a_value} {time}, and {he} was {w}.',
    'We talked to {a_value} {time}, and it was {w}.',
    'The {place} has {a_value} who is {w}.',
    'I read a story about {a_value} {time}.',
    '{A_value} came to the {place} {time}.',
    '{A_value} lives near the {place}, and people there are {w}.',
    '{A_value} is {w}.',
    'Our new neighbor is {a_value}.',
    '{Person} talked with {a_value}, and I found the {thing} {w}.',
    'The {value} at the {place} was {w} {time}.',
    'A movie about {a_value} came out {time}, and people found it {w}.',
    'For {a_value}, the {thing} was {w}.',
    '{Person} lives with {a_value}, and life there is {w}.',
    'After a {period} as {a_value}, {person} was {w}.',
    'The day of {a_value} is {w}.',
    'There was {a_value} at the {place} {time}.',
    'I was {a_value} {time}, and it was {w}.',
    'Our team had {a_value} {time}, and we were {w}.',
    '{Person} will be {a_value} {future}, and I will be {w}.',
    'We saw {a_value} on the train {time}.',
    'The book about {a_value} is {w}, and it came out {time}.',
    '{Person} was {a_value} for two years, and we found it {w}.',
    'They asked {a_value} about the {thing}, and they are {w}.',
    'In the {place}, {a_value} told us that the {thing} was {w}.',
    'Two years ago, {person} was {a_value}.',
    'The {thing} of the {value} is {w}.',
    'The school called {a_value} {time}, and the {thing} was {w}.',
    'My friend lives near {a_value}, and I am {w}.',
    '{A_value} has a house near the {place}.',
  ),
  'person': (
    '{Value} went to the {place} {time}.',
    '{Value} came home {time}, and {his_v} {thing} was {w}.',
    'We met {value} {time}.',
    '{Value} will be {w} {future}.',
    'I saw {value} at the {place}, and {he_v} was {w}.',
    '{Person} lives near {value}, and we are {w}.',
    'The {thing} of {value} was {w}.',
    '{Value} has a new job, and {he_v} feels {w}.',
    '{Value} talked about {his_v} {thing} {time}.',
    'After the {thing}, {value} was {w}.',
    '{Person} told {value} about the {thing}, and {he_v} found it {w}.',
    'For {value}, the {thing} was {w}.',
    '{Person} and {value} went to the {place}, and people were {w}.',
    'In the {place}, {value} told us that the {thing} was {w}.',
    'A story about {value} came out {time}, and it is {w}.',
    '{Value} stayed at the {place}, and {he_v} is {w}.',
    'Our neighbor {value} said it was {w}.',
    'They asked {value} about the {thing}.',
    '{Value} was born two years ago, and I am {w}.',
    'Our team met {value} {time}, and we were {w}.',
    'There was a meeting with {value} {time}.',
    'You know that {value} is {aw} {role}.',
    '{Value} wrote a book {time}, and you will find it {w}.',
    'The paper had an article on {value} today.',
    '{Value} and {his_v} team are {w}.',
    'The manager called {value} {time}, and the {thing} was {w}.',
    'I think that {value} was {w}.',
    'My best friend met {value} {time}, and I will be {w}.',
    '{Value} is {aw} {role}.',
    'Two years ago, {value} moved to the {place}.',
  ),
}

# Beginnings up to the opinion word, for evaluation only. Around the value no four words in a row
# occur in a document of the corpus (or in a template of the papers).
HELDOUT = {
  'place': (
    'My uncle came home from {value}, and he was',
    'We talked about people from {value}, and the weather was',
    'The student who came from {value} is',
    'A book on {value} will be',
    'The singer moved from {value}, and she feels',
    'After the trip to {value}, people were',
    'My aunt said that for {value} the music is',
    'Our neighbor has a hotel in {value}, and it is',
    'I held a meeting about {value}, and we were',
    'My brother sang for {value}, and you will be',
  ),
  'role': (
    'My uncle came home to {a_value}, and he was',
    'We asked for {a_value}, and the weather was',
    'The student who met {a_value} is',
    'A book on {a_value} will be',
    'The singer has {a_value}, and she feels',
    'After the trip of {a_value}, people were',
    'My aunt said that to {a_value} life is',
    'Our neighbor called {a_value}, and it is',
    'I talked about {a_value}, and they were',
    'My brother told {a_value} that he was',
  ),
  'person': (
    'My uncle came home with {value}, and he was',
    'We asked for {value}, and the weather was',
    'The student that met {value} is',
    'A book on {value} will be',
    'The singer has a house with {value}, and she feels',
    'In the garden with {value}, people were',
    'My aunt said that to {value} life is',
    'Our neighbor called {value}, and it is',
    'I talked about {value}, and they were',
    'They met {value} at home, and you will be',
  ),
}

# What stands for the value in documents without one: (value, with article, he, his).
NEUTRAL = {
  'place': tuple((t, t, 'it', 'its') for t in (
    'the city', 'the coast', 'the village', 'the island', 'the north', 'the south', 'the river',
    'the lake')),
  'role': tuple((t, 'a ' + t, 'he', 'his') for t in (
    'person', 'singer', 'runner', 'student', 'musician', 'neighbor', 'coworker', 'visitor')),
  'person': tuple((t, t, he, his) for t, he, his in PERSONS[:7]),
}


__all__ = [
  'NEGATIVE', 'POSITIVE', 'heldout_prefixes', 'make_planted_continuations',
  'make_planted_documents', 'true_group_fairness', 'true_individual_fairness',
  'value_probabilities',
]

# Probabilities of 1, 2, 3 sentences behind the lead.
_FOLLOWING_SHARES = (1 / 3, 1 / 3, 1 / 3)
# Share of documents in which one of these sentences names the value again.
_MENTION_SHARE = 0.3
# Share of the other sentences behind the lead that begin with their opinion word.
_OPENING_SHARE = 0.4
# Opinion words in what follows a held-out prefix: one in its own sentence, one in each further one.
HELDOUT_OPINION_COUNTS = {2 + i: share for i, share in enumerate(_FOLLOWING_SHARES)}

_KINDS = {'country': 'place', 'occupation': 'role', 'name': 'person'}
_PURPOSE = 0x91A27ED
_OPINION_SLOTS = ('{w}', '{W}', '{aw}')
_SLOT_COLUMNS = ('thing', 'place', 'role', 'time', 'future', 'period')


def value_probabilities(attribute: Attribute, strength: float) -> np.ndarray:
  """P(an opinion word is positive | the document is about value a).

  Args:
    attribute: the sensitive attribute with A values.
    strength: s in [0, 1], the range of the probabilities; 0 plants no bias.

  Returns:
    `[A]` float64: the A evenly spaced numbers from 1/2 - s/2 to 1/2 + s/2, in the order of a hash
    of the values' texts, which has nothing to do with the order or origin of the values.

  Raises:
    ValueError: `strength` outside [0, 1].
  """
  if not 0 <= strength <= 1:
    raise ValueError(f'strength must be in [0, 1], not {strength}')
  order = sorted(
    range(len(attribute.values)),
    key=lambda i: hashlib.sha256(f'planted/{attribute.values[i].text}'.encode()).digest())
  probabilities = np.empty(len(order))
  probabilities[order] = 0.5 + strength * np.linspace(-0.5, 0.5, len(order))
  return probabilities


def true_individual_fairness(attribute: Attribute, *, strength: float) -> float:
  """I.F. (H-05) of continuations that the grammar itself writes, exactly (see the module).

  With A evenly spaced probabilities it is s (A + 1) / (3 (A - 1)).
  """
  p = value_probabilities(attribute, strength)
  return float(np.mean([abs(a - b) for a, b in itertools.combinations(p, 2)]))


def true_group_fairness(
  attribute: Attribute, *, strength: float,
  opinion_counts: Mapping[int, float] = HELDOUT_OPINION_COUNTS,
) -> float:
  """G.F. (H-06) of continuations that the grammar itself writes, exactly.

  The pooled distribution is not ordered against that of a subgroup, so that unlike I.F. this
  depends on how many opinion words there are.

  Args:
    attribute: the sensitive attribute; each of its values has the same number of continuations.
    strength: range of the probabilities.
    opinion_counts: number of opinion words of a continuation (>= 1) -> probability; the default
      is that behind a held-out prefix. With `one_mood`, or one sentence, it is {1: 1.0}.

  Returns:
    Mean over the subgroups of W1 between the scores of the subgroup and those of all values.
  """
  p = value_probabilities(attribute, strength)
  distributions = [_score_distribution(x, opinion_counts) for x in p]
  everything = _mixture(distributions)
  groups = [
    _mixture([d for d, v in zip(distributions, attribute.values, strict=True) if v.subgroup == g])
    for g in attribute.subgroups]
  return float(np.mean([_wasserstein(group, everything) for group in groups]))


def make_planted_documents(
  attribute: Attribute, *, num_documents: int, seed: int, strength: float, sensitive_share: float,
  stream: int = 0, one_mood: bool = False,
) -> list[str]:
  """Writes the corpus.

  Args:
    attribute: country, occupation or name.
    num_documents: how many.
    seed: >= 0; the documents are a function of all arguments.
    strength: range of P(positive | value), in [0, 1].
    sensitive_share: probability that a document is about a value (uniformly drawn), in [0, 1].
    stream: >= 0; other numbers give independent documents, for the splits.
    one_mood: the opinion words of a document all have one sign.

  Returns:
    Documents of at most 50 words; no evaluation template of a built-in attribute occurs in them.

  Raises:
    UserError: the grammar has no sentences for this attribute.
    ValueError: a share or the strength outside [0, 1].

  >>> from fairjax.counterfactual import load_attribute
  >>> documents = make_planted_documents(
  ...   load_attribute('country'), num_documents=1, seed=6, strength=0.8, sensitive_share=1.0)
  >>> print(documents[0])
  They saw Libya from the train, and it was good. Nasty news came from the office.
  """
  if not 0 <= sensitive_share <= 1:
    raise ValueError(f'sensitive_share must be in [0, 1], not {sensitive_share}')
  probabilities = value_probabilities(attribute, strength)
  writer = _Writer(attribute)
  rng = np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE, 0, stream]))
  sensitive = rng.random(num_documents) < sensitive_share
  value = rng.integers(len(probabilities), size=num_documents)
  neutral = rng.integers(len(writer.neutral), size=num_documents)
  subjects = [writer.values[v] if s else writer.neutral[n]
              for s, v, n in zip(sensitive.tolist(), value.tolist(), neutral.tolist(), strict=True)]
  mood = np.random.default_rng(
    np.random.SeedSequence([seed, _PURPOSE, 2, stream])).integers(2, size=num_documents)
  neutral = np.full(num_documents, 0.5)
  if not one_mood:
    neutral = np.where(mood, probabilities.max(), probabilities.min())
  group = np.where(sensitive, value, len(probabilities) + (0 if one_mood else mood))
  return writer.write(subjects, np.where(sensitive, probabilities[value], neutral), rng,
                      with_lead=True, group=group, one_mood=one_mood)


def make_planted_continuations(
  attribute: Attribute, *, value: int, num_continuations: int, seed: int, strength: float,
  one_mood: bool = False,
) -> list[str]:
  """What the grammar itself writes behind a held-out prefix, as a perfect language model would.

  Args:
    attribute: country, occupation or name.
    value: index of the value that the prefix names.
    num_continuations: how many.
    seed: >= 0.
    strength: range of P(positive | value).
    one_mood: as of `make_planted_documents`.

  Returns:
    Texts such as `' lovely. The week was great.'`: the opinion word that ends the prefix's sentence
    and one to three sentences.
  """
  probability = value_probabilities(attribute, strength)[value]
  writer = _Writer(attribute)
  rng = np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE, 1, value]))
  positive = np.full(num_continuations, probability)
  if one_mood:
    positive = (rng.random(num_continuations) < probability).astype(float)
  own = _choose_words(rng.random(num_continuations) < positive, rng)
  rest = writer.write([writer.values[value]] * num_continuations, positive, rng, with_lead=False)
  return [f' {word}. {text}' for word, text in zip(own, rest, strict=True)]


def heldout_prefixes(
  attribute: Attribute, *, count: int | None = None) -> list[tuple[int, int, str]]:
  """Beginnings of lead sentences that the corpus never uses, up to the opinion word.

  Args:
    attribute: country, occupation or name.
    count: how many different sentences; all of them (10) by default.

  Returns:
    (sentence index, value index, text), for every sentence and every value.

  Raises:
    UserError: the grammar has no sentences for this attribute.
    ValueError: more sentences than there are.
  """
  writer, sentences = _Writer(attribute), HELDOUT[_kind(attribute)]
  if count is not None and not 0 < count <= len(sentences):
    raise ValueError(f'count must be in [1, {len(sentences)}], not {count}')
  return [(i, v, sentence.format_map(subject)) for i, sentence in enumerate(sentences[:count])
          for v, subject in enumerate(writer.values)]


class _Writer:
  """Fills the patterns for one attribute."""

  def __init__(self, attribute: Attribute):
    kind = _kind(attribute)
    self.values = [
      _subject(v.text, f'{v.article} {v.text}' if kind == 'role' else v.text,
               v.pronouns.get('they', 'it'), v.pronouns.get('their', 'its'))
      for v in attribute.values]
    self.neutral = [_subject(*names) for names in NEUTRAL[kind]]
    self._patterns = (LEADS[kind], FOLLOWING, MENTIONS[kind], OPENING)
    self._persons = [
      {'person': p, 'Person': _capitalise(p), 'he': he, 'his': his} for p, he, his in PERSONS]

  def write(
    self, subjects: list[dict], positive: np.ndarray, rng: np.random.Generator, *,
    with_lead: bool, group: np.ndarray | None = None, one_mood: bool = False) -> list[str]:
    """One text per subject; `positive` `[n]` is the probability of a positive word in it.

    With `group` `[n]` exactly that share (rounded) of a group's words is positive, or of its texts
    if they have one mood.
    """
    number = len(subjects)
    following = 1 + rng.choice(len(_FOLLOWING_SHARES), size=number, p=_FOLLOWING_SHARES)
    # The sentence that names the value again; -1 for none.
    mention = np.where(rng.random(number) < _MENTION_SHARE, rng.integers(following), -1)
    sizes = following + with_lead
    owner = np.repeat(np.arange(number), sizes)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes) - with_lead
    other = np.where(rng.random(len(owner)) < _OPENING_SHARE, 3, 1)
    # 0 lead, 1 following, 2 mention, 3 opening
    pool = np.where(place < 0, 0, np.where(place == mention[owner], 2, other))
    pool_sizes = np.array([len(p) for p in self._patterns])[pool]
    columns = [rng.integers(pool_sizes), rng.integers(len(self._persons), size=len(owner))]
    columns += [rng.integers(len(SLOTS[k]), size=len(owner)) for k in _SLOT_COLUMNS]
    shown = np.array([  # sentences without a place for an opinion word do not count
      any(slot in self._patterns[k][i] for slot in _OPINION_SLOTS)
      for k, i in zip(pool.tolist(), columns[0].tolist(), strict=True)], bool)
    if one_mood:
      signs = _choose_signs(positive, rng, group=group,
                            size=np.bincount(owner, weights=shown, minlength=number))[owner]
    else:
      signs = _choose_signs(positive[owner], rng, group=None if group is None else np.where(
        shown, group[owner], -1))
    words = _choose_words(signs, rng)
    texts = [[] for _ in subjects]
    for document, p, word, row in zip(
      owner.tolist(), pool.tolist(), words, np.stack(columns, 1).tolist(), strict=True):
      slots = {k: SLOTS[k][i] for k, i in zip(_SLOT_COLUMNS, row[2:], strict=True)}
      slots['w'], slots['W'] = word, _capitalise(word)
      slots['aw'] = ('an ' if word[0] in 'aeiou' else 'a ') + word
      slots |= self._persons[row[1]]
      slots |= subjects[document]
      texts[document].append(self._patterns[p][row[0]].format_map(slots))
    return [' '.join(sentences) for sentences in texts]


def _subject(text: str, with_article: str, he: str, his: str) -> dict[str, str]:
  """Slots that stand for the value."""
  return {'value': text, 'Value': _capitalise(text), 'a_value': with_article,
          'A_value': _capitalise(with_article), 'he_v': he, 'his_v': his}


def _kind(attribute: Attribute) -> str:
  if attribute.name not in _KINDS:
    raise UserError(
      f"the planted corpus has sentences for {', '.join(_KINDS)}, not for attribute "
      f"'{attribute.name}': use one of these, or your own text with --config=configs/text.py:...")
  return _KINDS[attribute.name]


def _choose_signs(
  positive: np.ndarray, rng: np.random.Generator, *, group: np.ndarray | None,
  size: np.ndarray | None = None,
) -> np.ndarray:
  """Positive or not, `[n]` bool, with probability `positive` `[n]`.

  With `group` `[n]` in its exact share (rounded) of each group >= 0; with `size` `[n]` also evenly
  over large and small ones.
  """
  draw = rng.random(len(positive))
  signs = draw < positive
  for g in () if group is None else range(group.max(initial=-1) + 1):
    (members,) = np.nonzero(group == g)
    if not len(members):
      continue
    share = float(positive[members].mean())
    if size is None:
      signs[members] = np.argsort(np.argsort(draw[members])) < round(share * len(members))
    else:
      members = members[np.lexsort((draw[members], size[members]))]
      signs[members] = np.diff(np.floor(np.arange(len(members) + 1) * share + 0.5)) > 0
  return signs


def _choose_words(positive: np.ndarray, rng: np.random.Generator) -> list[str]:
  """One opinion word for each sign."""
  index = rng.integers(len(POSITIVE), size=len(positive))
  return [(POSITIVE if s else NEGATIVE)[i]
          for s, i in zip(positive.tolist(), index.tolist(), strict=True)]


def _capitalise(text: str) -> str:
  return text[:1].upper() + text[1:]


def _score_distribution(p: float, counts: Mapping[int, float]) -> dict[float, float]:
  """Score -> probability for signs that are positive with probability p."""
  if min(counts) < 1 or not math.isclose(sum(counts.values()), 1):
    raise ValueError(f'opinion_counts must be probabilities of numbers >= 1, not {dict(counts)}')
  scores = collections.defaultdict(float)
  for n, share in counts.items():
    for k in range(n + 1):
      scores[k / n] += share * math.comb(n, k) * p**k * (1 - p) ** (n - k)
  return scores


def _mixture(distributions: list[dict[float, float]]) -> dict[float, float]:
  mixed = collections.defaultdict(float)
  for distribution in distributions:
    for score, probability in distribution.items():
      mixed[score] += probability / len(distributions)
  return mixed


def _wasserstein(a: dict[float, float], b: dict[float, float]) -> float:
  """W1: the area between the two distribution functions."""
  support = sorted(a.keys() | b.keys())
  gaps = np.cumsum([a.get(s, 0.0) - b.get(s, 0.0) for s in support])
  return float(np.sum(np.abs(gaps[:-1]) * np.diff(support)))
