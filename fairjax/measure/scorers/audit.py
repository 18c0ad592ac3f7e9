"""What a scorer thinks of the sensitive tokens themselves, and how far scorers agree.

A difference between the scores of two values may come from the language model or from the scorer,
which has learned that some names are bad news or counts "cleaner" as praise. The audit takes texts
as they are scored, puts every value of the attribute into the place of the token that is there, and
compares the scores of what differs in nothing else (H-01; Huang et al. 2020 use three classifiers
for this reason).

Letters: F frames (texts that differ outside the token), A values.
"""

import collections
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairjax.counterfactual.attributes import Attribute
from fairjax.counterfactual.branches import swap_text
from fairjax.counterfactual.matching import TextMatcher
from fairjax.errors import UserError
from fairjax.measure.correlation import pearson, spearman
from fairjax.measure.estimates import LEVEL, TIE, holm
from fairjax.measure.scorers.base import (
  RecordedScorer,
  Scorer,
  count_truncated,
  sensitive_lexicon_words,
)
from fairjax.measure.scorers.cache import score_file, score_texts

if TYPE_CHECKING:
  from fairjax.pretrained.classifier import Examples

PERMUTATIONS = 9999
_PURPOSE = 0x5A  # separates these random streams from others of the same seed
_BLOCK = 1 << 22  # numbers drawn at a time


@dataclasses.dataclass(frozen=True)
class Frames:
  """Texts with a sensitive token, with every value in its place."""

  # Texts that are equal outside the token are one frame: after the swap they are the same texts,
  # and counting them apart would make p-values too small.

  texts: list[list[str]]  # [F][A], column a holds value a
  weights: np.ndarray  # [F] int, texts of each frame
  # `texts`, `with_token` (they hold one at all), `with_several_values` (they hold tokens of other
  # values too; those stay), `left_out` (of `with_token`, not drawn), `frames`
  counts: dict[str, int]
  values: np.ndarray  # [A] texts of `with_token` whose token is this value's


def make_frames(
  texts: Sequence[str], attribute: Attribute, *, limit: int = 0, seed: int = 0
) -> Frames:
  """Puts every value into every text that holds a sensitive token."""
  # The first match decides whose token it is; all tokens of this value are replaced, tokens of
  # other values stay. "a" and "an" before them are adjusted, pronouns are not. In the column of the
  # value that was there its own text is used too, in place of another form of it.
  matcher = TextMatcher(attribute)
  found = [(text, matches) for text in texts if (matches := matcher.find(text))]
  drawn = found
  if 0 < limit < len(found):
    rng = np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE, 0]))
    drawn = [found[i] for i in sorted(rng.choice(len(found), limit, replace=False).tolist())]
  weights: collections.Counter[tuple[str, ...]] = collections.Counter()
  for text, matches in drawn:
    own = [m for m in matches if m.value_index == matches[0].value_index]
    row = []
    for value in range(len(attribute.values)):
      swapped = text
      for match in reversed(own):  # from the end, so that the places before stay where they are
        swapped = swap_text(swapped, match, value, attribute)
      row.append(swapped)
    weights[tuple(row)] += 1
  return Frames(
    texts=[list(row) for row in weights],
    weights=np.fromiter(weights.values(), np.int64, len(weights)),
    counts={'texts': len(texts), 'with_token': len(found),
            'with_several_values': sum(len({m.value_index for m in matches}) > 1
                                       for _, matches in found),
            'left_out': len(found) - len(drawn), 'frames': len(weights)},
    values=np.bincount([matches[0].value_index for _, matches in found],
                       minlength=len(attribute.values)))


def own_bias(
  scores: np.ndarray, weights: np.ndarray, *, permutations: int = PERMUTATIONS, seed: int = 0
) -> dict[str, np.ndarray]:
  """How much higher a scorer rates each value than the others in the same places."""
  # A value is compared with the median of the others, not with their mean: one value that a scorer
  # treats apart must not make all others look biased the other way. Nor may it widen the null of
  # the others: what is significant is taken out, and the others are compared without it. Of three
  # values the median of two is their mean, so there the one that is farthest goes first.
  # scores [F, A] in [0, 1], weights [F] texts of a frame; difference, p_value and p_holm are [A],
  # moved and range a share of texts and a mean over texts.
  share, spread = weights / weights.sum(), np.ptp(scores, axis=1)
  left, least = np.arange(scores.shape[1]), 0.0
  difference, p_value, p_holm = np.empty((3, left.size))
  rng = np.random.default_rng(np.random.SeedSequence([seed, _PURPOSE, 1]))
  while True:
    found, p = _apart(scores[:, left], share, permutations, rng)
    corrected = np.maximum(least, holm(p))
    difference[left], p_value[left], p_holm[left] = found, p, corrected
    out = corrected <= LEVEL
    if left.size == 3 and out.all():
      out = np.arange(3) == np.abs(found).argmax()
    if not out.any() or left.size - out.sum() < 2:
      return {'difference': difference, 'p_value': p_value, 'p_holm': p_holm,
              'moved': share @ (spread > TIE), 'range': share @ spread}
    least, left = corrected[out].max(), left[~out]


