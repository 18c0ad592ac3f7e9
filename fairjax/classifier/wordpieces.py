"""A WordPiece vocabulary from texts: pairs of pieces that stand together most often are joined.

The trainer of the package `tokenizers` breaks ties at random, so that two runs with the same seed
would differ; here equal counts are ordered by the pieces themselves.
"""

import collections
import heapq
from collections.abc import Iterable, Mapping

SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
_ALPHABET = 1000  # characters that get a piece of their own; words with rarer ones are unknown


def train_word_pieces(words: Mapping[str, int], *, size: int, min_count: int = 2) -> dict[str, int]:
  """Makes a vocabulary.

  Args:
    words: word -> how often it stands in the texts.
    size: most pieces, special ones included.
    min_count: pairs that are rarer are not joined.

  Returns:
    Piece -> id; special pieces first, then characters, then joined pieces in the order of joining.

  >>> list(train_word_pieces({'low': 3, 'lower': 2}, size=12))[5:]
  ['##e', '##o', '##r', '##w', 'l', '##ow', 'low']
  """
  pieces = [[w[0], *('##' + c for c in w[1:])] for w in words]
  weights = list(words.values())
  letters = collections.Counter()
  for word, weight in zip(pieces, weights, strict=True):
    for piece in word:
      letters[piece] += weight
  kept = sorted(sorted(letters, key=lambda c: (-letters[c], c))[:min(_ALPHABET, size - 5)])
  vocabulary = dict.fromkeys([*SPECIAL, *kept])
  counts: collections.Counter[tuple[str, str]] = collections.Counter()
  places: dict[tuple[str, str], set[int]] = collections.defaultdict(set)
  for i, (word, weight) in enumerate(zip(pieces, weights, strict=True)):
    for pair in zip(word, word[1:], strict=False):
      if pair[0] in vocabulary and pair[1] in vocabulary:
        counts[pair] += weight
        places[pair].add(i)
  heap = [(-count, pair) for pair, count in counts.items()]
  heapq.heapify(heap)
  while heap and len(vocabulary) < size:
    count, pair = heapq.heappop(heap)
    if -count != counts[pair]:  # it was queued before some of its places were joined otherwise
      continue
    if -count < min_count:
      break
    joined = pair[0] + pair[1].removeprefix('##')
    vocabulary[joined] = None
    changed = collections.Counter()
    for i in places.pop(pair):
      changed.update(_join(pieces[i], pair, joined, weights[i], places, i))
    for other, change in changed.items():
      counts[other] += change
      if counts[other] > 0:
        heapq.heappush(heap, (-counts[other], other))
    counts[pair] = 0
  return {piece: i for i, piece in enumerate(vocabulary)}


def _join(word, pair, joined, weight, places, number) -> dict[tuple[str, str], int]:
  """Joins the pair wherever it stands in the word; returns how the counts of pairs change."""
  changes: collections.Counter[tuple[str, str]] = collections.Counter()
  for old in zip(word, word[1:], strict=False):
    changes[old] -= weight
  i = 0
  while i < len(word) - 1:
    if (word[i], word[i + 1]) == pair:
      word[i:i + 2] = [joined]
    i += 1
  for new in zip(word, word[1:], strict=False):
    changes[new] += weight
    places[new].add(number)
  changes.pop(pair, None)
  return changes


def count_words(texts: Iterable[str]) -> dict[str, int]:
  """Words of texts as BERT separates them, in lower case, without accents, with their counts."""
  import tokenizers
  normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
  separator = tokenizers.pre_tokenizers.BertPreTokenizer()
  counts: collections.Counter[str] = collections.Counter()
  for text in texts:
    counts.update(w for w, _ in separator.pre_tokenize_str(normalizer.normalize_str(text)))
  return dict(sorted(counts.items()))
