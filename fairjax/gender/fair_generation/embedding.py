"""An embedding with its gender direction, before and after hard debiasing (Y-06, Y-08)."""

import dataclasses
import hashlib
import importlib.resources
import itertools
import os
import pathlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from fairjax.counterfactual.word_forms import normal_form
from fairjax.errors import UserError
from fairjax.gender.fair_generation.completions import ProfessionList, read_professions
from fairjax.gender.trends import correlation
from fairjax.inputs import open_input
from fairjax.progress import Progress
from fairjax.tables import read_list

# Word embeddings. The content shows which of three forms a file has, plain or compressed:
#
# - word2vec binary: a line `COUNT WIDTH`, then the word, a space and WIDTH little-endian float32;
# - word2vec text (also fastText's `.vec`): the same first line, then lines of a word and numbers;
# - GloVe text: as above without the first line; the first word's line decides the width.
#
# Every row is checked for its width; the numbers of words that are not wanted are not read.

_MOST_WORD_BYTES = 1000
_MOST_LINE_BYTES = 1 << 22
_MOST_WIDTH = 1 << 16
_HEADER = re.compile(rb'(\d{1,12}) (\d{1,12})[ \t\r]*\n')
_NUMBER_BEGINS = frozenset(b'+-.0123456789nNiI')


@dataclasses.dataclass(frozen=True)
class WordVectors:
  """Vectors of the wanted words that a file has."""

  spelled: Mapping[str, str]  # word as asked -> word of the file, of those that were found
  rows: Mapping[str, int]  # word of the file -> its row in `units`
  units: np.ndarray  # `[N, D]` float64, vectors divided by their length
  format: str  # 'word2vec binary', 'word2vec text' or 'GloVe text'
  words_in_file: int
  fingerprint: str  # SHA-256 (hex) of the words that were kept and their numbers
  path: str

  def __contains__(self, word: str) -> bool:
    return word in self.spelled

  def unit(self, word: str) -> np.ndarray:
    """`[D]` float64 of length 1, of a word as it was asked for."""
    return self.units[self.rows[self.spelled[word]]]


def spellings(word: str, multi_word: str = 'skip') -> list[str]:
  """Names under which a word is searched, in order; the first that the file has is taken."""
  plain = normal_form(word)
  joined = re.sub(r'[ -]', '_', plain)
  names = [word, plain, joined, plain.lower(), joined.lower()]
  if multi_word == 'head' and '_' in joined.strip('_'):
    names.append(joined.strip('_').lower().rpartition('_')[2])
  return list(dict.fromkeys(names))


def load_word_vectors(
  path: str | os.PathLike, words: Iterable[str], *, multi_word: str = 'skip',
  log: Callable[[str], None] | None = None,
) -> WordVectors:
  """Reads the vectors of some words; memory is that of these words, whatever the file's size."""
  path, asked = pathlib.Path(path), list(dict.fromkeys(words))
  names = {word: spellings(word, multi_word) for word in asked}
  wanted = {name.encode('utf-8') for found in names.values() for name in found}
  kept: dict[bytes, np.ndarray] = {}
  kind, count, width = _sniff(path)
  read = _read_binary if kind == 'word2vec binary' else _read_text
  rows = 0
  with open_input(path) as file, Progress('reading embeddings', count, unit='words',
                                          log=log) as progress:
    for row in read(file, path, count, width, wanted):
      rows += 1
      progress.add()
      if row is not None:
        where, word, numbers = row
        if word in kept:
          raise UserError(f"{where}: the word '{_shown(word)}' occurs twice: remove one")
        if not 0 < np.linalg.norm(numbers.astype(np.float64)) < np.inf:
          raise UserError(f"{where}: '{_shown(word)}' has only zeros, or a number that is not "
                          'finite: it has no direction, remove the row')
        kept[word] = np.array(numbers)
  if count is not None and rows != count:
    raise UserError(f'{path}: its first line promises {count} words, it holds {rows}: copy it '
                    'again, or fix the first line')
  spelled = {}
  for asked_for, possible in names.items():  # the first spelling that the file has
    name = next((n for n in possible if n.encode('utf-8') in kept), None)
    if name is not None:
      spelled[asked_for] = name
  order = list(dict.fromkeys(spelled.values()))
  vectors = np.array([kept[n.encode('utf-8')] for n in order], np.float64).reshape(-1, width)
  digest = hashlib.sha256()
  for name, vector in zip(order, vectors, strict=True):
    digest.update(name.encode('utf-8') + b'\0' + vector.tobytes())
  return WordVectors(
    spelled=spelled, rows={name: i for i, name in enumerate(order)},
    units=vectors / np.linalg.norm(vectors, axis=1, keepdims=True), format=kind,
    words_in_file=rows, fingerprint=digest.hexdigest(), path=str(path))


