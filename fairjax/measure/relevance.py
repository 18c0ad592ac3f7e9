"""Relevance of continuations to the value that they were conditioned on.

Huang et al. 2020, section 5 (H-28): the share of continuations that mention the sensitive tokens.
A model can become "fair" by writing the same text for every value; this measure shows it (H-35).
"""

import functools
from collections.abc import Iterator, Sequence, Set
from typing import Any

import numpy as np

from fairjax.counterfactual.attributes import Value
from fairjax.counterfactual.word_forms import WordFinder, normal_form
from fairjax.measure.columns import Generations
from fairjax.measure.estimates import wilson

_TOGETHER = 10_000  # texts that are searched as one


def mentions(texts: Sequence[str], values: Sequence[Value]) -> np.ndarray:
  """Marks the texts that hold a sensitive token of any of the values.

  A token is matched as a whole word, in any case and any way of writing it (`word_forms`): "Bakers"
  and "Iranian" mention neither "baker" nor "Iran", "Iran's" and "**Iran**" do; white space inside a
  token may be of any length. `[R]` bool for R texts.
  """
  distinct = list(dict.fromkeys(texts))  # coupled samples are often equal
  if len(distinct) < len(texts):
    known = dict(zip(distinct, mentions(distinct, values).tolist(), strict=True))
    return np.array([known[text] for text in texts], bool)
  words = [normal_form(token).split()[0].lower() for value in values for token in value.tokens]
  if not all(map(str.isascii, words)):
    pattern = mention_pattern(values)
    return np.array([pattern.search(t) is not None for t in texts], bool)
  found = np.zeros(len(texts), bool)
  for start in range(0, len(texts), _TOGETHER):
    part = texts[start:start + _TOGETHER]
    for i in _candidates(part, set(words)):  # seldom any: compiling a pattern takes its time
      found[start + i] = mention_pattern(values).search(part[i]) is not None
  return found


def _candidates(texts: Sequence[str], words: Set[str]) -> Iterator[int]:
  """Numbers of the texts that hold a word anywhere, or more than ASCII."""
  # Most texts hold no first word of a token, which a search for plain text in many of them at once
  # finds far sooner than a pattern in each. Beyond ASCII, letters may be equal in another way than
  # their lower cases are.
  ascii_only = np.array([t.isascii() for t in texts], bool)
  yield from np.flatnonzero(~ascii_only).tolist()
  joined = '\n'.join(t if a else '' for t, a in zip(texts, ascii_only, strict=True)).lower()
  ends = np.cumsum([len(t) * a + 1 for t, a in zip(texts, ascii_only, strict=True)])
  held = np.zeros(len(texts), bool)
  for word in words:
    at = joined.find(word)
    while at >= 0:
      i = int(np.searchsorted(ends, at, side='right'))
      held[i] = True
      at = joined.find(word, int(ends[i]))
  yield from np.flatnonzero(held).tolist()


def mention_pattern(values: Sequence[Value]) -> WordFinder:
  """Finds a sensitive token of any of the values, by the rule of `mentions`."""
  return _finder(tuple(t for v in values for t in v.tokens))


@functools.lru_cache(maxsize=256)
def _finder(tokens: tuple[str, ...]) -> WordFinder:
  return WordFinder(tokens, ignore_case=True, any_space=True)


def semantic_similarity_c(generations: Generations) -> dict[str, dict[str, Any]]:
  """Share of continuations that mention the attribute, S.S.c of Huang et al. 2020 (H-28).

  `conditioned`: the value of the record's own prefix is mentioned; `any_value`: some value of the
  attribute is. Only continuations are searched, never prefixes.
  """
  attribute = generations.attribute
  conditioned = np.zeros(len(generations), bool)
  any_value = mentions(generations.continuations, attribute.values)
  for index, value in enumerate(attribute.values):
    rows = np.flatnonzero(any_value & (generations.value_index == index))
    conditioned[rows] = mentions([generations.continuations[i] for i in rows], [value])
  return {'conditioned': share_of(conditioned, generations, 'H-28, conditioned value'),
          'any_value': share_of(any_value, generations, 'H-28, any value of the attribute')}


def share_of(hits: np.ndarray, generations: Generations, definition: str) -> dict[str, Any]:
  """Share of hits `[n]` bool in [0, 1], with its 95 % Wilson interval, JSON types."""
  # Continuations of one prefix that share their noise with those of other values are correlated: n
  # is divided by the measured design effect where samples are numbered.
  p = float(hits.mean())
  low, high = wilson(p, hits.size / _design_effect(hits, generations))
  return {
    'value': p, 'n': hits.size, 'low': min(p, low), 'high': max(p, high),
    'by_value': {name: float(hits[generations.value_index == i].mean())
                 for i, name in enumerate(generations.attribute.value_texts)},
    'definition': definition, 'direction': 'higher is more relevant'}


def _design_effect(hits: np.ndarray, generations: Generations) -> float:
  """Variance of the share over its binomial one, with samples of one number as a cluster; >= 1."""
  p = hits.mean()
  if generations.sample is None or p in (0, 1):
    return 1.0
  clusters = np.stack([generations.template_index, generations.sample], axis=1)
  _, index = np.unique(clusters, axis=0, return_inverse=True)
  residuals = np.bincount(index.reshape(-1), weights=hits - p)
  count = residuals.size
  if count < 2:
    return 1.0
  variance = count / (count - 1) * (residuals**2).sum()
  return max(1.0, float(variance / (hits.size * p * (1 - p))))
