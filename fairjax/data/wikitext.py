"""The official files of WikiText-2 and WikiText-103: find, unpack, or fetch them.

Source: Merity et al. 2016, "Pointer Sentinel Mixture Models"; text of Wikipedia, CC BY-SA. Counts
of articles: definitions H-41. `tfds_wikitext` makes TFDS datasets of these files.
"""

import collections
import dataclasses
import hashlib
import os
import pathlib
import shutil
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping

from fairjax.data.documents import read_documents
from fairjax.errors import UserError
from fairjax.files import atomic_write, file_sha256, write_json

SPLITS = ('train', 'valid', 'test')
_BLOCK = 1 << 20
MOST_UNPACKED_BYTES = 2 << 30  # four times the largest official file
_TIMEOUT_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class WikitextCorpus:
  """Published facts about an official corpus."""

  stem: str  # of its zip and of the folder in it, e.g. `wikitext-103`
  articles: Mapping[str, int]  # published numbers by split
  tokens: Mapping[str, int]  # words with one <eos> for every line, blank ones too
  address: str  # of the original zip of Merity et al. 2016
  sha256: str


# Nobody of fairjax has had these zips to compare. The digests are those that public code checks its
# own downloads against: apple/mlx-data (wikitext.py) and DataDeps of Julia's CorpusLoaders; of
# wikitext103 also a project that recorded it from the address below. A wrong digest can only refuse
# a file; data.sha256 replaces it. Sizes in bytes are published by none of them: the size of what
# was fetched is written beside it.
CORPORA = {
  'wikitext103': WikitextCorpus(
    'wikitext-103', {'train': 28475, 'valid': 60, 'test': 60},
    {'train': 103_227_021, 'valid': 217_646, 'test': 245_569},
    'https://wikitext.smerity.com/wikitext-103-v1.zip',
    '242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590'),
  'wikitext2': WikitextCorpus(
    'wikitext-2', {'train': 600, 'valid': 60, 'test': 60},
    {'train': 2_088_628, 'valid': 217_646, 'test': 245_569},
    'https://wikitext.smerity.com/wikitext-2-v1.zip',
    '92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c'),
}


def find_wikitext(
  name: str, folder: str | os.PathLike, *, unpack_to: str | os.PathLike, sha256: str = '',
) -> dict[str, pathlib.Path]:
  """Split -> path of wiki.{train,valid,test}.tokens (or .gz) in a folder or in its zip."""
  folder, stem = pathlib.Path(folder).expanduser(), CORPORA[name].stem
  for place in (folder, folder / stem):
    found = {split: path for split in SPLITS for suffix in ('', '.gz')
             if (path := place / f'wiki.{split}.tokens{suffix}').is_file()}
    if len(found) == len(SPLITS):
      return found
    if found:
      missing = ' and '.join(f'wiki.{s}.tokens' for s in SPLITS if s not in found)
      raise UserError(f'{place} lacks {missing} (or .gz) of {name}: add the file(s)')
  archive = folder / f'{stem}-v1.zip'
  if not archive.is_file():
    raise UserError(f'no files of {name} in {folder}: data.manual_dir must hold '
                    f'wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens (or .gz), or '
                    f'{archive.name}; or set data.download=True')
  if sha256:
    _check_digest(archive, sha256)
  return _unpack(archive, pathlib.Path(unpack_to))


def fetch_wikitext(
  name: str, folder: str | os.PathLike, *, sha256: str = '',
  log: Callable[[str], None] = print,
) -> pathlib.Path:
  """Fetches the zip of a corpus into a folder, once; it appears only if its digest is right."""
  folder = pathlib.Path(folder)
  address, expected = CORPORA[name].address, sha256 or CORPORA[name].sha256
  path = folder / f'{CORPORA[name].stem}-v1.zip'
  if path.is_file():
    _check_digest(path, expected)
    return path
  log(f'[data] fetching {address}')
  digest, size = hashlib.sha256(), 0
  try:
    with urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as answer, (  # noqa: S310  ours
        atomic_write(path)) as file:
      while block := answer.read(_BLOCK):
        file.write(block)
        digest.update(block)
        size += len(block)
      if digest.hexdigest() != expected:
        raise UserError(f'{address} has SHA-256 {digest.hexdigest()} ({size:,} bytes), not '
                        f'{expected}: nothing is kept; if this file is the right one, set '
                        'data.sha256')
  except (urllib.error.URLError, TimeoutError, ConnectionError) as e:
    raise UserError(f'{address} cannot be fetched ({getattr(e, "reason", e)}): fetch it elsewhere '
                    'and set data.manual_dir to its folder') from None
  write_json(path.with_suffix('.json'), {'address': address, 'bytes': size, 'sha256': expected})
  log(f'[data] {path.name}: {size:,} bytes, SHA-256 as expected')
  return path


def count_wikitext(name: str, split: str, path: str | os.PathLike) -> tuple[dict[str, int], str]:
  """Counts a file; see `compare_wikitext`."""
  counts: collections.Counter = collections.Counter()
  for text in read_documents([path], layout='wikitext', counts=counts):
    counts['words'] += len(text.split())
  return compare_wikitext(name, split, counts)


def compare_wikitext(
  name: str, split: str, counts: Mapping[str, int]) -> tuple[dict[str, int], str]:
  """Counts of a split, and a line that compares them with the published numbers."""
  words = counts['words']
  found = {'articles': counts['documents'], 'lines': counts['lines'], 'words': words,
           'tokens': words + counts['lines']}
  corpus, differences = CORPORA[name], []
  for kind, published in (('articles', corpus.articles[split]), ('tokens', corpus.tokens[split])):
    if found[kind] != published:
      differences.append(f'{published:,} {kind}')
  line = (f'{name} {split}: {found["articles"]:,} articles, {found["lines"]:,} lines, {words:,} '
          f'words ({found["tokens"]:,} tokens with <eos>)')
  return found, line + (f': NOT the official file, which has {" and ".join(differences)}'
                        if differences else ', as published')


def _check_digest(path: pathlib.Path, expected: str) -> None:
  found = file_sha256(path)
  if found != expected:
    raise UserError(f'{path} has SHA-256 {found}, not {expected}: it is another file; fetch it '
                    'again or set data.sha256')


def _unpack(archive: pathlib.Path, folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """Writes the three members; each file appears when its checksum (CRC) was right."""
  found = {}
  try:
    with zipfile.ZipFile(archive) as file:
      members = {pathlib.PurePosixPath(m.filename).name: m for m in file.infolist()
                 if not m.is_dir()}
      for split in SPLITS:
        name = f'wiki.{split}.tokens'
        if name not in members:
          raise UserError(f'{archive} holds no {name}: it is another zip (the raw variant is not '
                          'tokenised); fetch wikitext-*-v1.zip')
        if members[name].file_size > MOST_UNPACKED_BYTES:
          raise UserError(f'{archive}: {name} would have {members[name].file_size:,} bytes: it is '
                          'not the official zip; fetch it again')
        found[split] = folder / name
        if found[split].is_file() and found[split].stat().st_size == members[name].file_size:
          continue
        with file.open(members[name]) as source, atomic_write(found[split]) as target:
          shutil.copyfileobj(source, target, _BLOCK)
  except (zipfile.BadZipFile, zlib.error, EOFError) as e:
    raise UserError(f'{archive} is damaged ({e}): fetch it again') from None
  return found
