"""Counterfactual branches of training rows, from the matches in them (no TensorFlow)."""

import numpy as np

from fairjax.counterfactual import (
  COUNT_NAMES,
  Attribute,
  branch_rng,
  choose_branches,
  replacement_pieces,
)
from fairjax.vocabulary import Vocabulary


class BranchBuilder:
  """Lays out up to K branches of up to P pieces for rows of T inputs.

  What a row gets is a function of (seed, step, row) and its tokens only.
  """

  def __init__(
    self, attribute: Attribute, vocabulary: Vocabulary, *, segment_len: int, num_branches: int,
    num_pieces: int, seed: int,
  ):
    """Encodes the values once.

    Args:
      attribute: the sensitive attribute.
      vocabulary: of the tokens.
      segment_len: T.
      num_branches: K.
      num_pieces: P.
      seed: of the choice of values (and of branches, where there are more than K), >= 0.
    """
    self.attribute, self.segment_len = attribute, segment_len
    self.num_branches, self.num_pieces, self.seed = num_branches, num_pieces, seed
    self.replacements = replacement_pieces(attribute, vocabulary)

  def build(
    self, inputs: np.ndarray, spans: np.ndarray, *, step: int, row: int) -> dict[str, np.ndarray]:
    """Branches of one row.

    Args:
      inputs: `[T]` int32.
      spans: `[n, 3]` int32, matches relative to the row (`TokenRows.spans`).
      step: global step.
      row: row of the global batch.

    Returns:
      The arrays of `choose_branches`: `branch_tokens [K, P]`, `branch_start`, `branch_len`,
      `original_end` `[K]` int32, `branch_weight [K]` float32, `branch_counts [5]` int32.
    """
    if not len(spans):
      return self.empty()
    # A match that begins before the row is cut by the border, and its flag is never read.
    starts_word = self.replacements.starts_word[inputs[np.maximum(spans[:, 0], 0)]]
    return choose_branches(
      spans, starts_word, attribute=self.attribute, replacements=self.replacements,
      segment_len=self.segment_len, num_branches=self.num_branches, num_pieces=self.num_pieces,
      rng=branch_rng(self.seed, step, row))

  def empty(self) -> dict[str, np.ndarray]:
    """The arrays of a row without a match: all zeros."""
    k = self.num_branches
    arrays = {name: np.zeros(k, np.int32)
              for name in ('branch_start', 'branch_len', 'original_end')}
    return arrays | {
      'branch_tokens': np.zeros((k, self.num_pieces), np.int32),
      'branch_weight': np.zeros(k, np.float32),
      'branch_counts': np.zeros(len(COUNT_NAMES), np.int32)}
