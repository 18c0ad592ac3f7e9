"""From documents to what is learned: held-out ones, counterfactual ones, sentences; all counted."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairjax.counterfactual.cda import CdaCounts, GenderSwap, augment_document
from fairjax.errors import UserError

Document = list[str]
_HOLDOUT = 0x401D


class Corpus(NamedTuple):
  """Documents, each a list of sentences.

  Attributes:
    train: to learn, counterfactual ones behind all others, from `train[source['train_documents']]`
      on where both are learned.
    valid: never augmented, so that models with and without CDA are compared on the same text.
    source: what was done, for the card: counts and settings.
  """

  train: list[Document]
  valid: list[Document]
  source: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Augmentation:
  """Counterfactual data augmentation (W-14 to W-16).

  Attributes:
    swap: makes a counterfactual.
    sided: 'one' (counterfactual sentences only; neutral ones are left out) or 'two' (all sentences
      and the counterfactual ones; neutral ones once).
  """

  swap: GenderSwap
  sided: str


def make_corpus(
  train: Iterable[str], valid: Iterable[str] | None, *, split: Callable[[str], list[str]],
  seed: int, valid_share: float = 0.02, augmentation: Augmentation | None = None,
) -> Corpus:
  """Splits documents and adds counterfactual ones.

  Args:
    train: documents.
    valid: documents; None: a seeded choice of the training documents is held out.
    split: document -> its sentences.
    seed: of the choice.
    valid_share: of the documents, at least one; only without `valid`.
    augmentation: None: none.

  Raises:
    UserError: too few documents, or one-sided CDA of a text without a gendered word.
  """
  train = list(train)
  if valid is None:
    if len(train) < 2:
      raise UserError(f'{len(train)} document(s) are too few to hold some out: give --valid')
    count = max(1, round(valid_share * len(train)))
    held = np.zeros(len(train), bool)
    held[np.random.default_rng([seed, _HOLDOUT]).permutation(len(train))[:count]] = True
    valid = [d for d, out in zip(train, held.tolist(), strict=True) if out]
    train = [d for d, out in zip(train, held.tolist(), strict=True) if not out]
  valid = list(valid)
  source: dict[str, Any] = {'train_documents': len(train), 'valid_documents': len(valid)}
  if augmentation is not None:
    train, source['cda'] = _augmented(train, augmentation, split)
  return Corpus([split(d) for d in train], [split(d) for d in valid], source)


def _augmented(documents: Sequence[str], augmentation: Augmentation,
               split: Callable[[str], list[str]]) -> tuple[list[str], dict[str, Any]]:
  """The documents that are learned, and what was done.

  A counterfactual document never stands beside its original: in a row that holds both, a model
  could read off what is masked.
  """
  counts, sided = CdaCounts(), augmentation.sided
  originals, counterfactual = [], []
  for document in documents:
    found = augment_document(
      document, augmentation.swap, sided, unit='sentence', split=split, counts=counts)
    if sided == 'two':
      originals.append(found.pop(0))
    counterfactual += found
  if not counterfactual:
    raise UserError('CDA found no gendered word in the text: nothing would change; leave --cda out '
                    'or give other --pairs or --names')
  told = counts.to_dict()
  told['words'] = dict(list(told['words'].items())[:20])
  told['kept'] = dict(list(told['kept'].items())[:20])
  return originals + counterfactual, {
    'sided': sided, 'swap': augmentation.swap.fingerprint,
    'counterfactual_documents': len(counterfactual), **told}
