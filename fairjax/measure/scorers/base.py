"""Sentiment scorers: text in, score in [0, 1] out; 0.5 is neutral, 1 positive.

The opinion words of Huang et al. 2020 (H-16), VADER, TextBlob, and scores that the records bring
(H-14). Anything with `name`, `fingerprint` and `score` is a scorer.
"""

import collections
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fairjax.counterfactual.attributes import Attribute
from fairjax.counterfactual.word_forms import normal_form, plain_apostrophes
from fairjax.errors import UserError
from fairjax.files import json_sha256

SCORERS = ('opinion', 'vader', 'textblob', 'google', 'bert', 'recorded')
# A compound: letters and digits, joined inside by - ' or *; a final + belongs to it ("a+").
_COMPOUND = re.compile(r"[^\W_]+(?:[-'*]+[^\W_]+)*\+?")
_WORD = re.compile(r'[^\W_]+')
_QUOTES = dict.fromkeys(map(ord, '\u201c\u201d\u201e\u201f\u00ab\u00bb'), '"') | {0x2026: '...'}


@runtime_checkable
class Scorer(Protocol):
  """What a text scorer has.

  One that does not read long texts to their end also has `max_length`, in tokens, and
  `count_truncated(texts)`: how many of them are longer. One that is given texts in other signs than
  they are written in has `count_changed(texts)`. One that asks for money has `paid` = True. One
  that takes long has `score_file`, None or a path that callers may set: the file that keeps its
  scores where nothing else does. One that fills a batch on each of several devices at once has
  their number, `busy_devices`.

  Attributes:
    name: short name, used in file names and tables.
    fingerprint: SHA-256 (hex) of everything that decides a score.
  """

  name: str
  fingerprint: str

  def score(self, texts: Sequence[str]) -> np.ndarray:
    """Scores R texts: `[R]` float64 in [0, 1]."""
    ...


class OpinionScorer:
  """Share of positive words among opinion words (H-16): p / (p + n), 0.5 where there are none.

  Tokens, not types, are counted, in lower case and the normal form of `word_forms`. A token is a
  run of letters and digits joined inside by hyphens, apostrophes or asterisks, with a final plus
  ("first-rate", "don't", "a+"). A compound that is in neither list counts as its parts ("winner's"
  as "winner" and "s"). Words in both lists cancel: they count in neither.

  Attributes:
    lexicon: word -> +1 or -1.
    in_both: words of both lists, left out.
    unmatchable: words that no token can equal ("anti-"), never counted.

  >>> scorer = OpinionScorer(['good', 'happy'], ['bad'])
  >>> scorer.score(['Good, good and bad.', 'No opinion.']).round(2).tolist()
  [0.67, 0.5]
  """

  name = 'opinion'

  def __init__(self, positive: Iterable[str], negative: Iterable[str]):
    positive = {_plain(w) for w in positive}
    negative = {_plain(w) for w in negative}
    self.in_both = tuple(sorted(positive & negative))
    self.lexicon = {w: 1 for w in positive - negative} | {w: -1 for w in negative - positive}
    if not {1, -1} <= set(self.lexicon.values()):
      raise UserError('an opinion lexicon needs words that are positive only and words that are '
                      'negative only')
    self.unmatchable = tuple(sorted(w for w in self.lexicon if not _COMPOUND.fullmatch(w)))
    self.fingerprint = json_sha256(['opinion, tokens 2', sorted(self.lexicon.items())])

  def score(self, texts: Sequence[str]) -> np.ndarray:
    """Scores R texts: `[R]` float64 in [0, 1]."""
    scores = np.full(len(texts), 0.5)
    for i, text in enumerate(texts):
      positive, negative = self.count(text)
      if positive or negative:
        scores[i] = positive / (positive + negative)
    return scores

  def count(self, text: str) -> tuple[int, int]:
    """How many positive and negative opinion words one text has."""
    counts = collections.Counter()
    for token in _COMPOUND.findall(_plain(text)):
      sign = self.lexicon.get(token)
      if sign is not None:
        counts[sign] += 1
      elif not token.isalnum():
        counts.update(self.lexicon.get(part, 0) for part in _WORD.findall(token))
    return counts[1], counts[-1]


class _WordListScorer:
  """Scores of a package with a word list: (polarity + 1) / 2, of texts in plain signs."""
  # The lists spell negations with the straight apostrophe ("don't"), and the packages leave some
  # signs at a word. So typographic signs become ', " and ... first.

  _polarity: Callable[[str], float]  # in [-1, 1], 0 for an empty text

  def score(self, texts: Sequence[str]) -> np.ndarray:
    """Scores R texts: `[R]` float64 in [0, 1]; an empty text is neutral."""
    polarity = [self._polarity(_plain_signs(text)) for text in texts]
    return (np.array(polarity, np.float64).reshape(len(texts)) + 1) / 2

  def count_changed(self, texts: Sequence[str]) -> int:
    """How many texts have signs that are replaced."""
    return sum(_plain_signs(text) != text for text in texts)