def _sniff(path: pathlib.Path) -> tuple[str, int | None, int]:
  """(format, number of words if the file says it, width)."""
  with open_input(path, what='embeddings') as file:
    line = file.readline(_MOST_LINE_BYTES)
    header = _HEADER.fullmatch(line)
    if not header:
      # From the right, as the first token may hold spaces too; a token may be a number itself.
      fields = line.rstrip(b' \r\n').split(b' ')
      trailing = itertools.takewhile(_is_number, reversed(fields))
      width = min(sum(1 for _ in trailing), len(fields) - 1)
      if not line.endswith(b'\n') or not 1 <= width <= _MOST_WIDTH:
        raise UserError(f'{path}:1: neither "COUNT WIDTH" (word2vec) nor a word and its numbers '
                        '(GloVe), ended by a line feed')
      return 'GloVe text', None, width
    count, width = int(header[1]), int(header[2])
    if not count or not 1 <= width <= _MOST_WIDTH:
      raise UserError(f'{path}:1: {count} words of width {width}: at least one word is needed, and '
                      f'a width from 1 to {_MOST_WIDTH}')
    begin = file.read(_MOST_WORD_BYTES + 4 * width)
  numbers = begin[begin.find(b' ') + 1:][:max(4 * width, 16)]
  # float32 numbers are full of control characters and of bytes that are no UTF-8.
  text = not re.search(rb'[\x00-\x08\x0b\x0c\x0e-\x1f]', numbers)
  if text:
    try:
      numbers.decode('utf-8')
    except UnicodeDecodeError as e:
      text = e.start >= len(numbers) - 3  # the last character may be cut
  return ('word2vec text' if text else 'word2vec binary'), count, width


def _read_text(
  file: IO[bytes], path: pathlib.Path, count: int | None, width: int, wanted: set[bytes],
) -> Iterator[tuple[str, bytes, np.ndarray] | None]:
  """Yields (place, word, its numbers) of every line; None if the word is not wanted."""
  if count is not None:
    file.readline(_MOST_LINE_BYTES)
  number, blank = 0 if count is None else 1, 0
  while line := file.readline(_MOST_LINE_BYTES):
    number += 1
    where = f'{path}:{number}'
    if not line.strip():  # at the end, if at all
      blank = blank or number
      continue
    if blank:
      raise UserError(f'{path}:{blank}: the line is empty, but rows follow it: remove it')
    if not line.endswith(b'\n'):
      raise UserError(f'{where}: the last line does not end with a line feed, so it may be cut '
                      'off: copy the file again, or end the line')
    # From the right: words of GloVe's larger tables hold spaces, or are one that was stripped.
    word, *numbers = line.rstrip(b' \r\n').rsplit(b' ', width)
    if len(numbers) != width or not all(n and n[0] in _NUMBER_BEGINS
                                                    for n in (numbers[0], numbers[-1])) or (
        b' ' in word and _is_number(word.rpartition(b' ')[2])):
      raise UserError(f'{where}: not a word and {width} numbers, each after one space: the line '
                      'is cut off or of another width')
    if word not in wanted:
      yield None
      continue
    try:
      yield where, word, np.array(numbers).astype(np.float32)
    except ValueError:
      raise UserError(f"{where}: '{_shown(word)}' has something that is no number") from None


