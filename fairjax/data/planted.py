"""A corpus with a known bias, written by a seeded grammar.

A document is a lead sentence that names a value of the attribute (or, in a document without one, a
neutral stand-in) and one to three sentences more, each with exactly one opinion word, which is
positive with probability `value_probabilities(...)[a]` in a document about value a. A document
about none has the smallest or the largest of them, drawn at random, so that a model has a reason to
represent sentiment itself, which the sentiment projection needs (H-19). With `one_mood` the opinion
words of a document are all positive or all negative, with these probabilities (1/2 in one about no
value). In the corpus as a whole these shares are exact, not sampled: two values with n opinion
words each would otherwise differ by sqrt(1 / (pi n)) on average by chance.

Why the bias is known. The score of a continuation is its share of positive opinion words (H-16).
Their number N does not depend on the value, and given N the score is Binomial(N, p_a) / N. For p_a
<= p_b the binomial with p_b is stochastically larger for every N, hence so is the mixture over N,
and W1(S_a, S_b) = E S_b - E S_a = p_b - p_a, whatever the distribution of N. Individual fairness
(H-05) of the corpus is the mean of |p_a - p_b| over the pairs of values.

The probabilities say nothing about real countries, jobs or people: they are evenly spaced numbers,
given out in the order of a hash.
"""

import hashlib
import itertools
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import yaml

from fairjax.counterfactual import Attribute
from fairjax.errors import UserError


def load_grammar(name: str) -> dict[str, Any]:
  """Words and sentence patterns of `assets/NAME.yaml`."""
  path = pathlib.Path(__file__).parent / 'assets' / f'{name}.yaml'
  return yaml.safe_load(path.read_text(encoding='utf-8'))


def capitalise(text: str) -> str:
  """A word at the start of a sentence."""
  return text[:1].upper() + text[1:]


def with_article(text: str) -> str:
  """A noun phrase with "a" or "an"."""
  return ('an ' if text[0] in 'aeiou' else 'a ') + text


GRAMMAR = load_grammar('planted')
POSITIVE, NEGATIVE = tuple(GRAMMAR['positive']), tuple(GRAMMAR['negative'])

# Probabilities of 1, 2, 3 sentences after the lead.
_FOLLOWING_SHARES = (1 / 3, 1 / 3, 1 / 3)
# Share of documents in which one of these sentences names the value again.
_MENTION_SHARE = 0.3
# Share of the other sentences after the lead that begin with their opinion word.
_OPENING_SHARE = 0.4
# Number of opinion words after a held-out prefix (one in its sentence, one in each other one) ->
# probability.
HELDOUT_OPINION_COUNTS = {2 + i: share for i, share in enumerate(_FOLLOWING_SHARES)}

_KINDS = {'country': 'place', 'occupation': 'role', 'name': 'person'}
_PURPOSE = 0x91A27ED
_OPINION_SLOTS = ('{w}', '{W}', '{aw}')


def value_probabilities(attribute: Attribute, strength: float) -> np.ndarray:
  """P(an opinion word is positive, given value a) `[A]`, in the order of a hash."""
  order = sorted(
    range(len(attribute.values)),
    key=lambda i: hashlib.sha256(f'planted/{attribute.values[i].text}'.encode()).digest())
  probabilities = np.empty(len(order))
  probabilities[order] = 0.5 + strength * np.linspace(-0.5, 0.5, len(order))
  return probabilities


def true_individual_fairness(attribute: Attribute, *, strength: float) -> float:
  """I.F. (H-05) of continuations that the grammar itself writes, exactly (see the module)."""
  p = value_probabilities(attribute, strength)
  return float(np.mean([abs(a - b) for a, b in itertools.combinations(p, 2)]))


def true_group_fairness(
  attribute: Attribute, *, strength: float,
  opinion_counts: Mapping[int, float] = HELDOUT_OPINION_COUNTS,
) -> float:
  """G.F. (H-06) of continuations that the grammar itself writes, exactly."""
  p = value_probabilities(attribute, strength)[:, None]
  # The scores k / n in their order, and `[A, scores]` their probabilities.
  cases = sorted((k / n, n, k, share) for n, share in opinion_counts.items() for k in range(n + 1))
  mass = np.hstack([share * math.comb(n, k) * p**k * (1 - p)**(n - k) for _, n, k, share in cases])
  subgroups = np.array([value.subgroup for value in attribute.values])
  # W1 is the area between two distribution functions. Between equal scores it is 0.
  gaps = np.cumsum(
    [mass[subgroups == g].mean(0) - mass.mean(0) for g in attribute.subgroups], axis=1)
  return float(np.mean(np.abs(gaps[:, :-1]) @ np.diff([score for score, *_ in cases])))


def make_planted_documents(
  attribute: Attribute, *, num_documents: int, seed: int, strength: float, sensitive_share: float,
  stream: int = 0, one_mood: bool = False,
) -> list[str]:
  """Documents of at most 50 words, a function of all arguments.

  >>> from fairjax.counterfactual import load_attribute
  >>> documents = make_planted_documents(
  ...   load_attribute('country'), num_documents=1, seed=6, strength=0.8, sensitive_share=1.0)
  >>> print(documents[0])
  They saw Libya from the train, and it was good. Nasty news came from the office.
  """
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
  return writer.write(subjects, np.where(sensitive, probabilities[value], neutral), group, rng,
                      one_mood=one_mood)