def _apart(scores: np.ndarray, share: np.ndarray, permutations: int, rng: np.random.Generator
           ) -> tuple[np.ndarray, np.ndarray]:
  """How much higher each value is than the median of the others `[A]`, and its p-value."""
  # A paired permutation test: if the value did not matter, the A scores of a frame could be in any
  # order, so the score under value a would be a random one of the A. All texts of a frame move
  # together.
  values = scores.shape[1]
  apart = scores - np.stack(
    [np.median(np.delete(scores, a, axis=1), axis=1) for a in range(values)], axis=1)
  difference = share @ apart
  moved = np.ptp(scores, axis=1) > TIE
  rows, part = apart[moved], share[moved]
  # In a frame every value's score under a random order has the same distribution, so one set of
  # draws is the null of all A tests.
  null = np.zeros(permutations)
  block = max(1, _BLOCK // max(1, len(rows)))
  for start in range(0, permutations if len(rows) else 0, block):
    draws = rng.integers(values, size=(min(block, permutations - start), len(rows)))
    null[start:start + len(draws)] = rows[np.arange(len(rows)), draws] @ part
  reached = np.array([np.count_nonzero(np.abs(null) >= abs(d) - TIE) for d in difference])
  return difference, (reached + 1) / (permutations + 1)


def agreement(scores: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
  """How far scorers agree on the same texts (name -> `[R]` scores), for every pair of them."""
  # Equal signs: both rate a text positive, both negative, or both exactly 0.5; among the texts that
  # neither rates 0.5 too. Correlations are None where a scorer gives one score to all.
  if len(scores) < 2:
    return []
  signs = {name: np.sign(column - 0.5) for name, column in scores.items()}
  result = []
  for first, second in itertools.combinations(scores, 2):
    equal = signs[first] == signs[second]
    both = (signs[first] != 0) & (signs[second] != 0)
    result.append({
      'scorers': [first, second], 'n': len(equal),
      'spearman': spearman(scores[first], scores[second]),
      'pearson': pearson(scores[first], scores[second]),
      'equal_signs': float(equal.mean()) if equal.size else None,
      'n_opinionated': int(both.sum()),
      'equal_signs_opinionated': float(equal[both].mean()) if both.any() else None})
  return result


def audit_own_bias(
  texts: Sequence[str], attribute: Attribute, scorers: Sequence[Scorer | RecordedScorer], *,
  limit: int = 0, permutations: int = PERMUTATIONS, seed: int = 0, paid: bool = True,
  scores_directory: str | os.PathLike | None = None,
) -> dict[str, Any]:
  """Audits scorers on texts: their own bias by value, and words in their lexicons."""
  if not texts:
    raise UserError('no texts: nothing to audit')
  frames = make_frames(texts, attribute, limit=limit, seed=seed)
  flat = [text for row in frames.texts for text in row]
  result: dict[str, Any] = {
    'attribute': attribute.name, 'values': list(attribute.value_texts), 'counts': frames.counts,
    'share_with_token': frames.counts['with_token'] / len(texts), 'permutations': permutations,
    'seed': seed, 'scorers': {}}
  for scorer in scorers:
    reason = bias = truncated = None
    if isinstance(scorer, RecordedScorer):
      reason = 'recorded scores say nothing about other texts'
    elif not flat:
      reason = 'no text holds a token'
    elif getattr(scorer, 'paid', False) and not paid:
      reason = 'each swapped text would be paid for; fairjax scorers audit asks for them'
    else:
      path = scores_directory and score_file(scores_directory, attribute.name, scorer)
      matrix = score_texts(flat, scorer, path).reshape(len(frames.texts), -1)
      bias = _bias_table(matrix, frames, attribute, own_bias(
        matrix, frames.weights, permutations=permutations, seed=seed))
      truncated = count_truncated(scorer, flat)
    result['scorers'][scorer.name] = scorer_facts(scorer) | {
      'own_bias': bias, 'not_measured': reason,
      'sensitive_lexicon_words': sensitive_lexicon_words(scorer, attribute)
    } | ({} if truncated is None else {'truncated_swaps': truncated})
  return result


def audit_scorers(
  texts: Sequence[str], attribute: Attribute, scorers: Sequence[Scorer | RecordedScorer], *,
  recorded: Mapping[str, np.ndarray] | None = None, limit: int = 0,
  permutations: int = PERMUTATIONS, seed: int = 0,
) -> dict[str, Any]:
  """`audit_own_bias` of R texts, and how far the scorers agree on them.

  Args:
    texts: R texts as they are scored.
    attribute: the sensitive attribute.
    scorers: at least one, none of them twice.
    recorded: scorer name -> `[R]` scores of those that are `RecordedScorer`s. They take part in the
      agreement only: they have no score of another text.
    limit: at most so many texts with a token are swapped (seeded choice); 0: all.
    permutations: of the test.
    seed: of choice and test.
  """
  result = audit_own_bias(
    texts, attribute, scorers, limit=limit, permutations=permutations, seed=seed)
  columns = {}
  for scorer in scorers:
    if isinstance(scorer, RecordedScorer):
      columns[scorer.name] = (recorded or {})[scorer.name]
    else:
      columns[scorer.name] = score_texts(texts, scorer)
      truncated = count_truncated(scorer, texts)
      if truncated is not None:
        result['scorers'][scorer.name]['truncated_texts'] = truncated
  return result | {'agreement': agreement(columns)}


def check_scorers(scorers: Sequence[Scorer | RecordedScorer]) -> None:
  """Raises `UserError` when a scorer is given twice, under one name or under two."""
  # The results of one name would replace each other; those of two would pass for two opinions.
  names = collections.Counter(scorer.name for scorer in scorers)
  twice = [name for name, count in names.items() if count > 1]
  if twice:
    raise UserError(f"scorer {twice[0]} is named twice: give every scorer once")
  seen: dict[str, str] = {}
  for scorer in scorers:
    if scorer.fingerprint in seen:
      raise UserError(f'scorers {seen[scorer.fingerprint]} and {scorer.name} are one and the same '
                      '(equal fingerprints): give it once, and another one beside it')
    seen[scorer.fingerprint] = scorer.name


def scorer_facts(scorer: Scorer | RecordedScorer) -> dict[str, str]:
  """What results keep of a scorer's identity: `fingerprint`, and `weights` where it has any."""
  weights = getattr(scorer, 'weights', None)
  return {'fingerprint': scorer.fingerprint} | ({} if weights is None else {'weights': weights})


def count_distinct(scorers: Iterable[Mapping[str, Any]]) -> int:
  """How many scorers differ in more than the precision or the use of the same weights."""
  return len({scorer.get('weights') or scorer['fingerprint'] for scorer in scorers})


def _bias_table(
  matrix: np.ndarray, frames: Frames, attribute: Attribute, found: Mapping[str, np.ndarray]
) -> dict[str, Any]:
  means = frames.weights @ matrix / frames.weights.sum()
  return {
    'n': int(frames.weights.sum()), 'frames': len(frames.texts), 'moved': float(found['moved']),
    'range': float(found['range']), 'values': [
      {'value': text, 'n': int(frames.values[a]), 'mean': float(means[a])}
      | {key: float(found[key][a]) for key in ('difference', 'p_value', 'p_holm')}
      for a, text in enumerate(attribute.value_texts)]}


def scorer_quality(scorer: Scorer | RecordedScorer, data: 'Examples', *, classes: int,
                   undecided: str, seed: int, log: Callable[[str], None]) -> dict[str, Any]:
  """Accuracy and F1 of a scorer on labelled texts; a score of exactly 0.5 is undecided."""
  from fairjax.pretrained.classifier import quality
  if not hasattr(scorer, 'score'):
    raise UserError(f"scorer '{scorer.name}' reads scores of records; it cannot score sentences")
  predictions = _predict(scorer, data.texts, classes)
  if undecided == 'negative' and (predictions < 0).any():
    log(f'[{scorer.name}] {(predictions < 0).sum()} undecided texts count as negative')
    predictions = np.maximum(predictions, 0)
  result = quality(data.labels, predictions, classes=classes, seed=seed)
  truncated = count_truncated(scorer, data.texts)
  if truncated is not None:
    result['truncated_texts'] = truncated
    longest = getattr(scorer, 'max_length', 0)
    log(f'[{scorer.name}] {truncated} texts longer than {longest} tokens')
  return result


def _predict(scorer: Scorer, texts: Sequence[str], classes: int) -> np.ndarray:
  """Classes of R texts: `[R]` int; -1 where a two-class score is exactly 0.5."""
  if classes == 2:
    scores = np.asarray(scorer.score(texts))
    return np.where(scores == 0.5, -1, scores > 0.5).astype(int)
  values = getattr(scorer, 'values', {})
  if not hasattr(scorer, 'probabilities') or len(values) != classes:
    raise UserError(f'scorer {scorer.name} has no five classes: use --classes=2')
  if len(set(values.values())) < classes:
    raise UserError(f'scorer {scorer.name} gives two classes the same value, so they have no '
                    'order: give each its own, or use --classes=2')
  ranks = np.argsort(np.argsort(list(values.values())))
  return ranks[scorer.probabilities(texts).argmax(-1)]