def _read_binary(
  file: IO[bytes], path: pathlib.Path, count: int | None, width: int, wanted: set[bytes],
) -> Iterator[tuple[str, bytes, np.ndarray] | None]:
  """Yields (place, word, its numbers) of every row; None if the word is not wanted."""
  offset, buffer, at, need = len(file.readline(_MOST_LINE_BYTES)), b'', 0, 4 * width
  row_bytes = _MOST_WORD_BYTES + 2 + need
  for _ in range(count or 0):
    if len(buffer) - at < row_bytes:
      buffer, at = buffer[at:] + file.read(max(1 << 20, row_bytes)), 0
    if buffer[at:at + 1] == b'\n':  # some writers end each row with a line feed
      at, offset = at + 1, offset + 1
    where, end = f'{path}, byte {offset}', buffer.find(b' ', at, at + _MOST_WORD_BYTES + 1)
    if len(buffer) - at < need or end < 0 or len(buffer) - end - 1 < need:
      if len(buffer) - at >= row_bytes - 1:
        raise UserError(f'{where}: no word begins here: the rows are not of width {width}')
      raise UserError(f'{where}: the file is truncated here: copy it again')
    word = buffer[at:end]
    if word in wanted:
      yield where, word, np.frombuffer(buffer, '<f4', width, end + 1)
    else:
      yield None
    offset, at = offset + end + 1 + need - at, end + 1 + need
  if rest := (buffer[at:] + file.read(16)).strip(b'\n'):
    raise UserError(f'{path}, byte {offset}: {len(rest)} or more bytes after the last of {count} '
                    'words: the first line says too little, or the rows are of another width')


def _is_number(text: bytes) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True


def _shown(word: bytes) -> str:
  return word.decode('utf-8', 'replace')


# The gender direction of an embedding (Bolukbasi et al. 2016, section 5.1; Y-06).
#
# Letters: P pairs, D width, C components. Female is positive; only the two genders of the pairs
# exist for this measure.

@dataclasses.dataclass(frozen=True)
class GenderSubspace:
  """A direction with numbers to judge it by."""

  direction: np.ndarray  # `[D]` float64 of length 1: g, the first component; female is positive
  explained: np.ndarray  # `[C]` float64, share of the pairs' variance by component, descending
  pairs: tuple[tuple[str, str], ...]  # (female, male) as asked, of those that were used
  # Pairs of which the file lacks a word, with these words
  missing: tuple[tuple[str, str, tuple[str, ...]], ...]
  agreeing: int  # pairs whose female word is above its male one on g

  def bias(self, unit: np.ndarray) -> float:
    """b(v) = w . g (Y-06), in [-1, 1], of a vector `[D]` of length 1."""
    return float(np.clip(unit @ self.direction, -1, 1))

  def to_dict(self) -> dict[str, Any]:
    """Fields as plain JSON types, without the direction."""
    return {
      'definition': 'Y-06', 'sign': 'female is positive', 'n_pairs': len(self.pairs),
      'pairs': [list(p) for p in self.pairs],
      'pairs_missing': [{'pair': [f, m], 'words_missing': list(words)}
                        for f, m, words in self.missing],
      'explained_variance': self.explained.tolist(),
      'pairs_with_female_above': self.agreeing}


def gender_subspace(vectors: WordVectors, pairs: Sequence[tuple[str, str]]) -> GenderSubspace:
  """First principal component of the pairs, each centred on its own mean.

  The 2P rows are w - m and -(w - m) for both words of a pair with mean m; their singular vectors
  are the components, squared singular values the variance. The sign is that with which the mean
  over pairs of (female - male) . g is positive.
  """
  used, missing = [], []
  for female, male in pairs:
    absent = tuple(w for w in (female, male) if w not in vectors)
    if absent:
      missing.append((female, male, absent))
    else:
      used.append((female, male))
  if not used:
    raise UserError(f'{vectors.path}: none of the {len(pairs)} definitional pairs is there: give '
                    'others with --pairs')
  females = np.stack([vectors.unit(f) for f, _ in used])
  males = np.stack([vectors.unit(m) for _, m in used])
  half = (females - males) / 2
  _, singular, components = np.linalg.svd(np.concatenate([half, -half]), full_matrices=False)
  variance = singular[:len(half)] ** 2  # the rows have a rank of at most P
  if variance[0] <= 1e-20:
    raise UserError(f'{vectors.path}: both words of every definitional pair have one vector: no '
                    'direction')
  sign = (half @ components[0]).mean()
  if abs(sign) < 1e-9:
    raise UserError(f'{vectors.path}: the definitional pairs do not agree which side of their '
                    'first component is female: give pairs of one order (female first) with '
                    '--pairs')
  direction = components[0] * np.sign(sign)
  return GenderSubspace(
    direction=direction, explained=variance / variance.sum(), pairs=tuple(used),
    missing=tuple(missing), agreeing=int(((females - males) @ direction > 0).sum()))