class VaderScorer(_WordListScorer):
  """VADER's compound score (Hutto and Gilbert 2014, package vaderSentiment) on the scale of scores.

  Attributes:
    lexicon: word -> mean valence, from -4 to 4.
  """

  name = 'vader'

  def __init__(self):
    import importlib.metadata

    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    analyzer = SentimentIntensityAnalyzer()
    self._polarity = lambda text: analyzer.polarity_scores(text)['compound']
    self.lexicon = analyzer.lexicon
    self.fingerprint = json_sha256([
      'vader, plain signs', importlib.metadata.version('vaderSentiment'),
      sorted(self.lexicon.items()), sorted(analyzer.emojis.items())])


class TextBlobScorer(_WordListScorer):
  """TextBlob's polarity (package textblob) on the scale of scores."""
  # Its words were rated apart from VADER's, so that each can judge what the other labelled.
  # `lexicon`: word -> valence, from -1 to 1 (De Smedt and Daelemans 2012, "Pattern for Python").

  name = 'textblob'

  def __init__(self):
    import importlib.metadata

    from textblob.en import sentiment
    sentiment.load()
    self._polarity = lambda text: sentiment(text)[0]
    self.lexicon = {word: senses[None][0] for word, senses in sentiment.items() if senses[None][0]}
    self.fingerprint = json_sha256([
      'textblob, plain signs', importlib.metadata.version('textblob'),
      sorted((word, sorted(senses.items(), key=str)) for word, senses in sentiment.items())])


class RecordedScorer:
  """Scores that the records bring in their `scores` field, of any classifier (H-14).

  Attributes:
    key: name of the score within `scores`; None takes the only one.
    name: `recorded` or `recorded:KEY`.
  """

  def __init__(self, key: str | None = None):
    self.key = key
    self.name = 'recorded' if key is None else f'recorded:{key}'
    self.fingerprint = hashlib.sha256(self.name.encode('utf-8')).hexdigest()

  def score_columns(
    self, scores: Sequence[Mapping[str, Any] | None], where: Sequence[str]
  ) -> np.ndarray:
    """Scores `[R]` float64 in [0, 1] from the `scores` fields and the places of R records.

    Raises:
      UserError: a score is absent, not a number or outside [0, 1], or there are several and no
        key was given; the message names file and line.
    """
    key = self.key
    values = np.empty(len(scores))
    for i, (given, place) in enumerate(zip(scores, where, strict=True)):
      if not given:
        raise UserError(f"{place}: the record has no 'scores': add them or use another scorer")
      if key is None:
        if len(given) > 1:
          raise UserError(f"{place}: several scores: choose one with recorded:NAME from "
                          f"{', '.join(sorted(given))}")
        key = next(iter(given))
      if key not in given:
        raise UserError(f"{place}: no score '{key}'; the record has {', '.join(sorted(given))}")
      value = given[key]
      if (type(value) not in (float, int) and not isinstance(value, np.floating | np.integer)
          or not 0 <= value <= 1):  # NaN is not
        raise UserError(f"{place}: score '{key}' is {value!r}, not a number in [0, 1] (scores from "
                        '-1 to 1: use (s + 1) / 2)')
      values[i] = value
    return values


def count_truncated(scorer: object, texts: Sequence[str]) -> int | None:
  """How many texts are read in part by a scorer or encoder; None if it reads all of any text."""
  count = getattr(scorer, 'count_truncated', None)
  return None if count is None else count(texts)


def count_rewritten(scorer: Scorer | RecordedScorer, texts: Sequence[str]) -> dict[str, int]:
  """`truncated_texts` and `changed_texts`, as far as the scorer counts them."""
  return {f'{name}_texts': count(texts) for name in ('truncated', 'changed')
          if (count := getattr(scorer, f'count_{name}', None)) is not None}


def sensitive_lexicon_words(
  scorer: Scorer | RecordedScorer, attribute: Attribute
) -> list[dict[str, Any]]:
  """Words of the attribute's sensitive tokens that move the scorer by themselves (H-16)."""
  # "cleaner" is a positive opinion word: a continuation that repeats it scores higher for the word
  # alone.
  lexicon = getattr(scorer, 'lexicon', {})
  found = []
  for value in attribute.values:
    words = dict.fromkeys(w for token in value.tokens for w in _lexicon_words(scorer, token))
    found += [{'value': value.text, 'word': word, 'valence': lexicon[word]}
              for word in words if word in lexicon]
  return found


def _lexicon_words(scorer: Scorer | RecordedScorer, token: str) -> Iterable[str]:
  """Words of a sensitive token as the scorer looks them up."""
  for word in _plain(token).split():
    yield word
    if isinstance(scorer, OpinionScorer) and word not in scorer.lexicon:
      yield from _WORD.findall(word)


def _plain(text: str) -> str:
  """Lower case, in the normal form."""
  return normal_form(text.lower())


def _plain_signs(text: str) -> str:
  """Straight apostrophes and quotes, and three full stops, for the typographic signs."""
  return text if text.isascii() else plain_apostrophes(text).translate(_QUOTES)
