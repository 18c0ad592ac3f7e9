"""Counterfactual training documents: what `data.cda` and its like make of a corpus (W-14 to W-16).

Only the training split is augmented: what a model is evaluated on stays what it was.
"""

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from fairjax.config import DataConfig
from fairjax.counterfactual import (
  CdaCounts,
  GenderSwap,
  augment_document,
  read_names,
  read_word_pairs,
)
from fairjax.data.sentences import split_sentences

NO_WORDS = 'none'
"""In the place of word pairs: names only (W-16)."""


def make_swap(data: DataConfig) -> GenderSwap:
  """The swap that the fields `cda_...` describe.

  Raises:
    UserError: a file of word pairs or names cannot be used.
  """
  pairs = None if data.cda_pairs == (NO_WORDS,) else read_word_pairs(*data.cda_pairs)
  names = read_names(data.cda_names) if data.cda_names else None
  return GenderSwap(pairs, names, data.seed, name_gender=data.cda_name_gender,
                    letters=data.cda_name_letters)


def cda_documents(
  texts: Iterable[str], data: DataConfig, counts: collections.Counter | None = None,
) -> Iterator[str]:
  """Training documents as `data.cda` wants them.

  Args:
    texts: documents of the source, read once.
    data: the fields `cda_...`.
    counts: is added to: cda_originals_left_out and cda_documents (one-sided: all are
      counterfactual), cda_neutral_left_out (sentences or documents), cda_swaps, cda_kept (words of
      pairs in names and compounds, and of lists of names that are none), cda_mixed_case.

  Raises:
    UserError: a file of word pairs or names cannot be used.
  """
  swap, found = make_swap(data), CdaCounts()
  counts = collections.Counter() if counts is None else counts
  for text in texts:
    documents = augment_document(
      text, swap, data.cda, unit=data.cda_unit, split=split_sentences, counts=found)
    counts['cda_originals_left_out'] += data.cda == 'one'
    counts['cda_documents'] += len(documents) - (data.cda == 'two')
    yield from documents
  counts.update(cda_neutral_left_out=found.dropped, cda_swaps=found.swaps,
                cda_kept=sum(found.kept.values()), cda_mixed_case=found.mixed_case)


def describe_cda(data: DataConfig) -> dict[str, Any]:
  """What the augmented documents depend on besides the source's."""
  return {'sided': data.cda, 'unit': data.cda_unit, 'swap': make_swap(data).fingerprint}