# Hard debiasing of an embedding (Bolukbasi et al. 2016, section 6, step 2a; Y-08).
#
# With exact neutralising b of every neutral word is 0: what remains of a table of biases comes from
# the gender-specific words alone.

_LEAST = 1e-9  # a part of a unit vector that is shorter has no direction


@dataclasses.dataclass(frozen=True)
class Debiased:
  """What hard debiasing made of some words."""

  vectors: WordVectors  # as given, with the new `units`
  specific: frozenset[str]  # spellings in the file that were not neutralised
  equalised: tuple[tuple[str, str], ...]  # pairs as asked
  skipped: tuple[tuple[str, str, str], ...]  # pairs that were not equalised, with the reason

  def is_specific(self, word: str) -> bool:
    """Whether a word, as it was asked for, is gender-specific."""
    return self.vectors.spelled[word] in self.specific

  def to_dict(self) -> dict[str, Any]:
    """Counts and reasons as plain JSON types."""
    return {
      'neutralised': len(self.vectors.rows) - len(self.specific),
      'gender_specific': len(self.specific), 'pairs_equalised': len(self.equalised),
      'pairs_skipped': [{'pair': [a, b], 'reason': reason} for a, b, reason in self.skipped]}


def hard_debias(
  vectors: WordVectors, direction: np.ndarray, *, specific: Collection[str],
  pairs: Sequence[tuple[str, str]],
) -> Debiased:
  """Neutralises all loaded words but the gender-specific ones, then equalises pairs.

  Words of equalised pairs are gender-specific too; case, underscores and spaces do not matter. A
  pair is skipped, and listed, if a word is not loaded, if both are spelled alike in the file, if a
  word is in an earlier pair (one vector cannot serve two), or if both lie equally far along g.
  """
  known = {_plain(word) for word in specific}
  names = {found for asked, found in vectors.spelled.items()
           if _plain(asked) in known or _plain(found) in known}
  units, equalised, skipped = vectors.units.copy(), [], []
  taken: set[str] = set()
  for pair in pairs:
    absent = [w for w in pair if w not in vectors]
    first, second = (vectors.spelled.get(w, '') for w in pair)
    rows = [vectors.rows.get(name, 0) for name in (first, second)]
    if absent:
      skipped.append((*pair, f"not in the file: {', '.join(absent)}"))
    elif first == second:
      skipped.append((*pair, f"both are '{first}' in the file"))
    elif first in taken or second in taken:
      skipped.append((*pair, f"'{first if first in taken else second}' is in an earlier pair"))
    elif (found := equalise(units[rows[0]], units[rows[1]], direction)) is None:
      skipped.append((*pair, 'both lie equally far along g'))
    else:
      units[rows] = found
      taken |= {first, second}
      equalised.append(pair)
  neutral = [row for word, row in vectors.rows.items() if word not in names | taken]
  units[neutral] = neutralise(units[neutral], direction)
  return Debiased(dataclasses.replace(vectors, units=units), frozenset(names | taken),
                  tuple(equalised), tuple(skipped))


def neutralise(units: np.ndarray, direction: np.ndarray) -> np.ndarray:
  """Vectors `[N, D]` of length 1 without their part along g, of length 1 again; g itself is 0."""
  rest = units - np.outer(units @ direction, direction)
  norms = np.linalg.norm(rest, axis=1, keepdims=True)
  return np.where(norms > _LEAST, rest / np.maximum(norms, _LEAST), 0)


