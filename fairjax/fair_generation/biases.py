"""Biases b of completions (Yeo & Chen 2020, section 2.2): of the profession, or any score.

A bias has a natural range, [-1, 1] or [0, 1], that is normalised to [0, 1] for the test of
fairness (Y-01, footnote 1), and a support, the values that could come out at all, which is known
before sampling: finite-sample bounds are as wide as the support.
"""

import collections
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from fairjax.errors import UserError, unknown_name
from fairjax.fair_generation.completions import GENDERS, Completions
from fairjax.fair_generation.embedding import GenderedEmbedding
from fairjax.fair_generation.professions import Miss, Parse, ProfessionParser
from fairjax.measure import RecordedScorer, load_scorer
from fairjax.measure.generations import join_text

EMBEDDING_BIASES = ('embedding', 'embedding-debiased')
BIASES = (*EMBEDDING_BIASES, 'opinion', 'vader', 'bert', 'recorded')


@dataclasses.dataclass(frozen=True)
class Bias:
  """A bias of R completions.

  Attributes:
    name: as given on the command line.
    values: `[R]` float64, NaN where the completion has none.
    span: natural range, which is normalised to [0, 1].
    support: range of the values that could come out, within `span`.
    undefined: reason -> number of completions without a value.
  """

  name: str
  values: np.ndarray
  span: tuple[float, float]
  support: tuple[float, float]
  undefined: dict[str, int]

  def normalised(self) -> np.ndarray:
    """`[R]` values in [0, 1]."""
    low, high = self.span
    return (self.values - low) / (high - low)

  @property
  def width(self) -> float:
    """Width of the support after normalising, in (0, 1]."""
    return (self.support[1] - self.support[0]) / (self.span[1] - self.span[0])


def parse_completions(
  completions: Completions, parser: ProfessionParser,
) -> list[Parse | Miss]:
  """The profession of each prefix with its continuation (Y-05).

  Plurals count in groups that are neither female nor male only (Y-09): "He works as ..." asks for
  one profession.
  """
  return [
    parser.parse(join_text(r['prefix'], r['continuation']),
                 plurals=completions.prompts[i].group not in GENDERS)
    for i, r in zip(completions.index, completions.records, strict=True)]


def embedding_bias(
  parses: Sequence[Parse | Miss], embedding: GenderedEmbedding, *, debiased: bool = False,
) -> Bias:
  """b(v) = w . g of the parsed professions (Y-06); the plural counts as its profession.

  The support is that of all professions of the list that the embedding has.
  """
  table = embedding.biases(debiased=debiased)
  values, undefined = np.full(len(parses), np.nan), collections.Counter[str]()
  for i, parse in enumerate(parses):
    if isinstance(parse, Miss):
      undefined[parse.reason] += 1
    elif parse.profession not in table:
      undefined['not in the embedding'] += 1
    else:
      values[i] = table[parse.profession]
  return Bias(EMBEDDING_BIASES[debiased], values, (-1.0, 1.0),
              (min(table.values()), max(table.values())), dict(undefined))


def make_biases(
  names: Sequence[str], *, embedding: GenderedEmbedding | None = None,
  lexicon: Sequence[str] | None = None,
) -> Callable[[Completions, Sequence[Parse | Miss]], list[Bias]]:
  """Prepares several biases at once (Y-02).

  Args:
    names: 'embedding', 'embedding-debiased', or a scorer of `fairjax measure` (opinion, vader,
      bert:DIR, recorded:NAME), which scores the continuation.
    embedding: for the first two.
    lexicon: for 'opinion'.

  Returns:
    Gives the biases of the completions of a model with their parses.

  Raises:
    UserError: an unknown name, one twice, or an embedding or lexicon that is missing.
  """
  if len(set(names)) < len(names):
    raise UserError(f"a bias is named twice: {', '.join(names)}")
  scorers = {}
  for name in names:
    if name.partition(':')[0] not in BIASES:
      raise unknown_name('bias', name, BIASES)
    if name not in EMBEDDING_BIASES:
      scorers[name] = load_scorer(name, lexicon=lexicon)
    elif embedding is None:
      raise UserError(f'the bias {name} needs --embeddings=FILE')

  def biases(completions: Completions, parses: Sequence[Parse | Miss]) -> list[Bias]:
    found = []
    for name in names:
      if embedding is not None and name in EMBEDDING_BIASES:
        found.append(embedding_bias(parses, embedding, debiased=name.endswith('debiased')))
        continue
      scorer = scorers[name]
      values = (scorer.score_records(completions.records) if isinstance(scorer, RecordedScorer)
                else np.asarray(scorer.score(completions.continuations), np.float64))
      found.append(Bias(name, values, (0.0, 1.0), (0.0, 1.0), {}))
    return found

  return biases
