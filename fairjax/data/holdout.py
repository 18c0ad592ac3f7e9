"""The last documents of a corpus as validation and test: `data.holdout`.

Huang et al. 2020 hold out the last 10,000 articles of WMT-19, 1,000 to validate and 9,000 to test
(H-41). The order within them is not said: here valid comes first, then test, as they stand in the
files, and nothing is shuffled before. One pass counts the documents and keeps the last ones in a
ring, so that memory holds no more than these.

    FOLDER/valid.jsonl, test.jsonl   one JSON string a line
    FOLDER/holdout.json              what `Holdout` holds; written last
"""

import collections
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping

from fairjax.errors import UserError
from fairjax.files import atomic_write, write_json

_MANIFEST = 'holdout.json'


@dataclasses.dataclass(frozen=True)
class Holdout:
  """The split of a corpus.

  Attributes:
    folder: where the held-out documents lie.
    train, valid, test: numbers of documents, in this order in the corpus.
    sha256: of valid.jsonl and test.jsonl.
    counts: what the reader of all files counted, see `read_documents`.
  """

  folder: pathlib.Path
  train: int
  valid: int
  test: int
  sha256: tuple[str, str]
  counts: Mapping[str, int]

  def texts(self, split: str, corpus: Iterable[str]) -> Iterator[str]:
    """Documents of a split; `corpus`, all documents in order, is read for `train` only."""
    if split == 'train':
      return itertools.islice(corpus, self.train)
    return self._read(split)

  def _read(self, split: str) -> Iterator[str]:
    path, expected = self.folder / f'{split}.jsonl', self.sha256[split == 'test']
    if not path.is_file() or _sha256(path) != expected:
      raise UserError(f'{path} is missing or damaged: delete {self.folder} to make it anew')
    with path.open(encoding='utf-8') as file:
      for line in file:
        yield json.loads(line)


def make_holdout(
  corpus: Iterable[str], sizes: tuple[int, int], folder: str | os.PathLike, *,
  counts: Mapping[str, int] | None = None,
) -> Holdout:
  """Splits off the last documents; a folder that is complete is only read.

  Args:
    corpus: all documents in order; read once, to its end.
    sizes: (valid, test) documents.
    folder: for the held-out documents.
    counts: grows while `corpus` is read; kept with the result.

  Raises:
    UserError: the corpus is too small, or the folder holds another split.
  """
  folder, (valid, test) = pathlib.Path(folder), sizes
  path = folder / _MANIFEST
  if path.is_file():
    try:
      values = json.loads(path.read_text(encoding='utf-8'))
      found = Holdout(folder, values['train'], values['valid'], values['test'],
                      tuple(values['sha256']), values['counts'])
    except (ValueError, KeyError, TypeError) as e:
      raise UserError(f'{path} is damaged ({e}): delete {folder} to make it anew') from None
    if (found.valid, found.test) != (valid, test):
      raise UserError(f'{folder} holds out {found.valid} and {found.test} documents, not {valid} '
                      f'and {test}: delete it to make it anew')
    return found
  last, number = collections.deque(maxlen=valid + test), 0
  for text in corpus:
    last.append(text)
    number += 1
  if number <= valid + test:
    raise UserError(f'the files of data.train hold {number} documents, and data.holdout='
                    f'({valid}, {test}) leaves none to train on: lower it or add files')
  digests = []
  for split, texts in (('valid', itertools.islice(last, valid)),
                       ('test', itertools.islice(last, valid, None))):
    with atomic_write(folder / f'{split}.jsonl') as file:
      for text in texts:
        file.write(json.dumps(text).encode() + b'\n')
    digests.append(_sha256(folder / f'{split}.jsonl'))
  made = Holdout(
    folder, number - valid - test, valid, test, tuple(digests), dict(counts or {}))
  write_json(path, {k: v for k, v in dataclasses.asdict(made).items() if k != 'folder'})
  return made


def _sha256(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