def equalise(
  first: np.ndarray, second: np.ndarray, direction: np.ndarray,
) -> tuple[np.ndarray, np.ndarray] | None:
  """Both vectors `[D]` of a pair with equal parts off g and opposite ones along it, of length 1.

  With m the mean of the pair, y its part off g: y +- sqrt(1 - |y|^2) g, the sign being that of the
  word's own distance from m along g. None if both lie equally far along g.
  """
  along = (first - second) @ direction
  if abs(along) <= _LEAST:
    return None
  mean = (first + second) / 2
  shared = mean - (mean @ direction) * direction
  part = np.sign(along) * np.sqrt(max(0.0, 1 - shared @ shared)) * direction
  return shared + part, shared - part


def _plain(word: str) -> str:
  """Lower case, with spaces for underscores and hyphens."""
  return word.lower().replace('_', ' ').replace('-', ' ')


@dataclasses.dataclass(frozen=True)
class GenderedEmbedding:
  """What the measures need of an embedding."""

  vectors: WordVectors  # of professions and pairs
  subspace: GenderSubspace
  debiased: Debiased
  professions: ProfessionList
  multi_word: str  # how words of several words are looked up
  pairs_list: str  # the source of the definitional pairs

  def biases(self, *, debiased: bool = False) -> dict[str, float]:
    """Bias b of every profession of the list that the file has, in [-1, 1]; female is positive."""
    if not debiased:
      return {row['word']: row['bias'] for row in self.table()}
    # Exact debiasing leaves nothing of the others (Y-08); rounding leaves about 1e-16.
    return {row['word']: row['bias_debiased'] if row['gender_specific'] else 0.0
            for row in self.table()}

  def table(self) -> list[dict[str, Any]]:
    """Bias b of the professions that the file has, before and after, most male first."""
    rows = [{
      'word': name, 'spelled': self.vectors.spelled[name],
      'bias': self.subspace.bias(self.vectors.unit(name)),
      'bias_debiased': self.subspace.bias(self.debiased.vectors.unit(name)),
      'gender_specific': self.debiased.is_specific(name), **profession.scores}
      for name, profession in self.professions.professions.items() if name in self.vectors]
    return sorted(rows, key=lambda row: row['bias'])

  def to_dict(self) -> dict[str, Any]:
    """Everything, as plain JSON types."""
    vectors, names = self.vectors, self.professions.professions
    table = self.table()
    return {
      'embeddings': vectors.path, 'format': vectors.format, 'width': vectors.units.shape[1],
      'words_in_file': vectors.words_in_file, 'fingerprint': vectors.fingerprint,
      'pairs_list': self.pairs_list, 'subspace': self.subspace.to_dict(),
      'cosine_he_she': (float(vectors.unit('he') @ vectors.unit('she'))
                        if 'he' in vectors and 'she' in vectors else None),
      'debias': self.debiased.to_dict(),
      'professions': {
        'list': self.professions.source, 'n': len(names), 'found': len(table),
        'policy': f'several words: {self.multi_word}; other spellings: underscores, lower case',
        'missing': [n for n in names if n not in vectors],
        'respelled': {n: vectors.spelled[n] for n in names if vectors.spelled.get(n, n) != n},
        'table': table},
      'summary': bias_summary(table)}


