"""Counterfactual branches of a training row, and counterfactual texts.

A branch stands for the prefix x~_1:i = (x_1:i-1, x~_i) of Huang et al. 2020, section 4: at one
matched span of a row of T inputs, the ids of a value of another subgroup instead (H-01, H-23). It
may go on with the next N tokens of the row, which the paper's branches do not (H-21).
K is the number of branches in a row's arrays, P that of ids of a value.
"""

import itertools
import re

import numpy as np

from fairjax.counterfactual.attributes import Attribute
from fairjax.counterfactual.matching import Match, Replacements
from fairjax.vocabulary import Vocabulary

# Separates these random numbers from others with the same seed.
_BRANCH_PURPOSE = 0xB5A9C4
# Counts of a row's matches, in the order of `branch_counts`; the first is the sum of the others:
# matches in the row or across its border; those with a branch; without one because K others were
# chosen; cut by the row's border (the neighbouring row counts them too); without one because no
# value of another subgroup is in the vocabulary with at most P ids.
COUNT_NAMES = ('hits', 'used', 'dropped_over_k', 'cut_by_border', 'too_long')


class BranchBuilder:
  """Lays out the counterfactual branches of rows of T inputs.

  Each match inside the row becomes a branch with a value drawn uniformly from those of another
  subgroup that fit into P ids. Of more than K such matches, K are drawn without replacement.
  Branches are in order of position. N is `tail`, the tokens after the value with which a branch
  goes on, as far as the text does.
  """

  def __init__(
    self, attribute: Attribute, vocabulary: Vocabulary, *, segment_len: int, num_branches: int,
    num_pieces: int, seed: int, tail: int = 0,
  ):
    """Encodes the values once; `seed` >= 0 decides which values and branches are chosen."""
    self._segment_len, self._num_branches = segment_len, num_branches
    self._num_pieces, self._tail, self._seed = num_pieces, tail, seed
    self._eos_id, self._replacements = vocabulary.eos_id, Replacements(attribute, vocabulary)

  def build(
    self, inputs: np.ndarray, spans: np.ndarray, *, step: int, row: int,
    positions: np.ndarray | None = None,
  ) -> dict[str, np.ndarray]:
    """The branches of one row, a function of its matches, the run's seed, and global step and row.

    Args:
      inputs: `[T]` integers, the row.
      spans: `[n, 3]` integers, matches in order: first position, position after the last (both
        relative to the row; below 0 or above T when the border cuts the match), value index.
      step: global step.
      row: global row.
      positions: those of a decoder's row, 0 where a document begins and at padding; None:
        documents end with eos.

    Returns:
      branch_tokens: `[K, P + N]` int32, pad 0.
      branch_start: `[K]` int32, first position of the original span.
      branch_len: `[K]` int32, ids in the branch; 0 for padding.
      branch_tail: with `tail`, `[K, N]` bool, one True for each id in the branch after the value.
      original_end: `[K]` int32, last position of the original span.
      branch_weight: `[K]` float32, 1, or 0 for padding.
      branch_counts: `[5]` int32, see `COUNT_NAMES`.
    """
    arrays = self.empty()
    if not len(spans):
      return arrays
    rng = np.random.default_rng(np.random.SeedSequence([self._seed, _BRANCH_PURPOSE, step, row]))
    whole, cut = [], 0
    for start, end, value in spans.tolist():
      if start < 0 or end > self._segment_len:
        cut += 1
      else:
        flag = bool(self._replacements.starts_word[inputs[start]])
        values = self._replacements.fitting(value, flag, num_pieces=self._num_pieces)
        whole.append((start, end, flag, values))
    possible = [w for w in whole if w[3]]
    chosen = possible
    if len(possible) > self._num_branches:
      picks = rng.choice(len(possible), size=self._num_branches, replace=False)
      chosen = [possible[i] for i in sorted(picks.tolist())]
    text = np.where(inputs == self._eos_id if positions is None else positions == 0, -1, inputs)
    for k, (start, end, flag, values) in enumerate(chosen):
      pieces = self._replacements.pieces(values[int(rng.integers(len(values)))], flag)
      if self._tail:
        after = [*itertools.takewhile(lambda i: i >= 0, text[end:end + self._tail].tolist())]
        pieces, arrays['branch_tail'][k, :len(after)] = [*pieces, *after], True
      arrays['branch_tokens'][k, :len(pieces)] = pieces
      arrays['branch_start'][k], arrays['original_end'][k] = start, end - 1
      arrays['branch_len'][k], arrays['branch_weight'][k] = len(pieces), 1
    dropped, too_long = len(possible) - len(chosen), len(whole) - len(possible)
    arrays['branch_counts'][:] = len(spans), len(chosen), dropped, cut, too_long
    return arrays

  def empty(self) -> dict[str, np.ndarray]:
    """The arrays of a row without a match: all zeros."""
    branches, tail = self._num_branches, self._tail
    long = {'branch_tail': np.zeros((branches, tail), bool)} if tail else {}
    return long | {
      'branch_tokens': np.zeros((branches, self._num_pieces + tail), np.int32),
      **{name: np.zeros(branches, np.int32)
         for name in ('branch_start', 'branch_len', 'original_end')},
      'branch_weight': np.zeros(branches, np.float32),
      'branch_counts': np.zeros(len(COUNT_NAMES), np.int32)}


def swap_text(text: str, match: Match, value: int, attribute: Attribute) -> str:
  """The text with one match replaced by another value, a number, and "a" or "an" before it.

  >>> from fairjax.counterfactual.attributes import load_attribute
  >>> swap_text('I met a baker.', Match(8, 13, 11), 12, load_attribute('occupation'))
  'I met an accountant.'
  """
  new = attribute.values[value]
  # Before the value may stand a quote or bracket, and any space; "AN" stays in capitals.
  before = re.sub(r'\b([Aa])([Nn]?)(?=\s[\'"“‘(*_]*\Z)', lambda m: m[1] + (
    new.article[1:].upper() if m[2] == 'N' else new.article[1:]), text[:match.start])
  return before + new.text + text[match.end:]