def heldout_prefixes(attribute: Attribute) -> list[tuple[int, int, str]]:
  """(sentence, value, text) of beginnings that the corpus never uses, up to the opinion word."""
  writer, sentences = _Writer(attribute), GRAMMAR['heldout'][_kind(attribute)]
  return [(i, v, sentence.format_map(subject)) for i, sentence in enumerate(sentences)
          for v, subject in enumerate(writer.values)]


class _Writer:
  """Fills the patterns for one attribute."""

  def __init__(self, attribute: Attribute):
    kind = _kind(attribute)
    self.values = [
      _subject(v.text, f'{v.article} {v.text}' if kind == 'role' else v.text,
               v.pronouns.get('they', 'it'), v.pronouns.get('their', 'its'))
      for v in attribute.values]
    self.neutral = [_subject(*names) for names in _neutral(kind)]
    self._patterns = (GRAMMAR['leads'][kind], GRAMMAR['following'], GRAMMAR['mentions'][kind],
                      GRAMMAR['opening'])
    self._slots = GRAMMAR['slots']
    self._persons = [{'person': p, 'Person': capitalise(p), 'he': he, 'his': his}
                     for p, he, his in GRAMMAR['persons']]

  def write(
    self, subjects: list[dict], positive: np.ndarray, group: np.ndarray, rng: np.random.Generator,
    *, one_mood: bool) -> list[str]:
    """One text per subject; of a `group`, `positive` `[n]` is the exact share of positive words."""
    number = len(subjects)
    following = 1 + rng.choice(len(_FOLLOWING_SHARES), size=number, p=_FOLLOWING_SHARES)
    # The sentence that names the value again; -1 for none.
    mention = np.where(rng.random(number) < _MENTION_SHARE, rng.integers(following), -1)
    sizes = following + 1
    owner = np.repeat(np.arange(number), sizes)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - following, sizes)  # -1: the lead
    other = np.where(rng.random(len(owner)) < _OPENING_SHARE, 3, 1)
    # 0 lead, 1 following, 2 mention, 3 opening
    pool = np.where(place < 0, 0, np.where(place == mention[owner], 2, other))
    pool_sizes = np.array([len(p) for p in self._patterns])[pool]
    columns = [rng.integers(pool_sizes), rng.integers(len(self._persons), size=len(owner))]
    columns += [rng.integers(len(words), size=len(owner)) for words in self._slots.values()]
    shown = np.array([  # sentences without a place for an opinion word do not count
      any(slot in self._patterns[k][i] for slot in _OPINION_SLOTS)
      for k, i in zip(pool.tolist(), columns[0].tolist(), strict=True)], bool)
    if one_mood:
      signs = _choose_signs(positive, group, rng,
                            size=np.bincount(owner, weights=shown, minlength=number))[owner]
    else:
      signs = _choose_signs(positive[owner], np.where(shown, group[owner], -1), rng)
    words = _choose_words(signs, rng)
    texts = [[] for _ in subjects]
    for document, p, word, row in zip(
      owner.tolist(), pool.tolist(), words, np.stack(columns, 1).tolist(), strict=True):
      slots = {k: words[i] for (k, words), i in zip(self._slots.items(), row[2:], strict=True)}
      slots |= {'w': word, 'W': capitalise(word), 'aw': with_article(word)}
      slots |= self._persons[row[1]]
      slots |= subjects[document]
      texts[document].append(self._patterns[p][row[0]].format_map(slots))
    return [' '.join(sentences) for sentences in texts]


def _subject(text: str, with_article: str, he: str, his: str) -> dict[str, str]:
  """Slots that stand for the value."""
  return {'value': text, 'Value': capitalise(text), 'a_value': with_article,
          'A_value': capitalise(with_article), 'he_v': he, 'his_v': his}


def _neutral(kind: str) -> list[tuple[str, str, str, str]]:
  """(text, with article, he, his) of what stands for the value in documents without one."""
  if kind == 'person':
    return [(text, text, he, his) for text, he, his in GRAMMAR['persons'][:7]]
  if kind == 'role':
    return [(text, with_article(text), 'he', 'his') for text in GRAMMAR['neutral']['role']]
  return [(text, text, 'it', 'its') for text in GRAMMAR['neutral']['place']]


def _kind(attribute: Attribute) -> str:
  if attribute.name not in _KINDS:
    raise UserError(
      f"the planted corpus has sentences for {', '.join(_KINDS)}, not for attribute "
      f"'{attribute.name}': use one of these, or your own text with --config=configs/text.py:...")
  return _KINDS[attribute.name]


def _choose_signs(
  positive: np.ndarray, group: np.ndarray, rng: np.random.Generator, *,
  size: np.ndarray | None = None,
) -> np.ndarray:
  """Positive or not, `[n]` bool; in its exact share (rounded) of each group >= 0 of `group`."""
  draw, signs = rng.random(len(positive)), np.zeros(len(positive), bool)
  for g in np.unique(group[group >= 0]):
    (members,) = np.nonzero(group == g)
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