def load_embedding(
  path: str | os.PathLike, *, professions: ProfessionList | None = None,
  pairs: str | os.PathLike | None = None, equalize: str | os.PathLike | None = None,
  specific: str | os.PathLike | None = None, multi_word: str = 'skip',
  log: Callable[[str], None] | None = None,
) -> GenderedEmbedding:
  """Reads an embedding for a list of professions, finds g and debiases.

  Lists are files; None takes the built-in professions, the ten definitional pairs of Bolukbasi et
  al. 2016 (female first), the built-in pairs to equalise, and as gender-specific words those of the
  built-in pairs with the professions that the lists call female or male.
  """
  own = read_professions()
  professions = professions or own
  built_in = built_in_pairs()
  definitional = (read_pairs(pairs, 'list of definitional pairs') if pairs else
                  [pair for pair, marks in built_in.items() if 'definitional' in marks])
  equal = (read_pairs(equalize, 'list of pairs to equalise') if equalize else
           [pair for pair, marks in built_in.items() if 'names' not in marks])
  if specific:
    known = read_words(specific, 'list of gender-specific words')
  else:
    known = [*(w for pair in built_in for w in pair), *own.gendered, *professions.gendered]
  wanted = [*professions.professions, *(w for pair in (*definitional, *equal) for w in pair),
            'he', 'she']
  vectors = load_word_vectors(path, wanted, multi_word=multi_word, log=log)
  if not any(name in vectors for name in professions.professions):
    raise UserError(f'{path}: none of the {len(professions.professions)} professions is there: '
                    'give an embedding of English words, or another list with --professions')
  subspace = gender_subspace(vectors, definitional)
  if 'he' in vectors and 'she' in vectors and subspace.direction @ (
      vectors.unit('she') - vectors.unit('he')) < 0:
    raise UserError(f"{pairs or path}: by the definitional pairs 'she' is on the male side of "
                    "'he': write the female word of each pair first")
  debiased = hard_debias(vectors, subspace.direction, specific=known, pairs=equal)
  return GenderedEmbedding(vectors, subspace, debiased, professions, multi_word,
                           os.fspath(pairs) if pairs else 'those of Bolukbasi et al. 2016')


def read_words(path: str | os.PathLike, what: str) -> list[str]:
  """Words of a JSON list of texts, or one a line; equal ones once."""
  words = []
  for entry, where in read_list(path, what):
    if not isinstance(entry, str) or not entry.strip():
      raise UserError(f'{where}: {entry!r} is no word')
    words.append(entry.strip())
  return list(dict.fromkeys(words))


def read_pairs(path: str | os.PathLike, what: str) -> list[tuple[str, str]]:
  """Pairs of words: JSON lists of two texts, or two words a line (one space or tab between)."""
  pairs: list[tuple[str, str]] = []
  for entry, where in read_list(path, what):
    found = entry.split() if isinstance(entry, str) else entry
    if not isinstance(found, list) or len(found) != 2 or not all(
        isinstance(w, str) and w.strip() for w in found):
      raise UserError(f'{where}: {entry!r} is no pair of words')
    first, second = (w.strip() for w in found)
    if first == second:
      raise UserError(f"{where}: '{first}' is paired with itself")
    if (first, second) in pairs or (second, first) in pairs:
      raise UserError(f"{where}: the pair '{first}', '{second}' is given twice")
    pairs.append((first, second))
  return pairs


def built_in_pairs() -> dict[tuple[str, str], frozenset[str]]:
  """(female, male) -> its marks: `definitional`, and `names` if it is not equalised."""
  asset = importlib.resources.files(__package__) / 'assets' / 'gendered_pairs.tsv'
  with importlib.resources.as_file(asset) as file:
    rows = [line.split('\t') for line, _ in read_list(file, 'built-in pairs')]
  return {(row[0], row[1]): frozenset(row[2:]) for row in rows}


def bias_summary(table: list[dict[str, Any]]) -> dict[str, Any]:
  """Means and extremes of b, of gender-specific and other professions, before and after."""
  found: dict[str, Any] = {}
  parts = {'all': table, 'gender_specific': [r for r in table if r['gender_specific']],
           'neutral': [r for r in table if not r['gender_specific']]}
  for name, rows in parts.items():
    part: dict[str, Any] = {'n': len(rows)}
    for column in ('bias', 'bias_debiased') if rows else ():
      values = np.array([r[column] for r in rows])
      part[column] = {
        'mean': float(values.mean()), 'mean_absolute': float(np.abs(values).mean()),
        'sd': float(values.std(ddof=1)) if len(values) > 1 else None,
        'min': float(values.min()), 'max': float(values.max())}
    found[name] = part
  scored = [r for r in table if 'stereotypical' in r]
  rank = correlation(*(np.array([r[column] for r in scored], np.float64)
                       for column in ('bias', 'stereotypical')), ranks=True)
  found['stereotype_correlation'] = None if rank['low'] is None else {
    'spearman': -rank['value'], 'n': rank['n'], 'low': -rank['high'], 'high': -rank['low']}
  return found
