"""An embedding with its gender direction, before and after hard debiasing (Y-06, Y-08)."""

import dataclasses
import importlib.resources
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from fairjax.errors import UserError
from fairjax.fair_generation.debias import Debiased, bias_table, hard_debias
from fairjax.fair_generation.professions import ProfessionList, read_professions
from fairjax.fair_generation.subspace import GenderSubspace, gender_subspace
from fairjax.fair_generation.word_lists import read_list, read_pairs, read_words
from fairjax.fair_generation.word_vectors import WordVectors, load_word_vectors


@dataclasses.dataclass(frozen=True)
class GenderedEmbedding:
  """What the measures need of an embedding.

  Attributes:
    vectors: unit vectors of professions and pairs.
    subspace: the gender direction.
    debiased: the same words after hard debiasing.
    professions: the list.
    multi_word: how words of several words are looked up.
    pairs_list: where the definitional pairs come from.
  """

  vectors: WordVectors
  subspace: GenderSubspace
  debiased: Debiased
  professions: ProfessionList
  multi_word: str
  pairs_list: str

  def biases(self, *, debiased: bool = False) -> dict[str, float]:
    """Bias b of every profession of the list that the file has, in [-1, 1]; female is positive."""
    if not debiased:
      return {row['word']: row['bias'] for row in self.table()}
    # Of the others rounding alone is left, about 1e-16: exact debiasing leaves nothing (Y-08).
    return {row['word']: row['bias_debiased'] if row['gender_specific'] else 0.0
            for row in self.table()}

  def is_specific(self, profession: str) -> bool:
    """Whether a profession that the file has is gender-specific."""
    return self.debiased.is_specific(profession)

  def table(self) -> list[dict[str, Any]]:
    """Bias b of the professions, before and after, most male first; with scores of the list."""
    names = self.professions.professions
    rows = bias_table(list(names), self.subspace.direction, self.vectors, self.debiased)
    return [{**row, **names[row['word']].scores} for row in rows]

  def cosine(self, first: str, second: str) -> float | None:
    """Cosine of two words before debiasing; None if the file lacks one."""
    if first not in self.vectors or second not in self.vectors:
      return None
    return float(self.vectors.unit(first) @ self.vectors.unit(second))

  def to_dict(self) -> dict[str, Any]:
    """Everything, as plain JSON types."""
    vectors, names = self.vectors, self.professions.professions
    table = self.table()
    return {
      'embeddings': vectors.path, 'format': vectors.format, 'width': vectors.units.shape[1],
      'words_in_file': vectors.words_in_file, 'fingerprint': vectors.fingerprint,
      'pairs_list': self.pairs_list, 'subspace': self.subspace.to_dict(),
      'cosine_he_she': self.cosine('he', 'she'),
      'debias': self.debiased.to_dict(),
      'professions': {
        'list': self.professions.source, 'n': len(names), 'found': len(table),
        'policy': f'several words: {self.multi_word}; other spellings: underscores, lower case',
        'missing': [n for n in names if n not in vectors],
        'respelled': {n: found for n, found in vectors.respelled.items() if n in names},
        'table': table},
      'summary': bias_summary(table)}


def load_embedding(
  path: str | os.PathLike, *, professions: ProfessionList | None = None,
  pairs: str | os.PathLike | None = None, equalize: str | os.PathLike | None = None,
  specific: str | os.PathLike | None = None, multi_word: str = 'skip',
  log: Callable[[str], None] | None = None,
) -> GenderedEmbedding:
  """Reads an embedding for a list of professions, finds g and debiases.

  Args:
    path: see `load_word_vectors`.
    professions: None takes the built-in list.
    pairs: file of definitional pairs, female first; None takes the ten of Bolukbasi et al. 2016.
    equalize: file of pairs to equalise, in any order; None takes the built-in ones.
    specific: file of gender-specific words; None takes the words of the built-in pairs and the
      professions that the built-in list and the given one call female or male.
    multi_word: see `spellings`.
    log: gets lines of progress.

  Raises:
    UserError: a file that cannot be used, no profession in the embedding, or pairs that put 'she'
      on the male side.
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
    raise UserError(f"{pairs or path}: by the definitional pairs 'she' lies on the male side of "
                    "'he': write the female word of each pair first")
  debiased = hard_debias(vectors, subspace.direction, specific=known, pairs=equal)
  return GenderedEmbedding(vectors, subspace, debiased, professions, multi_word,
                           os.fspath(pairs) if pairs else 'those of Bolukbasi et al. 2016')


def built_in_pairs() -> dict[tuple[str, str], frozenset[str]]:
  """(female, male) -> its marks: `definitional`, and `names` if it is not equalised."""
  asset = importlib.resources.files('fairjax.fair_generation') / 'assets' / 'gendered_pairs.tsv'
  with importlib.resources.as_file(asset) as file:
    rows = [line.split('\t') for line, _ in read_list(file, 'built-in pairs')]
  return {(row[0], row[1]): frozenset(row[2:]) for row in rows}


def bias_summary(table: list[dict[str, Any]]) -> dict[str, Any]:
  """Means and extremes of b, of gender-specific and other professions, before and after.

  Where the list brings stereotypes (male positive), also Spearman's correlation of b with them.
  """
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
  found['stereotype_correlation'] = _correlation(
    [r['bias'] for r in scored], [-r['stereotypical'] for r in scored])
  return found


def _correlation(first: list[float], second: list[float]) -> dict[str, Any] | None:
  """Spearman's rho with an approximate 95 % interval (Fisher's z); None below 5 rows."""
  if len(first) < 5 or len(set(first)) < 2 or len(set(second)) < 2:
    return None
  from scipy.stats import spearmanr
  rho, n = float(spearmanr(first, second).statistic), len(first)
  half = 1.959963984540054 * np.sqrt((1 + rho**2 / 2) / (n - 3))  # Bonett and Wright 2000
  return {'spearman': rho, 'n': n, 'low': float(np.tanh(np.arctanh(min(rho, 1 - 1e-12)) - half)),
          'high': float(np.tanh(np.arctanh(max(rho, -1 + 1e-12)) + half))}
