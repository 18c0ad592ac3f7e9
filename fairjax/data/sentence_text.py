"""Documents as sentences for masked language models: held out, augmented, counted.

The files are read anew for every pass, so that no text is held in memory: once to count (and to
choose what is held out), once to encode, and once more for counterfactual documents, which come
after all others.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fairjax.counterfactual import CdaCounts, GenderSwap, augment_document
from fairjax.data.corpus import describe_files_of
from fairjax.data.documents import list_files, read_documents, split_sentences
from fairjax.errors import UserError

_HOLDOUT = 0x401D
_MOST_WORDS = 20  # of those that were swapped, and kept, in the counts


class Survey(NamedTuple):
  """Counts of the first pass."""

  train: int  # documents before augmentation, without those that are held out
  valid: int
  # Counts of `read_documents`, and `headings_left_out`: lines of WikiText headings.
  read: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Augmentation:
  """Counterfactual data augmentation (W-14 to W-16)."""

  swap: GenderSwap
  # 'one' (counterfactual sentences only; neutral ones are left out) or 'two' (all sentences and the
  # counterfactual ones; neutral ones once).
  sided: str


@dataclasses.dataclass(frozen=True)
class SentenceCorpus:
  """Documents to learn and to validate; a text of it is a document of one sentence a line."""

  data: tuple[str, ...]  # files to learn, see `list_files`
  # Files to validate; None: a seeded choice of the documents of `data` is held out.
  valid: tuple[str, ...] | None = None
  layout: str = 'lines'  # see `read_documents`, as the next field
  text_field: str = 'text'
  seed: int = 0  # of the choice
  # Only training text is augmented. Validation text is not, so that models with and without CDA
  # are compared on the same text.
  augmentation: Augmentation | None = None
  valid_share: float = 0.02  # of the documents, at least one; only without `valid`

  def describe(self, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of the texts; digests of unchanged files are taken from `saved`."""
    files = {'train': list_files(self.data)}
    if self.valid is not None:
      files['valid'] = list_files(self.valid)
    found: dict[str, Any] = {'layout': self.layout, 'files': describe_files_of(files, saved)}
    if self.layout in ('jsonl', 'csv', 'parquet'):
      found['text_field'] = self.text_field
    if self.valid is None:
      found['holdout'] = {'share': self.valid_share, 'seed': self.seed}
    if self.augmentation is not None:
      found['cda'] = {'sided': self.augmentation.sided, 'swap': self.augmentation.swap.fingerprint}
    return found

  def survey(self) -> Survey:
    """Reads everything once and counts."""
    counts: collections.Counter = collections.Counter()
    train = sum(1 for _ in self._counted(self.data, counts))
    if self.valid is not None:
      valid = sum(1 for _ in self._counted(self.valid, counts))
    elif train < 2:
      raise UserError(f'{train} document(s) are too few to hold some out: give --valid')
    else:
      valid = max(1, round(self.valid_share * train))
      train -= valid
    return Survey(train, valid, {name: int(n) for name, n in sorted(counts.items())})

  def texts(self, split: str, survey: Survey, cda: dict[str, Any] | None = None) -> Iterator[str]:
    """Documents of a split, read anew; `cda` gets settings and counts of the augmentation."""
    how = self.augmentation
    if split == 'valid' or how is None or how.sided == 'two':
      for document in self._documents(split, survey):
        yield '\n'.join(split_sentences(document))
    if split == 'train' and how is not None:
      yield from self._counterfactual(survey, how, {} if cda is None else cda)

  def _counterfactual(self, survey: Survey, how: Augmentation, cda: dict[str, Any]
                      ) -> Iterator[str]:
    counts, number = CdaCounts(), 0
    for document in self._documents('train', survey):
      found = augment_document(
        document, how.swap, how.sided, unit='sentence', split=split_sentences, counts=counts)
      for text in found[how.sided == 'two':]:
        number += 1
        yield '\n'.join(split_sentences(text))
    if not number:
      raise UserError('CDA found no gendered word in the text: nothing would change; leave --cda '
                      'out or give other --pairs or --names')
    cda.update({'sided': how.sided, 'swap': how.swap.fingerprint,
                 'counterfactual_documents': number, **counts.to_dict()})
    for name in ('words', 'kept'):
      cda[name] = dict(list(cda[name].items())[:_MOST_WORDS])

  def _documents(self, split: str, survey: Survey) -> Iterator[str]:
    """Documents of the files, without those that the other split has of them."""
    if self.valid is not None:
      yield from self._read(self.data if split == 'train' else self.valid)
      return
    held = np.zeros(survey.train + survey.valid, bool)
    chosen = np.random.default_rng([self.seed, _HOLDOUT]).permutation(len(held))
    held[chosen[:survey.valid]] = True
    wanted = split == 'valid'
    for document, out in zip(self._read(self.data), held, strict=True):
      if out == wanted:
        yield document

  def _read(self, files: tuple[str, ...], counts: collections.Counter | None = None
            ) -> Iterator[str]:
    return read_documents(
      files, layout=self.layout, text_field=self.text_field, counts=counts)

  def _counted(self, files: tuple[str, ...], counts: collections.Counter) -> Iterator[str]:
    for document in self._read(files, counts):
      counts['headings_left_out'] += sum(
        line.startswith('=') and not split_sentences(line) for line in document.split('\n'))
      yield document
